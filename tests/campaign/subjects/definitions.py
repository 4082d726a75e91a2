"""Random multi-step definitions with random strategies, on all kinds of targets: near float64, no findings, independent of the thread
order.

With a GPU, one strategy in four is also compiled for it and launched, and must be within the error bounds of each element.
"""

import random

import numpy as np
from fused_generator import REFUSALS, DrawnDefinition
from on_gpu import EVERY, PLAIN, Device, here
from test_fused_random import inputs, wrong
from walker import instructions_in, steps_in

from campaign import Outcome, Subject, agreed, found
from campaign.shrink import story
from fireiron import ARCHITECTURES, To
from fireiron.check import safety
from fireiron.compiler import Program
from fireiron.gpu.kernel import CompiledKernel
from fireiron.measure.data import accumulator_of, all_sizes, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate

MOST_REFUSALS = 100


def drawn(seed: int) -> tuple[DrawnDefinition, int]:
    """An accepted definition with its strategy and a target, and the number of refused ones before it."""
    refusals = 0
    while True:
        definition = DrawnDefinition(f"{seed}/{refusals}")
        definition.target = random.Random(seed).choice(ARCHITECTURES if refusals < MOST_REFUSALS // 2 else ARCHITECTURES[-5:]).name
        try:
            definition.program = definition.strategy(definition.bound).program(definition.target)
            _ = definition.program.lowered
            return definition, refusals
        except REFUSALS:
            refusals += 1
            if refusals > MOST_REFUSALS:
                raise


def features_of(definition: DrawnDefinition) -> set[str]:
    """The features of the definition, and the verbs, refinements, levels, instructions and the target of its strategy."""
    steps = list(steps_in(definition.strategy.steps))
    refined = [each for step in steps for each in step.refinements]
    names = {
        *definition.features,
        f"target {definition.target}",
        *instructions_in(definition.program),
        *(f"verb {step.verb}" for step in steps),
    }
    types = {f"dtype {view.dtype}" for view in definition.bound.views}
    return (
        names
        | types
        | {f"refine {type(each).__name__}" for each in refined}
        | {f"to {each.level}" for each in refined if isinstance(each, To)}
    )


def objection(definition: DrawnDefinition, program: Program, symbols: dict[str, int], seed: int) -> str:
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    definition.bound, definition.symbols = program.spec, symbols
    arrays = inputs(definition, seed)
    for order in (None, random.Random(seed)):
        got = simulate(program.lowered, arrays, symbols, order=order).outputs
        if differences := wrong(definition, got, arrays):
            return "; ".join(differences)
        if order is None:
            first = got
    added = program.spec.kind.fused_definition.added  # in any order, so the last bits of floats differ
    same = all(np.array_equal(first[name], got[name], equal_nan=got[name].dtype.kind == "f") for name in got if name not in added)
    return "" if same else "another order of the threads, another result"


def draw(seed: int) -> Outcome:
    """One definition with an accepted strategy."""
    definition, refusals = drawn(seed)
    features, bound, symbols = features_of(definition), definition.bound, definition.symbols
    judge = lambda program, sizes: objection(definition, program, dict(sizes), seed)
    try:
        message = judge(definition.program, symbols)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    if message:
        return found(story(definition.strategy(bound), definition.target, symbols, judge, seed), features)
    counts = {"clean": 1, "refusals": refusals}
    definition.bound, definition.symbols = bound, symbols
    if seed % EVERY == 0 and (gpu := here()) is not None and (compiled := gpu.compiled(definition.strategy(bound))) is not None:
        if message := on_gpu(gpu, compiled, definition, seed):
            if on_gpu(gpu, gpu.compiled(definition.strategy(bound), PLAIN), definition, seed):
                return found(f"on the GPU: {message}\n{definition.strategy(bound)!r}\nsizes {symbols}", features)
            counts[f"defect of ptxas, seed {seed}"] = 1
        counts["on the GPU"] = 1
    return agreed(features, definition.program, **counts)


def on_gpu(gpu: Device, kernel: CompiledKernel, definition: DrawnDefinition, seed: int) -> str:
    """The objection to the GPU's outputs; empty if all is well."""
    arrays, sizes = inputs(definition, seed), all_sizes(definition.bound, definition.symbols)
    (outputs,), wrong = gpu.run(kernel, arrays, sizes)
    return "; ".join(
        wrong
        + differing(definition.bound, sizes, outputs, arrays, references_of(definition.bound, *arrays.values()), accumulator_of(kernel))
    )


SUBJECT = Subject(
    "definitions",
    "random definitions of several steps with random strategies, on all targets: close to float64, no alarm",
    draw,
    nightly=2_000,
    campaign=45_000,
    first=20_261_123,
)
