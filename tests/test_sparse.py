"""2:4 sparsity: compression, the meaning of SparseMatMul, and kernels with mma.sp, against NumPy on the dense matrix.

Kernels are simulated, checked, executed on the CPU, and compiled. Injected faults are found by a check or by the simulator.
"""

import itertools
import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed, Refused
from sparse_cases import exact_inputs, sparse_chain, sparse_product, sparse_ring, sparse_spec

import fireiron
from fireiron import *
from fireiron.check import check, safety
from fireiron.errors import ArgumentError, DecompositionError, MatchError, SimulationError
from fireiron.executable.mma_sp import INSTRUCTIONS as FORMS
from fireiron.executable.wgmma_sp import WGMMA_SP
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Exec, rewritten
from fireiron.ir.lanes import LaneMap
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.specs.compression import places_of
from fireiron.strategies import sparse_ampere, sparse_hopper
from fireiron.tune.record import describe, spec_of

PATTERNS = list(itertools.combinations(range(4), 2))
"""The places of two kept elements of four."""


def dense_of(arrays):
    """The dense A, element by element from the definition of the format."""
    values, metadata = arrays["A"], arrays["E"].astype(int)
    dense = np.zeros((len(values), values.shape[1] * 2), np.float64)
    for row, kept in np.ndindex(values.shape):
        group = kept // 2
        nibble = metadata[row, group // 2] >> 4 * (group % 2) & 15 or 4
        dense[row, 4 * group + ((nibble >> 2 * (kept % 2)) & 3)] = values[row, kept]
    return dense


def product_of(arrays):
    return dense_of(arrays) @ np.asarray(arrays["B"], np.float64)


def objection_to(case, program, seed):
    """What is wrong with a generated kernel; empty if nothing is."""
    alarms = [str(finding) for finding in safety(program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {alarms[0]}"
    arrays = case.arrays(seed)
    for order in (None, random.Random(seed)):
        outputs = simulate(program.ir, arrays, case.symbols, order=order).outputs
        for name, right in case.expected(arrays, product_of(arrays)).items():
            if not np.array_equal(outputs[name], right):
                return f"a wrong result {name} in the order {order}"
    return ""


# ---------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, int8, float8_e4m3], ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (5, 24), (3, 2, 16)], ids=str)
def test_compression_is_inverted(dtype, shape):
    generator = np.random.default_rng(0)
    dense = generator.integers(1, 5, shape).astype(dtype.to_numpy())
    for group in np.ndindex(*shape[:-1], shape[-1] // 4):
        kept = generator.permutation(4)[: generator.integers(0, 3)]
        dense[(*group[:-1], slice(4 * group[-1], 4 * group[-1] + 4))] *= np.isin(np.arange(4), kept).astype(dtype.to_numpy())
    values, metadata = compress_2_4(dense)
    assert values.dtype == dense.dtype and metadata.dtype == np.uint8
    assert values.shape == (*shape[:-1], shape[-1] // 2) and metadata.shape == (*shape[:-1], shape[-1] // 8)
    np.testing.assert_array_equal(decompress_2_4(values, metadata), dense)


def test_each_pattern_has_its_bits():
    for low, high in itertools.product(PATTERNS, repeat=2):
        dense = np.zeros((1, 8), np.float16)
        dense[0, [*low, *(4 + place for place in high)]] = 1, 2, 3, 4
        values, metadata = compress_2_4(dense)
        assert values.tolist() == [[1, 2, 3, 4]]
        assert metadata[0, 0] == low[0] | low[1] << 2 | high[0] << 4 | high[1] << 6
        assert places_of(metadata).tolist() == [[list(low), list(high)]]
    assert compress_2_4(np.zeros((1, 8)))[1].tolist() == [[0x44]]
    assert places_of(np.array([[0, 0x4E]], np.uint8)).tolist() == [[[0, 1], [0, 1], [2, 3], [0, 1]]]


def test_pruning_keeps_the_largest():
    dense = np.array([[1, -5, 3, -4, 2, 2, 2, 2]], np.float16)
    values, metadata = compress_2_4(dense, prune=True)
    assert values.tolist() == [[-5, -4, 2, 2]]
    assert decompress_2_4(values, metadata).tolist() == [[0, -5, 0, -4, 2, 2, 0, 0]]


def test_refused_compression():
    dense = np.zeros((3, 16), np.float16)
    dense[1, 8:11] = 1
    with pytest.raises(ArgumentError, match=r"3 of 4 elements are not zero at \[1,8:12\][\s\S]*prune=True"):
        compress_2_4(dense)
    with pytest.raises(ArgumentError, match="multiple of 8"):
        compress_2_4(dense[:, :12])
    with pytest.raises(ArgumentError, match="NumPy or CuPy"):
        compress_2_4([[0.0] * 8])
    with pytest.raises(ArgumentError, match="do not fit"):
        decompress_2_4(dense[:, :8], np.zeros((3, 1), np.uint8))
    with pytest.raises(ArgumentError, match=r"group 1 of row \(0,\) are 1 and 1[\s\S]*compress_2_4"):
        decompress_2_4(dense[:, :4], np.array([[0x50], [0], [0]], np.uint8))


# ---------------------------------------------------------------------------------------------- the spec


def test_meaning():
    spec = SparseMatMul(5, 7, 24, dtype=float16, c_dtype=float32, A=RowMajor, E=RowMajor)(GL, GL, GL, GL)(Kernel)
    arrays = exact_inputs(spec)
    np.testing.assert_array_equal(spec.reference(*arrays.values()), product_of(arrays))
    assert str(spec.flops) == str(2 * 5 * 7 * 24)
    assert str(spec.bytes) == str(5 * 12 * 2 + 5 * 3 + 24 * 7 * 2 + 5 * 7 * 4)
    arrays["B"][4] = np.inf  # multiplied only where row 4 is kept
    kept = dense_of({**arrays, "A": np.ones_like(arrays["A"])})[:, 4] != 0
    assert np.isfinite(spec.reference(*arrays.values())).all(axis=1).tolist() == (~kept).tolist()


def test_written_and_read():
    spec = SparseMatMul(64, 32, sym("K", multiple_of=64), dtype=float16, c_dtype=float32, A=RowMajor, E=RowMajor)(GL, GL, GL, GL)(Kernel)
    bound = sparse_chain(32, float32)(spec)
    program = bound.program("sm_80")
    assert eval(repr(spec)) == spec and spec_of(describe(spec)) == spec
    assert loads(dumps(bound)) == bound
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


def test_refused():
    with pytest.raises(ArgumentError, match=r"E has one element per 8 coordinates of k[\s\S]*K=12[\s\S]*multiples of 8[\s\S]*zeros"):
        SparseMatMul(16, 8, 12, dtype=float16)
    with pytest.raises(ArgumentError, match="multiples of 8, such as sym"):
        SparseMatMul(16, 8, sym("K"), dtype=float16)
    spec = sparse_spec(FORMS[0], (64, 64, 128))
    with pytest.raises(DecompositionError, match=r"split\(4\): E has one element per 8 coordinates of k[\s\S]*legal   8 16 32 64 128"):
        _ = SparseMatMul.tile(64, 64).to(Block).split(4).done()(spec).program("sm_80").cuda
    with pytest.raises(MatchError, match="HMMA_SP_16832_F32"):
        _ = sparse_chain(16, float32)(spec).program("sm_80").cuda
    with pytest.raises(MatchError, match="sm_89"):
        _ = sparse_product(FORMS[-1]).program("sm_80").cuda
    with pytest.raises(ArgumentError, match="dtype must be"):
        SparseMatMul(16, 8, 32, dtype=(float16, float16, float16))


# ---------------------------------------------------------------------------------------------- kernels

SIZES = {"whole tiles": (64, 64, 128), "ragged": (70, 40, 136), "less than one tile": (3, 5, 8), "one iteration": (64, 32, 64)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("form", FORMS[:4:3], ids=str)
def test_right(form, name):
    spec = sparse_spec(form, SIZES[name])
    program = sparse_chain(form.shape[2], form.result)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    arrays = exact_inputs(spec)
    np.testing.assert_array_equal(simulate(program.ir, arrays, order=random.Random(1)).outputs["C"], product_of(arrays))


@pytest.mark.parametrize("orders", [{"A": ColMajor}, {"E": ColMajor}, {"B": ColMajor}, {"C": ColMajor}], ids=str)
def test_storage_orders(orders):
    spec = sparse_spec(FORMS[0], (70, 40, 72), **orders)
    program = sparse_chain(32, float32)(spec).program("sm_80")
    arrays = exact_inputs(spec)
    np.testing.assert_array_equal(simulate(program.ir, arrays).outputs["C"], product_of(arrays))


@pytest.mark.parametrize("multiple", [8, 64])
def test_run_time_sizes(multiple):
    spec = sparse_spec(FORMS[0], (sym("M"), sym("N"), sym("K", multiple_of=multiple)))
    program = sparse_chain(32, float32)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for sizes in ({"M": 1, "N": 1, "K": multiple}, {"M": 70, "N": 33, "K": 3 * multiple}):
        arrays = exact_inputs(spec, sizes)
        np.testing.assert_array_equal(simulate(program.ir, arrays, symbols=sizes).outputs["C"], product_of(arrays))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """All forms on the CPU, which has a separate table of fragments and metadata."""
    jobs = [(sparse_spec(form, (70, 40, 136)), sparse_chain(form.shape[2], form.result), form) for form in FORMS]
    host = HostProgram([Printed.of(chain(spec).program(f"sm_{form.capability}")) for spec, chain, form in jobs], tmp_path)
    for number, (spec, _, form) in enumerate(jobs):
        arrays = exact_inputs(spec, seed=number)
        np.testing.assert_array_equal(host.run(number, arrays)["C"], product_of(arrays), form.name)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_faults_in_the_text_are_found(tmp_path):
    """Metadata of zeros past the end of the array, and the selector of lanes 2 and 3, which have the values of lanes 0 and 1."""
    program = sparse_chain(32, float32)(sparse_spec(FORMS[0], (70, 40, 136))).program("sm_80")
    arrays = exact_inputs(program.spec)
    faults = (r" \| \(~places & 0x11111111u\) << 2", ""), (r"%12, 0;", "%12, 1;")
    host = HostProgram([Printed.of(program).changed(*fault) for fault in faults], tmp_path)
    with pytest.raises(Refused, match="the places of row"):
        host.run(0, arrays)
    np.testing.assert_array_equal(host.run(1, arrays)["C"], product_of(arrays))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_compiled(target):
    for form in FORMS[:4:3]:
        program = sparse_product(form).program(target)
        report = compile_cuda(program.cuda, target).resources[program.name]
        assert report.spill_stores == report.stack_frame == 0


@pytest.mark.sampled(3)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", ["strategy", "integers", "floats"])
def test_library(name):
    options = {
        "strategy": {},
        "integers": {"dtype": int8, "c_dtype": int32, "B": ColMajor},
        "floats": {"dtype": float8_e4m3, "B": ColMajor},
    }
    spec = sparse_ampere.spec(130, 72, 264, **options[name])
    target = "sm_89" if name == "floats" else "sm_80"
    program = getattr(sparse_ampere, name)(spec).program(target)
    assert [one for one in check(program.lowered) if one.severity == "error"] == []
    assert compile_cuda(program.cuda, target).resources[program.name].spill_stores == 0
    arrays = exact_inputs(spec)
    np.testing.assert_array_equal(simulate(program.ir, arrays).outputs["C"], product_of(arrays))


# ---------------------------------------------------------------------------------------------- Hopper

RINGS = {
    "TMA": ((200, 80, 384), RowMajor, 128),
    "metadata by columns": ((144, 72, 144), ColMajor, 64),
    "copies by threads": ((130, 70, 136), RowMajor, 128),
    "run-time sizes": ((sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=128)), RowMajor, 128),
}
"""Sizes, the storage order of the metadata, and elements of k per stage."""


@pytest.mark.parametrize("name", RINGS)
def test_warpgroups(name):
    sizes, order, bk = RINGS[name]
    spec = sparse_spec(WGMMA_SP[0], sizes, E=order)
    program = sparse_ring(float32, bk=bk, order=order)(spec).program("sm_90a")
    assert safety(program.lowered) == ()
    assert ("tma_load(" in program.cuda) == (name != "copies by threads")
    known = {"M": 70, "N": 72, "K": 256} if name == "run-time sizes" else {}
    arrays = exact_inputs(spec, known)
    np.testing.assert_array_equal(simulate(program.ir, arrays, order=random.Random(1), symbols=known).outputs["C"], product_of(arrays))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
def test_warpgroups_compiled():
    for form in (WGMMA_SP[0], WGMMA_SP[-1]):
        program = sparse_product(form).program("sm_90a")
        compiled = compile_cuda(program.cuda, "sm_90a")
        assert compiled.resources[program.name].spill_stores == 0 and "C75" not in compiled.log


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_text_of_warpgroups(tmp_path):
    """All forms of wgmma.sp on the CPU, and metadata of zeros past the end of the array."""
    programs = [sparse_ring(form.result)(sparse_spec(form, (120, 64, 256))).program("sm_90a") for form in WGMMA_SP]
    fault = Printed.of(programs[0]).changed(r"legal_metadata\(e_rf\);", "")
    host = HostProgram([*map(Printed.of, programs), fault], tmp_path)
    for number, program in enumerate(programs):
        arrays = exact_inputs(program.spec, seed=number)
        np.testing.assert_array_equal(host.run(number, arrays)["C"], product_of(arrays), WGMMA_SP[number].name)
    with pytest.raises(Refused, match=r"wgmma.sp[\s\S]*the places of row"):
        host.run(len(programs), exact_inputs(programs[0].spec))


def test_refused_by_warpgroups():
    spec = sparse_spec(WGMMA_SP[0], (128, 64, 128))
    with pytest.raises(MatchError, match="sm_90a"):
        _ = sparse_ring(float32)(spec).program("sm_80").cuda
    narrow = sparse_ring(float32, bk=32)(sparse_spec(WGMMA_SP[0], (128, 64, 128), B=ColMajor))
    assert "wgmma.mma_async.sp" in narrow.program("sm_90a").cuda  # 64 bytes of k are enough
    in_chunks = (
        SparseMatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).load(A, SH, Move.done()).load("E", RF)
        .load(B, SH, Move.done()).storage_layout(Layout((64, 64), (64, 1))).tile(64, 64).to(Warpgroup).done()
    )  # fmt: skip
    with pytest.raises(MatchError, match="B storage"):
        _ = in_chunks(spec).program("sm_90a").cuda


@pytest.mark.nightly
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", ["strategy", "by_columns", "integers"])
def test_library_of_hopper(name):
    options = {"strategy": {}, "by_columns": {"E": ColMajor}, "integers": {"dtype": int8, "c_dtype": int32, "B": ColMajor}}
    spec = sparse_hopper.spec(272, 264, 384, **options[name])
    program = getattr(sparse_hopper, name).with_(bk=64 if name == "by_columns" else 128)(spec).program("sm_90a")
    assert [one for one in check(program.lowered) if one.severity == "error"] == []
    assert compile_cuda(program.cuda, "sm_90a").resources[program.name].spill_stores == 0
    arrays = exact_inputs(spec)
    np.testing.assert_array_equal(simulate(program.ir, arrays).outputs["C"], product_of(arrays))


# ---------------------------------------------------------------------------------------------- faults


SWAPPED = LaneMap.along((16, 4), ((2, 1, 2), (2, 0, 0), (8, 0, 1)), ((2, 0, 8), (2, 1, 1)))
"""The map of metadata with the order of a lane's bytes exchanged."""


def test_a_wrong_metadata_map_is_found():
    program = sparse_product(FORMS[0]).program("sm_80")

    def change(stmt):
        if isinstance(stmt, Exec) and isinstance(stmt.instruction, fireiron.SparseMma):
            return attrs.evolve(stmt, lane_maps=(stmt.lane_maps[0], SWAPPED, *stmt.lane_maps[2:]))
        return stmt

    arrays = exact_inputs(program.spec)
    got = simulate(attrs.evolve(program.ir, body=rewritten(program.ir.body, lambda stmt: (change(stmt),))), arrays).outputs["C"]
    assert not np.array_equal(got, product_of(arrays))


def test_wrong_metadata_is_found():
    program = sparse_product(FORMS[0]).program("sm_80")
    arrays = exact_inputs(program.spec)
    arrays["E"][5, 3] = 0x45  # both places 1
    with pytest.raises((ArgumentError, SimulationError), match=r"2:4 metadata[\s\S]*ascending order"):
        simulate(program.ir, arrays)


def test_a_missing_barrier_is_found():
    from fireiron.ir import Barrier

    program = sparse_product(FORMS[0]).program("sm_80")
    body = rewritten(program.ir.body, lambda stmt: () if isinstance(stmt, Barrier) else (stmt,))
    with pytest.raises(SimulationError, match="race|read"):
        simulate(attrs.evolve(program.ir, body=body), exact_inputs(program.spec), order=random.Random(2))


# ---------------------------------------------------------------------------------------------- views

SOURCE = """
from fireiron import *
from fireiron.strategies import sparse_ampere
strategy = sparse_ampere.strategy.with_(bm=64, bn=64, wm=32, wn=32)(sparse_ampere.spec(64, 64, 128))
"""


def test_views(tmp_path, capsys):
    for command in ("show", "check", "explain", "cost", "run", "emit"):
        output_of(command, SOURCE, ["--arch", "sm_80"] if command != "run" else [], tmp_path, capsys)
    header = drawn_and_exported(SOURCE, tmp_path, capsys)
    assert "unsigned char" in header
