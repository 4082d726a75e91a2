"""Execute printed CUDA C++ on the CPU: compiled by the host's C++ compiler, every thread a coroutine, in random order.

The text is unchanged except for what a C++ compiler rejects: `asm volatile("...")` is replaced by a call chosen by the PTX mnemonic, and
`extern __shared__` by another keyword. Maxima, minima and conversions to integers, which C++ leaves undefined for NaN, signed zeros and
values out of range, become calls that follow the PTX ISA. `cpu/cuda_on_cpu.hpp` supplies the rest of the language, `cpu/cuda_on_cpu.cpp`
the machine. Address and undefined-behavior sanitizers are on; arrays in global memory end after their last element, shared memory at the
size of the launch, and both are initialized to poison.
"""

import dataclasses
import fcntl
import functools
import hashlib
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import making
import numpy as np

from fireiron.gpu import launch, maps
from fireiron.ir import Reciprocal, SemaphoreAction, SemaphoreBarrier, TensorMap, statements
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.ir.semaphore import MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.values.expr import Var, compiled
from fireiron.values.tensor import MatrixLayout

COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)

FOLDER = Path(__file__).parent / "cpu"
BUILT = Path(__file__).parents[1] / "build" / "cuda_on_cpu"
HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "mma.h")
COMMON = ("-std=c++20", "-w")
SANITIZED = (
    "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fsanitize-sections=shared_memory", "-fno-strict-aliasing"
)  # fmt: skip
OBSERVED = ("--param", "asan-instrumentation-with-call-threshold=0")
"""Options of g++: each memory access becomes a call, which the machine checks, too."""

OPTIONS = {"ASAN_OPTIONS": "detect_stack_use_after_return=0:detect_leaks=0:exitcode=1", "UBSAN_OPTIONS": "print_stacktrace=0"}

POISON = np.frombuffer(bytes.fromhex("f97f"), np.uint8)
"""Repeated, it is NaN in any float type, and large as a 32-bit integer."""

FRAME = 1 << 14
"""Bytes of a thread's stack beyond its registers, which are guarded and not optimized: three times their size."""


class Refused(Exception):
    """The compiler refuses the text, or the run has undefined behavior; the message is the report."""


def with_numbers(text):
    """A text with its named constants as numbers."""
    values = {}
    for name, value in re.findall(r"^  constexpr int (\w+) = ([\w *+]+);$", text, re.M):
        values[name] = eval(value, {}, dict(values))
    return re.sub(rf"\b(?:{'|'.join(values)})\b", lambda match: str(values[match[0]]), text) if values else text


# ---------------------------------------------------------------------------------------------- inline PTX


def _list(operand):
    """The registers of an operand, `{%0, %1}` or `%0`."""
    return [int(number) for number in re.findall(r"%(\d+)", operand)]


class Asm:
    """One `asm volatile` statement: its PTX instruction and the C++ expressions of its registers."""

    def __init__(self, text):
        template, *sections = _parted(text, ":")
        self.ptx = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)).replace("\\n", " ").replace("\\t", " ").strip().rstrip(";").strip()
        if guarded := re.fullmatch(r"\{ \.reg \.pred (\w+); setp\.ne\.b32 \1, (%\d+), 0; (.*); \}", self.ptx):
            self.ptx = re.sub(rf"\b{guarded[1]}\b", guarded[2], guarded[3])
        if waits := re.fullmatch(r"\{ *\.reg \.pred (\w+); *(\w+): *(\S+) \1, (.*); *@!\1 bra \2; *\}", self.ptx):
            self.ptx = f"{waits[3]} {waits[4]}"
        if maps := re.fullmatch(
            r"\{ *\.reg \.b32 (\w+); *mapa\.shared::cluster\.u32 \1, (.*?); *mbarrier\.arrive\.shared::cluster\.b64 _, \[\1\]; *\}",
            self.ptx,
        ):
            self.ptx = f"mapa+mbarrier.arrive.shared::cluster.b64 {maps[2]}"
        if votes := re.fullmatch(
            r"\{ *\.reg \.pred (\w+), (\w+); *setp\.ne\.u32 \1, (%\d+), 0; *bar\.red\.or\.pred \2, (\d+), (\d+), \1; *"
            r"selp\.u32 (%\d+), 1, 0, \2; *\}",
            self.ptx,
        ):
            self.ptx = f"bar.red.or.pred {votes[6]}, {votes[4]}, {votes[5]}, {votes[3]}"
        self.mnemonic, _, rest = self.ptx.partition(" ")
        self.operands = _parted(rest, ",")
        self.registers = [expression for section in sections[:2] for part in _parted(section, ",") for expression in _expressions(part)]

    def out(self, operand):
        """Registers written by the instruction."""
        return "{" + ", ".join(f"ptx::out({self.registers[number]})" for number in _list(operand)) + "}"

    def read(self, operand):
        """Registers read by it."""
        return "{" + ", ".join(f"ptx::in({self.registers[number]})" for number in _list(operand)) + "}"

    def later(self, operand):
        """Registers that it reads when it is performed, not when it is issued."""
        return "{" + ", ".join(f"ptx::later({self.registers[number]})" for number in _list(operand)) + "}"

    def value(self, operand):
        """A single value: a register, an address `[%4]`, or a number."""
        operand = operand.strip("[] ")
        return f"ptx::in({self.registers[int(operand[1:])] if operand.startswith('%') else operand})"


def _parted(text, separator):
    """The parts of a text between separators outside of brackets and strings."""
    parts, depth, start, quoted = [], 0, 0, False
    for position, character in enumerate(text):
        if character == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
            if character == separator and depth == 0:
                parts.append(text[start:position].strip())
                start = position + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _expressions(operand):
    """`"+f"(c_rf[0])` as `c_rf[0]`."""
    match = re.fullmatch(r'(?:\[\w+\]\s*)?"[^"]*"\s*\((.*)\)', operand, re.DOTALL)
    return [] if match is None else [" ".join(match[1].split())]


def _mma(asm, m, n, k, a_order, b_order, d, a, b, c):
    orders = ", ".join("true" if order == "row" else "false" for order in (a_order, b_order))
    types = ", ".join(f"Type::{one}" for one in (d, a, b, c))
    registers = [asm.out(asm.operands[0]), *map(asm.read, asm.operands[1:])]
    return f"ptx::mma({{{m}, {n}, {k}, {orders}, {types}}}, {', '.join(registers)})"


def _mma_sp(asm, m, n, k, d, a, b, c):
    types = ", ".join(f"Type::{one}" for one in (d, a, b, c))
    out, *factors, metadata, selector = asm.operands
    registers = [asm.out(out), *map(asm.read, factors), asm.value(metadata), asm.value(selector)]
    return f"ptx::mma_sp({{{m}, {n}, {k}, true, false, {types}}}, {', '.join(registers)})"


def _cp_async(asm, cache):
    target, source, size, *filled = asm.operands
    return (
        f"ptx::cp_async({'true' if cache == 'cg' else 'false'}, {', '.join(map(asm.value, (target, source, size, *(filled or [size]))))})"
    )


def _wgmma(asm, n, k, d, a, b):
    out, left, right, adds, *rest = asm.operands
    in_registers = left.startswith("{")
    signs, across = rest[:2], ([*(["0"] if in_registers else []), *rest[2:], "0", "0"])[:2]
    assert all(one == "1" for one in signs), "factors are not negated"
    form = f"{{{n}, {k}, {across[0]}, {across[1]}, Type::{d}, Type::{a}, Type::{b}}}"
    factor = asm.later(left) if in_registers else asm.value(left)
    return f"ptx::wgmma({form}, {asm.out(out)}, {factor}, {asm.value(right)}, {asm.value(adds)})"


def _wgmma_sp(asm, n, k, d, a, b):
    out, left, right, metadata, selector, adds, *rest = asm.operands
    signs, across = rest[:2], [*rest[2:], "0", "0"][:2]
    assert all(one == "1" for one in signs), "factors are not negated"
    form = f"{{{n}, {k}, {across[0]}, {across[1]}, Type::{d}, Type::{a}, Type::{b}}}"
    values = ", ".join(map(asm.value, (left, right, metadata, selector, adds)))
    return f"ptx::wgmma_sp({form}, {asm.out(out)}, {values})"


def _all(function):
    """A call with all registers and numbers of an instruction's operands, in order."""
    return lambda asm: f"ptx::{function}({', '.join(map(asm.value, re.findall(r'%?[0-9]+', ' '.join(asm.operands))))})"


def _tma(function, box):
    """A copy of a box; operand number `box` is a map and a list of coordinates."""

    def call(asm, rank):
        tensor_map, *at = re.findall(r"%[0-9]+", asm.operands[box])
        assert len(at) == int(rank), "a coordinate for each dimension"
        place = f"{asm.value(tensor_map)}, {{{', '.join(map(asm.value, at))}}}"
        return f"ptx::{function}({', '.join(place if number == box else asm.value(one) for number, one in enumerate(asm.operands))})"

    return call


def _pixels(function, box):
    """A copy of pixels in im2col mode: the operand after the barrier is a list of offsets."""

    def call(asm, rank):
        tensor_map, *at = re.findall(r"%[0-9]+", asm.operands[box])
        target, barrier, taps, *mask = (one for number, one in enumerate(asm.operands) if number != box)
        offsets = re.findall(r"%[0-9]+", taps)
        assert len(at) == int(rank) == len(offsets) + 2, "a coordinate for each dimension, and an offset for each image dimension"
        place = f"{asm.value(tensor_map)}, {{{', '.join(map(asm.value, (*at, *offsets)))}}}"
        return f"ptx::{function}({asm.value(target)}, {place}, {', '.join(map(asm.value, (barrier, *mask)))})"

    return call


TENSOR = r"cp\.async\.bulk\.tensor\.([1-5])d"

TENSOR_MAP_KINDS = {"f32": 7, "s32": 3}
"""CUtensorMapDataType of the element types that TMA adds."""

EMULATED = {
    r"mbarrier\.init\.shared::cta\.b64": _all("mbarrier_init"),
    r"fence\.mbarrier_init\.release\.cluster": _all("mbarrier_init_fence"),
    r"mbarrier\.arrive\.shared::cta\.b64": _all("mbarrier_arrive"),
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64": _all("mbarrier_arrive_expect_tx"),
    r"mbarrier\.try_wait\.parity\.shared::cta\.b64": _all("mbarrier_wait_parity"),
    r"mapa\+mbarrier\.arrive\.shared::cluster\.b64": _all("mbarrier_arrive_at"),
    r"barrier\.cluster\.arrive\.release": lambda asm: "ptx::cluster_arrive()",
    r"barrier\.cluster\.wait\.acquire": lambda asm: "ptx::cluster_wait()",
    rf"{TENSOR}\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes": _tma("tma_load", 1),
    rf"{TENSOR}\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes\.multicast::cluster": _tma("tma_load_multicast", 1),
    rf"{TENSOR}\.shared::cluster\.global\.im2col\.mbarrier::complete_tx::bytes": _pixels("tma_load", 1),
    rf"{TENSOR}\.shared::cluster\.global\.im2col\.mbarrier::complete_tx::bytes\.multicast::cluster": _pixels("tma_load_multicast", 1),
    rf"{TENSOR}\.global\.shared::cta\.tile\.bulk_group": _tma("tma_store", 0),
    r"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.add\.tile\.bulk_group": _tma("tma_add", 0),
    r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group\.add\.(f32|s32)": lambda asm, kind: (
        f"ptx::bulk_add({', '.join(map(asm.value, asm.operands))}, ptx::in({TENSOR_MAP_KINDS[kind]}))"
    ),
    r"cp\.async\.bulk\.commit_group": _all("tma_commit_group"),
    r"cp\.async\.bulk\.wait_group\.read": _all("tma_wait_group_read"),
    r"cp\.async\.bulk\.wait_group": _all("tma_wait_group"),
    # Of several GPUs.
    r"ld\.(?:acquire|relaxed)\.sys\.global\.u32": lambda asm: f"{asm.registers[0]} = ptx::poll({asm.value(asm.operands[1])})",
    r"red\.(?:relaxed|release)\.sys\.global\.add\.u32": _all("red_add_word"),
    r"fence\.acq_rel\.sys": lambda asm: "static_cast<void>(0)",
    r"fence\.proxy\.async": lambda asm: "ptx::proxy_fence()",
    r"fence\.proxy\.async\.global": lambda asm: "static_cast<void>(0)",  # the machine has no caches of global memory
    r"mov\.u64": lambda asm: f"{asm.registers[0]} = 0",  # the time, for reports of waits without end
    r"trap": lambda asm: "__builtin_trap()",
    r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32": _all("setmaxnreg"),
    # One kernel runs alone here, so there is no preceding one.
    r"griddepcontrol\.(?:launch_dependents|wait)": lambda asm: "static_cast<void>(0)",
    r"prefetch\.tensormap": lambda asm: "static_cast<void>(0)",
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)": _wgmma,
    r"wgmma\.mma_async\.sp\.sync\.aligned\.m64n(\d+)k(\d+)\.(\w+)\.(\w+)\.(\w+)": _wgmma_sp,
    r"wgmma\.fence\.sync\.aligned": lambda asm: "ptx::wgmma_fence()",
    r"wgmma\.commit_group\.sync\.aligned": lambda asm: "ptx::wgmma_commit_group()",
    r"wgmma\.wait_group\.sync\.aligned": lambda asm: f"ptx::wgmma_wait_group({asm.value(asm.operands[0])})",
    r"fence\.proxy\.async\.shared::cta": lambda asm: "ptx::proxy_fence()",
    r"mma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.(row|col)\.(row|col)\.(\w+)\.(\w+)\.(\w+)\.(\w+)": _mma,
    r"mma\.sp::ordered_metadata\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.(\w+)": _mma_sp,
    r"ldmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": lambda asm, trans: (
        f"ptx::ldmatrix({'true' if trans else 'false'}, {asm.out(asm.operands[0])}, {asm.value(asm.operands[1])})"
    ),
    r"stmatrix\.sync\.aligned\.m8n8\.x[124](\.trans)?\.shared\.b16": lambda asm, trans: (
        f"ptx::stmatrix({'true' if trans else 'false'}, {asm.value(asm.operands[0])}, {asm.read(asm.operands[1])})"
    ),
    r"lop3\.b32": lambda asm: f"{asm.registers[0]} = ({asm.registers[1]} & ({asm.registers[2]})) | {asm.registers[3]}",  # 0xea
    r"cvt\.rn\.(f16|bf16)x2\.f32": lambda asm, kind: (
        f"{asm.registers[0]} = ptx::pair<Type::{kind}>({asm.registers[2]}, {asm.registers[1]})"
    ),
    r"max\.(f16|bf16)x2": lambda asm, kind: f"{asm.registers[0]} = ptx::larger_pair<Type::{kind}>({asm.registers[1]}, {asm.registers[2]})",
    r"(ex2|tanh)\.approx(?:\.ftz)?\.(f16|bf16)x2": lambda asm, function, kind: (
        f"{asm.registers[0]} = ptx::function_of_pair<Type::{kind}>({f'ptx::ex2_{kind}' if function == 'ex2' else 'tanhf'}, {asm.registers[1]})"
    ),
    r"ex2\.approx\.ftz\.f32": lambda asm: f"{asm.registers[0]} = ptx::ex2({asm.registers[1]})",
    r"tanh\.approx\.f32": lambda asm: f"{asm.registers[0]} = tanhf({asm.registers[1]})",
    r"red\.global\.add(?:\.noftz(?:\.v[248])?\.(?:f16|bf16)(?:x2)?|\.v[24]\.f32)": lambda asm: f"ptx::red_add({', '.join(asm.registers)})",
    r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16": lambda asm: (
        f"ptx::movmatrix({asm.out(asm.operands[0])[1:-1]}, {asm.value(asm.operands[1])})"
    ),
    r"cp\.async\.(c[ag])\.shared\.global": _cp_async,
    r"bar\.sync": lambda asm: f"ptx::bar_sync({asm.value(asm.operands[0])}, {asm.value(asm.operands[1])})",
    r"bar\.red\.or\.pred": lambda asm: f"{asm.registers[0]} = ptx::bar_red_or({', '.join(map(asm.value, asm.operands[1:]))})",
    r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64": _all("cp_async_mbarrier_arrive"),
    r"cp\.async\.commit_group": lambda asm: "ptx::cp_async_commit_group()",
    r"cp\.async\.wait_group": lambda asm: f"ptx::cp_async_wait_group({asm.value(asm.operands[0])})",
}
"""Replacements of instructions, by mnemonic; each calls a function of cuda_on_cpu.cpp."""


def emulated(text):
    """The call that replaces `asm volatile(text)`."""
    asm = Asm(text)
    if not asm.ptx:  # only the compiler reads it: its operands keep their values
        return "(void)0"
    for pattern, function in EMULATED.items():
        match = re.fullmatch(pattern, asm.mnemonic)
        if match:
            return function(asm, *match.groups())
    raise Refused(f"no emulation of the PTX instruction {asm.ptx}")


MEANT = {
    r"\bextern\s+__shared__": "extern __dynamic_shared__",
    r"\bf(max|min)f?\(": r"ptx::\1imum(",
    r"\bstatic_cast<(int|long long|signed char|unsigned char)>\(": r"ptx::integer<\1>(",
}
"""Replacements of keywords that mean less to a C++ compiler than to the GPU."""


def for_the_host(text):
    """The printed text for the host's compiler; line numbers do not change."""
    parts, position = [], 0
    for match in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        end = _closing(text, match.end())
        inside = text[match.end() : end]
        parts += [text[position : match.start()], emulated(inside), "\n" * inside.count("\n")]
        position = end + 1
    parts.append(text[position:])
    host = "".join(parts)
    for printed, meant in MEANT.items():
        host = re.sub(printed, meant, host)
    return host


def _closing(text, start):
    """The position of the parenthesis that closes the one before `start`."""
    depth, quoted = 1, False
    for position in range(start, len(text)):
        character = text[position]
        if character == '"' and text[position - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return position
    raise Refused("an asm statement that does not end")


# ---------------------------------------------------------------------------------------------- compilation


@dataclasses.dataclass
class Printed:
    """A printed kernel with its IR, which defines the launch."""

    text: str
    kernel: object

    @staticmethod
    def of(program):
        """The printed text of a program, without preceding copy kernels."""
        return Printed(program.text, program.ir)

    def changed(self, pattern, replacement, count=1):
        """The same with an injected fault: matches of a pattern in its text (all for a count of 0) are replaced."""
        text, replaced = re.subn(pattern, replacement, self.text, count=count)
        assert replaced, f"`{pattern}` does not stand in the text; adapt this fault"
        return dataclasses.replace(self, text=text)


def _checked(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"the C++ compiler refuses the text:\n{done.stderr[:3000]}")


def _all_memory():
    """Sanitizers map more memory than exists, whatever limits this process has."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@functools.cache
def _machine():
    """The folder of the compiled machine, built once per text; other processes wait for it."""
    texts = sorted(FOLDER.iterdir())
    name = hashlib.sha256(b"".join([COMPILER.encode(), *(one.read_bytes() for one in texts)])).hexdigest()[:16]
    path = BUILT / name
    path.mkdir(parents=True, exist_ok=True)
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path / "machine.o").is_file():
            for header in HEADERS:
                (path / header).write_text("")
            _checked([COMPILER, *COMMON, "-O2", "-c", str(FOLDER / "cuda_on_cpu.cpp"), "-o", str(path / "unfinished.o")])
            (path / "unfinished.o").replace(path / "machine.o")
    return path


def _is_unclean(ints, looks_back):
    """Whether semaphores are not 0 after a launch; of scans, whether the counter or a word of the area of the next launch is not."""
    return bool(ints[0] != 1 << 31 or ints[6::4].any() or ints[7::4].any()) if looks_back else bool(ints.any())


class HostProgram:
    """Printed kernels as one program of the host; `run` launches one of them."""

    def __init__(self, printed, folder):
        self.printed, self.folder = list(printed), Path(folder)
        machine = _machine()
        lines = ['#include "cuda_on_cpu.hpp"']
        for number, text in enumerate(self.printed):
            (self.folder / f"{number}.cu").write_text(for_the_host(text.text))
            name = text.kernel.name
            lines += [f"#define {name} kernel_{number}", f"namespace text_{number} {{", f'#include "{number}.cu"', "}", f"#undef {name}"]
        table = ", ".join(f"Launch<text_{number}::kernel_{number}>::with" for number in range(len(self.printed)))
        (self.folder / "texts.cpp").write_text("\n".join([*lines, f"const Kernel kernels[] = {{{table}}};", ""]))
        self.binary = self.folder / "texts"
        observed = OBSERVED if Path(COMPILER).name == "g++" else ()
        includes = ["-I", str(FOLDER), "-I", str(machine)]
        source = [str(self.folder / "texts.cpp"), str(machine / "machine.o")]
        _checked([COMPILER, *COMMON, *SANITIZED, *observed, *includes, *source, "-o", str(self.binary), "-ldl"])

    def run(self, number, arrays, symbols=None, seed=0):
        """The outputs of one launch in logical shape, from its inputs in logical shape; the seed determines the order of threads."""
        printed, values = self.printed[number], dict(symbols or {})
        kernel = printed.kernel
        given = [buffer for buffer in kernel.buffers if buffer.parameter]
        placed = {buffer.name: Placed(buffer, values, kernel) for buffer in given if not buffer.memory.by_value}
        registers = sum(buffer.bytes for buffer in kernel.buffers if buffer.memory.private)
        job = [f"kernel {number} grid {compiled(kernel.grid)(values)} threads {kernel.threads}"]
        waits = any(isinstance(stmt, SemaphoreBarrier) and stmt.action is SemaphoreAction.WAIT for stmt in statements(kernel.body))
        job += [f"cluster {1 if kernel.cluster is None else kernel.cluster.blocks} in_order {int(waits)}"]
        job += [f"shared {kernel.dynamic_shared_bytes} frame {(FRAME + 3 * registers) // 4096 * 4096} seed {seed}"]
        for name, parameter in placed.items():
            file = self.folder / f"{name}.bin"
            parameter.filled(arrays.get(name)).tofile(file)
            job.append(f"array {file} {parameter.bytes} {parameter.buffer.tensor.align}")
        numbers = {name: number for number, name in enumerate(placed)}
        counter = self.folder / "counter.bin"
        if kernel.counter is not None:
            np.zeros(1, np.uint32).tofile(counter)
            job.append(f"array {counter} 4 4")
            numbers[kernel.counter.name] = len(placed)
        workspace = self.folder / "workspace.bin"
        if kernel.workspace is not None:
            size = int(compiled(kernel.workspace_bytes)(values))
            first = size if kernel.workspace.looks_back else MOST_SEMAPHORES * SEMAPHORE_BYTES
            semaphores = np.zeros(first, np.uint8)
            np.concatenate((semaphores, np.resize(POISON, size - semaphores.size))).tofile(workspace)
            job.append(f"array {workspace} {size} 16")
            numbers[kernel.workspace.name] = len(placed)
        for parameter in kernel.parameters:
            if isinstance(parameter, TensorMap):
                job.append(f"map {numbers[parameter.buffer]} {map_words(parameter, placed[parameter.buffer].buffer, values)}")
            elif isinstance(parameter, Var):
                job.append(f"int {values[parameter.name]}")
            elif isinstance(parameter, Reciprocal):
                job.append(f"bits {parameter.value(values)}")
            elif parameter.name in numbers:
                job.append(f"pointer {numbers[parameter.name]}")
            else:
                job.append(f"bits {int.from_bytes(arrays[parameter.name].tobytes(), 'little')}")
        self.launched(number, job)
        files = {name: np.fromfile(self.folder / f"{name}.bin", np.uint8) for name in placed}
        if kernel.counter is not None and np.fromfile(counter, np.uint32)[0]:
            raise Refused(f"{kernel.counter.name} is {np.fromfile(counter, np.uint32)[0]} behind the launch")
        if kernel.workspace is not None and _is_unclean(
            np.fromfile(workspace, np.uint32, first // SEMAPHORE_BYTES), kernel.workspace.looks_back
        ):
            raise Refused(f"a semaphore of {kernel.workspace.name} is not 0 after the launch")
        return {name: one.result_of(files[name]) for name, one in placed.items() if one.buffer.written}

    def launched(self, number, job):
        """Execute the lines of a job, which replaces the files of its arrays. Raises: Refused with the reports of the machine."""
        done = subprocess.run(
            [self.binary], input="\n".join(job), capture_output=True, text=True, env={**os.environ, **OPTIONS}, preexec_fn=_all_memory
        )
        if done.returncode:
            raise Refused(self._report(number, done.stderr) or f"it ended with {done.returncode}")
        self.lines = done.stdout.splitlines()

    def _report(self, number, text):
        """The reports of the sanitizers and the machine, with the lines of the text that they name."""
        lines = [line for line in text.splitlines() if "runtime error" in line or "ERROR" in line or "cuda_on_cpu:" in line]
        lines += [line for line in text.splitlines() if re.search(r"#\d+ .*\.cu:", line)][:3]
        source = self.printed[number].text.splitlines()
        for place in re.findall(r"\.cu:(\d+)|in line (\d+)", "\n".join(lines)):
            row = int(next(filter(None, place)))
            lines += [f"  {row}: {source[row - 1].strip()}"] if 0 < row <= len(source) else []
        return "\n".join(dict.fromkeys(lines)) or text[:2000]


# ---------------------------------------------------------------------------------------------- arrays


def number(value, values):
    """An integer, or the value of an expression."""
    return value if isinstance(value, int) else int(compiled(value)(values))


class Encoder:
    """A stand-in for the driver: records the arguments of `cuTensorMapEncodeTiled` and its sibling, and encodes nothing."""

    pixels = 0

    def cuTensorMapEncodeIm2col(self, target, kind, rank, address, extents, strides, lower, upper, channels, pixels, steps, *modes):
        corners = [sum((value & 0xFFFF) << 16 * place for place, value in enumerate(corner)) for corner in (lower, upper)]
        self.pixels = 1
        return self.cuTensorMapEncodeTiled(target, kind, rank, address, extents, strides, (channels, pixels, *corners), steps, *modes)

    def cuTensorMapEncodeTiled(self, target, kind, rank, address, extents, strides, box, steps, *modes):
        self.kind, self.rank, self.modes = kind, rank, modes
        self.extents, self.strides, self.box, self.steps = map(list, (extents, strides, box, steps))
        return 0


def map_words(tensor_map, buffer, values):
    """A tensor map as the launcher encodes it, without the address: numbers packed into one word; sizes, strides and box; unused ones are
    1, and 0 for strides.
    """
    encoder = Encoder()
    with mock.patch.object(launch, "_driver", lambda: encoder):
        maps.encoded.__wrapped__(maps.MapForm.of(tensor_map, buffer.name, buffer, values), maps.GRANULE)
    interleave, swizzle, _, filled = encoder.modes
    fields = [encoder.kind, encoder.rank, swizzle, interleave, filled, *encoder.steps]
    numbers = encoder.pixels << 56 | sum(value << 8 * place for place, value in enumerate(fields[:3])) + sum(
        value << 24 + 4 * place for place, value in enumerate(fields[3:])
    )
    parts = ((encoder.extents, 5, 1), (encoder.strides, 4, 0), (encoder.box, 5, 1))
    return " ".join(map(str, [numbers, *(word for part, most, rest in parts for word in (*part, *[rest] * (most - len(part))))]))


class Placed:
    """A parameter in flat memory, in its storage order, with gaps between rows or columns if it has a leading dimension."""

    def __init__(self, buffer, values, kernel):
        layout = buffer.array.layout
        self.buffer, self.zeroed = buffer, buffer.name in making.effect_of(kernel, "zeroed")
        self.start = kernel.effects[Zeroed].value(buffer.name)
        self.dtype = buffer.dtype.to_numpy()
        self.shape = tuple(int(compiled(size)(values)) for size in buffer.array.shape)
        if isinstance(layout, MatrixLayout):
            parts = zip(self._by_order(layout, values), np.indices(self.shape), strict=True)
            self.places = sum((step * place for step, place in parts), np.zeros(self.shape, int))
        else:
            self.places = np.zeros(self.shape, int) + buffer.array_storage.evaluated(values).address(list(np.indices(self.shape)))
        self.elements = int(self.places.max(initial=0)) + 1

    def _by_order(self, layout, values):
        rank, step, steps = len(self.shape), 1, {}
        for place, axis in enumerate(range(rank) if layout.order == "col" else reversed(range(rank))):
            steps[axis] = step
            given = place == 0 and layout.leading is not None
            step *= number(layout.leading, values) if given else self.shape[axis]
        return [steps[axis] for axis in range(rank)]

    @property
    def bytes(self):
        """Up to the end of the last element."""
        return self.elements * np.dtype(self.dtype).itemsize

    def filled(self, given):
        """The bytes before the launch: poison, except for given values."""
        flat = np.resize(POISON, self.bytes).view(self.dtype)
        if self.zeroed:
            flat[self.places] = self.start
        if given is not None:
            flat[self.places] = given
        return flat

    def result_of(self, raw):
        """The tensor after the launch; raises if the kernel wrote between its elements."""
        gaps = np.ones(self.elements, bool)
        gaps[self.places] = False
        item = np.dtype(self.dtype).itemsize
        wrong = (raw != np.resize(POISON, self.bytes)).reshape(-1, item).any(axis=1) & gaps
        if wrong.any():
            raise Refused(f"{self.buffer.name}: address {np.flatnonzero(wrong)[0]}, outside of the tensor, was written")
        return raw.view(self.dtype)[self.places]
