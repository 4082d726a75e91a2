"""The state of a campaign: one JSON file per subject, replaced as a whole after each chunk.

A subject without a file here continues from its published state (`docs/campaign`), so numbers are sums over machines and days.
"""

import contextlib
import datetime
import fcntl
import functools
import hashlib
import itertools
import json
import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

import fireiron
from campaign.subject import VERDICTS, Outcome

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "campaign"
PUBLISHED = ROOT / "docs" / "campaign"
COUNTERS = ("verdicts", "counts", "features", "pairs")
TABLES = ("names", "meetings")
"""Counters of public names and of their pairs. Those of all subjects are published together, so that the state of a subject has only new ones."""
KEPT = 50
"""The number of findings whose stories are stored; of further ones only the seeds are."""


@attrs.define
class State:
    """The results of a subject's draws: all seeds from `first` to `next` are done, and those of `ahead` beyond it."""

    subject: str
    first: int
    next: int
    verdicts: Counter[str] = attrs.field(factory=Counter)
    counts: Counter[str] = attrs.field(factory=Counter)
    features: Counter[str] = attrs.field(factory=Counter)
    pairs: Counter[str] = attrs.field(factory=Counter)
    findings: list[dict[str, object]] = attrs.field(factory=list)
    ahead: list[list[int]] = attrs.field(factory=list)
    seconds: float = 0.0
    dates: list[str] = attrs.field(factory=list)
    sources: list[str] = attrs.field(factory=list)
    machines: list[str] = attrs.field(factory=list)
    names: Counter[str] = attrs.field(factory=Counter)
    meetings: Counter[str] = attrs.field(factory=Counter)

    def add(self, seeds: range, outcomes: Iterable[Outcome], seconds: float) -> None:
        """Add the outcomes of some seeds, one each, and the seconds of processor time that they took."""
        for seed, outcome in zip(seeds, outcomes, strict=True):
            self.verdicts[outcome.verdict] += 1
            self.counts.update(outcome.counts)
            if outcome.verdict != "refused":
                self.features.update(outcome.features)
                self.pairs.update(" + ".join(pair) for pair in itertools.combinations(sorted(outcome.features), 2))
            if outcome.verdict == "agreed":
                for names in outcome.names:
                    self.count_names(names)
            if outcome.verdict == "found":
                self.findings.append({"seed": seed, "story": outcome.story if len(self.findings) < KEPT else "", "mended": ""})
        self.seconds += seconds
        self._done(seeds)
        self._note(self.dates, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))
        self._note(self.sources, source())
        self._note(self.machines, machine())

    def count_names(self, names: Iterable[str]) -> None:
        """Count the public names of an executed program, and their pairs."""
        self.names.update(names)
        self.meetings.update(" + ".join(pair) for pair in itertools.combinations(sorted(names), 2))

    def amount(self, counted: str) -> int:
        """The amount of what the subject counts."""
        if counted == "drawn":
            return sum(self.verdicts[one] for one in VERDICTS)
        return self.verdicts[counted] if counted in VERDICTS else self.counts[counted]

    def open(self) -> list[dict[str, object]]:
        """The findings that are not known to be fixed."""
        return [one for one in self.findings if not one["mended"]]

    def mend(self, seed: int, outcome: Outcome) -> None:
        """Add the present outcome of a seed with a finding: it counts as such, and the finding remembers since which sources."""
        (finding,) = (one for one in self.open() if one["seed"] == seed)
        if outcome.verdict == "found":
            finding["story"] = outcome.story
            return
        finding["mended"] = source()
        self.verdicts["found"] -= 1
        self.verdicts["mended"] += 1
        self.verdicts[outcome.verdict] += 1
        self.counts.update(outcome.counts)

    def spans(self) -> list[range]:
        """The seeds that are done, in order."""
        return [range(first, stop) for first, stop in ([self.first, self.next], *self.ahead) if first < stop]

    def merge(self, other: "State") -> None:
        """Add the results of other seeds of the subject, perhaps from another machine; ValueError if a seed is done in both."""
        twice = [(one, two) for one in self.spans() for two in other.spans() if max(one.start, two.start) < min(one.stop, two.stop)]
        if twice or other.subject != self.subject:
            what = f"seeds {twice[0][1].start} to {twice[0][1].stop - 1} are done" if twice else f"it is of {other.subject}"
            raise ValueError(f"{self.subject}: a state cannot be merged: {what}")
        for counter in (*COUNTERS, *TABLES):
            getattr(self, counter).update(getattr(other, counter))
        self.findings += other.findings
        self.seconds += other.seconds
        for span in other.spans():
            self._done(span)
        for values, more in ((self.dates, other.dates), (self.sources, other.sources), (self.machines, other.machines)):
            for value in more:
                self._note(values, value)

    def missing(self) -> list[range]:
        """The seeds below those done ahead of their order that are not done."""
        gaps, start = [], self.next
        for first, stop in sorted(self.ahead):
            if first > start:
                gaps.append(range(start, first))
            start = max(start, stop)
        return gaps

    def end(self) -> int:
        """The first seed beyond all that are done."""
        return max([self.next, *(stop for _, stop in self.ahead)])

    def undrawn(self) -> list[str]:
        """Pairs of features each of which was drawn, but never both together."""
        return [both for one in itertools.combinations(sorted(self.features), 2) if (both := " + ".join(one)) not in self.pairs]

    def _done(self, seeds: range) -> None:
        joined: list[list[int]] = []
        for first, stop in sorted([*self.ahead, [seeds.start, seeds.stop]]):
            if joined and joined[-1][1] == first:
                joined[-1][1] = stop
            else:
                joined.append([first, stop])
        self.ahead = joined
        while self.ahead and self.ahead[0][0] <= self.next:
            self.next = max(self.next, self.ahead.pop(0)[1])

    @staticmethod
    def _note(values: list[str], value: str) -> None:
        if value not in values:
            values.append(value)


@functools.cache
def machine() -> str:
    """The machine that runs the draws."""
    description = f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, Fireiron {fireiron.__version__}"
    if (smi := shutil.which("nvidia-smi")) is None:
        return description
    query = subprocess.run([smi, "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return f"{description}, {query.stdout.strip()}" if query.returncode == 0 and query.stdout.strip() else description


def source() -> str:
    """A short hash of the package's sources."""
    files = sorted((ROOT / "fireiron").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def load(subject: str, first: int, folder: Path = FOLDER, published: Path | None = None) -> State:
    """The state of a subject: that of the folder, else the published one, else a new one; ValueError, naming the file, if it is invalid."""
    for path in (folder / f"{subject}.json", *([published / f"{subject}.json"] if published else [])):
        if path.is_file():
            return read(path)
    return State(subject, first, first)


def read(path: Path) -> State:
    """The state in a file; additional data of a published one are ignored."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        known = {name: stored[name] for name in attrs.fields_dict(State) if name not in TABLES}
        counters = {name: Counter(known[name]) for name in COUNTERS} | {name: Counter(stored.get(name, {})) for name in TABLES}
        return State(**{**known, **counters})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} holds no state of a campaign ({error!r}); remove it to begin again") from error


def save(state: State, folder: Path = FOLDER) -> None:
    """Replace a subject's file; if the process is killed or the disk is full, the old file remains."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{state.subject}.json.{os.getpid()}"
    try:
        fresh.write_text(json.dumps(attrs.asdict(state), indent=1), encoding="utf-8")
        fresh.replace(folder / f"{state.subject}.json")
    finally:
        fresh.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(subject: str, folder: Path = FOLDER) -> Iterator[None]:
    """Lock a subject for this process; BlockingIOError if another one runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{subject}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
