"""Huge inputs, legal or nearly so: layouts, swizzles, tiles, chains, bounds, texts, JSON, numbers; each is answered soon.

Sizes are powers of two over a wide range, so that excessive growth is detected at large sizes and at the first one where it shows.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping

import fireiron
from attacks.guard import Input
from fireiron import *
from fireiron import notebook
from fireiron.cli.folded import table
from fireiron.export.unit import Unit
from fireiron.gpu import headers
from fireiron.graphene import parse_strategy
from fireiron.language import store
from fireiron.language.store import expression
from fireiron.tasks import event_text
from fireiron.tune.record import describe, spec_of
from fireiron.values.layout import algebra

PIPED = MatMul.tile(32, 32).to(Block).split(8).pipeline(3).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
TINY = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()


def _all(value: object, *names: str) -> object:
    """Several methods or properties; a refusal of one does not skip the others."""
    refused = None
    for name in names:
        try:
            attribute = getattr(value, name)
            if callable(attribute):
                attribute()
        except FireironError as error:
            refused = error
    if refused is not None:
        raise refused
    return value


LOOKS = (
    "size",
    "cosize",
    "depth",
    "rank",
    "is_bijective",
    "is_injective",
    "offsets",
    "static",
    "__str__",
    "__repr__",
    "__hash__",
    "coordinate",
    "expression",
)


def _layout(n: int) -> object:
    return _all(Layout((n,), (1,)), *LOOKS)


def _modes(n: int) -> object:
    n = min(n, 5000)
    return _all(Layout((2,) * n, tuple(2 ** min(i, 62) for i in range(n))), *LOOKS)


def _nested(n: int) -> object:
    shape: object = 2
    for _ in range(min(n, 100_000)):
        shape = (shape,)
    return Layout(shape, shape)


def _pairs(n: int) -> object:
    first, other = Layout((n, 3), (3, 1)), Layout((7, n), (n, 1))
    for name in (
        "composition",
        "complement",
        "logical_divide",
        "logical_product",
        "right_inverse",
        "left_inverse",
        "coalesce",
        "zipped_divide",
        "blocked_product",
    ):
        if (function := getattr(algebra, name, None)) is not None:
            for arguments in ((first, other), (first,), (first, n)):
                with contextlib.suppress(FireironError, TypeError):
                    function(*arguments)
    return first


def _program(strategy: object, spec: object) -> object:
    """Everything computed from a kernel before it runs."""
    program = strategy(spec).program("sm_80")  # type: ignore[operator]
    return _all(program, "ir", "cuda", "trace", "text", "tree")


def _matrix(*sizes: int, **options: object) -> object:
    return MatMul(*sizes, **options)(GL, GL, GL)(Kernel)


BIG = 1 << 30


def _clip(n: int) -> int:
    """A size that specs accept."""
    return max(1, min(n, 2**31 - 4096 - 1))


FAMILIES: Mapping[str, Callable[[int], object]] = {
    "a layout of one mode": _layout,
    "a layout of many modes": _modes,
    "a layout nested deep": _nested,
    "operations on layouts": _pairs,
    "a swizzle of many bits": lambda n: _all(Swizzle(n.bit_length(), 0, n.bit_length()), "size", "__str__", "expression"),
    "tile": lambda n: _program(MatMul.tile(_clip(n), _clip(n)).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), _clip(n), 8)),
    "tile of a thread": lambda n: _program(MatMul.tile(_clip(n), _clip(n)).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), _clip(n), 8)),
    "registers": lambda n: _program(
        MatMul.tile(64, 64).to(Block).tile(4, 4).to(Thread).epilog(RF).split(_clip(n)).load(A, RF).load(B, RF).split(1).tile(1, 1).done(), _matrix(64, 64, _clip(n))
    ),
    "split": lambda n: _program(MatMul.tile(32, 32).to(Block).split(_clip(n)).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done(), _matrix(64, 64, _clip(n))),
    "sizes": lambda n: _program(TINY, _matrix(_clip(n), _clip(n), _clip(n))),
    "a leading dimension": lambda n: _program(TINY, _matrix(8, 8, 8, A=RowMajor(ld=n))),
    "bounds": lambda n: _program(TINY, _matrix(sym("M", low=1, high=n), sym("N", multiple_of=n), 8)),
    "unroll": lambda n: _program(MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).unroll().tile(1, 1).done(), _matrix(8, 8, _clip(n))),
    "unroll by": lambda n: _program(MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).unroll(n).tile(1, 1).done(), _matrix(8, 8, BIG)),
    "stages": lambda n: _program(
        MatMul.tile(32, 32).to(Block).split(8).pipeline(n).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done(), _matrix(64, 64, 64)
    ),
    "padding": lambda n: _program(MatMul.tile(32, 32).to(Block).split(8).load(A, SH).pad(n).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done(), _matrix(64, 64, 64)),
    "bands": lambda n: _program(MatMul.tile(4, 4).to(Block).rasterize(group_m=n).tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(8, 8, 8)),
    "parts of k": lambda n: _program(MatMul.tile(4, 4).to(Block).split_k(n).tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(8, 8, _clip(n))),
    "persistent": lambda n: _program(MatMul.tile(4, 4).to(Block).persistent(n).tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), 8, 8)),
    "a long loop": lambda n: _program(PIPED, _matrix(32, 32, _clip(n))),
    "a long loop and many blocks": lambda n: _program(PIPED, _matrix(_clip(n), 32, _clip(n // 3 + 1))),
    "a prediction of a long loop": lambda n: fireiron.predict(PIPED(_matrix(33, 32, _clip(n))), "H200"),
    "a cluster": lambda n: _program(MatMul.tile(4, 4).to(Block).cluster(n, 1).tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), 8, 8)),
    "hilbert": lambda n: _program(MatMul.tile(4, 4).to(Block).hilbert().tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), _clip(n), 8)),
    "a chain": lambda n: _chain(n),
    "a tile by layouts": lambda n: _program(MatMul.tile(Strided((2,) * n.bit_length(), tuple(2 ** i for i in range(n.bit_length()))), 4).to(Block).tile(1, 1).to(Thread).split(1).done(), _matrix(_clip(n), 8, 8)),
    "a strided tile": lambda n: _program(MatMul.tile(Strided((_clip(n), 2)), 4).to(Block).tile(1, 1).to(Thread).split(1).done(), _matrix(_clip(2 * n), 8, 8)),
    "storage": lambda n: _program(
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH).storage_layout(Layout((32, 8), (n, 1))).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done(), _matrix(64, 64, 64)
    ),
    "swizzled storage": lambda n: _program(
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH).swizzle_storage(Swizzle(n.bit_length(), 0, n.bit_length())).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done(),
        _matrix(64, 64, 64),
    ),
    "values of a tunable": lambda n: Tunable("bm", *range(1, min(n, 300_000) + 1)),
    "a move": lambda n: _program(Move.tile(_clip(n), 1).to(Block).tile(1, 1).to(Thread).done(), Move(_clip(n), 8)(GL, GL)(Kernel)),
    "a vector": lambda n: vector(n),
    "an own level": lambda n: _all(Level("Many", Block, Layout(n)), "threads", "__str__", "__repr__"),
    "a number in an expression": lambda n: expression("9" * min(n, 100_000)),
    "a power in an expression": lambda n: expression(f"9**{n}"),
    "powers of powers": lambda n: expression("**".join(["9"] * min(n, 1000))),
    "a shift in an expression": lambda n: expression(f"1<<{n}"),
    "a product in an expression": lambda n: expression("*".join(["99999999999"] * min(n, 20_000))),
    "a sum in an expression": lambda n: expression("+".join(["Var('M', 1, 9, 1, True)"] * min(n, 20_000))),
    "parentheses in an expression": lambda n: expression("(" * n + "1" + ")" * n) if n < 1_000_000 else expression("(" * 100_000),
    "minuses in an expression": lambda n: expression("-" * min(n, 200_000) + "1"),
    "an order of blocks": lambda n: MatMul.tile(8, 8).to(Block).swizzle(f"uid << {n}"),
    "an order of powers": lambda n: MatMul.tile(8, 8).to(Block).swizzle(f"uid ** {n}"),
    "an order of many terms": lambda n: MatMul.tile(8, 8).to(Block).swizzle("^".join(["uid"] * min(n, 20_000))),
    "an order that is worked out": lambda n: _program(MatMul.tile(4, 4).to(Block).swizzle("uid ^ 1").tile(1, 1).to(Thread).split(1).tile(1, 1).done(), _matrix(_clip(n), 8, 8)),
    "a sum": lambda n: Kind("K", "y[i] = " + " + ".join(["x[i]"] * min(n, 20_000))),
    "parentheses": lambda n: Kind("K", "y[i] = " + "(" * min(n, 100_000) + "x[i]" + ")" * min(n, 100_000)),
    "calls": lambda n: Kind("K", "y[i] = " + "relu(" * min(n, 100_000) + "x[i]" + ")" * min(n, 100_000)),
    "a number": lambda n: Kind("K", "y[i] = x[i] * " + "9" * min(n, 1_000_000)),
    "spaces": lambda n: Kind("K", "y[i] =" + " " * min(n, 1_000_000) + "x[i]"),
    "a name": lambda n: Kind("K" * min(n, 1_000_000), "y[i] = x[i]"),
    "dimensions": lambda n: Kind("K", f"y[{','.join(f'i{one}' for one in range(min(n, 3000)))}] = 1"),
    "statements": lambda n: Kind("K", "; ".join(f"y{one}[i] = x[i]" for one in range(min(n, 3000)))),
    "an epilogue": lambda n: MatMul.fuse_epilogue("acc" + " + acc" * min(n, 5_000), Move),
    "definitions of many steps": lambda n: Fused(
        name="f", dims="m", operands={"X": "m", "Y": "m"}, body={f"s{one}": f"t{one}[m] = X[m]" for one in range(min(n, 2000))} | {"y": "Y[m] = X[m]"}
    ),
    "definitions of long names": lambda n: Fused(name="f" * min(n, 10**6), dims="m", operands={"X": "m", "Y": "m"}, body={"y": "Y[m] = X[m]"}),
    "JSON nested deep": lambda n: store.loads("[" * min(n, 10**7) + "]" * min(n, 10**7)),
    "JSON of long numbers": lambda n: store.loads(store.dumps(MatMul.tile(8, 8)).replace("8", "9" * min(n, 10**6), 1)),
    "JSON of large numbers": lambda n: store.loads(store.dumps(MatMul.tile(8, 8)).replace("8", str(n), 1)),
    "JSON of exponents": lambda n: store.loads(store.dumps(MatMul.tile(8, 8)).replace("8", f"1e{n}", 1)),
    "JSON of many sizes": lambda n: store.loads(store.dumps(MatMul.tile(8, 8)).replace("8", ", ".join(["8"] * min(n, 300_000)), 1)),
    "JSON of many steps": lambda n: _document(n),
    "JSON of long texts": lambda n: store.loads(store.dumps(MatMul.tile(8, 8)).replace('"Tile"', '"' + "x" * min(n, 10**7) + '"')),
    "JSON of many fields": lambda n: store.loads("{" + ", ".join(f'"x{one}": 1' for one in range(min(n, 50_000))) + "}"),
    "JSON of one field": lambda n: store.loads("{" + ", ".join(['"x": 1'] * min(n, 50_000)) + "}"),
    "JSON of layouts": lambda n: store.loads(
        store.dumps(MatMul.tile(Strided((4, 8), (4, 8)))).replace("4", str(_clip(n)), 1)
    ),
    "a record": lambda n: Record.parse(_record(n)),
    "a record of a long stride": lambda n: spec_of({**describe(_matrix(8, 8, 8)), "layouts": {"A": f"Strides({'m=1, ' * min(n, 100_000)}k=1)", "B": "col", "C": "col"}}),
    "a record of long sizes": lambda n: spec_of({**describe(_matrix(8, 8, 8)), "sizes": {"M": n, "N": "N" * min(n, 10**6), "K": 8}}),
    "spaces in a kernel's text": lambda n: parse_strategy("%1" + " " * min(n, 10**6) + "x"),
    "arrows in a kernel's text": lambda n: parse_strategy("%1 <- " * min(n, 100_000)),
    "lines in a kernel's text": lambda n: parse_strategy("Sync\n" * min(n, 100_000)),
    "specs in a kernel's text": lambda n: parse_strategy("%c <- Spec<<<" + "#t, " * min(n, 50_000) + ">>> (%a) { }"),
    "a shape in a kernel's text": lambda n: parse_strategy("%a:[" + "(" * min(n, 100_000) + ")" * min(n, 100_000) + "].fp32.GL\n"),
    "sizes in a kernel's text": lambda n: parse_strategy(f"%a:[({n},{n}):(1,{n})].fp32.GL\n"),
    "spaces in events": lambda n: event_text.parse("e = " + " " * min(n, 10**6) + "call(x), {}"),
    "brackets in events": lambda n: event_text.parse("x = [" + "0, " * min(n, 100_000) + "for pfor [0, 4), {} do"),
    "sizes in events": lambda n: event_text.parse(f"T = argument([{n}, {'4' * min(n, 10**5)}], float32, GLOBAL)\n"),
    "headers": lambda n: headers.included("/*" * min(n, 10**6), (), ()),
    "directives": lambda n: headers.included("#" + " " * min(n, 10**6) + "include", (), ()),
    "lines that go on": lambda n: headers.included("\\" + " " * min(n, 10**6), (), ()),
    "many directives": lambda n: headers.included(f'#include "{"x" * 300}"\n' * min(n, 20_000), (), ()),
    "a micro-kernel": lambda n: MicroKernel("k", "c[0] = 0; " * min(n, 100_000)),
    "quotes in a micro-kernel": lambda n: _program(MatMul.tile(8, 8).to(Block).done(MicroKernel("k", '"\\"' * min(n, 100_000))), _matrix(8, 8, 8)),
    "a table": lambda n: table([["x" * min(n, 100_000), "y"], ["a " * min(n, 30_000), "b"]], ["one", "other"], width=80),
    "rows of a table": lambda n: table([["x", "y"]] * min(n, 20_000), ["one", "other"], width=None),
    "a page of a layout": lambda n: notebook.html(Layout((n, 2), (1, n))),
    "a page of a swizzle": lambda n: notebook.html(Swizzle(n.bit_length(), 0, n.bit_length())),
    "a page of a chain": lambda n: notebook.html(MatMul.tile(_clip(n), _clip(n)).to(Block)),
    "pictures": lambda n: fireiron.draw(TINY(_matrix(_clip(n), _clip(n), 8)), "tree").svg,
    "the owners of a large tile": lambda n: fireiron.draw(MatMul.tile(512, 512).to(Block).tile(_clip(n), 16).to(Thread).split(1).tile(1, 1).done()(_matrix(512, 512, 8)), "tiles"),
    "a prediction": lambda n: fireiron.predict(TINY(_matrix(_clip(n), _clip(n), _clip(n))), "H200"),
    "an export": lambda n: Unit.of(TINY(_matrix(sym("M", high=_clip(n)), sym("N", high=_clip(n)), _clip(n))).program("sm_80"), "gemm").check_function(),
    "names of exports": lambda n: Unit.of(TINY(_matrix(8, 8, 8)).program("sm_80"), "x" * min(n, 10**6)),
    "names of kernels": lambda n: TINY(_matrix(8, 8, 8)).program("sm_80", name="x" * min(n, 10**6)).cuda,
    "names of symbols": lambda n: sym("x" * min(n, 10**6)),
    "tensors": lambda n: _all(Tensor("t", (n, n), float32, GL), "__repr__", "__str__"),
}  # fmt: skip
"""Objects constructed from a size."""


def _chain(n: int) -> object:
    chain = MatMul
    for _ in range(min(n, 3_000)):
        chain = chain.tile(8, 8)
    return _program(chain.to(Block).done(), _matrix(8, 8, 8))


def _document(n: int) -> object:
    document = json.loads(store.dumps(MatMul.tile(8, 8)))
    steps = next(value for value in _values(document) if isinstance(value, list) and value and isinstance(value[0], dict))
    steps *= min(n, 20_000)
    return store.loads(json.dumps(document))


def _values(document: object) -> Iterator[object]:
    yield document
    for part in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from _values(part)


def _record(n: int) -> str:
    from attacks.stored import records

    line = json.loads(records()[0])
    line["values"] = {f"x{one}": one for one in range(min(n, 20_000))}
    line["us"] = n
    return json.dumps(line)


def draw(choose: random.Random, count: int = 12) -> Iterator[Input]:
    """Families and sizes: powers of two and adjacent numbers, and a few numbers of hundreds of digits."""
    for _ in range(count):
        name = choose.choice(list(FAMILIES))
        number = choose.choice(
            (choose.randint(1, 64), 2 ** choose.randint(1, 40) + choose.randint(-1, 1), 10 ** choose.choice((9, 19, 400)))
        )
        yield handed(name, number)


def handed(name: str, number: int) -> Input:
    """A family with a size."""
    return Input(f"from attacks.large import FAMILIES\nFAMILIES[{name!r}]({number})", lambda: FAMILIES[name](number))
