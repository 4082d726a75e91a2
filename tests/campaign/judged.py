"""Judge a strategy for one of the project's problems, by all oracles that need no compiler: for subjects, and for shrinking."""

import random
from collections.abc import Mapping

import numpy as np
from problems import integers

from fireiron import *
from fireiron.check import AccessTrace, check_races, safety
from fireiron.compiler import Program
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.sim import simulate
from fireiron.spec import Spec
from fireiron.values.expr import TRUE, compiled


def wrong(program: Program, symbols: Mapping[str, int], seed: int) -> str:
    """An oracle's objection to a program on small integers with exact sums in any order; empty if there is none."""
    arrays = inputs(program.spec, symbols, seed)
    expected = meaning(program.spec, arrays)
    kernel, given = program.lowered, {**arrays, **copied(program, arrays, symbols)}
    findings = [*safety(kernel), *(finding for launch in program.preceding for finding in safety(launch.program.lowered))]
    alarms = [str(finding) for finding in findings if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    if kernel.effects[Unchecked].reasons and check_races(AccessTrace(kernel)):  # the strategy accepts these races
        return ""
    for order in (None, random.Random(seed)):
        got = simulate(kernel, given, symbols, order=order).outputs
        for name, values in expected.items():
            if not np.array_equal(got[name], values):
                at = tuple(map(int, np.argwhere(got[name] != values)[0]))
                how = "in step" if order is None else "with warps in another order"
                return f"{name}{list(at)} is {got[name][at]}, {values[at]} by NumPy, {how}; {int((got[name] != values).sum())} of {values.size}"
    return ""


def shape_of(spec: Spec, name: str, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The numbers of elements of an operand."""
    return tuple(int(compiled(size)(symbols)) for size in spec.operands[name].tensor.shape)


def names_given(spec: Spec) -> list[str]:
    """The operands of a call: the inputs, and outputs that are accumulated into."""
    return [*spec.inputs, *(spec.outputs if spec.accumulate == TRUE else ())]


def inputs(spec: Spec, symbols: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Small integers for all inputs, and for accumulated outputs."""
    generator = np.random.default_rng(seed)
    return {name: integers(shape_of(spec, name, symbols), spec.operands[name].dtype, generator) for name in names_given(spec)}


def meaning(spec: Spec, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """NumPy's result, in float64 or int64."""
    results = spec.reference(*(arrays[name] for name in spec.inputs))
    values = dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    for name in spec.outputs if spec.accumulate == TRUE else ():
        wide = np.int64 if spec.operands[name].dtype.kind == "int" else np.float64
        values[name] = (values[name].astype(wide) + arrays[name].astype(wide)).astype(values[name].dtype)
    return values


def copied(program: Program, arrays: Mapping[str, np.ndarray], symbols: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The arrays that preceding launches make of inputs."""
    copies = {}
    for launch in program.preceding:
        (source,), (target,) = launch.program.spec.inputs, launch.program.spec.outputs
        kernel = launch.program.lowered
        own = {one.name: symbols[one.name] for one in kernel.symbols}
        copies[launch.name] = simulate(kernel, {source: arrays[launch.name]}, own).outputs[target]
    return copies
