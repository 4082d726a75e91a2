"""Statements with an interior and a boundary version become branches: adjacent ones with one condition share a branch, comments stay with
their statements.
"""

import attrs
import making
from handmade import access, kernel_of, local
from touching import Step

from fireiron import *
from fireiron.cuda.versions import Branch, branched
from fireiron.ir import Comment, For
from fireiron.values.expr import FALSE, TRUE, Var, all_of, as_expr, less

B, N, T = Var("block", 0, 7), Var("n", 0, 1 << 20), Var("thread", 0, 31)
SPEC = Move(1, 1)(RF, RF)(Thread)
WHOLE, OTHER = less(B, 7), less(B, 5)
EDGE = less(B * 32 + T, 250)
"""A consequence of WHOLE."""


def move(name, interior=WHOLE, implied=(EDGE,), more=TRUE):
    """A statement in two versions, or in one if `interior` is false; `more` is an additional condition."""
    pieces = ((making.piece(0, 1, condition=all_of((EDGE, more))),), (making.piece(0, 1, condition=EDGE),))
    operands = (access("x", (0,)), access(name, (0,), write=True))
    stmt = making.execution(Step(), SPEC, operands, active=all_of((EDGE, less(T, 9))), guard=EDGE, pieces=pieces)
    return stmt if interior == FALSE else attrs.evolve(stmt, interior=interior, implied=implied)


def body(*statements):
    return branched(kernel_of(Move(8, 8)(GL, GL), statements, *(local(name, (4,), RF) for name in "xyzw"))).body


def shape(statements):
    """Names of what is written, lists for branches and loops, and texts of comments."""
    shapes = []
    for stmt in statements:
        if isinstance(stmt, Branch):
            shapes.append((str(stmt.interior), shape(stmt.inside), shape(stmt.outside)))
        elif isinstance(stmt, For):
            shapes.append(shape(stmt.body))
        else:
            shapes.append(stmt.text if isinstance(stmt, Comment) else stmt.accesses[1].buffer)
    return shapes


def test_without_versions_nothing_changes():
    kernel = kernel_of(Move(8, 8)(GL, GL), (move("y", FALSE),), *(local(name, (4,), RF) for name in "xy"))
    assert branched(kernel) is kernel


def test_the_version_inside_has_no_conditions_that_are_implied():
    (branch,) = body(move("y", more=less(T, 3)))
    (inside,), (outside,) = branch.children
    assert (inside.active, inside.guard) == (less(T, 9), TRUE) and (outside.active, outside.guard) == (all_of((EDGE, less(T, 9))), EDGE)
    assert [[piece.condition for piece in pieces] for pieces in inside.pieces] == [[less(T, 3)], [TRUE]]
    assert [[piece.condition for piece in pieces] for pieces in outside.pieces] == [[all_of((EDGE, less(T, 3)))], [EDGE]]
    assert all(one.interior == FALSE and one.implied == () for one in (inside, outside))


def test_adjacent_statements_with_one_condition_share_a_branch():
    assert shape(body(move("y"), move("z"))) == [("block < 7", ["y", "z"], ["y", "z"])]
    assert shape(body(move("y"), move("z", OTHER))) == [("block < 7", ["y"], ["y"]), ("block < 5", ["z"], ["z"])]
    assert shape(body(move("y"), move("z", FALSE), move("w"))) == [("block < 7", ["y"], ["y"]), "z", ("block < 7", ["w"], ["w"])]


def test_comments_are_in_the_interior_version_and_trailing_ones_after_it():
    stmts = body(making.comment("a"), move("y"), making.comment("b"), move("z"), making.comment("c"), making.comment("d"))
    assert shape(stmts) == ["a", ("block < 7", ["y", "b", "z"], ["y", "z"]), "c", "d"]
    assert shape(body(move("y"), making.comment("c"), move("z", OTHER))) == [("block < 7", ["y"], ["y"]), "c", ("block < 5", ["z"], ["z"])]


def test_loops_of_a_statement_are_its_own():
    assert shape(body(making.loop(N, as_expr(4), (move("y"),)), move("z"))) == [("block < 7", [["y"], "z"], [["y"], "z"])]
    loop_of_two = making.loop(N, as_expr(4), (move("y"), move("z", FALSE)))
    assert shape(body(loop_of_two)) == [[("block < 7", ["y"], ["y"]), "z"]]
    assert shape(body(making.loop(N, as_expr(4), (move("y", less(N, 3)),)))) == [[("n < 3", ["y"], ["y"])]], "each turn decides"


def test_a_branch_is_a_statement():
    branch = Branch(less(B, N), (move("y", FALSE),), (move("z", FALSE),))
    assert branch.expressions == (less(B, N),) and shape(branch.rebuilt((branch.outside, ())).inside) == ["z"]
    assert branch.substitute({N: 3}).interior == less(B, 3) and branch.substitute({N: 3}).inside == branch.inside
