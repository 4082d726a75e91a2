"""Names with a meaning in CUDA C++, which generated code must not bind.

Sources: C++20 [lex.key], [lex.name]; CUDA C++ Programming Guide, "Built-in Variables", "Built-in Vector Types"; CUDA Math API, single and
double precision; the functions of the C library that NVRTC and nvcc declare for device code.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS: Final = _words("""
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl concept const
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast else
    enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
""")
"""The keywords of C++20 ([lex.key])."""

_VECTOR_TYPES: Final = frozenset(
    f"{prefix}{kind}{lanes}"
    for prefix in ("", "make_")
    for kind in ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong", "ulonglong", "float", "double")
    for lanes in range(1, 5)
)

BUILT_INS: Final = _VECTOR_TYPES | _words("""
    threadIdx blockIdx blockDim gridDim warpSize dim3 half half2 nv_bfloat16 nv_bfloat162 nvcuda cuda std cooperative_groups
    size_t ptrdiff_t clock_t nullptr_t max_align_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
    NULL INFINITY NAN HUGE_VAL HUGE_VALF assert offsetof cudaError_t cudaStream_t CUtensorMap
""")
"""Variables, types, namespaces and macros. (NVRTC has neither INFINITY nor NAN: the printer builds such constants from their bits.)"""

_MATH: Final = _words("""
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc erfcinv erfcx
    erfinv exp exp10 exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp lgamma llrint llround log
    log10 log1p log2 logb lrint lround max min modf nan nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow rcbrt remainder
    remquo rhypot rint rnorm rnorm3d rnorm4d round rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt tan tanh tgamma trunc y0
    y1 yn
""")
"""Functions of double precision; those of single precision end in `f`."""

FUNCTIONS: Final = (
    _MATH
    | {f"{name}f" for name in _MATH}
    | _words("""
    abs labs llabs isfinite isinf isnan signbit umin umax llmin llmax ullmin ullmax saturate
    atomicAdd atomicSub atomicExch atomicMin atomicMax atomicInc atomicDec atomicCAS atomicAnd atomicOr atomicXor
    main printf malloc free memcpy memset memcmp memmove clock clock64 alloca strlen strcmp strcpy rand srand time exit abort signal
    tex1D tex2D tex3D surf1Dread surf2Dread
""")
)
"""Functions that every compilation unit declares, so that no kernel can have their names."""

PRINTED: Final = _words("""
    abs llabs min max fma fmaf fabs fabsf fmax fmaxf fmin fminf cos cosf erf erff exp expf exp2 exp2f floor floorf log logf log1p log1pf
    log2 log2f rint rintf rsqrt rsqrtf sin sinf sqrt sqrtf tanh tanhf atomicAdd atomicInc atomicExch
""")
"""Functions that generated code calls; a parameter with such a name would hide them."""

TAKEN: Final = KEYWORDS | BUILT_INS | FUNCTIONS
"""Names that generated code does not use for its own variables."""


def is_taken(name: str) -> bool:
    """Whether an operand cannot have this name: it has a meaning in generated code, or is reserved for the implementation ([lex.name]).

    >>> [is_taken(name) for name in ("expf", "blockIdx", "__half", "acc", "y0")]
    [True, True, True, False, False]
    """
    return name in KEYWORDS or name in BUILT_INS or name in PRINTED or name.startswith("__")


__all__ = ["BUILT_INS", "FUNCTIONS", "KEYWORDS", "PRINTED", "TAKEN", "is_taken"]
