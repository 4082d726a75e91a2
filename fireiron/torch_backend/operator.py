"""The operator of a region, `fireiron::derived`: its definition and its strategy as one text, so that a cached graph needs nothing else."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fireiron import operators
from fireiron.function import Function, function
from fireiron.language.strategy import Strategy
from fireiron.specs.fused import Fused
from fireiron.specs.fused_texts import arguments_of
from fireiron.values.machine import bfloat16


def text_of(definition: Fused, sizes: Mapping[str, int], strategy: Strategy | None) -> str:
    """Return a definition with its extents, and a strategy for it, as one text."""
    stored = None if strategy is None else strategy.to_json()
    words = arguments_of(definition.kind)  # type: ignore[arg-type]
    words["types"] = {name: str(dtype) for name, dtype in words.get("types", {}).items()}
    return json.dumps({"definition": words, "sizes": dict(sizes), "strategy": stored})


@functools.lru_cache(maxsize=1024)
def program_of(text: str) -> Function:
    """Return the function of a text of `text_of`."""
    content = json.loads(text)
    strategies = () if content["strategy"] is None else (Strategy.from_json(content["strategy"]),)
    return function(Fused(**content["definition"]), strategies, sizes=content["sizes"])


def results_of(text: str) -> list[tuple[tuple[int, ...], str]]:
    """Return the shape and the element type of each result."""
    of = program_of(text)
    return [(tuple(of.sizes[dim] for dim in of.dims[name]), of.types[name]) for name in of.outputs]


def run(arrays: Sequence[Any], text: str) -> list[Any]:
    """Launch the kernel of a region on tensors."""
    results = program_of(text)(*map(as_bytes, arrays))
    return list(results) if isinstance(results, tuple) else [results]


def simulate(arrays: Sequence[Any], text: str) -> list[Any]:
    """Run the kernel of a region in the simulator, for tensors in host memory."""
    of = program_of(text)
    results = of(*map(as_numpy, arrays))
    return [_from_numpy(result) for result in (results if isinstance(results, tuple) else (results,))]


def as_bytes(tensor: Any) -> Any:
    """Return the bytes of conditions, which are 0 or 1, and other tensors unchanged."""
    import torch

    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def as_numpy(tensor: Any) -> Any:
    """Return a tensor as an array of NumPy, which has bfloat16 by another package."""
    import torch

    tensor = as_bytes(tensor)
    if tensor.dtype != torch.bfloat16:
        return tensor.detach().numpy()
    return tensor.detach().view(torch.int16).numpy().view(bfloat16.to_numpy())


def _from_numpy(array: Any) -> Any:
    """Return an array as a tensor."""
    import torch

    is_bfloat16 = str(array.dtype) == "bfloat16"
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)


@functools.cache
def register() -> Any:
    """Register the operator, and return it."""
    import torch

    def shaped(arrays: Sequence[Any], text: str) -> list[Any]:
        return [arrays[0].new_empty(shape, dtype=getattr(torch, kind)) for shape, kind in results_of(text)]

    with operators.registering:
        library = torch.library.Library("fireiron", "FRAGMENT")
        library.define("derived(Tensor[] arrays, str program) -> Tensor[]")
        library.impl("derived", run, "CUDA")
        library.impl("derived", simulate, "CPU")
        torch.library.register_fake("fireiron::derived", shaped, lib=library)
    return library


def operator() -> Any:
    """Return the operator."""
    import torch

    register()
    return torch.ops.fireiron.derived.default


__all__ = ["as_bytes", "as_numpy", "operator", "program_of", "register", "results_of", "text_of"]
