"""`fireiron.attention`: softmax(Q K^T) V of arrays, in one kernel, by a record or by the library's strategy for the GPU.

>>> import fireiron, numpy
>>> q, k, v = (numpy.ones((2, length, 16), "float16") for length in (4, 8, 8))
>>> fireiron.attention(q, k, v)[0, 0, :3]
array([1., 1., 1.], dtype=float16)
>>> print(fireiron.attention.choice(q, k, v).why)
no record answers; the default for float16 on sm_90: attention:steady bm=64 stages=2 bn=64 wm=32 parts=1

In PyTorch a call that `torch.compile` traces, or one with fake tensors, is one of the operators `fireiron::attention` and
`fireiron::attention_lse`, which are registered when the first such call is made.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import attrs

from fireiron import operators
from fireiron.batches import Places, Shape, new_like
from fireiron.batches import viewed as _viewed
from fireiron.copies import copied, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.matmul import (
    ALIGNMENT,
    Operand,
    fits,
    gpu_name,
    key_of,
    operand_of,
    recall,
    refused_by_compiler,
    target_of,
)
from fireiron.repeated import Replays
from fireiron.spec import Spec
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, Architecture, as_architecture, as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.language.strategy import Strategy
    from fireiron.tune.records import Choice, Records

ArrayT = TypeVar("ArrayT")

TYPES: Final = ("float16", "bfloat16")
"""Element types of queries, keys and values."""

BY_TMA: Final = "hopper_attention"
"""The strategy that is only taken where a producer fills its buffers by TMA."""

LIBRARIES: Final = ("numpy", "cupy", "torch")
"""Where arrays come from."""

MOST_DIMENSIONS: Final = 4
"""Of queries, keys and values: batch, heads, rows, elements."""

ELEMENTS: Final = 8
"""The elements of a head are multiples of so many."""

DEPTH: Final = 16
"""Those of which a tensor core multiplies as many at once: heads of other numbers are copied, with zeros behind them."""

NO_KEY: Final = -math.inf
"""The log-sum-exp of a query that sees no key."""

DIMS: Final[Mapping[str, str]] = {"Q": "bmgrd", "K": "bngd", "V": "bngd", "O": "bmgrd", "L": "bmgr"}
"""The dimensions of the kernel's arrays: `r` heads of queries for each of `g` heads of keys."""


@attrs.frozen
class Options:
    """What is asked for beside the arrays: which keys a query sees, what becomes of scores, and whether the log-sum-exp is wanted."""

    causal: bool = False
    window: int | None = None
    lse: bool = False
    score: str | None = None
    slack: int = 0


@attrs.frozen
class Sizes:
    """What the shapes say: `batch` matrices of each head, `heads` of queries, `groups` of keys, their lengths, elements of a head."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    elements: int

    @property
    def extents(self) -> dict[str, int]:
        """By dimension of the definition."""
        sizes = {"b": self.batch, "g": self.groups, "r": self.heads // self.groups}
        return {**sizes, "m": self.queries, "n": self.keys, "d": self.elements}


@attrs.frozen
class _Found:
    """What answers a call: a kernel, how it sees the arrays, and how the caller sees its results; `behind` puts parts together."""

    kernel: CompiledKernel
    choice: Choice
    inputs: tuple[Places, ...]
    outputs: tuple[Places, ...]
    results: tuple[Places, ...]
    behind: CompiledKernel | None = None

    def __call__(self, arrays: Sequence[Any], scale: float, out: Any, stream: Any) -> Any:
        """The result, or a pair with the log-sum-exp."""
        seen = [_viewed(array, places) for array, places in zip(arrays, self.inputs, strict=True)]
        if out is None:
            made = self._run(seen, scale, None, stream)
            several = made if len(self.results) > 1 else (made,)
            given = tuple(_viewed(array, places) for array, places in zip(several, self.results, strict=True))
            return given if len(given) > 1 else given[0]
        outs = tuple(_viewed(array, places) for array, places in zip(_each(out), self.outputs, strict=True))
        self._run(seen, scale, outs if len(outs) > 1 else outs[0], stream)
        return out

    def _run(self, arrays: Sequence[Any], scale: float, out: Any, stream: Any) -> Any:
        given = {} if out is None else {"out": out}
        if self.behind is None:
            return self.kernel(*arrays, scale, stream=stream, **given)
        return self.behind(*self.kernel(*arrays, scale, stream=stream), stream=stream, **given)


@attrs.frozen
class _Copied:
    """What answers a call with arrays that no kernel reads as they lie, at `places` among `q`, `k` and `v`: copies take their place.

    They are of heads of so many `elements`, zeros behind their own. `found` makes new results, unless the caller's serve (`direct`);
    `results` are what a caller without results gets.
    """

    found: _Found
    places: frozenset[int]
    elements: int
    results: tuple[Places, ...]
    direct: bool

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel for the copies."""
        return self.found.kernel

    @property
    def choice(self) -> Choice:
        """Why it was chosen."""
        return self.found.choice

    def __call__(self, arrays: Sequence[Any], scale: float, out: Any, stream: Any) -> Any:
        """The result, or a pair with the log-sum-exp."""
        refuse_stream("attention", "arrays are copied", stream)
        seen = [_widened(array, self.elements) if place in self.places else array for place, array in enumerate(arrays)]
        if self.direct and out is not None:
            return self.found(seen, scale, out, None)
        made = self.found(seen, scale, None, None)
        several = made if len(self.results) > 1 else (made,)
        targets = _each(out) if out is not None else [_new(one, *places) for one, places in zip(several, self.results, strict=True)]
        for target, source in zip(targets, several, strict=True):
            store(target, source if len(source.shape) < len(arrays[0].shape) else source[..., : arrays[0].shape[-1]])
        return out if out is not None else tuple(targets) if len(targets) > 1 else targets[0]


@attrs.frozen
class _Empty:
    """What answers a call without queries, or without keys: results without elements, or what a query has that sees no key."""

    results: tuple[Places, ...]

    @property
    def kernel(self) -> CompiledKernel:
        """There is none."""
        raise ArgumentError("attention: an array has no element, so no kernel is chosen or launched", legal="sizes of at least 1")

    @property
    def choice(self) -> Choice:
        """There is none."""
        raise ArgumentError("attention: an array has no element, so nothing is chosen", legal="sizes of at least 1")

    def __call__(self, arrays: Sequence[Any], scale: float, out: Any, stream: Any) -> Any:
        """The result, or a pair with the log-sum-exp."""
        refuse_stream("attention", "an empty result is made", stream)
        if out is None:
            kinds = (as_dtype(operand_of(arrays[0], "q").dtype), float32)
            made = tuple(new_like(arrays[0], shape, kind) for (shape, _), kind in zip(self.results, kinds, strict=False))
        else:
            made = _each(out)
        zeroed(made[0])
        for one in made[1:]:
            store(one, NO_KEY)
        return out if out is not None else made if len(made) > 1 else made[0]


class _Attention:
    """`fireiron.attention`: see `__call__`. Kernels are kept in memory, by the arrays' shapes, types, strides and alignment."""

    def __init__(self) -> None:
        self._kernels: OrderedDict[Any, _Found | _Copied | _Empty] = OrderedDict()
        self._replays = Replays()
        self._lock = threading.RLock()

    @overload
    def __call__(
        self,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        *,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        lse: Literal[False] = False,
        score: str | None = None,
        out: ArrayT | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        pinned: bool | None = None,
    ) -> ArrayT: ...

    @overload
    def __call__(
        self,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        *,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        lse: Literal[True],
        score: str | None = None,
        out: tuple[ArrayT, ArrayT] | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        pinned: bool | None = None,
    ) -> tuple[ArrayT, ArrayT]: ...

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        lse: bool = False,
        score: str | None = None,
        out: Any = None,
        arch: Any = None,
        stream: Any = None,
        pinned: bool | None = None,
    ) -> Any:
        """`softmax(scale * q @ k.T) @ v` for each head, as PyTorch's `scaled_dot_product_attention`: an array of q's shape and library.

        `q` is (batch, heads, m, d), `k` and `v` are (batch, groups, n, d), all float16 or bfloat16; fewer dimensions are one of those in
        front. `groups` divides `heads`: so many heads of queries, one after the other, read each head of keys. `d` is a multiple of 8.
        Arrays of multiples of 16 whose elements of a head lie side by side are read as they lie, others are copied first. CuPy and
        PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call
        for shapes and strides compiles a kernel; later ones launch only. Tensors that require a gradient are refused.

        Args:
            causal: query m sees keys 0 to m.
            window: it sees the last so many of these, itself included.
            scale: what scores are multiplied by, above 0; `d ** -0.5` if None.
            lse: give the logarithm of the sum of the exponentials of each query's scores too, float32, (batch, heads, m).
            score: what becomes of a scaled score `s` of query `m` and key `n`: `"30 * tanh(s / 30)"`, `"s - 0.1 * (m - n)"`.
            out: where to store the result; of `lse` a pair. By default new arrays; the result's dimensions lie in the order of `q`'s.
            arch: the target of the compiler; by default that of the GPU (of the simulator, sm_90).
            stream: as for a compiled kernel.
            pinned: only a record of exactly this problem may answer; as `FIREIRON_PINNED` says if None.

        A query that sees no key gives zeros, and a log-sum-exp of minus infinity.

        Raises: ArgumentError for arrays that do not fit each other, of other types or libraries, and for options that are not legal;
            StoreError where records are pinned and none answers.
        """
        if hasattr(q, "is_cuda"):
            replays = self._replays
            if replays.again is not None and stream is None and not replays.tracing():
                q, k, v = operators.autocast(q, k, v) if out is None and replays.casting() else (q, k, v)
                done = replays.again(_said(causal, window, _factor(scale, q), lse, score, arch, pinned), out, q, k, v)
                if done is not None and done is not NotImplemented and done is not ...:
                    return done
            q, k, v = (q, k, v) if out is not None else operators.autocast(q, k, v)
            if operators.differentiated(q, k, v):
                raise _without_gradient()
        if operators.traced(q, k, v):
            operators.refuse_options("attention", out=out, arch=arch, stream=stream, pinned=pinned)
            return _through_torch(q, k, v, bool(causal), window, scale, score, bool(lse))
        return self.launched((q, k, v), out, _options(causal, window, lse, score), scale, arch, stream, pinned)

    def choice(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        window: int | None = None,
        lse: bool = False,
        score: str | None = None,
        out: Any = None,
        arch: Any = None,
        pinned: bool | None = None,
    ) -> Choice:
        """What `attention` takes for these arrays: the record, if one answers, else the strategy, and why; nothing is launched."""
        return self._found((q, k, v), out, _options(causal, window, lse, score), arch, pinned).choice

    def kernel(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        window: int | None = None,
        lse: bool = False,
        score: str | None = None,
        out: Any = None,
        arch: Any = None,
        pinned: bool | None = None,
    ) -> CompiledKernel:
        """The kernel that `attention` calls for these arrays, with views `Q[b,m,g,r,d]`, `K[b,n,g,d]` and `V[b,n,g,d]` of them."""
        return self._found((q, k, v), out, _options(causal, window, lse, score), arch, pinned).kernel

    def clear(self) -> None:
        """Forget all kernels, so that records and environment variables are read anew."""
        with self._lock:
            self._kernels.clear()
            self._replays.clear()

    def launched(
        self, arrays: tuple[Any, Any, Any], out: Any, options: Options, scale: float | None, arch: Any, stream: Any, pinned: bool | None
    ) -> Any:
        """The same by our kernels at once: what autograd, autocast or a compiler make of the call is not asked."""
        factor = _factor(scale, arrays[0])

        def anew(out: Any, *arrays: Any) -> Any:
            return self._found(arrays, out, options, arch, pinned)(arrays, factor, out, stream)

        if stream is not None or not hasattr(arrays[0], "is_cuda"):
            return anew(out, *arrays)
        said = _said(options.causal, options.window, factor, options.lse, options.score, arch, pinned)
        return self._replays.call(said, out, arrays, anew)

    def _found(self, arrays: tuple[Any, ...], out: Any, options: Options, arch: Any, pinned: bool | None) -> _Found | _Copied | _Empty:
        outs = None if out is None else tuple(map(key_of, _each(out)))
        key = (*map(key_of, arrays), outs, options, arch, pinned)
        return recall(self._kernels, self._lock, key, lambda: _made(arrays, out, options, arch, pinned))


attention: Final = _Attention()
"""Attention of arrays; see its `__call__`."""


# ---------------------------------------------------------------------------------------------- what is asked for


def _options(causal: bool, window: int | None, lse: bool, score: str | None) -> Options:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError("attention: window is the number of keys that a query sees", got=window, legal="1, 2, ..., or None")
    if score is not None and not isinstance(score, str):
        raise ArgumentError("attention: score is a formula of s, m and n", got=score, legal='"30 * tanh(s / 30)"')
    return Options(bool(causal) or window is not None, window, bool(lse), score)


def _factor(scale: float | None, q: Any) -> float:
    """What scores are multiplied by."""
    shape = getattr(q, "shape", ())
    last = shape[-1] if isinstance(shape, tuple) and shape else 1  # what has no shape is refused where it is read
    return (last or 1) ** -0.5 if scale is None else scale


def _said(causal: Any, window: Any, factor: float, lse: Any, score: Any, arch: Any, pinned: Any) -> tuple[Any, ...]:
    """What tells calls with the same arrays apart; `True`, which is refused as a window, from 1."""
    return bool(causal) or window is not None, window, type(window), factor, bool(lse), score, arch, pinned


def _without_gradient() -> ArgumentError:
    hint = "call under torch.no_grad(), or with detached tensors; torch's scaled_dot_product_attention has a gradient"
    return ArgumentError("attention has no gradient yet, and a tensor requires one", legal="tensors that require none", hint=hint)


def _each(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def sizes_of(q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Sizes:
    """What shapes say.

    Raises: ArgumentError where they do not fit each other.
    """
    rank = len(q)
    shapes = {"q": tuple(q), "k": tuple(k), "v": tuple(v)}
    if not 2 <= rank <= MOST_DIMENSIONS or not len(k) == len(v) == rank:
        legal = "of each 2, 3 or 4 dimensions: (m, d), (heads, m, d), (batch, heads, m, d)"
        raise ArgumentError("attention: numbers of dimensions", got=shapes, legal=legal)
    (batch, heads, queries, elements), (others, groups, keys, width) = ((*(1,) * (MOST_DIMENSIONS - rank), *one) for one in (q, k))
    if tuple(k) != tuple(v):
        raise ArgumentError("attention: v has not the shape of k", got=shapes, legal="as many keys, heads and elements")
    if batch != others or width != elements:
        raise ArgumentError("attention: q and k differ in the batch, or in the elements of a head", got=shapes)
    if elements % ELEMENTS or not elements:
        legal = f"multiples of {ELEMENTS}, at least {ELEMENTS}"
        raise ArgumentError(
            f"attention: heads of {elements} elements", got=shapes, legal=legal, hint="pad q, k and v with zeros, give scale="
        )
    if heads % groups if groups else heads:
        raise ArgumentError(
            f"attention: {heads} heads of queries for {groups} heads of keys", got=shapes, legal="a number that divides them"
        )
    return Sizes(batch, heads, groups, queries, keys, elements)


def _check(given: Mapping[str, Operand], sizes: Sizes, options: Options) -> None:
    """Refuse arrays of types and places for which there are no kernels, and outputs that are not those of the inputs."""
    q = given["q"]
    if q.dtype not in TYPES:
        raise ArgumentError("attention: no kernels for the element type of q", got=q.dtype, legal=TYPES, hint="convert q, k and v")
    wanted = {"q": q.shape, "k": given["k"].shape, "v": given["v"].shape, "out": q.shape, "lse": q.shape[:-1]}
    kinds = {name: "float32" if name == "lse" else q.dtype for name in wanted}
    for name, one in given.items():
        if one.shape != wanted[name]:
            raise ArgumentError(f"attention: {name} has the shape {one.shape}", legal=f"{wanted[name]}")
        if one.dtype != kinds[name]:
            raise ArgumentError(f"attention: {name} has elements of {one.dtype}", legal=kinds[name], hint="convert one of the arrays")
        if name in ("out", "lse") and any(step == 0 and size > 1 for size, step in zip(*one.places, strict=True)):
            raise ArgumentError(f"attention: {name} repeats elements (broadcast)", got=one.steps, hint="pass an array of its own")
    if len({one.device for one in given.values()}) > 1:
        places = {name: "host" if one.device is None else f"GPU {one.device}" for name, one in given.items()}
        raise ArgumentError("attention: the arrays are in different places", got=places, hint="all on one GPU, or all NumPy")


def _operands(arrays: Sequence[Any], out: Any, options: Options) -> dict[str, Operand]:
    """The arrays by name, as they lie."""
    names = ["q", "k", "v"]
    if out is not None:
        outs = _each(out)
        wanted = ["out", "lse"] if options.lse else ["out"]
        if len(outs) != len(wanted):
            raise ArgumentError(f"attention: out: {len(outs)} arrays", legal="a pair, with lse=True" if options.lse else "one array")
        arrays, names = (*arrays, *outs), [*names, *wanted]
    kinds = {name: type(array).__module__.partition(".")[0] for name, array in zip(names, arrays, strict=True)}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["q"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"attention: {name} is no such array as q has to be", got=kinds, legal=legal)
    return {name: operand_of(array, name) for name, array in zip(names, arrays, strict=True)}


# ---------------------------------------------------------------------------------------------- how arrays lie


def result_steps(shape: Sequence[int], steps: Sequence[int]) -> Shape:
    """Steps of a new result: its dimensions without holes in the order in which q's lie, the elements of a head side by side."""
    outer = sorted(range(len(shape) - 1), key=lambda dim: -steps[dim])
    found, step = [1] * len(shape), shape[-1]
    for dim in reversed(outer):
        found[dim] = step
        step = step * shape[dim]
    return tuple(found)


def _rows(shape: Sequence[int]) -> Shape:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _as_kernel(name: str, shape: Shape, steps: Shape, sizes: Sizes) -> Places:
    """An array as the kernel has it: a dimension of one element has a step that does not matter, so one that suits."""
    missing = MOST_DIMENSIONS - len(shape) - (name == "L")
    beyond = max(size * step for size, step in zip(shape, steps, strict=True))
    padded = [beyond if size == 1 else step for size, step in zip((*(1,) * missing, *shape), (*(0,) * missing, *steps), strict=True)]
    batch, heads, along, *_ = padded
    extents = sizes.extents
    shared = extents["r"] if name in "QOL" else 1
    by_dim = {"b": batch, "m": along, "n": along, "g": heads * shared, "r": heads, "d": 1}
    extent = tuple(extents[dim] for dim in DIMS[name])
    found = tuple(beyond if extents[dim] == 1 and dim != "d" else by_dim[dim] for dim in DIMS[name])
    packed = _rows(extent)
    by_rows = all(size == 1 or step == row for size, step, row in zip(extent, found, packed, strict=True))
    return extent, packed if by_rows else found


def _storage(name: str, places: Places, align: int) -> dict[str, Strides]:
    """The storage order of an operand of the spec; none is said of one that lies row by row and is aligned."""
    shape, steps = places
    if align >= ALIGNMENT and steps == _rows(shape):
        return {}
    return {name: Strides(**dict(zip(DIMS[name], steps, strict=True))).aligned(min(align, ALIGNMENT))}


# ---------------------------------------------------------------------------------------------- from arrays to a kernel


def _made(arrays: Sequence[Any], out: Any, options: Options, arch: Any, pinned: bool | None) -> _Found | _Copied | _Empty:
    """What answers a call that was not made before."""
    given = _operands(arrays, out, options)
    sizes = sizes_of(*(given[name].shape for name in "qkv"))
    _check(given, sizes, options)
    q = given["q"]
    results = (q.shape, result_steps(q.shape, q.steps)), (q.shape[:-1], _rows(q.shape[:-1]))
    if 0 in attrs.astuple(sizes):
        return _Empty(results[: 1 + options.lse])
    elements = -(-sizes.elements // DEPTH) * DEPTH
    wider = elements > sizes.elements
    places = frozenset(place for place, name in enumerate("qkv") if wider or _lies_oddly(given[name]))
    direct = not wider and not any(_lies_oddly(given[name]) for name in ("out", "lse") if name in given)
    if not places and direct:
        return _kernels_for(arrays, out, options, arch, pinned)
    seen = [_widened(array, elements) if place in places else array for place, array in enumerate(arrays)]
    return _Copied(_kernels_for(seen, out if direct else None, options, arch, pinned), places, elements, results[: 1 + options.lse], direct)


def _lies_oddly(one: Operand) -> bool:
    """Whether the elements of a head do not lie side by side, or something lies backwards."""
    steps = [step for size, step in zip(*one.places, strict=True) if size > 1]
    return any(step < 0 for step in steps) or (one.shape[-1] > 1 and one.steps[-1] != 1)


def _widened(array: Any, elements: int) -> Any:
    """A copy that lies row by row, its heads with zeros behind their elements."""
    own = array.shape[-1]
    if own == elements:
        return copied(array)
    made = zeroed(new_like(array, (*array.shape[:-1], elements), as_dtype(operand_of(array, "an array").dtype)))
    store(made[..., :own], array)
    return made


def _new(like: Any, shape: Shape, steps: Shape) -> Any:
    """A new array whose elements lie at these steps, without holes."""
    made = new_like(like, (math.prod(shape),), as_dtype(operand_of(like, "a result").dtype))
    return _viewed(made, (shape, steps))


def _kernels_for(arrays: Sequence[Any], out: Any, options: Options, arch: Any, pinned: bool | None) -> _Found:
    """The kernel, or the two of a decode step, for arrays that kernels read."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import is_pinned

    given = _operands(arrays, out, options)
    sizes = sizes_of(*(given[name].shape for name in "qkv"))
    q, device = given["q"], given["q"].device
    results = (q.shape, result_steps(q.shape, q.steps)), (q.shape[:-1], _rows(q.shape[:-1]))
    made = {"out": results[0], "lse": results[1]} if options.lse else {"out": results[0]}
    lie = {**made, **{name: one.places for name, one in given.items()}}
    operands = dict(zip("QKVOL", ("q", "k", "v", "out", "lse"), strict=True))
    views = {letter: _as_kernel(letter, *lie[name], sizes) for letter, name in operands.items() if name in lie}
    aligned = {letter: given[name].align for letter, name in operands.items() if name in given}
    architecture = as_architecture(target_of(device) if arch is None else arch)
    problems = _problems(sizes, options, q.dtype, views, aligned, architecture)
    if is_few(sizes, options, architecture) and not is_pinned(pinned):
        with contextlib.suppress(FireironError):  # arrays that lie so that it does not copy them are left to the others
            return _decoded(sizes, q.dtype, views, aligned, architecture, tuple(made.values()))
    choice = _kept_or_chosen(problems, _Place(architecture, device, aligned), is_pinned(pinned))
    seen = tuple(views.values())
    return _Found(CompiledKernel(choice.program), choice, seen[:3], seen[3:], tuple(made.values()))


def _file(name: str) -> Any:
    """A file of the strategy library."""
    from fireiron.language.library import LIBRARY

    return importlib.import_module(f"{LIBRARY}.{name}")


@functools.cache
def _definition(options: Options) -> Any:
    """The definition of the library, with options."""
    return _file("attention").definition(**attrs.asdict(options))


FEW: Final = 16
"""Queries that read the same keys, of all their heads, up to which keys are taken in parts (`attention_decode`)."""


def is_few(sizes: Sizes, options: Options, architecture: Architecture) -> bool:
    """Whether there are few queries and many keys: blocks take parts of the keys then, and a second kernel puts these together."""
    shared = sizes.heads // sizes.groups
    plain = not (options.causal or options.window or options.lse or options.score)
    if not plain or min(sizes.queries, shared) > 1 or sizes.queries * shared > FEW or architecture.capability < 80:
        return False
    return bool(sizes.keys > _file("attention_decode").size_for(sizes.keys, sizes.batch * sizes.groups))


def _decoded(
    sizes: Sizes,
    dtype: str,
    views: Mapping[str, Places],
    aligned: Mapping[str, int],
    architecture: Architecture,
    results: tuple[Places, ...],
) -> _Found:
    """Two kernels for few queries: what of `Q[b,m,g,r,d]` reads the same keys are rows of `Q[b,g,m,d]`."""
    from fireiron.tune.records import Choice

    file = _file("attention_decode")
    seen = {name: _as_rows(name, *places, sizes) for name, places in views.items()}
    size, rows = file.size_for(sizes.keys, sizes.batch * sizes.groups), sizes.queries * (sizes.heads // sizes.groups)
    orders = {name: _named(name, "bgmd" if name in "QO" else "bngd", seen[name], aligned) for name in seen}
    shape = (rows, sizes.keys, sizes.elements, sizes.groups, sizes.batch, size)
    parts, whole = file.kernels(*shape, dtype=as_dtype(dtype), architecture=architecture, **orders)
    why = f"{rows} queries read the same {sizes.keys} keys: attention_decode in parts of {size}, then attention_combine"
    places = tuple(seen.values())
    return _Found(parts, Choice(None, False, why, parts.program), places[:3], places[3:], results, whole)


def _as_rows(name: str, shape: Shape, steps: Shape, sizes: Sizes) -> Places:
    """Queries, or results, by head of keys: those of one head, or one of several heads, are rows; keys stay as they are."""
    if name in "KV":
        return shape, steps
    b, m, g, r, d = range(5)
    row = m if sizes.queries > 1 else r
    return tuple(shape[dim] for dim in (b, g, row, d)), tuple(steps[dim] for dim in (b, g, row, d))


def _named(name: str, dims: str, places: Places, aligned: Mapping[str, int]) -> Strides:
    """The strides of an operand by dimension."""
    return Strides(**dict(zip(dims, places[1], strict=True))).aligned(min(aligned.get(name, ALIGNMENT), ALIGNMENT))


@attrs.frozen
class _Problem:
    """A spec of the arrays as they lie, and `packed`, the same of arrays row by row, for which records are kept."""

    options: Options
    spec: Spec
    packed: Spec


def _problems(
    sizes: Sizes, options: Options, dtype: str, views: Mapping[str, Places], aligned: Mapping[str, int], architecture: Architecture
) -> list[_Problem]:
    """The problem in each of the library's definitions, the likelier fastest first: on sm_90a with maxima that stay (`slack`), too."""
    slack = (_file(BY_TMA).SLACK,) if architecture.name == WARPGROUP_ARCHITECTURE else ()
    chosen = [attrs.evolve(options, slack=one) for one in (*slack, 0)]
    return [_Problem(one, _spec(sizes, one, dtype, views, aligned), _spec(sizes, one, dtype, {}, {})) for one in chosen]


def _spec(sizes: Sizes, options: Options, dtype: str, views: Mapping[str, Places], aligned: Mapping[str, int]) -> Spec:
    orders: dict[str, Strides] = {}
    for letter, places in views.items():
        orders |= _storage(letter, places, aligned.get(letter, ALIGNMENT))
    lengths = (sizes.queries, sizes.keys, sizes.elements)
    heads = {"heads": sizes.heads, "batch": sizes.batch, "shared": sizes.heads // sizes.groups}
    spec: Spec = _file("attention").spec(*lengths, **heads, made=_definition(options), dtype=as_dtype(dtype), **orders)
    return spec


@attrs.frozen
class _Place:
    """Where a kernel is to run: the target, the GPU or None for the simulator, and how the arrays are aligned, in bytes by operand."""

    architecture: Architecture
    device: int | None
    aligned: Mapping[str, int]

    def legal(self, strategy: Strategy, spec: Spec) -> Program:
        """The strategy on a spec, lowered and checked; a `FireironError` where it is not legal, or requires other arrays."""
        program = self.served(strategy(spec).program(self.architecture), strategy)
        _ = program.ir
        return program

    def served(self, program: Program, strategy: Strategy) -> Program:
        """A program of a strategy, lowered up to synchronization; a `FireironError` where that is not legal, or it requires other arrays.

        The checks are left to the one program that is taken: they cost more than lowering.
        """
        if strategy.start == program.spec.starter and _by_tma(strategy) and not program.sequential.rings:
            raise ArgumentError("TMA copies no arrays that lie so")
        if not fits(self.aligned, program):
            raise ArgumentError("the arrays are not aligned as it needs them")
        return program

    def spills(self, program: Program) -> bool:
        """Whether registers do not suffice; a `LaunchError` where the compiler here refuses it."""
        from fireiron.gpu.kernel import CompiledKernel

        if self.device is None:
            return False
        kernel = CompiledKernel(program)
        refused = refused_by_compiler(kernel)
        if refused is not None:
            raise refused
        return bool(program.ir.rings and kernel.compiler is not None and kernel.resources.spill_stores)


def _by_tma(strategy: Strategy) -> bool:
    """Whether it is meant for a producer that fills its stages."""
    return strategy.target == WARPGROUP_ARCHITECTURE


def _kept_or_chosen(problems: Sequence[_Problem], place: _Place, pinned: bool) -> Choice:
    """What another process chose on this GPU, else what is chosen now, and kept."""
    from fireiron.tune.records import kept

    specs = tuple((attrs.astuple(one.options), one.spec, one.packed) for one in problems)
    asked = specs, dict(place.aligned), pinned
    return kept.chosen("attention", place.architecture, place.device, asked, lambda: (_chosen(problems, place, pinned), 0))[0]


def _chosen(problems: Sequence[_Problem], place: _Place, pinned: bool) -> Choice:
    """What records say of the problem; where none answers, and records are not pinned, the first of the library's that serves it."""
    from fireiron.tune.records import Choice, available

    records = available(pinned)
    found = _recorded(records, problems, place, pinned)
    if found is not None:
        return found
    if pinned:
        return records.best(problems[-1].spec, place.architecture, neighbours=False)
    refusals: list[str] = []
    wide: Choice | None = None
    for problem in problems:
        for name, values, strategy in _candidates(problem, place.architecture):
            if wide is not None and not _by_tma(strategy):
                break
            said = " ".join([name, *(f"{tunable}={value}" for tunable, value in values.items())])
            try:
                program = place.legal(strategy, problem.spec)
                spills = place.spills(program)
            except FireironError as error:
                refusals.append(f"{name}: {error.headline}")
                continue
            behind = f"; {'; '.join(refusals)}" if refusals else ""
            why = f"no record answers; the default for {problem.spec.operands['Q'].dtype} on {place.architecture}: {said}{behind}"
            choice = Choice(None, False, why, program)
            if not spills:
                return choice
            refusals.append(f"{name}: registers do not suffice")
            wide = wide or choice
    if wide is not None:
        return wide
    spec = problems[-1].spec
    raise ArgumentError(f"attention: no strategy of the library computes {spec} on {place.architecture}", got="; ".join(refusals))


def _recorded(records: Records, problems: Sequence[_Problem], place: _Place, pinned: bool) -> Choice | None:
    """The best record of just the problem, else of a neighbour; it may be of arrays that lie row by row, and serve these."""
    exact = [choice for one in problems for spec in dict.fromkeys((one.spec, one.packed)) if (choice := _of(records, one, spec, place))]
    if exact:
        return min(exact, key=lambda choice: math.inf if choice.record is None else choice.record.us)
    if pinned:
        return None
    return next((choice for one in problems if (choice := _of(records, one, one.packed, place, near=True))), None)


def _of(records: Records, problem: _Problem, spec: Spec, place: _Place, near: bool = False) -> Choice | None:
    """What a record of a spec is for arrays as they lie: its strategy with its values."""

    def accept(program: Program) -> bool:
        try:
            return bool(place.served(program, program.strategy))
        except FireironError:
            return False

    choice = records.find(spec, place.architecture, near, gpu=gpu_name(place.device), accept=accept, lowered=problem.spec)
    try:
        return None if choice is None or place.spills(choice.program) else choice
    except FireironError:  # the compiler here is another one than that of the record
        return None


def _candidates(problem: _Problem, architecture: Architecture) -> Iterator[tuple[str, Mapping[str, int], Strategy]]:
    """The library's strategies on a definition with values of tunables, the likelier fastest first: of one with slack Hopper's."""
    from fireiron.language.library import defaults, find

    spec, made = problem.spec, _definition(problem.options)
    if problem.options.slack:
        file = _file(BY_TMA)
        for form in file.forms(spec):
            yield _valued(f"{BY_TMA}:{form}", file.by_rows(made, **file.FORMS[form]), file.values_of(form, spec))
        return
    known = [(name, values, find(name).strategy) for name, values in defaults(spec, architecture)]
    if not known:
        file = _file("attention")
        yield _valued("attention", file.by_rows(made), file.values(spec, architecture))
    yield from ((name, values, strategy.with_(**values)) for name, values, strategy in known)


def _valued(name: str, strategy: Strategy, values: Mapping[str, int]) -> tuple[str, Mapping[str, int], Strategy]:
    """A strategy by name with those values that it has tunables for."""
    tunables = strategy.tunables()
    known = {tunable: value for tunable, value in values.items() if tunable in tunables}
    return name, known, strategy.with_(**known)


# ---------------------------------------------------------------------------------------------- PyTorch's operators


# What stands between here and the operators is traced by torch.compile itself: no classes of attrs, no caches, no locks.


def _through_torch(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any, lse: bool) -> Any:
    """The call as an operator."""
    import torch

    _operators()
    if lse:
        return torch.ops.fireiron.attention_lse(q, k, v, causal, window, scale, score)
    return torch.ops.fireiron.attention(q, k, v, causal, window, scale, score)


@operators.constant
def _operators() -> bool:
    with attention._lock:
        register_operators()
    return True


def _attend(q: Any, k: Any, v: Any, scale: float | None, options: Options) -> Any:
    """The call of an operator, with tensors on a GPU."""
    return attention.launched((q, k, v), None, options, scale, None, None, None)


_SCHEMA: Final = "(Tensor q, Tensor k, Tensor v, bool causal, int? window, float? scale, str? score) -> "


@functools.cache
def register_operators() -> tuple[Any, Any]:
    """The operators, registered: the result alone, and with the log-sum-exp."""
    import torch

    def attend(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        return _attend(q, k, v, scale, _options(causal, window, False, score))

    def attend_both(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        return _attend(q, k, v, scale, _options(causal, window, True, score))

    def shaped(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        _options(causal, window, False, score)
        sizes_of(q.shape, k.shape, v.shape)
        return q.new_empty_strided(q.shape, result_steps(q.shape, q.stride()))

    def shaped_both(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        return shaped(q, k, v, causal, window, scale, score), q.new_empty(q.shape[:-1], dtype=torch.float32)

    alone = operators.define("attention", f"{_SCHEMA}Tensor", attend, shaped)
    both = operators.define("attention_lse", f"{_SCHEMA}(Tensor, Tensor)", attend_both, shaped_both)
    for one in (alone, both):
        one.register_autograd(_nothing, setup_context=_no_gradient)
    return alone, both


def _no_gradient(ctx: Any, inputs: Any, output: Any) -> None:
    raise _without_gradient()


def _nothing(ctx: Any, *grads: Any) -> None:
    raise AssertionError("refused before")
