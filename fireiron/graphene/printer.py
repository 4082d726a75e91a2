"""Print kernels in Graphene's notation: each spec of the decomposition tree encloses its part of the kernel IR."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from fireiron.compiler import Program
from fireiron.errors import DecompositionError, LayoutError
from fireiron.frozen import frozen
from fireiron.graphene.generic import GENERIC, GenericDefinition, generic_spec
from fireiron.graphene.literals import literal_text
from fireiron.graphene.parser import parse_kernel
from fireiron.graphene.written import Written, changes_of
from fireiron.ir import (
    Buffer,
    Comment,
    Commit,
    Exec,
    For,
    Hole,
    IfAnyLane,
    Kernel,
    Let,
    SemaphoreBarrier,
    StepMarker,
    Stmt,
    SyncPoint,
    lets,
    statements,
    unknown,
)
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.joint_tiles import Combination, JointTiles, StreamedTiles
from fireiron.ir.effects.residency import Residency
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.execution import Execution, execution_of
from fireiron.language.statement import STARTERS, written_statement
from fireiron.language.tree import Context, Draft, Executable, Named, Node, Whole
from fireiron.spec import Kind, Spec
from fireiron.specs.allocate import Allocate
from fireiron.specs.fused import FusedKind
from fireiron.values.expr import TRUE, Expr, Var, sym
from fireiron.values.machine import LEVELS, Level
from fireiron.values.machine import Block as BlockLevel
from fireiron.values.notation import expression_text, symbols_of, tensor_text, view_text
from fireiron.values.tensor import View, whole_view

INDENT = "  "


def graphene_text(program: Program) -> str:
    """Print a program in Graphene's notation, such that `parse_kernel(graphene_text(p)).cuda == p.cuda`.

    Raises: a `LayoutError` if the notation cannot express the program.
    """
    if program.preceding:
        named = ", ".join(launch.name for launch in program.launches)
        raise LayoutError(
            f"the program launches {len(program.launches)} kernels ({named}), but a text describes one kernel",
            hint="remove .repack(), or load operands that are distributed over GPUs inside the kernel",
        )
    kernel = program.walked
    text = "\n".join(_Writer(program, kernel).lines()) + "\n"
    _require_exact(text, program, kernel)
    return text


def _require_exact(text: str, program: Program, kernel: Kernel) -> None:
    """Refuse a text if the parser returns a different kernel for it."""
    again = parse_kernel(text, instructions=program.instructions).walked
    if again == kernel:
        return
    for name in fields_of(kernel):
        expected, actual = getattr(kernel, name), getattr(again, name)
        if expected != actual:
            difference = _difference(name, expected, actual)
            raise LayoutError(f"Graphene's notation cannot express this kernel: the parser would return {difference}")


def fields_of(value: Any) -> list[str]:
    """Return the names of the fields that the equality of a value compares."""
    return [field.name for field in attrs.fields(type(value)) if field.eq]


def _difference(name: str, expected: Any, actual: Any) -> str:
    while isinstance(expected, tuple) and isinstance(actual, tuple) and len(expected) == len(actual):
        position = next(index for index in range(len(expected)) if expected[index] != actual[index])
        name, expected, actual = f"{name}[{position}]", expected[position], actual[position]
        if isinstance(expected, Stmt) and type(expected) is type(actual):
            field = next(field for field in fields_of(expected) if getattr(expected, field) != getattr(actual, field))
            name, expected, actual = f"{name}.{field}", getattr(expected, field), getattr(actual, field)
    return f"{name} = {actual}, not {expected}"


@frozen
class Part:
    """Lines, and the condition under which a thread executes them.

    Lines such as a `Let` need no condition (None). The lines around them can still share one `If`.
    """

    condition: Expr | None
    lines: tuple[str, ...]


class _Writer:
    """Prints a decomposition tree in one traversal."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program, self.kernel = program, kernel
        self.whole: Whole = program.grown.whole
        self.texts = {buffer.name: tensor_text(tensor) for buffer, tensor in self._tensors()}
        self.kinds: dict[Kind, str] = {}
        self.instructions: dict[str, Executable] = {}
        self.levels: dict[Level, None] = {}
        self.context = self._context()
        self.prints_steps = any(
            isinstance(stmt, For) and (Deferred in stmt.asks or OrderedMma in stmt.asks)
            for node in program.tree.nodes()
            for stmt in statements(node.program)
        )
        self.used_names = {var.name for var in (*lets(kernel.body), *kernel.symbols)} | {starter.kind.title for starter in STARTERS}

    def _tensors(self) -> Iterator[tuple[Buffer, Any]]:
        """Yield each buffer with its tensor from the specs. Unlike the buffer's tensor, it lacks the storage that a leaf chose."""
        tensors = {view.tensor.name: view.tensor for node in self.program.tree.nodes() for view in node.spec.operands.values()}
        for buffer in self.kernel.buffers:
            yield buffer, tensors.get(buffer.name, buffer.tensor)

    def _context(self) -> Context:
        """Return the context in which the parser of this text creates the statements of atomic specs."""
        named: dict[Named, Var] = {}
        for var, value in self.whole.definitions.items():
            key = Named(value, var.high)
            named[key if key not in named else Named(value, var.high, var.name)] = var
        whole = Whole(self.whole.used_names, named, chosen_storage=self.whole.chosen_storage)
        root_context = self.program.grown.context
        return Context(
            self.kernel.architecture, self.program.instructions, root_context.block, root_context.thread, self.kernel.workers, whole=whole
        )

    # -------------------------------------------------------------------------------------- the whole kernel

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        known = frozenset(var.name for var in (*self.whole.definitions, *kernel_variables(self.kernel)))
        body = [line for part in _under_conditions(list(self._node(self.program.tree, known))) for line in part.lines]
        outer = self._statement(self.program.inner, self._execution())
        temporaries = list(self._temporaries())
        named = self._lets([*body, *temporaries])
        yield from self._headers()
        yield f"{outer} {{"
        yield from (f"{INDENT}{line}" for line in (*temporaries, *named, *body))
        yield "}"

    def _execution(self) -> Execution:
        step = self.program.tree.step
        if isinstance(step, Written) and step.outermost is not None:
            return step.outermost.execution
        return execution_of(self.program.tree, self.whole, self.kernel.workers)

    def _headers(self) -> Iterator[str]:
        kernel, execution = self.kernel, self._execution()
        yield f"Kernel {kernel.name}"
        yield f"Target {kernel.architecture}"
        for line in kernel.title:
            yield f"Title {line!r}"
        for symbol in kernel.symbols:
            yield f"Size {symbol.name}{_size_options(symbol)}"
        for kind, name in self.kinds.items():
            yield f"Kind {name} = {literal_text(kind.starter if isinstance(kind, FusedKind) else kind)}"
        for level in self.levels:
            yield f"Level {level.label} = {literal_text(level)}"
        for name, instruction in self.instructions.items():
            yield f"Instruction {name} = {literal_text(instruction)}"
        if execution.blocks is None:
            yield f"Grid {expression_text(kernel.grid)}"
        for node in self.program.tree.nodes():
            yield from (f"Fact {literal_text(fact)}" for fact in node.facts)
        yield from (f"Unchecked {reason!r}" for reason in kernel.effects[Unchecked].reasons)
        zeroed = kernel.effects[Zeroed]
        if names := [name for name in zeroed.names if not zeroed.value(name)]:
            yield f"Zeroed {', '.join(names)}"
        for name in (name for name in zeroed.names if zeroed.value(name)):
            yield f"Filled {name} = {zeroed.value(name)}"
        if kernel.effects[JointTiles].combination is not Combination.ATOMIC:
            yield f"Joint {kernel.effects[JointTiles].combination.value}"
        if kernel.effects[StreamedTiles].segment:
            yield f"Segments {' '.join(f'{name}={value}' for name, value in attrs.asdict(kernel.effects[StreamedTiles]).items())}"
        for word, value in (("Resident", kernel.effects[Residency].blocks), ("Within", kernel.effects[SharedBound].bytes)):
            if value:
                yield f"{word} {value}"
        if kernel.effects[DependentLaunch].enabled:
            yield f"Chained {', '.join(kernel.effects[DependentLaunch].no_wait)}".rstrip()
        if kernel.cluster is not None:
            ranks = zip(kernel.cluster.sizes, kernel.cluster.places, strict=True)
            yield f"Cluster {', '.join(f'{size} {rank.name}' for size, rank in ranks)}"
        for view in self.program.inner.operands.values():
            yield self.texts[view.tensor.name]

    def _temporaries(self) -> Iterator[str]:
        """Yield an `Allocate` for each buffer that is not a parameter of the kernel, in the order of the buffers."""
        given = {view.tensor.name for view in self.program.inner.operands.values()}
        for buffer, tensor in self._tensors():
            if buffer.name not in given:
                spec = Allocate.on(BlockLevel, whole_view(tensor))
                text = written_statement(spec, Execution())
                chosen_storage = self.whole.chosen_storage.get(buffer.name)
                yield text if chosen_storage is None else f"{text} as {literal_text(chosen_storage)}"

    def _lets(self, body: list[str]) -> list[str]:
        """Return a `Let` for each named value of the kernel that the text or another of these lines uses.

        A statement names some values itself, such as the lane of a shuffle. Such a value is printed only if a printed value follows it,
        because the parser names it again, after all names of the text.
        """
        used = set(re.findall(r"[A-Za-z_]\w*", "\n".join(body)))
        used |= {rank.name for rank in (self.kernel.cluster.places if self.kernel.cluster is not None else ())}
        kept = {stmt.var for stmt in self.kernel.body if isinstance(stmt, Let)}
        used_lets: list[str] = []
        for var, value in reversed(self.whole.definitions.items()):
            if var.name in used or (used_lets and var in kept):
                used_lets.append(_let(Let(var, value)))
                used |= {operand.name for operand in value.variables()}
        return used_lets[::-1]

    # -------------------------------------------------------------------------------------- programs

    def _node(self, node: Node, visible: frozenset[str]) -> Iterator[Part]:
        """Yield the body of a node, in which the names `visible` can be used."""
        yield from self._program(node.program, dict(node.children), visible)

    def _program(self, program: tuple[Stmt, ...], children: Mapping[str, Node], visible: frozenset[str]) -> Iterator[Part]:
        for statement in program:
            match statement:
                case StepMarker() if not self.prints_steps:
                    continue
                case Hole(child=name):
                    yield from self._child(children[name], visible)
                case For(var=var, body=body):
                    yield self._braces(self._for(statement), list(self._program(body, children, visible | {var.name})), {var})
                case IfAnyLane(needed=needed, body=body):
                    yield self._braces(f"Skip unless %{needed}", list(self._program(body, children, visible)), set())
                case Exec():
                    yield Part(statement.active, (self._leaf(statement),))
                case Let(var=var):
                    visible |= {var.name}
                    yield Part(None, (_let(statement),))
                case _:
                    yield Part(None, (_plain(statement),))

    def _child(self, node: Node, visible: frozenset[str]) -> Iterator[Part]:
        """Yield the lines of a child: one line if the child is a single statement of its spec, else the spec and a body in braces.

        If a view of the spec uses a name that only the decomposition defines, such as the tile of an iteration, the body is printed without
        the spec.
        """
        named = symbols_of(node.spec.views, node.spec.accumulate).values()
        if node.spec.allocates and not node.program:
            return
        if any(isinstance(one, Var) and one.name not in visible for one in named):
            yield from self._node(node, visible)
            return
        match node.program:
            case (Exec(spec=spec),) if spec == node.spec:
                yield from self._node(node, visible)
            case _:
                yield self._braces(self._statement(node.spec), list(self._node(node, visible)), set())

    def _braces(self, head: str, parts: list[Part], bound: set[Var]) -> Part:
        """Put parts into a body in braces. If all parts have the same condition, it moves outside the braces."""
        conditions = {part.condition for part in parts if part.condition is not None}
        named = {match[1] for part in parts for line in part.lines if (match := re.match(r"Let (\w+)", line))}
        shared = next(iter(conditions)) if len(conditions) == 1 else TRUE
        if shared != TRUE and ({var.name for var in shared.variables()} & (named | {var.name for var in bound}) or _has_barrier(parts)):
            shared = TRUE
        if shared != TRUE:
            parts = [attrs.evolve(part, condition=None) for part in parts]
        inner = [f"{INDENT}{line}" for part in _under_conditions(parts) for line in part.lines]
        return Part(shared, (f"{head} {{", *inner, "}"))

    def _for(self, loop: For) -> str:
        options_by_name = {"unroll": ""} if loop.unroll else {}
        options_by_name |= {"period": str(loop.period)} if loop.period else {}
        for ask in loop.asks:
            options_by_name |= ask.written(expression_text)
        options = [f"{name}={text}" if text else name for name, text in options_by_name.items()]
        options += _range_option(loop.var, Var(loop.var.name, 0, max(loop.extent.high - 1, 0)))
        name, extent = loop.var.name, expression_text(loop.extent)
        braces = f" {{{', '.join(options)}}}" if options else ""
        return f"For ({name} = {loop.first}; {name} < {extent}; {name} += {loop.step}){braces}"

    def _leaf(self, statement: Exec) -> str:
        changes = changes_of(statement, self._draft(statement))
        fields = ", ".join(name if value is True else f"{name}={literal_text(value)}" for name, value in changes)
        return f"{self._statement(statement.spec)} by {self._instruction(statement.instruction)}{f' {{{fields}}}' if fields else ''}"

    def _draft(self, statement: Exec) -> Draft:
        return attrs.evolve(self.context, active=statement.active).draft()

    def _instruction(self, instruction: Any) -> str:
        known = {known_instruction.name: known_instruction for known_instruction in reversed(self.program.instructions)}
        if known.get(instruction.name) == instruction:
            return str(instruction.name)
        name = re.sub(r"\W", "_", instruction.name) or "micro_kernel"
        while (name in known and known[name] != instruction) or self.instructions.get(name, instruction) != instruction:
            name += "_"
        self.instructions[name] = instruction
        return name

    # -------------------------------------------------------------------------------------- specs

    def _statement(self, spec: Spec, execution: Execution | None = None) -> str:
        if spec.level not in LEVELS:
            self.levels[spec.level] = None
        if isinstance(spec.kind, FusedKind) and (
            spec is not self.program.inner or isinstance(spec.kind.fused_definition, GenericDefinition)
        ):
            spec = generic_spec(
                spec.level,
                [view for name, view in spec.operands.items() if name not in spec.outputs],
                [spec.operands[name] for name in spec.outputs],
            )
            return written_statement(spec, execution or Execution(), self._view, GENERIC)
        return written_statement(spec, execution or Execution(), self._view, self._kind(spec))

    def _kind(self, spec: Spec) -> str:
        kind = spec.kind
        if any(starter.kind == kind for starter in STARTERS):
            return kind.title
        if kind not in self.kinds:
            name = kind.title
            while name in self.used_names:
                name += "_"
            self.used_names.add(name)
            self.kinds[kind] = name
        return self.kinds[kind]

    def _view(self, view: View) -> str:
        """Return the text of a view with the tensor's name instead of its shape."""
        text, tensor = view_text(view), tensor_text(view.tensor)
        name = view.tensor.name
        return f"%{name}{text.removeprefix(tensor)}" if self.texts.get(name) == tensor and text.startswith(tensor) else text


def kernel_variables(kernel: Kernel) -> tuple[Var, ...]:
    """Return the variables that an expression may use anywhere in a kernel: run-time sizes, block index and thread index."""
    return (*kernel.symbols, kernel.block, kernel.thread)


def _plain(statement: Stmt) -> str:
    match statement:
        case Comment(text=text):
            return f"// {text}" if text == text.strip() and text.isprintable() else _refuse_comment(text)
        case SyncPoint(require=require, subject=subject):
            word = {True: "", False: " no", None: " maybe"}[require]
            return f"Barrier{word}{f' {subject}' if subject else ''}"
        case StepMarker(step=step):
            return f"Step {step}"
        case Commit(mechanism=mechanism):
            return f"Commit {mechanism.name}"
        case SemaphoreBarrier():
            fields = [
                ("index", statement.index),
                ("count", statement.count),
                ("blocks", statement.blocks),
                ("position", statement.position),
            ]
            fields += [("last", statement.last)] if statement.last is not None else []
            texts = "; ".join(f"{name}={expression_text(value)}" for name, value in fields)
            return f"Semaphore {statement.action.value} {statement.group} [{texts}] {statement.reason!r}"
    raise unknown(statement, "graphene_text")


def _refuse_comment(text: str) -> str:
    raise LayoutError("Graphene's notation cannot express this comment", got=text, legal="one line of printable characters")


def _let(let: Let) -> str:
    options = _range_option(let.var, Var(let.var.name, max(let.value.low, 0), let.value.high))
    return f"Let {let.var.name} = {expression_text(let.value)}{f' {{{options[0]}}}' if options else ''}"


def _range_option(var: Var, inferred: Var) -> list[str]:
    """Return the option `range` of a variable if its range differs from the inferred one."""
    if var == inferred:
        return []
    if var.parameter:
        raise DecompositionError(f"a loop or Let cannot define {var.name}: it is a parameter of the kernel")
    return [f"range={var.low}..{var.high}{f'/{var.multiple_of}' if var.multiple_of != 1 else ''}"]


def _size_options(symbol: Var) -> str:
    options = [] if symbol.multiple_of == 1 else [f"multiple_of={symbol.multiple_of}"]
    plain = sym(symbol.name, symbol.multiple_of)
    options += [f"{name}={getattr(symbol, name)}" for name in ("low", "high") if getattr(symbol, name) != getattr(plain, name)]
    return f" {{{', '.join(options)}}}" if options else ""


def _has_barrier(parts: list[Part]) -> bool:
    """Whether a part contains a barrier or commit, which all threads must reach."""
    return any(re.match(r"\s*(Barrier|Commit)\b", line) for part in parts for line in part.lines)


def _under_conditions(parts: list[Part]) -> Iterator[Part]:
    """Print the condition of each part as an `If`."""
    for part in parts:
        if part.condition in (None, TRUE):
            yield attrs.evolve(part, condition=None)
        else:
            assert part.condition is not None
            yield Part(None, (f"If ({expression_text(part.condition)}) {{", *(f"{INDENT}{line}" for line in part.lines), "}"))
