"""Affine indices: values outside of the array, padding modes, exact quotients (transposed convolution), against NumPy.

Kernels are simulated, checked, executed on the CPU, and compiled for sm_80 and sm_90a. Injected faults are found by a check.
"""

import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed
from test_affine import elements, with_storage
from test_indirect import LOOP, inputs_of, require_right
from test_indirect import WGMMA as WGMMA_LOOP

import fireiron.values.tensor as tensors
from fireiron import *
from fireiron.check import safety
from fireiron.errors import FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Exec, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.tune.record import describe, spec_of
from fireiron.values.affine import PADDING_MODES, AffineIndex, ComputedIndex, moved_inside
from fireiron.values.expr import Var, as_expr
from fireiron.values.notation import parse_tensor, tensor_text
from fireiron.values.notation.words import symbols_of as symbols_of_text

NUMPY_MODES = {"replicate": "edge", "reflect": "reflect", "circular": "wrap"}


def pooling(by, value, name):
    return Fused(
        name=name,
        dims="c p r h",
        operands={"X": "c h", "Y": "c p"},
        body={"s": f"Y[c,p] = {by}(r, X[c,p*2 + r - 1])"},
        outside={"X": value},
    )


MAX_POOL = pooling("max", "-inf", "max_pool")
MIN_POOL = pooling("min", "inf", "min_pool")
SUM_POOL = pooling("sum", 1.5, "sum_pool")
PRODUCT = pooling("prod", 1, "prod_pool")
MAX_POOL2 = Fused(
    name="max_pool2", dims="c p q r s h w", operands={"X": "c h w", "Y": "c p q"}, outside={"X": "-inf"},
    body={"s": "Y[c,p,q] = max(r, s, X[c,p*2 + r - 1,q*3 + 2*s - 2])"},
)  # fmt: skip
ROWS = Fused(
    name="rows", dims="m n h", operands={"X": "h n", "Z": "m n", "Y": "m n"}, body={"o": "Y[m,n] = X[m - 2,n] + Z[m,n]"}, outside={"X": 3}
)
MODES = {
    mode: Fused(
        name=mode,
        dims="c p q h w",
        operands={"X": "c h w", "Y": "c p q"},
        body={"o": "Y[c,p,q] = X[c,p - 2,q - 3] * 2"},
        outside={"X": mode},
    )
    for mode in PADDING_MODES
}
UP1 = Fused(
    name="up1", dims="c p r h", operands={"X": "c h", "w": "r", "Y": "c p"},
    body={"t": "t[c,p,r] = X[c,(p + 1 - r) / 2] * w[r]", "s": "Y[c,p] = sum(r, t[c,p,r])"},
)  # fmt: skip
UP2 = Fused(
    name="up2", dims="b o p q c r s h w", operands={"X": "b c h w", "W": "c o r s", "Y": "b o p q"}, batch="b",
    body={
        "t": "t[o,p,q,c,r,s] = X[b,c,(p + 2 - 2*r) / 3,(q + 1 - s) / 2] * W[c,o,r,s]", "s": "Y[b,o,p,q] = sum(c, r, s, t[o,p,q,c,r,s])",
    },
)  # fmt: skip
UP3 = Fused(
    name="up3", dims="x y z r s t u v w", operands={"X": "u v w", "W": "r s t", "Y": "x y z"},
    body={
        "t": "t[x,y,z,r,s,t] = X[(x + 1 - r) / 2,(y - s) / 2,(z + 1 - t) / 3] * W[r,s,t]", "s": "Y[x,y,z] = sum(r, s, t, t[x,y,z,r,s,t])",
    },
)  # fmt: skip
UP_CORES = Fused(
    name="up_cores", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s c o", "Y": "b p q o"}, batch="b p", scan="r s",
    init={"z": "acc[q,o] = 0"}, body={"mm": "acc[q,o] += sum(c, X[b,(p + 1 - r) / 2,(q + 1 - s) / 2,c] * W[r,s,c,o])"},
    final={"o": "Y[b,p,q,o] = acc[q,o]"},
)  # fmt: skip
COPY = Move.coalesced_copy(1).done()


def loaded(start, memory, **tile):
    return start.tile(**tile).to(Block).load("X", memory, COPY).tile(**dict.fromkeys(tile, 1)).to(Thread).done()


def cores(loop, q=64, o=64):
    return UP_CORES.tile(b=1, p=1, q=q, o=o).to(Block).split(r=1).split(s=1).step("mm", loop).done()


POOLED = {"c": 5, "p": 9, "r": 3, "h": 17}
PADDED = {"c": 3, "p": 9, "q": 12, "h": 5, "w": 6}
CASES = {
    "max": (elements(MAX_POOL, c=4, p=8), MAX_POOL, POOLED),
    "max in shared memory": (loaded(MAX_POOL, SH, c=4, p=8), MAX_POOL, POOLED),
    "max in registers": (MAX_POOL.tile(c=4, p=8).to(Block).load("X", RF).tile(c=1, p=1).to(Thread).done(), MAX_POOL, POOLED),
    "max of bfloat16": (elements(MAX_POOL, c=4, p=8), MAX_POOL, {**POOLED, "dtype": bfloat16}),
    "min": (elements(MIN_POOL, c=4, p=8), MIN_POOL, {**POOLED, "dtype": float32}),
    "sum": (elements(SUM_POOL, c=4, p=8), SUM_POOL, POOLED),
    "sum in shared memory": (loaded(SUM_POOL, SH, c=4, p=8), SUM_POOL, POOLED),
    "part of a sum": (
        SUM_POOL.tile(c=4, p=8, r=4).to(Block).tile(c=1, p=1).to(Thread).done(), SUM_POOL, {**POOLED, "types": {"Y": float32}}
    ),
    "product": (elements(PRODUCT, c=4, p=8), PRODUCT, POOLED),
    "max in two dimensions": (
        elements(MAX_POOL2, c=2, p=4, q=4), MAX_POOL2, {"c": 3, "p": 5, "q": 4, "r": 3, "s": 3, "h": 9, "w": 11}
    ),
    "vectors of rows": (ROWS.tile(m=4, n=64).to(Block).tile(m=1, n=8).to(Thread).done(), ROWS, {"m": 9, "n": 64, "h": 5}),
    "pairs of rows": (
        ROWS.tile(m=4).to(Block).load("Z", RF, Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()).done(), ROWS, {"m": 9, "n": 64, "h": 5}
    ),
    "vectors to shared memory": (
        ROWS.tile(m=4, n=64).to(Block).load("X", SH, Move.coalesced_copy(8).done()).tile(m=1, n=8).to(Thread).done(), ROWS,
        {"m": 9, "n": 64, "h": 5, "dtype": float32},
    ),
    **{mode: (elements(MODES[mode], c=2, p=4, q=4), MODES[mode], PADDED) for mode in PADDING_MODES},
    **{f"{mode} in shared memory": (loaded(MODES[mode], SH, c=2, p=4, q=4), MODES[mode], PADDED) for mode in PADDING_MODES},
    **{f"{mode} of one element": (elements(MODES[mode], c=2, p=4, q=4), MODES[mode], {**PADDED, "h": 1}) for mode in PADDING_MODES},
    "transposed": (elements(UP1, c=2, p=16), UP1, {"c": 3, "p": 34, "r": 3, "h": 17}),
    "transposed in shared memory": (loaded(UP1, SH, c=2, p=16), UP1, {"c": 3, "p": 34, "r": 3, "h": 17}),
    "transposed in two dimensions": (
        elements(UP2, b=1, o=2, p=4, q=4), UP2, {"b": 2, "o": 3, "p": 14, "q": 10, "c": 3, "r": 2, "s": 4, "h": 5, "w": 4}
    ),
    "transposed in three dimensions": (
        elements(UP3, x=2, y=4, z=4), UP3, {"x": 6, "y": 5, "z": 8, "r": 3, "s": 2, "t": 3, "u": 3, "v": 2, "w": 3}
    ),
    "transposed on tensor cores": (
        cores(LOOP), UP_CORES, {"b": 1, "p": 5, "q": 34, "o": 72, "r": 3, "s": 3, "c": 32, "h": 3, "w": 17}
    ),
}  # fmt: skip


def windows_of(x, sizes, value):
    """The elements at `2 * p + r - 1` of rows with a value around them."""
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), (1, 24)), constant_values=value)
    return np.stack([padded[:, r : r + 2 * sizes["p"] : 2] for r in range(sizes["r"])])


def transposed(x, w, out, stride, pad, dilation):
    """Add each product to its place (`torch.nn.functional.conv_transpose`); x (..dims), w (..dims), for any number of dimensions."""
    result = np.zeros(out)
    for place, value in np.ndenumerate(np.asarray(x, np.float64)):
        for tap, weight in np.ndenumerate(np.asarray(w, np.float64)):
            to = tuple(i * s - p + d * r for i, s, p, d, r in zip(place, stride, pad, dilation, tap, strict=True))
            if all(0 <= one < size for one, size in zip(to, out, strict=True)):
                result[to] += value * weight
    return result


def by_numpy(spec, arrays):
    size = {dim: int(spec.size(dim).high) for dim in spec.dims}
    name, x = spec.title, arrays["X"]
    if name.endswith("_pool"):
        by, value = {"max": (np.max, -np.inf), "min": (np.min, np.inf), "sum": (np.sum, 1.5), "prod": (np.prod, 1)}[name.split("_")[0]]
        return by(windows_of(x, size, value), axis=0)
    if name == "max_pool2":
        padded = np.pad(np.asarray(x, np.float64), ((0, 0), (1, 24), (2, 24)), constant_values=-np.inf)
        taps = [padded[:, r : r + 2 * size["p"] : 2, 2 * s : 2 * s + 3 * size["q"] : 3] for r in range(3) for s in range(3)]
        return np.max(taps, axis=0)
    if name == "rows":
        padded = np.pad(np.asarray(x, np.float64), ((2, 9), (0, 0)), constant_values=3)
        return padded[: size["m"]] + arrays["Z"]
    if name in NUMPY_MODES:
        return np.pad(np.asarray(x, np.float64), ((0, 0), (2, 2 + 5 - x.shape[1]), (3, 3)), mode=NUMPY_MODES[name]) * 2
    if name == "up1":
        return np.stack([transposed(row, arrays["w"], (size["p"],), (2,), (1,), (1,)) for row in x])
    if name == "up3":
        return transposed(x, arrays["W"], (size["x"], size["y"], size["z"]), (2, 2, 3), (1, 0, 1), (1, 1, 1))
    w, out = np.asarray(arrays["W"], np.float64), np.zeros([size[dim] for dim in ("bopq" if name == "up2" else "bpqo")])
    if name == "up2":
        for b, o, c in np.ndindex(size["b"], size["o"], size["c"]):
            out[b, o] += transposed(x[b, c], w[c, o], out.shape[2:], (3, 2), (2, 1), (2, 1))
        return out
    for h, k, r, s in np.ndindex(size_of(x, 1), size_of(x, 2), size["r"], size["s"]):
        p, q = 2 * h - 1 + r, 2 * k - 1 + s
        if 0 <= p < size["p"] and 0 <= q < size["q"]:
            out[:, p, q] += np.asarray(x[:, h, k], np.float64) @ w[r, s]
    return out


def size_of(array, axis):
    return array.shape[axis]


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


def test_outside_distinguishes_definitions():
    assert pooling("max", "-inf", "max_pool") == MAX_POOL != pooling("max", -1, "max_pool")
    assert "X[c,h] outside -inf" in str(MAX_POOL) and "outside={'X': '-inf'}" in repr(MAX_POOL)


QUICK = ("max", "sum in shared memory", "vectors to shared memory", "reflect", "circular", "transposed in two dimensions")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("names", [QUICK, pytest.param(tuple(CASES), marks=pytest.mark.nightly)], ids=["quick", "all"])
@pytest.mark.sampled(1)
def test_printed_text(names, tmp_path):
    """The printed texts give the results of NumPy on a CPU, and read no element outside of an array (address sanitizer)."""
    cases = {name: CASES[name] for name in names}
    specs = [definition(**sizes) for _, definition, sizes in cases.values()]
    programs = [strategy(spec).program("sm_80") for (strategy, _, _), spec in zip(cases.values(), specs, strict=True)]
    host = HostProgram(map(Printed.of, programs), tmp_path)
    for number, spec in enumerate(specs):
        arrays = inputs_of(spec)
        require_right(host.run(number, arrays)["Y"], by_numpy(spec, arrays))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_compiled(architecture):
    for name in ("max", "vectors of rows", "reflect in shared memory", "circular", "replicate", "transposed in two dimensions"):
        strategy, definition, sizes = CASES[name]
        program = strategy(definition(**sizes)).program(architecture)
        report = compile_cuda(program.cuda, architecture).resources[program.name]
        assert report.spill_stores == report.stack_frame == 0, name


def test_wgmma():
    """A transposed convolution with stride 2: cp.async writes zeros for elements that do not exist, into stages that wgmma reads."""
    spec = UP_CORES(b=1, p=2, q=130, o=64, r=3, s=3, c=64, h=2, w=65)
    program = cores(WGMMA_LOOP, q=128)(spec).program("sm_90a")
    assert safety(program.lowered) == ()
    assert "cp_async_16_zfill" in program.cuda and "wgmma" in program.cuda
    arrays = inputs_of(spec)
    require_right(simulate(program.ir, arrays, order=random.Random(3)).outputs["Y"], by_numpy(spec, arrays))
    if toolchains():
        assert compile_cuda(program.cuda, "sm_90a").resources[program.name].spill_stores == 0


def test_vectors_outside():
    """A vector outside of the array is a vector of the value, and pairs of float16 are added as pairs."""
    text = CASES["vectors to shared memory"][0](ROWS(m=9, n=64, h=5)).cuda("sm_80")
    assert "make_uint4(0x42004200u, 0x42004200u, 0x42004200u, 0x42004200u)" in text
    text = CASES["pairs of rows"][0](ROWS(m=9, n=64, h=5)).cuda("sm_80")
    assert ": 0x42004200;" in text and "__hadd2" in text


def test_copies_that_write_zeros_are_not_used():
    """cp.async writes zeros, so copies of an operand with another value outside are loads and stores; a named cp.async is refused."""
    loop = ROWS.tile(m=4, n=64).to(Block).load("X", SH, Move.coalesced_copy(8).done()).tile(m=1, n=8).to(Thread).done()
    assert "cp_async" not in loop(ROWS(m=9, n=64, h=5)).cuda("sm_80")
    named = ROWS.tile(m=4, n=64).to(Block).load("X", SH, Move.tile(1, 8).to(Thread).done(CP_ASYNC[0])).tile(m=1, n=8).to(Thread).done()
    with pytest.raises(FireironError, match="outside of its array"):
        named(ROWS(m=16, n=64, h=5)).cuda("sm_80")


@pytest.mark.parametrize("mode", PADDING_MODES)
def test_run_time_sizes(mode):
    spec = MODES[mode](c=2, p=sym("P"), q=sym("Q", high=1 << 12), h=sym("H"), w=sym("W", high=1 << 12))
    program = elements(MODES[mode], c=2, p=4, q=4)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for sizes in ({"P": 9, "Q": 12, "H": 5, "W": 6}, {"P": 7, "Q": 9, "H": 1, "W": 2}, {"P": 1, "Q": 1, "H": 9, "W": 9}):
        arrays = inputs_of(spec, sizes)
        pad = [(0, 0), (2, 20), (3, 20)]
        want = np.pad(arrays["X"], pad, mode=NUMPY_MODES[mode])[:, : sizes["P"], : sizes["Q"]] * 2
        np.testing.assert_array_equal(simulate(program.ir, arrays, sizes).outputs["Y"], want)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@pytest.mark.parametrize("mode", PADDING_MODES)
@pytest.mark.parametrize("extent", [1, 2, 3, 7])
def test_moved_inside(mode, extent):
    """Numbers and expressions give the indices of `numpy.pad`, also far outside of the array."""
    wanted = np.pad(np.arange(extent), 30, mode=NUMPY_MODES[mode])
    places = np.arange(-30, extent + 30)
    np.testing.assert_array_equal(np.array([moved_inside(int(place), extent, mode) for place in places]), wanted)
    var = Var("i", 0, extent + 59)
    size = sym("n", high=100)
    for moved in (moved_inside(var - 30, as_expr(extent), mode), moved_inside(var - 30, size, mode)):
        values = [moved.evaluate({"i": place + 30, "n": extent}) for place in range(-30, extent + 30)]
        assert [int(value) for value in values] == list(wanted)


def test_check_of_definitions():
    for definition in (MAX_POOL, SUM_POOL, UP1, *MODES.values()):
        definition.check()


# ---------------------------------------------------------------------------------------------- injected faults


def with_pieces(kernel, **changes):
    """The kernel in which pieces with a value outside have other fields."""

    def changed(stmt):
        if not isinstance(stmt, Exec):
            return (stmt,)
        pieces = tuple(tuple(attrs.evolve(one, **changes) if one.outside is not None else one for one in part) for part in stmt.pieces)
        return (attrs.evolve(stmt, pieces=pieces),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"outside": 0}, "is 0 outside of its array"), ({"bounds": as_expr(0)}, "and is in bounds where")],
    ids=["value", "bounds"],
)
def test_faulty_values_are_found(changes, message):
    spec = SUM_POOL(**POOLED)
    program = elements(SUM_POOL, c=4, p=8)(spec).program("sm_80")
    assert any(message in finding.message for finding in safety(with_pieces(program.lowered, **changes)))
    arrays = inputs_of(spec)
    if "outside" in changes:
        with pytest.raises(SimulationError, match="is 0 outside of its array"):
            simulate(with_pieces(program.ir, **changes), arrays)
    else:
        got = simulate(with_pieces(program.ir, **changes), arrays).outputs["Y"]
        assert not np.allclose(np.asarray(got, np.float64), by_numpy(spec, arrays), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("change", [{"mode": "circular"}, {"stride": 1}, {"extent": 4}], ids=["mode", "stride", "extent"])
def test_faulty_indices_are_found(change):
    program = CASES["reflect"][0](MODES["reflect"](**PADDED)).program("sm_80")
    (storage,) = (one.storage for one in program.lowered.buffers if one.name == "X")
    computed = tuple(attrs.evolve(one, **change) for one in storage.computed)
    findings = safety(with_storage(program, "X", computed=computed))
    assert any("parts of its addresses that are no layout" in finding.message for finding in findings)
    assert any("outside of the array are 1" in one.message for one in safety(with_storage(program, "X", outside=1)))


@pytest.mark.parametrize("side", ["from_zero", "below_end", "both"])
def test_missing_windows_are_found(side, monkeypatch):
    """The check does not use the function by which passes decide which indices may leave an array."""
    right = tensors.window

    def wrong(index, shape, extent):
        window = right(index, shape, extent)
        return None if window is None or side == "both" else attrs.evolve(window, **{side: False})

    monkeypatch.setattr(tensors, "window", wrong)
    tensors._storage.cache_clear()
    definition = Fused(name="moved", dims="m n h", operands={"X": "m h", "Y": "m n"}, body={"o": "Y[m,n] = X[m,n - 3]"})
    program = elements(definition, m=4, n=8)(definition(m=5, n=27, h=19)).program("sm_80")
    findings = safety(program.lowered)
    tensors._storage.cache_clear()
    assert any("is read without the condition" in finding.message for finding in findings)


# ---------------------------------------------------------------------------------------------- refusals


def fused(body, outside=None, **options):
    options = {"dims": "m n h", "operands": {"X": "m h", "Y": "m n"}, "outside": outside, **options}
    return Fused(name="refused", body={"o": body}, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fused("Y[m] = max(n, X[m,n - 1])", operands={"X": "m h", "Y": "m"}), 'outside={"X": "-inf"}'),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"Y": 1}), "outside has Y, which has no affine index"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": "mirror"}), "neither a number nor a padding mode"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": "nan"}), "neither a number nor a padding mode"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": "reflct"}), "did you mean reflect?"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", "reflect"), "outside must be a mapping"),
        (lambda: fused("Y[m,n] = X[m,(n + 1) / 2]", {"X": "reflect"}), "is an exact quotient"),
        (lambda: fused("Y[m,n] = X[m,n + 1 / 2]"), "/ after a part of the index n + 1"),
        (lambda: fused("Y[m,n] = X[m,(n + 1) / 0]"), "divided by 0"),
        (lambda: fused("Y[m,n] = X[m,(n + 1)]"), "expected /"),
        (lambda: fused("Y[m,n / 2] = X[m,n]"), "Y[m,n / 2] is written at an affine index"),
        (lambda: fused("Y[m,(n + 1) / 2] = X[m,n]", operands={"X": "m n", "Y": "m h"}), "is written at an affine index"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": "-inf"})(m=4, n=8, h=8, types={"X": int8}), "integers from -128 to 127"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": 0.5})(m=4, n=8, h=8, types={"X": int32}), "integers from"),
        (lambda: fused("Y[m,n] = X[m,n - 1]", {"X": 1e6})(m=4, n=8, h=8), "numbers in the range of the type"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(FireironError) as caught:
        make()
    assert message in str(caught.value)


def test_quotients_are_reduced():
    """A quotient that is always exact is a plain affine index."""
    plain, reduced = fused("Y[m,n] = X[m,n - 1]"), fused("Y[m,n] = X[m,(2*n - 2) / 2]")
    assert plain == reduced and "(n + 1) / 2" in repr(fused("Y[m,n] = X[m,(4*n + 4) / 8]"))
    assert fused("Y[m,n] = X[m,n / 2]") == fused("Y[m,n] = X[m,(n) / 2]")


def test_values_are_rounded_to_the_element_type():
    spec = fused("Y[m,n] = X[m,n - 1]", {"X": 0.1})(m=1, n=4, h=2, types={"Y": float32})
    got = spec.reference(np.ones((1, 2), np.float16))
    assert got[0, 0] == np.float32(np.float16(0.1))
    program = elements(spec.starter, m=1, n=4)(spec).program("sm_80")
    np.testing.assert_array_equal(simulate(program.ir, {"X": np.ones((1, 2), np.float16)}).outputs["Y"], got)


def test_numbers():
    index = AffineIndex(((0, 1), (1, -1)), 1, 2)
    assert index.of((4, 1)) == 2 and index.dividend((4, 2)) == 3
    assert ComputedIndex(index, 9, 1).of((0, 4)) == 0


# ---------------------------------------------------------------------------------------------- commands


SOURCE = """
from fireiron import *

pool = Fused(
    name="pool", dims="c p r h", operands={"X": "c h", "Y": "c p"}, body={"s": "Y[c,p] = max(r, X[c,p*2 + r - 1])"}, outside={"X": "-inf"}
)
strategy = pool.tile(c=4, p=8).to(Block).tile(c=1, p=1).to(Thread).done()(pool(c=sym("C"), p=9, r=3, h=17))
"""

COMMANDS = {
    "show": ("outside -inf", ()),
    "check": ("X read by", ()),
    "explain": ("X", ()),
    "cost": ("DRAM", ("--size", "C=4096")),
    "run": ("PASS", ("--simulate", "--size", "C=7")),
    "emit": ("0xff800000", ()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, tmp_path, capsys):
    wanted, options = COMMANDS[command]
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    assert "element (c, h) is X[c * 17 + h]" in drawn_and_exported(SOURCE, tmp_path, capsys)


TYPES = {
    int8: -7, uint8: 200, int32: -123456, int64: -5, float8_e4m3: 1.5, float16: 0.1, bfloat16: 1.5, float32: "-inf", float64: 0.1
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_values_of_all_types(tmp_path):
    """Single elements and vectors outside of the array have the rounded value, bit by bit, in the simulator and in the printed text."""
    programs = []
    for dtype, value in TYPES.items():
        definition = Fused(
            name="rows", dims="m n h", operands={"X": "h n", "Y": "m n"}, body={"o": "Y[m,n] = X[m - 2,n]"}, outside={"X": value}
        )
        for width in (8, 2, 1):
            blocks = definition.tile(m=4, n=64).to(Block).load("X", SH, Move.coalesced_copy(width).done())
            programs.append(blocks.tile(m=1, n=width).to(Thread).done()(definition(m=9, n=64, h=5, dtype=dtype)).program("sm_80"))
    host = HostProgram(map(Printed.of, programs), tmp_path)
    for number, program in enumerate(programs):
        arrays = inputs_of(program.spec)
        want = np.asarray(program.spec.reference(*arrays.values()))
        for got in (simulate(program.ir, arrays).outputs["Y"], host.run(number, arrays)["Y"]):
            np.testing.assert_array_equal(np.asarray(got).view(np.uint8), want.view(np.uint8))
