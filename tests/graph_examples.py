"""Kernel graphs of the tests: elementwise kernels, attention of few queries, a layer normalization in two passes."""

import numpy as np

from fireiron import *
from fireiron.strategies import attention_combine, attention_decode


def of_elements(size=100, types=None, dependent=False, **texts):
    """A kernel of one thread per element; `texts` are its formulas by name, in which `x[n]` are its operands in capital letters."""
    text = " ".join(texts.values())
    names = dict.fromkeys(name for name in "ABCWXYZ" if f"{name}[n]" in text)
    start = Fused(name="work", dims="n", operands={**dict.fromkeys(names, "n"), **({"f": ""} if " f" in text else {})}, body=texts)
    blocks = start.tile(n=32).to(Block)
    blocks = blocks.programmatic_launch() if dependent else blocks
    return blocks.tile(n=1).to(Thread).done()(start(n=size, dtype=float32, types=types or {}))


def chain(size=100, dependent=False):
    """`Z = X * X + X` in two kernels."""
    square = of_elements(size, square="Y[n] = X[n] * X[n]")
    shift = of_elements(size, dependent=dependent, shift="Z[n] = Y[n] + X[n]")
    return KernelGraph("both", {"square": square, "shift": shift}, {"shift.Y": "square.Y", "shift.X": "square.X"})


def decode(rows=4, keys=70, d=16, size=32):
    """Attention of few queries as one program."""
    split, combine = attention_decode.spec(rows, keys, d, size=size), attention_combine.spec(rows, -(-keys // size), d)
    parts = attention_decode.by_parts(split.starter).with_(**attention_decode.values(split))
    columns = attention_combine.strategy.with_(**attention_combine.values(combine))
    return KernelGraph("decode", {"split": parts(split), "combine": columns(combine)}, {"combine": "split"})


def layer_norm(m=12, n=50, dependent=False, rows=2, dtype=float32):
    """Statistics of rows, then the normalized rows."""
    statistics = Fused(name="statistics", dims="m n", operands={"X": "m n", "mean": "m", "rstd": "m"}, types={"mean": float32, "rstd": float32},
        body={"sum": "s[m] = sum(n, X[m,n])", "mean": "mean[m] = s[m] / size(n)",
              "squares": "q[m] = sum(n, X[m,n] * X[m,n])",
              "rstd": "rstd[m] = rsqrt(max(q[m] / size(n) - (s[m] / size(n)) * (s[m] / size(n)), 0) + 1e-5)"})  # fmt: skip
    normalize = Fused(name="normalize", dims="m n", operands={"X": "m n", "mean": "m", "rstd": "m", "G": "n", "Y": "m n"}, types={"mean": float32, "rstd": float32},
        body={"y": "Y[m,n] = (X[m,n] - mean[m]) * rstd[m] * G[n]"})  # fmt: skip
    elements = Move.tile(1, 1).to(Lane).done()
    by_warps = statistics.tile(m=rows).to(Block).tile(m=1).to(Warp).load("X", RF, elements).done()
    blocks = normalize.tile(m=4, n=32).to(Block)
    by_threads = (blocks.programmatic_launch() if dependent else blocks).tile(m=1, n=1).to(Thread).done()
    kernels = {"statistics": by_warps(statistics(m=m, n=n, dtype=dtype)), "normalize": by_threads(normalize(m=m, n=n, dtype=dtype))}
    return KernelGraph("layer_norm", kernels, {"normalize": "statistics", "normalize.X": "statistics.X"})


def vectors(*counts, seed=1):
    return [np.random.default_rng(seed + place).integers(-8, 8, count).astype(np.float32) for place, count in enumerate(counts)]
