"""Warpgroups that issue products in turns, by `order_mma("s", "pv")` on the split of a definition: attention against a plain softmax, its text on a
CPU and by NVRTC, faults in their order that both detectors must find, and what is refused.
"""

import random

import attrs
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import dropped, errors, later, of_kind, with_changed, with_rings
from test_fused_attention import inputs, near_softmax

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.synchronization import synchronization, text
from fireiron.sim import simulate
from fireiron.strategies import attention, hopper_attention

TARGET = "sm_90a"


def program(m, n, d, values=None, options=None, blocks=3, problem=None, **forms):
    """The kernel for a problem, of a definition with options, whose warpgroups take turns."""
    made = attention.definition(**{"rescale_threshold": 8, **(options or {})})
    strategy = hopper_attention.by_rows(made, num_blocks=blocks, order_mma=True, **forms).with_(
        **{"bm": 128, "bn": 16, "epi_n": 16, **(values or {})}
    )
    return strategy(attention.spec(m, n, d, made=made, **(problem or {}))).program(TARGET)


def outcome(kernel, arrays, near, order=None):
    """`right`, `wrong`, or what the simulator meets."""
    try:
        got = simulate(kernel, arrays, order=None if order is None else random.Random(order)).outputs
    except SimulationError as error:
        return str(error)
    return "wrong" if near.wrong(got) else "right"


CASES = {
    "two warpgroups, four tiles for three blocks": ((128, 48, 16), {}, {}, {"problem": {"heads": 4}}),
    "three, an odd number of turns": ((192, 40, 16), {"bm": 192}, {}, {"blocks": 1, "problem": {"heads": 2}}),
    "under a mask": ((200, 200, 16), {"bn": 64}, {"causal": True}, {}),
    "under a mask, blocks that stay": ((256, 256, 16), {"bn": 64, "bm": 128}, {"causal": True}, {"persistent": True, "num_blocks": 1}),
    "under a mask, as blocks become free": (
        (384, 384, 16),
        {"bn": 64},
        {"causal": True},
        {"dynamic": True, "blocks": 1, "problem": {"heads": 2}},
    ),
    "products of one turn": ((128, 48, 16), {}, {}, {"overlap": False}),
    "products of one turn, and one stage": ((128, 48, 16), {"stages": 1}, {}, {"overlap": False, "problem": {"heads": 2}, "blocks": 1}),
}

NEAREST = ("three, an odd number of turns", "products of one turn, and one stage")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in NEAREST else [pytest.mark.nightly]) for name in CASES])
def test_kernels_are_right(name):
    sizes, values, options, forms = CASES[name]
    kernel = program(*sizes, values, options, **forms).ir
    assert errors(kernel) == []
    (order,) = (ring for ring in kernel.rings if ring.is_order)
    assert (order.stages, order.each, order.consumers) == (kernel.workers // 128, 128, 4)
    arrays = inputs(kernel.spec)
    near = near_softmax(kernel.spec, arrays, **{name: value for name, value in options.items() if name == "causal"})
    assert {outcome(kernel, arrays, near, one) for one in (None, 1)} == {"right"}


# ---------------------------------------------------------------------------------------------- planted faults

IN_ORDER = of_kind(ir.Acquire, ring="n_order"), of_kind(ir.Release, ring="n_order")


def with_order(kernel, **changes):
    """The kernel with its order changed."""
    return with_rings(kernel, lambda one: attrs.evolve(one, **changes) if one.is_order else one)


def in_other_order(kernel):
    """Each warpgroup has the turns of the one behind it."""
    unit = next(one.var for one in kernel.body if isinstance(one, ir.Let) and one.value == kernel.thread // 128)
    groups = kernel.workers // 128

    def change(one):
        mine = isinstance(one, (ir.Acquire, ir.Release)) and one.ring == "n_order"
        return (attrs.evolve(one, fill_index=one.fill_index.substitute({unit: (unit + 1) % groups})),) if mine else (one,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


FAULTS = {
    **{f"no wait {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, dropped) for number in (0, 1)},
    **{f"not given on {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[1], number, dropped) for number in (0, 1)},
    **{
        f"a wait for the own turn {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, later(1))
        for number in (0, 1)
    },
    "a wait too early": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, later(-1)),
    "given on to another": lambda kernel: with_changed(kernel, IN_ORDER[1], 1, later(1)),
    "the first turn is another's": lambda kernel: with_changed(kernel, IN_ORDER[1], 0, later(1)),
    "a warp too few": lambda kernel: with_order(kernel, consumers=3),
    "a warp too many": lambda kernel: with_order(kernel, consumers=5),
    "no wait at all": lambda kernel: with_changed(with_changed(kernel, IN_ORDER[0], 1, dropped), IN_ORDER[0], 0, dropped),
}


@pytest.fixture(scope="module")
def three():
    """Three warpgroups with four turns, two tiles of one block."""
    kernel = program(192, 48, 16, {"bm": 192}, blocks=1, problem={"heads": 2}).ir
    arrays = inputs(kernel.spec)
    return kernel, arrays, near_softmax(kernel.spec, arrays)


SOON = ("no wait 0", "not given on 0", "a wait for the own turn 0", "the first turn is another's", "a warp too many")
"""Faults that both find at once."""


@pytest.mark.parametrize("fault", [pytest.param(name, marks=[] if name in SOON else [pytest.mark.nightly]) for name in FAULTS])
def test_faults_are_found_by_both(fault, three):
    kernel, arrays, near = three
    faulty = FAULTS[fault](kernel)
    assert errors(faulty), "the race check misses it"
    assert {outcome(faulty, arrays, near, order) for order in range(3)} != {"right"}, "the simulator misses it"


def test_a_wait_of_two_for_the_own_turn_is_found():
    """Of two warpgroups one that waits for the turn before its own last one waits for itself: nothing stops it, and nothing is in order."""
    kernel = program(128, 64, 16, blocks=1).ir
    arrays = inputs(kernel.spec)
    near = near_softmax(kernel.spec, arrays)
    for number in (0, 1):
        faulty = with_changed(kernel, IN_ORDER[0], number, later(-1))
        assert any("has not waited for turn" in one for one in errors(faulty))
        assert "released by a group that does not hold it" in outcome(faulty, arrays, near)


def test_a_stage_given_back_in_a_turn_is_found():
    """A warpgroup that waits for its turn while it holds the stage that the others' turns need: all wait for ever."""
    kernel = program(128, 48, 16, {"stages": 1}, overlap=False, blocks=1).ir
    arrays = inputs(kernel.spec)
    given_back = next(one for one in ir.statements(kernel.body) if of_kind(ir.Release, ring="v_sh_ring", state=ir.StageState.EMPTY)(one))
    without = with_changed(kernel, lambda one: one is given_back, 0, dropped)
    faulty = with_changed(without, IN_ORDER[0], 0, lambda one: (one, given_back))
    assert any("waits forever" in one for one in errors(faulty))
    assert "deadlock" in outcome(faulty, arrays, near_softmax(kernel.spec, arrays))


@pytest.mark.nightly
def test_another_order_is_no_fault(three):
    """Who begins is a matter of speed alone; that each turn has one warpgroup is not."""
    kernel, arrays, near = three
    assert errors(in_other_order(kernel)) == [] and outcome(in_other_order(kernel), arrays, near, 1) == "right"


# ---------------------------------------------------------------------------------------------- what it becomes


def test_texts():
    """The verb, the printed text, the account of it, and all texts read back."""
    one = program(192, 64, 16, {"bm": 192}, blocks=1, problem={"heads": 2})
    assert eval(repr(one.strategy)) == one.strategy and Strategy.from_json(one.strategy.to_json()) == one.strategy
    assert 'defer("pv", after="s").order_mma("s", "pv").pipeline(2).warp_specialize(128)' in str(one.strategy)
    printed = one.cuda
    assert (
        printed.count("mbarrier_wait(n_order_empty + (warpgroup + 2) % 3 * 8, ") == 2 == printed.count("mbarrier_arrive(n_order_empty + ")
    )
    assert printed.count("wait for the previous warpgroup") == 2 and "3 mbarriers: order of warpgroups" in printed
    inside = printed[printed.index("for (int n = 0; n < 3; ++n)") :]
    order = (
        "k_sh_ring_full",
        "mbarrier_wait(n_order",
        "wgmma_fence",
        "wgmma_commit_group",
        "v_sh_ring_full",
        "wgmma_commit_group",
        "arrive(n_order",
    )
    places = [inside.index(order[0])]
    for part in order[1:]:
        places.append(inside.index(part, places[-1] + 1))
    assert places[-1] < inside.index("wgmma_wait_group<1>()")
    account = synchronization(one.ir)
    assert "order n_order: 3 warpgroups of 128 threads issue MMAs alternately" in text(account)
    assert [ring["each"] for ring in account.as_dict()["rings"] if ring["each"]] == [128]
    graphene = graphene_text(one)
    assert "ordered_mma=s:pv" in graphene and parse_kernel(graphene).text == one.text


def test_one_warpgroup_has_no_turns():
    ordered, plain = (program(64, 48, 16, {"bm": 64}).text.replace('.order_mma("s", "pv")', "") for _ in range(2))
    assert ordered == plain and "_order" not in plain


@pytest.mark.nightly
@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize(
    ("d", "values"),
    [(128, {"bm": 192, "bn": 80, "epi_n": 64}), (64, {"bm": 192, "bn": 128, "epi_n": 64}), (64, {"bm": 256, "bn": 64, "epi_n": 64})],
)
def test_compiles(d, values):
    """Three and four warpgroups find room for their registers: nothing spills, and no products wait for each other."""
    one = program(4096, 4096, d, values, blocks=132, problem={"heads": 16})
    compiled = compile_cuda(one.cuda, TARGET)
    (resources,) = compiled.resources.values()
    assert resources.spill_stores == resources.spill_loads == 0 and "serializ" not in compiled.log


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_the_printed_text(tmp_path):
    """Executed on the CPU, by threads in random order."""
    one = program(192, 72, 32, {"bm": 192, "bn": 32, "epi_n": 32}, blocks=1)
    arrays = inputs(one.spec)
    host = HostProgram([Printed.of(one)], tmp_path)
    near_softmax(one.spec, arrays).require(host.run(0, arrays, seed=3))


# ---------------------------------------------------------------------------------------------- refused


def blocks(*turns, start=None, producer=True):
    """Attention with turns of such steps."""
    made = attention.definition()
    chain = made.tile(m=128, r=1, g=1, b=1).to(Block)
    chain = chain if start is None else start(chain)
    chain = chain.load("Q", SH, Move.done()).split(n=32).pipeline(2)
    chain = (chain.warp_specialize() if producer else chain).order_mma(*turns).load("K", SH, Move.done()).load("V", SH, Move.done())
    product = MatMul.split(16).unroll().done()
    chain = chain.tile(m=64).to(Warpgroup).step("s", product).step("pv", product).done()
    return chain(attention.spec(256, 64, 32, made=made)).program(TARGET).ir


REFUSED = {
    "no such step": (lambda: blocks("s", "px"), r"order_mma\('s', 'px'\): the loop has no step px"),
    "the other way round": (lambda: blocks("pv", "s"), "s comes before pv"),
    "no product": (lambda: blocks("s", "p"), "p has no asynchronous MMA"),
    "no producer": (lambda: blocks("s", "pv", producer=False), "no producer whose stages"),
    "no names": (lambda: blocks("s", ""), "order_mma: the names of two steps of the definition"),
    "tiles in turns, too": (
        lambda: blocks("s", "pv", start=lambda one: one.persistent(1).pingpong(2)),
        "consumer groups alternate tiles",
    ),
    "no steps": (
        lambda: (
            MatMul.tile(64, 64)
            .to(Block)
            .split(64)
            .pipeline(2)
            .warp_specialize()
            .order_mma("s", "pv")
            .done()(MatMul(64, 64, 64, dtype=float16)(GL, GL, GL)(Kernel))
            .program(TARGET)
            .ir
        ),
        "MatMul.* is one step",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    made, said = REFUSED[name]
    with pytest.raises(FireironError, match=said):
        made()
