"""A program is compiled while its checks run, and its machine code is used only if all of them pass."""

import copy
import pickle
import threading
from types import SimpleNamespace

import pytest
from problems import library

from fireiron.errors import LaunchError, SynchronizationError
from fireiron.gpu import cache, early
from fireiron.gpu.kernel import CompiledKernel
from fireiron.gpu.toolchain import Compiled, Toolchain

COMPILED = Compiled("sm_80", (13, 0), "", b"", {}, "", 0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("fireiron.gpu.toolchain.toolchains", lambda: (Toolchain((13, 0), (80, 90), "none"),))


def program():
    module = library("gemm_tt")
    return module.strategy(module.spec(*module.SIZES)).program("sm_80")


def checks_that(monkeypatch, act):
    """The independent checks, replaced by a function of the kernel."""
    monkeypatch.setattr("fireiron.check.safety", act)


def compiles_by(monkeypatch, compiled):
    """The compiler and its cache, replaced by a function of the text."""
    for name in ("prepared", "deferred"):
        monkeypatch.setattr(cache, name, lambda text, arch, **options: SimpleNamespace(run=lambda: compiled(text), waits=False))


def test_checks_run_while_the_compiler_works(monkeypatch):
    is_compiling, is_checking, order = threading.Event(), threading.Event(), []

    def compiled(text):
        is_compiling.set()
        assert is_checking.wait(60)
        order.append("compiled")
        return COMPILED

    def safety(kernel):
        assert is_compiling.wait(60), "the compiler started first"
        order.append("checked")
        is_checking.set()
        return ()

    compiles_by(monkeypatch, compiled)
    checks_that(monkeypatch, safety)
    kernel = CompiledKernel(program()).ready()
    assert kernel.compiled is COMPILED and order == ["checked", "compiled"]


def test_machine_code_of_a_refused_program_is_not_used(monkeypatch):
    from fireiron.check.finding import Finding

    begun = []
    compiles_by(monkeypatch, lambda text: begun.append(text) or COMPILED)
    checks_that(monkeypatch, lambda kernel: (Finding("race", "error", None, "a race"),))
    kernel = CompiledKernel(program())
    with pytest.raises(SynchronizationError, match="a race"):
        kernel.ready()
    kernel.program.early.result()
    assert begun == [kernel.program.unproved_text]
    for use in (lambda: kernel.compiled, lambda: kernel.program.text, lambda: kernel.ir, lambda: kernel.asm, kernel.begin):
        with pytest.raises(SynchronizationError, match="a race"):
            use()


def test_an_error_of_a_check_comes_before_one_of_the_printer(monkeypatch):
    from fireiron.check.finding import Finding

    def emit(*kernels):
        raise AttributeError("of a refused kernel")

    monkeypatch.setattr("fireiron.cuda.emit", emit)
    with pytest.raises(AttributeError, match="of a refused kernel"):
        CompiledKernel(program()).begin()
    checks_that(monkeypatch, lambda kernel: (Finding("race", "error", None, "a race"),))
    with pytest.raises(SynchronizationError, match="a race"):
        CompiledKernel(program()).begin()


def test_a_refusal_of_the_compiler_is_reported_after_the_checks(monkeypatch):
    def compiled(text):
        raise LaunchError("refused")

    compiles_by(monkeypatch, compiled)
    kernel = CompiledKernel(program())
    kernel.begin()
    for _ in range(2):
        with pytest.raises(LaunchError, match="refused"):
            _ = kernel.compiled


def test_a_kernel_with_options_is_compiled_with_them(monkeypatch):
    given = []
    monkeypatch.setattr(cache, "compile_cached", lambda text, arch, *, options, newest: given.append(options) or COMPILED)
    CompiledKernel(program(), ("--use_fast_math",)).ready()
    assert given == [("--use_fast_math",)]


def test_kernels_of_one_program_share_the_compilation(monkeypatch):
    texts = []
    compiles_by(monkeypatch, lambda text: texts.append(text) or COMPILED)
    prepared = program()
    first, second = CompiledKernel(prepared).ready(), CompiledKernel(prepared).ready()
    assert first.compiled is second.compiled and texts == [prepared.text]


def test_preceding_launches_are_compiled_too(monkeypatch):
    texts = []
    compiles_by(monkeypatch, lambda text: texts.append(text) or COMPILED)
    module = library("hopper")
    values = {name: tunable.values[0] for name, tunable in module.strategy.tunables().items()}
    odd = module.strategy.with_(**values)(module.spec(130, 129, 131)).program("sm_90a")
    CompiledKernel(odd).begin()
    for launch in odd.launches:
        launch.program.early.result()
    assert [launch.name for launch in odd.launches] == ["A", "B", ""] and set(texts) == {launch.program.text for launch in odd.launches}


def test_a_copy_of_a_program_has_no_thread(monkeypatch):
    compiles_by(monkeypatch, lambda text: COMPILED)
    compilation = early.EarlyCompilation("", "sm_80", None)
    assert pickle.loads(pickle.dumps(compilation)) is None and copy.deepcopy(compilation) is None


def test_the_unproved_text_is_the_text():
    prepared = program()
    assert prepared.unproved_text == program().text == prepared.text
