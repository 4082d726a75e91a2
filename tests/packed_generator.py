"""Random definitions that unpack numbers of 4 bits, integers or FP4, with scales and offsets, in a random place, and random sizes.

`right_values` computes the outputs from the inputs with NumPy in float64 by the tables of `ml_dtypes`, without the definition.
"""

import random

import ml_dtypes
import numpy as np
from fused_generator import REFUSALS

from fireiron import *

SHIFTS = {
    "4 * (k % {e})": lambda k, e: 4 * (k % e), "(k & {e1}) << 2": lambda k, e: (k & e - 1) << 2, "4 * ((k + 1) % {e})": lambda k, e: 4 * ((k + 1) % e),
    "4 * ({e1} - k % {e})": lambda k, e: 4 * (e - 1 - k % e), "k * 4 % {b}": lambda k, e: k * 4 % (4 * e),
}  # fmt: skip
SCALES = {"": None, "e8m0(S[n,k // {g}])": uint8, "S[n,k // {g}]": float8_e4m3, "s[n]": float16, "S[n,k]": float16}
PLACES = ("shared", "registers", "threads", "memory")


class DrawnPacked:
    """A definition `Y[n,k] = number * scale` from packed words, a strategy and a spec."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        chosen = self.random.choice
        self.kind = chosen(("int4", "e2m1", "e2m1"))
        self.word = chosen((int32, int32, uint8, int8))
        self.fields = 8 if self.word == int32 else 2
        self.shift, self.scale, self.place = chosen([*SHIFTS]), chosen([*SCALES]), chosen(PLACES)
        self.added = chosen((0, -8, 3)) if self.kind == "int4" else 0
        self.result = chosen((float16, bfloat16))
        self.group = chosen((16, 32, 64, 2, 1))
        self.tile = chosen((1, 2, 4, 8))
        self.sizes = {"n": self.random.randint(1, 20), "k": self.fields * self.random.randint(1, 160 // self.fields)}
        self.symbols = {}
        self.features = {self.kind, str(self.word), self.scale, self.place, str(self.result), self.shift}
        self.build()

    def build(self):
        shift = self.shift.format(e=self.fields, e1=self.fields - 1, b=4 * self.fields)
        field = f"P[n,k // {self.fields}] >> {'(' + shift + ')'}"
        value = f"(({field}) & 15) + {self.added}" if self.kind == "int4" else f"e2m1({field})"
        scale = self.scale.format(g=self.group)
        value = f"({value}) * {scale}" if scale else value
        operands = {"P": "n q", **({scale.partition("(")[2][:1] or scale[:1]: "n g"} if scale else {}), "Y": "n k"}
        operands |= {"S": "n k"} if scale == "S[n,k]" else {"s": "n"} if scale == "s[n]" else {}
        types = {"P": self.word, "Y": self.result, "w": self.result}
        if scale:
            name = "s" if scale == "s[n]" else "S"
            types[name] = self.result if SCALES[self.scale] == float16 else SCALES[self.scale]
        body = {"y": f"Y[n,k] = {value}"} if self.place == "memory" else {"w": f"w[n,k] = {value}", "y": "Y[n,k] = w[n,k]"}
        if self.place == "memory":
            types.pop("w")
        dims = " ".join(dim for dim in "nkqg" if any(dim in one.split() for one in operands.values()))
        self.definition = Fused(name="packed", dims=dims, operands=operands, types=types, body=body)
        self.bound = self.definition(**self.sizes)
        start = self.definition.tile(n=8, k=64).to(Block)
        if self.place == "shared":
            self.strategy = start.set_memory("w", SH).step("y", Move.coalesced_copy(self.tile).done()).done()
        elif self.place == "registers":
            self.strategy = start.tile(n=1, k=64).to(Warp).tile(n=1, k=2).to(Lane).done()
        else:
            self.strategy = start.tile(n=1, k=self.tile).to(Thread).done()

    def arrays(self, seed):
        """Random words; scales of a moderate size."""
        generator, arrays = np.random.default_rng(seed), {}
        for name in (one for one in self.bound.inputs if not one.startswith("index_")):
            view = self.bound.operands[name]
            shape, kind = tuple(int(size.high) for size in view.tensor.array.shape), view.dtype
            if name == "P":
                info = np.iinfo(kind.numpy)
                arrays[name] = generator.integers(info.min, info.max, shape, endpoint=True).astype(kind.numpy)
            elif kind == uint8:
                arrays[name] = generator.integers(0, 256, shape).astype(np.uint8)
            else:
                arrays[name] = generator.standard_normal(shape).astype(kind.to_numpy())
        return arrays

    def right_values(self, arrays):
        """The output, rounded once from float64: products of a number and a scale are exact there."""
        k = np.arange(self.sizes["k"])
        words = arrays["P"].astype(np.int64)[:, k // self.fields]
        bits = words >> SHIFTS[self.shift](k, self.fields) & 15
        numbers = bits + float(self.added) if self.kind == "int4" else bits.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(float)
        scale = 1.0
        if self.scale == "s[n]":
            scale = arrays["s"].astype(float)[:, None]
        elif self.scale:
            scale = arrays["S"] if self.scale == "S[n,k]" else arrays["S"][:, k // self.group]
            scale = (np.ascontiguousarray(scale).view(ml_dtypes.float8_e8m0fnu) if self.scale.startswith("e8m0") else scale).astype(float)
        with np.errstate(all="ignore"):
            return {"Y": (numbers * scale).astype(np.float32).astype(self.result.to_numpy())}


def draw(seed):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            case = DrawnPacked(f"{seed}/{refused}")
            case.program = case.strategy(case.bound).program("sm_80")
            _ = case.program.lowered
            return case, refused
        except REFUSALS:
            refused += 1
            if refused > 20:
                raise
