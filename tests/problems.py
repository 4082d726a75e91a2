"""Data and strategies that several tests share."""

import importlib
import pkgutil

import numpy as np

from fireiron import *
from fireiron import strategies
from fireiron.gpu.kernel import CompiledKernel
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

NAMES = sorted(module.name for module in pkgutil.iter_modules(strategies.__path__) if not module.name.startswith("_"))
"""The library strategies."""


def target_of(name, other=None):
    """The target that a library strategy needs, or another."""
    own = library(name).strategy.target
    return own if own == WARPGROUP_ARCHITECTURE else other


def library(name):
    """A module of the strategy library."""
    return importlib.import_module(f"fireiron.strategies.{name}")


def integers(shape, dtype, generator, low=-2, high=3):
    """Small integers in an element type, so that every order of adding them gives the same value."""
    return generator.integers(low, high, shape).astype(dtype.to_numpy())


def stored(array, layout, xp=np, ld=None):
    """The array in row- or column-major order on a device, with a leading dimension of `ld` elements if given."""
    rows, columns = array.shape
    if layout.order == "row":
        whole = xp.empty((rows, ld or columns), dtype=array.dtype)
        view = whole[:, :columns]
    else:
        whole = xp.empty((columns, ld or rows), dtype=array.dtype).T
        view = whole[:rows, :]
    view[...] = xp.asarray(array)
    return view


def simulated(strategy, target):
    """The kernel of a bound strategy, for the simulator alone: NVRTC does not see it."""
    return CompiledKernel(strategy.program(target))


def called(kernel, *arrays, **options):
    """The kernel on NumPy inputs, each of which is first stored in the order that the kernel was made for."""
    spec = kernel.program.spec
    return kernel(*(_ordered(spec, name, one) for name, one in zip(spec.inputs, arrays, strict=True)), **options)


def _ordered(spec, name, array):
    return np.asarray(array, order="C" if spec.operands[name].tensor.layout.order == "row" else "F")


SIZES = ((1, 1, 1), (128, 128, 64), (129, 127, 9), (100, 50, 30), (1000, 500, 300), (7, 260, 65))
"""Sizes at, below and above the tiles, most of them no multiples of anything."""
