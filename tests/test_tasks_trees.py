"""Short forms of programs and mappings: trees that follow from tiles, and strategies instead of instances.

Mappings of the short form equal those of the long form, and their kernels have the same text.
"""

import re
from collections import Counter

import attrs
import numpy
import pytest

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.errors import FireironError
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks import mapping as places
from fireiron.tasks import trees
from fireiron.tasks.step import Reader

program = Tasks(gemm.gemm_host, gemm.gemm_block, *trees.GEMM, *trees.CLEAR, *trees.COPY)


def ampere(U=128, V=128, W=32, rows=2, columns=2, stages=3):
    swizzled = {name: Stored(swizzle=True) for name in "AB"}
    warps = trees.tile(BLOCK, U // rows, V // columns, A=SHARED, B=SHARED, layouts=swizzled)
    fragments = trees.tile(WARP, 16, 8, A=REGISTER, B=REGISTER)
    tree = trees.Tree("gemm", (U, V), [warps, trees.steps(WARP, 16), fragments, trees.parts(WARP, "mma.m16n8k16")])
    return trees.product(tree, W, AMPERE, pipeline=stages)


def ffma(U=128, V=128, W=8, warp=(64, 32), lane=(8, 8)):
    blocks = trees.tile(BLOCK, *warp, A=SHARED, B=SHARED)
    levels = [blocks, trees.tile(WARP, *lane), trees.steps(THREAD, 1), trees.leaf(A=REGISTER, B=REGISTER)]
    return trees.product(trees.Tree("gemm", (U, V), levels), W, AMPERE)


def hopper(U=128, V=256, W=64, WGS=2, stages=3):
    levels = [trees.tile(BLOCK, U // WGS, V, A=SHARED, B=SHARED), trees.parts(WARPGROUP, "wgmma")]
    return trees.product(trees.Tree("gemm", (U, V), levels), W, pipeline=stages, warpspecialize=True)


def float16_gemm(M, N, K):
    return MatMul(M, N, K, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def text(tasks_of, mapping, target, size=(128, 64, 72)):
    return tasks.strategy(tasks_of, mapping)(float16_gemm(*size)).cuda(target)


@pytest.mark.parametrize(
    ("short", "long", "target"),
    [
        (ampere(32, 32, 32, 2, 2, 2), gemm.ampere(32, 32, 32, 2, 2, 2), "sm_80"),
        (ffma(16, 16, 4, (8, 16), (4, 4)), gemm.ffma(16, 16, 4, (2, 1), (2, 4)), "sm_80"),
        (hopper(128, 64, stages=2), gemm.hopper(128, 64, stages=2), "sm_90a"),
    ],
    ids=["ampere", "ffma", "hopper"],
)
def test_the_short_form_is_the_long_one(short, long, target):
    """As values, except for the order of the instances, and as text."""
    order = [one.instance for one in short.instances]
    assert attrs.evolve(long, instances=sorted(long.instances, key=lambda one: order.index(one.instance))) == short
    assert text(program, short, target) == text(gemm.program, attrs.evolve(long, instances=short.instances), target)


def test_usual_sizes_too():
    assert ampere() == gemm.ampere() and hopper() == gemm.hopper()


def test_places_and_names_of_a_tree():
    """A copy has the levels of tiles without the steps; a tensor below registers has no memory until the leaf."""
    whole = ampere()
    assert [whole[name].mems for name in ("gemm_warp", "gemm_step", "gemm_mma", "gemm_thread")] == [
        (NONE, SHARED, SHARED), (NONE, REGISTER, REGISTER), (NONE, NONE, NONE), (REGISTER, REGISTER, REGISTER),
    ]  # fmt: skip
    assert [one.mems for one in whole.instances if one.variant.startswith("copy")] == [(GLOBAL, NONE)] * 3 + [(GLOBAL, REGISTER)]
    assert "copy_steps" not in {one.instance for one in whole.instances}


WRONG = {
    "tiles that do not divide": (lambda: ampere(96, 128, rows=5), "tiles of 19 x 64 do not divide the 96 x 128 tile of BLOCK"),
    "not an operand of the instruction": (lambda: hopper(96, 64), "48 x 64 elements are not an operand of the instruction"),
    "an unknown instruction": (
        lambda: list(trees.Tree("gemm", (64, 64), [trees.parts(WARP, "mma")])), "partition_by_mma: the instruction is unknown",
    ),
    "a tensor of another task": (
        lambda: trees.Tree("gemm", (64, 64), [trees.tile(BLOCK, 8, 8, D=SHARED)]), "gemm has no tensor D",
    ),
    "no shape": (lambda: trees.Tree("gemm", ("64", 64), [trees.tile(BLOCK, 8, 8)]), "a shape of two sizes, and the levels"),
    "no tree": (lambda: trees.product(WARPS, 8), "product requires a Tree and a positive step of k"),
    "no argument": (lambda: trees.tile(BLOCK, rows=8), "tile: missing a required argument"),
    "no level": (lambda: trees.Tree("gemm", (64, 64), ["tile"]), "a shape of two sizes, and the levels"),
    "no processor": (lambda: trees.tile("BLOCK", 8, 8), "tile requires a processor and positive sizes"),
    "half a tile": (lambda: trees.tile(BLOCK, 8, 0), "tile requires a processor and positive sizes"),
    "no field of an instance": (lambda: trees.tile(BLOCK, 8, 8, swizzle=True), "an instance has no field swizzle"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_tree(name):
    call, message = WRONG[name]
    with pytest.raises(FireironError, match=message) as caught:
        call()
    assert "test_tasks_trees.py:" in str(caught.value)


# ---------------------------------------------------------------------------------------------- strategies for instances


def performed(mapping, strategy, variant="gemm_thread"):
    """The mapping in which a strategy replaces the GEMM of the warps and the instances inside it."""
    tile = attrs.evolve(mapping["gemm_tile"], variant=variant, tunables={}, calls=[], strategy=strategy)
    inside = [one.instance for one in mapping.instances if one.instance.startswith("gemm_")][3:]
    kept = [tile if one.instance == "gemm_tile" else one for one in mapping.instances if one.instance not in inside]
    return attrs.evolve(mapping, instances=kept)


WARPS = MatMul.tile(16, 16).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 8).unroll().done()
GROUPS = MatMul.tile(64, 64).to(Warpgroup).done()
BRIDGED = {
    "ampere": (ampere(32, 32, 32, 2, 2, 2), WARPS, "sm_80", (40, 64, 72)),
    "hopper": (hopper(128, 64, stages=2), GROUPS, "sm_90a", (136, 64, 200)),
}


@pytest.mark.parametrize("name", BRIDGED)
def test_a_strategy_replaces_an_instance(name):
    """The kernel is that of the instances, the semantics those of the task's leaf."""
    whole, strategy, target, size = BRIDGED[name]
    mapping = performed(whole, strategy)
    bound = tasks.strategy(program, mapping)(float16_gemm(*size))
    compiled = bound.program(target)
    assert [one for one in check(compiled.ir) if one.severity == "error"] == [] and compiled.lowered.threads > 32
    calls = lambda found: Counter(re.findall(r"\b(\w+)\(", re.sub(r"//[^\n]*", "", found[found.index("__global__") :])))
    assert calls(compiled.cuda) == calls(text(program, whole, target, size))
    random = numpy.random.default_rng(3)
    M, N, K = size
    a, b = random.integers(-3, 4, (M, K)).astype("f2"), random.integers(-3, 4, (K, N)).astype("f2")
    wanted = (a.astype("f4") @ b.astype("f4")).astype("f2")
    c = numpy.zeros_like(wanted)
    if name == "hopper":
        tasks.run(program, mapping, c, a, b)
        assert (c == wanted).all()
    else:
        assert (bound.compile(target)(a, b) == wanted).all()


def test_a_strategy_of_an_instance_is_part_of_the_value():
    whole, strategy, _, _ = BRIDGED["ampere"]
    mapping = performed(whole, strategy)
    assert Mapping.from_json(mapping.to_json()) == mapping != performed(whole, MatMul.tile(16, 16).to(Warp).done())
    assert hash(mapping) == hash(performed(whole, strategy))
    assert eval(repr(mapping["gemm_tile"]), {**globals(), **vars(places)}) == mapping["gemm_tile"]


def test_strategies_that_cannot_replace_an_instance():
    whole, strategy, target, size = BRIDGED["ampere"]

    def refused(message, *change):
        with pytest.raises(FireironError, match=message):
            tasks.strategy(program, performed(whole, *change))(float16_gemm(*size)).cuda(target)

    refused(r"only an instance of a Leaf may have a strategy(.|\n)*gemm_thread", strategy, "gemm_inner")
    refused("the strategy starts from Move", Move.tile(16, 16).to(Warp).done())
    refused("its strategy is not complete", MatMul.tile(16, 16).to(Warp))
    refused("gemm_tile: strategy", "MatMul.done()")


def test_a_tree_without_tma_reads_the_program_no_third_time(monkeypatch):
    """The first reading counts threads, the second makes the statements of the tree with TMA, and those of the tree without it are the same."""
    drafts, read = [], Reader.read
    monkeypatch.setattr(Reader, "read", lambda reader: (drafts.append(reader.draft is not None), read(reader))[1])
    step = tasks.strategy(program, ampere(32, 32, 32, 2, 2, 2))
    tree = step(float16_gemm(32, 32, 32)).program("sm_90a").grown
    assert drafts == [False, True]
    assert tree.context.left_out and tree.context.left_out_because.startswith("needs a producer")
