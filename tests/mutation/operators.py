"""Mutation operators on the syntax tree of a module, each with a new text for one expression or statement.

A mutant keeps all line numbers, so that data about lines remain valid. Not mutated: annotations, docstrings and other texts, errors and
their hints, `__repr__` and `__str__`, decorators, assertions, code for type checkers only.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fireiron"

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.FloorDiv: (ast.Mult,), ast.Mod: (ast.FloorDiv,), ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,), ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.BitXor: (ast.BitOr,), ast.Pow: (ast.Mult,),
}  # fmt: skip
OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "less": "at_most", "floordiv": "mod", "mod": "floordiv"}
OTHER_ATTRIBUTES = {
    "low": "high", "high": "low", "inputs": "outputs", "outputs": "inputs", "reads": "writes", "writes": "reads", "left": "right",
    "right": "left", "first": "last", "last": "first", "issubset": "issuperset", "issuperset": "issubset", "union": "intersection",
    "prologue": "epilogue", "rows": "columns", "columns": "rows", "before": "after", "after": "before",
}  # fmt: skip
SWAPPED = {"less", "mod", "floordiv", "ceildiv", "range", "at_most", "equal", "subtract", "divmod"}
"""Functions of two arguments whose order matters."""

DROPPED_CALLS = {"sorted": "list", "reversed": "tuple", "set": "tuple", "frozenset": "tuple"}
TEXTS = {"__repr__", "__str__", "__rich__", "_repr_html_", "_repr_svg_", "summary"}
"""Functions that make text for people."""
ERRORS = ("Error", "Warning", "Finding")


@attrs.frozen
class Mutant:
    """One change: in `module`, the text from `start` to `stop` (bytes) becomes `new`."""

    module: str
    operator: str
    line: int
    where: str
    start: int
    stop: int
    old: str
    new: str
    inside: bool
    """Whether it is in a function, which runs after the import."""

    @property
    def name(self) -> str:
        """A name that is stable when other parts of the module change."""
        return f"{self.module}:{self.where}: {self.operator}: {self.text.strip()}: {_short(self.old)} -> {_short(self.new)}"

    @property
    def text(self) -> str:
        """The line in which the change begins."""
        return source(self.module).splitlines()[self.line - 1]

    def source(self) -> str:
        """The module with the change."""
        original = source(self.module).encode()
        return (original[: self.start] + self.new.encode() + original[self.stop :]).decode()

    def is_one(self) -> bool:
        """Whether the result parses and differs."""
        try:
            return ast.dump(ast.parse(self.source())) != ast.dump(ast.parse(source(self.module)))
        except SyntaxError:
            return False

    def difference(self) -> str:
        """The change as a difference of two texts."""
        before, after = source(self.module).splitlines(), self.source().splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.module, f"{self.module}, {self.operator}", n=1, lineterm=""))


@functools.cache
def source(module: str) -> str:
    """The text of a module, by its path in the package."""
    return (PACKAGE / module).read_text(encoding="utf-8")


def modules(*parts: str) -> list[str]:
    """The modules below folders of the package (`lower`), or with these names (`lower/guard.py`)."""
    paths: list[str] = []
    for part in parts:
        path = PACKAGE / part
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path if path.suffix else path.with_suffix(".py")]
        paths += [str(file.relative_to(PACKAGE)) for file in files]
    return paths


@functools.cache
def mutants(module: str) -> tuple[Mutant, ...]:
    """All mutants of a module, in the order of its text."""
    return tuple(Sites(module, source(module)).found())


def sample(parts: tuple[str, ...]) -> list[Mutant]:
    """All mutants of some parts of the package in a random order that is the same everywhere."""
    all_mutants = [one for module in modules(*parts) for one in mutants(module)]
    return sorted(all_mutants, key=lambda one: (hashlib.sha256(one.name.encode()).digest(), one.start))


def _short(text: str) -> str:
    return " ".join(text.split())


@attrs.define
class Sites:
    """Walks a module and collects its mutants."""

    module: str
    text: str
    starts: list[int] = attrs.field(init=False)
    collected: list[Mutant] = attrs.field(factory=list, init=False)
    where: tuple[str, ...] = attrs.field(default=(), init=False)
    inside: bool = attrs.field(default=False, init=False)
    parameters: frozenset[str] = attrs.field(default=frozenset(), init=False)
    """Those of the enclosing function."""

    def __attrs_post_init__(self) -> None:
        self.starts = [0]
        for line in self.text.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def found(self) -> list[Mutant]:
        self._body(ast.parse(self.text).body)
        return self.collected

    def _body(self, body: list[ast.stmt]) -> None:
        for stmt in body:
            self._statement(stmt, alone=len(body) == 1)

    # ------------------------------------------------------------------------------------------ statements

    def _statement(self, node: ast.stmt, alone: bool = False) -> None:
        match node:
            case ast.FunctionDef() if node.name not in TEXTS and not node.name.lstrip("_").startswith("refus"):
                self._function(node)
            case ast.ClassDef() if not node.name.endswith(ERRORS):
                self._named(node.name, node.body)
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Raise() | ast.Pass():
                pass
            case ast.Expr(value=value) if not self._is_error(value):
                self._replace(node, "pass", "statement dropped")
                self._expression(value)
            case ast.Return(value=value) if value is not None and not self._is_error(value):
                self._returned(value)
                self._expression(value)
            case ast.AnnAssign(value=value) if value is not None and not self._is_error(value):
                self._expression(value)
            case ast.Assign(targets=targets, value=value):
                if not all(isinstance(one, ast.Name) and one.id == "__all__" for one in targets):
                    if any(isinstance(one, ast.Subscript | ast.Attribute) for one in targets) or self._is_of_itself(targets, value):
                        self._replace(node, "pass", "statement dropped")
                    self._expression(value)
            case ast.AugAssign(value=value, op=op):
                self._replace(node, "pass", "statement dropped")
                if type(op) in COMPUTED:
                    changed = ast.AugAssign(node.target, COMPUTED[type(op)][0](), value)
                    self._replace(node, ast.unparse(changed), "operator")
                self._expression(value)
            case ast.Delete():
                self._replace(node, "pass", "statement dropped")
            case ast.If(test=test) if ast.unparse(test) != "TYPE_CHECKING":
                self._condition(test)
                self._body(node.body)
                self._body(node.orelse)
            case ast.While(test=test):
                self._condition(test, only=(False,))
                self._body(node.body)
            case ast.For(iter=every):
                self._replace(every, "()", "loop never")
                self._expression(every)
                self._body(node.body)
                self._body(node.orelse)
            case ast.Continue():
                self._replace(node, "break", "continue and break")
            case ast.Break():
                self._replace(node, "continue", "continue and break")
            case ast.With(items=items):
                for item in items:
                    self._expression(item.context_expr)
                self._body(node.body)
            case ast.Try():
                self._body([*node.body, *(one for handler in node.handlers for one in handler.body), *node.orelse, *node.finalbody])
            case ast.Match():
                self._match(node)

    def _function(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._expression(default)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        before, self.inside, self.parameters = (self.inside, self.parameters), True, frozenset(one.arg for one in arguments)
        self._named(node.name, node.body)
        self.inside, self.parameters = before

    def _returned(self, value: ast.expr) -> None:
        """A condition that is always the same, and a call whose argument is returned unchanged."""
        match value:
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="any" | "all" | "isinstance")):
                for constant in (True, False):
                    self._replace(value, f"{constant}", f"condition {constant}")
            case ast.Call(args=[ast.Name(id=name), *_]) if name in self.parameters - {"self", "cls"}:
                self._replace(value, name, "call dropped")

    def _named(self, name: str, body: list[ast.stmt]) -> None:
        before, self.where = self.where, (*self.where, name)
        self._body(body)
        self.where = before

    def _match(self, node: ast.Match) -> None:
        self._expression(node.subject)
        for case in node.cases:
            if case.guard is not None:
                self._condition(case.guard)
            elif not (isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None):
                self._insert(case.pattern, " if False", "case dropped")
            if isinstance(case.pattern, ast.MatchOr):
                for number, pattern in enumerate(case.pattern.patterns):
                    left = [other for place, other in enumerate(case.pattern.patterns) if place != number]
                    if not any(isinstance(each, ast.MatchAs) and each.name for each in ast.walk(pattern)):
                        self._replace(case.pattern, " | ".join(map(ast.unparse, left)), "pattern dropped")
            self._body(case.body)

    # ------------------------------------------------------------------------------------------ expressions

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr() | ast.Name():
                return
            case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                self._constant(node)
                return
            case ast.Call() if self._is_error(node):
                return
            case ast.Compare():
                self._compare(node)
            case ast.BoolOp():
                self._bool(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._put(node, operand, "not dropped")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._put(node, operand, "sign dropped")
            case ast.BinOp():
                self._binary(node)
            case ast.IfExp(test=test):
                self._condition(test)
                self._expression(node.body)
                self._expression(node.orelse)
                return
            case ast.Call():
                self._call(node)
            case ast.Tuple(elts=elements, ctx=ast.Load()) | ast.List(elts=elements, ctx=ast.Load()) | ast.Set(elts=elements):
                self._elements(node, elements)
            case ast.Attribute(attr=name) if name in OTHER_ATTRIBUTES:
                self._put(node, ast.Attribute(node.value, OTHER_ATTRIBUTES[name], ast.Load()), "other attribute")
            case ast.Slice(lower=lower, upper=upper):
                for bound in (lower, upper):
                    if bound is not None:
                        self._replace(bound, "", "bound dropped")
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.comprehension():
                    self._expression(child.iter)
                    for test in child.ifs:
                        self._condition(test)
                case ast.keyword():
                    self._expression(child.value)
                case ast.arguments():
                    for default in child.defaults:
                        self._expression(default)
                case ast.expr():
                    self._expression(child)

    def _condition(self, test: ast.expr, only: tuple[bool, ...] = (True, False)) -> None:
        for value in only:
            self._replace(test, f"{value}", f"condition {value}")
        self._expression(test)

    def _compare(self, node: ast.Compare) -> None:
        for number, op in enumerate(node.ops):
            if type(op) in COMPARED:
                ops = [COMPARED[type(op)]() if place == number else one for place, one in enumerate(node.ops)]
                self._put(node, ast.Compare(node.left, ops, node.comparators), "comparison")

    def _bool(self, node: ast.BoolOp) -> None:
        self._put(node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values), "and and or")
        for number in range(len(node.values)):
            left = [one for place, one in enumerate(node.values) if place != number]
            self._put(node, ast.BoolOp(node.op, left) if len(left) > 1 else left[0], "operand dropped")

    def _binary(self, node: ast.BinOp) -> None:
        for other in COMPUTED.get(type(node.op), ()):
            self._put(node, ast.BinOp(node.left, other(), node.right), "operator")
        match node.op:
            case ast.FloorDiv():
                up = ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), node.left), ast.FloorDiv(), node.right))
                self._put(node, up, "rounded up")
                if isinstance(node.left, ast.UnaryOp) and isinstance(node.left.op, ast.USub):  # -(-a // b) rounds up: then down
                    self._put(node, ast.UnaryOp(ast.USub(), ast.BinOp(node.left.operand, ast.FloorDiv(), node.right)), "rounded down")
            case ast.Add():
                sequences = [isinstance(one, ast.Tuple | ast.List | ast.Set | ast.ListComp) for one in (node.left, node.right)]
                if any(sequences):
                    self._put(node, node.left if sequences[1] else node.right, "part dropped")
                else:
                    self._put(node, ast.BinOp(node.left, ast.Sub(), node.right), "operator")
                    self._put(node, node.left, "part dropped")

    def _constant(self, node: ast.expr) -> None:
        value = ast.literal_eval(node)
        if isinstance(value, bool):
            self._replace(node, f"{not value}", "constant")
        elif isinstance(value, int):
            for other in (value + 1, value - 1):
                self._replace(node, f"({other})" if other < 0 else f"{other}", "constant")

    def _call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            if function.id in OTHER_NAMES and (function.id != "less" and function.id != "at_most"):
                self._replace(function, OTHER_NAMES[function.id], "other function")
            if function.id in DROPPED_CALLS and len(node.args) >= 1:
                self._put(node, ast.Call(ast.Name(DROPPED_CALLS[function.id]), node.args[:1], []), "order dropped")
            if function.id in SWAPPED and len(node.args) == 2 and not any(isinstance(one, ast.Starred) for one in node.args):
                self._put(node, ast.Call(function, node.args[::-1], node.keywords), "arguments swapped")
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                left = [one for place, one in enumerate(node.keywords) if place != number]
                self._put(node, ast.Call(function, node.args, left), "keyword dropped")

    def _elements(self, node: ast.expr, elements: list[ast.expr]) -> None:
        if isinstance(node, ast.Tuple) and not any(isinstance(one, ast.Starred) for one in elements):
            return  # a record: others count its elements
        for number in range(len(elements)):
            left = [one for place, one in enumerate(elements) if place != number]
            self._put(
                node, type(node)(left) if not isinstance(node, ast.Set) or left else ast.parse("set()", mode="eval").body, "element dropped"
            )

    # ------------------------------------------------------------------------------------------ texts

    @staticmethod
    def _is_of_itself(targets: list[ast.expr], value: ast.expr) -> bool:
        """Whether a name is assigned a value computed from itself."""
        names = {one.id for one in targets if isinstance(one, ast.Name)}
        return len(targets) == 1 and any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(value))

    @staticmethod
    def _is_error(node: ast.expr) -> bool:
        """Whether the node constructs an error, or its message."""
        if not isinstance(node, ast.Call):
            return False
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
        return name.endswith(ERRORS)

    def _put(self, node: ast.expr, new: ast.expr, operator: str) -> None:
        ast.fix_missing_locations(new)
        self._replace(node, f"({ast.unparse(new)})", operator)

    def _insert(self, node: ast.AST, new: str, operator: str) -> None:
        _, stop = self._span(node)
        self._make(node, stop, stop, new, operator)

    def _replace(self, node: ast.AST, new: str, operator: str) -> None:
        start, stop = self._span(node)
        missing = node.end_lineno - node.lineno  # type: ignore[attr-defined]
        if missing and new.endswith(")"):
            new = new[:-1] + "\n" * missing + ")"
        elif missing:
            new = f"({new}{chr(10) * missing})" if new not in ("pass", "") else new + "\n" * missing
        self._make(node, start, stop, new, operator)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]  # type: ignore[attr-defined]
        return first + node.col_offset, last + node.end_col_offset  # type: ignore[attr-defined]

    def _make(self, node: ast.AST, start: int, stop: int, new: str, operator: str) -> None:
        old = self.text.encode()[start:stop].decode()
        self.collected.append(Mutant(self.module, operator, node.lineno, ".".join(self.where), start, stop, old, new, self.inside))  # type: ignore[attr-defined]
