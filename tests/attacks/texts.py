"""Texts in the project's notations: kernels, event programs, formulas, definitions, index expressions, swizzle levels; damaged, and parsed."""

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.guard import Input
from attacks.harvest import harvest, roots
from attacks.letters import damaged
from fireiron import *
from fireiron.graphene import graphene_text, parse_strategy
from fireiron.language import library
from fireiron.language.store import expression, expression_text
from fireiron.tasks import event_text

GOLDENS = Path(__file__).resolve().parents[1] / "goldens" / "cypress"

FORMULAS = (
    "C[m,n] += sum(k, A[m,k] * B[k,n])", "dst[...] = src[...]", "z[m,n] = relu(x[m,n] + b[n])", "s[m,n] = {by} * x[m,n]; d[n,m] = x[m,n] - {by}",
    "y[i] = where(i < {a}, x[i], 0)", "dst[m] = max(k, src[m,k])", "y[i,j] = exp(x[i,j] - t[i]) / u[i]", "y[n] = x[2 * n + 1]",
)  # fmt: skip

DEFINITIONS = (
    {"name": "scaled", "dims": "m n", "operands": {"X": "m n", "w": "n", "Y": "m n"}, "body": {"out": "Y[m,n] = X[m,n] * w[n]"}},
    {
        "name": "norm", "dims": "m n", "operands": {"X": "m n", "Y": "m n"},
        "body": {"total": "t[m] = sum(n, X[m,n])", "mean": "u[m] = t[m] / {n}", "out": "Y[m,n] = X[m,n] - u[m]"},
    },
    {
        "name": "attend", "dims": "m n k", "operands": {"Q": "m k", "K": "n k", "V": "n k", "O": "m k"},
        "body": {"s": "S[m,n] = sum(k, Q[m,k] * K[n,k])", "o": "O[m,k] = sum(n, S[m,n] * V[n,k])"},
    },
)  # fmt: skip


def draw(choose: random.Random, count: int = 60) -> Iterator[Input]:
    """Damaged texts of one notation."""
    texts, read, source = choose.choices(notations(), [1, 1, 4, 4, 3, 2])[0]
    text = choose.choice(texts())
    for _ in range(count // (6 if read in (_kernel, _events) else 1)):
        wrong = damaged(choose, text)
        yield Input(f"{source}({wrong!r})", lambda wrong=wrong: read(wrong))


def _kernel(text: object) -> object:
    return parse_strategy(text)


def _events(text: object) -> object:
    return event_text.parse(text)


def _kind(text: object) -> object:
    return Kind("Drawn", text, (Parameter("by", 2), Parameter("a", 3)) if "{by}" in str(text) and "{a}" in str(text) else ())


def _definition(text: object) -> object:
    """A definition with one damaged text; the text states which one."""
    number, _, rest = str(text).partition("|")
    place, _, wrong = rest.partition("|")
    fields = {
        name: dict(field_value) if isinstance(field_value, dict) else field_value
        for name, field_value in DEFINITIONS[int(number) if number in ("0", "1", "2") else 0].items()
    }
    name, _, key = place.partition(".")
    if name in fields:
        if isinstance(fields[name], dict) and key in fields[name]:
            fields[name][key] = wrong
        else:
            fields[name] = wrong
    return Fused(**fields)


def _swizzled(text: object) -> object:
    return MatMul.tile(32, 32).to(Block).swizzle(text)


@functools.cache
def notations() -> tuple[tuple[Callable[[], tuple[str, ...]], Callable[[object], object], str], ...]:
    """The texts, their parser, and its source text."""
    return (
        (_kernels, _kernel, "from fireiron.graphene import parse_strategy\nparse_strategy"),
        (_event_programs, _events, "from fireiron.tasks.event_text import parse\nparse"),
        (lambda: FORMULAS, _kind, "from attacks.texts import _kind\n_kind"),
        (_definitions, _definition, "from attacks.texts import _definition\n_definition"),
        (_expressions, expression, "from fireiron.language.store import expression\nexpression"),
        (
            lambda: ("uid ^ 1", "uid // 2 * 2 + (1 - uid % 2)", "(uid & ~3) | (uid >> 1 & 1)", "uid"),
            _swizzled,
            "from attacks.texts import _swizzled\n_swizzled",
        ),
    )


@functools.cache
def _kernels() -> tuple[str, ...]:
    return tuple(graphene_text(library.bind(library.find(name)).program("sm_80")) for name in ("naive", "wmma_simple"))


@functools.cache
def _event_programs() -> tuple[str, ...]:
    programs = [one.read_text(encoding="utf-8") for one in sorted(GOLDENS.glob("*.events"))]
    return tuple(sorted(programs, key=len)[:4])


@functools.cache
def _definitions() -> tuple[str, ...]:
    texts = []
    for number, fields in enumerate(DEFINITIONS):
        for name, field_value in fields.items():
            texts += (
                [f"{number}|{name}.{key}|{text}" for key, text in field_value.items()]
                if isinstance(field_value, dict)
                else [f"{number}|{name}|{field_value}"]
            )
    return tuple(texts)


@functools.cache
def _expressions() -> tuple[str, ...]:
    texts = {str(expression_text(one)) for kept in harvest().values() for one in kept if isinstance(one, Expr)}
    return tuple(sorted(texts)) or tuple(str(one) for one in roots()[:1])
