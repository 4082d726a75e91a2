"""Generated definitions that unpack numbers of 4 bits, with generated places and sizes; `draw(SEED + 3)` reproduces a failure."""

import os
import random

import numpy as np
import pytest
from packed_generator import draw as drawn_definition
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

SEED = 20261129
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nseed = {case.seed}\n{case.definition}"


def differing_bits(got, want):
    """The elements that differ in any bit, except for the bits of NaN."""
    got, want = np.asarray(got), np.asarray(want)
    return (
        ""
        if got.shape == want.shape and not np.any((got.view(np.uint16) != want.view(np.uint16)) & ~(np.isnan(got) & np.isnan(want)))
        else "other bits"
    )


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    arrays = case.arrays(seed)
    want = case.right_values(arrays)["Y"]
    simulated = simulate(case.program.lowered, arrays, order=random.Random(seed)).outputs["Y"]
    messages = {
        "the simulator": differing_bits(simulated, want),
        "the reference": differing_bits(case.bound.reference(*arrays.values()), want),
    }
    return "; ".join([*alarms, *(f"{name}: {message}" for name, message in messages.items() if message)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", range(2))
def test_generated_kernels_equal_numpy_bit_by_bit(chunk):
    for seed in range(SEED + 4 * SCALE * chunk, SEED + 4 * SCALE * (chunk + 1)):
        case, _ = drawn_definition(seed)
        assert not (message := objection(case, seed)), (message, program_to_paste(case))


def test_generated_kernels_are_values():
    for seed in range(SEED + 500, SEED + 500 + 3 * SCALE):
        case, _ = drawn_definition(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound and eval(repr(bound.spec)) == case.bound, program_to_paste(case)
        assert parse_kernel(graphene_text(case.program)).cuda == case.program.cuda, program_to_paste(case)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.nightly
def test_printed_kernels_on_a_cpu(tmp_path):
    cases = [drawn_definition(SEED + 900 + number)[0] for number in range(16 * SCALE)]
    host = HostProgram([Printed.of(case.program) for case in cases], tmp_path)
    for number, case in enumerate(cases):
        arrays = case.arrays(number)
        assert not differing_bits(host.run(number, arrays)["Y"], case.right_values(arrays)["Y"]), program_to_paste(case)


@pytest.mark.nightly
def test_the_generator_covers_all_features():
    wanted = {
        "int4",
        "e2m1",
        "int32",
        "uint8",
        "int8",
        "float16",
        "bfloat16",
        "shared",
        "registers",
        "threads",
        "memory",
        "e8m0(S[n,k // {g}])",
        "s[n]",
    }
    for number in range(60):
        wanted -= drawn_definition(SEED + number)[0].features
        if not wanted:
            break
    assert not wanted
