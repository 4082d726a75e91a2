"""Define GPUs by the rates that the cost model uses, with the source of each number.

Rates are at the boost clock. `tensor` is the rate that `mma.sync` reaches, in floating-point (integer) operations per clock and SM, by the
type of A. From Volta to Ada, this is the peak of the data sheet. On Hopper, `wgmma` is closest to that peak.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.machine import Architecture, as_architecture


def _pairs(rates: Mapping[str, int] | tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(rates.items())) if isinstance(rates, Mapping) else rates


WGMMA_SUFFIX: Final = " by wgmma"
"""Suffix of a type name, for MMA operands that a warpgroup reads from shared memory."""


def wgmma_rate_name(dtype: str) -> str:
    """Return the name of the `wgmma` rate for operands of a type."""
    return dtype + WGMMA_SUFFIX


@attrs.frozen(repr=False)
class Gpu:
    """A model of GPU.

    Attributes:
        name: the name of the model.
        architecture: the name of the best target that it runs.
        multiprocessors: the number of SMs.
        clock_mhz: the boost clock.
        memory_gb_s: the bandwidth of device memory in 10^9 bytes per second.
        l2_bytes: the size of the L2 cache.
        l2_clock_bytes: the bytes per clock from L2 to all SMs.
        l1_bytes: the bytes of an SM that L1 and shared memory divide (L1 only, if shared memory is separate).
        lanes, half_lanes, double_lanes: multiply-adds per SM and clock, in float32, float16 (in pairs) and float64.
        tensor: the operations of an SM's tensor cores per clock (two per multiply-add). They are pairs of a type and a rate. The type is
            the type of A for `mma.sync`, and `wgmma_rate_name(type)` for `wgmma`.
        link_gb_s: the bandwidth of reads from the memory of another GPU of the node, while the other one reads as fast, in 10^9 bytes per
            second and direction; 0 without a link.
        barrier_us: the time of a barrier of all GPUs of a node in microseconds.
        sources: the sources of the numbers.
        guessed: the fields without a source.
    """

    name: str
    architecture: str
    multiprocessors: int
    clock_mhz: int
    memory_gb_s: float
    l2_bytes: int
    l2_clock_bytes: int
    l1_bytes: int
    lanes: int
    half_lanes: int = 0
    double_lanes: int = 2
    tensor: tuple[tuple[str, int], ...] = attrs.field(default=(), converter=_pairs)
    sources: str = ""
    guessed: tuple[str, ...] = ()
    link_gb_s: float = 0.0
    barrier_us: float = 0.0

    @property
    def clock(self) -> float:
        """Clocks per microsecond."""
        return float(self.clock_mhz)

    def tensor_rate(self, dtype: str) -> int:
        """Return the operations of an SM's tensor cores per clock, for operands of a type; 0 if unsupported."""
        rates = dict(self.tensor)
        return rates.get(dtype) or rates.get(dtype.removesuffix(WGMMA_SUFFIX), 0)

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


KIB: Final = 1024
MIB: Final = 1024 * 1024


def _tensor(half: int, *, bfloat16: bool = True, tf32: int = 0, int8: int = 0, float8: int = 0, float64: int = 0) -> dict[str, int]:
    rates = {"float16": half, "bfloat16": half if bfloat16 else 0, "tf32": tf32, "int8": int8, "float64": float64}
    rates |= {"float8_e4m3": float8, "float8_e5m2": float8}
    return {name: rate for name, rate in rates.items() if rate}


_WGMMA = {wgmma_rate_name(name): rate for name, rate in _tensor(3000, tf32=1500, int8=6000, float8=6000).items()}

_HOPPER_TENSOR = {**_tensor(2370, tf32=1185, int8=4740, float8=4740, float64=256), **_WGMMA}
"""Measured rates of the tensor cores of an H200 at 1980 MHz.

float16 `mma.sync` with operands in registers reaches about 620 TFLOP/s, 58 % of the data sheet's peak, in an experiment of this project
whose code is not stored (perf/results, tensor cores, README). float16 `wgmma` reaches 784 TFLOP/s, the rate of the fastest GEMMs
(perf/results/2026-11-22-h200-hopper). The data sheet specifies 4096 operations, but the clock drops under such a load. The rates of other
types are guessed in proportion.
"""

LINK_GB_S: Final = 333.0
"""Reads of 16 bytes by all SMs of two H200 that are connected by 18 NVLinks, in both directions; 369 in one direction."""

BARRIER_US: Final = 2.5
"""A barrier of two H200 as a node of a CUDA graph."""

GPUS: Final[tuple[Gpu, ...]] = (
    Gpu(
        "H200 SXM", "sm_90a", 132, 1980, 4800, 60 * MIB, 8448, 256 * KIB, 128, 256, 64, _HOPPER_TENSOR,
        "NVIDIA H200 data sheet; NVIDIA H100 Tensor Core GPU Architecture white paper; L2 and clock as the driver reports; "
        "mma.sync and the link of two GPUs measured by this project",
        ("l2_clock_bytes",), LINK_GB_S, BARRIER_US,
    ),
    Gpu(
        "H100 SXM", "sm_90a", 132, 1980, 3350, 50 * MIB, 8448, 256 * KIB, 128, 256, 64, _HOPPER_TENSOR,
        "NVIDIA H100 data sheet; NVIDIA H100 Tensor Core GPU Architecture white paper",
        ("l2_clock_bytes", "tensor", "link_gb_s", "barrier_us"), LINK_GB_S, BARRIER_US,
    ),
    Gpu(
        "A100 SXM", "sm_80", 108, 1410, 1555, 40 * MIB, 5120, 192 * KIB, 64, 256, 32,
        _tensor(2048, tf32=1024, int8=4096, float64=128), "NVIDIA A100 Tensor Core GPU Architecture white paper (40 GB)",
    ),
    Gpu(
        "L40S", "sm_89", 142, 2520, 864, 96 * MIB, 4096, 128 * KIB, 128, 128, 2,
        _tensor(1024, tf32=512, int8=2048, float8=2048), "NVIDIA L40S data sheet; NVIDIA Ada GPU Architecture white paper",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "RTX 4090", "sm_89", 128, 2520, 1008, 72 * MIB, 4096, 128 * KIB, 128, 128, 2,
        _tensor(512, tf32=256, int8=2048, float8=1024), "NVIDIA Ada GPU Architecture white paper (float16 with float32 accumulators)",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "RTX 3090", "sm_86", 82, 1695, 936, 6 * MIB, 3072, 128 * KIB, 128, 128, 2,
        _tensor(512, tf32=256, int8=2048), "NVIDIA Ampere GA102 GPU Architecture white paper (float16 with float32 accumulators)",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "V100 SXM2", "sm_70", 80, 1530, 900, 6 * MIB, 2048, 128 * KIB, 64, 128, 32,
        _tensor(1024, bfloat16=False), "NVIDIA Tesla V100 GPU Architecture white paper",
    ),
    Gpu(
        "T4", "sm_75", 40, 1590, 320, 4 * MIB, 1280, 96 * KIB, 64, 128, 2,
        _tensor(1024, bfloat16=False, int8=2048), "NVIDIA Turing GPU Architecture white paper; NVIDIA T4 data sheet",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "P100 SXM2", "sm_60", 56, 1480, 732, 4 * MIB, 2048, 24 * KIB, 64, 128, 32,
        {}, "NVIDIA Tesla P100 white paper",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "GTX 1080 Ti", "sm_61", 28, 1582, 484, 2816 * KIB, 1408, 48 * KIB, 128, 2, 4,
        {}, "NVIDIA GeForce GTX 1080 white paper; NVIDIA GeForce product page",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "TITAN X (Maxwell)", "sm_52", 24, 1075, 336.5, 3 * MIB, 768, 24 * KIB, 128, 0, 4,
        {}, "NVIDIA GeForce GTX TITAN X product page; NVIDIA GeForce GTX 980 white paper",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "GTX 750 Ti", "sm_50", 5, 1085, 86.4, 2 * MIB, 320, 24 * KIB, 128, 0, 4,
        {}, "NVIDIA GeForce GTX 750 Ti white paper",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "Tegra X1", "sm_53", 2, 998, 25.6, 256 * KIB, 128, 24 * KIB, 128, 256, 4,
        {}, "NVIDIA Tegra X1 white paper",
        ("l2_clock_bytes",),
    ),
    Gpu(
        "B200", "sm_100", 148, 1965, 8000, 126 * MIB, 10240, 256 * KIB, 128, 256, 64, _HOPPER_TENSOR,
        "NVIDIA Blackwell Architecture technical brief", ("clock_mhz", "l2_bytes", "l2_clock_bytes", "tensor"),
    ),
    Gpu(
        "RTX 5090", "sm_120", 170, 2407, 1792, 96 * MIB, 5120, 128 * KIB, 128, 128, 2,
        _tensor(512, tf32=256, int8=2048, float8=1024),
        "NVIDIA RTX Blackwell GPU Architecture white paper (float16 with float32 accumulators)",
        ("l2_clock_bytes",),
    ),
)  # fmt: skip
"""The GPUs that this package knows. The first GPU of an architecture is its default."""


def as_gpu(value: object) -> Gpu:
    """Return a GPU, given as a value or by name: a name of `GPUS` in any case, with or without the driver's additions.

    Raises: `ArgumentError` with the known names, for other values.

    >>> as_gpu("NVIDIA H200")
    H200 SXM
    """
    if isinstance(value, Gpu):
        return value
    if isinstance(value, str) and value.strip():
        wanted = _words(value)
        for gpu in GPUS:
            model = tuple(word for word in _words(gpu.name) if word not in _FORMS)
            if wanted[: len(model)] == model:
                return gpu
    raise ArgumentError("unknown GPU", got=value, legal=", ".join(gpu.name for gpu in GPUS), hint="or a custom Gpu(...)")


def of_architecture(architecture: Architecture | str) -> Gpu:
    """Return the default GPU of an architecture: the first in `GPUS` with its compute capability.

    Raises: `ArgumentError` if there is none.

    >>> of_architecture("sm_90a")
    H200 SXM
    """
    target = as_architecture(architecture)
    for gpu in GPUS:
        if as_architecture(gpu.architecture).capability == target.capability:
            return gpu
    raise ArgumentError(f"no GPU of {target} is known", hint="Gpu(...), with the numbers of its data sheet")


_MAKERS: Final = ("nvidia", "geforce", "tesla")
_FORMS: Final = ("sxm", "sxm2", "maxwell")


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name that distinguish GPUs."""
    return tuple(word for word in re.split(r"[\s()-]+", name.lower()) if word and word not in _MAKERS)
