"""Statements in two versions become branches of the text: neighbours with one condition stand in one, comments with what they are about."""

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
"""What WHOLE implies."""


def move(name, whole=WHOLE, implied=(EDGE,), more=TRUE):
    """A statement in two versions, or in one where `whole` is false; `more` is a condition that stays."""
    pieces = ((making.piece(0, 1, condition=all_of((EDGE, more))),), (making.piece(0, 1, condition=EDGE),))
    found = (access("x", (0,)), access(name, (0,), write=True))
    made = making.execution(Step(), SPEC, found, active=all_of((EDGE, less(T, 9))), guard=EDGE, pieces=pieces)
    return made if whole == FALSE else attrs.evolve(made, whole=whole, implied=implied)


def body(*statements):
    return branched(kernel_of(Move(8, 8)(GL, GL), statements, *(local(name, (4,), RF) for name in "xyzw"))).body


def shape(statements):
    """Names of what is written, lists for branches and loops, and texts of comments."""
    found = []
    for one in statements:
        if isinstance(one, Branch):
            found.append((str(one.whole), shape(one.inside), shape(one.outside)))
        elif isinstance(one, For):
            found.append(shape(one.body))
        else:
            found.append(one.text if isinstance(one, Comment) else one.accesses[1].buffer)
    return found


def test_without_versions_nothing_changes():
    kernel = kernel_of(Move(8, 8)(GL, GL), (move("y", FALSE),), *(local(name, (4,), RF) for name in "xy"))
    assert branched(kernel) is kernel


def test_the_version_inside_has_no_conditions_that_are_implied():
    (branch,) = body(move("y", more=less(T, 3)))
    (inside,), (outside,) = branch.children
    assert (inside.active, inside.guard) == (less(T, 9), TRUE) and (outside.active, outside.guard) == (all_of((EDGE, less(T, 9))), EDGE)
    assert [[piece.condition for piece in pieces] for pieces in inside.pieces] == [[less(T, 3)], [TRUE]]
    assert [[piece.condition for piece in pieces] for pieces in outside.pieces] == [[all_of((EDGE, less(T, 3)))], [EDGE]]
    assert all(one.whole == FALSE and one.implied == () for one in (inside, outside))


def test_neighbours_of_one_condition_stand_together():
    assert shape(body(move("y"), move("z"))) == [("block < 7", ["y", "z"], ["y", "z"])]
    assert shape(body(move("y"), move("z", OTHER))) == [("block < 7", ["y"], ["y"]), ("block < 5", ["z"], ["z"])]
    assert shape(body(move("y"), move("z", FALSE), move("w"))) == [("block < 7", ["y"], ["y"]), "z", ("block < 7", ["w"], ["w"])]


def test_comments_stand_in_the_first_part_and_last_ones_behind():
    found = body(making.comment("a"), move("y"), making.comment("b"), move("z"), making.comment("c"), making.comment("d"))
    assert shape(found) == ["a", ("block < 7", ["y", "b", "z"], ["y", "z"]), "c", "d"]
    assert shape(body(move("y"), making.comment("c"), move("z", OTHER))) == [("block < 7", ["y"], ["y"]), "c", ("block < 5", ["z"], ["z"])]


def test_loops_of_a_statement_are_its_own():
    assert shape(body(making.loop(N, as_expr(4), (move("y"),)), move("z"))) == [("block < 7", [["y"], "z"], [["y"], "z"])]
    several = making.loop(N, as_expr(4), (move("y"), move("z", FALSE)))
    assert shape(body(several)) == [[("block < 7", ["y"], ["y"]), "z"]]
    assert shape(body(making.loop(N, as_expr(4), (move("y", less(N, 3)),)))) == [[("n < 3", ["y"], ["y"])]], "each turn decides"


def test_a_branch_is_a_statement():
    branch = Branch(less(B, N), (move("y", FALSE),), (move("z", FALSE),))
    assert branch.expressions == (less(B, N),) and shape(branch.rebuilt((branch.outside, ())).inside) == ["z"]
    assert branch.substitute({N: 3}).whole == less(B, 3) and branch.substitute({N: 3}).inside == branch.inside
