"""Tuned records: contents of a line, damaged files, merging, hashes of strategies, and the choice of a record for a spec."""

import itertools
import json
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import warnings

import attrs
import pytest

from fireiron import *
from fireiron.cli import main
from fireiron.executable.mma_f16 import HMMA_16816_F32
from fireiron.executable.mma_volta import HMMA_884X4_F16_TT
from fireiron.language import library
from fireiron.tune import records
from fireiron.tune.record import KINDS, describe, spec_of, strategy_hash
from fireiron.tune.records import FARTHEST, MOST_TRIES, available, collection, current_strategy, lock, merge_files, tune_command

HALF = {"dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Environment variables have effect only in tests that set them."""
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    monkeypatch.setattr(collection, "_shipped", lambda: ())


def float16_gemm(M=256, N=256, K=256, **options):
    return MatMul(M, N, K, **{**HALF, **options})(GL, GL, GL)(Kernel)


def synthetic(problem=None, name="small", **changes):
    """A synthetic record of a strategy of the library in its present form."""
    fields = {
        "strategy": name,
        "strategy_hash": strategy_hash(library.find(name).strategy),
        "values": {"bm": 32, "bn": 32},
        "spec": describe(float16_gemm() if problem is None else problem),
        "architecture": "sm_90",
        "gpu": "NVIDIA H200",
        "us": 10.0,
        "quartiles": (9.5, 10.5),
        "tflops": 3.3,
        "regime": "burst",
        "l2": "rotated",
        "error": 1e-4,
        "registers": 90,
        "shared_bytes": 32768,
        "spills": 0,
        "library_us": 9.0,
        "toolchain": "NVRTC 13.0",
        "driver": "580.159.04",
        "clocks": (1980, 1980),
        "fireiron": "0.1",
        "date": "2026-11-21",
        "source": "synthetic",
    }
    return Record(**{**fields, **changes})


def written(path, *some):
    path.write_text("".join(f"{record.line()}\n" for record in some))
    return path


# ---------------------------------------------------------------------------------------------- specs


SPECS = (
    float16_gemm(),
    float16_gemm(sym("M", multiple_of=8), 64, sym("K", low=16, high=4096)),
    float16_gemm(64, 64, 64, A=RowMajor(ld=80), B=ColMajor(ld=sym("ldb", multiple_of=8))),
    float16_gemm(3, 5, 7, c_dtype=float32, accumulator=float32, accumulate=True),
    MatMul(8, 8, 8, dtype=(float8_e4m3, float8_e5m2))(GL, GL, GL)(Kernel),
    MatMul(8, 8, 8, dtype=tf32)(GL, GL, GL)(Kernel),
    Move(64, 32, dst_dtype=float16, src=RowMajor)(GL, GL)(Kernel),
    Init(64, 32, value=-3, dst=RowMajor(ld=40))(GL)(Kernel),
    MatMul(4, 8, 8, 16, signature="bmk,bkn->bmn", dtype=float16)(GL, GL, GL)(Kernel),
    BinaryPointwise("+", 8, 8)(GL, GL, GL)(Kernel),
    BinaryPointwise("*", 8, 8)(GL, GL, GL)(Kernel),
    Reduction(8, 16, by="max")(GL, GL)(Kernel),
    Pointwise("z[m,n] = relu(x[m,n] + b[n])", 8, sym("N", multiple_of=4), dtype=(float16, float32), z=RowMajor)(GL, GL, GL)(Kernel),
    Kind("Sums", "s[m,n] = {by} * x[m,n]; d[n,m] = x[m,n] - {by}", (Parameter("by", real=True),)).starter(0.5, 8, 16)(GL, GL, GL)(Kernel),
    Kind("Sums", "s[m,n] = {by} * x[m,n]; d[n,m] = x[m,n] + {by}", (Parameter("by", real=True),)).starter(0.5, 8, 16)(GL, GL, GL)(Kernel),
    Kind("Add", "s[i] += {a} * x[i]", (Parameter("a", 2),), atomic=True).starter(8, a=3, s_dtype=float32)(GL, GL)(Kernel),
    Kind("Any", "y[...] = {a} * x[...]", (Parameter("a", -math.inf, real=True),)).starter(8, 4, 2)(GL, GL)(Kernel),
    float16_gemm(A=Strides(m=ANY(8), k=1), B=Strides(k=sym("step", low=8, multiple_of=4), n=1), C=Strides(m=1, n=ANY)),
    Move(64, 32, src=Strides(m=0, n=ANY).aligned(4), dst=RowMajor)(GL, GL)(Kernel),
)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_specs_round_trip(spec):
    plain = describe(spec)
    assert spec_of(json.loads(json.dumps(plain))) == spec
    assert json.loads(json.dumps(plain)) == plain, "plain JSON"


def test_specs_of_unaligned_arrays_survive():
    spec = float16_gemm()
    loose = spec.with_operands(A=attrs.evolve(spec.A, tensor=attrs.evolve(spec.A.tensor, align=4)))
    assert describe(loose)["align"] == {"A": 4} and spec_of(describe(loose)) == loose != spec


def test_all_fields_of_a_spec_count():
    texts = {json.dumps(describe(spec), sort_keys=True) for spec in SPECS}
    assert len(texts) == len(SPECS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Kind("Both", "y[m,M] = x[m,M] + 1").starter(8, 8)(GL, GL)(Kernel), "two dimensions are named M"),
        (MatMul(8, 8, 8)(SH, SH, RF)(Warp), "only specs of kernels"),
        (float16_gemm(sym("M") * 8, 8, 8), "an integer or a symbol"),
        (float16_gemm(accumulate=sym("k0") < 3), "condition for accumulation"),
        (attrs.evolve(float16_gemm(), in_parts=True), "a record cannot describe this spec"),
        (attrs.evolve(Move(8, 8)(GL, GL)(Kernel), names=("a", "b")), "a record cannot describe this spec"),
    ],
    ids=["kind", "level", "expression", "condition", "partial", "names"],
)
def test_unrecordable_specs(spec, message):
    with pytest.raises(StoreError, match=message):
        describe(spec)


def test_describe_takes_specs():
    with pytest.raises(ArgumentError):
        describe("MatMul")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Sort"},
        {"layouts": {"A": "Strides(m=ANY(8), k=1", "B": "col", "C": "col"}},
        {"layouts": {"A": "Strides(m=ANY(8), n=1)", "B": "col", "C": "col"}},
        {"layouts": {"A": "Strides(m=ANY(0), k=1)", "B": "col", "C": "col"}},
        {"layouts": {"A": "Strides(m=1(2), k=1)", "B": "col", "C": "col"}},
        {"kind": ["MatMul"]},
        {"sizes": {"M": 4, "N": 4}},
        {"sizes": {"M": 0, "N": 4, "K": 4}},
        {"sizes": {"M": 4.0, "N": 4, "K": 4}},
        {"sizes": {"M": True, "N": 4, "K": 4}},
        {"sizes": {"M": "not a name", "N": 4, "K": 4}},
        {"dtypes": {"A": "float17", "B": "float16", "C": "float16"}},
        {"dtypes": {"A": 16, "B": "float16", "C": "float16"}},
        {"layouts": {"A": "rows", "B": "row", "C": "row"}},
        {"layouts": []},
        {"leading": {"A": 3}},
        {"leading": {"D": 300}},
        {"symbols": {"M": {"multiple_of": 8}}},
        {"symbols": [1]},
        {"align": {"A": 3}},
        {"accumulator": "float99"},
        {"accumulate": 1},
        {"value": 3},
        {"operation": "+"},
        {"signature": "mk,kn->mnp"},
        {"signature": 3},
        {"declared": {}},
        {"declared": {"formula": "C[m,n] = A[m,n] + B[m,n"}},
        {"declared": {"formula": "C[m,n] = {by} * A[m,n]", "parameters": 3}},
        {"declared": {"formula": "C[m,n] = {by} * A[m,n]", "parameters": [{"name": "by", "kind": 3}]}},
        {"declared": {"formula": "C[m,n] = {by} * A[m,n]", "parameters": [{"name": "by"}]}},
        {"declared": 3},
        {"parameters": {"by": 3}},
    ],
    ids=str,
)
def test_wrong_specs(change):
    with pytest.raises(StoreError):
        spec_of({**describe(float16_gemm()), **change})
    with pytest.raises(StoreError):
        Record.of({**json.loads(synthetic().line()), "spec": {**describe(float16_gemm()), **change}})


def test_kinds_are_starters():
    assert {name: repr(starter) for name, starter in KINDS.items()} == {name: name for name in KINDS}


# ---------------------------------------------------------------------------------------------- hashes

block = MatMul.tile(Tunable("bm", 64, 32), 64).to(Block)
copy = Move.tile(1, 4).to(Thread).done()
chain = block.split(8).load(A, SH, copy).tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def starting(other):
    """The chain with another first step."""
    return attrs.evolve(chain, steps=(*other.steps, *chain.steps[1:]))


VARIANTS = {
    "itself": chain,
    "a value less": starting(MatMul.tile(Tunable("bm", 64), 64).to(Block)),
    "another order of values": starting(MatMul.tile(Tunable("bm", 32, 64), 64).to(Block)),
    "another name": starting(MatMul.tile(Tunable("bn", 64, 32), 64).to(Block)),
    "another level": starting(MatMul.tile(Tunable("bm", 64, 32), 64).to(Warp)),
    "derived": starting(MatMul.tile(Tunable("bm", 64, 32) // 2, 64).to(Block)),
    "another swizzle": starting(MatMul.tile(Tunable("bm", 64, 32), 64).to(Block).swizzle("uid ^ 1")),
    "and another": starting(MatMul.tile(Tunable("bm", 64, 32), 64).to(Block).swizzle("uid ^ 2")),
    "a step less": attrs.evolve(chain, steps=chain.steps[:-1]),
    "a refinement": chain.at(Tile, index=1).refine(Unroll()),
    "a pad": chain.at(Load).refine(Pad(4)),
    "another pad": chain.at(Load).refine(Pad(8)),
    "another copy": attrs.evolve(chain, steps=block.split(8).load(A, SH, Move.tile(4, 1).to(Thread).done()).steps + chain.steps[3:]),
    "another operand": attrs.evolve(chain, steps=block.split(8).load(B, SH, copy).steps + chain.steps[3:]),
    "an alternative": chain.fallback(block.done("dot.cu text")),
    "another text": chain.fallback(block.done("dot.cu other text")),
    "another start": Move.tile(4, 4).to(Block).done(),
    "resolved": chain.with_(bm=64),
}


def test_hash_depends_on_everything_in_a_strategy():
    hashes = {name: strategy_hash(strategy) for name, strategy in VARIANTS.items()}
    for (name, left), (other_name, right) in itertools.combinations(hashes.items(), 2):
        assert left != right, f"{name} and {other_name} have one hash"
    assert all(len(value) == 16 and int(value, 16) >= 0 for value in hashes.values())


def test_hash_ignores_lines_and_specs():
    def build():
        return MatMul.tile(Tunable("bm", 64, 32), 64).to(Block).split(8).load(A, SH, Move.tile(1, 4).to(Thread).done())

    strategy, other = build(), build()
    other = attrs.evolve(other, steps=tuple(attrs.evolve(step, origin="elsewhere.py:3") for step in other.steps))
    assert strategy_hash(strategy) == strategy_hash(other) == strategy_hash(strategy(float16_gemm()))


def test_library_has_different_hashes():
    strategies = {repr(library.find(name).strategy): library.find(name).strategy for name in library.names()}
    assert len({strategy_hash(strategy) for strategy in strategies.values()}) == len(strategies) > 70


def test_former_hashes_are_stable():
    """For values whose fields had other names when records were first written."""
    odd = Level("Odd", Warp, Layout((2, 4), (1, 8)))
    assert strategy_hash(MatMul.tile(8, 8).to(odd)) == "3bc6ec86731eb965"
    assert strategy_hash(MatMul.done(HMMA_16816_F32)) == "90fb58fe58120fe3"
    assert strategy_hash(MatMul.done(HMMA_884X4_F16_TT)) == "5422a401d4592533"
    assert strategy_hash(MatMul.tile(8, 8).to(Level("In", odd, Layout(2)))) == "10861969971f17b2"


def test_hash_in_another_process():
    """The hash must not use Python's string hash, which differs between processes."""
    code = "from fireiron.language import library; from fireiron.tune import records; print(*(records.strategy_hash(library.find(n).strategy) for n in library.names()))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}, check=True
    )
    assert output.stdout.split() == [strategy_hash(library.find(name).strategy) for name in library.names()]


def test_hash_requires_record():
    """The hash of existing records; changing it makes all of them outdated."""
    assert strategy_hash(MatMul.tile(Tunable("bm", 64, 32), 64).to(Block).split(8)) == "8ca3af9ab4e65d8c"
    assert strategy_hash(MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).layout(ColMajor)) == "0b5f1b4f631e0d6f"


def test_unhashable_strategies():
    @attrs.frozen
    class Odd(Decomposition):
        verb = "odd"
        part: object = None

    with pytest.raises(StoreError, match="no hash"):
        strategy_hash(Strategy((Odd(object()),)))
    assert strategy_hash(Strategy((Odd(0.5),))) != strategy_hash(Strategy((Odd(0.25),)))
    assert strategy_hash(Strategy((Odd({"a": 1}),))) != strategy_hash(Strategy((Odd((("a", 1),)),)))


# ---------------------------------------------------------------------------------------------- one record


def test_record_survives():
    for record in (
        synthetic(),
        synthetic(clocks=None, library_us=None),
        synthetic(extra={"note": [1, {"x": None}]}),
        synthetic(us=3, gpu="β"),
    ):
        line = record.line()
        assert "\n" not in line and list(json.loads(line)) == sorted(json.loads(line))
        assert Record.parse(line) == record and hash(Record.parse(line)) == hash(record)
        assert pickle.loads(pickle.dumps(record)) == record


def test_unknown_fields_are_kept():
    line = json.dumps({**json.loads(synthetic().line()), "power_w": 512.5, "note": {"by": "hand"}})
    assert Record.parse(line).extra == {"power_w": 512.5, "note": {"by": "hand"}}
    assert json.loads(Record.parse(line).line()) == json.loads(line)


def test_record_is_independent_of_its_arguments():
    values = {"bm": 32}
    record = synthetic(values=values)
    values["bm"] = 64
    assert record.values == {"bm": 32}


def test_ratio_and_shape():
    assert synthetic(us=10.0, library_us=9.0).ratio == 0.9 and synthetic(library_us=None).ratio is None
    assert synthetic(float16_gemm(1, 2, 3)).shape == (1, 2, 3) and synthetic(float16_gemm(sym("M"), 2, 3)).shape == ("M", 2, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": ""},
        {"strategy": 3},
        {"strategy": "two\nlines"},
        {"strategy_hash": "abc"},
        {"strategy_hash": "ABCDEF0123456789"},
        {"values": {"bm": -1}},
        {"values": {"bm": 1.0}},
        {"values": {"bm": True}},
        {"values": {"b m": 1}},
        {"values": [1]},
        {"spec": []},
        {"architecture": "90"},
        {"us": 0},
        {"us": -1.0},
        {"us": "10"},
        {"us": True},
        {"us": None},
        {"us": float("nan")},
        {"us": float("inf")},
        {"quartiles": [1.0]},
        {"quartiles": [1.0, "2"]},
        {"tflops": -1},
        {"error": float("nan")},
        {"registers": 3.5},
        {"registers": -1},
        {"library_us": 0},
        {"clocks": [1980]},
        {"clocks": [1980.5, 1980]},
        {"date": "yesterday"},
        {"date": 20261121},
        {"driver": ""},
        {"extra": {"us": 3}},
        {"extra": {"format": 3}},
    ],
    ids=str,
)
def test_wrong_records(change):
    with pytest.raises(StoreError) as caught:
        synthetic(**change)
    (field,) = change
    assert caught.value.asked.startswith(field)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "another version"),
        ('{"format": 2}', "another version"),
        ('{"format": true}', "another version"),
        ('{"format": 1}', "is missing"),
        ('{"format": 1, "us": NaN}', "NaN is not a legal value in a record"),
        ('{"format": 1, "us": 1e999, "us": 3}', "appears twice"),
        ("[" * 100000, "nested too deeply"),
        ('{"format": ' + "9" * 5000 + "}", "not JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_wrong_lines(line, message):
    with pytest.raises(StoreError, match=message):
        Record.parse(line)


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(Record) if field.name not in ("extra", "library_us", "clocks")])
def test_missing_fields(field):
    plain = json.loads(synthetic().line())
    del plain[field]
    with pytest.raises(StoreError, match=f"'{field}' is missing"):
        Record.of(plain)


def test_infinity_by_an_exponent():
    with pytest.raises(StoreError, match="us"):
        Record.parse(synthetic().line().replace('"us": 10.0', '"us": 1e999'))


# ---------------------------------------------------------------------------------------------- files


def test_files(tmp_path):
    first = written(tmp_path / "a.jsonl", synthetic(us=1.0), synthetic(float16_gemm(512), us=2.0))
    written(tmp_path / "b.jsonl", synthetic(float16_gemm(1024), us=3.0))
    (tmp_path / "notes.txt").write_text("no records")
    assert len(Records.load(first)) == 2 and len(Records.load(tmp_path)) == 3
    assert [record.shape[0] for record in Records.load(tmp_path)] == [256, 512, 1024]
    assert Records.load(tmp_path).text() == Records.load(tmp_path / "b.jsonl", first).text()


def test_blank_lines_and_last_line_without_end(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{synthetic().line()}\r\n\n{synthetic(us=3.0, values={}).line()}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Records.load(path)) == 2


def test_wrong_line_is_named(tmp_path):
    path = written(tmp_path / "a.jsonl", synthetic())
    path.write_text(path.read_text() + '{"format": 1}\n' + path.read_text())
    with pytest.raises(StoreError) as caught:
        Records.load(path)
    assert caught.value.at == f"{path}:2" and "'strategy' is missing" in str(caught.value)


def test_conflict_of_git(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"<<<<<<< HEAD\n{synthetic().line()}\n=======\n{synthetic(us=3).line()}\n>>>>>>> other\n")
    with pytest.raises(StoreError, match="a merge conflict of git"):
        Records.load(path)


def test_truncated_last_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{synthetic().line()}\n{synthetic(us=3.0).line()[:100]}")
    with pytest.warns(OutdatedRecordWarning, match="a.jsonl:2: the last line is incomplete"):
        assert len(Records.load(path)) == 1
    with pytest.warns(OutdatedRecordWarning, match="is removed"):
        Records.append_to(path, synthetic(values={}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Records.load(path)) == 2 and path.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "not text"), (None, "does not exist"), ("folder", "is not a file of records")],
    ids=["binary", "absent", "pipe"],
)
def test_unreadable_files(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        os.mkfifo(path)
    with pytest.raises(StoreError, match=message):
        Records.load(path)


def test_changed_file_is_read_again(tmp_path):
    path = written(tmp_path / "a.jsonl", synthetic(us=1.0))
    assert len(Records.load(path)) == 1
    Records.append_to(path, synthetic(us=2.0, values={}))
    assert len(Records.load(path)) == 2


def test_append_makes_the_file(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    Records.append_to(path, synthetic())
    assert path.read_text() == f"{synthetic().line()}\n"
    path.write_text(path.read_text().rstrip("\n"))
    Records.append_to(path, synthetic(values={}))
    assert len(Records.load(path)) == 2, "a whole line without an end is kept"


def test_append_refuses(tmp_path):
    with pytest.raises(ArgumentError):
        Records.append_to(tmp_path / "a.jsonl", synthetic().line())
    with pytest.raises(StoreError, match="cannot be written"):
        (tmp_path / "file").write_text("")
        Records.append_to(tmp_path / "file" / "a.jsonl", synthetic())
    assert not (tmp_path / "a.jsonl").exists()


def test_append_leaves_nothing_where_the_disk_is_full(tmp_path, monkeypatch):
    path = written(tmp_path / "a.jsonl", synthetic())
    real, calls = os.write, []

    def full(file, data):
        calls.append(len(data))
        if len(calls) == 1:
            return real(file, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        Records.append_to(path, synthetic(us=3.0))
    monkeypatch.undo()
    assert path.read_text() == f"{synthetic().line()}\n"


def append_many(path, number):
    for position in range(20):
        Records.append_to(path, synthetic(values={"bm": number * 100 + position}))


def test_processes_append_at_once(tmp_path):
    path = tmp_path / "a.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(path, number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(Records.load(path)) == 80 and path.read_text().count("\n") == 80


def test_append_without_locks_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    path = tmp_path / "a.jsonl"
    threads = [threading.Thread(target=append_many, args=(path, number)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(Records.load(path)) == 60 and list(tmp_path.iterdir()) == [path]
    monkeypatch.setattr(lock, "LOCK_SECONDS", 0.05)
    (tmp_path / "a.jsonl.lock").touch()
    with pytest.raises(StoreError, match="locked by another process"):
        Records.append_to(path, synthetic())


def test_append_to_a_file_that_was_replaced_meanwhile(tmp_path):
    """An append that waits for a merge adds to the merged file."""
    path = written(tmp_path / "a.jsonl", synthetic())
    with lock.locked(path):
        waiting = threading.Thread(target=Records.append_to, args=(path, synthetic(us=4.0, values={"bm": 64})))
        waiting.start()
        records.write_records(path, Records((synthetic(float16_gemm(512)),)))
    waiting.join(30)
    assert {record.shape[0] for record in Records.load(path)} == {512, 256} and len(Records.load(path)) == 2


# ---------------------------------------------------------------------------------------------- merging


def test_merging_does_not_depend_on_order():
    some = [
        synthetic(us=10.0, date="2026-11-20"),
        synthetic(us=12.0, date="2026-11-21"),
        synthetic(us=11.0, date="2026-11-21", toolchain="NVRTC 12.6"),
        synthetic(us=9.0, date="2026-11-20T23:00:00"),
        synthetic(us=1.0, gpu="NVIDIA H100"),
        synthetic(us=2.0, regime="busy"),
        synthetic(us=2.0, values={"bm": 64}),
        synthetic(float16_gemm(512), us=1.0),
    ]
    results = {
        Records().merged(*(Records((record,)) for record in order)).text()
        for order in itertools.islice(itertools.permutations(some), 0, 40320, 97)
    }
    assert len(results) == 1
    merged = Records().merged(Records(tuple(some)))
    (kept,) = [record for record in merged if record.date >= "2026-11-20" and record.us > 8]
    assert kept.us == 12.0, "the newest date, then the newest toolchain, also where it is slower"
    assert len(merged) == 5


def test_numbers_in_toolchains_count_as_numbers():
    old, new = synthetic(us=1.0, toolchain="NVRTC 12.9"), synthetic(us=2.0, toolchain="NVRTC 12.10")
    assert Records((new,)).merged(Records((old,))).records == (new,)


def test_merged_text_is_stable():
    small, large = synthetic(float16_gemm(64), us=3.0), synthetic(float16_gemm(1024), us=2.0)
    text = Records((large, small)).text()
    assert [json.loads(line)["spec"]["sizes"]["M"] for line in text.splitlines()] == [64, 1024], "by number, not by text"
    assert Records.merged(Records((small,)), Records((large,))).text() == text


def test_merge_files(tmp_path):
    first = written(tmp_path / "a.jsonl", synthetic(us=1.0, date="2026-11-20"))
    other = written(tmp_path / "b.jsonl", synthetic(us=2.0, date="2026-11-21"), synthetic(float16_gemm(64)))
    assert merge_files([first, other], first) == (3, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]
    assert len(Records.load(first)) == 2 and {record.us for record in Records.load(first)} == {2.0, 10.0}
    other.write_text("{}\n")
    with pytest.raises(StoreError):
        merge_files([other], tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


# ---------------------------------------------------------------------------------------------- choosing


def test_exact():
    some = Records((synthetic(us=10.0), synthetic(us=8.0, values={"bm": 64, "bn": 32}), synthetic(float16_gemm(512), us=1.0)))
    choice = some.best(float16_gemm(), "sm_90")
    assert choice.exact and choice.record.us == 8.0 and choice.record.values["bm"] == 64
    assert choice.strategy.spec == float16_gemm() and not choice.strategy.tunables()
    assert "tuned for exactly this spec" in choice.why and "bm=64" in choice.why and "NVIDIA H200" in choice.why
    assert choice.strategy.program("sm_90").cuda == choice.program.cuda


def test_exact_of_another_gpu_comes_second():
    some = Records((synthetic(us=1.0, gpu="NVIDIA H100"), synthetic(us=2.0)))
    assert some.best(float16_gemm(), "sm_90", gpu="NVIDIA H200").record.us == 2.0
    assert some.best(float16_gemm(), "sm_90", gpu="NVIDIA H20").record.us == 1.0


def test_equal_conditions_of_measurement_come_first():
    some = Records((synthetic(us=1.0, l2="hot"), synthetic(us=1.5, regime="busy"), synthetic(us=2.0)))
    assert some.best(float16_gemm(), "sm_90").record.us == 2.0


def test_architectures():
    some = Records((synthetic(),))
    assert some.best(float16_gemm(), "sm_90a").exact
    exclusive = Records((synthetic(architecture="sm_90a"), synthetic(us=50.0)))
    assert exclusive.best(float16_gemm(), "sm_90").record == exclusive.best(float16_gemm(), "sm_90a").record == exclusive.records[0], (
        "where it is legal"
    )
    assert some.find(float16_gemm(), "sm_80") is None and some.find(float16_gemm(), "sm_100") is None
    ampere = Records((synthetic(architecture="sm_80"),))
    choice = ampere.best(float16_gemm(), "sm_86")
    assert not choice.exact and "distance 1.00" in choice.why, "the same major number, as a neighbor"
    assert ampere.find(float16_gemm(), "sm_86", neighbors=False) is None


def test_nearest_records_by_distance():
    some = Records(
        (
            synthetic(float16_gemm(512, 256, 256), us=50.0),
            synthetic(float16_gemm(256, 256, 1024), us=9.0),
            synthetic(float16_gemm(128, 128, 256), us=1.0),
        )
    )
    near = some.best(float16_gemm(), "sm_90")
    assert not near.exact and near.record.shape == (256, 256, 1024), "equally near, and faster; K counts half"
    assert "256x256x1024 (distance 1.00)" in near.why
    assert some.best(float16_gemm(500, 256, 256), "sm_90").record.shape == (512, 256, 256)
    assert some.find(float16_gemm(), "sm_90", neighbors=False) is None


def test_distant_records_are_not_used():
    some = Records((synthetic(float16_gemm(256, 256, 256)),))
    assert FARTHEST == 6.0
    assert some.find(float16_gemm(1024, 1024, 4096), "sm_90") is not None
    assert some.find(float16_gemm(1024, 2048, 4096), "sm_90") is None


@pytest.mark.parametrize(
    "spec",
    [
        float16_gemm(dtype=bfloat16),
        float16_gemm(c_dtype=float32),
        float16_gemm(B=ColMajor),
        float16_gemm(C=ColMajor),
        float16_gemm(accumulate=True),
        float16_gemm(accumulator=float32),
    ],
    ids=["dtype", "c_dtype", "B", "C", "accumulate", "accumulator"],
)
def test_records_of_other_problems_are_not_used(spec):
    assert Records((synthetic(),)).find(spec, "sm_90") is None


def test_user_defined_kinds_are_looked_up():
    """By declaration: another formula with the same title is another kind. Result sizes have full weight, reduced sizes half."""
    rows = Kind("Rows", "y[i] += sum(j, {by} * x[i,j])", (Parameter("by", real=True),))

    def spec(by, i, j, kind=rows):
        return kind.starter(by, i, j)(GL, GL)(Kernel)

    block = Tunable("block", 64, 32)
    strategy = Strategy((), start=rows.starter).tile(block).to(Block).tile(1).to(Thread).split(1).done(ROWS)
    digest = strategy_hash(strategy)
    some = tuple(
        synthetic(definition, us=us, strategy="mine.py:rows", strategy_hash=digest, values={"block": value})
        for definition, us, value in ((spec(0.5, 256, 64), 3.0, 64), (spec(0.5, 256, 256), 2.0, 32), (spec(2, 256, 64), 1.0, 32))
    )
    again = Records(tuple(Record.parse(one.line()) for one in some))
    assert [one.shape for one in again] == [(256, 64), (256, 256), (256, 64)]
    answer = again.best(spec(0.5, 256, 64), "sm_90", strategies={"mine.py:rows": strategy})
    assert answer.exact and answer.record.us == 3.0 and answer.strategy.spec == spec(0.5, 256, 64)
    near = again.best(spec(0.5, 512, 256), "sm_90", strategies={"mine.py:rows": strategy})
    assert not near.exact and "Rows" in str(near.record.spec) and "256x256 (distance 1.00)" in near.why
    other = Kind("Rows", "y[i] += sum(j, {by} + x[i,j])", rows.parameters)
    assert again.find(spec(0.5, 256, 64, other), "sm_90", strategies={"mine.py:rows": strategy}) is None
    with pytest.raises(StoreError, match="there is no record for Rows 8x8, float32 float32") as none:
        again.best(spec(3, 8, 8), "sm_90", strategies={"mine.py:rows": strategy})
    assert "fireiron tune STRATEGY.py --arch sm_90" in str(none.value)


@attrs.frozen
class Row(Executable):
    """One term of a row."""

    def performs(self):
        return "Rows(1,1)(GL,GL)(Thread)"

    def mismatches(self, spec, architecture):
        return () if spec.title == "Rows" and {str(size) for size in spec.sizes} == {"1"} else (Mismatch("spec", "Rows", str(spec)),)

    def cuda(self, printer, statement):
        return [f"{printer.element(statement, 'y')} = 0;"]


ROWS = Row("ROWS")


def test_batched_records_do_not_answer_for_matrices():
    stack = Records((synthetic(Move(64, 64, 4)(GL, GL)(Kernel)),))
    assert stack.find(Move(64, 64)(GL, GL)(Kernel), "sm_90") is None
    batch = MatMul(4, 256, 256, 256, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
    assert Records((synthetic(batch),)).for_spec(batch, "sm_90") and not Records((synthetic(),)).for_spec(batch, "sm_90")


def test_leading_dimensions_and_alignment_affect_the_distance():
    views = float16_gemm(A=RowMajor(ld=264))
    choice = Records((synthetic(),)).best(views, "sm_90")
    assert not choice.exact and choice.strategy.spec == views
    odd = float16_gemm(255, 257, 255, A=RowMajor(ld=259))
    assert Records((synthetic(),)).best(odd, "sm_90").strategy.spec == odd, "copies become narrow where rows are not aligned"
    assert Records((synthetic(views),)).best(views, "sm_90").exact


def test_run_time_sizes_are_answered_exactly_or_not():
    free = float16_gemm(sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8))
    some = Records((synthetic(), synthetic(free, us=77.0)))
    assert some.best(free, "sm_90").record.us == 77.0
    assert some.find(float16_gemm(sym("M"), 256, 256), "sm_90") is None
    assert Records((synthetic(free),)).find(float16_gemm(), "sm_90") is None


def test_illegal_records_are_skipped():
    """Stages of two million bytes do not fit, so the next nearest record answers."""
    crowded = synthetic(us=1.0, name="hmma_ampere", values={"bm": 256, "bn": 256, "bk": 64, "wm": 64, "wn": 64, "stages": 5})
    fits = synthetic(float16_gemm(512), us=5.0)
    choice = Records((crowded, fits)).best(float16_gemm(), "sm_90")
    assert choice.record == fits and not choice.exact
    edited = synthetic(us=1.0, values={"bm": 33})
    assert Records((edited,)).find(float16_gemm(), "sm_90") is None, "values that the tunable does not have"
    assert Records((synthetic(values={"nosuch": 3}),)).find(float16_gemm(), "sm_90") is None


def test_not_every_neighbor_is_tried():
    illegal = [synthetic(float16_gemm(256 + 8 * number), us=1.0, values={"bm": 33}) for number in range(1, MOST_TRIES + 1)]
    fits = synthetic(float16_gemm(1024), us=5.0)
    assert Records((*illegal[:-1], fits)).find(float16_gemm(), "sm_90") is not None
    assert Records((*illegal, fits)).find(float16_gemm(), "sm_90") is None


def test_what_is_accepted():
    some = Records((synthetic(us=1.0, values={"bm": 64, "bn": 64, "wm": 32, "wn": 32}), synthetic(us=2.0)))
    small = some.best(float16_gemm(), "sm_90", accept=lambda program: program.ir.threads <= 64)
    assert small.record.us == 2.0 and some.best(float16_gemm(), "sm_90").record.us == 1.0


def test_outdated_records_are_skipped_with_a_warning():
    old, new = synthetic(us=1.0, strategy_hash="0123456789abcdef"), synthetic(us=2.0)
    with pytest.warns(OutdatedRecordWarning, match="older version of the strategy.*0123456789abcdef"):
        assert Records((old, new)).best(float16_gemm(), "sm_90").record.us == 2.0
    with pytest.warns(OutdatedRecordWarning):
        assert Records((old,)).find(float16_gemm(), "sm_90") is None
    gone = synthetic(strategy_hash="0123456789abcdef")
    gone = attrs.evolve(gone, strategy="no_such_strategy")
    with pytest.warns(OutdatedRecordWarning, match="no strategy has this name"):
        assert Records((gone,)).find(float16_gemm(), "sm_90") is None


def test_files_that_records_name_do_not_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit('ran')\n")
    strategy = library.find("small").strategy
    record = attrs.evolve(synthetic(), strategy=f"{path}:mine")
    assert Records((record,)).find(float16_gemm(), "sm_90") is None
    choice = Records((record,)).best(float16_gemm(), "sm_90", strategies={f"{path}:mine": strategy})
    assert choice.exact and current_strategy(record, {f"{path}:mine": strategy}) is strategy


def test_no_record():
    with pytest.raises(StoreError) as caught:
        Records((synthetic(), synthetic(float16_gemm(512)))).best(float16_gemm(dtype=bfloat16), "sm_90")
    text = str(caught.value)
    assert "there is no record for MatMul 256x256x256, bfloat16" in text
    assert "MatMul 512x256x256, float16 float16 float16, row row row on sm_90" in text
    assert "fireiron tune small -M 256 -N 256 -K 256 --dtype bfloat16 --layouts TTT --arch sm_90" in text
    with pytest.raises(StoreError, match="there is no record for Move 8x8"):
        Records().best(Move(8, 8)(GL, GL)(Kernel))


def test_tune_command_is_understood():
    """The command line parses the sizes and layouts that the message prints."""
    from fireiron.cli.arguments import layouts, size

    words = tune_command(float16_gemm(sym("M", multiple_of=8), 64, 64, B=ColMajor), "sm_90").split()
    assert size(words[words.index("-M") + 1]) == sym("M", multiple_of=8)
    assert layouts(words[words.index("--layouts") + 1]) == "TNT"


# ---------------------------------------------------------------------------------------------- here


def test_best_reads_the_named_file(tmp_path, monkeypatch):
    path = written(tmp_path / "mine.jsonl", synthetic(us=1.0))
    with pytest.raises(StoreError, match="there is no record"):
        best_strategy(float16_gemm())
    monkeypatch.setenv("FIREIRON_RECORDS", str(path))
    assert best_strategy(float16_gemm()).spec == float16_gemm()
    assert best_strategy(float16_gemm(512), "sm_90").spec == float16_gemm(512), "a neighbor"


def test_require_record(tmp_path, monkeypatch):
    path = written(tmp_path / "mine.jsonl", synthetic(us=1.0))
    with pytest.raises(StoreError, match="no file of records is specified"):
        best_strategy(float16_gemm(), require_record=True)
    monkeypatch.setenv("FIREIRON_RECORDS", str(path))
    monkeypatch.setenv("FIREIRON_REQUIRE_RECORD", "1")
    assert best_strategy(float16_gemm()).spec == float16_gemm()
    with pytest.raises(StoreError, match="there is no record for MatMul 512x256x256"):
        best_strategy(float16_gemm(512))
    assert best_strategy(float16_gemm(512), require_record=False).spec == float16_gemm(512), "the argument decides"
    with pytest.raises(ArgumentError, match="must be True, False or None"):
        best_strategy(float16_gemm(), require_record=1)
    monkeypatch.setenv("FIREIRON_RECORDS", str(tmp_path / "absent.jsonl"))
    with pytest.raises(StoreError, match="does not exist"):
        best_strategy(float16_gemm())


def test_require_record_ignores_shipped_records(tmp_path, monkeypatch):
    folder = tmp_path / "shipped"
    folder.mkdir()
    written(folder / "h200.jsonl", synthetic(float16_gemm(512)))
    monkeypatch.setattr(collection, "_shipped", lambda: (folder,))
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(tmp_path / "mine.jsonl", synthetic())))
    assert {record.shape[0] for record in available()} == {256, 512}
    assert {record.shape[0] for record in available(require_record=True)} == {256}


def test_tune_where_nothing_is_recorded(tmp_path, monkeypatch):
    """The tuner runs once with the library's default strategy; its result is cached."""
    import importlib

    calls, results = [], [synthetic(float16_gemm(), us=1.5, values={"bm": 64, "bn": 64, "wm": 32, "wn": 32})]

    class Tuning:
        @property
        def best(self):
            return results[0]

    def tune(strategy, spec, **named):
        calls.append((strategy, spec, named))
        return Tuning()

    monkeypatch.setattr(importlib.import_module("fireiron.tune"), "tune", tune)
    path = tmp_path / "mine.jsonl"
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(path, synthetic(float16_gemm(512)))))
    assert best_strategy(float16_gemm(), "sm_90", tune=True) == library.find("small").strategy.with_(
        bm=64, bn=64, wm=32, wn=32, bk=64, stages=4, lookahead=2
    )(float16_gemm())
    assert calls == [(library.find("small").strategy, float16_gemm(), {"arch": "sm_90", "name": "small"})]
    assert len(Records.load(path)) == 2
    assert best_strategy(float16_gemm(), "sm_90", tune=True).spec == float16_gemm() and len(calls) == 1, "recorded now"
    with pytest.raises(ArgumentError, match="require_record"):
        best_strategy(float16_gemm(), require_record=True, tune=True)
    results[0] = None
    with pytest.raises(StoreError, match="found no legal values"):
        best_strategy(float16_gemm(64), tune=True)
    with pytest.raises(StoreError, match="no default strategy"):
        best_strategy(Move(8, 8)(GL, GL)(Kernel), tune=True)


def test_nothing_measures(tmp_path, monkeypatch):
    from fireiron.gpu import launch

    def no(*arguments, **named):
        raise AssertionError("touched the GPU")

    monkeypatch.setattr(launch, "require_cupy", no)
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(tmp_path / "mine.jsonl", synthetic())))
    assert best_strategy(float16_gemm()) is not None


def test_shipped_records_are_whole(monkeypatch):
    """The shipped records load, are unique, in the order of `text`, and not outdated."""
    monkeypatch.undo()
    shipped = Records.shipped()
    assert shipped == Records.load(*collection._shipped()), "they are read without checks"
    assert shipped.outdated() == ()
    for folder in collection._shipped():
        for path in folder.glob("*.jsonl"):
            assert path.read_text() == Records.load(path).text(), f"fireiron records merge {path.name} -o {path.name}"


def test_a_shipped_line_that_is_not_a_record(tmp_path, monkeypatch):
    broken = tmp_path / "h200.jsonl"
    broken.write_text(f"{synthetic().line()}\n<<<<<<< HEAD\n{synthetic(float16_gemm(512)).line()}\n")
    monkeypatch.setattr(collection, "_shipped", lambda: (tmp_path,))
    with pytest.raises(StoreError, match="a merge conflict of git") as caught:
        Records.shipped()
    assert f"{broken}:2" in str(caught.value)


def test_shipped_without_a_folder():
    assert len(Records.shipped()) == 0


# ---------------------------------------------------------------------------------------------- command line


@pytest.fixture
def fireiron(capsys):
    def run(*arguments):
        status = main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_list_reports_what_is_tuned(fireiron, tmp_path, monkeypatch):
    path = written(
        tmp_path / "a.jsonl", synthetic(us=10.0), synthetic(float16_gemm(512), us=5.0), synthetic(us=1.0, strategy_hash="0" * 16)
    )
    Records.append_to(path, synthetic(name="split_k", strategy_hash="0" * 16))
    monkeypatch.setenv("FIREIRON_RECORDS", str(path))
    status, out, _ = fireiron("list", "small")
    assert status == 0 and "2 (NVIDIA H200), best 1.80x the library, 1 outdated" in out
    (row,) = json.loads(fireiron("list", "small", "--json")[1])
    assert row["tuned"] == {"records": 2, "outdated": 1, "gpus": ["NVIDIA H200"], "best speedup": 1.8, "best TFLOP/s": 3.3}
    (row,) = json.loads(fireiron("list", "naive", "--json")[1])
    assert row["tuned"]["records"] == 0
    assert "H200" not in fireiron("list", "small", "--arch", "sm_80")[1], "records of another target are not counted"
    assert "- (1 outdated)" in fireiron("list", "split_k")[1]
    assert fireiron("list", "nosuch")[0] == 2


def test_list_records(fireiron, tmp_path, monkeypatch):
    monkeypatch.setenv(
        "FIREIRON_RECORDS", str(written(tmp_path / "a.jsonl", synthetic(float16_gemm(64, 48, 32, A=RowMajor(ld=40))), synthetic(us=5.0)))
    )
    status, out, _ = fireiron("list", "--records")
    assert status == 0 and "64x48x32" in out and "row(40) row row" in out and "1.800" in out and "bm=32 bn=32" in out
    assert "no records" in fireiron("list", "naive", "--records")[1]
    assert "no records" in fireiron("list", "--records", "--arch", "sm_80")[1]
    assert len(json.loads(fireiron("list", "--records", "--json")[1])) == 2
    for arch in ("sm_90", "sm_90a"):
        assert len(json.loads(fireiron("list", "--records", "--json", "--arch", arch)[1])) == 2, "by compute capability"
    assert fireiron("list", "--records", "--outdated")[0] == 2
    assert fireiron("list", "--records", "nope")[0] == 2


def test_list_outdated(fireiron, tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    monkeypatch.setenv("FIREIRON_RECORDS", str(written(path, synthetic())))
    assert fireiron("list", "--outdated")[0] == 0
    old = synthetic(us=1.0, strategy_hash="0" * 16)
    written(path, synthetic(), old, attrs.evolve(old, strategy="gone"), attrs.evolve(old, strategy="mine.py:s"))
    status, out, _ = fireiron("list", "--outdated")
    assert (
        status == 1
        and f"small ({'0' * 16}): tuned for an older version" in out
        and "no such strategy" in out
        and "2 of them not used" in out
    )
    assert [row["strategy"] for row in json.loads(fireiron("list", "--outdated", "--json")[1])] == ["gone", "small"]


def test_records_merge(fireiron, tmp_path):
    first = written(tmp_path / "a.jsonl", synthetic(us=1.0, date="2026-11-20"))
    other = written(tmp_path / "b.jsonl", synthetic(us=2.0))
    status, out, _ = fireiron("records", "merge", first, other)
    assert status == 0 and out == Records.load(other).text()
    assert fireiron("records", "merge", first, "-o", other)[0] == 2, "not among those merged"
    status, out, _ = fireiron("records", "merge", first, other, "-o", other)
    assert status == 0 and "1 records, 1 replaced" in out and len(Records.load(other)) == 1
    assert fireiron("records", "merge", first, "-o", other, "--force")[0] == 0 and Records.load(other).records[0].us == 1.0
    assert fireiron("records", "merge")[0] == 2
    (tmp_path / "empty").mkdir()
    status, _, error = fireiron("records", "merge", tmp_path / "empty", "-o", tmp_path / "all.jsonl")
    assert status == 2 and "contain no records" in error and not (tmp_path / "all.jsonl").exists()


def test_records_check(fireiron, tmp_path):
    path = written(tmp_path / "a.jsonl", synthetic(), synthetic(us=3.0, date="2026-11-22"))
    status, out, _ = fireiron("records", "check", path)
    assert status == 0 and "2 records, 1 of them duplicates; 0 errors" in out
    path.write_text(path.read_text() + '{"format": 9}\n' + synthetic(strategy_hash="0" * 16).line() + "\n")
    status, out, _ = fireiron("records", "check", path)
    assert status == 1 and f"{path}:3: the record has another version" in out and "older version" in out and "2 errors" in out
    assert len(json.loads(fireiron("records", "check", path, "--json")[1])["errors"]) == 2
    assert fireiron("records", "check", path, "-o", path)[0] == 2


def test_records_show(fireiron, tmp_path):
    path = written(tmp_path / "a.jsonl", synthetic(), synthetic(float16_gemm(512)))
    assert "512x256x256" in fireiron("records", "show", path)[1]
    assert "no records" in fireiron("records", "show", path, "--strategy", "naive")[1]
    assert "no records" in fireiron("records", "show")[1]
    assert fireiron("records", "show", path, "--arch", "sm_1")[0] == 2
