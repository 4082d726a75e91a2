"""`longest_first`: blocks start with the last tiles of a dimension. `SKIP_IF_IDENTITY`: no multiplication if all factors are 1."""

import re

import attrs
import numpy as np
import printed_text
import pytest
from ringed import errors
from test_fused_attention import SMALL, near_softmax, require_right

from fireiron import *
from fireiron.errors import DecompositionError, MatchError
from fireiron.ir import Let, statements
from fireiron.sim import simulate
from fireiron.strategies import attention

copied = Fused(name="copied", dims="m n g", batch="g", operands={"X": "m n g", "Y": "m n g"}, body={"copy": "Y[m,n,g] = X[m,n,g]"})


def tiles(strategy, **sizes):
    """For each block, the first element of its tile along `m` and `g`."""
    program = strategy(copied(**sizes)).program("sm_80")
    lets = {one.var.name: one for one in statements(program.ir.body) if isinstance(one, Let)}
    starts = []
    for block in range(int(str(program.ir.grid))):
        values = {"block": block, "thread": 0}
        starts.append(tuple(lets[name].value.evaluate(values) if name in lets else 0 for name in ("block_m", "block_g", "block_g2")))
    return program, starts


def chain(together=0):
    return copied.tile(m=4, g=1).to(Block).longest_first("m", together).done()


def test_longest_first_reverses_tiles():
    program, starts = tiles(chain(), m=11, n=8, g=4)
    assert [one[0] for one in starts] == [2] * 4 + [1] * 4 + [0] * 4
    assert [one[1] for one in starts] == [0, 1, 2, 3] * 3
    assert not errors(program.ir)
    x = np.arange(11 * 8 * 4).reshape(11, 8, 4).astype(np.float16)
    assert np.array_equal(simulate(program.ir, {"X": x}).outputs["Y"], x)


def test_longest_first_with_groups():
    program, starts = tiles(chain(2), m=12, n=8, g=4)
    assert [one[0] for one in starts] == [2, 2, 1, 1, 0, 0] * 2
    assert [one[1] + 2 * one[2] for one in starts] == [0, 1] * 3 + [2, 3] * 3
    assert len(set(starts)) == len(starts) and not errors(program.ir)


@pytest.mark.parametrize("together", (0, 2))
def test_longest_first_at_run_time_sizes(together):
    program = chain(together)(copied(m=sym("m"), n=8, g=4)).program("sm_80")
    assert not errors(program.ir)
    x = np.arange(9 * 8 * 4).reshape(9, 8, 4).astype(np.float16)
    assert np.array_equal(simulate(program.ir, {"X": x}, {"m": 9}).outputs["Y"], x)


def test_longest_first_with_one_tile():
    _, starts = tiles(chain(), m=4, n=8, g=2)
    assert [one[0] for one in starts] == [0, 0]


def test_tiles_of_many_blocks_are_distinct():
    program = chain()(copied(m=1 << 24, n=8, g=4)).program("sm_80")
    assert not errors(program.ir)
    narrow = copied.tile(m=4, g=1).to(Block).longest_first("m").done()
    assert not errors(narrow(copied(m=sym("m"), n=8, g=1 << 22)).program("sm_80").ir)


def test_overlapping_tiles_are_found():
    """Counting down from one tile too few, the first two blocks share a tile, and the last block's tile starts before 0."""
    program = chain()(copied(m=sym("m"), n=8, g=4)).program("sm_80")
    (let,) = [one for one in program.ir.body if isinstance(one, Let) and one.var.name == "block_m"]
    body = tuple(attrs.evolve(one, value=one.value - 1) if one is let else one for one in program.ir.body)
    assert errors(attrs.evolve(program.ir, body=body))


@pytest.mark.parametrize("together", (0, 2))
def test_whole_tiles_need_no_bounds_checks(together):
    """No bounds check if tiles divide the size. The tile of the first block is the last one, and no tile exceeds the size."""
    ir = chain(together)(copied(m=sym("m", multiple_of=4), n=8, g=4)).program("sm_80").ir
    assert not errors(ir)
    for off in (-1, 1):
        body = tuple(
            attrs.evolve(stmt, value=stmt.value + off) if isinstance(stmt, Let) and stmt.var.name == "block_m" else stmt for stmt in ir.body
        )
        assert errors(attrs.evolve(ir, body=body))


def test_longest_first_round_trips():
    strategy = chain(2)
    assert Strategy.from_json(strategy.to_json()) == strategy and eval(repr(strategy)) == strategy
    assert ".longest_first(dim='m', group=2)" in strategy(copied(m=8, n=8, g=4)).cuda("sm_80")


@pytest.mark.parametrize(
    ("refined", "message"),
    [
        (lambda one: one.longest_first("k"), "is not a tiled dimension"),
        (lambda one: one.longest_first("m", 3), "the number of the other tiles, 4"),
        (lambda one: one.longest_first("m").swizzle(lambda uid: uid ^ 1), "one of them"),
    ],
)
def test_longest_first_refusals(refined, message):
    with pytest.raises(DecompositionError, match=message):
        refined(copied.tile(m=4, g=1).to(Block)).done()(copied(m=8, n=8, g=4)).cuda("sm_80")


def test_longest_first_requires_blocks():
    with pytest.raises(DecompositionError, match="apply to blocks"):
        copied.tile(m=4, g=1).to(Block).tile(m=1).to(Warp).longest_first("m").done()(copied(m=8, n=8, g=4)).cuda("sm_80")


# ------------------------------------------------------------------------------------------ identity factors


def test_skip_if_identity_uses_one_branch():
    definition = attention.definition(causal=True)
    text = attention.by_rows(definition).with_(**SMALL)(attention.spec(64, 64, 64, fused=definition)).cuda("sm_80")
    assert re.search(r"// rescale: .*\n    if \(alpha\[0\] != 1\.0f \|\| alpha\[1\] != 1\.0f\) \{", text)
    assert text.count("!= 1.0f") == 2


def test_skip_if_identity_with_constant_and_increasing_maxima(tmp_path):
    """With decreasing scores the first block of keys has the maximum, and later branches are not taken; increasing scores always take it."""
    definition = attention.definition()
    spec = attention.spec(64, 96, 64, fused=definition)
    program = require_right(definition, spec, ramp=True)
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    host = printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    generator = np.random.default_rng(5)
    for ramp in (np.linspace(8, 0.1, 96), np.linspace(0.1, 8, 96), np.where(np.arange(96) == 70, 30, 1)):
        arrays = {name: generator.standard_normal((1, 96 if name != "Q" else 64, 1, *((1,) if name == "Q" else ()), 64)) for name in "QKV"}
        arrays["K"] *= ramp[None, :, None, None]
        arrays = {**{name: one.astype(np.float16) for name, one in arrays.items()}, "scale": np.float32(0.125)}
        near = near_softmax(spec, arrays)
        for got in (host.run(0, arrays, seed=2), simulate(program.ir, arrays).outputs):
            near.require(got)


@pytest.mark.parametrize(
    "formula", ("acc[m,d] = acc[m,d] + alpha[m]", "acc[m,d] = acc[m,d] * acc[m,d]", "acc[m,d] = max(acc[m,d], alpha[m])")
)
def test_skip_if_identity_requires_a_factor(formula):
    definition = Fused(
        name="scaled", dims="m d", operands={"X": "m d", "Y": "m d"},
        body={"acc": "acc[m,d] = X[m,d]", "alpha": "alpha[m] = max(d, acc[m,d])", "step": formula, "store": "Y[m,d] = acc[m,d] + alpha[m]"},
    )  # fmt: skip
    rows = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    with pytest.raises(MatchError, match="x\\[m,n\\] \\* f\\[m\\]"):
        definition.tile(m=1).to(Block).load("X", RF, rows).step("step", Pointwise.done(SKIP_IF_IDENTITY)).done()(
            definition(m=4, d=32)
        ).cuda("sm_80")
