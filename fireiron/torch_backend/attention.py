"""Replace scaled dot-product attention by the operator of `fireiron.attention`, whose strategy is a record's, the library's or derived.

PyTorch keeps attention as one operation. Inductor finds the decomposed form (product, scale, softmax, product) and makes it this operation,
too. So this pass sees both. The operator has no random numbers and no added bias.
"""

from __future__ import annotations

from typing import Any, Final

from fireiron.attention import attention
from fireiron.attention_kernels import result_steps
from fireiron.attention_operator import register_operators
from fireiron.cost import predict
from fireiron.derive.derivation import written
from fireiron.front.traced import Described
from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.operations import name_of, type_of
from fireiron.torch_backend.report import Taken
from fireiron.torch_backend.stating import check_strides, shape_of

NAMES: Final = frozenset(
    f"_scaled_dot_product_{kind}_attention{place}" for kind in ("flash", "cudnn", "efficient") for place in ("", "_for_cpu")
)
"""The operations of attention, by the implementation that PyTorch chooses."""

TYPES: Final = ("torch.float16", "torch.bfloat16")


def replaced(graph: Any, node: Any, device: int | None, target: str) -> Taken:
    """Replace one attention of a graph, and return what was taken. Raises: `CannotStateError` if it is left to Inductor."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    given = _named(node)
    q, k, v = (given.pop(name) for name in ("query", "key", "value"))
    _check(node, given, (q, k, v))
    if device is None:
        raise CannotStateError("attention has no form for the simulator here; call fireiron.attention")
    (result,) = [user for user in node.users if user.args[1] == 0]
    scale, causal = given.get("scale"), bool(given.get("is_causal"))
    with unset_fake_temporarily():
        metas = [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") for one in (x.meta["val"] for x in (q, k, v))]
    if tuple(result.meta["val"].stride()) != result_steps(metas[0].shape, metas[0].stride()):
        raise CannotStateError("the result has another order of dimensions than the queries")
    with unset_fake_temporarily():
        choice = attention.choice(*(Described(meta, device) for meta in metas), causal=causal, scale=scale, arch=target)
    register_operators()
    with graph.inserting_before(node):
        call = graph.call_function(torch.ops.fireiron.attention.default, (q, k, v, causal, None, scale, None, None))
    call.meta["val"] = result.meta["val"]
    result.replace_all_uses_with(call)
    for unused in (*node.users, node):  # it may be random, so PyTorch keeps it otherwise
        graph.erase_node(unused)
    return Taken(
        name_of(node), "softmax(scale * q @ k.T) @ v", written(choice.strategy), f"attention: {choice.why}", predict(choice.program).us
    )


def _named(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by name, with the default values of the others."""
    known = node.target._schema.arguments
    values = {argument.name: argument.default_value for argument in known if argument.has_default_value()}
    return values | dict(zip((argument.name for argument in known), node.args, strict=False)) | dict(node.kwargs)


def _check(node: Any, given: dict[str, Any], tensors: tuple[Any, ...]) -> None:
    """Raise the reason why `fireiron.attention` does not compute a node."""
    if given.get("dropout_p"):
        raise CannotStateError("attention with dropout")
    if given.get("attn_bias") is not None or given.get("attn_mask") is not None:
        raise CannotStateError("attention with a bias or a mask in memory")
    if any(user.args[1] != 0 and user.users for user in node.users):
        raise CannotStateError("the backward pass reads other results of attention")
    if any(type_of(tensor) not in TYPES for tensor in tensors):
        raise CannotStateError("attention of other types than float16 and bfloat16")
    for tensor in tensors:
        shape_of(tensor)  # raises for symbolic extents
        check_strides(tensor)
    *_, elements = shape_of(tensors[0])
    if elements % 8 or any(tensor.meta["val"].stride()[-1] != 1 for tensor in tensors):
        raise CannotStateError("heads whose elements are not contiguous, or not a multiple of 8")


__all__ = ["NAMES", "replaced"]
