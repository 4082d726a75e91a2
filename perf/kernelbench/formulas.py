"""Texts of formulas: activations of an expression, norms, softmax, logsumexp, convolutions. Each states the steps of a kernel."""

import math


def leaky(x, slope=0.01):
    """Leaky ReLU of an expression without effects."""
    return f"where({x} > 0, {x}, {slope} * {x})"


def swish(x):
    """The expression x * sigmoid(x)."""
    return f"{x} * sigmoid({x})"


def softplus(x):
    """The expression log(1 + exp(x)), without overflow."""
    return f"(relu({x}) + log(1 + exp(0 - abs({x}))))"


def mish(x):
    """The expression x * tanh(softplus(x))."""
    return f"{x} * tanh({softplus(x)})"


def hard_swish(x):
    """The expression x * clamp(x / 6 + 1 / 2, 0, 1)."""
    return f"{x} * clamp({x} / 6 + 0.5, 0, 1)"


def index(dims):
    """`"b c"` as an index list: `b,c`."""
    return ",".join(dims.split())


def count(dims):
    """The number of elements of some dimensions."""
    return "(" + " * ".join(f"size({dim})" for dim in dims.split()) + ")"


def without(dims, over):
    """The dimensions that are not in `over`."""
    return " ".join(dim for dim in dims.split() if dim not in over.split())


def mean(result, x, dims, over):
    """The mean over some dimensions of x, into the tensor `result`."""
    kept = f"{result}[{index(without(dims, over))}]"
    return f"{kept} = sum({', '.join(over.split())}, {x}[{index(dims)}])\n{kept} = {kept} / {count(over)}"


def moments(x, dims, over):
    """The mean `mean` and the biased variance `var` over some dimensions of x; `diff` is the difference from the mean."""
    at, kept = index(dims), index(without(dims, over))
    return (
        f"{mean('mean', x, dims, over)}\ndiff[{at}] = {x}[{at}] - mean[{kept}]\nsquare[{at}] = diff[{at}] * diff[{at}]\n"
        f"{mean('var', 'square', dims, over)}"
    )


def normalize(result, x, dims, over, gain="", eps=1e-5, vectors=("gamma", "beta")):
    """The formulas of (x - mean) * rsqrt(var + eps), times gamma plus beta at the index `gain`, if any."""
    affine = f" * {vectors[0]}[{gain}] + {vectors[1]}[{gain}]" if gain else ""
    at, kept = index(dims), index(without(dims, over))
    return f"{moments(x, dims, over)}\n{result}[{at}] = diff[{at}] * rsqrt(var[{kept}] + {eps}){affine}"


def batch_norm(result, x, dims, over, eps=1e-5, momentum=0.1):
    """Batch normalization in training: the result, and the new running mean `NM` and variance `NV`, which is unbiased."""
    kept = index(without(dims, over))
    return (
        f"{normalize(result, x, dims, over, kept, eps)}\nNM[{kept}] = RM[{kept}] + {momentum} * (mean[{kept}] - RM[{kept}])\n"
        f"NV[{kept}] = RV[{kept}] + {momentum} * (var[{kept}] * {count(over)} / ({count(over)} - 1) - RV[{kept}])"
    )


def softmax(result, x, dims, over):
    """The softmax of x over some dimensions."""
    at, kept, dim = index(dims), index(without(dims, over)), ", ".join(over.split())
    return (
        f"top[{kept}] = max({dim}, {x}[{at}])\npower[{at}] = exp({x}[{at}] - top[{kept}])\ntotal[{kept}] = sum({dim}, power[{at}])\n"
        f"{result}[{at}] = power[{at}] / total[{kept}]"
    )


def logsumexp(result, x, dims, over):
    """log(sum(exp(x))) over some dimensions."""
    at, kept, dim = index(dims), index(without(dims, over)), ", ".join(over.split())
    return (
        f"top[{kept}] = max({dim}, {x}[{at}])\npower[{at}] = exp({x}[{at}] - top[{kept}])\ntotal[{kept}] = sum({dim}, power[{at}])\n"
        f"{result}[{kept}] = log(total[{kept}]) + top[{kept}]"
    )


GELU_BY_TANH = math.sqrt(2 / math.pi)
