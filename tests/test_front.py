"""The front end of calls: a user-defined call, `doubled`, states its differences and otherwise behaves like the others."""

import importlib
import inspect
import typing

import attrs
import numpy as np
import pytest

from fireiron import attention, matmul
from fireiron.errors import ArgumentError
from fireiron.front import cache
from fireiron.front.arrays import TYPES, is_empty, operand_of
from fireiron.front.call import Call, Copied, Empty, Request, copies_of, takes
from fireiron.matmul import request as matmul_request


@attrs.frozen
class Answer:
    """Doubles row-major arrays, and records its arguments."""

    choice: str
    kernel: str
    seen: list = attrs.field(factory=list, eq=False)

    def __call__(self, inputs, out, stream):
        x, factor = inputs
        assert x.flags.c_contiguous
        self.seen.append((x, stream))
        return np.multiply(x, factor, out=out)


def request(x, *, factor=2.0, out=None, arch=None, require_record=None):
    return Request((x,), out, None, arch, require_record, (factor,))


class Doubled(Call):
    arrays = 1

    def __call__(self, x, *, factor=2.0, out=None, arch=None, stream=None, require_record=None):
        return self.launched(request(x, factor=factor, out=out, arch=arch, require_record=require_record), stream)

    @takes(request)
    def choice(self, request: Request) -> str:
        """The selected kernel."""
        return self.answer(request).choice

    def new_answer(self, request):
        (x,), out = request.inputs, request.out
        given = operand_of(x, "x")
        if is_empty((x,)):
            return Empty("doubled", ((given.shape, TYPES[given.dtype], 0),))
        odd = frozenset((0,) if not x.flags.c_contiguous else ())
        is_stored = out is not None and not out.flags.c_contiguous
        answer = Answer(f"for {copies_of((x,), odd)[0].shape}", "a kernel")
        return Copied("doubled", answer, odd, is_stored) if odd or is_stored else answer


@pytest.fixture
def doubled():
    return Doubled()


def test_answers_are_cached(doubled):
    x, y = np.ones((3, 4), "float32"), np.zeros((3, 4), "float32")
    assert (doubled(x) == 2).all() and (doubled(x, factor=3.0) == 3).all() and (doubled(y) == 0).all()
    (answer,) = doubled.answers.entries.values()
    assert len(answer.seen) == 3 and doubled.choice(x) == "for (3, 4)"
    doubled(x, arch="sm_80"), doubled(x.astype("float16")), doubled(x, out=y)
    assert len(doubled.answers.entries) == 4
    doubled.clear()
    assert not doubled.answers.entries


def test_arrays_with_unusual_strides_are_copied(doubled):
    x, wide = np.arange(12, dtype="float32").reshape(4, 3), np.zeros((4, 6), "float32")
    assert (doubled(x.T) == 2 * x.T).all()
    assert doubled(x, out=wide[:, ::2]).base is wide and (wide[:, ::2] == 2 * x).all() and not wide[:, 1::2].any()
    with pytest.raises(ArgumentError, match="doubled: stream= is not supported, because arrays are copied"):
        doubled(x.T, stream=1)


def test_empty_arrays(doubled):
    x = np.ones((0, 4), "float16")
    assert doubled(x).shape == (0, 4) and doubled(x).dtype == np.float16 and doubled(x, out=x) is x
    with pytest.raises(ArgumentError, match="doubled: an array has no elements, so no kernel is chosen"):
        doubled.choice(x)


def test_the_least_recently_used_answer_is_evicted(doubled, monkeypatch):
    monkeypatch.setattr(cache, "MOST_KERNELS", 2)
    arrays = [np.ones(size, "float32") for size in (1, 2, 3)]
    doubled(arrays[0]), doubled(arrays[1]), doubled(arrays[0]), doubled(arrays[2])
    assert [key[0][0].shape for key in doubled.answers.entries] == [(1,), (3,)]
    doubled.answers.forget(lambda answer: answer.choice == "for (1,)")
    assert [key[0][0].shape for key in doubled.answers.entries] == [(3,)]


OF_GRADIENTS = ("deterministic",)
"""Arguments that only gradients have, so that no choice of a kernel depends on them."""


def test_one_signature_for_several_methods(doubled):
    """`choice` accepts what `request` declares, and has its signature."""
    assert str(inspect.signature(doubled.choice)) == "(x, *, factor=2.0, out=None, arch=None, require_record=None) -> str"
    assert doubled.choice.__doc__ == "The selected kernel." and doubled.choice.__name__ == "choice"
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        doubled.choice(np.ones(3), other=1)
    for call in (matmul, attention):
        stated, parameters = inspect.signature(call.choice).parameters, inspect.signature(call).parameters
        assert inspect.signature(call.kernel).parameters == stated
        assert set(parameters) - {"stream", *OF_GRADIENTS} == set(stated)
        assert all(parameters[name].default == one.default and parameters[name].kind == one.kind for name, one in stated.items())


@pytest.mark.parametrize("call", [matmul, attention], ids=["matmul", "attention"])
def test_overloads_state_what_the_request_declares(call):
    """Type checkers need overloads written out: their names, and the types of their options, are those of `request`."""
    module = importlib.import_module(type(call).__module__)
    declared = {name: one.annotation for name, one in inspect.signature(module.request).parameters.items()} | {"stream": "object"}
    named = set()
    for overload in typing.get_overloads(type(call).__call__):
        own = {name: one.annotation for name, one in inspect.signature(overload).parameters.items() if name != "self"}
        if own.pop("options", None) is not None:  # Unpack[Keywords]
            own |= {name: one.__forward_arg__ for name, one in module.Keywords.__annotations__.items() if name not in OF_GRADIENTS}
        narrowed = {*"abqkv", "lse", "out", "epilogue", "operands"}  # what decides about the type of the result
        assert {name: kind for name, kind in own.items() if declared[name] != kind and name not in narrowed} == {}
        named |= own.keys()
    assert named == declared.keys()


def test_tuned_takes_what_the_request_declares():
    declared, tuned = inspect.signature(matmul_request).parameters, inspect.signature(matmul.tuned).parameters
    shared = [name for name in tuned if name not in ("candidates", "report")]
    assert shared == ["a", "b", "out", "c_dtype", "ab_dtype", "arch"]
    assert all((tuned[name].kind, tuned[name].default) == (declared[name].kind, declared[name].default) for name in shared)


def test_an_epilogue_is_chosen_for_too():
    a, bias = np.ones((8, 8), "float32"), np.ones(8, "float32")
    request = {"epilogue": "relu(acc + bias[n])", "bias": bias, "arch": "sm_80", "require_record": False}
    assert matmul.choice(a, a, **request).program is matmul.kernel(a, a, **request).program
    assert matmul_request(a, a, **request).options.names == ("bias",)
    with pytest.raises(ArgumentError, match="bias is given, but no epilogue reads it"):
        matmul.choice(a, a, bias=bias)
