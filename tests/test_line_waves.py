"""The estimate for rows that are not aligned to L2 lines: its form, and the tiles that it chooses among measured ones."""

import itertools
import json
import math
from pathlib import Path

import pytest

from fireiron.language import line_waves
from fireiron.language.waves import Work, estimated_us, row_alignment

RESULTS = Path(__file__).parent.parent / "perf" / "results"
MEASURED = [RESULTS / f"2026-11-30-h200-choice-{name}.json" for name in ("3/blind", "3/wide", "4/worst")]
"""Measured since boxes out of bounds are not loaded: older times of tiles that complete clusters are longer."""

BY_LANES = RESULTS / "2026-12-01-h200-choice-6" / "variants.json"
"""Measured since lanes arrive at the blocks of a cluster concurrently: older times of clusters along rows and columns are longer."""

TILE = {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 128, "stages": 6}


def us(alignments=(16, 16), rows=2000, columns=2000, depth=2000, batch=1, bytes=2, **values):
    return estimated_us(Work(rows, columns, depth, bytes, 2, batch, alignments, (False, True)), {**TILE, **values})


def test_worse_alignment_takes_longer():
    aligned, *misaligned = (us((alignment, alignment)) for alignment in (128, 64, 32, 16))
    assert misaligned == sorted(misaligned) and aligned < misaligned[-1]
    assert us((128, 16)) < us((16, 16)) and us((16, 128)) < us((16, 16))


def test_stages_of_a_persistent_block_that_hold_all_of_k():
    """12288 x 1024 x 256: 192 x 128 took 13.5 us, 128 x 256 with three stages 15.3 (2026-12-01-h200-choice-6)."""

    def aligned(depth=256, **values):
        return us((128, 128), 12288, 1024, depth, num_blocks=132, **values)

    wide = {"bn": 256, "wn": 256, "stages": 3}
    assert aligned(bm=192, stages=4) < aligned(**wide)
    assert aligned(depth=192, **wide) < 0.95 * aligned(**wide), "one step more than all stages"


def test_stages_across_lines_that_hold_all_of_k():
    """7490 x 4624 x 256 (2026-11-30-h200-choice-3): three stages of 184 x 192 tiles took 5 % longer than four of 184 x 128."""

    def across(**values):
        return us((128, 32), 7490, 4624, 256, num_blocks=132, bm=184, wm=184, epi_m=184, **values)

    assert across(bn=128, wn=64, stages=4) < across(bn=192, wn=64, stages=3)
    assert line_waves._unfetched(tiling(num_blocks=132)) > 0.9 and line_waves._unfetched(tiling()) == 0, "only of persistent blocks"


def test_stores_by_threads():
    """Odd sizes: pieces overlap (2039 x 1517 x 483: 17.3 us in 3 pieces, else 19.7), and low tiles take longer (100 x 99 x 769: 8.6, 9.3 us)."""

    def copied(rows, columns, depth, **values):
        work = Work(rows, columns, depth, along_c=(False, True), copied=True)
        return estimated_us(work, values)

    wide = {"bm": 128, "bn": 192, "wm": 64, "wn": 192, "epi_m": 64}
    assert copied(2039, 1517, 483, **wide, epi_n=64, stages=5) < 0.95 * copied(2039, 1517, 483, **wide, epi_n=192, stages=4)
    tall, low = {"bm": 64, "bn": 16, "wm": 64, "wn": 16, "epi_n": 16}, {"bm": 16, "bn": 64, "wm": 16, "wn": 64, "epi_m": 16}
    assert copied(100, 99, 769, **tall, bk=128, stages=8) < 1.02 * copied(100, 99, 769, **low, bk=64, stages=16)


def test_more_work_takes_longer():
    base = us()
    assert us(depth=4000) > base and us(rows=4000) > base and us(columns=4000) > base and us(batch=2) > base and us(bytes=4) > base


@pytest.mark.parametrize("bytes", [1, 2, 4])
def test_estimates_of_extreme_sizes_are_finite(bytes):
    for rows, columns, depth, cluster in itertools.product((1, 100, 30000), (1, 1000), (8, 16384), ((1, 1), (2, 1), (2, 4))):
        time = us((16, 64), rows, columns, depth, bytes=bytes, cluster_m=cluster[0], cluster_n=cluster[1])
        assert math.isfinite(time) and time > line_waves.H200.launch / 2


def test_the_correction_is_limited():
    """Terms of any size change the estimate by a bounded factor."""
    terms = dict.fromkeys(line_waves.TERMS, 100.0)
    plain = line_waves.estimated_us(tiling(), terms={})
    assert line_waves.estimated_us(tiling(), terms=terms) <= plain * math.exp(line_waves.LARGEST_CORRECTION) * 1.001


def tiling(**values):
    from fireiron.language import waves

    return waves._tiling(Work(8510 if values else 851, 1048, 6048, row_alignments=(64, 16)), {**TILE, **values})


def test_terms_name_properties():
    names = line_waves._properties(tiling())
    assert {name for pair in (*line_waves.TERMS, *line_waves.ALIGNED_TERMS) for name in pair} <= set(names) and names["one"] == 1


def test_small_persistent_tiles_with_short_k():
    """1024 x 1024 x 64 on an H200: 2.95 us (perf/results/2026-12-01-h200-choice-5). Without a term for K, 8 % more were expected."""
    tile = {"bm": 64, "bn": 64, "bk": 64, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 8, "num_blocks": 132}
    time = estimated_us(Work(1024, 1024, 64, along_c=(False, True)), tile)
    assert abs(time / 2.95 - 1) < 0.06


def test_the_estimate_chooses_fast_tiles_among_measured_ones():
    """Row-major float16 of random sizes on an H200: the parameters are fitted to these times, too."""
    ratios = []
    entries = [(entry, file == BY_LANES) for file in (*MEASURED, BY_LANES) for entry in json.loads(file.read_text())["measured"]]
    for entry, by_lanes in entries:
        rows, columns, depth = entry["shape"]
        if columns % 8 or depth % 8 or columns % 64 == depth % 64 == 0:
            continue
        work = Work(
            rows, columns, depth, row_alignments=(row_alignment([depth], 2, 16), row_alignment([columns], 2, 16)), along_c=(False, True)
        )
        times = entry["first"] | entry["times"]
        tiles = {
            name: values
            for name, (strategy, values, parts) in entry["candidates"].items()
            if parts == 1 and strategy in ("hopper", "hopper_small", "hopper_skinny", "hopper:any_height")
            if by_lanes or 1 in (values.get("cluster_m", 1), values.get("cluster_n", 1))
        }
        chosen = min(tiles, key=lambda name, work=work, tiles=tiles: estimated_us(work, tiles[name]))
        ratios.append(min(map(times.get, tiles)) / times[chosen])
    assert len(ratios) == 118
    assert math.prod(ratios) ** (1 / len(ratios)) > 0.98 and min(ratios) > 0.8
