"""`fireiron.paged_attention`: decoding with pages and lengths, in the simulator (oracle: softmax in float64 of the keys below the length).

Memory past the lengths, pages that no sequence uses and their table entries contain NaN, infinities and numbers that are no pages.
"""

import contextlib
import functools
import random

import attrs
import ml_dtypes
import numpy as np
import printed_text
import pytest
from faults import dropped
from ringed import errors

from fireiron import *
from fireiron import paged_attention as attend
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.paged_attention_kernels import Sizes, bound_of
from fireiron.sim import simulate
from fireiron.strategies import attention_combine, attention_paged

LENGTHS = (37, 0, 16, 1)


@attrs.frozen
class Cache:
    """Arrays of a call: queries (batch, heads, m, d), caches in pages, a table and lengths; and the options."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    table: np.ndarray
    lengths: np.ndarray
    factors: tuple = (1, 1)

    @property
    def arrays(self):
        return self.q, self.k, self.v, self.table, self.lengths

    def keys(self, cache, b, factor):
        """The keys or values of a sequence, (n, heads of keys, d)."""
        used = -(-int(self.lengths[b]) // cache.shape[1])
        return cache[self.table[b, :used]].reshape(-1, *cache.shape[2:])[: self.lengths[b]].astype(float) * np.reshape(factor, (-1, 1))

    def softmax(self, window=None, score=lambda s, m, n: s, sinks=None, causal=True):
        """The result and the log-sum-exp, (batch, heads, m, d) and (batch, heads, m)."""
        batch, heads, queries, d = self.q.shape
        out, sums = np.zeros(self.q.shape), np.full(self.q.shape[:3], -np.inf)
        for b, h in np.ndindex(batch, heads):
            keys, values = (
                self.keys(stored, b, factor)[:, h * stored.shape[2] // heads]
                for stored, factor in zip((self.k, self.v), self.factors, strict=True)
            )
            m, n = np.arange(queries)[:, None] + len(keys) - queries, np.arange(len(keys))
            s = score(self.q[b, h].astype(float) @ keys.T * d**-0.5, m, n)
            seen = (n <= m) | (not causal)
            seen &= (m < n + window) if window else True
            s = np.concatenate([np.where(seen, s, -np.inf), np.full((queries, 1), -np.inf if sinks is None else sinks[h])], 1)
            top = np.maximum(s.max(1, keepdims=True), -1e30)
            weights = np.exp(s - top)
            total = weights.sum(1, keepdims=True)
            with np.errstate(divide="ignore"):
                sums[b, h] = (np.log(total) + top)[:, 0]
            out[b, h] = weights[:, :-1] @ values / np.maximum(total, 1e-30)
        return out, sums


def cache(queries=1, heads=4, groups=2, d=16, page=16, pages=4, lengths=LENGTHS, dtype=np.float16, seed=0):
    """A cache in random pages; everything that no sequence uses is NaN or infinite, and unused table entries are no pages."""
    draw, batch = np.random.default_rng(seed), len(lengths)
    q = draw.standard_normal((batch, heads, queries, d)).astype(np.float16)
    k, v = (draw.standard_normal((batch * pages + 1, page, groups, d)).astype(dtype) for _ in range(2))
    table = draw.permutation(batch * pages + 1)[: batch * pages].reshape(batch, pages).astype(np.int32)
    unused = np.ones(k.shape[:2], bool)
    for b, length in enumerate(lengths):
        n = np.arange(length)
        unused[table[b, n // page], n % page] = False
        table[b, -(-length // page) :] = (-1, 2**31 - 1)[b % 2]
    k[unused], v[unused] = np.nan, (np.nan if dtype != np.float16 else np.inf)
    return Cache(q, k, v, table, np.array(lengths, np.int32))


def near(got, expected, bound=8e-4):
    assert np.isfinite(got).all() and np.linalg.norm(got.astype(float) - expected) <= bound * np.linalg.norm(expected)


def near_sums(got, expected):
    assert np.array_equal(np.isfinite(got), np.isfinite(expected))
    np.testing.assert_allclose(np.where(np.isfinite(got), got, 0), np.where(np.isfinite(expected), expected, 0), atol=1e-4)


def test_definitions_do_not_depend_on_iterations():
    sizes = {"m": 4, "n": 9, "d": 4, "p": 3, "b": 2, "g": 2, "r": 2, "i": 2}
    attention_paged.definition(4, None, 2, window=3, score="s - 0.1 * (m - n)", scaled=True).check(sizes, seed=6)
    combined = attention_combine.combined(lse=True, sinks=True, queries=2)
    combined.check({"m": 4, "d": 4, "p": 9, "b": 1, "g": 2, "r": 2, "i": 2}, seed=6)


def test_one_query():
    """Pages of the size of an iteration; lengths of 0, of 1, and of whole pages; the result of three dimensions."""
    given = cache()
    expected, sums = given.softmax()
    got, logs = attend(given.q[:, :, 0], *given.arrays[1:], lse=True)
    near(got, expected[:, :, 0])
    near_sums(logs, sums[:, :, 0])
    out = np.full_like(given.q, np.nan)
    assert attend(*given.arrays, out=out) is out
    np.testing.assert_array_equal(out[:, :, 0], got)


def test_several_queries_with_a_window_and_sinks():
    """Speculative tokens of models that store (batch, m, heads, d); a sequence has fewer keys than queries. Parts end in pages."""
    given = cache(queries=3, pages=9, lengths=(140, 2, 16))
    given = attrs.evolve(given, q=np.ascontiguousarray(given.q.swapaxes(1, 2)).swapaxes(1, 2))
    sinks = np.random.default_rng(1).standard_normal(4).astype(np.float32)
    got, logs = attend(*given.arrays, window=20, sinks=sinks, lse=True)
    expected, sums = given.softmax(window=20, sinks=sinks)
    near(got, expected)
    near_sums(logs, sums)
    assert got.strides == given.q.strides


def test_contiguous_caches_with_another_score():
    given = cache(queries=2, page=48, pages=1, lengths=(48, 7))
    given = attrs.evolve(given, k=given.k[given.table[:, 0]], v=given.v[given.table[:, 0]], table=np.arange(2, dtype=np.int32)[:, None])
    got = attend(*given.arrays[:3], None, given.lengths, score="5 * tanh(s / 5) - 0.1 * (m - n)")
    near(got, given.softmax(score=lambda s, m, n: 5 * np.tanh(s / 5) - 0.1 * (m - n))[0])
    near(attend(*given.arrays[:3], None, given.lengths, causal=False), given.softmax(causal=False)[0])


@pytest.mark.parametrize("factors", [(2,), pytest.param((), marks=pytest.mark.nightly)])
def test_8_bit_caches(factors):
    """Factors of the heads, and one factor."""
    given = cache(queries=2, dtype=ml_dtypes.float8_e4m3fn)
    ks, vs = (np.random.default_rng(seed).uniform(0.25, 2, factors).astype(np.float32) for seed in (1, 2))
    given = attrs.evolve(given, factors=(ks, vs))
    near(attend(*given.arrays, key_scale=ks, value_scale=vs), given.softmax()[0])


@pytest.mark.nightly
def test_bfloat16():
    given = cache()
    kinds = {name: getattr(given, name).astype(ml_dtypes.bfloat16) for name in "qkv"}
    given = attrs.evolve(given, **kinds)
    near(attend(*given.arrays), attrs.evolve(given, q=given.q.astype(float)).softmax()[0], 6e-3)


def test_a_bound_of_lengths_reads_a_part_of_the_table():
    assert bound_of(Sizes(1, 8, 8, 1, 4096, 64, 16), 1100) == 2048 and bound_of(Sizes(1, 8, 8, 1, 1100, 64, None), 1030) == 1100
    assert bound_of(Sizes(1, 8, 8, 1, 8192, 64, 48), 1) == 1056
    given = cache(pages=72, lengths=(37, 0), groups=1, heads=1)
    bounded = attend.kernel(*given.arrays, max_length=40).program.spec
    assert str(bounded.size("n")) == "1024" and str(bounded.operands["table"].tensor.array.shape[1]) == "64"


@functools.cache
def program_of(queries=1, page=16, size=32, bn=16, stages=2, keys=64, d=16, target="sm_80"):
    fused = attention_paged.definition(size, page, queries)
    spec = attention_paged.spec(2 * queries, keys, d, 2, len(LENGTHS), page, queries, size, fused, pages=17)
    return attention_paged.by_parts(fused).with_(bm=16, bn=bn, stages=stages)(spec).program(target)


def inputs(given, queries=1):
    batch, heads, _, d = given.q.shape
    q = given.q.reshape((batch, 2, heads // 2, queries, d) if queries > 1 else (batch, 2, heads // 2, d))
    return {
        "Q": q,
        "K": given.k,
        "V": given.v,
        "table": given.table,
        "length": given.lengths,
        "scale": np.float32(given.q.shape[-1] ** -0.5),
    }


def combined(parts, target="sm_80"):
    """The result of parts of 32 keys, (batch, heads, 1, d)."""
    whole = attention_combine.strategy(attention_combine.spec(2, 2, 16, 2, len(LENGTHS))).program(target).ir
    return simulate(whole, {name: parts[name] for name in "PTS"}).outputs["O"].reshape(len(LENGTHS), 4, 1, 16)


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The text itself, executed with threads in random order. It clamps the unused entries of the table, which are no pages."""
    given, program = cache(), program_of()
    host = printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    near(combined(host.run(0, inputs(given), seed=4)), given.softmax()[0])


@functools.cache
def used():
    """Arrays whose unused table entries are pages, as the simulator requires."""
    given = cache()
    return attrs.evolve(given, table=np.where((given.table < 0) | (given.table > 16), 0, given.table).astype(np.int32))


def test_missing_synchronization_is_found():
    """The check reports the fault, or the result is right without it."""
    program, arrays = program_of(), inputs(used())
    right = simulate(program.ir, arrays).outputs["P"]
    planted = list(dropped(program.ir))
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) >= 2
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                np.testing.assert_array_equal(simulate(faulty, arrays, order=random.Random(2)).outputs["P"], right)


def test_memory_past_the_length_has_no_effect():
    """Results are equal, bit by bit, with NaN and with other numbers there."""
    given = used()
    finite = attrs.evolve(given, k=np.nan_to_num(given.k, nan=1), v=np.nan_to_num(given.v, nan=1, posinf=1))
    results = [simulate(program_of().ir, inputs(one)).outputs["P"] for one in (given, finite)]
    np.testing.assert_array_equal(*results)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("queries", (1, pytest.param(4, marks=pytest.mark.nightly)))
def test_compiled_without_spills(queries):
    fused = attention_paged.definition(2048, 64, queries)
    spec = attention_paged.spec(4 * queries, 8192, 128, 8, 16, 64, queries, 2048, fused)
    program = attention_paged.by_parts(fused, programmatic_launch=True).with_(**attention_paged.values(spec))(spec).program("sm_90a")
    resources = compile_cuda(program.cuda, "sm_90a").resources[program.name]
    assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": np.zeros((3, 16, 2, 32), np.float16)}, "the same shape"),
        ({"table": np.zeros((2, 4), np.int32)}, "page_table has another shape"),
        ({"table": np.zeros((4, 4), np.int64)}, "table has elements of int64"),
        ({"lengths": np.zeros(3, np.int32)}, "lengths has another shape"),
        ({"table": None}, "contiguous caches must have the batch size"),
        ({"q": np.zeros((4, 3, 1, 16), np.float16)}, "the 2 heads of keys do not divide the 3 heads"),
        ({"q": np.zeros((4, 4, 1, 16), np.float32)}, "no kernel supports the element type of q"),
    ],
)
def test_arrays_that_do_not_fit(change, message):
    with pytest.raises(ArgumentError, match=message):
        attend(*attrs.evolve(cache(), **change).arrays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be the number of keys"),
        ({"max_length": True}, "max_length must be a bound"),
        ({"score": 3}, "score must be a formula"),
        ({"key_scale": np.ones(2, np.float32)}, "pass both key_scale and value_scale"),
        ({"sinks": np.ones(3, np.float32)}, r"sinks has the shape \(3,\)"),
        ({"lse": True, "out": np.zeros((4, 4, 1, 16), np.float16)}, "out has 1 arrays"),
        ({"arch": "sm_75"}, "no kernel supports this target"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        attend(*cache().arrays, **options)


def test_empty_arrays():
    given = cache(pages=0, lengths=(0, 0))
    got, sums = attend(*given.arrays, lse=True)
    assert not got.any() and (sums == -np.inf).all()
