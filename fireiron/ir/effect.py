"""Effects: properties of a whole kernel, of all its blocks and of its launch, in addition to its program.

An effect is a value; each file of `fireiron.ir.effects` defines one kind. Steps and refinements state effects, and one record holds those
of a kernel. Readers request the kinds that they know: `kernel.effects[Residency].blocks`. Other readers use the methods below, so a new
kind needs no change in readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from fireiron.frozen import frozen
from fireiron.ir.record import Record

if TYPE_CHECKING:
    from fireiron.ir.kernel import Kernel

EffectT = TypeVar("EffectT", bound="Effect")


@frozen
class Effect:
    """A property of a kernel as a whole; created without arguments, it is neutral."""

    def joined(self: EffectT, inner: EffectT) -> EffectT:
        """The effect after an inner step states another one of the same kind; by default, the inner one replaces this one."""
        return inner

    def qualifiers(self, kernel: Kernel) -> tuple[str, ...]:
        """Qualifiers of the kernel's declaration, in addition to `__launch_bounds__`."""
        return ()

    def problems(self, kernel: Kernel) -> tuple[str, ...]:
        """The reasons why the final kernel violates the effect; each is reported as an error."""
        return ()


@frozen
class Effects(Record[Effect]):
    """The effects of a kernel, at most one of a kind.

    >>> from fireiron.ir.effects.residency import Residency
    >>> Effects()[Residency].blocks, Effects((Residency(2),))[Residency].blocks
    (0, 2)
    """

    def adding(self, *effects: Effect) -> Effects:
        """The record after a step that states more effects."""
        return self.joined(Effects(effects))

    def joined(self, inner: Effects) -> Effects:
        """The record after an inner step that states `inner`."""
        if not self.all or not inner.all:
            return inner if not self.all else self
        by_kind: dict[type, Any] = {type(one): one for one in self.all}
        for effect in inner.all:
            by_kind[type(effect)] = by_kind[type(effect)].joined(effect) if type(effect) in by_kind else effect
        return Effects(tuple(by_kind.values()))


NONE: Final = Effects()
"""The record of a kernel without effects."""

__all__ = ["NONE", "Effect", "Effects"]
