"""Goals of puzzles. Each is a value that measures a lowered program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.frozen import frozen
from fireiron.ir import Barrier, Exec, execs, located
from fireiron.spec import Spec


@frozen
class Goal:
    """A condition on a kernel; `str(goal)` states it."""

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        """Return what the kernel has, if it misses the goal; otherwise an empty text."""
        raise NotImplementedError


@frozen
class NoWarnings(Goal):
    """No warnings of some kinds, such as `"banks"` (bank conflicts)."""

    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"no warnings of `check` about {' and '.join(_TOPICS[kind] for kind in self.kinds)}"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        return next(
            (_placed(finding, finding.message) for finding in findings if finding.kind in self.kinds and finding.severity == "warning"), ""
        )


def _placed(finding: Finding, text: str) -> str:
    """Return a text about a finding with the file and line of its step."""
    return f"{text} ({finding.at.rpartition('/')[2]})" if finding.at else text


_TOPICS = {"banks": "bank conflicts", "coalescing": "coalescing", "resources": "resources"}


@frozen
class Executes(Goal):
    """Some statement executes an instruction whose name starts with a prefix."""

    prefix: str
    what: str

    def __str__(self) -> str:
        return f"it uses {self.what}"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        names = dict.fromkeys(statement.instruction.name for statement in _statements(program))
        return "" if any(name.startswith(self.prefix) for name in names) else f"it executes {', '.join(names)}"


@frozen
class Vectors(Goal):
    """Each access to the given arrays in global memory moves at least this number of bytes per thread."""

    bytes: int
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"each thread accesses {', '.join(self.operands)} in vectors of {self.bytes} bytes"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        for finding in findings:
            if finding.kind == "coalescing" and finding.buffer in self.operands and finding.details["vector_bytes"] < self.bytes:
                return _placed(finding, f"{finding.access}: {finding.details['vector_bytes']} bytes")
        return ""


@frozen
class ReadsOnce(Goal):
    """One statement reads an array, outside of loops that would read it again."""

    operand: str

    def __str__(self) -> str:
        return f"it reads {self.operand} from global memory once"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        readers = [
            statement
            for statement in _statements(program)
            if any(access.buffer == self.operand and not access.write for access in statement.accesses)
        ]
        return "" if len(readers) == 1 else f"{len(readers)} statements read it"


@frozen
class SharedBytes(Goal):
    """The shared memory of a block has at most this number of bytes, and at least `least`."""

    most: int
    least: int = 0

    def __str__(self) -> str:
        most = f"at most {self.most} bytes of shared memory per block" if self.most else "no shared memory"
        return f"{most}, and at least {self.least}" if self.least else most

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        got = program.ir.shared_bytes
        return "" if self.least <= got <= self.most else f"{got} bytes"


@frozen
class Threads(Goal):
    """A block has at least this number of threads."""

    least: int

    def __str__(self) -> str:
        return f"at least {self.least} threads per block"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        return "" if program.ir.threads >= self.least else f"{program.ir.threads} threads"


@frozen
class Barriers(Goal):
    """The kernel has at most this number of barrier statements."""

    most: int

    def __str__(self) -> str:
        return f"at most {self.most} barriers in the kernel"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        count = sum(isinstance(statement, Barrier) for statement, _ in located(program.ir.body))
        return "" if count <= self.most else f"{count} barriers"


@frozen
class Predicted(Goal):
    """The predicted time for another, usually larger problem is at most this number of microseconds; `problem` is Python code."""

    gpu: str
    most_us: float
    problem: str

    def __str__(self) -> str:
        return f"predicted for {self.problem.partition('(GL')[0]} on {self.gpu}: at most {self.most_us:g} us"

    def measured(self, program: Program, findings: Sequence[Finding]) -> str:
        from fireiron.cost import predict

        prediction = predict(program.strategy(spec_of(self.problem)).program(program.architecture), self.gpu)
        return "" if prediction.us <= self.most_us else f"{prediction.us:.0f} us, limited by {prediction.bottleneck}"


def spec_of(setup: str) -> Spec:
    """Return the spec that code of this package defines as `problem`, or of which it is an expression."""
    names: dict[str, Any] = {}
    code = setup if "problem = " in setup else f"problem = {setup}"
    exec(f"from fireiron import *\n{code}", names)
    spec: Spec = names["problem"]
    return spec


def _statements(program: Program) -> Iterator[Exec]:
    for launch in program.launches:
        for statement, _ in execs(launch.program.ir.body):
            yield statement
