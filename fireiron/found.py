"""What chains, and what they start from, offer: filled when the package is loaded, and written down for type checkers.

`FoundSteps` and the `FoundOn...` hold the verbs of steps and refinements, each declared in its file; `language/methods.py` adds them.

A chain knows its kind of spec as a value (`start`), so its class offers all verbs; which of them are for a kind, each step says by its
`kinds`. Type checkers, and what completes names, know classes only: `found.pyi`, written by `make names`, gives each `For...` below the
verbs of its kind, and has a class for each kind of chain, such as `MatMulTile` (import those under `TYPE_CHECKING`: they are not here).
docs/decisions/0054-types-by-kind.md says why so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


class FoundSteps:
    """The verbs of found steps, for `Verbs`."""

    __slots__ = ()


class FoundOnTile:
    """The verbs of found refinements of `tile`."""

    __slots__ = ()


class FoundOnSplit:
    """Those of `split`."""

    __slots__ = ()


class FoundOnSplitK:
    """Those of `split_k`."""

    __slots__ = ()


class FoundOnLoad:
    """Those of `load`."""

    __slots__ = ()


class FoundOnEpilog:
    """Those of `epilog`."""

    __slots__ = ()


class FoundOnAny:
    """Those of other steps, whose chains have no class of their own: methods of every chain, refused where they refine nothing."""

    __slots__ = ()


REFINING: Final[Mapping[str, type]] = {
    "tile": FoundOnTile, "split": FoundOnSplit, "split_k": FoundOnSplitK, "load": FoundOnLoad, "epilog": FoundOnEpilog,
}  # fmt: skip
"""Where the verbs of found refinements stand, by the verb of the step that they refine."""


class ForAny:
    """What is offered where nobody knows the kind of spec: the verbs of the language that are for several kinds."""

    __slots__ = ()


class ForEvery:
    """What `AnySpec` offers, and the name of a kind that a user declares: all verbs."""

    __slots__ = ()


class ForMatMul:
    """What is offered for products."""

    __slots__ = ()


class ForMove:
    """What is offered for copies."""

    __slots__ = ()


class ForInit:
    """What is offered where all elements become one value."""

    __slots__ = ()


class ForReduction:
    """What is offered for reductions."""

    __slots__ = ()


class ForAtomicAdd:
    """What is offered for additions to memory."""

    __slots__ = ()


class ForPointwise:
    """What is offered for work on each element, `UnaryPointwise` and `BinaryPointwise`."""

    __slots__ = ()


class ForFused:
    """What is offered for definitions of several steps."""

    __slots__ = ()
