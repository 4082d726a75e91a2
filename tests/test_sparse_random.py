"""Generated sparse matmuls with generated strategies: right in two orders of the threads, and without findings."""

import os

import pytest
from sparse_generator import draw
from test_sparse import objection_to

SEED = 20261129
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))


@pytest.mark.parametrize("number", range(5 * SCALE))
def test_generated(number):
    case, program, _ = draw(SEED + number)
    assert not objection_to(case, program, number), f"\nstrategy = {case.chain!r}\nspec = {case.spec!r}\nsymbols = {case.symbols}"
