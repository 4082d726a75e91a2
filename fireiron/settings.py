"""Environment variables. Other modules of the package read only `NO_COLOR` and `TERM`.

The variables are read when they are needed, not at import, so a program may set them at any time. docs/environment.md lists them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fireiron.errors import ArgumentError

VARIABLES = (
    "FIREIRON_CACHE_DIR", "FIREIRON_NO_CACHE", "FIREIRON_RECORDS", "FIREIRON_REQUIRE_RECORD", "FIREIRON_STRATEGIES",
    "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "NO_COLOR", "FIREIRON_FUZZ",
)  # fmt: skip
"""The environment variables of this package and its tests."""

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


def cache_folder() -> Path:
    """Return the cache folder: `FIREIRON_CACHE_DIR`, or `$XDG_CACHE_HOME/fireiron`, or `~/.cache/fireiron`.

    It may not exist. `~` is expanded; a relative `XDG_CACHE_HOME` is ignored, as its specification requires. If a user has no home folder,
    the cache is in the folder for temporary files.
    """
    own = os.environ.get("FIREIRON_CACHE_DIR", "")
    if own:
        return Path(os.path.expanduser(own)).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "fireiron")
    return folder if folder.is_absolute() else Path(tempfile.gettempdir(), f"fireiron-{_user()}")


def _user() -> str:
    """Return a name for the current user in file names; other systems than POSIX have no user numbers."""
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def cache_enabled() -> bool:
    """Return whether compiled kernels are cached on disk; `FIREIRON_NO_CACHE=1` disables the cache."""
    return not _flag("FIREIRON_NO_CACHE")


def records_path() -> Path | None:
    """Return the file or the folder of tuned records, `FIREIRON_RECORDS`; None if it is not set."""
    given = os.environ.get("FIREIRON_RECORDS", "")
    return Path(os.path.expanduser(given)).absolute() if given else None


def strategies_folder() -> Path | None:
    """Return the folder of a team's strategies, `FIREIRON_STRATEGIES`; None if it is not set."""
    given = os.environ.get("FIREIRON_STRATEGIES", "")
    return Path(os.path.expanduser(given)).absolute() if given else None


def require_record() -> bool:
    """Return whether only exact records may be used, because of `FIREIRON_REQUIRE_RECORD=1`."""
    return _flag("FIREIRON_REQUIRE_RECORD")


def toolkit_folders() -> tuple[Path, ...]:
    """Return the CUDA toolkits of `CUDA_HOME` and `CUDA_PATH`."""
    given = dict.fromkeys(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    return tuple(Path(folder) for folder in given if folder)


def given() -> dict[str, str]:
    """Return the variables of `VARIABLES` that are set, and others with the same prefix, which may be misspelled."""
    return {name: value for name, value in sorted(os.environ.items()) if name in VARIABLES or name.startswith("FIREIRON_")}


def _flag(name: str) -> bool:
    """Return whether a variable is on.

    Raises:
        ArgumentError: the value is neither on nor off, for example misspelled.
    """
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_YES, *_NO):
        raise ArgumentError(f"the environment variable {name} must be on or off", got=os.environ[name], legal=[*_YES, *_NO[1:]])
    return value in _YES
