"""The library's programs of tasks under generated mappings at generated sizes: results in the simulator with all checks."""

import random

import attrs
import numpy as np
import pytest
from problems import simulated
from test_fused_attention import inputs, softmax
from test_tasks_programs import CASES, require_right

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.errors import FireironError
from fireiron.strategies import attention, tasks_attention, tasks_batched, tasks_dual, tasks_gated, tasks_gemm, tasks_row_sum
from fireiron.tasks import *

MODULES = {"gemm": tasks_gemm, "batched": tasks_batched, "dual": tasks_dual, "gated": tasks_gated, "row_sum": tasks_row_sum}
PROGRAMS = {
    (False, False): (tasks_attention.flash_2, tasks_attention.IN_ORDER),
    (False, True): (tasks_attention.flash_3, tasks_attention.AHEAD),
    (True, False): (tasks_attention.causal_2, tasks_attention.IN_ORDER),
    (True, True): (tasks_attention.causal_3, tasks_attention.AHEAD),
}


def moved(mapping, chosen):
    """The mapping with one tensor in another memory, or unchanged: most other memories are illegal."""
    if chosen.random() < 0.6:
        return mapping
    instance = chosen.choice([each for each in mapping.instances if each.mems and not each.entrypoint])
    place = chosen.randrange(len(instance.mems))
    mems = [chosen.choice([NONE, SHARED, REGISTER]) if number == place else mem for number, mem in enumerate(instance.mems)]
    return attrs.evolve(mapping, instances=tuple(attrs.evolve(each, mems=mems) if each is instance else each for each in mapping.instances))


LEAVES = {"clear_thread": Init.done(), "rescale_rows": Pointwise.done(SKIP_IF_IDENTITY)}
"""Strategies for instances that are leaves."""


def varied(mapping, chosen):
    """The mapping with tensors elsewhere, and with options of launches, orders of copies and strategies of leaves at random."""
    instances = []
    for each in moved(mapping, chosen).instances:
        if each.entrypoint and chosen.random() < 0.4:
            each = attrs.evolve(each, group_m=chosen.choice([2, 3]), raster=1)
        if each.entrypoint and chosen.random() < 0.15:
            each = attrs.evolve(each, cluster=chosen.choice([(2, 1), (1, 2)]))
        if each.layouts and chosen.random() < 0.1:
            layouts = {name: attrs.evolve(stored, order=chosen.choice(["row", "col"])) for name, stored in each.layouts}
            each = attrs.evolve(each, layouts=layouts)
        if each.instance in LEAVES and chosen.random() < 0.5:
            each = attrs.evolve(each, strategy=LEAVES[each.instance])
        instances.append(each)
    return attrs.evolve(mapping, instances=tuple(instances))


def product(chosen, changed=moved):
    """A GEMM-based program with a mapping, its problem, its target, and a check of results."""
    name = chosen.choice(list(MODULES))
    module, group_m = MODULES[name], chosen.choice([1, 2, 3])
    if chosen.random() < 0.5:
        target, rows, columns = "sm_80", *chosen.choice([(1, 1), (2, 1), (1, 2)])
        tile = rows * chosen.choice([16, 32]), columns * chosen.choice([8, 16]), chosen.choice([16, 32])
        mapping = module.ampere(*tile, rows, columns, chosen.choice([0, 2, 3]), lookahead=chosen.choice([0, 2]), group_m=group_m)
    else:
        target, groups = "sm_90a", chosen.choice([1, 1, 2])
        tile = 64 * groups, chosen.choice([8, 16, 32]), chosen.choice([16, 32])
        num_blocks = chosen.choice([1, 2, 132])
        persistence = {"persistent": num_blocks} if name in ("gemm", "batched") else {"num_blocks": num_blocks}
        mapping = module.hopper(*tile, groups, chosen.choice([2, 3]), epi_n=chosen.choice([8, 16]), group_m=group_m, **persistence)
    sizes = tuple(max(side * chosen.choice([1, 2]) - chosen.choice([0, 0, 8]), 8) for side in tile)
    known = chosen.random() < 0.7
    problem = sizes if known else tuple(sym(dim, high=4096, multiple_of=8) for dim in "MNK")
    arrays = CASES[name].inputs(*sizes)
    bound = tasks.strategy(module.program, changed(mapping, chosen))(CASES[name].spec(*problem))
    return bound, target, lambda kernel: require_right(CASES[name], arrays, kernel(*arrays))


def of_attention(chosen, changed=moved):
    """The same for attention."""
    causal, ahead = chosen.random() < 0.4, chosen.random() < 0.5
    program, variant = PROGRAMS[causal, ahead]
    options = {"variant": variant, **({"hides": "causal_rows"} if causal else {})}
    if chosen.random() < 0.5:
        warps = chosen.choice([1, 2])
        target, mapping = "sm_80", tasks_attention.ampere(16 * warps, chosen.choice([16, 32]), 16, warps, chosen.choice([2, 3]), **options)
    else:
        target, groups = "sm_90a", chosen.choice([1, 1, 2])
        mapping = tasks_attention.hopper(64 * groups, chosen.choice([16, 32]), groups, 2, persistent=chosen.choice([0, 1, 3]), **options)
    m = chosen.choice([16, 40, 64, 72])
    n = m if causal else chosen.choice([16, 40, 70, 96])
    bound = tasks.strategy(program, changed(mapping, chosen))(
        attention.spec(m, n, 16, chosen.choice([1, 2]), fused=attention.definition(causal=causal))
    )

    def require(kernel):
        arrays = inputs(kernel.program.spec, None)
        expected, _ = softmax(*arrays.values(), causal=causal)
        error = np.asarray(kernel(*arrays.values()), "float64") - expected
        assert np.linalg.norm(error) < 2e-3 * np.linalg.norm(expected)

    return bound, target, require


def ran(seed):
    """Whether a generated case is legal; if so its kernel has no findings and correct results."""
    chosen = random.Random(seed)
    try:
        bound, target, require = (of_attention if chosen.random() < 0.3 else product)(chosen)
        kernel = simulated(bound, target)
        lowered = kernel.program.lowered
    except FireironError:
        return False
    assert [str(one) for one in check(lowered) if one.severity == "error"] == [], seed
    require(kernel)
    return True


@pytest.mark.nightly
def test_some_mappings_at_random():
    assert sum(map(ran, range(8))) >= 3


@pytest.mark.parametrize("seed", [57, 123, 605, 614])
def test_values_that_pass_through_shared_memory_between_calls(seed):
    """The kernel keeps copies of the mapping between two calls, whose threads share no element: no order between them is required."""
    assert ran(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(100))
def test_many_mappings_at_random(chunk):
    """2,000 cases."""
    assert sum(map(ran, range(20 * chunk, 20 * chunk + 20))) >= 7
