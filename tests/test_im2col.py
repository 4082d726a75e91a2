"""Digits of coordinates in affine indices, and TMA in im2col mode: tiles of pixels that cross rows and images, with strides and padding."""

import random
import re

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from test_indirect import inputs_of, require_right

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, SimulationError
from fireiron.export import export
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Im2col, execs, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.strategies import convolution
from fireiron.values.affine import AffineIndex, DigitTerm, window
from fireiron.values.expr import as_expr

ONE, TWO, NONE = (1, 1), (2, 2), (0, 0)
STRATEGY = convolution.strategy.at(Tile).refine(Persistent(2))  # blocks with several tiles
SMALL = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "stages": 2}
# batch, size, channels, outputs, taps, stride, padding, dilation
PROBLEMS = {
    "same": (3, (5, 6), 64, 64, (3, 3), ONE, ONE, ONE),
    "stride": (3, (9, 8), 128, 72, (3, 3), TWO, ONE, ONE),
    "valid": (2, (9, 7), 64, 64, (3, 2), ONE, NONE, ONE),
    "1x1 with stride": (5, (7, 7), 64, 64, (1, 1), TWO, NONE, ONE),
    "1x1": (2, (7, 5), 64, 64, (1, 1), ONE, NONE, ONE),
    "dilation": (2, (8, 8), 64, 64, (3, 3), ONE, TWO, TWO),
    "unequal": (2, (9, 8), 64, 64, (3, 1), (2, 1), (2, 0), (2, 1)),
    "images of one row": (9, (1, 12), 64, 64, (1, 5), (1, 3), (0, 2), ONE),
}
FORMS = {
    "pixels": {},
    "ping-pong": {"groups": 2},
    "two warpgroups": {"bm": 128},
    "wide": {"bn": 128, "wn": 128, "epi_n": 128},
}


def spec_of(name, outputs_first=False):
    batch, size, channels, outputs, taps, stride, padding, dilation = PROBLEMS[name]
    return convolution.images(batch, size, channels, outputs, taps, stride, padding, dilation, outputs_first)


def by_numpy(name, x, w):
    batch, size, channels, outputs, (r, s), stride, padding, dilation = PROBLEMS[name]
    rows, columns = (convolution.out_size(*one) for one in zip(size, (r, s), stride, padding, dilation, strict=True))
    x = np.pad(x.reshape(batch, *size, channels).astype(float), ((0, 0), *((one, one) for one in padding), (0, 0)))
    w = w.reshape(outputs, r, s, channels).astype(float)
    result = np.zeros((batch, rows, columns, outputs))
    for row, column in np.ndindex(r, s):
        first, second = row * dilation[0], column * dilation[1]
        part = x[:, first : first + (rows - 1) * stride[0] + 1 : stride[0], second : second + (columns - 1) * stride[1] + 1 : stride[1]]
        result += part @ w[:, row, column].T
    return result.reshape(-1, outputs)


def result_of(name, program, outputs_first=False, **options):
    arrays = inputs_of(program.spec)
    got = simulate(program.ir, arrays, **options).outputs["Y"]
    return (got.T if outputs_first else got), by_numpy(name, arrays["X"], arrays["W"])


def maps_of(kernel):
    return [stmt.tensor_map for stmt, _ in execs(kernel.body) if stmt.tensor_map is not None and stmt.tensor_map.buffer == "X"]


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("name", PROBLEMS)
def test_right(name):
    program = STRATEGY.with_(**SMALL)(spec_of(name)).program("sm_90a")
    assert safety(program.lowered) == () and "tma_store(" in program.cuda and "copied by all threads" not in program.cuda
    assert all((one.im2col is None) == (name == "1x1") for one in maps_of(program.ir))
    got, want = result_of(name, program, order=random.Random(1))
    require_right(got, want)
    arrays = inputs_of(program.spec)
    require_right(program.spec.reference(*arrays.values()), want)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outputs_first", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_forms(form, outputs_first):
    program = STRATEGY.with_(**{**SMALL, **FORMS[form]})(spec_of("stride", outputs_first)).program("sm_90a")
    assert safety(program.lowered) == ()
    require_right(*result_of("stride", program, outputs_first))


def test_threads():
    """Digits are indices of any kernel: threads load elements one by one, and test whether they are in an image."""
    simple = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    problem = (2, (4, 3), 16, 20, (3, 3), ONE, ONE, ONE)
    program = simple(convolution.images(*problem)).program("sm_80")
    assert safety(program.lowered) == ()
    arrays = inputs_of(program.spec)
    PROBLEMS["threads"] = problem
    want = by_numpy("threads", *(arrays[name] for name in "XW"))
    del PROBLEMS["threads"]
    require_right(simulate(program.ir, arrays).outputs["Y"], want)
    require_right(program.spec.reference(*arrays.values()), want)


def test_run_time_batch():
    """The number of pixels may be a run-time size."""
    definition = convolution.definition((5, 6), (3, 3), 64, ONE, ONE)
    program = STRATEGY.with_(**SMALL)(definition(m=sym("M", high=1 << 20), k=576, o=64, h=5, w=6)).program("sm_90a")
    assert safety(program.lowered) == () and maps_of(program.ir)[0].im2col is not None
    arrays = inputs_of(spec_of("same"))
    got = simulate(program.ir, arrays, {"M": 90}).outputs["Y"]
    require_right(got, by_numpy("same", arrays["X"], arrays["W"]))


def test_reversed_digits():
    """A digit with a negative factor: the gradient of the input, whose taps go backwards."""
    definition = Fused(
        name="gradient", dims="m k o n h w c", operands={"X": "n h w c", "W": "o k", "Y": "m o"},
        body={
            "mm": "acc[m,o] = sum(k, X[m // 12,m // 4 % 3 + 1 - k // 192,m % 4 + 1 - k // 64 % 3,k % 64] * W[o,k])",
            "store": "Y[m,o] = acc[m,o]",
        },
    )  # fmt: skip
    program = STRATEGY.with_(**SMALL)(definition(m=24, k=576, o=64, h=3, w=4)).program("sm_90a")
    assert maps_of(program.ir)[0].im2col == Im2col((-1, -1), (-1, -1), (1, 1)) and safety(program.lowered) == ()
    arrays = inputs_of(program.spec)
    flipped = arrays["W"].reshape(64, 3, 3, 64)[:, ::-1, ::-1]
    x = np.pad(arrays["X"].astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = sum(x[:, r : r + 3, s : s + 4] @ flipped[:, r, s].T.astype(float) for r, s in np.ndindex(3, 3)).reshape(24, 64)
    require_right(simulate(program.ir, arrays).outputs["Y"], want)
    require_right(program.spec.reference(*arrays.values()), want)


# ---------------------------------------------------------------------------------------------- text


def test_text():
    program = STRATEGY.with_(**SMALL)(spec_of("stride")).program("sm_90a")
    text = " ".join(program.cuda.replace("\n// ", " ").split())
    assert "at [m // 20,m // 4 % 5 * 2 + k // 384 - 1,m % 4 * 2 + k // 128 % 3 - 1,k % 128]" in text
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.im2col" in program.cuda and "tma_load_pixels_4d(" in program.cuda
    (tensor_map, *_) = maps_of(program.ir)
    assert (tensor_map.order, tensor_map.box) == ((3, 2, 1, 0), (64, 64, 1, 1))
    assert tensor_map.im2col == Im2col(lower=(-1, -1), upper=(-2, -1), steps=(2, 2))  # 8 columns and 9 rows


def test_written_and_read():
    bound = STRATEGY.with_(**SMALL)(spec_of("stride"))
    program = bound.program("sm_90a")
    assert parse_kernel(graphene_text(program)).cuda == program.cuda and loads(dumps(bound)) == bound


def test_export(tmp_path):
    export(STRATEGY.with_(**SMALL)(spec_of("stride")).program("sm_90a"), tmp_path)
    texts = [path.read_text(errors="ignore") for path in tmp_path.iterdir()]
    assert sum("cuTensorMapEncodeIm2col" in text and "cuTensorMapEncodeTiled" in text for text in texts) == 2
    assert any("64 channels of 64 pixels" in text for text in texts)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
def test_compiles():
    program = STRATEGY.with_(**SMALL)(spec_of("stride")).program("sm_90a")
    assert compile_cuda(program.cuda, "sm_90a").resources[program.name].spill_stores == 0


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["stride", *(pytest.param(name, marks=pytest.mark.nightly) for name in PROBLEMS if name != "stride")])
def test_printed_text(name, tmp_path):
    """The printed text gives the results of NumPy on a CPU, which walks from pixel to pixel."""
    program = STRATEGY.with_(**SMALL)(spec_of(name)).program("sm_90a")
    arrays = inputs_of(program.spec)
    got = HostProgram([Printed.of(program)], tmp_path).run(0, arrays)["Y"]
    require_right(got, by_numpy(name, arrays["X"], arrays["W"]))


@pytest.mark.nightly
def test_generated():
    """Random sizes, strides, padding and dilation, whose tiles begin and end anywhere in an image."""
    for seed in range(20261129, 20261149):
        choice = random.Random(seed)
        two = lambda low, high: (choice.randint(low, high), choice.randint(low, high))  # noqa: B023
        taps, stride, dilation, size = two(1, 3), two(1, 3), two(1, 2), two(1, 12)
        padding = tuple(
            max(choice.randint(0, 2), (step * (tap - 1) + 2 - extent) // 2) for tap, step, extent in zip(taps, dilation, size, strict=True)
        )
        problem = (choice.randint(1, 5), size, choice.choice((64, 128)), 64, taps, stride, padding, dilation)
        PROBLEMS["drawn"] = problem
        first = choice.random() < 0.3
        program = STRATEGY.with_(**SMALL)(spec_of("drawn", first)).program("sm_90a")
        assert safety(program.lowered) == (), problem
        require_right(*result_of("drawn", program, first, order=choice))
        del PROBLEMS["drawn"]


# ---------------------------------------------------------------------------------------------- refused


def definition_of(*indices, dims="n h w c", **options):
    return Fused(
        name="digits", dims=f"m k o {dims}", operands={"X": dims, "W": "o k", "Y": "m o"},
        body={"mm": f"acc[m,o] = sum(k, X[{','.join(indices)}] * W[o,k])", "store": "Y[m,o] = acc[m,o]"}, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("2 * m // 56 + k", "a factor before a digit"),
        ("m % 56 // 7 + k", "the digit of m"),
        ("m // 0 % 3 + k", "the digit of m"),
        ("m // 3 % 0 + k", "m % 0"),
        ("size(n) // 3 + m - k", "the digit of size_n|expected"),
    ],
)
def test_wrong_digits(index, message):
    with pytest.raises(ArgumentError, match=message):
        definition_of(index, "k % 4", dims="n c")


def test_digits_that_do_not_divide_each_other():
    with pytest.raises(ArgumentError, match="digits of a dimension by 4 and by 6"):
        definition_of("m // 6", "m // 4 % 3 + k", "k % 4", dims="n h c")(m=24, k=16, o=8, h=4)


REASONS = {
    "channels": (convolution.definition((5, 6), (3, 3), 96, ONE, ONE), {"k": 864, "h": 5, "w": 6}, "channels in whole tiles of 64"),
    "value": (
        definition_of("m // 30", "m // 6 % 5 + k // 192 - 1", "m % 6 + k // 64 % 3 - 1", "k % 64", outside={"X": 1}),
        {"k": 576, "h": 5, "w": 6}, "zeros outside of the array, and no quotient, got 1",
    ),
    "stride": (
        definition_of("m // 30", "m // 6 % 5 * 9 + k // 192 - 1", "m % 6 + k // 64 % 3 - 1", "k % 64"), {"k": 576, "h": 45, "w": 6},
        "a factor of 9; legal: 1 to 8",
    ),
    "gap": (
        definition_of("m // 60", "m // 6 % 5 + k // 192 - 1", "m % 6 + k // 64 % 3 - 1", "k % 64"), {"k": 576, "h": 5, "w": 6},
        "digits of the pixels that do not follow each other|images",
    ),
    "padding": (
        definition_of("m // 30", "m // 6 % 5 + k // 192 - 200", "m % 6 + k // 64 % 3 - 1", "k % 64"), {"k": 576, "h": 5, "w": 6},
        "corners from -128 to 127",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name):
    """Without im2col mode, threads copy, and the text states the reason."""
    definition, sizes, reason = REASONS[name]
    spec = definition(m=60, o=64, **sizes)
    program = STRATEGY.with_(**SMALL)(spec).program("sm_90a")
    text = " ".join(program.cuda.replace("//", "").split())
    assert "copied by all threads: TMA_LOAD requires src" in text and "tma_load_pixels" not in text
    assert re.search(reason, text), text[text.index("copied by") :][:300]
    assert safety(program.lowered) == ()


# ---------------------------------------------------------------------------------------------- injected faults


def with_maps(kernel, **changes):
    def changed(stmt):
        tensor_map = getattr(stmt, "tensor_map", None)
        if tensor_map is None or tensor_map.im2col is None:
            return (stmt,)
        mode = attrs.evolve(tensor_map.im2col, **changes)
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(tensor_map, im2col=mode)),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


@pytest.mark.parametrize(
    "changes",
    [{"lower": (0, -1)}, {"upper": (0, -1)}, {"upper": (-2, -3)}, {"steps": (1, 2)}, {"lower": (-200, -1)}],
    ids=["lower", "columns", "rows", "step", "corner"],
)
def test_faulty_modes_are_found(changes):
    program = STRATEGY.with_(**SMALL)(spec_of("stride")).program("sm_90a")
    wrong = with_maps(program.lowered, **changes)
    assert any(finding.kind == "boxes" and finding.severity == "error" for finding in safety(wrong))
    if changes == {"lower": (-200, -1)}:
        return
    with pytest.raises((SimulationError, AssertionError)):
        arrays = inputs_of(program.spec)
        require_right(simulate(with_maps(program.ir, **changes), arrays).outputs["Y"], by_numpy("stride", arrays["X"], arrays["W"]))


def test_a_map_without_the_mode_is_found():
    program = STRATEGY.with_(**SMALL)(spec_of("same")).program("sm_90a")

    def changed(stmt):
        tensor_map = getattr(stmt, "tensor_map", None)
        plain = tensor_map is not None and tensor_map.buffer == "X"
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(tensor_map, im2col=None)) if plain else stmt,)

    wrong = attrs.evolve(program.lowered, body=rewritten(program.lowered.body, changed))
    assert any(finding.kind == "boxes" and finding.severity == "error" for finding in safety(wrong))


def test_digits_of_an_index():
    index = AffineIndex(((0, 1),), -1, digits=(DigitTerm(1, 2, 4, 3), DigitTerm(1, -1, 12)))
    assert index.dims == (0, 1) and index.of([5, 29]) == 5 - 1 + 2 * (29 // 4 % 3) - 29 // 12
    assert index.same([(0, 0), (0, 3)], [as_expr(0), as_expr(4)]) and not index.same([(0, 0), (0, 3)])
    shape = (as_expr(3), as_expr(24))
    tested = window(index, shape, as_expr(7))
    assert tested.from_zero and not tested.below_end  # from -2 to 5
