"""Measure what TMA loads cost that are out of bounds: tiles past the last row, and tiles that only complete a cluster.

    python perf/out_of_bounds.py FOLDER [--compile-only]

One tile of `hopper` or `hopper:any_height` per SM at most, row-major float16. In each series all sizes have the same number of blocks,
and differ in the elements of C that the last tiles contain. So the time would be constant if loads out of bounds took no longer than others.
Each kernel is measured as it is, and without the pass `wrap_boxes`. Each kernel is verified against PyTorch. CUDA graphs, bursts, medians; buffers rotate through L2. Writes `out_of_bounds.json`.
"""

import argparse
import concurrent.futures
import json
import os
import time
from pathlib import Path

from misaligned_choice import ANY_HEIGHT, Case, compiled, full_values, launch_of, sets_of
from tune_grid import ARCHITECTURE, Checked, library, values_of

from fireiron.errors import FireironError
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import _clustered, default_strategy, work_of
from fireiron.lower import passes
from fireiron.strategies import hopper

SERIES = {
    "96x64, 12 x 9 tiles in 4x1": (
        "hopper",
        (96, 64, 96, 64),
        (4, 1),
        [(rows, 536, 5088) for rows in (1152, 1112, 1064, 1056, 960, 864, 856)],
    ),
    "96x64, 12 x 9 tiles": ("hopper", (96, 64, 96, 64), (1, 1), [(rows, 536, 5088) for rows in (1152, 1112, 1064, 1057)]),
    "96x64 in 1x4, columns": ("hopper", (96, 64, 96, 64), (1, 4), [(856, columns, 5088) for columns in (768, 728, 712, 704, 640, 576)]),
    "128x128, columns": ("hopper", (128, 128, 64, 128), (1, 1), [(1408, columns, 3400) for columns in (1536, 1496, 1472, 1448, 1416)]),
    "136x128 any height": (ANY_HEIGHT, (136, 128), (1, 1), [(rows, 1160, 5000) for rows in (1632, 1600, 1560, 1528, 1504)]),
}
"""By title: the strategy, the tile, the cluster, and the sizes M x N x K."""


def candidate_of(case, name, tile, cluster):
    """Return a candidate of `misaligned_choice`."""
    work = work_of(case.spec)
    values = hopper._of_height(*tile, work.tiles(*tile)) if name == ANY_HEIGHT else values_of(tile, case)
    return name, full_values(name, _clustered(values, *cluster, work)), 1


def program_of(case, candidate):
    """Return the program of a candidate."""
    name, values, _ = candidate
    return default_strategy(name, values, case.spec)(case.spec).program(ARCHITECTURE)


def parts_without(case, candidate, left_out="wrap_boxes"):
    """Compile in a separate process, without a pass; return the parts of the program, or why it is not legal."""
    passes.PASSES = tuple(one for one in passes.PASSES if one[0] != left_out)
    try:
        program = program_of(case, candidate)
        _ = program.cuda, CompiledKernel(program).compiled
        return program.parts
    except FireironError as error:
        return str(error).splitlines()[0]


def kernel_of(case, candidate, parts):
    """Return the kernel with the parts of another process; its machine code is in the cache on disk."""
    program = program_of(case, candidate)
    program.adopt(parts, time.time())
    return (CompiledKernel(program),)


def pool():
    """Return processes that compile."""
    return concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (title, case, candidate_of(case, name, tile, cluster))
        for title, (name, tile, cluster, sizes) in SERIES.items()
        for case in (Case(shape, "float16", "NN") for shape in sizes)
    ]
    columns = [case for _, case, _ in jobs], [candidate for *_, candidate in jobs]
    kernels = list(zip(*(list(pool().map(function, *columns)) for function in (compiled, parts_without)), strict=True))
    print("\n".join(f"{case}: {one}" for (_, case, _), both in zip(jobs, kernels, strict=True) for one in both if isinstance(one, str)))
    if options.compile_only:
        return
    import torch

    from fireiron.measure.timing import environment, measure

    entries = []
    for (title, case, candidate), both in zip(jobs, kernels, strict=True):
        if any(isinstance(one, str) for one in both):
            continue
        try:
            sets = sets_of(torch, case)
            ready = {"ours": both[0], "without": kernel_of(case, candidate, both[1])}
            calls = {name: [launch_of(case, 1, kernels, one) for one in sets] for name, kernels in ready.items()}
            checked = Checked(torch, case, sets[0], library(torch, case, sets[0]))
            error = max(checked.error(launches[0]) for launches in calls.values())
            us = {name: timing.us for name, timing in measure(calls, rounds=3, pause=0.015).items()}
        except FireironError as problem:
            print(f"left out: {case}: {str(problem).splitlines()[0]}")
            continue
        entries.append({"series": title, "shape": case.shape, "values": candidate[1], **us, "error": error})
        print(
            f"{title}: {'x'.join(map(str, case.shape))} {us['ours']:.2f} us, without {us['without']:.2f} us, error {error:.1e}", flush=True
        )
        (options.folder / "out_of_bounds.json").write_text(json.dumps({"environment": environment(), "measured": entries}) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
