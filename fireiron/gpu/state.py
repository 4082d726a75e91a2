"""What the driver tells about the GPU while it works: clocks, heat, power, and what a stream has captured.

NVML is asked through the package `nvidia-ml-py` if it is there, else through the program `nvidia-smi`; without both the
answer is None, never a guess. Sources: NVML API reference, "Clocks Event Reasons"; CUDA Driver API, "Stream Management"
(`cuStreamGetCaptureInfo`) and "Graph Management" (`cuGraphGetNodes`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import subprocess
from typing import Any

import attrs

from fireiron.gpu import launch

REASONS = {0x4: "power cap", 0x8: "slowed down", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bits of NVML's mask of reasons why the clock is below what was asked for, those that disturb a measurement."""

_QUERY = "clocks.sm,temperature.gpu,power.draw,driver_version"
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@attrs.frozen
class State:
    """One reading: the clock of the multiprocessors in MHz, degrees Celsius, watts, and why the clock is held back."""

    clock: int
    temperature: int | None = None
    power: float | None = None
    held_back: tuple[str, ...] = ()


def read_state() -> State | None:
    """The state of the current GPU; None where nobody tells."""
    bus = launch.require_cupy().cuda.Device().pci_bus_id
    library = _nvml()
    return _from_smi(bus) if library is None else _from_nvml(library, bus)


def driver_release() -> str | None:
    """The driver's version, `"580.159.03"`; None where nobody tells."""
    library = _nvml()
    if library is not None:
        text = library.nvmlSystemGetDriverVersion()
        return text.decode() if isinstance(text, bytes) else str(text)
    fields = _smi(None)
    return fields[3] if fields else None


def captured_nodes(stream: int) -> int | None:
    """How many launches a capturing stream, given by its address, has taken up; None where the driver cannot tell."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        info, nodes = driver.cuStreamGetCaptureInfo_v2, driver.cuGraphGetNodes
    except (OSError, AttributeError):
        return None
    status, identity, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    graph, dependencies = ctypes.c_void_p(), ctypes.c_void_p()
    results = [ctypes.byref(value) for value in (status, identity, graph, dependencies, count)]
    if info(ctypes.c_void_p(stream), *results) or status.value != _ACTIVE or not graph.value:
        return None
    return None if nodes(graph, None, ctypes.byref(count)) else count.value


# ---------------------------------------------------------------------------------------------- NVML and nvidia-smi


@functools.cache
def _nvml() -> Any:
    """The NVML library, initialised once; None if the package or the library is missing."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def _from_nvml(library: Any, bus: str) -> State | None:
    try:
        handle = library.nvmlDeviceGetHandleByPciBusId(bus.encode())
        clock = library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)
    except library.NVMLError:
        return None
    heat = _optional(library, "nvmlDeviceGetTemperature", handle, library.NVML_TEMPERATURE_GPU)
    power = _optional(library, "nvmlDeviceGetPowerUsage", handle)  # milliwatts
    mask = _optional(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    reasons = tuple(dict.fromkeys(name for bit, name in REASONS.items() if mask & bit))
    return State(int(clock), heat, None if power is None else power / 1000, reasons)


def _optional(library: Any, function: str, *arguments: Any) -> Any:
    """What a function of NVML answers; None where the GPU or the library does not have it."""
    try:
        return getattr(library, function)(*arguments)
    except (library.NVMLError, AttributeError):
        return None


def _from_smi(bus: str) -> State | None:
    fields = _smi(bus)
    if not fields or not fields[0].isdigit():
        return None
    heat, power = fields[1], fields[2]
    return State(int(fields[0]), int(heat) if heat.isdigit() else None, float(power) if _is_number(power) else None)


def _smi(bus: str | None) -> list[str]:
    """The fields of one GPU, by the program nvidia-smi; empty if it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", *(["-i", bus] if bus else [])]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [field.strip() for field in lines[0].split(",")] if lines else []


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
