"""The public names that campaigns draw: each has draws, or a reason; a new name without draws fails. Relations notice wrong tables."""

import named_generator
import numpy as np
import pytest
import relations
import test_library_sizes as library
from campaign import impossible, names, table
from campaign.table import Table

from fireiron import *
from fireiron.errors import LaunchError


def test_every_new_public_name_is_drawn_or_impossible():
    """Names that no campaign had drawn at the last publication are listed; others need draws."""
    new = {*table.read().undrawn()} - {*table.UNDRAWN.read_text(encoding="utf-8").splitlines()}
    assert not new, (
        f"no campaign drew {', '.join(sorted(new))}: extend a generator and run PYTHONPATH=.:tests python -m campaign SUBJECT, then "
        "python -m campaign --publish; or state a reason in campaign.impossible.NEVER"
    )


def test_reasons_name_public_names():
    assert {*impossible.NEVER} <= {*names.public()}


def test_a_new_verb_is_a_new_name(monkeypatch):
    monkeypatch.setattr(names, "verbs", lambda: {"mine": names.inspect.signature(lambda self, number=1: None)})
    public = names.public.__wrapped__()
    assert "verb mine" in public and "argument mine.number" in public and Table().undrawn()


def test_names_of_a_program():
    definition = Fused(
        name="d", dims="m n r", operands={"X": "r n", "T": "m", "Y": "m n", "z": "n"},
        body={"a": "t[m,n] = where(n >= 2, X[T[m],n], -inf)", "b": "Y[m,n] = where(n % 2 == 0, tanh(t[m,n]), 0)", "c": "z[n] max= max(m, t[m,n])"},
    )  # fmt: skip
    strategy = definition.tile(m=4, n=32).to(Block).rasterize(group_m=2).tile(m=1, n=1).to(Thread).done()
    used = names.names_of(strategy(definition(m=sym("M", high=64), n=40, r=9, dtype=float32)).program("sm_80"))
    assert {"verb rasterize", "argument rasterize.group_m", "level Block", "function where", "function tanh", "reduction max"} <= used
    assert {"combine max=", "operator >=", "operator %", "definition table", "spec run-time size", "instruction AtomicMax"} <= used
    assert used <= {*names.public()} and "argument rasterize.group_n" not in used and "operator *" not in used


def test_a_table_is_stored(tmp_path):
    counts = Table()
    counts.add({"verb tile": 5, "verb to": 3}, {"verb tile + verb to": 3}, "seeds 1 to 5")
    counts.write(tmp_path / "counts.json")
    stored = table.read(tmp_path / "counts.json")
    assert stored.names == counts.names and stored.pairs == {"verb tile + verb to": 2} and stored.sources == counts.sources
    assert "| target | target | 0 |" in table.summary(stored)


def test_impossible_pairs_have_reasons():
    assert impossible.reason_for_names("target sm_80", "target sm_90") and impossible.reason_for_names("mapping group_m", "verb tile")
    assert impossible.reason_for_names("instruction WGMMA_F16_F32", "target sm_80")
    assert not impossible.reason_for_names("instruction FFMA", "target sm_80")
    assert "alternatives" in (impossible.reason_for_names("instruction HMMA_16816_F32", "instruction FFMA") or "")
    assert not impossible.reason_for_names("instruction HMMA_16816_F32", "instruction LDMATRIX_16x16_ROW")


def test_relations_notice_a_wrong_table(monkeypatch):
    programs, _ = relations.related_products(1)
    assert not relations.objection_to_products(programs, 1)
    simulate = relations.simulate
    monkeypatch.setattr(
        relations,
        "simulate",
        lambda ir, arrays: simulate(ir, {**arrays, **({"rows": np.roll(arrays["rows"], 1)} if "rows" in arrays else {})}),
    )
    assert "differ from the plain product" in relations.objection_to_products(programs, 1)


def test_sizes_of_drawn_names_are_those_of_their_kernels():
    """A form may ignore a size, and its kernels may need a smallest one."""
    program = library.program("fp8_gemm:few", {"M": 64, "N": 128, "K": library.symbol("k", 8)})
    assert named_generator.supported(program, {"k": 128, "n": 40}) == {"k": 128}
    with pytest.raises(LaunchError, match="k // 128 is at least 1"):
        named_generator.supported(program, {"k": 120})
