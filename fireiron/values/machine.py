"""The machine as values: element types, memories, levels of threads, architectures with their limits.

The compiler does not branch on them: a new level, memory or architecture is a new value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fireiron.errors import ArgumentError, shown
from fireiron.values.aliases import architecture_hint, dtype_hint
from fireiron.values.level import GPU, Block, Kernel, Lane, Level, Node, QuadPair, Thread, Warp, Warpgroup
from fireiron.values.level import LEVELS as LEVELS
from fireiron.values.region import SHARED, Region
from fireiron.values.sharer import BLOCK, GRID, THREAD, Sharer, as_sharer
from fireiron.values.typed import check_types


def as_integer(value: object) -> int | None:
    """The value as a plain integer, also from NumPy; None for anything else, including truth values."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]  # a plain int, even from a subclass of int
    except TypeError:
        return None


def _text(owner: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ArgumentError(f"{type(owner).__name__}: {attribute.name} must be a non-empty string", got=value)


def _count(least: int = 0) -> Callable[[Any, attrs.Attribute[Any], object], None]:
    def check(owner: Any, attribute: attrs.Attribute[Any], value: object) -> None:
        if type(value) is not int or value < least:
            raise ArgumentError(f"{type(owner).__name__}: {attribute.name} must be an integer of at least {least}", got=value)

    return check


@attrs.frozen(repr=False)
class DType:
    """An element type.

    `bits` is its size; `kind` is `"float"` or `"int"`; `cuda` is its name in CUDA C++; `numpy` is the name of the NumPy type (bfloat16 and
    the 8-bit floats come from `ml_dtypes`); `mantissa` is the number of significand bits of a float, including the hidden one. Inputs may
    also be arrays of the types in `numpy_aliases`, NumPy names of types with the same storage.
    """

    name: str = attrs.field(validator=_text)
    bits: int = attrs.field(validator=_count(8))
    kind: str = attrs.field(validator=_text)
    cuda: str = attrs.field(validator=_text)
    numpy: str = attrs.field(validator=_text)
    mantissa: int = attrs.field(default=0, validator=_count())
    numpy_aliases: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if self.kind not in ("float", "int"):
            raise ArgumentError(f"element type {self.name}: unknown kind", got=self.kind, legal=["float", "int"])
        if self.bits % 8:
            raise ArgumentError(f"element type {self.name}: {self.bits} bits are not a multiple of 8", legal="8 16 32 64")

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.bits // 8

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer of the type."""
        least = 0 if self.numpy.startswith("u") else -(1 << (self.bits - 1))
        return least, least + (1 << self.bits) - 1

    def to_numpy(self) -> Any:
        """The NumPy dtype; for bfloat16 and the 8-bit floats an `ArgumentError` without the package `ml_dtypes`."""
        import numpy

        if self.numpy not in _ML_DTYPES:
            return numpy.dtype(self.numpy)
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError(f"{self.name} arrays need the package ml_dtypes", hint="pip install 'fireiron[bf16]'") from None
        return numpy.dtype(getattr(ml_dtypes, self.numpy))

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

float64 = DType("float64", 64, "float", "double", "float64", 53)
"""IEEE 754 double precision."""

float32 = DType("float32", 32, "float", "float", "float32", 24)
"""IEEE 754 single precision: the default element type of specs."""

float16 = DType("float16", 16, "float", "__half", "float16", 11)
"""IEEE 754 half precision."""

bfloat16 = DType("bfloat16", 16, "float", "__nv_bfloat16", "bfloat16", 8)
"""The upper half of a float32: its range, with 8 bits of precision."""

tf32 = DType("tf32", 32, "float", "float", "float32", 11)
"""A float32 of which a matrix instruction reads the upper 19 bits: it truncates the last 13 bits of the mantissa. In memory all 32 bits are
kept: loads, copies and conversions from float32 to tf32 change nothing.
"""

float8_e4m3 = DType("float8_e4m3", 8, "float", "__nv_fp8_e4m3", "float8_e4m3fn", 4)
"""8-bit floats with 4 bits of precision, up to 448. Formulas compute with them in float32; conversions to them saturate."""

float8_e5m2 = DType("float8_e5m2", 8, "float", "__nv_fp8_e5m2", "float8_e5m2", 3)
"""8-bit floats with 3 bits of precision, up to 57344, and infinity. Formulas compute with them in float32; conversions to them saturate."""

int64 = DType("int64", 64, "int", "long long", "int64")
"""Signed 64-bit integers, such as the labels and indices of PyTorch; elementwise formulas and copies access them."""

int32 = DType("int32", 32, "int", "int", "int32")
"""Signed 32-bit integers; sums wrap around."""

int8 = DType("int8", 8, "int", "signed char", "int8")
"""Signed bytes; MMAs accumulate their products in int32."""

uint8 = DType("uint8", 8, "int", "unsigned char", "uint8", numpy_aliases=("bool",))
"""Bytes, mainly for masks; threads convert them to other types. Boolean arrays are stored as bytes 0 or 1, so they can be read as uint8."""

DTYPES: tuple[DType, ...] = (float64, float32, float16, bfloat16, int64, int32, int8, uint8, tf32, float8_e4m3, float8_e5m2)

_BY_NAME = {name: dtype for dtype in reversed(DTYPES) for name in (dtype.name, *dtype.numpy_aliases)}

_SMALL = (float8_e4m3, float8_e5m2, int8, uint8)

WIDER: Mapping[DType, tuple[DType, ...]] = {**dict.fromkeys(_SMALL, (float16, bfloat16)), float16: (float32,), bfloat16: (float32,)}
"""Other types that have all numbers of a type, in which matrix instructions multiply."""

MATRIX_ONLY: tuple[DType, ...] = (tf32, float8_e4m3, float8_e5m2)
"""Element types of which only matrix instructions multiply two matrices; formulas compute with 8-bit floats in float32."""


def _name_of_library_type(value: object) -> object:
    """The name of an element type of NumPy, PyTorch or JAX, such as `numpy.float32` or `torch.float16`; other values as they are."""
    module = type(value).__module__ if not isinstance(value, type) else value.__module__
    if module.split(".")[0] not in ("numpy", "torch", "jax", "ml_dtypes"):
        return value
    return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value).removeprefix("torch.")


def as_dtype(value: object) -> DType:
    """An element type, given as a value, by name, or as that of NumPy, PyTorch or JAX; an `ArgumentError` that lists the names for any
    other. Truth values are `uint8`.
    """
    if isinstance(value, DType):
        return value
    known = _BY_NAME.get(value) if isinstance(value, str) else None
    if known is not None:
        return known
    value = "bool" if value is bool else _name_of_library_type(value)
    for dtype in DTYPES:
        if isinstance(value, str) and value in (dtype.name, *dtype.numpy_aliases):
            return dtype
    names = [dtype.name for dtype in DTYPES]
    raise ArgumentError("unknown element type", got=value, legal=names, hint=dtype_hint(value, names))


@attrs.frozen(repr=False)
class Memory:
    """A memory that tensors can be stored in.

    - `depth` orders memories from far to near (loads go to greater depth).
    - `shared_by` specifies the threads that share one copy, as a `Sharer` or its name (`"grid"`, `"block"`, `"thread"`). Instructions,
      checks and the printer depend only on it, so a new memory behaves like those with the same sharers. A memory with other sharers is a
      legal value, but no tensor can be in it yet.
    - `capacity_name` is its name in messages. `fragment` is the (m, n, k) of a memory of WMMA fragments.
    - `by_value`: one element that is passed to the kernel as a parameter, read-only and without an address.
    - `is_coordinate`: the memory of coordinate tensors, which are not stored: the value of an element is its coordinate.
    - `region`: the address space of memory that a block shares: shared memory, or another region.

    >>> from fireiron import *
    >>> near = Memory("NEAR", 1, "block", "shared memory")
    >>> near.like(SH), near.private
    (True, False)
    """

    name: str = attrs.field(validator=_text)
    depth: int = attrs.field(validator=_count())
    shared_by: Sharer = attrs.field(converter=as_sharer)
    capacity_name: str = attrs.field(validator=_text)
    fragment: tuple[int, int, int] | None = None
    by_value: bool = False
    is_coordinate: bool = False
    region: Region = SHARED

    def __attrs_post_init__(self) -> None:
        check_types(self)

    @property
    def private(self) -> bool:
        """Whether each thread has a separate part: a tensor in this memory is distributed over threads."""
        return self.shared_by.name == THREAD.name

    @property
    def of_block(self) -> bool:
        """Whether each block has one copy, which its threads share."""
        return self.shared_by.name == BLOCK.name

    @property
    def in_shared(self) -> bool:
        """Whether it is part of the block's shared memory, not of another region."""
        return self.of_block and self.region == SHARED

    @property
    def of_grid(self) -> bool:
        """Whether all blocks share it; tensors in it are kernel arguments."""
        return self.shared_by.name == GRID.name and not self.is_coordinate

    def like(self, other: Memory) -> bool:
        """Whether instructions for another memory work for this one: it has the same sharers, and single elements or the same fragments."""
        return self._kind == other._kind

    @property
    def _kind(self) -> tuple[object, ...]:
        return (self.shared_by, self.fragment, self.by_value, self.is_coordinate, self.region)

    @property
    def label(self) -> str:
        """The suffix of variables in it: `sh`, `rf`, `fr`."""
        return self.name.partition("<")[0].lower()

    def __repr__(self) -> str:
        return self.name if self.fragment is None else f"FR{self.fragment}"

    __str__ = __repr__


GL = Memory("GL", 0, "grid", "global memory")
"""Global memory: the kernel's arrays, which all blocks share."""

SH = Memory("SH", 1, "block", "shared memory")
"""Shared memory: one copy per block; the compiler inserts the barriers between writers and readers."""

RF = Memory("RF", 3, "thread", "registers")
"""Registers: each thread has its own part, determined by the tiles and the instructions that follow."""

MEMORIES: tuple[Memory, ...] = (GL, SH, RF)

VAL = Memory("VAL", 0, "grid", "the kernel's parameters", by_value=True)
"""The memory of an operand without dimensions that is passed by value: `const float alpha`."""

COORD = Memory("COORD", 0, "grid", "no memory", is_coordinate=True)
"""The memory of coordinate tensors, for which no array is stored: element n is n."""

FRAGMENTS: tuple[Memory, ...] = tuple(
    Memory(f"FR<{m},{n},{k}>", 2, "thread", "WMMA fragments", (m, n, k))
    for m, n, k in ((16, 16, 16), (32, 8, 16), (8, 32, 16), (16, 16, 8), (8, 8, 4))
)
"""Registers of a warp that only WMMA functions access, by the shape of the MMA that they are for (Fireiron, section 4.3).

The shapes are those of the CUDA C++ Programming Guide, "Element Types and Matrix Sizes".
"""

NAMED_MEMORIES: tuple[Memory, ...] = (*MEMORIES, *FRAGMENTS, VAL, COORD)
"""Memories that stored and printed texts contain by name."""


def FR(m: int, n: int, k: int) -> Memory:
    """The memory of WMMA fragments for MMAs of shape m x n x k, between SH and RF; the paper's `FR<m,n,k>`.

    An `ArgumentError` lists the shapes of WMMA if it is none of them.

    >>> print(FR(16, 16, 16).name)
    FR<16,16,16>
    """
    for memory in FRAGMENTS:
        if memory.fragment == (as_integer(m), as_integer(n), as_integer(k)):
            return memory
    raise ArgumentError(f"FR({shown(m)}, {shown(n)}, {shown(k)}): WMMA has no such shape", legal=[repr(memory) for memory in FRAGMENTS])


@attrs.frozen(repr=False)
class Architecture:
    """A target, with the limits of the CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".

    `shared_per_block` is the largest dynamic shared memory of one block in bytes (opt-in above 48 KiB), `shared_per_sm` that of an SM;
    `registers` counts the 32-bit registers of an SM.
    """

    name: str = attrs.field(validator=_text)
    capability: int = attrs.field(validator=_count(50))
    shared_per_block: int = attrs.field(validator=_count())
    shared_per_sm: int = attrs.field(validator=_count())
    threads_per_sm: int = attrs.field(validator=_count(1))
    blocks_per_sm: int = attrs.field(default=32, validator=_count(1))
    threads_per_block: int = attrs.field(default=1024, validator=_count(1))
    registers_per_thread: int = attrs.field(default=255, validator=_count(1))
    registers_per_sm: int = attrs.field(default=65536, validator=_count(1))
    static_shared: int = attrs.field(default=48 * 1024, validator=_count())
    grid_x: int = attrs.field(default=2**31 - 1, validator=_count(1))

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


def _architecture(name: str, block_kib: int, sm_kib: int, threads: int, blocks: int = 32) -> Architecture:
    return Architecture(name, int(name[3:].rstrip("a")), block_kib * 1024, sm_kib * 1024, threads, blocks)


ARCHITECTURES: tuple[Architecture, ...] = (
    _architecture("sm_50", 48, 64, 2048),
    _architecture("sm_52", 48, 96, 2048),
    _architecture("sm_53", 48, 64, 2048),
    _architecture("sm_60", 48, 64, 2048),
    _architecture("sm_61", 48, 96, 2048),
    _architecture("sm_70", 96, 96, 2048),
    _architecture("sm_75", 64, 64, 1024, 16),
    _architecture("sm_80", 163, 164, 2048),
    _architecture("sm_86", 99, 100, 1536, 16),
    _architecture("sm_89", 99, 100, 1536, 24),
    _architecture("sm_90", 227, 228, 2048),
    _architecture("sm_90a", 227, 228, 2048),
    _architecture("sm_100", 227, 228, 2048),
    _architecture("sm_120", 99, 100, 1536, 24),
)
"""The supported targets, oldest first."""

DEFAULT_ARCHITECTURE = "sm_90"
"""The default target."""

WARPGROUP_ARCHITECTURE = "sm_90a"
"""The target with warpgroup instructions."""


def as_architecture(value: object) -> Architecture:
    """An architecture, given as a value or by name (`"sm_80"`); an `ArgumentError` that lists the names for any other."""
    if isinstance(value, Architecture):
        return value
    for architecture in ARCHITECTURES:
        if isinstance(value, str) and value == architecture.name:
            return architecture
    names = [architecture.name for architecture in ARCHITECTURES]
    raise ArgumentError("unknown architecture", got=value, legal=names, hint=architecture_hint(value, names))


__all__ = [
    "ARCHITECTURES",
    "COORD",
    "FR",
    "GL",
    "GPU",
    "RF",
    "SH",
    "VAL",
    "Architecture",
    "Block",
    "DType",
    "Kernel",
    "Lane",
    "Level",
    "Memory",
    "Node",
    "QuadPair",
    "Thread",
    "Warp",
    "Warpgroup",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "int8",
    "int32",
    "int64",
    "tf32",
    "uint8",
]
