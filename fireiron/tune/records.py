"""Collections of tuned records: files, merging, and the choice of a record for a spec.

Files are JSON Lines, so they merge by concatenation (also by git's `merge=union`); nothing in them is ever executed. The rules
by which records are merged and chosen stand in docs/library.md, and with `Records.merged` and `Records.find`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.language.strategy import Strategy
from fireiron.places import library_folder
from fireiron.spec import Spec
from fireiron.tune.record import FORMAT, KINDS, Record, describe, spec_of, strategy_hash
from fireiron.values.machine import DEFAULT_ARCHITECTURE, Architecture, as_architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program

__all__ = ["FORMAT", "KINDS", "Choice", "OutdatedRecordWarning", "Record", "Records", "best", "describe", "spec_of", "strategy_hash"]

FARTHEST: Final = 6.0
"""Neighbours further away than this are none: a factor of 4 in each of M, N and of 16 in K."""

MOST_TRIES: Final = 16
"""Neighbours that are lowered before the search gives up."""

MOST_COMPARED: Final = 5
"""Legal neighbours with different values among which the cost model decides."""

AS_NEAR: Final = 2.0
"""How much further than the nearest legal neighbour those may be that are compared with it."""

WEIGHTS: Final[Mapping[str, float]] = {"M": 1.0, "N": 1.0, "K": 0.5}
"""How much a factor of two in a size counts: K changes how long a block works, not how many there are."""

OTHER_CAPABILITY: Final = 1.0
"""How much another compute capability of the same major number counts (an sm_86 record for sm_89)."""

LOCK_SECONDS: Final = 10.0
"""How long an append waits for another one, where files cannot be locked by the system."""


class OutdatedRecordWarning(UserWarning):
    """A record was made for another version of its strategy, and is not used; or the end of a file is torn."""


@attrs.frozen
class Drift:
    """Records that are not used, because the strategy of that name has another hash `now`, or (None) is not in the library."""

    strategy: str
    recorded: str
    now: str | None
    records: int

    @property
    def message(self) -> str:
        """One line for a person."""
        many = f"{self.records} record{'s' if self.records > 1 else ''} of {self.strategy} ({self.recorded})"
        if self.now is None:
            return f"{many}: the library has no such strategy"
        return f"{many}: tuned for an older version of the strategy (now {self.now}); tune again"


Accept = Callable[["Program"], bool]


def _any(program: Program) -> bool:
    return True


@attrs.frozen
class Choice:
    """What answers for a spec: a record, `exact` if it was measured for just this spec; `why` says so in a sentence.

    `program` is the strategy with its values, lowered for the spec. `record` is None where the library's default stands in,
    which only `fireiron.matmul` does.
    """

    record: Record | None
    exact: bool
    why: str
    program: Program = attrs.field(eq=False, repr=False)

    @property
    def strategy(self) -> Strategy:
        """The strategy, bound to the spec, with values for all tunables."""
        return self.program.strategy


@attrs.frozen
class Records:
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
        return Records().merged(*(Records(_read(file, _stamp(file))) for file in record_files(*paths)))

    @staticmethod
    def shipped() -> Records:
        """The records that come with the strategy library; none where there are none."""
        return Records.load(*_shipped())

    def merged(self, *others: Records) -> Records:
        """This collection and others, each measurement once, in the order of `text`.

        Records of the same strategy, hash, values, spec, architecture, GPU, regime and state of the L2 cache measure the same thing.
        Of them the newest is kept: the latest date, then the newest toolchain, then the shorter time. So the result does not depend on
        the order of files, and measuring again replaces what was measured before, also where it has become slower.
        """
        newest: dict[str, Record] = {}
        for record in (*self.records, *(record for other in others for record in other.records)):
            key = _same_measurement(record)
            if key not in newest or _recency(record) > _recency(newest[key]):
                newest[key] = record
        return Records(tuple(sorted(newest.values(), key=_place)))

    def text(self) -> str:
        """The content of a file: one record a line, by spec, architecture and GPU, the fastest first."""
        return "".join(f"{record.line()}\n" for record in sorted(self.records, key=_place))

    @staticmethod
    def append_to(path: str | Path, record: Record) -> None:
        """Add a record at the end of a file, which is made where there is none; all of the line or nothing.

        Processes that append at once wait for each other. A last line that was never finished is removed first, with a warning.
        """
        if not isinstance(record, Record):
            raise ArgumentError("append_to: not a record", got=record)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with _locked(Path(path)) as file:
                _append(Path(path), file, f"{record.line()}\n".encode())
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None

    def drift(self) -> tuple[Drift, ...]:
        """The records that are not used because their strategy has changed or is gone; those of files are not judged."""
        counts: dict[tuple[str, str], int] = {}
        for record in self.records:
            if not _is_file(record.strategy):
                counts[record.strategy, record.strategy_hash] = counts.get((record.strategy, record.strategy_hash), 0) + 1
        found = []
        for (name, recorded), number in sorted(counts.items()):
            strategy = _of_library(name)
            now = None if strategy is None else strategy_hash(strategy)
            if now != recorded:
                found.append(Drift(name, recorded, now, number))
        return tuple(found)

    # ------------------------------------------------------------------------------------------ choosing

    def for_spec(self, spec: Spec, architecture: Any = None) -> Records:
        """The records for exactly a spec and the compute capability of an architecture, the fastest first."""
        asked, target = describe(spec), _target(architecture)
        found = [record for record in self.records if record.spec == asked and _capability(record.architecture) == target.capability]
        return Records(tuple(sorted(found, key=preference)))

    def best(
        self,
        spec: Spec,
        architecture: Any = None,
        neighbours: bool = True,
        *,
        gpu: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        accept: Accept = _any,
    ) -> Choice:
        """As `find`; where nothing answers, a StoreError that says which records there are and how to tune."""
        choice = self.find(spec, architecture, neighbours, gpu=gpu, strategies=strategies, accept=accept)
        if choice is None:
            raise self._nothing(spec, _target(architecture))
        return choice

    def find(
        self,
        spec: Spec,
        architecture: Any = None,
        neighbours: bool = True,
        *,
        gpu: str | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        accept: Accept = _any,
    ) -> Choice | None:
        """The record to take for a spec on an architecture, or None. Nothing is measured.

        1. Records of exactly this spec and this compute capability (`sm_90` serves `sm_90a`), the fastest first.
        2. With `neighbours`, records of other sizes, leading dimensions and alignments, of the same kind, element types and storage
           orders, and of the same major compute capability. The nearest first: the distance is
           `|log2 M/M'| + |log2 N/N'| + |log2 K/K'| / 2`, one more for another capability, at most `FARTHEST`; of equally near ones the
           fastest.

        Only those count whose strategy is legal for the spec with the recorded values. Of the legal neighbours that are about as near as
        the nearest one (`AS_NEAR`), at most `MOST_COMPARED`, the one is taken that the cost model predicts to be fastest here. Run-time
        sizes are answered by rule 1 only.
        Records of another `strategy_hash` than the strategy has now are skipped with an `OutdatedRecordWarning`.

        Args: `gpu`, the name of a GPU whose records are preferred to those of others; `strategies` by the names under which they are
            recorded, beside those of the library (a file that a record names is not executed); `accept`, what a lowered program must be
            beyond legal.
        """
        target, asked = _target(architecture), describe(spec)
        for record in sorted(self.for_spec(spec, target), key=functools.partial(preference, gpu=gpu)):
            program = _program(record, spec, target, strategies or {})
            if program is not None and accept(program) and _is_safe(program):
                return Choice(record, True, f"tuned for just this: {_said(record)}", program)
        if not neighbours:
            return None
        near = self._neighbours(spec, asked, target, gpu, strategies or {}, accept)
        if not near:
            return None
        ranked = sorted(near, key=lambda one: _predicted(one[2], one[1].gpu)) if len(near) > 1 else near
        safe = next((one for one in ranked if _is_safe(one[2])), None)
        if safe is None:
            return None
        distance, record, program = safe
        sizes = "x".join(map(str, record.shape))
        among = f", predicted to be the fastest of {len(near)} neighbours" if len(near) > 1 else ""
        return Choice(record, False, f"tuned for {sizes} (distance {distance:.2f}){among}, and legal here: {_said(record)}", program)

    def _neighbours(
        self,
        spec: Spec,
        asked: Mapping[str, Any],
        target: Architecture,
        gpu: str | None,
        strategies: Mapping[str, Strategy],
        accept: Accept,
    ) -> list[tuple[float, Record, Program]]:
        """The nearest records whose tiles and resources are legal here, with different values, and about as near as the nearest of them."""
        found: list[tuple[float, Record, Program]] = []
        seen: set[str] = set()
        for distance, record in self._ranked(asked, target, gpu):
            if len(found) == MOST_COMPARED or (found and distance > found[0][0] + AS_NEAR):
                break
            same = json.dumps([record.strategy, record.values], sort_keys=True)
            program = None if same in seen else _program(record, spec, target, strategies)
            seen.add(same)
            if program is not None and accept(program):
                found.append((distance, record, program))
        return found

    def _ranked(self, asked: Mapping[str, Any], target: Architecture, gpu: str | None) -> list[tuple[float, Record]]:
        """The neighbours, the nearest first: the best record of each strategy for each problem."""
        ranked = sorted(
            (
                (distance, preference(record, gpu=gpu), record)
                for record in self.records
                if (distance := _distance(record, asked, target)) is not None and distance <= FARTHEST
            ),
            key=lambda one: one[:2],
        )
        best: dict[tuple[Any, ...], tuple[float, Record]] = {}
        for distance, _, record in ranked:
            best.setdefault((record.strategy, json.dumps(record.spec, sort_keys=True), record.architecture), (distance, record))
        return list(best.values())[:MOST_TRIES]

    def _nothing(self, spec: Spec, target: Architecture) -> StoreError:
        asked = describe(spec)
        alike = sorted({_problem(record) for record in self.records if record.spec["kind"] == asked["kind"]})
        shown = "; ".join(alike[:6]) + (f"; and {len(alike) - 6} more" if len(alike) > 6 else "")
        return StoreError(
            f"no record answers for {_spec_words(asked)} on {target.name}",
            legal=shown or f"none of {len(self.records)} records is for a {asked['kind']}",
            hint=f"tune it on that GPU: {tune_command(spec, target.name)}",
        )


# ---------------------------------------------------------------------------------------------- the rules


def _same_measurement(record: Record) -> str:
    names = ("strategy", "strategy_hash", "values", "spec", "architecture", "gpu", "regime", "l2")
    return json.dumps([getattr(record, name) for name in names], sort_keys=True)


def _recency(record: Record) -> tuple[Any, ...]:
    return record.date, _version(record.toolchain), -record.us, record.line()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]{1,9}", text)))


def preference(record: Record, gpu: str | None = None) -> tuple[Any, ...]:
    """The asked GPU first, then times after a pause on rotated buffers, then the fastest."""
    return gpu is not None and record.gpu != gpu, record.regime != "burst", record.l2 != "rotated", record.us, record.line()


def _place(record: Record) -> tuple[Any, ...]:
    """Where a record stands in a file: what it is for, sizes by their value, then the fastest."""
    described = {name: part for name, part in record.spec.items() if name != "sizes"}
    sizes = [(isinstance(size, str), size) for size in record.shape]
    return json.dumps(described, sort_keys=True), sizes, record.architecture, record.gpu, *preference(record)


def _distance(record: Record, asked: Mapping[str, Any], target: Architecture) -> float | None:
    """How far a record is from what is asked for; None where it cannot answer."""
    capability = _capability(record.architecture)
    if capability // 10 != target.capability // 10 or _kept(record.spec) != _kept(asked):
        return None
    total = 0.0 if capability == target.capability else OTHER_CAPABILITY
    for name, size in asked["sizes"].items():
        other = record.spec["sizes"][name]
        if isinstance(size, str) or isinstance(other, str):
            return None
        total += WEIGHTS[name] * abs(math.log2(size / other))
    return total


def _kept(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a neighbour has in common: all but sizes, leading dimensions and alignments."""
    return {name: part for name, part in spec.items() if name not in ("sizes", "leading", "align", "symbols")}


def _capability(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def _target(architecture: Any) -> Architecture:
    return as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)


def _program(record: Record, spec: Spec, target: Architecture, strategies: Mapping[str, Strategy]) -> Program | None:
    """The record's strategy for the spec; None where it has changed since, is not known or not legal.

    It is lowered as far as comparing it with others needs; whether it can be synchronised, `_is_safe` says of the one that is taken.
    """
    strategy = current_strategy(record, strategies)
    if strategy is None:
        return None
    try:
        program = strategy.with_(**record.values)(spec).program(target)
        _ = program.sequential
    except FireironError:
        return None
    return program


def current_strategy(record: Record, strategies: Mapping[str, Strategy] | None = None) -> Strategy | None:
    """The strategy that a record names, if it still is what the record was made for; else None, with a warning.

    A strategy of a user's own file counts only where `strategies` names it: records never make a file run.
    """
    strategy = (strategies or {}).get(record.strategy) or _of_library(record.strategy)
    if strategy is None:
        if not _is_file(record.strategy):
            warnings.warn(f"records of {record.strategy} are not used: no strategy has this name", OutdatedRecordWarning, stacklevel=2)
        return None
    now = _hash_now(strategy)
    if now != record.strategy_hash:
        warnings.warn(
            f"records of {record.strategy} for {_spec_words(record.spec)} are not used: tuned for an older version of the strategy "
            f"({record.strategy_hash}, now {now}); fireiron list --drift shows them",
            OutdatedRecordWarning,
            stacklevel=2,
        )
        return None
    return strategy


def _is_safe(program: Program) -> bool:
    """Whether a program can be synchronised, and the independent check finds nothing."""
    try:
        _ = program.ir
    except FireironError:
        return False
    return True


def _predicted(program: Program, gpu: str) -> float:
    """Microseconds by the cost model, on the GPU of a record, or on the usual one of the architecture where it is not known.

    Barriers are guessed: finding them takes longer than all else, and of the compared programs only one needs them.
    """
    from fireiron.cost import predict
    from fireiron.cost.expected import with_expected_barriers

    kernel = with_expected_barriers(program.sequential)
    try:
        return predict(kernel, gpu).us
    except ArgumentError:  # a GPU without figures, or one that does not run this architecture
        return predict(kernel).us


def _is_file(name: str) -> bool:
    """Whether a record names a strategy of a user's own file."""
    return ":" in name or name.endswith(".py")


@functools.lru_cache(maxsize=256)
def _hash_now(strategy: Strategy) -> str:
    """`strategy_hash`, which takes milliseconds, once for each strategy."""
    return strategy_hash(strategy)


@functools.lru_cache(maxsize=256)
def _of_library(name: str) -> Strategy | None:
    """A strategy of the library by name."""
    from fireiron.language.library import find, names

    return find(name).strategy if name in names() else None


# ---------------------------------------------------------------------------------------------- words


def _said(record: Record) -> str:
    values = " ".join(f"{name}={value}" for name, value in record.values.items())
    return f"{record.strategy} {values or 'as it is'}, {record.us:.4g} us on {record.gpu}, {record.date}"


def _problem(record: Record) -> str:
    return f"{_spec_words(record.spec)} on {record.architecture}"


def _spec_words(spec: Mapping[str, Any]) -> str:
    """`MatMul 4096x4096x4096, float16 float16 float16, row row col`."""
    sizes = "x".join(str(spec["sizes"][dim.upper()]) for dim in KINDS[spec["kind"]].spec_class.dims)
    names = KINDS[spec["kind"]].spec_class.uses
    parts = [f"{spec['kind']} {sizes}", " ".join(spec["dtypes"][name] for name in names), " ".join(spec["layouts"][name] for name in names)]
    return ", ".join(parts)


def tune_command(spec: Spec, architecture: str, strategy: str | None = None) -> str:
    """The command line that tunes a spec."""
    from fireiron.language.library import defaults

    asked = describe(spec)
    words = ["fireiron tune", strategy or next((name for name, _ in defaults(spec, architecture)), "STRATEGY")]
    words += [f"-{name} {_size_word(size, asked)}" for name, size in asked["sizes"].items()]
    kinds = list(asked["dtypes"].values())
    words += [f"--dtype {kinds[0]}"] if kinds[0] != "float32" else []
    words.append(f"--layouts {''.join('T' if order == 'row' else 'N' for order in asked['layouts'].values())}")
    return " ".join([*words, f"--arch {architecture}"])


def _size_word(size: int | str, asked: Mapping[str, Any]) -> str:
    multiple = asked.get("symbols", {}).get(size, {}).get("multiple_of", 1)
    return f"{size}:{multiple}" if multiple != 1 else str(size)


# ---------------------------------------------------------------------------------------------- files


def _shipped() -> tuple[Path, ...]:
    folder = library_folder() / "records"
    return (folder,) if folder.is_dir() else ()


def record_files(*paths: str | Path) -> tuple[Path, ...]:
    """The files that are meant: of a folder all `*.jsonl` in it."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir() and not path.is_file():
            raise StoreError(f"{path} is no file of records" if path.exists() else f"{path}: there is no such file of records")
        found += sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return tuple(found)


def _stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file does; a file is read again only then."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


@functools.lru_cache(maxsize=32)
def _read(path: Path, stamp: tuple[int, int, int]) -> tuple[Record, ...]:
    lines = read_text(path).split("\n")
    if lines[-1] and not _is_whole(lines[-1]):
        warnings.warn(f"{path}:{len(lines)}: the last line was never finished and is left out", OutdatedRecordWarning, stacklevel=3)
        lines.pop()
    return tuple(parse_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def read_text(path: Path) -> str:
    """The text of a file of records."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no text: {error}") from None


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def parse_line(path: Path, number: int, line: str) -> Record:
    """The record of a line of a file; its errors name both."""
    try:
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ", "||||||| ")):
            raise StoreError("a conflict that git left", hint="keep the lines of both sides, then: fireiron records merge FILE -o FILE")
        return Record.parse(line)
    except StoreError as error:
        error.at = f"{path}:{number}"
        raise error from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, open to append, while no other process appends; it is the file that has the name now."""
    try:
        import fcntl
    except ImportError:
        with _lock_file(path), _opened(path) as file:
            yield file
        return
    while True:
        with _opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_current(path, file):
                yield file
                return


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _is_current(path: Path, file: int) -> bool:
    """Whether an open file still has its name: a merge may have put another one in its place meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """A file beside it that only one process can make, where the system has no locks."""
    lock, ends = path.with_name(f"{path.name}.lock"), time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > ends:
                raise StoreError(f"{path} is locked by another process", hint=f"if there is none, delete {lock}") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _append(path: Path, file: int, line: bytes) -> None:
    size = os.fstat(file).st_size
    tail = _tail(file, size)
    if tail and _is_whole(tail.decode("utf-8", "replace")):
        line = b"\n" + line
    elif tail:
        warnings.warn(f"{path}: its last line was never finished and is removed", OutdatedRecordWarning, stacklevel=4)
        size -= len(tail)
        os.ftruncate(file, size)
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _tail(file: int, size: int) -> bytes:
    """What stands behind the last end of a line."""
    tail, start = b"", size
    while start and b"\n" not in tail:
        start = max(start - 65536, 0)
        os.lseek(file, start, os.SEEK_SET)
        tail = os.read(file, size - start)
    return tail.rpartition(b"\n")[2]


def merge_files(files: Iterable[str | Path], target: str | Path) -> tuple[int, int]:
    """Merge files into one, which may be among them; how many records there were, and how many the file has.

    What another process appends to the target meanwhile waits, and is not lost.
    """
    sources = record_files(*files)
    Records.load(*sources)  # wrong lines are refused before the target is touched
    try:
        with _locked(Path(target)):
            found = [Records(_read(file, _stamp(file))) for file in sources]
            merged = Records().merged(*found)
            write_records(target, merged)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}") from None
    return sum(map(len, found)), len(merged)


def write_records(path: str | Path, records: Records) -> None:
    """Replace a file by records, all of it or nothing."""
    import secrets

    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(records.text())
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------- the answer


def available(pinned: bool | None = None) -> Records:
    """The records that answer here: those of the file in `FIREIRON_RECORDS` and the shipped ones; pinned, those of the file only.

    Raises: StoreError where records are pinned and no file is named.
    """
    from fireiron import settings

    path = settings.records_path()
    if not is_pinned(pinned):
        return Records.shipped() if path is None else Records.load(path).merged(Records.shipped())
    if path is None:
        raise StoreError("records are pinned, and no file of records is named", hint="set FIREIRON_RECORDS to the file")
    return Records.load(path)


def is_pinned(pinned: bool | None = None) -> bool:
    """Whether only exact records of the named file may answer: as asked, else as `FIREIRON_PINNED` says."""
    from fireiron import settings

    if pinned is not None and not isinstance(pinned, bool):
        raise ArgumentError("pinned: neither true nor false nor None", got=pinned)
    return settings.pinned() if pinned is None else pinned


def best(spec: Spec, arch: Any = None, pinned: bool | None = None, *, gpu: str | None = None, tune: bool = False) -> Strategy:
    """The strategy that is recorded as the best for a spec, bound to it, with its values; nothing is measured unless `tune` says so.

    Args:
        spec: a kernel's spec.
        arch: the target, `"sm_90"` if none is named.
        pinned: only a record of exactly this spec, from the file in `FIREIRON_RECORDS`, may answer; as `FIREIRON_PINNED` says if None.
        gpu: the name of a GPU whose records are preferred.
        tune: where no record is for exactly this spec, tune the library's default strategy for it on the current GPU, which takes
            minutes, and add the record to the file in `FIREIRON_RECORDS`, if one is named. Illegal where records are pinned.

    Raises: StoreError where no record answers; it says which there are, and the command that tunes.
    """
    strict = is_pinned(pinned)
    if tune and strict:
        raise ArgumentError("best(tune=True): records are pinned, so nothing is measured", hint="pinned=False, or tune elsewhere")
    records = available(pinned)
    if not tune:
        return records.best(spec, arch, neighbours=not strict, gpu=gpu).strategy
    choice = records.find(spec, arch, neighbours=False, gpu=gpu) or Records((_tuned(spec, arch),)).best(spec, arch, neighbours=False)
    return choice.strategy


def _tuned(spec: Spec, arch: Any) -> Record:
    """A fresh record of the default strategy, kept in the named file."""
    from fireiron import settings
    from fireiron.language.library import defaults, find
    from fireiron.tune import tune as measured

    target = _target(arch).name
    name = next((name for name, _ in defaults(spec, target)), None)
    if name is None:
        raise StoreError(f"the library has no default strategy for {spec}", hint=tune_command(spec, target))
    record = measured(find(name).strategy, spec, arch=target, name=name).best
    if record is None:
        raise StoreError(f"tuning {name} for {spec} found no values that are legal and right", hint=tune_command(spec, target, name))
    path = settings.records_path()
    if path is not None:
        Records.append_to(path, record)
    return record
