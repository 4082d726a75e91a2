"""Check SASS for `wgmma` A operands in registers that other instructions overwrite, a bug of some compilers.

A `wgmma` (HGMMA in SASS) may read its A operand from registers that LDSM loads once before a loop. ptxas of CUDA 13.0 and older may
allocate some of these registers to the A operand of another HGMMA too, without a message. From the second iteration on, the first HGMMA
then reads values of the second. This check traces each A operand back to all instructions that may have written it last. A register that
LDSM writes on one path and another instruction on another path is an error. SASS is the text of nvdisasm or cuobjdump.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fireiron.errors import LaunchError
from fireiron.frozen import frozen
from fireiron.gpu.disassembly import disassemblers, sass

_LINE = re.compile(r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\d|!?U?PT)\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<rest>[^;]*);")
_LABEL = re.compile(r"^\s*(\.L\w+):")
_FUNCTION = re.compile(r"^\s*(?:\.section\s+(\.text\.\S+?),|Function : (\S+))")
_TARGET = re.compile(r"`?\(?(\.L\w+|0x[0-9a-f]+)\)?\s*$")
_REGISTER = re.compile(r"R(\d+)(?:\.\w+)*$")
_A_REGISTERS = 4
"""Registers per thread of a 64x16 A operand of 16-bit elements, or a 64x8 one of 32-bit elements."""

_NOTHING_WRITTEN = (
    "ST", "RED", "BAR", "BRA", "BRX", "EXIT", "HGMMA", "SYNCS", "UTMA", "UBLK", "DEPBAR", "WARPGROUP", "ISETP", "FSETP", "DSETP", "HSETP",
    "PLOP3", "R2P", "R2UR",
)  # fmt: skip
"""Prefixes of instructions whose first operand is not a written register, or that write accumulators only."""

_PAIRS = ("DADD", "DMUL", "DFMA", "F2F.F64", "I2F.F64", "CS2R")
"""Instructions that write two registers although only one is printed."""


@frozen
class _Instruction:
    """A line of SASS; `guarded` means that it has a predicate."""

    address: int
    name: str
    guarded: bool
    operands: tuple[str, ...]

    @property
    def written(self) -> range:
        """The registers that it writes; their number follows from its width."""
        if not self.operands or self.name.startswith(_NOTHING_WRITTEN):
            return range(0)
        first = next((operand for operand in self.operands if not re.match(r"!?U?P\w$", operand)), "")
        match = _REGISTER.match(first)
        return range(int(match[1]), int(match[1]) + _width(self.name)) if match else range(0)

    @property
    def a_operand(self) -> range:
        """The registers of an HGMMA's A operand; none if it is in shared memory."""
        match = _REGISTER.match(self.operands[1]) if self.name.startswith("HGMMA") and len(self.operands) > 1 else None
        return range(int(match[1]), int(match[1]) + _A_REGISTERS) if match else range(0)


def _width(name: str) -> int:
    """Return an upper bound of the number of registers that an instruction writes."""
    if name.startswith("LDSM"):
        return int(name[-1]) if name[-1] in "24" else 1
    if ".128" in name:
        return 4
    return 2 if ".64" in name or "WIDE" in name or name.startswith(_PAIRS) else 1


def overwritten_registers(text: str) -> tuple[str, ...]:
    """Return a line for each A operand register of an HGMMA that LDSM writes on one path and another instruction writes on another path.

    The result is valid only for programs that do not themselves load an A operand before a loop and compute it in the loop.

    Args:
        text: SASS of one cubin, with any number of kernels.
    """
    return tuple(f"{kernel}: {line}" for kernel, code, labels in _kernels(text) for line in _mixed(code, labels))


def registers_intact(cubin: bytes) -> str:
    """Return a line that reports whether all HGMMAs read their own A operands, or that no tool is installed to check it.

    Raises:
        LaunchError: an HGMMA reads overwritten registers, or no tool supports this architecture.
    """
    if not disassemblers():
        return "wgmma A operands in registers: not checked, because neither nvdisasm nor cuobjdump is installed"
    errors = overwritten_registers(sass(cubin))
    if errors:
        raise LaunchError(
            "\n".join(["the compiler overwrites registers of a wgmma A operand that is still in use", *errors]),
            hint="use a newer NVRTC (13.5 is correct), or an A operand in shared memory",
        )
    return "wgmma A operands in registers: not overwritten"


def _kernels(text: str) -> Iterator[tuple[str, list[_Instruction], dict[str, int]]]:
    """Yield each kernel's name, its instructions, and the positions of its labels."""
    name = ""
    code: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            if code:
                yield name, code, labels
            name, code, labels = (match[1] or match[2]).removeprefix(".text."), [], {}
        elif match := _LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := _LINE.search(line):
            operands = tuple(part.strip() for part in match["rest"].split(",")) if match["rest"].strip() else ()
            code.append(_Instruction(int(match["address"], 16), match["name"], match["guard"] is not None, operands))
    if code:
        yield name, code, labels


def _mixed(code: Sequence[_Instruction], labels: dict[str, int]) -> Iterator[str]:
    """Yield the A operand registers with both kinds of writers, in the order of the HGMMAs."""
    wanted = {register for instruction in code for register in instruction.a_operand}
    loaded = {register for instruction in code if instruction.name.startswith("LDSM") for register in instruction.written}
    if not wanted & loaded:
        return
    for register in sorted(wanted & loaded):
        reaching = _reaching(code, labels, register)
        for position, instruction in enumerate(code):
            if register in instruction.a_operand:
                kinds = {code[writer].name.startswith("LDSM") for writer in reaching[position]}
                if len(kinds) > 1:
                    other = min(writer for writer in reaching[position] if not code[writer].name.startswith("LDSM"))
                    at = f"{instruction.name} at {instruction.address:#x}"
                    yield f"{at} reads R{register}, which LDSM loads and {code[other].name} at {code[other].address:#x} overwrites"
                    break


def _reaching(code: Sequence[_Instruction], labels: dict[str, int], register: int) -> list[frozenset[int]]:
    """Return, for each instruction, the positions of the instructions before it that may have written a register last."""
    following = [tuple(_following(code, labels, position)) for position in range(len(code))]
    writers: list[frozenset[int]] = [frozenset()] * len(code)
    waiting = [position for position, instruction in enumerate(code) if register in instruction.written]
    while waiting:
        position = waiting.pop()
        own = register in code[position].written
        after = frozenset((position,)) if own else writers[position]
        if own and code[position].guarded:
            after |= writers[position]
        for other in following[position]:
            if not after <= writers[other]:
                writers[other] |= after
                waiting.append(other)
    return writers


def _following(code: Sequence[_Instruction], labels: dict[str, int], position: int) -> Iterator[int]:
    """Yield the positions of the instructions that may run directly after the instruction at a position."""
    instruction = code[position]
    if instruction.name.split(".")[0] == "BRA" and instruction.operands:
        match = _TARGET.search(instruction.operands[-1])
        if match and match[1] in labels:
            yield labels[match[1]]
        elif match and match[1].startswith("0x"):
            yield from (number for number, other in enumerate(code) if other.address == int(match[1], 16))
    ends = (
        instruction.name.split(".")[0] in ("BRA", "EXIT", "RET")
        and not instruction.guarded
        and (instruction.name == "EXIT" or len(instruction.operands) < 2)
    )
    if not ends and position + 1 < len(code):
        yield position + 1
