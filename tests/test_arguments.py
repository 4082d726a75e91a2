"""Arguments of kernel calls: sizes and strides inferred from arrays, refused views and advice in messages, shared memory."""

import re
import types

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from fireiron import *
from fireiron.gpu import arguments
from fireiron.gpu.arrays import NO_DEVICE, ArrayView
from fireiron.values.expr import Var

M, N, ld = sym("M", low=2, high=1000, multiple_of=2), sym("N"), sym("ld")


def product(**layouts):
    return MatMul(20, 12, 8, **layouts)(GL, GL, GL)(Kernel)


def copy_of(*sizes, **layouts):
    return Move(*sizes, **layouts)(GL, GL)(Kernel)


def kernel_of(spec):
    strategy = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done() if spec.title == "MatMul" else None
    return (strategy or Move.tile(4, 4).to(Block).tile(1, 1).to(Thread).done())(spec).compile("sm_80")


def buffer_of(spec, name):
    return kernel_of(spec).ir.buffer(name)


def view(shape, strides, dtype="float32", itemsize=4, device=0):
    return ArrayView(shape, strides, dtype, itemsize, device, False)


# ---------------------------------------------------------------------------------------------- outputs


SEVERAL = types.SimpleNamespace(outputs=("x", "y", "z"), title="Three")


def test_outputs_by_order_and_by_name():
    spec = types.SimpleNamespace(outputs=("x",), title="One")
    assert arguments.in_order(spec, (1, 2)) == ((1, 2),) and arguments.output_names(spec) == ("out",)
    assert arguments.in_order(SEVERAL, (1, 2, 3)) == arguments.in_order(SEVERAL, [1, 2, 3]) == (1, 2, 3)
    assert arguments.in_order(SEVERAL, {"z": 3, "x": 1, "y": 2}) == (1, 2, 3) and arguments.output_names(SEVERAL) == ("x", "y", "z")
    assert arguments.returned((5,)) == 5 and arguments.returned((5, 6)) == (5, 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": 1, "y": 2}, "out: z missing"),
        ({"y": 2}, "out: x, z missing"),
        ({"x": 1, "y": 2, "z": 3, "w": 4}, "out: Three has no output 'w'"),
        ((1, 2), "out: 2 arrays are given, but Three has 3 outputs"),
        ((1, 2, 3, 4), "out: 4 arrays are given, but Three has 3 outputs"),
        ("xyz", "out: Three has 3 outputs"),
        (np.zeros(3), "out: Three has 3 outputs"),
    ],
)
def test_outputs_that_are_not_as_many_or_called_otherwise(given, message):
    with pytest.raises(ArgumentError) as caught:
        arguments.in_order(SEVERAL, given)
    assert caught.value.asked == message


def test_whether_a_kernel_reads_its_output():
    specs = [MatMul(20, 12, 8, accumulate=adds)(GL, GL, GL)(Kernel) for adds in (False, True)]
    assert [arguments.reads_output(one, {}) for one in specs] == [False, True]


# ---------------------------------------------------------------------------------------------- sizes and strides


def test_sizes_are_inferred_from_keywords_and_shapes():
    """Keywords first; each shape must then agree with all of them."""
    spec = copy_of(M, N, 4)
    assert arguments.solve_symbols(spec, {"src": (6, 5, 4)}, {}) == {"M": 6, "N": 5}
    assert arguments.solve_symbols(spec, {}, {"M": 6, "N": 5}) == {"M": 6, "N": 5}
    assert arguments.solve_symbols(spec, {"src": (6, 5, 4)}, {"N": 5}) == {"N": 5, "M": 6}
    assert arguments.solve_symbols(spec, {"src": (1000, 1, 4)}, {}) == {"M": 1000, "N": 1}


@pytest.mark.parametrize(
    ("shape", "given", "message", "legal"),
    [
        ((6, 5, 4), {"K": 3}, "K=3: the kernel has no such size", "M N"),
        ((6, 5, 4), {"M": 6.0}, "M=6.0: must be an integer", None),
        ((6, 5, 4), {"N": True}, "N=True: must be an integer", None),
        ((6, 5), {}, "src has 2 dimensions, the kernel reads 3", None),
        (None, {"M": 6}, "no shape determines N", None),
        (None, {}, "no shape determines M, N", None),
        ((7, 5, 4), {}, "M=7 is not legal for this kernel", "2 <= M <= 1000, a multiple of 2"),
        ((1002, 5, 4), {}, "M=1002 is not legal for this kernel", "2 <= M <= 1000, a multiple of 2"),
        ((0, 5, 4), {}, "M=0 is not legal for this kernel", "2 <= M <= 1000, a multiple of 2"),
        ((6, 5, 4), {"N": 6}, "src has the shape (6, 5, 4), the kernel was made for (6, 6, 4)", None),
        ((6, 5, 3), {}, "src has the shape (6, 5, 3), the kernel was made for (6, 5, 4)", None),
    ],
)
def test_sizes_that_are_refused(shape, given, message, legal):
    with pytest.raises(ArgumentError) as caught:
        arguments.solve_symbols(copy_of(M, N, 4), {} if shape is None else {"src": shape}, given)
    assert caught.value.asked == message
    if legal:
        assert " ".join(caught.value.legal) == legal or caught.value.legal == legal
    if message.startswith("no shape"):
        assert caught.value.hint == f"kernel(..., {message.split()[3].rstrip(',')}=...)"


def test_strides_are_inferred_from_the_first_array_that_has_them():
    spec = copy_of(8, 4, src=RowMajor(ld=ld), dst=RowMajor(ld=ld))
    shapes = {"src": (8, 4), "dst": (8, 4)}
    steps = {"src": ((8, 4), (6, 1)), "dst": ((8, 4), (9, 1))}
    assert arguments.solve_symbols(spec, shapes, {}, steps) == {"ld": 6}
    assert arguments.solve_symbols(spec, shapes, {"ld": 7}, steps) == {"ld": 7}, "a keyword is before all arrays"
    assert arguments.solve_symbols(spec, shapes, {}) == {"ld": 4}, "a new array has no gaps"
    assert arguments.solve_symbols(spec, {"src": (8, 4)}, {}, {"src": steps["src"]}) == {"ld": 6}


def test_strides_count_elements_and_round_down():
    views = {"a": view((2, 3), (24, 8), "float64", 8), "b": view((2, 3), (14, 4))}
    assert arguments.steps_of(views) == {"a": ((2, 3), (3, 1)), "b": ((2, 3), (3, 1))}


def test_a_stride_of_a_symbol_at_its_ends():
    for stride in (4, 100):
        arguments._check_stride(Var("s", 4, 100, 4), stride, "src", "m")
    for stride, hint in ((1, "pass a copy"), (101, "bound the kernel's sizes: a stride is a parameter of 32 bits")):
        with pytest.raises(LaunchError) as caught:
            arguments._check_stride(Var("s", 2, 100), stride, "src", "m")
        assert caught.value.hint == hint and caught.value.got == stride


# ---------------------------------------------------------------------------------------------- keywords


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"a": 1.5}, "a: no input has this name", "kernel(a, b), kernel(a, b, out=c)"),
        ({"C": np.zeros(3)}, "C: no input has this name", None),
        ({"x": np.zeros(3), "b": "y"}, "x, b: no input has this name", None),
        ({"M": 2.5}, "M=2.5: must be an integer", None),
        ({"other": 2.5}, "other: the kernel takes no such argument", None),
    ],
)
def test_keywords_that_are_no_sizes(given, message, hint):
    spec = MatMul(M, 12, 8)(GL, GL, GL)(Kernel)
    with pytest.raises(ArgumentError) as caught:
        arguments.require_sizes(spec, given)
    assert caught.value.asked == message and (hint is None or caught.value.hint == hint)
    if message.startswith("other"):
        assert caught.value.legal == "kernel(a, b), kernel(a, b, out=c), stream=..., M=..."
    arguments.require_sizes(spec, {"M": 4, "other": np.int64(3)})


# ---------------------------------------------------------------------------------------------- views


def test_outputs_without_shared_places_pass():
    arguments.check_apart("out", view((4, 3), (12, 4)))
    with pytest.raises(LaunchError, match="out: its elements overlap in memory") as caught:
        arguments.check_apart("out", view((4, 3), (8, 4)))
    assert caught.value.got == "shape (4, 3), strides (8, 4) bytes"


def test_steps_and_shapes_of_a_parameter():
    buffer = buffer_of(copy_of(8, N, src=RowMajor(ld=ld), dst=RowMajor, dtype=float16), "src")
    symbols = {"N": 5, "ld": 7}
    assert arguments.element_strides(buffer, symbols) == (7, 1) and arguments.byte_strides(buffer, symbols) == (14, 2)
    assert arguments.buffer_shape(buffer, symbols) == (8, 5)


def fits(spec, name, given, symbols=None):
    """The error for a view, None if it fits."""
    try:
        arguments.check_view(name, buffer_of(spec, name), given, symbols or {}, spec)
    except LaunchError as error:
        return error
    return None


def test_strides_of_dimensions_of_size_one_are_ignored():
    spec = copy_of(1, 8, src=RowMajor, dst=RowMajor)
    assert fits(spec, "src", view((1, 8), (4000, 4))) is None and fits(spec, "src", view((1, 8), (0, 4))) is None
    assert fits(spec, "src", view((1, 8), (32, 8))) is not None


@pytest.mark.parametrize(
    ("order", "strides", "hint"),
    [
        (RowMajor, (4, 80), "make the spec with A=ColMajor, or pass an array of its layout: numpy.ascontiguousarray"),
        (ColMajor, (32, 4), "make the spec with A=RowMajor, or pass an array of its layout: numpy.asfortranarray"),
        (
            RowMajor,
            (48, 4),
            r"make the spec with A=RowMajor\(ld=...\), ColMajor\(ld=...\) or Strides\(m=ANY, k=ANY\), or pass an array of its layout",
        ),
        (RowMajor, (64, 8), r"make the spec with A=RowMajor\(ld=...\), ColMajor\(ld=...\)"),
        (RowMajor, (0, 4), r"this is a broadcast view: make the spec with A=Strides\(m=ANY, k=ANY\), or pass a copy"),
        (RowMajor, (-32, 4), "this is a reversed view: pass a copy"),
        (RowMajor, (32, -4), "this is a reversed view: pass a copy"),
        (RowMajor, (-48, 8), "this is a reversed view: pass a copy"),
        (RowMajor, (48, -4), "this is a reversed view: pass a copy"),
        (Strides(m=9, k=1), (32, 4), r"make the spec with A=Strides\(m=ANY, k=ANY\), or pass an array of these strides"),
    ],
)
def test_advice_for_other_strides(order, strides, hint):
    spec = product(A=order)
    error = fits(spec, "A", view((20, 8), strides))
    assert error.asked.startswith("A has other strides than the kernel was made for") and error.got == strides
    assert re.match(hint, error.hint), error.hint
    wanted = tuple(4 * step for step in arguments.element_strides(buffer_of(spec, "A"), {}))
    assert error.legal == str(wanted) and fits(spec, "A", view((20, 8), wanted)) is None


def test_advice_for_another_type_or_shape():
    spec, own = product(A=RowMajor), copy_of(8, 8, src=RowMajor, dst=RowMajor)
    assert fits(spec, "A", view((20, 8), (64, 8), "float64", 8)).hint == "make the spec with dtype=float64, or convert the array"
    assert fits(own, "src", view((8, 8), (64, 8), "float64", 8)).hint == "make the spec with dtype=float64, or convert the array"
    assert fits(own, "src", view((8, 8), (64, 8), "complex64", 8)).hint.startswith("convert it to one of float")
    error = fits(spec, "A", view((8, 20), (32, 4)))
    assert (error.got, error.legal) == ((8, 20), "(20, 8)")


SQUARES = Fused(name="squares", dims="m n", operands={"x": "m n", "y": "m n"}, body={"y": "y[m,n] = x[m,n] * x[m,n]"})


def squares(**more):
    return SQUARES(m=8, n=8, dtype=float32, **more)


@pytest.mark.parametrize(
    ("make", "name", "message", "fixed"),
    [
        (lambda **more: product(A=RowMajor, **more), "A", "dtype=float16", {"dtype": float16}),
        (lambda **more: product(C=RowMajor, **more), "C", "c_dtype=float16", {"c_dtype": float16}),
        (lambda **more: copy_of(8, 8, dst=RowMajor, **more), "dst", "dst_dtype=float16", {"dst_dtype": float16}),
        (lambda **more: Init(8, 8, **more)(GL)(Kernel), "dst", "dtype=float16", {"dtype": float16}),
        (lambda **more: squares(**more), "x", "types={'x': float16}", {"types": {"x": float16}}),
        (lambda **more: squares(**more), "y", "types={'y': float16}", {"types": {"y": float16}}),
    ],
)
def test_the_advice_on_types_is_taken(make, name, message, fixed):
    buffer = make().operands[name].tensor
    given = types.SimpleNamespace(dtype=buffer.dtype, name=name, written=name in make().outputs)
    assert arguments._hint_on_type("float16", given, make()) == f"make the spec with {message}, or convert the array"
    assert make(**fixed).operands[name].dtype == float16


def test_a_type_that_the_kind_does_not_take():
    """64-bit integers are elements of elementwise steps, not of a MatMul or a sum."""
    sums = Fused(name="sums", dims="m n", operands={"x": "m n", "y": "m"}, body={"y": "y[m] = sum(n, x[m,n])"})
    for spec, name in ((product(A=RowMajor), "A"), (sums(m=8, n=8, dtype=float32), "x")):
        given = types.SimpleNamespace(dtype=float32, name=name, written=False)
        assert arguments._hint_on_type("int64", given, spec) == f"convert the array to float32: {spec.title} takes no int64"
    given = types.SimpleNamespace(dtype=float32, name="x", written=False)
    assert arguments._hint_on_type("int64", given, squares()) == "make the spec with types={'x': int64}, or convert the array"


def test_an_output_of_a_type_that_only_inputs_may_have():
    """Booleans are bytes to a kernel that reads them."""
    spec = copy_of(8, 8, src=RowMajor, dst=RowMajor, dtype=uint8)
    assert arguments.types_of(buffer_of(spec, "src")) == ("uint8", "bool") and arguments.types_of(buffer_of(spec, "dst")) == ("uint8",)
    given = view((8, 8), (8, 1), "bool", 1)
    assert fits(spec, "src", given) is None and fits(spec, "dst", given).hint == "pass an array of uint8"
    assert fits(copy_of(8, 8), "src", given).hint == "make the spec with dtype=uint8, or convert the array"


# ---------------------------------------------------------------------------------------------- arrays of the host


def test_views_of_the_host():
    array = np.zeros((4, 6), np.float16)[:, ::2]
    assert arguments.host_view(array) == ArrayView((4, 3), (12, 4), "float16", 2, NO_DEVICE, False)
    array.flags.writeable = False
    assert arguments.host_view(array).readonly is True


@pytest.mark.parametrize(
    "layout, strides", [(RowMajor, (20, 4)), (ColMajor, (4, 24)), (RowMajor(ld=9), (36, 4)), (ColMajor(ld=8), (4, 32))]
)
def test_new_arrays_of_the_host_have_the_strides_of_the_parameter(layout, strides):
    """With the minimum amount of memory."""
    array = arguments.new_on_host(buffer_of(copy_of(6, 5, src=layout, dst=layout), "dst"), {})
    assert array.shape == (6, 5) and array.strides == strides and array.dtype == np.float32
    assert array.base.nbytes == 5 * strides[0] + 4 * strides[1] + 4
    array[...] = 3
    assert (array == 3).all()


def test_elements_at_one_address_have_the_last_value():
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    windows = copy_of(3, 4, src=Strides(m=2, n=1)).views[0].tensor
    stored = arguments.as_stored(windows, array, {})
    flat = np.empty(8, np.float32)
    as_strided(flat, (3, 4), (8, 4))[...] = array
    np.testing.assert_array_equal(stored, as_strided(flat, (3, 4), (8, 4)))
    apart = copy_of(3, 4, src=Strides(m=4, n=1)).views[0].tensor
    assert arguments.as_stored(apart, array, {}) is array


def test_rows_longer_than_the_leading_dimension_are_refused():
    rows = copy_of(sym("M", high=4096), 4, src=ColMajor(ld=9)).views[0].tensor
    array = np.zeros((9, 4), np.float32)
    assert arguments.as_stored(rows, array, {"M": 9}) is array
    with pytest.raises(ArgumentError, match="10 x 4 elements with strides of 1, 9 need 37 elements") as refused:
        arguments.as_stored(rows, np.zeros((10, 4), np.float32), {"M": 10})
    assert refused.value.legal == "at most 36, the size of its storage"
    assert arguments.as_stored(rows, np.zeros((0, 4), np.float32), {"M": 0}).shape == (0, 4)


# ---------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("address, after, advised", [(4100, 4, 4), (4104, 8, 8), (4098, 2, None), (4097, 1, None)])
def test_misaligned_addresses(address, after, advised):
    """The advice is the alignment that the address has, if it is at least as wide as an element."""
    buffer = types.SimpleNamespace(tensor=types.SimpleNamespace(align=16), dtype=float32, name="A")
    error = arguments.misaligned("a", buffer, address)
    assert (
        error.asked == "a starts at an address that is not a multiple of 16 bytes"
        and error.got == f"{address:#x}, {after} bytes after a multiple"
    )
    other = "" if advised is None else f", or make the spec with A=Strides(...).aligned({advised})"
    assert error.hint == f"copy it to a fresh array{other}"


def bytes_of(array, address):
    places = sum((np.indices(array.shape)[axis] * stride for axis, stride in enumerate(array.strides)), np.zeros(array.shape, int))
    return {address + int(place) + byte for place in places.flat for byte in range(array.itemsize)}


def test_memory_is_shared_where_a_byte_is():
    """Compared byte by byte; arrays on two GPUs share none."""
    generator = np.random.default_rng(3)
    results = set()
    for _ in range(300):
        sides = []
        for _ in range(2):
            shape, strides = tuple(generator.integers(1, 4, 2).tolist()), tuple(generator.integers(0, 24, 2).tolist())
            itemsize = int(generator.choice([1, 2, 4]))
            sides += [view(shape, strides, f"V{itemsize}", itemsize), 4096 + int(generator.integers(0, 40))]
        first, address, other, other_address = sides
        shared = bool(bytes_of(first, address) & bytes_of(other, other_address))
        assert arguments.share_memory(*sides) is shared
        assert arguments.share_memory(first, address, view(other.shape, other.strides, "V", other.itemsize, 1), other_address) is False
        results.add(shared)
    assert results == {True, False}
