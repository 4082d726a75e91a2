"""Read the state of the GPU from the driver: clocks, temperature, power, and the nodes that a stream has captured.

The state is read through the package `nvidia-ml-py` if it is installed, and otherwise through the program `nvidia-smi`. Without both, the
result is None. Sources: NVML API reference, "Clocks Event Reasons"; CUDA Driver API, "Stream Management"
(`cuStreamGetCaptureInfo`) and "Graph Management" (`cuGraphGetNodes`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import subprocess
from typing import Any

from fireiron.frozen import frozen
from fireiron.gpu import launch

REASONS = {0x4: "power cap", 0x8: "slowed down", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bits of NVML's clock event reasons that invalidate a measurement, because the clock is lower than requested."""

_QUERY = "clocks.sm,temperature.gpu,power.draw,driver_version"
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@frozen
class State:
    """One reading: SM clock in MHz, temperature in degrees Celsius, power in watts, and the reasons for a reduced clock."""

    clock: int
    temperature: int | None = None
    power: float | None = None
    throttle_reasons: tuple[str, ...] = ()


def read_state() -> State | None:
    """Return the state of the current GPU; None if unknown."""
    bus = launch.require_cupy().cuda.Device().pci_bus_id
    library = _nvml()
    return _from_smi(bus) if library is None else _from_nvml(library, bus)


def driver_release() -> str | None:
    """Return the driver's version, `"580.159.03"`; None if unknown."""
    library = _nvml()
    if library is not None:
        text = library.nvmlSystemGetDriverVersion()
        return text.decode() if isinstance(text, bytes) else str(text)
    fields = _smi(None)
    return fields[3] if fields else None


def captured_nodes(stream: int) -> int | None:
    """Return the number of launches that a stream has captured (`stream` is its address); None if the driver does not report it."""
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
    """Return the NVML library, initialized once; None if the package or the library is missing."""
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
    """Return the result of an NVML function; None if the GPU or the library does not support it."""
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
    """Return the fields of one GPU from nvidia-smi; empty if it fails."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", *(["-i", bus] if bus else [])]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [field.strip() for field in lines[0].split(",")] if lines else []


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
