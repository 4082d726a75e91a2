"""Hand-made IR comes from the factories of `making`, so that a new or moved field of a node breaks no test."""

import ast
import inspect
import re
from pathlib import Path

import attrs
import making
import pytest

from fireiron import *
from fireiron import ir
from fireiron.values.expr import TRUE, ZERO, Var, as_expr

TESTS = Path(__file__).resolve().parent
NAMES = {cls.__name__: factory.__name__ for cls, factory in making.FACTORIES.items()}
AS_USERS_DO = ("making.py", "test_making.py", "test_extensions.py")
"""The factories, and extensions written as the documentation shows."""

CALLED = re.compile(rf"\b({'|'.join(NAMES)})\(")
VAR = Var("k", 0, 3)
TENSOR = Move(4, 4)(GL, GL)(Kernel).operands["src"].tensor
GIVEN = {
    "kernel": {}, "buffer": {"tensor": TENSOR}, "access": {"buffer": "src", "base": (ZERO, ZERO)}, "piece": {"first": 0},
    "tensor_map": {"name": "map", "buffer": "src", "order": (0, 1), "box": (4, 4), "span": 4}, "hole": {"child": "body"},
    "comment": {"text": "a"}, "step_marker": {"step": ()}, "let": {"var": VAR, "value": ZERO}, "loop": {"var": VAR, "extent": as_expr(4)},
    "execution": {"instruction": None, "spec": None, "accesses": ()}, "if_any_lane": {"needed": "needed"},
    "sync_point": {"require": True, "subject": "src"}, "scope": {"name": "warp", "threads": 32}, "barrier": {}, "cluster_barrier": {},
    "commit": {}, "wait": {}, "fence": {"kind": ir.FenceKind.ASYNC_PROXY}, "grid_dep_control": {"action": None},
    "ring": {"name": "k_ring", "stages": 2, "buffers": ("src",)}, "acquire": {"ring": "k_ring", "state": ir.StageState.FULL, "fill_index": VAR},
    "release": {"ring": "k_ring", "state": ir.StageState.FULL, "fill_index": VAR}, "role": {"name": "producer", "first": 0, "threads": 32},
    "roles": {"roles": ()}, "claim_tile": {"var": VAR, "tiles": as_expr(4), "ring": "k_ring", "fill_index": VAR},
    "exit_if_done": {"tile": VAR, "tiles": as_expr(4)}, "counter": {"name": "counter"}, "block_cluster": {"sizes": (2,), "places": (ZERO,)},
    "block_set": {"pattern": (0,), "first": ZERO},
    "semaphore_barrier": {"action": ir.SemaphoreAction.LAST, "index": ZERO, "blocks": as_expr(4)},
}  # fmt: skip
"""The required arguments of each factory."""


def direct(tree):
    """The direct calls of classes that have a factory: their lines and names."""
    names, modules = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[:2] == ["fireiron", "ir"]:
                names |= {one.asname or one.name: one.name for one in node.names}
            elif node.module == "fireiron":
                modules |= {one.asname or one.name for one in node.names if one.name == "ir"}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if names.get(name) in NAMES:
                yield node.lineno, names[name]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)) if module in modules and name in NAMES:
                yield node.lineno, name


def test_no_test_makes_ir_without_a_factory():
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name not in AS_USERS_DO and CALLED.search(text):
            wrong += [f"{path.relative_to(TESTS)}:{line}: {name}: making.{NAMES[name]}" for line, name in direct(ast.parse(text))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "from fireiron import ir\nir.For(a, b, c)",
        "from fireiron.ir import For\nFor(a, b, c)",
        "from fireiron.ir.statement import For as F\nF()",
    ],
)
def test_direct_calls_are_seen(text):
    assert [*direct(ast.parse(text))] == [(2, "For")]


def test_other_calls_are_ignored():
    assert not [*direct(ast.parse("from fireiron.ir import For\nfrom ast import Let\nisinstance(a, For)\nLet(1)\nloop.For()"))]


def test_each_statement_has_a_factory():
    statement_classes = {one for one in vars(ir).values() if inspect.isclass(one) and issubclass(one, ir.Stmt) and one is not ir.Stmt}
    assert statement_classes <= making.FACTORIES.keys()


@pytest.mark.parametrize("cls", making.FACTORIES)
def test_a_factory_fills_the_rest(cls):
    factory = making.FACTORIES[cls]
    node = factory(**GIVEN[factory.__name__])
    assert type(node) is cls
    for name, value in GIVEN[factory.__name__].items():
        assert getattr(node, name) == value


def test_kernel_takes_only_what_a_test_needs():
    body = (making.loop(VAR, as_expr(4), (making.commit(),), stages=2), making.wait(1))
    kernel = making.kernel(body=body, threads=64, chained=True)
    assert (kernel.body, kernel.threads, making.effect_of(kernel, "chained"), kernel.grid) == (
        body,
        64,
        True,
        as_expr(1),
    ) and making.ask_of(kernel.body[0], "stages") == 2
    assert attrs.evolve(making.piece(3), condition=TRUE) == making.piece(3, 1, condition=TRUE) == ir.Piece(3, 1, TRUE)
