"""Static checks of the kernel IR: races, registers and shared memory that nothing was written to, bounds, boxes of TMA, alignment, bank
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

PROMISES = (
    check_races, check_tickets, check_products, check_kept, check_loaded, check_filled, check_bounds, check_boxes, check_alignment,
    check_resources,
)  # fmt: skip
"""The checks that may report an error. Compilation runs all of them before it makes code."""

ADVICE = (check_banks, check_coalescing, check_ineffective)
"""The checks that report warnings and notes alone: a kernel with any of them is right, and may be slow."""

CHECKS = (*PROMISES, *ADVICE)
"""All checks, each from a `Scene` to findings."""


def check(kernel: Kernel) -> Findings:
    """All findings about a final kernel, errors first."""
    scene = Scene(kernel)
    return ordered(finding for one in CHECKS for finding in one(scene))


def safety(kernel: Kernel) -> Findings:
    """The errors among the findings: each of them stops compilation."""
    scene = Scene(kernel)
    return ordered(finding for promise in PROMISES for finding in promise(scene) if finding.severity == "error")


__all__ = [
    "ADVICE",
    "CHECKS",
    "PROMISES",
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
