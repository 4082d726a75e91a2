"""State nodes of a graph of PyTorch as one definition: a step for each value that several nodes read, and for each reduction and product.

Views are not steps: they read other elements of the same tensor. An array that nodes read in two orders is two operands.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.specs.fused import Fused
from fireiron.torch_backend.dims import Axes, Axis, CannotStateError, Dims
from fireiron.torch_backend.integers import BYTES, CONDITION, EXACT, WORDS, check_type, is_integer, range_of
from fireiron.torch_backend.operations import (
    CONDITIONS,
    COPIES,
    EXTREMES,
    FLOATS,
    FUNCTIONS,
    OF_SEVERAL,
    PRODUCTS,
    REDUCTIONS,
    REPEATING,
    SCANS,
    VIEWS,
    is_inlined,
    name_of,
    number,
    softplus,
    sources_of,
    type_of,
    users_of,
)  # fmt: skip

LETTERS: Final = "mnkhijlpqrstuvwabcdfg"
"""Names of the first dimensions; others have numbers."""

FEW_RESULTS: Final = 1 << 15
"""Results of a sum below which blocks add to them, because a thread for each would not occupy a GPU."""

LONGEST_TEXT: Final = 200
"""Characters of a formula of several operations."""

LONGEST_ROW: Final = 1 << 17
"""Elements of a row that a block reduces and reads again."""

LARGEST: Final = 1 << 31
"""Elements that a dimension of several merged ones may not reach."""

WIDEST_PRODUCT: Final = 256
"""Columns of a product whose rows a block reduces."""


@attrs.frozen(eq=False)
class Value:
    """The elements of a node: a text that is complete when all dimensions are known, and the dimensions of each axis."""

    text: Callable[[], str]
    axes: Axes
    read: str = ""

    def factor(self) -> str:
        """Return the text as an operand of another operation."""
        text = self.text()
        return text if re.fullmatch(r"[\w.{}]+(\[[^][]*\])?|\w+\([^()]*\)|\([^()]*\)", text) else f"({text})"


@attrs.frozen(eq=False)
class Read:
    """An operand: the array that a node of the graph computes, with the dimensions of its axes."""

    node: Any
    axes: Axes


@attrs.frozen(eq=False)
class Stated:
    """A definition for nodes of a graph.

    - `arrays`: the node of each input, and the shape in which the definition reads it, by name of the operand.
    - `results`: the node of each output, by name; `sums`: those to which blocks add, in float32.
    """

    definition: Fused
    sizes: Mapping[str, int]
    arrays: Mapping[str, tuple[Any, tuple[int, ...]]]
    results: Mapping[str, Any]
    sums: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the extents of a node's tensor. Raises: `CannotStateError` for symbolic extents and other values."""
    shape = getattr(node.meta.get("val"), "shape", None)
    if shape is None:
        raise CannotStateError("not a tensor")
    if not all(type(size) is int for size in shape):
        raise CannotStateError("an extent that is known only at run time")
    if 0 in shape:
        raise CannotStateError("a tensor without elements")
    return tuple(shape)


def check_strides(node: Any) -> None:
    """Raise `CannotStateError` for symbolic strides, which a part of a tensor with symbolic extents has."""
    if not all(type(stride) is int for stride in node.meta["val"].stride()):
        raise CannotStateError("a stride that is known only at run time")


class Statement:
    """The steps of some nodes. `members` are in topological order; `outputs` are those that others read."""

    def __init__(self, members: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.members, self.outputs = members, set(outputs)
        self.dims = Dims()
        self.values: dict[Any, Value] = {}
        self.reads: list[tuple[str, Read]] = []
        self.steps: list[Callable[[], str]] = []
        self.targets: list[tuple[str, Axes]] = []
        self.sums: dict[Any, str] = {}
        self.reduced: list[Axis] = []
        self.product: tuple[Axes, Axis] | None = None
        self.merges: dict[tuple[int, int], int] = {}
        self.added: Axis = ()
        self.uses = Counter(source for node in members for source in sources_of(node))
        for node in members:
            self._state(node)
        self._share()

    def _share(self) -> None:
        """Let reads of an array have the same dimensions, unless an element would be read along a diagonal then."""
        first: dict[Any, Axes] = {}
        for _, read in self.reads:
            axes = first.setdefault(read.node, read.axes)
            before = list(self.dims.sizes), dict(self.dims.parts)
            try:
                for axis, other in zip(axes, read.axes, strict=True):
                    self.dims.unify(axis, other)
            except CannotStateError:
                self.dims.sizes, self.dims.parts = before
                continue
            if self._diagonal():
                self.dims.sizes, self.dims.parts = before

    def _diagonal(self) -> str:
        """Return the first tensor that is read or written along a diagonal; empty if there is none."""
        for target, axes in [*self.targets, *((name, read.axes) for name, read in self.reads)]:
            flat = [dim for axis in axes for dim in self.dims.resolved(axis)]
            if len(set(flat)) < len(flat):
                return target
        return ""

    # ------------------------------------------------------------------------------------------ values

    def value(self, node: Any) -> Value:
        """Return the elements of a node, a number, or an array."""
        if not hasattr(node, "op"):
            text = number(node)
            return Value(lambda: text, ())
        if node in self.sums:
            raise CannotStateError("a step reads a sum of several blocks")
        if node in self.values:
            return self.values[node]
        name = name_of(node)
        if name in VIEWS and is_inlined(node):
            return self._viewed(node, name)
        if name == "full":
            text = number(node.args[1])
            return Value(lambda: text, tuple(() for _ in node.args[0]))
        if name == "scalar_tensor":
            return self.value(node.args[0])
        if name == "iota":
            return self._coordinate(node)
        return self._computed(node, name) if is_inlined(node) else self._array(node)

    def _array(self, node: Any) -> Value:
        """Return the elements of an array that the definition reads."""
        if type_of(node) not in (*FLOATS, *BYTES, *WORDS, CONDITION):
            raise CannotStateError(f"an operand of {type_of(node).removeprefix('torch.')}")
        check_strides(node)
        axes = self.dims.of_shape(shape_of(node))
        name = f"r{len(self.reads)}"
        self.reads.append((name, Read(node, axes)))
        value = Value(lambda: f"{{{name}}}[{self.index(axes)}]" if any(axes) else f"{{{name}}}", axes, name)
        return Value(lambda: f"{value.text()} != 0", axes) if type_of(node) == CONDITION else value

    def _coordinate(self, node: Any) -> Value:
        (length,), options = node.args, node.kwargs
        first, step = options.get("start", 0), options.get("step", 1)
        axis = self.dims.new(length)

        def text() -> str:
            at = self._coordinate_text(axis)
            return at if (first, step) == (0, 1) else f"{at} * {step} + {first}"

        return Value(text, (axis,))

    def _coordinate_text(self, axis: Axis) -> str:
        """Return the coordinate along an axis as a text."""
        at = "0"
        for dim in self.dims.resolved(axis):
            at = _dim(dim) if at == "0" else f"({at} * {self.dims.sizes[dim]} + {_dim(dim)})"
        return at

    def _viewed(self, node: Any, name: str) -> Value:
        """Return the elements of a view."""
        value = self.value(node.args[0])
        shape, axes = shape_of(node), value.axes
        if name == "permute":
            return attrs.evolve(value, axes=tuple(axes[place] for place in node.args[1]))
        if name in ("t", "numpy_T"):
            return attrs.evolve(value, axes=axes[::-1])
        if name == "transpose":
            order = list(range(len(axes)))
            first, second = (place % len(axes) for place in node.args[1:3])
            order[first], order[second] = second, first
            return attrs.evolve(value, axes=tuple(axes[place] for place in order))
        if name == "unsqueeze":
            place = node.args[1] % len(shape)
            return attrs.evolve(value, axes=(*axes[:place], (), *axes[place:]))
        if name == "expand":
            return attrs.evolve(value, axes=(*((),) * (len(shape) - len(axes)), *axes))
        if name in ("detach",):
            return value
        if name == "squeeze":
            kept = [axis for axis, size in zip(axes, shape_of(node.args[0]), strict=True) if size > 1]
            rest = iter(kept)
            return attrs.evolve(value, axes=tuple(next(rest) if size > 1 else () for size in shape))
        before = shape_of(node.args[0])
        if any(size > 1 and not axis for size, axis in zip(before, axes, strict=True)):
            raise CannotStateError("a view of a broadcast tensor")
        return attrs.evolve(value, axes=self.dims.regrouped(axes, shape))

    def index(self, axes: Axes) -> str:
        """Return the index of an element, as text."""
        return ",".join(_dim(dim) for axis in axes for dim in self.dims.resolved(axis))

    # ------------------------------------------------------------------------------------------ nodes

    def _state(self, node: Any) -> None:
        """Add the value or the step of a node."""
        name = name_of(node)
        if name in PRODUCTS:
            self._product(node, name)
        elif name in REDUCTIONS:
            self._reduction(node, name)
        elif name in SCANS:
            self._scan(node, name)
        elif name == "var_mean":
            self._moments(node)
        elif name in EXTREMES:
            self._extremes(node, name)
        elif name == "getitem" or str(node.target) == "<built-in function getitem>":
            source = node.args[0]
            self.values[node] = self.values[source, node.args[1]]
            self._keep(node, self.values[node])
        else:
            self._keep(node, self._computed(node, name))

    def _computed(self, node: Any, name: str) -> Value:
        """Return the elements of an elementwise node as a text, without a step."""
        check_type(node)
        operands = node.args[:1] if name in COPIES else node.args
        given = [self._operand(node, one, place) if one is not None else None for place, one in enumerate(operands)]
        options = {key: number(one) for key, one in node.kwargs.items() if key == "alpha"}
        if name in REPEATING:
            given = [one if one is None else self._as_step(one) for one in given]
        values = [one for one in given if one is not None]
        axes = self._broadcast(values, node)
        if name in COPIES:
            return attrs.evolve(self._copied(node, values[0]), axes=axes)
        if name == "log1p" and name_of(node.args[0]) == "exp" and node.args[0] in self.values:
            return attrs.evolve(self._softplus(self.value(node.args[0].args[0])), axes=axes)
        if name == "div":
            given[1] = self._divisor(node, values[1])
            name = "mul" if given[1] is not values[1] else name
        function = CONDITIONS[name] if type_of(node) == "torch.bool" and name in CONDITIONS else FUNCTIONS[name]
        return Value(lambda: function(*(None if one is None else one.factor() for one in given), **options), axes)

    def _operand(self, node: Any, given: Any, place: int) -> Value:
        """Return an operand of a function of elements, as a number of the type in which the function computes; a condition is 1 or 0."""
        value, name = self.value(given), name_of(node)
        if not hasattr(given, "op") or type_of(node) == CONDITION or (name, place) == ("where", 0):
            return value
        if type_of(given) == CONDITION and name not in COPIES:
            condition = value.text
            value = Value(lambda: f"where({condition()}, 1, 0)", value.axes)
        return _as_float(value) if is_integer(given) and not is_integer(node) else value

    def _softplus(self, value: Value) -> Value:
        """Return log1p(exp(x)) for a value x."""
        value = self._as_step(value)
        power = self._step(f"t{len(self.targets)}", value.axes, lambda: f"exp(0 - abs({value.text()}))")
        return Value(lambda: softplus(value.text(), power.text()), value.axes)

    def _divisor(self, node: Any, value: Value) -> Value:
        """Return the reciprocal of a divisor that several elements share, such as a sum of a row, as a step: one division instead of many.

        A product with it differs from the quotient by one unit of the last place. It overflows for divisors below 3e-39.
        """
        if node.kwargs.get("rounding_mode") is not None:
            raise CannotStateError("a division that is rounded to an integer")
        size = math.prod(self.dims.size(self.dims.resolved(axis)) for axis in value.axes)
        if size == math.prod(shape_of(node)) or not re.search(r"\[|\{|^t\d", value.text()):
            return value
        return self._step(f"t{len(self.targets)}", value.axes, lambda: f"1 / {value.factor()}")

    @staticmethod
    def _copied(node: Any, value: Value) -> Value:
        """Return a copy of a value in another type; a condition is 1 or 0."""
        if (is_condition := type_of(node.args[0]) == "torch.bool") == (type_of(node) == "torch.bool"):
            return value
        return Value(lambda: f"where({value.text()}, 1, 0)" if is_condition else f"{value.factor()} != 0", value.axes)

    def _broadcast(self, values: Sequence[Value], node: Any) -> Axes:
        """Return the axes of an elementwise result, which are those of all operands."""
        shape = shape_of(node)
        axes: list[Axis] = [() for _ in shape]
        for value in values:
            start = len(shape) - len(value.axes)
            for place, axis in enumerate(value.axes):
                axes[start + place] = self.dims.unify(axes[start + place], axis)
        return tuple(axes)

    def _keep(self, node: Any, value: Value) -> None:
        """Keep the value of a node: as a step if others read it, or if several members do."""
        self.values[node] = value
        if node in self.sums or type_of(node) == "torch.bool":
            if node in self.outputs and node not in self.sums:
                raise CannotStateError("a condition that others read")
            return
        output = node in self.outputs
        is_step = self.uses[node] > 1 or (output and self.uses[node] > 0) or len(value.text()) > LONGEST_TEXT
        if is_step and not value.read.startswith("t"):
            self.values[node] = value = self._step(f"t{len(self.targets)}", value.axes, value.text)
        if output:
            size = math.prod(shape_of(node))
            if self.dims.size(tuple(dim for axis in value.axes for dim in self.dims.resolved(axis))) != size:
                raise CannotStateError("a broadcast result")
            self._step(f"y_{node.name}", value.axes, value.text)

    def _as_step(self, value: Value) -> Value:
        """Return a value as an element or a number: as a step, if it is another text."""
        if value.read or re.fullmatch(r"[\w.]+|\(0 - [\w.]+\)", value.text()):
            return value
        return self._step(f"t{len(self.targets)}", value.axes, value.text)

    def _scan(self, node: Any, name: str) -> None:
        value = self._counted(node)
        place = node.args[1] % len(value.axes)
        (*_, dim) = along = self.dims.resolved(value.axes[place])
        if len(along) != 1 or place != len(value.axes) - 1:
            raise CannotStateError("a scan along another axis than the last one")
        if self.reduced or self.product is not None:
            raise CannotStateError("a scan after a reduction or a product")
        self._check_rows(along, shape_of(node)[place])
        read = value if value.read else self._step(f"t{len(self.targets)}", value.axes, value.text)
        self._keep(node, self._step(f"t{len(self.targets)}", value.axes, lambda: f"{SCANS[name]}({_dim(dim)}, {read.text()})"))

    def _step(self, name: str, axes: Axes, text: Callable[[], str], sign: str = "=") -> Value:
        """Add a step, and return its elements."""

        def target() -> str:
            index = self.index(axes)
            return f"{name}[{index}]" if index else name

        self.targets.append((name, axes))
        self.steps.append(lambda: f"{target()} {sign} {text()}")
        return Value(target, axes, name)

    # ------------------------------------------------------------------------------------------ reductions

    def _reduction(self, node: Any, name: str) -> None:
        value = self._counted(node)
        places = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
        places = [places] if isinstance(places, int) else list(places or range(len(value.axes)))
        keep = bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
        result = self._reduced(node, value, places, keep, name)
        if name in ("amax", "amin") and not _is_subtracted(node):
            result = self._with_nan(node, value, result, places, keep)
        if name == "any":
            count = result
            result = Value(lambda: f"{count.text()} > 0", result.axes)
        self._keep(node, result)

    def _counted(self, node: Any) -> Value:
        """Return the operand of a sum or scan; a condition is 1 or 0. Raises: `CannotStateError` if a sum of integers may be inexact."""
        given = node.args[0]
        value, is_condition = self.value(given), type_of(given) == "torch.bool"
        if is_integer(given):
            range_of(given)
        if is_integer(node) and name_of(node) in ("sum", "prod", *SCANS):
            count = math.prod(shape_of(given))
            if max(map(abs, range_of(given))) * count > EXACT or name_of(node) in ("prod", "cumprod"):
                raise CannotStateError(f"a sum or product of {count} integers, which float32 may not have exactly")
        return Value(lambda: f"where({value.text()}, 1, 0)", value.axes) if is_condition else value

    def _with_nan(self, node: Any, value: Value, result: Value, places: Sequence[int], keep: bool) -> Value:
        """Return a maximum that is NaN if an element is, as in PyTorch; a maximum of the language ignores NaN."""
        marks = self._step(f"t{len(self.targets)}", value.axes, lambda: f"where({value.factor()} != {value.factor()}, 1, 0)")
        marked = self._reduced(node, marks, places, keep, "amax")
        return Value(lambda: f"where({marked.text()} > 0, inf - inf, {result.text()})", result.axes)

    def _extremes(self, node: Any, name: str) -> None:
        """State a maximum or minimum along an axis, and its first position if others read it."""
        if len(node.args) < 2 or not isinstance(node.args[1], int):
            raise CannotStateError("an extreme of all elements")
        if is_integer(node.args[0]):
            range_of(node.args[0])
        value, keep = self.value(node.args[0]), bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False))
        places, shown = [node.args[1] % len(value.axes)], _FirstResult(node)
        value = self._as_step(value)
        top = self._reduced(shown, value, places, True, EXTREMES[name])
        top = self._with_nan(shown, value, top, places, True)
        top = self._step(f"t{len(self.targets)}", top.axes, top.text)
        kept = tuple(axis for place, axis in enumerate(top.axes) if keep or place not in places)
        if name in OF_SEVERAL:
            self.values[node, 0] = attrs.evolve(top, axes=kept)
        if name not in OF_SEVERAL or any(user.args[1] == 1 for user in node.users):
            position = attrs.evolve(self._position(shown, value, top, places), axes=kept)
            if name in OF_SEVERAL:
                self.values[node, 1] = position
            else:
                self._keep(node, position)

    def _position(self, node: Any, value: Value, top: Value, places: Sequence[int]) -> Value:
        """Return the first position of an extreme, or of the first NaN."""
        (place,), count = places, shape_of(node.args[0])[places[0]]
        if count > EXACT:
            raise CannotStateError(f"positions of {count} elements, at most {EXACT}, which float32 has exactly")
        along = value.axes[place]
        equal = self._step(
            f"t{len(self.targets)}",
            value.axes,
            lambda: (
                f"where({value.text()} == {top.text()} or ({value.text()} != {value.text()} and {top.text()} != {top.text()}), "
                f"{self._coordinate_text(along)}, {count})"
            ),
        )
        return self._reduced(node, equal, places, True, "amin")

    def _reduced(self, node: Any, value: Value, places: Sequence[int], keep: bool, name: str) -> Value:
        """Return the value of a reduction over some axes."""
        rank, shape = len(value.axes), shape_of(node.args[0])
        places = [place % rank for place in places]
        if any(shape[place] > 1 and not value.axes[place] for place in places):
            raise CannotStateError("a reduction of a broadcast tensor")
        over = tuple(dim for place in places for dim in self.dims.resolved(value.axes[place]))
        axes = tuple(() if place in places else axis for place, axis in enumerate(value.axes) if keep or place not in places)
        count = math.prod(shape[place] for place in places)
        if not over:
            return attrs.evolve(value, axes=axes)
        few = math.prod(shape) // count <= FEW_RESULTS and not _is_last(places, rank)
        word = REDUCTIONS[name]
        if word == "sum" and (few or math.prod(shape) == count):
            return self._sum_of_blocks(node, value, axes, over, count if name == "mean" else 1)
        self._check_rows(over, count)
        if not value.read:
            value = self._step(f"t{len(self.targets)}", value.axes, value.text)
        read = value
        result = self._step(f"t{len(self.targets)}", axes, lambda: f"{word}({self._over(over)}, {read.text()})")
        if name == "mean":
            return Value(lambda: f"{result.text()} / {count}", axes)
        return result

    def _check_rows(self, over: Axis, count: int) -> None:
        if count > LONGEST_ROW:
            raise CannotStateError(f"rows of {count} elements, at most {LONGEST_ROW}")
        for other in self.reduced:
            self.dims.unify(other, over)
        self.reduced.append(over)
        if self.product is not None:
            columns = self.dims.resolved(self.product[0][-1])
            if self.dims.resolved(over) != columns:
                raise CannotStateError("a reduction of other dimensions than the columns of a product")
            if count > WIDEST_PRODUCT:
                raise CannotStateError(f"a block would have rows of {count} columns of a product, at most {WIDEST_PRODUCT}")

    def _sum_of_blocks(self, node: Any, value: Value, axes: Axes, over: Axis, count: int) -> Value:
        """Add a step in which blocks add their parts of a sum to an output."""
        if self.reduced or self.product is not None or self.sums:
            raise CannotStateError("a sum of several blocks after a reduction or a product")
        if node not in self.outputs or self.uses[node]:
            raise CannotStateError("a step reads a sum of several blocks")
        text = value.text
        if count > 1 or not value.read:
            value = self._step(f"t{len(self.targets)}", value.axes, lambda: f"({text()}) / {count}" if count > 1 else text())
        self.sums[node], self.added = f"y_{node.name}", over
        read = value
        return self._step(f"y_{node.name}", axes, lambda: f"sum({self._over(over)}, {read.text()})", "+=")

    def _over(self, over: Axis) -> str:
        return ", ".join(map(_dim, self.dims.resolved(over)))

    def _moments(self, node: Any) -> None:
        """State the variance and the mean."""
        value = self.value(node.args[0])
        places = list(node.args[1] if len(node.args) > 1 and node.args[1] is not None else range(len(value.axes)))
        correction, keep = node.kwargs.get("correction", 1), bool(node.kwargs.get("keepdim", False))
        count = math.prod(shape_of(node.args[0])[place] for place in places)
        shown = _FirstResult(node)
        mean = self._reduced(shown, value, places, True, "mean")
        mean = self._step(f"t{len(self.targets)}", mean.axes, mean.text)
        value = value if value.read else self._step(f"t{len(self.targets)}", value.axes, value.text)
        diff = self._step(f"t{len(self.targets)}", value.axes, lambda: f"{value.text()} - {mean.text()}")
        square = self._step(f"t{len(self.targets)}", value.axes, lambda: f"{diff.text()} * {diff.text()}")
        total = self._reduced(shown, square, places, True, "sum")
        places = [place % len(value.axes) for place in places]
        kept = tuple(axis for place, axis in enumerate(mean.axes) if keep or place not in places)
        divisor = count - float(1 if correction is None else correction)
        self.values[node, 0] = Value(lambda: f"{total.text()} / {number(divisor)}", kept)
        self.values[node, 1] = attrs.evolve(mean, axes=kept)

    # ------------------------------------------------------------------------------------------ products

    def _product(self, node: Any, name: str) -> None:
        if self.product is not None or self.steps:
            raise CannotStateError("a product after other steps")
        left, right = (self.value(one) for one in node.args[-2:])
        if not (left.read.startswith("r") and right.read.startswith("r")):
            raise CannotStateError("an operand of a product that is computed")
        over = self.dims.unify(left.axes[-1], right.axes[-2])
        batch = tuple(self.dims.unify(one, two) for one, two in zip(left.axes[:-2], right.axes[:-2], strict=True))
        axes = (*batch, left.axes[-2], right.axes[-1])
        if not all((over, axes[-1], axes[-2])):
            raise CannotStateError("a matrix times a vector")
        self.product = axes, over
        value = self._step(f"t{len(self.targets)}", axes, lambda: f"sum({self._over(over)}, {left.text()} * {right.text()})")
        if name in ("addmm", "baddbmm"):
            added, product = self.value(node.args[0]), value
            beta, alpha = (number(node.kwargs.get(key, 1)) for key in ("beta", "alpha"))
            self._broadcast([added, product], node)

            def text() -> str:
                terms = (
                    factor if scale == "1" else f"{scale} * {factor}"
                    for scale, factor in zip((alpha, beta), (product.text(), added.factor()), strict=True)
                )
                return " + ".join(terms)

            value = Value(text, axes)
        self._keep(node, value)

    # ------------------------------------------------------------------------------------------ the definition

    def stated(self, name: str) -> Stated:
        """Return the definition. Raises: `CannotStateError`, also with the error of `Fused`."""
        texts = [step() for step in self.steps]
        if diagonal := self._diagonal():
            raise CannotStateError(f"{diagonal} is read along a diagonal")
        texts = self._with_merged_dims(texts)
        operands, arrays, words, scalars = self._operands({read for text in texts for read in re.findall(r"\{(r\d+)\}", text)})
        results = {f"y{number}": node for number, node in enumerate(node for node in self.members if node in self.outputs)}
        words |= {f"y_{node.name}": result for result, node in results.items()}
        axes_of = dict(self.targets)
        shapes: dict[str, tuple[int, ...]] = {}
        for result, node in results.items():
            dims = self._merged(axes_of[f"y_{node.name}"])
            operands[result] = " ".join(map(_dim, dims))
            shapes[result] = tuple(self.dims.sizes[dim] for dim in dims)
        texts = [*(f"{scalar} = sum(one_{scalar}, {scalar}_array[one_{scalar}])" for scalar in scalars), *texts]
        texts = [re.sub(r"\{(r\d+)\}", lambda match: words[match[1]], text) for text in texts]
        texts = [re.sub(r"\by_\w+", lambda match: words[match[0]], text) for text in texts]
        used = sorted({int(dim) for text in texts for dim in re.findall(r"\bD(\d+)\b", text)})
        letters = {f"D{dim}": letter for dim, letter in zip(used, _letters(), strict=False)}

        def named(text: str) -> str:
            return re.sub(r"\bD\d+\b", lambda match: letters[match[0]], text)

        sizes = {letters[f"D{dim}"]: self.dims.sizes[dim] for dim in used} | {f"one_{scalar}": 1 for scalar in scalars}
        types = {result: "float32" if node in self.sums else type_of(node).removeprefix("torch.") for result, node in results.items()}
        body = {_step_name(text): named(text) for text in texts}
        definition = Fused(
            name=name, dims=" ".join(sizes), operands={key: named(dims) for key, dims in operands.items()}, body=body, types=types
        )
        sums = tuple(result for result, node in results.items() if node in self.sums)
        return Stated(definition, sizes, arrays, results, sums, shapes)

    def _with_merged_dims(self, texts: list[str]) -> list[str]:
        """Return texts in which adjacent dimensions that always occur together are one: it allows wider vectors, and fuller tiles."""
        self.merges = {}
        if self.product is not None:
            return texts
        used = {read for text in texts for read in re.findall(r"\{(r\d+)\}", text)}
        reads = [read for name, read in self.reads if name in used]
        joined = True
        while joined:
            joined = False
            for first, second in sorted(set(re.findall(r"\bD(\d+)(?=, ?D(\d+)\b)", " ".join(texts)))):
                pair = int(first), int(second)
                if not self._is_one(texts, pair) or not all(self._is_dense(read, pair) for read in reads):
                    continue
                self.dims.sizes.append(math.prod(self.dims.sizes[dim] for dim in pair))
                new = self.merges[pair] = len(self.dims.sizes) - 1
                texts, joined = [re.sub(rf"\bD{first}, ?D{second}\b", _dim(new), text) for text in texts], True
        return texts

    def _is_one(self, texts: Sequence[str], pair: tuple[int, int]) -> bool:
        """Whether texts have two dimensions only next to each other, and can index both by an integer of 32 bits."""
        first, second = map(_dim, pair)
        patterns = rf"\b{first}, ?{second}\b(?=[],])", rf"\b{first}\b", rf"\b{second}\b"
        counts = {sum(len(re.findall(pattern, text)) for text in texts) for pattern in patterns}
        apart = {*pair} & set(self.dims.resolved(self.added))
        return len(counts) == 1 and not apart and math.prod(self.dims.sizes[dim] for dim in pair) < LARGEST

    def _merged(self, axes: Axes) -> Axis:
        """Return the dimensions of all axes, after merging."""
        dims = [dim for axis in axes for dim in self.dims.resolved(axis)]
        for pair, new in self.merges.items():
            place = next((place for place in range(len(dims) - 1) if tuple(dims[place : place + 2]) == pair), None)
            if place is not None:
                dims[place : place + 2] = [new]
        return tuple(dims)

    def _is_dense(self, read: Read, pair: tuple[int, int]) -> bool:
        """Whether an array has none of two dimensions, or both as one of contiguous elements."""
        steps: dict[int, int] = {}
        for axis, stride in zip(read.axes, read.node.meta["val"].stride(), strict=True):
            for dim in reversed(self.dims.resolved(axis)):
                steps[dim] = stride
                stride *= self.dims.sizes[dim]
        for (outer, inner), new in self.merges.items():
            if outer in steps:
                steps[new] = steps.pop(inner)
                del steps[outer]
        first, second = pair
        return first not in steps if second not in steps else steps.get(first) == steps[second] * self.dims.sizes[second]

    def _operands(self, used: set[str]) -> tuple[dict[str, str], dict[str, tuple[Any, tuple[int, ...]]], dict[str, str], list[str]]:
        """Return the dimensions of the inputs, their nodes and shapes, the name of each read, and the inputs of one element."""
        names: dict[Any, str] = {}
        operands, arrays, words, scalars = {}, {}, {}, []
        for read, array in (pair for pair in self.reads if pair[0] in used):
            dims = self._merged(array.axes)
            key = array.node, dims
            if key not in names:
                name = names[key] = f"x{len(names)}"
                operand = f"{name}_array" if not dims else name
                operands[operand] = " ".join(map(_dim, dims)) or f"one_{name}"
                arrays[operand] = array.node, tuple(self.dims.sizes[dim] for dim in dims) or (1,)
                scalars += [] if dims else [name]
            words[read] = names[key]
        return operands, arrays, words, scalars


class _FirstResult:
    """The first result of a node of two, as far as a reduction reads it."""

    def __init__(self, node: Any) -> None:
        self.args, self.name, self.users = node.args, node.name, node.users


def _as_float(value: Value) -> Value:
    """Return an integer as a float: products of integers in memory could be 32-bit integers, which overflow."""
    return Value(lambda: f"{value.factor()} * 1.0", value.axes)


def _dim(dim: int) -> str:
    return f"D{dim}"


def _letters() -> Iterator[str]:
    yield from LETTERS
    number = 0
    while True:
        yield f"i{number}"
        number += 1


def _step_name(text: str) -> str:
    return "step_" + re.split(r"[\[ ]", text, maxsplit=1)[0]


def _is_last(places: Sequence[int], rank: int) -> bool:
    """Whether a reduction is over the last axes."""
    return sorted(places) == list(range(rank - len(places), rank))


def _is_subtracted(node: Any) -> bool:
    """Whether a maximum is only subtracted from its operand, as in softmax: then NaN propagates by the operand."""
    users = list(users_of(node))
    return bool(users) and all(name_of(user) == "sub" and user.args[0] is node.args[0] for user in users)


__all__ = ["LONGEST_ROW", "Stated", "Statement", "check_strides", "shape_of"]
