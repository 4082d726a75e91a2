"""Bind the constructors to the operators and `rebuilt` methods of the nodes."""

from fireiron.values.expr.arithmetic import add, floordiv, mod, mul, subtract
from fireiron.values.expr.bits import bit_and, bit_or, bit_xor
from fireiron.values.expr.conditions import all_of, any_of, equal, less, minimum
from fireiron.values.expr.evaluation import compiled
from fireiron.values.expr.nodes import All, AnyOf, BitAnd, BitOr, BitXor, Equal, FloorDiv, Less, Min, Mod, Rules
from fireiron.values.expr.printing import representation, text


def bind() -> None:
    """Bind the operators and methods of `Expr`, and the constructor of each kind of node.

    Called once, when the package is imported.
    """
    Rules.add = add
    Rules.subtract = subtract
    Rules.mul = mul
    Rules.floordiv = floordiv
    Rules.mod = mod
    Rules.bit_and = bit_and
    Rules.bit_or = bit_or
    Rules.bit_xor = bit_xor
    Rules.less = less
    Rules.text = text
    Rules.representation = representation
    Rules.compiled = compiled

    FloorDiv.build = staticmethod(floordiv)
    Mod.build = staticmethod(mod)
    BitAnd.build = staticmethod(bit_and)
    BitOr.build = staticmethod(bit_or)
    BitXor.build = staticmethod(bit_xor)
    Min.build = staticmethod(minimum)
    Less.build = staticmethod(less)
    Equal.build = staticmethod(equal)
    All.join = staticmethod(all_of)
    AnyOf.join = staticmethod(any_of)
