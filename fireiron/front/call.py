"""The life of a call on arrays: replayed where it was recorded, else answered by a kernel that is kept, for copies where arrays lie oddly.

A call is a subclass of `Call` that states how its arguments become a `Request`, and what answers one (`new_answer`). Its `__call__` begins
with the replay, written out: a warm call of PyTorch tensors does no more than that in Python.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import attrs

from fireiron.batches import Shape, new_like
from fireiron.copies import copied, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError
from fireiron.front.arrays import each, joined, key_of
from fireiron.front.cache import LruCache
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

    `options` are hashable. `numbers` go to the kernel after the inputs and decide nothing else.
    """

    inputs: tuple[Any, ...]
    out: Any
    options: Any
    arch: Any = None
    require_record: bool | None = None
    numbers: tuple[float, ...] = ()


def takes(arguments: Callable[P, Request]) -> Callable[[Callable[[Self, Request], Result]], Callable[Concatenate[Self, P], Result]]:
    """Make a method of a request one of the arguments that make it, whose names, types and defaults `arguments` states once."""

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
    """What answers requests with one key."""

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel that multiplies, the first where there are two."""

    @property
    def choice(self) -> Choice:
        """Why it was chosen."""

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The result, or a tuple of all."""


class Call:
    """A call on arrays. Answers are kept in memory, by the arrays' shapes, types, strides and alignment."""

    arrays: ClassVar[int] = 0
    """How many of the inputs are arrays in any case; those after them may be numbers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.answers: LruCache[Answer] = LruCache(self.lock)
        self.replays = Replays()

    def new_answer(self, request: Request) -> Answer:
        """What answers a request that was not made before."""
        raise NotImplementedError

    def said(self, request: Request) -> Any:
        """What tells requests with the same arrays apart; `__call__` looks replays up by the same."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget all kernels, so that records and environment variables are read anew."""
        with self.lock:
            self.answers.entries.clear()
            self.replays.clear()

    def answer(self, request: Request) -> Answer:
        """What answers a request: kept, else made now."""
        inputs, out, options, arch, require_record, _ = request
        count = self.arrays
        keys = tuple(map(key_of, inputs[:count]))
        if len(inputs) > count:
            keys += tuple([key_of(array) if getattr(array, "shape", ()) else None for array in inputs[count:]])
        key = (keys, out if out is None else self.key_of_outputs(out, options), options, arch, require_record)
        return self.answers.recall(key, lambda: self._made(request))

    def _made(self, request: Request) -> Answer:
        """A new answer; what is imported for it, and the kernel, live on, so garbage can wait."""
        from fireiron import collecting  # as all that makes kernels, first needed where one is made

        with collecting.put_off():
            return self.new_answer(request)

    def key_of_outputs(self, out: Any, options: Any) -> Any:
        """What tells given outputs apart."""
        if isinstance(out, Mapping):
            return tuple((name, key_of(array)) for name, array in out.items())
        return tuple(map(key_of, each(out)))

    def run(self, request: Request, stream: Any) -> Any:
        """The result, where the call is not replayed."""
        return self.answer(request)((*request.inputs, *request.numbers), request.out, stream)

    def launched(self, request: Request, stream: Any = None) -> Any:
        """The result by our kernels at once: what autograd, autocast or a compiler make of the call is not asked."""
        if stream is not None or not self.is_replayed(request):
            return self.run(request, stream)

        def make(out: Any, *inputs: Any) -> Any:
            return self.run(request._replace(inputs=inputs, out=out), None)

        return self.replays.call(self.said(request), request.out, request.inputs, make)

    def is_replayed(self, request: Request) -> bool:
        """Whether the call is recorded and replayed: that of PyTorch tensors."""
        return hasattr(request.inputs[0], "is_cuda")


@attrs.frozen
class Copied:
    """An answer for arrays of which no kernel reads those at `places` of the inputs as they lie: copies take their place.

    With `stored` outputs that are given lie so, and new ones are stored in them; `outputs` are the names by which a mapping has them.
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
        """Why it was chosen."""
        return self.answer.choice

    def copy(self, array: Any) -> Any:
        """An input as the kernel reads it."""
        return copied(array)

    def part(self, result: Any, target: Any) -> Any:
        """What of a new result is stored."""
        return result

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The result, or a tuple of all."""
        refuse_stream(self.call, "arrays are copied", stream)
        copies = copies_of(inputs, self.places, self.copy)
        if not self.stored:
            return self.answer(copies, out, None)
        results = each(self.answer(copies, None, None))
        for target, result in zip(each(out, self.outputs), results, strict=True):
            store(target, self.part(result, target))
        return returned(out, self.outputs)


def copies_of(inputs: Sequence[Any], places: frozenset[int], copy: Callable[[Any], Any] = copied) -> tuple[Any, ...]:
    """Inputs with copies of those at some places."""
    return tuple(copy(array) if place in places else array for place, array in enumerate(inputs))


def returned(out: Any, names: Sequence[str]) -> Any:
    """What a call returns that fills the given outputs: these, a mapping of several as a tuple in the order of their names."""
    return each(out, names) if isinstance(out, Mapping) and len(names) > 1 else out


@attrs.frozen
class Empty:
    """An answer for arrays without elements: results of these shapes and types, all of whose elements are one value.

    `noun` is what errors call them, and `unchosen` what that for `choice` states.
    """

    call: str
    results: tuple[tuple[Shape, DType, float], ...]
    outputs: tuple[str, ...] = ()
    noun: str = "result"
    unchosen: str = "no kernel is chosen or launched"

    @property
    def kernel(self) -> CompiledKernel:
        """There is none."""
        raise ArgumentError(f"{self.call}: an array has no element, so no kernel is chosen or launched", legal="sizes of at least 1")

    @property
    def choice(self) -> Choice:
        """There is none."""
        raise ArgumentError(f"{self.call}: an array has no element, so {self.unchosen}", legal="sizes of at least 1")

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The result, or a tuple of all."""
        refuse_stream(self.call, f"an empty {self.noun} is made", stream)
        if out is None:
            return joined([_filled(new_like(inputs[0], shape, dtype), value) for shape, dtype, value in self.results])
        for array, (shape, _, value) in zip(each(out, self.outputs), self.results, strict=True):
            if 0 not in shape:
                _filled(array, value)
        return returned(out, self.outputs)


def _filled(array: Any, value: float) -> Any:
    """The array itself, all of its elements set to a value."""
    if value == 0:
        return zeroed(array)
    store(array, value)
    return array


__all__ = ["Answer", "Call", "Copied", "Empty", "Request", "copies_of", "returned", "takes"]
