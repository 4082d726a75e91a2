"""The attention of perf/networks.py without PyTorch: the kernels for the configurations are right, have no findings and no spills."""

import math
from pathlib import Path

import numpy as np
import pytest
import scripts

from fireiron.check import safety
from fireiron.gpu.toolchain import compile_cuda, toolchains

FILE = Path(__file__).parent.parent / "perf" / "networks.py"
BATCH, LENGTH = 32, 384


@pytest.fixture(scope="module")
def networks():
    return scripts.loaded("perf/networks.py")


@pytest.fixture(scope="module")
def programs(networks):
    """The programs of all configurations, by heads and head dimension."""
    shapes = {(one.heads, one.head) for one in networks.NETWORKS.values()}
    bound = {shape: networks.program_arguments(BATCH, LENGTH, LENGTH, *shape) for shape in shapes}
    return {shape: strategy(spec).program("sm_90") for shape, (strategy, spec) in bound.items()}


def parameters(network):
    """The number of weights of a network, without position embeddings past the last token's."""
    hidden, wide, embedding = network.hidden, network.intermediate, network.embedding
    layer = 4 * (hidden * hidden + hidden) + hidden * wide + wide + wide * hidden + hidden + 4 * hidden
    projection = 0 if embedding == hidden else embedding * hidden + hidden
    words = (network.vocabulary + network.positions + network.types) * embedding + 2 * embedding
    return words + projection + layer * (1 if network.shared else network.layers) + hidden * hidden + hidden


@pytest.mark.parametrize(
    ("name", "millions"), [("albert", 11.7), ("bert", 109.5), ("roberta", 124.6), ("distilroberta", 82.1), ("xlm-roberta", 278.0)]
)
def test_published_sizes(networks, name, millions):
    assert math.isclose(parameters(networks.NETWORKS[name]) / 1e6, millions, abs_tol=0.06)


def test_one_kernel_serves_all(programs):
    assert set(programs) == {(12, 64)}


def test_no_findings(programs):
    for program in programs.values():
        assert not safety(program.ir)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed")
def test_no_spills(programs):
    for program in programs.values():
        compiled = compile_cuda(program.cuda, "sm_90")
        report = compiled.resources[program.name]
        assert report.spill_stores == report.spill_loads == report.stack_frame == 0 and "C75" not in compiled.log


class Projection(np.ndarray):
    """A NumPy array whose `view` is PyTorch's: another shape of the same memory."""

    def view(self, shape):
        return np.asarray(self).reshape(shape)


def test_launch(networks):
    """The views of projections that the operator passes, simulated: several sequences and heads, a partial last block of keys."""
    batch, length, heads, head = 2, 40, 2, 16
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((batch, length, heads * head)).astype(np.float16).view(Projection) for _ in range(3))
    out = np.full(q.shape, np.nan, np.float16).view(Projection)
    networks.launch(q, k, v, out, heads)
    queries, keys, values = (np.asarray(one, np.float64).reshape(batch, length, heads, head) for one in (q, k, v))
    weights = np.exp(np.einsum("bmhd,bnhd->bhmn", queries, keys) * head**-0.5)
    right = np.einsum("bhmn,bnhd->bmhd", weights / weights.sum(-1, keepdims=True), values).reshape(q.shape)
    got = np.asarray(out, np.float64)
    assert np.linalg.norm(got - right) < 1e-3 * np.linalg.norm(right)
