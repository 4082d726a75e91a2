"""What the environment variables say; no other module of the package reads them (but `NO_COLOR` and `TERM`, for colours).

They are read when they are needed, not at import, so a program may set them at any time. docs/environment.md is the list.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fireiron.errors import ArgumentError

VARIABLES = (
    "FIREIRON_CACHE_DIR", "FIREIRON_NO_CACHE", "FIREIRON_RECORDS", "FIREIRON_REQUIRE_RECORD", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "NO_COLOR", "FIREIRON_FUZZ",
)  # fmt: skip
"""The environment variables that change what this package or its tests do."""

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


def cache_folder() -> Path:
    """The folder for what can be made again: `FIREIRON_CACHE_DIR`, else `$XDG_CACHE_HOME/fireiron`, else `~/.cache/fireiron`.

    It may not exist. `~` is expanded; a relative `XDG_CACHE_HOME` does not count, as its specification asks. A user without a
    home gets a folder of his own among the temporary ones.
    """
    own = os.environ.get("FIREIRON_CACHE_DIR", "")
    if own:
        return Path(os.path.expanduser(own)).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "fireiron")
    return folder if folder.is_absolute() else Path(tempfile.gettempdir(), f"fireiron-{os.getuid()}")


def cache_enabled() -> bool:
    """Whether compiled kernels are kept on disk: unless `FIREIRON_NO_CACHE=1`."""
    return not _flag("FIREIRON_NO_CACHE")


def records_path() -> Path | None:
    """The file of tuned records, `FIREIRON_RECORDS`; None if it is not set."""
    given = os.environ.get("FIREIRON_RECORDS", "")
    return Path(os.path.expanduser(given)).absolute() if given else None


def require_record() -> bool:
    """Whether only recorded choices may be used, nothing is measured or guessed: `FIREIRON_REQUIRE_RECORD=1`."""
    return _flag("FIREIRON_REQUIRE_RECORD")


def toolkit_folders() -> tuple[Path, ...]:
    """The CUDA toolkits that `CUDA_HOME` and `CUDA_PATH` name, as other CUDA software has it."""
    given = dict.fromkeys(os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH"))
    return tuple(Path(folder) for folder in given if folder)


def given() -> dict[str, str]:
    """Those of `VARIABLES` that are set, with whatever else begins as ours do: a typing error would do nothing, without a word."""
    return {name: value for name, value in sorted(os.environ.items()) if name in VARIABLES or name.startswith("FIREIRON_")}


def _flag(name: str) -> bool:
    """A variable that is on or off.

    Raises:
        ArgumentError: it is neither: a typing error must not decide.
    """
    value = os.environ.get(name, "").strip().lower()
    if value not in (*_YES, *_NO):
        raise ArgumentError(f"the environment variable {name} is on or off", got=os.environ[name], legal=[*_YES, *_NO[1:]])
    return value in _YES
