"""Read and write complete files atomically."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from fireiron.errors import ArgumentError, StoreError, call_site, shown

TAKEN = "use another name, or overwrite it (--force, overwrite=True)"
"""The hint if a file exists."""

LARGEST: Final = 1 << 28
"""Maximum bytes of a file to read: much larger than any text of this package. The limit is for device files, which have no end."""


def path_of(given: object, what: str) -> Path:
    """Return a given path. Raises: `ArgumentError` if it is neither a text nor a path."""
    try:
        name = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        name = None
    if not isinstance(name, str):
        raise ArgumentError(f"{what}: the argument is not a path", got=given, legal="a text or a pathlib.Path", at=call_site())
    return Path(name[:])  # convert subclasses of str to str


def bounded(path: Path) -> bytes:
    """Return all bytes of a file or a pipe. Raises: `OSError` if there are more than `LARGEST`."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST} bytes")
    return data


def read(given: str | Path) -> bytes:
    """Return all bytes of a file or a pipe.

    Raises: StoreError if it cannot be read, or has more than `LARGEST` bytes.
    """
    path = path_of(given, "read")
    try:
        return bounded(path)
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL or an unpaired surrogate
        raise StoreError(f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def exists(path: Path) -> bool:
    """Return whether a path exists.

    Raises: StoreError if this cannot be determined: the name is too long, or a folder cannot be read.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise StoreError(f"{shown(str(path))} cannot be accessed: {getattr(error, 'strerror', None) or error}") from None


def read_text(given: str | Path) -> str:
    """Return the UTF-8 text of a file. Raises: `StoreError` if it cannot be read, or is not text."""
    try:
        return read(given).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{given} is not text: {error}") from None


def require_regular(path: Path, file: int) -> None:
    """Refuse an open file that is a device, a pipe, or a folder.

    Raises: StoreError.
    """
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise StoreError(f"{path} is not a regular file")


NEVER_WRITTEN: Final = (OSError, ValueError, RuntimeError)
"""The errors of paths that cannot be written: ValueError for NUL in the name, RuntimeError for a cycle of links."""


def unwritten(path: str | Path, error: Exception) -> StoreError:
    """Return the error for a path that cannot be written."""
    return StoreError(f"{shown(str(path))} cannot be written: {getattr(error, 'strerror', None) or error}")


def append(file: int, data: bytes, *, sync: bool = True) -> None:
    """Append all of `data` to an open file, or nothing; with `sync`, write it to disk before returning.

    Raises: `OSError` if the disk is full.
    """
    size = os.fstat(file).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        if sync:
            os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def write(given: str | Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file atomically; refuse to replace an existing file unless `overwrite`. Links are followed.

    Raises: StoreError if it exists, is not a regular file, or cannot be written.
    """
    import secrets  # imported when needed, because this takes milliseconds

    path = target = path_of(given, "write")
    try:
        target = target.resolve() if target.is_symlink() else target
        part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        if target.exists() and not target.is_file():
            raise StoreError(f"{path} is not a regular file")
        if target.exists() and not overwrite:
            raise StoreError(f"{path} exists", hint=TAKEN)
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                part.replace(target)
            else:
                target.hardlink_to(part)  # fails if another process has created the file
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise StoreError(f"{path} exists", hint=TAKEN) from None
    except NEVER_WRITTEN as error:
        raise unwritten(path, error) from None
