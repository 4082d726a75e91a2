"""Choose the tile of a matmul on Hopper's tensor cores from records of other problems.

The time of a tile is estimated from the waves of blocks of the problem (`fireiron.language.waves`), and corrected by records of that tile:
the ratio of the measured time to its estimate, weighted by the distance of the record's problem. So records of other sizes, of other
element types and of other storage orders contribute, and the waves of the problem at hand decide.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import FireironError
from fireiron.frozen import frozen
from fireiron.ir.cluster import concurrent_blocks
from fireiron.ir.rewrite import by_identities
from fireiron.language.library import by_warpgroups, default_strategy, in_clusters, of_bytes, tiles_of, work_of
from fireiron.language.line_waves import LINE_BYTES, ROWS
from fireiron.language.waves import Work, estimated_us, is_copied, row_alignment
from fireiron.spec import Spec
from fireiron.tune.record import Record, describe
from fireiron.tune.records.choosing import AS_NEAR, MOST_TRIES, Choice, Question
from fireiron.tune.records.format import record_text
from fireiron.tune.records.outdated import current_strategy
from fireiron.tune.records.rules import REDUCED, capability_of
from fireiron.values.machine import Architecture, as_dtype

OTHER_ORDER: Final = 0.25
"""Weight of another storage order of an operand: copies differ, MMAs and bytes do not."""

OTHER_TYPE: Final = 0.05
"""Weight of another element type of the same size."""

ACROSS: Final = 1.0
"""Weight if the rows of an operand start at L2 lines in only one of the two problems."""

OTHER_BITS: Final = 2.0
"""Weight of a factor of two in the element size."""

CERTAIN: Final = 0.1
"""Distance within which a record determines nearly all that is known about its tile."""

NEAR: Final = 0.3
"""Distance within which a record says more about its tile than the estimate."""

DOUBT: Final = 3.0
"""Weight of the estimate alone, compared with a record at distance 1, if a record of the tile is near."""

DOUBT_FAR: Final = 30.0
"""The same if none is near: records say little about other sizes (decision 180)."""

UNSEEN: Final = 0.03
"""Relative time added to the estimate of a tile without a record: measured tiles were chosen from many."""

FREE: Final = ("kind", "sizes", "dtypes", "layouts", "leading", "align", "symbols", "signature")
"""The fields of a plain matmul in a record; any other field specifies work in addition to the multiplication."""

SAME: Final = {
    "hopper": "hopper_batched",
    "hopper_batched": "hopper",
    "hopper:any_height": "hopper_batched:any_height",
    "hopper_batched:any_height": "hopper:any_height",
}
"""Strategies that can use each other's values: of a GEMM, and of a batched GEMM."""


@frozen
class Problem:
    """The properties of a matmul that determine its time: work, element types and storage of its operands."""

    work: Work
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Problem | None:
        """Return the problem of a described spec; None if it does more than multiply, or if sizes are known only at run time."""
        sizes = plain["sizes"]
        if plain["kind"] != "MatMul" or not set(plain) <= set(FREE) or not {"M", "N", "K"} <= set(sizes) <= {"B", "M", "N", "K"}:
            return None
        if any(isinstance(size, str) for size in sizes.values()):
            return None
        bytes = {name: _bytes_of(dtype) for name, dtype in plain["dtypes"].items()}
        align, layouts = plain.get("align", {}), plain["layouts"]
        steps = {"A": _apart(plain, "A", "K", "M"), "B": _apart(plain, "B", "N", "K")}
        a, b = (row_alignment(steps[name], bytes[name], align.get(name, 16)) for name in "AB")
        copied = any(is_copied((align.get(name, 16), *(step * bytes[name] for step in steps[name]))) for name in "AB")
        along_c = (_is_contiguous_along(layouts["A"], "col", "m"), _is_contiguous_along(layouts["B"], "row", "n"))
        work = Work(sizes["M"], sizes["N"], sizes["K"], bytes["A"], bytes["C"], sizes.get("B", 1), (a, b), along_c, copied)
        return Problem(work, tuple(plain["dtypes"].values()), tuple(map(_order, layouts.values())))

    def apart(self, other: Problem) -> float:
        """Return the distance of two problems: the factors of two between their sizes, and the weights of other differences."""
        work, other_work = self.work, other.work
        size = (
            abs(math.log2(work.rows / other_work.rows))
            + abs(math.log2(work.columns / other_work.columns))
            + abs(math.log2(work.batch / other_work.batch))
        )
        size += REDUCED * abs(math.log2(work.depth / other_work.depth))
        bits = OTHER_BITS * abs(math.log2(work.bytes / other_work.bytes))
        (a, b), (other_a, other_b) = work.row_alignments, other_work.row_alignments
        across = ((a < LINE_BYTES) != (other_a < LINE_BYTES)) + ((b < LINE_BYTES) != (other_b < LINE_BYTES))
        kinds = OTHER_TYPE * (self.dtypes != other.dtypes) + ACROSS * across
        orders = sum(map(operator.ne, self.layouts, other.layouts))
        return size + bits + kinds + OTHER_ORDER * int(orders)

    def same_size(self, other: Problem) -> bool:
        """Whether two problems have the same number of operations and of bytes to read."""
        return self._read == other._read

    @functools.cached_property
    def _read(self) -> Work:
        """The work without the result's bytes and storage order."""
        return attrs.evolve(self.work, result_bytes=0, along_c=(False, False))


def _apart(plain: Mapping[str, Any], name: str, along: str, across: str) -> tuple[int, ...]:
    """Return divisors, in elements, of the strides between rows of an operand, or between columns if these are contiguous, and batches.

    `along` and `across` are the sizes along a row and along a column. Empty if neither rows nor columns are contiguous.
    """
    layout, symbols = plain["layouts"][name], plain.get("symbols", {})
    if layout.startswith("Strides"):
        inner = _inner(layout)
        return tuple(_multiple(step, symbols) for dim, step in _steps(layout).items() if dim != inner) if inner else ()
    size = plain["sizes"][across if layout == "col" else along]
    return (_multiple(plain.get("leading", {}).get(name, size), symbols),)


@functools.cache
def _bytes_of(dtype: str) -> int:
    """Return the bytes of an element of a type, by its name in a record."""
    return as_dtype(dtype).bytes


@functools.cache
def _multiple_of(step: str) -> int | None:
    """Return the known divisor of a stride in a record; None for the name of a symbol."""
    match = re.fullmatch(r"(?:ANY\()?(\d+)\)?", step)
    return int(match[1]) if match else None


def _multiple(step: int | str, symbols: Mapping[str, Mapping[str, int]]) -> int:
    """Return the known divisor of a stride, which is a number, the name of a symbol, `ANY` or `ANY(8)`."""
    if isinstance(step, int):
        return step
    multiple = _multiple_of(step)
    return symbols.get(step, {}).get("multiple_of", 1) if multiple is None else multiple


def _steps(layout: str) -> dict[str, str]:
    """Return the strides of `Strides(m=ANY(8), k=1)` by dimension."""
    return dict(part.split("=") for part in layout[len("Strides(") : -1].split(", "))


def _inner(layout: str) -> str:
    """Return the contiguous dimension of a matrix with strides, or of each matrix of a batch; "" if there is none."""
    return next((dim for dim, step in _steps(layout).items() if step == "1" and dim != "b"), "")


def _is_contiguous_along(layout: str, order: str, dim: str) -> bool:
    """Whether a matrix is contiguous along a dimension: by its strides, or because it has the given storage order."""
    return _inner(layout) == dim if layout.startswith("Strides") else layout == order


def _order(layout: str) -> str:
    """Return the storage order of a matrix, or of each matrix of a batch with strides."""
    if not layout.startswith("Strides"):
        return layout
    dims = [dim for dim in "mkn" if dim in _steps(layout)]  # A is m, k; B k, n; C m, n
    return "row" if dims and _inner(layout) == dims[-1] else "col"


@frozen
class Known:
    """A record of a tile: its problem, and `off`, the logarithm of measured by estimated time."""

    record: Record
    problem: Problem
    off: float

    @functools.cached_property
    def tile(self) -> tuple[int | None, ...]:
        """The sizes that identify the tile."""
        return tile_of(self.record.values)

    @functools.cached_property
    def form(self) -> tuple[Any, ...]:
        """What determines its values for other operands: the strategy, its values, and the bytes of an element."""
        return self.record.strategy, tuple(self.record.values.items()), self.problem.work.bytes


def tile_of(values: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return the sizes of a tile, of a warpgroup's part of it, and of the cluster if it has more than one block."""
    bm, bn = values.get("bm"), values.get("bn")
    cluster = values.get("cluster_m", 1), values.get("cluster_n", 1)
    return bm, bn, values.get("wm", bm), values.get("wn", bn), *(cluster if cluster != (1, 1) else ())


def known(records: Sequence[Record], names: Iterable[str], capability: int) -> tuple[Known, ...]:
    """Return the records of strategies that specify tiles, compared with the estimate."""
    return _known_among(_Same(records), frozenset((*names, *(SAME[name] for name in names if name in SAME))), capability)


@frozen(eq=False)
class _Same:
    """Records as the key of a cache: compared by identity, because comparing all records takes long."""

    records: Sequence[Record]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.records is self.records

    def __hash__(self) -> int:
        return id(self.records)


@functools.lru_cache(maxsize=8)  # each call of a matmul asks for the whole problem and for its parts
def _known_among(same: _Same, strategies: frozenset[str], capability: int) -> tuple[Known, ...]:
    tiles = []
    for record in same.records:
        if record.strategy in strategies and {"bm", "bn"} <= record.values.keys() and capability_of(record.architecture) == capability:
            known_tile = _known(record)
            if known_tile is not None:
                tiles.append(known_tile)
    return tuple(tiles)


@by_identities  # strategies share records
def _known(record: Record) -> Known | None:
    problem = _problem_of(record.spec)
    return None if problem is None else Known(record, problem, math.log(record.us / estimated_us(problem.work, record.values)))


@by_identities  # records of one file share equal specs
def _problem_of(spec: Mapping[str, Any]) -> Problem | None:
    return Problem.of(spec)


Corrections = Mapping[tuple[int | None, ...], float]
"""The logarithm of expected by estimated time, by tile."""


def corrections(near: Iterable[tuple[float, Known]]) -> Corrections:
    """Return the corrections by records; `near` has records with their distances."""
    weights: dict[tuple[int | None, ...], list[tuple[float, float]]] = {}
    doubts: dict[tuple[int | None, ...], float] = {}
    for distance, known_tile in near:
        weights.setdefault(known_tile.tile, []).append((1 / (distance**2 + CERTAIN), known_tile.off))
        if distance <= NEAR:
            doubts[known_tile.tile] = DOUBT
    return {tile: _corrected(each, doubts.get(tile, DOUBT_FAR)) for tile, each in weights.items()}


def _corrected(weights: Iterable[tuple[float, float]], doubt: float) -> float:
    """Return the mean of corrections by their weights, and of `UNSEEN` by the weight `doubt`."""
    total, offs = doubt, doubt * UNSEEN
    for weight, off in weights:
        total += weight
        offs += weight * off
    return offs / total


def expected_us(problem: Problem, values: Mapping[str, int], corrected: Corrections) -> float:
    """Return the estimate for a tile, corrected by records."""
    return estimated_us(problem.work, values) * math.exp(corrected.get(tile_of(values), UNSEEN))


@frozen
class Candidate:
    """Values for a strategy, their record (None: a tile of the library), its distance, and the expected time."""

    name: str
    values: Mapping[str, int]
    record: Record | None
    distance: float
    us: float


def candidates(records: Sequence[Record], question: Question) -> Sequence[Candidate]:
    """Return the tiles of records and of the library, with the shortest expected time first; empty without records.

    Of equal tiles whose stages have about the same extent in k, one is returned: the nearest record's, if it is near, else the library's.
    A measurement with the same work, in another element type of the same size or another storage order, precedes all estimates.
    """
    return _candidates(_Same(records), question.spec, question.target)


@functools.lru_cache(maxsize=8)  # a call asks for the whole problem and for its parts, to estimate and then to choose
def _candidates(same: _Same, spec: Spec, target: Architecture) -> Sequence[Candidate]:
    names, problem = by_warpgroups(spec, target), Problem.of(describe(spec))
    if not names or problem is None or work_of(spec) is None:
        return ()
    tiles = known(same.records, names, target.capability)
    problems = {id(tile.problem): tile.problem for tile in tiles}
    distances = {place: problem.apart(other) for place, other in problems.items()}
    near = _in_order((distances[id(tile.problem)], tile) for tile in tiles)
    by_tile: dict[Any, Candidate] = {}
    in_every_cluster: set[Any] = set()
    if not near:
        return ()
    corrected = corrections(near)

    def add(name: str, tiles: Iterable[tuple[Kind, Mapping[str, int]]], record: Record | None, distance: float) -> None:
        for kind, values in tiles:
            if kind not in by_tile and _fills_cluster(problem.work, values):
                by_tile[kind] = Candidate(name, values, record, distance, expected_us(problem, values, corrected))

    def with_clusters(name: str, here: tuple[Kind, Mapping[str, int]]) -> Iterable[tuple[Kind, Mapping[str, int]]]:
        (tile, *others), values = here
        in_clusters_too = (name, tile[:WITHOUT_CLUSTER], *others)
        if not problem.work.across_lines or in_clusters_too in in_every_cluster:
            return (here,)
        in_every_cluster.add(in_clusters_too)
        return _with_kinds(in_clusters(name, problem.work, [values]))

    forms: set[tuple[Any, ...]] = set()

    def add_records(near: Iterable[tuple[float, Known]]) -> None:
        for distance, known_tile in near:
            if known_tile.form in forms:  # a nearer record has the same values
                continue
            forms.add(known_tile.form)
            name = known_tile.record.strategy if known_tile.record.strategy in names else SAME.get(known_tile.record.strategy, "")
            if name in names:
                here = _values_here(known_tile, spec.operands["A"].dtype.bytes, spec.operands["C"].dtype.bytes)
                add(name, with_clusters(name, here), known_tile.record, distance)

    add_records(itertools.takewhile(lambda pair: pair[0] <= AS_NEAR, near))
    for name in names:
        add(name, _with_kinds(in_clusters(name, problem.work, tiles_of(name, spec, len(names) == 1))), None, math.inf)
    add_records(itertools.dropwhile(lambda pair: pair[0] <= AS_NEAR, near))
    equal = next((tile.record for _, tile in near if problem.same_size(tile.problem)), None)
    return tuple(sorted(by_tile.values(), key=lambda candidate: (candidate.record is None or candidate.record != equal, candidate.us)))


WITHOUT_CLUSTER: Final = 4
"""The sizes of `tile_of` before those of the cluster."""

Kind = tuple[tuple[int | None, ...], int, bool]
"""A tile, the extent of its stages in k, rounded to a power of two, and whether a warpgroup stores its part of C at once.

Within one kind the nearest record decides.
"""


def _fills_cluster(work: Work, values: Mapping[str, int]) -> bool:
    """Return whether C has as many tiles along rows and columns as a cluster has blocks: a record of another size may have a larger one."""
    down, along = -(-work.rows // values["bm"]), -(-work.columns // values["bn"])
    return values.get("cluster_m", 1) <= down and values.get("cluster_n", 1) <= along


def _kind(values: Mapping[str, int]) -> Kind:
    at_once = values.get("epi_n", 0) > ROWS
    return tile_of(values), round(math.log2(values.get("stages", 4) * values.get("bk", 64))), at_once


def _with_kinds(tiles: Iterable[Mapping[str, int]]) -> Iterator[tuple[Kind, Mapping[str, int]]]:
    return ((_kind(values), values) for values in tiles)


@by_identities
def _values_here(known: Known, bytes: int, result_bytes: int) -> tuple[Kind, Mapping[str, int]]:
    """Return the values of a record for operands with elements of `bytes` and a result with elements of `result_bytes`."""
    values = of_bytes(known.record.values, bytes, result_bytes, known.problem.work.bytes)
    return _kind(values), values


def _in_order(near: Iterable[tuple[float, Known]]) -> list[tuple[float, Known]]:
    """Sort by distance, then by time, then by the record's text, which takes long to compute."""

    def key(pair: tuple[float, Known]) -> tuple[float, float]:
        return pair[0], pair[1].record.us

    ordered: list[tuple[float, Known]] = []
    for _, group in itertools.groupby(sorted(near, key=key), key):
        equal = list(group)
        ordered += equal if len(equal) == 1 else sorted(equal, key=lambda pair: pair[1].record.line())
    return ordered


def by_tiles(records: Sequence[Record], question: Question, below: float = math.inf) -> Choice | None:
    """Return the legal tile with the shortest expected time; None if there is none.

    Args: `below`, the upper limit of its expected time in microseconds.
    """
    ranked = candidates(records, question)
    for candidate in ranked[:MOST_TRIES]:
        if candidate.us >= below:
            continue
        if candidate.record is not None and current_strategy(candidate.record, question.strategies) is None:
            continue
        try:
            lowered = question.lowered or question.spec
            program = question.bound(default_strategy(candidate.name, candidate.values, lowered)).program(question.target)
            if not question.accept(program):
                continue
            question.prove(program)
        except FireironError:
            continue
        return Choice(candidate.record, False, _why(candidate, question, len(ranked)), program)
    return None


def _why(candidate: Candidate, question: Question, tiles: int) -> str:
    """Explain the choice of a tile."""
    work = work_of(question.spec)
    assert work is not None
    cluster = candidate.values.get("cluster_m", 1), candidate.values.get("cluster_n", 1)
    blocks = work.tiles(candidate.values["bm"], candidate.values["bn"], cluster)
    waves = f"{blocks} blocks, at most {-(-blocks // concurrent_blocks(math.prod(cluster)))} per SM"
    expected = f"{candidate.us:.4g} us expected, {waves}"
    if candidate.record is None:
        words = " ".join([candidate.name, *(f"{name}={value}" for name, value in candidate.values.items())])
        return f"shortest expected time of {tiles} tiles, and legal here: {words}, a tile of the library; {expected}"
    sizes = "x".join(map(str, candidate.record.shape))
    types, layouts = candidate.record.spec["dtypes"]["A"], " ".join(candidate.record.spec["layouts"].values())
    problem_text = f"{sizes} of {types}, {layouts} (distance {candidate.distance:.2f})"
    measured = candidate.record.values.get("cluster_m", 1), candidate.record.values.get("cluster_n", 1)
    legal = "legal here" if cluster == measured else f"in clusters of {cluster[0]}x{cluster[1]} legal here"
    problem, other = Problem.of(describe(question.spec)), Problem.of(candidate.record.spec)
    if problem is not None and other is not None and problem.same_size(other):
        return f"tuned for {problem_text}, which has the same work, and {legal}: {record_text(candidate.record)}; {expected}"
    return f"shortest expected time of {tiles} tiles, tuned for {problem_text}, and {legal}: {record_text(candidate.record)}; {expected}"
