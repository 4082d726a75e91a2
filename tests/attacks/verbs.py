"""Methods and operators of what users hold: chains, shapes, specs, expressions, tunables, layouts, kinds; chains grow by what was accepted."""

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
"""What does work, writes files, or computes, for which other kinds of input are; and offsets of coordinates, which say that they check none."""

LONGEST = 6
"""Steps of a chain before it begins anew."""

OPERATORS: dict[str, Callable[[object, object], object]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "/": operator.truediv, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip

ARITHMETIC = (Expr, Tunable, Derived)


@functools.cache
def holders() -> tuple[tuple[str, object], ...]:
    """What has the methods: source texts and values."""
    made = [
        one for one in roots() if isinstance(one, (Strategy, Starter, Spec, Expr, Tunable, Derived, Layout, Swizzle, Strides, MatrixLayout))
    ]
    made += [MatMul(8, 8, 8), MatMul(8, 8, 8)(GL, GL, GL), Move(sym("M"), 8), AnySpec]
    made += [one.at(one.steps[-1].__class__) for one in made if isinstance(one, Strategy) and one.steps and not one.finished]
    return tuple((_text(one), one) for one in made)


WHOLE = (Strategy, Cursor, SpecShape, PlacedShape, Tunable, Layout, Swizzle, type(AnySpec))
"""Classes all of whose methods are for users. Of others these are operators, calls and, of what chains start from, verbs; the rest is called by
the compiler."""


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


@functools.cache
def methods(cls: type) -> tuple[str, ...]:
    """The public methods of a class that take something."""
    found = []
    for name in dir(cls):
        if not (issubclass(cls, WHOLE) or name == "__call__" or hasattr(Verbs, name)):
            continue
        one = inspect.getattr_static(cls, name)
        if name in LEFT_OUT or (name.startswith("_") and name not in ("__call__", "__getitem__")):
            continue
        if callable(getattr(cls, name)) and not isinstance(one, (property, functools.cached_property)) and _takes(cls, name):
            found.append(name)
    return tuple(found)


def _takes(cls: type, name: str) -> bool:
    wanted = parameters(getattr(cls, name))
    return wanted is not None and len(wanted) > 1


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """Calls of one method after the other."""
    text, holder = choose.choice(holders())
    steps = 0
    for _ in range(count):
        if steps > LONGEST or choose.random() < 0.3 or not methods(type(holder)):
            text, holder = choose.choice(holders())
            steps = 0
            if not methods(type(holder)):
                continue
        if isinstance(holder, ARITHMETIC) and choose.random() < 0.7:
            yield _operated(choose, text, holder)
            continue
        name = choose.choice(methods(type(holder)))
        wanted = parameters(getattr(type(holder), name)) or ()
        bound = wanted if inspect.ismethod(inspect.getattr_static(type(holder), name)) else wanted[1:]
        positional, named = drawn_arguments(choose, bound)
        kept: list[object] = []
        whole = called(f"({text}).{name}", positional, named)

        def act(holder=holder, name=name, positional=positional, named=named, kept=kept):
            made = getattr(holder, name)(*[value for _, value in positional], **{key: value for key, (_, value) in named.items()})
            kept.append(made)
            return made

        yield Input(program(whole), act)
        if kept and isinstance(kept[0], (Strategy, SpecShape, PlacedShape)) and methods(type(kept[0])):
            text, holder, steps = whole, kept[0], steps + 1


def _operated(choose: random.Random, text: str, holder: object) -> Input:
    sign = choose.choice(list(OPERATORS))
    other_text, other = choose.choice(VALUES) if choose.random() < 0.7 else drawn(choose, "size")
    if choose.random() < 0.5:
        return Input(program(f"({text}) {sign} ({other_text})"), lambda: OPERATORS[sign](holder, other))
    return Input(program(f"({other_text}) {sign} ({text})"), lambda: OPERATORS[sign](other, holder))
