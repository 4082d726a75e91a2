"""Events as an oracle: kernels keep the order of events; injected faults and orders that no kernel keeps are found."""

import collections
import contextlib

import attrs
import pytest
from event_faults import faults
from event_random import MIX, drawn
from test_tasks_attention import bound
from test_tasks_programs import ALL, CASES, SIZES, TARGETS

from fireiron import *
from fireiron import ir, tasks
from fireiron.check import safety
from fireiron.errors import FireironError
from fireiron.inspect.oracle import check_events, compare_events
from fireiron.inspect.oracle.units import processor_indices
from fireiron.strategies import hopper, tasks_attention, tasks_batched, tasks_dual, tasks_gated, tasks_gemm, tasks_row_sum
from fireiron.tasks import *
from fireiron.tasks.event_text import parse, text
from fireiron.tasks.events import Block, Call, Copy, Dim, blocks_of, walk, with_blocks
from fireiron.tasks.orders import needs
from fireiron.tasks.passes import events_of
from fireiron.values.expr import as_expr

NIGHTLY = pytest.mark.nightly
GEMM = {
    "FFMA": (tasks_gemm.ffma(), "sm_80", (256, 256, 64)),
    "mma.sync": (tasks_gemm.ampere(32, 32, 32, 2, 2, 3, lookahead=2, staged=True), "sm_80", (128, 128, 128)),
    "wgmma": (tasks_gemm.hopper(128, 128, 64, 2, 3, epi_n=64), "sm_90a", (256, 256, 512)),
}


def gemm(name):
    mapping, target, sizes = GEMM[name]
    return tasks.strategy(tasks_gemm.program, mapping)(tasks_gemm.spec(*sizes)).program(target)


def require_kept(program):
    """All orders are compared, except those through launches without statements, and hold."""
    report = compare_events(program)
    assert [str(one) for one in report.findings] == []
    assert report.compared and all(
        need.through or any(iteration.before for iteration in need.iterations) for need in set(report.needs) - set(report.compared)
    )
    return report


# ---------------------------------------------------------------------------------------------- kernels obey event orders


LIBRARY = [
    (module, name)
    for module in (tasks_gemm, tasks_batched, tasks_dual, tasks_gated, tasks_row_sum, tasks_attention)
    for name in ("strategy", "warpgroups", "warpgroups_shared")
    if hasattr(module, name)
]


@pytest.mark.parametrize(("module", "name"), LIBRARY, ids=lambda one: getattr(one, "__name__", one))
def test_strategies_of_the_library(module, name):
    require_kept(getattr(module, name)(module.spec(*module.SIZES)).program("sm_80" if name == "strategy" else "sm_90a"))


@pytest.mark.parametrize(("name", "mapped"), ALL)
def test_small_programs(name, mapped):
    case = CASES[name]
    require_kept(tasks.strategy(case.program, case.mappings[mapped])(case.spec(*SIZES[mapped])).program(TARGETS[mapped]))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("name", ("FlashAttention-2", "FlashAttention-3"))
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_attention(name, target, causal):
    small = {"U": 64, "WGS": 1, "W": 32, "persistent": 2} if target == "sm_90a" else {}
    require_kept(bound(name, target, 128, 256, causal=causal, heads=2, **small)[0].program(target))


@pytest.mark.nightly
def test_a_mask_that_no_element_needs_at_these_sizes():
    """Its condition depends on sizes only: it counts as visited even if it has no effect; a missing or extra mask is a finding."""
    program = bound("FlashAttention-3", "sm_80", sym("m"), sym("n"))[0].program("sm_80")
    kernel = program.lowered
    is_mask = lambda one: isinstance(one, ir.Exec) and one.path[-1] == "s"
    copies = lambda count: attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: (one,) * count if is_mask(one) else (one,)))
    assert [one for one, _ in ir.execs(kernel.body) if is_mask(one)] and check_events(program) == ()
    for count, message in (
        (0, "no statement of the kernel executes it (s)"),
        (2, "(0.2.0 call) has 1 iterations, but s of the kernel has 2"),
    ):
        assert any(message in one.message for one in check_events(program, copies(count)))


def test_every_order_of_the_products():
    """Which statement waits for which, over how many iterations; all of it is compared."""
    report = require_kept(gemm("wgmma"))
    assert report.omitted == () and set(report.compared) == set(report.needs)
    assert [str(one) for one in report.needs] == [
        "e6 before e4, 3 iterations before", "e6 before e5, 3 iterations before", "e2 before e6", "e4 before e6", "e5 before e6",
        "e6 before e6, 1 iteration before", "e6 before e8", "e8 before e9",
    ]  # fmt: skip


def test_other_programs_have_no_events():
    assert compare_events(hopper.strategy(hopper.spec(256, 256, 256)).program("sm_90a")) == type(compare_events(gemm("FFMA")))()


# ---------------------------------------------------------------------------------------------- faults are found


def of_case(name, mapped, *sizes):
    case = CASES[name]
    return tasks.strategy(case.program, case.mappings[mapped])(case.spec(*sizes)).program(TARGETS[mapped])


PLANTED = {
    "FFMA": lambda: gemm("FFMA"),
    "mma.sync": lambda: gemm("mma.sync"),
    "wgmma": lambda: gemm("wgmma"),
    "dual, mma.sync": lambda: of_case("dual", "ampere", 20, 24, 128),
    "gated, wgmma": lambda: of_case("gated", "hopper", 72, 24, 80),
    "sums in shared memory": lambda: of_case("row_sum", "hopper, sums shared", 72, 24, 80),
    "FlashAttention-2": lambda: bound("FlashAttention-2", "sm_80", 64, 128, heads=2)[0].program("sm_80"),
    "FlashAttention-3": lambda: bound("FlashAttention-3", "sm_90a", 64, 128, heads=2, U=64, WGS=1, W=32)[0].program("sm_90a"),
}
OFTEN = ("FFMA", "mma.sync", "wgmma")


def counted(program):
    """The numbers of injected faults, of found ones, of those found only by events or only by other checks; missed faults by name."""
    counts, missed = collections.Counter(), []
    for name, kernel in faults(program.lowered):
        by_events, others = bool(check_events(program, kernel)), bool(safety(kernel))
        counts += collections.Counter(planted=1, found=by_events, alone=by_events and not others, others=others and not by_events)
        missed += [name] if others and not by_events else []
    return counts, missed


COUNTS = {
    "FFMA": (15, 15, 3, 0),
    "mma.sync": (34, 32, 5, 0),
    "wgmma": (37, 27, 3, 7),
    "dual, mma.sync": (42, 40, 10, 0),
    "gated, wgmma": (74, 39, 4, 19),
    "sums in shared memory": (62, 38, 7, 8),
    "FlashAttention-2": (70, 53, 16, 4),
    "FlashAttention-3": (157, 97, 23, 27),
}
"""Per kernel: injected faults, found faults, those found only by events, and those found only by other checks."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name if name in OFTEN else pytest.param(name, marks=NIGHTLY) for name in PLANTED])
def test_faults_are_found(name):
    """Missed faults violate no event order: protocols of rings, bytes shared by iterations, work inside a launch."""
    counts, missed = counted(PLANTED[name]())
    assert tuple(counts[one] for one in ("planted", "found", "alone", "others")) == COUNTS[name], missed


def faulty(program, wanted):
    """The messages about the first fault of that name."""
    kernel = next(kernel for name, kernel in faults(program.lowered) if wanted in name)
    return [one.message for one in check_events(program, kernel)]


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("mma.sync", "Barrier a_sh, b_sh complete", "e8 (0.1.0.0 in A) waits for e5 (0.1 in A) by e5, but in the kernel a_rf in iteration 0 of warp"),
        ("mma.sync", "without 15 Wait", "it is still in flight"),
        ("mma.sync", "without 18 a_rf", "e8 (0.1.0.0 in A) has 8 iterations, but a_rf of the kernel has 7"),
        ("wgmma", "moved up", "e4 (0.1 in A) waits for e6 (0.1.0.0.0 call) by p2[:, :, :, :]"),
        ("wgmma", "Wait product", "it is still under way"),
        ("wgmma", "Fence dst_sh", "no fence of the asynchronous proxy stands between"),
        ("wgmma", "without 5.1.5 Release", "waits forever"),
        ("wgmma", "Commit bulk", "still in flight at the end of the kernel"),
        ("FFMA", "a_sh/dealt/body", "no statement of the kernel executes it"),
        ("FFMA", "For k and For copy_m", "it executes first"),
    ],
)  # fmt: skip
def test_a_finding_names_both_calls(name, fault, message):
    messages = faulty(gemm(name), fault)
    assert any(message in one for one in messages), messages


# ---------------------------------------------------------------------------------------------- orders that no kernel obeys


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("wgmma", "e5: () = copy(Bpp[k, 0], B2), {", "e5: () = copy(Bpp[k, 0], B2), {e4, "),  # two loads are in flight together
        ("mma.sync", "e6: () = copy(Bpp[k, 0], B2), {", "e6: () = copy(Bpp[k, 0], B2), {e5, "),
        ("mma.sync", "e13: () = call(copy_out, Cp[i, j], t1), {e12[:, :]}", "e13: () = call(copy_out, Cp[i, j], t1), {}"),
    ],
)
def test_an_order_that_the_kernel_does_not_keep_is_refused(name, old, new):
    """An order that is no longer required is not reported as missing."""
    program = gemm(name)
    mapping, _, sizes = GEMM[name]
    events = events_of(tasks_gemm.program, mapping, tasks_gemm.spec(*sizes), until="allocate")
    written = text(events)
    assert old in written
    changed = parse(written.replace(old, new))
    labels = {one.event: one.launch for one in leaves(events.body)}
    findings = check_events(program, events=labeled(changed, labels))
    assert bool(findings) == ("{}" not in new), findings


def test_an_order_between_stages_without_a_common_byte_is_not_required():
    """The producer is three iterations ahead; two would require an order between bytes of different stages."""
    program = gemm("wgmma")
    mapping, _, sizes = GEMM["wgmma"]
    events = events_of(tasks_gemm.program, mapping, tasks_gemm.spec(*sizes), until="allocate")
    assert "{} 3 iterations before" in text(events)
    changed = parse(text(events).replace("{} 3 iterations before", "{} 2 iterations before"))
    labels = {one.event: one.launch for one in leaves(events.body)}
    assert check_events(program, events=labeled(changed, labels)) == ()


def leaves(block):
    return [one for one in walk(block) if isinstance(one, (Copy, Call))]


def labeled(program, labels):
    """A parsed program with the launches of its copies and calls."""

    def of(block):
        statements = (
            attrs.evolve(stmt, launch=labels[stmt.event])
            if isinstance(stmt, (Copy, Call))
            else with_blocks(stmt, tuple(map(of, blocks_of(stmt))))
            for stmt in block.statements
        )
        return Block(tuple(statements), block.yields)

    return attrs.evolve(program, body=of(program.body))


def test_needs_follow_loops_and_what_they_carry():
    mapping, _, sizes = GEMM["mma.sync"]
    events = events_of(tasks_gemm.program, mapping, tasks_gemm.spec(*sizes), until="allocate")
    orders = {str(one): one for one in needs(events)}
    assert [str(iteration.index) for iteration in orders["e8 before e5, 3 iterations before"].iterations] == ["k", ":"]
    without = needs(events, lambda event: event != "e12")
    assert [(one.first, one.through) for one in without if one.second == "e13"] == [("e3", "e12"), ("e11", "e12")]


def test_places_of_threads():
    """Digits of one level, the last one fastest; indices past the end have none."""
    over = (Dim(as_expr(2), WARPGROUP), Dim(as_expr(2), WARP), Dim(as_expr(32), THREAD))
    positions = processor_indices(over, 384)
    assert (
        positions[:, 0].tolist() == [0, 0, 0]
        and positions[:, 161].tolist() == [1, 1, 1]
        and (positions[:, 64] < 0).any()
        and (positions[:, 300] < 0).any()
    )


def test_drawn_programs_that_are_kernels():
    """Few of the programs of `event_random` are kernels of one block; drawn mappings of the library's are compared by `test_tasks_random`."""
    compared = 0
    for seed in range(400):
        program, mapping, _ = drawn(seed)
        spec = MIX(4, 4, dtype=int32, X=RowMajor, Y=RowMajor, D=RowMajor)(GL, GL, GL)(Kernel)
        with contextlib.suppress(FireironError):
            compiled = tasks.strategy(program, mapping)(spec).program("sm_80")
            assert compiled.ir and compare_events(compiled).compared
            compared += 1
    assert compared >= 4
