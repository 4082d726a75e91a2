"""Tune the strategies for Hopper, compare with cuBLAS, and write the best values as records.

    python perf/tune_hopper.py FOLDER [--rounds 7] [--seconds 420] [--only 4096x4096x4096]

Row-major float16 GEMM, also with a column-major B (NT), with the candidates below for each shape and the library's own tile. Each candidate
is first verified against float64; all are measured together with cuBLAS (through PyTorch) in one run: bursts, buffers rotated through L2.
Writes `hopper.json` (all times), `hopper.txt` (the table) and `records.jsonl` into the folder. Candidates that remain at the time limit
are reported.
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import os
import time
from pathlib import Path

from tabulate import tabulate

from fireiron import ColMajor, RowMajor
from fireiron._version import VERSION
from fireiron.errors import FireironError
from fireiron.language.library import defaults
from fireiron.strategies import hopper, hopper_batched, hopper_skinny, hopper_small
from fireiron.tune.record import Record, describe, strategy_hash
from fireiron.tune.records import Records

STRATEGIES = {"hopper": hopper, "hopper_small": hopper_small, "hopper_skinny": hopper_skinny, "hopper_batched": hopper_batched}

ALL = {name: tunable.values[0] for name, tunable in hopper.strategy.tunables().items()}


def values(bm, bn, wm, wn, stages, **others):
    """Return all tunables; unnamed ones have their first values, and the chunks of C follow the tile."""
    rows = 64 if wm % 64 == 0 else 32 if wm % 32 == 0 else 16
    chunk = 64 if wn % 64 == 0 else 32 if wn % 32 == 0 else 16
    return {**ALL, "bm": bm, "bn": bn, "wm": wm, "wn": wn, "stages": stages, "epi_m": rows, "epi_n": chunk, **others}


def wide(stages=4, **others):
    return values(128, 256, 64, 256, stages, **others)


def whole(**others):
    """Return the same with three stages, and shared memory to stage a tile of C at once."""
    return wide(3, **{"epi_n": 256, **others})


def square(**others):
    return values(192, 192, 64, 192, 3, **{"epi_n": 192, **others})


def small(bm, bn, bk, stages, **others):
    """Return a candidate of hopper_small."""
    first = {name: tunable.values[0] for name, tunable in hopper_small.strategy.tunables().items()}
    chunk = next(one for one in (64, 32, 16) if bn % one == 0)
    rows = next(one for one in (64, 32, 16) if bm % one == 0)
    own = {"bm": bm, "bn": bn, "wm": bm, "wn": bn, "bk": bk, "stages": stages, "epi_m": rows, "epi_n": chunk}
    return "hopper_small", {**first, **own, **others}


def skinny(bm, bn, bk, stages, **others):
    """Return a candidate of hopper_skinny."""
    first = {name: tunable.values[0] for name, tunable in hopper_skinny.strategy.tunables().items()}
    return "hopper_skinny", {**first, "bm": bm, "bn": bn, "bk": bk, "stages": stages, "epi_m": bm, "epi_n": bn, **others}


ALONE = {"num_blocks": 65536}
"""One block per tile."""

HILBERT = {"group_m": 1, "raster": 2}
"""Blocks follow the Hilbert curve."""


def columns(number):
    """Blocks follow groups of the given number of tile columns."""
    return {"group_m": number, "raster": 1}


CANDIDATES = {
    (128, 128, 128): [values(16, 64, 16, 64, 4, bk=128, group_m=4), small(64, 16, 128, 1, mma_in_flight=0), small(64, 16, 64, 2)],
    (256, 256, 256): [values(16, 64, 16, 64, 4, bk=128, group_m=4), small(64, 16, 128, 2), small(16, 64, 128, 2)],
    (512, 512, 512): [values(32, 64, 32, 64, 4, bk=128, group_m=4), small(64, 32, 128, 4), small(32, 64, 128, 4), small(32, 64, 128, 3)],
    (768, 768, 768): [
        values(64, 96, 64, 96, 8, group_m=4, **ALONE), small(64, 96, 64, 8), small(96, 64, 64, 8), small(64, 96, 64, 6), small(96, 64, 64, 6),
    ],
    (1024, 1024, 1024): [
        values(64, 128, 64, 64, 8, group_m=2, **ALONE), values(64, 128, 64, 64, 6, group_m=2, **ALONE), values(64, 128, 64, 64, 5, group_m=2, **ALONE),
        values(128, 64, 64, 64, 6, group_m=2, **ALONE),
    ],
    (1536, 1536, 1536): [
        values(96, 192, 96, 64, 5, group_m=2, **ALONE), values(192, 96, 64, 96, 5, **columns(8), **ALONE), values(192, 96, 64, 96, 4, group_m=4, **ALONE),
        values(96, 192, 96, 64, 4, group_m=4, **ALONE),
    ],
    (1536, 1024, 2048): [
        values(96, 128, 96, 64, 6, group_m=4, **ALONE), values(96, 128, 96, 64, 5, group_m=4, **ALONE), values(128, 96, 64, 96, 6, group_m=4, **ALONE),
        values(96, 128, 96, 64, 6, **columns(4), **ALONE),
    ],
    (2048, 2048, 2048): [wide(group_m=2, **ALONE), wide(group_m=4, **ALONE), whole(group_m=2, **ALONE)],
    (3072, 3072, 3072): [square(group_m=4), square(group_m=4, epi_n=64), square(**HILBERT)],
    (4096, 4096, 4096): [whole(group_m=4), wide(group_m=4), wide(group_m=8), whole(group_m=8)],
    (5376, 5376, 2048): [square(group_m=4), square(group_m=8), square(group_m=4, epi_n=64), wide(group_m=4), square(**HILBERT)],
    (6144, 6144, 6144): [square(group_m=8), values(256, 192, 128, 192, 3, producer_threads=128)],
    (8192, 8192, 8192): [whole(), whole(group_m=16), wide(group_m=16), values(256, 192, 128, 192, 3, producer_threads=128)],
    (4096, 4096, 16384): [wide(), wide(group_m=4), wide(group_m=16)],
    (16, 4096, 4096): [skinny(16, 64, 128, 8), skinny(16, 64, 128, 8, mma_in_flight=0), skinny(16, 64, 64, 16)],
    (8192, 28672, 4096): [wide(group_m=16), whole(group_m=16), values(256, 192, 128, 192, 3, producer_threads=128)],
}  # fmt: skip
"""For each shape the values, and the strategy if it is not hopper, that were among the best in earlier sweeps; the shapes are those on the
results pages.
"""


def spec_of(shape, order):
    return hopper.spec(*shape, B=RowMajor if order == "NN" else ColMajor)


def described(name, values):
    """Return the title of a candidate."""
    walk = values.get("raster", 0)
    order = "Hilbert" if walk == 2 else f"{'column ' * (walk == 1)}bands of {values['group_m']}" if "group_m" in values else "rows"
    in_flight_text = f", {values['mma_in_flight']} in flight" if "mma_in_flight" in values else ""
    chunks = f", chunks of {values['epi_n']}" if values.get("epi_n", 0) > 64 else ""
    return f"{name.removeprefix('hopper_')} {values['bm']}x{values['bn']}x{values['bk']}, {values['stages']} stages, {order}{chunks}{in_flight_text}"


def candidates_of(shape, order):
    """Return the candidates, strategies with values, by name; the library's own tile first."""
    name, own = defaults(spec_of(shape, order), "sm_90a")[0]
    first = {one: tunable.values[0] for one, tunable in STRATEGIES[name].strategy.tunables().items()}
    listed = {"default": (name, {**first, **own})}
    for values in CANDIDATES[shape]:
        candidate = values if isinstance(values, tuple) else ("hopper", values)
        if candidate not in listed.values():
            listed[described(*candidate)] = candidate
    return listed


def kernel_of(candidate, spec):
    """Return the kernel of a candidate."""
    name, chosen = candidate
    return STRATEGIES[name].strategy.with_(**chosen)(spec).compile("sm_90a")


def compiled(task):
    """Compile in a separate process, for the cache only."""
    shape, order, chosen = task
    try:
        kernel_of(chosen, spec_of(shape, order))
    except FireironError as error:
        return f"{shape} {order} {chosen}: {error}"
    return None


def measured(shape, order, rounds):
    """Return times of all candidates and of cuBLAS; failures are reported and left out."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    spec = spec_of(shape, order)
    data = Data.of(spec)
    calls, kernels, errors = {"cuBLAS": data.calls(cublas)}, {}, {}
    for name, chosen in candidates_of(shape, order).items():
        try:
            kernel = kernel_of(chosen, spec)
            launches = data.calls(kernel)
            data.reset()
            errors[name] = data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {shape} {order} {name}: {error}", flush=True)
            continue
        calls[name], kernels[name] = launches, kernel
    times = measure(calls, rounds=rounds)
    return spec, times, kernels, errors


def record_of(spec, chosen, timing, kernel, error, library_us, where, count, name="hopper"):
    resources = kernel.resources
    sizes = [int(str(size)) for size in spec.sizes]
    return Record(
        strategy=name, strategy_hash=strategy_hash(STRATEGIES[name].strategy), values=chosen, spec=describe(spec), architecture="sm_90a",
        gpu=where["gpu"], us=timing.us, quartiles=timing.quartiles, tflops=2.0 * math.prod(sizes) / timing.us / 1e6, regime=timing.regime,
        l2=timing.l2, error=error, registers=resources.registers, shared_bytes=resources.shared_bytes, spills=resources.spill_stores,
        library_us=library_us, toolchain=where["toolchain"], driver=where["driver"], clocks=timing.clocks, fireiron=VERSION,
        date=datetime.date.today().isoformat(), source=f"{count} candidates of perf/tune_hopper.py",
    )  # fmt: skip


def row_of(shape, order, times):
    """Return a row of the table: the ratios of the default and of the best to cuBLAS."""
    library, ours = times["cuBLAS"], {name: one for name, one in times.items() if name != "cuBLAS"}
    best = min(ours, key=lambda name: ours[name].us)
    own = library.us / ours["default"].us if "default" in ours else None
    flops = 2.0 * math.prod(shape) / 1e6
    return [
        "x".join(map(str, shape)), order, library.us, flops / library.us, ours[best].us, flops / ours[best].us, library.us / ours[best].us, own, best
    ]  # fmt: skip


HEADS = ("M x N x K", "B", "cuBLAS us", "TFLOP/s", "ours us", "TFLOP/s", "ratio", "ratio of the default", "values")


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--only", help="one shape, as 4096x4096x4096")
    options = parser.parse_args()
    start = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    problems = [(shape, order) for shape in CANDIDATES for order in ("NN", "NT") if options.only in (None, "x".join(map(str, shape)))]
    tasks = [(*problem, chosen) for problem in problems for chosen in candidates_of(*problem).values()]
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for complaint in pool.map(compiled, tasks):
            if complaint:
                print(complaint, flush=True)
    print(f"{len(tasks)} kernels compiled in {time.monotonic() - start:.0f} s", flush=True)
    import torch  # calls cuBLAS

    from fireiron.gpu import launch, toolchain
    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    chain = toolchain.compilation("", "sm_90a", newest=launch.driver_version()).chain
    where = environment() | {"toolchain": str(chain)}
    rows, kept = [], []
    for number, (shape, order) in enumerate(problems):
        if time.monotonic() - start > options.seconds:
            print(f"the time is over: {len(problems) - number} of {len(problems)} problems are left out", flush=True)
            break
        spec, times, kernels, errors = measured(shape, order, options.rounds)
        rows.append(row_of(shape, order, times))
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        best = rows[-1][-1]
        name, chosen = candidates_of(shape, order)[best]
        kept.append({"shape": shape, "order": order, "times": {name: [one.us, *one.quartiles] for name, one in times.items()}})
        record = record_of(spec, chosen, times[best], kernels[best], errors[best] or 0.0, times["cuBLAS"].us, where, len(kernels), name)
        Records.append_to(options.folder / "records.jsonl", record)
    means = [f"{order}: geometric mean {geometric_mean([row[6] for row in rows if row[1] == order]):.3f}, of the library's own tiles "
             f"{geometric_mean([row[7] for row in rows if row[1] == order and row[7]]):.3f}" for order in dict.fromkeys(row[1] for row in rows)]  # fmt: skip
    text = "\n".join([tabulate(rows, HEADS, floatfmt=".3f"), "", *means, ""])
    print(text)
    (options.folder / "hopper.txt").write_text(text)
    (options.folder / "hopper.json").write_text(
        json.dumps({"environment": where, "rounds": options.rounds, "measured": kept}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
