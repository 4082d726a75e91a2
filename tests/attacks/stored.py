"""Stored files: records, tuning journals, the compile cache; mutated in structure, in characters and in bits."""

import copy
import functools
import hashlib
import json
import random
from collections.abc import Iterator

from attacks.documents import mutated, places
from attacks.guard import Input
from attacks.letters import damaged, damaged_bytes
from fireiron import *
from fireiron.gpu import cache
from fireiron.language import library
from fireiron.tune.record import describe, spec_of, strategy_hash

SPECS = (
    "MatMul(256, 256, 256, dtype=float16)(GL, GL, GL)(Kernel)",
    "MatMul(sym('M', multiple_of=8), 64, sym('K', low=16, high=4096), dtype=float16, A=RowMajor(ld=4096))(GL, GL, GL)(Kernel)",
    "MatMul(8, 8, 8, A=Strides(m=ANY(8), k=1))(GL, GL, GL)(Kernel)",
    "Init(64, 32, value=-3, dst=RowMajor(ld=40))(GL)(Kernel)",
    "Kind('Sums', 's[m,n] = {by} * x[m,n]; d[n,m] = x[m,n] - {by}', (Parameter('by', real=True),)).starter(0.5, 8, 16)(GL, GL, GL)(Kernel)",
    "Fused(name='scaled', dims='m n', operands={'X': 'm n', 'w': 'n', 'Y': 'm n'}, body={'out': 'Y[m,n] = X[m,n] * w[n]'})(m=8, n=8)",
)


@functools.cache
def records() -> tuple[str, ...]:
    """Lines of records."""
    fields = {
        "strategy": "small", "strategy_hash": strategy_hash(library.find("small").strategy), "values": {"bm": 32, "bn": 32}, "architecture": "sm_90",
        "gpu": "NVIDIA H200", "us": 10.0, "quartiles": (9.5, 10.5), "tflops": 3.3, "regime": "burst", "l2": "rotated", "error": 1e-4, "registers": 90,
        "shared_bytes": 32768, "spills": 0, "library_us": 9.0, "toolchain": "NVRTC 13.0", "driver": "580.159.04", "clocks": (1980, 1980),
        "fireiron": "0.1", "date": "2026-11-21", "source": "synthetic", "extra": {"note": [1, {"x": None}]},
    }  # fmt: skip
    from fireiron import Record

    return tuple(Record(**fields, spec=describe(eval(source))).line() for source in SPECS)


def draw(choose: random.Random, count: int = 100) -> Iterator[Input]:
    """One kind of file, damaged."""
    yield from choose.choice((_records, _specs, _entries))(choose, count)


def _records(choose: random.Random, count: int) -> Iterator[Input]:
    from fireiron import Record

    line = choose.choice(records())
    where = tuple(places(json.loads(line)))
    for _ in range(count):
        wrong = damaged(choose, line) if choose.random() < 0.4 else json.dumps(mutated(choose, json.loads(line), where))
        yield Input(
            f"from fireiron import Record\nRecord.parse({wrong!r})",
            lambda wrong=wrong: Record.parse(wrong),
            lambda got, wrong=wrong: _same(got, wrong),
        )


def _same(record: "Record", text: str) -> str | None:  # type: ignore[name-defined]
    written, is_ = json.loads(text), json.loads(record.line())
    if _plain(written) == _plain(is_):
        return None
    names = [name for name in {**written, **is_} if _plain(written.get(name)) != _plain(is_.get(name))]
    return f"{names[0]} is said to be {written.get(names[0])!r}, and is {is_.get(names[0])!r}" if names else None


def _plain(value: object) -> object:
    """For comparison: `None` for an unknown value equals its omission; booleans are not numbers, and numbers are not strings."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return ("bool", value) if isinstance(value, bool) else value


def _specs(choose: random.Random, count: int) -> Iterator[Input]:
    plain = json.loads(choose.choice(records()))["spec"]
    where = tuple(places(plain))
    for _ in range(count):
        wrong = mutated(choose, plain, where)
        yield Input(
            f"from fireiron.tune.record import spec_of\nspec_of({wrong!r})",
            lambda wrong=wrong: spec_of(copy.deepcopy(wrong)),
            lambda got, wrong=wrong: _same_spec(got, wrong),
        )


def _same_spec(spec: Spec, written: object) -> str | None:
    is_ = json.loads(json.dumps(describe(spec)))
    return None if describe(spec_of(is_)) == describe(spec) and _plain(_usual(written)) == _plain(_usual(is_)) else f"is {is_!r}"


def _usual(plain: object) -> object:
    """Default values are equal to their omission."""
    if not isinstance(plain, dict):
        return plain
    usual = {
        "leading": {},
        "symbols": {},
        "align": {},
        "accumulate": False,
        "signature": "",
        "value": 0,
        "parameters": {},
        "declared": None,
    }
    parts = {name: part for name, part in plain.items() if not (name in usual and _plain(part) == _plain(usual[name]))}
    if isinstance(parts.get("symbols"), dict):
        facts = {name: repr(_symbol(name, one)) for name, one in parts["symbols"].items()}
        parts["symbols"] = {name: one for name, one in facts.items() if one != repr(sym(name))} or None
    parts["align"] = (
        {name: size for name, size in (parts.get("align") or {}).items() if size != 16} if isinstance(parts.get("align"), dict) else None
    )
    return parts


@functools.cache
def entry() -> tuple[bytes, str]:
    """An entry of the compile cache as written, and its key."""
    key, parts = "0" * 64, (b".version 9.0\n", b"", b"\x7fELF" + bytes(range(256)) * 4)
    head = {
        "key": key, "kernels": ["matmul"], "about": "// MatMul", "arch": "sm_80", "toolchain": [13, 0], "compiler": "x", "flags": [], "seconds": 0.5,
        "created": 1.0, "fireiron": "0.1", "sizes": [len(part) for part in parts],
    }  # fmt: skip
    body = b"".join((json.dumps(head, sort_keys=True).encode(), b"\n", *parts))
    return b"".join((cache._FIRST, hashlib.sha256(body).hexdigest().encode(), b"\n", body)), key


def _symbol(name: str, facts: object) -> object:
    """The symbol of a name, with its stated properties."""
    return sym(name, **facts) if isinstance(facts, dict) else facts


class _Refused(FireironError):
    """The answer of a reader of entries: they are damaged, and compiled again."""


def _entries(choose: random.Random, count: int) -> Iterator[Input]:
    data, key = entry()
    for _ in range(count):
        wrong = damaged_bytes(choose, data) if choose.random() < 0.5 else _signed(choose, data)
        yield Input(
            f"from fireiron.gpu import cache\ncache._decoded({wrong!r}, {key!r})",
            lambda wrong=wrong: _decoded(wrong, key),
            lambda got, wrong=wrong: _same_entry(got, wrong),
        )


def _decoded(data: bytes, key: str) -> object:
    try:
        return cache._decoded(data, key)
    except cache.DamagedError as error:
        raise _Refused(str(error)) from None


def _same_entry(got: object, wrong: bytes) -> str | None:
    """The read value equals the stored one: the digest is right, and the header has all required fields, with their types."""
    data, _ = entry()
    good = cache._decoded(data, "0" * 64)
    head = json.loads(wrong.split(b"\n")[2])
    if wrong == data:
        return None
    fields = (got.arch, got.ptx, got.cubin, got.log)
    if all(isinstance(one, kind) for one, kind in zip(fields, (str, str, bytes, str), strict=True)) and isinstance(
        got.seconds, (int, float)
    ):
        is_whole = sum(head["sizes"]) == len(wrong.split(b"\n", 3)[3])
        return None if is_whole and all(type(one) is int for one in got.toolchain) else "an entry whose head does not fit is taken"
    return f"an entry of wrong types is taken: {fields!r:.200}, {good.arch}"


def _signed(choose: random.Random, data: bytes) -> bytes:
    """An entry with another header or other parts, and their digest."""
    _, _, rest = data.split(b"\n", 2)
    line, _, parts = rest.partition(b"\n")
    head = json.loads(line)
    head = mutated(choose, head, tuple(places(head)))
    body = json.dumps(head).encode() + b"\n" + (parts if choose.random() < 0.7 else damaged_bytes(choose, parts))
    return b"".join((cache._FIRST, hashlib.sha256(body).hexdigest().encode(), b"\n", body))
