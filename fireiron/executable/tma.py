"""TMA: copies of tiles between global and shared memory; one thread starts each copy by one instruction (Hopper).

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor", for additions "cp.reduce.async.bulk.tensor". A tensor map and
coordinates select the tile; elements out of bounds are zero. The tile is stored in chunks (`fireiron.ir.smem_layouts`) in the layout that
its readers require, one box per chunk. The bytes complete on the full barrier of its ring.

>>> from fireiron import *
>>> fp16 = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
>>> blocks = MatMul(512, 512, 512, **fp16)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32)
>>> loop = blocks.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
>>> text = loop.tile(64, 64).to(Warpgroup).done().cuda()
>>> text.count("prefetch_tensor_map(&")  # tensor maps of A and of B
2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster, BlockSet, Commit, Exec, Mechanism, StageState, Stmt, TensorMap
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.smem_layouts import SmemLayout, chunk_storage, smem_layout_of, widest_span
from fireiron.ir.text import Function, If, Item, Printer
from fireiron.language.dividing import divide, moved
from fireiron.language.tree import Context, Draft, Executable, Mismatch, access_of
from fireiron.performing.boxes import MOST_ROWS, MULTIPLE, RANKS, add_function, load_function, multicast_function, store_function
from fireiron.performing.by_lanes import target_mismatch, type_mismatch
from fireiron.performing.im2col import PixelTile, has_digits, pixel_tile
from fireiron.performing.tma_loads import TmaTileLoad
from fireiron.spec import Spec
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.values.affine import AffineIndex
from fireiron.values.document import Text, called
from fireiron.values.expr import ZERO, Expr, Var, as_expr, constant, equal
from fireiron.values.indirect import DimIndex, TableIndex
from fireiron.values.machine import GL, SH, Architecture, DType, Warp, Warpgroup, float32, int32
from fireiron.values.tensor import RowMajor, Storage, View
from fireiron.values.units import index_in

ROW_ALIGNMENT: Final = 128
"""Alignment in bytes of a box in shared memory (PTX ISA, "Tensor-Map: Swizzling Modes"; CUDA C++ Programming Guide, "TMA Swizzle": if the
address is not a multiple of the swizzle's period, the pattern starts in the phase of the address)."""


@frozen
class TmaLoad(TmaTileLoad):
    """`Move(r,c)(GL -> SH)(Block)`, by one thread of the producer."""

    dimensions: ClassVar[int | None] = 2

    def performs(self) -> str:
        return (
            "Move(r,c)(GL,SH)(Block), a whole tile; rows, address: multiples of 16 bytes; SH in chunks; under pipeline(n).warp_specialize()"
        )

    def array_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        return _array_mismatch(spec, "src")

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        mismatches = self.mismatches(spec, context.architecture)
        if mismatches:
            return mismatches
        chunks = _chunks(spec, context)
        if isinstance(chunks, str):
            return (Mismatch("dst storage", "swizzled chunks, which a reader or storage_layout must choose", chunks),)
        along = _contiguous(spec.src)
        return () if chunks.along == along else (Mismatch("dst storage", "contiguous along the dimension of src", "the other order"),)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        chunks = _chunks(spec, draft)
        assert isinstance(chunks, SmemLayout), chunks
        spec, peers = _own_part(spec, chunks, draft)
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        statement = Exec(self, spec, accesses, spec.accumulate, draft.active, mechanism=self.mechanism, origin=draft.origin)
        return (attrs.evolve(statement, tensor_map=_map_of(spec.src, chunks, spec.dst), multicast=peers),)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        barrier = printer.barrier(statement.ring, StageState.FULL, statement.fill_index)
        assert statement.tensor_map is not None
        rank = len(statement.tensor_map.order)
        peers = statement.multicast
        pixels = statement.tensor_map.im2col is not None
        function = printer.function(load_function(rank, pixels) if peers is None else multicast_function(rank, pixels))
        mask = () if peers is None else (printer.blocks(peers),)
        return [
            called(function, box.address, f"&{box.map}", *map(printer.expression, (*box.coordinates, *box.offsets)), barrier, *mask)
            for box in _boxes(printer, statement, array=0)
        ]


def _own_part(spec: Spec, chunks: SmemLayout, draft: Draft) -> tuple[Spec, BlockSet | None]:
    """Return the part of a load that a block performs for all blocks of the cluster that load the same tile, and these blocks.

    Parts are equal: complete chunks, or rows of each chunk. TMA swizzles by the bits of shared-memory addresses, so a part starts at any
    row whose address is a multiple of `ROW_ALIGNMENT`. If there are no equal parts, or no other block loads the tile, the part is the
    complete tile.
    """
    cluster = draft.whole.cluster
    along = () if cluster is None else _shared_along(spec, cluster, draft)
    if cluster is None or not along:
        return spec, None
    count = math.prod(cluster.sizes[position] for position in along)
    length, rows = (constant(spec.dst.shape[dim]) or 0 for dim in (chunks.along, 1 - chunks.along))
    if length // (chunks.span // spec.dst.dtype.bytes) % count == 0:
        dim, size = chunks.along, length
    elif rows % count == 0 and rows // count * chunks.span % ROW_ALIGNMENT == 0:
        dim, size = 1 - chunks.along, rows
    else:
        return spec, None
    views, (digit,) = divide(spec, {spec.uses["dst"][dim]: size // count}, spec.title)
    part, step = as_expr(0), 1
    for position in along:
        part, step = part + cluster.places[position] * step, step * cluster.sizes[position]
    return spec.with_operands(**moved(views, spec, digit, part, unit=True)), cluster.block_set(along)


def _shared_along(spec: Spec, cluster: BlockCluster, draft: Draft) -> tuple[int, ...]:
    """Return the dimensions of a cluster along which all blocks load the same tile."""
    names = draft.whole.definitions
    pending = {var for dim in spec.src.numerals for var in dim.base.variables()}
    used: set[Var] = set()
    while pending:
        used |= pending
        pending = {var for name in pending if name in names for var in names[name].variables()} - used
    # Tile indices depend on the cluster index and on the ranks of the block; only the ranks differ within a cluster.
    return tuple(position for position, var in enumerate(cluster.places) if var not in used)


def _array_mismatch(spec: Spec, name: str) -> tuple[Mismatch, ...]:
    """Return the mismatch if a tensor map cannot describe an array."""
    view = spec.operands[name]
    array = view.tensor.array
    steps = array.storage().steps
    if len(steps) not in RANKS:
        return (Mismatch(f"{name} array", f"{RANKS[0]} to {RANKS[-1]} dimensions", f"{len(steps)}"),)
    along = _contiguous(view)
    if along is None:
        return (Mismatch(f"{name} layout", "contiguous along one dimension", str(view.tensor.layout)),)
    if view.tensor.align % MULTIPLE:
        return (Mismatch(f"{name} address", f"a multiple of {MULTIPLE} bytes", f"of {view.tensor.align}"),)
    if view.tensor.through is not None and (pages := _page_mismatch(spec, name, along)):
        return pages
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in view.dims) and has_digits(view):
        return (Mismatch(f"{name} tile", "contiguous pixels and channels", "a strided tile"),)
    for axis in _order(view, along)[1:]:
        step = steps[axis]
        if step is None or as_expr(step).factor * view.dtype.bytes % MULTIPLE or step == ZERO:
            return (Mismatch(f"{name} strides", f"multiples of {MULTIPLE} bytes", f"{step} elements of {view.dtype.bytes} bytes"),)
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in view.dims):
        return (Mismatch(f"{name} tile", "contiguous rows and columns", "a strided tile"),)
    return ()


def _affine_mismatch(view: View, name: str) -> tuple[Mismatch, ...]:
    """Return why a shifted box cannot copy a tile of an operand with affine indices.

    TMA coordinates may be negative or past the end, and TMA reads zeros there. A box has the elements of a tile if each index follows at
    most one coordinate of the tile, with the factor 1; all other coordinates shift the box.
    """
    through, tile = view.tensor.through, [view.axis(dim) for dim in range(len(view.dims))]
    assert through is not None
    storage = view.tensor.storage()
    if storage.computed or storage.outside:
        what = "an exact quotient" if not through.mode and storage.computed else f"{through.outside} outside of the array"
        return (Mismatch(f"{name} index", "an affine index that reads zero outside of the array", what),)
    for index in through.index:
        if not isinstance(index, AffineIndex):
            if not isinstance(index, DimIndex):
                return (Mismatch(f"{name} array", "affine indices and dimensions", "a table, too"),)
            if index.dim in tile and (index.divisor > 1 or index.modulus):
                return (Mismatch(f"{name} array", "affine indices and whole dimensions of the tile", "a digit of a dimension of the tile"),)
            continue
        inner = [(dim, factor) for dim, factor in index.terms if dim in tile]
        if len(inner) > 1:
            return (Mismatch(f"{name} index", "one dimension of the tile per index", f"{len(inner)} dimensions of the tile in one index"),)
        if inner and inner[0][1] != 1:
            got = "a reversed index" if inner[0][1] < 0 else f"a stride of {inner[0][1]}"
            return (Mismatch(f"{name} index", "a factor of 1 along the tile", got),)
    own = view.tensor.own_axes(range(len(through.index)), tile)
    if any(own.count(axis) != 1 for axis in tile):
        return (Mismatch(f"{name} index", "each dimension of the tile in one index", "a dimension of the tile in several indices"),)
    return ()


def _unaligned_start(view: View, name: str, along: int) -> tuple[Mismatch, ...]:
    """Return the mismatch if boxes may start within a piece of 16 bytes: such a load is an illegal instruction on Hopper."""
    through, granule = view.tensor.through, MULTIPLE // view.dtype.bytes
    assert through is not None
    index = through.index[_order(view, along)[0]]
    if not isinstance(index, AffineIndex):
        return ()
    start = index.of([numeral.base for numeral in view.numerals])
    if start.factor % granule == 0:
        return ()
    return (Mismatch(f"{name} index", f"boxes that start at multiples of {granule} elements, {MULTIPLE} bytes", str(start)),)


def _page_mismatch(spec: Spec, name: str, along: int) -> tuple[Mismatch, ...]:
    """Return why boxes cannot copy a tile of an indirect operand: each box has one number from a table, and is inside of one page."""
    view = spec.operands[name]
    assert view.tensor.through is not None
    if has_digits(view):
        tile = pixel_tile(view, name, along)
        return () if isinstance(tile, PixelTile) else (tile,)
    if any(isinstance(index, AffineIndex) for index in view.tensor.through.index):
        return _affine_mismatch(view, name) or _unaligned_start(view, name, along)
    if name in spec.outputs:
        return (Mismatch(f"{name} array", "addresses without an array of integers", "a scattered output"),)
    if _is_in_rows(view, along):
        return ()
    row = view.axis(1 - along)
    rows, part = _rows_of_page(view, along), view.dims[1 - along]
    parts = [part for given in view.tensor.through.index for part in (given.index if isinstance(given, TableIndex) else (given,))]
    indices = [part for part in parts if isinstance(part, DimIndex)]
    of_rows = [index for index in indices if index.dim == row]
    if rows < 2 or any(index.divisor % rows if index.divisor > 1 else not index.modulus for index in of_rows):
        return (Mismatch(f"{name} array", "pages of adjacent rows, table[n // 16], n % 16", "a number from a table for each row"),)
    if any(index.dim == view.axis(along) and (index.divisor > 1 or index.modulus) for index in indices):
        return (Mismatch(f"{name} array", "contiguous rows", "digits along the contiguous dimension"),)
    if part.base.factor % rows:
        return (Mismatch(f"{name} tile", f"rows from a multiple of {rows} on", f"from {part.base} on"),)
    if part.bound is not None:
        return (Mismatch(f"{name} tile", f"whole tiles of {view.extent(1 - along)} rows", "a tile that may extend past the end"),)
    return ()


def _is_in_rows(view: View, along: int) -> bool:
    """Whether the rows and columns of a tile are those of the array: only indices that are equal in the tile are numbers from tables."""
    through, tile = view.tensor.through, [view.axis(dim) for dim in (0, 1)]
    assert through is not None
    plain = [index.dim for index in through.index if isinstance(index, DimIndex) and index.divisor == 1 and not index.modulus]
    others = [index for index in through.index if not isinstance(index, DimIndex) or index.dim not in plain]
    parts = [part for index in others for part in (index.index if isinstance(index, TableIndex) else (index,))]
    return all(plain.count(axis) == 1 for axis in tile) and not any(isinstance(part, DimIndex) and part.dim in tile for part in parts)


def _rows_of_page(view: View, along: int) -> int:
    """Return the rows of a tile that are adjacent in the array: those of a page, or a part of it."""
    rows = constant(view.shape[1 - along]) or 0
    through = view.tensor.through
    if through is None:
        return rows
    if any(isinstance(index, AffineIndex) for index in through.index):
        return rows  # tables and digits are refused
    if _is_in_rows(view, along):
        return rows
    pages = [
        index.modulus for index in through.index if isinstance(index, DimIndex) and index.dim == view.axis(1 - along) and index.modulus
    ]
    return math.gcd(rows, *pages) if pages else 1


def _contiguous(view: View) -> int | None:
    """Return the dimension of a view along which elements are contiguous."""
    steps = view.tensor.storage().steps
    here = [steps[view.axis(dim)] for dim in (0, 1)]
    if has_digits(view):  # k % 64, of an array whose last dimension is contiguous
        firsts = [list(view.tensor.storage().layout)[view.axis(dim)].leaves[0][1] for dim in (0, 1)]
        here = [as_expr(stride) for stride in firsts]
    return next((dim for dim, step in enumerate(here) if step is not None and constant(step) == 1), None)


def _order(view: View, along: int) -> tuple[int, ...]:
    """Return the dimensions of the array in tensor-map order.

    First is the contiguous dimension, then the other one of the tile, then those with one element per tile.
    """
    if has_digits(view) and isinstance(pixels := pixel_tile(view, "", along), PixelTile):
        return pixels.order
    tile = (view.axis(along), view.axis(1 - along))
    count = len(view.tensor.array.shape)
    if view.tensor.through is not None:
        own = view.tensor.own_axes(range(count), tile)
        if any(axis not in own for axis in tile):
            return tuple(reversed(range(count)))
        tile = (own.index(tile[0]), own.index(tile[1]))
    return (*tile, *(axis for axis in reversed(range(count)) if axis not in tile))


def _chunks(spec: Spec, context: Context) -> SmemLayout | str:
    """Return the chunks of the destination that a leaf chose or that the load specifies; the reason as text if there are none."""
    view = spec.dst
    storage: Storage = context.whole.chosen_storage.get(view.tensor.name) or view.tensor.storage()
    if len(view.dims) != 2 or math.prod(constant(size) or 0 for size in view.shape) == 0:
        return "a tile of sizes known only at run time"
    if view.tensor.free and view.tensor.name not in context.whole.chosen_storage:
        return "a storage that a reader may still choose"
    return smem_layout_of(storage, view, view.dtype.bytes)


@frozen
class TmaStore(Executable):
    """`Move(r,c)(SH -> GL)(Warpgroup)`, or of a warp, by its first thread; elements out of bounds are not written."""

    capability: ClassVar[int] = 90
    mechanism: ClassVar[Mechanism] = TMA_STORES
    handles_edges: ClassVar[bool] = True
    tests_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return "Move(r,c)(SH,GL)(Warpgroup or Warp), a whole tile; rows and address multiples of 16 bytes, SH in chunks"

    def takes(self, spec: Spec) -> bool:
        """Whether the instruction executes this kind of spec."""
        return spec.copies

    def may_perform(self, spec: Spec) -> bool:
        return self.takes(spec) and spec.level in (Warpgroup, Warp) and spec.dst.memory.of_grid and spec.src.memory.in_shared

    def store_function(self, rank: int) -> Function:
        """Return the device function for a box of an array of `rank` dimensions."""
        return store_function(rank)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not self.takes(spec):
            return (Mismatch("spec", self.performs().partition("(")[0], spec.title),)
        mismatches = [] if spec.level in (Warpgroup, Warp) else [Mismatch("level", "Warpgroup or Warp", spec.level.name)]
        if not (spec.dst.memory.of_grid and spec.src.memory.in_shared):
            mismatches.append(Mismatch("memories", "SH -> GL", " -> ".join(map(str, spec.memories))))
        if len(spec.dims) != 2:
            return (*mismatches, Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))))
        mismatches += type_mismatch(spec, "dst", (spec.src.dtype,))
        mismatches += target_mismatch(architecture, self.capability)
        mismatches += self._further_mismatches(spec)
        mismatches += _array_mismatch(spec, "dst")
        return tuple(mismatches) or self._storage_mismatch(spec)

    def _further_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        return (Mismatch("spec", "a copy", "an atomic addition"),) if spec.atomic else ()

    def _storage_mismatch(self, spec: Spec) -> tuple[Mismatch, ...]:
        if len(spec.src.tensor.shape) != 2:
            return (Mismatch("src storage", "a buffer of two dimensions", "x".join(map(str, spec.src.tensor.shape))),)
        if spec.src.tensor.free:
            return ()
        chunks = smem_layout_of(spec.src.tensor.storage(), spec.src, spec.src.dtype.bytes)
        along = _contiguous(spec.dst)
        if isinstance(chunks, str) or chunks.along != along:
            got = chunks if isinstance(chunks, str) else "contiguous along the other dimension"
            return (Mismatch("src storage", "chunks contiguous along the dimension of dst", got),)
        return ()

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        along = _contiguous(spec.dst)
        assert along is not None
        view = spec.src
        storage = view.tensor.storage()
        if view.tensor.free:
            tile = [constant(size) or 0 for size in view.shape]
            span = widest_span(math.gcd(constant(view.extent(along)) or 0, tile[along]), view.dtype.bytes)
            if span is None:
                raise DecompositionError(
                    f"{self.name}: rows of {tile[along]} elements of {view.dtype} are not a multiple of {MULTIPLE} bytes",
                    within=spec,
                    hint="another tile, or .coalesced_copy(8) for a store by all threads",
                )
            storage = draft.choose_storage(view.tensor, chunk_storage(view, along, span))
        chunks = smem_layout_of(storage, view, view.dtype.bytes)
        assert isinstance(chunks, SmemLayout), chunks
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        tensor_map = _map_of(spec.dst, chunks, spec.src)
        statement = Exec(
            self, spec, accesses, spec.accumulate, draft.active, mechanism=self.mechanism, tensor_map=tensor_map, origin=draft.origin
        )
        return (statement, Commit(self.mechanism))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        function = printer.function(self.store_function(len(statement.accesses[1].base)))
        stores = [
            called(function, f"&{box.map}", *(printer.expression(coordinate) for coordinate in box.coordinates), box.address)
            for box in _boxes(printer, statement, array=1)
        ]
        lane = index_in(statement.spec.level, printer.kernel.thread) if statement.lane == ZERO else statement.lane
        return [If((printer.expression(equal(lane, 0)),), tuple(stores))]


ADDED_TYPES: tuple[DType, ...] = (float32, int32)
"""Element types that TMA adds without loss of precision."""


@frozen
class TmaAdd(TmaStore):
    """`AtomicAdd(r,c)(SH -> GL)(Warpgroup)`, or of a warp, by its first thread; nothing is added out of bounds.

    PTX ISA, "Data Movement and Conversion Instructions: cp.reduce.async.bulk.tensor": the additions to the elements are atomic, in no
    particular order.
    """

    def performs(self) -> str:
        return (
            "AtomicAdd(r,c)(SH,GL)(Warpgroup or Warp), float32 or int32, a whole tile; rows and address multiples of 16 bytes, SH in chunks"
        )

    def takes(self, spec: Spec) -> bool:
        only = spec.definition.only
        return spec.atomic and only is not None and only.combiner == "sum"

    def store_function(self, rank: int) -> Function:
        return add_function(rank)

    def _further_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        return () if spec.dst.dtype in ADDED_TYPES else (Mismatch("dst type", " or ".join(map(str, ADDED_TYPES)), str(spec.dst.dtype)),)


@frozen
class Box:
    """One box of a tile: the map, its coordinates in the array (contiguous dimension first), and its address in shared memory.

    In im2col mode, `offsets` are those of the image dimensions.
    """

    map: str
    coordinates: tuple[Expr, ...]
    address: Text
    offsets: tuple[Expr, ...] = ()


def _boxes(printer: Printer, statement: Exec, array: int) -> list[Box]:
    """Return the boxes of a statement whose operand number `array` is in global memory."""
    tensor_map = statement.tensor_map
    assert tensor_map is not None
    global_access, shared_access = statement.accesses[array], statement.accesses[1 - array]
    views = tuple(statement.spec.operands.values())
    global_view, shared_view = views[array], views[1 - array]
    through = global_view.tensor.through
    first = global_view.tensor.own_axes(tensor_map.order[:1], [global_view.axis(dim) for dim in (0, 1)])[0]
    along = next(dim for dim in (0, 1) if global_view.axis(dim) == first)
    length, rows = (constant(shared_view.shape[dim]) or 0 for dim in (along, 1 - along))
    # TMA swizzles by the bits of shared-memory addresses, so a box starts at the address of its first row, in any phase of the swizzle.
    storage = shared_access.storage or printer.kernel.buffer(shared_access.buffer).storage
    start_access = attrs.evolve(shared_access, storage=storage.plain)
    boxes = []
    for first in range(0, length, tensor_map.box[0]):
        for row in range(0, rows, tensor_map.box[1]):
            offset = {along: first, 1 - along: row}
            offsets = {global_view.axis(dim): step for dim, step in offset.items()}
            own = tuple(base + offsets.get(axis, 0) for axis, base in enumerate(global_access.base))
            shifts: tuple[Expr, ...] = ()
            if tensor_map.im2col is not None and through is not None:
                first_pixel, taps = tensor_map.im2col.start([through.index[axis] for axis in tensor_map.order], own)
                coordinates, shifts = tuple(map(as_expr, first_pixel)), tuple(map(as_expr, taps))
            else:
                of_array = global_view.tensor.array_coordinates(own)
                coordinates = tuple(of_array[axis] for axis in tensor_map.order)
            element = [0] * len(shared_access.base)
            for dim, step in offset.items():
                element[shared_view.axis(dim)] = step
            boxes.append(Box(tensor_map.name, coordinates, printer.shared_address(start_access, tuple(element)), shifts))
    return boxes


def _map_of(global_view: View, chunks: SmemLayout, shared_view: View) -> TensorMap:
    """Return the tensor map of an array whose boxes are chunks in shared memory."""
    width, rows = chunks.span // shared_view.dtype.bytes, constant(shared_view.shape[1 - chunks.along]) or 0
    order = _order(global_view, chunks.along)
    rows = min(rows, _rows_of_page(global_view, chunks.along))
    box = (width, rows // -(-rows // MOST_ROWS), *(1 for _ in order[2:]))
    pixels = pixel_tile(global_view, "", chunks.along) if has_digits(global_view) else None
    mode = pixels.mode if isinstance(pixels, PixelTile) else None
    return TensorMap(f"{global_view.tensor.name}_map", global_view.tensor.name, order, box, chunks.span, mode)


TMA_LOAD = TmaLoad("TMA_LOAD")
TMA_STORE = TmaStore("TMA_STORE")
TMA_ADD = TmaAdd("TMA_ADD")

INSTRUCTIONS: tuple[Executable, ...] = (TMA_LOAD, TMA_STORE, TMA_ADD)

EXAMPLES = (AtomicAdd(64, 4, src=RowMajor, dst=RowMajor)(SH, GL)(Warpgroup),)
"""A spec for an addition, whose rows of 16 bytes are chunks without a swizzle."""

__all__ = ["TMA_ADD", "TMA_LOAD", "TMA_STORE", "TmaAdd", "TmaLoad", "TmaStore"]
