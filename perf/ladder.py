"""From a first wgmma kernel to the best, a change of one line at a time, each beside cuBLAS.

    python perf/ladder.py FOLDER [--rounds 7]

The rungs are those of the public hand-written ladder of pranjalssh/fast.cu: bfloat16, B stored by columns, squares of 2048, 4096 and 8192. Each rung
is verified against float64 first; all are measured beside cuBLAS (through PyTorch) in one run: bursts, buffers rotated through L2. Writes
`ladder.json`, `ladder.txt` and `ladder.svg` into the folder.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import attrs
from tabulate import tabulate

from fireiron import *
from fireiron.strategies import hopper

SIZES = (2048, 4096, 8192)

BY_THREADS = Move.coalesced(8).done()
BY_TMA = Move.done()
DIRECT = Move.done()


def same(chain):
    return chain


def staged(rows, columns):
    """C converted, through shared memory, in chunks of 64 columns, stored by TMA."""
    return Move.tile(rows, columns).to(Warpgroup).tile(64, 64).unroll().load(SRC, SH, Move.done()).converted().done()


@attrs.frozen
class Rung:
    """A strategy by its lines: the tiles of a block and of a warpgroup, how blocks walk, how a ring is filled, who loads, how C is stored."""

    name: str
    changed: str
    block: tuple[int, int] = (64, 64)
    warpgroup: tuple[int, int] = (64, 64)
    walk: Any = same
    ring: Any = same
    load: Any = BY_THREADS
    store: Any = DIRECT

    @property
    def strategy(self):
        """The strategy."""
        blocks = self.walk(MatMul.tile(*self.block).to(Block))
        steps = self.ring(blocks.epilog(RF, float32, Init.done(), self.store).split(64))
        return steps.load(A, SH, self.load).load(B, SH, self.load).tile(*self.warpgroup).to(Warpgroup).done()


def rungs():
    """Each rung is the one before with one line changed."""
    found = [Rung("1", "wgmma on 64x64, copies by threads")]

    def then(name, changed, **fields):
        found.append(attrs.evolve(found[-1], name=name, changed=changed, **fields))

    then("2", ".pipeline(1).specialize(): loads by TMA", ring=lambda split: split.pipeline(1).specialize(), load=BY_TMA)
    then("3", "tile(128, 128), a warpgroup has all of it", block=(128, 128), warpgroup=(128, 128))
    then("4", ".pipeline(4): a ring of four stages", ring=lambda split: split.pipeline(4).specialize())
    then("5", "tile(128, 256), two warpgroups", block=(128, 256), warpgroup=(64, 256))
    then("6", ".bands(8).persistent(132)", walk=lambda tile: tile.bands(8).persistent(132))
    then("7", ".in_flight(1)", ring=lambda split: split.pipeline(4).specialize().in_flight(1))
    then("8", ".specialize(128): registers go to the consumers", ring=lambda split: split.pipeline(4).specialize(128))
    then("9", "C converted, through shared memory, stored by TMA", store=staged(64, 256))
    return tuple(found)


def measured(size, rounds):
    """Times of all rungs and of cuBLAS."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    data = Data.of(hopper.spec(size, size, size, B=ColMajor, dtype=bfloat16, c_dtype=bfloat16))
    calls = {"cuBLAS": data.calls(cublas)}
    for rung in rungs():
        launches = data.calls(rung.strategy(data.spec).compile())
        data.reset()
        data.verify(launches[0])
        calls[rung.name] = launches
    return measure(calls, rounds=rounds)


def chart(rows, library):
    """The rungs as bars, TFLOP/s at 4096, with cuBLAS as a line."""
    from fireiron.draw.svg import document  # noqa: F401

    raise NotImplementedError


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # cuBLAS is called through it

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    times = {size: measured(size, options.rounds) for size in SIZES}
    speed = {size: {name: 2.0 * size**3 / one.us / 1e6 for name, one in found.items()} for size, found in times.items()}
    rows = [["", "cuBLAS", *(speed[size]["cuBLAS"] for size in SIZES)]]
    rows += [[rung.name, rung.changed, *(speed[size][rung.name] for size in SIZES)] for rung in rungs()]
    text = tabulate(rows, ("rung", "change", *map(str, SIZES)), floatfmt=".0f") + "\n"
    print(text)
    (options.folder / "ladder.txt").write_text(text)
    (options.folder / "ladder.json").write_text(json.dumps({"environment": environment(), "rounds": options.rounds, "us": {
        size: {name: [one.us, *one.quartiles] for name, one in found.items()} for size, found in times.items()}}, indent=1) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
