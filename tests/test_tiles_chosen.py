"""The choice of tiles for GEMM on Hopper's tensor cores for sizes between the recorded ones."""

import attrs
import pytest

from fireiron import *
from fireiron.language import library
from fireiron.language.waves import Work, estimated_us
from fireiron.strategies import hopper, hopper_batched
from fireiron.tune.record import describe, strategy_hash
from fireiron.tune.records import Record, Records
from fireiron.tune.records.choosing import Question
from fireiron.tune.records.tiles import Problem, candidates, corrections, expected_us, known
from fireiron.values.machine import as_architecture

WIDE, SQUARE, FLAT = hopper.defaults(4096, 4096, 4096)[:3]


def record_of(spec, values, us, name="hopper", **changes):
    """A record of a strategy with all values."""
    strategy = library.find(name).strategy
    values = {tunable: values.get(tunable, one.values[0]) for tunable, one in strategy.tunables().items()}
    fields = {
        "strategy": name, "strategy_hash": strategy_hash(strategy), "values": values, "spec": describe(spec), "architecture": "sm_90a",
        "gpu": "NVIDIA H200", "us": us, "quartiles": (us, us), "tflops": 1.0, "regime": "burst", "l2": "rotated", "error": 1e-4, "registers": 154,
        "shared_bytes": 200000, "spills": 0, "toolchain": "NVRTC 13.0", "driver": "580", "fireiron": "0.1.0", "date": "2026-11-22", "source": "synthetic",
    }  # fmt: skip
    return Record(**{**fields, **changes})


def chosen(records, spec, **options):
    return Records(tuple(records)).by_tiles(spec, "sm_90a", **options)


def test_the_last_wave_costs_as_much_as_a_full_one():
    """132 tiles are one wave, 144 two."""
    full, more = (Work(128 * 12, 256 * tiles // 12, 4096) for tiles in (132, 144))
    assert estimated_us(more, WIDE) > 1.8 * estimated_us(full, WIDE)


def test_waves_of_the_problem_count_not_those_of_the_record():
    """At 3072 tiles of 128 x 256 are 2.2 waves, of 192 x 192 1.9: the nearest record's tile is not taken."""
    records = [record_of(hopper.spec(2816, 3072, 3072), WIDE, 75.0), record_of(hopper.spec(5376, 5376, 2048), SQUARE, 158.9)]
    near = chosen(records, hopper.spec(3072, 3072, 3072))
    assert (
        near.record is records[1]
        and "shortest expected time of" in near.why
        and "256 blocks, at most 2 per SM" in near.why
        and not near.exact
    )


@pytest.mark.parametrize(
    "options",
    [{"dtype": bfloat16, "c_dtype": bfloat16}, {"A": ColMajor}, {"A": ColMajor, "B": ColMajor}, {"B": ColMajor, "c_dtype": float32}],
    ids=str,
)
def test_equal_work_and_traffic_use_the_record(options):
    """Although another tile was expected to be faster."""
    spec = hopper.spec(2048, 2048, 2048)
    slow = record_of(spec, FLAT, 40.0)
    choice = chosen([slow, record_of(hopper.spec(2048, 2048, 4096), WIDE, 45.0)], hopper.spec(2048, 2048, 2048, **options))
    assert choice.record is slow and "which has the same work" in choice.why
    own = record_of(hopper.spec(2048, 2048, 2048, **options), WIDE, 39.0)
    assert chosen([slow, own], hopper.spec(2048, 2048, 2048, **options)).record is own


def test_a_record_rates_its_tile_at_other_sizes():
    """A tile twice as slow as estimated at one size is nearly so at the next one, which does not affect other tiles."""
    spec, other = hopper.spec(4096, 4096, 4096), hopper.spec(4096, 4096, 3072)
    problem = Problem.of(describe(other))
    bare = {name: estimated_us(problem.work, values) for name, values in (("wide", WIDE), ("square", SQUARE))}
    near = [
        (problem.apart(rated.problem), rated)
        for rated in known([record_of(spec, WIDE, 2 * estimated_us(Work(4096, 4096, 4096), WIDE))], ["hopper"], 90)
    ]
    corrected = corrections(near)
    assert 1.6 * bare["wide"] < expected_us(problem, WIDE, corrected) < 2.0 * bare["wide"]
    assert expected_us(problem, SQUARE, corrected) < 1.05 * bare["square"]
    assert "bm=128 bn=256" not in chosen([near[0][1].record], other).why


@pytest.mark.parametrize(("rows", "columns"), [(12288, 1024), (8192, 8192)])
def test_distant_records_do_not_decide_about_few_steps(rows, columns):
    """128 x 256 tiles with three stages took 13 and 7 % longer than the best tile for K = 256 (2026-12-01-h200-choice-6)."""
    records = Records.shipped()
    spec = hopper.spec(rows, columns, 256, A=RowMajor, B=RowMajor, C=RowMajor)
    values = candidates(records, Question(spec, as_architecture("sm_90a")))[0].values
    assert (values["bm"], values["bn"]) in ((192, 128), (128, 192))


def test_element_types_change_steps_and_chunks():
    """A step along k has equally many bytes; float32 C leaves room for chunks of 128 bytes, float16 for a whole tile."""
    record = record_of(hopper.spec(4096, 4096, 4096, B=ColMajor), WIDE, 176.4)
    for dtype, result, bk, chunk in ((tf32, float32, 32, 32), (float8_e4m3, bfloat16, 128, 256), (float8_e5m2, float32, 128, 32)):
        spec = hopper.spec(4096, 4096, 4096, B=ColMajor, dtype=dtype, c_dtype=result)
        values = candidates([record], Question(spec, as_architecture("sm_90a")))[0].values
        assert (values["bk"], values["epi_n"]) == (bk, chunk) and chosen([record], spec).program.ir.rings
    across = chosen([record], hopper.spec(4096, 4096, 4096, dtype=tf32, c_dtype=float32))
    assert [one.name for one in across.program.preceding] == ["B"], "wgmma reads tf32 along k only: B is turned round first"


def test_batches_and_single_matrices_share_records():
    matrix, stack = hopper.spec(1024, 1024, 1024), hopper_batched.spec(1024, 1024, 1024, 8, B=ColMajor)
    choice = chosen([record_of(hopper.spec(2048, 4096, 1024), WIDE, 25.0)], stack)
    assert choice.program.strategy.spec == stack and "hopper" in choice.why
    by_columns = record_of(stack, WIDE, 27.0, "hopper_batched")
    again = chosen([by_columns], hopper_batched.spec(1024, 1024, 1024, 8, B=ColMajor, A=ColMajor))
    assert again.record is by_columns and "which has the same work" in again.why
    assert Problem.of(describe(stack)).layouts == ("row", "col", "row")
    assert chosen([by_columns], matrix) is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({}, (16, 128)),
        ({"A": ColMajor, "B": ColMajor}, (128, 16)),
        ({"A": RowMajor(ld=576), "B": RowMajor(ld=1040)}, (128, 32)),
        ({"A": RowMajor(ld=sym("lda", multiple_of=64)), "B": RowMajor(ld=sym("ldb", multiple_of=8))}, (128, 16)),
        ({"A": RowMajor(ld=523)}, (128, 128)),
        ({"A": Strides(m=576, k=1), "B": Strides(k=1056, n=1)}, (128, 64)),
        ({"A": Strides(m=1, k=ANY(64)), "B": Strides(k=1, n=ANY(8))}, (128, 16)),
        ({"A": Strides(m=ANY, k=1), "B": Strides(k=ANY(8), n=1).aligned(8)}, (128, 128)),
        ({"A": Strides(m=1040, k=2)}, (128, 128)),
        ({"B": Strides(k=sym("step", multiple_of=8), n=1)}, (16, 16)),
        ({"dtype": float32}, (32, 128)),
    ],
    ids=str,
)
def test_row_alignment_is_equal_for_specs_and_records(options, begins):
    """Rows of A have 520 elements, those of B 512; operands that are copied first, for their stride or address, are aligned to lines."""
    spec = hopper.spec(512, 512, 520, **options)
    assert Problem.of(describe(spec)).work == library.work_of(spec)
    assert library.work_of(spec).row_alignments == begins


def test_rows_across_lines_in_stacks():
    """Matrices that are not aligned to lines misalign their rows, too."""
    for apart, begins in ((512 * 512, 128), (512 * 512 + 8, 16)):
        a, b = Strides(b=apart, m=512, k=1), Strides(b=512 * 512, k=512, n=1)
        spec = hopper_batched.spec(512, 512, 512, 4, A=a, B=b)
        assert Problem.of(describe(spec)).work == library.work_of(spec) and library.work_of(spec).row_alignments == (begins, 128)


def test_problems_other_than_hopper_tensor_cores():
    record = record_of(hopper.spec(1024, 1024, 1024), WIDE, 6.0)
    assert Records((record,)).by_tiles(hopper.spec(1024, 1024, 1024), "sm_90") is None
    assert chosen([], hopper.spec(1024, 1024, 1024)) is None, "the library's default is said to be one"
    assert chosen([record], MatMul(1024, 1024, 1024)(GL, GL, GL)(Kernel)) is None
    assert chosen([record], hopper.spec(sym("M", multiple_of=8), 1024, 1024)) is None
    assert chosen([record], hopper.spec(1000, 1000, 1000), below=1.0) is None
    assert Problem.of(describe(Move(64, 64)(GL, GL)(Kernel))) is None


def test_values_that_are_not_legal_are_passed_over():
    crowded = record_of(hopper.spec(1024, 1024, 1024), {**WIDE, "stages": 16}, 1.0)
    choice = chosen([crowded], hopper.spec(1000, 1024, 1024))
    assert choice is not None and choice.record is not crowded
    refused = chosen([crowded], hopper.spec(1024, 1024, 1024, A=ColMajor), accept=lambda program: False)
    assert refused is None


def test_a_block_of_few_products_waits_for_its_stages():
    """Stages that hold more of k are worth their memory if k is long, and useless if they hold all of it."""
    few, many = ({"bm": 16, "bn": 64, "bk": 128, "stages": stages} for stages in (4, 8))
    assert estimated_us(Work(256, 256, 2048), many) < 0.8 * estimated_us(Work(256, 256, 2048), few)
    assert estimated_us(Work(256, 256, 512), many) == estimated_us(Work(256, 256, 512), few)


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [((256, 8192, 8192), (128, 128)), ((8192, 256, 2048), (128, 128)), ((256, 256, 2048), (16, 64))],
)
def test_the_tile_that_was_the_fastest_is_expected_to_be(sizes, tile):
    """Predicted by records of other sizes alone."""
    others = [record for record in Records.shipped() if record.shape != sizes]
    first = candidates(others, Question(hopper.spec(*sizes), as_architecture("sm_90a")))[0]
    assert sorted((first.values["bm"], first.values["bn"])) == sorted(tile), "one way round or the other"


def test_each_tile_once_the_expected_fastest_first():
    records = [record_of(hopper.spec(4096, 4096, size), WIDE, us) for size, us in ((2048, 90.0), (4096, 176.4), (8192, 340.0))]
    choices = candidates(records, Question(hopper.spec(4096, 4096, 3072), as_architecture("sm_90a")))
    assert [one.us for one in choices] == sorted(one.us for one in choices)
    tiles = [(one.values["bm"], one.values["bn"], one.values.get("wm"), one.values["bk"], one.values["epi_n"] > 64) for one in choices]
    assert len(tiles) == len(set(tiles)) and choices[0].record is records[1]


def test_a_slow_record_of_an_older_target_gives_way(monkeypatch):
    """`matmul` estimates the newer instructions if only older ones were measured."""
    import numpy as np

    from fireiron.matmul import matmul
    from fireiron.tune.records import collection

    spec = hopper.spec(2048, 2048, 2048)
    old = record_of(spec, {}, 38.9, "hmma_ampere", architecture="sm_90")
    new = record_of(hopper.spec(2048, 2048, 4096), WIDE, 46.0)
    a = np.lib.stride_tricks.as_strided(np.zeros(1, "float16"), (2048, 2048), (4096, 2))
    for records, wanted in (((old,), old), ((old, new), new), ((attrs.evolve(old, us=10.0), new), attrs.evolve(old, us=10.0))):
        monkeypatch.setattr(collection, "_shipped", lambda: ())
        monkeypatch.setattr(Records, "shipped", staticmethod(lambda records=records: Records(records)))
        matmul.clear()
        assert matmul.choice(a, a, arch="sm_90a").record == wanted
    matmul.clear()
