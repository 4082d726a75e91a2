"""`fireiron.conv2d`: shapes, strides, copies, errors and the estimate of tiles, in the simulator."""

import numpy as np
import pytest

import fireiron
from fireiron import conv2d
from fireiron.errors import ArgumentError
from fireiron.strategies import _depthwise_rows, convolution

rng = np.random.default_rng(20261129)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float16)


def last(array):
    """The same elements with contiguous channels."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def right(x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    x = np.pad(x.astype(float), ((0, 0), (0, 0), *((one, one) for one in padding)))
    rows, columns = (
        (size - step * (taps - 1) - 1) // move + 1
        for size, taps, move, step in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    )
    result = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for r, s in np.ndindex(w.shape[2:]):
        first, second = r * dilation[0], s * dilation[1]
        part = x[:, :, first : first + (rows - 1) * stride[0] + 1 : stride[0], second : second + (columns - 1) * stride[1] + 1 : stride[1]]
        result += np.einsum("nchw,oc->nohw", part, w[:, :, r, s].astype(float))
    return result


def require_near(got, want):
    assert got.shape == want.shape and np.isfinite(got.astype(float)).all()
    assert np.abs(got - want).max() <= 2e-2 * max(1, np.abs(want).max())


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 64, 7, 9), (72, 64, 3, 3), {"padding": 1}),
        ((3, 64, 9, 8), (64, 64, 3, 3), {"stride": 2, "padding": 1}),
        ((1, 32, 8, 8), (40, 32, 3, 1), {"padding": (2, 0), "dilation": (2, 1), "stride": (1, 2)}),
        ((2, 48, 5, 5), (64, 48, 1, 1), {}),
        ((2, 64, 5, 5), (64, 64, 1, 1), {"stride": 2}),
        ((2, 3, 9, 9), (16, 3, 3, 3), {"stride": 2, "padding": 1}),
    ],
    ids=["same", "stride", "unequal", "1x1", "1x1 with stride", "three channels"],
)
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.nightly)])
def test_right(x, w, options, arch):
    x, w = floats(*x), floats(*w)
    pairs = {name: value if isinstance(value, tuple) else (value, value) for name, value in options.items()}
    want = right(x, w, **pairs)
    require_near(conv2d(last(x), last(w), arch=arch, **options), want)
    choice = conv2d.choice(last(x), last(w), arch=arch, **options)
    assert choice.why.startswith("no record applies; the least estimated time for float16 on")
    assert arch == "sm_80" or "convolution bm=" in choice.why.partition(";")[2].partition(";")[0]


RARE = [(("bias",), None), (("residual",), "silu"), ((), "relu")]
EPILOGUES = [(("bias", "residual"), "relu"), *(pytest.param(*names, marks=pytest.mark.nightly) for names in RARE)]


@pytest.mark.parametrize(("names", "activation"), EPILOGUES)
@pytest.mark.parametrize("shape", [((2, 64, 5, 6), (24, 64, 3, 3)), ((2, 16, 5, 6), (16, 1, 3, 3))], ids=["dense", "depthwise"])
def test_epilogue(shape, names, activation):
    """A bias, a residual and an activation are part of the kernel, also if arrays are copied."""
    x, w = floats(*shape[0]), floats(*shape[1])
    groups = shape[0][1] if shape[1][1] == 1 else 1
    want = right(x, dense(w) if groups > 1 else w, padding=(1, 1))
    further = {name: floats(shape[1][0]) if name == "bias" else floats(*want.shape) for name in names}
    for name, array in further.items():
        want = want + (array[:, None, None] if name == "bias" else array).astype(float)
    want = np.maximum(want, 0) if activation == "relu" else want / (1 + np.exp(-want)) if activation == "silu" else want
    options = {"padding": 1, "groups": groups, "activation": activation, "arch": "sm_90a"}
    kept = {name: last(array) if name == "residual" else array for name, array in further.items()}
    require_near(conv2d(last(x), last(w), **kept, **options), want)
    require_near(conv2d(x, w, **further, **options), want)


def dense(w):
    """Depthwise filters with zeros for all other channels."""
    result = np.zeros((w.shape[0], *w.shape[:1], *w.shape[2:]), w.dtype)
    result[np.arange(len(w)), np.arange(len(w))] = w[:, 0]
    return result


@pytest.mark.parametrize(
    ("channels", "options"), [(24, {"padding": 1}), (5, {"stride": 2, "dilation": 2}), (64, {"padding": (0, 2)})], ids=["24", "5", "64"]
)
def test_depthwise(channels, options, monkeypatch):
    monkeypatch.setattr(_depthwise_rows, "FEWEST_ROWS", 4)  # two parts of four rows
    monkeypatch.setattr(_depthwise_rows, "WAVES", 8)
    x, w = floats(2, channels, 8, 9), floats(channels, 1, 3, 3)
    pairs = {name: value if isinstance(value, tuple) else (value, value) for name, value in options.items()}
    require_near(conv2d(last(x), w, groups=channels, arch="sm_90a", **options), right(x, dense(w), **pairs))


def test_rows_of_depthwise_convolutions():
    """The forms for layers of 128 images: four waves of blocks, blocks of four columns, and the usual rows."""
    rows = _depthwise_rows.Rows
    forms = {
        (112, 64, 3): rows(2, 4, 8, 6),
        (56, 128, 3): rows(2, 4, 8, 6),
        (28, 256, 3): rows(1, 7, 4, 10),
        (14, 512, 3): rows(1, 7, 8),
        (56, 128, 7): rows(1, 8, 4),
    }
    for (size, channels, taps), form in forms.items():
        assert _depthwise_rows.rows_of_result(128, (size, size), channels, (taps, taps)) == form
    assert _depthwise_rows.rows_of_result(128, (28, 28), 128, (3, 3), 2) == rows(1, 7, 8, 3)


@pytest.mark.nightly
def test_depthwise_with_blocks_of_four_columns():
    x, w = floats(1, 8, 7, 12), floats(8, 1, 3, 3)
    require_near(conv2d(last(x), w, padding=1, groups=8, arch="sm_90a"), right(x, dense(w), padding=(1, 1)))


@pytest.mark.parametrize(
    ("shape", "taps", "options"),
    [
        ((2, 10, 8, 9), (3, 3), {"stride": 2, "padding": 1}),
        pytest.param((1, 8, 17, 12), (5, 3), {"stride": (2, 1), "padding": (2, 0)}, marks=pytest.mark.nightly),
        pytest.param((1, 8, 13, 9), (3, 3), {"stride": (3, 2), "padding": 1, "dilation": (1, 2)}, marks=pytest.mark.nightly),
        pytest.param((1, 64, 24, 6), (3, 3), {"stride": 2, "padding": (0, 1)}, marks=pytest.mark.nightly),
    ],
)
def test_depthwise_with_a_stride_loads_all_rows_together(shape, taps, options, monkeypatch):
    """Rows before the first one and past the end, an odd number of rows, and an epilogue."""
    monkeypatch.setattr(_depthwise_rows, "OF_RESULT", (4, 3, 2, 1))
    x, w, channels = floats(*shape), floats(shape[1], 1, *taps), shape[1]
    pairs = {name: value if isinstance(value, tuple) else (value, value) for name, value in options.items()}
    want = right(x, dense(w), **pairs)
    further = {"bias": floats(channels), "residual": last(floats(*want.shape))}
    want = np.maximum(want + further["bias"].astype(float)[:, None, None] + further["residual"], 0)
    given = {**options, **further, "activation": "relu", "groups": channels, "arch": "sm_90a"}
    require_near(conv2d(last(x), w, **given), want)
    assert "depthwise rows" in conv2d.choice(last(x), w, **given).why


@pytest.mark.parametrize(
    ("channels", "options"),
    [(3, {"stride": 2, "padding": 3}), (2, {"dilation": (1, 2)}), (12, {"padding": (1, 0)}), (8, {})],
    ids=["3", "2", "12", "8"],
)
def test_few_channels(channels, options):
    """Pixels of a row of the filter become channels; images may have any strides."""
    x, w = floats(2, channels, 11, 12), floats(24, channels, 5, 4)
    pairs = {name: value if isinstance(value, tuple) else (value, value) for name, value in options.items()}
    for given in (x, last(x), x[:, :, ::-1][:, :, ::-1]):
        require_near(conv2d(given, w, arch="sm_90a", **options), right(x, w, **pairs))


def test_storage():
    """Arrays with other strides are copied; a given result may have any strides."""
    x, w = floats(2, 64, 5, 6), floats(24, 64, 3, 3)
    want = right(x, w, padding=(1, 1))
    kernel = conv2d.kernel(last(x), last(w), padding=1, arch="sm_90a")
    for given in ((x, w), (last(x), w), (x[:, :, ::-1], w), (last(x), last(w))):
        flipped = want if given[0].strides[2] > 0 else right(given[0], w, padding=(1, 1))
        got = conv2d(*given, padding=1, arch="sm_90a")
        require_near(got, flipped)
        assert got.strides == last(got).strides
    for out in (np.zeros(want.shape, np.float16), last(np.zeros(want.shape, np.float16))):
        assert conv2d(x, last(w), padding=1, out=out, arch="sm_90a") is out
        require_near(out, want)
    assert "tma_load_pixels_4d" in kernel.program.cuda
    assert conv2d(x[:0], w, padding=1).shape == (0, 24, 5, 6) and not conv2d(x[:, :0], w[:, :0], padding=1).any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: conv2d(x[0], w), "x and w must have four dimensions"),
        (lambda x, w: conv2d(x[:, :32], w), "must have the same channels"),
        (lambda x, w: conv2d(x, w, stride=0), "stride must be an integer or a pair of integers"),
        (lambda x, w: conv2d(x, w, padding=(1, 2, 3)), "padding must be an integer or a pair"),
        (lambda x, w: conv2d(x, w, dilation=True), "dilation must be an integer or a pair"),
        (lambda x, w: conv2d(x[:, :, :2], w), "the filter is larger than the padded image"),
        (lambda x, w: conv2d(x.astype(np.float32), w), "no kernel supports the element type of x"),
        (lambda x, w: conv2d(x, w.astype(np.float32)), "w has elements of float32"),
        (lambda x, w: conv2d(x, w, out=np.zeros((1, 2, 3, 4), np.float16)), "out has the shape"),
        (lambda x, w: conv2d(x, w, groups=2), "must have the same channels"),
        (lambda x, w: conv2d(x, w[:, :32], groups=2), "no kernel computes these groups"),
        (lambda x, w: conv2d(x, w, groups=True), "groups must be an integer"),
        (lambda x, w: conv2d(x, w, activation="tanh"), "no kernel applies this activation"),
        (lambda x, w: conv2d(x, w, x[0, 0, 0]), "bias has the shape"),
        (lambda x, w: conv2d(x, w, residual=x), "residual has the shape"),
        (lambda x, w: conv2d(x, [1]), "neither an array on a GPU nor a NumPy array"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(floats(1, 64, 5, 5), floats(16, 64, 3, 3))


def test_no_record():
    with pytest.raises(fireiron.StoreError):
        conv2d(last(floats(1, 64, 5, 5)), last(floats(16, 64, 3, 3)), require_record=True)


def test_estimate():
    """The tiles of the layers of ResNet-50 that were the fastest on an H200, or within 3 % of them."""
    layers = (6272, 512), (25088, 256), (100352, 512), (401408, 64)
    best = [convolution.ranked(pixels, outputs, 64, 9)[0] for pixels, outputs in layers]
    tiles = [(first, values["bm"], values["bn"]) for first, values in best]
    assert tiles == [(True, 128, 192), (True, 128, 192), (True, 128, 256), (True, 64, 256)]
    writes = convolution.ranked(401408, 256, 64)[0]
    assert (writes[0], writes[1]["bm"], writes[1]["num_blocks"]) == (False, 64, 264)
    assert convolution.ranked(100, 64, 16)[0][1]["bk"] == 16
