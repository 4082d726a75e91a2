"""Constructors of all that is public, called with what is wrong in one place or in many."""

import random
from collections.abc import Iterator

from attacks.guard import Input
from attacks.harvest import called, drawn_arguments, harvest, parameters, public_callables
from attacks.values import program

LEFT_OUT = {"tune", "sweep", "matmul", "attention", "explore", "function", "best_strategy", "predict", "draw", "export"}
"""What does work where its arguments are right."""


def targets() -> list[tuple[str, object]]:
    """Classes and functions by name, without those for errors."""
    return [
        (name, one)
        for name, one in public_callables()
        if name not in LEFT_OUT and not (isinstance(one, type) and issubclass(one, (Exception, Warning)))
    ]


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """Calls of one constructor after the other."""
    every = targets()
    for _ in range(count):
        name, function = choose.choice(every)
        wanted = parameters(function)
        if wanted is None:
            continue
        base = choose.choice(harvest().get(function, (None,))) if isinstance(function, type) else None
        positional, named = drawn_arguments(choose, wanted, base)
        yield Input(
            program(called(name, positional, named)),
            lambda function=function, positional=positional, named=named: function(
                *[value for _, value in positional], **{key: value for key, (_, value) in named.items()}
            ),
        )
