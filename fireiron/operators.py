"""PyTorch's operators: which calls become one, how they are registered, and what autocast makes of tensors.

`fireiron.matmul`, `fireiron.attention`, `fireiron.function` and `kernel.as_torch_op()` are operators of `torch.ops.fireiron` where PyTorch
traces a call or differentiates it; an eager `matmul` that is differentiated is none (see `fireiron.matmul_operator`). An operator has a
fake registration, so that `torch.compile` and `torch.export` keep it as it is and look at nothing behind it. They are registered when the
first such call is made, or by `fireiron.pytorch.register()`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from fireiron.errors import ArgumentError

SERVED: Final = ("cuda", "meta")
"""Kinds of devices whose tensors operators take; those of `meta` have no memory, and say shapes only."""

# What stands between a call and its operator is traced by torch.compile itself: no classes of attrs, no caches, no locks.


def _pytorch() -> Any:
    """PyTorch; None where it is not installed, so that nothing is a tensor of its, whatever attributes it has."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch


def traced(*arrays: Any) -> bool:
    """Whether a call is to be an operator: one that `torch.compile` traces, or with a tensor that has no memory of its own."""
    tensors = [one for one in arrays if hasattr(one, "is_cuda")]
    if not tensors:
        return False
    if (torch := _pytorch()) is None:
        return False
    if torch.compiler.is_compiling() or _transformed(torch):
        return True
    plain = torch.Tensor, torch.nn.Parameter
    return any(isinstance(one, torch.Tensor) and type(one) not in plain for one in tensors)


def watched(*tensors: Any) -> bool:
    """Whether PyTorch has to see an operator though nothing traces the call, for plain tensors.

    A dispatch mode, which counts, records or checkpoints operators, sees nothing else; and of tensors that stand for several gradients
    (`is_grads_batched`) PyTorch calls an operator for each.
    """
    import torch

    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is not None and modes():
        return True
    several = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", None)
    return several is not None and any(map(several, tensors))


def _transformed(torch: Any) -> bool:
    """Whether `torch.func` is at work (`vmap`, `grad`), whose tensors wrap others."""
    active = getattr(getattr(torch, "_C", None), "_are_functorch_transforms_active", None)
    return bool(active is not None and active())


def differentiated(*arrays: Any) -> bool:
    """Whether autograd records what is done with one of the arrays."""
    if not any(getattr(one, "requires_grad", False) for one in arrays):
        return False
    torch = _pytorch()
    return torch is not None and bool(torch.is_grad_enabled())


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Tensors as `torch.autocast` wants those of a product: of float32 and 16-bit floats in its type, others as they are."""
    torch = _pytorch()
    if torch is None or not torch.is_autocast_enabled("cuda"):
        return tensors
    kind, cast = torch.get_autocast_dtype("cuda"), (torch.float32, torch.float16, torch.bfloat16)
    return tuple(one.to(kind) if getattr(one, "dtype", None) in cast else one for one in tensors)


def traced_by_jax(*arrays: Any) -> bool:
    """Whether JAX traces a call: one of the arrays has no memory yet. JAX is not imported."""
    jax = sys.modules.get("jax")
    return jax is not None and any(isinstance(one, jax.core.Tracer) for one in arrays)


def refuse_options(call: str, by: str = "PyTorch traces or differentiates", **options: Any) -> None:
    """Refuse options that an operator does not take."""
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(f"{call}: {name}= in a call that {by}", hint="leave it away: the operator makes its result")


def constant(function: Callable[[], bool]) -> Callable[[], bool]:
    """A function that torch.compile calls while it traces, and whose answer it takes as a constant: for registering operators."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


Call = TypeVar("Call", bound=Callable[..., Any])


def untraced(reason: str) -> Callable[[Call], Call]:
    """Marks a function that torch.compile does not look into: with `fullgraph` it refuses to, and gives the reason."""

    def marked(function: Call) -> Call:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return function

    return marked


# ---------------------------------------------------------------------------------------------- registering


def refused_on_host(call: str, name: str, device: object) -> ArgumentError:
    """The error for a tensor that lies on no GPU."""
    hint = f"{name}.cuda(), or .numpy() of all tensors for the simulator"
    return ArgumentError(f"{call}{name} is a PyTorch tensor in host memory", got=f"device {device}", legal="a GPU's, cuda", hint=hint)


def on_host(operator: str, run: Callable[..., Any], *arguments: Any) -> Any:
    """What an operator does of tensors in host memory: it refuses them."""
    refuse_on_host(operator, arguments)
    raise ArgumentError(f"{operator}: no tensor is on a GPU", legal="tensors of one GPU")


def refuse_on_host(operator: str, arguments: Sequence[Any]) -> None:
    """Refuse tensors of other devices than a GPU's, also those that are traced."""
    every = [one for given in arguments for one in (given if isinstance(given, list | tuple) else (given,)) if hasattr(one, "is_cuda")]
    for number, one in enumerate(every):
        kind = getattr(getattr(one, "device", None), "type", SERVED[0])
        if kind not in SERVED:
            raise refused_on_host(f"{operator}: ", f"tensor {number}", kind)


def define(
    name: str, schema: str, run: Callable[..., Any], shaped: Callable[..., Any], mutates: tuple[str, ...] = (), served: str = "cuda"
) -> Any:
    """An operator `fireiron::NAME`, registered: `run` launches on a GPU, `shaped` makes results of traced tensors."""
    import torch

    def checked(*arguments: Any) -> Any:
        refuse_on_host(name, arguments)
        return shaped(*arguments)

    made = torch.library.custom_op(
        name if "::" in name else f"fireiron::{name}", run, mutates_args=mutates, device_types=served, schema=schema
    )
    made.register_kernel("cpu")(lambda *arguments: on_host(name, run, *arguments))
    made.register_fake(checked)
    return made


def refuse_gradients(operator: Any, error: Callable[[Any], Exception]) -> None:
    """Refuse calls of an operator that autograd records, with the error for its inputs."""

    def refuse(ctx: Any, inputs: Any, output: Any) -> None:
        raise error(inputs)

    def never(ctx: Any, *grads: Any) -> None:
        raise AssertionError("refused before")

    operator.register_autograd(never, setup_context=refuse)


__all__ = ["SERVED", "autocast", "constant", "define", "differentiated", "refuse_gradients", "refuse_options", "traced", "untraced"]
