"""Methods and operators of user-visible objects: chains, shapes, specs, expressions, tunables, layouts, kinds; chains grow by accepted
calls.
"""

import functools
import inspect
import operator
import random
from collections.abc import Callable, Iterator

from attacks.guard import Input
from attacks.harvest import called, drawn, drawn_arguments, parameters, roots
from attacks.values import VALUES, program
from fireiron import *
from fireiron.language.strategy import Cursor
from fireiron.spec import PlacedShape, SpecShape, Starter
from fireiron.specs.verbs import Verbs

LEFT_OUT = {
    "compile", "cuda", "program", "tune", "save", "reference", "simulate", "result", "trace", "explain", "draw", "evaluate", "meaning", "address",
    "expression",
}  # fmt: skip
"""Methods that execute, write files, or compute, for which other kinds of input exist; and offsets of coordinates, which are documented as
unchecked.
"""

LONGEST = 6
"""The number of steps before a chain starts again."""

OPERATORS: dict[str, Callable[[object, object], object]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "/": operator.truediv, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip

ARITHMETIC = (Expr, Tunable, Derived)


@functools.cache
def holders() -> tuple[tuple[str, object], ...]:
    """Owners of the methods: source texts and values."""
    owners = [
        value
        for value in roots()
        if isinstance(value, (Strategy, Starter, Spec, Expr, Tunable, Derived, Layout, Swizzle, Strides, MatrixLayout))
    ]
    owners += [MatMul(8, 8, 8), MatMul(8, 8, 8)(GL, GL, GL), Move(sym("M"), 8), AnySpec]
    owners += [one.at(one.steps[-1].__class__) for one in owners if isinstance(one, Strategy) and one.steps and not one.finished]
    return tuple((_text(one), one) for one in owners)


WHOLE = (Strategy, Cursor, SpecShape, PlacedShape, Tunable, Layout, Swizzle, type(AnySpec))
"""Classes whose methods are all for users. For others these are operators, calls and, for the start of chains, verbs; the compiler calls
the rest.
"""


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


@functools.cache
def methods(cls: type) -> tuple[str, ...]:
    """The public methods of a class that take arguments."""
    names = []
    for name in dir(cls):
        if not (issubclass(cls, WHOLE) or name == "__call__" or hasattr(Verbs, name)):
            continue
        attribute = inspect.getattr_static(cls, name)
        if name in LEFT_OUT or (name.startswith("_") and name not in ("__call__", "__getitem__")):
            continue
        if callable(getattr(cls, name)) and not isinstance(attribute, (property, functools.cached_property)) and _takes(cls, name):
            names.append(name)
    return tuple(names)


def _takes(cls: type, name: str) -> bool:
    wanted = parameters(getattr(cls, name))
    return wanted is not None and len(wanted) > 1


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """Calls of one method after the other."""
    text, owner = choose.choice(holders())
    steps = 0
    for _ in range(count):
        if steps > LONGEST or choose.random() < 0.3 or not methods(type(owner)):
            text, owner = choose.choice(holders())
            steps = 0
            if not methods(type(owner)):
                continue
        if isinstance(owner, ARITHMETIC) and choose.random() < 0.7:
            yield _operated(choose, text, owner)
            continue
        name = choose.choice(methods(type(owner)))
        wanted = parameters(getattr(type(owner), name)) or ()
        bound = wanted if inspect.ismethod(inspect.getattr_static(type(owner), name)) else wanted[1:]
        positional, named = drawn_arguments(choose, bound)
        kept: list[object] = []
        expression = called(f"({text}).{name}", positional, named)

        def act(owner=owner, name=name, positional=positional, named=named, kept=kept):
            result = getattr(owner, name)(*[value for _, value in positional], **{key: value for key, (_, value) in named.items()})
            kept.append(result)
            return result

        yield Input(program(expression), act)
        if kept and isinstance(kept[0], (Strategy, SpecShape, PlacedShape)) and methods(type(kept[0])):
            text, owner, steps = expression, kept[0], steps + 1


def _operated(choose: random.Random, text: str, owner: object) -> Input:
    sign = choose.choice(list(OPERATORS))
    other_text, other = choose.choice(VALUES) if choose.random() < 0.7 else drawn(choose, "size")
    if choose.random() < 0.5:
        return Input(program(f"({text}) {sign} ({other_text})"), lambda: OPERATORS[sign](owner, other))
    return Input(program(f"({other_text}) {sign} ({text})"), lambda: OPERATORS[sign](other, owner))
