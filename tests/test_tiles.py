"""Tiles with layouts (Graphene, section 3.3): from the views to the simulator, the checks and the printed text."""

import collections
import itertools
import os
import random

import attrs
import numpy as np
import pytest
from generator import Drawn
from printed_text import COMPILER, HostProgram, Printed
from problems import integers
from test_random import problem, program_to_paste

from fireiron import *
from fireiron.check import safety
from fireiron.errors import DecompositionError, FireironError
from fireiron.language import store
from fireiron.sim import simulate

SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20230326


# -------------------------------------------------------------------------------------------------------- random strategies


def draw_layout(rng, size):
    """A layout of a given number of elements: some parts of them, in any order, possibly with gaps of 2 between."""
    parts = []
    while size > 1 and len(parts) < 3:
        parts.append(rng.choice([part for part in range(2, size + 1) if size % part == 0]) if len(parts) < 2 else size)
        size //= parts[-1]
    parts += [size] * (size > 1)
    strides, reached = [0] * len(parts), 1
    for place in rng.sample(range(len(parts)), len(parts)):
        reached *= rng.choice((1, 1, 2))
        strides[place], reached = reached, reached * parts[place]
    return Layout(tuple(parts), tuple(strides)) if len(parts) != 1 else Layout(parts[0], strides[0])


def by_layouts(value, rng, chosen):
    """A strategy with layouts instead of some tile sizes, equal for equal sizes, so that the paths remain equal."""
    if isinstance(value, Tile) and all(isinstance(size, int) for size in value.sizes):
        if value.sizes not in chosen:
            chosen[value.sizes] = tuple(draw_layout(rng, size) if rng.random() < 0.5 else size for size in value.sizes)
        return attrs.evolve(value, sizes=chosen[value.sizes])
    if isinstance(value, tuple):
        return tuple(by_layouts(part, rng, chosen) for part in value)
    if isinstance(value, (Strategy, Decomposition)):
        fields = [field.name for field in attrs.fields(type(value)) if field.init and isinstance(getattr(value, field.name), tuple)]
        return attrs.evolve(value, **{name: by_layouts(getattr(value, name), rng, chosen) for name in fields})
    return value


def drawn_with_layouts(seed):
    """The next legal draw from a seed on, its program, and its layouts."""
    for attempt in itertools.count():
        rng, chosen = random.Random(f"{seed}/{attempt}/layouts"), {}
        try:
            drawn = Drawn(f"{seed}/{attempt}")
            drawn.strategy = by_layouts(drawn.strategy, rng, chosen)
            program = drawn.strategy(drawn.spec).program(drawn.target)
            layouts = [size for sizes in chosen.values() for size in sizes if isinstance(size, Layout)]
            if any(size != Layout(size.size()) for size in layouts if size.size() > 1) and program.cuda:
                return drawn, program, layouts
        except FireironError:
            continue


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_drawn_strategies_by_layouts(part):
    """The simulation equals NumPy, has no findings, and the strategy is stored and loaded."""
    seen = collections.Counter()
    for seed in range(SEED + part * 12 * SCALE, SEED + (part + 1) * 12 * SCALE):
        drawn, program, layouts = drawn_with_layouts(seed)
        arrays, expected = problem(drawn, seed)
        assert np.array_equal(simulate(program.lowered, arrays, drawn.symbols).outputs["C"], expected), program_to_paste(drawn)
        assert [finding for finding in safety(program.lowered) if finding.severity == "error"] == [], program_to_paste(drawn)
        assert eval(repr(drawn.strategy)) == drawn.strategy and store.loads(store.dumps(drawn.strategy)) == drawn.strategy
        seen.update(kind for one in layouts for kind in kinds_of(one))
    assert min(seen[kind] for kind in ("gaps", "out of order", "two parts")) >= SCALE, seen


def kinds_of(layout):
    strides = [stride for size, stride in layout.modes if size > 1]
    yield from ["two parts"] * (len(strides) > 1) + ["out of order"] * (strides != sorted(strides))
    yield from ["gaps"] * (layout.cosize() > layout.size())


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_printed_texts_by_layouts(tmp_path):
    drawn = [drawn_with_layouts(f"printed {SEED} {number}")[:2] for number in range(8 * SCALE)]
    host = HostProgram([Printed.of(program) for _, program in drawn], tmp_path)
    for number, (draw_of_seed, _) in enumerate(drawn):
        arrays, expected = problem(draw_of_seed, number)
        assert np.array_equal(host.run(number, arrays, draw_of_seed.symbols, number)["C"], expected), program_to_paste(draw_of_seed)


# ------------------------------------------------------------------------------------------------------- by hand


def test_overhanging_tiles():
    """Every fourth row to one block, for a number of rows known at launch only."""
    strategy = Move.tile(Layout((2, 4), (1, 8)), 8).to(Block).tile(Layout(2, 4), 1).to(Thread).tile(1, 1).done()
    rows = sym("M")
    program = strategy(Move(rows, 20, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)).program("sm_80")
    for count in (1, 7, 32, 61):
        source = np.arange(count * 20, dtype=np.float32).reshape(count, 20)
        assert np.array_equal(simulate(program.lowered, {"src": source}, {"M": count}).outputs["dst"], source)
    assert "block_m2" in program.cuda and [one for one in safety(program.lowered) if one.severity == "error"] == []


def test_adjacent_elements_of_a_tile_are_one_access():
    """Four adjacent elements in each of two groups of columns give two vectors; with every second element there is none."""
    copy = Move(8, 64, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    vectors = Move.tile(8, 64).to(Block).tile(1, Layout((4, 2), (1, 32))).to(Thread).tile(1, 4).unroll().done()
    assert vectors(copy).program("sm_80").cuda.count("float4") >= 2
    assert "float4" not in Move.tile(8, 64).to(Block).tile(1, Layout(4, 2)).to(Thread).done()(copy).program("sm_80").cuda


def test_steps_of_a_split_by_a_layout():
    """Every eighth element of k in one step gives the same sum."""
    strategy = (
        MatMul.tile(16, 16).to(Block).split(Layout(4, 8)).load(A, SH).load(B, SH).tile(2, 2).to(Thread).split(k=Layout(2, 2)).split(1)
    )
    strategy = strategy.tile(1, 1).done()
    spec = MatMul(32, 16, 64)(GL, GL, GL)(Kernel)
    generator = np.random.default_rng(3)
    a, b = integers((32, 64), float32, generator), integers((64, 16), float32, generator)
    program = strategy(spec).program("sm_80")
    assert np.array_equal(simulate(program.lowered, {"A": a, "B": b}).outputs["C"], spec.reference(a, b))
    assert store.loads(store.dumps(strategy)) == strategy == eval(repr(strategy))


@pytest.mark.parametrize("warps", [Layout((8, 2), (1, 16)), Layout((8, 2), (1, 32)), Layout((2, 8), (8, 1))], ids=str)
def test_tensor_cores_on_tiles_by_layouts(warps):
    """Rows of the instruction's tile from two places; ldmatrix only if its eight rows and columns are contiguous."""
    path = lambda start: start.tile(warps, 32).to(Warp)
    strategy = MatMul.tile(64, 32).to(Block).epilog(RF, float32, path(Init).done(), path(Move).done()).split(32)
    strategy = path(strategy.load(A, SH).pad(8).load(B, SH).pad(8)).load(A, RF, Move.done()).load(B, RF, Move.done())
    strategy = strategy.split(16).tile(16, 8).unroll().done()
    spec = MatMul(128, 64, 64, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)
    generator = np.random.default_rng(5)
    a, b = integers((128, 64), float16, generator), integers((64, 64), float16, generator)
    program = strategy(spec).program("sm_80")
    assert np.array_equal(simulate(program.lowered, {"A": a, "B": b}).outputs["C"], spec.reference(a, b))
    assert "mma.sync" in program.cuda and [one for one in safety(program.lowered) if one.severity == "error"] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("tile", "reason"), [
    (lambda: Move.tile(Layout(2, 0), 4), "no stride is 0"),
    (lambda: Move.tile(m=Layout((2, 2), (1, 3))), "has no complement"),
    (lambda: MatMul.split(Layout(sym("K"), 1)), "integers"),
    (lambda: Move.tile(4, Strided((1, 2))), "got     Strided"),
    (lambda: MatMul.tile(4, 4).to(Block).split_k(2, Warp, Layout(2, 2)), "positive integer"),
])  # fmt: skip
def test_wrong_sizes_are_refused_where_they_are_given(tile, reason):
    with pytest.raises(DecompositionError, match=reason) as refusal:
        tile()
    assert "test_tiles.py" in str(refusal.value)


def test_hand_made_steps_are_refused_with_their_line():
    """A step not created by a verb is checked when it is expanded, and the error names the line of the step, not that of the request for
    the program.
    """
    step = Tile((Layout(2, 0), 4), origin="mine.py:7")
    with pytest.raises(DecompositionError, match=r"no stride is 0(.|\n)*mine.py:7"):
        assert Move(8, 4)(GL, GL)(Kernel).tile(8, 4).to(Block).then(step).result


def test_stored_layouts_are_checked():
    strategy = Move.tile(Layout(2, 2), 4).to(Block).done()
    text = store.dumps(strategy)
    assert store.loads(text) == strategy
    with pytest.raises(FireironError, match="stride"):
        store.loads(text.replace('"stride": 2', '"stride": 0'))


@pytest.mark.parametrize(
    ("problem", "sizes", "hint"),
    [
        (MatMul(8, 8, 8), (8, 8, 4), "split(k=4) after it loops over k"),
        (MatMul(2, 8, 8, 8, signature="bmk,bkn->bmn"), (1, 8, 8, 4), "split(k=4) after it loops over k"),
        (MatMul(8, 8, 8), (8, 8, 4, 2), "split(k=4) after it loops over k"),
        (Move(8, 8), (8, 8, 4), None),
    ],
)
def test_sizes_of_dimensions_that_are_no_tiles(problem, sizes, hint):
    with pytest.raises(DecompositionError, match="tile takes at most") as refusal:
        _ = problem(*[GL] * (3 if hint else 2))(Kernel).tile(*sizes).to(Block).result
    assert refusal.value.hint == hint


def test_more_sizes_than_dimensions_are_splits():
    """The error names the reduced dimensions, and how to split them."""
    with pytest.raises(FireironError) as refused:
        MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16, 8).to(Block).tile(1, 1).to(Thread).done().cuda("sm_80")
    assert refused.value.hint == "split(k=8) after it loops over k" and "at most 2 sizes" in str(refused.value)
    with pytest.raises(FireironError) as refused:
        Move(64, 64)(GL, GL)(Kernel).tile(16, 16, 8).to(Block).tile(1, 1).to(Thread).done().cuda("sm_80")
    assert refused.value.hint is None
