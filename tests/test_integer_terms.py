"""Integer terms of reductions and scans with an integer result: exact, also beyond the 24 bits of a float32."""

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.errors import ArgumentError

X = np.random.default_rng(0).integers(-(2**30), 2**30, (3, 40)).astype(np.int32)
LANES = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
N = np.arange(40)


def defined(formula, result="s[m]", **types):
    y = result.replace("s[", "Y[")
    dims = "m n" if "n" in result else "m"
    return Fused(
        name="terms", dims="m n", operands={"X": "m n", "Y": dims}, types={"X": int32, "Y": int32, "s": int32, **types},
        body={"s": f"{result} = {formula}", "o": f"{y} = {result}"},
    )  # fmt: skip


FORMULAS = {
    "sum(n, X[m,n] ^ n)": ("s[m]", (X ^ N).sum(1, dtype=np.int64).astype(np.int32)),
    "sum(n, X[m,n] * 5 + 1)": ("s[m]", (X.astype(np.int64) * 5 + 1).sum(1).astype(np.int32)),
    "max(n, X[m,n] ^ n)": ("s[m]", (X ^ N).max(1)),
    "min(n, X[m,n] // 3 - n % 7)": ("s[m]", (X // 3 - N % 7).min(1)),
    "cumsum(n, X[m,n] * 2 + 1)": ("s[m,n]", (X.astype(np.int64) * 2 + 1).cumsum(1).astype(np.int32)),
    "cummax(n, X[m,n] & 0xfffffff)": ("s[m,n]", np.maximum.accumulate(X & 0xFFFFFFF, 1)),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_terms_are_exact(tmp_path):
    """In `reference()`, the simulator, and the printed text on the CPU."""
    programs = {}
    for formula, (result, _) in FORMULAS.items():
        definition = defined(formula, result)
        assert eval(repr(definition)) == definition
        strategy = definition.tile(m=1).to(Block).load("X", RF, LANES).done()
        programs[formula] = strategy(definition(m=3, n=40))
    host = HostProgram([Printed.of(bound.program("sm_80")) for bound in programs.values()], tmp_path)
    for number, (formula, bound) in enumerate(programs.items()):
        right = FORMULAS[formula][1]
        assert np.array_equal(bound.spec.reference(X), right), formula
        assert np.array_equal(bound.compile("sm_80")(X), right), formula
        assert np.array_equal(host.run(number, {"X": X})["Y"], right), formula


def test_terms_that_may_need_more_bits():
    """A maximum of low bits would be another number; a sum of low bits has the right low bits."""
    with pytest.raises(ArgumentError, match=r"its terms s_terms are integers that may need more than 32 bits") as refused:
        defined("max(n, X[m,n] * 2)")(m=3, n=40)
    assert "types={'s_terms': int32}" in str(refused.value)
    small = X // 4
    assert np.array_equal(defined("max(n, X[m,n] * 2)", s_terms=int32)(m=3, n=40).reference(small), (small * 2).max(1))
