"""Libraries of this package that the host's compiler makes of its sources, once, and the cache keeps."""

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

import attrs

from fireiron import settings
from fireiron.errors import CacheWarning, LaunchError


def folder(what: str) -> Path:
    """The cache's folder; one of this process alone where there is no cache, or it cannot be written: `what` is compiled anew then."""
    if settings.cache_enabled():
        found = settings.cache_folder()
        try:
            found.mkdir(parents=True, exist_ok=True)
            if os.access(found, os.W_OK | os.X_OK):
                return found
            why = "Permission denied"
        except OSError as error:
            why = error.strerror or str(error)
        warnings.warn(f"{found} cannot be written ({why}): {what} is compiled anew", CacheWarning, stacklevel=2)
    return Path(tempfile.mkdtemp(prefix="fireiron-"))


def compiler_among(names: Iterable[str]) -> str | None:
    """The first compiler that is installed."""
    return next((found for one in names if (found := shutil.which(one))), None)


def digest_of(parts: Iterable[bytes]) -> str:
    """What tells a library's sources, headers and compiler options from others."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


@attrs.frozen
class Building:
    """A library that is being compiled by a process of its own; the file is there whole or not at all."""

    command: Sequence[str]
    path: Path
    _part: Path
    _process: subprocess.Popen[str]

    @classmethod
    def start(cls, command: Sequence[str], path: Path) -> Building:
        """Compile by a command, to which `-o FILE` is added."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        process = subprocess.Popen(
            [*command, "-o", str(part)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return cls(command, path, part, process)

    @property
    def is_running(self) -> bool:
        """Whether the compiler is still at work."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        """Wait for the compiler, at most so long.

        Raises: subprocess.TimeoutExpired where it takes longer.
        """
        self._process.wait(seconds)

    def finish(self, what: str) -> Path:
        """Wait for the file.

        Raises: LaunchError where the compiler refuses.
        """
        said, _ = self._process.communicate()
        if self._process.returncode:
            with contextlib.suppress(OSError):
                self._part.unlink()
            raise LaunchError(f"{self.command[0]} does not compile {what}", got=said.strip()[:2000])
        self._part.replace(self.path)
        return self.path


__all__ = ["Building", "compiler_among", "digest_of", "folder"]
