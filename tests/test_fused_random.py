"""Generated definitions with generated strategies: lowered, checked, simulated; some are printed and run on a CPU. Oracle: float64.

A failure prints its seed, and `draw(SEED + 17)` of `fused_generator.py` reproduces it. FIREIRON_FUZZ multiplies the number of cases.
"""

import os
import random

import numpy as np
import pytest
from fused_examples import specs
from fused_generator import draw as drawn_definition
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.errors import FireironError
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate
from fireiron.stepping import steps

SEED = 20261122
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
CHUNKS = 8
PER_CHUNK = 12 * SCALE
PRINTED = 10 * SCALE


def wrong(case, got, arrays):
    """Differences from the reference that exceed the error bound of the steps."""
    right = references_of(case.bound, *arrays.values())
    return differing(case.bound, all_sizes(case.bound, case.symbols), got, arrays, right)


def inputs(case, seed):
    return random_inputs(case.bound, case.symbols, np.random.default_rng(seed))


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nsizes = {case.symbols}, seed = {case.seed}\n{case.definition}"


def objection(case, seed):
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    arrays = inputs(case, seed)
    got = simulate(case.program.lowered, arrays, case.symbols, order=random.Random(seed)).outputs
    return "; ".join([*alarms, *wrong(case, got, arrays)])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_generated_definitions_equal_float64(chunk):
    seeds = range(SEED + chunk * PER_CHUNK, SEED + (chunk + 1) * PER_CHUNK)
    print(f"seeds {seeds}")
    for seed in seeds:
        case, _ = drawn_definition(seed)
        assert not (message := objection(case, seed)), (message, program_to_paste(case))


@pytest.mark.nightly
def test_generated_definitions_are_values():
    for seed in range(SEED, SEED + 15):
        case, _ = drawn_definition(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound, program_to_paste(case)
        assert eval(repr(case.definition)) == case.definition and eval(repr(bound.spec)) == case.bound, program_to_paste(case)
        assert loads(dumps(bound)).program("sm_80").cuda == case.program.cuda


def test_generator_covers_all_features():
    """All features occur, and fewer forms are refused than drawn."""
    wanted = {
        "elements", "rows", "product", "carried", "mma", "epilog", "mask", "in place", "broadcast", "number", "overhanging", "symbolic",
        "two outputs", "mixed types", "column-major", "carried sum", "carried max", "row of a warp", "row of a block", "warps", "shared", "joined",
        "transposed", "turned temporary", "placed", "added",
    }  # fmt: skip
    refusals = 0
    for draws in range(1, 81):
        case, refused = drawn_definition(SEED + draws - 1)
        refusals += refused
        wanted -= {*case.features}
        if not wanted:
            break
    assert not wanted
    assert refusals < draws, refusals


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_generated_definitions_on_a_cpu(tmp_path):
    some = [drawn_definition(seed)[0] for seed in range(SEED + 500, SEED + 500 + PRINTED)]
    host = HostProgram([Printed.of(one.program) for one in some], tmp_path)
    for number, case in enumerate(some):
        arrays = inputs(case, number)
        got = host.run(number, arrays, case.symbols, number)
        assert not wrong(case, got, arrays), (wrong(case, got, arrays), program_to_paste(case))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_transposed_reads(tmp_path):
    """An access at (n, m) reads element (n, m): in the simulator, in the printed text, and in the definition."""
    some = [drawn_definition(seed, "transposed")[0] for seed in range(SEED + 900, SEED + 900 + 8 * SCALE)]
    host = HostProgram([Printed.of(one.program) for one in some], tmp_path)
    for number, case in enumerate(some):
        arrays = inputs(case, number)
        got = simulate(case.program.lowered, arrays, case.symbols, order=random.Random(number)).outputs
        assert not wrong(case, got, arrays), (wrong(case, got, arrays), program_to_paste(case))
        got = host.run(number, arrays, case.symbols, number)
        assert not wrong(case, got, arrays), (wrong(case, got, arrays), program_to_paste(case))


@pytest.mark.parametrize("formula", ["C[m,n] = X[n,m] * 2", "C[n,m] = X[m,n] * 2"])
def test_transposed_reads_of_partial_tiles_are_refused(formula):
    """A tile of rows is not a tile of columns. If a tile spans both dimensions, the access reads the element of the formula."""
    definition = Fused(name="turned", dims="m n", operands={"X": "m n", "C": "m n"}, body={"x": formula})
    spec = definition(m=16, n=16, dtype=float32)
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    for size, holds in ((8, False), (16, True), (32, True)):
        strategy = definition.tile(m=size, n=size).to(Block).step("x", AnySpec.tile(1, 1).to(Thread).done()).done()
        if holds:
            assert (strategy(spec).compile("sm_80")(x) == 2 * x.T).all()
            continue
        with pytest.raises(FireironError, match="indexed by m and by n, and a tile covers only a part"):
            _ = strategy(spec).program("sm_80").ir


# ---------------------------------------------------------------------------------------------- injected faults


def softmax_sums():
    """Sums of nonzero values and maxima of negative ones: the out-of-bounds value of a load affects both."""
    definition = Fused(
        name="sums",
        dims="m n",
        loop="n",
        operands={"X": "m n", "y": "m", "z": "m"},
        init={"l": "l[m] = 0", "t": "t[m] = -inf"},
        body={"e": "e[m,n] = sigmoid(X[m,n])", "sum": "l[m] += sum(n, e[m,n])", "top": "t[m] max= max(n, X[m,n])"},
        final={"y": "y[m] = l[m]", "z": "z[m] = t[m]"},
    )
    element_copy = Move.tile(1, 1).to(Lane).done()
    strategy = definition.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, element_copy).done()
    spec = definition(m=3, n=70, dtype=float32)
    arrays = {"X": -1 - np.random.default_rng(0).random((3, 70), np.float32)}
    outputs = simulate(strategy(spec).program("sm_80").ir, arrays).outputs
    return [np.allclose(outputs[name], right, rtol=1e-5) for name, right in zip("yz", spec.reference(arrays["X"]), strict=True)]


def test_unmasked_out_of_bounds_terms_are_found(monkeypatch):
    assert softmax_sums() == [True, True]
    monkeypatch.setattr(steps._Steps, "_masked", lambda self, step: step)
    assert softmax_sums() == [False, False]


def test_replicas_that_all_write_race(monkeypatch):
    """Warps along n have the same row sum. Only one may write it; otherwise the checks report a race."""
    strategy, spec = specs()["dual"]
    _ = strategy(spec).program("sm_80").ir
    monkeypatch.setattr(steps._Steps, "_equal_units", lambda self, step, partial_dims=(): [])
    with pytest.raises(FireironError, match="y"):
        _ = strategy(spec).program("sm_80").ir
