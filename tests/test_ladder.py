"""The rungs of docs/ladder.md: each is right, and differs in one line from another one."""

from pathlib import Path

import pytest
import scripts
from ringed import errors, inputs_of, outcome

from fireiron import *

SOURCE = Path(__file__).parent.parent / "perf" / "ladder.py"


def ladder():
    """perf/ladder.py as a module."""
    return scripts.loaded("perf/ladder.py")


RUNGS, PROBLEM = ladder().program()


@pytest.mark.parametrize("name", RUNGS)
def test_rungs_are_right(name):
    spec = MatMul(264, 264, 136, **{**PROBLEM, "dtype": float16, "c_dtype": float16})(GL, GL, GL)(Kernel)
    kernel = RUNGS[name](spec).program("sm_90a").ir
    arrays, expected = inputs_of(spec)
    assert errors(kernel) == [] and outcome(kernel, arrays, expected) == "right"


def test_each_rung_is_another_kernel():
    spec = MatMul(4096, 4096, 4096, **PROBLEM)(GL, GL, GL)(Kernel)
    texts = [strategy(spec).cuda() for strategy in RUNGS.values()]
    assert len(set(texts)) == len(RUNGS) == 11
    assert "mbarrier" not in texts[0] and all("mbarrier_wait(" in text for text in texts[1:])
    assert "setmaxnreg" in texts[7] and "multicast" in texts[8] and "hilbert" in texts[9]


def test_the_picture_has_a_bar_for_each():
    module = ladder()
    drawn = module.svg(module.picture({module.LIBRARY: 790.0, **{name: 100.0 + 50 * number for number, name in enumerate(RUNGS)}}, 4096))
    assert all(name in drawn for name in RUNGS) and drawn.count("<rect") == len(RUNGS) + 1
