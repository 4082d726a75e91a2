"""Injected faults that no static check found at first: TMA boxes, mbarriers of rings with other bytes, registers of roles, reads of
uninitialized shared memory; and the catalog of faults itself.
"""

import contextlib

import attrs
import making
import pytest
from campaign.faults import KINDS, detectors
from campaign.faults.detectors import Slow
from campaign.faults.kernels import Case
from campaign.faults.kind import spots
from ringed import all_of_kind, by_threads, by_warps, float16_gemm, inputs_of, is_load, product, with_changed
from test_check import LISTING_2
from touching import K, T, buffer, i, kernel, loop, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_alignment, check_resources, check_tma_boxes, check_uninitialized_shared, safety
from fireiron.errors import VerificationError
from fireiron.sim import simulate
from fireiron.values.expr import less
from fireiron.values.tensor import Storage

RINGED = product((64, 64, 64), (64, 64), producer=128)(float16_gemm(64, 64, 320)).program("sm_90a").ir


def messages_of(check, faulty):
    """The errors of a check for a kernel."""
    return [one.message for one in check(AccessTrace(faulty)) if one.severity == "error"]


def test_the_catalogue():
    """At least 30 kinds of all three families, each with a unique name and its forms."""
    assert len(KINDS) >= 80 and len({one.name for one in KINDS}) == len(KINDS) and all(one.forms for one in KINDS)
    assert sum(one.about == "synchronization" for one in KINDS) >= 50
    planted = {one.name for one in KINDS if next(one.plant(RINGED), None) is not None}
    assert len(planted) >= 50


def test_a_fault_changes_one_statement_only():
    for spot in spots(RINGED, ir.Acquire):
        faulty = spot.with_one()
        kept, before = all_of_kind(faulty, ir.Acquire), all_of_kind(RINGED, ir.Acquire)
        assert kept == [one for one in before if one is not spot.one]
        assert len(all_of_kind(faulty, ir.Stmt)) == len(all_of_kind(RINGED, ir.Stmt)) - 1


SHORT_LOOPS = {
    "warpgroups": product((64, 64, 64), (64, 64), 4),
    "a warpgroup that produces": product((64, 64, 64), (64, 64), 4, producer=128),
    "warps": by_warps(4),
    "threads": by_threads(4),
}
"""Kernels in which no stage is filled twice, so that wrong ownership happens to cause no race."""


@pytest.mark.parametrize("name", SHORT_LOOPS)
def test_ownership_of_stages_filled_once_is_checked(name):
    """Each synchronization fault at each position: shadow memory reports it exactly if the static check does."""
    spec = float16_gemm(64, 64, 128)
    plain, (arrays, _) = SHORT_LOOPS[name](spec).program("sm_90a").ir, inputs_of(spec)
    case = Case(name, plain, arrays, {}, frozenset(), "")
    clean = detectors.outputs(case, plain, None)
    statically_found = set()
    for kind in KINDS:
        for where, make in kind.plant(plain) if kind.about == "synchronization" else ():
            with contextlib.suppress(VerificationError):
                verdict = detectors.found(case, make(), clean, list(detectors.schedules(1, 4)))
                assert verdict.verifier or bool(verdict.static) == bool(verdict.shadow or verdict.values), (kind.name, where, verdict)
                statically_found |= {kind.name} if verdict.static else set()
    assert len(statically_found) >= 20


# ---------------------------------------------------------------------------------------------- TMA boxes


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"box": (32, 64)}, "at byte"),
        ({"box": (64, 128)}, "a box of the map has 8192 elements"),
        ({"box": (64, 0)}, "the boxes of its map have (64, 0) elements"),
        ({"order": (0, 1)}, "dimension 0 of A is contiguous in the map"),
        ({"order": (1, 1)}, "its map describes A, with dimensions (1, 1)"),
        ({"span": 64}, "in spans of 64 bytes"),
        ({"span": 16}, "a swizzle span of 16 bytes"),
    ],
)
def test_boxes_that_differ_from_their_readers(change, text):
    assert messages_of(check_tma_boxes, RINGED) == []
    faulty = with_changed(RINGED, is_load, 0, lambda one: (attrs.evolve(one, tensor_map=attrs.evolve(one.tensor_map, **change)),))
    (message,) = messages_of(check_tma_boxes, faulty)
    assert text in message


@pytest.mark.parametrize("strides", [(64, 2), (64, 0), (0, 1), (32, 1), (128, 1), (72, 1), (1, 64)], ids=str)
@pytest.mark.parametrize("swizzled", [True, False], ids=["swizzled", "plain"])
@pytest.mark.parametrize("name", ["a_sh", "store_c_sh"])
def test_another_stride_than_the_engine_has_is_an_error(name, strides, swizzled):
    """Also if two elements of the box have one address: the checks report findings, and raise nothing."""

    def restrided(buffer):
        swizzle = buffer.storage.swizzle if swizzled else None
        return attrs.evolve(buffer, storage=Storage(Layout((64, 64), strides), buffer.storage.extent, swizzle))

    faulty = attrs.evolve(RINGED, buffers=tuple(restrided(buffer) if buffer.name == name else buffer for buffer in RINGED.buffers))
    assert any(name in finding.message for finding in safety(faulty)), safety(faulty)


def test_boxes_of_fewer_rows_are_more_boxes():
    halved = with_changed(RINGED, is_load, 0, lambda one: (attrs.evolve(one, tensor_map=attrs.evolve(one.tensor_map, box=(64, 32))),))
    assert messages_of(check_tma_boxes, halved) == []


# ---------------------------------------------------------------------------------------------- barriers and registers


def test_barriers_of_rings_have_bytes_of_their_own():
    (ring,) = RINGED.rings
    assert messages_of(check_alignment, RINGED) == []
    for offset, text in (
        (0, "which overlap a_sh"),
        (ring.offset + 4, "multiples of 8"),
        (ring.offset + 8, "multiples of 8 in the block's"),
    ):
        faulty = attrs.evolve(RINGED, rings=(attrs.evolve(ring, offset=offset),))
        assert any(text in one for one in messages_of(check_alignment, faulty)), offset


@pytest.mark.parametrize(
    ("registers", "text"),
    [
        ((240, 100), "multiples of 8 from 24 to 256, which producer violates"),
        ((264, 40), "which consumers violates"),
        ((248, 0), "a count for every role, and roles of whole warpgroups"),
        ((24, 40), "fewer for the producer, at least as many for the others"),
        ((240, 40), "at most"),
    ],
)
def test_registers_that_roles_exchange(registers, text):
    (place,) = (at for at, one in enumerate(RINGED.body) if isinstance(one, ir.Roles))

    def given(*numbers):
        roles = [attrs.evolve(role, registers=number) for role, number in zip(RINGED.body[place].roles, numbers, strict=True)]
        return making.evolved(RINGED, resident=2, body=(*RINGED.body[:place], making.roles(tuple(roles)), *RINGED.body[place + 1 :]))

    assert messages_of(check_resources, RINGED) == [] and messages_of(check_resources, given(*registers))
    assert any(text in one for one in messages_of(check_resources, given(*registers))), messages_of(check_resources, given(*registers))


# ---------------------------------------------------------------------------------------------- uninitialized shared memory

BARRIER = making.barrier(ir.BLOCK_SCOPE)
HALF = less(T, 64)


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ((writes(T), BARRIER, reads(127 - T)), True),
        ((reads(T),), False),
        ((reads(T), BARRIER, writes(T)), False),
        ((writes(T), BARRIER, reads(T + 1)), False),
        ((writes(T, active=HALF), BARRIER, reads(T)), False),
        ((writes(T, active=HALF), BARRIER, reads(T, active=HALF)), True),
        ((loop(4, BARRIER, reads(T), BARRIER, writes(T)),), False),
        ((loop(4, writes(i * 128 + T)), BARRIER, loop(4, reads(i * 128 + T))), True),
        ((loop(3, writes(i * 128 + T)), BARRIER, loop(4, reads(i * 128 + T))), False),
        ((loop(8, BARRIER, writes(i % 4 * 128 + T), BARRIER, reads(i % 4 * 128 + T), period=4),), True),
        ((loop(8, BARRIER, writes(i % 4 * 128 + T), BARRIER, reads((i + 1) % 4 * 128 + T), period=4),), False),
        ((loop(8, BARRIER, writes(T, active=less(0, i)), BARRIER, reads(T)),), False),
        ((loop(8, BARRIER, writes(T, active=less(i, 1)), BARRIER, reads(T)),), True),
        ((loop(K, BARRIER, writes(T)), BARRIER, reads(T)), False),
        ((writes(T), loop(K, BARRIER, reads(T))), True),
    ],
)
def test_shared_memory_before_its_first_write(body, right):
    faulty = kernel(*body, buffers=[buffer("s", 640)], symbols=(K,))
    assert (messages_of(check_uninitialized_shared, faulty) == []) == right


def test_elements_beyond_a_buffer_are_not_its_own():
    assert messages_of(check_uninitialized_shared, kernel(writes(T), BARRIER, reads(T + 600), buffers=[buffer("s", 640)])) != []
    assert messages_of(check_uninitialized_shared, kernel(writes(T + 600), BARRIER, reads(T + 640), buffers=[buffer("s", 640)])) == []


def test_a_ring_is_filled_by_its_producer():
    assert messages_of(check_uninitialized_shared, RINGED) == []
    (message,) = messages_of(check_uninitialized_shared, with_changed(RINGED, is_load, 0, lambda one: ()))
    assert "a_sh[0]" in message and "before any write to this shared memory" in message


@pytest.mark.parametrize("number", range(2))
def test_a_copy_left_out_is_found(number):
    lowered = LISTING_2(MatMul(16, 16, 8)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert messages_of(check_uninitialized_shared, lowered) == []
    copies = [one for one, _ in ir.execs(lowered.body) if lowered.buffer(one.accesses[-1].buffer).memory.of_block]
    faulty = with_changed(lowered, lambda one: one is copies[number], 0, lambda one: ())
    assert any("before any write" in one for one in messages_of(check_uninitialized_shared, faulty))


def test_the_schedule_of_a_caller_reaches_the_warps():
    """The given generator, and no other, decides which warp continues."""
    calls = []

    class Counted(Slow):
        def randrange(self, *arguments):
            calls.append(arguments)
            return super().randrange(*arguments)

    arrays, _ = inputs_of(RINGED.spec)
    simulate(RINGED, arrays, order=Counted(1))
    assert calls
