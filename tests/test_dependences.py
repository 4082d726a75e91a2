"""The dependences of a kernel (`lower.dependences`), compared with all pairs of executions of all threads of small random kernels."""

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
"""The last quarter of `s` shares the bytes of `t`; `h`, with elements of half the size, is inside `s`; `u` overlaps nothing."""


# ---------------------------------------------------------------------------------------------- random kernels


class RandomKernel:
    """A random kernel of loops and accesses. `exact`: the graph evaluates all conditions completely."""

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
        for enclosing in loops:
            # Addresses repeat after the period, as a stage's do.
            value = enclosing.var % enclosing.period if enclosing.period else enclosing.var
            place = place + value * choose.choice((0, 0, 1, 2, 32, 256)) * width
        place = place % (size // 2) + choose.choice((0, 0, size // 2))
        condition = choose.choice((TRUE, TRUE, less(self.thread, as_expr(40)), less(31, self.thread)))
        if loops and choose.random() < 0.25:
            inner = choose.choice(loops)
            condition = all_of((condition, less(inner.var + choose.choice((1, 2)), inner.extent)))
            self.exact &= not inner.period
        make = choose.choice((reads, reads, writes, writes, copies))
        result = make(place // width * width, name=name, width=width, active=condition)
        if make is writes and choose.random() < 0.3:
            result = attrs.evolve(result, spec=AtomicAdd(1, 1)(RF, SH)(Thread))
        return result


def constant_of(name):
    return next(buffer.elements.value for buffer in BUFFERS if buffer.name == name)


# ---------------------------------------------------------------------------------------------- all pairs


@attrs.frozen(eq=False)
class ByteAccesses:
    """A statement with its enclosing loops: for each accessed byte, by iteration, the threads."""

    statement: Exec
    loops: tuple[For, ...]
    bytes: dict

    @classmethod
    def of(cls, program, statement, loops):
        by_byte = {}
        (access,) = statement.accesses
        place = program.buffer(access.buffer)
        size = place.dtype.bytes
        for values in itertools.product(*(range(enclosing.extent.value) for enclosing in loops)):
            names = {enclosing.var.name: value for enclosing, value in zip(loops, values, strict=True)}
            for thread in range(program.threads):
                names["thread"] = thread
                if statement.active.evaluate(names):
                    first = access.base[0].evaluate(names)
                    for (step,) in access.elements():
                        start = place.offset + (first + step) * size
                        for byte in range(start, start + size):
                            by_byte.setdefault(byte, {}).setdefault(values, []).append(thread)
        return cls(statement, loops, by_byte)

    @property
    def write(self):
        return self.statement.accesses[0].write


def pairs(x, y, related):
    """The pairs of (threads of an execution of x, those of one of y) that share a byte, for `related` executions; each pair once."""
    result = set()
    for byte in x.bytes.keys() & y.bytes.keys():
        for (first_iteration, first), (second_iteration, second) in itertools.product(x.bytes[byte].items(), y.bytes[byte].items()):
            if related(first_iteration, second_iteration):
                result.add((tuple(first), tuple(second), x is y and first_iteration == second_iteration))
    return result


def narrowest(graph, x, conflicts):
    """The number of the narrowest scope that contains all conflicting pairs of threads, by the definition; None if no pair needs an order."""
    distinct = {(a, b) for first, second, _ in conflicts for a in first for b in second if a != b}
    if not distinct:
        # The thread that issued a copy needs an order too, except within the copy itself.
        again = any(not same or len(first) > len({*first}) for first, second, same in conflicts for a in first if a in second)
        return 0 if x.statement.asynchronous and x.write and again else None
    for number, scope in enumerate(graph.scopes[:-1]):
        if all(a // scope.threads == b // scope.threads for a, b in distinct):
            return number
    return len(graph.scopes) - 1


def common(x, y):
    """The common enclosing loops."""
    return tuple(
        first_loop for first_loop, second_loop in itertools.takewhile(lambda two: two[0] is two[1], zip(x.loops, y.loops, strict=False))
    )


def same(count):
    return lambda first, second: first[:count] == second[:count]


def later(count, by=None):
    """The second execution is in a later iteration of loop `count` (exactly `by` later, if given), with equal outer iterations."""
    return lambda first, second: (
        first[:count] == second[:count] and (first[count] < second[count] if by is None else second[count] - first[count] == by)
    )


@functools.cache
def random_case(seed):
    program = RandomKernel(seed)
    touched = [ByteAccesses.of(program.kernel, *arguments) for arguments in execs(program.kernel.body)]
    graph = Dependences(program.kernel)
    return program, graph, [(access, graph.of(access.statement, access.loops)[0]) for access in touched]


def edges(graph, x, y, around, carried=None):
    """The edges between two accesses: at most one, in one scope."""
    result = [edge for scope in range(len(graph.scopes)) for edge in graph.between((x,), (y,), scope, around, carried)]
    assert len(result) <= 1
    return result


def can_conflict(x, y):
    """By the definition: at least one writes, and not both are atomic adds."""
    return (x.write or y.write) and not (x.write and y.write and x.statement.atomic and y.statement.atomic)


SEEDS = range(160)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_edges_in_one_iteration_compared_with_all_pairs(seed):
    """Equal, with the narrowest scope, for two statements in program order; at least as wide if a condition in a pipelined loop is not evaluated."""
    program, graph, accesses = random_case(seed)
    for (x, access), (y, other_access) in itertools.combinations(accesses, 2):
        around = common(x, y)
        conflicts = pairs(x, y, same(len(around))) if can_conflict(x, y) else set()
        edge = edges(graph, access, other_access, tuple(item.var for item in around))
        wanted = narrowest(graph, x, conflicts)
        if program.exact and not any(item.period and item.extent.value > item.period for item in around):
            assert [item.scope for item in edge] == ([] if wanted is None else [wanted]), (x.statement, y.statement)
        else:
            assert wanted is None or edge[0].scope >= wanted, (x.statement, y.statement)
        assert all((item.before, item.after, item.carried, item.adjacent) == (access, other_access, None, True) for item in edge)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_loop_carried_edges_compared_with_all_pairs(seed):
    """At least those of an earlier and a later iteration; at most those of any two iterations."""
    program, graph, accesses = random_case(seed)
    for (x, access), (y, other_access) in itertools.product(accesses, repeat=2):
        around = common(x, y)
        for place, carrying in enumerate(around):
            conflict = can_conflict(x, y)
            edge = edges(graph, access, other_access, tuple(each.var for each in around[:place]), carrying)
            required = narrowest(graph, x, pairs(x, y, later(place)) if conflict else set())
            assert required is None or edge[0].scope >= required, (x.statement, y.statement, carrying.var)
            assert all(each.carried is carrying for each in edge)
            if program.exact and not any(each.period for each in around[:place]):
                any_pair = narrowest(graph, x, pairs(x, y, same(place)) if conflict else set())
                assert [each.scope for each in edge] == ([] if any_pair is None else [any_pair]), (x.statement, y.statement, carrying.var)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_edges_that_are_not_adjacent_conflict_later_only(seed):
    program, graph, accesses = random_case(seed)
    for (x, access), (y, other_access) in itertools.product(accesses, repeat=2):
        for place, carrying in enumerate(common(x, y)):
            for edge in edges(graph, access, other_access, tuple(each.var for each in x.loops[:place]), carrying):
                next_iteration = narrowest(graph, x, pairs(x, y, later(place, by=1)))
                assert edge.adjacent or (carrying.period and next_iteration is None), (x.statement, y.statement, carrying.var)
                both = all(carrying.var in graph.touches.needed(touch) for touch in (access, other_access))
                if program.exact and carrying.period and both and carrying.extent.value > carrying.period and x is not y:
                    assert edge.adjacent == (next_iteration is not None), (x.statement, y.statement, carrying.var)


def test_random_kernels_have_all_kinds_of_edges():
    scopes = ("warp", "warpgroup", "block")
    wanted = {(scope, carried, True, buffers) for scope in scopes for carried in (False, True) for buffers in (False, True)}
    wanted |= {(scope, True, False, False) for scope in ("warp", "block")}
    for seed in SEEDS:
        _, graph, accesses = random_case(seed)
        for (x, access), (y, other_access) in itertools.product(accesses, repeat=2):
            around = common(x, y)
            for carried in (None, *around):
                variables = tuple(each.var for each in around[: around.index(carried) if carried else None])
                for edge in edges(graph, access, other_access, variables, carried) if carried or x is not y else ():
                    across = access.access.buffer != other_access.access.buffer
                    wanted.discard((str(graph.scopes[edge.scope]), carried is not None, edge.adjacent, across))
        if not wanted:
            break
    assert not wanted


# ---------------------------------------------------------------------------------------------- rules


def between(*stmts, around=(), carried=None, **options):
    """The scope of the edge between two statements, or None."""
    loops = () if carried is None else (carried,)
    graph = Dependences(kernel(*stmts, **options))
    x, y = (graph.of(stmt, loops)[0] for stmt in stmts)
    scopes = [str(graph.scopes[edge.scope]) for edge in edges(graph, x, y, around, carried)]
    return scopes[0] if scopes else None


def test_conflicting_accesses():
    assert between(writes(T), reads(FAR)) == between(reads(FAR), writes(T)) == between(writes(T), writes(FAR)) == "block"
    assert between(reads(T), reads(FAR)) is None and between(writes(T), reads(T)) is None
    added = [attrs.evolve(writes(place), spec=AtomicAdd(1, 1)(RF, SH)(Thread)) for place in (T, FAR)]
    assert between(*added) is None and between(added[0], reads(FAR)) == between(added[0], writes(FAR)) == "block"
    assert between(writes(T), reads(FAR, name="t"), buffers=(buffer("s", 128), buffer("t", 128, offset=512))) is None
    assert between(writes(T), reads(T, name="t"), buffers=(buffer("s", 128), buffer("t", 128, offset=256))) == "block"


def test_asynchronous_copies_depend_on_their_thread_too():
    assert between(copies(T), reads(T)) == "warp" and between(copies(T), reads(T + 128)) is None
    assert between(reads(T), copies(T)) is None, "reads before a copy are complete"
    assert between(copies(T), reads(FAR)) == "block"


@pytest.mark.parametrize(("threads", "place", "scope"), [(256, T256 // 128 * 128 + 127 - T256 % 128, "warpgroup"), (128, FAR, "block")])
def test_an_edge_has_the_narrowest_scope_of_the_block(threads, place, scope):
    assert between(writes(T256 if threads == 256 else T), reads(place), threads=threads) == scope


def test_collective_accesses_conflict_with_themselves_at_equal_addresses_only():
    """The lane of each element is unknown, so each element counts as accessed by several threads."""
    product = reads(0, width=4, spread=True, level=Warp, instruction=Engine())
    stored = attrs.evolve(product, accesses=(attrs.evolve(product.accesses[0], write=True),))
    for place, extent, period, conflicts in ((i * 4, 4, 0, False), (i % 2 * 4, 4, 2, True), (i % 2 * 4, 2, 2, False), (0, 4, 0, True)):
        stmt = attrs.evolve(stored, accesses=(attrs.evolve(stored.accesses[0], base=(place + T // 32 * 64,)),))
        around = loop(extent, stmt, period=period)
        graph = Dependences(kernel(around))
        (access,) = graph.of(stmt, (around,))
        assert bool(edges(graph, access, access, (), around)) == conflicts, (place, extent)


def test_accesses_of_a_block_belong_to_all_its_threads():
    together = reads(0, width=4, spread=True, level=Block, instruction=Engine())
    assert between(writes(T), together) == "block" and between(writes(T + 128), together) is None


def test_accesses_to_boxes_of_a_global_array():
    """Memory is numbered by boxes, each of which contains several elements of an access."""
    array = (buffer("g", 1024, memory=GL),)
    written = writes(T * 4, name="g", width=4)
    for place, scope in ((T * 4, None), (NEAR * 4, "warp"), (FAR * 4, "block"), (T * 4 + 512, None)):
        assert between(written, reads(place, name="g", width=4), buffers=array) == scope, place
    assert between(written, reads(T * 4 + 2, name="g", width=4), buffers=array) == "block", "boxes of two"


def test_conditions_of_the_last_iteration_count():
    """An access that depends on a pipelined loop only in its condition: the last iteration writes nothing."""
    for last, wanted in ((2, []), (4, ["block"])):
        body = loop(4, BLOCK_BARRIER, writes(T, active=less(i, last)), period=2)
        assert placed(body, reads(FAR)) == [["block", "."], *wanted, "."], last


def test_a_named_condition_on_a_ring_may_hold_in_a_later_period():
    """The value of a name in the first period of a pipelined loop differs from that in later ones, which use the same stages."""
    number = Var("number", 0, 1 << 20)
    written, read = writes(i % 2 * 128 + T, active=less(2, number)), reads(i % 2 * 128 + FAR)
    around = loop(4, making.let(number, i + 1), written, read, period=2)
    graph = Dependences(kernel(around))
    assert edges(graph, *(graph.of(stmt, (around,))[0] for stmt in (written, read)), (i,))


def test_accesses_to_overlapping_buffers_wait_for_a_copy():
    buffers = (buffer("s", 128), buffer("t", 128, offset=256), buffer("u", 128, offset=1024))
    for name, waits in (("t", 1), ("u", 0)):
        result = wait(synchronize(kernel(copies(T), *COMMIT, BLOCK_BARRIER, reads(T, name=name), buffers=buffers)))
        assert sum(isinstance(stmt, Wait) for stmt in result.body) == waits, name


def test_edges_are_in_the_order_of_the_accesses():
    """This determines the order of names in the reason of a barrier."""
    before, after = [writes(T), writes(T + 128)], [reads(FAR + 128), reads(FAR)]
    graph = Dependences(kernel(*before, *after))
    x, y = ([graph.of(stmt, ())[0] for stmt in stmts] for stmts in (before, after))
    scope = len(graph.scopes) - 1
    assert [(edge.before, edge.after) for edge in graph.between(x, y, scope, ())] == [(x[0], y[1]), (x[1], y[0])]
    assert not [*graph.between(x, y, 0, ())]


def test_dependence_of_an_edge():
    stmt, later_stmt, around = reads(FAR), writes(T), loop(4)
    graph = Dependences(kernel(stmt, later_stmt))
    edge = Edge(graph.of(stmt, ())[0], graph.of(later_stmt, ())[0], 1, around)
    dependence = edge.dependence
    assert (dependence.buffer, dependence.before, dependence.after, dependence.writes, dependence.carried) == (
        "s",
        stmt,
        later_stmt,
        (False, True),
        "i",
    )
    assert edge.is_reuse and attrs.evolve(edge, carried=None).dependence.carried == ""


def test_witness_of_an_edge_needs_its_scope():
    written, read = writes(T256), reads((T256 + 255) % 256)  # the next thread, which few threads have in another warpgroup
    graph = Dependences(kernel(written, read, threads=256))
    x, y = (graph.of(stmt, ())[0] for stmt in (written, read))
    (edge,) = edges(graph, x, y, ())
    threads = [int(number) for number in re.findall(r"thread (\d+)", graph.witness(edge))]
    assert threads == [127, 128] and graph.witness(edge).startswith("thread 127 writes s[127] (Move")


def test_witness_of_a_copy_may_be_one_thread():
    copied, read = copies(T), reads(T)
    graph = Dependences(kernel(copied, read))
    (edge,) = edges(graph, *(graph.of(stmt, ())[0] for stmt in (copied, read)), ())
    assert re.findall(r"thread (\d+)", graph.witness(edge)) == ["0", "0"]


def test_a_kernel_of_run_time_lengths():
    """Stages are compared for one period, for any length."""
    written, read = writes(i % 3 * 128 + T), reads((i + 2) % 3 * 128 + FAR)
    around = loop(K, written, read, period=3)
    graph = Dependences(kernel(around, symbols=(K,)))
    x, y = (graph.of(stmt, (around,))[0] for stmt in (written, read))
    assert not edges(graph, x, y, (i,))
    assert [edge.adjacent for edge in edges(graph, x, y, (), around)] == [True] and not edges(graph, y, x, (), around)[0].adjacent
    assert synchronize(kernel(around, symbols=(K,)))
