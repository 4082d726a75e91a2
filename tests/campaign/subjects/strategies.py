"""Random matrix products and strategies: simulated, equal to NumPy exactly; the checks raise no alarm; the order of threads changes nothing."""

import random

import numpy as np
from generator import draw as drawn_strategy
from test_random import problem, program_to_paste

from campaign import Outcome, Subject, agreed, found
from fireiron.check import safety
from fireiron.sim import simulate


def draw(seed: int) -> Outcome:
    """One strategy that the project accepts."""
    drawn, _ = drawn_strategy(seed)
    features = drawn.features
    arrays, expected = problem(drawn, seed)
    kernel = drawn.program.lowered
    got = simulate(kernel, arrays, drawn.symbols).outputs["C"]
    if not np.array_equal(got, expected):
        return found(f"other values than NumPy's{program_to_paste(drawn)}", features)
    alarms = [finding for finding in safety(kernel) if finding.severity == "error"]
    if alarms:
        return found(f"false alarm: {alarms}{program_to_paste(drawn)}", features)
    shuffled = simulate(kernel, arrays, drawn.symbols, order=random.Random(seed)).outputs["C"]
    if not np.array_equal(shuffled, got):
        return found(f"another order of the threads, another result{program_to_paste(drawn)}", features)
    return agreed(features, clean=1)


SUBJECT = Subject(
    "strategies",
    "random strategies of matrix products, simulated, equal to NumPy exactly, no alarm",
    draw,
    night=20_000,
    campaign=100_000,
    first=20_261_123,
)
