"""Warp-level matrix instructions: lane maps compared with the PTX ISA's formulas, small kernels with NumPy, compilers, refusals."""

import contextlib
import itertools
import re

import attrs
import pytest
from instructions import (
    FORMS,
    first_target,
    layouts_of,
    loaded_by,
    one_each,
    probes_of,
    spec_of,
    stored_by,
    strategy_of,
    through,
    through_choices,
)
from problems import called, integers, simulated, stored

import fireiron
from fireiron import *
from fireiron import ARCHITECTURES
from fireiron.executable.ldmatrix import LDMATRIX
from fireiron.executable.movmatrix import MOVMATRIX
from fireiron.executable.stmatrix import STMATRIX
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import execs
from fireiron.performing.matrices import addressed, received
from fireiron.specs.arithmetic import convert
from fireiron.specs.meaning import multiplied

np = pytest.importorskip("numpy")
named = pytest.mark.parametrize("form", FORMS, ids=lambda one: one.name)
needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

# ---------------------------------------------------------------------------------------------- the PTX ISA, as it is written there
#
# Each function is the text of "Matrix Fragments for mma.<shape>": %laneid and i to row and column.


def ptx_884_f16(lane, i, operand, orders, result):
    """mma.m8n8k4 with .f16 floating point type; the coordinates within the matrices of the lane's quad-pair."""
    low = lane < 16
    if operand == "A":
        return (lane % 4 if low else lane % 4 + 4, i) if orders[0] == "row" else (i % 4 if low else i % 4 + 4, lane % 4)
    if operand == "B":
        return (lane % 4, i if low else i + 4) if orders[1] == "row" else (i, lane % 4 if low else lane % 4 + 4)
    if result == float16:
        return (lane % 4 if low else lane % 4 + 4, i)
    x = (lane & 0b1) + (i & 0b10)
    return (x if low else x + 4, (i & 0b100) + (lane & 0b10) + (i & 0b1))


def ptx_884_f64(lane, i, operand):
    """mma.m8n8k4 with .f64 floating point type."""
    if operand == "A":
        return lane >> 2, lane % 4
    if operand == "B":
        return lane % 4, lane >> 2
    return lane >> 2, (lane % 4) * 2 + (i & 0x1)


def ptx_8816_s8(lane, i, operand):
    """mma.m8n8k16."""
    group, thread = lane >> 2, lane % 4
    return {"A": (group, thread * 4 + i), "B": (thread * 4 + i, group), "C": (group, thread * 2 + i)}[operand]


def ptx_accumulator(lane, i):
    """The accumulators of all shapes m16n8."""
    return (lane >> 2 if i < 2 else (lane >> 2) + 8, (lane % 4) * 2 + (i & 0x1))


def ptx_1684(lane, i, operand):
    """mma.m16n8k4, .tf32 and .f64."""
    group, thread = lane >> 2, lane % 4
    return {"A": (group if i == 0 else group + 8, thread), "B": (thread, group), "C": ptx_accumulator(lane, i)}[operand]


def ptx_1688_half(lane, i, operand):
    """mma.m16n8k8, .f16 and .bf16."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group if i in (0, 1) else group + 8, thread * 2 + (i & 0x1))
    return (thread * 2 + i, group) if operand == "B" else ptx_accumulator(lane, i)


def ptx_1688_wide(lane, i, operand):
    """mma.m16n8k8, .tf32 and .f64."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group if i in (0, 2) else group + 8, thread if i in (0, 1) else thread + 4)
    return (thread if i == 0 else thread + 4, group) if operand == "B" else ptx_accumulator(lane, i)


def ptx_16816_half(lane, i, operand):
    """mma.m16n8k16 with floating point type, .f16 and .bf16."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group if 0 <= i < 2 or 4 <= i < 6 else group + 8, thread * 2 + (i & 0x1) + (0 if i < 4 else 8))
    return (thread * 2 + (i & 0x1) + (0 if i < 2 else 8), group) if operand == "B" else ptx_accumulator(lane, i)


def ptx_16816_f64(lane, i, operand):
    """mma.m16n8k16 with floating point type, .f64."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group, i * 2 + thread) if i % 2 == 0 else (group + 8, i * 2 - 2 + thread)
    return (thread + i * 4, group) if operand == "B" else ptx_accumulator(lane, i)


def ptx_16816_bytes(lane, i, operand):
    """mma.m16n8k16 with integer type, .s8, .e4m3 and .e5m2."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group if i < 4 else group + 8, thread * 4 + (i & 0x3))
    return (thread * 4 + i, group) if operand == "B" else ptx_accumulator(lane, i)


def ptx_16832_bytes(lane, i, operand):
    """mma.m16n8k32, .s8, .e4m3 and .e5m2."""
    group, thread = lane >> 2, lane % 4
    if operand == "A":
        return (group if 0 <= i < 4 or 8 <= i < 12 else group + 8, thread * 4 + (i & 0x3) + (0 if i < 8 else 16))
    return (thread * 4 + (i & 0x3) + (0 if i < 4 else 16), group) if operand == "B" else ptx_accumulator(lane, i)


BYTES = (int8, float8_e4m3, float8_e5m2)
FRAGMENTS_OF = {
    ((8, 8, 16), int8): ptx_8816_s8,
    ((8, 8, 4), float64): ptx_884_f64,
    ((16, 8, 16), float64): ptx_16816_f64,
    **{((16, 8, 4), dtype): ptx_1684 for dtype in (tf32, float64)},
    **{((16, 8, 8), dtype): ptx_1688_half for dtype in (float16, bfloat16)},
    **{((16, 8, 8), dtype): ptx_1688_wide for dtype in (tf32, float64)},
    **{((16, 8, 16), dtype): ptx_16816_half for dtype in (float16, bfloat16)},
    **{((16, 8, 16), dtype): ptx_16816_bytes for dtype in BYTES},
    **{((16, 8, 32), dtype): ptx_16832_bytes for dtype in BYTES},
}
VALUES = {
    # registers of A, B, C times elements of each, from the tables of fragments
    (8, 8, 16): (4, 4, 2), (8, 8, 4): (1, 1, 2), (16, 8, 4): (2, 1, 4), (16, 8, 8): (4, 2, 4), (16, 8, 16): (8, 4, 4), (16, 8, 32): (16, 8, 4),
}  # fmt: skip


def is_volta(form):
    return "m8n8k4" in form.opcode and form.factors["A"] == float16


@named
def test_lane_maps_are_those_of_the_ptx_isa(form):
    for position, (operand, lane_map) in enumerate(form.maps().items()):
        assert lane_map.threads == form.level.threads
        if is_volta(form):
            assert lane_map.count == (4, 4, 8)[position]
        else:
            assert lane_map.count == VALUES[form.shape][position]
        for lane, value in itertools.product(range(32), range(lane_map.count)):
            if not is_volta(form):
                wanted = FRAGMENTS_OF[form.shape, form.factors["A"]](lane, value, operand)
                assert lane_map.coordinate(lane, value) == wanted, (operand, lane, value)
                continue
            wanted = ptx_884_f16(lane, value, operand, form.orders, form.result)
            pair = lane // 4 % 4
            if form.level == QuadPair:  # the number of a lane in its quad-pair: four of the lower half, then four of the upper
                assert lane_map.coordinate(lane % 4 + lane // 16 * 4, value) == wanted, (operand, lane, value)
            else:
                rows, columns = (8 * (pair % 2) if operand != "B" else 0), (8 * (pair // 2) if operand != "A" else 0)
                assert lane_map.coordinate(lane, value) == (wanted[0] + rows, wanted[1] + columns), (operand, lane, value)


@pytest.mark.sampled(1)
@named
def test_each_element_has_one_owner(form):
    for operand, lane_map in form.maps().items():
        points = [point for row in lane_map.table for point in row]
        repeated = 2 if form.shape == (16, 16, 4) and operand != "C" else 1  # two quad-pairs share rows of A, columns of B
        assert len(points) == repeated * len(set(points)), operand


@pytest.mark.sampled(1)
@named
def test_opcode(form):
    m, n, k = (8, 8, 4) if is_volta(form) else form.shape
    names = {float64: "f64", float32: "f32", tf32: "tf32", float16: "f16", bfloat16: "bf16", int8: "s8", int32: "s32"}
    names |= {float8_e4m3: "e4m3", float8_e5m2: "e5m2"}
    left, right = form.orders or ("row", "col")
    a, b, c = names[form.factors["A"]], names[form.factors["B"]], names[form.result]
    assert form.opcode == f"mma.sync.aligned.m{m}n{n}k{k}.{left}.{right}.{c}.{a}.{b}.{c}"
    assert eval(repr(form), dict(vars(fireiron))) is form


def test_targets():
    """PTX ISA, mma, "Target ISA Notes"."""
    least = {form.opcode: form.capability for form in FORMS}
    for opcode, capability in least.items():
        kind, shape = opcode.split(".")[-2], opcode.split(".")[3]
        if kind == "f64":
            assert capability == (80 if shape == "m8n8k4" else 90)
        elif kind in ("e4m3", "e5m2"):
            assert capability == 89
        elif kind == "f16":
            assert capability == {"m8n8k4": 70, "m16n8k8": 75, "m16n8k16": 80}[shape]
        else:
            assert capability == (75 if shape == "m8n8k16" else 80)


# ---------------------------------------------------------------------------------------------- simulated


@pytest.mark.sampled(6)
@named
def test_products(form):
    generator = np.random.default_rng(3)
    for layouts in layouts_of(form):
        spec = spec_of(form, *layouts)
        a, b = integers((32, 64), form.factors["A"], generator), integers((64, 32), form.factors["B"], generator)
        kernel = simulated(strategy_of(form)(spec), first_target(form.capability))
        assert form.opcode in kernel.asm["cuda"]
        assert np.array_equal(called(kernel, a, b), spec.reference(a, b))


@pytest.mark.sampled(6)
@named
def test_probes(form):
    """Each element of A and of B arrives at its position; the same probes run on a GPU in test_probe_gpu.py."""
    depth = max(form.shape[2], 4)
    spec = spec_of(form, *layouts_of(form)[0], sizes=(16, 16, depth))
    kernel = simulated(strategy_of(form, tiles=(16, 16), chunk=depth)(spec), first_target(form.capability))
    for a, b in probes_of(form):
        assert np.array_equal(called(kernel, a, b), spec.reference(a, b))


@named
def test_adds_to_c(form):
    generator = np.random.default_rng(5)
    spec = spec_of(form, *layouts_of(form)[0], accumulate=True)
    a, b = integers((32, 64), form.factors["A"], generator), integers((64, 32), form.factors["B"], generator)
    c = integers((32, 32), form.result, generator, -50, 50)
    out = stored(c, spec.C.tensor.layout)
    called(simulated(strategy_of(form, accumulate=True)(spec), first_target(form.capability)), a, b, out=out)
    assert np.array_equal(out, spec.reference(a, b) + c)


@pytest.mark.parametrize(
    ("target", "dtype", "c_dtype", "chunk", "expected"),
    [
        ("sm_70", float16, float32, 16, "HMMA_884X4_F32"),
        ("sm_70", float16, float16, 8, "HMMA_884X4_F16"),
        ("sm_75", float16, float32, 16, "HMMA_1688_F32"),
        ("sm_80", float16, float32, 16, "HMMA_16816_F32"),
        ("sm_80", float16, float16, 16, "HMMA_16816_F16"),
        ("sm_80", float16, float32, 8, "HMMA_1688_F32"),
        ("sm_90", bfloat16, float32, 16, "HMMA_16816_F32_BF16"),
        ("sm_90", bfloat16, float32, 8, "HMMA_1688_F32_BF16"),
        ("sm_80", tf32, float32, 16, "HMMA_1688_F32_TF32"),
        ("sm_80", tf32, float32, 4, "HMMA_1684_F32_TF32"),
        ("sm_75", int8, int32, 32, "IMMA_8816_S8"),
        ("sm_80", int8, int32, 32, "IMMA_16832_S8"),
        ("sm_80", int8, int32, 16, "IMMA_16816_S8"),
        ("sm_80", float64, float64, 16, "DMMA_884"),
        ("sm_90", float64, float64, 16, "DMMA_16816"),
        ("sm_90", float64, float64, 8, "DMMA_1688"),
        ("sm_90", float64, float64, 4, "DMMA_1684"),
        ("sm_89", float8_e4m3, float32, 32, "QMMA_16832_F32_E4M3"),
        ("sm_89", float8_e5m2, float16, 16, "QMMA_16816_F16_E5M2"),
        ("sm_90", (float8_e4m3, float8_e5m2), float32, 32, "QMMA_16832_F32_E4M3_E5M2"),
    ],
)
def test_mma_tile_chooses_for_the_target(target, dtype, c_dtype, chunk, expected):
    for a, b in itertools.product((RowMajor, ColMajor), repeat=2):
        spec = MatMul(32, 32, 64, dtype=dtype, c_dtype=c_dtype, A=a, B=b, C=RowMajor)(GL, GL, GL)(Kernel)
        chain = MatMul.tile(32, 32).to(Block).epilog(RF, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
        chain = chain.split(chunk).load(A, SH, one_each).load(B, SH, one_each).tile(16, 16).to(Warp)
        strategy = chain.mma_tile().load(A, RF, Move.done()).load(B, RF, Move.done()).done()
        program = strategy(spec).program(target)
        (used,) = {statement.instruction for statement, _ in execs(program.ir.body) if isinstance(statement.instruction, Mma)}
        layout = "".join({"row": "T", "col": "N"}[a.order] + {"row": "T", "col": "N"}[b.order]) if "884X4" in expected else ""
        assert used.name == expected + (f"_{layout}" if layout else "")
        generator = np.random.default_rng(9)
        left, right = (integers(shape, spec.operands[name].dtype, generator) for name, shape in (("A", (32, 64)), ("B", (64, 32))))
        assert np.array_equal(called(simulated(strategy(spec), target), left, right), spec.reference(left, right))


def test_none_left_on_older_targets():
    spec = spec_of(next(form for form in FORMS if form.factors["A"] == float8_e4m3))
    with pytest.raises(DecompositionError, match="no matrix instruction of sm_80"):
        _ = MatMul.tile(16, 16).to(Block).tile(16, 16).to(Warp).mma_tile()(spec).program("sm_80").ir
    with pytest.raises(DecompositionError, match="no matrix instruction of sm_90"):
        volta = MatMul.tile(32, 32).to(Block).epilog(RF, float16, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
        _ = volta.split(4).tile(16, 16).to(Warp).mma_tile()(MatMul(32, 32, 4, dtype=float16)(GL, GL, GL)(Kernel)).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- element types


def test_tf32_drops_the_last_bits():
    """With full mantissas the simulator multiplies what the hardware reads: the upper 19 bits."""
    form = HMMA_1688_F32_TF32
    spec = spec_of(form, sizes=(16, 16, 8), b=RowMajor)
    kernel = strategy_of(form, tiles=(16, 16), chunk=8)(spec).compile("sm_80")
    generator = np.random.default_rng(11)
    for values in (generator.standard_normal((16, 8)), generator.standard_normal((16, 8)) * 1e30, np.full((16, 8), -1 - 2.0**-11)):
        values = values.astype(np.float32)
        eye = np.eye(8, 16, dtype=np.float32)
        got = called(kernel, values, eye)
        cut = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        assert np.array_equal(got[:, :8], cut) and not got[:, 8:].any()
        assert np.array_equal(multiplied(values, tf32), cut) and multiplied(values, float32) is values
        assert np.array_equal(spec.reference(values, eye), got)
    assert not np.array_equal(cut, values)


def test_tf32_is_stored_with_all_bits():
    copy = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    values = np.random.default_rng(2).standard_normal((16, 16)).astype(np.float32)
    for types in ((tf32, tf32), (float32, tf32), (tf32, float32)):
        spec = Move(16, 16, dtype=types[0], dst_dtype=types[1])(GL, GL)(Kernel)
        assert np.array_equal(called(copy(spec).compile("sm_80"), values), values)


@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2], ids=str)
def test_conversions_to_8_bits_saturate(dtype):
    """As `__nv_fp8_e4m3(float)` and similar conversions do with `__NV_SATFINITE`."""
    most = 448 if dtype == float8_e4m3 else 57344
    values = np.array([0, 1, -1, 0.3, most, most * 1.01, 1e30, -1e30, np.inf, -np.inf], np.float32)
    for source in (np.float32, np.float64):
        got = convert(values.astype(source), dtype)
        assert got.dtype == dtype.to_numpy()
        assert got.astype(np.float32)[4:].tolist() == [most, most, most, -most, most, -most]
        assert got.astype(np.float32)[:3].tolist() == [0, 1, -1]
    assert np.isnan(convert(np.array([np.nan], np.float32), dtype).astype(np.float32)[0])
    assert convert(np.array([3], np.int8), dtype).astype(np.float32)[0] == 3


@pytest.mark.parametrize("dtype", [tf32, float8_e4m3, float8_e5m2], ids=str)
def test_no_arithmetic_of_threads(dtype):
    scalar = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(MatchError, match="type"):
        _ = scalar(MatMul(8, 8, 8, dtype=dtype)(GL, GL, GL)(Kernel)).program("sm_90").ir
    add = BinaryPointwise.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    with pytest.raises(MatchError, match="type") if dtype == tf32 else contextlib.nullcontext():  # 8-bit floats are converted to float32
        _ = add(BinaryPointwise("+", 8, 8, dtype=dtype)(GL, GL, GL)(Kernel)).program("sm_90").ir
    assert MatMul(8, 8, 8, dtype=dtype)(GL, GL, GL)(Kernel).C.dtype == float32


# ---------------------------------------------------------------------------------------------- ldmatrix, stmatrix, movmatrix


def figure_1(lane):
    """Graphene, Figure 1c: the shared-memory offset of a lane, 16x16 float16 row-major, groups of eight threads as (2,2)."""
    group, idx = lane // 8, lane % 8
    grp_m, grp_n = group // 2, group % 2
    return grp_m * 128 + grp_n * 8 + idx * 16


def test_addresses_of_figure_1():
    """Up to the order of the four groups, which is free (T027)."""
    (ldmatrix,) = [one for one in LDMATRIX if one.name == "LDMATRIX_16x16_ROW"]
    source = ldmatrix.maps()["src"]
    offsets = [row * 16 + column for row, column in (source.coordinate(lane, 0) for lane in range(32))]
    groups = [tuple(offsets[start : start + 8]) for start in range(0, 32, 8)]
    assert set(groups) == {tuple(figure_1(lane) for lane in range(start, start + 8)) for start in range(0, 32, 8)}
    for lane in range(32):
        row, column = source.coordinate(lane, 0)
        assert source.table[lane] == tuple((row, column + step) for step in range(8)), "a row of eight elements"


def test_registers_of_table_2():
    """Table 2 rows 4 and 11: ldmatrix loads the registers that m16n8k16 owns of A, register by register, in its own order."""
    (ldmatrix,) = [one for one in LDMATRIX if one.name == "LDMATRIX_16x16_ROW"]
    assert ldmatrix.maps()["dst"].table == HMMA_16816_F32.a.table


@pytest.mark.sampled(1)
@pytest.mark.parametrize("matrices", [(2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("way", [0, 1])
def test_matrices_of_lanes(matrices, way):
    """PTX ISA, ldmatrix: rows 0-7 of matrix j are addressed by lanes 8j to 8j+7; lane l has elements 2(l%4), 2(l%4)+1 of row l/4."""
    corners = [(8 * (j % matrices[0]), 8 * (j // matrices[0])) for j in range(matrices[0] * matrices[1])]
    for lane in range(32):
        j = lane // 8 % len(corners)
        for i in range(8):
            inside = (lane % 8, i) if way else (i, lane % 8)
            assert addressed(matrices, way).coordinate(lane, i) == (corners[j][0] + inside[0], corners[j][1] + inside[1])
        for register, half in itertools.product(range(len(corners)), range(2)):
            inside = (lane // 4, lane % 4 * 2 + half) if way else (lane % 4 * 2 + half, lane // 4)
            wanted = (corners[register][0] + inside[0], corners[register][1] + inside[1])
            assert received(matrices, way).coordinate(lane, register * 2 + half) == wanted


@pytest.mark.parametrize(
    "layouts", list(itertools.product((RowMajor, ColMajor), repeat=2)), ids=lambda pair: "".join(one.order[0] for one in pair)
)
def test_random_data_through_ldmatrix_and_mma(layouts):
    a, b = layouts
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, Init.tile(32, 16).to(Warp).done(), Move.tile(32, 16).to(Warp).done())
    chain = chain.split(32).load(A, SH, one_each).load(B, SH, one_each).tile(32, 16).to(Warp)
    strategy = chain.split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    spec = MatMul(64, 32, 96, dtype=float16, c_dtype=float32, A=a, B=b, C=RowMajor)(GL, GL, GL)(Kernel)
    kernel = strategy(spec).compile("sm_80")
    text = kernel.asm["cuda"]
    assert len(re.findall(r"\n +ldmatrix_x4_trans\(", text)) == (a == ColMajor) + (b == RowMajor)
    assert len(re.findall(r"\n +ldmatrix_x4\(", text)) == (a == RowMajor) + (b == ColMajor)
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.trans") == (a == ColMajor or b == RowMajor)
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.shared") == (a == RowMajor or b == ColMajor)
    generator = np.random.default_rng(17)
    left, right = (generator.standard_normal(shape).astype(np.float16) for shape in ((64, 96), (96, 32)))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    assert np.abs(called(kernel, left, right) - exact).max() < 96 * 2.0**-24 * 60
    left, right = integers((64, 96), float16, generator, -9, 10), integers((96, 32), float16, generator, -9, 10)
    assert np.array_equal(called(kernel, left, right), spec.reference(left, right))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("instruction", LDMATRIX, ids=lambda one: one.name)
def test_every_ldmatrix(instruction):
    kernel = loaded_by(instruction).compile("sm_80")
    opcode = f"ldmatrix.sync.aligned.m8n8.x{instruction.count}{'.trans' if instruction.transposes else ''}.shared.b16"
    assert opcode in kernel.asm["cuda"]
    generator = np.random.default_rng(1)
    a, b = integers((32, 64), float16, generator), integers((64, 32), float16, generator)
    assert np.array_equal(called(kernel, a, b), a @ b)


@pytest.mark.parametrize("instruction", [one for one in STMATRIX if one.pairs], ids=lambda one: one.name)
def test_every_stmatrix_of_accumulators(instruction):
    kernel = stored_by(instruction).compile("sm_90")
    opcode = f"stmatrix.sync.aligned.m8n8.x{instruction.count}{'.trans' if instruction.transposes else ''}.shared.b16"
    assert opcode in kernel.asm["cuda"]
    generator = np.random.default_rng(1)
    a, b = integers((32, 64), float16, generator), integers((64, 32), float16, generator)
    assert np.array_equal(called(kernel, a, b), a @ b)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_copies_through_all_three(dtype):
    used = set()
    for load, move, store in through_choices():
        used |= {load, move, store}
        values = (np.arange(1024) % 256).reshape(32, 32).astype(dtype.to_numpy())
        kernel = through(load, move, store, dtype).compile("sm_90")
        assert "movmatrix.sync.aligned.m8n8.trans.b16" in kernel.asm["cuda"]
        assert np.array_equal(called(kernel, values), values)
    assert used == {*LDMATRIX, *MOVMATRIX, *STMATRIX}


def test_stmatrix_does_not_convert():
    """Threads store and round a float32 accumulator; stmatrix refuses it."""
    assert "stmatrix" in stored_by(None, float16).cuda("sm_90")
    assert "stmatrix" not in stored_by(None, float16).cuda("sm_80")
    assert "stmatrix" not in stored_by(None, float32).cuda("sm_90")
    (stmatrix,) = [one for one in STMATRIX if one.name == "STMATRIX_16x16_ROW"]
    with pytest.raises(MatchError, match="src type +requires float16 or bfloat16, got float32"):
        stored_by(stmatrix, float32).cuda("sm_90")
    mixed = Move(16, 16, dtype=bfloat16, dst_dtype=float16, dst=RowMajor)(RF, SH)(Warp)
    assert [found.field for found in stmatrix.mismatches(mixed, ARCHITECTURES[-1])] == ["dst type"]


def test_wrong_order_in_registers_is_shown():
    """Both layouts, two lanes of each, and their first difference (T027)."""
    (wrong,) = [one for one in LDMATRIX if one.name == "LDMATRIX_16x16_ROW_T"]
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, float32, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
    chain = chain.split(16).load(A, SH, one_each).load(B, SH, one_each).tile(16, 16).to(Warp)
    strategy = chain.load(A, RF, Move.done(wrong)).load(B, RF, Move.done()).mma_tile().done()
    with pytest.raises(MatchError) as caught:
        strategy(MatMul(16, 16, 16, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)).cuda("sm_80")
    text = str(caught.value)
    assert "LDMATRIX_16x16_ROW_T" in text
    assert "lane 0 (0, 0) (1, 0) (8, 0) (9, 0) (0, 8) (1, 8) (8, 8) (9, 8); lane 1 (2, 0)" in text, "what it delivers"
    assert "lane 0 (0, 0) (0, 1) (8, 0) (8, 1) (0, 8) (0, 9) (8, 8) (8, 9); lane 1 (0, 2)" in text, "what the product holds"
    assert "(1, 0) as its value 1" in text, "where they first differ"


def test_ldmatrix_requires_16_bit_elements():
    """ldmatrix loads pairs of 16-bit elements; for a float32 operand it is refused if named, and loads are done by lane otherwise."""
    form = HMMA_1688_F32_TF32
    (ldmatrix,) = [one for one in LDMATRIX if one.name == "LDMATRIX_16x8_ROW"]
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
    chain = chain.split(8).load(A, SH, one_each).load(B, SH, one_each).tile(16, 16).to(Warp)
    with pytest.raises(MatchError, match="src type"):
        chain.load(A, RF, Move.done(ldmatrix)).load(B, RF, Move.done()).mma_tile().done()(spec_of(form, sizes=(16, 16, 8))).cuda("sm_80")


# ---------------------------------------------------------------------------------------------- compiled


@pytest.mark.sampled(9)
@needs_nvrtc
@named
def test_compiles(form):
    """On the first target that supports it, and on Blackwell; m8n8k4, too (T019). On Hopper `test_contracts` compiles the same kernels."""
    spec = spec_of(form, *layouts_of(form)[0])
    served = {first_target(form.capability), "sm_120"} & {one.name for one in ARCHITECTURES}
    new = any(kind in form.name for kind in ("QMMA_16816", "QMMA_16832_F16"))
    for target in sorted(served):
        compilers = [chain for chain in toolchains() if chain.serves(target) and (not new or chain.version >= (12, 8))]
        if not compilers:
            pytest.skip(f"no installed NVRTC serves {form.name} on {target}")
        (report,) = compile_cuda(strategy_of(form)(spec).cuda(target), target).resources.values()
        assert report.registers <= 255


@needs_nvrtc
def test_copies_compile():
    for load, move, store in through_choices():
        compile_cuda(through(load, move, store).cuda("sm_90"), "sm_90")


@pytest.mark.sampled(3)
@needs_nvrtc
@pytest.mark.parametrize("dtype", [tf32, float8_e4m3, float8_e5m2], ids=str)
def test_conversions_compile(dtype):
    others = (float64, float32, float16, bfloat16, int32, int8, tf32, float8_e4m3, float8_e5m2)
    for other, (source, target) in itertools.product(others, ((0, 1), (1, 0))):
        pair = (dtype, other)
        spec = Move(33, 9, dtype=pair[source], dst_dtype=pair[target])(GL, GL)(Kernel)
        compile_cuda(spec.tile(32, 8).to(Block).tile(4, 1).to(Thread).done().cuda("sm_90"), "sm_90")


# ---------------------------------------------------------------------------------------------- refused


def leaf(form, **changes):
    """The spec of a form, with changes."""
    options = {"dtype": tuple(form.factors.values()), "c_dtype": form.result, "level": form.level, "sizes": form.shape} | changes
    order = dict(zip("AB", ({"row": RowMajor, "col": ColMajor}[one] for one in form.orders or ("row", "col")), strict=True))
    memories = options.get("memories", (RF, RF, RF))
    return MatMul(*options["sizes"], dtype=options["dtype"], c_dtype=options["c_dtype"], **order)(*memories)(options["level"])


@pytest.mark.sampled(1)
@named
def test_mismatches_are_reported(form):
    target = next(one for one in ARCHITECTURES if one.name == "sm_90")
    assert form.mismatches(leaf(form), target) == ()

    def fields(**changes):
        return [found.field for found in form.mismatches(leaf(form, **changes), target)]

    m, n, k = form.shape
    assert fields(sizes=(m, n, 2 * k)) == fields(sizes=(2 * m, n, k)) == ["shape"]
    assert fields(level=Thread) == ["level"]
    assert fields(dtype=(int32, form.factors["B"])) == ["A type"]
    assert fields(dtype=(form.factors["A"], int32)) == ["B type"]
    assert fields(c_dtype=bfloat16) == ["C type"]
    assert fields(memories=(SH, RF, RF)) == ["A memory"]
    assert [found.field for found in form.mismatches(Move(m, n)(RF, RF)(Warp), target)] == ["spec"]
    for older in ARCHITECTURES:
        mismatches = form.mismatches(leaf(form), older)
        assert [one.field for one in mismatches] == ([] if older.capability >= form.capability else ["target"])
    if form.orders:
        a = leaf(form).A
        transposed = attrs.evolve(a.tensor, layout={"row": ColMajor, "col": RowMajor}[form.orders[0]])
        other = leaf(form).with_operands(A=attrs.evolve(a, tensor=transposed))
        assert [found.field for found in form.mismatches(other, target)] == ["A layout"]


def test_errors_of_a_strategy():
    spec = spec_of(HMMA_16816_F32)
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
    warp = chain.split(16).tile(16, 16).to(Warp)
    with pytest.raises(MatchError, match="A memory requires RF, got GL"):
        warp.mma_tile().done(HMMA_16816_F32)(spec).cuda("sm_80")
    with pytest.raises(MatchError, match="target +requires sm_80 or newer, got sm_75"):
        loads = warp.load(A, RF, Move.done()).load(B, RF, Move.done())
        loads.mma_tile(HMMA_16816_F32).done(HMMA_16816_F32)(spec).cuda("sm_75")
    with pytest.raises(ArgumentError, match="not a matrix instruction"):
        warp.mma_tile(FFMA)
    with pytest.raises(DecompositionError, match="Warp"):
        chain.split(16).tile(16, 16).to(Thread).mma_tile()(spec).cuda("sm_80")


def test_quad_pairs_of_a_warp_work_together():
    """Two tiles for the four quad-pairs of a warp would leave lanes out of a warp-wide instruction."""
    chain = MatMul.tile(16, 8).to(Block).epilog(RF, Init.tile(8, 8).to(QuadPair).done(), Move.tile(8, 8).to(QuadPair).done())
    chain = chain.split(4).tile(16, 8).to(Warp).tile(8, 8).to(QuadPair).load(A, RF, Move.done()).load(B, RF, Move.done()).done()
    with pytest.raises(DecompositionError, match="requires all lanes of a warp"):
        chain(spec_of(fireiron.HMMA_884_F32_TN, sizes=(16, 8, 4))).cuda("sm_70")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "change",
    [{"factor": ()}, {"factor": (3,)}, {"factor": float16}, {"result": None}, {"a": None}, {"c": 5}, {"level": QuadPair}, {"shape": (8, 8, 4)},
     {"shape": 7}, {"orders": ("up", "down")}, {"opcode": 3}, {"capability": "80"}, {"level": Block}],
    ids=str,
)  # fmt: skip
def test_forms_are_checked(change):
    with pytest.raises(ArgumentError):
        attrs.evolve(HMMA_16816_F32, **change)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "fields",
    [(3, (), ()), ((8, 8), 3, ()), ((8, 8), ((8, 0),), ()), ((8, 8), ((8, 2, 1),), ()), ((8, 8), ((0, 0, 1),), ()), ((8, -8), (), ()),
     ((8, 8), ((8, 0, "1"),), ()), ((8, 8), (), ((8, 0, -1),))],
    ids=str,
)  # fmt: skip
def test_lane_maps_are_checked(fields):
    with pytest.raises(ArgumentError):
        _ = LaneMap.along(*fields).table


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "layouts",
    [(3, 4), (Layout(4), None), (Layout(32), Layout(2, 16)), (Layout(4), Layout(2, 4)), (Layout(16, 4), Layout(4, 3)),
     (Layout((4, 16)), Layout((), ()).swizzled(Swizzle(1, 0, 1))), (Layout(64, sym("s")), Layout((), ()))],
    ids=str,
)  # fmt: skip
def test_layouts_of_lane_maps_are_checked(layouts):
    """Values that are not layouts, of wrong size, or with carries from one dimension into the next."""
    with pytest.raises(ArgumentError):
        _ = LaneMap((8, 8), *layouts).table


@pytest.mark.parametrize(
    "instruction", [*FORMS, *LDMATRIX, *STMATRIX, *MOVMATRIX, ThreadMove("M"), ThreadInit("I")], ids=lambda one: one.name
)
def test_instructions_are_stored(instruction):
    """Inside strategies, also in strategies of loads, as JSON and as Python."""
    chain = MatMul.tile(16, 16).to(Warp).load(A, RF, Move.done(instruction))
    strategy = (chain.mma_tile(instruction) if isinstance(instruction, Mma) else chain).done(instruction)
    again = Strategy.from_json(strategy.to_json())
    assert again == strategy and hash(again) == hash(strategy)
    assert eval(repr(strategy), dict(vars(fireiron))) == strategy


def test_a_stored_form_is_checked():
    text = MatMul.tile(16, 16).to(Warp).mma_tile(HMMA_16816_F32).done().to_json()
    for old, new in (
        ('"float16"', '"float15"'),
        ('"shape": [16, 8, 8]', '"shape": [16, 8]'),
        ('"tile": [16, 16]', '"tile": [16, 8]'),
        ('"stride": [32, 1]', '"stride": [32]'),
    ):
        if old in text:
            with pytest.raises(StoreError):
                Strategy.from_json(text.replace(old, new))
    assert '"float16"' in text and '"tile": [16, 16]' in text and '"stride": [32, 1]' in text


def test_an_instruction_of_your_own():
    """A form is data: this one is m16n8k16 under another name, constructed outside the package."""
    own_form = attrs.evolve(HMMA_16816_F32, name="MINE")
    spec = spec_of(HMMA_16816_F32)
    program = strategy_of(own_form)(spec).program("sm_80", instructions=(own_form, *INSTRUCTIONS))
    assert own_form in {statement.instruction for statement, _ in execs(program.ir.body)}
