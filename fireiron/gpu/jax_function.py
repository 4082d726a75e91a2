"""Make a compiled program a function of JAX with a gradient: `graph.as_jax_function(gradient=backward)`.

The function is `jax.custom_vjp`. In a program that JAX traces, the forward and the backward pass are custom calls of XLA. Numbers that are
passed by value, and sizes that no array determines, are Python numbers, so JAX does not differentiate them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.gpu.gradients import label, require_gradient
from fireiron.gpu.interface import Callee, undetermined
from fireiron.operators import traced_by_jax

Static = tuple[tuple[Any, ...], tuple[tuple[str, int], ...]]
"""The arguments of a call that JAX does not trace: numbers in order, and sizes by name."""


def function_of(callee: Callee, gradient: Callee) -> Callable[..., Any]:
    """Return the function of a compiled program; see `CompiledKernel.as_jax_function`."""
    require_gradient(callee, gradient, "as_jax_function")
    if callee.program.adds_to:
        raise ArgumentError(
            f"as_jax_function: the kernel adds to {', '.join(callee.program.adds_to)}", legal="a kernel that writes new outputs",
            hint="JAX arrays are immutable: add in JAX, or in a kernel that reads the old values",
        )  # fmt: skip
    return _Differentiable(callee, gradient)


@attrs.frozen(eq=False)
class _Differentiable:
    """A compiled program and its gradient, as one function of arrays and numbers in the order of the program's inputs."""

    callee: Callee
    gradient: Callee
    transformed: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        import jax

        function = jax.custom_vjp(self._forward, nondiff_argnums=(0,))
        function.defvjp(self._kept, self._backward, symbolic_zeros=True)
        object.__setattr__(self, "transformed", function)

    def __call__(self, *arrays: Any, **sizes: int) -> Any:
        """Return the outputs of the program.

        Raises: ArgumentError for another number of arguments, for a traced number, and if a gradient is requested that is not computed.
        """
        program = self.callee.program
        if len(arrays) != len(program.inputs):
            raise ArgumentError(f"{len(arrays)} arrays and numbers given, the function reads {len(program.inputs)}", legal=program.inputs)
        given = dict(zip(program.inputs, arrays, strict=True))
        numbers = tuple(_number(name, given[name]) for name in program.numbers)
        tensors = [given[name] for name in self._tensors]
        return self.transformed((numbers, tuple(sorted(sizes.items()))), *tensors)

    @property
    def _tensors(self) -> tuple[str, ...]:
        program = self.callee.program
        return tuple(name for name in program.inputs if name not in program.numbers)

    def _arguments(self, static: Static, tensors: Sequence[Any]) -> dict[str, Any]:
        """Return the inputs of the program by name."""
        program = self.callee.program
        return {**dict(zip(self._tensors, tensors, strict=True)), **dict(zip(program.numbers, static[0], strict=True))}

    def _forward(self, static: Static, *tensors: Any) -> Any:
        given = self._arguments(static, tensors)
        return self.callee(*(given[name] for name in self.callee.program.inputs), **dict(static[1]))

    def _kept(self, static: Static, *primals: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the outputs, and the arrays that the gradient reads."""
        computed = {label(name) for name in self.gradient.program.outputs}
        wrong = next(
            (name for name, primal in zip(self._tensors, primals, strict=True) if primal.perturbed and f"d{label(name)}" not in computed),
            None,
        )
        if wrong is not None:
            raise ArgumentError(
                f"the gradient of the function has no output d{label(wrong)}, and {wrong} requires a gradient",
                legal=self.gradient.program.outputs,
                hint=f"pass jax.lax.stop_gradient({label(wrong)}), or use a gradient that writes d{label(wrong)}",
            )  # fmt: skip
        tensors = tuple(primal.value for primal in primals)
        result = self._forward(static, *tensors)
        outputs = result if isinstance(result, tuple) else (result,)
        return result, self._read_of((*self._tensors, *self.callee.program.outputs), (*tensors, *outputs))

    def _backward(self, static: Static, kept: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of the arrays; None, which is zero, for arrays without one."""
        program, backward = self.callee.program, self.gradient.program
        arrays = dict(zip(self._read, kept, strict=True))
        incoming = cotangents if isinstance(cotangents, tuple | list) else (cotangents,)
        values = {label(name): value for name, value in (*arrays.items(), *zip(program.numbers, static[0], strict=True))}
        values |= {f"d{label(name)}": _array(value) for name, value in zip(program.outputs, incoming, strict=True)}
        sizes = {**self._extents(arrays), **dict(static[1])}
        own = {name: sizes[name] for name in undetermined(backward)}
        results = self.gradient(*(values[label(name)] for name in backward.inputs), **own)
        by_name = dict(zip(map(label, backward.outputs), results if isinstance(results, tuple) else (results,), strict=True))
        return tuple(by_name.get(f"d{label(name)}") for name in self._tensors)

    @property
    def _read(self) -> tuple[str, ...]:
        """The arrays that the backward pass keeps: those that the gradient reads, or all if it takes sizes that none of them determines."""
        program, backward = self.callee.program, self.gradient.program
        read, every = {label(name) for name in backward.inputs}, (*self._tensors, *program.outputs)
        return every if undetermined(backward) else tuple(name for name in every if label(name) in read)

    def _read_of(self, names: Sequence[str], arrays: Sequence[Any]) -> tuple[Any, ...]:
        by_name = dict(zip(names, arrays, strict=True))
        return tuple(by_name[name] for name in self._read)

    def _extents(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        """Return the run-time sizes that the shapes of arrays determine."""
        program = self.callee.program
        known = {size.name for size in program.sizes}
        pairs = (
            (str(extent), size) for name, array in arrays.items() for extent, size in zip(program.shape(name), array.shape, strict=True)
        )
        return {name: size for name, size in pairs if name in known}


def _number(name: str, value: Any) -> Any:
    """Return a number that is passed by value. Raises: ArgumentError if JAX traces it."""
    if traced_by_jax(value):
        raise ArgumentError(
            f"{name} is passed by value, and JAX traces it", got=str(value), legal="a Python number",
            hint=f"close over {name}, or jax.jit(..., static_argnums=...)",
        )  # fmt: skip
    return value.item() if hasattr(value, "item") else value


def _array(cotangent: Any) -> Any:
    """Return the gradient of an output as an array; JAX passes a symbol if nothing depends on the output."""
    import jax

    is_zero = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return jax.numpy.zeros(cotangent.shape, cotangent.dtype) if is_zero else cotangent


__all__ = ["function_of"]
