"""Campaigns: each subject draws a few seeds per run; interrupted runs continue; findings are stored with a command that reproduces them."""

import os
import re
from types import SimpleNamespace

import attrs
import pytest
import second_judge
import second_products
from campaign import Subject, agreed, found, ledger, refused
from campaign import runner as runs
from campaign import state as states
from campaign.__main__ import main
from campaign.runner import Run, outcome_of
from campaign.state import State
from campaign.subject import subjects

from fireiron.errors import DecompositionError

SAMPLES = [(name, seed) for name, subject in subjects().items() for seed in range(subject.first, subject.first + subject.sample)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "seed"), SAMPLES)
def test_a_few_draws_of_each_subject(name, seed):
    subject = subjects()[name]
    if reason := subject.needs():
        pytest.skip(reason)
    outcome = outcome_of(subject, seed)
    assert outcome.verdict != "found", outcome.story


def _numbers(seed):
    """Three of four seeds agree, every fourth is refused, and 13 is wrong."""
    if seed == 13:
        raise ArithmeticError("thirteen")
    return refused() if seed % 4 == 0 else agreed({"odd" if seed % 2 else "even", f"by {seed % 3}"}, units=seed % 10)


NUMBERS = Subject("numbers", "numbers", _numbers, nightly=20, campaign=30, first=0, chunk=7)


@pytest.fixture
def numbers(monkeypatch):
    """The only subject, with its worker in this process."""
    monkeypatch.setattr(runs, "subjects", lambda: {"numbers": NUMBERS})
    monkeypatch.setattr(runs, "ProcessPoolExecutor", _InThisProcess)
    monkeypatch.setattr("campaign.__main__.subjects", lambda: {"numbers": NUMBERS})


class _InThisProcess:
    def __init__(self, jobs, mp_context):
        self.jobs = jobs

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def shutdown(self, **options):
        pass

    def submit(self, function, *arguments):
        future = runs.Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.usefixtures("numbers")
def test_a_run_continues_where_it_stopped(tmp_path):
    first = Run(NUMBERS, 5, folder=tmp_path, quiet=True).go()
    assert first.next == 7 and first.verdicts == {"agreed": 5, "refused": 2}
    complete = Run(NUMBERS, 20, folder=tmp_path, quiet=True).go()
    assert complete.next == 28 and complete.verdicts == {"agreed": 20, "refused": 7, "found": 1}
    assert complete.counts["units"] == sum(seed % 10 for seed in range(28) if seed % 4 and seed != 13)
    assert [one["seed"] for one in complete.findings] == [13] and "ArithmeticError: thirteen" in complete.findings[0]["story"]
    assert states.load("numbers", 0, tmp_path) == complete


def test_a_dead_process_reports_its_seeds(tmp_path):
    """It reports the seeds in progress in all processes; complete chunks leave none."""
    run = Run(subjects()["layouts"], 1, folder=tmp_path)
    unfinished = {chunk: runs._noted(chunk, run._note(chunk)) for chunk in (range(10, 20), range(20, 30), range(30, 32))}
    for chunk, count in ((range(10, 20), 3), (range(20, 30), 1)):
        assert [next(unfinished[chunk]) for _ in range(count)] == [*chunk][:count]
    assert [*unfinished[range(30, 32)]] == [30, 31] and not run._note(range(30, 32)).is_file()
    report = run._died([*unfinished])
    assert re.findall(r"--seed (\d+)", report) == ["12", "20"] and not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("numbers")
def test_gaps_are_filled_first(tmp_path):
    state = State("numbers", 0, 0)
    state.add(range(7, 14), [agreed()] * 7, 1.0)
    assert state.next == 0 and state.missing() == [range(7)] and state.end() == 14
    states.save(state, tmp_path)
    assert Run(NUMBERS, 12, folder=tmp_path, quiet=True).go().next == 14


@pytest.mark.usefixtures("numbers")
def test_findings_are_reported_and_fail(tmp_path, capsys):
    assert main(["numbers", "--folder", str(tmp_path), "--tier", "nightly", "--jobs", "1"]) == 1
    output = capsys.readouterr()
    assert "PYTHONPATH=.:tests python -m campaign numbers --seed 13" in output.out
    assert main(["numbers", "--seed", "12"]) == 0 and main(["numbers", "--seed", "13"]) == 1
    assert main(["--folder", str(tmp_path), "--pairs"]) == 1
    assert "others never together: 4, such as by 0 + by 1" in capsys.readouterr().out


@pytest.mark.usefixtures("numbers")
def test_fixed_findings_are_closed(tmp_path, monkeypatch, capsys):
    Run(NUMBERS, 20, folder=tmp_path, quiet=True).go()
    assert main(["numbers", "--fixed", "--folder", str(tmp_path)]) == 1
    right = attrs.evolve(NUMBERS, draw=lambda seed: agreed({"odd"}, units=seed % 10))
    monkeypatch.setattr("campaign.__main__.subjects", lambda: {"numbers": right})
    assert main(["numbers", "--fixed", "--folder", str(tmp_path)]) == 0
    state = states.load("numbers", 0, tmp_path)
    assert state.verdicts == {"agreed": 21, "refused": 7, "found": 0, "mended": 1} and not state.open() and state.amount("drawn") == 28
    assert state.findings[0]["mended"] == states.source()


def test_a_draw_without_end_is_found():
    def endless(seed):
        while True:
            pass

    outcome = outcome_of(Subject("endless", "no end", endless, 1, 1, seconds=0.05), 1)
    assert outcome.verdict == "found" and "still not done after 0.05 seconds" in outcome.story


def test_a_file_that_is_no_state_is_refused(tmp_path):
    (tmp_path / "numbers.json").write_text('{"subject": "numbers"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"numbers\.json holds no state .* remove it to begin again"):
        states.load("numbers", 0, tmp_path)


def test_two_runs_of_a_subject_at_once_are_refused(tmp_path):
    with states.alone("numbers", tmp_path), pytest.raises(BlockingIOError), states.alone("numbers", tmp_path):
        pass


def test_findings_next_to_agreed_draws():
    state = State("numbers", 1, 1)
    state.add(range(1, 4), [agreed({"a", "b"}), found("wrong", {"a"}), refused({"c"})], 0.5)
    assert state.pairs == {"a + b": 1} and state.features == {"a": 2, "b": 1} and state.amount("drawn") == 3
    assert state.sources == [states.source()] and os.cpu_count() and str(os.cpu_count()) in state.machines[0]


@pytest.mark.usefixtures("numbers")
def test_parts_that_ran_elsewhere_are_merged(tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(states, "machine", lambda: "another one")
        Run(NUMBERS, 3, folder=tmp_path / "there", quiet=True, begin=14).go()
    Run(NUMBERS, 3, folder=tmp_path / "here", quiet=True).go()
    parts = ["--merge", str(tmp_path / "there" / "numbers.json"), "--folder", str(tmp_path / "here")]
    assert main(parts) == 0
    state = states.load("numbers", 0, tmp_path / "here")
    assert state.spans() == [range(7), range(14, 21)] and state.missing() == [range(7, 14)] and state.amount("drawn") == 14
    assert state.counts["units"] == sum(seed % 10 for seed in (*range(7), *range(14, 21)) if seed % 4) and len(state.machines) == 2
    with pytest.raises(ValueError, match="seeds 14 to 20 are done"):
        main(parts)


@pytest.mark.usefixtures("numbers")
def test_a_run_continues_published_results(tmp_path):
    before = Run(NUMBERS, 12, folder=tmp_path / "states", quiet=True).go()
    page = tmp_path / "page.md"
    page.write_text(f"{ledger.BEGIN}{ledger.END}\n", encoding="utf-8")
    ledger.publish([NUMBERS], tmp_path / "states", tmp_path / "kept", page)
    again = Run(NUMBERS, 12, folder=tmp_path / "other", quiet=True, published=tmp_path / "kept").go()
    assert again.spans() == before.spans() and again.pairs == before.pairs and again.open() and not again.findings[0]["story"]


@pytest.mark.usefixtures("numbers")
def test_figures_are_published(tmp_path):
    Run(NUMBERS, 20, folder=tmp_path / "states", quiet=True).go()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{ledger.BEGIN}{ledger.END}\nbehind\n", encoding="utf-8")
    ledger.publish([NUMBERS], tmp_path / "states", tmp_path / "kept", page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nbehind\n")
    cells = [" ".join(cell.split()) for cell in next(line for line in text.splitlines() if "`numbers`" in line).split("|")[1:-1]]
    assert cells[:6] == ["`numbers`", "numbers", "20", "30", "1", "0"]
    row = ledger.table_of_seeds(tmp_path / "kept").splitlines()[-1]
    assert [cell.strip() for cell in row.split("|")][1:3] == ["`numbers`", "7"] and row.rstrip("| ").endswith("0 to 27")


def test_the_page_shows_published_results():
    assert ledger.up_to_date(), "python -m campaign --publish"


# ---------------------------------------------------------------------------------------------- rules of the second generator


def test_refusals_that_a_refinement_mends_are_none_without_it():
    """Storage decides the width of `coalesced_copy` vectors; and a script must not already contain what its refusal proposes."""
    deals = DecompositionError("src_rf: this path distributes elements over threads differently than the compute path", hint="Move.done()")
    rows = DecompositionError("load_matrix_sync requires rows 16 bytes apart", hint="pad in multiples of 8, or .to_col_major()")
    refusal = DecompositionError(
        "LDMATRIX_8x8_ROW_T accesses all elements of src (b_sh) or none, and the last tile may extend past the end", hint="load"
    )
    for text, error, needed in (
        (".load(B, SH).pad(3)", refusal, True),
        (".load(B, SH).unroll()", refusal, False),
        (".load(SRC, RF, Move.coalesced_copy(4).done()).pad(1)", deals, True),
        (".load(SRC, RF, Move.tile(1, 1).to(Thread).done()).pad(1)", deals, False),
        (".load(B, SH).to_col_major()", rows, True),
        (".load(B, SH).swizzle_storage()", rows, False),
    ):
        assert second_judge._needed(SimpleNamespace(text=text), error) == needed


def test_a_memory_is_recognized_by_its_words():
    """A shared-memory limit is reported at the step that creates the buffer, which names it SH."""
    assert "SH" in second_judge._spoken("98304 bytes of shared memory in a block, but sm_60 has 49152: c_sh 98304")


def test_texts_of_the_second_generator_have_the_indices_of_its_letters():
    text = second_products.text_of("bmk,bkn->bmn")
    assert "c_at(at_b, at_m, at_n)" in text and "a_at(at_b, at_m, at_k) * b_at(at_b, at_k, at_n)" in text and "at_b < b_size_b" in text
