"""Static checks of the kernel IR: races, registers and shared memory that nothing was put into, bounds, boxes of TMA, alignment, bank
conflicts, coalescing, resources, refinements without effect.

May import: values, specs, ir.
"""

from __future__ import annotations

from fireiron.check.alignment import check_alignment
from fireiron.check.banks import check_banks
from fireiron.check.bounds import check_bounds
from fireiron.check.boxes import check_boxes
from fireiron.check.coalescing import check_coalescing
from fireiron.check.filled import check_filled
from fireiron.check.finding import Finding, Findings, ordered, table
from fireiron.check.ineffective import check_ineffective
from fireiron.check.kept import check_kept
from fireiron.check.loaded import check_loaded
from fireiron.check.products import check_products
from fireiron.check.races import check_races
from fireiron.check.resources import check_resources
from fireiron.check.scene import Scene
from fireiron.check.tickets import check_tickets
from fireiron.ir import Kernel

CHECKS = (
    check_races, check_products, check_kept, check_loaded, check_filled, check_bounds, check_boxes, check_alignment, check_banks,
    check_coalescing, check_resources, check_ineffective, check_tickets,
)  # fmt: skip
"""All checks, each from a `Scene` to findings."""


def check(kernel: Kernel) -> Findings:
    """All findings about a final kernel, errors first."""
    scene = Scene(kernel)
    return ordered(finding for one in CHECKS for finding in one(scene))


def safety(kernel: Kernel) -> Findings:
    """Races, bounds, boxes of TMA, alignment and factors that compilers overwrite alone: what decides whether a kernel is right."""
    scene = Scene(kernel)
    parts = (check_races, check_tickets, check_products, check_kept, check_bounds, check_boxes, check_alignment)
    return ordered(finding for one in parts for finding in one(scene))


__all__ = [
    "CHECKS",
    "Finding",
    "Findings",
    "Scene",
    "check",
    "check_alignment",
    "check_banks",
    "check_bounds",
    "check_boxes",
    "check_coalescing",
    "check_filled",
    "check_ineffective",
    "check_kept",
    "check_loaded",
    "check_products",
    "check_races",
    "check_resources",
    "check_tickets",
    "ordered",
    "safety",
    "table",
]
