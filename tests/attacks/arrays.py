"""Arrays and other objects passed to kernels, `matmul`, `attention` and the library's functions: shape, type, strides, order, alignment."""

import functools
import random
from collections.abc import Callable, Iterator

import numpy as np

import fireiron
from attacks.guard import Input
from attacks.values import VALUES
from fireiron import *


class Own(np.ndarray):
    """An array of a user-defined class."""


class Pretends:
    """Pretends to be an array."""

    def __init__(self, interface: object, shape: object = (8, 4)) -> None:
        self.__array_interface__ = interface
        self.__cuda_array_interface__ = interface
        self.shape = shape
        self.dtype = np.dtype("float32")

    def __array__(self, *arguments: object, **named: object) -> object:
        raise RuntimeError("no array after all")


class PretendsDlpack:
    """Pretends to support DLPack."""

    def __dlpack__(self, **named: object) -> object:
        raise RuntimeError("no capsule")

    def __dlpack_device__(self) -> object:
        return ("cuda", None)


def _array(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype, order="F")


def shapes(choose: random.Random, shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
    """An array similar to the required one, and its source."""
    base = _array(*shape)
    ways: dict[str, Callable[[], object]] = {
        "right": lambda: base, "C order": lambda: np.zeros(shape, np.float32), "float64": lambda: _array(*shape, dtype=np.float64),
        "float16": lambda: _array(*shape, dtype=np.float16), "bool": lambda: base > 0, "complex": lambda: base.astype(complex), "object": lambda: base.astype(object),
        "text": lambda: base.astype(str), "swapped bytes": lambda: base.astype(">f4"), "dates": lambda: base.astype("datetime64[s]"),
        "records": lambda: np.zeros(shape, [("x", "f4")]), "more dimensions": lambda: base[None], "fewer": lambda: base.ravel(), "0-d": lambda: np.float32(0) * base.sum(),
        "short": lambda: base[:-1], "long": lambda: _array(*(one + 1 for one in shape)), "empty": lambda: base[:0], "no size": lambda: _array(*([0] * len(shape))),
        "reversed": lambda: base[::-1], "every second": lambda: _array(*(2 * one for one in shape))[tuple(slice(None, None, 2) for _ in shape)],
        "broadcast": lambda: np.broadcast_to(np.float32(0), shape), "read-only": lambda: _read_only(base), "overlapping": lambda: np.lib.stride_tricks.as_strided(base, shape, [4] * len(shape)),
        "stride 0": lambda: np.lib.stride_tricks.as_strided(base, shape, [0] * len(shape)), "not aligned": lambda: _shifted(shape), "matrix": lambda: np.asmatrix(np.zeros(shape[:2] if len(shape) > 1 else (1, *shape), np.float32)),
        "masked": lambda: np.ma.masked_array(base, base == 0), "own class": lambda: base.view(Own), "memmap-like": lambda: memoryview(base.copy(order="C")), "list": lambda: base.tolist(),
        "bytes": lambda: base.tobytes(), "interface": lambda: Pretends(None), "interface of text": lambda: Pretends({"shape": "x", "typestr": "<f4", "data": (0, False), "version": 3}, shape),
        "interface of nothing": lambda: Pretends({"shape": shape, "typestr": "<f4", "data": (0, False), "version": 3}, shape), "dlpack": lambda: PretendsDlpack(),
        "huge": lambda: np.lib.stride_tricks.as_strided(base, (2**31, 2), (0, 0)), "any": lambda: choose.choice(VALUES)[1],
    }  # fmt: skip
    way = choose.choice(list(ways))
    return f"<{way} {shape}>", ways[way]()


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy(order="F")
    copy.flags.writeable = False
    return copy


def _shifted(shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape)) * 4
    return np.frombuffer(bytearray(size + 1), np.uint8)[1:].view(np.float32).reshape(shape, order="F")


@functools.cache
def kernels() -> tuple[tuple[str, Callable[..., object], tuple[tuple[int, ...], ...], tuple[int, ...]], ...]:
    """Callables that take arrays: a name, the function, the shapes of inputs and of the output."""
    tiny = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    fixed = tiny(MatMul(8, 8, 4)(GL, GL, GL)(Kernel)).compile("sm_80")
    sized = tiny(MatMul(sym("M", 4), 8, sym("K"), A=ColMajor(ld=sym("lda")))(GL, GL, GL)(Kernel)).compile("sm_80")
    adds = tiny(MatMul(8, 8, 4, accumulate=True)(GL, GL, GL)(Kernel)).compile("sm_80")
    copy = Move.tile(4, 4).to(Block).tile(1, 1).to(Thread).done()(Move(8, 4, src=Strides(m=ANY, n=1))(GL, GL)(Kernel)).compile("sm_80")
    inputs, output = ((8, 4), (4, 8)), (8, 8)
    return (
        ("tiny(MatMul(8, 8, 4)).compile('sm_80')", fixed, inputs, output),
        ("tiny(MatMul(sym('M', 4), 8, sym('K'), A=ColMajor(ld=sym('lda')))).compile('sm_80')", sized, inputs, output),
        ("tiny(MatMul(8, 8, 4, accumulate=True)).compile('sm_80')", adds, inputs, output),
        ("tiny(Move(8, 4, src=Strides(m=ANY, n=1))).compile('sm_80')", copy, ((8, 4),), (8, 4)),
        ("fireiron.matmul", fireiron.matmul, inputs, output),
        ("fireiron.attention", fireiron.attention, ((1, 1, 8, 8), (1, 1, 8, 8), (1, 1, 8, 8)), (1, 1, 8, 8)),
        ("fireiron.function('layernorm')", fireiron.function("layernorm"), ((8, 64), (64,), (64,)), (8, 64)),
    )


def draw(choose: random.Random, count: int = 20) -> Iterator[Input]:
    """Calls of one kernel, with at least one array that differs from the required one."""
    name, kernel, inputs, output = choose.choice(kernels())
    for _ in range(count):
        arrays = [shapes(choose, shape) if choose.random() < 0.6 else ("right", _array(*shape)) for shape in inputs]
        if all(text.startswith(("<right", "right")) for text, _ in arrays):
            arrays[choose.randrange(len(arrays))] = ("<short>", _array(*inputs[0])[:-1])
        if choose.random() < 0.1:
            arrays.append(choose.choice(VALUES))
        named: dict[str, tuple[str, object]] = {}
        if choose.random() < 0.3:
            named["out"] = shapes(choose, output)
            if choose.random() < 0.2:
                named["out"] = arrays[0]
        if choose.random() < 0.2:
            named[choose.choice(("lda", "M", "stream", "epsilon", "x"))] = choose.choice(VALUES)
        text = f"{name}({', '.join(text for text, _ in arrays)}{''.join(f', {key}={text}' for key, (text, _) in named.items())})  # see attacks.arrays.shapes"
        yield Input(
            text, lambda made=arrays, named=named: kernel(*[one for _, one in made], **{key: one for key, (_, one) in named.items()})
        )
