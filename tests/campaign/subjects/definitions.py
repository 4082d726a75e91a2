"""Random definitions of several steps with random strategies, on targets of all kinds: near float64, no alarm, the same whatever the order.

Where there is a GPU, one strategy in four is compiled for it and launched too, and lies within the bounds of each element.
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
from fireiron.measure.data import adder_of, all_sizes, referred
from fireiron.measure.rounding import differing
from fireiron.sim import simulate

MOST_REFUSALS = 100


def drawn(seed: int) -> tuple[DrawnDefinition, int]:
    """A definition, its strategy and a target, which the project accepts, and how many were refused before."""
    refusals = 0
    while True:
        one = DrawnDefinition(f"{seed}/{refusals}")
        one.target = random.Random(seed).choice(ARCHITECTURES if refusals < MOST_REFUSALS // 2 else ARCHITECTURES[-5:]).name
        try:
            one.program = one.strategy(one.bound).program(one.target)
            _ = one.program.lowered
            return one, refusals
        except REFUSALS:
            refusals += 1
            if refusals > MOST_REFUSALS:
                raise


def features_of(one: DrawnDefinition) -> set[str]:
    """What the definition has in it, and the verbs, refinements, levels, instructions and the target of its strategy."""
    steps = list(steps_in(one.strategy.steps))
    refined = [each for step in steps for each in step.refinements]
    names = {*one.features, f"target {one.target}", *instructions_in(one.program), *(f"verb {step.verb}" for step in steps)}
    types = {f"dtype {view.dtype}" for view in one.bound.views}
    return (
        names
        | types
        | {f"refine {type(each).__name__}" for each in refined}
        | {f"to {each.level}" for each in refined if isinstance(each, To)}
    )


def says(one: DrawnDefinition, program: Program, symbols: dict[str, int], seed: int) -> str:
    """What an oracle says against a program; nothing if all is well."""
    alarms = [str(finding) for finding in safety(program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    one.bound, one.symbols = program.spec, symbols
    arrays = inputs(one, seed)
    for order in (None, random.Random(seed)):
        got = simulate(program.lowered, arrays, symbols, order=order).outputs
        if said := wrong(one, got, arrays):
            return "; ".join(said)
        if order is None:
            first = got
    same = all(np.array_equal(first[name], got[name], equal_nan=got[name].dtype.kind == "f") for name in got)
    return "" if same else "another order of the threads, another result"


def draw(seed: int) -> Outcome:
    """One definition with a strategy that the project accepts."""
    one, refusals = drawn(seed)
    features, bound, symbols = features_of(one), one.bound, one.symbols
    judge = lambda program, sizes: says(one, program, dict(sizes), seed)
    try:
        said = judge(one.program, symbols)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    if said:
        return found(story(one.strategy(bound), one.target, symbols, judge, seed), features)
    counts = {"clean": 1, "refusals": refusals}
    one.bound, one.symbols = bound, symbols
    if seed % EVERY == 0 and (gpu := here()) is not None and (compiled := gpu.compiled(one.strategy(bound))) is not None:
        if said := on_gpu(gpu, compiled, one, seed):
            if on_gpu(gpu, gpu.compiled(one.strategy(bound), PLAIN), one, seed):
                return found(f"on the GPU: {said}\n{one.strategy(bound)!r}\nsizes {symbols}", features)
            counts[f"defect of ptxas, seed {seed}"] = 1
        counts["on the GPU"] = 1
    return agreed(features, **counts)


def on_gpu(gpu: Device, kernel: CompiledKernel, one: DrawnDefinition, seed: int) -> str:
    """What the GPU's outputs have against them; nothing if all is well."""
    arrays, sizes = inputs(one, seed), all_sizes(one.bound, one.symbols)
    (outputs,), wrong = gpu.run(kernel, arrays, sizes)
    return "; ".join(wrong + differing(one.bound, sizes, outputs, arrays, referred(one.bound, *arrays.values()), adder_of(kernel)))


SUBJECT = Subject(
    "definitions",
    "random definitions of several steps with random strategies, on all targets: close to float64, no alarm",
    draw,
    nightly=2_000,
    campaign=45_000,
    first=20_261_123,
    sample=2,
)
