"""Data and strategies shared by several tests."""

import importlib
import inspect
import pkgutil

import numpy as np

from fireiron import *
from fireiron import strategies
from fireiron.gpu.kernel import CompiledKernel
from fireiron.values.expr import constant
from fireiron.values.machine import WARPGROUP_ARCHITECTURE
from fireiron.values.tensor import MatrixLayout

ALL_NAMES = sorted(module.name for module in pkgutil.iter_modules(strategies.__path__) if not module.name.startswith("_"))
"""The library strategies."""


def target_of(name, other=None):
    """The target that a library strategy needs, or another one."""
    own = library(name).strategy.target
    return own if own == WARPGROUP_ARCHITECTURE else other


def library(name):
    """A module of the strategy library."""
    return importlib.import_module(f"fireiron.strategies.{name}")


OF_SOME_PROBLEMS = ("convolution", "convolution_input_gradient", "convolution_weight_gradient", "hopper_stream_k")
"""Those for one GEMM that need a view of images, or constant sizes and a new result. They have separate tests."""

OF_GPUS = ("all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce")
"""Those for the GPUs of a node, whose sizes are multiples of their number. `test_node` tests them."""

NAMES = [name for name in ALL_NAMES if library(name).strategy.start == MatMul and name not in (*OF_SOME_PROBLEMS, *OF_GPUS)]
"""Those for one GEMM of any size."""


def integers(shape, dtype, generator, low=-2, high=3):
    """Small integers in an element type, so that any order of adding them gives the same value."""
    return generator.integers(low, high, shape).astype(dtype.to_numpy())


def sizes_of_run_time(name, **multiples):
    """M, N and K as symbols; bounded for a batch, whose addresses would not fit 64 bits otherwise."""
    bound = {"high": 65536} if "batch" in inspect.signature(library(name).spec).parameters else {}
    return tuple(sym(dim, multiple_of=multiples.get(dim, 1), **bound) for dim in "MNK")


def stored(array, layout, xp=np, ld=None):
    """The array on a device in row- or column-major order or in that of strides, with a leading dimension of `ld` elements if given."""
    rank = array.ndim
    if isinstance(layout, MatrixLayout):
        order = layout.fastest_first(rank)[::-1]
    else:
        order = sorted(range(rank), key=lambda dim: -constant(layout.stride[dim]))
    *outer, inner = (array.shape[dim] for dim in order)
    view = xp.empty((*outer, ld or inner), dtype=array.dtype)[..., :inner].transpose([order.index(dim) for dim in range(rank)])
    view[...] = xp.asarray(array)
    return view


def simulated(strategy, target):
    """The kernel of a bound strategy, for the simulator alone, without NVRTC."""
    return CompiledKernel(strategy.program(target))


def called(kernel, *arrays, **options):
    """The kernel on NumPy inputs, each of which is first stored in the order of the kernel's parameter."""
    spec = kernel.program.spec
    return kernel(*(_ordered(spec, name, one) for name, one in zip(spec.inputs, arrays, strict=True)), **options)


def _ordered(spec, name, array):
    return np.asarray(array, order="C" if spec.operands[name].tensor.layout.order == "row" else "F")


SIZES = ((1, 1, 1), (128, 128, 64), (129, 127, 9), (100, 50, 30), (1000, 500, 300), (7, 260, 65))
"""Sizes at, below and above the tiles, most of them not multiples of anything."""
