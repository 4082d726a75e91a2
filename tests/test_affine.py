"""Affine indices with bounds: shifts, pooling, convolution, reversed and dilated reads, against NumPy on arrays with padding.

Kernels are simulated, checked, and compiled for sm_80 and sm_90a. Injected faults are found by a check or by the simulator.
"""

import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from test_indirect import LOOP, inputs_of, require_right
from test_indirect import WGMMA as WGMMA_LOOP

from fireiron import *
from fireiron.check import check, safety
from fireiron.errors import ArgumentError, FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Exec, rewritten
from fireiron.language.store import dumps, loads
from fireiron.measure.rounding import expected
from fireiron.sim import simulate
from fireiron.specs.fused import as_direct
from fireiron.tune.record import describe, spec_of
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import all_of, as_expr, conjuncts
from fireiron.values.notation import parse_tensor, tensor_text
from fireiron.values.notation.words import symbols_of as symbols_of_text

ELEMENT_COPY = Move.coalesced_copy(1).done()

SHIFT = Fused(name="shift", dims="m n h", operands={"X": "m h", "Y": "m n"}, body={"o": "Y[m,n] = X[m,n - 3] * 2 + 1"})
STENCIL = Fused(
    name="stencil", dims="m n", operands={"X": "m n", "Z": "m n", "Y": "m n"}, body={"o": "Y[m,n] = X[m,n - 1] + Z[m,n + 1] - 2"}
)
LONGER = Fused(name="longer", dims="m n h w", operands={"X": "h w", "Y": "m n"}, body={"o": "Y[m,n] = X[m - 1,n]"})
"""A plain index whose dimension has another size than that of the array."""
REVERSED = Fused(name="reverse", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"o": "Y[m,n] = X[m,size(n) - 1 - n]"})
POOL = Fused(name="pool", dims="c p r h", operands={"X": "c h", "Y": "c p"}, body={"s": "Y[c,p] = sum(r, X[c,p*2 + r - 1])"})
POOL2 = Fused(
    name="pool2", dims="c p q r s h w", operands={"X": "c h w", "Y": "c p q"},
    body={"s": "total[c,p,q] = sum(r, s, X[c,p*2 + r - 1,q*3 + 2*s - 2])", "o": "Y[c,p,q] = total[c,p,q] / 9"},
)  # fmt: skip
MAX_POOL = Fused(
    name="max_pool", dims="c p r h", operands={"X": "c h", "Y": "c p"},
    body={"s": "Y[c,p] = max(r, where(p*2 + r > 0 and p*2 + r - 1 < 17, X[c,p*2 + r - 1], -inf))"},
)  # fmt: skip
POOL3 = Fused(
    name="pool3", dims="a b c r s t x y z", operands={"X": "x y z", "Y": "a b c"},
    body={"o": "Y[a,b,c] = sum(r, s, t, X[a*2 + r - 1,b + s - 1,2*t + c - 2])"},
)  # fmt: skip
TRANSPOSED = Fused(
    name="transposed", dims="c p r h", operands={"X": "c h", "w": "r", "Y": "c p"},
    body={"t": "t[c,p,r] = X[c,p - r] * w[r]", "s": "Y[c,p] = sum(r, t[c,p,r])"},
)  # fmt: skip
DIRECT = Fused(
    name="direct_conv", dims="b o p q c r s h w", operands={"X": "b c h w", "W": "o c r s", "Y": "b o p q"}, batch="b",
    body={"t": "t[o,p,q,c,r,s] = X[b,c,p*2 + r - 1,q + s*2 - 2] * W[o,c,r,s]", "s": "Y[b,o,p,q] = sum(c, r, s, t[o,p,q,c,r,s])"},
)  # fmt: skip
CONV = Fused(
    name="conv", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s c o", "Y": "b p q o"}, batch="b p", scan="r s",
    init={"z": "acc[q,o] = 0"}, body={"mm": "acc[q,o] += sum(c, X[b,p*2 + r - 1,q + s*2 - 2,c] * W[r,s,c,o])"},
    final={"o": "Y[b,p,q,o] = relu(acc[q,o])"},
)  # fmt: skip


def elements(start, **tile):
    """A tile of a block, and one element per thread."""
    return start.tile(**tile).to(Block).tile(**{dim: 1 for dim in tile if dim not in start.fused_definition.batch}).to(Thread).done()


def conv(loop, q=64, o=64):
    return CONV.tile(b=1, p=1, q=q, o=o).to(Block).split(r=1).split(s=1).step("mm", loop).done()


CASES = {
    "shift": (elements(SHIFT, m=4, n=8), SHIFT, {"m": 5, "n": 25, "h": 21}),
    "shift in shared memory": (
        SHIFT.tile(m=4, n=8).to(Block).load("X", SH, ELEMENT_COPY).tile(m=1, n=1).to(Thread).done(), SHIFT, {"m": 5, "n": 25, "h": 21}
    ),
    "shift in registers": (
        SHIFT.tile(m=4, n=8).to(Block).load("X", RF).tile(m=1, n=2).to(Thread).done(), SHIFT, {"m": 5, "n": 24, "h": 24}
    ),
    "shift of columns": (elements(SHIFT, m=4, n=8), SHIFT, {"m": 5, "n": 25, "h": 21, "X": ColMajor}),
    "longer": (elements(LONGER, m=4, n=8), LONGER, {"m": 5, "n": 24, "h": 3, "w": 19}),
    "stencil": (elements(STENCIL, m=4, n=8), STENCIL, {"m": 5, "n": 21}),
    "stencil by vectors": (STENCIL.tile(m=4, n=32).to(Block).tile(m=1, n=4).to(Thread).done(), STENCIL, {"m": 5, "n": 64}),
    "reversed": (elements(REVERSED, m=4, n=8), REVERSED, {"m": 5, "n": 21}),
    "reversed in shared memory": (
        REVERSED.tile(m=4, n=8).to(Block).load("X", SH, ELEMENT_COPY).tile(m=1, n=4).to(Thread).done(), REVERSED, {"m": 5, "n": 24}
    ),
    "pooling": (elements(POOL, c=4, p=8), POOL, {"c": 5, "p": 9, "r": 3, "h": 17}),
    "pooling that leaves the array on one side": (elements(POOL, c=4, p=8), POOL, {"c": 5, "p": 8, "r": 2, "h": 40}),
    "maximum pooling": (elements(MAX_POOL, c=4, p=8), MAX_POOL, {"c": 5, "p": 9, "r": 3, "h": 17}),
    "pooling in two dimensions": (
        elements(POOL2, c=2, p=4, q=4), POOL2, {"c": 3, "p": 5, "q": 4, "r": 3, "s": 3, "h": 9, "w": 11}
    ),
    "pooling in three dimensions": (
        elements(POOL3, a=2, b=4, c=4), POOL3, {"a": 3, "b": 5, "c": 4, "r": 3, "s": 3, "t": 2, "x": 5, "y": 5, "z": 3}
    ),
    "transposed convolution": (elements(TRANSPOSED, c=2, p=16), TRANSPOSED, {"c": 3, "p": 19, "r": 4, "h": 16}),
    "direct convolution": (
        elements(DIRECT, b=1, o=4, p=2, q=4), DIRECT, {"b": 2, "o": 5, "p": 4, "q": 7, "c": 3, "r": 3, "s": 3, "h": 7, "w": 7}
    ),
    "convolution on tensor cores": (
        conv(LOOP), CONV, {"b": 2, "p": 2, "q": 17, "o": 72, "r": 3, "s": 3, "c": 32, "h": 3, "w": 17}
    ),
}  # fmt: skip


def padded(array, *sides):
    """The array in float64 with zeros before and after each dimension."""
    return np.pad(np.asarray(array, np.float64), [(one, 24) for one in sides])


def by_numpy(spec, arrays):
    """The result, computed from arrays with zeros around them."""
    size = {dim: int(spec.size(dim).high) for dim in spec.dims}
    name, x = spec.title, arrays["X"]
    if name == "shift":
        return padded(x, 0, 3)[: size["m"], : size["n"]] * 2 + 1
    if name == "stencil":
        return padded(x, 0, 1)[: size["m"], : size["n"]] + padded(arrays["Z"], 0, 0)[: size["m"], 1 : size["n"] + 1] - 2
    if name == "longer":
        return padded(x, 1, 0)[: size["m"], : size["n"]]
    if name == "reverse":
        return x[:, ::-1]
    if name in ("pool", "max_pool"):
        x = padded(x, 0, 1)[: size["c"]]
        if name == "max_pool":
            x = np.pad(np.asarray(arrays["X"], np.float64), [(0, 0), (1, 24)], constant_values=-np.inf)
        taps = [x[:, r : r + 2 * size["p"] : 2] for r in range(size["r"])]
        return sum(taps) if name == "pool" else np.max(taps, axis=0)
    if name == "pool2":
        x = padded(x, 0, 1, 2)[: size["c"]]
        return sum(x[:, r : r + 2 * size["p"] : 2, 2 * s : 2 * s + 3 * size["q"] : 3] for r in range(3) for s in range(3)) / 9
    if name == "pool3":
        x, (a, b, c) = padded(x, 1, 1, 2), (size[dim] for dim in "abc")
        return sum(x[r : r + 2 * a : 2, s : s + b, 2 * t : 2 * t + c] for r in range(3) for s in range(3) for t in range(2))
    if name == "transposed":
        return np.stack([np.convolve(row, np.asarray(arrays["w"], np.float64))[: size["p"]] for row in np.asarray(x, np.float64)])
    w, (p, q) = np.asarray(arrays["W"], np.float64), (size["p"], size["q"])
    if name == "direct_conv":
        x = padded(x, 0, 0, 1, 2)[: size["b"], : size["c"]]
        taps = [(x[:, :, r : r + 2 * p : 2, 2 * s : 2 * s + q], w[:, :, r, s]) for r in range(3) for s in range(3)]
        return sum(np.einsum("bcpq,oc->bopq", tap, weight) for tap, weight in taps)
    x = padded(x, 0, 1, 2, 0)[: size["b"], ..., : size["c"]]
    taps = [(x[:, r : r + 2 * p : 2, 2 * s : 2 * s + q], w[r, s]) for r in range(3) for s in range(3)]
    return np.maximum(sum(np.einsum("bpqc,co->bpqo", tap, weight) for tap, weight in taps), 0)


@pytest.mark.parametrize("name", CASES)
def test_right(name):
    strategy, definition, sizes = CASES[name]
    spec = definition(**sizes)
    program = strategy(spec).program("sm_80")
    assert safety(program.lowered) == ()
    arrays = inputs_of(spec)
    want = by_numpy(spec, arrays)
    require_right(spec.reference(*arrays.values()), want)
    require_right(simulate(program.ir, arrays, order=random.Random(1)).outputs["Y"], want)


@pytest.mark.parametrize("name", CASES)
def test_texts(name):
    """A definition, its spec, its strategy and its kernel are equal after they are written and read."""
    strategy, definition, sizes = CASES[name]
    spec = definition(**sizes)
    bound = strategy(spec)
    program = bound.program("sm_80")
    assert eval(repr(definition)) == definition and eval(repr(spec)) == spec
    assert loads(dumps(bound)) == bound and Strategy.from_json(strategy.to_json()) == strategy
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    assert spec_of(describe(spec)) == spec
    for view in spec.views:
        assert parse_tensor(tensor_text(view.tensor), symbols_of_text(view.tensor)) == view.tensor


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    strategy, definition, sizes = CASES[name]
    program = strategy(definition(**sizes)).program("sm_80")
    report = compile_cuda(program.cuda, "sm_80").resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


def test_wgmma():
    """Threads copy with cp.async, which writes zeros for elements outside of the array, into stages that wgmma reads."""
    spec = CONV(b=1, p=2, q=130, o=64, r=3, s=3, c=64, h=4, w=130)
    program = conv(WGMMA_LOOP, q=128)(spec).program("sm_90a")
    assert safety(program.lowered) == ()
    assert "cp_async_16_zfill" in program.cuda and "fence_proxy_async" in program.cuda
    arrays = inputs_of(spec)
    require_right(simulate(program.ir, arrays, order=random.Random(3)).outputs["Y"], by_numpy(spec, arrays))
    if toolchains():
        assert compile_cuda(program.cuda, "sm_90a").resources[program.name].spill_stores == 0


def test_run_time_sizes():
    spec = SHIFT(m=sym("M"), n=sym("N"), h=sym("H"))
    program = elements(SHIFT, m=4, n=8)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for sizes in ({"M": 1, "N": 1, "H": 1}, {"M": 5, "N": 30, "H": 12}):
        arrays = inputs_of(spec, sizes)
        want = padded(arrays["X"], 0, 3)[: sizes["M"], : sizes["N"]] * 2 + 1
        require_right(simulate(program.ir, arrays, sizes).outputs["Y"], want)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


def test_reversed_run_time_sizes():
    spec = REVERSED(m=3, n=sym("N"))
    program = elements(REVERSED, m=4, n=8)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for count in (1, 13):
        arrays = inputs_of(spec, {"N": count})
        np.testing.assert_array_equal(simulate(program.ir, arrays, {"N": count}).outputs["Y"], arrays["X"][:, ::-1])


def test_conditions():
    """An index is tested only where it may leave the array, and a vector only along dimensions that the index does not have."""
    by_name = {name: strategy(definition(**sizes)).program("sm_80").cuda for name, (strategy, definition, sizes) in CASES.items()}
    assert "? __half2float(x_source[(-1)])" in by_name["pooling"]
    assert "< 40" not in by_name["pooling that leaves the array on one side"] and "? " not in by_name["reversed"]
    assert "uint2*>(&X" not in by_name["stencil by vectors"]


def test_error_bounds():
    """Bounds of elements are those of the operands with zeros."""
    spec = POOL(c=5, p=9, r=3, h=17)
    arrays = inputs_of(spec)
    direct, gathered = as_direct(spec, arrays, {})
    bounds, direct_bounds = expected(spec, arrays, {})["Y"], expected(direct, gathered, {})["Y"]
    np.testing.assert_array_equal(bounds.value, direct_bounds.value)
    np.testing.assert_array_equal(bounds.error, direct_bounds.error)
    assert (gathered["X"][:, 0, 0] == 0).all() and (gathered["X"][:, 8, 2] == 0).all()


def test_outside_of_the_array_is_not_read():
    """NaN in an array reaches only results whose index is inside; zeros outside do not hide NaN of another operand."""
    spec = STENCIL(m=1, n=9)
    program = elements(STENCIL, m=1, n=8)(spec).program("sm_80")
    arrays = inputs_of(spec)
    arrays["X"][0, 8] = arrays["Z"][0, 0] = np.nan  # no index of the result is 9 or -1
    assert np.isfinite(simulate(program.ir, arrays).outputs["Y"]).all() and np.isfinite(spec.reference(*arrays.values())).all()


def test_check_of_definitions():
    for definition in (SHIFT, STENCIL, REVERSED, POOL, POOL2, TRANSPOSED):
        definition.check()


# ---------------------------------------------------------------------------------------------- injected faults


def with_storage(program, name, **changes):
    """The lowered kernel with another storage of an array."""
    kernel = program.lowered
    changed = [attrs.evolve(one, storage=attrs.evolve(one.storage, **changes)) if one.name == name else one for one in kernel.buffers]
    return attrs.evolve(kernel, buffers=tuple(changed))


def without_test(kernel, text):
    """The kernel without the conditions of loads whose text contains `text`."""

    def changed(stmt):
        if not isinstance(stmt, Exec):
            return (stmt,)
        pieces = tuple(tuple(attrs.evolve(one, condition=_kept(one.condition, text)) for one in part) for part in stmt.pieces)
        return (attrs.evolve(stmt, pieces=pieces),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


def _kept(condition, text):
    return all_of(part for part in conjuncts(condition) if text not in str(part))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": 0}, "its indices give"),
        ({"layout": Layout((5, 25), (21, 2))}, "its indices give"),
        ({"reversed": ((1, as_expr(1)),)}, "its indices give"),
    ],
    ids=["offset", "stride", "direction"],
)
def test_faulty_storages_are_found(changes, message):
    program = elements(SHIFT, m=4, n=8)(SHIFT(m=5, n=25, h=21)).program("sm_80")
    assert check(with_storage(program, "X")) == check(program.lowered)
    assert any(message in finding.message and finding.kind == "bounds" for finding in safety(with_storage(program, "X", **changes)))


@pytest.mark.parametrize("test", ["< 21", "0 <"], ids=["end", "zero"])
def test_missing_conditions_are_found(test):
    """A load without the test of its index is found by the check, and by the simulator where the index leaves the array."""
    spec = SHIFT(m=5, n=25, h=21)
    program = elements(SHIFT, m=4, n=8)(spec).program("sm_80")
    wrong = without_test(program.lowered, test)
    assert any("is read without the condition" in finding.message for finding in safety(wrong))
    with pytest.raises(SimulationError, match="is not in its array"):
        simulate(without_test(program.ir, test), inputs_of(spec))


# ---------------------------------------------------------------------------------------------- refusals


def fused(body, dims="m n h", operands=None, **options):
    return Fused(name="refused", dims=dims, operands=operands or {"X": "m h", "Y": "m n"}, body={"o": body}, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fused("Y[m,n + 1] = X[m,n - 1]"), "Y[m,n + 1] is written at an affine index"),
        (lambda: fused("Y[m,n] = X[m,n - 1] + X[m,n + 1]"), "X has two index lists"),
        (lambda: fused("Y[m,n] = X[m,size(n) - 1]"), "size_n - 1 has no coordinate"),
        (lambda: fused("Y[m,n] = X[m,n - n + 1]"), "has no coordinate"),
        (lambda: fused("Y[m,n] = X[m,size(q) - 1 - n]"), "size(q) in an index of X"),
        (lambda: fused("Y[m,n] = X[m,n * m * 2]"), "expected"),
        (lambda: fused("Y[m,n] = X[n - 1]"), "X[n - 1] has other dimensions than the operand"),
        (lambda: fused("Y[m,n] = X[m,q + 1]"), "q is not a dimension"),
        (
            lambda: fused("Y[m] = max(n, X[m,n - 1])", operands={"X": "m h", "Y": "m"}),
            "max of X[m,n - 1], which is zero outside of the array",
        ),
        (lambda: Kind("Shifted", "y[m] = x[m + 1]").starter(8), "selects elements by an affine index"),
        (lambda: fused("Y[m,n] = X[m,n - 1]")(m=4, n=8), "the sizes must be those of its dimensions"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(FireironError) as caught:
        make()
    assert message in str(caught.value)


def test_affine_temporaries_are_refused():
    with pytest.raises(ArgumentError, match="of a temporary"):
        fused("Y[m,n] = t[m,n - 1]", init=None, operands={"X": "m n", "Y": "m n"}, dims="m n")


def test_numbers():
    index = AffineIndex(((0, 2), (1, -1)), 3)
    assert index.of((4, 5)) == 6 and index.has(1) and not index.has(2)


# ---------------------------------------------------------------------------------------------- commands


SOURCE = """
from fireiron import *

pool = Fused(name="pool", dims="c p r h", operands={"X": "c h", "Y": "c p"}, body={"s": "Y[c,p] = sum(r, X[c,p*2 + r - 1])"})
strategy = pool.tile(c=4, p=8).to(Block).tile(c=1, p=1).to(Thread).done()(pool(c=sym("C"), p=9, r=3, h=17))
"""

COMMANDS = {
    "show": ("X float16 RowMajor at [c,p * 2 + r - 1]", ()),
    "check": ("X read by", ()),
    "explain": ("X", ()),
    "cost": ("DRAM", ("--size", "C=4096")),
    "run": ("PASS", ("--simulate", "--size", "C=7")),
    "emit": ("> 0", ()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, tmp_path, capsys):
    wanted, options = COMMANDS[command]
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    header = drawn_and_exported(SOURCE, tmp_path, capsys)
    assert "element (c, h) is X[c * 17 + h]" in header
