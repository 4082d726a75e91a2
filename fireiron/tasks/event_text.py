"""The event IR as text, in the notation of the paper, and a parser (Cypress, Figures 7 and 8).

    task clear_thread(C: write)
    C = argument([64, 64], float32, GLOBAL)
    Cp = partition_by_blocks(C, (16, 64))
    e1: [(4, WARP)] = pfor i in [0, 4), {} do
      CW = tensor([16, 64], float32, REGISTER)
      e2: () = call(clear_thread, CW), {}
      e3: () = copy(CW, Cp[i]), {e2}
      yield e3
    e4: () = for k in [0, 8), {e5: () = e1[:]} do
      ...
      yield e6
    yield e4

The source of a copy comes first. Partitions have names in the text only. Each event that a loop waits for has a name inside the loop; from
the second iteration on, this event also includes the yields of previous iterations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, FireironError
from fireiron.frozen import frozen
from fireiron.tasks.events import (
    EVERY,
    Alloc,
    Block,
    Branch,
    Call,
    Carry,
    Copy,
    Dim,
    Event,
    EventProgram,
    Events,
    For,
    Index,
    LeafTask,
    Pfor,
    Ref,
    Result,
    Scope,
    Statement,
    Type,
    blocks_of,
    defined,
    processor_variables,
    type_text,
    walk,
)
from fireiron.tasks.mapping import HOPPER, NONE, Machine, Processor
from fireiron.tasks.partition import Blocks, MmaPieces, Partition, mma_pieces
from fireiron.values.expr import Expr, Var, as_expr, equal, less, minimum, sym
from fireiron.values.machine import as_dtype
from fireiron.values.trees import expression_tree

# ---------------------------------------------------------------------------------------------- printing


def text(program: EventProgram) -> str:
    """The program as text, which `parse` reads."""
    return "\n".join(_Printer(program).lines()) + "\n"


@attrs.define
class _Printer:
    """Prints a program. Partitions of tensors follow the allocation; partitions of pieces precede their first use."""

    program: EventProgram
    names: dict[tuple[Ref, Partition], str] = attrs.field(factory=dict)
    used_names: set[str] = attrs.field(factory=set)
    wanted: dict[str, list[Partition]] = attrs.field(factory=dict)

    def lines(self) -> Iterator[str]:
        program = self.program
        self._collect_names()
        for size in program.symbols:
            yield f"{size.name} = sym(multiple_of={size.multiple_of}, low={size.low}, high={size.high})"
        for task in program.tasks:
            yield f"task {task.name}({', '.join(f'{name}: {_privileges(reads, writes)}' for name, reads, writes in task.tensors)})"
        for argument in program.arguments:
            yield f"{argument.name} = argument([{_listed(argument.shape)}], {argument.dtype}, {argument.place})"
            yield from self._partitions(Ref(argument.name))
        yield from self._block(program.body, "")

    def _collect_names(self) -> None:
        """Collect all names, and the partitions of each tensor."""
        for stmt in (*self.program.arguments, *walk(self.program.body)):
            self.used_names |= {stmt.name} if isinstance(stmt, Alloc) else set(defined(stmt))
            for ref in _refs(stmt):
                if ref.path:
                    partitions = self.wanted.setdefault(ref.tensor, [])
                    partitions += [ref.path[0][0]] if ref.path[0][0] not in partitions else []

    def _partitions(self, of: Ref) -> Iterator[str]:
        for by in self.wanted.get(of.tensor, ()):
            yield self._named(of, by, of.tensor)

    def _named(self, of: Ref, by: Partition, stem: str) -> str:
        numbers = (f"{stem}p{number or ''}" for number in (0, *range(2, 1000)))
        name = next(candidate for candidate in numbers if candidate not in self.used_names)
        self.used_names.add(name)
        self.names[of, by] = name
        return f"{name} = {_partition(by, self._ref(of))}"

    def _ref(self, ref: Ref) -> str:
        if not ref.path:
            return ref.tensor
        (by, place) = ref.path[-1]
        return f"{self.names[attrs.evolve(ref, path=ref.path[:-1]), by]}[{_listed(place)}]"

    def _inner(self, ref: Ref) -> Iterator[str]:
        """Define the partitions of pieces that a reference needs and that have no name yet."""
        for length in range(1, len(ref.path)):
            of, by = attrs.evolve(ref, path=ref.path[:length]), ref.path[length][0]
            if (of, by) not in self.names:
                yield self._named(of, by, self.names[attrs.evolve(of, path=of.path[:-1]), of.path[-1][0]])

    def _block(self, block: Block, indent: str) -> Iterator[str]:
        outer = dict(self.names)
        for stmt in block.statements:
            for ref in _refs(stmt):
                yield from (indent + line for line in self._inner(ref))
            yield from self._statement(stmt, indent)
        if block.yields:
            yield f"{indent}yield {', '.join(map(_joined, block.yields))}"
        self.names = outer

    def _statement(self, stmt: Statement, indent: str) -> Iterator[str]:
        if isinstance(stmt, Alloc):
            dims = f": {type_text(stmt.over)}" if stmt.over else ""
            yield f"{indent}{stmt.name}{dims} = tensor([{_listed(stmt.shape)}], {stmt.dtype}, {stmt.place}){_bytes(stmt)}"
            yield from (indent + line for line in self._partitions(Ref(stmt.name)))
            return
        head = f"{indent}{', '.join(f'{name}: {type_text(dims)}' for name, dims in defined(stmt).items())} = "
        if isinstance(stmt, Copy):
            yield f"{head}copy({self._ref(stmt.source)}, {self._ref(stmt.target)}), {{{_listed(stmt.after)}}}"
        elif isinstance(stmt, Call):
            yield f"{head}call({', '.join((stmt.task, *map(self._ref, stmt.arguments)))}), {{{_listed(stmt.after)}}}"
        else:
            yield f"{head}{_opening(stmt)} do"
            for number, block in enumerate(blocks_of(stmt)):
                if number:
                    yield f"{indent}else"
                yield from self._block(block, f"{indent}  ")


def _opening(stmt: For | Pfor | Branch) -> str:
    if isinstance(stmt, Branch):
        return f"if {stmt.condition}"
    if isinstance(stmt, Pfor):
        return f"pfor {_listed(stmt.variables)} in {' x '.join(f'[0, {size})' for size in stmt.extents)}, {{}}"
    carried = (f"{carry.name}: {type_text(carry.over)} = {_joined(carry.initial)}{_distance_text(carry)}" for carry in stmt.carries)
    stages = f" with {stmt.stages} stages" if stmt.stages > 1 else ""
    return f"for {stmt.variable} in [0, {stmt.extent}), {{{', '.join(carried)}}}{stages}"


def _distance_text(carry: Carry) -> str:
    return f" {carry.distance} iterations before" if carry.distance > 1 else ""


def _bytes(alloc: Alloc) -> str:
    """The offset of a tensor in shared memory, if it is known."""
    if alloc.at is None:
        return ""
    return f" at {alloc.at}" + (f" x {alloc.copies}" if alloc.copies > 1 else "")


def _refs(stmt: Statement) -> tuple[Ref, ...]:
    if isinstance(stmt, Copy):
        return stmt.source, stmt.target
    return stmt.arguments if isinstance(stmt, Call) else ()


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _joined(events: Events) -> str:
    return str(events[0]) if len(events) == 1 else f"{{{_listed(events)}}}"


def _privileges(reads: bool, writes: bool) -> str:
    return " ".join(word for word, has in (("read", reads), ("write", writes)) if has) or "none"


def _partition(by: Partition, of: str) -> str:
    if isinstance(by, Blocks):
        return f"partition_by_blocks({of}, ({_listed(by.sizes)}{',' if len(by.sizes) == 1 else ''}))"
    if isinstance(by, MmaPieces):
        return f'partition_by_mma({of}, "{by.instruction.name}", {by.processor}, "{by.operand}")'
    fields = ", ".join(f"{field.name}={_argument(getattr(by, field.name))}" for field in attrs.fields(type(by)))
    return f"partition({of}, {type(by).__name__}({fields}))"


def _argument(value: Any) -> str:
    """An argument of a partition; sizes are expressions."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_argument(part)}, ' for part in value).rstrip(' ' if len(value) == 1 else ', ')})"
    return str(value) if isinstance(value, (Expr, Processor)) else repr(value)


# ---------------------------------------------------------------------------------------------- parsing


def parse(text: str, machine: Machine = HOPPER, partitions: Sequence[type[Partition]] = ()) -> EventProgram:
    """Parse a program from the text that `text` prints.

    Args: machine: the machine whose processors and places the text names. partitions: further partition operators that it may name.
    Raises: ArgumentError with the line, and the legal forms.
    """
    rows = [(number, row.rstrip()) for number, row in enumerate(text.splitlines(), 1)]
    rows = [(number, row) for number, row in rows if row.strip() and not row.lstrip().startswith("#")]
    known = [cls for cls in Partition.__subclasses__() if cls.__module__ == Partition.__module__]
    return _Reader(rows, machine, {cls.__name__: cls for cls in (*known, *partitions)}).program()


LEGAL = (
    "e: () = copy(source, target), {events}",
    "e: () = call(task, tensors), {events}",
    "e: () = for k in [0, size), {name: () = event} do",
    "e: () = for k in [0, size), {name: () = event 3 iterations before} with 3 stages do",
    "e: [(size, PROCESSOR)] = pfor i in [0, size), {} do",
    "e: () = if condition do",
    "else",
    "T = tensor([sizes], dtype, PLACE)",
    "T = tensor([sizes], dtype, SHARED) at offset x copies",
    "P = partition_by_blocks(T, (sizes))",
    "yield events",
)
"""The legal lines of a block."""

_HEAD = r"(?P<head>[^=]+?) = "
_LEAF = re.compile(_HEAD + r"(?P<verb>copy|call)\((?P<inside>.*)\), \{(?P<after>.*)\}")
_FOR = re.compile(_HEAD + r"for (?P<name>\w+) in \[0, (?P<size>.+?)\), \{(?P<carries>.*)\}( with (?P<stages>\d+) stages)? do")
_PFOR = re.compile(_HEAD + r"pfor (?P<names>[\w, ]+) in (?P<ranges>\[0, .+\)), \{\} do")
_IF = re.compile(_HEAD + r"if (?P<condition>.+) do")
_TENSOR = re.compile(
    r"(?P<name>\w+)(: (?P<over>\[.*\]))? = (?P<kind>tensor|argument)\(\[(?P<shape>.*)\], (?P<dtype>\w+), (?P<place>\w+)\)"
    r"( at (?P<at>\d+)( x (?P<copies>\d+))?)?"
)
_DISTANCE = re.compile(r"(?P<initial>.*) (?P<distance>\d+) (?:iterations|turns) before")
_PARTITION = re.compile(r"(?P<name>\w+) = (?P<verb>partition_by_blocks|partition_by_mma|partition)\((?P<inside>.*)\)")
_SYM = re.compile(r"(?P<name>\w+) = sym\(multiple_of=(?P<multiple>\d+), low=(?P<low>\d+), high=(?P<high>\d+)\)")
_TASK = re.compile(r"task (?P<name>\w+)\((?P<tensors>.*)\)")


@attrs.define
class _Reader:
    """Parses the lines of a text, with the names that are in scope."""

    rows: list[tuple[int, str]]
    machine: Machine
    classes: dict[str, type[Partition]]
    at: int = 0
    scope: Scope = attrs.field(factory=Scope)
    pieces: dict[str, tuple[str, Partition]] = attrs.field(factory=dict)
    symbols: list[Var] = attrs.field(factory=list)
    arguments: list[Alloc] = attrs.field(factory=list)

    def program(self) -> EventProgram:
        try:
            body = self._block("")
            if self.at < len(self.rows):
                raise ArgumentError("the line is indented too far, or follows `yield`", got=self._row, legal=LEGAL)
            for used in body.yields:
                self.scope.require(used, ())
        except FireironError as error:
            number = self.rows[min(self.at, len(self.rows) - 1)][0] if self.rows else 1
            raise error.located(at=f"line {number}") from None
        return EventProgram(tuple(self.symbols), tuple(self.scope.tasks.values()), tuple(self.arguments), body)

    @property
    def _row(self) -> str:
        return self.rows[self.at][1].strip() if self.at < len(self.rows) else ""

    def _indent(self) -> str:
        row = self.rows[self.at][1] if self.at < len(self.rows) else ""
        return row[: len(row) - len(row.lstrip())]

    def _block(self, indent: str) -> Block:
        statements: list[Statement] = []
        yields: tuple[Events, ...] = ()
        pieces = dict(self.pieces)
        while self.at < len(self.rows) and self._indent() == indent and self._row != "else":
            if self._row.startswith("yield "):
                yields = tuple(map(self._events, _split(self._row.removeprefix("yield "))))
                self.at += 1
                break
            stmt = self._statement(indent)
            statements += [] if stmt is None else [stmt]
        self.pieces = pieces
        return Block(tuple(statements), yields)

    def _statement(self, indent: str) -> Statement | None:
        """The statement of a line; None for names that exist only in the text."""
        row, readers = self._row, self._readers()
        for pattern, read in readers:
            match = pattern.fullmatch(row)
            if match:
                return read(match, indent)
        raise ArgumentError("the line is not a statement", got=row, legal=LEGAL)

    def _readers(self) -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Statement | None]], ...]:
        return (
            (_LEAF, self._leaf), (_FOR, self._for), (_PFOR, self._pfor), (_IF, self._branch), (_TENSOR, self._tensor),
            (_PARTITION, self._partition), (_SYM, self._size), (_TASK, self._task),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ lines

    def _size(self, match: re.Match[str], indent: str) -> None:
        size = sym(match["name"], int(match["multiple"]), int(match["low"]), int(match["high"]))
        self.symbols.append(size)
        self.scope.variables |= {size}
        self.at += 1

    def _task(self, match: re.Match[str], indent: str) -> None:
        tensors = []
        for text in _split(match["tensors"]):
            name, _, words = text.partition(": ")
            if not set(words.split()) <= {"read", "write", "none"} or not words:
                raise ArgumentError(f"the privileges of {name} are unknown", got=words, legal=("read", "write", "read write", "none"))
            tensors.append((name, "read" in words.split(), "write" in words.split()))
        self.scope.tasks[match["name"]] = LeafTask(match["name"], tuple(tensors))
        self.at += 1

    def _tensor(self, match: re.Match[str], indent: str) -> Alloc | None:
        places = {place.name: place for place in (NONE, *self.machine.places)}
        shape = tuple(self._number(text, self.scope.variables) for text in _split(match["shape"]))
        over = self._type(match["over"]) if match["over"] else ()
        place = _named(match["place"], places)
        at = int(match["at"]) if match["at"] else None
        alloc = Alloc(match["name"], shape, as_dtype(match["dtype"]), place, over, at, int(match["copies"] or 1))
        self.scope.alloc(alloc)
        self.at += 1
        if match["kind"] == "argument":
            self.arguments.append(alloc)
            return None
        return alloc

    def _partition(self, match: re.Match[str], indent: str) -> None:
        of, *rest = _split(match["inside"])
        name = match["name"]
        if name in self.pieces or name in self.scope.used_names:
            raise ArgumentError(f"{name}: the name is already used", legal="another name")
        if of.partition("[")[0] not in (*self.scope.tensors, *self.pieces):
            raise ArgumentError(f"{of}: no tensor of this name is allocated before", legal=tuple(self.scope.tensors) or "none")
        self.pieces[name] = of, self._operator(match["verb"], rest)
        self.at += 1

    def _operator(self, verb: str, rest: list[str]) -> Partition:
        if verb == "partition_by_blocks":
            self._require(verb, rest, len(rest) == 1, "partition_by_blocks(C, (64, 64))")
            sizes = (self._number(text, self.scope.variables) for text in _split(rest[0].strip("()")) if text)
            return Blocks(tuple(_plain(size) for size in sizes))
        try:
            values = [_value(expression_tree(text), self) for text in rest]
        except SyntaxError:
            legal = "integers, names, or texts in quotes"
            raise ArgumentError(f"{verb}: its arguments cannot be parsed", got=", ".join(rest), legal=legal) from None
        if verb == "partition_by_mma":
            self._require(verb, rest, len(values) == 3, 'partition_by_mma(C, "HMMA_16816_F32", WARP, "C")')
            return mma_pieces(*values)
        self._require(
            verb, rest, len(values) == 1 and isinstance(values[0], Partition), [f"{name}(...)" for name in self.classes] or "none"
        )
        return values[0]  # type: ignore[no-any-return]

    @staticmethod
    def _require(verb: str, rest: list[str], fits: bool, legal: list[str] | str) -> None:
        """Refuse arguments that do not specify a partition."""
        if not fits:
            raise ArgumentError(f"{verb}: the arguments do not specify a partition", got=", ".join(rest) or "nothing", legal=legal)

    def _leaf(self, match: re.Match[str], indent: str) -> Statement:
        ((event, over),) = self._results(match["head"])
        after = tuple(map(self._event, _split(match["after"])))
        own = self._variables(over)
        leaf: Copy | Call
        if match["verb"] == "copy":
            refs = [self._ref(text, own) for text in _split(match["inside"])]
            if len(refs) != 2:
                raise ArgumentError(f"copy: {len(refs)} tensors are given", legal="copy(source, target)")
            leaf = Copy(event, refs[0], refs[1], self._with_variables(after, own), over)
        else:
            name, *arguments = _split(match["inside"])
            leaf = Call(event, name, tuple(self._ref(text, own) for text in arguments), self._with_variables(after, own), over)
        self.scope.leaf(leaf)
        self.at += 1
        return leaf

    def _for(self, match: re.Match[str], indent: str) -> For:
        size = self._number(match["size"], self.scope.variables)
        carries = []
        for text in _split(match["carries"]):
            head, equals, initial = text.partition(" = ")
            if not equals:
                raise ArgumentError("a loop-carried event needs a name in the loop body", got=text, legal="{name: () = event}")
            ((name, over),) = self._results(head)
            match_distance = _DISTANCE.fullmatch(initial)
            initial, distance = (match_distance["initial"], int(match_distance["distance"])) if match_distance else (initial, 1)
            carries.append(Carry(name, self._with_variables(self._events(initial), self._variables(over)), over, distance))
        results = tuple(Result(name, over) for name, over in self._results(match["head"]))
        variable = Var(match["name"], 0, max(size.high - 1, 0))
        bare = For(results, variable, size, tuple(carries), Block(()), int(match["stages"] or 1))
        return self._bodies(bare, indent)  # type: ignore[return-value]

    def _pfor(self, match: re.Match[str], indent: str) -> Pfor:
        extents = tuple(self._number(text.strip()[4:-1], self.scope.variables) for text in match["ranges"].split(" x "))
        names, heads = _split(match["names"]), self._results(match["head"])
        dims = heads[0][1][: len(names)]
        if len(names) != len(extents) or tuple(dim.size for dim in dims) != extents or len({dim.processor for dim in dims}) != 1:
            raise ArgumentError(
                "pfor requires one variable per range, and events that start with dimensions of these sizes on one kind of processor",
                got=match[0], legal="e: [(4, WARP)] = pfor i in [0, 4), {} do",
            )  # fmt: skip
        variables = tuple(Var(name, 0, max(size.high - 1, 0)) for name, size in zip(names, extents, strict=True))
        results = tuple(Result(name, over[len(names) :]) for name, over in heads)
        return self._bodies(Pfor(results, variables, extents, dims[0].processor, Block(())), indent)  # type: ignore[return-value]

    def _branch(self, match: re.Match[str], indent: str) -> Branch:
        results = tuple(Result(name, over) for name, over in self._results(match["head"]))
        condition = self._number(match["condition"], self.scope.variables)
        return self._bodies(Branch(results, condition, Block(()), Block(())), indent)  # type: ignore[return-value]

    def _bodies(self, bare: For | Pfor | Branch, indent: str) -> Statement:
        """The statement with the blocks that follow its line."""
        outer, blocks = self.scope, []
        for number, scope in enumerate(outer.opened(bare)):
            if number and self._row != "else":
                raise ArgumentError("a branch requires an else block", got=self._row, legal="else")
            self.at += 1
            self.scope = scope
            block = self._block(f"{indent}  ")
            overs = [result.over for result in bare.results]
            yields = tuple(self._with_variables(used, self._variables(over)) for used, over in zip(block.yields, overs, strict=False))
            block = attrs.evolve(block, yields=(*yields, *block.yields[len(yields) :]))
            self.at -= 1
            scope.yields(bare, block)
            self.at += 1
            blocks.append(block)
        self.scope = outer
        outer.closed(bare)
        if isinstance(bare, Branch):
            return attrs.evolve(bare, then=blocks[0], otherwise=blocks[1])
        return attrs.evolve(bare, body=blocks[0])

    # ------------------------------------------------------------------------------------------ parts of lines

    def _results(self, text: str) -> list[tuple[str, Type]]:
        results = []
        for part in _split(text):
            name, _, dims = part.partition(": ")
            if not name.isidentifier() or not dims:
                raise ArgumentError("an event requires a name and a type", got=part, legal=("e: ()", "e: [(4, WARP)]"))
            results.append((name, self._type(dims)))
        return results

    def _type(self, text: str) -> Type:
        if text == "()":
            return ()
        dims = []
        for part in _split(text.strip()[1:-1]):
            size, _, name = part.strip("()").rpartition(", ")
            processors = {processor.name: processor for processor in self.machine.processors}
            dims.append(Dim(self._number(size, self.scope.variables), _named(name, processors)))
        return tuple(dims)

    def _variables(self, over: Type) -> frozenset[Var]:
        return self.scope.variables | set(processor_variables(over))

    def _events(self, text: str) -> Events:
        inside = text[1:-1] if text.startswith("{") else text
        return tuple(map(self._event, _split(inside)))

    def _event(self, text: str) -> Event:
        """An event; its indices are parsed by `_with_variables`, when the dimensions of the statement are known."""
        name, bracket, inside = text.strip().partition("[")
        index = tuple(EVERY if part == ":" else _Text(part) for part in _split(inside.removesuffix("]"))) if bracket else ()
        return Event(name, index)  # type: ignore[arg-type]

    def _with_variables(self, events: Events, variables: frozenset[Var]) -> Events:
        def read(part: Any) -> Index:
            return self._number(part.text, variables) if isinstance(part, _Text) else part

        return tuple(attrs.evolve(event, index=tuple(map(read, event.index))) for event in events)

    def _ref(self, text: str, variables: frozenset[Var]) -> Ref:
        name, bracket, inside = text.strip().partition("[")
        if not bracket:
            return Ref(name)
        if name not in self.pieces:
            raise ArgumentError(f"{name}: no partition of this name is defined", legal=tuple(self.pieces) or "none")
        of, by = self.pieces[name]
        return self._ref(of, variables).piece(by, *(self._number(part, variables) for part in _split(inside.removesuffix("]"))))

    def _number(self, text: str, variables: frozenset[Var]) -> Expr:
        try:
            tree = expression_tree(text)
        except SyntaxError:
            raise ArgumentError("the text is not an index or a size", got=text, legal="integers and variables with + - * // %") from None
        return _expression(tree, {var.name: var for var in variables}, text)


@frozen
class _Text:
    """An index that is not parsed yet."""

    text: str


def _split(text: str) -> list[str]:
    """Split a list at its commas outside brackets."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [part for part in (*parts, current.strip()) if part]


def _named(name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ArgumentError(f"the machine has no {name}", legal=tuple(known))
    return known[name]


def _plain(size: Expr) -> Any:
    return int(size.low) if size.low == size.high and not size.variables() else size


_BINARY: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_FUNCTIONS: dict[str, Callable[[Expr, Expr], Expr]] = {"minimum": minimum, "equal": equal}


def _expression(tree: ast.expr, known: dict[str, Var], text: str) -> Expr:
    """Convert a syntax tree to an index expression."""
    match tree:
        case ast.Constant(value=int()):
            return as_expr(tree.value)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Name(id=name):
            raise ArgumentError(f"{name} is not a variable in this scope", got=text, legal=tuple(sorted(known)) or "none")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_expression(operand, known, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_expression(left, known, text), _expression(right, known, text))
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            return less(_expression(left, known, text), _expression(right, known, text))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_expression(left, known, text), _expression(right, known, text))
    raise ArgumentError("the text is not an index or a size", got=text, legal="integers and variables with + - * // %, minimum, equal, <")


def _value(tree: ast.expr, reader: _Reader) -> Any:
    """An argument of a partition: a size, a text, a processor, a tuple, or a partition of the user."""
    processors = {processor.name: processor for processor in reader.machine.processors}
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in processors:
            return processors[name]
        case ast.Tuple(elts=parts):
            return tuple(_value(part, reader) for part in parts)
        case ast.Name() | ast.BinOp():
            return _expression(tree, {var.name: var for var in reader.scope.variables}, ast.unparse(tree))
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=named) if name in reader.classes:
            options = {str(keyword.arg): _value(keyword.value, reader) for keyword in named}
            try:
                return reader.classes[name](*(_value(part, reader) for part in parts), **options)
            except TypeError as error:  # wrong arguments
                raise ArgumentError(f"{name}: {error}", got=ast.unparse(tree)) from None
    raise ArgumentError(
        "the value is not a legal argument of a partition",
        got=ast.unparse(tree),
        legal=("a size", "a text", "a processor", *reader.classes),
        hint="pass user-defined partitions: parse(..., partitions=[...])",
    )  # fmt: skip
