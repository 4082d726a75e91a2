"""Hints ("did you mean ...") for names of element types and architectures that other tools use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from fireiron.errors import closest, shown

_DTYPES: Final[Mapping[str, str]] = {
    "half": "float16", "fp16": "float16", "f16": "float16", "bf16": "bfloat16", "float": "float32", "single": "float32", "fp32": "float32",
    "f32": "float32", "double": "float64", "fp64": "float64", "f64": "float64", "int": "int32", "i32": "int32", "s32": "int32",
    "i64": "int64", "s64": "int64", "long": "int64", "i8": "int8", "s8": "int8", "char": "int8", "u8": "uint8", "byte": "uint8",
    "fp8": "float8_e4m3", "e4m3": "float8_e4m3", "float8": "float8_e4m3", "float8_e4m3fn": "float8_e4m3", "e5m2": "float8_e5m2",
}  # fmt: skip
"""Names of element types in other tools."""

_GPUS: Final[Mapping[str, str]] = {
    "titan v": "sm_70", "v100": "sm_70", "t4": "sm_75", "a100": "sm_80", "a30": "sm_80", "a10": "sm_86", "a40": "sm_86", "l4": "sm_89",
    "l40": "sm_89", "l40s": "sm_89", "h100": "sm_90a", "h200": "sm_90a", "gh200": "sm_90a", "b200": "sm_100", "volta": "sm_70",
    "turing": "sm_75", "ampere": "sm_80", "ada": "sm_89", "hopper": "sm_90a", "blackwell": "sm_100",
}  # fmt: skip
"""The targets of GPUs and GPU generations, by name."""


def dtype_hint(value: object, names: Sequence[str]) -> str | None:
    """The hint for another tool's name of an element type (`half`, `np.float16`), or another spelling; None if nothing is similar."""
    text = _text(value).rpartition(".")[2]
    return _hint(text if text in names else _DTYPES.get(text) or closest(text, names))


def architecture_hint(value: object, names: Sequence[str]) -> str | None:
    """The hint for an architecture given as a number (90, 9.0), in another form (sm90), or as a GPU; None if nothing is similar."""
    text = _text(value)
    number = re.fullmatch(r"(?:sm|compute|cc)?[ _-]*([0-9]{1,2})\.?([0-9])(a?)", text, re.ASCII)
    name = "sm_" + "".join(number.groups()) if number else _GPUS.get(text, text)
    return _hint(name if name in names else closest(name, names))


def _text(value: object) -> str:
    """A string itself, or the `__name__` or `name` of another package's value, in lower case."""
    name = next((one for one in (value, getattr(value, "__name__", None), getattr(value, "name", None)) if isinstance(one, str)), None)
    return (shown(value) if name is None else name).strip().lower()


def _hint(name: str | None) -> str | None:
    return None if name is None else f"did you mean {name}?"
