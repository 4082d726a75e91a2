"""The problems of KernelBench that definitions state (perf/kernelbench): each one is simulated and compared with NumPy."""

import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "perf"))  # after `tests`: both have a module `scans`


from kernelbench import arrays, page
from kernelbench.problems import PROBLEMS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.level}-{problem.number}")
def test_problem(problem):
    assert problem.run() <= problem.tolerance


def test_each_problem_once():
    assert [(problem.level, problem.number) for problem in PROBLEMS] == [(level, number) for level in (1, 2) for number in range(1, 101)]
    assert all(problem.kernels or problem.missing for problem in PROBLEMS)


def test_a_wrong_formula_is_found():
    """The error of a definition that differs from the reference is not small; a result of another shape is refused."""
    problem = next(problem for problem in PROBLEMS if problem.name == "1/36")
    wrong = attrs.evolve(problem, kernels=tuple(text.replace("1e-05", "0.1") for text in problem.kernels))
    assert wrong.run() > 1e-3 > problem.run()
    with pytest.raises(AssertionError, match="has the shape"):
        attrs.evolve(problem, reference=lambda x: x[:, 1:]).run()


def test_references():
    """A transposed convolution is the gradient of a convolution: their bilinear forms are equal."""
    random = np.random.default_rng(0)
    for stride, pad, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 2), ((2, 3), (1, 2), (2, 1), 2)):
        y, w = random.standard_normal((2, 4, 4, 5)), random.standard_normal((4, 3, 3, 5))
        x = random.standard_normal(arrays.conv_transposed(y, w, None, stride, pad, 0, dilation, groups).shape)
        transposed = (x * arrays.conv_transposed(y, w, None, stride, pad, 0, dilation, groups)).sum()
        assert np.isclose(transposed, (y * arrays.conv(x, w, None, stride, pad, dilation, groups)).sum())


def test_page():
    rows = [(PROBLEMS[0], 1e-7, 0.1), (attrs.evolve(PROBLEMS[1], missing="of a reason"), None, 0.0)]
    text = page.page(rows, "2026-01-01", "Fireiron")
    assert "**1 of 2 problems are stated: 1 by one definition" in text and "because of a reason" in text and "| 1e-07 |" in text
