"""Element indices that may need more than 64 bits: both sides of the limit, and the messages."""

import attrs
import making
import pytest
from touching import Engine, buffer, kernel, reads, writes

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.index_width import beyond_64_bits
from fireiron.values.expr import Var, as_expr
from fireiron.values.tensor import Mode, Tensor

U, V = Var("u", 1, 1 << 31, 1, True), Var("v", 1, 1 << 31, 1, True)
LOW = Var("low", -(1 << 31), 5, 1, True)


def messages_of_access(*body, shape=(U,), memory=GL, symbols=(U, V), **options):
    tensor = Tensor("s", tuple(map(as_expr, shape)), float32, memory, ColMajor)
    storage = tensor.storage()
    array = making.buffer(tensor, storage, storage.extent, written=True)
    return [finding.message for finding in beyond_64_bits(AccessTrace(kernel(*body, buffers=(array,), symbols=symbols, **options)))]


@pytest.mark.parametrize(
    ("place", "term"),
    [
        (U * V, None),
        (U * V * 2, "u * v * 2"),
        (U * V + U + V, None),
        (U * V * -2, "u * v * -2"),
        (U * (1 << 31), None),
        (U * (1 << 32), f"u * {1 << 32}"),
        (U * ((1 << 32) - 1), None),
        (LOW * U * 2, "low * u * 2"),
        (LOW * U, None),
        (U * V * V, "u * v * v"),
        (U * V * 2 // 3, "u * v * 2"),
        ((U * V * 2 % 7) * 3 + 1, "u * v * 2"),
        (U * V * V % (U * V * 2), "u * v * v"),
    ],
    ids=str,
)
def test_products_that_need_more_than_64_bits(place, term):
    messages = messages_of_access(reads(place))
    assert messages == (
        [f"s: an element index contains {term} and may need more than 64 bits: bound sym('u', high={1 << 31}), or less"] if term else []
    )


def test_each_global_array_is_reported_once():
    wide = U * V * 2
    assert len(messages_of_access(reads(wide), writes(wide))) == 1
    assert len(messages_of_access(reads(0), writes(wide))) == 1, "only the second access"
    assert messages_of_access(reads(wide), memory=GL, symbols=()) == [], "without run-time sizes every index fits"
    assert messages_of_access(reads(wide, instruction=Engine())) == [], "TMA uses coordinates"
    assert [
        finding.severity for finding in beyond_64_bits(AccessTrace(kernel(reads(wide), buffers=(buffer("s", 4),), symbols=(U, V))))
    ] == []
    two = AccessTrace(
        kernel(reads(wide), reads(wide, name="t"), buffers=(buffer("s", 4, memory=GL), buffer("t", 4, memory=GL)), symbols=(U, V))
    )
    first, second = beyond_64_bits(two)
    assert (first.buffer, second.buffer, first.kind, first.severity, first.at) == ("s", "t", "bounds", "error", "hand.py:1")
    assert first.access == "s read by step Move(1,1)(RF,SH)(Thread)"


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ((U, V, 5), {"u": 29, "v": 29}),
        ((V, U, 4), {"u": 29, "v": 29}),
        ((U, V, 1), {"u": 30, "v": 30}),
        ((U, V, 64), {"u": 27, "v": 27}),
        ((U, 3, 1 << 40), {"u": 20}),
        ((U, 1 << 40, 1 << 40), {"u": 0}),
        ((U + 0, U, V), {"u": 30, "v": 30}),
    ],
)
def test_proposed_bounds_are_sufficient(shape, bounds):
    """The proposed bits of all sizes together fit, in addition to the known factors."""
    access = making.access(
        "s", (as_expr(0), as_expr(0), U * V * 2), tuple((Mode(1, 1),) for _ in range(3)), (None,) * 3, False, unit_modes=((),) * 3
    )
    (message,) = messages_of_access(attrs.evolve(reads(0), accesses=(access,)), shape=shape)
    proposal = ", ".join(f"sym('{name}', high={1 << bits})" for name, bits in bounds.items())
    assert message.endswith(f"may need more than 64 bits: bound {proposal}, or less"), message
