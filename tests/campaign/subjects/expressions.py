"""Index expressions: every one built by a draw, compared with its values over the whole domain; some of them printed and executed in C.

A seed of `expressions` makes `DRAWS` draws of `test_expr`; the last expression of each is also substituted into, decided and read back. A
seed of `expressions-in-c` prints `PRINTED` expressions, which a C compiler evaluates with its undefined-behavior sanitizer.
"""

import tempfile
from pathlib import Path

import numpy as np
from printed_text import COMPILER
from test_cuda_expressions import disagreements, drawn_expressions
from test_expr import check, check_facts, nodes
from test_expr import draw as drawn_expression

import fireiron.values.expr as expr
from campaign import Outcome, Subject, agreed, found

DRAWS = 100
PRINTED = 400


def draw(seed: int) -> Outcome:
    """`DRAWS` draws, each of several expressions."""
    features, expressions = set(), 0
    for number in range(DRAWS):
        drawn = None
        try:
            drawn = drawn_expression(expr, f"campaign {seed}-{number}")
            for case in drawn.pool[:-1]:
                _look_at(case, drawn.points)
            check(expr, drawn)
        except Exception as error:
            replay = f"from test_expr import *\ncheck(expr, draw(expr, 'campaign {seed}-{number}'))"
            return found(f"{type(error).__name__}: {error}\n{drawn or 'while it was drawn'}\n{replay}", features, expressions=expressions)
        features |= set(drawn.operations)
        expressions += len(drawn.operations)
    return agreed(features, expressions=expressions)


def _look_at(case, points):
    """Values, range, factor, bits and form of one subexpression."""
    got = np.broadcast_to(np.asarray(expr.compiled(case.expr)(points)), case.values.shape)
    assert np.array_equal(got, case.values), f"compiled, NumPy: {case.text}, which became {case.expr}"
    check_facts(expr, case.expr, case.values)
    for node in nodes(case.expr):
        assert node.rebuilt(node.children) == node, f"not simplified to the end: {node!r}"


def draw_in_c(seed: int) -> Outcome:
    """`PRINTED` expressions in one C program."""
    printed = drawn_expressions(PRINTED, seed=f"campaign {seed}")
    with tempfile.TemporaryDirectory() as folder:
        wrong = disagreements(printed, Path(folder))
    if wrong:
        return found(f"{len(wrong)} wrong\n" + "\n".join(wrong[:5]))
    return agreed(expressions=len(printed), wide=sum("long long" in one.text for one in printed))


SUBJECTS = (
    Subject(
        "expressions",
        "index expressions: values, ranges, factors, bits, normal form, substitution and decisions, over whole domains",
        draw,
        nightly=500_000,
        campaign=2_000_000,
        counted="expressions",
        first=20_240_229,
        chunk=10,
        sample=1,
    ),
    Subject(
        "expressions-in-c",
        "printed index expressions, evaluated by a C compiler with its sanitizer on",
        draw_in_c,
        nightly=20_000,
        campaign=100_000,
        counted="expressions",
        first=20_240_301,
        chunk=2,
        sample=0,
        needs=lambda: None if COMPILER else "there is no C compiler",
    ),
)
