"""Specs of several outputs, made as a user makes them: what their tests share, and a file for the command line."""

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np

from fireiron import *
from fireiron.spec import Spec, check_size
from fireiron.values.expr import TRUE
from fireiron.values.tensor import Tensor, View, whole_view


@attrs.frozen(repr=False)
class CrossSpec(Spec):
    """`total = a + b`, `apart = a - b` cut to an integer, `turned = a` transposed: three types, three storages, two orders of dims."""

    title = "Cross"
    dims = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "a": ("m", "n"),
        "b": ("m", "n"),
        "total": ("m", "n"),
        "apart": ("m", "n"),
        "turned": ("n", "m"),
    }
    tile_dims = ("m", "n")
    outputs = ("total", "apart", "turned")

    a: View
    b: View
    total: View
    apart: View
    turned: View

    def reference(self, *inputs):
        a, b = inputs
        return a + b, (a - b).astype(np.int32), a.T.astype(np.float64)

    def perform(self, values, accumulate):
        a, b = values["a"], values["b"]
        return {"total": a + b, "apart": (a - b).astype(np.int32), "turned": np.swapaxes(a, 0, 1).astype(np.float64)}


@attrs.frozen(repr=False)
class AddedSpec(CrossSpec):
    """The same, added to what the outputs hold."""

    accumulate = TRUE

    def perform(self, values, accumulate):
        return {name: values[name] + more for name, more in CrossSpec.perform(self, values, accumulate).items()}


@attrs.frozen
class CrossInstruction(Executable):
    """All three for one element of a thread."""

    def performs(self):
        return "Cross(1,1)(GL,GL,GL,GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        fits = isinstance(spec, CrossSpec) and set(map(str, spec.sizes)) == {"1"} and spec.level.threads == 1
        return () if fits else (Mismatch("spec", self.performs(), str(spec)),)

    def cuda(self, printer, statement):
        a, b, total, apart, turned = (printer.element(statement, name) for name in CrossSpec.uses)
        return [f"{total} = {a} + {b};", f"{apart} = (int)({a} - {b});", f"{turned} = (double){a};"]


@attrs.frozen(repr=False)
class RowsSpec(Spec):
    """`total[m]` and `largest[m]` over `src[m, n]`: the outputs have fewer dimensions than the input."""

    title = "Rows"
    dims = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"src": ("m", "n"), "total": ("m",), "largest": ("m",)}
    tile_dims = ("m",)
    outputs = ("total", "largest")

    src: View
    total: View
    largest: View

    def reference(self, *inputs):
        (src,) = inputs
        return {"largest": src.max(axis=1), "total": src.sum(axis=1, dtype=np.float64).astype(np.float32)}

    def perform(self, values, accumulate):
        return {"total": values["src"].sum(axis=1), "largest": values["src"].max(axis=1)}


@attrs.frozen
class RowsInstruction(Executable):
    """A row of a thread."""

    def performs(self):
        return "Rows(1,N)(GL,GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        fits = isinstance(spec, RowsSpec) and str(spec.sizes[0]) == "1" and spec.level.threads == 1
        return () if fits else (Mismatch("spec", self.performs(), str(spec)),)

    def cuda(self, printer, statement):
        src = statement.operands["src"]
        elements = [str(printer.place(src, offset)) for offset in src.elements()]
        largest = elements[0]
        for element in elements[1:]:
            largest = f"fmaxf({largest}, {element})"
        return [f"{printer.element(statement, 'total')} = {' + '.join(elements)};", f"{printer.element(statement, 'largest')} = {largest};"]


def _view(name, sizes, dtype, layout):
    return whole_view(Tensor(name, tuple(sizes), dtype, GL, layout))


def cross(M, N, *, kind=CrossSpec, total=ColMajor, apart=RowMajor):
    """The spec of M x N elements at the level Kernel."""
    m, n = check_size(M, "M"), check_size(N, "N")
    rows = (
        ("a", (m, n), float32, RowMajor), ("b", (m, n), float32, ColMajor), ("total", (m, n), float32, total),
        ("apart", (m, n), int32, apart), ("turned", (n, m), float64, RowMajor),
    )  # fmt: skip
    return kind(Kernel, *(_view(*row) for row in rows))


def rows(M, N):
    """The spec of M rows of N elements at the level Kernel."""
    m, n = check_size(M, "M"), check_size(N, "N")
    return RowsSpec(Kernel, _view("src", (m, n), float32, RowMajor), *(_view(name, (m,), float32, ColMajor) for name in RowsSpec.outputs))


def by_elements(spec):
    """A strategy for `cross`, an element of a thread."""
    return spec.tile(8, 16).to(Block).tile(1, 1).to(Thread).done(CrossInstruction("CROSS"))


def by_rows(spec):
    """A strategy for `rows`, a row of a thread."""
    return spec.tile(8).to(Block).tile(1).to(Thread).done(RowsInstruction("ROWS"))


elements = by_elements(cross(40, 50))
lines = by_rows(rows(64, 5))


def drawn(spec, sizes=None, seed=5):
    """Integers for the inputs of a spec, as NumPy arrays of the storage that the spec says, by name."""
    generator, found = np.random.default_rng(seed), {}
    for name in spec.inputs:
        view = spec.operands[name]
        shape = tuple(int(size.evaluate(sizes or {})) for size in view.shape)
        found[name] = np.asarray(
            generator.integers(-9, 10, shape), view.dtype.to_numpy(), order="C" if view.tensor.layout.order == "row" else "F"
        )
    return found
