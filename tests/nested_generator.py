"""Random definitions with nested loops and random strategies: rows without and with a third loop, scans in loops, products, online sums.

`second_formula` evaluates them independently of the package.
"""

import random

import numpy as np
from fused_generator import REFUSALS, DrawnDefinition, copy, fragments
from second_formula import results

from fireiron import *
from fireiron.check import safety
from fireiron.measure.data import all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate

FORMS = ("rows", "scanned", "three", "product", "online")


class DrawnNested(DrawnDefinition):
    """A definition with nested loops, a strategy, and its spec."""

    def __init__(self, seed, form=None):
        super().__init__(seed, form or random.Random(f"{seed} form").choice(FORMS))

    @property
    def bound_of_sizes(self):
        return {"high": 1 << 12}

    def declaration(self):
        """The definition as arguments, for `second_formula`."""
        return {
            "dims": self.dims,
            "operands": self.operands,
            "init": self.first,
            "body": self.each,
            "final": self.last,
            "mask": self.masks,
            **self.roles,
        }

    def close(self, dims, sizes, chain, symbolic=(), float16_operands=(), dtype=None, **roles):
        self.dims, self.roles = dims, {name: value for name, value in roles.items() if name in ("loop", "scan", "batch")}
        self.finish(dims, sizes, chain, symbolic=symbolic, float16_operands=float16_operands, dtype=dtype, **roles)

    def expected(self, arrays, sizes):
        """The outputs in float64, by the second evaluation."""
        extents = {dim: int(self.bound.size(dim).evaluate(sizes)) for dim in self.bound.dims}
        return results(self.declaration(), extents, arrays)

    # ------------------------------------------------------------------------------------------ parts of definitions

    def value(self, known, dims):
        """A value as in other definitions, of functions that the second evaluation has."""
        while "uniform" in (value := super().value(known, dims)):
            self.conditions.pop()
        return value

    def carried(self, target, source, over, part, stem):
        """Steps of a loop that carry a reduction along a dimension; returns the formula of its first value."""
        by = self.choice(("sum", "max", "min"))
        self.features.add(f"carried {by}")
        name, element = target.partition("[")[0], target
        if self.chance(0.5, "joined"):
            part[f"{stem}_part"] = f"{name}_part[{target.partition('[')[2]} = {by}({over}, {source})"
            inner = f"{name}_part[{target.partition('[')[2]}"
            part[f"{stem}_join"] = f"{element} = " + (f"{element} + {inner}" if by == "sum" else f"{by}({element}, {inner})")
        else:
            sign = {"sum": "+=", "max": "max=", "min": "min="}[by]
            part[f"{stem}_join"] = f"{element} {sign} {by}({over}, {source})"
        return f"{element} = {({'sum': '0', 'max': '-inf', 'min': 'inf'})[by]}"

    def middle(self, value, dims, stem):
        """A step between two loops, or none."""
        if self.chance(0.6, "between"):
            name, index = f"{stem}_value", ",".join(dims)
            self.each[stem] = f"{name}[{index}] = {self.value([value], dims)}"
            return f"{name}[{index}]"
        return value

    # ------------------------------------------------------------------------------------------ forms

    def draw_rows(self):
        """A loop over k in a loop over n, with reductions along both, of rows of warps."""
        self.operands = {"X": "m n k"}
        inner = {}
        known = self.chain(["X[m,n,k]"], ("m", "n", "k"), self.random.randint(0, 2), inner)
        if self.chance(0.3, "outer value"):
            self.each["outer"] = f"v[m,n] = {self.choice(('{} * 2', 'relu({})')).format(self.operand(('m', 'n')))}"
            inner["use"] = f"w[m,n,k] = {known[-1]} + v[m,n]"
            known = [*known, "w[m,n,k]"]
        self.each["t0"] = self.carried("t[m,n]", known[-1], "k", inner, "t")
        self.each["k"] = inner
        value = self.middle("t[m,n]", ("m", "n"), "mid")
        self.first["l0"] = self.carried("l[m]", value, "n", self.each, "l")
        self.output("y", ("m",), self.choice(("{}", "tanh({})", "{} * 0.5")).format("l[m]"), self.last)
        if self.chance(0.4, "stored in the outer loop"):
            self.output("z", ("m", "n"), value)
        n, k = self.choice((2, 4)), self.choice((4, 8))
        lanes = self.choice(((1, 1, 1), (1, n, 1), (1, 1, 2)))
        early = self.chance(0.3, "loaded outside")

        def chain(start):
            outer = start.tile(m=2).to(Block).tile(m=1).to(Warp).split(n=n)
            outer = outer.split(n=self.choice((1, n))) if self.chance(0.2, "split twice") else outer
            outer = outer.split(k=k)
            return (outer.unroll() if early else outer).load("X", RF, Move.tile(*lanes).to(Lane).done()).done()

        self.close("m n k", {"m": self.size(2), "n": self.size(n), "k": self.size(k)}, chain, symbolic=("m", "n", "k"), loop="n k")

    def draw_scanned(self):
        """A scan over t and a loop over n, one inside of the other; the state is in registers of threads."""
        inside = self.chance(0.5, "scan inside")
        self.operands = {"X": "m t n" if self.chance(0.5) else "t m n"}
        element = f"X[{','.join(self.operands['X'].split())}]"
        if inside:
            self.each = {"h0": "h[m,n] = 0", "t": {"h": f"h[m,n] = {self.choice(('0.5 * h[m,n] + ', 'max(h[m,n], '))}{element}"}}
            self.each["t"]["h"] += ")" if "max" in self.each["t"]["h"] else ""
            value = self.middle("h[m,n]", ("m", "n"), "mid")
            self.first["l0"] = self.carried("l[m]", value, "n", self.each, "l")
        else:
            inner = {"x": f"x[m,n] = {element} * 0.5"}
            self.each = {"r0": self.carried("r[m]", "x[m,n]", "n", inner, "r"), "n": inner}
            self.first = {"l0": "l[m] = 0"}
            self.each["l"] = "l[m] = 0.5 * l[m] + r[m]"
        self.output("y", ("m",), "l[m]", self.last)
        n = self.choice((8, 32))
        splits = ("n", "t") if inside else ("t", "n")
        own = Move.tile(*([1] * 2)).to(Lane).done()

        def chain(start):
            chained = start.tile(m=2).to(Block).tile(m=1).to(Warp)
            for dim in splits:
                chained = chained.split(**{dim: 1 if dim == "t" else n})
            return chained.load("X", RF, own).done()

        self.close(
            "m n t",
            {"m": self.size(2), "n": self.size(n), "t": self.random.randint(1, 5)},
            chain,
            symbolic=("m", "n", "t"),
            loop="n",
            scan="t",
        )

    def draw_three(self):
        """Three loops, each with steps before and after the inner one; or two loops one after the other in the outer one."""
        self.operands = {"X": "m n k j"}
        if self.chance(0.5, "three levels"):
            deepest, inner = {}, {}
            known = self.chain(["X[m,n,k,j]"], ("m", "n", "k", "j"), self.random.randint(0, 1), deepest)
            inner["u0"] = self.carried("u[m,n,k]", known[-1], "j", deepest, "u")
            inner["j"] = deepest
            self.each["t0"] = self.carried("t[m,n]", "u[m,n,k]", "k", inner, "t")
            self.each["k"] = inner
            value = "t[m,n]"
        else:
            self.features.add("two inner loops")
            self.operands |= {"Z": "m n j"}
            first, second = {}, {}
            del self.operands["X"]
            self.operands["X"] = "m n k"
            self.each["t0"] = self.carried("t[m,n]", "X[m,n,k]", "k", first, "t")
            self.each["k"] = first
            value = self.middle("t[m,n]", ("m", "n"), "mid")
            second["x"] = f"x[m,n,j] = Z[m,n,j] * 0.5 + {value}"
            self.each["u0"] = self.carried("u[m,n]", "x[m,n,j]", "j", second, "u")
            self.each["j"] = second
            value = "u[m,n]"
        self.first["l0"] = self.carried("l[m]", value, "n", self.each, "l")
        self.output("y", ("m",), "l[m]", self.last)
        sizes = {"m": self.size(2), "n": self.size(2, 2), "k": self.size(4, 2), "j": self.size(4, 2)}

        def chain(start):
            chained = start.tile(m=2).to(Block).tile(m=1).to(Warp).split(n=self.choice((1, 2))).split(k=self.choice((2, 4))).split(j=4)
            for name in ("X", "Z") if "Z" in self.operands else ("X",):
                rank = len(self.operands[name].split())
                chained = chained.load(name, RF, Move.tile(*([1] * rank)).to(Lane).done())
            return chained.done()

        self.close("m n k j", sizes, chain, symbolic=("m", "n", "k"), loop="n k j")

    def draw_product(self):
        """Products in the inner loop that share an operand, a step between the loops, and perhaps a product in the outer loop."""
        second, down = self.chance(0.6, "two products"), self.chance(0.6, "second layer")
        self.operands = {"A": "m k", "G": "k f", **({"U": "k f"} if second else {}), **({"D": "f n"} if down else {})}
        self.each = {"g0": "g[m,f] = 0", **({"u0": "u[m,f] = 0"} if second else {})}
        self.each["k"] = {"gate": "g[m,f] += sum(k, A[m,k] * G[k,f])", **({"up": "u[m,f] += sum(k, A[m,k] * U[k,f])"} if second else {})}
        value = f"{self.choice(('relu', 'silu', 'tanh'))}(g[m,f])" + (" * u[m,f]" if second else "")
        if down:
            self.first = {"zero": "acc[m,n] = 0"}
            self.each |= {"act": f"h[m,f] = {value}", "down": "acc[m,n] += sum(f, h[m,f] * D[f,n])"}
            self.output("Y", ("m", "n"), "acc[m,n]", self.last)
        else:
            self.output("Y", ("m", "f"), value)
        stages, outer, early = self.choice((0, 2, 3)), self.chance(0.3, "two pipelines"), self.chance(0.4, "loaded outside")
        self.features.add(f"pipeline {stages}")
        tiles = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll()

        def chain(start):
            chained = start.tile(m=64, **({"n": 32} if down else {})).to(Block).split(f=32)
            chained = chained.pipeline(2) if outer and down and early else chained
            chained = chained.load("D", SH, copy).swizzle_storage() if down and early else chained
            chained = chained.split(k=32)
            chained = chained.pipeline(stages) if stages else chained
            for name in ("A", "G", "U") if second else ("A", "G"):
                chained = chained.load(name, SH, copy).swizzle_storage()
            chained = chained.set_memory("h", SH).swizzle_storage() if down else chained
            chained = chained.load("D", SH, copy).swizzle_storage() if down and not early else chained
            for name in ("gate", *(("up",) if second else ()), *(("down",) if down else ())):
                chained = chained.step(name, tiles.mma_tile().done())
            return chained.done()

        sizes = {"m": self.size(64, 1), "f": 8 * self.random.randint(1, 9), "k": 8 * self.random.randint(1, 9)}
        sizes |= {"n": 8 * self.random.randint(1, 5)} if down else {}
        dims = "m f k n" if down else "m f k"
        self.close(dims, sizes, chain, symbolic=("m",), float16_operands=(*"AGUD",), dtype=float16, loop="f k")

    def draw_online(self):
        """A running sum of exponentials of scores whose reduction dimension is an inner loop."""
        self.operands = {"Q": "m d", "K": "n d"}
        self.first = {"mx": "mx[m] = -inf", "l": "l[m] = 0"}
        scored = self.choice(("s[m,n]", "s[m,n] * 0.5"))
        masked = self.chance(0.5, "mask")
        self.each = {
            "zero": "s[m,n] = 0",
            "d": {"s": "s[m,n] += sum(d, Q[m,d] * K[n,d])"},
            "mask": f"s[m,n] = where({'n <= m' if masked else 'n < size(n)'}, {scored}, -inf)",
            "top": "top[m] = max(n, s[m,n])",
            "new": "new[m] = max(mx[m], top[m])",
            "exp": "p[m,n] = exp(s[m,n] - new[m])",
            "sums": "sums[m] = sum(n, p[m,n])",
            "length": "l[m] = l[m] * exp(mx[m] - new[m]) + sums[m]",
            "keep": "mx[m] = new[m]",
        }
        self.output("y", ("m",), "log(l[m]) + mx[m]", self.last)
        stages, skipped = self.choice((0, 2, 3)), masked and self.chance(0.6, "skipped")
        separated = masked and self.chance(0.5, "separated")
        product = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).tile(16, 16).unroll().mma_tile().done()

        def chain(start):
            chained = start.tile(m=32).to(Block).split(n=32)
            chained = chained.skip_masked_tiles() if skipped else chained
            chained = (chained.separate_masked_tiles() if separated else chained).split(d=32)
            chained = chained.pipeline(stages) if stages else chained
            chained = chained.load("Q", SH, copy).swizzle_storage().load("K", SH, copy).swizzle_storage()
            return chained.tile(m=16).to(Warp).step("s", product).done()

        sizes = {"m": self.size(32, 2), "n": self.size(32), "d": 8 * self.random.randint(1, 9)}
        self.close("m n d", sizes, chain, symbolic=("m", "n"), float16_operands=("Q", "K"), dtype=float16, loop="n d")


def draw(seed, form=None):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = DrawnNested(f"{seed}/{refused}", form)
            drawn.program = drawn.strategy(drawn.bound).program("sm_80")
            _ = drawn.program.lowered
            return drawn, refused
        except REFUSALS:
            refused += 1
            if refused > 100:
                raise


def differing_from(right, got, spec):
    """Outputs that differ from those of the second evaluation by more than float16 can explain."""
    wrong = []
    for name, value in right.items():
        off = np.abs(np.asarray(got[name]).astype(np.float64) - value) if np.isfinite(value).all() else np.zeros(1)
        scale = np.abs(value[np.isfinite(value)]).max(initial=1.0)
        wrong += [name] if off.max(initial=0.0) > 2e-2 * scale else []
    return wrong


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    sizes = all_sizes(case.bound, case.symbols)
    arrays = random_inputs(case.bound, sizes, np.random.default_rng(seed))
    got = simulate(case.program.lowered, arrays, sizes, order=random.Random(seed)).outputs
    right = references_of(case.bound, *arrays.values())
    second = [f"{name} differs from the second evaluation" for name in differing_from(case.expected(arrays, sizes), got, case.bound)]
    return "; ".join([*differing(case.bound, sizes, got, arrays, right), *second])


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nsizes = {case.symbols}, seed = {case.seed}\n{case.definition}"
