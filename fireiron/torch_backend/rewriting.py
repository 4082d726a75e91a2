"""Replace the regions of a graph by calls of derived kernels."""

from __future__ import annotations

import math
import operator as python_operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.cost.constants import CONSTANTS
from fireiron.cost.functions import delay_us, instructions, instructions_us
from fireiron.derive.default import FEW
from fireiron.derive.derivation import Derivation, written
from fireiron.derive.facts import Facts
from fireiron.derive.rules import RULES
from fireiron.derive.search import LAST_RESORT, NoStrategyError, Search
from fireiron.errors import FireironError
from fireiron.front.place import target_of
from fireiron.front.traced import Described
from fireiron.torch_backend import attention, convolutions
from fireiron.torch_backend.attention import NAMES as ATTENTION
from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.operations import COPIES, FUNCTIONS, PRODUCTS, REDUCTIONS, SCANS, name_of, sources_of, type_of, users_of
from fireiron.torch_backend.operator import as_bytes, as_numpy, operator, program_of, text_of
from fireiron.torch_backend.regions import Region, Regions, is_item, outputs_of
from fireiron.torch_backend.report import Left, Report, Taken
from fireiron.torch_backend.stating import Stated, Statement
from fireiron.values.machine import as_architecture

WITH_BIAS: Final = ("add", "convert_element_type", "getitem")
"""Operations after a product that its library call does, too."""


FUSIBLE: Final = frozenset((*FUNCTIONS, *REDUCTIONS, "var_mean", "cat", "gather", "index", "slice", "select", "max", "min"))
"""Operations into whose kernels Inductor fuses functions of elements."""


POOLS: Final = frozenset(("avg_pool2d", "avg_pool3d", "_low_memory_max_pool_with_offsets"))
"""Operations into whose kernels Inductor fuses functions of their results."""


SLOWER: Final = 1.6
"""Least ratio of a predicted time to that of Inductor's kernel at which a region is left. Inductor's kernels mostly reach the bandwidth or
the rate of instructions. The model predicts up to 1.54 times the time of rows (2026-11-30, H200), so a lower ratio would leave faster
kernels."""

SLOWER_SCAN: Final = 2.2
"""The same for scans, which Inductor computes at 0.4 to 0.8 of the bandwidth: scans predicted at 1.95 took 1.0 (2026-12-01, H200)."""

SINGLE: Final = 2
"""Times of the prediction that a kernel may take which loads elements one by one: 1.1 to 3.1 (2026-12-01, H200, reductions of odd rows)."""

LIBRARY: Final = 0.81
"""Time of the library's product relative to the prediction of the derived one: 165 to 180 and 206 us (2026-12-01, H200, float16, 4096 cubed
and 1024 x 8192 x 8192)."""

GAIN: Final = 0.95
"""Most time of a product with functions, relative to separate kernels: one that was predicted at 0.98 took 1.01 (2026-12-01, H200)."""

SHORT: Final = 3.0
"""Microseconds that a kernel may take in addition to its bytes."""

LANES: Final = 128
"""Threads of a warpgroup, which share a tile of `wm` x `wn` results."""

FEWEST: Final = 3
"""Candidates of the derivation of a product without its epilogue."""


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
        self.images: set[Any] = set()  # results of convolutions that Inductor stores with the channels last
        self.computed: dict[Any, Any] = {}  # the result of a call, by the node that it replaces: later regions read it

    def run(self) -> Report:
        """Replace the regions, and return what was taken and what was left."""
        layouts = convolutions.prepared(self.module, self.role == "inference") if self._on_device() else []
        self.images = {layout.packed for layout in layouts}
        known = {node for layout in layouts for node in (layout.forced, layout.packed)}
        answers = self._decided(known)
        for region in self._fused_by_inductor(answers):
            del answers[region]
            self.left.append(Left(region.title, "Inductor computes it in the kernel of an operation before or after it"))
        for region, answer in answers.items():
            self._take(region, answer)
        for node in [node for node in self.graph.nodes if name_of(node) in ATTENTION]:
            self._attend(node)
        convolutions.restore(self.graph, layouts)
        if self.taken or layouts:
            in_order(self.graph)
            self.graph.eliminate_dead_code()
            self.graph.lint()
            self.module.recompile()
        return Report(self.role, tuple(self.taken), tuple(self.left))

    def _decided(self, known: Collection[Any]) -> dict[Region, _Answer]:
        """Return the regions that are taken, with their strategies, and add the reasons against the others to the report.

        What follows a product that the library computes is divided again without it: it may belong to the operations after it.
        """
        decided: dict[tuple[Any, ...], _Answer | str] = {}
        apart: dict[Any, str] = {}
        while True:
            regions = Regions(self.graph, apart)
            for region in regions:
                if region.nodes not in decided:
                    decided[region.nodes] = self._answered(region, apart)
            more = {node: reason for region in regions if isinstance(reason := decided[region.nodes], str) for node in _divided(region)}
            if not more:
                break
            apart |= more
        for node, reason in regions.refused.items():
            if name_of(node) not in ATTENTION and node not in known:
                self.left.append(Left(name_of(node) or str(node.target), reason))
        answers: dict[Region, _Answer] = {}
        for region in regions:
            answer = decided[region.nodes]
            if isinstance(answer, str):
                self.left.append(Left(region.title, answer))
            else:
                answers[region] = answer
        return answers

    def _on_device(self) -> bool:
        """Whether results of convolutions are on a device of which regions are taken."""
        nodes = [node for node in self.graph.nodes if name_of(node) == "convolution"]
        return bool(nodes) and all(node.meta["val"].device.type == "cuda" or self.options.simulate for node in nodes)

    # ------------------------------------------------------------------------------------------ one region

    def _answered(self, region: Region, apart: Collection[Any] = ()) -> _Answer | str:
        """Return the definition and the derived strategy of a region, or why it is left. `apart` are products that the library computes."""
        try:
            device = self._device(region.nodes)
            self._check_worth(region, apart)
            stated = Statement(region.nodes, outputs_of(region.nodes)).stated("region")
            if not stated.arrays:
                raise CannotStateError("no operand is an array")
            if self._turns(stated):
                raise CannotStateError("its results have another order of elements than images with the channels last")
            answer = self._derived(stated, device)
            self._check_time(region, stated, answer, device)
        except (CannotStateError, FireironError) as error:
            return _reason(error)
        return _Answer(stated, answer)

    def _check_time(self, region: Region, stated: Stated, answer: Derivation, device: int | None) -> None:
        """Raise the reason if separate kernels of the library and of Inductor are predicted to be faster than one of a region."""
        gpu = Facts(answer.spec, answer.target).gpu
        bandwidth = gpu.memory_gb_s * 1000 * CONSTANTS.read_share
        moved = sum(map(_bytes, {*(node for node, _ in stated.arrays.values()), *stated.results.values()})) / bandwidth
        count = instructions(stated.definition.fused_definition, stated.sizes)
        copied = copies_us(stated.results.values(), bandwidth)
        products = [node for node in region.nodes if name_of(node) in PRODUCTS]
        if not products:
            least = CONSTANTS.launch_us + max(moved, instructions_us(count, gpu))
            slower = SLOWER_SCAN if any(name_of(node) in SCANS for node in region.nodes) else SLOWER
            if SINGLE * answer.us + copied > slower * least + SHORT and _loads_singles(region, stated, answer):
                raise CannotStateError(f"{answer.us:.3g} us predicted, but up to {SINGLE} times, because it loads single elements")
            if answer.us + copied > slower * least + SHORT:
                copies = f" and {copied:.3g} us for copies of its results" if copied else ""
                raise CannotStateError(f"{answer.us:.3g} us predicted{copies}, but its bytes and functions take {least:.3g} us")
            return
        (product,) = products
        values = answer.chosen.values
        per_thread = values.get("wm", 1) * values.get("wn", 1) // LANES
        together = answer.us + copied + delay_us(count, product.meta["val"].numel(), per_thread, gpu)
        plain = self._derived(Statement([product], [product]).stated("product"), device, FEWEST)
        apart = LIBRARY * plain.us
        if not _is_followed(region):
            operands = sum(_bytes(node) for node in product.all_input_nodes) / bandwidth
            after = max(max(moved - operands, 0) + _bytes(product) / bandwidth, instructions_us(count, gpu))
            apart += CONSTANTS.launch_us + after
        if together > GAIN * apart:
            others = "what follows computes the functions" if _is_followed(region) else "a kernel after it"
            raise CannotStateError(f"{together:.3g} us predicted with its functions, {apart:.3g} us for the product and {others}")

    def _fused_by_inductor(self, answers: Mapping[Region, _Answer]) -> list[Region]:
        """Return the regions of functions of elements that read from, or are read by, operations that Inductor compiles.

        Inductor computes such functions in the kernel of the other operation, so a separate kernel would move more bytes.
        """
        fused: list[Region] = []
        while True:
            members = {node: region for region in answers if region not in fused for node in region.nodes}
            more = [region for region in answers if region not in fused and self._joins(region, answers[region], members, answers)]
            if not more:
                return fused
            fused += more

    def _joins(self, region: Region, answer: _Answer, members: Mapping[Any, Region], answers: Mapping[Region, _Answer]) -> bool:
        """Whether Inductor computes a region in the kernel of another operation."""
        if any(name_of(node) not in FUNCTIONS for node in region.nodes):
            return False
        sums = {answers[other].stated.results[name] for other in set(members.values()) for name in answers[other].stated.sums}
        own = set(region.nodes)
        sources = [source for node in region.nodes for source in sources_of(node) if source not in own]
        readers = [user for node in region.nodes for user in users_of(node) if user not in own]
        origins = [source.args[0] if is_item(source) else source for source in sources]
        near = [node for node in (*origins, *readers) if node.op == "call_function" and node not in members and not is_item(node)]
        pooled = any(name_of(origin) in POOLS for origin in origins)
        return pooled or any(name_of(node) in FUSIBLE for node in near) or any(source in sums for source in sources)

    def _take(self, region: Region, answer: _Answer) -> None:
        """Replace a region by its derived kernel, or leave it if its kernel cannot be compiled."""
        stated, derived = answer.stated, answer.derived
        text = text_of(stated.definition, stated.sizes, derived.chosen.strategy)
        device = self._device(region.nodes)
        if device is not None:
            try:
                _compile(text, stated, device)
            except FireironError as error:
                self.left.append(Left(region.title, _reason(error)))
                return
        self._replace(region, stated, text)
        because = derived.reasons[0].choice + (f": {derived.reasons[0].because}" if derived.reasons[0].because else "")
        formulas = "\n".join(str(step.formula) for step in stated.definition.fused_definition.steps)
        self.taken.append(Taken(region.title, formulas, written(derived.strategy), because, derived.us))

    def _attend(self, node: Any) -> None:
        """Replace attention by the operator of `fireiron.attention`."""
        try:
            device = self._device(node.all_input_nodes)
            self.taken.append(attention.replaced(self.graph, node, device, self.options.target or target_of(device)))
        except (CannotStateError, FireironError) as error:
            self.left.append(Left(name_of(node), _reason(error)))

    def _device(self, nodes: Sequence[Any]) -> int | None:
        """Return the GPU of nodes; None for the simulator."""
        devices = {node.meta["val"].device for node in nodes if hasattr(node.meta.get("val"), "device")}
        (device, *others) = devices
        if others:
            raise CannotStateError("tensors on several devices")
        if device.type == "cuda":
            return int(device.index or 0)
        if device.type == "cpu" and self.options.simulate:
            return None
        raise CannotStateError(f"tensors on {device.type}; the option simulate=True runs them in the simulator")

    def _check_worth(self, region: Region, apart: Collection[Any]) -> None:
        """Raise the reason if the library's or Inductor's kernel of a region is better by rule."""
        names = [name_of(node) for node in region.nodes]
        if not set(names) - {*COPIES, ""}:
            raise CannotStateError("only copies")
        if self.images and any(name_of(user) == "convolution" for node in region.nodes for user in users_of(node)):
            raise CannotStateError("a convolution reads it, for which Inductor stores it with the channels last")
        if not {*names} - {*FUNCTIONS, ""} and any(source in apart for node in region.nodes for source in sources_of(node)):
            raise CannotStateError("functions of a product of the library, for which Inductor's kernel moves the same bytes")
        products = [node for node in region.nodes if name_of(node) in PRODUCTS]
        if not products:
            return
        if set(names) - {""} <= {*PRODUCTS, *WITH_BIAS}:
            raise CannotStateError("a product without an epilogue, for which the library's is used")
        if type_of(products[0]) == "torch.float32" and not self.options.float32_products:
            raise CannotStateError("a float32 product, for which cuBLAS is faster; the option float32_products=True takes it")

    def _turns(self, stated: Stated) -> bool:
        """Whether results have the elements of images with the channels last, in another order: 0.88 of Inductor (2026-12-01, H200)."""
        images = [node for node, _ in stated.arrays.values() if node in self.images]
        largest = max((node.meta["val"].numel() for node in images), default=math.inf)
        return any(result.meta["val"].numel() >= largest for result in stated.results.values())

    def _derived(self, stated: Stated, device: int | None, candidates: int | None = None) -> Derivation:
        """Return the derived strategy of a definition for the strides of its arrays."""
        text = text_of(stated.definition, stated.sizes, None)
        spec = program_of(text).spec(*_described(text, stated, device))
        target = self.options.target or target_of(device)
        return Search(Facts(spec, as_architecture(target)), RULES, candidates=candidates or self.options.candidates, resorts=False).run()

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
                node = self.computed.get(node, node)
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
            self.computed[node] = result
            node.replace_all_uses_with(result, delete_user_cb=lambda user, own=frozenset(region.nodes): user not in own)


@attrs.frozen(eq=False)
class _Answer:
    """The definition of a region, and its derived strategy."""

    stated: Stated
    derived: Derivation


def _is_followed(region: Region) -> bool:
    """Whether the kernels that read the results of a product's functions can compute these functions, too."""
    own = set(region.nodes)
    readers = [user for node in outputs_of(region.nodes) for user in users_of(node) if user not in own]
    return bool(readers) and all(name_of(user) in FUSIBLE for user in readers)


def _divided(region: Region) -> list[Any]:
    """Return the products of a region that is left, if it has other operations."""
    products = [node for node in region.nodes if name_of(node) in PRODUCTS]
    return products if len(region.nodes) > len(products) else []


def _compile(text: str, stated: Stated, device: int) -> None:
    """Compile the kernel that the operator launches, so that the first call does not wait. Raises: `FireironError`."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        program_of(text).kernel(*_described(text, stated, device)).ready()


def _described(text: str, stated: Stated, device: int | None) -> list[Any]:
    """Return the inputs of a definition without elements: descriptions for a GPU, or arrays of the simulator."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    arrays: list[Any] = []
    with unset_fake_temporarily():
        for name in program_of(text).inputs:
            node, shape = stated.arrays[name]
            like = node.meta["val"]
            meta = as_bytes(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta").view(shape))
            arrays.append(
                as_numpy(torch.empty_strided(shape, meta.stride(), dtype=meta.dtype)) if device is None else Described(meta, device)
            )
    return arrays


def copies_us(results: Iterable[Any], bandwidth: float) -> float:
    """Return the microseconds in which Inductor copies results of a kernel into concatenations. Its own kernels write there directly.

    Args:
        results: the nodes that a kernel computes.
        bandwidth: the bytes per microsecond that device memory reads or writes.
    """
    copied = [node for node in results if any(name_of(user) == "cat" for user in users_of(node))]
    return sum(CONSTANTS.launch_us + 2 * _bytes(node) / bandwidth for node in copied)


def _loads_singles(region: Region, stated: Stated, answer: Derivation) -> bool:
    """Whether a kernel loads elements one by one, because rows are odd: of 16 bits, to reduce them, or for functions of elements.

    Inductor's kernel of functions of elements has no rows, so that it loads vectors: 0.86 and 0.93 (2026-12-01, H200, float32).
    """
    if answer.chosen.values.get("vector") != 1:
        return False
    largest = max((node.meta["val"] for node, _ in stated.arrays.values()), key=lambda value: value.numel())
    names = [name_of(node) for node in region.nodes]
    reduces = any(name in (*REDUCTIONS, "var_mean") for name in names)
    return bool(largest.element_size() == 2 or reduces or not {*names} - {*FUNCTIONS, ""})


def _bytes(node: Any) -> int:
    """Return the bytes of a node's tensor."""
    value = node.meta["val"]
    return int(value.numel() * value.element_size())


def _reason(error: Exception) -> str:
    for name, reason in (error.refusals if isinstance(error, NoStrategyError) else {}).items():
        if reason.startswith(LAST_RESORT):
            return f"no rule but `{name}` applies: {reason.removeprefix(LAST_RESORT + ': ')}"
    return error.headline if isinstance(error, FireironError) else str(error)


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
