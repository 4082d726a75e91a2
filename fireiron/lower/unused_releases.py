"""`unused_releases`: remove the releases of circular buffers whose stages are filled once, and the warp barriers before them.

    consumers: acquire full(0); use; warp barrier; release empty(0)  -->  acquire full(0); use

A release lets the producer fill the stage again. If the fills have constant numbers below the number of stages, no stage is filled again.
Then nothing waits for its release, and the proxy fence that the pass `fence` inserts before a release is not needed either. The producer
still acquires its stages empty, so that the checks know who may fill them, but the printer omits these waits: they pass at once.

A fill in a loop keeps its releases, because the statements of a loop are the same for all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterable

from fireiron.frozen import evolve
from fireiron.ir import WARP_SCOPE, Acquire, Barrier, Kernel, Release, Ring, StageState, Stmt, rewritten, statements
from fireiron.values.expr import constant


def unused_releases(kernel: Kernel) -> Kernel:
    """The kernel without releases that no fill waits for; the same kernel if there are none."""
    inside = list(statements(kernel.body))
    once = {ring.name: ring for ring in kernel.rings if ring.buffers and _is_filled_once(ring, inside)}
    if not once:
        return kernel
    buffers = {name for ring in once.values() for name in ring.buffers}

    def kept(statement: Stmt) -> tuple[Stmt, ...]:
        match statement:
            case Release(state=StageState.EMPTY) if statement.ring in once:
                return ()
            case Barrier() if statement.scope == WARP_SCOPE and any(order.buffer in buffers for order in statement.orders):
                return _of_others(statement, buffers)
        return (statement,)

    rings = tuple(evolve(ring, refilled=ring.name not in once) for ring in kernel.rings)
    return evolve(kernel, body=rewritten(kernel.body, kept), rings=rings)


def _is_filled_once(ring: Ring, inside: Iterable[Stmt]) -> bool:
    """Whether a ring is filled, but no stage of it twice."""
    fills = [stmt.fill_index for stmt in inside if isinstance(stmt, Acquire) and stmt.ring == ring.name and stmt.state is StageState.EMPTY]
    return bool(fills) and all((number := constant(fill)) is not None and number < ring.stages for fill in fills)


def _of_others(barrier: Barrier, buffers: set[str]) -> tuple[Barrier, ...]:
    """The barrier with the dependences of other buffers; nothing if there are none."""
    orders = tuple(order for order in barrier.orders if order.buffer not in buffers)
    names = ", ".join(dict.fromkeys(order.buffer for order in orders))
    return (evolve(barrier, reason=f"all lanes have read {names}", orders=orders),) if orders else ()


__all__ = ["unused_releases"]
