"""The picture `banks`: which of the 32 banks each shared-memory access uses, and the bank of each element of a tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.banks import BANKS, WORD, Request, check_banks, lanes_per_phase, request
from fireiron.check.finding import Finding
from fireiron.check.persistence import static_schedule
from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Cells, Rect, Text
from fireiron.ir import Buffer
from fireiron.values.expr import constant
from fireiron.values.layout import Swizzle

Array = Any
WIDTH: Final = 900
_BANK: Final = 15.0
_MOST_ROWS: Final = 16
_MOST_CELLS: Final = 512
_MOST_WORDS: Final = 64


@attrs.frozen(eq=False)
class Load:
    """The worst request of a warp in an access: `words[phase, bank]` is the number of distinct words that each bank serves.

    `lanes` are the words that each lane requests, `(32, words per lane)`, -1 for inactive lanes; `finding` is the finding of the
    bank check.
    """

    request: Request
    finding: Finding
    index: int
    words: Array
    lanes: Array

    @property
    def passes(self) -> int:
        """The number of wavefronts; a phase takes as many wavefronts as its busiest bank has words."""
        return int(self.words.max(axis=1).sum())


def loads(access_trace: AccessTrace) -> dict[str, tuple[Load, ...]]:
    """Return the worst request of each shared-memory access, by buffer, without duplicates."""
    findings = iter(check_banks(access_trace))
    by_buffer: dict[str, tuple[Load, ...]] = {}
    for buffer in access_trace.kernel.buffers:
        if buffer.memory.in_shared:
            requests = [
                warp_access
                for use in access_trace.uses
                if use.access.buffer == buffer.name and (warp_access := request(access_trace, use)) is not None
            ]
            different: dict[tuple[str | None, int], Load] = {}
            for warp_request in requests:
                load = _load(buffer, warp_request, next(findings))
                different.setdefault((load.finding.access, load.passes), load)
            by_buffer[buffer.name] = tuple(different.values())
    return {name: rows for name, rows in by_buffer.items() if rows}


def _load(buffer: Buffer, warp_request: Request, finding: Finding) -> Load:
    passes = warp_request.passes(buffer)
    index = int(np.argmax(passes - warp_request.ideal(buffer)))
    words = _words(buffer, warp_request, index)
    phases = 32 // lanes_per_phase(warp_request.vector * buffer.dtype.bytes)
    served = np.zeros((phases, BANKS), dtype=np.int64)
    for phase, part in enumerate(np.split(words, phases)):
        requested = np.unique(part[part >= 0])
        np.add.at(served[phase], requested % BANKS, 1)
    return Load(warp_request, finding, index, served, words)


def _words(buffer: Buffer, warp_request: Request, index: int) -> Array:
    """Return the 4-byte words that each lane requests."""
    elements = constant(buffer.elements) or 0
    places = [part[index] for part in warp_request.coordinates]
    start = (buffer.storage.address(places) + warp_request.copies[index] * elements) * buffer.dtype.bytes + buffer.offset
    words = start[:, None] // WORD + np.arange(max(warp_request.vector * buffer.dtype.bytes // WORD, 1))
    return np.where(warp_request.active[index][:, None], words, -1)


def banks(program: Program) -> Picture:
    """Draw the picture; it contains only a sentence if the kernel has no shared-memory access to draw."""
    access_trace = AccessTrace(static_schedule(program.lowered))
    by_buffer = loads(access_trace)
    page = Page()
    page.heading(f"Banks of shared memory: {program.spec}")
    title = f"Shared-memory banks: {program.spec}"
    if not by_buffer:
        page.text(16, 52, "No thread of this kernel accesses shared memory by its own index.", 11)
        return page.picture("banks", title, WIDTH, 72)
    y = page.paragraph(
        16,
        48,
        "Shared memory has 32 banks, each serving one 4-byte word at a time. A warp's request is served in phases (all lanes at once for "
        "4 bytes per lane, 16 lanes for 8 bytes, 8 lanes for 16); a phase takes as many passes as the busiest bank has distinct words. The "
        "worst request of each access is drawn. In a tile, the color is the bank; frames mark the accesses of the lanes of phase 0.",
    )
    texts = {1: "1 word", 2: "2 words: 2 passes", 4: "4", 8: "8", 16: "16", 32: "32"}
    y = page.legend(16, y, [(colors.heat(degree), text) for degree, text in texts.items()])
    for name, rows in by_buffer.items():
        buffer = access_trace.kernel.buffer(name)
        y += 6
        y = page.bar(y, _headline(buffer), WIDTH - 32)
        for load in rows:
            y = _heat(page, y, load)
        y = _storage(page, y + 4, buffer, max(rows, key=lambda load: _relevance(buffer, load)))
    return page.picture("banks", title, WIDTH, y + 4)


def _relevance(buffer: Buffer, load: Load) -> tuple[int, int, bool]:
    """Return a sort key of how well an access shows the layout: wavefronts that the layout saves, then conflicts, then reads first."""
    passes = [int(load.request.passes(variant).max()) for _, variant in variants(buffer, load.finding)]
    return max(passes) - min(passes), load.passes - load.finding.details["ideal"], not load.request.use.access.write


def _headline(buffer: Buffer) -> str:
    tensor = buffer.tensor
    text = f"{buffer.name}: {' × '.join(map(str, tensor.shape))} {buffer.dtype.name}, {tensor.layout}"
    text += f", pad({tensor.pad})" if tensor.pad else ""
    text += f", swizzle {tensor.swizzle}" if tensor.swizzle else ""
    return text + (f", {tensor.copies} copies" if tensor.copies > 1 else "")


def _heat(page: Page, y: float, load: Load) -> float:
    """Draw bank against phase for the worst request of an access; return the lower edge."""
    details = load.finding.details
    use = load.request.use
    verb = "written" if use.access.write else "read"
    text = f"{verb} by {use.statement.instruction.name}, {details['vector_bytes']} bytes per lane: "
    text += f"{details['wavefronts']} pass{'es' if details['wavefronts'] != 1 else ''}"
    bad = f" instead of {details['ideal']} ({details['degree']}-way conflict)"
    text += bad if details["wavefronts"] > details["ideal"] else ", no conflict"
    page.text(24, y + 11, text, 11)
    left, top = 110.0, y + 28
    phases = len(load.words)
    present = sorted({int(value) for value in load.words.ravel() if value > 0})
    values = tuple(tuple(present.index(int(value)) if value else -1 for value in row) for row in load.words)
    xs = tuple(left + _BANK * bank for bank in range(BANKS + 1))
    ys = tuple(top + _BANK * phase for phase in range(phases + 1))
    page.add(Rect(left, top, BANKS * _BANK, phases * _BANK, colors.EMPTY, "#d1d9e0", 0.6))
    palette = tuple(map(colors.heat, present))
    page.add(Cells(xs, ys, values, palette, tuple(f"{count} word{'s' if count != 1 else ''} of one bank" for count in present), 0.6))
    for row, words in enumerate(values):
        for bank, value in enumerate(words):
            if value >= 0:
                ink = colors.ink_on(palette[value])
                page.text(xs[bank] + _BANK / 2, ys[row] + 11, str(present[value]), 8.5, anchor="middle", color=ink)
    lanes = lanes_per_phase(details["vector_bytes"])
    for row in range(phases):
        page.text(left - 6, ys[row] + 11, f"lanes {row * lanes}-{row * lanes + lanes - 1}", 9, anchor="end", color=PALE)
    for bank in range(0, BANKS, 4):
        page.text(xs[bank] + _BANK / 2, top - 4, str(bank), 8, anchor="middle", color=PALE)
    page.text(left + BANKS * _BANK + 8, top - 4, "bank", 8, color=PALE)
    return top + phases * _BANK + 14


# ---------------------------------------------------------------------------------------------- the banks of elements


def variants(buffer: Buffer, finding: Finding) -> Iterator[tuple[str, Buffer]]:
    """Yield the buffer, and a variant for comparison: without padding and swizzle, or with the repair that the check proposes."""
    tensor = buffer.tensor
    if tensor.pad or tensor.swizzle is not None:
        without = " and ".join(word for word, changed in (("padding", tensor.pad), ("swizzle", tensor.swizzle)) if changed)
        yield f"without {without}", _stored(buffer, pad=0, swizzle=None)
        yield "as stored", buffer
        return
    yield "as stored", buffer
    if "swizzle" in finding.details:
        swizzle = Swizzle(*finding.details["swizzle"])
        yield f"with swizzle_storage({swizzle!r})", _stored(buffer, swizzle=swizzle)
    elif "pad" in finding.details or "best_pad" in finding.details:
        pad = finding.details.get("pad", finding.details.get("best_pad"))
        yield f"with pad({pad})", _stored(buffer, pad=pad)


def _stored(buffer: Buffer, **changes: Any) -> Buffer:
    tensor = attrs.evolve(buffer.tensor, **changes)
    storage = tensor.storage()
    return attrs.evolve(buffer, tensor=tensor, storage=storage, elements=storage.extent)


def bank_of(buffer: Buffer, rows: Array, columns: Array) -> Array:
    """Return the bank of each element of the first copy, `(rows, columns)`."""
    places = np.broadcast_arrays(rows[:, None], columns[None, :]) if len(buffer.tensor.shape) > 1 else (columns[None, :],)
    places = places[: len(buffer.tensor.shape)]
    more = [np.zeros(1, dtype=np.int64)] * (len(buffer.tensor.shape) - len(places))
    numbers = np.broadcast_to(buffer.storage.address([*places, *more]), (len(rows), len(columns)))
    return (numbers * buffer.dtype.bytes + buffer.offset) // WORD % BANKS


def _storage(page: Page, y: float, buffer: Buffer, load: Load) -> float:
    """Draw the tile by bank, the variants side by side; return the lower edge."""
    shape = [constant(size) or 1 for size in buffer.tensor.shape][:2]
    height, width = (1, 1, *shape)[-2:]
    along_rows = _contiguous(buffer) == 0
    step = max(WORD // buffer.dtype.bytes, 1)
    words = -(-min(height if along_rows else width, _MOST_WORDS * step) // step)
    others = max(_MOST_ROWS, min(_MOST_WORDS, _MOST_CELLS // words))
    most = (_MOST_WORDS * step, others) if along_rows else (others, _MOST_WORDS * step)
    rows, columns = np.arange(min(height, most[0])), np.arange(min(width, most[1]))
    scale = min(400 / len(columns), 230 / len(rows), 14.0)
    room = max(len(columns) * scale, 60.0), max(len(rows) * scale, 16.0)
    palette = colors.along(colors.SCALE, BANKS)
    bottom = y
    corner = (len(rows), len(columns)) != (height, width)
    for number, (text, variant) in enumerate(variants(buffer, load.finding)):
        x = 44.0 + number * 438.0
        top = y + 30
        values = bank_of(variant, rows, columns)
        warp_request = load.request
        index = int(np.argmax(warp_request.passes(variant) - warp_request.ideal(variant))) if variant is not buffer else load.index
        title = f"{text}: {int(warp_request.passes(variant)[index])} pass{'es' if warp_request.passes(variant)[index] != 1 else ''}"
        page.text(x - 20, y + 11, title, 10.5, bold=True)
        verb = "write" if warp_request.use.access.write else "read"
        note = f"first {len(rows)} × {len(columns)} elements; " if corner else ""
        note += f"frames: {verb} by phase 0 of {warp_request.use.statement.instruction.name}"
        xs = tuple(round(x + room[0] * column / len(columns), 1) for column in range(len(columns) + 1))
        ys = tuple(round(top + room[1] * row / len(rows), 1) for row in range(len(rows) + 1))
        titles = tuple(f"bank {bank}" for bank in range(BANKS))
        page.add(Cells(xs, ys, tuple(tuple(row) for row in values.tolist()), palette, titles, 0.25 if scale > 3 else 0.0))
        frames, outside = _frames(xs, ys, variant, warp_request, index)
        page.add(*frames)
        page.text(x - 20, y + 23, note + (f" ({outside} of them not in view)" if outside else ""), 9, color=PALE)
        page.text(x - 4, top + 8, "0", 8.5, anchor="end", color=PALE)
        if len(rows) > 1 and room[1] > 20:
            page.text(x - 4, top + room[1], str(len(rows) - 1), 8.5, anchor="end", color=PALE)
        page.text(x, top + room[1] + 10, "0", 8.5, color=PALE)
        page.text(x + room[0], top + room[1] + 10, str(len(columns) - 1), 8.5, anchor="end", color=PALE)
        bottom = max(bottom, top + room[1] + 14)
    return _scale(page, bottom + 6, palette)


def _contiguous(buffer: Buffer) -> int:
    """Return the contiguous dimension."""
    order = getattr(buffer.tensor.layout, "order", None)
    return 0 if order == "col" else 1


def _frames(xs: tuple[float, ...], ys: tuple[float, ...], buffer: Buffer, warp_request: Request, index: int) -> tuple[list[Rect], int]:
    """Return a frame around each vector that a lane of phase 0 accesses, and the number of vectors outside the drawn part."""
    frames: list[Rect] = []
    outside = 0
    steps = np.array(warp_request.use.access.elements()[: warp_request.vector])
    for lane in range(lanes_per_phase(warp_request.vector * buffer.dtype.bytes)):
        if not warp_request.active[index, lane]:
            continue
        first = [int(part[index, lane]) for part in warp_request.coordinates]
        points = [tuple(int(a) for a in first + step) for step in (steps - steps[0])]
        rows = [point[0] if len(point) > 1 else 0 for point in points]
        columns = [(0, 0, *point)[-1] if len(point) < 3 else point[1] for point in points]
        top, bottom, left, right = min(rows), max(rows) + 1, min(columns), max(columns) + 1
        if bottom < len(ys) and right < len(xs):
            box = xs[left], ys[top], xs[right] - xs[left], ys[bottom] - ys[top]
            frames.append(Rect(*box, stroke="#000000", line=1.3, title=f"lane {lane}"))
        else:
            outside += 1
    return frames, outside


def _scale(page: Page, y: float, palette: tuple[str, ...]) -> float:
    """Draw the color key of the banks."""
    page.text(24, y + 10, "bank", 9, color=PALE)
    for bank, color in enumerate(palette):
        page.add(Rect(56 + bank * 16, y, 16, 13, color))
        page.add(Text(64 + bank * 16, y + 9.5, str(bank), 7.5, "middle", color=colors.ink_on(color)))
    return y + 26
