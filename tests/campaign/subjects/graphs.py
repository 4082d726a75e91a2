"""Random kernel graphs: checks, storage, the simulator judged kernel by kernel, and planted faults."""

import random

from graph_generator import draw as drawn_graph
from graph_generator import is_found, objection, plant

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """One graph, and one planted fault in it."""
    drawn = drawn_graph(seed)
    features, programs = {*drawn.features}, [kernel.program("sm_90") for _, kernel in drawn.graph.kernels]
    try:
        message = objection(drawn, seed)
        kind, launches = plant(random.Random(seed), drawn.graph)
        features.add(kind)
        message = message or ("" if is_found(launches, drawn.graph) else f"the planted fault {kind!r} is not found")
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    return found(f"{message}\n{drawn.graph!r}", features) if message else agreed(features, *programs, clean=1)


SUBJECT = Subject(
    "graphs",
    "random kernel graphs: right in the simulator, no alarm, and a planted fault between kernels is found",
    draw,
    nightly=200,
    campaign=4_000,
    first=20_291_101,
)
