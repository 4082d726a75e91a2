"""Expressions as text, and their parser, which evaluates no other text."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from fireiron.errors import StoreError
from fireiron.refine.permute import UID
from fireiron.values.expr import Const, Expr, Var, all_of, any_of, as_expr, equal, hilbert, minimum
from fireiron.values.trees import expression_tree


def expression_text(value: Expr) -> int | str:
    """Return an expression as text, or as an integer if it is one; `uid` is the symbol of a `swizzle`."""
    return value.value if isinstance(value, Const) else repr(value).replace(repr(UID), "uid")


def expression(value: Any) -> Expr:
    """Return the expression of a text made by `expression_text`. Raises: `StoreError` for any other text."""
    if type(value) is int:
        return Const(value)
    if not isinstance(value, str):
        raise StoreError("an expression is needed: an integer or a text", got=value)
    if not re.fullmatch(r"[\w\s'(),+*/%&|^<-]+", value) or re.search(r"(?<!\w)\d+[^\W\d]", value):
        raise StoreError("this is not an expression", got=value)
    try:
        return as_expr(_built(expression_tree(value)))
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        raise StoreError("this is not an expression", got=value) from None


_OPERATORS: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip


def _built(node: ast.AST) -> Expr:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return Const(value)
        case ast.Name(id="uid"):
            return UID
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_built(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            result: Expr = _OPERATORS[type(operation)](_built(left), _built(right))
            return result
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            return _built(left) < _built(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _called(name, arguments)
    raise StoreError("this is not an expression", got=ast.unparse(node))


def _called(name: str, arguments: list[ast.expr]) -> Expr:
    match name, arguments:
        case "Var", _:
            return _variable([ast.literal_eval(argument) for argument in arguments])
        case "Const", [argument]:
            return _built(argument)
        case "minimum", [left, right]:
            return minimum(_built(left), _built(right))
        case "hilbert", [number, lines, columns]:
            return hilbert(_built(number), _built(lines), _built(columns))
        case "equal", [left, right]:
            return equal(_built(left), _built(right))
        case "all_of", [ast.Tuple(elts=parts)]:
            return all_of([_built(part) for part in parts])
        case "any_of", [ast.Tuple(elts=parts)]:
            return any_of([_built(part) for part in parts])
    raise StoreError(
        f"expressions have no function {name!r} with {len(arguments)} arguments", legal="Var Const minimum hilbert equal all_of any_of"
    )


def _variable(arguments: list[Any]) -> Var:
    match arguments:
        case [str() as name, int() as low, int() as high, int() as multiple_of, bool() as parameter]:
            whole = not any(isinstance(value, bool) for value in (low, high, multiple_of))
            if whole and name.isidentifier() and multiple_of >= 1 and low <= high:
                return Var(name, low, high, multiple_of, parameter)
    raise StoreError("this is not a variable", got=arguments, legal="Var(name, low, high, multiple_of, parameter)")
