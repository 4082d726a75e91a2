"""Format records and their problems for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fireiron.spec import Spec
from fireiron.tune.record import Record, definition_of, describe


def record_text(record: Record) -> str:
    values = " ".join(f"{name}={value}" for name, value in record.values.items())
    return f"{record.strategy} {values or 'without tunables'}, {record.us:.4g} us on {record.gpu}, {record.date}"


def problem_text(record: Record) -> str:
    return f"{spec_text(record.spec)} on {record.architecture}"


def spec_text(spec: Mapping[str, Any]) -> str:
    """`MatMul 4096x4096x4096, float16 float16 float16, row row col`."""
    definition = definition_of(spec)
    sizes = "x".join(str(spec["sizes"][dim.upper()]) for dim in definition.dims)
    names = [name for name in definition.uses if name in spec["dtypes"]]  # without coordinate tensors
    parts = [f"{spec['kind']} {sizes}", " ".join(spec["dtypes"][name] for name in names), " ".join(spec["layouts"][name] for name in names)]
    return ", ".join(parts)


def tune_command(spec: Spec, architecture: str, strategy: str | None = None) -> str:
    """Return the command line that tunes a spec; a spec without options on the command line needs a file."""
    from fireiron.language.library import defaults

    described = describe(spec)
    if {"declared", "signature"} & set(described):
        own = next((name for name, _ in defaults(spec, architecture) if "declared" in described), "STRATEGY.py")
        return f"fireiron tune {strategy or own} --arch {architecture}"
    words = ["fireiron tune", strategy or next((name for name, _ in defaults(spec, architecture)), "STRATEGY")]
    words += [f"-{name} {_size_word(size, described)}" for name, size in described["sizes"].items()]
    kinds = list(described["dtypes"].values())
    words += [f"--dtype {kinds[0]}"] if kinds[0] != "float32" else []
    words.append(f"--layouts {''.join('T' if order == 'row' else 'N' for order in described['layouts'].values())}")
    return " ".join([*words, f"--arch {architecture}"])


def _size_word(size: int | str, described: Mapping[str, Any]) -> str:
    multiple = described.get("symbols", {}).get(size, {}).get("multiple_of", 1)
    return f"{size}:{multiple}" if multiple != 1 else str(size)
