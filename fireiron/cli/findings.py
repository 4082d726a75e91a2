"""Findings for the commands: collect those of a program, and print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fireiron.cli.folded import table
from fireiron.cli.output import paint, width_of_output
from fireiron.cli.texts import examined, print_own_instructions
from fireiron.errors import KERNEL_ERRORS, FireironError, IncompleteError, MatchError, ResourceError, SynchronizationError

if TYPE_CHECKING:
    from fireiron.check.proof import Proof
    from fireiron.compiler import Program


def findings_of(program: Program) -> list[Any]:
    """Return all findings about a program. An error of its tree or of lowering is one of them."""
    from fireiron.check import ordered
    from fireiron.inspect.findings import findings
    from fireiron.inspect.oracle import check_events
    from fireiron.language.tree import require_complete

    try:
        require_complete(program.tree)
        print_own_instructions(program)
        return list(ordered((*findings(program), *check_events(program), *_of_texts(program))))
    except KERNEL_ERRORS as error:
        return [finding_of_error(error)]


def finding_of_error(error: FireironError) -> Any:
    """Return an error of lowering as a finding."""
    from fireiron.check import Finding

    kinds: Mapping[type[FireironError], str] = {
        SynchronizationError: "race", ResourceError: "resources", MatchError: "match", IncompleteError: "open"
    }  # fmt: skip
    details = {name: str(value) for name, value in (("in", error.within), ("legal", error.legal), ("do", error.hint)) if value is not None}
    return Finding(kinds.get(type(error), "decomposition"), "error", None, str(error), error.at, None, details)


def _of_texts(program: Program) -> Iterator[Any]:
    """Yield a finding for the texts of micro-kernels, which the checks of the IR do not read."""
    from fireiron.check import Finding

    texts = examined(program)
    if texts is not None:
        severity = "error" if texts.wrong is not None else "note" if texts.has_meaning and (texts.compiled or texts.executed) else "warning"
        message = str(texts) if texts.error is None else f"{texts}: {texts.error}"
        yield Finding("micro-kernel", severity, None, message)


def print_findings(findings: Sequence[Any], wide: bool = False) -> None:
    """Print a table of findings, if there are any; `wide`: each in one line."""
    if not findings:
        return
    colors = {"error": 31, "warning": 33, "note": 36}
    width = width_of_output()
    rows, heads = [], ["severity", "kind", "access", "message", "line"]
    for finding in findings if wide else _joined(findings):
        access, message = finding.access or finding.buffer or "", _without(finding.message, finding.access)
        rows.append([paint(finding.severity, colors[finding.severity]), finding.kind, access, message, finding.at or ""])
    if width is None:
        print(table(rows, heads, most=(None,) * 5 if wide else (None, None, 44, 72, None)))
    else:  # the access and its line go below the message
        narrow = [
            [severity, kind, "\n".join(filter(None, (message, f"{access}  {at}".strip())))] for severity, kind, access, message, at in rows
        ]
        print(table(narrow, [*heads[:2], "message"], width=width))


def _joined(findings: Sequence[Any]) -> Iterator[Any]:
    """Yield the findings; notes on accesses that need no change are joined, one for each kind."""
    from fireiron.check import Finding

    ideal: dict[str, list[Any]] = {}
    for finding in findings:
        if _needs_no_change(finding):
            ideal.setdefault(finding.kind, []).append(finding)
    for finding in findings:
        same = ideal.get(finding.kind, ())
        if len(same) < 2 or not _needs_no_change(finding):
            yield finding
        elif finding is same[0]:
            what = "have no bank conflicts" if finding.kind == "banks" else "move only the sectors that they need"
            names = ", ".join(dict.fromkeys(other.buffer for other in same if other.buffer))
            yield Finding(finding.kind, "note", None, f"{len(same)} accesses {what}: {names} (--wide lists them)")


def _needs_no_change(finding: Any) -> bool:
    """Whether a note is about an access without bank conflicts, or one that moves only the sectors that it needs."""
    details = finding.details
    if finding.severity != "note":
        return False
    if finding.kind == "banks":
        return bool(details.get("wavefronts", 0) == details.get("ideal"))
    return finding.kind == "coalescing" and bool(details["sectors"] == details["ideal"] and details["ratio"] == 1)


def print_usage(program: Program | FireironError) -> None:
    """Print the predicted registers and the shared memory by buffer, if there is a kernel."""
    from fireiron.check.resources import report

    if isinstance(program, FireironError):
        return
    try:
        kernel = program.ir
    except KERNEL_ERRORS:  # reported as findings
        return
    print(f"\n{report(kernel)}\n")


def proofs_of(program: Program | FireironError, findings: Sequence[Any]) -> dict[str, Proof]:
    """Return what the checks prove about each launch, by its name; nothing if a finding is an error."""
    from fireiron.check.proof import proof_of

    if isinstance(program, FireironError) or any(finding.severity == "error" for finding in findings):
        return {}
    proofs = {launch.name: proof_of(launch.program.ir, findings) for launch in program.launches}
    return {name: proof for name, proof in proofs.items() if proof is not None}


def print_proofs(proofs: Mapping[str, Proof]) -> None:
    """Print what the checks prove, and which command compares results."""
    for name, proof in proofs.items():
        print(f"launch {name}: {proof}" if name else proof)
    if proofs:
        print("not proved: the results; fireiron run compares them with NumPy\n")


def _without(message: str, access: str | None) -> str:
    """Return a message without its leading access, which has a separate column."""
    return message.removeprefix(f"{access}: ")


__all__ = ["finding_of_error", "findings_of", "print_findings", "print_proofs", "print_usage", "proofs_of"]
