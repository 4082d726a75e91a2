"""Repeated statements on registers become functions: each call executes the statements that it replaces."""

import re

import attrs
import making
import pytest

from fireiron.cuda import emit, outlining
from fireiron.cuda.outlining import OutlinedCall, outlined
from fireiron.cuda.reductions import with_reductions
from fireiron.cuda.statements import straightened
from fireiron.cuda.versions import branched
from fireiron.ir import Comment, Exec, For, execs, rewritten, statements, substituted
from fireiron.language import library
from fireiron.values.expr import Var, as_expr, less

THREAD = Var("thread", 0, 255)
"""That of two warpgroups of consumers."""

FORMS = ("hopper_attention", "hopper_attention:causal", "hopper_attention:causal_order_mma", "attention_packed:hopper")


def program_of(form):
    """The IR of an entry of the library."""
    return library.bind(library.find(form), {}).program("sm_90a").ir


def kernel_of(form):
    """The kernel of a form of attention, as the printer transforms it before it outlines statements."""
    return with_reductions(branched(straightened(program_of(form))))


def calls_of(kernel):
    """The calls of functions in a kernel."""
    return [stmt for stmt in statements(kernel.body) if isinstance(stmt, OutlinedCall)]


def with_bodies(kernel):
    """The statements of a kernel with the body of its function for each call."""

    def body_of(stmt):
        if not isinstance(stmt, OutlinedCall):
            return (stmt,)
        return substituted(stmt.function.body, dict(zip(stmt.function.parameters, stmt.arguments, strict=True)))

    return rewritten(kernel.body, body_of)


@pytest.fixture(scope="module", params=FORMS)
def kernel(request):
    return kernel_of(request.param)


def test_calls_execute_the_statements_that_they_replace(kernel):
    result = outlined(kernel)
    assert with_bodies(result) == kernel.body
    calls = calls_of(result)
    assert len(calls) >= 2 and len({call.function for call in calls}) * 2 <= len(calls)
    for call in calls:
        paths = [stmt.path for stmt, _ in execs(call.body)]
        assert paths == [stmt.path for stmt, _ in execs(call.function.body)]


def test_functions_access_registers_by_indices_of_their_own_loops(kernel):
    for call in calls_of(outlined(kernel)):
        for stmt, loops in execs(call.function.body):
            assert not stmt.asynchronous
            for access in stmt.accesses:
                buffer = kernel.buffer(access.buffer)
                if not buffer.memory.by_value and not buffer.memory.is_coordinate:
                    indices = {var for offset in access.elements() for var in buffer.address(access, offset).variables()}
                    assert buffer.memory.private and indices <= {loop.var for loop in loops}


def test_expressions_that_differ_are_arguments():
    first, second = calls_of(outlined(kernel_of("hopper_attention:causal")))
    (parameter,) = first.function.parameters
    loop = next(stmt for stmt in statements(kernel_of("hopper_attention:causal").body) if isinstance(stmt, For) and stmt.var.name == "n")
    assert (parameter.name, parameter.factor) == ("n_offset", 128)
    assert first.arguments == (as_expr(0),) and second.arguments == (loop.var * 128 + 128,)


def test_short_sequences_stay(monkeypatch):
    kernel = kernel_of("hopper_attention:causal")
    monkeypatch.setattr(outlining, "LEAST_LINES", 1000)
    assert outlined(kernel) is kernel


def changed(kernel, step, edit):
    """A kernel whose last statement of a step is another one."""
    last = [stmt for stmt, _ in execs(kernel.body) if stmt.path and stmt.path[-1] == step][-1]
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda stmt: (edit(stmt) if stmt is last else stmt,)))


@pytest.mark.parametrize(
    "edit",
    [
        lambda stmt: attrs.evolve(stmt, active=less(THREAD, 64)),
        lambda stmt: attrs.evolve(stmt, accesses=stmt.accesses[::-1]),
        lambda stmt: attrs.evolve(stmt, path=("elsewhere",)),
        lambda stmt: attrs.evolve(stmt, pieces=()),
        lambda stmt: making.comment("instead"),
    ],
    ids=["condition", "operands", "path", "no pieces", "other statement"],
)
def test_a_sequence_ends_before_a_different_statement(edit):
    kernel = kernel_of("hopper_attention:causal")
    other = changed(kernel, "exp", edit)
    result = outlined(other)
    assert with_bodies(result) == other.body
    steps = {stmt.path[-1] for call in calls_of(result) for stmt, _ in execs(call.body) if stmt.path}
    assert "alpha" in steps and "exp" not in steps


def test_the_text_has_each_function_once_and_before_the_kernel():
    kernel = program_of("hopper_attention:causal")
    text = emit(kernel)
    assert text.index("void s_to_l_parts(") < text.index("__global__")
    assert len(re.findall(r"\bs_to_l_parts\(", text)) == 3 and text.count("// exp: ") == 1
    assert "n * 128 + 128, block_m" in " ".join(text.split()) and "scale, 0, block_m" in " ".join(text.split())
    assert emit(kernel) == text


def test_other_kernels_have_no_functions():
    kernel = program_of("hopper")
    assert outlined(kernel) is kernel
    comments = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Comment)]
    assert comments and all(isinstance(stmt, Exec) for stmt, _ in execs(kernel.body))
