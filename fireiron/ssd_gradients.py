"""The gradients of `fireiron.ssd` and `fireiron.linear_attention`, by the kernels of the forward pass.

The gradient of each array of linear attention is linear attention too. With `G[t] = exp(log[t+1]) * G[t+1] + outer(grad[t], q[t])`, which
runs from the last position to the first:

    dv[t] = G[t] k[t]                        the recurrence of (grad, q), read by k, in reverse
    dq[t] = state[t]^T grad[t]               the recurrence of (k, v), read by grad
    dk[t] = G[t]^T v[t]                      the recurrence of (q, grad), read by v, in reverse
    dlog[t] = exp(log[t]) <G[t], state[t-1]>

`dlog[t]` is the sum of all pairs u < t <= s of the part of output s that comes from position u, times `grad[s]`. It has four parts: both in
the chunk of t, which `pairs_definition` computes; u in an earlier chunk; s in a later chunk; both. The last part is the difference of
`dlog` at the first position of the chunk, which is the product of two stored states, and the second part. So no sum extends over several
chunks, and rounding errors of 16 bits do not add up along the sequence.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fireiron.batches import new_like
from fireiron.copies import library, zeroed
from fireiron.errors import ArgumentError
from fireiron.function import Function, function
from fireiron.ssd import linear_attention, linear_request, request
from fireiron.ssd_kernels import CHUNK, MOST_STATE, checked
from fireiron.values.machine import as_dtype, float32

if TYPE_CHECKING:
    from fireiron.front.call import Request

VECTOR: Final = 8
"""Elements of 16 bits that a thread copies at a time."""

FEWEST: Final = 2 * CHUNK
"""Minimum number of positions of the arrays that the gradients read; shorter ones are padded with zeros."""


class Scan(NamedTuple):
    """The arrays of linear attention: `log` is float32 (batch, length, heads), `state` may be None."""

    q: Any
    k: Any
    v: Any
    log: Any
    state: Any


class Gradients(NamedTuple):
    """The gradients of the arrays of a `Scan`, and its outputs."""

    q: Any
    k: Any
    v: Any
    log: Any
    state: Any
    outputs: Any


def of_scan(scan: Scan, grad: Any, grad_state: Any, arch: Any = None) -> Gradients:
    """Return the gradients for those of the outputs and of the last state; `grad_state` may be None.

    Raises: ArgumentError if no kernel supports the gradients.
    """
    length, elements = scan.v.shape[1], scan.v.shape[-1]
    if elements > MOST_STATE:
        asked = "ssd: no kernel computes the gradients of B and C for so many elements per head"
        raise ArgumentError(asked, got=elements, legal=f"at most {MOST_STATE}", hint="call under torch.no_grad()")
    whole = max(FEWEST, -(-length // CHUNK) * CHUNK)
    q, k, v, log, grad = (_padded(array, whole) for array in (*scan[:4], grad))
    outputs, past, states, _, at, au = _scanned(q, k, v, log, scan.state, arch, True)
    back = zeroed(new_like(log, log.shape, float32))
    back[:, 1:] = _reversed(log)[:, :-1]
    in_reverse = Scan(_in_reverse(q, arch), _in_reverse(k, arch), _in_reverse(v, arch), back, None)
    slopes = _in_reverse(grad, arch)
    of_v, of_past, slopes_of_states, first, *_ = _scanned(in_reverse.k, in_reverse.q, slopes, back, grad_state, arch, True)
    heads, groups = v.shape[2], k.shape[2]
    of_q, *_ = _scanned(grad, v, _repeated(k, heads, arch), log, _transposed(scan.state), arch)
    of_k, *_ = _scanned(in_reverse.v, slopes, _repeated(in_reverse.q, heads, arch), back, _transposed(grad_state), arch)
    inside = _pairs(Scan(q, k, v, log, None), grad, at, au, arch)
    of_state = sys.modules[library(v)].exp(log[:, 0])[..., None, None] * first
    crossing = _crossing(states, slopes_of_states, log, 0 if scan.state is None else (of_state * scan.state).sum((-1, -2)), arch)
    of_log = _of_log(inside, _dots(grad, past, arch), _reversed(_dots(in_reverse.v, of_past, arch)), crossing)
    of_q, of_k, of_v = _summed(of_q, groups), _in_reverse(_summed(of_k, groups), arch), _in_reverse(of_v, arch)
    of_q, of_k, of_v, of_log, outputs = (array[:, :length] for array in (of_q, of_k, of_v, of_log, outputs))
    return Gradients(of_q, of_k, of_v, of_log, of_state, outputs)


def _scanned(q: Any, k: Any, v: Any, log: Any, state: Any, arch: Any, past: bool = False) -> Any:
    """Return the outputs and the last state of linear attention; with `past`, see `fireiron.ssd.Options`."""
    asked = linear_request(q, k, v, log, initial_state=state, return_final_state=True, arch=arch)
    return linear_attention.launched(asked._replace(options=asked.options._replace(past=past)))


def _pairs(scan: Scan, grad: Any, at: Any, au: Any, arch: Any) -> Any:
    """Return the sums over pairs within a chunk, (batch, chunks, positions, heads), for each position.

    `at` and `au` are (batch * parts, heads, chunks / parts, positions) if the kernels divide sequences into parts.
    """
    heads, groups = scan.v.shape[2], scan.k.shape[2]
    chunks = [array.reshape(at.shape[0], -1, CHUNK, *array.shape[2:]) for array in (scan.q, scan.k, grad, scan.v)]
    if groups == 1:
        chunks[:2] = [array[:, :, :, 0] for array in chunks[:2]]
    sums = _sums_of_pairs(None if groups == 1 else heads // groups)(*chunks, at, au, arch=arch)
    result = zeroed(new_like(sums, (*sums.shape[:1], sums.shape[2], CHUNK, heads), float32))
    result[:, :, 1:] = _moved(sums)[:, :, :-1]
    return result.reshape(scan.v.shape[0], -1, CHUNK, heads)


@functools.cache
def _sums_of_pairs(shared: int | None) -> Function:
    """Return the function of pairs within a chunk; `shared` heads read the same q and k, or all heads if None."""
    from fireiron.strategies import ssd as file

    fused = file.pairs_definition(shared)
    return function(fused, (file.by_pairs(fused),))


@functools.cache
def _of_rows(definition: str, strategy: str) -> Function:
    """Return the function of a definition for rows."""
    from fireiron.strategies import ssd as file

    return function(getattr(file, definition), (getattr(file, strategy),))


def _dots(a: Any, b: Any, arch: Any) -> Any:
    """Return the sums of products of the last dimension, in float32."""
    rows = (-1, a.shape[-1])
    return _of_rows("row_dots", "dots")(a.reshape(rows), b.reshape(rows), arch=arch).reshape(a.shape[:-1])


def _scaled(array: Any, factors: Any, arch: Any) -> Any:
    """Return an array whose rows are multiplied by float32 numbers, in its type."""
    rows = array.reshape(-1, array.shape[-1])
    return _of_rows("scaled_rows", "scaled")(rows, factors.reshape(-1), arch=arch).reshape(array.shape)


def _moved(array: Any) -> Any:
    """Return the view (batch, chunks, positions, heads) of an array (batch, heads, chunks, positions)."""
    return array.swapaxes(1, 2).swapaxes(2, 3)


def _crossing(states: Any, slopes: Any, log: Any, first: Any, arch: Any) -> Any:
    """Return the gradient of the logarithm of the first position of each chunk, (batch, chunks, heads).

    Args:
        states: (batch, chunks, heads, p, n), the states before each chunk.
        slopes: the same for the recurrence in reverse.
        log: (batch, length, heads).
        first: the gradient for the first chunk, (batch, heads) or 0.
        arch: as for the call.
    """
    batch, chunks, heads, _, n = states.shape
    flat = [array.reshape(batch, chunks, -1, n) for array in (states, slopes)]
    sums = _products_of_states(chunks)(*flat, arch=arch).reshape(batch, chunks - 1, heads, -1).sum(-1)
    result = zeroed(new_like(log, (batch, chunks, heads), float32))
    result[:, 0] = first
    result[:, 1:] = sums * sys.modules[library(log)].exp(log[:, CHUNK::CHUNK])
    return result


@functools.cache
def _products_of_states(chunks: int) -> Function:
    """Return the function of the products of states of both directions, for a number of chunks."""
    from fireiron.strategies import ssd as file

    return function(file.crossing_definition(chunks), (file.by_rows,), sizes={"c": chunks - 1})


def _of_log(inside: Any, past: Any, later: Any, crossing: Any) -> Any:
    """Return the gradient of logarithms.

    Args:
        inside: (batch, chunks, positions, heads), the sums of pairs within a chunk.
        past, later: (batch, length, heads): what a position contributes by pairs with positions of earlier and of later chunks.
        crossing: (batch, chunks, heads), the gradient of the first position of each chunk.
    """
    past, later = (array.reshape(inside.shape) for array in (past, later))
    around = crossing - past.sum(2)
    of_log = inside + _reversed(_reversed(past, 2).cumsum(2), 2) + later.cumsum(2) - later + around[:, :, None]
    return of_log.reshape(inside.shape[0], -1, inside.shape[-1])


# ---------------------------------------------------------------------------------------------- gradients of calls


def of_ssd(grad: Any, grad_state: Any, arrays: Sequence[Any], arch: Any = None) -> tuple[Any, ...]:
    """Return the gradients of the arrays of `fireiron.ssd`, in the order of its parameters; None for None.

    Args:
        grad: the gradient of the outputs.
        grad_state: that of the last state, or None.
        arrays: x, dt, A, B, C, D, z and the initial state.
        arch: as for `fireiron.ssd`.

    Raises: ArgumentError for incompatible arrays.
    """
    x, dt, A, B, C, D, z, state = arrays
    _check("ssd", grad, grad_state, request(*arrays, arch=arch))
    if 0 in (*x.shape, *B.shape):
        return tuple(None if array is None else zeroed(_empty_like(array)) for array in arrays)
    steps, of_z = wide(dt), None
    of_sum = narrow(grad, x) if z is None else narrow(wide(grad) * _gate(z)[0], x)
    result = of_scan(Scan(C, B, _scaled(x, steps, arch), steps * A, state), of_sum, grad_state, arch)
    of_x = _scaled(result.v, steps, arch)
    of_x = of_x if D is None else narrow(wide(of_x) + D[:, None] * wide(of_sum), x)
    of_dt = _dots(x, result.v, arch) + A * result.log
    if z is not None:
        sums = wide(result.outputs) if D is None else wide(result.outputs) + D[:, None] * wide(x)
        of_z = narrow(wide(grad) * sums * _gate(z)[1], z)
    of_a = (steps * result.log).sum((0, 1))
    of_d = None if D is None else _dots(of_sum, x, arch).sum((0, 1))
    return of_x, narrow(of_dt, dt), of_a, result.k, result.q, of_d, of_z, None if state is None else result.state


def _gate(z: Any) -> tuple[Any, Any]:
    """Return `silu(z)` and its derivative, in float32."""
    z = wide(z)
    share = 1 / (1 + sys.modules[library(z)].exp(-z))
    return z * share, share * (1 + z * (1 - share))


def of_linear_attention(grad: Any, grad_state: Any, arrays: Sequence[Any], scale: float, arch: Any = None) -> tuple[Any, ...]:
    """Return the gradients of the arrays of `fireiron.linear_attention`, in the order of its parameters; None for None.

    Args:
        grad: the gradient of the outputs.
        grad_state: that of the last state, or None.
        arrays: q, k, v, the decay and the initial state.
        scale: as for `fireiron.linear_attention`.
        arch: as for `fireiron.linear_attention`.

    Raises: ArgumentError for incompatible arrays.
    """
    q, k, v, decay, state = arrays
    _check("linear_attention", grad, grad_state, linear_request(q, k, v, decay, scale=scale, initial_state=state, arch=arch))
    if 0 in (*v.shape, *k.shape):
        return tuple(None if array is None else zeroed(_empty_like(array)) for array in arrays)
    log = zeroed(new_like(v, v.shape[:3], float32))
    if decay is not None:
        log[...] = wide(decay)
    result = of_scan(Scan(q, k, v, log, state), narrow(wide(grad) * scale, v), grad_state, arch)
    of_decay = None
    if decay is not None:
        of_decay = narrow(result.log if len(decay.shape) > 1 else result.log.sum((0, 1)), decay)
    return result.q, result.k, result.v, of_decay, None if state is None else result.state


def _check(call: str, grad: Any, grad_state: Any, asked: Request) -> None:
    """Refuse arrays that the call refuses, and gradients with other shapes than the results."""
    _, sizes, _ = checked(asked)
    state = sizes.batch, sizes.heads, sizes.elements, sizes.state
    outputs = sizes.batch, sizes.length, sizes.heads, sizes.elements
    for name, array, shape in (("grad", grad, outputs), ("grad_state", grad_state, state)):
        if array is not None and tuple(array.shape) != shape:
            raise ArgumentError(f"{call}.gradients: {name} has another shape than its result", got=tuple(array.shape), legal=shape)


# ---------------------------------------------------------------------------------------------- arrays of any library


def _empty_like(array: Any) -> Any:
    """Return a new array with the shape and the type of another."""
    return new_like(array, tuple(array.shape), as_dtype(str(array.dtype).removeprefix("torch.")))


def wide(array: Any) -> Any:
    """Return an array in float32."""
    return array.float() if library(array) == "torch" else array.astype("float32")


def narrow(array: Any, like: Any) -> Any:
    """Return an array with the type of another."""
    return array.to(like.dtype) if library(array) == "torch" else array.astype(like.dtype)


def _packed(array: Any) -> Any:
    """Return an array, or a copy of it, row-major."""
    return array.contiguous() if library(array) == "torch" else sys.modules[library(array)].ascontiguousarray(array)


def _reversed(array: Any, axis: int = 1) -> Any:
    """Return a copy with the elements of a dimension in reverse."""
    if library(array) == "torch":
        return array.flip(axis)
    return _packed(sys.modules[library(array)].flip(array, axis))


def _in_reverse(array: Any, arch: Any) -> Any:
    """Return an array whose positions are in reverse, by a kernel if rows have whole vectors."""
    batch, length, *heads = array.shape
    if math.prod(heads) % VECTOR:
        return _reversed(array)
    return _reversal(length)(array.reshape(batch, length, -1), arch=arch).reshape(array.shape)


@functools.cache
def _reversal(length: int) -> Function:
    """Return the function of arrays (batch, length, elements) in reverse."""
    from fireiron.strategies import ssd as file

    return function(file.reversed_rows(length), (file.in_reverse,), sizes={"t": length})


@functools.cache
def _repetition(count: int) -> Function:
    """Return the function of rows, each a number of times."""
    from fireiron.strategies import ssd as file

    return function(file.repeated_rows, (file.repeated,), sizes={"r": count})


def _padded(array: Any, length: int) -> Any:
    """Return a row-major array with zeros after the last position."""
    if array.shape[1] == length:
        return _packed(array)
    kind = as_dtype(str(array.dtype).removeprefix("torch."))
    result = zeroed(new_like(array, (array.shape[0], length, *array.shape[2:]), kind))
    result[:, : array.shape[1]] = array
    return result


def _repeated(array: Any, heads: int, arch: Any) -> Any:
    """Return an array (batch, length, heads, n) from one with groups of heads."""
    batch, length, groups, n = array.shape
    if groups == heads:
        return array
    return _repetition(heads // groups)(array.reshape(-1, n), arch=arch).reshape(batch, length, heads, n)


def _summed(array: Any, groups: int) -> Any:
    """Return the sums over the heads of a group, in the type of the array."""
    batch, length, heads, n = array.shape
    if groups == heads:
        return array
    parts = array.reshape(batch, length, groups, heads // groups, n)
    if library(array) == "torch":
        return narrow(parts.sum(3, dtype=sys.modules["torch"].float32), array)
    return narrow(parts.sum(3, dtype="float32"), array)


def _transposed(state: Any) -> Any:
    """Return a state (batch, heads, n, p), row-major; None for None."""
    if state is None:
        return None
    return _packed(state.swapaxes(-1, -2))


__all__ = ["Gradients", "Scan", "narrow", "of_linear_attention", "of_scan", "of_ssd", "wide"]
