"""Experts on the GPUs of a process group: move the rows of tokens to the GPU of their experts, and the results back.

    import fireiron.distributed_experts as fe
    routes = fe.route(index, experts=64)                   index: (tokens, choices) numbers of experts, of this GPU's tokens
    y = fe.dispatch(x, routes)                             x: (tokens, width); y: (tiles, rows, width), the rows of this GPU's experts
    z = ...                                                a product per expert, of the same shape as y
    out = fe.combine(z, weights, routes)                   weights: (tokens, choices); out: (tokens, width)

Each GPU stores `experts / G` experts, those with the smallest numbers on GPU 0, and its own tokens. A tile has rows of one expert;
`routes.expert` names it, and `routes.filled` counts its rows. The other rows of a tile are zero. The number of tiles is the largest one for
any routing, so no step waits for a GPU. Rows of an expert are in the order of tokens, and results are added in the order of choices: the
same in each run.

`routes_of` computes the tables from the numbers of experts of all GPUs, for NumPy arrays and tensors.

>>> import numpy
>>> routes = routes_of(numpy.array([[[0], [3]], [[3], [2]]]), rank=1, experts=4, rows=2)
>>> routes.expert.tolist(), routes.filled.tolist(), routes.gpu.tolist(), routes.row.tolist()
([0, 1, 1], [1, 2, 0], [[1, 1], [0, 1], [1, 1]], [[1, 0], [1, 0], [0, 0]])
>>> routes.to_gpu.tolist(), routes.to_place.tolist()
([[1], [1]], [[3], [0]])
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final, NamedTuple

from fireiron.copies import library
from fireiron.distributed import group_of
from fireiron.errors import ArgumentError
from fireiron.experts_routing import most_tiles, tables_of
from fireiron.strategies import all_to_all
from fireiron.values.machine import GPU, Node, as_dtype, bfloat16, float16
from fireiron.values.tensor import RowMajor

ROWS: Final = 128
"""Default number of rows of a tile: those of a tile of `fireiron.strategies.experts`."""

TYPES: Final = (float16, bfloat16)
"""Element types of rows."""


class Routes(NamedTuple):
    """The rows of each tile of this GPU, and the places of each of its tokens, in int32.

    - `expert`, `filled`: for each tile its expert, numbered among those of this GPU, and its number of rows.
    - `gpu`, `row`: (tiles, rows), the GPU and the row of the token; for other rows, row 0 of this GPU.
    - `to_gpu`, `to_place`: (tokens, choices), the GPU of the expert, and the row among those of all its tiles.
    """

    expert: Any
    filled: Any
    gpu: Any
    row: Any
    to_gpu: Any
    to_place: Any


def routes_of(index: Any, rank: int, experts: int, rows: int = ROWS) -> Routes:
    """Return the tables of a GPU.

    Args:
        index: (G, tokens, choices), the numbers of the experts of the tokens of all GPUs.
        rank: the number of the GPU.
        experts: the number of experts of all GPUs, a multiple of G.
        rows: the number of rows of a tile.

    Raises: ArgumentError for illegal numbers.
    """
    gpus, tokens, choices = index.shape
    own = _require(gpus, rank, experts, rows)
    lib = sys.modules[library(index)]
    is_torch = lib.__name__ == "torch"
    options: dict[str, Any] = {"device": index.device} if is_torch else {}
    tables = tables_of(index.reshape(gpus * tokens, choices), experts, rows)
    bounds = lib.searchsorted(tables.expert, lib.arange(gpus + 1, dtype=tables.expert.dtype, **options) * own)
    count = most_tiles(gpus * tokens * choices, own, rows)
    tile = bounds[rank] + lib.arange(count, dtype=bounds.dtype, **options)
    is_own = tile < bounds[rank + 1]
    tile = tile.clip(0, tables.expert.shape[0] - 1)

    def convert(array: Any) -> Any:
        return array.to(lib.int32) if is_torch else array.astype(lib.int32)

    filled = convert(tables.filled[tile] * is_own)
    used = lib.arange(rows, dtype=filled.dtype, **options)[None, :] < filled[:, None]
    token = tables.rows[tile]
    to_gpu = index[rank] // own
    return Routes(
        convert((tables.expert[tile] - rank * own).clip(0, own - 1)), filled,
        convert(lib.where(used, token // tokens, rank)), convert(lib.where(used, token % tokens, 0)),
        convert(to_gpu), convert(tables.places[rank * tokens : (rank + 1) * tokens] - bounds[to_gpu] * rows),
    )  # fmt: skip


def _require(gpus: int, rank: int, experts: int, rows: int) -> int:
    """Return the number of experts of a GPU. Raises: ArgumentError for illegal numbers."""
    if not isinstance(experts, int) or experts < gpus or experts % gpus:
        raise ArgumentError(
            "route: the GPUs cannot store equal numbers of experts", got=f"{experts} experts on {gpus} GPUs", legal=f"a multiple of {gpus}"
        )
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError("route: rows is the number of rows of a tile", got=rows, legal="such as 128")
    if not 0 <= rank < gpus:
        raise ArgumentError("route: rank is the number of a GPU", got=rank, legal=f"0 to {gpus - 1}")
    return experts // gpus


def route(index: Any, experts: int, rows: int = ROWS, group: Any = None) -> Routes:
    """Return the tables of this GPU. All processes of the group call this together, with equal shapes.

    Args:
        index: (tokens, choices), the numbers of the experts of this GPU's tokens. It is a promise that they are from 0 to experts - 1.
        experts: the number of experts of all GPUs, a multiple of the number of GPUs.
        rows: the number of rows of a tile.
        group: a process group (None: the default group) of the GPUs of one host.

    The numbers of all GPUs are gathered by a collective, because each GPU sorts all tokens. Raises: ArgumentError for illegal arguments.
    """
    import torch
    import torch.distributed as distributed

    group = group_of(group)
    if len(index.shape) != 2 or index.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(
            "route: index must be a matrix of integers",
            got=f"shape {tuple(index.shape)} of {index.dtype}",
            legal="(tokens, choices) of int64",
        )
    return routes_of(_from_all(index, group), distributed.get_rank(group), experts, rows)


def dispatch(x: Any, routes: Routes, group: Any = None) -> Any:
    """Return the rows of the experts of this GPU, (tiles, rows, width).

    Args:
        x: (tokens, width), float16 or bfloat16, the tokens of this GPU; the same shape on each GPU. A tensor of
            `fireiron.distributed.empty` needs no copy.
        routes: the result of `route`.
        group: a process group (None: the default group).

    Raises: ArgumentError for wrong arguments; LaunchError if another GPU did not arrive in time.
    """
    group, (tiles, rows) = group_of(group), routes.row.shape
    _require_rows("dispatch", x, 2, routes)
    if x.device.type != "cuda":
        return _dispatched(_from_all(x, group), routes)
    run = _run(group, "dispatch", str(x.dtype), group.size(), (x.shape[0], x.shape[1], tiles, rows))
    return run(_shared(run, "X", x[None]), routes.gpu, routes.row, routes.filled)


def combine(z: Any, weights: Any, routes: Routes, group: Any = None) -> Any:
    """Return, for each token of this GPU, the sum of the rows of its experts times their weights, (tokens, width).

    Args:
        z: (tiles, rows, width), float16 or bfloat16, results of the experts of this GPU. A tensor of `fireiron.distributed.empty` needs no
            copy.
        weights: (tokens, choices), float32.
        routes: the result of `route`.
        group: a process group (None: the default group).

    Products and sums are in float32, in the order of the choices. Raises: as `dispatch`.
    """
    import torch

    group = group_of(group)
    _require_rows("combine", z, 3, routes)
    if weights.dtype != torch.float32 or weights.shape != routes.to_gpu.shape:
        raise ArgumentError(
            "combine: weights must have the shape of the choices, in float32", got=f"shape {tuple(weights.shape)} of {weights.dtype}",
            legal=f"shape {tuple(routes.to_gpu.shape)}",
        )  # fmt: skip
    flat = z.reshape(-1, z.shape[-1])
    if z.device.type != "cuda":
        return _combined(_from_all(flat, group), weights, routes)
    tokens, choices = weights.shape
    run = _run(group, "combine", str(z.dtype), group.size(), (tokens, z.shape[-1], choices, flat.shape[0]))
    return run(_shared(run, "D", flat[None]), routes.to_gpu, routes.to_place, weights.contiguous())


def _require_rows(what: str, rows: Any, rank: int, routes: Routes) -> None:
    """Refuse rows of another type, shape or device than the tables require."""
    tiles = tuple(routes.row.shape)
    shape = ("tokens", "width") if rank == 2 else (*tiles, "width")
    right = len(rows.shape) == rank and (rank == 2 or tuple(rows.shape[:2]) == tiles)
    right = right and (rank == 3 or rows.shape[0] == routes.to_gpu.shape[0])
    if not right:
        raise ArgumentError(
            f"{what}: the rows have another shape than the routes", got=tuple(rows.shape), legal=f"({', '.join(map(str, shape))})"
        )
    if as_dtype(str(rows.dtype).removeprefix("torch.")) not in TYPES:
        raise ArgumentError(f"{what}: rows of this type", got=rows.dtype, legal=TYPES, hint="convert them")
    if rows.device != routes.row.device:
        raise ArgumentError(
            f"{what}: rows and routes are on different devices", got=f"{rows.device} and {routes.row.device}", legal="one GPU"
        )
    if rows.shape[-1] * 2 % 16:
        raise ArgumentError(f"{what}: a row is copied by vectors of 16 bytes", got=f"width {rows.shape[-1]}", legal="a multiple of 8")


# ---------------------------------------------------------------------------------------------- kernels


@functools.cache
def _run(group: Any, form: str, dtype: str, gpus: int, sizes: tuple[int, ...]) -> Any:
    """Return what launches the kernel. All processes of the group call this together."""
    return bound(form, dtype, gpus, sizes).compile().over(group)


def bound(form: str, dtype: str, gpus: int, sizes: tuple[int, ...]) -> Any:
    """Return the strategy of `dispatch` or `combine`, bound to its problem; `sizes` are those of one GPU.

    `dispatch`: tokens, width, tiles, rows of a tile. `combine`: tokens, width, choices, rows of all tiles.
    """
    kind, node = as_dtype(dtype.removeprefix("torch.")), {"level": Node(gpus), "g": gpus}
    width = sizes[1]
    if form == "dispatch":
        tokens, _, tiles, rows = sizes
        over = {name: RowMajor.over(GPU, "t") for name in ("gpu", "row", "filled", "Y")}
        spec = all_to_all.dispatched_rows(t=tiles * gpus, m=rows, n=width, r=tokens, dtype=kind, X=RowMajor.over(GPU, "g"), **over, **node)
        return all_to_all.strategy.with_(**values(width, rows))(spec)
    tokens, _, choices, places = sizes
    over = {name: RowMajor.over(GPU, "i") for name in ("gpu", "place", "V", "Y")}
    spec = all_to_all.combined_rows(i=tokens * gpus, n=width, j=choices, p=places, dtype=kind, D=RowMajor.over(GPU, "g"), **over, **node)
    return all_to_all.combine.with_(**values(width, tokens))(spec)


def values(width: int, rows: int) -> dict[str, int]:
    """Return the tunables for rows of a width: eight rows of 256 columns per block, or fewer."""
    return {"rows": next(one for one in (8, 4, 2, 1) if rows % one == 0), "columns": 256}


def _shared(run: Any, name: str, tensor: Any) -> Any:
    """Return a tensor in symmetric memory: itself, or a copy."""
    from fireiron.gpu.symmetric import allocations

    known = tensor.is_contiguous() and allocations(run.group).of(tensor) is not None
    return tensor if known else run.array(name).copy_(tensor)


# ---------------------------------------------------------------------------------------------- the meaning, on CPUs


def _from_all(part: Any, group: Any) -> Any:
    """Return the parts of all processes."""
    import torch
    import torch.distributed as distributed

    whole = torch.empty((group.size(), *part.shape), dtype=part.dtype, device=part.device)
    distributed.all_gather_into_tensor(whole, part.contiguous()[None], group=group)
    return whole


def _dispatched(x: Any, routes: Routes) -> Any:
    """Return the rows of tiles from the tokens of all GPUs, `x` (G, tokens, width)."""
    import torch

    used = torch.arange(routes.row.shape[1])[None, :] < routes.filled[:, None]
    rows = x[routes.gpu.long(), routes.row.long()]
    return torch.where(used[..., None], rows, torch.zeros_like(rows))


def _combined(z: Any, weights: Any, routes: Routes) -> Any:
    """Return the sums of tokens from the results of all GPUs, `z` (G, rows, width)."""
    rows = z[routes.to_gpu.long(), routes.to_place.long()].float()
    total = rows.new_zeros(rows.shape[0], rows.shape[2])
    for choice in range(rows.shape[1]):
        total = total + rows[:, choice] * weights[:, choice, None]
    return total.to(z.dtype)


__all__ = ["ROWS", "TYPES", "Routes", "bound", "combine", "dispatch", "route", "routes_of", "values"]
