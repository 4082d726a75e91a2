"""Measure accumulated errors of each kind of kernel in the simulator, compared with float64: the worst element, its bound, and its fraction
of the bound.

    python perf/errors.py [--seeds 5] [--only NAME ...] [--json FILE]      prints the table; --publish writes it into docs/reliability-appendix.md

For each kernel the outputs for several draws of normally distributed numbers are compared with the definition in float64: every element
with the bound derived from the same numbers (`fireiron/measure/rounding.py`), the norm of all errors with `tolerance_of`. Only the sizes
are chosen. Matrix instructions of the simulator add in float32 and round; those of a GPU truncate, which the bounds allow:
`perf/campaign_gpu.py` runs these.
"""

import argparse
import datetime
import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from problems import library
from test_rank import RAGGED

from fireiron import *
from fireiron.measure.data import accumulator_of, all_sizes, random_inputs, tolerance_of
from fireiron.measure.judge import Judge
from fireiron.sim import simulate
from fireiron.strategies import (
    attention,
    dual,
    gated,
    gemm_layernorm,
    gemm_row_sum,
    hopper_attention,
    layernorm,
    lstm,
    mlp,
    softmax,
    tasks_attention,
    tasks_gemm,
)

SMALL = {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 3}
BEGIN, END = "<!-- errors: written by `python perf/errors.py --publish` -->", "<!-- end of the errors -->"
PAGE = Path(__file__).resolve().parents[1] / "docs/reliability-appendix.md"


def bound(module, *sizes, strategy=None, values=None, **options):
    """Return a strategy for the spec of these sizes."""
    module = library(module) if isinstance(module, str) else module
    chosen = strategy or module.strategy
    return chosen.with_(**(values or {}))(module.spec(*sizes, **options))


def rows(module, *sizes):
    return module.strategy.with_(**module.values(module.spec(*sizes)))(module.spec(*sizes))


def attended(definition, by_rows=None, target="sm_80", **values):
    return (by_rows or attention.by_rows)(definition).with_(**{"bm": 64, "bn": 32, **values})(
        attention.spec(130, 200, 64, heads=2, fused=definition)
    )


def reduced(by="sum", dtype=float32):
    return RAGGED[next(iter(RAGGED))](Reduction(19, 1000, by=by, dtype=dtype)(GL, GL)(Kernel))


def kernels():
    """By kind: a function that builds a bound strategy, and the target."""
    wide = {"c_dtype": float32}
    return {
        "FFMA, float32": (partial(bound, "gemm_nt", 130, 70, 512), "sm_80"),
        "DFMA, float64": (partial(bound, "naive", 64, 64, 200, dtype=float64), "sm_80"),
        "HFMA2, float16 sums": (partial(bound, "hgemm_nt", 130, 66, 128), "sm_80"),
        "mma, float16 to float16": (partial(bound, "hmma_ampere", 130, 72, 512, values=SMALL), "sm_80"),
        "mma, float16 to float32": (partial(bound, "hmma_ampere", 130, 72, 512, values=SMALL, **wide), "sm_80"),
        "mma, bfloat16": (partial(bound, "hmma_ampere", 130, 72, 512, values=SMALL, dtype=bfloat16, c_dtype=bfloat16), "sm_80"),
        "mma, tf32": (partial(bound, "hmma_ampere", 130, 72, 512, values=SMALL, dtype=tf32, **wide), "sm_80"),
        "wgmma, float16": (partial(bound, "hopper", 200, 152, 512), "sm_90a"),
        "wgmma, e4m3": (partial(bound, "hopper", 200, 160, 512, dtype=float8_e4m3, B=ColMajor, **wide), "sm_90a"),
        "wgmma, int8": (
            partial(bound, "hopper", 200, 160, 512, strategy=library("hopper").integers, dtype=int8, c_dtype=int32, B=ColMajor),
            "sm_90a",
        ),
        "split-K": (partial(bound, "split_k", 64, 64, 2048), "sm_80"),
        "tasks, matmul": (lambda: tasks_gemm.strategy(tasks_gemm.spec(130, 136, 256)), "sm_80"),
        "sums, float32": (reduced, "sm_80"),
        "matmul with row sums": (partial(bound, gemm_row_sum, 100, 72, 200, values=SMALL), "sm_80"),
        "softmax": (partial(rows, softmax, 5, 1000), "sm_80"),
        "layernorm": (partial(rows, layernorm, 5, 1000), "sm_80"),
        "matmul and layernorm": (partial(bound, gemm_layernorm, 70, 96, 200, values={"bm": 64, "wm": 32, "wn": 32, "stages": 3}), "sm_80"),
        "attention, mma": (lambda: attended(attention.definition(causal=True, lse=True)), "sm_80"),
        "attention, wgmma": (
            lambda: attended(
                attention.definition(rescale_threshold=8), lambda made: hopper_attention.by_rows(made, num_blocks=3), epi_n=64
            ),
            "sm_90a",
        ),
        "attention, tasks": (lambda: tasks_attention.strategy(tasks_attention.spec(128, 128, 64)), "sm_80"),
        "LSTM": (partial(bound, lstm, 100, 72, 200, values=SMALL), "sm_80"),
        "LSTM with tanh": (partial(bound, lstm, 100, 72, 200, strategy=lstm.tanh, values=SMALL, form="tanh"), "sm_80"),
        "MLP, 3 layers": (partial(bound, mlp, 100, 64, 3, values={"bm": 64, "wm": 32, "wn": 32}), "sm_80"),
        "MLP, 20 layers": (partial(bound, mlp, 100, 64, 20, values={"bm": 64, "wm": 32, "wn": 32}), "sm_80"),
        "dual": (partial(bound, dual, 100, 72, 200, values=SMALL), "sm_80"),
        "gated": (partial(bound, gated, 100, 72, 200, values=SMALL), "sm_80"),
    }


def measured(name, make, target, seeds):
    """Return the row of a kind: over all draws the worst element, and the largest norm error."""
    program = make().program(target)
    spec = program.spec
    sizes, adder = all_sizes(spec, {}), accumulator_of(program)
    allowed = {one: tolerance_of(spec, sizes, adder, output=one) for one in spec.outputs}
    worst, norm, count = None, (0.0, max(allowed.values())), 0
    for seed in range(seeds):
        arrays = random_inputs(spec, sizes, np.random.default_rng(seed))
        got = simulate(program.ir, arrays, {}).outputs
        judge = Judge(spec, sizes, arrays, adder)
        for output in spec.outputs:
            if wrong := judge.wrong(output, got[output]):
                raise SystemExit(f"{name}, seed {seed}: {output}: {wrong['message']}")
            if judge.unknown[output]:
                raise SystemExit(f"{name}, seed {seed}: {output}: no bound is known of {judge.unknown[output]} elements")
            value = judge.values(output)
            off = got[output].astype(np.float64) - value
            share = float(np.linalg.norm(off) / np.linalg.norm(value))
            norm = max(norm, (share, allowed[output]), key=lambda one: one[0] / one[1] if one[1] else 0.0)
            count += got[output].size
        nearest = max(judge.closest.values(), key=lambda one: one.fraction)
        worst = nearest if worst is None or nearest.fraction > worst.fraction else worst
    return {
        "kernel": name, "strategy": str(spec), "adds in": str(adder or ""), "elements": count,
        "off": worst.off, "bound": worst.bound, "of the bound": worst.fraction, "norm": norm[0], "tolerance": norm[1],
    }  # fmt: skip


def table(rows, seeds, seconds):
    """Return the rows as in the documents."""
    lines = [
        (
            row["kernel"], row["adds in"], f"{row['elements']:,}", f"{row['off']:.1e}", f"{row['bound']:.1e}", f"{row['of the bound']:.0%}",
            f"{row['norm']:.1e}", f"{row['tolerance']:.1e}",
        )
        for row in rows
    ]  # fmt: skip
    heads = ("kernel", "accumulates in", "elements", "worst error", "its bound", "of the bound", "error in the norm", "tolerance")
    head = f"{datetime.date.today()}, `python perf/errors.py --seeds {seeds}`, {seconds / 60:.0f} min of one core; normally distributed inputs, seeds 0 to {seeds - 1}."
    return f"{head}\n\n{tabulate(lines, heads, 'github', disable_numparse=True)}"


def publish(text):
    """Insert the table into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    started, rows = time.process_time(), []
    for name, (make, target) in kernels().items():
        if not options.only or any(one in name for one in options.only):
            rows.append(measured(name, make, target, options.seeds))
            print(
                name,
                f"{rows[-1]['of the bound']:.0%} of {rows[-1]['bound']:.2g}, norm {rows[-1]['norm']:.2g} of {rows[-1]['tolerance']:.2g}",
                file=sys.stderr,
            )
    text = table(rows, options.seeds, time.process_time() - started)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.publish:
        publish(text)


if __name__ == "__main__":
    main()
