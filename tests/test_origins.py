"""Everything that a strategy creates knows its line of Python: buffers, statements and accesses, as messages and other outputs show."""

import json

import corpus
import fused_examples
import fused_generator
import generator
import pytest
from hopper_cases import float16_gemm

import fireiron
from fireiron import *
from fireiron import ir
from fireiron.language.store import loads
from fireiron.strategies import hopper
from fireiron.values.machine import COORD

SMALL = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "stages": 2}


def examples():
    for name, (strategy, spec) in fused_examples.specs().items():
        yield name, strategy(spec), "sm_80"
    yield "hopper", hopper.strategy.with_(**SMALL)(float16_gemm(72, 72, 72, "NTN")), None


def drawn():
    for seed in range(24):
        draw, _ = generator.draw(71_000_000 + seed)
        yield f"strategy {seed}", draw.strategy, draw.target
    for seed in range(12):
        draw, _ = fused_generator.draw(71_000_000 + seed)
        yield f"definition {seed}", draw.strategy(draw.bound), "sm_80"


def pasted():
    """Strategies of the corpus, as pasted Python."""
    names = {**vars(fireiron), **vars(fireiron.values.machine)}
    for name in [one for one in corpus.accepted() if not one.startswith(("tasks", "near tasks"))][::20]:
        stored = corpus.by_name()[name]
        yield stored.name, eval(str(loads(json.dumps(stored.strategy))), dict(names)), stored.target


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernels", [examples, drawn, pasted])
def test_created_objects_have_an_origin(kernels):
    without = []
    for name, strategy, target in kernels():
        try:
            kernel = strategy.program(target).lowered
        except FireironError:
            continue
        created = [one.tensor for one in kernel.buffers if not one.parameter and one.memory != COORD]
        created += [one for one in ir.statements(kernel.body) if isinstance(one, (ir.Exec, ir.For))]
        created += [access for one, _ in ir.execs(kernel.body) for access in one.accesses]
        without += [(name, getattr(one, "name", None) or str(getattr(one, "var", one))) for one in created if one.origin is None]
    assert not without
