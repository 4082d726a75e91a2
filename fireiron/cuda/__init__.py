"""Kernel IR to CUDA C++ that an expert would sign: names from the tree, addresses named, guards merged, helper functions once.

`frame` prints a kernel, `statements` its statements, `printer` what instructions ask for, `addresses` names where accesses begin,
`expressions` and `types` are the parts, `lines` lays them out. May import: values, specs, ir. The printer decides nothing.
"""

from fireiron.cuda.expressions import expression, is_wide, scaled
from fireiron.cuda.frame import emit, printed
from fireiron.cuda.lines import Line
from fireiron.cuda.types import carrier, converted, literal

__all__ = ["Line", "carrier", "converted", "emit", "expression", "is_wide", "literal", "printed", "scaled"]
