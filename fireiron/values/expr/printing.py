"""Expressions as Python source: the readable text, and the `repr` that evaluates."""

from __future__ import annotations

from collections.abc import Callable

from fireiron.values.expr.hilbert import Hilbert
from fireiron.values.expr.lookup import Lookup
from fireiron.values.expr.nodes import All, AnyOf, BitAnd, BitOr, BitXor, Const, Equal, Expr, FloorDiv, Less, Min, Mod, Positive, Sum, Var


def _variable_name(value: Var) -> str:
    return value.name


def _variable_repr(value: Var) -> str:
    return f"Var({value.name!r}, {value.low}, {value.high}, {value.multiple_of}, {value.parameter})"


def _written(value: Expr, outer: int, name: Callable[[Var], str] = _variable_name) -> str:
    """Python source; `outer` is the precedence of the enclosing operator: 1 | 2 ^ 3 & 4 + 5 * // %."""
    if isinstance(value, Const):
        text, precedence = str(value.value), 9 if value.value >= 0 else 4
        if name is _variable_repr and outer == 0:
            return f"Const({value.value})"
    elif isinstance(value, Var):
        return name(value)
    elif isinstance(value, Positive):
        return f"assume_positive({_written(value.value, 0, name)})" if name is _variable_repr else _written(value.value, outer, name)
    elif isinstance(value, Lookup) and name is _variable_repr:
        options = f"{', True' if value.promised else ''}{', ends=True' if value.ends else ''}"
        return f"lookup({value.array!r}, {_written(value.index, 0, name)}, {value.most}{options})"
    else:
        text, precedence = _node_text(value, lambda part, level: _written(part, level, name))
    return f"({text})" if precedence < outer else text


def _node_text(value: Expr, show: Callable[[Expr, int], str]) -> tuple[str, int]:
    match value:
        case Sum():
            return _sum_text(value, show)
        case FloorDiv(left=left, right=right):
            return f"{show(left, 5)} // {show(right, 6)}", 5
        case Mod(left=left, right=right):
            return f"{show(left, 5)} % {show(right, 6)}", 5
        case BitAnd(left=left, right=right):
            return f"{show(left, 3)} & {show(right, 4)}", 3
        case BitXor(left=left, right=right):
            return f"{show(left, 2)} ^ {show(right, 3)}", 2
        case BitOr(left=left, right=right):
            return f"{show(left, 1)} | {show(right, 2)}", 1
        case Min(left=left, right=right):
            return f"minimum({show(left, 0)}, {show(right, 0)})", 9
        case Hilbert():
            return f"hilbert({', '.join(show(child, 0) for child in value.children)})", 9
        case Lookup(index=index):
            return f"{value.array}[{show(index, 0)}]", 9
        case Less(left=left, right=right):
            return f"{show(left, 1)} < {show(right, 1)}", 0
        case Equal(left=left, right=right):
            return f"equal({show(left, 0)}, {show(right, 0)})", 9
        case All(conditions=conditions):
            return f"all_of(({', '.join(show(c, 0) for c in conditions)},))", 9
        case AnyOf(conditions=conditions):
            return f"any_of(({', '.join(show(c, 0) for c in conditions)},))", 9
    # a node class that a user defined, printed as a function of its children
    return f"{type(value).__name__}({', '.join(show(child, 0) for child in value.children)})", 9


def _sum_text(value: Sum, show: Callable[[Expr, int], str]) -> tuple[str, int]:
    parts: list[str] = []
    for atoms, coefficient in sorted(value.terms, key=lambda term: -term[1] if term[1] > 0 else -term[1] + 2**70):
        first = 5 if parts or coefficient > 0 else 6  # Python reads -a // b as (-a) // b
        product = " * ".join(show(atom, first if position == 0 else 6) for position, atom in enumerate(atoms))
        size = abs(coefficient)
        text = product if size == 1 else f"{product} * {size}"
        parts.append(("- " if coefficient < 0 else "+ ") + text)
    if value.constant:
        parts.append(f"{'-' if value.constant < 0 else '+'} {abs(value.constant)}")
    if len(parts) == 1 and parts[0].startswith("+ "):
        return parts[0][2:], 5
    text = " ".join(parts)
    return (text[2:] if text.startswith("+ ") else f"-{text[2:]}" if not text.startswith("- -") else text), 4


def text(value: Expr) -> str:
    """The readable text, also the sort key of terms."""
    return _written(value, 0)


def representation(value: Expr) -> str:
    """The `repr`: every variable with its range, so that it evaluates to an equal expression."""
    return _written(value, 0, _variable_repr)
