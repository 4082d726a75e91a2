"""Replay calls on PyTorch tensors without Python code: repeat the launches of a recorded call with the addresses of other tensors.

The first call with a signature (element types, shapes, strides, alignment, GPU, options) is executed normally and recorded: its kernels,
their addresses as offsets in tensors, and its allocations. `replays.c` looks up and launches later calls. The host's C compiler compiles it
to a Python module in the background when the first call is recorded, and the cache stores the module. Calls are replayed only with a C
compiler, Python's headers, a PyTorch with DLPack's exchange API (2.10), and without FIREIRON_NO_CACHE=1.

An address identifies its tensor only if no tensors overlap. If tensors of a call overlap, because one is passed twice or with its
transpose, the call is recorded with zero tensors instead. Calls on a given stream, calls that copy arrays by PyTorch, and calls with arrays
of other libraries are never recorded.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.machinery
import importlib.util
import itertools
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from fireiron import settings
from fireiron.errors import LaunchError
from fireiron.frozen import frozen
from fireiron.gpu import built, launch
from fireiron.recorder import Recording

SOURCE: Final = Path(__file__).with_name("replays.c")
OPTIONS: Final = ("-std=c11", "-O2", "-fPIC", "-shared", "-w")
COMPILERS: Final = ("cc", "gcc", "clang")
MODULE: Final = "fireiron_replays"
WHAT: Final = "the replay of calls"

MOST_ALIGNED: Final = 64
"""Largest alignment in bytes that is distinguished."""

MOST_ARRAYS: Final = 32
"""Maximum number of tensors of a call that is replayed, as in `replays.c`."""

ALLOCATED: Final = 512
"""Alignment in bytes of tensors that PyTorch allocates on a GPU (`c10/cuda/CUDACachingAllocator`)."""

MOST_MADE: Final = 16
"""Maximum number of tensors that a replay allocates, as in `replays.c`."""

MOST_LAUNCHES: Final = 16
"""Maximum number of launches of a replay, as in `replays.c`."""

QUICK: Final = ("_C", "_dynamo", "guards", "_empty_strided_cuda")
"""The path of PyTorch's function that allocates on the current GPU without the dispatcher."""

Maker: TypeAlias = "Callable[[], Any] | tuple[Callable[[], Any], Callable[[], Any]]"
"""A function that allocates a tensor, or a pair with a quick one for the current GPU."""

ADDRESS, WORD, MAP, COUNTER = range(4)
"""The kinds of kernel parameters, as in `replays.c`."""


# ---------------------------------------------------------------------------------------------- recorded calls


class AmbiguousError(Exception):
    """Raised if tensors of a call overlap, so that addresses do not identify them."""


class _UnknownError(Exception):
    """Raised if a launch accesses memory that is not a tensor of the call."""


@frozen
class _Array:
    """A tensor of a call: the bytes from the first of its elements to the last."""

    tensor: Any
    start: int
    end: int

    @classmethod
    def of(cls, tensor: Any) -> _Array:
        reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        return cls(tensor, start, start + (reach + 1) * tensor.element_size())

    def holds(self, start: int, end: int) -> bool:
        """Return whether it contains these bytes."""
        return self.start <= start and end <= self.end

    @property
    def maker(self) -> Maker:
        """Return the allocation of a tensor with the same layout."""
        return _maker(tuple(self.tensor.shape), tuple(self.tensor.stride()), self.tensor.dtype, self.tensor.device)


@frozen
class _Placed:
    """A tensor of a call, and the tensor of a replay and the offset in bytes that replace it.

    Tensors that no caller sees are parts of one allocation, because an allocation takes as long as a launch.
    """

    array: _Array
    place: int
    offset: int = 0


def recipe(inputs: Sequence[Any], out: Any, allocated: Any, recording: Recording) -> tuple[Any, ...] | None:
    """Return the recording of a call, as `replays.c` reads it; None for a call that is never replayed.

    Raises: AmbiguousError if tensors of this call overlap.
    """
    if not recording.is_whole or not recording.launches:
        return None
    is_tuple = isinstance(allocated, tuple | list)
    outs = () if out is None else tuple(out) if isinstance(out, tuple | list) else (out,)
    given = [_Array.of(tensor) for tensor in (*inputs, *outs) if hasattr(tensor, "data_ptr")]
    results = [_Array.of(tensor) for tensor in (allocated if is_tuple else (allocated,))] if out is None else []
    used = {address for _, addresses in recording.launches for address in addresses}
    between = [
        array
        for array in map(_Array.of, recording.allocated)
        if not any(other.holds(array.start, array.end) for other in (*results, *given))
        and any(array.start <= address < array.end for address in used)
    ]
    _refuse_overlap([*given, *results, *between])
    memory, starts, size = len(given) + len(results), [], 0
    for array in between:
        starts.append(size)
        size += -(-(array.end - array.start) // ALLOCATED) * ALLOCATED
    arrays = [_Placed(array, place) for place, array in enumerate((*given, *results))]
    arrays += [_Placed(array, memory, start) for array, start in zip(between, starts, strict=True)]
    device = recording.launches[0][0].device
    try:
        launches = tuple(_launch(plan, addresses, arrays, memory) for plan, addresses in recording.launches)
    except _UnknownError:
        return None
    makers = (*(array.maker for array in results), *((_memory_like(between[0].tensor, size),) if between else ()))
    spans = (*(array.end - array.start for array in (*given, *results)), *((size,) if between else ()))
    if len(spans) > MOST_ARRAYS or len(makers) > MOST_MADE or len(launches) > MOST_LAUNCHES:
        return None
    return device, launch.context_of(device), makers, tuple(range(len(results))), is_tuple, spans, launches


def _memory_like(tensor: Any, size: int) -> Maker:
    """Return the allocation of bytes on the device of a tensor."""
    return _maker((size,), (1,), sys.modules["torch"].uint8, tensor.device)


def _maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any) -> Maker:
    """Return a function that allocates a tensor, with a quick one that allocates it on the current GPU, if PyTorch has it.

    The quick one is that of PyTorch's compiler. It takes about half the time, because it does not use the dispatcher.
    """
    torch: Any = sys.modules["torch"]
    plain = functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)
    quick = functools.reduce(lambda module, name: getattr(module, name, None), QUICK, torch)
    return plain if quick is None else (plain, functools.partial(quick, shape, strides, dtype))


def stand_ins(inputs: Sequence[Any], out: Any) -> tuple[tuple[Any, ...], Any]:
    """Return zero tensors with the same signatures, in separate memory, to record a call with them."""
    is_tuple = isinstance(out, tuple | list)
    outs = tuple(map(_stand_in, out)) if is_tuple else _stand_in(out)
    return tuple(map(_stand_in, inputs)), outs


def _stand_in(tensor: Any) -> Any:
    if not hasattr(tensor, "data_ptr"):
        return tensor
    original, size = _Array.of(tensor), tensor.element_size()
    low = original.start & (MOST_ALIGNED - 1)
    memory = sys.modules["torch"].zeros((original.end - original.start + MOST_ALIGNED) // size, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tuple(tensor.shape), tuple(tensor.stride()), (low & -low) // size)


def _refuse_overlap(arrays: Sequence[_Array]) -> None:
    ordered = sorted(arrays, key=lambda array: array.start)
    if any(after.start < before.end for before, after in itertools.pairwise(ordered)):
        raise AmbiguousError


def _place(arrays: Sequence[_Placed], start: int, end: int) -> tuple[int, int]:
    """Return the tensor that contains these bytes, and their offset in it."""
    for placed in arrays:
        if placed.array.holds(start, end):
            return placed.place, placed.offset + start - placed.array.start
    raise _UnknownError


def _launch(plan: Any, addresses: Sequence[int], arrays: Sequence[_Placed], memory: int) -> tuple[Any, ...]:
    """Return a launch: function, blocks and threads, shared memory, whether it uses PDL, parameters, arrays to set to zero.

    `memory` is the place of the tensors that no caller sees.
    """
    fixed: launch.FixedLaunch = plan.launch
    ends = [address + view.end for address, view in zip(addresses, plan.views, strict=True)]
    by_value = [buffer.memory.by_value for buffer in plan.buffers]
    placed = [
        (WORD, start) if number else (ADDRESS, *_place(arrays, start, end))
        for start, end, number in zip(*map(plan.placed, (addresses, ends, by_value)), strict=True)
    ]
    slots = [*placed, *([] if fixed.counter is None else [(COUNTER, fixed.counter)]), *((WORD, value) for value in fixed.values)]
    parameters = tuple(_parameter(index, slots) for index in (range(len(slots)) if fixed.parameters is None else fixed.parameters))
    fills = _joined(sorted(part for position, fill in fixed.fills for part in _fills(fill, *slots[position][1:])), memory)
    return fixed.function, fixed.shape, fixed.shared, fixed.is_programmatic, parameters, fills


def _parameter(parameter: launch.Parameter, slots: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    if not isinstance(parameter, launch.Mapped):
        return slots[parameter]
    _, place, offset = slots[parameter.place]
    if (form := parameter.form) is None:
        return MAP, place, offset, functools.partial(_encoded, parameter.encode)
    return MAP, place, offset, form.kind, form.swizzle, launch.PROMOTED, form.extents, form.strides, form.box


def _fills(fill: launch.Fill, place: int, offset: int) -> Iterable[tuple[int, ...]]:
    if fill.bits:  # the module only zeroes
        raise _UnknownError
    return ((place, offset + start, fill.width, fill.height, fill.pitch) for start in fill.starts)


def _encoded(encode: Callable[[int], launch.EncodedMap], address: int) -> bytes:
    """Return the bytes of a tensor map that `replays.c` does not encode."""
    return ctypes.string_at(encode(address).address, launch.MAP_BYTES)


def _joined(fills: Sequence[tuple[int, ...]], memory: int) -> tuple[tuple[int, ...], ...]:
    """Return fills in ascending order, those of adjacent tensors that no caller sees as one fill, which includes the bytes between them."""
    joined: list[tuple[int, ...]] = []
    for place, start, width, height, pitch in fills:
        if joined and place == memory == joined[-1][0] and height == joined[-1][3] == 1:
            first, end = joined[-1][1], sum(joined[-1][1:3])
            if end <= start < end + ALLOCATED:
                whole = start + width - first
                joined[-1] = (place, first, whole, 1, whole)
                continue
        joined.append((place, start, width, height, pitch))
    return tuple(joined)


# ---------------------------------------------------------------------------------------------- the module


class _Module:
    """The C module that replays calls in this process: from the cache, or compiled in the background."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._building: built.Building | None = None
        self._module: Any = None
        self.is_given_up = False
        self.why = ""
        """The reason why calls are never replayed in this process; empty if they may be."""

    def __call__(self) -> Any:
        if self._module is None and not self.is_given_up:
            with self._lock:
                if self._module is None and not self.is_given_up:
                    self._module = self._load_or_build()
        return self._module

    def _load_or_build(self) -> Any:
        """Return the module, initialized for PyTorch; None while it is being compiled, and if it cannot be used."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        try:
            path = self._path(torch)
            return None if path is None else _configured(_loaded(path), torch)
        except (LaunchError, OSError, ImportError, ValueError) as error:  # without the module, calls are slower but work
            self.is_given_up, self.why = True, str(error)
            return None

    def _path(self, torch: Any) -> Path | None:
        if self._building is not None:
            return None if self._building.is_running else self._building.finish(WHAT)
        compiler, headers = built.compiler_among(COMPILERS), Path(sysconfig.get_paths()["include"])
        if not settings.cache_enabled() or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            raise LaunchError("calls are not replayed: the cache is disabled, or PyTorch has no DLPack exchange API")
        version = f"{sys.version} {sysconfig.get_config_var('EXT_SUFFIX')}".encode()
        path = built.folder(WHAT) / f"replays-{built.digest_of((SOURCE.read_bytes(), version, *map(str.encode, OPTIONS)))}.so"
        if path.exists():
            return path
        if compiler is None or not (headers / "Python.h").exists():
            raise LaunchError("replaying calls requires a C compiler and the headers of Python", got="no compiler, or no Python.h")
        self._building = built.Building.start([compiler, *OPTIONS, f"-I{headers}", str(SOURCE)], path)
        return None

    def wait(self) -> None:
        """Wait until a module that is being compiled is complete, for measurements and tests."""
        self()
        while not self.is_given_up and self() is None and self._building is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._building.wait(1.0)


module_here: Final = _Module()
"""Returns the module that replays calls in this process; None if there is none yet."""


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=importlib.machinery.ExtensionFileLoader(MODULE, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUNCTIONS: Final = (
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuTensorMapEncodeTiled",
    "cuMemsetD8Async",
    "cuMemsetD2D8Async",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamIsCapturing",
)
"""The driver functions that the module calls, in the order of `replays.c`."""


def _configured(module: Any, torch: Any) -> Any:
    plain = torch.Tensor, torch.nn.Parameter
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    module.configure(exchange, plain, torch.is_grad_enabled, launch.addresses_of(FUNCTIONS), modes)
    return module


__all__ = ["AmbiguousError", "module_here", "recipe", "stand_ins"]
