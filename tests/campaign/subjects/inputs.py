"""Bad inputs to everything that reads external data: the answer is the project's own error, with a text, or a value equal to the input.

`inputs` counts those answered by the project's own error; legal ones are `accepted`, those that Python refused before the project was
entered are `python`; each also by the kind of input, which is a file of `tests/attacks`.
"""

import importlib
import random
from collections.abc import Callable

from attacks.guard import Answers

from campaign import Outcome, Subject, agreed, found

KINDS: dict[str, tuple[int, int]] = {
    "constructors": (24, 150), "verbs": (24, 150), "programs": (10, 150), "documents": (14, 60), "stored": (10, 150), "texts": (10, 100),
    "arrays": (3, 30), "places": (3, 40), "environment": (1, 10), "commands": (1, 4), "unwritable": (2, 20), "large": (2, 12), "kept": (2, 20),
}  # fmt: skip
"""The kinds: the frequency of each, per hundred, and the number of inputs per draw; expensive ones are drawn less often."""


def draw(seed: int) -> Outcome:
    """Many inputs of one kind."""
    choose = random.Random(seed)
    kind = choose.choices(list(KINDS), [often for often, _ in KINDS.values()])[0]
    attack: Callable[[random.Random, int], object] = importlib.import_module(f"attacks.{kind}").draw
    answers = Answers()
    answers.take(attack(choose, KINDS[kind][1]), kind)
    if answers.wrong:
        return found(f"{len(answers.wrong)} of them, such as\n{answers.wrong[0]}", {kind}, **answers.counts)
    return agreed({kind}, **answers.counts)


SUBJECT = Subject(
    "inputs",
    "invalid inputs to every reader of external data, answered by the project's own errors",
    draw,
    nightly=100_000,
    campaign=1_000_000,
    counted="inputs",
    first=20_261_123,
    chunk=100,
)
