"""Derived strategies: legal and right in the simulator, printed, stored, explained; own rules, given values, rules that are avoided."""

import functools
import importlib
import inspect
import json
from typing import ClassVar

import attrs
import numpy as np
import pytest
from test_library_sizes import OPTIONS

import fireiron
from fireiron import *
from fireiron import cli, schedule
from fireiron.derive import RULES, Facts, Skeleton, Sketch, Trick, call
from fireiron.derive.derivation import written
from fireiron.derive.forms import forms_of
from fireiron.derive.rules.short_rows import ShortRows
from fireiron.derive.search import NoStrategyError, Search
from fireiron.errors import ArgumentError
from fireiron.gpu import toolchain
from fireiron.language.library import bind, find
from fireiron.measure.data import random_inputs
from fireiron.measure.simulated import data_for, simulated, symbol_values
from fireiron.sim import simulate
from fireiron.specs.fused import fused
from fireiron.strategies import attention, dual, gemm_row_sum, hopper_attention, layernorm, mlp, softmax, w8a16
from fireiron.values.machine import as_architecture

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
HALF = {"dtype": float16, "c_dtype": float16, **ROWS}

CASES = {
    "float32": lambda: MatMul(37, 45, 51, **ROWS)(GL, GL, GL)(Kernel),
    "float16": lambda: MatMul(72, 40, 72, **HALF)(GL, GL, GL)(Kernel),
    "dual": lambda: dual.spec(72, 40, 72),
    "softmax": lambda: softmax.spec(5, 72),
    "attention": lambda: attention.spec(40, 24, 32),
}
"""Problems that are derived and simulated in the usual tests."""

TARGETS = ("sm_70", "sm_80", "sm_90a")

SHORT = (ShortRows(),)


@functools.cache
def derived(case, target="sm_80", candidates=5):
    """The derivation of a case."""
    return schedule(CASES[case](), target, candidates=candidates)


def wrong(answer):
    """The first wrong element of a derived strategy in the simulator; None if the result is right."""
    definition = fused(answer.spec)
    if definition is not None and definition.scattered:
        return wrong_in_scattered(answer, {operand.operand for operand in definition.scattered})
    values = symbol_values(answer.spec, {})
    arrays, judge = data_for(answer.program, values, 1)
    return simulated(answer.program, values, arrays, judge)


def wrong_in_scattered(answer, scattered):
    """The first output that differs from the reference, if a kernel writes a part of an array, whose other elements are zero."""
    spec = answer.spec
    arrays = random_inputs(spec, {}, np.random.default_rng(1))
    shapes = {name: [int(size.evaluate({})) for size in spec.operands[name].tensor.array.shape] for name in scattered}
    zeros = {name: np.zeros(shape, spec.operands[name].dtype.to_numpy()) for name, shape in shapes.items()}
    got = simulate(answer.program.ir, {**arrays, **zeros}).outputs
    expected = spec.reference(*(arrays[name] for name in spec.inputs))
    pairs = zip(spec.outputs, expected if isinstance(expected, tuple) else (expected,), strict=True)
    return next((name for name, right in pairs if not np.allclose(got[name], right, atol=1e-2)), None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_right_in_the_simulator(case, target):
    answer = derived(case, target)
    assert answer.program.architecture.name == target
    assert wrong(answer) is None


@pytest.mark.parametrize(
    ("case", "skeleton"), [("float32", "lane_matmul"), ("dual", "warp_loop"), ("softmax", "rows"), ("attention", "warp_rows")]
)
def test_skeletons_of_ampere(case, skeleton):
    assert derived(case).chosen.skeleton == skeleton


def test_by_warpgroups_on_hopper():
    answer = schedule(MatMul(512, 512, 512, **HALF)(GL, GL, GL)(Kernel), "sm_90a", candidates=4)
    assert answer.chosen.skeleton == "warpgroup_matmul"
    assert "wgmma" in answer.program.cuda


@pytest.mark.parametrize("case", CASES)
def test_ordinary_values(case):
    """A derived strategy evaluates from its text, loads from JSON, and is bound to the spec."""
    answer = derived(case)
    assert eval(written(answer.strategy)) == answer.strategy
    assert Strategy.from_json(answer.strategy.to_json()) == answer.strategy
    assert answer.strategy.spec == answer.spec
    assert (
        answer.tunable(answer.spec).program("sm_80").chosen.items() <= dict(answer.chosen.values).items() or not answer.tunable.tunables()
    )
    assert json.loads(json.dumps(answer.as_dict()))["us"] == answer.us


def test_tunables_start_with_the_chosen_values():
    answer = derived("dual")
    firsts = {name: one.values[0] for name, one in answer.tunable.tunables().items()}
    assert firsts.items() <= dict(answer.chosen.values).items()
    assert answer.tunable.with_(**firsts).steps == answer.strategy.steps


def test_each_decision_has_a_reason():
    answer = derived("dual")
    decisions = [reason.decision for reason in answer.reasons]
    assert decisions[0] == "skeleton"
    assert {"tile", "rasterize", "staged_store"} <= set(decisions)
    assert all(reason.because for reason in answer.reasons)
    assert any(reason.next_best for reason in answer.reasons)
    assert "mma.sync multiplies float16" in answer.explain()
    assert answer.refusals["rows"] == "it multiplies matrices"


def test_ranking():
    answer = derived("softmax")
    assert answer.ranking[0].strategy.steps == answer.strategy.steps
    rest = [candidate.us for candidate in answer.ranking[1:]]
    assert rest == sorted(rest)


def test_the_same_answer_each_time():
    spec = CASES["softmax"]()
    assert schedule(spec, "sm_80", candidates=3).strategy == schedule(spec, "sm_80", candidates=3).strategy


# ---------------------------------------------------------------------------------------------- given values, avoided rules


def test_fixed_values():
    answer = schedule(CASES["float16"](), "sm_80", fixed={"bm": 64, "stages": 2}, candidates=3)
    assert (answer.chosen.values["bm"], answer.chosen.values["stages"]) == (64, 2)
    assert any(reason.because == "given" for reason in answer.reasons if reason.decision == "tile") is False
    assert answer.strategy.steps[0].label().startswith("tile(m=64")


def test_a_fixed_value_outside_of_the_options():
    answer = schedule(CASES["float16"](), "sm_80", fixed={"group_m": 3}, candidates=3)
    assert answer.chosen.values["group_m"] == 3
    assert next(reason for reason in answer.reasons if reason.decision == "group_m").because == "given"


def test_refused_arguments():
    spec = CASES["softmax"]()
    with pytest.raises(ArgumentError, match="there is no rule nothing"):
        schedule(spec, "sm_80", avoid=("nothing",))
    with pytest.raises(ArgumentError, match="it has no value bq"):
        schedule(spec, "sm_80", fixed={"bq": 3})
    with pytest.raises(ArgumentError, match="not a spec"):
        schedule(softmax.softmax, "sm_80")


def test_the_refusal_has_each_reason_once():
    """The reasons of all rules are on request."""
    twice = Fused(
        name="twice", dims="m c", operands={"X": "m c", "Y": "m c"},
        body={"left": "a[m] = sum(c, where(c == 0, X[m,c], 0))", "out": "Y[m,c] = where(c == 0, a[m] + X[m,c], a[m])"},
    )  # fmt: skip
    with pytest.raises(NoStrategyError, match="warpgroup_loop and 2 more: it multiplies no matrices") as raised:
        schedule(twice(m=8, c=2), "sm_80", avoid=("rows", "elements", "short_rows"), seconds=1)
    text = str(raised.value)
    assert len(text) < 900 and len(set(text.splitlines())) == len(text.splitlines()) and "warp_loop" not in text
    assert raised.value.refusals["warp_loop"] == "it multiplies no matrices" and "short_rows and 2 more: avoided" in text


def test_what_no_instruction_multiplies_is_refused():
    spec = MatMul(64, 64, 64, dtype=float8_e4m3, c_dtype=float16, A=RowMajor, B=ColMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    with pytest.raises(ArgumentError, match="sm_70 has no mma.sync for float8_e4m3"):
        schedule(spec, "sm_70")


HOPPER = {
    "product": lambda: MatMul(512, 512, 512, **HALF)(GL, GL, GL)(Kernel),
    "dual": lambda: dual.spec(72, 40, 72),
    "weights": lambda: w8a16.spec(128, 128, 128),
    "rows": lambda: gemm_row_sum.spec(128, 256, 64),
    "causal": lambda: hopper_attention.spec(128, 128, 64, fused=hopper_attention.definition(causal=True)),
    "attention": lambda: hopper_attention.spec(128, 128, 64),
}
"""Problems in which each trick is used on Hopper."""


def sketches(spec, avoid=()):
    """The sketches of a spec on Hopper, by skeleton: with the usual tricks, except those to avoid."""
    return {sketch.skeleton: sketch for sketch in Search(Facts(spec, as_architecture("sm_90a")), RULES, avoid=avoid)._sketches()}


def with_and_without(spec, trick):
    """Yield pairs of sketches that differ in a trick, and the tricks that only the first one has: the trick, and those that require it."""
    facts = Facts(spec, as_architecture("sm_90a"))
    for name, sketch in sketches(spec).items():
        if not trick.usual:
            if not trick.refusal(facts, sketch):
                yield trick.amend(facts, sketch), sketch, {trick.name}
        elif trick.name in dict(sketch.tricks):
            own = dict(sketch.tricks)
            gained = set(dict(sketches(spec, (trick.name,))[name].tricks)) - set(own)
            fewer = sketches(spec, (trick.name, *gained))[name]
            yield sketch, fewer, set(own) - set(dict(fewer.tricks))


@pytest.mark.parametrize("trick", [rule for rule in RULES if isinstance(rule, Trick)], ids=lambda trick: trick.name)
def test_a_trick_changes_its_own_steps_only(trick):
    """Without a trick, its parts are missing, its refinements are missing at other parts, and everything else is equal."""
    count = 0
    for make in HOPPER.values():
        for full, fewer, tricks in with_and_without(make(), trick):
            count += 1
            rest = [part for part in full.parts if part.rule not in tricks]
            assert [part.name for part in rest] == [part.name for part in fewer.parts]
            pairs = zip(rest, fewer.parts, strict=True)
            changed = [part.name for part, other in pairs if [call for call in part.calls if call in other.calls] != list(other.calls)]
            own = {"staged_store": ["store"] * full.has("store"), "batch_apart": ["blocks"]}
            assert changed == own.get(trick.name, [])
    assert count


# ---------------------------------------------------------------------------------------------- other forms

RUNNING = Fused(
    name="running", dims="b n", operands={"X": "b n", "Y": "b n"}, scan="n", init={"zero": "acc[b] = 0"},
    body={"add": "acc[b] = acc[b] + X[b,n]", "store": "Y[b,n] = acc[b]"},
)  # fmt: skip
TOTAL = Fused(
    name="total", dims="m n", operands={"X": "m n", "Y": "n"}, types={"Y": float32},
    body={"sum": "acc[n] = sum(m, X[m,n])", "store": "Y[n] = acc[n]"},
)  # fmt: skip
WEIGHTED = Fused(
    name="weighted", dims="m n d", operands={"Q": "m d", "K": "n d", "V": "n d", "O": "m d"},
    body={
        "s": "s[m,n] = sum(d, Q[m,d] * K[n,d])", "top": "top[m] = max(n, s[m,n])", "e": "e[m,n] = exp(s[m,n] - top[m])",
        "t": "t[m] = sum(n, e[m,n])", "w": "w[m,n] = e[m,n] / t[m]", "o": "acc[m,d] = sum(n, w[m,n] * V[n,d])", "store": "O[m,d] = acc[m,d]",
    },
)  # fmt: skip
TURNED = Fused(
    name="turned", dims="m n", operands={"A": "m n", "B": "n m", "s": "n", "Y": "m n"}, body={"sum": "Y[m,n] = A[m,n] + relu(B[n,m]) * s[n]"},
)  # fmt: skip
FORMS = {"scan": RUNNING(b=3, n=40), "added": TOTAL(m=4200, n=8), "online": WEIGHTED(m=16, n=32, d=16)}
"""Definitions to which a form applies."""


@pytest.mark.parametrize("name", FORMS)
def test_other_form_computes_the_same(name):
    spec = FORMS[name]
    ((form, other),) = forms_of(spec)
    assert form.name == name
    random = np.random.default_rng(1)
    given = {x: random.standard_normal([int(spec.size(dim).evaluate({})) for dim in spec.uses[x]]).astype(np.float16) for x in spec.inputs}
    sizes = {dim: int(spec.size(dim).evaluate({})) for dim in spec.dims}
    types = {x: view.dtype for x, view in spec.operands.items()}
    expected = spec.kind.reference(spec.definition, given, types, sizes)[0].astype(float)
    result = simulate(schedule(other, "sm_80", candidates=1).program.ir, given).outputs[spec.outputs[0]]
    assert np.allclose(result.astype(float), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("m", [24, 7])
def test_transposed_operands_beside_a_vector(m):
    """A lane loads vectors of matrices; it reads the elements of the vector `s` with those of the other steps."""
    answer = schedule(TURNED(m=m, n=40, dtype=float16), "sm_80", candidates=1, avoid=("elements",))
    assert answer.chosen.skeleton == "transposed"
    random, shapes = np.random.default_rng(2), {"A": (m, 40), "B": (40, m), "s": (40,)}
    given = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    a, b, s = (given[name].astype(float) for name in "ABs")
    result = simulate(answer.program.ir, given).outputs["Y"]
    assert np.allclose(result.astype(float), a + np.maximum(b.T, 0) * s, rtol=2e-3, atol=2e-3)


def test_faster_form_is_suggested_and_nothing_is_rewritten():
    answer = schedule(TOTAL(m=65536, n=64), "sm_80", candidates=2)
    (form,) = answer.other_forms
    assert form.gain > 2 and form.definition.fused_definition.added == ("Y",)
    assert answer.strategy.spec == answer.spec
    assert "another form of the definition would be faster: added" in answer.explain()
    assert schedule(CASES["softmax"](), "sm_80", candidates=1).other_forms == ()


# ---------------------------------------------------------------------------------------------- partial strategies


def test_the_rest_of_a_strategy():
    """The given steps stay, with their refinements and copies; the others fit their numbers."""
    copy = Move.coalesced_copy(4).done()
    tiles = CASES["dual"]().tile(m=64, n=64).to(Block).rasterize(group_m=2).split(k=16).load("A", SH, copy)
    answer = tiles.derive("sm_80", candidates=4)
    assert answer.strategy.steps[: len(tiles.steps)] == tiles.steps
    assert answer.chosen.values["bk"] == 16
    assert wrong(answer) is None


def test_no_skeleton_begins_with_the_given_steps():
    with pytest.raises(ArgumentError, match=r"the given step is split\(8\), but here it is tile"):
        CASES["float32"]().split(8).derive("sm_80")
    with pytest.raises(ArgumentError, match="complete, or not bound"):
        softmax.strategy.derive("sm_80")


# ---------------------------------------------------------------------------------------------- rules from outside


@attrs.frozen
class OneThread(Skeleton):
    """A thread for each row."""

    name: ClassVar[str] = "one_thread"

    def refusal(self, facts: Facts) -> str:
        return "" if facts.parallel == ("m",) else "the results are not one vector"

    def sketch(self, facts: Facts) -> Sketch:
        sketch = Sketch(self.name, "a thread has a row", facts.spec.starter).then("blocks", call("tile", m=4), call("to", Block))
        return sketch.then("threads", call("tile", m=1), call("to", Thread)).then("done", call("done"))


@attrs.frozen
class Resident(Trick):
    """Two blocks per SM."""

    name: ClassVar[str] = "resident"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        return "" if sketch.has("blocks") else "no blocks"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        return sketch.refined("blocks", call("min_blocks_per_sm", 2)).by(self.name, "two blocks hide latencies")


def test_rules_from_outside():
    answer = schedule(softmax.spec(5, 24), "sm_80", rules=(OneThread(), Resident()), candidates=4)
    assert answer.chosen.skeleton == "one_thread"
    assert "min_blocks_per_sm(2)" in repr(answer.strategy)
    assert wrong(answer) is None


def test_rules_have_names_and_documents():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(inspect.getdoc(type(rule)) for rule in RULES)


def test_facts():
    facts = Facts(layernorm.spec(8, 64), as_architecture("sm_80"))
    assert (facts.parallel, facts.reduced, facts.loops) == (("m",), ("n",), ())
    assert facts.contiguous("X") == "n"
    assert facts.vector("X") == 8
    (product,) = Facts(mlp.spec(64, 32, 2), as_architecture("sm_80")).products
    assert (product.rows, product.columns, product.over, product.looped) == (("m",), ("n",), ("k",), False)


def test_run_time_sizes():
    M, K = sym("M"), sym("K", multiple_of=8)
    spec = MatMul(M, 64, K, **HALF)(GL, GL, GL)(Kernel)
    answer = schedule(spec, "sm_80", candidates=3)
    assert wrong(answer) is None


# ---------------------------------------------------------------------------------------------- functions of arrays


def test_run_time_sizes_of_arrays_alone():
    """No step has the dimension of the array, which is longer than the rows that are read."""
    spec = Fused(name="even", dims="m n h", operands={"X": "m h", "Y": "m n"}, body={"a": "Y[m,n] = X[m,2 * n]"})
    answer = schedule(spec(m=8, n=32, h=sym("H", high=256), dtype=float32), "sm_80", candidates=1)
    assert Facts(answer.program.spec, as_architecture("sm_80")).assumed["H"] <= 256 and not answer.program.ir.facts


def test_a_function_without_strategies():
    """A definition that no strategy of the library computes runs as a function of arrays; a second call uses the same kernel."""
    scaled = Fused(
        name="scaled_sums",
        dims="m n",
        operands={"X": "m n", "w": "n", "y": "m"},
        body={"terms": "t[m,n] = X[m,n] * w[n]", "sum": "y[m] = sum(n, t[m,n])"},
    )
    run = fireiron.function(scaled)
    x, w = np.arange(24, dtype=np.float32).reshape(3, 8), np.ones(8, np.float32)
    assert np.allclose(run(x, w), x.sum(1))
    assert np.allclose(run(x + 1, w), x.sum(1) + 8)


# ---------------------------------------------------------------------------------------------- command


def test_command(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("from fireiron import *\nproblem = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)\n")
    assert cli.main(["derive", f"{file}:problem", "--arch", "sm_80", "--candidates", "3", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "lane_matmul" in text
    assert "decision" in text
    assert cli.main(["derive", "softmax", "-M", "8", "-N", "64", "--arch", "sm_80", "--candidates", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "sm_80"


# ---------------------------------------------------------------------------------------------- the library


SMALL = (
    {"M": 72, "N": 40, "K": 72, "D": 64, "L": 40, "P": 3},
    {"M": 128, "N": 128, "K": 64, "D": 64, "L": 128, "P": 4},
    {"M": 256, "N": 256, "K": 128, "D": 128, "L": 256, "P": 4},
)
LARGE = ("convolution", "channels_last", "filter_rows", "depthwise", "zero_pixels")
"""Modules whose problems have fixed sizes that are slow to simulate."""

OF_NODES = ("all_gather_gemm", "gemm_all_reduce", "gemm_reduce_scatter")
"""Modules whose problems are those of several GPUs."""

MATRIX_ONLY_TYPES = ("experts:scaled", "fp8_gemm", "fp8_gemm:few", "fp8_gemm:few_parts")
"""Forms that multiply 8-bit floats, which no instruction of older targets does."""


@functools.cache
def library_problems():
    """The problems of all forms of the library at small sizes, each once."""
    from campaign.subjects.library_texts import _forms

    problems = {}
    for form in _forms():
        module = importlib.import_module(f"fireiron.strategies.{form.partition(':')[0]}")
        known = inspect.signature(module.spec).parameters
        for sizes in SMALL if not form.startswith((*LARGE, *OF_NODES)) else ():
            try:
                own = {name: size for name, size in sizes.items() if name in known}
                spec = bind(find(form), own, OPTIONS.get(form, {})).spec
            except FireironError:
                continue
            if spec.title != "SparseMatMul" and spec.level.gpus is None:
                problems.setdefault(spec, form)
            break
    return {form: spec for spec, form in problems.items()}


@pytest.mark.skipif(toolchain.serving("sm_80") is None, reason="no NVRTC")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_compiles(case):
    assert toolchain.compile_cuda(derived(case).program.cuda, "sm_80").cubin


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(96))
def test_texts_of_the_library(number):
    """A derived strategy evaluates from its text, loads from JSON, and compiles. NVRTC takes minutes for some last resorts."""
    if number >= len(library_problems()):
        pytest.skip("fewer problems")
    _, spec = list(library_problems().items())[number]
    serves = toolchain.serving("sm_90a") is not None
    answer = schedule(spec, "sm_90a", candidates=2, screen=serves)
    strategy = answer.strategy
    assert eval(written(strategy)) == strategy
    assert Strategy.from_json(strategy.to_json()) == strategy
    if serves and not answer.chosen.sketch.last_resort:
        assert toolchain.compile_cuda(strategy.program("sm_90a").cuda, "sm_90a").cubin


@pytest.mark.nightly
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(96))
def test_problems_of_the_library(number, target):
    if number >= len(library_problems()):
        pytest.skip("fewer problems")
    form, spec = list(library_problems().items())[number]
    if form in MATRIX_ONLY_TYPES and target != "sm_90a":
        with pytest.raises(ArgumentError, match="float8"):
            schedule(spec, target, candidates=8)
        return
    assert wrong(schedule(spec, target, candidates=8)) is None


HEADS = Fused(
    name="heads", dims="t h d", operands={"X": "t h d", "C": "t d", "g": "d", "Y": "t h d"},
    body={"s": "s[t,h] = sum(d, X[t,h,d] * X[t,h,d])", "y": "Y[t,h,d] = X[t,h,d] * rsqrt(s[t,h]) * g[d] * C[t,d]"},
)  # fmt: skip
"""Rows of heads, with an operand that the heads share."""


@pytest.mark.parametrize(("size", "rows"), [(64, 4), (96, 2), (128, 2)])
def test_short_rows_share_warps_and_heads_share_a_block(size, rows):
    """Rows of 16 bytes per lane; faster than a warp for each row, and right for numbers of rows that no tile divides."""
    answer = schedule(HEADS(t=4096, h=32, d=size, dtype=float16), "sm_90a", candidates=4)
    chosen = answer.chosen
    assert (chosen.skeleton, chosen.values["vector"], chosen.values["warp_h"], chosen.values["rows_t"]) == ("short_rows", 8, rows, 1)
    others = [one.us for one in answer.ranking if one.skeleton == "rows"]
    assert others and answer.us < min(others)
    awkward = schedule(HEADS(t=3, h=7, d=size, dtype=float16), "sm_90a", candidates=1, rules=SHORT, fixed=chosen.values)
    assert wrong(awkward) is None


def test_vectors_narrower_than_the_widest_are_candidates():
    ranking = schedule(HEADS(t=64, h=32, d=64, dtype=float16), "sm_80", candidates=16, rules=SHORT).ranking
    assert {one.values["vector"] for one in ranking} == {8, 4, 2}


@pytest.mark.parametrize("size", [130, 256])
def test_long_rows_have_no_other_candidates(size):
    assert "more than half of the lanes" in ShortRows().refusal(Facts(HEADS(t=64, h=8, d=size, dtype=float16), as_architecture("sm_80")))


def test_rows_are_stored_in_vectors():
    scan = Fused(
        name="running", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"t": "t[m,n] = cumsum(n, X[m,n])", "y": "Y[m,n] = t[m,n]"}
    )
    assert "*reinterpret_cast<uint4*>(&y_target" in str(schedule(scan(m=1024, n=2048), "sm_90a", candidates=2).program.cuda)


def test_second_blocks_fit_where_sums_of_columns_load_two_arrays():
    def rows(operands, step):
        body = {"t": step, "y": "Y[n] += sum(m, t[m,n])"}
        definition = Fused(name="sums", dims="m n", operands={**operands, "Y": "n"}, body=body)
        return schedule(definition(m=4096, n=4096), "sm_90a", candidates=1).chosen.values

    single = rows({"X": "m n"}, "t[m,n] = X[m,n] * 2")
    double = rows({"X": "m n", "Z": "m n"}, "t[m,n] = X[m,n] - Z[m,n]")
    assert (single["rows"], double["rows"]) == (64, 32)
    assert all(values["rows"] // 8 * values["vector"] * arrays == 64 for values, arrays in ((single, 1), (double, 2)))


def test_live_results_limit_tiles():
    steps = ("t[m,n] = sum(k, A[m,k] * B[n,k])", "u[m,n] = exp(t[m,n])", "v[m,n] = t[m,n] * u[m,n]", "Y[m,n] = v[m,n] + u[m,n]")
    two = Fused(name="two", dims="m n k", operands={"A": "m k", "B": "n k", "Y": "m n"}, body=dict(zip("tuvy", steps, strict=True)))
    facts = Facts(two(m=4096, n=4096, k=4096), as_architecture("sm_90a"))
    assert facts.live_results == 2
    chosen = schedule(facts.spec, "sm_90a", candidates=4).chosen
    assert chosen.skeleton == "warpgroup_matmul" and chosen.values["wn"] <= 128
