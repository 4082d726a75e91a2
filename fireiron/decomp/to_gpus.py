"""`to_gpus`: divide a dimension equally among the GPUs of a node."""

from __future__ import annotations

from typing import ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.launching import Given, Launches, LaunchRequest, OverlapPlan
from fireiron.language.node_parts import part_of_gpu, partial_sums, sum_by_warps, sum_of_launch, sum_of_parts
from fireiron.language.tree import Context, Decomposition, Expansion, verb
from fireiron.spec import Spec
from fireiron.values.machine import DType, float16


@frozen
class ToGpusPlan:
    """How a launch adds the sums of all GPUs while it computes those of its GPU; None for separate launches."""

    overlap: OverlapPlan | None = None


@frozen
class ToGpus(Decomposition):
    """Equal parts of dimension `dim` for the GPUs of a node; see the verb `to_gpus`."""

    verb: ClassVar[str] = "to_gpus"
    makes_launches: ClassVar[bool] = True
    dim: str
    sums: DType | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dim, str) or not self.dim.isidentifier():
            raise ArgumentError("to_gpus: the argument is the name of a dimension", got=self.dim, legal='"n"', at=call_site())
        if self.sums is not None and not isinstance(self.sums, DType):
            raise ArgumentError("to_gpus: sums is the type of the sums of parts", got=self.sums, legal="float16", at=call_site())

    def label(self) -> str:
        own = f"to_gpus({self.dim!r}{'' if self.sums is None else f', sums={self.sums}'})"
        return own + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        raise DecompositionError(
            f"{self.summary()}: each GPU has separate launches, which earlier steps would divide",
            legal="at the start of a chain, for a spec of a node", within=spec, hint='put it first: MatMul.to_gpus("n").tile(...)',
        )  # fmt: skip

    def launches(self, spec: Spec, given: Given) -> Launches:
        """Return the launch on each GPU; if the dimension is reduced, a second one adds the sums of all GPUs."""
        if self.dim in spec.dims and self.dim not in spec.tile_dims:
            overlap = self.planned(ToGpusPlan()).overlap
            sums, total = partial_sums(spec, self.dim, self.summary(), self.sums, overlap is not None)
            if overlap is not None:
                overlap = attrs.evolve(overlap, called=sum_of_launch(sums, total))
                owners = sums.C.tensor.shape[0].factor // total.C.tensor.shape[0].factor
                return Launches((LaunchRequest("sum", total, "", sum_by_warps(total, overlap.tile, owners), overlap=overlap),), sums)
            request = LaunchRequest("", sums, "", arrays={"C": sums.C.tensor.name}, kernel="sums")
            return Launches((request,), total, sum_of_parts(total))
        if self.planned(ToGpusPlan()).overlap is not None:
            raise DecompositionError(
                f"{self.summary()}: {self.dim} is not reduced, so no sums are added", got="overlap(...)", within=spec,
                legal='a reduction dimension, to_gpus("k"), or overlap on load("A", GL)',
            )  # fmt: skip
        if self.sums is not None:
            raise DecompositionError(
                f"{self.summary()}: {self.dim} is not reduced, so no sums are stored", got=f"sums={self.sums}", legal="no sums", within=spec
            )
        return Launches((), part_of_gpu(spec, self.dim, self.summary()))


@verb()
def to_gpus(dim: str, *, sums: DType | None = None) -> ToGpus:
    """Divide a dimension of the result equally among the GPUs of a node. Each GPU computes its part in separate launches.

    Legal first in a chain, for a spec at the level `Node(n)`, if n divides the size of the dimension and the outputs are distributed over
    it. Inputs may be distributed over the same dimension, over another one, or be stored on each GPU. If the dimension is reduced, each GPU
    stores sums of its part, and a further launch adds those of all GPUs. `sums` is their type, that of the accumulator by default; the type
    of the result halves the bytes that GPUs read of each other, and rounds each sum once more.
    rewrite: MatMul(M,N,K)(Node(G)) --> MatMul(M,N/G,K)(Kernel) on each GPU

    >>> from fireiron import *
    >>> product = MatMul(64, 32, 16, B=RowMajor.over(GPU, "n"), C=RowMajor.over(GPU, "n"))(GL, GL, GL)(Node(2))
    >>> print(product.to_gpus("n").program().inner)
    MatMul(64,16,16)(GL,GL,GL)(Kernel) with B, C RowMajor

    Source: decision 115.
    """
    return ToGpus(dim, sums)


EXAMPLES = (ToGpus("n"), ToGpus("k", float16))
"""Examples of the class, which has no default arguments."""

__all__ = ["ToGpus"]
