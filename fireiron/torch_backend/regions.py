"""Divide a graph into regions that one definition states each.

A node joins the regions of its operands, as long as a definition states them together, and no path leads out of a region and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.operations import (
    EXTREMES,
    FUNCTIONS,
    OF_SEVERAL,
    PRODUCTS,
    REDUCTIONS,
    SCANS,
    is_inlined,
    name_of,
    sources_of,
    type_of,
    users_of,
)
from fireiron.torch_backend.stating import Statement

MOST_NODES: Final = 64
"""Nodes of a region."""

NAMES: Final = frozenset((*FUNCTIONS, *REDUCTIONS, *PRODUCTS, *SCANS, *EXTREMES, *OF_SEVERAL))
"""Operations that may belong to a region."""


@attrs.define(eq=False)
class Region:
    """Nodes of a graph that one definition states, in topological order."""

    nodes: tuple[Any, ...]

    @property
    def title(self) -> str:
        """The names of its operations."""
        return " ".join(name_of(node) for node in self.nodes if name_of(node))


def is_item(node: Any) -> bool:
    """Whether a node is one of the results of another node."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


class Regions:
    """The regions of a graph. `refused` has the reasons against nodes that belong to none, by node.

    `apart` has nodes that belong to none in any case, with the reasons.
    """

    def __init__(self, graph: Any, apart: Mapping[Any, str] | None = None) -> None:
        self.nodes = list(graph.nodes)
        self.apart = apart or {}
        self.order = {node: place for place, node in enumerate(self.nodes)}
        self.region_of: dict[Any, Region] = {}
        self.refused: dict[Any, str] = {}
        for node in self.nodes:
            self._place(node)

    def __iter__(self) -> Iterator[Region]:
        return iter(dict.fromkeys(self.region_of[node] for node in self.nodes if node in self.region_of))

    def _place(self, node: Any) -> None:
        """Add a node to the regions of its operands, or make a region of it."""
        name = name_of(node)
        if is_item(node):
            self._join_item(node)
            return
        if node in self.apart:
            self.refused[node] = self.apart[node]
            return
        if name not in NAMES or is_inlined(node):
            if node.op == "call_function" and not is_inlined(node):
                self.refused[node] = "no formula states this operation"
            return
        own = list(dict.fromkeys(self.region_of[source] for source in sources_of(node) if source in self.region_of))
        own.sort(key=lambda region: self.order[region.nodes[-1]], reverse=True)
        reason = ""
        for regions in [own] * (len(own) > 1) + [[region] for region in own] + [[]]:
            nodes = self._union(node, regions)
            try:
                self._check(nodes)
            except (CannotStateError, ArgumentError) as error:
                reason = error.headline if isinstance(error, ArgumentError) else str(error)
                continue
            joined = Region(nodes)
            self.region_of |= dict.fromkeys(nodes, joined)
            return
        self.refused[node] = reason

    def _join_item(self, node: Any) -> None:
        """Add one of several results to the region of its node."""
        region = self.region_of.get(node.args[0])
        if region is not None:
            region.nodes = (*region.nodes, node)
            self.region_of[node] = region

    def _union(self, node: Any, regions: Sequence[Region]) -> tuple[Any, ...]:
        every = {node, *(one for region in regions for one in region.nodes)}
        return tuple(sorted(every, key=self.order.__getitem__))

    def _check(self, nodes: Sequence[Any]) -> None:
        """Raise `CannotStateError` if no definition states nodes, or if they depend on each other through others."""
        if len(nodes) > MOST_NODES:
            raise CannotStateError(f"more than {MOST_NODES} operations")
        if self._returns(set(nodes)):
            raise CannotStateError("a path through other operations")
        outputs = outputs_of(nodes, partial=True)
        statement = Statement(nodes, outputs)
        if outputs:
            statement.stated("definition")

    def _returns(self, nodes: set[Any]) -> bool:
        """Whether a path leads out of nodes and back, where a region counts as one node."""
        first = min(map(self.order.__getitem__, nodes))
        seen = set(nodes)
        stack = [user for node in nodes for user in users_of(node) if user not in nodes]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            together = self.region_of[node].nodes if node in self.region_of and node not in nodes else (node,)
            together = tuple(one for one in together if one not in nodes)
            seen.update(together)
            for member in together:
                for user in users_of(member):
                    if user in nodes:
                        return True
                    if user not in seen and self.order[user] >= first:
                        stack.append(user)
        return False


def outputs_of(nodes: Sequence[Any], partial: bool = False) -> list[Any]:
    """Return the nodes that others read, or, with `partial`, that are also without readers among the nodes so far."""
    members = set(nodes)
    every = [node for node in nodes if name_of(node) not in OF_SEVERAL]
    if not partial:
        return [node for node in every if any(user not in members for user in users_of(node))]
    read = {source for node in nodes for source in sources_of(node)}
    return [node for node in every if node not in read and type_of(node) != "torch.bool"]


__all__ = ["Region", "Regions", "is_item", "outputs_of"]
