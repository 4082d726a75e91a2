"""Static checks of the kernel IR: races, uninitialized registers and shared memory, bounds, TMA boxes, alignment, bank conflicts,
coalescing, resources, refinements without effect.

The modules of the checks are imported on first use, because a first call starts the compiler of CUDA C++ before it needs them.

May import: values, specs, ir.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
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

    Check = Callable[[AccessTrace], Iterable[Finding]]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fireiron.check' has no attribute {name!r}")
    return getattr(importlib.import_module("fireiron.check.checks"), name)


def check(kernel: Kernel) -> Findings:
    """All findings about a final kernel, errors first."""
    from fireiron.check.checks import CHECKS

    return _findings(kernel, CHECKS)


def safety(kernel: Kernel) -> Findings:
    """The errors among the findings; each of them stops compilation."""
    from fireiron.check.checks import PROMISES, ordered

    return ordered(finding for finding in _findings(kernel, PROMISES) if finding.severity == "error")


def _findings(kernel: Kernel, checks: Iterable[Check]) -> Findings:
    """The findings of some checks. The parts of a joined kernel are checked as separate launches, and then their order."""
    from fireiron.check.checks import OF_JOINED, AccessTrace, ordered

    pairs = [(part, checks) for part in kernel.joined or (kernel,)] + ([(kernel, OF_JOINED)] if kernel.joined else [])
    traces = [(AccessTrace(one), own) for one, own in pairs]
    return ordered(dict.fromkeys(finding for access_trace, own in traces for one in own for finding in one(access_trace)))


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
