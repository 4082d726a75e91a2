"""The dimensions of views are numerals: their fixed and free digits form one number system; also views with constant coordinates."""

import math
import random
from typing import ClassVar

import attrs
import making
import numpy as np
import pytest
from generator import Drawn
from problems import target_of

from fireiron import *
from fireiron.errors import FireironError, StoreError
from fireiron.language import library, store
from fireiron.language.numerals import numeral_fault
from fireiron.sim import simulate
from fireiron.values.expr import Const, Var, constant
from fireiron.values.tensor import Dim, Fixed, Mode, Tensor, View, whole_view

SIZES = (1, 7, 40)
"""Numbers for run-time sizes, as multiples of their divisors, above the least."""


def fault(dim, extent):
    """The violation of the law in a dimension of a view, for a tensor of the given extent; None if it holds."""
    digits = [(digit.stride, digit.size) for digit in (*dim.fixed, *dim.modes) if constant(digit.size) != 1]
    digits.sort(key=lambda digit: (constant(digit[0]) is None, constant(digit[0]) or 0))
    reached = Const(1)
    for stride, size in digits:
        if stride != reached:
            return f"the digit of stride {stride} follows on {reached}"
        reached = stride * size
    if dim.bound is None and reached != extent:
        return f"{reached} numbers for {extent} coordinates"
    for scale in SIZES:
        here = {var: var.low + -var.low % var.multiple_of + scale * var.multiple_of for var in (reached - extent).variables()}
        if dim.bound is not None and not constant((reached - extent).substitute(here)) >= 0:
            return f"{reached} numbers for {extent} coordinates, with {here}"
    for digit in dim.fixed:
        size = constant(digit.size)
        if digit.index.low < 0 or (size is not None and digit.index.high >= size):
            return f"the index {digit.index} is not a digit of {digit.size}"
    return None


def faults(program):
    views = [view for node in program.tree.nodes() for view in node.spec.operands.values() if not view.memory.is_coordinate]
    pairs = [pair for view in views for pair in zip(view.numerals, view.tensor.shape, strict=True)]
    assert len(pairs) > 10
    return [found for dim, extent in pairs if (found := fault(dim, extent)) is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", library.names())
def test_the_law_holds_in_the_library(name):
    assert faults(library.bind(library.find(name)).program(target_of(name, "sm_80"))) == []


@pytest.mark.parametrize("part", range(4))
def test_the_law_holds_in_drawn_strategies(part):
    checked = 0
    for seed in range(12):
        try:
            drawn = Drawn(f"numerals {part} {seed}")
            program = drawn.strategy(drawn.spec).program(drawn.target)
            assert program.tree
        except FireironError as refusal:
            assert "is not a tile of" not in str(refusal), "the package's own steps keep the law"
            continue
        checked += 1
        assert faults(program) == [], drawn.strategy
    assert checked > 4


@attrs.frozen
class ByHand(Decomposition):
    """Tiles of four rows for threads, with hand-made digits."""

    verb: ClassVar[str] = "by_hand"
    stride: int = 4
    count: int = 8
    shift: int = 0
    modes: tuple[Mode, ...] = (Mode(4, 1),)
    bound: Expr | None = None
    operand: str = "src"

    def threads(self, spec, context):
        return self.count

    def expand(self, spec, context):
        digit = Fixed(self.count, self.stride, True, context.thread + self.shift)
        operands = {}
        for name, view in spec.operands.items():
            part, numbers = (Dim(self.modes, self.bound, (digit,)), None) if name == self.operand else (None, context.thread % 8)
            operands[name] = view.with_dims({0: part}) if part is not None else view.tile(4, None).at((numbers, 0), unit=True)
        return context.draft().expansion((Child("body", spec.with_operands(**operands).at_level(Thread)),), (making.hole("body"),))


ROWS = Move(32, 4)(GL, GL)(Kernel)


def by_hand(step):
    return Move.tile(32, 4).to(Block).then(step).tile(1, 1).done()(ROWS).program("sm_80")


@pytest.mark.parametrize("step", [ByHand(), ByHand(stride=4, modes=(Mode(2, 1), Mode(2, 2)))], ids=str)
def test_views_by_hand_that_obey_the_law(step):
    source = np.arange(128, dtype=np.float32).reshape(32, 4)
    assert np.array_equal(simulate(by_hand(step).lowered, {"src": source}).outputs["dst"], source)
    assert by_hand(ByHand(stride=1, modes=(Mode(4, 8),))).tree.complete, "every eighth row"
    assert by_hand(ByHand(count=9, bound=Const(32))).tree.complete, "the ninth tile lies outside"


@pytest.mark.parametrize(("step", "message", "legal"), [
    (ByHand(stride=3), "a digit of stride 3 follows digits that cover 4", "stride 4"),
    (ByHand(stride=8), "a digit of stride 8 follows digits that cover 4", "stride 4"),
    (ByHand(modes=(Mode(4, 2),)), "a digit of stride 2 follows digits that cover 1", "stride 1"),
    (ByHand(count=9), "its digits cover 36 coordinates of 32", "32, or a bound"),
    (ByHand(count=7), "its digits cover 28 coordinates of 32", "32, or a bound"),
    (ByHand(count=7, bound=Const(32)), "its digits cover 28 coordinates of 32", "at least 32"),
    (ByHand(shift=1), "thread + 1, 1 to 8, is not a digit of 8", "0 to 7"),
])  # fmt: skip
def test_views_by_hand_that_break_the_law_are_refused(step, message, legal):
    """The error names the decomposition, its operand and dimension, and legal values."""
    for operand in ("src", "dst"):
        with pytest.raises(DecompositionError) as refusal:
            assert by_hand(attrs.evolve(step, operand=operand)).tree
        text = str(refusal.value)
        assert f"ByHand: the view of {operand} is not a tile of {operand} along m: {message}" in text, text
        assert (
            "Dim(" not in text
            and "coordinates'" in text
            and legal in text.split("legal")[1]
            and "test_numerals.py" in text
            and "view.tile" in text
        )


def test_a_spec_that_breaks_it_already_is_not_blamed_on_a_step():
    """Views in old documents may have any offset: their first coordinate is one digit of size 1."""
    view = ROWS.src.with_dims({0: Dim((Mode(8, 1),), None, (Fixed(1, 1, False, Const(3)),))})
    spec = Move.on(Kernel, view, Move(8, 4)(GL, GL)(Kernel).dst)
    assert Move.tile(4, 4).to(Block).load(SRC, SH).tile(1, 1).to(Thread).done()(spec).program("sm_80").tree.complete


def test_both_sayings_of_the_law_agree():
    """The compiler's formulation and the one in these tests."""
    rng, broken = random.Random(20230327), 0
    for _draw in range(2000):
        sizes = [rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))]
        strides = [math.prod(sizes[:place]) for place in range(len(sizes))]
        if rng.random() < 0.4:
            place = rng.randrange(len(sizes))
            strides[place] += rng.choice((1, 1, 2))
        digits = list(zip(sizes, strides))
        rng.shuffle(digits)
        cut = rng.randint(0, len(digits))
        top = [size + (rng.random() < 0.1) - 1 for size, _ in digits[:cut]]
        fixed = tuple(Fixed(size, stride, True, Var(f"u{n}", 0, top[n])) for n, (size, stride) in enumerate(digits[:cut]))
        extent = math.prod(sizes) + rng.choice((0, 0, 0, 1, -1))
        bound = rng.choice((None, None, Const(extent)))
        dim = Dim(tuple(Mode(*digit) for digit in digits[cut:]), bound, fixed)
        faults = fault(dim, Const(extent)), numeral_fault(dim, Const(extent))
        assert (faults[0] is None) == (faults[1] is None), (dim, extent, faults)
        broken += faults[0] is not None
    assert 400 < broken < 1600


def test_the_law_can_be_broken():
    own_digit, four = Var("mine", 0, 3), Fixed(4, 2, True, Var("mine", 0, 3))
    assert fault(Dim((Mode(2, 1), Mode(4, 8)), None, (four,)), Const(32)) is None
    for wrong in (
        Dim((Mode(2, 1), Mode(4, 16)), None, (four,)),
        Dim((Mode(4, 1), Mode(4, 8)), None, (four,)),
        Dim((Mode(2, 1), Mode(3, 8)), None, (four,)),
        Dim((Mode(2, 1), Mode(3, 8)), Const(32), (four,)),
        Dim((Mode(2, 1), Mode(4, 8)), None, (Fixed(4, 2, True, own_digit + 1),)),
    ):
        assert fault(wrong, Const(32)) is not None


# ------------------------------------------------------------------------------------------------------ views with constant coordinates


def stacked(axis, index, order=ColMajor):
    """A copy of one matrix of a batch of five, whose batch dimension is the tensor's dimension `axis`."""
    shape = [Const(24), Const(40)]
    shape.insert(axis, Const(5))
    source = whole_view(Tensor("src", tuple(shape), float32, GL, order)).at(axis, Const(index), unit=False)
    return Move.on(Kernel, source, whole_view(Tensor("dst", (Const(24), Const(40)), float32, GL, ColMajor)))


@pytest.mark.parametrize("order", [ColMajor, RowMajor], ids=str)
@pytest.mark.parametrize("axis", range(3))
def test_a_view_may_be_constant_in_any_dimension(axis, order):
    """Through shared memory, and with tiles that extend past the edge."""
    spec = stacked(axis, 3, order)
    assert [constant(size) for size in spec.src.shape] == [24, 40]
    assert [spec.src.axis(dim) for dim in range(2)] == [one for one in range(3) if one != axis]
    copy = Move.tile(16, 16).to(Block)
    for strategy in (
        copy.tile(2, 4).to(Thread).tile(1, 1).done(),
        copy.load(SRC, SH, Move.tile(4, 2).to(Thread).tile(1, 1).done()).tile(2, 4).to(Thread).tile(1, 1).done(),
    ):
        source = np.arange(24 * 40 * 5, dtype=np.float32).reshape([constant(size) for size in spec.src.tensor.shape])
        program = strategy(spec).program("sm_80")
        result = simulate(program.ir, {"src": source}).outputs["dst"]
        assert np.array_equal(result, np.take(source, 3, axis=axis))
        assert "src_source[" in program.cuda or "src[" in program.cuda
        assert faults(program) == []


def test_fixed_digits_count_elements():
    """In a tile with every second coordinate, element 1 is 2 coordinates further."""
    tensor = Tensor("t", (Const(8), Const(4)), float32, GL, ColMajor)
    part = Dim((Mode(4, 2),), None, (Fixed(2, 1, True, Const(1)),))
    view = View(tensor, (part, Dim((Mode(4, 1),)))).at(0, Const(1), unit=False)
    assert [dim.base for dim in view.numerals] == [Const(3), Const(0)] and view.dims == view.numerals[1:] and view.extent(0) == Const(4)
    assert fault(view.numerals[0], Const(8)) is None


# ------------------------------------------------------------------------------------------------------ stored


def test_views_are_stored_and_those_of_before_are_read():
    import json

    strategy = Move.tile(16, 16).to(Block).tile(2, 4).to(Thread).tile(1, 1).done()(stacked(1, 3))
    assert store.loads(store.dumps(strategy)) == strategy
    last = Move.done()(stacked(2, 3))
    document = json.loads(store.dumps(last))
    view = document["strategy"]["spec"]["src"]
    for stored in (view, document["strategy"]["spec"]["dst"]):
        stored["dims"] = [{**dim, "base": 0} for dim in stored.pop("numerals")]
    view |= {"dims": view["dims"][:2], "at": [3]}
    del view["axes"]
    again = store.loads(json.dumps(document))
    assert [dim.base for dim in again.spec.src.numerals] == [dim.base for dim in last.spec.src.numerals]
    assert again.spec.src.axes == last.spec.src.axes and again.spec.dst == last.spec.dst
    view["dims"][0] |= {"base": 2, "dealt": [{"size": 3, "stride": 8, "unit": True}]}
    assert store.loads(json.dumps(document)).spec.src.dims[0].base == Const(2)
    view["dims"] = view["dims"][:1]
    with pytest.raises(StoreError):
        store.loads(json.dumps(document))


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, 5), (0, 1, 2), (0,)])
def test_stored_axes_are_checked(axes):
    spec = stacked(2, 3)
    strategy = Move.done()(spec.with_operands(src=attrs.evolve(spec.src, axes=(0, 1))))
    text = store.dumps(strategy)
    assert '"axes": [0, 1]' in text
    with pytest.raises(StoreError):
        store.loads(text.replace('"axes": [0, 1]', f'"axes": {list(axes)}'))
