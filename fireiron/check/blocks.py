"""Check for races between blocks: no two blocks may access one element of an array that one of them writes.

A coordinate is the offset of the block plus a part that depends on thread and loops. The offset is decoded digit by digit. If the step of
each digit exceeds the range of all lower digits together, equal coordinates imply equal digits, and equal digits imply the same block. A
condition `digit < 1` on all accesses to an array fixes a digit. Hilbert order and grouped tile order over a known number of tiles have no
digits, and are enumerated.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Frame, Use, distinct, linear, product
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.persistence import one_tile_per_block, persistence
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.ir import Access
from fireiron.values.expr import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Less,
    Mod,
    Positive,
    Var,
    as_expr,
    assume_positive,
    compiled,
    conjuncts,
    constant,
    floordiv,
    hilbert,
    minimum,
    mod,
    replaced,
    tables_of,
)

MAX_ENUMERATED_BLOCKS = 1 << 16
"""Maximum number of adjacent blocks that are enumerated, if their number is known at compile time."""


@frozen(eq=False)
class Local:
    """Coordinates in an array of global memory relative to the block's offset, which all accesses share.

    `parts` are the local coordinates by base, `offset` is the block's offset per dimension, `low` and `high` the range of the local
    coordinates. `problem` states why accesses of different blocks cannot be distinguished.
    """

    parts: dict[tuple[Expr, ...], tuple[Expr, ...]]
    offset: tuple[Expr, ...] = ()
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    problem: str | None = None

    @functools.cached_property
    def weights(self) -> tuple[int, ...]:
        """The place value of each dimension in a key."""
        sizes = [high - low + 1 for low, high in zip(self.low, self.high, strict=True)]
        if math.prod(sizes) > MANY:
            sizes = [1 << (60 // len(sizes))] * len(sizes)
        return tuple(math.prod(sizes[:dim]) for dim in range(len(sizes)))

    def coordinates(self, frame: Frame, access: Access) -> list[Array]:
        """Local coordinates at each point, the access's elements along a last axis."""
        steps = access.table().T
        return [frame.full(part)[..., None] + step for part, step in zip(self.parts[access.base], steps, strict=True)]

    def keys(self, frame: Frame, access: Access) -> Array:
        """A number for each element."""
        parts = zip(self.coordinates(frame, access), self.low, self.weights, strict=True)
        return functools.reduce(np.add, ((part - low) * weight for part, low, weight in parts))


def local_coordinates(access_trace: AccessTrace) -> dict[str, Local]:
    """Local coordinates for each array in global memory that the kernel writes."""
    # A loop over tiles moves all accesses equally, as the block index does.
    outer = (
        access_trace.symbols
        | {"block"}
        | {name for one in persistence(access_trace.kernel) for name in (one.loop.var.name, one.tile.var.name)}
    )
    result = {}
    for buffer in access_trace.kernel.buffers:
        if buffer.memory.of_grid and buffer.written:
            accesses = {use.access for use in access_trace.uses if use.access.buffer == buffer.name}
            result[buffer.name] = _local(access_trace, accesses, outer)
    return result


def _local(access_trace: AccessTrace, accesses: Iterable[Access], outer: frozenset[str]) -> Local:
    parts: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}
    offsets = set()
    lows, highs = [], []
    for access in accesses:
        split = [_split(access_trace, base, outer) for base in access.base]
        mixed = [base for base, pair in zip(access.base, split, strict=True) if pair is None]
        if mixed:
            return Local({}, problem=f"the coordinate {mixed[0]} mixes block and thread")
        pairs = [pair for pair in split if pair is not None]
        parts[access.base] = tuple(inner for _, inner in pairs)
        offsets.add(tuple(outside for outside, _ in pairs))
        reach = access.reach
        lows.append([inner.low for _, inner in pairs])
        highs.append([inner.high + step for (_, inner), step in zip(pairs, reach, strict=True)])
    if len(offsets) > 1:
        return Local({}, problem="its accesses are offset by the block in different ways")
    if not parts:
        return Local({})
    return Local(parts, offsets.pop(), tuple(map(min, zip(*lows, strict=True))), tuple(map(max, zip(*highs, strict=True))))


def _split(access_trace: AccessTrace, base: Expr, outer: frozenset[str]) -> tuple[Expr, Expr] | None:
    """Split a coordinate into the part of the block and the sizes, and the part of thread and loops."""
    terms, number = linear(base)
    outside: Expr = ZERO
    inside: Expr = ZERO + number
    for atoms, coefficient in terms:
        term = product(atoms, coefficient)
        roots = access_trace.roots(term)
        if roots <= outer:
            outside = outside + term
        elif roots.isdisjoint(outer):
            inside = inside + term
        else:
            return None
    return outside, inside


# ---------------------------------------------------------------------------------------------- between blocks


def between_blocks(access_trace: AccessTrace) -> list[Finding]:
    """A finding for each array with elements that two blocks access, if one of them writes, or if this is undecided."""
    if constant(access_trace.kernel.grid) == 1:
        return []
    flat = one_tile_per_block(access_trace.kernel)
    access_trace = access_trace if flat is access_trace.kernel else AccessTrace(flat)
    findings = []
    for name, local in local_coordinates(access_trace).items():
        uses = [use for use in access_trace.uses if use.access.buffer == name]
        writes = [use for use in uses if use.access.write]
        if writes and not all(use.atomic for use in uses):
            finding = (
                _undecided(writes[-1], local.problem) if local.problem is not None else _compared(access_trace, local, uses, writes[-1])
            )
            findings += [finding] if finding is not None else []
    return findings


def _undecided(use: Use, why: str) -> Finding:
    """An error for a case that is not decided."""
    message = (
        f"undecided whether two blocks access one element of {use.access.buffer}: {why}; use compile-time sizes, or tiles "
        "indexed by digits of the block index, or accept the risk with .unchecked(reason)"
    )
    return Finding("race", "error", use.access.buffer, message, line_of(use.statement, use.access), described(use.statement, use.access))


def _compared(access_trace: AccessTrace, local: Local, uses: Sequence[Use], write: Use) -> Finding | None:
    offset = tuple(access_trace.opened(part) for part in local.offset)
    fixed = _fixed(access_trace, uses)
    # Try with names replaced by their values, and with the names: sums of values may have merged into other digits.
    if any(
        _distinguished(access_trace, _digits(access_trace, local, uses, offsets), (*offset, *fixed), fixed)
        for offsets in (offset, local.offset)
    ):
        return None
    if _distinguished(access_trace, _tight_digits(access_trace, local, uses, offset), (*offset, *fixed), fixed):
        return None
    offsets = dict.fromkeys((offset, local.offset))
    if any(
        _in_tile_order(access_trace, widths, candidate, write, fixed)
        for widths in _widths(access_trace, local, uses)
        for candidate in offsets
    ):
        return None
    grid = constant(access_trace.kernel.grid)
    if all(not part.variables() for part in (*offset, *fixed)):
        return _overlap(write, (0, 1), local.low, {})
    if grid is not None and grid > MANY:
        return _undecided(write, f"{grid} blocks are too many to enumerate")
    if grid is not None and not any(_depends_on_sizes(part) for part in (*offset, *fixed)):
        if _apart_in_each_iteration(access_trace, local, uses, offset, fixed):
            return None
        return _enumerated(access_trace, local, uses, write, offset, fixed, {})
    # There is no proof for all sizes. Two sizes are tried, at which two blocks may prove a race. Otherwise the case is undecided.
    for target in (300, 1000):
        sizes = {
            symbol.name: min(max(-(-target // symbol.multiple_of) * symbol.multiple_of, symbol.low), symbol.high)
            for symbol in access_trace.kernel.symbols
        }
        finding = _enumerated(access_trace, local, uses, write, offset, fixed, sizes)
        if finding is not None and "blocks" in finding.details:
            return finding
    return _undecided(write, "the offsets of the blocks could not be decoded for all sizes")


def _fixed(access_trace: AccessTrace, uses: Sequence[Use]) -> tuple[Expr, ...]:
    """Digits of the block index that are 0 wherever all the uses execute."""
    digits = []
    for condition in conjuncts(uses[0].statement.active):
        digit = (
            access_trace.opened(condition.left)
            if isinstance(condition, Less) and condition.right == ONE and condition.left.low >= 0
            else ZERO
        )
        everywhere = all(condition in conjuncts(use.statement.active) for use in uses)
        if everywhere and "block" in access_trace.roots(digit) and access_trace.roots(digit) <= access_trace.symbols | {"block"}:
            digits.append(digit)
    return tuple(digits)


def _depends_on_sizes(part: Expr) -> bool:
    return any(var.name != "block" for var in part.variables())


@frozen
class _Digits:
    """A coordinate as a sum of digits: `terms` are digits with their steps, and `width` is the number of values of the rest below them."""

    terms: tuple[tuple[Expr, int], ...]
    width: int


def _digits(access_trace: AccessTrace, local: Local, uses: Sequence[Use], offset: Sequence[Expr]) -> list[_Digits] | None:
    """The digits of each dimension, if the block's parts are digits; else None."""
    digits = []
    for dim, part in enumerate(offset):
        terms = [(atoms, factor) for atoms, factor in linear(part)[0] if _blocks(access_trace, atoms)]
        if any(len(atoms) > 1 for atoms, _ in terms):
            return None
        smallest = min((abs(factor) for _, factor in terms), default=0)
        common, rests = _common_steps(uses, [local.parts[use.access.base][dim] for use in uses], smallest)
        reach = max(use.access.reach[dim] for use in uses)
        width = max(rest.high for rest in rests) - min(rest.low for rest in rests) + reach + 1
        digits.append(_Digits((*((atom, factor) for (atom,), factor in terms), *common), width))
    return digits


def _tight_digits(access_trace: AccessTrace, local: Local, uses: Sequence[Use], offset: Sequence[Expr]) -> list[_Digits] | None:
    """The digits of each dimension, with widths from enumerating all threads and loops: conditions may reduce the ranges."""
    parts = [[(atoms, factor) for atoms, factor in linear(part)[0] if _blocks(access_trace, atoms)] for part in offset]
    widths = None if any(len(atoms) > 1 for part in parts for atoms, _ in part) else _reach(access_trace, local, uses)
    if widths is None:
        return None
    return [_Digits(tuple((atom, factor) for (atom,), factor in part), width) for part, width in zip(parts, widths, strict=True)]


def _widths(access_trace: AccessTrace, local: Local, uses: Sequence[Use]) -> Iterator[Sequence[int]]:
    """The extents of a block's accesses along each dimension: by ranges; then by enumerating threads and loops with their conditions."""
    yield [high - low + 1 for low, high in zip(local.low, local.high, strict=True)]
    widths = _reach(access_trace, local, uses)
    if widths is not None:
        yield widths


def _reach(access_trace: AccessTrace, local: Local, uses: Sequence[Use]) -> list[int] | None:
    """The extent of a block's accesses along each dimension; None if it accesses nothing, or too much to enumerate."""
    touching = _touching(access_trace, local, uses)
    ends: list[list[tuple[int, int]]] = []
    for use, frame, active in touching or ():
        if active.any():
            bases = (frame.value(part) if active.all() else frame.full(part)[active] for part in local.parts[use.access.base])
            steps = use.access.table().T
            ends.append([(int(np.min(base) + step.min()), int(np.max(base) + step.max())) for base, step in zip(bases, steps, strict=True)])
    if touching is None or not ends:
        return None
    return [max(high for _, high in dim) - min(low for low, _ in dim) + 1 for dim in zip(*ends, strict=True)]


def _common_steps(uses: Sequence[Use], parts: Sequence[Expr], smallest: int) -> tuple[list[tuple[Expr, int]], list[Expr]]:
    """The loop variables, then the parts of threads, that move all accesses by the same step above `smallest`; and the rests of the
    coordinates.

    If elements of different blocks interleave, the blocks are distinguished by the digits below these steps.
    """
    steps_: list[tuple[Expr, int]] = []
    rests = list(parts)
    for loop in uses[0].loops:
        steps = {next((factor for atoms, factor in linear(part)[0] if atoms == (loop.var,)), 0) for part in parts}
        (step, *others) = steps
        if step > smallest > 0 and not others and all(any(one is loop for one in use.loops) for use in uses):
            steps_.append((loop.var, step))
            rests = [rest - loop.var * step for rest in rests]
    common = [set(linear(rest)[0]) for rest in rests]
    loops = {loop.var for use in uses for loop in use.loops}
    for atoms, step in linear(rests[0])[0] if smallest > 0 else ():
        atom, *further = atoms
        is_common = step > smallest and not further and all((atoms, step) in one for one in common)
        if is_common and atom.variables().isdisjoint(loops):
            steps_.append((atom, step))
            rests = [rest - atom * step for rest in rests]
    return steps_, rests


def _distinguished(access_trace: AccessTrace, dimensions: Sequence[_Digits] | None, offset: Sequence[Expr], fixed: Sequence[Expr]) -> bool:
    """Whether the digits of all dimensions can be decoded and, with the fixed digits, determine the block index."""
    if dimensions is None:
        return False
    known: set[Expr] = set(fixed)
    for digits in dimensions:
        width = digits.width
        for digit, step in sorted(digits.terms, key=lambda term: abs(term[1])):
            # A digit can be decoded from the sum only if its step is at least the width of all lower digits; else blocks may overlap.
            if abs(step) < width:
                return False
            value = access_trace.opened(digit)
            width += abs(step) * (value.high - value.low)
            known |= {_counted_value(access_trace, value)} if _blocks(access_trace, (digit,)) else set()
    return _recovered(next((var for part in offset for var in part.variables() if var.name == "block"), None), frozenset(known), 6)


def _counted_value(access_trace: AccessTrace, value: Expr) -> Expr:
    """The value that an expression determines: if it counts down from a size, such as the number of tiles minus 1, the counter."""
    terms = [term for term in linear(value)[0] if _blocks(access_trace, term[0])]
    if len(terms) == 1 and len(terms[0][0]) == 1 and abs(terms[0][1]) == 1 and terms[0][0][0] != value:
        return _counted_value(access_trace, terms[0][0][0])
    return _counted_value(access_trace, value.value) if isinstance(value, Positive) else value


def _in_tile_order(access_trace: AccessTrace, widths: Sequence[int], offset: Sequence[Expr], write: Use, fixed: Sequence[Expr]) -> bool:
    """Whether blocks are in Hilbert order or in grouped tile order. Each block covers at most `widths` elements along the dimensions.

    In grouped order, tiles are in groups of `rows` tile rows, and each group is traversed column by column. With `lines` x `columns` tiles,
    block `b` has number `q = b % (columns * rows)` in group `b // (columns * rows)`. The height `h` of a group is `rows`, or less for the
    last group. The tile of the block is `(group * rows + q % h, q // h)`. For all `b < lines * columns` this tile is in bounds, so the
    limits in the expressions never apply, and the tile determines `b`.

    In a batch, the same holds for the index within a matrix, `b % (lines * columns)`, and other coordinates determine the matrix. A cluster
    has a group of adjacent tiles, one per block. The grid determines the number of values of a fixed digit.
    """
    cluster = access_trace.kernel.cluster
    places = {} if cluster is None else {access_trace.opened(var): size for var, size in zip(cluster.places, cluster.sizes, strict=True)}
    determined: set[Expr] = set()
    tiles = []
    for part, width, extent in zip(offset, widths, access_trace.kernel.buffer(write.access.buffer).tensor.shape, strict=True):
        terms = sorted(
            ((access_trace.opened(atoms[0]), factor) for atoms, factor in linear(part)[0] if _blocks(access_trace, atoms)), key=_factor
        )
        if any(len(atoms) > 1 for atoms, _ in linear(part)[0] if _blocks(access_trace, atoms)):
            return False
        # Within a cluster the lowest digits select the block's tile.
        while terms and terms[0][0] in places and terms[0][1] >= width:
            atom, factor = terms.pop(0)
            determined.add(atom)
            width += factor * (places[atom] - 1)
        if len(terms) > 1 or any(factor < width for _, factor in terms):
            return False
        tiles += [(atom, floordiv(extent + (factor - 1), as_expr(factor))) for atom, factor in terms]
    for digit in fixed:
        tiles.append((digit, floordiv(access_trace.kernel.grid, math.prod((count for _, count in tiles), start=as_expr(1)))))
    block = next((var for part in offset for var in access_trace.opened(part).variables() if var.name == "block"), None)
    cluster_blocks = 1 if cluster is None else cluster.blocks
    if block is None or len(tiles) < 2 or determined != set(places):
        return False
    if math.prod((count for _, count in tiles), start=as_expr(cluster_blocks)) != access_trace.kernel.grid:
        return False
    return any(
        _walks_tiles(block, cluster_blocks, pair, [one for one in tiles if one not in pair]) for pair in itertools.combinations(tiles, 2)
    )


def _walks_tiles(block: Expr, cluster_blocks: int, pair: Sequence[tuple[Expr, Expr]], others: Sequence[tuple[Expr, Expr]]) -> bool:
    """Whether blocks traverse the tiles of two dimensions, given with their counts, in Hilbert or grouped order, for each tile of the other
    dimensions. The `each` blocks of a cluster count as one.
    """
    count = pair[0][1] * pair[1][1] * cluster_blocks
    if others:
        if not _recovered(floordiv(block, count), frozenset(atom for atom, _ in others), 6):
            return False
        block = mod(block, count)
    quotients = [one for atom, _ in pair for one in atom.subexpressions() if isinstance(one, FloorDiv)]
    # The quotient of a cluster index is a quotient of the block index, if the divisor is known.
    groups = {as_expr(size // cluster_blocks) for one in quotients if one.left == block and (size := constant(one.right)) is not None}
    block = floordiv(block, as_expr(cluster_blocks))
    groups |= {one.right for one in quotients if one.left == block}
    group_heights = {rows for band in groups for _, columns in pair if (rows := _times(band, columns))}
    orders = ((pair[0], pair[1]), (pair[1], pair[0]))
    for (line, lines), (column, columns) in orders:
        number = hilbert(block, lines, columns)
        if (line, column) in _limited(floordiv(number, columns), mod(number, columns), lines, columns):
            return True
        if any((line, column) in _grouped_tiles(block, lines, columns, rows) for rows in group_heights):
            return True
    return False


def _times(whole: Expr, part: Expr) -> int:
    """The quotient of two sizes at their largest values: 2 for `N // 2` columns in a group of `N` tiles."""
    largest = {var.name: var.high for var in whole.variables() | part.variables()}
    return int(whole.evaluate(largest)) // max(int(part.evaluate(largest)), 1)


def _factor(term: tuple[Expr, int]) -> int:
    return term[1]


def _grouped_tiles(block: Expr, lines: Expr, columns: Expr, rows: int) -> tuple[tuple[Expr, Expr], ...]:
    """The tile of a block in grouped order, with and without limits that never apply."""
    group, inside = floordiv(block, columns * rows), mod(block, columns * rows)
    tiles: list[tuple[Expr, Expr]] = []
    for height in (assume_positive(minimum(as_expr(rows), lines - group * rows)), as_expr(rows)):
        line, column = group * rows + mod(inside, height), floordiv(inside, height)
        tiles += _limited(line, column, lines, columns)
    whole = mod(lines, as_expr(rows)) == ZERO
    return tuple(tiles) if whole else tuple(tiles[:2])


def _limited(line: Expr, column: Expr, lines: Expr, columns: Expr) -> tuple[tuple[Expr, Expr], ...]:
    return (line, column), (minimum(line, lines - 1), minimum(column, columns - 1))


def _blocks(access_trace: AccessTrace, atoms: Sequence[Expr]) -> bool:
    return any("block" in access_trace.roots(atom) for atom in atoms)


def _recovered(value: Expr | None, known: frozenset[Expr], depth: int) -> bool:
    """Whether known values determine a value: directly, or by its quotient and remainder by one divisor."""
    if value is None or depth == 0:
        return False
    if value in known or not value.variables() or value.low == value.high or _enumerable(value, known):
        return True
    divisors = {one.right for one in known if isinstance(one, (Mod, FloorDiv))}
    divisors |= {one.right for atom in known for one in atom.children if isinstance(one, (Mod, FloorDiv))}
    for divisor in divisors - {ONE}:
        digit, rest = mod(value, divisor), floordiv(value, divisor)
        if digit != value and _recovered(digit, known, depth - 1) and _recovered(rest, known, depth - 1):
            return True
    return False


def _enumerable(value: Expr, known: frozenset[Expr]) -> bool:
    """Whether the known values that depend only on a remainder by a constant are distinct for distinct remainders.

    This holds for tiles along a Hilbert curve, or in groups of which the last is lower, of a known number of adjacent blocks.
    """
    size = constant(value.right) if isinstance(value, Mod) else None
    if not isinstance(value, Mod) or size is None or size > MAX_ENUMERATED_BLOCKS:
        return False
    place = Var("the remainder", 0, size - 1)
    substitution = {value.left: Var("the quotient", 0, max(value.left.high // size, 0)) * size + place}
    images = [image for image in (_image(one, substitution) for one in known) if image is not None and image.variables() == {place}]
    if not images:
        return False
    values = np.stack([np.broadcast_to(compiled(one)({place.name: np.arange(size)}), (size,)) for one in images], axis=-1)
    return len(distinct(values, axis=0)) == size


def _image(value: Expr, substitution: Mapping[Expr, Expr]) -> Expr | None:
    """A value with replacements for some of its parts; None if it depends on data, or if a divisor may then not be positive.

    The range of a quotient and a remainder together is wider than that of the original value.
    """
    if tables_of(value):
        return None
    try:
        return replaced(value, substitution)
    except ArgumentError:
        return None


def _apart_in_each_iteration(
    access_trace: AccessTrace, local: Local, uses: Sequence[Use], offset: Sequence[Expr], fixed: Sequence[Expr]
) -> bool:
    """Whether all blocks of a grid of known size access disjoint boxes in each iteration of the common loops, and the step of an iteration
    exceeds the extent of all boxes.

    Equal coordinates then imply equal iterations, for any number of iterations, and so overlapping boxes.
    """
    count = constant(access_trace.kernel.grid)
    assert count is not None
    frame = access_trace.frame([("block", np.arange(count))])
    active_blocks = functools.reduce(np.logical_and, (frame.full(one) == 0 for one in fixed), np.ones(count, dtype=bool))
    places = np.stack([frame.full(part)[active_blocks] for part in offset], axis=-1)
    widths = []
    for dim, part in enumerate(offset):
        smallest = min((abs(factor) for atoms, factor in linear(part)[0] if _blocks(access_trace, atoms)), default=0)
        common, rests = _common_steps(uses, [local.parts[use.access.base][dim] for use in uses], smallest)
        width = max(rest.high for rest in rests) - min(rest.low for rest in rests) + max(use.access.reach[dim] for use in uses) + 1
        widths.append(width)
        width += int(np.ptp(places[:, dim]))
        for digit, step in sorted(common, key=_factor):
            if step < width:
                return False
            value = access_trace.opened(digit)
            width += step * (value.high - value.low)
    steps = np.gcd.reduce(places - places[0])
    apart = all(step == 0 or width <= step for step, width in zip(steps, widths, strict=True))
    return apart and len(distinct(places, axis=0)) == len(places)


def _enumerated(
    access_trace: AccessTrace,
    local: Local,
    uses: Sequence[Use],
    write: Use,
    offset: Sequence[Expr],
    fixed: Sequence[Expr],
    sizes: Mapping[str, int],
) -> Finding | None:
    """Enumerate all blocks of a grid of known size: first by their bounding boxes, then element by element."""
    count = int(access_trace.frame([], sizes).value(access_trace.kernel.grid))
    if count > MANY:
        return _undecided(write, f"{count} blocks are too many to enumerate")
    frame = access_trace.frame([("block", np.arange(count))], sizes)
    numbers = np.flatnonzero(functools.reduce(np.logical_and, (frame.full(one) == 0 for one in fixed), np.ones(count, dtype=bool)))
    places = np.stack([frame.full(part) for part in offset], axis=-1)[numbers]
    steps = np.gcd.reduce(places - places[0])
    widths = [high - low + 1 for low, high in zip(local.low, local.high, strict=True)]
    boxes, first, owner = np.unique(places, axis=0, return_index=True, return_inverse=True)
    if len(boxes) < len(places):
        owners = first[owner.ravel()]
        other = int(np.flatnonzero(owners != np.arange(len(places)))[0])
        element = places[other] + np.array(local.low)
        if _inside(access_trace, write, element, sizes):
            return _overlap(write, (int(numbers[owners[other]]), int(numbers[other])), element, sizes)
    # Boxes at multiples of a step, and no wider than the step, do not overlap.
    elif all(step == 0 or width <= step for step, width in zip(steps, widths, strict=True)):
        return None
    elements = _elements(access_trace, local, uses)
    if elements is None or len(elements) * len(places) > MANY:
        return _undecided(write, f"{len(places)} blocks access interleaved elements, too many to enumerate")
    touched = (places[:, None, :] + elements[None, :, :]).reshape(-1, places.shape[1])
    blocks = np.repeat(np.arange(len(places)), len(elements))
    _, index, inverse = np.unique(touched, axis=0, return_index=True, return_inverse=True)
    owners = blocks[index][inverse.ravel()]
    for where in np.flatnonzero(owners != blocks):
        # Past the end of the tensor, tiles of two blocks may overlap: neither accesses anything there.
        if _inside(access_trace, write, touched[where], sizes):
            return _overlap(write, (int(numbers[owners[where]]), int(numbers[blocks[where]])), touched[where], sizes)
    return None


def _inside(access_trace: AccessTrace, use: Use, element: Array, sizes: Mapping[str, int]) -> bool:
    shape = access_trace.kernel.buffer(use.access.buffer).tensor.shape
    extents = [int(size.evaluate(sizes)) if {var.name for var in size.variables()} <= set(sizes) else size.high for size in shape]
    return all(0 <= place < size for place, size in zip(element, extents, strict=True))


def _elements(access_trace: AccessTrace, local: Local, uses: Sequence[Use]) -> Array | None:
    """All local coordinates that a block accesses."""
    touching = _touching(access_trace, local, uses)
    if touching is None:
        return None
    rows = []
    for use, frame, active in touching:
        coordinates = (part[active].ravel() for part in local.coordinates(frame, use.access))
        rows.append(distinct(np.stack(list(coordinates), axis=-1), axis=0))
    return distinct(np.concatenate(rows), axis=0)


def _touching(access_trace: AccessTrace, local: Local, uses: Sequence[Use]) -> list[tuple[Use, Frame, Array]] | None:
    """The accesses with all threads and iterations of a block, and the mask of those that are active; None if there are too many."""
    result = []
    for use in uses:
        guards, _ = access_trace.guards(use.statement, frozenset({"thread", *(loop.var.name for loop in use.loops)}))
        needed = access_trace.needs((*local.parts[use.access.base], *guards))
        axes = access_trace.loop_axes(use.loops, needed, MANY // access_trace.kernel.workers)
        if axes is None:
            return None
        frame = access_trace.frame([("thread", access_trace.threads), *axes])
        active = functools.reduce(np.logical_and, (frame.full(guard).astype(bool) for guard in guards), np.ones(frame.shape, dtype=bool))
        result.append((use, frame, active))
    return result


def _overlap(use: Use, blocks: tuple[int, int], element: Iterable[int], sizes: Mapping[str, int]) -> Finding:
    name = use.access.buffer
    place = [int(one) for one in element]
    at_sizes = f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}" if sizes else ""
    message = f"{name}{place}: blocks {blocks[0]} and {blocks[1]} both access it{at_sizes}, and blocks are not ordered"
    details = {"blocks": blocks, "element": place, "sizes": dict(sizes), "statements": [described(use.statement, use.access)] * 2}
    details |= {"buffers": [name, name], "lines": [line_of(use.statement, use.access)] * 2}
    return Finding("race", "error", name, message, line_of(use.statement, use.access), described(use.statement, use.access), details)
