"""The alignment check and the simulator's trap: vectors that are misaligned or cross an edge, misaligned buffers.

Clean kernels have no findings; faults injected into passes are reported by the check, by the simulator and by the printed text executed on
the CPU, each on its own.
"""

import importlib
import itertools
import operator
import os

import attrs
import numpy as np
import pytest
import test_expr
from generator import draw as drawn_strategy
from guards import with_conditions
from handmade import THREAD, access, execution, kernel_of, local
from instructions import FORMS, first_target, spec_of, strategy_of
from printed_text import COMPILER, HostProgram, Printed, Refused
from problems import NAMES, integers, library, target_of
from test_random import program_to_paste

import fireiron.values.expr as expr
from fireiron import *
from fireiron.check import AccessTrace, check_alignment, safety
from fireiron.check.alignment import _swizzle_keeps as stays
from fireiron.check.known_bits import WORD, Bits, KnownBits
from fireiron.cuda import emit
from fireiron.errors import SimulationError
from fireiron.executable.thread_move import MOVE
from fireiron.lower.guard import guard
from fireiron.sim import simulate
from fireiron.values.expr import INT_MAX, Var, as_expr
from fireiron.values.layout import Swizzle
from fireiron.values.machine import Thread

SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20270311

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")


def messages(kernel):
    """The messages of the check for a kernel."""
    return [finding.message for finding in check_alignment(AccessTrace(kernel))]


# ---------------------------------------------------------------------------------------------- known bits


def test_known_bits_of_random_expressions():
    """The known bits of an expression hold at every point of its domain."""
    aligned = 0
    for number in range(400 * SCALE):
        drawn = test_expr.draw(expr, f"{SEED}-{number}")
        value, size = drawn.last.expr, len(drawn.last.values)
        bits = KnownBits({}).of(value)
        aligned += bits.zeros & 7 != 0
        for index in {0, size - 1, *(size * part // 40 for part in range(40))}:
            got = int(value.evaluate(drawn.point(index))) & WORD
            assert got & bits.zeros == 0 and got & bits.ones == bits.ones, (value, drawn.point(index), bits)
    assert aligned > 20 * SCALE, "hardly anything is known of these expressions"


i, M = Var("i", 0, 127), Var("M", 0, INT_MAX, 4)


@pytest.mark.parametrize(
    ("value", "zeros"),
    [
        (i * 8, 3),
        (i * 12 + 4, 2),
        (i // 32 * 16 + i % 4 * 8, 3),
        (M * i, 2),
        (M * M * 2, 5),
        (M // 2, 1),
        ((i % 8 * 8) ^ (i // 8 * 8), 3),
        ((i & 0x30) | 64, 4),
        (i * 4 - 8, 2),
        (M % 6, 1),
        (expr.minimum(M, 64), 2),
        (i, 0),
        (i + 1, 0),
        (i // 3 * 4, 2),
    ],
    ids=str,
)
def test_trailing_zeros(value, zeros):
    assert KnownBits({}).of(value).trailing_zeros == zeros


def test_a_name_has_the_bits_of_its_value():
    assert KnownBits({"row": i * 16}).of(Var("row") + 4).trailing_zeros == 2
    assert KnownBits({}).of(Var("row") + 4).trailing_zeros == 0


def test_products_keep_their_upper_bits():
    """A swizzle needs to know whether a bit far above those of a vector's elements is 0."""
    few = KnownBits({}).of(Var("few", 0, 2))
    assert (few * Bits.of(2)).zeros == WORD - 6 and (few * Bits.of(3)).zeros == WORD - 15 and (few * few).zeros == WORD - 15
    assert Bits.of(-1 & WORD) * few == few * Bits.of(-1 & WORD) and (Bits.of(-1 & WORD) * Bits.of(4)).zeros == 3


def test_bits_of_numbers_are_all_known():
    for left_number, other in itertools.product(range(9), repeat=2):
        left, right = Bits.of(left_number), Bits.of(other)
        assert (left + right, left * right, left ^ right) == (
            Bits.of(left_number + other),
            Bits.of(left_number * other),
            Bits.of(left_number ^ other),
        )
        assert (left & right, left | right) == (Bits.of(left_number & other), Bits.of(left_number | other))


def test_operations_on_partly_known_bits():
    """For two three-bit numbers with known and unknown bits, the known bits of the result hold for all their values."""

    def values(bits):
        return [number for number in range(8) if not number & bits.zeros and number & bits.ones == bits.ones]

    drawn = [Bits(WORD - 7 | zeros, ones) for zeros, ones in itertools.product(range(8), repeat=2) if not zeros & ones]
    for first, other in itertools.product(drawn, repeat=2):
        for does in (operator.add, operator.mul, operator.xor, operator.and_, operator.or_):
            bits = does(first, other)
            assert not bits.zeros & bits.ones
            for left, right in itertools.product(values(first), values(other)):
                assert not does(left, right) & bits.zeros and does(left, right) & bits.ones == bits.ones, (does, first, other)


# ---------------------------------------------------------------------------------------------- clean kernels

SYMBOLIC = (sym("M"), sym("N"), sym("K"))
DIVISIBLE = (sym("M", multiple_of=128), sym("N", multiple_of=128), sym("K", multiple_of=8))
SIZES = ((1024, 1024, 1024), (1000, 500, 300), (129, 127, 9), SYMBOLIC, DIVISIBLE, (1024, sym("N", multiple_of=4), 64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_library_is_clean(name):
    module = library(name)
    for sizes, target in zip(SIZES, itertools.cycle(("sm_80", "sm_75", "sm_70", "sm_90"))):
        try:
            kernel = module.strategy(module.spec(*sizes)).program(target_of(name, target)).lowered
        except (DecompositionError, MatchError, ResourceError):
            continue
        assert messages(kernel) == [], (name, sizes, target)


def test_matrix_instructions_are_clean():
    for form in FORMS:
        kernel = strategy_of(form)(spec_of(form, *((ORDERS[order] for order in form.orders) if form.orders else ())))
        assert messages(kernel.program(first_target(form.capability)).lowered) == [], form.name


ORDERS = {"row": RowMajor, "col": ColMajor}


def test_random_strategies_are_clean():
    for seed in range(SEED, SEED + 20 * SCALE):
        drawn, _ = drawn_strategy(seed)
        assert messages(drawn.program.lowered) == [], program_to_paste(drawn)


# ---------------------------------------------------------------------------------------------- kernels made by hand


def copied(base, *, width=4, into=(THREAD, 0), target=None, bounds=(None, None), rows=32, columns=64, **options):
    """A copy of `width` adjacent elements of a row by each thread, from `base` in `src` to `into` in another buffer, as one vector."""
    name = "dst" if target is None else target.name
    statement = execution(
        MOVE,
        Move(1, width, dtype=float32)(GL, GL if target is None else target.memory)(Thread),
        access("src", base, (1, width), bounds),
        access(name, into, (1, width), bounds if target is None else None, True),
        vector=width,
        vectors=(width, width),
    )
    spec = Move(rows, columns, src=RowMajor(**options) if options else RowMajor, dst=RowMajor)(GL, GL)
    kernel = kernel_of(spec, (statement,), *(() if target is None else (target,)))
    shared = 0 if target is None or target.memory != SH else target.offset + target.bytes
    return attrs.evolve(guard(kernel), shared_bytes=shared)


def trapped(kernel):
    """The simulator's report."""
    shape = tuple(int(str(size)) for size in kernel.buffer("src").tensor.shape)
    with pytest.raises(SimulationError) as raised:
        simulate(kernel, {"src": np.zeros(shape, np.float32)})
    return str(raised.value)


def test_an_aligned_copy_is_clean():
    kernel = copied((THREAD, 4))
    assert messages(kernel) == []
    simulate(kernel, {"src": np.zeros((32, 64), np.float32)})


@pytest.mark.parametrize("base", [(THREAD, 2), (0, THREAD), (0, THREAD + 2), (THREAD // 4, THREAD % 4 * 4 + 1)], ids=str)
def test_a_misaligned_vector(base):
    kernel = copied(base)
    (message,) = messages(kernel)
    assert "not 4 contiguous addresses from a multiple of 4" in message and message.startswith("src")
    assert "a vector of 4 elements" in trapped(kernel)


@pytest.mark.parametrize("leading", [65, 66, sym("ld")], ids=str)
def test_row_strides_that_are_not_multiples(leading):
    (message,) = messages(copied((THREAD, 4), ld=leading))
    assert "multiple of 4" in message


def test_run_time_row_strides_that_are_multiples():
    assert messages(copied((THREAD, 4), ld=sym("ld", multiple_of=4))) == []


def test_elements_that_are_not_adjacent():
    kernel = copied((THREAD, 4))
    swapped = attrs.evolve(kernel.buffers[0], tensor=attrs.evolve(kernel.buffers[0].tensor, layout=ColMajor))
    kernel = attrs.evolve(kernel, buffers=(attrs.evolve(swapped, storage=swapped.tensor.storage()), *kernel.buffers[1:]))
    assert "not 4 contiguous addresses" in messages(kernel)[0]
    assert "a vector of 4 elements" in trapped(kernel)


def test_a_vector_wider_than_any_load():
    assert "no load or store has 32 bytes" in messages(copied((THREAD, 0), width=8))[0]


def test_a_buffer_that_begins_at_a_multiple_of_8_bytes():
    kernel = copied((THREAD, 4))
    loose = attrs.evolve(kernel.buffers[0], tensor=attrs.evolve(kernel.buffers[0].tensor, align=8))
    kernel = attrs.evolve(kernel, buffers=(loose, *kernel.buffers[1:]))
    assert messages(kernel) == ["src: a vector has 16 bytes, but the buffer starts at a multiple of 8 bytes only"]
    assert "a vector of 4 elements" in trapped(kernel)


def test_registers_that_are_aligned_to_one_element():
    registers = local("r", (1, 4), RF, layout=RowMajor)
    kernel = copied((THREAD, 4), into=(0, 0), target=registers)
    assert messages(kernel) == []
    loose = tuple(attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=4)) if one.name == "r" else one for one in kernel.buffers)
    assert "r: a vector has 16 bytes" in messages(attrs.evolve(kernel, buffers=loose))[0]


EDGES = [(8, True), (6, False), (sym("N"), False), (sym("N", multiple_of=2), False), (sym("N", multiple_of=4), True)]


@pytest.mark.parametrize(("columns", "clean"), EDGES, ids=str)
def test_a_vector_that_may_straddle_the_edge(columns, clean):
    """Only the first element is tested: the others must be in bounds with it."""
    kernel = copied((THREAD % 4, THREAD // 4 * 4), into=(THREAD % 4, THREAD // 4 * 4), bounds=(None, columns), columns=columns, ld=64)
    reports = messages(kernel)
    assert (reports == []) == clean
    assert clean or "src: a vector of 4 elements is not proved to be below" in reports[0]
    assert all("not proved to be below" in message or "multiple of 4" in message for message in reports)


def test_a_straddling_vector_is_trapped():
    kernel = copied((THREAD % 4, THREAD // 4 * 4), into=(THREAD % 4, THREAD // 4 * 4), bounds=(None, 6), rows=4, columns=6, ld=64)
    assert "outside of the tensor" in trapped(kernel)


@pytest.mark.parametrize("swizzle", [Swizzle(2, 0, 3), Swizzle(2, 1, 3), Swizzle(1, 1, -1)], ids=str)
def test_a_swizzle_that_splits_a_vector(swizzle):
    shared = local("s", (32, 16), SH, layout=RowMajor, swizzle=swizzle)
    kernel = copied((THREAD, 4), target=shared)
    assert "not 4 contiguous addresses" in messages(kernel)[0]
    assert "a vector of 4 elements" in trapped(kernel)


def test_a_swizzle_that_leaves_vectors_whole():
    assert messages(copied((THREAD, 4), target=local("s", (32, 16), SH, layout=RowMajor, swizzle=Swizzle(2, 2, 2)))) == []


@pytest.mark.parametrize(("elements", "copy", "clean"), [(512, 1, True), (514, 0, True), (514, 1, False), (514, 2, True), (516, 1, True)])
def test_copies_of_a_buffer_that_begin_between_vectors(elements, copy, clean):
    shared = local("s", (32, 16), SH, layout=RowMajor, copies=3)
    kernel = copied((THREAD, 4), target=attrs.evolve(shared, elements=as_expr(elements)))
    (statement,) = kernel.body
    read, written = statement.accesses
    moved = attrs.evolve(statement, accesses=(read, attrs.evolve(written, copy=as_expr(copy))))
    kernel = attrs.evolve(kernel, body=(moved,), shared_bytes=3 * elements * 4)
    assert (messages(kernel) == []) == clean


# ---------------------------------------------------------------------------------------------- shared memory


def with_offsets(kernel, **offsets):
    """The kernel with its buffers at other offsets in shared memory."""
    return attrs.evolve(
        kernel, buffers=tuple(attrs.evolve(one, offset=offsets[one.name]) if one.name in offsets else one for one in kernel.buffers)
    )


LISTING_2 = library("listing_2")


@pytest.fixture
def shared():
    """A kernel with two adjacent buffers in shared memory."""
    kernel = LISTING_2.strategy(LISTING_2.spec(70, 70, 40)).program().lowered
    assert messages(kernel) == []
    return kernel


def inputs_of(spec, sizes, seed=0):
    """Small integers for A and B."""
    generator = np.random.default_rng(seed)
    return {"A": integers((sizes[0], sizes[2]), spec.A.dtype, generator), "B": integers((sizes[2], sizes[1]), spec.B.dtype, generator)}


def test_a_buffer_beyond_the_shared_memory_of_the_block(shared):
    short = attrs.evolve(shared, shared_bytes=shared.shared_bytes - 16)
    assert "but the block has" in messages(short)[0]
    with pytest.raises(SimulationError, match="of shared memory"):
        simulate(short, inputs_of(shared.spec, (70, 70, 40)))


def test_a_buffer_that_begins_between_multiples_of_16_bytes(shared):
    moved = attrs.evolve(with_offsets(shared, b_sh=shared.buffer("b_sh").offset + 8), shared_bytes=shared.shared_bytes + 8)
    assert any("not a multiple of 16" in message for message in messages(moved))


def test_buffers_that_share_bytes_while_both_are_in_use(shared):
    faulty = with_offsets(shared, b_sh=0)
    assert any("while both are live" in message for message in messages(faulty))


def test_buffers_that_share_bytes_without_request():
    module = library("hmma_ampere")
    kernel = module.strategy(module.spec(256, 256, 64)).program("sm_80").lowered
    staged = kernel.buffer("store_c_sh")
    assert staged.tensor.reuse and staged.offset == 0 and messages(kernel) == []
    unasked = attrs.evolve(staged, tensor=attrs.evolve(staged.tensor, reuse=False))
    kernel = attrs.evolve(kernel, buffers=tuple(unasked if one.name == staged.name else one for one in kernel.buffers))
    assert messages(kernel) and all("which no refinement requests" in message for message in messages(kernel))


def test_more_shared_memory_than_the_target_has(shared):
    assert any("has at most" in message for message in messages(attrs.evolve(shared, shared_bytes=1 << 20)))


# ---------------------------------------------------------------------------------------------- faults in the passes


def blind(monkeypatch, *words):
    """`vectorize` without the test whose message has these words."""
    module = importlib.import_module("fireiron.lower.vectorize")
    right = module.obstacle

    def obstacle(buffer, access, width):
        problem = right(buffer, access, width)
        return None if problem is not None and any(word in problem for word in words) else problem

    monkeypatch.setattr(module, "obstacle", obstacle)


def refused_everywhere(program, sizes, folder):
    """The check, the simulator and the printed text each refuse a kernel, or compute a wrong result; returns the reports."""
    with pytest.raises(DecompositionError) as checked:
        _ = program.ir
    arrays = inputs_of(program.spec, sizes)
    with pytest.raises(SimulationError) as simulated:
        simulate(program.lowered, arrays)
    host = HostProgram([Printed(emit(program.lowered), program.lowered)], folder)
    try:
        got = host.run(0, arrays)["C"]
    except Refused as report:
        return str(checked.value), str(simulated.value), str(report)
    assert not np.array_equal(got, program.spec.reference(arrays["A"], arrays["B"]))
    return str(checked.value), str(simulated.value), "wrong"


@needs_compiler
def test_vectorize_without_its_test_of_alignment(monkeypatch, tmp_path):
    """A leading dimension of 1025 floats: three oracles refuse the float4, with different messages."""
    blind(monkeypatch, "is not always a multiple of")
    module, sizes = library("gemm_nn"), (128, 128, 32)
    program = module.strategy(module.spec(*sizes, A=ColMajor(ld=1025))).program("sm_80")
    checked, simulated, printed = refused_everywhere(program, sizes, tmp_path)
    assert "not 4 contiguous addresses from a multiple of 4 on" in checked
    assert "4 elements at addresses 1025, 1026, 1027, 1028" in simulated
    assert "misaligned address" in printed and "float4" in printed


@needs_compiler
@pytest.mark.parametrize(("layout", "target"), [(ColMajor(ld=104), "sm_75"), (ColMajor(ld=104), "sm_80")], ids=str)
def test_vectorize_without_its_test_of_the_edge(layout, target, monkeypatch, tmp_path):
    blind(monkeypatch, "may straddle the edge")
    module, sizes = library("gemm_nn"), (102, 128, 32)
    program = module.strategy(module.spec(*sizes, A=layout, C=layout)).program(target)
    checked, simulated, printed = refused_everywhere(program, sizes, tmp_path)
    assert "outside" in simulated and "below" in checked and printed


@needs_compiler
def test_a_store_without_its_guard(tmp_path):
    module, sizes = LISTING_2, (37, 20, 9)
    spec = module.spec(*sizes)
    kernel = with_conditions(module.strategy(spec).program().lowered, "C", True, lambda condition: None)
    assert any(finding.severity == "error" for finding in safety(kernel))
    with pytest.raises(SimulationError, match="outside of the tensor"):
        simulate(kernel, inputs_of(spec, sizes))
    with pytest.raises(Refused, match=r"AddressSanitizer|outside of the tensor"):
        HostProgram([Printed(emit(kernel), kernel)], tmp_path).run(0, inputs_of(spec, sizes))


def test_allocate_without_liveness(monkeypatch):
    """Without the live ranges of buffers, a buffer that may reuse storage gets that of buffers in use."""
    module = importlib.import_module("fireiron.lower.allocate")
    right = module.live_spans
    monkeypatch.setattr(module, "live_spans", lambda kernel: {name: (place, place) for place, name in enumerate(right(kernel))})
    strategy = (
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH).reuse_buffer().tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    )
    with pytest.raises((DecompositionError, SynchronizationError), match="overlaps a_sh while both are live"):
        for finding in check_alignment(AccessTrace(strategy(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program().lowered)):
            raise DecompositionError(finding.message)


def test_findings_stop_a_program(monkeypatch):
    blind(monkeypatch, "is not always a multiple of")
    module = library("gemm_nn")
    with pytest.raises(DecompositionError, match="contiguous"):
        _ = module.strategy(module.spec(128, 128, 32, A=ColMajor(ld=1025))).cuda("sm_80")


def test_a_swizzle_without_effect_keeps_vectors_whole(monkeypatch):
    """The bits that it reads are 0 in a column of 8 elements, and the number of iterations is known only at run time."""
    N, K = sym("N", multiple_of=8), sym("K", multiple_of=8)
    strategy = (
        MatMul.tile(8, 16).to(Block).split(1).pipeline(3).load(A, SH, Move.tile(8, 1).to(Thread).done()).swizzle_storage(Swizzle(2, 0, 3))
    )
    bound = strategy.tile(1, 4).to(Thread).tile(1, 1).done()(MatMul(10, N, K, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel))
    kernel = bound.program("sm_75").lowered
    assert any(one.width == 4 for use in AccessTrace(kernel).uses for one in use.pieces if use.access.buffer == "a_sh")
    assert not messages(kernel)
    monkeypatch.setattr(importlib.import_module("fireiron.check.alignment"), "_swizzle_keeps", lambda *given: False)
    assert "which is not proved to be a multiple of 4" in messages(kernel)[0]
    moving = attrs.evolve(kernel.buffer("a_sh").storage.swizzle, shift=-2)
    assert not stays(Bits.of(0), 4, moving) and stays(Bits.of(0), 4, Swizzle(2, 0, 3)) and not stays(Bits.of(8), 4, Swizzle(2, 0, 3))


def test_a_swizzle_that_rows_do_not_reach_leaves_vectors_whole():
    """The bit that it reads is that of a third row, and there are two; each row belongs to one thread, by its number."""
    chain = MatMul.tile(1, 2).to(Block).split(2).pipeline(2).load(B, SH, Move.tile(1, 2).to(Thread).done()).storage_layout(RowMajor)
    leaf = chain.swizzle_storage(Swizzle(1, 0, 2)).split(1).tile(1).to(Warp).tile(1).to(Lane).tile(1, 1).done()
    kernel = leaf(MatMul(1, 2, sym("K"))(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert any(one.width == 2 for use in AccessTrace(kernel).uses for one in use.pieces if use.access.buffer == "b_sh")
    assert not messages(kernel)


# ---------------------------------------------------------------------------------------------- digits of any size


def of_digits(size, width):
    """Vectors of `width` elements of an array whose rows have `size` elements, read through a quotient and a remainder."""
    text = f"Y[m,n] = A[m + n // {size}, n % {size}]"
    definition = Fused(name="digits", dims="m n j k", operands={"A": "j k", "Y": "m n"}, body={"copy": text})
    strategy = definition.tile(m=1, n=width * 32).to(Block).tile(m=1, n=width).to(Thread).load("A", RF, Move.done()).done()
    return strategy(definition(m=3, n=size * 4, j=8, k=size, dtype=float16)).program("sm_80")


@pytest.mark.parametrize(("size", "width", "moved"), [(12, 4, 4), (6, 2, 2), (18, 2, 2), (48, 8, 8), (6, 4, 2), (12, 8, 4), (7, 2, 1)])
def test_vectors_of_digits_whose_size_is_no_power_of_two(size, width, moved):
    """The widest vectors that are aligned in all rows are used and proved."""
    program = of_digits(size, width)
    loads = [use for use in AccessTrace(program.ir).uses if use.access.buffer == "A"]
    assert {use.width for use in loads} == {moved}
    array = np.arange(8 * size).reshape(8, size).astype(np.float16)
    (result,) = simulate(program.ir, {"A": array}).outputs.values()
    assert np.array_equal(result, [[array[m + n // size, n % size] for n in range(4 * size)] for m in range(3)])


@pytest.mark.parametrize("size", [6, 12, 18, 20, 7, 48])
def test_known_bits_of_digits(size):
    """A remainder by any number keeps the bits of the coordinate below the lowest set bit of the number."""
    from fireiron.check.alignment import _digit_bits
    from fireiron.values.layout import Digit

    for multiple in (1, 2, 4, 8):
        bits = _digit_bits(Bits((multiple & -multiple) - 1), Digit(1, size, 1, False))
        values = [number % size for number in range(0, 400, multiple)]
        assert all(not value & bits.zeros and value & bits.ones == bits.ones for value in values)
        assert bits.trailing_zeros == min((value & -value).bit_length() - 1 for value in values if value)
