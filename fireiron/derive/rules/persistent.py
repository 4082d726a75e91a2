"""`persistent`: one block per SM computes several tiles, so that loads of the next tile overlap with the store of the last one."""

from __future__ import annotations

from typing import ClassVar, Final

from fireiron.derive.facts import Facts
from fireiron.derive.families import BATCHED
from fireiron.derive.rule import Rule, Trick
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen

RANK = 51

FAMILY: Final = "warpgroups"


@frozen
class PersistentBlocks(Trick):
    """Blocks stay on their SM and take one tile after another; a producer warp loads the next tile early."""

    name: ClassVar[str] = "persistent"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if sketch.family != FAMILY:
            return "no producer warp could load the next tile early"
        if "skip_masked_tiles" in dict(sketch.tricks) and sketch.decisions[0].name == "block":
            return "blocks have different numbers of iterations, so none should have a fixed share of the tiles"
        return ""

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        text = "the producer loads the next tile while the last one is stored; {num_blocks} blocks at most"
        blocks = Decision.of("num_blocks", (facts.gpu.multiprocessors, BATCHED), text)
        named = sketch.refined("blocks", call("persistent", blocks["num_blocks"])).deciding(blocks)
        return named.by(self.name, f"a block for each of {facts.gpu.multiprocessors} SMs")


RULES: tuple[Rule, ...] = (PersistentBlocks(),)
