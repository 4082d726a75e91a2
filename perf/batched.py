"""Compare batched GEMM by `fireiron.matmul` with torch.matmul (cuBLAS), in one run.

    python perf/batched.py FOLDER [--batches 16,32,64] [--sizes 1024,2048,4096] [--rounds 7] [--candidates]

Row-major float16 GEMM, also with a column-major B (NT). Each kernel is first verified against float64; then all are measured in bursts,
with buffers rotated through L2. Writes `batched.json` (all times) and `batched.md` (the table). With `--candidates` the tiles below are
measured as well, and the best of each problem goes to `records.jsonl`.
"""

import argparse
import functools
import json
from pathlib import Path

import attrs
from tabulate import tabulate
from tune_hopper import geometric_mean, record_of, square, values, wide

from fireiron import ColMajor, RowMajor
from fireiron.errors import FireironError
from fireiron.language.library import default_strategy, defaults
from fireiron.strategies import hopper_batched
from fireiron.tune.record import strategy_hash
from fireiron.tune.records import Records

CANDIDATES = (
    wide(group_m=4), wide(group_m=8), wide(group_m=2), square(group_m=4), values(256, 128, 128, 128, 4, group_m=4), values(192, 96, 64, 96, 5, group_m=4),
    values(256, 192, 128, 192, 3, producer_threads=128, group_m=4),
)  # fmt: skip
"""Values that are among the best for one large matrix."""

HEADS = ("batch", "M = N = K", "B", "cuBLAS us", "TFLOP/s", "fireiron us", "TFLOP/s", "ratio", "values")


def spec_of(batch, size, order):
    """Return the spec of `batch` float16 GEMMs of one size."""
    return hopper_batched.spec(size, size, size, batch, B=RowMajor if order == "NN" else ColMajor)


def by_torch(arrays):
    """Return a launch of torch.matmul on the arrays of a set."""
    import torch

    a, b, c = (torch.as_tensor(arrays[name], device="cuda") for name in "ABC")
    return functools.partial(torch.matmul, a, b, out=c)


def strategies_of(spec, candidates):
    """Return the library's own choice, and the candidates, by name: strategies with values."""
    name, chosen = defaults(spec, "sm_90a")[0]
    strategies = {"default": (default_strategy(name, chosen, spec), chosen)}
    for choice in CANDIDATES if candidates else ():
        title = f"{choice['bm']}x{choice['bn']}x{choice['bk']}, {choice['stages']} stages, groups of {choice['group_m']}"
        strategies[title] = (hopper_batched.strategy.with_(**choice), choice)
    return strategies


def measured(spec, rounds, candidates):
    """Return times of all kernels and of cuBLAS; failures are reported and left out."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import measure

    data = Data.of(spec)
    calls, kernels, errors = {"cuBLAS": data.calls(by_torch)}, {}, {}
    for name, (strategy, _) in strategies_of(spec, candidates).items():
        try:
            kernel = strategy(spec).compile("sm_90a")
            launches = data.calls(kernel)
            data.reset()
            errors[name] = data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {spec} {name}: {error}", flush=True)
            continue
        calls[name], kernels[name] = launches, kernel
    return measure(calls, rounds=rounds), kernels, errors


def row_of(batch, size, order, times):
    """Return a row of the table: the best of ours compared with cuBLAS."""
    library, ours = times["cuBLAS"], {name: one for name, one in times.items() if name != "cuBLAS"}
    best = min(ours, key=lambda name: ours[name].us)
    flops = 2.0 * batch * size**3 / 1e6
    return [batch, size, order, library.us, flops / library.us, ours[best].us, flops / ours[best].us, library.us / ours[best].us, best]


def numbers(text):
    return [int(one) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=numbers, default=[16, 32, 64])
    parser.add_argument("--sizes", type=numbers, default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--candidates", action="store_true", help="measure more tiles, and write the best as records")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.gpu import launch, toolchain
    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    chain = toolchain.compilation("", "sm_90a", newest=launch.driver_version()).chain
    where = environment() | {"toolchain": str(chain)}
    rows, kept = [], []
    for batch, size, order in ((batch, size, order) for size in options.sizes for batch in options.batches for order in ("NN", "NT")):
        spec = spec_of(batch, size, order)
        times, kernels, errors = measured(spec, options.rounds, options.candidates)
        if not kernels:
            continue
        rows.append(row_of(batch, size, order, times))
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        kept.append(
            {"batch": batch, "size": size, "order": order, "times": {name: [one.us, *one.quartiles] for name, one in times.items()}}
        )
        if options.candidates:
            best = rows[-1][-1]
            tunables = {name: one.values[0] for name, one in hopper_batched.strategy.tunables().items()}
            chosen = {**tunables, **strategies_of(spec, True)[best][1]}
            record = record_of(spec, chosen, times[best], kernels[best], errors[best] or 0.0, times["cuBLAS"].us, where, len(kernels))
            own = {"strategy": "hopper_batched", "strategy_hash": strategy_hash(hopper_batched.strategy)}
            Records.append_to(
                options.folder / "records.jsonl", attrs.evolve(record, **own, source=f"{len(kernels)} candidates of perf/batched.py")
            )
    mean = f"Geometric mean of the ratios: {geometric_mean([row[7] for row in rows]):.3f}." if rows else "Nothing was measured."
    text = "\n".join([tabulate(rows, HEADS, floatfmt=".3f", tablefmt="github"), "", mean, ""])
    print(text)
    (options.folder / "batched.md").write_text(text)
    (options.folder / "batched.json").write_text(
        json.dumps({"environment": where, "rounds": options.rounds, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
