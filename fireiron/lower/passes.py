"""The passes from the program of a tree to the final kernel IR, in their order."""

from __future__ import annotations

from collections.abc import Callable

from fireiron.ir import Kernel
from fireiron.lower.allocate import allocate
from fireiron.lower.asynchronous import asynchronous
from fireiron.lower.cluster import cluster
from fireiron.lower.defer import defer
from fireiron.lower.distribute import distribute
from fireiron.lower.divide import divide
from fireiron.lower.edge_versioning import edge_versioning
from fireiron.lower.fence import fence
from fireiron.lower.fold_single_trip import fold_single_trip
from fireiron.lower.guard import guard
from fireiron.lower.order_mma import order_mma
from fireiron.lower.pipeline import pipeline
from fireiron.lower.programmatic_launch import programmatic_launch
from fireiron.lower.separate_masks import separate_masks
from fireiron.lower.sink_relu import sink_relu
from fireiron.lower.specialize import specialize
from fireiron.lower.store_rings import store_rings
from fireiron.lower.synchronize import synchronize
from fireiron.lower.unused_releases import unused_releases
from fireiron.lower.vectorize import vectorize
from fireiron.lower.wait import wait
from fireiron.lower.walk import prune
from fireiron.lower.wgmma_waits import wgmma_waits
from fireiron.lower.wrap_boxes import wrap_boxes
from fireiron.lower.zero_init_elision import zero_init_elision

Passes = tuple[tuple[str, Callable[[Kernel], Kernel]], ...]

SEQUENTIAL: Passes = (
    ("pipeline", pipeline),
    ("store_rings", store_rings),
    ("defer", defer),
    ("zero_init_elision", zero_init_elision),
    ("allocate", allocate),  # before the passes that enumerate accesses: a kernel that does not fit is refused at once
    ("distribute", distribute),
    ("vectorize", vectorize),
    ("asynchronous", asynchronous),
    ("prune", prune),
    ("specialize", specialize),
    ("order_mma", order_mma),
    ("wgmma_waits", wgmma_waits),
)
"""The passes before barriers are placed."""

PASSES: Passes = (
    *SEQUENTIAL,
    ("unused_releases", unused_releases),
    ("synchronize", synchronize),
    ("wait", wait),
    ("fence", fence),
    ("fold_single_trip", fold_single_trip),
    ("wrap_boxes", wrap_boxes),
    ("guard", guard),
    ("sink_relu", sink_relu),
    ("edge_versioning", edge_versioning),
    ("separate_masks", separate_masks),
    ("cluster", cluster),
    ("programmatic_launch", programmatic_launch),
    ("divide", divide),
)
"""The passes after the walk, in order; each maps IR to IR and can be printed (see docs/pipeline.md)."""

__all__ = ["PASSES", "SEQUENTIAL", "Passes"]
