"""Random matrix products and strategies: simulated, equal to NumPy exactly; the checks raise no alarm; the order of threads changes nothing.

Where there is a GPU, one strategy in four is compiled for it and launched too, and gives the same bits.
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
"""One draw in so many runs in a random order of the threads as well."""

MOST_STATEMENTS = 20_000
"""Statements of all warps of a block, each executed by itself in a random order; kernels of more run in step alone."""


def draw(seed: int) -> Outcome:
    """One strategy that the project accepts."""
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
        if said := _on_gpu(gpu, compiled, drawn, arrays, expected):
            plain = gpu.compiled(drawn.strategy, PLAIN)
            if _on_gpu(gpu, plain, drawn, arrays, expected):
                return found(f"on the GPU: {said}{program_to_paste(drawn)}", features)
            counts[f"defect of ptxas, seed {seed}"] = 1
        counts["on the GPU"] = 1
    return agreed(features, **counts)


def _on_gpu(gpu, kernel, drawn, arrays, expected) -> str:
    """What the GPU's outputs have against them."""
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
