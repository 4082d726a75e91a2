"""`fireiron.frozen` creates classes that behave as those of `attrs.frozen`."""

import copy
import pickle

import attrs
import pytest

from fireiron.frozen import evolve, frozen


def doubled(value):
    return 2 * value


class Plain:
    first: int
    _second: str = "text"
    third: list = attrs.field(factory=list, eq=False, repr=False)
    fourth: int = attrs.field(default=3, converter=doubled, kw_only=True, hash=False)


class Empty:
    pass


class Own:
    first: int

    def __repr__(self):
        return "own text"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 5


def both(template, *bases):
    """Return the class by `attrs.frozen` and by `frozen`."""
    body = {name: value for name, value in vars(template).items() if name not in ("__dict__", "__weakref__")}
    return tuple(decorate(type(template.__name__, bases, dict(body))) for decorate in (attrs.frozen, frozen))


ByFrozen = both(Plain)[1]
ByFrozen.__qualname__ = "ByFrozen"
"""A class at module level, for pickle."""


def relations(values):
    """Return whether each pair of values is equal, is not equal, and has equal hashes."""
    return [[(value == other, value != other, hash(value) == hash(other)) for other in (*values, "other")] for value in values]


@pytest.mark.parametrize(
    ("template", "calls"),
    [
        (Plain, [((1,), {}), ((1,), {"fourth": 4}), ((2, "other", [1]), {}), ((1, "text", [2]), {"fourth": 3})]),
        (Empty, [((), {})]),
        (Own, [((1,), {}), ((2,), {})]),
    ],
)
def test_same_behavior(template, calls):
    """Text, equality, the relation of hash and equality, slots, immutability, signature."""
    plain, shared = both(template)
    instances = [[kind(*values, **named) for values, named in calls] for kind in (plain, shared)]
    assert [repr(value) for value in instances[0]] == [repr(value) for value in instances[1]]
    for kind, values in zip((plain, shared), instances, strict=True):
        assert relations(values) == relations(instances[0])
        assert not hasattr(values[0], "__dict__"), kind
        assert [copy.copy(value) == value for value in values] == [True] * len(values)
    assert [field.name for field in attrs.fields(plain)] == [field.name for field in attrs.fields(shared)]
    assert plain.__match_args__ == shared.__match_args__


def test_immutable_and_stored():
    value = ByFrozen(1, "a", [2], fourth=5)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.first = 2
    assert pickle.loads(pickle.dumps(value)) == value == ByFrozen(1, "a", fourth=5)
    assert attrs.evolve(value, first=7, fourth=5) == ByFrozen(7, "a", fourth=5)


def test_subclasses_compare_their_own_fields():
    base = frozen(type("Base", (), {"__annotations__": {"a": int}}))
    derived = frozen(type("Derived", (base,), {"__annotations__": {"b": int}}))
    assert derived(1, 2) == derived(1, 2) != derived(1, 3)
    assert base(1) != derived(1, 2) and hash(derived(1, 2)) == hash(derived(1, 2)) != hash(derived(1, 3))


def test_values_that_contain_themselves_are_printed():
    value = ByFrozen([])
    value.first.append(value)
    assert repr(value) == "ByFrozen(first=[...], _second='text', fourth=6)"


def test_refusals():
    with pytest.raises(TypeError, match="use attrs.frozen"):
        frozen(type("Failure", (Exception,), {}))
    with pytest.raises(TypeError, match="a field has a function for comparison"):
        frozen(type("Keyed", (), {"__annotations__": {"a": int}, "a": attrs.field(eq=abs)}))


@pytest.mark.parametrize(
    ("template", "calls", "changes"),
    [
        (Plain, (1, "other", [1]), [{}, {"first": 4}, {"second": "b", "fourth": 5}]),
        (Empty, (), [{}]),
        (Own, (1,), [{}, {"first": 2}]),
    ],
)
def test_evolve_makes_the_copies_of_attrs(template, calls, changes):
    for cls in both(template):
        value = cls(*calls)
        for change in changes:
            wanted, got = attrs.evolve(value, **change), evolve(value, **change)
            assert type(got) is cls and attrs.asdict(got) == attrs.asdict(wanted)
        with pytest.raises(TypeError, match="unknown"):
            evolve(value, unknown=1)
