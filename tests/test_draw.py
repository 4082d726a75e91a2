"""Pictures are well formed and reproducible. Owners agree with the simulator, and bank conflicts with the check."""

import functools
import itertools
import re
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import generator
import numpy as np
import pytest
import scripts
from problems import NAMES, target_of
from ringed import by_warps, float16_gemm, product

from fireiron import *
from fireiron.check.access_trace import AccessTrace
from fireiron.check.banks import check_banks
from fireiron.cli import main
from fireiron.draw import KINDS, colors, copy_passes, flow, lanes, owners, ring, thread, tiles, timeline
from fireiron.draw import banks as banks_module
from fireiron.draw.picture import Picture
from fireiron.draw.shapes import Cells, Rect, Text, merged, wrapped
from fireiron.language import library
from fireiron.sim.launch import SingleLaunch
from fireiron.sim.plan import Plan
from fireiron.strategies import attention, hopper_ragged
from fireiron.values.expr import as_expr

ROOT = Path(__file__).parent.parent
NAMESPACE = "{http://www.w3.org/2000/svg}"
SMALL = {"M": 256, "N": 256, "K": 64}


@functools.cache
def program_of(name, **sizes):
    return library.bind(library.find(name), sizes).program(target_of(name))


def parsed(text):
    return ElementTree.fromstring(text.encode())


# ---------------------------------------------------------------------------------------------- shapes


def test_merged_cells_partition_the_grid():
    rng = np.random.default_rng(5)
    for _ in range(40):
        values = rng.integers(-1, 3, size=rng.integers(1, 9, size=2))
        seen = np.full(values.shape, -1)
        for value, left, top, right, bottom in merged(values.tolist()):
            assert (seen[top:bottom, left:right] == -1).all()
            seen[top:bottom, left:right] = value
        assert (seen == values).all()


def test_wrapped_text_is_complete():
    text = ".tile(Strided((4, 32), (4, 16))).to(Lane).layout(ColMajor).swizzle('uid // 16 % 4 * 16')"
    lines = wrapped(text, 30)
    assert all(len(line) <= 30 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_texts_are_escaped():
    nasty = "a < b && \"c\" > 'd' \x00 ü"
    picture = Picture("tree", nasty, 20, 20, (Text(1, 1, nasty, title=nasty), Rect(0, 0, 1, 1, title=nasty)))
    root = parsed(picture.svg)
    wanted = nasty.replace("\x00", "?")
    assert root.find(f"{NAMESPACE}title").text == wanted
    assert [one.text for one in root.iter(f"{NAMESPACE}title")] == [wanted] * 3
    assert "".join(root.find(f"{NAMESPACE}text").itertext()) == wanted * 2


def test_inks_are_legible():
    """Contrast of text on each background color, by the formula of WCAG 2."""

    def luminance(color):
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    grounds = [*colors.distinct(8), *colors.distinct(40), *colors.lane_colors(32), *colors.along(colors.SCALE, 32)]
    for ground in [*grounds, *(colors.heat(degree) for degree in (1, 2, 4, 8, 16, 32))]:
        bright, dark = sorted((luminance(ground), luminance(colors.ink_on(ground))), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 3.0, ground


# ---------------------------------------------------------------------------------------------- all strategies


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", NAMES)
def test_pictures_of_the_library(name):
    """All kinds, at the strategy's own sizes: fast, well formed, within the page, and the same bytes again."""
    program = program_of(name)
    _ = program.lowered
    start = time.process_time()
    gallery = draw(program, "all")
    assert time.process_time() - start < 15
    assert tuple(one.name for one in gallery) == KINDS
    for picture in gallery:
        root = parsed(picture.svg)
        assert (float(root.get("width")), float(root.get("height"))) == (picture.width, picture.height)
        assert picture.svg == draw(program, picture.name).svg
        for shape in picture.shapes:
            inside(picture, shape)


def inside(picture, shape):
    if isinstance(shape, Rect):
        assert shape.x >= 0 and shape.x + shape.width <= picture.width + 0.01
        assert shape.y >= 0 and shape.y + shape.height <= picture.height + 0.01
    elif isinstance(shape, Cells):
        assert len(shape.ys) == len(shape.values) + 1 and {len(row) + 1 for row in shape.values} == {len(shape.xs)}
        assert max(max(row) for row in shape.values) < len(shape.colors)
        assert max(shape.xs) <= picture.width and max(shape.ys) <= picture.height
    elif isinstance(shape, Text):
        left = shape.x - {"start": 0, "middle": shape.width / 2, "end": shape.width}[shape.anchor]
        assert left >= -1 and left + shape.width <= picture.width + 8, shape
        assert 0 < shape.y <= picture.height


def texts(picture):
    return [shape.text for shape in picture.shapes if isinstance(shape, Text)]


# ---------------------------------------------------------------------------------------------- the tree


def test_tree_shows_the_kernel():
    program = program_of("hmma_ampere", M=512, N=512, K=512)
    message = texts(draw(program, "tree"))
    for spec in ("MatMul(512,512,512)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor", "MatMul(16,8,16)(RF,RF,RF)(Warp)"):
        assert spec in message
    assert "HMMA_16816_F32" in message
    assert any(text.startswith("allocates a_sh: 128×64 float16 in SH, 4 copies, 64 KiB") for text in message)
    assert any("8 blocks of 256 threads" in text for text in message)
    assert any(text.startswith("in each iteration of k: block barrier") for text in message)
    listing = texts(draw(program_of("listing_2", **SMALL), "tree"))
    assert sum("in each iteration of k: block barrier" in text for text in listing) == 2 or any(
        "2 × block barrier" in text for text in listing
    )


def test_partial_tree_is_drawn():
    partial = MatMul.tile(32, 32).to(Block).split(8)(MatMul(64, 64, 64)(GL, GL, GL)(Kernel))
    assert any("not decomposed yet" in text for text in texts(draw(partial)))
    with pytest.raises(IncompleteError):
        draw(partial, "tiles")


# ---------------------------------------------------------------------------------------------- owners

strided_blocks = MatMul.tile(Strided((8, 64), (16, 128))).to(Block).tile(2, 4).to(Thread).split(1).tile(1, 1).done()
banded = MatMul.tile(32, 32).to(Block).rasterize(group_m=2).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
curved = MatMul.tile(32, 32).to(Block).hilbert().tile(4, 4).to(Thread).split(1).tile(1, 1).done()
OWNED = {
    **{
        name: lambda name=name: program_of(name, **SMALL)
        for name in ("gemm_nn", "gemm_tt", "hmma_ampere", "listing_2", "naive", "sgemm", "small")
    },
    "strided": lambda: strided_blocks(MatMul(128, 256, 8)(GL, GL, GL)(Kernel)).program(),
    "bands": lambda: banded(MatMul(192, 128, 8)(GL, GL, GL)(Kernel)).program(),
    "hilbert": lambda: curved(MatMul(190, 100, 8)(GL, GL, GL)(Kernel)).program(),
    "overhang": lambda: banded(MatMul(100, 75, 5)(GL, GL, GL)(Kernel)).program(),
    "run time": lambda: banded(MatMul(sym("M"), sym("N"), 5)(GL, GL, GL)(Kernel)).program(),
}


def simulated_writers(program, sizes):
    """The thread that writes each element of C last, numbered through the grid, from the simulator's shadow memory."""
    kernel = program.lowered
    plan = Plan(kernel, sizes)
    rng = np.random.default_rng(1)
    arrays = {}
    for buffer in kernel.buffers:
        if buffer.parameter and not buffer.written:
            shape = [plan.number(size) for size in buffer.tensor.shape]
            arrays[buffer.name] = rng.integers(-2, 3, size=shape).astype(buffer.dtype.numpy)
    launch = SingleLaunch(plan, arrays, tuple(range(plan.grid)), True, None)
    launch.run()
    low, high = (one[launch.parameters["C"].places] for one in launch.history.shadows["C"].writer)
    assert (low == high).all()
    return low // plan.pitch, low % plan.pitch


@pytest.mark.parametrize("case", OWNED)
def test_owners_equal_the_simulator(case):
    """Each element of C appears once, with the block and the thread that write it."""
    program = OWNED[case]()
    access_trace = AccessTrace(program.lowered)
    sizes = owners.sample_sizes(program.lowered, {"M": 90, "N": 70} if case == "run time" else {})
    blocks, threads = simulated_writers(program, sizes)
    drawn_block, drawn_thread = np.full(blocks.shape, -1), np.full(blocks.shape, -1)
    (place,) = [one for one in tiles.places(access_trace, ("C",)) if one.text != "read"]
    grid = int(blocks.max()) + 1
    for block in range(grid):
        picture = tiles.owners_of(access_trace, place, {**sizes, "block": block})
        assert picture is not None and picture.lanes_known and not picture.partial
        index = np.ix_(picture.rows, picture.columns)
        owned = picture.first >= 0
        assert (drawn_block[index][owned] == -1).all(), "two blocks"
        assert len(picture.points[0]) == len({*zip(*(part.tolist() for part in picture.points), strict=True)}) or case == "naive"
        assert (picture.warps[owned] == 1 << (picture.first[owned] // 32)).all(), "one warp each"
        drawn_block[index] = np.where(owned, block, drawn_block[index])
        drawn_thread[index] = np.where(owned, picture.first, drawn_thread[index])
    assert (drawn_block == blocks).all()
    assert (drawn_thread == threads).all()
    lets = {var.name: value for var, value in program.grown.whole.definitions.items()}
    coarse = owners.blocks_of(tiles._block_views(program.tree)["C"], lets, grid, sizes)
    for (row, column), block in np.ndenumerate(coarse.first):
        part = blocks[coarse.rows[row] : coarse.rows[row + 1], coarse.columns[column] : coarse.columns[column + 1]]
        assert (part == block).all()
    assert (coarse.count == 1).all() and (coarse.rows[-1], coarse.columns[-1]) == blocks.shape


@pytest.mark.parametrize("seed", (1, 2, 3, 4, 5, 6, 7, 8))
def test_owners_of_generated_strategies(seed):
    drawn, _ = generator.draw(seed)
    kernel = drawn.program.lowered
    access_trace, sizes = AccessTrace(kernel), owners.sample_sizes(kernel, drawn.sizes)
    blocks, threads = simulated_writers(drawn.program, sizes)
    (place,) = [one for one in tiles.places(access_trace, ("C",)) if one.text != "read"]
    for block in range(int(blocks.max()) + 1):
        picture = tiles.owners_of(access_trace, place, {**sizes, "block": block})
        index = np.ix_(picture.rows, picture.columns)
        owned = picture.first >= 0
        assert (blocks[index][owned] == block).all() and owned.sum() == (blocks == block).sum()
        assert (threads[index][owned] == picture.first[owned]).all()


REGISTERS = {
    **{name: (name, {"M": 512, "N": 512, "K": 128}) for name in ("hmma_ampere", "hopper", "maxwell", "sgemm", "hmma_turing", "hmma_volta")},
    "attention": ("attention", {}),
    "softmax": ("softmax", {}),
    "fragments": ("fp8_gemm", {}),
}


@pytest.mark.parametrize("case", REGISTERS)
def test_registers_of_a_thread(case):
    """Each number has the coordinates whose address is this number; and a thread has the elements that its statements access."""
    name, sizes = REGISTERS[case]
    program = program_of(name, **sizes)
    kernel = program.lowered
    access_trace = AccessTrace(kernel)
    fixed = {"block": 0, **owners.sample_sizes(kernel, {})}
    compared = 0
    for buffer in (buffer for buffer in kernel.buffers if buffer.memory.private and buffer.register_origin):
        uses = [use for use in access_trace.uses if use.access.buffer == buffer.name and owners.role(use) == "computed"]
        owned = owners.owners(access_trace, uses, fixed) if uses and buffer.tensor.copies == 1 else None
        for number in (0, 5, kernel.workers - 1):
            array = thread.held(access_trace, buffer, number, fixed)
            rows, columns = array.rows[array.own].tolist(), array.columns[array.own].tolist()
            assert array.count == int(str(buffer.elements)) and len({*zip(rows, columns, strict=True)}) == array.count
            vector = len(buffer.tensor.shape) == 1
            if len(buffer.tensor.shape) <= 2:
                places = [(column,) if vector else (row, column) for row, column in zip(rows, columns, strict=True)]
                frame = access_trace.frame([("thread", np.array([number]))], fixed)
                addresses = [int(np.max(frame.value(buffer.storage.address(tuple(map(as_expr, place)))))) for place in places]
                assert addresses == [*range(array.count)]
            if owned is None or owned.partial or not owned.lanes_known:
                continue
            of_thread = owned.points[0] == number
            accessed = {
                *zip(owned.rows[owned.points[1][of_thread]].tolist(), owned.columns[owned.points[2][of_thread]].tolist(), strict=True)
            }
            assert accessed == {*zip(rows, columns, strict=True)}
            compared += 1
    assert compared >= (0 if case in ("hopper", "fragments") else 3)


def test_the_picture_of_a_thread():
    """The accumulator of m16n8k16 has rows lane / 4 and 8 more, and two columns from lane % 4 * 2 on (PTX ISA)."""
    program = program_of("hmma_ampere", M=512, N=512, K=512)
    access_trace = AccessTrace(program.lowered)
    (buffer,) = (buffer for buffer in program.lowered.buffers if buffer.name == "c_rf")
    array = thread.held(access_trace, buffer, 37, {"block": 0})
    first = [(int(array.rows[5, number]), int(array.columns[5, number])) for number in range(4)]
    assert first == [(1, 66), (1, 67), (9, 66), (9, 67)]
    picture = draw(program, "thread", thread=37)
    shown = texts(picture)
    assert "row    = warp_m * 64 + r // 2 % 8 * 8 + lane // 4" in shown and "with     lane = 5, warp_m = 0, warp_n = 1" in shown
    assert "c_rf: 128 × 256 float32; 128 elements of the thread" in shown
    assert "a_rf: 64 × 16 float16, 2 copies; 32 elements of the thread, 2 of which share a 32-bit register" in shown
    for text in ("MatMul(128,256,512)(Block)", "MatMul(64,64,64)(Warp)"):
        assert text in shown
    assert any("Fragments whose lanes are not specified" in text for text in texts(draw(program_of("wmma_simple"), "thread")))
    with pytest.raises(ArgumentError, match="no such thread") as caught:
        draw(program, "thread", thread=256)
    assert caught.value.legal == "0 ... 255"
    with pytest.raises(ArgumentError, match="only the picture of a thread"):
        draw(program, "tiles", thread=3)


def test_permuted_lanes_of_a_warp():
    """The permutation of Listing 4: lane 1 owns the columns that lane 8 would own without it."""
    program = program_of("maxwell", **SMALL)
    access_trace = AccessTrace(program.lowered)
    (place,) = tiles.places(access_trace, ("c_rf",))
    owners = tiles.owners_of(access_trace, place, {"block": 0})
    rows, columns, masks = owners.lanes(0)
    assert masks.shape == (64, 32) and len(rows) == 64 and len(columns) == 32
    swizzle = [((uid >> 1) & 0x07) | (uid & 0x30) | ((uid & 0x01) << 3) for uid in range(32)]
    for lane, uid in enumerate(swizzle):
        here = np.argwhere(masks == 1 << lane)
        assert {tuple(one) for one in here[:1]} == {(4 * (uid % 8), 4 * (uid // 8))}
        assert len(here) == 64


def test_shared_reads():
    """A warp of hmma_ampere shares its rows of A with adjacent warps. WMMA does not specify which lane reads an element."""
    program = program_of("hmma_ampere", M=128, N=256, K=64)
    access_trace = AccessTrace(program.lowered)
    (read,) = [one for one in tiles.places(access_trace, ("A", "a_sh", "a_rf")) if one.text == "read from shared memory"]
    owners = tiles.owners_of(access_trace, read, {"block": 0})
    assert owners.warps.shape == (128, 64)
    assert (owners.warps[:64] == 0x0F).all() and (owners.warps[64:] == 0xF0).all()
    wmma = AccessTrace(program_of("wmma_simple").lowered)
    unknown = [tiles.owners_of(wmma, one, {"block": 0}) for one in tiles.places(wmma, ("C", "c_fr"))]
    assert unknown and not any(one.lanes_known for one in unknown)


def vectors_drawn(picture):
    """`(number, title, width and height of the box, width and height of the number)` of each box of the iteration panels."""
    numbers = {(round(one.x, 2), one.y): one for one in picture.shapes if isinstance(one, Text) and one.anchor == "middle"}
    for cells in picture.shapes:
        if isinstance(cells, Cells) and cells.titles and cells.titles[0].startswith("thread"):
            for value, x, y, width, height in cells.boxes():
                label = numbers[round(x + width / 2, 2), y + 9.4]
                yield label.text, cells.titles[value], (width, height), (label.width, label.size)


@pytest.mark.parametrize(("name", "vector"), [("hmma_ampere", 8), ("sgemm", 1)])
def test_copies_to_shared_memory_are_drawn_large(name, vector):
    """Each vector of the first warps has the number of the thread that copies it, and room for it; bars label the rest."""
    sizes = {"M": 256, "N": 256, "K": 128} if name == "hmma_ampere" else {"M": 256, "N": 256, "K": 64}
    program = program_of(name, **sizes)
    picture = draw(program, "tiles")
    boxes = list(vectors_drawn(picture))
    assert len(boxes) >= 64
    for number, title, box, letters in boxes:
        assert letters[0] <= box[0] and letters[1] <= box[1], number
        assert number.startswith("...") or title.startswith(f"thread {number}: "), title
    access_trace = AccessTrace(program.lowered)
    (copied,) = [
        copied_vector for copied_vector in tiles.places(access_trace, ("b_sh",)) if copied_vector.text == "copied into shared memory"
    ]
    owners = tiles.owners_of(access_trace, copied, {"block": 0})
    distribution = copy_passes.copy_passes(owners)
    seen = np.full(owners.first.shape, -1)
    for copied_vector in distribution.vectors:
        line = seen.T[copied_vector.line] if distribution.vertical else seen[copied_vector.line]
        assert (line[copied_vector.start : copied_vector.stop] == -1).all() and copied_vector.stop - copied_vector.start == vector
        line[copied_vector.start : copied_vector.stop] = copied_vector.thread
    assert (seen == owners.first).all()
    assert all(
        len({copied_vector.thread for copied_vector in vectors}) == distribution.threads == len(vectors)
        for vectors in distribution.passes()
    )
    for number, iteration in enumerate(distribution.passes()[1:7], 2):
        assert f"pass {number}: {distribution.where(iteration)}, the same threads again" in texts(picture)
    assert (
        copy_passes.copy_passes(
            attrs.evolve(owners, points=tuple(np.concatenate([copied_vector, copied_vector]) for copied_vector in owners.points))
        )
        == distribution
    )
    other = owners.points[0].copy()
    other[0] += 1
    twice = tuple(np.concatenate(pair) for pair in zip(owners.points, (other, *owners.points[1:]), strict=True))
    assert copy_passes.copy_passes(attrs.evolve(owners, points=twice)) is None, "an element of two threads"


def test_tiles_are_drawn_to_scale():
    """Tiles that a warp reads or computes are drawn to scale; so are copies by few warps if their numbers fit."""
    assert not list(vectors_drawn(draw(program_of("naive", **SMALL), "tiles")))


def test_tile_members():
    assert [owners.members(mask) for mask in (1, 0b1111, 0b10001, (1 << 32) - 1)] == ["0", "0-3", "0 4", "0-31"]
    assert owners.members(0x11111) == "0 4 8 ... (5)"


# ---------------------------------------------------------------------------------------------- lanes


def test_lane_maps_equal_the_instructions():
    maps = lanes.maps(program_of("hmma_ampere", M=128, N=256, K=64))
    assert list(maps) == ["HMMA_16816_F32", "LDMATRIX_16x16_ROW", "LDMATRIX_16x16_ROW_T"]
    a, b, c = maps["HMMA_16816_F32"]
    assert (a.operand, b.operand, c.operand) == ("A", "B", "C")
    for part in (a, b, c):
        owners = lanes.owners_of_elements(part.lane_map)
        assert all(len(element_owners) == 1 for element_owners in owners.values())
        assert {(lane, value) for element_owners in owners.values() for lane, value in element_owners} == {
            (lane, value) for lane in range(32) for value in range(part.lane_map.count)
        }
    # PTX ISA, matrix fragments of mma.m16n8k16: lane row % 8 * 4 + column / 2 owns C element (row, column).
    for (row, column), ((lane, value),) in lanes.owners_of_elements(c.lane_map).items():
        assert lane == row % 8 * 4 + column // 2 and value == row // 8 * 2 + column % 2
    message = texts(draw(program_of("hmma_ampere", M=128, N=256, K=64), "lanes"))
    assert "31:7" in message
    assert any("No instruction" in text for text in texts(draw(program_of("naive", **SMALL), "lanes")))


# ---------------------------------------------------------------------------------------------- banks


@pytest.mark.parametrize("name", NAMES)
def test_bank_passes_agree_with_the_check(name):
    """The heat map shows the passes of the check. Each finding is drawn or equals a drawn one."""
    access_trace = AccessTrace(program_of(name).lowered)
    findings = check_banks(access_trace)
    bank_loads = banks_module.loads(access_trace)
    for loads in bank_loads.values():
        for load in loads:
            assert load.passes == load.finding.details["wavefronts"]
            assert load.words.sum() == sum(len(set(part[part >= 0].tolist())) for part in np.split(load.lanes, len(load.words)))
    drawn = {(name, load.finding.access, load.passes) for name, loads in bank_loads.items() for load in loads}
    assert {(one.buffer, one.access, one.details["wavefronts"]) for one in findings} == drawn


def test_bank_conflicts_are_drawn():
    message = texts(draw(program_of("listing_2"), "banks"))
    assert any("8-way conflict" in text for text in message)
    assert any(text.startswith("with swizzle_storage(Swizzle(") and text.endswith(": 1 pass") for text in message)
    ampere = texts(draw(program_of("hmma_ampere", M=512, N=512, K=512), "banks"))
    assert "without swizzle: 32 passes" in ampere and "as stored: 4 passes" in ampere


def test_bank_of_an_element():
    """Compare with the address expression of the IR, which the printer uses."""
    access_trace = AccessTrace(program_of("hmma_ampere", M=512, N=512, K=512).lowered)
    for name in ("a_sh", "b_sh", "store_c_sh"):
        buffer = access_trace.kernel.buffer(name)
        rows, columns = np.arange(24), np.arange(64)
        drawn = banks_module.bank_of(buffer, rows, columns)
        for row in (0, 3, 9, 23):
            for column in (0, 7, 33, 63):
                address = buffer.storage.address((Const(row), Const(column))).value * buffer.dtype.bytes + buffer.offset
                assert drawn[row, column] == address // 4 % 32
        moved = banks_module.bank_of(attrs.evolve(buffer, offset=buffer.offset + 20), rows, columns)
        assert (moved == (drawn + 5) % 32).all()


# ---------------------------------------------------------------------------------------------- the pipeline


def test_timeline_reads_filled_stages():
    program = program_of("hmma_ampere", M=512, N=512, K=512)
    loop = timeline.pipeline_loop(program)
    slots = timeline.slots(program, loop, 8, {})
    for buffer in ("a_sh", "b_sh"):
        filled = {slot.data: slot.step for slot in slots if slot.write and slot.buffer == buffer}
        assert filled == {0: -1, 1: -1, 2: -1, **{data: data - 3 for data in range(3, 8)}}, "nothing beyond the last tile"
        used = {(slot.step, slot.data) for slot in slots if not slot.write and slot.buffer == buffer}
        assert used >= {(step, step) for step in range(8)}
        assert used <= {(step, data) for step in range(-1, 8) for data in (step, step + 1)}
        assert all(slot.copy == slot.data % 4 for slot in slots)
    assert timeline.pipeline_loop(program_of("listing_2")) is None


RING_STRATEGIES = {
    "in flight 0, staying": (product(stages=3, blocks=2), float16_gemm(512, 64, 320)),
    "in flight 1, staying": (product((64, 64, 64), stages=3, blocks=2), float16_gemm(256, 64, 320)),
    "in flight 2": (product(stages=4, mma_in_flight=2), float16_gemm(128, 64, 640)),
    "one stage": (product((64, 64, 64), stages=1), float16_gemm(64, 64, 320)),
    "warps": (by_warps(), float16_gemm(128, 64, 320)),
    "chained": (product(stages=2).at(Tile).refine(ProgrammaticLaunch()), float16_gemm(128, 64, 320)),
    "sizes at run time": (product((64, 64, 64), blocks=3), float16_gemm(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8))),
}


@pytest.mark.parametrize("name", RING_STRATEGIES)
def test_ring_timeline_follows_the_protocol(name):
    """Each stage is filled after its release, used while full, and released after its use; consumers do one thing at a time."""
    strategy, spec = RING_STRATEGIES[name]
    program = strategy(spec).program("sm_90a")
    picture = ring.ring_timeline(program, owners.sample_sizes(program.lowered, {}))
    stages = picture.ring.stages
    assert [fill.stage for fill in picture.fills] == [place % stages for place in range(len(picture.fills))]
    for place, fill in enumerate(picture.fills):
        assert fill.full == fill.requested + ring.LOAD <= fill.began and fill.ended == fill.began + ring.USE
        assert fill.released is None or fill.released >= fill.ended
        if place >= stages:
            assert fill.requested >= picture.fills[place - stages].released
    busy = sorted([(fill.began, fill.ended) for fill in picture.fills] + list(picture.stores))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(busy))
    assert bool(picture.stores)
    lanes = [one.text for one in draw(program, "timeline").shapes if isinstance(one, Text)]
    assert "producer, 1 thread" in lanes and [text for text in lanes if text.startswith("stage ")] == [f"stage {n}" for n in range(stages)]
    assert any(text.startswith("consumers, ") for text in lanes)


def test_ring_timeline_continues_across_tiles():
    """Two tiles of five iterations: the first fills of the next tile are requested while this tile is stored."""
    strategy, spec = RING_STRATEGIES["in flight 1, staying"]
    picture = ring.ring_timeline(strategy(spec).program("sm_90a"), {})
    assert [fill.number for fill in picture.fills] == list(range(10)) and picture.shortened == ()
    (first, second) = picture.stores
    assert any(first[0] <= fill.requested < first[1] for fill in picture.fills[5:])
    assert [fill.released - fill.ended for fill in picture.fills[:3]] == [1, 1, 2], "an iteration later, at the wait for its MMAs"
    assert second[0] == picture.fills[-1].ended


def test_long_ring_timeline_is_shortened():
    picture = ring.ring_timeline(program_of("hopper", M=4096, N=4096, K=4096), {})
    assert picture.shortened == (("k", 8, 64),)
    assert [fill.number for fill in picture.fills] == [*range(8), *range(64, 72)]


def test_ring_timeline_of_data_dependent_tiles():
    """Groups of rows: a picture assumes all groups, because data select them at run time."""
    program = hopper_ragged.strategy.with_(bm=64, bn=64)(hopper_ragged.spec(64, 64, 128, 3)).program("sm_90a")
    assert [fill.number for fill in ring.ring_timeline(program, {}).fills] == [0, 1, 2, 3, 4, 5]
    assert len(draw(program, "tiles").shapes) > 10


# ---------------------------------------------------------------------------------------------- files


def test_write_png(tmp_path):
    pytest.importorskip("matplotlib")
    draw(program_of("hmma_ampere", M=512, N=512, K=512), "tree", tmp_path / "tree.png")
    data = (tmp_path / "tree.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") == 1800
    from matplotlib import image

    pixels = image.imread(tmp_path / "tree.png")
    assert len(np.unique((pixels * 255).astype(np.uint32) @ (1 << 8 * np.arange(pixels.shape[2])))) > 50, "drawn in colors"
    small = draw(program_of("small"), "timeline")
    assert small.png(0.5) == small.png(0.5)
    with pytest.raises(ArgumentError):
        small.png(0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_as_png(kind):
    pytest.importorskip("matplotlib")
    assert draw(program_of("small"), kind).png(0.5).startswith(b"\x89PNG")


def test_page_is_self_contained(tmp_path):
    program = program_of("maxwell", **SMALL)
    page = draw(program, "all", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == len(KINDS) and "<details>" in text and "__global__ void" in text
    assert ".split(8).sync()" in text
    assert not re.search(r'(src|href)="(?!#)', text) and "@import" not in text and "url(" not in text
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert page._repr_html_().count("<svg") == len(KINDS)
    assert draw(program)._repr_svg_() == draw(program).svg


def test_existing_files_are_kept(tmp_path):
    program = program_of("naive", **SMALL)
    path = tmp_path / "tree.svg"
    draw(program, "tree", path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="exists"):
        draw(program, "tree", path)
    path.write_text("mine")
    draw(program, "tree", path, overwrite=True)
    assert path.read_bytes() == before
    draw(program, ("tree", "banks"), tmp_path / "folder")
    assert sorted(one.name for one in (tmp_path / "folder").iterdir()) == ["banks.svg", "tree.svg"]
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    for bad, kind in (("tree.pdf", "tree"), ("two.svg", ("tree", "banks"))):
        with pytest.raises(ArgumentError):
            draw(program, kind, tmp_path / bad)
    with pytest.raises(StoreError):
        draw(program, "tree", tmp_path / "missing" / "tree.svg")
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError):
        draw(program, "tree", path, overwrite=True)


def test_draw_argument_errors():
    program = program_of("naive", **SMALL)
    for what in ("nothing", (), ("tree", 3)):
        with pytest.raises(ArgumentError):
            draw(program, what)
    with pytest.raises(ArgumentError):
        draw("maxwell")
    with pytest.raises(ArgumentError):
        draw(program, "tree", architecture="sm_80")
    with pytest.raises(ArgumentError, match="no run-time size"):
        draw(program, "tiles", sizes={"M": 12})
    symbolic = banded(MatMul(sym("M", multiple_of=4), 64, 5)(GL, GL, GL)(Kernel))
    with pytest.raises(ArgumentError, match="M"):
        draw(symbolic, "tiles", sizes={"M": 3})
    assert any("M = 36" in text for text in texts(draw(symbolic, "tiles", sizes={"M": 36})))
    assert draw(symbolic.compile("sm_80"), "tree").svg == draw(symbolic, architecture="sm_80").svg


def test_draw_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "naive"]) == 0
    assert capsys.readouterr().out == f"naive.html  {', '.join(KINDS)}\n"
    assert main(["draw", "naive"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["draw", "naive", "--force", "--what", "tree, tiles"]) == 0
    assert Path("naive.html").read_text().count("<svg") == 2
    capsys.readouterr()
    assert main(["draw", "naive", "-M", "M", "--what", "tiles", "-o", "-"]) == 0
    parsed(capsys.readouterr().out)
    assert main(["draw", "naive", "-o", "-"]) == 2
    assert main(["draw", "naive", "--what", "cats"]) == 2
    assert main(["draw", "naive", "--what", "tiles", "--thread", "3", "-o", "-"]) == 2
    capsys.readouterr()
    assert main(["draw", "naive", "--what", "thread", "--thread", "3", "-o", "-"]) == 0
    assert "Thread 3 of " in capsys.readouterr().out
    (tmp_path / "mine.py").write_text("from fireiron import *\nfast = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()\n")
    assert main(["draw", "mine.py:fast", "-M", "16", "-N", "16", "-K", "4"]) == 0
    assert Path("mine_fast.html").exists()


def test_pictures_in_docs_are_up_to_date():
    """The pictures of docs/ equal those that this version draws; run `make pictures` if this fails."""
    module = scripts.loaded("docs/make_pictures.py")
    shown = set(re.findall(r"\]\((pictures/[^)]+)\)", (ROOT / "docs" / "pictures.md").read_text()))
    pages = [path for path in [*(ROOT / "docs").glob("**/*.md"), ROOT / "README.md"] if path.name != "pictures.md"]
    elsewhere = {name for path in pages for name in re.findall(r"(pictures/[\w-]+\.svg)", path.read_text())}
    assert shown | elsewhere >= {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "pictures").iterdir()} >= shown
    drawn = [one for strategy, (kinds, sizes) in module.PICTURES.items() for one in module.drawn(strategy, kinds, sizes)]
    for path, text in [module.readme(), *drawn]:
        assert path.read_text(encoding="utf-8") == text, path.name


def test_data_flow_of_a_definition():
    """Each step reads the latest value. Values that a later step of the loop writes are read in the next iteration."""
    steps = flow.steps_of(attention.spec(64, 64, 64))
    names = [one.name for one in steps]
    edges = {(one.name, names[one.writer], names[one.reader], one.carried) for one in flow.edges(steps, ("Q", "K", "V", "scale", "O"))}
    assert {("mx", "mx", "new", False), ("mx", "keep", "new", True), ("mx", "keep", "exp", False), ("p", "p", "pv", False)} <= edges
    assert ("mx", "mx", "exp", False) not in edges and ("s", "s", "exp", False) in edges
    assert all(name not in ("Q", "K", "V", "O") for name, *_ in edges)
    texts = {shape.text for shape in draw(attention.strategy(attention.spec(64, 64, 64)), "flow").shapes if isinstance(shape, Text)}
    assert {"Q", "K", "V", "O", "for each part of n", "once, after the loop", "p[m,n] = s[m,n]"} <= texts
