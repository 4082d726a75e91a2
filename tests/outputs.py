"""Specs with several outputs, as a user writes them: shared by their tests, and a file for the command line."""

import attrs
import numpy as np

from fireiron import *
from fireiron.spec import Spec, check_size
from fireiron.values.expr import FALSE, TRUE
from fireiron.values.tensor import Tensor, whole_view

CROSS = Kind("Cross", "total[m,n] = a[m,n] + b[m,n]; apart[m,n] = a[m,n] - b[m,n]; transposed[n,m] = a[m,n]")
"""A sum, a difference truncated to an integer, and a transposed copy: three types, three storage orders, two dimension orders."""

ADDED = Kind("Cross", "total[m,n] += a[m,n] + b[m,n]; apart[m,n] += a[m,n] - b[m,n]; transposed[n,m] += a[m,n]")
"""The same, accumulated into the outputs."""

ROWS = Kind("Rows", "total[m] = sum(n, src[m,n]); largest[m] = max(n, src[m,n])")
"""The outputs have fewer dimensions than the input."""


@attrs.frozen
class CrossInstruction(Executable):
    """All three for one element per thread."""

    def performs(self):
        return "Cross(1,1)(GL,GL,GL,GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        fits = spec.kind in (CROSS, ADDED) and set(map(str, spec.sizes)) == {"1"} and spec.level.threads == 1
        return () if fits else (Mismatch("spec", self.performs(), str(spec)),)

    def cuda(self, printer, statement):
        a, b, total, apart, transposed = (printer.element(statement, name) for name in statement.spec.uses)
        return [f"{total} = {a} + {b};", f"{apart} = (int)({a} - {b});", f"{transposed} = (double){a};"]


@attrs.frozen
class RowsInstruction(Executable):
    """One row per thread."""

    def performs(self):
        return "Rows(1,N)(GL,GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        fits = spec.kind == ROWS and str(spec.sizes[0]) == "1" and spec.level.threads == 1
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


def cross(M, N, *, kind=CROSS, total=ColMajor, apart=RowMajor, spec_class=Spec):
    """The spec of M x N elements at the level Kernel; `spec_class` is its class."""
    m, n = check_size(M, "M"), check_size(N, "N")
    rows = (
        ("a", (m, n), float32, RowMajor), ("b", (m, n), float32, ColMajor), ("total", (m, n), float32, total),
        ("apart", (m, n), int32, apart), ("transposed", (n, m), float64, RowMajor),
    )  # fmt: skip
    return spec_class(Kernel, kind, tuple(_view(*row) for row in rows), accumulate=TRUE if kind == ADDED else FALSE)


def rows(M, N):
    """The spec of M rows of N elements at the level Kernel."""
    m, n = check_size(M, "M"), check_size(N, "N")
    return ROWS.starter.on(
        Kernel, _view("src", (m, n), float32, RowMajor), *(_view(name, (m,), float32, ColMajor) for name in ("total", "largest"))
    )


def by_elements(spec):
    """A strategy for `cross`, one element per thread."""
    return spec.tile(8, 16).to(Block).tile(1, 1).to(Thread).done(CrossInstruction("CROSS"))


def by_rows(spec):
    """A strategy for `rows`, one row per thread."""
    return spec.tile(8).to(Block).tile(1).to(Thread).done(RowsInstruction("ROWS"))


elements = by_elements(cross(40, 50))
lines = by_rows(rows(64, 5))


def drawn(spec, sizes=None, seed=5):
    """Integers for the inputs of a spec, as NumPy arrays with the spec's storage, by name."""
    generator, arrays = np.random.default_rng(seed), {}
    for name in spec.inputs:
        view = spec.operands[name]
        shape = tuple(int(size.evaluate(sizes or {})) for size in view.shape)
        arrays[name] = np.asarray(
            generator.integers(-9, 10, shape), view.dtype.to_numpy(), order="C" if view.tensor.layout.order == "row" else "F"
        )
    return arrays
