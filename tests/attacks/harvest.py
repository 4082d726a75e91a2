"""What there is to attack, by introspection: values of all classes, found by walking what is public, and callables with their signatures."""

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
"""What the walk starts from, besides all that is public."""

FEW = 8
"""Values of a class that are kept."""


@functools.cache
def roots() -> tuple[object, ...]:
    """Where the walk starts: seeds, what is public, some of the library."""
    named = [getattr(fireiron, name) for name in fireiron.__all__]
    made = []
    for source in SEEDS:
        try:
            made.append(eval(source, dict(handed.NAMES)))
        except FireironError as error:
            raise AssertionError(f"a seed of the harvest is refused: {source}") from error
    programs = [library.bind(library.find(name)) for name in ("naive", "hmma_ampere", "wgmma") if name in library.names()]
    return (*made, *programs, *(one for one in named if not isinstance(one, type)))


@functools.cache
def harvest() -> dict[type, tuple[object, ...]]:
    """Some values of each class that is reached, in the order in which they are."""
    found: dict[type, list[object]] = {}
    seen: set[int] = set()
    waiting: list[object] = list(roots())
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        cls = type(value)
        if cls.__module__.startswith("fireiron"):
            kept = found.setdefault(cls, [])
            if len(kept) < FEW:
                kept.append(value)
        waiting += _parts(value)
    return {cls: tuple(kept) for cls, kept in found.items()}


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif attrs.has(type(value)):
        yield from (getattr(value, field.name, None) for field in attrs.fields(type(value)))


@functools.cache
def by_name() -> dict[str, tuple[object, ...]]:
    """Values that stood in a field, by its name: what may be right for a parameter of that name."""
    found: dict[str, list[object]] = {}
    for kept in harvest().values():
        for value in kept:
            if attrs.has(type(value)):
                for field in attrs.fields(type(value)):
                    one = getattr(value, field.name, None)
                    there = found.setdefault(field.alias or field.name, [])
                    if len(there) < FEW and not any(one is other for other in there):
                        there.append(one)
    sizes = [8, 64, 16]
    found |= dict.fromkeys(("M", "N", "K", "m", "n", "k", "sizes", "size", "batch"), sizes)
    found |= {
        "memory": [GL, SH, RF],
        "memories": [GL, SH, RF],
        "level": [Kernel, Block, Warp, Thread],
        "operand": ["A", "B"],
        "dtype": [float16, float32],
    }
    found |= {
        "spec": list(harvest()[Spec]),
        "architecture": ["sm_80", "sm_90a"],
        "arch": ["sm_80"],
        "strategy": [one for one in roots() if isinstance(one, Strategy)],
    }
    return {name: tuple(kept) for name, kept in found.items()}


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """All that is public and can be called."""
    for name in fireiron.__all__:
        value = getattr(fireiron, name)
        if callable(value):
            yield name, value


@functools.cache
def parameters(function: Callable[..., object]) -> tuple[inspect.Parameter, ...] | None:
    """The parameters of a callable; None where nobody knows them."""
    try:
        return tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def drawn_arguments(
    choose: random.Random, wanted: tuple[inspect.Parameter, ...], base: object = None
) -> tuple[list[tuple[str, object]], dict[str, tuple[str, object]]]:
    """Arguments for parameters, most of them of the kind that is asked for, one or more of them of any other: (source text, value)."""
    positional: list[tuple[str, object]] = []
    named: dict[str, tuple[str, object]] = {}
    for one in wanted:
        count = choose.choice((0, 1, 1, 2, 3)) if one.kind is one.VAR_POSITIONAL else 1
        if one.kind is one.VAR_KEYWORD:
            if choose.random() < 0.2:
                name = choose.choice(("m", "n", "k", "M", "bm", "x", "self", "dtype", "é"))
                named[name] = drawn(choose, name)
            continue
        if one.default is not one.empty and choose.random() < 0.6:
            continue
        for _ in range(count):
            if one.kind is one.KEYWORD_ONLY or (named and one.kind is one.POSITIONAL_OR_KEYWORD):
                named[one.name] = drawn(choose, one.name, base)
            else:
                positional.append(drawn(choose, one.name, base))
    fate = choose.random()
    if fate < 0.03 and positional:
        positional.pop()
    elif fate < 0.06:
        positional.append(drawn(choose, "more"))
    elif fate < 0.08:
        named["no_such_name"] = drawn(choose, "more")
    return positional, named


def drawn(choose: random.Random, name: str, base: object = None) -> tuple[str, object]:
    """A value for a parameter, right as often as not: as a base has it, as others of its name had it, or any."""
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
