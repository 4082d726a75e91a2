"""Random strategies: lowered, checked, simulated; exactly equal to NumPy. Both detectors report injected faults.

The seed is printed, and reproduces a draw: `draw(SEED + 17)` of `generator.py`. FIREIRON_FUZZ multiplies the number of draws.
"""

import collections
import itertools
import os
import random

import attrs
import numpy as np
import pytest
from generator import draw as drawn_strategy
from problems import integers

from fireiron import *
from fireiron.check import safety
from fireiron.ir import Barrier, For
from fireiron.sim import simulate
from fireiron.values.expr import TRUE

SEED = 20261121
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
CHUNKS = 30
PER_CHUNK = 10 * SCALE
FAULTS = 10 * SCALE


def problem(drawn, seed):
    """Input arrays and the expected output."""
    generator = np.random.default_rng(seed)
    spec, sizes = drawn.spec, drawn.sizes
    a = integers((sizes["M"], sizes["K"]), spec.A.dtype, generator)
    b = integers((sizes["K"], sizes["N"]), spec.B.dtype, generator)
    arrays, expected = {"A": a, "B": b}, spec.reference(a, b)
    if spec.accumulate == TRUE:
        arrays["C"] = integers((sizes["M"], sizes["N"]), spec.C.dtype, generator)
        wide = np.int64 if spec.C.dtype.kind == "int" else np.float64
        expected = (expected.astype(wide) + arrays["C"].astype(wide)).astype(expected.dtype)
    return arrays, expected


def program_to_paste(drawn):
    """The draw as a complete program."""
    return f"\nfrom fireiron import *\nstrategy = {drawn.strategy!r}\nsymbols = {drawn.symbols}, sizes = {drawn.sizes}, seed = {drawn.seed}"


FEATURES = {}
"""The features of the draws of this process so far, by seed."""


def features_of(seed):
    """The features drawn by a seed; from an earlier test, if it drew the same."""
    return FEATURES[seed] if seed in FEATURES else drawn_strategy(seed)[0].features


@pytest.mark.sampled(24)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_strategies_equal_numpy(chunk):
    print(f"seeds {SEED + chunk * PER_CHUNK} ... {SEED + (chunk + 1) * PER_CHUNK - 1}")
    for seed in range(SEED + chunk * PER_CHUNK, SEED + (chunk + 1) * PER_CHUNK):
        drawn, _ = drawn_strategy(seed)
        FEATURES[seed] = drawn.features
        arrays, expected = problem(drawn, seed)
        kernel = drawn.program.lowered
        got = simulate(kernel, arrays, drawn.symbols).outputs["C"]
        assert np.array_equal(got, expected), program_to_paste(drawn)
        alarms = [finding for finding in safety(kernel) if finding.severity == "error"]
        assert not alarms, f"{alarms}{program_to_paste(drawn)}"
        if seed % 3 == 0:
            shuffled = simulate(kernel, arrays, drawn.symbols, order=random.Random(seed)).outputs["C"]
            assert np.array_equal(shuffled, got), program_to_paste(drawn)
        if seed % 5 == 0:
            assert eval(repr(drawn.strategy)) == drawn.strategy, program_to_paste(drawn)


@pytest.mark.nightly
def test_unrefined_twins():
    """The same decompositions without refinements give the same result."""
    compared = 0
    for seed in itertools.count(SEED + 10_000_000):
        drawn, _ = drawn_strategy(seed)
        try:
            kernel = drawn.strategy.unrefined().program(drawn.target).lowered
        except (DecompositionError, ResourceError, MatchError):
            continue  # a permutation of lanes that only the main path had
        arrays, expected = problem(drawn, seed)
        assert np.array_equal(simulate(kernel, arrays, drawn.symbols).outputs["C"], expected), program_to_paste(drawn)
        compared += 1
        if compared == 20 * SCALE:
            return


def without_barrier(body, number):
    """The statements without the `number`-th barrier."""
    counter = itertools.count()

    def visit(statements):
        kept = []
        for statement in statements:
            if isinstance(statement, Barrier) and next(counter) == number:
                continue
            kept.append(attrs.evolve(statement, body=visit(statement.body)) if isinstance(statement, For) else statement)
        return tuple(kept)

    return visit(body)


def barriers(body):
    return sum(barriers(one.body) if isinstance(one, For) else isinstance(one, Barrier) for one in body)


def test_dropped_barriers_are_found_by_both_detectors():
    """Every inferred barrier is needed: without it the replay and the shadow memory both report a race."""
    planted = collections.Counter()
    for seed in itertools.count(SEED + 20_000_000):
        drawn, _ = drawn_strategy(seed)
        kernel = drawn.program.lowered
        has_sync = any(type(r).__name__ == "Sync" for step in drawn.strategy.steps for r in step.refinements)
        if has_sync or not barriers(kernel.body):
            continue
        number = random.Random(seed).randrange(barriers(kernel.body))
        faulty = attrs.evolve(kernel, body=without_barrier(kernel.body, number))
        assert any(one.severity == "error" for one in safety(faulty)), f"replay, barrier {number}{program_to_paste(drawn)}"
        arrays, _ = problem(drawn, seed)
        iterates = all(size > 16 for size in drawn.sizes.values()) and drawn.depth == 1
        try:
            simulate(faulty, arrays, drawn.symbols)
        except SimulationError as error:
            assert "barrier" in str(error) or "race" in str(error)  # a copy in flight is waited for, and then ordered by a barrier
            planted["found"] += 1
        else:
            assert not iterates, f"shadow memory, barrier {number}{program_to_paste(drawn)}"
            planted["loop ran once"] += 1
        if planted["found"] == FAULTS:
            print(dict(planted))
            return


@pytest.mark.nightly
def test_features_are_combined():
    """Each pair of common features is drawn together somewhere."""
    together = collections.Counter()
    for seed in range(SEED, SEED + 250 * SCALE):
        features = sorted(features_of(seed))
        together.update(itertools.combinations(features, 2))
    common = ("epilog", "symbolic", "strided", "swizzled storage", "no_sync", "vector to RF", "ld", "k loop", "to Warp", "float16", "pad")
    missing = [pair for pair in itertools.combinations(sorted(common), 2) if not together[pair]]
    assert len(missing) <= 4, missing
