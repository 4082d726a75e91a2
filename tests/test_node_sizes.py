"""Run-time sizes of products over GPUs: one kernel for all numbers of rows, in the simulator, and the arrays of a process."""

import numpy as np
import pytest
from test_node import simple

from fireiron import *
from fireiron.errors import ArgumentError, FireironError
from fireiron.gpu.node import NodeRun, _largest_sizes, _steps
from fireiron.spec import symbols_of
from fireiron.strategies import hopper
from fireiron.values.notation import parse_view

KINDS = {
    "gathered": ({"A": "m", "B": "n", "C": "n"}, MatMul.to_gpus("n").load("A", GL)),
    "scattered": ({"A": "k", "B": "k", "C": "m"}, MatMul.to_gpus("k", sums=float16)),
    "reduced": ({"A": "k", "B": "k"}, MatMul.to_gpus("k")),
    "replicated": ({"B": "n", "C": "n"}, MatMul.to_gpus("n")),
}


def spec(kind, gpus, most=4096, order=RowMajor, n=16, k=16):
    orders = {"A": order, "B": RowMajor, "C": RowMajor}
    over = {name: one.over(GPU, KINDS[kind][0][name]) if name in KINDS[kind][0] else one for name, one in orders.items()}
    rows = sym("M", multiple_of=gpus, high=most)
    return MatMul(rows, n, k, dtype=float16, c_dtype=float16, **over)(GL, GL, GL)(Node(gpus))


def strategy(kind, rest=simple):
    return KINDS[kind][1].then(rest)


@pytest.mark.parametrize(("kind", "gpus"), [*((kind, 2) for kind in KINDS), ("gathered", 4), ("scattered", 4)])
def test_one_kernel_for_all_numbers_of_rows(kind, gpus):
    kernel = strategy(kind)(spec(kind, gpus)).compile("sm_80")
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in ((24, 16), (16, 16)))
    for rows in (gpus, 24):
        assert np.array_equal(kernel(a[:rows], b), (a[:rows].astype(float) @ b).astype(np.float16))
    with pytest.raises(ArgumentError, match=rf"a multiple of {gpus}"):
        kernel(a[: gpus + 1], b)


def test_columns_first():
    """Parts that are column-major are copied to a column-major array."""
    kernel = strategy("gathered")(spec("gathered", 2, order=ColMajor)).compile("sm_80")
    a, b = np.asfortranarray(np.arange(48).reshape(6, 8) % 5).astype(np.float16), np.ones((8, 16), np.float16)
    kernel = strategy("gathered")(spec("gathered", 2, order=ColMajor, k=8)).compile("sm_80")
    assert np.array_equal(kernel(np.asfortranarray(a), b), a @ b)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_hopper(kind):
    """Launches are written and read back, and wgmma kernels have run-time sizes, too."""
    for launch in strategy(kind)(spec(kind, 2)).program("sm_80").launches:
        assert eval(repr(launch.spec)) == launch.spec
        for view in launch.spec.views:
            assert parse_view(str(view), {var.name: var for var in symbols_of(launch.spec)}) == view
    text = strategy(kind, hopper.strategy.with_(bm=128, bn=64, wm=64, wn=64, epi_n=64))(spec(kind, 2, n=256, k=128)).cuda("sm_90a")
    assert "const int M" in text


REFUSALS = {
    "parts that are read directly": (lambda: MatMul.to_gpus("n").then(simple)(spec("gathered", 2)).program("sm_80").launches, "load('A', GL)"),
    "an overlapped copy": (lambda: KINDS["gathered"][1].overlap(64, 64).then(simple)(spec("gathered", 2)).program("sm_80").launches, "without overlap"),
    "no bound": (lambda: _largest_sizes(MatMul(sym("M"), 16, 16)(GL, GL, GL)(Node(2))), "high=65536"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, expected = REFUSALS[name]
    with pytest.raises(FireironError) as caught:
        make()
    assert expected in str(caught.value)


class Process(NodeRun):
    """The arrays of one process, without a GPU: NumPy arrays in place of tensors."""

    def __init__(self, kernel, rank, gpus):
        self.kernel, self.spec, self.rank, self.gpus = kernel, kernel.program.spec, rank, gpus
        self._steps, self._layouts, self._most = _steps(kernel), {}, _largest_sizes(kernel.program.spec)


def test_layouts_of_a_process():
    """Memory is allocated for the largest sizes; the arrays of a call follow from the given parts."""
    process = Process(strategy("scattered")(spec("scattered", 2, most=64)).compile("sm_80"), 0, 2)
    assert process._layout("sums_of_C", process._most) == ((64, 16), (16, 1))
    sizes = process._sizes({"A": np.zeros((6, 8), np.float16), "B": np.zeros((8, 16), np.float16)})
    assert sizes == {"M": 6} and process._layout("sums_of_C", sizes) == ((6, 16), (16, 1)) and process._layout("C", sizes)[0] == (3, 16)
    assert [step.sizes for step in process._steps] == [("M",), ("M",)] and process.shared == ("sums_of_C",)
    gathered = Process(strategy("gathered")(spec("gathered", 2, most=64)).compile("sm_80"), 0, 2)
    assert gathered._layout("gathered_A", gathered._sizes({"A": np.zeros((3, 16)), "B": np.zeros((16, 8))})) == ((6, 16), (16, 1))
    for parts, words in (({"A": (33, 16), "B": (16, 8)}, "<= M <= 64"), ({"A": (3, 16), "B": (15, 8)}, "made for")):
        with pytest.raises(ArgumentError, match=words):
            gathered._sizes({name: np.zeros(shape) for name, shape in parts.items()})
