"""Cache choices on disk, so that the next process need not compare records and strategies again.

The key consists of all inputs of a choice: the problem, the target, the GPU, the files of records in use, the compiler, and the build
of this package and its library. The value is the bound strategy with its tunables, the record and the reason.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any, Final

from fireiron import collecting, disk_cache, settings
from fireiron.compiler import Program
from fireiron.errors import CacheWarning
from fireiron.executable import INSTRUCTIONS
from fireiron.gpu import launch, programs, toolchain
from fireiron.package_paths import library_folder
from fireiron.tune.records.choosing import Choice
from fireiron.tune.records.files import record_files, stamp
from fireiron.values.machine import Architecture

KIND: Final = "choice"
"""The kind of these entries, and their file suffix."""


def chosen(
    call: str, architecture: Architecture, device: int | None, inputs: tuple[Any, ...], choose: Callable[[], tuple[Choice, int]]
) -> tuple[Choice, int]:
    """Return the cached choice for this GPU, or otherwise a new choice, which is cached; and the index of its problem.

    Args: call: the name of the function. inputs: the inputs of the choice in addition to target, records and compiler: values of the
        language, numbers and texts. Without a GPU, nothing is cached.
    """
    with collecting.postponed():
        if device is None or not launch.gpu_available():
            return choose()
        key = _key_on(call, architecture, device, inputs)
        result = recalled(key)
        if result is None:
            result = choose()
            remember(key, *result)
        return result


def decided(call: str, architecture: Architecture, device: int, inputs: tuple[Any, ...], choice: Choice, number: int) -> None:
    """Cache a choice that replaces the one of `chosen`."""
    remember(_key_on(call, architecture, device, inputs), choice, number)


def _key_on(call: str, architecture: Architecture, device: int, inputs: tuple[Any, ...]) -> str | None:
    return key_of(call, architecture, launch.driver_version(), *inputs, device_name(device))


def device_name(device: int) -> str:
    """Return the name of a GPU."""
    return _name(launch.require_cupy().cuda.runtime, device)


@functools.lru_cache(maxsize=16)  # a first call needs it up to ten times, and the driver takes 1 to 4 ms
def _name(runtime: Any, device: int) -> str:
    name = runtime.getDeviceProperties(device)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def key_of(call: str, architecture: Architecture, newest: tuple[int, int] | None, *inputs: Any) -> str | None:
    """Return the key of a choice; None if it cannot be cached."""
    if not settings.cache_enabled():
        return None
    compiler = toolchain.serving(architecture.name, newest)
    identity = None if compiler is None else (compiler.version, compiler.identity)
    return disk_cache.key_of(KIND, call, architecture, identity, _records(), inputs)


def _records() -> tuple[Any, ...]:
    """Return the files of records in use, with their stamps."""
    own, folder = settings.records_path(), library_folder() / "records"
    named = () if own is None else record_files(own)
    shipped = record_files(folder) if folder.is_dir() else ()
    return tuple((str(path), stamp(path)) for path in named), tuple((path.name, stamp(path)[:2]) for path in shipped)


def recalled(key: str | None) -> tuple[Choice, int] | None:
    """Return the cached choice with the index of its problem; None if there is none."""
    path = None if key is None else programs.place(KIND, key)
    data = None if path is None else disk_cache.bytes_at(path)
    if key is None or path is None or data is None:
        return None
    try:
        (record, exact, why, *program, program_key, number), _ = disk_cache.read(KIND, key, data)
        strategy, spec, architecture, name, chosen = program
        answer = programs.recalled(Program(strategy, spec, architecture, INSTRUCTIONS, name, chosen), program_key)
        return Choice(record, exact, why, answer), int(number)
    except (disk_cache.DamagedError, TypeError, ValueError) as error:
        warnings.warn(f"{path} is not used, and is written again: {error}", CacheWarning, stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink()
        return None


def remember(key: str | None, choice: Choice, number: int) -> None:
    """Cache a choice; errors of a full or read-only disk are ignored."""
    program = choice.program
    if key is None or program.instructions != INSTRUCTIONS:
        return
    program_key = program.key if program.has_key else programs.key_of(program)
    parts = program.strategy, program.spec, program.architecture, program.name, dict(program.chosen), program_key
    about = {"kernels": [program.name], "about": str(program.spec)[:200], "arch": program.architecture.name}
    data = disk_cache.written(
        KIND, key, (choice.record, choice.exact, choice.why, *parts, number), {**about, "toolchain": [], "seconds": 0.0}
    )
    if data is not None:
        with contextlib.suppress(OSError):
            disk_cache.save(programs.place(KIND, key), data)


__all__ = ["KIND", "chosen", "decided", "device_name", "key_of", "recalled", "remember"]
