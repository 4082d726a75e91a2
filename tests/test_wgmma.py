"""wgmma: lane maps and descriptors compared with the PTX ISA, storage layouts, kernels compared with NumPy, refusals, injected faults."""

import itertools
import os
import random
import re

import attrs
import pytest
from faults import faults
from instructions import product_of_warpgroups
from problems import called, integers, simulated

from fireiron import *
from fireiron import ARCHITECTURES, ir
from fireiron.check import safety
from fireiron.cost.gpus import GPUS
from fireiron.cost.work import Work
from fireiron.executable.wgmma import operand_map
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.smem_layouts import SPANS, SmemLayout, chunk_layout, smem_layout_of, swizzle_of, widest_span
from fireiron.lower.walk import grow_tree
from fireiron.performing.descriptors import MODES
from fireiron.performing.warpgroups import accumulator_map
from fireiron.sim import simulate
from fireiron.values.expr import constant
from fireiron.values.tensor import Storage, whole_view

np = pytest.importorskip("numpy")
BY_NAME = {one.name: one for one in WGMMA}
F16 = BY_NAME["WGMMA_F16_F32"]
SWAPPED = BY_NAME["WGMMA_F16_F32_SWAPPED"]
SM_90A = next(one for one in ARCHITECTURES if one.name == "sm_90a")
named = pytest.mark.parametrize("form", WGMMA, ids=lambda one: one.name)
ORDERS = {"NN": (RowMajor, RowMajor), "NT": (RowMajor, ColMajor), "TN": (ColMajor, RowMajor), "TT": (ColMajor, ColMajor)}
in_orders = pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")


def numpy_type(dtype):
    """The NumPy type of an element; skips if ml_dtypes is missing."""
    if dtype in (bfloat16, float8_e4m3, float8_e5m2):
        pytest.importorskip("ml_dtypes")
    return dtype.to_numpy()


def require_right(strategy, sizes=None, orders=(None, 1)):
    """The kernel of a bound strategy has no findings, and equals NumPy with warps in lockstep and in random order."""
    program = strategy.program("sm_90a")
    spec, kernel = program.spec, program.ir
    assert [one for one in safety(kernel) if one.severity == "error"] == []
    generator = np.random.default_rng(7)
    sizes = sizes or {}
    shapes = [tuple(size.evaluate(sizes) for size in spec.operands[name].shape) for name in "AB"]
    for name in "AB":
        numpy_type(spec.operands[name].dtype)
    a, b = (integers(shape, spec.operands[name].dtype, generator) for name, shape in zip("AB", shapes, strict=True))
    symbols = {var.name: sizes[var.name] for var in kernel.symbols}
    for order in orders:
        got = simulate(kernel, {"A": a, "B": b}, symbols, order=None if order is None else random.Random(order)).outputs["C"]
        assert np.array_equal(got, spec.reference(a, b))
    return program


def products_of(kernel):
    """The wgmma statements."""
    return [one for one, _ in ir.execs(kernel.body) if isinstance(one.instruction, Wgmma)]


# ---------------------------------------------------------------------------------------------- ownership


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_accumulator_layout_of_the_ptx_isa(columns):
    """ "Register Fragments for wgmma.mma_async.m64nNk16", matrix D: %laneid of warp %warpid % 4, i."""
    straight, swapped = accumulator_map(columns, False), accumulator_map(columns, True)
    assert straight.threads == swapped.threads == 128 and straight.count == columns // 2
    for thread, i in itertools.product(range(128), range(columns // 2)):
        row = (thread // 32) * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + thread % 4 * 2 + (i & 1)
        assert straight.coordinate(thread, i) == (row, column)
        assert swapped.coordinate(thread, i) == (column, row)


@pytest.mark.parametrize("element", [1, 2, 4])
@pytest.mark.parametrize("rows", [8, 24, 64, 104, 256])
@pytest.mark.parametrize("along_k", [0, 1])
def test_each_element_of_an_operand_is_read(element, rows, along_k):
    """Every element is in the map, in pieces of 16 bytes along the contiguous dimension of the chunk; some may occur twice if there are few
    rows.
    """
    for along in (along_k, *((1 - along_k,) if element == 2 else ())):
        tile = [rows, rows]
        tile[along_k] = 32 // element
        lane_map = operand_map(tuple(tile), along_k, along, element)
        assert lane_map.threads == 128
        assert {point for lane in lane_map.table for point in lane} == set(itertools.product(*map(range, tile)))
        piece = 16 // element if along == along_k else 8
        for lane in lane_map.table:
            assert all(point[along] - lane[0][along] == place for place, point in enumerate(lane[:piece]))


# ---------------------------------------------------------------------------------------------- descriptors


def addresses_by_descriptor(start, chunk_stride, group_stride, mode, k_major, extent, depth, element):
    """The byte that the hardware reads for element (i, k) of an operand, from the PTX ISA, "Shared Memory Matrix Layout".

    Core matrices are eight rows of 16 bytes; a swizzle atom is eight rows of 128, 64 or 32 bytes, of which address bits 4-6 are XORed with
    bits 7-9, as many of both as the mode has.
    """
    span = {0: 16, 1: 128, 2: 64, 3: 32}[mode]
    i, k = np.meshgrid(np.arange(extent), np.arange(depth), indexing="ij")
    line, row = (k, i) if k_major else (i, k)
    byte = line * element
    place = start + row // 8 * group_stride + row % 8 * span + byte // span * chunk_stride + byte % span
    bits = span // 16 - 1
    return place ^ ((place >> 7 & bits) << 4)


def require_descriptors(kernel):
    """All elements that a kernel's wgmmas read through descriptors are at the addresses given by the storage."""
    seen = set()
    for statement in products_of(kernel):
        for name in statement.instruction.in_shared:
            view, access = statement.spec.operands[name], statement.at_first_lane(name)
            buffer = kernel.buffer(view.tensor.name)
            element, along_k = view.dtype.bytes, statement.spec.uses[name].index("k")
            chunks = smem_layout_of(buffer.storage, view, element)
            extent, depth = (constant(view.shape[dim]) for dim in (1 - along_k, along_k))
            loops = list({one for base in (*access.base, access.copy) for one in base.variables()})
            for values in itertools.islice(itertools.product(*(range(var.low, var.high + 1) for var in loops)), 600):
                env = {var.name: value for var, value in zip(loops, values, strict=True)}
                base = [one.evaluate(env) for one in access.base]
                first = access.copy.evaluate(env) * constant(buffer.elements)
                start = (first + buffer.storage.address(base)) * element
                assert start % 16 == 0
                got = addresses_by_descriptor(
                    start, chunks.chunk_stride, chunks.group_stride, MODES[chunks.span], chunks.along == along_k, extent, depth, element
                )
                i, k = np.meshgrid(np.arange(extent), np.arange(depth), indexing="ij")
                inside = (k, i) if along_k == 0 else (i, k)
                wanted = (first + buffer.storage.address([one + at for one, at in zip(base, inside, strict=True)])) * element
                assert np.array_equal(got, wanted), (name, chunks, env)
            assert buffer.tensor.align >= 1024 and buffer.offset % 1024 == 0
            seen.add((chunks.along == along_k, chunks.span, bool(chunks.chunk_stride)))
    return seen


@in_orders
@pytest.mark.parametrize("chunk", [16, 32, 64, 128])
@pytest.mark.parametrize(("tiles", "columns"), [((128, 64), 64), ((64, 128), 128), ((64, 96), 48), ((128, 8), 8)])
def test_descriptors_name_the_elements(orders, chunk, tiles, columns):
    kernel = product_of_warpgroups(F16, tiles, chunk, 2, columns, orders).program("sm_90a").ir
    assert require_descriptors(kernel)


def test_descriptors_of_every_kind():
    """All spans occur, along k and across, in one chunk and in several."""
    seen = set()
    for form, chunk, tiles, columns, orders in (
        (F16, 64, (128, 128), 128, (ColMajor, RowMajor)),
        (F16, 64, (64, 96), 96, (RowMajor, RowMajor)),
        (F16, 32, (64, 48), 48, (RowMajor, RowMajor)),
        (F16, 16, (64, 64), 64, (RowMajor, ColMajor)),
        (SWAPPED, 64, (32, 64), 32, (ColMajor, RowMajor)),
        (SWAPPED, 48, (24, 64), 24, (ColMajor, RowMajor)),
        (BY_NAME["WGMMA_S8_S32"], 128, (64, 32), 32, None),
        (BY_NAME["WGMMA_TF32_F32"], 16, (64, 24), 24, None),
    ):
        seen |= require_descriptors(product_of_warpgroups(form, tiles, chunk, 1, columns, orders).program("sm_90a").ir)
    assert seen >= {
        *((True, span, False) for span in (128, 64, 32)), *((False, span, False) for span in (128, 64)),
        *((False, span, True) for span in (128, 64, 32)),
    }  # fmt: skip


def test_chunks_of_16_bytes_have_a_stride_along_k():
    """Without a swizzle, core matrices of 8 x 16 bytes follow each other: two of them along k."""
    layout = chunk_layout((64, 64), 1, 16, 2)
    strategy = by_hand(layout, None)
    kernel = require_right(strategy).ir
    assert (True, 16, True) in require_descriptors(kernel)
    assert "matrix_descriptor<1024, 128, 0>" in strategy.program("sm_90a").cuda


@pytest.mark.parametrize(
    ("orders", "tiles", "columns", "wanted"),
    [
        ("NT", (64, 64), 64, ["<0, 1024, 1>", "<0, 1024, 1>"]),
        ("NN", (64, 128), 128, ["<0, 1024, 1>", "<8192, 1024, 1>"]),
        ("NN", (64, 96), 96, ["<0, 1024, 1>", "<4096, 512, 2>"]),
        ("NN", (64, 48), 48, ["<0, 1024, 1>", "<2048, 256, 3>"]),
        ("TN", (64, 64), 64, ["<0, 1024, 1>", "<0, 1024, 1>"]),
    ],
)
def test_printed_descriptors(orders, tiles, columns, wanted):
    """Chunks of 64 columns and 64 rows of k are 8192 bytes apart, eight rows of 128 bytes per group; narrower spans if these do not divide."""
    text = product_of_warpgroups(F16, tiles, 64, 1, columns, ORDERS[orders]).program("sm_90a").cuda
    assert re.findall(r"matrix_descriptor(<\d.*?>)", text) == wanted


def test_fields_of_a_descriptor():
    """The function's text, evaluated as Python: 14 bits of the address, then the strides, each without its last four bits, then the mode."""
    text = product_of_warpgroups(F16, (64, 128), 64, 1, 128, ORDERS["NN"]).program("sm_90a").cuda
    (body,) = re.findall(r"matrix_descriptor\(unsigned address\)\s+\{\s+return (.*?);", text, re.DOTALL)
    body = re.sub(r"static_cast<unsigned long long>", "", body).replace("\n", " ")
    got = eval(body, {"address": 0x1000400 + 32, "leading_bytes": 8192, "stride_bytes": 1024, "swizzle": 1})
    assert got == (0x420 >> 4) | (8192 >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62


# ---------------------------------------------------------------------------------------------- storage


def by_hand(layout, swizzle, operand="A", form=F16, orders=None, tiles=(64, 64), chunk=64):
    """A GEMM with one operand stored as requested."""
    move = Move.coalesced_copy(16 // form.factors[0].bytes).done()
    chain = MatMul.tile(*tiles).to(Block).epilog(RF, form.result, Init.done(), Move.done()).split(chunk)
    chain = chain.load(A, SH, move)
    if operand == "A":
        chain = chain.storage_layout(layout) if swizzle is None else chain.storage_layout(layout).swizzle_storage(swizzle)
    chain = chain.load(B, SH, move)
    if operand == "B":
        chain = chain.storage_layout(layout) if swizzle is None else chain.storage_layout(layout).swizzle_storage(swizzle)
    a, b = orders or (RowMajor, ColMajor)
    spec = MatMul(tiles[0], 2 * tiles[1], 2 * chunk, dtype=form.factors, c_dtype=form.result, A=a, B=b, C=RowMajor)(GL, GL, GL)(Kernel)
    return chain.tile(64, tiles[1]).to(Warpgroup).split(form.depth).unroll().done()(spec)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("element", [1, 2, 4])
def test_chunks_are_derived_from_a_storage(span, element):
    width = span // element
    for along, rows in ((0, 16), (1, 64)):
        shape = (2 * width, rows) if along == 0 else (rows, 2 * width)
        layout = chunk_layout(shape, along, span, element)
        storage = Storage(layout, 2 * width * rows, swizzle_of(span, element))
        view = whole_view(Tensor("t", shape, {1: int8, 2: float16, 4: float32}[element], SH, layout, swizzle=storage.swizzle))
        assert smem_layout_of(storage, view, element) == SmemLayout(along, span, 8 * span, rows * span)
        wrong = attrs.evolve(storage, swizzle=swizzle_of(128 if span < 128 else 64, element))
        assert isinstance(smem_layout_of(wrong, view, element), str)
    assert widest_span(2 * width, element) >= span and widest_span(16 // element + 1, element) is None


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_requested_storage_is_read_unchanged(span, operand):
    along = 1 if operand == "A" else 0
    strategy = by_hand(chunk_layout((64, 64), along, span, 2), swizzle_of(span, 2), operand)
    program = require_right(strategy)
    assert require_descriptors(program.ir)
    buffer = program.ir.buffer(f"{operand.lower()}_sh")
    assert buffer.storage.swizzle == swizzle_of(span, 2) and not buffer.tensor.free


def test_a_row_of_128_bytes_is_a_chunk():
    """Row-major rows of 128 bytes, swizzled, match the instruction; users need not know about chunks."""
    assert require_descriptors(require_right(by_hand(RowMajor, swizzle_of(128, 2))).ir) == {(True, 128, False)}
    assert require_descriptors(require_right(by_hand(ColMajor, swizzle_of(128, 2), "A", orders=ORDERS["TT"])).ir) >= {(False, 128, False)}


@in_orders
def test_free_storage_follows_the_source(orders):
    """An operand in shared memory is contiguous along the contiguous dimension of its source, so that 16 bytes are copied at once."""
    kernel = product_of_warpgroups(F16, (64, 64), 64, 2, orders=orders).program("sm_90a").ir
    for statement in products_of(kernel):
        for name, order in zip("AB", orders, strict=True):
            view = statement.spec.operands[name]
            assert view.tensor.free
            assert smem_layout_of(kernel.buffer(view.tensor.name).storage, view, 2).along == (1 if order == RowMajor else 0)
    assert {one.vector for one, _ in ir.execs(kernel.body) if one.mechanism is CP_ASYNC_GROUPS} == {8}


@pytest.mark.parametrize("name", ["WGMMA_TF32_F32", "WGMMA_S8_S32", "WGMMA_E4M3_F32"])
@in_orders
def test_other_element_types_are_stored_along_k(name, orders):
    """Only 16-bit elements are read across k: others are stored along k, whatever their source."""
    form = BY_NAME[name]
    chunk = 128 // form.factors[0].bytes
    kernel = require_right(product_of_warpgroups(form, (64, 32), chunk, 1, 32, orders)).ir
    assert all(along_k for along_k, _, _ in require_descriptors(kernel))


def test_storage_without_a_requesting_leaf_is_unchanged():
    """A free buffer that no wgmma reads is stored by default."""
    chain = MatMul.tile(64, 64).to(Block).split(16).load(A, SH, Move.tile(1, 1).to(Thread).done())
    spec = MatMul(64, 64, 32)(GL, GL, GL)(Kernel)
    buffer = chain.tile(8, 8).to(Thread).tile(1, 1).split(1).done()(spec).program("sm_90a").ir.buffer("a_sh")
    assert buffer.tensor.free and buffer.storage.swizzle is None


def test_two_leaves_that_need_different_storage():
    """A second leaf may request the same storage as the first, but not another one."""
    draft = grow_tree(MatMul(64, 64, 64)(GL, GL, GL)(Kernel), (), SM_90A, INSTRUCTIONS).context.draft()
    tensor = Tensor("a_sh", (64, 64), float16, SH, ColMajor, free=True)
    wide, narrow = (Storage(chunk_layout((64, 64), 0, span, 2), 4096, swizzle_of(span, 2)) for span in (128, 64))
    assert draft.choose_storage(tensor, wide) == draft.choose_storage(tensor, wide) == wide
    with pytest.raises(DecompositionError) as caught:
        draft.choose_storage(tensor, narrow)
    text = str(caught.value)
    wanted = f"{wide.layout}, {wide.swizzle} and {narrow.layout}, {narrow.swizzle}"
    assert text.startswith(f"a_sh: two leaves need different storage, {wanted}")
    assert "load the operand twice, or specify the storage: .storage_layout(...).swizzle_storage(...)" in text
    assert draft.expansion((), ()).chosen_storage == (("a_sh", wide),)


# ---------------------------------------------------------------------------------------------- refusals


def warpgroup_spec(m=64, n=64, k=16, dtype=(float16, float16), c_dtype=float32, memories=(SH, SH, RF), level=Warpgroup, **options):
    """The spec of a leaf, with its operands free in shared memory or as `options` state."""
    tensors = [
        Tensor(name, shape, type_name, memory, options.get(name, order), free=name not in options)
        for name, shape, type_name, memory, order in zip(
            "ABC", ((m, k), (k, n), (m, n)), (*dtype, c_dtype), memories, (RowMajor, ColMajor, RowMajor), strict=True
        )
    ]
    return MatMul.on(level, *map(whole_view, tensors))


REFUSED = {
    "level": (F16, warpgroup_spec(level=Warp), "level", "Warpgroup", "Warp"),
    "rows": (F16, warpgroup_spec(m=32), "shape", "m a multiple of 64", "m 32"),
    "narrow": (F16, warpgroup_spec(n=4), "shape", "n 8 to 256 by 8", "n 4"),
    "wide": (F16, warpgroup_spec(n=264), "shape", "n 8 to 256 by 8", "n 264"),
    "odd": (F16, warpgroup_spec(n=20), "shape", "n 8 to 256 by 8", "n 20"),
    "deep": (F16, warpgroup_spec(k=32), "shape", "k 16, or more with an accumulator (epilog)", "k 32"),
    "swapped": (SWAPPED, warpgroup_spec(m=64, n=32), "shape", "n a multiple of 64", "n 32"),
    "bytes": (
        BY_NAME["WGMMA_S8_S32"], warpgroup_spec(n=40, k=32, dtype=(int8, int8), c_dtype=int32),
        "shape", "n 8 to 32 by 8, to 256 by 16", "n 40",
    ),
    "A type": (F16, warpgroup_spec(dtype=(bfloat16, float16)), "A type", "float16", "bfloat16"),
    "B type": (F16, warpgroup_spec(dtype=(float16, float32)), "B type", "float16", "float32"),
    "C type": (F16, warpgroup_spec(c_dtype=float16), "C type", "float32", "float16"),
    "A memory": (F16, warpgroup_spec(memories=(RF, SH, RF)), "A memory", "SH", "RF"),
    "B memory": (F16, warpgroup_spec(memories=(SH, GL, RF)), "B memory", "SH", "GL"),
    "C memory": (F16, warpgroup_spec(memories=(SH, SH, SH)), "C memory", "RF", "SH"),
    "plain": (
        F16, warpgroup_spec(k=16, A=RowMajor), "A storage", "chunks of 128, 64, 32, 16 bytes, swizzled",
        "rows that are not chunks of 128, 64, 32 or 16 bytes ((64,16):(16,1), no swizzle)",
    ),
    "across": (
        BY_NAME["WGMMA_S8_S32"],
        warpgroup_spec(n=64, k=32, dtype=(int8, int8), c_dtype=int32, A=chunk_layout((64, 32), 0, 16, 1)),
        "A storage", "elements contiguous along k, because they do not have 16 bits", "elements contiguous along m",
    ),
    "across, not swizzled": (
        F16, warpgroup_spec(B=chunk_layout((16, 64), 1, 16, 2)), "B storage", "swizzled chunks", "chunks of 16 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_differences(name):
    form, spec, field, wanted, got = REFUSED[name]
    assert [(one.field, one.wanted, one.got) for one in form.mismatches(spec, SM_90A) if one.field == field] == [(field, wanted, got)]


@pytest.mark.parametrize("target", [one for one in ARCHITECTURES if one.name != "sm_90a"], ids=str)
def test_only_sm_90a_has_it(target):
    for form in WGMMA:
        sizes = (8, 64) if form.swapped else (64, 8)
        spec = warpgroup_spec(*sizes, form.depth, form.factors, form.result, tuple(form.memories.values()))
        assert form.mismatches(spec, SM_90A) == ()
        assert form.mismatches(spec, target) == (Mismatch("target", "sm_90a", target.name),)


def test_shapes():
    """n from 8 to 256 in steps of 8; for 8-bit types from 32 on in steps of 16 (PTX ISA, wgmma.mma_async, "Shape")."""
    for form in WGMMA:
        supported = []
        for n in (*range(1, 20), *range(20, 300, 4)):
            sizes = (n, 64) if form.swapped else (64, n)
            spec = warpgroup_spec(*sizes, form.depth, form.factors, form.result, tuple(form.memories.values()))
            supported += [n] * (form.mismatches(spec, SM_90A) == ())
        by = 16 if form.factors[0] == int8 else 8
        assert supported == [*range(8, 32, 8), *range(32, 257, by)]


def test_a_target_without_wgmma_is_reported():
    with pytest.raises(MatchError) as caught:
        _ = product_of_warpgroups(F16).program("sm_90").ir
    assert re.search(r"target +requires sm_90a, got sm_90", str(caught.value))


def test_a_padded_buffer_is_reported():
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64)
    chain = chain.load(A, SH, Move.coalesced_copy(8).done()).pad(8).load(B, SH, Move.coalesced_copy(8).done())
    spec = MatMul(64, 64, 64, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)
    with pytest.raises(MatchError) as caught:
        _ = chain.tile(64, 64).to(Warpgroup).split(16).done()(spec).program("sm_90a").ir
    assert re.search(r"A storage +requires chunks of 128, 64, 32, 16 bytes, swizzled, got rows that are not chunks", str(caught.value))


def test_chunks_out_of_phase_are_reported():
    """Chunks are eight elements further apart: the second begins inside a swizzle period, which an address cannot express."""
    gapped = Layout(((64, 2), 64), ((1, 64 * 64 + 8), 64))
    with pytest.raises(MatchError, match="groups of rows that do not start at multiples of 1024 bytes, the period of their swizzle"):
        _ = by_hand(gapped, swizzle_of(128, 2), orders=ORDERS["TT"], tiles=(128, 64)).program("sm_90a").ir


def test_sizes_without_whole_rows_are_reported():
    chain = MatMul.tile(64, 12).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(16)
    chain = chain.load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done())
    spec = MatMul(64, 24, 32, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)
    with pytest.raises(MatchError, match=r"B size +requires multiples of 16 bytes by 8 elements, got 16x12"):
        _ = chain.tile(64, 8).to(Warpgroup).split(16).done()(spec).program("sm_90a").ir


@pytest.mark.parametrize(("dtype", "free"), [(float16, True), (int8, True), (float16, False)])
def test_buffers_of_several_matrices_are_reported(dtype, free):
    """They raised KeyError if k is the last of three dimensions."""
    spec = MatMul(2, 64, 64, 64, dtype=dtype, accumulator=int32 if dtype == int8 else float32, signature="bmk,bkn->bmn", A=RowMajor)
    chain = MatMul.tile(2, 64, 64).to(Block).epilog(RF).split(k=32).load(A, SH, Move.done())
    chain = (chain if free else chain.storage_layout(RowMajor)).load(B, SH, Move.done()).tile(1, 64, 64).to(Warpgroup)
    chain = chain.done(F16 if dtype == float16 else BY_NAME["WGMMA_S8_S32"])
    got = "a buffer of two dimensions, got 2x64x32" if free else "chunks of 128, 64, 32, 16 bytes, swizzled, got a buffer of 3 dimensions"
    with pytest.raises(MatchError, match=f"A storage +requires {got}"):
        _ = chain(spec(GL, GL, GL)(Kernel)).program("sm_90a").ir


# ---------------------------------------------------------------------------------------------- against NumPy


@pytest.mark.sampled(12)
@named
@in_orders
def test_all_types(form, orders):
    chunk = 64 // form.factors[0].bytes
    tiles, columns = ((16, 128), 16) if form.swapped else ((128, 16), 16)
    require_right(product_of_warpgroups(form, tiles, chunk, 2, columns, orders, sizes=(*tiles, 2 * chunk)))


@pytest.mark.parametrize("columns", range(8, 257, 8))
def test_all_widths(columns):
    """Each n in float16, straight and, for every fourth, swapped."""
    orders = list(ORDERS.values())[columns // 8 % 4]
    require_right(product_of_warpgroups(F16, (64, columns), 16, 1, columns, orders, sizes=(64, columns, 32)), orders=(None,))
    if columns % 32 == 0:
        require_right(product_of_warpgroups(SWAPPED, (columns, 64), 16, 1, columns, orders, sizes=(columns, 64, 32)), orders=(None,))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@in_orders
def test_pipelines(stages, orders):
    program = require_right(product_of_warpgroups(F16, (64, 64), 32, stages, orders=orders, sizes=(64, 64, 192)))
    assert any(one.mechanism is CP_ASYNC_GROUPS for one, _ in ir.execs(program.ir.body)) == (stages > 1)


@pytest.mark.parametrize(("tiles", "columns"), [((64, 128), 64), ((128, 128), 64), ((128, 64), 64), ((192, 32), 32)])
def test_several_warpgroups(tiles, columns):
    """Adjacent in N, in M, and both."""
    program = require_right(product_of_warpgroups(F16, tiles, 32, 2, columns, ORDERS["NN"], sizes=(*tiles, 96)))
    assert program.ir.threads == 128 * (tiles[0] // 64) * (tiles[1] // columns)


def test_two_tiles_of_rows_for_each_warpgroup():
    chain = MatMul.tile(256, 32).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(2)
    chain = chain.load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done())
    strategy = chain.tile(128, 32).to(Warpgroup).split(16).unroll().tile(64, 32).unroll().done()
    require_right(strategy(MatMul(256, 64, 192, dtype=float16, c_dtype=float32, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)))


@in_orders
@pytest.mark.parametrize("sizes", [(100, 90, 72), (65, 33, 17), (127, 129, 63), (1, 1, 1), (64, 64, 65)])
def test_ragged(sizes, orders):
    """Loads fill elements past the edge with zeros, and the store skips them."""
    require_right(product_of_warpgroups(F16, (64, 64), 32, 2, orders=orders, sizes=sizes))


@pytest.mark.parametrize("stages", [1, 3])
def test_sizes_at_run_time(stages):
    M, N, K = (sym(name, multiple_of=8) for name in "MNK")
    strategy = product_of_warpgroups(F16, (64, 64), 32, stages, sizes=(M, N, K))
    for sizes in ((64, 64, 64), (72, 56, 8), (128, 136, 160), (8, 8, 8)):
        require_right(strategy, dict(zip("MNK", sizes, strict=True)))


def test_adds_to_c():
    """With `accumulate` the accumulators start with the values of C."""
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Move.done(), Move.done()).split(32)
    chain = chain.load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done())
    spec = MatMul(64, 64, 64, dtype=float16, c_dtype=float32, A=RowMajor, C=RowMajor, accumulate=True)(GL, GL, GL)(Kernel)
    kernel = simulated(chain.tile(64, 64).to(Warpgroup).split(16).unroll().done()(spec), "sm_90a")
    generator = np.random.default_rng(3)
    a, b = integers((64, 64), float16, generator), integers((64, 64), float16, generator)
    c = integers((64, 64), float32, generator, -50, 50)
    out = c.copy()
    called(kernel, a, b, out=out)
    assert np.array_equal(out, spec.reference(a, b) + c)


def test_float16_accumulators_round_once_per_mma():
    form = BY_NAME["WGMMA_F16_F16"]
    program = require_right(product_of_warpgroups(form, (64, 32), 32, 1, 32, sizes=(64, 32, 64)))
    assert "unsigned* const words = reinterpret_cast<unsigned*>(c);" in program.cuda
    assert ".m64n32k16.f16.f16.f16" in program.cuda


# ---------------------------------------------------------------------------------------------- random strategies

SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))


def drawn(seed):
    """A wgmma strategy and the sizes of its problem: anything that the instruction supports."""
    pick = random.Random(seed).choice
    form = pick(WGMMA)
    wide = pick([8, 16, 24, 32, 64, 96] if form.factors[0] != int8 else [8, 24, 32, 64, 96])
    rows, columns = pick([(1, 1), (2, 1), (1, 2)])
    part = (wide, 64) if form.swapped else (64, wide)
    tiles = (part[0] * rows, part[1] * columns)
    chunk = form.depth * pick([1, 2, 4])
    sizes = tuple(pick([1, tile - 3, tile, tile + 5, 2 * tile]) for tile in tiles)
    sizes = (*sizes, pick([1, chunk - 1, chunk, 2 * chunk + 3, 4 * chunk]))
    if pick([True, False]):
        sizes = tuple(-(-size // 16) * 16 for size in sizes)
    stages, orders = pick([1, 2, 3, 4]), (pick((RowMajor, ColMajor)), pick((RowMajor, ColMajor)))
    return product_of_warpgroups(form, tiles, chunk, stages, wide, orders, sizes)


@pytest.mark.parametrize("seed", range(12 * SCALE))
def test_random_strategies_are_correct_without_findings(seed):
    """Equal to NumPy with warps in lockstep and in random order; no finding; descriptors match the storage."""
    kernel = require_right(drawn(seed), orders=(None, seed)).ir
    if seed % 4 == 0:
        assert require_descriptors(kernel)


# ---------------------------------------------------------------------------------------------- texts


@named
def test_opcodes(form):
    names = {float32: "f32", tf32: "tf32", float16: "f16", bfloat16: "bf16", int8: "s8", int32: "s32"}
    names |= {float8_e4m3: "e4m3", float8_e5m2: "e5m2"}
    a, b = form.factors[::-1] if form.swapped else form.factors
    tiles = (16, 64) if form.swapped else (64, 16)
    text = product_of_warpgroups(form, tiles, 32 // form.factors[0].bytes, 1, 16).program("sm_90a").cuda
    k = 32 // form.factors[0].bytes
    assert f"wgmma.mma_async.sync.aligned.m64n16k{k}.{names[form.result]}.{names[a]}.{names[b]} " in text
    scales = {1: ", scale_d, 1, 1; }" if a != int8 else ", scale_d; }", 4: ", scale_d, 1, 1; }", 2: ", scale_d, 1, 1, 0, 0; }"}[
        form.factors[0].bytes
    ]
    assert (scales.replace("0, 0", "0") if form.held else scales) in text
    assert eval(repr(form), {"Wgmma": Wgmma, **{str(one): one for one in names}}) == form


@in_orders
def test_bits_of_orders(orders):
    """1 for an operand that is not stored along k: the first bit is for the operand with 64 rows, which is B if they are swapped (PTX ISA,
    "imm-trans-a").
    """
    across = [int(orders[0] == ColMajor), int(orders[1] == RowMajor)]
    for form, bits in ((F16, across), (SWAPPED, across[::-1])):
        text = product_of_warpgroups(form, (64, 64), 64, 1, 64, orders).program("sm_90a").cuda
        assert f", scale_d, 1, 1, {bits[0]}, {bits[1]}; }}" in text


@needs_nvrtc
@in_orders
@pytest.mark.parametrize("stages", [1, 4])
def test_compiles_without_serialization(orders, stages):
    """ptxas compiles it for sm_90a without serializing MMAs (C7505 to C7520) and without spills."""
    text = product_of_warpgroups(F16, (128, 128), 64, stages, 128, orders).program("sm_90a").cuda
    compiled = compile_cuda(text, "sm_90a")
    assert "wgmma" not in compiled.log and "serializ" not in compiled.log
    (resources,) = compiled.resources.values()
    assert resources.spill_stores == resources.spill_loads == 0


def test_cost_is_work_of_the_tensor_cores():
    """One instruction per warp and MMA, at the speed of wgmma; the operands' bytes count as shared-memory traffic, without a request by
    lanes.
    """
    program = product_of_warpgroups(F16, (64, 128), 64, 1, 128, sizes=(64, 128, 128)).program("sm_90a")
    work = Work(program.ir)
    (statement,) = products_of(program.ir)
    amounts = work.operation(statement).amounts
    flops = 2 * 64 * 128 * 16
    assert (amounts.mma, amounts.instructions, amounts.memory) == (4, 4, 0)
    assert amounts.tensor == {"float16 by wgmma": flops} and amounts.shared == (64 + 128) * 16 * 2 / 128
    assert work.amounts.tensor == {"float16 by wgmma": flops * 8}
    hopper = next(one for one in GPUS if one.name == "H200 SXM")
    assert 4096 >= hopper.tensor_rate("float16 by wgmma") > 1.2 * hopper.tensor_rate("float16")
    ampere = next(one for one in GPUS if one.name == "A100 SXM")
    assert ampere.tensor_rate("float16 by wgmma") == ampere.tensor_rate("float16")


# ---------------------------------------------------------------------------------------------- injected faults

FAULTY = {
    "one stage": ({"tiles": (64, 64), "chunk": 32, "stages": 1}, (64, 64, 160)),
    "two stages": ({"tiles": (64, 64), "chunk": 32, "stages": 2, "orders": ORDERS["NN"]}, (64, 64, 160)),
    "three stages": ({"tiles": (128, 64), "chunk": 32, "stages": 3}, (128, 64, 160)),
    "four stages": ({"tiles": (64, 64), "chunk": 32, "stages": 4, "orders": ORDERS["TN"]}, (64, 64, 224)),
    "two warpgroups in N": ({"tiles": (64, 128), "columns": 64, "chunk": 32, "stages": 2}, (64, 128, 160)),
    "ragged": ({"tiles": (64, 64), "chunk": 32, "stages": 3}, (60, 50, 100)),
}


def is_seen(faulty, arrays, order):
    """Whether the simulator reports a fault."""
    try:
        simulate(faulty, arrays, order=None if order is None else random.Random(order))
    except SimulationError as error:
        return bool(re.search("race|in flight|before any write|does not see what was written|wgmma.fence", str(error)))
    return False


@pytest.mark.parametrize("name", FAULTY)
def test_injected_faults_are_found_by_both_detectors(name):
    options, sizes = FAULTY[name]
    program = require_right(product_of_warpgroups(F16, sizes=sizes, **options), orders=(None, 1, 2))
    generator = np.random.default_rng(3)
    arrays = {"A": integers((sizes[0], sizes[2]), float16, generator), "B": integers((sizes[2], sizes[1]), float16, generator)}
    missed, kinds = [], []
    for fault, faulty in faults(program.ir):
        static = any(one.severity == "error" for one in safety(faulty))
        shadow = any(is_seen(faulty, arrays, order) for order in (None, 1, 2))
        kinds.append(fault.split(":")[0])
        if not (static and shadow) and not (name == "one stage" and "c_rf is complete" in fault):
            missed.append((fault, static, shadow))
        elif not (static and shadow):
            assert not static and not shadow, "each step of k waits for all earlier ones: the last wait is redundant, and not an error"
    assert missed == []
    assert {"dropped", "raised", "behind the next statement"} <= set(kinds)
