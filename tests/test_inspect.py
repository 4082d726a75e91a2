"""Inspection of compiled kernels: texts, resources, occupancy, times; errors if resources overflow."""

import json
import os
import stat
import sys
from pathlib import Path

import attrs
import making
import pytest
from problems import library

from fireiron import *
from fireiron.check.registers import register_limit, register_prediction
from fireiron.check.resources import Measured, occupancy, report
from fireiron.cli import main
from fireiron.gpu import disassembly, toolchain
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir.usage import pipelines, register_usage, shared_usage
from fireiron.lower.passes import PASSES
from fireiron.values.machine import as_architecture

needs_nvrtc = pytest.mark.skipif(not any(chain.serves("sm_90") for chain in toolchain.toolchains()), reason="no NVRTC serves sm_90")
needs_disassembler = pytest.mark.skipif(not disassembly.disassemblers(), reason="no nvdisasm (pip install 'fireiron[check]')")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    headers = toolchain.user_cache()
    monkeypatch.setattr(toolchain, "user_cache", lambda: headers)
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path))


def program(name="hmma_ampere", target="sm_90", size=1024, **tunables):
    module = library(name)
    return module.strategy.with_(**tunables)(module.spec(size, size, size)).program(target)


def compiled(*arguments, **tunables):
    return CompiledKernel(program(*arguments, **tunables))


# ---------------------------------------------------------------------------------------------- texts


@needs_nvrtc
@needs_disassembler
def test_the_texts_of_a_kernel():
    kernel = compiled("sgemm")
    assert "__global__" in kernel.asm["cuda"] and ".visible .entry matmul" in kernel.asm["ptx"] and kernel.asm["cubin"][:4] == b"\x7fELF"
    text = kernel.asm["sass"]
    assert text.count("FFMA") >= 2048 and "matmul:" in text and ".text.matmul" in text
    assert kernel.asm["sass"] is text, "made once"
    assert os.fspath(Path(disassembly.tempfile.gettempdir())) not in text, "no path of this machine"
    with pytest.raises(ArgumentError, match="no such form") as caught:
        kernel.asm["llvm"]
    assert caught.value.legal == ("cuda", "ptx", "cubin", "sass")


@needs_nvrtc
@needs_disassembler
def test_tensor_cores_show_in_sass():
    text = compiled().asm["sass"]
    assert "HMMA.16816.F32" in text and "LDSM" in text and "LDGSTS" in text


@needs_nvrtc
@needs_disassembler
def test_the_command_writes_every_text(capsys, tmp_path):
    pytest.importorskip("cattrs")  # the store writes the files
    for form, token in (("cuda", "__global__"), ("ptx", ".target sm_80"), ("sass", "FFMA")):
        assert main(["emit", "listing_2", "--arch", "sm_80", "--form", form]) == 0
        printed = capsys.readouterr().out
        assert token in printed
        file = tmp_path / f"kernel.{form}"
        assert main(["emit", "listing_2", "--arch", "sm_80", "--form", form, "-o", os.fspath(file)]) == 0
        assert file.read_text().rstrip("\n") == printed.rstrip("\n")
        assert main(["emit", "listing_2", "--arch", "sm_80", "--form", form, "-o", os.fspath(file)]) == 2, "not overwritten"
        assert main(["emit", "listing_2", "--arch", "sm_80", "--form", form, "-o", os.fspath(file), "--force"]) == 0
    capsys.readouterr()


def tool(folder, name, script):
    """A fake nvdisasm or cuobjdump."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with no tool but those that a test installs."""
    monkeypatch.setenv("PATH", os.fspath(tmp_path / "path"))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "_TOOLKITS", tmp_path / "toolkits")
    monkeypatch.setattr(disassembly, "wheel_files", lambda wheel: ())
    monkeypatch.setattr(disassembly.importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_no_disassembler(bare):
    with pytest.raises(LaunchError, match="nvdisasm or cuobjdump, and neither is installed") as caught:
        disassembly.sass(b"")
    assert "pip install nvidia-cuda-nvdisasm" in str(caught.value)


def test_where_disassemblers_are_found(bare, monkeypatch):
    places = [tool(bare / "path", "nvdisasm", ""), tool(bare / "home" / "bin", "nvdisasm", "")]
    monkeypatch.setenv("CUDA_HOME", os.fspath(bare / "home"))
    places += [tool(bare / "toolkits" / name / "bin", "nvdisasm", "") for name in ("cuda-13.0", "cuda-12.8")]
    wheel, plain = tool(bare / "wheel", "nvdisasm", ""), bare / "wheel" / "nvdisasm.txt"
    monkeypatch.setattr(disassembly, "wheel_files", lambda name: (plain, wheel) if name == "nvidia-cuda-nvdisasm" else ())
    triton = tool(bare / "triton" / "backends" / "nvidia" / "bin", "nvdisasm", "")
    spec = attrs.make_class("Spec", {"submodule_search_locations": attrs.field(default=[os.fspath(bare / "triton")])})()
    monkeypatch.setattr(disassembly.importlib.util, "find_spec", lambda name: spec)
    last = tool(bare / "path", "cuobjdump", "")
    assert disassembly.disassemblers() == (*places, wheel, triton, last)
    places[0].chmod(0o644)
    assert disassembly.disassemblers()[0] == places[1], "what cannot be executed does not count"


def test_the_next_disassembler_is_tried(bare):
    tool(bare / "path", "nvdisasm", "sys.exit('nvdisasm fatal: this architecture is deprecated')")
    with pytest.raises(LaunchError, match="cannot be disassembled") as caught:
        disassembly.sass(b"code")
    assert "architecture is deprecated" in str(caught.value) and os.fspath(bare / "path" / "nvdisasm") in str(caught.value)
    tool(bare / "path", "cuobjdump", "print(sys.argv[1:], open(sys.argv[2], 'rb').read())")
    assert disassembly.sass(b"code") == "['--dump-sass', 'kernel.cubin'] b'code'\n"


def test_a_disassembler_that_hangs_or_has_no_output(bare, monkeypatch):
    monkeypatch.setattr(disassembly, "TIMEOUT", 0.5)
    tool(bare / "path", "nvdisasm", "time.sleep(60)")
    tool(bare / "path", "cuobjdump", "")
    with pytest.raises(LaunchError) as caught:
        disassembly.sass(b"code")
    assert "no answer within" in str(caught.value) and "exit status 0, and no message" in str(caught.value)


# ---------------------------------------------------------------------------------------------- resources


@needs_nvrtc
def test_resources_count_dynamic_shared_memory():
    large, small = compiled(), compiled("listing_2")
    assert large.resources.shared_bytes == large.resources.dynamic_shared_bytes == large.ir.shared_bytes == 196608
    assert small.resources.shared_bytes == small.ir.shared_bytes == 8192 and small.resources.dynamic_shared_bytes == 0
    assert small.resources.registers == small.compiled.resources["matmul"].registers


@needs_nvrtc
def test_times_of_all_stages():
    kernel = compiled("listing_2")
    assert list(kernel.seconds) == ["tree", "walk", *(name for name, _ in PASSES), "verify", "check", "print", "nvrtc"]
    assert all(value >= 0 for value in kernel.seconds.values())
    assert kernel.seconds["nvrtc"] >= kernel.compiled.seconds > 0
    again = compiled("listing_2")
    assert again.compiled.cached
    assert again.compiled.seconds == kernel.compiled.seconds


def test_times_of_a_search():
    searched = program()
    _ = searched.ir
    assert next(iter(searched.seconds)) == "tunables" and "print" not in searched.seconds


def test_show_prints_times(capsys):
    assert main(["show", "listing_2", "--times"]) == 0
    text = capsys.readouterr().out
    assert "synchronize" in text and "total" in text
    assert main(["show", "listing_2", "--times", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds"]["print"] > 0


# ---------------------------------------------------------------------------------------------- occupancy


def shaped(threads, shared=0, target="sm_90"):
    """A kernel with `threads` threads and `shared` bytes."""
    return attrs.evolve(program("listing_2", size=128).ir, threads=threads, shared_bytes=shared, architecture=as_architecture(target))


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "target", "blocks", "limit"),
    [
        (256, 32, 0, "sm_90", 8, "threads"),
        (256, 33, 0, "sm_90", 6, "registers"),  # 40 x 32 = 1280 per warp: 12 warps in each of four partitions of 16384
        (64, 168, 0, "sm_90", 6, "registers"),  # 5376 per warp: 3 in a partition, 12 in total
        (96, 168, 0, "sm_90", 4, "registers"),
        (32, 24, 0, "sm_90", 32, "blocks"),
        (32, 24, 0, "sm_86", 16, "blocks"),
        (128, 32, 48 * 1024, "sm_90", 4, "shared memory"),  # 228 KiB, of which each block uses 49 KiB
        (128, 32, 227 * 1024, "sm_90", 1, "shared memory"),
        (128, 32, 113 * 1024, "sm_90", 2, "shared memory"),
        (128, 32, 113 * 1024 + 1, "sm_90", 1, "shared memory"),  # with the reserved 1 KiB, more than half of 228 KiB
        (128, 32, 32 * 1024, "sm_70", 3, "shared memory"),  # no shared memory is reserved
        (1024, 64, 0, "sm_90", 1, "registers"),
        (1024, 65, 0, "sm_90", 0, "registers"),
        (1024, 32, 0, "sm_90", 2, "threads"),
        (1024, 32, 0, "sm_86", 1, "threads"),
        (33, 16, 0, "sm_90", 32, "threads"),
        (800, 80, 0, "sm_90", 0, "registers"),  # 2560 per warp: 6 warps in a partition, and 25 warps would need 7 in one
        (160, 100, 0, "sm_60", 3, "registers"),  # two partitions: 3328 per warp, 9 in each
    ],
)
def test_occupancy(threads, registers, shared, target, blocks, limit):
    """Numbers of NVIDIA's occupancy calculator."""
    result = occupancy(shaped(threads, shared, target), registers)
    assert (result.blocks, result.limited_by) == (blocks, limit)
    assert result.warps == blocks * -(-threads // 32)
    assert result.share == result.warps / (as_architecture(target).threads_per_sm // 32)
    assert min(result.limits.values()) == blocks


@needs_nvrtc
def test_the_occupancy_of_a_kernel_is_that_of_its_registers():
    kernel = compiled("listing_2")
    assert kernel.occupancy == occupancy(kernel.ir, kernel.resources.registers)
    assert kernel.occupancy.blocks != occupancy(kernel.ir, 255).blocks


def test_the_limit_of_registers():
    assert register_limit(shaped(256)) == 255
    assert register_limit(shaped(1024)) == 64
    assert register_limit(making.evolved(shaped(256), resident=2)) == 128
    assert register_limit(making.evolved(shaped(128), resident=3)) == 168


# ---------------------------------------------------------------------------------------------- reports and messages


def test_usage_by_buffer():
    kernel = program().ir
    shared = {one.name: one for one in shared_usage(kernel.buffers, pipelines(kernel))}
    assert {name: one.amount for name, one in shared.items()} == {"a_sh": 65536, "b_sh": 131072, "store_c_sh": 67584}
    assert shared["a_sh"].what == "float16 128 x 64, 4 stages" and "hmma_ampere.py:" in shared["a_sh"].origin
    (pipeline,) = pipelines(kernel)
    assert (pipeline.stages, pipeline.each, pipeline.buffers) == (4, 49152, ("a_sh", "b_sh"))
    arrays = {one.name: one.amount for one in register_usage(kernel)}
    assert arrays == {"c_rf": 128, "a_rf": 32, "b_rf": 32}
    assert register_prediction(kernel).arrays == 192


@needs_nvrtc
def test_the_report_of_a_kernel():
    kernel = compiled()
    text = kernel.report()
    assert f"registers: {kernel.resources.registers} per thread, of 255 (about 232 expected)" in text
    for part in ("c_rf", "128 registers", "the rest", "spills: none", "196608 of 232448 bytes", "a stage of a_sh, b_sh takes 49152 bytes"):
        assert part in text
    assert "1 block per SM" in text and "limited by registers" in text and "strategies/hmma_ampere.py:" in text
    assert report(kernel.ir) != text and "(estimated)" in report(kernel.ir)


def test_the_report_of_spills():
    text = report(program("listing_2", size=128).ir, Measured(255, 1064, 1376, 632))
    assert "spills: 1064 bytes per thread stored, 1376 loaded (632 bytes of local memory)" in text and "smaller tiles" in text
    less = report(program().ir, Measured(100, 0, 0, 64))
    assert "not all arrays are live at the same time" in less and "64 bytes of arrays in local memory" in less


def test_check_prints_the_prediction(capsys):
    assert main(["check", "hmma_ampere"]) == 0
    text = capsys.readouterr().out
    assert "registers: about 232 per thread, of 255" in text and "a stage of a_sh, b_sh takes 49152 bytes" in text


LARGE = {"bm": 256, "bn": 128, "bk": 64, "wm": 64, "wn": 64}


def test_shared_memory_overflows():
    """The error lists the bytes of each buffer with its line, the legal total, and the number of stages that fit."""
    with pytest.raises(ResourceError) as caught:
        _ = program(**LARGE, stages=5).lowered
    error = caught.value
    lines = str(error).splitlines()
    assert lines[0] == "245760 bytes of shared memory in a block, but sm_90 has 232448: a_sh 163840, b_sh 81920, store_c_sh 69632"
    assert lines[1].split() == ["a_sh", "163840", "bytes", "float16", "256", "x", "64,", "5", "stages", error.at]
    assert error.at.startswith("strategies/hmma_ampere.py:") and error.legal == "at most 232448 bytes"
    assert error.hint.startswith("pipeline(4), which takes 196608 (each of the 5 stages of a_sh, b_sh takes 49152 bytes)")
    assert program(**LARGE, stages=4).lowered.shared_bytes == 196608, "the advice holds"


def test_shared_memory_overflows_with_any_number_of_stages():
    with pytest.raises(ResourceError) as caught:
        too_large()
    assert "pipeline(" not in caught.value.hint and "smaller tiles" in caught.value.hint


def too_large():
    """Two stages; not even one fits."""
    strategy = (
        MatMul.tile(128, 128)
        .to(Block)
        .split(512)
        .pipeline(2)
        .load(A, SH, Move.coalesced_copy(4).done())
        .tile(8, 8)
        .to(Thread)
        .tile(1, 1)
        .split(1)
        .done()
    )
    return strategy(MatMul(1024, 1024, 1024)(GL, GL, GL)(Kernel)).program("sm_90").lowered


def test_options_of_the_compiler():
    """They are passed to NVRTC, and are part of the key of the cache."""
    import pickle

    from fireiron.strategies import gemm_nn

    strategy = gemm_nn.strategy(gemm_nn.spec(128, 128, 128))
    plain, lines = strategy.compile("sm_80"), strategy.compile("sm_80", ("--generate-line-info",))
    assert ".loc" in lines.asm["ptx"] and ".loc" not in plain.asm["ptx"]
    assert pickle.loads(pickle.dumps(lines)).options == lines.options
    with pytest.raises(ArgumentError, match="options must be a tuple of texts"):
        strategy.compile("sm_80", "--use_fast_math")
    with pytest.raises(LaunchError, match="unrecognized|--nonsense"):
        _ = strategy.compile("sm_80", ("--nonsense",)).compiled
