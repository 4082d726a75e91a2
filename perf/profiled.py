"""Profile our kernels and those of libraries: the names of their kernels, and which parts of the GPU they keep busy (Graphene, Figure 9).

    python perf/profiled.py FOLDER [--only GEMM,attention] [--no-counters]
    python perf/profiled.py FOLDER --page        no GPU: the page of the present files

Each contender is first compared with float64, then launched once under PyTorch's profiler for its kernels' names and times, and once under
Nsight Compute (`ncu`) for counters: tensor cores, SMs, memory, warps, bytes to and from memory. A cuBLAS kernel name states the tile, the
depth of a stage and the number of stages, `nvjet_sm90_hsh_192x192_64x3_...`; the table adds the number of waves of such tiles. Counters are
read with an empty cache at the present clock (`--clock-control none`). On an H200 this takes about 30 seconds for the names and one or two
minutes for the counters. Writes `profiled.json`, `profiled.md`, and the output of `ncu` (`ncu.csv`).
"""

import argparse
import csv
import json
import math
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

from attention import by_kernel, by_torch, spec_of
from attention import sets_of as attention_sets
from cypress import SQUARE, TOKENS, WIDE, drawn, errors, like
from fused import CompilePool, Contenders, say
from tabulate import tabulate

from fireiron.ir.cluster import SM_COUNT
from fireiron.strategies import attention, dual, gemm_row_sum, hmma_ampere, hopper, hopper_attention, layernorm, lstm, mlp

SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats")
BYTES = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum")
COLUMNS = {
    "tensor %": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",),
    "compute %": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory %": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "DRAM %": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    "warps %": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
}
"""For a contender's longest kernel: counters by column, the first one present."""

KEPT = r"^sm__pipe_tensor_cycles.*avg|^sm__throughput\.avg|dram_throughput\.avg|^gpu__compute_memory_throughput\.avg|warps_active\.avg\.pct|duration\.sum|^launch__(registers_per_thread$|grid_size|block_size|occ\w+limit)"
"""The stored counters."""

MARKER = "between_contenders"
LENGTH, LAYERS, ROWS, HIDDEN = 4096, 20, 8192, 4096


class Problem:
    """A computation: `jobs` are strategies by name with their spec and target; `trial` adds all contenders, for one set of tensors."""

    def __init__(self, name, jobs, trial, sizes=None, tiles=None):
        self.name, self.jobs, self.trial, self.sizes, self.tiles = name, jobs, trial, sizes, tiles or {}

    def waves(self, name, kernels):
        """Return the number of waves of tiles of a contender on an H200.

        For our kernels, the tile determines it, for cuBLAS the kernel's name. Otherwise the result is None.
        """
        match = next(filter(None, (re.search(r"_(\d+)x(\d+)_\d+x\d+_", kernel) for kernel, _ in kernels)), None)
        tile = self.tiles.get(name) or (tuple(map(int, match.groups())) if match else None)
        if tile is None or self.sizes is None:
            return None
        return math.prod(-(-size // part) for size, part in zip(self.sizes, tile, strict=True)) / SM_COUNT


def product(M, N, K, values, peer=None):
    """Return a plain GEMM."""

    def trial(kernels):
        import torch

        a, b, d = drawn(M, K), drawn(K, N), like(M, N)
        contenders = Contenders([d], a.double() @ b.double())
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(a, b, out=d))
        contenders.add("cuBLAS", lambda _: lambda: torch.matmul(a, b, out=d))
        return contenders

    jobs = [({"ours": hopper.product.with_(**values)}, hopper.spec(M, N, K), "sm_90a")]
    if peer is not None:
        jobs.append(({"ours, mma.sync": hmma_ampere.strategy}, hmma_ampere.spec(M, N, K), "sm_90"))
    tiles = {"ours": (values["bm"], values["bn"]), "ours, mma.sync": (128, 128)}
    return Problem(f"GEMM {M}x{N}x{K}", jobs, trial, (M, N), tiles)


def duals(n):
    """Return two GEMMs with a common operand."""

    def trial(kernels):
        import torch

        a, b, c, d = drawn(n, n), drawn(n, n), drawn(n, n), like(n, n)
        contenders = Contenders([d], a.double() @ (b.double() + c.double()))
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(a, b, c, out=d))
        contenders.add("cuBLAS, twice", lambda _: lambda: torch.matmul(a, b, out=d).addmm_(a, c))
        return contenders

    return Problem(f"dual GEMM {n}^3", [({"ours": dual.hopper}, dual.spec(n, n, n), "sm_90a")], trial, (n, n), {"ours": (128, 256)})


def row_sums(n):
    """Return a GEMM and row sums."""

    def trial(kernels):
        import torch

        a, b, d, y = drawn(n, n), drawn(n, n), like(n, n), torch.empty(n, device="cuda")
        contenders = Contenders([(d, y)], (a.double() @ b.double(), a.double().sum(1)))
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(a, b, out=(d, y)))
        contenders.add("cuBLAS + torch.sum", lambda _: lambda: (torch.matmul(a, b, out=d), torch.sum(a, 1, dtype=torch.float32, out=y)))
        return contenders

    return Problem(
        f"GEMM + row sum {n}^3",
        [({"ours": gemm_row_sum.hopper}, gemm_row_sum.spec(n, n, n), "sm_90a")],
        trial,
        (n, n),
        {"ours": (128, 256)},
    )


def cells(n):
    """Return the gate of an LSTM cell."""

    def trial(kernels):
        x, w, h, r, bias, d, between = drawn(n, n), drawn(n, n), drawn(n, n), drawn(n, n), drawn(n), like(n, n), like(n, n)
        from cublas_lt import cublas_lt

        contenders = Contenders([d], (x.double() @ w.double() + h.double() @ r.double() + bias.double()).relu())
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(x, w, h, r, bias, out=d))

        def two(_):
            first, second = cublas_lt().plan(x, w, between), cublas_lt().plan(h, r, d, bias, between)
            return lambda: (first(), second())

        contenders.add("cuBLASLt, twice", two)
        return contenders

    return Problem(f"LSTM {n}^3", [({"ours": lstm.hopper}, lstm.spec(n, n, n), "sm_90a")], trial, (n, n), {"ours": (128, 256)})


def perceptrons(rows):
    """Layers in one kernel."""

    def trial(kernels):
        from fused_peers import ROWS as TILES
        from fused_peers import perceptrons as by_triton

        x, y = drawn(rows, 128), like(rows, 128)
        weights, bias = (drawn(LAYERS, 128, 128) * (2 / 128) ** 0.5).half(), (drawn(LAYERS, 128) * 0.1).half()
        wanted = x.double()
        for w, b in zip(weights.double(), bias.double(), strict=True):
            wanted = (wanted @ w + b).relu()
        contenders = Contenders([y], wanted)
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(x, weights, bias, out=y))
        contenders.add("Triton", lambda _: by_triton(x, weights, bias, y, TILES[1], False))
        return contenders

    return Problem(
        f"MLP, {LAYERS} layers, {rows} rows", [({"ours": mlp.hopper.with_(bm=64, stages=6)}, mlp.spec(rows, 128, LAYERS), "sm_90a")], trial
    )


def heads(d, causal):
    """Attention."""

    def trial(kernels):
        arrays = attention_sets(LENGTH, d, TOKENS)[0]
        contenders = Contenders([arrays[3]], errors(arrays, causal))
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: by_kernel(kernel, arrays))
        for name, backend in (("cuDNN", "CUDNN_ATTENTION"), ("FlashAttention-2", "FLASH_ATTENTION")):
            contenders.add(name, lambda _, backend=backend: by_torch(backend, causal, arrays), returned=True)
        return contenders

    strategy = hopper_attention.by_rows(attention.definition(causal=causal, rescale_threshold=8), q_in_registers=d == 64)
    jobs = [({"ours": strategy}, spec_of(LENGTH, d, causal, TOKENS, 8), "sm_90a")]
    return Problem(f"attention {LENGTH}, d {d}{', causal' * causal}", jobs, trial)


def rows(count):
    """LayerNorm."""

    def trial(kernels):
        import numpy
        import torch

        x, w, b, y = drawn(count, HIDDEN), drawn(HIDDEN), drawn(HIDDEN), like(count, HIDDEN)
        norm = torch.nn.functional.layer_norm
        contenders = Contenders([y], norm(x.double(), (HIDDEN,), w.double(), b.double()))
        for name, kernel in kernels.items():
            contenders.add(name, lambda _, kernel=kernel: kernel.prepare(x, w, b, numpy.float32(1e-5), out=y))
        contenders.add("PyTorch", lambda _: lambda: norm(x, (HIDDEN,), w, b), returned=True)
        return contenders

    spec = layernorm.spec(count, HIDDEN)
    return Problem(f"LayerNorm {count}x{HIDDEN}", [({"ours": layernorm.strategy.with_(**layernorm.values(spec))}, spec, "sm_90")], trial)


PROBLEMS = (
    product(4096, 4096, 4096, WIDE), product(8192, 8192, 8192, WIDE), product(5376, 5376, 2048, SQUARE, "mma.sync"), duals(4096), row_sums(4096),
    cells(4096), perceptrons(ROWS), heads(128, False), heads(128, True), heads(64, False), rows(16384),
)  # fmt: skip


def contenders(kernels, chosen):
    """`(problem, name, launch)`, each verified, in a fixed order."""
    for problem in chosen:
        trial = problem.trial(kernels[problem.name])
        for name, launches in trial.calls.items():
            yield problem, name, launches[0]


def compiled(chosen):
    """Return our kernels by problem and name."""
    pool = CompilePool()
    jobs = {problem.name: [pool.begin(*job) for job in problem.jobs] for problem in chosen}
    return {name: {key: kernel for one in found for key, kernel in pool.kernels(one).items()} for name, found in jobs.items()}


def named(launch):
    """Return the kernels of a launch, as PyTorch's profiler names them, with microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    launch()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        launch()
        torch.cuda.synchronize()
    events = [one for one in profiled.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    return [(one.name, one.device_time) for one in sorted(events, key=lambda one: one.time_range.start)]


# ---------------------------------------------------------------------------------------------- counters


def launched(path, chosen):
    """Launch each contender once under `ncu`, between markers."""
    import cupy
    import torch

    marker = cupy.RawKernel(f'extern "C" __global__ void {MARKER}() {{}}', MARKER)
    kernels = pickle.loads(Path(path).read_bytes())
    for _, _, launch in contenders(kernels, chosen):
        launch()
        torch.cuda.synchronize()
        cupy.cuda.runtime.profilerStart()
        marker((1,), (1,), ())
        cupy.cuda.Device().synchronize()
        launch()
        torch.cuda.synchronize()
        cupy.cuda.runtime.profilerStop()


def counted(folder, kernels, only):
    """Return the rows written by `ncu` for each contender; None if it fails."""
    stored, log = folder / "kernels.pickle", folder / "ncu.csv"
    stored.write_bytes(pickle.dumps(kernels))
    own = [sys.executable, __file__, str(folder), "--launch", str(stored), "--only", only]
    sections = [word for one in SECTIONS for word in ("--section", one)]
    options = ["--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw", "--print-units", "base"]
    command = ["ncu", *options, "--log-file", str(log), *sections, "--metrics", ",".join(BYTES), *own]
    log.unlink(missing_ok=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=160, check=False)
        rows = parsed(log.read_text()) if log.exists() else []
        if rows:
            return rows
        say("ncu:", (done.stdout + done.stderr)[-600:])
    except (OSError, subprocess.TimeoutExpired) as problem:
        say(f"ncu: {problem}")
    finally:
        stored.unlink(missing_ok=True)
    return None


def parsed(text):
    """Return the lines of a CSV page, in lists between markers."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    sections = []
    for row in csv.DictReader(lines[first:]):
        if not row["ID"]:
            continue
        if MARKER in row["Kernel Name"]:
            sections.append([])
        elif sections:
            sections[-1].append(row)
    return sections


def number(text):
    """Return a number of the page, whose thousands have commas."""
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return None


def summed_up(rows):
    """For a contender's kernels: the counters of the longest one, and all bytes."""
    if not rows:
        return {}
    longest = max(rows, key=lambda row: number(row.get("gpu__time_duration.sum")) or 0)
    summary = {title: next((number(longest[name]) for name in names if name in longest), None) for title, names in COLUMNS.items()}
    summary["counters"] = {name: value for name, value in longest.items() if value and re.search(KEPT, name)}
    summary |= {name: sum(number(row.get(name)) or 0 for row in rows) for name in BYTES}
    summary["DRAM MB"] = sum(summary[name] for name in BYTES[:2]) / 1e6
    return summary


# ---------------------------------------------------------------------------------------------- the table

HEADS = ("problem", "by", "kernel", "us", "waves", "tensor %", "compute %", "memory %", "DRAM %", "warps %", "DRAM MB")


def line(measurement):
    """Return a row of the table: for the longest kernel."""
    waves = next(
        (problem.waves(measurement["by"], measurement["kernels"]) for problem in PROBLEMS if problem.name == measurement["problem"]), None
    )
    name, us = max(measurement["kernels"], key=lambda pair: pair[1], default=("", None))
    others = len(measurement["kernels"]) - 1
    title = name[:70] + (f" and {others} more" if others > 0 else "")
    return [measurement["problem"], measurement["by"], title, us, waves, *(measurement["counters"].get(head) for head in HEADS[5:])]


def paged(folder):
    """Write the page of the present files, and return it."""
    measurements = json.loads((folder / "profiled.json").read_text())["measured"]
    text = tabulate([line(one) for one in measurements], HEADS, tablefmt="github", floatfmt=".1f") + "\n"
    (folder / "profiled.md").write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="how names of problems begin, with commas between")
    parser.add_argument("--no-counters", dest="counters", action="store_false")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    starts = tuple(options.only.split(",")) if options.only else ("",)
    chosen = [one for one in PROBLEMS if one.name.startswith(starts)]
    if options.launch:
        launched(options.launch, chosen)
        return
    if options.page:
        print(paged(options.folder))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    kernels = compiled(chosen)
    say("compiled")
    from fireiron.measure.timing import environment

    measurements = []
    for problem, name, launch in contenders(kernels, chosen):
        names = named(launch)
        measurements.append({"problem": problem.name, "by": name, "kernels": names, "counters": {}})
    say(f"{len(measurements)} contenders are correct and have names")
    if options.counters and shutil.which("ncu"):
        counters = counted(options.folder, kernels, options.only)
        say("counted" if counters else "no counters")
        if counters and len(counters) == len(measurements):
            for measurement, lines in zip(measurements, counters, strict=True):
                measurement["counters"] = summed_up(lines)
    (options.folder / "profiled.json").write_text(json.dumps({"environment": environment(), "measured": measurements}, indent=1) + "\n")
    print(paged(options.folder))


if __name__ == "__main__":
    main()
