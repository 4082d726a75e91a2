"""The static checks: silent on clean kernels, and every planted fault is found with its buffer and lines."""

import inspect
import itertools
import json
import random

import attrs
import handmade
import making
import numpy as np
import pytest
import touching
from counted import python_calls
from guards import with_conditions
from handmade import THREAD, execution, kernel_of, local
from problems import NAMES, library, sizes_of_run_time, target_of

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check, check_banks, check_bounds, check_coalescing, check_races, check_resources, safety, table
from fireiron.check.banks import wavefronts
from fireiron.check.coalescing import sectors
from fireiron.check.finding import Finding
from fireiron.errors import VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.values.expr import TRUE, ZERO, all_of, as_expr, less, minimum
from fireiron.values.layout import Swizzle
from fireiron.values.tensor import Mode

SYMBOLIC = (sym("M"), sym("N"), sym("K"))
DIVISIBLE = (sym("M", multiple_of=128), sym("N", multiple_of=128), sym("K", multiple_of=8))
LISTING_2 = library("listing_2").strategy
COPY = Move.tile(1, 1).to(Thread).done()


def lowered(strategy, *sizes, **options):
    return strategy(MatMul(*sizes, **options)(GL, GL, GL)(Kernel)).program().lowered


def errors(findings):
    return [finding for finding in findings if finding.severity == "error"]


def of_kind(findings, kind):
    return [finding for finding in findings if finding.kind == kind]


# ---------------------------------------------------------------------------------------------- editing programs


def rewritten(body, change, path=()):
    """The list with `change(statement, path)` in the place of each statement; a change gives a list of statements."""
    result = []
    for position, statement in enumerate(body):
        if isinstance(statement, ir.For):
            statement = attrs.evolve(statement, body=rewritten(statement.body, change, (*path, position)))
        result += change(statement, (*path, position))
    return tuple(result)


def edited(kernel, change):
    return attrs.evolve(kernel, body=rewritten(kernel.body, change))


def barriers(kernel):
    """Paths of all barriers."""
    found = []

    def note(statement, path):
        if isinstance(statement, ir.Barrier):
            found.append((path, statement))
        return [statement]

    edited(kernel, note)
    return found


def at_path(target, make):
    return lambda statement, path: make(statement) if path == target else [statement]


def with_access(kernel, buffer, write, change):
    """The kernel with the accesses to a buffer changed."""

    def change_statement(statement, path):
        if isinstance(statement, ir.Exec):
            accesses = tuple(change(one) if one.buffer == buffer and one.write == write else one for one in statement.accesses)
            statement = attrs.evolve(statement, accesses=accesses)
        return [statement]

    return edited(kernel, change_statement)


def with_buffer(kernel, name, **fields):
    buffers = tuple(attrs.evolve(one, **fields) if one.name == name else one for one in kernel.buffers)
    return attrs.evolve(kernel, buffers=buffers)


def moved_base(dim, change):
    return lambda access: attrs.evolve(access, base=tuple(change(base) if other == dim else base for other, base in enumerate(access.base)))


# ---------------------------------------------------------------------------------------------- clean kernels


SIZES = ((1024, 1024, 1024), (1000, 500, 300), (1, 1, 1), (129, 127, 9), SYMBOLIC, DIVISIBLE, (1024, sym("N", multiple_of=4), 64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_library_is_clean(name):
    module = library(name)
    for sizes in (module.SIZES, *SIZES):
        try:
            kernel = module.strategy(module.spec(*sizes)).program(target_of(name)).lowered
        except DecompositionError:
            continue
        found = safety(kernel)
        if "batch" in inspect.signature(module.spec).parameters:  # whose sizes want bounds
            found = tuple(one for one in found if "more than 64 bits" not in one.message)
        assert found == (), (name, sizes)
    bounded = sizes_of_run_time(name, M=8, N=8, K=8)
    try:
        kernel = module.strategy(module.spec(*bounded)).program(target_of(name)).lowered
    except DecompositionError:
        return
    assert safety(kernel) == (), name


@pytest.mark.parametrize("layouts", list(itertools.product((ColMajor, RowMajor), repeat=3)))
def test_listing_2_is_clean_in_all_layouts(layouts):
    for sizes in SIZES:
        assert safety(lowered(LISTING_2, *sizes, **dict(zip("ABC", layouts)))) == ()


WARP_LOADS = (
    MatMul.tile(64, 64)
    .to(Block)
    .split(8)
    .tile(32, 32)
    .to(Warp)
    .load(A, SH, Move.tile(1, 1).to(Lane).done())
    .load(B, SH, Move.tile(1, 1).to(Lane).done())
    .tile(8, 4)
    .to(Thread)
    .tile(1, 1)
    .split(1)
    .done()
)
IN_SHARED = MatMul.tile(32, 32).to(Block).epilog(SH).split(6).load(A, SH).pad(1).load(B, SH).swizzle_storage(Swizzle(2, 0, 3))
IN_SHARED = IN_SHARED.tile(2, 4).to(Thread).split(4).tile(1, 1).split(1).done()
MICRO = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).tile(16, 16).to(Warp).done("/* text */;\n")


@pytest.mark.parametrize("strategy", [WARP_LOADS, IN_SHARED, MICRO])
@pytest.mark.parametrize("sizes", SIZES)
def test_other_shapes_are_clean(strategy, sizes):
    assert safety(lowered(strategy, *sizes)) == ()


# ---------------------------------------------------------------------------------------------- planted races


@pytest.mark.parametrize("sizes", [(256, 256, 64), (1000, 500, 300), SYMBOLIC])
@pytest.mark.parametrize("strategy", [LISTING_2, WARP_LOADS, IN_SHARED, MICRO])
def test_dropped_barriers_are_found(strategy, sizes):
    kernel = lowered(strategy, *sizes)
    planted = barriers(kernel)
    assert planted
    for path, barrier in planted:
        found = errors(check_races(AccessTrace(edited(kernel, at_path(path, lambda _: [])))))
        assert found, (path, barrier)
        named = {name for finding in found for name in finding.details["buffers"]}
        assert strategy is MICRO or any(name in barrier.reason for name in named), (barrier.reason, named)
        assert all("test_check.py:" in line or "listing_2.py:" in line for one in found for line in one.details["lines"])


@pytest.mark.parametrize("strategy", [LISTING_2, IN_SHARED])
def test_narrowed_barriers_are_found(strategy):
    kernel = lowered(strategy, 1000, 500, 300)
    for path, barrier in barriers(kernel):
        if barrier.scope == ir.BLOCK_SCOPE:
            narrowed = edited(kernel, at_path(path, lambda one: [attrs.evolve(one, scope=ir.WARP_SCOPE)]))
            found = errors(check_races(AccessTrace(narrowed)))
            assert found
            assert all(len({thread // 32 for thread in one.details["threads"]}) == 2 for one in found)


def test_moved_barriers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    loop = next(one for one in kernel.body if isinstance(one, ir.For) and any(isinstance(part, ir.Barrier) for part in one.body))
    first, second = [position for position, one in enumerate(loop.body) if isinstance(one, ir.Barrier)]
    copies = [position for position, one in enumerate(loop.body) if isinstance(one, ir.For)][:2]

    def with_body(body):
        def change(one, path):
            return [attrs.evolve(one, body=tuple(body))] if isinstance(one, ir.For) and one.var == loop.var else [one]

        return edited(kernel, change)

    def moved(source, target):
        body = list(loop.body)
        barrier = body.pop(source)
        body.insert(target if target < source else target - 1, barrier)
        return errors(check_races(AccessTrace(with_body(body))))

    assert {one.buffer for one in moved(first, copies[1])} == {"b_sh"}, "between the copies: only b_sh is incomplete"
    assert {one.buffer for one in moved(first, copies[0])} == {"a_sh", "b_sh"}, "before both writes"
    assert {one.buffer for one in moved(first, second)} == {"a_sh", "b_sh"}, "after the reads"
    assert {one.buffer for one in moved(second, first)} == {"a_sh", "b_sh"}, "the loop-back barrier before the reads"


def test_counterexample_is_one():
    """The two threads of the message really touch the address in those iterations."""
    kernel = lowered(LISTING_2, 1000, 500, 300)
    path, _ = barriers(kernel)[0]
    for finding in errors(check_races(AccessTrace(edited(kernel, at_path(path, lambda _: []))))):
        values = ir.lets(kernel.body)
        reached = []
        for label, thread, loops in zip(finding.details["statements"], finding.details["threads"], finding.details["loops"]):
            environment = {"thread": thread, "block": 0, **loops}
            for var, value in values.items():
                environment[var.name] = value.evaluate(environment)
            for statement, _ in ir.execs(kernel.body):
                for access in statement.accesses:
                    if access.buffer == finding.buffer and label.startswith(f"{access.buffer} {'written' if access.write else 'read'}"):
                        reached.append(kernel.buffer(access.buffer).address(access, access.elements()[0]).evaluate(environment))
        assert reached == [finding.details["address"]] * 2
        assert finding.details["threads"][0] != finding.details["threads"][1]
        assert str(finding.details["element"]) in finding.message


def test_two_lanes_on_one_address_are_found():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    for buffer, dim in (("a_sh", 1), ("b_sh", 0)):
        planted = with_access(kernel, buffer, True, moved_base(dim, lambda base: base // 2 * 2))
        (finding,) = [
            one for one in errors(check_races(AccessTrace(planted))) if one.details["statements"][0] == one.details["statements"][1]
        ]
        assert finding.buffer == buffer and finding.details["threads"][0] != finding.details["threads"][1]


def test_lanes_writing_one_element_of_the_output_are_found():
    kernel = lowered(LISTING_2, *SYMBOLIC)
    lane = next(var for var in ir.lets(kernel.body) if var.name == "thread_m")
    planted = with_access(kernel, "C", True, lambda access: access.substitute({lane: lane // 2 * 2}))
    found = errors(check_races(AccessTrace(planted)))
    assert [one.buffer for one in found] == ["C"] and "same statement" in found[0].message


def test_overlapping_buffers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    for offset in (kernel.buffer("a_sh").offset, kernel.buffer("a_sh").offset + kernel.buffer("a_sh").bytes - 16):
        found = errors(check_races(AccessTrace(with_buffer(kernel, "b_sh", offset=offset))))
        assert {frozenset(one.details["buffers"]) for one in found} >= {frozenset({"a_sh", "b_sh"})}


def test_loop_that_may_not_run_orders_nothing():
    K = sym("K")
    kernel = lowered(LISTING_2, 256, 256, K)
    path, barrier = barriers(kernel)[0]
    for extent, racy in ((K // 8, True), (K // 8 + 1, False), (as_expr(2), False), (as_expr(0), True)):
        loop = making.loop(Var("again", 0, 1 << 20), extent, (barrier,))
        found = check_races(AccessTrace(edited(kernel, at_path(path, lambda _, loop=loop: [loop]))))
        assert bool(errors(found)) == racy, extent


def test_double_buffers_need_one_barrier():
    """Two copies used in turns, over more iterations than are replayed: the period decides."""
    kernel = lowered(LISTING_2, 128, 128, 8 * 1000)
    loop = next(one for one in kernel.body if isinstance(one, ir.For) and any(isinstance(part, ir.Barrier) for part in one.body))
    once = edited(kernel, at_path(barriers(kernel)[1][0], lambda _: []))
    assert errors(check_races(AccessTrace(once)))

    def staged(stages):
        result = attrs.evolve(once, shared_bytes=stages * once.shared_bytes)
        for number, name in enumerate(("a_sh", "b_sh")):
            buffer = result.buffer(name)
            result = with_buffer(result, name, tensor=attrs.evolve(buffer.tensor, copies=stages), offset=number * stages * buffer.bytes)
            for write in (True, False):
                result = with_access(result, name, write, lambda access: attrs.evolve(access, copy=loop.var % stages))
        return result

    assert safety(staged(2)) == () and safety(staged(3)) == ()
    off_by_one = with_access(staged(2), "a_sh", False, lambda access: attrs.evolve(access, copy=(loop.var + 1) % 2))
    assert {one.buffer for one in errors(check_races(AccessTrace(off_by_one)))} == {"a_sh"}


def test_scratch_of_a_warp_is_refused():
    micro = MicroKernel.of("/* text */;\n", scratch_bytes=64)
    strategy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).tile(16, 16).to(Warp).done(micro)
    with pytest.raises(DecompositionError, match="scratch memory at Warp"):
        lowered(strategy, 64, 64, 64)


def test_blocks_that_share_elements_are_found():
    for sizes in ((512, 512, 64), (513, 500, 64), SYMBOLIC, DIVISIBLE):
        kernel = lowered(LISTING_2, *sizes)
        names = {var.name: var for var in ir.lets(kernel.body)}
        planted = with_access(kernel, "C", True, lambda access, var=names["block_m"]: access.substitute({var: ZERO}))
        found = check_races(AccessTrace(planted))
        assert [one.buffer for one in found] == ["C"]
        assert found[0].severity == "error" and found[0].details["blocks"][0] != found[0].details["blocks"][1]


def test_overlapping_block_tiles_are_found():
    kernel = lowered(LISTING_2, 512, 512, 64)
    names = {var.name: var for var in ir.lets(kernel.body)}
    planted = with_access(kernel, "C", True, moved_base(0, lambda base: base - names["block_m"] * 64))
    (finding,) = check_races(AccessTrace(planted))
    assert finding.severity == "error" and finding.buffer == "C" and finding.details["blocks"][0] != finding.details["blocks"][1]


def test_what_is_not_decided_is_refused():
    """Offsets of blocks that no digits give, right as they are: an error, never silence."""
    kernel = lowered(LISTING_2, *SYMBOLIC)
    found = check_races(AccessTrace(with_access(kernel, "C", True, moved_base(0, lambda base: base // 3 * 3))))
    assert len(found) == 2 and {one.severity for one in found} == {"error"}
    assert all("undecided" in one.message and "mixes block and thread" in one.message for one in found)


def test_tiles_visited_by_every_thread_are_found():
    """A loop of unknown length over the output, without any barrier: near iterations decide for all."""
    deal = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    kernel = lowered(deal, sym("M"), 64, 64)
    assert safety(kernel) == ()
    visit, count = Var("visit", 0, 1 << 20), sym("M")

    names = {var.name: var for var in ir.lets(kernel.body)}
    rows = names["thread_m"]
    found = {}
    for step in (16, 8):
        planted = with_access(kernel, "C", True, moved_base(0, lambda base, step=step: rows + visit * step))
        wrapped = edited(
            planted, lambda one, path: [making.loop(visit, count, (one,))] if len(path) == 1 and isinstance(one, ir.For) else [one]
        )
        found[step] = [one for one in check_races(AccessTrace(wrapped)) if "blocks" not in one.details]
    assert found[16] == []
    assert errors(found[8]) and found[8][0].buffer == "C"


def copied(row, column, *buffers, rows=32, columns=32, high=1, grid=1, active=TRUE, into="dst", bounds=None):
    """A kernel made by hand: each thread copies some elements of an array to the same place of another one."""
    accesses = [handmade.access(name, (row, column), (high, 1), bounds, write=name == into) for name in ("src", into)]
    statement = execution(MOVE, Move(high, 1)(GL, GL)(Thread), *accesses, active=active)
    return kernel_of(Move(rows, columns)(GL, GL), (statement,), *buffers, grid=grid)


def meeting(kernel):
    """The pairs of blocks that the check says meet."""
    return [finding.details["blocks"] for finding in check_races(AccessTrace(kernel))]


def test_tiles_of_blocks_that_overlap_by_one_element():
    block = Var("block", 0, 1)
    for high in (1, 2):
        tile = 32 * high
        assert meeting(copied(block * tile + THREAD * high, 0, rows=256, grid=2, high=high)) == []
        assert meeting(copied(block * (tile - 1) + THREAD * high, 0, rows=256, grid=2, high=high)) == [(0, 1)]


def test_a_digit_of_the_block_that_is_no_wider_than_those_below():
    """Two tiles of 32 side by side, and the next two 64, or only 48, further on."""
    block = Var("block", 0, 3)
    for step, meet in ((64, []), (48, [(1, 2)])):
        assert meeting(copied(block % 2 * 32 + block // 2 * step + THREAD, 0, rows=256, grid=4)) == meet


def test_a_digit_of_the_block_that_counts_down():
    """Four tiles of 64 from the last to the first, and the next four 256, or only 100, further on; more blocks than could be enumerated."""
    for blocks in (16, 1 << 23):
        block = Var("block", 0, blocks - 1)
        for step, meet in ((256, []), (100, [(0, 5)])):
            row = 192 - block % 4 * 64 + block // 4 * step
            if blocks == 16 or not meet:
                assert meeting(copied(row, THREAD, rows=64 * blocks, high=64, grid=blocks)) == meet


def test_a_digit_of_several_digits_tells_none_of_them():
    """Blocks 0 and 1 of four are both at tile 0, though the first digit of its number tells them apart."""
    block, tile = Var("block", 0, 15), Var("tile", 0, 3)
    for value, meet in ((block % 4, []), (block % 4 - minimum(block % 4, as_expr(1)), [(0, 1)])):
        kernel = copied(tile * 64 + block // 4 * 512, THREAD, rows=2048, high=64, grid=16)
        assert meeting(attrs.evolve(kernel, body=(making.let(tile, value), *kernel.body))) == meet


CURVES = {
    "a curve in each outer tile": lambda outer: outer.tile(16, 16).to(Block).hilbert(),
    "of three columns": lambda outer: outer.tile(16, 8).to(Block).hilbert(),
    "bands of which the last is lower": lambda outer: outer.tile(16, 8).to(Block).rasterize(group_n=3),
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("sizes", [SYMBOLIC, DIVISIBLE])
def test_blocks_on_a_curve_under_tiles_of_unknown_number(curve, dealt, sizes):
    """Through outer tiles that are visited in turns, or dealt to blocks too; a curve that comes to a tile twice is found or undecided."""
    outer = MatMul.tile(64, 48).to(Block) if dealt else MatMul.tile(64, 48)
    kernel = lowered(CURVES[curve](outer).tile(2, 2).to(Thread).split(1).tile(1, 1).done(), *sizes)
    assert errors(check_races(AccessTrace(kernel))) == []

    def doubled(statement, path):
        if isinstance(statement, ir.Let):
            twice = {var: var // 2 for var in statement.value.variables() if var.name == "block"}
            return [attrs.evolve(statement, value=statement.value.substitute(twice))]
        return [statement]

    assert errors(check_races(AccessTrace(edited(kernel, doubled)))) != []


BANDS = {
    "as many rows as there are": (
        lambda: MatMul.tile(1, 2).to(Block).rasterize(group_m=2).tile(1).to(Thread).tile(1, 1).split(1).done(),
        2,
        8,
    ),
    "threads beyond the tile": (
        lambda: MatMul.tile(6, 9).to(Block).rasterize(group_n=1).epilog(RF).tile(2).to(QuadPair).tile(2, 1).to(Thread).tile(1, 1).done(),
        7,
        1,
    ),
    "tiles of a divisor": (lambda: MatMul.tile(3, 4).to(Block).rasterize(group_m=4).tile(1).to(Thread).split(1).tile(1, 1).done(), 12, 12),
}


@pytest.mark.parametrize("name", BANDS)
def test_blocks_in_bands_over_sizes_at_run_time(name):
    """A walk in bands is told where columns are a quotient of a size, and where conditions keep a block's last threads in its tile."""
    strategy, rows, multiple = BANDS[name]
    kernel = lowered(strategy(), rows, sym("N", multiple_of=multiple), 1)
    assert errors(check_races(AccessTrace(kernel))) == []

    def doubled(statement, path):
        twice = {var: var // 2 for var in statement.value.variables() if var.name == "block"} if isinstance(statement, ir.Let) else {}
        return [attrs.evolve(statement, value=statement.value.substitute(twice)) if twice else statement]

    assert errors(check_races(AccessTrace(edited(kernel, doubled)))) != []


def test_blocks_that_add_need_no_order_among_each_other_alone():
    """Atomic additions of two blocks to one element meet no one; a plain write among them does."""
    kernel = copied(THREAD, 0, grid=2)
    (plain,) = kernel.body
    adds = attrs.evolve(plain, spec=AtomicAdd(1, 1)(GL, GL)(Thread))
    assert meeting(attrs.evolve(kernel, body=(adds, adds))) == []
    assert meeting(attrs.evolve(kernel, body=(plain,))) == [(0, 1)]
    assert (0, 1) in meeting(attrs.evolve(kernel, body=(plain, adds)))


def test_rasterisation_orders_are_no_races():
    for order in (lambda uid: uid ^ 1, lambda uid: 15 - uid, lambda uid: (uid % 4) * 4 + uid // 4):
        strategy = MatMul.tile(32, 32).to(Block).swizzle(order).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
        assert safety(lowered(strategy, 128, 128, 16)) == ()
    strategy = MatMul.tile(Strided((4, 64), (8, 32))).to(Block).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    assert safety(lowered(strategy, 128, 128, 16)) == ()


def test_predicates_only_remove_accesses():
    """A guard on a size is taken as possibly true; one that no size tried makes true is not decided, and says so."""
    M = sym("M")
    kernel = lowered(LISTING_2, M, 256, 64)
    path, _ = barriers(kernel)[0]

    def guarded(condition):
        def change(statement, where):
            if where == path:
                return []
            if isinstance(statement, ir.Exec) and any(one.buffer.endswith("_sh") and one.write for one in statement.accesses):
                statement = attrs.evolve(statement, active=condition)
            return [statement]

        return check_races(AccessTrace(edited(kernel, change)))

    assert errors(guarded(M > 100))
    never = guarded(M * M < M)
    assert never and all("undecided" in one.message and one.severity == "error" for one in never)


def test_unchecked_makes_warnings():
    kernel = lowered(LISTING_2, 256, 256, 64)
    planted = edited(kernel, at_path(barriers(kernel)[0][0], lambda _: []))
    assert errors(check_races(AccessTrace(planted)))
    found = check_races(AccessTrace(making.evolved(planted, unchecked=("I know",))))
    assert found and {one.severity for one in found} == {"warning"}


# ---------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("sizes", [(1000, 500, 300), SYMBOLIC])
def test_dropped_predicates_are_found(sizes):
    kernel = lowered(LISTING_2, *sizes)
    for buffer, write in (("A", False), ("B", False), ("C", True)):
        for dim in (0, 1):
            extent = kernel.buffer(buffer).tensor.shape[dim]
            planted = with_conditions(kernel, buffer, write, lambda one, extent=extent: None if one.right == extent else one)
            (finding,) = check_bounds(AccessTrace(planted))
            assert finding.severity == "error" and finding.buffer == buffer and finding.details["dimension"] == dim
            assert finding.details["coordinate"] >= finding.details["extent"]
            assert finding.at and finding.access.startswith(buffer)


@pytest.mark.parametrize("sizes", [(1024, 512, 64), DIVISIBLE])
def test_wrong_bases_are_found(sizes):
    kernel = lowered(LISTING_2, *sizes)
    for buffer, write in (("A", False), ("B", False), ("C", True), ("a_sh", True), ("a_sh", False), ("b_sh", True), ("b_sh", False)):
        for dim, step in itertools.product((0, 1), (1, -1)):
            found = errors(
                check_bounds(AccessTrace(with_access(kernel, buffer, write, moved_base(dim, lambda base, step=step: base + step))))
            )
            assert [one.buffer for one in found] == [buffer], (buffer, dim, step)


def test_loose_predicates_and_registers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    loose = with_conditions(kernel, "A", False, lambda one: less(one.left, one.right + 1))
    assert {one.buffer for one in check_bounds(AccessTrace(loose))} == {"A"}
    registers = with_access(kernel, "a_rf", True, moved_base(0, lambda base: base + 1))
    assert [one.buffer for one in check_bounds(AccessTrace(registers))] == ["a_rf"]
    small = with_buffer(kernel, "c_rf", elements=as_expr(63))
    assert {one.buffer for one in check_bounds(AccessTrace(small))} == {"c_rf"}


def test_a_range_that_does_not_hold_is_not_believed():
    kernel = lowered(LISTING_2, 1024, 512, 64)
    wrong = {"warp": as_expr(7), "block_m": as_expr(8)}

    def change(statement, path):
        if isinstance(statement, ir.Let) and statement.var.name in wrong:
            statement = attrs.evolve(statement, value=statement.value + wrong[statement.var.name])
        return [statement]

    assert errors(check_bounds(AccessTrace(edited(kernel, change))))


def test_vectors_across_the_edge_are_found():
    four = Move.tile(4, 1).to(Thread).layout(ColMajor).done()
    strategy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, four).load(B, SH).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    kernel = lowered(strategy, sym("M", multiple_of=4), 64, 64)
    assert safety(kernel) == ()
    bound = sym("M", multiple_of=2)
    buffer = kernel.buffer("A")
    tensor = attrs.evolve(buffer.tensor, shape=(bound, buffer.tensor.shape[1]))
    wrong = with_buffer(kernel, "A", tensor=tensor)
    planted = with_conditions(wrong, "A", False, lambda one: less(one.left, bound))
    (finding,) = check_bounds(AccessTrace(attrs.evolve(planted, symbols=(bound,))))
    assert finding.buffer == "A" and "elements is accessed" in finding.message
    moved = with_access(kernel, "A", False, moved_base(0, lambda base: base + 2))
    planted = with_conditions(moved, "A", False, lambda one: less(one.left + 2, one.right))
    (finding,) = check_bounds(AccessTrace(planted))
    assert finding.buffer == "A" and "elements is accessed" in finding.message


def test_the_last_digit_of_a_grid_that_is_no_multiple():
    """Block 6 of 8 has the third row; only of a grid of 6 blocks would two rows do."""
    for grid, rows, clean in ((8, 2, False), (8, 3, True), (6, 2, True)):
        found = check_bounds(AccessTrace(copied(Var("block", 0, grid - 1) // 3, THREAD, rows=rows, grid=grid)))
        assert (found == ()) == clean, (grid, rows)


def test_an_element_at_the_bound_lies_outside():
    """The last thread would touch the place behind a buffer of 32; a bound of 32 keeps it from that, one of 33 does not."""
    shared = local("s", (1, 32), SH)
    for bound, clean in ((32, True), (33, False), (None, False)):
        found = check_bounds(AccessTrace(copied(ZERO, THREAD + 1, shared, columns=64, into="s", bounds=(None, bound))))
        assert (found == ()) == clean, bound


def test_a_swizzle_that_leads_beyond_a_buffer():
    """Of the last elements, 8 and 9, the swizzle makes 10 and 11."""
    shared = local("s", (1, 16), SH, swizzle=Swizzle(2, 0, 2))
    for elements, clean in ((10, False), (12, True)):
        cut = attrs.evolve(shared, elements=as_expr(elements))
        found = check_bounds(AccessTrace(copied(ZERO, THREAD % 10, cut, into="s")))
        assert ([one.buffer for one in found] == []) == clean, elements


# ---------------------------------------------------------------------------------------------- banks


def passes_by_hand(starts, width):
    """Ten lines of Python: the words of each phase, by bank."""
    lanes = 32 if width <= 4 else 16 if width == 8 else 8
    total = 0
    for phase in range(0, 32, lanes):
        banks = {}
        for start in starts[phase : phase + lanes]:
            if start is not None:
                for byte in range(start, start + width):
                    banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
        total += max((len(words) for words in banks.values()), default=0)
    return total


def test_wavefronts_equal_the_model_by_hand():
    generator = random.Random(7)
    for _ in range(400):
        width = generator.choice((1, 2, 4, 8, 16))
        stride = generator.choice((0, 1, 2, 3, 8, 16, 31, 32, 33, generator.randint(0, 100)))
        jitter = generator.choice((0, 0, 5))
        starts = [width * (lane * stride + generator.randint(0, jitter)) for lane in range(32)]
        active = [generator.random() < generator.choice((1, 0.5)) for _ in range(32)]
        expected = passes_by_hand([start if on else None for start, on in zip(starts, active)], width)
        assert wavefronts(np.array([starts]), width, np.array([active]))[0] == expected


def known(starts, width):
    return int(wavefronts(np.array([starts]), width, np.ones((1, 32), dtype=bool))[0])


def test_known_patterns():
    assert known([lane * 32 * 4 for lane in range(32)], 4) == 32, "a column of a 32x32 float tile"
    assert known([lane * 33 * 4 for lane in range(32)], 4) == 1, "padded by one"
    assert known([lane * 16 for lane in range(32)], 16) == 4, "float4, contiguous: four phases, no conflict"
    assert known([lane * 8 for lane in range(32)], 8) == 2
    assert known([0] * 32, 4) == 1, "broadcast"
    assert known([lane * 2 for lane in range(32)], 2) == 1, "two halves share a word"
    assert known([lane * 8 for lane in range(32)], 4) == 2


def bank_findings(kernel):
    return {(one.buffer, "written" in one.access): one for one in check_banks(AccessTrace(kernel))}


def transposed(**options):
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    load = Move.tile(32, 32).to(Block).load(SRC, SH, copy)
    load = load.pad(options["pad"]) if "pad" in options else load
    load = load.swizzle_storage(options["swizzle"]) if "swizzle" in options else load
    return load.tile(1, 1).to(Thread).done()(Move(32, 32)(GL, GL)(Kernel)).program().lowered


def test_column_of_a_tile():
    found = {("written" in one.access): one for one in check_banks(AccessTrace(transposed()))}
    assert (found[True].severity, found[True].details["wavefronts"]) == ("note", 1)
    bad = found[False]
    assert (bad.severity, bad.details["degree"], bad.details["wavefronts"], bad.details["ideal"]) == ("warning", 32, 32, 1)
    assert bad.details["pad"] == 1
    for repair in ({"pad": 1}, {"swizzle": Swizzle(*bad.details["swizzle"])}):
        assert {one.severity for one in check_banks(AccessTrace(transposed(**repair)))} == {"note"}


def requests_by_hand(kernel, buffer, write):
    """Most passes of an access, lane by lane with the printed address expression."""
    worst = 0
    values = ir.lets(kernel.body)
    for statement, loops in ir.execs(kernel.body):
        for position, access in enumerate(statement.accesses):
            if access.buffer == buffer and access.write == write:
                place = kernel.buffer(buffer)
                width = statement.width(position)
                used = [loop for loop in loops if loop.var in place.address(access, access.elements()[0]).variables()]
                for point in itertools.product(*(range(loop.extent.value) for loop in used)):
                    for offset in access.elements()[::width]:
                        for warp in range(0, kernel.threads, 32):
                            starts = []
                            for thread in range(warp, warp + 32):
                                environment = {"thread": thread, "block": 0, **{loop.var.name: x for loop, x in zip(used, point)}}
                                for var, value in values.items():
                                    environment[var.name] = value.evaluate(environment)
                                starts.append(place.address(access, offset).evaluate(environment) * place.dtype.bytes + place.offset)
                            worst = max(worst, passes_by_hand(starts, width * place.dtype.bytes))
    return worst


def test_listing_2_by_hand():
    kernel = lowered(LISTING_2, 128, 128, 8)
    found = bank_findings(kernel)
    for buffer, write in itertools.product(("a_sh", "b_sh"), (True, False)):
        assert found[buffer, write].details["wavefronts"] == requests_by_hand(kernel, buffer, write)
    assert found["b_sh", False].details["wavefronts"] == 4 and found["b_sh", True].details["wavefronts"] == 8
    assert found["b_sh", False].details["pad"] == 1


def test_repairs_of_listing_2_work():
    found = bank_findings(lowered(LISTING_2, 128, 128, 8))
    repaired = LISTING_2.at(Load, "A").refine(SwizzleStorage(Swizzle(*found["a_sh", True].details["swizzle"])))
    repaired = repaired.at(Load, "B").refine(Pad(found["b_sh", True].details["pad"]))
    assert {one.severity for one in bank_findings(lowered(repaired, 128, 128, 8)).values()} == {"note"}


def stored(column, height, active=TRUE):
    """A kernel made by hand: each thread stores the first elements of a column of 32 in shared memory, at once."""
    accesses = (handmade.access("src", (0, THREAD), (height, 1)), handmade.access("s", (0, column), (height, 1), write=True))
    spec = Move(height, 1)(GL, SH)(Thread)
    statement = execution(MOVE, spec, *accesses, active=active, vector=height, vectors=(height, height))
    return kernel_of(Move(32, 32)(GL, GL), (statement,), local("s", (32, 256), SH), grid=8)


def test_repairs_keep_vectors_whole():
    """Padding by one would free columns 0, 8, 16 and 24, and would part vectors in others; by four it frees neighbors."""
    (finding,) = check_banks(AccessTrace(stored(THREAD % 4 * 8, 4)))
    assert finding.severity == "warning" and "pad" not in finding.details and finding.details["swizzle"][1] >= 2
    (finding,) = check_banks(AccessTrace(stored(THREAD, 4)))
    assert finding.details["pad"] == 4 and finding.details["swizzle"] == [3, 2, 3]
    (finding,) = check_banks(AccessTrace(stored(THREAD, 1)))
    assert finding.details["pad"] == 1 and finding.details["swizzle"] == [5, 0, 5]
    (finding,) = check_banks(AccessTrace(stored(THREAD * 2, 1)))
    assert "pad" not in finding.details, "whatever the padding, every other column has every other bank at most"


def test_lanes_that_take_part_in_some_blocks_are_counted():
    """A condition on the thread is obeyed, one on the block taken as true."""
    late = less(as_expr(3), Var("block", 0, 7))
    for active, passes in ((TRUE, 32), (late, 32), (less(THREAD, 5), 5), (all_of((late, less(THREAD, 5))), 5)):
        (finding,) = check_banks(AccessTrace(stored(THREAD, 1, active)))
        assert finding.details["wavefronts"] == passes, active


def test_a_name_has_one_meaning():
    row = Var("row", 0, 31)
    kernel = copied(row, 0)
    once, again = making.let(row, THREAD), making.let(row, 31 - THREAD)
    assert AccessTrace(attrs.evolve(kernel, body=(once, *kernel.body, once))).lets == {"row": THREAD}
    with pytest.raises(VerificationError, match="row has two values"):
        AccessTrace(attrs.evolve(kernel, body=(once, *kernel.body, again)))


def test_vectors_count_by_phases():
    four = Move.tile(4, 1).to(Thread).layout(ColMajor).done()
    strategy = MatMul.tile(128, 64).to(Block).split(8).load(A, SH, four).load(B, SH).tile(4, 8).to(Thread).tile(1, 1).split(1).done()
    finding = bank_findings(lowered(strategy, 128, 128, 8))["a_sh", True]
    assert (finding.severity, finding.details["wavefronts"], finding.details["vector_bytes"]) == ("note", 4, 16)


# ---------------------------------------------------------------------------------------------- coalescing


def test_known_sectors():
    every = np.ones((1, 32), dtype=bool)
    lanes = np.arange(32)[None]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, every)] == [4, 4]
    assert [int(x[0]) for x in sectors(lanes * 4096, 4, every)] == [32, 4]
    assert [int(x[0]) for x in sectors(lanes * 16, 16, every)] == [16, 16]
    assert [int(x[0]) for x in sectors(lanes * 8, 4, every)] == [8, 4]
    assert [int(x[0]) for x in sectors(lanes * 0, 4, every)] == [1, 1]
    assert [int(x[0]) for x in sectors(lanes * 4 + 4, 4, every)] == [5, 4]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, lanes < 9)] == [2, 2]
    assert [int(x[0]) for x in sectors(lanes * 32, 4, lanes < 9)] == [9, 2]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, lanes < 0)] == [0, 0]


def traffic(kernel):
    return {one.buffer: one for one in check_coalescing(AccessTrace(kernel))}


def test_listing_2_traffic_and_its_repair():
    found = traffic(lowered(LISTING_2, 1024, 1024, 1024))
    assert [(found[name].details["sectors"], found[name].details["ideal"]) for name in "ABC"] == [(8, 4), (32, 4), (32, 4)]
    assert found["A"].severity == "note" and found["B"].severity == found["C"].severity == "warning"
    assert found["B"].details["layout"] == "ColMajor" and ".layout(ColMajor)" in found["B"].message
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    better = MatMul.load(B, SH, copy).steps[0]
    repaired = traffic(lowered(LISTING_2.at(Load, "B").replace(better), 1024, 1024, 1024))
    assert repaired["B"].details["sectors"] == repaired["B"].details["ideal"] == 4 and repaired["B"].severity == "note"


def test_sizes_known_at_run_time_are_assumed_and_said():
    found = traffic(lowered(LISTING_2, *SYMBOLIC))
    assert found["B"].details["assumed_sizes"] == {"M": 4096, "N": 4096, "K": 4096}
    assert "K=4096" in found["B"].message and found["B"].details["sectors"] == 32


def test_row_major_suggestion():
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    strategy = MatMul.tile(32, 32).to(Block).split(32).load(A, SH, copy).load(B, SH, copy).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    found = traffic(lowered(strategy, 64, 64, 64, A=RowMajor))
    assert found["A"].details["layout"] == "RowMajor" and found["B"].severity == "note"


# ---------------------------------------------------------------------------------------------- resources and the rest


def test_resources():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    notes = check_resources(AccessTrace(kernel))
    assert {one.severity for one in notes} == {"note"}
    details = {key: value for one in notes for key, value in one.details.items()}
    assert (details["threads"], details["bytes"], details["registers"]) == (256, 8192, 64 + 8 + 8 + 24)
    assert (details["blocks"], details["limited_by"]) == (2, "registers")
    assert details["buffers"] == {"a_sh": 4096, "b_sh": 4096}


def test_resources_exceeded():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    spilled = check_resources(AccessTrace(with_buffer(kernel, "c_rf", elements=as_expr(300))))
    assert any(one.severity == "warning" and one.buffer == "c_rf" and "local memory" in one.message for one in spilled)
    many = check_resources(AccessTrace(with_buffer(kernel, "c_rf", elements=as_expr(250))))
    assert any(one.severity == "warning" and "spill" in one.message for one in many)
    assert any("idle" in one.message for one in check_resources(AccessTrace(attrs.evolve(kernel, threads=250))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, threads=1025))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, shared_bytes=1 << 20))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, shared_bytes=4096))))


def test_findings_are_plain_sorted_and_tabled():
    kernel = lowered(LISTING_2, *SYMBOLIC)
    planted = edited(kernel, at_path(barriers(kernel)[0][0], lambda _: []))
    found = check(planted)
    assert found == check(planted)
    assert json.loads(json.dumps([one.as_dict() for one in found]))[0]["kind"] == "race"
    assert [one.severity for one in found] == sorted((one.severity for one in found), key=["error", "warning", "note"].index)
    rows = table(found)
    assert len(rows) == len(found) + 1 and all(len(row) == 5 and all(isinstance(cell, str) for cell in row) for row in rows)
    assert str(found[0]).startswith(f"{found[0].at}: error: race: ")


def test_details_are_plain_values():
    size = sym("N")
    details = {"threads": (np.int64(3), 4), 7: {"share": np.float64(0.5), "left": None}, "size": size, "whole": True}
    stored = Finding("bounds", "error", "A", "what", details=details).as_dict()
    assert stored["details"] == {"threads": [3, 4], "7": {"share": 0.5, "left": None}, "size": "N", "whole": True}
    assert json.loads(json.dumps(stored)) == stored


def test_the_line_of_a_finding_is_that_of_its_access():
    kernel = copied(THREAD + 1, 0)
    (statement,) = kernel.body
    for own, expected in (("mine.py:2", "mine.py:2"), (None, "mine.py:1")):
        accesses = tuple(attrs.evolve(one, origin=own) for one in statement.accesses)
        planted = attrs.evolve(kernel, body=(attrs.evolve(statement, accesses=accesses, origin="mine.py:1"),))
        assert {finding.at for finding in check_bounds(AccessTrace(planted))} == {expected}


def test_collective_regions_are_enumerated_by_their_modes():
    """A region of more elements than have expressions of their own, swizzled, equals its elements one by one."""
    kernel = lowered(IN_SHARED, 32, 32, 6)
    buffer = kernel.buffer("b_sh")
    access = making.access("b_sh", (ZERO, kernel.thread * 0 + 1), ((Mode(6, 1),), (Mode(4, 1), Mode(5, 6))), (None, None), False)
    access_trace = AccessTrace(kernel)
    got = access_trace.addresses(access_trace.frame([("thread", access_trace.threads[:1])]), access)
    assert got.ravel().tolist() == [buffer.address(access, offset).evaluate({"thread": 0}) for offset in access.elements()]


def test_little_enough_work_to_follow_each_compilation():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    safety(kernel), check(kernel)
    quick, whole = python_calls(lambda: safety(kernel)), python_calls(lambda: check(kernel))
    assert quick < 17_000 and whole < 45_000, (quick, whole)


def test_the_race_check_shares_no_code_with_lowering():
    import ast
    from pathlib import Path

    import fireiron.check

    allowed = {"ir", "errors", "values", "spec", "specs", "check", "display"}
    for path in Path(fireiron.check.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fireiron"):
                assert node.module.split(".")[1] in allowed, (path.name, node.module)


def test_what_is_undecided_has_a_place():
    """The step that made the buffer: its addresses depend on a number that only the launch knows."""
    shared = touching.buffer("s", 4096)
    shared = attrs.evolve(shared, tensor=attrs.evolve(shared.tensor, origin="mine.py:7"))
    place = touching.T + touching.K % 64
    program = touching.kernel(
        touching.writes(place), touching.BLOCK_BARRIER, touching.reads(place), buffers=[shared], symbols=(touching.K,)
    )
    found = [finding for finding in check_races(AccessTrace(program)) if "undecided" in finding.message]
    assert found and all(finding.at == "mine.py:7" for finding in found)
