"""Files that are read and written as a whole: all of one or nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from fireiron.errors import ArgumentError, StoreError, call_site, shown

TAKEN = "another name, or ask to overwrite it (--force, overwrite=True)"
"""What helps where a file exists."""


LARGEST: Final = 1 << 28
"""Most bytes of a file that is read: far above any text of this package; a device has no end."""


def path_of(given: object, what: str) -> Path:
    """A path that somebody gave, as a text or a path; an `ArgumentError` for anything else."""
    try:
        name = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        name = None
    if not isinstance(name, str):
        raise ArgumentError(f"{what}: no path", got=given, legal="a text or a pathlib.Path", at=call_site())
    return Path(name[:])  # of a class of one's own that is derived from texts, too, a plain text


def bounded(path: Path) -> bytes:
    """All bytes of a file, or of a pipe; an OSError where it has more than `LARGEST`."""
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST} bytes")
    return data


def read(given: str | Path) -> bytes:
    """All bytes of a file, or of a pipe.

    Raises: StoreError where it cannot be read, or has more than `LARGEST`.
    """
    path = path_of(given, "read")
    try:
        return bounded(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL, or half a character, in the name
        raise StoreError(f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def there(path: Path) -> bool:
    """Whether a path exists.

    Raises: StoreError where nobody can tell: a name that is too long, a folder that is shut.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise StoreError(f"{shown(str(path))} cannot be looked for: {getattr(error, 'strerror', None) or error}") from None


def read_text(given: str | Path) -> str:
    """The text of a file, UTF-8; a `StoreError` where it cannot be read, or is none."""
    try:
        return read(given).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreError(f"{given} is no text: {error}") from None


def require_regular(path: Path, file: int) -> None:
    """Refuse an open file that is a device, a pipe, or a folder: it has no end, keeps nothing, or is shared with others.

    Raises: StoreError.
    """
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise StoreError(f"{path} is no regular file")


NEVER_WRITTEN: Final = (OSError, ValueError, RuntimeError)
"""What the system raises where a path cannot be written: ValueError for a NUL in the name, RuntimeError for links in a circle."""


def unwritten(path: str | Path, error: Exception) -> StoreError:
    """The error of a path that cannot be written, by what the system said."""
    return StoreError(f"{shown(str(path))} cannot be written: {getattr(error, 'strerror', None) or error}")


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
    except NEVER_WRITTEN as error:
        raise unwritten(path, error) from None
