"""Wrong arguments: source texts, and their values. `VALUES` are never legal, `ODD` are unusual."""

import decimal
import fractions
import math
import pathlib
from collections.abc import Iterable

import numpy as np

from fireiron import *

__all__ = [
    "BaseFaults", "Deep", "EqualRaises", "HashRaises", "Int", "Meddler", "ReprRaises", "Text", "cycle", "decimal", "deep", "fractions", "math", "np",
    "pathlib",
]  # fmt: skip


class BaseFaults:
    """Raised by hostile objects: the project must not let it escape."""


class ReprRaises:
    """Its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class EqualRaises:
    """Its comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no ==")

    __hash__ = object.__hash__


class HashRaises:
    """Its hash raises."""

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __repr__(self) -> str:
        return "HashRaises()"


class Meddler:
    """Every attribute exists, and is the object itself."""

    def __getattr__(self, name: str) -> "Meddler":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: object, **named: object) -> "Meddler":
        return self

    def __repr__(self) -> str:
        return "Meddler()"


class Int(int):
    """An integer with a misleading repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr of an integer")

    __str__ = __repr__


class Text(str):
    """A string with a misleading repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr of a text")

    __str__ = __repr__


class Deep(list):
    """A list that claims a length of a million."""

    def __len__(self) -> int:
        return 10**6


def deep(levels: int = 10_000) -> tuple:
    """A deeply nested tuple."""
    nested: tuple = ()
    for _ in range(levels):
        nested = (nested,)
    return nested


def cycle() -> list:
    """A list that contains itself."""
    cyclic: list = []
    cyclic.append(cyclic)
    return cyclic


_DEEP, _CYCLE = deep(), cycle()

SOURCES = (
    "0", "-1", "-2**40", "True", "False", "1.5", "8.0", "-0.0", "math.nan", "math.inf", "1j", "2**31", "2**63", "2**64", "10**400", "None", "...",
    "NotImplemented", "object()", "int", "len", "(lambda: 8)", "(lambda *a, **b: 1 // 0)", "range(8)", "slice(8)", "()", "(8,)", "[8]", "[]", "{}", "{8}",
    "{'m': 8}", "{'type': 'Tile'}", "((),)", "((8, 8), (8,))", "(8, -8)", "iter([8])", "frozenset({8})", "bytearray(b'8')", "b'8'", "''", "' '", "'8'",
    "'a b'", "'\\0'", "'a\\nb'", "'\"'", "\"'\"", "'\\\\'", "'float'", "'__global__'", "'threadIdx'", "'int'", "'for'", "'class'", "'None'", "'é'", "'\\ud800'",
    "'\\u202e'", "'%s%n'", "'{0}'", "'../x'", "'/dev/null'", "'$(true)'", "'x' * 5000", "'(' * 300", "np.int64(8)", "np.int64(-8)", "np.uint8(200)",
    "np.float32(8)", "np.float64('nan')", "np.bool_(True)", "np.array(8)", "np.array([8, 8])", "np.array([[1.0]])", "np.array([None])", "np.zeros(0)",
    "np.datetime64('NaT')", "np.float16", "np.dtype('float32')", "np.iinfo", "decimal.Decimal('NaN')", "decimal.Decimal(8)", "fractions.Fraction(1, 3)",
    "pathlib.Path('x')", "ReprRaises()", "HashRaises()", "EqualRaises()", "Meddler()", "Int(8)", "Text('8')", "Deep([8])", "deep()", "cycle()", "Exception('x')",
    "GL", "SH", "RF", "Block", "Lane", "Kernel", "float16", "float32", "RowMajor", "ColMajor(ld=4096)", "Layout((4, 2), (2, 1))", "Swizzle(2, 0, 3)", "A",
    "sym('S')", "Var('v', 0, 7)", "Const(8)", "MatMul", "Move", "AnySpec", "MatMul(8, 8, 8)", "MatMul(64, 64, 16)(GL, GL, GL)(Kernel)", "Move(8, 8)(GL, SH)(Block)",
    "MatMul.tile(8, 8)", "Move.tile(1, 1).done()", "Init.tile(1, 1).done()", "Tile", "Tile((8, 8))", "Pad(4)", "Unroll", "Unroll()", "FFMA", "FFMA.performs",
    "Strided((4, 8))", "Tunable('bm', 16, 32)", "Tunable('bm', 16, 32) // 2", "ARCHITECTURES[0]", "Strides(m=1, k=ANY)", "Parameter('by')", "FireironError",
)  # fmt: skip
"""Values, as source texts."""

NAMES = {name: value for name, value in globals().items() if not name.startswith("_")}


def _value(source: str) -> object:
    return {"deep()": _DEEP, "cycle()": _CYCLE}.get(source) or eval(source, dict(NAMES))


VALUES: tuple[tuple[str, object], ...] = tuple((source, _value(source)) for source in SOURCES)
"""Source texts and values; `deep()` and `cycle()` are evaluated once."""


def program(text: str, more: Iterable[str] = ()) -> str:
    """A program to paste."""
    return "\n".join(["from fireiron import *", "from attacks.values import *", *more, text])
