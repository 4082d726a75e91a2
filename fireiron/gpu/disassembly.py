"""Disassemble machine code to SASS with nvdisasm or cuobjdump. No GPU is needed.

Source: CUDA Binary Utilities, https://docs.nvidia.com/cuda/cuda-binary-utilities/.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fireiron import settings
from fireiron.errors import LaunchError
from fireiron.gpu.toolchain import toolkits, wheel_files

TIMEOUT = 120.0
"""Time limit in seconds for a tool."""

_ARGUMENTS = {"nvdisasm": ("--print-code",), "cuobjdump": ("--dump-sass",)}
_WHEELS = ("nvidia-cuda-nvdisasm", "nvidia-cuda-cuobjdump")
_HINT = "pip install nvidia-cuda-nvdisasm (in 'fireiron[check]'), or put a CUDA toolkit's bin folder into PATH"
_OTHER = "put the bin folder of a CUDA toolkit that supports this architecture into PATH, or set CUDA_HOME to its folder"


def disassemblers() -> tuple[Path, ...]:
    """Return the installed tools in the order in which they are tried: nvdisasm before cuobjdump.

    Searches PATH, the toolkits of CUDA_HOME, CUDA_PATH and `/usr/local`, NVIDIA's pip wheels, and Triton, which contains
    its own tools.
    """
    return tuple(dict.fromkeys(path for tool in _ARGUMENTS for path in _candidates(tool) if os.access(path, os.X_OK)))


def sass(cubin: bytes) -> str:
    """Return the instructions of every kernel in a cubin.

    Raises:
        LaunchError: no tool is installed, or none supports this architecture.
    """
    tools = disassemblers()
    if not tools:
        raise LaunchError("SASS requires nvdisasm or cuobjdump, and neither is installed", hint=_HINT)
    refused = []
    for tool in tools:
        text, reason = _run(tool, cubin)
        if text:
            return text
        refused.append(f"  {tool}: {reason}")
    raise LaunchError("\n".join(["the machine code cannot be disassembled", *refused]), hint=_OTHER)


def _candidates(tool: str) -> Iterator[Path]:
    on_path = shutil.which(tool)
    if on_path is not None:
        yield Path(on_path)
    yield from (folder / "bin" / tool for folder in (*settings.toolkit_folders(), *toolkits()))
    for wheel in _WHEELS:
        yield from (path for path in wheel_files(wheel) if path.name == tool)
    triton = importlib.util.find_spec("triton")  # finds it without importing it
    for folder in (triton.submodule_search_locations or ()) if triton is not None else ():
        yield Path(folder, "backends", "nvidia", "bin", tool)


def _run(tool: Path, cubin: bytes) -> tuple[str, str]:
    """Return the text, or the reason for its absence. The file always has the same name, because a tool may print it."""
    with tempfile.TemporaryDirectory(prefix="fireiron-") as folder:
        Path(folder, "kernel.cubin").write_bytes(cubin)
        command = [os.fspath(tool), *_ARGUMENTS[tool.name], "kernel.cubin"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            return "", f"no answer within {TIMEOUT:.0f} s"
        except OSError as error:
            return "", error.strerror or str(error)
    if done.returncode or not done.stdout.strip():
        lines = (done.stderr or done.stdout).strip().splitlines()
        return "", lines[0] if lines else f"exit status {done.returncode}, and no message"
    return done.stdout, ""
