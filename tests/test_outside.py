"""Untrusted input: loaded files run no code, killed writers lose no data, full disks. Random inputs are in `attacks/`."""

import hashlib
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import making
import pytest
from attacks import guard, kept, large, unwritable
from attacks.guard import Answers, Input
from attacks.writers import KEPT, attack
from campaign.subjects.inputs import KINDS
from tuning_fakes import square, strategy

from fireiron import *
from fireiron import files
from fireiron.check.races.loops import Loops
from fireiron.cli import doctor, main
from fireiron.errors import CacheWarning
from fireiron.gpu import built, cache
from fireiron.language.store import load
from fireiron.lower import footprint
from fireiron.tune.journal import Journal
from fireiron.tune.task import Task
from fireiron.values.expr import Less

# ---------------------------------------------------------------------------------------------- the guard itself


def wrong(action, right=lambda value: None):
    answers = Answers()
    answers.take([Input("pasted", action, right)], "kind")
    return answers


def raising(error):
    def action():
        raise error

    return action


def warning():
    import warnings

    warnings.warn("x", DeprecationWarning, stacklevel=1)


def endless():
    while True:
        pass


class Mute(FireironError):
    def __str__(self):
        raise KeyError("no text")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (raising(KeyError("x")), "KeyError"),
        (raising(RecursionError("x")), "RecursionError"),
        (raising(SystemExit(2)), "SystemExit"),
        (raising(ArgumentError(" ")), "without a text"),
        (raising(ArgumentError("x" * 30_000)), "30000 characters"),
        (raising(Mute("x")), "whose text raises KeyError"),
        (warning, "a warning: DeprecationWarning: x"),
        (endless, "still not done after 0.05 seconds"),
        (lambda: bytearray(guard.MEMORY * 2), "more than"),
        (lambda: sorted([1, "x"], key=ArgumentError), "TypeError"),
    ],
)
def test_every_unacceptable_answer_is_detected(action, expected, monkeypatch):
    monkeypatch.setattr(guard, "SECONDS", 0.05)
    if expected == "TypeError":
        monkeypatch.setattr(guard, "HERE", Path("/nowhere"))
    (message,) = wrong(action).wrong
    assert expected in message and message.endswith("pasted")


def test_acceptable_answers_are_counted():
    assert wrong(raising(ArgumentError("x"))).counts == {"inputs": 1, "inputs kind": 1}
    assert wrong(lambda: 3).counts == {"accepted": 1, "accepted kind": 1}
    assert wrong(lambda: 3, lambda value: f"{value} is not 4").wrong == ["3 is not 4\n\npasted"]
    assert wrong(lambda: MatMul(1, 2, 3, 4, 5, 6, no_such=1)).counts["inputs"] == 1


def test_every_module_of_inputs_is_used():
    modules = {path.stem for path in (Path(__file__).parent / "attacks").glob("*.py") if "\ndef draw(" in path.read_text(encoding="utf-8")}
    assert modules == set(KINDS)


# ---------------------------------------------------------------------------------------------- inputs found by fuzzing

FOUND_BY_FUZZING = (
    "Kind('K', 'y[i] = x{i]')", "Kind('K', 3)", "Kind('K', 'y[i] = x[i]', 3)", "Kind('K', 'y[i] = {by} * x[i]', (('by', 1),))", "Parameter('a b')", "Parameter(3)",
    "Fused(name='f', dims='m n', operands='x', body={})", "Fused(name='f', dims='m n', operands={'X': 'm n'}, body={'a': 'Y[m] = X[m,n]'}, types=3)",
    "rfactor(3, 'x')", "rfactor(MatMul(8, 8, 8)(GL, GL, GL)(Kernel).definition, 'x')", "Const('8')", "Const(True)", "Var('v', 'a')", "Var('v', 0, np.array([8, 8]))",
    "Var(3)", "Spec(Kernel, 'x', ())", "Spec(Kernel, MatMul.kind, 'x')", "Spec(Kernel, MatMul.kind, (), {'a': 1})", "FR(Int(8), deep(), 8)", "all_of(np.array(8))",
    "Shuffle('s', np.array([8]))", "LdMatrix(object())", "Wgmma(3)", r"ThreadMove('a\nb')", "MatrixLayout(np.zeros(0))", "MatrixLayout('diagonal')", "AnyStride('8')",
    "Strides(m=None)", "Swizzle(Int(8), 0, 3)", "Layout((4, 2), (2, 1))[deep()]", "Layout((4, 2), (2, 1)).address()",
    "MatMul.tile(8, 8).fuse_epilogue('relu(acc)', Block)", "Pointwise('z[m] = relu(x[m])', 8)(GL, GL)(Kernel).tile(8).epilog(RF).fuse_epilogue('relu(acc)')",
    "MatMul.tile(8, 8).with_(x=Int(8))", "MatMul.tile(8, 8)(Int(8))", "MatMul.tile(8, 8).repack('A', order=EqualRaises())", "MatMul.tile(8, 8).skip_steps(where=np.array([8, 8]))",
    "Move.tile(8, 8).skip_steps(where=NotImplemented)", "MatMul.step(Text('8'), 3)", "MatMul(8, 8, 8, signature=np.zeros(0))", "Reduction(8, 8, axes=b'8', signature=np.zeros(0))",
    "Fma(Text('8'), int32, 3)", "Mma(Text('8'), 0, 0, 0, 0)", "DType(Text('8'), 16, '?', 'x', 'x')", "MatMul.tile(8, 8).swizzle('1or uid')", "Records.load(3)", "Records.load('x' * 5000)",
    r"Records.load('a\0b')", "export(MatMul, 3)", "draw_(3)", "draw_(deep())", "draw_(np.zeros(0))", "load(3)", r"load('a\0b')", r"load('\ud800')", "load('x' * 5000)",
    "save(MatMul.tile(8, 8), 3)", "spec_of({'declared': {'formula': 'y[i] = x[i]'}})", "spec_of({'declared': {'steps': {'dims': 'm'}}})", "Machine('m', 3, ())", "Machine('m', (HOST,), (3,))",
    "Blocks(3)", "Axes('ab')", "First(3, 4)", "mma_pieces(np.array([8]), WARP, 'A')", "tasks.tunable(np.array([8, 8]))", "TaskMapping('a', 'b', HOST, np.array(8))", "Stored(order=EqualRaises())",
    "tasks.cdiv(deep(), -1)", "tasks.task(Text('8'), tasks.Leaf, reads=3)", r"parse('T = argument([4], float32, GLOBAL)\nP = partition_by_blocks(T, (4\0))')",
)  # fmt: skip
"""Inputs that once raised something other than an error of the project, one per kind."""


@pytest.fixture(scope="module")
def names():
    namespace = {}
    exec(
        "from fireiron import *\nfrom attacks.values import *\nfrom attacks.places import draw_\nfrom fireiron import tasks\nfrom fireiron.tasks import *\n"
        "from fireiron.tasks.partition import mma_pieces\nfrom fireiron.tasks.event_text import parse\nfrom fireiron.language.store import load, save\n"
        "from fireiron.tune.record import spec_of",
        namespace,
    )
    return namespace


def test_inputs_found_by_fuzzing_are_rejected(names):
    with guard.guarded() as caught:
        answers = {text: guard.answer(Input(text, lambda text=text: eval(text, dict(names))), caught) for text in FOUND_BY_FUZZING}
    assert {text: answer for text, answer in answers.items() if answer != ("inputs", None)} == {}


# ---------------------------------------------------------------------------------------------- loading runs no code

TESTS = Path(__file__).resolve().parent

AUDITED = """
import random, sys
from attacks import documents, stored, texts
from attacks.guard import Answers

seen, listening = [], False
QUIET = "<unknown>"  # ast.parse: a syntax tree, which is never executed
def hook(event, arguments):
    if not listening:
        return
    if event == "compile" and arguments[1] == QUIET:
        return
    if event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        return
    if event in ("compile", "exec", "import", "open") or event.startswith(("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pickle.")):
        seen.append((event, repr(arguments)[:200]))

def everything(seeds):
    for seed in seeds:
        for kind in (documents, stored, texts):
            for item in kind.draw(random.Random(seed), 12):
                try:
                    item.action()
                except Exception:
                    pass

everything(range(SEEDS))  # imports and cached values exist now
sys.addaudithook(hook)
listening = True
everything(range(SEEDS))
listening = False
print(len(seen), *seen[:5], sep="\\n")
"""


@pytest.mark.parametrize("seeds", [3, pytest.param(200, marks=pytest.mark.nightly)])
def test_loading_runs_no_code(seeds):
    """Stored strategies, specs, records, cache entries and kernel texts, intact and damaged: no code, import, process or file."""
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    command = [sys.executable, "-c", AUDITED.replace("SEEDS", str(seeds))]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[0] == "0", ran.stdout


# ---------------------------------------------------------------------------------------------- killed writers


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", KEPT)
def test_killed_writers_lose_no_written_data(name, kills, tmp_path):
    assert attack(name, tmp_path, kills, random.Random(kills)) >= 1


# ---------------------------------------------------------------------------------------------- huge but legal inputs

HUGE_INPUTS = (
    "a layout of one mode", "a layout of many modes", "unroll", "a long loop", "a long loop and many blocks", "a prediction of a long loop", "definitions of many steps",
    "JSON of long texts", "a shape in a kernel's text",
)  # fmt: skip
"""Inputs that once took gigabytes or many seconds, or gave an answer of megabytes."""


@pytest.mark.parametrize("name", HUGE_INPUTS)
def test_huge_inputs_are_answered_quickly(name):
    answers = Answers()
    answers.take([large.handed(name, 2**40 + 1)], "large")
    assert not answers.wrong, answers.wrong[0]


def test_closed_forms_of_long_loops():
    """The closed forms for loops that are too long to enumerate equal the enumeration."""
    choose = random.Random(1)
    for _ in range(300):
        count = choose.randint(1, 60)
        var, conditions = Var("k", 0, count - 1), []
        for _ in range(choose.randint(0, 3)):
            moving, fixed = var * choose.choice((-3, -1, 1, 2, 8)) + choose.randint(-70, 70), Const(choose.randint(-70, 70))
            conditions.append(Less(moving, fixed) if choose.random() < 0.5 else Less(fixed, moving))
        loop = attrs.evolve(making.loop(var, Const(count), ()), period=choose.randint(1, 6))
        assert list(footprint._iterations(loop, conditions)) == list(footprint._iterations_of_steps(loop, conditions, count))


@pytest.mark.parametrize("sizes", [(33, 32, 100), (40, 50, 8 * 13 + 1)])
def test_affine_changes_equal_enumerated_changes(sizes, monkeypatch):
    compared, enumerated = [], Loops._changes

    def both(self, loop, fixed, count):
        wanted = enumerated(self, loop, fixed, count)
        compared.append((list(wanted), list(self._changes_of_steps(loop, fixed, count))))
        return wanted

    monkeypatch.setattr(Loops, "_changes", both)
    assert large.PIPED(MatMul(*sizes)(GL, GL, GL)(Kernel)).program("sm_80").cuda
    assert compared and all(changes == affine_changes for changes, affine_changes in compared) and any(changes for changes, _ in compared)


# ---------------------------------------------------------------------------------------------- full disks and unwritable folders


CACHES = ("cache", "compiled", "pruned")


def _on_a_full_disk(name, folder, sender):
    """In a separate process whose files must not grow: the message for one more item, and the entries afterwards."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(largest + 16, 64), resource.RLIM_INFINITY))
    try:
        with pytest.warns() if name in CACHES else pytest.raises((FireironError, OSError)) as caught:
            KEPT[name].write(folder, 7, 7)
        message = str(caught[0].message) if name in CACHES else f"{type(caught.value).__name__}: {caught.value}"
    except BaseException as error:
        message = f"not refused: {error!r}"
    sender.send((message, KEPT[name].items_in(folder)))


@pytest.mark.parametrize("name", KEPT)
def test_a_full_disk_loses_only_the_write(name, tmp_path):
    writer = multiprocessing.get_context("fork").Process(target=KEPT[name].write, args=(tmp_path, 3, 3))  # which closes its files
    writer.start()
    writer.join()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_on_a_full_disk, args=(name, tmp_path, sender))
    process.start()
    sender.close()
    message, entries = receiver.recv()
    process.join()
    assert entries == {(0 if name == "compiled" else 3, 3)}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    if name != "campaign":  # a test tool, which shows the system's error
        assert ("StoreError" in message or "cannot be written" in message) and "too large" in message, message


def test_a_journal_at_an_impossible_path(tmp_path):
    task = Task(strategy(square), "sm_90")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "a.jsonl", tmp_path, Path("a\0b")):
        with pytest.raises(StoreError, match="the journal cannot be written"):
            Journal(place, task, task.describe())


def _as_other_user(sender):
    """In a process without root rights: all writers at paths that are not writable."""
    unwritable.gallery()
    unwritable.attempt("emit", "new{}"), unwritable.attempt("export", "new{}")  # imports what other users may not be able to read
    unwritable._remove(unwritable.home() / "here")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    answers = Answers()
    shut = ("shut/x{}",)
    answers.take((unwritable.handed(writer, place) for writer in unwritable.WRITERS for place in shut), "unwritable")
    sender.send((dict(answers.counts), answers.wrong))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can switch to another user")
def test_unwritable_folders():
    """Permissions do not limit root, so another user tries: an error of the project, nothing changed; a warning for the cache."""
    unwritable.home().chmod(0o777)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_as_other_user, args=(sender,))
    process.start()
    sender.close()
    counts, wrong = receiver.recv()
    process.join()
    assert not wrong, wrong[0]
    assert counts["inputs"] >= 14 and counts["accepted"] >= 4


UNWRITABLE_PATHS = (
    ("merge", "null{}"), ("merge", "pipe{}"), ("merge", "lost{}"), ("merge", "link{}"), ("records merge", "full{}"), ("append", "there{}"), ("append", "a\0b{}"), ("append", "pipe{}"),
    ("journal", "zero{}"), ("journal", "there{}"), ("journal", "pipe{}"), ("save", "circle{}"), ("pictures", "x" * 300), ("pictures", "circle{}"), ("new", "x" * 300),
    ("records merge", "x" * 300), ("draw", "y/" * 3000 + "x.svg"), ("draw a folder", "shut"),
)  # fmt: skip
"""Writers and paths that once gave no message, or lost the previous content."""


def test_paths_found_by_fuzzing():
    answers = Answers()
    answers.take((unwritable.handed(*arguments) for arguments in UNWRITABLE_PATHS), "unwritable")
    assert not answers.wrong, answers.wrong[0]
    assert answers.counts["inputs"] >= (16 if os.getuid() == 0 else 13)  # a merge follows a link, and root can enter the folder


@pytest.mark.parametrize(
    "write", [Records.append_to, lambda path, record: Journal(path, Task(strategy(square), "sm_90"), {})], ids=["records", "journal"]
)
def test_incomplete_lines_of_other_files_are_kept(write, tmp_path):
    """Another file keeps its last line even without a newline; an incomplete line is the beginning of a record."""
    file = tmp_path / "notes.txt"
    file.write_text("remember the milk")
    with pytest.raises(StoreError, match="nor the beginning of one"):
        write(file, unwritable.record())
    assert file.read_text() == "remember the milk"


def test_new_writes_all_files_or_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.cu").mkdir()
    assert main(["new", "mine", "--kind", "micro-kernel", "--force"]) == 2
    assert "mine.cu is not a regular file" in capsys.readouterr().err and sorted(os.listdir(tmp_path)) == ["mine.cu"]


def test_the_jax_handler_needs_no_cache(tmp_path, monkeypatch):
    """It is compiled into a folder of the process if the cache is not writable or disabled."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="Not a directory.*compiled again"):
        folder = built.folder("the handler")
    assert folder.is_dir() and not folder.is_relative_to(tmp_path)
    folder.rmdir()
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "cache"))
    assert built.folder("the handler") == tmp_path / "cache"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.warns(CacheWarning, match="Permission denied"):
        built.folder("the handler").rmdir()
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    built.folder("the handler").rmdir()


def test_doctor_reports_an_impossible_cache(monkeypatch):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", "/tmp/" + "x" * 300)
    (result,) = (item for item in doctor._cache() if item.name == "folder")
    assert result.state == doctor.WRONG and "File name too long" in result.details and "FIREIRON_CACHE_DIR" in result.do


def test_links_folders_and_pipes_are_not_cache_entries(tmp_path, monkeypatch):
    """They cause neither an error nor a wait: the kernel is compiled again."""
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    key = "ab" * 32
    place = cache._place(key)
    place.parent.mkdir(parents=True)
    for make in (place.mkdir, lambda: place.symlink_to(place), lambda: place.symlink_to("/dev/zero"), lambda: os.mkfifo(place)):
        make()
        assert cache._load(place, key) is None and cache.entries() == cache.verify() == ()
        place.rmdir() if place.is_dir() else place.unlink()


@pytest.mark.parametrize("seeds", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_cache_entries_with_any_header_are_listed(seeds):
    """Headers that are deep, malformed or of wrong types, with a correct digest: exactly the entries listed as intact are loaded."""
    answers = Answers()
    for seed in range(seeds):
        answers.take(kept.draw(random.Random(seed), 12), "kept")
    assert not answers.wrong, answers.wrong[0]


@pytest.mark.parametrize("head", [b"[" * 100_000, b'{"kernels": 3}', b"9" * 6000, b"[]"], ids=len)
def test_a_malformed_header_is_damage(head, tmp_path, monkeypatch):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    body, place = head + b"\n", cache._place("ab" * 32)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"".join((cache._FIRST, hashlib.sha256(body).hexdigest().encode(), b"\n", body)))
    assert [entry.problem for entry in cache.entries()] == ["it is not an entry of this format"]
    with pytest.warns(CacheWarning, match="its head"):
        assert cache._load(place, "ab" * 32) is None


def test_a_pipe_is_not_a_record_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert len(Records.load(tmp_path)) == 0
    with pytest.raises(StoreError, match="is not a file of records"):
        Records.load(tmp_path / "pipe.jsonl")


def test_infinite_files_are_rejected(monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1 << 16)
    with pytest.raises(StoreError, match="more than 65536 bytes"):
        load("/dev/zero")
