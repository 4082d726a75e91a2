"""The printed texts of small kernels do not change: forms of the library that run nearly every line of the printer.

The whole texts of some 20 are stored, `goldens/texts/*.cu`, and digests of all, with the steps that made each line. Neither proves a text
right, which the other oracles test; they detect unintended changes.
"""

import functools
import inspect
import sys

import pytest
from goldens import readable
from goldens.cases import CASES, SUMMARY, Case, Outcome, cases, differences, stored, summary

from fireiron import *
from fireiron.cuda import printed
from fireiron.language.library import bind, find

SIZES = {"M": 40, "N": 48, "K": 40, "D": 32, "L": 2, "P": 3, "groups": 3, "batch": 2, "size": 32}
"""By parameter name of a problem; matrix sizes are run-time sizes if the form states so, or all are the form's own."""

FORMS = """
hopper_skinny
maxwell, run time
hopper_ragged, run time
hmma_turing
hmma_volta
attention_combine, run time
attention_decode, run time
attention_decode:hopper
lstm:hopper
lstm:two_loops
wmma_simple:guarded
hgemm_nt, run time
gemm_row_sum:hopper, run time
gemm_row_sum:hopper_shared
hopper_ragged:clustered
rmsnorm
split_k_blocks
attention_packed:hopper
attention:q_in_registers
hopper, run time
hopper_small, run time
listing_1
gated:hopper
naive
attention:causal
layernorm
small, run time
mlp
hopper, own sizes
dual:hopper, own sizes
hopper_attention, own sizes
hmma_ampere, own sizes
tasks_gemm:warpgroups, own sizes
"""

WHOLE = (
    "naive",
    "listing_1",
    "maxwell, run time",
    "wmma_simple:guarded",
    "hmma_volta",
    "hmma_turing",
    "hgemm_nt, run time",
    "split_k_blocks",
    "hopper_small, run time",
    "hopper, run time",
    "hopper_ragged:clustered",
    "hopper_skinny",
    "gemm_row_sum:hopper, run time",
    "tasks_gemm:warpgroups, own sizes",
    "mlp",
    "lstm:two_loops",
    "layernorm",
    "rmsnorm",
    "attention:q_in_registers",
    "attention_combine, run time",
    "attention_decode, run time",
    "attention_packed:hopper",
)
"""Forms whose texts are stored in full: GEMM by threads, by tensor cores of each generation, by warpgroups with rings, roles and clusters,
as tasks; epilogues, reductions and attention.
"""


@functools.cache
def kernel(form):
    """The kernel of a form, lowered and verified."""
    name, _, when = form.partition(", ")
    entry = find(name)
    module = sys.modules[f"fireiron.strategies.{name.partition(':')[0]}"]
    sizes = {one: SIZES[one] for one in inspect.signature(module.spec).parameters if one in SIZES and when != "own sizes"}
    if when == "run time":
        sizes |= {one: sym(one.lower(), multiple_of=8) for one in sizes if one in ("M", "N", "K")}
    strategy = bind(entry, sizes)
    return strategy.program(strategy.target).lowered


def forms():
    """All of them."""
    return FORMS.strip().splitlines()


def kernels():
    return {form: kernel(form) for form in forms()}


def outcome(form):
    """The text of a form with the steps of each line."""
    return Outcome.of_lines(printed(kernel(form)))


def text(form):
    """The stored text of a form stored in full."""
    return "".join(f"{line.text}\n" for line in printed(kernel(form)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", WHOLE)
def test_the_text_is_the_one_that_was_read(form):
    changes = readable.differences(readable.file_of(form), text(form))
    assert not changes, changes


def test_no_text_changes_by_the_way():
    changes = differences("library", [Case.of(form, outcome(form)) for form in forms()])
    assert not changes, changes


def test_each_case_is_stored():
    assert [one.name for one in cases("library")] == forms()
    assert {path.name for path in readable.TEXTS.iterdir()} == {readable.file_of(form).name for form in WHOLE}


def test_the_summary_is_that_of_the_cases():
    assert SUMMARY.read_text(encoding="utf-8") == summary({name: [*found.values()] for name, found in stored().items()}), CASES
