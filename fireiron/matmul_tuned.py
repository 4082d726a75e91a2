"""`matmul.tuned`: measure the most promising candidates on the arrays of a call, and cache the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batched_matmul import BatchViews
from fireiron.batches import packed
from fireiron.copies import LIBRARIES, copied, library
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import TYPES, Operand, operand_of, operands_of
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import default_strategy, defaults, is_copied_by_threads
from fireiron.matmul_choice import ProductKernel, choice_in_parts, decided, in_parts_of_k, with_reduction
from fireiron.matmul_problem import CacheKey
from fireiron.measure.timing import measure
from fireiron.tune.records import choice_cache
from fireiron.tune.records.choosing import Choice, Question
from fireiron.tune.records.tiles import candidates as by_tiles
from fireiron.tune.records.tiles import tile_of

if TYPE_CHECKING:
    from fireiron.tune.record import Record

Arrays = tuple[Any, ...]
"""A, B and the result; None if it is to be allocated."""

ROUNDS: Final = 5
PAUSE: Final = 0.05
"""Seconds before each burst."""

ROTATED: Final = 128_000_000
"""Bytes of the arrays and their copies together: more than L2 contains, so a launch finds no operand of the last one there."""

MOST_SETS: Final = 100
"""Maximum number of the arrays and their copies."""

IN_PARTS: Final = 2
"""Maximum number of split-K kernels to measure."""

BY_THREADS: Final = 3
"""Maximum number of default strategies to measure if threads copy A and B."""

MOST_TRIED: Final = 32
"""Maximum number of tiles to lower in the search for legal ones."""


def measured(key: CacheKey, views: BatchViews, arrays: Arrays, count: int, report: Callable[[str], None]) -> ProductKernel:
    """Return the fastest candidate for a problem, and cache it on disk; see `matmul.tuned`."""
    if key.place.device is None:
        raise ArgumentError("matmul.tuned measures only on a GPU", got="NumPy arrays", hint="pass CuPy arrays, or PyTorch tensors on a GPU")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ArgumentError("matmul.tuned: candidates must be a number of tiles", got=count, legal="0, 1, 2, ...")
    kernels = [with_reduction(choice, key.problems[number], key.place.device) for choice, number in _contenders(key, count)]
    names = [f"{number}: {kernel.choice.why}" for number, kernel in enumerate(kernels)]
    sets = _sets(arrays)
    launches = {name: [_prepared(kernel, views, each) for each in sets] for name, kernel in zip(names, kernels, strict=True)}
    times = measure(launches, rounds=ROUNDS, pause=PAUSE, l2="rotated" if len(sets) > 1 else "hot")
    for name in names:
        report(f"{times[name].us:.2f} us  {name}")
    best = min(range(len(kernels)), key=lambda number: times[names[number]].us)
    fastest = kernels[best]
    why = f"fastest of {len(kernels)} that were measured for these arrays, {times[names[best]].us:.4g} us; {fastest.choice.why}"
    choice = attrs.evolve(fastest.choice, why=why)
    choice_cache.decided("matmul", key.place.architecture, key.place.device, key.disk_key, choice, key.problems.index(fastest.problem))
    return attrs.evolve(fastest, choice=choice)


def _contenders(key: CacheKey, count: int) -> Iterator[tuple[Choice, int]]:
    """Yield the default choice, further tiles, and split-K kernels, each with the index of its problem."""
    choice, problem = decided(key)
    yield choice, key.problems.index(problem)
    seen = {choice.program.strategy}
    for other, number in (*_tiles(key, count), *_by_threads(key, count), *_parts(key)):
        if other.program.strategy not in seen and key.place.refusal(CompiledKernel(other.program)) is None:
            seen.add(other.program.strategy)
            yield other, number


def _tiles(key: CacheKey, count: int) -> Iterator[tuple[Choice, int]]:
    """Yield the most promising legal tiles, each tile and cluster with one set of further values."""
    problem = key.problems[0]
    question = Question(problem.spec, key.place.architecture, key.place.gpu, {}, problem.predicted)
    yielded = 0
    tiles: set[Any] = set()
    for candidate in by_tiles(key.place.records.records, question)[:MOST_TRIED]:
        if yielded == count:
            return
        tile = tile_of(candidate.values)
        words = f"{candidate.us:.4g} us expected"
        choice = None if tile in tiles else _choice_of(candidate.name, candidate.values, question, words, candidate.record)
        if choice is not None:
            tiles.add(tile)
            yielded += 1
            yield choice, 0


def _by_threads(key: CacheKey, count: int) -> Iterator[tuple[Choice, int]]:
    """Yield default strategies if threads copy A and B, whose rows TMA does not accept: these have no expected times."""
    problem, target = key.problems[0], key.place.architecture
    if is_copied_by_threads(problem.spec, target):
        question = Question(problem.spec, target, key.place.gpu, {}, problem.served)
        for name, values in defaults(problem.spec, target)[: min(count, BY_THREADS)]:
            choice = _choice_of(name, values, question, "threads copy A and B")
            if choice is not None:
                yield choice, 0


def _choice_of(name: str, values: Mapping[str, int], question: Question, words: str, record: Record | None = None) -> Choice | None:
    try:
        program = default_strategy(name, values, question.spec)(question.spec).program(question.target)
        _ = program.ir
    except FireironError:
        return None
    if not question.accept(program):
        return None
    return Choice(record, False, f"{name} {' '.join(f'{tunable}={value}' for tunable, value in values.items())}, {words}", program)


def _parts(key: CacheKey) -> Iterator[tuple[Choice, int]]:
    """Yield split-K kernels, independently of their expected time."""
    for us, parts, batched in in_parts_of_k(key, float("inf"), key.problems[0])[:IN_PARTS]:
        choice = choice_in_parts(key, us, parts, batched)
        if choice is not None:
            yield choice, 0


def _sets(arrays: Arrays) -> list[Arrays]:
    """Return the arrays and as many copies as exceed L2; only the arrays if they exceed it themselves, or if a copy has other strides."""
    given = operands_of({name: array for name, array in zip(("a", "b", "out"), arrays, strict=True) if array is not None})
    bytes = sum(math.prod(operand.shape) * TYPES[operand.dtype].bytes for operand in given.values())
    in_libraries = all(library(array) in LIBRARIES for array in arrays if array is not None)
    if not in_libraries or not all(_is_packed(operand) or _is_packed(operand.transposed) for operand in given.values()):
        return [arrays]
    copies = min(MOST_SETS, math.ceil(ROTATED / bytes)) - 1
    return [arrays, *(tuple(None if array is None else _copy(array) for array in arrays) for _ in range(copies))]


def _is_packed(operand: Operand) -> bool:
    """Return whether an array is row-major, without gaps."""
    return operand.steps == packed(operand.shape)


def _copy(array: Any) -> Any:
    """Return a copy of a row-major array or of its transposed array, with the same strides."""
    return copied(array) if _is_packed(operand_of(array, "the array")) else copied(array.T).T


def _prepared(kernel: ProductKernel, views: BatchViews, arrays: Arrays) -> Callable[[], Any]:
    """Return a prepared launch of a candidate on the arrays."""
    a, b, out = arrays
    a, b, c = views.a.of(a), views.b.of(b), None if out is None else views.c.of(out)
    if kernel.sum_kernel is not None:
        left, right = kernel.cut(a, b)
        first = kernel.kernel.prepare(left, right)
        second = kernel.sum_kernel.prepare(first.out, out=c)
        return lambda: (first(), second())
    if kernel.transposed:
        return kernel.kernel.prepare(b.T, a.T, out=None if c is None else c.T)
    return kernel.kernel.prepare(a, b, out=c)


__all__ = ["measured"]
