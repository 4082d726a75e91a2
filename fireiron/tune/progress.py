"""Progress of a tuning, and its display."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from fireiron.tune.result import Result

PLAIN_SECONDS: Final = 5.0
"""Seconds between two lines of progress if the output is not a terminal."""


@attrs.frozen(kw_only=True)
class Progress:
    """The state of a tuning.

    Attributes:
        phase: "lower", "measure" or "final".
        done, total: the number of finished candidates of the phase, and of all candidates of the phase.
        best: the best result so far; while candidates are ranked, the best prediction.
        failures: the number of failed candidates by status.
        seconds: the time since the start.
        remaining: the estimated seconds of the phase; None before an estimate exists.
        journal: the path of the journal.
    """

    phase: str
    done: int
    total: int
    best: Result | None = None
    failures: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    seconds: float = 0.0
    remaining: float | None = None
    journal: str = ""

    def __str__(self) -> str:
        parts = [f"{self.phase}: {self.done} of {self.total}"]
        if self.best is not None:
            predicted = self.best.status == "predicted"
            us = self.best.predicted_us if predicted else self.best.time
            parts.append(f"best {'predicted ' if predicted else ''}{us:.4g} us ({self.best})")
        parts += [f"{count} {status}" for status, count in self.failures.items()]
        if self.remaining is not None:
            parts.append(f"about {_duration(self.remaining)} left")
        return ", ".join(parts)


Report = Callable[[Progress], object]


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min" if whole < 6000 else f"{whole // 3600} h {whole % 3600 // 60} min"


class Display:
    """Shows progress on a stream: on a terminal a line that is updated, with rich if installed; otherwise a line every few seconds."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.shown = float("-inf")
        self.last: Progress | None = None
        self.status = self._rich() if self.stream.isatty() else None

    def _rich(self) -> Any:
        try:
            console = importlib.import_module("rich.console").Console(file=self.stream)
        except ImportError:
            return None
        status = console.status("starting")
        status.start()
        return status

    def __call__(self, progress: Progress) -> None:
        """Show a state."""
        phase_ends = self.last is not None and self.last.phase != progress.phase
        self.last = progress
        if self.status is not None:
            self.status.update(importlib.import_module("rich.markup").escape(str(progress)))
            return
        now = time.monotonic()
        interval = 0.2 if self.stream.isatty() else PLAIN_SECONDS
        if now - self.shown >= interval or phase_ends:
            self.shown = now
            start, end = ("\r\x1b[K", "") if self.stream.isatty() else ("", "\n")
            print(f"{start}{progress}", end=end, file=self.stream, flush=True)

    def close(self) -> None:
        """Restore the stream."""
        if self.status is not None:
            self.status.stop()
        elif self.stream.isatty():
            print("\r\x1b[K", end="", file=self.stream, flush=True)
