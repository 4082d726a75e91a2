"""Random programs of tasks: events after each pass compared with the sequential meaning, and the library's programs with random mappings,
lowered.
"""

import random

from event_random import check_drawn
from problems import simulated
from test_tasks_random import of_attention, product, varied
from walker import instructions_in

from campaign import Outcome, Subject, agreed, found, refused
from fireiron.check import check
from fireiron.errors import FireironError

DEPTHS = (1, 2, 2, 3)


def draw(seed: int) -> Outcome:
    """Of two seeds one draws a program, and the other a mapping of a program of the library."""
    return _events(seed) if seed % 2 else _mapped(seed)


def _events(seed: int) -> Outcome:
    depth = DEPTHS[seed // 2 % len(DEPTHS)]
    try:
        check_drawn(seed, depth)
    except Exception as error:
        return found(f"{type(error).__name__}: {error}\n\nfrom event_random import check_drawn\ncheck_drawn({seed}, {depth})\n", {"events"})
    return agreed({"events", f"depth {depth}"})


def _mapped(seed: int) -> Outcome:
    chosen = random.Random(seed)
    attends = chosen.random() < 0.3
    try:
        bound, target, require = (of_attention if attends else product)(chosen, varied)
        kernel = simulated(bound, target)
        lowered = kernel.program.lowered
    except FireironError:
        return refused()
    features = {"attention" if attends else "products", f"target {target}", *instructions_in(kernel.program)}
    try:
        alarms = [str(one) for one in check(lowered) if one.severity == "error"]
        assert not alarms, alarms
        require(kernel)
    except Exception as error:
        program = (
            f"from fireiron import *\nfrom fireiron.tasks import *\n\nstrategy = {bound!r}\nprint(strategy.program({target!r}).cuda)\n"
        )
        return found(f"{type(error).__name__}: {error}\n\n{program}\n", features)
    return agreed(features, kernel.program, clean=1)


SUBJECT = Subject(
    "tasks",
    "random task programs and mappings: events, and kernels of library programs, equal to the sequential program",
    draw,
    nightly=4_000,
    campaign=15_000,
    first=20_261_123,
    sample=2,
)
