"""Files that are written as a whole: all of one or nothing."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fireiron.errors import StoreError

TAKEN = "another name, or ask to overwrite it (--force, overwrite=True)"
"""What helps where a file exists."""


def write(path: str | Path, data: bytes, *, overwrite: bool = False) -> None:
    """Write a file, all of it or nothing; an existing file stays unless `overwrite`. A link is followed.

    Raises: StoreError where it exists, is no regular file, or cannot be written.
    """
    try:
        target = Path(path)
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
        raise StoreError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None
