"""Run every library kernel at edge sizes, and random kernels, on a GPU: bit-equal on integers, within derived bounds on random data,
repeatable.

    python perf/campaign_gpu.py perf/results/DATE-GPU      writes kernels.json and README.md there; 500 random kernels, about 8 minutes on 16 cores
    python perf/campaign_gpu.py --dry --drawn 20           compiles everything for sm_90a without a GPU, and runs the data through NumPy alone

Kernels are compiled in separate processes; one process runs them. Integer GEMMs (and plain copies) are compared with NumPy bit for bit; all
kernels on normally distributed numbers with `fireiron.measure.rounding.error_bounds`, each element within its own bound. Outputs are
initialized to NaN, inputs are surrounded by NaN, and memory around outputs must not change (`tests/zones.py`). A sample is launched 20
times and must give the same bits each time, except for kernels that accumulate with atomics in any order (`atomicAdd` in their texts).
"""

import argparse
import collections
import datetime
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from cases import HOPPER, bound_of, drawn, shipped, uncovered
from on_gpu import Device
from tabulate import tabulate

from fireiron.gpu import launch
from fireiron.gpu.kernel import target_for
from fireiron.measure.data import accumulator_of, all_sizes, references_of
from fireiron.measure.data import random_inputs as normal_data
from fireiron.measure.rounding import differing
from fireiron.specs.fused import fused

REPEATS = 20
EVERY = 5
"""Of the random kernels, one in this many is launched `REPEATS` times; of the library kernels all are."""


def compiled(name, target, count):
    """In a separate process: the kernel of a name and its symbols, or the error as text."""
    started = time.process_time()
    try:
        strategy, symbols = bound_of({**shipped(target), **drawn(count)}[name]())
        kernel = strategy.compile(target)
        return kernel, symbols, time.process_time() - started, ""
    except Exception:
        return None, {}, time.process_time() - started, traceback.format_exc()


def whole_numbers(spec, arrays, generator):
    """Return integers that are so few and small that all sums are exact, even in float16. Scalars are unchanged."""
    integers = dict(arrays)
    for name, array in arrays.items():
        if spec.operands[name].dtype.kind == "float" and array.ndim:
            few = generator.integers(-2, 3, array.shape) * (generator.random(array.shape) < min(1.0, 64 / max(array.shape)))
            integers[name] = few.astype(array.dtype)
    return integers


def inputs_of(spec, sizes, seed):
    """Return normally distributed numbers by operand."""
    return {
        name: array
        for name, array in normal_data(spec, sizes, np.random.default_rng(seed)).items()
        if not spec.operands[name].memory.is_coordinate
    }


class DryRun:
    """A stand-in for a GPU that evaluates the definition, so that a dry run executes everything around a launch."""

    def run(self, kernel, arrays, sizes, repeats=1):
        """Return the definition's result, for each repetition."""
        return [references_of(kernel.program.spec, *arrays.values())] * repeats, []


def checked(device, name, kernel, symbols, seed, repeats):
    """Return the record of one kernel, whose `wrong` is empty if all is right."""
    spec = kernel.program.spec
    sizes = all_sizes(spec, symbols)
    record = {"name": name, "bit-equal": None, "within": False, "repeats": 0, "atomics": "atomicAdd" in kernel.program.cuda, "wrong": []}
    arrays = inputs_of(spec, sizes, seed)
    if fused(spec) is None:
        integers = whole_numbers(spec, arrays, np.random.default_rng(seed))
        (got,), wrong = device.run(kernel, integers, sizes)
        right = references_of(spec, *integers.values())
        record["wrong"] += wrong + [f"{one}: integers differ" for one in got if not np.array_equal(got[one], right[one])]
        record["bit-equal"] = not record["wrong"]
    results, wrong = device.run(kernel, arrays, sizes, repeats)
    differences = differing(spec, sizes, results[0], arrays, references_of(spec, *arrays.values()), accumulator_of(kernel))
    record["within"] = not differences
    record["wrong"] += wrong + differences
    if repeats > 1 and not record["atomics"]:
        record["repeats"] = repeats
        same = all(one[output].tobytes() == results[0][output].tobytes() for one in results for output in one)
        record["wrong"] += [] if same else [f"{repeats} launches do not all return the same bits"]
    return record


def main():
    options = parser().parse_args()
    if missing := uncovered():
        raise SystemExit(f"perf/cases.py has no case for {', '.join(missing)}")
    if not options.dry and not launch.gpu_available():
        raise SystemExit("no GPU: --dry compiles everything without one")
    target = options.target or (HOPPER if options.dry else target_for(launch.device_arch()))
    names = [*shipped(target), *drawn(options.drawn)]
    device, records, seconds, started = DryRun() if options.dry else Device(), [], 0.0, time.monotonic()
    if options.only:
        names = [name for name in names if re.search(options.only, name)]
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
        waiting = {pool.submit(compiled, name, target, options.drawn): number for number, name in enumerate(names)}
        for future in as_completed(waiting):
            number = waiting.pop(future)  # release a kernel that has run
            kernel, symbols, spent, why = future.result()
            seconds += spent
            records.append(of_one(device, names[number], number, kernel, symbols, why))
            if records[-1]["wrong"]:
                print(names[number], *records[-1]["wrong"], sep="\n  ", flush=True)
    return report(records, options, target, seconds, time.monotonic() - started)


def of_one(device, name, number, kernel, symbols, why):
    """Return the record of a kernel, also if it does not compile or its launch fails."""
    if kernel is None:
        return {"name": name, "bit-equal": None, "within": False, "repeats": 0, "atomics": False, "wrong": [f"does not compile: {why}"]}
    is_drawn = name.startswith(("product ", "definition "))
    try:
        return checked(device, name, kernel, symbols, number, REPEATS if not is_drawn or number % EVERY == 0 else 1)
    except Exception:
        return {"name": name, "bit-equal": None, "within": False, "repeats": 0, "atomics": False, "wrong": [traceback.format_exc()]}


def report(records, options, target, seconds, wall):
    """Print the table, write the folder, and report whether anything is wrong."""
    table = collections.defaultdict(collections.Counter)
    for record in records:
        kind = record["name"].split(" ")[0] if record["name"].startswith(("product ", "definition ")) else "shipped"
        kind = {"product": "drawn products", "definition": "drawn definitions"}.get(kind, kind)
        row = {"kernels": 1, "bit-equal": bool(record["bit-equal"]), "within": record["within"], "repeated": record["repeats"] > 0}
        table[kind].update({**row, "atomics": record["atomics"], "wrong": bool(record["wrong"])})
    headers = ["", "kernels", "bit-equal on integers", "within the bounds", f"{REPEATS} equal launches", "with atomics", "wrong"]
    keys = ("kernels", "bit-equal", "within", "repeated", "atomics", "wrong")
    text = tabulate([[kind, *(int(row[key]) for key in keys)] for kind, row in table.items()], headers, tablefmt="github")
    where = f"{'no GPU, compiled' if options.dry else 'on a GPU'} for {target}, {wall:.0f} s of wall time, {seconds:.0f} s of processors to compile"
    print(f"{text}\n{where}")
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / "kernels.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        command = f"`python perf/campaign_gpu.py {' '.join(sys.argv[1:])}`"
        (options.folder / "README.md").write_text(f"# Kernels on a GPU\n\n{date}, {command}: {where}.\n\n{text}\n", encoding="utf-8")
    return int(any(one["wrong"] for one in records))


def parser():
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("folder", type=Path, nargs="?", help="where kernels.json and README.md are written")
    arguments.add_argument("--drawn", type=int, default=500, help="how many drawn kernels (default: 500)")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile (default: one for each processor)")
    arguments.add_argument("--target", help="compile for this (default: the GPU's, sm_90a without one)")
    arguments.add_argument("--only", default="", help="only kernels whose names contain this regular expression")
    arguments.add_argument("--dry", action="store_true", help="compile everything without a GPU")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
