"""Commands, pictures, costs, exports, launches and measurements of multi-step definitions."""

import json
import sys
import types

import fake_gpu
import fused_examples as examples
import numpy as np
import pytest
from fake_gpu import installed
from printed_text import COMPILER, HostProgram, Printed
from test_launch import addresses

from fireiron import *
from fireiron.check import check
from fireiron.cli import main
from fireiron.cost import predict
from fireiron.draw import KINDS, draw
from fireiron.errors import ArgumentError, LaunchError
from fireiron.export import export
from fireiron.gpu import launch
from fireiron.inspect.explain import explain, text
from fireiron.inspect.show import as_dict, show
from fireiron.measure.data import all_sizes, random_inputs, tolerance_of
from fireiron.measure.judge import Judge
from fireiron.sim import simulate

ALL = examples.specs()
NAMES = tuple(ALL)


@pytest.fixture(scope="module")
def programs():
    return {name: strategy(spec).program("sm_80") for name, (strategy, spec) in ALL.items()}


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command line without a GPU: exit status and output."""
    monkeypatch.setattr(launch, "gpu_available", lambda: False)

    def run(*arguments):
        try:
            status = main([str(item) for item in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out + err

    return run


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, fake_gpu.FakeGpu())


FILE = str(examples.__file__)


def near(got, spec, arrays):
    """Assert that each element of all outputs is within its bound."""
    judge = Judge(spec, {}, arrays)
    assert not [wrong for name in spec.outputs if (wrong := judge.wrong(name, got[name]))]


# ---------------------------------------------------------------------------------------------- simulation


@pytest.mark.parametrize("name", NAMES)
def test_simulated_and_checked(name, programs):
    program = programs[name]
    arrays = random_inputs(program.spec, {}, np.random.default_rng(1))
    assert not [finding for finding in check(program.ir) if finding.severity == "error"]
    near(simulate(program.ir, arrays).outputs, program.spec, arrays)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(programs, tmp_path):
    host = HostProgram([Printed.of(program) for program in programs.values()], tmp_path)
    for number, program in enumerate(programs.values()):
        for seed in (1, 2):
            arrays = random_inputs(program.spec, {}, np.random.default_rng(seed))
            near(host.run(number, arrays, {}, seed), program.spec, arrays)


# ---------------------------------------------------------------------------------------------- texts and pictures


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_show_prints_the_definition_before_the_tree(name, programs):
    program = programs[name]
    steps = examples.__dict__[name].fused_definition.steps
    shown = "\n".join(show(program))
    assert all(str(step) in " ".join(shown.split()).replace(f"{step.name} ", f"{step.name}: ", 1) or step.name in shown for step in steps)
    assert shown.startswith(str(examples.__dict__[name])) and "INDEX" not in shown and "AnySpec.tile(1, 1)" not in shown
    plain = json.loads(json.dumps(as_dict(program)))
    assert [item["name"] for item in plain["steps"]] == [step.name for step in steps]
    assert not any(item["memory"] == "INDEX" for item in plain["buffers"])


@pytest.mark.parametrize("name", NAMES)
def test_pictures(name, programs):
    for kind in KINDS:
        for picture in draw(programs[name], (kind,)).pictures:
            assert "<svg" in picture.svg and "index_" not in picture.svg


@pytest.mark.parametrize("name", ["attention", "scaled"])
def test_explained(name):
    strategy, spec = ALL[name]
    report = text(explain(strategy(spec), "sm_80"))
    assert "performed by" in report and ("HMMA_16816_F32" in report) == (name == "attention")


def test_costs_of_all_steps(programs):
    for program in programs.values():
        prediction = predict(program)
        assert 0 < prediction.us < 50 and prediction.bottleneck
    gemm = ALL["gemm_bias_relu"][1]
    work = 2 * 64**3
    assert work <= gemm.flops.value <= 1.05 * work
    assert gemm.bytes.value == 2 * (3 * 64 * 64 + 64)  # coordinate tensors occupy no memory
    large = examples.gemm_strategy(examples.gemm_bias_relu(m=4096, n=4096, k=4096)).program("sm_80")
    plain = MatMul(4096, 4096, 4096, dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    chain = MatMul.tile(64, 64).to(Block).epilog(RF).then(examples.main_loop)
    plain_us = predict(chain(plain).program("sm_80")).us
    assert 0.8 * plain_us < predict(large).us < 1.3 * plain_us


def test_an_export_describes_operands_and_numbers(programs, tmp_path):
    done = export(programs["scaled"], tmp_path, "scaled", cubin=False)
    header, source = (next(path for path in done.files if path.suffix == end).read_text() for end in (".h", ".cu"))
    assert "scaled_launch(const void *x, float alpha, void *y, void *top, cudaStream_t stream)" in header
    assert "Numbers, passed by value:\n *   alpha: float32" in header and "top must not overlap" in header
    assert "index_" not in header and "index_" not in source


# ---------------------------------------------------------------------------------------------- data


def test_random_inputs_are_scaled_for_matmul():
    spec = examples.mlp(m=64, n=128, k=128, l=20)
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    assert set(arrays) == {"X", "W", "bias"}
    assert 0.9 < arrays["X"].astype(float).std() < 1.1 and abs(arrays["W"].astype(float).std() * 128**0.5 - 1) < 0.05
    assert np.isfinite(spec.reference(*arrays.values())).all()
    dual_arrays = random_inputs(ALL["dual"][1], {}, np.random.default_rng(0))
    assert abs(dual_arrays["A"].astype(float).std() * 64**0.25 - 1) < 0.1


def test_tolerances_follow_the_types_of_the_steps():
    gemm = examples.gemm_bias_relu
    wide, narrow = gemm(m=64, n=64, k=64, types={"D": float32}), gemm(m=64, n=64, k=64)
    assert tolerance_of(wide) < 1e-4 < tolerance_of(narrow) < 1e-3 < tolerance_of(narrow, accumulator=float16)
    assert 2.0**-11 * 3 < tolerance_of(ALL["attention"][1]) < 2.0**-11 * 5  # probabilities are rounded to float16
    assert tolerance_of(ALL["dual"][1], output="y") < 1e-3
    assert all_sizes(gemm(m=sym("M"), n=64, k=64), {"M": 7}) == {"M": 7}


# ---------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "arguments, spec",
    [
        (["gemm_strategy", "-M", 100, "-N", 72, "-K", 50], "gemm_bias_relu(100,72,50)"),
        (["gemm_strategy", "-s", "m=M", "-s", "n=72", "-s", "k=64", "--size", "M=70"], "gemm_bias_relu(M,72,64)"),
        (["layernorm_strategy", "-M", 5, "-N", 256], "layernorm(5,256)"),
        (["dual_strategy", "-M", 64, "-N", 60, "-K", 96], "dual(64,60,96)"),
        (["attention_strategy", "-s", "d=32", "-s", "m=100", "-s", "n=90", "-s", "b=3"], "attention(100,90,32,3)"),
        (["mlp_strategy", "-s", "m=40", "-s", "n=32", "-s", "k=32"], "mlp(40,32,32,4)"),
        (["scaled_strategy", "-s", "i=33", "-s", "j=40", "--dtype", "float32"], "scaled(33,40)"),
    ],
)
def test_run(command, arguments, spec):
    strategy, *rest = arguments
    status, output = command("run", f"{FILE}:{strategy}", *rest, "--arch", "sm_80", "--seed", 3)
    assert status == 0 and spec in output and "PASS" in output and "% of its bound" in output and "index_" not in output, output


def test_run_on_a_sample_of_blocks(command):
    """Coordinates are global, so a sample is compared with the same part of the whole result."""
    sizes = ("-s", "m=256", "-s", "n=256", "-s", "d=32", "-s", "b=2")
    status, output = command("run", f"{FILE}:attention_strategy", *sizes, "--arch", "sm_80", "--seed", 3, "--blocks", 3)
    assert status == 0 and "3 of 8 are simulated" in output and "PASS" in output and "of 16384 elements were compared" in output, output


def test_run_finds_a_definition_that_depends_on_its_split(command, tmp_path):
    (tmp_path / "wrong.py").write_text(
        '''"""The sum of the last iteration."""
from fireiron import *
rows = Fused(name="rows", dims="m n", loop="n", operands={"X": "m n", "y": "m", "z": "m n"},
    body={"s": "t[m] = sum(n, X[m,n])", "z": "z[m,n] = X[m,n]"}, final={"y": "y[m] = t[m]"})
strategy = rows.tile(m=4).to(Block).split(n=32).load("X", RF, Move.tile(4, 32).to(Warp).tile(1, 4).to(Lane).done()).done()
'''
    )
    sizes = ("-M", 8, "-N", 64, "--arch", "sm_80", "--seed", 1)
    status, output = command("run", tmp_path / "wrong.py", *sizes)
    assert status == 1 and "FAIL  y: element (" in output and "8 of 8 differ" in output, output
    status, output = command("run", tmp_path / "wrong.py", *sizes, "--json", "--blocks", 1)
    plain = json.loads(output)
    assert status == 1 and plain["wrong"]["output"] == "y" and not plain["passed"]


def test_wrong_sizes_on_the_command_line(command):
    for arguments, message in (
        (("-s", "p=3"), "has no size p"),
        (("-s", "i=64", "-s", "I=64"), "the size i is given twice"),
        (("-s", "m"), "is not DIMENSION=SIZE"),
        (("-s", "i=0"), "0 is not a size"),
        (("--layouts", "NT"), "does not accept A"),
    ):
        status, output = command("run", f"{FILE}:scaled_strategy", *arguments)
        assert status and message in output, output


@pytest.mark.parametrize("verb", ["show", "emit", "check", "explain", "cost", "draw", "diff", "export", "tune"])
def test_commands(verb, command, tmp_path):
    strategy = f"{FILE}:gemm_strategy"
    more = {"draw": ["-o", tmp_path / "a.html"], "diff": [strategy], "export": ["-o", tmp_path, "--no-cubin"], "tune": ["--predict"]}
    status, output = command(verb, strategy, *more.get(verb, []), "-M", 64, "-N", 64, "-K", 64, "--arch", "sm_80")
    assert status == 0 or (verb == "tune" and "tunable" in output), output
    if verb in ("show", "explain", "check", "cost"):
        status, output = command(verb, strategy, "-M", 64, "-N", 64, "-K", 64, "--arch", "sm_80", "--json")
        assert status == 0 and json.loads(output)


def test_tune_ranks_by_prediction(command, tmp_path):
    (tmp_path / "tuned.py").write_text(
        '''"""A GEMM with an epilogue."""
from fireiron import *
gemm = MatMul.fuse_epilogue("relu(acc + bias[n])")
bm = Tunable("bm", 64, 32)
strategy = gemm.tile(m=bm, n=32).to(Block).then(MatMul.epilog(RF).split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done())
def spec(M, N, K, **options):
    return gemm(m=M, n=N, k=K, **options)
'''
    )
    status, output = command("tune", tmp_path / "tuned.py", "-M", 64, "-N", 64, "-K", 32, "--predict", "--json")
    assert status == 0 and {item["values"]["bm"] for item in json.loads(output)["results"]} == {32, 64}


def test_default_sizes_include_a_batch(command):
    status, output = command("show", f"{FILE}:attention_strategy", "-s", "d=32", "--arch", "sm_80")
    assert status == 0 and "attention(1024,1024,32,4)(GL,GL,GL,GL,VAL)(Kernel)" in output


# ---------------------------------------------------------------------------------------------- launches


def kernel_of(name):
    strategy, spec = ALL[name]
    kernel = strategy(spec).compile("sm_90")
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


def test_several_outputs_and_a_scalar_on_a_gpu(gpu):
    kernel = kernel_of("scaled")
    gpu.parameters = 4
    x = gpu.array((20, 40), "float16")
    y, top = kernel(x, 0.5)
    assert (y.shape, top.shape, y.dtype.name) == ((20, 40), (20, 40), "float16")
    assert kernel(x, 0.5, out=(y, top)) == (y, top) == kernel(x, 0.5, out={"top": top, "y": y})
    sent = gpu.launches[-1][-1]
    assert [sent[0], *sent[2:]] == addresses(x, y, top)
    ready = kernel.prepare(x, 0.5, out=(y, top))
    assert ready() == (y, top) and gpu.launches[-1][-1] == sent
    with pytest.raises(ArgumentError, match="scaled has 2 outputs"):
        kernel(x, 0.5, out=y)
    with pytest.raises(ArgumentError, match="1 arrays given, scaled reads 2"):
        kernel(x)
    with pytest.raises(LaunchError, match="overlap"):
        kernel(x, 0.5, out=(y, y))


def test_several_outputs_of_numpy():
    strategy, spec = ALL["dual"]
    kernel, arrays = strategy(spec).compile("sm_80"), random_inputs(spec, {}, np.random.default_rng(0))
    d, y = kernel(*arrays.values())
    near({"D": d, "y": y}, spec, arrays)
    outputs = (np.empty_like(d), np.empty_like(y))
    assert kernel(*arrays.values(), out=outputs) is not None and np.array_equal(outputs[0], d) and np.array_equal(outputs[1], y)


def test_run_time_sizes_come_from_the_arrays():
    kernel = examples.gemm_strategy(examples.gemm_bias_relu(m=sym("M"), n=sym("N"), k=sym("K"))).compile("sm_80")
    spec = examples.gemm_bias_relu(m=70, n=40, k=24)
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    near({"D": kernel(*arrays.values())}, spec, arrays)
    with pytest.raises(ArgumentError, match="bias has the shape"):
        kernel(arrays["A"], arrays["B"], arrays["bias"][:7])


def test_measurements_take_definitions(gpu, monkeypatch):
    """Sets of arrays for all stored operands, and references by output."""
    from fireiron.measure import data as measured

    monkeypatch.setattr(measured, "_device_array", lambda cupy, view, sizes, values: values)
    monkeypatch.setattr(measured.Data, "reset", lambda self, index=0: None)
    monkeypatch.setattr(sys.modules["cupy"], "asarray", np.asarray, raising=False)
    monkeypatch.setattr(sys.modules["cupy"], "asnumpy", np.asarray, raising=False)
    spec = ALL["scaled"][1]
    data = measured.Data.of(spec, rotate_bytes=0)
    assert set(data.sets[0]) == {"x", "alpha", "y", "top"} and data.inputs == ("x", "alpha")
    assert set(data.tolerance) == {"y", "top"} and data.bytes == 2 * 3 * 20 * 40 + 4
