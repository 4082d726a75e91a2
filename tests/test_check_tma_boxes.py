"""Boxes of tensor maps, compared with the hardware's order of elements; indices that need many bits."""

import attrs
import making
import numpy as np
import pytest
from ringed import float16_gemm, is_load, product, with_changed
from touching import T, buffer, kernel, reads

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_bounds, check_tma_boxes
from fireiron.check.index_width import beyond_64_bits
from fireiron.check.tma_boxes import _swizzled_bytes
from fireiron.values.expr import Var, as_expr
from fireiron.values.tensor import Tensor


@pytest.fixture(scope="module")
def ringed():
    return product((64, 64, 64), (64, 64))(float16_gemm(64, 64, 192)).program("sm_90a").ir


def with_map(program, number, **changes):
    return with_changed(program, is_load, number, lambda stmt: (attrs.evolve(stmt, tensor_map=attrs.evolve(stmt.tensor_map, **changes)),))


def messages(program):
    return [finding.message for finding in check_tma_boxes(AccessTrace(program))]


@pytest.mark.parametrize("span", [16, 32, 64, 128])
def test_chunks_are_permuted_by_the_swizzle(span):
    """PTX ISA, swizzling modes: in each row of 128 bytes the chunk number is XORed with the row number."""
    pieces = span // 16
    for place in range(0, 4096, 4):
        row, piece = place // 128, place // 16
        expected = (piece // pieces * pieces + (piece % pieces ^ row % pieces)) * 16 + place % 16
        assert int(_swizzled_bytes(np.array([place]), span)[0]) == expected
    assert sorted(_swizzled_bytes(np.arange(2048), span).tolist()) == list(range(2048))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("box", "text"),
    [
        ((64, 32), ""),
        ((64, 16), ""),
        ((64, 1), ""),
        ((64, 256), "a box of the map has 16384 elements, but covers 4096 of the 4096 elements of the tile"),
        ((64, 48), "a box of the map has 3072 elements"),
        ((64, 257), "the boxes of its map have (64, 257) elements"),
        ((0, 64), "the boxes of its map have (0, 64) elements"),
        ((257, 64), "the boxes of its map have"),
        ((4, 64), "rows of 8 bytes"),
        ((12, 64), "rows of 24 bytes"),
        ((128, 32), "rows of 256 bytes, swizzled in spans of 128 bytes"),
        ((64, 64, 1), "boxes of (64, 64, 1)"),
        ((64,), "boxes of (64,)"),
    ],
)
def test_boxes(ringed, number, box, text):
    texts = messages(with_map(ringed, number, box=box))
    assert len(texts) == bool(text) and all(text in message for message in texts), texts


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (64, "swizzled in spans of 64"),
        (32, "swizzled in spans of 32"),
        (16, "at byte"),
        (48, "swizzled in spans of 48"),
        (256, "spans of 256"),
    ],
)
def test_spans(ringed, span, text):
    texts = messages(with_map(ringed, 0, span=span))
    assert len(texts) == bool(text) and all(text in message for message in texts), texts


def test_order_and_array(ringed):
    (load, *_) = (stmt for stmt in ir.statements(ringed.body) if is_load(stmt))
    swapped = load.tensor_map.order[::-1]
    assert "is contiguous in the map" in messages(with_map(ringed, 0, order=swapped))[0]
    for order in ((0, 0), (0, 2), (0,)):
        assert f"dimensions {order}" in messages(with_map(ringed, 0, order=order))[0]
    (finding,) = check_tma_boxes(AccessTrace(with_map(ringed, 0, span=16)))
    assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("boxes", "error", load.tensor_map.buffer, load.origin)


def test_message_names_the_first_misplaced_element(ringed):
    """With the address that the hardware gives it, computed here."""
    (message,) = messages(with_map(ringed, 0, span=16))
    (load, *_) = (stmt for stmt in ir.statements(ringed.body) if is_load(stmt))
    near = next(stmt for stmt in load.accesses if stmt.buffer != load.tensor_map.buffer)
    target = ringed.buffer(near.buffer)
    assert f"a swizzle span of 16 bytes, but {target.name} has it at byte" in message
    # Row 1 of a span of 128 bytes is the first with permuted chunks.
    assert "element (0, 1) of the tile" in message and "at byte 128 of" in message and "has it at byte 144" in message


def test_buffers_with_other_storage(ringed):
    """The second stage and the offset count; each shifts readers and hardware equally."""
    name = next(item for item in ir.statements(ringed.body) if is_load(item)).accesses[-1].buffer
    changed = [attrs.evolve(item, offset=item.offset + 16) if item.name == name else item for item in ringed.buffers]
    assert any(name in item for item in messages(attrs.evolve(ringed, buffers=tuple(changed)))), (
        "swizzle spans start at multiples of 128 bytes"
    )
    changed = [attrs.evolve(item, offset=item.offset + 1024) if item.name == name else item for item in ringed.buffers]
    assert messages(attrs.evolve(ringed, buffers=tuple(changed))) == []
    plain = [attrs.evolve(item, storage=attrs.evolve(item.storage, swizzle=None)) if item.name == name else item for item in ringed.buffers]
    assert any("at byte" in item for item in messages(attrs.evolve(ringed, buffers=tuple(plain))))
    short = [attrs.evolve(item, elements=item.elements + 8) if item.name == name else item for item in ringed.buffers]
    assert any("at byte" in item for item in messages(attrs.evolve(ringed, buffers=tuple(short)))), "the second stage starts elsewhere"


# ---------------------------------------------------------------------------------------------- many bits


def array(*shape):
    tensor = Tensor("s", tuple(map(as_expr, shape)), float32, GL, RowMajor)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=True)


def sizes(*bits):
    return tuple(Var(f"N{number}", 1, (1 << each) - 1, 1, True) for number, each in enumerate(bits))


def at_row(first, rank):
    from fireiron.values.tensor import Mode

    access = making.access(
        "s",
        (as_expr(first), *(as_expr(0) for _ in range(rank - 1))),
        ((Mode(1, 1),),) * rank,
        (None,) * rank,
        False,
        unit_modes=((),) * rank,
        origin="mine.py:8",
    )
    return making.execution(spec=Move(1, 1)(GL, RF)(Thread), accesses=(access,), instruction=reads(0).instruction)


@pytest.mark.parametrize(
    ("row", "bits", "wide"),
    [
        (31, (31, 31), False),
        (31, (31, 32), False),
        (31, (31, 33), True),
        (20, (20, 43), False),
        (21, (21, 43), True),
        (3, (3, 31, 31), True),
        (1, (1, 31, 31), False),
    ],
)
def test_indices_that_may_need_more_than_64_bits(row, bits, wide):
    """A row number of `bits` bits times the row sizes: 63 bits are below the limit."""
    symbols = sizes(*bits)
    line = Var("line", 0, (1 << row) - 1)
    program = kernel(loop_over(line, at_row(line, len(bits))), buffers=(array(*symbols),), symbols=symbols)
    findings = list(beyond_64_bits(AccessTrace(program)))
    assert len(findings) == wide
    for finding in findings:
        assert (finding.kind, finding.severity, finding.buffer, finding.at) == ("bounds", "error", "s", "mine.py:8")
        assert "may need more than 64 bits: bound sym('N0', high=" in finding.message and finding.message.endswith(", or less")
        bounds = [int(part.partition(")")[0]) for part in finding.message.split("high=")[1:]]
        assert np.prod([float(each) for each in bounds]) < 2.0**63, "the proposed sizes fit"


def loop_over(var, *body):
    from touching import loop

    return loop(var.high + 1, *body, var=var)


def test_each_array_is_reported_once_and_tma_uses_coordinates():
    symbols = sizes(31, 33)
    line = Var("line", 0, (1 << 31) - 1)
    step = at_row(line, 2)
    twice = kernel(loop_over(line, step, at_row(line, 2)), buffers=(array(*symbols),), symbols=symbols)
    assert len(list(beyond_64_bits(AccessTrace(twice)))) == 1
    from touching import Engine

    engine = kernel(loop_over(line, attrs.evolve(step, instruction=Engine())), buffers=(array(*symbols),), symbols=symbols)
    assert list(beyond_64_bits(AccessTrace(engine))) == []
    assert list(beyond_64_bits(AccessTrace(kernel(reads(T), buffers=(buffer("s", 64),), symbols=symbols)))) == []
    assert list(beyond_64_bits(AccessTrace(kernel(reads(T * (1 << 60)), buffers=(buffer("s", 64, memory=GL),))))) == [], (
        "without run-time sizes"
    )
    assert any("more than 64 bits" in finding.message for finding in check_bounds(AccessTrace(twice)))
