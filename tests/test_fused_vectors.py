"""Steps on elements in memory: vectors of adjacent elements, one bounds check per vector, and none in interior tiles."""

import itertools
import random
import re

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.cuda.versions import Branch, branched
from fireiron.gpu.toolchain import compile_cuda
from fireiron.ir import edited, execs, interior_condition, nest_of, rewritten, statements
from fireiron.lower.edge_versioning import edge_versioning, strongest
from fireiron.sim import simulate
from fireiron.strategies import attention, hmma_ampere, layernorm
from fireiron.values.expr import FALSE, TRUE, Var, conjuncts, less

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
loop = MatMul.split(32).pipeline(2).load(A, SH, copy).load(B, SH, copy).tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments)
loop = loop.load(B, RF, fragments).then(mma)

dropped = Fused(
    name="dropped",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "bias": "n", "keep": "m n", "R": "m n", "scale": "", "C": "m n"},
    body={
        "product": "acc[m,n] = sum(k, A[m,k] * B[k,n])",
        "drop": "C[m,n] = where(keep[m,n] != 0, relu(acc[m,n] + bias[n]) * scale + R[m,n], 0)",
    },
)
by_blocks = dropped.tile(m=64, n=64).to(Block).step("product", loop).done()

rows = Fused(
    name="rows",
    dims="m n",
    operands={"X": "m n", "R": "m n", "gain": "n", "keep": "m n", "Y": "m n"},
    body={"y": "Y[m,n] = where(keep[m,n] > 0, X[m,n] * gain[n] + R[m,n], 0)"},
)
by_lanes = rows.tile(m=1).to(Block).load("X", RF, Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()).done()

TYPES = {"keep": int8, "R": bfloat16}
M, N, K = sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)

CASES = {
    "covered": (by_blocks, dropped(m=64, n=128, k=32, types=TYPES), {}),
    "edge": (by_blocks, dropped(m=70, n=88, k=40, types=TYPES), {}),
    "odd": (by_blocks, dropped(m=9, n=67, k=40, types=TYPES), {}),
    "symbolic": (by_blocks, dropped(m=M, n=N, k=K, types=TYPES), {"M": 70, "N": 136, "K": 40}),
    "rows": (by_lanes, rows(m=3, n=512, types=TYPES), {}),
    "rows, edge": (by_lanes, rows(m=3, n=328, types=TYPES | {"gain": float32}), {}),
    "rows, odd": (by_lanes, rows(m=3, n=300, types=TYPES), {}),
}


def text_of(name):
    strategy, spec, _ = CASES[name]
    return strategy(spec).cuda("sm_80")


def step_of(text, comment):
    """The lines of a step, after its comment."""
    return text[text.index(f"// {comment}: ") :].partition("\n")[2]


def versions_of(step):
    """The interior and the boundary version of a branch."""
    match = re.search(r"^( *)if \((.*)\) \{\n((?s:.*?))\n\1\} else \{\n((?s:.*?))\n\1\}", step, re.M)
    assert match is not None, step
    return match[2], match[3], match[4]


def alone(text):
    """Elements that are loaded or stored one by one."""
    return re.findall(r"(?<!&)\b(?!acc|x_rf)(?:\w+_(?:source|target)|[A-Z])\[", text)


def arrays_of(spec, sizes, seed=0):
    generator = np.random.default_rng(seed)
    extents = {dim: sizes.get(str(spec.size(dim)), None) or int(str(spec.size(dim))) for dim in spec.dims}
    arrays = {}
    for name in spec.inputs:
        shape = [extents[dim] for dim in spec.uses[name]]
        drawn = generator.integers(0, 2, shape) if name == "keep" else generator.standard_normal(shape) / 2
        arrays[name] = np.asarray(drawn).astype(spec.operands[name].dtype.to_numpy())
    return arrays


def close(spec, fused, arrays):
    (name,) = spec.outputs
    right = spec.reference(*arrays.values()).astype(np.float64)
    return np.abs(fused[name].astype(np.float64) - right).max() <= 4e-3 * max(1, np.abs(right).max())


# ---------------------------------------------------------------------------------------------- vectors


@pytest.mark.parametrize("name", ["covered", "rows"])
def test_adjacent_elements_use_vectors(name):
    """float16 operands, bytes of a mask and a residual of another type: eight adjacent elements per 16 bytes, if a thread has as many."""
    step = step_of(text_of(name), "drop" if name == "covered" else "y")
    assert not alone(step)
    if name == "rows":
        carriers = dict(re.findall(r"&(\w+)_values\[0\]\) =\s+\*reinterpret_cast<const (\w+)\*>", step))
        assert carriers == {"r": "uint4", "gain": "uint4", "keep": "uint2"}
        assert step.count("uint4*>(&Y[") == 1


def test_vectors_do_not_cross_an_edge():
    assert "reinterpret_cast" not in step_of(text_of("odd"), "drop")
    step = step_of(text_of("rows, odd"), "y")
    assert "uint2" in step and "uint4" not in step, "300 elements of a row: four at once, never eight"


@pytest.mark.parametrize("name", CASES)
def test_vectorized_results(name):
    strategy, spec, sizes = CASES[name]
    program = strategy(spec).program("sm_80")
    arrays = arrays_of(spec, sizes)
    assert close(spec, simulate(program.ir, arrays, sizes, order=random.Random(3)).outputs, arrays)
    assert not [one for one in check(program.ir) if one.severity == "error"]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts(tmp_path):
    """Executed with sanitizers: no out-of-bounds loads, and vectors are aligned."""
    cases = {name: CASES[name] for name in ("symbolic", "rows, odd")}
    host = HostProgram([Printed.of(strategy(spec).program("sm_80")) for strategy, spec, _ in cases.values()], tmp_path)
    for number, (name, (_, spec, sizes)) in enumerate(cases.items()):
        arrays = arrays_of(spec, sizes, number)
        assert close(spec, host.run(number, arrays, sizes, seed=number), arrays), name


# ---------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("name", ["edge", "symbolic"])
def test_interior_tiles_have_no_conditions(name):
    """In boundary tiles a vector has one condition, or two if its row may be out of bounds, too."""
    whole, inside, outside = versions_of(step_of(text_of(name), "drop"))
    assert "lane" not in whole and "thread" not in whole
    assert " < " not in re.sub(r"for \(.*\)", "", inside) and not alone(inside)
    assert not alone(outside) and outside.count(" < ") - outside.count("for (") == 2


def test_epilogues_of_the_library():
    strategy = hmma_ampere.strategy(MatMul.fuse_epilogue("relu(acc + bias[n]) + R[m,n]")(m=M, n=N, k=K))
    whole, inside, outside = versions_of(step_of(strategy.cuda("sm_80"), "epilogue"))
    assert "M" in whole and "N" in whole and "?" not in inside and "__half2" in inside
    assert outside.count("?") == 2, "one for two elements of the bias, one for two of the residual"


def test_rows_of_any_length():
    """A row of 1000 elements: two warps, the first without conditions, the second with one per 16 bytes."""
    text = layernorm.strategy(layernorm.spec(4, 1000)).cuda("sm_80")
    assert set(re.findall(r"[^(]* \+ (\d+) < 1000", text)) == {"256", "511"}
    for step in ("sum", "center", "squares", "out"):
        whole, inside, _ = versions_of(step_of(text, step))
        assert whole == "warp * 512 + 511 < 1000" and "?" not in inside and "if" not in inside
    assert "?" not in step_of(text, "store")


def test_interior_blocks_of_keys_have_no_conditions():
    strategy = attention.by_rows(attention.definition()).with_(bm=64, bn=32, wm=16, stages=2)
    for n, options in ((70, {}), (sym("N"), {})):
        text = strategy(attention.spec(64, n, 64, **options)).cuda("sm_80")
        whole, inside, outside = versions_of(text[text.index("K to k_sh", text.index("for (int n = 0")) :])
        assert whole.startswith("n * 32 + 63 < ") and inside.count("cp_async_16(") == outside.count("cp_async_16_zfill(") == 2


def test_single_step_kernels_have_one_version():
    text = hmma_ampere.strategy(hmma_ampere.spec(200, 264, 72)).cuda("sm_80")
    assert "else" not in text


def test_wrong_interior_condition_is_found():
    """Injected fault: the interior condition holds for one tile too many."""
    strategy, spec, _ = CASES["edge"]
    program = strategy(spec).program("sm_80")

    def everywhere(stmt):
        return (attrs.evolve(stmt, interior=less(Var("block", 0, 3), 4)) if getattr(stmt, "interior", FALSE) != FALSE else stmt,)

    kernel = attrs.evolve(program.ir, body=rewritten(program.ir.body, everywhere))
    assert any("C" in one.message or "R" in one.message for one in check(kernel) if one.severity == "error")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["atomic", "taken as it is", "of a warp"])
def test_versions_require_the_elements_of_one_thread(kind):
    """Atomic adds, plain copies and work by several threads together have one version."""
    program = CASES["edge"][0](CASES["edge"][1]).program("sm_80")
    (whole,) = (one for one, _ in execs(program.ir.body) if one.interior != FALSE)
    plain = attrs.evolve(whole, interior=FALSE, implied=())
    if kind == "atomic":
        other = attrs.evolve(plain, spec=AtomicAdd(1, 8)(RF, GL)(Thread))
    else:
        other = attrs.evolve(plain, pieces=()) if kind == "taken as it is" else attrs.evolve(plain, spec=plain.spec.at_level(Warp))
    for stmt, count in ((plain, 1), (other, 0)):
        body = edited(program.ir.body, lambda each, one=stmt: one if each == whole else attrs.evolve(each, active=TRUE, pieces=()))
        kernel = edge_versioning(attrs.evolve(program.ir, body=body))
        assert sum(each.interior != FALSE for each, _ in execs(kernel.body)) == count


def test_versioned_nest_contains_one_statement():
    program = CASES["edge"][0](CASES["edge"][1]).program("sm_80")
    whole = [one for one, _ in execs(program.ir.body) if one.interior != FALSE]
    assert len(whole) == 1 and whole[0].implied
    assert any(nest_of(one)[1] == whole[0] for one in program.ir.body)


def test_adjacent_statements_with_other_conditions_get_other_branches():
    kernel = CASES["edge"][0](CASES["edge"][1]).program("sm_80").ir
    other = less(Var("block", 0, 3), 2)

    def twice(stmt):
        return (stmt, *edited((stmt,), lambda inner: attrs.evolve(inner, interior=other)))

    body = tuple(part for one in kernel.body for part in (twice(one) if interior_condition(one) != FALSE else (one,)))
    conditions = [one.interior for one in statements(branched(attrs.evolve(kernel, body=body)).body) if isinstance(one, Branch)]
    assert len(conditions) == 2 and conditions[1] == other != conditions[0]


def test_the_strongest_of_several_comparisons():
    """The largest coordinate plus its extent decides for all, in any order."""
    n, extent = Var("n", 0, 100), Var("N", 1, 4096, parameter=True)
    weak, strong, apart = (less(value, extent) for value in (n * 8 + 7, n * 8 + 15, Var("m", 0, 9)))
    for conditions in itertools.permutations((weak, strong, apart)):
        assert set(conjuncts(strongest(conditions))) == {strong, apart}


# ---------------------------------------------------------------------------------------------- comparisons


def test_undecided_comparisons():
    x, size = Var("x", 0, 9), sym("N", multiple_of=8)
    assert less(x * 8 + 3, size) == less(x * 8, size) and str(less(x * 8 + 3, size)) == "x * 8 < N"
    assert str(less(x * 8 + 11, 50)) == "x * 8 + 10 < 50"
    assert str(less(Var("y", 0, 99) + 3, size)) == "y + 3 < N"
    for step, number, limit in itertools.product((1, 2, 6, 8), range(-3, 12), (16, 30, 48, 49)):
        condition = less(x * step + number, limit)
        assert [bool(condition.evaluate({"x": value})) for value in range(10)] == [value * step + number < limit for value in range(10)]


# ---------------------------------------------------------------------------------------------- compiled


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_no_spills(target):
    for strategy, spec in (
        (by_blocks, CASES["symbolic"][1]),
        (layernorm.strategy, layernorm.spec(64, 1000)),
        (attention.strategy.with_(bm=128, bn=64, wm=16, stages=2), attention.spec(1000, 1000, 128)),
    ):
        program = strategy(spec).program(target)
        assert compile_cuda(program.cuda, target).resources[program.name].spill_stores == 0, program.name
