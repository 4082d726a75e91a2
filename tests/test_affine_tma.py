"""Affine indices by TMA: shifted boxes, whose coordinates may be negative or past the end, for convolution on tensor cores (implicit GEMM)."""

import random

import attrs
import numpy as np
import pytest
from own_file import output_of
from printed_text import COMPILER, HostProgram, Printed
from test_indirect import inputs_of, require_right

from fireiron import *
from fireiron.check import safety
from fireiron.errors import DecompositionError, MatchError, SimulationError
from fireiron.export import export
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import execs, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

LOOP = MatMul.split(64).pipeline(2).warp_specialize(128).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()


def convolution(rows, columns, **options):
    """A convolution with these indices along h and w."""
    return Fused(
        name="conv", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s o c", "Y": "b p q o"}, batch="b p", scan="r s",
        init={"z": "acc[q,o] = 0"}, body={"mm": f"acc[q,o] += sum(c, X[b,{rows},{columns},c] * W[r,s,o,c])"},
        final={"o": "Y[b,p,q,o] = relu(acc[q,o])"}, **options,
    )  # fmt: skip


SAME = convolution("p + r - 1", "q + s - 1")
DILATED = convolution("p + r*3 - 2", "q + s*2 - 2")
ROW_STRIDE = convolution("p*2 + r - 1", "q + s - 1")
STRIDED = convolution("p*2 + r - 1", "q*2 + s - 1")
VALUE = convolution("p + r - 1", "q + s - 1", outside={"X": 1})
FLIPPED = convolution("p + r - 1", "size(w) - 1 - q - s + 1")


def line(shift):
    return Fused(
        name="line", dims="m n h o", operands={"X": "m h", "W": "n o", "Y": "m o"},
        body={"mm": f"acc[m,o] = sum(n, X[m,n - {shift}] * W[n,o])", "s": "Y[m,o] = acc[m,o]"},
    )  # fmt: skip


LINE, UNALIGNED_LINE = line(8), line(3)
LINE_SIZES = {"m": 70, "n": 128, "h": 128, "o": 64}
VOLUME = Fused(
    name="volume", dims="z p q o t r s c d h w", operands={"X": "d h w c", "W": "t r s o c", "Y": "z p q o"}, batch="z p", scan="t r s",
    init={"z": "acc[q,o] = 0"}, body={"mm": "acc[q,o] += sum(c, X[z + t - 1,p + r - 1,q + s - 1,c] * W[t,r,s,o,c])"},
    final={"o": "Y[z,p,q,o] = acc[q,o]"},
)  # fmt: skip

IMAGES = Fused(
    name="images", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s o c", "Y": "b p q o"}, batch="p q", scan="r s",
    init={"z": "acc[b,o] = 0"}, body={"mm": "acc[b,o] += sum(c, X[b,p*2 + r - 1,q*3 + s*2 - 1,c] * W[r,s,o,c])"},
    final={"o": "Y[b,p,q,o] = acc[b,o]"},
)  # fmt: skip

SIZES = {"b": 2, "p": 2, "q": 70, "o": 64, "r": 3, "s": 3, "c": 64, "h": 2, "w": 70}


def tiled(definition, loop=LOOP, **tile):
    alone = dict.fromkeys(definition.fused_definition.batch, 1)
    blocks = definition.tile(**{**alone, "q": 64, "o": 64, **tile}).to(Block)
    for dim in definition.fused_definition.scan:
        blocks = blocks.split(**{dim: 1})
    return blocks.step("mm", loop).done()


CASES = {
    "same": (tiled(SAME), SAME, SIZES),
    "same, two warpgroups": (tiled(SAME, q=128), SAME, {**SIZES, "q": 140, "w": 140, "p": 1, "b": 1}),
    "channels in several iterations": (tiled(SAME), SAME, {**SIZES, "b": 1, "c": 128, "r": 1, "p": 1}),
    "valid": (tiled(convolution("p + r", "q + s")), convolution("p + r", "q + s"), {**SIZES, "h": 4, "w": 72}),
    "dilated": (tiled(DILATED), DILATED, {**SIZES, "h": 8}),
    "stride of rows": (tiled(ROW_STRIDE), ROW_STRIDE, {**SIZES, "h": 4}),
    "small images": (tiled(SAME), SAME, {**SIZES, "q": 7, "w": 7, "p": 3, "h": 3, "b": 1}),
    "tiles of images": (
        tiled(IMAGES, q=1, b=64), IMAGES, {"b": 70, "p": 2, "q": 2, "o": 64, "r": 3, "s": 2, "c": 64, "h": 3, "w": 5}
    ),
    "three dimensions": (tiled(VOLUME), VOLUME, {"z": 2, "p": 2, "q": 66, "o": 64, "t": 3, "r": 3, "s": 1, "c": 64, "d": 2, "h": 2, "w": 66}),
    "shift along rows": (LINE.tile(m=64, o=64).to(Block).step("mm", LOOP).done(), LINE, LINE_SIZES),
}  # fmt: skip


def by_numpy(spec, arrays):
    size = {dim: int(spec.size(dim).high) for dim in spec.dims}
    x, w = (np.asarray(arrays[name], np.float64) for name in ("X", "W"))
    if spec.title == "line":
        return np.pad(x, ((0, 0), (8, 0)))[:, : size["n"]] @ w
    if spec.title == "volume":
        x = np.pad(x, ((1, 1), (1, 1), (1, 1), (0, 0)))
        taps = np.ndindex(3, 3, 1)
        return sum(x[t : t + 2, r : r + 2, s : s + 66] @ w[t, r, s].T for t, r, s in taps)
    (index,) = (one.index for one in spec.kind.fused_definition.indirect if one.operand == "X")
    result = np.zeros([size[dim] for dim in "bpqo"])
    for p, q, r, s in np.ndindex(size["p"], size["q"], size["r"], size["s"]):
        place = {"p": p, "q": q, "r": r, "s": s}
        h, k = (sum(place[dim] * factor for dim, factor in one.terms) + one.number for one in index[1:3])
        if 0 <= h < x.shape[1] and 0 <= k < x.shape[2]:
            result[:, p, q] += x[:, h, k] @ w[r, s].T
    return result if spec.title == "images" else np.maximum(result, 0)


def boxes_of(kernel):
    return {stmt.tensor_map.box for stmt, _ in execs(kernel.body) if stmt.tensor_map is not None and stmt.tensor_map.buffer == "X"}


@pytest.mark.parametrize("name", CASES)
def test_right(name):
    strategy, definition, sizes = CASES[name]
    spec = definition(**sizes)
    program = strategy(spec).program("sm_90a")
    assert safety(program.lowered) == ()
    assert boxes_of(program.ir) and "cp_async" not in program.cuda and "wgmma" in program.cuda
    arrays = inputs_of(spec)
    want = by_numpy(spec, arrays)
    require_right(spec.reference(*arrays.values()), want)
    require_right(simulate(program.ir, arrays, order=random.Random(1)).outputs["Y"], want)


def test_texts_and_compilation():
    for name in ("same", "shift along rows"):
        strategy, definition, sizes = CASES[name]
        bound = strategy(definition(**sizes))
        program = bound.program("sm_90a")
        assert parse_kernel(graphene_text(program)).cuda == program.cuda and loads(dumps(bound)) == bound
        if toolchains():
            assert compile_cuda(program.cuda, "sm_90a").resources[program.name].spill_stores == 0


def test_boxes():
    """The map describes the array in its own dimensions, also if no index follows the rows of the tile."""
    program = CASES["same"][0](SAME(**SIZES)).program("sm_90a")
    assert boxes_of(program.ir) == {(64, 64, 1, 1)}
    strategy, definition, sizes = CASES["tiles of images"]
    assert boxes_of(strategy(definition(**sizes)).program("sm_90a").ir) == {(64, 64, 1, 1)}


def test_run_time_sizes():
    b, p, q, h, w = (sym(name, high=1 << 12) for name in "BPQHV")
    spec = SAME(b=b, p=p, q=q, o=64, r=3, s=3, c=64, h=h, w=w)
    program = tiled(SAME)(spec).program("sm_90a")
    assert boxes_of(program.ir) and safety(program.lowered) == ()
    sizes = {"B": 1, "P": 2, "Q": 9, "H": 3, "V": 8}
    arrays = inputs_of(spec, sizes)
    got = simulate(program.ir, arrays, sizes).outputs["Y"]
    require_right(got, by_numpy(SAME(**{**SIZES, "b": 1, "p": 2, "q": 9, "h": 3, "w": 8}), arrays))


def test_outside_is_zero_whatever_the_array_contains():
    """Past the end of q, boxes have elements of the array, which no result uses: NaN there does not reach a result."""
    spec = convolution("p + r", "q + s")(**{**SIZES, "b": 1, "q": 40, "r": 1, "s": 1, "w": 70})
    program = tiled(spec.starter)(spec).program("sm_90a")
    arrays = inputs_of(spec)
    arrays["X"][:, :, 40:] = np.nan
    assert np.isfinite(simulate(program.ir, arrays).outputs["Y"]).all()


@pytest.mark.parametrize(
    ("definition", "sizes", "reason"),
    [
        (STRIDED, {"h": 6, "w": 140}, "a factor of 1 along the tile, got a stride of 2"),
        (FLIPPED, {}, "got a reversed index"),
        (VALUE, {}, "an affine index that reads zero outside of the array, got 1 outside of the array"),
        (convolution("(p + 1 - r) / 2", "(q + 1 - s) / 2"), {"h": 2, "w": 35}, "got an exact quotient"),
        (convolution("p + r - 1", "q + s - 1", outside={"X": "reflect"}), {}, "got reflect outside of the array"),
    ],
    ids=["stride", "reversed", "value", "quotient", "mode"],
)
def test_reasons(definition, sizes, reason):
    """Without a shifted box, threads copy; the text and `explain` state the reason, and the result is right."""
    program = tiled(definition)(definition(**{**SIZES, **sizes})).program("sm_90a")
    text = " ".join(program.cuda.replace("//", "").split())
    assert "copied by all threads: TMA_LOAD requires src index" in text and reason in text and not boxes_of(program.ir)
    assert safety(program.lowered) == ()


def test_a_row_that_starts_within_16_bytes_is_copied_by_threads():
    program = UNALIGNED_LINE.tile(m=64, o=64).to(Block).step("mm", LOOP).done()(UNALIGNED_LINE(**LINE_SIZES)).program("sm_90a")
    assert "boxes that start at multiples of 8 elements, 16 bytes" in " ".join(program.cuda.replace("//", "").split())
    assert not boxes_of(program.ir) and safety(program.lowered) == ()


@pytest.mark.parametrize("index", ["o - 8", "o + 8"])
def test_vectors_are_loaded_by_threads(index):
    """The load of one vector by TMA takes its coordinates from the tile, so threads load vectors at affine indices."""
    definition = Fused(
        name="shifted_bias", dims="m n o h", operands={"A": "m n", "W": "o n", "bias": "h", "Y": "m o"},
        body={"mm": "acc[m,o] = sum(n, A[m,n] * W[o,n])", "s": f"Y[m,o] = acc[m,o] + bias[{index}]"},
    )  # fmt: skip
    strategy = definition.tile(m=64, o=64).to(Block).load("bias", SH, Move.done()).step("mm", LOOP).done()
    spec = definition(m=64, n=64, o=64, h=128)
    program = strategy(spec).program("sm_90a")
    assert not any(stmt.tensor_map is not None and stmt.tensor_map.buffer == "bias" for stmt, _ in execs(program.ir.body))
    arrays = inputs_of(spec)
    want = arrays["A"].astype(float) @ arrays["W"].astype(float).T
    padded = np.pad(arrays["bias"].astype(float), (8, 0))
    require_right(simulate(program.ir, arrays).outputs["Y"], want + (padded[:64] if index == "o - 8" else padded[16:80]))


def test_a_named_load_is_refused():
    tma = Move.done(TMA_LOAD)
    loop = MatMul.split(64).pipeline(3).warp_specialize(128).load(A, SH, tma).load(B, SH, tma).tile(64, 64).to(Warpgroup).done()
    with pytest.raises((MatchError, DecompositionError), match="a stride of 2"):
        tiled(STRIDED, loop)(STRIDED(**{**SIZES, "h": 6, "w": 140})).cuda("sm_90a")


ON_CPU = ("tiles of images", "small images", "shift along rows", "stride of rows")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", [ON_CPU[0], *(pytest.param(name, marks=pytest.mark.nightly) for name in ON_CPU[1:])])
def test_printed_text(name, tmp_path):
    """The printed text gives the results of NumPy on a CPU, which emulates boxes by the coordinates of the text."""
    strategy, definition, sizes = CASES[name]
    spec = definition(**{**sizes, **({"p": 1, "b": 5} if name == "tiles of images" else {})})
    host, arrays = HostProgram([Printed.of(strategy(spec).program("sm_90a"))], tmp_path), inputs_of(spec)
    require_right(host.run(0, arrays)["Y"], by_numpy(spec, arrays))


@pytest.mark.nightly
def test_generated_convolutions():
    """Random factors, offsets, sizes and dimensions of the tile; the box is used if the factor along the tile is 1."""
    for seed in range(20261130, 20261150):
        choice = random.Random(seed)
        row = choice.choice("bq")
        stride = 1 if row == "q" else choice.randint(1, 3)
        columns = f"q*{stride} + s*{choice.randint(1, 2)} - {choice.randint(0, 3)}"
        definition = Fused(
            name="drawn", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s o c", "Y": "b p q o"}, scan="r s",
            batch="b p" if row == "q" else "p q", init={"z": f"acc[{row},o] = 0"}, final={"o": f"Y[b,p,q,o] = acc[{row},o]"},
            body={"mm": f"acc[{row},o] += sum(c, X[b,p*{choice.randint(1, 3)} + r - {choice.randint(0, 2)},{columns},c] * W[r,s,o,c])"},
        )  # fmt: skip
        sizes = {"o": 64, "c": choice.choice((64, 128)), "p": choice.randint(1, 2)}
        sizes |= {dim: choice.randint(1, 3) for dim in "rs"} | {"h": choice.randint(1, 4), "w": choice.randint(1, 80)}
        sizes |= {"b": choice.randint(1, 80), "q": 1} if row == "b" else {"b": 1, "q": choice.randint(1, 80)}
        spec = definition(**sizes)
        program = tiled(definition, **{"q": 1, "b": 1, row: 64})(spec).program("sm_90a")
        assert boxes_of(program.ir) and safety(program.lowered) == (), spec
        arrays = inputs_of(spec)
        want = spec.reference(*arrays.values())
        require_right(simulate(program.ir, arrays, order=choice).outputs["Y"], np.asarray(want, np.float64))


SOURCE = """
from fireiron import *

strided = Fused(
    name="strided", dims="b q o s c w", operands={"X": "b w c", "W": "s o c", "Y": "b q o"}, batch="b", scan="s",
    init={"z": "acc[q,o] = 0"}, body={"mm": "acc[q,o] += sum(c, X[b,q*9 + s - 1,c] * W[s,o,c])"}, final={"o": "Y[b,q,o] = acc[q,o]"},
)
loop = MatMul.split(64).pipeline(2).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
spec = strided(b=1, q=64, o=64, s=3, c=64, w=576)
strategy = strided.tile(b=1, q=64, o=64).to(Block).split(s=1).step("mm", loop).done()(spec)
"""


def test_explain(tmp_path, capsys):
    text = output_of("explain", SOURCE, ("--arch", "sm_90a"), tmp_path, capsys)
    assert "copied by all threads: TMA_LOAD requires src index" in text and "a stride of 9" in text


def test_export(tmp_path):
    program = CASES["same"][0](SAME(**SIZES)).program("sm_90a")
    files = export(program, tmp_path)
    assert any("cuTensorMapEncodeTiled" in path.read_text(errors="ignore") for path in tmp_path.iterdir()), files


# ---------------------------------------------------------------------------------------------- injected faults


def with_maps(kernel, **changes):
    """The kernel with other fields of the tensor maps of X."""

    def changed(stmt):
        tensor_map = getattr(stmt, "tensor_map", None)
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(tensor_map, **changes)) if tensor_map and tensor_map.buffer == "X" else stmt,)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


@pytest.mark.parametrize(
    "changes", [{"box": (64, 1, 64, 1)}, {"order": (3, 1, 2, 0)}, {"box": (32, 64, 1, 1)}], ids=["box", "order", "row"]
)
def test_faulty_boxes_are_found(changes):
    spec = SAME(**SIZES)
    program = CASES["same"][0](spec).program("sm_90a")
    wrong = with_maps(program.lowered, **changes)
    assert any(finding.severity == "error" for finding in safety(wrong))
    arrays = inputs_of(spec)
    with pytest.raises((SimulationError, AssertionError)):
        require_right(simulate(with_maps(program.ir, **changes), arrays).outputs["Y"], by_numpy(spec, arrays))


def test_boxes_that_start_within_16_bytes_are_found():
    """Such a load is an illegal instruction on an H200: threads copy the elements, and the check and the simulator refuse a box."""
    program = CASES["shift along rows"][0](LINE(**LINE_SIZES)).program("sm_90a")

    def moved(stmt):
        accesses = getattr(stmt, "accesses", ())
        moves = getattr(stmt, "tensor_map", None) is not None
        own = tuple(attrs.evolve(one, base=(one.base[0], one.base[1] + 3)) if moves and one.buffer == "X" else one for one in accesses)
        return (attrs.evolve(stmt, accesses=own) if moves else stmt,)

    wrong = attrs.evolve(program.lowered, body=rewritten(program.lowered.body, moved))
    assert any("not proved to be a multiple of 8 elements" in finding.message for finding in safety(wrong))
    with pytest.raises(SimulationError, match="illegal instruction"):
        simulate(wrong, inputs_of(program.spec))


def test_tiles_of_a_sum_must_be_whole():
    """Past the end of n, a box has elements of X, and the sum must not have them; threads copy zeros there."""
    spec = LINE(m=64, n=120, h=128, o=64)
    with pytest.raises(DecompositionError, match="past the end of n"):
        _ = CASES["shift along rows"][0](spec).program("sm_90a").ir


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("stages", [3, 5])
def test_stages_are_counted_through_two_loops(stages, tmp_path):
    """Stages of a ring that is filled in three loops: without the part of the middle loop, a fill overwrites a stage that is read."""
    loop = MatMul.split(64).pipeline(stages).warp_specialize(128).mma_in_flight(1)
    loop = loop.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    spec = SAME(**{**SIZES, "b": 1, "p": 1, "h": 1, "q": 64, "w": 64, "r": 2, "s": 3, "c": 384})
    program = tiled(SAME, loop)(spec).program("sm_90a")
    assert "product_c_stage" in program.cuda or "mm_c_stage" in program.cuda
    arrays = inputs_of(spec)
    host = HostProgram([Printed.of(program)], tmp_path)
    for seed in range(3):
        require_right(host.run(0, arrays, seed=seed)["Y"], by_numpy(spec, arrays))
