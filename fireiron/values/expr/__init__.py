"""Index expressions: exact integer arithmetic with ranges; smart constructors simplify, nothing is approximate.

Every expression knows the closed interval `[low, high]` of its values and a `factor` that divides all of them.
Division and remainder are Python's (floor), exact for all integers. Polynomials over atoms are the normal form:
two expressions with equal polynomials are equal values.

>>> lane = Var("lane", 0, 31)
>>> print((lane // 4) * 4 + lane % 4)
lane
>>> print(((lane >> 1) & 7) | (lane & 0x30) | ((lane & 1) << 3))
lane // 16 * 16 + lane % 2 * 8 + lane // 2 % 8
"""

from fireiron.values.expr.arithmetic import add, ceildiv, floordiv, mod, mul, subtract
from fireiron.values.expr.bits import bit_and, bit_or, bit_xor
from fireiron.values.expr.conditions import all_of, any_of, conjuncts, equal, less, minimum
from fireiron.values.expr.evaluation import compiled, source
from fireiron.values.expr.hilbert import Hilbert, hilbert
from fireiron.values.expr.lookup import BRACKETS, Lookup, lookup, table, tables_of
from fireiron.values.expr.nodes import (
    FALSE,
    INT_MAX,
    ONE,
    TRUE,
    ZERO,
    All,
    AnyOf,
    Atoms,
    BitAnd,
    BitOr,
    BitXor,
    Const,
    Equal,
    Expr,
    FloorDiv,
    Less,
    Min,
    Mod,
    Positive,
    Sum,
    Terms,
    Var,
    as_expr,
    assume_positive,
    constant,
    possible_bits,
    replaced,
)
from fireiron.values.expr.operators import bind
from fireiron.values.expr.symbols import SYMBOL_MAX, is_cuda_name, sym

bind()

__all__ = [
    "BRACKETS",
    "FALSE",
    "INT_MAX",
    "ONE",
    "SYMBOL_MAX",
    "TRUE",
    "ZERO",
    "All",
    "AnyOf",
    "Atoms",
    "BitAnd",
    "BitOr",
    "BitXor",
    "Const",
    "Equal",
    "Expr",
    "FloorDiv",
    "Hilbert",
    "Less",
    "Lookup",
    "Min",
    "Mod",
    "Positive",
    "Sum",
    "Terms",
    "Var",
    "add",
    "all_of",
    "any_of",
    "as_expr",
    "assume_positive",
    "bit_and",
    "bit_or",
    "bit_xor",
    "ceildiv",
    "compiled",
    "conjuncts",
    "constant",
    "equal",
    "floordiv",
    "hilbert",
    "is_cuda_name",
    "less",
    "lookup",
    "minimum",
    "mod",
    "mul",
    "possible_bits",
    "replaced",
    "source",
    "subtract",
    "sym",
    "table",
    "tables_of",
]
