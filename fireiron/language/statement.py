"""Specs in Graphene's notation, and back: `%C <- MatMul<<<[1].block, #thread:[1].thread>>>(%A, %B)`, with the views in the places of their
names.

    statement  result, ... "<-" kind ["<" parameter, ... ">"] "<<<" execution ">>>" "(" operand, ... ")" ["{" option, ... "}"]

Results and operands are views, as `fireiron.values.notation` writes them; `fireiron.language.execution` says who computes. A name stands
for what a line before defines it to be, as in the paper's figures, and may have a place behind it, `%7[@i, @j]`. An operand of fewer
dimensions than the formula names has one element in those that it lacks.

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

STARTERS: Final = tuple(one for one in folders.public(specs.modules()).values() if isinstance(one, Starter))
IN_THE_PAPER: Final[Mapping[str, str]] = {"UnaryPW": "UnaryPointwise", "BinaryPW": "BinaryPointwise"}
"""The paper's names of kinds, where they are others."""

_STATEMENT = re.compile(r"(.*?)\s*(?:<-|←)\s*(\w+)\s*(?:<(?!<<)(.*?)>\s*)?<<<(.*?)>>>\s*\((.*)\)\s*(?:\{([^{}]*)\})?\s*", re.DOTALL)


def parse_spec(text: str, symbols: Mapping[str, Any] | None = None) -> Spec:
    """The spec that a statement denotes; `parse_spec(spec_text(s), spec_symbols(s)) == s`. Kinds of one's own are named by `symbols` too.

    >>> print(parse_spec("[].fp32.RF <- Move<<<[1].thread>>>([].fp32.GL)"))
    Move(1)(GL,RF)(Thread)
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
    """The spec of a statement, and how it arranges blocks and threads.

    >>> spec, execution = parse_statement("%C:[64].fp32 <- Init<<<#4:[8].block, #5:[4,8].thread>>>()")
    >>> print(spec, *execution.blocks, *execution.threads)
    Init(64)(GL)(Kernel) (8):(1) (4,8):(8,1)
    """
    if not isinstance(text, str):
        raise ArgumentError("a spec is parsed from text", got=text)
    *before, last = text.strip().splitlines() or [""]
    return read_statement(last, dict(read_definition(line) for line in before if line.strip()), symbols or {})


def read_statement(line: str, defined: Mapping[str, str], symbols: Mapping[str, Any], own: int | None = None) -> tuple[Spec, Execution]:
    """The spec of a statement of one line, and how it arranges blocks and threads; `defined` are the texts that names stand for.

    `own` are the threads of a block, where that is known: inside a kernel.
    """
    found = _STATEMENT.fullmatch(line.strip())
    if found is None:
        raise LayoutError(f"{line!r} is no spec", legal="%out <- Move<<<#blocks, #threads>>>(%in)")
    results, _, _, groups, operands, options = found.groups()
    kind = _kind(found[2], symbols)
    values = kind.filled(_parameters(kind, found[3]))
    chosen = _options(options or "", symbols)
    made = kind.of_signature(values, chosen["signature"]) if "signature" in chosen else kind.definition(values)
    texts = [_defined(one, defined) for one in (*_listed(operands), *_listed(results))]
    if len(texts) != len(made.uses) or len(_listed(results)) != len(made.outputs):
        raise LayoutError(f"{len(_listed(results))} results, {len(_listed(operands))} operands in {line!r}", legal=" ".join(made.uses))
    views = tuple(parse_view(one, symbols) for one in texts)
    views = _in_order(made, views)
    made = made if "signature" in chosen else kind.of_views(values, views)
    views = tuple(_of_rank(view, len(dims)) for view, dims in zip(views, made.uses.values(), strict=True))
    level, execution = parse_execution([defined.get(one.strip(), one) for one in _listed(groups)], symbols, own)
    return Spec(level, kind, views, values, **chosen), execution


def _in_order(made: Definition, views: tuple[View, ...]) -> tuple[View, ...]:
    """Operands and then results, in the order in which the formula names them."""
    names = [*(name for name in made.uses if name not in made.outputs), *made.outputs]
    found = dict(zip(names, views, strict=True))
    return tuple(found[name] for name in made.uses)


def read_definition(line: str) -> tuple[str, str]:
    """The name that a line defines, and the line."""
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
    raise LayoutError(f"no kind of spec is called {title}", legal=[starter.kind.title for starter in STARTERS])


def _parameters(kind: Kind, text: str | None) -> dict[str, Any]:
    """The parameters between `<` and `>`: numbers, or texts as they stand; one parameter takes all that stands there."""
    if text is None:
        return {}
    given = [text] if len(kind.parameters) == 1 else _listed(text)
    if len(given) != len(kind.parameters):
        raise LayoutError(f"{kind.title}<{text}>: {len(given)} parameters", legal=[one.name for one in kind.parameters])
    return {one.name: _value(one, value.strip()) for one, value in zip(kind.parameters, given, strict=True)}


def _value(parameter: Parameter, text: str) -> int | float | str:
    if parameter.text:
        return text
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    if parameter.real and re.fullmatch(r"-?(inf|[0-9]+\.[0-9]+|[0-9]+(\.[0-9]+)?e[-+][0-9]+)", text):
        return float(text)
    wanted, legal = ("number", "-1, 0.5, 1e-05, inf") if parameter.real else ("integer", "-1, 0, 1")
    raise LayoutError(f"{text!r} is no {wanted}", legal=legal)


def _defined(text: str, defined: Mapping[str, str]) -> str:
    """An operand by its definition: `%7` alone, or a place in it, `%7[@i, @j]`."""
    name, bracket, place = text.strip().partition("[")
    known = defined.get(name.strip())
    return text if known is None else f"{known}{bracket}{place}"


def _of_rank(view: View, rank: int) -> View:
    """All of a tensor of fewer dimensions as one of this many: behind its own come dimensions of one element."""
    missing = rank - len(view.dims)
    if missing <= 0 or view != whole_view(view.tensor):
        return view
    tensor = view.tensor
    layout = tensor.layout
    if isinstance(layout, Layout):
        layout = make_layout(*tensor.storage().layout, *[Layout(1, 0)] * missing)
    return whole_view(attrs.evolve(tensor, shape=(*tensor.shape, *[ONE] * missing), layout=layout))


def _options(text: str, symbols: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in _listed(text):
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "accumulate":
            found[name] = read_expression(value, symbols)
        elif name == "accumulator":
            found[name] = symbols[value] if value in symbols else as_dtype(SHORT.get(value, value))
        elif name == "names":
            found[name] = tuple(value.split())
        elif item.strip().startswith("signature="):
            found["signature"] = item.strip().removeprefix("signature=").replace(" ", ",")
        elif item.strip() == "in_parts":
            found[name] = True
        else:
            raise LayoutError(f"what is {item.strip()!r} behind a spec?", legal="accumulate=1 accumulator=fp32 in_parts names=i j")
    return found


# ------------------------------------------------------------------------------------------------------------------- printing


def spec_symbols(spec: Spec) -> dict[str, Any]:
    """What the text of a spec names."""
    own = {} if any(starter.kind == spec.kind for starter in STARTERS) else {spec.title: spec.kind}
    accumulator = () if spec.accumulator in (None, *DTYPES) else (spec.accumulator,)
    return {**symbols_of(spec.views, spec.accumulate, spec.level, accumulator), **own}


def spec_text(spec: Spec) -> str:
    """A spec in Graphene's notation; a `LayoutError` where no text says all of it.

    >>> from fireiron import RF, Init, Warp
    >>> print(spec_text(Init(16, 8, dtype="float16")(RF)(Warp)))
    %dst:[16,8]:[1,16].fp16.RF <- Init<<<[1].block, #warp:[32].thread>>>()
    """
    return statement_text(spec, Execution())


def statement_text(spec: Spec, execution: Execution) -> str:
    """A spec with the arrangement of its blocks and threads; `parse_statement(statement_text(s, e), spec_symbols(s)) == (s, e)`."""
    return exact((spec, execution), [written_statement(spec, execution)], parse_statement, spec_symbols(spec))


def written_statement(spec: Spec, execution: Execution, shown: Callable[[View], str] = view_text, title: str = "") -> str:
    """The text of a statement, with its views as `shown` writes them, and the kind by another name than its title."""
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
