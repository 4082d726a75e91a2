"""Verbs of steps and refinements that are found in their folders: methods of everything that a chain starts from, and of chains.

Those of the language are written out, in `specs/verbs.py` and `language/strategy.py`; `language/methods.py` fills these classes when the
package is loaded. What type checkers read is `found.pyi`, written by `make names`.
"""

from __future__ import annotations


class FoundSteps:
    """The verbs of found steps, for `Verbs`."""

    __slots__ = ()


class FoundRefinements:
    """The verbs of found refinements, for `Strategy`."""

    __slots__ = ()
