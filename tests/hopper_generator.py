"""Random strategies for Hopper warpgroups: wgmma, alone or several in one definition, with surrounding steps.

Only the types and the shapes of the instruction are chosen to fit; the project refuses illegal strategies, which are drawn again, with the
number of refusals in the seed.
"""

import math
import random

from fused_generator import REFUSALS

from fireiron import *

TARGET = "sm_90a"

TYPES = (
    ((float16, float16), float32, (float16, float32)),
    ((float16, float16), float32, (float16, float32)),
    ((bfloat16, bfloat16), float32, (bfloat16, float32)),
    ((float16, float16), float16, (float16,)),
    ((tf32, tf32), float32, (float32,)),
    ((float8_e4m3, float8_e4m3), float32, (float16, float32, bfloat16)),
    ((float8_e4m3, float8_e5m2), float32, (float16, float32)),
    ((float8_e5m2, float8_e5m2), float32, (float16, float32)),
    ((int8, int8), int32, (int32,)),
)
"""Types of A and B, of the accumulators, and possible types of C."""

EPILOGUES = ("relu(acc + bias[n])", "acc * 2", "acc + R[m,n]", "silu(acc)", "relu(acc) + bias[m]")

PAIRS = {
    "one accumulator": ({"left": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "right": "acc[m,n] += sum(k, A[m,k] * B2[k,n])"}, "acc[m,n]"),
    "two accumulators": ({"left": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "right": "more[m,n] += sum(k, A[m,k] * B2[k,n])"}, "acc[m,n] * more[m,n]"),
    "four operands": ({"left": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "right": "acc[m,n] += sum(k, A2[m,k] * B2[k,n])"}, "acc[m,n]"),
    "row sums": ({"left": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "rows": "s[m] += sum(k, A[m,k])"}, "acc[m,n] + s[m]"),
    "scaled": ({"scale": "acc[m,n] = acc[m,n] * 0.5", "left": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, "acc[m,n]"),
}  # fmt: skip
"""Definitions with several MMAs, or an MMA and another step, per iteration: the steps, and the stored tensor."""


class DrawnHopper:
    """One draw: a bound strategy, its run-time sizes, and its features."""

    target, epilogues = TARGET, EPILOGUES

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.features = set()
        self.symbols = {}
        (self.a, self.b), self.accumulator, results = self.pick(TYPES)
        self.result = self.pick(results)
        self.features |= {f"dtype {self.a}", f"accumulator {self.accumulator}", f"result {self.result}"}
        self.draw_tiles()
        self.strategy = self.draw_several() if self.a.bytes == 2 and self.chance(0.25) else self.draw_product()

    def pick(self, values):
        return self.random.choice(list(values))

    def chance(self, share, feature=None):
        happens = self.random.random() < share
        if happens and feature is not None:
            self.features.add(feature)
        return happens

    # ------------------------------------------------------------------------------------------ the problem

    def draw_tiles(self):
        """The tile of a warpgroup, the number of warpgroups per block, and the chunk of k."""
        self.groups = self.pick((1, 1, 2, 2, 3))
        rows, columns = 64 * self.pick((1, 1, 1, 2, 2, 3, 4)), self.pick((8, 16, 24, 32, 48, 64, 64, 96, 128, 128, 160, 192, 256))
        if self.chance(0.2, "64 rows along n"):
            rows, columns = columns, rows
        if rows * columns > 256 * 128 or (rows * columns == 256 * 128 and not self.chance(0.3)):
            rows, columns = 64, 128
        self.wm, self.wn = rows, columns
        along_m = self.chance(0.75) or self.groups == 1
        self.bm, self.bn = (rows * self.groups, columns) if along_m else (rows, columns * self.groups)
        unit = 32 // self.a.bytes
        self.bk = unit * self.pick((1, 2, 2, 4, 4, 8))
        self.features |= {f"warpgroups {self.groups}", f"blocks of rows {max(rows // 64, 1)}"}

    def size(self, tile, dim):
        """A size of the problem: whole tiles, or partial ones; sometimes known at run time only."""
        count = self.pick((1, 1, 2, 3, 4, 5, 8, 16)) if dim == "k" else self.pick((1, 2, 3))
        size = tile * count
        if self.chance(0.3, f"ragged {dim}"):
            unit = self.pick((16 // self.a.bytes, 16 // self.a.bytes, 16, 1))
            size = max(unit, (size - self.random.randrange(tile)) // unit * unit)
        if self.chance(0.2, f"symbolic {dim}"):
            self.symbols[dim.upper()] = size
            return sym(dim.upper(), multiple_of=math.gcd(size, self.pick((16, 16, 8, 1))))
        return size

    def order(self, name):
        """The storage order of an operand; elements other than 16-bit mostly along k, as wgmma requires."""
        if name[0] in "AB" and self.a.bytes != 2 and self.chance(0.9):
            return RowMajor if name[0] == "A" else ColMajor
        order = self.pick((RowMajor, RowMajor, ColMajor))
        self.features.add(f"{name} {order}")
        return order

    def sizes(self):
        return {"m": self.size(self.bm, "m"), "n": self.size(self.bn, "n"), "k": self.size(self.bk, "k")}

    # ------------------------------------------------------------------------------------------ the chain

    def blocks(self, chain):
        """Refinements of the block tiles."""
        chain = chain.to(Block)
        if self.chance(0.15, "cluster"):
            chain = chain.cluster(*self.pick(((2, 1), (1, 2), (2, 2))))
        if self.chance(0.2, "bands"):
            chain = self.pick((chain.rasterize(group_m=self.pick((2, 4))), chain.rasterize(group_n=2), chain.hilbert()))
        if self.chance(0.3, "persistent"):
            chain = chain.persistent(self.pick((2, 8, 132)), self.chance(0.2, "dynamic"))
        if self.groups == 2 and self.bm == 2 * self.wm and self.chance(0.2, "turns"):
            chain = chain.pingpong(2)
        return chain

    def pipelined(self, chain):
        """The loop over k, as a ring by chance."""
        chain = chain.split(self.bk) if isinstance(chain.start, MatMulStart) else chain.split(k=self.bk)
        self.asynchronous = self.chance(0.85, "pipeline")
        if not self.asynchronous:
            return chain.unroll() if self.chance(0.3, "unroll") else chain
        chain = chain.pipeline(self.pick((1, 2, 2, 3, 3, 4, 6)))
        if self.chance(0.75, "specialize"):
            chain = chain.warp_specialize(self.pick((32, 128)))
            if self.chance(0.3, "in_flight"):
                chain = chain.mma_in_flight(self.pick((0, 1, 2)))
        return chain

    def copy(self):
        """The copy of an operand to shared memory: by TMA if possible, or by threads."""
        kind = self.pick(("engine", "engine", "engine", "coalesced", "threads"))
        self.features.add(f"copy by {kind}")
        width = 16 // self.a.bytes
        return {"engine": Move.done(), "coalesced": Move.coalesced_copy(width).done(), "threads": None}[kind]

    def store(self):
        """The store of the accumulators."""
        kind = self.pick(("default", "plain", "through shared memory", "through shared memory"))
        self.features.add(f"store {kind}")
        if kind == "default":
            return None
        if kind == "plain":
            return Move.tile(self.wm, self.wn).to(Warpgroup).done()
        rows, columns = min(64, self.wm), self.pick([one for one in (16, 32, 64, self.wn) if self.wn % one == 0] or [self.wn])
        staged = Move.tile(self.wm, self.wn).to(Warpgroup).tile(rows, columns).unroll().load(SRC, SH, Move.done())
        return (staged.cast_on_copy() if self.result != self.accumulator else staged).done()

    def draw_product(self):
        """A GEMM, with or without a loop over k."""
        sizes = self.sizes()
        orders = {name: self.order(name) for name in "ABC"}
        accumulate = {"accumulate": True} if self.chance(0.15, "accumulate") else {}
        types = {"dtype": (self.a, self.b), "c_dtype": self.result}
        spec = MatMul(*sizes.values(), **types, **orders, **accumulate)(GL, GL, GL)(Kernel)
        chain = MatMul.repack(A).repack(B) if self.chance(0.15, "repack") else MatMul
        chain = self.blocks(chain.tile(self.bm, self.bn))
        store = self.store()
        chain = chain.epilog(RF, self.accumulator) if store is None else chain.epilog(RF, self.accumulator, Init.done(), store)
        if self.chance(0.95):
            chain = self.pipelined(chain)
        same = self.copy()
        for operand in (A, B):
            copy = same if self.chance(0.8) else self.copy()
            chain = chain.load(operand, SH) if copy is None else chain.load(operand, SH, copy)
        chain = chain.tile(self.wm, self.wn).to(Warpgroup)
        if self.chance(0.3, "factor in registers"):
            chain = chain.load(A if self.wm % 64 == 0 else B, RF, Move.done())
        if self.chance(0.15, "split by the instruction"):
            chain = chain.split(32 // self.a.bytes).unroll()
        strategy = chain.done()(spec)
        return strategy.fuse_epilogue(self.pick(self.epilogues)) if not accumulate and self.chance(0.2, "epilogue") else strategy

    def draw_several(self):
        """A definition with several MMAs, or an MMA and another step, per iteration."""
        form = self.pick(PAIRS)
        self.features.add(f"several: {form}")
        self.groups, self.bm, self.bn = self.bm // self.wm, self.bm, self.wn
        each, result = PAIRS[form]
        text = " ".join(each.values())
        operands = {name: dims for name, dims in {"A": "m k", "A2": "m k", "B": "k n", "B2": "k n"}.items() if f"{name}[" in text}
        first = {f"zero_{name}": f"{name} = 0" for name in ("acc[m,n]", "more[m,n]", "s[m]") if f"{name} " in f"{text} "}
        first = {key.partition("[")[0]: value for key, value in first.items()}
        last = {"act": f"acc[m,n] = {result}"} if result != "acc[m,n]" else {}
        definition = Fused(
            name="several", dims="m n k", loop="k", operands={**operands, "D": "m n"}, init=first, body=each, final={**last, "store": "D[m,n] = acc[m,n]"}
        )  # fmt: skip
        sizes = self.sizes()
        chain = self.pipelined(self.blocks(definition.tile(m=self.bm, n=self.bn)))
        copy = self.copy()
        for name in operands:
            chain = chain.load(name, SH) if copy is None else chain.load(name, SH, copy)
            if name != "A" and self.chance(0.1, "stages of its own"):
                chain = chain.stages(self.pick((2, 3)))
        chain = chain.tile(m=self.wm).to(Warpgroup)
        if self.chance(0.3, "factor in registers"):
            chain = chain.load("A", RF, Move.done())
        for name in ("left", "right"):
            if name in each:
                chain = chain.step(name, self.pick((MatMul.split(16).unroll().done(), MatMul.done())))
        if self.chance(0.6, "store through shared memory"):
            columns = self.pick([one for one in (32, 64, self.wn) if self.wn % one == 0])
            chain = chain.step("store", Move.tile(min(64, self.wm), columns).unroll().load(SRC, SH, Move.done()).cast_on_copy().done())
        orders = {name: self.order(name) for name in (*operands, "D")}
        return chain.done()(definition(**sizes, dtype=self.a, **orders))


MatMulStart = type(MatMul)


def draw(seed):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = DrawnHopper(f"{seed}/{refused}")
            drawn.program = drawn.strategy.program(TARGET)
            _ = drawn.program.lowered
            return drawn, refused
        except REFUSALS:
            refused += 1
            if refused > 400:
                raise
