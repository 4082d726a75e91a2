"""Reciprocals of launch constants: the products equal the quotients for all numbers and divisors, in the text, in launches and in the
checks.
"""

import itertools
import random
import re

import attrs
import making
import numpy as np
import pytest
from problems import library

from fireiron import *
from fireiron.gpu.disassembly import disassemblers, sass
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import Divisors, Let, Reciprocal, quotients, statements
from fireiron.sim import simulate
from fireiron.strategies import hopper
from fireiron.values.expr import INT_MAX, Mod, Var, assume_positive, minimum


@pytest.fixture
def everywhere(monkeypatch):
    """Reciprocals also in kernels without a producer."""
    monkeypatch.setattr("fireiron.lower.divide.repeats_divisions", lambda kernel: True)


SIZES = [sym(name, multiple_of=8) for name in "MNK"]


def quotient(number, reciprocal):
    """The computation of the text: the upper 64 bits of a product of two 64-bit numbers."""
    twice = 2 * number
    assert 0 <= twice < 1 << 32 and 0 < reciprocal < 1 << 64
    return twice * reciprocal >> 64


def edges():
    """Divisors at the limits of their range, around powers of two, and between."""
    powers = {2**power + step for power in range(32) for step in (-1, 0, 1)}
    some = random.Random(1)
    return sorted(
        divisor
        for divisor in {*range(1, 300), *powers, *(INT_MAX - step for step in range(100)), *(some.randrange(1, 2**31) for _ in range(300))}
        if 1 <= divisor <= INT_MAX
    )


@pytest.mark.parametrize("part", range(8))
def test_products_are_quotients(part):
    """At each relevant multiple: where a quotient grows by one, and at the limits."""
    some = random.Random(part)
    for divisor in edges()[part::8]:
        reciprocal = Reciprocal("r", Var("d", 1, INT_MAX)).value({"d": divisor})
        assert reciprocal == -(-(1 << 63) // divisor)
        last = INT_MAX // divisor
        multiples = {0, 1, 2, last, last - 1, last // 2, *(some.randrange(last + 1) for _ in range(20))}
        numbers = {multiple * divisor + step for multiple in multiples for step in (-1, 0, 1)} | {INT_MAX, INT_MAX - 1}
        for number in numbers:
            if 0 <= number <= INT_MAX:
                assert quotient(number, reciprocal) == number // divisor, (number, divisor)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16])
def test_the_height_of_a_raster_group_is_full_or_the_remainder(rows):
    lines, tile = Var("lines", 1, 1 << 20, 1, True), Var("tile", 0, INT_MAX)
    height = assume_positive(minimum(rows, lines - tile // 8 * rows))
    divisor = Divisors((lines,), ()).of(Mod(tile, height))
    if rows == 1:
        assert divisor is None or divisor.whole == 1
        return
    assert divisor.whole == rows
    for count in range(1, 50):
        for band in range(-(-count // rows)):
            real = min(rows, count - band * rows)
            assert real == (rows if real >= rows else divisor.constant.evaluate({"lines": count}))
        assert 1 <= divisor.constant.evaluate({"lines": count}) <= rows


def test_divisors_that_no_launch_decides_have_none():
    """Not for numbers that may be negative or need 64 bits, not for constants, and not for values that differ between blocks."""
    size, tile, wide, signed = Var("N", 1, 4096, 1, True), Var("tile", 0, 99), Var("wide", 0, 1 << 40), Var("signed", -5, 5)
    divisors = Divisors((size,), (making.let(Var("twice", 2, 8192), size * 2), making.let(Var("own", 1, 100), tile + 1)))
    assert divisors.of(tile // size).constant == size
    assert divisors.of(tile // Var("twice", 2, 8192)).constant == size * 2
    for other in (tile // 7, wide // size, signed // size, tile // Var("own", 1, 100), tile % (tile + 1), size // (size * 2 + 1)):
        for quotient_expr in quotients(other):
            assert divisors.of(quotient_expr) is None, other


def printed(spec, **values):
    return hopper.strategy.with_(**{**dict(hopper.defaults(4096, 4096, 4096)[0]), **values})(spec).program("sm_90a")


def test_the_text_of_raster_groups():
    text = printed(hopper.spec(*SIZES)).cuda
    assert "const unsigned long long band_reciprocal" in text
    assert "const int band = quotient(tile, band_reciprocal);" in text
    assert "const int column = height < 4 ? quotient(inside, column_reciprocal) : inside / 4;" in text
    assert text.count("#pragma unroll 1\n") == 2, "the loops over k of the consumers and of the producer"


def test_texts_of_constant_sizes_have_none():
    for sizes in ((4096, 4096, 4096), (1000, 1000, 1000)):
        program = printed(hopper.spec(*sizes))
        assert not program.ir.reciprocals and "quotient" not in program.cuda and "unroll 1\n" not in program.cuda


@pytest.mark.parametrize("stages", [3, 4])
def test_mma_addresses_are_uniform_in_a_warp(stages):
    """If the compiler cannot see that stages are uniform: loops whose trip count is known at run time."""
    text = printed(hopper.spec(*SIZES), stages=stages, epi_n=64).cuda
    consumers, producer = text.split("// consumers\n")[1].split("// producer\n")
    assert "const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);" in text
    assert re.search(r"k_stage_uniform = __shfl_sync\(0xffffffff, k_stage, 0\);  // warp-uniform", consumers)
    products = [line for line in consumers.split("wgmma_commit_group")[0].splitlines() if "_sh_address +" in line]
    assert len(products) == 2 and all("k_stage_uniform" in line for line in products)
    assert "k_stage_uniform" not in producer and "_uniform" not in printed(hopper.spec(4096, 4096, 4096), stages=stages, epi_n=64).cuda


@pytest.mark.skipif(not disassemblers() or not toolchains(), reason="no NVRTC, or no disassembler (pip install 'fireiron[check]')")
def test_mma_addresses_stay_in_registers_of_the_warp():
    """The machine code of an iteration moves at most two words to uniform registers (R2UR), not four for each of its MMAs."""
    program = printed(hopper.spec(*SIZES))
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in sass(compile_cuda(program.cuda, "sm_90a").cubin).splitlines()]
    labels = {line[:-1]: place for place, line in enumerate(lines) if re.fullmatch(r"\.L_x_\d+:", line)}
    jumps = ((labels[found[1]], place) for place, line in enumerate(lines) if (found := re.search(r"BRA `\((\.L_x_\d+)\)", line)))
    loops = [lines[start:end] for start, end in jumps if start < end]
    loop_lines = min((loop for loop in loops if any("HGMMA" in line for line in loop)), key=len)
    assert sum("HGMMA" in line for line in loop_lines) == 4 and sum("R2UR" in line for line in loop_lines) <= 2


def test_a_flat_grid_divides_once(everywhere):
    """Two coordinates of a block's number: a quotient by a reciprocal, and its remainder."""
    program = library("naive").strategy(library("naive").spec(*SIZES)).program("sm_80")
    (reciprocal,) = program.ir.reciprocals
    assert program.cuda.count("quotient(blockIdx.x, ") >= 1 and " % " not in program.cuda.split("{", 2)[2].split("threadIdx")[0]
    assert {one.name for one in program.ir.reciprocals} <= {one.name for one in program.ir.parameters}
    assert reciprocal.value({"M": 8, "N": 8, "K": 8}) <= 1 << 63


def test_names_do_not_collide(everywhere):
    spec = MatMul(sym("band"), sym("band_reciprocal"), sym("K"))(GL, GL, GL)(Kernel)
    strategy = MatMul.tile(16, 16).to(Block).rasterize(group_m=4).tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    names = [one.name for one in strategy(spec).program("sm_80").ir.parameters]
    assert len(names) == len(set(names)) and sum("reciprocal" in name for name in names) == 3
    with pytest.raises(ArgumentError, match="quotient"):
        _ = strategy(MatMul(sym("quotient"), 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").ir


@pytest.mark.parametrize("group_m", [3, 4])
def test_every_tile_belongs_to_a_block(group_m, everywhere):
    """The simulator, which does not use reciprocals, and the numbers of the text agree for all ragged grids."""
    strategy = MatMul.tile(8, 8).to(Block).rasterize(group_m=group_m).persistent(5).tile(4, 2).to(Thread).tile(1, 1).split(1).done()
    program = strategy(MatMul(*map(sym, "MNK"), dtype=int32, c_dtype=int32)(GL, GL, GL)(Kernel)).program("sm_80")
    kernel, names = program.ir, {}
    for stmt in statements(kernel.body):
        if isinstance(stmt, Let):
            names.setdefault(stmt.var.name, stmt.value)
    divisors = Divisors(kernel.symbols, kernel.body)
    values = {one.divisor: one for one in kernel.reciprocals}
    for lines, columns in itertools.product((1, 2, 3, 4, 5, 9), (1, 2, 7)):
        sizes = {"M": lines * 8 - 3, "N": columns * 8 - 5, "K": 1}
        seen = set()
        for tile in range(lines * columns):
            env = {**sizes, "tile": tile}
            for name in ("band", "inside", "height", "column", "block_m", "block_n"):
                env[name] = names[name].evaluate(env)
                for stmt in quotients(names[name]):
                    divisor = divisors.of(stmt)
                    number, by = (side.evaluate(env) for side in stmt.children)
                    real = number // by
                    if divisor is not None and (divisor.whole is None or by < divisor.whole):
                        assert quotient(number, values[divisor.constant].value(sizes)) == real
            seen.add((env["block_m"], env["block_n"]))
        assert seen == set(itertools.product(range(lines), range(columns)))
    a, b = np.ones((19, 3), np.int32), np.ones((3, 21), np.int32)
    assert (simulate(kernel, {"A": a, "B": b}, {"M": 19, "N": 21, "K": 3}).outputs["C"] == 3).all()


def test_kernels_without_a_producer_have_none():
    """Only divisions before the loops use them, since their registers are needed elsewhere."""
    module = library("gemm_nn")
    text = module.strategy(module.spec(*map(sym, "MNK"))).program("sm_80").cuda
    assert "quotient" not in text and " / " in text


def test_hand_made_kernels_have_none():
    program = printed(hopper.spec(*SIZES))
    assert program.stages["programmatic_launch"].reciprocals == () and len(program.ir.reciprocals) == 2
    assert attrs.evolve(program.ir, reciprocals=()).parameters == program.ir.parameters[:-2]
