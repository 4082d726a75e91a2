"""Parse and print the elements of texts: index expressions, names, and items between commas."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from fireiron.errors import FireironError, LayoutError
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.expr import Expr, Var, all_of, any_of, as_expr, assume_positive, constant, equal, hilbert, lookup, minimum
from fireiron.values.indirect import DimIndex, TableIndex
from fireiron.values.layout import Layout, flatten
from fireiron.values.machine import DTYPES, NAMED_MEMORIES, DType, Level, Memory
from fireiron.values.tensor import Dim, Fixed, MatrixLayout, Mode, Tensor, Through, View
from fireiron.values.trees import expression_tree

Symbols: TypeAlias = "Mapping[str, Expr | DType | Memory | Level]"
"""The values of names that Fireiron does not define; the caller that parses a text provides them."""


T = TypeVar("T")


SHORT: Final[Mapping[str, str]] = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i32": "int32", "i8": "int8", "u8": "uint8",
    "e4m3": "float8_e4m3", "e5m2": "float8_e5m2",
}  # fmt: skip
"""The paper's names of element types, and similar ones."""


_OPERATORS: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "minimum": minimum, "equal": equal, "assume_positive": assume_positive,
    "positive": assume_positive, "hilbert": hilbert, "all_of": all_of, "any_of": any_of,
}  # fmt: skip


def read_expression(text: str, symbols: Symbols) -> Expr:
    """The index expression that a text denotes, over the variables in `symbols`; anything else is a `LayoutError`."""
    try:
        return as_expr(_built(expression_tree(text), symbols))
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError):
        raise LayoutError(f"{text.strip()!r} is not an index expression", legal="integers, symbols, + - * // % & | ^ <") from None


def _built(node: ast.AST, symbols: Symbols) -> Any:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return as_expr(value)
        case ast.Name(id=name):
            return named(name, Expr, symbols, (), "an integer nor a known symbol")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_built(operand, symbols)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _OPERATORS[type(operation)](_built(left, symbols), _built(right, symbols))
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            return _built(left, symbols) < _built(right, symbols)
        case ast.Call(func=ast.Name(id=name), args=[ast.Tuple(elts=parts)], keywords=[]) if name in ("all_of", "any_of"):
            return _FUNCTIONS[name]([_built(part, symbols) for part in parts])
        case ast.Call(
            func=ast.Name(id="lookup"), args=[ast.Constant(value=str() as array), index, ast.Constant(value=int() as most)], keywords=[]
        ):
            return lookup(array, _built(index, symbols), most)
        case ast.Call(
            func=ast.Name(id="lookup"),
            args=[ast.Constant(value=str() as array), index, ast.Constant(value=int() as most)],
            keywords=[ast.keyword(arg="ends", value=ast.Constant(value=True))],
        ):
            return lookup(array, _built(index, symbols), most, ends=True)
        case ast.Call(
            func=ast.Name(id="lookup"),
            args=[ast.Constant(value=str() as array), index, ast.Constant(value=int() as most), ast.Constant(value=True)],
            keywords=[],
        ):
            return lookup(array, _built(index, symbols), most, promised=True)
        case ast.Call(
            func=ast.Name(id=("minimum" | "equal" | "assume_positive" | "positive" | "hilbert") as name), args=parts, keywords=[]
        ):
            return _FUNCTIONS[name](*(_built(part, symbols) for part in parts))
    raise LayoutError(f"{ast.unparse(node)!r} is not an index expression", legal="integers, symbols, + - * // % & | ^ <")


def named(name: str, kind: type[T], symbols: Symbols, known: Iterable[T], what: str) -> T:
    """Return the value of a name: one of the symbols, else one of the `known` values."""
    symbol = symbols.get(name)
    if isinstance(symbol, kind):
        return symbol
    known = list(known)
    for value in known:
        if str(getattr(value, "name", value)) == name:
            return value
    given = [symbol for symbol, value in symbols.items() if isinstance(value, kind)]
    raise LayoutError(f"{name!r} is neither {what}", legal=[*given, *(str(getattr(value, "name", value)) for value in known)] or "integers")


_VARIABLE = re.compile(r"Var\('(\w+)'[^()]*\)|Const\((-?[0-9]+)\)")


def expression_text(value: Expr | int) -> str:
    """An expression with variables written by name, including `assume_positive`."""
    number = constant(value)
    return str(number) if number is not None else _VARIABLE.sub(lambda found: found[1] or found[2], repr(value))


def symbols_of(*values: Any) -> dict[str, Expr | DType | Memory | Level]:
    """Return the values that the texts of tensors, views and thread groups name. Raises: `LayoutError` if two have one name."""
    result: dict[str, Expr | DType | Memory | Level] = {}
    for name, value in (pair for dim_value in values for pair in _names_in(dim_value)):
        if result.setdefault(name, value) != value:
            raise LayoutError(f"two values are called {name}: {result[name]!r} and {value!r}", hint="give them different names")
    return result


def _names_in(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Var):
        yield value.name, value
    elif isinstance(value, Expr):
        yield from ((var.name, var) for var in value.variables())
    elif isinstance(value, Level):
        yield f"#{value.label}", value
    elif isinstance(value, (DType, Memory)) and value not in (*DTYPES, *NAMED_MEMORIES):
        yield value.name, value
    elif isinstance(value, Layout):
        yield from _names_in((*flatten(value.shape), *flatten(value.stride)))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _names_in(part)
    elif isinstance(value, (Tensor, View, Dim, Fixed, Mode, MatrixLayout, Through, DimIndex, TableIndex, AffineIndex, DigitTerm)):
        yield from _names_in([getattr(value, field.name) for field in attrs.fields(type(value))])


def pieces(text: str, marks: str) -> list[str]:
    """The text split before each mark that is outside all parentheses and brackets; a comma is dropped.

    >>> pieces("Sw<2,3,3> o [8,64].fp16.SH, 4", ",")
    ['Sw<2,3,3> o [8,64].fp16.SH', ' 4']
    """
    parts, level = [""], 0
    for character in re.findall(r"<[-0-9, ]+>|.", text, re.DOTALL):
        level += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        if level < 0:
            break
        if character in marks and level == 0:
            parts.append("" if character == "," else character)
        else:
            parts[-1] += character
    if level:
        raise LayoutError("parentheses do not match", got=text)
    return parts


def exact(value: T, texts: Iterable[str], read: Callable[[str, Any], T], symbols: Mapping[str, Any] | None = None) -> str:
    """The first of the texts that parses to the value; a `LayoutError` if none does."""
    symbols = symbols_of(value) if symbols is None else symbols
    for text in texts:
        try:
            if read(text, symbols) == value:
                return text
        except FireironError:
            continue
    raise LayoutError("Graphene's notation has no text for this value", got=value)


def dtype_text(dtype: DType) -> str:
    """The name of an element type as the paper writes it."""
    return next((short for short, name in SHORT.items() if name == dtype.name), dtype.name)
