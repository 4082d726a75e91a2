"""Printed literals, conversions and functions of all element types, as a readable table, `goldens/types.txt`."""

import itertools
import math
from pathlib import Path

from goldens.readable import differences

from fireiron.cuda.types import APPROXIMATE, COMPOSED, FUNCTIONS, applied, approximate, composed, converted, literal, widened
from fireiron.ir.text import Function
from fireiron.values.document import laid_out
from fireiron.values.machine import DTYPES, float32, float64, int32

TABLE = Path(__file__).resolve().parent / "goldens" / "types.txt"
NUMBERS = (
    0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3, 2.5, 1e-3, 65504.0, 1e15, 1e16, 1e17, 3.4028234663852886e38, 1e39, 1.17549435e-38, 1e-45, 5e-324, math.inf, -math.inf,
    math.nan,
)  # fmt: skip
INTEGERS = (0, 1, -1, 255, 2**31 - 1, -(2**31) + 1, -(2**31))


def shown(text):
    return " ".join(line.strip() for line in laid_out(text, 1000))


def written(function: Function):
    return " ".join(line.strip() for line in function.text(function.name))


def lines():
    for dtype in DTYPES:
        numbers = NUMBERS if dtype.kind == "float" else INTEGERS
        yield from (f"{dtype} {number!r}: {literal(number, dtype)}" for number in numbers)
    for source, target in itertools.product(DTYPES, repeat=2):
        yield f"{source} to {target}: {shown(converted('x', source, target))}"
    for name, dtype in itertools.product((*FUNCTIONS, "relu"), (float32, float64)):
        count = 2 if name in ("max", "min") else 1
        yield f"{name} of {dtype}: {shown(applied(name, dtype, *'xy'[:count]))}"
    yield f"max of int32: {shown(applied('max', int32, 'x', 'y'))}"
    yield from (written(composed(name, dtype)) for name in COMPOSED for dtype in (float32, float64))
    yield from (written(approximate(name)) for name in APPROXIMATE)
    yield from (written(widened(dtype)) for dtype in DTYPES if dtype.kind == "int" and dtype.bits == 8)


def test_the_table_equals_the_printed_text():
    changes = differences(TABLE, "\n".join(lines()))
    assert not changes, changes
