"""Pairs of layouts: their composition, complement, quotient, product and inverses, compared with definitions over the whole domain.

A seed draws `PAIRS` pairs. An operation may refuse a pair; `composition` only if no layout of its structure has the values.
"""

import random
from itertools import pairwise

from test_layout import some_layout_is

from campaign import Outcome, Subject, agreed, found
from fireiron.errors import LayoutError
from fireiron.values.layout import (
    Layout,
    Swizzle,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    logical_product,
    max_common_layout,
    max_common_vector,
    parse,
    right_inverse,
    unflatten,
)

PAIRS = 500
SIZES = (1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 9, 12, 16)
STRIDES = (0, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)


class Wrong(Exception):
    """The result of an operation differs from its definition; the message is a program to paste."""


# ---------------------------------------------------------------------------------------------- definitions


def table(shape, stride):
    """All offsets of a layout, the leftmost leaf fastest."""
    offsets = [0]
    for size, step in leaves(shape, stride):
        offsets = [x + i * step for i in range(size) for x in offsets]
    return offsets


def leaves(shape, stride):
    """The leaves as (size, stride)."""
    if not isinstance(shape, tuple):
        return [(shape, stride)]
    return [leaf for size, step in zip(shape, stride, strict=True) for leaf in leaves(size, step)]


def elements(shape):
    """The number of elements of a shape."""
    count = 1
    for part in shape if isinstance(shape, tuple) else (shape,):
        count *= elements(part) if isinstance(part, tuple) else part
    return count


def refines(fine, coarse):
    """Whether coordinates of `coarse` are coordinates of `fine`."""
    if not isinstance(coarse, tuple):
        return elements(fine) == coarse
    return isinstance(fine, tuple) and len(fine) == len(coarse) and all(map(refines, fine, coarse))


def offsets_of(layout):
    return table(layout.shape, layout.stride)


# ---------------------------------------------------------------------------------------------- drawing


def drawn_shape(rng, limit, depth):
    if depth == 0 or rng.random() < 0.35:
        return rng.choice([size for size in SIZES if size <= limit])
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts.append(drawn_shape(rng, limit, depth - 1))
        limit //= elements(parts[-1])
    return tuple(parts)


def drawn_layout(rng, limit):
    """A layout and how it was drawn: in some order without gaps, with gaps, or with any strides."""
    shape = drawn_shape(rng, limit, 2)
    sizes = [size for size, _ in leaves(shape, shape)]
    if rng.random() < 0.3:
        return Layout(shape, unflatten([rng.choice(STRIDES) for _ in sizes], like=shape)), "any strides"
    order, reached, strides = list(range(len(sizes))), rng.choice((1, 1, 1, 2, 3)), [0] * len(sizes)
    rng.shuffle(order)
    padded = rng.random() < 0.4
    for place in order:
        strides[place] = reached
        reached = reached * sizes[place] * (rng.choice((1, 1, 2, 3)) if padded else 1) + (rng.random() < 0.05)
    return Layout(shape, unflatten(strides, like=shape)), "gaps" if padded else "compact"


# ---------------------------------------------------------------------------------------------- the laws


class Pair:
    """A pair of layouts, its tables, and the operations tried on it."""

    def __init__(self, rng):
        self.rng = rng
        (self.a, left_kind), (self.b, other) = drawn_layout(rng, rng.choice((12, 48, 128))), drawn_layout(rng, 16)
        self.features = {f"left {left_kind}", f"right {other}"}
        self.values, self.steps = offsets_of(self.a), offsets_of(self.b)
        self.counts = dict.fromkeys(("refused", "accepted"), 0)

    def attempt(self, operation, *arguments):
        """The result, or None if refused."""
        try:
            result = operation(*arguments)
        except LayoutError:
            self.counts["refused"] += 1
            return None
        self.counts["accepted"] += 1
        return result

    def demand(self, right, description):
        if not right:
            raise Wrong(
                f"{description}\nfrom fireiron.values.layout import *\na = parse({str(self.a)!r})\nb = parse({str(self.b)!r})\nassert a == {self.a!r} and b == {self.b!r}"
            )

    def all(self):
        self.itself()
        self.composed()
        rest = self.completed()
        self.divided()
        self.multiplied()
        self.inverted(rest)
        self.common()

    def itself(self):
        """The properties of a layout, and its coalesced form."""
        a, values = self.a, self.values
        self.demand(a.offsets() == values and a.size() == len(values) and a.cosize() == max(values) + 1, "offsets, size or cosize")
        distinct = len(set(values)) == len(values)
        self.demand(a.is_injective() == distinct, "is_injective")
        self.demand(a.is_bijective() == (distinct and max(values) + 1 == len(values)), "is_bijective")
        flat = coalesce(a)
        self.demand(offsets_of(flat) == values, f"coalesce(a) = {flat}")
        at = self.rng.randrange(len(values))
        self.demand(a(at) == a(a.coordinate(at)) == values[at], f"a({at})")
        if self.rng.random() < 0.1:
            self.demand(parse(str(a)) == a and eval(repr(a)) == a, "parse(str(a)), eval(repr(a))")
        if self.rng.random() < 0.2:
            self.swizzled()

    def swizzled(self):
        """A swizzle exchanges bits of the offsets: its definition, bit by bit."""
        bits, base = self.rng.randint(0, 3), self.rng.randint(0, 3)
        shift = self.rng.choice((1, -1)) * self.rng.randint(max(bits, 1), 4)
        swizzle = Swizzle(bits, base, shift)
        wanted = []
        for x in self.values:
            out = x
            for bit in range(bits):
                source, target = (base + shift + bit, base + bit) if shift >= 0 else (base + bit, base - shift + bit)
                out ^= (x >> source & 1) << target
            wanted.append(out)
        self.demand(self.a.swizzled(swizzle).offsets() == wanted, f"a.swizzled({swizzle!r})")
        self.features.add("swizzle")

    def composed(self):
        a, b = self.a, self.b
        composed = self.attempt(composition, a, b)
        inside = max(self.steps) < len(self.values)
        wanted = [self.values[x] for x in self.steps] if inside else None
        if composed is None:
            self.demand(not inside or not some_layout_is(wanted, b.shape), "composition(a, b) was refused, but is a layout")
            self.features.add("no composition")
        else:
            self.demand(inside and refines(composed.shape, b.shape) and offsets_of(composed) == wanted, f"composition(a, b) = {composed}")
            self.features.add("composition")

    def completed(self):
        """The complement, of the layout or in a random size."""
        image = set(self.values)
        size = self.rng.choice((None, max(image) + 1, len(self.values) * self.rng.randint(1, 4), (max(image) + 1) * self.rng.randint(1, 3)))
        rest = self.attempt(complement, self.a, size)
        if rest is None:
            self.features.add("no complement")
            return None
        places = offsets_of(rest)
        sums = sorted(x + y for x in image for y in places)
        top = len(sums) if size is None else size
        steps = [step for _, step in leaves(rest.shape, rest.stride)]
        self.demand(sums == list(range(top)) and steps == sorted(steps), f"complement(a, {size}) = {rest}")
        self.features.add("complement")
        return rest

    def divided(self):
        quotient = self.attempt(logical_divide, self.a, self.b)
        if quotient is None:
            return
        first = [self.values[x] for x in self.steps]
        tile, rest = (offsets_of(mode) for mode in quotient)
        self.demand(tile == first and refines(quotient[0].shape, self.b.shape), f"logical_divide(a, b) = {quotient}: its tile")
        self.demand(
            len(tile) * len(rest) == len(self.values) and sorted(offsets_of(quotient)) == sorted(self.values),
            f"logical_divide(a, b) = {quotient}: its elements",
        )
        self.features.add("quotient")

    def multiplied(self):
        a, b = self.a, self.b
        if len(self.values) * len(self.steps) > 1024:
            return
        product = self.attempt(logical_product, a, b)
        self.demand(product is not None, "logical_product(a, b) was refused")
        places = dict(zip(self.steps, offsets_of(product[1]), strict=True))
        self.demand(
            product[0] == a and refines(product[1].shape, b.shape) and offsets_of(product[1]) == [places[x] for x in self.steps],
            f"logical_product(a, b) = {product}",
        )
        ordered = [places[x] for x in sorted(places)]
        self.demand(ordered[0] == 0 and all(x < y for x, y in pairwise(ordered)), f"logical_product(a, b) = {product}: order")
        image = set(self.values)
        self.demand(
            len({x + y for x in image for y in ordered}) == len(image) * len(ordered), f"logical_product(a, b) = {product}: copies meet"
        )

    def inverted(self, rest):
        values = self.values
        right = right_inverse(self.a)
        self.demand([values[x] for x in offsets_of(right)] == list(range(right.size())), f"right_inverse(a) = {right}")
        left = self.attempt(left_inverse, self.a)
        if left is None:
            self.demand(rest is None or len(set(values)) < len(values), "left_inverse(a) was refused, but a has a complement")
            return
        back = offsets_of(left)
        self.demand(len(back) > max(values) and [back[x] for x in values] == list(range(len(values))), f"left_inverse(a) = {left}")
        self.features.add("left inverse")

    def common(self):
        """The number of elements from 0 on with equal offsets in both; the other layout has the same shape and some changed strides."""
        changed = [step if self.rng.random() < 0.7 else self.rng.randint(0, 16) for _, step in leaves(self.a.shape, self.a.stride)]
        other = Layout(self.a.shape, unflatten(changed, like=self.a.shape))
        shared = self.attempt(max_common_layout, self.a, other)
        if shared is None:
            return
        other_offsets, places = offsets_of(other), offsets_of(shared)
        expected = list(range(len(places)))
        self.demand(
            [self.values[x] for x in places] == [other_offsets[x] for x in places] == expected
            and max_common_vector(self.a, other) == len(expected),
            f"max_common_layout(a, {other!r}) = {shared}",
        )


def draw(seed: int) -> Outcome:
    """`PAIRS` pairs."""
    rng, features, counts = random.Random(seed), set(), {"pairs": 0, "refused": 0, "accepted": 0}
    for number in range(PAIRS):
        pair = Pair(rng)
        try:
            pair.all()
        except Wrong as wrong:
            return found(f"pair {number}: {wrong}", features | pair.features, **counts)
        except Exception as error:
            return found(
                f"pair {number}: a = {pair.a!r}, b = {pair.b!r}: {type(error).__name__}: {error}", features | pair.features, **counts
            )
        features |= pair.features
        counts["pairs"] += 1
        for name, number_of in pair.counts.items():
            counts[name] += number_of
    return agreed(features, operations_accepted=counts.pop("accepted"), operations_refused=counts.pop("refused"), **counts)


SUBJECT = Subject(
    "layouts",
    "pairs of layouts: composition, complement, quotient, product, inverses, over the whole domain",
    draw,
    nightly=1_000_000,
    campaign=5_000_000,
    counted="pairs",
    first=20_231_125,
    chunk=20,
    sample=1,
)
