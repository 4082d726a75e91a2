"""`fireiron.function("scan")`: scans of rows by the library, in one tile and in several."""

import numpy as np
import pytest

import fireiron
from fireiron.strategies import scan

RUNNING = {"scan": np.cumsum, "scan:product": np.cumprod}


def numbers(name, shape, dtype):
    random = np.random.default_rng(0)
    return (random.choice([1, -1], shape) if name == "scan:product" else random.integers(-3, 4, shape)).astype(dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize(("n", "dtype"), [(100, "float32"), (1001, "float16")])
def test_rows_of_one_tile(name, n, dtype):
    x = numbers(name, (2, 3, n), dtype)
    assert np.array_equal(fireiron.function(name)(x), RUNNING[name](x, axis=2).astype(dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("n", "dtype", "copy"), [(20000, "float32", True), (16401, "float32", False), (33024, "float16", True)])
def test_rows_of_several_tiles(n, dtype, copy):
    x = numbers("scan", (1, n), dtype)
    function = fireiron.function("scan")
    text = function.kernel(x).program.cuda
    assert "over the tiles of other blocks" in text and ("cp_async" in text) == copy
    assert np.array_equal(function(x), np.cumsum(x.astype(float), 1).astype(dtype))


def test_recurrences():
    random = np.random.default_rng(1)
    a, x = random.uniform(0.5, 1, (2, 200)).astype("float32"), random.standard_normal((2, 200)).astype("float32")
    state, expected = np.zeros(2), []
    for factor, value in zip(a.T.astype(float), x.T, strict=True):
        state = factor * state + value
        expected.append(state)
    assert np.allclose(fireiron.function("scan:recurrence")(a, x), np.stack(expected, 1), atol=1e-4)


@pytest.mark.parametrize("form", scan.FORMS)
@pytest.mark.parametrize("n", [1, 4096, 16384, 16385, 1 << 24])
def test_tiles_fit(form, n):
    """A longer row has tiles of at most 48 KB, for each form."""
    spec = scan.spec(4, n, form, dtype=fireiron.float32)
    values = scan.values(spec)
    tile = values["warps"] * values["vector"] * values["each"] * 32
    assert tile >= n if n <= scan.MOST else tile * 4 * (1 + (form == "recurrence")) <= scan.BYTES
