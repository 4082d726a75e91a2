"""Print and parse kernel-IR values in Python syntax, if Graphene has no notation for them.

The parser never evaluates code.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Mapping
from typing import Any, Final

import attrs

from fireiron.errors import FireironError, LayoutError
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.pointwise import ApproximatePairs, SkipIfIdentity
from fireiron.executable.print_value import PrintValue
from fireiron.executable.thread_move import EvictFirstMove
from fireiron.ir import AT_ONCE, Access, BlockCluster, BlockSet, Mechanism, Piece, TensorMap, mechanisms
from fireiron.ir.lanes import LaneMap
from fireiron.language import former
from fireiron.spec import Kind, Parameter
from fireiron.specs.fused import Fused
from fireiron.values.expr import Const, Expr, constant
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import DTYPES, LEVELS, NAMED_MEMORIES, DType, Level, Memory
from fireiron.values.notation import expression_text, read_expression
from fireiron.values.tensor import ColMajor, MatrixLayout, Mode, RowMajor, Storage, Tensor, UnitMode
from fireiron.values.trees import expression_tree

CONSTRUCTORS: Final[Mapping[str, Any]] = {
    constructor.__name__: constructor
    for constructor in (
        Access, ApproximatePairs, BlockCluster, Const, DType, UnitMode, Fused, Kind, LaneMap, Layout, Level, Memory, MicroKernel, Mode,
        Parameter, BlockSet, Piece, PrintValue, SkipIfIdentity, Storage, EvictFirstMove, Swizzle, Tensor, TensorMap,
    )
}  # fmt: skip
"""The classes that a literal may construct."""

FORMER: Final[Mapping[str, Any]] = {
    **{former_name: CONSTRUCTORS[present] for former_name, present in former.CLASSES.items() if present in CONSTRUCTORS},
    "Peers": BlockSet,
}
"""The same classes, by their names in older texts."""

NAMES: Final[Mapping[str, Any]] = {
    **{str(value): value for value in (*DTYPES, *NAMED_MEMORIES, *LEVELS) if str(value).isidentifier()},
    **{former_name: memory for former_name, name in former.MEMORIES.items() for memory in NAMED_MEMORIES if memory.name == name},
    "ColMajor": ColMajor,
    "RowMajor": RowMajor,
    "inf": float("inf"),
}
"""The values of names in literals. A variable with the same name takes precedence."""


def literal_text(value: Any) -> str:
    """Return the literal of a value.

    Raises: a `LayoutError` if the notation has no literal of its type.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Expr):
        return f"Const({value})" if constant(value) is not None else expression_text(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(literal_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mechanism):
        return f"Mechanism.{value.name}"
    if isinstance(value, (Fused, Layout, Swizzle)):
        return repr(value)
    if isinstance(value, (DType, Memory, Level)) and NAMES.get(str(value)) == value:
        return str(value)
    if isinstance(value, MatrixLayout):
        plain = attrs.evolve(value, leading=None)
        return f"{plain}" if value.leading is None else f"{plain}({literal_text(value.leading)})"
    if CONSTRUCTORS.get(type(value).__name__) is type(value):
        return _call_text(value)
    raise LayoutError(f"Graphene's notation has no literal of type {type(value).__name__}", got=value)


def _call_text(value: Any) -> str:
    """Print the constructor call of a value, without default values and fields that equality ignores."""
    arguments = []
    for field in attrs.fields(type(value)):
        if field.init and field.eq and getattr(value, field.name) != field.default:
            arguments.append(f"{field.alias}={literal_text(getattr(value, field.name))}")
    return f"{type(value).__name__}({', '.join(arguments)})"


def read_literal(text: str, symbols: Mapping[str, Any]) -> Any:
    """Parse a text of `literal_text`.

    Raises: a `LayoutError` if the text is not a literal.
    """
    try:
        return _value_of(expression_tree(text), symbols)
    except FireironError:
        raise
    except (SyntaxError, ValueError, MemoryError, RecursionError, TypeError, AttributeError, KeyError, ArithmeticError) as error:
        raise LayoutError(f"{text.strip()!r} is not a value: {error}", legal=[*CONSTRUCTORS]) from None


def _value_of(node: ast.AST, symbols: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -NAMES["inf"]
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_value_of(part, symbols) for part in parts)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value_of(key, symbols): _value_of(value, symbols) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Attribute(value=ast.Name(id="Mechanism" | "Completion"), attr=name):  # older texts contain `Completion.PRODUCT`
            name = former.MECHANISMS.get(name.lower(), name.lower())
            return {mechanism.name: mechanism for mechanism in (AT_ONCE, *mechanisms.kinds())}[name]
        case ast.Name(id=name) if name in NAMES and name not in symbols:
            return NAMES[name]
        case ast.Call(func=ast.Name(id=("ColMajor" | "RowMajor") as name), args=[leading], keywords=[]):
            return NAMES[name](_value_of(leading, symbols))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=words) if name in CONSTRUCTORS or name in FORMER:
            constructor = CONSTRUCTORS.get(name) or FORMER[name]
            fields = {str(word.arg): _value_of(word.value, symbols) for word in words}
            return constructor(*(_value_of(part, symbols) for part in args), **former.present_fields(constructor.__name__, fields))
    return read_expression(ast.unparse(node), symbols)


__all__ = ["CONSTRUCTORS", "literal_text", "read_literal"]
