"""`skip_masked_tiles()` with masks in several steps: a failing condition applies to all of them (oracle: NumPy, and the same without it)."""

import random
import re

import numpy as np
import pytest

from fireiron import *
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.stepping.masks import AtLeast, failing

element = MatMul.tile(1, 1).to(Thread).split(1).tile(1, 1).done()


def query_gradient(first="n <= m", second="n <= m", keep="0"):
    """The gradient of causal attention for its queries: probabilities and their gradients have a mask each."""
    return Fused(
        name="query_gradient", dims="m n d", loop="n",
        operands={"Q": "m d", "K": "n d", "V": "n d", "dO": "m d", "L": "m", "D": "m", "dQ": "m d"},
        init={"zero": "acc[m,d] = 0"},
        body={
            "score": "s[m,n] = sum(d, Q[m,d] * K[n,d])",
            "p": f"p[m,n] = where({first}, exp2(s[m,n] - L[m]), {keep})",
            "dp": "dp[m,n] = sum(d, dO[m,d] * V[n,d])",
            "ds": f"ds[m,n] = where({second}, p[m,n] * (dp[m,n] - D[m]), 0)",
            "add": "acc[m,d] += sum(n, ds[m,n] * K[n,d])",
        },
        final={"store": "dQ[m,d] = acc[m,d]"},
    )  # fmt: skip


def bound(definition, skip=True, m=32, n=32):
    chain = definition.tile(m=8).to(Block).split(n=4)
    chain = chain.skip_masked_tiles() if skip else chain
    for name in ("s", "p", "dp", "ds"):
        chain = chain.set_memory(name, SH)
    for step in ("score", "dp", "add"):
        chain = chain.step(step, element)
    return chain.done()(definition(m=m, n=n, d=4, dtype=float32))


def iterations(strategy):
    return re.search(r"for \(int n = 0; n < (.*); \+\+n\)", strategy.cuda("sm_80"))[1]


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({}, "block * 2 + 2"),
        ({"second": "n <= m and n < size(n)"}, "block * 2 + 2"),
        ({"second": "n < m"}, "block * 2 + 2"),  # whenever `n <= m` fails, the tighter one fails
        ({"first": "n <= m + 4", "second": "n <= m"}, "min(block * 2 + 2, min(8, block * 2 + 3))"),  # both bound it
        ({"first": "n <= m", "second": "n <= m + 4"}, "min(8, block * 2 + 3)"),  # p is 0 beyond it, times a possibly infinite value
        ({"first": "n < size(n)"}, "block * 2 + 2"),
    ],
    ids=str,
)
def test_iterations_that_all_masks_hide_are_left_out(masks, expected):
    definition = query_gradient(**masks)
    assert iterations(bound(definition)) == expected and iterations(bound(definition, skip=False)) == "8"


@pytest.mark.parametrize("sizes", [(32, 32), (27, 32), (32, 19), (13, 30)], ids=str)
@pytest.mark.parametrize("masks", [{}, {"second": "n < m"}, {"first": "n <= m", "second": "n <= m + 4"}], ids=str)
def test_the_result_is_that_of_all_iterations(masks, sizes):
    definition = query_gradient(**masks)
    rng = np.random.default_rng(7)
    m, n = sizes
    shapes = {"Q": (m, 4), "K": (n, 4), "V": (n, 4), "dO": (m, 4), "L": (m,), "D": (m,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    skipping, plain = (bound(definition, skip, *sizes) for skip in (True, False))
    results = [simulate(one.program("sm_80").ir, arrays, order=random.Random(1)).outputs["dQ"] for one in (skipping, plain)]
    assert np.array_equal(*results)
    np.testing.assert_allclose(results[0], plain.spec.reference(*arrays.values()), rtol=1e-4, atol=1e-4)


def test_masks_that_together_mask_nothing_are_refused():
    """Probabilities that are 1 where masked add to the sum in each iteration."""
    with pytest.raises(DecompositionError, match="an iteration in which p masks all elements changes acc"):
        bound(query_gradient(first="n <= m", second="size(n) <= 1", keep="1")).cuda("sm_80")


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("index_n[n] <= index_m[m]", True),
        ("index_n[n] < index_m[m]", True),
        ("index_m[m] >= index_n[n] + 3", True),
        ("index_n[n] < index_m[m] + 1", True),
        ("index_n[n] < 4 and index_n[n] <= index_m[m]", True),
        ("index_n[n] <= index_m[m] + 1", False),
        ("index_m[m] <= index_n[n]", False),
        ("2 * index_n[n] <= 2 * index_m[m]", False),  # true as well; nothing is concluded about other factors
        ("index_n[n] <= index_m[m] or index_n[n] < 4", False),
        ("x[m,n] <= 1", False),
    ],
)
def test_conditions_that_fail_with_a_bound(text, fails):
    causal = AtLeast((("index_m", 1), ("index_n", -1)), 0)
    assert failing(causal)(formula_of(f"s[m,n] = where({text}, x[m,n], 0)").value.arguments[0]) is fails
