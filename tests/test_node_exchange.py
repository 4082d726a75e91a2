"""Sums of GPUs that are added in the launch that computes them: text, simulation, refusals, and planted faults."""

import functools
import random

import attrs
import numpy as np
import pytest

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.exchange import check_exchange
from fireiron.errors import ArgumentError, DecompositionError, FireironError, SimulationError
from fireiron.gpu.node import _steps
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.synchronization import synchronization
from fireiron.inspect.synchronization import text as text_of
from fireiron.ir import Exec, For, Let, Roles, SemaphoreAction, SemaphoreBarrier, rewritten
from fireiron.sim import simulate
from fireiron.sim.node import simulate_node
from fireiron.strategies import gemm_reduce_scatter, hopper
from fireiron.values.expr import Var

OVER = {"A": RowMajor.over(GPU, "k"), "B": RowMajor.over(GPU, "k"), "C": RowMajor.over(GPU, "m")}

STORED = Move.tile(64, 64).to(Warpgroup).load("src", SH, Move.done()).cast_on_copy().done()

SMALL = (
    MatMul.tile(64, 64).to(Block).persistent(2).epilog(RF, float32, Init.done(), STORED).split(64).pipeline(2).warp_specialize()
    .load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
)  # fmt: skip
"""Two blocks, each of one warpgroup with tiles of 64 x 64 elements, and a producer of one warp."""


def product(gpus, m=64, n=128, k=64, **options):
    return MatMul(m * gpus, n, k * gpus, **{"dtype": float16, "c_dtype": float16, **OVER, **options})(GL, GL, GL)(Node(gpus))


def strategy(rows=64, columns=64, rest=SMALL, warps=2):
    return MatMul.to_gpus("k", sums=float16).overlap(rows, columns, warps=warps).then(rest)


@functools.cache
def kernel(gpus=2):
    return strategy()(product(gpus)).compile("sm_90a")


@functools.cache
def data(gpus=2):
    generator = np.random.default_rng(0)
    m, n, k = (int(size.evaluate({})) for size in product(gpus).sizes)
    a, b = (generator.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return a, b, (a.astype(float) @ b.astype(float)).astype(np.float16)


class Launched:
    """The launch of a kernel IR."""

    def __init__(self, ir):
        self.kernel, self.arrays = ir, {"A": "A", "B": "B", "C": "C"}


def simulated(ir, seed, gpus=2, launches=2):
    a, b, _ = data(gpus)
    order = None if seed is None else random.Random(seed)
    return simulate_node(product(gpus), [Launched(ir)], {"A": a, "B": b}, {}, order=order, launches_in_a_row=launches)["C"]


def test_result():
    a, b, right = data()
    assert np.array_equal(kernel()(a, b), right)


@pytest.mark.parametrize(
    ("gpus", "seed"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.nightly), pytest.param(8, 3, marks=pytest.mark.nightly)]
)
def test_any_order_of_warps_blocks_and_gpus(gpus, seed):
    """Three launches in a row, of which GPUs may be one ahead."""
    assert np.array_equal(simulated(kernel(gpus).program.ir, seed, gpus, 3), data(gpus)[-1])


def test_text():
    """One launch without barriers of GPUs: consumers store tiles on the GPU that adds them, and count them there."""
    program = kernel().program
    assert len(program.launches) == 1 and program.barriers == ("", "") and not _steps(kernel())[0].waits
    text = program.text
    assert "tma_store(&sums_of_c_map, " in text and " + launch % 2 * 128 + gpu * 64, store_c_sh_address" in text
    assert text.count("end_launch(workspace") == text.count("number_of_launch(workspace") == 2
    assert text.index("signal_sums(workspace") < text.index("// adding warps") < text.index("await_sums(workspace")


def test_explained():
    report = text_of(synchronization(kernel().program.ir))
    assert "counts the tile of sums_of_c that it has stored, on the GPU that adds it" in report and "sets its word to the number" in report


@pytest.mark.skipif("nvrtc" not in toolchains(), reason="needs NVRTC")
def test_compiles():
    assert compile_cuda(kernel().program.cuda, "sm_90a").cubin


def test_tiles_of_several_warpgroups():
    """Warpgroups that compute a tile together, and rows of several vectors per lane."""
    rest = hopper.strategy.with_(
        bm=128, bn=128, wm=64, wn=128, bk=64, stages=2, epi_m=64, epi_n=64, num_blocks=132, cluster_m=1, cluster_n=1
    )
    assert "adding warps" in strategy(128, 128, rest)(product(2, 256, 128, 64)).cuda("sm_90a")


PIECES = Move.tile(64, 64).to(Warpgroup).tile(64, 32).unroll().load("src", SH, Move.done()).cast_on_copy().done()

STORING = (
    MatMul.tile(64, 64).to(Block).persistent(2).epilog(RF, float32, Init.done(), PIECES).split(64).pipeline(2)
    .warp_specialize(store_stages=2).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
)  # fmt: skip
"""A separate warp stores tiles in two pieces, and counts them."""


@functools.cache
def storing():
    return strategy(rest=STORING)(product(2)).compile("sm_90a")


def test_storing_warp():
    text = storing().program.text
    assert text.index("// storing warp") < text.index("signal_sums(workspace") < text.index("// adding warps")
    warp = text[text.index("// storing warp") : text.index("// adding warps")]
    assert warp.count("tma_store(") == warp.count("tma_store_wait_arrival();  // one store in flight") == 1
    assert warp.index(" == gpu)") < warp.index("tma_store_wait_group<0>();") < warp.index("else\n") < warp.index("tma_store_wait_arrival")
    assert text.count("number_of_launch(workspace") == 2 and "threadIdx.x % 32 == 0" in text
    assert np.array_equal(simulated(storing().program.ir, 1), data()[-1])


@pytest.mark.skipif("nvrtc" not in toolchains(), reason="needs NVRTC")
def test_storing_warp_of_large_tiles():
    tile = {"bm": 128, "bn": 256, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 256, "stages": 3}
    values = gemm_reduce_scatter.storing_values_of(tile, 256, 512)
    assert (values["store_stages"], values["stages"], values["region_rows"]) == (4, 3, 128)
    assert gemm_reduce_scatter.storing_values_of({**tile, "bm": 64}, 256, 512) is None
    kernel = gemm_reduce_scatter.storing.with_(**values)(product(2, 256, 512, 256)).compile("sm_90a")
    assert not _steps(kernel)[0].kernel.resources.spill_stores


def test_written_and_read_back():
    chain = strategy()
    assert eval(repr(chain)) == chain and Strategy.from_json(chain.to_json()) == chain
    assert "to_gpus('k', sums=float16).overlap(64, 64, warps=2)" in str(chain(product(2)))


simple = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(4).split(1).done()

REFUSALS = {
    "no producer": (lambda: strategy(rest=simple)(product(2)).cuda("sm_90a"), "warp_specialize(), static tiles"),
    "no TMA": (lambda: strategy(rest=UNSTORED)(product(2)).cuda("sm_90a"), "one store of a tile by TMA"),
    "larger regions": (lambda: strategy(128)(product(2)).cuda("sm_90a"), "a multiple of 64 that divides 64"),
    "parts of tiles": (lambda: strategy(32)(product(2)).cuda("sm_90a"), "a multiple of 64 that divides 64"),
    "columns of a GPU": (lambda: strategy()(product(2, C=RowMajor.over(GPU, "n"))).cuda("sm_90a"), "C=RowMajor.over(GPU, 'm')"),
    "no sums": (lambda: MatMul.to_gpus("n").overlap(64, 64).then(SMALL)(product(2, A=RowMajor.over(GPU, "m"), B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))).cuda("sm_90a"), 'to_gpus("k")'),
    "unequal warps": (lambda: strategy(warps=3)(product(2)).cuda("sm_90a"), "a divisor of the tiles"),
    "one GPU": (lambda: simulate(kernel().program.ir, {}), "call the compiled kernel of the node"),
}  # fmt: skip

UNSTORED = (
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(2).warp_specialize()
    .load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
)  # fmt: skip
"""Threads store their registers."""


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, expected = REFUSALS[name]
    with pytest.raises((ArgumentError, DecompositionError, FireironError)) as caught:
        make()
    assert expected in str(caught.value)


# ---------------------------------------------------------------------------------------------- planted faults

LAUNCH, RANK = Var("launch", 0, 2**31 - 1), Var("gpu", 0, 1)


def changed(change, build=kernel):
    ir = build().program.ir
    return attrs.evolve(ir, body=rewritten(ir.body, change))


def of(action, build=kernel, **fields):
    """A fault: the fields of the statements of an action changed by functions; without fields, the statements are removed."""

    def change(stmt):
        if not isinstance(stmt, SemaphoreBarrier) or stmt.action is not action:
            return (stmt,)
        return (attrs.evolve(stmt, **{name: value(getattr(stmt, name)) for name, value in fields.items()}),) if fields else ()

    return lambda: changed(change, build)


def rows(write, values):
    """A fault: variables in the rows of stores or of reads of sums replaced."""

    def change(stmt):
        if not isinstance(stmt, Exec):
            return (stmt,)
        accesses = tuple(
            attrs.evolve(access, base=(access.base[0].substitute(values), access.base[1]))
            if access.buffer == "sums_of_c" and access.write in write
            else access
            for access in stmt.accesses
        )
        return (attrs.evolve(stmt, accesses=accesses),)

    return lambda: changed(change)


def earlier(stmt):
    """A tile counted before its pieces are stored."""
    if not isinstance(stmt, For) or not any(isinstance(one, SemaphoreBarrier) for one in stmt.body):
        return (stmt,)
    *rest, signal = stmt.body
    names = [one for one in rest if isinstance(one, Let)]
    return (attrs.evolve(stmt, body=(*names, signal, *(one for one in rest if one not in names))),)


def moved(action, role_number):
    """A fault: the last statement of an action at the start of its role, after the number of the launch."""

    def change(stmt):
        if not isinstance(stmt, Roles):
            return (stmt,)
        bodies = list(stmt.children)
        begin, *rest = bodies[role_number]
        own = [one for one in rest if isinstance(one, SemaphoreBarrier) and one.action is action][-1]
        bodies[role_number] = (begin, own, *(one for one in rest if one is not own))
        return (stmt.rebuilt(tuple(bodies)),)

    return lambda: changed(change)


S = SemaphoreAction
FAULTS = {
    "no count": of(S.SIGNAL),
    "counted in another region": of(S.SIGNAL, index=lambda index: (index + 2) % 4),
    "counted for the first GPU": of(S.SIGNAL, index=lambda index: index - RANK),
    "counted on another GPU": of(S.SIGNAL, gpu=lambda gpu: (gpu + 1) % 2),
    "counted on the own GPU": of(S.SIGNAL, gpu=lambda gpu: None),
    "counted too often": of(S.SIGNAL, active=lambda active: active * 0 + 1),
    "counted before the last store": moved(S.SIGNAL, 0),
    "count without fence": of(S.SIGNAL, fenced=lambda _: False),
    "count before arrival": of(S.SIGNAL, arrived=lambda _: False),
    "no wait": of(S.AWAIT),
    "wait for another region": of(S.AWAIT, index=lambda index: index * 0),
    "wait for more tiles": of(S.AWAIT, position=lambda position: position + 1),
    "wait for no tiles": of(S.AWAIT, position=lambda position: position * 0),
    "wait for fewer GPUs": of(S.AWAIT, blocks=lambda blocks: blocks - 1),
    "wait without fence": of(S.AWAIT, fenced=lambda _: False),
    "wait for the launch before": of(S.AWAIT, launch=lambda launch: launch - 1),
    "wait for the next launch": of(S.AWAIT, launch=lambda launch: launch + 1),
    "wait for the first launch": of(S.AWAIT, launch=lambda launch: launch * 0),
    "not numbered": of(S.END),
    "numbered twice": of(S.END, launch=lambda launch: launch + 1),
    "one word for all warps": of(S.BEGIN, index=lambda index: index * 0 + 4),
    "numbers in place of counts": of(S.BEGIN, index=lambda index: index * 0),
    "one place of sums": rows((True, False), {LAUNCH: 0}),
    "stored at the other place": rows((True,), {LAUNCH: LAUNCH + 1}),
    "read from the other place": rows((False,), {LAUNCH: LAUNCH + 1}),
    "stored in rows of the first GPU": rows((True,), {RANK: 0}),
    "read from another GPU": rows((False,), {RANK: (RANK + 1) % 2}),
    "storing warp: no count": of(S.SIGNAL, storing),
    "storing warp: counted before the stores": lambda: changed(earlier, storing),
    "storing warp: count before arrival": of(S.SIGNAL, storing, arrived=lambda _: False),
    "storing warp: count without fence": of(S.SIGNAL, storing, fenced=lambda _: False),
    "storing warp: counted on another GPU": of(S.SIGNAL, storing, gpu=lambda gpu: (gpu + 1) % 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_detects(fault):
    assert not check_exchange(AccessTrace(kernel().program.ir))
    assert check_exchange(AccessTrace(FAULTS[fault]()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_simulator_detects(fault):
    faulty = FAULTS[fault]()

    def wrong(seed):
        try:
            return not np.array_equal(simulated(faulty, seed, launches=3), data()[-1])
        except SimulationError:
            return True

    assert any(wrong(seed) for seed in (None, *range(3)))
