"""Replace the regions of a graph by calls of derived kernels."""

from __future__ import annotations

import operator as python_operator
from typing import Any, Final

import attrs

from fireiron.derive.default import FEW
from fireiron.derive.derivation import Derivation, written
from fireiron.derive.facts import Facts
from fireiron.derive.rules import RULES
from fireiron.derive.search import Search
from fireiron.errors import FireironError
from fireiron.front.place import target_of
from fireiron.front.traced import Described
from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.operations import COPIES, PRODUCTS, name_of, type_of
from fireiron.torch_backend.operator import operator, program_of, text_of
from fireiron.torch_backend.regions import Region, Regions, is_item, outputs_of
from fireiron.torch_backend.report import Left, Report, Taken
from fireiron.torch_backend.stating import Stated, Statement

WITH_BIAS: Final = ("add", "convert_element_type", "getitem")
"""Operations after a product that its library call does, too."""


@attrs.frozen
class Options:
    """Options of the backend.

    - `simulate`: take operations on tensors in host memory, and run them in the simulator: for tests of small sizes.
    - `candidates`: the candidates that a derivation lowers.
    - `float32_products`: take float32 products with epilogues. Their kernels use no tensor cores, and reach 0.7 to 0.95 of cuBLAS.
    - `target`: the target; the default is that of the GPU.
    """

    simulate: bool = False
    candidates: int = FEW
    float32_products: bool = False
    target: str | None = None


class Rewriting:
    """The regions of a graph module that derived kernels compute. `run` replaces them, and returns the report."""

    def __init__(self, module: Any, options: Options, role: str = "inference") -> None:
        self.module, self.graph, self.options, self.role = module, module.graph, options, role
        self.taken: list[Taken] = []
        self.left: list[Left] = []

    def run(self) -> Report:
        """Replace the regions, and return what was taken and what was left."""
        regions = Regions(self.graph)
        self.left += [Left(name_of(node) or str(node.target), reason) for node, reason in regions.refused.items()]
        for region in regions:
            try:
                self._take(region)
            except (CannotStateError, FireironError) as error:
                self.left.append(Left(region.title, error.headline if isinstance(error, FireironError) else str(error)))
        if self.taken:
            in_order(self.graph)
            self.graph.eliminate_dead_code()
            self.graph.lint()
            self.module.recompile()
        return Report(self.role, tuple(self.taken), tuple(self.left))

    # ------------------------------------------------------------------------------------------ one region

    def _take(self, region: Region) -> None:
        """Derive the kernel of a region, and replace the region. Raises: an error with the reason if it is left to Inductor."""
        device = self._device(region)
        self._check_worth(region)
        stated = Statement(region.nodes, outputs_of(region.nodes)).stated("region")
        answer = self._derived(stated, device)
        if answer.chosen.sketch.last_resort:
            raise CannotStateError(f"no rule but `{answer.chosen.skeleton}` applies: {answer.chosen.sketch.because}")
        self._replace(region, stated, text_of(stated.definition, stated.sizes, answer.chosen.strategy))
        because = answer.reasons[0].choice + (f": {answer.reasons[0].because}" if answer.reasons[0].because else "")
        formulas = "\n".join(str(step.formula) for step in stated.definition.fused_definition.steps)
        self.taken.append(Taken(region.title, formulas, written(answer.strategy), because, answer.us))

    def _device(self, region: Region) -> int | None:
        """Return the GPU of a region; None for the simulator."""
        devices = {node.meta["val"].device for node in region.nodes if hasattr(node.meta.get("val"), "device")}
        (device, *others) = devices
        if others:
            raise CannotStateError("tensors on several devices")
        if device.type == "cuda":
            return int(device.index or 0)
        if device.type == "cpu" and self.options.simulate:
            return None
        raise CannotStateError(f"tensors on {device.type}; the option simulate=True runs them in the simulator")

    def _check_worth(self, region: Region) -> None:
        """Raise the reason if the library's or Inductor's kernel of a region is better by rule."""
        names = [name_of(node) for node in region.nodes]
        if not set(names) - {*COPIES, ""}:
            raise CannotStateError("only copies")
        products = [node for node in region.nodes if name_of(node) in PRODUCTS]
        if not products:
            return
        if set(names) - {""} <= {*PRODUCTS, *WITH_BIAS}:
            raise CannotStateError("a product without an epilogue, for which the library's is used")
        if type_of(products[0]) == "torch.float32" and not self.options.float32_products:
            raise CannotStateError("a float32 product, for which cuBLAS is faster; the option float32_products=True takes it")

    def _derived(self, stated: Stated, device: int | None) -> Derivation:
        """Return the derived strategy of a definition for the strides of its arrays."""
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        text = text_of(stated.definition, stated.sizes, None)
        of = program_of(text)
        arrays = []
        with unset_fake_temporarily():
            for name in of.inputs:
                node, shape = stated.arrays[name]
                like = node.meta["val"]
                meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta").view(shape)
                arrays.append(
                    torch.empty_strided(shape, meta.stride(), dtype=like.dtype).numpy() if device is None else Described(meta, device)
                )
        spec = of.spec(*arrays)
        target = self.options.target or target_of(device)
        return Search(Facts(spec, _architecture(target)), RULES, candidates=self.options.candidates).run()

    def _replace(self, region: Region, stated: Stated, text: str) -> None:
        """Replace the outputs of a region by the results of one call."""
        import torch

        of, graph = program_of(text), self.graph
        last = region.nodes[-1]
        with graph.inserting_after(last):
            call = graph.call_function(operator(), ())
        after = call
        inputs = []
        with graph.inserting_before(call):
            for name in of.inputs:
                node, shape = stated.arrays[name]
                same = tuple(node.meta["val"].shape) == shape
                inputs.append(node if same else graph.call_function(torch.ops.aten.view.default, (node, list(shape))))
        call.args = (inputs, text)
        for number, name in enumerate(of.outputs):
            node = stated.results[name]
            with graph.inserting_after(after):
                result = graph.call_function(python_operator.getitem, (call, number))
            value = node.meta["val"]
            result.meta["val"] = value.new_empty(stated.shapes[name], dtype=torch.float32 if name in stated.sums else value.dtype)
            after = result
            if tuple(value.shape) != stated.shapes[name]:
                with graph.inserting_after(after):
                    after = result = graph.call_function(torch.ops.aten.view.default, (result, list(value.shape)))
                result.meta["val"] = value.new_empty(value.shape, dtype=torch.float32 if name in stated.sums else value.dtype)
            if name in stated.sums and value.dtype != torch.float32:
                with graph.inserting_after(after):
                    after = result = graph.call_function(torch.ops.prims.convert_element_type.default, (result, value.dtype))
                result.meta["val"] = value
            node.replace_all_uses_with(result, delete_user_cb=lambda user, own=frozenset(region.nodes): user not in own)


def _architecture(target: str) -> Any:
    from fireiron.values.machine import as_architecture

    return as_architecture(target)


def in_order(graph: Any) -> None:
    """Order nodes so that each follows those that it reads, and otherwise keep their order."""
    done: set[Any] = set()
    waiting = list(graph.nodes)
    order: list[Any] = []
    stack: list[Any] = []
    for node in waiting:
        stack.append(node)
        while stack:
            top = stack[-1]
            missing = [one for one in top.all_input_nodes if one not in done]
            if missing and top not in done:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                order.append(top)
    cursor = None
    for node in order:
        if cursor is not None and node.prev is not cursor:
            cursor.append(node)
        cursor = node


def reported(module: Any, options: Options, role: str) -> Report:
    """Rewrite a graph module, and return the report."""
    return Rewriting(module, options, role).run()


__all__ = ["Options", "Rewriting", "in_order", "is_item", "reported"]
