"""A permutation of the units: `swizzle` on a tile (Fireiron, section 4.2)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from fireiron.errors import ArgumentError, DecompositionError, FireironError, call_site
from fireiron.frozen import frozen
from fireiron.language.tile_assignment import UNIT, Renumbering
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.values.expr import Expr, as_expr
from fireiron.values.machine import as_integer
from fireiron.values.trees import expression_tree

UID = UNIT
"""The symbol for the number of a unit in the expression of a `swizzle`."""

MOST_TEXT = 2000
"""Maximum length of the text of a `swizzle`, in characters."""

MOST_NODES = 400
"""Maximum number of nodes of an expression, so that recursion over it does not overflow the stack."""

MOST_BITS = 62
"""Maximum bits of intermediate values, so that NumPy and C++ compute them exactly."""


def check_permutation(value: Any) -> None:
    """Refuse a value that is not an expression over `uid`, or that NumPy and C++ cannot evaluate exactly."""
    if not isinstance(value, Expr):
        raise DecompositionError("swizzle: not an expression over uid", got=value, legal="lambda uid: uid ^ 1", at=call_site())
    waiting, visited = [value], 0
    while waiting:
        node = waiting.pop()
        visited += 1
        waiting += node.children
        if visited > MOST_NODES:
            raise DecompositionError(f"swizzle: the expression has more than {MOST_NODES} nodes", at=call_site())
        if max(abs(node.low), abs(node.high)).bit_length() > MOST_BITS:
            raise DecompositionError(f"swizzle: an intermediate value needs more than {MOST_BITS} bits", at=call_site())
    foreign = sorted(var.name for var in value.variables() if var.name != "uid")
    if foreign:
        raise DecompositionError(f"swizzle({value}): {', '.join(foreign)} is unknown here", legal="uid", at=call_site())


@frozen
class Permuted(Renumbering):
    """Give unit `uid` the number that an expression over `uid` specifies."""

    name: ClassVar[str] = "swizzle"
    permutation: Expr

    def __str__(self) -> str:
        return f"swizzle({self.permutation})"

    def image(self, unit: Expr) -> Expr:
        symbol = next((var for var in self.permutation.variables() if var.name == "uid"), None)
        return self.permutation if symbol is None else self.permutation.substitute({symbol: unit})


@frozen
class Permute(Refinement):
    """Assign to unit `uid` the tile that the expression specifies: `swizzle` on a tile (Fireiron, section 4.2).

    Legal if the expression permutes the units.
    rewrite: unit u: tile u --> unit u: tile permutation(u)

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).swizzle(lambda uid: uid ^ 1)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_tile" in line]
    ['const int block_tile = 1 ^ blockIdx.x;']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    permutation: Expr

    def __attrs_post_init__(self) -> None:
        check_permutation(self.permutation)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Permute]:
        yield from (Permute(UID ^ bit) for bit in (1, 2, 3))
        yield Permute(UID ^ UID // 2 % 2)

    def plan(self, plan: Any) -> Any:
        return plan.with_order(Permuted(self.permutation))

    def __str__(self) -> str:
        return f"swizzle({str(self.permutation)!r})"


@verb()
def swizzle(permutation: Expr | str | int | Callable[[Expr], Expr | int]) -> Permute:
    """Assign tile `permutation(uid)` to unit `uid`.

    Args: permutation: an expression over `uid`, its text, or a callable that receives the symbol.
    Legal on a tile that is distributed with `to`, if the expression permutes the units.
    rewrite: unit u: tile u --> unit u: tile permutation(u)
    """
    return Permute(_permutation(permutation))


def _permutation(value: Any) -> Any:
    """Convert a callable, a text or an integer to an expression over `uid`, which `Permute` checks."""
    if callable(value) and not isinstance(value, Expr):
        value = _applied(value)
    if isinstance(value, str):
        value = parse_permutation(value)
    number = as_integer(value)
    return value if number is None else as_expr(number)


def _applied(function: Callable[[Expr], Any]) -> Any:
    try:
        return function(UID)
    except FireironError as error:
        raise error.located(at=call_site()) from None
    except (TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise DecompositionError(
            f"swizzle: the callable cannot be applied to the symbol uid: {error}", legal="+ - * // % & | ^ << >>", at=call_site()
        ) from error


def parse_permutation(text: str) -> Expr:
    """Parse an expression over `uid`: integers, `+ - * // % & | ^ << >>`, masks such as `~7`, and parentheses.

    Raises: ArgumentError if the text is not such an expression, or is too long.
    """
    operators: Mapping[type, Callable[[Any, Any], Any]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
        ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift,
        ast.RShift: operator.rshift,
    }  # fmt: skip

    def build(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in operators:
            return operators[type(node.op)](build(node.left), build(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and as_integer(node.operand.value) is not None:
            number = operator.index(node.operand.value)  # type: ignore[arg-type]
            if isinstance(node.op, (ast.USub, ast.Invert)):
                return as_expr(-number if isinstance(node.op, ast.USub) else ~number)
        if isinstance(node, ast.Name) and node.id == "uid":
            return UID
        if isinstance(node, ast.Constant) and as_integer(node.value) is not None:
            return as_expr(node.value)
        raise ArgumentError(f"swizzle({text[:60]!r}): cannot be read", legal="uid, integers, + - * // % & | ^ << >> ~7 ( )", at=call_site())

    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(f"swizzle: the permutation is not a text of at most {MOST_TEXT} characters", got=str(text)[:80], at=call_site())
    try:
        return build(expression_tree(text))  # type: ignore[no-any-return]
    except FireironError as error:
        raise error.located(at=call_site()) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArgumentError(
            f"swizzle({text[:60]!r}): not an expression", legal="uid, integers, + - * // % & | ^ << >> ~7 ( )", at=call_site()
        ) from None


__all__ = ["Permute"]
