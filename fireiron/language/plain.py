"""The plain form of a spec: without dimensions of one element, and a product with its matrices as m x k, k x n and m x n.

Instructions know matrices. A matrix in a stack, of which a tile takes one, is a matrix; a transposed one is a matrix too, whose storage
order is the other. So a spec is compared with instructions in this form where it matches none as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.spec import Spec
from fireiron.values.expr import ONE
from fireiron.values.tensor import View


def plain(spec: Spec) -> Spec:
    """The same work on matrices, on the same elements; the spec itself where it has no such form, or is in it.

    >>> from fireiron import *
    >>> print(plain(MatMul(1, 16, 8, 16, signature="bkm,bnk->bnm")(GL, GL, GL)(Block)))
    MatMul(8,16,16)(GL,GL,GL)(Block)
    """
    if spec.contracts and not spec.multiplies:
        return _product(spec) or spec
    if (spec.copies or spec.fills) and len(spec.dims) > 2:
        return without_ones(spec)
    return spec


def roles(spec: Spec) -> tuple[str, str, str] | None:
    """The dimensions of a contraction that are m, n and k of a plain product; None where others, too, have several elements.

    A dimension of all operands has any role, if it has one element.
    """
    uses = {name: frozenset(dims) for name, dims in spec.uses.items()}
    wide = [dim for dim in spec.dims if spec.size(dim) != ONE]
    found: list[str] = []
    for has, has_not in (("AC", "B"), ("BC", "A"), ("AB", "C")):
        shared = [dim for dim in spec.dims if all(dim in uses[name] for name in has) and dim not in found]
        own = [dim for dim in shared if dim not in uses[has_not]]
        best = [*(dim for dim in own if dim in wide), *reversed(own), *(dim for dim in shared if dim not in wide)]
        if not best:
            return None
        found.append(best[0])
    m, n, k = found
    return (m, n, k) if set(wide) <= set(found) else None


def _product(spec: Spec) -> Spec | None:
    """A contraction as the product of two matrices."""
    found = roles(spec)
    if found is None:
        return None
    m, n, k = found
    views = (_view(spec, "A", (m, k)), _view(spec, "B", (k, n)), _view(spec, "C", (m, n)))
    labels = tuple(spec.labels[spec.dims.index(dim)] for dim in found)
    return attrs.evolve(spec, views=views, signature="", names=() if labels == ("m", "n", "k") else labels)


def _view(spec: Spec, operand: str, dims: Sequence[str]) -> View:
    return spec.operands[operand].only([spec.uses[operand].index(dim) for dim in dims])


def as_matrix(spec: Spec, operand: str) -> Spec:
    """A contraction of which one operand is a matrix without the dimensions of one element, if it is; the spec has its dimensions.

    But those that are added up stand in the order in which operands have them, and one of one element that no operand has any more is none.

    >>> from fireiron import *
    >>> spec = MatMul(1, 16, 8, 16, signature="bkm,bnk->bnm")(GL, GL, GL)(Block)
    >>> as_matrix(spec, "A").signature
    'km,bnk->bnm'
    """
    found = roles(spec) if spec.contracts and len(spec.uses[operand]) > 2 else None
    if found is None:
        return spec
    dims = [dim for dim in spec.uses[operand] if dim in found]
    left, right, result = ("".join(dims if name == operand else uses) for name, uses in spec.uses.items())
    view = _view(spec, operand, dims)
    signature = f"{left},{right}->{result}"
    made = spec.kind.of_signature(spec.parameters, signature)
    names = tuple(spec.labels[spec.dims.index(dim)] for dim in made.dims) if spec.names else ()
    views = tuple(view if name == operand else other for name, other in spec.operands.items())
    return attrs.evolve(spec, views=views, signature=signature, names=names)


def without_ones(spec: Spec, least: int = 2) -> Spec:
    """A copy or a fill without its first dimensions of one element, as long as more than `least` are left."""
    ones = [number for number, size in enumerate(spec.sizes) if size == ONE][: max(len(spec.dims) - least, 0)]
    if not ones:
        return spec
    kept = [number for number in range(len(spec.dims)) if number not in ones]
    names = tuple(spec.labels[number] for number in kept)
    views = tuple(view.only(kept) for view in spec.views)
    return spec.starter.on(spec.level, *views, names=names, **dict(spec.parameters))


__all__ = ["as_matrix", "plain", "roles", "without_ones"]
