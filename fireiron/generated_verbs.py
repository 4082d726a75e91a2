"""The verbs of chains and specs, collected when the package is loaded, and the registry from which type stubs are generated.

`StepVerbs` has the verbs of steps. `TileVerbs` and the other `...Verbs` have the verbs of refinements. Each verb is declared in a separate
file, and `language/methods.py` adds it to a class of this file.

At run time, the class of a chain has all verbs, because the kind of spec of a chain is only a value (`start`). The `kinds` of a step list
the specs to which the step applies. Type checkers and completion see only classes. Therefore `make names` writes `generated_verbs.pyi`, in
which each `For...` class below has the verbs of its kind. That file also defines a class for each kind of chain, such as `MatMulTile`.
Import these classes under `TYPE_CHECKING`, because they do not exist at run time. docs/decisions/0054-types-by-kind.md gives the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


class StepVerbs:
    """Verbs of steps, a base class of `Verbs`."""

    __slots__ = ()


class TileVerbs:
    """Verbs of the refinements of `tile`."""

    __slots__ = ()


class SplitVerbs:
    """Verbs of the refinements of `split`."""

    __slots__ = ()


class SplitKVerbs:
    """Verbs of the refinements of `split_k`."""

    __slots__ = ()


class LoadVerbs:
    """Verbs of the refinements of `load`."""

    __slots__ = ()


class EpilogVerbs:
    """Verbs of the refinements of `epilog`."""

    __slots__ = ()


class SetMemoryVerbs:
    """Verbs of the refinements of `set_memory`."""

    __slots__ = ()


class ToGpusVerbs:
    """Verbs of the refinements of `to_gpus`."""

    __slots__ = ()


class OtherVerbs:
    """Verbs of the refinements of other steps. Every chain has these methods; they are refused if the last step does not accept them."""

    __slots__ = ()


REFINEMENT_VERBS: Final[Mapping[str, type]] = {
    "tile": TileVerbs, "split": SplitVerbs, "split_k": SplitKVerbs, "load": LoadVerbs, "epilog": EpilogVerbs,
    "set_memory": SetMemoryVerbs, "to_gpus": ToGpusVerbs,
}  # fmt: skip
"""The class that holds the refinement verbs of a step, by the verb of that step."""


class ForAny:
    """Verbs for a spec of unknown kind: the verbs that apply to several kinds."""

    __slots__ = ()


class ForEvery:
    """Verbs of `AnySpec` and of kinds that a user declares: all verbs."""

    __slots__ = ()


class ForMatMul:
    """Verbs for matrix multiplications."""

    __slots__ = ()


class ForMove:
    """Verbs for copies."""

    __slots__ = ()


class ForInit:
    """Verbs for `Init`, which sets all elements to one value."""

    __slots__ = ()


class ForReduction:
    """Verbs for reductions."""

    __slots__ = ()


class ForAtomicAdd:
    """Verbs for `AtomicAdd`."""

    __slots__ = ()


class ForPointwise:
    """Verbs for elementwise work, `UnaryPointwise` and `BinaryPointwise`."""

    __slots__ = ()


class ForFused:
    """Verbs for definitions of several steps."""

    __slots__ = ()
