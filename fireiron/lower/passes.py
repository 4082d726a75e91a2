"""The passes from the program of a tree to the final kernel IR, in their order."""

from __future__ import annotations

from collections.abc import Callable

from fireiron.ir import Kernel
from fireiron.lower.allocate import allocate
from fireiron.lower.alternate import alternate
from fireiron.lower.asynchronous import asynchronous
from fireiron.lower.chain import chain
from fireiron.lower.clamp import clamp
from fireiron.lower.cluster import cluster
from fireiron.lower.covered import covered
from fireiron.lower.distribute import distribute
from fireiron.lower.divide import divide
from fireiron.lower.fence import fence
from fireiron.lower.guard import guard
from fireiron.lower.pin import pin
from fireiron.lower.pipeline import pipeline
from fireiron.lower.products import products
from fireiron.lower.rotate import rotate
from fireiron.lower.settle import settle
from fireiron.lower.specialize import specialize
from fireiron.lower.synchronize import synchronize
from fireiron.lower.vectorize import vectorize
from fireiron.lower.wait import wait
from fireiron.lower.walk import prune

Passes = tuple[tuple[str, Callable[[Kernel], Kernel]], ...]

SEQUENTIAL: Passes = (
    ("pipeline", pipeline),
    ("rotate", rotate),
    ("settle", settle),
    ("allocate", allocate),  # before the passes that enumerate accesses: what does not fit is refused at once
    ("distribute", distribute),
    ("vectorize", vectorize),
    ("asynchronous", asynchronous),
    ("prune", prune),
    ("specialize", specialize),
    ("alternate", alternate),
    ("products", products),
)
"""The passes that see a program without any synchronisation."""

PASSES: Passes = (
    *SEQUENTIAL,
    ("synchronize", synchronize),
    ("wait", wait),
    ("fence", fence),
    ("pin", pin),
    ("guard", guard),
    ("clamp", clamp),
    ("covered", covered),
    ("cluster", cluster),
    ("chain", chain),
    ("divide", divide),
)
"""The passes after the walk, in order; each maps IR to IR and can be printed (see docs/pipeline.md)."""

__all__ = ["PASSES", "SEQUENTIAL", "Passes"]
