"""Parts of calls without a GPU: arguments by name, names of gradients, routes of programs, nvidia-smi, included files, stand-ins for recording."""

import subprocess
import types

import pytest
from mapped import kernel_of
from test_traced_calls import PROGRAMS, repacked

from fireiron import *
from fireiron.gpu import replays, state
from fireiron.gpu.arguments import by_position
from fireiron.gpu.gradients import require_gradient
from fireiron.gpu.headers import _names

SPEC = MatMul(sym("M"), 12, 8)(GL, GL, GL)(Kernel)


@pytest.mark.parametrize(
    ("arrays", "named", "result"),
    [
        (("a", "b"), {}, (("a", "b"), {})),
        (("a", "b"), {"M": 3}, (("a", "b"), {"M": 3})),
        (("a",), {"B": "b", "M": 3}, (("a", "b"), {"M": 3})),
        ((), {"B": "b", "A": "a"}, (("a", "b"), {})),
    ],
    ids=str,
)
def test_arguments_by_name_follow_those_by_position(arrays, named, result):
    assert by_position(SPEC, arrays, named) == result


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [((), {"B": "b"}, "A: missing"), ((), {"A": "a"}, "B: missing"), (("a", "b"), {"A": "a"}, "A: given by position and by name")],
    ids=str,
)
def test_missing_and_repeated_arguments_are_refused(arrays, named, message):
    with pytest.raises(ArgumentError, match=message):
        by_position(SPEC, arrays, named)


# ---------------------------------------------------------------------------------------------- gradients


def program(inputs, outputs, sizes=(), adds_to=(), numbers=()):
    """The interface of a program; an array has the run-time size of its name in small letters, if there is one."""
    all_sizes = [types.SimpleNamespace(name=name) for name in sizes]
    return types.SimpleNamespace(
        program=types.SimpleNamespace(
            inputs=inputs.split(), outputs=outputs.split(), numbers=dict.fromkeys(numbers, float32), sizes=all_sizes, adds_to=adds_to,
            shape=lambda name: (name.lower(),),
        )
    )  # fmt: skip


FORWARD = program("split.X W f", "Y", sizes=("w", "n"), numbers=("f",))


@pytest.mark.parametrize(
    "gradient", [program("split.X W Y dY", "dW"), program("dY f", "dW dsplit_X"), program("W", "dW", ("w", "n"))], ids=range(3)
)
def test_gradients_of_an_operator(gradient):
    assert require_gradient(FORWARD, gradient, "verb") is None


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (program("V dY", "dW"), "verb: the gradient reads V, which the operator does not have"),
        (program("dW", "dW"), "the gradient reads dW"),
        (program("dY", "dV"), "the gradient writes dV, which is no gradient of an input"),
        (program("dY", "df"), "the gradient writes df"),
        (program("dY", "dW", adds_to=("dW",)), "verb: the gradient adds to dW"),
        (program("dY", "dW", sizes=("m",)), "verb: the gradient takes the size m, which the operator does not have"),
    ],
    ids=range(6),
)
def test_other_programs_are_no_gradients(gradient, message):
    with pytest.raises(ArgumentError, match=message):
        require_gradient(FORWARD, gradient, "verb")


# ---------------------------------------------------------------------------------------------- routes


def test_routes_of_one_and_of_two_launches():
    single, number, two = (kernel_of(make()).route for make in (PROGRAMS["rows"], PROGRAMS["a number"], repacked))
    assert (single.before, single.temporaries, single.takes, single.fills) == ((), 0, (0, 1), (2,))
    assert single.numbers == frozenset() and not single.writes
    assert number.numbers == {"f"} and number.inputs == ("X", "f")
    assert (len(two.before), two.temporaries, two.takes, two.fills, two.numbers) == (1, 1, (3, 1), (2,), frozenset())
    (copy,) = two.before
    assert (copy.takes, copy.fills) == ((0,), (3,)) and two.call_arrays(["a", "b"], None) == ["a", "b", None, None]


# ---------------------------------------------------------------------------------------------- nvidia-smi, headers, stand-ins


@pytest.mark.parametrize("bus", [None, "00:1"])
def test_the_command_of_nvidia_smi(bus, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        assert options["check"] and options["timeout"] and options["text"]
        return types.SimpleNamespace(stdout="1980, 41, 120.5\n1200, 30, 70\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert state._smi(bus) == ["1980", "41", "120.5"]
    ((name, query, form, *rest),) = commands
    assert (
        name == "nvidia-smi"
        and query.startswith("--query-gpu=")
        and "csv,noheader" in form
        and rest == ([] if bus is None else ["-i", bus])
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('#include "a.h"\n# include <b.h>', (("a.h", True), ("b.h", False))),
        ("#inc\\\nlude <a.h>", (("a.h", False),)),
        ("#include /* */ <a.h>", (("", False), ("a.h", False))),
        ("#include NAME", (("", False),)),
        ("#include_next <a.h>", (("", False),)),
        ("#if __has_include(<a.h>)", (("", False),)),
        ("#embed <a.h>", (("", False),)),
        ("int included, x_import;", ()),
    ],
)
def test_names_of_included_files(text, names):
    """An empty name: a file that is not followed."""
    assert {*_names(text)} == {*names}


@pytest.mark.parametrize("address", [4096, 4096 + 16, 4096 + 4, 4096 + 48])
def test_stand_ins_have_the_alignment_of_the_tensor_and_enough_memory(address, monkeypatch):
    created = []

    class Memory:
        def __init__(self, elements, dtype, device):
            self.elements = elements

        def as_strided(self, shape, strides, offset):
            created.append((self.elements, shape, strides, offset))

    monkeypatch.setitem(
        replays.sys.modules, "torch", types.SimpleNamespace(zeros=lambda count, dtype, device: Memory(count, dtype, device))
    )
    tensor = types.SimpleNamespace(
        shape=(3, 5), stride=lambda: (8, 1), data_ptr=lambda: address, element_size=lambda: 4, dtype="float32", device="cuda:0"
    )
    replays._stand_in(tensor)
    ((elements, shape, strides, offset),) = created
    low = address % 64
    assert (shape, strides, offset) == ((3, 5), (8, 1), (low & -low) // 4)
    assert offset + 2 * 8 + 5 <= elements <= 2 * 8 + 5 + 16
    assert replays._stand_in(2.5) == 2.5
