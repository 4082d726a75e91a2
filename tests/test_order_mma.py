"""`order_mma` on hand-built programs: where ordered sections begin and end in a list of MMAs."""

import making
import pytest
from touching import T256, buffer, i, kernel, loop, mma, reads

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
    mma(T256, name="s", registers="r"),
    mma(T256, name="t", registers="o"),
    mma(T256, name="u", registers="o"),
)
FULL_K, FULL_V = making.acquire("k", StageState.FULL, i), making.acquire("v", StageState.FULL, i)
EMPTY_K = making.release("k", StageState.EMPTY, i)


def program(*body, rings=(K_RING, V_RING, ORDER), front=(), names=()):
    consumers = making.role("consumers", 0, 256, (*front, loop(4, *body, ordered_mma=("r", "o"))))
    producer = making.role("producer", 256, 128, (loop(4, making.acquire("k", StageState.FULL, i), FIRST),), elected=True)
    return kernel(*names, making.roles((consumers, producer)), threads=384, buffers=BUFFERS, rings=rings)


def names(body):
    """Abbreviate a list: MMAs by their step, `<` and `>` around an ordered section, rings for acquires and releases."""
    letters = []
    for stmt in body:
        match stmt:
            case Acquire(ring="order"):
                letters.append("<")
            case Release(ring="order"):
                letters.append(">")
            case Acquire() | Release():
                letters.append(stmt.ring.upper() if stmt.state is StageState.FULL else stmt.ring.lower())
            case For():
                letters.append("[" + names(stmt.body) + "]")
            case _:
                letters.append({id(FIRST): "1", id(LAST): "2", id(OTHER): "3"}.get(id(stmt), "."))
    return "".join(letters)


def ordered(*body, **options):
    """The abbreviated lists of consumers and producer after the pass."""
    *_, roles = order_mma(program(*body, **options)).body
    return [names(role.body) for role in roles.roles]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((FULL_K, FIRST, FULL_V, LAST), "[K<1V2>]"),
        ((FULL_K, FIRST, EMPTY_K, LAST, reads(T256)), "[K<1k2>.]"),
        ((FULL_K, FIRST, LAST, LAST, EMPTY_K), "[K<122>k]"),  # after all MMAs of the last step
        ((FULL_K, FIRST, FULL_V), "[K<1>V]"),  # no last step: after the MMAs of the first step
        ((FULL_K, FIRST, FIRST, LAST), "[K<112>]"),  # one section
        ((FIRST, LAST), "[12]"),  # no acquired fill numbers the section
        ((FULL_V, FIRST, LAST), "[V12]"),  # another ring, which the first step does not read
        ((FULL_K, OTHER, LAST), "[K32]"),  # no MMA of the first step
        (
            (FULL_K, FIRST, loop(2, making.acquire("v", StageState.FULL, i), LAST)),
            "[K<1>[V2]]",
        ),  # a nested loop has its own sections
        ((FULL_K, FIRST, loop(2, LAST)), "[K<1[2]>]"),
    ],
)
def test_order_mma_places_ordered_sections(body, expected):
    assert ordered(*body) == [expected, "[K1]"]


def test_order_mma_before_the_loop():
    assert ordered(FULL_K, FIRST, LAST, front=(FULL_K, FIRST))[0] == "K<1>[K<12>]"


def test_order_mma_fill_indices():
    """Fill t of the ring is fill 2 t + w of the order of warpgroup w. The acquire waits for the fill before it."""
    unit = THREAD // 128
    *_, roles = order_mma(program(FULL_K, FIRST, LAST)).body
    acquire, *_, release = [one for one in roles.roles[0].body[0].body if isinstance(one, Acquire | Release) and one.ring == "order"]
    assert acquire.fill_index == i * 2 + unit + ONE and release.fill_index == i * 2 + unit
    group = making.let(Var("group", 0, 1), unit)
    *_, roles = order_mma(program(FULL_K, FIRST, LAST, names=(group,))).body
    release = next(one for one in roles.roles[0].body[0].body if isinstance(one, Release) and one.ring == "order")
    assert release.fill_index == i * 2 + group.var, "uses the warp-uniform name"
    assert all(not one.asks for one in roles.roles[0].body)


def test_shared_stages_have_one_ordered_section():
    both = (making.acquire("k", StageState.FULL, i * 2), making.acquire("k", StageState.FULL, i * 2 + 1))
    *_, roles = order_mma(program(*both, FIRST, LAST)).body
    release = next(one for one in roles.roles[0].body[0].body if isinstance(one, Release) and one.ring == "order")
    assert release.fill_index == (i * 2 + 1) // 2 * 2 + THREAD // 128


def test_order_mma_keeps_programs_without_an_order():
    kernel = program(FULL_K, FIRST, rings=(K_RING, V_RING))
    assert order_mma(kernel) is kernel
    assert as_expr(4) == kernel.body[0].roles[0].body[0].extent
