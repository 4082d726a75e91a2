"""The kernel of `fireiron.optim.AdamW` in the simulator, and the rows of tensors by their addresses."""

import numpy as np
import pytest

from fireiron import *
from fireiron import optim
from fireiron.optim import parts_of
from fireiron.strategies import _adamw as adamw

KINDS = ((float32, float32), (bfloat16, bfloat16), (float16, float32))


@pytest.mark.parametrize("width", adamw.WIDTHS)
def test_step(width):
    """Rows in any order of four arrays; other rows keep their values."""
    random = np.random.default_rng(width)
    p, g, m, v = (np.abs(random.standard_normal((rows, width))).astype(np.float32) for rows in (50, 60, 40, 41))
    tables = [random.permutation(rows)[:13].astype(np.int32) for rows in (50, 60, 40, 41)]
    numbers = optim._Numbers(0.01, 0.9, 0.99, 1e-8, 0.1, 3)
    new = p.copy(), m.copy(), v.copy()
    kernel = adamw.by_rows(width)(adamw.spec(width, float32, float32)).compile("sm_90a")
    kernel(p, g, m, v, *tables, *numbers.scalars, out=new)
    at, of, mean, variance = tables
    want_m = 0.9 * m[mean] + 0.1 * g[of]
    want_v = 0.99 * v[variance] + 0.01 * g[of].astype(float) ** 2
    step = 0.01 / (1 - 0.9**3) * want_m / (np.sqrt(want_v / (1 - 0.99**3)) + 1e-8)
    for got, table, want in zip(new, (at, mean, variance), (p[at] * (1 - 0.01 * 0.1) - step, want_m, want_v), strict=True):
        assert np.allclose(got[table], want, rtol=1e-5, atol=1e-6)
    others = np.setdiff1d(np.arange(50), at)
    assert np.array_equal(new[0][others], p[others])


def test_moments_in_bfloat16():
    """Each result is rounded once."""
    random = np.random.default_rng(0)
    p, g, m, v = (np.abs(random.standard_normal((9, 8))).astype(bfloat16.to_numpy()) for _ in range(4))
    numbers, row = optim._Numbers(0.01, 0.9, 0.99, 1e-8, 0.1, 3), np.arange(9, dtype=np.int32)
    new = p.copy(), m.copy(), v.copy()
    spec = adamw.spec(8, bfloat16, bfloat16, bfloat16)
    adamw.by_rows(8)(spec).compile("sm_90a")(p, g, m, v, row, row, row, row, *numbers.scalars, out=new)
    assert np.allclose(new[1].astype(float), 0.9 * m.astype(float) + 0.1 * g.astype(float), rtol=2**-8)
    assert np.allclose(new[2].astype(float), 0.99 * v.astype(float) + 0.01 * g.astype(float) ** 2, rtol=2**-8)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_arrays_may_be_the_same(kinds):
    """The results replace the inputs, so no pointer is `__restrict__`, and a thread reads all its elements before it writes one."""
    text = adamw.by_rows(128)(adamw.spec(128, *kinds)).cuda("sm_90a")
    assert "__restrict__" not in text[text.index("__global__") :]
    kernel = text[text.index("__global__") :]
    assert kernel.index("&P2[") > max(kernel.rindex(f"&{name}[") for name in "PGMV")


def test_rows_of_tensors():
    """Whole aligned rows first; what remains has smaller rows; each element is in one row."""
    sizes, widths = (2, 4), (128, 8, 1)
    tensors = [((256 * 9, 512 * 50), 256), ((256 * 20, 512 * 10), 300), ((256 * 30 + 2, 512 * 40), 5), ((256 * 40 + 16, 512 * 80), 24)]
    rows = {place: set() for place in range(2)}
    for part in parts_of(tensors, sizes, widths):
        for place, size in enumerate(sizes):
            for first, count in zip(part.firsts[place], part.counts, strict=True):
                begin = part.bases[place] + first * part.width * size
                elements = {begin + number * size for number in range(count * part.width)}
                assert not elements & rows[place]
                rows[place] |= elements
    for place, size in enumerate(sizes):
        assert rows[place] == {addresses[place] + number * size for addresses, count in tensors for number in range(count)}


def test_numbers_of_rows_have_32_bits():
    """Tensors far apart are updated in two launches."""
    far = 1 << 40
    parts = parts_of([((0,), 128), ((far,), 128), ((far + 256,), 128)], (2,), (128, 1))
    assert [part.counts for part in parts] == [(1,), (1, 1)] and all(max(part.firsts[0]) < 1 << 31 for part in parts)


def test_refused_moments():
    assert optim._checked_moment("torch.bfloat16") == "bfloat16"
    with pytest.raises(ArgumentError, match="moments of this type"):
        optim._checked_moment("torch.float16")


@pytest.mark.parametrize(
    ("given", "words"),
    [((-1, (0.9, 0.99), 0, 0), "lr is out of range"), ((1, (0.9, 1), 0, 0), "betas are out of range"), ((1, (0.9, 0.99), -1, 0), "eps is")],
)
def test_refused_numbers(given, words):
    with pytest.raises(ArgumentError, match=words):
        optim._check_numbers(*given)
