"""The answers of every step and refinement to arguments of any kind, field by field: a table, `goldens/wrong_arguments.txt`.

The attacks test whether an answer is fair (`attacks.constructors`); this test detects unintended changes. Extensions without a line are not
tested.
"""

import functools
import json
import re
from pathlib import Path

import attrs
import corpus
from goldens.readable import differences

from fireiron import *
from fireiron import Decomposition, Refinement
from fireiron.errors import FireironError
from fireiron.language.store import loads
from fireiron.values.expr import Const

TABLE = Path(__file__).resolve().parent / "goldens" / "wrong_arguments.txt"
VALUES = (
    None, True, False, -1, 0, 1, 2, 3, 64, 255, 256, 1024, 1025, 4097, 2**16, 2**16 + 1, 2**31, 2**40, 1.5, "", "k", "m", "x y", "x\ny", "a" * 300, b"k", (), (1,), (1, 1),
    (0, 1), (1, 0), ("k",), (("k", 8),), [8], {}, {"k": 8}, GL, SH, RF, VAL, Block, Warp, Lane, float16, float32, tf32, A, RowMajor, RowMajor(ld=8), Layout((2, 2), (1, 2)),
    Swizzle(1, 0, 3), Const(8), sym("s"), MatMul, Move, Move.done(), Init.done(), Move.tile(1, 1).to(Thread).done(), Unroll(), Sync(), 8 + 1j, object,
)  # fmt: skip


@functools.cache
def examples():
    """A step or refinement of each class, the first one in the corpus, by its name."""
    by_class, seen = {}, set()
    for stored in corpus.kept():
        text = json.dumps(stored.strategy)
        names = {*re.findall(r'"type": "(\w+)"', text)}
        if names <= seen:  # all its classes are in earlier strategies
            continue
        try:
            strategy = loads(text)
        except FireironError:
            continue
        seen |= names
        for each in _parts(strategy.steps):
            by_class.setdefault(type(each).__name__, each)
    return dict(sorted(by_class.items()))


def _parts(steps):
    for step in steps:
        yield step
        yield from step.refinements
        for field in attrs.fields(type(step)):
            value = getattr(step, field.name)
            if isinstance(value, tuple) and value and all(isinstance(one, Decomposition) for one in value):
                yield from _parts(value)


def answer_to(example, field, value):
    """The answer of a class to a value of a field, all others being right."""
    try:
        changed = attrs.evolve(example, **{field.alias: value})
    except FireironError as error:
        return f"{type(error).__name__}: {error.asked} | {error.legal} | {error.hint}"
    except Exception as error:
        return type(error).__name__
    return f"{changed}"


def answers():
    """By class and field, the answer to each value."""
    for name, example in examples().items():
        assert isinstance(example, (Decomposition, Refinement))
        if name == "TaskProgram":  # contains Python functions
            continue
        for field in attrs.fields(type(example)):
            if field.init and field.name not in ("origin", "refinements"):
                yield f"{name}.{field.name}", [answer_to(example, field, value) for value in VALUES]


def lines():
    """For each field the answers, each with its values; the most frequent answer applies to all others."""
    for name, field_answers in answers():
        yield name
        values = {}
        for value, answer in zip(VALUES, field_answers, strict=True):
            values.setdefault(answer, []).append(shortened(value))
        most = max(values, key=lambda answer: len(values[answer]))
        for answer, given in values.items():
            yield f"    {answer}  <-  {'all others' if answer == most and len(given) > 1 else ', '.join(given)}"


def shortened(value):
    text = repr(value)
    return text if len(text) < 40 else f"{text[:36]}..."


def parts(text):
    """The lines about each field, by its name."""
    parts_by_line = {}
    for line in text:
        if not line.startswith(" "):
            parts_by_line[line] = of = []
        of.append(line)
    return parts_by_line


def test_no_answer_changes_by_the_way():
    """Fields that are missing in the table are not tested."""
    known = parts(TABLE.read_text(encoding="utf-8").splitlines())
    now = [line for name, of in parts(lines()).items() if name in known for line in of]
    changes = differences(TABLE, "\n".join(now))
    assert not changes, changes
