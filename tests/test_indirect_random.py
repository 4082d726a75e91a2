"""Generated definitions with indirect operands: gathered and scattered rows, pages, digits, affine indices, with generated strategies.

The reference gathers with Python's integers. A failure prints its seed, and `draw(SEED + 17)` of `indirect_generator.py` reproduces it.
"""

import os
import random

import numpy as np
import pytest
from indirect_generator import FORMS, gathered_by_integers, wanted_element
from indirect_generator import draw as drawn_definition

from fireiron import *
from fireiron.check import safety
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes, random_inputs
from fireiron.measure.rounding import differing
from fireiron.sim import simulate
from fireiron.specs.fused import as_direct

SEED = 20261129
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
PER_FORM = 6 * SCALE


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nsizes = {case.symbols}, seed = {case.seed}\n{case.definition}"


def references(case, arrays, sizes):
    """The results of the definition without indirect operands, on inputs gathered element by element; scattered element by element."""
    direct, gathered = as_direct(case.bound, arrays, sizes)
    by_integers = gathered_by_integers(case.bound, arrays, sizes)
    for name in direct.inputs:
        np.testing.assert_array_equal(gathered[name], by_integers[name])
    results = direct.reference(*(by_integers[name] for name in direct.inputs))
    results = dict(zip(direct.outputs, results if len(direct.outputs) > 1 else (results,), strict=True))
    for stored in case.bound.kind.fused_definition.scattered:
        shape = [int(size.evaluate(sizes)) for size in case.bound.operands[stored.operand].tensor.array.shape]
        array = np.zeros(shape, results[stored.operand].dtype)
        for place, value in np.ndenumerate(results[stored.operand]):
            index = wanted_element(stored, dict(zip(stored.dims, place, strict=True)), arrays)
            if all(0 <= number < size for number, size in zip(index, shape, strict=True)):
                array[index] = value
        results[stored.operand] = array
    return results


def outputs_of(case, sizes):
    """Zeros for each output that is scattered."""
    outputs = {}
    for stored in case.bound.kind.fused_definition.scattered:
        tensor = case.bound.operands[stored.operand].tensor
        outputs[stored.operand] = np.zeros([int(size.evaluate(sizes)) for size in tensor.array.shape], tensor.dtype.to_numpy())
    return outputs


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    sizes = all_sizes(case.bound, case.symbols)
    arrays = random_inputs(case.bound, sizes, np.random.default_rng(seed))
    got = simulate(case.program.lowered, arrays | outputs_of(case, sizes), sizes, order=random.Random(seed)).outputs
    return "; ".join(differing(case.bound, sizes, got, arrays, references(case, arrays, sizes)))


@pytest.mark.parametrize("form", FORMS)
def test_generated_kernels_equal_float64(form):
    for seed in range(SEED, SEED + PER_FORM):
        case, _ = drawn_definition(seed, form)
        assert not (message := objection(case, seed)), (message, program_to_paste(case))


def test_generated_kernels_are_values():
    for seed in range(SEED, SEED + 10 * SCALE):
        case, _ = drawn_definition(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound, program_to_paste(case)
        assert eval(repr(case.definition)) == case.definition and eval(repr(bound.spec)) == case.bound, program_to_paste(case)
        assert parse_kernel(graphene_text(case.program)).cuda == case.program.cuda, program_to_paste(case)


def test_generator_covers_all_features():
    wanted = {
        *FORMS, "scattered rows", "scattered pages", "promised", "symbolic", "symbolic array", "loaded to SH", "loaded to RF", "overhanging",
        "scattered product", "mma", "reversed", "negative offset", "two dimensions", "outside -inf", "outside 1.5", "outside reflect",
        "outside replicate", "outside circular", "transposed", "max", "min",
    }  # fmt: skip
    for seed in range(SEED, SEED + 120):
        wanted -= set(drawn_definition(seed)[0].features)
        if not wanted:
            return
    raise AssertionError(f"never drawn: {wanted}")
