"""Register a compiled program as a PyTorch operator: `kernel.as_torch_op("mine::gemm")`, `graph.as_torch_op("mine::layer_norm")`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.gpu.arguments import types_of
from fireiron.gpu.gradients import label, require_gradient
from fireiron.gpu.interface import Callee, undetermined
from fireiron.values.expr import constant


def operator_of(callee: Callee, name: str, into: bool, gradient: Callee | None = None) -> Any:
    """Return the operator of a compiled program; see `CompiledKernel.as_torch_op`."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise ArgumentError(
            "as_torch_op: the name of an operator is required", got=name, legal='"namespace::name"', hint='as_torch_op("mine::gemm")'
        )
    operator = _Operator(callee)
    if not into and operator.program.adds_to:
        hint = f"use as_torch_op({name!r}, into=True), which also takes {', '.join(operator.outputs)}"
        raise ArgumentError(f"as_torch_op: the kernel adds to {', '.join(operator.program.adds_to)}", hint=hint)
    if into and gradient is not None:
        raise ArgumentError("as_torch_op: an operator that fills its arguments has no gradient", hint="remove into=True, or gradient=")
    backward = None if gradient is None else _Gradient(operator, gradient, f"{name}_backward")
    _defined(operator, name, into)
    if backward is not None:
        backward.register(name)
    return _registered(name)


def _defined(operator: _Operator, name: str, into: bool) -> Any:
    """Register an operator, without a gradient, and return the registration."""
    given, outputs = ", ".join(operator.arguments), operator.labels(operator.outputs)
    if into:
        filled = ", ".join(f"Tensor({mark}!) {output}" for output, mark in zip(outputs, "abcdefghijklmnopqrstuvwxyz", strict=False))
        return operators.define(
            name, f"({', '.join(part for part in (given, filled) if part)}) -> ()", operator.fill, operator.filled, tuple(outputs)
        )
    returns = "Tensor" if len(outputs) == 1 else f"({', '.join('Tensor' for _ in outputs)})"
    return operators.define(name, f"({given}) -> {returns}", operator.run, operator.shaped)


def _registered(name: str) -> Any:
    import torch

    space, _, short = name.partition("::")
    return getattr(getattr(torch.ops, space), short).default


class _Operator:
    """An operator whose arguments are arrays and numbers of the inputs, sizes that no array determines, and outputs."""

    def __init__(self, callee: Callee) -> None:
        self.callee, self.program = callee, callee.program
        self.inputs, self.outputs = tuple(self.program.inputs), tuple(self.program.outputs)
        self.numbers = dict(self.program.numbers)
        self.sizes = undetermined(self.program)

    def labels(self, names: Sequence[str]) -> list[str]:
        """Return the names in the schema."""
        return [label(name) for name in names]

    @property
    def arguments(self) -> list[str]:
        """Return the arguments except outputs, with their types."""
        kinds = {name: "int" if dtype.kind == "int" else "float" for name, dtype in self.numbers.items()}
        return [*(f"{kinds.get(name, 'Tensor')} {label(name)}" for name in self.inputs), *(f"SymInt {name}" for name in self.sizes)]

    def run(self, *given: Any) -> Any:
        """Launch with new outputs."""
        arrays, sizes = self.parted(given)
        return self.callee(*arrays, **sizes)

    def fill(self, *given: Any) -> None:
        """Launch with the outputs, which are the last arguments."""
        outputs = len(self.outputs)
        arrays, sizes = self.parted(given[:-outputs])
        self.callee(*arrays, out=given[-1] if outputs == 1 else tuple(given[-outputs:]), **sizes)

    def shaped(self, *given: Any) -> Any:
        """Return the outputs of a traced call."""
        arrays, sizes = self.parted(given)
        tensors = {name: array for name, array in zip(self.inputs, arrays, strict=True) if name not in self.numbers}
        known = self.known(tensors, sizes)
        like = next(iter(tensors.values()))
        outputs = tuple(self._new_output(like, name, known) for name in self.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def filled(self, *given: Any) -> None:
        """Check the tensors of a traced call with outputs."""
        outputs = len(self.outputs)
        arrays, sizes = self.parted(given[:-outputs])
        tensors = {name: array for name, array in zip(self.inputs, arrays, strict=True) if name not in self.numbers}
        self.known({**tensors, **dict(zip(self.outputs, given[-outputs:], strict=True))}, sizes)

    def parted(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the arguments into arrays and numbers, and sizes by name."""
        count = len(self.inputs)
        return tuple(given[:count]), dict(zip(self.sizes, given[count:], strict=True))

    def known(self, tensors: Mapping[str, Any], sizes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of sizes, which may be symbols of PyTorch. Refuse tensors of other types or shapes."""
        known = dict(sizes)
        names = {size.name for size in self.program.sizes}
        for name, tensor in tensors.items():
            self._check_type(name, tensor)
            extents = self.program.shape(name)
            if len(tensor.shape) != len(extents):
                raise ArgumentError(f"{name} has {len(tensor.shape)} dimensions, the kernel reads {len(extents)}")
            for size, extent in zip(tensor.shape, extents, strict=True):
                if constant(extent) is None and str(extent) in names:
                    known.setdefault(str(extent), size)
        for name, tensor in tensors.items():
            self._check_shape(name, tensor, known)
        return known

    def _check_type(self, name: str, tensor: Any) -> None:
        kind, legal = str(tensor.dtype).removeprefix("torch."), types_of(self.program.stored(name))
        if kind not in legal:
            raise ArgumentError(f"{name} has elements of another type than the kernel was made for", got=kind, legal=" ".join(legal))

    def _check_shape(self, name: str, tensor: Any, known: Mapping[str, Any]) -> None:
        expected = tuple(_size(size, known) for size in self.program.shape(name))
        if any(size != want for size, want in zip(tensor.shape, expected, strict=True)):
            raise ArgumentError(f"{name} has the shape {tuple(tensor.shape)}, the kernel was made for {expected}")

    def strides(self, name: str, known: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return the shape and the strides of an array without gaps, in elements."""
        buffer, symbols = self.program.stored(name), self.program.symbols_for(name, known)
        shape = [_size(size, symbols) for size in buffer.array.shape]
        return shape, [_size(step, symbols) for step in buffer.array_storage.steps if step is not None]

    def _new_output(self, like: Any, name: str, known: Mapping[str, Any]) -> Any:
        """Return a new output with the kernel's layout."""
        import torch

        return like.new_empty_strided(*self.strides(name, known), dtype=getattr(torch, self.program.stored(name).dtype.numpy))


def _size(value: Any, symbols: Mapping[str, Any]) -> Any:
    """Evaluate an expression of sizes to an integer or a symbol of PyTorch."""
    number = constant(value)
    return value.evaluate(symbols) if number is None else number


# ---------------------------------------------------------------------------------------------- gradients


class _Gradient:
    """The gradient of an operator by another compiled program.

    Its inputs have the names of inputs and outputs of the operator, or `dY` for the gradient of the output `Y`; its outputs are `dX` for
    inputs `X`.
    """

    def __init__(self, operator: _Operator, callee: Callee, name: str) -> None:
        require_gradient(operator.callee, callee, "as_torch_op")
        self.operator, self.backward, self.name = operator, _Operator(callee), name

    def register(self, name: str) -> None:
        """Register the operator of the gradient, and the gradient of the operator `name`."""
        import torch

        _defined(self.backward, self.name, False)
        torch.library.register_autograd(name, self.differentiate, setup_context=self.keep)

    def keep(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        """Keep what the gradient reads: tensors, numbers and sizes."""
        arrays, sizes = self.operator.parted(inputs)
        outputs = output if isinstance(output, tuple | list) else (output,)
        values = {
            label(name): value for name, value in zip((*self.operator.inputs, *self.operator.outputs), (*arrays, *outputs), strict=True)
        }
        read = [label(name) for name in self.backward.inputs if label(name) in values]
        ctx.kept = [name for name in read if name not in map(label, self.operator.numbers)]
        ctx.save_for_backward(*(values[name] for name in ctx.kept))
        ctx.numbers = {name: values[name] for name in read if name not in ctx.kept}
        tensors = {name: value for name, value in zip(self.operator.inputs, arrays, strict=True) if name not in self.operator.numbers}
        ctx.sizes = dict(self.operator.known(tensors, sizes))

    def differentiate(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        """Return the gradients of all arguments; None for numbers and sizes."""
        values = {**dict(zip(ctx.kept, ctx.saved_tensors, strict=True)), **ctx.numbers}
        values |= {f"d{label(name)}": gradient for name, gradient in zip(self.operator.outputs, gradients, strict=True)}
        missing = self._missing(ctx)
        if missing:
            raise ArgumentError(
                f"the gradient of the operator has no output d{missing[0]}, and {missing[0]} requires a gradient",
                legal=self.backward.outputs, hint=f"pass {missing[0]}.detach(), or use a gradient that writes d{missing[0]}",
            )  # fmt: skip
        given = [self._laid_out(name, values[label(name)], ctx.sizes) for name in self.backward.inputs]
        results = _registered(self.name)(*given, *(ctx.sizes[name] for name in self.backward.sizes))
        by_name = dict(zip(map(label, self.backward.outputs), results if isinstance(results, tuple | list) else (results,), strict=True))
        return (*(by_name.get(f"d{label(name)}") for name in self.operator.inputs), *(None for _ in self.operator.sizes))

    def _missing(self, ctx: Any) -> list[str]:
        """Return the inputs that require a gradient which is not computed."""
        known = set(map(label, self.backward.outputs))
        needed = zip(self.operator.inputs, ctx.needs_input_grad, strict=False)
        return [name for name, is_needed in needed if is_needed and f"d{label(name)}" not in known]

    def _laid_out(self, name: str, value: Any, known: Mapping[str, Any]) -> Any:
        """Return a tensor with the strides that the gradient reads; an incoming gradient may have any, such as those of `c.sum()`."""
        if name in self.backward.numbers:
            return value
        shape, strides = self.backward.strides(name, known)
        steps = zip(shape, value.stride(), strides, strict=True)
        if all(size == 1 or step == expected for size, step, expected in steps):
            return value
        return value.new_empty_strided(shape, strides).copy_(value)


__all__ = ["operator_of"]
