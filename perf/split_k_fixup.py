"""Compare split-K in one kernel, with an epilogue by the last block of a tile, with other kernels for few rows.

    python perf/split_k_fixup.py FOLDER [--rounds 9] [--parts 4 8 16]

Float16, C = relu(A * B + bias), for few rows and large K. Contenders, measured alternately in one run: `reduce_in_last_block` with several
numbers of parts, the same tiles without a split of K, split-K by atomic additions to a float32 C without the epilogue, `fireiron.matmul` without
the epilogue, and `torch.addmm` followed by `relu_` (cuBLAS and one more kernel). Each result of the first two is first verified against
float64. Writes `split_k_fixup.json` and `split_k_fixup.txt` into the folder.
"""

import argparse
import functools
import json
from pathlib import Path

from tabulate import tabulate

import fireiron
from fireiron import *

SHAPES = ((1, 4096, 4096), (16, 4096, 4096), (16, 1024, 16384), (64, 4096, 8192), (128, 128, 16384), (64, 512, 7168))
"""Rows, columns and K."""

linear = Fused(
    name="linear", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "C": "m n"},
    body={"product": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "out": "C[m,n] = relu(acc[m,n] + bias[n])"},
)  # fmt: skip

copies, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
loop = (
    MatMul.split(64).pipeline(4).load(A, SH, copies).swizzle_storage().load(B, SH, copies).swizzle_storage()
    .tile(16, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)
)  # fmt: skip


def in_parts(parts, rows):
    """Return the strategy with a split of K; one part is no split."""
    start = linear.split_k(parts, Block, 64).reduce_in_last_block() if parts > 1 else linear
    return start.tile(m=rows, n=64).to(Block).step("product", loop).done()


def by_atomics(parts, rows):
    """Return the strategy of a plain matmul whose blocks add to C atomically."""
    chain = MatMul.split_k(parts, Block, 64).tile(rows, 64).to(Block).epilog(RF, float32).split(64).pipeline(4)
    chain = chain.load(A, SH, copies).swizzle_storage().load(B, SH, copies).swizzle_storage().tile(16, 32).to(Warp)
    return chain.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)


def addmm(arrays):
    """cuBLAS on one set, then a kernel for the maximum."""
    import torch

    a, b, bias = (torch.as_tensor(arrays[name], device="cuda") for name in ("A", "B", "bias"))
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="cuda")

    def run():
        torch.addmm(bias, a, b, out=out).relu_()

    return run


def multiplied(arrays):
    """`fireiron.matmul` on one set."""
    return functools.partial(fireiron.matmul, arrays["A"], arrays["B"])


def measured(shape, parts, rounds):
    """Return the times of all contenders by name."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import measure

    m, n, k = shape
    rows = 16 if m <= 16 else 32 if m <= 32 else 64
    data = Data.of(linear(m=m, n=n, k=k))
    calls = {}
    for number in (1, *parts):
        name = f"last block, {number} parts" if number > 1 else "no split of K"
        calls[name] = data.calls(in_parts(number, rows)(linear(m=m, n=n, k=k)).compile())
        data.reset()
        data.verify(calls[name][0])
    plain = MatMul(m, n, k, dtype=float16, c_dtype=float32, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    added = Data.of(plain)
    for number in parts:
        calls[f"atomics, {number} parts"] = added.calls(by_atomics(number, rows)(plain).compile())
    calls["matmul"] = data.calls(multiplied)
    calls["torch.addmm, relu_"] = data.calls(addmm)
    return measure(calls, rounds=rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", type=int, nargs="+", default=[4, 8, 16])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    rows, kept = [], []
    for shape in SHAPES:
        times = measured(shape, options.parts, options.rounds)
        us = {name: timing.us for name, timing in times.items()}
        best = min((name for name in us if name.startswith("last")), key=us.get)
        others = (us["no split of K"], us["matmul"], us["torch.addmm, relu_"])
        rows.append(["x".join(map(str, shape)), us[best], *others, *(other / us[best] for other in others), best])
        kept.append({"shape": shape, "times": {name: [timing.us, *timing.quartiles] for name, timing in times.items()}})
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        for name, time in sorted(us.items(), key=lambda pair: pair[1]):
            print(f"    {time:8.3f} us  {name}", flush=True)
    heads = ("M x N x K", "last block us", "no split us", "matmul us", "addmm us", "no split/last", "matmul/last", "addmm/last", "best")
    text = tabulate(rows, heads, floatfmt=".3f") + "\n"
    print(text)
    (options.folder / "split_k_fixup.txt").write_text(text)
    (options.folder / "split_k_fixup.json").write_text(
        json.dumps({"environment": environment(), "rounds": options.rounds, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
