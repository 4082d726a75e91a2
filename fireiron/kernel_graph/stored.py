"""Kernel graphs as JSON, without loss: the strategies are stored as `Strategy.to_json` stores them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fireiron.errors import FireironError, StoreError
from fireiron.language.store.documents import VERSION, check_head, parsed, pretty
from fireiron.language.strategy import Strategy

if TYPE_CHECKING:
    from fireiron.kernel_graph.graph import KernelGraph

T = TypeVar("T")

KIND: Final = "kernel graph"

_FIELDS: Final[dict[str, type]] = {"name": str, "kernels": dict, "connect": dict, "outputs": list}


def dumps(graph: KernelGraph) -> str:
    """Return a graph as JSON. Raises: StoreError if a strategy cannot be stored without loss."""
    kernels = {}
    for name, strategy in graph.kernels:
        try:
            kernels[name] = json.loads(strategy.to_json())
        except StoreError as error:
            raise error.located(within=f"the kernel {name}") from None
    fields = {"name": graph.name, "kernels": kernels, "connect": dict(graph.connect), "outputs": list(graph.outputs)}
    return pretty({"fireiron": KIND, "version": VERSION, KIND: fields}) + "\n"


def loads(text: str, make: Callable[..., T]) -> T:
    """Return the graph of a text made by `dumps`; `make` is its class. Raises: StoreError with the position of an error."""
    document = parsed(text)
    check_head(document, KIND)
    fields = _fields(document[KIND])
    kernels = {name: _strategy(name, part) for name, part in fields["kernels"].items()}
    try:
        return make(fields["name"], kernels, fields["connect"], fields["outputs"])
    except StoreError:
        raise
    except FireironError as error:
        raise StoreError(error.asked, got=error.got, legal=error.legal, hint=error.hint, at=f"$.{KIND}") from None


def _fields(fields: Any) -> dict[str, Any]:
    """Return the fields. Refuse missing, unknown and wrong ones."""
    if not isinstance(fields, dict):
        raise StoreError("not an object", got=fields, at=f"$.{KIND}")
    if set(fields) != set(_FIELDS):
        odd = sorted(set(fields) ^ set(_FIELDS))[0]
        raise StoreError(f"the field {odd!r} is {'missing' if odd in _FIELDS else 'unknown'}", at=f"$.{KIND}")
    for name, kind in _FIELDS.items():
        if not isinstance(fields[name], kind):
            raise StoreError(f"the field {name!r} has a wrong type", got=fields[name], at=f"$.{KIND}.{name}")
    return fields


def _strategy(name: str, document: Any) -> Strategy:
    try:
        return Strategy.from_json(json.dumps(document))
    except StoreError as error:
        raise error.located(within=f"the kernel {name}") from None


__all__ = ["KIND", "dumps", "loads"]
