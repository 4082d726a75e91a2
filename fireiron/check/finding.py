"""The result of a check: one class for all kinds, which prints, sorts and converts to JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from fireiron.display import Displayed
from fireiron.frozen import frozen
from fireiron.ir import Access, Exec

SEVERITIES = ("error", "warning", "note")
"""`error`: the kernel is wrong. `warning`: it is slow, or unchecked on request. `note`: information."""


@frozen
class Finding(Displayed):
    """One result of a check.

    `kind` is `"race"`, `"registers"`, `"shared"`, `"bounds"`, `"boxes"`, `"alignment"`, `"banks"`, `"coalescing"`, `"resources"`,
    `"launches"` or `"ineffective"`. Findings of programs (`inspect/findings.py`) add `"idle"`, `"asynchronous"`, `"tma"`, `"accumulator"`
    and `"private"`, the command line `"decomposition"`, `"match"`, `"open"`, `"micro-kernel"` and, for task programs, `"events"`. `at` is
    the line of the user's strategy, `access` describes which statement reads or writes the buffer. `details` are numbers and
    names for programs, with plain values only.
    """

    kind: str
    severity: str
    buffer: str | None
    message: str
    at: str | None = None
    access: str | None = None
    details: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return attrs.asdict(self, recurse=False) | {"details": plain(self.details)}

    def __str__(self) -> str:
        place = "" if self.at is None else f"{self.at}: "
        return f"{place}{self.severity}: {self.kind}: {self.message}"


def plain(value: Any) -> Any:
    """Convert NumPy numbers, tuples and mappings to JSON types."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    if hasattr(value, "item"):
        return value.item()
    return value if isinstance(value, (int, float)) else str(value)


class Findings(tuple[Finding, ...], Displayed):
    """The results of checks."""

    __slots__ = ()


def ordered(findings: Iterable[Finding]) -> Findings:
    """Errors first, then by kind; program order among equals.

    A finding that several accesses share, such as a pipelined load before its loop and in it, occurs once.
    """
    once: dict[tuple[str | None, ...], Finding] = {}
    for finding in findings:
        once.setdefault((finding.severity, finding.kind, finding.buffer, finding.access, finding.message, finding.at), finding)
    return Findings(sorted(once.values(), key=lambda one: (SEVERITIES.index(one.severity), one.kind)))


def table(findings: Iterable[Finding]) -> list[list[str]]:
    """Rows for the command line: a header, then severity, kind, buffer, line, message."""
    rows = [["severity", "kind", "buffer", "at", "message"]]
    rows += [[one.severity, one.kind, one.buffer or "", one.at or "", one.message] for one in findings]
    return rows


def described(statement: Exec, access: Access) -> str:
    """`c_rf read by FFMA MatMul(1,1,1)(RF,RF,RF)(Thread)`; `a_sh read by Move(1,1)(SH,RF)(Thread)` if both names are equal."""
    name, spec = statement.instruction.name, str(statement.spec)
    return f"{access.buffer} {'written' if access.write else 'read'} by {spec if spec.startswith(f'{name}(') else f'{name} {spec}'}"


def line_of(statement: Exec, access: Access) -> str | None:
    """The line of the user's strategy."""
    return access.origin or statement.origin
