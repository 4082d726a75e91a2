"""Every form of every library strategy on every supported target, at small sizes: its text on a CPU, compared as in `text`."""

import functools
import importlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import test_fused_random
from problems import integers

from campaign import Outcome, Subject
from campaign.subjects import text
from campaign.subjects.text import Case, differing
from fireiron.compiler import Program
from fireiron.errors import FireironError
from fireiron.language.library import bind, find, names
from fireiron.language.strategy import Strategy
from fireiron.measure.data import random_inputs
from fireiron.spec import Spec

TARGETS = ("sm_61", "sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_90a")

SIZES = (
    {"M": 72, "N": 40, "K": 72, "D": 64, "L": 40, "P": 3},
    {"M": 128, "N": 128, "K": 64, "D": 64, "L": 128, "P": 4},
    {"M": 256, "N": 256, "K": 128, "D": 128, "L": 256, "P": 4},
)
"""Sizes by their name in a problem: the first that a form accepts."""


def _forms() -> Iterator[str]:
    for name in names():
        module = importlib.import_module(f"fireiron.strategies.{name}")
        kind = type(module.strategy.start)
        for key, value in vars(module).items():
            if isinstance(value, Strategy) and isinstance(value.start, kind) and value.finished:
                yield name if key == "strategy" else f"{name}:{key}"


@functools.cache
def numbered() -> tuple[tuple[str, str], ...]:
    """All forms, each with all targets."""
    return tuple((form, target) for form in _forms() for target in TARGETS)


def _program(form: str, target: str) -> Program:
    """The form at the first sizes that it accepts; a FireironError if there are none."""
    refusals = []
    known = inspect.signature(importlib.import_module(f"fireiron.strategies.{form.partition(':')[0]}").spec).parameters
    for sizes in SIZES:
        try:
            program = bind(find(form), {name: size for name, size in sizes.items() if name in known}, architecture=target).program(target)
            _ = program.lowered
        except FireironError as error:
            refusals.append(error)
        else:
            return program
    raise refusals[0]


def case_of(number: int) -> Case:
    """A form on a target, with its problem."""
    form, target = numbered()[number]
    program = _program(form, target)
    spec, generator = program.spec, np.random.default_rng(number)
    features = {form, target}
    if spec.title.startswith("MatMul"):
        arrays = {name: integers(_shape(spec, name), spec.operands[name].dtype, generator) for name in spec.inputs}
        expected = spec.reference(*arrays.values())
        return Case(program, features, arrays, {}, lambda got: differing(got, {"C": expected}), True, "library_texts")
    arrays = random_inputs(spec, {}, generator)
    wrong = lambda got: "; ".join(test_fused_random.wrong(_Bound(spec), got, arrays))
    return Case(program, features, arrays, {}, wrong, False, "library_texts")


@attrs.frozen
class _Bound:
    """The attributes of a draw that `test_fused_random.wrong` reads."""

    bound: Spec
    symbols: dict[str, int] = attrs.field(factory=dict)


def _shape(spec: Spec, name: str) -> tuple[int, ...]:
    return tuple(int(size.evaluate({})) for size in spec.operands[name].shape)


def together(numbers: Sequence[int]) -> list[Outcome]:
    """The outcomes of several numbers."""
    return text.compared(numbers, case_of)


def draw(number: int) -> Outcome:
    """One form on one target."""
    return together([number])[0]


def again(program: Program, number: int) -> Any:
    """A program with the problem of a number."""
    return text.again(program, number, case_of)


SUBJECT = Subject(
    "library-texts", "each form of the library on each target, printed and run on a CPU", draw, nightly=len(numbered()), campaign=len(numbered()),
    counted="drawn", first=0, last=len(numbered()), chunk=21, draw_together=together, needs=text.needs, sample=0, seconds=600.0,
)  # fmt: skip
