"""Copies that overlap with the launch that reads them: text, simulation, refusals, and planted faults."""

import functools
import random

import attrs
import numpy as np
import pytest

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.overlap import check_overlap
from fireiron.errors import DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import THREAD_SCOPE, Exec, For, Let, Roles, SemaphoreAction, SemaphoreBarrier, rewritten
from fireiron.sim.node import simulate_node
from fireiron.strategies import hopper
from fireiron.values.expr import INT_MAX, Var

LAUNCH, RANK = Var("launch", 0, INT_MAX), Var("gpu", 0, 1)

OVER = {"A": RowMajor.over(GPU, "m"), "B": RowMajor.over(GPU, "n"), "C": RowMajor.over(GPU, "n")}


SMALL = (
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(2).warp_specialize()
    .load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
)  # fmt: skip
"""Blocks of 64 x 64 elements, and a producer of one warp."""


def product(gpus, m=64, n=64, k=None):
    """A problem with two regions per row; with one for more than two GPUs."""
    k = k or (256 if gpus == 2 else 128)
    return MatMul(m * gpus, n * gpus, k, dtype=float16, c_dtype=float16, **OVER)(GL, GL, GL)(Node(gpus))


def strategy(rows=64, columns=128, rest=SMALL):
    return MatMul.to_gpus("n").load("A", GL).overlap(rows, columns, warps=2).then(rest)


@functools.cache
def kernel(gpus=2):
    return strategy()(product(gpus)).compile("sm_90a")


@functools.cache
def data(gpus=2):
    generator = np.random.default_rng(0)
    problem = product(gpus)
    m, n, k = (int(size.evaluate({})) for size in problem.sizes)
    a, b = (generator.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return a, b, (a.astype(float) @ b.astype(float)).astype(np.float16)


@pytest.mark.parametrize("gpus", [2, 4])
def test_result(gpus):
    a, b, right = data(gpus)
    assert np.array_equal(kernel(gpus)(a, b), right)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_warps_and_blocks(seed):
    a, b, right = data()
    result = simulate_node(kernel().program.spec, kernel().program.launches, {"A": a, "B": b}, {}, order=random.Random(seed))
    assert np.array_equal(result["C"], right)


def test_text():
    """One launch: warps that copy to the other GPU and count there, a producer that waits for a region, and loads from the workspace."""
    text = kernel().program.text
    assert len(kernel().program.launches) == 1
    assert not any(kernel().program.barriers)
    assert text.count("signal_gpu(workspace") == text.count("signal_gpu(workspace + (gpu + 1) % 2") == 1
    assert "gpu * 12288 + launch % 2 * 128 + block * 64," in text  # the copies of even and odd launches
    assert not kernel().program.launches[0].reads_of_all_gpus
    assert (
        "copy_group * 2 + copy_warp" in text
        and "if (k % 2 * 64 == 0 && (block - gpu + 2) % 2 > 0)" in text
        and "await_copies(workspace + gpu * 1572864 + (block * 2 + k / 2), 2, launch, workspace + gpu * 1572864 + 65528);" in text
    )
    assert text.index("// copying warps") < text.index("// producer") and "&gathered_a_map" in text
    assert text.count("if (limits[0] != 0 && now - start > limits[0])") == 1  # the wait for other GPUs has the time limit
    assert text.count("fence.proxy.async.global;") == 1


def test_registers_of_a_producing_warpgroup():
    """A producer of a warpgroup gives its other warps to the copy, and all of them release registers."""
    rest = hopper.strategy.with_(
        bm=128,
        bn=64,
        wm=64,
        wn=64,
        bk=64,
        stages=4,
        epi_m=64,
        epi_n=64,
        producer_threads=128,
        num_blocks=132,
        cluster_m=1,
        cluster_n=1,
        group_m=8,
        raster=0,
    )
    text = strategy(128, 128, rest)(product(2, 128, 128)).cuda("sm_90a")
    assert "// copying warps" in text


def test_large_arrays():
    """The check decides kernels with many copies, too."""
    rest = hopper.strategy.with_(bm=128, bn=256, wm=64, wn=256, epi_m=64, epi_n=64, stages=4, group_m=8, num_blocks=132)
    assert not check_overlap(AccessTrace(strategy(128, 1024, rest)(product(2, 8192, 256, 8192)).program("sm_90a").lowered))


@pytest.mark.skipif("nvrtc" not in toolchains(), reason="needs NVRTC")
def test_compiles():
    assert compile_cuda(kernel().program.cuda, "sm_90a", toolchain="nvrtc")


def test_written_and_read_back():
    chain = strategy()
    assert eval(repr(chain)) == chain and Strategy.from_json(chain.to_json()) == chain


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [(96, 256, "regions of 96 of 64"), (64, 96, "a multiple of 64 that divides 256"), (512, 256, "regions of 512 of 64")],
)
def test_refused_regions(rows, columns, words):
    with pytest.raises(DecompositionError, match=words):
        strategy(rows, columns)(product(2)).cuda("sm_90a")


def test_refused_without_producer():
    simple = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(4).split(1).done()
    with pytest.raises(DecompositionError, match="the kernel has no producer"):
        strategy(rest=simple)(product(2)).cuda("sm_90a")


# ---------------------------------------------------------------------------------------------- planted faults


def changed(change):
    """The kernel with each statement about copies replaced by what `change` returns for it."""

    def rewrite(stmt):
        return change(stmt) if isinstance(stmt, SemaphoreBarrier) else (stmt,)

    ir = kernel().program.ir
    return attrs.evolve(ir, body=rewritten(ir.body, rewrite))


def of(action, part, **fields):
    """A fault: the fields of the statements of an action changed by functions; without fields, the statements are removed.

    `part`: those of the `copies`, or those of the `reader`.
    """

    def change(stmt):
        if stmt.action is not action or part_of(stmt) != part:
            return (stmt,)
        return (attrs.evolve(stmt, **{name: value(getattr(stmt, name)) for name, value in fields.items()}),) if fields else ()

    return lambda: changed(change)


def part_of(stmt):
    """The part of the program of copies and reads to which a statement belongs."""
    return "reader" if stmt.scope == THREAD_SCOPE else "copies"


def moved(action):
    """A fault: the statement of an action at the start of its list, or of its role."""

    def build():
        ir = kernel().program.ir

        def shifted(body):
            own = [stmt for stmt in body if isinstance(stmt, SemaphoreBarrier) and stmt.action is action and part_of(stmt) == "copies"]
            names = [stmt for stmt in body if isinstance(stmt, Let)]
            return (*names, *own, *(stmt for stmt in body if stmt not in own and stmt not in names)) if own else body

        def rewrite(stmt):
            if isinstance(stmt, (For, Roles)):
                return (stmt.rebuilt(tuple(shifted(child) for child in stmt.children)),)
            return (stmt,)

        return attrs.evolve(ir, body=rewritten(ir.body, rewrite))

    return build


def copied(place):
    """A fault: copying warps write to another row."""

    def change(stmt):
        if not isinstance(stmt, Exec) or not any(access.write and access.buffer == "gathered_a" for access in stmt.accesses):
            return (stmt,)
        source, copy = stmt.accesses
        return (attrs.evolve(stmt, accesses=(source, attrs.evolve(copy, base=(place(copy.base[0]), *copy.base[1:])))),)

    def build():
        ir = kernel().program.ir
        return attrs.evolve(ir, body=rewritten(ir.body, change))

    return build


def places(write, values):
    """A fault: variables in the rows of copies, or of reads of copies, replaced."""

    def change(stmt):
        if not isinstance(stmt, Exec):
            return (stmt,)
        accesses = tuple(
            attrs.evolve(access, base=(access.base[0].substitute(values), *access.base[1:]))
            if access.buffer == "gathered_a" and access.write in write
            else access
            for access in stmt.accesses
        )
        return (attrs.evolve(stmt, accesses=accesses),)

    def build():
        ir = kernel().program.ir
        return attrs.evolve(ir, body=rewritten(ir.body, change))

    return build


def rows_of_gpu():
    """The rows from the copies of a GPU to those of the next one."""
    return kernel().program.ir.workspace.exchange.rows


def one_less(value):
    return value - 1


SIGNAL, AWAIT, BEGIN, END = SemaphoreAction.SIGNAL, SemaphoreAction.AWAIT, SemaphoreAction.BEGIN, SemaphoreAction.END

FAULTS = {
    "no count": of(SIGNAL, "copies"),
    "counted in another region": of(SIGNAL, "copies", index=lambda index: (index + 1) % 4),
    "counted before the copy": moved(SIGNAL),
    "count without fence": of(SIGNAL, "copies", fenced=lambda _: False),
    "no wait": of(AWAIT, "reader"),
    "wait for another region": of(AWAIT, "reader", index=lambda index: index * 0),
    "wait for fewer copies": of(AWAIT, "reader", position=lambda position: position - 2),
    "wait for more copies": of(AWAIT, "reader", position=lambda position: position + 1),
    "wait without fence": of(AWAIT, "reader", fenced=lambda _: False),
    "wait without proxy fence": of(AWAIT, "reader", proxied=lambda _: False),
    "wait too late": of(AWAIT, "reader", active=lambda active: 1 - active),
    "wait for the launch before": of(AWAIT, "reader", launch=one_less),
    "wait for the first launch": of(AWAIT, "reader", launch=lambda launch: launch * 0),
    "one place of copies": places((True, False), {LAUNCH: 0}),
    "copied to the other place": places((True,), {LAUNCH: LAUNCH + 1}),
    "read from the other place": places((False,), {LAUNCH: LAUNCH + 1}),
    "counted on this GPU": of(SIGNAL, "copies", gpu=lambda _: RANK),
    "counted in the region of the other part": of(SIGNAL, "copies", index=lambda index: (index + 2) % 4),
    "copied to another row": copied(lambda row: row + 8),
    "copied to this GPU": copied(lambda row: row % rows_of_gpu() + RANK * rows_of_gpu()),
    "copied to the part of the other GPU": copied(lambda row: (row % 128 + 64) % 128 + row - row % 128),
    "copied between the places": copied(lambda row: row + 64),
    "no next number": of(END, "reader"),
    "the same number again": of(END, "copies", launch=one_less),
    "words of other warps": of(END, "copies", index=lambda index: index + 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_detects(fault):
    assert not check_overlap(AccessTrace(kernel().program.ir))
    assert check_overlap(AccessTrace(FAULTS[fault]()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_simulator_detects(fault):
    a, b, right = data()
    (launch,) = kernel().program.launches
    faulty = FAULTS[fault]()

    class Faulty:
        kernel = faulty
        arrays = launch.arrays

    def wrong(seed):
        try:
            result = simulate_node(
                kernel().program.spec, [Faulty], {"A": a, "B": b}, {}, order=None if seed is None else random.Random(seed),
                launches_in_a_row=3,
            )  # fmt: skip
        except SimulationError:
            return True
        return not np.array_equal(result["C"], right)

    assert any(wrong(seed) for seed in (None, *range(12)))
