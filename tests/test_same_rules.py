"""One kernel, one call, and the same answer for all arrays: NumPy's in the simulator, and those on a GPU.

The GPU is simulated (fake_gpu.py) on the memory of NumPy's arrays: a call refused for one is refused for the others with the same message.
"""

import re
import sys
import types
from pathlib import Path

import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, fake_torch
from problems import library

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.kernel import CompiledKernel

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    gpu.torch = fake_torch(gpu)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: None)
    return gpu


@pytest.fixture(scope="module")
def programs():
    """A GEMM with row-major arrays, one with run-time strides, and one with a scalar."""
    naive = library("naive").strategy
    axpy = Kind("Axpy", "y[m] += a * x[m]").starter
    added = axpy.tile(32).to(Block).tile(1).to(Thread).done()(axpy(64, accumulate=True)(VAL, GL, GL)(Kernel))
    return {
        "plain": naive(MatMul(20, 12, 8, **ROWS)(GL, GL, GL)(Kernel)).program("sm_90"),
        "square": naive(MatMul(8, 8, 8, **ROWS)(GL, GL, GL)(Kernel)).program("sm_90"),
        "sizes": naive(MatMul(sym("M", multiple_of=4, high=64), 12, sym("K"), **ROWS)(GL, GL, GL)(Kernel)).program("sm_90"),
        "adds": naive(MatMul(20, 12, 8, accumulate=True, **ROWS)(GL, GL, GL)(Kernel)).program("sm_90"),
        "number": added.program("sm_90"),
    }


def ready(program):
    """A kernel whose machine code is simulated, too."""
    kernel = CompiledKernel(program)
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


def on_cupy(gpu, array):
    """The same memory as an array of CuPy."""
    if not isinstance(array, np.ndarray):
        return array
    placed = object.__new__(gpu.cupy.ndarray)
    placed.host, placed.data = array, types.SimpleNamespace(ptr=array.ctypes.data, device_id=0)
    return placed


def on_torch(gpu, array):
    """The same memory as a tensor of PyTorch."""
    if not isinstance(array, np.ndarray):
        return array
    steps = [stride // array.itemsize for stride in array.strides]
    return gpu.torch.Tensor(array.shape, steps, getattr(gpu.torch, str(array.dtype)), data=array)


def zeros(*shape, dtype=np.float32, order="C", ld=None, offset=0):
    """An array that begins at a multiple of 512 bytes plus an offset."""
    dtype, wide = np.dtype(dtype), ld or shape[-1]
    flat = fake_gpu.memory((int(np.prod(shape[:-1], dtype=int)) * wide + 16) * dtype.itemsize, offset).view(dtype)
    if order == "F":
        return flat[: int(np.prod(shape))].reshape(shape[::-1]).T
    return flat[: int(np.prod(shape[:-1], dtype=int)) * wide].reshape(*shape[:-1], wide)[..., : shape[-1]]


A_, B_, C_ = (20, 8), (8, 12), (20, 12)


def both_of(*shapes):
    return tuple(zeros(*shape) for shape in shapes)


def wrong():
    """By name a kernel, the arrays of a call, its keywords, and a part of the message."""
    a, b, c = both_of(A_, B_, C_)
    square = zeros(8, 8)
    wide = zeros(8, 20)
    return {
        "too few": ("plain", (a,), {}, "1 arrays given"),
        "too many": ("plain", (a, b, c), {}, "3 arrays given"),
        "type": ("plain", (zeros(*A_, dtype=np.float64), b), {}, "A has elements of another type"),
        "halves": ("plain", (a, zeros(*B_, dtype=np.float16)), {}, "B has elements of another type"),
        "shape": ("plain", (zeros(20, 9), b), {}, "A has the shape (20, 9)"),
        "turned shape": ("plain", (a, zeros(12, 8)), {}, "B has the shape (12, 8)"),
        "dimensions": ("plain", (zeros(160), b), {}, "A has 1 dimension, the kernel reads 2"),
        "nothing": ("plain", (zeros(0, 8), b), {}, "A has the shape (0, 8)"),
        "order": ("plain", (zeros(*A_, order="F"), b), {}, "A has other strides"),
        "order of B": ("plain", (a, zeros(*B_, order="F")), {}, "B has other strides"),
        "padding": ("plain", (zeros(*A_, ld=11), b), {}, "A has other strides"),
        "broadcast": ("plain", (np.broadcast_to(a[:1], A_), b), {}, "A has other strides"),
        "start": ("plain", (zeros(*A_, offset=4), b), {}, "A starts at an address that is not a multiple of 16 bytes"),
        "start of B": ("plain", (a, zeros(*B_, offset=8)), {}, "B starts at an address that is not a multiple of 16 bytes"),
        "out type": ("plain", (a, b), {"out": zeros(*C_, dtype=np.int32)}, "out has elements of another type"),
        "out shape": ("plain", (a, b), {"out": zeros(20, 11)}, "out does not have the shape"),
        "out order": ("plain", (a, b), {"out": zeros(*C_, order="F")}, "out has other strides"),
        "out start": ("plain", (a, b), {"out": zeros(*C_, offset=4)}, "out starts at an address"),
        "out repeats": ("plain", (a, b), {"out": np.lib.stride_tricks.as_strided(c, C_, (0, 4))}, "out has other strides"),
        "overlap": ("square", (square, zeros(8, 8)), {"out": square}, "out overlaps A in memory"),
        "overlap of B": ("square", (zeros(8, 8), square), {"out": square}, "out overlaps B in memory"),
        "twice": ("plain", (a,), {"A": a}, "A: given by position and by name"),
        "by small names": ("plain", (a,), {"b": b}, "b: no input has this name"),
        "output by name": ("plain", (a, b), {"C": c}, "C: no input has this name"),
        "another keyword": ("plain", (a, b), {"blocks": "all"}, "blocks: the kernel takes no such argument"),
        "no such size": ("plain", (a, b), {"M": 20}, "M=20: the kernel has no such size"),
        "a size in words": ("sizes", (a, b), {"M": "20"}, "M='20': must be an integer"),
        "a size that differs": ("sizes", (a, b), {"M": 24}, "A has the shape (20, 8)"),
        "no multiple": ("sizes", (zeros(18, 8), b), {}, "M=18"),
        "too large": ("sizes", (zeros(68, 8), b), {}, "M=68"),
        "sizes that differ": ("sizes", (a, zeros(9, 12)), {}, "B has the shape (9, 12)"),
        "added to nothing": ("adds", (a, b), {}, "the kernel adds to C"),
        "list": ("plain", ([[1.0]], b), {}, "A is not an array"),
        "number": ("plain", (3.0, b), {}, "A is not an array"),
        "array for a number": ("number", (zeros(64), zeros(64)), {"out": zeros(64)}, "a"),
        "text for a number": ("number", ("two", zeros(64)), {"out": zeros(64)}, "a"),
        "an input that is too long": ("number", (2.0, zeros(65)), {"out": zeros(64)}, "x has the shape (65,)"),
        "overlapping halves": ("square", (wide[:, :8], zeros(8, 8)), {"out": wide[:, 4:12]}, ""),
    }


def refusal(kernel, arrays, keywords):
    """The message of a call, without addresses and type names."""
    with pytest.raises((ArgumentError, LaunchError)) as caught:
        kernel(*arrays, **keywords)
    return type(caught.value).__name__, re.sub(r"0x[0-9a-f]+|'ndarray'|'Tensor'", "HERE", str(caught.value))


@pytest.mark.parametrize("case", wrong())
def test_refusals_are_equal_for_all_arrays(gpu, programs, case):
    name, arrays, keywords, message = wrong()[case]
    kernel = ready(programs[name])
    here = refusal(kernel, arrays, keywords)
    assert message in here[1]
    for place in (on_cupy, on_torch):
        elsewhere = refusal(kernel, [place(gpu, one) for one in arrays], {key: place(gpu, one) for key, one in keywords.items()})
        assert elsewhere == here
    assert not gpu.launches


# ---------------------------------------------------------------------------------------------- the README's first program


def first_program():
    """The first Python block of the README, executed: its variables."""
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(block[1], str(README), "exec"), names)
    return names


def test_the_first_program_of_the_readme_takes_arrays_of_every_library_as_they_are(gpu):
    """Arrays of CuPy and PyTorch reach the driver, with the same number of blocks and order of parameters; NumPy's run in
    test_documents.py.
    """
    kernel = ready(first_program()["kernel"].program)
    a, b, c = zeros(500, 200), zeros(200, 300), zeros(500, 300)
    for place in (on_cupy, on_torch):
        left, right = place(gpu, a), place(gpu, b)
        out = kernel(left, right)
        assert type(out) is type(left) and tuple(out.shape) == c.shape
        stride = out.stride() if place is on_torch else [step // 4 for step in out.strides]
        assert tuple(stride) == tuple(step // 4 for step in c.strides)
        filled = place(gpu, zeros(500, 300))
        assert kernel(left, right, out=filled, stream=12288) is filled
    assert [one[1] for one in gpu.launches] == [(kernel.grid(), 1, 1)] * 4
    assert [one[4] for one in gpu.launches] == [0, 12288, 0, 12288]
    assert all(one[5][:2] == [a.ctypes.data, b.ctypes.data] for one in gpu.launches)
