"""`fireiron doctor`: list what is installed, what is broken, and how to install what is missing."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs

from fireiron._version import VERSION
from fireiron.cli.arguments import Add
from fireiron.cli.folded import table
from fireiron.cli.output import FAILED, paint, print_json, width_of_output, working
from fireiron.errors import FireironError
from fireiron.frozen import frozen

OK: Final = "ok"
MISSING: Final = "-"
"""The state of an optional item that is not installed. `do` has the command that installs it."""
WRONG: Final = "wrong"
"""The state of an item that is installed but broken, or missing although it is required. The exit status is 1."""

USES: Final = {
    "cuda13": "run on a GPU, Turing or newer (driver of CUDA 13)",
    "cuda12": "run on a GPU, Maxwell or newer (driver of CUDA 12)",
    "check": "compile, disassemble and count registers without a GPU",
    "bf16": "bfloat16 and 8-bit floats in NumPy arrays",
    "plot": "pictures as PNG",
    "tune": 'tune with search="tpe"',
    "bench": "gpu_benchmark in pytest, clocks and power next to times",
    "distributed": "tune on Dask workers",
    "torch": "kernels on PyTorch tensors",
    "jax": "kernels on JAX arrays",
    "docs": "build the documentation",
    "test": "run the test suite",
    "dev": "format, lint and type-check this package",
}
"""The purpose of each extra."""

TOOL_SECONDS: Final = 20.0
"""Time limit in seconds for a tool to report its version."""


@frozen
class Item:
    """An entry of the report: its part, its name, the details, its state, and what to do if it is missing or broken."""

    part: str
    name: str
    details: str
    state: str = OK
    do: str = ""


def register(add: Add) -> None:
    """Add the command."""
    add(
        "doctor",
        run,
        "check Python, packages, compilers, GPU, cache and records, and what to install; exit status 1 if something is broken",
        False,
    )


def run(arguments: argparse.Namespace) -> int:
    with working("checking the installation"):
        items = [item for part in PARTS for item in part()]
    wrong = [item for item in items if item.state == WRONG]
    if arguments.json:
        print_json({"version": VERSION, "wrong": len(wrong), "items": [attrs.asdict(item) for item in items]})
    else:
        _print(items, wrong)
    return FAILED if wrong else 0


def _print(items: list[Item], wrong: list[Item]) -> None:
    colors = {OK: 32, MISSING: 36, WRONG: 31}
    rows, before = [], ""
    for item in items:
        text = "\n".join(part for part in (item.details, item.do if item.state == WRONG else "") if part)
        rows.append([item.part if item.part != before else "", item.name, paint(item.state, colors[item.state]), text])
        before = item.part
    print(table(rows, ["", "", "", "found"], width=width_of_output()))
    offers: dict[str, str] = {}
    for item in items:
        if item.state == MISSING and item.do:
            offers.setdefault(item.do, USES.get(item.name, item.details))
    if offers:
        print("\noptional, not installed")
        width = max(map(len, offers))
        for do, use in offers.items():
            print(f"  {do:<{width}}  {use}")
    print(f"\n{len(wrong)} wrong" if wrong else "\nnothing is wrong")


# ---------------------------------------------------------------------------------------------- Python and packages


def _python() -> Iterator[Item]:
    import platform

    yield Item("python", "Python", f"{platform.python_version()}, {sys.executable}")
    yield Item("python", "system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors")
    yield Item("python", "fireiron", f"{VERSION}, {Path(__file__).parent.parent}")


def _packages() -> Iterator[Item]:
    """Yield the required packages, and each extra."""
    needs = _needs()
    if not needs:
        yield Item("packages", "metadata", "fireiron is imported from its folder, not installed", MISSING, "pip install -e .")
    for name, _ in needs.get("", ()):
        version = _version_of(name)
        yield Item("packages", name, version or "not installed", OK if version else WRONG, "" if version else f"pip install {name}")
    for extra in filter(None, needs):
        yield _extra(extra, needs[extra])


def _extra(extra: str, needed: list[tuple[str, str]]) -> Item:
    versions = {name: _version_of(name) for name, _ in needed}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Item("extras", extra, f"without {', '.join(missing)}", MISSING, f"pip install 'fireiron[{extra}]'")
    return Item("extras", extra, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _needs() -> dict[str, list[tuple[str, str]]]:
    """Return the packages of each extra with their version constraints. The key "" has the packages that are always required."""
    import importlib.metadata

    try:
        lines = importlib.metadata.requires("fireiron") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    by_extra: dict[str, list[tuple[str, str]]] = {"": []}
    for line in lines:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)", line)
        extra = re.search(r"extra\s*==\s*[\"']([^\"']+)", line)
        if match is not None:
            by_extra.setdefault("" if extra is None else extra[1], []).append((match[1], match[2].strip()))
    return by_extra


def _version_of(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------------------------------- compilers and GPU


def _compilers() -> Iterator[Item]:
    from fireiron.gpu.disassembly import disassemblers
    from fireiron.gpu.toolchain import toolchains

    chains = toolchains()
    for chain in chains:
        served = f"sm_{chain.archs[0]} to sm_{chain.archs[-1]}" if chain.archs else "no target"
        yield Item("compilers", "NVRTC", f"{'.'.join(map(str, chain.version))} for {served}, {chain.library}")
    if not chains:
        yield Item("compilers", "NVRTC", "compiles kernels, with and without a GPU", MISSING, "pip install 'fireiron[check]'")
    tools = disassemblers()
    for tool in tools:
        yield Item("compilers", tool.name, str(tool))
    if not tools:
        yield Item("compilers", "nvdisasm", "shows machine code (emit --form sass)", MISSING, "pip install 'fireiron[check]'")
    nvcc = _nvcc()
    if nvcc is None:
        yield Item("compilers", "nvcc", "not found; only needed to build files of `fireiron export`", MISSING)
    else:
        yield Item("compilers", "nvcc", f"{_reported_version(nvcc)}, {nvcc}; only used to build files of `fireiron export`")


def _nvcc() -> Path | None:
    from fireiron import settings
    from fireiron.gpu.toolchain import toolkits

    in_path = shutil.which("nvcc")
    places = [folder / "bin" / "nvcc" for folder in (*settings.toolkit_folders(), *toolkits())]
    return Path(in_path) if in_path else next((place for place in places if os.access(place, os.X_OK)), None)


def _reported_version(tool: Path) -> str:
    """Return the version that a tool reports."""
    import subprocess

    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, errors="replace", timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"
    match = re.search(r"release ([\d.]+)", done.stdout)
    return match[1] if match else "unknown version"


def _gpu() -> Iterator[Item]:
    """Yield the GPU, the driver and CuPy, with the error that a launch would raise."""
    from fireiron.errors import LaunchError
    from fireiron.gpu import launch
    from fireiron.gpu.toolchain import serving

    seen = launch.visible_arch()
    try:
        cupy = launch.require_cupy()
    except LaunchError as error:
        broken = seen is not None or len(launch.cupy_builds()) > 1
        if seen is not None:
            yield Item("GPU", "GPU", f"{seen}, reported by the driver")
        yield Item("GPU", "CuPy", error.asked, WRONG if broken else MISSING, "pip install 'fireiron[cuda13]'" if broken else "")
        return
    arch = launch.device_arch()
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    driver = launch.driver_version()
    yield Item("GPU", "GPU", f"{name}, {arch}; {cupy.cuda.runtime.getDeviceCount()} visible")
    yield Item("GPU", "driver", f"CUDA {'.'.join(map(str, driver))}; CuPy {cupy.__version__}")
    chain = serving(arch, driver)
    if chain is None:
        extra = "cuda12" if driver < (13, 0) else "cuda13"
        yield Item("GPU", "compiler", f"no installed NVRTC compiles for {arch} and this driver", WRONG, f"pip install 'fireiron[{extra}]'")
    else:
        yield Item("GPU", "compiler", f"{chain} compiles for it")


# ---------------------------------------------------------------------------------------------- files


def _cache() -> Iterator[Item]:
    from fireiron import settings
    from fireiron.gpu import cache

    folder = settings.cache_folder()
    try:
        if not settings.cache_enabled():
            yield Item("cache", "kernels", "disabled by FIREIRON_NO_CACHE", MISSING)
            return
        entries = cache.entries()
    except (FireironError, OSError) as error:
        yield Item("cache", "kernels", str(error), WRONG, "set FIREIRON_CACHE_DIR to a folder of yours")
        return
    size = sum(entry.size for entry in entries)
    yield Item("cache", "kernels", f"{len(entries)} compiled kernels, {size / 2**20:.1f} MiB, in {cache.folder()}")
    try:
        existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    except OSError as error:  # a name that is too long, or a folder without permission
        yield Item("cache", "folder", f"{folder} cannot be used: {error.strerror}", WRONG, "set FIREIRON_CACHE_DIR to a folder of yours")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Item("cache", "folder", f"{existing} is not writable", WRONG, "set FIREIRON_CACHE_DIR to a folder of yours")
    else:
        yield Item("cache", "folder", f"{folder} is writable" + ("" if folder.exists() else ", and is created when needed"))


def _team() -> Iterator[Item]:
    """Yield the folder of `FIREIRON_STRATEGIES`, and each file in it whose name is taken."""
    from fireiron.language.library import ambiguous_files, team_files

    try:
        files, ambiguous = team_files(), ambiguous_files()
    except FireironError as error:
        yield Item("strategies", "team", f"{error.asked}: {error.got}", WRONG, error.hint or "")
        return
    if files or ambiguous:
        yield Item("strategies", "team", f"{len(files)} files in FIREIRON_STRATEGIES")
    for name, path in ambiguous.items():
        yield Item("strategies", name, f"{path} has the name of a strategy of the library", WRONG, "rename the file")


def _records() -> Iterator[Item]:
    from fireiron.tune.records import available

    try:
        records = list(available())
    except (FireironError, OSError) as error:
        yield Item("records", "tuned", str(error), WRONG, "correct FIREIRON_RECORDS, or unset it")
        return
    gpus = sorted({record.gpu for record in records})
    yield Item(
        "records", "tuned", f"{len(records)} of {len({record.strategy for record in records})} strategies, on {', '.join(gpus) or 'no GPU'}"
    )


def _variables() -> Iterator[Item]:
    from fireiron import settings

    for name, value in settings.given().items():
        known = name in settings.VARIABLES
        do = (
            ""
            if known
            else f"known variables: {', '.join(variable for variable in settings.VARIABLES if variable.startswith('FIREIRON_'))}"
        )
        yield Item("environment", name, value or "(empty)", OK if known else WRONG, do)
    for check in (settings.cache_enabled, settings.require_record):
        try:
            check()
        except FireironError as error:
            yield Item("environment", "value", str(error), WRONG)


PARTS: Final[tuple[Callable[[], Iterator[Item]], ...]] = (_python, _packages, _compilers, _gpu, _cache, _team, _records, _variables)
"""The parts of the report, in order."""
