"""Static checks of the kernel IR: races, uninitialized registers and shared memory, bounds, TMA boxes, alignment, bank conflicts,
coalescing, resources, refinements without effect.

The modules of the checks are imported on first use, because a first call starts the compiler of CUDA C++ before it needs them.

May import: values, specs, ir.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fireiron.ir import Kernel

if TYPE_CHECKING:
    from fireiron.check.checks import (
        ADVICE,
        CHECKS,
        PROMISES,
        AccessTrace,
        Finding,
        Findings,
        check_alignment,
        check_banks,
        check_bounds,
        check_coalescing,
        check_dynamic_scheduler,
        check_ineffective,
        check_joint_tiles,
        check_ptxas_register_hazard,
        check_races,
        check_resources,
        check_tma_boxes,
        check_uninitialized_registers,
        check_uninitialized_shared,
        check_wgmma_registers,
        ordered,
        table,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fireiron.check' has no attribute {name!r}")
    return getattr(importlib.import_module("fireiron.check.checks"), name)


def check(kernel: Kernel) -> Findings:
    """All findings about a final kernel, errors first."""
    from fireiron.check.checks import CHECKS, AccessTrace, ordered

    access_trace = AccessTrace(kernel)
    return ordered(finding for one in CHECKS for finding in one(access_trace))


def safety(kernel: Kernel) -> Findings:
    """The errors among the findings; each of them stops compilation."""
    from fireiron.check.checks import PROMISES, AccessTrace, ordered

    access_trace = AccessTrace(kernel)
    return ordered(finding for promise in PROMISES for finding in promise(access_trace) if finding.severity == "error")


__all__ = [
    "ADVICE",
    "CHECKS",
    "PROMISES",
    "AccessTrace",
    "Finding",
    "Findings",
    "check",
    "check_alignment",
    "check_banks",
    "check_bounds",
    "check_coalescing",
    "check_dynamic_scheduler",
    "check_ineffective",
    "check_joint_tiles",
    "check_ptxas_register_hazard",
    "check_races",
    "check_resources",
    "check_tma_boxes",
    "check_uninitialized_registers",
    "check_uninitialized_shared",
    "check_wgmma_registers",
    "ordered",
    "safety",
    "table",
]
