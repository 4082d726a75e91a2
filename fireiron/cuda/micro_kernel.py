"""A micro-kernel's text in a separate scope, with the names that its contract promises (see `MicroKernel`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from fireiron.cuda.expressions import document, expression, is_wide
from fireiron.errors import DecompositionError
from fireiron.ir import Access, Buffer, Exec, For, Kernel, statements
from fireiron.ir.text import Braces, If, Item, Remark
from fireiron.values.document import Assignment, Joined, Text
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, Sum, Var, as_expr, conjuncts, constant, floordiv, less, minimum, mod
from fireiron.values.tensor import Mode

Declaration = tuple[str, tuple[Item, ...]]
"""A name of the contract with the lines that declare it; no lines if the name has no value for this operand."""


_COMMENTS_AND_STRINGS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
"""Comments and strings of CUDA C++: a name that occurs only in them is not declared, because compilers warn of unused names."""


def micro_kernel(kernel: Kernel, statement: Exec, text: str, use: Callable[[Expr], None]) -> list[Item]:
    """The block of a micro-kernel; `use` is called with each expression that is printed."""
    return _MicroKernel(kernel, statement, use).items(text)


class _MicroKernel:
    def __init__(self, kernel: Kernel, statement: Exec, use: Callable[[Expr], None]) -> None:
        self.kernel, self.statement, self.use = kernel, statement, use

    def items(self, text: str) -> list[Item]:
        wanted = set(re.findall(r"[A-Za-z_]\w*", _COMMENTS_AND_STRINGS.sub(" ", text)))
        conditions = self._nonempty()
        wanted |= self._wanted_by_zeros() if conditions else set()
        lines: list[Item] = [f"// micro-kernel {self.statement.instruction.name}: {self.statement.spec}", *self._aliases(wanted)]
        for name, declaration in self._declarations(wanted):
            if not declaration:
                raise self._undefined_name(name)
            lines += declaration
        body = tuple(_remarked(text.strip("\n").split("\n")))
        if conditions:
            body = body if len(body) > 1 else (Braces("", body),)  # one line may be more than one statement
            body = (If(tuple(map(self._text, conditions)), body, tuple(self._zeros())),)
        return [Braces("", (*lines, *body))]

    def _undefined_name(self, name: str) -> DecompositionError:
        """The error for a name of the contract that has no value for this operand."""
        why, instead = "adjacent elements of this view have no fixed stride", f"use {name.split('_')[0]}_at(...), for any storage"
        if "_size_" in name:
            why, instead = "the elements in bounds are not the first ones of the view", "load the operand first, so that its view is whole"
        return DecompositionError(
            f"micro-kernel {self.statement.instruction.name} uses {name}, but {why}",
            within=self.statement.spec,
            at=self.statement.origin,
            hint=instead,
        )

    # If all terms of a product are out of bounds, the text does not run, and the output that it would overwrite becomes zero.

    def _nonempty(self) -> tuple[Expr, ...]:
        """The conditions that each input of a matrix product has elements in bounds, if they are not known to hold."""
        conditions = []
        for operand in self.statement.spec.inputs if self.statement.spec.contracts else ():
            access = self.statement.operands[operand]
            for base, bound in zip(access.base, access.bounds, strict=True):
                if bound is not None and not self._begins_inside(base, bound):
                    conditions.append(less(base, bound))
        return tuple(dict.fromkeys(conditions))

    def _begins_inside(self, base: Expr, bound: Expr) -> bool:
        """Whether a view's first element is below a bound: in the last iterations of the loops around, or by the statement's condition."""
        inside = less(base, bound)
        if inside == TRUE or inside in conjuncts(self.statement.performed):
            return True
        terms = base.terms if isinstance(base, Sum) else (((base,), 1),)
        extents = {loop.var: loop.extent for loop in statements(self.kernel.body) if isinstance(loop, For)}
        steps = {atoms[0]: step for atoms, step in terms if len(atoms) == 1 and isinstance(atoms[0], Var)}
        last = {var: extents[var] - 1 for var, step in steps.items() if step > 0 and var in extents}
        return less(base + sum(((end - var) * steps[var] for var, end in last.items()), ZERO), bound) == TRUE

    def _wanted_by_zeros(self) -> set[str]:
        """The names that are needed to set the output to zero."""
        if self.statement.accumulate == TRUE:
            return set()
        (output,) = self.statement.spec.outputs
        name, dims = output.lower(), self.statement.spec.uses[output]
        flag = {"accumulate"} if self.statement.accumulate != FALSE else set()
        if self._is_in_registers(output):
            return {*flag, name, f"{name}_registers", f"{name}_type"}
        return {*flag, f"{name}_at", f"{name}_type", *(f"{name}_size_{mode}" for mode in dims)}

    def _zeros(self) -> Iterator[Item]:
        """The statements that set the output to zero, unless the statement accumulates."""
        if self.statement.accumulate == TRUE:
            return
        (output,) = self.statement.spec.outputs
        name, dims = output.lower(), self.statement.spec.uses[output]
        places = [(f"index_{number}", f"{name}_size_{mode}") for number, mode in enumerate(dims)]
        element = f"{name}_at({', '.join(place for place, _ in places)})"
        if self._is_in_registers(output):
            places, element = [("index_0", f"{name}_registers")], f"{name}[index_0]"
        item: Item = f"{element} = {name}_type(0);"
        for place, size in reversed(places):
            item = Braces(f"for (int {place} = 0; {place} < {size}; ++{place})", (item,))
        yield item if self.statement.accumulate == FALSE else If(("!accumulate",), (item,))

    def _is_in_registers(self, operand: str) -> bool:
        """Whether an operand is in the registers of a group of threads."""
        return self.kernel.buffer(self.statement.operands[operand].buffer).memory.private and self.statement.collective

    def _aliases(self, wanted: set[str]) -> Iterator[Item]:
        """Other names for arrays whose own names are also names of operands, so that the contract's names hide them in this scope."""
        for name in dict.fromkeys(access.buffer for access in self.statement.accesses):
            buffer = self.kernel.buffer(name)
            if self._array(buffer) != name and wanted & {name, f"{name}_at"}:
                const = "" if buffer.written else "const "
                yield f"{const}{buffer.dtype.cuda}* const {self._array(buffer)} = {name};"

    def _array(self, buffer: Buffer) -> str:
        """The name of an array inside the scope."""
        hidden = not buffer.memory.by_value and buffer.name in {operand.lower() for operand in self.statement.operands}
        return f"{buffer.name}_array" if hidden else buffer.name

    def _text(self, value: Expr) -> str:
        self.use(value)
        return expression(value)

    def _declarations(self, wanted: set[str]) -> Iterator[Declaration]:
        """The declarations of the wanted names, in the order of the operands; only their expressions are printed."""
        for name, access in self.statement.operands.items():
            for label, make in self._of_operand(name, access):
                if label in wanted:
                    yield label, make()
        if self.statement.spec.contracts and "accumulate" in wanted:
            value = _truth(self.statement.accumulate) or self._text(self.statement.accumulate)
            yield "accumulate", (f"const bool accumulate = {value};",)
        scratch = self.statement.scratch
        if scratch is not None and "scratch" in wanted:
            yield "scratch", (f"unsigned char* const scratch = reinterpret_cast<unsigned char*>({scratch.name});",)
        if scratch is not None and "scratch_size" in wanted:
            yield "scratch_size", (f"constexpr int scratch_size = {self._text(scratch.shape[0])};",)

    def _of_operand(self, operand: str, access: Access) -> Iterator[tuple[str, Callable[[], tuple[Item, ...]]]]:
        """Each name of an operand with the function that creates its declaration."""
        buffer = self.kernel.buffer(access.buffer)
        name, kind, dims = operand.lower(), buffer.dtype.cuda, self.statement.spec.uses[operand]
        yield f"{name}_type", lambda: (f"using {name}_type = {kind};",)
        if buffer.memory.by_value:
            if name != buffer.name:  # otherwise the parameter already has this name
                yield name, lambda: (Assignment(f"const {kind} {name}", buffer.name),)
        elif buffer.memory.private and self.statement.collective:
            yield from self._of_registers(name, buffer, dims)
        else:
            yield from self._viewed(name, access, buffer, {self._axis(operand, dim): mode for dim, mode in enumerate(dims)})
        for dim, mode in enumerate(dims):
            label, axis = f"{name}_size_{mode}", self._axis(operand, dim)
            yield label, lambda label=label, axis=axis: self._size(label, access, axis, access.bounds[axis])  # type: ignore[misc]

    def _axis(self, operand: str, dim: int) -> int:
        """The dimension of the tensor that a dimension of an operand is."""
        return self.statement.spec.operands[operand].axis(dim)

    def _of_registers(self, name: str, buffer: Buffer, dims: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], tuple[Item, ...]]]]:
        """The registers of a thread, and the coordinates of each."""
        count = expression(buffer.elements)
        yield name, lambda: (f"{buffer.dtype.cuda} (&{name})[{count}] = {buffer.name};",)
        yield f"{name}_registers", lambda: (f"constexpr int {name}_registers = {count};",)
        register = Var("held_register", 0, buffer.elements.high - 1)
        for label, coordinate in zip(dims, buffer.register_coordinates(register), strict=True):
            head = f"const auto {name}_{label} = [&](int held_register) {{"
            yield f"{name}_{label}", lambda head=head, coordinate=coordinate: self._lambda(head, coordinate)  # type: ignore[misc]

    def _viewed(
        self, name: str, access: Access, buffer: Buffer, dims: Mapping[int, str]
    ) -> Iterator[tuple[str, Callable[[], tuple[Item, ...]]]]:
        """The first element, all others by their coordinates, and the steps between them."""
        kind = ("" if access.write else "const ") + buffer.dtype.cuda
        first = buffer.address(access, access.elements()[0])
        yield name, lambda: (Assignment(f"{kind}* const {name}", Joined((f"&{self._array(buffer)}[", self._document(first), "]"))),)
        arguments = ", ".join(f"int index_{position}" for position in range(len(dims)))
        head = f"const auto {name}_at = [&]({arguments}) -> {kind}& {{"
        yield f"{name}_at", lambda: self._lambda(head, self._address_at(buffer, access, tuple(dims)), self._array(buffer))
        for dim, mode in dims.items():
            label = f"{name}_stride_{mode}"
            yield label, lambda label=label, dim=dim: self._stride_text(label, step_of(buffer, access, dim))  # type: ignore[misc]

    def _document(self, value: Expr) -> Text:
        self.use(value)
        return document(value)

    def _lambda(self, head: str, value: Expr, array: str = "") -> tuple[Item, ...]:
        """A function of indices that returns a number, or the element of an array at this number."""
        body = self._document(value)
        result = Joined((f"return {array}[", body, "];")) if array else Joined(("return ", body, ";"))
        one_line = f"{head} {result} }};"
        return (one_line,) if len(one_line) <= 100 else (head, Joined(("  ", result)), "};")

    def _size(self, label: str, access: Access, dim: int, bound: Expr | None) -> tuple[Item, ...]:
        """The number of elements of a view that are in bounds; empty if these are not the first ones."""
        size = access.shape[dim]
        if bound is None:
            return (f"constexpr int {label} = {size};",)
        steps = _rising(access.modes[dim])
        if steps is None:
            return ()
        left = bound - access.base[dim]
        if steps in ((), ((size, 1),)):
            return (f"const int {label} = {self._clamped(left, size)};",)
        reach = steps[-1][0] * steps[-1][1]
        room = Var(f"{label}_room", 0, reach)
        return (f"const int {room.name} = {self._clamped(left, reach)};", f"const int {label} = {expression(_count_below(steps, room))};")

    def _clamped(self, value: Expr, most: int) -> str:
        """The text of a value from 0 to `most`."""
        if is_wide(value):
            return f"static_cast<int>(max(0LL, min({most}LL, {self._text(value)})))"
        return f"max(0, min({most}, {self._text(value)}))"

    def _stride_text(self, label: str, stride: Expr | None) -> tuple[Item, ...]:
        if stride is None:
            return ()
        return (f"const {'long long' if is_wide(stride) else 'int'} {label} = {self._text(stride)};",)

    def _address_at(self, buffer: Buffer, access: Access, axes: tuple[int, ...]) -> Expr:
        """The address of an element by its coordinates in the view, `index_0`, `index_1`, ..., which nothing else uses as names.

        A view has the dimensions `axes` of its buffer; in the others its coordinate is constant.
        """
        coordinates = []
        for axis, (base, modes, size) in enumerate(zip(access.base, access.modes, access.shape, strict=True)):
            if axis in axes:
                index: Expr = Var(f"index_{axes.index(axis)}", 0, size - 1)
                for mode in modes:
                    base = base + index % mode.size * mode.stride
                    index = index // mode.size
            coordinates.append(base)
        return buffer.address(attrs.evolve(access, base=tuple(coordinates)), tuple(0 for _ in coordinates))


def step_of(buffer: Buffer, access: Access, dim: int) -> Expr | None:
    """The stride of a view along a dimension of its tensor, in elements; None if it is not constant (swizzled or hierarchical)."""
    storage = access.storage or buffer.storage
    modes = [mode for mode in access.modes[dim] if constant(mode.size) != 1]
    step = storage.steps[dim]
    if storage.swizzle is not None or step is None or len(modes) > 1:
        return None
    return step * (modes[0].stride if modes else 1)


def _rising(modes: Sequence[Mode]) -> tuple[tuple[int, int], ...] | None:
    """The sizes and strides of modes whose offsets grow from each index to the next; None for other modes."""
    steps = tuple((constant(mode.size) or 0, constant(mode.stride) or 0) for mode in modes if constant(mode.size) != 1)
    last = 0
    for size, stride in steps:
        if stride <= last or not size:
            return None
        last += (size - 1) * stride
    return steps


def _count_below(steps: Sequence[tuple[int, int]], room: Expr) -> Expr:
    """The number of offsets below `room`, of rising modes with these sizes and strides."""
    *inner, (size, stride) = steps
    if not inner:
        return minimum(floordiv(room + (stride - 1), as_expr(stride)), as_expr(size))
    full, left = floordiv(room, as_expr(stride)), mod(room, as_expr(stride))
    if len(inner) > 1:  # there are no offsets between the last of them and the next stride
        left = minimum(left, as_expr(math.prod(inner[-1])))
    return full * math.prod(size for size, _ in inner) + _count_below(inner, left)


def _truth(condition: Expr) -> str:
    """The text of a condition that is always true or always false; empty for another."""
    return "true" if condition == TRUE else "false" if condition == FALSE else ""


def _remarked(lines: list[str]) -> Iterator[Item]:
    """Lines of text, with each run of comment lines as one remark."""
    for is_comment, run in itertools.groupby(lines, lambda line: line.startswith("//")):
        if is_comment:
            yield Remark(tuple(run))
        else:
            yield from run
