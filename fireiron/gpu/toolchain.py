"""Find, load and call CUDA compilers. No other module calls them. It needs no GPU and no driver.

NVRTC is called through ctypes, so one process may use the compilers of several CUDA versions. CUDA 12 supports Maxwell, Pascal
and Volta (sm_50 ... sm_90), which CUDA 13 dropped; CUDA 13 supports sm_75 and newer. They are installed by NVIDIA's pip wheels
(`pip install 'fireiron[check]'`) or by a toolkit.

>>> compiled = compile_cuda('extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1; }', "sm_80")
>>> compiled.resources["k"].spill_stores
0

Source: NVRTC User Guide, https://docs.nvidia.com/cuda/nvrtc/.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import ctypes.util
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from attrs import field

from fireiron import disk_cache, settings
from fireiron.errors import LaunchError
from fireiron.frozen import frozen

_FILE = "kernel.cu"  # the file name of the source in compiler messages
_PIP = "pip install 'fireiron[check]'"
_COMPILER_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")
_HEADER_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12")
_MATRIX_WHEELS = ("nvidia-cuda-crt", "nvidia-cuda-nvcc-cu12")  # crt/mma.h, which mma.h of the runtime wheels includes
_SYSTEM_LIBRARIES = {"libnvrtc.so.13": 13, "libnvrtc.so.12": 12}  # names for the dynamic loader, with their major versions
_TOOLKITS = Path("/usr/local")  # NVIDIA's installers put each toolkit into `cuda-13.0` here, and link `cuda` to one of them
_SHOWN = 8  # maximum number of source lines in an error


@frozen
class KernelResources:
    """The report of ptxas for one kernel.

    A function that is not inlined has a separate report in the log, which is not included here.

    Attributes:
        registers: 32-bit registers per thread (at kernel entry; `setmaxnreg` changes them later).
        spill_stores, spill_loads: bytes per thread that the compiler spills to and reloads from local memory.
        stack_frame: bytes of local memory per thread: spills, and arrays that are indexed at run time.
        shared_bytes: static shared memory in bytes per block; for kernels of this package it includes dynamic shared memory.
        barriers: named barriers per block.
        dynamic_shared_bytes: the dynamic part, which a launch must request; ptxas does not know it.
    """

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack_frame: int = 0
    shared_bytes: int = 0
    barriers: int = 0
    dynamic_shared_bytes: int = 0


@frozen
class Compiled:
    """The result of one compilation. Two results with equal machine code are equal: logs, which contain times, are not compared.

    Attributes:
        arch: the target, `"sm_90a"`.
        toolchain: (major, minor) of the compiler.
        ptx: the PTX text.
        cubin: the machine code, an ELF file.
        resources: by kernel name in the cubin, the resources that the kernel uses.
        log: all output of the compiler.
        seconds: wall time of the original compilation.
        cached: whether it was read from the cache on disk.
    """

    arch: str
    toolchain: tuple[int, int]
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    resources: Mapping[str, KernelResources] = field(hash=False)
    log: str = field(repr=False, eq=False)
    seconds: float = field(eq=False)
    cached: bool = field(default=False, eq=False)


@frozen
class Toolchain:
    """An installed NVRTC.

    Attributes:
        version: (major, minor).
        archs: compute capabilities that it generates code for, ascending: 75 is sm_75.
        library: path or name of the shared library.
    """

    version: tuple[int, int]
    archs: tuple[int, ...]
    library: str

    def serves(self, arch: str) -> bool:
        """Return whether this compiler supports the compute capability of `arch`. The compiler itself checks a suffix, as in `sm_90a`."""
        return _capability(arch) in self.archs

    @property
    def identity(self) -> str | None:
        """Return an identifier of the compiler's build, independent of the machine; None if its file cannot be read.

        Updates of a release keep its (major, minor), so the identifier includes the library's size and a digest of its first megabyte
        (tables of symbols and relocations, which change with the code).
        """
        return _fingerprint(self.library)

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"


# --- finding compilers ------------------------------------------------------------------------------------------------


def toolchains() -> tuple[Toolchain, ...]:
    """Return the installed compilers, newest first; empty if there is none.

    Searches pip wheels, then conda's and NVIDIA's folders. The dynamic loader is asked only for major versions that are not there. The
    first compiler of each version is used.
    """
    by_version: dict[tuple[int, int], Toolchain] = {}
    for library in dict.fromkeys(map(os.path.realpath, itertools.chain(_wheel_libraries(), _toolkit_libraries()))):
        _add(by_version, library)
    for library, major in _SYSTEM_LIBRARIES.items():
        if all(version[0] != major for version in by_version):  # the loader takes 10 ms or more in each process
            _add(by_version, library)
    if not by_version:
        _add(by_version, ctypes.util.find_library("nvrtc") or "libnvrtc.so")  # slow: starts processes
    return tuple(sorted(by_version.values(), key=lambda chain: chain.version, reverse=True))


def serving(arch: str, newest: tuple[int, int] | None = None) -> Toolchain | None:
    """Return the newest installed compiler up to version `newest` that generates code for a target; None if there is none."""
    return next((chain for chain in toolchains() if chain.serves(arch) and (newest is None or chain.version <= newest)), None)


def _add(by_version: dict[tuple[int, int], Toolchain], library: str) -> None:
    chain = _open(library)
    if chain is not None:
        by_version.setdefault(chain.version, chain)


def _wheel_libraries() -> tuple[str, ...]:
    return _installed_libraries(_COMPILER_WHEELS, _stamps(sys.path))


Stamps = tuple[tuple[str, int], ...]
"""Folders with the times of their last changes, 0 for those that do not exist."""


def _stamps(folders: Iterable[str]) -> Stamps:
    """Return the folders, each with a number that changes if a file is added or removed."""
    stamps = []
    for folder in folders:
        try:
            stamps.append((folder, os.stat(folder or ".").st_mtime_ns))
        except OSError:
            stamps.append((folder, 0))
    return tuple(stamps)


@functools.lru_cache(maxsize=2)  # a call looks for compilers several times
def _installed_libraries(wheels: tuple[str, ...], stamps: Stamps) -> tuple[str, ...]:
    paths = (path for wheel in wheels for path in wheel_files(wheel, "libnvrtc.so"))
    return tuple(os.fspath(path) for path in paths if path.name.startswith("libnvrtc.so") and path.exists())


def wheel_files(wheel: str, part: str = "") -> tuple[Path, ...]:
    """Return the files of a wheel whose paths contain `part`; empty if it is not installed."""
    try:
        distribution = importlib.metadata.distribution(wheel)
    except importlib.metadata.PackageNotFoundError:
        return ()
    lines = [line for line in (distribution.read_text("RECORD") or "").splitlines() if part in line]  # a wheel may have thousands of files
    return tuple(Path(str(distribution.locate_file(row[0]))) for row in csv.reader(lines) if row and part in row[0])


def toolkits() -> tuple[Path, ...]:
    """Return the folders of CUDA toolkits from NVIDIA's installers, newest first."""
    return tuple(sorted(_TOOLKITS.glob("cuda*"), reverse=True))


def _toolkit_libraries() -> tuple[str, ...]:
    return _libraries_in(_stamps((os.path.join(sys.prefix, "lib"), *(os.fspath(folder / "lib64") for folder in toolkits()))))


@functools.lru_cache(maxsize=2)
def _libraries_in(stamps: Stamps) -> tuple[str, ...]:
    return tuple(os.fspath(path) for folder, _ in stamps for path in sorted(Path(folder).glob("libnvrtc.so.[0-9]*")))


@functools.cache
def _open(library: str) -> Toolchain | None:
    """Return the compiler in a shared library; None if it cannot be loaded or is older than CUDA 11.2.

    Loading takes 10 ms or more. So the version and targets of a library are stored in the cache folder, and it is loaded only to compile.
    """
    build = _fingerprint(library) if os.sep in library and settings.cache_enabled() else None
    stored = None if build is None else _stored_description(build)
    if stored is not None:
        return Toolchain(*stored, library)
    chain = _loaded(library)
    if chain is not None and build is not None:
        _store_description(build, chain)
    return chain


def _loaded(library: str) -> Toolchain | None:
    """Load a shared library and ask for its version and targets."""
    try:
        nvrtc = _library(library)
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        nvrtc.nvrtcGetSupportedArchs(archs)
    except (OSError, AttributeError):
        return None
    return Toolchain((major.value, minor.value), tuple(sorted(archs)), library)


def _description_file(build: str) -> Path:
    return user_cache() / f"nvrtc-{build}.json"


def _stored_description(build: str) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """Return the stored version and targets of a build; None if they are not stored, or the file is damaged."""
    try:
        (major, minor), archs = json.loads(_description_file(build).read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    numbers = (major, minor, *archs) if isinstance(archs, list) and archs else ()
    return ((major, minor), tuple(archs)) if numbers and all(type(number) is int for number in numbers) else None


def _store_description(build: str, chain: Toolchain) -> None:
    """Store the version and targets of a build, if the cache folder can be written."""
    path = _description_file(build)
    with contextlib.suppress(OSError):
        disk_cache.save(path, json.dumps([chain.version, chain.archs]).encode())


@functools.cache
def _library(library: str) -> ctypes.CDLL:
    """Load an NVRTC.

    Its builtins library is loaded first: the 13.0 wheels have no RPATH, so the loader must find it by name among the loaded
    libraries. Symbols are local, so that different versions do not share them.
    """
    if os.sep in library:
        for builtins in sorted(Path(library).parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(os.fspath(builtins))
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


@functools.cache
def _fingerprint(library: str) -> str | None:
    """Return the size and a digest of the start of a loaded library. If the loader found it by name, read the mapped file."""
    try:
        path = Path(library) if os.sep in library else _mapped(library)
        with path.open("rb") as file:
            return f"{path.stat().st_size}-{hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]}"
    except OSError:
        return None


def _mapped(library: str) -> Path:
    """Return the file of a library that is loaded by name."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return Path(next((line.split(maxsplit=5)[5] for line in maps.splitlines() if f"/{library}" in line), library))


def _capability(arch: str) -> int:
    match = re.fullmatch(r"sm_(\d+)[a-z]?", arch)
    if match is None:
        raise LaunchError("a target must be written as sm_XX", got=arch, legal="sm_52 sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 sm_90a ...")
    return int(match[1])


def _choose(arch: str, newest: tuple[int, int] | None) -> Toolchain:
    _capability(arch)
    chain = serving(arch, newest)
    if chain is not None:
        return chain
    cap = "" if newest is None else f", of CUDA {newest[0]}.{newest[1]} or older"
    served = "; ".join(f"{chain}: {' '.join(f'sm_{n}' for n in chain.archs)}" for chain in toolchains())
    raise LaunchError(f"no installed CUDA compiler{cap} generates code for {arch}", legal=served or "none is installed", hint=_PIP)


# --- headers ----------------------------------------------------------------------------------------------------------


def user_cache() -> Path:
    """Return the cache folder, which may be deleted; see `settings.cache_folder`. It may not exist."""
    return settings.cache_folder()


def _include_folders(chain: Toolchain) -> tuple[str, ...]:
    """Return the folders of CUDA headers (`cuda_fp16.h`) of the compiler's major version; empty if not found."""
    major = chain.version[0]
    folder = _bundled_headers(chain) or next((path for path in _header_folders(chain) if _header_major(path) == major), None)
    if folder is None:
        return ()
    matrix = None if (folder / "crt" / "mma.h").exists() else _matrix_headers(chain)
    return tuple(os.fspath(path) for path in (folder, folder / "cccl", matrix) if path is not None and path.is_dir())


def _matrix_headers(chain: Toolchain) -> Path | None:
    """Return the folder of `crt/mma.h` of the compiler's major version, for header wheels that have only `mma.h`."""
    major, minor = chain.version
    for wheel in _MATRIX_WHEELS:
        if _wheel_major(wheel) == major:
            return next((path.parent.parent for path in wheel_files(wheel, "mma.h") if path.parts[-2:] == ("crt", "mma.h")), None)
    folders = (_TOOLKITS / name / "include" for name in (f"cuda-{major}.{minor}", f"cuda-{major}", "cuda"))
    return next((path for path in folders if (path / "crt" / "mma.h").exists() and _header_major(path) == major), None)


def _wheel_major(wheel: str) -> int | None:
    """Return the CUDA major version of a wheel; None if it is not installed."""
    try:
        text = importlib.metadata.distribution(wheel).read_text("METADATA") or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    version = re.search(r"^Version: *(\d+)", text, re.MULTILINE)  # `importlib.metadata.version` imports an e-mail parser for this line
    return int(version[1]) if version else None


def _header_folders(chain: Toolchain) -> Iterator[Path]:
    """Yield candidate folders: next to the compiler's library, in a runtime wheel, in a toolkit."""
    if os.sep in chain.library:
        yield Path(chain.library).parent.parent / "include"
    for wheel in _HEADER_WHEELS:
        yield from (path.parent for path in wheel_files(wheel, "cuda_fp16.h") if path.name == "cuda_fp16.h")
    major, minor = chain.version
    yield from (_TOOLKITS / name / "include" for name in (f"cuda-{major}.{minor}", f"cuda-{major}", "cuda"))


def _header_major(folder: Path) -> int | None:
    """Return the CUDA major version of a folder of headers; None if it has no `cuda_fp16.h`."""
    if not (folder / "cuda_fp16.h").exists():
        return None
    try:
        text = (folder / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return int(match[1]) // 1000 if match else None


def _bundled_headers(chain: Toolchain) -> Path | None:
    """Unpack the headers inside NVRTC 13.3 and newer (26 MB), once per user. Return None if it has no headers or the disk is full.

    They are unpacked to a temporary folder that is then renamed, so that killed or concurrent processes leave no incomplete folder.
    """
    folder = user_cache() / f"cuda-headers-{chain.version[0]}.{chain.version[1]}"
    with contextlib.suppress(OSError):  # the folder is read-only, or its name too long: use the next candidate
        if not folder.is_dir():
            if not hasattr(_library(chain.library), "nvrtcInstallBundledHeaders"):
                return None
            _unpack_headers(chain, folder)
        return folder if folder.is_dir() else None
    return None


def _unpack_headers(chain: Toolchain, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)
    try:
        if _library(chain.library).nvrtcInstallBundledHeaders(os.fsencode(scratch), ctypes.c_uint(0), None) == 0:
            with contextlib.suppress(OSError):  # another process was faster
                os.rename(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# --- compiling --------------------------------------------------------------------------------------------------------


def compile_cuda(
    source: str,
    arch: str,
    *,
    options: tuple[str, ...] = (),
    werror: bool = True,
    fast_math: bool = False,
    newest: tuple[int, int] | None = None,
) -> Compiled:
    """Compile CUDA C++ to PTX and machine code with the newest compiler that supports the target.

    The language is C++17, denormals are kept, divisions and square roots are correctly rounded, and products and sums are contracted to
    fused multiply-adds, as in nvcc.

    Args:
        source: the text of one translation unit. Kernels should be `extern "C"`, so that they keep their names.
        arch: `"sm_80"`, or `"sm_90a"` for the instructions of exactly one architecture.
        options: additional NVRTC options; an option replaces its default, and `--ptxas-options=` adds to it.
        werror: treat warnings as errors: warnings of the compiler and of ptxas, and ptxas' remarks C7xxx that wgmma is serialized or
            setmaxnreg is ignored (but not C7519, an additional fence, and not C7510 for the calls of `printf`).
        fast_math: `--use_fast_math`.
        newest: the newest (major, minor) of the compiler to use, e.g. the driver's version.

    Raises:
        LaunchError: no compiler supports `arch`, or the compiler refuses the source; the error shows the source lines.
    """
    return compilation(source, arch, options=options, werror=werror, fast_math=fast_math, newest=newest).run()


def compilation(
    source: str,
    arch: str,
    *,
    options: tuple[str, ...] = (),
    werror: bool = True,
    fast_math: bool = False,
    newest: tuple[int, int] | None = None,
) -> Compilation:
    """Return a compilation that has not run yet; arguments and errors as in `compile_cuda`."""
    chain = _choose(arch, newest)
    include = tuple(Path(folder) for folder in _include_folders(chain)) if "#include" in source else ()
    return Compilation(chain, source, arch, _flags(chain, arch, options, fast_math), include, werror)


@frozen
class Compilation:
    """One compilation, with its compiler and all options.

    Attributes:
        chain: the compiler.
        source: the text.
        arch: the target.
        flags: all options except the folders of CUDA's headers.
        include: the folders of CUDA's headers; empty if the text includes nothing.
        werror: whether warnings are errors.
    """

    chain: Toolchain
    source: str = field(repr=False)
    arch: str
    flags: tuple[str, ...]
    include: tuple[Path, ...]
    werror: bool

    def run(self) -> Compiled:
        """Compile.

        Raises:
            LaunchError: the compiler refuses the source.
        """
        flags = (*(f"--include-path={path}" for path in self.include), *self.flags)
        start = time.perf_counter()
        output = _run(self.chain, self.source, flags)
        seconds = time.perf_counter() - start
        if not output.ok or (self.werror and _diagnostics(output.log, self.source)):
            raise _refusal(self.chain, self.source, self.arch, flags, output)
        return Compiled(self.arch, self.chain.version, output.ptx, output.cubin, resources_of(output.log), output.log, seconds)


def _flags(chain: Toolchain, arch: str, options: tuple[str, ...], fast_math: bool) -> tuple[str, ...]:
    """Return the options of a compilation. NVRTC refuses some repeated options, so a user's option replaces its default."""
    given = {_option_name(option) for option in options}
    math = ("--use_fast_math",) if fast_math else ("--ftz=false", "--prec-div=true", "--prec-sqrt=true")
    defaults = [flag for flag in ("--std=c++17", *math) if _option_name(flag) not in given]
    if chain.version >= (13, 0):
        defaults.append("--no-cache")  # with a driver, NVRTC 13 uses its own cache, without ptxas' report
    return (f"--gpu-architecture={arch}", "--ptxas-options=-v", *defaults, *options)


def _option_name(option: str) -> str:
    return option.lstrip("-").partition("=")[0]


@frozen
class _Output:
    ok: bool
    log: str
    ptx: str
    cubin: bytes


def _run(chain: Toolchain, source: str, flags: tuple[str, ...]) -> _Output:
    """Create, compile and destroy an NVRTC program. ctypes releases the GIL, so threads compile in parallel."""
    nvrtc, program = _library(chain.library), ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), _FILE.encode(), 0, None, None)
    if status:
        return _Output(False, _status(nvrtc, status), "", b"")
    try:
        texts = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        status = nvrtc.nvrtcCompileProgram(program, len(flags), texts)
        log = _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        ptx = _fetch(nvrtc, program, "PTX").rstrip(b"\0").decode(errors="replace")
        return _Output(status == 0, log or (_status(nvrtc, status) if status else ""), ptx, _fetch(nvrtc, program, "CUBIN"))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _status(nvrtc: ctypes.CDLL, status: int) -> str:
    name: bytes = nvrtc.nvrtcGetErrorString(status)
    return f"nvrtc: error: {name.decode()}"


def _fetch(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Return a result of a program; empty if it has none."""
    size = ctypes.c_size_t()
    if getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) or not size.value:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    return b"" if getattr(nvrtc, f"nvrtcGet{what}")(program, buffer) else buffer.raw


# --- reading the log --------------------------------------------------------------------------------------------------

_ENTRY = r"Compiling entry function '([^']+)'"
_PROPERTIES = r"Function properties for (\S+)"
_FRAME = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
_USED = r"Used (\d+) registers"


def resources_of(log: str) -> dict[str, KernelResources]:
    """Parse ptxas' report: an entry line for each kernel, then its frame, the reports of functions it calls, and its registers."""
    reports: dict[str, dict[str, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := re.search(_ENTRY, line):
            entry = match[1]
            reports[entry] = {}
        elif match := re.search(_PROPERTIES, line):
            function = match[1]
        elif (match := re.search(_FRAME, line)) and function == entry:
            reports[entry].update(zip(("stack_frame", "spill_stores", "spill_loads"), map(int, match.groups()), strict=True))
        elif (match := re.search(_USED, line)) and entry:
            reports[entry].update(registers=int(match[1]), barriers=_count(line, "barriers"), shared_bytes=_count(line, "bytes smem"))
    return {name: KernelResources(**values) for name, values in reports.items()}


def _count(line: str, what: str) -> int:
    match = re.search(rf"(\d+) {what}", line)
    return int(match[1]) if match else 0


@frozen
class _Diagnostic:
    """An error or warning: its kind, text, and line in the source or in the PTX."""

    kind: Literal["error", "warning"]
    text: str
    line: int | None = None
    ptx_line: int | None = None


_FRONT_END = r"(?P<file>\S+?)\((?P<line>\d+)\): (?:catastrophic )?(?P<kind>error|warning)\b"
_PTXAS = r"ptxas\b.*?\b(?P<kind>error|fatal|warning|info)\s*:\s*(?P<text>.*)"
_PTX_LINE = r"\bline (\d+)"
# C75xx: wgmma serialized, a wait injected, setmaxnreg ignored. Not C7519, an arrive injected: an additional wgmma.fence, after the compiler
# moved the zeroing of accumulators past our fence.
_REMARK = r"\(C7(?!519)\d{3}\)"
_IGNORED = (
    r"[Aa]rchitectures prior to .* are deprecated"  # CUDA 12.9 of everything below sm_75
    r"|Ptx assembly aborted due to errors"  # which are printed above it
    r"|#186-D"  # an unsigned integer is at least 0: a formula with constants may say so, and the result is right
)


_SERIALIZED_BY_A_CALL = r"\(C7510\).*function boundary at a function call"
"""The remark that a call serializes wgmma, which costs time and changes no result. `printf` is such a call."""


def _diagnostics(log: str, source: str = "") -> list[_Diagnostic]:
    """Return the errors and warnings of a log, in order; those of `printf` in the source are expected."""
    expected = _SERIALIZED_BY_A_CALL if "printf(" in source else None
    lines = (line for line in log.splitlines() if not re.search(_IGNORED, line) and not (expected and re.search(expected, line)))
    return [diagnostic for diagnostic in map(_diagnostic, map(str.rstrip, lines)) if diagnostic is not None]


def _diagnostic(line: str) -> _Diagnostic | None:
    if match := re.match(_FRONT_END, line):
        number = int(match["line"]) if match["file"] == _FILE else None
        return _Diagnostic(_kind(match["kind"]), line.removeprefix(f"{_FILE}({number}): "), number)
    if match := re.match(_PTXAS, line):
        if match["kind"] == "info" and not re.search(_REMARK, line):
            return None
        at = re.search(_PTX_LINE, line)
        return _Diagnostic(_kind(match["kind"]), f"ptxas: {match['text']}", None, int(at[1]) if at else None)
    if match := re.match(r"nvrtc: (error|warning)\b", line):
        return _Diagnostic(_kind(match[1]), line)
    return None


def _kind(word: str) -> Literal["error", "warning"]:
    return "error" if word in ("error", "fatal") else "warning"


# --- explaining a refusal ---------------------------------------------------------------------------------------------


def _refusal(chain: Toolchain, source: str, arch: str, flags: tuple[str, ...], output: _Output) -> LaunchError:
    """Return the error for a refused source: each diagnostic with its source lines."""
    diagnostics = _diagnostics(output.log, source)
    if any(diagnostic.ptx_line for diagnostic in diagnostics):
        diagnostics = _placed(chain, source, flags) or diagnostics
    counts = [(kind, sum(diagnostic.kind == kind for diagnostic in diagnostics)) for kind in ("error", "warning")]
    summary = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts if count)
    missing = any(f'open source file "{name}' in output.log for name in ("cuda", "mma", "crt/mma"))
    hint = f"{_PIP}, or install a CUDA toolkit, for the header" if missing else None
    text = _shown(diagnostics, source) if diagnostics else output.log.strip()
    return LaunchError(f"{chain} refuses the source for {arch}: {summary or 'it failed'}\n{text}", hint=hint)


def _placed(chain: Toolchain, source: str, flags: tuple[str, ...]) -> list[_Diagnostic]:
    """Compile again with line information, and map the PTX lines of ptxas' diagnostics to source lines."""
    wanted = "--generate-line-info"
    output = _run(chain, source, flags if {wanted, "-lineinfo"} & set(flags) else (*flags, wanted))
    lines = _source_lines(output.ptx)
    return [_with_line(diagnostic, lines) for diagnostic in _diagnostics(output.log, source)]


def _with_line(diagnostic: _Diagnostic, lines: list[int | None]) -> _Diagnostic:
    at = diagnostic.ptx_line
    line = lines[min(at, len(lines)) - 1] if at and lines else diagnostic.line
    return _Diagnostic(diagnostic.kind, diagnostic.text, line, at)


def _source_lines(ptx: str) -> list[int | None]:
    """Return, for each line of a PTX text, the source line of the last `.loc` in our file."""
    ours = set(re.findall(rf'\.file\s+(\d+)\s+"(?:[^"]*/)?{re.escape(_FILE)}"', ptx))
    source_lines: list[int | None] = []
    current: int | None = None
    for line in ptx.splitlines():
        match = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line)
        current = int(match[2]) if match and match[1] in ours else current
        source_lines.append(current)
    return source_lines


def _shown(diagnostics: Iterable[_Diagnostic], source: str) -> str:
    """Format diagnostics. The diagnostics of a source line are followed by this line and its adjacent lines."""
    groups = [(line, list(group)) for line, group in itertools.groupby(diagnostics, key=lambda diagnostic: diagnostic.line)]
    rows: list[str] = []
    for line, group in groups[:_SHOWN]:
        place = "" if line is None else f"line {line}: "
        rows += [f"  {place}{diagnostic.text}" for diagnostic in group]
        rows += _excerpt(source, line) if line is not None else []
    if len(groups) > _SHOWN:
        rows.append(f"  ... and {len(groups) - _SHOWN} more lines")
    return "\n".join(rows)


def _excerpt(source: str, line: int) -> list[str]:
    """Return a source line, marked, and its adjacent lines, with line numbers."""
    lines = source.split("\n")
    numbers = range(max(1, line - 1), min(len(lines), line + 1) + 1)
    return [f"    {'>' if number == line else ' '}{number:5} | {lines[number - 1]}".rstrip() for number in numbers]
