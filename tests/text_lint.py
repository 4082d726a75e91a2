"""Lint printed kernels: rules whose violation shows only on a GPU, taken from the manuals and checked on the text alone.

`findings(text)` lists the violations of a text, each with the rule's source. The text is parsed here: functions, inline assembly, nested
blocks. No part of the printer is imported. Calls of the text's own functions count as the instructions in their assembly, so function names
do not matter.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

import attrs

MOST_REGISTERS = 65_536
"""Registers of an SM (CUDA C++ Programming Guide, "Compute Capabilities")."""

PURE = (
    "cvt max min ex2 lg2 tanh rcp rsqrt sqrt setp selp mov add sub mul fma mad neg abs and or xor lop3 prmt shl shr mapa mma mul24 bra not"
)
"""Instructions that only compute: they may be moved or removed."""

CONVERGENT = "wgmma.mma_async setmaxnreg movmatrix shfl"
"""Instructions with effects besides their results, or that lanes perform together."""

MEMORY = (
    "ld st atom red ldmatrix stmatrix cp.async cp.reduce mbarrier fence membar bar barrier griddepcontrol prefetch "
    "wgmma.fence wgmma.commit_group wgmma.wait_group"
)
"""Instructions that access memory, or order accesses."""


@attrs.frozen
class Rule:
    """A rule and its source."""

    name: str
    source: str


RULES = {
    rule.name: rule
    for rule in (
        Rule("volatile", "GCC, Extended Asm, Volatile; CUDA, Inline PTX Assembly, 1.2"),
        Rule("memory", "GCC, Extended Asm, Clobbers; CUDA, Inline PTX Assembly, 1.2"),
        Rule("unknown", "an instruction of which these rules do not know what it touches"),
        Rule("setmaxnreg value", "PTX ISA, setmaxnreg: 24 to 256, a multiple of 8; dec to at most, inc to at least what a thread has"),
        Rule("setmaxnreg place", "PTX ISA, setmaxnreg: by all warps of a warpgroup, once, before another one a barrier"),
        Rule("setmaxnreg sum", "PTX ISA, setmaxnreg: inc waits until the registers are there; CUDA, Compute Capabilities: 64 K of them"),
        Rule("launch bounds", "CUDA C++ Programming Guide, Launch Bounds: a launch with more threads fails"),
        Rule("shared size", "CUDA C++ Programming Guide, __shared__; Compute Capabilities: static arrays are of 48 KB at most"),
        Rule("shared alignment", "PTX ISA, cp.async.bulk.tensor: shared addresses are multiples of 128 bytes"),
        Rule("cluster", "CUDA C++ Programming Guide, Thread Block Clusters; PTX ISA, barrier.cluster"),
        Rule("mbarrier", "PTX ISA, mbarrier.init, fence.mbarrier_init, Memory Consistency Model, Async proxy"),
        Rule("wgmma", "PTX ISA, wgmma.fence, wgmma.commit_group, wgmma.wait_group"),
        Rule("griddepcontrol", "PTX ISA, griddepcontrol; CUDA C++ Programming Guide, Programmatic Dependent Launch"),
        Rule("unused", "NVRTC, warning 177: a variable was declared but never referenced"),
    )
}


@attrs.frozen
class Finding:
    """A violation of a rule."""

    rule: Rule
    what: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.what} ({self.rule.source})"


# ---------------------------------------------------------------------------------------------- parsing


@attrs.frozen
class Assembly:
    """Inline assembly: its text, and whether it is volatile and clobbers memory."""

    text: str
    volatile: bool
    memory: bool

    @functools.cached_property
    def instructions(self) -> tuple[str, ...]:
        """The opcodes, with all their suffixes."""
        parts = re.split(r"[;{}\n]|\\n", self.text)
        words = (re.sub(r"^\s*(@!?\w+\s+)?", "", part).strip() for part in parts)
        return tuple(word.split()[0] for word in words if re.match(r"[a-z][\w.:]*(\s|$)", word) and not word.endswith(":"))


@attrs.frozen
class Block:
    """Statements in braces after a header: the condition of an `if`, a loop, `else`, or nothing."""

    header: str
    items: tuple[Block | str, ...]


@attrs.frozen
class Function:
    """A function of the text."""

    name: str
    head: str
    body: str

    @functools.cached_property
    def assembly(self) -> tuple[Assembly, ...]:
        """Its inline assembly, in order."""
        return tuple(_assemblies(self.body))

    @functools.cached_property
    def instructions(self) -> tuple[str, ...]:
        """The opcodes of its assembly."""
        return tuple(one for part in self.assembly for one in part.instructions)


_FUNCTION = re.compile(
    r"^(?P<head>(?![/#}\s])[^\n;{}]*(?:\n(?!\{)[^\n;{}]*){0,60}?\)[ ]*)\n\{\n(?P<body>.*?)\n\}$", re.MULTILINE | re.DOTALL
)


def _code(text: str) -> str:
    """A text without comments and directives."""
    return re.sub(r"//[^\n]*|^\s*#[^\n]*", "", text, flags=re.MULTILINE)


@attrs.frozen
class Text:
    """A printed kernel: the comments before it, its functions, and the kernel itself."""

    header: str
    functions: dict[str, Function]
    kernel: Function

    @staticmethod
    def of(text: str) -> list[Text]:
        """The kernels of a text, parsed, each with the comments between it and the preceding kernel."""
        functions, kernels, start = {}, [], 0
        for match in _FUNCTION.finditer(text):
            head = _code(match["head"]).strip()
            name = re.search(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)$", head)
            assert name is not None, head
            functions[name[1]] = function = Function(name[1], head, _code(match["body"]))
            if "__global__" in head:
                comments = (line for line in text[start : match.start()].splitlines() if line.startswith("//"))
                kernels.append(("\n".join(comments), function))
                start = match.end()
        return [Text(header, functions, function) for header, function in kernels]

    @functools.cached_property
    def program(self) -> Block:
        """The kernel's statements."""
        return Block("", _blocks(self.kernel.body))

    def called(self, statement: str) -> Iterator[str]:
        """The opcodes that a statement executes: those in its assembly, or in functions of the text that it calls, in order."""
        for part in _assemblies(statement):
            yield from part.instructions
        for name in re.findall(r"\b(\w+)(?:<[^<>()]*>)?\(", statement):
            if name in self.functions:
                yield from (f"{one}" for one in self.functions[name].instructions)
                for inner in re.findall(r"\b(\w+)(?:<[^<>()]*>)?\(", self.functions[name].body):
                    if inner in self.functions and inner != name:
                        yield from self.functions[inner].instructions


def _assemblies(code: str) -> Iterator[Assembly]:
    for match in re.finditer(r"\basm\s*(volatile)?\s*\(", code):
        end, depth, quoted = match.end(), 1, False
        while depth:
            char = code[end]
            quoted ^= char == '"' and code[end - 1] != "\\"
            depth += 0 if quoted else (char == "(") - (char == ")")
            end += 1
        inside = code[match.end() : end - 1]
        template = re.match(r'(\s*"(?:[^"\\]|\\.)*")+', inside)
        assert template is not None, inside
        text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template[0]))
        # Operands are expressions in parentheses, in which a colon is not a separator.
        clobbers = re.sub(r"\([^()]*(?:\([^()]*\)[^()]*)*\)", "()", inside[template.end() :]).split(":")
        yield Assembly(text, match[1] is not None, len(clobbers) > 3 and '"memory"' in clobbers[3])


def _blocks(code: str) -> tuple[Block | str, ...]:
    """Statements and blocks of a list of statements."""
    stack: list[list[Block | str]] = [[]]
    headers: list[str] = []
    start, depth, quoted, number = 0, 0, False, 0
    while number < len(code):
        char = code[number]
        if quoted or char == '"':
            quoted = not quoted if char == '"' and code[number - 1] != "\\" else quoted
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "{" and not depth and not code[start:number].rstrip().endswith(("=", ",", "return")):
            headers.append(" ".join(code[start:number].split()))
            stack.append([])
            start = number + 1
        elif char == "{":
            depth += 1
        elif char == "}" and depth:
            depth -= 1
        elif char == "}":
            items = stack.pop()
            stack[-1].append(Block(headers.pop(), tuple(items)))
            start = number + 1
        elif char == ";" and not depth:
            stack[-1].append(" ".join(code[start:number].split()))
            start = number + 1
        number += 1
    (items,) = stack
    return tuple(items)


def statements(block: Block) -> Iterator[str]:
    """All statements inside, in order."""
    for item in block.items:
        if isinstance(item, str):
            yield item
        else:
            yield item.header
            yield from statements(item)


def paths(items: Sequence[Block | str]) -> Iterator[tuple[Block | str, ...]]:
    """The paths through a list of statements: `if` and `else` separately if either contains a role's program."""
    for number, item in enumerate(items):
        if isinstance(item, Block) and item.header.startswith("if") and _is_role(items, number):
            last = number
            while last + 1 < len(items) and isinstance(items[last + 1], Block) and items[last + 1].header.startswith("else"):
                last += 1
            for branch in items[number : last + 1]:
                for rest in paths(items[last + 1 :]):
                    yield (*items[:number], *branch.items, *rest)
            return
    yield tuple(items)


def _is_role(items: Sequence[Block | str], number: int) -> bool:
    return number + 1 < len(items) and isinstance(items[number + 1], Block) and items[number + 1].header.startswith("else")


# ---------------------------------------------------------------------------------------------- rules


def findings(text: str) -> list[Finding]:
    """The violations in a printed kernel."""
    checks = (_assembly, _registers, _bounds, _shared, _cluster, _barriers, _products, _chain, _unused)
    kernels = Text.of(text)
    assert kernels, "no kernel in the text"
    return [Finding(RULES[name], what) for kernel in kernels for check in checks for name, what in check(kernel)]


def _is(instruction: str, kinds: str) -> bool:
    return any(instruction == kind or instruction.startswith((f"{kind}.", f"{kind}:")) for kind in kinds.split())


def _assembly(text: Text) -> Iterator[tuple[str, str]]:
    for function in text.functions.values():
        for part in function.assembly:
            label = f"{function.name}: {' '.join(part.instructions)}"
            memory = any(_is(one, MEMORY) for one in part.instructions)
            if any(not _is(one, f"{PURE} {CONVERGENT} {MEMORY}") for one in part.instructions):
                yield "unknown", label
            if (memory or any(_is(one, CONVERGENT) for one in part.instructions)) and not part.volatile:
                yield "volatile", f"{label} may be moved or left out: it is not volatile"
            if memory and not part.memory:
                yield "memory", f"{label} touches or orders memory, and does not clobber it"


def _launched(text: Text) -> tuple[int, int]:
    """Threads and least blocks of the bounds."""
    match = re.search(r"__launch_bounds__\((\d+)(?:, (\d+))?\)", text.kernel.head)
    return (0, 0) if match is None else (int(match[1]), int(match[2] or 0))


def _registers(text: Text) -> Iterator[tuple[str, str]]:
    changes = []  # (first warp, warps, way, registers, opcodes of the role)
    threads, blocks = _launched(text)
    known = [one for one in statements(text.program) if any(_is(op, "setmaxnreg") for op in text.called(one))]
    if not known:
        return
    first = 0
    for block in text.program.items:
        if not isinstance(block, Block) or not block.header.startswith(("if", "else")):
            continue
        below = re.search(r"warp_index < (\d+)", block.header)
        last = int(below[1]) if below else threads // 32
        own = [one for one in block.items if isinstance(one, str) and any(_is(op, "setmaxnreg") for op in text.called(one))]
        everything = [op for one in statements(block) for op in text.called(one)]
        inside = sum(_is(op, "setmaxnreg") for op in everything)
        if not any(_is(op, "wgmma cp.async.bulk.tensor setmaxnreg") for op in everything):
            continue
        if len(own) != 1 or inside != 1:
            yield (
                "setmaxnreg place",
                f"warps {first} to {last - 1} change their registers {len(own)} times, {inside} times under conditions too",
            )
        if first % 4 or last % 4:
            yield "setmaxnreg place", f"warps {first} to {last - 1} are not a multiple of a warpgroup"
        for stmt in own[:1]:
            index = block.items.index(stmt)
            if any(isinstance(other, Block) or "wgmma" in other for other in block.items[:index]):
                yield "setmaxnreg place", f"warps {first} to {last - 1} change their registers behind other work"
            ((function, body),) = [(name, text.functions[name]) for name in re.findall(r"\b(\w+)\(", stmt) if name in text.functions]
            match = re.search(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+)", body.assembly[0].text)
            if match is None:
                yield "setmaxnreg value", f"{function}: no such instruction as {body.assembly[0].text}"
                continue
            changes.append((first, last - first, match[1], int(match[2]), everything))
        first = last
    had = min(MOST_REGISTERS // max(threads * max(blocks, 1), 1) // 8 * 8, 256)
    if not blocks:
        yield "setmaxnreg value", "no least number of blocks says how many registers a thread begins with"
    for first, warps, way, registers, ops in changes:
        name = f"warps {first} to {first + warps - 1}"
        if registers % 8 or not 24 <= registers <= 256:
            yield "setmaxnreg value", f"{name}: {registers} registers"
        if (way == "dec" and registers > had) or (way == "inc" and registers < had):
            yield "setmaxnreg value", f"{name}: {way} to {registers}, and a thread begins with {had}"
        if way == "inc" and any(_is(op, "cp.async.bulk.tensor") and ".mbarrier" in op for op in ops):
            yield "setmaxnreg value", f"{name} load by TMA, and take registers"
        if way == "dec" and any(_is(op, "wgmma") for op in ops):
            yield "setmaxnreg value", f"{name} multiply, and give registers away"
    total = sum(warps * 32 * registers for _, warps, _, registers, _ in changes) * max(blocks, 1)
    if total > MOST_REGISTERS:
        yield "setmaxnreg sum", f"{total} registers in all, of {MOST_REGISTERS}"


def _bounds(text: Text) -> Iterator[tuple[str, str]]:
    match = re.search(r"launch <<<.*?, (\d+)>>>", text.header.replace("\n//", ""))
    threads, blocks = _launched(text)
    if match is None or not threads:
        yield "launch bounds", "the text does not say how many threads it is launched with"
    elif int(match[1]) != threads:
        yield "launch bounds", f"{threads} threads, and it is launched with {match[1]}"
    if threads > 1024 or blocks * threads > 2048:
        yield "launch bounds", f"{threads} threads in {blocks or 1} blocks of a multiprocessor"


def _shared(text: Text) -> Iterator[tuple[str, str]]:
    match = re.search(r"(?:(\d+) bytes of (dynamic|static)|no) shared\s+(?:// +)?memory", re.sub(r"\n//\s*", " ", text.header))
    body = text.kernel.body
    dynamic = re.search(r"extern __shared__ __align__\((\d+)\) unsigned char smem\[\]", body)
    if match is None or bool(dynamic) != (match[2] == "dynamic"):
        yield (
            "shared size",
            f"the launch asks for {match[0] if match else 'nothing known'}, and the array is {'dynamic' if dynamic else 'static'}",
        )
        return
    size = int(match[1] or 0)
    offsets = _offsets(body)
    if dynamic and max([0, *offsets]) >= size:
        yield "shared size", f"something begins at byte {max(offsets)} of {size}"
    if not dynamic and size > 49_152:
        yield "shared size", f"{size} bytes of static shared memory"
    everything = [op for one in statements(text.program) for op in text.called(one)]
    if any(_is(op, "cp.async.bulk.tensor") for op in everything):
        aligned = [int(one) for one in re.findall(r"__shared__ __align__\((\d+)\)", body)]
        if not aligned or (min if dynamic else max)(aligned) < 128:
            yield "shared alignment", f"shared memory begins at multiples of {min(aligned, default=1)} bytes, and TMA copies boxes there"


def _offsets(body: str) -> list[int]:
    """The bytes at which arrays begin in dynamic shared memory; some are constants with names."""
    constants: dict[str, int] = {}
    valued = lambda term: re.sub(r"[A-Za-z_]\w*", lambda name: str(constants.get(name[0], name[0])), term)
    for name, term in re.findall(r"constexpr \w+ (\w+) = ([^;]+);", body):
        if re.fullmatch(r"[\d\s+*()-]+", valued(term)):
            constants[name] = eval(valued(term))  # sums and products of numbers
    return [int(place) for one in re.findall(r"\bsmem \+ (\w+)\)", body) if (place := valued(one)).isdigit()]


def _cluster(text: Text) -> Iterator[tuple[str, str]]:
    dims = re.search(r"__cluster_dims__\((\d+), (\d+), (\d+)\)", text.kernel.head)
    match = re.search(r"clusters of (\d+) blocks", text.header)
    blocks = 1 if dims is None else int(dims[1]) * int(dims[2]) * int(dims[3])
    if blocks != (1 if match is None else int(match[1])) or (dims is None) != (match is None):
        yield "cluster", f"clusters of {blocks} blocks, and {match[1] if match else 'none'} are stated"
    if blocks > 16:
        yield "cluster", f"clusters of {blocks} blocks"
    everything = [op for one in statements(text.program) for op in text.called(one)]
    across = any("multicast::cluster" in op or _is(op, "mapa") for op in everything)
    meets = [number for number, op in enumerate(everything) if _is(op, "barrier.cluster.wait")]
    if across and dims is None:
        yield "cluster", "it reaches into other blocks, and is launched without clusters"
    if bool(meets) != (dims is not None):
        yield "cluster", f"{len(meets)} barriers of the cluster, in clusters of {blocks}"
    if across and len(meets) < 2:
        yield "cluster", "blocks that reach into each other meet before and after"
    arrivals = sum(_is(op, "barrier.cluster.arrive") for op in everything)
    if arrivals != len(meets):
        yield "cluster", f"{arrivals} arrivals at the cluster's barrier, and {len(meets)} waits"


def _barriers(text: Text) -> Iterator[tuple[str, str]]:
    """Mbarriers are initialized by one thread, fenced for the asynchronous proxy and the cluster, published to the block, and then used."""
    state, initialized = "none", 0
    for stmt in statements(text.program):
        for op in text.called(stmt):
            if _is(op, "mbarrier.init"):
                if state not in ("none", "made"):
                    yield "mbarrier", "a barrier is made behind others that are in use"
                state, initialized = "made", initialized + 1
            elif _is(op, "fence.mbarrier_init") and state == "made":
                state = "fenced"
            elif _is(op, "barrier.cluster.wait") and state == "fenced":
                state = "met"
            elif (_is(op, "mbarrier") or (_is(op, "cp.async.bulk.tensor") and ".mbarrier" in op)) and state != "met":
                yield "mbarrier", f"{op} when barriers are {state}: made, fenced, then met by all threads"
                return
        if re.search(r"\b__syncthreads\(\)", stmt) and state == "fenced":
            state = "met"
    alone = [
        block
        for block in _inside(text.program)
        if any("mbarrier.init" in op for one in block.items if isinstance(one, str) for op in text.called(one))
    ]
    headers = list(_headers(text.program, alone))
    if initialized and not any(re.fullmatch(r"if \(threadIdx\.x == 0\)", header) for header in headers):
        yield "mbarrier", "barriers are made by more threads than one"


def _inside(block: Block) -> Iterator[Block]:
    for item in block.items:
        if isinstance(item, Block):
            yield item
            yield from _inside(item)


def _headers(block: Block, wanted: Sequence[Block]) -> Iterator[str]:
    """The headers of blocks that contain some others, and theirs."""
    for item in block.items:
        if isinstance(item, Block) and (any(item is other for other in wanted) or any(True for _ in _headers(item, wanted))):
            yield item.header
            yield from _headers(item, wanted)


@attrs.define
class _Products:
    """The state of a warpgroup's MMAs along a path through the text."""

    fenced: bool = False
    open: bool = False
    groups: int = 0
    messages: dict[str, None] = attrs.field(factory=dict)

    def walk(self, text: Text, items: Sequence[Block | str]) -> None:
        """Through a list of statements, loops twice."""
        for item in items:
            if isinstance(item, str):
                for op in text.called(item):
                    self.step(op, item, text)
            else:
                for _ in range(2 if item.header.startswith(("for", "while")) else 1):
                    self.walk(text, item.items)

    def step(self, op: str, statement: str, text: Text) -> None:
        """One instruction."""
        if _is(op, "wgmma.fence"):
            self.fenced = True
        elif _is(op, "wgmma.mma_async"):
            if not self.fenced:
                self.messages["an MMA without a preceding fence of its registers"] = None
            self.open = True
        elif _is(op, "wgmma.commit_group"):
            if not self.open:
                self.messages["a commit without MMAs"] = None
            self.open, self.fenced, self.groups = False, False, self.groups + 1
        elif _is(op, "wgmma.wait_group"):
            if self.open:
                self.messages["a wait for MMAs that are not in a group yet"] = None
            pending = re.search(r"<(\d+)>\(\)", statement)
            self.groups = min(self.groups, int(pending[1]) if pending else 0)


def _products(text: Text) -> Iterator[tuple[str, str]]:
    for path in paths(text.program.items):
        state = _Products()
        state.walk(text, path)
        yield from (("wgmma", what) for what in state.messages)
        if state.open:
            yield "wgmma", "products at the end that are in no group"
        if state.groups:
            yield "wgmma", "products at the end that nobody has waited for"


def _chain(text: Text) -> Iterator[tuple[str, str]]:
    is_programmatic = "shared memory, programmatic dependent launch" in re.sub(r"\n//\s*", " ", text.header)
    everything = [op for one in statements(text.program) for op in text.called(one)]
    links = [op for op in everything if _is(op, "griddepcontrol")]
    if not is_programmatic:
        if links:
            yield "griddepcontrol", f"{links[0]} in a kernel that is launched as any other"
        return
    ready = set(re.findall(r"no kernel that may still run writes (\w+)", text.header))
    names = _arrays(text)
    if "__restrict__" in text.kernel.head:
        yield "griddepcontrol", "a pointer is restricted, and the kernel before still writes to what it points to"
    top = [op for one in text.program.items if isinstance(one, str) for op in text.called(one)]
    if sum(_is(op, "griddepcontrol.launch_dependents") for op in top) != 1 or sum("launch_dependents" in op for op in links) != 1:
        yield "griddepcontrol", "launch_dependents stands not once, for all threads"
    for path in paths(text.program.items):
        waited = False
        for stmt in statements(Block("", path)):
            if any(_is(op, "griddepcontrol.wait") for op in text.called(stmt)):
                waited = True
                continue
            if any(_is(op, "prefetch.tensormap") for op in text.called(stmt)):
                continue
            for name in names:
                written = re.search(rf"&{name}_map, ", stmt) and any("global.shared" in op for op in text.called(stmt))
                if not waited and re.search(rf"\b{name}(_map)?\b", stmt) and (name not in ready or written):
                    yield "griddepcontrol", f"{name} before the wait for the kernel before: {stmt}"
        if not waited:
            yield "griddepcontrol", "threads that end without a wait for the kernel before"


def _arrays(text: Text) -> list[str]:
    """The array parameters of a kernel: pointers and tensor maps."""
    parameters = text.kernel.head[text.kernel.head.index(f"{text.kernel.name}(") :]
    pointers = re.findall(r"\*(?: __restrict__)? (\w+)", parameters)
    return list(dict.fromkeys([*pointers, *(one.removesuffix("_map") for one in re.findall(r"TensorMap (\w+)", parameters))]))


_DECLARATION = re.compile(
    r"(?:(?:const|constexpr|unsigned|long|signed) )*[A-Za-z_]\w*(?:<[^;=]*?>)?(?: const)?[*&]*(?: const)? (\w+)(?:\[[^]]*\])*(?: =.*)?"
)


def _unused(text: Text) -> Iterator[tuple[str, str]]:
    """Variables that no later statement of their block refers to."""
    for function in text.functions.values():
        yield from (("unused", f"{name} in {function.name}") for name in _unread(Block("", _blocks(function.body)))[1])


def _unread(block: Block) -> tuple[set[str], list[str]]:
    """The words of a block, and its variables that no later statement of the block has."""
    later, unread = set[str](), list[str]()
    for item in reversed(block.items):
        if isinstance(item, Block):
            words, inner = _unread(item)
            unread += inner
            later |= words
            continue
        declared = _DECLARATION.fullmatch(item)
        if declared is not None and not item.startswith(("return", "goto")) and declared[1] not in later:
            unread.append(declared[1])
        later |= {*re.findall(r"\w+", item)}
    return later | {*re.findall(r"\w+", block.header)}, unread
