"""Random sparse matmuls with random strategies: forms of mma.sp and wgmma.sp, tiles, stages, storage orders, sizes, pruned matrices."""

import random

import numpy as np
from sparse_cases import exact_inputs, sparse_spec

from fireiron import *
from fireiron.errors import DecompositionError, MatchError, ResourceError
from fireiron.executable.mma_sp import INSTRUCTIONS as FORMS
from fireiron.executable.wgmma_sp import WGMMA_SP

EPILOGUES = ("acc + R[m,n]", "relu(acc + bias[m])", "acc + bias[n] * 2", "Z = acc; C = relu(acc - R[m,n])")
"""Epilogues whose results are exact for small integers."""

REFUSALS = (DecompositionError, MatchError, ResourceError)
"""Errors of strategies that do not fit their spec."""


class DrawnSparse:
    """A spec, a strategy, a target and the values of symbols; `features` describe them."""

    def __init__(self, seed):
        self.random = random.Random(f"sparse {seed}")
        self.features, self.symbols = set(), {}
        self.warpgroups = self.chance(0.4, "wgmma.sp")
        self.form = self.choice(WGMMA_SP if self.warpgroups else FORMS)
        self.features.add(self.form.name)
        self.target = "sm_90a" if self.warpgroups else f"sm_{self.form.capability}"
        self.spec = self.draw_spec()
        self.epilogue = self.draw_epilogue(seed)
        self.chain = self.by_warpgroups() if self.warpgroups else self.by_warps()
        self.bound = self.chain(self.spec)
        if self.epilogue is not None:
            self.bound = self.bound.fuse_epilogue(*self.epilogue)

    def choice(self, values):
        return self.random.choice(list(values))

    def chance(self, probability, feature=""):
        drawn = self.random.random() < probability
        if drawn and feature:
            self.features.add(feature)
        return drawn

    def draw_spec(self):
        self.step = 8 if self.chance(0.5, "ragged k") else self.choice((64, 128))
        sizes = {"M": self.random.randint(1, 150), "N": self.random.randint(1, 90), "K": self.step * self.random.randint(1, 3)}
        given = dict(sizes)
        for dim in sizes:
            if self.chance(0.2, "run-time sizes"):
                given[dim] = sym(dim, multiple_of=self.step if dim == "K" else 1)
                self.symbols[dim] = sizes[dim]
        orders = {name: self.choice((RowMajor, ColMajor)) for name in "AEC"}
        if self.form.factors[0].bytes == 2:
            orders["B"] = self.choice((RowMajor, ColMajor))
        return sparse_spec(self.form, tuple(given.values()), **orders)

    def draw_epilogue(self, seed):
        """The text of an epilogue whose results are exact, and types of its operands; None in half of the cases."""
        generator = random.Random(f"epilogue {seed}")
        if generator.random() < 0.5:
            return None
        self.features.add("step of a definition")
        text = generator.choice(EPILOGUES)
        return text, {name: self.form.result for name in ("R", "bias", "Z") if name in text}

    def expected(self, arrays, product):
        """The outputs by name, from the product in float64."""
        if self.epilogue is None:
            return {"C": product}
        text, wide = self.epilogue[0], {name: arrays[name].astype(np.float64) for name in ("R", "bias") if name in arrays}
        acc = product
        if "Z = acc" in text:
            return {"Z": acc, "C": np.maximum(acc - wide["R"], 0)}
        if "bias[m]" in text:
            return {"C": np.maximum(acc + wide["bias"][:, None], 0)}
        return {"C": acc + wide["bias"] * 2 if "bias[n]" in text else acc + wide["R"]}

    def loaded(self, chain, name, copy):
        chain = chain.load(name, SH, copy)
        order = self.spec.operands[name].order
        form = self.choice(("plain", "swizzle", "pad"))
        self.features.add(f"{name} {form}")
        if name == "E" and self.warpgroups:
            return chain.to_row_major() if order == "row" else chain.to_col_major().swizzle_storage()
        if self.warpgroups or form == "plain":
            return chain
        return chain.swizzle_storage() if form == "swizzle" else chain.pad(16)

    def by_warps(self):
        kk, wm, wn = self.choice((32, 64)), self.choice((16, 32)), self.choice((8, 16, 32))
        bm, bn, bk = wm * self.choice((1, 2)), wn * self.choice((1, 2)), kk * self.choice((1, 2, 4))
        copy = Move.coalesced_copy(self.choice((4, 8, 16))).done()
        chain = (
            SparseMatMul.tile(bm, bn)
            .to(Block)
            .epilog(RF, self.form.result, Init.tile(wm, wn).to(Warp).done(), Move.tile(wm, wn).to(Warp).done())
        )
        chain = chain.split(bk)
        if self.chance(0.7, "pipeline"):
            chain = chain.pipeline(self.choice((2, 3)))
        for name in self.choice(("AEB", "EBA", "BAE")):
            chain = self.loaded(chain, name, copy)
        chain = chain.tile(wm, wn).to(Warp).split(kk)
        if self.chance(0.5, "unrolled"):
            chain = chain.unroll()
        for name in self.choice(("AEB", "EBA", "BAE")):
            chain = chain.load(name, RF, Move.done())
        chain = chain.tile(16, 8)
        return (chain.unroll() if self.chance(0.7) else chain).split(self.form.shape[2]).done()

    def by_warpgroups(self):
        bm, bn, bk = self.choice((64, 128)), self.choice((16, 32, 64)), self.choice((64, 128))
        chain = SparseMatMul.tile(bm, bn).to(Block).epilog(RF, self.form.result).split(bk).pipeline(self.choice((2, 3)))
        if self.chance(0.6, "producer"):
            chain = chain.warp_specialize()
        for name in self.choice(("AEB", "EBA", "BAE")):
            chain = self.loaded(chain, name, Move.done())
        return chain.tile(64, bn).to(Warpgroup).load("E", RF, Move.done()).done()

    def arrays(self, seed):
        """Inputs whose sums are exact; or a pruned matrix, compressed."""
        arrays = exact_inputs(self.bound.spec, self.symbols, seed)
        if self.random.random() < 0.5:
            shape = (len(arrays["A"]), arrays["E"].shape[1] * 8)
            dense = np.random.default_rng(seed).integers(-2, 3, shape).astype(arrays["A"].dtype)
            arrays["A"], arrays["E"] = compress_2_4(dense, prune=True)
        return arrays


def draw(seed):
    """The first drawn kernel for a seed that is legal, its program, and the number of refused ones before it."""
    for refusals in range(200):
        case = DrawnSparse(f"{seed}/{refusals}")
        try:
            program = case.bound.program(case.target)
            _ = program.lowered
            return case, program, refusals
        except REFUSALS:
            continue
    raise AssertionError(f"200 refusals for seed {seed}")
