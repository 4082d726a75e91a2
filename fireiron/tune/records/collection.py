"""Collections of records: load, merge, write, query."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from fireiron import files
from fireiron.display import Displayed
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.package_paths import library_folder
from fireiron.spec import Spec
from fireiron.tune.record import Record, strategy_hash
from fireiron.tune.records import choosing
from fireiron.tune.records.choosing import Accept, Choice, Question, any_program
from fireiron.tune.records.files import append, read, read_checked, record_files, stamp
from fireiron.tune.records.lock import locked
from fireiron.tune.records.outdated import OutdatedRecord, is_file, of_library
from fireiron.tune.records.rules import place, recency, same_measurement, target_of

OF_FOLDER: Final = "tuned.jsonl"
"""The file of a folder of records to which new records are appended."""


@frozen
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
        """Return the records of files, or of all `*.jsonl` in a folder, merged.

        Raises: StoreError with file and line if a line is not a record. An incomplete last line is ignored, with a warning.
        """
        return Records().merged(*(Records(read(file, stamp(file))) for file in record_files(*paths)))

    @staticmethod
    def shipped() -> Records:
        """Return the records of the strategy library, which its tests check. The result is empty if the library has no records."""
        return _of_library(tuple((file, stamp(file)) for file in record_files(*_shipped())))

    def merged(self, *others: Records) -> Records:
        """Return the records of this collection and of others, with one record per measurement, in the order of `text`.

        Two records are of the same measurement if they agree in strategy, hash, values, spec, architecture, GPU, regime and state of the
        L2 cache. The newest is kept: the latest date, then the newest toolchain, then the shorter time. So the result does not depend on
        the order of files, and a new measurement replaces an older one even if it is slower.
        """
        newest: dict[str, Record] = {}
        for record in (*self.records, *(record for other in others for record in other.records)):
            key = same_measurement(record)
            if key not in newest or recency(record) > recency(newest[key]):
                newest[key] = record
        return Records(tuple(sorted(newest.values(), key=place)))

    def text(self) -> str:
        """Return the content of a file: one record per line, by spec, architecture and GPU, the fastest first."""
        return "".join(f"{record.line()}\n" for record in sorted(self.records, key=place))

    @staticmethod
    def append_to(path: str | Path, record: Record) -> None:
        """Append a record to a file, which is created if missing; in a folder, to its file `tuned.jsonl`.

        Either the complete line is written, or a `StoreError` is raised.

        Processes that append concurrently wait for each other. An incomplete last line is removed first, with a warning; if it is not the
        beginning of a record, the file is rejected.
        """
        if not isinstance(record, Record):
            raise ArgumentError("append_to requires a Record", got=record)
        target = files.path_of(path, "append_to")
        try:
            target = target / OF_FOLDER if target.is_dir() else target
            target.parent.mkdir(parents=True, exist_ok=True)
            with locked(target) as file:
                append(target, file, f"{record.line()}\n".encode())
        except files.NEVER_WRITTEN as error:
            raise files.unwritten(target, error) from None

    def outdated(self) -> tuple[OutdatedRecord, ...]:
        """Return the records that are not used because their strategy has changed or no longer exists. Users' files are not examined."""
        counts: dict[tuple[str, str], int] = {}
        for record in self.records:
            if not is_file(record.strategy):
                counts[record.strategy, record.strategy_hash] = counts.get((record.strategy, record.strategy_hash), 0) + 1
        outdated = []
        for (name, recorded), number in sorted(counts.items()):
            strategy = of_library(name)
            now = None if strategy is None else strategy_hash(strategy)
            if now != recorded:
                outdated.append(OutdatedRecord(name, recorded, now, number))
        return tuple(outdated)

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
        """Return the result of `find`. Raises: StoreError with the existing records and the tuning command if there is no record."""
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
        """Choose a record for a spec on an architecture; return None if there is none. Nothing is measured.

        1. Records of exactly this spec and this compute capability (a record for `sm_90` also applies to `sm_90a`), the fastest first.
        2. With `neighbors`, records of other sizes, leading dimensions and alignments, but of the same kind, element types, storage
           orders and major compute capability. The nearest comes first, and of equally near records the fastest. The distance is
           `|log2 M/M'| + |log2 N/N'| + |log2 K/K'| / 2`, plus one for another capability, and at most `FARTHEST`.

        A record applies only if its strategy is legal for the spec with the recorded values. Of the legal neighbors within `AS_NEAR` of
        the nearest one, at most `MOST_COMPARED` are compared, and the one with the fastest prediction is chosen. Specs with run-time
        sizes use rule 1 only. A record whose `strategy_hash` differs from the strategy's present hash is skipped with an
        `OutdatedRecordWarning`.

        Args:
            spec: a kernel's spec.
            architecture: the target.
            neighbors: whether rule 2 applies.
            gpu: the name of a GPU whose records are preferred.
            strategies: a user's strategies by their names in records, in addition to the library's (a file named by a record is never
                executed).
            accept: a further condition on the lowered program.
            lowered: the spec for which strategies are lowered, if the arrays of the same problem are stored differently.
        """
        question = Question(spec, target_of(architecture), gpu, strategies or {}, accept, lowered)
        return choosing.exact(self.records, question) or (choosing.nearest(self.records, question) if neighbors else None)

    def by_tiles(
        self, spec: Spec, architecture: Any = None, *, gpu: str | None = None, accept: Accept = any_program, below: float = math.inf
    ) -> Choice | None:
        """Return the tile with the shortest expected time for a matmul on Hopper's tensor cores, by records of other problems.

        The expected time is an estimate from the waves of blocks, corrected by measurements of the tile at other sizes, element types and
        storage orders. None for other specs and targets, without records of tiles, and if no legal tile is expected to take less than
        `below` microseconds.
        """
        from fireiron.tune.records import tiles

        return tiles.by_tiles(self.records, Question(spec, target_of(architecture), gpu, {}, accept), below)


@functools.lru_cache(maxsize=4)
def _of_library(files: tuple[tuple[Path, tuple[int, int, int]], ...]) -> Records:
    """Return the records of files with these stamps, in the order of each file."""
    collections = [Records(read_checked(file)) for file, _ in files]
    return collections[0] if len(collections) == 1 else Records().merged(*collections)


def _shipped() -> tuple[Path, ...]:
    folder = library_folder() / "records"
    return (folder,) if folder.is_dir() else ()


def merge_files(sources: Iterable[str | Path], target: str | Path) -> tuple[int, int]:
    """Merge files into a target, which may be one of them; return the number of records before and after.

    Other processes that append to the target wait until the merge is done, so that no record is lost.

    Raises: StoreError if a file cannot be read, or the target cannot be written.
    """
    path, read_first = files.path_of(target, "merge"), record_files(*sources)
    Records.load(*read_first)  # wrong lines are refused before the target is touched
    try:
        with locked(path):
            collections = [Records(read(file, stamp(file))) for file in read_first]
            merged = Records().merged(*collections)
            write_records(path, merged)
    except files.NEVER_WRITTEN as error:
        raise files.unwritten(path, error) from None
    return sum(map(len, collections)), len(merged)


def write_records(path: str | Path, records: Records) -> None:
    """Replace a file of records atomically; a link is followed. Raises: `StoreError` if it cannot be written."""
    files.write(path, records.text().encode(), overwrite=True)
