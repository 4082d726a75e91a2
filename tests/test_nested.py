"""Nested loops of definitions: evaluated, simulated, checked, printed and run on a CPU, compiled, stored; faults and refusals.

Oracles: `reference()` with error bounds, NumPy (`nested.by_numpy`), `second_formula` for random definitions, the race checks, shadow memory.
"""

import os
import random

import attrs
import nested
import nested_generator
import numpy as np
import pytest
from faults import dropped
from nested import ATTENTION, CASES, EXPERTS, LOG_SUM_EXP, SUMS, SWIGLU, by_numpy, copy
from nested_generator import FORMS
from nested_generator import draw as drawn_definition
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron import draw, ir, predict
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explained
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate
from fireiron.specs.fused import fused
from fireiron.stepping.masked_tile_effects import changed_by
from fireiron.tune.record import describe, spec_of

SEED = 20261130
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
needs_nvrtc = pytest.mark.skipif(not any(one.serves("sm_90a") for one in toolchains()), reason="no NVRTC for sm_90a")


def inputs_of(spec, symbols=None, seed=0):
    return random_inputs(spec, symbols or {}, np.random.default_rng(seed))


def near(got, wanted):
    for name, value in wanted.items():
        np.testing.assert_allclose(np.asarray(got[name]).astype(np.float64), value, rtol=2e-2, atol=2e-2 * np.abs(value).max())


# ---------------------------------------------------------------------------------------------- meaning


@pytest.mark.parametrize("definition", [SWIGLU, ATTENTION, LOG_SUM_EXP, SUMS], ids=lambda definition: definition.kind.title)
def test_definitions_are_values(definition):
    definition.check()
    assert eval(repr(definition)) == definition and hash(eval(repr(definition))) == hash(definition)
    flat = eval(repr(definition).replace("'k': {'s'", "'_': {'s'").replace("'_'", "'k'"))
    assert flat == definition


def test_print_shows_the_loops():
    lines = str(EXPERTS).splitlines()
    assert lines[0] == "experts(m, f, k, n, g)  loop f k  scan g"
    inner = next(number for number, line in enumerate(lines) if line.strip() == "for k")
    assert lines[inner + 1] == "        gate   gate[m,f] += sum(k, A[m,k] * G[g,k,f])" and "      act " in lines[inner + 3]


def test_steps_of_other_loops_are_another_definition():
    """The same steps in the same order, with the last one in the inner loop or after it."""
    words = {"name": "one", "dims": "m n k", "loop": "n k", "operands": {"X": "m n k", "y": "m"}, "init": {"z": "t[m] = 0"}}
    part, last = "p[m,n] += sum(k, X[m,n,k])", {"r": "r[m] = sum(n, p[m,n])", "a": "t[m] = t[m] + r[m]"}
    zero, final = {"p0": "p[m,n] = 0"}, {"final": {"o": "y[m] = t[m]"}}
    after = Fused(**words, **final, body={**zero, "k": {"p": part}, **last})
    inside = Fused(**words, **final, body={**zero, "k": {"p": part, **last}})
    assert after != inside and after.kind != inside.kind
    after.check()
    with pytest.raises(ArgumentError, match="depends on the number of elements of n k per iteration"):
        inside.check()


@pytest.mark.parametrize("name", ["swiglu", "experts", "attention", "log_sum_exp", "sums"])
def test_reference_equals_numpy(name):
    _, spec, symbols, _ = CASES[name]
    arrays = inputs_of(spec, symbols)
    references = references_of(spec, *arrays.values())
    near(dict(zip(spec.outputs, references.values() if isinstance(references, dict) else references, strict=True)), by_numpy(spec, arrays))


# ---------------------------------------------------------------------------------------------- kernels


def judged(program, symbols, seed=1):
    """The objections of all oracles to a program."""
    arrays = inputs_of(program.spec, symbols, seed)
    got = simulate(program.ir, arrays, symbols, order=random.Random(seed)).outputs
    near(got, by_numpy(program.spec, arrays))
    errors = [str(finding) for finding in safety(program.ir) if finding.severity == "error"]
    right = references_of(program.spec, *arrays.values())
    return errors + differing(program.spec, all_sizes(program.spec, symbols), got, arrays, right)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_results(name):
    strategy, spec, symbols, target = CASES[name]
    assert not judged(strategy(spec).program(target), symbols)


def test_operands_of_the_inner_loop_are_loaded_once():
    """A is copied once per iteration of k; the outer loop has steps before and after the inner one."""
    text = nested.swiglu_on_ampere()(SWIGLU(m=64, n=64, f=128, k=96)).cuda("sm_80")
    outer, inner = text.index("for (int f = 0; f < 2; ++f) {"), text.index("for (int k = 0; k < 3; ++k) {")
    assert outer < text.index("// gate0: g[m,f] = 0") < inner < text.index("// up: u[m,f] +=") < text.index("// down: acc[m,n] +=")
    assert text[inner:].count("cp_async_16(") == 3  # A, G and U of a later iteration


def test_rings_of_two_loops():
    """The producer fills a ring of the inner loop in each iteration, and one of the outer loop once per iteration of that loop."""
    text = nested.swiglu_on_hopper()(SWIGLU(m=128, n=64, f=128, k=192)).cuda("sm_90a")
    producer = text[text.index("// producer") :]
    outer, inner = producer.index("for (int f = 0;"), producer.index("for (int k = 0;")
    assert outer < inner < producer.index("&A_map") < producer.index("&U_map") < producer.index("&D_map")
    assert "2 mbarriers: d_sh full" in text and "3 mbarriers: a_sh full" in text


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "names", [("sums", "sums symbolic", "log_sum_exp"), ("swiglu", "experts", "attention"), ("swiglu tma", "attention tma")]
)
def test_printed_texts_on_a_cpu(names, tmp_path):
    cases = [CASES[name] for name in names]
    host = HostProgram([Printed.of(strategy(spec).program(target)) for strategy, spec, _, target in cases], tmp_path)
    for number, (_, spec, symbols, _) in enumerate(cases):
        arrays = inputs_of(spec, symbols, number)
        near(host.run(number, arrays, symbols, number), by_numpy(spec, arrays))


@needs_nvrtc
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["swiglu", "experts", "attention", "log_sum_exp", "sums", "swiglu tma", "attention tma"])
def test_nvrtc_compiles(name):
    strategy, spec, _, target = CASES[name]
    for architecture in {target, "sm_90a"}:
        compile_cuda(strategy(spec).program(architecture).cuda, architecture)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["swiglu", "experts", "attention", "sums", "swiglu tma"])
def test_what_users_inspect(name):
    strategy, spec, _, target = CASES[name]
    bound = strategy(spec)
    program = bound.program(target)
    assert loads(dumps(bound)) == bound and eval(repr(bound)) == bound and spec_of(describe(spec)) == spec
    assert parse_kernel(graphene_text(program), target).cuda == program.cuda
    assert explained(explain(bound, target)) and predict(program)
    assert f"for each part of {'d' if name == 'attention' else 'k'}, for each part of" in draw(program, "flow").svg.replace("g, ", "")


SOURCE = """
from nested import SUMS, sums_of_rows

strategy = sums_of_rows()(SUMS(m=5, n=11, k=21))
"""


@pytest.mark.parametrize(("command", "wanted", "options"), [("show", "for k", ()), ("check", "no ", ()), ("run", "PASS", ("--simulate",))])
def test_commands(command, wanted, options, tmp_path, capsys):
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    assert "X" in drawn_and_exported(SOURCE, tmp_path, capsys)


# ---------------------------------------------------------------------------------------------- random definitions


@pytest.mark.parametrize("form", FORMS)
def test_generated_kernels(form):
    for seed in range(SEED, SEED + 2 * SCALE):
        case, _ = drawn_definition(seed, form)
        assert not nested_generator.objection(case, seed), nested_generator.program_to_paste(case)


def test_generated_definitions_are_values():
    for seed in range(SEED, SEED + 5 * SCALE):
        case, _ = drawn_definition(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound, nested_generator.program_to_paste(case)
        assert eval(repr(case.definition)) == case.definition, nested_generator.program_to_paste(case)


@pytest.mark.nightly
def test_generator_covers_all_features():
    wanted = {
        *FORMS, "carried sum", "carried max", "carried min", "joined", "between", "outer value", "stored in the outer loop", "split twice",
        "scan inside", "three levels", "two inner loops", "two products", "second layer", "two pipelines", "loaded outside", "skipped", "mask",
        "pipeline 0", "pipeline 2", "pipeline 3", "symbolic", "overhanging",
    }  # fmt: skip
    for seed in range(SEED, SEED + 120):
        wanted -= set(drawn_definition(seed)[0].features)
        if not wanted:
            return
    raise AssertionError(f"never drawn: {wanted}")


# ---------------------------------------------------------------------------------------------- values past the end


def column_sums(memory=None):
    """Sums of exponentials along a loop, of a temporary that a nested loop carries or that the strategy places."""
    definition = Fused(
        name="exponentials", dims="m n k", loop="n k", operands={"X": "m n k", "y": "m"}, init={"z": "t[m] = 0"},
        body={
            "p0": "p[m,n] = 0.5", "k": {"e": "e[m,n,k] = exp(X[m,n,k])", "p": "p[m,n] += sum(k, e[m,n,k])"},
            "c": "c[m] = sum(n, p[m,n])", "a": "t[m] = t[m] + c[m]",
        },
        final={"o": "y[m] = t[m]"},
    )  # fmt: skip
    chain = definition.tile(m=2).to(Block).split(n=4).split(k=4)
    chain = chain if memory is None else chain.set_memory("e", memory)
    return chain.load("X", RF, Move.tile(1, 1, 1).to(Thread).done()).done()(definition(m=3, n=6, k=5, dtype=float32))


@pytest.mark.parametrize("memory", [None, SH])
def test_values_past_the_end_are_not_added(memory):
    """A temporary that another part carries, or that is placed, is not zero past the end, as a copy of an operand is."""
    bound = column_sums(memory)
    (x,) = inputs_of(bound.spec).values()
    y = bound.compile("sm_80")(x)
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)).sum((1, 2)) + 3, rtol=1e-5)


# ---------------------------------------------------------------------------------------------- masked iterations


def second_iteration(first, value):
    """A definition whose inner loop adds `t - 1` in each iteration and then sets t; the mask is that of the outer loop."""
    return Fused(
        name="second", dims="m n k", loop="n k", operands={"X": "m n k", "y": "m"}, mask={"seen": "n <= m"}, init={"z": "acc[m] = 0"},
        body={
            "t0": f"t[m] = {first}",
            "k": {
                "x": "x[m,n,k] = where(seen, X[m,n,k], 0)", "part": "part[m] = sum(n, k, x[m,n,k])", "add": "acc[m] = acc[m] + part[m] * t[m]",
                "more": "acc[m] = acc[m] + (t[m] - 1)", "next": f"t[m] = {value}",
            },
        },
        final={"o": "y[m] = acc[m]"},
    )  # fmt: skip


def test_later_iterations_count_in_the_proof_that_a_masked_one_changes_nothing():
    """In the first inner iteration `t - 1` is 0, in the second it may not be."""
    for value, same in (("1", True), ("2", False), ("t[m] * 2", False), ("where(m < 3, 1, 1)", True)):
        body = second_iteration("1", value).kind.fused_definition.part("body")
        definition = body.of(given=(*body.given, ("acc", ("m",))))
        change = changed_by(definition, lambda condition: True)
        assert (change is None) == same, (value, change)


# ---------------------------------------------------------------------------------------------- faults


def reported(kernel, arrays, expected):
    """Whether the static checks report a kernel, and whether the simulator does, or its outputs differ."""
    static = any(finding.severity == "error" for finding in safety(kernel))
    for order in (None, random.Random(1), random.Random(2)):
        try:
            outputs = simulate(kernel, arrays, order=order).outputs
        except (SimulationError, FireironError):
            return static, True
        if any(not np.array_equal(outputs[name], expected[name], equal_nan=True) for name in expected):
            return static, True
    return static, False


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["swiglu", "swiglu two pipelines", "swiglu tma"])
def test_dropped_synchronization_is_found(name):
    """Each barrier, fence, wait, commit, acquire and release: a check or the simulator reports that it is missing."""
    strategy, spec, _, target = CASES[name]
    program = strategy(spec).program(target)
    arrays = inputs_of(spec, seed=1)
    expected = simulate(program.ir, arrays).outputs
    faulty = list(dropped(program.ir))
    chosen = random.Random(name).sample(faulty, min(len(faulty), 4 * SCALE))
    missed = [stmt for stmt, kernel in chosen if not any(reported(kernel, arrays, expected))]
    others = [stmt for stmt in missed if not isinstance(stmt, ir.Commit)]  # the next commit contains the copies, and the wait is for both
    assert len(others) <= 1, missed


def test_steps_of_another_loop_are_found():
    """The results are wrong if the first value is set in each iteration of the inner loop, instead of before it."""
    _, spec, symbols, _ = CASES["sums"]
    definition = fused(spec)
    steps = [attrs.evolve(step, nest=("k",)) if step.name == "zero_n" else step for step in definition.steps]
    arrays = inputs_of(spec, symbols)
    types = {name: view.dtype for name, view in spec.operands.items() if not view.memory.is_coordinate}
    sizes = {dim: int(spec.size(dim).evaluate({})) for dim in spec.dims}
    right, wrong = (one.evaluate(arrays, sizes, types, chunk=8) for one in (definition, definition.of(steps=tuple(steps))))
    assert not np.allclose(right["Y"].astype(float), wrong["Y"].astype(float))
    near(right, by_numpy(spec, arrays))


# ---------------------------------------------------------------------------------------------- refusals


WORDS = {
    "name": "b", "dims": "m n k", "loop": "n k", "operands": {"X": "m n k", "y": "m"}, "init": {"z": "t[m] = 0"}, "final": {"o": "y[m] = t[m]"},
    "body": {"k": {"p": "p[m,n] = sum(k, X[m,n,k])", "r": "r[m] = sum(n, p[m,n])", "a": "t[m] = t[m] + r[m]"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ({"body": {"q": {"s": "t[m] = 0"}}}, ("'q' in body is a nested loop, so it must name dimensions", "legal   n k", "loop='n k q'")),
        ({"body": {3: {"s": "t[m] = 0"}}}, ("3 in body is a nested loop",)),
        ({"body": {"k": {}}}, ("the nested loop over k has no steps",)),
        ({"body": {"k": {"s": 3}}}, ("the formula of step s must be a text",)),
        ({"body": {"k": {"a step": "t[m] = 0"}}}, ("'a step' in body is not a name for a step",)),
        (
            {"loop": "n k", "body": {"k n": {"s": "p[m,n] = sum(k, X[m,n,k])"}}},
            ("the loop over k n is not inside of another loop", "the steps before it in init"),
        ),
        ({"final": {"k": {"c": "t[m] = 1"}, "o": "y[m] = t[m]"}}, ("two nested loops iterate over k", "body / k")),
        ({"body": {"k": {"p": "u[m] = t[m]"}, "x": "x[m,n,k] = X[m,n,k]"}}, ("no step of the loop over k has the loop's dimension k",)),
        (
            {"loop": "n", "scan": "k", "body": {"k": {"s": "p[m,n] = X[m,n,k]"}, "q": "p[m,n] = X[m,n,k]"}},
            ("step q has the dimension k, but is not in the loop over k", "move the step into the loop"),
        ),
        ({"body": {**WORDS["body"], "p": "u[m] = 1"}}, ("the step p is in two loops", "another name")),
        ({"body": {**WORDS["body"], "z": "u[m] = 1"}}, ("the step z is in two parts",)),
    ],
)  # fmt: skip
def test_refused_definitions(words, parts):
    with pytest.raises(ArgumentError) as refused:
        Fused(**{**WORDS, **words})
    assert all(part in str(refused.value) for part in parts) and "test_nested.py:" in str(refused.value), str(refused.value)


def blocks(definition=SWIGLU):
    return definition.tile(m=64).to(Block)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: blocks().split(k=32), ("split(k=32): the loop over f is split before that over k", "legal   f", ".split(f=...).split(k=...)")),
        (lambda: blocks().split(k=32, f=64), ("the loop over f is split before that over k",)),
        (lambda: blocks().split(f=64).split(k=32).split(f=32), ("the steps are only a part of an iteration over f", "before the split of the loop")),
        (lambda: blocks(ATTENTION).split(n=64).defer("pv", after="s").split(d=32), ("defer: an iteration contains the loop over d", "legal   defer after split(d=...)")),
        (
            lambda: blocks(ATTENTION).split(n=64).pipeline(2).warp_specialize(128).order_mma("s", "pv").split(d=32),
            ("order_mma: an iteration contains the loop over d",),
        ),
        (
            lambda: blocks(ATTENTION).split(n=64).skip_steps("zero", "s", where="mx == new").split(d=32),
            ("skip_steps: ",),
        ),
        (lambda: blocks().split(f=64).set_memory("g", SH).stages(2).split(k=32), ("stages(2): g is carried between iterations",)),
    ],
)  # fmt: skip
def test_refused_strategies(make, parts):
    with pytest.raises(DecompositionError) as refused:
        strategy = make().done()
        strategy(strategy.start(**dict.fromkeys(strategy.start.kind.fused_definition.order, 128))).cuda("sm_90a")
    assert all(part in str(refused.value) for part in parts), str(refused.value)


def test_steps_of_two_loops_are_not_skipped_together():
    definition = ATTENTION.kind.fused_definition
    with pytest.raises(DecompositionError, match="skip_steps: zero and s are in different loops"):
        blocks(ATTENTION).split(n=64).skip_steps("zero", "s", where="alpha == 1").done()(
            ATTENTION(**dict.fromkeys(definition.order, 64))
        ).cuda("sm_80")


def test_pipelines_of_both_loops():
    """D is loaded one outer iteration ahead; A, G and U are loaded ahead within the inner loop."""
    text = nested.swiglu_on_ampere(2, 2, True)(SWIGLU(m=64, n=64, f=192, k=64)).cuda("sm_80")
    outer = text.index("for (int f = 0;")
    assert text.index("// D to d_sh") < outer < text.index("// A to a_sh") and text[:outer].count("cp_async_commit_group();") == 1


def test_stages_of_a_temporary_of_the_outer_loop():
    """Iterations of the outer loop use the copies of h alternately."""
    chain = SWIGLU.tile(m=64, n=64).to(Block).split(f=64).split(k=32).pipeline(2)
    for name in "AGU":
        chain = chain.load(name, SH, copy).swizzle_storage()
    chain = chain.set_memory("h", SH).swizzle_storage().stages(2).load("D", SH, copy).swizzle_storage()
    for name in ("gate", "up", "down"):
        chain = chain.step(name, nested.by_warps)
    program = chain.done()(SWIGLU(m=64, n=64, f=192, k=64)).program("sm_80")
    assert "2 stages" in next(line for line in program.cuda.splitlines() if " h" in line and "// 64 x 64" in line)
    assert not judged(program, {})
