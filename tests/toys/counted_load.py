"""The instruction that loads by `CountedLoads`, printed as TMA."""

from typing import ClassVar

import attrs

from fireiron.executable.tma import TmaLoad
from fireiron.ir import Mechanism
from toys.counted_loads import COUNTED


@attrs.frozen
class CountedLoad(TmaLoad):
    """`Move(r,c)(GL -> SH)(Block)`, by one thread of the producer."""

    mechanism: ClassVar[Mechanism] = COUNTED
