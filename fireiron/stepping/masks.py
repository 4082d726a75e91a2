"""Masks over a tile: whether a condition on coordinates holds for all or some elements, and which loop iterations are fully masked.

Only conjuncts are analyzed that require a sum of coordinates, extents and integers to be nonnegative. The coordinates of a tile are between
those of its first and its last element.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Formula, Number, Operation, Value
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import EXTENTS, INDICES, Step, shown
from fireiron.stepping.masked_tile_effects import Fails, changed_by
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, all_of, any_of, as_expr, less, lookup, minimum
from fireiron.values.machine import Block, DType, int32
from fireiron.values.tensor import View


@frozen
class AtLeast:
    """A condition `0 <= sum of terms + number`; a term is the name of a coordinate `index_n` or extent `size_n` with its coefficient.

    If it compares a digit `n // run`, it is equal for `run` adjacent coordinates, from a multiple of `run` on.
    """

    terms: tuple[tuple[str, int], ...]
    number: int
    run: int = 1

    def factor(self, name: str) -> int:
        """Return the coefficient of a coordinate."""
        return dict(self.terms).get(name, 0)

    def without(self, name: str) -> AtLeast:
        """Return the condition without a term."""
        return attrs.evolve(self, terms=tuple(term for term in self.terms if term[0] != name))

    def implies(self, other: AtLeast) -> bool:
        """Whether this condition implies the other one: it has the same terms and is at least as tight."""
        return self.terms == other.terms and self.number <= other.number

    @property
    def of_numbers(self) -> bool:
        """Whether it has terms other than coordinates and extents."""
        return any(not name.startswith((INDICES, EXTENTS)) for name, _ in self.terms)

    def compares(self, numbers: Collection[str]) -> bool:
        """Whether it compares a coordinate or a digit with one of the numbers: then the number may be clamped to the extent."""
        kinds = sorted((name in numbers, name.startswith(INDICES), count) for name, count in self.terms)
        below, above = [(False, True, -1), (True, False, self.run)], [(False, True, 1), (True, False, -self.run)]
        return (kinds == below and self.number in (-1, self.run - 1)) or (kinds == above and self.number in (0, -self.run))

    def parts(self, views: Mapping[str, View], last: bool, numbers: Mapping[str, Expr] | None = None) -> tuple[Expr, Expr]:
        """Return the minimum of the sum over a tile, or with `last` its maximum, as its positive and its negative part.

        Terms that are neither coordinates nor extents are `numbers` by name.
        """
        added, subtracted = as_expr(max(self.number, 0)), as_expr(max(-self.number, 0))
        for name, count in self.terms:
            value = numbers[name] if numbers and name in numbers else _end(views, name, last == (count > 0))
            added, subtracted = (added + value * count, subtracted) if count > 0 else (added, subtracted + value * -count)
        return added, subtracted


def _end(views: Mapping[str, View], name: str, last: bool) -> Expr:
    """Return the first or the last coordinate of a tile, or an extent."""
    if name.startswith(EXTENTS):
        (size,) = views[f"{INDICES}{name[len(EXTENTS) :]}"].tensor.shape
        return as_expr(size)
    (part,) = views[name].dims
    reach: Expr = ZERO
    for mode in part.modes:
        reach = reach + (mode.size - 1) * mode.stride
    return part.base + reach if last else part.base


def _linear(value: Value, sign: int, into: dict[str, int], numbers: Collection[str] = ()) -> bool:
    """Whether a value is an integer combination of coordinates, extents and operands `numbers`; adds their coefficients to a table.

    The constant term has the empty name.
    """
    if isinstance(value, Number):
        is_integer = float(value.value).is_integer()
        into[""] = into.get("", 0) + (sign * int(value.value) if is_integer else 0)
        return is_integer
    if isinstance(value, Element):
        into[value.tensor] = into.get(value.tensor, 0) + sign
        return value.tensor.startswith((INDICES, EXTENTS)) or value.tensor in numbers
    if value.name == "-" and len(value.arguments) == 1:
        return _linear(value.arguments[0], -sign, into, numbers)
    if value.name in ("+", "-") and len(value.arguments) == 2:
        left, right = value.arguments
        return _linear(left, sign, into, numbers) and _linear(right, sign if value.name == "+" else -sign, into, numbers)
    if value.name == "*" and len(value.arguments) == 2:
        count, rest = value.arguments if isinstance(value.arguments[0], Number) else value.arguments[::-1]
        return isinstance(count, Number) and float(count.value).is_integer() and _linear(rest, sign * int(count.value), into, numbers)
    return False


def linear_conjuncts(condition: Value, numbers: Collection[str] = ()) -> Iterator[AtLeast | None]:
    """Return the conjuncts of a condition on coordinates, extents and operands `numbers`; None for a conjunct that is not analyzed."""
    assert isinstance(condition, Operation)
    if condition.name == "and":
        for argument in condition.arguments:
            yield from linear_conjuncts(argument, numbers)
        return
    if condition.name not in ("<", "<=", ">", ">="):
        yield None
        return
    left, right = condition.arguments if condition.name[0] == "<" else condition.arguments[::-1]
    strict = len(condition.name) == 1
    if _digit(left) is not None or _digit(right) is not None:
        yield _of_digit(left, right, strict, numbers)
        return
    table: dict[str, int] = {}
    if not (_linear(right, 1, table, numbers) and _linear(left, -1, table, numbers)):
        yield None
        return
    number = table.pop("", 0) - strict
    yield AtLeast(tuple((name, count) for name, count in sorted(table.items()) if count), number)


def _digit(value: Value) -> tuple[str, int] | None:
    """Return the coordinate and the divisor of a value `n // 64`; None for other values."""
    if not isinstance(value, Operation) or value.name != "//":
        return None
    coordinate, divisor = value.arguments
    if not isinstance(coordinate, Element) or not coordinate.tensor.startswith(INDICES) or not isinstance(divisor, Number):
        return None
    return (coordinate.tensor, int(divisor.value)) if float(divisor.value).is_integer() and divisor.value >= 1 else None


def _of_digit(left: Value, right: Value, strict: bool, numbers: Collection[str]) -> AtLeast | None:
    """Return the condition `left <= right` if one side is a digit and the other an operand of `numbers`; None for others.

    `n // 64 < e` is `n < 64 * e`, and `b <= n // 64` is `64 * b <= n`.
    """
    lower, upper = _digit(left), _digit(right)
    other = right if lower is not None else left
    if not isinstance(other, Element) or other.tensor not in numbers:
        return None
    if lower is not None:
        name, run = lower
        return AtLeast(tuple(sorted([(name, -1), (other.tensor, run)])), -1 if strict else run - 1, run)
    assert upper is not None
    name, run = upper
    return AtLeast(tuple(sorted([(name, 1), (other.tensor, -run)])), -run if strict else 0, run)


def numbers_of(definition: FusedDefinition, views: Mapping[str, View], most: Expr) -> dict[str, Expr]:
    """Return the integers that a kernel reads once per tile or iteration, clamped to 0 to `most`, by operand.

    The operands are in memory, and have only dimensions of which a step processes one element.
    """
    single = {*definition.scan, *definition.batch}
    numbers = {}
    for name, dims in definition.uses.items():
        view = views[name]
        if set(dims) <= single and view.memory.of_grid and view.dtype == int32 and all(size == ONE for size in view.shape):
            address = as_expr(view.tensor.storage().address(tuple(part.base for part in view.numerals)))
            numbers[name] = lookup(view.tensor.name, address, most)
    return numbers


def may_fail(condition: Value, views: Mapping[str, View], numbers: Mapping[str, Expr] | None = None) -> Expr:
    """Whether a condition may fail somewhere in the tile with these views of coordinates; true if it is not analyzed.

    `numbers` are the integers that a kernel reads once per tile, by operand.
    """
    values = numbers or {}
    if isinstance(condition, Operation) and condition.name == "or":
        return all_of(may_fail(argument, views, values) for argument in condition.arguments)
    conditions = []
    for term in linear_conjuncts(condition, values):
        if term is None or any(name not in views for name, _ in term.terms if name.startswith(INDICES)):
            return TRUE
        if term.of_numbers and not term.compares(values):
            return TRUE
        conditions.append(less(*term.parts(views, last=False, numbers=values)))
    return any_of(conditions) if conditions else FALSE


def in_place(formula: Formula) -> Value | None:
    """Return the condition of a formula that keeps elements if it holds, as `s[m,n] = where(n <= m, s[m,n], -inf)`; None for others."""
    value = formula.value
    if (
        formula.accumulates
        or formula.reduction
        or not isinstance(value, Operation)
        or value.name != "where"
        or value.arguments[1] != formula.target
    ):
        return None
    return value.arguments[0]


MOST_SAMPLES = 1024
"""Number of coordinates per dimension at which conditions are evaluated to count masked elements."""


def visible_shares(definition: FusedDefinition, sizes: Mapping[str, int]) -> list[tuple[frozenset[str], float]]:
    """Return, for each mask of a definition, the dimensions of its condition and the fraction of visible elements."""
    import numpy

    shares = []
    for step in definition.steps:
        if mask_value(step) is None:
            continue
        bounds = [bound for bound in linear_conjuncts(condition_of(step)) if bound is not None]
        dims = {name[len(INDICES) :] for bound in bounds for name, _ in bound.terms if name.startswith(INDICES)}
        if not dims or any(dim not in sizes for dim in dims):
            continue
        axes = [numpy.linspace(0, sizes[dim], min(sizes[dim], MOST_SAMPLES), endpoint=False).astype(int) for dim in dims]
        at = dict(zip((f"{INDICES}{dim}" for dim in dims), numpy.meshgrid(*axes, indexing="ij"), strict=True))
        at |= {f"{EXTENTS}{dim}": numpy.asarray(size) for dim, size in sizes.items()}
        holds = numpy.ones(tuple(map(len, axes)), dtype=bool)
        for bound in bounds:
            holds &= sum(count * at[name] for name, count in bound.terms) + bound.number >= 0
        shares.append((frozenset(dims), float(holds.mean())))
    return shares


# ---------------------------------------------------------------------------------------------- iterations that are not masked


@frozen
class VisibleIterations:
    """The iterations of a loop with visible elements: those before `end`, without those whose elements are all among the first `masked`.

    `whole` are the masks that mask all elements of an iteration or none.
    """

    masked: Expr
    end: Expr
    whole: tuple[str, ...] = ()


def visible(spec: Spec, dim: str, size: int, whole: Expr) -> VisibleIterations:
    """Return the iterations of a loop over `dim` with visible elements; it has `whole` iterations of `size` elements.

    Raises: DecompositionError if no mask bounds them, or a fully masked iteration would change a carried value.
    """
    definition = fused(spec)
    assert definition is not None
    if spec.level.is_below(Block):
        raise DecompositionError(
            "skip_masked_tiles: units of a block would have different trip counts", within=spec, hint="split before .to(Warp)"
        )
    masks = [step for step in definition.steps if mask_value(step) is not None and dim in step.formula.target.dims]
    numbers = numbers_of(definition, spec.operands, spec.size(dim))
    bounds = [(step, bound) for step in masks for bound in linear_conjuncts(condition_of(step), numbers) if bound is not None]
    bounds = [(step, bound) for step, bound in bounds if not bound.of_numbers or bound.compares(numbers)]
    bounds = [(step, bound) for step, bound in bounds if abs(bound.factor(f"{INDICES}{dim}")) == 1]
    if not bounds:
        raise DecompositionError(
            f"skip_masked_tiles: no step masks elements by a condition that bounds {dim}", got=_conditions(definition, dim),
            within=spec, legal=f"s[m,{dim}] = where({dim} <= m, s[m,{dim}], -inf)",
        )  # fmt: skip
    masked_elements: Expr = ZERO
    end = whole
    changes = [changed_without(definition, step, failing(bound, numbers), spec) for step, bound in bounds]
    first = changes[0]
    if first is not None and None not in changes:
        raise first
    # A mask is not used as a bound if fully masked iterations change a value: other masks may be tighter.
    for (_, bound), change in zip(bounds, changes, strict=True):
        if change is not None:
            continue
        name = f"{INDICES}{dim}"
        added, subtracted = bound.without(name).parts(spec.operands, last=True, numbers=numbers)
        if bound.factor(name) == -1:  # dim <= added - subtracted
            least = minimum(subtracted, added + 1)
            end = minimum(end, (added + 1 - least + (size - 1)) // size)
        else:  # dim >= subtracted - added
            masked_elements = _larger(masked_elements, subtracted - minimum(subtracted, added))
    used = [(step.name, bound) for (step, bound), change in zip(bounds, changes, strict=True) if change is None]
    names = tuple(step.name for step in masks if _masks_whole(step, size, [bound for name, bound in used if name == step.name], numbers))
    return VisibleIterations(masked_elements, end, names)


def _masks_whole(mask: Step, size: int, used: Collection[AtLeast], numbers: Collection[str]) -> bool:
    """Whether a mask has only conditions that bound the loop, each equal for all elements of an iteration."""
    conjuncts = list(linear_conjuncts(condition_of(mask), numbers))
    return all(bound is not None and bound in used and bound.run > 1 and bound.run % size == 0 for bound in conjuncts)


def without_masks(definition: FusedDefinition, masks: Collection[str], types: Mapping[str, DType]) -> FusedDefinition:
    """Return a definition whose steps `masks` keep all elements; `types` are those of tensors.

    A step that then only copies an operand to an operand of an MMA disappears: the MMA reads the operand itself.
    """
    if not masks:
        return definition
    steps: list[Step] = []
    same: dict[str, Element] = {}
    for step in definition.steps:
        formula = step.formula
        if step.name in masks:
            assert isinstance(formula.value, Operation)
            formula = attrs.evolve(formula, value=formula.value.arguments[1])
            if _is_copied(formula, step.name, definition, types):
                assert isinstance(formula.value, Element)
                same[formula.output] = formula.value
                continue
        steps.append(attrs.evolve(step, formula=attrs.evolve(formula, value=_replaced(formula.value, same))))
    touched = {name for step in steps for name in (*step.reads, step.formula.output)}
    dims = {dim for step in steps for element in (step.formula.target, *step.formula.elements) for dim in element.dims}
    kept = tuple((name, of) for name, of in definition.given if name in touched or name[len(INDICES) :] in dims)
    return definition.of(steps=tuple(steps), given=kept)


def _is_copied(formula: Formula, step: str, definition: FusedDefinition, types: Mapping[str, DType]) -> bool:
    """Whether a formula copies an operand to the operand of an MMA, in the default memory, which no other step writes or reads."""
    readers = [other.formula for other in definition.steps if formula.output in other.reads]
    writers = [other for other in definition.steps if other.formula.output == formula.output]
    return (
        isinstance(formula.value, Element)
        and formula.value.tensor in definition.uses
        and types[formula.value.tensor] == types[formula.output]
        and len(writers) == 1
        and bool(readers)
        and all(reader.contracts for reader in readers)
        and definition.memory_of(formula.output) is None
        and definition.strategy_of(step) is None
    )


def _replaced(value: Value | None, same: Mapping[str, Element]) -> Value | None:
    """Replace elements of temporaries by elements of operands."""
    if isinstance(value, Element) and value.tensor in same:
        return same[value.tensor]
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_replaced(argument, same) for argument in value.arguments))  # type: ignore[misc]
    return value


def _conditions(definition: FusedDefinition, dim: str) -> str | None:
    """Return the conditions of masks along a dimension, each with the reason why it does not bound the dimension."""
    texts = []
    for step in (step for step in definition.steps if mask_value(step) is not None and dim in step.formula.target.dims):
        parts = list(linear_conjuncts(condition_of(step)))
        factors = [0 if bound is None else bound.factor(f"{INDICES}{dim}") for bound in parts]
        why = "is not an inequality of sums of coordinates" if None in parts else f"has {dim} {max(map(abs, factors))} times"
        texts.append(f"step {step.name}: {shown(condition_of(step))} {why}")
    return "; ".join(texts) or None


def _larger(left: Expr, right: Expr) -> Expr:
    return right if left == ZERO else left + right - minimum(left, right)


def mask_value(step: Step) -> Number | None:
    """Return the number by which a mask replaces masked elements."""
    value = step.formula.value
    if step.formula.accumulates or not isinstance(value, Operation) or value.name != "where":
        return None
    masked_value = value.arguments[2]
    if isinstance(masked_value, Operation) and masked_value.name == "-" and isinstance(masked_value.arguments[0], Number):
        masked_value = Number(-masked_value.arguments[0].value)
    return masked_value if isinstance(masked_value, Number) else None


def condition_of(mask: Step) -> Value:
    """Return the condition of a step that masks elements: elements for which it holds are visible."""
    value = mask.formula.value
    assert isinstance(value, Operation)
    return value.arguments[0]


def failing(bound: AtLeast, numbers: Collection[str] = ()) -> Fails:
    """Return the test for conditions that fail if a bound fails: those with a conjunct that implies the bound."""

    def fails(condition: Value) -> bool:
        return any(part is not None and part.implies(bound) for part in linear_conjuncts(condition, numbers))

    return fails


def failing_with(condition: Value, numbers: Collection[str]) -> Fails:
    """Return the test for conditions that fail if any bound of a condition fails: the same, and those that imply each of its bounds."""
    bounds = [failing(bound, numbers) for bound in linear_conjuncts(condition, numbers) if bound is not None]
    return lambda other: other == condition or (bool(bounds) and all(fails(other) for fails in bounds))


def changed_without(definition: FusedDefinition, mask: Step, fails: Fails, spec: Spec) -> DecompositionError | None:
    """Return why iterations that a mask masks fully cannot be skipped; None if they change no carried value.

    Raises: DecompositionError if every iteration stores an operand.
    """
    stored = {*definition.known} - {*definition.added}
    written = [step.formula.output for step in definition.steps if step.formula.output in stored]
    if written:
        raise DecompositionError(f"skip_masked_tiles: each iteration writes {written[0]}", within=spec, hint="write it after the loop")
    changed = changed_by(definition, fails)
    if changed is None:
        return None
    return DecompositionError(
        f"skip_masked_tiles: an iteration in which {mask.name} masks all elements changes {changed.step.formula.output}",
        got=f"step {changed.step.name}: {changed}, where {mask.formula.target} is {mask_value(mask)}", within=spec,
        legal=f"{changed.step.formula.target} unchanged, for all arrays",
        hint="use an else-value that changes no maximum and no sum, such as -inf before exp2",
    )  # fmt: skip
