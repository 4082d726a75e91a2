"""JSON of every stored value, mutated in structure and in characters: the value that is read equals the text, or the text is refused."""

import copy
import functools
import json
import random
from collections.abc import Iterator

import attrs

from attacks.guard import Input
from attacks.harvest import roots
from attacks.letters import damaged
from fireiron import *
from fireiron.language import library, store
from fireiron.language.store import CLASSES, expression
from fireiron.language.store.classes import OMITTED
from fireiron.language.store.converter import Store
from fireiron.language.store.documents import parsed

STRATEGIES, SPECS = "loads", "loads_spec"

ODD = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, 1.0, 1.5, 1e300, "", "x", "RF", "Warp", "uid", "M", "Var('M', 1, 9, 1, True)", "inf", "float32", "1",
    "\0", "a\nb", "é", [], [0], [[]], {}, {"type": "Tile"}, {"type": "Done"}, {"type": []}, {"type": "Tunable", "name": "t", "values": [2]},
    {"type": "Strided", "dims": [[1, 2]]}, {"type": "To", "level": "Warp"}, {"type": "object"}, {"type": "__import__"}, "__import__('os')", "'(' * 9",
)  # fmt: skip
"""Replacements for parts of a document."""


@functools.cache
def originals() -> tuple[tuple[str, str], ...]:
    """The reader, and a text: of strategies and of specs."""
    texts = []
    values = [one for one in roots() if isinstance(one, (Strategy, Spec))]
    values += [library.find(name).strategy for name in ("maxwell", "split_k", "hmma_ampere") if name in library.names()]
    for value in values:
        try:
            text = store.dumps(value)
        except FireironError:
            continue
        texts.append((STRATEGIES if isinstance(value, Strategy) else SPECS, text))
    return tuple(texts)


@functools.cache
def documents() -> tuple[tuple[str, str, tuple[tuple[object, ...], ...]], ...]:
    """The reader, the text, and the paths in its document."""
    return tuple((reader, text, tuple(places(json.loads(text)))) for reader, text in originals())


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The paths of all parts of a document."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def mutated(choose: random.Random, value: object, where: tuple[tuple[object, ...], ...]) -> object:
    """The document with one or two parts changed, removed, doubled or exchanged."""
    value = copy.deepcopy(value)
    for _ in range(choose.choice((1, 1, 1, 2))):
        path = choose.choice(where)
        parent = _at(value, path[:-1])
        if not path or not isinstance(parent, (dict, list)) or _at(value, path) is _MISSING:
            continue
        key = path[-1]
        match choose.randrange(5):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.insert(choose.randint(0, len(parent)), copy.deepcopy(parent[key]))
            case 1:
                parent[choose.choice(("sizes", "type", "x", "memory", "", "origin"))] = parent.pop(key)
            case 2:
                other = _at(value, choose.choice(where))
                parent[key] = copy.deepcopy(None if other is _MISSING else other)
            case 3 if isinstance(parent[key], (int, float)):
                parent[key] = choose.choice(
                    (-parent[key], parent[key] + 1, parent[key] * 2, float(parent[key]), str(parent[key]), [parent[key]], not parent[key])
                )
            case _:
                parent[key] = copy.deepcopy(choose.choice(ODD))
    return value


_MISSING = object()


def _at(value: object, path: tuple[object, ...]) -> object:
    for key in path:
        try:
            value = value[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def draw(choose: random.Random, count: int = 40) -> Iterator[Input]:
    """Texts of changed documents, or broken ones."""
    reader, text, where = choose.choice(documents())
    document = json.loads(text)
    for _ in range(count):
        wrong = damaged(choose, text) if choose.random() < 0.35 else _dumped(choose, mutated(choose, document, where))
        yield Input(
            f"from fireiron.language.store import {reader}\n{reader}({wrong!r})",
            lambda wrong=wrong: getattr(store, reader)(wrong),
            lambda value, wrong=wrong: another(value, wrong),
        )


def _dumped(choose: random.Random, value: object) -> str:
    text = json.dumps(value, ensure_ascii=choose.random() < 0.5)
    if choose.random() < 0.02:
        depth = choose.choice((100, 3000, 50_000))
        text = text.replace("[", "[" * depth, 1).replace("]", "]" * depth, 1)
    return text


# ---------------------------------------------------------------------------------------------- the read value equals the text


def another(value: Strategy | Spec, text: str) -> str | None:
    """The difference between a text and the value read from it."""
    again = store.dumps(value)
    kind = "strategy" if isinstance(value, Strategy) else "spec"
    return _differs(parsed(text)[kind], parsed(again)[kind], f"$.{kind}")


def _differs(written: object, is_: object, place: str) -> str | None:
    if isinstance(written, dict) and isinstance(is_, dict):
        for name in is_:
            if (
                name not in written
                and not _has_default(written, name)
                and is_[name] != OMITTED.get(str(written.get("type"))[:-4], {}).get(name)
            ):
                return f"{place}.{name} is not said, and is {is_[name]!r}"
        if is_.get("type") == "Tunable":
            written = {**written, "values": [*dict.fromkeys(written["values"])]}  # type: ignore[call-overload]  # once each
        for name in written:
            fault = _differs(written[name], is_[name], f"{place}.{name}") if name in is_ else _left_out(written, name, place)
            if fault:
                return fault
        return None
    if isinstance(written, list) and isinstance(is_, list) and len(written) == len(is_):
        return next(
            (fault for number, pair in enumerate(zip(written, is_, strict=True)) if (fault := _differs(*pair, f"{place}[{number}]"))), None
        )
    if isinstance(written, dict) and written.get("type") in ("DType", "Memory", "Level", "MatrixLayout"):
        cls = CLASSES[str(written["type"])]  # named values are written by their name
        return None if Store(()).value(written, cls) == Store(()).value(is_, cls) else f"{place} is {is_!r}"
    if (type(written) is type(is_) and written == is_) or _same_expression(written, is_) or _spelled(written) == _spelled(is_):
        return None
    return f"{place} is said to be {written!r}, and is {is_!r}"


def _has_default(written: dict[str, object], name: str) -> bool:
    """Whether a class computes an omitted field itself: a step whose store follows from its init."""
    cls = CLASSES.get(str(written.get("type")))
    return cls is not None and attrs.has(cls) and any(one.alias == name and one.default is not attrs.NOTHING for one in attrs.fields(cls))


def _left_out(written: dict[str, object], name: str, place: str) -> str | None:
    """A field present in the text and omitted when written again: it must be the default."""
    cls = CLASSES.get(str(written.get("type")))
    defaults = (
        {field.alias: field.default for field in attrs.fields(cls)}
        if cls is not None and attrs.has(cls)
        else {"spec": None, "otherwise": []}
    )
    default = defaults.get(name, _MISSING)
    if cls is Spec or default is _MISSING:
        return None if cls is Spec else f"{place}.{name} is said, and lost"
    plain = Store(()).plain(default)
    return (
        None
        if _differs(written[name], plain, place) is None
        else f"{place}.{name} is said to be {written[name]!r}, and is the default, {plain!r}"
    )


def _same_expression(written: object, is_: object) -> bool:
    if not isinstance(written, (str, int)) or not isinstance(is_, (str, int)) or isinstance(written, bool) or isinstance(is_, bool):
        return False
    try:
        return expression(written) == expression(is_)
    except FireironError:
        return False


def _spelled(value: object) -> object:
    """An integer written for a real number is the same number; formulas are equal without their spaces."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
