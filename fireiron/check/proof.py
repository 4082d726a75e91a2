"""State what the checks of a kernel without errors prove, and for which blocks, threads and sizes. An undecided check is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fireiron.check.finding import Finding
from fireiron.frozen import frozen
from fireiron.ir import Kernel
from fireiron.ir.effects.unchecked import Unchecked

RACES = "no data races, on any schedule"


@frozen
class Proof:
    """The proved statements about a kernel, and the statements that it relies on without a proof.

    `scope` names the blocks, threads and run-time sizes for which they hold.
    """

    scope: str
    proved: tuple[str, ...]
    assumed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"scope": self.scope, "proved": list(self.proved), "assumed": list(self.assumed)}

    def __str__(self) -> str:
        lines = [f"proved for {self.scope}:", *(f"  {text}" for text in self.proved)]
        return "\n".join([*lines, *(f"  assumed: {text}" for text in self.assumed)])


def proof_of(kernel: Kernel, findings: Iterable[Finding] = ()) -> Proof | None:
    """Return what the checks prove, for the findings about a kernel; None if one of them is an error."""
    findings = tuple(findings)
    if any(finding.severity == "error" for finding in findings):
        return None
    trusted = kernel.effects[Unchecked].reasons
    memories = [buffer.memory for buffer in kernel.buffers]
    promises = (
        (RACES, not trusted),
        ("no read of a register before it is written, or of an accumulator of MMAs in flight", any(memory.private for memory in memories)),
        ("no read of shared memory before it is written", any(memory.in_shared for memory in memories)),
        ("no access outside of an array, of shared memory, or of the registers of a thread", True),
        ("each vector and each TMA box is aligned", True),
        (f"threads, shared memory and registers per block are within the limits of {kernel.architecture}", True),
    )
    texts = ("micro-kernel texts access what their spec states, and compute it",) if _has_texts(findings) else ()
    races = tuple(f"no data races ({reason})" for reason in trusted)
    return Proof(_scope(kernel), tuple(text for text, holds in promises if holds), (*races, *texts))


def _has_texts(findings: Iterable[Finding]) -> bool:
    return any(finding.kind == "micro-kernel" for finding in findings)


def _scope(kernel: Kernel) -> str:
    sizes = f", and all sizes {', '.join(symbol.name for symbol in kernel.symbols)}" if kernel.symbols else ""
    blocks = "the block" if str(kernel.grid) == "1" else f"all {kernel.grid} blocks"
    return f"{blocks} of {kernel.threads} threads{sizes}"


__all__ = ["Proof", "proof_of"]
