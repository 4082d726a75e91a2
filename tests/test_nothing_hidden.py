"""Reports of unusual types and storage orders, of refinements without effect, of micro-kernel tests on the host, and of `explain`."""

import ast
import random
from pathlib import Path

import attrs
import pytest
from problems import library

from fireiron import *
from fireiron import refine
from fireiron.check import check
from fireiron.cli import main
from fireiron.draw import draw
from fireiron.errors import FireironError
from fireiron.inspect import trial
from fireiron.inspect.explain import explain, text
from fireiron.inspect.ineffective import ineffective
from fireiron.inspect.trial import trials
from fireiron.language.tree import Refinement

ROOT = Path(__file__).parent.parent
ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
COPY = Move.tile(1, 1).to(Thread).done()
SMALL = MatMul(64, 64, 32)(GL, GL, GL)(Kernel)
PLAIN = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()

# ---------------------------------------------------------------------------------------------- types and storage orders


@pytest.mark.parametrize(
    ("problem", "stored"),
    [
        (MatMul(8, 8, 8), ""),
        (MatMul(8, 8, 8, **ROWS), "A, B, C RowMajor"),
        (MatMul(8, 8, 8, dtype=float16, c_dtype=float32, B=RowMajor), "A float16; B float16 RowMajor"),
        (MatMul(8, 8, 8, A=Strides(m=ANY, k=1), C=ColMajor(ld=12)), "A Strides(m=ANY, k=1); C ColMajor(ld=12)"),
        (MatMul(sym("M"), 8, 8, A=RowMajor), "A RowMajor"),
    ],
)
def test_spec_text_includes_unusual_types_and_orders(problem, stored):
    spec = problem(GL, GL, GL)(Kernel)
    assert spec.stored == stored and str(spec) == spec.notation + (f" with {stored}" if stored else "")
    assert spec.notation.endswith(",8,8)(GL,GL,GL)(Kernel)")


def test_spec_text_below_a_kernel_is_short():
    bound = PLAIN(MatMul(64, 64, 32, dtype=float16, **ROWS)(GL, GL, GL)(Kernel))
    assert all(" with " not in str(spec) for _, spec in bound.trace())


def test_vectors_have_no_order():
    spec = Kind("Axpy", "y[m] += a * x[m]").starter(64, x=RowMajor, y=RowMajor, accumulate=True)(VAL, GL, GL)(Kernel)
    assert str(spec) == "Axpy(64)(VAL,GL,GL)(Kernel)"


def test_headers_and_pictures_include_types_and_orders():
    bound = PLAIN(MatMul(64, 64, 32, dtype=float16, **ROWS)(GL, GL, GL)(Kernel))
    title = "MatMul(64,64,32)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor"
    assert bound.cuda("sm_80").splitlines()[0] == f"// {title}"
    for what in ("tree", "tiles"):
        picture = draw(bound, what)
        assert picture.title.endswith(title)
        heading = picture.shapes[0]
        assert heading.text.endswith(title) and heading.size == 15.0
    strided = {name: Strides(**{one: ANY(8) for one in dims}) for name, dims in (("A", "mk"), ("B", "kn"), ("C", "mn"))}
    long = draw(PLAIN(MatMul(64, 64, 32, **strided)(GL, GL, GL)(Kernel)), "tree").shapes[0]
    assert long.size < 15.0 and long.width <= 880.0, "a long one is written smaller, inside the picture"


# ---------------------------------------------------------------------------------------------- diff, suggestions, hints


def test_equal_strategies_have_no_differences(capsys):
    sizes = ["-M", "64", "-N", "64", "-K", "32"]
    assert main(["diff", "naive", "naive", *sizes]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == ["naive and naive are equal: the same steps, for MatMul(64,64,32)(GL,GL,GL)(Kernel) on sm_90"]
    assert main(["diff", "naive", "naive", *sizes, "--json"]) == 0
    assert '"equal": true' in capsys.readouterr().out
    assert main(["diff", "gemm_nn", "gemm_nt", *sizes]) == 0
    out = capsys.readouterr().out
    assert "are equal" not in out and "(Kernel) with B RowMajor" in out and out.splitlines()[2].startswith("|")


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [
        *(("--arch", *pair) for pair in (("90", "sm_90"), ("9.0", "sm_90"), ("sm80", "sm_80"), ("compute_75", "sm_75"), ("H100", "sm_90a"))),
        *(("--dtype", *pair) for pair in (("half", "float16"), ("FP16", "float16"), ("bf16", "bfloat16"), ("double", "float64"), ("flaot32", "float32"))),
        ("--arch", "gfx90a", None),
        ("--dtype", "complex64", None),
    ],
)  # fmt: skip
def test_names_of_other_packages_are_suggested(option, value, meant, capsys):
    assert main(["show", "naive", option, value]) == 2
    stderr = capsys.readouterr().err
    assert (f"did you mean {meant}?" in stderr) if meant else ("did you mean" not in stderr)


def test_types_of_numpy_are_accepted_and_other_values_are_suggested():
    import numpy

    for value, dtype in ((numpy.float16, float16), (numpy.dtype("f8"), float64), (numpy.bool_, uint8)):
        assert MatMul(8, 8, 8, dtype=value) == MatMul(8, 8, 8, dtype=dtype)
    for value, meant in ((numpy.complex64, None), (float, "float32"), (None, None), (3, None), (numpy.ones, None)):
        try:
            MatMul(8, 8, 8, dtype=value)
        except ArgumentError as error:
            assert error.hint == (f"did you mean {meant}?" if meant else error.hint) and (
                meant or "did you mean fl" in str(error.hint) or not error.hint
            )
        else:
            pytest.fail(f"{value!r} was accepted")


def test_brackets_in_hints_are_quoted_for_a_shell():
    unquoted = []
    for path in sorted((ROOT / "fireiron").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "pip install" in source else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "pip install" in node.value:
                words = [word.strip("`(),") for word in node.value.split() if "fireiron[" in word]
                unquoted += [(path.name, word) for word in words if not word.startswith("'")]
    assert unquoted == []


def test_equal_findings_of_several_accesses_are_merged():
    """A pipelined load occurs before its loop and inside it."""
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).pipeline(2).load(A, SH, COPY).load(B, SH, COPY)
    program = chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()(SMALL).program("sm_80")
    rows = [(one.severity, one.kind, one.buffer, one.access, one.message, one.at) for one in check(program.ir)]
    assert len(rows) == len(set(rows))
    loads = [row for row in rows if row[1] == "coalescing" and row[2] == "A"]
    assert len(loads) == 1


# ---------------------------------------------------------------------------------------------- refinements without effect

CHAIN = (
    "MatMul.tile(32, 32).to(Block){t}.epilog(RF){e}.split(8){s}.load(A, SH){l}.load(B, SH){b}.tile(4, 4).to(Thread){w}.split(1){k}"
    ".load(A, RF){r}.load(B, RF).tile(1, 1).done()"
)


def idle(**refinements):
    chain = CHAIN.format(**{name: refinements.get(name, "") for name in "teslbwkr"})
    program = eval(chain)(SMALL).program("sm_80")
    findings = [*check(program.ir), *ineffective(program)]
    return {one.details["refinement"] for one in findings if one.kind == "ineffective"}


REPORTED = (
    ({"t": ".max_shared_bytes(100000).unchecked('why').swizzle('uid')", "e": ".prefetch_epilogue()", "l": ".no_sync().align(4).to_col_major()"},
     {"max_shared_bytes", "unchecked", "swizzle", "prefetch_epilogue", "no_sync", "align", "storage_layout"}),
    ({"t": ".persistent(4)", "s": ".sync().separate_masked_tiles()", "l": ".pad(0)", "w": ".unroll()", "k": ".pipeline(1)"},
     {"persistent", "sync", "separate_masked_tiles", "pad", "unroll", "pipeline"}),
    ({"t": ".cluster(1).pingpong(1).rasterize(group_m=1)", "w": ".layout(RowMajor)", "r": ".swizzle_storage()"}, {"cluster", "pingpong", "rasterize", "layout", "swizzle_storage"}),
)  # fmt: skip
"""Refinements that change nothing on their step, and the findings about them."""

REFUSED = {
    "t": (".programmatic_launch()", ".pingpong(2)"),
    "s": (".mma_in_flight(1)", ".warp_specialize()", ".skip_masked_tiles()", ".defer('a', after='b')", ".order_mma('a', 'b')"),
    "l": (".stages(2)", ".cast_on_copy()", ".share_stages(B)"),
    "b": (".reuse_buffer()",),
    "r": (".no_sync()", ".reuse_buffer()", ".stages(2)"),
}
"""Refinements that have nothing to change on their step."""

ALWAYS = {
    "To",
    "Overlap",
    "ShareBarriers",
    "MinBlocksPerSm",
    "LongestFirst",
    "StaggerBlocks",
    "Ordered",
    "ReduceInLastBlock",
    "StreamK",
    "LookBack",
}
"""Refinements that change the kernel wherever they are legal."""


@pytest.mark.parametrize("case", REPORTED, ids=lambda case: " ".join(sorted(case[1])))
def test_refinements_without_effect_are_reported(case):
    refinements, reported = case
    assert idle(**refinements) == reported


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("place", "refinement"), [(place, one) for place, several in REFUSED.items() for one in several])
def test_refinements_with_nothing_to_change_are_refused(place, refinement):
    with pytest.raises(FireironError):
        idle(**{place: refinement})


def test_every_refinement_is_in_one_of_the_tables():
    kinds = {one for module in refine.MODULES for one in vars(module).values() if isinstance(one, type) and issubclass(one, Refinement)}
    written = CHAIN
    for name in "teslbwkr":
        reported = "".join(case[0].get(name, "") for case in REPORTED)
        written = written.replace(f"{{{name}}}", reported + "".join(REFUSED.get(name, ())))
    methods = {
        call.func.attr for call in ast.walk(ast.parse(written)) if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    }
    known = {"to_col_major": "StorageLayout", "layout": "TileOrder", "swizzle": "Permute", "stages": "Stages", "pingpong": "PingPong"}
    covered = {kind for method in methods for kind in known.get(method, method.title().replace("_", "")).split()} | ALWAYS
    assert {one.__name__ for one in kinds} - {"Refinement"} <= covered


def test_an_unchecked_that_hides_a_race_has_an_effect():
    chain = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, COPY).no_sync().load(B, SH, COPY).no_sync().unchecked("on purpose")
    program = chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()(SMALL).program("sm_80")
    assert not [one for one in ineffective(program) if one.details["refinement"] == "unchecked"]


# ---------------------------------------------------------------------------------------------- micro-kernels on the host

needs_compiler = pytest.mark.skipif(trial.host_compiler() is None, reason="no C++ compiler on this machine")
DOT = "for (int k = 0; k < a_size_k; ++k) { c[0] += a_at(0, k) * b_at(k, 0); }"
TILE = (
    "for (int m = 0; m < c_size_m; ++m) for (int n = 0; n < c_size_n; ++n) { c_type sum = accumulate ? c_at(m, n) : c_type(0);"
    " for (int k = 0; k < a_size_k; ++k) sum += a[m * a_stride_m + k * a_stride_k] * b_at(k, n); c_at(m, n) = sum; }"
)


def tried(micro_kernel, sizes=(32, 32, 16), **options):
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(8).done(micro_kernel)
    (trial,) = trials(chain(MatMul(*sizes, **options)(GL, GL, GL)(Kernel)).program("sm_80").ir)
    return trial


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_a_right_text_agrees_with_its_spec(dtype):
    trial = tried(DOT, (30, 31, 13), dtype=dtype)
    assert trial.executed and trial.wrong is None and "6 trials agree with its spec" in trial.summary


@needs_compiler
def test_a_text_sees_all_that_the_contract_promises():
    chain = MatMul.tile(16, 16).to(Block).split(8).tile(4, 2).to(Thread).done(TILE)
    (trial,) = trials(chain(MatMul(30, 31, 13, A=RowMajor)(GL, GL, GL)(Kernel)).program("sm_80").ir)
    assert trial.executed and trial.wrong is None and trial.summary.count("12 trials") == 1, "at edges and not, adding up and not"


@needs_compiler
@pytest.mark.parametrize(
    ("micro_kernel", "difference"),
    [
        (DOT.replace("+=", "-="), "c_at(0, 0) is "),
        (DOT.replace("a_size_k", "8"), "c_at(0, 0) is nan, but the spec requires "),
        (DOT + "c[1] = 0;", "it writes c[1], which is out of bounds"),
        (DOT + "__builtin_trap();", "the text terminated the program"),
    ],
    ids=["another sum", "over the edge", "a neighbor", "its own end"],
)
def test_a_wrong_text_is_found_without_a_gpu(micro_kernel, difference):
    trial = tried(micro_kernel, (30, 31, 13))
    assert trial.executed and difference in trial.wrong and "MatMul(1,1,8)" in trial.wrong


@needs_compiler
def test_micro_kernels_that_need_cuda_are_reported_as_unexecuted():
    trial = tried("__syncwarp();" + DOT)
    assert not trial.executed and trial.wrong is None
    assert trial.summary.startswith("NOT executed on the host: it is not plain C++ (") and "__syncwarp" in trial.summary


def test_micro_kernels_of_several_threads_are_reported_as_unexecuted():
    chain = MatMul.tile(16, 16).to(Block).done("if (threadIdx.x == 0) c_at(0, 0) = 1;")
    (trial,) = trials(chain(SMALL).program("sm_80").ir)
    assert not trial.executed and "all threads of a Block execute its text, but the host has one thread" in trial.summary


def test_a_compiler_that_cannot_be_run_is_named(tmp_path):
    """A compiler that is missing or not executable proves nothing about the text."""
    with pytest.raises(trial._NotExecutable, match="gone: No such file or directory"):
        trial._run([str(tmp_path / "gone")])


def test_without_a_compiler_the_text_is_unexecuted(monkeypatch):
    monkeypatch.setattr(trial, "COMPILERS", ("no-such-compiler", "nor-this-one"))
    untested = tried("x" + DOT)
    assert (
        not untested.executed
        and untested.wrong is None
        and "no C++ compiler is installed (no-such-compiler or nor-this-one)" in untested.summary
    )


@needs_compiler
def test_the_command_line_refuses_a_wrong_text(tmp_path, capsys):
    path = tmp_path / "texts.py"
    wrong = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(8).done(DOT.replace("+=", "-="))
    path.write_text(f"from fireiron import *\nstrategy = {wrong!r}\n")
    sizes = ["-M", "32", "-N", "32", "-K", "16", "--arch", "sm_80"]
    assert main(["run", str(path), *sizes, "--simulate"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out and "but the spec requires" in out and "the simulator uses" not in out
    assert main(["check", str(path), *sizes]) == 1
    assert "1 error" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- explain

FLOAT16 = MatMul(256, 256, 128, dtype=float16, c_dtype=float16, **ROWS)(GL, GL, GL)(Kernel)
BLOCK = MatMul.tile(128, 128).to(Block)
WITH_EPILOG = BLOCK.epilog(RF, float32, Init.tile(64, 64).to(Warp).done(), Move.tile(64, 64).to(Warp).done())
TO_SHARED = MatMul.split(32).pipeline(2).load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done())
FRAGMENTS = MatMul.tile(64, 64).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done())


@pytest.mark.parametrize(
    ("chain", "closed"),
    [
        (BLOCK.then(TO_SHARED).then(FRAGMENTS).tile(16, 16).unroll().mma_tile().done(), ".epilog(RF, float32)"),
        (WITH_EPILOG, ".tile(64, 64).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()"),
        (WITH_EPILOG.then(TO_SHARED).then(FRAGMENTS), ".tile(16, 16).mma_tile().done()"),
    ],
    ids=["no accumulator", "open at the block", "open at the warp"],
)
def test_a_chain_for_tensor_cores_is_not_closed_by_scalars(chain, closed):
    explanation = explain(chain(FLOAT16), "sm_80")
    (leaf,) = [one for one in explanation.leaves if one.place == "main"]
    assert leaf.as_dict()["steps"] == closed and "tried: with it the strategy is complete" in leaf.outcome
    assert leaf.others[0][0].name.startswith("HMMA")


def test_a_chain_for_warpgroups_is_not_closed_by_scalars():
    """No instruction matches, and the explanation reports this: arithmetic of single threads would be no answer."""
    chain = MatMul.tile(128, 128).to(Block).epilog(RF).split(64).tile(64, 128).to(Warpgroup).done()
    explanation = explain(chain(FLOAT16), "sm_90a")
    (leaf,) = [one for one in explanation.leaves if one.place == "main"]
    assert leaf.steps is None and leaf.outcome.startswith("the strategy uses matrix instructions")


SCALARS = (
    PLAIN,
    MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH, COPY).load(B, SH, COPY).tile(16, 16).to(Warp).tile(4, 2).to(Lane).split(1)
    .load(A, RF, Move.done()).load(B, RF, Move.done()).tile(1, 1).done(),
)  # fmt: skip


def spoilt(seed):
    """A legal chain with a missing step or refinement, or with a step that ends too early."""
    generator = random.Random(seed)
    chain = generator.choice(SCALARS)
    steps = list(chain.steps)
    for _ in range(generator.choice((1, 1, 2))):
        place, how = generator.randrange(len(steps)), generator.random()
        if how < 0.5 and len(steps) > 2:
            steps.pop(place)
        elif how < 0.75 and steps[place].refinements:
            steps[place] = attrs.evolve(steps[place], refinements=steps[place].refinements[1:])
        elif how < 0.85:
            steps = steps[: max(1, place)]
        elif isinstance(steps[place], Load):
            steps[place] = attrs.evolve(
                steps[place], move=generator.choice((COPY, Move.tile(2, 2).to(Thread).done(), Move.tile(4, 4))).steps
            )
    return Strategy(tuple(steps), SMALL)


def explained_as_emitted(strategy, arch="sm_80"):
    """`explain` agrees with code generation: whether there is code, and otherwise the reason."""
    try:
        _ = strategy.cuda(arch)
        refused = None
    except FireironError as error:
        refused = error
    try:
        explanation = explain(strategy, arch)
    except FireironError:
        assert refused is not None
        return
    assert (explanation.refused is None) == (refused is None)
    report = text(explanation)
    assert ("no code can be generated" in report) == (refused is not None)
    reasons = [line for line in report.splitlines() if line.startswith("  not ") and not line.endswith(" more")]
    assert all(len(line.split(None, 2)) == 3 for line in reasons)


@pytest.mark.parametrize("seed", (0, 1, 2, 3, 4, 6))
def test_explain_and_emit_agree(seed, monkeypatch):
    monkeypatch.setattr("fireiron.inspect.explain._MOST_COMPILED", 2)
    explained_as_emitted(spoilt(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 200))
def test_explain_and_emit_agree_at_length(seed):
    explained_as_emitted(spoilt(seed))


# ---------------------------------------------------------------------------------------------- the bottleneck


@pytest.mark.parametrize("sizes", [(256, 256, 256), (512, 256, 512)])
def test_a_launch_that_takes_longest_is_the_bottleneck(sizes):
    """A kernel that is slower than its launch in total, but in none of its parts."""
    module = library("small")
    prediction = predict(module.strategy(module.spec(*sizes)), "A100")
    rows = str(prediction).split("\n\n")[1].splitlines()[2:]
    shares = [int(row.split("%")[0].split()[-1]) for row in rows]
    assert shares == sorted(shares, reverse=True) and rows[0].endswith("<-- bottleneck") and rows[0].startswith(prediction.bottleneck)
    assert (prediction.bottleneck == "launch") == (sizes == (256, 256, 256)) and prediction.us > 2 * prediction.parts["launch"]


# ---------------------------------------------------------------------------------------------- the papers' spellings


def test_operands_as_the_papers_spell_them():
    papers = MatMul.tile(32, 32).to(Block).split(8).load(MatMul.a, SH).load(MatMul.b, SH)
    assert papers == MatMul.tile(32, 32).to(Block).split(8).load(A, SH).load(B, SH)
    assert Move.tile(8, 8).to(Warp).load(Move.src, RF) == Move.tile(8, 8).to(Warp).load("src", RF)
    assert MatMul.c == C and Move.tile(8, 8).to(Warp).load(Move.src, RF).steps[-1].operand == "src"
    assert papers.at(Load, MatMul.b).step.operand == "B"
