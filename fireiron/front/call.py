"""Execute a call on arrays: replay a recorded call, or call a cached kernel. If no kernel can read the arrays, the kernel uses copies.

A call is a subclass of `Call`. It converts its arguments to a `Request`, and creates an `Answer` for a request (`new_answer`). Its
`__call__` starts with the inlined replay: a warm call on PyTorch tensors executes no other Python code.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from fireiron.batches import Shape, new_like
from fireiron.copies import copied, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import each, joined, key_of
from fireiron.front.cache import LruCache
from fireiron.frozen import frozen
from fireiron.repeated import Replays

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import DType

P = ParamSpec("P")
Self = TypeVar("Self")
Result = TypeVar("Result")


class Request(NamedTuple):
    """The arguments of a call.

    `options` are hashable. `numbers` are passed to the kernel after the inputs. They do not select the kernel.
    """

    inputs: tuple[Any, ...]
    out: Any
    options: Any
    arch: Any = None
    require_record: bool | None = None
    numbers: tuple[float, ...] = ()


def takes(arguments: Callable[P, Request]) -> Callable[[Callable[[Self, Request], Result]], Callable[Concatenate[Self, P], Result]]:
    """Convert a method of a `Request` to a method with the signature of `arguments`, which returns the request."""

    def decorate(method: Callable[[Self, Request], Result]) -> Callable[Concatenate[Self, P], Result]:
        @functools.wraps(method)
        def called(self: Self, /, *args: P.args, **options: P.kwargs) -> Result:
            return method(self, arguments(*args, **options))

        stated, own = inspect.signature(arguments), inspect.signature(method)
        parameters = [own.parameters["self"], *stated.parameters.values()]
        called.__signature__ = stated.replace(parameters=parameters, return_annotation=own.return_annotation)  # type: ignore[attr-defined]
        return called

    return decorate


class Answer(Protocol):
    """A callable for requests with the same key."""

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel. If there are several, the first."""

    @property
    def choice(self) -> Choice:
        """The choice of the kernel, with its reason."""

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a tuple of several results."""


class Call:
    """A call on arrays. It caches answers by shapes, types, strides and alignment of the arrays."""

    arrays: ClassVar[int] = 0
    """The number of leading inputs that are always arrays. Later inputs may be numbers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.answers: LruCache[Answer] = LruCache(self.lock)
        self.replays = Replays()

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        raise NotImplementedError

    def key_of_options(self, request: Request) -> Any:
        """Return the key of a request's options, with which `__call__` looks up replays."""
        raise NotImplementedError

    def clear(self) -> None:
        """Discard all kernels, so that records and environment variables are read again."""
        with self.lock:
            self.answers.entries.clear()
            self.replays.clear()

    def answer(self, request: Request) -> Answer:
        """Return the cached answer for a request, or a new answer."""
        inputs, out, options, arch, require_record, _ = request
        count = self.arrays
        keys = tuple(map(key_of, inputs[:count]))
        if len(inputs) > count:
            keys += tuple([key_of(array) if getattr(array, "shape", ()) else None for array in inputs[count:]])
        key = (keys, out if out is None else self.key_of_outputs(out, options), options, arch, require_record)
        return self.answers.recall(key, lambda: self._make(request))

    def _make(self, request: Request) -> Answer:
        """Return a new answer. Garbage collection is postponed, because modules and kernels stay alive anyway."""
        from fireiron import collecting  # imported when needed

        with collecting.postponed(keeps=True):
            return self.new_answer(request)

    def begin(self, request: Request) -> None:
        """Choose and check the kernel of a request, and begin its compilation; launch nothing.

        The arrays may be descriptions of arrays (`fireiron.front.traced`). Raises: the errors of `answer`.
        """
        kernel = self.answer(request).kernel
        if "compiled" not in kernel.__dict__:
            kernel.begin()

    def key_of_outputs(self, out: Any, options: Any) -> Any:
        """Return the key of given outputs."""
        if isinstance(out, Mapping):
            return tuple((name, key_of(array)) for name, array in out.items())
        return tuple(map(key_of, each(out)))

    def run(self, request: Request, stream: Any) -> Any:
        """Return the result without a replay."""
        return self.answer(request)((*request.inputs, *request.numbers), request.out, stream)

    def launched(self, request: Request, stream: Any = None) -> Any:
        """Return the result, by a replay if possible. Autograd, autocast and torch.compile are ignored."""
        if stream is not None or not self.is_replayed(request):
            return self.run(request, stream)

        def make(out: Any, *inputs: Any) -> Any:
            return self.run(request._replace(inputs=inputs, out=out), None)

        return self.replays.call(self.key_of_options(request), request.out, request.inputs, make)

    def is_replayed(self, request: Request) -> bool:
        """Return whether the call is recorded and replayed. Calls on PyTorch tensors are."""
        return hasattr(request.inputs[0], "is_cuda")


@frozen
class Copied:
    """An answer that copies the inputs at `places`, because no kernel can read their storage.

    If `stored`, no kernel can write the given outputs either, so new outputs are copied to them. `outputs` are the keys of a mapping of
    outputs.
    """

    call: str
    answer: Answer
    places: frozenset[int]
    stored: bool
    outputs: tuple[str, ...] = ()

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel for the copies."""
        return self.answer.kernel

    @property
    def choice(self) -> Choice:
        """The choice of the kernel, with its reason."""
        return self.answer.choice

    def copy(self, array: Any) -> Any:
        """Return the copy of an input."""
        return copied(array)

    def copies(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs, with copies of those at `places`."""
        return copies_of(inputs, self.places, self.copy)

    def part(self, result: Any, target: Any) -> Any:
        """Return the part of a new result that is copied to `target`."""
        return result

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a tuple of several results."""
        refuse_stream(self.call, "arrays are copied", stream)
        copies = self.copies(inputs)
        if not self.stored:
            return self.answer(copies, out, None)
        results = each(self.answer(copies, None, None))
        for target, result in zip(each(out, self.outputs), results, strict=True):
            store(target, self.part(result, target))
        return returned(out, self.outputs)


def copies_of(inputs: Sequence[Any], places: frozenset[int], copy: Callable[[Any], Any] = copied) -> tuple[Any, ...]:
    """Return the inputs, with copies of those at `places`."""
    return tuple(copy(array) if place in places else array for place, array in enumerate(inputs))


def returned(out: Any, names: Sequence[str]) -> Any:
    """Return the given outputs in the form that a call returns: a mapping of several becomes a tuple in the order of `names`."""
    return each(out, names) if isinstance(out, Mapping) and len(names) > 1 else out


@frozen
class Empty:
    """An answer for arrays without elements: results of the given shapes and types, each filled with a value.

    `noun` and `unchosen` are texts for errors.
    """

    call: str
    results: tuple[tuple[Shape, DType, float], ...]
    outputs: tuple[str, ...] = ()
    noun: str = "result"
    unchosen: str = "no kernel is chosen or launched"

    @property
    def kernel(self) -> CompiledKernel:
        """Raise an `ArgumentError`: there is none."""
        raise ArgumentError(f"{self.call}: an array has no elements, so no kernel is chosen or launched", legal="sizes of at least 1")

    @property
    def choice(self) -> Choice:
        """Raise an `ArgumentError`: there is none."""
        raise ArgumentError(f"{self.call}: an array has no elements, so {self.unchosen}", legal="sizes of at least 1")

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result, or a tuple of several results."""
        refuse_stream(self.call, f"an empty {self.noun} is made", stream)
        if out is None:
            like = next(array for array in inputs if hasattr(array, "shape"))
            return joined([_filled(new_like(like, shape, dtype), value) for shape, dtype, value in self.results])
        for array, (shape, _, value) in zip(each(out, self.outputs), self.results, strict=True):
            if 0 not in shape:
                _filled(array, value)
        return returned(out, self.outputs)


def _filled(array: Any, value: float) -> Any:
    """Set all elements of an array to a value, and return it."""
    if value == 0:
        return zeroed(array)
    store(array, value)
    return array


__all__ = ["Answer", "Call", "Copied", "Empty", "Request", "copies_of", "returned", "takes"]
