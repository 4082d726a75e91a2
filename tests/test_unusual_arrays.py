"""Arrays that PyTorch and NumPy multiply and that kernels cannot read as stored: strides, reversed and repeated elements, empty arrays."""

import numpy as np
import pytest

from fireiron import attention, matmul
from fireiron.copies import is_matrix_readable
from fireiron.errors import ArgumentError

RANDOM = np.random.default_rng(7)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def float16_array(*shape):
    return RANDOM.standard_normal(shape).astype("float16")


def equal_to(result, wanted, within=1e-4):
    assert result.shape == wanted.shape
    assert np.abs(result.astype("float64") - wanted).max(initial=0) < within


# ---------------------------------------------------------------------------------------------- products

A, B, BIAS, STACK = floats(6, 16), floats(8, 5), floats(10), floats(3, 6, 16)

ODD = {
    "a step along columns": (A[:, ::2], B),
    "rows backwards": (A[::-1, :8], B),
    "columns backwards": (A[:, 7::-1], B),
    "one row for all": (A[:, :8], np.broadcast_to(B[:1], (8, 5))),
    "one column for all": (A[:, :8], np.broadcast_to(B[:, :1], (8, 5))),
    "rows that overlap": (np.lib.stride_tricks.sliding_window_view(floats(13), 8), B),
    "a stack with a step": (STACK[:, :, ::2], B),
    "a stack backwards": (STACK[::-1, :, :8], B),
    "many dimensions": (floats(2, 3, 6, 16)[..., ::2], B),
    "vectors": (A[:, ::2], floats(16)[::2]),
    "a vector backwards": (floats(16)[14::-2], B),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", ODD)
def test_products_of_arrays_with_unusual_strides(case):
    a, b = ODD[case]
    equal_to(matmul(a, b), a @ b)


def test_a_result_with_unusual_strides():
    """Elements between those of the result keep their values."""
    out = np.full((6, 10), 7, "float32")
    target = out[:, ::2]
    assert matmul(A[:, :8], B, target) is target
    equal_to(target, A[:, :8] @ B)
    assert (out[:, 1::2] == 7).all()
    matmul(A[:, ::2], B, target, epilogue="2 * acc")
    equal_to(target, 2 * (A[:, ::2] @ B))
    assert (out[:, 1::2] == 7).all()


def test_further_outputs_that_lie_otherwise():
    """Each has the type of its array."""
    out, sums = np.zeros((6, 10), "float32"), np.zeros(12, "float32")
    text = "C[m,n] = relu(acc); rows[m] = sum(n, acc)"
    targets = {"C": out[:, ::2], "rows": sums[::-2]}
    matmul(A[:, :8], B, targets, epilogue=text)
    equal_to(targets["C"], np.maximum(A[:, :8] @ B, 0))
    equal_to(targets["rows"], (A[:, :8] @ B).sum(1))


@pytest.mark.parametrize(
    ("text", "given", "wanted"),
    [
        ("relu(acc + bias[n])", {"bias": BIAS[::2]}, lambda c: np.maximum(c + BIAS[::2], 0)),
        ("acc + bias[n]", {"bias": BIAS[4::-1]}, lambda c: c + BIAS[4::-1]),
        ("acc + R[m,n]", {"R": A[:, 10:0:-2]}, lambda c: c + A[:, 10:0:-2]),
    ],
    ids=["a step", "backwards", "a matrix with a step backwards"],
)
def test_operands_of_epilogues(text, given, wanted):
    equal_to(matmul(A[:, ::2], B, epilogue=text, **given), wanted(A[:, ::2] @ B))


EMPTY = (
    *(((0, 4), (4, 3)), ((4, 0), (0, 3)), ((4, 3), (3, 0)), ((0, 4, 5), (5, 3)), ((2, 4, 0), (0, 3)), ((2, 0, 3), (2, 3, 5))),
    *(((0,), (0,)), ((0,), (0, 5)), ((2, 0, 4, 5), (5, 3)), ((5, 2, 4, 0), (5, 2, 0, 3))),
)


@pytest.mark.parametrize(("a", "b"), EMPTY, ids=str)
def test_products_without_elements(a, b):
    """Sums without terms are zeros."""
    left, other = np.ones(a, "float32"), np.ones(b, "float32")
    result = matmul(left, other)
    assert result.dtype == np.float32 and result.shape == (left @ other).shape and not result.any()


def test_messages_for_products_without_elements():
    none, other = np.ones((4, 0), "float16"), np.ones((0, 3), "float16")
    assert matmul(none, other, c_dtype="float32").dtype == np.float32
    out = np.full((4, 3), 7, "float16")
    assert matmul(none, other, out) is out and not out.any()
    equal_to(matmul(none, other, epilogue="acc + bias[n]", bias=float16_array(3) * 0 + 2), np.full((4, 3), 2.0))
    rows = matmul(np.ones((0, 4), "float32"), floats(4, 3), epilogue="C[m,n] = acc; rows[m] = sum(n, acc)", types={"rows": "float64"})
    assert [one.shape for one in rows] == [(0, 3), (0,)] and rows[1].dtype == np.float64
    for a, b, message in (
        (np.ones((0, 4), "float32"), np.ones((5, 3), "float32"), "a has 4 columns"),
        (np.ones((0, 4), "float32"), np.ones((4, 3), "float16"), "a has the type float32"),
        (np.ones((0, 4), "complex64"), np.ones((4, 3), "complex64"), "no kernel supports its element type"),
    ):
        with pytest.raises(ArgumentError, match=message):
            matmul(a, b)
    with pytest.raises(ArgumentError, match="out has the shape"):
        matmul(none, other, np.zeros((4, 4), "float16"))
    with pytest.raises(ArgumentError, match="rows of the epilogue reduces no elements"):
        matmul(np.ones((2, 4), "float32"), np.ones((4, 0), "float32"), epilogue="C[m,n] = acc; rows[m] = sum(n, acc)")
    with pytest.raises(ArgumentError, match="no kernel is chosen"):
        matmul.choice(none, other)


def test_a_result_that_repeats_elements_is_refused():
    for out in (
        np.broadcast_to(np.zeros((1, 5), "float32"), (6, 5)),
        np.lib.stride_tricks.as_strided(np.zeros(6, "float32"), (6, 5), (4, 0)),
    ):
        for options in ({}, {"epilogue": "2 * acc"}):
            with pytest.raises(ArgumentError, match="out repeats elements"):
                matmul(A[:, :8], B, out, **options)


def test_copies_are_not_made_on_a_stream_of_the_caller():
    for arrays, options in (((A[:, ::2], B), {}), ((A[:, ::2], B), {"epilogue": "2 * acc"}), ((A[:0], floats(16, 3)), {})):
        with pytest.raises(ArgumentError, match="stream= is not supported"):
            matmul(*arrays, stream=1, **options)


def test_the_choice_is_that_for_the_copies():
    assert matmul.choice(A[:, ::2], B).why == matmul.choice(np.ascontiguousarray(A[:, ::2]), B).why
    assert matmul.kernel(A[:, ::2], B, epilogue="2 * acc").program.name


@pytest.mark.parametrize(
    ("shape", "steps", "readable"),
    [
        ((4, 8), (8, 1), True),
        ((4, 8), (1, 4), True),
        ((4, 8), (1, 3), False),
        ((4, 8), (7, 1), False),
        ((1, 8), (0, 1), True),
        ((1, 8), (0, 3), True),
        ((4, 1), (3, 0), True),
        ((4, 1), (0, 0), False),
        ((2, 4, 8), (-32, 8, 1), False),
        ((1, 4, 8), (-32, 8, 1), True),
        ((2, 4, 8), (0, 8, 1), True),
        ((8,), (3,), True),
        ((8,), (-1,), False),
    ],
)
def test_readable_arrays(shape, steps, readable):
    assert is_matrix_readable(shape, steps) == readable


# ---------------------------------------------------------------------------------------------- attention


def attended(q, k, v, causal=False):
    """The result and the log-sum-exp, in float64."""
    q, k, v = (one.astype("float64") for one in (q, k, v))
    scores = q @ np.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = np.where(np.arange(q.shape[-2])[:, None] >= np.arange(k.shape[-2]), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    parts = np.exp(scores - top)
    return parts / parts.sum(-1, keepdims=True) @ v, (top + np.log(parts.sum(-1, keepdims=True)))[..., 0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("elements", [8, 24, 72])
def test_heads_of_any_multiple_of_8(elements):
    q, k, v = float16_array(1, 2, 9, elements), float16_array(1, 2, 11, elements), float16_array(1, 2, 11, elements)
    wanted, sums = attended(q, k, v, causal=True)
    result, logs = attention(q, k, v, causal=True, lse=True)
    equal_to(result, wanted, 4e-3)
    equal_to(logs, sums, 1e-2)
    assert result.flags.c_contiguous
    out = np.zeros_like(q)
    assert attention(q, k, v, causal=True, out=out) is out
    equal_to(out, wanted, 4e-3)


WIDE = float16_array(1, 2, 11, 64)


@pytest.mark.parametrize(
    "arrays",
    [
        (float16_array(1, 2, 9, 64)[..., ::2], WIDE[..., ::2], WIDE[..., 1::2]),
        (float16_array(1, 2, 9, 32)[:, :, ::-1], WIDE[..., :32], WIDE[..., 32:]),
        (np.moveaxis(float16_array(64, 9, 2, 1), (3, 2, 1, 0), (0, 1, 2, 3)), WIDE, WIDE),
        (float16_array(1, 2, 9, 64), np.broadcast_to(WIDE[:, :1], WIDE.shape), np.broadcast_to(WIDE[:, :1], WIDE.shape)),
    ],
    ids=["a step", "backwards", "elements of a head apart", "one head for all"],
)
def test_attention_of_arrays_with_unusual_strides(arrays):
    equal_to(attention(*arrays), attended(*arrays)[0], 4e-3)


def test_an_attention_result_with_unusual_strides():
    out = np.zeros((1, 2, 11, 128), "float16")
    attention(WIDE, WIDE, WIDE, out=out[..., ::2])
    equal_to(out[..., ::2], attended(WIDE, WIDE, WIDE)[0], 4e-3)
    assert not out[..., 1::2].any()
    with pytest.raises(ArgumentError, match="several indices of out share an element"):
        attention(WIDE, WIDE, WIDE, out=np.broadcast_to(out[:1, :1, :, ::2], WIDE.shape))
    with pytest.raises(ArgumentError, match="stream= is not supported"):
        attention(WIDE[..., ::2], WIDE[..., ::2], WIDE[..., ::2], stream=1)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [((0, 2, 9, 16), (0, 2, 11, 16)), ((1, 0, 9, 16), (1, 0, 11, 16)), ((1, 2, 0, 16), (1, 2, 11, 16)), ((1, 2, 9, 16), (1, 2, 0, 16))],
    ids=["no batch", "no head", "no query", "no key"],
)
def test_attention_without_elements(queries, keys):
    result, logs = attention(float16_array(*queries), float16_array(*keys), float16_array(*keys), lse=True)
    assert result.shape == queries and logs.shape == queries[:-1] and result.dtype == np.float16 and logs.dtype == np.float32
    assert not result.any() and np.isneginf(logs).all()


def test_a_fully_masked_query_has_the_result_of_no_keys():
    """`window` masks all keys for queries far past the last one."""
    result, logs = attention(float16_array(1, 1, 40, 16), WIDE[:, :1, :8, :16], WIDE[:, :1, :8, :16], window=1, lse=True)
    assert not result[0, 0, -1].any() and np.isneginf(logs[0, 0, -1])


def test_attention_without_elements_reports_no_choice():
    none = float16_array(1, 2, 0, 16)
    for ask in (attention.choice, attention.kernel):
        with pytest.raises(ArgumentError, match="no element"):
            ask(none, WIDE[..., :16], WIDE[..., :16])
    with pytest.raises(ArgumentError, match="the 0 heads of k do not divide the 2 heads of q"):
        attention(float16_array(1, 2, 9, 16), float16_array(1, 0, 9, 16), float16_array(1, 0, 9, 16))
