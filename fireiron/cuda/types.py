"""Element types in C++: vector types, constants, conversions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from fireiron.ir.text import Function
from fireiron.values.document import Call, Text
from fireiron.values.machine import DType, bfloat16, float8_e4m3, float8_e5m2, float16, float32, int32

EIGHT_BITS = (float8_e4m3, float8_e5m2)

_CARRIERS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FLOAT_CARRIERS = {("float", 8): "float2", ("float", 16): "float4", ("double", 16): "double2", ("int", 8): "int2", ("int", 16): "int4"}


def carrier(dtype: DType, width: int) -> str:
    """The built-in vector type that moves `width` elements."""
    size = dtype.bytes * width
    return _FLOAT_CARRIERS.get((dtype.cuda, size), _CARRIERS[size])


def zero(dtype: DType, width: int) -> str:
    """The zero of the vector type that moves `width` elements."""
    kind = carrier(dtype, width)
    if kind in ("unsigned short", "unsigned int"):
        return "0"
    lanes = int(kind[-1])
    lane = {"f": "0.0f", "d": "0.0", "i": "0", "u": "0u"}[kind[0]]
    return f"make_{kind}({', '.join([lane] * lanes)})"


def repeated(number: float, dtype: DType, width: int) -> str:
    """A number in each element of the vector type that moves `width` elements; the literal of the number if the width is 1."""
    if width == 1:
        return literal(number, dtype)
    if not number:
        return zero(dtype, width)
    import numpy

    kind = carrier(dtype, width)
    if kind[0] in "fd":
        lane = literal(number, dtype)
        return f"make_{kind}({', '.join([lane] * int(kind[-1]))})"
    word = numpy.uint16 if kind == "unsigned short" else numpy.uint32
    words = [int(one) for one in numpy.full(width, number, dtype.to_numpy()).view(word)]
    if kind in ("unsigned short", "unsigned int"):
        return f"{words[0]:#x}"
    lanes = [f"{one:#x}u" if kind[0] == "u" else f"int({one:#x}u)" for one in words]
    return f"make_{kind}({', '.join(lanes)})"


INT_MIN = -(1 << 31)
"""Smallest 32-bit index."""

LONG = 1e16
"""Floats from this value on are printed with an exponent."""


def literal(number: float, dtype: DType) -> str:
    """A constant of an element type. NaN and infinities are built from their bits, because NVRTC has no macros for them."""
    if dtype == float16:
        return f"__float2half_rn({literal(number, float32)})"
    if dtype == bfloat16:
        return f"__float2bfloat16_rn({literal(number, float32)})"
    if dtype in EIGHT_BITS:
        return f"{dtype.cuda}({literal(number, float32)})"
    if dtype.kind != "float" and dtype.cuda in _SUFFIXES:
        return _with_suffix(int(number), _SUFFIXES[dtype.cuda])
    if dtype.kind != "float":
        return str(int(number)) if number > INT_MIN else f"({INT_MIN + 1} - 1)"  # the text of INT_MIN would be a long
    if not math.isfinite(number):
        bits = 0x7FC00000 if math.isnan(number) else 0x7F800000 if number == math.inf else 0xFF800000
        single = f"__int_as_float({bits:#010x})"
        return single if dtype.bits == 32 else f"static_cast<{dtype.cuda}>({single})"
    return f"{_shortest(float(number))}f" if dtype.bits == 32 else repr(float(number))


_SUFFIXES: Mapping[str, str] = {"long long": "LL", "unsigned int": "u"}
"""The suffix of constants of the types other than `int` in which integers of formulas are computed."""


def _with_suffix(number: int, suffix: str) -> str:
    """A constant with its suffix; the smallest `long long` has no literal."""
    return f"{number}{suffix}" if number > -(1 << 63) else f"({number + 1}{suffix} - 1)"


def _shortest(number: float) -> str:
    """The shortest decimal number with the same value in float; an integer unchanged."""
    import numpy

    if number.is_integer() and abs(number) < LONG:
        return repr(number)
    with numpy.errstate(over="ignore"):
        single = numpy.float32(number)
    is_normal = bool(numpy.isfinite(single)) and single != 0
    return repr(float(str(single)) if is_normal else number).replace("e+", "e")


_TO_HALF: Mapping[str, str] = {
    "float": "__float2half_rn",
    "double": "__double2half",
    "int": "__int2half_rn",
    "signed char": "__int2half_rn",
    "unsigned char": "__int2half_rn",
    "unsigned int": "__uint2half_rn",
    "long long": "__ll2half_rn",
}
_TO_BFLOAT: Mapping[str, str] = {
    "float": "__float2bfloat16_rn", "double": "__double2bfloat16", "int": "__int2bfloat16_rn", "signed char": "__int2bfloat16_rn",
    "unsigned char": "__int2bfloat16_rn", "unsigned int": "__uint2bfloat16_rn", "long long": "__ll2bfloat16_rn",
}  # fmt: skip


def _cast(kind: str, text: Text) -> Text:
    return Call(f"static_cast<{kind}>", (text,))


FUNCTIONS: Mapping[str, str] = {
    "abs": "fabs", "max": "fmax", "min": "fmin",
    **{name: name for name in ("cos", "erf", "exp", "exp2", "floor", "log", "log1p", "log2", "rsqrt", "sin", "sqrt", "tanh")},
    "round": "rint", "tanh_approx": "tanh",
}  # fmt: skip
"""The functions of formulas in double; those in float have the suffix `f` (CUDA Math API).

They are the standard functions, not the faster ones of `--use_fast_math`, except those of `APPROXIMATE` in float. The CUDA C++
Programming Guide ("Mathematical Functions") gives their errors in float, in units in the last place: 1 for log, log1p and log2, 2 for cos,
erf, exp, rsqrt, sin and tanh; the others are rounded correctly. The maximum or minimum of a number and NaN is the number.
"""


COMPOSED: Mapping[str, tuple[str, str]] = {
    "sigmoid": ("1{f} / (1{f} + exp{e}(-x))", "1 / (1 + e^-x)"),
    "silu": ("x / (1{f} + exp{e}(-x))", "x * sigmoid(x)"),
    "gelu": ("0.5{e} * x * (1{f} + erf{e}(x * 0.7071067811865476{e}))", "x * Phi(x), Phi the standard normal distribution function"),
}
"""Functions of formulas that consist of standard functions: the text, with `{f}` and `{e}` for the type, and the definition."""


APPROXIMATE: Mapping[str, tuple[str, str]] = {
    "exp2": ("ex2.approx.ftz.f32", "2^x with a relative error of at most 2^-22; results below 2^-126 are 0"),
    "tanh_approx": ("tanh.approx.f32", "tanh(x) with a relative error of at most 2^-10.987"),
}
"""Functions in float that are an instruction (PTX ISA, "Floating Point Instructions", ex2 and tanh): its name and definition."""


LARGE_ARGUMENT: Final = "105615.0f"
"""The magnitude from which sinf and cosf of CUDA reduce an argument with many digits of 2 / pi, a path of some hundred instructions."""

PERIODIC: Final[Mapping[str, str]] = {"sin": "sine", "cos": "cosine"}
"""Functions in float whose path for large arguments is compiled once, and the names of their helper functions."""


def of_large(name: str) -> Function:
    """The function that computes one of `PERIODIC`, which is called instead of inlined."""
    note = f"{name}(x), called for large |x|: inlined, its long path would be compiled for each call"
    return Function(f"{PERIODIC[name]}_of_large", ("float x",), (f"return {name}f(x);",), note, result="float", inlined=False)


def periodic(name: str, large: str) -> Function:
    """The helper function for one of `PERIODIC`; `large` is the name of `of_large`.

    CUDA's function tests the opposite condition, so the compiler removes its path for large arguments here.
    """
    body = (f"return fabsf(x) >= {LARGE_ARGUMENT} ? {large}(x) : {name}f(x);",)
    return Function(PERIODIC[name], ("float x",), body, f"{name}(x), with an error of 2 units in the last place", result="float")


def approximate(name: str) -> Function:
    """The helper function for an instruction of `APPROXIMATE`."""
    instruction, note = APPROXIMATE[name]
    body = ("float y;", f'asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));', "return y;")
    return Function(f"{name.removesuffix('_approx')}_approx", ("float x",), body, note, result="float")


def composed(name: str, dtype: DType) -> Function:
    """The helper function that computes one of `COMPOSED`."""
    text, note = COMPOSED[name]
    single = dtype.bits == 32
    body = text.format(f=".0f" if single else ".0", e="f" if single else "")
    return Function(name, (f"{dtype.cuda} x",), (f"return {body};",), note, result=dtype.cuda)


def applied(name: str, dtype: DType, *arguments: Text) -> Text:
    """A function of a formula on values of float, double or int."""
    if name == "relu":
        return applied("max", dtype, *arguments, literal(0, dtype))
    if name == "clamp":
        value, low, high = arguments
        return applied("min", dtype, applied("max", dtype, value, low), high)
    if dtype.kind == "int":
        return Call("llabs" if name == "abs" and dtype.bits == 64 else name, arguments)
    return Call(FUNCTIONS[name] + ("f" if dtype.bits == 32 else ""), arguments)


def converted(text: Text, source: DType, target: DType) -> Text:
    """Return a value converted to another element type, rounded to nearest even; to integers toward zero, saturated at their limits.

    Conversions in C++ to 32-bit integers are `cvt.rzi`, which saturates; NaN becomes 0. A NaN of float64 needs `TRUNCATED`.
    """
    if source == target:
        return text
    if source.kind == "float" and target.kind == "int" and target.bits < int32.bits:
        return saturated(converted(text, source, int32), target)
    if source in EIGHT_BITS:
        return converted(_cast("float", text), float32, target)
    if target in EIGHT_BITS:
        return Call(target.cuda, (text if source.cuda in ("float", "double") else converted(text, source, float32),))
    if source in (float16, bfloat16):
        return _widened(text, source, target)
    if target == float16:
        return Call(_TO_HALF[source.cuda], (text,))
    if target == bfloat16:
        return Call(_TO_BFLOAT[source.cuda], (text,))
    return _cast(target.cuda, text)


def saturated(text: Text, target: DType) -> Text:
    """Return an `int` as an element of an integer type: the nearest one that the type has."""
    if target == int32:
        return text
    low, high = target.limits
    return _cast(target.cuda, Call("min", (Call("max", (text, str(low))), str(high))))


TRUNCATED: Final = Function(
    "truncated",
    ("double x",),
    ("return x == x ? static_cast<int>(x) : 0;",),
    "x toward zero, saturated at 32 bits; NaN, which cvt.rzi.s32.f64 converts to the smallest integer, as 0",
    result="int",
)
"""The function for conversions of float64 to integers of at most 32 bits."""

TRUNCATED_TO_64_BITS: Final = Function(
    "truncated",
    ("double x",),
    ("return x == x ? static_cast<long long>(x) : 0;",),
    "x toward zero, saturated at 64 bits; NaN, which cvt.rzi.s64 converts to the smallest integer, as 0",
    result="long long",
)
"""The function for conversions of floats to int64."""


def widened(source: DType) -> Function:
    """The helper function that widens an 8-bit integer to an `int` operand, and hides its origin from NVVM.

    NVVM compiles sums of three products of such integers to `dp4a` with a zero byte, for which ptxas of CUDA 12.6, 13.0 and 13.5 sometimes
    generates wrong code (docs/decisions/0067-compilers.md). Tensor cores are the fast alternative.
    """
    note = "widen an 8-bit integer; the empty asm prevents a dp4a that ptxas miscompiles"
    return Function("widened", (f"{source.cuda} x",), ("int value = x;", 'asm("" : "+r"(value));', "return value;"), note, result="int")


def through_bytes(by: str, kind: DType) -> Function:
    """The helper function for a load or store (`by`: `__ldcs`, `__stcs`) of one 8-bit float as a byte, which CUDA lacks."""
    name, note = by.strip("_"), f"{by} for one 8-bit float, which CUDA lacks"
    if by.startswith("__ld"):
        byte = f"reinterpret_cast<unsigned char&>(value) = {by}(reinterpret_cast<const unsigned char*>(source));"
        return Function(name, (f"const {kind.cuda}* source",), (f"{kind.cuda} value;", byte, "return value;"), note, result=kind.cuda)
    store = f"{by}(reinterpret_cast<unsigned char*>(target), reinterpret_cast<unsigned char&>(value));"
    return Function(name, (f"{kind.cuda}* target", f"{kind.cuda} value"), (store,), note)


ACCUMULATED: Final = Function(
    "accumulated",
    ("float x",),
    ("return __fadd_rn(x, -0.0f);",),
    "x, read after wgmma_wait_group: ptxas would hoist the conversion above the wait and serialize the wgmma",
    result="float",
)
"""The function around an accumulator element that is converted alone. Adding -0 changes no number; no compiler removes it."""


PAIRS: Mapping[DType, tuple[str, str]] = {
    float16: ("__half2", "__floats2half2_rn"),
    bfloat16: ("__nv_bfloat162", "__floats2bfloat162_rn"),
}
"""For the 16-bit floats, the type of two adjacent values in a register, and the function that converts both from float."""


def _widened(text: Text, source: DType, target: DType) -> Text:
    """A 16-bit float converted to another element type."""
    name = "half" if source == float16 else "bfloat16"
    if target in (float16, bfloat16):
        return converted(Call(f"__{name}2float", (text,)), float32, target)
    inner = Call(f"__{name}2{'int_rz' if target.kind == 'int' else 'float'}", (text,))
    return inner if target.cuda in ("float", "int") else _cast(target.cuda, inner)
