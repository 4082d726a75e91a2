"""Indirect operands of a definition: arrays that a formula reads at digits of coordinates, or at numbers from arrays of integers.

    "A[rows[m],k]"                     rows of A, in the order of the array rows
    "K[table[b,n // 16],n % 16,d]"     pages of 16 keys
    "S[n,k // 64]"                     a scale for each 64 elements along k
    "X[c,p * 2 + r - 1]"               a window of a padded row; zero where the index is outside of X, unless `outside` states another value
    "X[c,(p + 1 - r) / 2]"             the exact quotient; an element at another quotient does not exist, and is outside
    "X[m // 49,m // 7 % 7 + r,m % 7]"  one dimension that enumerates images, rows and columns

The operand has the dimensions that occur in its indices, in order of appearance: `A[m,k]`, `K[b,n,d]`, `S[n,k]`. A `Stored` states the
dimensions of its array and the index along each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, closest
from fireiron.frozen import frozen
from fireiron.specs.formula import DIGITS, Affine, Element, Formula, Index, Looked, require_same_indices
from fireiron.specs.meaning import combining_function, neutral
from fireiron.values.affine import CIRCULAR, PADDING_MODES, REFLECT, REPLICATE, AffineIndex, DigitTerm
from fireiron.values.expr import TRUE, Expr, as_expr, less
from fireiron.values.indirect import ArrayIndex, DimIndex, TableIndex
from fireiron.values.machine import DType, float64, int32
from fireiron.values.tensor import Storage, Tensor, indirect


@frozen
class Stored:
    """The array of an operand: its dimensions, and the index along each; `dims` are the operand's own dimensions.

    `outside` is the value of an element whose affine index is not in the array, or the padding mode that moves the index into it. None:
    zero, which no formula states.
    """

    operand: str
    of: tuple[str, ...]
    index: tuple[Index | Looked | Affine, ...]
    outside: float | str | None = None

    @property
    def mode(self) -> str:
        """The padding mode; empty if elements outside of the array have a constant value."""
        return self.outside if isinstance(self.outside, str) else ""

    @property
    def affine(self) -> tuple[Affine, ...]:
        """The affine expressions among the indices."""
        return tuple(one for one in self.index if isinstance(one, Affine))

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the operand."""
        return Element.of(self.operand, self.index).dims

    @property
    def tables(self) -> tuple[Looked, ...]:
        """The elements of arrays of integers among the indices."""
        return tuple(one for one in self.index if isinstance(one, Looked))

    def __str__(self) -> str:
        return str(Element.of(self.operand, self.index))

    @property
    def counts(self) -> tuple[int, ...]:
        """By index, the coordinates per element of the array if the index is a quotient; else 1."""
        return tuple(one.number if isinstance(one, Index) and one.sign == "//" else 1 for one in self.index)

    def derived(self) -> Iterator[tuple[str, Index]]:
        """The dimensions of the array whose extent a digit determines."""
        for dim, index in zip(self.of, self.index, strict=True):
            if isinstance(index, Index) and index.sign in DIGITS:
                yield dim, index


def stored_operands(
    steps: Iterable[tuple[str, Formula]], uses: Mapping[str, tuple[str, ...]], outside: Mapping[str, Any], compressed: Collection[str] = ()
) -> tuple[Stored, ...]:
    """The indirect operands of steps, given by name; `uses` are the declared dimensions of each operand, `outside` values by operand.

    `compressed` are arrays of compressed operands, which are not indirect.

    An array of integers that no step reads has the indices of its first use as a table.

    Raises: ArgumentError for indices that no kernel can compute; it names the step.
    """
    first: dict[str, Element] = {}
    named: dict[str, tuple[str, Element]] = {}
    for step, formula in steps:
        elements = (*formula.elements, formula.target)
        require_same_indices((*first.values(), *elements), f"step {step}", str(formula))
        for element in elements:
            first.setdefault(element.tensor, element)
            if element.stored and element.tensor not in compressed:
                _check_element(step, element, formula, uses)
                named.setdefault(element.tensor, (step, element))
    operands = {name: Stored(name, uses[name], element.stored) for name, (_, element) in named.items()}
    for name, value in outside.items():
        operands |= {name: _with_outside(name, value, operands)}
    for step, formula in steps:
        _check_affine(step, formula, operands)
    for name, (step, element) in named.items():
        for table in operands[name].tables:
            _check_table(step, table, element, first, uses)
            if table.array not in first and tuple(map(str, table.index)) != uses[table.array]:
                operands.setdefault(table.array, Stored(table.array, uses[table.array], table.index))
    return tuple(operands[name] for name in uses if name in operands)


def _check_element(step: str, element: Element, formula: Formula, uses: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an indirect element of a temporary or of an output, or with another number of indices than its array."""
    dims = uses.get(element.tensor)
    if dims is None:
        raise ArgumentError(
            f"step {step}: {element} of a temporary", got=str(formula), legal="digits and tables as indices of operands",
            hint=f"{element.tensor}[{','.join(element.dims)}]",
        )  # fmt: skip
    if len(dims) != len(element.stored):
        raise ArgumentError(
            f"step {step}: {element} has other dimensions than the operand", got=str(formula), legal=f"{element.tensor}[{','.join(dims)}]"
        )
    other = next((one for one in element.stored if isinstance(one, Index) and not one.plain and one.sign not in DIGITS), None)
    if other is not None:
        raise ArgumentError(f"step {step}: the index {other} of {element}", got=str(formula), legal="m, m // 16, m % 16, rows[m]")


def _with_outside(name: str, value: object, operands: Mapping[str, Stored]) -> Stored:
    """The operand with a value outside of its array. Raises: ArgumentError for other operands, and for values that no element has."""
    stored = operands.get(name)
    if stored is None or not stored.affine:
        affine = [one.operand for one in operands.values() if one.affine]
        raise ArgumentError(
            f"Fused: outside has {name}, which has no affine index", got=name, legal=affine or "operands with indices such as p*2 + r - 1"
        )
    number = _outside_value(name, value)
    divided = next((one for one in stored.affine if one.divisor > 1), None)
    if isinstance(number, str) and divided is not None:
        raise ArgumentError(
            f"Fused: outside of {name} is {number}, and the index {divided} is an exact quotient", got=str(stored),
            legal="a number, since an element at another quotient does not exist",
            hint="two operands for the array: one with the quotient, and one with the padding mode",
        )  # fmt: skip
    return attrs.evolve(stored, outside=number)


def _outside_value(name: str, value: object) -> float | str:
    if isinstance(value, str) and value.strip() in PADDING_MODES:
        return value.strip()
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or isinstance(value, bool):
        meant = closest(value, PADDING_MODES) if isinstance(value, str) else None
        raise ArgumentError(
            f"Fused: the value outside of {name} is neither a number nor a padding mode", got=value,
            legal=("0", "-inf", *PADDING_MODES), hint=f"did you mean {meant}?" if meant else None,
        )  # fmt: skip
    return int(number) if number.is_integer() else number


def check_outside(stored: Iterable[Stored], types: Mapping[str, DType]) -> None:
    """Refuse values outside of an array that its element type does not have."""
    for operand in stored:
        dtype = types[operand.operand]
        if isinstance(operand.outside, (int, float)) and (legal := _legal_values(operand.outside, dtype)):
            raise ArgumentError(
                f"{operand.operand} has elements of {dtype}, and {operand.outside} outside of its array", legal=legal,
                hint="another element type, or a value that it has",
            )  # fmt: skip


def _legal_values(value: float, dtype: DType) -> str | None:
    """The values of a type if it does not have a value; else None."""
    if dtype.kind == "int":
        low, high = dtype.limits
        return None if float(value).is_integer() and low <= value <= high else f"integers from {low} to {high}"
    import numpy

    with numpy.errstate(over="ignore"):
        rounded = float(numpy.asarray(value).astype(dtype.to_numpy()))
    return None if rounded == value or (math.isfinite(rounded) and math.isfinite(value)) else "numbers in the range of the type"


def _check_affine(step: str, formula: Formula, operands: Mapping[str, Stored]) -> None:
    """Refuse a result with an affine index, an extent of another array, and reductions whose neutral value is not zero."""
    for element in (formula.target, *formula.elements):
        stored = operands.get(element.tensor)
        affine = [] if stored is None else [one for one in stored.index if isinstance(one, Affine)]
        if stored is None or not affine:
            continue
        if element == formula.target:
            raise ArgumentError(
                f"step {step}: {element} is written at an affine index", got=str(formula), legal="affine indices of inputs",
                hint="read an input at the inverse index; for a stride, a definition for each remainder",
            )  # fmt: skip
        other = next((dim for one in affine for dim, _ in one.extents if dim not in (*stored.of, *stored.dims)), None)
        if other is not None:
            raise ArgumentError(
                f"step {step}: size({other}) in an index of {element.tensor}", got=str(formula),
                legal=" ".join(f"size({dim})" for dim in dict.fromkeys((*stored.of, *stored.dims))),
            )  # fmt: skip
        if formula.reduces and formula.combiner != "sum" and stored.outside is None:
            raise ArgumentError(
                f"step {step}: {formula.combiner} of {element}, which is zero outside of the array", got=str(formula),
                legal="a sum of elements at affine indices, or a value outside that the definition states",
                hint=f'outside={{"{element.tensor}": "{_neutral_text(formula.combiner)}"}}',
            )  # fmt: skip


def _neutral_text(combiner: str) -> str:
    return {"max": "-inf", "min": "inf"}.get(combiner, "1")


def _check_table(step: str, table: Looked, element: Element, first: Mapping[str, Element], uses: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an array of integers that is not an operand, has another number of dimensions, or is written."""
    dims = uses.get(table.array)
    if dims is None:
        raise ArgumentError(
            f"step {step}: {table.array} of {element} is not an operand", legal=tuple(uses), hint=f'operands={{"{table.array}": "..."}}'
        )
    if len(dims) != len(table.index):
        raise ArgumentError(f"step {step}: {table} of {element} has other dimensions than the operand {table.array}", legal=" ".join(dims))
    if table.array == element.tensor:
        raise ArgumentError(f"step {step}: {element} is an index of itself", legal="another operand of int32")


def scattered(stored: Iterable[Stored], written: Mapping[str, str]) -> tuple[Stored, ...]:
    """The indirect operands that a step writes; `written` are the steps by tensor."""
    return tuple(operand for operand in stored if operand.operand in written)


def distinct_tables(text: object, outputs: Sequence[Stored]) -> tuple[str, ...]:
    """The tables whose indices are promised to be distinct, so that no two elements of an output are one element of its array.

    Raises: ArgumentError for other names; and for outputs two of whose elements may be one, which must not depend on their order.
    """
    names = tuple(text.split()) if isinstance(text, str) else None
    tables = tuple(dict.fromkeys(table.array for operand in outputs for table in operand.tables))
    if names is None or len(set(names)) < len(names) or not set(names) <= set(tables):
        raise ArgumentError(
            "Fused: distinct are tables by which outputs are written, by name", got=text, legal=" ".join(tables) or "none here"
        )
    for operand in outputs:
        _check_distinct(operand, names)
    return names


def _check_distinct(operand: Stored, distinct: Sequence[str]) -> None:
    """Refuse an output if its indices do not determine the coordinates of an element."""
    loose = [table for table in operand.tables if table.array not in distinct]
    if loose:
        raise ArgumentError(
            f"{operand} is written, and elements of {loose[0].array} may be equal", legal="numbers that are promised to be distinct",
            hint=f'distinct="{" ".join(dict.fromkeys((*distinct, loose[0].array)))}", and an array without equal indices (-1: not written)',
        )  # fmt: skip
    parts = [part for given in operand.index for part in (given.index if isinstance(given, Looked) else (given,))]
    digits = [part for part in parts if isinstance(part, Index)]  # affine indices of outputs are refused
    for dim in operand.dims:
        own = [index for index in digits if index.dim == dim]
        quotients = {index.number for index in own if index.sign == "//"}
        if not any(index.plain or (index.sign == "%" and index.number in quotients) for index in own):
            raise ArgumentError(
                f"{operand} is written, and its indices do not determine {dim}: several elements are one",
                legal=f"{dim}; {dim} // 16, {dim} % 16",
            )


def check_tables(stored: Iterable[Stored], written: Mapping[str, str]) -> None:
    """Refuse tables that a step of the kernel writes, given the step by tensor: the kernel reads them in no specified order."""
    for operand in stored:
        for table in operand.tables:
            if table.array in written:
                raise ArgumentError(
                    f"step {written[table.array]}: {table.array} is written, and {operand} reads it as an index",
                    legal="tables that no step of the kernel writes", hint=f"compute {table.array} in a kernel before this one",
                )  # fmt: skip


# ---------------------------------------------------------------------------------------------- promises


_RANGE = re.compile(r"0\s*<=\s*(\w+)\s*<\s*(\w+)")


def ranges_of(ranges: object, stored: Sequence[Stored]) -> tuple[tuple[str, str], ...]:
    """The promises about tables, as pairs of a table and its range, `("rows", "0 <= rows < r")`.

    Raises: ArgumentError for a range that does not imply that all elements are indices.
    """
    if not isinstance(ranges, Mapping):
        raise ArgumentError("Fused: ranges are a mapping from names of tables", got=ranges, legal='{"rows": "0 <= rows < r"}')
    return tuple((str(name), _range(str(name), text, stored)) for name, text in ranges.items())


def _range(name: str, text: object, stored: Sequence[Stored]) -> str:
    indices = [pair for operand in stored for pair in zip(operand.of, operand.index, strict=True)]
    extents = {dim for dim, index in indices if isinstance(index, Looked) and index.array == name}
    if not extents:
        tables = dict.fromkeys(table.array for one in stored for table in one.tables)
        raise ArgumentError(f"Fused: ranges has {name}, which is not an index of an operand", got=name, legal=tuple(tables) or "none here")
    match = _RANGE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or match[1] != name or {match[2]} != extents:
        legal = " ".join(f"0 <= {name} < {dim}" for dim in sorted(extents)[:1])
        hint = "one table for each dimension" if len(extents) > 1 else None
        raise ArgumentError(f"Fused: the range of {name} does not promise that it is an index", got=text, legal=legal, hint=hint)
    return f"0 <= {name} < {match[2]}"


# ---------------------------------------------------------------------------------------------- sizes


def derived_extents(stored: Iterable[Stored], extents: Mapping[str, Expr]) -> dict[str, tuple[Expr, str]]:
    """The extents that digits determine, each with the index that determines it: `ceil(k / 64)` for `k // 64`, 16 for `n % 16`."""
    derived: dict[str, tuple[Expr, str]] = {}
    for operand in stored:
        for dim, index in operand.derived():
            size = as_expr(index.number) if index.sign == "%" else (extents[index.dim] + (index.number - 1)) // index.number
            derived.setdefault(dim, (size, f"{index} of {operand}"))
    return derived


def table_extents(stored: Iterable[Stored], sizes: Mapping[str, int]) -> dict[str, int]:
    """For each table, the number of legal values of its elements: the extent of the dimension that they index, from 0 on."""
    extents: dict[str, int] = {}
    for operand in stored:
        for dim, index in zip(operand.of, operand.index, strict=True):
            if isinstance(index, Looked):
                extents[index.array] = min(sizes[dim], extents.get(index.array, sizes[dim]))
    return extents


# ---------------------------------------------------------------------------------------------- tensors


def tensor_of(
    stored: Stored, array: Tensor, tables: Mapping[str, Tensor], shape: Sequence[Expr], promised: Iterable[str], written: bool = False
) -> Tensor:
    """The tensor of an indirect operand, whose shape is `shape`, in its array."""
    axes = {dim: axis for axis, dim in enumerate(stored.dims)}
    extents = {**dict(zip(stored.of, array.shape, strict=True)), **dict(zip(stored.dims, shape, strict=True))}
    places = [_tested(given, extents[dim], extents) for dim, given in zip(stored.of, stored.index, strict=True)]
    index = [
        _affine_index(given, axes, extents) if isinstance(given, Affine) else _array_index(given, axes, tables, tuple(promised), written)
        for given in places
    ]
    return indirect(array, shape, index, _outside_text(stored.outside or 0, array.dtype))


def _tested(index: Index | Looked | Affine, extent: Expr, extents: Mapping[str, Expr]) -> Index | Looked | Affine:
    """The index along a dimension of an array; affine if it is the coordinate of a longer dimension, and so may leave the array."""
    if isinstance(index, Index) and index.plain and less(extents[index.dim] - 1, extent) != TRUE:
        return Affine(((index.dim, 1),))
    return index


def _outside_text(value: float | str, dtype: DType) -> str:
    """A padding mode, or a number rounded to an element type."""
    if isinstance(value, str) or dtype.kind == "int":
        return str(value)
    import numpy

    rounded = float(numpy.asarray(value).astype(dtype.to_numpy()))
    return str(int(rounded) if rounded.is_integer() else rounded)


def _affine_index(index: Affine, axes: Mapping[str, int], extents: Mapping[str, Expr]) -> AffineIndex:
    offset = sum((extents[dim] * factor for dim, factor in index.extents), start=as_expr(index.number))
    digits = tuple(DigitTerm(axes[dim], factor, divisor, modulus) for dim, divisor, modulus, factor in index.digits)
    return AffineIndex(tuple((axes[dim], factor) for dim, factor in index.terms), offset, index.divisor, digits)


def _array_index(
    index: Index | Looked, axes: Mapping[str, int], tables: Mapping[str, Tensor], promised: Sequence[str], written: bool = False
) -> ArrayIndex:
    if isinstance(index, Index):
        return DimIndex(axes[index.dim], index.number if index.sign == "//" else 1, index.number if index.sign == "%" else 0)
    table = tables[index.array]
    storage: Storage = table.storage()
    if None in storage.steps:
        raise ArgumentError(f"{index.array}: a table whose dimensions have several strides", got=str(table.layout))
    inner = tuple(_array_index(part, axes, tables, promised) for part in index.index)
    steps = tuple(step for step in storage.steps if step is not None)
    return TableIndex(index.array, inner, table.shape, steps, index.array in promised, written)  # type: ignore[arg-type]


def check_table_types(stored: Iterable[Stored], types: Mapping[str, DType]) -> None:
    """Refuse tables of other element types than int32."""
    for operand in stored:
        for table in operand.tables:
            if types[table.array] != int32:
                raise ArgumentError(
                    f"{table.array} is an index of {operand}, and has elements of {types[table.array]}", legal="int32",
                    hint=f'types={{"{table.array}": int32}}, and an array of int32',
                )  # fmt: skip


# ---------------------------------------------------------------------------------------------- meaning


def gathered(stored: Stored, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The operand in its own dimensions, gathered from its array: its value outside at affine indices outside of the array.

    Numbers from tables that are no index are clamped, as the kernel does.
    """
    import numpy

    axes = {dim: axis for axis, dim in enumerate(stored.dims)}
    places = {dim: numpy.arange(sizes[dim]).reshape([-1 if axis == own else 1 for axis in axes.values()]) for dim, own in axes.items()}
    array = numpy.asarray(arrays[stored.operand])
    index: list[Any] = []
    inside: Any = True
    extents = {**sizes, **dict(zip(stored.of, array.shape, strict=True))}
    for size, index_of_dim in zip(array.shape, stored.index, strict=True):
        given = _tested(index_of_dim, as_expr(size), {dim: as_expr(number) for dim, number in sizes.items()})
        if isinstance(given, Looked):
            table = numpy.asarray(arrays[given.array])
            numbers = table[tuple(_place(part, places) for part in given.index)]
            index.append(numpy.clip(numbers.astype(numpy.int64), 0, max(size - 1, 0)))
        elif isinstance(given, Affine):
            numbers = given.number + sum(extents[dim] * factor for dim, factor in given.extents)
            numbers = numbers + sum(places[dim] * factor for dim, factor in given.terms)
            for dim, divisor, modulus, factor in given.digits:
                quotients = places[dim] // divisor
                numbers = numbers + (quotients % modulus if modulus else quotients) * factor
            if stored.mode:
                index.append(_padded(size, numbers, stored.mode))
                continue
            exact, numbers = numbers % given.divisor == 0, numbers // given.divisor
            inside = inside & exact & (numbers >= 0) & (numbers < size)
            index.append(numpy.clip(numbers, 0, max(size - 1, 0)))
        else:
            index.append(_place(given, places))
    shape = tuple(sizes[dim] for dim in stored.dims)
    values = array[tuple(numpy.broadcast_to(one, shape) for one in index)]
    return values if inside is True else numpy.where(inside, values, numpy.asarray(stored.outside or 0).astype(values.dtype))


def _padded(size: int, numbers: Any, mode: str) -> Any:
    """The indices to which a padding mode moves numbers, by `numpy.pad` of the indices of a row."""
    import numpy

    low, high = max(0, -int(numbers.min())), max(0, int(numbers.max()) - size + 1)
    modes: dict[str, Any] = {REPLICATE: "edge", REFLECT: "reflect", CIRCULAR: "wrap"}
    return numpy.pad(numpy.arange(size), (low, high), mode=modes[mode])[numbers + low]


def scattered_to(
    stored: Stored,
    values: Any,
    arrays: Mapping[str, Any],
    shape: Sequence[int],
    sizes: Mapping[str, int],
    combiner: str = "",
    dtype: DType | None = None,
) -> Any:
    """The array of an output with these values in its own dimensions: 0 where nothing is written.

    With a `combiner`, values at equal indices are combined, starting from the neutral value of `dtype`.
    """
    import numpy

    array = numpy.zeros(shape, values.dtype)
    index, inside = [], numpy.ones(values.shape, dtype=bool)
    axes = {dim: axis for axis, dim in enumerate(stored.dims)}
    coordinates = {dim: numpy.arange(sizes[dim]).reshape([-1 if axis == own else 1 for axis in axes.values()]) for dim, own in axes.items()}
    for size, given in zip(shape, stored.index, strict=True):
        if isinstance(given, Looked):
            numbers = numpy.asarray(arrays[given.array])[tuple(_place(part, coordinates) for part in given.index)].astype(numpy.int64)
            inside &= (numbers >= 0) & (numbers < size)
            index.append(numpy.broadcast_to(numbers, values.shape))
        elif isinstance(given, Index):
            index.append(numpy.broadcast_to(_place(given, coordinates), values.shape))
    places = tuple(one[inside] for one in index)
    if combiner:
        array[...] = neutral(combiner, dtype or float64)
        combining_function(combiner).at(array, places, values[inside])
    else:
        array[places] = values[inside]
    return array


def _place(index: Index, places: Mapping[str, Any]) -> Any:
    return places[index.dim] if index.plain else index.source(places[index.dim])
