"""Find the smallest strategy that still shows a fault, and a program to paste that shows it.

A bound strategy is an expression, its `repr`, and this text is shrunk: calls of a chain and arguments are removed, numbers become smaller,
run-time sizes become numbers, as long as the objection stays of the same kind. This works for any content of a chain, including unknown
extensions.
"""

import ast
import time
import traceback
from collections.abc import Callable, Iterator, Mapping

import attrs

import fireiron
from fireiron.compiler import Program
from fireiron.errors import ArgumentError, DecompositionError, FireironError, MatchError, ResourceError, SynchronizationError
from fireiron.language.strategy import Strategy

Objection = Callable[[Program, Mapping[str, int]], str]
"""The objection to a program with some sizes: empty if all is well; an exception that is not a fair refusal is an objection, too."""

REFUSED = (ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError)
"""Errors by which a strategy may be refused: it shows no fault then."""

MOST_SECONDS = 60.0
"""The time limit of the search for a smaller case."""


@attrs.frozen
class Case:
    """A bound strategy as text, its target, and its run-time sizes."""

    text: str
    target: str
    symbols: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(strategy: Strategy, target: str, symbols: Mapping[str, int]) -> "Case":
        """A case from values."""
        return Case(repr(strategy), target, tuple(symbols.items()))

    @property
    def program(self) -> Program:
        """The value of the text on its target."""
        strategy = eval(self.text, dict(vars(fireiron)))
        assert isinstance(strategy, Strategy)
        return strategy.program(self.target)

    @property
    def size(self) -> tuple[int, int]:
        """The measure that decreases: the letters of the text, and its numbers."""
        numbers = [node.value for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Constant) and type(node.value) is int]
        return len(self.text.translate(dict.fromkeys(range(48, 58)))), sum(numbers) + sum(value for _, value in self.symbols)


def objection_of(case: Case, objection: Objection) -> tuple[str, str]:
    """The kind of the objection to a case, and all of it; both empty if it shows no fault."""
    try:
        program = case.program
        text = objection(program, dict(case.symbols))
    except REFUSED:
        return "", ""
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} {'' if isinstance(error, FireironError) else last.name}"
        return kind, f"{type(error).__name__}: {error}"
    return text.partition(" ")[0] if text.startswith("an alarm") else "values" if text else "", text


def shrunk(case: Case, objection: Objection, seconds: float = MOST_SECONDS) -> Case:
    """The smallest case found that shows a fault of the same kind; the case itself if it shows none."""
    kind, until = objection_of(case, objection)[0], time.monotonic() + seconds
    tried = {case}
    while kind:
        for smaller in candidates(case):
            if smaller in tried:
                continue
            tried.add(smaller)
            if time.monotonic() > until:
                return case
            if objection_of(smaller, objection)[0] == kind:
                case = smaller
                break
        else:
            return case
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Slightly smaller cases, the largest steps first."""
    known = dict(case.symbols)
    for text in _texts(case.text, known):
        names = {node.args[0].value for node in ast.walk(ast.parse(text)) if _is_symbol(node)}
        smaller = attrs.evolve(case, text=text, symbols=tuple((name, value) for name, value in case.symbols if name in names))
        if smaller.size < case.size:
            yield smaller
    for name, value in case.symbols:
        for less in _smaller(value):
            yield attrs.evolve(case, symbols=tuple({**known, name: less}.items()))


def _is_symbol(node: ast.AST) -> bool:
    """Whether a part is a run-time size: `sym("M")`, or the variable assigned from it."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("sym", "Var")


def _smaller(value: int) -> list[int]:
    """Smaller numbers to try instead of one."""
    return [one for one in dict.fromkeys((1, value // 2, value // 4 * 3, value - 1)) if 0 < one < value]


def _texts(text: str, symbols: Mapping[str, int]) -> Iterator[str]:
    """Texts with one part removed, or one number decreased."""
    tree = ast.parse(text, mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    inside: set[int] = set()
    for call in calls:  # outer calls, which come last in a chain, first
        if isinstance(call.func, ast.Attribute):
            yield _replaced(tree, call, call.func.value)
    for call in calls:
        if _is_symbol(call):
            inside.update(map(id, ast.walk(call)))
            yield _replaced(tree, call, ast.Constant(symbols.get(call.args[0].value, 1)))  # type: ignore[attr-defined]
            continue
        for place in reversed(range(len(call.args))):
            yield _replaced(tree, call, ast.Call(call.func, call.args[:place] + call.args[place + 1 :], call.keywords))
        for place in reversed(range(len(call.keywords))):
            yield _replaced(tree, call, ast.Call(call.func, call.args, call.keywords[:place] + call.keywords[place + 1 :]))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and id(node) not in inside:
            for less in _smaller(node.value):
                yield _replaced(tree, node, ast.Constant(less))


def _replaced(tree: ast.Expression, old: ast.expr, new: ast.expr) -> str:
    """The text of a tree with one node replaced."""
    return ast.unparse(_rebuilt(tree, old, new))


def _rebuilt(node: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """A copy of a tree with one node replaced; subtrees without it are shared."""
    if node is old:
        return new
    fields = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            fields[name] = [_rebuilt(one, old, new) if isinstance(one, ast.AST) else one for one in value]
        else:
            fields[name] = _rebuilt(value, old, new) if isinstance(value, ast.AST) else value
    return type(node)(**fields)


PROGRAM = """import random
import numpy as np
from fireiron import *
from fireiron.check import safety
from fireiron.sim import simulate

strategy = {text}
program, sizes, draw = strategy.program({target!r}), {symbols}, np.random.default_rng({seed})
spec = program.spec
arrays = {{name: draw.integers(-2, 3, shape).astype(spec.operands[name].dtype.to_numpy()) for name, shape in {shapes}.items()}}
print([str(one) for one in safety(program.lowered) if one.severity == "error"])
given = dict(arrays)
for launch in program.preceding:
    (source,), (target,) = launch.program.spec.inputs, launch.program.spec.outputs
    own = {{one.name: sizes[one.name] for one in launch.program.lowered.symbols}}
    given[launch.name] = simulate(launch.program.lowered, {{source: arrays[launch.name]}}, own).outputs[target]
right = spec.reference(*(arrays[name] for name in spec.inputs))
for order in (None, random.Random({seed})):
    got = simulate(program.lowered, given, sizes, order=order).outputs
    for name, one in zip(spec.outputs, right if isinstance(right, tuple) else (right,), strict=True):
        print(name, np.array_equal(got[name], arrays.get(name, 0) + one))
"""
"""The appearance of a fault: an exception, a finding, or an output that differs from the spec's meaning."""


def program_of(case: Case, seed: int) -> str:
    """A complete program that shows the fault of a case."""
    from campaign.judged import names_given, shape_of

    try:
        spec, symbols = case.program.spec, dict(case.symbols)
        shapes = {name: shape_of(spec, name, symbols) for name in names_given(spec)}
    except Exception:  # the fault comes before there are shapes
        return f"from fireiron import *\n\nprint({case.text}.program({case.target!r}).cuda)\n"
    return PROGRAM.format(text=case.text, target=case.target, symbols=symbols, seed=seed, shapes=shapes)


def story(
    strategy: Strategy, target: str, symbols: Mapping[str, int], objection: Objection, seed: int, seconds: float = MOST_SECONDS
) -> str:
    """The fault of a strategy, and the smallest program found that shows it."""
    case = Case.of(strategy, target, symbols)
    before = objection_of(case, objection)[1]
    small = shrunk(case, objection, seconds)
    return f"{before}\ndrawn: {case.text} on {target}, {dict(symbols)}\nthe smallest that shows it ({objection_of(small, objection)[1]}):\n\n{program_of(small, seed)}"
