"""Tune records for attention, LayerNorm, RMSNorm, softmax, and fused GEMM: the fastest strategies and tunable values for each size.

    python perf/tune_fused.py FOLDER [--only attention,layernorm,rmsnorm,softmax] [--seconds 300] [--rounds 4] [--dims 64,128]
                              [--lengths 384,512,1024,2048,4096,8192,16384] [--rows 4096,16384,65536] [--hidden 1024,4096,8192]
    python perf/tune_fused.py FOLDER --only hopper [--seconds 190] [--rounds 3]

The problems are row-major float16: attention with 16384 tokens and 2048 elements in all heads, causal and not, and that of BERT (length
384: 16 heads of 64, batch 32). Other processes compile candidates meanwhile. Each candidate is first compared with float64, on an output
initialized to NaN; then all candidates of a problem and PyTorch's function are measured alternately, in bursts, on operand sets that rotate
through L2. The script appends the best of each problem, and the next ones that are nearly as fast, to `records.jsonl`, and writes
`tune_fused.json` and `tune_fused.txt`. It reports problems that remain when the time limit is reached: all take about 200 seconds on an H200.
`hopper` are those of `tune_fused_hopper.py`, for sm_90a. `fireiron records merge FOLDER/records.jsonl strategies/records/h200.jsonl -o
strategies/records/h200.jsonl` makes the shipped file.
"""

import argparse
import concurrent.futures
import datetime
import functools
import importlib
import json
import math
import os
import time
from pathlib import Path

import attrs
import tune_fused_hopper as by_engines
from tabulate import tabulate

from fireiron._version import VERSION
from fireiron.errors import FireironError
from fireiron.language.library import find
from fireiron.strategies import attention
from fireiron.tune.record import Record, describe, strategy_hash
from fireiron.tune.records import Records
from fireiron.tune.task import make_task

ARCHITECTURE = "sm_90"
TOKENS, WIDTH = 16384, 2048
BERT = {"length": 384, "heads": 16, "batch": 32}
EPSILON = 1e-5
ROTATED = 150e6
KEPT = 1.03
"""A candidate may be slower than the best one by this factor for its time to be recorded, too."""

PAUSE = {"attention": 0.15, "hopper_attention": 0.15}
"""Seconds before a burst; memory-bound kernels need less."""

VALUES = {
    64: ((False, 128, 128, 32, 8), (False, 128, 128, 32, 1), (True, 128, 64, 32, 1), (False, 128, 64, 32, 1), (False, 64, 64, 32, 1), (True, 64, 64, 16, 1)),
    128: ((False, 128, 64, 32, 4), (False, 128, 64, 32, 2), (False, 128, 64, 32, 1), (False, 128, 32, 32, 1), (False, 64, 64, 32, 4), (True, 64, 64, 16, 1)),
}  # fmt: skip
"""Queries in registers or not, bm, bn, wm, parts of fragments; by the head dimension."""

WARPS = (1, 2, 4, 8, 16)
"""The number of warps that share a row."""


@attrs.frozen
class Case:
    """A problem: the strategy's file, and its sizes; for attention whether it is causal."""

    name: str
    sizes: tuple
    causal: bool = False
    dtype: str = "float16"

    @property
    def architecture(self):
        """The target of its kernels."""
        return "sm_90a" if self.name in by_engines.NAMES else ARCHITECTURE

    @functools.cached_property
    def spec(self):
        """The spec."""
        if self.name in by_engines.NAMES:
            return by_engines.spec_of(self.name, self.sizes, self.causal, self.dtype)
        if self.name != "attention":
            return find(self.name).problem(*self.sizes)
        length, d, heads, batch = self.sizes
        return attention.spec(length, length, d, heads=heads, batch=batch, fused=attention.definition(causal=self.causal))

    @property
    def candidates(self):
        """Strategies by name, with values."""
        if self.name in by_engines.NAMES:
            return by_engines.candidates(self.name, self.sizes, self.causal, self.spec)
        if self.name == "attention":
            return [self._attention(*one) for one in VALUES[self.sizes[1]]]
        hidden = self.sizes[1]
        own = importlib.import_module(f"fireiron.strategies.{self.name}").values(self.spec)
        pairs = [(warps, hidden // (256 * warps)) for warps in WARPS if hidden % (256 * warps) == 0 and hidden // (256 * warps) <= 8]
        several_rows = [{"rows": max(4 // warps, 1), "iterations": iterations, "vector": 8} for warps, iterations in pairs]
        one_row = [{"rows": 1, "iterations": iterations, "vector": 8} for warps, iterations in pairs if warps < 4]
        return [(self.name, values) for values in (own, *(one for one in (*several_rows, *one_row) if one != own))]

    def _attention(self, q_in_registers, bm, bn, wm, score_parts):
        form = "_".join([*(["causal"] if self.causal else []), *(["q_in_registers"] if q_in_registers else [])])
        return f"attention:{form}" if form else "attention", {
            "bm": bm,
            "bn": bn,
            "wm": wm,
            "stages": 2,
            **({} if q_in_registers else {"score_parts": score_parts}),
        }

    @property
    def bytes(self):
        """The bytes of a set."""
        if self.name in by_engines.NAMES:
            named = (self.spec.operands[name] for name in (*self.spec.inputs, *self.spec.outputs))
            return 2 * sum(math.prod(int(str(size)) for size in one.shape) for one in named)
        elements = 4 * math.prod(self.sizes) if self.name == "attention" else 2 * math.prod(self.sizes)
        return 2 * elements

    def __str__(self):
        kind = "" if self.dtype == "float16" else f" {self.dtype}"
        return f"{self.name}{' causal' * self.causal} {'x'.join(map(str, self.sizes))}{kind}"


def cases_of(options):
    """Return the problems, the most important first."""
    only = options.only.split(",")
    cases = [Case(*one) for one in by_engines.cases(by_engines.NAMES if "hopper" in only else only)]
    if "attention" in only:
        for length in options.lengths:
            for d in options.dims:
                shape = (BERT["heads"], BERT["batch"]) if length == BERT["length"] else (WIDTH // d, TOKENS // length)
                if length != BERT["length"] or d == 64:
                    cases += [
                        Case("attention", (length, d, *shape), causal) for causal in (False, True)[: 1 if length == BERT["length"] else 2]
                    ]
    for name in ("layernorm", "rmsnorm", "softmax"):
        if name in only:
            cases += [Case(name, (rows, hidden)) for hidden in options.hidden for rows in options.rows]
    return cases


def compiled(case, name, values):
    """Compile in a separate process: the kernel, whose machine code is then in the cache on disk, or why it is not legal."""
    try:
        return find(name).strategy.with_(**values)(case.spec).compile(case.architecture)
    except FireironError as error:
        return str(error).splitlines()[0]


# ---------------------------------------------------------------------------------------------- launches


class Attention:
    """Sets of arrays (b, m, h, d), with the rows of all heads adjacent, and the launches on them."""

    def __init__(self, torch, case, count):
        length, d, heads, batch = case.sizes
        self.torch, self.case = torch, case
        shape = (batch, length, heads, d)
        drawn = lambda: torch.randn(shape, device="cuda", dtype=torch.float16)
        self.sets = [(drawn(), drawn(), drawn(), torch.empty_like(drawn())) for _ in range(count)]

    def ours(self, kernel):
        """Return a launch for each set."""
        scale = self.case.sizes[1] ** -0.5
        return [kernel.prepare(q.unsqueeze(3), k, v, scale, out=o.unsqueeze(3)) for q, k, v, o in self.sets]

    def peer(self):
        """Return PyTorch's FlashAttention-2."""
        from attention import by_torch

        return [by_torch("FLASH_ATTENTION", self.case.causal, [part.transpose(1, 2) for part in one]) for one in self.sets]

    def error(self, call):
        """Return the error of three heads compared with float64; a `SystemExit` if it is too large."""
        from attention import error_of

        return error_of(call, [part.transpose(1, 2) for part in self.sets[0]], self.case.causal)


class Rows:
    """Sets of rows, and the launches on them."""

    def __init__(self, torch, case, count):
        rows, hidden = case.sizes
        self.torch, self.case = torch, case
        w, b = (torch.randn(hidden, device="cuda", dtype=torch.float16) for _ in range(2))
        self.sets = []
        for _ in range(count):
            x = torch.randn(rows, hidden, device="cuda", dtype=torch.float16)
            self.sets.append((x, w, b, torch.empty_like(x)))

    def ours(self, kernel):
        """Return a launch for each set."""
        count, numbers = {"layernorm": (3, (EPSILON,)), "rmsnorm": (2, (EPSILON,)), "softmax": (1, ())}[self.case.name]
        return [kernel.prepare(*one[:count], *numbers, out=one[3]) for one in self.sets]

    def peer(self):
        """Return PyTorch's function, with separate output memory."""
        functional, hidden = self.torch.nn.functional, self.case.sizes[1:]
        calls = {
            "layernorm": lambda x, w, b: functional.layer_norm(x, hidden, w, b, EPSILON),
            "rmsnorm": lambda x, w, b: functional.rms_norm(x, hidden, w, EPSILON),
            "softmax": lambda x, w, b: self.torch.softmax(x, -1),
        }
        from layernorm import kept

        return [kept(calls[self.case.name], *one[:3]) for one in self.sets]

    def error(self, call):
        """Return the error of the first rows compared with float64; a `SystemExit` if it is too large."""
        from layernorm import checked

        return checked(self.torch, self.case.name, "ours", call, self.sets[0])


def measured(torch, case, ready, options):
    """Return times by the number of the candidate and for `torch`, and errors."""
    from fireiron.measure.timing import measure

    kind = by_engines.problem_of(case.name) if case.name in by_engines.NAMES else Attention if case.name == "attention" else Rows
    problem = kind(torch, case, max(2, math.ceil(ROTATED / case.bytes)))
    calls, errors = {"torch": problem.peer()}, {}
    for number, (_, _, kernel) in enumerate(ready):
        try:
            launches = problem.ours(kernel)
            errors[str(number)] = problem.error(launches[0])
        except (FireironError, RuntimeError, SystemExit) as error:
            print(f"left out: {case} {title_of(ready[number])}: {str(error).splitlines()[0][:200]}", flush=True)
            continue
        calls[str(number)] = launches
    return measure(calls, rounds=options.rounds, pause=PAUSE.get(case.name, 0.04)), errors


def title_of(candidate):
    """Return the title of a candidate."""
    name, values = candidate[:2]
    return " ".join([name, *(f"{one}={value}" for one, value in values.items())])


def record_of(case, candidate, timing, error, library_us, where, count):
    """Return the record of a candidate."""
    name, values, kernel = candidate
    strategy, resources = find(name).strategy, kernel.resources
    operations = make_task(strategy, case.spec, case.architecture, fixed={}, sizes={}, name=name).operations
    return Record(
        strategy=name, strategy_hash=strategy_hash(strategy), values=values, spec=describe(case.spec), architecture=case.architecture,
        gpu=where["gpu"], us=timing.us, quartiles=timing.quartiles, tflops=operations / timing.us / 1e6, regime=timing.regime, l2=timing.l2, error=error,
        registers=resources.registers, shared_bytes=resources.shared_bytes, spills=resources.spill_stores, library_us=library_us,
        toolchain=where["toolchain"], driver=where["driver"], clocks=timing.clocks, fireiron=VERSION, date=datetime.date.today().isoformat(),
        source=f"{count} candidates of perf/tune_fused.py",
    )  # fmt: skip


def keep(folder, case, ready, times, errors, where):
    """Append the records: the best one, and others that are nearly as fast. Returns the number of the best one."""
    ours = sorted(errors, key=lambda number: times[number].us)
    for number in ours:
        if times[number].us <= KEPT * times[ours[0]].us:
            record = record_of(case, ready[int(number)], times[number], errors[number], times["torch"].us, where, len(ours))
            Records.append_to(folder / "records.jsonl", record)
    return ours[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    numbers = lambda text: [int(one) for one in text.split(",")]
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="attention,layernorm,rmsnorm,softmax")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--dims", type=numbers, default=[64, 128])
    parser.add_argument("--lengths", type=numbers, default=[4096, 512, 2048, 384, 1024, 8192, 16384])
    parser.add_argument("--rows", type=numbers, default=[4096, 16384, 65536])
    parser.add_argument("--hidden", type=numbers, default=[1024, 4096, 8192])
    options = parser.parse_args()
    run(options)


def run(options):
    """Measure, and write the results after each problem."""
    start = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = cases_of(options)
    pool = concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
    tasks = {case: [(*one, pool.submit(compiled, case, *one)) for one in case.candidates] for case in cases}
    from tune_grid import prepared

    torch, where = prepared()
    print(f"{len(cases)} problems, {sum(map(len, tasks.values()))} kernels; ready after {time.monotonic() - start:.0f} s", flush=True)
    rows, kept = [], []
    for number, case in enumerate(cases):
        if time.monotonic() - start > options.seconds:
            print(f"the time is over: {len(cases) - number} of {len(cases)} problems are left out, from {case} on", flush=True)
            break
        kernels = [(name, values, job.result()) for name, values, job in tasks[case]]
        for candidate in kernels:
            if isinstance(candidate[2], str):
                print(f"left out: {case} {title_of(candidate)}: {candidate[2]}", flush=True)
        ready = [one for one in kernels if not isinstance(one[2], str)]
        times, errors = measured(torch, case, ready, options)
        if not errors:
            continue
        best = keep(options.folder, case, ready, times, errors, where)
        us = {title_of(ready[int(one)]): times[one].us for one in errors}
        rows.append([str(case), times["torch"].us, times[best].us, times["torch"].us / times[best].us, title_of(ready[int(best)])])
        kept.append({"problem": str(case), "torch us": times["torch"].us, "us": us})
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        (options.folder / "tune_fused.txt").write_text(
            tabulate(rows, ("problem", "torch us", "us", "of torch", "best"), floatfmt=".3f") + "\n"
        )
        (options.folder / "tune_fused.json").write_text(json.dumps({"environment": where, "measured": kept}, indent=1) + "\n")
        torch.cuda.empty_cache()
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
