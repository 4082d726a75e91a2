"""Random strategies for warpgroups with producers of all kinds: TMA and threads that copy, one producer or one for each operand, a warp
that stores, plain and gathered operands.

Problems are smaller than those of `hopper_generator`, so that the simulator executes them.
"""

from campaign.judged import wrong
from fused_generator import REFUSALS
from hopper_generator import TARGET, DrawnHopper
from test_indirect_random import objection as objection_to_indirect

from fireiron import *
from fireiron.check import safety
from fireiron.errors import SynchronizationError

ROUNDS = (1, 2, 2, 3, 5)
"""Numbers of iterations of the loop over k."""


class DrawnProducer(DrawnHopper):
    """One draw: a bound strategy, its run-time sizes, and its features."""

    epilogues = ("relu(acc + bias[n])", "acc * 2", "acc + R[m,n]", "relu(acc) + bias[m]")
    """Those whose results are exact for small integers."""

    def draw_several(self):
        return self.draw_gathered()

    def draw_tiles(self):
        """Small tiles: of one or two warpgroups."""
        self.groups = self.pick((1, 1, 2))
        self.wm, self.wn = 64, self.pick((8, 16, 32, 64))
        self.bm, self.bn = 64 * self.groups, self.wn
        self.bk = 32 // self.a.bytes * self.pick((1, 2, 4))
        self.features |= {f"warpgroups {self.groups}"}

    def size(self, tile, dim):
        size = tile * (self.pick(ROUNDS) if dim == "k" else self.pick((1, 2)))
        if self.chance(0.4, f"ragged {dim}"):
            unit = self.pick((16 // self.a.bytes, 1))
            size = max(unit, (size - self.random.randrange(tile)) // unit * unit)
        if self.chance(0.2, f"symbolic {dim}"):
            self.symbols[dim.upper()] = size
            aligned = size % (16 // self.a.bytes) == 0 and self.chance(0.7)
            return sym(dim.upper(), multiple_of=16 // self.a.bytes if aligned else 1, high=1 << 16)
        return size

    def pipelined(self, chain):
        """The loop over k as a circular buffer with producers."""
        chain = chain.split(self.bk).pipeline(self.pick((1, 2, 2, 3, 4)))
        separate = self.pick(((), (), "A", "B", ("A", "B")))
        stored = self.pick((0, 0, 1, 2, 3))
        copies = self.chance(0.75, "copies by threads")
        self.features |= {f"separate {separate}"} if separate else set()
        self.features |= {f"store stages {stored}"} if stored else set()
        chain = chain.warp_specialize(self.pick((32, 128)), copies=copies, separate=separate, store_stages=stored)
        return chain.mma_in_flight(self.pick((0, 1))) if self.chance(0.3, "in_flight") else chain

    def copy(self):
        """The copy of an operand: by TMA, by vectors of 16 bytes or less, or by elements."""
        kind = self.pick(("engine", "engine", "coalesced", "coalesced", "narrow", "threads"))
        self.features.add(f"copy by {kind}")
        width = 16 // self.a.bytes
        return {
            "engine": Move.done(), "coalesced": Move.coalesced_copy(width).done(), "narrow": Move.coalesced_copy(width // 2).done(), "threads": None,
        }[kind]  # fmt: skip

    def draw_gathered(self):
        """A product whose rows of A a table selects, perhaps with scattered rows of C."""
        self.features.add("gathered")
        self.both = self.chance(0.4, "scattered")
        sizes = self.sizes()
        target = "C[to[m],n]" if self.both else "C[m,n]"
        operands = {"A": "r k", "rows": "m", "B": "k n", "C": "r n" if self.both else "m n", **({"to": "m"} if self.both else {})}
        definition = Fused(
            name="gathered", dims="m n k r", operands=operands, body={"mm": "acc[m,n] = sum(k, A[rows[m],k] * B[k,n])", "store": f"{target} = acc[m,n]"},
            **({"distinct": "to"} if self.both else {}), **({"ranges": {"rows": "0 <= rows < r"}} if self.chance(0.3, "promised") else {}),
        )  # fmt: skip
        inner = self.pipelined(MatMul)
        for operand in (A, B):
            copy = self.copy()
            inner = inner.load(operand, SH) if copy is None else inner.load(operand, SH, copy)
        blocks = definition.tile(m=self.bm, n=self.bn).to(Block)
        chain = blocks.step("mm", inner.tile(self.wm, self.wn).to(Warpgroup).done())
        return chain.done()(definition(**sizes, r=self.random.randint(1, 40), dtype=self.a, types={"C": self.result}))


def draw(seed):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = DrawnProducer(f"{seed}/{refused}")
            drawn.bound = drawn.strategy.spec
            drawn.program = drawn.strategy.program(TARGET)
            if undecided := [finding for finding in safety(drawn.program.lowered) if "undecided" in finding.message]:
                raise SynchronizationError(undecided[0].message)  # a limit of the check, which the message states
            return drawn, refused
        except REFUSALS as error:
            draw.last = error
            refused += 1
            if refused > 400:
                raise


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nprogram = strategy.program({TARGET!r})\nsizes = {case.symbols}"


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well: products exactly, definitions with tables element by element."""
    if "gathered" in case.features:
        return objection_to_indirect(case, seed)
    return wrong(case.program, case.symbols, seed)
