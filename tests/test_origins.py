"""What a strategy makes knows the line of Python that asked for it: buffers, statements and accesses, which messages and readers name."""

import json

import corpus
import fused_examples
import fused_generator
import generator
import pytest
from hopper_cases import halves

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
    yield "hopper", hopper.strategy.with_(**SMALL)(halves(72, 72, 72, "NTN")), None


def drawn():
    for seed in range(24):
        one, _ = generator.draw(71_000_000 + seed)
        yield f"strategy {seed}", one.strategy, one.target
    for seed in range(12):
        one, _ = fused_generator.draw(71_000_000 + seed)
        yield f"definition {seed}", one.strategy(one.bound), "sm_80"


def pasted():
    """Strategies of the corpus, as Python that is pasted."""
    names = {**vars(fireiron), **vars(fireiron.values.machine)}
    for name in [one for one in corpus.accepted() if not one.startswith(("tasks", "near tasks"))][::20]:
        one = corpus.by_name()[name]
        yield one.name, eval(str(loads(json.dumps(one.strategy))), dict(names)), one.target


@pytest.mark.parametrize("kernels", [examples, drawn, pasted])
def test_what_is_made_has_an_origin(kernels):
    without = []
    for name, strategy, target in kernels():
        try:
            kernel = strategy.program(target).lowered
        except FireironError:
            continue
        made = [one.tensor for one in kernel.buffers if not one.parameter and one.memory != COORD]
        made += [one for one in ir.statements(kernel.body) if isinstance(one, (ir.Exec, ir.For))]
        made += [access for one, _ in ir.execs(kernel.body) for access in one.accesses]
        without += [(name, getattr(one, "name", None) or str(getattr(one, "var", one))) for one in made if one.origin is None]
    assert not without
