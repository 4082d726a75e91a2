"""Print kernel IR as CUDA C++: names from the tree, named addresses and constants, merged guards, helper functions.

`frame` prints a kernel, `statements` its statements, `printer` serves instructions, `addresses` names base addresses, `constants` numbers,
`reductions` calls functions for shuffles, `outlining` makes repeated statements functions, `expressions` and `types` print the parts,
`lines` lays them out.
May import: values, specs, ir. The printer decides nothing.
"""

from fireiron.cuda.expressions import expression, is_wide, scaled
from fireiron.cuda.frame import emit, printed
from fireiron.cuda.lines import Line
from fireiron.cuda.types import carrier, converted, literal

__all__ = ["Line", "carrier", "converted", "emit", "expression", "is_wide", "literal", "printed", "scaled"]
