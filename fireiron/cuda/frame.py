"""The frame of a kernel: header, includes, helper functions, signature, and the declarations before its statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fireiron.cuda.addresses import FIRST_LANE
from fireiron.cuda.constants import Constants, stages_of
from fireiron.cuda.expressions import HILBERT, document, expression
from fireiron.cuda.lines import WIDTH, Line, comment, lines_of, plain
from fireiron.cuda.makers import Makers
from fireiron.cuda.names import Names
from fireiron.cuda.outlining import outlined
from fireiron.cuda.printer import BUILT_IN, KernelPrinter
from fireiron.cuda.quotients import QUOTIENT
from fireiron.cuda.reductions import received_only, with_reductions
from fireiron.cuda.rings import TENSOR_MAP, declarations
from fireiron.cuda.separated_loops import in_parts
from fireiron.cuda.statements import Statements, straightened
from fireiron.cuda.types import EIGHT_BITS
from fireiron.cuda.versions import branched
from fireiron.errors import VerificationError
from fireiron.ir import Buffer, ClaimTile, Counter, Exec, For, Kernel, Let, Reciprocal, Roles, TensorMap, Workspace, execs, statements
from fireiron.ir.access import promised_tables
from fireiron.ir.accumulators import begun_in_loops
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.residency import Residency
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.ir.look_back import HEADER, words_of, words_of_all
from fireiron.ir.opaque import at_tiles
from fireiron.ir.semaphore import MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.ir.text import Function, Item, Noted, Path, WithSteps
from fireiron.ir.unrolled import MOST_REGISTERS
from fireiron.ir.usage import region_starts
from fireiron.values.document import Assignment, Joined
from fireiron.values.expr import INT_MAX, Expr, FloorDiv, Hilbert, Var, as_expr
from fireiron.values.machine import bfloat16, float16


def emit(*kernels: Kernel) -> str:
    """The CUDA C++ of kernels as one unit: an `extern "C" __global__` function each, with the headers and helper functions that they need.

    Legal for final kernels of different names: raises VerificationError where a statement has no pieces, or an expression does not fit
    64 bits.
    """
    return "\n".join([*(line.text for line in printed(*kernels)), ""])


def printed(*kernels: Kernel) -> list[Line]:
    """The lines of the unit that `emit` returns, each with the tree steps that created it.

    A step is a path in the tree, after the kernel's name if there are several kernels. A line of the whole kernel, such as its signature,
    has no steps.
    """
    kernels = tuple(
        outlined(with_reductions(branched(straightened(in_parts(at_tiles(kernel), Names(_names_in_use(kernel))))))) for kernel in kernels
    )
    printers = [KernelPrinter(kernel, Names(set().union(*map(_names_in_use, kernels)))) for kernel in kernels]
    functions: dict[Function, str] = {}
    names: set[str] = set()
    bodies = []
    for printer in printers:
        printer.functions = functions
        printer.names.reserve(names)
        bodies.append(_body(printer))
        names |= {*functions.values(), *(function.name for function in printer.outlined.values())}
    multiple = len(kernels) > 1
    lines = plain([f"// {len(kernels)} launches, in this order"] if multiple else _header(kernels[0]))
    lines += plain(dict.fromkeys(line for kernel in kernels for line in _includes(kernel)))
    lines += plain(("", *TENSOR_MAP) if any(kernel.maps for kernel in kernels) else ())
    for function, name in functions.items():
        calls = tuple(_named(one.kernel, path, multiple) for one in printers for path in one.callers.get(function, ()))
        lines += [Line(""), *plain(function.text(name), calls)]
    for printer in printers:
        for outlined_function in printer.outlined.values():
            lines += [Line(""), *_of_kernel(printer.kernel, outlined_function.lines(), multiple)]
    for kernel, body in zip(kernels, bodies, strict=True):
        lines += plain(["", *(_header(kernel) if multiple else ()), *_signature(kernel), "{"])
        lines += _of_kernel(kernel, body, multiple)
        lines.append(Line("}"))
    return lines


def _of_kernel(kernel: Kernel, lines: Iterable[Line], multiple: bool) -> list[Line]:
    """Lines with the name of their kernel in their steps if the unit has more than one kernel (`multiple`)."""
    return [Line(line.text, tuple(_named(kernel, path, multiple) for path in line.steps)) for line in lines]


def _named(kernel: Kernel, path: Path, multiple: bool) -> Path:
    """A step of a kernel, after the name of the kernel if the unit has more than one kernel (`multiple`)."""
    return (kernel.name, *path) if multiple else path


def _body(printer: KernelPrinter) -> list[Line]:
    kernel = printer.kernel
    if any(isinstance(one, Let) and _on_a_curve(one.value) for one in statements(kernel.body)):
        printer.function(HILBERT)
    if kernel.reciprocals:
        printer.function(QUOTIENT)
    program = Statements(printer).program()
    rings = list(declarations(printer, bool(kernel.dynamic_shared_bytes)))
    if _numbers_blocks(kernel):
        assert kernel.workspace is not None
        words = printer.expression(words_of_all(buffer for buffer in kernel.buffers if buffer.workspace))
        program = [*program, f"{printer.function(CLEAR)}({kernel.workspace.name}, {STARTED}, {DIRTY}, {words});"]
    text = lines_of(program, 1)
    definitions = [*_definitions(printer), *_buffers(kernel, printer.addresses.constants), *rings]
    return [*lines_of([*printer.addresses.constants.lines(), *definitions], 1), *text]


def _on_a_curve(value: Expr) -> bool:
    """Whether a value needs the function of the Hilbert curve; only named values do."""
    return isinstance(value, Hilbert) or any(map(_on_a_curve, value.children))


BLOCK_NUMBER = "block_number"
"""The name of a block's number in a kernel whose blocks are numbered in the order in which they start."""

STARTED = "started"
"""The name of the variable with this number and the area of the words that the launch uses."""

SHARED_NUMBER = "started_sh"
"""The name of the variable in shared memory by which one thread gives it to all others."""

DIRTY = "dirty_words"
"""The name of the variable with the number of words that the previous launch used."""

START = Function(
    "start_in_order",
    ("unsigned* workspace", "unsigned& shared"),
    (
        "if (threadIdx.x == 0) {",
        "  shared = atomicAdd(workspace, 1u);",
        "  if ((shared & 0x7fffffff) == gridDim.x - 1) *static_cast<volatile unsigned*>(workspace) = ~shared & 0x80000000;",
        "}",
        "__syncthreads();",
        "return shared;",
    ),
    "count this block among those that started; the last one prepares the next launch, which uses the other area of words",
    result="unsigned",
)

CLEAR = Function(
    "clear_words",
    ("unsigned* workspace", "unsigned started", "unsigned dirty", "long long words"),
    (
        "const unsigned block = started & 0x7fffffff, area = started >> 31;",
        "unsigned long long* const other = reinterpret_cast<unsigned long long*>(workspace + 4) + (1 - area);",
        "const long long first = static_cast<long long>(block) * blockDim.x + threadIdx.x;",
        "for (long long i = first; i < dirty; i += static_cast<long long>(gridDim.x) * blockDim.x) other[i * 2] = 0;",
        "if (block == 0 && threadIdx.x == 0) workspace[2 + area] = words;",
    ),
    "set the words of the previous launch to 0, which the next one uses",
)


def _names_in_use(kernel: Kernel) -> set[str]:
    """All names of a kernel, and names that generated code uses."""
    names = {
        kernel.name,
        "block",
        "thread",
        "smem",
        "piece",
        "warp_index",
        *(symbol.name for symbol in kernel.symbols),
        *(one.name for one in kernel.reciprocals),
        *(() if kernel.counter is None else (kernel.counter.name,)),
        *(() if kernel.workspace is None else (kernel.workspace.name,)),
        *BUILT_IN.values(),
        *((BLOCK_NUMBER, STARTED, SHARED_NUMBER, DIRTY) if _numbers_blocks(kernel) else ()),
    }
    for buffer in kernel.buffers:
        names |= {buffer.name, buffer.name.lower()}
    for stmt in statements(kernel.body):
        if isinstance(stmt, (Let, For, ClaimTile)):
            names.add(stmt.var.name)
        if isinstance(stmt, Exec) and stmt.scratch is not None:
            names.add(stmt.scratch.name)
    return names


# ---------------------------------------------------------------------------------------------- before the kernel


def _header(kernel: Kernel) -> Iterable[str]:
    yield from comment(str(kernel.spec))
    for line in kernel.title:
        text = line.lstrip(" ")
        yield from comment(text, lead="//   " + " " * (len(line) - len(text)))
    overlapped = ", programmatic dependent launch" if kernel.effects[DependentLaunch].enabled else ""
    yield from comment(
        f"target {kernel.architecture}; launch <<<{_readable(kernel.grid)}, {kernel.threads}>>>, {_shared_text(kernel)}{overlapped}"
    )
    if kernel.cluster is not None:
        yield from comment(f"clusters of {kernel.cluster.blocks} blocks")
    for text, condition in kernel.facts:
        yield from comment(f"requires: {text}, {_readable(condition)}")
    for table, most in promised_tables(kernel.buffers):
        yield from comment(f"requires: each element of {table} is from 0 to {_readable(most)}; addresses depend on it")
    for name in kernel.effects[Zeroed].names:
        value = kernel.effects[Zeroed].value(name)
        start, how = (f"{value}", "combine values in it") if value else ("zero", "add to it")
        yield from comment(f"requires: {name} is {start} before the launch (blocks {how})")
    if kernel.counter is not None:
        yield from comment(f"requires: {kernel.counter.name} is zero before the first launch, and no concurrent launch uses it")
    if kernel.workspace is not None:
        size, semaphores = _readable(kernel.workspace_bytes), _readable(kernel.workspace.semaphores)
        yield from comment(
            f"requires: {kernel.workspace.name} has {size} bytes; its first {semaphores} ints are zero before the first launch, and no "
            "concurrent launch uses it"
        )
    for name in kernel.effects[DependentLaunch].no_wait:
        yield from comment(f"requires: no kernel that may still run writes {name}, which is read before griddepcontrol_wait")
    for reason in kernel.effects[Unchecked].reasons:
        yield from comment(f"UNCHECKED, races are possible: {reason}")


def _readable(value: object) -> str:
    """An expression for a comment: no casts."""
    return str(value).replace("//", "/")


def _shared_text(kernel: Kernel) -> str:
    kind = "dynamic" if kernel.dynamic_shared_bytes else "static"
    return f"{kernel.shared_bytes} bytes of {kind} shared memory" if kernel.shared_bytes else "no shared memory"


def _includes(kernel: Kernel) -> Iterable[str]:
    dtypes = {buffer.dtype for buffer in kernel.buffers}
    if float16 in dtypes:
        yield "#include <cuda_fp16.h>"
    if bfloat16 in dtypes:
        yield "#include <cuda_bf16.h>"
    yield from dict.fromkeys(f"#include <{header}>" for one, _ in execs(kernel.body) for header in one.instruction.headers)
    if dtypes & set(EIGHT_BITS):
        yield "#include <cuda_fp8.h>"


def _signature(kernel: Kernel) -> Iterable[str]:
    parameters = [_parameter(one, kernel.effects[DependentLaunch].enabled) for one in kernel.parameters]
    # setmaxnreg needs a known number of registers at launch. Without a number of blocks, ptxas allocates only the registers used (C7508).
    reallocated = any(role.registers for one in kernel.body if isinstance(one, Roles) for role in one.roles)
    blocks = kernel.effects[Residency].blocks or int(reallocated)
    bounds = f"{kernel.threads}, {blocks}" if blocks else str(kernel.threads)
    cluster = "" if kernel.cluster is None else f" __cluster_dims__({kernel.cluster.blocks}, 1, 1)"
    others = "".join(f" {qualifier}" for one in kernel.effects for qualifier in one.qualifiers(kernel))
    yield f'extern "C" __global__ void{cluster} __launch_bounds__({bounds}){others}'
    one_line = f"{kernel.name}({', '.join(parameters)})"
    if len(one_line) <= WIDTH:
        yield one_line
    else:
        yield f"{kernel.name}("
        yield from [f"    {parameter}," for parameter in parameters[:-1]] + [f"    {parameters[-1]})"]


def _parameter(parameter: TensorMap | Buffer | Var | Reciprocal | Counter | Workspace, overlapped: bool) -> str:
    """A parameter in C++.

    With programmatic launch the previous kernel may still write the inputs while this kernel waits. `__restrict__` would promise that they
    are not written, and the compiler might load them before the wait, or through the read-only cache.
    """
    if isinstance(parameter, (Counter, Workspace)):
        return f"unsigned* {parameter.name}"
    if isinstance(parameter, TensorMap):
        return f"const __grid_constant__ TensorMap {parameter.name}"
    if isinstance(parameter, Var):
        return f"const int {parameter}"
    if isinstance(parameter, Reciprocal):
        return f"const unsigned long long {parameter.name}"
    pointer = " " if parameter.memory.by_value else "* " if overlapped else "* __restrict__ "
    return f"{'' if parameter.written else 'const '}{parameter.dtype.cuda}{pointer}{parameter.name}"


# ---------------------------------------------------------------------------------------------- at the top of the kernel


def _definitions(printer: KernelPrinter) -> Sequence[Item]:
    """The named values that the text uses, each after the names that it refers to.

    They divide the built-in variables, which are unsigned, so that no correction for a sign is needed. In kernels with wgmma, warp indices
    are broadcast, so that they are warp-uniform. Descriptors are then computed in uniform registers, before the loops.
    """
    kernel, used = printer.kernel, set(printer.addresses.used)
    items: list[Item] = []
    makers = Makers(kernel)
    names = {**BUILT_IN, **({"block": BLOCK_NUMBER} if _numbers_blocks(kernel) else {})}
    built_in = {var: Var(names[var.name], var.low, var.high) for var in (kernel.block, kernel.thread)}
    together = any(one.mechanism.in_registers for one, _ in execs(kernel.body))
    direct = [var for var in (kernel.thread, kernel.block) if var in used]
    lets = [one for one in kernel.body if isinstance(one, Let)]
    values = [printer.quotients.define(one.var, one.value) for one in lets]
    for let, value in zip(reversed(lets), reversed(values), strict=True):
        if let.var in used:
            used |= value.variables()
            kind = "long long" if let.var.high > INT_MAX else "int"
            text = document(value.substitute(built_in))
            if together and _of_warp(value, kernel):
                text = Joined((FIRST_LANE, text, ", 0)"))
            items.append(WithSteps(Assignment(f"const {kind} {let.var}", text), makers.of(let)))
    items += [f"const int {var} = {names[var.name]};" for var in direct]
    if _numbers_blocks(kernel):
        assert kernel.workspace is not None
        name = kernel.workspace.name
        items += [
            f"const unsigned {DIRTY} = {name}[3 - ({STARTED} >> 31)];",
            Noted(f"const unsigned {BLOCK_NUMBER} = {STARTED} & 0x7fffffff;", "blocks compute tiles in the order in which they start"),
            f"const unsigned {STARTED} = {printer.function(START)}({name}, {SHARED_NUMBER});",
            f"__shared__ unsigned {SHARED_NUMBER};",
        ]
    return items[::-1]


def _numbers_blocks(kernel: Kernel) -> bool:
    """Whether the number of a block is that of the blocks that started before it."""
    return kernel.workspace is not None and kernel.workspace.looks_back


def _of_warp(value: Expr, kernel: Kernel) -> bool:
    """Whether a value is an index of a warp, or of a group of warps, in a block."""
    return isinstance(value, FloorDiv) and value.left == kernel.thread and value.right.factor % 32 == 0


def _buffers(kernel: Kernel, constants: Constants) -> Iterable[Item]:
    """The declarations of buffers."""
    omitted = received_only(kernel)
    makers, stages = Makers(kernel), stages_of(kernel)
    shared = [buffer for buffer in kernel.buffers if buffer.memory.in_shared]
    read = _read(kernel)
    yield from _partial_results(kernel)
    # Compilers warn of an array that is never read, unless it has the attribute.
    known = {buffer.name: "" if buffer.name in read else "[[maybe_unused]] " for buffer in kernel.buffers}
    if kernel.dynamic_shared_bytes:
        align = max(16, *(buffer.tensor.align for buffer in shared))
        yield f"extern __shared__ __align__({align}) unsigned char smem[];"
        for buffer in shared:
            kind = buffer.dtype.cuda
            start = f"smem + {constants.offset(buffer.name, buffer.offset)}" if buffer.offset else "smem"
            line = f"{known[buffer.name]}{kind}* const {buffer.name} = reinterpret_cast<{kind}*>({start});"
            yield WithSteps(Noted(line, _shape(buffer, stages)), makers.of_buffer(buffer.name))
    else:
        for buffer in shared:
            align = max(16, buffer.tensor.align)
            line = f"{known[buffer.name]}__shared__ __align__({align}) {buffer.dtype.cuda} {buffer.name}[{expression(buffer.total)}];"
            yield WithSteps(Noted(line, _shape(buffer, stages)), makers.of_buffer(buffer.name))
    starts = region_starts(kernel.buffers)
    for buffer in kernel.buffers:
        if buffer.memory.region in starts and buffer.memory.of_block:
            place = buffer.offset - starts[buffer.memory.region]
            array = (buffer.dtype.cuda, buffer.name, str(expression(buffer.total)), max(16, buffer.tensor.align), place)
            yield WithSteps(
                Noted(known[buffer.name] + buffer.memory.region.declaration(*array), _shape(buffer, stages)), makers.of_buffer(buffer.name)
            )
        if buffer.memory.private and buffer.name not in omitted:
            yield WithSteps(_registers(kernel, buffer, known[buffer.name], stages), makers.of_buffer(buffer.name))


def _partial_results(kernel: Kernel) -> Iterable[Item]:
    """The pointers to the buffers in the workspace. They are not `__restrict__`, since other blocks write there, too."""
    offset: Expr = as_expr(0 if _numbers_blocks(kernel) else MOST_SEMAPHORES)
    for buffer in kernel.buffers:
        if buffer.workspace and kernel.workspace is not None and kernel.workspace.looks_back:
            start = f"{kernel.workspace.name} + {HEADER}"
            shift = expression(offset * 2)
            line = f"unsigned long long* const {buffer.name} = reinterpret_cast<unsigned long long*>({start}) + ({STARTED} >> 31)"
            more = "" if offset == as_expr(0) else f" + ({shift})"
            yield WithSteps(Noted(f"{line}{more};", "words with the totals of tiles"), Makers(kernel).of_buffer(buffer.name))
            offset = offset + words_of(buffer)
        elif buffer.workspace and kernel.workspace is not None:
            kind = buffer.dtype.cuda
            start = f"{kernel.workspace.name} + {expression(offset)}"
            line = f"{kind}* const {buffer.name} = reinterpret_cast<{kind}*>({start});"
            yield WithSteps(Noted(line, _shape(buffer, {})), Makers(kernel).of_buffer(buffer.name))
            offset = offset + buffer.total * (buffer.dtype.bytes // SEMAPHORE_BYTES)


def _read(kernel: Kernel) -> set[str]:
    """The buffers that a statement reads, and the scratch memory of statements."""
    inside = [stmt for stmt, _ in execs(kernel.body)]
    own = {stmt.scratch.name for stmt in inside if stmt.scratch is not None}
    return own.union(access.buffer for stmt in inside for access in stmt.accesses if not access.write)


def _registers(kernel: Kernel, buffer: Buffer, known: str, stages: Mapping[str, int]) -> Item:
    """The array of a thread, or the fragments of a warp."""
    if buffer.memory.fragment is not None:
        return Noted(_first_access(kernel, buffer).instruction.declaration(kernel, buffer), f"of {_shape(buffer, stages)}")
    size = buffer.total.high
    align = f"__align__({buffer.tensor.align}) " if buffer.tensor.align > buffer.dtype.bytes else ""
    note = "" if size <= MOST_REGISTERS else "; too large for registers, in local memory"
    first = " = {}" if buffer.name in begun_in_loops(kernel) else ""  # otherwise ptxas initializes it, between the MMAs (C7515)
    return Noted(f"{known}{align}{buffer.dtype.cuda} {buffer.name}[{size}]{first};", f"of {_shape(buffer, stages)}{note}")


def _first_access(kernel: Kernel, buffer: Buffer) -> Exec:
    """The first statement that accesses a buffer."""
    for stmt, _ in execs(kernel.body):
        if any(access.buffer == buffer.name for access in stmt.accesses):
            return stmt
    raise VerificationError(f"no statement accesses {buffer.name}")


def _shape(buffer: Buffer, stages: Mapping[str, int]) -> str:
    """The shape of one tile of a buffer, the number of its stages, and the number of copies if each unit has a separate one."""
    shape = " x ".join(str(size) for size in buffer.tensor.shape) or "one element"
    number = stages.get(buffer.name, 1) if buffer.tensor.copies % stages.get(buffer.name, 1) == 0 else 1
    copies = buffer.tensor.copies // number
    return f"{shape}{f', {number} stages' if number > 1 else ''}{f', {copies} copies' if copies > 1 else ''}"
