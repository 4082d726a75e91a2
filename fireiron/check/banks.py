"""Count the wavefronts per shared-memory request of a warp, and propose a padding or swizzle that avoids bank conflicts.

Shared memory has 32 banks of 4-byte words. A warp's request is served in phases: all lanes at once for up to 4 bytes per lane, half a warp
for 8, a quarter for 16. In a phase, each bank serves one word per wavefront; lanes that access the same word share it (CUDA C++ Programming
Guide, "Shared Memory" of compute capability 5.x and later).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Array, Use
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.persistence import dynamic_tiles, static_schedule
from fireiron.frozen import frozen
from fireiron.ir import Buffer
from fireiron.values.expr import constant
from fireiron.values.layout import Swizzle, require_integer
from fireiron.values.tensor import MatrixLayout

BANKS = 32
WORD = 4
"""Bytes of a word of a shared-memory bank."""

PADS = range(1, 33)
_SAMPLE = 1 << 16


@frozen(eq=False)
class Request:
    """The shared-memory requests of one access: coordinates of the first element of each lane's vector.

    `coordinates` are per dimension, `copies` is the copy index; both have shape `(requests, 32)`, one row per instruction of one warp.
    `active` masks the participating lanes.
    """

    use: Use
    coordinates: tuple[Array, ...]
    copies: Array
    active: Array
    vector: int

    def passes(self, buffer: Buffer) -> Array:
        """Wavefronts of each request."""
        elements = require_integer(buffer.elements)
        return wavefronts(
            (buffer.storage.address(self.coordinates) + self.copies * elements) * buffer.dtype.bytes + buffer.offset,
            self.vector * buffer.dtype.bytes,
            self.active,
        )

    def ideal(self, buffer: Buffer) -> Array:
        """Wavefronts without any conflict: one per phase with an active lane."""
        lanes = lanes_per_phase(self.vector * buffer.dtype.bytes)
        return self.active.reshape(len(self.active), -1, lanes).any(axis=2).sum(axis=1)


def lanes_per_phase(width: int) -> int:
    """Lanes of a warp that are served together, by bytes per lane."""
    return 32 if width <= 4 else 16 if width <= 8 else 8


def wavefronts(start: Array, width: int, active: Array) -> Array:
    """Wavefronts of each request: `start` are byte addresses `(requests, 32)`, `width` the bytes per lane.

    A lane with an aligned vector of 8 or 16 bytes always uses the same group of 2 or 4 banks, which then counts as one bank.
    """
    lanes = lanes_per_phase(width)
    phases = 32 // lanes
    bank_group = width if width > WORD and not (start % width).any() else WORD
    banks, count = BANKS * WORD // bank_group, max(width // bank_group, 1)
    words = start[:, :, None] // bank_group + np.arange(count)
    words = np.where(active[:, :, None], words, -1).reshape(len(start) * phases, lanes * count)
    words = np.sort(words, axis=1)
    fresh = np.ones(words.shape, dtype=bool)
    # Lanes that access the same word share it: of equal values in the sorted row the first one counts.
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    fresh &= words >= 0
    rows = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    loads = np.bincount(rows[fresh] * banks + words[fresh] % banks, minlength=len(words) * banks)
    return np.asarray(loads.reshape(len(start), phases, banks).max(axis=2).sum(axis=1))


def check_banks(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """A finding for each access to shared memory; a warning with a repair if lanes conflict."""
    access_trace = AccessTrace(static_schedule(access_trace.kernel)) if dynamic_tiles(access_trace.kernel) else access_trace
    findings: list[Finding] = []
    for buffer in access_trace.kernel.buffers:
        if not buffer.memory.in_shared:
            continue
        requests = [
            counted_request
            for use in access_trace.uses
            if use.access.buffer == buffer.name and (counted_request := request(access_trace, use)) is not None
        ]
        counted = [(one, one.passes(buffer), one.ideal(buffer)) for one in requests]
        repair = _repair(buffer, requests) if any((passes > ideal).any() for _, passes, ideal in counted) else {}
        findings += [_finding(buffer, one, passes, ideal, repair) for one, passes, ideal in counted]
    return tuple(findings)


def request(access_trace: AccessTrace, use: Use) -> Request | None:
    """The requests of an access; None if it is collective or its lanes are unknown."""
    statement, access = use.statement, use.access
    if statement.collective or access.spread or access not in statement.accesses:
        return None
    known = frozenset({"thread", *(loop.var.name for loop in use.loops)})
    conditions, _ = access_trace.guards(statement, known)
    needed = access_trace.needs((*access.base, access.copy, *conditions))
    fixed = {loop.var.name: 0 for loop in use.loops if constant(loop.extent) is None}
    axes = []
    room = max(_SAMPLE // access_trace.kernel.workers, 1)
    # Inner loops get the sample budget first; at least two iterations of each outer loop are sampled.
    for loop in reversed(use.loops):
        count = constant(loop.extent)
        if loop.var.name in needed and count is not None:
            axes.append((loop.var.name, np.arange(min(count, room))))
            room = max(room // max(count, 1), 2)
    if not needed <= {"thread", *fixed, *(name for name, _ in axes)} or any(not len(values) for _, values in axes):
        return None
    frame = access_trace.frame([("thread", access_trace.threads), *axes], fixed)
    vector = use.width
    steps = np.array(access.elements()[::vector]).T
    coordinates = tuple(_by_warp(frame.full(base)[..., None] + step) for base, step in zip(access.base, steps, strict=True))
    active = np.ones(frame.shape, dtype=bool)
    for condition in conditions:
        active = active & np.asarray(frame.full(condition), dtype=bool)
    wide = (*frame.shape, steps.shape[1])
    lanes = _by_warp(np.broadcast_to(active[..., None], wide), False)
    return Request(use, coordinates, _by_warp(np.broadcast_to(frame.full(access.copy)[..., None], wide)), lanes, vector)


def _by_warp(values: Array, fill: Any = 0) -> Array:
    """Reshape `(threads, ...)` to `(requests, 32)`, with the last warp padded."""
    missing = -len(values) % 32
    if missing:
        values = np.concatenate([values, np.full((missing, *values.shape[1:]), fill, dtype=values.dtype)])
    return np.moveaxis(values.reshape(len(values) // 32, 32, -1), 1, 2).reshape(-1, 32)


def _finding(buffer: Buffer, request: Request, wavefronts: Array, ideal: Array, repair: dict[str, Any]) -> Finding:
    where = int(np.argmax(wavefronts - ideal))
    worst, best = int(wavefronts[where]), int(ideal[where])
    width = request.vector * buffer.dtype.bytes
    details = {
        "wavefronts": worst,
        "ideal": best,
        "degree": -(-worst // max(best, 1)),
        "average": round(float(wavefronts.mean()), 3),
        "vector_bytes": width,
        "requests": len(wavefronts),
    }
    use = request.use
    access = described(use.statement, use.access)
    if worst <= best:
        message = f"{access}: no bank conflict, {best} wavefront{'s' if best != 1 else ''} for {width} bytes per lane"
        return Finding("banks", "note", buffer.name, message, line_of(use.statement, use.access), access, details)
    message = f"{access}: {details['degree']}-way bank conflict, {worst} wavefronts instead of {best}; {repair['text']}"
    extra = {name: value for name, value in repair.items() if name != "text"}
    return Finding("banks", "warning", buffer.name, message, line_of(use.statement, use.access), access, details | extra)


# ---------------------------------------------------------------------------------------------- repairs


def _repair(buffer: Buffer, requests: Sequence[Request]) -> dict[str, Any]:
    """The smallest padding, or the first swizzle, that avoids all conflicts of the buffer; else the best padding."""
    result: dict[str, Any] = {}
    rows = [_sampled(one) for one in requests]
    ideal = sum(int(one.ideal(buffer).sum()) for one in rows)
    now = sum(int(one.passes(buffer).sum()) for one in rows)
    best = (now, 0)
    for pad, padded in _padded(buffer, requests):
        cost = sum(int(one.passes(padded).sum()) for one in rows)
        best = min(best, (cost, pad))
        # A sample of the requests selects candidates, because 32 paddings are tried. The proposed padding is verified on all requests.
        if cost == ideal and _conflict_free(padded, requests):
            result["pad"] = pad
            break
    for swizzle, swizzled in _swizzled(buffer, requests):
        if sum(int(one.passes(swizzled).sum()) for one in rows) == ideal and _conflict_free(swizzled, requests):
            result["swizzle"] = [swizzle.bits, swizzle.base, swizzle.shift]
            break
    ways = [f"pad({result['pad']})"] if "pad" in result else []
    ways += [f"swizzle_storage(Swizzle({', '.join(map(str, result['swizzle']))}))"] if "swizzle" in result else []
    if ways:
        result["text"] = f"{' or '.join(ways)} on {buffer.name} removes all bank conflicts of its accesses"
    elif best[1]:
        result |= {"best_pad": best[1], "best_share": round(best[0] / now, 3)}
        share = f"pad({best[1]}) takes {best[0] / now:.0%} of the wavefronts"
        result["text"] = f"no pad up to {PADS[-1]} and no XOR swizzle removes all conflicts; {share}"
    else:
        result["text"] = f"no pad up to {PADS[-1]} and no XOR swizzle is better: assign the elements to lanes in another order"
    return result


def _sampled(request: Request) -> Request:
    """A sample of requests that is large enough to judge a candidate."""
    step = max(len(request.active) // 64, 1)
    return attrs.evolve(
        request,
        coordinates=tuple(part[::step] for part in request.coordinates),
        copies=request.copies[::step],
        active=request.active[::step],
    )


def _conflict_free(buffer: Buffer, requests: Sequence[Request]) -> bool:
    return all(bool((one.passes(buffer) <= one.ideal(buffer)).all()) for one in requests)


def _padded(buffer: Buffer, requests: Sequence[Request]) -> Iterator[tuple[int, Buffer]]:
    layout = buffer.tensor.layout
    if not isinstance(layout, MatrixLayout) or layout.leading is not None or buffer.tensor.swizzle is not None:
        return
    # With other paddings, rows would not start at multiples of the vector size.
    unit = max(one.vector for one in requests)
    for extra in PADS:
        pad = buffer.tensor.pad + extra
        if pad % unit == 0:
            tensor = attrs.evolve(buffer.tensor, pad=pad)
            storage = tensor.storage()
            yield pad, attrs.evolve(buffer, tensor=tensor, storage=storage, elements=storage.extent)


def _swizzled(buffer: Buffer, requests: Sequence[Request]) -> Iterator[tuple[Swizzle, Buffer]]:
    if buffer.tensor.swizzle is not None:
        return
    highest = (require_integer(buffer.elements) - 1).bit_length()
    # The bits below the base index the elements of a vector, which must stay together.
    base = int(math.log2(max(one.vector for one in requests)))
    for bits in range(1, 6):
        for low in range(base, base + 4):
            for shift in range(bits, 11):
                if low + shift + bits <= highest:
                    swizzle = Swizzle(bits, low, shift)
                    tensor = attrs.evolve(buffer.tensor, swizzle=swizzle)
                    storage = tensor.storage()
                    yield swizzle, attrs.evolve(buffer, tensor=tensor, storage=storage, elements=storage.extent)
