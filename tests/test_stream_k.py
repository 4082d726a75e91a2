"""Stream-K: blocks that share the iterations of tiles evenly, and the block that finishes a tile last."""

import random

import attrs
import numpy as np
import printed_text
import pytest
import test_joint_tiles

from fireiron import *
from fireiron import check
from fireiron.check import streamed_tiles
from fireiron.errors import DecompositionError, FireironError, ResourceError, SimulationError, VerificationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Exec, For, Let, SemaphoreBarrier, rewritten, statements
from fireiron.ir.effects.joint_tiles import StreamedTiles
from fireiron.sim import simulate
from fireiron.values.expr import ONE, as_expr

ORDERS = (None, 1, 3)
"""Seeds of schedules in which blocks and warps run at random; None executes one block after the other."""


data, linear = test_joint_tiles.data, test_joint_tiles.linear


def simple(blocks=4, step=8, waves=1, split=4):
    """FFMA with one element per thread."""
    return MatMul.tile(8, 8).to(Block).stream_k(blocks, step, waves).epilog(RF, float32).tile(1, 1).to(Thread).split(split).split(1).done()


def hopper(blocks=4, waves=1, stages=3, store=None, **options):
    """TMA, wgmma, and a producer warp."""
    chain = MatMul.tile(128, 64).to(Block).stream_k(blocks, 64, waves).epilog(RF, float32, Init.done(), store or Move.done())
    chain = chain.split(64).pipeline(stages).warp_specialize(**options).load(A, SH, Move.done()).load(B, SH, Move.done())
    return chain.tile(64, 64).to(Warpgroup).done()


def with_tensor_cores(blocks=4, step=32, waves=1):
    """cp.async, mma.sync, and an epilogue after complete sums."""
    return linear.tile(m=32, n=16).to(Block).stream_k(blocks, step, waves).step("product", test_joint_tiles.tensor_cores).done()


def half(*sizes):
    """A matmul of row-major float16 matrices."""
    return MatMul(*sizes, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def product(arrays):
    return arrays["A"].astype(float) @ arrays["B"].astype(float)


def errors(kernel):
    return [finding for finding in check.check(kernel) if finding.severity == "error"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((9, 17, 70), {}),  # more tiles than blocks, and no complete wave
        ((40, 16, 20), {"split": 2}),  # a complete wave of tiles with one block each
        ((40, 17, 50), {"waves": 0}),
        ((24, 17, 50), {"waves": 9}),  # all tiles are shared
        ((32, 16, 50), {"blocks": 8}),  # as many tiles as blocks
        ((8, 8, 64), {"blocks": 5}),  # one tile with five blocks
        ((8, 8, 16), {"blocks": 40}),  # more blocks than units
        ((8, 40, 8), {}),  # one unit per tile
        ((9, 9, 3), {"blocks": 3, "step": 3, "split": 1}),
        ((1, 1, 1), {"step": 1, "split": 1}),
    ],
    ids=str,
)
def test_sizes(sizes, options):
    spec = MatMul(*sizes, c_dtype=float16)(GL, GL, GL)(Kernel)
    kernel, arrays = simple(**options)(spec).program("sm_80").ir, data(spec)
    for order in ORDERS[:2]:
        assert np.array_equal(
            simulate(kernel, arrays, order=test_joint_tiles.schedule(order)).outputs["C"], product(arrays).astype(np.float16)
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(60))
def test_random_sizes(seed):
    generator = random.Random(seed)
    sizes = generator.randint(1, 40), generator.randint(1, 40), generator.randint(1, 90)
    split = generator.choice([1, 2, 4])
    options = {
        "blocks": generator.randint(1, 14),
        "step": split * generator.randint(1, 4),
        "waves": generator.randint(0, 2),
        "split": split,
    }
    spec = MatMul(*sizes)(GL, GL, GL)(Kernel)
    kernel, arrays = simple(**options)(spec).program("sm_80").ir, data(spec)
    assert np.array_equal(simulate(kernel, arrays, order=generator).outputs["C"], product(arrays))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("blocks", [3, 7])
def test_epilogues_of_definitions(blocks):
    """The steps after the matmul see complete sums, in any type of the output."""
    spec = linear(m=70, n=24, k=100)
    kernel, arrays = with_tensor_cores(blocks)(spec).program("sm_80").ir, data(spec)
    expected = np.maximum(product(arrays) + arrays["bias"], 0)
    for order in ORDERS[:2]:
        assert np.array_equal(simulate(kernel, arrays, order=test_joint_tiles.schedule(order)).outputs["C"], expected.astype(np.float16))


def test_epilog_of_a_definition():
    strategy = linear.tile(8, 8).to(Block).stream_k(3, 16).epilog(RF).split(8).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    spec = linear(m=9, n=17, k=50, dtype=float32)
    arrays = data(spec)
    result = simulate(strategy(spec).program("sm_80").ir, arrays, order=random.Random(1)).outputs["C"]
    assert np.array_equal(result, np.maximum(product(arrays) + arrays["bias"], 0))


STORE = Move.tile(64, 64).to(Warpgroup).tile(64, 32).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sizes", "options"), [((256, 192, 256), {}), ((384, 256, 128), {"waves": 0, "store": STORE}), ((100, 72, 520), {"stages": 2})], ids=str
)
def test_warp_specialization(sizes, options):
    """The producer and the consumers have the same segments."""
    spec = half(*sizes)
    kernel, arrays = hopper(**options)(spec).program("sm_90a").ir, data(spec)
    for order in ORDERS[:2]:
        assert np.array_equal(
            simulate(kernel, arrays, order=test_joint_tiles.schedule(order)).outputs["C"], product(arrays).astype(np.float16)
        )


def test_results_are_equal_in_all_orders():
    """Floating-point sums too: parts are added in the order of k."""
    spec, generator = MatMul(17, 10, 90)(GL, GL, GL)(Kernel), np.random.default_rng(0)
    arrays = {name: generator.standard_normal(value.shape).astype(np.float32) for name, value in data(spec).items()}
    kernel = simple(7)(spec).program("sm_80").ir
    first, *others = (simulate(kernel, arrays, order=test_joint_tiles.schedule(order)).outputs["C"] for order in ORDERS)
    assert all(np.array_equal(first, other) for other in others) and np.allclose(first, product(arrays), atol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["simple", "linear", "hopper"])
def test_repr_json_and_text(name):
    strategy, spec, target = kinds()[name]
    assert eval(repr(strategy), {**globals(), "linear": linear}) == strategy == Strategy.from_json(strategy.to_json())
    program = strategy(spec).program(target)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


def kinds():
    """Strategies with a spec and a target: FFMA, tensor cores with an epilogue, and warp specialization."""
    return {
        "simple": (simple(waves=0), MatMul(40, 17, 50, c_dtype=float16)(GL, GL, GL)(Kernel), "sm_80"),
        "linear": (with_tensor_cores(), linear(m=70, n=24, k=100), "sm_80"),
        "hopper": (hopper(store=STORE), half(256, 192, 256), "sm_90a"),
    }


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", kinds())
def test_nvrtc_compiles_the_text(name):
    strategy, spec, target = kinds()[name]
    compiled = compile_cuda(strategy(spec).program(target).cuda, target)
    assert "bar.red" in compiled.ptx and all(not resources.spill_stores for resources in compiled.resources.values())


# ---------------------------------------------------------------------------------------------- injected faults


def semaphores(kernel, edit):
    """The kernel with each semaphore statement replaced by the statements that `edit` returns."""
    return attrs.evolve(
        kernel, body=rewritten(kernel.body, lambda stmt: tuple(edit(stmt)) if isinstance(stmt, SemaphoreBarrier) else (stmt,))
    )


def values(kernel, edit):
    """The kernel with other named values."""

    def changed(stmt):
        return (attrs.evolve(stmt, value=edit[stmt.var.name](stmt.value)),) if isinstance(stmt, Let) and stmt.var.name in edit else (stmt,)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


def loops(kernel, name, extent):
    """The kernel with another extent of a loop."""

    def changed(stmt):
        return (attrs.evolve(stmt, extent=extent(stmt.extent)),) if isinstance(stmt, For) and stmt.var.name == name else (stmt,)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


def places(kernel, write, place):
    """The kernel with other places of partial results."""

    def changed(stmt):
        if not isinstance(stmt, Exec) or all(access.buffer != "c_parts" or access.write != write for access in stmt.accesses):
            return (stmt,)
        moved = (
            attrs.evolve(access, base=(place(access.base[0]), *access.base[1:])) if access.buffer == "c_parts" else access
            for access in stmt.accesses
        )
        return (attrs.evolve(stmt, accesses=tuple(moved)),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


FAULTS = {
    "no fence": lambda kernel: semaphores(kernel, lambda stmt: [attrs.evolve(stmt, fenced=False)]),
    "the counter is not reset": lambda kernel: semaphores(kernel, lambda stmt: [attrs.evolve(stmt, resets=False)]),
    "one segment too many": lambda kernel: semaphores(kernel, lambda stmt: [attrs.evolve(stmt, blocks=stmt.blocks + 1)]),
    "one semaphore": lambda kernel: semaphores(kernel, lambda stmt: [attrs.evolve(stmt, index=as_expr(0))]),
    "all blocks finish": lambda kernel: loops(kernel, "finish", lambda extent: ONE),
    "no part is stored": lambda kernel: loops(kernel, "store_part", lambda extent: as_expr(0)),
    "a part is not added": lambda kernel: loops(kernel, "part", lambda extent: extent - 1),
    "parts at one place": lambda kernel: places(kernel, True, lambda place: as_expr(0)),
    "parts of another tile": lambda kernel: places(kernel, False, lambda place: place + 1),
    "a segment begins late": lambda kernel: values(kernel, {"k_first": lambda value: as_expr(0)}),
    "a segment is too short": lambda kernel: values(kernel, {"k_units": lambda value: as_expr(1)}),
    "a tile is left out": lambda kernel: values(kernel, {"tile": lambda value: as_expr(1)}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    """By the checks, and by the simulator (an error, or a wrong result) in one of three orders of blocks."""
    spec = MatMul(24, 8, 80)(GL, GL, GL)(Kernel)
    kernel, arrays = simple(5)(spec).program("sm_80").ir, data(spec)
    broken = FAULTS[fault](kernel)
    assert broken != kernel and not errors(kernel)
    assert any(finding.kind == "race" for finding in errors(broken))
    caught = 0
    for order in ORDERS:
        try:
            caught += not np.array_equal(simulate(broken, arrays, order=test_joint_tiles.schedule(order)).outputs["C"], product(arrays))
        except SimulationError:
            caught += 1
    assert caught


@pytest.mark.nightly
def test_races_between_segments_are_found():
    """Without the acquisition of empty stages, the producer overwrites stages of the previous segment."""
    from fireiron.ir import Acquire, Barrier, Release, StageState

    kernel = hopper(store=STORE)(half(256, 192, 256)).program("sm_90a").ir
    assert not errors(kernel)
    for kind in (Acquire, Release):
        dropped = rewritten(
            kernel.body, lambda stmt, kind=kind: () if isinstance(stmt, kind) and stmt.state is StageState.EMPTY else (stmt,)
        )
        assert errors(attrs.evolve(kernel, body=dropped))
    without = rewritten(kernel.body, lambda stmt: () if type(stmt) is Barrier else (stmt,))
    assert errors(attrs.evolve(kernel, body=without))


def test_one_segment_per_block():
    """The blocks of a single tile have one segment each, of different lengths. Stages that no role awaits are found."""
    from fireiron.ir import Acquire, StageState

    kernel = hopper(store=STORE)(half(128, 64, 11 * 64)).program("sm_90a").ir
    segment = next(stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and stmt.var.name == "segment")
    assert segment.extent == ONE and not errors(kernel)
    for state in StageState:
        dropped = rewritten(kernel.body, lambda stmt, state=state: () if isinstance(stmt, Acquire) and stmt.state is state else (stmt,))
        assert errors(attrs.evolve(kernel, body=dropped))


def test_the_compared_kernels():
    """The race check compares one tile per block, and persistent blocks with segments of any length."""
    kernel = simple(waves=0)(MatMul(40, 17, 50)(GL, GL, GL)(Kernel)).program("sm_80").ir
    assert kernel.effects[StreamedTiles].tiles == 15 and streamed_tiles.streamed(kernel).iterations == 7
    whole, segments = streamed_tiles.whole_tiles(kernel), streamed_tiles.persistent_tiles(kernel, True)
    assert whole.grid == as_expr(15) and segments.grid == kernel.grid and not whole.effects[StreamedTiles].segment
    assert not any(isinstance(stmt, SemaphoreBarrier) for stmt in whole.body)


# ---------------------------------------------------------------------------------------------- refusals

REFUSALS = {
    "no epilog": (MatMul.tile(8, 8).to(Block).stream_k(4, 8).tile(1, 1).to(Thread).split(8).split(1).done(), None, "only the store of an epilog"),
    "no split": (
        MatMul.tile(16, 8).to(Block).stream_k(4, 8).epilog(RF, float32).tile(16, 8).to(Warp)
        .load(A, RF, Move.done()).load(B, RF, Move.done()).done(),
        half(64, 64, 16), "has no loop over k",
    ),
    "another step": (simple(step=12, split=8), None, "units of 12 elements"),
    "shared memory": (
        MatMul.tile(8, 8).to(Block).stream_k(4, 8).epilog(SH, float32).tile(1, 1).to(Thread).split(4).split(1).done(), None, "are in SH",
    ),
    "float16": (
        MatMul.tile(8, 8).to(Block).stream_k(4, 8).epilog(RF, float16).tile(1, 1).to(Thread).split(4).split(1).done(), None, "are in float16",
    ),
    "run-time sizes": (simple(), MatMul(sym("M"), 64, 64)(GL, GL, GL)(Kernel), "only at run time"),
    "run-time k": (simple(), MatMul(64, 64, sym("K"))(GL, GL, GL)(Kernel), "only at run time"),
    "accumulate": (simple(), MatMul(64, 64, 64, accumulate=True)(GL, GL, GL)(Kernel), "adds to C"),
    "move": (Move.tile(8, 8).to(Block).stream_k(4, 8).done(), Move(64, 64)(GL, GL)(Kernel), "not one matrix multiplication"),
    "persistent": (MatMul.tile(8, 8).to(Block).split_k(2, Warp, 8).done(), None, ""),
    "split_k": (
        MatMul.split_k(2, Block, 8).tile(8, 8).to(Block).stream_k(4, 8).epilog(RF, float32).tile(1, 1).to(Thread).split(4).split(1).done(),
        None, "does not support",
    ),
    "cluster": (MatMul.tile(8, 8).to(Block).cluster(2).stream_k(4, 8).epilog(RF, float32).done(), None, "does not support"),
    "stagger": (
        MatMul.tile(8, 8).to(Block).stream_k(4, 8).epilog(RF).split(8).stagger_blocks(1).tile(1, 1).to(Thread).split(1).done(), None, "choose",
    ),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in REFUSALS if REFUSALS[name][2]])
def test_refusals(name):
    strategy, spec, message = REFUSALS[name]
    with pytest.raises(DecompositionError, match=message):
        _ = strategy(spec or MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_90a").ir


def test_more_units_than_32_bits():
    with pytest.raises(ResourceError, match="a product of at most"):
        _ = simple(60000, 1, 60000)(MatMul(8000, 8000, 8000)(GL, GL, GL)(Kernel)).program("sm_80").ir


def test_not_a_number():
    for wrong in ((0, 8), (4, 0), (4, 8, -1)):
        with pytest.raises(DecompositionError, match="stream_k"):
            MatMul.tile(8, 8).to(Block).stream_k(*wrong)


def test_the_verifier():
    kernel = simple()(MatMul(40, 17, 50)(GL, GL, GL)(Kernel)).program("sm_80").ir
    with pytest.raises(VerificationError, match="only find_last and begin define"):
        from fireiron.ir import verify

        verify(semaphores(kernel, lambda stmt: [attrs.evolve(stmt, last=None)]))


# ---------------------------------------------------------------------------------------------- printed text

TEXTS = {
    "simple": {
        "the semaphore is not reset": (r"atomicInc\(semaphore, blocks - 1\)", "atomicAdd(semaphore, 1u)"),
        "the first block finishes": (r"== blocks - 1;", "== 0;"),
        "all tiles have one semaphore": (r"&workspace\[.*?\]", "&workspace[0]"),
    }
}
"""Faults that show if blocks run one after the other, as on the CPU. The simulator finds those of blocks that run at the same time."""


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The printed text, executed by threads in random order, and with injected faults."""
    programs = {name: strategy(spec).program(target) for name, (strategy, spec, target) in kinds().items()}
    texts = [printed_text.Printed.of(program) for program in programs.values()]
    faults = TEXTS["simple"]
    host = printed_text.HostProgram([*texts, *(texts[0].changed(*change) for change in faults.values())], tmp_path)
    for number, program in enumerate(programs.values()):
        arrays = data(program.spec)
        expected = program.spec.reference(*(arrays[one] for one in program.spec.inputs))
        assert np.array_equal(host.run(number, arrays)["C"], expected)
    program = programs["simple"]
    arrays = data(program.spec)
    expected = program.spec.reference(arrays["A"], arrays["B"])
    for number, name in enumerate(faults):
        try:
            wrong = not np.array_equal(host.run(len(texts) + number, arrays)["C"], expected)
        except (printed_text.Refused, FireironError):
            wrong = True
        assert wrong, name
