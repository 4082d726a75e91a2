"""Values of this package on disk, under a digest of all that they follow from: what one process made, the next one reads.

A value is written by pickle and read by a reader of its own, which makes nothing but attrs classes and enumerations of this package,
and texts, numbers, tuples and the like: it calls no function, and imports nothing else. An entry is one file: a first line, a SHA-256
over everything behind it, a line of JSON that says what it is, then the value. What is damaged, cut off, misplaced, or of another
build of this package is not used. docs/decisions/0068-program-cache.md says why so.
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
"""The parts of this package whose values are kept: those of the language and of kernel IR, none that runs or writes anything."""

DIGITS: Final = 64
"""Hexadecimal digits of SHA-256."""


UNREADABLE: Final = (
    *(pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError),
    *(MemoryError, OverflowError, RecursionError, TypeError, ValueError),
)
"""What a reader meets in bytes that nobody wrote so."""


class DamagedError(Exception):
    """An entry is not what was written."""


class _OtherError(Exception):
    """A value has a part that is not of this package."""


UNWRITABLE: Final = (_OtherError, pickle.PicklingError, TypeError, RecursionError)
"""What a writer meets in values that are not kept."""


# ---------------------------------------------------------------------------------------------- keys


def key_of(*parts: Any) -> str | None:
    """A digest of values, of this package's build, and of Python's version; None where a part is of a class that is not of this package.

    Equal for equal values, in every process.
    """
    try:
        written = _written((FORMAT, build(), sys.version_info[:2], parts), shared=False)
    except UNWRITABLE:
        return None
    return hashlib.sha256(written).hexdigest()


@functools.cache
def build() -> str:
    """What tells the code of this package and of its strategy library from all other: names, sizes and times of their files."""
    digest = hashlib.sha256(VERSION.encode())
    for folder in (PACKAGE, library_folder()):
        for name, size, changed in sorted(_sources(os.fspath(folder), "")):
            digest.update(f"{name} {size} {changed}\n".encode())
    return digest.hexdigest()


def _sources(folder: str, within: str) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of the Python files in a folder and in those inside it; quicker than by paths."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                yield within + entry.name, status.st_size, status.st_mtime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path, f"{within}{entry.name}/")


# ---------------------------------------------------------------------------------------------- values


class _Writer(pickle.Pickler):
    """Writes nothing that `_Reader` would not read."""

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if not is_readable(kind):
            raise _OtherError(f"{kind.__module__}.{kind.__qualname__}")
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Makes values of this package's classes, and of no others."""

    def find_class(self, module: str, name: str) -> Any:
        if not _is_ours(module) or "." in name:
            raise DamagedError(f"it names {module}.{name}")
        found = getattr(importlib.import_module(module), name, None)
        if not isinstance(found, type) or not is_readable(found):
            raise DamagedError(f"it names {module}.{name}")
        return found


@functools.cache
def is_readable(kind: type) -> bool:
    """Whether values of a class are written and read: attrs classes and enumerations of this package."""
    return _is_ours(kind.__module__) and (attrs.has(kind) or issubclass(kind, enum.Enum))


def _is_ours(module: str) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in OURS)


def _written(value: Any, shared: bool = True) -> bytes:
    """A value in bytes; those of equal values are equal unless what is `shared` in it is written once."""
    buffer = io.BytesIO()
    writer = _Writer(buffer, 5)
    writer.fast = not shared
    writer.dump(value)
    return buffer.getvalue()


# ---------------------------------------------------------------------------------------------- entries


def encoded(first: bytes, head: Mapping[str, Any], *parts: bytes) -> bytes:
    """An entry: its first line, the digest of the rest, its head, its parts."""
    body = b"".join((json.dumps({**head, "sizes": [len(part) for part in parts]}, sort_keys=True).encode(), b"\n", *parts))
    return b"".join((first, hashlib.sha256(body).hexdigest().encode(), b"\n", body))


def opened(data: bytes, first: bytes) -> tuple[bytes, bytes]:
    """The head of an entry and what is behind it; a `DamagedError` where the digest is not that of them."""
    start = len(first) + DIGITS + 1
    if not data.startswith(first):
        raise DamagedError("it is no entry of this format")
    body = data[start:]
    if data[len(first) : start] != hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise DamagedError("its digest is wrong: it was cut off or changed")
    line, _, rest = body.partition(b"\n")
    return line, rest


def place(cache: Path, kind: str, key: str) -> Path:
    """The file of an entry in a cache, two folders deep, so that no folder becomes long."""
    return cache / "kernels" / key[:2] / key[2:4] / f"{key}.{kind}"


def save(path: Path, data: bytes) -> None:
    """Write an entry, whole or not at all.

    Raises: OSError where the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def first_line(kind: str) -> bytes:
    """The first line of entries of a kind."""
    return f"fireiron {kind} {FORMAT}\n".encode()


def written(kind: str, key: str, value: Any, about: Mapping[str, Any]) -> bytes | None:
    """The entry of a value, with what is said of it; None where a part of it is not of this package."""
    try:
        data = _written(value)
    except UNWRITABLE:
        return None
    head = {**about, "key": key, "created": time.time(), "fireiron": VERSION}
    return encoded(first_line(kind), head, data)


def read(kind: str, key: str, data: bytes) -> tuple[Any, Mapping[str, Any]]:
    """The value of an entry, and what is said of it; a `DamagedError` where it is not one of this kind and key."""
    line, rest = opened(data, first_line(kind))
    try:
        head = json.loads(line)
        if head["key"] != key:
            raise DamagedError("it is the entry of another key")
        return _Reader(io.BytesIO(rest)).load(), head
    except DamagedError:
        raise
    except UNREADABLE as error:
        raise DamagedError(f"it is not laid out as this version writes it ({type(error).__name__}: {error})") from None


def bytes_at(path: Path) -> bytes | None:
    """The bytes of an entry, whose time of last use becomes now; None where there is none that can be read."""
    try:
        data = files.bounded(path) if path.is_file() else None  # a pipe of that name would be waited for
    except OSError:
        return None
    if data is not None:
        with contextlib.suppress(OSError):  # a read-only cache serves too
            os.utime(path)
    return data


__all__ = ["DamagedError", "build", "bytes_at", "encoded", "is_readable", "key_of", "opened", "place", "read", "save", "written"]
