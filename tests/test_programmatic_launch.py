"""Programmatic dependent launch: where a kernel waits for its predecessor; what is verified, printed and launched. No GPU needed."""

import ctypes
import re
import sys
import threading
import types

import attrs
import making
import pytest
from exports import built, cuda_headers
from fake_gpu import FakeGpu
from printed_text import COMPILER, HostProgram, Printed
from problems import library
from ringed import TARGET, by_warps, float16_gemm, product, require_right
from test_export import CC, STRICT, needs_cc

from fireiron import *
from fireiron import ir
from fireiron.gpu import launch
from fireiron.gpu.toolchain import compile_cuda
from fireiron.inspect.synchronization import synchronization
from fireiron.ir import GridDepAction, GridDepControl, verify
from fireiron.language.store import dumps, loads

WAIT, LAUNCH = making.grid_dep_control(GridDepAction.WAIT), making.grid_dep_control(GridDepAction.LAUNCH_DEPENDENTS)

threads = (
    MatMul.tile(16, 16).to(Block).programmatic_launch().split(8).load(A, SH).load(B, SH).tile(2, 2).to(Thread).tile(1, 1).split(1).done()
)
copies = library("hmma_ampere").strategy.at(Tile).refine(ProgrammaticLaunch())
ring = product((64, 64, 64), blocks=3).at(Tile).refine(ProgrammaticLaunch())
warps = by_warps(tma=True).at(Tile).refine(ProgrammaticLaunch())

CASES = {
    "threads": (threads, MatMul(40, 48, 24)(GL, GL, GL)(Kernel)),
    "copies": (copies, float16_gemm(128, 256, 192)),
    "ring": (ring, float16_gemm(512, 64, 192)),
    "warps": (warps, float16_gemm(128, 64, 320)),
    "sizes at run time": (threads, MatMul(sym("M"), sym("N"), sym("K"))(GL, GL, GL)(Kernel)),
}


def program_of(name):
    strategy, spec = CASES[name]
    return strategy(spec).program(TARGET)


def touches(kernel, statement):
    """Whether some thread accesses global memory in a statement."""
    inside = (access for one, _ in ir.execs((statement,)) for access in one.accesses)
    return any(kernel.buffer(access.buffer).memory.of_grid for access in inside)


# ---------------------------------------------------------------------------------------------- placement of griddepcontrol


@pytest.mark.parametrize("name", CASES)
def test_wait_precedes_all_global_memory_accesses(name):
    kernel = program_of(name).ir
    assert making.effect_of(kernel, "chained") and [one for one in ir.statements(kernel.body) if isinstance(one, GridDepControl)] == [
        LAUNCH,
        WAIT,
    ]
    place = kernel.body.index(WAIT)
    before, after = kernel.body[:place], kernel.body[place + 1 :]
    assert not any(touches(kernel, one) for one in before)
    first = next(one for one in after if not isinstance(one, (ir.Comment, ir.Let)))
    assert touches(kernel, first), "registers are set before it where they can be"
    rest = tuple(one for one in kernel.body if not isinstance(one, GridDepControl))
    assert rest == without(CASES[name]).program(TARGET).ir.body, "nothing else is different"


def without(case):
    """The same strategy without programmatic launch."""
    strategy, spec = case
    steps = tuple(
        attrs.evolve(step, refinements=tuple(one for one in step.refinements if not isinstance(one, ProgrammaticLaunch)))
        for step in strategy.steps
    )
    return Strategy(steps)(spec)


def test_accumulators_are_initialized_before_the_wait():
    """Work that no other kernel sees overlaps the preceding kernel; here the accumulators are initialized."""
    kernel = program_of("copies").ir
    before = kernel.body[: kernel.body.index(WAIT)]
    assert any(one.instruction.name == "Init" for one, _ in ir.execs(before))


@pytest.mark.parametrize("name", CASES)
def test_results_equal_those_of_ordinary_launches(name):
    strategy, spec = CASES[name]
    sizes = {"M": 40, "N": 48, "K": 24} if name == "sizes at run time" else None
    require_right(strategy, spec, sizes)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_printed_text_on_a_cpu(tmp_path):
    from test_printed_text import agrees

    names = ("threads", "ring")
    host = HostProgram([Printed.of(program_of(name)) for name in names], tmp_path)
    for number, name in enumerate(names):
        spec = CASES[name][1]
        assert agrees(host, number, spec, tuple(int(str(size)) for size in spec.sizes))


# ---------------------------------------------------------------------------------------------- refusals


def test_programmatic_launch_requires_sm_90():
    with pytest.raises(
        DecompositionError,
        match=r"(?s)programmatic_launch: sm_80 cannot start a kernel before.*sm_90 or newer.*test_programmatic_launch\.py",
    ):
        _ = threads(CASES["threads"][1]).program("sm_80").ir
    assert "griddepcontrol" in threads(CASES["threads"][1]).cuda("sm_90")


def test_programmatic_launch_requires_a_block_tile():
    chain = MatMul.tile(16, 16).to(Block)
    with pytest.raises(DecompositionError, match="programmatic_launch apply to blocks"):
        _ = chain.tile(2, 2).to(Thread).programmatic_launch().tile(1, 1).split(1).done()(CASES["threads"][1]).program(TARGET).ir
    with pytest.raises(DecompositionError, match=r"add \.to\(level\)"):
        _ = chain.tile(2, 2).programmatic_launch().tile(1, 1).to(Thread).split(1).done()(CASES["threads"][1]).program(TARGET).ir


def test_programmatic_launch_is_refused_if_an_output_is_zeroed_first():
    module = library("split_k_blocks")
    strategy = module.strategy.at(Tile).refine(ProgrammaticLaunch())
    with pytest.raises(DecompositionError, match="programmatic_launch: C is zeroed before the launch"):
        _ = strategy(module.spec(64, 64, 512)).program(TARGET).ir


def moved(kernel, place):
    """The kernel with its wait at another position of the top level."""
    body = [one for one in kernel.body if one != WAIT]
    return attrs.evolve(kernel, body=(*body[:place], WAIT, *body[place:]))


def in_a_role(kernel, number):
    """The kernel whose wait is in one of its roles only."""

    def change(stmt):
        if stmt == WAIT:
            return ()
        if isinstance(stmt, ir.Roles):
            children = list(stmt.children)
            children[number] = (WAIT, *children[number])
            return (stmt.rebuilt(tuple(children)),)
        return (stmt,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


def in_a_loop(kernel):
    loop = next(one for one in kernel.body if isinstance(one, ir.For))
    body = ir.rewritten(kernel.body, lambda one: () if one == WAIT else (one,))
    return attrs.evolve(kernel, body=tuple(one.rebuilt(((WAIT, *one.body),)) if one is loop or one == loop else one for one in body))


def after_the_first_access(kernel):
    first = next(place for place, one in enumerate(kernel.body) if touches(kernel, one))
    return moved(kernel, first)


FAULTS = {
    "no wait": (
        "threads",
        lambda kernel: attrs.evolve(kernel, body=tuple(one for one in kernel.body if one != WAIT)),
        "got 1 at the top level",
    ),
    "no launch": (
        "ring",
        lambda kernel: attrs.evolve(kernel, body=tuple(one for one in kernel.body if one != LAUNCH)),
        "got 1 at the top level",
    ),
    "two waits": ("ring", lambda kernel: attrs.evolve(kernel, body=(WAIT, *kernel.body)), "got 3 at the top level"),
    "after the loads": ("threads", after_the_first_access, "is accessed before griddepcontrol.wait"),
    "after the first copies": ("copies", after_the_first_access, "[AB] is accessed before griddepcontrol.wait"),
    "after the roles": ("ring", lambda kernel: moved(kernel, len(kernel.body)), "[ABC] is accessed before griddepcontrol.wait"),
    "the consumers alone": ("ring", lambda kernel: in_a_role(kernel, 0), "1 at the top level, 1 in loops or roles"),
    "the producer alone": ("ring", lambda kernel: in_a_role(kernel, 1), "1 at the top level, 1 in loops or roles"),
    "each iteration": ("threads", in_a_loop, "1 in loops or roles"),
    "not chained": ("ring", lambda kernel: making.evolved(kernel, chained=False), "griddepcontrol in a kernel without programmatic launch"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_verifier_refuses_misplaced_griddepcontrol(name):
    case, fault, message = FAULTS[name]
    kernel = program_of(case).ir
    assert verify(kernel, final=True) is kernel
    with pytest.raises(VerificationError, match=message):
        verify(fault(kernel), final=True)


# ---------------------------------------------------------------------------------------------- printed CUDA


@pytest.mark.parametrize("name", ["threads", "ring"])
def test_printed_programmatic_launch(name):
    program = program_of(name)
    text, plain = program.cuda, without(CASES[name]).cuda(TARGET)
    body = text[text.index('extern "C"') :]
    assert ", programmatic dependent launch" in text and "chained" not in plain and "griddepcontrol" not in plain
    assert body.count("griddepcontrol_launch_dependents();") == body.count("griddepcontrol_wait();") == 1
    if name == "ring":
        inits = body.index("fence_mbarrier_init();")
        assert inits < body.index("__syncthreads();") < body.index("griddepcontrol_wait();") < body.index("if (warp_index")
    else:
        # The preceding kernel may still write an input while this kernel waits, so `__restrict__` must not claim otherwise.
        assert "__restrict__" not in text and "const float* A" in text and "const float* __restrict__ A" in plain


LOADS = r"\b(ld\.global|cp\.async\.c[ag]|cp\.async\.bulk\.tensor\S*global|st\.global)\S*"


@pytest.mark.parametrize("name", ["threads", "copies", "ring", "warps"])
def test_ptx_has_no_global_access_before_the_wait(name):
    """In PTX no access to global memory precedes the wait, and no load uses the read-only cache."""
    ptx = compile_cuda(program_of(name).cuda, TARGET).ptx
    body = ptx[ptx.index(".entry") :]
    first = re.search(LOADS, body)
    assert first is not None and body.index("griddepcontrol.wait") < first.start()
    assert ".nc" not in "".join(re.findall(r"ld\.global\S*", body))


def test_restrict_inputs_use_the_read_only_cache():
    """The control of the test above: loads of an input that is `const __restrict__` use that cache."""
    ptx = compile_cuda(without(CASES["threads"]).cuda(TARGET), TARGET).ptx
    assert "ld.global.nc" in ptx


def test_programmatic_launch_round_trips():
    assert str(ProgrammaticLaunch()) == "programmatic_launch()" and repr(ProgrammaticLaunch()) == "ProgrammaticLaunch()"
    assert eval(repr(threads)) == threads
    assert ".programmatic_launch()" in program_of("threads").cuda
    assert loads(dumps(ring)) == ring


def test_explain_reports_programmatic_launch():
    account = synchronization(program_of("ring").ir)
    assert [(point.role, point.kind, bool(point.why)) for point in account.points[:2]] == [
        ("", "griddepcontrol.launch_dependents", True),
        ("", "griddepcontrol.wait", True),
    ]
    assert account.roles[0] == ("", "threads 0 to 159")


# ---------------------------------------------------------------------------------------------- launch


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: None)
    return gpu


def pretended(strategy):
    """A kernel whose machine code is a stub."""
    kernel = strategy(MatMul(48, 32, 24, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)).compile("sm_90")
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


def arrays(gpu):
    return gpu.array((48, 24)), gpu.array((24, 32)), gpu.array((48, 32))


def test_kernel_is_launched_with_the_pdl_attribute(gpu):
    kernel = pretended(threads)
    for stream in (None, 4096):
        a, b, c = arrays(gpu)
        kernel(a, b, out=c, stream=stream)
        _, grid, block, shared, at, values = gpu.launches[-1]
        assert (grid, block, shared, at) == ((kernel.grid(), 1, 1), (kernel.block, 1, 1), 0, stream or 0)
        assert values == [one.data.ptr for one in (a, b, c)]
    assert gpu.of("attributes") == [([(6, 1)],)] * 2
    prepared = kernel.prepare(*arrays(gpu)[:2], out=arrays(gpu)[2])
    prepared()
    assert len(gpu.launches) == len(gpu.of("attributes")) == 3


def test_other_kernels_are_launched_without_attributes(gpu):
    kernel = pretended(library("naive").strategy)
    a, b, c = arrays(gpu)
    kernel(a, b, out=c)
    assert len(gpu.launches) == 1 and gpu.of("attributes") == []


def test_concurrent_launches_from_threads(gpu):
    kernel = pretended(threads)
    given = [arrays(gpu) for _ in range(8)]
    kernel(*given[0][:2], out=given[0][2])
    workers = [
        threading.Thread(target=kernel, args=operands[:2], kwargs={"out": operands[2], "stream": 4096 * (1 + n)})
        for n, operands in enumerate(given)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    values_by_stream = {stream: values for _, _, _, _, stream, values in gpu.launches[1:]}
    assert values_by_stream == {4096 * (1 + n): [array.data.ptr for array in one] for n, one in enumerate(given)}


def test_driver_errors_are_reported(gpu):
    kernel = pretended(threads)
    gpu.refuse = "no"
    with pytest.raises(LaunchError, match=r"(?s)refuses to launch 'matmul' on GPU 0.*CUDA error 1"):
        a, b, c = arrays(gpu)
        kernel(a, b, out=c)


def test_driver_without_programmatic_launch(gpu, monkeypatch):
    monkeypatch.setattr(launch, "_driver", lambda: types.SimpleNamespace())
    with pytest.raises(LaunchError, match="does not support programmatic dependent launch"):
        launch.ProgrammaticLaunch(1, (1, 1, 1, 32, 1, 1), 0)


LAYOUT = r"""
#include <stddef.h>
#include <stdio.h>
#include <cuda.h>
#define SAY(type, field) printf("%d ", (int)offsetof(type, field))
int main(void)
{
  printf("%d %d %d\n", (int)sizeof(CUlaunchConfig), (int)sizeof(CUlaunchAttribute), (int)CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  SAY(CUlaunchConfig, gridDimX); SAY(CUlaunchConfig, blockDimX); SAY(CUlaunchConfig, sharedMemBytes); SAY(CUlaunchConfig, hStream);
  SAY(CUlaunchConfig, attrs); SAY(CUlaunchConfig, numAttrs); SAY(CUlaunchAttribute, id); SAY(CUlaunchAttribute, value);
  return 0;
}
"""


@needs_cc
@pytest.mark.skipif(cuda_headers() is None, reason="needs the headers of the CUDA toolkit")
def test_structures_match_the_cuda_header(tmp_path):
    (tmp_path / "layout.c").write_text(LAYOUT)
    built(CC, "-std=c99", "-isystem", cuda_headers(), "layout.c", "-o", "layout", folder=tmp_path)
    sizes, places = built(tmp_path / "layout", folder=tmp_path).stdout.splitlines()
    config, attribute = launch._Config, launch._Attribute
    assert sizes == f"{ctypes.sizeof(config)} {ctypes.sizeof(attribute)} {launch._PROGRAMMATIC_SERIALIZATION}"
    shape = config.shape.offset
    wanted = [shape, shape + 12, config.shared.offset, config.stream.offset, config.attributes.offset, config.count.offset]
    assert [int(one) for one in places.split()] == [*wanted, attribute.id.offset, attribute.value.offset]


# ---------------------------------------------------------------------------------------------- exports


@pytest.mark.parametrize("name", ["threads", "ring", "sizes at run time"])
def test_exported_programmatic_launch(name, tmp_path):
    export(program_of(name), tmp_path, "gemm")
    runtime, driver = (tmp_path / "gemm.cu").read_text(), (tmp_path / "gemm_driver.c").read_text()
    assert "cudaLaunchKernelExC(" in runtime and "cudaLaunchAttributeProgrammaticStreamSerialization" in runtime
    assert "cudaLaunchKernel(" not in runtime and "cuLaunchKernel(" not in driver and "cuLaunchKernelEx(" in driver
    assert "it may start before the preceding kernel in the stream completes" in (tmp_path / "gemm.h").read_text()
    if CC is not None and cuda_headers() is not None:
        built(CC, "-std=c99", *STRICT, "-isystem", cuda_headers(), "-c", "gemm_driver.c", "-o", "driver.o", folder=tmp_path)


def test_exports_of_other_kernels_have_no_attribute(tmp_path):
    export(without(CASES["threads"]).program(TARGET), tmp_path, "gemm", cubin=False)
    assert "cudaLaunchKernel(" in (tmp_path / "gemm.cu").read_text() and "LaunchAttribute" not in (tmp_path / "gemm.cu").read_text()
