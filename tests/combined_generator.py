"""Random definitions whose outputs several blocks combine, with random strategies: sums, maxima and minima of rows, columns, arrays,
groups, and elements that tables select.

`right_values` computes the outputs from the inputs with NumPy in float64, without the definition.
"""

import random

import numpy as np
from fused_generator import REFUSALS

from fireiron import *

SIGNS = {"sum": "+=", "max": "max=", "min": "min="}
VALUES = {"{}": lambda x: x, "{} * 2": lambda x: 2 * x, "abs({})": abs, "max({}, 3)": lambda x: np.maximum(x, 3), "3 - {}": lambda x: 3 - x}
TARGETS = {
    "rows": ("y[m]", "m", ("n",)), "columns": ("y[n]", "n", ("m",)), "all": ("y", "", ("m", "n")), "groups": ("y[m,n // 4]", "m q", ()),
    "table": ("y[T[m],n]", "r n", ()), "table of rows": ("y[T[m]]", "r", ("n",)), "elements": ("y[m,n]", "m n", ()),
}  # fmt: skip
STRATEGIES = ("threads", "lanes", "warps")


class DrawnCombination:
    """A definition with one or two outputs that steps combine, a strategy and a spec; `outputs` are target, sign and value by name."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        chosen = self.random.choice
        self.batch, self.exact = chosen((False, False, True)), chosen((False, True))
        self.dtype = int32 if self.exact else float32
        self.source = int32 if self.exact else chosen((float16, float32))
        self.outputs = {}
        for name in ("y", "z")[: chosen((1, 1, 2))]:
            targets = [one for one in TARGETS if (one != "elements" or self.batch) and not ("table" in one and name == "z")]
            self.outputs[name] = (chosen(targets), chosen([*SIGNS]), chosen([*VALUES]))
        sums = all(combiner == "sum" for _, combiner, _ in self.outputs.values())
        if sums and not self.exact and random.Random(f"halves {seed}").random() < 0.5:
            self.dtype = float16
        self.sizes = {"m": self.random.randint(1, 20), "n": 4 * self.random.randint(1, 25), "r": self.random.randint(1, 9)}
        self.sizes |= {"b": self.random.randint(1, 3)} if self.batch else {}
        self.strategy_name = chosen(STRATEGIES)
        self.features = {self.strategy_name, "batch" if self.batch else "no batch", str(self.dtype)}
        self.features |= {part for one in self.outputs.values() for part in one[:2]}
        self.build()

    def build(self):
        x = "X[b,m,n]" if self.batch else "X[m,n]"
        operands, body, used = {"X": "b m n" if self.batch else "m n"}, {}, {"m", "n"} | ({"b"} if self.batch else set())
        for name, (target, combiner, value) in self.outputs.items():
            element, dims, over = (part.replace("y", name) if isinstance(part, str) else part for part in TARGETS[target])
            operands |= {"T": "m"} if "T[" in element else {}
            operands[name] = dims
            used |= set(dims.split())
            body[f"{name}_value"] = f"{name}_t[m,n] = {value.format(x)}"
            right = f"{combiner}({', '.join(over)}, {name}_t[m,n])" if over else f"{name}_t[m,n]"
            body[f"{name}_store"] = f"{element} {SIGNS[combiner]} {right}"
        types = dict.fromkeys(self.outputs, self.dtype) | {f"{name}_t": self.dtype for name in self.outputs}
        dims = " ".join(dim for dim in ("b", "m", "n", "q", "r") if dim in used)
        self.definition = Fused(
            name="combined",
            dims=dims,
            operands=operands,
            body=body,
            types={**types, "X": self.source},
            **({"batch": "b"} if self.batch else {}),
        )
        given = {dim: self.sizes[dim] for dim in dims.split() if dim != "q"}
        self.symbols = {}
        if self.random.random() < 0.3:
            self.features.add("symbolic")
            self.symbols["M"], given["m"] = self.sizes["m"], sym("M", high=1 << 16)
        self.bound = self.definition(**given)
        self.strategy = self.chain(self.definition)

    def chain(self, start):
        tile = {"b": 1} if self.batch else {}
        if self.strategy_name == "threads":
            return (
                start.tile(**tile, m=8, n=32).to(Block).tile(m=self.random.choice((1, 2)), n=self.random.choice((1, 2))).to(Thread).done()
            )
        lanes = Move.tile(1, 1).to(Lane).done()
        if self.strategy_name == "warps":
            return start.tile(**tile, m=4, n=32).to(Block).tile(m=1).to(Warp).load("X", RF, lanes).done()
        return start.tile(**tile, m=4, n=64).to(Block).load("X", RF, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()

    def arrays(self, seed):
        """Random inputs; some numbers of tables are no indices."""
        generator = np.random.default_rng(seed)
        shape = [self.sizes[dim] for dim in (("b", "m", "n") if self.batch else ("m", "n"))]
        numbers = generator.integers(-9, 10, shape) if self.exact else generator.standard_normal(shape)
        arrays = {"X": numbers.astype(self.source.to_numpy())}
        if "T" in self.definition.fused_definition.uses:
            arrays["T"] = generator.integers(-2, self.sizes["r"] + 2, self.sizes["m"]).astype(np.int32)
        return {name: arrays[name] for name in self.bound.inputs if name in arrays}

    def right_values(self, arrays):
        """The outputs in float64, combined element by element."""
        x = arrays["X"].astype(float).reshape(-1, self.sizes["m"], self.sizes["n"])
        return {name: self._right(one, x, arrays.get("T")) for name, one in self.outputs.items()}

    def _right(self, output, x, table):
        target, combiner, value = output
        of_two = {"sum": lambda a, b: a + b, "max": max, "min": min}[combiner]
        limits = (np.iinfo(np.int32).min, np.iinfo(np.int32).max) if self.exact else (-np.inf, np.inf)
        start = {"sum": 0, "max": limits[0], "min": limits[1]}[combiner]
        shape = [{"q": self.sizes["n"] // 4, **self.sizes}[dim] for dim in TARGETS[target][1].split()]
        result = np.full(shape, float(start))
        for (_, m, n), term in np.ndenumerate(VALUES[value](x)):
            place = {"rows": (m,), "columns": (n,), "all": (), "groups": (m, n // 4), "elements": (m, n)}.get(target)
            if place is None:
                row = int(table[m])
                if not 0 <= row < self.sizes["r"]:
                    continue
                place = (row, n) if target == "table" else (row,)
            result[place] = of_two(result[place], term)
        return result


def draw(seed):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            case = DrawnCombination(f"{seed}/{refused}")
            case.program = case.strategy(case.bound).program("sm_80")
            _ = case.program.lowered
            return case, refused
        except REFUSALS:
            refused += 1
            if refused > 20:
                raise
