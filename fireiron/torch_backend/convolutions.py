"""State what Inductor does with convolutions, so that a derived kernel reads their results as Inductor stores them.

Inductor adds a bias in the kernel after a convolution, and stores the results of convolutions of images with the channels last. An operator
that reads them in another order would make it copy them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from fireiron.torch_backend.operations import name_of

CHANNELS_LAST: Final = 0, 2, 3, 1
"""The order of the dimensions of images in memory."""

CHANNELS_SECOND: Final = 0, 3, 1, 2
"""The order of the dimensions of such a tensor in the graph."""


@attrs.frozen(eq=False)
class Layout:
    """The nodes for a convolution: its result, the same with the channels last, its dimensions in that order, and in the usual one."""

    result: Any
    forced: Any
    packed: Any
    usual: Any


def prepared(module: Any, is_inference: bool) -> list[Layout]:
    """Separate biases, and insert nodes with the layout of results; `restore` removes those that nothing reads."""
    for node in list(_convolutions(module.graph)):
        if node.args[2] is not None:
            _separate_bias(module.graph, node)
    return [_laid_out(module.graph, node) for node in list(_with_channels_last(module, is_inference))]


def restore(graph: Any, layouts: list[Layout]) -> None:
    """Let operations of Inductor read convolutions directly, and remove the nodes that no kernel reads."""
    for layout in layouts:
        layout.usual.replace_all_uses_with(layout.result)
        graph.erase_node(layout.usual)
        if not layout.packed.users:
            graph.erase_node(layout.packed)
            graph.erase_node(layout.forced)


def _convolutions(graph: Any) -> Iterator[Any]:
    """Yield the convolutions of batches, with static extents."""
    for node in graph.nodes:
        if name_of(node) == "convolution" and not node.kwargs:
            shape = node.meta["val"].shape
            if all(type(size) is int for size in shape) and len(shape) == len(node.args[1].meta["val"].shape):
                yield node


def _with_channels_last(module: Any, is_inference: bool) -> Iterator[Any]:
    """Yield the convolutions whose results Inductor stores with the channels last, and the graph has in another order."""
    from torch._inductor.graph import GraphLowering

    nodes = [node for node in _convolutions(module.graph) if len(node.meta["val"].shape) == 4]
    if nodes and GraphLowering.decide_layout_opt(module, is_inference=is_inference):
        yield from (node for node in nodes if not node.meta["val"].permute(CHANNELS_LAST).is_contiguous())


def _separate_bias(graph: Any, node: Any) -> None:
    """Replace a convolution by one without bias, and a sum."""
    import torch

    value, bias = node.meta["val"], node.args[2]
    shape = [value.shape[1], *(1 for _ in value.shape[2:])]
    with graph.inserting_before(node):
        bare = graph.call_function(node.target, (*node.args[:2], None, *node.args[3:]))
        column = graph.call_function(torch.ops.aten.view.default, (bias, shape))
        total = graph.call_function(torch.ops.aten.add.Tensor, (bare, column))
    bare.meta, column.meta, total.meta = dict(node.meta), {"val": bias.meta["val"].view(shape)}, dict(node.meta)
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _laid_out(graph: Any, node: Any) -> Layout:
    """Insert the layout of a convolution's result between it and its readers."""
    import torch

    value = node.meta["val"]
    size, channels, height, width = value.shape
    stored = value.new_empty_strided((size, channels, height, width), (channels * height * width, 1, channels * width, channels))
    force, permute = torch.ops.prims.inductor_force_stride_order.default, torch.ops.aten.permute.default
    readers = list(node.users)
    with graph.inserting_after(node):
        forced = graph.call_function(force, (node, list(stored.stride())))
    with graph.inserting_after(forced):
        packed = graph.call_function(permute, (forced, list(CHANNELS_LAST)))
    with graph.inserting_after(packed):
        usual = graph.call_function(permute, (packed, list(CHANNELS_SECOND)))
    forced.meta["val"], packed.meta["val"], usual.meta["val"] = stored, stored.permute(CHANNELS_LAST), stored
    for reader in readers:
        reader.replace_input_with(node, usual)
    return Layout(node, forced, packed, usual)


__all__ = ["Layout", "prepared", "restore"]
