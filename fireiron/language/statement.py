"""Print and parse specs in Graphene's notation: `%C <- MatMul<<<[1].block, #thread:[1].thread>>>(%A, %B)`, with views instead of names.

    statement  result, ... "<-" kind ["<" parameter, ... ">"] "<<<" execution ">>>" "(" operand, ... ")" ["{" option, ... "}"]

Results and operands are views in the notation of `fireiron.values.notation`; `fireiron.language.execution` has blocks and threads. A name
refers to an earlier line that defines it, as in the paper's figures, and an index may follow it, `%7[@i, @j]`. An operand of fewer
dimensions than in the formula has one element along the missing ones.

Source: Graphene (ASPLOS 2023), sections 5.1 and 5.2, Figure 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron import folders, specs
from fireiron.errors import ArgumentError, LayoutError
from fireiron.language.execution import Execution, execution_text, parse_execution
from fireiron.spec import OPTIONS, Kind, Parameter, Spec, Starter
from fireiron.specs.formula import Definition
from fireiron.values.expr import ONE, as_expr
from fireiron.values.layout import Layout, make_layout
from fireiron.values.machine import DTYPES, as_dtype
from fireiron.values.notation import (
    SHORT,
    dtype_text,
    exact,
    expression_text,
    parse_view,
    pieces,
    read_expression,
    symbols_of,
    view_text,
)
from fireiron.values.tensor import View, whole_view

STARTERS: Final = tuple(value for value in folders.public(specs.modules()).values() if isinstance(value, Starter))
IN_THE_PAPER: Final[Mapping[str, str]] = {"UnaryPW": "UnaryPointwise", "BinaryPW": "BinaryPointwise"}
"""Kinds with another name in the paper: our name by the name of the paper."""

_STATEMENT = re.compile(r"(.*?)\s*(?:<-|←)\s*(\w+)\s*(?:<(?!<<)(.*?)>\s*)?<<<(.*?)>>>\s*\((.*)\)\s*(?:\{([^{}]*)\})?\s*", re.DOTALL)


def parse_spec(text: str, symbols: Mapping[str, Any] | None = None) -> Spec:
    """Return the spec of a statement; `parse_spec(spec_text(s), spec_symbols(s)) == s`. `symbols` may contain user-defined kinds.

    >>> print(parse_spec("[].fp32.RF <- Move<<<[1].thread>>>([].fp32.GL)"))
    Move()(GL,RF)(Thread)
    >>> print(parse_spec('''
    ... %1:[16,16].fp16.SH
    ... %2:[16,16].fp16.RF
    ... #3:[1].block
    ... #4:[32].thread
    ... %2 <- Move<<<#3, #4>>>(%1)
    ... '''))
    Move(16,16)(SH,RF)(Warp)
    """
    return parse_statement(text, symbols)[0]


def parse_statement(text: str, symbols: Mapping[str, Any] | None = None) -> tuple[Spec, Execution]:
    """Return the spec of a statement, and its arrangement of blocks and threads.

    >>> spec, execution = parse_statement("%C:[64].fp32 <- Init<<<#4:[8].block, #5:[4,8].thread>>>()")
    >>> print(spec, *execution.blocks, *execution.threads)
    Init(64)(GL)(Kernel) (8):(1) (4,8):(8,1)
    """
    if not isinstance(text, str):
        raise ArgumentError("a spec is parsed from text", got=text)
    *before, last = text.strip().splitlines() or [""]
    return read_statement(last, dict(read_definition(line) for line in before if line.strip()), symbols or {})


def read_statement(line: str, defined: Mapping[str, str], symbols: Mapping[str, Any], own: int | None = None) -> tuple[Spec, Execution]:
    """Return the spec of a statement of one line, and its arrangement of blocks and threads.

    `defined` are the lines that define names. Inside a kernel, `own` is the number of threads of a block.
    """
    match = _STATEMENT.fullmatch(line.strip())
    if match is None:
        raise LayoutError(f"{line!r} is not a spec", legal="%out <- Move<<<#blocks, #threads>>>(%in)")
    results, _, _, groups, operands, options = match.groups()
    kind = _kind(match[2], symbols)
    values = kind.filled(_parameters(kind, match[3]))
    chosen = _options(options or "", symbols)
    definition = kind.of_signature(values, chosen["signature"]) if "signature" in chosen else kind.definition(values)
    texts = [_defined(text, defined) for text in (*_listed(operands), *_listed(results))]
    if len(texts) != len(definition.uses) or len(_listed(results)) != len(definition.outputs):
        what = f"{len(_listed(results))} results, {len(_listed(operands))} operands in {line!r}"
        raise LayoutError(what, legal=" ".join(definition.uses))
    views = tuple(parse_view(text, symbols) for text in texts)
    views = _in_order(definition, views)
    definition = definition if "signature" in chosen else kind.of_views(values, views)
    views = tuple(_of_rank(view, len(dims)) for view, dims in zip(views, definition.uses.values(), strict=True))
    level, execution = parse_execution([defined.get(group.strip(), group) for group in _listed(groups)], symbols, own)
    return Spec(level, kind, views, values, **chosen), execution


def _in_order(definition: Definition, views: tuple[View, ...]) -> tuple[View, ...]:
    """Return views of operands and then results in the order of the formula."""
    names = [*(name for name in definition.uses if name not in definition.outputs), *definition.outputs]
    by_name = dict(zip(names, views, strict=True))
    return tuple(by_name[name] for name in definition.uses)


def read_definition(line: str) -> tuple[str, str]:
    """Return the name that a line defines, and the line."""
    name, colon, _ = line.partition(":")
    if not colon or not re.fullmatch(r"[%#]\w+", name.strip()):
        raise LayoutError(f"{line!r} defines nothing", legal="%name:[sizes].type.memory, #name:[sizes].thread")
    return name.strip(), line


def _listed(text: str) -> list[str]:
    return pieces(text, ",") if text.strip() else []


def _kind(title: str, symbols: Mapping[str, Any]) -> Kind:
    own = symbols.get(title)
    if isinstance(own, (Kind, Starter)):
        return own if isinstance(own, Kind) else own.kind
    for starter in STARTERS:
        if starter.kind.title == IN_THE_PAPER.get(title, title):
            return starter.kind
    raise LayoutError(f"unknown kind of spec {title}", legal=[starter.kind.title for starter in STARTERS])


def _parameters(kind: Kind, text: str | None) -> dict[str, Any]:
    """Return the parameters between `<` and `>`: numbers or texts. A single parameter is the complete text."""
    if text is None:
        return {}
    given = [text] if len(kind.parameters) == 1 else _listed(text)
    if len(given) != len(kind.parameters):
        raise LayoutError(f"{kind.title}<{text}>: {len(given)} parameters", legal=[parameter.name for parameter in kind.parameters])
    return {parameter.name: _value(parameter, value.strip()) for parameter, value in zip(kind.parameters, given, strict=True)}


def _value(parameter: Parameter, text: str) -> int | float | str:
    if parameter.text:
        return text
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    if parameter.real and re.fullmatch(r"-?(inf|[0-9]+\.[0-9]+|[0-9]+(\.[0-9]+)?e[-+][0-9]+)", text):
        return float(text)
    wanted, legal = ("number", "-1, 0.5, 1e-05, inf") if parameter.real else ("integer", "-1, 0, 1")
    raise LayoutError(f"{text!r} is not a valid {wanted}", legal=legal)


def _defined(text: str, defined: Mapping[str, str]) -> str:
    """Return an operand with its name replaced by its definition: `%7`, or with an index, `%7[@i, @j]`."""
    name, bracket, place = text.strip().partition("[")
    known = defined.get(name.strip())
    return text if known is None else f"{known}{bracket}{place}"


def _of_rank(view: View, rank: int) -> View:
    """Return the view of a complete tensor with dimensions of one element appended up to a rank."""
    missing = rank - len(view.dims)
    if missing <= 0 or view != whole_view(view.tensor):
        return view
    tensor = view.tensor
    layout = tensor.layout
    if isinstance(layout, Layout):
        layout = make_layout(*tensor.storage().layout, *[Layout(1, 0)] * missing)
    return whole_view(attrs.evolve(tensor, shape=(*tensor.shape, *[ONE] * missing), layout=layout))


def _options(text: str, symbols: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for item in _listed(text):
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "accumulate":
            options[name] = read_expression(value, symbols)
        elif name == "accumulator":
            options[name] = symbols[value] if value in symbols else as_dtype(SHORT.get(value, value))
        elif name == "names":
            options[name] = tuple(value.split())
        elif item.strip().startswith("signature="):
            options["signature"] = item.strip().removeprefix("signature=").replace(" ", ",")
        elif item.strip() == "in_parts":
            options[name] = True
        else:
            raise LayoutError(f"unknown option {item.strip()!r} of a spec", legal="accumulate=1 accumulator=fp32 in_parts names=i j")
    return options


# ------------------------------------------------------------------------------------------------------------------- printing


def spec_symbols(spec: Spec) -> dict[str, Any]:
    """Return the symbols that the text of a spec names."""
    own = {} if any(starter.kind == spec.kind for starter in STARTERS) else {spec.title: spec.kind}
    accumulator = () if spec.accumulator in (None, *DTYPES) else (spec.accumulator,)
    return {**symbols_of(spec.views, spec.accumulate, spec.level, accumulator), **own}


def spec_text(spec: Spec) -> str:
    """Return a spec in Graphene's notation. Raises: `LayoutError` if the notation cannot express it.

    >>> from fireiron import RF, Init, Warp
    >>> print(spec_text(Init(16, 8, dtype="float16")(RF)(Warp)))
    %dst:[16,8]:[1,16].fp16.RF <- Init<<<[1].block, #warp:[32].thread>>>()
    """
    return statement_text(spec, Execution())


def statement_text(spec: Spec, execution: Execution) -> str:
    """Return a spec with the arrangement of its blocks and threads; `parse_statement(statement_text(s, e), spec_symbols(s)) == (s, e)`."""
    return exact((spec, execution), [written_statement(spec, execution)], parse_statement, spec_symbols(spec))


def written_statement(spec: Spec, execution: Execution, shown: Callable[[View], str] = view_text, title: str = "") -> str:
    """Return the text of a statement; `shown` prints views, and `title` replaces the title of the kind."""
    views = {name: shown(view) for name, view in spec.operands.items()}
    inputs = (name for name in spec.operands if name not in spec.outputs)
    results, operands = (", ".join(views[name] for name in names) for names in (spec.outputs, inputs))
    options = ", ".join(_option_texts(spec))
    text = f"{results} <- {title or spec.title}{_parameter_text(spec)}<<<{execution_text(spec.level, execution)}>>>({operands})"
    return f"{text} {{{options}}}" if options else text


def _parameter_text(spec: Spec) -> str:
    values = dict(spec.parameters)
    return "" if values == spec.kind.defaults else f"<{', '.join(map(str, values.values()))}>"


def _option_texts(spec: Spec) -> Iterator[str]:
    for name in OPTIONS:
        value = getattr(spec, name)
        if value in (None, False, (), "", as_expr(0)):
            continue
        if name == "in_parts":
            yield name
        elif name == "signature":
            yield f"{name}={value.replace(',', ' ')}"
        elif name == "accumulate":
            yield f"{name}={expression_text(value)}"
        else:
            yield f"{name}={' '.join(value) if name == 'names' else dtype_text(value)}"
