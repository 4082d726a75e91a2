"""The static checks: no findings for correct kernels, and every injected fault is found with its buffer and lines."""

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
    """The list with each statement replaced by the statements of `change(statement, path)`."""
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
    paths = []

    def note(statement, path):
        if isinstance(statement, ir.Barrier):
            paths.append((path, statement))
        return [statement]

    edited(kernel, note)
    return paths


def at_path(target, make):
    return lambda statement, path: make(statement) if path == target else [statement]


def with_access(kernel, buffer, write, change):
    """The kernel with the accesses to a buffer changed."""

    def change_statement(statement, path):
        if isinstance(statement, ir.Exec):
            accesses = tuple(
                change(access) if access.buffer == buffer and access.write == write else access for access in statement.accesses
            )
            statement = attrs.evolve(statement, accesses=accesses)
        return [statement]

    return edited(kernel, change_statement)


def with_buffer(kernel, name, **fields):
    buffers = tuple(attrs.evolve(buffer, **fields) if buffer.name == name else buffer for buffer in kernel.buffers)
    return attrs.evolve(kernel, buffers=buffers)


def moved_base(dim, change):
    return lambda access: attrs.evolve(access, base=tuple(change(base) if other == dim else base for other, base in enumerate(access.base)))


# ---------------------------------------------------------------------------------------------- clean kernels


SIZES = ((1024, 1024, 1024), (1000, 500, 300), (1, 1, 1), (129, 127, 9), SYMBOLIC, DIVISIBLE, (1024, sym("N", multiple_of=4), 64))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_library_is_clean(name):
    module = library(name)
    for sizes in (module.SIZES, *SIZES):
        try:
            kernel = module.strategy(module.spec(*sizes)).program(target_of(name)).lowered
        except DecompositionError:
            continue
        findings = safety(kernel)
        if "batch" in inspect.signature(module.spec).parameters:  # whose sizes need bounds
            findings = tuple(finding for finding in findings if "more than 64 bits" not in finding.message)
        assert findings == (), (name, sizes)
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


# ---------------------------------------------------------------------------------------------- injected races


@pytest.mark.parametrize("sizes", [(256, 256, 64), (1000, 500, 300), SYMBOLIC])
@pytest.mark.parametrize("strategy", [LISTING_2, WARP_LOADS, IN_SHARED, MICRO])
def test_dropped_barriers_are_found(strategy, sizes):
    kernel = lowered(strategy, *sizes)
    all_barriers = barriers(kernel)
    assert all_barriers
    for path, barrier in all_barriers:
        findings = errors(check_races(AccessTrace(edited(kernel, at_path(path, lambda _: [])))))
        assert findings, (path, barrier)
        named = {name for finding in findings for name in finding.details["buffers"]}
        assert strategy is MICRO or any(name in barrier.reason for name in named), (barrier.reason, named)
        assert all("test_check.py:" in line or "listing_2.py:" in line for finding in findings for line in finding.details["lines"])


@pytest.mark.parametrize("strategy", [LISTING_2, IN_SHARED])
def test_narrowed_barriers_are_found(strategy):
    kernel = lowered(strategy, 1000, 500, 300)
    for path, barrier in barriers(kernel):
        if barrier.scope == ir.BLOCK_SCOPE:
            narrowed = edited(kernel, at_path(path, lambda stmt: [attrs.evolve(stmt, scope=ir.WARP_SCOPE)]))
            findings = errors(check_races(AccessTrace(narrowed)))
            assert findings
            assert all(len({thread // 32 for thread in stmt.details["threads"]}) == 2 for stmt in findings)


def test_moved_barriers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    loop = next(stmt for stmt in kernel.body if isinstance(stmt, ir.For) and any(isinstance(part, ir.Barrier) for part in stmt.body))
    first, second = [position for position, stmt in enumerate(loop.body) if isinstance(stmt, ir.Barrier)]
    copies = [position for position, stmt in enumerate(loop.body) if isinstance(stmt, ir.For)][:2]

    def with_body(body):
        def change(stmt, path):
            return [attrs.evolve(stmt, body=tuple(body))] if isinstance(stmt, ir.For) and stmt.var == loop.var else [stmt]

        return edited(kernel, change)

    def moved(source, target):
        body = list(loop.body)
        barrier = body.pop(source)
        body.insert(target if target < source else target - 1, barrier)
        return errors(check_races(AccessTrace(with_body(body))))

    assert {stmt.buffer for stmt in moved(first, copies[1])} == {"b_sh"}, "between the copies: only b_sh is incomplete"
    assert {stmt.buffer for stmt in moved(first, copies[0])} == {"a_sh", "b_sh"}, "before both writes"
    assert {stmt.buffer for stmt in moved(first, second)} == {"a_sh", "b_sh"}, "after the reads"
    assert {stmt.buffer for stmt in moved(second, first)} == {"a_sh", "b_sh"}, "the loop-back barrier before the reads"


def test_counterexample_is_correct():
    """The two threads of the message access the address in those iterations."""
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
        faulty = with_access(kernel, buffer, True, moved_base(dim, lambda base: base // 2 * 2))
        (finding,) = [
            finding
            for finding in errors(check_races(AccessTrace(faulty)))
            if finding.details["statements"][0] == finding.details["statements"][1]
        ]
        assert finding.buffer == buffer and finding.details["threads"][0] != finding.details["threads"][1]


def test_lanes_writing_one_element_of_the_output_are_found():
    kernel = lowered(LISTING_2, *SYMBOLIC)
    lane = next(var for var in ir.lets(kernel.body) if var.name == "thread_m")
    faulty = with_access(kernel, "C", True, lambda access: access.substitute({lane: lane // 2 * 2}))
    findings = errors(check_races(AccessTrace(faulty)))
    assert [finding.buffer for finding in findings] == ["C"] and "same statement" in findings[0].message


def test_overlapping_buffers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    for offset in (kernel.buffer("a_sh").offset, kernel.buffer("a_sh").offset + kernel.buffer("a_sh").bytes - 16):
        findings = errors(check_races(AccessTrace(with_buffer(kernel, "b_sh", offset=offset))))
        assert {frozenset(finding.details["buffers"]) for finding in findings} >= {frozenset({"a_sh", "b_sh"})}


def test_loop_that_may_not_run_orders_nothing():
    K = sym("K")
    kernel = lowered(LISTING_2, 256, 256, K)
    path, barrier = barriers(kernel)[0]
    for extent, racy in ((K // 8, True), (K // 8 + 1, False), (as_expr(2), False), (as_expr(0), True)):
        loop = making.loop(Var("again", 0, 1 << 20), extent, (barrier,))
        findings = check_races(AccessTrace(edited(kernel, at_path(path, lambda _, loop=loop: [loop]))))
        assert bool(errors(findings)) == racy, extent


def test_double_buffers_need_one_barrier():
    """Two stages used alternately, over more iterations than are followed: the period decides."""
    kernel = lowered(LISTING_2, 128, 128, 8 * 1000)
    loop = next(stmt for stmt in kernel.body if isinstance(stmt, ir.For) and any(isinstance(part, ir.Barrier) for part in stmt.body))
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
    assert {stmt.buffer for stmt in errors(check_races(AccessTrace(off_by_one)))} == {"a_sh"}


def test_scratch_of_a_warp_is_refused():
    micro = MicroKernel.of("/* text */;\n", scratch_bytes=64)
    strategy = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).tile(16, 16).to(Warp).done(micro)
    with pytest.raises(DecompositionError, match="scratch memory at the level Warp"):
        lowered(strategy, 64, 64, 64)


def test_blocks_that_share_elements_are_found():
    for sizes in ((512, 512, 64), (513, 500, 64), SYMBOLIC, DIVISIBLE):
        kernel = lowered(LISTING_2, *sizes)
        names = {var.name: var for var in ir.lets(kernel.body)}
        faulty = with_access(kernel, "C", True, lambda access, var=names["block_m"]: access.substitute({var: ZERO}))
        findings = check_races(AccessTrace(faulty))
        assert [finding.buffer for finding in findings] == ["C"]
        assert findings[0].severity == "error" and findings[0].details["blocks"][0] != findings[0].details["blocks"][1]


def test_overlapping_block_tiles_are_found():
    kernel = lowered(LISTING_2, 512, 512, 64)
    names = {var.name: var for var in ir.lets(kernel.body)}
    faulty = with_access(kernel, "C", True, moved_base(0, lambda base: base - names["block_m"] * 64))
    (finding,) = check_races(AccessTrace(faulty))
    assert finding.severity == "error" and finding.buffer == "C" and finding.details["blocks"][0] != finding.details["blocks"][1]


def test_undecided_accesses_are_errors():
    """Correct offsets of blocks that are not digits of the block number are an error, not ignored."""
    kernel = lowered(LISTING_2, *SYMBOLIC)
    findings = check_races(AccessTrace(with_access(kernel, "C", True, moved_base(0, lambda base: base // 3 * 3))))
    assert len(findings) == 2 and {finding.severity for finding in findings} == {"error"}
    assert all("undecided" in finding.message and "mixes block and thread" in finding.message for finding in findings)


def test_tiles_visited_by_every_thread_are_found():
    """A loop of unknown length over the output without a barrier: adjacent iterations decide for all."""
    strategy = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    kernel = lowered(strategy, sym("M"), 64, 64)
    assert safety(kernel) == ()
    visit, count = Var("visit", 0, 1 << 20), sym("M")

    names = {var.name: var for var in ir.lets(kernel.body)}
    rows = names["thread_m"]
    findings_by_step = {}
    for step in (16, 8):
        faulty = with_access(kernel, "C", True, moved_base(0, lambda base, step=step: rows + visit * step))
        wrapped = edited(
            faulty, lambda stmt, path: [making.loop(visit, count, (stmt,))] if len(path) == 1 and isinstance(stmt, ir.For) else [stmt]
        )
        findings_by_step[step] = [finding for finding in check_races(AccessTrace(wrapped)) if "blocks" not in finding.details]
    assert findings_by_step[16] == []
    assert errors(findings_by_step[8]) and findings_by_step[8][0].buffer == "C"


def copied(row, column, *buffers, rows=32, columns=32, high=1, grid=1, active=TRUE, into="dst", bounds=None):
    """A hand-made kernel: each thread copies some elements of an array to the same position of another one."""
    accesses = [handmade.access(name, (row, column), (high, 1), bounds, write=name == into) for name in ("src", into)]
    statement = execution(MOVE, Move(high, 1)(GL, GL)(Thread), *accesses, active=active)
    return kernel_of(Move(rows, columns)(GL, GL), (statement,), *buffers, grid=grid)


def conflicting_blocks(kernel):
    """The pairs of blocks that the check reports."""
    return [finding.details["blocks"] for finding in check_races(AccessTrace(kernel))]


def test_tiles_of_blocks_that_overlap_by_one_element():
    block = Var("block", 0, 1)
    for height in (1, 2):
        tile = 32 * height
        assert conflicting_blocks(copied(block * tile + THREAD * height, 0, rows=256, grid=2, high=height)) == []
        assert conflicting_blocks(copied(block * (tile - 1) + THREAD * height, 0, rows=256, grid=2, high=height)) == [(0, 1)]


def test_a_digit_of_the_block_whose_stride_is_too_small():
    """Two adjacent tiles of 32, and the next two 64, or only 48, rows later."""
    block = Var("block", 0, 3)
    for step, conflicts in ((64, []), (48, [(1, 2)])):
        assert conflicting_blocks(copied(block % 2 * 32 + block // 2 * step + THREAD, 0, rows=256, grid=4)) == conflicts


def test_a_digit_of_the_block_that_counts_down():
    """Four tiles of 64 from the last to the first, and the next four 256, or only 100, rows later; more blocks than could be enumerated."""
    for blocks in (16, 1 << 23):
        block = Var("block", 0, blocks - 1)
        for step, conflicts in ((256, []), (100, [(0, 5)])):
            row = 192 - block % 4 * 64 + block // 4 * step
            if blocks == 16 or not conflicts:
                assert conflicting_blocks(copied(row, THREAD, rows=64 * blocks, high=64, grid=blocks)) == conflicts


def test_a_digit_derived_from_several_digits():
    """Blocks 0 and 1 of four both have tile 0, although the first digits of their numbers differ."""
    block, tile = Var("block", 0, 15), Var("tile", 0, 3)
    for value, conflicts in ((block % 4, []), (block % 4 - minimum(block % 4, as_expr(1)), [(0, 1)])):
        kernel = copied(tile * 64 + block // 4 * 512, THREAD, rows=2048, high=64, grid=16)
        assert conflicting_blocks(attrs.evolve(kernel, body=(making.let(tile, value), *kernel.body))) == conflicts


CURVES = {
    "a curve in each outer tile": lambda outer: outer.tile(16, 16).to(Block).hilbert(),
    "of three columns": lambda outer: outer.tile(16, 8).to(Block).hilbert(),
    "groups of which the last has fewer rows": lambda outer: outer.tile(16, 8).to(Block).rasterize(group_n=3),
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("sizes", [SYMBOLIC, DIVISIBLE])
def test_hilbert_order_over_an_unknown_number_of_tiles(curve, distributed, sizes):
    """Outer tiles are visited in a loop or distributed over blocks too; an order that visits a tile twice is an error."""
    outer = MatMul.tile(64, 48).to(Block) if distributed else MatMul.tile(64, 48)
    kernel = lowered(CURVES[curve](outer).tile(2, 2).to(Thread).split(1).tile(1, 1).done(), *sizes)
    assert errors(check_races(AccessTrace(kernel))) == []

    def doubled(statement, path):
        if isinstance(statement, ir.Let):
            twice = {var: var // 2 for var in statement.value.variables() if var.name == "block"}
            return [attrs.evolve(statement, value=statement.value.substitute(twice))]
        return [statement]

    assert errors(check_races(AccessTrace(edited(kernel, doubled)))) != []


GROUPED = {
    "all rows in one group": (
        lambda: MatMul.tile(1, 2).to(Block).rasterize(group_m=2).tile(1).to(Thread).tile(1, 1).split(1).done(),
        2,
        8,
    ),
    "threads past the end of the tile": (
        lambda: MatMul.tile(6, 9).to(Block).rasterize(group_n=1).epilog(RF).tile(2).to(QuadPair).tile(2, 1).to(Thread).tile(1, 1).done(),
        7,
        1,
    ),
    "tile sizes that divide the size": (
        lambda: MatMul.tile(3, 4).to(Block).rasterize(group_m=4).tile(1).to(Thread).split(1).tile(1, 1).done(),
        12,
        12,
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_tile_order_over_run_time_sizes(name):
    """A grouped order is proved if columns are a quotient of a size, and if conditions keep a block's last threads inside its tile."""
    strategy, rows, multiple = GROUPED[name]
    kernel = lowered(strategy(), rows, sym("N", multiple_of=multiple), 1)
    assert errors(check_races(AccessTrace(kernel))) == []

    def doubled(statement, path):
        twice = {var: var // 2 for var in statement.value.variables() if var.name == "block"} if isinstance(statement, ir.Let) else {}
        return [attrs.evolve(statement, value=statement.value.substitute(twice)) if twice else statement]

    assert errors(check_races(AccessTrace(edited(kernel, doubled)))) != []


def test_atomic_adds_of_blocks_conflict_with_plain_writes_only():
    """Atomic additions of two blocks to one element do not conflict; a plain write does."""
    kernel = copied(THREAD, 0, grid=2)
    (plain,) = kernel.body
    adds = attrs.evolve(plain, spec=AtomicAdd(1, 1)(GL, GL)(Thread))
    assert conflicting_blocks(attrs.evolve(kernel, body=(adds, adds))) == []
    assert conflicting_blocks(attrs.evolve(kernel, body=(plain,))) == [(0, 1)]
    assert (0, 1) in conflicting_blocks(attrs.evolve(kernel, body=(plain, adds)))


def test_tile_orders_have_no_race():
    for order in (lambda uid: uid ^ 1, lambda uid: 15 - uid, lambda uid: (uid % 4) * 4 + uid // 4):
        strategy = MatMul.tile(32, 32).to(Block).swizzle(order).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
        assert safety(lowered(strategy, 128, 128, 16)) == ()
    strategy = MatMul.tile(Strided((4, 64), (8, 32))).to(Block).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    assert safety(lowered(strategy, 128, 128, 16)) == ()


def test_predicates_only_remove_accesses():
    """A guard on a size is assumed to be possibly true; one that no tried size satisfies is undecided, and reported so."""
    M = sym("M")
    kernel = lowered(LISTING_2, M, 256, 64)
    path, _ = barriers(kernel)[0]

    def guarded(condition):
        def change(statement, where):
            if where == path:
                return []
            if isinstance(statement, ir.Exec) and any(access.buffer.endswith("_sh") and access.write for access in statement.accesses):
                statement = attrs.evolve(statement, active=condition)
            return [statement]

        return check_races(AccessTrace(edited(kernel, change)))

    assert errors(guarded(M > 100))
    never = guarded(M * M < M)
    assert never and all("undecided" in access.message and access.severity == "error" for access in never)


def test_unchecked_makes_warnings():
    kernel = lowered(LISTING_2, 256, 256, 64)
    faulty = edited(kernel, at_path(barriers(kernel)[0][0], lambda _: []))
    assert errors(check_races(AccessTrace(faulty)))
    findings = check_races(AccessTrace(making.evolved(faulty, unchecked=("I know",))))
    assert findings and {finding.severity for finding in findings} == {"warning"}


# ---------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("sizes", [(1000, 500, 300), SYMBOLIC])
def test_dropped_predicates_are_found(sizes):
    kernel = lowered(LISTING_2, *sizes)
    for buffer, write in (("A", False), ("B", False), ("C", True)):
        for dim in (0, 1):
            extent = kernel.buffer(buffer).tensor.shape[dim]
            faulty = with_conditions(
                kernel, buffer, write, lambda condition, extent=extent: None if condition.right == extent else condition
            )
            (finding,) = check_bounds(AccessTrace(faulty))
            assert finding.severity == "error" and finding.buffer == buffer and finding.details["dimension"] == dim
            assert finding.details["coordinate"] >= finding.details["extent"]
            assert finding.at and finding.access.startswith(buffer)


@pytest.mark.parametrize("sizes", [(1024, 512, 64), DIVISIBLE])
def test_wrong_bases_are_found(sizes):
    kernel = lowered(LISTING_2, *sizes)
    for buffer, write in (("A", False), ("B", False), ("C", True), ("a_sh", True), ("a_sh", False), ("b_sh", True), ("b_sh", False)):
        for dim, step in itertools.product((0, 1), (1, -1)):
            findings = errors(
                check_bounds(AccessTrace(with_access(kernel, buffer, write, moved_base(dim, lambda base, step=step: base + step))))
            )
            assert [finding.buffer for finding in findings] == [buffer], (buffer, dim, step)


def test_loose_predicates_and_registers_are_found():
    kernel = lowered(LISTING_2, 1000, 500, 300)
    loose = with_conditions(kernel, "A", False, lambda condition: less(condition.left, condition.right + 1))
    assert {condition.buffer for condition in check_bounds(AccessTrace(loose))} == {"A"}
    registers = with_access(kernel, "a_rf", True, moved_base(0, lambda base: base + 1))
    assert [condition.buffer for condition in check_bounds(AccessTrace(registers))] == ["a_rf"]
    small = with_buffer(kernel, "c_rf", elements=as_expr(63))
    assert {condition.buffer for condition in check_bounds(AccessTrace(small))} == {"c_rf"}


def test_wrong_ranges_of_names_are_found():
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
    faulty = with_conditions(wrong, "A", False, lambda condition: less(condition.left, bound))
    (finding,) = check_bounds(AccessTrace(attrs.evolve(faulty, symbols=(bound,))))
    assert finding.buffer == "A" and "elements is accessed" in finding.message
    moved = with_access(kernel, "A", False, moved_base(0, lambda base: base + 2))
    faulty = with_conditions(moved, "A", False, lambda condition: less(condition.left + 2, condition.right))
    (finding,) = check_bounds(AccessTrace(faulty))
    assert finding.buffer == "A" and "elements is accessed" in finding.message


def test_the_last_digit_of_an_incomplete_grid():
    """Block 6 of 8 accesses the third row; two rows are enough only for 6 blocks."""
    for grid, rows, clean in ((8, 2, False), (8, 3, True), (6, 2, True)):
        findings = check_bounds(AccessTrace(copied(Var("block", 0, grid - 1) // 3, THREAD, rows=rows, grid=grid)))
        assert (findings == ()) == clean, (grid, rows)


def test_an_element_at_the_bound_is_out_of_bounds():
    """The last thread would access the element past the end of a buffer of 32; a bound of 32 prevents that, a bound of 33 does not."""
    shared = local("s", (1, 32), SH)
    for bound, clean in ((32, True), (33, False), (None, False)):
        findings = check_bounds(AccessTrace(copied(ZERO, THREAD + 1, shared, columns=64, into="s", bounds=(None, bound))))
        assert (findings == ()) == clean, bound


def test_a_swizzle_that_leaves_the_buffer():
    """The swizzle maps the last elements, 8 and 9, to 10 and 11."""
    shared = local("s", (1, 16), SH, swizzle=Swizzle(2, 0, 2))
    for elements, clean in ((10, False), (12, True)):
        cut = attrs.evolve(shared, elements=as_expr(elements))
        findings = check_bounds(AccessTrace(copied(ZERO, THREAD % 10, cut, into="s")))
        assert ([finding.buffer for finding in findings] == []) == clean, elements


# ---------------------------------------------------------------------------------------------- banks


def expected_wavefronts(starts, width):
    """The wavefronts of a request: the words of each phase by bank."""
    lanes = 32 if width <= 4 else 16 if width == 8 else 8
    total = 0
    for phase in range(0, 32, lanes):
        words_by_bank = {}
        for start in starts[phase : phase + lanes]:
            if start is not None:
                for byte in range(start, start + width):
                    words_by_bank.setdefault(byte // 4 % 32, set()).add(byte // 4)
        total += max((len(words) for words in words_by_bank.values()), default=0)
    return total


def test_wavefronts_equal_the_reference():
    generator = random.Random(7)
    for _ in range(400):
        width = generator.choice((1, 2, 4, 8, 16))
        stride = generator.choice((0, 1, 2, 3, 8, 16, 31, 32, 33, generator.randint(0, 100)))
        jitter = generator.choice((0, 0, 5))
        starts = [width * (lane * stride + generator.randint(0, jitter)) for lane in range(32)]
        active = [generator.random() < generator.choice((1, 0.5)) for _ in range(32)]
        expected = expected_wavefronts([start if on else None for start, on in zip(starts, active)], width)
        assert wavefronts(np.array([starts]), width, np.array([active]))[0] == expected


def wavefronts_of(starts, width):
    return int(wavefronts(np.array([starts]), width, np.ones((1, 32), dtype=bool))[0])


def test_wavefronts_of_known_patterns():
    assert wavefronts_of([lane * 32 * 4 for lane in range(32)], 4) == 32, "a column of a 32x32 float tile"
    assert wavefronts_of([lane * 33 * 4 for lane in range(32)], 4) == 1, "padded by one"
    assert wavefronts_of([lane * 16 for lane in range(32)], 16) == 4, "float4, contiguous: four phases, no conflict"
    assert wavefronts_of([lane * 8 for lane in range(32)], 8) == 2
    assert wavefronts_of([0] * 32, 4) == 1, "broadcast"
    assert wavefronts_of([lane * 2 for lane in range(32)], 2) == 1, "two float16 values share a word"
    assert wavefronts_of([lane * 8 for lane in range(32)], 4) == 2


def bank_findings(kernel):
    return {(finding.buffer, "written" in finding.access): finding for finding in check_banks(AccessTrace(kernel))}


def transpose_kernel(**options):
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    load = Move.tile(32, 32).to(Block).load(SRC, SH, copy)
    load = load.pad(options["pad"]) if "pad" in options else load
    load = load.swizzle_storage(options["swizzle"]) if "swizzle" in options else load
    return load.tile(1, 1).to(Thread).done()(Move(32, 32)(GL, GL)(Kernel)).program().lowered


def test_column_of_a_tile():
    findings = {("written" in finding.access): finding for finding in check_banks(AccessTrace(transpose_kernel()))}
    assert (findings[True].severity, findings[True].details["wavefronts"]) == ("note", 1)
    bad = findings[False]
    assert (bad.severity, bad.details["degree"], bad.details["wavefronts"], bad.details["ideal"]) == ("warning", 32, 32, 1)
    assert bad.details["pad"] == 1
    for repair in ({"pad": 1}, {"swizzle": Swizzle(*bad.details["swizzle"])}):
        assert {finding.severity for finding in check_banks(AccessTrace(transpose_kernel(**repair)))} == {"note"}


def requests_by_hand(kernel, buffer, write):
    """The most wavefronts of an access, with the printed address expression evaluated by lane."""
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
                            worst = max(worst, expected_wavefronts(starts, width * place.dtype.bytes))
    return worst


def test_listing_2_bank_conflicts_equal_the_reference():
    kernel = lowered(LISTING_2, 128, 128, 8)
    findings = bank_findings(kernel)
    for buffer, write in itertools.product(("a_sh", "b_sh"), (True, False)):
        assert findings[buffer, write].details["wavefronts"] == requests_by_hand(kernel, buffer, write)
    assert findings["b_sh", False].details["wavefronts"] == 4 and findings["b_sh", True].details["wavefronts"] == 8
    assert findings["b_sh", False].details["pad"] == 1


def test_repairs_of_listing_2_work():
    findings = bank_findings(lowered(LISTING_2, 128, 128, 8))
    repaired = LISTING_2.at(Load, "A").refine(SwizzleStorage(Swizzle(*findings["a_sh", True].details["swizzle"])))
    repaired = repaired.at(Load, "B").refine(Pad(findings["b_sh", True].details["pad"]))
    assert {finding.severity for finding in bank_findings(lowered(repaired, 128, 128, 8)).values()} == {"note"}


def stored(column, height, active=TRUE):
    """A hand-made kernel: each thread stores the first elements of a column of 32 in shared memory with one vector."""
    accesses = (handmade.access("src", (0, THREAD), (height, 1)), handmade.access("s", (0, column), (height, 1), write=True))
    spec = Move(height, 1)(GL, SH)(Thread)
    statement = execution(MOVE, spec, *accesses, active=active, vector=height, vectors=(height, height))
    return kernel_of(Move(32, 32)(GL, GL), (statement,), local("s", (32, 256), SH), grid=8)


def test_repairs_keep_vectors_whole():
    """A pad of 1 would remove the conflicts of columns 0, 8, 16 and 24, but split vectors in others; a pad of 4 helps adjacent columns."""
    (finding,) = check_banks(AccessTrace(stored(THREAD % 4 * 8, 4)))
    assert finding.severity == "warning" and "pad" not in finding.details and finding.details["swizzle"][1] >= 2
    (finding,) = check_banks(AccessTrace(stored(THREAD, 4)))
    assert finding.details["pad"] == 4 and finding.details["swizzle"] == [3, 2, 3]
    (finding,) = check_banks(AccessTrace(stored(THREAD, 1)))
    assert finding.details["pad"] == 1 and finding.details["swizzle"] == [5, 0, 5]
    (finding,) = check_banks(AccessTrace(stored(THREAD * 2, 1)))
    assert "pad" not in finding.details, "with any pad, every other column uses at most every other bank"


def test_lanes_active_in_some_blocks_are_counted():
    """A condition on the thread is evaluated, one on the block is assumed to hold."""
    late = less(as_expr(3), Var("block", 0, 7))
    for active, passes in ((TRUE, 32), (late, 32), (less(THREAD, 5), 5), (all_of((late, less(THREAD, 5))), 5)):
        (finding,) = check_banks(AccessTrace(stored(THREAD, 1, active)))
        assert finding.details["wavefronts"] == passes, active


def test_a_name_has_one_value():
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
    all_lanes = np.ones((1, 32), dtype=bool)
    lanes = np.arange(32)[None]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, all_lanes)] == [4, 4]
    assert [int(x[0]) for x in sectors(lanes * 4096, 4, all_lanes)] == [32, 4]
    assert [int(x[0]) for x in sectors(lanes * 16, 16, all_lanes)] == [16, 16]
    assert [int(x[0]) for x in sectors(lanes * 8, 4, all_lanes)] == [8, 4]
    assert [int(x[0]) for x in sectors(lanes * 0, 4, all_lanes)] == [1, 1]
    assert [int(x[0]) for x in sectors(lanes * 4 + 4, 4, all_lanes)] == [5, 4]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, lanes < 9)] == [2, 2]
    assert [int(x[0]) for x in sectors(lanes * 32, 4, lanes < 9)] == [9, 2]
    assert [int(x[0]) for x in sectors(lanes * 4, 4, lanes < 0)] == [0, 0]


def traffic(kernel):
    return {finding.buffer: finding for finding in check_coalescing(AccessTrace(kernel))}


def test_listing_2_traffic_and_its_repair():
    findings = traffic(lowered(LISTING_2, 1024, 1024, 1024))
    assert [(findings[name].details["sectors"], findings[name].details["ideal"]) for name in "ABC"] == [(8, 4), (32, 4), (32, 4)]
    assert findings["A"].severity == "note" and findings["B"].severity == findings["C"].severity == "warning"
    assert findings["B"].details["layout"] == "ColMajor" and ".layout(ColMajor)" in findings["B"].message
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    better = MatMul.load(B, SH, copy).steps[0]
    repaired = traffic(lowered(LISTING_2.at(Load, "B").replace(better), 1024, 1024, 1024))
    assert repaired["B"].details["sectors"] == repaired["B"].details["ideal"] == 4 and repaired["B"].severity == "note"


def test_run_time_sizes_are_assumed_and_reported():
    findings = traffic(lowered(LISTING_2, *SYMBOLIC))
    assert findings["B"].details["assumed_sizes"] == {"M": 4096, "N": 4096, "K": 4096}
    assert "K=4096" in findings["B"].message and findings["B"].details["sectors"] == 32


def test_row_major_suggestion():
    copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
    strategy = MatMul.tile(32, 32).to(Block).split(32).load(A, SH, copy).load(B, SH, copy).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
    findings = traffic(lowered(strategy, 64, 64, 64, A=RowMajor))
    assert findings["A"].details["layout"] == "RowMajor" and findings["B"].severity == "note"


# ---------------------------------------------------------------------------------------------- resources and the rest


def test_resources():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    notes = check_resources(AccessTrace(kernel))
    assert {finding.severity for finding in notes} == {"note"}
    details = {key: value for finding in notes for key, value in finding.details.items()}
    assert (details["threads"], details["bytes"], details["registers"]) == (256, 8192, 64 + 8 + 8 + 40)
    assert (details["blocks"], details["limited_by"]) == (2, "registers")
    assert details["buffers"] == {"a_sh": 4096, "b_sh": 4096}


def test_resources_exceeded():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    spilled = check_resources(AccessTrace(with_buffer(kernel, "c_rf", elements=as_expr(300))))
    assert any(finding.severity == "warning" and finding.buffer == "c_rf" and "local memory" in finding.message for finding in spilled)
    many = check_resources(AccessTrace(with_buffer(kernel, "c_rf", elements=as_expr(250))))
    assert any(finding.severity == "warning" and "spill" in finding.message for finding in many)
    assert any("idle" in finding.message for finding in check_resources(AccessTrace(attrs.evolve(kernel, threads=250))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, threads=1025))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, shared_bytes=1 << 20))))
    assert errors(check_resources(AccessTrace(attrs.evolve(kernel, shared_bytes=4096))))


def test_findings_are_sorted_and_have_a_table():
    kernel = lowered(LISTING_2, *SYMBOLIC)
    faulty = edited(kernel, at_path(barriers(kernel)[0][0], lambda _: []))
    findings = check(faulty)
    assert findings == check(faulty)
    assert json.loads(json.dumps([finding.as_dict() for finding in findings]))[0]["kind"] == "race"
    assert [finding.severity for finding in findings] == sorted(
        (finding.severity for finding in findings), key=["error", "warning", "note"].index
    )
    rows = table(findings)
    assert len(rows) == len(findings) + 1 and all(len(row) == 5 and all(isinstance(cell, str) for cell in row) for row in rows)
    assert str(findings[0]).startswith(f"{findings[0].at}: error: race: ")


def test_details_are_plain_values():
    size = sym("N")
    details = {"threads": (np.int64(3), 4), 7: {"share": np.float64(0.5), "left": None}, "size": size, "whole": True}
    stored = Finding("bounds", "error", "A", "what", details=details).as_dict()
    assert stored["details"] == {"threads": [3, 4], "7": {"share": 0.5, "left": None}, "size": "N", "whole": True}
    assert json.loads(json.dumps(stored)) == stored


def test_findings_have_the_line_of_their_access():
    kernel = copied(THREAD + 1, 0)
    (statement,) = kernel.body
    for origin, expected in (("mine.py:2", "mine.py:2"), (None, "mine.py:1")):
        accesses = tuple(attrs.evolve(access, origin=origin) for access in statement.accesses)
        faulty = attrs.evolve(kernel, body=(attrs.evolve(statement, accesses=accesses, origin="mine.py:1"),))
        assert {finding.at for finding in check_bounds(AccessTrace(faulty))} == {expected}


def test_collective_regions_are_enumerated_by_their_modes():
    """The addresses of a large swizzled region equal those of its elements."""
    kernel = lowered(IN_SHARED, 32, 32, 6)
    buffer = kernel.buffer("b_sh")
    access = making.access("b_sh", (ZERO, kernel.thread * 0 + 1), ((Mode(6, 1),), (Mode(4, 1), Mode(5, 6))), (None, None), False)
    access_trace = AccessTrace(kernel)
    got = access_trace.addresses(access_trace.frame([("thread", access_trace.threads[:1])]), access)
    assert got.ravel().tolist() == [buffer.address(access, offset).evaluate({"thread": 0}) for offset in access.elements()]


def test_work_of_the_checks_is_bounded():
    kernel = lowered(LISTING_2, 1024, 1024, 1024)
    safety(kernel), check(kernel)
    quick, whole = python_calls(lambda: safety(kernel)), python_calls(lambda: check(kernel))
    assert quick < 17_000 and whole < 45_000, (quick, whole)


def test_the_race_check_shares_no_code_with_lowering():
    import ast
    from pathlib import Path

    import fireiron.check

    allowed = {"ir", "errors", "values", "spec", "specs", "check", "display", "frozen"}
    for path in Path(fireiron.check.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fireiron"):
                assert node.module.split(".")[1] in allowed, (path.name, node.module)


def test_undecided_findings_have_a_line():
    """The line of the step that created the buffer, if its addresses depend on a run-time size."""
    shared = touching.buffer("s", 4096)
    shared = attrs.evolve(shared, tensor=attrs.evolve(shared.tensor, origin="mine.py:7"))
    place = touching.T + touching.K % 64
    program = touching.kernel(
        touching.writes(place), touching.BLOCK_BARRIER, touching.reads(place), buffers=[shared], symbols=(touching.K,)
    )
    findings = [finding for finding in check_races(AccessTrace(program)) if "undecided" in finding.message]
    assert findings and all(finding.at == "mine.py:7" for finding in findings)
