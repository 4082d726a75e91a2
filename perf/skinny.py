"""Compare GEMM with few rows with cuBLAS, and with a kernel that only reads the same bytes.

    python perf/skinny.py FOLDER [--rounds 9] [--candidates]

Float16, NN and NT: 16x4096x4096, and 1, 4, 16 and 64 rows by 8192x8192. Contenders, measured alternately in one run: `fireiron.matmul`, the
library's own tile (`hopper_skinny`), `torch.matmul`, and the reader, a lower bound for any GEMM that loads B from memory. Each result is
first verified against float64. With `--candidates` 16x4096x4096 alone, with more tiles: 64 rows of which 48 are out of bounds, for more
blocks; clusters that load A once; and blocks that start at different places along k (`stagger` 1), so that they do not all read
the same columns of B at once, or at the same place if the library's own do not. Writes `skinny.json` and `skinny.txt` into the folder.
"""

import argparse
import functools
import importlib
import json
from pathlib import Path

from tabulate import tabulate

import fireiron
from fireiron import ColMajor, RowMajor
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import defaults
from fireiron.strategies import hopper_skinny

SHAPES = ((16, 4096, 4096), (1, 8192, 8192), (4, 8192, 8192), (16, 8192, 8192), (64, 8192, 8192))

RINGS = ((128, 8, 0), (64, 16, 1), (256, 4, 1), (128, 10, 1), (128, 6, 1))
"""Steps along k, stages, and MMAs in flight, in addition to the library's own."""

ROOM = 220_000
"""Bytes of shared memory for the stages of a ring."""

READER = r"""
extern "C" __global__ void __launch_bounds__(512)
read_all(const uint4* __restrict__ data, long long count, unsigned* __restrict__ sink)
{
  unsigned seen = 0;
  const long long step = (long long)gridDim.x * 512;
  for (long long first = blockIdx.x * 512ll + threadIdx.x; first < count; first += 4 * step) {
    uint4 piece[4] = {};
#pragma unroll
    for (int turn = 0; turn < 4; ++turn)
      if (first + turn * step < count) piece[turn] = __ldcs(&data[first + turn * step]);
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) seen |= piece[turn].x ^ piece[turn].y ^ piece[turn].z ^ piece[turn].w;
  }
  if (seen == 0x12345678u) *sink = seen;
}
"""
"""All bytes of B, 64 of them in flight per thread; the values are used, and never written."""


def reader(arrays):
    """Return a launch that reads B of one set."""
    import cupy

    kernel, sink = cupy.RawKernel(READER, "read_all"), cupy.zeros(1, dtype=cupy.uint32)
    blocks = 4 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    return functools.partial(kernel, (blocks,), (512,), (arrays["B"], arrays["B"].nbytes // 16, sink))


def multiplied(arrays):
    """`fireiron.matmul` on one set."""
    return functools.partial(fireiron.matmul, arrays["A"], arrays["B"], out=arrays["C"])


def library_kernel(spec):
    """Return the library's own choice for a spec, without records."""
    name, values = defaults(spec, "sm_90a")[0]
    return importlib.import_module(f"fireiron.strategies.{name}").strategy.with_(**values)(spec).compile("sm_90a")


def candidates(spec):
    """Rings of other depths, by name."""
    name, own = defaults(spec, "sm_90a")[0]
    for bk, stages, in_flight_groups in RINGS if name == "hopper_skinny" else ():
        values = {**own, "bk": bk, "stages": stages, "mma_in_flight": in_flight_groups}
        if bk * stages * (own["bm"] + own["bn"]) * 2 < ROOM:
            yield f"bk {bk}, {stages} stages, {in_flight_groups} in flight", values


MORE = (
    ("hopper_skinny", {"bm": 64, "bn": 32, "epi_m": 64, "epi_n": 32, "bk": 128, "stages": 8}),
    ("hopper_skinny", {"bm": 64, "bn": 32, "epi_m": 64, "epi_n": 32, "bk": 64, "stages": 16}),
    ("hopper_skinny", {"bm": 64, "bn": 16, "epi_m": 64, "epi_n": 16, "bk": 128, "stages": 4}),
    ("hopper_skinny", {"bm": 64, "bn": 64, "epi_m": 64, "epi_n": 64, "bk": 128, "stages": 6}),
    ("hopper", {"bm": 16, "bn": 64, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "bk": 128, "stages": 8, "cluster_m": 1, "cluster_n": 2}),
    ("hopper", {"bm": 16, "bn": 128, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "bk": 128, "stages": 5}),
)
"""Strategies with values, in addition to rings of other depths."""

OTHER_STAGGER = ((128, 8), (256, 4), (64, 16))
"""Steps along k, and stages, of tiles whose blocks start at different places along k if the library's own do not, and vice versa."""


def more(spec):
    """Yield the programs of `MORE` and `OTHER_STAGGER`, by name."""
    for name, values in MORE:
        label = "{} {bm}x{bn}, bk {bk}, {stages} stages".format(name, **values) + (
            f", 1x{values['cluster_n']}" if "cluster_n" in values else ""
        )
        strategy = importlib.import_module(f"fireiron.strategies.{name}").strategy
        yield label, strategy.with_(**values, **({"num_blocks": 65536} if name == "hopper" else {}))(spec).program("sm_90a")
    own = defaults(spec, "sm_90a")[0][1]
    stagger = 1 - own.get("stagger", 0)
    for bk, stages in OTHER_STAGGER:
        values = {**own, "bk": bk, "stages": stages, "stagger": stagger}
        yield f"stagger {stagger}, bk {bk}, {stages} stages", hopper_skinny.strategy.with_(**values)(spec).program("sm_90a")


def measured(shape, order, rounds, all_candidates=False):
    """Return the times of all contenders by name."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    spec = hopper_skinny.spec(*shape, B=RowMajor if order == "NN" else ColMajor)
    data = Data.of(spec)
    calls = {"matmul": data.calls(multiplied), "own tile": data.calls(library_kernel(spec))}
    for name, values in candidates(spec):
        calls[name] = data.calls(hopper_skinny.strategy.with_(**values)(spec).compile("sm_90a"))
    for name, program in more(spec) if all_candidates else ():
        calls[name] = data.calls(CompiledKernel(program, ()).ready())
    for launches in calls.values():
        data.reset()
        data.verify(launches[0])
    return measure({**calls, "torch.matmul": data.calls(cublas), "reader": data.calls(reader)}, rounds=rounds)


def row_of(shape, order, times):
    """Return a row of the table."""
    us = {name: one.us for name, one in times.items()}
    best = min((name for name in us if name not in ("torch.matmul", "reader")), key=us.get)
    ratios = (
        us["torch.matmul"] / us["matmul"],
        us["torch.matmul"] / us["own tile"],
        us["torch.matmul"] / us[best],
        us["reader"] / us[best],
    )
    return ["x".join(map(str, shape)), order, us["matmul"], us["own tile"], us[best], us["torch.matmul"], us["reader"], *ratios, best]


HEADS = (
    "M x N x K", "B", "matmul us", "own tile us", "best us", "torch us", "reader us", "torch/matmul", "torch/own", "torch/best", "reader/best", "best",
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--candidates", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    rows, kept = [], []
    for shape in SHAPES[:1] if options.candidates else SHAPES:
        for order in ("NN", "NT"):
            times = measured(shape, order, options.rounds, options.candidates)
            for name, timing in sorted(times.items(), key=lambda pair: pair[1].us) if options.candidates else ():
                print(f"{order} {timing.us:7.3f} us, {times['reader'].us / timing.us:.3f} of the reader  {name}", flush=True)
            rows.append(row_of(shape, order, times))
            kept.append({"shape": shape, "order": order, "times": {name: [one.us, *one.quartiles] for name, one in times.items()}})
            print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
    text = tabulate(rows, HEADS, floatfmt=".3f") + "\n"
    print(text)
    (options.folder / "skinny.txt").write_text(text)
    (options.folder / "skinny.json").write_text(
        json.dumps({"environment": environment(), "rounds": options.rounds, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
