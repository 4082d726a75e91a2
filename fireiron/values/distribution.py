"""The portion of an array of a node that a launch on one GPU accesses."""

from __future__ import annotations

from fireiron.frozen import frozen


@frozen
class Portion:
    """The portion of an array of a node that a launch on one GPU accesses.

    - `gpu_axis`: the dimension of the launch's array that numbers the GPUs, if it contains the parts of all GPUs; None for the part of the
      launch's own GPU.
    - `own_along`: the dimension of each part of which the launch accesses the slice with the number of its GPU; None for all of it.
    - `joined`: the number of GPUs, if the parts have the dimension `gpu_axis`, too; 0 if it is an additional dimension. A launch can read
      parts of one element each in this dimension; larger ones must be loaded first (`load(A, GL)`).
    - `divided`: the dimension of the array of the launch's own GPU that the launch accesses as two: the GPU, and the element of a part.
    """

    gpu_axis: int | None = None
    own_along: int | None = None
    joined: int = 0
    divided: int | None = None


__all__ = ["Portion"]
