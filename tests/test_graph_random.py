"""Random kernel graphs: legal ones are right and without errors; a random planted fault is found. Their texts run on a CPU."""

import random
import tempfile

import numpy as np
import pytest
from graph_examples import chain, layer_norm
from graph_generator import draw as drawn_graph
from graph_generator import is_found, objection, plant
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.gpu import toolchain
from fireiron.measure import graph_runs

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_graphs(seed):
    drawn = drawn_graph(seed)
    assert objection(drawn, seed) == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_planted_faults_of_drawn_graphs(seed):
    graph, choose = drawn_graph(seed).graph, random.Random(seed)
    for _ in range(6):
        kind, launches = plant(choose, graph)
        assert is_found(launches, graph), kind


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 140))
def test_more_drawn_graphs(seed):
    test_drawn_graphs(seed)
    test_planted_faults_of_drawn_graphs(seed)


def test_all_kinds_are_drawn():
    features = [drawn_graph(seed).features for seed in range(60)]
    assert set().union(*features) >= {"unary", "binary", "rows", "spread", "symbols", "sizes", "workspace", "dependent"}


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_printed_text_of_a_graph():
    """The kernels of a layer normalization, executed in order on a CPU."""
    graph = layer_norm(dependent=True)
    program = graph.program("sm_90")
    arrays = graph_runs.graph_inputs(graph, {}, 3)
    values = dict(arrays)
    with tempfile.TemporaryDirectory() as folder:
        host = HostProgram([Printed.of(kernel) for kernel in program.kernels.values()], folder)
        for number, (name, spec) in enumerate(graph.specs.items()):
            given = {operand: values[graph.arrays.of[f"{name}.{operand}"]] for operand in spec.inputs}
            values |= {f"{name}.{operand}": result for operand, result in host.run(number, given).items()}
    np.testing.assert_allclose(values["normalize.Y"], graph.reference(*arrays.values()), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values["normalize.Y"], graph.compile("sm_90")(*arrays.values()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_graphs_compile(target):
    """NVRTC compiles one unit with all kernels."""
    if toolchain.serving(target, None) is None:
        pytest.skip("needs NVRTC")
    text = chain(sym("n"), dependent=target == "sm_90a").program(target).cuda
    compiled = toolchain.compile_cuda(text, target)
    assert set(compiled.resources) == {"both_square", "both_shift"}
