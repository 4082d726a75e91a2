"""Tune the products of a training step of a decoder, compare with cuBLAS, and write the best values as records.

    python perf/tune_decoder.py FOLDER [--tokens 4096] [--rounds 3] [--seconds 120] [--only "up;down"] [--candidates 6]

The layers are those of `decoder.py`: bfloat16, and for each weight the product of the forward pass (x W), the gradient of x (dy W^T) and that of
the weight (x^T dy). Each candidate is first verified against float64; all are measured together with cuBLAS (through PyTorch) in one run, with
buffers rotated through L2. A training step is limited by power, so the best candidate is that of a busy GPU, in rounds of 20 ms. It is measured
again in bursts, as other records are. Writes `products.json`, `products.txt` and `records.jsonl` into the folder.
Problems that remain at the time limit
are reported.
"""

import argparse
import concurrent.futures
import json
import os
import time
from pathlib import Path

import attrs
import tune_hopper
from gpu_turns import alone
from tabulate import tabulate
from tune_hopper import HILBERT, described, square, values, whole, wide

from fireiron import ColMajor, RowMajor, bfloat16
from fireiron.errors import FireironError
from fireiron.language.library import default_strategy
from fireiron.strategies import hopper
from fireiron.tune.records import Records

PAUSE, HEATING = 0.15, 0.5
"""Seconds before each burst, and of work before rounds on a busy GPU."""

ROUND = 20e3
"""Microseconds of a round on a busy GPU, so that each candidate heats the GPU itself."""

WEIGHTS = {"classes": (4096, 128256), "up": (4096, 28672), "down": (14336, 4096), "qkv": (4096, 6144), "out": (4096, 4096)}
"""Terms and columns of each weight."""

CANDIDATES = (
    whole(group_m=8),
    whole(group_m=8, cluster_m=2),
    whole(group_m=8, cluster_n=2),
    whole(group_m=16),
    wide(group_m=8, cluster_m=2),
    values(256, 128, 128, 128, 4, group_m=8, cluster_n=2),
    whole(group_m=4),
    wide(group_m=4),
    square(group_m=8),
    values(256, 192, 128, 192, 3, group_m=16, producer_threads=128),
    wide(group_m=8),
    values(256, 128, 128, 128, 4, group_m=8),
    values(256, 192, 128, 192, 3, group_m=8, producer_threads=128),
    values(256, 160, 128, 160, 4, group_m=8, producer_threads=128),
    square(**HILBERT),
    wide(group_m=8, cluster_n=2),
)


def problems(tokens):
    """Yield name and specification of each product."""
    for name, (terms, columns) in WEIGHTS.items():
        yield f"{name}, forward", spec_of(tokens, columns, terms, RowMajor, RowMajor)
        yield f"{name}, gradient of x", spec_of(tokens, terms, columns, RowMajor, ColMajor)
        yield f"{name}, gradient of W", spec_of(terms, columns, tokens, ColMajor, RowMajor)


def spec_of(rows, columns, terms, a, b):
    return hopper.spec(rows, columns, terms, dtype=bfloat16, c_dtype=bfloat16, A=a, B=b)


def candidates_of(spec):
    """Return the values by name: the choice of the library first, from records of other problems or by default."""
    from fireiron.front.place import Place

    place = Place.of(None, "sm_90a", None)
    choice = place.find(spec, lambda program: True) or place.by_tiles(spec, lambda program: True)
    listed = {}
    if choice is not None and choice.record is not None and choice.record.strategy == "hopper":
        listed["choice"] = choice.record.values
    return listed | {titled(each): each for each in CANDIDATES if each not in listed.values()}


def titled(each):
    """Return the title of a candidate, with its cluster."""
    cluster = each["cluster_m"], each["cluster_n"]
    return described("hopper", each) + (f", cluster {cluster[0]}x{cluster[1]}" if cluster != (1, 1) else "")


def kernel_of(each, spec):
    """Return the kernel of a candidate."""
    return default_strategy("hopper", each, spec)(spec).compile("sm_90a")


def compiled(task):
    """Compile the candidates of a problem in a separate process; return values and programs by name, and refusals."""
    spec, label = task
    each = candidates_of(spec).get(label)
    try:
        kernel = None if each is None else kernel_of(each, spec)
        refused = f"{label}: spills" if kernel is not None and kernel.resources.spill_stores else None
    except FireironError as error:
        kernel, refused = None, f"{label}: {error}"
    return (label, each, None if kernel is None else kernel.program), refused


def measured(spec, programs, rounds, name):
    """Return times of all candidates and of cuBLAS; failures are reported and left out."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    data = Data.of(spec)
    calls, kernels, errors = {"cuBLAS": data.calls(cublas)}, {}, {}
    for label, program in programs.items():
        try:
            kernel = CompiledKernel(program)
            launches = data.calls(kernel)
            data.reset()
            errors[label] = data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {name}, {label}: {str(error)[:200]}", flush=True)
            continue
        calls[label], kernels[label] = launches, kernel
    launches = max(2, round(ROUND * 7e8 / operations(spec)))
    with alone():
        busy = measure(calls, rounds=rounds, regime="busy", heating=HEATING, launches=launches)
        best = min(kernels, key=lambda label: busy[label].us)
        names = dict.fromkeys(label for label in ("cuBLAS", "choice", best) if label in calls)
        burst = measure({label: calls[label] for label in names}, rounds=rounds, pause=PAUSE)
    return busy, burst, best, kernels, errors


def operations(spec):
    m, n, k = (int(str(size)) for size in spec.sizes)
    return 2.0 * m * n * k


def row_of(name, spec, busy, burst, best):
    """Return a row of the table."""
    rates = [operations(spec) / times["cuBLAS"].us / 1e6 for times in (busy, burst)]
    ratios = [times["cuBLAS"].us / times[label].us if label in times else None for times in (busy, burst) for label in (best, "choice")]
    return [name, "x".join(map(str, spec.sizes)), *rates, *ratios, best]


HEADS = ("product", "M x N x K", "cuBLAS busy", "burst", "ratio busy", "of the choice", "burst", "of the choice", "values")
"""Rates in TFLOP/s; ratios to cuBLAS."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="", help="parts of the names of the products, separated by semicolons")
    parser.add_argument("--candidates", type=int, default=len(CANDIDATES), help="the number of candidates, the most promising first")
    options = parser.parse_args()
    start = time.monotonic()
    listed = [(name, spec) for name, spec in problems(options.tokens) if any(word in name for word in options.only.split(";"))]
    labels = ("choice", *map(titled, CANDIDATES[: options.candidates]))
    tasks = [(spec, label) for _, spec in listed for label in labels]
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compiled, tasks))
    print(
        f"{len(tasks)} kernels compiled in {time.monotonic() - start:.0f} s", *filter(None, (refused for _, refused in results)), sep="\n"
    )
    compiled_of = {}
    for (spec, _), ((label, each, program), _) in zip(tasks, results, strict=True):
        if program is not None:
            compiled_of.setdefault(id(spec), {})[label] = each, program
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.gpu import launch, toolchain
    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    where = environment() | {"toolchain": str(toolchain.compilation("", "sm_90a", newest=launch.driver_version()).chain)}
    rows, kept = [], []
    for number, (name, spec) in enumerate(listed):
        if time.monotonic() - start > options.seconds:
            print(f"the time is over: {len(listed) - number} of {len(listed)} problems are left out", flush=True)
            break
        known = compiled_of[id(spec)]
        programs = {label: program for label, (_, program) in known.items()}
        busy, burst, best, kernels, errors = measured(spec, programs, options.rounds, name)
        rows.append(row_of(name, spec, busy, burst, best))
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        record = tune_hopper.record_of(
            spec, known[best][0], burst[best], kernels[best], errors[best] or 0.0, burst["cuBLAS"].us, where, len(kernels)
        )
        record = attrs.evolve(record, source=f"{len(kernels)} candidates of perf/tune_decoder.py")
        Records.append_to(options.folder / "records.jsonl", record)
        kinds = {"busy": busy, "burst": burst}
        kept.append({"name": name} | {kind: {label: timing.us for label, timing in times.items()} for kind, times in kinds.items()})
    text = tabulate(rows, HEADS, floatfmt=".3f") + "\n"
    print(text)
    (options.folder / "products.txt").write_text(text)
    (options.folder / "products.json").write_text(json.dumps({"environment": where, "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
