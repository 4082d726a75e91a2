"""Refinements that changed nothing about this kernel: `sync` and `no_sync` where the barriers stand as they do without them.

Others that might are refused: `reuse_buffer` where no buffer is dead (`allocate`), both on registers (`load`). Of the rest a kernel
knows nothing: `inspect/ineffective.py` leaves each out of the strategy.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding


def check_ineffective(access_trace: AccessTrace) -> Iterator[Finding]:
    """A note for each such refinement, with the line of the strategy and why it changes nothing."""
    for point in access_trace.kernel.ineffective:
        if point.require:
            name, buffer = "sync", None
            message = "sync() has no effect: a barrier of the block stands at the end of the loop's body without it; drop it"
        else:
            name, buffer = "no_sync", point.subject
            message = f"no_sync() on the load to {point.subject} has no effect: the barriers stand as they do without it; drop it"
        yield Finding("ineffective", "note", buffer, message, point.origin, None, {"refinement": name})
