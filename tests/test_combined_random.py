"""Generated definitions whose outputs several blocks combine, with generated strategies; `draw(SEED + 3)` reproduces a failure."""

import os
import random

import pytest
from combined_generator import draw as drawn_definition
from near import Near
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

SEED = 20261129
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nsizes = {case.symbols}, seed = {case.seed}\n{case.definition}"


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    arrays = case.arrays(seed)
    near = Near(case.bound, arrays, case.right_values(arrays), case.symbols)
    wrong = near.wrong(simulate(case.program.lowered, arrays, case.symbols, order=random.Random(seed)).outputs)
    results = case.bound.reference(*arrays.values())
    names = case.bound.outputs
    return "; ".join([*alarms, wrong, near.wrong(dict(zip(names, results if len(names) > 1 else (results,), strict=True)))]).strip("; ")


@pytest.mark.parametrize("chunk", range(4))
def test_generated_kernels_equal_numpy(chunk):
    for seed in range(SEED + 6 * SCALE * chunk, SEED + 6 * SCALE * (chunk + 1)):
        case, _ = drawn_definition(seed)
        assert not (message := objection(case, seed)), (message, program_to_paste(case))


def test_generated_kernels_are_values():
    for seed in range(SEED + 500, SEED + 500 + 8 * SCALE):
        case, _ = drawn_definition(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound and eval(repr(bound.spec)) == case.bound, program_to_paste(case)
        assert parse_kernel(graphene_text(case.program)).cuda == case.program.cuda, program_to_paste(case)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_kernels_on_a_cpu(tmp_path):
    cases = [drawn_definition(SEED + 900 + number)[0] for number in range(6 * SCALE)]
    host = HostProgram([Printed.of(case.program) for case in cases], tmp_path)
    for number, case in enumerate(cases):
        arrays = case.arrays(number)
        near = Near(case.bound, arrays, case.right_values(arrays), case.symbols)
        assert not (message := near.wrong(host.run(number, arrays, case.symbols, number))), (message, program_to_paste(case))


def test_the_generator_covers_all_features():
    wanted = {
        "threads", "lanes", "warps", "batch", "no batch", "int32", "float32", "float16", "rows", "columns", "all", "groups", "table", "table of rows",
        "elements", "sum", "max", "min", "symbolic",
    }  # fmt: skip
    for number in range(80):
        wanted -= drawn_definition(SEED + number)[0].features
        if not wanted:
            break
    assert not wanted
