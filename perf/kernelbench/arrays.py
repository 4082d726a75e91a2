"""References in NumPy, for arrays of any rank: convolution, transposed convolution, pooling, normalization, activations."""

import itertools
import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[float])


def tuples(value, rank):
    """Return a number as a tuple of equal numbers."""
    return tuple(value) if isinstance(value, tuple) else (value,) * rank


def channels(vector, rank):
    """Return a vector of channels in a shape that is broadcast to (channels, *spatial)."""
    return np.asarray(vector).reshape(-1, *(1,) * rank)


def taps(x, kernel, stride, pad, dilation, value=0.0, ceil=False):
    """Yield (tap, the elements of x that it reads) for a window over the last dimensions of x."""
    rank = len(kernel)
    stride, pad, dilation = (tuples(item, rank) for item in (stride, pad, dilation))
    sides = [(0, 0)] * (x.ndim - rank) + [(n, n) for n in pad]
    x = np.pad(x, sides, constant_values=value)
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[-rank:], kernel, stride, dilation, strict=True)]
    for tap in itertools.product(*map(range, kernel)):
        where = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, sizes, stride, strict=True))
        yield tap, x[(..., *where)]


def conv(x, w, bias=None, stride=1, pad=0, dilation=1, groups=1):
    """Return the convolution of x (batch, channels, *spatial) with w (results, channels of a group, *kernel)."""
    rank = x.ndim - 2
    parts = []
    for xs, ws in zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True):
        read = taps(xs, w.shape[2:], stride, pad, dilation)
        parts.append(sum(np.einsum("bc...,oc->bo...", values, ws[(slice(None), slice(None), *tap)]) for tap, values in read))
    result = np.concatenate(parts, 1)
    return result if bias is None else result + channels(bias, rank)


def conv_transposed(x, w, bias=None, stride=1, pad=0, output_pad=0, dilation=1, groups=1):
    """Return the transposed convolution of x (batch, channels, *spatial) with w (channels, results of a group, *kernel): each element of x is
    added to the results that it contributes to."""
    rank, kernel = x.ndim - 2, w.shape[2:]
    stride, pad, output_pad, dilation = (tuples(item, rank) for item in (stride, pad, output_pad, dilation))
    sizes = [(n - 1) * s + d * (k - 1) + o + 1 for n, s, d, k, o in zip(x.shape[2:], stride, dilation, kernel, output_pad, strict=True)]
    result = np.zeros((x.shape[0], w.shape[1] * groups, *sizes))
    for group, (xs, ws) in enumerate(zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)):
        part = result[:, group * w.shape[1] : (group + 1) * w.shape[1]]
        for tap in itertools.product(*map(range, kernel)):
            where = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, x.shape[2:], stride, strict=True))
            part[(..., *where)] += np.einsum("bc...,co->bo...", xs, ws[(slice(None), slice(None), *tap)])
    inside = tuple(slice(n, size - n) for n, size in zip(pad, sizes, strict=True))
    result = result[(..., *inside)]
    return result if bias is None else result + channels(bias, rank)


def max_pool(x, kernel, stride=None, pad=0, dilation=1, rank=2):
    """Return the maxima of windows; elements outside of x are minus infinity."""
    kernel = tuples(kernel, rank)
    read = taps(x, kernel, kernel if stride is None else stride, pad, dilation, -np.inf)
    return np.max([values for _, values in read], axis=0)


def avg_pool(x, kernel, stride=None, pad=0, rank=2):
    """Return the means of windows; elements outside of x are zeros that count."""
    kernel = tuples(kernel, rank)
    return sum(values for _, values in taps(x, kernel, kernel if stride is None else stride, pad, 1)) / math.prod(kernel)


def normalized(x, axes, eps=1e-5):
    """Return (x - mean) / sqrt(biased variance + eps) over the axes."""
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def spatial(x):
    """Return the axes of x after batch and channels."""
    return tuple(range(2, x.ndim))


def layer_norm(x, gamma, beta):
    """Return x normalized over the last dimensions, those of gamma."""
    return normalized(x, tuple(range(x.ndim - gamma.ndim, x.ndim))) * gamma + beta


def group_norm(x, groups, gamma, beta):
    """Return x (batch, channels, *spatial) normalized over groups of channels."""
    split = x.reshape(x.shape[0], groups, -1)
    rank = x.ndim - 2
    return normalized(split, 2).reshape(x.shape) * channels(gamma, rank) + channels(beta, rank)


def instance_norm(x):
    """Return x (batch, channels, *spatial) normalized over the spatial dimensions, without parameters."""
    return normalized(x, spatial(x))


def batch_norm(x, gamma, beta, running_mean, running_var, momentum=0.1):
    """Return x normalized over batch and spatial dimensions, as in training, and the new running mean and variance (unbiased)."""
    axes, rank = (0, *spatial(x)), x.ndim - 2
    count = x.size // x.shape[1]
    y = normalized(x, axes) * channels(gamma, rank) + channels(beta, rank)
    mean, var = x.mean(axes), x.var(axes) * count / (count - 1)
    return y, running_mean + momentum * (mean - running_mean), running_var + momentum * (var - running_var)


def softmax(x, axis=1):
    """Return the softmax along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def logsumexp(x, axis=1):
    """Return log(sum(exp(x))) along an axis, which remains with extent 1."""
    top = x.max(axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis, keepdims=True)) + top


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def relu(x):
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def leaky(x, slope=0.01):
    """Return x, or slope * x for negative x."""
    return np.where(x > 0, x, slope * x)


def gelu(x):
    """Return the exact GELU, by the error function."""
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def swish(x):
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x):
    """Return log(1 + exp(x))."""
    return np.logaddexp(0, x)


def mish(x):
    """Return x * tanh(softplus(x))."""
    return x * np.tanh(softplus(x))


def hard_sigmoid(x):
    """Return x / 6 + 1/2, between 0 and 1."""
    return np.clip(x / 6 + 0.5, 0, 1)


def hard_swish(x):
    """Return x * hard_sigmoid(x)."""
    return x * hard_sigmoid(x)


def philox_uniform(seed, *counter):
    """Return numbers in [0, 1): the upper 24 bits of the first word of Philox4x32-10 (Salmon and others, 2011), for 32-bit counters."""
    counter = (*counter, *(0,) * (4 - len(counter)))
    words = [np.asarray(word, np.uint64) for word in np.broadcast_arrays(*counter)]
    key, low = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [second >> np.uint64(32) ^ words[1] ^ key[0], second & low, first >> np.uint64(32) ^ words[3] ^ key[1], first & low]
        key = [key[0] + np.uint64(0x9E3779B9) & low, key[1] + np.uint64(0xBB67AE85) & low]
    return ((words[0] >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)).astype(np.float32)
