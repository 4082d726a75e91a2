"""Clusters in launches that exchange data with other GPUs: results, order of tiles, residency, and planted faults."""

import functools
import random

import attrs
import numpy as np
import pytest
from node_generator import FAULTS, Faulty, order_of_gpus, with_fault

from fireiron import *
from fireiron.errors import LaunchError, SimulationError
from fireiron.gpu.kernel import UpstreamKernel
from fireiron.ir import ClusterBarrier
from fireiron.sim.node import simulate_node
from fireiron.strategies import all_gather_gemm, gemm_reduce_scatter

TILE = {"bm": 64, "bn": 64, "bk": 64, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 2, "group_m": 2, "num_blocks": 132}
REGIONS = {"region_rows": 64, "region_columns": 64}

KINDS = {
    "gather": (all_gather_gemm, "overlapped", {**TILE, **REGIONS}),
    "scatter": (gemm_reduce_scatter, "exchanged", {**TILE, **REGIONS}),
    "storing warp": (gemm_reduce_scatter, "storing", {**TILE, **REGIONS, "store_stages": 1}),
}
SHAPES = {"rows": {"cluster_m": 2, "cluster_n": 1}, "columns": {"cluster_m": 1, "cluster_n": 2}}


@functools.cache
def kernel(kind, shape):
    library, name, values = KINDS[kind]
    rows = 128 if kind != "gather" and shape == "columns" else 256
    columns = 64 * SHAPES[shape]["cluster_n"] * (2 if kind == "gather" else 1)
    problem = library.spec(rows, columns, 128)
    return getattr(library, name).with_(**values, **SHAPES[shape])(problem).compile("sm_90a")


@functools.cache
def data(kind, shape):
    generator = np.random.default_rng(0)
    m, n, k = (int(size.evaluate({})) for size in kernel(kind, shape).program.spec.sizes)
    a, b = (generator.integers(-2, 3, sizes).astype(np.float16) for sizes in ((m, k), (k, n)))
    return {"A": a, "B": b}, (a.astype(float) @ b.astype(float)).astype(np.float16)


def is_right(kind, shape, launch, seed):
    arrays, right = data(kind, shape)
    order = None if seed is None else random.Random(seed)
    return np.array_equal(simulate_node(kernel(kind, shape).program.spec, [launch], arrays, {}, order=order)["C"], right)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_result_in_any_order(kind, shape):
    program = kernel(kind, shape).program
    assert program.ir.cluster.blocks == 2 and not order_of_gpus(program.ir)
    assert is_right(kind, shape, program.launches[0], 1)


def test_order_of_tiles():
    """GPUs begin with their own part, or with that of the next GPU, by clusters of tiles."""
    assert "const int block_m = (blockIdx.x / 2 + gpu) % 2;" in kernel("gather", "rows").program.text
    assert "const int block_m = (blockIdx.x / 2 + gpu + 1) % 2;" in kernel("storing warp", "rows").program.text


def test_cluster_barrier_stays_last():
    """No block exits while others access its shared memory. The simulator detects a barrier before the roles."""
    program = kernel("gather", "rows").program
    ir = program.ir
    assert isinstance(ir.body[-1], ClusterBarrier)
    faulty = attrs.evolve(ir, body=(*ir.body[:-2], ir.body[-1], ir.body[-2]))
    with pytest.raises(SimulationError, match="exits while others may still arrive"):
        is_right("gather", "rows", Faulty(faulty, program.launches[0].arrays), None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_faults(kind, fault):
    program = kernel(kind, "rows").program
    faulty = with_fault(program.ir, fault)
    if faulty is None:
        return
    assert order_of_gpus(faulty)


class Loaded:
    """A loaded kernel of which a number of clusters are resident."""

    def __init__(self, clusters):
        self.clusters = clusters

    def resident_clusters(self, blocks, threads):
        return self.clusters


def test_clusters_that_are_not_resident():
    kernel_ = kernel("gather", "rows")
    upstream = UpstreamKernel(kernel_.program.last)
    blocks = int(upstream.ir.grid.evaluate({}))
    upstream._require_resident(Loaded(blocks // 2), 132, 2)
    with pytest.raises(LaunchError, match="all must be resident at once") as caught:
        upstream._require_resident(Loaded(blocks // 2 - 1), 132, 2)
    assert caught.value.legal == f"at most {blocks - 2} on this GPU"
