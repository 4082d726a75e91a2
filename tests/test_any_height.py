"""`hopper:any_height`: tiles whose height is any multiple of 8, and how their heights are chosen."""

import numpy as np
import pytest

from fireiron import *
from fireiron.check import check
from fireiron.language.library import default_strategy, find
from fireiron.strategies import hopper, hopper_batched

RANDOM = np.random.default_rng(5)
NAME = "hopper:any_height"
CASES = (
    ((150, 200, 136), {"bm": 104, "bn": 128, "epi_m": 104}, ColMajor),
    ((39, 72, 136), {"bm": 24, "bn": 64, "bk": 128, "epi_m": 24, "cluster_m": 2}, RowMajor),
    ((70, 200, 72), {"bm": 40, "bn": 64, "epi_m": 40, "cluster_m": 2, "cluster_n": 4}, RowMajor),
    ((300, 520, 72), {"bm": 40, "bn": 256, "wn": 128, "epi_m": 40, "cluster_m": 8}, RowMajor),
)


@pytest.mark.parametrize(("shape", "values", "order"), CASES, ids=str)
def test_tiles_of_any_height_are_right(shape, values, order):
    M, N, K = shape
    spec = hopper.spec(M, N, K, B=order)
    kernel = default_strategy(NAME, values, spec)(spec).compile("sm_90a")
    assert not [one for one in check(kernel.program.ir) if one.severity == "error"]
    a, b = (RANDOM.standard_normal(size).astype("float16") for size in ((M, K), (K, N)))
    given = b if order == RowMajor else np.asfortranarray(b)
    result = kernel(a, given)
    assert np.abs(result - a.astype("float64") @ b.astype("float64")).max() < 0.1


def test_batches_have_tiles_of_any_height():
    """The smallest tile for each matrix of a batch, with a result of 32 bits as parts of K have."""
    spec = hopper_batched.spec(50, 72, 136, batch=2, c_dtype=float32)
    values = min(hopper.heights(50, 72, 2, 4), key=lambda values: values["bm"] * values["bn"])
    kernel = default_strategy("hopper_batched:any_height", values, spec)(spec).compile("sm_90a")
    a, b = (RANDOM.standard_normal(size).astype("float16") for size in ((2, 50, 136), (2, 136, 72)))
    assert np.abs(kernel(a, b) - a.astype("float64") @ b.astype("float64")).max() < 1e-2


@pytest.mark.parametrize(
    "shape", [(851, 1048, 6048), (211, 3920, 1832), (2380, 1576, 1064), (40, 64, 64), (8192, 8192, 512), (7952, 488, 464)]
)
def test_heights_divide_the_rows_equally(shape):
    """No smaller height has as few tiles along the rows, except that a multiple of 64 selects the other form."""
    M, N, _ = shape
    tunables = find(NAME).strategy.tunables()
    for values in hopper.heights(M, N):
        height = values["bm"]
        assert all(value in tunables[name].values for name, value in values.items())
        assert height % 8 == 0 and height % 64 and height % values["epi_m"] == 0 and values["stages"] >= 3
        smaller = height - 8 if (height - 8) % 64 else height - 16
        assert height == hopper.LEAST_HEIGHT or -(-M // smaller) > -(-M // height)


def test_the_values_of_other_strategies_are_unchanged():
    """The strategy is separate, so records of `hopper` remain valid."""
    assert 104 not in find("hopper").strategy.tunables()["bm"].values and 128 not in find(NAME).strategy.tunables()["bm"].values
