"""Where this package and its strategy library lie, and which code is whose."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
"""The folder of this package."""

_OWN: Final = f"{PACKAGE}{os.sep}"
_INSTALLED: Final = f"{PACKAGE / 'strategies'}{os.sep}"


def library_folder() -> Path:
    """The folder of the strategy library, whatever else is called `strategies`."""
    from fireiron import strategies

    return Path(next(iter(strategies.__path__)))


@functools.lru_cache(maxsize=1024)  # asked of each frame between a call and the user's line
def is_own(filename: str) -> bool:
    """Whether a file of code is this package's; one of the strategy library counts as its user's, also where it is installed."""
    return filename.startswith(_OWN) and not filename.startswith(_INSTALLED)
