"""Lock a file, so that only one process at a time appends to it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fireiron import files
from fireiron.errors import StoreError

LOCK_SECONDS: Final = 10.0
"""Seconds that an append waits for another append, on systems that cannot lock files."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Open a file to append, after other processes have finished their appends.

    Raises: StoreError if it is not a regular file, or its lock file existed for too long.
    """
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
        files.require_regular(path, file)
        yield file
    finally:
        os.close(file)


def _is_current(path: Path, file: int) -> bool:
    """Whether an open file still has its name. A merge may have replaced the file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Create a lock file next to a file, on systems without file locks. Only one process can create it."""
    lock, ends = path.with_name(f"{path.name}.lock"), time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > ends:
                raise StoreError(f"{path} is locked by another process", hint=f"if there is no such process, delete {lock}") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
