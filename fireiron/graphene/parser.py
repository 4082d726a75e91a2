"""Parse kernels in Graphene's notation; errors report line and column."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.errors import LayoutError
from fireiron.executable import INSTRUCTIONS
from fireiron.graphene.accumulation import EnclosingLoop, Nest, Results
from fireiron.graphene.generic import GENERIC, generic_spec
from fireiron.graphene.groups import derive_group, group_of, named_indices, plain_name, require_same_group, sizes_in
from fireiron.graphene.lines import MOST_NESTED, Line, lines_of, read_options, split_at, split_options
from fireiron.graphene.literals import read_literal
from fireiron.graphene.warp_moves import move_of_lanes
from fireiron.graphene.written import FORMER_FIELDS, Conditional, IfAnyNonzero, Inner, Item, Leaf, Loop, Outermost, Written, require_changes
from fireiron.ir import (
    BLOCK_SCOPE,
    BlockCluster,
    Comment,
    Commit,
    For,
    Let,
    SemaphoreAction,
    SemaphoreBarrier,
    StepMarker,
    SyncPoint,
    asks,
    effect,
    mechanisms,
)
from fireiron.ir.ask import Ask, Asks
from fireiron.ir.effect import Effect
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.joint_tiles import Combination, JointTiles, StreamedTiles
from fireiron.ir.effects.residency import Residency
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language import former
from fireiron.language.execution import Execution, count_units, parse_execution
from fireiron.language.statement import read_definition, read_statement
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Executable
from fireiron.lower.walk import OPERANDS, RESERVED
from fireiron.spec import Kind, Spec, Starter
from fireiron.specs.matmul import MatMul
from fireiron.values.cuda_names import FUNCTIONS, is_taken
from fireiron.values.expr import FALSE, Expr, Var, as_expr, constant, is_cuda_name, sym
from fireiron.values.layout import Layout, coalesce, make_layout, product
from fireiron.values.machine import RF, Kernel, Level, as_architecture
from fireiron.values.notation import dtype_text, parse_group, parse_view, pieces, read_expression, strided, view_text
from fireiron.values.notation.shapes import parts_of, read_shapes, shape_text
from fireiron.values.tensor import Dim, Mode, Storage, Tensor, Tiled, View, whole_view
from fireiron.values.units import BLOCK, THREAD

_FOR: Final = re.compile(r"For\s*\(\s*(\w+)\s*=\s*(\d+)\s*;\s*(\w+)\s*<\s*(.+?)\s*;\s*(\w+)\s*\+=\s*(\d+)\s*\)", re.IGNORECASE | re.DOTALL)
_IF: Final = re.compile(r"If\s*\((.*)\)", re.IGNORECASE | re.DOTALL)
_SKIP: Final = re.compile(r"Skip\s+unless\s+%(\w+)", re.IGNORECASE)
_LET: Final = re.compile(r"(?:Let\s+|(?=[@(]))(.*?)\s*=(?!=)\s*(.*)", re.IGNORECASE | re.DOTALL)
_INDICES: Final = re.compile(r"(#\w+)\s*\.\s*indices\(\s*\)")
_UNIT_INDICES: Final = re.compile(r"[@(][^=]*=\s*#\w+\s*\.\s*indices\(\s*\)", re.DOTALL)
_ACCUMULATE: Final = re.compile(r"\{[^{}]*\baccumulate\s*=[^{}]*\}\s*$")
_WORD: Final = re.compile(r"(\w+)\s*(.*)", re.DOTALL)
_DERIVED: Final = re.compile(r"([%#]\w+)\s*(?::\s*([^=<]*?))?\s*=\s*([%#]\w+)\s*(.*)", re.DOTALL)
_DEFINED: Final = re.compile(r"[%#]\w+\s*:(?!.*(?:<-|←)).*", re.DOTALL)
_SPEC: Final = re.compile(r"(.*?)\s*(?:<-|←)\s*Spec\s*<<<(.*?)>>>\s*\((.*)\)\s*", re.DOTALL)
_MOVE: Final = re.compile(r"%(\w+)(\[[^\]]*\])?\s*(?:<-|←)\s*Move\s*<<<(.*?)>>>\s*\((.*)\)\s*", re.DOTALL)
_OPERAND: Final = re.compile(r"(?:^|[(,])\s*(%\w+)\s*(?=[,)\[]|<-|←)")
_SEMAPHORE: Final = re.compile(r"Semaphore\s+(\w+)\s+(\w+)\s+\[(.*)\]\s+(.*)", re.DOTALL)
_STEP: Final = re.compile(r"Step\s+(\w+)", re.IGNORECASE)
_ITEMS: Final = (
    "%out <- Kind<<<#blocks, #threads>>>(%in) | For (k = 0; k < 8; k += 1) { | If (condition) { | Let name = expression | Barrier | // text"
)


def parse_kernel(text: str, architecture: Any = None, instructions: tuple[Executable, ...] = INSTRUCTIONS) -> Program:
    """Parse a kernel and return its program for a target (None: the target in the text, or else the default).

    As with a strategy, the program is lowered, checked and printed on demand: `.cuda`, `.ir`, `.strategy.compile(...)`.

    >>> program = parse_kernel('''
    ... %x:[4096].fp32
    ... %y:[4096].fp32
    ... %y <- Move<<<#1:[16].block, #2:[256].thread>>>(%x) {
    ...   Let i = block
    ...   Let t = thread
    ...   %xs = %x.tile(256)
    ...   %ys = %y.tile(256)
    ...   %xb = %xs[i]
    ...   %yb = %ys[i]
    ...   %xt = %xb[t]
    ...   %yt = %yb[t]
    ...   %yt <- Move<<<[1].thread>>>(%xt)
    ... }
    ... ''')
    >>> program.ir.threads
    256

    Raises: a `LayoutError` with line and column if the text is not a kernel; the errors of a strategy if the kernel is not legal.
    """
    return Program.of(parse_strategy(text, instructions), architecture, instructions)


def parse_strategy(text: str, instructions: tuple[Executable, ...] = INSTRUCTIONS) -> Strategy:
    """Parse a kernel and return a strategy, bound to its spec, with the text as its only decomposition; see `parse_kernel`."""
    return _Reader(text, instructions).kernel()


@attrs.define
class _Scope:
    """The names that are visible in a body: values, texts of tensors and groups, and tensors of tiles."""

    values: dict[str, Any]
    texts: dict[str, str]
    tiles: dict[str, Tiled]
    nest: Nest = attrs.field(factory=Nest)
    depth: int = 0
    block_threads: int | None = None

    @property
    def loop_variant(self) -> frozenset[Var]:
        """Return the loop indices, and the values that depend on them."""
        return frozenset((*(loop.var for loop in self.nest.loops), *self.nest.values))

    def inner(self, line: Line) -> _Scope:
        if self.depth >= MOST_NESTED:
            line.refuse("bodies are nested too deeply", legal=f"at most {MOST_NESTED} levels")
        return _Scope(dict(self.values), dict(self.texts), dict(self.tiles), self.nest, self.depth + 1, self.block_threads)


class _Reader:
    """Reads the lines of a text in one pass."""

    def __init__(self, text: str, instructions: tuple[Executable, ...]) -> None:
        self.lines = lines_of(text)
        self.position = 0
        self.instructions: dict[str, Executable] = {instruction.name: instruction for instruction in reversed(instructions)}
        self.grid: Expr | None = None
        self.threads: int | None = None
        self.outermost_fields: dict[str, Any] = {"facts": [], "title": [], "effects": effect.NONE, "chosen_storage": [], "lets": []}
        self.names: dict[str, None] = {}
        self.cuda_names: dict[str, str] = {}  # the CUDA name of each tensor's name in the text
        self.text_names: dict[str, str] = {}  # the name in the text of each tensor that `_c_name` renamed
        self.results = Results()
        self.private: set[str] = set()
        self.words = frozenset(re.findall(r"\w+", text))

    # -------------------------------------------------------------------------------------- the whole kernel

    def kernel(self) -> Strategy:
        """Read the kernel, and refuse a line after it."""
        scope = _Scope({}, {}, {})
        while True:
            line = self._next("the kernel has no spec", legal=_ITEMS)
            if not self._header(line, scope):
                break
        spec = self._outermost(line, scope)
        items = self._body(scope, line, root=True)
        if self.position < len(self.lines):
            self.lines[self.position].refuse("a line follows the outermost spec, which ends the kernel")
        assert self.grid is not None and self.threads is not None
        with line.here():
            self._cluster(scope)
            outermost_fields: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in self.outermost_fields.items()
            }
            names = tuple(name for name in self.names if name not in spec.operands)
            outermost = Outermost(self.threads, self.grid, names=names, **outermost_fields)
            return Strategy((Written(items, outermost),), spec)

    def _next(self, missing: str, legal: object = None) -> Line:
        if self.position >= len(self.lines):
            last = self.lines[-1].number + 1 if self.lines else 1
            Line("", last, 1).refuse(missing, legal=legal)
        self.position += 1
        return self.lines[self.position - 1]

    def _header(self, line: Line, scope: _Scope) -> bool:
        """Read a line before the outermost spec; return false for the spec itself."""
        if line.text.startswith("//"):
            return True
        if _DEFINED.fullmatch(line.text) and not line.opens:
            self._define(line, scope)
            return True
        match = _WORD.match(line.text)
        reader = None if match is None else _HEADERS.get(match[1].lower())
        if match is None or reader is None or line.opens:
            return False
        with line.here(match.start(2)):
            reader(self, match[2].strip(), scope)
        return True

    def _define(self, line: Line, scope: _Scope) -> None:
        with line.here():
            name, text = read_definition(line.text)
            if name.startswith("%"):
                parse_view(text, scope.values)
            else:
                parse_group(text)
            scope.texts[name] = text

    def _outermost(self, line: Line, scope: _Scope) -> Spec:
        if not line.opens:
            line.refuse("a kernel is a spec with a body in braces", legal="%out <- Kind<<<#blocks, #threads>>>(%in) {")
        with line.here():
            spec, execution = self._statement(line.text, scope)
            self._units(spec, execution, line)
            if not spec.level.is_launch:
                spec = spec.at_level(Kernel)
        assert self.threads is not None and self.grid is not None
        count = constant(self.grid)
        blocks = None if count is None else execution.blocks or (Layout(count),)
        self.outermost_fields["execution"] = Execution(blocks, execution.threads or (Layout(self.threads),))
        scope.block_threads = self.threads
        scope.values[THREAD.name] = Var(THREAD.name, 0, self.threads - 1)
        scope.values[BLOCK.name] = BLOCK if count is None else Var(BLOCK.name, 0, max(count - 1, 0))
        with line.here():
            return self._parameters(spec, scope)

    def _parameters(self, spec: Spec, scope: _Scope) -> Spec:
        """Return the spec with each tensor renamed to its operand, which names the kernel parameter; the text still uses its own names."""
        views = {}
        for operand, view in spec.operands.items():
            if view != whole_view(view.tensor):
                raise LayoutError(f"operand {operand} of a kernel is a part of a tensor", got=view_text(view), legal="a whole tensor")
            renamed = attrs.evolve(view, tensor=attrs.evolve(view.tensor, name=operand))
            name = self.text_names.get(view.tensor.name, view.tensor.name)
            if name:
                scope.texts[f"%{name}"] = view_text(renamed)
                if name in self.cuda_names:
                    raise LayoutError(f"the outermost spec names %{name} twice", legal="a different tensor for each operand and result")
                self.cuda_names[name] = operand
            views[operand] = renamed
            self.names[operand] = None
            self.results.define(operand, Nest())
        renamed_spec = spec.with_operands(**views)
        for output in renamed_spec.outputs:
            if renamed_spec.accumulate != FALSE:
                self.results.write(renamed_spec.operands[output], Nest())
        return renamed_spec

    def _c_name(self, view: View) -> View:
        """Return the view with a legal CUDA name: `%1` becomes `t1`, or `t1_` if the text contains the word `t1`."""
        number = view.tensor.name
        if not number or not number[0].isdigit():
            return view
        name = f"t{number}"
        while name in self.words:
            name += "_"
        self.text_names[name] = number
        return attrs.evolve(view, tensor=attrs.evolve(view.tensor, name=name))

    def _units(self, spec: Spec, execution: Execution, line: Line) -> None:
        """Take the numbers of blocks and threads from the outermost spec, unless a header line specifies them."""
        if self.grid is None:
            blocks = 1 if not spec.level.is_launch else None if execution.blocks is None else count_units(execution.blocks)
            if blocks is None:
                line.refuse("the number of blocks is missing", legal="<<<#1:[8,8].block, #2:[256].thread>>>, or a line Grid 64 before")
            self.grid = as_expr(blocks)
        if self.threads is None:
            self.threads = spec.level.threads if execution.threads is None else count_units(execution.threads)
            if self.threads is None:
                line.refuse("the number of threads is missing", legal="<<<#1:[8,8].block, #2:[256].thread>>>, or a line Threads 256 before")

    # -------------------------------------------------------------------------------------- headers

    def _read_kernel(self, text: str, scope: _Scope) -> None:
        if not is_cuda_name(text) or text in RESERVED:
            raise LayoutError(f"{text!r} is not a name of a kernel", legal="an identifier that has no meaning in CUDA C++")
        self.outermost_fields["name"] = text

    def _read_target(self, text: str, scope: _Scope) -> None:
        self.outermost_fields["target"] = str(as_architecture(text))

    def _read_size(self, text: str, scope: _Scope) -> None:
        name, options = split_options(text)
        numbers = {key: _number(value, key) for key, value in read_options(options)}
        if set(numbers) - {"multiple_of", "low", "high"}:
            raise LayoutError(f"a size has no option {options}", legal="multiple_of=8, low=1, high=1000")
        scope.values[name] = sym(name, **numbers)

    def _read_kind(self, text: str, scope: _Scope) -> None:
        scope.values.update([_named(text, (Kind, Starter), "a kind of spec", scope)])

    def _read_level(self, text: str, scope: _Scope) -> None:
        name, level = _named(text, (Level,), "a level", scope)
        scope.values[name] = scope.values[f"#{level.label}"] = level

    def _read_instruction(self, text: str, scope: _Scope) -> None:
        self.instructions.update([_named(text, (Executable,), "an instruction", scope)])

    def _read_grid(self, text: str, scope: _Scope) -> None:
        self.grid = read_expression(text, scope.values)

    def _read_threads(self, text: str, scope: _Scope) -> None:
        self.threads = _number(text, "Threads")
        if not 1 <= self.threads <= 1024:
            raise LayoutError(f"a block cannot have {self.threads} threads", legal="1 ... 1024")

    def _read_fact(self, text: str, scope: _Scope) -> None:
        reason, condition = _value(text, tuple, "a text and a condition, in parentheses", scope)
        self.outermost_fields["facts"].append((reason, condition))

    def _read_title(self, text: str, scope: _Scope) -> None:
        self.outermost_fields["title"].append(_value(text, str, "a text in quotes", scope))

    def _read_unchecked(self, text: str, scope: _Scope) -> None:
        self._add_effect(Unchecked((_value(text, str, "a text in quotes", scope),)))

    def _read_zeroed(self, text: str, scope: _Scope) -> None:
        self._add_effect(Zeroed(tuple(one.strip() for one in text.split(","))))

    def _read_filled(self, text: str, scope: _Scope) -> None:
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?(?:inf|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?))\s*", text)
        if match is None:
            raise LayoutError(f"{text!r} is not a name and a number", legal="Filled top = -inf")
        number = int(match[2]) if match[2].lstrip("-").isdecimal() else float(match[2])
        self._add_effect(Zeroed((match[1],), ((match[1], number),)))

    def _read_joint(self, text: str, scope: _Scope) -> None:
        known = {combination.value: combination for combination in Combination}
        if text.strip() not in known:
            raise LayoutError(f"{text!r} is not a way to combine results of blocks", legal=list(known))
        self._add_effect(JointTiles(known[text.strip()]))

    def _read_segments(self, text: str, scope: _Scope) -> None:
        fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
        neutral = attrs.asdict(StreamedTiles())
        if fields.keys() != neutral.keys() or any(not fields[name].isdigit() for name in ("tiles", "iterations")):
            raise LayoutError(f"{text!r} does not describe segments", legal=f"Segments {' '.join(f'{name}=...' for name in neutral)}")
        segment, tile, first, number = (fields[name] for name in ("segment", "tile", "first", "number"))
        places = fields["parts"], fields["slot"], fields["first_slot"], fields["last"]
        sizes = int(fields["tiles"]), int(fields["iterations"])
        self._add_effect(StreamedTiles(segment, tile, first, number, *places, *sizes))

    def _read_resident(self, text: str, scope: _Scope) -> None:
        self._add_effect(Residency(_number(text, "Resident")))

    def _read_within(self, text: str, scope: _Scope) -> None:
        self._add_effect(SharedBound(_number(text, "Within")))

    def _read_cluster(self, text: str, scope: _Scope) -> None:
        matches = [re.fullmatch(r"\s*([0-9]{1,2})\s+(\w+)\s*", one) for one in text.split(",")]
        if None in matches:
            raise LayoutError(f"{text!r} is not a cluster", legal="Cluster 2 cluster_m, 2 cluster_n")
        self.outermost_fields["cluster"] = tuple((int(one[1]), one[2]) for one in matches if one is not None)

    def _cluster(self, scope: _Scope) -> None:
        """Set the cluster of the kernel, after all named values are read."""
        sizes_and_names = self.outermost_fields.pop("cluster", None)
        values = {let.var.name: let.var for let in self.outermost_fields["lets"]}
        unknown = [name for _, name in sizes_and_names or () if name not in values]
        if unknown:
            raise LayoutError(f"Cluster: {unknown[0]} is not a value of the whole kernel", legal=[*values] or "Let cluster_m = block % 2")
        if sizes_and_names:
            self.outermost_fields["cluster"] = BlockCluster(
                tuple(size for size, _ in sizes_and_names), tuple(values[name] for _, name in sizes_and_names)
            )

    def _read_chained(self, text: str, scope: _Scope) -> None:
        self._add_effect(DependentLaunch(True, tuple(one.strip() for one in text.split(",") if one.strip())))

    def _add_effect(self, added: Effect) -> None:
        self.outermost_fields["effects"] = self.outermost_fields["effects"].adding(added)

    # -------------------------------------------------------------------------------------- bodies

    def _body(self, scope: _Scope, opened: Line, root: bool = False) -> tuple[Item, ...]:
        """Read the items of the body that a line opened, up to its closing brace."""
        items: list[Item] = []
        while True:
            if self.position >= len(self.lines):
                opened.refuse("the body that starts here is not closed", legal="}")
            line = self._next("")
            if line.text == "}" and not line.opens:
                return tuple(items)
            items += self._item(line, scope, root)

    def _item(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text = line.text
        word = re.match(r"\w*", text)
        reader = _WORDS.get(word[0].lower()) if word else None
        if text.startswith("//"):
            if not text.isprintable():
                line.refuse("a comment is one line of printable characters")
            yield Comment(text[2:].strip())
        elif _UNIT_INDICES.fullmatch(text) and not line.opens:
            yield from self._read_let(line, scope, root)
        elif reader is not None:
            yield from reader(self, line, scope, root)
        elif re.search(r"<-|←", text):
            yield self._spec(line, scope)
        elif (derived := _DERIVED.fullmatch(text)) is not None and not line.opens:
            with line.here(derived.start(4)):
                self._derive(derived, scope)
        elif text.startswith("#") and _DEFINED.fullmatch(text) and not line.opens:
            self._define(line, scope)
        else:
            line.refuse("a body cannot contain this line", legal=_ITEMS)

    def _read_for(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text, options = split_options(line.text)
        match = _FOR.fullmatch(text)
        if match is None or not line.opens or len({match[1], match[3], match[5]}) > 1:
            line.refuse("this is not a loop", legal="For (k = 0; k < 64; k += 1) {unroll, stages=3} {")
        with line.here(match.start(4)):
            extent = self._expression(match[4], scope)
        with line.here(len(text)):
            var, fields = self._loop_options(match[1], extent, options, scope)
        first, step = int(match[2]), int(match[6])
        if step < 1:
            line.refuse("the step of a loop is not positive", offset=match.start(6), legal="at least 1")
        if extent.high <= first:
            line.refuse("the loop has no iterations", offset=match.start(2), legal=f"a start below {extent}")
        inner = scope.inner(line)
        self._bind(var, inner, line)
        inner.nest = attrs.evolve(inner.nest, loops=(*inner.nest.loops, EnclosingLoop(var, first, step, extent)))
        yield Loop(For(var, extent, (), first=first, step=step, **fields), self._body(inner, line))

    def _loop_options(self, name: str, extent: Expr, options: str, scope: _Scope) -> tuple[Var, dict[str, Any]]:
        low, high, multiple = 0, max(extent.high - 1, 0), 1
        asks_by_option = _asks_by_option()
        options_by_kind: dict[type[Ask], dict[str, str]] = {}
        fields: dict[str, Any] = {}
        for key, value in ((former.LOOP_OPTIONS.get(key, key), value) for key, value in read_options(options)):
            if key == "unroll" and not value:
                fields[key] = True
            elif key == "period":
                fields[key] = _number(value, key)
            elif key == "range":
                low, high, multiple = _range(value)
            elif key in asks_by_option and ("=" in asks_by_option[key][1]) == bool(value):
                options_by_kind.setdefault(asks_by_option[key][0], {})[key] = value
            else:
                legal = ["unroll", *(example for _, example in asks_by_option.values()), "range=0..7"]
                raise LayoutError(f"a loop has no option {key}", legal=legal)
        loop_asks = (kind.read(chosen, lambda text: read_expression(text, scope.values)) for kind, chosen in options_by_kind.items())
        return Var(name, low, high, multiple), {**fields, "asks": Asks(tuple(loop_asks))}

    def _read_if(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        match = _IF.fullmatch(line.text)
        if match is None or not line.opens:
            line.refuse("this is not a condition", legal="If (m < M) {")
        with line.here(match.start(1)):
            condition = self._expression(match[1], scope)
            if condition.low < 0 or condition.high > 1:
                raise LayoutError(
                    f"{condition} is not a condition: its value can be other than 0 and 1", legal="m < M, all_of((m < M, n < N))"
                )
        items = self._body(self._guarded(scope, line, condition.variables()), line)
        for item in items:
            if isinstance(item, (SyncPoint, Commit, StepMarker)):
                line.refuse("a barrier cannot be under a condition, because all threads must reach it", hint="close the If before it")
        yield Conditional(condition, items)

    def _read_skip(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        match = _SKIP.fullmatch(line.text)
        if match is None or not line.opens:
            line.refuse("this is not a Skip", legal="Skip unless %needed {")
        yield IfAnyNonzero(self.cuda_names.get(match[1], match[1]), self._body(self._guarded(scope, line, scope.loop_variant), line))

    def _guarded(self, scope: _Scope, line: Line, variables: Iterable[Var]) -> _Scope:
        """Return the scope of a body that only some threads, or some iterations of loops, execute."""
        inner = scope.inner(line)
        inner.nest = attrs.evolve(inner.nest, conditions=(*inner.nest.conditions, (line.number, frozenset(variables))))
        return inner

    def _expression(self, text: str, scope: _Scope) -> Expr:
        """Parse an index expression; names may have the paper's mark, `@bid_m`."""
        return read_expression(plain_name(text), scope.values)

    def _read_let(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text, options = split_options(line.text)
        match = _LET.fullmatch(text)
        if match is None or line.opens:
            line.refuse("this is not a definition of a value", legal="Let m = thread % 32, Let m, n = #4.indices()")
        with line.here(match.start(2)):
            pairs = self._named_values(match[1], match[2], scope)
            ranges = [(max(value.low, 0), value.high, 1) for _, value in pairs]
            for key, value_range in read_options(options):
                if key != "range" or len(pairs) > 1:
                    raise LayoutError(f"a value has no option {key}", legal="range=0..7")
                ranges = [_range(value_range)]
            lets = [Let(Var(name, *one), value) for (name, value), one in zip(pairs, ranges, strict=True)]
        for let in lets:
            # A value that depends only on blocks and threads is defined for the whole kernel. Other values are defined in their bodies.
            free = scope.loop_variant.isdisjoint(let.value.variables())
            self._bind(let.var, scope, line)
            if not free:
                scope.nest = attrs.evolve(scope.nest, values={**scope.nest.values, let.var: let.value})
            if root and free:
                self.outermost_fields["lets"].append(let)
            else:
                yield let

    def _named_values(self, names: str, text: str, scope: _Scope) -> list[tuple[str, Expr]]:
        """Return each name with its value: the value of an expression, or a coordinate of a unit in its group."""
        match = _INDICES.fullmatch(text.strip())
        if match is None:
            value = self._expression(text, scope)
            if len(listed_names := names.split(",")) > 1:
                raise LayoutError(f"the text has {len(listed_names)} names for one value", legal=str(value))
            return [(plain_name(names), value)]
        group = group_of(scope.texts, match[1])
        return named_indices(names, group, scope.values[parse_group(group)[1]])

    def _read_barrier(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        words = line.text.rstrip("() ").split()[1:]
        required: bool | None = True
        if words[:1] in (["no"], ["maybe"]):
            required = False if words.pop(0) == "no" else None
        if len(words) > 1 or line.opens:
            line.refuse("this is not a barrier", legal="Barrier, Barrier k, Barrier no a_sh, Barrier maybe k")
        subject = words[0].lstrip("%") if words else ""
        yield SyncPoint(required, self.cuda_names.get(subject, subject))

    def _read_commit(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        words = line.text.rstrip("() ").split()[1:] or [Commit().mechanism.name]
        known = {one.name: one for one in (*mechanisms.kinds(), *(one.mechanism for one in self.instructions.values())) if one.in_groups}
        name = former.MECHANISMS.get(words[0], words[0])
        if len(words) > 1 or name not in known or line.opens:
            line.refuse("this is not a commit", legal=[f"Commit {one}" for one in known])
        yield Commit(known[name])

    def _read_semaphore(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        match = _SEMAPHORE.fullmatch(line.text)
        known = {action.value: action for action in SemaphoreAction}
        if match is None or match[1] not in known or line.opens:
            line.refuse("this is not a semaphore", legal="Semaphore last C [index=block // 4; count=16; blocks=4; position=0] 'reason'")
        parts = (part.split("=", 1) for part in match[3].split("; "))
        texts = dict(parts)
        last = Var(texts.pop("last"), 0, 1) if "last" in texts else None
        values = {name: self._expression(text, scope) for name, text in texts.items()}
        if values.keys() != {"index", "count", "blocks", "position"}:
            line.refuse("a semaphore has four fields", legal="[index=0; count=1; blocks=4; position=0]")
        if (last is not None) != (match[1] == SemaphoreAction.FIND_LAST.value):
            line.refuse("only find_last defines a value", legal="Semaphore find_last C [index=0; ...; last=is_last] 'reason'")
        if last is not None:
            self._bind(last, scope, line)
        reason = _value(match[4], str, "a text in quotes", scope)
        index, count, blocks, position = (values[name] for name in ("index", "count", "blocks", "position"))
        yield SemaphoreBarrier(
            BLOCK_SCOPE,
            reason,
            action=known[match[1]],
            group=match[2],
            index=index,
            count=count,
            blocks=blocks,
            position=position,
            last=last,
        )

    def _read_step(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        match = _STEP.fullmatch(line.text)
        if match is None or line.opens:
            line.refuse("this is not a step", legal="Step pv")
        yield StepMarker(match[1])

    def _bind(self, var: Var, scope: _Scope, line: Line) -> None:
        if not is_cuda_name(var.name) or var.name in RESERVED or var.name.startswith("__"):
            line.refuse(f"{var.name!r} is not a name of a value", legal="an identifier that has no meaning in CUDA C++")
        if var.name in self.names:
            line.refuse(f"{var.name} is defined twice", hint="use another name: names of loops and values are unique in the kernel")
        self.names[var.name] = None
        scope.values[var.name] = var

    # -------------------------------------------------------------------------------------- tensors

    def _derive(self, match: re.Match[str], scope: _Scope) -> None:
        """Define a tensor of tiles, one of its tiles, or a derived group."""
        name, declared, source, rest = match[1], match[2], match[3], match[4].strip()
        if source not in scope.texts and source not in scope.tiles:
            raise LayoutError(f"{source} is not defined here", legal=[*scope.texts, *scope.tiles])
        if name.startswith("#") or source.startswith("#"):
            self._derive_group(name, declared, source, rest, scope)
            return
        if tile := re.fullmatch(r"\.\s*tile\(\s*(.*?)\s*\)", rest, re.DOTALL):
            sizes = tuple(_tile(size, scope) for size in sizes_in(tile[1]))
            if source in scope.tiles:
                raise LayoutError(f"{source} is already tiled", hint=f"select a tile, and tile that: %9 = {source}[0, 0]")
            tiled = parse_view(scope.texts[source], scope.values).tile(*sizes)
            shapes = [[part.outer for part in tiled.cuts], [part.inner for part in tiled.cuts]]
            _require_declared(declared, shapes, tiled.view, name, scope)
            scope.texts.pop(name, None)
            scope.tiles[name] = tiled
        elif index_match := re.fullmatch(r"\[(.*)\]", rest, re.DOTALL):
            view = self._part(source, pieces(index_match[1], ","), scope)
            _require_declared(declared, [[dim.modes for dim in view.dims]], view, name, scope)
            scope.tiles.pop(name, None)
            scope.texts[name] = view_text(view)
        else:
            raise LayoutError(f"{rest!r} does not define a tensor", legal="%6 = %1.tile(128, _), %9 = %6[m, 0]")

    def _derive_group(self, name: str, declared: str | None, source: str, rest: str, scope: _Scope) -> None:
        if not (name.startswith("#") and source.startswith("#")):
            raise LayoutError(
                f"cannot define {name} by {source}", legal="% for tensors and their tiles, # for groups of threads and blocks"
            )
        derived = derive_group(name, scope.texts[source], rest, lambda size: _tile(size, scope))
        if declared:
            require_same_group(declared, name, derived)
        scope.texts[name] = derived

    def _part(self, source: str, index: list[str], scope: _Scope) -> View:
        """Select a tile by its indices, or an element of a tensor without tiles by its coordinates."""
        if source in scope.tiles:
            tiled = scope.tiles[source]
        else:
            view = parse_view(scope.texts[source], scope.values)
            tiled = view.tile(*[1 if one.strip() != "_" else None for one in index])
        numbers = tuple(as_expr(0) if one.strip() == "_" else self._expression(one.strip().lstrip("#"), scope) for one in index)
        by_unit, by_iteration = (tiled.at(numbers, unit) for unit in (True, False))
        units = [not scope.loop_variant.issuperset(number.variables()) for number in numbers]
        return by_iteration.with_dims({dim: by_unit.dims[dim] for dim, unit in enumerate(units) if unit})

    # -------------------------------------------------------------------------------------- specs

    def _spec(self, line: Line, scope: _Scope) -> Item:
        where = f"line {line.number} of the text"
        with line.here():
            warp_move = self._warp_move(line, scope, where)
        if isinstance(warp_move, Leaf):
            return warp_move
        if warp_move is not None:
            return Inner(warp_move, self._body(scope.inner(line), line), where)
        if line.opens:
            with line.here():
                spec, _ = self._statement(line.text, scope)
                self._require_known(spec)
            return Inner(spec, self._body(scope.inner(line), line), where)
        text, instruction = split_at(line.text, "by")
        with line.here():
            storage = None
            if instruction is None and re.search(r"(?:<-|←)\s*Allocate\b", text):
                text, storage = split_at(text, "as")
            spec, _ = self._statement(text, scope)
            if spec.allocates:
                spec = self._allocate(spec, storage, scope)
            elif instruction is None and spec.kind == MatMul.kind and not _ACCUMULATE.search(text):
                spec = attrs.evolve(spec, accumulate=self.results.accumulates(spec.operands[spec.outputs[0]], scope.nest))
            self._require_known(spec)
            for name in () if spec.allocates else spec.outputs:
                self.results.write(spec.operands[name], scope.nest)
        if instruction is None:
            return Leaf(spec, where=where)
        with line.here(line.text.rindex(instruction)):
            name, changes = split_options(instruction)
            if name not in self.instructions:
                raise LayoutError(f"no instruction is called {name}", legal=[*self.instructions])
            changes_read = tuple(
                (FORMER_FIELDS.get(key, key), read_literal(value or "True", scope.values)) for key, value in read_options(changes)
            )
            require_changes(changes_read, spec)
        return Leaf(spec, self.instructions[name], changes_read, where)

    def _warp_move(self, line: Line, scope: _Scope, where: str) -> Leaf | Spec | None:
        """Return a Move in which a group fills private registers of its threads, as the paper writes `ldmatrix`.

        With a body, the result is a generic spec, because the body determines which elements the group holds. For any other spec, the
        result is None.
        """
        match = _MOVE.fullmatch(line.text)
        name = None if match is None else self.cuda_names.get(match[1], match[1])
        result = None if match is None else scope.tiles.get(f"%{match[1]}")
        if match is None or (result is None and f"%{match[1]}" not in scope.texts):
            return None
        view = result.view if result is not None else self._view(f"%{match[1]}{match[2] or ''}", scope)
        if view.tensor.name not in self.private or name is None:
            return None
        groups = [scope.texts.get(one.strip(), one) for one in pieces(match[3], ",")]
        level, _ = parse_execution(groups, scope.values, scope.block_threads)
        if level.threads == 1:
            return None
        source = self._view(match[4], scope)
        for operand in (source, view):
            self._require_defined(operand)
        self.results.write(view, scope.nest)
        if line.opens:
            return generic_spec(level, [source], [view])
        return move_of_lanes(level, view if result is None or match[2] else result, source, where)

    def _statement(self, text: str, scope: _Scope) -> tuple[Spec, Execution]:
        match = _SPEC.fullmatch(text)
        texts = scope.texts
        for name in _OPERAND.findall(text):
            self._require_no_tiles(name, scope)
        if match is None:
            return read_statement(text, texts, scope.values, scope.block_threads)
        views = [[self._view(one, scope) for one in (pieces(part, ",") if part.strip() else [])] for part in (match[3], match[1])]
        if not views[1]:
            raise LayoutError(f"{GENERIC} has no result", legal="%out <- Spec<<<#blocks, #threads>>>(%in) {")
        level, execution = parse_execution(
            [texts.get(one.strip(), one) for one in pieces(match[2], ",")], scope.values, scope.block_threads
        )
        operands, results = ([self._c_name(view) for view in part] for part in views)
        for name in (view.tensor.name for view in (*operands, *results) if view.tensor.name):
            if not is_cuda_name(name) or is_taken(name) or name in RESERVED - FUNCTIONS - {*OPERANDS}:
                raise LayoutError(f"%{name} is not a name of a tensor", legal="an identifier that has no meaning in CUDA C++, or a number")
        return generic_spec(level, operands, results), execution

    def _view(self, text: str, scope: _Scope) -> View:
        name, bracket, index = text.strip().partition("[")
        self._require_no_tiles(name.strip(), scope)
        definition = scope.texts.get(name.strip())
        return parse_view(text if definition is None else f"{definition}{bracket}{index}", scope.values)

    def _require_known(self, spec: Spec) -> None:
        """Refuse tensors that are neither operands of the kernel nor results of an `Allocate` before the spec."""
        for view in spec.operands.values():
            self._require_defined(view)

    def _require_defined(self, view: View) -> None:
        name = view.tensor.name
        if name not in self.results.defined:
            legal = [f"%{self.text_names.get(one, one)}" for one in self.results.defined]
            raise LayoutError(
                f"%{self.text_names.get(name, name)} is not a tensor of the kernel", legal=legal, hint="define it by an Allocate"
            )

    def _require_no_tiles(self, name: str, scope: _Scope) -> None:
        if name in scope.tiles:
            raise LayoutError(f"{name} is a tensor of tiles", legal="one of its tiles, or the tensor that was tiled")

    def _allocate(self, spec: Spec, storage: str | None, scope: _Scope) -> Spec:
        """Define a new tensor, and its storage if the line specifies it."""
        ((operand, view),) = spec.operands.items()
        text_name, view = view.tensor.name, self._c_name(view)
        tensor: Tensor = view.tensor
        if not is_cuda_name(tensor.name) or tensor.name in RESERVED:
            raise LayoutError(
                f"%{tensor.name} is not a name of a new tensor", legal="an identifier that has no meaning in CUDA C++, as %a_sh"
            )
        if tensor.name in self.names or text_name in self.cuda_names:
            raise LayoutError(f"{text_name} is defined twice", hint="use another name: names of tensors are unique in the kernel")
        self.names[tensor.name] = None
        self.cuda_names[text_name] = tensor.name
        self.results.define(tensor.name, scope.nest)
        if spec.level.threads == 1 and tensor.memory == RF:
            self.private.add(tensor.name)
        scope.texts[f"%{text_name}"] = view_text(view)
        scope.tiles.pop(f"%{text_name}", None)
        if storage is not None:
            self.outermost_fields["chosen_storage"].append((tensor, _value(storage, Storage, "a storage", scope)))
        return spec.with_operands(**{operand: view})


@functools.cache
def _asks_by_option() -> Mapping[str, tuple[type[Ask], str]]:
    """Return the kind of `Ask` and an example for each option of a loop."""
    words = [(kind, word) for kind in asks.kinds() for example in kind.options for word in example.split()]
    return {word.partition("=")[0]: (kind, word) for kind, word in words}


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()):
        raise LayoutError(f"{what} must be a number", got=text, legal="0, 1, 2, ...")
    return int(text)


def _range(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"(-?[0-9]{1,19})\s*\.\.\s*(-?[0-9]{1,19})(?:\s*/\s*([0-9]{1,10}))?", text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise LayoutError(f"{text!r} is not a range", legal="0..7, and 0..56/8 for multiples of 8")
    return int(match[1]), int(match[2]), int(match[3] or 1)


def _value(text: str, kind: type[Any], what: str, scope: _Scope) -> Any:
    literal = read_literal(text, scope.values)
    if not isinstance(literal, kind):
        raise LayoutError(f"{text!r} is not {what}")
    return literal


def _named(text: str, kinds: tuple[type[Any], ...], what: str, scope: _Scope) -> tuple[str, Any]:
    name, equals, value = (side.strip() for side in text.partition("="))
    if not equals or not re.fullmatch(r"\S+", name):
        raise LayoutError(f"{text!r} does not define a name", legal="name = value")
    literal = read_literal(value, scope.values)
    if not isinstance(literal, kinds):
        raise LayoutError(f"{value!r} is not {what}")
    return name, literal


def _tile(text: str, scope: _Scope) -> int | Layout | None:
    """Parse a size of a tile: a number, a layout `2:2`, or `_` (None) for a dimension that is not tiled."""
    text = text.strip().strip("[]")
    if text == "_":
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    sizes, colon, strides = text.partition(":")
    if not colon:
        raise LayoutError(f"{text!r} is not a size of a tile", legal="8, 2:2, (2,2):(1,4), _")
    return Layout(read_literal(sizes, {}), read_literal(strides, {}))


def _require_declared(declared: str | None, shapes: Sequence[Sequence[tuple[Mode, ...]]], view: View, name: str, scope: _Scope) -> None:
    """Require that the declaration after a name is correct: sizes of all shapes, type, memory, and strides if given.

    `shapes` has the modes of each dimension, the outermost shape first.
    """
    if not declared or not declared.strip():
        return
    parts = parts_of(f"{name}:{declared}")
    if parts.rest or parts.swizzle:
        raise LayoutError(f"{declared.strip()!r} is not a shape", legal=f"[8,8].{dtype_text(view.dtype)}.{view.memory.name}")
    if parts.element != dtype_text(view.dtype) or (parts.memory or view.memory.name).replace(" ", "") != view.memory.name.replace(" ", ""):
        raise LayoutError(f"{name} has type {dtype_text(view.dtype)} and memory {view.memory.name}", got=declared.strip())
    sizes = [[Dim(modes).size for modes in dims] for dims in shapes]
    declared_sizes = [[product(dim.shape) for dim in shape] for shape in read_shapes(parts.shapes, scope.values)]
    if [_without_ones(dims) for dims in declared_sizes] != [_without_ones(dims) for dims in sizes]:
        raise LayoutError(f"{name} has the shape {'.'.join(f'[{_listed(dims)}]' for dims in sizes)}", got=declared.strip())
    if any(strides is not None for _, strides in parts.shapes):
        actual = [[strided(view, axis, modes) for axis, modes in enumerate(dims)] for dims in shapes]
        if [_sizes_and_strides(shape) for shape in read_shapes(parts.shapes, scope.values)] != [
            _sizes_and_strides(dims) for dims in actual
        ]:
            raise LayoutError(
                f"the declared strides of {name} are wrong",
                got=declared.strip(),
                legal=".".join(map(shape_text, (make_layout(*dims) for dims in actual))),
            )


def _without_ones(sizes: Iterable[Any]) -> list[Expr]:
    return [size for size in map(as_expr, sizes) if constant(size) != 1]


def _sizes_and_strides(dims: Iterable[Layout]) -> list[list[tuple[Any, Any]]]:
    """Return sizes and strides by dimension, without modes of size 1."""
    leaves = [[(as_expr(size), as_expr(stride)) for size, stride in coalesce(dim).modes if size != 1] for dim in dims]
    return [leaf for leaf in leaves if leaf]


def _listed(sizes: Iterable[Any]) -> str:
    return ",".join(map(str, sizes))


_HEADERS: Final[Mapping[str, Callable[[_Reader, str, _Scope], None]]] = {
    "kernel": _Reader._read_kernel,
    "target": _Reader._read_target,
    "size": _Reader._read_size,
    "kind": _Reader._read_kind,
    "level": _Reader._read_level,
    "instruction": _Reader._read_instruction,
    "grid": _Reader._read_grid,
    "threads": _Reader._read_threads,
    "fact": _Reader._read_fact,
    "title": _Reader._read_title,
    "unchecked": _Reader._read_unchecked,
    "zeroed": _Reader._read_zeroed,
    "filled": _Reader._read_filled,
    "joint": _Reader._read_joint,
    "segments": _Reader._read_segments,
    "resident": _Reader._read_resident,
    "within": _Reader._read_within,
    "chained": _Reader._read_chained,
    "cluster": _Reader._read_cluster,
}

_WORDS: Final[Mapping[str, Callable[[_Reader, Line, _Scope, bool], Iterator[Item]]]] = {
    "for": _Reader._read_for,
    "if": _Reader._read_if,
    "skip": _Reader._read_skip,
    "let": _Reader._read_let,
    "barrier": _Reader._read_barrier,
    "commit": _Reader._read_commit,
    "semaphore": _Reader._read_semaphore,
    "step": _Reader._read_step,
}
