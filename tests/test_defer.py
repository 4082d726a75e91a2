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


def blocks(made=PLAIN, stages=2, delay=("pv", "s"), skip=False, copy=attention.copy, producer=False):
    """Rows of two warps, keys by 16: the strategy down to the loop."""
    chain = made.tile(m=32, r=1, g=1, b=1).to(Block).load("Q", SH, copy).swizzle_storage().split(n=16)
    chain = chain.pipeline(stages) if stages else chain
    chain = chain.warp_specialize() if producer else chain
    chain = chain.skip_masked_tiles() if skip else chain
    chain = chain.defer(delay[0], after=delay[1]) if delay else chain
    return chain.load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()


def rows(chain, **steps):
    """The rest of the strategy: rows of a warp."""
    fragments, tiles = attention.fragments, attention.tiles
    chain = chain.tile(m=16).to(Warp).step("s", MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles))
    return chain.step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).step("store", attention.staged).done()


def delayed(made=PLAIN, **options):
    return rows(blocks(made, **options))


def require_right(kernel, spec, sizes=None, **masks):
    """The kernel equals the softmax, in lockstep and with warps in random order."""
    arrays = inputs(spec, sizes)
    near = near_softmax(spec, arrays, sizes, **masks)
    for order in (None, random.Random(5)):
        near.require(simulate(kernel, arrays, sizes or {}, order=order).outputs)


def turned(program):
    """The steps of a program in order, by their markers: those of the prologue, of the loop, of the epilogue."""
    found = {"in front": [], "inside": [], "behind": []}
    where = "in front"
    for one in program.stages["defer"].body:
        if isinstance(one, ir.For) and one.var.name == "n":
            found["inside"] = [part.text.partition(":")[0] for part in one.body if isinstance(part, ir.Comment)]
            where = "behind"
        elif isinstance(one, ir.Comment):
            found[where].append(one.text.partition(":")[0])
    return found


# ---------------------------------------------------------------------------------------------- right

LENGTHS = {"one block": 16, "two": 32, "three": 48, "five": 80, "the last overhangs": 58}


@pytest.mark.parametrize("name", LENGTHS)
def test_blocks_of_keys(name):
    spec = attention.spec(40, LENGTHS[name], 32)
    kernel = delayed()(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec)


@pytest.mark.parametrize("stages", [0, 1, pytest.param(3, marks=pytest.mark.nightly)])
def test_stages(stages):
    """Loads with one stage, which wait for each other, and with more stages than blocks in flight."""
    spec = attention.spec(32, 58, 32)
    kernel = delayed(stages=stages)(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec)


@pytest.mark.parametrize("stages", [1, 2])
def test_lengths_known_at_run_time(stages):
    spec = attention.spec(sym("m"), sym("n"), 32)
    kernel = delayed(stages=stages)(spec).program("sm_80").ir
    assert not errors(kernel)
    for m, n in ((40, 70), (16, 12), (5, 32)):
        require_right(kernel, spec, {"m": m, "n": n})


def test_blocks_that_rows_see():
    """The trip count is that of the block's rows."""
    spec = attention.spec(70, 70, 32, fused=CAUSAL)
    kernel = delayed(CAUSAL, skip=True)(spec).program("sm_80").ir
    assert not errors(kernel)
    require_right(kernel, spec, causal=True)


def formulas(part):
    """The steps of a part of attention, by name."""
    return dict(str(one).split(": ", 1) for one in PLAIN.fused_definition.steps if one.part == part)


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


@pytest.mark.parametrize("stages", [0, 2])
def test_loops_that_may_have_no_turn(stages):
    """Sequences of one array, one of them empty: the part before the first iteration is skipped, too."""
    program = packed(stages).program("sm_80")
    kernel = program.ir
    assert not errors(kernel)
    first = [
        one for part in program.stages["defer"].body if not isinstance(part, ir.For) or part.var.name != "n" for one, _ in ir.execs((part,))
    ]
    assert {str(one.active) == "1" for one in first if any(access.buffer == "s" for access in one.accesses)} == {False}
    draw, places = np.random.default_rng(2), np.array([0, 37, 37, 41, 70], np.int32)
    q, k, v = (draw.standard_normal(shape).astype(np.float16) for shape in ((4, 32, 32), (70, 32), (70, 32)))
    arrays = {"Q": q, "K": k, "V": v, "begin": places[:-1], "end": places[1:], "scale": np.float32(0.125)}
    expected = np.zeros((4, 32, 32))
    for number, (begin, end) in enumerate(itertools.pairwise(places)):
        if end > begin:
            part = [one[None, begin:end, None] for one in (k, v)]
            expected[number] = softmax(q[number][None, :, None, None], *part, 0.125)[0][0, :, 0, 0]
    Near(kernel.spec, arrays, {"O": expected}).require(simulate(kernel, arrays, {}, order=random.Random(1)).outputs)


@pytest.mark.nightly
@pytest.mark.parametrize(("step", "behind"), [("rescale", "s"), ("pv", "top"), ("pv", "update")])
def test_other_steps(step, behind):
    spec = attention.spec(32, 48, 32)
    require_right(delayed(delay=(step, behind))(spec).program("sm_80").ir, spec)


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
def test_a_buffer_that_both_parts_read(stages):
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


# ---------------------------------------------------------------------------------------------- what it makes


def test_the_order():
    found = turned(delayed()(attention.spec(32, 64, 32)).program("sm_80"))
    each = ["s", "top", "new", "alpha", "keep", "exp", "sums", "update", "p", "rescale"]
    assert [one for one in found["in front"] if one in (*each, "pv")] == each
    assert [one for one in found["inside"] if one in (*each, "pv")] == ["s", "pv", *each[1:]]
    assert [one for one in found["behind"] if one in (*each, "pv")] == ["pv"]


def test_loads_move_with_their_readers():
    """Keys are loaded one block further ahead than values, by copies of one group."""
    stage = delayed()(attention.spec(32, 80, 32)).program("sm_80").stages["defer"]
    (loop,) = (one for one in stage.body if isinstance(one, ir.For) and one.var.name == "n")
    copies = [one for one, _ in ir.execs(loop.body) if one.mechanism is CP_ASYNC_GROUPS]
    assert [(one.accesses[1].buffer, str(one.accesses[1].copy)) for one in copies] == [("k_sh", "n % 2"), ("v_sh", "(n + 1) % 2")]
    assert str(loop.extent) == "4" and sum(isinstance(one, ir.Commit) for one in loop.body) == 1
    assert not any(isinstance(one, ir.Commit) for one in stage.body[stage.body.index(loop) :])  # the last turn copies nothing


def test_one_block_is_left_as_it_is():
    for length in (9, 16):
        with_, without = (delayed(delay=delay)(attention.spec(32, length, 32)).program("sm_80") for delay in (("pv", "s"), None))
        assert with_.text.partition("__global__")[2] == without.text.partition("__global__")[2]


def test_nothing_is_marked_where_nothing_is_delayed():
    program = delayed(delay=None)(attention.spec(32, 64, 32)).program("sm_80")
    assert not any(isinstance(one, ir.StepMarker) for one in ir.statements(program.walked.body))
    assert defer(program.walked) is program.walked and "Step " not in graphene_text(program)


def test_ring():
    """The program with a ring has the same meaning: here all threads load, keys one fill further ahead than values."""
    spec = attention.spec(32, 80, 32)
    program = delayed(copy=Move.done(), producer=True)(spec).program("sm_90a")
    kernel = program._passed({"walk": program.walked}, SEQUENTIAL[:3])["zero_init_elision"]
    (loop,) = (one for one in kernel.body if isinstance(one, ir.For) and making.ask_of(one, "producer_threads"))
    loads = {one.ring: str(one.fill_index) for one, _ in ir.execs(loop.body) if one.ring}
    assert loads == {"k_sh_ring": "n + 1", "v_sh_ring": "n"} and str(loop.extent) == "4"
    place = kernel.body.index(loop)
    first, last = ([one for one, _ in ir.execs(part) if one.ring in loads] for part in (kernel.body[:place], kernel.body[place + 1 :]))
    assert [(one.ring, str(one.fill_index)) for one in first] == [("k_sh_ring", "0")] and [one.ring for one in last] == ["v_sh_ring"]


# ---------------------------------------------------------------------------------------------- texts


def test_texts_read_back():
    strategy = delayed()
    assert eval(repr(strategy)) == strategy and hash(strategy) == hash(delayed()) and strategy != delayed(delay=("pv", "top"))
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
    programs = [delayed(made, **options)(spec).program("sm_80") for made, options, spec in cases]
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    host = printed_text.HostProgram([printed_text.Printed.of(one) for one in programs], tmp_path)
    for number, one in enumerate(programs):
        arrays = inputs(one.spec)
        near_softmax(one.spec, arrays, causal=bool(number)).require(host.run(number, arrays, seed=4))


# ---------------------------------------------------------------------------------------------- faults


def finished(program, kernel):
    """The result of the later passes on a kernel, instead of the transformed one."""
    names = [name for name, _ in PASSES]
    for _, function in PASSES[names.index("defer") + 1 :]:
        kernel = verify(function(kernel))
    return kernel


def wrong_turn(body):
    """The part before the deferred step uses the same iteration."""
    found = []
    for one in body:
        if isinstance(one, ir.For) and one.var.name == "n":
            inside = []
            for part in one.body:
                written = {access.buffer for inner, _ in ir.execs((part,)) for access in inner.accesses if access.write}
                inside += ir.substituted((part,), {one.var: one.var - 1}) if written & {"s", "s_k_rf"} else (part,)
            one = attrs.evolve(one, body=tuple(inside))
        found.append(one)
    return tuple(found)


def too_early(body):
    """The deferred step uses the scores of the current iteration."""
    found = []
    for one in body:
        if isinstance(one, ir.For) and one.var.name == "n":
            inside = [
                ir.substituted((part,), {one.var: one.var + 1})[0]
                if any(access.buffer == "v_sh" and not access.write for inner, _ in ir.execs((part,)) for access in inner.accesses)
                else part
                for part in one.body
            ]
            one = attrs.evolve(one, body=tuple(inside))
        found.append(one)
    return tuple(found)


def without_last(body):
    """The deferred part of the last iteration is missing."""
    place = next(place for place, one in enumerate(body) if isinstance(one, ir.For) and one.var.name == "n")
    kept = [
        one for one in body[place + 1 :] if not any(access.buffer == "v_sh" for inner, _ in ir.execs((one,)) for access in inner.accesses)
    ]
    return (*body[: place + 1], *kept)


def without_first(body):
    """The scores of the first iteration are missing."""
    place = next(place for place, one in enumerate(body) if isinstance(one, ir.For) and one.var.name == "n")
    names = {"s_k_rf"}
    return tuple(
        one
        for number, one in enumerate(body)
        if number >= place or not names & {access.buffer for inner, _ in ir.execs((one,)) for access in inner.accesses}
    )


@pytest.mark.parametrize("fault", [None, wrong_turn, too_early, without_last, without_first])
def test_wrong_rotations_are_noticed(fault):
    """By a softmax that is independent of blocks; the correct transformation stays correct through the same passes."""
    spec = attention.spec(32, 64, 32)
    program = delayed()(spec).program("sm_80")
    kernel = program.stages["defer"]
    kernel = kernel if fault is None else attrs.evolve(kernel, body=fault(kernel.body))
    assert fault is None or kernel != program.stages["defer"]
    arrays = inputs(spec)
    said = near_softmax(spec, arrays).wrong(simulate(finished(program, kernel), arrays, {}).outputs)
    assert (not said) is (fault is None), said


def test_planted_faults_are_found():
    """Barriers, waits, commits and stages of a transformed loop."""
    kernel = delayed()(attention.spec(32, 64, 32)).program("sm_80").ir
    planted = list(faults(kernel))
    assert len(planted) > 8
    for name, faulty in planted:
        assert safety(faulty) or name.startswith(("raised", "dropped: Commit")), name


# ---------------------------------------------------------------------------------------------- refusals

SPEC = attention.spec(32, 64, 32)

REFUSED = {
    "no such step": (lambda: delayed(delay=("px", "s")), r"defer\(.px., after=.s.\): the loop has no step px"),
    "a step of another part": (lambda: delayed(delay=("pv", "acc")), "the loop has no step acc"),
    "the other way round": (lambda: delayed(delay=("s", "pv")), "pv is not before s"),
    "itself": (lambda: delayed(delay=("s", "s")), "s is not before s"),
    "what it is made of": (lambda: delayed(delay=("exp", "s")), "exp and s of the next iteration do not commute: exp reads s, which s writes"),
    "its factor": (lambda: delayed(delay=("pv", "p")), "pv and p of the next iteration do not commute: pv reads p, which p writes"),
    "what another step reads": (lambda: delayed(delay=("update", "new")), "p and s of the next iteration do not commute: p reads s, which s writes"),
    "what it keeps": (lambda: delayed(delay=("rescale", "alpha")), "rescale and alpha of the next iteration do not commute: rescale reads alpha"),
    "steps in a loop inside": (
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


def test_a_producer_of_turns_that_data_choose():
    """The loop has at least one iteration, all of which may be masked."""
    program = packed(2, Move.done(), producer=True).program("sm_90a")
    assert not errors(program.ir) and "n_any" not in program.cuda


def test_a_product_has_no_steps():
    chain = MatMul.tile(16, 16).to(Block).split(8).defer("a", after="b").load(A, SH).load(B, SH).tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(DecompositionError, match="MatMul is one step"):
        chain(MatMul(32, 32, 32)(GL, GL, GL)(Kernel)).program("sm_80").cuda  # noqa: B018


@pytest.mark.parametrize("names", [(3, "s"), ("pv", ""), ("pv", None)])
def test_names(names):
    with pytest.raises(ArgumentError, match="the names of two steps"):
        PLAIN.tile(m=32).to(Block).split(n=16).defer(names[0], after=names[1])


# ---------------------------------------------------------------------------------------------- parts of a turn


def piece(*actives, early=False, always=False, comment=False):
    """A statement of a transformed loop: a loop of statements under these conditions, or a comment."""
    number = Var("i", 0, 3)
    body = tuple(attrs.evolve(writes(0), active=active) for active in actives)
    return _Piece(making.comment("note") if comment else making.loop(number, as_expr(4), body), 0, "", early, always)


def test_what_is_never_done_in_a_turn_is_left_out_with_its_notes():
    turn = Var("turn", 0, 7)
    first, never = less(turn, 1), less(turn, 0)
    values = {turn: as_expr(0)}
    assert never == FALSE
    assert len(_iteration([piece(comment=True), piece(less(turn, 5), first)], values, values)) == 2
    assert _iteration([piece(comment=True), piece(comment=True), piece(less(5, turn), less(6, turn))], values, values) == ()
    kept = _iteration([piece(comment=True), piece(less(5, turn), less(turn, 7))], values, values)
    assert len(kept) == 2, "some of it is done"
    empty = making.loop(Var("i", 0, 3), as_expr(4), ())
    assert _iteration([_Piece(empty, 0, "", False)], values, values) == (empty,), "nothing says that it does nothing"


def test_a_part_has_its_statements_and_those_that_are_always_there():
    values = {Var("turn", 0, 7): as_expr(0)}
    pieces = [piece(TRUE, early=True), piece(TRUE), piece(TRUE, always=True), piece(TRUE, early=True, always=True)]
    assert [
        len(_iteration(pieces, early, delayed)) for early, delayed in ((values, values), (values, None), (None, values), (None, None))
    ] == [
        4,
        3,
        3,
        2,
    ]
