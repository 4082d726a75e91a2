"""PyTorch operators: the calls that become operators, their registration, and the conversions of autocast.

`fireiron.matmul`, `fireiron.attention`, `fireiron.function` and `kernel.as_torch_op()` are operators of `torch.ops.fireiron` if PyTorch
traces or differentiates the call, except for a differentiated eager `matmul` (see `fireiron.matmul_operator`). An operator has a
fake registration, so that `torch.compile` and `torch.export` do not trace into it. The first such call, or
`fireiron.pytorch.register()`, registers the operators.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from fireiron.errors import ArgumentError

SERVED: Final = ("cuda", "meta")
"""Supported device types of tensors; `meta` tensors have shapes and no memory."""

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def _pytorch() -> Any:
    """Return the module `torch`; None if it is not installed, so that no object counts as a tensor."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def traced(*arrays: Any) -> bool:
    """Return whether a call must be an operator: `torch.compile` traces it, or a tensor has no memory."""
    tensors = [array for array in arrays if hasattr(array, "is_cuda")]
    if not tensors:
        return False
    if (torch := _pytorch()) is None:
        return False
    if torch.compiler.is_compiling() or _transformed(torch):
        return True
    plain = torch.Tensor, torch.nn.Parameter
    return any(isinstance(one, torch.Tensor) and type(one) not in plain for one in tensors)


def watched(*tensors: Any) -> bool:
    """Return whether PyTorch must handle a call on plain tensors as an operator although nothing traces it.

    A dispatch mode, which counts, records or checkpoints calls, handles only operators. For a batch of gradients (`is_grads_batched`),
    PyTorch calls an operator once per gradient.
    """
    import torch

    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is not None and modes():
        return True
    is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", None)
    return is_batched is not None and any(map(is_batched, tensors))


def is_operator(*tensors: Any) -> bool:
    """Return whether the gradients of a call must be computed by an operator: PyTorch traces, watches or differentiates them."""
    return traced(*tensors) or watched(*tensors) or differentiated(*tensors)


def _transformed(torch: Any) -> bool:
    """Return whether `torch.func` is active (`vmap`, `grad`), whose tensors wrap others."""
    active = getattr(getattr(torch, "_C", None), "_are_functorch_transforms_active", None)
    return bool(active is not None and active())


def differentiated(*arrays: Any) -> bool:
    """Return whether autograd records operations on one of the arrays."""
    if not any(getattr(one, "requires_grad", False) for one in arrays):
        return False
    torch = _pytorch()
    return torch is not None and bool(torch.is_grad_enabled())


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors as `torch.autocast` converts those of a matmul: 32-bit and 16-bit floats to its type."""
    torch = _pytorch()
    if torch is None or not torch.is_autocast_enabled("cuda"):
        return tensors
    kind, cast = torch.get_autocast_dtype("cuda"), (torch.float32, torch.float16, torch.bfloat16)
    return tuple(one.to(kind) if getattr(one, "dtype", None) in cast else one for one in tensors)


def traced_by_jax(*arrays: Any) -> bool:
    """Return whether JAX traces a call: one of the arrays has no memory yet. JAX is not imported."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(one, jax.core.Tracer) for one in arrays)


def refuse_options(call: str, by: str = "PyTorch traces or differentiates", **options: Any) -> None:
    """Refuse options that an operator does not have."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(
                f"{call}: {name}= is not supported in a call that {by}", hint="omit it, because the operator allocates its result"
            )


def constant(function: Callable[[], bool]) -> Callable[[], bool]:
    """Mark a function that torch.compile calls once while it traces, and whose result is a constant; for registering operators."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


Call = TypeVar("Call", bound=Callable[..., Any])


def untraced(reason: str) -> Callable[[Call], Call]:
    """Mark a function that torch.compile must not trace; with `fullgraph` it reports the reason."""

    def marked(function: Call) -> Call:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return function

    return marked


# ---------------------------------------------------------------------------------------------- registration

registering: Final = threading.RLock()
"""The lock of functions that register operators. A call's own lock is held while its kernels are compiled, and tracing must not wait."""


def refused_on_host(call: str, name: str, device: object) -> ArgumentError:
    """Return the error for a tensor that is not on a GPU."""
    hint = f"pass {name}.cuda(), or for the simulator .numpy() of all tensors"
    return ArgumentError(f"{call}{name} is a PyTorch tensor in host memory", got=f"device {device}", legal="cuda, a GPU", hint=hint)


def on_host(operator: str, run: Callable[..., Any], *arguments: Any) -> Any:
    """Refuse tensors in host memory."""
    refuse_on_host(operator, arguments)
    raise ArgumentError(f"{operator}: no tensor is on a GPU", legal="tensors of one GPU")


def refuse_on_host(operator: str, arguments: Sequence[Any]) -> None:
    """Refuse tensors that are not on a GPU, including traced ones."""
    every = [one for given in arguments for one in (given if isinstance(given, list | tuple) else (given,)) if hasattr(one, "is_cuda")]
    for number, tensor in enumerate(every):
        kind = getattr(getattr(tensor, "device", None), "type", SERVED[0])
        if kind not in SERVED:
            raise refused_on_host(f"{operator}: ", f"tensor {number}", kind)


def define(
    name: str,
    schema: str,
    run: Callable[..., Any],
    shaped: Callable[..., Any],
    mutates: tuple[str, ...] = (),
    served: str = "cuda",
    begin: Callable[..., None] | None = None,
) -> Any:
    """Register an operator `fireiron::NAME`: `run` launches on a GPU, `shaped` makes results for traced tensors.

    `begin` is called with traced tensors after their shapes are checked. It may compile the kernels of the later launch.
    """
    import torch

    def checked(*arguments: Any) -> Any:
        refuse_on_host(name, arguments)
        results = shaped(*arguments)
        if begin is not None:
            begin(*arguments)
        return results

    operator = torch.library.custom_op(
        name if "::" in name else f"fireiron::{name}", run, mutates_args=mutates, device_types=served, schema=schema
    )
    operator.register_kernel("cpu")(lambda *arguments: on_host(name, run, *arguments))
    operator.register_fake(checked)
    return operator


def recording(run: Callable[..., Any], remember: Callable[[Any, Any, Any], None], gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that autograd records, for calls on plain tensors that nothing traces or watches.

    `run` launches; `remember(ctx, inputs, output)` saves what `gradients(ctx, *grads)` needs, as for `register_autograd`.
    """

    def forward(ctx: Any, *given: Any) -> Any:
        output = run(*given)
        remember(ctx, given, output)
        return output

    return differentiable(forward, gradients)


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `apply` of a `torch.autograd.Function` with these methods, for calls as in `recording`."""
    import torch

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type("Recorded", (torch.autograd.Function,), methods)
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # skip PyTorch's code for tensors of torch.func
    return apply


def refuse_gradients(operator: Any, error: Callable[[Any], Exception]) -> None:
    """Refuse calls of an operator that autograd records, with the error for its inputs."""

    def refuse(ctx: Any, inputs: Any, output: Any) -> None:
        raise error(inputs)

    def never(ctx: Any, *grads: Any) -> None:
        raise AssertionError("refused before")

    operator.register_autograd(never, setup_context=refuse)


__all__ = [
    "SERVED",
    "autocast",
    "constant",
    "define",
    "differentiable",
    "differentiated",
    "is_operator",
    "recording",
    "refuse_gradients",
    "refuse_options",
    "registering",
    "traced",
    "untraced",
]
