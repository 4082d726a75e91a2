"""Collections of records: load, merge, write, query."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from fireiron import files
from fireiron.display import Displayed
from fireiron.errors import ArgumentError
from fireiron.language.strategy import Strategy
from fireiron.package_paths import library_folder
from fireiron.spec import Spec
from fireiron.tune.record import Record, strategy_hash
from fireiron.tune.records import choosing
from fireiron.tune.records.choosing import Accept, Choice, Question, any_program
from fireiron.tune.records.drift import OutdatedRecord, is_file, of_library
from fireiron.tune.records.files import append, read, read_checked, record_files, stamp
from fireiron.tune.records.lock import locked
from fireiron.tune.records.rules import place, recency, same_measurement, target_of


@attrs.frozen
class Records(Displayed):
    """An immutable collection of records.

    >>> len(Records())
    0
    """

    records: tuple[Record, ...] = ()

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    # ------------------------------------------------------------------------------------------ files

    @staticmethod
    def load(*paths: str | Path) -> Records:
        """The records of files, or of all `*.jsonl` in a folder, merged.

        Raises: StoreError with file and line where a line is no record. A last line that was never finished is left out, with a
        warning.
        """
        return Records().merged(*(Records(read(file, stamp(file))) for file in record_files(*paths)))

    @staticmethod
    def shipped() -> Records:
        """Return the records of the strategy library, which its tests check; none if it has none."""
        return _of_library(tuple((file, stamp(file)) for file in record_files(*_shipped())))

    def merged(self, *others: Records) -> Records:
        """This collection and others, each measurement once, in the order of `text`.

        Records of the same strategy, hash, values, spec, architecture, GPU, regime and state of the L2 cache measure the same thing.
        Of them the newest is kept: the latest date, then the newest toolchain, then the shorter time. So the result does not depend on
        the order of files, and measuring again replaces what was measured before, also where it has become slower.
        """
        newest: dict[str, Record] = {}
        for record in (*self.records, *(record for other in others for record in other.records)):
            key = same_measurement(record)
            if key not in newest or recency(record) > recency(newest[key]):
                newest[key] = record
        return Records(tuple(sorted(newest.values(), key=place)))

    def text(self) -> str:
        """The content of a file: one record a line, by spec, architecture and GPU, the fastest first."""
        return "".join(f"{record.line()}\n" for record in sorted(self.records, key=place))

    @staticmethod
    def append_to(path: str | Path, record: Record) -> None:
        """Add a record at the end of a file, made where there is none; all of the line, or nothing and a `StoreError`.

        Processes that append at once wait for each other. A last line that was never finished is removed first, with a warning; one that
        is no beginning of a record is somebody else's, and refused.
        """
        if not isinstance(record, Record):
            raise ArgumentError("append_to: not a record", got=record)
        target = files.path_of(path, "append_to")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target) as file:
                append(target, file, f"{record.line()}\n".encode())
        except files.NEVER_WRITTEN as error:
            raise files.unwritten(target, error) from None

    def drift(self) -> tuple[OutdatedRecord, ...]:
        """The records that are not used because their strategy has changed or is gone; those of files are not judged."""
        counts: dict[tuple[str, str], int] = {}
        for record in self.records:
            if not is_file(record.strategy):
                counts[record.strategy, record.strategy_hash] = counts.get((record.strategy, record.strategy_hash), 0) + 1
        found = []
        for (name, recorded), number in sorted(counts.items()):
            strategy = of_library(name)
            now = None if strategy is None else strategy_hash(strategy)
            if now != recorded:
                found.append(OutdatedRecord(name, recorded, now, number))
        return tuple(found)

    # ------------------------------------------------------------------------------------------ choosing

    def for_spec(self, spec: Spec, architecture: Any = None) -> Records:
        """Return the records for exactly a spec and the compute capability of an architecture, the fastest first."""
        return Records(tuple(choosing.for_spec(self.records, spec, target_of(architecture))))

    def best(
        self,
        spec: Spec,
        architecture: Any = None,
        neighbors: bool = True,
        *,
        gpu: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        accept: Accept = any_program,
    ) -> Choice:
        """As `find`, but raise a `StoreError` with the existing records and the tuning command if there is none."""
        choice = self.find(spec, architecture, neighbors, gpu=gpu, strategies=strategies, accept=accept)
        if choice is None:
            raise choosing.nothing_answers(self.records, spec, target_of(architecture))
        return choice

    def find(
        self,
        spec: Spec,
        architecture: Any = None,
        neighbors: bool = True,
        *,
        gpu: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        accept: Accept = any_program,
        lowered: Spec | None = None,
    ) -> Choice | None:
        """The record to take for a spec on an architecture, or None. Nothing is measured.

        1. Records of exactly this spec and this compute capability (`sm_90` serves `sm_90a`), the fastest first.
        2. With `neighbors`, records of other sizes, leading dimensions and alignments, of the same kind, element types and storage
           orders, and of the same major compute capability. The nearest first: the distance is
           `|log2 M/M'| + |log2 N/N'| + |log2 K/K'| / 2`, one more for another capability, at most `FARTHEST`; of equally near ones the
           fastest.

        Only those count whose strategy is legal for the spec with the recorded values. Of the legal neighbors that are about as near as
        the nearest one (`AS_NEAR`), at most `MOST_COMPARED`, the one is taken that the cost model predicts to be fastest here. Run-time
        sizes are answered by rule 1 only.
        Records of another `strategy_hash` than the strategy has now are skipped with an `OutdatedRecordWarning`.

        Args: `gpu`, the name of a GPU whose records are preferred to those of others; `strategies` by the names under which they are
            recorded, beside those of the library (a file that a record names is not executed); `accept`, what a lowered program must be
            beyond legal; `lowered`, the spec for which strategies are lowered, and must be legal, where arrays of the same problem lie
            otherwise than is asked for.
        """
        question = Question(spec, target_of(architecture), gpu, strategies or {}, accept, lowered)
        return choosing.exact(self.records, question) or (choosing.nearest(self.records, question) if neighbors else None)

    def by_tiles(
        self, spec: Spec, architecture: Any = None, *, gpu: str | None = None, accept: Accept = any_program, below: float = math.inf
    ) -> Choice | None:
        """The tile for a product on Hopper's tensor cores that is expected to take least time, by records of other problems.

        The estimate of its waves for this problem, put right by how long the tile took where it was measured: at other sizes, in other
        types and storage orders. None for other specs and targets, where no record tells of a tile, and where no legal one is expected to
        take less than `below` microseconds.
        """
        from fireiron.tune.records import tiles

        return tiles.by_tiles(self.records, Question(spec, target_of(architecture), gpu, {}, accept), below)


@functools.lru_cache(maxsize=4)
def _of_library(files: tuple[tuple[Path, tuple[int, int, int]], ...]) -> Records:
    """Return the records of files with these stamps, in the order of each file."""
    found = [Records(read_checked(file)) for file, _ in files]
    return found[0] if len(found) == 1 else Records().merged(*found)


def _shipped() -> tuple[Path, ...]:
    folder = library_folder() / "records"
    return (folder,) if folder.is_dir() else ()


def merge_files(sources: Iterable[str | Path], target: str | Path) -> tuple[int, int]:
    """Merge files into one, which may be among them; return the number of records before and after.

    A `StoreError` where one cannot be read, or the file cannot be written.

    What another process appends to the target meanwhile waits, and is not lost.
    """
    path, read_first = files.path_of(target, "merge"), record_files(*sources)
    Records.load(*read_first)  # wrong lines are refused before the target is touched
    try:
        with locked(path):
            found = [Records(read(file, stamp(file))) for file in read_first]
            merged = Records().merged(*found)
            write_records(path, merged)
    except files.NEVER_WRITTEN as error:
        raise files.unwritten(path, error) from None
    return sum(map(len, found)), len(merged)


def write_records(path: str | Path, records: Records) -> None:
    """Replace a file of records, all or nothing. Raises: `StoreError`. A link is followed."""
    files.write(path, records.text().encode(), overwrite=True)
