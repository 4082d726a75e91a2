"""All findings about a program: those of the checks, and advice that needs its strategy."""

from __future__ import annotations

from fireiron.check import Findings, check, ordered
from fireiron.compiler import Program
from fireiron.inspect import downgraded, idle, idle_rows, ineffective, narrow_sums, private_tiles


def findings(program: Program) -> Findings:
    """Return the findings of the checks about all launches, refinements without effect, idle units, slow copies, long sums
    in a 16-bit type, and tiles in shared memory that one thread reads.

    >>> from fireiron import *
    >>> chain = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(32, 32).to(Warp)
    >>> program = chain.tile(Strided((4, 16), (4, 16))).to(Lane).split(1).tile(1, 1).done()(MatMul(512, 512, 64)).program("sm_80")
    >>> print(*sorted({finding.kind for finding in findings(program) if finding.severity == "warning"}))
    banks coalescing idle

    Raises: the errors of a program without a kernel.
    """
    checked = [finding for launch in program.launches for finding in check(launch.program.ir)]
    of_program = (
        ineffective.ineffective,
        idle.idle,
        idle_rows.idle_rows,
        downgraded.downgraded,
        narrow_sums.narrow_sums,
        private_tiles.private_tiles,
    )
    return ordered((*checked, *(finding for advise in of_program for finding in advise(program))))


__all__ = ["findings"]
