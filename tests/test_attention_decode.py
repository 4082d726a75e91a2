"""Attention of few queries to many keys in two kernels: parts of any size, keys in any order, lengths from memory.

The reference is a plain softmax, which does not use parts.
"""

import contextlib
import random

import numpy as np
import printed_text
import pytest
from faults import dropped
from ringed import errors

from fireiron import *
from fireiron.errors import DecompositionError, SimulationError
from fireiron.gpu import launch
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.strategies import attention_combine, attention_decode


def softmax(q, k, v, length=None):
    """Attention of `q[b,g,m,d]`, `k[b,n,g,d]` and `v[b,n,g,d]`; rows of sequences without keys are 0."""
    q, k, v = (one.astype(np.float64) for one in (q, k, v))
    seen = np.arange(k.shape[1]) < np.reshape(k.shape[1] if length is None else length, (-1, 1, 1, 1))
    scores = np.where(seen, np.einsum("bgmd,bngd->bgmn", q, k) * q.shape[-1] ** -0.5, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    return np.einsum("bgmn,bngd->bgmd", weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30), v)


def inputs(rows, keys, d, heads, batch):
    """Normally distributed float16, whose scores grow along the keys."""
    draw = np.random.default_rng(3).standard_normal
    growing = np.linspace(0.1, 4, keys)[None, :, None, None]
    arrays = draw((batch, heads, rows, d)), draw((batch, keys, heads, d)) * growing, draw((batch, keys, heads, d))
    return [one.astype(np.float16) for one in arrays]


def parts_of(rows, keys, d, size, heads=1, batch=1, **values):
    """The kernel that computes the parts."""
    spec = attention_decode.spec(rows, keys, d, heads, batch, size)
    return attention_decode.by_parts(spec.starter).with_(**{**attention_decode.values(spec), **values})(spec)


def near(got, expected):
    assert np.linalg.norm(got.astype(np.float64) - expected) < 8e-4 * np.linalg.norm(expected)


def test_parts_and_iterations_agree():
    attention_decode.definition(4, lengths=True).check({"m": 3, "n": 9, "d": 4, "p": 3, "b": 1, "g": 2}, seed=6)
    attention_combine.definition.check({"m": 3, "d": 4, "p": 9, "b": 1, "g": 2}, seed=6)


def test_decode():
    """Parts end inside iterations, the last one past the keys; some parts have no keys, and one sequence has none.

    NaN and infinity past a length reach no result.
    """
    q, k, v = inputs(4, 70, 16, 1, 3)
    length = np.array([70, 33, 0], np.int32)
    expected, unused = softmax(q, k, v, length), np.arange(70) >= length[:, None]
    k[unused], v[unused] = np.inf, np.nan
    transposed = np.ascontiguousarray(k.swapaxes(1, 2)).swapaxes(1, 2)  # the keys of a head are contiguous
    near(attention_decode.decode(q, transposed, v, length=length, size=32), expected)


@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """Rows that fill one tile and a part of another; the text itself, executed with threads in random order."""
    program = parts_of(17, 40, 16, 24, bn=16, stages=2).program("sm_80")
    assert not errors(program.ir)
    q, k, v = inputs(17, 40, 16, 1, 1)
    host = printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    parts = host.run(0, {"Q": q, "K": k, "V": v, "scale": np.float32(0.25)}, seed=4)
    combine = attention_combine.strategy(attention_combine.spec(17, 2, 16)).program("sm_80").ir
    assert not errors(combine)
    near(simulate(combine, {name: parts[name] for name in "PTS"}).outputs["O"], softmax(q, k, v))


def test_missing_synchronization_is_found():
    """The check reports the fault, or the result is right without it."""
    program = parts_of(4, 96, 16, 48, bn=16, stages=2).program("sm_80")
    q, k, v = inputs(4, 96, 16, 1, 1)
    arrays = {"Q": q, "K": k, "V": v, "scale": np.float32(0.25)}
    right = simulate(program.ir, arrays).outputs["P"]
    planted = list(dropped(program.ir))
    detected = [bool(errors(faulty)) for _, faulty in planted]
    assert sum(detected) >= 2
    for (_, faulty), fault in zip(planted, detected, strict=True):
        with contextlib.suppress(SimulationError):
            if not fault:
                np.testing.assert_array_equal(simulate(faulty, arrays, order=random.Random(2)).outputs["P"], right)


def test_iterations_are_those_of_the_part():
    """Masks by multiples of the loop's coordinate bound the loop; those by multiples of another one do not."""
    text = parts_of(4, 512, 64, 128, heads=2).cuda("sm_80")
    assert "const int n_hidden = block_p * 128;" in text and "for (int n = 0; n < block_p * 2 - n_hidden / 64 + 2; ++n)" in text
    doubled = Fused(
        name="doubled", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        init={"none": "s[m] = 0"},
        body={"mask": "t[m,n] = where(2 * n <= m, X[m,n], 0)", "sum": "s[m] += sum(n, t[m,n])"},
        final={"y": "y[m] = s[m]"},
    )  # fmt: skip
    with pytest.raises(DecompositionError, match="no step masks elements") as caught:
        doubled.tile(m=4).to(Block).split(n=32).skip_masked_tiles().tile(m=1).to(Thread).done()(doubled(m=8, n=64, dtype=float32)).cuda()
    assert "has n 2 times" in caught.value.got


def test_sizes_of_parts():
    assert attention_decode.size_for(4096, 64) == 512 and attention_decode.size_for(65536, 64) == 8192
    assert attention_decode.size_for(1000, 1) == 128 and attention_decode.size_for(1000, 2000) == 1024


def test_shapes_that_do_not_fit():
    q, k, v = inputs(4, 32, 16, 2, 1)
    with pytest.raises(ArgumentError, match="shapes do not match"):
        attention_decode.decode(q, k, v[:, :16])


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("target", (pytest.param("sm_80", marks=pytest.mark.nightly), "sm_90a"))
def test_compiled_without_spills(target):
    for kernel in attention_decode.kernels(4, 4096, 128, 8, 8, 512, architecture=target):
        resources = compile_cuda(kernel.program.cuda, target).resources[kernel.program.name]
        assert not resources.spill_stores and not resources.spill_loads and not resources.stack_frame
        assert ("griddepcontrol_wait();" in kernel.program.cuda) == (target == "sm_90a")


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy")
def test_on_a_gpu():
    """Successive calls, whose parts reuse the memory of the previous call."""
    cupy = pytest.importorskip("cupy")
    for sizes, length in (((4, 4096, 128, 2, 2), None), ((4, 1000, 64, 2, 3), [1000, 130, 0]), ((17, 777, 64, 1, 1), None)):
        data = [inputs(*sizes) for _ in range(2)]
        data[1][0] = data[1][0] * -2
        counts = None if length is None else cupy.array(length, dtype=np.int32)
        got = [attention_decode.decode(*map(cupy.asarray, data[call % 2]), length=counts) for call in range(10)]
        for call, result in enumerate(got):
            near(result.get(), softmax(*data[call % 2], length))
