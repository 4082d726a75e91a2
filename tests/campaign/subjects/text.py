"""Printed texts on a CPU: random programs of all kinds, each evaluated by NumPy, by the simulator, by the checks, and by executing its
text; all four agree.

A chunk of texts is one program of the host (`printed_text`), so a text takes a quarter of a second of processor time with all oracles.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import test_fused_random
import test_rings
import test_tasks_random
from fused_generator import draw as drawn_definition
from generator import draw as drawn_strategy
from printed_text import COMPILER, HostProgram, Printed, Refused
from problems import simulated
from ringed import inputs_of
from test_random import problem

from campaign import Outcome, Subject, agreed, found, refused
from fireiron.check import safety
from fireiron.compiler import Program
from fireiron.cuda import emit
from fireiron.errors import FireironError
from fireiron.gpu.arguments import solve_symbols
from fireiron.sim import simulate

Arrays = Mapping[str, Any]


@attrs.frozen(eq=False)
class Case:
    """A random program with a problem: `wrong` returns the errors of outputs, given by name."""

    program: Program
    features: frozenset[str] = attrs.field(converter=frozenset)
    inputs: Arrays
    symbols: Mapping[str, int]
    wrong: Callable[[Arrays], str]
    exact: bool
    """Whether the text and the simulator agree in each bit, since the numbers are small integers."""

    subject: str = "text"
    """The file whose `again` draws this problem."""

    def to_paste(self, seed: int) -> str:
        """A program that repeats it."""
        return PASTED.format(subject=self.subject, strategy=repr(self.program.strategy), target=str(self.program.architecture), seed=seed)


PASTED = """
from campaign.subjects.{subject} import again
from fireiron import *
from fireiron.tasks import *
from fireiron.values.expr import Var

program = {strategy}.program({target!r})
print(program.cuda)
print(again(program, {seed}))
"""


def differing(got: Arrays, expected: Arrays) -> str:
    """The first element in which outputs differ from the expected ones, and the number of such elements."""
    for name, right in expected.items():
        unequal = ~((got[name] == right) | ((got[name] != got[name]) & (right != right)))
        if unequal.any():
            at = tuple(np.argwhere(unequal)[0])
            return f"{name}{[*map(int, at)]} is {got[name][at]}, not {right[at]}; {unequal.sum()} of {unequal.size} differ"
    return ""


# ---------------------------------------------------------------------------------------------- draws


def _strategy(seed: int) -> Case:
    drawn, _ = drawn_strategy(seed)
    arrays, expected = problem(drawn, seed)
    return Case(drawn.program, drawn.features, arrays, drawn.symbols, lambda got: differing(got, {"C": expected}), True)


def _ring(seed: int) -> Case:
    strategy, spec = test_rings.generated(seed)
    arrays, expected = inputs_of(spec, seed=seed)
    program = strategy(spec).program("sm_90a")
    return Case(program, {"ring", "sm_90a", "wgmma"}, arrays, {}, lambda got: differing(got, {"C": expected}), True)


def _definition(seed: int) -> Case:
    drawn, _ = drawn_definition(seed)
    arrays = test_fused_random.inputs(drawn, seed)
    wrong = lambda got: "; ".join(test_fused_random.wrong(drawn, got, arrays))
    return Case(drawn.program, {f"fused {one}" for one in drawn.features}, arrays, drawn.symbols, wrong, False)


@attrs.frozen
class _Stub:
    """A stand-in for a compiled kernel: records its arguments, and returns the given outputs."""

    program: Program
    returns: Arrays | None
    kept: dict[str, Any] = attrs.field(factory=dict)

    def __call__(self, *arrays: Any) -> Any:
        self.kept.update(zip(self.program.spec.inputs, arrays, strict=True))
        if self.returns is None:
            raise _Called
        outputs = tuple(self.returns[name] for name in self.program.spec.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


class _Called(Exception):
    """Inputs are known."""


def _task(seed: int) -> Case:
    chosen = random.Random(seed)
    bound, target, require = (test_tasks_random.of_attention if chosen.random() < 0.3 else test_tasks_random.product)(chosen)
    program = simulated(bound, target).program
    stub = _Stub(program, None)
    with contextlib.suppress(_Called):
        require(stub)

    def wrong(got: Arrays) -> str:
        try:
            require(_Stub(program, got))
        except AssertionError as error:
            return str(error)[:500] or "not near"
        return ""

    symbols = solve_symbols(program.spec, {name: one.shape for name, one in stub.kept.items()}, {})
    return Case(program, {f"tasks {target}"}, stub.kept, symbols, wrong, False)


FAMILIES = (_strategy, _ring, _strategy, _definition, _strategy, _definition, _ring, _task)
"""By the remainder of a seed."""


def case_of(seed: int) -> Case:
    """The draw of a seed; a FireironError if the project refuses it, except in its checks, which this subject tests."""
    case = FAMILIES[seed % len(FAMILIES)](seed)
    _ = case.program.lowered
    return case


def _printed(program: Program) -> Printed:
    """The text, without the verdict of the checks."""
    return Printed(emit(program.lowered), program.lowered)


# ---------------------------------------------------------------------------------------------- the oracles


def _simulated(case: Case, seed: int) -> Arrays:
    return simulate(case.program.lowered, case.inputs, case.symbols, order=random.Random(seed)).outputs


def _disagreements(case: Case, host: HostProgram, number: int, seed: int) -> Iterator[str]:
    alarms = [str(one) for one in safety(case.program.lowered) if one.severity == "error"]
    if alarms:
        yield f"the checks raise an alarm: {alarms}"
    results = {}
    for oracle, run in (
        ("simulator", lambda: _simulated(case, seed)),
        ("text", lambda: host.run(number, case.inputs, case.symbols, seed)),
    ):
        try:
            results[oracle] = run()
        except (Refused, FireironError) as report:
            yield f"the {oracle} refuses: {report}"
            continue
        if wrong := case.wrong(results[oracle]):
            yield f"the {oracle} differs from NumPy: {wrong}"
    if len(results) == 2 and case.exact and (apart := differing(results["text"], results["simulator"])):
        yield f"the text differs from the simulator: {apart}"


def _outcome(case: Case, host: HostProgram, number: int, seed: int) -> Outcome:
    disagreements = list(_disagreements(case, host, number, seed))
    if disagreements:
        return found("\n".join([*disagreements, case.to_paste(seed)]), case.features)
    return agreed(case.features, case.program, texts=1)


def compared(seeds: Sequence[int], drawn: Callable[[int], Case]) -> list[Outcome]:
    """The outcomes of several seeds, whose texts are compiled together."""
    cases: dict[int, Case] = {}
    for seed in seeds:
        with contextlib.suppress(FireironError):
            cases[seed] = drawn(seed)
    with tempfile.TemporaryDirectory(prefix="texts") as folder:
        host = HostProgram([_printed(case.program) for case in cases.values()], folder)
        done = {seed: _outcome(case, host, number, seed) for number, (seed, case) in enumerate(cases.items())}
    return [done.get(seed) or refused() for seed in seeds]


def together(seeds: Sequence[int]) -> list[Outcome]:
    """The outcomes of several seeds."""
    return compared(seeds, case_of)


def draw(seed: int) -> Outcome:
    """One text."""
    return together([seed])[0]


def again(program: Program, seed: int, drawn: Callable[[int], Case] = case_of) -> Outcome:
    """A program, possibly a shrunk one, with the problem of a seed."""
    case = attrs.evolve(drawn(seed), program=program)
    with tempfile.TemporaryDirectory(prefix="texts") as folder:
        return _outcome(case, HostProgram([_printed(program)], folder), 0, seed)


def needs() -> str | None:
    """A host compiler."""
    return None if COMPILER else "no C++ compiler (g++ or clang++) on the path"


SUBJECT = Subject(
    "text", "printed texts on a CPU against NumPy, the simulator and the checks", draw, nightly=1_000, campaign=10_000, first=20_261_124,
    chunk=32, draw_together=together, needs=needs, sample=1,
)  # fmt: skip
