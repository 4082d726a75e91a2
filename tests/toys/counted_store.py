"""The instruction that stores by `CountedStores`, and by the text of TMA."""

from typing import ClassVar

import attrs

from fireiron.executable.tma import TmaStore
from fireiron.ir import Mechanism
from toys.counted_stores import COUNTED_STORES


@attrs.frozen
class CountedStore(TmaStore):
    """`Move(r,c)(SH -> GL)(Warp)`, by its first thread."""

    mechanism: ClassVar[Mechanism] = COUNTED_STORES


COUNTED_STORE = CountedStore("COUNTED_STORE")
