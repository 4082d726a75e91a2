"""Choose and compile the kernels of a call in a thread while `torch.compile` traces the call.

PyTorch calls the fake implementation of an operator long before it launches the operator: it still has to generate and compile its own
code. `begin` takes the traced tensors, describes them as the launch will pass them, and adds the call to a queue. One thread chooses,
lowers, checks and compiles the kernels of the queue. The launch finds them in the cache of its call (`fireiron.front.call`).

The thread reports nothing. If it fails, or if the launch passes tensors with other strides, the launch does all work itself and raises the
errors. See docs/decisions/0083-early-compilation.md.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple


class Described:
    """A tensor on a GPU as far as it selects a kernel: shape, strides, type and alignment. Operations give other descriptions.

    `meta` is a tensor of PyTorch without memory, whose operations compute shapes and strides. `offset` counts the elements before the
    first one of `meta`. PyTorch aligns the memory of tensors to at least 64 bytes.
    """

    is_cuda: Final = True

    def __init__(self, meta: Any, device: int, offset: int = 0) -> None:
        self._meta, self._device, self._offset = meta, device, offset
        self.shape, self.dtype, self.stride = meta.shape, meta.dtype, meta.stride

    def get_device(self) -> int:
        """Return the index of the GPU."""
        return self._device

    def data_ptr(self) -> int:
        """Return an address with the alignment of the tensor."""
        offset: int = self._offset + self._meta.storage_offset()
        return offset * int(self._meta.element_size())

    def new_empty(self, *arguments: Any, **options: Any) -> Described:
        """Return the description of a new tensor."""
        return Described(self._meta.new_empty(*arguments, **options), self._device)

    def clone(self, **options: Any) -> Described:
        """Return the description of a copy."""
        return Described(self._meta.clone(**options), self._device)

    def _same(self, meta: Any) -> Described:
        return Described(meta, self._device, self._offset)

    def as_strided(self, *arguments: Any) -> Described:
        """Return the description of a view."""
        return self._same(self._meta.as_strided(*arguments))

    def view(self, *arguments: Any) -> Described:
        """Return the description of a view."""
        return self._same(self._meta.view(*arguments))

    def reshape(self, *arguments: Any) -> Described:
        """Return the description of a view, or of a copy if no view has the shape."""
        view = self._meta.reshape(*arguments)
        return self._same(view) if view._base is not None or view is self._meta else Described(view, self._device)

    def __getitem__(self, index: Any) -> Described:
        return self._same(self._meta[index])

    def zero_(self) -> Described:
        """Return the description; it has no elements to set."""
        return self

    def copy_(self, source: Described) -> Described:
        """Return the description; it has no elements to set."""
        return self

    @property
    def T(self) -> Described:
        """The description of the transposed tensor."""
        return self._same(self._meta.T)


Described.__module__ = "torch"  # other modules determine the library of an array by the module of its class


class _Traced(NamedTuple):
    """What selects a kernel of a traced tensor, without objects of PyTorch that belong to the trace."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: int
    offset: int

    def described(self) -> Described:
        """Return the description. Call it in the thread: where PyTorch traces, its `meta` would be a tensor of the trace."""
        meta = sys.modules["torch"].empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        return Described(meta, self.device, self.offset)


def _traced(tensor: Any) -> _Traced | None:
    """Return what selects a kernel of a traced tensor; None if it is not on a GPU, or its sizes are known only when the operator runs."""
    device: Any = getattr(tensor, "device", None)
    if getattr(device, "type", None) != "cuda" or device.index is None:
        return None
    shape, strides, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    if not all(type(number) is int for number in (*shape, *strides, offset)):
        return None
    return _Traced(shape, strides, tensor.dtype, device.index, offset)


def is_compiling() -> bool:
    """Return whether this thread compiles a function by `torch.compile`, which then runs on this machine; not for `torch.export`."""
    torch: Any = sys.modules.get("torch")
    context = getattr(getattr(torch, "_guards", None), "TracingContext", None)
    if context is None or context.try_get() is None:
        return False
    exporting = getattr(torch.compiler, "is_exporting", None)
    return exporting is None or not exporting()


# ---------------------------------------------------------------------------------------------- the thread


Task = Callable[[], object]


class _Queue:
    """Tasks that one thread executes in order. The thread ends when there are no tasks, and when the main thread ends."""

    def __init__(self) -> None:
        self._tasks: collections.deque[Task] = collections.deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, task: Task) -> None:
        """Add a task, and start the thread if there is none."""
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fireiron: kernels of traced calls")
                self._thread.start()

    def wait(self) -> None:
        """Wait until all tasks are done."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._tasks or not threading.main_thread().is_alive():
                    self._tasks.clear()
                    self._thread = None
                    return
                task = self._tasks.popleft()
            _attempt(task)


def _attempt(task: Task) -> None:
    """Execute a task. Any error is also an error of the launch, which raises it."""
    with contextlib.suppress(Exception):
        task()


queue: Final = _Queue()
"""The tasks of this process."""


def begin(prepare: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Call `prepare` in the thread with descriptions in place of traced tensors, if `torch.compile` traces and all sizes are known."""
    if not is_compiling():
        return
    try:
        known = [_known(argument) for argument in arguments]
    except _UnknownError:
        return
    queue.add(lambda: prepare(*map(_described, known)))


class _UnknownError(Exception):
    """An argument is known only when the operator runs."""


def _known(argument: Any) -> Any:
    """Return an argument of an operator without the objects of the trace."""
    if isinstance(argument, list | tuple):
        return [_known(element) for element in argument]
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    tensor = _traced(argument)
    if tensor is None:
        raise _UnknownError
    return tensor


def _described(argument: Any) -> Any:
    """Return an argument with descriptions in place of traced tensors."""
    if isinstance(argument, _Traced):
        return argument.described()
    return [_described(element) for element in argument] if isinstance(argument, list) else argument


__all__ = ["Described", "begin", "is_compiling", "queue"]
