"""Random GEMMs and strategies: simulated, exactly equal to NumPy; the checks have no findings; the order of threads has no effect.

With a GPU, one strategy in four is also compiled for it and launched, and must be bit-equal.
"""

import random

import numpy as np
from generator import draw as drawn_strategy
from on_gpu import EVERY, PLAIN, here
from test_random import problem, program_to_paste

from campaign import Outcome, Subject, agreed, found
from fireiron.check import safety
from fireiron.measure.data import all_sizes
from fireiron.sim import simulate

SHUFFLED = 3
"""One draw in this many also runs with a random thread order."""

MOST_STATEMENTS = 20_000
"""Statements of all warps of a block, each executed separately in a random order; larger kernels run in lockstep only."""


def draw(seed: int) -> Outcome:
    """One accepted strategy."""
    drawn, refusals = drawn_strategy(seed)
    features, counts = drawn.features, {"clean": 1, "refusals": refusals}
    arrays, expected = problem(drawn, seed)
    kernel = drawn.program.lowered
    ran = simulate(kernel, arrays, drawn.symbols)
    got = ran.outputs["C"]
    if not np.array_equal(got, expected):
        return found(f"other values than NumPy's{program_to_paste(drawn)}", features)
    alarms = [finding for finding in safety(kernel) if finding.severity == "error"]
    if alarms:
        return found(f"false alarm: {alarms}{program_to_paste(drawn)}", features)
    if seed % SHUFFLED == 0 and ran.statements * -(-kernel.threads // 32) <= MOST_STATEMENTS:
        shuffled = simulate(kernel, arrays, drawn.symbols, order=random.Random(seed)).outputs["C"]
        if not np.array_equal(shuffled, got):
            return found(f"another order of the threads, another result{program_to_paste(drawn)}", features)
        counts["shuffled"] = 1
    if seed % EVERY == 0 and (gpu := here()) is not None and (compiled := gpu.compiled(drawn.strategy)) is not None:
        if message := _on_gpu(gpu, compiled, drawn, arrays, expected):
            plain = gpu.compiled(drawn.strategy, PLAIN)
            if _on_gpu(gpu, plain, drawn, arrays, expected):
                return found(f"on the GPU: {message}{program_to_paste(drawn)}", features)
            counts[f"defect of ptxas, seed {seed}"] = 1
        counts["on the GPU"] = 1
    return agreed(features, drawn.program, **counts)


def _on_gpu(gpu, kernel, drawn, arrays, expected) -> str:
    """The objection to the GPU's outputs."""
    (outputs,), wrong = gpu.run(kernel, arrays, all_sizes(kernel.program.spec, drawn.symbols))
    return "; ".join([*wrong, *([] if np.array_equal(outputs["C"], expected) else ["other values"])])


SUBJECT = Subject(
    "strategies",
    "random matmul strategies, simulated: exactly equal to NumPy, no alarm",
    draw,
    nightly=20_000,
    campaign=20_000,
    first=20_261_123,
)
