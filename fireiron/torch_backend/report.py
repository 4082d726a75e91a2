"""The report of a compilation: which operations Fireiron took, as which kernels, and why it left the others to Inductor."""

from __future__ import annotations

import collections
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fireiron.frozen import frozen


@frozen
class Taken:
    """A region that a derived kernel computes: its operations, formulas and strategy, and the predicted microseconds."""

    operations: str
    definition: str
    strategy: str
    because: str
    us: float


@frozen
class Left:
    """Operations that Inductor compiles, and why."""

    operations: str
    because: str


@frozen
class Report:
    """What was taken of a graph, and what was left to Inductor. `graph` is its role: inference, forward or backward."""

    graph: str
    taken: tuple[Taken, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        count = sum(len(one.operations.split()) for one in self.taken)
        others = sum(len(one.operations.split()) for one in self.left)
        yield f"{self.graph}: {count} of {count + others} operations in {len(self.taken)} kernels"
        for region in self.taken:
            yield f"  taken: {region.operations}: {region.because}, {region.us:.3g} us predicted"
        reasons = Counter((one.operations, one.because) for one in self.left)
        for (operations, because), number in reasons.items():
            yield f"  left:  {operations}{f' ({number} times)' if number > 1 else ''}: {because}"

    def explain(self) -> str:
        """Return the report with the definition and the strategy of each kernel."""
        return "\n\n".join([str(self), *(f"{one.operations}\n{one.definition}\n{one.strategy}" for one in self.taken)])


class Reports:
    """The reports of the last graphs of this process, for people; no code reads them."""

    def __init__(self, most: int = 256) -> None:
        self._reports: collections.deque[Report] = collections.deque(maxlen=most)

    def add(self, report: Report) -> None:
        """Append a report."""
        self._reports.append(report)

    def __iter__(self) -> Iterator[Report]:
        return iter(self._reports)

    def __len__(self) -> int:
        return len(self._reports)

    def __getitem__(self, place: int) -> Report:
        return self._reports[place]


reports: Final = Reports()
"""The reports of this process, the last one at the end."""

__all__ = ["Left", "Report", "Reports", "Taken", "reports"]
