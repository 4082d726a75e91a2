"""The compile cache: keys, invalid entries, many processes, killed processes, read-only disks."""

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import attrs
import pytest

from fireiron import settings
from fireiron.cli import main
from fireiron.errors import ArgumentError, CacheWarning, LaunchError
from fireiron.gpu import cache, headers, toolchain
from fireiron.gpu.cache import _decoded, compile_cached, entries, key_of, prune, verify
from fireiron.gpu.headers import included
from fireiron.gpu.toolchain import compilation, toolchains

SOURCE = '// a store\nextern "C" __global__ void store(float* a) {\n  a[threadIdx.x] = 1.0f;\n}\n'
FLOAT16 = '#include <cuda_fp16.h>\nextern "C" __global__ void store(__half* a) {\n  a[threadIdx.x] = __float2half(1.0f);\n}\n'
ARCH = "sm_80"

USER_CACHE = toolchain.user_cache

pytestmark = pytest.mark.skipif(
    not any(chain.serves(ARCH) for chain in toolchains()), reason="no NVRTC serves sm_80 (pip install 'fireiron[check]')"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A separate cache per test, except for CUDA's headers; every warning is an error unless a test expects it."""
    usual = settings.cache_folder()
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path / "cache"))
    monkeypatch.delenv("FIREIRON_NO_CACHE", raising=False)
    monkeypatch.setattr(toolchain, "user_cache", lambda: usual)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield tmp_path / "cache"


@pytest.fixture
def compiles(monkeypatch):
    """The sources that were passed to the compiler."""
    given = []
    run = toolchain._run
    monkeypatch.setattr(toolchain, "_run", lambda chain, source, flags: given.append(source) or run(chain, source, flags))
    return given


def key(source=SOURCE, arch=ARCH, **options):
    return key_of(compilation(source, arch, **options))


def only():
    (path,) = cache.folder().rglob("*.kernel")
    return path


# ---------------------------------------------------------------------------------------------- hits


def test_a_second_compilation_is_read(compiles):
    first = compile_cached(SOURCE, ARCH)
    second = compile_cached(SOURCE, ARCH)
    assert len(compiles) == 1
    assert (first.cached, second.cached) == (False, True)
    assert first == second
    assert (second.ptx, second.cubin, second.log, second.seconds) == (first.ptx, first.cubin, first.log, first.seconds)
    assert second.resources["store"].registers == first.resources["store"].registers > 0


def test_entries_are_two_folders_deep(folder):
    compile_cached(SOURCE, ARCH)
    name = key()
    assert only() == folder / "kernels" / name[:2] / name[2:4] / f"{name}.kernel"
    assert [path for path in folder.rglob("*") if path.is_file()] == [only()], "no lock and no unfinished file stays"


def test_switched_off(compiles, folder, monkeypatch):
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    assert not compile_cached(SOURCE, ARCH).cached
    assert not compile_cached(SOURCE, ARCH).cached
    assert len(compiles) == 2 and not folder.exists()


def test_a_refused_source_is_not_cached(compiles):
    for _ in range(2):
        with pytest.raises(LaunchError, match="identifier"):
            compile_cached("__global__ void k() { nonsense; }", ARCH)
    assert len(compiles) == 2 and entries() == ()


def test_a_kernel_uses_it(compiles):
    from problems import library

    module = library("listing_2")
    first, second = (module.strategy(module.spec(256, 256, 256)).compile(ARCH) for _ in range(2))
    assert first.asm["cubin"] == second.asm["cubin"]
    assert len(compiles) == 1 and second.compiled.cached
    (entry,) = (one for one in entries() if one.kind == "kernel")
    assert entry.kernels == ("matmul",) and "MatMul(256,256,256)" in entry.about


# A name that is too long may name no file: the compiler refuses it, the cache accepts it.


def test_a_changed_input_changes_the_key(monkeypatch):
    keys = {
        "as it is": key(),
        "another text": key(SOURCE.replace("1.0f", "2.0f")),
        "another target": key(arch="sm_90"),
        "an option": key(options=("--maxrregcount=32",)),
        "its value": key(options=("--maxrregcount=40",)),
        "a macro": key(options=("-DX=1",)),
        "fast": key(fast_math=True),
        "warnings": key(werror=False),
    }
    others = [chain for chain in toolchains() if chain.serves(ARCH)][1:]
    keys |= {str(chain): key(newest=chain.version) for chain in others}
    monkeypatch.setattr(toolchain, "_fingerprint", lambda library: "another build")
    keys["another build of the compiler"] = key()
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    keys["another format"] = key()
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)


def test_keys_are_the_same_in_every_process(tmp_path):
    script = "from fireiron.gpu.cache import key_of; from fireiron.gpu.toolchain import compilation; import sys; print(key_of(compilation(sys.stdin.read(), 'sm_80')))"
    for seed in "12":
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=FLOAT16,
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == key(FLOAT16)


def header(folder, text="#define VALUE 3.0f\n"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "value.h").write_text(text)
    return f"--include-path={folder}"


WITH_HEADER = '#include "value.h"\nextern "C" __global__ void k(float* a) { *a = VALUE; }\n'


def test_headers_count_by_content_not_by_path(tmp_path, compiles):
    original, same, other = header(tmp_path / "one"), header(tmp_path / "two"), header(tmp_path / "other", "#define VALUE 4.0f\n")
    assert (
        key(WITH_HEADER, options=(original,))
        == key(WITH_HEADER, options=(same,))
        == key(WITH_HEADER, options=("-I", os.fspath(tmp_path / "two")))
    )
    assert key(WITH_HEADER, options=(original,)) != key(WITH_HEADER, options=(other,))
    first = compile_cached(WITH_HEADER, ARCH, options=(original,))
    assert compile_cached(WITH_HEADER, ARCH, options=(same,)).cached
    assert compile_cached(WITH_HEADER, ARCH, options=(other,)).cubin != first.cubin
    header(tmp_path / "one", "#define VALUE 5.0f\n")
    assert not compile_cached(WITH_HEADER, ARCH, options=(original,)).cached
    assert len(compiles) == 3


def test_headers_of_headers_count(tmp_path):
    option = header(tmp_path, '#include "inner.h"\n')
    (tmp_path / "inner.h").write_text("#define VALUE 1.0f\n")
    before = key(WITH_HEADER, options=(option,))
    (tmp_path / "inner.h").write_text("#define VALUE 2.0f\n")
    assert key(WITH_HEADER, options=(option,)) != before


def test_a_header_that_appears_changes_the_key(tmp_path):
    text = '#if 0\n#include "later.h"\n#endif\n' + SOURCE
    option = f"--include-path={tmp_path}"
    before = key(text, options=(option,))
    (tmp_path / "later.h").write_text("")
    assert key(text, options=(option,)) != before


@pytest.mark.parametrize(
    "inclusion", ["/* 1 */ #include", "#/**/include", "#\\\ninclude", "#in\\\nclude", "%:include", "# /* two\nlines */ include"], ids=repr
)
def test_every_spelling_of_an_inclusion_counts(tmp_path, inclusion):
    text = WITH_HEADER.replace("#include", inclusion)
    before = key(text, options=(header(tmp_path),))
    assert before is not None
    assert key(text, options=(header(tmp_path, "#define VALUE 2.0f\n"),)) != before


@pytest.mark.parametrize("look", ['#if __has_include("later.h")\n#endif', '#include_next "value.h"', '#embed "value.h"'], ids=repr)
def test_other_queries_of_files_are_not_cached(tmp_path, look):
    option = header(tmp_path)
    assert key(WITH_HEADER, options=(option,)) is not None
    assert key(f"{look}\n{WITH_HEADER}", options=(option,)) is None


def test_inclusions_that_no_folder_can_have():
    """A CUDA release with one header, and the paths of headers that were read; `fresh` discards what a process remembers."""
    assert included('#include "' + "x" * 300 + '"\n', (), ()) == (("x" * 300, ""),)


def test_the_cuda_headers_count(monkeypatch):
    names = dict(included(FLOAT16, compilation(FLOAT16, ARCH).include, compilation(FLOAT16, ARCH).include))
    assert len(names["cuda_fp16.h"]) == 64
    before = key(FLOAT16)
    monkeypatch.setattr(toolchain, "_include_folders", lambda chain: ())
    assert key(FLOAT16) != before


@pytest.fixture
def release(tmp_path, monkeypatch):
    """A release of CUDA with one header, and the paths of headers that were really read; `fresh` is what a new process knows: nothing."""
    (tmp_path / "release").mkdir()
    header(tmp_path / "release")
    read = []
    original = headers._read.__wrapped__
    monkeypatch.setattr(headers, "_read", lambda path, *rest: read.append(os.path.basename(path)) or original(path, *rest))
    headers._known.cache_clear()
    yield tmp_path / "release", read
    headers._known.cache_clear()


def reached(folder, fresh=True):
    if fresh:
        headers._known.cache_clear()
    return included(WITH_HEADER, (folder,), (folder,))


def test_headers_of_a_release_are_read_once_a_machine(release):
    folder, read = release
    first = reached(folder)
    assert reached(folder) == first and read == ["value.h"] and [entry.kind for entry in entries()] == ["headers"]
    header(folder, "#define VALUE 16.0f\n")
    assert reached(folder) != first and read == ["value.h"] * 2, "another size"
    assert reached(folder) == reached(folder, fresh=False) and len(read) == 2


def test_damaged_cached_headers_are_read_again(release, folder):
    place, read = release
    first = reached(place)
    (kept,) = folder.rglob("*.headers")
    kept.write_bytes(kept.read_bytes()[:-3])
    assert reached(place) == first and len(read) == 2 and verify() == ()


def test_user_headers_and_disabled_caches_are_not_cached(release, monkeypatch):
    folder, read = release
    for _ in range(2):
        included(WITH_HEADER, (folder,), ())
    assert len(read) == 2 and entries() == ()
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    for _ in range(2):
        reached(folder)
    assert len(read) == 4 and entries() == ()


def test_undecidable_inclusions_are_not_cached(tmp_path, compiles, folder, monkeypatch):
    option = header(tmp_path / "headers")
    text = '#define HEADER "value.h"\n#include HEADER\nextern "C" __global__ void k(float* a) { *a = VALUE; }\n'
    assert key(text, options=(option,)) is None
    for _ in range(2):
        assert not compile_cached(text, ARCH, options=(option,)).cached
    assert len(compiles) == 2 and entries() == ()
    assert key(options=(f"--pre-include={tmp_path}/headers/value.h",)) is None
    monkeypatch.setattr(toolchain, "_fingerprint", lambda library: None)
    assert key() is None


def test_the_build_of_the_compiler_is_known():
    for chain in toolchains():
        assert chain.identity and "/" not in chain.identity
        assert chain.identity == attrs.evolve(chain).identity
    assert toolchain._fingerprint("/nowhere/libnvrtc.so") is None
    assert toolchain._mapped(Path(toolchains()[0].library).name).exists(), "one that is loaded by name"


# ---------------------------------------------------------------------------------------------- damage


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_every_changed_byte_is_found():
    compile_cached(SOURCE, ARCH)
    data, name = only().read_bytes(), key()
    assert _decoded(data, name).cached
    for position in (*range(400), *range(400, len(data), 61), len(data) - 1):
        with pytest.raises(cache.DamagedError):
            _decoded(flipped(data, position), name)
    for length in (*range(0, 200, 7), *range(200, len(data), 301), len(data) - 1):
        with pytest.raises(cache.DamagedError):
            _decoded(data[:length], name)
    with pytest.raises(cache.DamagedError):
        _decoded(data + b"\0", name)
    with pytest.raises(cache.DamagedError, match="another key"):
        _decoded(data, "0" * 64)


DAMAGE = {
    "changed at the end": lambda data: flipped(data, len(data) - 1),
    "changed in the head": lambda data: flipped(data, 150),
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "something else": lambda data: b"\x7fELF",
    "longer": lambda data: data + b"more",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_again(damage, compiles):
    good = compile_cached(SOURCE, ARCH)
    path = only()
    data = path.read_bytes()
    path.write_bytes(damage(data))
    with pytest.warns(CacheWarning, match="is not used and compiled again"):
        again = compile_cached(SOURCE, ARCH)
    assert not again.cached and again == good and len(compiles) == 2
    assert compile_cached(SOURCE, ARCH).cached and verify() == ()


def test_the_entry_of_another_key_is_not_used():
    compile_cached(SOURCE, ARCH)
    other = SOURCE.replace("1.0f", "2.0f")
    place = cache._place(key(other))
    place.parent.mkdir(parents=True)
    place.write_bytes(only().read_bytes())
    with pytest.warns(CacheWarning, match="another key"):
        assert not compile_cached(other, ARCH).cached


def test_an_incomplete_header_is_damage():
    """A valid digest proves only that the entry was written with it."""
    for head in ({"key": "0" * 64}, {}, [], {"key": "0" * 64, "sizes": "many"}):
        body = json.dumps(head).encode() + b"\n"
        data = cache._FIRST + hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        with pytest.raises(cache.DamagedError, match="its layout is not that of this version"):
            _decoded(data, "0" * 64)


# ---------------------------------------------------------------------------------------------- processes

CHILD = """
import os, signal, sys, time
from pathlib import Path
from fireiron.gpu import cache, toolchain
source, arch = {source!r}, "sm_80"
{before}
found = cache.compile_cached(source, arch)
print(found.cached, len(found.cubin))
"""


def child(before="", **options):
    script = CHILD.format(source=SOURCE, before=textwrap.dedent(before))
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_many_processes_compile_once():
    slow = """
        run = toolchain._run
        def slowly(*arguments):
            time.sleep(1.0)
            return run(*arguments)
        toolchain._run = slowly
    """
    children = [child(slow) for _ in range(4)]
    answers = [one.communicate(timeout=120) for one in children]
    assert all(error == "" for _, error in answers), answers
    assert [one.returncode for one in children] == [0] * 4
    assert sorted(text.split()[0] for text, _ in answers) == ["False"] + ["True"] * 3
    assert len({text.split()[1] for text, _ in answers}) == 1
    assert len(entries()) == 1 and verify() == ()


def test_many_processes_without_locks():
    """On a file system without locks all processes compile, and every entry that is read is complete."""
    children = [child("cache._acquired = lambda handle, path: False") for _ in range(3)]
    answers = [one.communicate(timeout=120) for one in children]
    assert all(error == "" for _, error in answers), answers
    assert len(entries()) == 1 and verify() == ()
    assert not list(cache.folder().rglob("*.part"))


def test_killed_while_it_writes(compiles):
    dying = """
        write_bytes = Path.write_bytes
        def dies(path, data):
            if ".kernel." not in path.name:
                return write_bytes(path, data)
            with path.open("wb") as file:
                file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        Path.write_bytes = dies
    """
    killed = child(dying)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (part,) = cache.folder().rglob("*.part")
    assert entries() == () and verify() == ()
    start = time.monotonic()
    assert not compile_cached(SOURCE, ARCH).cached, "half an entry is none"
    assert time.monotonic() - start < 30, "the lock of a process that was killed holds nobody up"
    assert compile_cached(SOURCE, ARCH).cached
    assert len(compiles) == 1
    prune()
    assert part.exists(), "it could still be written"
    os.utime(part, (0, 0))
    prune()
    assert not part.exists() and len(entries()) == 1


def test_killed_while_it_compiles(tmp_path):
    flag = tmp_path / "compiling"
    owner = child(f"toolchain._run = lambda *arguments: Path({os.fspath(flag)!r}).touch() or time.sleep(600)")
    try:
        end = time.monotonic() + 60
        while not flag.exists() and time.monotonic() < end:
            time.sleep(0.01)
        waiting = child()
        time.sleep(1.0)
        assert waiting.poll() is None, "it waits for the one that compiles"
    finally:
        owner.kill()
        owner.communicate()
    answer, error = waiting.communicate(timeout=60)
    assert error == "" and answer.split()[0] == "False"
    assert len(entries()) == 1


def test_waits_have_a_limit(monkeypatch, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = cache._place(key())
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(cache, "PATIENCE", 0.2)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not compile_cached(SOURCE, ARCH).cached
        assert path.with_suffix(".lock").exists(), "the lock of another is not removed"
    assert compile_cached(SOURCE, ARCH).cached


def test_waiting_ends_with_the_entry(monkeypatch):
    """A forked child of the owner may keep its lock: the entry shows that the wait has ended."""
    fcntl = pytest.importorskip("fcntl")
    compile_cached(SOURCE, ARCH)
    path = only()
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        handle = cache._opened(path.with_suffix(".lock"))
        start = time.monotonic()
        assert not cache._acquired(handle, path)
        assert time.monotonic() - start < 10
        os.close(handle)


# ---------------------------------------------------------------------------------------------- disks


def test_a_folder_that_cannot_be_made(folder, compiles):
    folder.write_text("a file stands here")
    for _ in range(2):
        with pytest.warns(CacheWarning, match="cannot be written"):
            assert not compile_cached(SOURCE, ARCH).cached
    assert len(compiles) == 2 and entries() == ()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_is_full_or_read_only(number, monkeypatch):
    def refuse(self, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.warns(CacheWarning, match=os.strerror(number)):
        assert compile_cached(SOURCE, ARCH).cubin
    assert not list(cache.folder().rglob("*.part")) and entries() == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(folder):
    compile_cached(SOURCE, ARCH)
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        assert compile_cached(SOURCE, ARCH).cached
        with pytest.warns(CacheWarning, match="cannot be written"):
            assert not compile_cached(FLOAT16, ARCH).cached
    finally:
        for path in folders:
            path.chmod(0o755)


def test_a_warning_appears_once(folder):
    folder.write_text("a file stands here")
    answer, error = child("cache.compile_cached(source, arch); cache.compile_cached(source, arch)").communicate(timeout=60)
    assert answer.startswith("False") and error.count("CacheWarning: ") == 1


# ---------------------------------------------------------------------------------------------- all entries


def aged(text, days):
    """An entry that was last used a given number of days ago."""
    compile_cached(text, ARCH)
    path = cache._place(key(text))
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_entries_describe_themselves(compiles):
    path = aged(SOURCE, 3)
    (entry,) = entries()
    assert (entry.path, entry.kernels, entry.arch, entry.about, entry.problem) == (path, ("store",), ARCH, "// a store", "")
    assert entry.toolchain == max(chain.version for chain in toolchains() if chain.serves(ARCH))
    assert entry.size == path.stat().st_size and entry.seconds > 0
    assert time.time() - entry.used == pytest.approx(3 * 86400, abs=60)
    compile_cached(SOURCE, ARCH)
    assert time.time() - entries()[0].used < 60, "a hit counts as use"
    assert len(compiles) == 1


def test_pruning_keeps_recently_used_entries():
    texts = [SOURCE.replace("1.0f", f"{number}.0f") for number in range(4)]
    paths = [aged(text, 10 * number) for number, text in enumerate(texts)]
    assert [entry.path for entry in entries()] == paths
    assert [entry.path for entry in prune(older_than_days=25)] == [paths[3]]
    two = sum(path.stat().st_size for path in paths[:2])
    assert [entry.path for entry in prune(max_bytes=two)] == [paths[2]]
    assert prune(max_bytes=two, older_than_days=100) == ()
    assert len(prune(everything=True)) == 2 and entries() == () and prune(everything=True) == ()


def test_verifying_finds_and_removes():
    good, bad = aged(SOURCE, 0), aged(FLOAT16, 1)
    assert verify() == ()
    bad.write_bytes(flipped(bad.read_bytes(), bad.stat().st_size - 1))
    assert [(entry.path, "digest" in entry.problem) for entry in verify()] == [(bad, True)]
    assert bad.exists()
    assert [entry.path for entry in verify(fix=True)] == [bad]
    assert not bad.exists() and good.exists() and verify() == ()


def run(capsys, *arguments):
    status = main(["cache", *arguments])
    return status, capsys.readouterr().out


def test_the_command(capsys, folder):
    assert run(capsys) == (0, f"0 entries, 0 bytes in {folder}/kernels\n")
    aged(SOURCE, 2)
    aged(FLOAT16, 40)
    status, text = run(capsys, "show")
    assert (
        status == 0
        and "a store" in text
        and "sm_80" in text
        and "40 d" in text
        and "3 entries" in text
        and "digests and includes of headers" in text
    )
    listing = json.loads(run(capsys, "--json")[1])
    assert listing == json.loads(run(capsys, "show", "--json")[1])
    assert listing["bytes"] == sum(entry["size"] for entry in listing["entries"]) and len(listing["entries"]) == 3
    assert run(capsys, "verify") == (0, "3 entries read, 0 damaged\n")
    assert "removed 1 entry" in run(capsys, "prune", "--older-than", "30d")[1]
    assert run(capsys, "prune", "--max-size", "1M")[1].startswith("removed 0 entries")
    only().write_bytes(only().read_bytes()[:-5])
    status, text = run(capsys, "verify")
    assert status == 1 and os.fspath(only()) in text and "2 entries read, 1 damaged" in text and "--fix" in text
    status, text = run(capsys, "verify", "--json")
    assert status == 1 and len(json.loads(text)["damaged"]) == 1
    assert run(capsys, "verify", "--fix")[0] == 1 and run(capsys, "verify")[0] == 0
    aged(SOURCE, 2)
    assert json.loads(run(capsys, "prune", "--all", "--json")[1])["kept"] == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments", [("prune",), ("prune", "--max-size", "big"), ("prune", "--older-than", "30"), ("empty",), ("show", "--all")]
)
def test_the_command_refuses(arguments, capsys):
    try:
        status = main(["cache", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2 and capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- settings


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path / "mine"))
    assert settings.cache_folder() == USER_CACHE() == tmp_path / "mine"
    monkeypatch.setenv("FIREIRON_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    assert settings.cache_folder() == tmp_path / "fireiron"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert settings.cache_folder() == tmp_path / ".cache" / "fireiron"
    monkeypatch.setenv("FIREIRON_CACHE_DIR", "~/here")
    assert settings.cache_folder() == tmp_path / "here"
    monkeypatch.delenv("FIREIRON_CACHE_DIR")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home directory
    assert settings.cache_folder().is_absolute() and "~" not in os.fspath(settings.cache_folder())


def test_records_and_flags(monkeypatch, tmp_path):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    assert settings.records_path() is None
    monkeypatch.setenv("FIREIRON_RECORDS", os.fspath(tmp_path / "r.jsonl"))
    assert settings.records_path() == tmp_path / "r.jsonl"
    for value, on in (("1", True), ("yes", True), ("ON", True), ("0", False), ("", False), ("off", False)):
        monkeypatch.setenv("FIREIRON_REQUIRE_RECORD", value)
        monkeypatch.setenv("FIREIRON_NO_CACHE", value)
        assert settings.require_record() is on and settings.cache_enabled() is not on
    monkeypatch.setenv("FIREIRON_NO_CACHE", "flase")
    with pytest.raises(ArgumentError, match="FIREIRON_NO_CACHE"):
        settings.cache_enabled()


def test_only_settings_reads_the_environment():
    """Except for variables that decide on colors."""
    import fireiron

    package = Path(fireiron.__file__).parent
    reads = re.compile(r"os\.environ(?!\[[^\]]*\] = )|getenv")
    readers = {os.fspath(path.relative_to(package)) for path in package.rglob("*.py") if reads.search(path.read_text())}
    assert readers == {"settings.py", "cli/output.py"}


def test_a_head_that_does_not_fit_is_damage():
    """Sizes that leave extra bytes, and values of wrong types, with a valid digest."""
    key, parts = "0" * 64, (b".version", b"", b"\x7fELF")
    head = {"key": key, "arch": "sm_80", "toolchain": [13, 0], "seconds": 0.5, "sizes": [8, 0, 4], "kernels": [], "about": "", "created": 0}

    def entry(**changes):
        body = json.dumps({**head, **changes}).encode() + b"\n" + b"".join(parts)
        return cache._FIRST + hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    assert _decoded(entry(), key).cubin == b"\x7fELF"
    for changes in (
        {"sizes": [8, 0, 3]},
        {"sizes": [9, 0, 4]},
        {"sizes": [8, True, 3]},
        {"arch": 80},
        {"toolchain": ["13", "0"]},
        {"seconds": "x"},
    ):
        with pytest.raises(cache.DamagedError, match="its layout is not that of this version"):
            _decoded(entry(**changes), key)
