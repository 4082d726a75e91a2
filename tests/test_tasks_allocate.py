"""Placement of shared tensors, the events that overlapping bytes require, and warp roles (Cypress, sections 4.2.4 and 4.2.5)."""

import itertools
import random
import re
from pathlib import Path

import attrs
import numpy
import pytest
from event_allocation import TASKS, mapping, product
from event_programs import edges, without_edge
from event_random import drawn
from ringed import roles_of
from test_tasks_attention import bound

from fireiron import *
from fireiron import ir, tasks
from fireiron.errors import FireironError
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks import allocate, roles
from fireiron.tasks.allocate import allocated, shared_tensors
from fireiron.tasks.dependences import analyzed
from fireiron.tasks.event_text import parse, text
from fireiron.tasks.events import Copy, verify, walk
from fireiron.tasks.execute import hazards, run_events
from fireiron.tasks.packing import pack
from fireiron.tasks.passes import events_of
from fireiron.tasks.reduce import reduced
from fireiron.tasks.vectorize import vectorized

GOLDENS = Path(__file__).parent / "goldens" / "cypress"
KB = 1024


def golden(name):
    """A figure: its remarks, and the text after them."""
    lines = (GOLDENS / f"{name}.events").read_text().splitlines(True)
    return "".join(line.removeprefix("# ") for line in lines if line.startswith("#")), "".join(
        line for line in lines if not line.startswith("#")
    )


# ---------------------------------------------------------------------------------------------- places


def test_figure_11():
    """320 KB of tensors: A overlapping C needs 224 KB, A and B overlapping C 192 KB; a bound below A plus B is refused."""
    program = product(512, 512, 512, 256, 256, 64)
    remarks, wanted = golden("figure_11")
    for most, least in ((400, 320), (320, 320), (319, 224), (224, 224), (223, 192), (192, 192)):
        report = allocate.report(allocated(program, mapping(most * KB)))
        assert report.startswith(f"shared memory of a block: {least * KB} bytes\n") and report in remarks
    with pytest.raises(FireironError) as caught:
        allocated(program, mapping(190 * KB))
    assert str(caught.value) in remarks and "196608 bytes of a block: As 98304, Bs 98304" in remarks
    bounded = allocated(program, mapping(224 * KB))
    assert text(bounded) == wanted and parse(wanted) == bounded


def overlapping(sizes, free, bound):
    """The minimum number of overlapping pairs over all placements within a bound; None if there is no placement."""
    best = None
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    for places in itertools.product(*(range(bound - size + 1) for size in sizes)):
        meet = [(i, j) for i, j in pairs if places[i] < places[j] + sizes[j] and places[j] < places[i] + sizes[i]]
        if all(pair in free for pair in meet):
            best = len(meet) if best is None else min(best, len(meet))
    return best


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 20))])
def test_as_few_as_possible_share_bytes(seed):
    """All conflict graphs of up to four tensors, compared with all placements."""
    chosen = random.Random(seed)
    for _ in range(60):
        sizes = [chosen.randint(1, 4) for _ in range(chosen.randint(2, 4))]
        free = [pair for pair in itertools.combinations(range(len(sizes)), 2) if chosen.random() < 0.6]
        most = chosen.randint(max(sizes), sum(sizes))
        placement, least = pack(sizes, free, most), overlapping(sizes, free, most)
        assert (placement.bytes > most) == (least is None)
        assert least is None or len(placement.dropped) == least
        for i, j in itertools.combinations(range(len(sizes)), 2):
            meet = placement.offsets[i] < placement.offsets[j] + sizes[j] and placement.offsets[j] < placement.offsets[i] + sizes[i]
            assert not meet or (i, j) in placement.dropped


def test_many_tensors_have_places():
    """Heuristic placement, if not all sets can be tried."""
    sizes = list(range(1, 15))
    free = [(i, j) for i, j in itertools.combinations(range(len(sizes)), 2) if j - i > 2]
    placement = pack(sizes, free, 45)
    assert placement.bytes <= 45
    for i, j in itertools.combinations(range(len(sizes)), 2):
        meet = placement.offsets[i] < placement.offsets[j] + sizes[j] and placement.offsets[j] < placement.offsets[i] + sizes[i]
        assert not meet or ((i, j) in placement.dropped and (i, j) in free)


# ---------------------------------------------------------------------------------------------- tensors that share bytes

SIZES = dict(M=32, N=32, K=32, U=16, V=16, W=4)
BOUNDS = {"apart": 0, "A": 1279, "A and B": 768}


def run_product(events, seed):
    generator = numpy.random.default_rng(7)
    a, b = (generator.integers(-3, 4, shape).astype("float16") for shape in ((32, 32), (32, 32)))
    c = numpy.zeros((32, 32), "float16")
    run_events(events, TASKS, mapping(), c, a, b, seed=seed)
    return (c == a.astype("f4") @ b.astype("f4")).all()


@pytest.mark.parametrize("name", BOUNDS)
def test_any_order_on_shared_bytes(name):
    """All events of the GEMM are needed, including those of stages and of overlapping bytes, and no others."""
    program = allocated(product(**SIZES), mapping(BOUNDS[name]))
    verify(program)
    assert sum(one.bytes for one in shared_tensors(program)) == 1280
    assert allocate.report(program).count("Cs") == {"apart": 1, "A": 2, "A and B": 3}[name]
    assert hazards(program) == () and all(run_product(program, seed) for seed in (None, 1, 2))
    small = allocated(product(16, 16, 16, 16, 16, 4), mapping(BOUNDS[name]))
    for number, event in enumerate(edges(small)):
        assert hazards(without_edge(small, number), most=1), f"{event} is needless"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{e3[:]}", "{e3[warpgroup]}", "As and Cs: shared byte"),  # the A of a warpgroup that has not finished is in the bytes of C
        ("copy(Ap[i, k], As), {p2[:]}", "copy(Ap[i, k], As), {}", "As and As: shared byte"),
        ("copy(Ap[i, k], As), {p2[:]}", "copy(Ap[i, k], As), {p2[0]}", "As and As: shared byte"),
        ("3 iterations before", "4 iterations before", "As and As: shared byte"),
        (r"(As = .*)at 0 x 3", r"\1at 0 x 2", "As and As: shared byte"),
    ],
)
def test_missing_events_are_found_and_change_results(old, new, message):
    printed = text(allocated(product(**SIZES), mapping(BOUNDS["A"])))
    broken = re.sub(old if "(As" in old else re.escape(old), new, printed)
    assert broken != printed
    program = parse(broken)
    assert any(message in str(one) for one in hazards(program, most=20))
    assert not all(run_product(program, seed) for seed in range(12))


CHAINS = """\
task work(D: write, S: read)
X = argument([8, 8], float32, GLOBAL)
Y = argument([8, 8], float32, GLOBAL)
A = tensor([8, 8], float32, SHARED)
e1: () = copy(X, A), {}
B = tensor([8, 8], float32, SHARED)
e2: () = copy(Y, B), {}
e3: () = call(work, X, A), {e1}
e4: () = call(work, Y, B), {e2}
yield e3, e4
"""


def test_events_and_not_the_text_determine_interference():
    """Two tensors whose lifetimes overlap in the text but not in the events; one is finished before the other starts."""
    program = allocated(parse(CHAINS.replace("yield e3, e4", "yield {e3, e4}")), mapping(256))
    assert [one.event for one in walk(program.body) if not hasattr(one, "shape")] == ["e1", "e3", "e2", "e4"]
    assert "copy(Y, B), {e3}" in text(program) and hazards(program) == ()
    tied = parse(CHAINS.replace("{e2}", "{e1, e2}").replace("{e1}\n", "{e1, e2}\n").replace("yield e3, e4", "yield {e3, e4}"))
    with pytest.raises(FireironError, match="512 bytes of a block: A 256, B 256"):
        allocated(tied, mapping(256))


ITERATIONS = """\
task work(D: write, S: read)
X = argument([8, 8], float32, GLOBAL)
e1: () = for k in [0, 6), {} with 2 stages do
  A = tensor([8, 8], float32, SHARED)
  Ap = partition_by_blocks(A, (4, 8))
  e2: () = copy(X, A), {}
  B: [(2, WARPGROUP)] = tensor([4, 8], float32, SHARED)
  e3: [(2, WARPGROUP)] = call(work, B, Ap[warpgroup, 0]), {e2}
  R: [(2, WARPGROUP)] = tensor([4, 8], float32, REGISTER)
  e4: [(2, WARPGROUP)] = call(work, R, B), {e3[warpgroup]}
  D: [(2, WARPGROUP)] = tensor([4, 8], float32, SHARED)
  e5: [(2, WARPGROUP)] = call(work, D, R), {e4[warpgroup]}
  S: [(2, WARPGROUP)] = tensor([4, 8], float32, REGISTER)
  e6: [(2, WARPGROUP)] = call(work, S, D), {e5[warpgroup]}
  yield e6[:]
yield e1
"""


def test_tensors_of_a_loop():
    """A loaded tensor has one copy per stage all the time. A tensor private to a warpgroup has one, and only that warpgroup waits for it."""
    apart = allocated(parse(ITERATIONS), mapping())
    assert {one.alloc.name: (one.bytes, one.copies) for one in shared_tensors(apart)} == {"A": (512, 2), "B": (256, 1), "D": (256, 1)}
    assert re.search(r"call.work, B, Ap.warpgroup, 0.., {e2, p\d\[warpgroup\]}", text(apart)) and hazards(apart) == ()
    shared = allocated(parse(ITERATIONS), mapping(768))
    assert "D       256    1       512  B" in allocate.report(shared)
    assert hazards(shared) == () and all(
        hazards(without_edge(shared, number), most=1)
        for number in range(len(edges(shared)) - 2)  # of the end: nothing is written
    )
    with pytest.raises(FireironError, match="768 bytes of a block: A 512, "):
        allocated(parse(ITERATIONS), mapping(512))


GROUP = """\
task work(D: write, S: read)
X = argument([6, 8], float32, GLOBAL)
Xp = partition_by_blocks(X, (2, 8))
e1: [(3, WARP)] = pfor i in [0, 3), {} do
  A = tensor([2, 8], float32, SHARED)
  e2: () = copy(Xp[i, 0], A), {}
  e3: () = call(work, Xp[i, 0], A), {e2}
  yield e3
yield e1[:]
"""


def test_iterations_of_a_parallel_loop_have_separate_bytes():
    program = allocated(parse(GROUP), mapping())
    assert [one.bytes for one in shared_tensors(program)] == [192] and hazards(program) == ()


def test_a_wait_for_an_iteration_covers_earlier_iterations():
    lines = """\
task work(D: write)
X = argument([6, 8], float32, GLOBAL)
e1: (), e2: () = for k in [0, 6), {p1: () = {}, p2: () = {} 3 iterations before} do
  e3: () = call(work, X), {p1, p2}
  yield e3, e3
yield e1
"""
    assert "call(work, X), {p1}" in text(reduced(parse(lines)))


@pytest.mark.parametrize("seed", [5, 13, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(25))])
def test_programs_at_random_in_less_memory(seed):
    """With decreasing bounds the bytes stay within the bound, and each legal order computes the meaning of the program."""
    program, chosen, source = drawn(seed, 2)
    generator = numpy.random.default_rng(seed)
    arrays = [generator.integers(-9, 9, (8, 8)).astype("int32") for _ in range(3)]
    wanted = arrays[0].copy()
    tasks.run(program, chosen, wanted, *arrays[1:])
    events = vectorized(analyzed(program, chosen, *[((8, 8), "int32")] * 3))
    most = sum(-(-one.bytes // allocate.ALIGNMENT) * allocate.ALIGNMENT for one in shared_tensors(events))
    for within in (most * 3 // 4 // 128 * 128, most // 2 // 128 * 128):
        try:
            less = allocated(events, attrs.evolve(chosen, max_shared_bytes=within))
        except FireironError as error:
            assert "live at the same time" in str(error)
            continue
        assert all(int(one) <= (within or most) for one in re.findall(r"of a block: (\d+)", allocate.report(less))), source
        assert parse(text(less)) == less and hazards(less, most=1) == (), source
        result = arrays[0].copy()
        run_events(less, program, chosen, result, *arrays[1:], seed=seed)
        assert (result == wanted).all(), source


# ---------------------------------------------------------------------------------------------- roles


def test_figure_12():
    """The DMA warp loads A and B. The GEMM waits for it, and it waits for the GEMM of three iterations before."""
    program = allocated(product(512, 512, 512, 256, 256, 64), mapping(224 * KB))
    _, wanted = golden("figure_12")
    assert roles.report(program, mapping()) + "\n" == wanted
    assert "crosses  e6 - -> e4, 3 iterations before" in wanted
    unasked = mapping().with_("gemm", warpspecialize=False)
    assert "dma" not in roles.report(program, unasked) and "crosses" not in roles.report(program, unasked)


def test_a_user_defined_partition_of_roles():
    """Separate warps copy out the result, so its event crosses roles, too."""
    program = allocated(product(512, 512, 512, 256, 256, 64), mapping())

    def stores_apart(program, leaf):
        return "store" if isinstance(leaf, Copy) and leaf.target.tensor == "C" else roles.loads_apart(program, leaf)

    partition = roles.divided(program, stores_apart)
    assert partition.of("store") == ("e8",) and partition.of(roles.DMA) == ("e4", "e5")
    assert set(partition.crossing) - set(roles.divided(program).crossing) == {roles.Crossing("e7", "e8")}


def kernels(name):
    """A Hopper kernel, and its program and mapping."""
    if name == "gemm":
        chosen = gemm.hopper(64, 64, 64, 1, 2)
        return tasks.strategy(gemm.program, chosen)(gemm.spec(64, 64, 256)), gemm.program, chosen
    return bound(name, "sm_90a", 256, 256)


@pytest.mark.parametrize("name", ["gemm", "FlashAttention-2", pytest.param("FlashAttention-3", marks=pytest.mark.nightly)])
def test_the_kernel_has_the_same_roles(name):
    """The kernel's producer issues the loads of the DMA warp, and its rings wait at the events that cross roles."""
    strategy, program, chosen = kernels(name)
    kernel = strategy.program("sm_90a").lowered
    consumers, producer = (list(ir.statements(role.body)) for role in roles_of(kernel))
    events = events_of(program, chosen, strategy.spec, "roles")
    partition = roles.divided(events)
    leaves = {one.event: one for one in walk(events.body) if isinstance(one, Copy)}
    loads = {event: re.sub(r"\d+$", "", leaves[event].source.tensor) for event in partition.of(roles.DMA)}
    moves = [one for one in producer if isinstance(one, ir.Exec)]
    assert sorted(loads.values()) == sorted(one.accesses[0].buffer for one in moves)
    filled = {one.accesses[0].buffer: one.ring for one in moves}
    stages = {ring.name: ring.stages for ring in kernel.rings}
    full = {one.ring for one in consumers if isinstance(one, ir.Acquire) and one.state is ir.StageState.FULL}
    empty = {one.ring for one in producer if isinstance(one, ir.Acquire) and one.state is ir.StageState.EMPTY}
    assert full == {filled[loads[one.first]] for one in partition.crossing if one.first in loads}
    backwards = {(filled[loads[one.second]], one.distance) for one in partition.crossing if one.second in loads and one.distance}
    assert backwards == {(ring, count) for ring, count in stages.items() if count > 1} and {ring for ring, _ in backwards} <= empty
