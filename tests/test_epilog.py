"""`epilog` without an init and a store: both follow the compute path if that determines the owner of each element.

The reference is the same strategy with explicit distribution, as in Listings 1 and 2 of the paper, which abbreviate it by `_`.
"""

import random
import re

import attrs
import making
import numpy as np
import pytest

from fireiron import *
from fireiron.ir import execs
from fireiron.language.dividing import divide, loop_over
from fireiron.language.substrategy import divisors
from fireiron.lower.distribute import accesses_of
from fireiron.sim import simulate

COPY = Move.tile(1, 1).to(Thread).done()
ELEMENT = Move.tile(1, 1).done()


def distributed(start, *tiles):
    """An init or a store by tiles, as `(sizes, level)`; level None for sequential tiles."""
    for sizes, level in tiles:
        start = start.tile(*sizes) if level is None else start.tile(*sizes).to(level)
    return start.done()


def spelled(*tiles):
    """The init and the store that distribute C by tiles."""
    return distributed(Init, *tiles), distributed(Move, *tiles)


def block(*epilog, rows=64, columns=64, step=8):
    """A block's tile of C in registers, with A and B in shared memory."""
    return MatMul.tile(rows, columns).to(Block).epilog(RF, *epilog).split(step).load(A, SH, COPY).load(B, SH, COPY)


def in_registers(chain):
    """The residual matmul of a thread: FFMA on single elements, from registers."""
    return chain.split(1).load(A, RF, ELEMENT).load(B, RF, ELEMENT).tile(1, 1).done()


def operands(spec):
    generator = np.random.default_rng(3)
    return {name: generator.integers(-3, 4, [int(str(size)) for size in spec.operands[name].shape]) for name in ("A", "B")}


def results(program, spec):
    """C of the simulator, and of NumPy."""
    arrays = operands(spec)
    given = {name: array.astype(spec.operands[name].dtype.numpy) for name, array in arrays.items()}
    return simulate(program.ir, given).outputs["C"], arrays["A"] @ arrays["B"]


def owners(program, buffer="c_rf"):
    """Per kind of spec: which thread owns which elements of the accumulator in which registers."""
    kernel = program.ir
    triples = {}
    for statement, loops in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer == buffer:
                ownership = accesses_of(kernel, kernel.buffer(buffer), [(statement, loops, access)])
                columns = (one.tolist() for one in (ownership.threads, ownership.registers, ownership.elements))
                triples.setdefault(statement.spec.title, set()).update(zip(*columns))
    return triples


def same(plain, explicit, spec, target="sm_80"):
    """Check that both strategies equal NumPy, with each element in the same register of the same thread."""
    programs = [strategy(spec).program(target) for strategy in (plain, explicit)]
    for program in programs:
        outputs, wanted = results(program, spec)
        np.testing.assert_array_equal(outputs, wanted)
    followed, written = map(owners, programs)
    assert followed == written and {"Init", "MatMul", "Move"} <= set(followed)
    assert len({element for _, _, element in followed["Move"]}) == np.prod([int(str(size)) for size in block_tile(programs[0])])
    return programs


def block_tile(program):
    return program.ir.buffer("c_rf").tensor.shape


PROBLEMS = [(128, 64, 16), (100, 70, 20), (64, 64, 8)]


@pytest.mark.parametrize("sizes", PROBLEMS, ids=str)
def test_listing_2_with_default_epilog(sizes):
    """Warps, threads and single elements: the default init and store equal those that the paper abbreviates."""
    explicit = spelled(((32, 32), Warp), ((8, 4), Thread), ((1, 1), None))
    plain, written = (in_registers(block(*epilog).tile(32, 32).to(Warp).tile(8, 4).to(Thread)) for epilog in ((), explicit))
    followed, spelled_out = same(plain, written, MatMul(*sizes)(GL, GL, GL)(Kernel))
    assert followed.cuda.partition("{")[2] == spelled_out.cuda.partition("{")[2]


def test_library_listing_2_with_default_epilog():
    from strategies.listing_2 import spec, strategy

    plain = strategy.at(Epilog).replace(Epilog(RF))
    assert plain != strategy and "epilog(RF)" in repr(plain)
    problem = spec(256, 128, 24)
    assert plain(problem).cuda().partition("{")[2] == strategy(problem).cuda().partition("{")[2]


@pytest.mark.parametrize("sizes", [(64, 64, 12), (40, 24, 12)], ids=str)
def test_listing_1_with_an_accumulator(sizes):
    """No split: tiles of a warp and of a thread, and the sum over k in the residual matmul."""
    explicit = spelled(((32, 16), Warp), ((4, 4), Thread), ((1, 1), None))
    plain, written = (
        MatMul.tile(64, 32).to(Block).epilog(RF, *epilog).load(A, SH, COPY).load(B, SH, COPY).tile(32, 16).to(Warp).tile(4, 4).to(Thread)
        for epilog in ((), explicit)
    )
    same(in_registers(plain), in_registers(written), MatMul(*sizes)(GL, GL, GL)(Kernel))


@pytest.mark.parametrize("order", [ColMajor, RowMajor], ids=str)
@pytest.mark.parametrize("sizes", [(64, 64, 8), (61, 35, 11)], ids=str)
def test_default_epilog_with_strided_and_permuted_lanes(order, sizes):
    """As in Listing 4: strided thread tiles, lanes in another order, permuted."""
    tile = Strided((2, 16), (4, 16))
    distribute = lambda chain: chain.tile(32, 32).to(Warp).tile(tile).to(Lane).layout(order).swizzle(lambda uid: uid ^ 3)
    explicit = (distribute(Init).tile(1, 1).done(), distribute(Move).tile(1, 1).done())
    plain, written = (in_registers(distribute(block(*epilog))) for epilog in ((), explicit))
    same(plain, written, MatMul(*sizes)(GL, GL, GL)(Kernel))


def test_default_epilog_with_sequential_tiles():
    """Sequential tiles before and after the distributed ones are followed in their order."""
    explicit = spelled(((32, 64), None), ((16, 32), Warp), ((8, 8), None), ((2, 1), Lane), ((1, 1), None))
    chain = lambda *epilog: block(*epilog).tile(32, 64).tile(16, 32).to(Warp).tile(8, 8).tile(2, 1).to(Lane)
    same(in_registers(chain()), in_registers(chain(*explicit)), MatMul(96, 70, 12)(GL, GL, GL)(Kernel))


def test_default_epilog_with_idle_threads():
    """More lanes than tiles, and more tiles than lanes: the compute path determines which lanes take part."""
    explicit = spelled(((20, 12), Warp), ((5, 2), Lane), ((1, 1), None))
    chain = lambda *epilog: block(*epilog, rows=40, columns=24).tile(20, 12).to(Warp).tile(5, 2).to(Lane)
    same(in_registers(chain()), in_registers(chain(*explicit)), MatMul(77, 50, 9)(GL, GL, GL)(Kernel))


def test_epilog_with_only_init_or_store():
    init, store = spelled(((32, 32), Warp), ((8, 4), Thread), ((1, 1), None))
    chain = lambda *epilog: in_registers(block(*epilog).tile(32, 32).to(Warp).tile(8, 4).to(Thread))
    problem = MatMul(100, 70, 20)(GL, GL, GL)(Kernel)
    for given in ((init, None), (None, store)):
        same(chain(*given), chain(init, store), problem)


def test_default_epilog_with_another_accumulator_type():
    problem = MatMul(48, 40, 12, dtype=float16, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)
    program = in_registers(block(float32).tile(32, 32).to(Warp).tile(8, 4).to(Thread))(problem).program("sm_80")
    assert program.ir.buffer("c_rf").dtype == float32
    outputs, wanted = results(program, problem)
    np.testing.assert_array_equal(outputs, wanted)


def test_default_epilog_with_float16_pairs():
    """A thread that computes two elements at once also initializes and stores two at once."""
    chain = block(rows=32, columns=32).tile(16, 16).to(Warp).tile(4, 2).to(Lane).split(1).load(A, RF, Move.tile(2, 1).done())
    strategy = chain.load(B, RF, ELEMENT).tile(2, 1).unroll().done(HFMA2)
    problem = MatMul(64, 32, 8, dtype=float16, A=ColMajor, B=RowMajor)(GL, GL, GL)(Kernel)
    program = strategy(problem).program("sm_80")
    outputs, wanted = results(program, problem)
    np.testing.assert_array_equal(outputs, wanted)
    assert {str(one.spec) for one, _ in execs(program.ir.body) if one.spec.title == "Init"} == {"Init(2,1)(RF)(Lane)"}


def test_accumulated_c_is_loaded_with_the_same_owners():
    problem = MatMul(64, 64, 8, accumulate=True)(GL, GL, GL)(Kernel)
    program = in_registers(block().tile(32, 32).to(Warp).tile(8, 4).to(Thread))(problem).program("sm_80")
    arrays = {**operands(problem), "C": np.arange(64 * 64).reshape(64, 64) % 7}
    outputs = simulate(program.ir, {name: array.astype(np.float32) for name, array in arrays.items()}).outputs["C"]
    np.testing.assert_array_equal(outputs, arrays["A"] @ arrays["B"] + arrays["C"])


HALF = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor, "C": RowMajor}


@pytest.mark.parametrize("sizes", [(64, 64, 32), (72, 44, 48)], ids=str)
@pytest.mark.parametrize(("target", "instruction"), [("sm_80", None), ("sm_70", HMMA_884_F32_TN)], ids=str)
def test_mma_determines_the_epilog(sizes, target, instruction):
    """For warps, and for the quad-pairs of Volta: the epilog follows the tiles of `mma_tile` and then the lane maps."""
    last = () if instruction is None else (((8, 8), QuadPair),)
    explicit = spelled(((32, 16), Warp), ((16, 16), None), *last)
    chain = lambda *epilog: (
        MatMul.tile(32, 32).to(Block).epilog(RF, *epilog).split(16).load(A, SH).load(B, SH).tile(32, 16).to(Warp).tile(16, 16).unroll()
        .mma_tile(instruction).load(A, RF, Move.done()).load(B, RF, Move.done()).done()
    )  # fmt: skip
    same(chain(), chain(*explicit), MatMul(*sizes, **HALF)(GL, GL, GL)(Kernel), target)


def test_default_epilog_with_wmma_fragments():
    fragment = FR(16, 16, 16)
    chain = MatMul.tile(32, 32).to(Block).epilog(fragment).split(16).tile(16, 16).to(Warp)
    strategy = chain.load(A, fragment, Move.done()).load(B, fragment, Move.done()).done()
    problem = MatMul(64, 32, 32, **HALF)(GL, GL, GL)(Kernel)
    outputs, wanted = results(strategy(problem).program("sm_80"), problem)
    np.testing.assert_array_equal(outputs, wanted)


def test_default_epilog_after_split_k():
    """After `split_k` each unit owns its partial sums; C belongs to the units that reduce them."""
    combine = Reduction.tile(8, 4).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done()
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).split_k(2, Warp, 4, combine).split(4).tile(4, 4).to(Lane).split(1).tile(1, 1).done()
    for problem in (MatMul(32, 32, 32)(GL, GL, GL)(Kernel), MatMul(20, 35, 21)(GL, GL, GL)(Kernel)):
        program = chain(problem).program("sm_80")
        outputs, wanted = results(program, problem)
        np.testing.assert_array_equal(outputs, wanted)
    owned = owners(program)
    assert owned["Init"] == owned["Reduction"] == owned["Move"]


def test_default_epilog_with_atomic_add():
    chain = MatMul.split_k(2, Block, 8).tile(16, 16).to(Block).epilog(RF).split(8).tile(4, 2).to(Thread).split(1).tile(1, 1).done()
    problem = MatMul(20, 35, 30)(GL, GL, GL)(Kernel)
    outputs, wanted = results(chain(problem).program("sm_80"), problem)
    np.testing.assert_array_equal(outputs, wanted)


def test_accumulator_in_shared_memory_uses_coalesced_copies():
    """All threads share the accumulator, so it has no owners, and the default copies stay coalesced."""
    chain = MatMul.tile(16, 16).to(Block).epilog(SH).split(8).tile(4, 2).to(Thread).split(1).tile(1, 1).done()
    problem = MatMul(20, 35, 30)(GL, GL, GL)(Kernel)
    program = chain(problem).program("sm_80")
    node = program.tree.child("body").child("store")
    assert node.step == Tile((1, 1)).refined(To(Thread))
    outputs, wanted = results(program, problem)
    np.testing.assert_array_equal(outputs, wanted)


def test_incomplete_strategy_has_default_copies():
    """An incomplete strategy determines no owners. It is not refused and not reported as complete."""
    program = block()(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).program()
    assert not program.tree.complete and program.tree.residual.title == "MatMul"


# ---------------------------------------------------------------------------------------------- refusals


def refused(strategy, fragment, spec=None):
    """The text of the refusal, which must name a line of this file."""
    with pytest.raises(DecompositionError, match=fragment) as caught:
        _ = strategy(spec or MatMul(32, 32, 16)(GL, GL, GL)(Kernel)).program("sm_80").ir
    text = str(caught.value)
    assert "test_epilog.py" in text and re.search(r"Init\.tile|the init and the store|distribute it like the compute path", text), text
    return text


def test_group_level_micro_kernel_determines_no_owners():
    text = "for (int e = threadIdx.x; e < 256; e += blockDim.x) c_at(e % 16, e / 16) = a_at(e % 16, 0) * b_at(0, e / 16);"
    refused(MatMul.tile(16, 16).to(Block).epilog(RF).split(8).done(MicroKernel("whole", text, threads=32)), "only the text of")


@attrs.frozen
class SplitMInTwo(Decomposition):
    """Two halves of m, one after the other."""

    verb = "halves"

    def expand(self, spec, context):
        views, digits = divide(spec, {"m": (int(str(spec.size("m"))) // 2, None)}, "halves")
        draft = context.draft()
        views, program, _ = loop_over(spec, views, digits, False, draft, (making.hole("body"),))
        return draft.expansion((Child("body", spec.with_operands(**views)),), program)


def test_user_defined_step_is_followed():
    """The effect of a user-defined step on C follows from the accesses of the instruction below it."""
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).then(SplitMInTwo()).tile(1, 2).to(Thread).split(1).tile(1, 1).done()
    problem = MatMul(20, 35, 6)(GL, GL, GL)(Kernel)
    program = chain(problem).program("sm_80")
    outputs, wanted = results(program, problem)
    np.testing.assert_array_equal(outputs, wanted)
    owned = owners(program)
    assert owned["Init"] == owned["MatMul"] == owned["Move"]


def test_explicit_store_with_other_owners_is_refused():
    """An explicit store is used as given, and refused if it distributes C differently."""
    other = Move.tile(32, 32).to(Warp).tile(4, 8).to(Thread).tile(1, 1).done()
    chain = in_registers(block(None, other).tile(32, 32).to(Warp).tile(8, 4).to(Thread))
    refused(chain, "distributes elements over threads differently", MatMul(64, 64, 8)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- generated nests of tiles


def strided(draw, sizes, whole):
    """Tiles of non-adjacent elements: the distance of their chunks is the number of tiles."""
    chunks = [draw.choice(divisors(size)) for size in sizes]
    return Strided(*((chunk, chunk * total // size) for chunk, total, size in zip(chunks, whole, sizes, strict=True)))


def nested(seed):
    """A matmul with `epilog(RF)` above generated tiles: for warps, lanes, quad pairs and threads, or sequential, with splits between."""
    draw = random.Random(seed)
    sizes = list(draw.choice(((8, 16), (16, 8), (16, 32), (32, 32), (48, 24))))
    chain, splits, placed = MatMul.tile(*sizes).to(Block), [8, 4, 2, 1], draw.random() < 0.6

    def split(chain):
        return chain.split(splits.pop(0)) if splits and draw.random() < 0.4 else chain

    chain = split(chain.epilog(RF)) if placed else chain
    if placed and splits[0] != 8 and draw.random() < 0.5:
        chain = chain.load(A, SH, COPY).load(B, SH, COPY)
    for level, most in draw.choice(
        (((Thread, 64),), ((Warp, 4), (Lane, 32)), ((Warp, 4), (Thread, 32)), ((Warp, 4), (QuadPair, 4), (Thread, 8)))
    ):
        for to in ((None, 64), (level, most)) if draw.random() < 0.4 else ((level, most),):
            legal = [(m, n) for m in divisors(sizes[0]) for n in divisors(sizes[1]) if sizes[0] // m * (sizes[1] // n) <= to[1]]
            whole, sizes = sizes, list(draw.choice(legal))
            tile = chain.tile(strided(draw, sizes, whole)) if to[0] in (Lane, Thread) and draw.random() < 0.5 else chain.tile(*sizes)
            tile = tile if to[0] is None else tile.to(to[0])
            tile = tile.layout(draw.choice((RowMajor, ColMajor))) if to[0] and draw.random() < 0.5 else tile
            chain = tile.unroll() if draw.random() < 0.3 else tile
        if placed:
            chain = split(chain)
        elif draw.random() < 0.4 or level in (Lane, Thread):
            chain, placed = chain.epilog(RF), True
    if splits:
        chain = chain.split(1)
    for operand in (A, B):
        chain = chain.load(operand, RF, Move.done()) if draw.random() < 0.5 else chain
    orders = {name: draw.choice((RowMajor, ColMajor)) for name in "ABC"}
    M, N = draw.choice((40, 48)), draw.choice((33, 64))
    return chain.tile(1, 1).done(), MatMul(M, N, draw.choice((7, 8)), **orders)(GL, GL, GL)(Kernel)


def follows_any_nest(seed):
    strategy, spec = nested(seed)
    outputs, wanted = results(strategy(spec).program("sm_80"), spec)
    np.testing.assert_array_equal(outputs, wanted)


@pytest.mark.parametrize("seed", range(8))
def test_default_epilog_of_generated_nests(seed):
    follows_any_nest(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8, 300))
def test_default_epilog_of_many_generated_nests(seed):
    follows_any_nest(seed)


def test_default_copies_are_not_printed():
    """The type of the accumulators is not printed either if it is the default."""
    assert MatMul.epilog(RF).steps[-1].label() == "epilog(RF)"
    assert MatMul.epilog(RF, float32).steps[-1].label() == "epilog(RF, float32)"
    assert "Move.tile(4, 4)" in MatMul.epilog(RF, Init.done(), Move.tile(4, 4).to(Thread).done()).steps[-1].label()
