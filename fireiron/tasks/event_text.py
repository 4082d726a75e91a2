"""The event IR as text, in the paper's notation, and its reader (Cypress, Figures 7 and 8).

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

A copy has its source first. Partitions have names in the text only. What a loop waits for has a name inside: there it is, from the second
turn on, what the turns before yield as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, FireironError
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
    """The program as text, which `parse` reads again."""
    return "\n".join(_Printer(program).lines()) + "\n"


@attrs.define
class _Printer:
    """Prints a program: partitions of a tensor behind it, those of pieces before the statement that first has them."""

    program: EventProgram
    names: dict[tuple[Ref, Partition], str] = attrs.field(factory=dict)
    taken: set[str] = attrs.field(factory=set)
    wanted: dict[str, list[Partition]] = attrs.field(factory=dict)

    def lines(self) -> Iterator[str]:
        program = self.program
        self._look()
        for size in program.symbols:
            yield f"{size.name} = sym(multiple_of={size.multiple_of}, low={size.low}, high={size.high})"
        for task in program.tasks:
            yield f"task {task.name}({', '.join(f'{name}: {_privileges(reads, writes)}' for name, reads, writes in task.tensors)})"
        for one in program.arguments:
            yield f"{one.name} = argument([{_listed(one.shape)}], {one.dtype}, {one.place})"
            yield from self._partitions(Ref(one.name))
        yield from self._block(program.body, "")

    def _look(self) -> None:
        """All names, and the partitions of each tensor."""
        for one in (*self.program.arguments, *walk(self.program.body)):
            self.taken |= {one.name} if isinstance(one, Alloc) else set(defined(one))
            for ref in _refs(one):
                if ref.path:
                    found = self.wanted.setdefault(ref.tensor, [])
                    found += [ref.path[0][0]] if ref.path[0][0] not in found else []

    def _partitions(self, of: Ref) -> Iterator[str]:
        for by in self.wanted.get(of.tensor, ()):
            yield self._named(of, by, of.tensor)

    def _named(self, of: Ref, by: Partition, stem: str) -> str:
        numbers = (f"{stem}p{number or ''}" for number in (0, *range(2, 1000)))
        name = next(one for one in numbers if one not in self.taken)
        self.taken.add(name)
        self.names[of, by] = name
        return f"{name} = {_partition(by, self._ref(of))}"

    def _ref(self, ref: Ref) -> str:
        if not ref.path:
            return ref.tensor
        (by, place) = ref.path[-1]
        return f"{self.names[attrs.evolve(ref, path=ref.path[:-1]), by]}[{_listed(place)}]"

    def _inner(self, ref: Ref) -> Iterator[str]:
        """The partitions of pieces that a reference needs, and that have no name yet."""
        for length in range(1, len(ref.path)):
            of, by = attrs.evolve(ref, path=ref.path[:length]), ref.path[length][0]
            if (of, by) not in self.names:
                yield self._named(of, by, self.names[attrs.evolve(of, path=of.path[:-1]), of.path[-1][0]])

    def _block(self, block: Block, indent: str) -> Iterator[str]:
        outer = dict(self.names)
        for one in block.statements:
            for ref in _refs(one):
                yield from (indent + line for line in self._inner(ref))
            yield from self._statement(one, indent)
        if block.yields:
            yield f"{indent}yield {', '.join(map(_joined, block.yields))}"
        self.names = outer

    def _statement(self, one: Statement, indent: str) -> Iterator[str]:
        if isinstance(one, Alloc):
            dims = f": {type_text(one.over)}" if one.over else ""
            yield f"{indent}{one.name}{dims} = tensor([{_listed(one.shape)}], {one.dtype}, {one.place}){_bytes(one)}"
            yield from (indent + line for line in self._partitions(Ref(one.name)))
            return
        head = f"{indent}{', '.join(f'{name}: {type_text(dims)}' for name, dims in defined(one).items())} = "
        if isinstance(one, Copy):
            yield f"{head}copy({self._ref(one.source)}, {self._ref(one.target)}), {{{_listed(one.after)}}}"
        elif isinstance(one, Call):
            yield f"{head}call({', '.join((one.task, *map(self._ref, one.arguments)))}), {{{_listed(one.after)}}}"
        else:
            yield f"{head}{_opening(one)} do"
            for number, block in enumerate(blocks_of(one)):
                if number:
                    yield f"{indent}else"
                yield from self._block(block, f"{indent}  ")


def _opening(one: For | Pfor | Branch) -> str:
    if isinstance(one, Branch):
        return f"if {one.condition}"
    if isinstance(one, Pfor):
        return f"pfor {_listed(one.variables)} in {' x '.join(f'[0, {size})' for size in one.extents)}, {{}}"
    carried = (f"{carry.name}: {type_text(carry.over)} = {_joined(carry.initial)}{_behind(carry)}" for carry in one.carries)
    stages = f" with {one.stages} stages" if one.stages > 1 else ""
    return f"for {one.variable} in [0, {one.extent}), {{{', '.join(carried)}}}{stages}"


def _behind(carry: Carry) -> str:
    return f" {carry.distance} turns before" if carry.distance > 1 else ""


def _bytes(one: Alloc) -> str:
    """Where a tensor lies in shared memory, if that is known."""
    if one.at is None:
        return ""
    return f" at {one.at}" + (f" x {one.copies}" if one.copies > 1 else "")


def _refs(one: Statement) -> tuple[Ref, ...]:
    if isinstance(one, Copy):
        return one.source, one.target
    return one.arguments if isinstance(one, Call) else ()


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
    fields = ", ".join(f"{one.name}={_argument(getattr(by, one.name))}" for one in attrs.fields(type(by)))
    return f"partition({of}, {type(by).__name__}({fields}))"


def _argument(value: Any) -> str:
    """An argument of a partition: sizes as expressions."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_argument(one)}, ' for one in value).rstrip(' ' if len(value) == 1 else ', ')})"
    return str(value) if isinstance(value, (Expr, Processor)) else repr(value)


# ---------------------------------------------------------------------------------------------- reading


def parse(text: str, machine: Machine = HOPPER, partitions: Sequence[type[Partition]] = ()) -> EventProgram:
    """The program of a text that `text` printed, or that somebody wrote.

    Args: machine: whose processors and places it names. partitions: operators of one's own that it may name.
    Raises: ArgumentError with the line, and what is legal there.
    """
    rows = [(number, row.rstrip()) for number, row in enumerate(text.splitlines(), 1)]
    rows = [(number, row) for number, row in rows if row.strip() and not row.lstrip().startswith("#")]
    known = [one for one in Partition.__subclasses__() if one.__module__ == Partition.__module__]
    return _Reader(rows, machine, {one.__name__: one for one in (*known, *partitions)}).program()


LEGAL = (
    "e: () = copy(source, target), {events}",
    "e: () = call(task, tensors), {events}",
    "e: () = for k in [0, size), {name: () = event} do",
    "e: () = for k in [0, size), {name: () = event 3 turns before} with 3 stages do",
    "e: [(size, PROCESSOR)] = pfor i in [0, size), {} do",
    "e: () = if condition do",
    "else",
    "T = tensor([sizes], dtype, PLACE)",
    "T = tensor([sizes], dtype, SHARED) at offset x copies",
    "P = partition_by_blocks(T, (sizes))",
    "yield events",
)
"""The lines of a block."""

_HEAD = r"(?P<head>[^=]+?) = "
_LEAF = re.compile(_HEAD + r"(?P<verb>copy|call)\((?P<inside>.*)\), \{(?P<after>.*)\}")
_FOR = re.compile(_HEAD + r"for (?P<name>\w+) in \[0, (?P<size>.+?)\), \{(?P<carries>.*)\}( with (?P<stages>\d+) stages)? do")
_PFOR = re.compile(_HEAD + r"pfor (?P<names>[\w, ]+) in (?P<ranges>\[0, .+\)), \{\} do")
_IF = re.compile(_HEAD + r"if (?P<condition>.+) do")
_TENSOR = re.compile(
    r"(?P<name>\w+)(: (?P<over>\[.*\]))? = (?P<kind>tensor|argument)\(\[(?P<shape>.*)\], (?P<dtype>\w+), (?P<place>\w+)\)"
    r"( at (?P<at>\d+)( x (?P<copies>\d+))?)?"
)
_BEHIND = re.compile(r"(?P<initial>.*) (?P<distance>\d+) turns before")
_PARTITION = re.compile(r"(?P<name>\w+) = (?P<verb>partition_by_blocks|partition_by_mma|partition)\((?P<inside>.*)\)")
_SYM = re.compile(r"(?P<name>\w+) = sym\(multiple_of=(?P<multiple>\d+), low=(?P<low>\d+), high=(?P<high>\d+)\)")
_TASK = re.compile(r"task (?P<name>\w+)\((?P<tensors>.*)\)")


@attrs.define
class _Reader:
    """Reads the lines of a text, with what may be named at each."""

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
                raise ArgumentError("the line stands too far inside, or behind `yield`", got=self._row, legal=LEGAL)
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
            found = self._statement(indent)
            statements += [] if found is None else [found]
        self.pieces = pieces
        return Block(tuple(statements), yields)

    def _statement(self, indent: str) -> Statement | None:
        """The statement of a line; None for what only has a name in the text."""
        row, readers = self._row, self._readers()
        for pattern, read in readers:
            match = pattern.fullmatch(row)
            if match:
                return read(match, indent)
        raise ArgumentError("the line is no statement", got=row, legal=LEGAL)

    def _readers(self) -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], Statement | None]], ...]:
        return (
            (_LEAF, self._leaf), (_FOR, self._for), (_PFOR, self._pfor), (_IF, self._branch), (_TENSOR, self._tensor),
            (_PARTITION, self._partition), (_SYM, self._size), (_TASK, self._task),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ lines

    def _size(self, match: re.Match[str], indent: str) -> None:
        made = sym(match["name"], int(match["multiple"]), int(match["low"]), int(match["high"]))
        self.symbols.append(made)
        self.scope.variables |= {made}
        self.at += 1

    def _task(self, match: re.Match[str], indent: str) -> None:
        tensors = []
        for one in _split(match["tensors"]):
            name, _, words = one.partition(": ")
            if not set(words.split()) <= {"read", "write", "none"} or not words:
                raise ArgumentError(f"{name}: what the task does with it", got=words, legal=("read", "write", "read write", "none"))
            tensors.append((name, "read" in words.split(), "write" in words.split()))
        self.scope.tasks[match["name"]] = LeafTask(match["name"], tuple(tensors))
        self.at += 1

    def _tensor(self, match: re.Match[str], indent: str) -> Alloc | None:
        places = {one.name: one for one in (NONE, *self.machine.places)}
        shape = tuple(self._number(one, self.scope.variables) for one in _split(match["shape"]))
        over = self._type(match["over"]) if match["over"] else ()
        place = _named(match["place"], places)
        at = int(match["at"]) if match["at"] else None
        made = Alloc(match["name"], shape, as_dtype(match["dtype"]), place, over, at, int(match["copies"] or 1))
        self.scope.alloc(made)
        self.at += 1
        if match["kind"] == "argument":
            self.arguments.append(made)
            return None
        return made

    def _partition(self, match: re.Match[str], indent: str) -> None:
        of, *rest = _split(match["inside"])
        name = match["name"]
        if name in self.pieces or name in self.scope.taken:
            raise ArgumentError(f"{name}: the name is taken", legal="another name")
        if of.partition("[")[0] not in (*self.scope.tensors, *self.pieces):
            raise ArgumentError(f"{of}: no such tensor is made before", legal=tuple(self.scope.tensors) or "none")
        self.pieces[name] = of, self._operator(match["verb"], rest)
        self.at += 1

    def _operator(self, verb: str, rest: list[str]) -> Partition:
        if verb == "partition_by_blocks":
            self._require(verb, rest, len(rest) == 1, "partition_by_blocks(C, (64, 64))")
            sizes = (self._number(one, self.scope.variables) for one in _split(rest[0].strip("()")) if one)
            return Blocks(tuple(_plain(one) for one in sizes))
        try:
            values = [_value(expression_tree(one), self) for one in rest]
        except SyntaxError:
            legal = "integers, names, texts in quotes"
            raise ArgumentError(f"{verb}: values that cannot be read", got=", ".join(rest), legal=legal) from None
        if verb == "partition_by_mma":
            self._require(verb, rest, len(values) == 3, 'partition_by_mma(C, "HMMA_16816_F32", WARP, "C")')
            return mma_pieces(*values)
        self._require(
            verb, rest, len(values) == 1 and isinstance(values[0], Partition), [f"{name}(...)" for name in self.classes] or "none"
        )
        return values[0]  # type: ignore[no-any-return]

    @staticmethod
    def _require(verb: str, rest: list[str], fits: bool, legal: list[str] | str) -> None:
        """Refuse what does not say how a tensor is divided."""
        if not fits:
            raise ArgumentError(f"{verb}: how the tensor is divided", got=", ".join(rest) or "nothing", legal=legal)

    def _leaf(self, match: re.Match[str], indent: str) -> Statement:
        ((event, over),) = self._results(match["head"])
        after = tuple(map(self._event, _split(match["after"])))
        own = self._variables(over)
        made: Copy | Call
        if match["verb"] == "copy":
            refs = [self._ref(one, own) for one in _split(match["inside"])]
            if len(refs) != 2:
                raise ArgumentError(f"copy: {len(refs)} tensors", legal="copy(source, target)")
            made = Copy(event, refs[0], refs[1], self._again(after, own), over)
        else:
            name, *arguments = _split(match["inside"])
            made = Call(event, name, tuple(self._ref(one, own) for one in arguments), self._again(after, own), over)
        self.scope.leaf(made)
        self.at += 1
        return made

    def _for(self, match: re.Match[str], indent: str) -> For:
        size = self._number(match["size"], self.scope.variables)
        carries = []
        for one in _split(match["carries"]):
            head, equals, initial = one.partition(" = ")
            if not equals:
                raise ArgumentError("what a loop waits for has a name inside", got=one, legal="{name: () = event}")
            ((name, over),) = self._results(head)
            behind = _BEHIND.fullmatch(initial)
            initial, distance = (behind["initial"], int(behind["distance"])) if behind else (initial, 1)
            carries.append(Carry(name, self._again(self._events(initial), self._variables(over)), over, distance))
        results = tuple(Result(name, over) for name, over in self._results(match["head"]))
        variable = Var(match["name"], 0, max(size.high - 1, 0))
        bare = For(results, variable, size, tuple(carries), Block(()), int(match["stages"] or 1))
        return self._bodies(bare, indent)  # type: ignore[return-value]

    def _pfor(self, match: re.Match[str], indent: str) -> Pfor:
        extents = tuple(self._number(one.strip()[4:-1], self.scope.variables) for one in match["ranges"].split(" x "))
        names, found = _split(match["names"]), self._results(match["head"])
        dims = found[0][1][: len(names)]
        if len(names) != len(extents) or tuple(one.size for one in dims) != extents or len({one.processor for one in dims}) != 1:
            raise ArgumentError(
                "a pfor has a variable for each range, and its events begin with dimensions of these sizes on one kind of processor",
                got=match[0], legal="e: [(4, WARP)] = pfor i in [0, 4), {} do",
            )  # fmt: skip
        variables = tuple(Var(name, 0, max(size.high - 1, 0)) for name, size in zip(names, extents, strict=True))
        results = tuple(Result(name, over[len(names) :]) for name, over in found)
        return self._bodies(Pfor(results, variables, extents, dims[0].processor, Block(())), indent)  # type: ignore[return-value]

    def _branch(self, match: re.Match[str], indent: str) -> Branch:
        results = tuple(Result(name, over) for name, over in self._results(match["head"]))
        condition = self._number(match["condition"], self.scope.variables)
        return self._bodies(Branch(results, condition, Block(()), Block(())), indent)  # type: ignore[return-value]

    def _bodies(self, bare: For | Pfor | Branch, indent: str) -> Statement:
        """The statement with the blocks that follow its line."""
        outer, found = self.scope, []
        for number, scope in enumerate(outer.opened(bare)):
            if number and self._row != "else":
                raise ArgumentError("a branch yields in both cases", got=self._row, legal="else")
            self.at += 1
            self.scope = scope
            block = self._block(f"{indent}  ")
            overs = [result.over for result in bare.results]
            yields = tuple(self._again(used, self._variables(over)) for used, over in zip(block.yields, overs, strict=False))
            block = attrs.evolve(block, yields=(*yields, *block.yields[len(yields) :]))
            self.at -= 1
            scope.yields(bare, block)
            self.at += 1
            found.append(block)
        self.scope = outer
        outer.closed(bare)
        if isinstance(bare, Branch):
            return attrs.evolve(bare, then=found[0], otherwise=found[1])
        return attrs.evolve(bare, body=found[0])

    # ------------------------------------------------------------------------------------------ parts of lines

    def _results(self, text: str) -> list[tuple[str, Type]]:
        found = []
        for one in _split(text):
            name, _, dims = one.partition(": ")
            if not name.isidentifier() or not dims:
                raise ArgumentError("an event has a name and a type", got=one, legal=("e: ()", "e: [(4, WARP)]"))
            found.append((name, self._type(dims)))
        return found

    def _type(self, text: str) -> Type:
        if text == "()":
            return ()
        dims = []
        for one in _split(text.strip()[1:-1]):
            size, _, name = one.strip("()").rpartition(", ")
            processors = {each.name: each for each in self.machine.processors}
            dims.append(Dim(self._number(size, self.scope.variables), _named(name, processors)))
        return tuple(dims)

    def _variables(self, over: Type) -> frozenset[Var]:
        return self.scope.variables | set(processor_variables(over))

    def _events(self, text: str) -> Events:
        inside = text[1:-1] if text.startswith("{") else text
        return tuple(map(self._event, _split(inside)))

    def _event(self, text: str) -> Event:
        """An event; what stands in its indices is read `_again`, when the dimensions of the statement are known."""
        name, bracket, inside = text.strip().partition("[")
        index = tuple(EVERY if one == ":" else _Text(one) for one in _split(inside.removesuffix("]"))) if bracket else ()
        return Event(name, index)  # type: ignore[arg-type]

    def _again(self, events: Events, variables: frozenset[Var]) -> Events:
        def read(one: Any) -> Index:
            return self._number(one.text, variables) if isinstance(one, _Text) else one

        return tuple(attrs.evolve(one, index=tuple(map(read, one.index))) for one in events)

    def _ref(self, text: str, variables: frozenset[Var]) -> Ref:
        name, bracket, inside = text.strip().partition("[")
        if not bracket:
            return Ref(name)
        if name not in self.pieces:
            raise ArgumentError(f"{name}: no such partition", legal=tuple(self.pieces) or "none")
        of, by = self.pieces[name]
        return self._ref(of, variables).piece(by, *(self._number(one, variables) for one in _split(inside.removesuffix("]"))))

    def _number(self, text: str, variables: frozenset[Var]) -> Expr:
        try:
            tree = expression_tree(text)
        except SyntaxError:
            raise ArgumentError("no index or size", got=text, legal="integers and variables with + - * // %") from None
        return _expression(tree, {one.name: one for one in variables}, text)


@attrs.frozen
class _Text:
    """An index that is not read yet."""

    text: str


def _split(text: str) -> list[str]:
    """The parts of a list, by its commas outside brackets."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [one for one in (*parts, current.strip()) if one]


def _named(name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ArgumentError(f"{name}: the machine has no such", legal=tuple(known))
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
    """The index expression of a tree."""
    match tree:
        case ast.Constant(value=int()):
            return as_expr(tree.value)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Name(id=name):
            raise ArgumentError(f"{name}: no variable here", got=text, legal=tuple(sorted(known)) or "none")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_expression(operand, known, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_expression(left, known, text), _expression(right, known, text))
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            return less(_expression(left, known, text), _expression(right, known, text))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_expression(left, known, text), _expression(right, known, text))
    raise ArgumentError("no index or size", got=text, legal="integers and variables with + - * // %, minimum, equal, <")


def _value(tree: ast.expr, reader: _Reader) -> Any:
    """An argument of a partition: a size, a text, a processor, a tuple, or a partition of one's own."""
    processors = {one.name: one for one in reader.machine.processors}
    match tree:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in processors:
            return processors[name]
        case ast.Tuple(elts=parts):
            return tuple(_value(one, reader) for one in parts)
        case ast.Name() | ast.BinOp():
            return _expression(tree, {one.name: one for one in reader.scope.variables}, ast.unparse(tree))
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=named) if name in reader.classes:
            options = {str(one.arg): _value(one.value, reader) for one in named}
            try:
                return reader.classes[name](*(_value(one, reader) for one in parts), **options)
            except TypeError as error:  # other arguments than it has
                raise ArgumentError(f"{name}: {error}", got=ast.unparse(tree)) from None
    raise ArgumentError(
        "a partition's argument", got=ast.unparse(tree), legal=("a size", "a text", "a processor", *reader.classes),
        hint="parse(..., partitions=[...]) with one's own",
    )  # fmt: skip
