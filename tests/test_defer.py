"""`defer`: software pipelining of a loop; the transformed programs compared with a plain softmax, and refusals."""

import itertools
import random

import attrs
import making
import numpy as np
import printed_text
import pytest
from faults import faults
from near import Near
from ringed import errors
from test_fused_attention import inputs, near_softmax, softmax
from touching import writes

from fireiron import *
from fireiron import ir
from fireiron.check import safety
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import verify
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.language.store import dumps, loads
from fireiron.lower.defer import _iteration, _Piece, defer
from fireiron.lower.passes import PASSES, SEQUENTIAL
from fireiron.sim import simulate
from fireiron.strategies import attention
from fireiron.values.expr import FALSE, TRUE, Var, as_expr, less

PLAIN, CAUSAL = attention.definition(), attention.definition(causal=True)


def blocks(definition=PLAIN, stages=2, defer_steps=("pv", "s"), skip=False, copy=attention.copy, producer=False):
    """Rows of two warps, keys by 16: the strategy down to the loop."""
    chain = definition.tile(m=32, r=1, g=1, b=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=16)
    chain = chain.pipeline(stages) if stages else chain
    chain = chain.warp_specialize() if producer else chain
    chain = chain.skip_masked_tiles() if skip else chain
    chain = chain.defer(defer_steps[0], after=defer_steps[1]) if defer_steps else chain
    return chain.load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()


def rows(chain, **steps):
    """The rest of the strategy: rows of a warp."""
    fragments, tiles = attention.fragments, attention.tiles
    chain = chain.tile(m=16).to(Warp).step("s", MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles))
    return chain.step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).step("store", attention.staged).done()


def deferred(definition=PLAIN, **options):
    return rows(blocks(definition, **options))


def require_right(kernel, spec, sizes=None, **masks):
    """The kernel equals the softmax, in lockstep and with warps in random order."""
    arrays = inputs(spec, sizes)
    near = near_softmax(spec, arrays, sizes, **masks)
    for order in (None, random.Random(5)):
        near.require(simulate(kernel, arrays, sizes or {}, order=order).outputs)


def steps_by_part(program):
    """The steps of a program in order, by their comments: in the prologue, in the loop and in the epilogue."""
    steps = {"prologue": [], "loop": [], "epilogue": []}
    where = "prologue"
    for stmt in program.stages["defer"].body:
        if isinstance(stmt, ir.For) and stmt.var.name == "n":
            steps["loop"] = [part.text.partition(":")[0] for part in stmt.body if isinstance(part, ir.Comment)]
            where = "epilogue"
        elif isinstance(stmt, ir.Comment):
            steps[where].append(stmt.text.partition(":")[0])
    return steps


# ---------------------------------------------------------------------------------------------- correct results

LENGTHS = {"one block": 16, "two": 32, "three": 48, "five": 80, "incomplete last block": 58}


@pytest.mark.parametrize("name", LENGTHS)
def test_numbers_of_key_blocks(name):
    spec = attention.spec(40, LENGTHS[name], 32)
    kernel = deferred()(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec)


@pytest.mark.parametrize("stages", [0, 1, pytest.param(3, marks=pytest.mark.nightly)])
def test_stages(stages):
    """With one stage, for which loads wait, and with more stages than pending blocks."""
    spec = attention.spec(32, 58, 32)
    kernel = deferred(stages=stages)(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", [1, 2])
def test_lengths_known_at_run_time(stages):
    spec = attention.spec(sym("m"), sym("n"), 32)
    kernel = deferred(stages=stages)(spec).program("sm_80").ir
    assert not errors(kernel)
    for m, n in ((40, 70), (16, 12), (5, 32)):
        require_right(kernel, spec, {"m": m, "n": n})


def test_causal_mask_limits_the_trip_count():
    """The trip count depends on the rows of the block."""
    spec = attention.spec(70, 70, 32, fused=CAUSAL)
    kernel = deferred(CAUSAL, skip=True)(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec, causal=True)


def formulas(part):
    """The steps of a part of attention, by name."""
    return dict(str(step).split(": ", 1) for step in PLAIN.fused_definition.steps if step.part == part)


PACKED = Fused(
    name="packed", dims="m n d b", loop="n", batch="b", positive="scale",
    operands={"Q": "b m d", "K": "n d", "V": "n d", "begin": "b", "end": "b", "scale": "", "O": "b m d"},
    init=formulas("init"),
    body={
        "s": "s[m,n] = sum(d, Q[b,m,d] * K[n,d])",
        "mask": "s[m,n] = where(begin[b] <= n and n < end[b], s[m,n], -inf)",
        **{name: text for name, text in formulas("body").items() if name not in ("s", "pv")},
        "pv": "acc[m,d] += sum(n, p[m,n] * V[n,d])",
    },
    final={**formulas("final"), "store": "O[b,m,d] = acc[m,d]"},
)  # fmt: skip


def packed(stages, copy=attention.copy, producer=False):
    chain = PACKED.tile(m=32, b=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=16)
    chain = (chain.pipeline(stages) if stages else chain).skip_masked_tiles().defer("pv", after="s")
    chain = (chain.warp_specialize() if producer else chain).load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()
    return rows(chain)(PACKED(m=32, n=70, d=32, b=4, types={"begin": int32, "end": int32}, end=Strides(b=1).aligned(4)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", [0, 2])
def test_loops_that_may_be_empty(stages):
    """Sequences in one array, one of them empty: the prologue is skipped too."""
    program = packed(stages).program("sm_80")
    kernel = program.ir
    assert not errors(kernel)
    first = [
        array
        for part in program.stages["defer"].body
        if not isinstance(part, ir.For) or part.var.name != "n"
        for array, _ in ir.execs((part,))
    ]
    assert {str(array.active) == "1" for array in first if any(access.buffer == "s" for access in array.accesses)} == {False}
    draw, places = np.random.default_rng(2), np.array([0, 37, 37, 41, 70], np.int32)
    q, k, v = (draw.standard_normal(shape).astype(np.float16) for shape in ((4, 32, 32), (70, 32), (70, 32)))
    arrays = {"Q": q, "K": k, "V": v, "begin": places[:-1], "end": places[1:], "scale": np.float32(0.125)}
    expected = np.zeros((4, 32, 32))
    for number, (begin, end) in enumerate(itertools.pairwise(places)):
        if end > begin:
            part = [array[None, begin:end, None] for array in (k, v)]
            expected[number] = softmax(q[number][None, :, None, None], *part, 0.125)[0][0, :, 0, 0]
    Near(kernel.spec, arrays, {"O": expected}).require(simulate(kernel, arrays, {}, order=random.Random(1)).outputs)


@pytest.mark.nightly
@pytest.mark.parametrize(("step", "after"), [("rescale", "s"), ("pv", "top"), ("pv", "update")])
def test_other_steps(step, after):
    spec = attention.spec(32, 48, 32)
    require_right(deferred(defer_steps=(step, after))(spec).program("sm_80").ir, spec)


TIED = Fused(
    name="tied", dims="m n d", loop="n", positive="scale", operands={"Q": "m d", "K": "n d", "scale": "", "O": "m d"},
    init=formulas("init"),
    body={
        **formulas("body"), "s": "s[m,n] = sum(d, Q[m,d] * K[n,d])", "pv": "acc[m,d] += sum(n, p[m,n] * K[n,d])",
    },
    final={**formulas("final"), "store": "O[m,d] = acc[m,d]"},
)  # fmt: skip


def tied(stages):
    """Keys are also the values: deferred and other steps read one buffer."""
    chain = TIED.tile(m=32).to(Block).load("Q", SH, attention.copy).swizzle_storage().split(n=16)
    chain = (chain.pipeline(stages) if stages else chain).defer("pv", after="s")
    return rows(chain.load("K", SH, attention.copy).swizzle_storage())(TIED(m=32, n=58, d=32)).program("sm_80")


@pytest.mark.nightly
@pytest.mark.parametrize("stages", [2, 3])
def test_a_buffer_that_deferred_and_other_steps_read(stages):
    """Its load runs with the deferred steps, into a stage that no earlier step still reads."""
    kernel = tied(stages).ir
    assert not errors(kernel)
    draw = np.random.default_rng(0)
    q, k = (draw.standard_normal((length, 32)).astype(np.float16) for length in (32, 58))
    expected, _ = softmax(q[None, :, None, None], *[k[None, :, None]] * 2, 0.125)
    arrays = {"Q": q, "K": k, "scale": np.float32(0.125)}
    near = Near(kernel.spec, arrays, {"O": expected[0, :, 0, 0]})
    for order in (None, random.Random(2)):
        near.require(simulate(kernel, arrays, {}, order=order).outputs)


# ---------------------------------------------------------------------------------------------- the transformed loop


def test_order_of_the_steps():
    steps = steps_by_part(deferred()(attention.spec(32, 64, 32)).program("sm_80"))
    softmax_steps = ["s", "top", "new", "alpha", "keep", "exp", "sums", "update", "p", "rescale"]
    assert [step for step in steps["prologue"] if step in (*softmax_steps, "pv")] == softmax_steps
    assert [step for step in steps["loop"] if step in (*softmax_steps, "pv")] == ["s", "pv", *softmax_steps[1:]]
    assert [step for step in steps["epilogue"] if step in (*softmax_steps, "pv")] == ["pv"]


def test_loads_move_with_their_readers():
    """Keys are loaded one block earlier than values, in the same group of copies."""
    stage = deferred()(attention.spec(32, 80, 32)).program("sm_80").stages["defer"]
    (loop,) = (stmt for stmt in stage.body if isinstance(stmt, ir.For) and stmt.var.name == "n")
    copies = [stmt for stmt, _ in ir.execs(loop.body) if stmt.mechanism is CP_ASYNC_GROUPS]
    assert [(stmt.accesses[1].buffer, str(stmt.accesses[1].copy)) for stmt in copies] == [("k_sh", "n % 2"), ("v_sh", "(n + 1) % 2")]
    assert str(loop.extent) == "4" and sum(isinstance(stmt, ir.Commit) for stmt in loop.body) == 1
    assert not any(isinstance(stmt, ir.Commit) for stmt in stage.body[stage.body.index(loop) :])  # the last iteration copies nothing


def test_one_block_is_not_transformed():
    for length in (9, 16):
        with_, without = (deferred(defer_steps=delay)(attention.spec(32, length, 32)).program("sm_80") for delay in (("pv", "s"), None))
        assert with_.text.partition("__global__")[2] == without.text.partition("__global__")[2]


def test_no_step_markers_without_defer():
    program = deferred(defer_steps=None)(attention.spec(32, 64, 32)).program("sm_80")
    assert not any(isinstance(stmt, ir.StepMarker) for stmt in ir.statements(program.walked.body))
    assert defer(program.walked) is program.walked and "Step " not in graphene_text(program)


def test_defer_in_a_ring():
    """Before roles exist all threads load, keys one fill earlier than values."""
    spec = attention.spec(32, 80, 32)
    program = deferred(copy=Move.done(), producer=True)(spec).program("sm_90a")
    first = SEQUENTIAL[: [name for name, _ in SEQUENTIAL].index("zero_init_elision") + 1]
    kernel = program._passed({"walk": program.walked}, first)["zero_init_elision"]
    (loop,) = (stmt for stmt in kernel.body if isinstance(stmt, ir.For) and making.ask_of(stmt, "producer_threads"))
    loads = {stmt.ring: str(stmt.fill_index) for stmt, _ in ir.execs(loop.body) if stmt.ring}
    assert loads == {"k_sh_ring": "n + 1", "v_sh_ring": "n"} and str(loop.extent) == "4"
    place = kernel.body.index(loop)
    first, last = ([stmt for stmt, _ in ir.execs(part) if stmt.ring in loads] for part in (kernel.body[:place], kernel.body[place + 1 :]))
    assert [(stmt.ring, str(stmt.fill_index)) for stmt in first] == [("k_sh_ring", "0")] and [stmt.ring for stmt in last] == ["v_sh_ring"]


# ---------------------------------------------------------------------------------------------- text


def test_texts_read_back():
    strategy = deferred()
    assert eval(repr(strategy)) == strategy and hash(strategy) == hash(deferred()) and strategy != deferred(defer_steps=("pv", "top"))
    assert loads(dumps(strategy)) == strategy and Strategy.from_json(strategy.to_json()) == strategy
    program = strategy(attention.spec(32, 64, 32)).program("sm_80")
    text = graphene_text(program)
    assert "defer=pv:s" in text and "Step pv" in text
    assert parse_kernel(text).text == program.text
    assert 'defer("pv", after="s")' in program.text


@pytest.mark.nightly
def test_printed_text(tmp_path):
    """The printed text, executed by threads in random order."""
    cases = ((PLAIN, {}, attention.spec(32, 58, 32)), (CAUSAL, {"skip": True}, attention.spec(40, 40, 32, fused=CAUSAL)))
    programs = [deferred(made, **options)(spec).program("sm_80") for made, options, spec in cases]
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    host = printed_text.HostProgram([printed_text.Printed.of(program) for program in programs], tmp_path)
    for number, program in enumerate(programs):
        arrays = inputs(program.spec)
        near_softmax(program.spec, arrays, causal=bool(number)).require(host.run(number, arrays, seed=4))


# ---------------------------------------------------------------------------------------------- faults


def finished(program, kernel):
    """The result of the passes after `defer` on the given kernel."""
    names = [name for name, _ in PASSES]
    for _, function in PASSES[names.index("defer") + 1 :]:
        kernel = verify(function(kernel))
    return kernel


def wrong_iteration(body):
    """The part before the deferred step uses the same iteration."""
    result = []
    for stmt in body:
        if isinstance(stmt, ir.For) and stmt.var.name == "n":
            inside = []
            for part in stmt.body:
                written = {access.buffer for inner, _ in ir.execs((part,)) for access in inner.accesses if access.write}
                inside += ir.substituted((part,), {stmt.var: stmt.var - 1}) if written & {"s", "s_k_rf"} else (part,)
            stmt = attrs.evolve(stmt, body=tuple(inside))
        result.append(stmt)
    return tuple(result)


def too_early(body):
    """The deferred step uses the scores of the current iteration."""
    result = []
    for stmt in body:
        if isinstance(stmt, ir.For) and stmt.var.name == "n":
            inside = [
                ir.substituted((part,), {stmt.var: stmt.var + 1})[0]
                if any(access.buffer == "v_sh" and not access.write for inner, _ in ir.execs((part,)) for access in inner.accesses)
                else part
                for part in stmt.body
            ]
            stmt = attrs.evolve(stmt, body=tuple(inside))
        result.append(stmt)
    return tuple(result)


def without_last(body):
    """The deferred part of the last iteration is missing."""
    place = next(place for place, stmt in enumerate(body) if isinstance(stmt, ir.For) and stmt.var.name == "n")
    kept = [
        stmt
        for stmt in body[place + 1 :]
        if not any(access.buffer == "v_sh" for inner, _ in ir.execs((stmt,)) for access in inner.accesses)
    ]
    return (*body[: place + 1], *kept)


def without_first(body):
    """The scores of the first iteration are missing."""
    place = next(place for place, stmt in enumerate(body) if isinstance(stmt, ir.For) and stmt.var.name == "n")
    names = {"s_k_rf"}
    return tuple(
        stmt
        for number, stmt in enumerate(body)
        if number >= place or not names & {access.buffer for inner, _ in ir.execs((stmt,)) for access in inner.accesses}
    )


@pytest.mark.parametrize("fault", [None, wrong_iteration, too_early, without_last, without_first])
def test_wrong_transformations_are_detected(fault):
    """A softmax without blocks detects them; the correct transformation passes."""
    spec = attention.spec(32, 64, 32)
    program = deferred()(spec).program("sm_80")
    kernel = program.stages["defer"]
    kernel = kernel if fault is None else attrs.evolve(kernel, body=fault(kernel.body))
    assert fault is None or kernel != program.stages["defer"]
    arrays = inputs(spec)
    mismatches = near_softmax(spec, arrays).wrong(simulate(finished(program, kernel), arrays, {}).outputs)
    assert (not mismatches) is (fault is None), mismatches


def test_injected_faults_are_found():
    """Barriers, waits, commits and stages of a transformed loop."""
    kernel = deferred()(attention.spec(32, 64, 32)).program("sm_80").ir
    faulty_kernels = list(faults(kernel))
    assert len(faulty_kernels) > 8
    for name, faulty in faulty_kernels:
        assert safety(faulty) or name.startswith(("raised", "dropped: Commit")), name


# ---------------------------------------------------------------------------------------------- refusals

SPEC = attention.spec(32, 64, 32)

REFUSED = {
    "no such step": (lambda: deferred(defer_steps=("px", "s")), r"defer\(.px., after=.s.\): the loop has no step px"),
    "a step of another part": (lambda: deferred(defer_steps=("pv", "acc")), "the loop has no step acc"),
    "the reverse order": (lambda: deferred(defer_steps=("s", "pv")), "pv is not before s"),
    "itself": (lambda: deferred(defer_steps=("s", "s")), "s is not before s"),
    "its input": (lambda: deferred(defer_steps=("exp", "s")), "exp and s of the next iteration do not commute: exp reads s, which s writes"),
    "its operand": (lambda: deferred(defer_steps=("pv", "p")), "pv and p of the next iteration do not commute: pv reads p, which p writes"),
    "the input of another step": (lambda: deferred(defer_steps=("update", "new")), "p and s of the next iteration do not commute: p reads s, which s writes"),
    "carried values": (lambda: deferred(defer_steps=("rescale", "alpha")), "rescale and alpha of the next iteration do not commute: rescale reads alpha"),
    "steps in an inner loop": (
        lambda: rows(blocks().tile(m=16)), "step pv is in a loop inside loop n"
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    strategy, message = REFUSED[name]
    with pytest.raises(DecompositionError, match=message):
        strategy()(SPEC).program("sm_80").cuda  # noqa: B018


@pytest.mark.parametrize("stages", [0, 1])
def test_one_stage_for_both(stages):
    with pytest.raises(DecompositionError, match=r"k_sh.*do not commute(.|\n)*pipeline\(2\) or more"):
        tied(stages).cuda  # noqa: B018


def test_a_producer_with_data_dependent_iterations():
    """The loop has at least one iteration, all of which may be masked."""
    program = packed(2, Move.done(), producer=True).program("sm_90a")
    assert not errors(program.ir) and "n_any" not in program.cuda


def test_a_matmul_has_no_steps():
    chain = MatMul.tile(16, 16).to(Block).split(8).defer("a", after="b").load(A, SH).load(B, SH).tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(DecompositionError, match="MatMul is one step"):
        chain(MatMul(32, 32, 32)(GL, GL, GL)(Kernel)).program("sm_80").cuda  # noqa: B018


@pytest.mark.parametrize("names", [(3, "s"), ("pv", ""), ("pv", None)])
def test_names(names):
    with pytest.raises(ArgumentError, match="the names of two steps"):
        PLAIN.tile(m=32).to(Block).split(n=16).defer(names[0], after=names[1])


# ---------------------------------------------------------------------------------------------- parts of an iteration


def piece(*actives, early=False, always=False, comment=False):
    """A statement of a transformed loop: a loop of statements under these conditions, or a comment."""
    number = Var("i", 0, 3)
    body = tuple(attrs.evolve(writes(0), active=active) for active in actives)
    return _Piece(making.comment("note") if comment else making.loop(number, as_expr(4), body), 0, "", early, always)


def test_inactive_statements_are_omitted_with_their_comments():
    iteration = Var("turn", 0, 7)
    first, never = less(iteration, 1), less(iteration, 0)
    values = {iteration: as_expr(0)}
    assert never == FALSE
    assert len(_iteration([piece(comment=True), piece(less(iteration, 5), first)], values, values)) == 2
    assert _iteration([piece(comment=True), piece(comment=True), piece(less(5, iteration), less(6, iteration))], values, values) == ()
    result = _iteration([piece(comment=True), piece(less(5, iteration), less(iteration, 7))], values, values)
    assert len(result) == 2, "one of the statements is active"
    empty = making.loop(Var("i", 0, 3), as_expr(4), ())
    assert _iteration([_Piece(empty, 0, "", False)], values, values) == (empty,), "an empty loop is kept"


def test_statements_of_early_and_late_parts():
    values = {Var("turn", 0, 7): as_expr(0)}
    pieces = [piece(TRUE, early=True), piece(TRUE), piece(TRUE, always=True), piece(TRUE, early=True, always=True)]
    assert [len(_iteration(pieces, early, late)) for early, late in ((values, values), (values, None), (None, values), (None, None))] == [
        4,
        3,
        3,
        2,
    ]
