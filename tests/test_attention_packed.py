"""Attention of packed sequences: each query has its own range of keys, by mma.sync and by wgmma; injected faults are detected."""

import contextlib
import functools
import itertools
import random

import numpy as np
import pytest
from faults import dropped
from near import Near
from ringed import errors

from fireiron import *
from fireiron.check import AccessTrace, check
from fireiron.check.access_trace import assumed_elements
from fireiron.cost import predict
from fireiron.draw import draw
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import attention_packed

OFFSETS = np.array([0, 20, 21, 21, 90, 128], np.int32)
"""Five sequences: one of one token, an empty one, and some that begin and end inside a tile."""

SMALL = {"bm": 64, "bn": 32}


def drawn(tokens, heads, groups, d, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(generator.standard_normal((tokens, count, d)).astype(np.float16) for count in (heads, groups, groups))


def expected(q, k, v, offsets, causal=False, window=None):
    """The softmax of each sequence, in float64."""
    result, shared = np.zeros(q.shape), q.shape[1] // k.shape[1]
    for begin, end in itertools.pairwise(offsets):
        if end == begin:
            continue
        m, n = np.ogrid[: end - begin, : end - begin]
        for head in range(q.shape[1]):
            keys, values = (one[begin:end, head // shared].astype(float) for one in (k, v))
            scores = q[begin:end, head].astype(float) @ keys.T * q.shape[2] ** -0.5
            scores = np.where((n <= m) | (not causal and window is None), scores, -np.inf)
            scores = np.where(m < n + window, scores, -np.inf) if window else scores
            weights = np.exp(scores)
            result[begin:end, head] = weights / weights.sum(1, keepdims=True) @ values
    return result


@functools.cache
def program(strategy=attention_packed.hopper, target="sm_90a"):
    chosen = {**SMALL, **({"epi_n": 16} if target == "sm_90a" else {})}
    return strategy.with_(**chosen)(attention_packed.spec(64, 128, 16, 2)).program(target)


def arrays_of(options, d=16):
    q, k, v = drawn(128, 1, 1, d)
    low, high = (one.reshape(2, 64) for one in attention_packed.ranges(OFFSETS, 128, **options))
    given = {"Q": q.reshape(2, 64, 1, 1, d), "K": k, "V": v, "scale": np.float32(d**-0.5)}
    given |= dict(zip(attention_packed.RANGES, (*attention_packed.of_tiles(low, high), low, high), strict=True))
    return given, expected(q, k, v, OFFSETS, **options)


@pytest.mark.parametrize(
    ("strategy", "target", "options"),
    [
        (attention_packed.hopper, "sm_90a", {"causal": True}),
        pytest.param(attention_packed.hopper, "sm_90a", {"window": 9}, marks=pytest.mark.nightly),
        pytest.param(attention_packed.hopper, "sm_90a", {}, marks=pytest.mark.nightly),
        pytest.param(attention_packed.strategy, "sm_80", {"causal": True}, marks=pytest.mark.nightly),
    ],
)
def test_simulated(strategy, target, options):
    """Blocks of keys of other sequences are skipped; an iteration with only masked keys changes nothing."""
    packed, (arrays, right) = program(strategy, target), arrays_of(options)
    assert not errors(packed.ir)
    Near(packed.spec, arrays, {"O": right}).require(simulate(packed.ir, arrays, order=random.Random(1)).outputs)


def test_numbers_that_are_not_finite_reach_no_other_block():
    """A key that is NaN changes only its own queries, also of those in its tile. A value reaches tiles that read its block of keys."""
    packed, (arrays, right) = program(), arrays_of({"causal": True})
    arrays["K"][5], arrays["V"][100] = np.nan, np.inf  # of the first sequence; of the last one, which only the second tile reads
    got = simulate(packed.ir, arrays).outputs["O"].reshape(right.shape)
    assert np.isnan(got[5:20]).all(), "queries that attend to the key"
    for own in (slice(0, 5), slice(20, 64)):
        assert np.linalg.norm(got[own] - right[own]) < 8e-4 * np.linalg.norm(right[own])


@pytest.mark.nightly
def test_attend(monkeypatch):
    """Tokens that fill no tile are a separate launch; heads share keys."""
    monkeypatch.setattr(attention_packed, "TILE", 64)
    q, k, v = drawn(140, 2, 1, 32)
    offsets = np.append(OFFSETS, 140).astype(np.int32)
    for architecture, options in (("sm_90a", {"window": 30}), ("sm_80", {"causal": True})):
        got = attention_packed.attend(q, k, v, offsets, architecture=architecture, **options)
        right = expected(q, k, v, offsets, **options)
        assert np.linalg.norm(got - right) / np.linalg.norm(right) < 8e-4
    with pytest.raises(ArgumentError, match="shapes do not match"):
        attention_packed.attend(q, k[:, :, :16], v, offsets)


def test_ranges():
    low, high = attention_packed.ranges(OFFSETS, 130, causal=True, window=3)
    assert list(low[18:24]) == [16, 17, 20, 21, 21, 21] and list(high[18:24]) == [19, 20, 21, 22, 23, 24]
    assert (high[128:] <= low[128:]).all()  # past the last sequence all keys are masked
    keys = np.array([0, 5, 5, 9, 9, 12], np.int32)
    low, high = attention_packed.ranges(OFFSETS, 128, keys)
    assert set(zip(low, high)) == {(0, 5), (5, 5), (9, 9), (9, 12)}


@pytest.mark.nightly
def test_missing_synchronization_is_found():
    """The check reports the fault; otherwise the simulator does, or the result is right without it."""
    packed, (arrays, right) = program(), arrays_of({"causal": True})
    near, planted = Near(packed.spec, arrays, {"O": right}), list(dropped(packed.ir))
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) > 8
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                near.require(simulate(faulty, arrays, order=random.Random(2)).outputs)


@pytest.mark.nightly
@pytest.mark.skipif(not any(one.serves("sm_90a") for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("d", (64, 96, 128, 256))
def test_no_spills(d):
    """Neither on Hopper nor before, for any number of tiles and keys; no MMAs are serialized."""
    spec = attention_packed.spec(128, sym("N"), d, sym("T"), 16)
    for strategy, target, values in (
        (attention_packed.hopper, "sm_90a", attention_packed.hopper_values(spec)),
        (attention_packed.strategy, "sm_90", attention_packed.values(spec)),
    ):
        known = {name: value for name, value in values.items() if name in strategy.tunables()}
        packed = strategy.with_(**known)(spec).program(target)
        resources = compile_cuda(packed.cuda, target).resources[packed.name]
        assert not resources.spill_stores and not resources.spill_loads


def test_outputs_assume_the_longest_ranges():
    """Findings, predicted time and pictures of a kernel whose ranges are unknown."""
    program = attention_packed.strategy.with_(bm=64, wm=16)(attention_packed.spec(64, 100, 64)).program("sm_80")
    assert {one.severity for one in check(program.ir)} == {"note"}
    assert predict(program).us > 0 and draw(program, "tiles").shapes
    values = {name: one.value for name, one in assumed_elements(AccessTrace(program.ir), {}).items()}
    assert values["begin[]"] == 0 < values["end[]"]
