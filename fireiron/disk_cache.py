"""A disk cache of values of this package, by a digest of everything that determines them.

Values are written by pickle. A restricted reader creates only attrs classes and enumerations of this package, and basic values such as
texts, numbers and tuples. It calls no function and imports no other module. An entry is one file: a first line, a SHA-256 digest of the
rest, a line of JSON that describes the entry, then the value. Entries that are damaged, truncated, misplaced, or of another build are
ignored. See docs/decisions/0068-program-cache.md.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import io
import json
import os
import pickle
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron import files
from fireiron._version import VERSION
from fireiron.package_paths import PACKAGE, library_folder

FORMAT: Final = 1
"""Version of entries and keys; entries of other versions are ignored."""

OURS: Final = tuple(
    f"fireiron.{part}"
    for part in ("values", "spec", "specs", "ir", "language", "decomp", "refine", "executable", "performing", "stepping", "tune.record")
)
"""The parts of this package whose values can be cached: the language and kernel IR."""

DIGITS: Final = 64
"""Hexadecimal digits of a SHA-256 digest."""

UNREADABLE: Final = (
    *(pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError),
    *(MemoryError, OverflowError, RecursionError, TypeError, ValueError),
)
"""The errors of reading bytes that are not a valid entry."""


class DamagedError(Exception):
    """An entry differs from what was written."""


class _OtherError(Exception):
    """A value contains an object of another package."""


UNWRITABLE: Final = (_OtherError, pickle.PicklingError, TypeError, RecursionError)
"""The errors of writing values that cannot be cached."""


# ---------------------------------------------------------------------------------------------- keys


def key_of(*parts: Any) -> str | None:
    """Return a digest of values, this package's build, and Python's version; None if a part is of a class of another package.

    Equal values have equal digests in every process.
    """
    try:
        written = _written((FORMAT, build(), sys.version_info[:2], parts), shared=False)
    except UNWRITABLE:
        return None
    return hashlib.sha256(written).hexdigest()


@functools.cache
def build() -> str:
    """Return a digest of the build of this package and its strategy library: names, sizes and times of their files."""
    digest = hashlib.sha256(VERSION.encode())
    for folder in (PACKAGE, library_folder()):
        for name, size, changed in sorted(_sources(os.fspath(folder), "")):
            digest.update(f"{name} {size} {changed}\n".encode())
    return digest.hexdigest()


def _sources(folder: str, within: str) -> Iterator[tuple[str, int, int]]:
    """Yield names, sizes and times of the Python files in a folder, recursively; `os.scandir` is faster than `pathlib`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield within + entry.name, status.st_size, status.st_mtime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path, f"{within}{entry.name}/")


# ---------------------------------------------------------------------------------------------- values


class _Writer(pickle.Pickler):
    """Rejects objects that `_Reader` would reject."""

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if not is_readable(kind):
            raise _OtherError(f"{kind.__module__}.{kind.__qualname__}")
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Creates values of this package's classes only."""

    def find_class(self, module: str, name: str) -> Any:
        if not _is_ours(module) or "." in name:
            raise DamagedError(f"it contains the class {module}.{name}")
        cls = getattr(importlib.import_module(module), name, None)
        if not isinstance(cls, type) or not is_readable(cls):
            raise DamagedError(f"it contains the class {module}.{name}")
        return cls


@functools.cache
def is_readable(kind: type) -> bool:
    """Return whether values of a class are cached: attrs classes and enumerations of this package."""
    return _is_ours(kind.__module__) and (attrs.has(kind) or issubclass(kind, enum.Enum))


def _is_ours(module: str) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in OURS)


def _written(value: Any, shared: bool = True) -> bytes:
    """Return a value as bytes. Equal values have equal bytes unless `shared`: then parts that occur several times are written once."""
    buffer = io.BytesIO()
    writer = _Writer(buffer, 5)
    writer.fast = not shared
    writer.dump(value)
    return buffer.getvalue()


# ---------------------------------------------------------------------------------------------- entries


def encoded(first: bytes, head: Mapping[str, Any], *parts: bytes) -> bytes:
    """Return the bytes of an entry: first line, digest of the rest, head, parts."""
    body = b"".join((json.dumps({**head, "sizes": [len(part) for part in parts]}, sort_keys=True).encode(), b"\n", *parts))
    return b"".join((first, hashlib.sha256(body).hexdigest().encode(), b"\n", body))


def opened(data: bytes, first: bytes) -> tuple[bytes, bytes]:
    """Return the head and the content of an entry. Raises: `DamagedError` if the digest is wrong."""
    start = len(first) + DIGITS + 1
    if not data.startswith(first):
        raise DamagedError("it is not an entry of this format")
    body = data[start:]
    if data[len(first) : start] != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise DamagedError("its digest is wrong: it was truncated or changed")
    line, _, rest = body.partition(b"\n")
    return line, rest


def place(cache: Path, kind: str, key: str) -> Path:
    """Return the file of an entry in a cache, in two levels of folders, so that folders stay small."""
    return cache / "kernels" / key[:2] / key[2:4] / f"{key}.{kind}"


def save(path: Path, data: bytes) -> None:
    """Write an entry atomically.

    Raises: OSError if the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def first_line(kind: str) -> bytes:
    """Return the first line of entries of a kind."""
    return f"fireiron {kind} {FORMAT}\n".encode()


def written(kind: str, key: str, value: Any, about: Mapping[str, Any]) -> bytes | None:
    """Return the entry of a value with its description; None if a part is of another package."""
    try:
        data = _written(value)
    except UNWRITABLE:
        return None
    head = {**about, "key": key, "created": time.time(), "fireiron": VERSION}
    return encoded(first_line(kind), head, data)


def read(kind: str, key: str, data: bytes) -> tuple[Any, Mapping[str, Any]]:
    """Return the value and the description of an entry. Raises: `DamagedError` if its kind or key differs."""
    line, rest = opened(data, first_line(kind))
    try:
        head = json.loads(line)
        if head["key"] != key:
            raise DamagedError("it is the entry of another key")
        return _Reader(io.BytesIO(rest)).load(), head
    except DamagedError:
        raise
    except UNREADABLE as error:
        raise DamagedError(f"its layout is not that of this version ({type(error).__name__}: {error})") from None


def bytes_at(path: Path) -> bytes | None:
    """Return the bytes of an entry and update its time of last use; None if it cannot be read."""
    try:
        data = files.bounded(path) if path.is_file() else None  # reading a pipe of this name would block
    except OSError:
        return None
    if data is not None:
        with contextlib.suppress(OSError):  # a read-only cache is usable, too
            os.utime(path)
    return data


__all__ = ["DamagedError", "build", "bytes_at", "encoded", "is_readable", "key_of", "opened", "place", "read", "save", "written"]
