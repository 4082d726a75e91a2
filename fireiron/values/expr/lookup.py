"""Integers that a kernel reads from memory, as expressions: data-dependent sizes or positions, such as the start of a group."""

from __future__ import annotations

from fireiron.errors import ArgumentError
from fireiron.values.expr.nodes import INT_MAX, Atoms, Expr, Var, as_expr, node, range_fields, set_range


@node
class Lookup(Expr):
    """Element number `index` of an array, clamped to `0..most`, so that invalid data cannot exceed the range.

    With `promised`, the elements are in the range, and the kernel does not clamp them. With `ends`, every element that is not in
    `0..most - 1`, also a negative one, is `most`. `table` represents the array, by its name with brackets; evaluation maps it to a function
    of the index.
    """

    table: Expr
    index: Expr
    most: int
    promised: bool = False
    ends: bool = False
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, self.most)

    @property
    def children(self) -> Atoms:
        return (self.table, self.index)

    def rebuilt(self, children: Atoms) -> Expr:
        return Lookup(children[0], children[1], self.most, self.promised, self.ends)

    @property
    def array(self) -> str:
        """The name of the array."""
        assert isinstance(self.table, Var)
        return self.table.name.removesuffix(BRACKETS)


BRACKETS = "[]"
"""The suffix of an array's name if it is a variable of an expression."""


def lookup(array: str, index: Expr | int, most: Expr | int = INT_MAX, promised: bool = False, ends: bool = False) -> Expr:
    """An element of an array of integers, clamped to 0 to `most`; `promised` to be in this range, it is not clamped.

    With `ends`, an element that is not in 0 to `most - 1` is `most`.

    >>> print(lookup("offsets", as_expr(3), 100))
    offsets[3]
    """
    if not array.isidentifier():
        raise ArgumentError(f"lookup({array!r}): not the name of an array", legal="an identifier")
    return Lookup(table(array), as_expr(index), as_expr(most).high, promised, ends)


def table(array: str) -> Var:
    """An array as a variable."""
    return Var(f"{array}{BRACKETS}", 0, 0)


def tables_of(value: Expr) -> set[str]:
    """The names of the arrays that an expression reads."""
    tables = {value.array} if isinstance(value, Lookup) else set()
    return tables.union(*(tables_of(child) for child in value.children)) if value.children else tables


__all__ = ["BRACKETS", "Lookup", "lookup", "table", "tables_of"]
