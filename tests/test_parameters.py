"""Parameters of kernels: arrays of any strides, named by dimension, and scalars by value; checked, passed, refused (oracle: NumPy)."""

import contextlib
import ctypes
import math
import shutil
import subprocess
import types
from fractions import Fraction

import attrs
import fake_gpu
import numpy as np
import pytest
from gpu_stand_in import Clock, stand_in
from numpy.lib.stride_tricks import as_strided
from printed_text import COMPILER, HostProgram, Printed
from test_launch import addresses, gpu, installed, torch  # noqa: F401

from fireiron import *
from fireiron.check import check
from fireiron.cli import main
from fireiron.errors import FireironError
from fireiron.export.unit import Unit
from fireiron.gpu import launch
from fireiron.gpu.arguments import _check_stride, as_stored
from fireiron.language.statement import parse_spec, spec_text
from fireiron.language.store import dumps, loads, loads_spec
from fireiron.measure.data import Data
from fireiron.sim import simulate
from fireiron.tune.task import make_task
from fireiron.values.expr import Var
from fireiron.values.scalars import value_of
from fireiron.values.strides import addresses_are_distinct, strides_chosen
from fireiron.values.tensor import Tensor, whole_view

M, N = sym("M"), sym("N")
COPY = Move.tile(16, 16).to(Block).coalesced_copy(4).done()
ANYWHERE = Move(64, 32, src=Strides(m=ANY, n=ANY), dst=Strides(m=ANY, n=ANY))(GL, GL)(Kernel)
PRODUCT = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def numbers(*shape, dtype=np.float32):
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape).astype(dtype)


ARRAYS = {
    "rows": numbers(64, 32),
    "transposed": numbers(32, 64).T,
    "every second": numbers(128, 96)[::2, ::3],
    "columns": numbers(64, 64)[:, 16:48],
    "one row": np.broadcast_to(numbers(32), (64, 32)),
    "one column": np.broadcast_to(numbers(64, 1), (64, 32)),
    "windows": as_strided(numbers(96), (64, 32), (4, 4)),
}


def compiled(strategy):
    """A kernel whose machine code is simulated."""
    kernel = strategy.compile("sm_90")
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


# ---------------------------------------------------------------------------------------------- strides by dimension


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_strides(name):
    """One kernel takes them all; a new output has no gaps, a given one keeps its strides."""
    kernel, array = COPY(ANYWHERE).compile("sm_80"), ARRAYS[name]
    result = kernel(array)
    np.testing.assert_array_equal(result, array)
    assert result.strides == (128, 4)
    out = np.full((32, 80), -1, np.float32).T[:64]
    assert kernel(array, out=out) is out
    np.testing.assert_array_equal(out, array)
    assert (out.base[:, 64:] == -1).all(), "what lies between the elements stays"


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_printed_text_reads_and_writes_by_strides(tmp_path):
    cases = [
        (ANYWHERE, COPY, {"stride_src_m": 3, "stride_src_n": 200, "stride_dst_m": 40, "stride_dst_n": 1}),
        (Move(64, 32, src=Strides(m=0, n=1), dst=Strides(m=1, n=66))(GL, GL)(Kernel), COPY, {}),
        (
            Move(64, 32, src=Strides(m=ANY(4), n=1), dst=Strides(m=ANY(4), n=1))(GL, GL)(Kernel),
            COPY,
            {"stride_src_m": 36, "stride_dst_m": 32},
        ),
    ]
    programs = [strategy(spec).program("sm_80") for spec, strategy, _ in cases]
    host = HostProgram(map(Printed.of, programs), tmp_path)
    for number, (program, (_, _, strides)) in enumerate(zip(programs, cases, strict=True)):
        array = np.broadcast_to(numbers(32), (64, 32)) if number == 1 else numbers(64, 32)
        assert not [one for one in check(program.ir) if one.severity == "error"]
        np.testing.assert_array_equal(simulate(program.ir, {"src": array}, strides).outputs["dst"], array)
        np.testing.assert_array_equal(host.run(number, {"src": array}, strides)["dst"], array)


def test_a_tensor_of_heads_as_torch_stores_it():
    """(batch, sequence, head, channel) read as (batch, head, sequence, channel), eight float16 values at once."""
    b, s, h = sym("B", high=4096), sym("S", high=65536), sym("H", high=256)
    by_name = {"m": ANY(8), "n": ANY(8), "p": ANY(8), "q": 1}
    spec = Move(b, h, s, 64, dtype=float16, src=Strides(**by_name), dst=Strides(**by_name))(GL, GL)(Kernel)
    kernel = Move.tile(1, 1, 8, 64).to(Block).coalesced_copy(8).done()(spec).compile("sm_80")
    assert kernel.program.cuda.count("uint4") == 2
    array = numbers(2, 3, 5, 64, dtype=np.float16).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(kernel(array), array)
    with pytest.raises(LaunchError, match="src has a stride along p, in elements, that the kernel does not support") as error:
        kernel(np.zeros((2, 5, 4, 66), np.float16)[..., :64])
    assert error.value.got == 66 and "multiples of 8" in error.value.legal


def test_products_of_transposed_and_sliced_matrices():
    m, n, k = sym("M"), sym("N"), sym("K")
    spec = MatMul(m, n, k, A=Strides(m=ANY, k=ANY), B=Strides(k=ANY, n=ANY), C=Strides(m=ANY, n=ANY))(GL, GL, GL)(Kernel)
    kernel = PRODUCT(spec).compile("sm_80")
    a, b = numbers(40, 50).T % 7, numbers(90, 80)[:40, 2:72] % 5
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    out = np.zeros((70, 50), np.float32).T
    kernel(a, b[:, ::-1].copy(), out=out)
    np.testing.assert_array_equal(out, a @ b[:, ::-1])
    assert kernel.grid(M=50, N=70, K=40) == 6, "no stride is asked for"


@pytest.mark.parametrize("name", ["wmma_simple", "hmma_ampere", "sgemm", "naive"])
@pytest.mark.parametrize("rows", [True, False], ids=["by rows", "by columns"])
def test_strides_and_orders_are_equivalent(name, rows):
    """With a unit stride, the text is that of RowMajor(ld) and ColMajor(ld)."""
    from fireiron.language.library import bind, find

    own = bind(find(name), {}, {}, {}).spec
    options = {"dtype": own.A.dtype, "c_dtype": own.C.dtype, "accumulator": own.accumulator}
    texts = []
    for a, b, c in (
        (Strides(m=ANY(8), k=1), Strides(k=ANY(8), n=1), Strides(m=ANY(8), n=1) if rows else Strides(m=1, n=ANY(8))),
        (
            RowMajor(sym("stride_A_m", 8)), RowMajor(sym("stride_B_k", 8)),
            RowMajor(sym("stride_C_m", 8)) if rows else ColMajor(sym("stride_C_n", 8)),
        ),
    ):  # fmt: skip
        text = find(name).strategy(MatMul(256, 256, 256, A=a, B=b, C=c, **options)(GL, GL, GL)(Kernel)).program("sm_80").cuda
        texts.append(text[text.index('extern "C"') :])
    assert texts[0] == texts[1]


def test_row_major_of_any_rank_is_that_of_numpy():
    spec = Move(2, 3, 4, src=RowMajor, dst=ColMajor)(GL, GL)(Kernel)
    src, dst = (view.tensor.storage().steps for view in spec.views)
    assert list(map(str, src)) == ["12", "4", "1"] and list(map(str, dst)) == ["1", "2", "6"]
    padded = Move(2, 3, 4, src=RowMajor(ld=10))(GL, GL)(Kernel).views[0].tensor.storage()
    assert list(map(str, padded.steps)) == ["30", "10", "1"]
    stack = Move(2, 3, 4, src=Strides(m=3, n=1, p=6))(GL, GL)(Kernel)
    assert str(stack.views[0].tensor.storage().layout) == "(2,3,4):(3,1,6)"


def test_a_view_knows_its_order():
    def view(layout, *shape):
        return whole_view(Tensor("x", tuple(map(Const, shape)), float32, GL, layout))

    stack = view(Layout((8, 4, 6), (4, 1, 32)), 8, 4, 6)
    assert stack.order is None and stack.at(2, Const(3), unit=False).order == "row"
    assert stack.at(0, Const(3), unit=False).order == "col"
    assert view(Layout((8, 4), (5, 9)), 8, 4).order is None and view(Layout((8, 4), (1, 9)), 8, 4).order == "col"
    assert view(RowMajor, 8, 4).order == "row" and view(RowMajor, 8, 4, 2).order == "row" and view(ColMajor, 8, 4, 2).order == "col"


# ---------------------------------------------------------------------------------------------- specs with strides


SPECS = (
    ANYWHERE,
    Move(M, N, src=Strides(m=ANY(8), n=0), dst=Strides(m=1, n=sym("ld") * 2))(GL, GL)(Kernel),
    MatMul(M, N, 8, A=Strides(k=1, m=ANY), B=RowMajor(ld=sym("ldb")), C=Strides(m=N, n=1))(GL, GL, GL)(Kernel),
    BinaryPointwise("+", M, 4, 2, lhs=Strides(m=ANY, n=0, p=ANY), dst=RowMajor)(GL, GL, GL)(Kernel),
    Move(64, 32, src=Layout((64, 32), (1, 65)))(GL, GL)(Kernel),
    Move(64, 32, src=Strides(m=ANY, n=1).aligned(4))(GL, GL)(Kernel),
)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_specs_with_strides_are_values(spec):
    for other in (
        eval(repr(spec)),
        loads_spec(dumps(spec)),
        parse_spec(spec_text(spec), {var.name: var for var in (M, N)} | _symbols(spec)),
    ):
        assert other == spec and hash(other) == hash(spec)
    assert Move(64, 32)(GL, GL)(Kernel) != ANYWHERE
    if spec.copies:
        assert loads(dumps(COPY(spec))) == COPY(spec)


def _symbols(spec):
    from fireiron.values.notation import symbols_of

    return symbols_of(*spec.views)


def test_a_matrix_of_a_stack_has_a_text():
    """The tensor has a dimension that the operand lacks, so the short form cannot state it."""
    stack = whole_view(Tensor("x", tuple(map(Const, (8, 4, 6))), float32, SH, Layout((8, 4, 6), (4, 1, 32))))
    spec = Move.on(Block, stack.at(2, Const(3), unit=False), whole_view(Tensor("y", (Const(8), Const(4)), float32, SH, RowMajor)))
    assert repr(spec).startswith("Move.on(") and loads_spec(dumps(spec)) == spec


def test_the_text_of_strides():
    assert "src=Strides(m=ANY, n=ANY)" in repr(ANYWHERE) and repr(Strides(m=ANY(8), n=2)) == "Strides(m=ANY(8), n=2)"
    assert spec_text(ANYWHERE).startswith("%dst:[64,32]:[stride_dst_m,stride_dst_n].fp32.GL <- Move")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Strides(m=-1), "negative"),
        (lambda: Strides(m=1.5), "integer, a symbol or ANY"),
        (lambda: Strides(m=True), "integer, a symbol or ANY"),
        (lambda: Strides(m=sym("a") - 5), "may be negative"),
        (lambda: ANY(0), "must be a positive integer"),
        (lambda: Move(8, 8, src=Strides(m=1)), "its dimensions are m, n"),
        (lambda: Move(8, 8, src=Strides(m=1, k=8)), "its dimensions are m, n"),
        (lambda: Move(8, 8, src=Layout((8, 4), (1, 8))), "does not have the shape of the operand"),
        (lambda: Move(8, 8, src="rows"), "not a storage layout"),
        (lambda: Strides(m=1).aligned(3), "bytes must be a power of two"),
        (lambda: Strides(m=1).aligned(0), "bytes must be a power of two"),
        (lambda: Move(8, 8, src=Strides(m=1, n=8).aligned(2)), "elements of float32 must be aligned to 4 bytes"),
        (lambda: Move(8, 8, dst=Strides(m=0, n=1))(GL, GL)(Kernel), "elements of the output dst overlap"),
        (lambda: Move(8, 8, dst=Strides(m=4, n=1))(GL, GL)(Kernel), "elements of the output dst overlap"),
        (lambda: Move(M, 8, dst=Strides(m=0, n=1))(GL, GL)(Kernel), "elements of the output dst overlap"),
        (lambda: Move(8, 8, dst=Strides(m=ANY, n=0))(GL, GL)(Kernel), "elements of the output dst overlap"),
    ],
)  # fmt: skip
def test_strides_that_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_inputs_may_repeat_elements():
    assert Move(8, 8, src=Strides(m=0, n=0))(GL, GL)(Kernel) and Move(8, 8, src=Strides(m=1, n=1))(GL, GL)(Kernel)


def test_addresses_are_distinct_never_accepts_an_overlap():
    generator = np.random.default_rng(5)
    results = set()
    for _ in range(3000):
        shape, strides = generator.integers(1, 5, 3).tolist(), generator.integers(0, 13, 3).tolist()
        places = sum(np.indices(shape)[axis] * stride for axis, stride in enumerate(strides))
        really = np.unique(places).size == places.size
        accepted = addresses_are_distinct(shape, strides)
        assert really or not accepted
        results.add((really, accepted))
    assert results == {(True, True), (False, False), (True, False)}, "what interleaves counts as overlapping"


def test_arrays_without_shared_places_are_stored_as_they_are():
    """Also arrays of which one dimension has several strides; elements at one address get one value, the last."""
    array = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    plain, split, row = (
        Move(8, 8, src=layout)(GL, GL)(Kernel).views[0].tensor
        for layout in (ColMajor, Layout(((2, 4), 8), ((1, 16), 2)), Strides(m=0, n=1))
    )
    assert as_stored(plain, array, {}) is array is as_stored(split, array, {})
    assert (as_stored(row, array, {}) == array[-1]).all()


def test_unspecified_strides_leave_no_gaps():
    storage = Move(M, 6, 4, src=Strides(m=ANY, n=ANY(8), p=1))(GL, GL)(Kernel).views[0].tensor.storage()
    assert strides_chosen(storage, (5, 6, 4), {"M": 5}) == {"stride_src_n": 8, "stride_src_m": 48}
    assert strides_chosen(storage, (5, 6, 4), {"M": 5, "stride_src_m": 4}) == {"stride_src_n": 24}, "behind what is known"


# ---------------------------------------------------------------------------------------------- calls that are refused

REVERSED = {"rows": np.s_[::-1], "columns": np.s_[:, ::-1]}


@pytest.mark.parametrize("which", REVERSED)
def test_reversed_arrays_are_refused(which):
    with pytest.raises(LaunchError, match="src has a stride along") as error:
        COPY(ANYWHERE).compile("sm_80")(ARRAYS["rows"][REVERSED[which]])
    assert error.value.got < 0 and "reversed view" in str(error.value) and "pass a copy" in str(error.value)


def test_outputs_that_overlap_themselves_are_refused():
    memory = np.zeros(4096, np.float32)
    kernel = COPY(ANYWHERE).compile("sm_80")
    for strides in ((0, 4), (64, 4), (4, 4)):
        with pytest.raises(LaunchError, match="out: its elements overlap in memory"):
            kernel(ARRAYS["rows"], out=as_strided(memory, (64, 32), strides))
    with pytest.raises(ArgumentError, match="elements that share an address differ"):
        simulate(kernel.ir, {"src": ARRAYS["rows"]}, {"stride_src_m": 0, "stride_src_n": 1})


def test_a_stride_beyond_32_bits_is_refused():
    """No array of this size can exist here, so the test only claims the stride."""
    array = as_strided(np.zeros(8, np.float32), (64, 32), (1 << 33, 4))
    with pytest.raises(LaunchError, match="src has a stride along m") as error:
        COPY(ANYWHERE).compile("sm_80")(array)
    assert error.value.got == 1 << 31 and "32 bits" in str(error.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "stride, hint",
    [(-4, "reversed view"), (0, "broadcast view"), (104, "bound the kernel's sizes"), (3, "fewer multiples"), (6, "fewer multiples")],
)
def test_each_refused_stride_is_explained(stride, hint):
    """For a kernel that assumes multiples of 4, from 4 to 100."""
    symbol = Var("stride_src_m", 4, 100, 4)
    with pytest.raises(LaunchError, match="src has a stride along m") as error:
        _check_stride(symbol, stride, "src", "m")
    assert hint in error.value.hint and error.value.legal == "4 ... 100, multiples of 4"
    for fits in (4, 52, 100):
        _check_stride(symbol, fits, "src", "m")
    with pytest.raises(LaunchError) as error:
        _check_stride(Var("stride_src_m", 3, 100), 2, "src", "m")
    assert (error.value.hint, error.value.legal) == ("pass a copy", "3 ... 100")


def test_addresses_of_large_strides_are_of_64_bits():
    text = COPY(ANYWHERE).program("sm_80").cuda
    products = [part for part in text.split("dst[")[1].split("+") if "stride_" in part]
    assert products and all("(long long)" in part for part in products)
    wide = {name: sym(name) for name in "MNP"}
    with pytest.raises(DecompositionError, match=r"may need more than 64 bits: bound sym\('M', high=1048576\), sym\('N', high=1048576\)"):
        spec = Move(*wide.values(), src=Strides(m=ANY, n=ANY, p=ANY))(GL, GL)(Kernel)
        _ = Move.tile(4, 4, 4).to(Block).tile(1, 1, 1).to(Thread).done()(spec).program("sm_80").cuda


def test_vectors_are_proven_or_not_taken():
    """Rows with any alignment are copied element by element, and the call checks what the kernel assumes about the array."""
    loose = Move(64, 32, src=Strides(m=ANY, n=1), dst=RowMajor)(GL, GL)(Kernel)
    tight = Move(64, 32, src=Strides(m=ANY(4), n=1), dst=RowMajor)(GL, GL)(Kernel)
    assert "float4" not in COPY(loose).program("sm_80").cuda and "float4" in COPY(tight).program("sm_80").cuda
    array = fake_gpu.memory(64 * 34 * 4).view(np.float32).reshape(64, 34)[:, :32]
    np.testing.assert_array_equal(COPY(loose).compile("sm_80")(array), array)
    with pytest.raises(LaunchError, match="src has a stride along m") as error:
        COPY(tight).compile("sm_80")(array)
    assert error.value.got == 34 and "multiples of 4" in error.value.legal and "narrower vectors" in str(error.value)
    with pytest.raises(LaunchError, match=r"not a multiple of 16 bytes(.|\n)*Strides\(...\).aligned\(4\)"):
        COPY(tight).compile("sm_80")(fake_gpu.memory(64 * 36 * 4).view(np.float32).reshape(64, 36)[:, 1:33])


def test_slices_that_begin_anywhere():
    """An array aligned only to its element size is read element by element, and its address is still checked."""
    spec = Move(64, 32, src=Strides(m=ANY(4), n=1).aligned(4), dst=RowMajor)(GL, GL)(Kernel)
    kernel = COPY(spec).compile("sm_80")
    assert "float4*>(&src" not in kernel.program.cuda and kernel.ir.buffer("src").tensor.align == 4
    array = fake_gpu.memory(64 * 36 * 4).view(np.float32).reshape(64, 36)[:, 1:33]
    np.testing.assert_array_equal(kernel(array), array)
    with pytest.raises(LaunchError, match="src starts at an address that is not a multiple of 4 bytes"):
        kernel(as_strided(fake_gpu.memory(64 * 36 * 4, 2)[: 63 * 144 + 128].view(np.float32), (64, 32), (144, 4)))


def test_errors_for_other_strides_propose_a_fix():
    kernel = COPY(Move(64, 32, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)).compile("sm_80")
    with pytest.raises(LaunchError, match="src has other strides") as error:
        kernel(ARRAYS["one row"])
    assert "src=Strides(m=ANY, n=ANY)" in str(error.value)


# ---------------------------------------------------------------------------------------------- launches on a simulated GPU


def test_strides_reach_the_launch(gpu):  # noqa: F811
    gpu.parameters = 6
    kernel = compiled(COPY(ANYWHERE))
    for order, ld in (("C", 32), ("F", 64), ("C", 48), ("F", 100)):
        src = gpu.array((64, 32), order=order, ld=ld)
        dst = gpu.array((64, 32), order="F")
        kernel(src, out=dst)
        strides = [ld, 1] if order == "C" else [1, ld]
        assert gpu.launches[-1][-1] == [*addresses(src, dst), *strides, 1, 64]
    result = kernel(gpu.array((64, 32), order="F"))
    assert result.strides == (128, 4) and gpu.launches[-1][-1][2:] == [1, 64, 32, 1]
    with pytest.raises(LaunchError, match="out: its elements overlap"):
        kernel(src, out=gpu.cupy.ndarray((64, 32), np.dtype("float32"), fake_gpu.memory(9000), (64, 4)))


def test_prepared_launches_preserve_strides(gpu):  # noqa: F811
    gpu.parameters = 6
    prepared = compiled(COPY(ANYWHERE)).prepare(src := gpu.array((64, 32), ld=40), out=(dst := gpu.array((64, 32))))
    prepared()
    assert gpu.launches[-1][-1] == [*addresses(src, dst), 40, 1, 32, 1]
    with pytest.raises(ArgumentError, match="differs from the array that the launch was prepared for"):
        prepared(gpu.array((64, 32), ld=48), out=dst)


def test_strides_of_torch(gpu, torch):  # noqa: F811
    gpu.parameters = 6
    kernel = compiled(COPY(ANYWHERE))
    tensor = torch.Tensor((64, 32), (1, 70), torch.float32)
    result = kernel(tensor)
    assert result.stride() == (32, 1) and gpu.launches[-1][-1][2:] == [1, 70, 32, 1]


# ---------------------------------------------------------------------------------------------- export, command line


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_launcher_in_c_checks_strides(tmp_path):
    """The refusal of an exported launcher, compiled and called: NULL, or a text."""
    unit = Unit.of(COPY(ANYWHERE).program("sm_80"), "copy")
    assert unit.parameters().endswith("int stride_src_m, int stride_src_n, int stride_dst_m, int stride_dst_n")
    source = tmp_path / "refusal.c"
    lines = ["#include <stdint.h>", *unit.minimum(), *unit.check_function()]
    lines += [
        "const char *refusal(uintptr_t src, uintptr_t dst, int a, int b, int c, int d) { return copy_refusal(src, dst, a, b, c, d); }"
    ]
    source.write_text("\n".join(lines))
    library = tmp_path / "refusal.so"
    for language in ("c", "c++"):
        subprocess.run(["gcc", "-x", language, "-Wall", "-Werror", "-fPIC", "-shared", source, "-o", library], check=True)
    subprocess.run(["gcc", "-Wall", "-Werror", "-fPIC", "-shared", source, "-o", library], check=True)
    refusal = ctypes.CDLL(str(library)).refusal
    refusal.restype, refusal.argtypes = ctypes.c_char_p, [ctypes.c_size_t] * 2 + [ctypes.c_int] * 4
    near, far = 1 << 20, 1 << 30
    assert refusal(near, far, 32, 1, 32, 1) is None and refusal(near, far, 0, 0, 1, 64) is None
    assert refusal(near, far, -1, 1, 32, 1) == b"required: 0 <= stride_src_m <= 2147479552"
    for overlapping in ((0, 1), (1, 1), (31, 1), (1, 63), (7, 7)):
        assert refusal(near, far, 32, 1, *overlapping) == b"elements of dst overlap"
    assert refusal(near, near + 16, 32, 1, 32, 1) == b"dst overlaps src"


def test_the_command_line_knows_strides(tmp_path, capsys, monkeypatch):
    """Unspecified strides leave no gaps; broadcast inputs get consistent data."""
    (tmp_path / "strided.py").write_text(
        "from fireiron import *\n"
        "strategy = Move.tile(16, 16).to(Block).coalesced_copy(4).done()\n"
        "def spec():\n"
        "    return Move(sym('M'), 40, src=Strides(m=ANY(4), n=0), dst=Strides(m=1, n=ANY))(GL, GL)(Kernel)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "strided.py", "--simulate", "--size", "stride_src_m=48"]) == 0
    report = capsys.readouterr().out
    assert "PASS" in report and "M=257 stride_src_m=48 stride_dst_n=257" in report
    assert main(["cost", "strided.py", "--size", "M=64"]) == 0
    assert main(["show", "strided.py"]) == 0 and "stride_dst_n * 156 + M * 4" in capsys.readouterr().out
    assert main(["export", "strided.py", "-o", "there", "--no-cubin"]) == 0
    assert "int stride_src_m, int stride_dst_n, cudaStream_t stream" in (tmp_path / "there" / "strided.h").read_text()


def test_data_on_the_gpu_has_the_strides(monkeypatch):
    """With a stand-in for CuPy: sets of arrays for timing and verifying."""
    monkeypatch.setattr(launch, "require_cupy", lambda: stand_in(Clock()))
    spec = Move(M, 40, src=Strides(m=ANY(16), n=0), dst=Strides(m=ANY, n=ANY))(GL, GL)(Kernel)
    data = Data.of(spec, sizes={"M": 70, "stride_dst_m": 1}, rotate_bytes=0)
    src, dst = (data.sets[0][name] for name in ("src", "dst"))
    assert (src.strides, dst.strides) == ((64, 0), (4, 280)) and (src == src[:, :1]).all() and len(np.unique(src[:, 0])) > 60
    np.testing.assert_array_equal(data.references["dst"], src)
    with pytest.raises(ArgumentError, match="no value for M"):
        Data.of(spec, rotate_bytes=0)
    with pytest.raises(ArgumentError, match="an array cannot have the layout"):
        Data.of(Move(8, 8, src=Layout((8, (2, 4)), (1, (8, 64))))(GL, GL)(Kernel), rotate_bytes=0)


def test_tuning_needs_no_strides():
    spec = Move(M, 32, src=Strides(m=ANY, n=1), dst=ColMajor)(GL, GL)(Kernel)
    task = make_task(COPY, spec, "sm_80", fixed={}, sizes={"M": 100}, name="copy")
    assert task.sizes == {"M": 100, "stride_src_m": 32}


# ---------------------------------------------------------------------------------------------- scalars by value

AXPY = Kind("Axpy", "y[m] += a * x[m]").starter
SCALE = Kind("Scale", "y[m,n] = a * x[m,n] + b").starter
PUT = Kind("Put", "y[m] = a").starter
LINE = AXPY.tile(256).to(Block).tile(1).to(Thread).done()
TILES = SCALE.tile(16, 16).to(Block).tile(1, 1).to(Thread).done()
MIXED = SCALE(64, 32, dtype=(float32, float16, float64), y_dtype=float16)(VAL, GL, VAL, GL)(Kernel)


def axpy(accumulate=True, memory=VAL, size=1000):
    return AXPY(size, accumulate=accumulate)(memory, GL, GL)(Kernel)


def test_axpy_by_declaration():
    """The kernel takes a number that the text reads directly."""
    kernel = LINE(axpy()).compile("sm_80")
    assert "axpy(const float a, const float* __restrict__ x, float* __restrict__ y)" in kernel.program.cuda
    assert "y[block * 256 + thread] = y[block * 256 + thread] + a * x[block * 256 + thread];" in kernel.program.cuda
    assert not [one for one in check(kernel.ir) if one.severity == "error"] and predict(LINE(axpy()), "H200").us > 0
    x = numbers(1000)
    for number in (2, 2.0, np.float64(2), np.int8(2), np.asarray(2, np.float32), Fraction(4, 2)):
        out = np.ones(1000, np.float32)
        assert kernel(number, x, out=out) is out
        np.testing.assert_array_equal(out, 1 + 2 * x)
    np.testing.assert_array_equal(LINE(axpy(accumulate=False)).compile("sm_80")(0.5, x), x / 2)


def test_scalars_have_types_of_their_own():
    """float32 and float64 with float16: computed in the widest type, and rounded once."""
    x = (numbers(64, 32) / 7).astype(np.float16)
    result = TILES(MIXED).compile("sm_80")(0.1, np.asfortranarray(x), 1e-3)
    np.testing.assert_array_equal(result, (np.float64(np.float32(0.1)) * x.astype(np.float64) + 1e-3).astype(np.float16))
    assert "scale(const float a, const __half* __restrict__ x, const double b, __half* __restrict__ y)" in TILES(MIXED).cuda("sm_80")


@pytest.mark.parametrize(("sign", "join"), [("+=", np.add), ("max=", np.fmax), ("min=", np.fmin)])
@pytest.mark.parametrize("dtype", [float32, float16, int32], ids=str)
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_results_accumulate_into_the_output(sign, join, dtype, tmp_path):
    """In the simulator and in the printed text on the CPU, with a condition that is true, false, or known in the kernel."""
    kind = Kind("Joined", f"y[m] {sign} a * x[m]").starter
    x, old = numbers(300, dtype=dtype.to_numpy()) % 11, numbers(300, dtype=dtype.to_numpy()) % 7
    chain = kind.tile(128).to(Block).tile(1).to(Thread).done()
    specs = [kind(300, dtype=dtype, accumulate=accumulate)(VAL, GL, GL)(Kernel) for accumulate in (True, False, M > 5)]
    programs = [chain(spec).program("sm_80") for spec in specs]
    host = HostProgram(map(Printed.of, programs), tmp_path)
    given = {"a": np.asarray(3, dtype.to_numpy()), "x": x, "y": old}
    for number, symbols in ((0, {}), (1, {}), (2, {"M": 6}), (2, {"M": 5})):
        joined = number == 0 or symbols.get("M") == 6
        neutral = np.zeros_like(x) if sign == "+=" else None
        expected = join(old, 3 * x) if joined else 3 * x if neutral is None else neutral + 3 * x
        result = simulate(programs[number].ir, given, symbols).outputs["y"]
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(host.run(number, given, symbols)["y"], result)


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("formula", ["C[m,n] += sum(k, alpha * A[m,k] * B[k,n])", "C[m,n] += sum(k, A[m,k] * (alpha * 2) * B[k,n])"])
def test_products_with_a_scalar(formula, tmp_path):
    """Threads add terms of three factors, with tiles that extend past the edge and through shared memory."""
    kind, programs, given = Kind("Scaled", formula).starter, [], []
    chain = kind.tile(16, 8).to(Block).split(4).load("A", SH).load("B", SH).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    for dtype, accumulate in ((float32, True), (float16, False), (int32, True), (int8, False)):
        types = {"dtype": (dtype,) * 3, "c_dtype": None if dtype != int8 else int32, "accumulate": accumulate}
        names = kind.kind.definition(()).uses
        memories = [VAL if name == "alpha" else GL for name in names]
        programs.append(chain(kind(20, 12, 7, **types)(*memories)(Kernel)).program("sm_80"))
        a, b = numbers(20, 7, dtype=dtype.to_numpy()) % 5, numbers(7, 12, dtype=dtype.to_numpy()) % 4
        values = {"alpha": np.asarray(3, dtype.to_numpy()), "A": a, "B": b}
        old = numbers(20, 12, dtype=programs[-1].spec.operands["C"].dtype.to_numpy()) % 9
        given.append((values | {"C": old}, (6 if "2" in formula else 3) * (a.astype(int) @ b.astype(int)) + (old if accumulate else 0)))
    host = HostProgram(map(Printed.of, programs), tmp_path)
    for number, (program, (arrays, expected)) in enumerate(zip(programs, given, strict=True)):
        assert not [one for one in check(program.ir) if one.severity == "error"]
        np.testing.assert_array_equal(simulate(program.ir, arrays).outputs["C"], expected)
        np.testing.assert_array_equal(host.run(number, arrays)["C"], expected)


def test_a_scalar_is_written_to_all_elements():
    kernel = PUT.tile(128).to(Block).tile(1).to(Thread).done()(PUT(300)(VAL, GL)(Kernel)).compile("sm_80")
    out = np.zeros(300, np.float32)
    assert (kernel(7, out=out) == 7).all()


def test_a_scalar_may_lie_in_memory():
    """An array without dimensions: a pointer to one element, which the threads read."""
    kernel = LINE(axpy(memory=GL)).compile("sm_80")
    assert "a[0] * x[" in kernel.program.cuda
    out = np.ones(1000, np.float32)
    scalar = fake_gpu.memory(4).view(np.float32).reshape(())
    scalar[...] = 3
    np.testing.assert_array_equal(kernel(scalar, numbers(1000), out=out), 1 + 3 * numbers(1000))


def test_registers_that_a_product_holds_are_scaled():
    """A scalar used with register fragments: ownership of the registers still propagates, and the scalar has no layout."""
    spec = Pointwise("d[m,n] = alpha * c[m,n] + beta * e[m,n]", 32, 16)(VAL, GL, VAL, GL, GL)(Kernel)
    chain = Pointwise.tile(16, 8).to(Block).load("c", RF).load("e", SH).tile(2, 2).to(Thread).tile(1, 1).done()
    c, e = numbers(32, 16), numbers(32, 16) % 5
    np.testing.assert_array_equal(chain(spec).compile("sm_80")(2, np.asfortranarray(c), -1, np.asfortranarray(e)), 2 * c - e)


@attrs.frozen
class Fused(Executable):
    """A user's instruction that reads a number as any operand."""

    def performs(self):
        return "Axpy(1)(VAL,GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        fits = spec.kind == AXPY.kind and spec.memories[0] == VAL and str(spec.size("m")) == "1"
        return () if fits else (Mismatch("spec", self.performs(), str(spec)),)

    def cuda(self, printer, statement):
        a, x, y = (printer.element(statement, name) for name in ("a", "x", "y"))
        return [f"{y} = fmaf({a}, {x}, {y});"]


def test_ones_own_instruction_and_micro_kernel(tmp_path):
    chain = AXPY.tile(250).to(Block).tile(1).to(Thread)
    texts = {leaf: chain.done(one)(axpy()).program("sm_80") for leaf, one in (("own", Fused()), ("micro", "*y += a * *x;"))}
    assert "= fmaf(a, x[" in texts["own"].cuda and "*y += a * *x;" in texts["micro"].cuda
    assert "a = " not in texts["micro"].cuda, "the name is that of the parameter"
    given = {"a": np.asarray(2, np.float32), "x": numbers(1000), "y": numbers(1000)}
    for program in texts.values():
        np.testing.assert_array_equal(simulate(program.ir, given).outputs["y"], 3 * numbers(1000))
    if COMPILER is not None:
        host = HostProgram(map(Printed.of, texts.values()), tmp_path)
        for number in range(2):
            np.testing.assert_array_equal(host.run(number, given)["y"], 3 * numbers(1000))


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("text", ["*dst = *src;", "dst_at(0, 0) = src_at(0, 0);", "*dst = src_at(0, 0);"])
def test_a_micro_kernel_whose_parameters_are_called_as_its_operands(text, tmp_path):
    """Operand names hide the parameters, so the arrays have second names in the micro-kernel."""
    program = Move.tile(16, 16).to(Block).tile(1, 1).to(Thread).done(text)(Move(64, 32)(GL, GL)(Kernel)).program("sm_80")
    result = HostProgram([Printed.of(program)], tmp_path).run(0, {"src": numbers(64, 32)})["dst"]
    np.testing.assert_array_equal(result, numbers(64, 32))


@pytest.mark.parametrize("spec", [axpy(), MIXED, PUT(8)(VAL, GL)(Kernel), axpy(memory=GL)], ids=str)
def test_specs_with_scalars_are_values(spec):
    kinds = {"Axpy": AXPY, "Scale": SCALE, "Put": PUT}
    for other in (eval(repr(spec), {**globals(), **kinds}), loads_spec(dumps(spec)), parse_spec(spec_text(spec), _symbols(spec) | kinds)):
        assert other == spec and hash(other) == hash(spec)
    assert axpy() != axpy(memory=GL)


def test_the_meaning_of_scalars():
    assert axpy().definition.uses == {"a": (), "x": ("m",), "y": ("m",)} and str(axpy().definition) == "y[m] += a * x[m]"
    np.testing.assert_array_equal(axpy().reference(np.float32(2), numbers(1000)), 2 * numbers(1000))
    assert str(axpy().flops) == "2000" and str(axpy().bytes) == str(4 + 3 * 4000)
    assert "%a:[].fp32.VAL" in spec_text(axpy())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AXPY(8)(VAL, VAL, GL)(Kernel), "x has dimensions, but only single elements are passed by value"),
        (lambda: AXPY(8)(VAL, GL, VAL)(Kernel), "y has dimensions"),
        (lambda: AXPY(8)(SH, GL, GL)(Kernel), "a has no dimensions, so it is a parameter of the kernel"),
        (lambda: Kind("Bad", "y[m] = exp * x[m]"), "expected the arguments of the function exp"),
        (lambda: Kind("Bad", "y[m] = x * x[m]"), "x is read with two different index lists"),
        (
            lambda: AXPY.tile(4).to(Block).load("a", SH).tile(1).to(Thread).done()(axpy()).program("sm_80").tree,
            "each thread reads an operand of one element directly",
        ),
    ],
)
def test_scalars_that_are_refused(make, message):
    with pytest.raises(FireironError, match=message):
        make()


@pytest.mark.parametrize("given", ["2", True, None, 1j, [2.0], np.ones(1), np.ones(3)], ids=repr)
def test_arguments_other_than_numbers_are_refused(given):
    with pytest.raises(ArgumentError, match="a is passed by value, so it must be a number"):
        LINE(axpy()).compile("sm_80")(given, numbers(1000), out=numbers(1000))


def test_numbers_beyond_a_type_are_refused():
    assert value_of("a", math.inf, float16) == math.inf and np.isnan(value_of("a", math.nan, float32))
    assert value_of("a", 0.1, float16) == np.float16(0.1) and value_of("a", 127.0, int8) == 127
    for number, dtype in ((1e60, float32), (70000, float16), (10**400, float64), (128, int8), (1.5, int32), (math.inf, int32)):
        with pytest.raises(ArgumentError, match="a is (beyond the range|passed by value, so it must be of type)"):
            value_of("a", number, dtype)


@pytest.mark.parametrize(("dtype", "number"), [(float32, -1.5), (float64, 0.1), (float16, -2.0), (int8, -3), (int32, -(1 << 31))], ids=str)
def test_bits_reach_the_launch(gpu, dtype, number):  # noqa: F811
    """In the slot of a pointer, as the driver reads it: as many bytes as the type has."""
    kernel = compiled(LINE(AXPY(1000, dtype=dtype, accumulate=True)(VAL, GL, GL)(Kernel)))
    x, y = (gpu.cupy.ndarray((1000,), np.dtype(dtype.numpy), fake_gpu.memory(8000), (dtype.bytes,)) for _ in range(2))
    kernel(number, x, out=y)
    bits, *others = gpu.launches[-1][-1]
    assert others == addresses(x, y)
    assert np.frombuffer(bits.to_bytes(8, "little")[: dtype.bytes], dtype.to_numpy())[0] == number


def test_a_number_overlaps_no_array(gpu):  # noqa: F811
    """Its bits look like an address inside the output, not a multiple of 16."""
    kernel = compiled(LINE(AXPY(1000, dtype=(float64, float32), y_dtype=float32, accumulate=True)(VAL, GL, GL)(Kernel)))
    x, y = (gpu.cupy.ndarray((1000,), np.dtype("float32"), fake_gpu.memory(4000), (4,)) for _ in range(2))
    inside = addresses(y)[0] + 8
    kernel(np.frombuffer(inside.to_bytes(8, "little"), np.float64)[0], x, out=y)
    assert gpu.launches[-1][-1] == [inside, *addresses(x, y)]
    with pytest.raises(LaunchError, match="out overlaps x"):
        kernel(2.0, y, out=y)


def test_prepared_launches_preserve_numbers(gpu):  # noqa: F811
    kernel = compiled(LINE(axpy()))
    x, y = (gpu.cupy.ndarray((1000,), np.dtype("float32"), fake_gpu.memory(4000), (4,)) for _ in range(2))
    prepared = kernel.prepare(2.0, x, out=y)
    prepared()
    prepared(3.0, x, out=y)
    prepared()
    passed = [np.uint32(launched[-1][0] & 0xFFFFFFFF).view(np.float32) for launched in gpu.launches]
    assert passed == [2, 3, 2]
    with pytest.raises(ArgumentError, match="must be a number"):
        prepared(x, x, out=y)
    adding = compiled(LINE(axpy(accumulate=False)))
    assert adding(2.0, x).shape == (1000,), "a new output lies where the array lies"


def test_numbers_lie_on_no_gpu(monkeypatch):
    """Scalars go to the GPU of the arrays, whichever it is."""
    two = installed(monkeypatch, fake_gpu.FakeGpu(devices=2))
    x, y = (two.cupy.ndarray((1000,), np.dtype("float32"), fake_gpu.memory(4000), (4,), 1) for _ in range(2))
    compiled(LINE(axpy()))(2.0, x, out=y)
    assert two.launches[0][0] == 1


def test_launches_pass_the_size_of_each_number(gpu, monkeypatch):  # noqa: F811
    """The driver reports each parameter's size, and arguments of another size are refused."""
    for sizes, fits in (((4, 8, 8), True), ((8, 8, 8), False)):
        monkeypatch.setattr(launch, "_parameter_sizes", lambda function, sizes=sizes: sizes)
        x, y = (gpu.cupy.ndarray((1000,), np.dtype("float32"), fake_gpu.memory(4000), (4,)) for _ in range(2))
        kernel = compiled(LINE(axpy()))
        with contextlib.nullcontext() if fits else pytest.raises(LaunchError, match="its parameter has 8 bytes, the argument 4"):
            kernel(2.0, x, out=y)


def test_data_and_references_with_numbers(monkeypatch):
    monkeypatch.setattr(launch, "require_cupy", lambda: stand_in(Clock()))
    data = Data.of(axpy(), rotate_bytes=0)
    a, x = (data.sets[0][name] for name in ("a", "x"))
    assert a.shape == () and a.dtype == np.float32 and set(data.originals) == {"x"}
    np.testing.assert_allclose(data.references["y"], data.initials["y"] + float(a) * x.astype(np.float64), atol=1e-6)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_numbers_in_c(tmp_path):
    """The launcher takes numbers by value; float16 as its bits, since C has no such type."""
    unit = Unit.of(
        TILES(SCALE(sym("M"), 32, dtype=(float32, float16, float16), y_dtype=float16)(VAL, GL, VAL, GL)(Kernel)).program("sm_80"), "scale"
    )
    assert unit.parameters() == "float a, const void *x, unsigned short b, void *y, int M"
    assert unit.names == ["a", "x", "b", "y", "M"] and "  b: float16, its bits as an unsigned short" in unit.contract()
    source = tmp_path / "refusal.c"
    source.write_text("\n".join(["#include <stdint.h>", *unit.minimum(), *unit.check_function(), "int main() { return 0; }"]))
    subprocess.run(["gcc", "-Wall", "-Wno-unused-function", "-Werror", source, "-o", tmp_path / "refusal"], check=True)


def test_the_command_line_runs_kernels_with_numbers(tmp_path, capsys, monkeypatch):
    (tmp_path / "axpy.py").write_text(
        "from fireiron import *\n"
        "Axpy = Kind('Axpy', 'y[m] += a * x[m]').starter\n"
        "strategy = Axpy.tile(256).to(Block).tile(1).to(Thread).done()\n"
        "def spec():\n"
        "    return Axpy(sym('M'), accumulate=True)(VAL, GL, GL)(Kernel)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "axpy.py", "--simulate"]) == 0 and "PASS" in capsys.readouterr().out
    for command in ("emit", "show", "explain", "check"):
        assert main([command, "axpy.py"]) == 0
    assert main(["cost", "axpy.py", "--size", "M=100000"]) == 0
    assert "VAL" in capsys.readouterr().out
    assert main(["export", "axpy.py", "-o", "there", "--no-cubin"]) == 0
    assert "axpy_launch(float a, const float *x, float *y, int M, cudaStream_t stream)" in (tmp_path / "there" / "axpy.h").read_text()


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy")
@pytest.mark.parametrize("dtype", [float32, float16, float64, int32, int8], ids=str)
def test_numbers_on_a_gpu(dtype):
    import cupy

    kernel = LINE(AXPY(1000, dtype=dtype, accumulate=True)(VAL, GL, GL)(Kernel)).compile()
    x, y = (numbers(1000) % 9).astype(dtype.to_numpy()), (numbers(1000) % 5).astype(dtype.to_numpy())
    out = cupy.asarray(y)
    kernel(-3, cupy.asarray(x), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), y - 3 * x)
    prepared = kernel.prepare(-3, cupy.asarray(x), out=out)
    prepared()
    np.testing.assert_array_equal(cupy.asnumpy(out), y - 6 * x)


# ---------------------------------------------------------------------------------------------- on a GPU

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy")]


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy")
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_any_strides_on_a_gpu(name, library):
    array, xp = ARRAYS[name], pytest.importorskip(library)
    on_gpu = _viewed(xp, array)
    result = COPY(ANYWHERE).compile()(on_gpu)
    np.testing.assert_array_equal(result.cpu().numpy() if library == "torch" else xp.asnumpy(result), array)
    prepared = COPY(ANYWHERE).compile().prepare(on_gpu)
    out = prepared()
    np.testing.assert_array_equal(out.cpu().numpy() if library == "torch" else xp.asnumpy(out), array)


def _viewed(xp, array):
    """The same view of a copy of the memory on the GPU."""
    extent = 1 + sum((size - 1) * stride // 4 for size, stride in zip(array.shape, array.strides, strict=True))
    flat = xp.asarray(as_strided(array, (extent,), (4,)).copy())
    if hasattr(flat, "as_strided"):
        return flat.cuda().as_strided(array.shape, [stride // 4 for stride in array.strides])
    return xp.lib.stride_tricks.as_strided(flat, array.shape, array.strides)
