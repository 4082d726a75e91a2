"""Symbols: sizes that are known at run time; and a test whether generated code may bind a name."""

from __future__ import annotations

import keyword

from fireiron.errors import ArgumentError, shown
from fireiron.values.cuda_names import KEYWORDS
from fireiron.values.expr.nodes import INT_MAX, Var

SYMBOL_MAX = 2**31 - 2**12
"""The default upper bound of a symbol. A size rounded up to a tile still fits 32 bits, so tile counts need no 64-bit divisions."""


def is_cuda_name(name: object) -> bool:
    """Whether generated code may bind a name: an ASCII identifier that is neither a keyword of Python nor of C++."""
    return isinstance(name, str) and name.isidentifier() and name.isascii() and not (keyword.iskeyword(name) or name in KEYWORDS)


def sym(name: str, multiple_of: int = 1, low: int = 1, high: int = SYMBOL_MAX) -> Var:
    """A size or stride known at run time; becomes a kernel parameter `name`.

    Legal when the name is an identifier of Python and C++, `multiple_of >= 1` and `low <= high`.

    >>> M = sym("M", multiple_of=8)
    >>> print((M * 4) % 32)
    0
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ArgumentError(f"sym({shown(name)}): a name must be an identifier", legal="ASCII letters, digits and _", hint='sym("M")')
    if keyword.iskeyword(name) or name in KEYWORDS:
        raise ArgumentError(f"sym({name!r}): {name} is a keyword of Python or C++", hint=f'sym("{name}_size")')
    for label, value in (("multiple_of", multiple_of), ("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"sym({name!r}, {label}={shown(value)}): {label} must be a positive integer")
    if low > high or high > INT_MAX or high // multiple_of * multiple_of < low:
        raise ArgumentError(f"sym({name!r}): no multiple of {multiple_of} between {low} and {high}", legal=f"1 <= low <= high <= {INT_MAX}")
    return Var(name, low, high, multiple_of, True)
