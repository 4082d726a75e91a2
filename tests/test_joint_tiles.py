"""Results that several blocks produce together: sums by the last block of a tile, and additions in a fixed order."""

import random

import attrs
import numpy as np
import printed_text
import pytest

from fireiron import *
from fireiron import check
from fireiron.errors import DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import SemaphoreAction, SemaphoreBarrier, rewritten
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.sim import simulate
from fireiron.values.expr import as_expr, minimum

ORDERS = (None, 1)
"""Seeds of schedules in which blocks and warps run at random; None executes one block after the other."""


def schedule(seed):
    """A new generator, so that a test does not depend on those before it."""
    return None if seed is None else random.Random(seed)


copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
tensor_cores = (
    MatMul.split(32).pipeline(2).load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage()
    .tile(32, 16).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)
)  # fmt: skip

linear = Fused(
    name="linear", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "C": "m n"},
    body={"product": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "out": "C[m,n] = relu(acc[m,n] + bias[n])"},
)  # fmt: skip
sums = Fused(name="sums", dims="b m n", batch="b", operands={"X": "b m n", "y": "n"}, body={"s": "y[n] += sum(m, X[b,m,n])"})
in_loop = Fused(
    name="in_loop", dims="m n k", loop="m", operands={"A": "m k", "B": "n k", "Y": "m k"}, types={"Y": float32},
    body={"s": "s[m,n] = sum(k, A[m,k] * B[n,k])", "y": "Y[m,k] += sum(n, s[m,n] * B[n,k])"},
)  # fmt: skip


def simple(parts=4, step=8, **options):
    """FFMA with one element per thread; the options select the combination."""
    split = MatMul.split_k(parts, Block, step)
    split = split.ordered() if options.get("ordered") else split.reduce_in_last_block()
    return split.tile(8, 8).to(Block).epilog(RF, float32).tile(1, 1).to(Thread).split(1).done()


def with_semaphores(kernel, edit):
    """The kernel with each semaphore statement replaced by the statements that `edit` returns."""
    return attrs.evolve(
        kernel, body=rewritten(kernel.body, lambda stmt: tuple(edit(stmt)) if isinstance(stmt, SemaphoreBarrier) else (stmt,))
    )


def data(spec, whole=True):
    """Small integers, so that sums are exact."""
    generator = np.random.default_rng(3)
    return {
        name: generator.integers(-3, 4, view.tensor.shape and tuple(int(size.low) for size in view.tensor.shape)).astype(
            view.dtype.to_numpy()
        )
        for name, view in spec.operands.items()
        if name in spec.inputs or spec.accumulate == as_expr(1)
    }


@pytest.mark.parametrize(("sizes", "accumulate"), [((9, 5, 70), True), ((1, 3, 5), False), ((16, 16, 1), True)], ids=str)
def test_the_last_block_sums_all_parts(sizes, accumulate):
    for dtype in (float16,):
        spec = MatMul(*sizes, c_dtype=dtype, accumulate=accumulate)(GL, GL, GL)(Kernel)
        kernel = simple()(spec).program("sm_80").ir
        arrays = data(spec)
        expected = arrays["A"] @ arrays["B"] + (arrays["C"] if accumulate else 0)
        for order in ORDERS:
            assert np.array_equal(simulate(kernel, arrays, order=schedule(order)).outputs["C"], expected.astype(dtype.to_numpy()))


@pytest.mark.parametrize("parts", [1, 3])
def test_numbers_of_parts(parts):
    spec = MatMul(9, 17, 50, dtype=float16, c_dtype=float16)(GL, GL, GL)(Kernel)
    arrays = data(spec)
    result = simulate(simple(parts, 4)(spec).program("sm_80").ir, arrays).outputs["C"]
    assert np.array_equal(result, (arrays["A"].astype(float) @ arrays["B"]).astype(np.float16))


def test_sizes_known_at_run_time():
    sizes = (sym(name, high=65536) for name in "MNK")
    spec = MatMul(*sizes, c_dtype=bfloat16)(GL, GL, GL)(Kernel)
    program = simple(3)(spec).program("sm_80")
    assert "requires: blocks share at most 65536 results" in program.cuda
    for sizes in ((1, 1, 1), (9, 10, 50)):
        fixed = MatMul(*sizes, c_dtype=bfloat16)(GL, GL, GL)(Kernel)
        arrays = data(fixed)
        result = simulate(program.ir, arrays, dict(zip("MNK", sizes, strict=True)), order=random.Random(5)).outputs["C"]
        assert np.array_equal(result.astype(float), arrays["A"].astype(float) @ arrays["B"])


@pytest.mark.parametrize("sizes", [(37, 8, 70)], ids=str)
def test_epilogues_of_definitions(sizes):
    """The steps after the matmul see complete sums, in any type of the output."""
    m, n, k = sizes
    strategy = linear.split_k(3, Block, 32).reduce_in_last_block().tile(m=32, n=16).to(Block).step("product", tensor_cores).done()
    spec = linear(m=m, n=n, k=k)
    kernel, arrays = strategy(spec).program("sm_80").ir, data(spec)
    expected = np.maximum(arrays["A"].astype(float) @ arrays["B"].astype(float) + arrays["bias"], 0)
    for order in (None, 7):
        assert np.array_equal(simulate(kernel, arrays, order=schedule(order)).outputs["C"], expected.astype(np.float16))


def test_epilog_of_a_definition():
    """The steps of `epilog` follow the distribution of the accumulator."""
    strategy = linear.split_k(2, Block, 16).reduce_in_last_block().tile(8, 8).to(Block).epilog(RF).split(8).tile(2, 2).to(Thread)
    strategy = strategy.tile(1, 1).split(1).done()
    spec = linear(m=9, n=17, k=50, dtype=float32)
    arrays = data(spec)
    result = simulate(strategy(spec).program("sm_80").ir, arrays, order=random.Random(1)).outputs["C"]
    assert np.array_equal(result, np.maximum(arrays["A"] @ arrays["B"] + arrays["bias"], 0))


@pytest.mark.parametrize("strategy", [simple(), simple(ordered=True)], ids=["last", "ordered"])
def test_repr_json_and_text(strategy):
    assert eval(repr(strategy)) == strategy == Strategy.from_json(strategy.to_json())
    program = strategy(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80")
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@pytest.mark.parametrize("name", ["A", "linear"])
def test_results_are_equal_in_all_orders(name):
    """Floating-point sums too: parts are added in a fixed order."""
    generator = np.random.default_rng(0)
    if name == "A":
        spec = MatMul(17, 10, 40)(GL, GL, GL)(Kernel)
        strategies = [simple(), simple(ordered=True)]
    else:
        spec = sums(b=2, m=20, n=18, dtype=float32)
        strategies = [sums.tile(b=1, m=8, n=16).to(Block).ordered().load("X", RF, Move.tile(1, 1).to(Thread).done()).done()]
    arrays = {name: generator.standard_normal(value.shape).astype(np.float32) for name, value in data(spec).items()}
    for strategy in strategies:
        kernel = strategy(spec).program("sm_80").ir
        first, *others = (next(iter(simulate(kernel, arrays, order=schedule(order)).outputs.values())) for order in ORDERS)
        assert all(np.array_equal(first, other) for other in others)
        assert np.allclose(first, arrays["A"] @ arrays["B"] if name == "A" else arrays["X"].sum((0, 1)), atol=1e-3)


def looped(**sizes):
    """A definition whose blocks add to another tile of the output in each iteration, with its strategy."""
    tiles = MatMul.tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    strategy = in_loop.tile(n=4).to(Block).ordered().split(m=4).set_memory("s", SH).step("s", tiles).step("y", tiles).done()
    return strategy, in_loop(**sizes, dtype=float32)


def test_ordered_additions_in_a_loop():
    """The blocks of all tiles of `n` add in order."""
    strategy, spec = looped(m=10, n=12, k=4)
    kernel, arrays = strategy(spec).program("sm_80").ir, data(spec)
    expected = arrays["A"] @ arrays["B"].T @ arrays["B"]
    for order in ORDERS:
        assert np.array_equal(simulate(kernel, arrays, order=schedule(order)).outputs["Y"], expected)


RUN_TIME = {
    "columns": ({"b": 2, "m": sym("M", high=1000), "n": sym("N", high=1000)}, RowMajor),
    "column-major tiles": ({"b": 3, "m": sym("M", high=1000), "n": 50}, ColMajor),
    "batches": ({"b": sym("B", high=100), "m": 20, "n": sym("N", high=1000)}, (1, 0, 2)),
}
"""Sizes, and orders of the tiles."""


def ordered_sums(order):
    return sums.tile(b=1, m=8, n=16).to(Block).layout(order).ordered().load("X", RF, Move.tile(1, 1).to(Thread).done()).done()


@pytest.mark.parametrize("name", RUN_TIME)
def test_the_order_is_proved_for_all_sizes(name):
    sizes, order = RUN_TIME[name]
    kernel = ordered_sums(order)(sums(**sizes, dtype=float32)).program("sm_80").ir
    spec = sums(b=3, m=21, n=50) if name == "column-major tiles" else sums(b=2, m=20, n=37)
    arrays = {name: values.astype(np.float32) for name, values in data(spec).items()}
    given = dict(zip("BMN", arrays["X"].shape, strict=True))
    symbols = {symbol.name: given[symbol.name] for symbol in kernel.symbols}
    assert np.array_equal(simulate(kernel, arrays, symbols=symbols, order=random.Random(1)).outputs["y"], arrays["X"].sum((0, 1)))


def test_two_outputs_have_separate_semaphores():
    both_sums = Fused(
        name="both_sums", dims="m n", operands={"X": "m n", "y": "n", "z": "m"},
        body={"y": "y[n] += sum(m, X[m,n])", "z": "z[m] += sum(n, X[m,n])"},
    )  # fmt: skip
    strategy = both_sums.tile(m=8, n=16).to(Block).ordered().load("X", RF, Move.tile(1, 1).to(Thread).done()).done()
    kernel = strategy(both_sums(m=sym("M", high=1000), n=sym("N", high=1000), dtype=float32)).program("sm_80").ir
    x = np.random.default_rng(0).integers(-3, 4, (20, 37)).astype(np.float32)
    outputs = simulate(kernel, {"X": x}, symbols={"M": 20, "N": 37}, order=random.Random(1)).outputs
    assert np.array_equal(outputs["y"], x.sum(0)) and np.array_equal(outputs["z"], x.sum(1))
    broken = with_semaphores(kernel, lambda stmt: [attrs.evolve(stmt, index=stmt.index - (stmt.index.low if stmt.group == "y" else 1))])
    assert any("it is not proved for all sizes" in finding.message for finding in check.check(broken))


RIGHT_FOR_SOME_SIZES = {
    "another divisor": lambda stmt: attrs.evolve(stmt, index=stmt.index + stmt.blocks // 1000),
    "reversed": lambda stmt: attrs.evolve(stmt, position=stmt.blocks - 1 - stmt.position),
    "too few blocks": lambda stmt: attrs.evolve(stmt, blocks=minimum(stmt.blocks, as_expr(500))),
    "one semaphore less": lambda stmt: attrs.evolve(stmt, index=minimum(stmt.index, as_expr(400)), count=stmt.count),
}
"""Changed semaphores, of which all but the second are right for small sizes."""


@pytest.mark.parametrize("fault", RIGHT_FOR_SOME_SIZES)
def test_an_order_that_is_not_proved_for_all_sizes_is_an_error(fault):
    sizes = {"b": 2, "m": sym("M", high=100000), "n": sym("N", high=100000)}
    kernel = ordered_sums(RowMajor)(sums(**sizes, dtype=float32)).program("sm_80").ir
    assert not [finding for finding in check.check(kernel) if finding.severity == "error"]
    broken = with_semaphores(kernel, lambda stmt: [RIGHT_FOR_SOME_SIZES[fault](stmt)])
    assert any("it is not proved for all sizes" in finding.message for finding in check.check(broken))


FAULTS = {
    "last": {
        "no fence": lambda stmt: [attrs.evolve(stmt, fenced=False)],
        "the counter is not reset": lambda stmt: [attrs.evolve(stmt, resets=False)],
        "the last block reads before another one wrote": lambda stmt: [attrs.evolve(stmt, blocks=as_expr(3))],
        "two blocks are last": lambda stmt: [attrs.evolve(stmt, blocks=as_expr(2))],
        "all blocks continue": lambda stmt: [],
        "all tiles have one semaphore": lambda stmt: [attrs.evolve(stmt, index=as_expr(0))],
    },
    "ordered": {
        "no fence": lambda stmt: [attrs.evolve(stmt, fenced=False)],
        "the counter is not reset": lambda stmt: [attrs.evolve(stmt, resets=False)],
        "no wait": lambda stmt: [stmt] if stmt.action is SemaphoreAction.COUNT else [],
        "not counted": lambda stmt: [stmt] if stmt.action is SemaphoreAction.WAIT else [],
        "a block waits for later ones": lambda stmt: [attrs.evolve(stmt, position=3 - stmt.position)],
    },
}


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, faults in FAULTS.items() for fault in faults])
def test_faults_are_found(kind, fault):
    """By the checks, and by the simulator in one of three orders of blocks."""
    spec = MatMul(16, 8, 32)(GL, GL, GL)(Kernel)
    kernel = simple(ordered=kind == "ordered")(spec).program("sm_80").ir
    broken = with_semaphores(kernel, FAULTS[kind][fault])
    assert any(finding.kind == "race" and finding.severity == "error" for finding in check.check(broken))
    assert not [finding for finding in check.check(kernel) if finding.severity == "error"]
    caught = 0
    for order in (None, 1, 4):
        try:
            simulate(broken, data(spec), order=schedule(order))
        except SimulationError:
            caught += 1
    assert caught


def test_a_part_that_overwrites_another_is_found():
    """The race check compares the stores of the parts of one tile."""
    kernel = simple()(MatMul(16, 8, 32)(GL, GL, GL)(Kernel)).program("sm_80").ir

    def same_part(stmt):
        if getattr(stmt, "accesses", ()) and stmt.accesses[-1].buffer == "c_parts" and stmt.accesses[-1].write:
            access = stmt.accesses[-1]
            return (attrs.evolve(stmt, accesses=(*stmt.accesses[:-1], attrs.evolve(access, base=(as_expr(0), *access.base[1:])))),)
        return (stmt,)

    broken = attrs.evolve(kernel, body=rewritten(kernel.body, same_part))
    assert any("c_parts" in finding.message for finding in check.check(broken) if finding.severity == "error")
    with pytest.raises(SimulationError, match="c_parts"):
        simulate(broken, data(kernel.spec))


@pytest.mark.parametrize(
    ("strategy", "spec", "message"),
    [
        (MatMul.tile(16, 16).to(Block).split_k(2, Warp, 8).reduce_in_last_block(), None, "belong to one block"),
        (MatMul.tile(16, 16).to(Block).split_k(2, Warp, 8).ordered(), None, "belong to one block"),
        (MatMul.split_k(2, Block, 8).tile(16, 16).to(Block).ordered(), MatMul(64, 64, 64)(GL, GL, GL)(Kernel), "states how blocks add to C"),
        (MatMul.split_k(2, Block, 8, Reduction.done()).reduce_in_last_block().tile(16, 16).to(Block), None, "no sum to decompose"),
        (MatMul.split_k(2, Block, 8).reduce_in_last_block().tile(16, 16).to(Block).persistent(4), None, "also determines the tile"),
        (MatMul.split_k(2, Block, 8).reduce_in_last_block().tile(16, 16).to(Block).epilog(RF, float16), None, "in float16"),
        (sums.tile(b=1, m=16, n=32).to(Block).ordered().rasterize(4), sums(b=3, m=50, n=70), "in another order"),
        (sums.tile(b=1, m=16, n=32).to(Block).ordered().persistent(4), sums(b=3, m=50, n=70), "in another order"),
        (sums.tile(b=1, m=16, n=32).ordered(), sums(b=3, m=50, n=70), "distributed"),
        (MatMul.tile(16, 16).to(Block).ordered().tile(1, 1).to(Thread).split(1), MatMul(64, 64, 64)(GL, GL, GL)(Kernel), "no step of"),
    ],
)  # fmt: skip
def test_refusals(strategy, spec, message):
    spec = spec or MatMul(64, 64, 64, dtype=float16, c_dtype=float16)(GL, GL, GL)(Kernel)
    with pytest.raises(DecompositionError, match=message):
        _ = strategy.done()(spec).program("sm_80").ir


def test_warp_specialize_is_refused():
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    blocks = MatMul.split_k(4, Block, 64).reduce_in_last_block().tile(128, 64).to(Block).epilog(RF, float32)
    loads = blocks.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    with pytest.raises(DecompositionError, match="producers have a separate program"):
        loads.tile(64, 64).to(Warpgroup).done()(MatMul(256, 256, 512, **options)(GL, GL, GL)(Kernel)).cuda("sm_90a")


def test_effects():
    kernel = simple()(MatMul(16, 8, 32)(GL, GL, GL)(Kernel)).program("sm_80").ir
    assert kernel.effects[JointTiles].combination is Combination.LAST_BLOCK
    assert kernel.workspace.semaphores == as_expr(2) and str(kernel.workspace_bytes) == str(65536 * 4 + 4 * 16 * 8 * 4)


# ---------------------------------------------------------------------------------------------- printed text


def both():
    """Strategies with a spec: the last block, with an epilogue and tensor cores, and ordered additions."""
    strategy = linear.split_k(3, Block, 32).reduce_in_last_block().tile(m=32, n=16).to(Block).step("product", tensor_cores).done()
    return {
        "last": (simple(), MatMul(9, 5, 70, c_dtype=float16)(GL, GL, GL)(Kernel)),
        "linear": (strategy, linear(m=37, n=8, k=100)),
        "ordered": (simple(ordered=True), MatMul(9, 5, 70)(GL, GL, GL)(Kernel)),
    }


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", both())
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_nvrtc_compiles_the_text(name, target):
    strategy, spec = both()[name]
    program = strategy(spec).program(target)
    assert "bar.red" in compile_cuda(program.cuda, target).ptx or name == "ordered"


TEXTS = {
    "as it is printed": None,
    "the semaphore is not reset": (r"atomicInc\(semaphore, blocks - 1\)", "atomicAdd(semaphore, 1u)"),
    "the first block continues": (r"== blocks - 1;", "== 0;"),
    "all tiles have one semaphore": (r"&workspace\[.*?\]", "&workspace[0]"),
}
"""Faults that show if blocks run one after the other, as on the CPU. The simulator finds those of blocks that run at the same time."""


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The printed text, executed by threads in random order, and with injected faults."""
    programs = {name: strategy(spec).program("sm_80") for name, (strategy, spec) in both().items()}
    texts = [printed_text.Printed.of(program) for program in programs.values()]
    faulty = [texts[0].changed(*change) for change in TEXTS.values() if change is not None]
    host = printed_text.HostProgram([*texts, *faulty], tmp_path)
    arrays = {name: data(program.spec) for name, program in programs.items()}
    for number, (name, program) in enumerate(programs.items()):
        result = host.run(number, arrays[name])["C"]
        assert np.array_equal(result, program.spec.reference(*(arrays[name][one] for one in program.spec.inputs)))
    expected = programs["last"].spec.reference(arrays["last"]["A"], arrays["last"]["B"])
    for number, name in enumerate([name for name, change in TEXTS.items() if change is not None]):
        try:
            wrong = not np.array_equal(host.run(len(texts) + number, arrays["last"])["C"], expected)
        except printed_text.Refused:
            wrong = True
        assert wrong, name
