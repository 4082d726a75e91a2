"""Files of records: read their lines, and append a line atomically."""

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
from fireiron.tune.records.outdated import OutdatedRecordWarning


def record_files(*paths: str | Path) -> tuple[Path, ...]:
    """Return the files of the given paths: all `*.jsonl` of a folder. Raises: `StoreError` if a path does not exist."""
    record_paths: list[Path] = []
    for path in (path_of(given, "records") for given in paths):
        try:
            exists = path.exists()
        except (OSError, ValueError) as error:  # the name is too long, or contains a NUL
            raise StoreError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not path.is_dir() and not path.is_file():
            raise StoreError(f"{path} is not a file of records" if exists else f"{path}: the file of records does not exist")
        record_paths += sorted(file for file in path.glob("*.jsonl") if file.is_file()) if path.is_dir() else [path]  # a pipe would block
    return tuple(record_paths)


def stamp(path: Path) -> tuple[int, int, int]:
    """Return the stamp of a file, which changes when the file changes."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino


@functools.lru_cache(maxsize=32)
def read(path: Path, stamp: tuple[int, int, int]) -> tuple[Record, ...]:
    """Return the records of a file, and check each of them."""
    lines = read_text(path).split("\n")
    if lines[-1] and not _is_whole(lines[-1]):
        warnings.warn(f"{path}:{len(lines)}: the last line is incomplete and is ignored", OutdatedRecordWarning, stacklevel=3)
        lines.pop()
    return tuple(parse_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def read_checked(path: Path) -> tuple[Record, ...]:
    """Return the records of a file whose lines were checked before they were written. An invalid line causes the errors of `read`."""
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
    """Return the record of a line of a file. Errors contain the file and the line number."""
    try:
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ", "||||||| ")):
            raise StoreError(
                "the line is a merge conflict of git", hint="keep the lines of both sides, then: fireiron records merge FILE -o FILE"
            )
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
        raise StoreError(f"{path}: the last line is neither a record nor the beginning of one", hint="use another file for records")
    elif tail:
        warnings.warn(f"{path}: the last line is incomplete and is removed", OutdatedRecordWarning, stacklevel=4)
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
