"""Everything that reads the outside: files that run nothing, writers that are killed, disks that are full. What is drawn is in `attacks/`."""

import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import guard
from attacks.guard import Answers, Input
from attacks.writers import KEPT, attack
from campaign.subjects.inputs import KINDS
from tuning_fakes import square, strategy

from fireiron import *
from fireiron import files
from fireiron.gpu import cache
from fireiron.language.store import load
from fireiron.tune.journal import Journal
from fireiron.tune.task import Task

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
    ("action", "said"),
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
def test_every_unfair_answer_is_found(action, said, monkeypatch):
    monkeypatch.setattr(guard, "SECONDS", 0.05)
    if said == "TypeError":
        monkeypatch.setattr(guard, "HERE", Path("/nowhere"))
    (found,) = wrong(action).wrong
    assert said in found and found.endswith("pasted")


def test_fair_answers_are_counted():
    assert wrong(raising(ArgumentError("x"))).counts == {"inputs": 1, "inputs kind": 1}
    assert wrong(lambda: 3).counts == {"accepted": 1, "accepted kind": 1}
    assert wrong(lambda: 3, lambda value: f"{value} is not 4").wrong == ["3 is not 4\n\npasted"]
    assert wrong(lambda: MatMul(1, 2, 3, 4, 5, 6, no_such=1)).counts["inputs"] == 1


def test_every_file_of_inputs_is_drawn():
    there = {path.stem for path in (Path(__file__).parent / "attacks").glob("*.py") if "\ndef draw(" in path.read_text(encoding="utf-8")}
    assert there == set(KINDS)


# ---------------------------------------------------------------------------------------------- what the first million found

FOUND = (
    "Kind('K', 'y[i] = x{i]')", "Kind('K', 3)", "Kind('K', 'y[i] = x[i]', 3)", "Kind('K', 'y[i] = {by} * x[i]', (('by', 1),))", "Parameter('a b')", "Parameter(3)",
    "Fused(name='f', dims='m n', operands='x', each={})", "Fused(name='f', dims='m n', operands={'X': 'm n'}, each={'a': 'Y[m] = X[m,n]'}, types=3)",
    "in_parts(3, 'x')", "in_parts(MatMul(8, 8, 8)(GL, GL, GL)(Kernel).definition, 'x')", "Const('8')", "Const(True)", "Var('v', 'a')", "Var('v', 0, np.array([8, 8]))",
    "Var(3)", "Spec(Kernel, 'x', ())", "Spec(Kernel, MatMul.kind, 'x')", "Spec(Kernel, MatMul.kind, (), {'a': 1})", "FR(Int(8), deep(), 8)", "all_of(np.array(8))",
    "Shuffle('s', np.array([8]))", "LdMatrix(object())", "Wgmma(3)", r"ThreadMove('a\nb')", "MatrixLayout(np.zeros(0))", "MatrixLayout('diagonal')", "AnyStride('8')",
    "Strides(m=None)", "Swizzle(Int(8), 0, 3)", "Layout((4, 2), (2, 1))[deep()]", "Layout((4, 2), (2, 1)).address()",
    "MatMul.tile(8, 8).epilogue('relu(acc)', Block)", "Pointwise('z[m] = relu(x[m])', 8)(GL, GL)(Kernel).tile(8).epilog(RF).epilogue('relu(acc)')",
    "MatMul.tile(8, 8).with_(x=Int(8))", "MatMul.tile(8, 8)(Int(8))", "MatMul.tile(8, 8).repack('A', order=EqualRaises())", "MatMul.tile(8, 8).skip(where=np.array([8, 8]))",
    "Move.tile(8, 8).skip(where=NotImplemented)", "MatMul.step(Text('8'), 3)", "MatMul(8, 8, 8, signature=np.zeros(0))", "Reduction(8, 8, axes=b'8', signature=np.zeros(0))",
    "Fma(Text('8'), int32, 3)", "Mma(Text('8'), 0, 0, 0, 0)", "DType(Text('8'), 16, '?', 'x', 'x')", "MatMul.tile(8, 8).swizzle('1or uid')", "Records.load(3)", "Records.load('x' * 5000)",
    r"Records.load('a\0b')", "export(MatMul, 3)", "draw_(3)", "draw_(deep())", "draw_(np.zeros(0))", "load(3)", r"load('a\0b')", r"load('\ud800')", "load('x' * 5000)",
    "save(MatMul.tile(8, 8), 3)", "spec_of({'declared': {'formula': 'y[i] = x[i]'}})", "spec_of({'declared': {'steps': {'dims': 'm'}}})", "Machine('m', 3, ())", "Machine('m', (HOST,), (3,))",
    "Blocks(3)", "Axes('ab')", "First(3, 4)", "mma_pieces(np.array([8]), WARP, 'A')", "tasks.tunable(np.array([8, 8]))", "TaskMapping('a', 'b', HOST, np.array(8))", "Stored(order=EqualRaises())",
    "tasks.cdiv(deep(), -1)", "tasks.task(Text('8'), tasks.Leaf, reads=3)", r"parse('T = argument([4], float32, GLOBAL)\nP = partition_by_blocks(T, (4\0))')",
)  # fmt: skip
"""Inputs that were answered otherwise than by the project's own error once, each of a kind of its own."""


@pytest.fixture(scope="module")
def names():
    found = {}
    exec(
        "from fireiron import *\nfrom attacks.values import *\nfrom attacks.places import draw_\nfrom fireiron import tasks\nfrom fireiron.tasks import *\n"
        "from fireiron.tasks.partition import mma_pieces\nfrom fireiron.tasks.event_text import parse\nfrom fireiron.language.store import load, save\n"
        "from fireiron.tune.record import spec_of",
        found,
    )
    return found


def test_what_was_found_once_is_refused(names):
    with guard.guarded() as caught:
        answers = {text: guard.answer(Input(text, lambda text=text: eval(text, dict(names))), caught) for text in FOUND}
    assert {text: answer for text, answer in answers.items() if answer != ("inputs", None)} == {}


# ---------------------------------------------------------------------------------------------- nothing runs

TESTS = Path(__file__).resolve().parent

AUDITED = """
import random, sys
from attacks import documents, stored, texts
from attacks.guard import Answers

seen, listening = [], False
QUIET = "<unknown>"  # ast.parse: a tree, which nobody runs
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
            for one in kind.draw(random.Random(seed), 12):
                try:
                    one.action()
                except Exception:
                    pass

everything(range(SEEDS))  # what is imported, and made once, is so now
sys.addaudithook(hook)
listening = True
everything(range(SEEDS))
listening = False
print(len(seen), *seen[:5], sep="\\n")
"""


@pytest.mark.parametrize("seeds", [3, pytest.param(200, marks=pytest.mark.night)])
def test_what_is_loaded_runs_nothing(seeds):
    """Stored strategies, specs, records, entries of the cache, and texts of kernels, right and damaged: no code, import, process or file."""
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
    command = [sys.executable, "-c", AUDITED.replace("SEEDS", str(seeds))]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[0] == "0", ran.stdout


# ---------------------------------------------------------------------------------------------- killed writers


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.night)])
@pytest.mark.parametrize("name", KEPT)
def test_killed_writers_lose_nothing_that_was_written(name, kills, tmp_path):
    assert attack(name, tmp_path, kills, random.Random(kills)) >= 1


# ---------------------------------------------------------------------------------------------- full disks, and other folders


def _on_a_full_disk(name, folder, sender):
    """In a process of its own, whose files may not grow: what one more item gives, and what is found then."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    largest = max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(largest + 16, 64), resource.RLIM_INFINITY))
    try:
        with pytest.warns() if name == "cache" else pytest.raises((FireironError, OSError)) as caught:
            KEPT[name].write(folder, 7, 7)
        said = str(caught[0].message) if name == "cache" else f"{type(caught.value).__name__}: {caught.value}"
    except BaseException as error:
        said = f"not refused: {error!r}"
    sender.send((said, KEPT[name].found(folder)))


@pytest.mark.parametrize("name", KEPT)
def test_a_full_disk_costs_the_write_and_nothing_else(name, tmp_path):
    writer = multiprocessing.get_context("fork").Process(target=KEPT[name].write, args=(tmp_path, 3, 3))  # that closes what it wrote
    writer.start()
    writer.join()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_on_a_full_disk, args=(name, tmp_path, sender))
    process.start()
    said, found = receiver.recv()
    process.join()
    assert found == {(3, 3)}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    if name != "campaign":  # of the tests: whoever runs it sees the error of the system
        assert ("StoreError" in said or "cannot be written" in said) and "too large" in said, said


def test_a_journal_where_no_file_can_be(tmp_path):
    task = Task(strategy(square), "sm_90")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "a.jsonl", tmp_path, Path("a\0b")):
        with pytest.raises(StoreError, match="the journal cannot be written"):
            Journal(place, task, task.describe())


def test_links_folders_and_pipes_are_no_entries(tmp_path, monkeypatch):
    """Nor a reason to fail, or to wait: the kernel is compiled anew."""
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    key = "ab" * 32
    place = cache._place(key)
    place.parent.mkdir(parents=True)
    for make in (place.mkdir, lambda: place.symlink_to(place), lambda: place.symlink_to("/dev/zero"), lambda: os.mkfifo(place)):
        make()
        assert cache._load(place, key) is None and cache.entries() == cache.verify() == ()
        place.rmdir() if place.is_dir() else place.unlink()


def test_a_pipe_among_records_is_none(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert len(Records.load(tmp_path)) == 0
    with pytest.raises(StoreError, match="no file of records"):
        Records.load(tmp_path / "pipe.jsonl")


def test_files_without_an_end_are_refused(monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1 << 16)
    with pytest.raises(StoreError, match="more than 65536 bytes"):
        load("/dev/zero")
