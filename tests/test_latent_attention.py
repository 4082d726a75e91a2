"""`fireiron.latent_attention`: latent vectors in pages, in the simulator (oracle: softmax in float64 of the keys below the length).

Memory past the lengths and pages that no sequence uses are NaN, and unused table entries are no pages.
"""

import contextlib
import random

import numpy as np
import pytest
from faults import dropped
from ringed import errors

from fireiron import *
from fireiron import latent_attention as attend
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import attention_latent

LATENT, ROPE = 64, 32


def cache(lengths, heads=2, queries=1, page=16, pages=12, latent=LATENT, seed=0):
    """The arrays of a call, and the result and its log-sum-exp."""
    draw, batch, elements = np.random.default_rng(seed), len(lengths), latent + ROPE
    q = draw.standard_normal((batch, heads, queries, elements)).astype(np.float16)
    stored = draw.standard_normal((batch * pages + 1, page, elements)).astype(np.float16)
    table = draw.permutation(batch * pages + 1)[: batch * pages].reshape(batch, pages).astype(np.int32)
    unused, out, sums = np.ones(stored.shape[:2], bool), np.zeros((*q.shape[:3], latent)), np.full(q.shape[:3], -np.inf)
    for b, length in enumerate(lengths):
        n = np.arange(length)
        unused[table[b, n // page], n % page] = False
        keys = stored[table[b, n // page], n % page].astype(float)
        for h, i in np.ndindex(heads, queries):
            s = (keys @ q[b, h, i].astype(float) * elements**-0.5)[: max(length - queries + i + 1, 0)]
            if len(s):
                sums[b, h, i] = np.log(np.exp(s).sum())
                out[b, h, i] = np.exp(s - sums[b, h, i]) @ keys[: len(s), :latent]
        table[b, -(-length // page) :] = -1
    stored[unused] = np.nan
    return (q, stored, table, np.array(lengths, np.int32)), out, sums


def near(got, expected, bound=8e-4):
    assert np.isfinite(got).all() and np.linalg.norm(got.astype(float) - expected) <= bound * np.linalg.norm(expected)


def near_sums(got, expected):
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    np.testing.assert_allclose(np.where(np.isfinite(got), got, 0), np.where(np.isfinite(expected), expected, 0), atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("arch", "queries"), [("sm_80", 2), ("sm_90a", 1), pytest.param("sm_90a", 3, marks=pytest.mark.nightly)])
def test_pages(arch, queries):
    """Several queries are stored as (batch, m, heads, d); one result has three dimensions."""
    latent = 256 if arch == "sm_90a" else LATENT
    (q, *others), expected, sums = cache((130, 0, 64), queries=queries, latent=latent)
    q = np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    given = (q[:, :, 0] if queries == 1 else q, *others)
    got, logs = attend(*given, value_elements=latent, lse=True, arch=arch)
    near(got.reshape(expected.shape), expected)
    near_sums(logs.reshape(sums.shape), sums)
    assert ("wgmma" in attend.choice(*given, value_elements=latent, lse=True, arch=arch).why) == (arch == "sm_90a")


@pytest.mark.nightly
def test_contiguous_caches():
    (q, stored, table, lengths), expected, _ = cache((40, 17), pages=3)
    whole = stored[np.clip(table, 0, None)].reshape(2, 48, -1)
    for b, length in enumerate(lengths):
        whole[b, length:] = np.nan
    near(attend(q, whole, None, lengths, value_elements=LATENT), expected)


def test_definition_does_not_depend_on_iterations():
    attention_latent.definition(None, 2).check({"m": 4, "n": 9, "d": 4, "e": 2, "p": 3, "b": 2}, seed=6)


def test_ranges_cover_the_keys():
    """Whole tiles are distributed evenly; the last part has the rest."""
    lengths = np.array([0, 1, 63, 64, 65, 640, 1000], np.int32)
    definition = attention_latent.ranges(3)
    kernel = attention_latent.by_sequences(definition)(definition(b=7, p=4)).compile("sm_80")
    begin, end = kernel(lengths)
    for b, length in enumerate(lengths):
        keys = [n for first, last in zip(begin[b], end[b], strict=True) for n in range(first, last)]
        assert keys == list(range(length)) and (begin[b] % 64 == 0).all() and end[b, 2] == length // 64 * 64


def program():
    """Parts of whole tiles by wgmma, for one sequence."""
    fused = attention_latent.definition(16, clean=False)
    spec = attention_latent.spec(4, 128, 128, ROPE, 1, 1, 16, fused)
    return attention_latent.by_wgmma(fused, 128).with_(stages=2)(spec).program("sm_90a")


def test_missing_synchronization_is_found():
    """The check reports the fault, or the result is right without it."""
    bound = program()
    (q, stored, table, _), _, _ = cache((128,), heads=4, pages=8, latent=128)
    arrays = {"Q": q[:, :, 0, :128], "R": q[:, :, 0, 128:], "C": stored[:8, :, :128], "E": stored[:8, :, 128:]}
    arrays = {name: np.nan_to_num(np.ascontiguousarray(array)) for name, array in arrays.items()}
    arrays |= {"table": table % 8, "begin": np.zeros((1, 1), np.int32), "end": np.full((1, 1), 128, np.int32), "scale": np.float32(0.1)}
    right = simulate(bound.ir, arrays).outputs["P"]
    planted = list(dropped(bound.ir))[::4]
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) >= 2
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                np.testing.assert_array_equal(simulate(faulty, arrays, order=random.Random(2)).outputs["P"], right)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("clean", (False, pytest.param(True, marks=pytest.mark.nightly)))
def test_compiled_without_spills(clean):
    fused = attention_latent.definition(64, clean=clean, dtype=bfloat16, slices=1 if clean else 4)
    spec = attention_latent.spec(128, 8192, batch=32, page=64, fused=fused, dtype=bfloat16)
    by = attention_latent.by_warps if clean else attention_latent.by_wgmma
    bound = by(fused, 512).with_(**(attention_latent.values(spec) if clean else {"stages": 2}))(spec).program("sm_90a")
    resources = compile_cuda(bound.cuda, "sm_90a").resources[bound.name]
    assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value_elements": 96}, "no kernel supports keys and values of these sizes"),
        ({"value_elements": 0}, "value_elements must be a positive integer"),
        ({"out": np.zeros((1, 2, 1, 64), np.float32)}, "out has elements of float32"),
        ({"out": np.zeros((1, 1, 2, 64), np.float16)}, "out has another shape"),
        ({"lse": True, "out": np.zeros((1, 2, 1, 64), np.float16)}, "out has 1 arrays"),
        ({"arch": "sm_75"}, "no kernel supports this target"),
    ],
)
def test_options_that_are_refused(options, message):
    arrays, _, _ = cache((20,), pages=2)
    with pytest.raises(ArgumentError, match=message):
        attend(*arrays, **{"value_elements": LATENT, **options})


def test_arrays_that_do_not_fit():
    (q, stored, table, lengths), _, _ = cache((20,), pages=2)
    with pytest.raises(ArgumentError, match="the same elements"):
        attend(q[..., :64], stored, table, lengths)
    with pytest.raises(ArgumentError, match="page_table has elements of int64"):
        attend(q, stored, table.astype(np.int64), lengths, value_elements=LATENT)
    with pytest.raises(ArgumentError, match="must have the batch size of q"):
        attend(q, stored, None, lengths, value_elements=LATENT)
