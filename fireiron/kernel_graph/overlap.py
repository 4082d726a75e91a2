"""Add programmatic dependent launch to the kernels of a graph for which it is legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fireiron.check.launch_sequence import OLDEST
from fireiron.decomp.tile import Tile
from fireiron.errors import ArgumentError, FireironError
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.kernel_graph.program import newest
from fireiron.language.strategy import Strategy
from fireiron.refine.programmatic_launch import ProgrammaticLaunch
from fireiron.values.machine import as_architecture

if TYPE_CHECKING:
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.values.machine import Architecture


def overlapped(graph: KernelGraph, architecture: Architecture | str | None) -> KernelGraph:
    """Return the graph in which each kernel after the first has `programmatic_launch()` where that is legal on a target."""
    target = as_architecture(newest(graph) if architecture is None else architecture)
    if target.capability < OLDEST:
        raise ArgumentError(f"with_programmatic_launch: {target} has no programmatic dependent launch", legal="sm_90 or newer")
    first, *others = graph.kernels
    kernels = (first, *((name, _dependent(strategy, target, f"{graph.name}_{name}")) for name, strategy in others))
    return attrs.evolve(graph, kernels=kernels)


def _dependent(strategy: Strategy, target: Architecture, name: str) -> Strategy:
    """Return a strategy with `programmatic_launch()` on the tile that is distributed over blocks; itself if that is not legal."""
    for number in range(sum(isinstance(step, Tile) for step in strategy.steps)):
        try:
            changed = strategy.at(Tile, index=number).refine(ProgrammaticLaunch())
            if changed.program(target, name=name).ir.effects[DependentLaunch].enabled:
                return changed
        except FireironError:
            continue
    return strategy


__all__ = ["overlapped"]
