"""The kernel IR: statements, how they are walked and rewritten, the verifier, and what its readers share.

May import: values, specs. Readers (cuda, sim, check, cost) know the IR and nothing above it.
"""

from fireiron.ir.access import Access, Buffer, Piece, scratch_access, whole_pieces
from fireiron.ir.kernel import Kernel, buffer_table
from fireiron.ir.rewrite import edited, execs, filled, lets, located, rewritten, statements, substituted, variables
from fireiron.ir.statement import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Barrier,
    Comment,
    Commit,
    Completion,
    Exec,
    Fence,
    For,
    Hole,
    Instruction,
    Let,
    Reach,
    Scope,
    Stmt,
    SyncPoint,
    Wait,
    unknown,
)
from fireiron.ir.verifier import verify

__all__ = [
    "BLOCK_SCOPE",
    "WARPGROUP_SCOPE",
    "WARP_SCOPE",
    "Access",
    "Barrier",
    "Buffer",
    "Comment",
    "Commit",
    "Completion",
    "Exec",
    "Fence",
    "For",
    "Hole",
    "Instruction",
    "Kernel",
    "Let",
    "Piece",
    "Reach",
    "Scope",
    "Stmt",
    "SyncPoint",
    "Wait",
    "buffer_table",
    "edited",
    "execs",
    "filled",
    "lets",
    "located",
    "rewritten",
    "scratch_access",
    "statements",
    "substituted",
    "unknown",
    "variables",
    "verify",
    "whole_pieces",
]
