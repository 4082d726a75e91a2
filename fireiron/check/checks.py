"""All checks, those that may report an error first. `fireiron.check` loads them when they are used."""

from __future__ import annotations

from fireiron.check.access_trace import AccessTrace
from fireiron.check.alignment import check_alignment
from fireiron.check.banks import check_banks
from fireiron.check.bounds import check_bounds
from fireiron.check.coalescing import check_coalescing
from fireiron.check.dynamic_scheduler import check_dynamic_scheduler
from fireiron.check.exchange import check_exchange
from fireiron.check.finding import Finding, Findings, ordered, table
from fireiron.check.ineffective import check_ineffective
from fireiron.check.joint_tiles import check_joint_tiles
from fireiron.check.look_back import check_look_back
from fireiron.check.overlap import check_overlap
from fireiron.check.ptxas_register_hazard import check_ptxas_register_hazard
from fireiron.check.races import check_races
from fireiron.check.resources import check_resources
from fireiron.check.tma_boxes import check_tma_boxes
from fireiron.check.uninitialized_registers import check_uninitialized_registers
from fireiron.check.uninitialized_shared import check_uninitialized_shared
from fireiron.check.wgmma_registers import check_wgmma_registers

PROMISES = (
    check_races,
    check_dynamic_scheduler,
    check_joint_tiles,
    check_look_back,
    check_wgmma_registers,
    check_ptxas_register_hazard,
    check_uninitialized_registers,
    check_uninitialized_shared,
    check_bounds,
    check_tma_boxes,
    check_alignment,
    check_resources,
)
"""The checks that may report an error. Compilation runs all of them before it prints code."""

OF_JOINED = (check_overlap, check_exchange, check_resources)
"""The checks of a kernel that was joined from two, which themselves pass all others."""

ADVICE = (check_banks, check_coalescing, check_ineffective)
"""The checks that report only warnings and notes: such a kernel is correct, but may be slow."""

CHECKS = (*PROMISES, *ADVICE)
"""All checks, each from an `AccessTrace` to findings."""


__all__ = [
    "ADVICE",
    "AccessTrace",
    "CHECKS",
    "Finding",
    "Findings",
    "OF_JOINED",
    "PROMISES",
    "check_alignment",
    "check_banks",
    "check_bounds",
    "check_coalescing",
    "check_dynamic_scheduler",
    "check_ineffective",
    "check_joint_tiles",
    "check_look_back",
    "check_overlap",
    "check_ptxas_register_hazard",
    "check_races",
    "check_resources",
    "check_tma_boxes",
    "check_uninitialized_registers",
    "check_uninitialized_shared",
    "check_wgmma_registers",
    "ordered",
    "table",
]
