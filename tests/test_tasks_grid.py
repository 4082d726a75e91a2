"""Distribution of task launches over blocks and their iterations, compared with explicit enumeration."""

import itertools
import math

import numpy
import pytest

from fireiron import *
from fireiron.executable import INSTRUCTIONS
from fireiron.language import library
from fireiron.language.tree import Context, Whole
from fireiron.tasks.grid import distributed_over_blocks
from fireiron.tasks.mapping import GLOBAL, HOST, TaskMapping
from fireiron.values.expr import Var, as_expr, constant
from fireiron.values.machine import as_architecture

BLOCK = Var("block", 0, 2**31 - 1)
"""The block index, as in `walk`."""


def draft():
    return Context(as_architecture("sm_90a"), INSTRUCTIONS, BLOCK, Var("thread", 0, 127), 128, whole=Whole(frozenset())).draft()


def host(**fields):
    return TaskMapping("grid", "blocks", HOST, [GLOBAL], {}, ["block"], entrypoint=True, **fields)


def launches_by_block(sizes, values=None, **fields):
    """The launches of each block, by iteration, and the grid; `values` are those of run-time sizes."""
    names, given = draft(), dict(values or {})
    distribution = distributed_over_blocks(tuple(map(as_expr, sizes)), host(**fields), names)
    blocks = int(distribution.selected.blocks.evaluate(given))
    lets = {var: named.value for named, var in names._lets.items()}
    every = []
    for number in range(blocks):
        known = {**given, BLOCK.name: number}
        for var, value in lets.items():
            known[var.name] = int(value.evaluate(known))
        iterations = 1 if distribution.selected.loop is None else int(distribution.selected.loop.extent.evaluate(known))
        launches = []
        for iteration in range(iterations):
            here = known if distribution.selected.loop is None else {**known, distribution.selected.loop.var.name: iteration}
            for let in distribution.selected.named:
                here[let.var.name] = int(let.value.evaluate(here))
            launches.append(tuple(int(one.evaluate(here)) for one in distribution.indices))
        every.append(launches)
    return every, distribution


def by_hand(sizes, cluster=(), group_m=0, raster=0):
    """Launches in the order of block index and iteration."""
    along = (*(1,) * (len(sizes) - len(cluster)), *cluster)
    counts = [size // part for size, part in zip(sizes, along, strict=True)]
    order = list(itertools.product(*map(range, counts)))
    if group_m:
        across, on = (len(sizes) - 2, len(sizes) - 1) if raster == 0 else (len(sizes) - 1, len(sizes) - 2)
        band = max(group_m // along[across], 1)
        order.sort(key=lambda one: (*one[:-2], one[across] // band, one[on], one[across]))
    places = [[]]
    for part in reversed(along):  # the first dimension of a cluster varies fastest
        places = [[one, *others] for others in places for one in range(part)]
    return [tuple(n * part + one for n, part, one in zip(each, along, place, strict=True)) for each in order for place in places]


CASES = [
    ((4, 6), {}),
    ((3, 4, 6), {}),
    ((8, 6), {"group_m": 4}),
    ((8, 6), {"group_m": 4, "cluster": (2, 1)}),
    ((8, 6), {"group_m": 4, "cluster": (2,)}),
    ((6, 8), {"group_m": 4, "cluster": (1, 2), "raster": 1}),
    ((8, 6), {"group_m": 2, "cluster": (4, 1)}),
    ((8, 6), {"group_m": 3, "cluster": (2, 2)}),
    ((2, 7, 5), {"group_m": 3}),
    ((2, 7, 5), {"group_m": 3, "raster": 1}),
]


def test_each_launch_belongs_to_one_block_once():
    """The order of the enumeration: blocks of a cluster, group_m clusters, iterations of persistent blocks."""
    for sizes, fields in CASES:
        for persistent in (0, 8, 1000):
            require_as_by_hand(sizes, fields, persistent)


def require_as_by_hand(sizes, fields, persistent):
    every, grid = launches_by_block(sizes, **fields, persistent=persistent)
    wanted = by_hand(sizes, **{name: fields[name] for name in ("cluster", "group_m", "raster") if name in fields})
    is_persistent = 0 < persistent < len(wanted)
    blocks = persistent if is_persistent else len(wanted)
    assert (len(every), constant(grid.launches), grid.selected.loop is not None) == (blocks, len(wanted), is_persistent)
    assert every == [wanted[first::blocks] for first in range(blocks)]
    assert (1 if grid.cluster is None else grid.cluster.blocks) == math.prod(fields.get("cluster", ()))


@pytest.mark.parametrize("fields", [{"group_m": 2}, {"group_m": 2, "raster": 1}, {"cluster": (2, 1), "group_m": 4}])
def test_run_time_sizes_are_distributed_like_constant_ones(fields):
    """With run-time sizes the number of blocks is the minimum of `persistent` and the launches."""
    rows, columns = sym("rows", multiple_of=2), sym("columns")
    for values in ((4, 3), (2, 1), (6, 5)):
        wanted = by_hand(values, **fields)
        for persistent in (0, 8):
            every, grid = launches_by_block((rows, columns), {"rows": values[0], "columns": values[1]}, **fields, persistent=persistent)
            assert every == [wanted[first :: len(every)] for first in range(len(every))]
            assert len(every) == (min(persistent, len(wanted)) if persistent else len(wanted))
            assert (grid.selected.loop is not None) == bool(persistent)


def test_a_curve_visits_every_launch_and_continues_to_neighbors():
    every, _ = launches_by_block((4, 8), group_m=1, raster=2)
    places = numpy.array([one for (one,) in every])
    assert len({*map(tuple, places)}) == 32 and (abs(numpy.diff(places, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("sizes", "fields", "message"),
    [
        ((8, 6), {"cluster": (3, 1)}, "not a multiple of the cluster"),
        ((8, 6), {"cluster": (2, 1), "persistent": 3}, "3 blocks are not a multiple of 2"),
        ((8,), {"cluster": (2, 1)}, "which have 1 indices"),
    ],
)
def test_refused(sizes, fields, message):
    with pytest.raises(FireironError, match=message):
        launches_by_block(sizes, **fields)


@pytest.mark.parametrize("form", ["tasks_gated:warpgroups", "tasks_gemm:warpgroups"])
def test_persistent_launches_of_run_time_sizes_state_how_many_tiles_fit(form):
    """The index after a block's last tile must fit 32 bits; with a weaker condition the checks cannot prove that rows are in bounds."""
    entry = library.find(form)
    program = library.bind(entry, {dim: sym(dim.lower(), multiple_of=8) for dim in "MNK"}).program("sm_90a")
    facts = dict(program.ir.facts)
    assert "the grid has at most 2**31 - 133 tiles" in facts
