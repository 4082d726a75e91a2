"""wgmma with an operand in registers: its layout, how it is loaded, and when it may be overwritten."""

import numpy as np
import pytest
from instructions import product_of_warpgroups
from printed_text import HostProgram, Printed, Refused
from ringed import all_of_kind, dropped, errors, float16_gemm, inputs_of, is_load, of_kind, outcome, ring_faults, weaker, with_changed
from test_printed_text import agrees
from test_rings import is_harmless

from fireiron import *
from fireiron import ir
from fireiron.check import check
from fireiron.executable.ldmatrix_warpgroup import LdMatrixWarpgroup
from fireiron.executable.wgmma import WGMMA
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.performing.warpgroups import a_operand_map

IN_REGISTERS = [one for one in WGMMA if one.held]
F16 = next(one for one in IN_REGISTERS if one.name == "WGMMA_F16_F32_HELD")
SWAPPED = next(one for one in IN_REGISTERS if one.name == "WGMMA_F16_F32_SWAPPED_HELD")
ORDERS = {"NN": (RowMajor, RowMajor), "NT": (RowMajor, ColMajor), "TN": (ColMajor, RowMajor), "TT": (ColMajor, ColMajor)}


def ring(factor=A, tiles=(128, 64), part=(64, 64), stages=3, bk=64, mma_in_flight=None):
    """A ring kernel whose MMAs read one operand from shared memory and the other one from registers."""
    store = Move.tile(*part).to(Warpgroup).load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(*tiles).to(Block).epilog(RF, float32, Init.done(), store).split(bk).pipeline(stages).warp_specialize()
    chain = chain if mma_in_flight is None else chain.mma_in_flight(mma_in_flight)
    chain = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(*part).to(Warpgroup)
    return chain.load(factor, RF, Move.done()).done()


def right(program, order=1):
    arrays, expected = inputs_of(program.ir.spec)
    return outcome(program.ir, arrays, expected, order) == "right"


@pytest.mark.parametrize("element", [1, 2, 4])
def test_register_layout_of_an_operand(element):
    """PTX ISA, "Register Fragments for wgmma": rows by groups of four lanes, two float16 values of k per register."""
    together = 4 // element
    for thread in range(128):
        for value in range(4 * together):
            register, part = divmod(value, together)
            row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
            k = thread % 4 * together + register // 2 * 4 * together + part
            assert a_operand_map(element, False).coordinate(thread, value) == (row, k)
            assert a_operand_map(element, True).coordinate(thread, value) == (k, row)


@pytest.mark.parametrize("form", IN_REGISTERS, ids=lambda one: one.name)
def test_all_types(form, tmp_path):
    """Compared with NumPy, in the simulator and by the printed text."""
    tiles = (16, 64) if form.swapped else (64, 16)
    program = product_of_warpgroups(form, tiles=tiles, chunk=2 * form.depth, sizes=(*tiles, 4 * form.depth)).program("sm_90a")
    assert errors(program.ir) == []
    spec = program.ir.spec
    generator = np.random.default_rng(1)
    a, b = (generator.integers(-2, 3, [int(str(size)) for size in spec.operands[name].shape]).astype(np.float32) for name in "AB")
    if spec.A.dtype in (float16, bfloat16, int8):
        assert right(program)
        sizes = tuple(int(str(size)) for size in spec.sizes)
        assert agrees(HostProgram([Printed.of(program)], tmp_path), 0, spec, sizes)
    assert "_reg_" in program.cuda and a.shape[1] == b.shape[0]


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("form", [F16, SWAPPED], ids=lambda one: one.name)
@pytest.mark.parametrize("stages", [1, 3])
def test_through_registers_by_ldmatrix(form, orders, stages):
    """The buffer gets the chunk layout along its source's contiguous dimension; no bank conflicts."""
    program = product_of_warpgroups(form, orders=ORDERS[orders], stages=stages).program("sm_90a")
    assert any(isinstance(one.instruction, LdMatrixWarpgroup) for one, _ in ir.execs(program.ir.body))
    assert errors(program.ir) == [] and right(program)
    loads = [str(one) for one in check(program.ir) if "read by LDMATRIX_WARPGROUP" in str(one)]
    assert loads and all("no bank conflict" in one for one in loads)


RINGS = {
    "A": (ring(), float16_gemm(128, 128, 256)),
    "A, TT": (ring(), float16_gemm(136, 128, 200, orders="TT")),
    "an iteration in flight": (ring(tiles=(64, 64), mma_in_flight=1), float16_gemm(64, 64, 320)),
    "B, swapped": (ring(B, (16, 128), (16, 64)), float16_gemm(16, 128, 256, orders="NT")),
    "steps of 128": (ring(tiles=(64, 64), bk=128, stages=2), float16_gemm(64, 64, 512)),
}


@pytest.mark.parametrize("name", RINGS)
def test_rings(name, tmp_path):
    """TMA writes what ldmatrix and wgmma read; a warp releases a stage after all its lanes have read it."""
    strategy, spec = RINGS[name]
    program = strategy(spec).program("sm_90a")
    assert any(map(is_load, ir.statements(program.ir.body))), "TMA takes both"
    assert errors(program.ir) == [] and all(right(program, order) for order in (None, 1, 2))
    sizes = tuple(int(str(size)) for size in spec.sizes)
    host = HostProgram([Printed.of(program)], tmp_path)
    assert all(agrees(host, 0, spec, sizes, None, seed) for seed in range(3))


def test_registers_of_pending_mmas_are_not_overwritten():
    """The wait before the loads protects registers that MMAs still read: both detectors report its removal."""
    program = product_of_warpgroups(F16, stages=3).program("sm_90a")
    waits = [number for number, one in enumerate(all_of_kind(program.ir, ir.Wait)) if "a_rf" in one.reason]
    assert waits, "no wait covers the registers of the operand"
    arrays, expected = inputs_of(program.ir.spec)
    for number in waits:
        for change in (dropped, weaker):
            faulty = with_changed(program.ir, of_kind(ir.Wait), number, change)
            assert any("a_rf" in one for one in map(str, errors(faulty)))
            assert outcome(faulty, arrays, expected, 1) != "right"


def test_text_without_its_wait_is_wrong(tmp_path):
    """A register of an MMA in flight is accessed."""
    program = product_of_warpgroups(F16, tiles=(64, 64), stages=3, sizes=(64, 64, 512)).program("sm_90a")
    printed = Printed.of(program)
    faulty = printed.changed(r"wgmma_wait_group<\d>\(\);.*\n", "\n", 0).changed(r"(  // c_rf to C)", r"  wgmma_wait_group<0>();\n\1")
    host = HostProgram([printed, faulty], tmp_path)
    sizes = (64, 64, 512)
    assert all(agrees(host, 0, program.ir.spec, sizes, None, seed) for seed in range(4))
    with pytest.raises(Refused, match="a register of a product under way is touched"):
        agrees(host, 1, program.ir.spec, sizes, None, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["A", "an iteration in flight"])
def test_injected_faults_in_rings(name):
    """All synchronization between producer and consumers: the check and the simulator report each removal."""
    strategy, spec = RINGS[name]
    kernel = strategy(spec).program("sm_90a").ir
    arrays, expected = inputs_of(spec)
    detected = 0
    for fault, faulty in ring_faults(kernel):
        last = "Release 2" in fault  # for the last fill, after which no other follows
        if is_harmless(fault, kernel) or last:
            continue
        assert errors(faulty), f"the race check misses {fault}"
        # The simulator runs the lanes of a warp together.
        lanes = "dropped: Barrier" in fault and "warp" in fault
        assert lanes or any(outcome(faulty, arrays, expected, order) != "right" for order in (None, 1, 2, 3)), (
            f"the simulator misses {fault}"
        )
        detected += 1
    assert detected >= 15


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", RINGS)
def test_compiles_without_serialization(name):
    strategy, spec = RINGS[name]
    (resources,) = compile_cuda(strategy(spec).cuda("sm_90a"), "sm_90a").resources.values()
    assert resources.spill_stores == resources.stack_frame == 0
