"""Report refinements without effect on this kernel: `sync` and `no_sync` where the barriers are the same without them.

Some ineffective refinements are rejected elsewhere: `reuse_buffer` if no buffer is dead (`allocate`), and `no_sync` and `reuse_buffer` on
registers (`load`). For all others, `inspect/ineffective.py` omits each refinement from the strategy and compares the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding


def check_ineffective(access_trace: AccessTrace) -> Iterator[Finding]:
    """A note for each ineffective `sync` or `no_sync`, with the line of the strategy and the reason."""
    for point in access_trace.kernel.ineffective:
        if point.require:
            name, buffer = "sync", None
            message = "sync() has no effect: the loop body ends with a block barrier without it; remove it"
        else:
            name, buffer = "no_sync", point.subject
            message = f"no_sync() on the load to {point.subject} has no effect: the barriers are the same without it; remove it"
        yield Finding("ineffective", "note", buffer, message, point.origin, None, {"refinement": name})
