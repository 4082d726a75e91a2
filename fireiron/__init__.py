"""Fireiron: a scheduling language for GPU kernels, embedded in Python.

The folders of extensions are registries: `__all__` of each file lists its public names. Type checkers read
`__init__.pyi`, which `make names` writes.
"""

from fireiron import decomp, display, executable, folders, optim, refine, specs
from fireiron._version import VERSION as __version__
from fireiron.attention import attention as attention
from fireiron.conv2d import conv2d as conv2d
from fireiron.draw import draw, explore
from fireiron.elementwise import elementwise as elementwise
from fireiron.errors import (
    ArgumentError,
    CacheWarning,
    DecompositionError,
    FireironError,
    FireironWarning,
    IncompleteError,
    LaunchError,
    LayoutError,
    MatchError,
    ResourceError,
    SimulationError,
    StoreError,
    SynchronizationError,
    VerificationError,
    WrongResultError,
)
from fireiron.executable import INSTRUCTIONS, instruction
from fireiron.experts import experts as experts
from fireiron.export import Exported, export
from fireiron.function import Function as Function
from fireiron.function import function as function
from fireiron.ir.lanes import LaneMap
from fireiron.language import methods as _methods
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Child, Context, Decomposition, Executable, Expansion, Mismatch, Refinement
from fireiron.language.tunable import Derived, Tunable
from fireiron.latent_attention import latent_attention as latent_attention
from fireiron.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from fireiron.matmul import matmul
from fireiron.paged_attention import paged_attention as paged_attention
from fireiron.spec import AnySpec, Kind, Parameter, Spec
from fireiron.ssd import linear_attention as linear_attention
from fireiron.ssd import ssd as ssd
from fireiron.tune import tune
from fireiron.values import machine as _machine
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.distribution import Portion
from fireiron.values.expr import Const, Expr, Var, all_of, any_of, assume_positive, ceildiv, equal, minimum, sym
from fireiron.values.indirect import DimIndex, TableIndex
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.strides import ANY, AnyStride, Strides
from fireiron.values.tensor import ColMajor, Cut, Dim, Fixed, MatrixLayout, Mode, RowMajor, Tensor, Through, UnitMode, View

_STATED = (_machine, *specs.modules(), *refine.MODULES, *decomp.MODULES, *executable.MODULES)
"""The modules whose `__all__` lists public names of this package."""

globals().update(folders.public(_STATED))
_methods.add_verbs(decomp.MODULES, refine.MODULES)


def _html(value: object) -> str:
    from fireiron.notebook import html

    return html(value)


def _pretty(value: object) -> str:
    from fireiron.notebook import pretty

    return pretty(value)


display.set_display_functions(_html, _pretty)

_LATER = {
    "Choice": "tune.records",
    "Derivation": "derive",
    "Gpu": "cost.gpus",
    "KernelGraph": "kernel_graph",
    "OutdatedRecordWarning": "tune.records",
    "Prediction": "cost",
    "Record": "tune.records",
    "Records": "tune.records",
    "best_strategy": "tune.records",
    "predict": "cost",
    "schedule": "derive",
    "sweep": "measure.sweeps",
}
"""Names that no strategy needs, with the modules from which they are loaded at first use. `__all__` lacks those that load many modules."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'fireiron' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"fireiron.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER})


__all__ = [
    "ANY",
    "AffineIndex",
    "AnySpec",
    "AnyStride",
    "ArgumentError",
    "CacheWarning",
    "Child",
    "Choice",
    "ColMajor",
    "Const",
    "Context",
    "Cut",
    "Decomposition",
    "DecompositionError",
    "Derived",
    "DigitTerm",
    "Dim",
    "DimIndex",
    "Executable",
    "Expansion",
    "Exported",
    "Expr",
    "FireironError",
    "Fixed",
    "FireironWarning",
    "Gpu",
    "INSTRUCTIONS",
    "IncompleteError",
    "KernelGraph",
    "Kind",
    "LaneMap",
    "LaunchError",
    "Layout",
    "LayoutError",
    "MatchError",
    "MatrixLayout",
    "Mismatch",
    "Mode",
    "OutdatedRecordWarning",
    "Parameter",
    "Portion",
    "Prediction",
    "Record",
    "Records",
    "Refinement",
    "ResourceError",
    "RowMajor",
    "SimulationError",
    "Spec",
    "StoreError",
    "Strategy",
    "Strides",
    "Swizzle",
    "SynchronizationError",
    "TableIndex",
    "Tensor",
    "Through",
    "Tunable",
    "UnitMode",
    "Var",
    "VerificationError",
    "View",
    "WrongResultError",
    "all_of",
    "any_of",
    "assume_positive",
    "best_strategy",
    "ceildiv",
    "draw",
    "elementwise",
    "equal",
    "explore",
    "export",
    "instruction",
    "matmul",
    "minimum",
    "predict",
    "sweep",
    "sym",
    "tune",
    *(name for module in _STATED for name in getattr(module, "__all__", ())),
]
