"""Operations of PyTorch as texts of formulas. Each function takes the texts of its operands; NaN propagates as in PyTorch."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fireiron.torch_backend.dims import CannotStateError

Text = Callable[..., str]


def number(value: Any) -> str:
    """Return a constant as text. Raises: `CannotStateError` for values that are not numbers."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float) and math.isnan(value):
        return "(inf - inf)"
    if not isinstance(value, int | float):
        raise CannotStateError(f"the constant {value!r}")
    if math.isinf(value):
        return "inf" if value > 0 else "(0 - inf)"
    text = repr(value)
    return f"(0 - {text[1:]})" if value < 0 else text


def power(x: str, exponent: str) -> str:
    """Return a power with a constant exponent. Raises: `CannotStateError` for other exponents than small integers and halves."""
    powers = {"2": f"{x} * {x}", "3": f"{x} * {x} * {x}", "4": f"{x} * {x} * ({x} * {x})", "1": x, "0.5": f"sqrt({x})"}
    powers |= {"(0 - 0.5)": f"rsqrt({x})", "(0 - 1)": f"1 / {x}", "(0 - 2)": f"1 / ({x} * {x})", "1.5": f"{x} * sqrt({x})"}
    text = powers.get(exponent.removesuffix(".0").replace(".0)", ")"))
    if text is None:
        raise CannotStateError(f"a power with the exponent {exponent}")
    return text


def clamp(x: str, least: str | None = None, most: str | None = None) -> str:
    """Return x between two bounds, either of which may be None."""
    text = x if least is None else f"where({x} < {least}, {least}, {x})"
    return text if most is None else f"where({text} > {most}, {most}, {text})"


def _series(x: str, coefficients: Iterable[float]) -> str:
    """Return a power series without its constant term, by Horner's rule."""
    *others, text = map(number, coefficients)
    for coefficient in reversed(others):
        text = f"({coefficient} + {x} * {text})"
    return f"{x} * {text}"


def softplus(x: str, power: str) -> str:
    """Return log1p(exp(x)) for a step `power` with exp(-abs(x)): the larger of x and 0, and a polynomial (error at most 3e-7).

    It takes half of the instructions of log1p, and no branch. The result is infinite where exp(x) is.
    """
    return f"where({x} >= {OVERFLOWS}, inf, where({x} < 0, 0, {x}) + {_series(power, LOG1P)})"


def expm1(x: str) -> str:
    """Return exp(x) - 1 without cancellation: by 8 terms of its series near 0 (error at most 2e-7)."""
    return f"where(abs({x}) < 0.5, {_series(x, (1 / math.factorial(term) for term in range(1, 9)))}, exp({x}) - 1)"


def divided(x: str, y: str) -> str:
    """Return a quotient. By a constant it is a product with the reciprocal, as in PyTorch.

    The reciprocal of 1 + exp(z), which is positive, is the square of `rsqrt`. An exact division has many instructions and a branch, and an
    unrolled epilogue has one division for each element.
    """
    if re.fullmatch(NUMBER, y) and 2.0**-126 <= abs(float(y)) <= 2.0**126:  # otherwise the reciprocal is not a normal float32
        return f"{x} * {number(1 / float(y))}"
    if _is_above_one(y):
        return f"rsqrt{y} * rsqrt{y}" if x == "1" else f"{x} * (rsqrt{y} * rsqrt{y})"
    return f"{x} / {y}"


def _is_above_one(text: str) -> bool:
    """Whether a text is `exp(...) + 1` or `1 + exp(...)`, in parentheses."""
    inner = _bare(text)
    power = _bare(inner.removesuffix(" + 1") if inner.endswith(" + 1") else inner.removeprefix("1 + "))
    return power != inner and power.startswith("exp") and _closes(power[len("exp") :])


def _bare(text: str) -> str:
    """Return a text without parentheses around all of it."""
    return _bare(text[1:-1]) if _closes(text) else text


def _closes(text: str) -> bool:
    """Whether the last parenthesis closes the first one, which begins the text."""
    depths = list(itertools.accumulate((char == "(") - (char == ")") for char in text))
    return text.startswith("(") and depths[-1] == 0 and min(depths[:-1]) > 0


OVERFLOWS: Final = 88.72284
"""The least float32 whose exponential is infinite."""

LOG1P: Final = (
    0.9999999403953552, -0.4999949336051941, 0.3331909775733948, -0.2484298199415207, 0.19106006622314453, -0.13663245737552643,
    0.07822594046592712, -0.029505226761102676, 0.005232690367847681,
)  # fmt: skip
"""Coefficients of log1p(t) / t from 0 to 1, with the least largest relative error: 3e-8, and at most 2.1e-7 in float32."""

NUMBER: Final = r"\d+(\.\d*)?(e[-+]?\d+)?"
"""A constant as text."""


COPIES: Final = ("convert_element_type", "_to_copy", "clone", "alias")
"""Operations that copy, also to another type."""

FUNCTIONS: Final[Mapping[str, Text]] = {
    **{
        name: (lambda x, name=name: f"{name}({x})")
        for name in ("abs", "cos", "erf", "exp", "exp2", "floor", "log", "log1p", "log2", "rsqrt", "sin", "sqrt", "tanh")
    },
    "add": lambda x, y, alpha="1": f"{x} + {y}" if alpha == "1" else f"{x} + {alpha} * {y}",
    "sub": lambda x, y, alpha="1": f"{x} - {y}" if alpha == "1" else f"{x} - {alpha} * {y}",
    "mul": lambda x, y: f"{x} * {y}",
    "div": divided,
    "neg": lambda x: f"0 - {x}",
    "square": lambda x: f"{x} * {x}",
    "reciprocal": lambda x: divided("1", x),
    "sigmoid": lambda x: f"({divided('1', f'(1 + exp(0 - {x}))')})",
    "pow": power,
    "relu": lambda x: f"where({x} < 0, 0, {x})",
    "clamp": clamp, "clamp_min": clamp, "clamp_max": lambda x, most: clamp(x, None, most),
    "maximum": lambda x, y: f"where({x} < {y} or {y} != {y}, {y}, {x})",
    "minimum": lambda x, y: f"where({x} > {y} or {y} != {y}, {y}, {x})",
    "expm1": expm1,
    "where": lambda condition, x, y: f"where({condition}, {x}, {y})",
    **dict.fromkeys(COPIES, lambda x: x),
}  # fmt: skip
"""Functions of elements, by the name of the operation."""

CONDITIONS: Final[Mapping[str, Text]] = {
    **{name: (lambda x, y, sign=sign: f"{x} {sign} {y}") for name, sign in
        {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()},
    **dict.fromkeys(("logical_and", "bitwise_and"), lambda x, y: f"{x} and {y}"),
    **dict.fromkeys(("logical_or", "bitwise_or"), lambda x, y: f"{x} or {y}"),
    "mul": lambda x, y: f"{x} and {y}",
    "isnan": lambda x: f"{x} != {x}",
    "logical_not": lambda x: f"where({x}, 0, 1) == 1",
}  # fmt: skip
"""Conditions, the first operands of `where`."""

REDUCTIONS: Final = {"sum": "sum", "amax": "max", "amin": "min", "prod": "prod", "mean": "sum", "any": "max"}
"""Reductions, with the word of the language. A mean divides its sum."""

EXTREMES: Final = {"max": "amax", "min": "amin", "argmax": "amax", "argmin": "amin"}
"""Operations with the positions of extremes along an axis, and the reduction of the values."""

OF_SEVERAL: Final = ("var_mean", "max", "min")
"""Operations with two results."""

REPEATING: Final = ("pow", "square", "relu", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "expm1", "isnan")
"""Operations whose text contains an operand several times, which is a step then, so that it is computed once."""

SCANS: Final = {"cumsum": "cumsum", "cumprod": "cumprod"}
"""Scans along an axis, with the word of the language."""

PRODUCTS: Final = ("mm", "bmm", "addmm", "baddbmm")
"""Products of matrices."""

VIEWS: Final = (
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "detach", "_reshape_alias", "numpy_T",
    "as_strided",
)  # fmt: skip
"""Operations that return the elements of their operand at other indices."""


LAYOUT: Final = "inductor_force_stride_order"
"""The operation that gives a tensor a layout."""

FLOATS: Final = ("torch.float16", "torch.bfloat16", "torch.float32")
"""Element types of values."""


def type_of(node: Any) -> str:
    """Return the element type of a node, `torch.float16`."""
    return str(getattr(node.meta.get("val"), "dtype", ""))


def is_float(node: Any) -> bool:
    """Whether the elements of a node are floating-point numbers, also of types that no formula has."""
    return type_of(node).removeprefix("torch.").startswith(("float", "bfloat", "complex"))


def is_inlined(node: Any) -> bool:
    """Whether readers of a node compute it themselves: views, constants, coordinates, conditions and functions of integers."""
    name = name_of(node)
    if name in VIEWS and type_of(node) != type_of(node.args[0]):
        return False  # the bits of the elements as another type
    if name == "as_strided":
        return _is_packed(node)
    if name == "permute" and name_of(node.args[0]) == LAYOUT:
        return False  # the dimensions of a convolution's result in the order in which it is stored
    if name in (*FUNCTIONS, *CONDITIONS):
        return not is_float(node)
    return name in (*VIEWS, "full", "scalar_tensor", "iota")


def _is_packed(node: Any) -> bool:
    """Whether a view with given strides has all elements of a contiguous tensor in their order."""
    given, result = node.args[0].meta.get("val"), node.meta.get("val")
    sizes = (*getattr(given, "shape", ("",)), *getattr(result, "shape", ("",)))
    if not all(type(size) is int for size in sizes):
        return False
    return bool(given.is_contiguous() and result.is_contiguous() and given.numel() == result.numel())


def sources_of(node: Any) -> list[Any]:
    """Return the nodes that a node reads, also those that it reads through inlined nodes."""
    return [source for one in node.all_input_nodes for source in (sources_of(one) if is_inlined(one) else [one])]


def users_of(node: Any) -> Iterator[Any]:
    """Yield the nodes that read a node, also through inlined nodes."""
    for user in node.users:
        if is_inlined(user):
            yield from users_of(user)
        else:
            yield user


def name_of(node: Any) -> str:
    """Return the name of an operation of ATen or of prims without namespace and overload; empty for other nodes."""
    packet = getattr(node.target, "overloadpacket", None)
    if node.op != "call_function" or packet is None:
        return ""
    namespace, _, name = str(packet).partition(".")
    return name if namespace in ("aten", "prims") else ""
