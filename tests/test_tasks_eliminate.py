"""Copy elimination on event IR: Figure 10, the remaining copies of each program of tasks, any order of events and rewrites."""

import random
from pathlib import Path

import numpy
import pytest
from event_programs import edges, without_edge

from fireiron import tasks
from fireiron.strategies import attention
from fireiron.strategies import tasks_attention as flash
from fireiron.strategies import tasks_batched as batched
from fireiron.strategies import tasks_dual as dual
from fireiron.strategies import tasks_gated as gated
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies import tasks_row_sum as row_sum
from fireiron.tasks.dependences import analyzed_for
from fireiron.tasks.eliminate import STEPS, eliminated, rewritten
from fireiron.tasks.event_text import parse, text
from fireiron.tasks.events import EVERY, Call, Copy, For, tensors_of, verify, walk
from fireiron.tasks.execute import hazards, run_events
from fireiron.tasks.mapping import REGISTER, SHARED
from fireiron.tasks.vectorize import vectorized

GOLDENS = Path(__file__).parent / "goldens" / "cypress"
FIGURES = {"10a": ("spill", "overwritten"), "10b": ("hoist spill",), "10c": ("duplicate",), "10d": ("self",)}


@pytest.mark.parametrize("figure", FIGURES)
def test_figure_10(figure):
    before, after = ((GOLDENS / f"figure_{figure}_{name}.events").read_text() for name in ("before", "after"))
    program = rewritten(parse(before), *FIGURES[figure])
    assert text(program) == "".join(line for line in after.splitlines(True) if not line.startswith("#"))
    assert hazards(parse(before)) == hazards(program) == ()


# ---------------------------------------------------------------------------------------------- programs

FRAGMENTS = "GLOBAL-SHARED GLOBAL-SHARED SHARED-REGISTER SHARED-REGISTER"
LOADS = "GLOBAL-SHARED GLOBAL-SHARED"
SUMS = f"{LOADS} SHARED-REGISTER"
THREE = f"{LOADS} GLOBAL-SHARED"
CASES = {
    "gemm, ffma": (gemm, gemm.ffma(8, 8, 4, (1, 1), (2, 2)), gemm.spec(9, 8, 8), FRAGMENTS),
    "gemm, ampere": (gemm, gemm.ampere(16, 16, 32, 1, 2, 2), gemm.spec(16, 16, 40), FRAGMENTS),
    "gemm, staged": (gemm, gemm.ampere(16, 16, 32, 1, 2, 2, staged=True), gemm.spec(16, 16, 40), FRAGMENTS),
    "gemm, hopper": (gemm, gemm.hopper(128, 8, WGS=2, stages=2), gemm.spec(128, 8, 128), LOADS),
    "gemm, through shared memory": (gemm, gemm.hopper(64, 16, WGS=1, epi_n=16), gemm.spec(64, 16, 128), LOADS),
    "batched": (batched, batched.ampere(16, 16, 32, 1, 2, 2), batched.spec(16, 16, 40, 2), FRAGMENTS),
    "dual, ampere": (dual, dual.ampere(16, 16, 32, 1, 2, 2), dual.spec(16, 16, 40), f"{THREE} SHARED-REGISTER" + " SHARED-REGISTER" * 2),
    "dual, hopper": (dual, dual.hopper(64, 16, 64, 1, 2, epi_n=16), dual.spec(64, 16, 128), THREE),
    "gated, hopper": (gated, gated.hopper(64, 16, 64, 1, 2, epi_n=16), gated.spec(64, 16, 128), THREE),
    "row sum, ampere": (row_sum, row_sum.ampere(16, 16, 32, 1, 2, 2), row_sum.spec(16, 16, 40), FRAGMENTS),
    "row sum, hopper": (row_sum, row_sum.hopper(64, 16, 64, 1, 2, epi_n=16), row_sum.spec(64, 16, 128), SUMS),
    "row sum, shared": (row_sum, row_sum.hopper(64, 16, 64, 1, 2, epi_n=16, parts=0), row_sum.spec(64, 16, 128), SUMS),
}
"""Programs with a mapping, a problem, and the memories between which they copy in the end.

A of the dual GEMM is loaded once; accumulators and sums, which have no memory in the mapping, are never copied.
"""

HEADS = attention.spec(64, 32, 16), attention.spec(32, 32, 16)
ATTENTION = {
    "FlashAttention-2, hopper": (flash.flash_2, flash.hopper(U=64, W=16, WGS=1), HEADS[0], f"{THREE} SHARED-GLOBAL"),
    "FlashAttention-3, hopper": (
        flash.flash_3, flash.hopper(U=64, W=16, WGS=1, variant=flash.AHEAD), HEADS[0], f"{THREE} SHARED-GLOBAL" + " GLOBAL-SHARED" * 2,
    ),
    "FlashAttention-2, ampere": (flash.flash_2, flash.ampere(U=32, W=16, D=16, warps=2), HEADS[1], None),
    "FlashAttention-3, ampere": (flash.flash_3, flash.ampere(U=32, W=16, D=16, warps=2, variant=flash.AHEAD), HEADS[1], None),
}  # fmt: skip
ALL = {**{name: (module.program, *rest) for name, (module, *rest) in CASES.items()}, **ATTENTION}
DAILY = ("gemm, ffma", "gemm, ampere", "gated, hopper")
APART = ("FlashAttention-2, ampere", "FlashAttention-3, ampere")
"""The scores are partitioned in two ways with possibly different owners, so more copies and events remain than needed."""
NAMES = [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in ALL]


def before_and_after(name):
    """A program's event IR with all copies, and after elimination."""
    program, mapping, spec, _ = ALL[name]
    before = vectorized(analyzed_for(program, mapping, spec))
    return before, eliminated(before)


def copies(program):
    """The memories between which a program copies, in the order of the text."""
    tensors = tensors_of(program)
    leaves = [one for one in walk(program.body) if isinstance(one, Copy)]
    return [f"{tensors[one.source.tensor].place}-{tensors[one.target.tensor].place}" for one in leaves]


def broadcasts(program):
    """The number of preconditions on all events along a dimension."""
    return sum(EVERY in one.index for one in edges(program))


@pytest.mark.parametrize(
    "name",
    [
        *CASES,
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ATTENTION if name != "FlashAttention-2, hopper"),
        "FlashAttention-2, hopper",
    ],
)
def test_remaining_copies(name):
    """The kernel copies operands to shared memory and from there to registers. All other copies were redundant."""
    before, after = before_and_after(name)
    verify(after)
    assert parse(text(after)) == after
    assert len(copies(after)) < len(copies(before)) / 4 and broadcasts(after) <= broadcasts(before) / 2
    wanted = ALL[name][3]
    assert wanted is None or sorted(copies(after)) == sorted(wanted.split())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_any_order_of_events_is_right(name):
    program, mapping, *_ = ALL[name]
    _, after = before_and_after(name)
    assert hazards(after) == ()
    generator, arrays, variant = numpy.random.default_rng(5), [], program[mapping.root.variant]
    for tensor in after.arguments:
        shape = tuple(int(size.low) for size in tensor.shape)
        values = generator.integers(-2, 3, shape) / 4
        arrays.append(numpy.array(values, tensor.dtype.numpy))
    written = [number for number, tensor in enumerate(variant.tensors) if tensor in variant.writes]
    wanted = [one.copy() for one in arrays]
    tasks.run(program, mapping, *wanted)
    for seed in (1, 2):
        results = [one.copy() for one in arrays]
        run_events(after, program, mapping, *results, seed=seed)
        for number in written:
            numpy.testing.assert_array_equal(results[number], wanted[number])


@pytest.mark.parametrize("name", NAMES[: -len(APART)])
def test_every_event_that_is_dropped_is_found(name):
    """A sample of the remaining events: without one of them two steps access an element in any order."""
    _, after = before_and_after(name)
    every = edges(after)
    for number in random.Random(3).sample(range(len(every)), 3 if name in DAILY else len(every)):
        assert hazards(without_edge(after, number), most=1), f"{every[number]} is needless"


@pytest.mark.parametrize("name", NAMES)
def test_any_order_of_rewrites_leaves_as_many_copies(name):
    before, after = before_and_after(name)
    for seed in range(2):
        other = eliminated(before, random.Random(seed))
        assert (sorted(copies(other)), broadcasts(other)) == (sorted(copies(after)), broadcasts(after))


def test_spills_come_before_other_rewrites():
    """Spills first: copies of copies move out of loops and are no longer arguments of launches."""
    before, after = before_and_after("dual, ampere")
    moved = eliminated(rewritten(before, *STEPS[1]))
    assert len(copies(moved)) > len(copies(after)) and broadcasts(moved) > broadcasts(after)
    assert hazards(moved) == ()


# ---------------------------------------------------------------------------------------------- copies and events that are needed

WAITING = """\
task load(dst: write, src: read)
task use(D: write, X: read)
D = argument([4, 8], float32, GLOBAL)
Dp = partition_by_blocks(D, (1, 8))
A = argument([4, 8], float32, GLOBAL)
Ap = partition_by_blocks(A, (1, 8))
S = tensor([1, 8], float32, SHARED)
e1: () = for k in [0, 4), {p1: () = {}} do
  e2: () = call(load, S, Ap[k, 0]), {p1}
  X = tensor([1, 8], float32, SHARED)
  e3: () = copy(S, X), {e2}
  e4: () = call(use, Dp[k, 0], X), {e3}
  yield e3
yield e4
"""
"""A reader of a copy: the next iteration may write the source."""


def test_writers_wait_for_readers_of_an_eliminated_copy():
    before = parse(WAITING.replace("  yield e3\nyield e4", "  yield e3, e4\nyield e5").replace("e1: () = for", "e1: (), e5: () = for"))
    assert hazards(before) == ()
    after = eliminated(before)
    (loop,) = (one for one in walk(after.body) if isinstance(one, For))
    load, use = (one for one in walk(loop.body) if isinstance(one, Call))
    assert copies(after) == [] and [one.name for one in load.after] == [loop.carries[0].name]
    assert [one.name for one in loop.body.yields[0]] == [use.event] and hazards(after) == ()


@pytest.mark.parametrize("figure", ["10a", "10b"])
def test_a_memory_of_the_mapping_is_kept(figure):
    """A tensor with a memory in the mapping is copied there and back in each iteration; spills affect tensors without one."""
    before = parse((GOLDENS / f"figure_{figure}_before.events").read_text().replace("float32, NONE", "float32, SHARED"))
    assert copies(eliminated(before)) == copies(before)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = tensor([1, 8], float32, SHARED)", "X = tensor([1, 8], float32, REGISTER)"),
        ("e4: () = call(use, Dp[k, 0], X), {e3}", "e6: () = call(load, S, Ap[0, 0]), {e3}\n  e4: () = call(use, Dp[k, 0], X), {e3, e6}"),
    ],
)
def test_a_needed_copy_is_kept(old, new):
    """The copy is in another memory, or its source changes."""
    assert old in WAITING
    program = (
        WAITING.replace("  yield e3\nyield e4", "  yield e3, e4\nyield e5")
        .replace("e1: () = for", "e1: (), e5: () = for")
        .replace(old, new)
    )
    assert len(copies(eliminated(parse(program)))) == 1


def test_a_copy_that_all_iterations_read_is_made_once():
    """Q of attention, which each iteration copied."""
    text_of = WAITING.replace("call(load, S, Ap[k, 0])", "copy(Ap[0, 0], S)").replace("S = tensor([1, 8], float32, SHARED)\n", "", 1)
    text_of = text_of.replace("  e2:", "  S = tensor([1, 8], float32, SHARED)\n  e2:").replace("{p1: () = {}}", "{}").replace("{p1}", "{}")
    after = eliminated(parse(text_of.replace("yield e3\nyield e4", "yield e4\nyield e1")))
    assert [isinstance(one, Copy) for one in after.body.statements] == [False, True, False] and len(copies(after)) == 1


def test_the_accumulator_of_a_gemm_is_in_registers():
    _, after = before_and_after("gemm, hopper")
    places = {one.name: one.place for one in tensors_of(after).values()}
    assert places["t"] == REGISTER and {places[name] for name in ("A2", "B2")} == {SHARED}


def test_a_tensor_that_others_read_meanwhile_is_separate():
    program = """\
task work(X: read write)
task show(D: write, S: read)
D = argument([8], float32, GLOBAL)
A = argument([8], float32, GLOBAL)
X = tensor([8], float32, GLOBAL)
e1: () = copy(A, X), {}
e2: () = call(work, X), {e1}
e3: () = call(show, D, A), {}
e4: () = copy(X, A), {e2, e3}
yield e4
"""
    before = parse(program)
    assert hazards(before) == () and len(copies(eliminated(before))) == 2


def test_registers_of_others_are_not_read():
    """Rows are written and columns read: the same warps access other elements."""
    program = parse("""\
task fill(C: write)
task store(D: write, C: read)
D = argument([4, 4], float32, GLOBAL)
Dp = partition_by_blocks(D, (4, 1))
t = tensor([4, 4], float32, NONE)
tp = partition_by_blocks(t, (1, 4))
tpp = partition_by_blocks(t, (4, 1))
X: [(4, WARP)] = tensor([1, 4], float32, REGISTER)
Y: [(4, WARP)] = tensor([4, 1], float32, REGISTER)
e1: [(4, WARP)] = call(fill, X), {}
e2: [(4, WARP)] = copy(X, tp[warp, 0]), {e1[warp]}
e3: [(4, WARP)] = copy(tpp[0, warp], Y), {e2[:]}
e4: [(4, WARP)] = call(store, Dp[0, warp], Y), {e3[warp]}
yield e4[:]
""")
    assert copies(eliminated(program)) == copies(program)
