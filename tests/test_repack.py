"""`repack`: preceding kernels that copy operands, in the simulator and in all outputs of a strategy."""

import re

import attrs
import numpy as np
import pytest
from hopper_cases import ORDERS, float16_gemm
from printed_text import COMPILER, HostProgram, Printed
from problems import called, stored
from problems import integers as integers_of

from fireiron import *
from fireiron.check import check
from fireiron.cost import predict
from fireiron.export import export
from fireiron.gpu.kernel import CompiledKernel
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.explain import explain, text
from fireiron.inspect.show import as_dict, show
from fireiron.ir import Barrier
from fireiron.language.library import default_strategy, defaults
from fireiron.measure.data import references_of
from fireiron.sim import simulate
from fireiron.strategies import hopper, hopper_batched

BODY = MatMul.tile(32, 64).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
"""A GEMM that needs no alignment, for tests of the copies."""

STRATEGY = MatMul.repack(A).repack(B).then(BODY)
HOPPER = hopper.strategy.with_(bm=64, bn=64, wm=64, wn=64, stages=2)


def names(program):
    return [launch.name for launch in program.preceding]


def integers(shape, seed=3):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def require_right(strategy, spec, sizes):
    """The whole call, copies and GEMM, in the simulator (oracle: NumPy)."""
    M, N, K = sizes
    kernel = CompiledKernel(strategy(spec).program("sm_90a"))
    a, b = integers((M, K)), integers((K, N), 4)
    np.testing.assert_array_equal(called(kernel, a, b), references_of(spec, a, b)["C"])
    return kernel.program


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 65, 17), (40, 63, 24), (63, 40, 24), (20, 24, 31)], ids=str)
def test_products_at_odd_sizes(sizes, orders):
    program = require_right(STRATEGY, float16_gemm(*sizes, orders=orders), sizes)
    M, N, K = sizes
    rows = {"A": K if orders[0] == "N" else M, "B": N if orders[1] == "N" else K}
    assert names(program) == [name for name in "AB" if rows[name] % 8], "what TMA takes is not copied"
    for name in names(program):
        step = program.inner.operands[name].tensor.storage().steps
        assert sorted(map(str, step))[0] == "1" and program.inner.operands[name].order == program.spec.operands[name].order
        many = 64 if rows[name] >= 64 else 8  # whole L2 lines, unless a row is shorter
        assert max(int(str(one)) for one in step) == -(-rows[name] // many) * many or rows[name] == 1


@pytest.mark.parametrize("sizes", [(65, 63, 33), (72, 129, 40), (130, 72, 71)], ids=str)
def test_the_strategy_of_the_library(sizes):
    """TMA loads the copies, for all sizes."""
    program = require_right(HOPPER, float16_gemm(*sizes), sizes)
    assert program.preceding and "tma_load(" in program.text and program.ir.rings


def test_one_kernel_for_all_sizes():
    M, N, K = map(sym, "MNK")
    kernel = CompiledKernel(HOPPER(float16_gemm(M, N, K)).program())
    assert names(kernel.program) == ["A", "B"]
    steps = [step for name in "AB" for step in kernel.program.inner.operands[name].tensor.storage().steps]
    assert all(str(step) == "1" or step.factor % 64 == 0 for step in steps), "whole lines of L2"
    for sizes in ((65, 63, 33), (8, 16, 70)):
        a, b = integers((sizes[0], sizes[2])), integers((sizes[2], sizes[1]), 4)
        np.testing.assert_array_equal(kernel(a, b), references_of(float16_gemm(*sizes), a, b)["C"])


def test_aligned_operands_are_not_copied():
    spec = float16_gemm(64, 64, 64)
    plain = BODY(spec).program("sm_90a")
    same = STRATEGY(spec).program("sm_90a")
    assert same.preceding == () and same.inner is spec and same.ir.body == plain.ir.body
    assert [line for line in same.cuda.splitlines() if ".repack(" not in line] == plain.cuda.splitlines()


def test_arrays_at_odd_addresses_are_copied():
    """A slice of a matrix may start at any element."""
    spec = float16_gemm(64, 64, 64)
    slices = spec.with_operands(A=attrs.evolve(spec.A, tensor=attrs.evolve(spec.A.tensor, align=2)))
    program = STRATEGY(slices).program("sm_90a")
    assert [str(one) for one in program.preceding] == [
        "matmul_repack_a: Move(64,64)(GL,GL)(Kernel) with src float16 RowMajor; dst float16 RowMajor(ld=64), since A is aligned to 2 bytes"
    ]
    assert program.preceding[0].program.ir.buffer("src").tensor.align == 2 and program.ir.buffer("A").tensor.align == 16


def test_arrays_of_any_strides():
    """Neither rows nor columns are contiguous: the copy is row-major."""
    spec = MatMul(16, 24, 8, dtype=float16, A=Strides(m=ANY, k=ANY), B=RowMajor)(GL, GL, GL)(Kernel)
    kernel = CompiledKernel(STRATEGY(spec).program("sm_90a"))
    a, b = integers((32, 24))[::2, ::3], integers((8, 24), 4)
    np.testing.assert_array_equal(kernel(a, b), references_of(spec, a, b)["C"])
    assert [launch.reason for launch in kernel.program.preceding] == ["A is contiguous along no dimension"]


def test_a_user_defined_copy():
    move = Move.tile(8, 32).to(Block).tile(2, 1).to(Thread).tile(1, 1).done()
    spec = float16_gemm(33, 40, 17)
    program = require_right(MatMul.repack(A, move).then(BODY), spec, (33, 40, 17))
    assert program.preceding[0].program.strategy.steps == move.steps


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (
            MatMul.tile(32, 64).to(Block).repack(A).tile(4, 4).to(Thread).split(1).tile(1, 1).done(),
            "before the first step that distributes work",
        ),
        (MatMul.repack(C).then(BODY), r"repack\(C\): MatMul reads no such operand"),
        (MatMul.repack("X").then(BODY), r"repack\(X\): MatMul reads no such operand"),
    ],
)
def test_refusals(chain, message):
    with pytest.raises(FireironError, match=message):
        _ = chain(float16_gemm(33, 40, 17)).program("sm_90a").tree


def test_operands_of_other_ranks_are_refused():
    spec = MatMul(2, 3, 16, 16, 9, signature="abmk,kn->abmn", dtype=float16)(GL, GL, GL)(Kernel)
    with pytest.raises(DecompositionError, match=r"(?s)the operand has 4 dimensions.*matrices, or batches of them"):
        _ = MatMul.repack(A).tile(1, 1, 16, 16).to(Block).done()(spec).program("sm_90a").tree


def test_other_orders_are_refused():
    for order in (RowMajor(ld=40), "row", 1):
        with pytest.raises(ArgumentError, match="repack: order"):
            MatMul.repack(A, order=order)


def test_wrong_arrays_are_refused():
    kernel = CompiledKernel(STRATEGY(float16_gemm(33, 40, 17)).program("sm_90a"))
    a, b = integers((33, 17)), integers((17, 40))
    for arrays in ((a,), (a, b, b), (a.T, b), (a, b[:5]), (a.astype(np.float32), b)):
        with pytest.raises(FireironError):
            kernel(*arrays)
    with pytest.raises(FireironError, match="preceding copy of A"):
        kernel(a.astype(np.float32), b)


# ---------------------------------------------------------------------------------------------- changing the storage order

TYPES = {tf32: float32, float8_e4m3: bfloat16, float8_e5m2: float32, int8: int32}
"""Element types that wgmma reads along k only, and those of the results."""

ASKED = MatMul.repack(A, order=RowMajor).repack(B, order=ColMajor).then(BODY)


def drawn(shape, dtype, seed):
    return integers_of(shape, dtype, np.random.default_rng(seed))


def product_of(dtype):
    return (hopper.integers if dtype == int8 else hopper.strategy).with_(
        bm=64, bn=64, wm=64, wn=64, bk=128 // dtype.bytes, epi_n=32, stages=2
    )


def require_equal(strategy, spec, shapes):
    """The whole call in the simulator (oracle: NumPy), with inputs stored as the spec states."""
    kernel = CompiledKernel(strategy(spec).program("sm_90a"))
    a, b = (drawn(shape, spec.operands[name].dtype, seed) for seed, (name, shape) in enumerate(zip("AB", shapes, strict=True)))
    given = [stored(one, spec.operands[name].tensor.layout) for name, one in zip("AB", (a, b), strict=True)]
    wide = [one.astype(np.float64) for one in (a, b)]
    np.testing.assert_array_equal(kernel(*given).astype(np.float64), (wide[0] @ wide[1]).astype(spec.C.dtype.to_numpy()).astype(np.float64))
    return kernel.program


@pytest.mark.sampled(6)
@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(64, 80, 64), (65, 63, 33), (144, 72, 71), (80, 33, 160)], ids=str)
def test_all_orders_of_types_that_are_read_along_k(dtype, orders, sizes):
    """TMA loads all of them, for all orders and sizes."""
    M, N, K = sizes
    spec = float16_gemm(M, N, K, f"{orders}N", dtype=dtype, c_dtype=TYPES[dtype])
    program = require_equal(product_of(dtype), spec, ((M, K), (K, N)))
    misaligned = {"A": K * dtype.bytes % 16, "B": K * dtype.bytes % 16}
    transposed = {"A": orders[0] == "T", "B": orders[1] == "N"}
    assert names(program) == [name for name in "AB" if misaligned[name] or transposed[name]]
    assert "tma_load(" in program.text and program.ir.rings
    for launch in program.preceding:
        along = {"A": ("m", "k"), "B": ("n", "k")}[launch.name]
        wanted = f"{launch.name} is contiguous along {along[0]}, and the MMAs read it along k"
        assert (launch.reason == wanted) == transposed[launch.name]


@pytest.mark.parametrize("dtype", [tf32, float16, int8, float64], ids=str)
@pytest.mark.parametrize("sizes", [(256, 384), (130, 68), (72, 129), (129, 72), (1, 5), (31, 33), (256, 258), (34, 132)], ids=str)
def test_transposed_tiles(dtype, sizes):
    """The copy alone, both ways: NumPy's values, whole vectors if rows allow it, no bank conflicts."""
    rows, columns = sizes
    for order, other in ((RowMajor, ColMajor), (ColMajor, RowMajor)):
        spec = MatMul(rows, 8, columns, dtype=dtype, A=other, c_dtype=dtype)(GL, GL, GL)(Kernel)
        (launch,) = MatMul.repack(A, order=order).then(BODY)(spec).program("sm_90a").preceding
        assert launch.reason == f"A is contiguous along {'m' if order == RowMajor else 'k'}, and {order} is requested"
        a = drawn(sizes, dtype, 5)
        copied = CompiledKernel(launch.program)(stored(a, other))
        np.testing.assert_array_equal(copied, a)
        assert "__syncthreads" in launch.program.cuda
        if all(size * dtype.bytes % 16 == 0 for size in sizes):
            assert "*>(&dst" in launch.program.cuda and re.search(r"reinterpret_cast<const \w+\*>\(&src", launch.program.cuda)
            assert not conflicts(launch.program), "neither writing the tile nor reading across it"


def conflicts(program):
    return [one for one in check(program.ir) if one.kind == "banks" and one.severity == "warning"]


@pytest.mark.parametrize("dtype", [tf32, float16, int8], ids=str)
def test_rows_without_vectors_are_padded(dtype):
    """Adjacent lanes read adjacent rows of the tile, one bank apart."""
    spec = MatMul(256, 8, 257, dtype=dtype, A=ColMajor, c_dtype=dtype)(GL, GL, GL)(Kernel)
    (launch,) = MatMul.repack(A, order=RowMajor).then(BODY)(spec).program("sm_90a").preceding
    assert not [one for one in conflicts(launch.program) if " read by " in one.message] and ".pad(" in launch.program.cuda


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_transposing_copies_compile(dtype):
    """All launches as one translation unit, without a warning, within their registers."""
    if not any(chain.serves("sm_90a") for chain in toolchains()):
        pytest.skip("no installed NVRTC serves sm_90a")
    for sizes in ((256, 256, 256), (255, 257, 259)):
        program = product_of(dtype)(float16_gemm(*sizes, "TNN", dtype=dtype, c_dtype=TYPES[dtype])).program("sm_90a")
        resources = compile_cuda(program.cuda, "sm_90a").resources
        assert set(resources) == {"matmul_repack_a", "matmul_repack_b", "matmul"} and all(
            usage.spill_stores == 0 for usage in resources.values()
        )


def test_outputs_state_why_operands_are_transposed():
    strategy = product_of(tf32)(float16_gemm(64, 64, 64, "TNN", dtype=tf32, c_dtype=float32))
    description = "matmul_repack_b: Move(64,64)(GL,GL)(Kernel) with src tf32 RowMajor; dst tf32 ColMajor(ld=64), since B is contiguous along n, and the MMAs read it along k"
    shown = "\n".join(show(strategy.program()))
    assert description in shown and "tile(1, 4).to(Thread).layout(RowMajor)" in shown
    assert f"preceding launch: {description}" in text(explain(strategy))


def test_operands_in_the_required_order_are_not_copied():
    assert ASKED(float16_gemm(64, 64, 64, "NTN")).program("sm_90a").preceding == ()
    program = require_right(ASKED, float16_gemm(33, 40, 17, "TNN"), (33, 40, 17))
    assert names(program) == ["A", "B"]
    assert [program.inner.operands[name].order for name in "AB"] == ["row", "col"]


def test_float16_operands_are_read_in_either_order():
    for orders in ORDERS:
        assert HOPPER(float16_gemm(64, 64, 64, orders)).program().preceding == ()


def test_one_kernel_of_transposed_operands_for_all_sizes():
    M, N, K = (sym(name, multiple_of=4) for name in "MNK")
    kernel = CompiledKernel(product_of(tf32)(float16_gemm(M, N, K, "TNN", dtype=tf32, c_dtype=float32)).program())
    assert names(kernel.program) == ["A", "B"]
    for m, n, k in ((64, 68, 36), (4, 8, 72)):
        a, b = drawn((m, k), tf32, 1), drawn((k, n), tf32, 2)
        np.testing.assert_array_equal(kernel(np.asfortranarray(a), b), a @ b)


@pytest.mark.parametrize("dtype", [tf32, int8], ids=str)
def test_a_missing_barrier_is_found(dtype):
    """By the race check and by the simulator, which share no code."""
    spec = MatMul(256, 8, 256, dtype=dtype, A=ColMajor, c_dtype=dtype)(GL, GL, GL)(Kernel)
    (launch,) = MatMul.repack(A, order=RowMajor).then(BODY)(spec).program("sm_90a").preceding
    kernel = launch.program.ir
    broken = attrs.evolve(kernel, body=tuple(one for one in kernel.body if not isinstance(one, Barrier)))
    assert len(broken.body) == len(kernel.body) - 1
    assert [one for one in check(broken) if one.kind == "race" and one.severity == "error"]
    with pytest.raises(SimulationError, match="race"):
        simulate(broken, {"src": np.asfortranarray(drawn((256, 256), dtype, 1))})


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_the_printed_copies_on_a_cpu(tmp_path):
    """The printed text, executed with threads in random order; without its barrier it is wrong."""
    programs, data = [], []
    for dtype, sizes in ((tf32, (70, 36)), (tf32, (33, 37)), (int8, (144, 160)), (int8, (130, 33)), (float16, (72, 129))):
        spec = MatMul(sizes[0], 8, sizes[1], dtype=dtype, A=ColMajor, c_dtype=dtype)(GL, GL, GL)(Kernel)
        (launch,) = MatMul.repack(A, order=RowMajor).then(BODY)(spec).program("sm_90a").preceding
        programs.append(Printed.of(launch.program))
        data.append(drawn(sizes, dtype, 7))
    broken = programs[2].changed(r"__syncthreads\(\);", "")
    host = HostProgram([*programs, broken], tmp_path)
    for number, array in enumerate(data):
        np.testing.assert_array_equal(host.run(number, {"src": array}, seed=number)["dst"], array)
    assert any(not np.array_equal(host.run(len(data), {"src": data[2]}, seed=seed)["dst"], data[2]) for seed in range(4))


# ---------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("sizes", "signature"), [((3, 65, 33, 17), "bmk,bkn->bmn"), ((2, 40, 72, 31), "bmk,kn->bmn"), ((2, 33, 65, 24), "mk,bkn->bmn")]
)
@pytest.mark.parametrize("dtype", [float16, int8], ids=str)
def test_batches(sizes, signature, orders, dtype):
    batch, M, N, K = sizes
    layouts = {name: RowMajor if order == "N" else ColMajor for name, order in zip("AB", orders, strict=True)}
    library_strategy = hopper_batched.integers if dtype == int8 else hopper_batched.strategy
    strategy = library_strategy.with_(bm=64, bn=64, wm=64, wn=64, bk=128 // dtype.bytes, epi_n=32, stages=2)
    spec = hopper_batched.spec(M, N, K, batch=batch, signature=signature, dtype=dtype, c_dtype=TYPES.get(dtype, dtype), **layouts)
    left, right = signature.split("->")[0].split(",")
    shapes = [tuple({"b": batch, "m": M, "n": N, "k": K}[dim] for dim in dims) for dims in (left, right)]
    program = require_equal(strategy, spec, shapes)
    assert program.ir.rings and "tma_load" in program.text


def test_matrices_of_a_batch_with_gaps():
    """Rows are multiples of 16 bytes apart, matrices are not."""
    spec = MatMul(3, 16, 24, 8, dtype=float16, signature="bmk,bkn->bmn", A=Strides(b=129, m=8, k=1))(GL, GL, GL)(Kernel)
    program = MatMul.repack(A).tile(b=1).to(Block).then(BODY)(spec).program("sm_90a")
    assert [one.reason for one in program.preceding] == ["the matrix stride of A is 129 elements of 2 bytes"]


# ---------------------------------------------------------------------------------------------- the library's choice


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    ("dtype", "name"), [(tf32, "hopper"), (float8_e4m3, "hopper"), (float8_e5m2, "hopper"), (int8, "hopper:integers")], ids=str
)
def test_defaults_of_types_that_are_read_along_k(dtype, name, orders):
    """The first default loads by TMA, in every storage order, for aligned and other sizes."""
    for sizes in ((4096, 4096, 4096), (1023, 1025, 1027)):
        spec = float16_gemm(*sizes, f"{orders}N", dtype=dtype, c_dtype=TYPES[dtype])
        (default_name, values), *_ = defaults(spec, "sm_90a")
        program = default_strategy(default_name, values, spec)(spec).program("sm_90a")
        assert default_name == name and program.ir.rings and values["bk"] * dtype.bytes in (128, 256)


@pytest.mark.parametrize("sizes", [(256, 256, 256), (16, 512, 512), (512, 16, 512), (8, 8, 8)], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_small_defaults_are_legal(dtype, sizes):
    for orders in ("NNN", "NTN"):
        spec = float16_gemm(*sizes, orders, dtype=dtype, c_dtype=TYPES[dtype])
        (default_name, values), *_ = defaults(spec, "sm_90a")
        assert default_strategy(default_name, values, spec)(spec).program("sm_90a").ir.threads


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2, int8], ids=str)
@pytest.mark.parametrize("shapes", [((100, 90), (90, 70)), ((3, 70, 33), (3, 33, 66))], ids=str)
def test_matmul_takes_all_orders(shapes, dtype):
    a, b = (drawn(shape, dtype, seed) for seed, shape in enumerate(shapes))
    for left in (a, np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)):
        for right in (b, np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)):
            choice = matmul.choice(left, right, arch="sm_90a")
            assert ": hopper" in choice.why and choice.program.ir.rings
            result = matmul(left, right, arch="sm_90a").astype(np.float64)
            np.testing.assert_array_equal(result, a.astype(np.float64) @ b.astype(np.float64))


# ---------------------------------------------------------------------------------------------- outputs of a strategy

ODD = float16_gemm(95, 97, 99)


def test_the_text_is_one_unit_of_all_launches():
    program = HOPPER(ODD).program()
    text = program.cuda
    assert text.startswith("// 3 launches, in this order\n") and text.count("__global__ void") == 3
    assert [text.index(f"\n{name}(") for name in ("matmul_repack_a", "matmul_repack_b", "matmul")] == sorted(
        text.index(f"\n{name}(") for name in ("matmul_repack_a", "matmul_repack_b", "matmul")
    )
    assert text.count("#include <cuda_fp16.h>") == 1
    if not any(chain.serves("sm_90a") for chain in toolchains()):
        pytest.skip("no installed NVRTC serves sm_90a")
    resources = compile_cuda(text, "sm_90a").resources
    assert set(resources) == {"matmul_repack_a", "matmul_repack_b", "matmul"} and all(one.spill_stores == 0 for one in resources.values())


def test_outputs_list_the_copies():
    program = HOPPER(ODD).program()
    description = "matmul_repack_a: Move(95,99)(GL,GL)(Kernel) with src float16 RowMajor; dst float16 RowMajor(ld=128), since the row stride of A is 99 elements of 2 bytes"
    shown = "\n".join(show(program))
    assert f"launched first   {description}" in shown and "tile(16, 256).to(Block)" in shown
    assert as_dict(program)["launches"][0] == description
    assert f"preceding launch: {description}" in text(explain(HOPPER(ODD)))
    assert all(not [one for one in check(launch.program.ir) if one.severity == "error"] for launch in program.preceding)


def test_their_time_is_a_part_of_the_prediction():
    prediction = predict(HOPPER(ODD).program())
    copies = [predict(launch.program).us for launch in HOPPER(ODD).program().preceding]
    assert prediction.parts["preceding copies"] == pytest.approx(sum(copies)) and prediction.us > sum(copies)
    assert "preceding copies" not in predict(HOPPER(float16_gemm(96, 96, 96)).program()).parts


def test_stored_and_read_back():
    assert Strategy.from_json(STRATEGY.to_json()) == STRATEGY
    own = MatMul.repack(A, Move.tile(8, 32).to(Block).tile(2, 1).to(Thread).tile(1, 1).done()).then(BODY)
    assert Strategy.from_json(own.to_json()) == own
    assert Strategy.from_json(ASKED.to_json()) == ASKED != STRATEGY and eval(repr(ASKED)) == ASKED
    assert eval(repr(own)) == own and STRATEGY.unrefined().steps[0] == STRATEGY.steps[0]


def test_exports_take_scratch_memory(tmp_path):
    """More of them in `test_export.py`."""
    header = export(HOPPER(ODD), tmp_path, "gemm", cubin=False).files[0].read_text()
    assert "the row stride of A is 99 elements of 2 bytes." in header and "size_t gemm_scratch_bytes(void);" in header
