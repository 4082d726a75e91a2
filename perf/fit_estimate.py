"""Fit the estimate of `fireiron.language.line_waves` to measured times, and judge the tiles that it chooses.

    python perf/fit_estimate.py [--new FILE ...] [--aligned] [--fit out partly ...] [--sweeps 3] [--thirds]

Times of `misaligned_choice.py` from the results named in `FOLDERS`, and from `--new` files. Kernels with boxes that are wholly out of bounds,
or that are divided, are used from `--new` files only (`2026-11-30-h200-choice-3` and later): the others were measured before
`lower/wrap_boxes.py`. The current parameters are judged: the geometric
mean, over sizes, of the time of the best measured tile by that of the tile with the least estimate, and the least of these ratios. `--fit`
changes the named parameters (`all`: all numbers) one after the other by the factors in `STEPS`, as long as that lessens the loss: the mean
of the squared errors of the logarithm, in which a tile weighs less the slower it is compared with the best one. `--thirds` fits three
times, each time without a third of the sizes, and judges by that third.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import attrs
from misaligned_choice import Case
from tune_grid import geometric_mean

from fireiron.ir.maps import rows_of_box
from fireiron.language import line_waves
from fireiron.language.library import work_of
from fireiron.language.waves import _tiling

RESULTS = Path(__file__).parent / "results"
FOLDERS = ("2026-11-28-h200-choice", *(f"2026-11-30-h200-{name}" for name in ("choice", "first", "first-2", "parts", "choice-2")))
STRATEGIES = ("hopper", "hopper_small", "hopper_skinny", "hopper:any_height")
STEPS = (0.6, 0.85, 0.96, 1.04, 1.18, 1.7)
FADING = 6.0
"""The weight of a time is the exponential of minus this number times its excess over the best one, at least 0.05."""

RENAMED = {"bands": "group_m", "walk": "raster", "cm": "cluster_m", "cn": "cluster_n", "blocks": "num_blocks", "rows": "epi_m"}
RENAMED |= {"chunk": "epi_n", "producer": "producer_threads"}
"""Names of tunables in older files."""


def is_wrapped(tiling):
    """Return whether a box of some tile is wholly out of bounds, approximately."""
    t = tiling
    if t.down % t.cluster[0] or t.along % t.cluster[1]:
        return True
    return t.along * t.width - t.columns >= line_waves.LINE_BYTES // t.bytes or t.down * t.height - t.rows >= t.height // t.cluster[1]


def is_divided(tiling):
    """Return whether tiles have boxes of fewer rows, because of few rows of the last box."""
    rows = tiling.height // tiling.cluster[1]
    return rows_of_box(rows, tiling.rows) != rows


def sizes_of(paths, aligned, new):
    """Yield the tilings of each size with their times."""
    for path in paths:
        content = json.loads(path.read_text())
        measured = content.get("measured") if isinstance(content, dict) else None
        for entry in measured or ():
            shape = tuple(entry.get("shape", ())) if isinstance(entry, dict) else ()
            if len(shape) != 3 or not entry.get("candidates") or "first" not in entry or entry.get("dtype", "float16") != "float16":
                continue
            if entry.get("order", "NN") != "NN" or shape[1] % 8 or shape[2] % 8:
                continue
            work = work_of(Case(shape, "float16", "NN").spec)
            if work.across_lines == aligned:
                continue
            times, pairs = entry["first"] | entry["times"], []
            for name, (strategy, values, *parts) in entry["candidates"].items():
                if strategy in STRATEGIES and "bm" in values and parts in ([], [1]) and name in times:
                    tiling = _tiling(work, {RENAMED.get(key, key): value for key, value in values.items()})
                    if new or not (is_wrapped(tiling) or is_divided(tiling)):
                        us = times[name]
                        pairs.append((tiling, us if isinstance(us, float) else us[0]))
            if len(pairs) > 1:
                yield shape, pairs


def chosen(pairs, parameters, terms):
    """Return the time of the best tile by that of the tile with the least estimate."""
    best = min(us for _, us in pairs)
    return best / min(pairs, key=lambda pair: line_waves.estimated_us(pair[0], parameters, terms))[1]


def judged(sizes, parameters, terms):
    """Return a line about the tiles that the estimate chooses."""
    ratios = [chosen(pairs, parameters, terms) for _, pairs in sizes]
    below = sum(ratio < 0.93 for ratio in ratios)
    return f"{len(ratios)} sizes, {sum(len(pairs) for _, pairs in sizes)} times: {geometric_mean(ratios):.4f}, lowest {min(ratios):.3f}, {below} below 0.93"


def loss(sizes, parameters, terms):
    """Return the weighted mean of squared errors of the logarithm: half of it within each size, half of it absolute."""
    total = 0.0
    for _, pairs in sizes:
        best = min(us for _, us in pairs)
        errors = [math.log(line_waves.estimated_us(tiling, parameters, terms) / us) for tiling, us in pairs]
        weights = [max(0.05, math.exp(-FADING * (us / best - 1))) for _, us in pairs]
        mean = sum(map(float.__mul__, errors, weights)) / sum(weights)
        total += sum(weight * ((error - mean) ** 2 + 0.2 * error**2) for error, weight in zip(errors, weights, strict=True)) / sum(weights)
    return total / len(sizes)


def variants(parameters, names):
    """Yield parameters with one number changed."""
    for field in attrs.fields(type(parameters)):
        value = getattr(parameters, field.name)
        if field.name in ("clock",) or (names != ["all"] and field.name not in names):
            continue
        for key in value if isinstance(value, Mapping) else (None,):
            yield field.name, key


def changed(parameters, name, key, factor):
    """Return the parameters with a number multiplied by a factor."""
    value = getattr(parameters, name)
    return attrs.evolve(parameters, **{name: value * factor if key is None else {**value, key: value[key] * factor}})


def fitted(sizes, parameters, terms, names, sweeps):
    """Return the parameters after changes of single numbers that lessen the loss."""
    least = loss(sizes, parameters, terms)
    for _ in range(sweeps):
        before = least
        for name, key in variants(parameters, names):
            for factor in STEPS:
                other = changed(parameters, name, key, factor)
                if other != parameters and (error := loss(sizes, other, terms)) < least:
                    least, parameters = error, other
        print(f"loss {least:.6f}", flush=True)
        if least > before * 0.9995:
            break
    return parameters


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--new", type=Path, nargs="*", default=[])
    parser.add_argument("--aligned", action="store_true")
    parser.add_argument("--fit", nargs="*", default=[])
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--thirds", action="store_true")
    options = parser.parse_args()
    parameters, terms = (line_waves.ALIGNED, line_waves.ALIGNED_TERMS) if options.aligned else (line_waves.H200, line_waves.TERMS)
    old = list(sizes_of(sorted(path for folder in FOLDERS for path in (RESULTS / folder).glob("*.json")), options.aligned, new=False))
    new = list(sizes_of(options.new, options.aligned, new=True))
    sizes = old + new
    print("before:", *(judged(part, parameters, terms) for part in (old, new) if part), sep="\n")
    if options.fit and options.thirds:
        held = []
        for third in range(3):
            own = fitted([one for number, one in enumerate(sizes) if number % 3 != third], parameters, terms, options.fit, options.sweeps)
            held += [chosen(pairs, own, terms) for _, pairs in sizes[third::3]]
        print(f"left out: {geometric_mean(held):.4f}, lowest {min(held):.3f}")
    if options.fit:
        result = fitted(sizes, parameters, terms, options.fit, options.sweeps)
        print("after:", *(judged(part, result, terms) for part in (old, new) if part), sep="\n")
        print(
            {one.name: value for one in attrs.fields(type(result)) if (value := getattr(result, one.name)) != getattr(parameters, one.name)}
        )


if __name__ == "__main__":
    main()
