"""Products whose factors in registers are overwritten: a fault of some compilers, read off the machine code.

A warpgroup's product (HGMMA) may read its first factor from registers that LDSM loads once, in front of a loop. ptxas of CUDA 13.0 and
before gives some of these to another product's factor as well, so that from the second iteration on the first product reads what was
computed for the second; it says nothing. Here each HGMMA's factor is followed back to all instructions that may have written it last: a
register that LDSM loads on one way and something else writes on another is an error. SASS is text of nvdisasm or cuobjdump.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from fireiron.errors import LaunchError
from fireiron.gpu.disassembly import disassemblers, sass

_LINE = re.compile(r"/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\d|!?U?PT)\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<rest>[^;]*);")
_LABEL = re.compile(r"^\s*(\.L\w+):")
_FUNCTION = re.compile(r"^\s*(?:\.section\s+(\.text\.\S+?),|Function : (\S+))")
_TARGET = re.compile(r"`?\(?(\.L\w+|0x[0-9a-f]+)\)?\s*$")
_REGISTER = re.compile(r"R(\d+)(?:\.\w+)*$")
_FACTORS = 4
"""Registers of a 64x16 factor of 16-bit elements, or a 64x8 one of 32-bit elements, that a thread holds."""

_NOTHING_WRITTEN = (
    "ST", "RED", "BAR", "BRA", "BRX", "EXIT", "HGMMA", "SYNCS", "UTMA", "UBLK", "DEPBAR", "WARPGROUP", "ISETP", "FSETP", "DSETP", "HSETP",
    "PLOP3", "R2P", "R2UR",
)  # fmt: skip
"""Instructions, by how they begin, whose first operand is no register that they write, or that writes accumulators alone."""

_PAIRS = ("DADD", "DMUL", "DFMA", "F2F.F64", "I2F.F64", "CS2R")
"""Those that write two registers and do not say so."""


@attrs.frozen
class _Instruction:
    """A line of SASS; `guarded`: a predicate decides whether it runs."""

    address: int
    name: str
    guarded: bool
    operands: tuple[str, ...]

    @property
    def written(self) -> range:
        """The registers that it writes: one, or a run of them by its width."""
        if not self.operands or self.name.startswith(_NOTHING_WRITTEN):
            return range(0)
        first = next((one for one in self.operands if not re.match(r"!?U?P\w$", one)), "")
        match = _REGISTER.match(first)
        return range(int(match[1]), int(match[1]) + _width(self.name)) if match else range(0)

    @property
    def factor(self) -> range:
        """The registers that a product reads its first factor from; none where it lies in shared memory."""
        match = _REGISTER.match(self.operands[1]) if self.name.startswith("HGMMA") and len(self.operands) > 1 else None
        return range(int(match[1]), int(match[1]) + _FACTORS) if match else range(0)


def _width(name: str) -> int:
    """The registers that an instruction writes; never fewer than it does."""
    if name.startswith("LDSM"):
        return int(name[-1]) if name[-1] in "24" else 1
    if ".128" in name:
        return 4
    return 2 if ".64" in name or "WIDE" in name or name.startswith(_PAIRS) else 1


def overwritten_registers(text: str) -> tuple[str, ...]:
    """A line for each register of a product's factor that LDSM loads on one way to the product, and something else writes on another.

    Legal for kernels whose program does not do so itself, with a factor that is loaded in front of a loop and computed in it.

    Args:
        text: SASS of one cubin, with any number of kernels.
    """
    return tuple(f"{kernel}: {line}" for kernel, code, labels in _kernels(text) for line in _mixed(code, labels))


def registers_intact(cubin: bytes) -> str:
    """A line that says whether all products read the factors that they were given; that it is not known where no tool is installed.

    Raises:
        LaunchError: some product reads what was overwritten, or no tool knows this architecture.
    """
    if not disassemblers():
        return "factors of products in registers: not checked, for want of nvdisasm or cuobjdump"
    found = overwritten_registers(sass(cubin))
    if found:
        raise LaunchError(
            "\n".join(["the compiler gave registers of a product's factor away while they are in use", *found]),
            hint="a newer NVRTC (13.5 is right), or a factor in shared memory",
        )
    return "factors of products in registers: each is read as it was written"


def _kernels(text: str) -> Iterator[tuple[str, list[_Instruction], dict[str, int]]]:
    """Each kernel's name, its instructions, and the positions of its labels."""
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
    """The registers of factors with writers of both kinds, in order of the products."""
    wanted = {register for one in code for register in one.factor}
    loaded = {register for one in code if one.name.startswith("LDSM") for register in one.written}
    if not wanted & loaded:
        return
    for register in sorted(wanted & loaded):
        reaching = _reaching(code, labels, register)
        for position, one in enumerate(code):
            if register in one.factor:
                kinds = {code[writer].name.startswith("LDSM") for writer in reaching[position]}
                if len(kinds) > 1:
                    other = min(writer for writer in reaching[position] if not code[writer].name.startswith("LDSM"))
                    at = f"{one.name} at {one.address:#x}"
                    yield f"{at} reads R{register}, which LDSM loads and {code[other].name} at {code[other].address:#x} overwrites"
                    break


def _reaching(code: Sequence[_Instruction], labels: dict[str, int], register: int) -> list[frozenset[int]]:
    """In front of each instruction, the positions of those that may have written a register last."""
    following = [tuple(_following(code, labels, position)) for position in range(len(code))]
    found: list[frozenset[int]] = [frozenset()] * len(code)
    waiting = [position for position, one in enumerate(code) if register in one.written]
    while waiting:
        position = waiting.pop()
        own = register in code[position].written
        behind = frozenset((position,)) if own else found[position]
        if own and code[position].guarded:
            behind |= found[position]
        for other in following[position]:
            if not behind <= found[other]:
                found[other] |= behind
                waiting.append(other)
    return found


def _following(code: Sequence[_Instruction], labels: dict[str, int], position: int) -> Iterator[int]:
    """The positions of the instructions that may run behind one."""
    one = code[position]
    if one.name.split(".")[0] == "BRA" and one.operands:
        match = _TARGET.search(one.operands[-1])
        if match and match[1] in labels:
            yield labels[match[1]]
        elif match and match[1].startswith("0x"):
            yield from (number for number, other in enumerate(code) if other.address == int(match[1], 16))
    ends = one.name.split(".")[0] in ("BRA", "EXIT", "RET") and not one.guarded and (one.name == "EXIT" or len(one.operands) < 2)
    if not ends and position + 1 < len(code):
        yield position + 1
