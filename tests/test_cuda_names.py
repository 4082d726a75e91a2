"""Reserved names of CUDA C++: refused for operands, changed for all other names in generated code."""

import re

import pytest
from corpus import kept
from goldens.cases import TEXT

import fireiron
from fireiron import *
from fireiron.gpu import toolchain
from fireiron.values.cuda_names import BUILT_INS, FUNCTIONS, KEYWORDS, PRINTED, TAKEN, is_taken

NAMES = ("int", "class", "fmaxf", "expf", "sqrtf", "blockIdx", "threadIdx", "half", "uint3", "size_t", "NULL", "std", "assert")  # fmt: skip
needs_nvrtc = pytest.mark.skipif(not any(one.serves("sm_80") for one in toolchain.toolchains()), reason="no NVRTC for sm_80")


def defined(name="g", operand="X", temporary="t", dim="m"):
    steps = {
        "init": f"{temporary}[{dim}] = exp({operand}[{dim}]) + max({operand}[{dim}], 1)",
        "final": f"Y[{dim}] = sqrt({temporary}[{dim}])",
    }
    return Fused(name=name, dims=dim, operands={operand: dim, "Y": dim}, body=steps)


def compiled(definition, dim="m"):
    """The kernel, compiled if NVRTC is installed."""
    return definition.tile(**{dim: 8}).to(Block).tile(**{dim: 1}).to(Thread).done()(definition(**{dim: 32}, dtype=float32)).compile("sm_80")


@pytest.mark.parametrize("name", [*NAMES, "__half", "__x", "é", "é2"])
def test_operands_are_refused(name):
    with pytest.raises(ArgumentError, match="has a meaning in CUDA C|is a reserved name") as refused:
        defined(operand=name)
    assert refused.value.hint and refused.value.at


@pytest.mark.parametrize("name", ["__half", "__x", "é"])
def test_no_name_of_a_definition_is_foreign(name):
    for wrong in ({"name": name}, {"temporary": name}, {"dim": name}):
        with pytest.raises(ArgumentError, match="identifier of CUDA C"):
            defined(**wrong)


def test_operands_of_kinds_are_refused():
    scaled = fireiron.spec.Starter(Kind("Scaled", "expf[m] = 2 * X[m]"))
    with pytest.raises(ArgumentError, match="the operand name expf"):
        scaled(8)(GL, GL)(Kernel)


@needs_nvrtc
@pytest.mark.parametrize("name", [*NAMES, "main", "min", "exp", "printf", "memcpy"])
@pytest.mark.parametrize("role", ["name", "temporary", "dim"])
def test_all_other_names_compile(name, role):
    """A kernel called `exp` is printed as `exp_kernel`, a temporary `expf` as `expf2`."""
    if (role, name) in {("dim", "min"), ("dim", "exp"), ("temporary", "size_t"), ("dim", "size_t")}:
        with pytest.raises(ArgumentError):
            defined(**{role: name})
        return
    kernel = compiled(defined(**{role: name}), name if role == "dim" else "m")
    assert kernel.program.name not in TAKEN


CALLED = re.compile(r"(?<!::)\b([A-Za-z_]\w*)(?:<[^<>()]*>)?\(")
DECLARED = re.compile(r"__device__ __(?:force|no)inline__ [\w ]+?[ *](\w+)\(")


def unknown_names(text):
    """The functions that a text calls and that neither it nor CUDA declares."""
    plain = re.sub(r'//[^\n]*|"[^"]*"', "", text)
    declared = {*DECLARED.findall(text), *re.findall(r"\n(\w+)\(\n?", text), *re.findall(r"(?:auto|using|#define) (\w+)\b", text)}
    return {name for name in CALLED.findall(plain) if not is_taken(name) and name not in declared}


@pytest.mark.parametrize("part", range(4))
def test_every_function_that_is_printed_has_an_entry(part):
    """In texts of the corpus: a new CUDA function called by the printer is a reserved name."""
    seen = 0
    for number, stored in enumerate(kept()):
        if number % 120 == 30 * part:
            outcome = stored.outcome()
            if outcome.kind == TEXT:
                assert not unknown_names(outcome.body), stored.name
                seen += 1
    assert seen >= 5


def test_a_function_without_an_entry_is_noticed():
    assert unknown_names("k(float* x)\n{\n  x[0] = sinf(x[1]) + sinful(x[2]);\n}") >= {"sinful"}


@needs_nvrtc
@pytest.mark.parametrize("name", ["y0", "j1f", "asinf", "lround", "clock", "main"])
def test_uncalled_functions_may_be_operand_names(name):
    assert compiled(defined(operand=name)).program.name == "g"


def test_the_tables_are_disjoint():
    assert PRINTED <= FUNCTIONS
    assert not KEYWORDS & BUILT_INS and not KEYWORDS & FUNCTIONS and not BUILT_INS & FUNCTIONS
    assert {"fmaf", "expf", "exp2f", "fmaxf", "rsqrtf", "tanhf", "erff", "blockIdx", "uint4", "while"} <= TAKEN


@needs_nvrtc
@pytest.mark.parametrize("name", ["log10", "y0", "main"])
def test_sizes_may_have_names_of_uncalled_functions(name):
    problem = Move(sym(name), 8)(GL, GL)(Kernel)
    assert Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(problem).compile("sm_80").program.name == "move"


def test_sizes_have_no_names_that_are_printed():
    with pytest.raises(ArgumentError, match="the symbol name fmaf is used by generated code"):
        Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(Move(sym("fmaf"), 8)(GL, GL)(Kernel)).cuda("sm_80")
