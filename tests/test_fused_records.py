"""Records of multi-step definitions: the record for a spec, the default without one, and records of epilogues."""

import numpy as np
import pytest
from test_records import no_settings, synthetic, written  # noqa: F401

from fireiron import *
from fireiron.language import library
from fireiron.strategies import attention, layernorm, lstm, mlp
from fireiron.tune.record import strategy_hash
from fireiron.tune.records import Records
from fireiron.tune.task import make_task


def of_definition(name, spec, **changes):
    """A record of a strategy of the library for a definition."""
    strategy = library.find(name).strategy
    values = {one: tunable.values[0] for one, tunable in strategy.tunables().items()} | changes.pop("values", {})
    return synthetic(spec, strategy=name, strategy_hash=strategy_hash(strategy), values=values, **changes)


def test_definitions_are_answered(tmp_path, monkeypatch):
    """By the definition, the types and the sizes; the number of heads may differ, the head dimension must be equal."""
    causal = attention.definition(causal=True)
    spec = attention.spec(1024, 1024, 64, heads=16, batch=2, fused=causal)
    some = Records(
        (
            of_definition("attention:causal", spec, us=9.0, values={"bm": 64, "bn": 32}),
            of_definition("attention:causal_q_in_registers", spec, us=8.0, values={"bm": 64, "wm": 16}),
            of_definition("attention", attention.spec(1024, 1024, 128, heads=16), us=3.0, values={"bn": 32}),
        )
    )
    choice = some.best(spec, "sm_90")
    assert choice.exact and choice.record.strategy == "attention:causal_q_in_registers" and choice.strategy.spec == spec
    near = some.best(attention.spec(512, 512, 64, heads=4, batch=8, fused=causal), "sm_90")
    assert not near.exact and near.record.strategy.startswith("attention:causal") and "distance 1.50" in near.why
    for other in (
        attention.spec(1024, 1024, 128, heads=16, batch=2, fused=causal),
        attention.spec(1024, 1024, 64, heads=16, dtype=bfloat16),
    ):
        assert some.find(other, "sm_90") is None
        with pytest.raises(StoreError, match="fireiron tune attention"):
            some.best(other, "sm_90")
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(tmp_path / "mine.jsonl", *some)))
    assert best_strategy(spec, "sm_90") == choice.strategy and best_strategy(spec, "sm_90", default=True) == choice.strategy
    assert best_strategy(attention.spec(1024, 1024, 128, fused=causal), default=True).spec.kind.starter == causal
    with pytest.raises(ArgumentError, match="require_record"):
        best_strategy(spec, require_record=True, default=True)


def test_rows_have_defaults():
    """The file's values for the size; other row sizes have no record."""
    spec = layernorm.spec(4096, 1024)
    assert library.defaults(spec) == (("layernorm", layernorm.values(spec)),)
    recorded = of_definition("layernorm", layernorm.spec(8192, 1024), values={"rows": 1, "iterations": 2})
    assert Records((recorded,)).best(spec, "sm_90").record == recorded
    assert Records((recorded,)).find(layernorm.spec(4096, 2048), "sm_90") is None
    strategy = best_strategy(layernorm.spec(4096, 2048), default=True)
    assert not strategy.tunables() and strategy.spec == layernorm.spec(4096, 2048)


def test_epilogues_have_separate_records(tmp_path, monkeypatch):
    a, b, bias = np.ones((64, 32), np.float16), np.ones((32, 48), np.float16), np.ones(48, np.float16)
    text = "relu(acc + bias[n])"
    plain = matmul.kernel(a, b, epilogue=text, bias=bias)
    values = {"bm": 32, "bn": 32, "wm": 16, "wn": 16}
    record = of_definition("small", plain.program.spec, architecture="sm_90", values=values, us=1.0)
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(tmp_path / "mine.jsonl", record)))
    matmul.clear()
    for required in (None, True):
        kernel = matmul.kernel(a, b, epilogue=text, bias=bias, require_record=required)
        assert (kernel.block, kernel.grid()) == (128, 4) and kernel.program.cuda != plain.program.cuda
    assert (matmul(a, b, epilogue=text, bias=bias) == 33).all()
    with pytest.raises(StoreError, match="there is no record"):
        matmul(a, b, epilogue="relu(acc - bias[n])", bias=bias, require_record=True)
    matmul.clear()


def test_operations_of_definitions():
    def operations(name, spec):
        return make_task(library.find(name).strategy, spec, "sm_90", fixed={}, sizes={}, name=name).operations

    assert operations("attention", attention.spec(512, 256, 64, heads=4, batch=2)) == 4 * 512 * 256 * 64 * 8
    assert operations("mlp", mlp.spec(8192, 128, 20)) == 2 * 8192 * 128 * 128 * 20
    assert operations("lstm", lstm.spec(64, 32, 128)) == 4 * 64 * 32 * 128
    assert operations("layernorm", layernorm.spec(64, 1024)) == 0
