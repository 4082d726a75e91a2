"""Files that are read and written as a whole: all of one or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fireiron.errors import ArgumentError, StoreError, call_site, shown

TAKEN = "another name, or ask to overwrite it (--force, overwrite=True)"
"""What helps where a file exists."""


LARGEST: Final = 1 << 28
"""Bytes of a file that is read: no text of this package comes near, and a device has no end."""


def path_of(given: object, what: str) -> Path:
    """A path that somebody gave, as a text or a path; an `ArgumentError` for anything else."""
    try:
        name = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        name = None
    if not isinstance(name, str):
        raise ArgumentError(f"{what}: no path", got=given, legal="a text or a pathlib.Path", at=call_site())
    return Path(name[:])  # of a class of one's own that is derived from texts, too, a plain text


def read(given: str | Path) -> bytes:
    """All bytes of a file, or of a pipe.

    Raises: StoreError where it cannot be read, or has more than `LARGEST`.
    """
    path = path_of(given, "read")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL, or half a character, in the name
        raise StoreError(f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > LARGEST:
        raise StoreError(f"{path} cannot be read: it has more than {LARGEST} bytes")
    return data


def read_text(given: str | Path) -> str:
    """The text of a file, UTF-8; a `StoreError` where it cannot be read, or is none."""
    try:
        return read(given).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{given} is no text: {error}") from None


def append(file: int, data: bytes, *, sync: bool = True) -> None:
    """Add to an open file, all of it or nothing, and on the disk when this returns if `sync`; an OSError where there is no room."""
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
    """Write a file, all of it or nothing; an existing file stays unless `overwrite`. A link is followed.

    Raises: StoreError where it exists, is no regular file, or cannot be written.
    """
    import secrets  # takes milliseconds, and most programs that import this package need none

    path = target = path_of(given, "write")
    try:
        target = target.resolve() if target.is_symlink() else target
        part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        if target.exists() and not target.is_file():
            raise StoreError(f"{path} is no regular file")
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
                target.hardlink_to(part)  # fails where the file has appeared meanwhile
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise StoreError(f"{path} exists", hint=TAKEN) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise StoreError(f"{shown(str(path))} cannot be written: {getattr(error, 'strerror', None) or error}") from None
