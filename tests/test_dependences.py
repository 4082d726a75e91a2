"""The dependences of a kernel (`lower.dependences`), against all pairs of executions of all threads of small drawn programs."""

import functools
import itertools
import random
import re

import attrs
import making
import pytest
from touching import BLOCK_BARRIER, COMMIT, T256, Engine, K, T, buffer, copies, i, kernel, loop, placed, reads, writes

from fireiron import *
from fireiron.ir import Exec, For, Wait, execs
from fireiron.lower.dependences import Dependences, Edge
from fireiron.lower.synchronize import synchronize
from fireiron.lower.wait import wait
from fireiron.values.expr import TRUE, Var, all_of, as_expr, less

FAR, NEAR = 127 - T, T // 2 * 2 + (T + 1) % 2
BUFFERS = (buffer("s", 2048), buffer("t", 1024, offset=6144), buffer("h", 512, offset=4096, dtype=float16), buffer("u", 256, offset=12288))
"""The last quarter of `s` has the bytes of `t`; `h`, of elements half as long, is inside `s`; `u` is alone."""


# ---------------------------------------------------------------------------------------------- drawn programs


class Drawn:
    """A program of loops and touches. `exact`: what the graph knows of conditions is all that they say."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.threads = self.choose.choice((64, 64, 96, 256))
        self.thread = Var("thread", 0, self.threads - 1)
        self.exact, self.count = True, 0
        self.kernel = kernel(*self.body((), 2), threads=self.threads, buffers=BUFFERS)

    def body(self, loops, depth):
        body = []
        for _ in range(self.choose.choice((1, 2, 2, 3))):
            if depth and self.choose.random() < 0.5:
                self.count += 1
                extent = self.choose.choice((2, 3, 5))
                header = making.loop(
                    Var(f"i{self.count}", 0, extent - 1), as_expr(extent), (), period=0 if loops else self.choose.choice((0, 2, 3))
                )
                body.append(attrs.evolve(header, body=self.body((*loops, header), depth - 1)))
            else:
                body.append(self.statement(loops))
        return tuple(body)

    def statement(self, loops):
        choose = self.choose
        name = choose.choice(("s", "s", "s", "t", "h", "u"))
        width, size = choose.choice((1, 1, 2, 4)), constant_of(name)
        number = choose.choice((self.thread, self.thread, self.threads - 1 - self.thread, self.thread // 2, self.thread // 32 * 32, 0))
        place = as_expr(number) * width
        for one in loops:
            # Addresses repeat after the period, as a stage's do.
            value = one.var % one.period if one.period else one.var
            place = place + value * choose.choice((0, 0, 1, 2, 32, 256)) * width
        place = place % (size // 2) + choose.choice((0, 0, size // 2))
        condition = choose.choice((TRUE, TRUE, less(self.thread, as_expr(40)), less(31, self.thread)))
        if loops and choose.random() < 0.25:
            inner = choose.choice(loops)
            condition = all_of((condition, less(inner.var + choose.choice((1, 2)), inner.extent)))
            self.exact &= not inner.period
        make = choose.choice((reads, reads, writes, writes, copies))
        made = make(place // width * width, name=name, width=width, active=condition)
        if make is writes and choose.random() < 0.3:
            made = attrs.evolve(made, spec=AtomicAdd(1, 1)(RF, SH)(Thread))
        return made


def constant_of(name):
    return next(one.elements.value for one in BUFFERS if one.name == name)


# ---------------------------------------------------------------------------------------------- all pairs


@attrs.frozen(eq=False)
class Touched:
    """A statement with the loops around it: for each byte that is touched, by iteration, by which threads."""

    statement: Exec
    loops: tuple[For, ...]
    bytes: dict

    @classmethod
    def of(cls, program, statement, loops):
        found = {}
        (access,) = statement.accesses
        place = program.buffer(access.buffer)
        size = place.dtype.bytes
        for values in itertools.product(*(range(one.extent.value) for one in loops)):
            names = {one.var.name: value for one, value in zip(loops, values, strict=True)}
            for thread in range(program.threads):
                names["thread"] = thread
                if statement.active.evaluate(names):
                    first = access.base[0].evaluate(names)
                    for (step,) in access.elements():
                        start = place.offset + (first + step) * size
                        for byte in range(start, start + size):
                            found.setdefault(byte, {}).setdefault(values, []).append(thread)
        return cls(statement, loops, found)

    @property
    def write(self):
        return self.statement.accesses[0].write


def pairs(x, y, related):
    """The pairs of (threads of an execution of x, those of one of y) that meet in a byte, of executions that are `related`; each once."""
    met = set()
    for byte in x.bytes.keys() & y.bytes.keys():
        for (one, first), (other, second) in itertools.product(x.bytes[byte].items(), y.bytes[byte].items()):
            if related(one, other):
                met.add((tuple(first), tuple(second), x is y and one == other))
    return met


def narrowest(graph, x, met):
    """The number of the narrowest scope that contains every two threads that meet, by the definition; None: no two need an order."""
    several = {(a, b) for first, second, _ in met for a in first for b in second if a != b}
    if not several:
        # The thread that issued a copy needs an order, too, but with no execution that is the copy's own.
        again = any(not same or len(first) > len({*first}) for first, second, same in met for a in first if a in second)
        return 0 if x.statement.asynchronous and x.write and again else None
    for number, scope in enumerate(graph.scopes[:-1]):
        if all(a // scope.threads == b // scope.threads for a, b in several):
            return number
    return len(graph.scopes) - 1


def common(x, y):
    """The loops around both."""
    return tuple(one for one, other in itertools.takewhile(lambda two: two[0] is two[1], zip(x.loops, y.loops, strict=False)))


def same(count):
    return lambda one, other: one[:count] == other[:count]


def later(count, by=None):
    """The second execution in a later iteration of loop `count`, `by` so many if that is said, of the same iterations around it."""
    return lambda one, other: (
        one[:count] == other[:count] and (one[count] < other[count] if by is None else other[count] - one[count] == by)
    )


@functools.cache
def drawn(seed):
    program = Drawn(seed)
    touched = [Touched.of(program.kernel, *found) for found in execs(program.kernel.body)]
    graph = Dependences(program.kernel)
    return program, graph, [(one, graph.of(one.statement, one.loops)[0]) for one in touched]


def edges(graph, x, y, around, carried=None):
    """The edges between two touches: there is one, in one scope, or none."""
    found = [edge for scope in range(len(graph.scopes)) for edge in graph.between((x,), (y,), scope, around, carried)]
    assert len(found) <= 1
    return found


def can_conflict(x, y):
    """By the definition: one writes, and not both are atomic additions."""
    return (x.write or y.write) and not (x.write and y.write and x.statement.atomic and y.statement.atomic)


SEEDS = range(160)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_edges_in_one_iteration_are_all_pairs_of_executions(seed):
    """Exactly, with the narrowest scope, for two statements in program order; at least, where a condition of a ring's loop is not known."""
    program, graph, found = drawn(seed)
    for (x, one), (y, other) in itertools.combinations(found, 2):
        around = common(x, y)
        met = pairs(x, y, same(len(around))) if can_conflict(x, y) else set()
        edge = edges(graph, one, other, tuple(each.var for each in around))
        wanted = narrowest(graph, x, met)
        if program.exact and not any(each.period and each.extent.value > each.period for each in around):
            assert [each.scope for each in edge] == ([] if wanted is None else [wanted]), (x.statement, y.statement)
        else:
            assert wanted is None or edge[0].scope >= wanted, (x.statement, y.statement)
        assert all((each.before, each.after, each.carried, each.adjacent) == (one, other, None, True) for each in edge)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_edges_that_a_loop_carries_are_all_pairs_of_its_iterations(seed):
    """At least those of an earlier iteration and a later one; at most those of any two."""
    program, graph, found = drawn(seed)
    for (x, one), (y, other) in itertools.product(found, repeat=2):
        around = common(x, y)
        for place, carrying in enumerate(around):
            conflict = can_conflict(x, y)
            edge = edges(graph, one, other, tuple(each.var for each in around[:place]), carrying)
            true = narrowest(graph, x, pairs(x, y, later(place)) if conflict else set())
            assert true is None or edge[0].scope >= true, (x.statement, y.statement, carrying.var)
            assert all(each.carried is carrying for each in edge)
            if program.exact and not any(each.period for each in around[:place]):
                every = narrowest(graph, x, pairs(x, y, same(place)) if conflict else set())
                assert [each.scope for each in edge] == ([] if every is None else [every]), (x.statement, y.statement, carrying.var)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_edges_that_are_not_adjacent_meet_further_apart_only(seed):
    program, graph, found = drawn(seed)
    for (x, one), (y, other) in itertools.product(found, repeat=2):
        for place, carrying in enumerate(common(x, y)):
            for edge in edges(graph, one, other, tuple(each.var for each in x.loops[:place]), carrying):
                next_one = narrowest(graph, x, pairs(x, y, later(place, by=1)))
                assert edge.adjacent or (carrying.period and next_one is None), (x.statement, y.statement, carrying.var)
                both = all(carrying.var in graph.touches.needed(touch) for touch in (one, other))
                if program.exact and carrying.period and both and carrying.extent.value > carrying.period and x is not y:
                    assert edge.adjacent == (next_one is not None), (x.statement, y.statement, carrying.var)


def test_the_drawn_programs_have_edges_of_every_sort():
    seen = set()
    for seed in SEEDS:
        _, graph, found = drawn(seed)
        for (x, one), (y, other) in itertools.product(found, repeat=2):
            around = common(x, y)
            for carried in (None, *around):
                variables = tuple(each.var for each in around[: around.index(carried) if carried else None])
                for edge in edges(graph, one, other, variables, carried) if carried or x is not y else ():
                    seen.add((str(graph.scopes[edge.scope]), carried is not None, edge.adjacent, one.access.buffer != other.access.buffer))
    scopes = ("warp", "warpgroup", "block")
    assert seen >= {(scope, carried, True, buffers) for scope in scopes for carried in (False, True) for buffers in (False, True)}
    assert seen >= {(scope, True, False, False) for scope in ("warp", "block")}


# ---------------------------------------------------------------------------------------------- rules


def between(*found, around=(), carried=None, **options):
    """What there is between two statements: the scope of their edge, or None."""
    loops = () if carried is None else (carried,)
    graph = Dependences(kernel(*found, **options))
    x, y = (graph.of(one, loops)[0] for one in found)
    scopes = [str(graph.scopes[edge.scope]) for edge in edges(graph, x, y, around, carried)]
    return scopes[0] if scopes else None


def test_what_conflicts():
    assert between(writes(T), reads(FAR)) == between(reads(FAR), writes(T)) == between(writes(T), writes(FAR)) == "block"
    assert between(reads(T), reads(FAR)) is None and between(writes(T), reads(T)) is None
    added = [attrs.evolve(writes(place), spec=AtomicAdd(1, 1)(RF, SH)(Thread)) for place in (T, FAR)]
    assert between(*added) is None and between(added[0], reads(FAR)) == between(added[0], writes(FAR)) == "block"
    assert between(writes(T), reads(FAR, name="t"), buffers=(buffer("s", 128), buffer("t", 128, offset=512))) is None
    assert between(writes(T), reads(T, name="t"), buffers=(buffer("s", 128), buffer("t", 128, offset=256))) == "block"


def test_a_copy_in_flight_depends_on_its_own_thread_too():
    assert between(copies(T), reads(T)) == "warp" and between(copies(T), reads(T + 128)) is None
    assert between(reads(T), copies(T)) is None, "what was read before a copy began is read"
    assert between(copies(T), reads(FAR)) == "block"


@pytest.mark.parametrize(("threads", "place", "scope"), [(256, T256 // 128 * 128 + 127 - T256 % 128, "warpgroup"), (128, FAR, "block")])
def test_an_edge_has_the_narrowest_scope_of_the_block(threads, place, scope):
    assert between(writes(T256 if threads == 256 else T), reads(place), threads=threads) == scope


def test_a_collective_access_meets_itself_where_it_comes_back_only():
    """Which lane touches what of it is not known, so each of its places seems to have several threads."""
    product = reads(0, width=4, spread=True, level=Warp, instruction=Engine())
    stored = attrs.evolve(product, accesses=(attrs.evolve(product.accesses[0], write=True),))
    for place, extent, period, meets in ((i * 4, 4, 0, False), (i % 2 * 4, 4, 2, True), (i % 2 * 4, 2, 2, False), (0, 4, 0, True)):
        one = attrs.evolve(stored, accesses=(attrs.evolve(stored.accesses[0], base=(place + T // 32 * 64,)),))
        around = loop(extent, one, period=period)
        graph = Dependences(kernel(around))
        (found,) = graph.of(one, (around,))
        assert bool(edges(graph, found, found, (), around)) == meets, (place, extent)


def test_what_a_block_does_together_is_done_by_all_of_it_where_it_touches():
    together = reads(0, width=4, spread=True, level=Block, instruction=Engine())
    assert between(writes(T), together) == "block" and between(writes(T + 128), together) is None


def test_accesses_to_boxes_of_an_array_in_global_memory():
    """Places are numbered by the sides of boxes, which several elements of an access are in."""
    array = (buffer("g", 1024, memory=GL),)
    written = writes(T * 4, name="g", width=4)
    for place, scope in ((T * 4, None), (NEAR * 4, "warp"), (FAR * 4, "block"), (T * 4 + 512, None)):
        assert between(written, reads(place, name="g", width=4), buffers=array) == scope, place
    assert between(written, reads(T * 4 + 2, name="g", width=4), buffers=array) == "block", "boxes of two"


def test_the_last_iteration_counts_with_its_condition():
    """A touch that depends on a pipelined loop by its condition alone: in the last iteration nothing is written."""
    for last, wanted in ((2, []), (4, ["block"])):
        body = loop(4, BLOCK_BARRIER, writes(T, active=less(i, last)), period=2)
        assert placed(body, reads(FAR)) == [["block", "."], *wanted, "."], last


def test_a_named_condition_on_a_ring_may_hold_in_a_later_period():
    """What a name says of the first iterations of a ring's loop it does not say of those that come back to their stages."""
    number = Var("number", 0, 1 << 20)
    written, read = writes(i % 2 * 128 + T, active=less(2, number)), reads(i % 2 * 128 + FAR)
    around = loop(4, making.let(number, i + 1), written, read, period=2)
    graph = Dependences(kernel(around))
    assert edges(graph, *(graph.of(one, (around,))[0] for one in (written, read)), (i,))


def test_a_copy_is_waited_for_by_what_touches_its_bytes_under_another_name():
    several = (buffer("s", 128), buffer("t", 128, offset=256), buffer("u", 128, offset=1024))
    for name, waits in (("t", 1), ("u", 0)):
        done = wait(synchronize(kernel(copies(T), *COMMIT, BLOCK_BARRIER, reads(T, name=name), buffers=several)))
        assert sum(isinstance(one, Wait) for one in done.body) == waits, name


def test_edges_come_in_the_order_of_the_touches():
    """Which decides about the order of names in a barrier's reason."""
    before, after = [writes(T), writes(T + 128)], [reads(FAR + 128), reads(FAR)]
    graph = Dependences(kernel(*before, *after))
    x, y = ([graph.of(one, ())[0] for one in found] for found in (before, after))
    scope = len(graph.scopes) - 1
    assert [(edge.before, edge.after) for edge in graph.between(x, y, scope, ())] == [(x[0], y[1]), (x[1], y[0])]
    assert not [*graph.between(x, y, 0, ())]


def test_an_edge_for_readers():
    one, other, around = reads(FAR), writes(T), loop(4)
    graph = Dependences(kernel(one, other))
    edge = Edge(graph.of(one, ())[0], graph.of(other, ())[0], 1, around)
    found = edge.dependence
    assert (found.buffer, found.before, found.after, found.writes, found.carried) == ("s", one, other, (False, True), "i")
    assert edge.is_reuse and attrs.evolve(edge, carried=None).dependence.carried == ""


def test_the_witness_of_an_edge_is_one_that_no_narrower_barrier_orders():
    written, read = writes(T256), reads((T256 + 255) % 256)  # the neighbor's, which is in another group for few threads
    graph = Dependences(kernel(written, read, threads=256))
    x, y = (graph.of(one, ())[0] for one in (written, read))
    (edge,) = edges(graph, x, y, ())
    threads = [int(number) for number in re.findall(r"thread (\d+)", graph.witness(edge))]
    assert threads == [127, 128] and graph.witness(edge).startswith("thread 127 writes s[127] (Move")


def test_the_witness_of_a_copy_may_be_one_thread():
    copied, read = copies(T), reads(T)
    graph = Dependences(kernel(copied, read))
    (edge,) = edges(graph, *(graph.of(one, ())[0] for one in (copied, read)), ())
    assert re.findall(r"thread (\d+)", graph.witness(edge)) == ["0", "0"]


def test_a_kernel_of_run_time_lengths():
    """A ring's stages are compared for one period, whatever the length."""
    written, read = writes(i % 3 * 128 + T), reads((i + 2) % 3 * 128 + FAR)
    around = loop(K, written, read, period=3)
    graph = Dependences(kernel(around, symbols=(K,)))
    x, y = (graph.of(one, (around,))[0] for one in (written, read))
    assert not edges(graph, x, y, (i,))
    assert [edge.adjacent for edge in edges(graph, x, y, (), around)] == [True] and not edges(graph, y, x, (), around)[0].adjacent
    assert synchronize(kernel(around, symbols=(K,)))
