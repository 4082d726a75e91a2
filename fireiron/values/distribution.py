"""The portion of an array of a node that a launch on one GPU accesses."""

from __future__ import annotations

from fireiron.frozen import frozen


@frozen
class Portion:
    """The portion of an array of a node that a launch on one GPU accesses.

    - `gpu_axis`: the dimension of the launch's array that numbers the GPUs, if it contains the parts of all GPUs; None for the part of the
      launch's own GPU.
    - `own_along`: the dimension of each part of which the launch accesses the slice with the number of its GPU; None for all of it.
    - `joined`: the parts have the dimension `gpu_axis`, too, with one element each; otherwise it is an additional dimension.
    """

    gpu_axis: int | None = None
    own_along: int | None = None
    joined: bool = False


__all__ = ["Portion"]
