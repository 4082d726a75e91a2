"""Compile native libraries of this package with the host's compiler and store them in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from fireiron import settings
from fireiron.errors import CacheWarning, LaunchError
from fireiron.frozen import frozen


def folder(what: str) -> Path:
    """Return the cache folder. Without a writable cache, return a folder of this process, so that `what` is compiled again."""
    if settings.cache_enabled():
        cache = settings.cache_folder()
        try:
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK | os.X_OK):
                return cache
            why = "Permission denied"
        except OSError as error:
            why = error.strerror or str(error)
        warnings.warn(f"{cache} cannot be written ({why}): {what} is compiled again", CacheWarning, stacklevel=2)
    return Path(tempfile.mkdtemp(prefix="fireiron-"))


def compiler_among(names: Iterable[str]) -> str | None:
    """Return the first installed compiler."""
    return next((path for name in names if (path := shutil.which(name))), None)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a digest of a library's sources, headers and compiler options."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


@frozen
class Building:
    """A library that a separate process compiles. The file exists only after it is complete."""

    command: Sequence[str]
    path: Path
    _part: Path
    _process: subprocess.Popen[str]

    @classmethod
    def start(cls, command: Sequence[str], path: Path) -> Building:
        """Start a compiler command, to which `-o FILE` is appended."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        process = subprocess.Popen(
            [*command, "-o", str(part)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return cls(command, path, part, process)

    @property
    def is_running(self) -> bool:
        """Return whether the compiler is still running."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        """Wait for the compiler, at most `seconds`.

        Raises: subprocess.TimeoutExpired if it takes longer.
        """
        self._process.wait(seconds)

    def finish(self, what: str) -> Path:
        """Wait for the compiler and return the file of the library.

        Raises: LaunchError if the compiler reports an error.
        """
        output, _ = self._process.communicate()
        if self._process.returncode:
            with contextlib.suppress(OSError):
                self._part.unlink()
            raise LaunchError(f"{self.command[0]} cannot compile {what}", got=output.strip()[:2000])
        self._part.replace(self.path)
        return self.path


__all__ = ["Building", "compiler_among", "digest_of", "folder"]
