"""Fit the estimate of `fireiron.language.line_waves` to measured times, and judge the tiles that it chooses.

    python perf/fit_estimate.py [--new FILE ...] [--kind across] [--fit out partly ...] [--sweeps 3] [--folds 5] [--records]

Times of `misaligned_choice.py` from the results named in `FOLDERS`, and from `--new` files. Kernels with boxes that are wholly out of bounds,
or that are divided, are used from `--new` files only (`2026-11-30-h200-choice-3` and later): the others were measured before
`lower/wrap_boxes.py`. The current parameters are judged: the geometric
mean, over sizes, of the time of the best measured tile by that of the tile with the least estimate, and the least of these ratios. `--fit`
changes the named parameters (`all`: all numbers, `terms`: the coefficients of the correction) one after the other by the factors in `STEPS`, as
long as that lessens the loss: the mean of the squared errors of the logarithm, in which a tile weighs less the slower it is compared with the
best one. `--folds 5` fits five times, each time without a fifth of the sizes, and judges by that fifth; all measurements of a size are in one
fold. `--records` judges what `fireiron.matmul` chooses for sizes without a record: records of other sizes correct the estimate. Sizes with K up to `FEW_STEPS` are also judged apart. Kinds of rows: aligned to L2 lines, across them, and copied first (odd sizes). Clusters
along rows and columns are used from `BY_LANES` on: before, their lanes did not arrive at blocks concurrently.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random

import attrs
from misaligned_choice import Case
from tune_grid import ARCHITECTURE, geometric_mean

from fireiron.ir.maps import rows_of_box
from fireiron.language import line_waves
from fireiron.language.library import by_warpgroups, work_of
from fireiron.language.waves import _tiling
from fireiron.tune.record import describe
from fireiron.tune.records import Records
from fireiron.tune.records.tiles import UNSEEN, Problem, corrections, known
from fireiron.values.machine import as_architecture

RESULTS = Path(__file__).parent / "results"
FOLDERS = ("2026-11-28-h200-choice", *(f"2026-11-30-h200-{name}" for name in ("choice", "first", "first-2", "parts", "choice-2")))
FOLDERS += ("2026-11-22-h200-hopper",)
BY_LANES = "2026-12-01-h200-choice-6"
ESTIMATES = {
    "aligned": (line_waves.ALIGNED, line_waves.ALIGNED_TERMS),
    "across": (line_waves.H200, line_waves.TERMS),
    "copied": (line_waves.H200, {}),
}
FEW_STEPS = 512
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


def tile_of(tiling):
    """Return the sizes of a tile, as `fireiron.tune.records.tiles.tile_of`."""
    t = tiling
    rows = t.height // (t.groups // (t.width // t.group_width))
    return t.height, t.width, rows, t.group_width, *(t.cluster if t.cluster != (1, 1) else ())


def chosen_by_records(sizes, estimate):
    """Return the sizes without a record, and the ratio of each by the estimate that records of other sizes correct."""
    records, target, without, ratios = Records.shipped(), as_architecture(ARCHITECTURE), [], []
    for shape, pairs in sizes:
        spec = Case(shape, "float16", "NN").spec
        problem = Problem.of(describe(spec))
        near = [(problem.apart(one.problem), one) for one in known(records, by_warpgroups(spec, target), target.capability)]
        if any(problem.same_size(one.problem) for _, one in near):
            continue
        offs = corrections(near)
        expected = [line_waves.estimated_us(tiling, *estimate) * math.exp(offs.get(tile_of(tiling), UNSEEN)) for tiling, _ in pairs]
        without.append((shape, pairs))
        ratios.append(min(us for _, us in pairs) / pairs[expected.index(min(expected))][1])
    return without, ratios


def kind_of(work):
    """Return the kind of rows."""
    return "copied" if work.copied else "across" if work.across_lines else "aligned"


def sizes_of(paths, kind, new):
    """Yield the tilings of each size with their times."""
    for path in paths:
        content = json.loads(path.read_text())
        measured = content.get("measured") if isinstance(content, dict) else None
        for entry in measured or ():
            shape = tuple(entry.get("shape", ())) if isinstance(entry, dict) else ()
            if len(shape) != 3 or not entry.get("candidates") or "first" not in entry or entry.get("dtype", "float16") != "float16":
                continue
            if entry.get("order", "NN") != "NN":
                continue
            work = work_of(Case(shape, "float16", "NN").spec)
            if kind_of(work) != kind:
                continue
            times, pairs = entry["first"] | entry["times"], []
            for name, (strategy, values, *parts) in entry["candidates"].items():
                if strategy in STRATEGIES and "bm" in values and parts in ([], [1]) and name in times:
                    tiling = _tiling(work, {RENAMED.get(key, key): value for key, value in values.items()})
                    early = path.parent.name < BY_LANES and min(tiling.cluster) > 1
                    if not early and (new or not (is_wrapped(tiling) or is_divided(tiling))):
                        us = times[name]
                        pairs.append((tiling, us if isinstance(us, float) else us[0]))
            if len(pairs) > 1:
                yield shape, pairs


def chosen(pairs, parameters, terms):
    """Return the time of the best tile by that of the tile with the least estimate."""
    best = min(us for _, us in pairs)
    return best / min(pairs, key=lambda pair: line_waves.estimated_us(pair[0], parameters, terms))[1]


def line(ratios):
    """Return a line about ratios."""
    if not ratios:
        return "none"
    below = [sum(ratio < limit for ratio in ratios) for limit in (0.93, 0.95)]
    return f"{len(ratios)}: {geometric_mean(ratios):.4f}, lowest {min(ratios):.3f}, {below[0]} below 0.93, {below[1]} below 0.95"


def judged(sizes, ratios):
    """Return lines about the tiles that an estimate chooses: all sizes, and those with few steps along k."""
    few = [ratio for (shape, _), ratio in zip(sizes, ratios, strict=True) if shape[2] <= FEW_STEPS]
    return f"{sum(len(pairs) for _, pairs in sizes)} times, sizes {line(ratios)}; K <= {FEW_STEPS}: {line(few)}"


def ratios_of(sizes, parameters, terms):
    return [chosen(pairs, parameters, terms) for _, pairs in sizes]


def fold_of(sizes, folds, seed):
    """Return the fold of each size; equal sizes are in one fold."""
    shapes = sorted({shape for shape, _ in sizes})
    Random(seed).shuffle(shapes)
    place = {shape: number % folds for number, shape in enumerate(shapes)}
    return [place[shape] for shape, _ in sizes]


def loss(sizes, parameters, terms):
    """Return the weighted mean of squared errors of the logarithm within each size, and 0.2 of absolute ones.

    The estimate does not contain the preceding copies, so errors of copied rows are taken within each size only.
    """
    absolute = 0.2 if terms else 0.0
    total = 0.0
    for _, pairs in sizes:
        best = min(us for _, us in pairs)
        errors = [math.log(line_waves.estimated_us(tiling, parameters, terms) / us) for tiling, us in pairs]
        weights = [max(0.05, math.exp(-FADING * (us / best - 1))) for _, us in pairs]
        mean = sum(map(float.__mul__, errors, weights)) / sum(weights)
        total += sum(weight * ((error - mean) ** 2 + absolute * error**2) for error, weight in zip(errors, weights, strict=True)) / sum(
            weights
        )
    return total / len(sizes)


def numbers(estimate, names):
    """Yield the names of numbers, and their keys; `terms` are the coefficients."""
    parameters, terms = estimate
    for field in attrs.fields(type(parameters)):
        value = getattr(parameters, field.name)
        if field.name != "clock" and (names == ["all"] or field.name in names):
            for key in value if isinstance(value, Mapping) else (None,):
                yield field.name, key
    if "terms" in names:
        for key in terms:
            yield "terms", key


def changed(estimate, name, key, factor):
    """Return the parameters and the terms with a number multiplied by a factor."""
    parameters, terms = estimate
    if name == "terms":
        return parameters, {**terms, key: terms[key] * factor}
    value = getattr(parameters, name)
    return attrs.evolve(parameters, **{name: value * factor if key is None else {**value, key: value[key] * factor}}), terms


def fitted(sizes, estimate, names, sweeps):
    """Return the parameters and the terms after changes of single numbers that lessen the loss."""
    least = loss(sizes, *estimate)
    for _ in range(sweeps):
        before = least
        for name, key in numbers(estimate, names):
            for factor in STEPS:
                other = changed(estimate, name, key, factor)
                if (error := loss(sizes, *other)) < least:
                    least, estimate = error, other
        print(f"loss {least:.6f}", flush=True)
        if least > before * 0.9995:
            break
    return estimate


def left_out(sizes, estimate, options):
    """Return the ratio of each size by an estimate that is fitted without its fold."""
    place, ratios = fold_of(sizes, options.folds, options.seed), [0.0] * len(sizes)
    for fold in range(options.folds):
        own = fitted([one for one, at in zip(sizes, place, strict=True) if at != fold], estimate, options.fit, options.sweeps)
        for number in [number for number, at in enumerate(place) if at == fold]:
            ratios[number] = chosen(sizes[number][1], *own)
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--new", type=Path, nargs="*", default=[])
    parser.add_argument("--kind", choices=ESTIMATES, default="across")
    parser.add_argument("--fit", nargs="*", default=[])
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", action="store_true")
    options = parser.parse_args()
    parameters, terms = ESTIMATES[options.kind]
    old = list(sizes_of(sorted(path for folder in FOLDERS for path in (RESULTS / folder).glob("*.json")), options.kind, new=False))
    sizes = old + list(sizes_of(options.new, options.kind, new=True))
    print("before:", judged(sizes, ratios_of(sizes, parameters, terms)))
    if options.records:
        print("without a record:", judged(*chosen_by_records(sizes, (parameters, terms))))
    if options.fit and options.folds:
        print("left out:", judged(sizes, left_out(sizes, (parameters, terms), options)))
    if options.fit:
        result, others = fitted(sizes, (parameters, terms), options.fit, options.sweeps)
        print("after:", judged(sizes, ratios_of(sizes, result, others)))
        print(
            {one.name: value for one in attrs.fields(type(result)) if (value := getattr(result, one.name)) != getattr(parameters, one.name)}
        )
        print({key: value for key, value in others.items() if value != terms[key]})


if __name__ == "__main__":
    main()
