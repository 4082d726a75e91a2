"""The printed text of small kernels is the text that was printed before: digests of some forms of the library.

Together they run nearly every line of the printer and of what instructions print. A digest says nothing of right and wrong, which the other
oracles do; it says that no text changes by the way. Where one is to change, look at it, and `python tests/test_text_digests.py` writes all anew.
"""

import functools
import hashlib
import inspect
import sys
from pathlib import Path

from fireiron import *
from fireiron.cuda import printed
from fireiron.language.library import bind, find

DIGESTS = Path(__file__).resolve().parent / "goldens" / "text_digests.txt"
SIZES = {"M": 40, "N": 48, "K": 40, "D": 32, "L": 2, "P": 3, "groups": 3, "batch": 2, "size": 32}
"""By parameter name of a problem; those of matrices are known at run time where the form says so, or all are the form's own."""

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
lstm:in_turn
wmma_simple:guarded
hgemm_nt, run time
gemm_row_sum:hopper, run time
gemm_row_sum:hopper_shared
hopper_ragged:clustered
rmsnorm
split_k_blocks
attention_packed:hopper
attention:held
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


def kernels():
    return {form: kernel(form) for form in FORMS.strip().splitlines()}


def digests():
    """A line for each form: the digest of its lines with the steps that made them, and its name."""
    texts = {form: "\n".join(f"{line.text}  {line.steps}" for line in printed(one)) for form, one in kernels().items()}
    return [f"{hashlib.sha256(text.encode()).hexdigest()[:16]}  {form}" for form, text in texts.items()]


def test_no_text_changes_by_the_way():
    changed = sorted({*digests()} ^ {*DIGESTS.read_text(encoding="utf-8").splitlines()})
    assert not changed, "if these texts are to change: python tests/test_text_digests.py"


if __name__ == "__main__":
    DIGESTS.write_text("\n".join([*digests(), ""]), encoding="utf-8")
