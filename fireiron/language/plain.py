"""The plain form of a spec: no dimensions of one element, and a matmul of m x k, k x n and m x n matrices.

Instructions perform specs on matrices. One matrix of a batch is a matrix, and a transposed matrix is a matrix with the other storage order.
So a spec that matches no instruction is also compared in its plain form.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.spec import Spec
from fireiron.values.expr import ONE
from fireiron.values.tensor import View


def plain(spec: Spec) -> Spec:
    """Return the same work as a spec on matrices; the spec itself if it has no other plain form.

    >>> from fireiron import *
    >>> print(plain(MatMul(1, 16, 8, 16, signature="bkm,bnk->bnm")(GL, GL, GL)(Block)))
    MatMul(8,16,16)(GL,GL,GL)(Block)
    """
    if spec.contracts and not spec.multiplies:
        return _matmul(spec) or spec
    if (spec.copies or spec.fills) and len(spec.dims) > 2:
        return without_ones(spec)
    return spec


def roles(spec: Spec) -> tuple[str, str, str] | None:
    """Return the dimensions of a contraction that are m, n and k of a plain matmul; None if further dimensions have several elements.

    A dimension of all operands can be any of these if it has one element.
    """
    uses = {name: frozenset(dims) for name, dims in spec.uses.items()}
    wide = [dim for dim in spec.dims if spec.size(dim) != ONE]
    mnk: list[str] = []
    for has, has_not in (("AC", "B"), ("BC", "A"), ("AB", "C")):
        shared = [dim for dim in spec.dims if all(dim in uses[name] for name in has) and dim not in mnk]
        own = [dim for dim in shared if dim not in uses[has_not]]
        best = [*(dim for dim in own if dim in wide), *reversed(own), *(dim for dim in shared if dim not in wide)]
        if not best:
            return None
        mnk.append(best[0])
    m, n, k = mnk
    return (m, n, k) if set(wide) <= set(mnk) else None


def _matmul(spec: Spec) -> Spec | None:
    """Return a contraction as the product of two matrices."""
    mnk = roles(spec)
    if mnk is None:
        return None
    m, n, k = mnk
    views = (_view(spec, "A", (m, k)), _view(spec, "B", (k, n)), _view(spec, "C", (m, n)))
    labels = tuple(spec.labels[spec.dims.index(dim)] for dim in mnk)
    return attrs.evolve(spec, views=views, signature="", names=() if labels == ("m", "n", "k") else labels)


def _view(spec: Spec, operand: str, dims: Sequence[str]) -> View:
    return spec.operands[operand].only([spec.uses[operand].index(dim) for dim in dims])


def as_matrix(spec: Spec, operand: str) -> Spec:
    """Return a contraction whose `operand` has only two dimensions, without those of one element; the spec itself if this is impossible.

    The other dimensions remain. Contracted dimensions are in the order of the operands. A dimension is dropped if no operand has it any
    more.

    >>> from fireiron import *
    >>> spec = MatMul(1, 16, 8, 16, signature="bkm,bnk->bnm")(GL, GL, GL)(Block)
    >>> as_matrix(spec, "A").signature
    'km,bnk->bnm'
    """
    mnk = roles(spec) if spec.contracts and len(spec.uses[operand]) > 2 else None
    if mnk is None:
        return spec
    dims = [dim for dim in spec.uses[operand] if dim in mnk]
    left, right, result = ("".join(dims if name == operand else uses) for name, uses in spec.uses.items())
    view = _view(spec, operand, dims)
    signature = f"{left},{right}->{result}"
    definition = spec.kind.of_signature(spec.parameters, signature)
    names = tuple(spec.labels[spec.dims.index(dim)] for dim in definition.dims) if spec.names else ()
    views = tuple(view if name == operand else other for name, other in spec.operands.items())
    return attrs.evolve(spec, views=views, signature=signature, names=names)


def without_ones(spec: Spec) -> Spec:
    """Return a copy or a fill without its first dimensions of one element, keeping at least two dimensions."""
    unit_dims = [number for number, size in enumerate(spec.sizes) if size == ONE][: max(len(spec.dims) - 2, 0)]
    if not unit_dims:
        return spec
    kept = [number for number in range(len(spec.dims)) if number not in unit_dims]
    names = tuple(spec.labels[number] for number in kept)
    views = tuple(view.only(kept) for view in spec.views)
    return spec.starter.on(spec.level, *views, names=names, **dict(spec.parameters))


__all__ = ["as_matrix", "plain", "roles", "without_ones"]
