"""Tensor contractions with indices in any order and number, by every instruction: a tile of 1 leaves a matrix, in the operand's own order.

Property: a random signature, with random sizes and storage orders, by a random instruction, equals `numpy.einsum`.
"""

from __future__ import annotations

import importlib
import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.ir import execs
from fireiron.language.plain import as_matrix, plain, roles, without_ones
from fireiron.language.store import dumps, loads_spec
from fireiron.sim import simulate
from fireiron.values.expr import constant


def arrays_of(spec, **sizes):
    """Small integers, whose sums are exact in any order and type."""
    rng = np.random.default_rng(7)
    known = {dim: size.evaluate(sizes) for dim, size in spec.extents.items()}
    return {
        name: rng.integers(-2, 3, tuple(known[dim] for dim in spec.uses[name])).astype(spec.operands[name].dtype.to_numpy())
        for name in spec.inputs
    }


def agrees(strategy, spec, target="sm_80", **sizes):
    """The program, after the checks have no findings and the simulator equals einsum."""
    program = strategy(spec).program(target)
    assert not [one for one in check(program.ir) if one.severity == "error"]
    arrays = arrays_of(spec, **sizes)
    (result,) = simulate(program.ir, arrays, sizes).outputs.values()
    np.testing.assert_array_equal(
        result.astype(np.float64), np.einsum(spec.signature, *(one.astype(np.float64) for one in arrays.values()))
    )
    return program


def performing(program):
    """The names of the instructions of a program."""
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


# ---------------------------------------------------------------------------------------------- strategies by names of dimensions


def tile(spec, m, n):
    """Sizes by name: those of the two dimensions of a matrix, and 1 for all others."""
    names = roles_of(spec)
    return dict.fromkeys(spec.tile_dims, 1) | {names["m"]: m, names["n"]: n}


def roles_of(spec):
    """The largest of the dimensions that may serve as m, n and k."""
    uses = {name: set(dims) for name, dims in spec.uses.items()}
    large = sorted(spec.dims, key=lambda dim: -(constant(spec.size(dim)) or 1 << 20))
    kinds = {"m": uses["A"] & uses["C"] - uses["B"], "n": uses["B"] & uses["C"] - uses["A"], "k": uses["A"] & uses["B"] - uses["C"]}
    return {name: next(dim for dim in large if dim in dims) for name, dims in kinds.items()}


def steps(spec, k):
    """The sizes of splits by name: `k` elements of the largest reduced dimension, one of the others."""
    return {dim: k if dim == roles_of(spec)["k"] else 1 for dim in spec.dims if dim not in spec.tile_dims}


def by_mma(spec, k=16, rows=16, columns=16):
    """Tensor cores, through shared memory and ldmatrix."""
    return (
        MatMul.tile(**tile(spec, 32, 32))
        .to(Block)
        .epilog(RF, RESULTS[spec.A.dtype], Init.done(), Move.done())
        .split(**steps(spec, k))
        .load(A, SH, Move.coalesced_copy(8).done())
        .swizzle_storage()
        .load(B, SH, Move.coalesced_copy(8).done())
        .swizzle_storage()
        .tile(**tile(spec, rows, columns))
        .to(Warp)
        .load(A, RF, Move.done())
        .load(B, RF, Move.done())
        .mma_tile()
        .done()
    )


RESULTS = {float16: float32, bfloat16: float32, int8: int32, tf32: float32, float64: float64, float32: float32}


def by_wmma(spec):
    """Fragments, loaded from shared memory and stored through it."""
    fragment = FR(16, 16, 16)
    init = Init.tile(16, 16).to(Warp).done()
    store = Move.load(SRC, SH, Move.tile(16, 16).to(Warp).done()).tile(1, 1).to(Thread).done()
    warp = MatMul.tile(**tile(spec, 16, 16)).to(Warp).load(A, fragment, Move.done()).load(B, fragment, Move.done()).done()
    block = MatMul.tile(**tile(spec, 32, 32)).to(Block).epilog(fragment, float32, init, store).split(**steps(spec, 16))
    return block.load(A, SH).pad(8).load(B, SH).pad(8).then(warp)


def by_threads(spec, m=1, n=1):
    """Multiply-adds on registers, of `m` x `n` elements each."""
    block = MatMul.tile(**tile(spec, 16, 8)).to(Block).epilog(RF).split(**steps(spec, 4)).load(A, SH).load(B, SH)
    thread = block.tile(**tile(spec, 2, 2)).to(Thread).split(**{roles_of(spec)["k"]: 1}).load(A, RF).load(B, RF)
    return thread.tile(**tile(spec, m, n)).unroll().done()


def by_packed_pairs(spec):
    """HFMA2: two elements along m."""
    return by_threads(spec, 2, 1)


BY = {
    "mma": (by_mma, float16, "sm_80", "HMMA_16816_F32"),
    "bf16": (by_mma, bfloat16, "sm_90", "HMMA_16816_F32_BF16"),
    "turing": (by_mma, float16, "sm_75", "HMMA_1688_F32"),
    "volta": (by_mma, float16, "sm_70", "HMMA_884X4_F32_"),
    "int8": (lambda spec: by_mma(spec, k=32), int8, "sm_80", "IMMA_16832_S8"),
    "tf32": (by_mma, tf32, "sm_80", "HMMA_1688_F32_TF32"),
    "f64": (by_mma, float64, "sm_80", "DMMA_884"),
    "wmma": (by_wmma, float16, "sm_80", "mma_sync"),
    "wmma volta": (by_wmma, float16, "sm_70", "mma_sync"),
    "hfma2": (by_packed_pairs, float16, "sm_80", "HFMA2"),
    "fma": (by_threads, float32, "sm_80", "FFMA"),
}
"""Strategies, the element type and the target, and the expected instruction."""


# ---------------------------------------------------------------------------------------------- any signature


def drawn(seed):
    """A signature with sizes: m, n and k, and up to three more dimensions of any role, in any order and with any letters."""
    rng = random.Random(seed)
    letters = rng.sample("abcdefghijklmnop", 6)
    sorts = ["AC", "BC", "AB", *rng.choices(["ABC", "ABC", "AC", "BC", "AB"], k=rng.randint(0, 3))]
    sizes = {letter: rng.choice((32, 40, 33, 48)) if place < 3 else rng.randint(1, 3) for place, letter in enumerate(letters[: len(sorts)])}
    parts = {name: [letter for letter, sort in zip(letters, sorts, strict=False) if name in sort] for name in "ABC"}
    for part in parts.values():
        rng.shuffle(part)
    left, right, result = ("".join(parts[name]) for name in "ABC")
    over = dict.fromkeys(letter for letter in left + right if letter not in result)
    orders = {name: rng.choice((RowMajor, ColMajor)) for name in "ABC"}
    return f"{left},{right}->{result}", tuple(sizes[dim] for dim in (*result, *over)), orders


@pytest.mark.sampled(3)
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("seed", range(4))
def test_random_signatures(by, seed):
    make, dtype, target, instruction = BY[by]
    signature, sizes, orders = drawn(f"{by} {seed}")
    result = {"c_dtype": float32} if by.startswith("wmma") else {}
    spec = MatMul(*sizes, dtype=dtype, signature=signature, **result, **orders)(GL, GL, GL)(Kernel)
    program = agrees(make(spec), spec, target)
    assert any(name.startswith(instruction) for name in performing(program)), performing(program)


@pytest.mark.parametrize("by", ["mma", "volta", "wmma", "hfma2", "fma"])
def test_matrix_products_with_other_letters(by):
    """The plain matrix product, except for its letters."""
    make, dtype, target, instruction = BY[by]
    result = {"c_dtype": float32} if by == "wmma" else {}
    spec = MatMul(40, 32, 32, dtype=dtype, signature="ij,jg->ig", **result)(GL, GL, GL)(Kernel)
    program = agrees(make(spec), spec, target)
    assert any(name.startswith(instruction) for name in performing(program))


FORMS = {
    "NN": "mkb,knb->mnb",
    "NT": "mkb,nkb->mnb",
    "TN": "kmb,knb->mnb",
    "TT": "kmb,nkb->mnb",
    "turned": "kmb,nkb->nmb",
    "first": "bmk,bkn->bmn",
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("signature", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("by", ["mma", "volta", "wmma"])
def test_printed_texts(signature, by, tmp_path):
    """The text is executed on the CPU, too: sizes that tiles divide, and sizes that they do not."""
    make, dtype, target, _ = BY[by]
    cases = []
    for size in (32, 40):
        sizes = {"m": size, "n": size - 8, "k": 32, "b": 2}
        result = signature.split("->")[1]
        spec = MatMul(*(sizes[dim] for dim in (*result, "k")), dtype=dtype, c_dtype=float32, signature=signature)(GL, GL, GL)(Kernel)
        cases.append((agrees(make(spec), spec, target), spec))
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    host = HostProgram([Printed.of(program) for program, _ in cases], tmp_path)
    for number, (_, spec) in enumerate(cases):
        arrays = arrays_of(spec)
        (actual,) = host.run(number, arrays).values()
        np.testing.assert_array_equal(actual, np.einsum(signature, *(one.astype(np.float32) for one in arrays.values())))


@pytest.mark.parametrize("signature, trans", [("mkb,knb->mnb", 1), ("mkb,nkb->mnb", 2), ("kmb,knb->mnb", 0), ("kmb,nkb->mnb", 1)])
def test_storage_decides_how_ldmatrix_loads(signature, trans):
    """Column-major everywhere: for A with contiguous rows, and B with contiguous columns, the matrices are transposed by the load."""
    spec = MatMul(32, 32, 2, 32, dtype=float16, c_dtype=float32, signature=signature)(GL, GL, GL)(Kernel)
    program = agrees(by_mma(spec), spec)
    loads = {name for name in performing(program) if name.startswith("LDMATRIX")}
    assert loads, performing(program)
    text = program.cuda
    assert (text.count("ldmatrix_x4_trans(a_rf") > 0) + (text.count("ldmatrix_x4_trans(b_rf") > 0) == trans, loads


def test_sizes_known_at_run_time():
    M, N, K, B = (sym(name, high=1 << 15) for name in ("M", "N", "K", "batch"))
    for signature, by in (("bmk,bkn->bmn", "mma"), ("kmb,nkb->nmb", "volta"), ("mbk,bkn->mbn", "wmma")):
        make, dtype, target, _ = BY[by]
        symbols = {"m": M, "n": N, "k": K, "b": B}
        result = signature.split("->")[1]
        spec = MatMul(*(symbols[dim] for dim in (*result, "k")), dtype=dtype, c_dtype=float32, signature=signature)(GL, GL, GL)(Kernel)
        names = {"m": "m", "n": "n", "k": "k"}
        fixed = MatMul(*(8 if dim == "b" else 64 for dim in (*result, "k")), signature=signature)(GL, GL, GL)(Kernel)
        assert roles_of(fixed) == names
        strategy = make(attrs_with_types(fixed, dtype))
        agrees(strategy, spec, target, M=40, N=33, K=24, batch=3)


def attrs_with_types(spec, dtype):
    """A spec of equal sizes whose inputs have another type."""
    sizes = [constant(size) for size in spec.sizes]
    return MatMul(*sizes, signature=spec.signature, dtype=dtype, c_dtype=float32)(GL, GL, GL)(Kernel)


# ---------------------------------------------------------------------------------------------- split_k


@pytest.mark.parametrize("signature", ["bmk,bkn->bmn", "kmb,nkb->nmb", "mlk,kln->mn"])
@pytest.mark.parametrize("level", [Warp, Block], ids=str)
def test_parts_of_k(signature, level):
    sizes = {"m": 40, "n": 33, "k": 64, "b": 2, "l": 3}
    left, right = signature.split("->")[0].split(",")
    result = signature.split("->")[1]
    over = dict.fromkeys(dim for dim in left + right if dim not in result)
    spec = MatMul(*(sizes[dim] for dim in (*result, *over)), dtype=float16, c_dtype=float32, signature=signature)(GL, GL, GL)(Kernel)
    inner = MatMul.tile(**tile(spec, 16, 16)).unroll().load(A, RF).load(B, RF).mma_tile().done()
    epilog = MatMul.epilog(RF, float32, Init.done(), Move.done()).split(**steps(spec, 16))
    block = MatMul.tile(**tile(spec, 32, 32)).to(Block)
    in_parts = next(iter(over)) == "k"
    parts = 2 if in_parts else 3
    if level == Warp:
        strategy = block.split_k(parts, Warp, 16 if in_parts else 1).then(epilog).then(inner)
    else:
        one_warp = MatMul.tile(**tile(spec, 32, 32)).to(Warp).then(inner)
        strategy = MatMul.split_k(parts, Block, 16 if in_parts else 1).then(block).then(epilog).then(one_warp)
    program = agrees(strategy, spec)
    assert "HMMA_16816_F32" in performing(program)


# ---------------------------------------------------------------------------------------------- strategies of the library

LIBRARY = {
    "hmma_ampere": (float16, float16, "sm_80"),
    "hmma_turing": (float16, float16, "sm_75"),
    "hmma_volta": (float16, float16, "sm_70"),
    "small": (float16, float16, "sm_80"),
    "split_k": (float16, float16, "sm_80"),
    "split_k_blocks": (float16, float32, "sm_80"),
    "wmma_simple": (float16, float32, "sm_80"),
    "wmma_optimized": (float16, float32, "sm_80"),
    "sgemm": (float32, float32, "sm_80"),
    "gemm_nn": (float32, float32, "sm_80"),
    "naive": (float32, float32, "sm_80"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("signature", ["bmk,bkn->bmn", "mkb,knb->mnb", "kbm,nkb->bmn"])
def test_strategies_of_matrices_take_a_batch(name, signature):
    """A tile of 1 assigns one matrix to each block, and the strategy distributes its tiles as usual.

    Those that copy by rows and columns (`Move.tile(1, 4)`) are for matrices whose rows and columns come in that order.
    """
    if signature == "kbm,nkb->bmn" and name in ("sgemm", "gemm_nn"):
        pytest.skip("their copies name rows and columns by position")
    dtype, c_dtype, target = LIBRARY[name]
    sizes = {"m": 70, "n": 50, "k": 40, "b": 2}
    result = signature.split("->")[1]
    spec = MatMul(*(sizes[dim] for dim in (*result, "k")), dtype=dtype, c_dtype=c_dtype, signature=signature)(GL, GL, GL)(Kernel)
    strategy = importlib.import_module(f"fireiron.strategies.{name}").strategy
    agrees(MatMul.tile(b=1).to(Block).then(strategy), spec, target)


def test_blocks_are_assigned_in_several_steps():
    """Later steps have the faster digits of the block number; the grid is the product."""
    spec = MatMul(3, 2, 40, 33, 8, signature="abmk,bkn->abmn")(GL, GL, GL)(Kernel)
    inner = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    program = agrees(MatMul.tile(a=1).to(Block).tile(b=1).to(Block).then(inner), spec)
    assert constant(program.ir.grid) == 3 * 2 * 3 * 3
    assert "block_a = blockIdx.x / 18;" in program.cuda and "block_b = blockIdx.x / 9 % 2;" in program.cuda
    together = agrees(MatMul.tile(a=1, b=1).to(Block).then(inner), spec)
    assert together.ir.grid == program.ir.grid
    shared = MatMul.tile(16, 16).to(Block).epilog(RF).split(4).tile(1, 1).to(Thread).split(1).done()
    parts = agrees(MatMul.tile(a=1).to(Block).split_k(2, Block, 4).tile(b=1).to(Block).then(shared), spec)
    assert constant(parts.ir.grid) == 2 * 3 * 2 * 3 * 3 and "block_k = blockIdx.x % 2;" in parts.cuda
    with pytest.raises(DecompositionError, match="later tiles are distributed over Block"):
        _ = MatMul.tile(a=1, b=1).to(Block).rasterize(group_m=2).then(inner)(spec).program().ir


def test_sizes_by_position_are_those_of_the_matrix():
    """Fewer sizes than dimensions are those of a matrix in a batch, if that remains."""
    spec = MatMul(4, 32, 16, 8, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
    chain = MatMul.tile(b=1, m=16).to(Block)
    assert str(chain.tile(4, 2)(spec).result) == "MatMul(1,4,2,8)(GL,GL,GL)(Block)"
    assert str(chain.tile(1, 4, 2)(spec).result) == "MatMul(1,4,2,8)(GL,GL,GL)(Block)"
    assert str(MatMul.tile(2, 4)(spec).result) == "MatMul(2,4,16,8)(GL,GL,GL)(Kernel)"


# ---------------------------------------------------------------------------------------------- the plain form


def test_plain_forms():
    def product(signature, *sizes):
        return MatMul(*sizes, signature=signature)(GL, GL, GL)(Block)

    assert roles(product("bmk,bkn->bmn", 1, 8, 8, 8)) == ("m", "n", "k")
    assert roles(product("bmk,bkn->bmn", 2, 8, 8, 8)) is None
    assert roles(product("abk,kn->abn", 1, 8, 8, 8)) == ("b", "n", "k")
    assert roles(product("abk,kn->abn", 8, 1, 8, 8)) == ("a", "n", "k")
    assert roles(product("bk,bkn->bn", 1, 8, 8)) == ("b", "n", "k"), "one row"
    assert roles(product("bk,bkn->bn", 2, 8, 8)) is None
    transposed = plain(product("kbm,nbk->bnm", 1, 4, 8, 16))
    assert transposed.multiplies and str(transposed) == "MatMul(8,4,16)(GL,GL,GL)(Block)"
    assert [view.axes for view in transposed.views] == [(2, 0), (2, 0), (2, 1)]
    assert [view.storage_order for view in transposed.views] == [(1, 0), (1, 0), (1, 0)]
    assert plain(transposed) is transposed
    assert loads_spec(dumps(transposed)) == transposed
    assert as_matrix(product("bmk,bkn->bmn", 1, 8, 8, 8), "B").signature == "bmk,kn->bmn"
    assert as_matrix(product("mlk,lkn->mn", 8, 8, 1, 8), "A").signature == "mk,lkn->mn"
    assert as_matrix(product("mlk,lkn->mn", 8, 8, 2, 8), "A").signature == "mlk,lkn->mn", "no matrix"
    stack = Move(1, 8, 1, 4)(GL, SH)(Block)
    assert (
        str(without_ones(stack)) == "Move(8,4)(GL,SH)(Block)"
        and str(without_ones(Move(1, 1, 4)(GL, SH)(Block))) == "Move(1,4)(GL,SH)(Block)"
    )


def test_specs_that_no_instruction_supports():
    """Two matrices at once: the message names the extra dimensions."""
    spec = MatMul(2, 32, 32, 16, dtype=float16, c_dtype=float32, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
    chain = MatMul.tile(2, 16, 16).to(Block).epilog(RF).split(16).tile(2, 16, 16).to(Warp)
    with pytest.raises(DecompositionError, match="more than m, n and k") as refused:
        _ = chain.mma_tile().done()(spec).program().ir
    assert "b=2 m=16 n=16 k=16" in str(refused.value) and "tiles of 1" in str(refused.value)
    with pytest.raises(MatchError, match="b=2 m=16 n=16 k=16 of bmk,bkn->bmn"):
        _ = chain.load(A, RF).load(B, RF).done(HMMA_16816_F32)(spec).program().ir


def test_partial_sums_of_other_ranks():
    """A C of one dimension, and one of three of which none is 1: by multiply-adds of threads."""
    for signature, sizes, tiles in (("mkp,kmp->m", (20, 64, 3), (4,)), ("bmk,bkn->bmn", (4, 12, 10, 64), (2, 4, 4))):
        spec = MatMul(*sizes, signature=signature, C=RowMajor)(GL, GL, GL)(Kernel)
        ones_per_dimension = (1,) * len(tiles)
        reduced = dict.fromkeys(("p",) if "p" in signature else (), 1)
        block = MatMul.tile(*tiles).to(Block).split_k(2, Warp, 8).epilog(RF).split(k=8, **reduced)
        program = agrees(block.tile(*ones_per_dimension).to(Lane).split(k=1).done(), spec)
        assert "FFMA" in performing(program) and "p_sh" in program.cuda


# ---------------------------------------------------------------------------------------------- meaning


MEANT = ("bmk,bkn->bmn", "bkm,nkb->nbm", "mk,bkn->bmn", "mkl,kln->mn", "mk,n->mn", "bik,bjk->ijb", "mkx,kn->mn", "mk,kny->mn")


@pytest.mark.parametrize("dtype", [float16, int8, float64], ids=str)
@pytest.mark.parametrize("signature", MEANT)
def test_references(signature, dtype):
    """Compared with einsum, for indices that both operands have, that one has alone, or that are reduced."""
    left, right, result = signature.replace("->", ",").split(",")
    sizes = {"b": 3, "i": 4, "j": 5, "k": 6, "l": 2, "m": 4, "n": 7, "x": 3, "y": 2}
    summed = [dim for dim in dict.fromkeys(left + right) if dim not in result]
    spec = MatMul(*(sizes[dim] for dim in (*result, *summed)), signature=signature, dtype=dtype)(GL, GL, GL)(Kernel)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, [sizes[dim] for dim in dims]).astype(dtype.to_numpy()) for dims in (left, right))
    np.testing.assert_array_equal(spec.reference(a, b), np.einsum(signature, a.astype(np.float64), b.astype(np.float64)))


def test_a_batched_reference_needs_no_more_memory_than_its_arrays():
    """All matrix products at once would be 9 GB."""
    spec = MatMul(8, 256, 256, 2048, signature="bmk,bkn->bmn", dtype=float16)(GL, GL, GL)(Kernel)
    arrays_of_ones = np.ones((8, 256, 2048), np.float16), np.ones((8, 2048, 256), np.float16)
    assert (spec.reference(*arrays_of_ones) == 2048).all()
