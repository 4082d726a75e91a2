"""Locate the strategy library `fireiron.strategies` in the folder `strategies/` next to the package.

This file exists only in a checkout and in an editable install. In other installations, `setup.py` copies the files of that folder here. In
both cases the library is located by its path, so that another package called `strategies` cannot hide it
(docs/decisions/0017-strategy-library.md).

May import: nothing.

>>> from fireiron.strategies import naive
>>> naive.__name__
'fireiron.strategies.naive'
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "strategies")]
