"""Shared code of the scripts for fused kernels: PyTorch tensors, verification on poisoned outputs, a table of compared times."""

import concurrent.futures
import json
import os
import time
from pathlib import Path

from tabulate import tabulate

from fireiron.errors import FireironError

ERROR = 2e-3
"""Relative error in the Frobenius norm; float16 adds 5e-4 per rounding."""


PAUSE = 0.15
"""Seconds before a burst of the kernels compared at the end."""

STARTED = time.monotonic()


def say(*words):
    """Print progress, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s", *words, flush=True)


def sets_of(bytes_of_one, most=24, rotated=150e6):
    """As many sets of tensors as exceed L2 together."""
    return max(2, min(most, int(rotated // bytes_of_one) + 1))


def error_of(got, wanted):
    """Return the relative error of a result compared with float64, in the Frobenius norm, the largest of several; infinite for NaN."""
    pairs = zip(as_tuple(got), as_tuple(wanted), strict=True)
    errors = [((one.double() - right).norm() / right.norm()).item() for one, right in pairs]
    return max(errors) if all(one == one for one in errors) else float("inf")


def as_tuple(tensors):
    """Return a tensor as a tuple with one element. Tuples are returned unchanged."""
    return tuple(tensors) if isinstance(tensors, (tuple, list)) else (tensors,)


class Contenders:
    """Launches by name, each verified first; failures are reported and left out.

    `outputs` holds for each set of tensors the output or outputs. `wanted` holds those of the first set in float64, or is a function that
    returns the error of the outputs.
    """

    def __init__(self, outputs, wanted, most=ERROR):
        self.outputs, self.wanted, self.most, self.calls = outputs, wanted, most, {}

    def add(self, name, make, returned=False):
        """Add the launches that `make(number)` returns for each set of tensors; `returned`: they return their results, in separate tensors."""
        import torch

        try:
            launches = [make(number) for number in range(len(self.outputs))]
            for tensor in as_tuple(self.outputs[0]):
                tensor.fill_(float("nan"))
            result = launches[0]()
            torch.cuda.synchronize()
            error = self.error(result if returned else self.outputs[0])
        except (FireironError, RuntimeError, ValueError) as problem:
            print(f"left out: {name}: {(str(problem) or type(problem).__name__).splitlines()[0]}", flush=True)
            return
        if error > self.most:
            print(f"left out: {name}: error {error:.1e}", flush=True)
            return
        self.calls[name] = launches

    def error(self, result):
        """Return the error of the first set's result."""
        return self.wanted(result) if callable(self.wanted) else error_of(result, self.wanted)

    def times(self, rounds, groups=("",), each=1, regime="burst"):
        """Return microseconds by name, of two measurements in bursts or busy.

        First all contenders are measured, then the `each` best of each group (a prefix of names) alternately.
        """
        from fireiron.measure.timing import measure

        first = {name: one.us for name, one in measure(self.calls, rounds=1, pause=0.02).items()}
        best_names = []
        for start in groups:
            best_names += sorted((name for name in first if name.startswith(start)), key=first.get)[:each]
        finals = {name: self.calls[name] for name in dict.fromkeys(best_names)}
        timed = measure(finals, rounds=rounds, pause=PAUSE, regime=regime)
        return first, {name: one.us for name, one in timed.items()}


def compiled(strategy, spec, target="sm_90"):
    """Return the compiled kernel of a strategy for a spec, on an H100 or H200 (with wgmma: sm_90a); or why it cannot be compiled."""
    try:
        return strategy(spec).compile(target)
    except FireironError as problem:
        return str(problem).splitlines()[0]


class CompilePool:
    """Processes that compile while other kernels are measured; start it before PyTorch has a context."""

    def __init__(self):
        self.pool = concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2))

    def begin(self, strategies, spec, target="sm_90"):
        """Start compiling strategies, by name, for a spec; returns the argument of `kernels`."""
        return {name: self.pool.submit(compiled, strategy, spec, target) for name, strategy in strategies.items()}

    def kernels(self, jobs):
        """Return the kernels by name, once they are compiled; refusals are reported."""
        results = {name: job.result() for name, job in jobs.items()}
        for name, result in results.items():
            if isinstance(result, str):
                say(f"left out: {name}: {result}")
        return {name: one for name, one in results.items() if not isinstance(one, str)}


def best(times, start):
    """Return the shortest time among names with a prefix, with its name; None if there is none."""
    candidates = {name: us for name, us in times.items() if name.startswith(start)}
    name = min(candidates, key=candidates.get, default=None)
    return (None, None) if name is None else (candidates[name], name)


def written(folder, name, heads, rows, kept):
    """Print the present table, and store it with all times and the environment."""
    from fireiron.measure.timing import environment

    text = tabulate(rows, heads, floatfmt=".2f") + "\n"
    print(text, flush=True)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{name}.txt").write_text(text)
    Path(folder, f"{name}.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")
