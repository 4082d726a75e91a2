"""Boxes of an array, as TMA copies them: their limits, and the device functions of the copies.

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor".
"""

from __future__ import annotations

import functools

from fireiron.ir.text import Function

MOST_ROWS = 256
"""Maximum number of elements of a box along each dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

MULTIPLE = 16
"""Alignment in bytes of the address and strides of an array."""

RANKS = range(2, 6)
"""Legal numbers of dimensions of an array. A tile has two of them; along the others, such as a batch, its boxes have one element."""

_NAMES = "xyzuv"
"""Names of the coordinates of a box, contiguous dimension first."""

_WHAT = ("a vector", "a matrix", "a batched matrix")


@functools.cache
def load_function(rank: int, pixels: bool = False) -> Function:
    """Return the load of a box of an array of `rank` dimensions, or of `pixels` in im2col mode."""
    if pixels:
        return _pixel_function(rank, multicast=False)
    return Function(
        f"tma_load{_suffix(rank)}",
        ("unsigned target", "const TensorMap* map", *(f"int {name}" for name in _NAMES[:rank]), "unsigned mbarrier"),
        (
            "asm volatile(",
            f'    "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "',
            f'    "[%0], [%1, {{{_places(2, rank)}}}], [%{rank + 2}];"',
            f'    :: "r"(target), "l"(map), {_operands(rank)}, "r"(mbarrier) : "memory");',
        ),
        f"TMA load of a box of {_what(rank)} to shared memory; its bytes complete on `mbarrier`",
    )


@functools.cache
def multicast_function(rank: int, pixels: bool = False) -> Function:
    """Return the load of a box of an array of `rank` dimensions, or of `pixels` in im2col mode, to several blocks of the cluster."""
    if pixels:
        return _pixel_function(rank, multicast=True)
    return Function(
        f"tma_load_multicast{_suffix(rank)}",
        (
            "unsigned target",
            "const TensorMap* map",
            *(f"int {name}" for name in _NAMES[:rank]),
            "unsigned mbarrier",
            "unsigned short block_mask",
        ),
        (
            "asm volatile(",
            f'    "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "',
            f'    "[%0], [%1, {{{_places(2, rank)}}}], [%{rank + 2}], %{rank + 3};"',
            f'    :: "r"(target), "l"(map), {_operands(rank)}, "r"(mbarrier), "h"(block_mask) : "memory");',
        ),
        f"TMA load of a box of {_what(rank)} to each block of `block_mask` (one bit per rank in the cluster), with its `mbarrier`",
    )


def _pixel_function(rank: int, multicast: bool) -> Function:
    """Return the load of consecutive pixels of images of `rank` dimensions, including channels and images."""
    offsets = [f"tap_{name}" for name in _NAMES[1 : rank - 1]]
    peers = ".multicast::cluster" if multicast else ""
    mask = f", %{rank + 3 + len(offsets)}" if multicast else ""
    block = ', "h"(block_mask)' if multicast else ""
    shifts = ", ".join(f'"h"(static_cast<unsigned short>({name}))' for name in offsets)
    instruction = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes{peers}"
    return Function(
        f"tma_load_pixels{'_multicast' if multicast else ''}_{rank}d",
        (
            "unsigned target",
            "const TensorMap* map",
            *(f"int {name}" for name in (*_NAMES[:rank], *offsets)),
            "unsigned mbarrier",
            *(["unsigned short block_mask"] if multicast else []),
        ),
        (
            "asm volatile(",
            f'    "{instruction} "',
            f'    "[%0], [%1, {{{_places(2, rank)}}}], [%{rank + 2}], {{{_places(rank + 3, len(offsets))}}}{mask};"',
            f'    :: "r"(target), "l"(map), {_operands(rank)}, "r"(mbarrier),',
            f'       {shifts}{block} : "memory");',
        ),
        "TMA load of consecutive pixels (im2col mode) to shared memory; its bytes complete on `mbarrier`",
    )


@functools.cache
def store_function(rank: int) -> Function:
    """Return the store of a box of an array of `rank` dimensions."""
    instruction = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    return Function(
        f"tma_store{_suffix(rank)}",
        ("const TensorMap* map", *(f"int {name}" for name in _NAMES[:rank]), "unsigned source"),
        (
            f'asm volatile("{instruction} [%0, {{{_places(1, rank)}}}], [%{rank + 1}];"',
            f'    :: "l"(map), {_operands(rank)}, "r"(source) : "memory");',
        ),
        f"TMA store of a box of {_what(rank)} from shared memory, asynchronous",
    )


@functools.cache
def add_function(rank: int) -> Function:
    """Return the addition of a box to an array of `rank` dimensions."""
    instruction = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group"
    return Function(
        f"tma_add{_suffix(rank)}",
        ("const TensorMap* map", *(f"int {name}" for name in _NAMES[:rank]), "unsigned source"),
        (
            f'asm volatile("{instruction} [%0, {{{_places(1, rank)}}}], [%{rank + 1}];"',
            f'    :: "l"(map), {_operands(rank)}, "r"(source) : "memory");',
        ),
        f"TMA addition of a box in shared memory to {_what(rank)}, asynchronous; each element is added atomically",
    )


def _what(rank: int) -> str:
    return _WHAT[min(rank, len(_WHAT)) - 1]


def _suffix(rank: int) -> str:
    return "" if rank == 2 else f"_{rank}d"


def _places(first: int, rank: int) -> str:
    return ", ".join(f"%{number}" for number in range(first, first + rank))


def _operands(rank: int) -> str:
    """Return the coordinates as operands of inline PTX."""
    return ", ".join(f'"r"({name})' for name in _NAMES[:rank])
