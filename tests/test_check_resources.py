"""Limits of threads, shared memory, registers and roles, in hand-made kernels."""

import importlib
import re

import attrs
import making
import pytest
from handmade import local
from touching import T, buffer, kernel, reads, touch, writes

from fireiron import *
from fireiron.check import AccessTrace, check_resources
from fireiron.check.registers import LOOPING, MIN_REGISTERS, UNROLLED, array_limit, register_limit, register_prediction
from fireiron.check.resources import Measured, occupancy, report, resource_errors
from fireiron.cost import predict
from fireiron.values.expr import as_expr
from fireiron.values.machine import ARCHITECTURES

SM_90A = next(target for target in ARCHITECTURES if target.name == "sm_90a")


def make_kernel(*body, **options):
    """A kernel of 128 threads."""
    fields = {name: options.pop(name) for name in ("shared_bytes", "resident", "architecture") if name in options}
    return making.evolved(kernel(*body, **options), **fields)


def messages(whole, severity=None):
    return [finding.message for finding in check_resources(AccessTrace(whole)) if severity in (None, finding.severity)]


@pytest.mark.parametrize(
    ("threads", "severity", "text"),
    [
        (32, "note", "32 threads in a block, 1 warps"),
        (1024, "note", "1024 threads in a block, 32 warps"),
        (1025, "error", "1025 threads in a block, but sm_80 has at most 1024"),
        (33, "warning", "33 threads in a block: the last warp has 31 idle lanes"),
        (95, "warning", "95 threads in a block: the last warp has 1 idle lanes"),
    ],
)
def test_threads_of_a_block(threads, severity, text):
    (finding, *_) = check_resources(AccessTrace(make_kernel(writes(0), threads=threads)))
    assert (finding.kind, finding.severity, finding.message, finding.details["threads"], finding.details["limit"]) == (
        "resources",
        severity,
        text,
        threads,
        1024,
    )


@pytest.mark.parametrize(
    ("offset", "requested", "severity", "text"),
    [
        (0, 1024, "note", "1024 of 166912 bytes of shared memory: s 1024"),
        (0, 2048, "note", "2048 of 166912 bytes of shared memory: s 1024"),
        (1024, 1024, "error", "buffers end at byte 2048 of shared memory, but the kernel requests 1024 bytes"),
        (0, 166912, "note", "166912 of 166912 bytes of shared memory: s 1024"),
        (0, 166913, "error", "166913 bytes of shared memory in a block, but sm_80 has 166912: s 1024"),
        (165888, 166912, "note", "166912 of 166912 bytes of shared memory: s 1024"),
        (165889, 100, "error", "166913 bytes of shared memory in a block, but sm_80 has 166912: s 1024"),
    ],
)
def test_shared_memory_of_a_block(offset, requested, severity, text):
    whole = make_kernel(writes(T), buffers=(buffer("s", 256, offset=offset), buffer("r", 9000, memory=RF)), shared_bytes=requested)
    assert whole.architecture.shared_per_block == 166912
    finding = check_resources(AccessTrace(whole))[1]
    assert (finding.severity, finding.message) == (severity, text)
    assert (finding.details["bytes"], finding.details["limit"], finding.details["buffers"]) == (requested, 166912, {"s": 1024})
    none = make_kernel(buffers=(buffer("r", 4, memory=RF),))
    assert check_resources(AccessTrace(none))[1].message == "no shared memory"


def on_arrays(*names):
    """Statements that write arrays in registers and read them, so that they are live."""
    return tuple(touch(0, write=write, name=name) for write in (True, False) for name in names)


@pytest.mark.parametrize(("elements", "dtype", "registers"), [(8, float32, 8), (9, float16, 5), (8, float16, 4), (8, float64, 16)])
def test_register_estimate_counts_arrays_in_32_bit_registers(elements, dtype, registers):
    whole = make_kernel(*on_arrays("r"), buffers=(buffer("r", elements, memory=RF, dtype=dtype), buffer("s", 4096)))
    estimate = register_prediction(whole)
    used = -(-(registers + UNROLLED) // 8) * 8
    assert (estimate.arrays, estimate.used, estimate.given) == (registers, used, used)
    assert f"about {used} registers per thread (r {registers}, the rest {used - registers})" in messages(whole)
    looping = make_kernel(making.loop(T, as_expr(4), on_arrays("r")), buffers=whole.buffers)
    assert register_prediction(looping).used == -(-(registers + LOOPING) // 8) * 8


def test_arrays_that_are_not_live_at_the_same_time_share_registers():
    arrays = tuple(buffer(name, 40, memory=RF) for name in "rq")
    apart = make_kernel(*on_arrays("r"), *on_arrays("q"), buffers=arrays)
    together = make_kernel(*on_arrays("r", "q"), buffers=arrays)
    assert [register_prediction(whole).arrays for whole in (apart, together)] == [40, 80]
    assert "(r 40, q 40, less 40 of arrays that are not live at the same time, the rest 16)" in " ".join(messages(apart))
    assert "(r 40, q 40, the rest 16)" in " ".join(messages(together))


@pytest.mark.parametrize("strategy", ["hopper", "attention", "hopper_attention", "listing_2"])
def test_check_and_cost_print_the_same_registers(strategy):
    module = importlib.import_module(f"fireiron.strategies.{strategy}")
    program = module.strategy(module.spec(*module.SIZES)).program("sm_90a" if strategy.startswith("hopper") else "sm_90")
    text, predicted = report(program.ir), predict(program)
    (used,) = re.findall(r"about (\d+) per thread", text)
    assert f"registers     about {used} per thread" in str(predicted)
    assert f"{predicted.occupancy.blocks} block{'s' * (predicted.occupancy.blocks != 1)} per SM" in text


@pytest.mark.parametrize(("elements", "warns"), [(255, False), (256, True), (300, True)])
def test_an_array_larger_than_the_registers_of_a_thread(elements, warns):
    whole = make_kernel(buffers=(buffer("r", elements, memory=RF),))
    findings = [finding for finding in check_resources(AccessTrace(whole)) if finding.buffer == "r"]
    assert len(findings) == warns
    for finding in findings:
        assert (finding.severity, finding.details["elements"], finding.details["limit"]) == ("warning", elements, 255)
        assert f"r has {elements} elements per thread: it is placed in local memory" in finding.message
        assert f"r is in local memory: {4 * elements} bytes per thread" in report(whole)


@pytest.mark.parametrize(
    ("threads", "resident", "limit"),
    [
        (128, 1, 255),
        (256, 1, 255),
        (257, 1, 168),
        (512, 1, 128),
        (1024, 1, 64),
        (128, 4, 128),
        (128, 2, 255),
        (256, 2, 128),
        (384, 1, 168),
        (96, 5, 96),
        (32, 1, 255),
    ],
)
def test_register_limit_of_a_thread(threads, resident, limit):
    """65,536 registers, allocated to four warps at a time, in units of 8."""
    whole = make_kernel(threads=threads, resident=resident)
    warps = -(-threads // 128) * 4 * resident
    assert register_limit(whole) == limit == min(255, 65536 // (32 * warps) // 8 * 8) == array_limit(whole)


@pytest.mark.parametrize(("amount", "severity"), [(64 - MIN_REGISTERS, "note"), (65 - MIN_REGISTERS, "warning")])
def test_arrays_that_leave_too_few_registers_warn(amount, severity):
    whole = make_kernel(*on_arrays("r"), threads=1024, buffers=(buffer("r", amount, memory=RF),))
    (finding,) = (finding for finding in check_resources(AccessTrace(whole)) if finding.message.startswith("about"))
    assert finding.severity == severity and finding.details["registers"] == 64 and finding.details["limit"] == 64
    text = "the arrays leave too few of the 64 that 1024 threads leave per thread; about 1 will spill"
    assert (text in finding.message) == (severity == "warning")
    assert ("about 1 will spill" in report(whole)) == (severity == "warning")
    both = making.evolved(whole, resident=2, threads=512)
    assert ("that 2 blocks of 512 threads leave per thread" in " ".join(messages(both))) == (severity == "warning")


def test_an_array_of_all_registers_spills():
    whole = make_kernel(*on_arrays("r"), buffers=(buffer("r", 250, memory=RF),))
    (message,) = (message for message in messages(whole, "warning") if message.startswith("about"))
    assert message.endswith("the arrays leave too few of the 255 available; about 3 will spill")


# ---------------------------------------------------------------------------------------------- roles


def exchanged(*roles, threads=None, elected=-1):
    """A Hopper kernel with roles of given (threads, registers); the last role is the producer."""
    first, all_roles = 0, []
    for number, (count, registers) in enumerate(roles):
        all_roles.append(making.role(f"role {number}", first, count, (), elected=number == len(roles) + elected, registers=registers))
        first += count
    return make_kernel(making.roles(tuple(all_roles)), threads=first, architecture=SM_90A, buffers=())


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (((256, 240), (128, 24)), ""),
        (((256, 240), (128, 32)), "at most 64512 for all threads together"),
        (((256, 232), (128, 40)), ""),
        (((256, 168), (128, 160)), ""),
        (((256, 236), (128, 24)), "which role 0 violates"),
        (((256, 240), (128, 16)), "which role 1 violates"),
        (((256, 264), (128, 24)), "which role 0 violates"),
        (((256, 240), (128, 28)), "which role 1 violates"),
        (((256, 240), (128, 0)), "a count for every role, and roles of whole warpgroups"),
        (((256, 240), (96, 24)), "a count for every role, and roles of whole warpgroups"),
        (((256, 160), (128, 24)), "fewer for the producer, at least as many for the others"),
        (((256, 240), (128, 168)), "fewer for the producer, at least as many for the others"),
        (((256, 0), (128, 0)), ""),
        (((128, 256), (128, 24)), ""),
        (((256, 248), (128, 24)), "at most 64512 for all threads together"),
    ],
)
def test_register_counts_of_roles(roles, text):
    """384 threads are launched with 168 each; only multiples of 8 from 24 to 256 are legal."""
    errors = messages(exchanged(*roles), "error")
    assert len(errors) == bool(text) and all(text in finding for finding in errors), errors
    if errors:
        assert "registers per thread by role: role 0" in errors[0]


def test_arrays_are_limited_by_the_role_with_the_most_registers():
    whole = exchanged((256, 240), (128, 24))
    assert (register_limit(whole), array_limit(whole)) == (168, 240)


# ---------------------------------------------------------------------------------------------- reports


def test_report_of_measured_registers():
    whole = make_kernel(reads(T), *on_arrays("r"), buffers=(buffer("r", 8, memory=RF), buffer("s", 256)), shared_bytes=1024)
    text = report(whole, Measured(40))
    assert "registers: 40 per thread, of 255 (about 24 expected)" in text and "spills: none" in text and "of arrays" not in text
    assert "spills: none; 16 bytes of arrays in local memory" in report(whole, Measured(40, stack=16))
    assert "spills: 8 bytes per thread stored, 4 loaded (12 bytes of local memory)" in report(whole, Measured(40, 8, 4, 12))
    assert "spills: 8 bytes per thread stored, 0 loaded" in report(
        whole, Measured(40, 8)
    ) and "0 bytes per thread stored, 4 loaded" in report(whole, Measured(40, 0, 4))
    assert "not all arrays are live at the same time" in report(whole, Measured(7)) and "temporaries" in report(whole, Measured(8))
    assert "(estimated)" in report(whole) and "(estimated)" not in report(whole, Measured(40))
    assert report(whole).startswith("k for sm_80: 128 threads per block, 4 warps\n") and report(make_kernel(threads=32)).startswith(
        "k for sm_80: 32 threads per block, 1 warp\n"
    )
    assert "shared memory: 1024 of 166912 bytes per block" in text and "shared memory: none" in report(make_kernel(buffers=()))
    assert "saves" not in text
    over = make_kernel(reads(T), *on_arrays("r"), buffers=(buffer("s", 256), buffer("t", 256)), shared_bytes=1024)
    assert "shared storage saves 1024 bytes" in report(over)


def test_occupancy_is_a_note():
    whole = make_kernel(reads(T), buffers=(buffer("s", 256),), shared_bytes=100_000)
    finding = check_resources(AccessTrace(whole))[-1]
    assert finding.details == {
        "blocks": 1,
        "limited_by": "shared memory",
        "share": round(4 / 64, 3),
        "limits": dict(occupancy(whole).limits),
    }
    assert finding.message == "1 block per SM, 4 warps, 6% of the maximum; limited by shared memory (estimated)"
    assert finding.severity == "note"
    none = check_resources(AccessTrace(attrs.evolve(whole, shared_bytes=200_000)))[-1]
    assert none.severity == "warning" and none.message.startswith("0 blocks per SM")


# ---------------------------------------------------------------------------------------------- occupancy


@pytest.mark.parametrize("name", ["sm_60", "sm_61", "sm_70", "sm_75", "sm_79", "sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("threads", [32, 33, 96, 128, 160, 1024])
def test_occupancy_follows_the_cuda_calculator(name, threads):
    """The minimum over warps, registers by partition, shared memory in units, and blocks."""
    target = next((architecture for architecture in ARCHITECTURES if architecture.name == name), None)
    if target is None:
        target = attrs.evolve(next(finding for finding in ARCHITECTURES if finding.name == "sm_70"), name=name, capability=int(name[3:]))
    warps = -(-threads // 32)
    partitions = 2 if target.capability == 60 else 4
    for registers in (0, 1, 8, 9, 32, 33, 64, 128, 255):
        for shared in (0, 1, 255, 256, 1024, 1025, 16384, target.shared_per_block):
            whole = make_kernel(reads(T), threads=threads, architecture=target, shared_bytes=shared)
            result = occupancy(whole, registers)
            each = -(-max(registers, 1) * 32 // 256) * 256
            limits = {
                "threads": target.threads_per_sm // 32 // warps,
                "registers": target.registers_per_sm // partitions // each * partitions // warps,
                "blocks": target.blocks_per_sm,
            }
            if shared:
                unit, own = (128, 1024) if target.capability >= 80 else (256, 0)
                limits["shared memory"] = target.shared_per_sm // (-(-(shared + own) // unit) * unit)
            assert dict(result.limits) == limits
            assert result.blocks == min(limits.values()) == limits[result.limited_by] and result.warps == result.blocks * warps
            assert result.share == result.warps / (target.threads_per_sm // 32)


def test_lacking_returns_errors_only():
    assert resource_errors(make_kernel(writes(T), shared_bytes=4096 * 4)) == ()
    assert [finding.message for finding in resource_errors(make_kernel(writes(0), threads=1025, shared_bytes=4096 * 4))] == [
        "1025 threads in a block, but sm_80 has at most 1024"
    ]
    (finding,) = resource_errors(make_kernel(writes(T), shared_bytes=100))
    assert "the kernel requests 100" in finding.message
    (finding,) = resource_errors(exchanged((256, 240), (128, 16)))
    assert finding.severity == "error" and "which role 1 violates" in finding.message
    assert resource_errors(make_kernel(writes(0), threads=33, shared_bytes=4096 * 4)) == (), "a warning is not an error"


def test_report_computes_occupancy_from_measured_registers():
    whole = make_kernel(reads(T), threads=256, buffers=(buffer("r", 8, memory=RF),))
    assert "occupancy: 8 blocks per SM, 64 warps, 100% of the maximum (estimated)" in report(whole)
    measured = report(whole, Measured(128))
    assert "occupancy: 2 blocks per SM, 16 warps, 25% of the maximum\n" in measured
    assert "limited by registers; blocks by resource: threads 8, registers 2, blocks 32" in measured


@pytest.mark.parametrize(("elements", "local"), [(255, False), (256, True)])
def test_report_names_arrays_in_local_memory(elements, local):
    assert ("r is in local memory" in report(make_kernel(buffers=(buffer("r", elements, memory=RF),)))) == local


def test_occupancies_are_values():
    """They are hashable, and their repr omits the limits by resource."""
    first, second = occupancy(make_kernel(threads=128), 32), occupancy(make_kernel(threads=128), 32)
    assert {first: 1}[second] == 1 and "limits" not in repr(first) and first.limits == second.limits


# ---------------------------------------------------------------------------------------------- complete reports


def kernel_with_arrays(threads=128, resident=0, big=300):
    """A kernel with arrays in shared memory, in registers, and one too large for them."""
    placed = lambda name, shape, offset, dtype: attrs.evolve(local(name, shape, SH, dtype), offset=offset)
    arrays = local("r", (5, 4), RF), local("h", (6,), RF, float16), local("big", (big,), RF)
    buffers = (placed("s", (64, 4), 0, float32), placed("t", (64,), 1024, float16), *arrays)
    buffers = tuple(
        attrs.evolve(placed_buffer, tensor=attrs.evolve(placed_buffer.tensor, origin=f"line {placed_buffer.name}"))
        for placed_buffer in buffers
    )
    return making.evolved(kernel(*on_arrays("r", "h"), threads=threads, buffers=buffers, shared_bytes=1152), resident=resident)


ARRAYS = """\
  r         20 registers  float32 5 x 4, over the threads         line r
  h          3 registers  float16 6, over the threads             line h
"""
REST = """\
  big is in local memory: 1200 bytes per thread  line big
"""
SHARED_LINES = """\
shared memory: 1152 of 166912 bytes per block
  s  1024 bytes  float32 64 x 4  line s
  t   128 bytes  float16 64      line t
"""


def lines(text):
    """The lines without the spaces that align columns."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("measured", "head", "rest", "spills", "occupied"),
    [
        (
            None,
            "registers: about 40 per thread, of 255",
            "  the rest  17 registers  addresses, counters: an estimate",
            [],
            ["occupancy: 12 blocks per SM, 48 warps, 75% of the maximum (estimated)", 12],
        ),
        (
            Measured(400),
            "registers: 400 per thread, of 255 (about 40 expected)",
            "  the rest  377 registers  indices, pointers, counters, temporaries",
            ["spills: none"],
            ["occupancy: 1 block per SM, 4 warps, 6% of the maximum", 1],
        ),
        (
            Measured(22, 8, 4, 1200),
            "registers: 22 per thread, of 255 (about 40 expected)",
            "  the rest  -1 registers  not all arrays are live at the same time",
            [
                "spills: 8 bytes per thread stored, 4 loaded (1200 bytes of local memory)",
                "  to reduce: smaller tiles for Warp or Lane, more threads, fewer stages in registers, or fewer resident blocks",
            ],
            ["occupancy: 16 blocks per SM, 64 warps, 100% of the maximum", 21],
        ),
    ],
)
def test_complete_reports(measured, head, rest, spills, occupied):
    first = "k for sm_80: 128 threads per block, 4 warps"
    what = "registers" if occupied[1] < 16 else "threads"
    last = f"  limited by {what}; blocks by resource: threads 16, registers {occupied[1]}, blocks 32, shared memory 77"
    wanted = "\n".join([first, head, ARRAYS + rest, REST + "\n".join([*spills, SHARED_LINES + occupied[0], last])])
    assert lines(report(kernel_with_arrays(), measured)) == lines(wanted)


def test_complete_findings():
    """Each finding has its counts and its limit."""
    findings = [
        (finding.severity, finding.buffer, finding.message, finding.at, dict(finding.details))
        for finding in check_resources(AccessTrace(kernel_with_arrays()))
    ]
    limits = {"threads": 16, "registers": 12, "blocks": 32, "shared memory": 77}
    shared = {"bytes": 1152, "limit": 166912, "buffers": {"s": 1024, "t": 128}, "origins": {"s": "line s", "t": "line t"}}
    numbers = {"registers": 40, "limit": 255, "arrays": {"r": 20, "h": 6, "big": 300}, "by_buffer": {"r": 20, "h": 3}, "spilled": 0}
    assert findings == [
        ("note", None, "128 threads in a block, 4 warps", None, {"threads": 128, "limit": 1024}),
        ("note", None, "1152 of 166912 bytes of shared memory: s 1024, t 128", None, shared),
        (
            "warning",
            "big",
            "big has 300 elements per thread: it is placed in local memory, not in registers",
            "line big",
            {"elements": 300, "limit": 255},
        ),
        ("note", None, "about 40 registers per thread (r 20, h 3, the rest 17)", None, numbers),
        (
            "note",
            None,
            "12 blocks per SM, 48 warps, 75% of the maximum; limited by registers (estimated)",
            None,
            {"blocks": 12, "limited_by": "registers", "share": 0.75, "limits": limits},
        ),
    ]


@pytest.mark.parametrize(
    ("resident", "big", "text"),
    [
        (0, 255, "255 registers per thread (r 20, h 3, big 255, less 31 in local memory, the rest 8): the arrays leave too few of the 255 available; about 31 will spill"),
        (0, 208, "248 registers per thread (r 20, h 3, big 208, the rest 17)"),
        (1, 255, "255 registers per thread (r 20, h 3, big 255, less 31 in local memory, the rest 8): the arrays leave too few of the 255 available; about 31 will spill"),
        (5, 70, "96 registers per thread (r 20, h 3, big 70, less 5 in local memory, the rest 8): the arrays leave too few of the 96 that 5 blocks of 128 threads leave per thread; about 5 will spill"),
        (5, 49, "88 registers per thread (r 20, h 3, big 49, the rest 16)"),
    ],
)  # fmt: skip
def test_complete_register_messages(resident, big, text):
    """The finding has the origin of the largest array."""
    whole = kernel_with_arrays(resident=resident, big=big)
    whole = attrs.evolve(whole, body=on_arrays("r", "h", "big"))
    finding = check_resources(AccessTrace(whole))[2]
    assert (finding.message, finding.severity) == (f"about {text}", "warning" if "spill" in text else "note")
    assert finding.at == ("line big" if "spill" in text else None)
    line = report(whole).splitlines()[1]
    total, most = text.split()[0], {0: 255, 1: 255, 5: 96}[resident]
    assert line == f"registers: about {total} per thread, of {most}" + (f"; {text.split('; ')[1]}" if "spill" in text else "")
