"""`repack`: operands copied in front, by launches of their own, in the simulator and through everything that reads a strategy."""

import attrs
import numpy as np
import pytest
from hopper_cases import ORDERS, halves
from problems import called

from fireiron import *
from fireiron.check import check
from fireiron.cost import predict
from fireiron.export import export
from fireiron.gpu.kernel import CompiledKernel
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.explain import explain, text
from fireiron.inspect.show import as_dict, show
from fireiron.measure.data import referred
from fireiron.strategies import hopper

BODY = MatMul.tile(32, 64).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
"""A product that needs no alignment, for tests of the copies."""

STRATEGY = MatMul.repack(A).repack(B).then(BODY)
HOPPER = hopper.strategy.with_(bm=64, bn=64, wm=64, wn=64, stages=2)


def names(program):
    return [launch.name for launch in program.launches]


def integers(shape, seed=3):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16)


def require_right(strategy, spec, sizes):
    """The whole call, copies and product, in the simulator (oracle: NumPy)."""
    M, N, K = sizes
    kernel = CompiledKernel(strategy(spec).program("sm_90a"))
    a, b = integers((M, K)), integers((K, N), 4)
    np.testing.assert_array_equal(called(kernel, a, b), referred(spec, a, b)["C"])
    return kernel.program


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (33, 65, 17), (40, 63, 24), (63, 40, 24), (20, 24, 31)], ids=str)
def test_products_at_odd_sizes(sizes, orders):
    program = require_right(STRATEGY, halves(*sizes, orders=orders), sizes)
    M, N, K = sizes
    rows = {"A": K if orders[0] == "N" else M, "B": N if orders[1] == "N" else K}
    assert names(program) == [name for name in "AB" if rows[name] % 8], "what TMA takes is not copied"
    for name in names(program):
        step = program.inner.operands[name].tensor.storage().steps
        assert sorted(map(str, step))[0] == "1" and program.inner.operands[name].order == program.spec.operands[name].order
        assert max(int(str(one)) for one in step) == -(-rows[name] // 8) * 8 or rows[name] == 1


@pytest.mark.parametrize("sizes", [(65, 63, 33), (72, 129, 40), (130, 72, 71)], ids=str)
def test_the_strategy_of_the_library(sizes):
    """TMA loads the copies, whatever the sizes."""
    program = require_right(HOPPER, halves(*sizes), sizes)
    assert program.launches and "tma_load(" in program.text and program.ir.rings


def test_one_kernel_for_all_sizes():
    M, N, K = map(sym, "MNK")
    kernel = CompiledKernel(HOPPER(halves(M, N, K)).program())
    assert names(kernel.program) == ["A", "B"]
    for sizes in ((65, 63, 33), (8, 16, 70)):
        a, b = integers((sizes[0], sizes[2])), integers((sizes[2], sizes[1]), 4)
        np.testing.assert_array_equal(kernel(a, b), referred(halves(*sizes), a, b)["C"])


def test_what_is_aligned_is_left_alone():
    spec = halves(64, 64, 64)
    plain = BODY(spec).program("sm_90a")
    same = STRATEGY(spec).program("sm_90a")
    assert same.launches == () and same.inner is spec and same.ir.body == plain.ir.body
    assert [line for line in same.cuda.splitlines() if ".repack(" not in line] == plain.cuda.splitlines()


def test_arrays_at_odd_addresses_are_copied():
    """A slice of a matrix starts where it likes."""
    spec = halves(64, 64, 64)
    slices = spec.with_operands(A=attrs.evolve(spec.A, tensor=attrs.evolve(spec.A.tensor, align=2)))
    program = STRATEGY(slices).program("sm_90a")
    assert [str(one) for one in program.launches] == [
        "matmul_repack_a: Move(64,64)(GL,GL)(Kernel), since A starts at a multiple of 2 bytes"
    ]
    assert program.launches[0].program.ir.buffer("src").tensor.align == 2 and program.ir.buffer("A").tensor.align == 16


def test_arrays_of_any_strides():
    """Neither rows nor columns side by side: the copy is row-major."""
    spec = MatMul(16, 24, 8, dtype=float16, A=Strides(m=ANY, k=ANY), B=RowMajor)(GL, GL, GL)(Kernel)
    kernel = CompiledKernel(STRATEGY(spec).program("sm_90a"))
    a, b = integers((32, 24))[::2, ::3], integers((8, 24), 4)
    np.testing.assert_array_equal(kernel(a, b), referred(spec, a, b)["C"])
    assert [launch.reason for launch in kernel.program.launches] == ["A has no neighbours side by side"]


def test_a_copy_of_ones_own():
    move = Move.tile(8, 32).to(Block).tile(2, 1).to(Thread).tile(1, 1).done()
    spec = halves(33, 40, 17)
    program = require_right(MatMul.repack(A, move).then(BODY), spec, (33, 40, 17))
    assert program.launches[0].program.strategy.steps == move.steps


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (MatMul.tile(32, 64).to(Block).repack(A).tile(4, 4).to(Thread).split(1).tile(1, 1).done(), "before the first step that deals work"),
        (MatMul.repack(C).then(BODY), r"repack\(C\): MatMul reads no such operand"),
        (MatMul.repack("X").then(BODY), r"repack\(X\): MatMul reads no such operand"),
    ],
)
def test_refusals(chain, said):
    with pytest.raises(FireironError, match=said):
        _ = chain(halves(33, 40, 17)).program("sm_90a").tree


def test_stacks_of_matrices_are_refused():
    spec = MatMul(2, 16, 16, 9, signature="bmk,bkn->bmn", dtype=float16)(GL, GL, GL)(Kernel)
    with pytest.raises(DecompositionError, match="an operand of 3 dimensions"):
        _ = MatMul.repack(A).tile(1, 16, 16).to(Block).done()(spec).program("sm_90a").tree


def test_wrong_arrays_are_refused():
    kernel = CompiledKernel(STRATEGY(halves(33, 40, 17)).program("sm_90a"))
    a, b = integers((33, 17)), integers((17, 40))
    for arrays in ((a,), (a, b, b), (a.T, b), (a, b[:5]), (a.astype(np.float32), b)):
        with pytest.raises(FireironError):
            kernel(*arrays)
    with pytest.raises(FireironError, match="copy of A in front"):
        kernel(a.astype(np.float32), b)


# ---------------------------------------------------------------------------------------------- what reads a strategy

ODD = halves(95, 97, 99)


def test_the_text_is_one_unit_of_all_launches():
    program = HOPPER(ODD).program()
    text = program.cuda
    assert text.startswith("// 3 launches, in the order of these kernels\n") and text.count("__global__ void") == 3
    assert [text.index(f"\n{name}(") for name in ("matmul_repack_a", "matmul_repack_b", "matmul")] == sorted(
        text.index(f"\n{name}(") for name in ("matmul_repack_a", "matmul_repack_b", "matmul")
    )
    assert text.count("#include <cuda_fp16.h>") == 1
    if not any(chain.serves("sm_90a") for chain in toolchains()):
        pytest.skip("no installed NVRTC serves sm_90a")
    found = compile_cuda(text, "sm_90a").resources
    assert set(found) == {"matmul_repack_a", "matmul_repack_b", "matmul"} and all(one.spill_stores == 0 for one in found.values())


def test_readers_tell_of_the_copies():
    program = HOPPER(ODD).program()
    said = "matmul_repack_a: Move(95,99)(GL,GL)(Kernel), since A has rows 99 elements of 2 bytes apart"
    shown = "\n".join(show(program))
    assert f"launched first   {said}" in shown and "tile(16, 256).to(Block)" in shown
    assert as_dict(program)["launches"][0] == said
    assert f"launched in front: {said}" in text(explain(HOPPER(ODD)))
    assert all(not [one for one in check(launch.program.ir) if one.severity == "error"] for launch in program.launches)


def test_their_time_is_a_part_of_the_prediction():
    whole = predict(HOPPER(ODD).program())
    copies = [predict(launch.program).us for launch in HOPPER(ODD).program().launches]
    assert whole.parts["copies in front"] == pytest.approx(sum(copies)) and whole.us > sum(copies)
    assert "copies in front" not in predict(HOPPER(halves(96, 96, 96)).program()).parts


def test_stored_and_read_back():
    assert Strategy.from_json(STRATEGY.to_json()) == STRATEGY
    own = MatMul.repack(A, Move.tile(8, 32).to(Block).tile(2, 1).to(Thread).tile(1, 1).done()).then(BODY)
    assert Strategy.from_json(own.to_json()) == own
    assert eval(repr(own)) == own and STRATEGY.unrefined().steps[0] == STRATEGY.steps[0]


def test_export_says_what_to_do(tmp_path):
    with pytest.raises(ArgumentError, match="copies in front"):
        export(HOPPER(ODD), tmp_path)
    assert list(tmp_path.iterdir()) == []
