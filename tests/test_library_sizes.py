"""Every form of the library at sizes around its own tiles: one element, a tile and an element less or more, and run-time sizes. The checks
have no findings.
"""

import functools
import inspect
import itertools

import pytest
from campaign.subjects.library_texts import _forms
from problems import library

from fireiron import ColMajor, ir, sym
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, FireironError, MatchError, ResourceError
from fireiron.language.library import bind, find
from fireiron.strategies import hopper
from fireiron.values.expr import FloorDiv, constant

HIGH = 16384
"""The upper bound of a run-time size, so that addresses fit 64 bits, also in a batch."""

OPTIONS = {
    "experts:held": {"form": "gated"},
    **{f"experts:{form}": {"form": form} for form in ("gated", "kept", "gathered", "gathered_gated", "scaled", "slopes")},
    **{f"experts:{form}": {"form": form.partition("_")[2], "rows": 64} for form in ("few_gated", "ampere_gated", "ampere_kept")},
    **{f"experts:{form}": {"form": "weights"} for form in ("weight_gradient", "ampere_weights")},
    **{f"experts_rows:{form}": {"form": form} for form in ("weighted", "combined", "dots", "activated", "slopes")},
    "convolution_weight_gradient:whole": {"parts": 1},
    "hopper:integers": {"dtype": "int8", "c_dtype": "int32", "B": ColMajor},
    "hopper_batched:integers": {"dtype": "int8", "c_dtype": "int32", "B": ColMajor},
    "hopper_skinny:split_k": {"c_dtype": "float32"},
    "layernorm:at_once": {"form": "at_once"},
    "rmsnorm_residual:eight_bit": {"form": "eight_bit"},
    **{f"scan:{form}": {"form": form} for form in ("product", "recurrence")},
    **{f"ssd:{form}": {"form": form} for form in ("states", "decays", "joined", "pairs", "dots", "scaled")},
    "sparse_ampere:floats": {"dtype": "float8_e4m3"},
    "sparse_ampere:integers": {"dtype": "int8", "c_dtype": "int32"},
    "sparse_hopper:integers": {"dtype": "int8", "c_dtype": "int32"},
}
"""Arguments of forms whose problem differs from their module's."""

BLOCK_LEVEL = ("wmma_simple:warp_level",)
"""Forms for the problem of one block, whose sizes are constants."""

FORMS = [name for name in _forms() if name not in BLOCK_LEVEL]


def dimensions(name):
    """The dimensions of a form's problem, with the sizes stated by its module: the parameters of `spec` without default."""
    module = library(name.partition(":")[0])
    parameters = inspect.signature(module.spec).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return dict(zip(needed, module.SIZES, strict=True))


NEAR = ("1", "tile - 1", "tile", "tile + 1", "symbolic")
"""Sizes of a dimension."""

CONSTANT = ("experts",)
"""Modules for constant sizes: the race check leaves a loop over a range from data undecided, if its tiles have run-time sizes."""


def near(name):
    """The sizes of a dimension of a form."""
    return NEAR[:-1] if name.partition(":")[0] in CONSTANT else NEAR


def program(name, sizes):
    """A form on a problem for its own target, with the tunable values stated by its module."""
    entry = find(name)
    return bind(entry, sizes, OPTIONS.get(name, {})).program(entry.strategy.target)


def symbol(dim, multiple_of):
    """A size known at run time."""
    return sym(dim.lower(), multiple_of=multiple_of, high=HIGH)


@functools.cache
def tile(name, dim):
    """The largest tile in which a kernel counts a run-time dimension; for a static dimension the module's own size."""
    size = symbol(dim, 8)
    try:
        kernel = program(name, {**dimensions(name), dim: size}).lowered
    except FireironError:
        return dimensions(name)[dim]
    counts = [kernel.grid]
    counts += [one.extent for one in ir.statements(kernel.body) if isinstance(one, ir.For)]
    counts += [one.value for one in ir.statements(kernel.body) if isinstance(one, ir.Let)]
    quotients = [node for count in counts for node in nodes(count) if isinstance(node, FloorDiv) and node.variables() == {size}]
    return max((constant(node.right) or 0 for node in quotients), default=dimensions(name)[dim])


def nodes(value):
    """An expression and all its parts."""
    yield value
    for child in value.children:
        yield from nodes(child)


def size(name, dim, near, step):
    """The size of a dimension near its tile, `step` elements less or more; the smallest is `step`, too, which is also the divisor of a
    run-time size.
    """
    tile_size = tile(name, dim)
    known = {"1": step, "tile - 1": max(tile_size - step, step), "tile": tile_size, "tile + 1": tile_size + step}
    return known[near] if near in known else symbol(dim, step)


def outcome(name, choice, step):
    """The refusals of a form at sizes near its tiles, and the findings of the checks."""
    sizes = {dim: size(name, dim, near, step) for dim, near in zip(dimensions(name), choice, strict=True)}
    try:
        kernel = program(name, sizes).lowered
    except (ArgumentError, DecompositionError, MatchError, ResourceError) as error:  # a stated limit, not a defect of a pass
        return error, []
    return None, [one.message for one in safety(kernel) if one.severity == "error"]


CASES = [(name, *first) for name in FORMS for first in itertools.product(near(name), repeat=len(dimensions(name)) - 1)]


@pytest.mark.sampled(900)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_no_form_of_the_library_is_refused_by_the_checks(case):
    """If a form does not support single elements (TMA moves at least 16 bytes), groups of 16 are used instead."""
    name, *first = case
    for last in near(name):
        refused, findings = outcome(name, (*first, last), 1)
        assert findings == [], last
        if refused is not None:
            assert outcome(name, (*first, last), 16)[1] == [], last


MET = (
    ("tasks_gemm", ("tile", "symbolic", "tile"), 1),
    ("tasks_gemm", ("symbolic", "1", "tile"), 1),
    ("tasks_gemm:warpgroups", ("tile - 1", "symbolic", "tile"), 1),
    ("tasks_dual", ("1", "symbolic", "tile"), 1),
    ("hopper_ragged:clustered", ("symbolic", "tile", "tile"), 16),
    ("hopper_ragged:clustered", ("symbolic", "tile + 1", "tile"), 16),
    ("grouped_ragged", ("symbolic", "tile", "symbolic"), 1),
    ("hopper_ragged", ("tile", "tile", "symbolic"), 1),
)
"""Regressions of the checks: one launch along a dimension, clusters of which one or a known number fill the columns, data-dependent
iterations around copies that are waited for after them.
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "choice", "step"), MET)
def test_forms_once_refused_by_the_checks(name, choice, step):
    assert outcome(name, choice, step) == (None, [])


@pytest.mark.parametrize("walk", [0, 1, 2])
@pytest.mark.parametrize("columns", [256, 512, 2056])
def test_clusters_walk_over_a_known_number_of_columns(walk, columns):
    """The divisor of a cluster's number is known then, and is folded into that of the block's."""
    spec = hopper.spec(symbol("M", 8), columns, 64)
    kernel = hopper.strategy.with_(cluster_m=1, cluster_n=2, num_blocks=65536, raster=walk)(spec).program("sm_90a").lowered
    assert [one.message for one in safety(kernel) if one.severity == "error"] == []


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_library_takes_its_own_tiles(name):
    """Otherwise the test above would test nothing."""
    assert outcome(name, ("tile",) * len(dimensions(name)), 16) == (None, [])
