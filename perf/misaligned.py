"""Compare the strategy hopper for A, B or C unsupported by TMA with cuBLAS: preceding copies, then the GEMM.

    python perf/misaligned.py FOLDER [--rounds 7]

Float16 GEMM of odd sizes, B row-major (NN) and column-major (NT), with several tiles, and without the copies; the copies alone. Each is
first verified against float64; all are measured together with cuBLAS (through PyTorch) in one run: bursts, buffers rotated through L2.
Writes `misaligned.json` and `misaligned.txt` into the folder.
"""

import argparse
import json
from pathlib import Path

from tabulate import tabulate
from tune_hopper import ALL, square, values, wide

from fireiron import ColMajor, RowMajor, Strategy
from fireiron.errors import FireironError
from fireiron.strategies import hmma_ampere, hopper

SHAPES = (
    (4095, 4097, 4099), (4096, 4096, 4097), (4096, 4097, 4096), (4095, 4096, 4096), (8191, 8193, 8195), (2047, 2049, 2051), (1023, 1025, 1027),
    (511, 513, 515), (255, 257, 259), (16, 4095, 4097),
)  # fmt: skip

TILES = {
    "256x128": values(256, 128, 128, 128, 4, group_m=8, producer_threads=128),
    "256x128, 4 warpgroups": values(256, 128, 64, 128, 4, group_m=8),
    "128x256": wide(),
    "192x192": square(group_m=4),
    "128x128": values(128, 128, 64, 128, 6, group_m=8),
    "64x128": values(64, 128, 64, 64, 8, group_m=2),
    "64x64": values(64, 64, 64, 64, 8, group_m=4),
    "32x64": values(32, 64, 32, 64, 4, bk=128, group_m=4),
    "16x64": values(16, 64, 16, 64, 16),
}


def strategies_of(shape):
    """Return the strategies by name."""
    big = shape[0] * shape[1] > 1 << 20
    names = (
        ("256x128", "256x128, 4 warpgroups", "128x256", "192x192", "128x128") if big else ("128x128", "64x128", "64x64", "32x64", "16x64")
    )
    strategies = {name: hopper.strategy.with_(**(ALL | TILES[name])) for name in names}
    without = strategies[names[0]]
    return strategies | {"without copies": Strategy(without.steps[2:], start=without.start), "hmma_ampere": hmma_ampere.strategy}


def measured(shape, order, rounds):
    """Return times of all strategies, of their copies alone and of cuBLAS; failures are reported and left out."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    spec = hopper.spec(*shape, B=RowMajor if order == "NN" else ColMajor)
    data = Data.of(spec)
    calls = {"cuBLAS": data.calls(cublas)}
    for name, strategy in strategies_of(shape).items():
        try:
            kernel = strategy(spec).compile()
            launches = data.calls(kernel)
            data.reset()
            data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {shape} {order} {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = launches
    program = strategies_of(shape)[next(iter(strategies_of(shape)))](spec).program("sm_90a")
    for launch in program.launches:
        copy = CompiledKernel(launch.program)
        calls[f"copy of {launch.name}"] = data.calls(lambda arrays, name=launch.name, copy=copy: copy.prepare(arrays[name]))
    return measure(calls, rounds=rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="one shape, as 4095x4097x4099")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    where, rows, kept = environment(), [], []
    for shape in SHAPES:
        for order in ("NN", "NT"):
            if options.only not in (None, "x".join(map(str, shape))):
                continue
            times = measured(shape, order, options.rounds)
            ours = {name: one.us for name, one in times.items() if name in TILES}
            best = min(ours, key=ours.get)
            library = times["cuBLAS"].us
            others = {name: one.us for name, one in times.items() if name not in TILES and name != "cuBLAS"}
            rows.append(["x".join(map(str, shape)), order, library, ours[best], library / ours[best], best, others.get("without copies"),
                         others.get("hmma_ampere"), sum(us for name, us in others.items() if name.startswith("copy"))])  # fmt: skip
            kept.append({"shape": shape, "order": order, "times": {name: [one.us, *one.quartiles] for name, one in times.items()}})
            print(rows[-1], {name: round(us, 1) for name, us in ours.items()}, flush=True)
            write(options.folder, rows, where, kept)
    print((options.folder / "misaligned.txt").read_text())


def write(folder, rows, where, kept):
    """Write the table and the times so far."""
    heads = ("M x N x K", "B", "cuBLAS us", "hopper us", "ratio", "tile", "without copies us", "hmma_ampere us", "copies alone us")
    (folder / "misaligned.txt").write_text(tabulate(rows, heads, floatfmt=".2f") + "\n")
    (folder / "misaligned.json").write_text(json.dumps({"environment": where, "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
