"""`fireiron.distributed` in PyTorch: one operator for calls that `torch.compile` traces or autograd records, its gradients, and DTensors.

Each function is the gradient of another one. With C = A B:

    all_gather        dA = reduce_scatter of dC B^T      dB = (gathered A)^T dC
    reduce_scatter    dA = (gathered dC) B^T             dB = A^T (gathered dC)
    all_reduce        dA = dC B^T                        dB = A^T dC        dC is equal on all GPUs

The operator takes the name of the process group, because operators have no other arguments than tensors, numbers and texts.
"""

from __future__ import annotations

import functools
from typing import Any

from fireiron import operators
from fireiron.distributed import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter, run
from fireiron.distributed_plan import EXCHANGES
from fireiron.errors import ArgumentError

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def through_torch(kind: str, a: Any, b: Any, group: Any) -> Any:
    """Execute a call as an operator."""
    import torch
    import torch.distributed as distributed

    _operators()
    group = distributed.group.WORLD if group is None else group
    if group is None:
        raise ArgumentError("no process group", hint="torch.distributed.init_process_group(...), under torchrun")
    return torch.ops.fireiron.distributed_matmul(a, b, kind, group.group_name)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


def _resolved(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def _run(a: Any, b: Any, kind: str, group: str) -> Any:
    return run(kind, a, b, _resolved(group))


def _shape(a: Any, b: Any, kind: str, group: str) -> Any:
    """Return the result of a traced call."""
    exchange, gpus = EXCHANGES[kind], _resolved(group).size()
    rows, columns = a.shape[0], b.shape[1]
    if exchange.gathers == "A" and exchange.over["A"] == "m":
        rows = rows * gpus
    if exchange.over.get("C") == "m" and not exchange.gathers:
        rows = rows // gpus
    return a.new_empty((rows, columns))


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    a, b, ctx.kind, ctx.group = inputs
    if ctx.kind not in _GRADIENTS:
        raise ArgumentError(
            "distributed matmul: its gradients have no gradient", got="a second derivative", hint="remove create_graph=True"
        )
    ctx.save_for_backward(a, b)


def _gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    of_a, of_b = ctx.needs_input_grad[:2]
    kinds = _GRADIENTS[ctx.kind]
    grad = grad.contiguous()
    da = _product(grad, b.t(), kinds[0], ctx.group) if of_a else None
    db = _of_b(a, grad, kinds[1], ctx.group) if of_b else None
    return da, db, None, None


_GRADIENTS = {"all_gather": ("reduce_scatter", "all_gather_k"), "reduce_scatter": ("all_gather", "all_gather_b"), "all_reduce": ("", "")}
"""By kind, the kinds of the products for the gradients of A and B; empty for products of one GPU."""


def _product(a: Any, b: Any, kind: str, group: str) -> Any:
    import torch

    return _own_product(a, b) if not kind else torch.ops.fireiron.distributed_matmul(a, b, kind, group)


def _of_b(a: Any, grad: Any, kind: str, group: str) -> Any:
    return _product(a.t(), grad, kind, group)


def _own_product(a: Any, b: Any) -> Any:
    """Return the product of one GPU."""
    if a.device.type == "cpu":
        return a @ b
    from fireiron.matmul import matmul

    return matmul(a, b)


@functools.cache
def register_operators() -> Any:
    """Register and return the operator."""
    import torch

    schema = "(Tensor a, Tensor b, str kind, str group) -> Tensor"
    operator = torch.library.custom_op("fireiron::distributed_matmul", _run, mutates_args=(), schema=schema)
    operator.register_fake(_shape)
    operator.register_autograd(_gradients, setup_context=_remember)
    return operator


# ---------------------------------------------------------------------------------------------- DTensor


def matmul(a: Any, b: Any, placement: Any = None) -> Any:
    """Return the product of two DTensors on a mesh of one dimension, with communication in the same call as the product.

    | a | b | result |
    | --- | --- | --- |
    | Shard(0) | Shard(1) | Shard(1): `all_gather_matmul` |
    | Shard(1) | Shard(0) | Shard(0), if it is the requested placement: `matmul_reduce_scatter` |
    | Shard(1) | Shard(0) | Replicate(): `matmul_all_reduce` |

    Other placements are those of `fireiron.matmul`, whose sharding rule `register_sharding_rule` registers.

    Args:
        placement: the placement of the result; None for the first of the table.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    given = a.placements, b.placements
    if a.device_mesh != b.device_mesh or a.device_mesh.ndim != 1:
        raise ArgumentError(
            "distributed matmul: the DTensors must be on the same mesh of one dimension", got=(a.device_mesh, b.device_mesh)
        )
    calls = {
        ((Shard(0),), (Shard(1),)): ((Shard(1), all_gather_matmul),),
        ((Shard(1),), (Shard(0),)): ((Shard(0), matmul_reduce_scatter), (Replicate(), matmul_all_reduce)),
    }
    known = calls.get(given, ())
    call = next((call for place, call in known if placement is None or place == placement), None)
    if call is None:
        from fireiron.matmul import matmul as product

        register_sharding_rule()
        result = product(a, b)
        return result if placement is None else result.redistribute(placements=[placement])
    place = next(place for place, known_call in known if known_call is call)
    group, mesh = a.device_mesh.get_group(), a.device_mesh
    local = call(a.to_local(), b.to_local(), group)
    return DTensor.from_local(local, mesh, [place], run_check=False)


@functools.cache
def register_sharding_rule() -> None:
    """Register how `DTensor` distributes `fireiron.matmul` of matrices: rows of a, columns of b, or sums of parts of K."""
    import torch
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    from fireiron.matmul_operator import register_operators as register_matmul
    from fireiron.matmul_operator import shape_of_result

    product, *_ = register_matmul()
    product.register_fake(shape_of_result)  # DTensor passes fake tensors in host memory to find the shape of the result

    @register_sharding(torch.ops.fireiron.matmul.default)  # type: ignore[untyped-decorator]
    def rule(a: Any, b: Any, c_dtype: Any = None, ab_dtype: Any = None) -> Any:
        rows, columns = ([Shard(0)], [Shard(0), Replicate()]), ([Shard(1)], [Replicate(), Shard(1)])
        sums, whole = ([Partial()], [Shard(1), Shard(0)]), ([Replicate()], [Replicate(), Replicate()])
        return [(result, [*inputs, None, None]) for result, inputs in (whole, rows, columns, sums)]


__all__ = ["matmul", "register_operators", "register_sharding_rule", "through_torch"]
