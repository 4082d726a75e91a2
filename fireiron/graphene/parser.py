"""Texts to kernels: what each line says, with the place of what it does not say rightly."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.errors import LayoutError
from fireiron.executable import INSTRUCTIONS
from fireiron.graphene.generic import GENERIC, generic_spec
from fireiron.graphene.groups import group_of, made_group, named_indices, plain_name, require_same_group, sizes_in
from fireiron.graphene.joining import Around, Nest, Results
from fireiron.graphene.lanes import move_of_lanes
from fireiron.graphene.lines import MOST_NESTED, Line, lines_of, listed, options_behind, split_at
from fireiron.graphene.literals import read_literal
from fireiron.graphene.written import FORMER_FIELDS, Inner, Item, Leaf, Loop, Outermost, Under, Unless, Written, require_changes
from fireiron.ir import BlockCluster, Comment, Commit, For, Let, StepMarker, SyncPoint, asks, effect, mechanisms
from fireiron.ir.ask import Ask, Asks
from fireiron.ir.effect import Effect
from fireiron.ir.effects.chaining import Chaining
from fireiron.ir.effects.residency import Residency
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language import former
from fireiron.language.execution import Execution, parse_execution
from fireiron.language.statement import read_definition, read_statement
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Executable
from fireiron.lower.walk import OPERANDS, RESERVED
from fireiron.spec import Kind, Spec, Starter
from fireiron.specs.matmul import MatMul
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
_PLACE: Final = re.compile(r"[@(][^=]*=\s*#\w+\s*\.\s*indices\(\s*\)", re.DOTALL)
_ACCUMULATE: Final = re.compile(r"\{[^{}]*\baccumulate\s*=[^{}]*\}\s*$")
_WORD: Final = re.compile(r"(\w+)\s*(.*)", re.DOTALL)
_MADE: Final = re.compile(r"([%#]\w+)\s*(?::\s*([^=<]*?))?\s*=\s*([%#]\w+)\s*(.*)", re.DOTALL)
_DEFINED: Final = re.compile(r"[%#]\w+\s*:(?!.*(?:<-|←)).*", re.DOTALL)
_SPEC: Final = re.compile(r"(.*?)\s*(?:<-|←)\s*Spec\s*<<<(.*?)>>>\s*\((.*)\)\s*", re.DOTALL)
_MOVE: Final = re.compile(r"%(\w+)(\[[^\]]*\])?\s*(?:<-|←)\s*Move\s*<<<(.*?)>>>\s*\((.*)\)\s*", re.DOTALL)
_OPERAND: Final = re.compile(r"(?:^|[(,])\s*(%\w+)\s*(?=[,)\[]|<-|←)")
_STEP: Final = re.compile(r"Step\s+(\w+)", re.IGNORECASE)
_ITEMS: Final = (
    "%out <- Kind<<<#blocks, #threads>>>(%in) | For (k = 0; k < 8; k += 1) { | If (condition) { | Let name = expression | Barrier | // text"
)


def parse_kernel(text: str, architecture: Any = None, instructions: tuple[Executable, ...] = INSTRUCTIONS) -> Program:
    """The program of a kernel that a text writes out, for a target (None: the one that the text names, or else the default).

    It is lowered, checked and printed as that of a strategy is, on demand: `.cuda`, `.ir`, `.strategy.compile(...)`.

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

    Raises: a `LayoutError` with line and column where the text is no kernel; the errors of a strategy where the kernel is not legal.
    """
    return Program.of(parse_strategy(text, instructions), architecture, instructions)


def parse_strategy(text: str, instructions: tuple[Executable, ...] = INSTRUCTIONS) -> Strategy:
    """The strategy, bound to its spec, whose only step is the decomposition that a text writes out; see `parse_kernel`."""
    return _Reader(text, instructions).kernel()


@attrs.define
class _Scope:
    """What names stand for inside a body: values, texts of tensors and groups, tensors of tiles."""

    values: dict[str, Any]
    texts: dict[str, str]
    tiles: dict[str, Tiled]
    nest: Nest = attrs.field(factory=Nest)
    depth: int = 0
    own: int | None = None

    @property
    def turning(self) -> frozenset[Var]:
        """The indices of loops, and the values that they decide."""
        return frozenset((*(loop.var for loop in self.nest.loops), *self.nest.values))

    def inner(self, line: Line) -> _Scope:
        if self.depth >= MOST_NESTED:
            line.refuse("too many bodies within bodies", legal=f"at most {MOST_NESTED}")
        return _Scope(dict(self.values), dict(self.texts), dict(self.tiles), self.nest, self.depth + 1, self.own)


class _Reader:
    """Goes through the lines of a text, once."""

    def __init__(self, text: str, instructions: tuple[Executable, ...]) -> None:
        self.lines = lines_of(text)
        self.position = 0
        self.known: dict[str, Executable] = {one.name: one for one in reversed(instructions)}
        self.grid: Expr | None = None
        self.threads: int | None = None
        self.whole: dict[str, Any] = {"facts": [], "title": [], "effects": effect.NONE, "settled": [], "lets": []}
        self.names: dict[str, None] = {}
        self.called: dict[str, str] = {}
        self.original: dict[str, str] = {}
        self.results = Results()
        self.private: set[str] = set()
        self.words = frozenset(re.findall(r"\w+", text))

    # -------------------------------------------------------------------------------------- the whole kernel

    def kernel(self) -> Strategy:
        """The kernel; refused where anything follows it."""
        scope = _Scope({}, {}, {})
        while True:
            line = self._next("a kernel needs a spec", legal=_ITEMS)
            if not self._header(line, scope):
                break
        spec = self._outermost(line, scope)
        items = self._body(scope, line, root=True)
        if self.position < len(self.lines):
            self.lines[self.position].refuse("nothing follows the outermost spec")
        assert self.grid is not None and self.threads is not None
        with line.here():
            self._cluster(scope)
            said: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in self.whole.items()}
            names = tuple(name for name in self.names if name not in spec.operands)
            outermost = Outermost(self.threads, self.grid, names=names, **said)
            return Strategy((Written(items, outermost),), spec)

    def _next(self, missing: str, legal: object = None) -> Line:
        if self.position >= len(self.lines):
            last = self.lines[-1].number + 1 if self.lines else 1
            Line("", last, 1).refuse(missing, legal=legal)
        self.position += 1
        return self.lines[self.position - 1]

    def _header(self, line: Line, scope: _Scope) -> bool:
        """Take a line in front of the outermost spec; false for that spec itself."""
        if line.text.startswith("//"):
            return True
        if _DEFINED.fullmatch(line.text) and not line.opens:
            self._define(line, scope)
            return True
        found = _WORD.match(line.text)
        reader = None if found is None else _HEADERS.get(found[1].lower())
        if found is None or reader is None or line.opens:
            return False
        with line.here(found.start(2)):
            reader(self, found[2].strip(), scope)
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
        self.whole["execution"] = Execution(blocks, execution.threads or (Layout(self.threads),))
        scope.own = self.threads
        scope.values[THREAD.name] = Var(THREAD.name, 0, self.threads - 1)
        scope.values[BLOCK.name] = BLOCK if count is None else Var(BLOCK.name, 0, max(count - 1, 0))
        with line.here():
            return self._parameters(spec, scope)

    def _parameters(self, spec: Spec, scope: _Scope) -> Spec:
        """The spec with its tensors called as its operands are, as parameters of kernels are; the text goes on with its own names."""
        views = {}
        for operand, view in spec.operands.items():
            if view != whole_view(view.tensor):
                raise LayoutError(f"{operand} is a part of a tensor", got=view_text(view), legal="a kernel takes whole tensors")
            renamed = attrs.evolve(view, tensor=attrs.evolve(view.tensor, name=operand))
            name = self.original.get(view.tensor.name, view.tensor.name)
            if name:
                scope.texts[f"%{name}"] = view_text(renamed)
                if name in self.called:
                    raise LayoutError(
                        f"%{name} is named twice", legal="each operand and result of the outermost spec is a tensor of its own"
                    )
                self.called[name] = operand
            views[operand] = renamed
            self.names[operand] = None
            self.results.make(operand, Nest())
        made = spec.with_operands(**views)
        for output in made.outputs:
            if made.accumulate != FALSE:
                self.results.write(made.operands[output], Nest())
        return made

    def _c_name(self, view: View) -> View:
        """A view whose tensor has a name in CUDA: `%1` is called `t1` there, with as many `_` behind as no word of the text has."""
        number = view.tensor.name
        if not number or not number[0].isdigit():
            return view
        name = f"t{number}"
        while name in self.words:
            name += "_"
        self.original[name] = number
        return attrs.evolve(view, tensor=attrs.evolve(view.tensor, name=name))

    def _units(self, spec: Spec, execution: Execution, line: Line) -> None:
        """The numbers of blocks and threads: of the outermost spec, where no line in front says them."""
        if self.grid is None:
            blocks = 1 if not spec.level.is_launch else None if execution.blocks is None else _count(execution.blocks)
            if blocks is None:
                line.refuse("how many blocks are there?", legal="<<<#1:[8,8].block, #2:[256].thread>>>, or a line Grid 64 in front")
            self.grid = as_expr(blocks)
        if self.threads is None:
            self.threads = spec.level.threads if execution.threads is None else _count(execution.threads)
            if self.threads is None:
                line.refuse("how many threads has a block?", legal="<<<#1:[8,8].block, #2:[256].thread>>>, or a line Threads 256 in front")

    # -------------------------------------------------------------------------------------- headers

    def _read_kernel(self, text: str, scope: _Scope) -> None:
        if not is_cuda_name(text) or text in RESERVED:
            raise LayoutError(f"{text!r} is not a name of a kernel", legal="an identifier that means nothing else in CUDA C++")
        self.whole["name"] = text

    def _read_target(self, text: str, scope: _Scope) -> None:
        self.whole["target"] = str(as_architecture(text))

    def _read_size(self, text: str, scope: _Scope) -> None:
        name, options = options_behind(text)
        numbers = {key: _number(value, key) for key, value in listed(options)}
        if set(numbers) - {"multiple_of", "low", "high"}:
            raise LayoutError(f"what is {options} of a size?", legal="multiple_of=8, low=1, high=1000")
        scope.values[name] = sym(name, **numbers)

    def _read_kind(self, text: str, scope: _Scope) -> None:
        scope.values.update([_named(text, (Kind, Starter), "a kind of spec", scope)])

    def _read_level(self, text: str, scope: _Scope) -> None:
        name, level = _named(text, (Level,), "a level", scope)
        scope.values[name] = scope.values[f"#{level.label}"] = level

    def _read_instruction(self, text: str, scope: _Scope) -> None:
        self.known.update([_named(text, (Executable,), "an instruction", scope)])

    def _read_grid(self, text: str, scope: _Scope) -> None:
        self.grid = read_expression(text, scope.values)

    def _read_threads(self, text: str, scope: _Scope) -> None:
        self.threads = _number(text, "Threads")
        if not 1 <= self.threads <= 1024:
            raise LayoutError(f"Threads {self.threads}", legal="1 ... 1024")

    def _read_fact(self, text: str, scope: _Scope) -> None:
        reason, condition = _value(text, tuple, "a text and a condition, in parentheses", scope)
        self.whole["facts"].append((reason, condition))

    def _read_title(self, text: str, scope: _Scope) -> None:
        self.whole["title"].append(_value(text, str, "a text in quotes", scope))

    def _read_unchecked(self, text: str, scope: _Scope) -> None:
        self._say(Unchecked((_value(text, str, "a text in quotes", scope),)))

    def _read_zeroed(self, text: str, scope: _Scope) -> None:
        self._say(Zeroed(tuple(one.strip() for one in text.split(","))))

    def _read_resident(self, text: str, scope: _Scope) -> None:
        self._say(Residency(_number(text, "Resident")))

    def _read_within(self, text: str, scope: _Scope) -> None:
        self._say(SharedBound(_number(text, "Within")))

    def _read_cluster(self, text: str, scope: _Scope) -> None:
        found = [re.fullmatch(r"\s*([0-9]{1,2})\s+(\w+)\s*", one) for one in text.split(",")]
        if None in found:
            raise LayoutError(f"{text!r} is not a cluster", legal="Cluster 2 cluster_m, 2 cluster_n")
        self.whole["cluster"] = tuple((int(one[1]), one[2]) for one in found if one is not None)

    def _cluster(self, scope: _Scope) -> None:
        """The cluster of the kernel, now that its values are known."""
        said = self.whole.pop("cluster", None)
        values = {let.var.name: let.var for let in self.whole["lets"]}
        unknown = [name for _, name in said or () if name not in values]
        if unknown:
            raise LayoutError(f"Cluster: {unknown[0]} is not a value of the whole kernel", legal=[*values] or "Let cluster_m = block % 2")
        if said:
            self.whole["cluster"] = BlockCluster(tuple(size for size, _ in said), tuple(values[name] for _, name in said))

    def _read_chained(self, text: str, scope: _Scope) -> None:
        self._say(Chaining(True, tuple(one.strip() for one in text.split(",") if one.strip())))

    def _say(self, said: Effect) -> None:
        self.whole["effects"] = self.whole["effects"].adding(said)

    # -------------------------------------------------------------------------------------- bodies

    def _body(self, scope: _Scope, opened: Line, root: bool = False) -> tuple[Item, ...]:
        """The items up to the brace that closes the body that a line opened."""
        found: list[Item] = []
        while True:
            if self.position >= len(self.lines):
                opened.refuse("the body that begins here is not closed", legal="}")
            line = self._next("")
            if line.text == "}" and not line.opens:
                return tuple(found)
            found += self._item(line, scope, root)

    def _item(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text = line.text
        word = re.match(r"\w*", text)
        reader = _WORDS.get(word[0].lower()) if word else None
        if text.startswith("//"):
            if not text.isprintable():
                line.refuse("a comment is one line of printable characters")
            yield Comment(text[2:].strip())
        elif _PLACE.fullmatch(text) and not line.opens:
            yield from self._read_let(line, scope, root)
        elif reader is not None:
            yield from reader(self, line, scope, root)
        elif re.search(r"<-|←", text):
            yield self._spec(line, scope)
        elif (made := _MADE.fullmatch(text)) is not None and not line.opens:
            with line.here(made.start(4)):
                self._make(made, scope)
        elif text.startswith("#") and _DEFINED.fullmatch(text) and not line.opens:
            self._define(line, scope)
        else:
            line.refuse("this is nothing that a body may contain", legal=_ITEMS)

    def _read_for(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text, options = options_behind(line.text)
        found = _FOR.fullmatch(text)
        if found is None or not line.opens or len({found[1], found[3], found[5]}) > 1:
            line.refuse("this is not a loop", legal="For (k = 0; k < 64; k += 1) {unroll, stages=3} {")
        with line.here(found.start(4)):
            extent = self._expression(found[4], scope)
        with line.here(len(text)):
            var, said = self._loop_options(found[1], extent, options, scope)
        first, step = int(found[2]), int(found[6])
        if step < 1:
            line.refuse("a loop steps forward", offset=found.start(6), legal="at least 1")
        if extent.high <= first:
            line.refuse("a loop without an iteration", offset=found.start(2), legal=f"a number below {extent}")
        inner = scope.inner(line)
        self._bind(var, inner, line)
        inner.nest = attrs.evolve(inner.nest, loops=(*inner.nest.loops, Around(var, first, step, extent)))
        yield Loop(For(var, extent, (), first=first, step=step, **said), self._body(inner, line))

    def _loop_options(self, name: str, extent: Expr, options: str, scope: _Scope) -> tuple[Var, dict[str, Any]]:
        low, high, multiple = 0, max(extent.high - 1, 0), 1
        known = _asked_by_option()
        asked: dict[type[Ask], dict[str, str]] = {}
        said: dict[str, Any] = {}
        for key, value in ((former.LOOP_OPTIONS.get(key, key), value) for key, value in listed(options)):
            if key == "unroll" and not value:
                said[key] = True
            elif key == "period":
                said[key] = _number(value, key)
            elif key == "range":
                low, high, multiple = _range(value)
            elif key in known and ("=" in known[key][1]) == bool(value):
                asked.setdefault(known[key][0], {})[key] = value
            else:
                legal = ["unroll", *(example for _, example in known.values()), "range=0..7"]
                raise LayoutError(f"what is {key} of a loop?", legal=legal)
        wanted = (kind.read(own, lambda text: read_expression(text, scope.values)) for kind, own in asked.items())
        return Var(name, low, high, multiple), {**said, "asks": Asks(tuple(wanted))}

    def _read_if(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        found = _IF.fullmatch(line.text)
        if found is None or not line.opens:
            line.refuse("this is not a condition", legal="If (m < M) {")
        with line.here(found.start(1)):
            condition = self._expression(found[1], scope)
            if condition.low < 0 or condition.high > 1:
                raise LayoutError(f"{condition} is neither true nor false", legal="m < M, all_of((m < M, n < N))")
        items = self._body(self._guarded(scope, line, condition.variables()), line)
        for item in items:
            if isinstance(item, (SyncPoint, Commit, StepMarker)):
                line.refuse("a barrier is for all threads: it cannot be under a condition", hint="close the If before it")
        yield Under(condition, items)

    def _read_skip(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        found = _SKIP.fullmatch(line.text)
        if found is None or not line.opens:
            line.refuse("this leaves nothing out", legal="Skip unless %needed {")
        yield Unless(self.called.get(found[1], found[1]), self._body(self._guarded(scope, line, scope.turning), line))

    def _guarded(self, scope: _Scope, line: Line, variables: Iterable[Var]) -> _Scope:
        """The scope of a body that is for some threads, or some turns of loops, alone."""
        inner = scope.inner(line)
        inner.nest = attrs.evolve(inner.nest, conditions=(*inner.nest.conditions, (line.number, frozenset(variables))))
        return inner

    def _expression(self, text: str, scope: _Scope) -> Expr:
        """An index expression, in which names may be marked as the paper marks them: `@bid_m`."""
        return read_expression(plain_name(text), scope.values)

    def _read_let(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        text, options = options_behind(line.text)
        found = _LET.fullmatch(text)
        if found is None or line.opens:
            line.refuse("this names no value", legal="Let m = thread % 32, Let m, n = #4.indices()")
        with line.here(found.start(2)):
            pairs = self._named_values(found[1], found[2], scope)
            ranges = [(max(value.low, 0), value.high, 1) for _, value in pairs]
            for key, said in listed(options):
                if key != "range" or len(pairs) > 1:
                    raise LayoutError(f"what is {key} of a value?", legal="range=0..7")
                ranges = [_range(said)]
            lets = [Let(Var(name, *one), value) for (name, value), one in zip(pairs, ranges, strict=True)]
        for let in lets:
            # What blocks and threads alone decide has a name in the whole kernel; anything else has it where it stands.
            free = scope.turning.isdisjoint(let.value.variables())
            self._bind(let.var, scope, line)
            if not free:
                scope.nest = attrs.evolve(scope.nest, values={**scope.nest.values, let.var: let.value})
            if root and free:
                self.whole["lets"].append(let)
            else:
                yield let

    def _named_values(self, names: str, text: str, scope: _Scope) -> list[tuple[str, Expr]]:
        """Names with their values: of one expression, or of where a unit is in its group."""
        found = _INDICES.fullmatch(text.strip())
        if found is None:
            value = self._expression(text, scope)
            if len(listed_names := names.split(",")) > 1:
                raise LayoutError(f"{len(listed_names)} names for 1 values", legal=str(value))
            return [(plain_name(names), value)]
        group = group_of(scope.texts, found[1])
        return named_indices(names, group, scope.values[parse_group(group)[1]])

    def _read_barrier(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        words = line.text.rstrip("() ").split()[1:]
        required: bool | None = True
        if words[:1] in (["no"], ["maybe"]):
            required = False if words.pop(0) == "no" else None
        if len(words) > 1 or line.opens:
            line.refuse("this is not a barrier", legal="Barrier, Barrier k, Barrier no a_sh, Barrier maybe k")
        subject = words[0].lstrip("%") if words else ""
        yield SyncPoint(required, self.called.get(subject, subject))

    def _read_commit(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        words = line.text.rstrip("() ").split()[1:] or [Commit().mechanism.name]
        known = {one.name: one for one in (*mechanisms.kinds(), *(one.mechanism for one in self.known.values())) if one.in_groups}
        name = former.MECHANISMS.get(words[0], words[0])
        if len(words) > 1 or name not in known or line.opens:
            line.refuse("this commits nothing", legal=[f"Commit {one}" for one in known])
        yield Commit(known[name])

    def _read_step(self, line: Line, scope: _Scope, root: bool) -> Iterator[Item]:
        found = _STEP.fullmatch(line.text)
        if found is None or line.opens:
            line.refuse("this is not a step", legal="Step pv")
        yield StepMarker(found[1])

    def _bind(self, var: Var, scope: _Scope, line: Line) -> None:
        if not is_cuda_name(var.name) or var.name in RESERVED or var.name.startswith("__"):
            line.refuse(f"{var.name!r} is not a name of a value", legal="an identifier that means nothing in CUDA C++")
        if var.name in self.names:
            line.refuse(f"{var.name} is defined twice", hint="another name: names of loops and values are those of the whole kernel")
        self.names[var.name] = None
        scope.values[var.name] = var

    # -------------------------------------------------------------------------------------- tensors

    def _make(self, found: re.Match[str], scope: _Scope) -> None:
        """A tensor of tiles, one of its tiles, or one unit of a group."""
        name, said, source, rest = found[1], found[2], found[3], found[4].strip()
        if source not in scope.texts and source not in scope.tiles:
            raise LayoutError(f"{source} stands for nothing here", legal=[*scope.texts, *scope.tiles])
        if name.startswith("#") or source.startswith("#"):
            self._make_group(name, said, source, rest, scope)
            return
        if tile := re.fullmatch(r"\.\s*tile\(\s*(.*?)\s*\)", rest, re.DOTALL):
            sizes = tuple(_tile(one, scope) for one in sizes_in(tile[1]))
            if source in scope.tiles:
                raise LayoutError(f"{source} are tiles already", hint=f"%9 = {source}[0, 0] takes one of them, which can be tiled")
            tiled = parse_view(scope.texts[source], scope.values).tile(*sizes)
            shapes = [[part.outer for part in tiled.cuts], [part.inner for part in tiled.cuts]]
            _require_said(said, shapes, tiled.view, name, scope)
            scope.texts.pop(name, None)
            scope.tiles[name] = tiled
        elif place := re.fullmatch(r"\[(.*)\]", rest, re.DOTALL):
            view = self._part(source, pieces(place[1], ","), scope)
            _require_said(said, [[dim.modes for dim in view.dims]], view, name, scope)
            scope.tiles.pop(name, None)
            scope.texts[name] = view_text(view)
        else:
            raise LayoutError(f"{rest!r} makes no tensor", legal="%6 = %1.tile(128, _), %9 = %6[m, 0]")

    def _make_group(self, name: str, said: str | None, source: str, rest: str, scope: _Scope) -> None:
        if not (name.startswith("#") and source.startswith("#")):
            raise LayoutError(f"{name} of {source}", legal="% for tensors and their tiles, # for groups of threads and blocks")
        made = made_group(name, scope.texts[source], rest, lambda size: _tile(size, scope))
        if said:
            require_same_group(said, name, made)
        scope.texts[name] = made

    def _part(self, source: str, place: list[str], scope: _Scope) -> View:
        """A tile by its numbers, or of a tensor without tiles an element by its coordinates."""
        if source in scope.tiles:
            tiled = scope.tiles[source]
        else:
            view = parse_view(scope.texts[source], scope.values)
            tiled = view.tile(*[1 if one.strip() != "_" else None for one in place])
        numbers = tuple(as_expr(0) if one.strip() == "_" else self._expression(one.strip().lstrip("#"), scope) for one in place)
        by_unit, by_turn = (tiled.at(numbers, unit) for unit in (True, False))
        units = [not scope.turning.issuperset(number.variables()) for number in numbers]
        return by_turn.with_dims({dim: by_unit.dims[dim] for dim, unit in enumerate(units) if unit})

    # -------------------------------------------------------------------------------------- specs

    def _spec(self, line: Line, scope: _Scope) -> Item:
        where = f"line {line.number} of the text"
        with line.here():
            of_lanes = self._of_lanes(line, scope, where)
        if isinstance(of_lanes, Leaf):
            return of_lanes
        if of_lanes is not None:
            return Inner(of_lanes, self._body(scope.inner(line), line), where)
        if line.opens:
            with line.here():
                spec, _ = self._statement(line.text, scope)
                self._require_known(spec)
            return Inner(spec, self._body(scope.inner(line), line), where)
        text, instruction = split_at(line.text, "by")
        with line.here():
            settled = None
            if instruction is None and re.search(r"(?:<-|←)\s*Allocate\b", text):
                text, settled = split_at(text, "as")
            spec, _ = self._statement(text, scope)
            if spec.allocates:
                spec = self._allocate(spec, settled, scope)
            elif instruction is None and spec.kind == MatMul.kind and not _ACCUMULATE.search(text):
                spec = attrs.evolve(spec, accumulate=self.results.accumulates(spec.operands[spec.outputs[0]], scope.nest))
            self._require_known(spec)
            for name in () if spec.allocates else spec.outputs:
                self.results.write(spec.operands[name], scope.nest)
        if instruction is None:
            return Leaf(spec, where=where)
        with line.here(line.text.rindex(instruction)):
            name, changes = options_behind(instruction)
            if name not in self.known:
                raise LayoutError(f"no instruction is called {name}", legal=[*self.known])
            said = tuple((FORMER_FIELDS.get(key, key), read_literal(value or "True", scope.values)) for key, value in listed(changes))
            require_changes(said, spec)
        return Leaf(spec, self.known[name], said, where)

    def _of_lanes(self, line: Line, scope: _Scope, where: str) -> Leaf | Spec | None:
        """A Move of a group into registers that each of its threads has for itself, as the paper writes `ldmatrix`; None for any other.

        With a body it is a generic spec, since what the group holds together is what its body makes of it.
        """
        found = _MOVE.fullmatch(line.text)
        name = None if found is None else self.called.get(found[1], found[1])
        result = None if found is None else scope.tiles.get(f"%{found[1]}")
        if found is None or (result is None and f"%{found[1]}" not in scope.texts):
            return None
        view = result.view if result is not None else self._view(f"%{found[1]}{found[2] or ''}", scope)
        if view.tensor.name not in self.private or name is None:
            return None
        groups = [scope.texts.get(one.strip(), one) for one in pieces(found[3], ",")]
        level, _ = parse_execution(groups, scope.values, scope.own)
        if level.threads == 1:
            return None
        source = self._view(found[4], scope)
        for one in (source, view):
            self._require_made(one)
        self.results.write(view, scope.nest)
        if line.opens:
            return generic_spec(level, [source], [view])
        return move_of_lanes(level, view if result is None or found[2] else result, source, where)

    def _statement(self, text: str, scope: _Scope) -> tuple[Spec, Execution]:
        found = _SPEC.fullmatch(text)
        texts = scope.texts
        for name in _OPERAND.findall(text):
            self._require_no_tiles(name, scope)
        if found is None:
            return read_statement(text, texts, scope.values, scope.own)
        views = [[self._view(one, scope) for one in (pieces(part, ",") if part.strip() else [])] for part in (found[3], found[1])]
        if not views[1]:
            raise LayoutError(f"{GENERIC} writes nothing", legal="%out <- Spec<<<#blocks, #threads>>>(%in) {")
        level, execution = parse_execution([texts.get(one.strip(), one) for one in pieces(found[2], ",")], scope.values, scope.own)
        operands, results = ([self._c_name(view) for view in part] for part in views)
        for name in (view.tensor.name for view in (*operands, *results) if view.tensor.name):
            if not is_cuda_name(name) or name.startswith("__") or (name in RESERVED and name not in OPERANDS):
                raise LayoutError(f"%{name} is not a name of a tensor", legal="an identifier that means nothing in CUDA C++, or a number")
        return generic_spec(level, operands, results), execution

    def _view(self, text: str, scope: _Scope) -> View:
        name, bracket, place = text.strip().partition("[")
        self._require_no_tiles(name.strip(), scope)
        known = scope.texts.get(name.strip())
        return parse_view(text if known is None else f"{known}{bracket}{place}", scope.values)

    def _require_known(self, spec: Spec) -> None:
        """Refuse tensors that nothing has made: an operand of the kernel is one, and what an `Allocate` in front makes."""
        for view in spec.operands.values():
            self._require_made(view)

    def _require_made(self, view: View) -> None:
        name = view.tensor.name
        if name not in self.results.made:
            legal = [f"%{self.original.get(one, one)}" for one in self.results.made]
            raise LayoutError(f"%{self.original.get(name, name)} is not a tensor of the kernel", legal=legal, hint="Allocate makes one")

    def _require_no_tiles(self, name: str, scope: _Scope) -> None:
        if name in scope.tiles:
            raise LayoutError(f"{name} are tiles", legal="one of them, or the tensor that was tiled")

    def _allocate(self, spec: Spec, settled: str | None, scope: _Scope) -> Spec:
        """The name of a new tensor, and how it lies in memory where a leaf says so."""
        ((operand, view),) = spec.operands.items()
        said, view = view.tensor.name, self._c_name(view)
        tensor: Tensor = view.tensor
        if not is_cuda_name(tensor.name) or tensor.name in RESERVED:
            raise LayoutError(
                f"%{tensor.name} is not a name of a new tensor", legal="an identifier that means nothing in CUDA C++, as %a_sh"
            )
        if tensor.name in self.names or said in self.called:
            raise LayoutError(f"{said} is defined twice", hint="another name: names of tensors are those of the whole kernel")
        self.names[tensor.name] = None
        self.called[said] = tensor.name
        self.results.make(tensor.name, scope.nest)
        if spec.level.threads == 1 and tensor.memory == RF:
            self.private.add(tensor.name)
        scope.texts[f"%{said}"] = view_text(view)
        scope.tiles.pop(f"%{said}", None)
        if settled is not None:
            self.whole["settled"].append((tensor, _value(settled, Storage, "a storage", scope)))
        return spec.with_operands(**{operand: view})


def _count(shapes: tuple[Layout, ...]) -> int:
    total = 1
    for one in shapes:
        total *= one.size()
    return total


@functools.cache
def _asked_by_option() -> Mapping[str, tuple[type[Ask], str]]:
    """The kinds of asks by the names of their options, with an example of each option."""
    return {example.partition("=")[0]: (kind, example) for kind in asks.kinds() for example in kind.options}


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text.strip()):
        raise LayoutError(f"{what} is a number", got=text, legal="0, 1, 2, ...")
    return int(text)


def _range(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"(-?[0-9]{1,19})\s*\.\.\s*(-?[0-9]{1,19})(?:\s*/\s*([0-9]{1,10}))?", text.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise LayoutError(f"{text!r} is not a range", legal="0..7, and 0..56/8 for multiples of 8")
    return int(found[1]), int(found[2]), int(found[3] or 1)


def _value(text: str, kind: type[Any], what: str, scope: _Scope) -> Any:
    found = read_literal(text, scope.values)
    if not isinstance(found, kind):
        raise LayoutError(f"{text!r} is not {what}")
    return found


def _named(text: str, kinds: tuple[type[Any], ...], what: str, scope: _Scope) -> tuple[str, Any]:
    name, equals, value = (one.strip() for one in text.partition("="))
    if not equals or not re.fullmatch(r"\S+", name):
        raise LayoutError(f"{text!r} names nothing", legal="name = value")
    found = read_literal(value, scope.values)
    if not isinstance(found, kinds):
        raise LayoutError(f"{value!r} is not {what}")
    return name, found


def _tile(text: str, scope: _Scope) -> int | Layout | None:
    """A size of a tile: a number, a layout `2:2`, or `_` for a dimension that is kept whole."""
    text = text.strip().strip("[]")
    if text == "_":
        return None
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    sizes, colon, strides = text.partition(":")
    if not colon:
        raise LayoutError(f"{text!r} is not a size of a tile", legal="8, 2:2, (2,2):(1,4), _")
    return Layout(read_literal(sizes, {}), read_literal(strides, {}))


def _require_said(said: str | None, shapes: Sequence[Sequence[tuple[Mode, ...]]], view: View, name: str, scope: _Scope) -> None:
    """What a text writes behind a name is what it has: sizes of tiles and of what is in one, strides where it writes them, type, memory.

    `shapes` are the modes of the coordinates by dimension, the outermost shape first.
    """
    if not said or not said.strip():
        return
    parts = parts_of(f"{name}:{said}")
    if parts.rest or parts.swizzle:
        raise LayoutError(f"{said.strip()!r} is not a shape", legal=f"[8,8].{dtype_text(view.dtype)}.{view.memory.name}")
    if parts.element != dtype_text(view.dtype) or (parts.memory or view.memory.name).replace(" ", "") != view.memory.name.replace(" ", ""):
        raise LayoutError(f"{name} is of {dtype_text(view.dtype)} in {view.memory.name}", got=said.strip())
    sizes = [[Dim(modes).size for modes in dims] for dims in shapes]
    wanted = [[product(dim.shape) for dim in shape] for shape in read_shapes(parts.shapes, scope.values)]
    if [_above_one(dims) for dims in wanted] != [_above_one(dims) for dims in sizes]:
        raise LayoutError(f"{name} has the shape {'.'.join(f'[{_listed(dims)}]' for dims in sizes)}", got=said.strip())
    if any(strides is not None for _, strides in parts.shapes):
        made = [[strided(view, axis, modes) for axis, modes in enumerate(dims)] for dims in shapes]
        if [_steps(shape) for shape in read_shapes(parts.shapes, scope.values)] != [_steps(dims) for dims in made]:
            raise LayoutError(
                f"{name} has other strides", got=said.strip(), legal=".".join(map(shape_text, (make_layout(*dims) for dims in made)))
            )


def _above_one(sizes: Iterable[Any]) -> list[Expr]:
    return [one for one in map(as_expr, sizes) if constant(one) != 1]


def _steps(dims: Iterable[Layout]) -> list[list[tuple[Any, Any]]]:
    """Sizes and strides by dimension, without those of one element."""
    leaves = [[(as_expr(size), as_expr(stride)) for size, stride in coalesce(dim).modes if size != 1] for dim in dims]
    return [one for one in leaves if one]


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
    "step": _Reader._read_step,
}
