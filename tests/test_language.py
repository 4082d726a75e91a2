"""The language as its users see it: specs, strategies, tunables, traces, micro-kernels, requested and refused barriers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import problems
import pytest
from generator import Drawn
from problems import NAMES, integers

import fireiron
from fireiron import *
from fireiron.ir import Barrier, For
from fireiron.sim import simulate
from fireiron.values import tensor
from fireiron.values.expr import compiled, constant
from fireiron.values.layout import complement
from fireiron.values.units import index_in, unit_in

REPOSITORY = Path(__file__).parent.parent
PUBLIC = {name: value for name, value in vars(fireiron).items() if not name.startswith("_")}
VALUES = PUBLIC | {name: getattr(tensor, name) for name in ("Dim", "Mode", "UnitMode")}
"""The names that a `repr` may contain: the public ones, and the parts of a view."""

M, N, K = sym("M", multiple_of=4), sym("N"), sym("K", multiple_of=2, high=4096)
library = problems.library
LIBRARY = pytest.mark.parametrize("name", NAMES)


def evaluates(value):
    """`eval(repr(x)) == x`, with equal hashes."""
    again = eval(repr(value), dict(VALUES))
    assert again == value
    assert hash(again) == hash(value)
    assert repr(again) == repr(value)


def run(strategy, spec, generator=None, **symbols):
    """Simulate a kernel, compare it with NumPy, and return the output."""
    generator = generator or np.random.default_rng(17)
    shapes = {name: tuple(int(size.evaluate(symbols)) for size in spec.operands[name].shape) for name in spec.operands}
    arrays = {name: integers(shapes[name], spec.operands[name].dtype, generator) for name in spec.inputs}
    (output,) = spec.outputs
    started = getattr(spec, "accumulate", None) == Const(1)
    before = {output: integers(shapes[output], spec.operands[output].dtype, generator)} if started else {}
    got = simulate(strategy(spec).program().ir, arrays | before, symbols).outputs[output]
    expected = spec.reference(*arrays.values())
    np.testing.assert_array_equal(got, expected + before[output] if started else expected)
    return got


def barriers(statements, inside=()):
    """The names of the variables of the loops around each barrier."""
    stacks = []
    for statement in statements:
        if isinstance(statement, Barrier):
            stacks.append(inside)
        elif isinstance(statement, For):
            stacks += barriers(statement.body, (*inside, statement.var.name))
    return stacks


# ---------------------------------------------------------------------------------------------- specs

SPECS = (
    MatMul(8, 4, 2)(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2)(SH, RF, GL)(Warp),
    MatMul(1, 1, 1)(RF, RF, RF)(Thread),
    MatMul(8, 4, 2, dtype=float16, c_dtype=float32)(SH, SH, RF)(Block),
    MatMul(8, 4, 2, dtype=(float16, int8), accumulator=float64)(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2, dtype=int8)(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2, dtype=int8, c_dtype=int8)(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2, A=RowMajor, B=ColMajor(ld=16), C=RowMajor(ld=sym("ldc")))(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2, accumulate=True)(GL, GL, GL)(Kernel),
    MatMul(8, 4, 2, accumulate=sym("beta", high=2) > 1)(GL, GL, GL)(Kernel),
    MatMul(M, N, K, dtype=bfloat16, accumulator=float32)(GL, GL, GL)(Kernel),
    MatMul(M * 2 + 3, (M + N) % 16, K // 4 + 1)(GL, GL, GL)(Kernel),
    MatMul(M, M, M, A=ColMajor(ld=M + 8))(GL, GL, GL)(Kernel),
    Move(8, 4)(GL, SH)(Block),
    Move(8, 4, dtype=float16, dst_dtype=float32, src=RowMajor, dst=RowMajor(ld=9))(RF, GL)(Lane),
    Move(M, N)(GL, GL)(Kernel),
    Init(8, 4)(RF)(Block),
    Init(8, 4, dtype=int8, dst=RowMajor, value=-3)(SH)(Warp),
    Init(M, 4, value=7)(GL)(Kernel),
)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_spec_repr_evaluates(spec):
    evaluates(spec)
    assert eval(repr(spec), dict(PUBLIC)) == spec
    assert spec in {spec}


def test_specs_differ():
    assert len(set(SPECS)) == len(SPECS)
    assert len({repr(spec) for spec in SPECS}) == len(SPECS)


def test_defaults():
    spec = MatMul(8, 4, 2)(GL, GL, GL)(Kernel)
    assert [view.dtype for view in spec.operands.values()] == [float32] * 3
    assert [view.tensor.layout for view in spec.operands.values()] == [ColMajor] * 3
    assert [tuple(map(str, view.shape)) for view in spec.operands.values()] == [("8", "2"), ("2", "4"), ("8", "4")]
    assert MatMul(8, 4, 2, dtype=int8)(GL, GL, GL)(Kernel).C.dtype == int32
    assert MatMul(8, 4, 2, dtype=float16)(GL, GL, GL)(Kernel).C.dtype == float16


def test_short_form_equals_long_form():
    views = {
        name: tensor.whole_view(Tensor(name, tuple(map(Const, shape)), float32, GL, ColMajor))
        for name, shape in (("A", (8, 2)), ("B", (2, 4)), ("C", (8, 4)))
    }
    assert MatMul.on(Kernel, **views) == MatMul(8, 4, 2)(GL, GL, GL)(Kernel)
    assert MatMul.on(Kernel, **views, accumulate=True) == MatMul(8, 4, 2, accumulate=True)(GL, GL, GL)(Kernel)
    assert MatMul(8, 4, 2, dtype=float32, c_dtype=float32, A=ColMajor, B=ColMajor, C=ColMajor)(GL, GL, GL)(Kernel) == MatMul.on(
        Kernel, **views
    )


def test_str_is_the_papers_form():
    assert str(MatMul(1024, 512, 64)(GL, SH, RF)(Block)) == "MatMul(1024,512,64)(GL,SH,RF)(Block)"
    assert str(MatMul(M, N, 1)(GL, GL, GL)(Kernel)) == "MatMul(M,N,1)(GL,GL,GL)(Kernel)"
    assert str(Move(128, 8)(GL, SH)(Block)) == "Move(128,8)(GL,SH)(Block)"
    assert str(Init(8, 8)(RF)(Thread)) == "Init(8,8)(RF)(Thread)"


def test_specs_are_immutable():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        SPECS[0].level = Block
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        MatMul.tile(8, 8).steps = ()


def test_meaning_of_specs():
    a, b = np.array([[1.5, 2.0], [3.0, 4.0]], np.float32), np.array([[1.0, 0.5], [2.0, -1.0]], np.float32)
    np.testing.assert_array_equal(MatMul(2, 2, 2)(GL, GL, GL)(Kernel).reference(a, b), a @ b)
    np.testing.assert_array_equal(Move(2, 2, dst_dtype=int32)(GL, GL)(Kernel).reference(a), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(Init(2, 2, value=3)(GL)(Kernel).reference(), np.full((2, 2), 3, np.float32))
    spec = MatMul(8, 4, 2)(GL, SH, RF)(Block)
    assert (spec.inputs, tuple(spec.operands), spec.dims) == (("A", "B"), ("A", "B", "C"), ("m", "n", "k"))
    assert [str(spec.size(dim)) for dim in "mnk"] == ["8", "4", "2"]
    assert spec.memories == (GL, SH, RF)


@pytest.mark.parametrize(
    "shape, names, inputs",
    [
        (MatMul(8, 4, 2), "A B C", "A (M x K) and B (K x N)"),
        (Move(8, 4), "src dst", "src (M x N)"),
        (AtomicAdd(8, 4), "src dst", "src (M x N)"),
        (Reduction(8, 4, 2), "src dst", "src (M x N x P)"),
        (BinaryPointwise("+", 8, 4), "lhs rhs dst", "lhs (M x N) and rhs (M x N)"),
    ],
)
def test_all_specs_take_a_memory_for_each_operand_and_an_array_for_each_input(shape, names, inputs):
    memories = [GL for _ in names.split()]
    for wrong in (memories[1:], [*memories, GL]):
        with pytest.raises(ArgumentError, match=rf"{len(wrong)} memories given(.|\n)*{names}(.|\n)*test_language.py"):
            shape(*wrong)
    with pytest.raises(ArgumentError, match=f"memory of {names.split()[-1]}: this is not a memory"):
        shape(*memories[1:], 7)
    spec = shape(*memories)(Kernel)
    given = [np.ones((8, 4), np.float32) for _ in inputs.split(" and ")]
    for arrays in (given[1:], [*given, given[0]]):
        with pytest.raises(ArgumentError) as error:
            spec.reference(*arrays)
        assert f"{len(arrays)} arrays" in str(error.value) and f"pass {inputs}" in str(error.value)


def test_symbolic_sizes_are_parameters():
    """Row F012: sizes may be arithmetic on values known at run time."""
    x, y, z = sym("x"), sym("y"), sym("z")
    spec = MatMul((x + y) % z, y, x * 2 + 1)(GL, GL, GL)(Kernel)
    strategy = library("naive").strategy
    text = strategy(spec).cuda()
    head = text[text.index("__global__") : text.index("{", text.index("__global__"))]
    assert all(re.search(rf"\bint {name}\b", head) for name in "xyz")
    run(strategy, spec, x=10, y=7, z=13)
    run(strategy, spec, x=60, y=90, z=1000)
    evaluates(spec)


@pytest.mark.sampled(3)
@LIBRARY
def test_residual_specs_evaluate(name):
    """Every spec, step and refinement in the tree of a bound strategy, the copies of loads and epilogs too."""
    module = library(name)
    for spec in (module.spec(256, 192, 16), module.spec(M, N, 16)):
        for node in module.strategy(spec).program(problems.target_of(name, "sm_90")).tree.nodes():
            evaluates(node.spec)
            if node.step is not None:
                evaluates(node.step)
                for refinement in node.step.refinements:
                    evaluates(refinement)


# ---------------------------------------------------------------------------------------------- the paper's listings

LISTING_1 = (
    """
    tile(128, 128)   MatMul(128,128,K)(GL,GL,GL)(Kernel)
    to(Block)        MatMul(128,128,K)(GL,GL,GL)(Block)
    load             MatMul(128,128,K)(SH,GL,GL)(Block)
    load             MatMul(128,128,K)(SH,SH,GL)(Block)
    tile(64, 32)     MatMul(64,32,K)(SH,SH,GL)(Block)
    to(Warp)         MatMul(64,32,K)(SH,SH,GL)(Warp)
    tile(8, 8)       MatMul(8,8,K)(SH,SH,GL)(Warp)
    to(Thread)       MatMul(8,8,K)(SH,SH,GL)(Thread)
    load             MatMul(8,8,K)(RF,SH,GL)(Thread)
    load             MatMul(8,8,K)(RF,RF,GL)(Thread)
    tile(1, 1)       MatMul(1,1,K)(RF,RF,GL)(Thread)
""".replace("K", "128")
    .replace("128ernel", "Kernel")
    .replace("128ernel", "Kernel")
)
LISTING_2 = """
    tile(128, 128)   MatMul(128,128,K)(GL,GL,GL)(Kernel)
    to(Block)        MatMul(128,128,K)(GL,GL,GL)(Block)
    epilog           MatMul(128,128,K)(GL,GL,RF)(Block)
    split(8)         MatMul(128,128,8)(GL,GL,RF)(Block)
    load             MatMul(128,128,8)(SH,GL,RF)(Block)
    load             MatMul(128,128,8)(SH,SH,RF)(Block)
    tile(64, 32)     MatMul(64,32,8)(SH,SH,RF)(Block)
    to(Warp)         MatMul(64,32,8)(SH,SH,RF)(Warp)
    tile(8, 8)       MatMul(8,8,8)(SH,SH,RF)(Warp)
    to(Thread)       MatMul(8,8,8)(SH,SH,RF)(Thread)
    split(1)         MatMul(8,8,1)(SH,SH,RF)(Thread)
    load             MatMul(8,8,1)(RF,SH,RF)(Thread)
    load             MatMul(8,8,1)(RF,RF,RF)(Thread)
    tile(1, 1)       MatMul(1,1,1)(RF,RF,RF)(Thread)
"""
LISTING_4 = """
    tile(128, 128)   MatMul(128,128,K)(GL,GL,GL)(Kernel)
    to(Block)        MatMul(128,128,K)(GL,GL,GL)(Block)
    epilog           MatMul(128,128,K)(GL,GL,RF)(Block)
    split(8).sync()  MatMul(128,128,8)(GL,GL,RF)(Block)
    load             MatMul(128,128,8)(SH,GL,RF)(Block)
    load             MatMul(128,128,8)(SH,SH,RF)(Block)
    tile(64, 32)     MatMul(64,32,8)(SH,SH,RF)(Block)
    to(Warp)         MatMul(64,32,8)(SH,SH,RF)(Warp)
    tile(Strided((4, 32), (4, 16)))  MatMul(8,8,8)(SH,SH,RF)(Warp)
    to(Lane)         MatMul(8,8,8)(SH,SH,RF)(Lane)
    split(1).unroll()  MatMul(8,8,1)(SH,SH,RF)(Lane)
    load             MatMul(8,8,1)(RF,SH,RF)(Lane)
    load             MatMul(8,8,1)(RF,RF,RF)(Lane)
    tile(1, 1).unroll()  MatMul(1,1,1)(RF,RF,RF)(Lane)
"""


@pytest.mark.parametrize(
    ("name", "sizes", "listing"),
    [("listing_1", (256, 256, 128), LISTING_1), ("listing_2", (M, N, K), LISTING_2), ("maxwell", (M, N, K), LISTING_4)],
)
def test_trace_equals_the_papers_comments(name, sizes, listing):
    """Rows F085 to F094, with traps T001 (the second load is of B) and T002 (scrambled comments) resolved."""
    module = library(name)
    rows = module.strategy(module.spec(*sizes)).trace()
    wanted = [tuple(re.split(r"\s{2,}", line.strip())) for line in listing.strip().splitlines()]
    assert [(step.split("(A,")[0].split("(B,")[0].split("(RF,")[0], str(spec)) for step, spec in rows] == wanted


@LIBRARY
def test_trace_equals_the_docstring(name):
    """The specs in a library file's docstring are those of its trace, in this order."""
    module = library(name)
    sizes = {"M": 256, "N": 256, "K": 128}
    text = re.sub(r"\b[MNK]\b", lambda match: str(sizes[match[0]]), module.__doc__)
    specs = re.findall(r"MatMul\([\d,]+\)\([A-Z,]+\)\([A-Z][a-z]+\)", text)
    spec = module.spec(**sizes)
    shown = iter([spec.notation, *(spec.notation.replace("FR<16,16,16>", "FR") for _, spec in module.strategy(spec).trace())])
    assert specs or name == "hgemm_nt"
    assert all(one in shown for one in specs), f"not in the trace, or not in this order: {specs}"


def test_trace_of_a_single_step():
    steps = MatMul.tile(m=32).split(4)
    assert [(step, str(spec)) for step, spec in steps(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).trace()] == [
        ("tile(m=32)", "MatMul(32,64,8)(GL,GL,GL)(Kernel)"),
        ("split(4)", "MatMul(32,64,4)(GL,GL,GL)(Kernel)"),
    ]


# ---------------------------------------------------------------------------------------------- strategies

problem = MatMul(64, 64, 16)(GL, GL, GL)(Kernel)
block = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH)
inner = MatMul.tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def test_bound_and_unbound():
    bound = problem.tile(32, 32).to(Block)
    assert bound == MatMul.tile(32, 32).to(Block)(problem)
    assert bound != MatMul.tile(32, 32).to(Block)
    assert str(bound.result) == "MatMul(32,32,16)(GL,GL,GL)(Block)"
    assert bound(SPECS[0]) == MatMul.tile(32, 32).to(Block)(SPECS[0])
    with pytest.raises(ArgumentError, match="not bound"):
        _ = MatMul.tile(32, 32).result
    assert Strategy()(problem).result == problem


def test_composition_is_associative():
    parts = (MatMul.tile(32, 32).to(Block), MatMul.split(8).load(A, SH).load(B, SH), inner)
    left, right = parts[0].then(parts[1]).then(parts[2]), parts[0].then(parts[1].then(parts[2]))
    assert left == right == block.then(inner)
    assert hash(left) == hash(right)
    assert repr(left) == repr(right)
    assert left(problem).cuda() == right(problem).cuda() == problem.then(left).cuda()
    assert MatMul.then(left) == left == Strategy().then(left)
    assert block.then(Strategy()) == block
    with pytest.raises(DecompositionError, match="bound"):
        MatMul.tile(64, 64).then(block(problem))


def test_the_start_counts():
    """Chains of the same steps for other kinds of spec are other strategies; a bound one starts from the name of its spec."""
    starts = (MatMul, Move, Init, BinaryPointwise, Reduction, AtomicAdd)
    chains = [start.tile(8, 8).to(Block) for start in starts]
    assert len(set(chains)) == len(starts) and MatMul.tile(8, 8) != Move.tile(8, 8)
    assert [chain.start for chain in chains] == list(starts)
    specs = (
        problem, Move(8, 8)(GL, GL)(Kernel), Init(8, 8)(GL)(Kernel), BinaryPointwise("+", 8, 8)(GL, GL, GL)(Kernel),
        Reduction(8, 8, 2)(GL, GL)(Kernel), AtomicAdd(8, 8)(GL, GL)(Kernel),
    )  # fmt: skip
    for start, chain, spec in zip(starts, chains, specs, strict=True):
        assert spec.starter == chain(spec).start == spec.tile(8, 8).start == Strategy(chain.steps, spec).start == start
        assert chain(spec) == spec.then(chain)


def test_refinements_chain_in_any_order():
    assert MatMul.load(A, SH).no_sync().pad(4).to_row_major() == MatMul.load(A, SH).to_row_major().no_sync().pad(4)
    assert MatMul.split(8).sync().unroll() == MatMul.split(8).unroll().sync()
    tiles = MatMul.tile(8, 8)
    assert tiles.to(Thread).layout(ColMajor).unroll() == tiles.unroll().layout(ColMajor).to(Thread)
    assert hash(tiles.to(Thread).unroll()) == hash(tiles.unroll().to(Thread))
    assert repr(tiles.to(Thread).unroll()) == repr(tiles.unroll().to(Thread)) == "MatMul.tile(8, 8).to(Thread).unroll()"


def test_a_refinement_that_the_next_one_would_replace_is_refused():
    with pytest.raises(DecompositionError, match=r"pad\(8\): the step already has pad\(4\)") as caught:
        MatMul.load(A, SH).pad(4).pad(8)
    assert "strategy.at(Load).refine(...) replaces a refinement" in str(caught.value)
    for twice in (lambda: MatMul.tile(8, 8).unroll().unroll(), lambda: MatMul.load(A, SH).to_row_major().to_col_major()):
        with pytest.raises(DecompositionError, match="already has"):
            twice()
    assert MatMul.load(A, SH).pad(4).at(Load).refine(Pad(8)) == MatMul.load(A, SH).pad(8)


def test_strategies_are_values():
    assert block == MatMul.tile(32, 32).to(Block).split(8).load("A", SH).load("B", SH)
    assert block != block.at(Load, A).refine(Pad(4))
    assert len({block, block.then(inner), MatMul.then(block)}) == 2
    assert block != "block"
    evaluates(block)
    evaluates(block(problem))


@LIBRARY
def test_library_repr_evaluates(name):
    module = library(name)
    for strategy in (module.strategy, module.strategy(module.spec(256, 256, 16)), module.strategy.unrefined()):
        evaluates(strategy)


def some_draws(name, count):
    """Random strategies that need not lower."""
    count_done, seed = 0, 0
    while count_done < count:
        seed += 1
        try:
            drawn = Drawn(f"{name} {seed}")
        except FireironError:
            continue
        count_done += 1
        yield drawn


@pytest.mark.parametrize("part", range(4))
def test_drawn_repr_evaluates(part):
    for drawn in some_draws(f"language {part}", 25):
        evaluates(drawn.strategy)
        evaluates(drawn.spec)
        evaluates(Strategy(drawn.strategy.steps))


def test_at():
    assert block.at(Load, A).refine(Pad(4)) == MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).load(B, SH)
    assert block.at(Load, "B").replace(Load("B", RF)) == MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, RF)
    assert block.at(Load, A).refine(Pad(4)).at(Load, A).unrefine(Pad) == block
    assert block.at(Load, index=1).step.operand == block.at(Load, B).step.operand == block.at(Load, index=-1).step.operand == "B"
    assert block.at(Tile).unrefine(To).steps[0] == Tile((32, 32))
    full = block.then(inner)
    assert full.at(Tile, index=1).step == Tile((4, 4), refinements=(To(Thread),))
    assert full.at(Split, index=1).refine(Unroll()) != full
    assert block.steps == MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).steps, "at makes new values"


def test_swapped_refinements_keep_the_meaning():
    full = block.then(inner)
    for refinement in (Pad(3), NoSync(), StorageLayout(RowMajor), SwizzleStorage(Swizzle(2, 0, 3)), Align(64)):
        run(full.at(Load, A).refine(refinement), MatMul(40, 35, 9)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- tunables


def test_tunables():
    bm, bk = Tunable("bm", 32, 64), Tunable("bk", 4, 8)
    strategy = MatMul.tile(bm, bm // 2).to(Block).split(bk).load(A, SH).pad(bk % 3).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    assert strategy.tunables() == {"bm": bm, "bk": bk}
    assert [tuple(one.values()) for one in strategy.assignments()] == [(32, 4), (32, 8), (64, 4), (64, 8)]
    fixed = strategy.with_(bm=64, bk=8)
    assert fixed == MatMul.tile(64, 32).to(Block).split(8).load(A, SH).pad(2).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    assert strategy.with_(bm=64).tunables() == {"bk": bk}
    assert strategy.with_(bm=64).with_(bk=8) == fixed
    assert fixed.tunables() == {}
    evaluates(strategy)
    evaluates(strategy.with_(bm=64))
    assert str(strategy(problem).trace()[1][1]) == "MatMul(32,16,16)(GL,GL,GL)(Block)", "the first values"
    assert strategy(problem).program().chosen == {"bm": 32, "bk": 4}


def test_tunable_arithmetic():
    bm = Tunable("bm", 24)
    steps = {
        bm + 1: 25, 1 + bm: 25, bm - 4: 20, 40 - bm: 16, bm * 2: 48, 2 * bm: 48, bm // 5: 4, 100 // bm: 4, bm % 7: 3, 50 % bm: 2,
        (bm // 2 + 3) * 2: 30, bm // (bm // 12): 12, bm - bm % 16: 16,
    }  # fmt: skip
    for expression, value in steps.items():
        assert MatMul.tile(expression, 8).with_(bm=24) == MatMul.tile(value, 8), expression
        evaluates(expression)
    assert bm // 2 == Tunable("bm", 24) // 2
    assert bm // 2 != bm // 3


def test_legal_tunables():
    rows, columns = Tunable("rows", 3, 1, 2, 8), Tunable("columns", 1, 8, 5)
    whole = MatMul(128, 128, 4)(GL, GL, GL)(Kernel)
    strategy = MatMul.tile(64, 64).to(Block).tile(rows, columns).to(Thread).split(1).tile(1, 1).done()(whole)
    legal = [(one["rows"], one["columns"]) for one in strategy.legal_assignments()]
    assert legal == [(1, 8), (2, 8), (8, 1), (8, 8)], "divisors of 64 with at most 1024 threads"
    assert strategy.program().chosen == {"rows": 1, "columns": 8}
    assert set(legal) <= {tuple(one.values()) for one in strategy.assignments()}


def test_illegal_values_are_passed_over():
    """Zero, negative, divided by zero, chunks that do not fit: the search continues to a legal combination."""
    tunable = Tunable("one", 16, 8, 12, 4)
    for step, values in (
        (Tile((tunable % 8, 4)), [12, 4]),
        (Tile((tunable // (16 - tunable), 4)), [8]),
        (Tile((12 - tunable, 4)), [8, 4]),
        (Tile((Strided((tunable // (16 - tunable), 16), (4, 16)),)), [8]),
        (Tile((Strided((tunable - 8, tunable + 4), (4, 16)),)), [12]),
        (Tile((tunable, 4 % (16 - tunable))), [8, 4]),
    ):
        strategy = MatMul.tile(32, 32).to(Block).then(step).refine(To(Thread)).split(1).tile(1, 1).done()
        assert list(strategy(problem).legal_assignments()) == [{"one": value} for value in values]
        assert strategy(problem).program().chosen == {"one": values[0]}
        run(strategy, MatMul(64, 64, 3)(GL, GL, GL)(Kernel))
        evaluates(strategy)


def test_listing_1_takes_the_tile_that_fits():
    module = library("listing_1")
    assert module.strategy(module.spec(256, 256, 128)).program("sm_90").chosen == {"bm": 128, "bn": 128}
    small = module.strategy(module.spec(256, 256, 128)).program("sm_52")
    assert small.chosen["bm"] * small.chosen["bn"] < 128 * 128
    assert small.ir.shared_bytes <= 48 * 1024


# ---------------------------------------------------------------------------------------------- unrefined, partial, finished


@pytest.mark.sampled(3)
@LIBRARY
def test_unrefined_gives_the_same(name):
    """Row F065: with no refinement but `to`, every strategy is correct."""
    module = library(name)
    spec = module.spec(130, 70, 9)
    np.testing.assert_array_equal(run(module.strategy, spec), run(module.strategy.unrefined(), spec))
    kept = {type(one) for step in module.strategy.unrefined().steps for one in step.refinements}
    assert kept <= {To}
    assert module.strategy.unrefined().unrefined() == module.strategy.unrefined()


@pytest.mark.sampled(9)
@LIBRARY
def test_partial_trees(name):
    """Rows F057, F058: every prefix is a value, can be printed and has a result; code for it is refused, with the open leaves."""
    module = library(name)
    spec, whole = module.spec(256, 256, 16), module.strategy
    for count in range(len(whole.steps)):
        partial = Strategy(whole.steps[:count])(spec)
        tree = partial.program().tree
        assert not tree.complete
        assert tree.open_leaves() == (partial.result,)
        evaluates(partial)
        with pytest.raises(IncompleteError) as caught:
            partial.cuda()
        assert str(partial.result) in str(caught.value)
    assert whole(spec).program().tree.complete


def test_all_open_leaves_are_named():
    partial = problem.tile(32, 32).to(Block).epilog(RF, Init.tile(4, 4).to(Thread), Move.tile(4, 4).to(Thread)).tile(4, 4).to(Thread)
    with pytest.raises(IncompleteError) as caught:
        partial.cuda()
    for leaf in ("Init(4,4)(RF)(Thread)", "MatMul(4,4,16)(GL,GL,RF)(Thread)", "Move(4,4)(RF,GL)(Thread)"):
        assert leaf in str(caught.value)
    assert "3 open leaves" in str(caught.value)


def test_refinements_are_methods_of_their_verbs():
    """`MatMul.tile(8, 8).sync()` does not type-check, and does not exist."""
    for chain, verbs in (
        (MatMul.tile(8, 8), ("sync", "no_sync", "pad", "align", "storage_layout", "to_row_major", "reuse_buffer")),
        (MatMul.split(8), ("to", "no_sync", "pad", "layout", "swizzle")),
        (MatMul.load(A, SH), ("to", "sync", "unroll", "layout")),
        (MatMul.epilog(RF), ("to", "sync", "unroll", "no_sync", "pad")),
        (MatMul.tile(8, 8).done(), ("to", "sync", "unroll", "pad", "unchecked")),
    ):
        for verb in verbs:
            with pytest.raises(AttributeError):
                getattr(chain, verb)


def test_finished_chains_take_no_verb():
    for go in (
        lambda: inner.tile(1, 1),
        lambda: inner.split(1),
        lambda: inner.load(A, SH),
        lambda: inner.epilog(RF),
        lambda: inner.done(),
        lambda: inner.then(block),
    ):
        with pytest.raises(DecompositionError, match="ends with done") as caught:
            go()
        assert "test_language.py" in caught.value.at


# ---------------------------------------------------------------------------------------------- micro-kernels


def test_micro_kernel_from_text_and_from_a_file(tmp_path):
    """Rows F028 to F030."""
    text = "for (int k = 0; k < a_size_k; ++k)\n  *c = (accumulate || k > 0 ? *c : 0) + a[k * a_stride_k] * b[k * b_stride_k];"
    path = tmp_path / "dot.cu"
    path.write_text(text)
    chain = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread)
    for kernel in (chain.done(text), chain.done(str(path)), chain.done(MicroKernel.of(str(path)))):
        run(kernel, MatMul(20, 17, 5)(GL, GL, GL)(Kernel))
        assert "a[k * a_stride_k] * b[k * b_stride_k]" in kernel(problem).cuda()
        evaluates(kernel)
    path.unlink()
    assert "a_stride_k" in chain.done(MicroKernel("dot", text))(problem).cuda()
    assert chain.done(text).steps[-1].summary() == "done(micro_kernel)"


def test_micro_kernel_states_what_it_performs():
    kernel = MicroKernel("dot", "*c = 0;", performs_spec="MatMul(1, 1, 16)(GL, GL, GL)(Thread)")
    chain = MatMul.tile(16, 16).to(Block)
    assert chain.tile(1, 1).to(Thread).done(kernel)(problem).program().tree.complete
    with pytest.raises(MatchError, match=r"MatMul\(2,1,16\)\(GL,GL,GL\)\(Thread\)"):
        _ = chain.tile(2, 1).to(Thread).done(kernel)(problem).result


# ---------------------------------------------------------------------------------------------- tiles


def test_strided():
    """Row F044, T007: 8 x 4 lanes own four groups of 4 x 4 elements each of a 64 x 32 warp tile."""
    chain = MatMul.tile(64, 32).to(Block).tile(64, 32).to(Warp).tile(Strided((4, 32), (4, 16))).to(Lane)
    spec = MatMul(64, 32, 1)(GL, GL, GL)(Kernel)
    result = chain(spec).result
    assert str(result) == "MatMul(8,8,1)(GL,GL,GL)(Lane)"
    rows, columns = ([constant(dim.at(i) - dim.base) for i in range(8)] for dim in result.C.dims)
    assert rows == [0, 1, 2, 3, 32, 33, 34, 35]
    assert columns == [0, 1, 2, 3, 16, 17, 18, 19]
    run(chain.split(1).tile(1, 1).done(), MatMul(70, 40, 3)(GL, GL, GL)(Kernel))
    assert Strided((4, 4), (4, 4)) != Strided((4, 8), (4, 4))
    evaluates(Strided((4, 32), (4, 16)))


def test_repeated_and_idle_units():
    """With more tiles than units, each unit computes several tiles; with fewer, the other units are idle."""
    for tiles in ((2, 2), (1, 4), (8, 8), (16, 16), (32, 32)):
        run(
            MatMul.tile(32, 32).to(Block).split(4).load(A, SH, Move.tile(*tiles[:1], 1).to(Thread).tile(1, 1).done()).then(inner),
            MatMul(33, 40, 6)(GL, GL, GL)(Kernel),
        )
    run(MatMul.tile(32, 32).to(Block).tile(16, 8).to(Warp).then(MatMul.tile(8, 2).to(Lane).split(1).tile(1, 1).done()), problem)


Odd = Level("Odd", Warp, Layout((2, 4), (1, 8)))
Inner = Level("Inner", QuadPair, Layout(2))
Comb = Level("Comb", Block, Layout((4, 2), (1, 8)))


@pytest.mark.parametrize("level", [QuadPair, Odd, Inner, Comb, Warp, Warpgroup], ids=str)
def test_a_thread_is_its_index_in_a_unit_and_the_index_of_the_unit(level):
    """The threads of a parent are the level's layout plus its complement."""
    threads = level.parent.threads or 256
    units = complement(level.layout, threads)
    place, unit = (compiled(number(level, level.parent) if number is unit_in else number(level)) for number in (index_in, unit_in))
    above = compiled(index_in(level.parent))
    for thread in range(256):
        here = {"thread": thread}
        assert level.layout(place(here)) + units(unit(here)) == above(here)


@pytest.mark.parametrize(
    ("level", "tile", "threads"),
    [
        (QuadPair, (16, 32), 32),
        (QuadPair, (16, 16), 32),
        (QuadPair, (8, 16), 64),
        (Odd, (16, 32), 32),
        (Inner, (16, 16), 32),
        (Comb, (16, 32), 16),
        (Comb, (32, 32), 16),
        (Warp, (16, 16), 128),
        (Thread, (16, 16), 4),
    ],
    ids=str,
)
def test_interleaved_units_directly_under_a_block(level, tile, threads):
    """A quad-pair is threads 0-3 and 16-19 of a warp: two of them need the whole warp, though they are 16 threads."""
    rest = MatMul.tile(4, 4) if level.threads == 1 else MatMul.tile(4, 4).to(Thread)
    chain = MatMul.tile(32, 32).to(Block).split(4).load(A, SH).load(B, SH).tile(*tile).to(level).then(rest).split(1).tile(1, 1).done()
    spec = MatMul(40, 33, 9)(GL, GL, GL)(Kernel)
    assert chain(spec).program().ir.threads == threads
    run(chain, spec)


def test_swizzle_of_a_tile():
    by_call = MatMul.tile(4, 4).to(Thread).swizzle(lambda uid: ((uid >> 1) & 7) | (uid & 0x30) | ((uid & 1) << 3))
    by_text = MatMul.tile(4, 4).to(Thread).swizzle("((uid >> 1) & 7) | (uid & 0x30) | ((uid & 1) << 3)")
    assert by_call == by_text
    evaluates(by_call)
    with pytest.raises(DecompositionError, match="not a permutation"):
        run(
            MatMul.tile(32, 32).to(Block).then(MatMul.tile(4, 4).to(Thread).swizzle(lambda uid: uid // 2)).split(1).tile(1, 1).done(),
            problem,
        )
    run(MatMul.tile(32, 32).to(Block).then(by_call).split(1).tile(1, 1).done(), MatMul(33, 47, 5)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- reuse

warp_piece = MatMul.tile(1, 16).to(Lane).split(1).tile(1, 1).unroll().done()
"""A warp-level GEMM of 32 x 16 tiles: each lane computes a row. Its operands may be in any memory."""


def test_a_stored_piece_is_reused():
    """Row F059: the same object in two strategies, with operands in SH and in GL."""
    first = MatMul.tile(64, 32).to(Block).split(4).load(A, SH).load(B, SH).tile(32, 16).to(Warp).then(warp_piece)
    second = MatMul.tile(32, 64).to(Block).tile(32, 16).to(Warp).then(warp_piece)
    assert first.steps[-len(warp_piece.steps) :] == second.steps[-len(warp_piece.steps) :] == warp_piece.steps
    for strategy in (first, second):
        run(strategy, MatMul(70, 50, 9)(GL, GL, GL)(Kernel))


def test_a_stored_piece_takes_operands_in_registers():
    """Row F060: A and C are distributed over the registers of a warp before the piece begins."""
    rows = Move.tile(1, 4).to(Lane).tile(1, 1).unroll().done()
    init = Init.tile(32, 16).to(Warp).tile(1, 16).to(Lane).tile(1, 1).unroll().done()
    store = Move.tile(32, 16).to(Warp).tile(1, 16).to(Lane).tile(1, 1).unroll().done()
    chain = MatMul.tile(64, 32).to(Block).epilog(RF, init, store).split(4).tile(32, 16).to(Warp).load(A, RF, rows)
    assert str(chain(problem).result) == "MatMul(32,16,4)(RF,GL,RF)(Warp)"
    run(chain.then(warp_piece), MatMul(70, 50, 9)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- accumulators


def test_accumulator_types():
    """Rows F008, F042: the accumulator's type is the epilog's, else the spec's, else that of C."""
    half = MatMul(64, 64, 16, dtype=float16, accumulator=float32)(GL, GL, GL)(Kernel)
    plain = MatMul(64, 64, 16, dtype=float16)(GL, GL, GL)(Kernel)
    chain = MatMul.tile(32, 32).to(Block)
    assert chain.epilog(RF)(half).result.C.dtype == float32
    assert chain.epilog(RF)(plain).result.C.dtype == float16
    assert chain.epilog(RF, float32)(plain).result.C.dtype == float32
    assert chain.epilog(RF, float64)(half).result.C.dtype == float64
    assert chain.epilog(RF, dtype=float32) == chain.epilog(RF, float32) != chain.epilog(RF)
    rest = MatMul.split(4).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    init, store = Init.tile(4, 4).to(Thread).tile(1, 1).done(), Move.tile(4, 4).to(Thread).tile(1, 1).done()
    arrays = np.ones((64, 4096), np.float16), np.ones((4096, 64), np.float16)
    for dtype, expected in ((float16, 2048), (float32, 4096)):
        long = MatMul(64, 64, 4096, dtype=float16)(GL, GL, GL)(Kernel)
        kernel = chain.epilog(RF, dtype, init, store).then(rest)(long).program("sm_70").ir
        got = simulate(kernel, {"A": arrays[0], "B": arrays[1]}, blocks=[0]).outputs["C"]
        assert got[0, 0] == expected, "in half precision, 2048 + 1 is 2048"
        evaluates(chain.epilog(RF, dtype, init, store))


def test_epilog_forms_are_equal():
    init, store = Init.tile(4, 4).to(Thread).tile(1, 1).done(), Move.tile(4, 4).to(Thread).tile(1, 1).done()
    chain = MatMul.tile(32, 32).to(Block)
    assert chain.epilog(RF, init, store) == chain.epilog(RF, init=init, store=store) == chain.epilog(RF, None, store, init=init)
    assert chain.epilog(RF, float32, init, store) == chain.epilog(RF, init, store, dtype=float32)
    assert chain.epilog(RF) == chain.epilog(RF, None, None)


@pytest.mark.sampled(2)
@LIBRARY
def test_accumulate(name):
    """C is added to. T006: if init and compute distribute C differently, only a uniform init is legal, and this one reads C."""
    module = library(name)
    spec = module.spec(33, 40, 9, accumulate=True)
    if name in ("maxwell", "hgemm_nt"):
        with pytest.raises(DecompositionError, match="distributes elements over threads differently"):
            run(module.strategy, spec)
    elif name.startswith("wmma"):
        with pytest.raises(DecompositionError, match="whole fragments, but the last tile of C may be partly out of bounds"):
            run(module.strategy, spec)
        run(module.strategy, module.spec(128, 128, 16, accumulate=True))
    else:
        run(module.strategy, spec)


def test_accumulate_known_at_run_time():
    module = library("naive")
    spec = module.spec(33, 40, 9, accumulate=sym("beta", high=2) > 1)
    assert "beta" in module.strategy(spec).cuda()


# ---------------------------------------------------------------------------------------------- barriers


def test_listing_2_has_two_barriers_in_its_k_loop():
    """T004: the paper's template lacks the second barrier; unrefined, it is inferred. No other place has a barrier."""
    module = library("listing_2")
    for strategy in (module.strategy, module.strategy.unrefined()):
        kernel = strategy(module.spec(M, N, K)).program().ir
        assert barriers(kernel.body) == [("k",), ("k",)]
        assert strategy(module.spec(M, N, K)).cuda().count("__syncthreads()") == 2
        assert "__syncwarp" not in strategy(module.spec(M, N, K)).cuda()


def _in_registers():
    """Listing 2 without its loads to shared memory."""
    steps = library("listing_2").strategy.steps
    return Strategy(tuple(step for step in steps if not (isinstance(step, Load) and step.memory == SH)))


@pytest.mark.parametrize("strategy", [library("naive").strategy, _in_registers(), Strategy(block.steps[:1]).then(inner)], ids=range(3))
def test_no_barrier_without_shared_memory(strategy):
    program = strategy(MatMul(M, N, K)(GL, GL, GL)(Kernel)).program()
    assert barriers(program.ir.body) == []
    assert "__sync" not in program.cuda
    assert "__shared__" not in program.cuda
    run(strategy, MatMul(130, 70, 9)(GL, GL, GL)(Kernel))


def test_no_sync_on_the_first_load():
    """T005: the barrier after the second load covers both."""
    module = library("listing_2")
    strategy = module.strategy.at(Load, A).refine(NoSync())
    assert barriers(strategy(module.spec(M, N, K)).program().ir.body) == [("k",), ("k",)]
    run(strategy, module.spec(130, 70, 17))


def test_no_sync_on_both_loads():
    """The error is a counterexample: buffer, address, both threads, both lines of the strategy."""
    module = library("listing_2")
    strategy = module.strategy.at(Load, A).refine(NoSync()).at(Load, B).refine(NoSync())
    with pytest.raises(SynchronizationError) as caught:
        strategy(module.spec(M, N, K)).cuda()
    text = str(caught.value)
    assert re.search(r"\b[ab]_sh\[\d+\]", text), "the buffer and the address"
    threads = re.findall(r"thread (\d+)", text)
    assert len(threads) == 2 and threads[0] != threads[1]
    source = Path(module.__file__).read_text().splitlines()
    lines = {int(number) for number in re.findall(r"listing_2\.py:(\d+)", text)}
    quoted = " ".join(source[number - 1] for number in lines)
    assert ".load(A, SH, copy)" in quoted and ".load(B, SH, copy)" in quoted
    assert len(lines) >= 2
    assert caught.value.hint


def test_sync_adds_exactly_one_barrier():
    naive = library("naive")
    plain = naive.strategy(naive.spec(M, N, K)).program().ir
    explicit = naive.strategy.at(Split).refine(Sync())(naive.spec(M, N, K)).program().ir
    assert barriers(plain.body) == []
    assert len(barriers(explicit.body)) == 1
    assert barriers(explicit.body)[0], "in the loop"
    module = library("listing_2")
    inner_sync = module.strategy.at(Split, index=1).refine(Sync())(module.spec(M, N, K)).program().ir
    assert barriers(inner_sync.body) == [("k",), ("k", "k2")], "the one asked for also frees the buffers, so the second is not needed"
    outer_sync = module.strategy.at(Split).refine(Sync())(module.spec(M, N, K)).program().ir
    assert barriers(outer_sync.body) == [("k",), ("k",)], "the barrier that is needed anyway is the one asked for"
    run(module.strategy.at(Split, index=1).refine(Sync()), module.spec(130, 70, 17))


def test_unchecked_is_printed():
    text = MatMul.tile(32, 32).to(Block).unchecked("the caller knows").tile(4, 4).to(Thread).split(1).tile(1, 1).done()(problem).cuda()
    assert "the caller knows" in text


# ---------------------------------------------------------------------------------------------- the same in every process

_PRINT = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from generator import draw
from problems import NAMES, library, target_of
for name in NAMES:
    module = library(name)
    bound = module.strategy(module.spec(256, 192, 16))
    print(repr(bound), hash(repr(bound)) is None, bound.program(target_of(name)).cuda)
for seed in range(6):
    drawn, refused = draw(seed)
    print(drawn.strategy, refused, drawn.program.cuda)
"""


@pytest.mark.nightly
def test_text_does_not_depend_on_the_hash_seed():
    outputs = []
    for seed in ("0", "12345"):
        code = _PRINT.format(tests=str(REPOSITORY / "tests"), root=str(REPOSITORY))
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].count("__global__") == len(NAMES) + 6
    assert outputs[0] == outputs[1]


def test_chains_for_any_kind_of_spec():
    """A chain that does not fix the kind of its spec is legal for any spec, and takes the kind of the chain before it."""
    inner = AnySpec.tile(2, 2).to(Thread).tile(1, 1).done()
    assert (inner, repr(inner)) == (Strategy(inner.steps), "AnySpec.tile(2, 2).to(Thread).tile(1, 1).done()")
    assert eval(repr(inner)) == inner == Strategy.from_json(inner.to_json())
    assert inner != MatMul.then(inner) == MatMul.tile(2, 2).to(Thread).tile(1, 1).done()
    assert MatMul.load(A, SH, inner) == MatMul.load(A, SH, Move.then(inner)), "only the steps are kept"
    assert AnySpec.tile(8, 8).then(Move.done()).start == Move
    for spec in (Move(8, 8)(GL, GL)(Kernel), Init(8, 8)(GL)(Kernel)):
        bound = AnySpec.tile(4, 4).to(Block).then(inner)(spec)
        assert bound.start == spec.starter and "__global__" in bound.cuda("sm_80")
    both = inner.fallback(Move.tile(1, 1).to(Thread).done())
    assert both.start == Move == both.others[0].start
    for chosen in (inner.fallback(inner), both):
        assert [one.start for one in chosen(Move(8, 8)(GL, SH)(Block)).alternatives] == [Move, Move]
    with pytest.raises(DecompositionError, match="starts from Move, but the spec is a Init"):
        both(Init(8, 8)(GL)(Kernel))
