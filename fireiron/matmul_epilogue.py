"""Matmuls with an epilogue: specs for the arrays of a call of `fireiron.matmul`, and the choice of a strategy."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.batched_matmul import BatchViews, MatrixView
from fireiron.compiler import Program
from fireiron.errors import ArgumentError, FireironError, closest
from fireiron.front.arrays import TYPES, Given, Operand, each, operands_of
from fireiron.front.call import Request
from fireiron.front.place import fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.strategy import Strategy
from fireiron.matmul_choice import BoundKernel, ProductKernel, chosen, kernels_of_parts, number_of_parts, split_of
from fireiron.matmul_problem import CacheKey, Problem, key_and_views, layout, loosened, storage
from fireiron.spec import Spec
from fireiron.specs.bits import RANDOM
from fireiron.specs.epilogue import RESULT, folds_rows, outputs_of, signature_of, transposed, with_epilogue, without_batch
from fireiron.specs.epilogue import epilogue as epilogue_of
from fireiron.specs.formula import names_of
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import INDICES
from fireiron.tune.records import Choice
from fireiron.values.expr import constant
from fireiron.values.machine import DTYPES, Architecture, DType, as_dtype
from fireiron.values.strides import StorageOrder, Strides
from fireiron.values.tensor import ColMajor, RowMajor

FURTHER: Final[Mapping[str, DType]] = {**TYPES, **{name: dtype for dtype in DTYPES for name in dtype.numpy_aliases}}
"""Supported element types of arrays that an epilogue reads, by NumPy's names."""


def outputs_named(request: Request) -> dict[str, Any]:
    """Return the outputs of a request in the order of its epilogue, each with its array or None.

    Without an epilogue, C is the only output.
    """
    text, out = request.options.epilogue, request.out
    if text is None:
        return {RESULT: out}
    names = outputs_of(text, is_batched_request(request))
    if out is None:
        return dict.fromkeys(names)
    if isinstance(out, Mapping) and set(out) != set(names):
        raise ArgumentError("the names in out are not the outputs of the epilogue", got=tuple(out), legal=names)
    arrays = each(out, names)
    if len(arrays) != len(names):
        raise ArgumentError(f"out has {len(arrays)} arrays for {len(names)} outputs of the epilogue", legal=names)
    return dict(zip(names, arrays, strict=True))


def kernel_with_epilogue(request: Request, outs: Mapping[str, Any]) -> BoundKernel:
    """Return the kernel with the epilogue: by a record of exactly this problem, by the strategy for the plain matmul, or by default."""
    options, text = request.options, request.options.epilogue
    given = dict(zip(options.names, request.inputs[2:], strict=True))
    further = operands_of({name: array for name, array in given.items() if getattr(array, "shape", ())})
    flatten = is_batched_request(request) and (request.out is None or len(outs) < 2) and folds_rows(text)
    key, views = key_and_views(request._replace(out=outs.get(RESULT)), flatten)
    as_matrix = is_batched_request(request) and not views.signature
    folded = frozenset(name for name in (*further, *outs) if as_matrix and _has_batch_dim(text, name))
    further |= operands_of({name: array for name, array in outs.items() if name != RESULT})
    further = {name: _viewed_as(one, views) if name in folded else one for name, one in further.items()}
    own = without_batch(text) if as_matrix else text
    specs = {problem: _spec_of(problem, own, dict(options.types), given, further) for problem in key.problems}
    choice, problem = _cached_or_chosen(_Question(key, specs, further, text, own))
    places = {name: place for place, name in enumerate(options.names, 2)}
    kernel = _kernel_of(choice, problem, specs[problem], own, key.place.device)
    inputs = (kernel.sum_kernel or kernel.kernel).program.spec.inputs
    order = tuple(places[name] for name in inputs if name in places)
    transposed_outputs = _transposed_outputs(problem, _definition(problem, own))
    return BoundKernel(kernel, views, order, tuple(outs), transposed_outputs, frozenset(places.get(name, name) for name in folded))


def is_batched_request(request: Request) -> bool:
    """Return whether an operand is a batch."""
    return max(len(getattr(array, "shape", ())) for array in request.inputs[:2]) == 3


def _has_batch_dim(text: str, name: str) -> bool:
    """Return whether the epilogue has an operand with the batch dimension."""
    return "b" in epilogue_of(text, signature="bmk,bkn->bmn").fused_definition.uses.get(name, ())


def _viewed_as(operand: Operand, views: BatchViews) -> Operand:
    """Return the view of a further operand. If a batch is flattened, arrays with a batch dimension are flattened, too."""
    if views.c is MatrixView.FIRST:
        return operand.at((operand.shape[1:], operand.steps[1:]))
    return operand.at(((operand.shape[0] * operand.shape[1], *operand.shape[2:]), operand.steps[1:]))


# ---------------------------------------------------------------------------------------------- specs


def _definition(problem: Problem, text: str) -> FusedDefinition:
    """Return the definition of the matmul with the epilogue; m and n are swapped if transposed."""
    return epilogue_of(_own(problem, text), signature=signature_of(problem.spec)).fused_definition


def _own(problem: Problem, text: str) -> str:
    return transposed(text) if problem.transposed else text


def _transposed_outputs(problem: Problem, definition: FusedDefinition) -> frozenset[str]:
    """Return the outputs that are transposed arrays."""
    return frozenset(name for name in definition.outputs if problem.transposed and definition.uses[name] == ("m", "n"))


def _spec_of(problem: Problem, text: str, types: Mapping[str, Any], given: Mapping[str, Any], further: Given) -> Spec:
    """Return the spec of a matmul with an epilogue for the arrays."""
    definition, plain = _definition(problem, text), problem.spec
    _check(definition, plain, _own(problem, text), given, further)
    legal = [name for name in definition.outputs if name != RESULT]
    strange = next((name for name in types if name not in legal), None)
    if strange is not None:
        hint = "c_dtype= specifies the type of C" if strange == RESULT else None
        raise ArgumentError(f"matmul: types has {strange}, which is not a further output", legal=legal or "none", hint=hint)
    transposed_outputs = _transposed_outputs(problem, definition)
    kinds: dict[str, Any] = {name: as_dtype(kind) for name, kind in types.items()}
    orders: dict[str, StorageOrder] = {name: ColMajor for name in transposed_outputs if name != RESULT}
    for name in (name for name in further if name != RESULT and name in definition.uses):
        operand = further[name].transposed if name in transposed_outputs else further[name]
        orders[name] = _stored(operand, name, definition.uses[name], plain)
        kinds[name] = FURTHER[operand.dtype]
    return loosened(with_epilogue(plain, _own(problem, text), kinds, orders), further)


def _check(definition: FusedDefinition, plain: Spec, text: str, given: Mapping[str, Any], further: Given) -> None:
    """Refuse an epilogue with missing operands, and operands that it does not read."""
    own = {*plain.operands, *definition.outputs}
    inputs = [name for name in definition.uses if name not in own and not name.startswith(INDICES)]
    missing = [name for name in inputs if name not in given]
    if missing:
        meant = closest(missing[0], [name for name in given if name not in inputs])
        hint = f"did you mean {meant}?" if meant else f"matmul(a, b, {missing[0]}=...)"
        raise ArgumentError(f"matmul: the epilogue reads {', '.join(missing)}, which is missing", got=text if meant else None, hint=hint)
    unknown = [name for name in given if name not in inputs]
    if unknown:
        raise ArgumentError(f"matmul: the epilogue does not read {unknown[0]}", got=text, legal=inputs or "none")
    bare = next((name for name in inputs if definition.uses[name] and name not in further), None)
    if bare is not None:
        asked_for = f"matmul: {bare} is a number, but the epilogue reads {bare}[{','.join(definition.uses[bare])}]"
        raise ArgumentError(asked_for, got=given[bare], hint=f"pass an array, or write {bare} without indices")


def _stored(operand: Operand, name: str, dims: tuple[str, ...], plain: Spec) -> StorageOrder:
    """Return the storage of a further operand; refuse a shape that its dimensions do not have."""
    wanted = tuple(constant(plain.size(dim)) for dim in dims)
    if not dims:
        raise ArgumentError(
            f"{name} is a number, but an array of shape {operand.shape} is given", hint=f"pass a number, or write {name}[n]"
        )
    if operand.dtype not in FURTHER:
        raise ArgumentError(f"{name}: no kernel supports its element type", got=operand.dtype, legal=list(FURTHER))
    if operand.shape != wanted:
        raise ArgumentError(f"{name} has the shape {operand.shape}", legal=f"{wanted}, as {name}[{','.join(dims)}] specifies")
    if len(dims) == 1:
        return RowMajor if operand.steps[0] == 1 or operand.shape == (1,) else Strides(**{dims[0]: operand.steps[0]})
    return layout(operand, name) if len(dims) == 2 else storage(operand, name, "bmn")


# ---------------------------------------------------------------------------------------------- choosing


@frozen
class _Question:
    """The plain problems, their specs with the epilogue, the further operands, and the epilogue: as given, and for the plain problem."""

    key: CacheKey
    specs: Mapping[Problem, Spec]
    further: Given
    text: str
    own: str

    def aligned(self, problem: Problem) -> dict[str, int]:
        """The alignment in bytes by operand, including those of the epilogue."""
        return {**problem.aligned, **{name: operand.align for name, operand in self.further.items()}}


def _cached_or_chosen(question: _Question) -> tuple[Choice, Problem]:
    """Return the cached choice of another process, or a new choice, which is then cached."""
    key, specs = question.key, question.specs

    def choose() -> tuple[Choice, int]:
        choice, problem = _recorded(question) or _by_product(question)
        return choice, key.problems.index(problem)

    aligned = key.aligned, {name: operand.align for name, operand in question.further.items()}
    spec_keys = tuple((problem.spec, problem.transposed, spec) for problem, spec in specs.items())
    choice, number = key.place.chosen("epilogue", (spec_keys, aligned, key.place.require_record), choose)
    return choice, key.problems[number]


def _recorded(question: _Question) -> tuple[Choice, Problem] | None:
    """Return the choice by a record of exactly this matmul and epilogue."""
    for problem, spec in question.specs.items():
        choice = question.key.place.find(spec, functools.partial(fits, question.aligned(problem)))
        if choice is not None:
            return choice, problem
    return None


def _by_product(question: _Question) -> tuple[Choice, Problem]:
    """Return the strategy for the plain matmul with the epilogue, or a legal default."""
    key, refusals = question.key, list[str]()
    choice, plain = chosen(key, _lowered, lambda problem: lambda strategy: strategy.on_product(question.specs[problem]))
    split = _split(question, choice, plain)
    if split is not None:
        return split, plain
    shorter = _in_smaller_tiles(question, choice, plain)
    if shorter is not None:
        return shorter, plain
    for problem in (plain, *(problem for problem in key.problems if problem is not plain)):
        programs = _programs(choice if problem is plain else None, problem, question)
        program = key.place.first_legal(programs, question.aligned(problem), refusals)
        if program is not None:
            return attrs.evolve(choice, program=program), problem
    asked = f"no strategy of the library computes {question.text!r} after {plain.spec} on {key.place.architecture}"
    raise ArgumentError(asked, got="; ".join(dict.fromkeys(refusals)))


def _lowered(program: Program) -> None:
    """Lower a program as far as a choice requires. `first_legal` checks it afterwards, unless K is split."""
    _ = program.sequential


def _in_smaller_tiles(question: _Question, choice: Choice, problem: Problem) -> Choice | None:
    """Return the choice of a tile with fewer elements per thread for an epilogue with random numbers; None if the chosen tile is small."""
    spec, place = question.specs[problem], question.key.place
    record, sizes = choice.record, [constant(problem.spec.size(dim)) for dim in "mn"]
    steps = _definition(problem, question.own).steps
    if record is None or record.strategy != "hopper" or not any(names_of(step.formula.value) & {*RANDOM} for step in steps):
        return None
    from fireiron.language.library import LIBRARY, default_strategy

    hopper = importlib.import_module(f"{LIBRARY}.hopper")
    values = hopper.LONG_EPILOGUE
    tiles = math.prod(-(-(size or 0) // values[name]) for size, name in zip(sizes, ("bm", "bn"), strict=True))
    if record.values["wm"] * record.values["wn"] <= values["wm"] * values["wn"] or tiles < hopper.num_blocks.values[0]:
        return None
    make = functools.partial(_program, default_strategy("hopper", values, problem.spec), spec, place.architecture)
    program = place.first_legal([("hopper", make)], question.aligned(problem), [])
    if program is None:
        return None
    shown = " ".join(f"{name}={value}" for name, value in values.items())
    return Choice(None, False, f"fewer elements per thread, because the epilogue has random numbers: hopper {shown}", program)


def _split(question: _Question, choice: Choice, problem: Problem) -> Choice | None:
    """Return the choice for split-K if it is expected to be faster, and if its second kernel can apply the epilogue; otherwise None."""
    place = question.key.place
    split = split_of(question.key, choice, problem)
    if split is None:
        return None
    adding = _finishing(question.specs[problem], number_of_parts(split, problem), question.own, place.architecture)
    if adding is None or not fits(question.aligned(problem), adding):
        return None
    for program in (split.program, adding):
        place.prove(program)
    return None if place.refusal(CompiledKernel(split.program)) else split


@functools.lru_cache(maxsize=4)  # `_split` and `_kernel_of` use the same program
def _finishing(spec: Spec, parts: int, text: str, architecture: Architecture) -> Program | None:
    """Return the program that adds the parts of a matmul with an epilogue and applies the epilogue; None if there is no legal one."""
    from fireiron.language.library import LIBRARY

    finishing = importlib.import_module(f"{LIBRARY}.add_parts").finishing
    try:
        bound = finishing(spec, parts, text)
    except FireironError:  # the epilogue reads A or B
        return None
    for strategy in bound:
        try:
            program: Program = strategy.program(architecture)
            _ = program.ir
        except FireironError:
            continue
        return program
    return None


def _kernel_of(choice: Choice, problem: Problem, spec: Spec, text: str, device: int | None) -> ProductKernel:
    """Return the kernel of a choice; for split-K with the kernel that adds the parts and applies the epilogue."""
    parts = number_of_parts(choice, problem)
    if parts == 1:
        return ProductKernel(CompiledKernel(choice.program), choice, problem)
    adding = _finishing(spec, parts, text, choice.program.architecture)
    assert adding is not None
    return kernels_of_parts(choice, problem, adding, device)


def _programs(choice: Choice | None, problem: Problem, question: _Question) -> Iterator[tuple[str, Callable[[], Program]]]:
    """Yield the strategy chosen for the plain matmul, and the defaults, with the epilogue."""
    spec, architecture = question.specs[problem], question.key.place.architecture
    if choice is not None and choice.program.spec == spec:
        yield choice.program.name, lambda: choice.program
    strategies = [] if choice is None or choice.program.spec == spec else [(choice.program.name, choice.program.strategy)]
    from fireiron.language.library import default_strategy, defaults

    known = ((name, default_strategy(name, values, problem.spec)) for name, values in defaults(problem.spec, architecture))
    for name, strategy in itertools.chain(strategies, known):
        yield name, functools.partial(_program, strategy, spec, architecture)


def _program(strategy: Strategy, spec: Spec, architecture: Architecture) -> Program:
    return strategy.on_product(spec).program(architecture)


__all__ = ["kernel_with_epilogue", "is_batched_request", "outputs_named"]
