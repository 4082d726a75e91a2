"""Random definitions with random strategies: lowered, checked, simulated, some printed and run on a CPU; near what float64 says.

The seed is printed, and replays: `draw(SEED + 17)` of `fused_generator.py`. FIREIRON_FUZZ multiplies the number of draws.
"""

import collections
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
from fireiron.values.expr import TRUE

SEED = 20261122
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
CHUNKS = 8
PER_CHUNK = 12 * SCALE
PRINTED = 10 * SCALE


def wrong(one, got, arrays):
    """What differs from the reference by more than the steps may give."""
    right = references_of(one.bound, *arrays.values())
    return differing(one.bound, all_sizes(one.bound, one.symbols), got, arrays, right)


def inputs(one, seed):
    return random_inputs(one.bound, one.symbols, np.random.default_rng(seed))


def program_to_paste(one):
    return f"\nfrom fireiron import *\nstrategy = {one.strategy!r}\nspec = {one.bound!r}\nsizes = {one.symbols}, seed = {one.seed}\n{one.definition}"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_definitions_are_near_their_meaning(chunk):
    seeds = range(SEED + chunk * PER_CHUNK, SEED + (chunk + 1) * PER_CHUNK)
    print(f"seeds {seeds}")
    for seed in seeds:
        one, _ = drawn_definition(seed)
        arrays = inputs(one, seed)
        assert not [finding for finding in safety(one.program.ir) if finding.severity == "error"], program_to_paste(one)
        got = simulate(one.program.ir, arrays, one.symbols, order=random.Random(seed)).outputs
        assert not wrong(one, got, arrays), (wrong(one, got, arrays), program_to_paste(one))


def test_random_definitions_are_values():
    for seed in range(SEED, SEED + 15):
        one, _ = drawn_definition(seed)
        bound = one.strategy(one.bound)
        assert loads(dumps(bound)) == bound, program_to_paste(one)
        assert eval(repr(one.definition)) == one.definition and eval(repr(bound.spec)) == one.bound, program_to_paste(one)
        assert loads(dumps(bound)).program("sm_80").cuda == one.program.cuda


def test_draws_have_everything():
    """What is drawn is not refused, whatever the form, and all features occur."""
    found, refusals = collections.Counter(), 0
    for seed in range(SEED, SEED + 80):
        one, refused = drawn_definition(seed)
        refusals += refused
        found.update(one.features)
    wanted = (
        "elements", "rows", "product", "carried", "mma", "epilog", "mask", "in place", "broadcast", "number", "overhanging", "symbolic",
        "two outputs", "mixed types", "column-major", "carried sum", "carried max", "row of a warp", "row of a block", "warps", "shared", "joined",
        "transposed", "turned temporary", "placed",
    )  # fmt: skip
    assert all(found[name] for name in wanted), found
    assert refusals < 80, refusals


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(tmp_path):
    some = [drawn_definition(seed)[0] for seed in range(SEED + 500, SEED + 500 + PRINTED)]
    host = HostProgram([Printed.of(one.program) for one in some], tmp_path)
    for number, one in enumerate(some):
        arrays = inputs(one, number)
        got = host.run(number, arrays, one.symbols, number)
        assert not wrong(one, got, arrays), (wrong(one, got, arrays), program_to_paste(one))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_transposed_reads(tmp_path):
    """What is read at (n, m) is the element at (n, m): in the simulator, in the printed text, and by the definition."""
    some = [drawn_definition(seed, "transposed")[0] for seed in range(SEED + 900, SEED + 900 + 8 * SCALE)]
    host = HostProgram([Printed.of(one.program) for one in some], tmp_path)
    for number, one in enumerate(some):
        arrays = inputs(one, number)
        got = simulate(one.program.ir, arrays, one.symbols, order=random.Random(number)).outputs
        assert not wrong(one, got, arrays), (wrong(one, got, arrays), program_to_paste(one))
        got = host.run(number, arrays, one.symbols, number)
        assert not wrong(one, got, arrays), (wrong(one, got, arrays), program_to_paste(one))


@pytest.mark.parametrize("formula", ["C[m,n] = X[n,m] * 2", "C[n,m] = X[m,n] * 2"])
def test_parts_of_what_is_read_transposed_are_refused(formula):
    """A tile of rows is no tile of columns; where a tile has all of both, an element is the one that the formula says."""
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


# ---------------------------------------------------------------------------------------------- planted faults


def softmax_sums():
    """Sums of values that are not zero where elements are, and maxima of negative ones: what a load puts behind the end counts in both."""
    definition = Fused(
        name="sums",
        dims="m n",
        loop="n",
        operands={"X": "m n", "y": "m", "z": "m"},
        init={"l": "l[m] = 0", "t": "t[m] = -inf"},
        body={"e": "e[m,n] = sigmoid(X[m,n])", "sum": "l[m] += sum(n, e[m,n])", "top": "t[m] max= max(n, X[m,n])"},
        final={"y": "y[m] = l[m]", "z": "z[m] = t[m]"},
    )
    held = Move.tile(1, 1).to(Lane).done()
    strategy = definition.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, held).done()
    spec = definition(m=3, n=70, dtype=float32)
    arrays = {"X": -1 - np.random.default_rng(0).random((3, 70), np.float32)}
    outputs = simulate(strategy(spec).program("sm_80").ir, arrays).outputs
    return [np.allclose(outputs[name], right, rtol=1e-5) for name, right in zip("yz", spec.reference(arrays["X"]), strict=True)]


def test_terms_behind_the_end_that_are_not_masked_are_found(monkeypatch):
    assert softmax_sums() == [True, True]
    monkeypatch.setattr(steps._Steps, "_masked", lambda self, step: step)
    assert softmax_sums() == [False, False]


def test_replicas_that_all_write_are_found(monkeypatch):
    """Warps beside each other along n have the same sum of a row: one writes it, or it is a race, which the checks refuse."""
    strategy, spec = specs()["dual"]
    _ = strategy(spec).program("sm_80").ir
    monkeypatch.setattr(steps._Steps, "_first_unit", lambda self, step: TRUE)
    with pytest.raises(FireironError, match="y"):
        _ = strategy(spec).program("sm_80").ir
