"""Packed sequences that begin at a tile: rows are copied, so that no tile contains tokens of two sequences.

An MMA multiplies the values of all keys of a tile. A masked probability is zero, but zero times NaN or infinity is NaN. If each
sequence begins at a tile, the tiles of its queries read only its own keys. `placed` computes where tokens go, on the device of the offsets.
"""

from typing import Any, NamedTuple


class Places(NamedTuple):
    """Rows of arrays in which each sequence begins at a tile.

    tokens: for each row the token that it contains; padding repeats the last token of its sequence.
    sequences: the sequence of each row.
    rows: the row of each token.
    starts: the first row of each sequence.
    is_token: whether a row is neither padding nor unused.
    """

    tokens: Any
    sequences: Any
    rows: Any
    starts: Any
    is_token: Any


def library_of(array):
    """Return NumPy, or PyTorch for its tensors, and a function that returns the numbers below a count, with the type of `array`."""
    if hasattr(array, "is_cuda"):
        import torch

        return torch, lambda count: torch.arange(count, device=array.device, dtype=array.dtype)
    import numpy

    return numpy, lambda count: numpy.arange(count, dtype=array.dtype)


def placed(offsets, count, tile):
    """Return the places of `count` tokens if each sequence begins at a multiple of `tile` rows.

    The number of rows depends only on `count` and the number of sequences. Tokens past the last offset have any place.

    >>> import numpy
    >>> places = placed(numpy.array([0, 3, 5]), 5, 4)
    >>> places.tokens.tolist(), places.rows.tolist()
    ([0, 1, 2, 2, 3, 4, 4, 4, 4, 4, 4, 4], [0, 1, 2, 4, 5])
    """
    library, numbers = library_of(offsets)
    sequences = len(offsets) - 1
    tiles = (offsets[1:] - offsets[:-1] + (tile - 1)) // tile
    ends = library.cumsum(tiles, 0, dtype=offsets.dtype) * tile
    starts, rows, tokens = ends - tiles * tile, numbers((count // tile + sequences) * tile), numbers(count)
    of_row = library.clip(_searched(library, ends, rows), 0, sequences - 1)
    own = offsets[of_row] + rows - starts[of_row]
    last = offsets[of_row + 1] - 1
    of_token = library.clip(_searched(library, offsets, tokens) - 1, 0, sequences - 1)
    places = library.clip(starts[of_token] + tokens - offsets[of_token], 0, len(rows) - 1)
    return Places(library.clip(library.minimum(own, last), 0, max(count - 1, 0)), of_row, places, starts, own <= last)


def moved(low, high, places, offsets, starts):
    """Return the ranges [low, high) of tokens for the rows of `places`.

    The ranges are places of the other side, where sequence s begins at starts[s] instead of offsets[s]. The range of padding is empty, and
    ends as that of its token. So no tile reads more because of it.
    """
    library, _ = library_of(low)
    shift = (starts - offsets[:-1])[places.sequences]
    first, last = low[places.tokens] + shift, high[places.tokens] + shift
    return library.where(places.is_token, first, last), last


def without(array, missing):
    """Replace rows that no token of the other side uses by zeros, in place."""
    if hasattr(array, "is_cuda"):
        return array.masked_fill_(missing.reshape(-1, *(1,) * (array.ndim - 1)), 0)
    array[missing] = 0
    return array


def _searched(library, sorted_numbers, numbers):
    """Return the number of sorted numbers that are at most each number."""
    if library.__name__ == "torch":
        return library.searchsorted(sorted_numbers, numbers, right=True).to(numbers.dtype)
    return library.searchsorted(sorted_numbers, numbers, side="right").astype(numbers.dtype)
