"""Faults planted in the final IR of kernels, by kinds, and who finds them.

    kind         what a kind is, and how a place of a kernel is changed
    synchronization, rings, indices, resources    the kinds
    kernels      kernels to plant them in, drawn
    detectors    who finds a fault: verifier, static checks, shadow memory, values

A kind is a function from a kernel to all places where it can be planted. A new one is a row of a table in the file it belongs to; the
subject `faults` draws it from then on.
"""

from campaign.faults import indices, resources, rings, synchronization
from campaign.faults.kind import Kind, Planted

KINDS: tuple[Kind, ...] = (*synchronization.KINDS, *rings.KINDS, *indices.KINDS, *resources.KINDS)
"""All kinds of faults."""

__all__ = ["KINDS", "Kind", "Planted"]
