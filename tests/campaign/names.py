"""The public names that users write, and those that a strategy, its spec and its kernel use.

`public()` lists all names by category, from the registries of the package: a new extension is a new name. `names_of(strategy, program)`
lists those of a draw. It reads the text of the strategy (`repr`), its formulas, and the statements and buffers of the lowered kernel.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator

import attrs

import fireiron
from fireiron.compiler import Program
from fireiron.generated_verbs import REFINEMENT_VERBS, OtherVerbs, StepVerbs
from fireiron.ir import Kernel, execs
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.language.strategy import Strategy
from fireiron.language.tree import OF_EACH_STEP
from fireiron.spec import OwnStarter
from fireiron.specs.formula import ALL_SCANS, COMPARISONS, DECOMPRESSED, FUNCTIONS, REDUCTIONS
from fireiron.tasks.mapping import HOPPER, Stored, TaskMapping
from fireiron.tasks.step import TaskProgram
from fireiron.values.machine import ARCHITECTURES, DTYPES, LEVELS, MEMORIES

OPERATORS = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "~", "<<", ">>", *COMPARISONS, "and", "or")
"""Operators of formulas, with one or two arguments."""

LAYOUTS = ("RowMajor", "ColMajor", "Strides", "ANY", "Swizzle", "Strided", "Layout", "UnitMode", "over", "ld")
"""Names of layouts of operands, of tiles, and of their distribution over units."""

DEFINED = (
    "init", "body", "final", "loop", "scan", "batch", "mask", "outside", "ranges", "distinct", "types", "affine index", "table", "digits",
    "nested loop", "exact quotient", "size",
)  # fmt: skip
"""Parts of a definition."""


@functools.cache
def verbs() -> dict[str, inspect.Signature]:
    """The signature of each verb of chains."""
    owners = (StepVerbs, OtherVerbs, *REFINEMENT_VERBS.values())
    methods = {name: method for owner in owners for name, method in vars(owner).items() if hasattr(method, "makes")}
    return {name: inspect.signature(method) for name, method in sorted(methods.items())}


@functools.cache
def public() -> tuple[str, ...]:
    """All names, each with its category."""
    arguments = [(verb, name) for verb, signature in verbs().items() for name in list(signature.parameters)[1:] if name not in OF_EACH_STEP]
    return tuple(
        dict.fromkeys(
            (
                *(f"verb {name}" for name in verbs()),
                *(f"argument {verb}.{name}" for verb, name in arguments),
                *(f"function {name}" for name in (*FUNCTIONS, DECOMPRESSED)),
                *(f"reduction {name}" for name in (*REDUCTIONS, *ALL_SCANS)),
                *(f"combine {sign}" for sign in REDUCTIONS.values()),
                *(f"operator {name}" for name in OPERATORS),
                *(f"definition {name}" for name in DEFINED),
                *(f"type {dtype}" for dtype in DTYPES),
                *(f"memory {memory}" for memory in (*MEMORIES, fireiron.VAL, fireiron.COORD, "FR")),
                *(f"level {level}" for level in (*LEVELS, "GPU", "Node")),
                *(f"instruction {instruction.name}" for instruction in fireiron.INSTRUCTIONS),
                *(f"layout {name}" for name in LAYOUTS),
                *(f"target {architecture.name}" for architecture in ARCHITECTURES),
                *(f"kind {kind}" for kind in ("MatMul", "SparseMatMul", "Fused", "Move", "Init", "Reduction", "user-defined")),
                *(f"spec {name}" for name in ("accumulate", "batch", "run-time size", "multiple_of", "scalar", "epilogue")),
                *(f"processor {processor}" for processor in HOPPER.processors),
                *(f"place {place}" for place in HOPPER.places),
                *(f"mapping {name}" for name in _mapping_fields()),
                *(f"stored {field.name}" for field in attrs.fields(Stored)),
                *(
                    f"launch {name}"
                    for name in ("cluster", "dependent", "dynamic tiles", "tensor maps", "several kernels", "cooperating blocks")
                ),
            )
        )
    )


def names_of(program: Program) -> frozenset[str]:
    """The names that a program uses: its bound strategy, its spec, and the kernels of all its launches."""
    return frozenset((*_of_strategy(program.strategy), *_of_program(program)))


def _of_strategy(strategy: Strategy) -> Iterator[str]:
    step = strategy.steps[0] if strategy.steps else None
    if isinstance(step, TaskProgram):
        yield from _of_mapping(step)
    else:
        yield from _of_text(repr(strategy))


# ---------------------------------------------------------------------------------------------- texts


def _of_text(text: str) -> Iterator[str]:
    """The names in the text of a strategy or a spec."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name):
            yield from _of_word(node.id)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


@functools.cache
def _words() -> dict[str, str]:
    """Words of programs, by the category of their names."""
    by_word = {name.partition(" ")[2]: name for name in public() if name.startswith(("type ", "memory ", "level ", "layout ", "kind "))}
    return by_word


def _of_word(word: str) -> Iterator[str]:
    if word in _words():
        yield _words()[word]


def _of_call(node: ast.Call) -> Iterator[str]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in verbs():
        yield from _of_verb(node.func.attr, node)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "over":
        yield "layout over"
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if isinstance(node.func, ast.Name) and node.func.id in ("Pointwise", "Scan", "Kind"):
        yield from (name for one in node.args if isinstance(one, ast.Constant) for name in _of_formula(str(one.value)))
    if isinstance(node.func, ast.Name) and node.func.id == "Fused":
        yield from _of_definition(keywords)
    if isinstance(node.func, ast.Name) and node.func.id == "Var":
        yield "spec run-time size"
        if len(node.args) > 3 and isinstance(node.args[3], ast.Constant) and node.args[3].value != 1:
            yield "spec multiple_of"
    yield from (f"layout {name}" for name in ("ld",) if name in keywords)
    yield from (f"spec {name}" for name in ("accumulate",) if name in keywords)
    for keyword in ("epilogue", "signature"):
        if keyword in keywords:
            yield {"epilogue": "spec epilogue", "signature": "spec batch"}[keyword]
    if "epilogue" in keywords and isinstance(keywords["epilogue"], ast.Constant):
        yield from _of_formula(str(keywords["epilogue"].value))


def _of_verb(verb: str, node: ast.Call) -> Iterator[str]:
    """A verb, and its arguments that differ from the defaults."""
    yield f"verb {verb}"
    parameters = [one for one in list(verbs()[verb].parameters.values())[1:] if one.name not in OF_EACH_STEP]
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    variable = next((one for one in parameters if one.kind == one.VAR_POSITIONAL), None)
    for place, value in enumerate(node.args):
        parameter = positional[place] if place < len(positional) else variable
        if parameter is not None and not _is_default(value, parameter.default):
            yield f"argument {verb}.{parameter.name}"
    named = next((one for one in parameters if one.kind == one.VAR_KEYWORD), None)
    for keyword in node.keywords:
        parameter = verbs()[verb].parameters.get(keyword.arg or "", named)
        if parameter is not None and not _is_default(keyword.value, parameter.default):
            yield f"argument {verb}.{parameter.name}"


def _is_default(value: ast.expr, default: object) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) is type(default) and value.value == default


# ---------------------------------------------------------------------------------------------- formulas

_TOKENS = re.compile(r"[A-Za-z_]\w*|\d[\d.e]*|//|<<|>>|<=|>=|==|!=|[-+*/%&|^~<>=(),\[\]]")


def _of_definition(keywords: dict[str | None, ast.expr]) -> Iterator[str]:
    for name, value in keywords.items():
        yield from (f"definition {part}" for part in DEFINED if part == name)
        if name in ("init", "body", "final", "mask", "outside"):
            yield from (
                text
                for constant in ast.walk(value)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
                for text in _of_formula(constant.value)
            )
        if (
            name == "body"
            and isinstance(value, ast.Dict)
            and any(isinstance(key, ast.Constant) and key.value == "epilogue" for key in value.keys)
        ):
            yield "spec epilogue"  # the step that `fuse_epilogue` adds
        if name == "body" and isinstance(value, ast.Dict) and any(isinstance(part, ast.Dict) for part in value.values):
            yield "definition nested loop"


def _of_formula(text: str) -> Iterator[str]:
    """The functions, reductions, operators and indices of a text of formulas."""
    for sign in REDUCTIONS.values():
        if f"] {sign} " in text:
            yield f"combine {sign}"
    for index in re.findall(r"\w+\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]", text):
        yield from _of_index(index)
    formula = re.sub(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]", "", text)
    formula = re.sub(r"^\s*\w+\s*(?:[-+*]|max|min)?=(?!=)", "", formula)
    tokens = _TOKENS.findall(formula)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if following == "(" and token in (*FUNCTIONS, DECOMPRESSED):
            yield f"function {token}"
        if following == "(" and token in (*REDUCTIONS, *ALL_SCANS):
            yield f"reduction {token}"
        if token == "size":
            yield "definition size"
        if token in OPERATORS:
            yield f"operator {token}"


def _of_index(index: str) -> Iterator[str]:
    if "[" in index:
        yield "definition table"
    if "//" in index or "%" in index:
        yield "definition digits"
    if ")" in index and "/" in index.replace("//", ""):
        yield "definition exact quotient"
    if "size(" in index:
        yield "definition size"
    if re.search(r"[-+*]", index):
        yield "definition affine index"


# ---------------------------------------------------------------------------------------------- kernels


def _of_program(program: Program) -> Iterator[str]:
    yield f"target {program.architecture}"
    yield from _of_text(repr(program.spec))
    if isinstance(program.spec.starter, OwnStarter) and not hasattr(fireiron, program.spec.title):
        yield "kind user-defined"
    kernels = [*(launch.program.lowered if hasattr(launch, "program") else launch.ir for launch in program.preceding), program.lowered]
    if len(kernels) > 1:
        yield "launch several kernels"
    for kernel in kernels:
        yield from _of_kernel(kernel)


def _of_kernel(kernel: Kernel) -> Iterator[str]:
    statements = {f"instruction {statement.instruction.name}" for statement, _ in execs(kernel.body)}
    yield from statements & _instructions()
    for buffer in kernel.buffers:
        yield f"type {buffer.dtype}"
        yield "memory FR" if buffer.memory.fragment is not None else f"memory {buffer.memory}"
    for view in kernel.spec.operands.values():
        yield f"type {view.dtype}"
        if not view.shape:
            yield "spec scalar"
    launches = {
        "cluster": kernel.cluster is not None,
        "dependent": kernel.effects[DependentLaunch] != DependentLaunch(),
        "dynamic tiles": kernel.counter is not None,
        "tensor maps": any(" TMA_" in name for name in statements),
        "cooperating blocks": kernel.workspace is not None,
    }
    yield from (f"launch {name}" for name, holds in launches.items() if holds)


@functools.cache
def _instructions() -> frozenset[str]:
    return frozenset(f"instruction {instruction.name}" for instruction in fireiron.INSTRUCTIONS)


def _of_mapping(step: TaskProgram) -> Iterator[str]:
    """The processors, places and options of a program of tasks."""
    for instance in step.mapped.instances:
        yield f"processor {instance.proc}"
        yield from (f"place {place}" for place in instance.mems)
        for field in attrs.fields(TaskMapping):
            if field.name in _mapping_fields() and getattr(instance, field.name) != field.default:
                yield f"mapping {field.name}"
        for _, layout in instance.layouts:
            yield from (f"stored {field.name}" for field in attrs.fields(Stored) if getattr(layout, field.name) != field.default)
        if instance.strategy is not None:
            yield from _of_text(repr(instance.strategy))


def _mapping_fields() -> tuple[str, ...]:
    """The options of an instance; the others are part of every instance."""
    return tuple(
        field.name for field in attrs.fields(TaskMapping) if field.name not in ("instance", "variant", "proc", "mems", "entrypoint")
    )
