"""Event IR (Cypress, section 4): text, dependence analysis, vectorization, execution in any order, detection of missing events."""

import re
from pathlib import Path

import numpy
import pytest
from event_programs import FIGURE_8, FIGURE_8_MAPPING, FIGURE_8_TENSORS, after_each_pass, edges, without_edge
from event_random import check_drawn
from test_tasks_language import EveryOther, blocks, copying, whole

from fireiron import *
from fireiron import tasks
from fireiron.cli import main
from fireiron.errors import FireironError
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks.dependences import analyzed
from fireiron.tasks.event_text import parse, text
from fireiron.tasks.events import EVERY, Alloc, Call, Copy, For, Pfor, verify, walk
from fireiron.tasks.execute import hazards, run_events, unrolled
from fireiron.tasks.reduce import reduced
from fireiron.tasks.vectorize import flattened, vectorized

GOLDENS = Path(__file__).parent / "goldens" / "cypress"

MAPPINGS = {
    "ffma": (gemm.ffma(8, 8, 4, (1, 1), (2, 2)), (9, 8, 8)),
    "ampere": (gemm.ampere(16, 16, 32, 1, 2, 2), (16, 16, 40)),
    "hopper": (gemm.hopper(64, 16, WGS=1, stages=2), (64, 16, 128)),
}
"""Mappings of the GEMM with small sizes, which overhang if the accumulator allows it."""


def product(name):
    """The event IR of a GEMM."""
    mapping, (M, N, K) = MAPPINGS[name]
    return analyzed(gemm.program, mapping, ((M, N), "float16"), ((M, K), "float16"), ((K, N), "float16"))


def operands(M, N, K):
    generator = numpy.random.default_rng(7)
    return generator.integers(-3, 4, (M, K)).astype("float16"), generator.integers(-3, 4, (K, N)).astype("float16")


# ---------------------------------------------------------------------------------------------- text


def golden(name):
    """The program of a figure: its text after the remarks."""
    return "".join(line for line in (GOLDENS / f"{name}.events").read_text().splitlines(True) if not line.startswith("#"))


def test_figures_8_and_9():
    """Events e1 to e12 of the clear and the GEMM in the paper; the loops over threads and warps are flattened."""
    program = analyzed(FIGURE_8, FIGURE_8_MAPPING, *FIGURE_8_TENSORS)
    threads = flattened(program, THREAD)
    for name, flat in (("figure_8", program), ("figure_9_threads", threads), ("figure_9_warps", flattened(threads, WARP))):
        assert text(flat) == golden(name), name
        assert reduced(flat) == flat == parse((GOLDENS / f"{name}.events").read_text()), "preconditions are reduced transitively"
    assert vectorized(program) == flattened(threads, WARP)


@pytest.mark.parametrize("name", MAPPINGS)
def test_text_round_trip(name):
    for _, program in after_each_pass(product(name), MAPPINGS[name][0]):
        verify(program)
        assert parse(text(program)) == program


ALL_KINDS = """\
M = sym(multiple_of=8, low=8, high=8192)
task work(C: read write, A: read)
C = argument([64, M], float32, GLOBAL)
Cp = partition(C, EveryOther(parts=4))
e1: [(4, WARP), (2, WARP)] = pfor i, j in [0, 4) x [0, 2), {} do
  T = tensor([16, M], float32, REGISTER)
  e2: () = call(work, Cp[i], T), {}
  yield e2
Cpp = partition_by_blocks(Cp[warp], (1, M))
e3: [(4, WARP), (16, THREAD)] = copy(Cpp[thread, 0], Cpp[(thread + warp) % 16, 0]), {e1[warp, :]}
e4: [(4, WARP)], e5: () = for k in [0, M // 8), {p1: [(4, WARP)] = {e1[warp, 0], e3[warp, :]}} do
  e6: () = if k < 3 do
    e7: () = copy(Cp[k], Cp[-k + 3]), {p1[:]}
    yield e7
  else
    yield {}
  yield e6, {}
yield {e4[:], e5}
"""


def test_text_of_every_kind_of_statement():
    program = parse(ALL_KINDS, partitions=[EveryOther])
    assert text(program) == ALL_KINDS and parse(text(program), partitions=[EveryOther]) == program


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("e7: () = copy", "e2: () = copy", "e2: the name is already used.*line 13"),
        ("{e1[warp, :]}", "{e1[warp]}", r"e1.warp. requires one index per dimension of .*\n.*\n  legal   2\n  at      line 10"),
        ("{e1[warp, :]}", "{e9[:]}", r"(?s)no event of this name is defined before.*legal   e1.*line 10"),
        ("{p1[:]}", "{p1[i]}", r"(?s)i is not a variable in this scope.*legal   M k.*line 13"),
        ("call(work, Cp[i], T)", "call(work, T)", r"(?s)call.work.: 1 tensors.*legal   C A.*line 7"),
        ("call(work", "call(wrk", r"(?s)no task of this name is declared.*legal   work.*line 7"),
        ("copy(Cp[k], Cp[-k + 3])", "copy(Cp[k], C)", r"(?s)the copy is from 16 x M to 64 x M elements.*line 13"),
        ("  else\n    yield {}\n", "", r"(?s)a branch requires an else block.*legal   else.*line 15"),
        ("yield e6, {}", "yield e6", r"(?s)a block yields 1 sets of events.*legal   2.*line 17"),
        ("pfor i, j in [0, 4) x [0, 2)", "pfor i in [0, 2)", r"(?s)events that start with dimensions of these sizes.*line 5"),
        ("REGISTER", "SHRED", r"(?s)the machine has no SHRED.*legal   NONE GLOBAL SHARED REGISTER.*line 6"),
        ("partition(C, EveryOther(parts=4))", "partition(C, Other(4))", r"(?s)not a legal argument of a partition.*legal .*EveryOther.*line 4"),
        ("  yield e2\n", "  e2\n", r"(?s)the line is not a statement.*legal   e: \(\) = copy.*line 8"),
        ("p1: [(4, WARP)] = {e1[warp, 0], e3[warp, :]}", "p1: () = e1[0, 0]", r"(?s)p1 has the type \(\), but its result has.*legal   equal types.*line 11"),
        ("pfor i, j in", "pfor i, i in", r"(?s)i: an enclosing loop or a size already has this name.*line 5"),
        ("p1: [(4, WARP)] = {e1", "{e1", r"(?s)a loop-carried event needs a name in the loop body.*line 11"),
        ("C: read write", "C: reads", r"(?s)the privileges of C are unknown.*legal   read write.*line 2"),
        ("partition(C, EveryOther(parts=4))", "partition(C, 4)", r"(?s)partition: the arguments do not specify a partition.*got .*4.*legal .*EveryOther.*line 4"),
        ("partition(C, EveryOther(parts=4))", "partition(C)", r"(?s)partition: the arguments do not specify a partition.*got .*nothing.*line 4"),
        ("partition(C, EveryOther(parts=4))", "partition(C, EveryOther(4, 5))", r"(?s)EveryOther: .*arguments.*line 4"),
        ("partition(C, EveryOther(parts=4))", "partition_by_blocks(C)", r"(?s)partition_by_blocks: the arguments do not specify a partition.*legal .*64.*line 4"),
        ("partition(C, EveryOther(parts=4))", "partition_by_mma(C, WARP)", r"(?s)partition_by_mma: the arguments do not specify a partition.*got .*WARP.*line 4"),
        ("partition(C, EveryOther(parts=4))", "partition(C, (4, M // 2))", r"(?s)partition: the arguments do not specify a partition.*line 4"),
        ("T = tensor", "T = 3\n  U = tensor", r"(?s)the line is not a statement.*line 6"),
        ("yield {e4[:], e5}", "yield {e4[:], e5}\n  yield {}", r"(?s)is indented too far.*line 19"),
        ("Cp = partition(C", "C = partition(C", r"(?s)C: the name is already used.*line 4"),
        ("Cp = partition(C", "Cp = partition(D", r"(?s)D: no tensor of this name is allocated before.*legal.*C.*line 4"),
        ("EveryOther(parts=4)", "EveryOther(parts=4", r"(?s)line 4"),
        ("parts=4", "parts=(4, M", r"(?s)its arguments cannot be parsed.*line 4"),
        ("copy(Cp[k], Cp[-k + 3])", "copy(Cp[k])", r"(?s)copy: 1 tensors.*legal   copy.source, target.*line 13"),
        ("e2: () = call", "e2 = call", r"(?s)line 7"),
        ("e4: [(4, WARP)], e5: ()", "e4: [(4, WARP)], e-5: ()", r"(?s)an event requires a name and a type.*line 11"),
        ("Cp[warp]", "Cr[warp]", r"(?s)Cr\[warp\]: no tensor of this name is allocated before.*line 9"),
        ("call(work, Cp[i], T)", "call(work, Cr[i], T)", r"(?s)Cr: no partition of this name is defined.*legal   Cp.*line 7"),
        ("if k < 3 do", "if k > 3 do", r"(?s)the text is not an index or a size.*equal, <.*line 12"),
        ("[0, M // 8)", "[0, M / 8)", r"(?s)the text is not an index or a size.*minimum, equal, <.*line 11"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(old, new, message):
    assert old in ALL_KINDS
    with pytest.raises(FireironError) as caught:
        parse(ALL_KINDS.replace(old, new), partitions=[EveryOther])
    assert re.search(message, str(caught.value), re.DOTALL), str(caught.value)


# ---------------------------------------------------------------------------------------------- analysis


def test_copies_in_and_out():
    """A new tensor in the memory of the mapping, copied in before reads and out after writes (section 4.2.1, four steps)."""
    program = product("ffma")
    statements = list(walk(program.body))
    places = {one.name: one.place for one in statements if isinstance(one, Alloc)}
    into = {one.target.tensor: one for one in statements if isinstance(one, Copy)}
    assert places["A2"] == SHARED and into["A2"].source.tensor == "A1", "gemm_tile reads A in SHARED"
    assert "C2" not in into or into["C2"].source.tensor != "t", "clear does not read what it clears"
    called = {ref.tensor for one in statements if isinstance(one, Call) for ref in one.arguments}
    assert {str(places[name]) for name in called} == {"REGISTER", "GLOBAL"}


def test_readers_do_not_wait_for_each_other():
    """Copies of A and B wait for no MMA of the previous iteration."""
    loop = next(one for one in walk(product("ffma").body) if isinstance(one, For))
    first = [one for one in loop.body.statements if isinstance(one, Copy)]
    carried = {carry.name for carry in loop.carries}
    assert len(carried) == 1 and [bool(carried & {event.name for event in one.after}) for one in first[:3]] == [True, False, False]


def test_a_parallel_group_is_waited_for_as_a_whole():
    program = product("hopper")
    groups = {one.results[0].name: len(one.variables) for one in walk(program.body) if isinstance(one, Pfor)}
    uses = {event.name: event.index for event in edges(program) if event.name in groups}
    assert uses == {name: (EVERY,) * number for name, number in groups.items()}


@task("mix", Leaf, reads=["D", "X"], writes=["D"])
def mixed(D, X):
    call_external("copy", D, X)


def pieces_of_others(D, X):
    """Rows, and then columns."""
    launch("mix", rows(D, 2)[0, 0], rows(X, 2)[0, 0])
    launch("mix", columns(D)[0, 1], columns(X)[0, 1])


def part_of_what_was_written(D, X):
    """The other part is still the result of the first task."""
    launch("mix", D, X)
    launch("mix", rows(D, 2)[0, 0], rows(X, 2)[0, 0])
    launch("mix", rows(D, 2)[1, 0], rows(X, 2)[1, 0])


def group_in_a_part(D, X):
    """Parallel launches in the first half; the second half is still the result of the previous task."""
    launch("mix", D, X)
    for i in prange(2):
        launch("mix", rows(rows(D, 2)[0, 0], 1)[i, 0], rows(X, 1)[i, 0])
    launch("mix", rows(D, 2)[1, 0], rows(X, 2)[1, 0])


def pieces_twice(D, X):
    """Two iterations access the same piece."""
    for k in srange(4):
        launch("mix", rows(D, 2)[k // 2, 0], rows(X, 2)[k % 2, 0])


def pieces_backwards(D, X):
    """Each iteration has a separate piece."""
    for k in srange(4):
        launch("mix", rows(D, 1)[3 - k, 0], rows(X, 1)[k, 0])


def nested_iterations(D, X):
    """All on one tensor."""
    for _i in srange(2):
        for _k in srange(2):
            launch("mix", D, X)


def single_iteration(D, X):
    """Parallel loops, one of which has a single iteration."""
    for i, _j in prange(4, 1):
        launch("mix", rows(D, 1)[i, 0], rows(X, 1)[i, 0])


def rows(tensor, size):
    return partition_by_blocks(tensor, (size, tensor.shape[1]))


def columns(tensor):
    return partition_by_blocks(tensor, (4, 2))


@pytest.mark.parametrize(
    ("function", "launches", "carried"),
    [
        (pieces_of_others, 2, ""), (part_of_what_was_written, 3, ""), (group_in_a_part, 3, ""), (pieces_twice, 1, "{p1: () = {}}"),
        (pieces_backwards, 1, "{}"), (nested_iterations, 1, "{p2: () = p1}"), (single_iteration, 1, ""),
    ],
)  # fmt: skip
def test_preconditions_of_each_call(function, launches, carried):
    """The minimum set of events; `carried` are the preconditions of the innermost loop."""
    variant = task("mix", Inner, reads=["D", "X"], writes=["D"])(function)
    mapping = Mapping(
        [
            TaskMapping("all", function.__name__, HOST, [GLOBAL] * 2, {}, ["mixed"] * launches, entrypoint=True),
            TaskMapping("mixed", "mixed", THREAD, [REGISTER] * 2),
        ]
    )
    program = analyzed(Tasks(variant, mixed), mapping, *[((4, 4), "int32")] * 2)
    assert hazards(program) == () and all(hazards(without_edge(program, number)) for number in range(len(edges(program))))
    loops = re.findall(r" for .*\), (\{.*\}) do", text(program))
    assert not carried or loops[-1] == carried


@task("copy", Inner, reads=["src"], writes=["dst"])
def twice(dst, src, *, R=tunable(int), C=tunable(int)):
    to, of = partition_by_blocks(dst, (R, C)), partition_by_blocks(src, (R, C))
    for i, _j in prange(4, 2):
        launch("copy", to[i, 0], of[i, 0])


def test_concurrent_launches_that_conflict_are_refused():
    mapping = copying(R=4, C=4).with_("grid", variant="twice", calls=["thread"])
    with pytest.raises(FireironError, match=r"the same elements of dst, and one writes(?s:.*)test_tasks_events.py:\d+"):
        analyzed(Tasks(twice, blocks, whole), mapping, *[((16, 8), "float32")] * 2)


@task("copy", Leaf, reads=["src"], writes=["dst"])
def counted(dst, src):
    places = {"row": coordinates(src, 0), "column": coordinates(src, 1), "size": extent(src, 0)}
    call_external(Pointwise, y=dst, **places, formula="y[m,n] = 1000 * size + 100 * row[m] + column[n]")


def test_copies_keep_the_coordinates_of_their_source():
    """Each argument is a separate tensor whose elements keep the coordinates of their source."""
    program, mapping, spec = Tasks(blocks, counted), copying().with_("thread", variant="counted"), [((18, 10), "float32")] * 2
    wanted, out = 18000 + 100 * numpy.arange(18)[:, None] + numpy.arange(10), numpy.zeros((18, 10), "f4")
    run_events(analyzed(program, mapping, *spec), program, mapping, out, numpy.zeros_like(out), seed=4)
    assert (out == wanted).all()


def test_sizes_known_at_run_time():
    """One program for all trip counts, including zero: then the result is that of `clear`."""
    K = sym("K", high=64)
    mapping = MAPPINGS["ffma"][0]
    program = analyzed(gemm.program, mapping, ((9, 8), "float16"), ((9, K), "float16"), ((K, 8), "float16"))
    assert parse(text(program)) == program
    for size in (3, 9):
        a, b = operands(9, 8, size)
        c = numpy.zeros((9, 8), "float16")
        run_events(vectorized(program), gemm.program, mapping, c, a, b, seed=size)
        assert (c == a.astype("f4") @ b.astype("f4")).all()


# ---------------------------------------------------------------------------------------------- redundant events

HEAD = """\
M = sym(multiple_of=8, low=8, high=64)
task work(C: write)
C = argument([8, 8], float32, GLOBAL)
e1: [(4, WARP)] = call(work, C), {}
e2: [(2, WARP)] = call(work, C), {e1[warp]}
"""


@pytest.mark.parametrize(
    "lines",
    [
        "e3: () = call(work, C), {e1[:], e2[:]}",  # e2 waited for two of them
        "e3: [(4, WARP)] = call(work, C), {e1[warp]}\ne4: [(4, WARP)] = call(work, C), {e1[:], e3[warp]}",
        "e3: () = for k in [0, M // 8 - 1), {} do\n  e4: () = call(work, C), {e2[:]}\n  yield e4\ne5: () = call(work, C), {e3, e2[:]}",
        "e3: () = if M < 16 do\n  e4: () = call(work, C), {e2[:]}\n  yield e4\nelse\n  e5: () = call(work, C), {e1[:]}\n  yield e5\n"
        "e6: () = call(work, C), {e3, e2[:]}",
        "e3: (), e4: () = for k in [0, 4), {p1: () = e1[:], p2: () = {}} do\n  e5: () = call(work, C), {p1, p2}\n"
        "  e6: () = call(work, C), {e5}\n  yield e5, e6\ne7: () = call(work, C), {e3, e4}",
        "e3: () = for k in [0, M // 8 - 1), {p1: () = e2[:]} do\n  e4: () = call(work, C), {}\n  yield e4\ne5: () = call(work, C), {e3}",
    ],
)
def test_events_that_others_do_not_imply_are_kept(lines):
    program = parse(f"{HEAD}{lines}\nyield {_last(lines)}\n")
    assert text(reduced(program)) == text(program)


def _last(lines):
    """The last event, and an index for each dimension."""
    name, dims = re.findall(r"^(e\d): (\S.*?) = ", lines, re.MULTILINE)[-1]
    return name if dims == "()" else f"{name}[:]"


@pytest.mark.parametrize(
    ("lines", "less"),
    [
        ("e3: () = call(work, C), {e1[:], e1[0]}", "{e1[:]}"),
        ("e3: () = call(work, C), {e1[0], e2[:]}\ne4: () = call(work, C), {e3, e2[1]}", "{e3}"),
        ("e3: () = for k in [0, 4), {} do\n  e4: () = call(work, C), {e2[:]}\n  yield e4\ne5: () = call(work, C), {e3, e2[:]}", "{e3}"),
        ("e3: [(2, WARP)] = call(work, C), {e1[warp], e2[warp]}", "{e2[warp]}"),
    ],
)
def test_events_that_others_imply_are_removed(lines, less):
    program = reduced(parse(f"{HEAD}{lines}\nyield {_last(lines)}\n"))
    assert text(program).splitlines()[-2].endswith(less)


def test_loops_whose_trip_counts_differ_by_processor_are_kept():
    lines = (
        "e3: [(4, WARP)] = pfor i in [0, 4), {} do\n  e4: () = for k in [0, i), {} do\n    e5: () = call(work, C), {e1[i]}\n"
        "    yield e5\n  yield e4"
    )
    program = parse(f"{HEAD}{lines}\nyield e3[:]\n")
    assert flattened(program, WARP) == program


def test_a_loop_may_yield_what_was_before_it():
    program = parse(
        f"{HEAD}e3: [(4, WARP)] = pfor i in [0, 4), {{}} do\n  yield e1[i]\ne4: () = call(work, C), {{e3[:], e3[2]}}\nyield e4\n"
    )
    assert text(flattened(program, WARP)).endswith("e4: () = call(work, C), {e1[:], e1[2]}\nyield e4\n")


# ---------------------------------------------------------------------------------------------- any order


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MAPPINGS)
def test_any_order_of_events_after_each_pass(name):
    mapping, (M, N, K) = MAPPINGS[name]
    a, b = operands(M, N, K)
    wanted = numpy.zeros((M, N), "float16")
    tasks.run(gemm.program, mapping, wanted, a, b)
    assert (wanted == a.astype("f4") @ b.astype("f4")).all()
    for passed, program in after_each_pass(product(name), mapping):
        assert hazards(program) == (), passed
        result = numpy.zeros((M, N), "float16")
        run_events(program, gemm.program, mapping, result, a, b, seed=3)
        assert (result == wanted).all(), passed


@pytest.mark.parametrize("name", ["ffma", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("ampere", "hopper"))])
def test_every_event_that_is_dropped_is_found(name):
    """Each event of a small program, after each pass: without it two steps access an element in any order."""
    mapping = MAPPINGS[name][0]
    M, N, K = (8, 8, 8) if name == "ffma" else MAPPINGS[name][1]
    whole = analyzed(gemm.program, mapping, ((M, N), "float16"), ((M, K), "float16"), ((K, N), "float16"))
    for passed, program in after_each_pass(whole, mapping):
        for number, event in enumerate(edges(program)):
            assert hazards(without_edge(program, number), most=1), f"{passed}: {event} is needless"


def test_a_dropped_event_changes_results():
    """The GEMM starts before its accumulator is cleared."""
    mapping, (M, N, K) = MAPPINGS["ffma"]
    program = product("ffma")
    loop = next(one for one in walk(program.body) if isinstance(one, For))
    number = edges(program).index(loop.carries[0].initial[0])
    a, b = operands(M, N, K)
    results = set()
    for seed in (None, 0, 1):
        c = numpy.zeros((M, N), "float16")
        run_events(without_edge(program, number), gemm.program, mapping, c, a, b, seed=seed)
        results.add(c.tobytes())
    assert len(results) > 1
    (hazard,) = hazards(without_edge(program, number), most=1)
    assert "no event orders" in str(hazard)


LOOPS = """\
task turn(C: write)
C = argument([8, 8], float32, GLOBAL)
Cp = partition_by_blocks(C, (1, 8))
e1: () = call(turn, C), {{}}
e2: () = for k in [0, {count}), {{p1: () = {before}}} do
  e3: () = if k < 2 do
    e4: () = call(turn, Cp[k, 0]), {{{first}}}
    yield {yielded}
  else
    e5: () = call(turn, C), {{p1}}
    yield e5
  yield e3
e6: () = call(turn, C), {{e2}}
yield e6
"""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"count": 0}, ""),
        ({"count": 0, "before": "{}"}, "e1-e6"),
        ({"before": "{}"}, "e1-e4 e1-e5 e1-e6"),
        ({"count": 2, "first": ""}, "e1-e4"),
        ({"yielded": "p1"}, "e4-e5 e4-e6"),
    ],
)
def test_iterations_wait_for_their_preconditions(changes, expected):
    """A loop with a branch: waits between iterations. A statement after a loop without iterations waits for those before it."""
    values = {"count": 4, "before": "e1", "first": "p1", "yielded": "e4"} | changes
    pairs = [(one.first[:2], one.second[:2]) for one in hazards(parse(LOOPS.format(**values)), most=99)]
    assert " ".join(sorted({"-".join(one) for one in pairs if "th" not in one})) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [("{e5[:]}", "{e5[0]}"), ("{e4[warp, :]}", "{e4[warp, 1]}"), ("{e4[warp, :]}", "{e4[0, :]}"), ("{e3[warp, thread]}", "{e3[warp, 0]}")],
)
def test_an_index_is_one_event_and_a_broadcast_all(old, new):
    assert old in golden("figure_9_warps") and hazards(parse(golden("figure_9_warps"))) == ()
    assert hazards(parse(golden("figure_9_warps").replace(old, new)))
    wider = golden("figure_9_warps").replace("{e3[warp, thread]}", "{e3[:, :]}").replace("{e4[warp, :]}", "{e4[:, :]}")
    assert hazards(parse(wider)) == (), "who waits for more than he needs"


def test_branches_run_one_of_their_blocks():
    steps = [str(one) for one in unrolled(parse(LOOPS.format(count=4, before="e1", first="p1", yielded="e4"))).steps if one.leaf]
    assert [one.partition(":")[0] for one in steps] == ["e1", "e4", "e4", "e5", "e5", "e6"]


@pytest.mark.parametrize("seed", range(10))
def test_programs_at_random(seed):
    check_drawn(seed, 2)


# ---------------------------------------------------------------------------------------------- command line


FILE = """
from fireiron import *
from fireiron import tasks
from fireiron.strategies import tasks_gemm as gemm

strategy = tasks.strategy(gemm.program, gemm.ffma(8, 8, 4, (1, 1), (2, 2)))

def spec(M, N, K):
    return MatMul(M, N, K, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
"""


def test_the_command_line_shows_events(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    sizes = ["-M", "9", "-N", "8", "-K", "8"]
    assert main(["show", str(path), "--events", "dependences", *sizes]) == 0
    assert capsys.readouterr().out == text(product("ffma"))
    assert main(["show", str(path), "--events", *sizes]) == 0
    *_, (_, last) = after_each_pass(product("ffma"), MAPPINGS["ffma"][0])
    assert re.sub("^#.*\n", "", capsys.readouterr().out, flags=re.MULTILINE) == text(last)
    assert main(["show", str(path), "--events", "vectorized", *sizes]) != 0
    assert "vectorize?" in capsys.readouterr().err
    assert main(["show", "maxwell", "--events"]) != 0
    assert "not a program of tasks" not in (error := capsys.readouterr().err) and "only task programs have events" in error


@pytest.mark.parametrize(("seed", "depth"), [(21003525, 2), (21001173, 2), (21001403, 2)])
def test_launches_from_iterations_of_an_outer_loop_have_separate_shared_memory(seed, depth):
    """Two unordered launches use one block index: their bytes must differ."""
    check_drawn(seed, depth)
