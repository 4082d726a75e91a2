"""Split-k inside a block and across blocks: exact results, clean checks, injected faults, refusals, compilers."""

import itertools
import random
import re

import attrs
import fused_examples
import making
import pytest
from problems import integers, library

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check, check_races, safety
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate

np = pytest.importorskip("numpy")
needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

LIBRARY = ("split_k", "split_k_blocks")
both = pytest.mark.parametrize("name", LIBRARY)
LAYOUTS = [dict(zip("ABC", layouts, strict=True)) for layouts in itertools.product((ColMajor, RowMajor), repeat=3)]
SYMBOLS = (sym("M"), sym("N"), sym("K"))
SIZES = ((1, 1, 1), (16, 16, 64), (16, 16, 65), (17, 15, 128), (33, 50, 129), (64, 64, 512), (40, 24, 1000), (16, 8, 63), (5, 70, 192))

copy = Move.tile(1, 1).to(Lane).done()


def tiled(parts, step, level=Warp, combine=None, inner=lambda chain: chain.tile(4, 4).to(Lane)):
    """Multiply-adds of lanes: each part loads its own chunks."""
    tilings = (Init.tile(4, 4).to(Lane).tile(1, 1).done(), Move.tile(4, 4).to(Lane).tile(1, 1).done())
    chain = MatMul.tile(16, 32).to(Block).split_k(parts, level, step, combine).epilog(RF, *tilings).split(step)
    chain = chain.load(A, SH, copy).load(B, SH, copy)
    return inner(chain).split(1).tile(1, 1).done()


def arrays_of(spec, seed=0, **sizes):
    generator = np.random.default_rng(seed)
    shape = {name: tuple(sizes.get(str(size)) or int(str(size)) for size in spec.operands[name].shape) for name in "ABC"}
    return {name: integers(shape[name], spec.operands[name].dtype, generator) for name in "ABC"}


def verify(strategy, spec, target="sm_90", order=None, **sizes):
    """The simulated result is NumPy's, in step and in a random order of warps."""
    arrays = arrays_of(spec, **sizes)
    kernel = strategy(spec).program(target).ir
    given = {name: arrays[name] for name in "AB"}
    added = spec.accumulate == all_of(())
    expected = spec.reference(*given.values()) + (arrays["C"] if added else 0)
    for warp_order in (None, random.Random(3)) if order is None else (order,):
        result = simulate(kernel, {**given, "C": arrays["C"]} if added else given, sizes, order=warp_order)
        np.testing.assert_array_equal(result.outputs["C"], expected)
    return kernel


# ---------------------------------------------------------------------------------------------- results


@both
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_sizes(name, sizes):
    verify(library(name).strategy, library(name).spec(*sizes))


@pytest.mark.sampled(6)
@both
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda one: "".join(str(part)[0] for part in one.values()))
def test_layouts(name, layouts):
    for sizes in ((33, 18, 200), (64, 32, 256)):
        verify(library(name).strategy, library(name).spec(*sizes, **layouts))


@both
def test_sizes_known_at_run_time(name):
    spec = library(name).spec(*SYMBOLS)
    for M, N, K in ((1, 1, 1), (33, 70, 129), (16, 16, 640), (64, 16, 300)):
        verify(library(name).strategy, spec, M=M, N=N, K=K)
    aligned = library(name).spec(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=64))
    verify(library(name).strategy, aligned, M=19, N=24, K=192)


@pytest.mark.sampled(6)
@both
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
def test_parts(name, parts):
    if name == "split_k_blocks" and parts in (1, 3):
        pytest.skip("no value of its tunable")
    for values in ({}, {"bm": 32, "bn": 32}):
        verify(library(name).strategy.with_(num_splits=parts, bk=32, stages=2, **values), library(name).spec(40, 40, 333))


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_86"])
@both
def test_targets(name, target):
    verify(library(name).strategy, library(name).spec(40, 24, 200), target)


@pytest.mark.parametrize("dtype", [float32, float64, float16, int32], ids=str)
def test_element_types(dtype):
    for parts, step in ((1, 8), (2, 4), (3, 8), (5, 1)):
        verify(tiled(parts, step), MatMul(20, 37, 50, dtype=dtype)(GL, GL, GL)(Kernel))
        verify(tiled(parts, step), MatMul(16, 32, sym("K"), dtype=dtype, C=RowMajor)(GL, GL, GL)(Kernel), K=17)


def test_accumulator_and_result_differ():
    spec = MatMul(20, 37, 50, dtype=float16, accumulator=float32)(GL, GL, GL)(Kernel)
    kernel = verify(tiled(3, 4), spec)
    assert kernel.buffer("p_sh").dtype == float32
    assert kernel.buffer("C").dtype == float16


def test_a_sum_over_a_dimension_that_one_operand_does_not_have():
    """Its parts are distributed as well: each of them reads the whole other operand."""
    spec = MatMul(32, 16, 8, 4, signature="bmk,kn->mn")(GL, GL, GL)(Kernel)
    inside = MatMul.tile(16, 8).to(Block).split_k(2, Warp, 2).tile(4, 4).to(Lane).split(b=1, k=1).tile(1, 1).done()
    among = (
        MatMul.split_k(2, Block, 2).tile(16, 8).to(Block).epilog(RF).split(b=2, k=2).tile(4, 4).to(Thread).split(b=1, k=1).tile(1, 1).done()
    )
    for strategy in (inside, among):
        verify(strategy, spec)


def test_adds_to_c():
    spec = MatMul(20, 37, 50, accumulate=True)(GL, GL, GL)(Kernel)
    verify(tiled(2, 8), spec)
    kernel = verify(blocks(3, 8), spec)
    assert making.effect_of(kernel, "zeroed") == ()
    with pytest.raises(ArgumentError, match="adds to C"):
        blocks(3, 8)(spec).compile()(*(arrays_of(spec)[name] for name in "AB"))


def test_warpgroups_share_k_and_warps_tiles():
    """Three dimensions: two warpgroups in k, in each four warps in m and n."""
    tilings = (
        Init.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
        Move.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
    )
    strategy = (
        MatMul.tile(32, 16).to(Block).split_k(2, Warpgroup, 8).epilog(RF, *tilings).split(8).load(A, SH).load(B, SH)
        .tile(16, 8).to(Warp).tile(2, 2).to(Lane).split(1).tile(1, 1).done()
    )  # fmt: skip
    kernel = verify(strategy, MatMul(50, 40, 44)(GL, GL, GL)(Kernel))
    assert kernel.threads == 256
    assert kernel.buffer("a_sh").tensor.copies == 2


def test_warps_of_a_warpgroup_share_k():
    strategy = (
        MatMul.tile(16, 16).to(Block).tile(8, 16).to(Warpgroup).split_k(3, Warp, 4).epilog(RF).split(4)
        .tile(2, 2).to(Lane).split(1).tile(1, 1).done()
    )  # fmt: skip
    lane = (Init.tile(2, 2).to(Lane).tile(1, 1).done(), Move.tile(2, 2).to(Lane).tile(1, 1).done())
    kernel = verify(strategy.at(Epilog).replace(MatMul.epilog(RF, *lane).steps[0]), MatMul(20, 30, 19)(GL, GL, GL)(Kernel))
    assert kernel.threads == 256, "the fourth warp of each warpgroup is idle"
    assert kernel.buffer("p_sh").tensor.copies == 2


@pytest.mark.parametrize("order", [ColMajor, RowMajor], ids=str)
def test_wmma(order):
    """Fragments are stored where there is a leading dimension and no swizzle."""
    chain = MatMul.tile(32, 16).to(Block).split_k(2, Warp, 16).pad(4)
    chain = chain.epilog(FR(16, 16, 16), *(one.tile(16, 16).unroll().done() for one in (Init, Move))).split(16)
    chain = chain.load(A, SH, copy).load(B, SH, copy).tile(16, 16).unroll()
    chain = chain.load(A, FR(16, 16, 16), Move.done()).load(B, FR(16, 16, 16), Move.done()).done()
    spec = MatMul(40, 30, 70, dtype=float16, c_dtype=float32, C=order)(GL, GL, GL)(Kernel)
    assert "store_matrix_sync(" in chain(spec).cuda("sm_80")
    verify(chain, spec, "sm_80")
    assert eval(repr(chain)) == chain == Strategy.from_json(chain.to_json())


def test_inside_a_split():
    """A static tile of k, loaded by the block and shared by its warps."""
    strategy = (
        MatMul.tile(16, 16).to(Block).epilog(SH).split(16).load(A, SH).load(B, SH).split_k(2, Warp, 4).epilog(RF)
        .split(4).tile(4, 2).to(Lane).split(1).tile(1, 1).done()
    )  # fmt: skip
    lane = (Init.tile(4, 2).to(Lane).tile(1, 1).done(), Move.tile(4, 2).to(Lane).tile(1, 1).done())
    verify(strategy.at(Epilog, index=1).replace(MatMul.epilog(RF, *lane).steps[0]), MatMul(20, 30, 37)(GL, GL, GL)(Kernel))


@pytest.mark.parametrize(
    "combine",
    [
        Reduction.tile(1, 2).to(Thread).tile(1, 1).done(),
        Reduction.tile(1, 1).to(Thread).split(1).done(),
        Reduction.tile(16, 16).to(Warp).tile(1, 8).to(Lane).tile(1, 1).unroll().done(),
    ],
    ids=str,
)
def test_combine_is_the_users_choice(combine):
    strategy = tiled(2, 8, combine=combine)
    verify(strategy, MatMul(20, 37, 50)(GL, GL, GL)(Kernel))
    assert eval(repr(strategy)) == strategy == Strategy.from_json(strategy.to_json())


def test_reduction_of_an_array():
    for sizes, options in itertools.product(((9, 7, 3), (32, 16, 1)), ({}, {"dtype": int32}, {"dtype": float16, "dst_dtype": float32})):
        spec = Reduction(*sizes, **options)(GL, GL)(Kernel)
        array = integers(sizes, spec.src.dtype, np.random.default_rng(1))
        for chain in (
            spec.tile(8, 8).to(Block).tile(1, 1).to(Thread).done(),
            spec.tile(8, 8).to(Block).tile(2, 1).to(Thread).split(1).tile(1, 1).done(),
        ):
            np.testing.assert_array_equal(simulate(chain.program().ir, {"src": array}).outputs["dst"], spec.reference(array))


@pytest.mark.nightly
def test_random_arrangements():
    """Random parts, chunks, tiles, levels, storage orders, copies and sizes; half the sizes are not powers of two."""
    draw = random.Random(11)
    for _ in range(40):
        step, parts, level = draw.choice((1, 2, 3, 4, 8)), draw.randint(1, 5), draw.choice((Warp, Warp, Warpgroup))
        parts = min(parts, 3) if level == Warpgroup else parts
        tile = draw.choice(((16, 32), (32, 16), (8, 24), (24, 40)))
        part = draw.choice(((2, 4), (4, 2), (8, 8), (1, 1)))
        part = tuple(size if whole % size == 0 else 1 for size, whole in zip(part, tile, strict=True))
        unit = (lambda start, size: start.tile(*size).to(Lane)) if level == Warp else (lambda start, size: start.tile(*size).to(Thread))
        tilings = (unit(Init, part).tile(1, 1).done(), unit(Move, part).tile(1, 1).done())
        across = draw.random() < 0.4
        start = (
            MatMul.split_k(parts, Block, step).tile(*tile).to(Block) if across else MatMul.tile(*tile).to(Block).split_k(parts, level, step)
        )
        if not across and draw.random() < 0.3:
            start = start.pad(draw.randint(0, 5))
        if across:
            tilings = (Init.tile(*part).to(Thread).tile(1, 1).done(), Move.tile(*part).to(Thread).tile(1, 1).done())
            unit = lambda start, size: start.tile(*size).to(Thread)
        chain = start.epilog(RF, *tilings).split(step)
        if draw.random() < 0.5:
            chain = chain.pipeline(draw.randint(1, 4))
        move = Move.coalesced_copy(draw.choice((1, 2, 4))).done()
        chain = unit(chain.load(A, SH, move).load(B, SH, move), part).split(1).tile(1, 1).done()
        orders = {name: draw.choice((ColMajor, RowMajor)) for name in "ABC"}
        K = draw.choice((1, step, step * parts, step * parts + 1, step * parts * 3 - 1, 37))
        sizes = {"M": draw.choice((1, tile[0], tile[0] + 1, 20)), "N": draw.choice((1, tile[1], tile[1] * 2 - 1, 33)), "K": K}
        symbolic = draw.random() < 0.4
        spec = MatMul(*(sym(name) if symbolic else size for name, size in sizes.items()), **orders)(GL, GL, GL)(Kernel)
        try:
            kernel = chain(spec).program(draw.choice(("sm_75", "sm_90"))).ir
        except ResourceError:
            continue
        except DecompositionError as error:
            assert "cannot be distributed over the registers" in str(error) or "distributes elements over threads" in str(error), (
                f"{chain}\n{spec}"
            )
            continue
        arrays = {name: array for name, array in arrays_of(spec, **sizes).items() if name != "C"}
        got = simulate(kernel, arrays, sizes if symbolic else {}, order=draw.choice((None, random.Random(1)))).outputs["C"]
        assert np.array_equal(got, spec.reference(*arrays.values())), f"{chain}\n{spec} {sizes}"


# ---------------------------------------------------------------------------------------------- across blocks


def blocks(parts, step, tile=(16, 32)):
    tilings = (Init.tile(4, 4).to(Thread).tile(1, 1).done(), Move.tile(4, 4).to(Thread).tile(1, 1).done())
    chain = MatMul.split_k(parts, Block, step).tile(*tile).to(Block).epilog(RF, *tilings).split(step).load(A, SH).load(B, SH)
    return chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [float32, float64, int32], ids=str)
def test_blocks(dtype):
    for parts, step, sizes in itertools.product((1, 2, 3), (1, 8), ((20, 37, 50), (16, 32, 8), (1, 1, 1))):
        kernel = verify(blocks(parts, step), MatMul(*sizes, dtype=dtype)(GL, GL, GL)(Kernel))
        assert making.effect_of(kernel, "zeroed") == ("C",)
        assert int(str(kernel.grid)) == parts * -(-sizes[0] // 16) * -(-sizes[1] // 32)


def test_blocks_in_other_orders():
    spec = MatMul(70, 90, 40)(GL, GL, GL)(Kernel)
    chain = blocks(3, 8)
    verify(chain.at(Tile).refine(Rasterize(2)), spec)
    verify(chain.at(Tile).refine(TileOrder(ColMajor)), spec)
    verify(chain.at(Tile).refine(Rasterize(2)), MatMul(*SYMBOLS)(GL, GL, GL)(Kernel), M=70, N=90, K=41)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "accumulator", "partial"),
    [
        (float16, None, float32), (bfloat16, None, float32), (float32, None, float32), (float16, float32, float32),
        (float16, float16, float16), (float64, None, float64),
    ],
)  # fmt: skip
def test_partial_results_are_of_32_bits_or_as_the_spec_accumulates(dtype, accumulator, partial):
    spec = MatMul(16, 32, 64, dtype=dtype, c_dtype=dtype, accumulator=accumulator)(GL, GL, GL)(Kernel)
    assert tiled(2, 16)(spec).program("sm_90").walked.buffer("p_sh").dtype == partial


@pytest.mark.parametrize(("parts", "named"), [(4, False), (3, True)])
def test_a_part_has_a_separate_name_only_if_units_are_idle(parts, named):
    """Otherwise the index of the unit is that of the part, also in a group of warps that is not the whole block."""
    tilings = (Init.tile(4, 4).to(Lane).tile(1, 1).done(), Move.tile(4, 4).to(Lane).tile(1, 1).done())
    chain = MatMul.tile(32, 32).to(Block).tile(16, 32).to(Warpgroup).split_k(parts, Warp, 8).epilog(RF, *tilings).split(8)
    chain = chain.tile(4, 4).to(Lane).split(1).tile(1, 1).done()
    kernel = chain(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_90").walked
    assert kernel.workers == 256
    assert ("warp_part" in {one.var.name for one in ir.statements(kernel.body) if isinstance(one, ir.Let)}) == named


def test_texts_name_the_zeroing_of_c():
    spec = MatMul(20, 37, 50)(GL, GL, GL)(Kernel)
    text = blocks(3, 8)(spec).cuda()
    assert "// requires: C is zero before the launch" in text
    assert "atomicAdd(" in text
    a, b = (np.asfortranarray(arrays_of(spec)[name]) for name in "AB")
    out = np.full((20, 37), 9, np.float32, order="F")
    assert np.array_equal(blocks(3, 8)(spec).compile()(a, b, out=out), a @ b), "zeroed by the launch"


# ---------------------------------------------------------------------------------------------- checks


@both
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda one: "".join(str(part)[0] for part in one.values()))
def test_clean(name, layouts):
    for sizes in ((256, 256, 1024), (100, 50, 300), (17, 33, 65), SYMBOLS):
        assert safety(library(name).strategy(library(name).spec(*sizes, **layouts)).program().lowered) == ()


@pytest.mark.parametrize("order", [ColMajor, RowMajor], ids=str)
@pytest.mark.parametrize(("bm", "bn"), [(16, 16), (32, 16), (16, 32), (32, 32), (64, 32)])
def test_no_bank_conflicts(bm, bn, order):
    strategy = library("split_k").strategy.with_(bm=bm, bn=bn, stages=2)
    findings = check(strategy(library("split_k").spec(256, 256, 1024, c_dtype=float32, C=order)).program().ir)
    assert [one.message for one in findings if one.kind == "banks" and one.severity != "note" and one.buffer == "p_sh"] == []


def without(kernel, number):
    """The kernel without its `number`-th block barrier."""
    count = iter(range(100))

    def keep(statement):
        return not (isinstance(statement, ir.Barrier) and statement.scope == ir.BLOCK_SCOPE) or next(count) != number

    def rewritten(body):
        return tuple(attrs.evolve(one, body=rewritten(one.body)) if isinstance(one, ir.For) else one for one in body if keep(one))

    return attrs.evolve(kernel, body=rewritten(kernel.body))


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_missing_barrier_before_the_sum_is_found(target):
    """Parts wait for each other once, and this wait is necessary."""
    spec = library("split_k").spec(40, 40, 300)
    kernel = library("split_k").strategy(spec).program(target).ir
    barriers = [one for one in ir.statements(kernel.body) if isinstance(one, ir.Barrier) and one.scope == ir.BLOCK_SCOPE]
    assert len(barriers) == 1 and "p_sh" in barriers[0].reason
    planted = without(kernel, 0)
    assert {one.buffer for one in check_races(AccessTrace(planted)) if one.severity == "error"} == {"p_sh"}
    with pytest.raises(SimulationError, match="race on p_sh"):
        simulate(planted, {name: array for name, array in arrays_of(spec).items() if name != "C"})


def with_plain_access(kernel, verb):
    """The kernel with a plain copy from or to C after each atomic addition."""
    add = next(one for one, _ in ir.execs(kernel.body) if one.atomic)
    move = Move.on(Thread, add.spec.src, add.spec.dst)
    if verb == "reads":
        move = Move.on(Thread, add.spec.dst, add.spec.src)
    source, target = add.accesses
    accesses = (source, target) if verb == "writes" else (attrs.evolve(target, write=False), attrs.evolve(source, write=True))
    plain = attrs.evolve(add, spec=move, accesses=accesses, instruction=ThreadMove("Move"))

    def next_to(body):
        for stmt in body:
            yield attrs.evolve(stmt, body=tuple(next_to(stmt.body))) if isinstance(stmt, ir.For) else stmt
            if stmt is add:
                yield plain

    return attrs.evolve(kernel, body=tuple(next_to(kernel.body)))


@pytest.mark.parametrize("verb", ["writes", "reads"])
def test_plain_accesses_next_to_additions_are_found(verb):
    spec = MatMul(16, 32, 50)(GL, GL, GL)(Kernel)
    planted = with_plain_access(blocks(3, 8)(spec).program().ir, verb)
    assert any(one.severity == "error" and one.buffer == "C" for one in check_races(AccessTrace(planted)))
    for order in (None, random.Random(1)):
        with pytest.raises(SimulationError, match="race on C"):
            simulate(planted, {name: array for name, array in arrays_of(spec).items() if name != "C"}, order=order)


@pytest.mark.parametrize("verb", ["writes", "reads"])
def test_additions_of_one_block_need_order_with_plain_accesses(verb):
    """Threads that add to the same element do not race; a thread that reads or writes it does."""
    spec = AtomicAdd(64, 1, dtype=int32)(GL, GL)(Kernel)
    chain = spec.tile(64, 1).to(Block).tile(1, 1).to(Thread).done()
    kernel = chain.program().ir

    def onto_one(body):
        """All threads add to element 0."""
        for stmt in body:
            if isinstance(stmt, ir.Exec):
                source, target = stmt.accesses
                stmt = attrs.evolve(stmt, accesses=(source, attrs.evolve(target, base=tuple(part * 0 for part in target.base))))
            yield stmt

    planted = attrs.evolve(kernel, body=tuple(onto_one(kernel.body)))
    data = {"src": np.arange(64, dtype=np.int32).reshape(64, 1), "dst": np.ones((64, 1), np.int32)}
    assert safety(planted) == ()
    assert simulate(planted, data).outputs["dst"][0, 0] == 1 + np.arange(64).sum()
    worse = with_plain_access(planted, verb)
    if verb == "reads":  # every thread reads element 0 into its own element
        worse = attrs.evolve(worse, buffers=tuple(attrs.evolve(one, written=True) for one in worse.buffers))
    assert any(one.severity == "error" and one.buffer == "dst" for one in check_races(AccessTrace(worse)))
    with pytest.raises(SimulationError, match="race on dst"):
        simulate(worse, data)


def test_uninitialized_sums_are_found():
    spec = MatMul(16, 32, 50, dtype=int32, accumulate=True)(GL, GL, GL)(Kernel)
    kernel = blocks(3, 8)(spec).program().ir
    with pytest.raises(SimulationError, match="read before any write"):
        simulate(kernel, {name: array for name, array in arrays_of(spec).items() if name != "C"})


# ---------------------------------------------------------------------------------------------- refusals


def refused(strategy, spec, match, kind=FireironError):
    with pytest.raises(kind, match=match) as caught:
        _ = strategy(spec).program("sm_90").ir
    return caught.value


def test_refusals():
    plain = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)
    float16_spec = MatMul(64, 64, 64, dtype=float16)(GL, GL, GL)(Kernel)
    assert "c_dtype=float32" in refused(blocks(2, 8), float16_spec, "float16, so the addition of each block would round").hint
    refused(blocks(2, 8), MatMul(64, 64, 64, dtype=bfloat16)(GL, GL, GL)(Kernel), "bfloat16")
    refused(MatMul.split_k(2, Warp, 8), plain, "not below Kernel")
    refused(MatMul.tile(16, 16).to(Block).split_k(2, Block, 8), plain, "not below Block")
    refused(MatMul.tile(16, 16).to(Block).split(8).split_k(3, Warp, 4), plain, "3 parts do not divide the 2 chunks")
    refused(MatMul.tile(16, 16).to(Block).split(8).split_k(2, Warp, 3), plain, "3 does not divide")
    refused(MatMul.split_k(2, Block, 8).split_k(2, Block, 8), plain, "inside split_k")
    refused(MatMul.split_k(2, Block, 8).tile(16, 16).to(Block).split_k(2, Warp, 8), plain, "inside split_k")
    refused(MatMul.tile(16, 16).to(Block).split_k(2, Block, 8).tile(16, 16).to(Warp), plain, "not below Block")
    no_epilog = MatMul.split_k(2, Block, 8).tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    assert "epilog" in refused(no_epilog, plain, "several blocks accumulate").hint
    refused(MatMul.split_k(2, Block, 8, Reduction.tile(1, 1).done()), plain, "remove combine=")
    refused(tiled(40, 8), plain, "1280 threads")
    refused(tiled(65, 8), plain, "1 ... 64")
    refused(MatMul.tile(16, 16).to(Block).tile(16, 16).to(Warpgroup).split_k(5, Warp, 8), plain, "has 4 units of level Warp")
    refused(MatMul.split_k(2, Block, 8).done("// nothing"), plain, "several blocks add|tile|Kernel")
    for wrong in (0, -1, 1.5, True, "2", None):
        with pytest.raises(FireironError):
            MatMul.split_k(wrong, Warp, 8)
        with pytest.raises(FireironError):
            MatMul.split_k(2, Warp, wrong)
        with pytest.raises(FireironError):
            MatMul.split_k(2, wrong, 8)
    with pytest.raises(FireironError, match="Reduction"):
        MatMul.split_k(2, Warp, 8, Reduction)
    with pytest.raises(FireironError):
        _ = Move(8, 8)(GL, GL)(Kernel).tile(8, 8).to(Block).split_k(2, Warp, 8).result


def test_pascal_is_the_first_to_add_doubles():
    spec = MatMul(64, 64, 64, dtype=float64)(GL, GL, GL)(Kernel)
    with pytest.raises(DecompositionError, match="no atomic addition of float64"):
        _ = blocks(2, 8)(spec).program("sm_52").ir
    _ = blocks(2, 8)(spec).program("sm_60").ir


@pytest.mark.parametrize("blocks", [(), ("--blocks", "3")], ids=["all", "sample"])
@both
def test_run(name, blocks, capsys):
    """A sample of blocks contains all parts of its tiles: only their sum can be compared."""
    from fireiron.cli import main

    assert main(["run", name, "--simulate", "-M", "130", "-N", "70", "-K", "300", *blocks]) == 0, capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- values


@both
def test_values(name):
    strategy = library(name).strategy
    assert eval(repr(strategy)) == strategy
    assert Strategy.from_json(strategy.to_json()) == strategy
    assert eval(repr(strategy.unrefined())) == strategy.unrefined()
    step = strategy.at(SplitK).step
    assert eval(f"MatMul.{step.label()}").steps == (step,)
    assert strategy.with_(num_splits=4).at(SplitK).step.parts == 4


def test_specs_are_stored():
    from fireiron.language.store import dumps, loads_spec

    chain = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).split_k(2, Warp, 64)
    part = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).split_k(2, Block, 64)
    for spec in (chain.result, part.result, Reduction(8, 8, 2)(GL, GL)(Kernel), AtomicAdd(8, 8)(RF, GL)(Warp)):
        assert loads_spec(dumps(spec)) == spec
    assert part.result.in_parts and not chain.result.in_parts


# ---------------------------------------------------------------------------------------------- compilers


@pytest.mark.sampled(6)
@needs_nvrtc
@both
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
def test_compiles(name, target):
    for sizes in (library(name).SIZES, (100, 50, 300), SYMBOLS):
        program = library(name).strategy(library(name).spec(*sizes)).program(target)
        compiled = compile_cuda(program.cuda, target)
        assert sizes == SYMBOLS or compiled.resources[program.name].spill_stores == 0
        if name == "split_k_blocks":
            assert re.search(r"(?:red|atom)\.global\.add(?:\.v[24])?\.f32", compiled.ptx)


@needs_nvrtc
def test_types_compile():
    for dtype in (float32, float64, float16, bfloat16, int32):
        spec = MatMul(20, 37, 50, dtype=dtype)(GL, GL, GL)(Kernel)
        compile_cuda(tiled(3, 8)(spec).cuda("sm_80"), "sm_80")
        if dtype not in (float16, bfloat16):
            compile_cuda(blocks(3, 8)(spec).cuda("sm_80"), "sm_80")
    compile_cuda(
        tiled(3, 8)(MatMul(20, 37, 50, dtype=float16, accumulator=float32, accumulate=True)(GL, GL, GL)(Kernel)).cuda("sm_80"), "sm_80"
    )


def test_specs_without_a_matmul_cannot_be_split():
    """Distinguished from a definition around a matmul, which computes with whole sums."""
    for definition in (fused_examples.specs()["layernorm"][1], Move(64, 64)(GL, GL)(Kernel)):
        with pytest.raises(FireironError, match="is not a matrix multiplication"):
            definition.split_k(2, Block, 16).done().cuda("sm_80")


@pytest.mark.parametrize("accumulate", [False, True])
def test_blocks_add_once_to_the_values_of_c(accumulate):
    """Each block starts at zero; C is added to, or zeroed before."""
    chain = (
        MatMul.split_k(3, Block, 8).tile(16, 16).to(Block).epilog(RF, Init.tile(4, 4).to(Thread).done(), Move.tile(4, 4).to(Thread).done())
    )
    chain = chain.split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    kernel = verify(chain, MatMul(20, 37, 50, accumulate=accumulate)(GL, GL, GL)(Kernel))
    assert making.effect_of(kernel, "zeroed") == (() if accumulate else ("C",))
