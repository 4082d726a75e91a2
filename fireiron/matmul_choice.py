"""Choose the kernel of a matmul by its record, by records of other problems, or by default; with split-K if that is probably faster.

A choice that another process cached needs neither records nor strategies, so their modules are imported where they are used.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batched_matmul import MATRICES, BatchViews, batch_views
from fireiron.batches import cut, viewed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import each, joined
from fireiron.front.call import returned
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.matmul_problem import CacheKey, Problem, spec_of
from fireiron.specs.epilogue import RESULT
from fireiron.tune.records import Choice, preference
from fireiron.tune.records.choosing import Bind, Prove, Question, prove_only
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import constant
from fireiron.values.indirect import DimIndex
from fireiron.values.machine import float32
from fireiron.values.tensor import RowMajor, indirect, whole_view

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.spec import Spec
    from fireiron.values.machine import Architecture


DERIVED: Final = 1 << 24
"""Multiply-adds from which a product is worth a derivation, which takes about a second."""

PRODUCT_CANDIDATES: Final = 6
"""Candidates of the derivation of a product."""


@frozen
class ProductKernel:
    """A kernel with its choice and its problem: the matmul, or the transposed matmul C.T = B.T A.T.

    With a `sum_kernel`, the first kernel multiplies `parts` parts of K as a batch, and `sum_kernel` adds the results and applies the
    epilogue.
    """

    kernel: CompiledKernel
    choice: Choice
    problem: Problem
    sum_kernel: CompiledKernel | None = None
    parts: int = 1

    def cut(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return the operands as batches of their parts, the same memory; or the operands if the kernel reads parts of their rows."""
        if self.kernel.program.spec.operands["A"].tensor.through is not None:
            return a, b
        left, right = cut(self.problem.operands["A"].places, self.problem.operands["B"].places, self.parts)
        return viewed(a, left), viewed(b, right)

    @property
    def transposed(self) -> bool:
        """Whether it computes the transposed matmul."""
        return self.problem.transposed


@frozen
class BoundKernel:
    """An answer that launches a kernel on views of the arrays.

    Attributes:
        product: the kernel.
        views: the views of batched arrays.
        order: the positions of the further inputs, in the order of the kernel.
        outputs: the outputs of an epilogue by name.
        transposed_outputs: the outputs that are transposed arrays.
        folded: the positions of further inputs, and names of outputs, that have the same view as the result.
        is_whole: whether all arrays are unchanged or only transposed.
    """

    product: ProductKernel
    views: BatchViews
    order: tuple[int, ...] = ()
    outputs: tuple[str, ...] = ()
    transposed_outputs: frozenset[str] = frozenset()
    folded: frozenset[Any] = frozenset((RESULT,))
    is_whole: bool = attrs.field(init=False)

    @is_whole.default
    def _is_whole(self) -> bool:
        in_order = self.order == tuple(range(2, 2 + len(self.order)))
        return in_order and self.views is MATRICES and self.product.sum_kernel is None

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel of the matmul."""
        return self.product.kernel

    @property
    def choice(self) -> Choice:
        """The choice and its reason."""
        return self.product.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the output, or a tuple of several."""
        product = self.product
        if self.is_whole and not product.transposed and (out is None or not self.outputs):
            return product.kernel(*inputs, out=out, stream=stream)
        if self.is_whole and len(self.outputs) < 2 and (out is None or not self.outputs):
            a, b, *further = inputs
            if out is None:
                return product.kernel(b.T, a.T, *further, stream=stream).T
            product.kernel(b.T, a.T, out=out.T, stream=stream)
            return out
        names = self.outputs or (RESULT,)
        if out is None:
            results = each(self._run(inputs, None, stream))
            return joined([self._outside(name, array) for name, array in zip(names, results, strict=True)])
        targets = zip(names, each(out, names), strict=True)
        self._run(inputs, joined([self._inside(name, array) for name, array in targets]), stream)
        return returned(out, names)

    def _run(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the outputs of the kernel."""
        product, views = self.product, self.views
        a, b = views.a.of(inputs[0]), views.b.of(inputs[1])
        further = [views.c.of(inputs[place]) if place in self.folded else inputs[place] for place in self.order]
        if product.sum_kernel is not None:
            return product.sum_kernel(product.kernel(*product.cut(a, b), stream=stream), *further, out=out, stream=stream)
        first = (b.T, a.T) if product.transposed else (a, b)
        return product.kernel(*first, *further, out=out, stream=stream)

    def _inside(self, name: str, array: Any) -> Any:
        """Return the view of an output that the kernel writes."""
        array = self.views.c.of(array) if name in self.folded else array
        return array.T if name in self.transposed_outputs else array

    def _outside(self, name: str, array: Any) -> Any:
        """Return the view of an output for the caller."""
        array = array.T if name in self.transposed_outputs else array
        return self.views.reshape_result(array) if name in self.folded else array


def cached_or_chosen(key: CacheKey) -> ProductKernel:
    """Return the kernel of a problem by the cached choice of another process, or by a new choice, which is then cached."""

    def choose() -> tuple[Choice, int]:
        choice, problem = decided(key)
        return choice, key.problems.index(problem)

    choice, number = key.place.chosen("matmul", key.disk_key, choose)
    return with_reduction(choice, key.problems[number], key.place.device)


def with_reduction(choice: Choice, problem: Problem, device: int | None) -> ProductKernel:
    """Return the kernel of a choice, with the kernel that sums the parts if the choice is for split-K."""
    parts = number_of_parts(choice, problem)
    if parts == 1:
        return ProductKernel(CompiledKernel(choice.program), choice, problem)
    place = Place(choice.program.architecture, device, False)

    def choose() -> tuple[Choice, int]:
        return Choice(None, False, "the sum of the parts", _adding(problem.spec, parts, place.architecture)), 0

    adding, _ = place.chosen("sum of parts", (problem.spec, parts), choose)
    return kernels_of_parts(choice, problem, adding.program, device)


def number_of_parts(choice: Choice, problem: Problem) -> int:
    """Return the number of parts of K that a choice for a problem multiplies; 1 if K is not split."""
    spec = choice.program.spec
    if "b" not in spec.dims or "b" in problem.spec.dims:
        return 1
    parts = constant(spec.size("b"))
    assert parts is not None
    return parts


def kernels_of_parts(choice: Choice, problem: Problem, adding: Program, device: int | None) -> ProductKernel:
    """Return the kernel of a split-K choice, with the kernel of `adding`, which adds the parts."""
    kernel, sum_kernel = CompiledKernel(choice.program), CompiledKernel(adding)
    if device is not None:  # compile both concurrently
        kernel.begin(sum_kernel)
    return ProductKernel(kernel, choice, problem, sum_kernel, number_of_parts(choice, problem))


@functools.lru_cache(maxsize=4)  # `decided` and `with_adding` use the same program
def _adding(spec: Spec, parts: int, architecture: Architecture) -> Program:
    """Return the program that sums the results of `parts` parts."""
    from fireiron.language.library import LIBRARY

    program: Program = importlib.import_module(f"{LIBRARY}.add_parts").adding(spec, parts).program(architecture)
    return program


def decided(key: CacheKey) -> tuple[Choice, Problem]:
    """Return the choice and its problem: with split-K if that is expected to be faster."""
    place = key.place
    estimates = [in_parts_of_k(key, None, problem) for problem in key.problems]
    recorded = [record.us for problem in key.problems for record in place.exact_records(problem.spec)] if estimates[0] else []
    if estimates[0] and estimates[0][0][0] < min(recorded, default=math.inf):  # no kernel for the complete K is lowered
        problem = key.problems[0]
        adding = _adding(problem.spec, estimates[0][0][1], place.architecture)
        parts = choice_in_parts(key, *estimates[0][0], prove=lambda program: place.prove(program, adding))
        if parts is not None and place.refusal(CompiledKernel(parts.program)) is None:
            return parts, problem
    # If split-K is not expected to be faster, the compiler runs while the only kernel is checked.
    choice, problem = chosen(key, prove_only if any(estimates) else place.prove)
    estimate = next(options for options, other in zip(estimates, key.problems, strict=True) if other is problem)
    parts = _in_parts(key, choice, problem, estimate)
    if parts is not None:
        place.prove(_adding(problem.spec, number_of_parts(parts, problem), place.architecture))  # while the other kernel is compiled
        if place.refusal(CompiledKernel(parts.program)) is None:
            return parts, problem
    refused = place.refusal(CompiledKernel(choice.program))
    if refused is None or place.require_record:
        return choice, problem
    # Another compiler version may serialize MMAs that the compiler of the record does not serialize. Then use another tile.
    from fireiron.tune.records.default import default_choice

    other = default_choice(
        problem.spec, place.architecture, lambda program: problem.served(program) and place.refusal(CompiledKernel(program)) is None
    )
    return attrs.evolve(other, why=f"{other.why}; {choice.why} was preferred, but {refused.headline}"), problem


def chosen(key: CacheKey, prove: Prove = prove_only, bind: Callable[[Problem], Bind | None] = lambda _: None) -> tuple[Choice, Problem]:
    """Return the choice by a record for the matmul or the transposed one, or, if no exact record is required, the library's default.

    `prove` checks the chosen program. `bind` binds strategies of a problem to a spec with further work; the defaults of the library are
    bound to the matmul alone.
    """
    problems, place = key.problems, key.place
    choices = [(problem, place.find(problem.spec, problem.served, prove=prove, bind=bind(problem))) for problem in problems]
    exact = [(choice, problem) for problem, choice in choices if choice is not None]
    recorded = [(choice, problem) for choice, problem in exact if choice.record is not None]
    if recorded:
        choice, problem = min(recorded, key=lambda pair: preference(pair[0].record, place.gpu) if pair[0].record else ())
        return (None if place.require_record else _faster(choice, problem, place, prove, bind(problem))) or (choice, problem)
    first = problems[0]
    if place.require_record:
        return place.exact_record(first.spec, first.served), first
    for problem in problems:
        tile = place.by_tiles(problem.spec, problem.predicted, prove, bind=bind(problem))
        if tile is not None:
            return tile, problem
    from fireiron.language.library import is_copied_by_threads

    for problem in problems:
        if is_copied_by_threads(problem.spec, place.architecture):
            continue
        near = place.find(problem.spec, problem.predicted, near=True, prove=prove, bind=bind(problem))
        if near is not None:
            return near, problem
    return by_default(first, place.architecture, prove), first


def by_default(problem: Problem, architecture: Architecture, prove: Prove = prove_only) -> Choice:
    """Return a derived choice if the library's default uses no tensor cores and the product is large; otherwise the library's default.

    Derived strategies are 1.2 to 4.8 times as fast as those defaults (2026-11-30, H200).
    """
    from fireiron.language.library import has_default_on_tensor_cores
    from fireiron.tune.records.default import default_choice

    spec = problem.spec
    sizes = [constant(spec.size(dim)) for dim in spec.dims]
    if not has_default_on_tensor_cores(spec, architecture) and None not in sizes and math.prod(size or 1 for size in sizes) >= DERIVED:
        from fireiron.derive.default import derived_choice

        try:
            return derived_choice(spec, architecture, problem.served, PRODUCT_CANDIDATES)
        except ArgumentError:
            return default_choice(spec, architecture, problem.served, prove)
    return default_choice(spec, architecture, problem.served, prove)


def _faster(choice: Choice, problem: Problem, place: Place, prove: Prove, bind: Bind | None) -> tuple[Choice, Problem] | None:
    """Return a choice that is expected to be faster than a record of this problem for an older target; None if there is none."""
    record = choice.record
    if record is None or record.architecture == place.architecture.name:
        return None
    tile = place.by_tiles(problem.spec, problem.predicted, prove, below=record.us, bind=bind)
    return None if tile is None else (tile, problem)


# ---------------------------------------------------------------------------------------------- split-K


def in_parts_of_k(key: CacheKey, whole: float | None, problem: Problem) -> list[tuple[float, int, Problem]]:
    """Return the expected microseconds of split-K kernels with the number of parts and the batched problem, the fastest first.

    Only kernels faster than `whole` microseconds are returned, the expected time without split-K (None: estimate it).
    """
    from fireiron.tune.records import in_parts

    place = key.place
    question = Question(problem.spec, place.architecture, place.gpu)
    numbers = _numbers_of_parts(key, problem)
    if not numbers:
        return []
    records = place.records.records
    whole = in_parts.expected(records, question) if whole is None else whole
    rows, columns = (constant(problem.spec.size(dim)) or 1 for dim in "mn")
    expected = []
    for parts in numbers:
        if whole is None or in_parts.adding_us(rows, columns, parts) >= whole:  # the sum of the parts alone takes longer
            continue
        batched = _batched_problem(problem, parts)
        us = in_parts.expected(records, attrs.evolve(question, spec=batched.spec))
        if us is not None:
            expected.append((us + in_parts.adding_us(rows, columns, parts), parts, batched))
    return sorted((option for option in expected if whole is not None and option[0] < whole), key=lambda option: option[:2])


def _numbers_of_parts(key: CacheKey, problem: Problem) -> list[int]:
    """Return the numbers of parts to split K into; none for the transposed matmul, or if an exact record is required."""
    from fireiron.tune.records import in_parts

    place = key.place
    sliceable = place.device is None or len(key.problems) > 1  # the parts of an operand are views of it
    if place.require_record or problem.transposed or not sliceable:
        return []
    return in_parts.numbers_for(problem.spec, Question(problem.spec, place.architecture, place.gpu))


def split_of(key: CacheKey, choice: Choice, problem: Problem) -> Choice | None:
    """Return the choice for split-K if it is expected to be faster than a choice for the complete K; otherwise None."""
    return _in_parts(key, choice, problem, in_parts_of_k(key, None, problem))


def _in_parts(key: CacheKey, choice: Choice, problem: Problem, estimate: Sequence[tuple[float, int, Problem]]) -> Choice | None:
    """Return the choice for split-K if it is expected to be faster; otherwise None.

    `estimate` are the split-K kernels faster than the expected time without split-K; an exact record has a measured time instead.
    """
    recorded = choice.record.us if choice.exact and choice.record is not None else None
    options = [option for option in estimate if recorded is None or option[0] < recorded]
    if not options and recorded is not None:
        options = in_parts_of_k(key, recorded, problem)
    return choice_in_parts(key, *options[0]) if options else None


def choice_in_parts(key: CacheKey, us: float, parts: int, batched: Problem, prove: Prove | None = None) -> Choice | None:
    """Return the tile with the least expected time for a batch of parts; None if none is legal.

    `prove` checks its program (default: `key.place.prove`).
    """
    problem = key.problems[0]
    tile = key.place.by_tiles(batched.spec, batched.predicted, prove, lowered=lowered_in_parts(problem, batched))
    if tile is None:
        return None
    part, depth = (constant(each.spec.size("k")) or 0 for each in (batched, problem))
    last = f", of {part} elements but the last one" if part * parts > depth else ""
    why = f"{parts} parts of K{last}, which add_parts sums: {us:.4g} us expected; for the parts {tile.why}"
    return attrs.evolve(tile, exact=False, why=why)


def _batched_problem(problem: Problem, parts: int) -> Problem:
    """Return the batched problem whose matrices are parts of K, with a result of float32.

    If the last part is shorter, its spec only describes the work: it has the strides of the parts, and the size of the others.
    """
    from fireiron.tune.records import in_parts

    operands = problem.operands
    dtype = problem.spec.operands["A"].dtype
    part = in_parts.part_of(constant(problem.spec.size("k")) or 0, parts, dtype.bytes)
    places = cut(operands["A"].places, operands["B"].places, parts, part)
    given = {"a": operands["A"].at(places[0]), "b": operands["B"].at(places[1])}
    spec = spec_of(given, (float32, dtype), RowMajor, batch_views(*places, None, flatten=False))
    return Problem(spec, False, dict(zip("AB", given.values(), strict=True)))


def lowered_in_parts(problem: Problem, batched: Problem) -> Spec | None:
    """Return the spec of parts whose last one is shorter; None if all parts are equal.

    Part number b reads the elements from b times their number on. Elements past the end of K are zero.
    """
    parts, part = (constant(batched.spec.size(dim)) or 0 for dim in "bk")
    if parts * part == constant(problem.spec.size("k")):
        return None
    a, b = (problem.spec.operands[name].tensor for name in "AB")
    along = [AffineIndex(((0, part), (axis, 1))) for axis in (2, 1)]
    left = indirect(a, batched.spec.operands["A"].shape, (DimIndex(1), along[0]))
    right = indirect(b, batched.spec.operands["B"].shape, (along[1], DimIndex(2)))
    return batched.spec.with_operands(A=whole_view(left), B=whole_view(right))


__all__ = ["BoundKernel", "ProductKernel", "cached_or_chosen", "chosen", "decided"]
