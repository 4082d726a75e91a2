"""`separate_masks`: mark the loops whose iterations without masks are printed as a separate loop.

The printer divides them (`fireiron.cuda.separated_loops`). To checks and the simulator, the parts are one loop. A loop without conditions
that separate its iterations is not marked.
"""

from __future__ import annotations

from fireiron.frozen import evolve
from fireiron.ir import For, Kernel, Stmt, rewritten, statements
from fireiron.ir.asks.separate_masks import SeparateMasks
from fireiron.ir.plain_iterations import is_separable


def separate_masks(kernel: Kernel) -> Kernel:
    """The kernel with marked loops; the same kernel if no loop requests it."""
    if not any(isinstance(stmt, For) and SeparateMasks in stmt.asks for stmt in statements(kernel.body)):
        return kernel
    return evolve(kernel, body=rewritten(kernel.body, _marked))


def _marked(statement: Stmt) -> tuple[Stmt, ...]:
    if not isinstance(statement, For) or SeparateMasks not in statement.asks:
        return (statement,)
    loop = statement.without(SeparateMasks)
    return (evolve(loop, separated=is_separable(loop)),)
