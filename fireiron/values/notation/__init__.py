"""Tensors, views and groups of threads in Graphene's notation, and back: `%A:[16,16]:[1,16].fp16.SH`, `#warp:[32].thread`.

A text of a tensor is its name, its sizes and strides by dimension, its element type, its memory:

    tensor   ["%" name ":"] ["Sw<" bits "," base "," shift "> o"] shapes "." type ["." memory] ["{" option, ... "}"]
    shapes   shape {"." shape}                                    tiles within tiles, the outermost first
    shape    "[" sizes "]" [":" "[" strides "]"]                  or as in the paper, "[" sizes ":" strides "]"
    view     tensor "[" numeral, ... "]" ["{" "copy=" expression, "order=" axis ... "}"]
    tile     tensor "[" ["#" | "@"] expression, ... "]" ...       brackets after nested shapes: a position in each outer one
    numeral  ("_" | free | "1" | "0") {"#" digit | "@" digit} ["<" bound]
    digit    size ":" stride "(" index ")"
    group    ["#" label ":"] shape ".thread" (or ".block")

A numeral specifies the coordinates of a dimension of a view: `_` all of them, `(4,2):(1,16)` those that two free digits count, `1` one, and
`0` that the view does not have the dimension. Digits after it are fixed: `#` marks the number of a unit, `@` that of an iteration. A view
has the tensor's dimensions in their order, or in the given `order`. Every item that is not an integer is an index expression. `symbols`
maps names to its variables, and to element types, memories and levels that Fireiron does not define.

Printing is exact or refused: each text is read back before it is returned. Omissions from and additions to the paper's notation:
`docs/decisions/0024-notation.md`. Source: Graphene (ASPLOS 2023), sections 3 and 4.
"""

from fireiron.values.notation.threads import (
    group_text,
    indices,
    level_text,
    parse_group,
    parse_level,
    parse_threads,
    reshaped,
    threads_text,
    tiled,
)
from fireiron.values.notation.views import parse_tensor, parse_view, strided, tensor_text, tiles_of, tiles_text, view_text
from fireiron.values.notation.words import SHORT, Symbols, dtype_text, exact, expression_text, pieces, read_expression, symbols_of

__all__ = [
    "SHORT",
    "Symbols",
    "dtype_text",
    "exact",
    "expression_text",
    "group_text",
    "indices",
    "level_text",
    "parse_group",
    "parse_level",
    "parse_tensor",
    "parse_threads",
    "parse_view",
    "pieces",
    "read_expression",
    "reshaped",
    "strided",
    "symbols_of",
    "tensor_text",
    "threads_text",
    "tiled",
    "tiles_of",
    "tiles_text",
    "view_text",
]
