"""Export a kernel as files for C and C++: source, header, launcher and machine code, which do not depend on this package.

    NAME.h         the contract: sizes, alignments, storage; NAME_check, NAME_launch, NAME_version
    NAME.cu        the kernel and its launcher for the CUDA runtime, built by nvcc
    NAME.cubin     machine code of the kernel
    NAME_driver.h  the same contract for the CUDA driver
    NAME_driver.c  a launcher of NAME.cubin in plain C: no nvcc and no CUDA runtime is needed

Equal kernels result in equal bytes in every process, because the files contain no date, path or host name.

Sources: CUDA Runtime API, sections Execution Control and Memory Management; CUDA Driver API, sections Module Management and
Execution Control.

May import: the compiler, gpu, and what these may import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import ArgumentError, LaunchError, StoreError
from fireiron.files import NEVER_WRITTEN, path_of, unwritten
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.export.unit import Unit
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.gpu.toolchain import Compiled
    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.language.strategy import Strategy
    from fireiron.values.machine import Architecture


@frozen
class Exported:
    """The files of an export, and the commands that build them.

    Attributes:
        name: the prefix of the functions in the files.
        files: `NAME.h` and `NAME.cu`; with machine code also `NAME.cubin`, `NAME_driver.h` and `NAME_driver.c`.
        build: the command for each kind of file that can be built. Run it in the folder of the files.
    """

    name: str
    files: tuple[Path, ...]
    build: Mapping[str, str] = attrs.field(hash=False)


def export(
    kernel: CompiledKernel | Program | Strategy | KernelGraph | GraphProgram | CompiledGraph,
    folder: str | Path,
    name: str | None = None,
    *,
    arch: Architecture | str | None = None,
    cubin: bool = True,
    overwrite: bool = False,
    newest: tuple[int, int] | None = None,
) -> Exported:
    """Write a kernel as files that C and C++ programs build and link.

    >>> import tempfile
    >>> from fireiron import *
    >>> strategy = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export(strategy(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)), folder, "gemm", cubin=False)
    ...     print([path.name for path in exported.files])
    ['gemm.h', 'gemm.cu']

    Args:
        kernel: a compiled kernel, a bound strategy, or a kernel graph. A graph `NAME` gives the files of each kernel, called `NAME_KERNEL`,
            and a launcher of all kernels, `NAME_launch`.
        folder: the folder of the files; created if it does not exist.
        name: the name of files and functions, such as `NAME_launch`; an identifier of C. Default: the name of the kernel.
        arch: the target of a strategy, such as `"sm_80"`. A compiled kernel already has a target.
        cubin: also compile the kernel, and write the machine code with a launcher for the CUDA driver. Requires NVRTC.
        overwrite: replace existing files.
        newest: the newest compiler version (major, minor) that may generate the machine code.

    Raises:
        ArgumentError: the name is not an identifier of C, or the kernel was compiled for another target.
        StoreError: a file exists or cannot be written. In this case no file is written.
        LaunchError: no installed compiler supports the target.
    """
    target_folder, graph = path_of(folder, "export"), _graph(kernel, arch)
    if graph is not None:
        return _exported_graph(graph, target_folder, graph.name if name is None else name, cubin, overwrite, newest)
    from fireiron.export.unit import Unit

    program = _program(kernel, arch)
    unit = Unit.of(program, program.name if name is None else name)
    parts, build = _files(unit, cubin, newest)
    _write(target_folder, parts, overwrite, () if cubin else _driver_files(unit.name))
    return Exported(unit.name, tuple(target_folder / file for file in parts), build)


def _files(unit: Unit, cubin: bool, newest: tuple[int, int] | None) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of a kernel, and the commands that build them."""
    from fireiron.export.driver import driver_build, driver_header, driver_source
    from fireiron.export.runtime import runtime_build, runtime_header, runtime_source

    parts = {f"{unit.name}.h": runtime_header(unit).encode(), f"{unit.name}.cu": runtime_source(unit).encode()}
    build = runtime_build(unit)
    if cubin:
        compiled = _compiled(unit, newest)
        texts = (compiled.cubin, driver_header(unit, compiled).encode(), driver_source(unit).encode())
        parts |= dict(zip(_driver_files(unit.name), texts, strict=True))
        build |= driver_build(unit)
    return parts, build


def _compiled(unit: Unit, newest: tuple[int, int] | None) -> Compiled:
    """Return the machine code of a kernel. The error for a missing compiler names the option that needs none."""
    from fireiron.gpu.cache import compile_cached
    from fireiron.gpu.toolchain import serving

    target = unit.program.architecture.name
    try:
        return compile_cached(unit.text, target, newest=newest)
    except LaunchError as error:
        if serving(target, newest) is None:
            error.hint = f"cubin=False (--no-cubin) writes the files without machine code; or {error.hint}"
        raise


def _driver_files(name: str) -> list[str]:
    return [f"{name}{end}" for end in (".cubin", "_driver.h", "_driver.c")]


def _exported_graph(
    program: GraphProgram, folder: Path, name: str, cubin: bool, overwrite: bool, newest: tuple[int, int] | None
) -> Exported:
    """Write the files of a kernel graph: those of its launcher, and those of each kernel."""
    from fireiron.export import graph_unit

    unit = graph_unit.GraphUnit.of(program, name)
    parts = {f"{name}.h": graph_unit.graph_runtime_header(unit).encode(), f"{name}.cu": graph_unit.graph_runtime_source(unit).encode()}
    build = graph_unit.graph_runtime_build(unit)
    if cubin:
        parts[f"{name}_driver.h"] = graph_unit.graph_driver_header(unit).encode()
        parts[f"{name}_driver.c"] = graph_unit.graph_driver_source(unit).encode()
        build |= graph_unit.graph_driver_build(unit)
    stale = [f"{name}.cubin", *([] if cubin else [f"{name}_driver.h", f"{name}_driver.c"])]
    for part in unit.units.values():
        parts |= _files(part, cubin, newest)[0]
        stale += [] if cubin else _driver_files(part.name)
    _write(folder, parts, overwrite, stale)
    return Exported(name, tuple(folder / file for file in parts), build)


def _graph(value: Any, arch: Any) -> GraphProgram | None:
    """Return the program of a kernel graph, compiled or not; None for anything else."""
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.values.machine import as_architecture

    if isinstance(value, KernelGraph):
        return value.program(arch)
    program = value if isinstance(value, GraphProgram) else getattr(value, "program", None)
    if not isinstance(program, GraphProgram):
        return None
    if arch is not None and as_architecture(arch) != program.architecture:
        raise ArgumentError(
            f"export: the graph was compiled for {program.architecture}, not for the requested target", got=arch, hint="export the graph"
        )
    return program


def _program(kernel: Any, arch: Any) -> Program:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.language.strategy import Strategy
    from fireiron.values.machine import as_architecture

    if isinstance(kernel, Strategy):
        return kernel.program(arch)
    program = kernel.program if isinstance(kernel, CompiledKernel) else kernel
    if not isinstance(program, Program):
        raise ArgumentError("export: the argument is not a kernel", got=kernel, legal="a bound strategy, or the result of compile()")
    if arch is not None and as_architecture(arch) != program.architecture:
        raise ArgumentError(
            f"export: the kernel was compiled for {program.architecture}, not for the requested target",
            got=arch,
            hint="export the strategy",
        )
    return program


def _write(folder: Path, parts: Mapping[str, bytes], overwrite: bool, stale: Iterable[str]) -> None:
    """Write all files, or none if one exists or cannot be written.

    The files `stale` must not exist, because they would belong to a different export.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in parts:
            _check_free(folder / file, overwrite)
        for file in stale:
            if (folder / file).exists():
                raise StoreError(
                    f"{folder / file} belongs to an earlier export and does not match this export", hint="remove it, or export a cubin"
                )
        _write_all(folder, parts, overwrite)
    except FileExistsError as error:
        raise StoreError(f"{error.filename2 or error.filename or folder} exists", hint="use another folder or name") from None
    except NEVER_WRITTEN as error:
        raise unwritten(folder, error) from None


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file")
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists", hint="use another name or folder, or overwrite it (--force, overwrite=True)")


def _write_all(folder: Path, parts: Mapping[str, bytes], overwrite: bool) -> None:
    import secrets  # the import takes milliseconds, and most programs do not need it

    drafts = {file: folder / f".{file}.{secrets.token_hex(6)}.part" for file in parts}
    written: list[Path] = []
    try:
        for file, data in parts.items():
            drafts[file].write_bytes(data)
        for file, draft in drafts.items():
            if overwrite:
                draft.replace(folder / file)
            else:
                (folder / file).hardlink_to(draft)  # fails if the file was created in the meantime
            written.append(folder / file)
    finally:
        unfinished = written if len(written) < len(parts) and not overwrite else ()
        for path in (*drafts.values(), *unfinished):
            path.unlink(missing_ok=True)
