"""Files of records: read lines, and append one, all or nothing."""

from __future__ import annotations

import functools
import json
import os
import warnings
from pathlib import Path

from fireiron import files
from fireiron.errors import StoreError
from fireiron.files import path_of
from fireiron.tune.record import Record
from fireiron.tune.records.drift import OutdatedRecordWarning


def record_files(*paths: str | Path) -> tuple[Path, ...]:
    """The files that are meant: of a folder all `*.jsonl` in it; a `StoreError` where there is none."""
    found: list[Path] = []
    for path in (path_of(one, "records") for one in paths):
        try:
            there = path.exists()
        except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
            raise StoreError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not path.is_dir() and not path.is_file():
            raise StoreError(f"{path} is no file of records" if there else f"{path}: there is no such file of records")
        found += sorted(one for one in path.glob("*.jsonl") if one.is_file()) if path.is_dir() else [path]  # a pipe would be waited for
    return tuple(found)


def stamp(path: Path) -> tuple[int, int, int]:
    """Return the stamp of a file, which changes when the file changes."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


@functools.lru_cache(maxsize=32)
def read(path: Path, stamp: tuple[int, int, int]) -> tuple[Record, ...]:
    """Return the records of a file, each checked."""
    lines = read_text(path).split("\n")
    if lines[-1] and not _is_whole(lines[-1]):
        warnings.warn(f"{path}:{len(lines)}: the last line was never finished and is left out", OutdatedRecordWarning, stacklevel=3)
        lines.pop()
    return tuple(parse_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def read_checked(path: Path) -> tuple[Record, ...]:
    """The records of a file that were checked before they were put there; where a line is none after all, as `read` says it."""
    try:
        return Record.checked(line for line in read_text(path).split("\n") if line)
    except (ValueError, KeyError, TypeError, AttributeError):
        return read(path, stamp(path))


def read_text(path: Path) -> str:
    """Return the text of a file of records. Raises: `StoreError` if it cannot be read."""
    return files.read_text(path)


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def parse_line(path: Path, number: int, line: str) -> Record:
    """Return the record of a line of a file; errors name both."""
    try:
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ", "||||||| ")):
            raise StoreError("a conflict that git left", hint="keep the lines of both sides, then: fireiron records merge FILE -o FILE")
        return Record.parse(line)
    except StoreError as error:
        error.at = f"{path}:{number}"
        raise error from None


def append(path: Path, file: int, line: bytes) -> None:
    size = os.fstat(file).st_size
    tail = _tail(file, size)
    if tail and _is_whole(tail.decode("utf-8", "replace")):
        line = b"\n" + line
    elif tail and not tail.startswith(b"{"):
        raise StoreError(f"{path}: the last line is no record, nor the beginning of one", hint="another file for records")
    elif tail:
        warnings.warn(f"{path}: its last line was never finished and is removed", OutdatedRecordWarning, stacklevel=4)
        os.ftruncate(file, size - len(tail))
    files.append(file, line)


def _tail(file: int, size: int) -> bytes:
    """Return the text after the last newline."""
    tail, start = b"", size
    while start and b"\n" not in tail:
        start = max(start - 65536, 0)
        os.lseek(file, start, os.SEEK_SET)
        tail = os.read(file, size - start)
    return tail.rpartition(b"\n")[2]
