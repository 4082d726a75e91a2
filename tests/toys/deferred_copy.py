"""The instruction that copies by `DeferredCopies`, printed as cp.async."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.executable.cp_async import CpAsync
from fireiron.ir import Mechanism, Stmt
from fireiron.language.tree import Draft, execution
from fireiron.spec import Spec
from toys.deferred_copies import DEFERRED


@attrs.frozen
class DeferredCopy(CpAsync):
    """`Move(1,c)(GL -> SH)` of one thread, which its producer does not wait for."""

    mechanism: ClassVar[Mechanism] = DEFERRED

    def emit(self, spec: Spec, draft: Draft) -> Sequence[Stmt]:
        return (attrs.evolve(execution(self, spec, draft), mechanism=self.mechanism),)
