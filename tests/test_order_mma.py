"""The pass `order_mma` on hand-made programs: positions of waits and arrivals in a list of MMAs."""

import making
import pytest
from touching import T256, buffer, i, kernel, loop, products, reads

from fireiron import *
from fireiron.ir import Acquire, For, Release, StageState
from fireiron.lower.order_mma import order_mma
from fireiron.values.expr import ONE, Var, as_expr

K_RING, V_RING = making.ring("k", 2, ("s",)), making.ring("v", 2, ("t",))
ORDER = making.ring("order", 2, (), each=128)
BUFFERS = (
    buffer("s", 4096),
    buffer("t", 4096, offset=16384),
    buffer("r", 8, memory=RF),
    buffer("o", 8, memory=RF),
    buffer("u", 4096, offset=32768),
)

THREAD = Var("thread", 0, 383)
FIRST, LAST, OTHER = (
    products(T256, name="s", registers="r"),
    products(T256, name="t", registers="o"),
    products(T256, name="u", registers="o"),
)
FULL_K, FULL_V = making.acquire("k", StageState.FULL, i), making.acquire("v", StageState.FULL, i)
EMPTY_K = making.release("k", StageState.EMPTY, i)


def program(*body, rings=(K_RING, V_RING, ORDER), front=(), names=()):
    consumers = making.role("consumers", 0, 256, (*front, loop(4, *body, ordered_mma=("r", "o"))))
    producer = making.role("producer", 256, 128, (loop(4, making.acquire("k", StageState.FULL, i), FIRST),), elected=True)
    return kernel(*names, making.roles((consumers, producer)), threads=384, buffers=BUFFERS, rings=rings)


def names(body):
    """Letters of a list: MMAs by the registers that they write, `<` for a wait, `>` for an arrival, rings for acquired fills."""
    found = []
    for one in body:
        match one:
            case Acquire(ring="order"):
                found.append("<")
            case Release(ring="order"):
                found.append(">")
            case Acquire() | Release():
                found.append(one.ring.upper() if one.state is StageState.FULL else one.ring.lower())
            case For():
                found.append("[" + names(one.body) + "]")
            case _:
                found.append({id(FIRST): "1", id(LAST): "2", id(OTHER): "3"}.get(id(one), "."))
    return "".join(found)


def turned(*body, **options):
    """The lists of consumers and producer after the pass."""
    *_, roles = order_mma(program(*body, **options)).body
    return [names(role.body) for role in roles.roles]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ((FULL_K, FIRST, FULL_V, LAST), "[K<1V2>]"),
        ((FULL_K, FIRST, EMPTY_K, LAST, reads(T256)), "[K<1k2>.]"),
        ((FULL_K, FIRST, LAST, LAST, EMPTY_K), "[K<122>k]"),  # behind all that follow
        ((FULL_K, FIRST, FULL_V), "[K<1>V]"),  # where none follow, behind those of the first
        ((FULL_K, FIRST, FIRST, LAST), "[K<112>]"),  # of one turn
        ((FIRST, LAST), "[12]"),  # no turn is known by which they would be counted
        ((FULL_V, FIRST, LAST), "[V12]"),  # another ring, of which the first step reads nothing
        ((FULL_K, OTHER, LAST), "[K32]"),  # nothing of the first step
        (
            (FULL_K, FIRST, loop(2, making.acquire("v", StageState.FULL, i), LAST)),
            "[K<1>[V2]]",
        ),  # what stands in a loop has turns of its own
        ((FULL_K, FIRST, loop(2, LAST)), "[K<1[2]>]"),
    ],
)
def test_where_turns_begin_and_end(body, found):
    assert turned(*body) == [found, "[K1]"]


def test_turns_in_front_of_the_loop():
    assert turned(FULL_K, FIRST, LAST, front=(FULL_K, FIRST))[0] == "K<1>[K<12>]"


def test_numbers_of_turns():
    """Fill t of the ring corresponds to number 2 t + w of warpgroup w; the waiting warpgroup waits for the previous number."""
    unit = THREAD // 128
    *_, roles = order_mma(program(FULL_K, FIRST, LAST)).body
    acquire, *_, release = [one for one in roles.roles[0].body[0].body if isinstance(one, Acquire | Release) and one.ring == "order"]
    assert acquire.fill_index == i * 2 + unit + ONE and release.fill_index == i * 2 + unit
    group = making.let(Var("group", 0, 1), unit)
    *_, roles = order_mma(program(FULL_K, FIRST, LAST, names=(group,))).body
    release = next(one for one in roles.roles[0].body[0].body if isinstance(one, Release) and one.ring == "order")
    assert release.fill_index == i * 2 + group.var, "by the name that all lanes of a warp have"
    assert all(not one.asks for one in roles.roles[0].body)


def test_loads_that_share_slots_have_turns_together():
    both = (making.acquire("k", StageState.FULL, i * 2), making.acquire("k", StageState.FULL, i * 2 + 1))
    *_, roles = order_mma(program(*both, FIRST, LAST)).body
    release = next(one for one in roles.roles[0].body[0].body if isinstance(one, Release) and one.ring == "order")
    assert release.fill_index == (i * 2 + 1) // 2 * 2 + THREAD // 128


def test_without_an_order_nothing_changes():
    made = program(FULL_K, FIRST, rings=(K_RING, V_RING))
    assert order_mma(made) is made
    assert as_expr(4) == made.body[0].roles[0].body[0].extent
