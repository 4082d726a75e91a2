"""Attention with `order_mma("s", "pv")`, by which warpgroups issue MMAs in a fixed order.

Results against a plain softmax, printed text on a CPU and by NVRTC, injected faults for race check and simulator, refusals.
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
    """The kernel for a problem, from a definition with options; the warpgroups issue MMAs in order."""
    definition = attention.definition(**{"rescale_threshold": 8, **(options or {})})
    strategy = hopper_attention.by_rows(definition, num_blocks=blocks, order_mma=True, **forms).with_(
        **{"bm": 128, "bn": 16, "epi_n": 16, **(values or {})}
    )
    return strategy(attention.spec(m, n, d, fused=definition, **(problem or {}))).program(TARGET)


def outcome(kernel, arrays, near, order=None):
    """`right`, `wrong`, or the error of the simulator."""
    try:
        got = simulate(kernel, arrays, order=None if order is None else random.Random(order)).outputs
    except SimulationError as error:
        return str(error)
    return "wrong" if near.wrong(got) else "right"


CASES = {
    "two warpgroups, four tiles for three blocks": ((128, 48, 16), {}, {}, {"problem": {"heads": 4}}),
    "three, an odd number of turns": ((192, 40, 16), {"bm": 192}, {}, {"blocks": 1, "problem": {"heads": 2}}),
    "under a mask": ((200, 200, 16), {"bn": 64}, {"causal": True}, {}),
    "under a mask, blocks that stay": ((256, 256, 16), {"bn": 64, "bm": 128}, {"causal": True}, {"persistent": True, "blocks": 1}),
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


# ---------------------------------------------------------------------------------------------- injected faults

IN_ORDER = of_kind(ir.Acquire, ring="n_order"), of_kind(ir.Release, ring="n_order")


def with_order(kernel, **changes):
    """The kernel with a changed order ring."""
    return with_rings(kernel, lambda one: attrs.evolve(one, **changes) if one.is_order else one)


def in_other_order(kernel):
    """Each warpgroup has the position of the next one."""
    unit = next(one.var for one in kernel.body if isinstance(one, ir.Let) and one.value == kernel.thread // 128)
    groups = kernel.workers // 128

    def change(stmt):
        in_order = isinstance(stmt, (ir.Acquire, ir.Release)) and stmt.ring == "n_order"
        return (attrs.evolve(stmt, fill_index=stmt.fill_index.substitute({unit: (unit + 1) % groups})),) if in_order else (stmt,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


FAULTS = {
    **{f"no wait {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, dropped) for number in (0, 1)},
    **{f"no release {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[1], number, dropped) for number in (0, 1)},
    **{
        f"a wait for the own section {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, later(1))
        for number in (0, 1)
    },
    "a wait too early": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, later(-1)),
    "released to another warpgroup": lambda kernel: with_changed(kernel, IN_ORDER[1], 1, later(1)),
    "the first section of another warpgroup": lambda kernel: with_changed(kernel, IN_ORDER[1], 0, later(1)),
    "a warp too few": lambda kernel: with_order(kernel, consumers=3),
    "a warp too many": lambda kernel: with_order(kernel, consumers=5),
    "no wait at all": lambda kernel: with_changed(with_changed(kernel, IN_ORDER[0], 1, dropped), IN_ORDER[0], 0, dropped),
}


@pytest.fixture(scope="module")
def three():
    """Three warpgroups with four ordered sections each, two tiles of one block."""
    kernel = program(192, 48, 16, {"bm": 192}, blocks=1, problem={"heads": 2}).ir
    arrays = inputs(kernel.spec)
    return kernel, arrays, near_softmax(kernel.spec, arrays)


SOON = ("no wait 0", "no release 0", "a wait for the own section 0", "the first section of another warpgroup", "a warp too many")
"""Faults that both the race check and the simulator find at once."""


@pytest.mark.parametrize("fault", [pytest.param(name, marks=[] if name in SOON else [pytest.mark.nightly]) for name in FAULTS])
def test_race_check_and_simulator_find_order_faults(fault, three):
    kernel, arrays, near = three
    faulty = FAULTS[fault](kernel)
    assert errors(faulty), "the race check misses it"
    assert {outcome(faulty, arrays, near, order) for order in range(3)} != {"right"}, "the simulator misses it"


def test_warpgroup_that_waits_for_itself_is_found():
    """Two warpgroups: one that waits for the section before its own last one waits for itself. It never blocks, and no order remains."""
    kernel = program(128, 64, 16, blocks=1).ir
    arrays = inputs(kernel.spec)
    near = near_softmax(kernel.spec, arrays)
    for number in (0, 1):
        faulty = with_changed(kernel, IN_ORDER[0], number, later(-1))
        assert any("has not waited for fill" in one for one in errors(faulty))
        assert "released by a group that has not acquired it" in outcome(faulty, arrays, near)


def test_release_inside_an_ordered_section_is_found():
    """A warpgroup waits for its section while it owns the stage that the other warpgroups need: deadlock."""
    kernel = program(128, 48, 16, {"stages": 1}, overlap=False, blocks=1).ir
    arrays = inputs(kernel.spec)
    release = next(one for one in ir.statements(kernel.body) if of_kind(ir.Release, ring="v_sh_ring", state=ir.StageState.EMPTY)(one))
    without = with_changed(kernel, lambda one: one is release, 0, dropped)
    faulty = with_changed(without, IN_ORDER[0], 0, lambda one: (one, release))
    assert any("waits forever" in one for one in errors(faulty))
    assert "deadlock" in outcome(faulty, arrays, near_softmax(kernel.spec, arrays))


@pytest.mark.nightly
def test_any_fixed_order_is_legal(three):
    """Which warpgroup is first affects only speed. Each section needs exactly one warpgroup."""
    kernel, arrays, near = three
    assert errors(in_other_order(kernel)) == [] and outcome(in_other_order(kernel), arrays, near, 1) == "right"


# ---------------------------------------------------------------------------------------------- results and text


def test_order_mma_text():
    """The verb, the printed CUDA, its explanation; all texts parse back."""
    kernel = program(192, 64, 16, {"bm": 192}, blocks=1, problem={"heads": 2})
    assert eval(repr(kernel.strategy)) == kernel.strategy and Strategy.from_json(kernel.strategy.to_json()) == kernel.strategy
    assert 'defer("pv", after="s").order_mma("s", "pv").pipeline(2).warp_specialize(128)' in str(kernel.strategy)
    printed = kernel.cuda
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
    account = synchronization(kernel.ir)
    assert "order n_order: 3 warpgroups of 128 threads issue MMAs alternately" in text(account)
    assert [ring["each"] for ring in account.as_dict()["rings"] if ring["each"]] == [128]
    graphene = graphene_text(kernel)
    assert "ordered_mma=s:pv" in graphene and parse_kernel(graphene).text == kernel.text


def test_one_warpgroup_needs_no_order():
    ordered, plain = (program(64, 48, 16, {"bm": 64}).text.replace('.order_mma("s", "pv")', "") for _ in range(2))
    assert ordered == plain and "_order" not in plain


@pytest.mark.nightly
@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize(
    ("d", "values"),
    [(128, {"bm": 192, "bn": 80, "epi_n": 64}), (64, {"bm": 192, "bn": 128, "epi_n": 64}), (64, {"bm": 256, "bn": 64, "epi_n": 64})],
)
def test_order_mma_compiles_without_spills(d, values):
    """With three and four warpgroups no register spills, and ptxas does not serialize wgmma."""
    kernel = program(4096, 4096, d, values, blocks=132, problem={"heads": 16})
    compiled = compile_cuda(kernel.cuda, TARGET)
    (resources,) = compiled.resources.values()
    assert resources.spill_stores == resources.spill_loads == 0 and "serializ" not in compiled.log


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_printed_text_on_a_cpu(tmp_path):
    """Executed on the CPU, by threads in random order."""
    kernel = program(192, 72, 32, {"bm": 192, "bn": 32, "epi_n": 32}, blocks=1)
    arrays = inputs(kernel.spec)
    host = HostProgram([Printed.of(kernel)], tmp_path)
    near_softmax(kernel.spec, arrays).require(host.run(0, arrays, seed=3))


# ---------------------------------------------------------------------------------------------- refusals


def blocks(*steps, start=None, producer=True):
    """Attention with `order_mma` of the given steps."""
    definition = attention.definition()
    chain = definition.tile(m=128, r=1, g=1, b=1).to(Block)
    chain = chain if start is None else start(chain)
    chain = chain.load("Q", SH, Move.done()).split(n=32).pipeline(2)
    chain = (chain.warp_specialize() if producer else chain).order_mma(*steps).load("K", SH, Move.done()).load("V", SH, Move.done())
    product = MatMul.split(16).unroll().done()
    chain = chain.tile(m=64).to(Warpgroup).step("s", product).step("pv", product).done()
    return chain(attention.spec(256, 64, 32, fused=definition)).program(TARGET).ir


REFUSED = {
    "no such step": (lambda: blocks("s", "px"), r"order_mma\('s', 'px'\): the loop has no step px"),
    "the other way round": (lambda: blocks("pv", "s"), "s comes before pv"),
    "no product": (lambda: blocks("s", "p"), "p has no asynchronous MMA"),
    "no producer": (lambda: blocks("s", "pv", producer=False), "no producer whose stages"),
    "no names": (lambda: blocks("s", ""), "order_mma needs the names of two steps of the definition"),
    "with pingpong": (
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
def test_order_mma_refusals(name):
    build, message = REFUSED[name]
    with pytest.raises(FireironError, match=message):
        build()
