"""Tune the products of a training step of a decoder, compare with cuBLAS, and write the best values as records.

    python perf/tune_decoder.py FOLDER [--tokens 4096] [--rounds 3] [--seconds 120] [--only up] [--compile]

The layers are those of `decoder.py`: bfloat16, and for each weight the product of the forward pass (x W), the gradient of x (dy W^T) and that of
the weight (x^T dy). Each candidate is first verified against float64; all are measured together with cuBLAS (through PyTorch) in one run:
short bursts with pauses of 50 ms, buffers rotated through L2. Writes `products.json`, `products.txt` and `records.jsonl` into the folder.
Problems that remain at the time limit are reported. `--compile` only compiles the candidates, for the cache; `--cached`
compiles each when it is measured.
"""

import argparse
import concurrent.futures
import json
import os
import time
from pathlib import Path

import attrs
import tune_hopper
from tabulate import tabulate
from tune_hopper import HILBERT, described, square, values, whole, wide

from fireiron import ColMajor, RowMajor, bfloat16
from fireiron.errors import FireironError
from fireiron.language.library import default_strategy
from fireiron.strategies import hopper
from fireiron.tune.records import Records

PAUSE = 0.05
"""Seconds before each burst."""

WEIGHTS = {"classes": (4096, 128256), "up": (4096, 28672), "down": (14336, 4096), "qkv": (4096, 6144), "out": (4096, 4096)}
"""Terms and columns of each weight."""

CANDIDATES = (
    wide(group_m=4),
    wide(group_m=16),
    whole(group_m=4),
    whole(group_m=8),
    whole(group_m=16),
    values(256, 128, 128, 128, 4, group_m=8),
    values(256, 192, 128, 192, 3, group_m=8, producer_threads=128),
    values(256, 192, 128, 192, 3, group_m=16, producer_threads=128),
    values(256, 160, 128, 160, 4, group_m=8, producer_threads=128),
    square(group_m=8),
    square(**HILBERT),
    wide(group_m=8, cluster_m=2),
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
    return listed | {described("hopper", each): each for each in CANDIDATES if each not in listed.values()}


def kernel_of(each, spec):
    """Return the kernel of a candidate."""
    return default_strategy("hopper", each, spec)(spec).compile("sm_90a")


def compiled(task):
    """Compile in a separate process, for the cache only."""
    each, spec = task
    try:
        kernel = kernel_of(each, spec)
    except FireironError as error:
        return f"{each}: {error}"
    return f"{each}: spills" if kernel.resources.spill_stores else None


def measured(spec, rounds, name):
    """Return times of all candidates and of cuBLAS; failures are reported and left out."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    data = Data.of(spec)
    calls, kernels, errors = {"cuBLAS": data.calls(cublas)}, {}, {}
    for label, each in candidates_of(spec).items():
        try:
            kernel = kernel_of(each, spec)
            launches = data.calls(kernel)
            data.reset()
            errors[label] = data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {name}, {label}: {str(error)[:200]}", flush=True)
            continue
        calls[label], kernels[label] = launches, kernel
    return measure(calls, rounds=rounds, pause=PAUSE), kernels, errors


def row_of(name, spec, times):
    """Return a row of the table."""
    m, n, k = (int(str(size)) for size in spec.sizes)
    library = times["cuBLAS"].us
    best = min((label for label in times if label != "cuBLAS"), key=lambda label: times[label].us)
    own = library / times["choice"].us if "choice" in times else None
    flops = 2.0 * m * n * k / 1e6
    return [name, f"{m}x{n}x{k}", library, flops / library, flops / times[best].us, library / times[best].us, own, best]


HEADS = ("product", "M x N x K", "cuBLAS us", "TFLOP/s", "ours", "ratio", "ratio of the choice", "values")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="", help="a part of the name of the products")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cached", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    listed = [(name, spec) for name, spec in problems(options.tokens) if options.only in name]
    tasks = [(each, spec) for _, spec in listed for each in candidates_of(spec).values()]
    if not options.cached:
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
            complaints = sorted(filter(None, pool.map(compiled, tasks)))
        print(f"{len(tasks)} kernels compiled in {time.monotonic() - start:.0f} s", *complaints, sep="\n", flush=True)
    if options.compile:
        return
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
        times, kernels, errors = measured(spec, options.rounds, name)
        rows.append(row_of(name, spec, times))
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        best = rows[-1][-1]
        record = tune_hopper.record_of(
            spec, candidates_of(spec)[best], times[best], kernels[best], errors[best] or 0.0, times["cuBLAS"].us, where, len(kernels)
        )
        record = attrs.evolve(record, source=f"{len(kernels)} candidates of perf/tune_decoder.py")
        Records.append_to(options.folder / "records.jsonl", record)
        kept.append({"name": name, "times": {label: [one.us, *one.quartiles] for label, one in times.items()}})
    text = tabulate(rows, HEADS, floatfmt=".3f") + "\n"
    print(text)
    (options.folder / "products.txt").write_text(text)
    (options.folder / "products.json").write_text(json.dumps({"environment": where, "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
