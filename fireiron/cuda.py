"""Kernel IR to CUDA C++ that an expert would sign: names from the tree, spec comments, guards merged, loops unrolled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from fireiron.errors import DecompositionError, VerificationError
from fireiron.ir import BLOCK_SCOPE, Access, Barrier, Buffer, Comment, Commit, Exec, For, Kernel, Let, Piece, Stmt, Wait, execs, variables
from fireiron.ir.opaque import at_tiles
from fireiron.spec import MatMulSpec
from fireiron.values.expr import (
    FALSE,
    INT_MAX,
    TRUE,
    All,
    AnyOf,
    BitAnd,
    BitOr,
    BitXor,
    Const,
    Equal,
    Expr,
    FloorDiv,
    Less,
    Min,
    Mod,
    Positive,
    Sum,
    Var,
    all_of,
    bit_xor,
    conjuncts,
    constant,
)
from fireiron.values.machine import SH, DType, bfloat16, float8_e4m3, float8_e5m2, float16, float32, tf32

_INDENT = "  "
_CALL = re.compile(r"\s*[A-Za-z_][\w:]*\(.*\);$")
_BUILT_IN = {"block": "blockIdx.x", "thread": "threadIdx.x"}


_SHARED_ADDRESS = [
    "// the address of inline PTX for shared memory",
    "__device__ __forceinline__ unsigned shared_address(const void* pointer)",
    "{",
    f"{_INDENT}return static_cast<unsigned>(__cvta_generic_to_shared(pointer));",
    "}",
]


def emit(kernel: Kernel) -> str:
    """The CUDA C++ of a kernel: one `extern "C" __global__` function, with the headers that it needs."""
    return _Printer(kernel).kernel_text()


# ---------------------------------------------------------------------------------------------- expressions


def is_wide(value: Expr) -> bool:
    """Whether evaluating the expression, or a part of it (a partial sum or product too), needs 64 bits."""
    if isinstance(value, Sum):
        above, below = max(0, value.constant), max(0, -value.constant)
        widest = 0
        for atoms, coefficient in value.terms:
            part = Sum(((atoms, coefficient),), 0)
            above, below = above + max(0, part.high), below + max(0, -part.low)
            widest = max(widest, abs(coefficient) * math.prod(max(1, -atom.low, atom.high) for atom in atoms))
        extreme = max(widest, above, below)
        if extreme >= 1 << 63:
            raise VerificationError(f"{value} does not fit 64 bits", hint='bound the sizes: sym("M", high=65536)')
        if extreme > INT_MAX:
            return True
    elif max(-value.low, value.high) > INT_MAX:
        return True
    return any(is_wide(child) for child in value.children)


def _printed_terms(value: Sum) -> list[tuple[tuple[Expr, ...], int]]:
    """Positive terms first, large steps before small ones."""
    return sorted(value.terms, key=lambda term: (term[1] < 0, -_weight(term)))


def _weight(term: tuple[tuple[Expr, ...], int]) -> int:
    part = Sum((term,), 0)
    return max(abs(part.low), abs(part.high))


def expression(value: Expr) -> str:
    """C++ text of an expression; 64-bit where 32 bits could overflow. Quotients and remainders are of values not below 0."""
    return _c(value, 0)


def _c(value: Expr, outer: int) -> str:
    text, precedence = _c_node(value)
    return f"({text})" if precedence < outer else text


def _c_node(value: Expr) -> tuple[str, int]:
    match value:
        case Const(value=number):
            suffix = "LL" if abs(number) > INT_MAX else ""
            return f"{number}{suffix}", 9 if number >= 0 else 5
        case Var(name=name):
            return name, 9
        case Sum():
            return _c_sum(value)
        case FloorDiv(left=left, right=right):
            return f"{_dividend(left)} / {_c(right, 7)}", 6
        case Mod(left=left, right=right):
            return f"{_dividend(left)} % {_c(right, 7)}", 6
        case BitAnd(left=left, right=right):
            return f"{_bits(left, 4)} & {_bits(right, 4)}", 3
        case BitXor(left=left, right=right):
            return f"{_bits(left, 4)} ^ {_bits(right, 4)}", 2
        case BitOr(left=left, right=right):
            return f"{_bits(left, 4)} | {_bits(right, 4)}", 1
        case Positive(value=inner):
            return _c_node(inner)
        case Min(left=left, right=right):
            cast = "(long long)" if is_wide(value) else ""
            return f"min({', '.join(f'{cast}({_c(side, 0)})' if cast else _c(side, 0) for side in (left, right))})", 9
        case Less(left=Const() as left, right=right):
            return f"{_c(right, 5)} > {_c(left, 5)}", 4
        case Less(left=left, right=right):
            return f"{_c(left, 5)} < {_c(right, 5)}", 4
        case Equal(left=left, right=right):
            return f"{_c(left, 5)} == {_c(right, 5)}", 4
        case All(conditions=conditions):
            return " && ".join(_c(condition, 4) for condition in conditions), 1
        case AnyOf(conditions=conditions):
            return " || ".join(_c(condition, 4) for condition in conditions), 0
    raise TypeError(type(value))


def scaled(value: Expr, size: int) -> Expr:
    """An address in elements as one in bytes; a power of two goes into an XOR, so that only sums are left outside."""
    if isinstance(value, Sum):
        total: Expr = Const(value.constant * size)
        for atoms, coefficient in value.terms:
            flips = [atom for atom in atoms if isinstance(atom, BitXor)]
            if len(atoms) == 1 and flips:
                total = total + scaled(flips[0], size) * coefficient
            else:
                total = total + Sum(((atoms, coefficient * size),), 0)
        return total
    if isinstance(value, BitXor):
        return bit_xor(scaled(value.left, size), scaled(value.right, size))
    return value * size


def _bits(value: Expr, outer: int) -> str:
    """An operand of a bit operation: arithmetic in parentheses, as no reader remembers these precedences."""
    text, precedence = _c_node(value)
    return f"({text})" if precedence < outer or precedence in (5, 6) else text


def _dividend(left: Expr) -> str:
    if left.low < 0:
        raise VerificationError(f"{left} may be negative, and is divided: C++ rounds toward zero")
    return _c(left, 6)


def _c_sum(value: Sum) -> tuple[str, int]:
    wide = is_wide(value)
    parts = []
    for atoms, coefficient in _printed_terms(value):
        factors = [_c(atom, 6 if position == 0 else 7) for position, atom in enumerate(sorted(atoms, key=lambda a: isinstance(a, Var)))]
        if abs(coefficient) != 1:
            factors.append(str(abs(coefficient)) + ("LL" if abs(coefficient) > INT_MAX else ""))
        if wide:
            first = factors[0] if factors[0].isidentifier() else f"({factors[0]})"
            factors[0] = f"(long long){first}"
        parts.append(("- " if coefficient < 0 else "+ ") + " * ".join(factors))
    if value.constant or not parts:
        number = f"{'-' if value.constant < 0 else '+'} {abs(value.constant)}{'LL' if abs(value.constant) > INT_MAX else ''}"
        parts.insert(0 if value.constant > 0 and parts and parts[0].startswith("-") else len(parts), number)
    text = " ".join(parts)
    text = text[2:] if text.startswith("+ ") else f"-{text[2:]}"
    single = len(parts) == 1 and not text.startswith("-")
    return text, 6 if single and " * " in text else 5


# ---------------------------------------------------------------------------------------------- types

_CARRIERS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FLOAT_CARRIERS = {("float", 8): "float2", ("float", 16): "float4", ("double", 16): "double2", ("int", 8): "int2", ("int", 16): "int4"}


def carrier(dtype: DType, width: int) -> str:
    """The built-in vector type that moves `width` elements."""
    size = dtype.bytes * width
    return _FLOAT_CARRIERS.get((dtype.cuda, size), _CARRIERS[size])


def _zero(dtype: DType, width: int) -> str:
    kind = carrier(dtype, width)
    if kind in ("unsigned short", "unsigned int"):
        return "0"
    lanes = int(kind[-1])
    literal = {"f": "0.0f", "d": "0.0", "i": "0", "u": "0u"}[kind[0]]
    return f"make_{kind}({', '.join([literal] * lanes)})"


def literal(number: int, dtype: DType) -> str:
    """A constant of an element type."""
    if dtype == float16:
        return f"__float2half_rn({number}.0f)"
    if dtype == bfloat16:
        return f"__float2bfloat16_rn({number}.0f)"
    if dtype in _EIGHT_BITS:
        return f"{dtype.cuda}({number}.0f)"
    if dtype.kind == "float":
        return f"{number}.0" + ("f" if dtype.bits == 32 else "")
    return str(number)


_EIGHT_BITS = (float8_e4m3, float8_e5m2)

_TO_HALF = {"float": "__float2half_rn({})", "double": "__double2half({})", "int": "__int2half_rn({})", "signed char": "__int2half_rn({})"}
_TO_BFLOAT = {
    "float": "__float2bfloat16_rn({})", "double": "__double2bfloat16({})", "int": "__int2bfloat16_rn({})",
    "signed char": "__int2bfloat16_rn({})",
}  # fmt: skip


def converted(text: str, source: DType, target: DType) -> str:
    """A value converted to another element type, rounded to nearest even, floats to integers toward zero."""
    if source == target:
        return text
    if source in _EIGHT_BITS:
        return converted(f"static_cast<float>({text})", float32, target)
    if target in _EIGHT_BITS:
        return f"{target.cuda}({text if source.cuda in ('float', 'double') else converted(text, source, float32)})"
    if source == float16:
        if target == bfloat16:
            return f"__float2bfloat16_rn(__half2float({text}))"
        inner = f"__half2int_rz({text})" if target.kind == "int" else f"__half2float({text})"
        return inner if target.cuda in ("float", "int") else f"static_cast<{target.cuda}>({inner})"
    if source == bfloat16:
        if target == float16:
            return f"__float2half_rn(__bfloat162float({text}))"
        inner = f"__bfloat162int_rz({text})" if target.kind == "int" else f"__bfloat162float({text})"
        return inner if target.cuda in ("float", "int") else f"static_cast<{target.cuda}>({inner})"
    if target == float16:
        return _TO_HALF[source.cuda].format(text)
    if target == bfloat16:
        return _TO_BFLOAT[source.cuda].format(text)
    return f"static_cast<{target.cuda}>({text})"


# ---------------------------------------------------------------------------------------------- the printer


class _Printer:
    """The text of one kernel. Executables call its public methods to print themselves."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = at_tiles(kernel)
        self.dropped: frozenset[Expr] = frozenset()
        self.addressed: set[str] = set()

    literal = staticmethod(literal)
    expression = staticmethod(expression)
    converted = staticmethod(converted)

    # ------------------------------------------------------------------------------------------ the frame

    def kernel_text(self) -> str:
        kernel = self.kernel
        statements = self.statements(kernel.body)
        body = _indented([*self._prologue(), *self._addresses(), *statements])
        helpers = ["", *_SHARED_ADDRESS] if self.addressed else []
        lines = [*self._header(), *self._includes(), *helpers, "", *self._signature(), "{", *body]
        return "\n".join([*(wrapped for line in lines for wrapped in _wrapped(line)), "}", ""])

    def _header(self) -> Iterable[str]:
        kernel = self.kernel
        yield f"// {kernel.spec}"
        for line in kernel.title:
            yield f"//   {line}"
        yield f"// target {kernel.architecture}; launch <<<{_readable(kernel.grid)}, {kernel.threads}>>>, {self._shared_text()}"
        for text, condition in kernel.facts:
            yield f"// requires: {text}, {_readable(condition)}"
        for name in kernel.zeroed:
            yield f"// requires: {name} is zero before the launch, blocks add to it"
        for reason in kernel.unchecked:
            yield f"// UNCHECKED, races are not excluded: {reason}"

    def _shared_text(self) -> str:
        kind = "dynamic" if self._dynamic else "static"
        return f"{self.kernel.shared_bytes} bytes of {kind} shared memory" if self.kernel.shared_bytes else "no shared memory"

    @property
    def _dynamic(self) -> bool:
        return dynamic_shared_bytes(self.kernel) > 0

    def _includes(self) -> Iterable[str]:
        dtypes = {buffer.dtype for buffer in self.kernel.buffers}
        if float16 in dtypes:
            yield "#include <cuda_fp16.h>"
        if bfloat16 in dtypes:
            yield "#include <cuda_bf16.h>"
        instructions = [statement.instruction for statement, _ in execs(self.kernel.body)]
        yield from dict.fromkeys(f"#include <{header}>" for one in instructions for header in getattr(one, "headers", ()))
        if dtypes & set(_EIGHT_BITS):
            yield "#include <cuda_fp8.h>"

    def _signature(self) -> Iterable[str]:
        kernel = self.kernel
        parameters = []
        for buffer in kernel.buffers:
            if buffer.parameter:
                const = "" if buffer.written else "const "
                parameters.append(f"{const}{buffer.dtype.cuda}* __restrict__ {buffer.name}")
        parameters += [f"const int {symbol}" for symbol in kernel.symbols]
        bounds = f"{kernel.threads}, {kernel.resident}" if kernel.resident else str(kernel.threads)
        yield f'extern "C" __global__ void __launch_bounds__({bounds})'
        one_line = f"{kernel.name}({', '.join(parameters)})"
        if len(one_line) <= 110:
            yield one_line
        else:
            yield f"{kernel.name}("
            yield from _indented([f"{parameter}," for parameter in parameters[:-1]] + [f"{parameters[-1]})"])

    def _prologue(self) -> Iterable[str]:
        for name, source in _BUILT_IN.items():
            if self._uses(name):
                yield f"const int {name} = {source};"
        for statement in self.kernel.body:
            if isinstance(statement, Let):
                yield from self._let(statement)
        shared = [buffer for buffer in self.kernel.buffers if buffer.memory == SH]
        if self._dynamic:
            align = max(16, *(buffer.tensor.align for buffer in shared))
            yield f"extern __shared__ __align__({align}) unsigned char smem[];"
            for buffer in shared:
                kind = buffer.dtype.cuda
                yield f"{kind}* const {buffer.name} = reinterpret_cast<{kind}*>(smem + {buffer.offset});  // {_shape(buffer)}"
        else:
            for buffer in shared:
                align = max(16, buffer.tensor.align)
                yield f"__shared__ __align__({align}) {buffer.dtype.cuda} {buffer.name}[{expression(buffer.total)}];  // {_shape(buffer)}"
        for buffer in self.kernel.buffers:
            if buffer.memory.private:
                yield from self._registers(buffer)

    def _addresses(self) -> Iterable[str]:
        """Where shared buffers lie, for inline PTX."""
        for buffer in self.kernel.buffers:
            if buffer.name in self.addressed:
                yield f"const unsigned {buffer.name}_address = shared_address({buffer.name});"

    def _registers(self, buffer: Buffer) -> Iterable[str]:
        if buffer.memory.fragment is not None:
            yield f"{self._toucher(buffer).declaration(self.kernel, buffer)}  // of {_shape(buffer)}"
            return
        size = constant(buffer.total) or 1
        align = f"__align__({buffer.tensor.align}) " if buffer.tensor.align > buffer.dtype.bytes else ""
        note = "" if size <= 255 else "; too many for registers: lives in local memory"
        yield f"{align}{buffer.dtype.cuda} {buffer.name}[{size}];  // of {_shape(buffer)}{note}"

    def _toucher(self, buffer: Buffer) -> Any:
        """The first instruction that touches a buffer."""
        return next(one.instruction for one, _ in execs(self.kernel.body) if any(access.buffer == buffer.name for access in one.accesses))

    def _uses(self, name: str) -> bool:
        """Whether a statement that is no definition at the top refers to a variable."""
        body = [one for one in self.kernel.body if not isinstance(one, Let)]
        return any(one.name == name for one in variables(body)) or any(
            one.name == name for buffer in self.kernel.buffers for value in buffer.holder for one in value.variables()
        )

    # ------------------------------------------------------------------------------------------ statements

    def statements(self, body: Iterable[Stmt]) -> list[str]:
        """The lines of a statement list; neighbours under one condition share one `if`."""
        items = [statement for statement in body if not (isinstance(statement, Let) and statement in self.kernel.body)]
        return self._grouped(items, 0)

    def _grouped(self, items: list[Stmt], start: int) -> list[str]:
        lines: list[str] = []
        position = start
        while position < len(items):
            condition, stop = self._common_condition(items, position)
            if condition is None:
                lines += self._statement(items[position])
                position += 1
                continue
            before = self.dropped
            self.dropped = before | {condition}
            inner = self._grouped(items[position:stop], 0)
            self.dropped = before
            lines += _guarded(expression(condition), inner)
            position = stop
        return lines

    def _common_condition(self, items: list[Stmt], position: int) -> tuple[Expr | None, int]:
        """The first condition of a statement, and the end of the run of statements that are all under it."""
        own = self._conditions(items[position])
        if not own:
            return None, position
        stop = here = position
        while here < len(items):
            if own[0] in self._conditions(items[here]):
                stop = here + 1
            elif not isinstance(items[here], Comment):
                break
            here += 1
        return own[0], stop

    def _conditions(self, statement: Stmt) -> tuple[Expr, ...]:
        """Conditions, not yet tested around it, without which a statement does nothing."""
        if isinstance(statement, Exec):
            return tuple(condition for condition in conjuncts(statement.performed) if condition not in self.dropped)
        if isinstance(statement, For):
            inner = [one for one in statement.body if not isinstance(one, Comment)]
            bound = {statement.var} | {one.var for one in inner if isinstance(one, Let)}
            parts = [self._conditions(one) for one in inner if not isinstance(one, Let)]
            if not parts or any(isinstance(one, (Barrier, Commit, Wait)) for one in inner):
                return ()
            return tuple(c for c in parts[0] if all(c in part for part in parts) and c.variables().isdisjoint(bound))
        return ()

    def _statement(self, statement: Stmt) -> list[str]:
        match statement:
            case Comment(text=text):
                return [f"// {text}"]
            case Let():
                return list(self._let(statement))
            case Barrier(scope=scope, reason=reason):
                call = "__syncthreads();" if scope == BLOCK_SCOPE else "__syncwarp();"
                return [f"{call}  // {reason}" if reason else call]
            case Commit():
                return ['asm volatile("cp.async.commit_group;" ::: "memory");']
            case Wait(groups=groups, reason=reason):
                return [f'asm volatile("cp.async.wait_group {groups};" ::: "memory");' + (f"  // {reason}" if reason else "")]
            case For():
                return self._loop(statement)
            case Exec():
                return statement.instruction.cuda(self, statement)
        raise TypeError(f"{type(statement).__name__} cannot be printed")

    def _let(self, statement: Let) -> Iterable[str]:
        """A definition. At the top it divides the unsigned built-in variables themselves: no correction for a sign."""
        kind = "long long" if statement.var.high > INT_MAX else "int"
        value = statement.value
        if statement in self.kernel.body:
            built_in = [var for var in value.variables() if var.name in _BUILT_IN]
            value = value.substitute({var: Var(_BUILT_IN[var.name], var.low, var.high) for var in built_in})
        yield f"const {kind} {statement.var} = {expression(value)};"

    def _loop(self, statement: For) -> list[str]:
        body = self.statements(statement.body)
        unroll = statement.unroll or self._indexes_registers(statement)
        kind = "long long" if statement.extent.high > INT_MAX else "int"
        name = statement.var.name
        if statement.extent == Const(1) and not any(isinstance(one, Let) for one in statement.body):
            return ["{", *_indented([f"const {kind} {name} = 0;", *body]), "}"]
        head = f"for ({kind} {name} = 0; {name} < {_c(statement.extent, 5)}; ++{name})"
        lines = [f"{head} {{", *_indented(body), "}"] if len(body) > 1 else [head, *_indented(body)]
        return ["#pragma unroll", *lines] if unroll else lines

    def _indexes_registers(self, loop: For) -> bool:
        """Registers have no run-time index: a loop whose variable numbers them must be unrolled, if they are registers at all."""
        for statement, _ in execs((loop,)):
            for access in statement.accesses:
                buffer = self.kernel.buffer(access.buffer)
                registers = buffer.memory.private and (constant(buffer.elements) or 0) <= 255 and not statement.collective
                if registers and loop.var in buffer.address(access, access.elements()[0]).variables():
                    return True
        return False

    # ------------------------------------------------------------------------------------------ operands

    def place(self, access: Access, offset: tuple[int, ...] | None = None) -> str:
        """An element as an lvalue."""
        buffer = self.kernel.buffer(access.buffer)
        index = buffer.address(access, offset if offset is not None else access.elements()[0])
        return f"{access.buffer}[{expression(index)}]"

    def element(self, statement: Exec, name: str) -> str:
        """The only element of an operand, as an lvalue."""
        return self.place(statement.operands[name])

    def factor(self, statement: Exec, name: str, dtype: DType) -> str:
        """The only element of an input in another type, zero where it is not read."""
        position = list(statement.spec.operands).index(name)
        return self.value(statement, position, 0, dtype)

    def accumulator(self, statement: Exec, text: str, dtype: DType) -> str:
        """The old value of an output, or zero where the statement does not accumulate."""
        if statement.accumulate == TRUE:
            return text
        zero = literal(0, dtype)
        return zero if statement.accumulate == FALSE else f"{_c(statement.accumulate, 1)} ? {text} : {zero}"

    def always_accumulates(self, statement: Exec) -> bool:
        """Whether the old value of an output always counts."""
        return statement.accumulate == TRUE

    # ------------------------------------------------------------------------------------------ operands of inline PTX

    def words(self, access: Access, statement: Exec) -> list[str]:
        """The 32-bit (or wider) registers of a lane's values, in their order; small elements lie packed in one."""
        buffer = self.kernel.buffer(access.buffer)
        together = max(4 // buffer.dtype.bytes, 1)
        offsets = access.elements()
        if together == 1:
            places = [self.place(access, offset) for offset in offsets]
            return [f"__float_as_uint({place})" for place in places] if buffer.dtype == tf32 else places
        texts = []
        for piece in statement.pieces[statement.accesses.index(access)]:
            start = piece.first
            const = "" if access.write else "const "
            texts.append(f"reinterpret_cast<{const}unsigned&>({self.place(access, offsets[start])})")
        return texts

    def asm(self, template: str, outputs: Iterable[str], inputs: Iterable[str], memory: bool = False) -> list[str]:
        """A statement of inline PTX, operands a few a line."""
        lines = [f'asm volatile("{template}"', *_operand_lines(":", outputs), *_operand_lines(":", inputs)]
        if memory:
            lines.append('    : "memory"')
        return [*lines[:-1], f"{lines[-1]});"]

    def constraint(self, dtype: DType) -> str:
        """The letter of inline PTX for a register of this element type."""
        return "r" if dtype == tf32 else {"float": "f", "double": "d", "int": "r"}.get(dtype.cuda, "r")

    def cleared(self, statement: Exec, registers: list[str], kind: str) -> list[str]:
        """Zeros in the accumulators, where the statement does not add to them."""
        zero = {"f": "0.0f", "d": "0.0", "r": "0"}[kind]
        lines = [f"{register} = {zero};" for register in registers]
        return lines if statement.accumulate == FALSE else _guarded(f"!({_c(statement.accumulate, 0)})", lines)

    def unless_adding(self, statement: Exec, lines: list[str]) -> list[str]:
        """Lines for where the old value of an output does not count."""
        if statement.accumulate in (TRUE, FALSE):
            return lines if statement.accumulate == FALSE else []
        return _guarded(f"!({_c(statement.accumulate, 0)})", lines)

    def shared_address(self, access: Access, offset: tuple[int, ...] | None = None) -> str:
        """The address of a thread's element (the first one) in the window of shared memory, in bytes."""
        buffer = self.kernel.buffer(access.buffer)
        index = buffer.address(access, offset if offset is not None else access.elements()[0])
        self.addressed.add(buffer.name)
        return f"{buffer.name}_address + {_c(scaled(index, buffer.dtype.bytes), 5)}"

    # ------------------------------------------------------------------------------------------ pairs of halves

    def _pair_type(self, dtype: DType) -> str:
        return "__half2" if dtype == float16 else "__nv_bfloat162"

    def _packed(self, statement: Exec, name: str) -> bool:
        return statement.width(list(statement.spec.operands).index(name)) == 2

    def pair(self, statement: Exec, name: str) -> str:
        """An operand of one or two 16-bit floats as a packed pair."""
        access = statement.operands[name]
        dtype = self.kernel.buffer(access.buffer).dtype
        places = [self.place(access, offset) for offset in access.elements()]
        half = dtype == float16
        if len(places) == 1:
            return f"{'__half2half2' if half else '__bfloat162bfloat162'}({places[0]})"
        if self._packed(statement, name):
            const = "" if access.write else "const "
            return f"*reinterpret_cast<{const}{self._pair_type(dtype)}*>(&{places[0]})"
        return f"{'__halves2half2' if half else '__halves2bfloat162'}({places[0]}, {places[1]})"

    def pair_updated(self, statement: Exec, name: str) -> tuple[str, str, Callable[[str, str], list[str]]]:
        """The name of a pair, its old value, and a function that prints its assignment."""
        access = statement.operands[name]
        dtype = self.kernel.buffer(access.buffer).dtype
        read = self.pair(statement, name)
        places = [self.place(access, offset) for offset in access.elements()]
        if self._packed(statement, name):
            return read, read, lambda value, target: [f"{target} = {value};"]
        low, high = ("__low2half", "__high2half") if dtype == float16 else ("__low2bfloat16", "__high2bfloat16")

        def write(value: str, target: str) -> list[str]:
            body = [f"const {self._pair_type(dtype)} pair = {value};", f"{places[0]} = {low}(pair);", f"{places[1]} = {high}(pair);"]
            return ["{", *_indented(body), "}"]

        return read, read, write

    def accumulator_pair(self, statement: Exec, text: str, dtype: DType) -> str:
        """The old pair, or zeros where the statement does not accumulate."""
        zero = f"{'__half2half2' if dtype == float16 else '__bfloat162bfloat162'}({literal(0, dtype)})"
        return zero if statement.accumulate == FALSE else f"({_c(statement.accumulate, 1)} ? {text} : {zero})"

    # ------------------------------------------------------------------------------------------ copies

    def copy(self, statement: Exec) -> list[str]:
        """A move of one thread, in pieces of `vector` elements; what lies outside the source is zero."""
        lines: list[str] = []
        count = statement.vector
        for start in range(0, len(statement.accesses[0].elements()), count):
            parts = [[one for one in pieces if start <= one.first < start + count] for pieces in statement.pieces]
            lines += self._moved(statement, start, parts)
        return lines

    def _moved(self, statement: Exec, start: int, parts: list[list[Piece]]) -> list[str]:
        """Elements that are moved together: at once, or into a small array and from there."""
        (source, target), (reads, writes) = statement.accesses, parts
        if len(reads) == len(writes) == 1:
            read, write = reads[0], writes[0]
            fill = self._rest(read.condition, frozenset(conjuncts(write.condition)))
            offset = target.elements()[write.first]
            line = f"{self._target(target, offset, write.width)} = {self._value(source, target, read, fill)};"
            return [line] if write.condition == TRUE else _guarded(expression(write.condition), [line])
        kind, dtype = (self.kernel.buffer(access.buffer).dtype for access in statement.accesses)
        late = kind != dtype and reads[0].width > 1
        held = kind if late else dtype
        count = statement.vector
        lines = [f"__align__({held.bytes * count}) {held.cuda} piece[{count}];"]
        for read in reads:
            lane = read.first - start
            slot = f"piece[{lane}]" if read.width == 1 else f"*reinterpret_cast<{carrier(held, read.width)}*>(&piece[{lane}])"
            lines.append(f"{slot} = {self._value(source, target, read, read.condition)};")
        for write in writes:
            lane = write.first - start
            single = converted(f"piece[{lane}]", held, dtype)
            value = single if write.width == 1 else f"*reinterpret_cast<const {carrier(dtype, write.width)}*>(&piece[{lane}])"
            line = f"{self._target(target, target.elements()[write.first], write.width)} = {value};"
            lines += [line] if write.condition == TRUE else _guarded(expression(write.condition), [line])
        return ["{", *_indented(lines), "}"]

    def asynchronous_copy(self, statement: Exec, text: Callable[[_Printer, str, str, str | None], list[str]]) -> list[str]:
        """A move of one thread in pieces of `vector` elements, each printed by `text(printer, target, source, fill)`."""
        source, target = statement.accesses
        lines: list[str] = []
        for piece in statement.pieces[0]:
            read, write = source.elements()[piece.first], target.elements()[piece.first]
            fill = None if piece.condition == TRUE else _c(piece.condition, 9)
            lines += text(self, self.shared_address(target, write), f"&{self.place(source, read)}", fill)
        return lines

    def value(self, statement: Exec, position: int, number: int, dtype: DType) -> str:
        """An element of an input, by its number, in another type, zero where it is not read."""
        access = statement.accesses[position]
        fill = statement.conditions(position)[number]
        text = converted(self.place(access, access.elements()[number]), self.kernel.buffer(access.buffer).dtype, dtype)
        return text if fill == TRUE else f"({_c(fill, 1)} ? {text} : {literal(0, dtype)})"

    def each(self, statement: Exec, text: Callable[[str, str], str]) -> list[str]:
        """A line `text(source, target)` for each element of a statement from one operand to another, where the target has it."""
        source, target = statement.accesses
        lines: list[str] = []
        for read, write, guard in zip(source.elements(), target.elements(), statement.conditions(1), strict=True):
            line = text(self.place(source, read), self.place(target, write))
            lines += [line] if guard == TRUE else _guarded(expression(guard), [line])
        return lines

    def _rest(self, condition: Expr, tested: frozenset[Expr]) -> Expr:
        return all_of(part for part in conjuncts(condition) if part not in tested)

    def _target(self, access: Access, offset: tuple[int, ...], width: int) -> str:
        place = self.place(access, offset)
        return place if width == 1 else f"*reinterpret_cast<{carrier(self.kernel.buffer(access.buffer).dtype, width)}*>(&{place})"

    def _value(self, source: Access, target: Access, read: Piece, fill: Expr) -> str:
        old, new = self.kernel.buffer(source.buffer).dtype, self.kernel.buffer(target.buffer).dtype
        place, width = self.place(source, source.elements()[read.first]), read.width
        value = converted(place, old, new) if width == 1 else f"*reinterpret_cast<const {carrier(old, width)}*>(&{place})"
        if fill == TRUE:
            return value
        return f"{_c(fill, 1)} ? {value} : {literal(0, new) if width == 1 else _zero(old, width)}"

    # ------------------------------------------------------------------------------------------ micro-kernels

    def micro_kernel(self, statement: Exec, micro: object) -> list[str]:
        """A user's text in a scope of its own, with those names of its contract that it uses."""
        text = str(getattr(micro, "text", ""))
        used = set(re.findall(r"[A-Za-z_]\w*", text))
        declared: list[tuple[str, str]] = []
        for name, access in statement.operands.items():
            declared += self._bound_operand(name, access, statement)
        if isinstance(statement.spec, MatMulSpec):
            truth: dict[Expr, str] = {TRUE: "true", FALSE: "false"}
            value = truth.get(statement.accumulate, expression(statement.accumulate))
            declared.append(("accumulate", f"const bool accumulate = {value};"))
        if statement.scratch is not None:
            cast = f"reinterpret_cast<unsigned char*>({statement.scratch.name})"
            declared.append(("scratch", f"unsigned char* const scratch = {cast};"))
            declared.append(("scratch_size", f"constexpr int scratch_size = {expression(statement.scratch.shape[0])};"))
        lines = [f"// micro-kernel {statement.instruction.name}: {statement.spec}"]
        for name, line in declared:
            if name in used and not line:
                raise DecompositionError(
                    f"micro-kernel {statement.instruction.name} uses {name}, and neighbours there are no fixed step apart",
                    within=statement.spec,
                    at=statement.origin,
                    hint=f"{name.split('_')[0]}_at(...) gives an element in any storage",
                )
        lines += [line for name, line in declared if name in used]
        return ["{", *_indented([*lines, *text.strip("\n").split("\n")]), "}"]

    def _bound_operand(self, operand: str, access: Access, statement: Exec) -> Iterable[tuple[str, str]]:
        buffer = self.kernel.buffer(access.buffer)
        name, kind = operand.lower(), buffer.dtype.cuda
        dims = statement.spec.uses[operand]
        yield f"{name}_type", f"using {name}_type = {kind};"
        if buffer.memory.private and statement.collective:
            yield name, f"{kind} (&{name})[{expression(buffer.elements)}] = {buffer.name};"
            yield f"{name}_registers", f"constexpr int {name}_registers = {expression(buffer.elements)};"
            register = Var("held_register", 0, (constant(buffer.elements) or 1) - 1)
            for label, coordinate in zip(dims, buffer.held(register), strict=True):
                yield f"{name}_{label}", f"const auto {name}_{label} = [&](int held_register) {{ return {expression(coordinate)}; }};"
        else:
            const = "" if access.write else "const "
            yield name, f"{const}{kind}* const {name} = &{self.place(access)};"
            place = f"{access.buffer}[{expression(self._local_address(buffer, access))}]"
            arguments = ", ".join(f"int index_{position}" for position in range(len(dims)))
            yield f"{name}_at", f"const auto {name}_at = [&]({arguments}) -> {const}{kind}& {{ return {place}; }};"
            for dim, mode in enumerate(dims):
                stride = self._stride(buffer, access, dim)
                wide = "long long" if stride is not None and is_wide(stride) else "int"
                text = "" if stride is None else f"const {wide} {name}_stride_{mode} = {expression(stride)};"
                yield f"{name}_stride_{mode}", text
        for dim, (mode, bound) in enumerate(zip(dims, access.bounds, strict=False)):
            size, label = access.shape[dim], f"{name}_size_{mode}"
            if bound is None:
                yield label, f"constexpr int {label} = {size};"
            else:
                left = expression(bound - access.base[dim])
                if is_wide(bound - access.base[dim]):
                    yield label, f"const int {label} = static_cast<int>(max(0LL, min({size}LL, {left})));"
                else:
                    yield label, f"const int {label} = max(0, min({size}, {left}));"

    def _local_address(self, buffer: Buffer, access: Access) -> Expr:
        """The address of an element by its coordinates in the view, `index_0`, `index_1`, ... (names that nothing else has)."""
        coordinates = []
        for position, (base, modes, size) in enumerate(zip(access.base, access.modes, access.shape, strict=True)):
            index: Expr = Var(f"index_{position}", 0, size - 1)
            for mode in modes:
                base = base + index % mode.size * mode.stride
                index = index // mode.size
            coordinates.append(base)
        return buffer.address(attrs.evolve(access, base=tuple(coordinates)), tuple(0 for _ in coordinates))

    def _stride(self, buffer: Buffer, access: Access, dim: int) -> Expr | None:
        """The step between neighbours of a view; None where there is no such number (swizzled or hierarchical storage)."""
        storage = access.storage or buffer.storage
        modes = [mode for mode in access.modes[dim] if constant(mode.size) != 1]
        if storage.swizzle is not None or len(storage.dims[dim]) != 1 or len(modes) > 1:
            return None
        return storage.dims[dim][0].weight * (modes[0].stride if modes else 1)


def _readable(value: Expr) -> str:
    """An expression for a comment: no casts."""
    return str(value).replace("//", "/")


def dynamic_shared_bytes(kernel: Kernel) -> int:
    """Bytes of dynamic shared memory that a launch must ask for; 0 where static arrays serve."""
    shared = [buffer for buffer in kernel.buffers if buffer.memory == SH]
    overlap = any(a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes for i, a in enumerate(shared) for b in shared[i + 1 :])
    return kernel.shared_bytes if overlap or kernel.shared_bytes > kernel.architecture.static_shared else 0


def _wrapped(line: str, limit: int = 120) -> list[str]:
    """A long assignment broken before its value, and before the branches of its choice."""
    if len(line) <= limit or line.lstrip().startswith(("//", "#", "for")):
        return [line]
    if " = " not in line:
        return _broken_call(line, limit) if _CALL.match(line) else [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2 * len(_INDENT))
    target, value = line.split(" = ", 1)
    condition, choice, rest = value.partition(" ? ")
    if not choice or condition.count("(") != condition.count(")"):
        return [f"{target} =", *_wrapped_call(indent, value, limit)]
    first, _, second = rest.rpartition(" : ")
    return [f"{target} =", indent + condition, f"{indent}? {first}", f"{indent}: {second}"]


def _wrapped_call(indent: str, value: str, limit: int) -> list[str]:
    """A long call with one argument a line."""
    if len(indent) + len(value) <= limit or not value.endswith(");"):
        return [indent + value]
    name, _, inside = value[:-2].partition("(")
    arguments, depth, start = [], 0, 0
    for position, character in enumerate(inside):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            arguments.append(inside[start : position + 1].strip())
            start = position + 1
    arguments.append(inside[start:].strip() + ");")
    return [f"{indent}{name}(", *(f"{indent}{_INDENT * 2}{argument}" for argument in arguments)]


def _broken_call(line: str, limit: int) -> list[str]:
    """A long call with its arguments on the next line, or one a line."""
    indent = " " * (len(line) - len(line.lstrip()))
    name, _, arguments = line.partition("(")
    inside = f"{indent}{_INDENT * 2}{arguments}"
    return [f"{name}(", inside] if len(inside) <= limit else _wrapped_call(indent, line.strip(), limit)


def _operand_lines(head: str, operands: Iterable[str], limit: int = 104) -> list[str]:
    """Operands of inline PTX, as many a line as fit."""
    lines = [f"    {head}"]
    for operand in operands:
        if len(lines[-1]) + len(operand) > limit and lines[-1].strip() != head:
            lines.append("     ")
        lines[-1] += f" {operand},"
    return [*lines[:-1], lines[-1].rstrip(",")]


def _guarded(condition: str, body: list[str]) -> list[str]:
    return [f"if ({condition})", *_indented(body)] if len(body) == 1 else [f"if ({condition}) {{", *_indented(body), "}"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [_INDENT + line if line and not line.startswith("#") else line for line in lines]


def _shape(buffer: Buffer) -> str:
    shape = " x ".join(str(size) for size in buffer.tensor.shape)
    copies = f", {buffer.tensor.copies} copies" if buffer.tensor.copies > 1 else ""
    return f"{shape}{copies}"
