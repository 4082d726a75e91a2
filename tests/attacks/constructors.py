"""Public constructors, called with one or many wrong arguments."""

import random
from collections.abc import Iterator

from attacks.guard import Input
from attacks.harvest import called, drawn_arguments, harvest, parameters, public_callables
from attacks.values import program

LEFT_OUT = {"tune", "sweep", "matmul", "attention", "explore", "function", "best_strategy", "predict", "draw", "export"}
"""Callables that execute when their arguments are right."""


def targets() -> list[tuple[str, object]]:
    """Classes and functions by name, except those for errors."""
    return [
        (name, target)
        for name, target in public_callables()
        if name not in LEFT_OUT and not (isinstance(target, type) and issubclass(target, (Exception, Warning)))
    ]


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """Calls of one constructor after the other."""
    all_targets = targets()
    for _ in range(count):
        name, function = choose.choice(all_targets)
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
