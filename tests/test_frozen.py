"""`fireiron.frozen` creates classes that behave as those of `attrs.frozen`."""

import copy
import functools
import inspect
import pickle
import weakref
from typing import ClassVar

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


def chain(decorate):
    """Return classes that inherit fields, hooks and methods with `super()`."""

    @decorate
    class Base:
        kind: ClassVar[str] = "base"
        first: int

        def text(self):
            return f"{type(self).__name__} {self.first}"

    @decorate
    class Plain(Base):
        _second: str = "text"

        def __attrs_post_init__(self):
            object.__setattr__(self, "first", self.first + 1)

        def text(self):
            return super().text() + self._second

    @decorate
    class Options(Plain):
        third: int = attrs.field(default=3, converter=doubled)
        fourth: tuple = attrs.field(factory=tuple, repr=False, eq=False)

        @property
        def both(self):
            return super().text()

    @decorate
    class Again(Plain):
        first: int = attrs.field(default=7, kw_only=True)

    @decorate
    class Cached(Base):
        @functools.cached_property
        def double(self):
            return 2 * self.first

    return Base, Plain, Options, Again, Cached


@pytest.mark.parametrize(
    ("position", "arguments", "named"),
    [
        (0, (1,), {}),
        (1, (1,), {}),
        (1, (1,), {"second": "a"}),
        (2, (1, "b", 4), {}),
        (2, (1,), {"fourth": (1,)}),
        (3, (), {}),
        (4, (3,), {}),
    ],
)
@pytest.mark.parametrize("fields_first", [False, True])
def test_inherited_fields_and_hooks(position, arguments, named, fields_first):
    """The first use is a call of the class, or a question for its fields."""
    results = []
    for decorate in (attrs.frozen, frozen):
        cls = chain(decorate)[position]
        if fields_first:
            attrs.fields(cls)
        value = cls(*arguments, **named)
        described = [(field.name, field.alias, field.type, field.default, field.inherited, field.kw_only) for field in attrs.fields(cls)]
        copies = [copy.copy(value) == value, attrs.evolve(value) == evolve(value), hash(copy.copy(value)) == hash(value)]
        own = [getattr(value, name, None) for name in ("both", "double", "kind")]
        signature, annotations = inspect.signature(cls), cls.__init__.__annotations__
        results.append((repr(value), value.text(), described, copies, own, signature, annotations, cls.__match_args__, cls.__slots__))
        assert weakref.ref(value)() is value and not hasattr(value, "__dict__")
        with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
            cls(*arguments, unknown=1)
    assert results[0] == results[1]


def test_frozen_by_identity():
    plain, shared = (chain(functools.partial(decorate, eq=False))[1] for decorate in (attrs.frozen, frozen))
    for cls in (plain, shared):
        value = cls(1)
        assert value == value != cls(1) and hash(value) == object.__hash__(value) and repr(value) == "Plain(first=2, _second='text')"


def test_illegal_fields_are_reported_at_the_first_use():
    cls = frozen(type("Late", (), {"__annotations__": {"a": int, "b": int}, "a": 1}))
    with pytest.raises(ValueError, match="No mandatory attributes allowed after an attribute with a default"):
        cls(1, 2)


def test_attrs_extends_classes_of_frozen():
    plain, shared = (
        attrs.frozen(type("More", (chain(decorate)[1],), {"__annotations__": {"third": int}, "third": 1}))
        for decorate in (attrs.frozen, frozen)
    )
    assert repr(plain(1, "a", 2)) == repr(shared(1, "a", 2)) and plain(1) != shared(1) == evolve(shared(1), first=1)
    assert inspect.signature(plain) == inspect.signature(shared)
