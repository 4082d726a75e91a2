"""Print kernel IR as CUDA C++: names from the tree, named addresses and constants, merged guards, helper functions.

`frame` prints a kernel, and `statements` its statements. `printer` prints operands for instructions. `addresses` names base addresses, and
`constants` names numbers. `reductions` replaces shuffles by calls of functions, and `outlining` replaces repeated statements. `expressions`
and `types` print expressions and conversions, and `lines` lays out the lines.
May import: values, specs, ir. The printer makes no decisions about the program.
"""

from fireiron.cuda.expressions import expression, is_wide, scaled
from fireiron.cuda.frame import emit, printed
from fireiron.cuda.lines import Line
from fireiron.cuda.types import carrier, converted, literal

__all__ = ["Line", "carrier", "converted", "emit", "expression", "is_wide", "literal", "printed", "scaled"]
