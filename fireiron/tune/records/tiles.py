"""Between records: which tile a product on Hopper's tensor cores is expected to take least time with.

What a tile takes is estimated by the waves of blocks of the problem at hand (`fireiron.language.waves`), and put right by what records say
of that tile: how much longer or shorter than estimated it took where it was measured, near ones before far ones. So records of other sizes,
types of as many bits, and storage orders all count, and none is taken for a size whose waves it does not suit.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.errors import FireironError
from fireiron.ir.cluster import at_once
from fireiron.ir.rewrite import by_identities
from fireiron.language.library import by_warpgroups, default_strategy, in_clusters, of_bytes, tiles_of, work_of
from fireiron.language.waves import LINE_BYTES, Work, estimated_us, row_begins
from fireiron.tune.record import Record, describe
from fireiron.tune.records.choosing import AS_NEAR, MOST_TRIES, Choice, Question
from fireiron.tune.records.drift import current_strategy
from fireiron.tune.records.format import record_text
from fireiron.tune.records.rules import REDUCED, capability_of
from fireiron.values.machine import as_dtype

OTHER_ORDER: Final = 0.25
"""Weight of another storage order of an operand: copies differ, MMAs and bytes do not."""

OTHER_TYPE: Final = 0.05
"""Weight of another element type of the same size."""

ACROSS: Final = 1.0
"""Weight if the rows of an operand start at L2 lines in one problem only."""

OTHER_BITS: Final = 2.0
"""Weight of a factor of two in the element size."""

CERTAIN: Final = 0.1
"""Distance within which a record determines nearly all that is known about its tile."""

DOUBT: Final = 1.0
"""Weight of the estimate alone, compared with a record at distance 1."""

UNSEEN: Final = 0.03
"""Relative time added to the estimate of a tile without a record: measured tiles were chosen from many."""

FREE: Final = ("kind", "sizes", "dtypes", "layouts", "leading", "align", "symbols", "signature")
"""What a record may say of its problem; others say what is done beside multiplying."""

SAME: Final = {"hopper": "hopper_batched", "hopper_batched": "hopper"}
"""The strategies that take each other's values: for a matrix, and for stacks of them."""


@attrs.frozen
class Problem:
    """What counts of a product: its work, types and storage by operand."""

    work: Work
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Problem | None:
        """The problem of a described spec; None for what does more than multiply, and where sizes are known at run time only."""
        sizes = plain["sizes"]
        if plain["kind"] != "MatMul" or not set(plain) <= set(FREE) or not {"M", "N", "K"} <= set(sizes) <= {"B", "M", "N", "K"}:
            return None
        if any(isinstance(size, str) for size in sizes.values()):
            return None
        bytes = {name: as_dtype(dtype).bytes for name, dtype in plain["dtypes"].items()}
        align, layouts = plain.get("align", {}), plain["layouts"]
        a = row_begins(_apart(plain, "A", "K", "M"), bytes["A"], align.get("A", 16))
        b = row_begins(_apart(plain, "B", "N", "K"), bytes["B"], align.get("B", 16))
        along_c = (_lies_along(layouts["A"], "col", "m"), _lies_along(layouts["B"], "row", "n"))
        work = Work(sizes["M"], sizes["N"], sizes["K"], bytes["A"], bytes["C"], sizes.get("B", 1), (a, b), along_c)
        return Problem(work, tuple(plain["dtypes"].values()), tuple(map(_order, layouts.values())))

    def apart(self, other: Problem) -> float:
        """How far two problems are apart: factors of two in their sizes, and what is different besides."""
        one, two = self.work, other.work
        size = abs(math.log2(one.rows / two.rows)) + abs(math.log2(one.columns / two.columns)) + abs(math.log2(one.batch / two.batch))
        size += REDUCED * abs(math.log2(one.depth / two.depth))
        bits = OTHER_BITS * abs(math.log2(one.bytes / two.bytes))
        (a, b), (other_a, other_b) = one.begins, two.begins
        across = ((a < LINE_BYTES) != (other_a < LINE_BYTES)) + ((b < LINE_BYTES) != (other_b < LINE_BYTES))
        kinds = OTHER_TYPE * (self.dtypes != other.dtypes) + ACROSS * across
        orders = sum(map(operator.ne, self.layouts, other.layouts))
        return size + bits + kinds + OTHER_ORDER * int(orders)

    def same_size(self, other: Problem) -> bool:
        """Whether as much is multiplied and read."""
        return self._read == other._read

    @functools.cached_property
    def _read(self) -> Work:
        """The work without what is written, and how elements lie."""
        return attrs.evolve(self.work, result_bytes=0, along_c=(False, False))


def _apart(plain: Mapping[str, Any], name: str, along: str, across: str) -> tuple[int, ...]:
    """What the distances of an operand's rows are multiples of, or of columns where these are contiguous, and by strides in a stack.

    In elements; `along` and `across` are the sizes along a row and along a column. Nothing where neither are contiguous.
    """
    layout, symbols = plain["layouts"][name], plain.get("symbols", {})
    if layout.startswith("Strides"):
        inner = _inner(layout)
        return tuple(_multiple(step, symbols) for dim, step in _steps(layout).items() if dim != inner) if inner else ()
    size = plain["sizes"][across if layout == "col" else along]
    return (_multiple(plain.get("leading", {}).get(name, size), symbols),)


@functools.cache
def _multiple_of(step: str) -> int | None:
    """What a written distance is a multiple of; None for the name of a symbol."""
    found = re.fullmatch(r"(?:ANY\()?(\d+)\)?", step)
    return int(found[1]) if found else None


def _multiple(step: int | str, symbols: Mapping[str, Mapping[str, int]]) -> int:
    """What a distance is a multiple of: a number, the name of a symbol, `ANY` or `ANY(8)`."""
    if isinstance(step, int):
        return step
    found = _multiple_of(step)
    return symbols.get(step, {}).get("multiple_of", 1) if found is None else found


def _steps(layout: str) -> dict[str, str]:
    """The strides of `Strides(m=ANY(8), k=1)` by dimension."""
    return dict(part.split("=") for part in layout[len("Strides(") : -1].split(", "))


def _inner(layout: str) -> str:
    """The contiguous dimension of a matrix by strides, or of each of a stack; empty where there is none."""
    return next((dim for dim, step in _steps(layout).items() if step == "1" and dim != "b"), "")


def _lies_along(layout: str, order: str, dim: str) -> bool:
    """Whether a matrix is stored in an order, in which neighbors along a dimension lie side by side."""
    return _inner(layout) == dim if layout.startswith("Strides") else layout == order


def _order(layout: str) -> str:
    """The order of a matrix, or of each matrix of a stack by strides: `col` where its rows are contiguous."""
    if not layout.startswith("Strides"):
        return layout
    dims = [dim for dim in "mkn" if dim in _steps(layout)]  # A is m, k; B k, n; C m, n
    return "row" if dims and _inner(layout) == dims[-1] else "col"


@attrs.frozen
class Known:
    """One record of a tile: its problem, and how its time compares with the estimate, as a logarithm."""

    record: Record
    problem: Problem
    off: float

    @functools.cached_property
    def tile(self) -> tuple[int | None, ...]:
        """What makes it the tile that it is."""
        return tile_of(self.record.values)


def tile_of(values: Mapping[str, int]) -> tuple[int | None, ...]:
    """The sizes of a tile and of a warpgroup's part of it, and of clusters of several."""
    bm, bn = values.get("bm"), values.get("bn")
    cluster = values.get("cluster_m", 1), values.get("cluster_n", 1)
    return bm, bn, values.get("wm", bm), values.get("wn", bn), *(cluster if cluster != (1, 1) else ())


def known(records: Iterable[Record], names: Iterable[str], capability: int) -> tuple[Known, ...]:
    """The records of some strategies that tell of tiles, with how they compare with the estimate."""
    wanted = {*names, *(SAME[name] for name in names if name in SAME)}
    found = []
    for record in records:
        if record.strategy in wanted and {"bm", "bn"} <= record.values.keys() and capability_of(record.architecture) == capability:
            one = _known(record)
            if one is not None:
                found.append(one)
    return tuple(found)


@by_identities  # each call of a product asks all records, for the whole and for its parts
def _known(record: Record) -> Known | None:
    problem = _problem_of(record.spec)
    return None if problem is None else Known(record, problem, math.log(record.us / estimated_us(problem.work, record.values)))


@by_identities  # records of one file share equal specs
def _problem_of(spec: Mapping[str, Any]) -> Problem | None:
    return Problem.of(spec)


Corrections = Mapping[tuple[int | None, ...], float]
"""How much longer than estimated a tile is taken to need, as a logarithm, by tile."""


def corrections(near: Iterable[tuple[float, Known]]) -> Corrections:
    """What records say of their tiles; `near` are records with their distances."""
    weights: dict[tuple[int | None, ...], list[tuple[float, float]]] = {}
    for distance, one in near:
        weights.setdefault(one.tile, []).append((1 / (distance**2 + CERTAIN), one.off))
    return {
        tile: (DOUBT * UNSEEN + sum(weight * off for weight, off in each)) / (DOUBT + sum(weight for weight, _ in each))
        for tile, each in weights.items()
    }


def expected_us(problem: Problem, values: Mapping[str, int], corrected: Corrections) -> float:
    """The estimate for a tile, put right by what records say of it."""
    return estimated_us(problem.work, values) * math.exp(corrected.get(tile_of(values), UNSEEN))


@attrs.frozen
class Candidate:
    """Values for a strategy, the record they are from (None: the library's own), how far that is, and the time that is expected."""

    name: str
    values: Mapping[str, int]
    record: Record | None
    distance: float
    us: float


def candidates(records: Iterable[Record], question: Question) -> list[Candidate]:
    """The tiles of records, and those that the library states by itself, the one expected to be fastest first; none without records.

    Of a tile with stages for about as much of k only one is left: the values of the nearest record, if it is near, else the library's.
    Where just as much was multiplied and read in another type of as many bits, or another storage order, what was measured there comes
    before all that is only expected.
    """
    spec = question.spec
    names, problem = by_warpgroups(spec, question.target), Problem.of(describe(spec))
    if not names or problem is None or work_of(spec) is None:
        return []
    tiles = known(records, names, question.target.capability)
    apart = {id(one.problem): one.problem for one in tiles}
    distances = {place: problem.apart(other) for place, other in apart.items()}
    near = _in_order((distances[id(one.problem)], one) for one in tiles)
    by_tile: dict[Any, Candidate] = {}
    if not near:
        return []
    corrected = corrections(near)

    def add(name: str, tiles: Iterable[tuple[Kind, Mapping[str, int]]], record: Record | None, distance: float) -> None:
        for kind, values in tiles:
            if kind not in by_tile:
                by_tile[kind] = Candidate(name, values, record, distance, expected_us(problem, values, corrected))

    def add_records(near: Iterable[tuple[float, Known]]) -> None:
        for distance, one in near:
            name = one.record.strategy if one.record.strategy in names else SAME.get(one.record.strategy, "")
            if name in names:
                here = _values_here(one, spec.operands["A"].dtype.bytes, spec.operands["C"].dtype.bytes)
                tiles = _with_kinds(in_clusters(name, problem.work, [here[1]])) if problem.work.across_lines else (here,)
                add(name, tiles, one.record, distance)

    add_records(itertools.takewhile(lambda pair: pair[0] <= AS_NEAR, near))
    for name in names:
        add(name, _with_kinds(in_clusters(name, problem.work, tiles_of(name, spec, len(names) == 1))), None, math.inf)
    add_records(itertools.dropwhile(lambda pair: pair[0] <= AS_NEAR, near))
    same = next((one.record for _, one in near if problem.same_size(one.problem)), None)
    return sorted(by_tile.values(), key=lambda one: (one.record is None or one.record != same, one.us))


Kind = tuple[tuple[int | None, ...], int]
"""A tile, and how much of k its stages hold, to a factor of two: between less different values the nearest record decides."""


def _kind(values: Mapping[str, int]) -> Kind:
    return tile_of(values), round(math.log2(values.get("stages", 4) * values.get("bk", 64)))


def _with_kinds(tiles: Iterable[Mapping[str, int]]) -> Iterator[tuple[Kind, Mapping[str, int]]]:
    return ((_kind(values), values) for values in tiles)


@by_identities
def _values_here(known: Known, bytes: int, result_bytes: int) -> tuple[Kind, Mapping[str, int]]:
    """The values of a record for factors and a result of so many bytes."""
    values = of_bytes(known.record.values, bytes, result_bytes, known.problem.work.bytes)
    return _kind(values), values


def _in_order(near: Iterable[tuple[float, Known]]) -> list[tuple[float, Known]]:
    """The nearest first; of equally near ones the fastest, and of those by their texts, which take long to make."""

    def key(one: tuple[float, Known]) -> tuple[float, float]:
        return one[0], one[1].record.us

    found: list[tuple[float, Known]] = []
    for _, group in itertools.groupby(sorted(near, key=key), key):
        equal = list(group)
        found += equal if len(equal) == 1 else sorted(equal, key=lambda one: one[1].record.line())
    return found


def by_tiles(records: Iterable[Record], question: Question, below: float = math.inf) -> Choice | None:
    """The tile that is expected to be fastest among those that are legal; None where no record tells of any.

    Args: `below`, the microseconds that it has to be expected to stay below.
    """
    found = candidates(records, question)
    for one in found[:MOST_TRIES]:
        if one.us >= below:
            continue
        if one.record is not None and current_strategy(one.record, question.strategies) is None:
            continue
        try:
            program = default_strategy(one.name, one.values, question.spec)(question.spec).program(question.target)
            if not question.accept(program):
                continue
            question.prove(program)
        except FireironError:
            continue
        return Choice(one.record, False, _why(one, question, len(found)), program)
    return None


def _why(one: Candidate, question: Question, tiles: int) -> str:
    """The rule that chose, and on what grounds."""
    work = work_of(question.spec)
    assert work is not None
    cluster = one.values.get("cluster_m", 1), one.values.get("cluster_n", 1)
    blocks = work.tiles(one.values["bm"], one.values["bn"], cluster)
    waves = f"{blocks} blocks, {-(-blocks // at_once(math.prod(cluster)))} to a multiprocessor at most"
    expected = f"{one.us:.4g} us expected, {waves}"
    if one.record is None:
        words = " ".join([one.name, *(f"{name}={value}" for name, value in one.values.items())])
        return f"fastest of {tiles} tiles by their waves, and legal here: {words}, the library's own; {expected}"
    sizes = "x".join(map(str, one.record.shape))
    types, layouts = one.record.spec["dtypes"]["A"], " ".join(one.record.spec["layouts"].values())
    there = f"{sizes} of {types}, {layouts} (distance {one.distance:.2f})"
    measured = one.record.values.get("cluster_m", 1), one.record.values.get("cluster_n", 1)
    legal = "legal here" if cluster == measured else f"in clusters of {cluster[0]}x{cluster[1]} legal here"
    problem, other = Problem.of(describe(question.spec)), Problem.of(one.record.spec)
    if problem is not None and other is not None and problem.same_size(other):
        return f"tuned for {there}, which multiplies and reads as much, and {legal}: {record_text(one.record)}; {expected}"
    return f"fastest of {tiles} tiles by their waves, tuned for {there}, and {legal}: {record_text(one.record)}; {expected}"
