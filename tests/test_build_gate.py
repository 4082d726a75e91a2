"""Build failures of the library: spills, serialized MMAs (C75xx), and A operands in registers that a compiler overwrites.

The nightly tier compiles every strategy of the library with the library's values for sm_80, sm_90 and sm_90a; the default tier a few.
"""

import inspect
import os

import pytest
from problems import ALL_NAMES, library

from fireiron import *
from fireiron.check import AccessTrace, check_ptxas_register_hazard
from fireiron.check import ptxas_register_hazard as hazard
from fireiron.check.ptxas_register_hazard import holds_operand_in_registers
from fireiron.cuda import emit
from fireiron.errors import FireironError
from fireiron.gpu import sass_register_check, toolchain
from fireiron.gpu.disassembly import disassemblers, sass
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir import execs
from fireiron.language.strategy import Strategy
from fireiron.strategies import attention, gated, hopper_attention, hopper_small

HOPPER = "sm_90a"
TARGETS = ("sm_80", "sm_90", HOPPER)

SPILL = {"naive", "listing_1", "hmma_turing", "hmma_volta"}
"""Strategies of the papers for smaller problems or other targets: for example all of K in a thread's arrays."""

SOME = (("gemm_row_sum", "hopper", HOPPER), ("softmax", "strategy", "sm_80"))
"""Those of the default tier."""

serves = {target: any(one.serves(target) for one in toolchain.toolchains()) for target in TARGETS}
needs_sass = pytest.mark.skipif(not serves[HOPPER] or not disassemblers(), reason="no NVRTC for sm_90a, or no nvdisasm")


def attended(d=64, keys=64, **form):
    """Attention with head dimension `d`; queries use as many registers as probabilities if `keys` equals `d`."""
    definition = attention.definition()
    strategy = hopper_attention.by_rows(definition, **form).with_(bm=128, bn=keys)
    return strategy(attention.spec(256, 4 * keys, d, heads=2, fused=definition)).program(HOPPER)


# ---------------------------------------------------------------------------------------------- operands in registers


def test_queries_in_registers_are_refused_where_some_compilers_overwrite_them():
    with pytest.raises(
        DecompositionError, match=r"q_rf stays in registers through the loop over n, and p, .*NVRTC before 13\.5.*\.defer\("
    ):
        attended(overlap=False, q_in_registers=True).ir  # noqa: B018
    for program in (attended(overlap=False, q_in_registers=True, keys=32), attended(q_in_registers=True), attended(overlap=False)):
        assert not check_ptxas_register_hazard(AccessTrace(program.ir))


SASS = """
.text.k:
        /*0000*/                   LDSM.16.M88.4 R152, [R4] ;
.L_x_1:
        /*0010*/                   HGMMA.64x64x16.F32 R24, R152, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*0020*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0030*/                   F2FP.F16.F32.PACK_AB R{written}, R25, R24 ;
        /*0040*/                   HGMMA.64x64x16.F32 R88, R{factor}, gdesc[UR8].tnspB, R88, UP0, gsb0 ;
        /*0050*/              {guard} BRA {label} ;
        /*0060*/                   F2FP.F16.F32.PACK_AB R152, R25, R24 ;
        /*0070*/                   EXIT ;
"""


def read(written, factor, guard="@P0", label="`(.L_x_1)"):
    head = '\t.section\t.text.k,"ax",@progbits\n' if label.startswith("`") else "\t\tFunction : k\n"
    return sass_register_check.overwritten_registers(head + SASS.format(written=written, factor=factor, guard=guard, label=label))


@pytest.mark.parametrize("label", ("`(.L_x_1)", "0x10"))
def test_overwritten_factors_are_found_in_machine_code(label):
    """A write within the loop overwrites them; after the loop, or in other registers, the second operand is harmless."""
    assert read(156, 156, label=label) == ()
    for register in (152, 155):
        (line,) = read(register, 152, label=label)
        assert line.startswith(f"k: HGMMA.64x64x16.F32 at 0x10 reads R{register}, which LDSM loads and F2FP.F16.F32.PACK_AB at 0x30")
    assert read(151, 156, label=label) == ()


def test_predicated_writes_may_or_may_not_be_reported():
    code = """
.text.k:
        /*0000*/                   LDSM.16.M88.4 R152, [R4] ;
        /*0010*/              {guard}  F2FP.F16.F32.PACK_AB R153, R25, R24 ;
        /*0020*/                   HGMMA.64x64x16.F32 R24, R152, gdesc[UR4], RZ, !UPT, gsb0 ;
        /*0030*/                   EXIT ;
"""
    (line,) = sass_register_check.overwritten_registers("\t\tFunction : k\n" + code.format(guard="@P1"))
    assert "reads R153, which LDSM loads and F2FP.F16.F32.PACK_AB at 0x10 overwrites" in line
    assert sass_register_check.overwritten_registers("\t\tFunction : k\n" + code.format(guard="   ")) == ()  # computed unconditionally


def test_an_operand_first_read_after_the_other_mma_may_share_its_registers():
    """It is computed before that MMA in the same iteration and read after it, so nothing is computed while the MMA is in flight."""
    kernel = attended(q_in_registers=True).ir
    (product, *_), others = ([one for one, _ in execs(kernel.body) if has(one)] for has in (reads("q_rf"), reads("p")))
    writers = [one for one, _ in execs(kernel.body) if any(access.buffer == "p" and access.write for access in one.accesses)]
    assert hazard._written_after([writers[0], product, others[0]], "q_rf", "p") is False
    assert hazard._written_after([product, writers[0], others[0]], "q_rf", "p") is True


def reads(name):
    """Whether a statement has a tensor as an input."""
    return lambda statement: any(access.buffer == name and not access.write for access in statement.accesses)


def test_a_missing_disassembler_is_reported(monkeypatch):
    monkeypatch.setattr(sass_register_check, "disassemblers", lambda: ())
    assert "not checked, because neither nvdisasm" in sass_register_check.registers_intact(b"")


def test_machine_code_with_overwritten_factors_is_refused(monkeypatch):
    text = '\t.section\t.text.k,"ax",@progbits\n' + SASS.format(written=152, factor=152, guard="@P0", label="`(.L_x_1)")
    monkeypatch.setattr(sass_register_check, "disassemblers", lambda: ("nvdisasm",))
    monkeypatch.setattr(sass_register_check, "sass", lambda cubin: text)
    with pytest.raises(LaunchError, match="that is still in use\nk: HGMMA") as caught:
        sass_register_check.registers_intact(b"")
    assert "13.5" in caught.value.hint


@needs_sass
def test_queries_in_registers_stay():
    """As the library prints them; NVRTC 12, if installed, overwrites the refused order, and the test reports it."""
    program = attended(q_in_registers=True)
    assert holds_operand_in_registers(program.ir)
    assert CompiledKernel(program).report().endswith("not overwritten")
    if serving := toolchain.serving(HOPPER, (13, 4)):
        text = emit(attended(overlap=False, q_in_registers=True).lowered)
        compiled = toolchain.compile_cuda(text, HOPPER, werror=False, newest=serving.version)
        assert len(sass_register_check.overwritten_registers(sass(compiled.cubin))) == 16


# ---------------------------------------------------------------------------------------------- no spills, no serialized MMAs

FORMS = {"in order": {"overlap": False}, "overlap": {}, "q_in_registers": {"q_in_registers": True}}

WITHOUT_REGISTERS = {("q_in_registers", 256), ("q_in_registers", 128, "window", "run time")}
"""Forms of attention with too few registers: with head dimension 256, queries in registers occupy a quarter of them."""


def attention_of(d, mask, lengths, rescale_threshold, **form):
    """The library's attention, for two or more blocks of keys."""
    definition = attention.definition(
        causal=mask == "causal", window=200 if mask == "window" else None, rescale_threshold=rescale_threshold
    )
    sizes = {"known": (1024, 1024), "odd": (1000, 1000), "run time": (sym("m"), sym("n"))}[lengths]
    spec = attention.spec(*sizes, d, heads=16, fused=definition)
    strategy = hopper_attention.by_rows(definition, **form)
    values = {name: value for name, value in hopper_attention.values(spec).items() if name in strategy.tunables()}
    return strategy.with_(**values)(spec).program(HOPPER)


@pytest.mark.nightly
@pytest.mark.skipif(not serves[HOPPER], reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("rescale_threshold", (0, 8))
@pytest.mark.parametrize("lengths", ("known", "odd", "run time"))
@pytest.mark.parametrize("mask", ("", "causal", "window"))
@pytest.mark.parametrize("d", (64, 96, 128, 256))
def test_all_forms_of_attention(d, mask, lengths, rescale_threshold):
    """Each compiles without a spill, except for known cases."""
    for name, form in FORMS.items():
        if WITHOUT_REGISTERS.isdisjoint(((name, d), (name, d, mask, lengths))):
            program = attention_of(d, mask, lengths, rescale_threshold, **form)
            report = toolchain.compile_cuda(program.cuda, HOPPER).resources[program.name]
            assert report.spill_stores == report.spill_loads == report.stack_frame == 0, name


@pytest.mark.skipif(not serves[HOPPER], reason="no NVRTC for sm_90a")
def test_mmas_in_flight_after_a_loop_that_may_have_no_iteration():
    """The compiler would move accumulators at the end of the loop, and so serialize the MMAs."""
    program = hopper_small.strategy(hopper_small.spec(1024, 1024, sym("k", multiple_of=8))).program(HOPPER)
    assert "pin_registers(c_rf);\n#pragma unroll 1\n    for (" in program.cuda
    assert toolchain.compile_cuda(program.cuda, HOPPER).resources[program.name].spill_stores == 0
    whole = hopper_small.strategy(hopper_small.spec(512, 512, 512)).program(HOPPER)
    assert "pin_registers(" not in whole.cuda


@pytest.mark.nightly
@pytest.mark.skipif(not serves[HOPPER], reason="no NVRTC for sm_90a")
def test_two_mmas_of_one_iteration_are_in_flight():
    """With all of k in one step, a compiler that clears the second accumulator after the first MMAs waits for them."""
    strategy = gated.hopper.with_(**gated.values(gated.spec(256, 256, 64)))
    program = strategy(gated.spec(256, 256, 64)).program(HOPPER)
    assert toolchain.compile_cuda(program.cuda, HOPPER).resources[program.name].spill_stores == 0


def forms(module):
    """The complete strategies of a library module, by name; those of its parts, such as copies, are for other specs."""
    kind = type(module.strategy.start)
    strategies = {name: value for name, value in vars(module).items() if isinstance(value, Strategy) and isinstance(value.start, kind)}
    return [name for name, value in strategies.items() if value.finished]


def cases():
    """Each strategy of the library for each target."""
    return [
        pytest.param(name, form, target, id=f"{name}:{form}-{target}")
        for name in ALL_NAMES
        for form in forms(library(name))
        for target in TARGETS
    ]


def test_some_strategies_do_not_spill():
    for case in SOME:
        require_no_spill(*case)


@pytest.mark.nightly
@pytest.mark.skipif("FIREIRON_FUZZ" not in os.environ, reason="part of the long tier: set FIREIRON_FUZZ")
@pytest.mark.parametrize(("name", "form", "target"), cases())
def test_all_strategies_do_not_spill(name, form, target):
    """With the values stated by the library; a ptxas remark that MMAs are serialized is an error."""
    require_no_spill(name, form, target)


def require_no_spill(name, form, target):
    if not serves[target]:
        pytest.skip(f"no NVRTC for {target}")
    module = library(name)
    strategy = getattr(module, form)
    own = {"fused": strategy.start} if "fused" in inspect.signature(module.spec).parameters and isinstance(strategy.start, Fused) else {}
    try:
        spec = module.spec(*module.SIZES, **own)
        stated = getattr(module, f"{form}_values", module.values)(spec) if hasattr(module, "values") else {}
        program = strategy.with_(**{key: value for key, value in stated.items() if key in strategy.tunables()})(spec).program(target)
        text = program.cuda
    except FireironError as error:
        is_main = form in ("strategy", "hopper", "causal")
        assert not is_main or target != HOPPER == strategy.target, error  # the others may be for another spec of their module
        pytest.skip(f"not for {target}, or for another spec")
    compiled = toolchain.compile_cuda(text, target)
    report = compiled.resources[program.name]
    if name not in SPILL:
        assert report.spill_stores == report.spill_loads == report.stack_frame == 0
    if disassemblers() and holds_operand_in_registers(program.ir):
        assert sass_register_check.overwritten_registers(sass(compiled.cubin)) == ()
