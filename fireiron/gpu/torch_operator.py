"""Register a compiled kernel as a PyTorch operator: `kernel.as_torch_op("mine::gemm")`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.gpu.arguments import array_shape, types_of
from fireiron.spec import Spec, sizes_of, with_strides
from fireiron.values.expr import constant

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel


def operator_of(kernel: CompiledKernel, name: str, into: bool) -> Any:
    """Return the operator of a kernel; see `CompiledKernel.as_torch_op`."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise ArgumentError(
            "as_torch_op: the name of an operator is required", got=name, legal='"namespace::name"', hint='as_torch_op("mine::gemm")'
        )
    operator = _Operator(kernel)
    if not into and operator.accumulates:
        hint = f"use as_torch_op({name!r}, into=True), which also takes {', '.join(operator.spec.outputs)}"
        raise ArgumentError(f"as_torch_op: the kernel adds to {', '.join(operator.spec.outputs)}", hint=hint)
    given = ", ".join(operator.arguments)
    outputs = tuple(operator.spec.outputs)
    if into:
        filled = ", ".join(f"Tensor({mark}!) {output}" for output, mark in zip(outputs, "abcdefghijklmnopqrstuvwxyz", strict=False))
        operators.define(name, f"({', '.join(part for part in (given, filled) if part)}) -> ()", operator.fill, operator.filled, outputs)
    else:
        returns = "Tensor" if len(outputs) == 1 else f"({', '.join('Tensor' for _ in outputs)})"
        operators.define(name, f"({given}) -> {returns}", operator.run, operator.shaped)
    return _registered(name)


def _registered(name: str) -> Any:
    import torch

    space, _, short = name.partition("::")
    return getattr(getattr(torch.ops, space), short).default


class _Operator:
    """An operator whose arguments are arrays and numbers of the inputs, sizes that no array determines, and outputs."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self.kernel, self.spec = kernel, kernel.program.spec
        self.inputs = tuple(self.spec.inputs)
        self.numbers = dict(kernel.scalars)
        determined = {str(size) for operand in self.inputs if operand not in self.numbers for size in array_shape(self.spec, operand)}
        self.sizes = tuple(var.name for var in sizes_of(self.spec) if var.name not in determined)

    @property
    def accumulates(self) -> bool:
        """Whether the kernel accumulates into its output."""
        return bool(self.spec.atomic) or constant(self.spec.accumulate) != 0

    @property
    def arguments(self) -> list[str]:
        """Return the arguments except outputs, with their types."""
        kinds = {name: "int" if dtype.kind == "int" else "float" for name, dtype in self.numbers.items()}
        return [*(f"{kinds.get(name, 'Tensor')} {name}" for name in self.inputs), *(f"SymInt {name}" for name in self.sizes)]

    def run(self, *given: Any) -> Any:
        """Launch with new outputs."""
        arrays, sizes = self._parted(given)
        return self.kernel(*arrays, **sizes)

    def fill(self, *given: Any) -> None:
        """Launch with the outputs, which are the last arguments."""
        outputs = len(self.spec.outputs)
        arrays, sizes = self._parted(given[:-outputs])
        self.kernel(*arrays, out=given[-1] if outputs == 1 else tuple(given[-outputs:]), **sizes)

    def shaped(self, *given: Any) -> Any:
        """Return the outputs of a traced call."""
        arrays, sizes = self._parted(given)
        tensors = {name: array for name, array in zip(self.inputs, arrays, strict=True) if name not in self.numbers}
        symbols = self._symbols(tensors, sizes)
        like = next(iter(tensors.values()))
        outputs = tuple(self._new_output(like, name, symbols) for name in self.spec.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def filled(self, *given: Any) -> None:
        """Check the tensors of a traced call with outputs."""
        outputs = len(self.spec.outputs)
        arrays, sizes = self._parted(given[:-outputs])
        tensors = {name: array for name, array in zip(self.inputs, arrays, strict=True) if name not in self.numbers}
        self._symbols({**tensors, **dict(zip(self.spec.outputs, given[-outputs:], strict=True))}, sizes)

    def _parted(self, given: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Split the arguments into arrays and numbers, and sizes by name."""
        count = len(self.inputs)
        return tuple(given[:count]), dict(zip(self.sizes, given[count:], strict=True))

    def _symbols(self, tensors: Mapping[str, Any], sizes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of sizes and strides, which may be symbols of PyTorch. Refuse tensors of other types or shapes."""
        known = dict(sizes)
        for name, tensor in tensors.items():
            _check_type(self.kernel, name, tensor)
            extents = array_shape(self.spec, name)
            if len(tensor.shape) != len(extents):
                raise ArgumentError(f"{name} has {len(tensor.shape)} dimensions, the kernel reads {len(extents)}")
            for size, extent in zip(tensor.shape, extents, strict=True):
                if constant(extent) is None and str(extent) in {var.name for var in sizes_of(self.spec)}:
                    known.setdefault(str(extent), size)
        for name, tensor in tensors.items():
            _check_shape(self.spec, name, tensor, known)
        return {**known, **with_strides(self.spec, known)}

    def _new_output(self, like: Any, name: str, symbols: Mapping[str, Any]) -> Any:
        """Return a new output with the kernel's layout."""
        import torch

        buffer = self.kernel.program.stored(name)
        shape = [_size(size, symbols) for size in buffer.array.shape]
        steps = [_size(step, symbols) for step in buffer.array_storage.steps if step is not None]
        return like.new_empty_strided(shape, steps, dtype=getattr(torch, buffer.dtype.numpy))


def _check_type(kernel: CompiledKernel, name: str, tensor: Any) -> None:
    kind, legal = str(tensor.dtype).removeprefix("torch."), types_of(kernel.program.stored(name))
    if kind not in legal:
        raise ArgumentError(f"{name} has elements of another type than the kernel was made for", got=kind, legal=" ".join(legal))


def _check_shape(spec: Spec, name: str, tensor: Any, known: Mapping[str, Any]) -> None:
    expected = tuple(_size(size, known) for size in array_shape(spec, name))
    if any(size != want for size, want in zip(tensor.shape, expected, strict=True)):
        raise ArgumentError(f"{name} has the shape {tuple(tensor.shape)}, the kernel was made for {expected}")


def _size(value: Any, symbols: Mapping[str, Any]) -> Any:
    """Evaluate an expression of sizes to an integer or a symbol of PyTorch."""
    number = constant(value)
    return value.evaluate(symbols) if number is None else number


__all__ = ["operator_of"]
