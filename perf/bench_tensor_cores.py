"""Tensor-core kernels of the strategy library beside their peers in one run, on the GPU.

    python perf/bench_tensor_cores.py [--only large|small|wmma|fp32] [--rounds 20] [-o FILE.json]
                                      [--full] [--hot] [--sample FOLDER]

    large   hmma_ampere beside cuBLAS and beside Triton on the same instructions (peers.py); --full: all layouts at all sizes
    small   small and split_k beside cuBLAS, sizes 64 to 1024, with the mean and the minimum of the ratio
    wmma    wmma_simple and wmma_optimized beside cuBLAS and the kernels in the folder of --sample
    fp32    the float32 GEMMs beside cuBLAS without TF32

Data are standard normal, the same arrays for all; each contender is checked against float64 first, on output poisoned with
NaN, and is not timed if it is wrong. Timing ("burst" clocks): CUDA events around replays of a graph, contenders in turn, a
pause of 0.25 s and then about 25 ms of work, median of the rounds. Buffers rotate over more than 240 MB; with --hot one
set is used again and again, and the row says so. "busy" is without pauses, on a chip that has been kept busy for a second.

The folder of --sample holds machine code that is not part of this project, and `kernels.json`, which says how to launch it:

    {"sizes": [M, N, K], "kernels": [{"name": "...", "cubin": "FILE", "kernel": "symbol", "shared": bytes,
      "grid": blocks or "multiprocessors", "block": threads, "arguments": ["A", "B", "C", "D", "alpha", "beta"]}]}

with A row-major and B column-major in float16, C and D row-major in float32, D = alpha A B + beta C (here 1 and 0).
"""

import argparse
import functools
import importlib
import json
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from bench_gemm import environment, error, graph_of, stored, time_graph
from tabulate import tabulate

from fireiron import GL, ColMajor, FireironError, Kernel, MatMul, RowMajor, float16, float32, launch

ROTATED = 240e6  # bytes over which the buffers rotate
PAUSE = 0.25  # seconds before each burst
BURSTS = 4
REPLAY = 4000  # microseconds of one replay; with 20 rounds a burst is 1 + 5 replays
HEATING = 1.0  # seconds of work before the busy measurement

# Values of the tunables to try, by strategy and then by sizes; None: all other sizes. {}: the first value of each tunable.
SMALL_TILES = [
    {"bm": 16, "bn": 16, "bk": 64, "wm": 16, "wn": 16, "stages": 2, "ahead": 1},
    {"bm": 16, "bn": 32, "bk": 64, "wm": 16, "wn": 16, "stages": 2, "ahead": 1},
    {"bm": 32, "bn": 32, "bk": 128, "wm": 16, "wn": 32, "stages": 2, "ahead": 1},
    {"bm": 32, "bn": 32, "bk": 64, "wm": 16, "wn": 32, "stages": 5, "ahead": 2},
    {"bm": 64, "bn": 64, "bk": 64, "wm": 32, "wn": 32, "stages": 6, "ahead": 2},
    {"bm": 128, "bn": 64, "bk": 64, "wm": 64, "wn": 32, "stages": 6, "ahead": 2},
]
CONFIGS = {
    "hmma_ampere": {None: [{}, {"bm": 256, "bn": 128}]},
    "small": {None: SMALL_TILES},
    "split_k": {None: [{}, {"bm": 32, "bn": 32, "parts": 4}, {"parts": 4}]},
    "wmma_simple": {None: [{}]},
    "wmma_optimized": {None: [{}]},
    "gemm_nn": {None: [{}, {"bk": 16}]},
    "sgemm": {None: [{}, {"bk": 8}]},
}

LAYOUTS = {"N": RowMajor, "T": ColMajor}
LARGE_SIZES = ((4096, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 8192), (4000, 4000, 4096))
SMALL_CUBES = tuple((size, size, size) for size in (64, 128, 256, 512, 1024))
SMALL_OTHERS = ((64, 64, 1024), (64, 1024, 64), (1024, 64, 256), (256, 256, 1024), (256, 1024, 256), (1024, 1024, 64))
WMMA_SIZES = (4096, 4096, 4096)
FP32_SIZES = (4096, 4096, 4096)
FP32_NAMES = ("gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt", "sgemm")


@dataclass
class Contender:
    """Launches, one for each set of buffers, and what is to be known about the kernel."""

    calls: list
    notes: dict = field(default_factory=dict)


# ------------------------------------------------------------------------------------------ problems


def library(name):
    """A module of the strategy library, or None, with a message, if it is not there yet."""
    try:
        return importlib.import_module(f"strategies.{name}")
    except (ImportError, FireironError) as reason:
        print(f"strategies.{name} cannot be imported ({reason}): its rows are left out")
        return None


def problem(strategy, sizes, **options):
    """The spec of a strategy's module for these sizes and options, or None, with a message, if it is refused."""
    try:
        return strategy.spec(*sizes, **options)
    except FireironError as reason:
        print(f"{strategy.__name__} {sizes}: {reason}")
        return None


def layout_of(spec):
    """NN, NT, TN or TT: whether A and B are stored in another order than C."""
    orders = {one: spec.operands[one].tensor.layout.order for one in "ABC"}
    return "".join("N" if orders[one] == orders["C"] else "T" for one in "AB")


def arrays(spec, sizes):
    """A and B on the host, standard normal, and the poison for C."""
    M, N, K = sizes
    generator = np.random.default_rng(0)
    kinds = [spec.operands[one].dtype.to_numpy() for one in "ABC"]
    a, b = (generator.standard_normal(shape, dtype=np.float32).astype(kind) for shape, kind in (((M, K), kinds[0]), ((K, N), kinds[1])))
    return a, b, np.full((M, N), np.nan, kinds[2])


def buffers(spec, sizes, hot=False):
    """Sets of A, B, C on the device, and a word that says whether they rotate."""
    host = arrays(spec, sizes)
    layouts = [spec.operands[one].tensor.layout for one in "ABC"]
    count = 1 if hot else max(2, int(ROTATED // sum(array.nbytes for array in host)) + 1)
    sets = [tuple(stored(array, layout) for array, layout in zip(host, layouts, strict=True)) for _ in range(count)]
    return sets, "hot" if hot else "rotated"


def header(section, spec, sizes, buffering):
    """The part of a row that does not depend on the contenders."""
    M, N, K = sizes
    kinds = [spec.operands[one].dtype.to_numpy().name for one in "AC"]
    return {"section": section, "layout": layout_of(spec), "M": M, "N": N, "K": K, "type": " to ".join(kinds), "buffers": buffering}


def title(row):
    return f"{row['layout']} {row['M']}x{row['N']}x{row['K']}"


# ------------------------------------------------------------------------------------------ contenders


def run_fireiron(kernel, a, b, c):
    kernel(a, b, out=c, stream=torch.cuda.current_stream())


def run_cublas(a, b, c):
    """torch multiplies into row-major output, so a column-major C is C.T = B.T A.T."""
    if a.dtype != c.dtype:
        torch.mm(a, b, out_dtype=c.dtype, out=c)
    elif c.stride(1) == 1:
        torch.matmul(a, b, out=c)
    else:
        torch.matmul(b.T, a.T, out=c.T)


def as_torch(sets):
    return [tuple(torch.from_dlpack(array) for array in one) for one in sets]


def calls_of(function, sets):
    return [functools.partial(function, *one) for one in sets]


def cublas(sets):
    return Contender(calls_of(run_cublas, as_torch(sets)))


def fireiron_kernel(strategy, spec):
    """A compiled and loaded kernel, with its notes."""
    kernel = strategy(spec).compile(launch.device_arch())
    resources = kernel.resources
    notes = {"registers": resources.registers, "spills": resources.spill_stores, "shared": kernel.ir.shared_bytes}
    _ = kernel.launcher  # loads, and refuses what the GPU does not hold
    return kernel, notes


def fireiron_candidates(name, strategy, spec, sizes, sets):
    """Contenders by configuration; what the package refuses is said and left out."""
    table = CONFIGS.get(name, {None: [{}]})
    found = {}
    for config in table.get(sizes, table[None]):
        label = " ".join(f"{key}={value}" for key, value in config.items()) or "defaults"
        try:
            kernel, notes = fireiron_kernel(strategy.with_(**config), spec)
        except FireironError as reason:
            print(f"{name} {sizes} {label}: {reason}")
            continue
        found[label] = Contender(calls_of(functools.partial(run_fireiron, kernel), sets), notes)
    return found


def ours(name, module, spec, sizes, sets):
    """The fastest configuration of a strategy of the library, or None."""
    if spec is None:
        return None
    return fastest(name, fireiron_candidates(name, module.strategy, spec, sizes, sets), sets)


def triton_peer():
    """peers.py, or None, with a message, if Triton is missing."""
    try:
        return importlib.import_module("peers")
    except ModuleNotFoundError as reason:
        print(f"no Triton here ({reason}): it is left out")
        return None


def triton_candidates(peers, sets):
    """Contenders by configuration; a kernel with other instructions than mma.sync says so in its notes."""
    tensors = as_torch(sets)
    found = {}
    for config in peers.CONFIGS:
        run = functools.partial(peers.triton_mma_sync_matmul, config=config)
        compiled = run(*tensors[0])
        notes = {"instructions": peers.instructions(compiled), "shared": compiled.metadata.shared}
        notes |= {"registers": compiled.n_regs, "spills": compiled.n_spills}
        found[str(config)] = Contender(calls_of(run, tensors), notes)
    return found


def sample_kernels(folder, sizes, sets):
    """Contenders from machine code in a folder, as its kernels.json describes them; see the top."""
    path = Path(folder, "kernels.json")
    if not path.exists():
        print(f"{path} does not exist: the sample is left out")
        return {}
    described = json.loads(path.read_text())
    if tuple(described["sizes"]) != tuple(sizes):
        print(f"{path} is for {described['sizes']}, not for {sizes}: the sample is left out")
        return {}
    addend = np.random.default_rng(1).standard_normal(sets[0][2].shape, dtype=np.float32)
    addends = [cp.array(addend) for _ in sets]
    found = {}
    for one in described["kernels"]:
        try:
            found[one["name"]] = sample_kernel(path.parent, one, sizes, sets, addends)
        except (OSError, FireironError) as reason:
            print(f"{one['name']}: {reason}")
    return found


def sample_kernel(folder, described, sizes, sets, addends):
    """One kernel of kernels.json."""
    loaded = launch.load((folder / described["cubin"]).read_bytes(), described["kernel"], described["shared"])
    grid = cp.cuda.Device().attributes["MultiProcessorCount"] if described["grid"] == "multiprocessors" else extent(described["grid"])
    numbers = dict(zip("MNK", map(np.int32, sizes), strict=True)) | {"alpha": np.float32(1), "beta": np.float32(0)}
    calls = []
    for (a, b, d), c in zip(sets, addends, strict=True):
        values = {"A": a, "B": b, "C": c, "D": d} | numbers
        arguments = [values[one] for one in described["arguments"]]
        calls.append(functools.partial(run_sample, loaded, grid, extent(described["block"]), arguments))
    return Contender(calls, {"shared": described["shared"]})


def run_sample(loaded, grid, block, arguments):
    loaded(grid, block, arguments, stream=torch.cuda.current_stream())


def extent(value):
    return value if isinstance(value, int) else tuple(value)


# ------------------------------------------------------------------------------------------ measuring


def check(contender, sets):
    """Run once on poisoned output and note the error against float64; whether it is as small as the types allow."""
    a, b, c = sets[0]
    c.fill(np.nan)
    torch.cuda.synchronize()
    contender.calls[0]()
    torch.cuda.synchronize()
    contender.notes["error"] = error(c, a, b)
    return contender.notes["error"] < (1e-3 if c.dtype == np.float16 else 1e-4)  # false for NaN


def correct(contenders, sets, prefix=""):
    """The contenders whose result is right; the others are named."""
    right = {}
    for name, contender in contenders.items():
        if check(contender, sets):
            right[name] = contender
        else:
            print(f"WRONG RESULT: {prefix}{name}, error {contender.notes['error']:.2g}: it is left out")
    return right


def replayed(calls):
    """A graph of calls whose replay takes about REPLAY, and its number of launches."""
    graph = graph_of(calls)
    duration = float(np.median(time_graph(graph, 1, 3)))
    repeats = max(1, round(REPLAY / duration))
    return (graph, len(calls)) if repeats == 1 else (graph_of(calls * repeats), len(calls) * repeats)


def burst(graph, launches, rounds):
    """Times after a pause."""
    time.sleep(PAUSE)
    graph.replay()
    return time_graph(graph, launches, rounds)


def bursts(graphs, rounds):
    """Microseconds of a launch by contender, the contenders in turn."""
    times = {name: [] for name in graphs}
    for _ in range(BURSTS):
        for name, (graph, launches) in graphs.items():
            times[name] += burst(graph, launches, -(-rounds // BURSTS))
    return times


def busy(graphs, rounds):
    """The same without pauses, after a second of work."""
    stop = time.monotonic() + HEATING
    while time.monotonic() < stop:
        for graph, _ in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    times = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, (graph, launches) in graphs.items():
            times[name] += time_graph(graph, launches, 1)
    return times


def fastest(name, candidates, sets):
    """The fastest of a contender's candidates with a right result; its notes say which it is and how many there were."""
    right = correct(candidates, sets, f"{name} ")
    if not right:
        return None
    times = {}
    for label, contender in right.items() if len(right) > 1 else ():
        times[label] = float(np.median(burst(*replayed(contender.calls), 5)))
    best = min(times, key=times.get) if times else next(iter(right))
    right[best].notes |= {"choice": best, "choices": len(candidates), "choices us": times}
    return right[best]


def compared(row, contenders, sets, options, keep_busy=False):
    """The row with what was measured of each contender that is there and right."""
    there = correct({name: one for name, one in contenders.items() if one is not None}, sets)
    graphs = {name: replayed(one.calls) for name, one in there.items()}
    times = bursts(graphs, options.rounds)
    row["gpu"] = environment()["gpu"]
    busy_times = busy(graphs, options.rounds) if keep_busy else {}
    row["contenders"] = {}
    for name, one in there.items():
        measured = summary(row, times[name], "")
        measured |= summary(row, busy_times[name], "busy ") if keep_busy else {}
        row["contenders"][name] = measured | one.notes
    return row


def summary(row, times, prefix):
    """Median, quartiles and speed of times in microseconds."""
    median = float(np.median(times))
    return {
        f"{prefix}us": median,
        f"{prefix}quartiles us": [float(value) for value in np.quantile(times, (0.25, 0.75))],
        f"{prefix}TFLOP/s": 2 * row["M"] * row["N"] * row["K"] / median / 1e6,
    }


def add_ratios(row, reference):
    """How many times as fast as the reference each contender is."""
    measured = row["contenders"]
    if reference not in measured:
        return row
    row["reference"] = reference
    for one in measured.values():
        for prefix in ("", "busy "):
            if f"{prefix}us" in one:
                one[f"{prefix}ratio"] = measured[reference][f"{prefix}us"] / one[f"{prefix}us"]
    return row


# ------------------------------------------------------------------------------------------ sections


def large(options):
    """hmma_ampere, cuBLAS, and Triton on mma.sync."""
    module, peers = library("hmma_ampere"), triton_peer()
    if module is None:
        return
    others = ("NT", "TN", "TT")
    cases = [("NN", sizes) for sizes in LARGE_SIZES]
    cases += [(layout, sizes) for sizes in (LARGE_SIZES if options.full else LARGE_SIZES[:1]) for layout in others]
    for layout, sizes in cases:
        types = {"dtype": float16, "c_dtype": float16, "accumulator": float32}
        spec = problem(module, sizes, **types, A=LAYOUTS[layout[0]], B=LAYOUTS[layout[1]], C=RowMajor)
        if spec is None:
            continue
        sets, buffering = buffers(spec, sizes, options.hot)
        contenders = {"hmma_ampere": ours("hmma_ampere", module, spec, sizes, sets), "cublas": cublas(sets)}
        if peers is not None:
            contenders["triton mma.sync"] = named_triton(fastest("triton", triton_candidates(peers, sets), sets))
        row = compared(header("large", spec, sizes, buffering), contenders, sets, options, keep_busy=True)
        yield add_ratios(row, "cublas"), spec


def named_triton(contender):
    """The contender, with a message if its kernel has other instructions than mma.sync."""
    if contender is not None and contender.notes["instructions"] != "mma.sync":
        print(f"Triton's kernel is {contender.notes['instructions']}: do not compare with it as mma.sync")
    return contender


def small(options):
    """small and split_k beside cuBLAS."""
    module, shared_k = library("small"), library("split_k")
    if module is None or shared_k is None:
        return
    for sizes in SMALL_CUBES + SMALL_OTHERS:
        types = {"dtype": float16, "c_dtype": float16, "accumulator": float32}
        spec = problem(module, sizes, **types, A=RowMajor, B=RowMajor, C=RowMajor)
        if spec is None:
            continue
        sets, buffering = buffers(spec, sizes, options.hot)
        contenders = {"small": ours("small", module, spec, sizes, sets), "split_k": ours("split_k", shared_k, spec, sizes, sets)}
        contenders["cublas"] = cublas(sets)
        row = compared(header("small", spec, sizes, buffering), contenders, sets, options)
        yield add_ratios(row, "cublas"), spec


def wmma(options):
    """The two WMMA strategies, cuBLAS and the sample's kernels, which compute with A row-major, B column-major, C in float32."""
    modules = {name: module for name in ("wmma_simple", "wmma_optimized") if (module := library(name)) is not None}
    if not modules:
        return
    shape = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": ColMajor, "C": RowMajor}
    spec = MatMul(*WMMA_SIZES, **shape)(GL, GL, GL)(Kernel)
    sets, buffering = buffers(spec, WMMA_SIZES, options.hot)
    contenders = {name: ours(name, module, problem(module, WMMA_SIZES, **shape), WMMA_SIZES, sets) for name, module in modules.items()}
    contenders["cublas"] = cublas(sets)
    if options.sample is None:
        print("no --sample FOLDER: the WMMA strategies are compared with cuBLAS alone")
    else:
        contenders |= sample_kernels(options.sample, WMMA_SIZES, sets)
    row = compared(header("wmma", spec, WMMA_SIZES, buffering), contenders, sets, options)
    row["note"] = "the sample's kernels also read C, a third of the bytes that a launch moves at least"
    samples = [name for name in row["contenders"] if name.startswith("sample")]
    yield add_ratios(row, samples[0] if samples else "cublas"), spec


def fp32(options):
    """The float32 GEMMs beside cuBLAS without TF32, each in its own layout."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in FP32_NAMES:
        module = library(name)
        spec = None if module is None else problem(module, FP32_SIZES)
        if spec is None:
            continue
        sets, buffering = buffers(spec, FP32_SIZES, options.hot)
        contenders = {name: ours(name, module, spec, FP32_SIZES, sets), "cublas": cublas(sets)}
        row = compared(header("fp32", spec, FP32_SIZES, buffering), contenders, sets, options)
        yield add_ratios(row, "cublas"), spec


SECTIONS = {"large": large, "small": small, "wmma": wmma, "fp32": fp32}


# ------------------------------------------------------------------------------------------ report

NOTES = ("registers", "spills", "shared", "error", "choice")
SUMMARY = ("mean", "minimum", "at least 1", "sizes")


def lines(row):
    """One line of the table for each contender but the reference."""
    reference = row.get("reference")
    for name, one in row["contenders"].items():
        if name != reference:
            ratios = [one.get("ratio"), one.get("busy ratio")]
            beside = row["contenders"].get(reference, {}).get("TFLOP/s")
            yield [title(row), row["buffers"], name, one["us"], one["TFLOP/s"], beside, *ratios, *(one.get(note) for note in NOTES)]


def table(rows):
    """The rows of one section."""
    reference = next((row["reference"] for row in rows if "reference" in row), "reference")
    heads = ["problem", "buffers", "contender", "us", "TFLOP/s", f"{reference} TFLOP/s", "ratio", "busy ratio", *NOTES]
    return tabulate([line for row in rows for line in lines(row)], heads, floatfmt=".3g", missingval="-")


def _ratio(row, name):
    return row["contenders"].get(name, {}).get("ratio", 0.0)


def ratios_of_small(rows):
    """Mean, minimum and count of the ratio to cuBLAS, of all sizes and of the cubes."""
    measured = [row for row in rows if "ratio" in row["contenders"].get("small", {})]
    cubes = [row for row in measured if row["M"] == row["N"] == row["K"]]
    groups = {f"small, {name}": [_ratio(row, "small") for row in group] for name, group in (("all", measured), ("cubes", cubes))}
    groups["the better of small and split_k, all"] = [max(_ratio(row, "small"), _ratio(row, "split_k")) for row in measured]
    values = {
        name: (float(np.mean(group)), min(group), sum(ratio >= 1 for ratio in group), len(group)) for name, group in groups.items() if group
    }
    return {name: dict(zip(SUMMARY, numbers, strict=True)) for name, numbers in values.items()}


def cublas_kernel(spec, sizes):
    """The names of the kernels that cuBLAS launches, as the profiler tells."""
    (one,), _ = buffers(spec, sizes, hot=True)
    (call,) = cublas([one]).calls
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def save(path, result):
    if path:
        Path(path).write_text(json.dumps(result, indent=1) + "\n")


def measure_sections(options, result):
    """All rows of the chosen sections into the result, saved after each row; the specs, for the names of cuBLAS's kernels."""
    specs = []
    for name in [options.only] if options.only else SECTIONS:
        rows = []
        for row, spec in SECTIONS[name](options):
            rows.append(row)
            specs.append(spec)
            result["rows"].append(row)
            save(options.output, result)
            print(f"{name} {title(row)}: " + ", ".join(f"{who} {one['TFLOP/s']:.4g}" for who, one in row["contenders"].items()), flush=True)
        if rows:
            print(f"\n{name}\n{table(rows)}\n", flush=True)
        if name == "small" and rows:
            result["small"] = ratios_of_small(rows)
            print(tabulate([[group, *values.values()] for group, values in result["small"].items()], ["ratio", *SUMMARY], floatfmt=".3g"))
    return specs


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", help="JSON file for the results, written after each row")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument("--rounds", type=int, default=20, help="replays a contender, at least 20")
    parser.add_argument("--sample", help="folder with kernels.json and machine code to compare the WMMA strategies with")
    parser.add_argument("--full", action="store_true", help="large: all layouts at all sizes")
    parser.add_argument("--hot", action="store_true", help="one set of buffers, instead of many in rotation")
    options = parser.parse_args()
    if options.rounds < 20:
        parser.error("--rounds: the method asks for at least 20")
    return options


def main():
    options = arguments()
    result = {"environment": environment(), "command": f"python {shlex.join(sys.argv)}", "method": __doc__, "rows": []}
    specs = measure_sections(options, result)
    result["environment after"] = environment()["gpu"]
    save(options.output, result)
    for row, spec in zip(result["rows"], specs, strict=True):  # last: a profiler may slow down what comes after it
        row["cublas kernel"] = cublas_kernel(spec, (row["M"], row["N"], row["K"]))
    save(options.output, result)


if __name__ == "__main__":
    main()
