"""Compare programs of tasks with equal fluent strategies, in one run: kernels by two front ends, with the same tiles, stages and placement.

    python perf/tasks.py FOLDER [--only gemm,dual] [--rounds 6] [--regimes burst,busy]

Each kernel is first compared with float64, on outputs initialized to NaN; then a program's mapping and its twin are measured alternately,
in bursts and busy. Other processes compile meanwhile. On an H200 this takes about 20 seconds to begin with, then 6 per problem. Writes
`tasks.txt` and `tasks.json`; a case is an entry of `CASES`.
"""

import argparse
import concurrent.futures
import os
from pathlib import Path

import attrs
from fused import Contenders, compiled, say, sets_of, written

from fireiron import tasks
from fireiron.strategies import (
    dual,
    gated,
    gemm_row_sum,
    hopper,
    hopper_batched,
    tasks_batched,
    tasks_dual,
    tasks_gated,
    tasks_gemm,
    tasks_row_sum,
)


@attrs.frozen
class Case:
    """A program and its twin: `pairs` gives for a problem the strategies by name, (of tasks, fluent); `trial` the tensors to launch on.

    `spec` is the problem for both, `work` its floating-point operations, `trial` a function of it that returns the inputs of each set of
    tensors, its outputs, and the first set's expected outputs in float64.
    """

    problems: tuple
    pairs: object
    spec: object
    work: object
    trial: object
    target: str = "sm_90a"


def drawn(*shape):
    """Return normally distributed float16 numbers."""
    import torch

    return torch.randn(*shape, device="cuda").half()


def like(*shape):
    """Return an uninitialized result."""
    import torch

    return torch.empty(*shape, device="cuda", dtype=torch.half)


# ---------------------------------------------------------------------------------------------- GEMM


def gemm_pairs(n):
    """Return tiles among the fastest, with the result in chunks, at once, and with three warpgroups."""
    wide = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64}
    grid = {"persistent": 132}
    mapped = lambda *sizes, **more: tasks.strategy(tasks_gemm.program, tasks_gemm.hopper(*sizes, **more, **grid))
    fluent = lambda **values: hopper.product.with_(**values)
    return {
        "128x256": (mapped(128, 256, 64, 2, 4, epi_n=64, group_m=8), fluent(**wide, epi_n=64, stages=4, group_m=8)),
        "128x256, stored at once": (mapped(128, 256, 64, 2, 3, epi_n=256, group_m=4), fluent(**wide, epi_n=256, stages=3, group_m=4)),
        "192x192": (
            mapped(192, 192, 64, 3, 3, epi_n=192, group_m=4),
            fluent(bm=192, bn=192, bk=64, wm=64, wn=192, epi_m=64, epi_n=192, stages=3, group_m=4),
        ),
        "256x128": (
            mapped(256, 128, 64, 2, 4, epi_n=64, group_m=8, pieces=False),
            fluent(bm=256, bn=128, bk=64, wm=128, wn=128, epi_m=64, epi_n=64, stages=4, group_m=8),
        ),
        "clusters of 2": (
            mapped(128, 256, 64, 2, 4, epi_n=64, group_m=8, cluster=(2, 1)),
            fluent(**wide, epi_n=64, stages=4, group_m=8, cluster_m=2),
        ),
    }


def gemm_trial(n):
    count = sets_of(6 * n * n)
    a, b, d = drawn(count, n, n), drawn(count, n, n), like(count, n, n)
    return [(a[one], b[one]) for one in range(count)], d, a[0].double() @ b[0].double()


# ---------------------------------------------------------------------------------------------- batched GEMM


BATCH = 16


def batched_pairs(n):
    """Return the tiles of one GEMM, and those stored at once."""
    wide = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64}
    mapped = lambda *sizes, **more: tasks.strategy(tasks_batched.program, tasks_batched.hopper(*sizes, **more, persistent=132))
    fluent = lambda **values: hopper_batched.strategy.with_(**wide, **values)
    return {
        "128x256": (mapped(128, 256, 64, 2, 4, epi_n=64, group_m=8), fluent(epi_n=64, stages=4, group_m=8)),
        "128x256, stored at once": (mapped(128, 256, 64, 2, 3, epi_n=256, group_m=4), fluent(epi_n=256, stages=3, group_m=4)),
    }


def batched_trial(n):
    import torch

    count = sets_of(6 * BATCH * n * n)
    a, b, d = drawn(count, BATCH, n, n), drawn(count, BATCH, n, n), like(count, BATCH, n, n)
    wanted = torch.stack([left.double() @ right.double() for left, right in zip(a[0], b[0], strict=True)])
    return [(a[one], b[one]) for one in range(count)], d, wanted


# ---------------------------------------------------------------------------------------------- two GEMMs with a common operand


def dual_pairs(n):
    """Return the library's first tiles, with a separate ring for A, and with one ring."""
    mapped = lambda **options: tasks.strategy(tasks_dual.program, tasks_dual.hopper(**options))
    return {
        "128x256": (mapped(), dual.hopper),
        "128x256, no separate ring for A": (mapped(depth=2), dual.hopper.with_(depth=2)),
        "128x256, a wait for each MMA": (mapped(mma_in_flight=0), dual.hopper.with_(mma_in_flight=0)),
    }


def dual_trial(n):
    count = sets_of(8 * n * n)
    a, both, d = drawn(count, n, n), drawn(count, 2, n, n), like(count, n, n)
    return [(a[one], both[one, 0], both[one, 1]) for one in range(count)], d, a[0].double() @ both[0].double().sum(0)


def gated_pairs(n):
    """Return the library's first tiles."""
    return {"128x128": (tasks.strategy(tasks_gated.program, tasks_gated.hopper()), gated.hopper)}


def gated_trial(n):
    import torch

    inputs, d, _ = dual_trial(n)
    a, left, right = (one.double() for one in inputs[0])
    return inputs, d, torch.nn.functional.silu(a @ left) * (a @ right)


# ---------------------------------------------------------------------------------------------- GEMM and row sums


def row_sum_pairs(n):
    """Sums in registers, in parts; and in shared memory, which differs only in the mapping."""
    mapped = lambda **options: tasks.strategy(tasks_row_sum.program, tasks_row_sum.hopper(**options))
    return {
        "sums in registers": (mapped(), gemm_row_sum.hopper),
        "sums in registers, groups of 4": (mapped(group_m=4), gemm_row_sum.hopper.with_(group_m=4)),
        "sums in shared memory": (mapped(parts=0), gemm_row_sum.hopper_shared),
    }


def row_sum_trial(n):
    import torch

    count = sets_of(6 * n * n)
    a, b, d, y = drawn(count, n, n), drawn(count, n, n), like(count, n, n), torch.empty(count, n, device="cuda")
    outputs = [(d[one], y[one]) for one in range(count)]
    return [(a[one], b[one]) for one in range(count)], outputs, (a[0].double() @ b[0].double(), a[0].double().sum(1))


CASES = {
    "gemm": Case((4096, 8192), gemm_pairs, lambda n: hopper.spec(n, n, n), lambda n: 2 * n**3, gemm_trial),
    "batched": Case((1024, 2048), batched_pairs, lambda n: hopper_batched.spec(n, n, n, BATCH), lambda n: 2 * BATCH * n**3, batched_trial),
    "dual": Case((4096, 8192), dual_pairs, lambda n: dual.spec(n, n, n), lambda n: 4 * n**3, dual_trial),
    "gated": Case((4096,), gated_pairs, lambda n: gated.spec(n, n, n), lambda n: 4 * n**3, gated_trial),
    "row_sum": Case((4096, 8192), row_sum_pairs, lambda n: gemm_row_sum.spec(n, n, n), lambda n: 2 * n**3, row_sum_trial),
}
"""The cases, by name."""


def built(name, problem, pair, place):
    """Return the kernel of a case, in another process, which finds it again by its names."""
    case = CASES[name]
    return compiled(case.pairs(problem)[pair][place], case.spec(problem), case.target)


def measured(name, problem, kernels, options):
    """Return the times of a problem by clock state, and name of a pair: (of tasks, fluent)."""
    case = CASES[name]
    inputs, outputs, wanted = case.trial(problem)
    contenders = Contenders(outputs, wanted)
    for (pair, place), kernel in kernels.items():
        if isinstance(kernel, str):
            say(f"left out: {name} {problem} {pair}: {kernel}")
            continue
        title = f"{pair}: {('tasks', 'fluent')[place]}"
        contenders.add(title, lambda one, kernel=kernel: kernel.prepare(*inputs[one], out=outputs[one]))
    say(f"{name} {problem}: {len(contenders.calls)} kernels are correct")
    return {regime: contenders.times(options.rounds, each=len(contenders.calls), regime=regime)[1] for regime in options.regimes}


def rows_of(name, problem, times, regimes):
    """Return rows of the table: the speed of a program, and its twin's time divided by its own."""
    rows = []
    for pair in CASES[name].pairs(problem):
        both = [[times[regime].get(f"{pair}: {front}") for front in ("tasks", "fluent")] for regime in regimes]
        if all(None not in one for one in both):
            speed = CASES[name].work(problem) / both[0][0] / 1e6
            rows.append(
                [name, str(problem), pair, f"{both[0][0]:.1f}", f"{speed:.0f}", *(f"{fluent / mine:.3f} x" for mine, fluent in both)]
            )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--regimes", type=lambda text: text.split(","), default=["burst", "busy"])
    options = parser.parse_args()
    with concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        jobs = {}
        for name in options.only:
            for problem in CASES[name].problems:
                pairs = CASES[name].pairs(problem)
                jobs[name, problem] = {(one, at): pool.submit(built, name, problem, one, at) for one in pairs for at in (0, 1)}
        rows, kept = [], []
        heads = ["program", "problem", "mapping", "us", "TFLOP/s", *(f"twin's time, {one}" for one in options.regimes)]
        for (name, problem), begun in jobs.items():
            import torch

            times = measured(name, problem, {key: job.result() for key, job in begun.items()}, options)
            kept.append({"program": name, "problem": problem, "us": times})
            rows += rows_of(name, problem, times, options.regimes)
            written(options.folder, "tasks", heads, rows, kept)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
