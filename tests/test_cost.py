"""The cost model: exact counts, monotonicity, every strategy on every GPU, and the command."""

import functools
import json
import math
import os
import re

import attrs
import numpy as np
import pytest
import scripts
from counted import python_calls
from problems import NAMES, library, target_of

from fireiron import *
from fireiron import cli, ir
from fireiron.check import AccessTrace
from fireiron.check.resources import check_resources, report
from fireiron.cost import CONSTANTS, predict
from fireiron.cost.expected import with_expected_barriers
from fireiron.cost.functions import INSTRUCTIONS, delay_us, instructions, instructions_us
from fireiron.cost.gpus import GPUS, Gpu, as_gpu, of_architecture
from fireiron.cost.model import model, occupancy_on
from fireiron.cost.work import Work
from fireiron.gpu.kernel import target_for
from fireiron.ir import Barrier, Comment, For, Let, statements
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.strategies import hopper
from fireiron.values.expr import constant
from fireiron.values.machine import ARCHITECTURES

H200 = as_gpu("H200")
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
COPY = Move.tile(1, 1).to(Thread).layout(ColMajor).done()


def tiled(copy_a=COPY, copy_b=COPY):
    """64 x 64 tiles, 8 of k at a time, 8 x 4 elements for each of 128 threads, accumulators in registers."""
    inner = Init.tile(8, 4).to(Thread).tile(1, 1).unroll().done()
    store = Move.tile(8, 4).to(Thread).tile(4, 1).unroll().done()
    return (
        MatMul.tile(64, 64)
        .to(Block)
        .epilog(RF, inner, store)
        .split(8)
        .load(A, SH, copy_a)
        .load(B, SH, copy_b)
        .tile(8, 4)
        .to(Thread)
        .split(1)
        .tile(1, 1)
        .unroll()
        .done()
    )


def lowered(strategy, *sizes, arch=None, **options):
    return strategy(MatMul(*sizes, **options)(GL, GL, GL)(Kernel)).program(arch).lowered


def small(sizes=(64, 64, 64), **values):
    """The library's strategy for small matrices: 32 x 32 float16 tiles, 64 of k, two warps and four stages by default."""
    module = library("small")
    values = {"bm": 32, "bn": 32, "bk": 64, "wm": 16, "wn": 32, "stages": 4, "lookahead": 2, **values}
    return module.strategy.with_(**values)(module.spec(*sizes)).program("sm_90").lowered


class TestCounts:
    """Exact numbers, computed by hand."""

    def test_multiply_adds(self):
        work = Work(lowered(tiled(), 128, 192, 40))
        assert work.grid == 2 * 3 and work.warps == 4
        block = 64 * 64 * 40
        assert work.amounts.flops == 2 * block
        assert work.amounts.fma == {"float32": block / 32}
        assert work.amounts.tensor == {} and work.amounts.mma == 0
        assert work.useful == 2 * 128 * 192 * 40

    def test_bytes_of_tiles(self):
        work = Work(lowered(tiled(), 128, 192, 40))
        # 64 x 8 floats of A and 8 x 64 of B, five times; 64 adjacent elements of A are 8 sectors, 8 of B one. A store is half a sector.
        assert work.amounts.l2_read == (64 * 8 + 8 * 64) * 4 * 5
        assert work.amounts.l2_written == 2 * 64 * 64 * 4
        assert work.amounts.sectors == work.amounts.l2_read / 32 + work.amounts.l2_written / 32

    def test_operations_of_overhanging_tiles_are_executed(self):
        prediction = predict(lowered(tiled(), 65, 65, 9))
        assert prediction.flops == 4 * 2 * 64 * 64 * 16 and prediction.useful == 2 * 65 * 65 * 9

    def test_phases(self):
        work = Work(lowered(tiled(), 64, 64, 40))
        assert [(phase.name, phase.stores) for phase in work.phases] == [("before", False), ("loop over k", False), ("store", True)]
        before, loop, store = (phase.amounts for phase in work.phases)
        assert before.instructions == 4 * 32  # 32 elements set by each of four warps
        assert (loop.barriers, store.barriers) == (10, 0)
        assert before.flops == store.flops == 0 and loop.flops == 2 * 64 * 64 * 40
        assert store.l2_written == 2 * 64 * 64 * 4 and loop.l2_written == before.l2_written == 0

    def test_matrix_instructions(self):
        work = Work(small((64, 64, 256)))
        assert work.grid == 4
        assert work.amounts.mma == 32 * 32 * 256 / (16 * 8 * 16)
        assert work.amounts.tensor == {"float16": 2 * 32 * 32 * 256} and work.amounts.fma == {}

    def test_wavefronts_of_matrix_loads(self):
        """A 16 x 16 float16 matrix has 512 bytes, four wavefronts; a warp loads one of A and two of B for 16 of k."""
        work = Work(small((32, 32, 256)))
        copied = 2 * 32 * 256 * 2 / 128
        assert work.amounts.conflicts == 0
        stored = work.phases[-1].amounts.shared
        assert work.amounts.shared - stored == copied + 2 * (256 / 16) * (1 + 2) * 4

    def test_prefetched_bytes_are_counted_once(self):
        """The prologue copies the bytes that the last iterations do not, so each byte is copied once."""
        for k in (64, 128, 256, 512):
            assert Work(small((32, 32, k))).amounts.l2_read == 2 * 32 * k * 2

    def test_vectors_are_one_instruction(self):
        wide = Work(lowered(tiled(Move.tile(4, 1).to(Thread).layout(ColMajor).done()), 128, 128, 64))
        narrow = Work(lowered(tiled(), 128, 128, 64))
        # A: 512 elements an iteration by 4 warps: 16 loads and 16 stores, or 4 and 4.
        assert narrow.amounts.memory - wide.amounts.memory == 8 * (32 - 8)
        assert narrow.amounts.l2_read == wide.amounts.l2_read

    def test_bank_conflicts(self):
        """Eight adjacent elements of k in a column-major tile of 64 rows are in one bank."""
        free = Work(lowered(tiled(), 64, 64, 64))
        across = Work(lowered(tiled(Move.tile(1, 1).to(Thread).layout(RowMajor).done()), 64, 64, 64))
        assert across.amounts.conflicts > free.amounts.conflicts

    def test_uncoalesced_loads(self):
        """Adjacent threads along k: a request of eight columns with four adjacent elements needs eight sectors; along m four."""
        along = Work(lowered(tiled(), 64, 64, 64))
        across = Work(lowered(tiled(Move.tile(1, 1).to(Thread).layout(RowMajor).done()), 64, 64, 64))
        assert across.amounts.sectors - along.amounts.sectors == 8 * 16 * (8 - 4)
        assert across.amounts.l2_read == along.amounts.l2_read, "L1 caches the sectors for the other requests of the block"

    def test_accumulators_in_global_memory_are_read_and_written(self):
        plain = MatMul.tile(64, 64).to(Block).tile(8, 4).to(Thread).split(1).tile(1, 1).unroll().done()
        amounts = Work(lowered(plain, 64, 64, 8)).amounts
        assert amounts.l2_written >= 8 * 64 * 64 * 4 and amounts.l2_read >= amounts.l2_written

    def test_reductions_and_copies(self):
        copy = Move.tile(32, 32).to(Block).tile(1, 1).to(Thread).layout(ColMajor).done()
        prediction = predict(copy(Move(256, 128)(GL, GL)(Kernel)).program("sm_90"))
        assert prediction.flops == prediction.useful == 0 and prediction.tflops == 0
        assert prediction.bytes["L2"] == 2 * 256 * 128 * 4 and prediction.bytes["DRAM"] == 2 * 256 * 128 * 4

    def test_wmma_counts_as_matrix_instructions(self):
        module = library("wmma_optimized")
        work = Work(module.strategy(module.spec(256, 256, 256)).program("sm_80").lowered)
        assert work.amounts.tensor == {"float16": 2 * 256**3 / work.grid}
        assert work.amounts.mma == 256**3 / work.grid / (16 * 8 * 16)


class TestOccupancyAndWaves:
    def test_waves(self):
        kernel = lowered(tiled(), 64 * 40, 64 * 40, 64)
        occupancy, _ = occupancy_on(kernel, as_gpu("H200").architecture and kernel.architecture)
        prediction = predict(kernel, H200)
        assert prediction.blocks == 1600 and prediction.occupancy.blocks == occupancy.blocks
        assert prediction.waves == math.ceil(1600 / (132 * occupancy.blocks))

    def test_filled(self):
        prediction = predict(lowered(tiled(), 64 * 4, 64 * 3, 8 * 500), H200)
        assert prediction.blocks == 12 and prediction.waves == 1
        assert prediction.filled == pytest.approx(12 / 132)

    def test_a_second_wave_of_one_block_costs_a_wave(self):
        big = {"bm": 128, "bn": 128, "wm": 64, "wn": 64, "stages": 6}
        first, second = (predict(small((128 * 12, 128 * columns, 512), **big)) for columns in (11, 12))
        assert (first.waves, second.waves) == (1, 2)
        assert second.us > 1.5 * (first.us - CONSTANTS.launch_us)

    def test_missing_registers_spill(self):
        kernel = library("gemm_nn")
        fits, spills = (predict(kernel.strategy.with_(bm=b, bn=b)(kernel.spec(2048, 2048, 2048)).program("sm_90")) for b in (128, 256))
        assert fits.registers.spilled == 0 < spills.registers.spilled
        assert spills.us > 3 * fits.us and "spill" in str(spills)


class TestMonotony:
    """A worse kernel has a higher predicted time."""

    def test_bank_conflicts(self):
        strategy = library("hmma_ampere").strategy.with_(bm=128, bn=128, bk=64, wm=64, wn=64, stages=4)
        unswizzled = strategy.at(Load, A).unrefine(SwizzleStorage).at(Load, B).unrefine(SwizzleStorage)
        good, bad = (predict(variant(library("hmma_ampere").spec(2048, 2048, 2048))) for variant in (strategy, unswizzled))
        assert good.instructions["bank conflicts"] == 0 < bad.instructions["bank conflicts"]
        assert bad.us > 1.2 * good.us and bad.bottleneck == "shared memory bandwidth"

    def test_coalescing(self):
        good = predict(lowered(tiled(), 2048, 2048, 2048))
        bad = predict(lowered(tiled(Move.tile(1, 1).to(Thread).layout(RowMajor).done()), 2048, 2048, 2048))
        assert bad.us > good.us and bad.bytes["L1"] > good.bytes["L1"]

    @pytest.mark.parametrize("dim", range(3))
    def test_larger_problems(self, dim):
        before = 0.0
        for factor in (1, 2, 4, 8):
            sizes = [512, 512, 512]
            sizes[dim] *= factor
            us = predict(small(sizes)).us
            assert us >= before
            before = us

    def test_stages_hide_copies(self):
        times = [predict(small((64, 64, 4096), stages=stages)).us for stages in (2, 3, 4, 6)]
        assert times == sorted(times, reverse=True) and times[0] > 1.5 * times[-1]
        assert predict(small((64, 64, 4096), stages=2)).bottleneck == "latency of copies"

    def test_a_better_gpu_is_faster(self):
        kernel = small((2048, 2048, 2048), bm=128, bn=128, wm=64, wn=64)
        base = predict(kernel, H200).us
        assert predict(kernel, attrs.evolve(H200, clock_mhz=990)).us > 1.5 * base
        assert predict(kernel, attrs.evolve(H200, multiprocessors=66)).us > 1.3 * base
        assert predict(kernel, attrs.evolve(H200, memory_gb_s=48)).us > 2 * base

    def test_grouped_tile_order_reduces_dram_traffic(self):
        """If L2 cannot hold a whole matrix, concurrent blocks should access few tiles."""
        tight = attrs.evolve(H200, l2_bytes=1 << 20)
        strategy = library("hmma_ampere").strategy.with_(bm=128, bn=256, bk=64, wm=64, wn=64, stages=4)
        spec = library("hmma_ampere").spec(8192, 8192, 1024)
        plain = strategy.at(Tile).unrefine(Rasterize)
        others = (plain.at(Tile).refine(Rasterize(8, 1)), plain.at(Tile).refine(Rasterize(1, 2)))
        dram_bytes = [predict(variant(spec), tight).bytes["DRAM"] for variant in (plain, strategy, *others)]
        assert max(dram_bytes[1:]) < dram_bytes[0], "grouped along m, along n and in Hilbert order"


class TestBottlenecks:
    def test_names(self):
        assert (
            predict(
                library("hmma_ampere").strategy.with_(bm=128, bn=256, bk=64, wm=64, wn=64, stages=4)(
                    library("hmma_ampere").spec(8192, 8192, 8192)
                )
            ).bottleneck
            == "tensor cores"
        )
        copy = Move.tile(64, 32).to(Block).tile(4, 1).to(Thread).layout(ColMajor).done()
        assert predict(copy(Move(16384, 16384)(GL, GL)(Kernel)).program("sm_90")).bottleneck == "DRAM"
        assert predict(lowered(tiled(), 64, 64, 8)).parts["launch"] == CONSTANTS.launch_us

    def test_tail(self):
        prediction = predict(lowered(tiled(), 64 * 6, 64 * 6, 64), attrs.evolve(H200, memory_gb_s=1e6))
        assert prediction.parts["tail (waves)"] == pytest.approx((1 - 36 / 132) * (prediction.us - CONSTANTS.launch_us))

    def test_time_is_at_least_each_bound(self):
        for name in ("hmma_ampere", "sgemm", "small", "naive", "wmma_optimized"):
            prediction = predict(library(name).strategy(library(name).spec(*library(name).SIZES)).program("sm_90"))
            assert max(value for part, value in prediction.parts.items() if part not in ("tail (waves)", "launch")) <= prediction.us
            assert prediction.bottleneck in prediction.parts
            assert prediction.hint

    def test_text(self):
        text = str(predict(small((256, 256, 256))))
        for part in ("bottleneck: latency of copies", "loop over k", "64, ", "on one H200 SXM", "TFLOP/s", "may help"):
            assert part in text, part

    def test_json(self):
        value = json.loads(json.dumps(predict(small((256, 256, 256))).as_dict()))
        assert value["gpu"] == "H200 SXM" and value["us"] > 1 and value["phases"][1]["name"] == "loop over k"


class TestSymbolicSizes:
    def test_same_as_known_sizes(self):
        M, N, K = sym("M", multiple_of=64), sym("N", multiple_of=64), sym("K", multiple_of=8)
        symbolic = predict(lowered(tiled(), M, N, K), sizes={"M": 1024, "N": 512, "K": 256})
        known = predict(lowered(tiled(), 1024, 512, 256))
        for name in ("flops", "useful", "blocks", "waves"):
            assert getattr(symbolic, name) == getattr(known, name)
        assert symbolic.bytes["L2"] == known.bytes["L2"]
        assert symbolic.us == pytest.approx(known.us, rel=0.1)
        assert symbolic.sizes == {"M": 1024, "N": 512, "K": 256}

    def test_sizes_are_checked(self):
        kernel = lowered(tiled(), sym("M", multiple_of=64), 64, 64)
        with pytest.raises(ArgumentError, match="the time depends on M, which is known only at run time") as error:
            predict(kernel)
        assert "sizes=" in str(error.value)
        for wrong in ({"M": 65}, {"M": 0}, {"M": 64.0}, {"M": True}):
            with pytest.raises(ArgumentError, match="multiple of 64"):
                predict(kernel, sizes=wrong)
        with pytest.raises(ArgumentError, match="no such size"):
            predict(kernel, sizes={"M": 64, "Q": 1})

    def test_guards_cost_instructions(self):
        sizes = {"M": 1000, "N": 1000, "K": 1000}
        guarded = predict(lowered(tiled(), sym("M"), sym("N"), sym("K")), sizes=sizes)
        free = predict(lowered(tiled(), 1024, 1024, 1000))
        assert guarded.instructions["all"] > free.instructions["all"]


class TestArguments:
    def test_programs_strategies_kernels(self):
        module = library("small")
        bound = module.strategy(module.spec(64, 64, 64))
        program = bound.program("sm_80")
        assert predict(bound.program("sm_80")).us == predict(program.lowered).us == predict(bound.compile("sm_80")).us
        assert predict(program).gpu.name == "A100 SXM" and predict(bound).gpu.name == "H200 SXM"
        assert predict(program, "NVIDIA H200").gpu == H200

    @pytest.mark.parametrize("value", [None, 3, "small", MatMul(8, 8, 8)])
    def test_refused(self, value):
        with pytest.raises(ArgumentError, match="a program, a compiled kernel"):
            predict(value)

    @pytest.mark.parametrize("gpu", GPUS, ids=str)
    def test_target_equals_the_compiled_target(self, gpu):
        """`predict`, `fireiron cost`, `compile` and `matmul` use the same target for a GPU."""
        assert gpu.architecture == target_for(gpu.architecture.rstrip("a"))

    def test_warpgroup_strategies_are_predicted_for_sm_90a(self):
        bound = hopper.strategy(hopper.spec(*hopper.SIZES))
        assert predict(bound, "H200").us == predict(bound.program("sm_90a")).us

    def test_an_older_gpu_is_refused(self):
        with pytest.raises(ArgumentError, match="T4 does not run sm_90"):
            predict(small(), "T4")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_on_every_architecture(name):
    """The prediction is finite and positive for every legal strategy; only lowering may reject a strategy."""
    module = library(name)
    served = 0
    own = target_of(name)  # other targets reject it: testing one is enough
    targets = [target for target in ARCHITECTURES if own is None or target.name in (own, "sm_80")]
    if own is None and SCALE == 1:  # the other strategies test the other targets
        targets = targets[NAMES.index(name) % 2 :: 2]
    for architecture in targets:
        try:
            program = module.strategy(module.spec(*module.SIZES)).program(architecture)
            kernel = program.lowered
        except FireironError:
            continue
        served += 1
        prediction = predict(program)
        assert math.isfinite(prediction.us) and prediction.us >= CONSTANTS.launch_us
        assert prediction.bottleneck in prediction.parts and all(math.isfinite(value) for value in prediction.parts.values())
        assert prediction.useful == 2 * math.prod(constant(size) for size in program.spec.sizes)
        assert prediction.flops >= prediction.useful
        assert str(prediction) and kernel.architecture == architecture
        assert len({phase.name for phase in prediction.phases}) == len(prediction.phases)
    assert served


def test_micro_kernels_and_local_arrays():
    """listing_1: arrays too large for registers, and a hand-written dot product."""
    module = library("listing_1")
    prediction = predict(module.strategy(module.spec(*module.SIZES)))
    assert prediction.flops == prediction.useful and prediction.registers.spilled > 255


def test_work_of_a_prediction_is_bounded():
    """Without the IR about ten milliseconds after the first prediction of a process, measured as Python calls: about 18,000."""
    module = library("hmma_ampere")
    kernel = module.strategy.with_(bm=128, bn=256, bk=64, wm=64, wn=64, stages=4)(module.spec(4096, 4096, 4096)).program("sm_90").lowered
    predict(kernel)
    assert python_calls(lambda: predict(kernel)) < 30_000


class TestGpus:
    @pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
    def test_every_architecture_has_a_gpu(self, architecture):
        assert of_architecture(architecture).architecture.rstrip("a") == architecture.name.rstrip("a")

    @pytest.mark.parametrize("gpu", GPUS, ids=str)
    def test_by_name(self, gpu):
        assert as_gpu(gpu) is as_gpu(gpu.name) is as_gpu(f"nvidia {gpu.name.upper()}") is gpu
        assert gpu.sources and set(gpu.guessed) <= {field.name for field in attrs.fields(Gpu)}
        assert hash(gpu) == hash(attrs.evolve(gpu))

    def test_names_of_drivers(self):
        for text, name in (
            ("NVIDIA H200", "H200 SXM"),
            ("NVIDIA H100 80GB HBM3", "H100 SXM"),
            ("NVIDIA A100-SXM4-40GB", "A100 SXM"),
            ("Tesla T4", "T4"),
            ("Tesla V100-SXM2-16GB", "V100 SXM2"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA GeForce GTX 750 Ti", "GTX 750 Ti"),
        ):
            assert as_gpu(text).name == name

    @pytest.mark.parametrize("value", ["H20", "RTX 4080", "", "  ", None, 90, "nvidia"])
    def test_unknown(self, value):
        with pytest.raises(ArgumentError, match="unknown GPU"):
            as_gpu(value)

    def test_peaks_equal_the_data_sheets(self):
        """TFLOP/s of dense float16, from the data sheets that the sources name."""
        for name, peak in (("A100", 312), ("V100", 125), ("T4", 65), ("L40S", 362), ("RTX 4090", 165), ("RTX 3090", 71)):
            gpu = as_gpu(name)
            assert gpu.multiprocessors * gpu.clock_mhz * gpu.tensor_rate("float16") / 1e6 == pytest.approx(peak, rel=0.03), name
        for name, peak in (("H200", 67), ("A100", 19.5), ("RTX 4090", 82.6), ("V100", 15.7), ("GTX 750 Ti", 1.39)):
            gpu = as_gpu(name)
            assert 2 * gpu.multiprocessors * gpu.clock_mhz * gpu.lanes / 1e6 == pytest.approx(peak, rel=0.03), name


class TestCommand:
    def test_text(self, capsys):
        assert cli.main(["cost", "small", "-M", "256", "-N", "256", "-K", "256", "--gpu", "A100"]) == 0
        text = capsys.readouterr().out
        assert "A100 SXM" in text and "bottleneck:" in text and "tunables" in text

    def test_json_and_sizes(self, capsys):
        assert (
            cli.main(
                [
                    "cost",
                    "gemm_nn",
                    "-M",
                    "M:128",
                    "-N",
                    "N:128",
                    "-K",
                    "K:8",
                    "--size",
                    "M=1024",
                    "--size",
                    "N=1024",
                    "--size",
                    "K=512",
                    "--json",
                ]
            )
            == 0
        )
        value = json.loads(capsys.readouterr().out)
        assert value["useful"] == 2 * 1024 * 1024 * 512 and value["sizes"] == {"M": 1024, "N": 1024, "K": 512}

    def test_mistakes(self, capsys):
        assert cli.main(["cost", "small", "--gpu", "H20"]) == 2
        assert cli.main(["cost", "gemm_nn", "-M", "M"]) == 2
        assert "known only at run time" in capsys.readouterr().err


def script(name="cost_model"):
    return scripts.loaded(f"perf/{name}.py")


class TestScript:
    def test_rank_correlation(self):
        spearman = script().spearman
        assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
        assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
        assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)
        assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
        assert math.isnan(spearman([1, 1], [1, 2]))
        assert list(script().ranks([5, 1, 5, 0])) == [2.5, 1, 2.5, 0]

    def test_regret(self):
        regret = script().regret
        measured, guessed = [10.0, 12.0, 15.0], [3.0, 1.0, 2.0]
        assert [regret(measured, guessed, count) for count in (1, 2, 3)] == pytest.approx([1.2, 1.2, 1.0])

    def test_runs(self, tmp_path, capsys, monkeypatch):
        """A custom sweep: measured times proportional to the predictions correlate perfectly."""
        rows = [{"strategy": "cublas", "values": {}, "M": 64, "N": 64, "K": 64, "us": 2.0}]
        for k in (64, 128):
            for stages in (2, 3, 4, 5, 6):
                values = {"bm": 32, "bn": 32, "bk": 32, "wm": 16, "wn": 32, "stages": stages, "lookahead": 1}
                us = predict(small((64, 64, k), **values)).us
                rows.append({"strategy": "small", "values": values, "M": 64, "N": 64, "K": k, "us": us * 1.5})
        (tmp_path / "sweep.json").write_text(json.dumps(rows))
        monkeypatch.setattr("sys.argv", ["cost_model.py", str(tmp_path / "sweep.json"), "-o", str(tmp_path / "out.json")])
        script().main()
        value = json.loads((tmp_path / "out.json").read_text())
        assert len(value["rows"]) == 10 and value["totals"]["held out"]["rank correlation"] == pytest.approx(1)
        assert value["shapes"][0]["ratio"] == pytest.approx(1 / 1.5)
        assert "held out" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- kernels with a ring


@functools.cache
def hopper_kernel(*sizes, **values):
    return hopper.strategy.with_(**values)(hopper.spec(*sizes)).program("sm_90a").lowered


def test_tma_moves_bytes_and_takes_no_issue_slots():
    """A k step of 128 x 256 x 64 moves 48 KiB through L2 and shared memory once, with two instructions of one thread."""
    work = Work(hopper_kernel(4096, 4096, 4096))
    loads = [work.operation(stmt).amounts for stmt, _ in ir.execs(work.kernel.body) if stmt.mechanism is TMA_LOADS]
    assert [(stmt.l2_read, stmt.shared, stmt.memory, stmt.instructions) for stmt in loads] == [(16384, 128, 1, 1), (32768, 256, 1, 1)]
    (store,) = [work.operation(stmt).amounts for stmt, _ in ir.execs(work.kernel.body) if stmt.mechanism is TMA_STORES]
    assert (store.l2_written, store.shared, store.memory) == (2 * 64 * 64 * 2, 128, 1)
    steps = 4 * 64
    assert work.amounts.l2_read == steps * 48 * 1024 and work.amounts.l2_written == 4 * 128 * 256 * 2


def test_wgmma_counts_as_tensor_core_work():
    work = Work(hopper_kernel(4096, 4096, 4096))
    assert work.amounts.tensor == {"float16 by wgmma": 2 * 128 * 256 * 4096 * 4} and work.amounts.fma == {}
    products = [work.operation(stmt).amounts for stmt, _ in ir.execs(work.kernel.body) if stmt.mechanism is WGMMA_GROUPS]
    assert [stmt.shared for stmt in products] == [2 * (64 * 16 + 16 * 256) * 2 / 128]


def test_phases_of_roles():
    """The phases of the consumers, once per tile of a persistent block; the loads are concurrent with the iterations that use them."""
    for sizes in ((4096, 4096, 4096), (512, 512, 512)):
        phases = Work(hopper_kernel(*sizes)).phases
        assert [phase.name for phase in phases] == ["before", "loop over k", "store"]
        assert [bool(phase.concurrent) for phase in phases] == [False, True, False]
        assert [phase.stores for phase in phases] == [False, False, True]
        assert {loop.var.name for phase in phases for loop in phase.loops} == ({"iteration"} if sizes[0] == 4096 else set())
    whole, parts = Work(hopper_kernel(4096, 4096, 4096)).amounts, Work(hopper_kernel(4096, 4096, 4096)).phases
    assert whole.l2_read == parts[1].amounts.l2_read and whole.l2_written == parts[2].amounts.l2_written


@pytest.mark.parametrize("size", [2048, 4096, 8192])
def test_large_squares_are_limited_by_tensor_cores(size):
    prediction = predict(hopper_kernel(size, size, size), "H200")
    assert prediction.bottleneck == "tensor cores"
    assert prediction.parts["tensor cores"] > 0.8 * prediction.us and prediction.parts["instruction issue"] < 0.1 * prediction.us
    assert 600 < prediction.tflops < 800


def test_small_and_skinny_problems_are_limited_by_other_resources():
    small = predict(hopper_kernel(256, 256, 256, bm=64, bn=16, wm=64, wn=16, epi_n=16, bk=128), "H200")
    inside = {name: value for name, value in small.parts.items() if name not in ("launch", "tail (waves)")}
    assert small.bottleneck == "launch" and max(inside, key=lambda name: inside[name]) == "latency of copies"
    skinny = {"bm": 16, "bn": 64, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "stages": 8}
    whole, half = (predict(hopper_kernel(16, 4096, 4096, bk=bk, **skinny), "H200") for bk in (128, 64))
    assert whole.bottleneck == "DRAM"
    # Measured for derived strategies: 10.06 and 11.35 us. A consumer waits for twice as many stages.
    assert half.bottleneck == "latency of instructions"
    assert 1.05 < half.us / whole.us < 1.2


def test_a_ring_with_more_stages_waits_less():
    times = [predict(hopper_kernel(512, 512, 4096, bm=64, bn=64, wn=64, stages=stages), "H200").us for stages in (2, 3, 4, 8)]
    assert times == sorted(times, reverse=True) and times[0] > 1.2 * times[-1]


def test_register_counts_of_roles_prevent_spills():
    wide = hopper_kernel(6144, 6144, 6144, bm=256, bn=192, wm=128, wn=192, stages=3, producer_threads=128)
    assert predict(wide, "H200").registers.spilled == 0
    assert "spill" not in report(wide) and "of 232" in report(wide)
    assert all(finding.severity == "note" for finding in check_resources(AccessTrace(wide)))


@pytest.mark.nightly
def test_ranks_of_the_committed_measurements():
    """The measured candidates of the strategy hopper: the values in docs/cost-model.md."""
    rank = script("rank_cost")
    summary = rank.summary(rank.points(rank.COMMITTED, order="NN"))
    assert summary["points"] == 53
    assert summary["rank correlation, times"] > 0.99 and summary["rank correlation, operations per second"] > 0.97
    assert summary["least"] > 0.7 and summary["most"] < 1.2


def test_constants_matter():
    """Each constant changes at least one prediction."""
    works = [
        Work(small((64, 64, 1024), stages=2)),
        Work(small((64, 64, 1024), stages=6, lookahead=1)),
        Work(lowered(tiled(), 1024, 1024, 1024)),
        Work(small((2048, 2048, 512), bm=128, bn=128, wm=64, wn=64)),
    ]
    copy = Move.tile(64, 32).to(Block).tile(4, 1).to(Thread).layout(ColMajor).done()
    init_and_store = Init.tile(1, 1).to(Thread).done(), Move.tile(1, 1).to(Thread).done()
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, *init_and_store).split(64).load(A, SH, COPY).load(B, SH, COPY)
    works.append(Work(lowered(chain.tile(1, 1).to(Thread).split(1).unroll().done(), 16, 16, 512)))
    works.append(Work(copy(Move(8192, 8192)(GL, GL)(Kernel)).program("sm_90").lowered))
    works += [Work(hopper_kernel(512, 512, 512, cluster_m=2)), Work(hopper_kernel(4096, 4096, 512))]
    before = np.array([model(work, H200).us for work in works])
    for field in attrs.fields(type(CONSTANTS)):
        changed = attrs.evolve(CONSTANTS, **{field.name: getattr(CONSTANTS, field.name) * 40})
        after = np.array([model(work, H200, changed).us for work in works])
        assert (after != before).any(), field.name


def test_dependent_multiply_adds_have_their_latency():
    """With one element per thread, 64 consecutive multiply-adds depend on each other: one warp waits 400 clocks for each, and not longer with 8 elements."""

    def alone(tile):
        parts = Init.tile(*tile).to(Thread).tile(1, 1).unroll().done(), Move.tile(*tile).to(Thread).tile(1, 1).unroll().done()
        chain = MatMul.tile(16 * tile[0], 16).to(Block).epilog(RF, *parts).split(64).load(A, SH, COPY).load(B, SH, COPY)
        return Work(lowered(chain.tile(*tile).to(Thread).split(1).unroll().tile(1, 1).unroll().done(), 16 * tile[0], 16, 6400))

    def clocks(tile):
        prediction = model(alone(tile), H200, attrs.evolve(CONSTANTS, fma_latency=400.0))
        return next(phase for phase in prediction.phases if phase.name == "loop over k").bounds["latency of instructions"] * H200.clock

    assert clocks((1, 1)) == pytest.approx(6400 * 400, rel=0.05)
    assert clocks((8, 1)) == pytest.approx(6400 * 400, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_expected_barriers_are_as_good_as_inferred_ones(name):
    """Kernels are ranked before barriers are inserted: the predicted time is within 10 % of that with the inserted barriers."""
    module = library(name)
    program = module.strategy(module.spec(*module.SIZES)).program(target_of(name, "sm_90"))
    assert predict(with_expected_barriers(program.sequential)).us == pytest.approx(predict(program).us, rel=0.1)


def test_expected_barriers_of_a_loop():
    """One before the copies, which overwrite elements that the previous iteration read, and one after them; none between the copies."""
    kernel = with_expected_barriers(library("listing_2").strategy(library("listing_2").spec(256, 256, 64)).program("sm_90").sequential)
    loop = next(stmt for stmt in kernel.body if isinstance(stmt, For) and any(isinstance(inner, Barrier) for inner in stmt.body))
    assert sum(isinstance(stmt, Barrier) for stmt in statements(kernel.body)) == 2
    assert [isinstance(stmt, Barrier) for stmt in loop.body if not isinstance(stmt, (Comment, Let))].count(True) == 2


def lanes_of_matmul(unroll):
    """FFMA, with `unroll` applied to loops that index registers."""
    copy = Move.coalesced_copy(4).done()
    block = MatMul.tile(64, 64).to(Block).epilog(RF, unroll(Init.tile(4, 8).to(Thread).tile(1, 1)).done()).split(8)
    block = block.load(A, SH, copy).to_col_major().pad(4).load(B, SH, copy)
    lanes = block.tile(32, 32).to(Warp).tile(Strided((4, 16), (4, 32))).to(Lane).split(1)
    return unroll(lanes.load(A, RF, Move.tile(4, 1).done()).load(B, RF, Move.tile(1, 4).done()).tile(1, 1)).done()


def one_iteration_of_matmul(unroll):
    """FFMA, with `unroll` applied to a loop of one iteration."""
    return (
        unroll(MatMul.tile(32, 32).to(Block).epilog(RF).split(64)).load(A, SH).load(B, SH).tile(1, 4).to(Thread).split(1).tile(1, 1).done()
    )


def fragments_of_matmul(unroll):
    """`mma.sync`, with `unroll` applied to loops over fragments."""
    copy = Move.coalesced_copy(8).done()
    block = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32).pipeline(2)
    block = block.load(A, SH, copy).swizzle_storage().load(B, SH, copy).swizzle_storage().tile(32, 32).to(Warp).split(16)
    return unroll(block.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16)).mma_tile().done()


@pytest.mark.parametrize(
    ("build", "dtype"), [(lanes_of_matmul, float32), (one_iteration_of_matmul, float32), (fragments_of_matmul, float16)]
)
def test_equal_code_has_equal_predictions(build, dtype):
    """`unroll()` on a loop that is unrolled anyway changes neither the CUDA code nor the prediction."""
    spec = MatMul(128, 128, 64, dtype=dtype, order=RowMajor)(GL, GL, GL)(Kernel)
    programs = [build(unroll)(spec).program("sm_80") for unroll in (lambda strategy: strategy, lambda strategy: strategy.unroll())]
    left, right = (re.sub("//.*", "", program.cuda) for program in programs)
    assert left == right and programs[0].cuda != programs[1].cuda
    for gpu in ("A100", "H200"):
        left, right = (predict(program, gpu) for program in programs)
        assert left.us == right.us and left.parts == right.parts and str(left) == str(right)


def test_the_compiler_unrolls_short_loops():
    """Without a pragma, no instruction counts the iterations of a short loop; with a run-time trip count, three per iteration do."""
    block = MatMul.tile(32, 32).to(Block).tile(1, 1).to(Thread)
    short, long = (Work(block.split(1).done()(MatMul(32, 32, k)(GL, GL, GL)(Kernel)).program().lowered).amounts for k in (4, 256))
    assert short.instructions * 64 < long.instructions < short.instructions * 64 * 1.3


def test_hints_follow_the_operands():
    """Blocks that read no common tile get no advice to share tiles; without shared memory, its unit is named L1."""
    copy = predict(Move.tile(8, 128).to(Block).tile(1, 4).to(Thread).done()(Move(1024, 1024)(GL, GL)(Kernel)))
    product = predict(tiled()(MatMul(1024, 1024, 64)(GL, GL, GL)(Kernel)))
    assert (copy.common_tiles, product.common_tiles) == (False, True)
    hints = [attrs.evolve(each, bottleneck="DRAM", least_bytes=each.bytes["DRAM"] / 2).hint for each in (copy, product)]
    assert ["rasterize" in hint for hint in hints] == [False, True] and all(hints)
    once = attrs.evolve(copy, bottleneck="DRAM", parts={"DRAM": 0.95 * copy.us, "L2": 0.5 * copy.us}, least_bytes=copy.bytes["DRAM"])
    delayed = attrs.evolve(once, parts={"DRAM": 0.6 * copy.us, "L2": 0.5 * copy.us})
    assert "limit of DRAM" in once.hint and "DRAM takes 60% of the time" in delayed.hint and "L2 delays it: larger tiles" in delayed.hint
    unit = "L1 bandwidth", "shared memory bandwidth"
    assert [[name in each.parts for name in unit] for each in (copy, product)] == [[True, False], [False, True]]


def test_all_limiting_resources_are_named():
    kernel = lowered(tiled(), 64, 64, 64)
    occupied = occupancy_on(kernel, kernel.architecture)[0]
    tied = attrs.evolve(occupied, limits=dict.fromkeys(("threads", "registers"), occupied.blocks) | {"blocks": occupied.blocks + 1})
    assert tied.limiting == "threads and registers" and occupied.limited_by in occupied.limiting


def test_instructions_of_functions():
    """Equal parts count once, a sum with a product is a multiply-add, and contractions belong to the product."""
    body = {"s": "s[m,n] = sum(k, A[m,k] * B[k,n])", "g": "g[m,n] = s[m,n] * 2 + 1", "C": "C[m,n] = exp(g[m,n]) * exp(g[m,n])"}
    known = Fused(name="activated", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"}, body=body).fused_definition
    count = instructions(known, {"m": 64, "n": 32, "k": 1000})
    assert count == 64 * 32 * (1 + INSTRUCTIONS["exp"] + 1)
    assert instructions_us(2 * count, H200) == 2 * instructions_us(count, H200)
    assert delay_us(count, 64 * 32, 64, H200) == 0 < delay_us(10 * count, 64 * 32, 128, H200)
