"""What scripts for fused kernels share: tensors of PyTorch, kernels verified on poisoned outputs, a table of times beside each other."""

import concurrent.futures
import json
import os
import time
from pathlib import Path

from tabulate import tabulate

from fireiron.errors import FireironError

ERROR = 2e-3
"""Relative error in the Frobenius norm; halves have 5e-4 for each rounding."""


PAUSE = 0.15
"""Seconds before a burst of those that are compared at the end."""

STARTED = time.monotonic()


def say(*words):
    """Progress, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s", *words, flush=True)


def sets_of(bytes_of_one, most=24, rotated=150e6):
    """As many sets of tensors as are larger than L2 together."""
    return max(2, min(most, int(rotated // bytes_of_one) + 1))


def error_of(got, wanted):
    """How far a result is from float64, relative, in the Frobenius norm, the worst of several; infinite where it is no number."""
    pairs = zip(several(got), several(wanted), strict=True)
    found = [((one.double() - right).norm() / right.norm()).item() for one, right in pairs]
    return max(found) if all(one == one for one in found) else float("inf")


def several(tensors):
    """One tensor as a tuple of one; several as they are."""
    return tuple(tensors) if isinstance(tensors, (tuple, list)) else (tensors,)


class Contenders:
    """Launches by name, each verified first; what fails is said, and left out.

    `outputs` has for each set of tensors what is written, a tensor or several, and `wanted` what the first set's are in float64, or is a
    function that tells the error of what was written.
    """

    def __init__(self, outputs, wanted, most=ERROR):
        self.outputs, self.wanted, self.most, self.calls = outputs, wanted, most, {}

    def add(self, name, make, returned=False):
        """The launches that `make(number)` returns for each set of tensors; `returned`: they return what they wrote, in tensors of their own."""
        import torch

        try:
            launches = [make(number) for number in range(len(self.outputs))]
            for one in several(self.outputs[0]):
                one.fill_(float("nan"))
            found = launches[0]()
            torch.cuda.synchronize()
            error = self.error(found if returned else self.outputs[0])
        except (FireironError, RuntimeError, ValueError) as problem:
            print(f"left out: {name}: {(str(problem) or type(problem).__name__).splitlines()[0]}", flush=True)
            return
        if error > self.most:
            print(f"left out: {name}: error {error:.1e}", flush=True)
            return
        self.calls[name] = launches

    def error(self, found):
        """Of what the first set gave."""
        return self.wanted(found) if callable(self.wanted) else error_of(found, self.wanted)

    def times(self, rounds, groups=("",), each=1, regime="burst"):
        """Microseconds by name, twice: of all once, then of the `each` best of each group, names that begin so, in turns, in bursts or busy."""
        from fireiron.measure.timing import measure

        first = {name: one.us for name, one in measure(self.calls, rounds=1, pause=0.02).items()}
        found = []
        for start in groups:
            found += sorted((name for name in first if name.startswith(start)), key=first.get)[:each]
        finals = {name: self.calls[name] for name in dict.fromkeys(found)}
        timed = measure(finals, rounds=rounds, pause=PAUSE, regime=regime)
        return first, {name: one.us for name, one in timed.items()}


def compiled(strategy, spec, target="sm_90"):
    """A compiled kernel of a strategy for a spec, for an H100 or H200 (with wgmma: sm_90a); or why there is none."""
    try:
        return strategy(spec).compile(target)
    except FireironError as problem:
        return str(problem).splitlines()[0]


class Crew:
    """Processes that compile while others are measured; start it before PyTorch has a context."""

    def __init__(self):
        self.pool = concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2))

    def begin(self, strategies, spec, target="sm_90"):
        """Begin to compile strategies, by name, for a spec; what `kernels` is given."""
        return {name: self.pool.submit(compiled, strategy, spec, target) for name, strategy in strategies.items()}

    def kernels(self, jobs):
        """The kernels by name, when they are there; what is refused is said."""
        found = {name: job.result() for name, job in jobs.items()}
        for name, one in found.items():
            if isinstance(one, str):
                say(f"left out: {name}: {one}")
        return {name: one for name, one in found.items() if not isinstance(one, str)}


def best(times, start):
    """The shortest time among names that begin so, with its name; None where there is none."""
    found = {name: us for name, us in times.items() if name.startswith(start)}
    name = min(found, key=found.get, default=None)
    return (None, None) if name is None else (found[name], name)


def written(folder, name, heads, rows, kept):
    """The table so far, printed and stored beside all times and where they were measured."""
    from fireiron.measure.timing import environment

    text = tabulate(rows, heads, floatfmt=".2f") + "\n"
    print(text, flush=True)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{name}.txt").write_text(text)
    Path(folder, f"{name}.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")
