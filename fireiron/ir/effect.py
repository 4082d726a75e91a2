"""Effects of a kernel as a whole: what its steps say of all its blocks and of its launch, beside the program.

An effect is a value, in a file of its own in `fireiron.ir.effects`; steps and refinements state it, and one record keeps all of a kernel.
Readers ask for the kinds that they know, `kernel.effects[Residency].blocks`; an effect speaks for itself by its methods, so a new one
needs no reader that knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from fireiron.ir.record import Record

if TYPE_CHECKING:
    from fireiron.ir.kernel import Kernel

EffectT = TypeVar("EffectT", bound="Effect")


@attrs.frozen
class Effect:
    """What is said of a kernel as a whole; made without arguments it says nothing."""

    def joined(self: EffectT, inner: EffectT) -> EffectT:
        """The effect where a step further in says the same kind: that of the inner one."""
        return inner

    def qualifiers(self, kernel: Kernel) -> tuple[str, ...]:
        """What stands beside `__launch_bounds__` in the declaration of the kernel."""
        return ()

    def problems(self, kernel: Kernel) -> tuple[str, ...]:
        """Why the final kernel does not keep what is said; an error each."""
        return ()


@attrs.frozen
class Effects(Record[Effect]):
    """The effects of a kernel, at most one of a kind.

    >>> from fireiron.ir.effects.residency import Residency
    >>> Effects()[Residency].blocks, Effects((Residency(2),))[Residency].blocks
    (0, 2)
    """

    def adding(self, *effects: Effect) -> Effects:
        """The record behind a step that says further effects."""
        return self.joined(Effects(effects))

    def joined(self, inner: Effects) -> Effects:
        """The record behind a step further in that says `inner`."""
        if not self.all or not inner.all:
            return inner if not self.all else self
        found: dict[type, Any] = {type(one): one for one in self.all}
        for one in inner.all:
            found[type(one)] = found[type(one)].joined(one) if type(one) in found else one
        return Effects(tuple(found.values()))


NONE: Final = Effects()
"""The record of a kernel of which nothing is said."""

__all__ = ["NONE", "Effect", "Effects"]
