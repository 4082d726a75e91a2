"""The strategy library, `fireiron.strategies`, as a checkout and an editable install have it: the folder `strategies/` next to the package.

An installation has that folder's own files here instead (`setup.py` puts them here). Either way the library is found by its
place, so nothing else that is called `strategies` can hide it; docs/decisions/0017-strategy-library.md says why so. May import: nothing.

>>> from fireiron.strategies import naive
>>> naive.__name__
'fireiron.strategies.naive'
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "strategies")]
