"""Writers killed at any moment: records, the compile cache, exports, strategies, tuning journals, campaign states.

A draw kills several writers of one kind in a separate folder, while others write and the draw reads. The seed determines which and how
many; the instruction at which each is killed depends on the machine: a draw with a finding is repeated many times. `kills` are counted.
"""

import random
import tempfile
from pathlib import Path

from attacks.writers import KEPT, attack

from campaign import Outcome, Subject, agreed


def draw(seed: int) -> Outcome:
    """A few kills of writers of one kind."""
    choose = random.Random(seed)
    kind, kills = choose.choice(list(KEPT)), choose.randint(4, 12)
    with tempfile.TemporaryDirectory(prefix="writers-") as folder:
        items = attack(kind, Path(folder), kills, choose)
    return agreed({kind}, kills=kills, items=items, **{f"kills {kind}": kills})


SUBJECT = Subject(
    "writers",
    "writers killed at any moment during concurrent writes and reads: no confirmed write is lost, readers continue",
    draw,
    nightly=500,
    campaign=5_000,
    counted="kills",
    first=1,
    chunk=10,
    sample=1,
)
