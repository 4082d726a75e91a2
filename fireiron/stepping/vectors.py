"""Elementwise steps from memory to a temporary in shared memory: all threads of a level compute and store vectors of 16 bytes."""

from __future__ import annotations

import math

import attrs

from fireiron.language.substrategy import default_copy, written
from fireiron.language.tree import Context, Decomposition
from fireiron.performing.layout_propagation import elementwise
from fireiron.spec import AnySpec, Spec
from fireiron.specs.formula import Operation, Value
from fireiron.specs.operand import SRC
from fireiron.values.expr import constant
from fireiron.values.machine import RF
from fireiron.values.tensor import ColMajor, RowMajor, View
from fireiron.values.units import thread_of

VECTOR = 16
"""Bytes of the widest store of a thread."""

MOST_UNROLLED = 16
"""Maximum number of vectors per thread for which the loop over them is unrolled."""

LONG_FUNCTIONS = ("sin", "cos")
"""Functions with some dozen instructions each, whose unrolled loops take long to compile and exceed the instruction cache."""

MOST_LONG_FUNCTIONS = 32
"""Maximum number of evaluations of `LONG_FUNCTIONS` per thread for which the loop over vectors is unrolled."""


def from_memory_to_shared(spec: Spec) -> bool:
    """Return whether several threads compute elements in shared memory from memory, each from elements at its own coordinates."""
    views = [spec.operands[name] for name in spec.outputs]
    if len(views) != 1 or not views[0].memory.of_block or spec.level.threads == 1 or spec.level.is_launch:
        return False
    private = any(view.memory.private for view in spec.operands.values())
    return elementwise(spec) and not private and not spec.definition.sets_numbers and not spec.atomic


def awaits_reader(spec: Spec, context: Context) -> bool:
    """Return whether an instruction that reads the result may still choose its storage, which determines the vectors."""
    (name,) = spec.outputs
    tensor = spec.operands[name].tensor
    return tensor.free and tensor.name not in context.whole.chosen_storage and not context.decides


def in_vectors(spec: Spec, context: Context) -> tuple[Decomposition, ...]:
    """Return the steps that distribute a spec over all threads: adjacent threads store adjacent vectors of the result."""
    (name,) = spec.outputs
    view = _as_stored(spec.operands[name], context)
    order = tuple(spec.dims.index(spec.uses[name][dim]) for dim in view.storage_order)
    along = order[0]
    width = math.gcd(max(VECTOR // view.dtype.bytes, 1), constant(spec.sizes[along]) or 1)
    sizes = tuple(width if dim == along else 1 for dim in range(len(order)))
    thread_order = {(0,): RowMajor, (0, 1): ColMajor, (1, 0): RowMajor}.get(order, order)
    tile = AnySpec.tile(*sizes).to(thread_of(spec.level)).layout(thread_order)
    threads = spec.level.threads or context.workers or 1
    vectors = math.prod(constant(size) or 1 for size in spec.sizes) // (width * threads)
    is_long = vectors > 1 and vectors * width * _long_functions(spec) > MOST_LONG_FUNCTIONS
    return written(tile if vectors > MOST_UNROLLED or is_long else tile.unroll())


def _long_functions(spec: Spec) -> int:
    """Return how many of `LONG_FUNCTIONS` are evaluated for an element."""
    pending: list[Value] = [formula.value for formula in spec.definition.formulas if formula.value is not None]
    count = 0
    while pending:
        value = pending.pop()
        if isinstance(value, Operation):
            count += value.name in LONG_FUNCTIONS
            pending += value.arguments
    return count


def _as_stored(view: View, context: Context) -> View:
    """Return a view in the storage that a reader chose for its tensor, if any."""
    storage = context.whole.chosen_storage.get(view.tensor.name)
    if storage is None:
        return view
    return attrs.evolve(view, tensor=attrs.evolve(view.tensor, layout=storage.layout, swizzle=storage.swizzle))


def steps_to_shared(spec: Spec) -> tuple[Decomposition, ...]:
    """Return the steps of a step that computes a temporary in shared memory from memory, if its strategy does not state them."""
    if not spec.moves:
        return default_copy()[-1:]
    width = max(VECTOR // spec.dst.dtype.bytes, 1)
    if spec.src.dtype == spec.dst.dtype:
        return written(AnySpec.coalesced_copy(width).done())
    # Converted in registers, between a vector load and a vector store.
    sizes = (*(1 for _ in spec.dims[1:]), math.gcd(width, constant(spec.sizes[-1]) or 1))
    return written(AnySpec.tile(*sizes).to(thread_of(spec.level)).load(SRC, RF, AnySpec.done()).done())
