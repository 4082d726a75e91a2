"""TMA copies in the simulator: it copies the elements that the tensor map specifies, as the hardware does, regardless of the statement (`fireiron.sim.tma_boxes`)."""

import itertools
import random

import attrs
import making
import numpy as np
import pytest
from campaign.faults.detectors import outputs, shadow_of
from campaign.faults.kernels import case
from campaign.faults.kind import spots
from engines import copied, loaded, numbered, stored
from handmade import access, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable.tma import TMA_LOAD
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim.tma_boxes import TmaBoxes
from fireiron.values.expr import as_expr
from fireiron.values.tensor import Tensor

RIGHT = making.tensor_map("src_map", "src", (1, 0), (64, 64), 128)
BACK = making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128)


def byte_of(place, span):
    """The swizzled address of a byte: within a line of 128 bytes the chunks of 16 are permuted, by the figures of "Tensor swizzling modes"."""
    pieces, line, piece = span // 16, place // 128, place // 16
    return (piece // pieces * pieces + (piece % pieces ^ line % pieces)) * 16 + place % 16


def pairs(buffer, box, span):
    """`(element of the tile, byte of shared memory)` of all copied elements, for boxes of a 64 x 64 float16 tile; None if a box is misaligned."""
    result = []
    for column, row in itertools.product(range(0, 64, box[0]), range(0, 64, box[1])):
        start = buffer.offset + int(buffer.storage.plain.address((row, column))) * 2
        if start % 128:
            return None
        inside = itertools.product(range(box[1]), range(box[0]))
        result += [((row + y, column + x), byte_of(start + number * 2, span)) for number, (y, x) in enumerate(inside)]
    return result


def places(buffer):
    """The address at which the threads access each element of the tile."""
    for element in itertools.product(range(64), range(64)):
        yield element, buffer.offset + int(buffer.storage.address(element)) * 2


BOXES = [(64, 64), (64, 8), (64, 4), (32, 64), (32, 32), (16, 64), (8, 64), (8, 8), (128, 32), (48, 64)]
BOXES_AND_SPANS = [(box, span) for box in BOXES for span in (16, 32, 64, 128) if span in (16, box[0] * 2)]


@pytest.mark.parametrize("box, span", BOXES_AND_SPANS)
def test_a_load_stores_elements_as_the_hardware_does(box, span):
    """The readers get the bytes at the addresses that they compute, for boxes that match the tile or do not."""
    given, kernel = numbered((64, 64)), loaded(making.tensor_map("src_map", "src", (1, 0), box, span))
    buffer = kernel.buffer("tile")
    moved = pairs(buffer, box, span)
    if moved is None:
        with pytest.raises(
            SimulationError, match=r"a box of its tensor map starts at byte \d+ of shared memory(?s:.*)legal +multiples of 128"
        ):
            copied(kernel, given)
        return
    if 64 % box[0] or 64 % box[1]:
        with pytest.raises(SimulationError, match=r"is full|deadlock|becomes full"):
            copied(kernel, given)
        return
    memory = {byte: given[element] for element, byte in moved}
    expected = np.full((64, 64), np.nan, np.float16)
    for element, byte in places(buffer):
        expected[element] = memory.get(byte, np.nan)
    for order in (None, random.Random(1)):
        np.testing.assert_array_equal(copied(kernel, given, order), expected)
    assert np.array_equal(expected, given) == (box in ((64, 64), (64, 8), (64, 4)) and span == 128)


@pytest.mark.parametrize("box, span", BOXES_AND_SPANS)
def test_a_store_reads_elements_as_the_hardware_does(box, span):
    given, kernel = numbered((64, 64)), stored(attrs.evolve(BACK, box=box, span=span))
    buffer = kernel.buffer("tile")
    moved = pairs(buffer, box, span)
    if moved is None or 64 % box[0] or 64 % box[1]:
        with pytest.raises(SimulationError, match="starts at byte|which is outside of the buffer|before any write"):
            copied(kernel, given)
        return
    memory = {byte: given[element] for element, byte in places(buffer)}
    expected = np.full((64, 64), np.nan, np.float16)
    for element, byte in moved:
        expected[element] = memory[byte]
    np.testing.assert_array_equal(copied(kernel, given), expected)


@pytest.mark.parametrize("span, dtype", [(128, float16), (64, float16), (32, float32), (16, float32)], ids=str)
def test_correct_tensor_maps(span, dtype):
    given = numbered((64, 64), dtype)
    kernel = loaded(making.tensor_map("src_map", "src", (1, 0), (span // dtype.bytes, 64), span), span=span, dtype=dtype)
    np.testing.assert_array_equal(copied(kernel, given), given)


def test_the_map_must_match_the_layout_of_the_array():
    """A row-major map does not fit a column-major array."""
    with pytest.raises(SimulationError, match=r"the tensor map src_map is invalid: the stride of dimension 0 of src is 2 bytes"):
        copied(loaded(RIGHT, layout=ColMajor), numbered((64, 64)))


def test_loads_out_of_bounds_are_zero():
    given = numbered((40, 24))
    got = copied(loaded(RIGHT, array=(40, 24), result=(64, 64)), given)
    np.testing.assert_array_equal(got[:40, :24], given)
    assert not got[40:].any() and not got[:, 24:].any()


def test_stores_out_of_bounds_are_omitted():
    given = numbered((40, 24))
    np.testing.assert_array_equal(copied(stored(BACK, array=(40, 24)), given), given)


def test_unbounded_accesses_out_of_bounds_are_reported():
    with pytest.raises(SimulationError, match=r"src\[40, 0\] is outside of the tensor"):
        copied(loaded(RIGHT, array=(40, 64), bounded=False), numbered((40, 64)))


def test_the_hardware_ignores_other_bounds():
    """A statement with a smaller bound than the array still copies the whole box."""
    kernel = loaded(RIGHT)
    (load,) = [stmt for stmt, _ in ir.execs(kernel.body) if stmt.ring]
    less = attrs.evolve(load, accesses=(attrs.evolve(load.accesses[0], bounds=(as_expr(8), None)), load.accesses[1]))
    body = ir.rewritten(kernel.body, lambda stmt: (less if stmt is load else stmt,))
    given = numbered((64, 64))
    np.testing.assert_array_equal(copied(attrs.evolve(kernel, body=body), given), given)


def test_transaction_bytes_are_those_of_boxes():
    """Boxes of a size other than the ring expects leave its mbarrier incomplete, or complete it too early."""
    for box in ((64, 48), (64, 128)):
        with pytest.raises(SimulationError, match="deadlock|becomes full|outside of the buffer"):
            copied(loaded(attrs.evolve(RIGHT, box=box)), numbered((64, 64)))


WRONG = {
    "of another array": ({"buffer": "dst"}, "it describes dst, but the statement copies src"),
    "no such dimension": ({"order": (2, 0)}, r"dimensions \(2, 0\) of an array of 2 dimensions"),
    "a dimension twice": ({"order": (1, 1)}, r"dimensions \(1, 1\) of an array of 2"),
    "too few dimensions": ({"order": (1,), "box": (64,)}, r"dimensions \(1,\) of an array of 2"),
    "a box of one dimension": ({"box": (64,)}, r"boxes of \(64,\) elements"),
    "an empty box": ({"box": (64, 0)}, "legal: 1 to 256 along each of 2"),
    "a box too long": ({"box": (64, 257)}, "legal: 1 to 256 along each of 2"),
    "no such span": ({"span": 48}, "a swizzle span of 48 bytes; legal: 16, 32, 64, 128"),
    "half a chunk": ({"box": (12, 64), "span": 16}, "box rows of 24 bytes, which is not a multiple of 16"),
    "rows above the span": ({"span": 64}, "box rows of 128 bytes with a swizzle span of 64"),
    "rows below the span": ({"box": (32, 64)}, "box rows of 64 bytes with a swizzle span of 128"),
    "transposed": ({"order": (0, 1)}, "the stride of dimension 1 of src is 2 bytes, which is not a multiple of 16"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_invalid_tensor_maps(name):
    change, message = WRONG[name]
    with pytest.raises(SimulationError, match=f"the tensor map src_map is invalid: .*{message}"):
        copied(loaded(attrs.evolve(RIGHT, **change)), numbered((64, 64)))


def test_largest_box_dimension():
    """256 elements along a dimension and rows of 16 bytes are legal."""
    given = numbered((256, 8))
    kernel = loaded(making.tensor_map("src_map", "src", (1, 0), (8, 256), 16), array=(256, 8), tile=(256, 8), span=16)
    np.testing.assert_array_equal(copied(kernel, given), given)


@pytest.mark.parametrize("columns, right", [(64, True), (72, True), (68, False)])
def test_strides_are_multiples_of_16_bytes(columns, right):
    given = numbered((64, columns))
    kernel = loaded(RIGHT, array=(64, columns))
    if right:
        np.testing.assert_array_equal(copied(kernel, given)[:, :64], given[:, :64])
        return
    with pytest.raises(SimulationError, match="the stride of dimension 0 of src is 136 bytes, which is not a multiple of 16"):
        copied(kernel, given)


def test_an_array_of_one_row_has_any_stride():
    given = numbered((1, 20))
    np.testing.assert_array_equal(copied(loaded(RIGHT, array=(1, 20)), given), given)


def test_arrays_start_at_multiples_of_16_bytes():
    kernel = loaded(RIGHT)
    first, *others = kernel.buffers
    first = attrs.evolve(first, tensor=attrs.evolve(first.tensor, align=8))
    with pytest.raises(SimulationError, match="src is aligned to 8 bytes, not to 16"):
        copied(attrs.evolve(kernel, buffers=(first, *others)), numbered((64, 64)))


@pytest.mark.parametrize("offset", [1024 + 16, 1024 + 64])
def test_boxes_start_at_multiples_of_128_bytes(offset):
    kernel = loaded(RIGHT)
    buffers = [attrs.evolve(buffer, offset=offset) if buffer.name == "tile" else buffer for buffer in kernel.buffers]
    moved = attrs.evolve(kernel, buffers=tuple(buffers), shared_bytes=kernel.shared_bytes + 64)
    with pytest.raises(SimulationError, match=f"a box of its tensor map starts at byte {offset} of shared memory"):
        copied(moved, numbered((64, 64)))


def test_the_swizzle_depends_on_the_address():
    """A tile that starts inside the swizzle period is not stored as its storage specifies."""
    kernel = loaded(RIGHT)
    buffers = [attrs.evolve(buffer, offset=1024 + 128) if buffer.name == "tile" else buffer for buffer in kernel.buffers]
    moved = attrs.evolve(kernel, buffers=tuple(buffers), shared_bytes=kernel.shared_bytes + 128)
    given = numbered((64, 64))
    memory = {byte: given[element] for element, byte in pairs(moved.buffer("tile"), (64, 64), 128)}
    got = copied(moved, given)
    assert not np.array_equal(got, given)
    for element, byte in places(moved.buffer("tile")):
        assert got[element] == memory.get(byte, np.nan)


# ---------------------------------------------------------------------------------------------- in kernels

FORMS = [("ring", 4), ("cluster", 0), ("turns", 0), ("share", 1), ("attention", 0), ("hopper-tasks", 0)]


def nontrivial_dimensions(order, tensor_map, sizes):
    """The dimensions and sizes of a box, without those of size 1."""
    return [(dim, size) for dim, size in zip(order, tensor_map.box, strict=True) if sizes[dim] > 1 or size > 1]


def faulty(tensor_map, sizes):
    """Named incorrect maps of an array; boxes of fewer rows would be correct."""
    first, second, *others = tensor_map.order
    for order in {tensor_map.order[::-1], (second, first, *others), (first, *others[::-1], second)}:
        if nontrivial_dimensions(order, tensor_map, sizes) != nontrivial_dimensions(tensor_map.order, tensor_map, sizes):
            yield f"dimensions {order}", attrs.evolve(tensor_map, order=order)
    for span in sorted({16, 64, 128} - {tensor_map.span}):
        yield f"spans of {span}", attrs.evolve(tensor_map, span=span)
    for dim, size in enumerate(tensor_map.box):
        yield (
            f"{size * 2} along dimension {dim}",
            attrs.evolve(tensor_map, box=(*tensor_map.box[:dim], size * 2, *tensor_map.box[dim + 1 :])),
        )
    yield "half a row", attrs.evolve(tensor_map, box=(tensor_map.box[0] // 2, *tensor_map.box[1:]))


@pytest.mark.parametrize("form, seed", FORMS)
def test_injected_faults_in_kernels(form, seed):
    """Each tensor map of each statement is changed: the simulator reports an error, or the values differ."""
    random_case = case(form, seed)
    clean = outputs(random_case, random_case.kernel, None)
    mapped = [*spots(random_case.kernel, ir.Exec, lambda stmt: stmt.tensor_map is not None)]
    assert mapped
    for spot in mapped:
        array = random_case.kernel.buffer(spot.one.tensor_map.buffer).tensor
        sizes = [size.evaluate(random_case.symbols) for size in array.shape]
        for name, changed in faulty(spot.one.tensor_map, sizes):
            kernel = spot.with_one(attrs.evolve(spot.one, tensor_map=changed))
            assert any(shadow_of(random_case, kernel, clean, [None])), (str(spot), name)


# ---------------------------------------------------------------------------------------------- single tensor maps


def of_rank(rank, box=None, order=None, memory=SH):
    """The boxes of a load of a tile of the given rank; its last two dimensions have 8 and 64 elements."""
    shape = (*(2,) * (rank - 2), 8, 64)
    move = Move(*shape, dtype=float16, src=RowMajor if rank == 2 else Layout(shape, strides(shape)))(GL, memory)(Block)
    array = making.buffer(
        Tensor("src", tuple(map(as_expr, shape)), float16, GL, Layout(shape, strides(shape))), None, as_expr(1), parameter=True
    )
    array = attrs.evolve(array, storage=array.tensor.storage(), elements=array.tensor.storage().extent)
    tile = local("tile", shape, SH, float16, Layout(shape, strides(shape)))
    order = tuple(reversed(range(rank))) if order is None else order
    tensor_map = making.tensor_map("src_map", "src", order, box or tuple(shape[dim] for dim in order), 128)
    accesses = access("src", (0,) * rank, shape), access("tile", (0,) * rank, shape, write=True)
    load = making.execution(TMA_LOAD, move, accesses, mechanism=TMA_LOADS, tensor_map=tensor_map, ring="ring")
    return TmaBoxes.of(load, {"src": array, "tile": tile}, lambda value: value.evaluate({}))


def strides(shape):
    return tuple(int(np.prod(shape[number + 1 :])) for number in range(len(shape)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_arrays_of_at_most_five_dimensions(rank):
    """All elements of the tile, in the order of a box in shared memory, each at its address."""
    if rank > 5:
        with pytest.raises(
            SimulationError, match=r"dimensions \(5, 4, 3, 2, 1, 0\) of an array of 6 dimensions(?s:.*)`order` lists the array's dimensions"
        ):
            of_rank(rank)
        return
    shape = (*(2,) * (rank - 2), 8, 64)
    boxes = of_rank(rank)
    expected = [*itertools.product(*map(range, shape))]
    np.testing.assert_array_equal(boxes.outside, expected)
    assert not boxes.inside.any() and [*boxes.in_box] == [2 * number for number in range(len(expected))]
    assert boxes.strides == strides(shape) and boxes.span == 128
    assert [*boxes.addresses([*boxes.outside.T])] == [*range(len(expected))]
    places = boxes.places(np.full((len(expected), 1), 1024))[:, 0]
    assert [*places] == [byte_of(1024 + 2 * number, 128) for number in range(len(expected))]


def test_several_boxes_of_a_tile():
    """Each box of half a tile starts at the address of its first element."""
    boxes = of_rank(3, box=(64, 4, 1))
    expected = [(i, 4 * j + y, x) for i in (0, 1) for j in (0, 1) for y in range(4) for x in range(64)]
    np.testing.assert_array_equal(boxes.outside, expected)
    np.testing.assert_array_equal(boxes.inside, [(i, j // 4 * 4, 0) for i, j, _ in expected])
    assert [*boxes.in_box] == [2 * number for number in range(256)] * 4


def test_other_copies_have_no_boxes():
    plain = making.execution(
        TMA_LOAD, Move(8, 64, dtype=float16)(GL, SH)(Block), (access("src", (0, 0), (8, 64)), access("tile", (0, 0), (8, 64), write=True))
    )
    assert TmaBoxes.of(plain, {}, int) is None
    for completion in (TMA_LOADS, TMA_STORES):
        assert TmaBoxes.of(attrs.evolve(plain, mechanism=completion), {}, int) is None, "row copies, without a tensor map"
    mapped = attrs.evolve(plain, tensor_map=RIGHT)
    for completion in (AT_ONCE, CP_ASYNC_GROUPS, WGMMA_GROUPS):
        assert TmaBoxes.of(attrs.evolve(mapped, mechanism=completion), {}, int) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("steps", "wrong"),
    [((0, 1), "0 bytes"), ((4, 1), "8 bytes"), ((8, 1), None), ((64, 1), None)],
)
def test_overlapping_rows(steps, wrong):
    """Strides of a map are positive multiples of 16 bytes, except for the contiguous dimension."""
    move = Move(8, 64, dtype=float16)(GL, SH)(Block)
    tensor = Tensor("src", (as_expr(8), as_expr(64)), float16, GL, Layout((8, 64), steps))
    storage = attrs.evolve(Tensor("src", (as_expr(8), as_expr(64)), float16, GL, RowMajor).storage(), layout=Layout((8, 64), steps))
    array = making.buffer(tensor, storage, as_expr(1), parameter=True)
    accesses = access("src", (0, 0), (8, 64)), access("tile", (0, 0), (8, 64), write=True)
    tensor_map = making.tensor_map("src_map", "src", (1, 0), (64, 8), 128)
    load = making.execution(TMA_LOAD, move, accesses, mechanism=TMA_LOADS, tensor_map=tensor_map, ring="ring")
    buffers = {"src": array, "tile": local("tile", (8, 64), SH, float16, RowMajor)}
    if wrong is None:
        assert TmaBoxes.of(load, buffers, lambda value: value.evaluate({})).strides == steps
        return
    with pytest.raises(SimulationError, match=f"the stride of dimension 0 of src is {wrong}, which is not a multiple of 16"):
        TmaBoxes.of(load, buffers, lambda value: value.evaluate({}))
