"""The gradients of `fireiron.conv2d` in the simulator, against sums in float64."""

import numpy as np
import pytest

from fireiron.conv2d_gradients import both_gradients, input_gradient, weight_gradient
from fireiron.errors import ArgumentError
from fireiron.front.call import Request
from fireiron.strategies import _depthwise_rows, _many_parts, convolution_input_gradient, convolution_weight_gradient

rng = np.random.default_rng(20261130)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float16)


def last(array):
    """The same elements with contiguous channels."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def right(grad, x, w, stride, padding, dilation, depthwise=False):
    """The gradients of images and filters, by the definition of the convolution."""
    images = np.zeros((*x.shape[:2], *(size + 2 * by for size, by in zip(x.shape[2:], padding, strict=True))))
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), *((by, by) for by in padding)))
    filters = np.zeros((w.shape[0], x.shape[1], *w.shape[2:]))
    if depthwise:  # the diagonal of a convolution of all channels
        whole = np.zeros(filters.shape)
        whole[range(len(w)), range(len(w))] = w[:, 0]
        w = whole
    for r, s in np.ndindex(w.shape[2:]):
        ends = [
            slice(tap * by, tap * by + (count - 1) * step + 1, step)
            for tap, by, count, step in zip((r, s), dilation, grad.shape[2:], stride, strict=True)
        ]
        images[:, :, *ends] += np.einsum("nohw,oc->nchw", grad.astype(float), w[:, :, r, s].astype(float))
        filters[:, :, r, s] = np.einsum("nohw,nchw->oc", grad.astype(float), padded[:, :, *ends])
    inside = [slice(by, by + size) for by, size in zip(padding, x.shape[2:], strict=True)]
    return images[:, :, *inside], filters[range(len(w)), range(len(w))][:, None] if depthwise else filters


def require_near(got, want):
    assert got.shape == want.shape and np.isfinite(got.astype(float)).all()
    assert np.abs(got - want).max() <= 2e-2 * max(1, np.abs(want).max())


def pairs(options):
    usual = {"stride": 1, "padding": 0, "dilation": 1}
    return [value if isinstance(value, tuple) else (value, value) for value in (usual | options).values()]


def arrays(x, w, options):
    """Images, filters and the gradient of the result of a convolution."""
    stride, padding, dilation = pairs(options)
    pixels = [
        (size + 2 * by - gap * (taps - 1) - 1) // step + 1
        for size, taps, step, by, gap in zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    ]
    return floats(*x), floats(*w), floats(x[0], w[0], *pixels)


CASES = {
    "same": ((2, 64, 4, 8), (48, 64, 3, 3), {"padding": 1}),
    "stride": ((4, 64, 8, 10), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
    "odd size": ((2, 64, 9, 7), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
    "unequal": ((1, 32, 8, 9), (48, 32, 3, 1), {"padding": (2, 0), "dilation": (2, 1), "stride": (1, 2)}),
    "1x1": ((2, 48, 8, 4), (64, 48, 1, 1), {}),
    "1x1 with stride": ((2, 64, 6, 6), (64, 64, 1, 1), {"stride": 2}),
    "large stride": ((1, 16, 11, 11), (16, 16, 2, 3), {"stride": 4, "dilation": 2}),
    "few channels": ((2, 3, 9, 9), (24, 3, 3, 3), {"stride": 2, "padding": 1}),
}


USUAL = ("same", "stride", "1x1 with stride", "few channels")


@pytest.mark.parametrize("name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.nightly) for name in CASES])
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.nightly)])
def test_right(name, arch):
    x, w, options = CASES[name]
    x, w, grad = arrays(x, w, options)
    images, filters = right(grad, x, w, *pairs(options))
    got = input_gradient(last(grad), last(w), x.shape[2:], arch=arch, **options)
    require_near(got, images)
    assert got.strides == last(got).strides
    got = weight_gradient(last(grad), last(x), w.shape[2:], arch=arch, **options)
    require_near(got, filters)
    assert got.strides == last(got).strides


def test_both_gradients_are_one_call():
    x, w, options = CASES["1x1 with stride"]
    x, w, grad = map(last, arrays(x, w, options))
    of_images, of_filters = both_gradients.run(Request((grad, x, w), None, (*pairs(options), 1), "sm_90a"), None)
    images, filters = right(grad, x, w, *pairs(options))
    require_near(of_images, images)
    require_near(of_filters, filters)


DEPTHWISE = {
    "same": ((1, 16, 8, 9), (3, 3), {"padding": 1}),
    "unequal": ((2, 10, 9, 5), (2, 3), {"stride": (1, 2), "padding": (2, 0), "dilation": (1, 2)}),
    "stride": ((1, 24, 7, 10), (3, 3), {"stride": 2, "padding": 1}),
    "wide": ((1, 8, 3, 40), (5, 5), {"padding": 2}),
}


DAILY = "same", "unequal"


@pytest.mark.parametrize("name", [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in DEPTHWISE])
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.nightly)])
def test_depthwise(name, arch, monkeypatch):
    """Vectors of 4 bytes, columns that no tap reads, several phases of different taps, and rows in two parts."""
    monkeypatch.setattr(_depthwise_rows, "FEWEST_ROWS", 3)
    monkeypatch.setattr(_many_parts, "FEWEST", 2)
    if name == "same":  # fewer rows together have shorter kernels
        monkeypatch.setattr(_depthwise_rows, "AT_ONCE", (4, 2, 1))
        monkeypatch.setattr(_depthwise_rows, "filter_rows", lambda rows, taps: 4)
    shape, taps, options = DEPTHWISE[name]
    x, w, grad = arrays(shape, (shape[1], 1, *taps), options)
    images, filters = right(grad, x, w, *pairs(options), depthwise=True)
    given = {**options, "groups": shape[1], "arch": arch}
    require_near(input_gradient(last(grad), w, shape[2:], **given), images)
    for out in (None, np.zeros(w.shape, np.float16)):
        require_near(weight_gradient(last(grad), last(x), taps, out=out, **given), filters)
    kind = "filters" if "stride" in options else "rows"
    assert f"depthwise {kind}" in weight_gradient.choice(last(grad), last(x), taps, **given).why


def test_storage():
    """Arrays with other strides are copied; a given result may have any strides."""
    x, w, grad = arrays((2, 32, 4, 6), (32, 32, 3, 3), {"padding": 1})
    images, filters = right(grad, x, w, (1, 1), (1, 1), (1, 1))
    options = {"padding": 1, "arch": "sm_90a"}
    for given in ((grad, w), (last(grad), w)):
        require_near(input_gradient(*given, (4, 6), **options), images)
    require_near(weight_gradient(grad, x, (3, 3), **options), filters)
    for function, arrays_, sizes, want in ((input_gradient, (grad, w), (4, 6), images), (weight_gradient, (grad, x), (3, 3), filters)):
        for out in (np.zeros(want.shape, np.float16), last(np.zeros(want.shape, np.float16))):
            assert function(*map(last, arrays_), sizes, out=out, **options) is out
            require_near(out, want)
    assert "tma_load_pixels" in weight_gradient.kernel(last(grad), last(x), (3, 3), **options).program.cuda
    assert input_gradient(grad[:0], w, (4, 6), padding=1).shape == (0, 32, 4, 6)


def test_parts():
    """The parts of the pixels are added in their order, and each has complete images."""
    x, w, grad = arrays((4, 16, 4, 8), (64, 16, 3, 3), {"padding": 1})
    choices = convolution_weight_gradient.ranked(4, 32, 64, 16, 9)
    assert {parts for parts, _ in choices} == {1, 2, 4}
    assert all(4 // parts * 32 % values["bk"] == 0 for parts, values in choices if parts > 1)
    big = convolution_weight_gradient.ranked(128, 784, 128, 128, 9)[0]
    assert big[0] > 1
    require_near(weight_gradient(last(grad), last(x), (3, 3), padding=1, arch="sm_90a"), right(grad, x, w, (1, 1), (1, 1), (1, 1))[1])


def test_phases():
    """Each tap of each pixel belongs to one phase."""
    for size, taps, stride, padding, dilation in ((9, 3, 2, 1, 1), (8, 4, 3, 0, 2), (7, 5, 4, 2, 6), (3, 2, 5, 1, 1)):
        pixels = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        want = {(p * stride + r * dilation - padding, p, r) for p in range(max(pixels, 0)) for r in range(taps)}
        got = set()
        step = convolution_input_gradient.tap_step(stride, dilation)
        for number, (count, first, own, shift, gap) in enumerate(convolution_input_gradient.phases(size, taps, stride, padding, dilation)):
            got |= {(number + stride * i, i + shift - u * gap, first + u * step) for i in range(count) for u in range(own)}
        assert {one for one in want if 0 <= one[0] < size} == {one for one in got if 0 <= one[1] < pixels}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, w: input_gradient(g, w, (5, 5)), "grad has another shape"),
        (lambda g, w: input_gradient(g, w, 0), "sizes must be an integer or a pair"),
        (lambda g, w: input_gradient(g[0], w, 4), "must have four dimensions"),
        (lambda g, w: input_gradient(g.astype(np.float32), w, 4), "no kernel supports the element type"),
        (lambda g, w: input_gradient(g, [1], 4), "neither an array on a GPU nor a NumPy array"),
        (lambda g, w: input_gradient(g, w, 4, out=g[:, :3]), "out has another shape"),
        (lambda g, w: weight_gradient(g, g, 3), "grad has another shape"),
        (lambda g, w: input_gradient(g, w, 4, groups=2), "no kernel computes these groups"),
        (lambda g, w: weight_gradient(g, g, 1, groups=4), "no kernel computes these groups"),
        (lambda g, w: input_gradient(g, w, 4, arch="sm_75"), "no kernel computes gradients on this target"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(floats(1, 16, 4, 4), floats(16, 16, 1, 1))
