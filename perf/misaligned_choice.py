"""Measure all kernels that matter for GEMM whose rows are not multiples of an L2 line, and judge the choice of `fireiron.matmul` by them.

    python perf/misaligned_choice.py FOLDER [--across 28] [--odd 12] [--seed 107] [--candidates 16] [--seconds 250]
    python perf/misaligned_choice.py FOLDER --names        the names of cuBLAS's kernels for the shapes of FOLDER/times.json
    python perf/misaligned_choice.py FOLDER FILE ... --judge

Row-major float16 of random sizes: rows that are multiples of 16 but not of 128 bytes (`across`), and odd M, N and K (`odd`), which TMA does
not accept. Candidates are the tiles with the least expected times, tiles of `hopper` and `hopper:any_height` in clusters of up to eight blocks,
random ones of the next tiles, split-K kernels with several numbers of parts, Stream-K kernels if the last wave is partial, and, for odd
sizes, kernels with `mma.sync`. All are compiled first, in parallel. Each is verified against float64 (some rows) and cuBLAS (all
elements), then timed together with cuBLAS (through PyTorch, with `--lt` also cuBLASLt) and the choice of `fireiron.matmul`: bursts, buffers rotated through L2.
Writes `times.json` into the folder.

`--judge` measures nothing: by files of times, it compares the tile with the least estimated time, without records, with the fastest
measured tile and with cuBLAS. Rows of odd sizes are copied first, so their estimate is that of aligned rows.
"""

import argparse
import concurrent.futures
import functools
import itertools
import json
import math
import os
import time
from pathlib import Path
from random import Random

import numpy as np
from tabulate import tabulate
from tune_grid import (
    ARCHITECTURE,
    LT,
    STRATEGIES,
    TILES,
    Case,
    Checked,
    drawn_across,
    drawn_powers,
    filled,
    geometric_mean,
    library,
    lt_calls,
    multiplied,
    pool,
    shapes,
    title_of,
    unique,
    values_of,
    why_of,
)

from fireiron.errors import FireironError
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir.cluster import SM_COUNT
from fireiron.language.library import CLUSTERS, _clustered, default_strategy, find, in_clusters, work_of
from fireiron.language.waves import estimated_us
from fireiron.matmul import request
from fireiron.matmul_choice import ProductKernel, _adding, _batched_problem, lowered_in_parts
from fireiron.matmul_problem import key_and_views
from fireiron.strategies import hopper, hopper_stream_k
from fireiron.tune.record import describe
from fireiron.tune.records import Records, in_parts
from fireiron.tune.records.choosing import Question
from fireiron.tune.records.tiles import Problem, candidates
from fireiron.values.machine import as_architecture

ROTATED = 240e6
"""Bytes of all sets together."""

BURST = 4000.0
"""Microseconds of timed work of a contender before the next one runs: all contenders run in each round. A median over several runs
depends less on clocks and power, which earlier contenders change (`burst_order.py`)."""

MOST_SETS = 300
SPLITS = 4
"""Numbers of parts to measure."""

BY_THREADS = (
    ("split_k", {"bm": 32, "bn": 32, "bk": 32, "num_splits": 8, "stages": 2}),
    ("split_k", {"bm": 32, "bn": 32, "bk": 64, "num_splits": 4, "stages": 2}),
    ("split_k", {"bm": 16, "bn": 16, "bk": 32, "num_splits": 8, "stages": 4}),
    ("split_k", {"bm": 16, "bn": 16, "bk": 64, "num_splits": 8, "stages": 2}),
    ("split_k", {"bm": 16, "bn": 32, "bk": 32, "num_splits": 8, "stages": 4}),
    ("split_k", {"bm": 32, "bn": 16, "bk": 32, "num_splits": 8, "stages": 2}),
    ("small", {"bm": 64, "bn": 64, "bk": 64, "wm": 16, "wn": 32, "stages": 2}),
    ("hmma_ampere", {}),
)
"""Strategies that need no copies: of odd sizes."""


def drawn_odd(count, seed):
    """Return random sizes with odd M, N and K; one size in six has few rows."""
    random, shapes = Random(seed), []
    while len(shapes) < count:
        least = 4 if random.random() < 0.17 else 8
        shapes.append(tuple(int(2 ** random.uniform(low, 12.6)) | 1 for low in (least, 8, 8)))
    return tuple(shapes)


MOST_CLUSTERS = 3
"""Clusters of a tile among those of the least expected times."""


def wide(case, most, seed):
    """Return tiles of any height and width in clusters of up to eight blocks: two thirds by the least expected time, the others random."""
    work = work_of(case.spec)
    tiles = [(ANY_HEIGHT, one) for one in hopper.heights(*case.shape[:2])] + [("hopper", values_of(tile, case)) for tile in TILES]
    every = [(name, full_values(name, values)) for name, tile in tiles for values in in_clusters(name, work, [tile])]
    ranked = sorted(unique(every), key=lambda candidate: estimated_us(work, candidate[1]))
    chosen, counts = [], {}
    for name, values in ranked:
        tile = values["bm"], values["bn"], values["bk"]
        counts[tile] = counts.get(tile, 0) + 1
        if counts[tile] <= MOST_CLUSTERS and len(chosen) < most * 2 // 3:
            chosen.append((name, values))
    near = [candidate for candidate in ranked[: 8 * most] if candidate not in chosen]
    return chosen + Random(f"{seed} {case.shape}").sample(near, min(len(near), most - len(chosen)))


def multicast_tiles(case, most):
    """Return tiles of any height of the least expected time in clusters of eight blocks, and in smaller ones without multiples of 8 rows."""
    work, candidates = work_of(case.spec), []
    every = [(ANY_HEIGHT, full_values(ANY_HEIGHT, values)) for values in in_clusters(ANY_HEIGHT, work, hopper.heights(*case.shape[:2]))]
    ranked = sorted(every, key=lambda candidate: estimated_us(work, candidate[1]))
    for test in (is_large, is_shared_in_parts):
        tiles = set()
        for name, values in ranked:
            tile = values["bm"], values["bn"]
            if test(values) and tile not in tiles and len(tiles) < most:
                tiles.add(tile)
                candidates.append((name, values))
    return candidates


def is_large(values):
    """Return whether the cluster has eight blocks."""
    return values["cluster_m"] * values["cluster_n"] == 8


def is_shared_in_parts(values):
    """Return whether blocks of the cluster share a tile of A in parts that are not multiples of 8 rows."""
    return values["bm"] % (8 * values["cluster_n"]) > 0 and not is_large(values)


def fills(case, values, cluster):
    """Return whether C has the tiles of a cluster."""
    M, N, _ = case.shape
    return cluster[0] <= -(-M // values["bm"]) and cluster[1] <= -(-N // values["bn"])


ANY_HEIGHT = "hopper:any_height"


def plan(case, most, seed, new_forms=True, splits=SPLITS, shared_tiles=0):
    """Return the candidates of a problem: strategies with values and the number of parts of K. `new_forms`: also Stream-K, two per SM.

    `shared_tiles`: the number of tiles of `multicast_tiles` of each kind.
    """
    records = Records.shipped()
    chosen = [one for one in pool(case, records, most) if "stagger" not in one[1] or one[0] == "hopper_skinny"]
    problem = Problem.of(describe(case.spec))
    if problem.work.across_lines:
        chosen = unique([*chosen[: most // 3], *wide(case, most, seed), *multicast_tiles(case, shared_tiles)])
        chosen += [*(streamed(case) if new_forms else ()), *(two_per_sm(case) if new_forms else ())]
    elif new_forms:
        tiles = [values for name, values in chosen if name == "hopper" and (values["cluster_m"], values["cluster_n"]) == (1, 1)][:1]
        shared = [(values, cluster) for values in tiles for cluster in CLUSTERS[1:] if fills(case, values, cluster)]
        chosen += [("hopper", _clustered(values, *cluster, problem.work)) for values, cluster in shared]
    chosen = [(*one, 1) for one in unique(chosen)]
    chosen += split(case, records)[: 2 * splits]
    return chosen if case.legal else [*chosen, *((name, full_values(name, values), 1) for name, values in BY_THREADS)]


HALF_ROOM = 113 * 1024 - 1024
"""Bytes of shared memory of each of two blocks on an SM."""

SHARED_SMS = (
    (128, 128, 64, 128),
    (64, 128, 64, 64),
    (128, 64, 64, 64),
    (128, 96, 64, 96),
    (64, 192, 64, 96),
    (64, 256, 64, 128),
    (64, 64, 64, 64),
)


def two_per_sm(case):
    """Return three tiles with so few stages that two blocks fit on an SM: one stores a tile while the other one multiplies."""
    M, N, _ = case.shape
    kernels = []
    for tile in SHARED_SMS:
        values = values_of(tile, case)
        chunk = min(values["epi_n"], 32)
        staged = (tile[0] // tile[2]) * (tile[1] // tile[3]) * values["epi_m"] * chunk * 2
        stages = (HALF_ROOM - staged) // ((tile[0] + tile[1]) * values["bk"] * 2)
        if stages >= 2 and -(-M // tile[0]) * -(-N // tile[1]) > SM_COUNT:
            kernels.append(("hopper", {**values, "epi_n": chunk, "stages": min(stages, 8), "num_blocks": 65536}))
    return sorted(kernels, key=lambda one: estimated_us(work_of(case.spec), one[1]))[:3]


def full_values(name, values):
    return {tunable: values.get(tunable, one.values[0]) for tunable, one in find(name).strategy.tunables().items()}


def streamed(case):
    """Return Stream-K kernels if the last wave of their tiles is partial."""
    kernels = []
    M, N, K = case.shape
    for values in hopper_stream_k.defaults(M, N, K):
        waves = -(-M // values["bm"]) * -(-N // values["bn"]) / SM_COUNT
        if K >= 1024 and waves > 0.3 and waves % 1 < 0.8 and waves < 6:
            kernels.append(("hopper_stream_k", full_values("hopper_stream_k", {**values, "waves": 1 if waves > 1 else 0})))
    return kernels[:2]


@functools.cache
def matmul_problem(shape):
    """Return the problem of a matmul of contiguous arrays; the arrays are not initialized."""
    M, N, K = shape
    a, b, c = np.empty((M, K), "float16"), np.empty((K, N), "float16"), np.empty((M, N), "float16")
    return key_and_views(request(a, b, c, arch=ARCHITECTURE))[0].problems[0]


def split(case, records):
    """Return split-K kernels: for each number of parts, the two tiles with the least expected time, the best number first."""
    problem = matmul_problem(case.shape)
    kernels = []
    for parts in in_parts.numbers(*case.shape, 2):
        ranked = candidates(records, Question(_batched_problem(problem, parts).spec, as_architecture(ARCHITECTURE)))[:2]
        kernels += [(one.us + in_parts.adding_us(*case.shape[:2], parts), one, parts) for one in ranked]
    ordered = sorted(kernels, key=lambda one: one[0])
    return unique([(one.name, full_values(one.name, one.values), parts) for _, one, parts in ordered])


def named(name, values, parts):
    """Return the title of a candidate."""
    title = title_of(name, values) if "bm" in values and name.startswith("hopper") else name + " " + "x".join(map(str, values.values()))
    blocks = f" of {values['num_blocks']}" if values.get("num_blocks", 65536) not in (132, 65536) else ""
    return title + blocks + (f", {parts} parts" if parts > 1 else "")


def compiled(case, candidate):
    """Compile in a separate process: the kernels, whose machine code is then in the cache on disk, or why they are not legal."""
    name, values, parts = candidate
    try:
        if parts == 1:
            return (default_strategy(name, values, case.spec)(case.spec).compile(ARCHITECTURE),)
        problem = matmul_problem(case.shape)
        batched = _batched_problem(problem, parts)
        spec = lowered_in_parts(problem, batched) or batched.spec
        adding = CompiledKernel(_adding(problem.spec, parts, as_architecture(ARCHITECTURE)))
        _ = adding.compiled
        return default_strategy(name, values, spec)(spec).compile(ARCHITECTURE), adding
    except FireironError as error:
        return str(error).splitlines()[0]


def chosen_by_matmul(case):
    """Compile the choice of `fireiron.matmul` for the cache on disk."""
    import fireiron

    M, N, K = case.shape
    a, b, c = np.empty((M, K), "float16"), np.empty((K, N), "float16"), np.empty((M, N), "float16")
    try:
        asked = request(a, b, c, arch=ARCHITECTURE)
        product = fireiron.matmul.answer(asked).product
        for kernel in (product.kernel, product.sum_kernel):
            _ = None if kernel is None else kernel.compiled
    except FireironError as error:
        return str(error).splitlines()[0]
    return None


def compile_contenders(case):
    """Compile the kernels that `matmul.tuned` measures for the cache on disk."""
    from fireiron.matmul_tuned import _contenders

    M, N, K = case.shape
    a, b, c = np.empty((M, K), "float16"), np.empty((K, N), "float16"), np.empty((M, N), "float16")
    try:
        key = key_and_views(request(a, b, c, arch=ARCHITECTURE))[0]
        for choice, _ in _contenders(key, TUNED):
            _ = CompiledKernel(choice.program).compiled
    except FireironError as error:
        return str(error).splitlines()[0]
    return None


TUNED = 4
"""Tiles that `matmul.tuned` measures in addition to the choice."""


def tuned_times(torch, case, sets, finals, times, options):
    """Return the microseconds of the choice of `matmul.tuned` and of the best candidates in one run, its reason, and the seconds of the call."""
    import fireiron
    from fireiron.measure.timing import measure

    start = time.monotonic()
    choice = fireiron.matmul.tuned(*sets[0][:2], sets[0][2], candidates=TUNED)
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    best = sorted((name for name in finals if name != "matmul" and times.get(name) is not None), key=times.get)[:2]
    calls = {"tuned": [multiplied(case, *one) for one in sets], **{name: finals[name] for name in dict.fromkeys((*best, "cuBLAS"))}}
    again = measure(calls, rounds=options.rounds, pause=options.pause, burst=BURST)
    return {"times": {name: one.us for name, one in again.items()}, "why": choice.why, "seconds": seconds}


def sets_of(torch, case, rotated):
    """Return operand sets that exceed L2 together, each at multiples of 128 bytes."""
    M, N, K = case.shape
    sizes = (M * K, K * N, M * N)
    count = min(MOST_SETS, max(2, math.ceil(rotated / (2 * sum(sizes)))))
    steps = [math.ceil(size / 64) * 64 for size in sizes]
    a, b = (filled(torch, count * step, torch.float16) for step in steps[:2])
    c = torch.empty(count * steps[2], device="cuda", dtype=torch.float16)

    def view(flat, at, step, rows, columns):
        return flat[at * step : at * step + rows * columns].view(rows, columns)

    return [(view(a, at, steps[0], M, K), view(b, at, steps[1], K, N), view(c, at, steps[2], M, N)) for at in range(count)]


def launch_of(case, parts, kernels, operands):
    """Return a prepared launch on an operand set."""
    a, b, c = operands
    if parts == 1:
        return kernels[0].prepare(a, b, out=c)
    problem = key_and_views(request(a, b, c))[0].problems[0]
    left, right = ProductKernel(kernels[0], None, problem, kernels[1], parts).cut(a, b)
    first = kernels[0].prepare(left, right)
    second = kernels[1].prepare(first.out, out=c)
    return lambda: (first(), second())


def measured(torch, case, ready, options):
    """Return the entry of a problem: microseconds of all candidates, of cuBLAS and of `fireiron.matmul`."""
    from fireiron.measure.timing import measure

    sets = sets_of(torch, case, options.rotated * 1e6)
    calls = {"cuBLAS": [library(torch, case, one) for one in sets]}
    checked = Checked(torch, case, sets[0], calls["cuBLAS"][0])
    why, kept = why_of(case, sets[0]), {}
    for name, candidate, kernels in [("matmul", None, None), *ready]:
        try:
            launches = [launch_of(case, candidate[2], kernels, one) if candidate else multiplied(case, *one) for one in sets]
            error = checked.error(launches[0])
        except FireironError as problem:
            print(f"left out: {case} {name}: {str(problem).splitlines()[0]}", flush=True)
            continue
        if math.isinf(error):
            print(f"WRONG: {case} {name}", flush=True)
            continue
        name = name if name not in calls else f"{name} {len(calls)}"
        calls[name], kept[name] = launches, candidate
    calls |= lt_calls(sets, checked, options.lt)
    first = {name: one.us for name, one in measure(calls, rounds=1, pause=0.02 if options.pause > 0.02 else options.pause).items()}
    best = sorted((name for name in kept if name != "matmul"), key=first.get)[: options.finals]
    best += sorted((name for name in calls if name.startswith(LT)), key=first.get)[:1]
    finals = {name: calls[name] for name in ("cuBLAS", "matmul", *best) if name in calls}
    times = {name: one.us for name, one in measure(finals, rounds=options.rounds, pause=options.pause, burst=BURST).items()}
    for name in [name for name in times if name.startswith(LT)]:
        times["cuBLAS"] = min(times["cuBLAS"], times.pop(name))
    entry = {
        "shape": case.shape,
        "why": why,
        "times": times,
        "first": first,
        "candidates": {name: one for name, one in kept.items() if one},
    }
    return entry | ({"tuned": tuned_times(torch, case, sets, finals, times, options)} if case.shape in options.tuned else {})


def shapes_of(options):
    """Return the cases: the given ones, or sizes across lines, and odd sizes, alternately as far as there are both."""
    if options.shapes:
        return [Case(shape, "float16", "NN") for shape in options.shapes]
    across, odd = drawn_across(options.across, options.seed) if options.across else (), drawn_odd(options.odd, options.seed)
    aligned = drawn_powers(options.aligned, options.seed) if options.aligned else ()
    every = max(1, len(across) // max(1, len(odd)))
    mixed = []
    for number, shape in enumerate(across):
        mixed.append(shape)
        if number % every == every - 1 and number // every < len(odd):
            mixed.append(odd[number // every])
    mixed = list(dict.fromkeys([*mixed, *odd]))
    pairs = itertools.zip_longest(mixed, aligned)
    return [Case(shape, "float16", "NN") for pair in pairs for shape in pair if shape is not None]


def run(options):
    """Compile everything, then measure, and write the results after each problem."""
    start = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = shapes_of(options)
    with concurrent.futures.ProcessPoolExecutor(options.processes or max(1, (os.cpu_count() or 2) - 2)) as workers:
        wanted = {
            case: workers.submit(plan, case, options.candidates, options.seed, not options.tiles_only, options.splits, options.shared)
            for case in cases
        }
        choices = [workers.submit(chosen_by_matmul, case) for case in cases]
        choices += [workers.submit(compile_contenders, case) for case in cases if case.shape in options.tuned]
        tasks = {case: [(one, workers.submit(compiled, case, one)) for one in wanted[case].result()] for case in cases}
        print(f"{len(cases)} problems, {sum(map(len, tasks.values()))} kernels after {time.monotonic() - start:.0f} s", flush=True)
        concurrent.futures.wait([job for jobs in tasks.values() for _, job in jobs] + choices, timeout=options.compiling)
        print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
        if options.compile_only:
            failures = [
                f"{case} {named(*candidate)}: {job.result()}"
                for case in cases
                for candidate, job in tasks[case]
                if isinstance(job.result(), str)
            ]
            print("\n".join([*failures, *(str(job.result()) for job in choices if job.result())]))
            return
        import torch

        from fireiron.measure.timing import environment

        torch.zeros(1, device="cuda")
        where, entries = environment(), []
        for number, case in enumerate(cases):
            if time.monotonic() - start > options.seconds:
                print(f"the time is over: {len(cases) - number} of {len(cases)} problems are left out", flush=True)
                break
            done = [(one, job.result()) for one, job in tasks[case] if job.done() and job.exception() is None]
            ready = [(named(*one), one, kernels) for one, kernels in done if not isinstance(kernels, str)]
            try:
                entries.append(measured(torch, case, ready, options))
            except (FireironError, RuntimeError) as error:
                print(f"left out: {case}: {type(error).__name__} {str(error).splitlines()[0][:200]}", flush=True)
                continue
            print(line_of(entries[-1], len(done)), flush=True)
            (options.folder / "times.json").write_text(json.dumps({"environment": where, "measured": entries}) + "\n")
            torch.cuda.empty_cache()
        workers.shutdown(wait=False, cancel_futures=True)
    print(summary(entries), f"{time.monotonic() - start:.0f} s", sep="\n")


def best_of(entry):
    """Return the name of the fastest candidate."""
    return min((name for name in entry["times"] if name not in ("cuBLAS", "matmul")), key=entry["times"].get)


def line_of(entry, count):
    """Return a line about a problem: microseconds of cuBLAS, `matmul` and the best candidate."""
    times, best = entry["times"], best_of(entry)
    text = "x".join(map(str, entry["shape"]))
    if "tuned" in entry:
        again = entry["tuned"]["times"]
        least = min(us for name, us in again.items() if name not in ("tuned", "cuBLAS"))
        print(
            f"{text} tuned {again['tuned']:.2f}, best {least:.2f}: {least / again['tuned']:.3f}, {entry['tuned']['seconds']:.1f} s: {entry['tuned']['why']}"
        )
    own = times.get("matmul", math.inf)
    ratios = f"{times[best] / own:.3f} {times['cuBLAS'] / own:.3f} {times['cuBLAS'] / times[best]:.3f}"
    return f"{text} {times['cuBLAS']:.2f} {own:.2f} {times[best]:.2f} {ratios} {best} of {len(entry['first']) - 2} of {count}"


def summary(entries):
    """Return geometric means by kind of size."""
    lines = []
    for kind, test in (
        ("aligned", lambda shape: shape[1] % 64 == 0 == shape[2] % 64),
        ("across lines", lambda shape: shape[1] % 8 == 0 == shape[2] % 8 and (shape[1] % 64 or shape[2] % 64)),
        ("odd", lambda shape: shape[1] % 2 or shape[2] % 2),
    ):
        own = [one["times"] | {"best": one["times"][best_of(one)]} for one in entries if test(one["shape"]) and "matmul" in one["times"]]
        if own:
            ratios = {
                "matmul/best": [one["best"] / one["matmul"] for one in own],
                "matmul/cuBLAS": [one["cuBLAS"] / one["matmul"] for one in own],
                "best/cuBLAS": [one["cuBLAS"] / one["best"] for one in own],
            }
            lines.append(
                f"{kind}, {len(own)}: " + ", ".join(f"{name} {geometric_mean(r):.3f}, lowest {min(r):.3f}" for name, r in ratios.items())
            )
    return "\n".join(lines)


def names(options):
    """Print the names of cuBLAS's kernels."""
    import torch

    entries = json.loads((options.folder / "times.json").read_text())["measured"]
    from torch.profiler import ProfilerActivity, profile

    sets = [
        (torch.randn(M, K, device="cuda").half(), torch.randn(K, N, device="cuda").half()) for M, N, K in (one["shape"] for one in entries)
    ]
    for a, b in sets:
        torch.matmul(a, b)
    torch.cuda.synchronize()
    result = {}
    for entry, (a, b) in zip(entries, sets, strict=True):
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            torch.matmul(a, b)
            torch.cuda.synchronize()
        result["x".join(map(str, entry["shape"]))] = [event.key for event in profiled.key_averages() if "Synchronize" not in event.key]
    (options.folder / "cublas_names.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(f"{shape} {' + '.join(name[-70:] for name in names)}" for shape, names in result.items()))


def judge(options):
    """Compare the tile with the least estimated time with the fastest one, for each size."""
    table, chosen_by_kind = [], {}
    for path in options.files:
        for entry in json.loads(path.read_text())["measured"]:
            case = Case(tuple(entry["shape"]), "float16", "NN")
            work, us = work_of(case.spec), entry["first"] | entry["times"]
            tiles = {
                name: values
                for name, (strategy, values, parts) in entry["candidates"].items()
                if parts == 1 and strategy in options.strategies and "bm" in values
            }
            if not tiles:
                continue
            chosen = min(tiles, key=lambda name, work=work, tiles=tiles: estimated_us(work, tiles[name]))
            best = min(tiles, key=us.get)
            table.append(("x".join(map(str, case.shape)), us[best] / us[chosen], us["cuBLAS"] / us[chosen], chosen, best))
            chosen_by_kind.setdefault("across lines" if case.legal else "odd", []).append(table[-1][1:3])
    print(tabulate(sorted(table, key=lambda row: row[1]), ("M x N x K", "chosen / best", "of cuBLAS", "chosen", "best"), floatfmt=".3f"))
    for kind, ratios in chosen_by_kind.items():
        for name, own in zip(("best", "cuBLAS"), zip(*ratios, strict=True), strict=True):
            print(f"{kind}, {len(own)} sizes: the tile of the least estimate / {name} {geometric_mean(own):.3f}, lowest {min(own):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", type=shapes, help="MxNxK,... instead of random sizes")
    parser.add_argument("--tuned", type=shapes, default=(), help="sizes for which `matmul.tuned` is measured, too")
    parser.add_argument("--across", type=int, default=28)
    parser.add_argument("--odd", type=int, default=12)
    parser.add_argument("--aligned", type=int, default=0, help="number of triples of 64 to 16384, measured alternately with the others")
    parser.add_argument("--seed", type=int, default=107)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument(
        "--finals", type=int, default=4, help="candidates with the least time in the first round that run in further rounds"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.04)
    parser.add_argument("--seconds", type=float, default=250)
    parser.add_argument("--shared", type=int, default=0, help="further tiles of any height in clusters, of each of two kinds")
    parser.add_argument("--rotated", type=float, default=ROTATED / 1e6, help="MB of the sets of operands together")
    parser.add_argument("--compiling", type=float, default=120, help="seconds after which kernels that are not compiled are left out")
    parser.add_argument("--tiles-only", action="store_true", help="without Stream-K and tiles of which two fit on an SM")
    parser.add_argument("--lt", type=int, default=0, help="algorithms of cuBLASLt's heuristic; the faster library call counts as cuBLAS")
    parser.add_argument("--splits", type=int, default=SPLITS, help="numbers of parts")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("files", type=Path, nargs="*", help="files of times, for --judge")
    parser.add_argument("--judge", action="store_true", help="judge the estimate by times that exist; nothing is measured")
    parser.add_argument(
        "--strategies",
        type=lambda text: tuple(text.split(",")),
        default=STRATEGIES,
        help="for --judge, the strategies whose tiles are compared",
    )
    options = parser.parse_intermixed_args()
    if options.judge:
        judge(options)
    else:
        names(options) if options.names else run(options)


if __name__ == "__main__":
    main()
