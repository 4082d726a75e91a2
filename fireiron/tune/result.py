"""The result of a candidate, and the result of a tuning."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, StoreError
from fireiron.tune.record import Record

STATUSES: Final = ("ok", "predicted", "illegal", "pruned", "compile failed", "wrong", "crashed", "hung", "failed")
"""ok: verified and timed. predicted: legal, not measured. illegal: these values do not lower, or exceed the resources of the target.
pruned: not measured because of its prediction. compile failed: the compiler rejected it, crashed or took too long. wrong: the result
differs from that of the spec. crashed: its process ended or the GPU reported an error. hung: stopped after the time limit. failed: any
other error."""

MOST_REASON: Final = 200
"""Maximum characters of a reason in a table; results and the journal have the complete text."""

SHOWN: Final = 10
"""The number of results in a table, best first."""

PREDICTED: Final = "predicted by the cost model; nothing was measured (more stages than latency needs have equal predictions: measure them)"
"""The first line of a table of predictions."""


def _values(value: Mapping[str, int]) -> Mapping[str, int]:
    return dict(value)


def _pair(value: Any) -> Any:
    return None if value is None else tuple(value)


@attrs.frozen(kw_only=True)
class Result(Displayed):
    """One candidate.

    Attributes:
        values: the values of the strategy's tunables.
        status: one of `STATUSES`.
        reason: the reason for a status other than "ok".
        us: the median time of a launch in microseconds, in the first measurement.
        quartiles: the quartiles of that time.
        final_us: the time in the joint measurement of the finalists; None for other candidates.
        predicted_us: the prediction of the cost model; None without one.
        error: the relative error compared with float64.
        threads, shared_bytes: per block; registers: per thread; spills: bytes per thread.
        compile_seconds: the time of the compiler, if it ran.
        text: 16 hex digits of the digest of its CUDA text.
        gpu: the index of its GPU in `gpu_ids`.
        regime, l2, clocks: conditions of the measurement, as in a `Record`.
    """

    values: Mapping[str, int] = attrs.field(converter=_values, hash=False)
    status: str = attrs.field(validator=attrs.validators.in_(STATUSES))
    reason: str = ""
    us: float | None = None
    final_us: float | None = None
    quartiles: tuple[float, float] | None = attrs.field(default=None, converter=_pair)
    predicted_us: float | None = None
    error: float | None = None
    threads: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    spills: int | None = None
    compile_seconds: float | None = None
    text: str = ""
    gpu: int | None = None
    regime: str = ""
    l2: str = ""
    clocks: tuple[int, int] | None = attrs.field(default=None, converter=_pair)

    @property
    def time(self) -> float:
        """The time in microseconds for ranking: the final measurement if there is one, else the first; infinite without a time."""
        known = self.final_us if self.final_us is not None else self.us
        return float("inf") if known is None else known

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON, without empty fields."""
        return {name: value for name, value in attrs.asdict(self).items() if value not in (None, "")}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Result:
        """Return the result of a mapping made by `plain`. Raises: `StoreError` if it is invalid."""
        fields = {field.name for field in attrs.fields(Result)}
        try:
            return Result(**{name: value for name, value in plain.items() if name in fields})
        except (TypeError, ValueError) as error:
            raise StoreError(f"the mapping is not a result of tuning: {error}", got=dict(plain)) from None

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items())


def ranked(results: Iterable[Result]) -> tuple[Result, ...]:
    """Return the timed results, the fastest first. Finalists precede other candidates, which were measured in other clock states."""
    timed = [result for result in results if result.status == "ok"]
    return tuple(sorted(timed, key=lambda result: (result.final_us is None, result.time, tuple(result.values.values()))))


def failures(results: Iterable[Result]) -> dict[str, dict[str, list[Result]]]:
    """Return the results without a time, by status and reason, the most frequent reason first. Numbers in reasons are ignored."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        if result.status not in ("ok", "predicted"):
            groups.setdefault(result.status, {}).setdefault(re.sub(r"[\d.]+", "", result.reason), []).append(result)
    order = sorted(groups, key=STATUSES.index)
    return {status: dict(sorted(groups[status].items(), key=lambda pair: -len(pair[1]))) for status in order}


@attrs.frozen(kw_only=True)
class Tuning(Displayed):
    """The result of `tune`.

    Attributes:
        best: the fastest candidate as a record; None if no candidate was verified and timed, or if a record cannot describe the spec
            (a note reports this; the first of `ranking` is then the best).
        results: one result for each candidate, in the order in which the strategy enumerates candidates.
        library_us: the time of the vendor's library in the final measurement, in microseconds; None if it was not run.
        complete: whether the search is complete; otherwise `stopped` has the reason.
        notes: remarks for the reader, for example about an incomplete line of the journal or a failed final measurement.
        journal: the file with the results, one per line.
        where: the GPU, driver and toolchain.
        seconds: the duration of this run.
    """

    best: Record | None
    results: tuple[Result, ...]
    library_us: float | None = None
    complete: bool = True
    stopped: str = ""
    notes: tuple[str, ...] = ()
    journal: Path | None = None
    where: Mapping[str, Any] = attrs.field(factory=dict, hash=False)
    seconds: float = 0.0

    @property
    def ranking(self) -> tuple[Result, ...]:
        """Return the timed results, the fastest first. If nothing was measured, return the predicted results, the fastest first."""
        predicted = [result for result in self.results if result.status == "predicted"]
        return ranked(self.results) or tuple(sorted(predicted, key=lambda result: _or_last(result.predicted_us)))

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of results by status."""
        by_status = Counter(result.status for result in self.results)
        return {status: by_status[status] for status in STATUSES if by_status[status]}

    def table(self, columns: int | None = None) -> str:
        """Return a table of the ten best results, and of the failures by status and reason, truncated to `columns` characters."""
        return "\n\n".join(part for part in (self._best(), self._failures(columns), *self.notes) if part)

    def _best(self) -> str:
        from tabulate import tabulate

        shown = self.ranking[:SHOWN]
        if not shown:
            return "no candidate was " + ("legal" if set(self.counts) <= {"illegal"} else "verified and timed")
        names = [name for name in shown[0].values if len({result.values[name] for result in self.results}) > 1]
        columns: dict[str, Callable[[Result], Any]] = {
            "us": lambda result: result.us,
            "final us": lambda result: result.final_us,
            "predicted us": lambda result: result.predicted_us,
        }
        columns |= {
            "registers": lambda result: result.registers,
            "shared bytes": lambda result: result.shared_bytes,
            "spills": lambda result: result.spills,
        }
        rows = [[*(result.values[name] for name in names), *map(_short, (get(result) for get in columns.values()))] for result in shown]
        kept = [i for i in range(len(names) + len(columns)) if any(row[i] != "" for row in rows)]
        heads = [*names, *columns]
        aligned = ["right"] * len(kept)
        text = tabulate([[row[i] for i in kept] for row in rows], headers=[heads[i] for i in kept], disable_numparse=True, colalign=aligned)
        if len(self.ranking) > len(shown):
            text += f"\n{len(self.ranking) - len(shown)} more, slower"
        if self.library_us is not None:
            text += f"\nthe library, measured with the finalists: {_short(self.library_us)} us"
        return text if shown[0].status == "ok" else f"{PREDICTED}\n{text}"

    def _failures(self, columns: int | None) -> str:
        lines = []
        for status, reasons in failures(self.results).items():
            lines.append(f"{sum(map(len, reasons.values()))} {status}")
            for group in list(reasons.values())[:SHOWN]:
                most = MOST_REASON if columns is None else columns - len(f"  {0:>6}    ({group[0]})")
                lines.append(f"  {len(group):>6}  {_cut(group[0].reason, max(most, 40)) or 'no reason given'}  ({group[0]})")
            if len(reasons) > SHOWN:
                lines.append(f"          and {len(reasons) - SHOWN} other reasons")
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Append the best result to a file of records, which is created if missing.

        Raises:
            ArgumentError: there is no best candidate, or a record cannot describe the spec.
        """
        if self.best is None and ranked(self.results):
            raise ArgumentError("there is nothing to save: a record cannot describe this spec", hint="ranking[0] has the best values")
        if self.best is None:
            raise ArgumentError("there is nothing to save: no candidate was verified and timed")
        from fireiron.tune.records import Records

        Records.append_to(path, self.best)

    def plain(self) -> dict[str, Any]:
        """Return the complete result as JSON."""
        return {
            "best": None if self.best is None else json.loads(self.best.line()),
            "library_us": self.library_us,
            "complete": self.complete,
            "stopped": self.stopped,
            "counts": self.counts,
            "notes": list(self.notes),
            "journal": None if self.journal is None else str(self.journal),
            "where": dict(self.where),
            "seconds": round(self.seconds, 3),
            "results": [result.plain() for result in self.results],
        }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def _short(value: Any) -> str:
    """Return a number with four significant digits; "" for None."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:.0f}"
