"""Random strategies for the GPUs of a node, and faults of copies and sums that overlap with computation."""

import random

from node_generator import FAULTS, TOGETHER, draw, objection, program_to_paste, undetected

from campaign import Subject, drawn_from
from campaign.subject import agreed, found


def planted(seed):
    """Plant one fault of a random kind in a random launch that waits for other GPUs: the check must detect it.

    The simulator must, too, unless copies or sums have the order of the wait anyway: it executes four orders of warps and blocks.
    """
    rng = random.Random(seed)
    names = rng.sample(list(FAULTS), len(FAULTS))
    drawn, _ = draw(seed, TOGETHER)
    for name in names:
        missing = undetected(drawn, name, (None, *range(3)))
        if missing is not None and ("check" in missing or (missing and name not in ORDERS)):
            return found(f"{name}: not found by {' and '.join(missing)}\n{program_to_paste(drawn)}", drawn.features)
        if missing is not None:
            return agreed({*drawn.features, name}, drawn.program, faults=1, simulated=int(not missing))
    raise AssertionError(f"seed {seed}: no fault changes this kernel")


ORDERS = ("a wait for the next region", "a wait for fewer copies", "a count of the next region")
"""Faults that a schedule may hide: a warp copies regions in order, so that another count often implies the right one."""


SUBJECTS = (
    Subject(
        "nodes",
        "random strategies for 2 to 8 GPUs: equal to NumPy bit by bit in any order of warps and blocks, no alarm",
        drawn_from(draw, objection, program_to_paste),
        nightly=500,
        campaign=5_000,
        first=20_301_130,
    ),
    Subject(
        "node-faults",
        "faults of counts, waits and fences of overlapped copies and sums: the check detects each, the simulator those that change an order",
        planted,
        nightly=300,
        campaign=3_000,
        counted="faults",
        first=20_301_130,
    ),
)
