"""The gradients of `fireiron.attention`: find the kernels for arrays, and launch them.

Three kernels: row sums of dO * O, the gradients of the keys, the values and, added up in float32, of the queries, and the conversion of the
latter. The order of the additions varies, so the last bits of dQ do. The deterministic form has a kernel for the queries instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import attrs

from fireiron.attention_kernels import (
    TYPES,
    Sizes,
    as_kernel,
    module_of,
    needs_copy,
    padded,
    result_steps,
    sizes_of,
)
from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.copies import LIBRARIES, copied, library, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import ALIGNMENT, Operand, operands_of, refuse_places
from fireiron.front.call import Answer, Call, Empty, Request
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.tune.records import Choice
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, as_dtype
from fireiron.values.strides import Strides

HEADS: Final = (64, 128, 256)
"""Elements of a head for which there are kernels. Other heads are padded with zeros."""

OLDEST: Final = 80
"""The first compute capability with kernels for gradients."""

ARRAYS: Final = ("grad", "q", "k", "v", "o", "lse", "lse_grad")
"""The names of the arrays of a call; the last one may be missing."""

SUMS: Final = ("lse", "lse_grad")
"""Those with one number per query."""


class GradientOptions(NamedTuple):
    """The options of a call: whether the mask is causal, the window, the score formula, and whether all sums have a fixed order."""

    causal: bool
    window: int | None
    score: str | None
    deterministic: bool = False


class _Gradients(Call):
    """The gradients of attention; see `fireiron.attention.gradients`."""

    arrays: ClassVar[int] = 6

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return (*request.options, type(request.options[1]), request.arch, request.numbers)

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        return answer_to(request)


gradients: Final = _Gradients()
"""The gradients of attention of arrays."""


@frozen
class BoundGradients:
    """The kernels, with the views of the arrays of a call and of its results.

    The inputs with a name in `copies` are copied first, with heads of `elements` elements. `results` are shapes and strides of new results
    and of the views that the kernels write; `wanted` are those of the results without padding. The gradients of the last `unattended` keys
    are zero, and no kernel writes them.
    """

    graph: Any
    choice: Choice
    copies: frozenset[str]
    elements: int
    views: Mapping[str, Places]
    results: tuple[tuple[Places, Places], ...]
    wanted: tuple[Places, ...]
    unattended: int = 0

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel of the gradients."""
        kernels: tuple[CompiledKernel, ...] = self.graph.kernels
        return kernels[1]  # that of the queries in the deterministic form

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the three gradients."""
        *arrays, scale = inputs
        given = dict(zip(ARRAYS, arrays, strict=False))
        for name in self.copies:
            given[name] = copied(given[name]) if name in SUMS else padded(given[name], self.elements)
        call = {name: viewed(given[name], places) for name, places in self.views.items()}
        new = [_new(given["q"], own) for own, _ in self.results]
        outs = tuple(viewed(array, places) for array, (_, places) in zip(new, self.results, strict=True))
        self.graph(*call.values(), scale, out=outs, stream=stream)
        for array in new[1:] if self.unattended else ():
            zeroed(array[..., -self.unattended :, :])
        pairs = zip(new, self.wanted, self.results, strict=True)
        return tuple(array if places == own else _narrow(array, places) for array, places, (own, _) in pairs)


def _new(like: Any, places: Places) -> Any:
    """Return a new packed array with this shape and the order of these strides."""
    return viewed(new_like(like, (math.prod(places[0]),), as_dtype(str(like.dtype).removeprefix("torch."))), places)


def _narrow(array: Any, places: Places) -> Any:
    """Return a new array with the first elements of each head."""
    result = _new(array, places)
    store(result, array[..., : places[0][-1]])
    return result


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given = _operands(request)
    sizes = sizes_of(*(given[name].shape for name in "qkv"))
    _check(given)
    if 0 in attrs.astuple(sizes):
        dtype = as_dtype(given["q"].dtype)
        return Empty("attention", tuple((given[name].shape, dtype, 0.0) for name in "qkv"), unchosen="nothing is chosen")
    return _bound(request, given, sizes)


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    arrays = dict(zip(ARRAYS, request.inputs, strict=False))
    kinds = {name: library(array) for name, array in arrays.items()}
    wrong = next((name for name, kind in kinds.items() if kind not in LIBRARIES or kind != kinds["q"]), None)
    if wrong is not None:
        legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
        raise ArgumentError(f"gradients of attention: {wrong} is not an array of the same library as q", got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Mapping[str, Operand]) -> None:
    """Refuse unsupported types, shapes that differ, and arrays in different places."""
    q = given["q"]
    if q.dtype not in TYPES:
        raise ArgumentError("gradients of attention: no kernel supports the element type of q", got=q.dtype, legal=TYPES)
    for name, operand in given.items():
        shape = given["k"].shape if name in "kv" else q.shape[:-1] if name in SUMS else q.shape
        kind = "float32" if name in SUMS else q.dtype
        if operand.shape != shape or operand.dtype != kind:
            got, legal = f"{operand.shape} of {operand.dtype}", f"{shape} of {kind}"
            raise ArgumentError(f"gradients of attention: {name} does not match the other arrays", got=got, legal=legal)
    refuse_places(given, "gradients of attention: ", "all on one GPU, or all NumPy")


def _bound(request: Request, given: Mapping[str, Operand], sizes: Sizes) -> BoundGradients:
    """Return the kernels for arrays, with the copies that they require."""
    place = Place.of(given["q"].device, request.arch, None)
    if place.architecture.capability < OLDEST:
        hint = "call under torch.no_grad(), or with detached tensors"
        asked = "attention: no kernel computes gradients on this target"
        raise ArgumentError(asked, got=place.architecture.name, legal=f"sm_{OLDEST} or newer", hint=hint)
    elements = next((size for size in HEADS if size >= sizes.elements), None)
    if elements is None:
        raise ArgumentError(
            "attention: no kernel computes gradients of these heads", got=f"{sizes.elements} elements", legal=f"at most {HEADS[-1]}",
            hint="call under torch.no_grad(), or with detached tensors",
        )  # fmt: skip
    is_wider = elements > sizes.elements
    copies = frozenset(name for name in given if (is_wider and name not in SUMS) or _is_copied(name, given[name]))
    places = {name: _places(name, given[name], name in copies, elements) for name in given}
    wide = attrs.evolve(sizes, elements=elements).attended(*request.options[:2])
    results = tuple(_result(given[name], elements) for name in "qkv")
    views = _views(places, wide)
    written = _views(dict(zip("qkv", results, strict=True)), wide)
    orders = {**views, **{f"d{letter}": written[letter] for letter in "QKV"}}
    if wide.heads == wide.groups:  # the gradients of keys have a dimension of one query head
        orders |= {name: _with_query_head(*orders[name]) for name in ("dK", "dV")}
    strides = {name: _strides(name, *one) for name, one in orders.items() if name not in ("L", "G")}
    graph, choice = _chosen(place, wide, given["q"].dtype, request.options, "G" in views, strides)
    call = {name: views[letter] for name, letter in _CALL if letter in views}
    wanted = tuple(_result(given[name], sizes.elements) for name in "qkv")
    outs = tuple((own, orders[name]) for own, name in zip(results, ("dQ", "dK", "dV"), strict=True))
    return BoundGradients(graph, choice, copies, elements, call, outs, wanted, sizes.keys - wide.keys)


_CALL: Final = (("o", "O"), ("grad", "dO"), ("lse", "L"), ("lse_grad", "G"), ("q", "Q"), ("k", "K"), ("v", "V"))
"""The arrays of a call in the order of the kernels' arguments, with the names of the operands."""


def _views(places: Mapping[str, Places], sizes: Sizes) -> dict[str, Places]:
    """Return the views of arrays by operand of the kernels."""
    views: dict[str, Places] = {}
    for name, letter in _CALL:
        if name in SUMS and name in places:
            shape = (sizes.batch, sizes.groups, sizes.heads // sizes.groups, sizes.queries)
            views[letter] = shape, packed(shape)
        elif name in places:
            views[letter] = as_kernel("O" if letter == "dO" else letter, *places[name], sizes)
    return views


def _with_query_head(shape: Shape, steps: Shape) -> Places:
    """Return the view `[b,n,g,r,d]` with one query head of a view `[b,n,g,d]`."""
    return (*shape[:3], 1, shape[3]), (*steps[:3], steps[2], steps[3])


def _strides(name: str, shape: Shape, steps: Shape) -> Strides:
    """Return the storage order of an operand."""
    keys = "bngd" if len(shape) == 4 else "bngrd"
    return Strides(**dict(zip(keys if name.removeprefix("d") in "KV" else "bmgrd", steps, strict=True)))


def _is_copied(name: str, operand: Operand) -> bool:
    """Return whether an array must be copied, because TMA and vectors of 16 bytes cannot read it."""
    if name in SUMS:
        return operand.steps != packed(operand.shape)
    outer = [step for size, step in zip(operand.shape[:-1], operand.steps[:-1], strict=True) if size > 1]
    return needs_copy(operand) or operand.align < ALIGNMENT or any(step == 0 or step % (ALIGNMENT // 2) for step in outer)


def _places(name: str, operand: Operand, is_copied: bool, elements: int) -> Places:
    """Return the shape and the strides of an array, or of its copy."""
    if not is_copied or name in SUMS:
        return operand.places
    shape = (*operand.shape[:-1], elements)
    return shape, packed(shape)


def _result(operand: Operand, elements: int) -> Places:
    """Return the shape and the strides of a gradient: those of a packed array with the order of the operand's dimensions."""
    shape = (*operand.shape[:-1], elements)
    return shape, result_steps(shape, operand.steps)


def _chosen(
    place: Place, sizes: Sizes, dtype: str, options: GradientOptions, lse_grad: bool, orders: Mapping[str, Strides]
) -> tuple[Any, Choice]:
    """Return the compiled kernels for the first strategy that supports the problem, without register spills if possible."""
    own: dict[str, Any] = options._asdict()
    deterministic = own.pop("deterministic")
    file, shared = module_of("attention_backward_queries" if deterministic else "attention_backward"), sizes.heads // sizes.groups
    lengths = (sizes.queries, sizes.keys, sizes.elements, sizes.heads, sizes.batch, shared)
    refusals: list[str] = []
    wgmma = place.architecture.name == WARPGROUP_ARCHITECTURE
    own |= {"shared": shared > 1, "sizes": {dim: size for dim, size in sizes.extents.items() if dim != "d"}}
    for name, strategy in file.candidates(sizes.elements, wgmma, **own).items():
        try:
            graph = file.graph(strategy, *lengths, dtype=as_dtype(dtype), lse_grad=lse_grad, **orders).compile(place.architecture)
            for kernel in graph.kernels:
                place.prove(kernel.program)
                refused = place.refusal(kernel)
                if refused is not None:
                    raise refused
        except FireironError as error:
            refusals.append(f"{name}: {error.headline}")
            continue
        kind = "deterministic gradients" if deterministic else "gradients"
        why = "; ".join((f"the default for {kind} of {dtype} on {place.architecture}: {name}", *refusals))
        return graph, Choice(None, False, why, graph.kernels[1].program)
    asked = f"attention: no strategy of the library computes gradients on {place.architecture}"
    raise ArgumentError(asked, got="; ".join(refusals))


__all__ = ["BoundGradients", "answer_to", "gradients"]
