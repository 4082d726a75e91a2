"""Assign the rows of a mixture of experts to tiles: choose the experts of each token, sort rows by expert, pad to whole tiles.

The functions take arrays of NumPy, CuPy or PyTorch, and no step waits for a GPU. The number of tiles is the largest one for any routing.

>>> import numpy
>>> tables = tables_of(numpy.array([[1, 0], [1, 2]]), experts=4, rows=16)
>>> tables.expert.tolist(), tables.filled.tolist(), tables.places.tolist()
([0, 1, 2, 3], [1, 2, 1, 0], [[16, 0], [17, 32]])
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

from fireiron.copies import library
from fireiron.errors import ArgumentError

ENDLESS: Final = 1 << 20
"""A number of steps past the end of every loop: a tile with rows executes all iterations."""

UNIT: Final = 64
"""Rows that the ranges of an expert count."""


class Tables(NamedTuple):
    """The rows of each tile and the places of each token, all in int32.

    - `expert`, `filled`, `steps`: for each tile its expert, its number of rows, and 0 for a tile without rows, otherwise `ENDLESS`.
    - `rows`: (tiles, rows per tile), the token of each row; 0 for padding. `choices`: the same, with the number of the choice.
    - `places`: (tokens, choices per token), the row of each choice.
    - `first`, `last`: for each expert, its first row and the row after its last, in units of `UNIT` rows.
    """

    expert: Any
    filled: Any
    steps: Any
    rows: Any
    choices: Any
    places: Any
    first: Any
    last: Any


def most_tiles(choices: int, experts: int, rows: int) -> int:
    """Return the largest number of tiles of `rows` rows for a number of choices.

    >>> most_tiles(8, 256, 16), most_tiles(32768, 8, 128)
    (8, 263)
    """
    used = min(choices, experts)
    return min(choices, (choices + used * (rows - 1)) // rows)


def tables_of(index: Any, experts: int, rows: int) -> Tables:
    """Return the tables for the experts of each token.

    Rows of an expert are in the order of tokens, so results do not depend on the order in which a GPU executes threads.

    Args:
        index: (tokens, choices per token), numbers of experts. On a GPU, it is a promise that they are from 0 to `experts` - 1.
        experts: the number of experts.
        rows: the rows of a tile.

    Raises: an `ArgumentError` for another number of an expert in a NumPy array.
    """
    lib = sys.modules[library(index)]
    is_torch = lib.__name__ == "torch"
    options: dict[str, Any] = {"device": index.device} if is_torch else {}
    if lib.__name__ == "numpy" and index.size and not 0 <= index.min() <= index.max() < experts:
        what = "negative" if index.min() < 0 else "too large"
        got = f"from {index.min()} to {index.max()}"
        raise ArgumentError(f"experts: a number of an expert is {what}", got=got, legal=f"0 to {experts - 1}")
    tokens, width = index.shape
    count, tiles = tokens * width, most_tiles(tokens * width, experts, rows)
    flat = index.reshape(-1)
    of_rows, order = lib.sort(flat, stable=True) if is_torch else (None, lib.argsort(flat, kind="stable"))
    of_rows = flat[order] if of_rows is None else of_rows
    bounds = lib.searchsorted(of_rows, lib.arange(experts + 1, dtype=flat.dtype, **options))
    counts = bounds[1:] - bounds[:-1]
    own = (counts + (rows - 1)) // rows
    ends = lib.cumsum(own, 0)
    starts = ends - own
    tile = lib.arange(tiles, dtype=ends.dtype, **options)
    expert_of_tile = lib.searchsorted(ends, tile, side="right")
    expert = expert_of_tile.clip(0, experts - 1)
    filled = (counts[expert] - (tile - starts[expert]) * rows).clip(0, rows) * (expert_of_tile < experts)
    to = starts[of_rows] * rows + lib.arange(count, dtype=ends.dtype, **options) - bounds[of_rows]
    int32 = lib.int32

    def convert(array: Any) -> Any:
        return array.to(int32) if is_torch else array.astype(int32)

    places, choices = lib.empty(count, dtype=int32, **options), lib.zeros(tiles * rows, dtype=int32, **options)
    places[order] = convert(to)
    choices[to] = convert(order)
    return Tables(
        convert(expert), convert(filled), convert((filled > 0) * ENDLESS), (choices // width).reshape(tiles, rows),
        choices.reshape(tiles, rows), places.reshape(tokens, width), convert(starts * rows // UNIT), convert(ends * rows // UNIT),
    )  # fmt: skip


def chosen_experts(scores: Any, top_k: int, normalize: bool) -> tuple[Any, Any]:
    """Return the weights and the numbers of the `top_k` experts of each token, by the softmax of their scores in float32.

    With `normalize`, the weights of a token add up to 1. PyTorch differentiates the weights.

    Args: scores: (tokens, experts). Raises: an `ArgumentError` for an illegal `top_k`.
    """
    experts = scores.shape[-1]
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= experts:
        raise ArgumentError("experts: top_k must be a number of experts", got=top_k, legal=f"1 to {experts}")
    lib = sys.modules[library(scores)]
    if lib.__name__ == "torch":
        weights, index = lib.topk(lib.softmax(scores.float(), -1), top_k, dim=-1)
    else:
        wide = scores.astype(lib.float32)
        powers = lib.exp(wide - wide.max(-1, keepdims=True))
        shares = powers / powers.sum(-1, keepdims=True)
        index = lib.argsort(-shares, axis=-1, kind="stable")[:, :top_k]
        weights = lib.take_along_axis(shares, index, -1)
    return (weights / weights.sum(-1)[..., None] if normalize else weights), index


__all__ = ["ENDLESS", "UNIT", "Tables", "chosen_experts", "most_tiles", "tables_of"]
