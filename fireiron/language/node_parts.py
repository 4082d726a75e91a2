"""The parts of operands that a launch on one GPU of a node accesses, if the GPUs divide a dimension equally."""

from __future__ import annotations

import math
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.language.tree import Decomposition
from fireiron.spec import Spec
from fireiron.specs.formula import Affine, Index, Looked
from fireiron.specs.fused import Fused, fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_sizes import operand_tensor
from fireiron.specs.indirect import Stored
from fireiron.specs.move import Move
from fireiron.specs.steps import EXTENTS, INDICES
from fireiron.values.distribution import Portion
from fireiron.values.expr import FALSE, ONE, SYMBOL_MAX, Expr, Var, as_expr, constant
from fireiron.values.indirect import ArrayIndex, DimIndex
from fireiron.values.layout import Layout
from fireiron.values.machine import RF, Block, DType, Kernel, Thread, bfloat16, float16, float32
from fireiron.values.strides import ANY
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, indirect, whole_view

ALIGNMENT = 16
"""Alignment in bytes of the parts of an array. Allocations of GPUs begin at multiples of 2 MiB; the simulator's parts are adjacent."""

LANES, ROWS, THREADS = 32, 32, 256
"""Vectors along a row, rows, and threads of a block in the default copy. A thread has four loads in flight."""


def part_of_gpu(spec: Spec, dim: str, what: str) -> Spec:
    """Return the spec of the launch on one GPU, which computes its equal part of dimension `dim`. Operands keep their names.

    An operand of which a GPU needs exactly its own part, or that every GPU stores, becomes a smaller array. Of other inputs, the launch
    reads the parts of all GPUs.

    Raises: DecompositionError if the GPUs cannot divide the dimension equally, or if a GPU would write parts of others.
    """
    gpus = _require_equal_parts(spec, dim, what)
    definition = fused(spec)
    if definition is None:
        return spec.at_level(Kernel, **{name: _part(spec, name, dim, gpus, what) for name in spec.operands})
    _require_local_coordinates(spec, definition, dim, what)
    own = {name: _part(spec, name, dim, gpus, what) for name in definition.arrays if definition.array_of(name) is None}
    tensors = {name: view.tensor for name, view in own.items()}
    tensors |= {one.operand: _array_part(spec, one, dim, gpus, what) for one in definition.indirect}
    extents = {label: size // gpus if label == dim else size for label, size in spec.extents.items()}
    others = (name for name in spec.operands if name not in own)
    return spec.at_level(Kernel, **own, **{name: whole_view(operand_tensor(definition, name, tensors, extents)) for name in others})


def gpus_of(spec: Spec, what: str) -> int:
    """Return the number of GPUs of a node. Raises: DecompositionError for a spec at another level."""
    if spec.level.gpus is None:
        raise DecompositionError(
            f"{what}: the spec is at level {spec.level}", legal="first in a chain, for a spec of a node with a number of GPUs: Node(2)",
            within=spec,
        )  # fmt: skip
    return spec.level.gpus


def _require_equal_parts(spec: Spec, dim: str, what: str) -> int:
    """Return the number of GPUs; refuse a dimension that they cannot divide equally."""
    gpus = gpus_of(spec, what)
    if spec.atomic or spec.accumulate != FALSE:
        raise DecompositionError(
            f"{what}: {spec.title} adds to the values of its result, which launches on GPUs do not receive", within=spec,
            legal="accumulate=False", hint="add the result in a further kernel",
        )  # fmt: skip
    if dim not in spec.dims:
        raise DecompositionError(f"{what}: {spec.title} has no dimension {dim}", legal=spec.dims, within=spec)
    if spec.size(dim).factor % gpus:
        raise DecompositionError(
            f"{what}: {gpus} GPUs cannot divide {dim} equally", got=f"{dim.upper()}={spec.size(dim)}", legal=f"a multiple of {gpus}",
            within=spec,
        )  # fmt: skip
    return gpus


def _require_local_coordinates(spec: Spec, definition: FusedDefinition, dim: str, what: str) -> None:
    """Refuse a definition whose values depend on a coordinate of the divided dimension: on each GPU, coordinates begin at 0."""
    words = {f"{INDICES}{dim}", f"{EXTENTS}{dim}"}
    step = next((step for step in definition.steps if words & set(step.reads)), None)
    if step is not None:
        raise DecompositionError(
            f"{what}: step {step.name} computes with the coordinate or the size of {dim}, which differ on each GPU", got=str(step.formula),
            legal="steps that read operands only", within=spec, hint=f"pass the coordinates as an operand that is distributed over {dim}",
        )  # fmt: skip


def _array_part(spec: Spec, stored: Stored, dim: str, gpus: int, what: str) -> Tensor:
    """Return the array of an indirect operand in the launch on one GPU. Its indices stay as they are.

    Raises: DecompositionError if an index is a digit of the divided dimension, or if GPUs store parts of several elements of a dimension.
    """
    name, array = stored.operand, spec.operands[stored.operand].tensor.array
    if name in spec.outputs:
        why = f"{stored} is written by indices, and GPUs write their own parts only"
        raise DecompositionError(f"{what}: {why}", legal="outputs with plain dimensions", within=spec)
    parts = [part for one in stored.index for part in (one.index if isinstance(one, Looked) else (one,))]
    digits = next((part for part in parts if _computes_with(part, dim)), None)
    owned = array.distributed_over
    axis = None if owned is None else stored.of.index(owned)
    plain = next((place for place, one in enumerate(stored.index) if isinstance(one, Index) and one.plain and one.dim == dim), None)
    if digits is not None or (plain is not None and plain != axis):
        raise DecompositionError(
            f"{what}: the index {digits or dim} of {stored} depends on {dim}, whose coordinates begin at 0 on each GPU",
            legal=f"elements of tables that are distributed over {dim}", within=spec,
        )  # fmt: skip
    if axis is None:
        return array
    local = tuple(size // gpus if place == axis else size for place, size in enumerate(array.shape))
    if plain is not None:
        return attrs.evolve(array, shape=local, layout=array.order)
    if constant(local[axis]) != 1:
        raise DecompositionError(
            f"{what}: {name} is distributed over {owned}, of which each GPU stores {local[axis]} elements", got=str(stored), within=spec,
            legal=f"{gpus} elements of {owned}, one per GPU", hint=f"a further dimension: {name}[gpu[...], row[...], ...]",
        )  # fmt: skip
    return _joined(array, axis, local)


def _computes_with(index: Index | Affine, dim: str) -> bool:
    """Whether an index is a digit or an expression of a coordinate."""
    if isinstance(index, Index):
        return index.dim == dim and not index.plain
    return dim in {term[0] for term in (*index.terms, *index.digits)}


def _joined(array: Tensor, axis: int, part: tuple[Expr, ...]) -> Tensor:
    """Return the parts of all GPUs, each of which has one element of dimension `axis`, as one array; `part` is their shape."""
    steps = list(attrs.evolve(array, shape=part, layout=array.order).storage().steps)
    steps[axis] = _stride_of_gpus(array)
    layout = Layout(array.shape, tuple(steps))  # type: ignore[arg-type]
    return attrs.evolve(array, layout=layout, portion=Portion(gpu_axis=axis, joined=constant(array.shape[axis]) or 0))


def _stride_of_gpus(array: Tensor) -> Var:
    """Return the distance of the parts of two GPUs, in elements."""
    return Var(f"stride_{array.name}_gpu", 1, SYMBOL_MAX, max(ALIGNMENT // array.dtype.bytes, 1), True)


def _part(spec: Spec, name: str, dim: str, gpus: int, what: str) -> View:
    """Return the view of an operand in the launch on one GPU."""
    tensor, dims = spec.operands[name].tensor, spec.uses[name]
    if tensor.through is not None or tensor.memory.by_value:
        raise DecompositionError(
            f"{what}: {name} is {'passed by value' if tensor.memory.by_value else 'read through indices'}, and GPUs store arrays only",
            legal="operands with plain dimensions in GL", within=spec,
        )  # fmt: skip
    owned = tensor.distributed_over
    if name in spec.outputs and owned != dim:
        stored = f"distributed over {owned}" if owned is not None else "complete on each GPU"
        raise DecompositionError(
            f"{what}: each GPU computes a part of {name} along {dim}, but {name} is {stored}", within=spec,
            legal=f"{name}={tensor.order!r}.over(GPU, {dim!r})" + (f", or to_gpus({owned!r})" if owned is not None else ""),
        )  # fmt: skip
    local = tuple(size // gpus if label == owned else size for label, size in zip(dims, tensor.shape, strict=True))
    along = dims.index(dim) if dim in dims and owned != dim else None
    if owned in (None, dim):
        shape = tuple(size // gpus if axis == along else size for axis, size in enumerate(local))
        layout = tensor.order if along is None else _sliced(tensor, along, shape)
        portion = None if along is None else Portion(own_along=along)
        return whole_view(attrs.evolve(tensor, shape=shape, layout=layout, portion=portion))
    return _everywhere(tensor, dims.index(owned), local, along, gpus, what)


def _sliced(tensor: Tensor, along: int, shape: tuple[Expr, ...]) -> MatrixLayout | Layout:
    """Return the storage of a slice of an array along a dimension, with the strides of the array; `shape` is that of the slice."""
    order = tensor.order
    if isinstance(order, MatrixLayout) and order.fastest_first(len(shape))[-1] == along:
        return order
    return Layout(shape, tensor.storage().steps)  # type: ignore[arg-type]


def _everywhere(tensor: Tensor, owned: int, local: tuple[Expr, ...], along: int | None, gpus: int, what: str) -> View:
    """Return the view of an input of which the launch reads the parts of all GPUs.

    The parts are at equal distances in the address space of each GPU. So they are one array, whose first dimension is the GPU.
    """
    part = constant(local[owned])
    if along is not None:
        raise DecompositionError(
            f"{what}: {tensor.name} is distributed over another dimension, and a GPU needs a slice of each part", got=str(tensor.layout),
            hint=f"distribute {tensor.name} over the dimension that the GPUs divide, or store it on each GPU",
        )  # fmt: skip
    if part is None:  # `gathered` copies the parts; no launch reads them directly
        return whole_view(attrs.evolve(tensor, layout=tensor.order, portion=Portion(gpu_axis=owned, joined=gpus)))
    stride = _stride_of_gpus(tensor)
    steps = attrs.evolve(tensor, shape=local, layout=tensor.order).storage().steps
    shape = (as_expr(gpus), *local)
    layout = Layout(shape, (stride, *steps))  # type: ignore[arg-type]
    array = attrs.evolve(tensor, shape=shape, layout=layout, portion=Portion(gpu_axis=0))
    rest: tuple[ArrayIndex, ...] = tuple(DimIndex(axis, 1, part if axis == owned else 0) for axis in range(len(local)))
    return whole_view(indirect(array, tensor.shape, (DimIndex(owned, part), *rest)))


def partial_sums(spec: Spec, dim: str, what: str, stored: DType | None = None, overlapped: bool = False) -> tuple[Spec, Spec]:
    """Return the launch that computes the sums of one GPU's part of a reduction dimension, and the launch that adds those of all GPUs.

    Each GPU stores its sums for the complete result, in the type `stored` (None: that of the accumulator). Then it adds the sums of all
    GPUs, in the order of their numbers, for the part of the result that it stores. So the result is the same in each run, and on each GPU.
    If both launches are `overlapped`, GPUs store sums on the GPU that adds them.

    Raises: DecompositionError if the spec is not a sum of products over the dimension.
    """
    gpus = _require_equal_parts(spec, dim, what)
    if not spec.multiplies:
        raise DecompositionError(
            f"{what}: the parts of {dim} are summed, and {spec.title} is not a sum of products", within=spec,
            legal="MatMul, or to_gpus of a dimension of the result",
        )  # fmt: skip
    result = spec.C.tensor
    accumulator = spec.accumulator or (float32 if result.dtype in (float16, bfloat16) else result.dtype)
    dtype = accumulator if stored is None else stored
    if dtype not in (accumulator, result.dtype):
        legal = dict.fromkeys((accumulator, result.dtype))
        raise DecompositionError(f"{what}: sums of parts cannot have this type", got=dtype, legal=list(legal), within=spec)
    sums = attrs.evolve(result, name=f"sums_of_{result.name}", dtype=dtype, layout=result.order)
    inputs = {name: _part(spec, name, dim, gpus, what) for name in spec.inputs}
    product = spec.at_level(Kernel, **inputs, C=whole_view(sums))
    owned = None if result.distributed_over is None else spec.uses["C"].index(result.distributed_over)
    shape = tuple(size // gpus if axis == owned else size for axis, size in enumerate(result.shape))
    definition, added = _sum_over_gpus(spec.uses["C"], accumulator)
    if overlapped and (owned not in (0, None) or result.order != RowMajor):
        raise DecompositionError(
            f"{what}: warps add rows of the result, which GPUs store", got=f"C={result.layout}",
            legal="C=RowMajor.over(GPU, 'm') or RowMajor",
            within=spec, hint="remove overlap(...)",
        )  # fmt: skip
    stride = math.prod(shape, start=as_expr(1)) if overlapped else ANY(max(ALIGNMENT // dtype.bytes, 1)).named("P", added)
    layout = Layout((*shape, as_expr(gpus)), (*sums.storage().steps, stride))  # type: ignore[arg-type]
    portion = None if overlapped else Portion(len(shape), owned)
    parts = attrs.evolve(sums, shape=(*shape, as_expr(gpus)), layout=layout, portion=portion)
    own = attrs.evolve(result, shape=shape, layout=result.order)
    sizes: dict[str, Any] = dict(zip((*spec.uses["C"], added), (*shape, gpus), strict=True))
    total = definition(types={"P": dtype, "C": result.dtype}, **sizes)
    return product, total.with_operands(P=whole_view(parts), C=whole_view(own))


def _sum_over_gpus(dims: tuple[str, ...], accumulator: DType) -> tuple[Fused, str]:
    """Return the definition of a sum of the parts of all GPUs, for a result with some dimensions, and the dimension that it adds."""
    added = next(name for name in "pqrs" if name not in dims)
    index = ",".join(dims)
    definition = Fused(
        name="sum_of_gpus", dims=" ".join((*dims, added)), loop=added, operands={"P": " ".join((*dims, added)), "C": " ".join(dims)},
        init={"acc": f"acc[{index}] = 0"}, body={"add": f"acc[{index}] += sum({added}, P[{index},{added}])"},
        final={"store": f"C[{index}] = acc[{index}]"}, types={"acc": accumulator},
    )  # fmt: skip
    return definition, added


def sum_of_parts(spec: Spec) -> tuple[Decomposition, ...]:
    """Return the default strategy of a sum of the parts of all GPUs: a thread loads a vector of 16 bytes of each GPU, and stores one."""
    parts, result = spec.operands["P"].tensor, spec.operands["C"].tensor
    rank, by_rows = len(spec.uses["C"]), result.layout == RowMajor
    fast, slow = (rank - 1, rank - 2) if by_rows else (0, 1)
    vector = _widest(result.shape[fast], ALIGNMENT // parts.dtype.bytes)
    own, tile, piece = [1] * rank, [1] * rank, [1] * (rank + 1)
    own[fast] = piece[fast] = vector
    tile[fast] = LANES * own[fast]
    if rank > 1:
        tile[slow] = THREADS // LANES
    blocks, single = (dict(zip(spec.uses["C"], sizes, strict=True)) for sizes in (tile, own))
    start: Any = spec.starter
    threads = start.tile(**blocks).to(Block).tile(**single).to(Thread).layout(RowMajor if by_rows else ColMajor)
    steps: tuple[Decomposition, ...] = threads.load("P", RF, Move.tile(*piece).unroll().done()).done().steps
    return steps


def sum_of_launch(product: Spec, total: Spec) -> Spec:
    """Return the spec of the launch that computes the sums of a GPU and adds those of all GPUs: its result are rows that the GPU stores.

    The row of the result is that of the product, modulo the rows of a GPU.
    """
    own, shape = total.C.tensor, product.C.tensor.shape
    if own.shape == shape:
        return product.with_operands(C=whole_view(own))
    part = constant(own.shape[0]) or 0
    rows = indirect(own, shape, (DimIndex(0, 1, part), DimIndex(1, 1, 0)))
    return product.with_operands(C=whole_view(rows))


SUMMED_ROWS = 8
"""Most rows of which an adding lane loads the sums of all GPUs at once: further ones need more registers than products leave."""


def sum_by_warps(spec: Spec, region: tuple[int, ...], owners: int) -> tuple[Decomposition, ...]:
    """Return the default strategy of a sum over GPUs by warps of each block: a lane adds vectors of several rows.

    `region` are the sizes of the regions that warps wait for. Tiles are in the order in which GPUs compute them: those of the `owners` GPUs
    that store parts of the result alternate.

    Raises: DecompositionError if rows are not multiples of a vector for each lane.
    """
    parts = spec.operands["P"].tensor
    vector = _widest(spec.C.tensor.shape[1], ALIGNMENT // parts.dtype.bytes)
    rows = math.gcd(region[0], SUMMED_ROWS)
    columns = math.gcd(region[1], LANES * vector)
    if columns % vector or LANES % (columns // vector) or rows % (LANES * vector // columns):
        raise DecompositionError(
            f"overlap: {LANES} lanes add vectors of {vector} elements", got=f"regions of {region}", within=spec,
            legal=f"columns that are multiples of {LANES * vector}",
        )  # fmt: skip
    start: Any = spec.starter
    blocks = start.tile(m=rows, n=columns).to(Block).rasterize(group_m=max(ROWS_IN_ORDER // owners // rows, 1))
    threads = blocks.tile(m=rows * columns // (LANES * vector), n=vector).to(Thread).layout(RowMajor)
    loaded = threads.load("P", RF, Move.tile(1, vector, 1).unroll().done())
    steps: tuple[Decomposition, ...] = loaded.tile(m=1, n=vector).unroll().done().steps
    return steps


def _widest(size: Expr, most: int) -> int:
    """Return the largest power of two up to `most` that divides a size."""
    return next(width for width in (16, 8, 4, 2, 1) if width <= max(most, 1) and size.factor % width == 0)


def gathered(spec: Spec, operand: str, what: str) -> tuple[Spec, Spec]:
    """Return the copy of the parts of all GPUs to a new array of the launch's GPU, and the spec that reads this array.

    Raises: DecompositionError if the launch reads no parts of other GPUs of this operand.
    """
    remote = [name for name, view in spec.operands.items() if view.tensor.of_all_gpus]
    if operand not in remote:
        raise DecompositionError(
            f"{what}: the launch reads {operand} from the memory of one GPU", within=spec, legal=remote or "none of its operands",
            hint=f"load({operand}, SH) in a block",
        )  # fmt: skip
    source = spec.operands[operand].tensor
    if source.portion is not None and source.portion.joined:
        return _gathered_parts(spec, operand, source)
    order = _order_of_parts(source)
    target = Tensor(f"gathered_{source.name}", source.shape, source.dtype, source.memory, order, origin=source.origin)
    copy = Move.on(Kernel, whole_view(source), whole_view(target))
    return copy, spec.with_operands(**{operand: whole_view(target)})


def _gathered_parts(spec: Spec, operand: str, source: Tensor) -> tuple[Spec, Spec]:
    """Return the copy of parts whose size is known only at run time: an array with an additional dimension of GPUs, on both sides."""
    assert source.portion is not None and source.portion.gpu_axis is not None
    axis, gpus = source.portion.gpu_axis, source.portion.joined
    target = Tensor(f"gathered_{source.name}", source.shape, source.dtype, source.memory, source.layout, origin=source.origin)
    part = tuple(size // gpus if place == axis else size for place, size in enumerate(source.shape))
    shape = (as_expr(gpus), *part)
    inner = attrs.evolve(source, shape=part, portion=None).storage().steps
    outer = target.storage().steps
    assert None not in (*inner, *outer)
    parts = Layout(shape, (_stride_of_gpus(source), *inner))  # type: ignore[arg-type]
    whole = Layout(shape, (outer[axis] * part[axis], *outer))  # type: ignore[arg-type]
    src = attrs.evolve(source, shape=shape, layout=parts, portion=Portion(gpu_axis=0))
    dst = attrs.evolve(target, shape=shape, layout=whole, portion=Portion(divided=axis))
    return Move.on(Kernel, whole_view(src), whole_view(dst)), spec.with_operands(**{operand: whole_view(target)})


def of_own_part(tensor: Tensor) -> Tensor:
    """Return the part that a GPU stores instead of the parts of all GPUs, with the same sizes: coordinates count modulo those of the part.

    Tensors that are not the parts of all GPUs, of a constant size, stay as they are.
    """
    through = tensor.through
    number = None if through is None or tensor.array.portion is None else through.index[0]
    if through is None or not isinstance(number, DimIndex) or not number.divisor > 1:
        return tensor
    array = through.array
    order = _order_of_parts(tensor)
    local = attrs.evolve(array, shape=array.shape[1:], layout=order, portion=None)
    return indirect(local, tensor.shape, through.index[1:])


def to_other_gpus(copy: Spec) -> Spec:
    """Return the copy of the own part to each other GPU, from a copy of the parts of all GPUs.

    Rows of the source and of the result count through the parts of all other GPUs; a GPU adds the number of the first one.
    """
    source, through = copy.src.tensor, copy.src.tensor.through
    number = None if through is None else through.index[0]
    own = of_own_part(source)
    if own is source or not isinstance(number, DimIndex):
        return copy
    shape = tuple(size - number.divisor if axis == number.dim else size for axis, size in enumerate(source.shape))
    assert own.through is not None
    others = indirect(own.through.array, shape, own.through.index)
    return Move.on(Kernel, whole_view(others), whole_view(attrs.evolve(copy.dst.tensor, shape=shape)))


def _order_of_parts(tensor: Tensor) -> MatrixLayout:
    """Return the storage order of the parts of an array."""
    return RowMajor if tensor.array.storage().steps[-1] == ONE else ColMajor


def copy_of_parts(spec: Spec) -> tuple[Decomposition, ...]:
    """Return the default strategy of a copy of parts: adjacent threads copy adjacent vectors of 16 bytes."""
    order = _order_of_parts(spec.src.tensor)
    tile, own, piece, order = _vectors(order == RowMajor, len(spec.dims), spec.src.dtype.bytes)
    threads = Move.tile(*tile).to(Block).tile(*own).to(Thread).layout(order)
    steps: tuple[Decomposition, ...] = threads.tile(*piece).unroll().done().steps
    return steps


COPIED_ROWS = 16
"""Vectors that a lane of a copying warp loads at once."""

ROWS_IN_ORDER = 1024
"""Rows of which copying warps copy the first columns before further ones: about those that the first tiles of all SMs need."""


def copy_by_warps(spec: Spec, region: tuple[int, ...]) -> tuple[Decomposition, ...]:
    """Return the default strategy of a copy by one warp of each block: 8 vectors per lane, in rows of at most 32 vectors.

    `region` are the sizes of the regions that readers wait for. Tiles are in the order of columns within `ROWS_IN_ORDER` rows.

    Raises: DecompositionError if a row is not a multiple of a vector.
    """
    row_major = _order_of_parts(spec.src.tensor) == RowMajor
    vector, length = max(ALIGNMENT // spec.src.dtype.bytes, 1), spec.src.tensor.shape[-1 if row_major else 0]
    along = math.gcd(length.factor, LANES * vector, region[-1 if row_major else 0])
    if along % vector:
        raise DecompositionError(
            f"overlap: a lane copies {vector} adjacent elements, and rows have {length}", within=spec, legal=f"a multiple of {vector}",
            hint="a strategy for the copy: load(operand, GL, Move...)",
        )  # fmt: skip
    rows = COPIED_ROWS * LANES * vector // along
    tile, own, piece = (rows, along), (COPIED_ROWS, vector), (1, vector)
    if not row_major:
        tile, own, piece = tile[::-1], own[::-1], piece[::-1]
    blocks = Move.tile(*tile).to(Block).rasterize(group_m=max(ROWS_IN_ORDER // tile[0], 1))
    threads = blocks.tile(*own).to(Thread).layout(RowMajor if row_major else ColMajor)
    steps: tuple[Decomposition, ...] = threads.tile(*piece).unroll().done().steps
    return steps


def _vectors(row_major: bool, rank: int, bytes: int) -> tuple[list[int], list[int], list[int], MatrixLayout]:
    """Return the tiles of a block and of a thread, a vector, and the order of threads, for arrays with elements of some bytes."""
    vector = max(ALIGNMENT // bytes, 1)
    fast, slow = (rank - 1, rank - 2) if row_major else (0, 1)
    tile, own, piece = [1] * rank, [1] * rank, [1] * rank
    tile[fast], own[fast], piece[fast] = LANES * vector, vector, vector
    if rank > 1:
        tile[slow], own[slow] = ROWS, ROWS * LANES // THREADS
    return tile, own, piece, RowMajor if row_major else ColMajor


__all__ = [
    "ALIGNMENT",
    "copy_by_warps",
    "copy_of_parts",
    "gathered",
    "gpus_of",
    "of_own_part",
    "part_of_gpu",
    "partial_sums",
    "sum_by_warps",
    "sum_of_launch",
    "sum_of_parts",
    "to_other_gpus",
]
