"""The objects to attack, by introspection: values of all classes, reached from public ones, and callables with their signatures."""

import functools
import inspect
import random
from collections.abc import Callable, Iterator

import attrs

import fireiron
from attacks import values as handed
from fireiron import *
from fireiron.language import library

SEEDS = (
    "MatMul(64, 64, 16)(GL, GL, GL)(Kernel)",
    "MatMul(sym('M', 8), 64, sym('K'), dtype=float16, A=RowMajor(ld=80))(GL, GL, GL)(Kernel)",
    "Move(64, 32, src=Strides(m=ANY(4), n=1))(GL, GL)(Kernel)",
    "Init(8, 8, value=3)(GL)(Kernel)",
    "Reduction(8, 16, by='max')(GL, GL)(Kernel)",
    "BinaryPointwise('+', 8, 8)(GL, GL, GL)(Kernel)",
    "Pointwise('z[m,n] = relu(x[m,n] + b[n])', 8, 8)(GL, GL, GL)(Kernel)",
    "Kind('Add', 's[i] += {a} * x[i]', (Parameter('a', 2),), atomic=True).starter(8, a=3)(GL, GL)(Kernel)",
    "MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(4).tile(4, 4).to(Thread).split(1).tile(1, 1).done()",
    "MatMul.tile(Tunable('bm', 16, 32), 32).to(Block).rasterize(group_m=2).swizzle('uid ^ 1').split(8).pipeline(2).load(A, SH, Move.tile(1, 4).to(Thread).done(vector(4)))",
    "MatMul.tile(32, 32).to(Block).epilog(RF, float32, Init.tile(4, 4).to(Thread).done()).split_k(2, Warp, 4).split(4)",
    "MatMul.tile(Strided((4, 8), (4, 8))).to(Warp).done(MicroKernel.of('c[0] = 0;'))",
    "MatMul.tile(32, 32).to(Block).load(A, SH).storage_layout(Layout((8, 4), (4, 1))).swizzle_storage(Swizzle(2, 0, 3))",
    "MatMul.tile(32, 32)",
    "MatMul.tile(32, 32).to(Block).epilog(RF)",
    "Move.tile(8, 8).to(Thread)",
    "AnySpec.tile(8, 8)",
    "sym('M', 8) * 3 // 4 % 8",
    "Tunable('bm', 16, 32) // 2 + 1",
    "Layout((4, (2, 2)), (2, (1, 8)))",
    "Strides(m=ANY(8), k=1)",
    "ColMajor(ld=sym('ld'))",
)
"""The starting points of the walk, in addition to all public objects."""

FEW = 8
"""The number of stored values per class."""


@functools.cache
def roots() -> tuple[object, ...]:
    """The starting points: seeds, public objects, a part of the library."""
    named = [getattr(fireiron, name) for name in fireiron.__all__]
    seeds = []
    for source in SEEDS:
        try:
            seeds.append(eval(source, dict(handed.NAMES)))
        except FireironError as error:
            raise AssertionError(f"a seed of the harvest is refused: {source}") from error
    programs = [library.bind(library.find(name)) for name in ("naive", "hmma_ampere", "wgmma") if name in library.names()]
    return (*seeds, *programs, *(one for one in named if not isinstance(one, type)))


@functools.cache
def harvest() -> dict[type, tuple[object, ...]]:
    """Some values of each reached class, in order of discovery."""
    by_class: dict[type, list[object]] = {}
    seen: set[int] = set()
    waiting: list[object] = list(roots())
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        cls = type(value)
        if cls.__module__.startswith("fireiron"):
            kept = by_class.setdefault(cls, [])
            if len(kept) < FEW:
                kept.append(value)
        waiting += _parts(value)
    return {cls: tuple(kept) for cls, kept in by_class.items()}


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif attrs.has(type(value)):
        yield from (getattr(value, field.name, None) for field in attrs.fields(type(value)))


@functools.cache
def by_name() -> dict[str, tuple[object, ...]]:
    """Values of a field, by its name: plausible arguments for a parameter of that name."""
    by_field: dict[str, list[object]] = {}
    for kept in harvest().values():
        for value in kept:
            if attrs.has(type(value)):
                for field in attrs.fields(type(value)):
                    field_value = getattr(value, field.name, None)
                    known_values = by_field.setdefault(field.alias or field.name, [])
                    if len(known_values) < FEW and not any(field_value is other for other in known_values):
                        known_values.append(field_value)
    sizes = [8, 64, 16]
    by_field |= dict.fromkeys(("M", "N", "K", "m", "n", "k", "sizes", "size", "batch"), sizes)
    by_field |= {
        "memory": [GL, SH, RF],
        "memories": [GL, SH, RF],
        "level": [Kernel, Block, Warp, Thread],
        "operand": ["A", "B"],
        "dtype": [float16, float32],
    }
    by_field |= {
        "spec": list(harvest()[Spec]),
        "architecture": ["sm_80", "sm_90a"],
        "arch": ["sm_80"],
        "strategy": [one for one in roots() if isinstance(one, Strategy)],
    }
    return {name: tuple(kept) for name, kept in by_field.items()}


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """All public callables."""
    for name in fireiron.__all__:
        value = getattr(fireiron, name)
        if callable(value):
            yield name, value


@functools.cache
def parameters(function: Callable[..., object]) -> tuple[inspect.Parameter, ...] | None:
    """The parameters of a callable; None if unknown."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def drawn_arguments(
    choose: random.Random, wanted: tuple[inspect.Parameter, ...], base: object = None
) -> tuple[list[tuple[str, object]], dict[str, tuple[str, object]]]:
    """Arguments for parameters, most of the declared kind, one or more of any other: (source text, value)."""
    positional: list[tuple[str, object]] = []
    named: dict[str, tuple[str, object]] = {}
    for parameter in wanted:
        count = choose.choice((0, 1, 1, 2, 3)) if parameter.kind is parameter.VAR_POSITIONAL else 1
        if parameter.kind is parameter.VAR_KEYWORD:
            if choose.random() < 0.2:
                name = choose.choice(("m", "n", "k", "M", "bm", "x", "self", "dtype", "é"))
                named[name] = drawn(choose, name)
            continue
        if parameter.default is not parameter.empty and choose.random() < 0.6:
            continue
        for _ in range(count):
            if parameter.kind is parameter.KEYWORD_ONLY or (named and parameter.kind is parameter.POSITIONAL_OR_KEYWORD):
                named[parameter.name] = drawn(choose, parameter.name, base)
            else:
                positional.append(drawn(choose, parameter.name, base))
    fate = choose.random()
    if fate < 0.03 and positional:
        positional.pop()
    elif fate < 0.06:
        positional.append(drawn(choose, "more"))
    elif fate < 0.08:
        named["no_such_name"] = drawn(choose, "more")
    return positional, named


def drawn(choose: random.Random, name: str, base: object = None) -> tuple[str, object]:
    """A value for a parameter, right about half of the time: the base's value, one of a parameter of that name, or any."""
    fate = choose.random()
    if fate < 0.35 and base is not None and hasattr(type(base), "__attrs_attrs__") and hasattr(base, name):
        return _shown(getattr(base, name))
    right = by_name().get(name.lstrip("_"))
    if fate < 0.55 and right:
        return _shown(choose.choice(right))
    return choose.choice(handed.VALUES)


def _shown(value: object) -> tuple[str, object]:
    try:
        return repr(value), value
    except Exception:
        return object.__repr__(value), value


def called(name: str, positional: list[tuple[str, object]], named: dict[str, tuple[str, object]]) -> str:
    """The source text of a call."""
    parts = [text for text, _ in positional] + [f"{key}={text}" for key, (text, _) in named.items()]
    return f"{name}({', '.join(parts)})"
