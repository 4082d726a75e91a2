"""Programs of tasks and their mappings: their constructors, with one or many wrong arguments."""

import random
from collections.abc import Callable, Iterator

from attacks.guard import Input
from attacks.harvest import called, parameters
from attacks.values import VALUES, program
from fireiron import *
from fireiron import tasks

NAMES = {name: getattr(tasks, name) for name in tasks.__all__}

RIGHT = {
    "instance": ("'grid'",), "variant": ("'blocks'",), "proc": ("HOST", "BLOCK", "WARP"), "mems": ("[GLOBAL] * 2", "[SHARED, NONE]"), "tunables": ("{'R': 16}",),
    "calls": ("['block']", "[]"), "entrypoint": ("True",), "pipeline": ("2",), "machine": ("HOPPER",), "instances": ("[TaskMapping('grid', 'blocks', HOST, [GLOBAL])]",),
    "name": ("'x'", "'copy'"), "kind": ("Leaf", "Inner"), "shape": ("(4, 4)",), "sizes": ("(4, 4)",), "order": ("'row'", "'col'"), "pad": ("0", "8"),
}  # fmt: skip
"""Right arguments for a parameter, as source texts."""

LEFT_OUT = ("run",)


def targets() -> list[tuple[str, Callable[..., object]]]:
    """The public callables of tasks, and the methods of mappings."""
    return [(name, one) for name, one in NAMES.items() if callable(one) and name not in LEFT_OUT]


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """Calls of one after the other."""
    all_targets = targets()
    for _ in range(count):
        name, function = choose.choice(all_targets)
        wanted = [
            parameter
            for parameter in parameters(function) or ()
            if parameter.kind is not parameter.VAR_KEYWORD and (parameter.default is parameter.empty or choose.random() < 0.4)
        ]
        positional = [_value(choose, one.name) for one in wanted if one.kind is not one.KEYWORD_ONLY]
        named = {one.name: _value(choose, one.name) for one in wanted if one.kind is one.KEYWORD_ONLY}
        if choose.random() < 0.05:
            positional.append(choose.choice(VALUES))
        yield Input(
            program(called(name, positional, named), ["from fireiron.tasks import *"]),
            lambda function=function, positional=positional, named=named: function(
                *[value for _, value in positional], **{key: value for key, (_, value) in named.items()}
            ),
        )


def _value(choose: random.Random, name: str) -> tuple[str, object]:
    if name in RIGHT and choose.random() < 0.5:
        text = choose.choice(RIGHT[name])
        return text, eval(text, dict(NAMES))
    fate = choose.random()
    if fate < 0.2:
        text = choose.choice(list(NAMES))
        return text, NAMES[text]
    return choose.choice(VALUES)
