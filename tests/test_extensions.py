"""User-defined decompositions, refinements, executables, kinds of spec, levels and memories: from outside the package as a value, and as
one new file inside it, with the same capabilities.
"""

import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron import folders, ir
from fireiron.errors import VerificationError
from fireiron.ir import Comment, Exec, Hole
from fireiron.language.dividing import divide, loop_over
from fireiron.language.store import dumps, loads
from fireiron.language.tree import execution
from fireiron.sim import simulate
from fireiron.values import units
from fireiron.values.tensor import Tensor, whole_view


@attrs.frozen
class SplitInTwo(Decomposition):
    """Split m into two parts, in order: a user-defined decomposition."""

    verb = "halves"

    def expand(self, spec, context):
        views, digits = divide(spec, {"m": (int(str(spec.size("m"))) // 2, None)}, "halves")
        draft = context.draft()
        views, program, _ = loop_over(spec, views, digits, False, draft, (Hole("body"),))
        return draft.expansion((Child("body", spec.with_operands(**views)),), program)


def alone(expand):
    """A user-defined decomposition with only an `expand`."""

    class Own(Decomposition):
        verb = "own"

        def expand(self, spec, context):
            return expand(spec, context)

    return MatMul.tile(8, 8).to(Block).then(attrs.frozen(Own)()).tile(1, 1).to(Thread).split(1).tile(1, 1).done()


def loop_without_a_draft(spec, context):
    views, digits = divide(spec, {"m": (4, None)}, "own")
    return loop_over(spec, views, digits, False, context, (Hole("body"),))


def undeclared_loop(spec, context):
    views, digits = divide(spec, {"m": (4, None)}, "own")
    views, program, _ = loop_over(spec, views, digits, False, context.draft(), (Hole("body"),))
    return Expansion((Child("body", spec.with_operands(**views)),), program)


def undeclared_buffer(spec, context):
    fresh = whole_view(Tensor("mine", spec.A.shape, float32, SH, ColMajor))
    return Expansion((Child("body", spec.with_operands(A=fresh)),), (Hole("body"),))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("expand", "message"),
    [
        (lambda spec, context: None, "must return an Expansion"),
        (lambda spec, context: Expansion((Child("body", spec),), (Hole("inner"),)), "holes of its program differ from its children"),
        (lambda spec, context: Expansion((Child("body", spec),), ()), "holes of its program differ from its children"),
        (lambda spec, context: Expansion((Child("body", spec),), (Hole("body"), Hole("body"))), "holes of its program"),
        (lambda spec, context: Expansion((Child("body", spec), Child("body", spec)), (Hole("body"),)), "share a name"),
        (lambda spec, context: context.fresh("k"), "new names need a draft"),
        (lambda spec, context: context.let("half", context.thread // 2), "new names need a draft"),
        (lambda spec, context: context.unit(Warp, Block), "new names need a draft"),
        (loop_without_a_draft, "new names need a draft"),
        (undeclared_loop, "its program defines m, but the names of its Expansion do not contain them"),
        (undeclared_buffer, "its program defines mine, but the names of its Expansion do not contain them"),
    ],
)
def test_expansions_that_break_the_contract_are_refused(expand, message):
    """The error names the class, the line of the strategy and a fix."""
    with pytest.raises(DecompositionError, match=message) as caught:
        _ = alone(expand)(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)).program().tree
    assert "tests/test_extensions.py" in str(caught.value)


@attrs.frozen
class Remark(Refinement):
    """Print a comment before the step: a user-defined refinement."""

    applies_to = ("tile", "split", "halves")
    text: str = ""

    def rewrite(self, expansion, context):
        return attrs.evolve(expansion, program=(Comment(self.text), *expansion.program))


@attrs.frozen
class Ffma4(Executable):
    """Four multiply-adds of one thread along m: a user-defined instruction."""

    def performs(self):
        return "MatMul(4,1,1)(RF,RF,RF)(Thread)"

    def mismatches(self, spec, architecture):
        wanted = "MatMul(4,1,1)(RF,RF,RF)"
        got = str(spec).rsplit("(", 1)[0]
        return () if got == wanted and spec.level.threads == 1 else (Mismatch("spec", wanted, got),)

    def cuda(self, printer, statement):
        operands = statement.operands
        b = printer.place(operands["B"])
        return [
            f"{printer.place(operands['C'], offset)} = __fmaf_rn({printer.place(operands['A'], offset)}, {b}, {printer.place(operands['C'], offset)});"
            for offset in operands["A"].elements()
        ]


Quad = Level("Quad", Warp, Layout(4))
"""Four consecutive lanes: a user-defined level."""

DATA = np.random.default_rng(11)


def run(strategy, M, N, K, instructions=None):
    spec = MatMul(M, N, K)(GL, GL, GL)(Kernel)
    bound = strategy(spec)
    program = bound.program() if instructions is None else bound.program(instructions=instructions)
    a, b = DATA.integers(-3, 4, (M, K)).astype(np.float32), DATA.integers(-3, 4, (K, N)).astype(np.float32)
    np.testing.assert_array_equal(simulate(program.ir, {"A": a, "B": b}).outputs["C"], a @ b)
    return program


def test_decomposition_and_refinement():
    chain = MatMul.tile(32, 32).to(Block).then(SplitInTwo()).refine(Remark("two halves")).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    program = run(chain, 50, 40, 9)
    assert "// two halves" in program.cuda
    assert str(program.trace()[2][1]) == "MatMul(16,32,9)(GL,GL,GL)(Block)"
    assert chain.steps[1] == SplitInTwo().refined(Remark("two halves"))
    with pytest.raises(DecompositionError, match="does not refine"):
        MatMul.load(A, SH).refine(Remark("no"))


def of_four():
    """A chain down to four multiply-adds per thread."""
    return (
        MatMul.tile(32, 32).to(Block)
        .epilog(RF, Init.tile(8, 4).to(Thread).tile(1, 1).done(), Move.tile(8, 4).to(Thread).tile(1, 1).done())
        .split(4).load(A, SH).load(B, SH).tile(8, 4).to(Thread).split(1)
        .load(A, RF, Move.tile(4, 1).done()).load(B, RF, Move.tile(1, 1).done()).tile(4, 1)
    )  # fmt: skip


def test_executable():
    chain = of_four()
    with pytest.raises(MatchError):
        run(chain.done(), 32, 32, 8)
    program = run(chain.done(Ffma4("FFMA4")), 33, 70, 10)
    assert program.cuda.count("__fmaf_rn") == 4
    program = run(chain.done(), 33, 70, 10, instructions=(Ffma4("FFMA4"), *INSTRUCTIONS))
    assert program.cuda.count("__fmaf_rn") == 4


def test_instructions_are_matched_for_each_program():
    """Another program of the same strategy and spec may match other instructions."""
    bound = of_four().done()(MatMul(32, 32, 8)(GL, GL, GL)(Kernel))
    own = (Ffma4("FFMA4"), *INSTRUCTIONS)
    for _ in range(2):
        with pytest.raises(MatchError):
            _ = bound.program("sm_80").tree
        assert bound.program("sm_80", instructions=own).tree.complete


def test_level():
    chain = (
        MatMul.tile(32, 32).to(Block).tile(16, 16).to(Warp).tile(8, 4).to(Quad).tile(4, 2).to(Thread).split(1).tile(1, 1).done()
    )  # fmt: skip
    program = run(chain, 40, 65, 7)
    assert program.ir.threads == 128
    assert "quad" in program.cuda


def test_level_that_does_not_tile_its_parent_is_refused():
    with pytest.raises(ArgumentError, match="do not tile|do not divide"):
        Level("Odd", Warp, Layout(3))
    with pytest.raises(ArgumentError):
        Level("Overlap", Warp, Layout((4, 2), (1, 2)))


def test_executable_that_emits_several_statements():
    @attrs.frozen
    class Twice(Executable):
        """Initializes twice: an executable may emit more than its meaning."""

        def mismatches(self, spec, architecture):
            return () if spec.title == "Init" else (Mismatch("spec", "Init", spec.title),)

        def emit(self, spec, context):
            statement = execution(self, spec, context)
            assert isinstance(statement, Exec)
            return (Comment("twice"), statement, statement)

        def cuda(self, printer, statement):
            return [f"{printer.element(statement, 'dst')} = {printer.literal(0, statement.spec.dst.dtype)};"]

    init = Init.tile(1, 1).to(Thread).done(Twice("twice"))
    chain = MatMul.tile(16, 16).to(Block).epilog(SH, init).split(4).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    assert run(chain, 20, 20, 6).cuda.count("// twice") == 1


@pytest.mark.parametrize("text", ["dst[0] = 0;", None, iter(["dst[0] = 0;"])], ids=["text", "nothing", "iterator"])
def test_an_instruction_that_returns_no_lines_is_refused(text):
    """Each letter of a string became a line."""

    @attrs.frozen
    class Lettered(Executable):
        def mismatches(self, spec, architecture):
            return () if spec.title == "Init" else (Mismatch("spec", "Init", spec.title),)

        def cuda(self, printer, statement):
            return text

    chain = (
        MatMul.tile(16, 16).to(Block).epilog(RF, Init.tile(1, 1).to(Thread).done(Lettered("lettered")), Move.tile(1, 1).to(Thread).done())
    )
    with pytest.raises(DecompositionError, match=r"Lettered.cuda\(printer, statement\) must return a list of lines") as refused:
        _ = run(chain.split(4).tile(1, 1).to(Thread).split(1).done(), 16, 16, 8).cuda
    assert type(text).__name__ in str(refused.value) and "return [text] in Lettered.cuda" in str(refused.value)


def test_an_open_leaf_names_the_line_of_the_last_step():
    with pytest.raises(IncompleteError) as refused:
        MatMul.tile(16, 16).to(Block).split(4)(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).cuda()
    assert "test_extensions.py:" in str(refused.value)


def test_chains_with_extensions_of_our_own_evaluate():
    """For any `__str__`: only refinements of the package have their own methods."""

    @attrs.frozen
    class Noted(Remark):
        def __str__(self):
            return f"noted({self.text!r})"

    chain = MatMul.tile(8, 8).to(Block).refine(Noted("twice")).then(SplitInTwo()).refine(Remark("once"))
    assert eval(repr(chain), {**vars(fireiron), "Noted": Noted, "SplitInTwo": SplitInTwo, "Remark": Remark}) == chain


def test_refinements_with_fields_evaluate_everywhere():
    """Several fields, a tuple among them, and one with a user-defined value: on steps, on copies inside steps, and on a bound chain."""

    @attrs.frozen
    class Commented(Refinement):
        applies_to = ("tile", "load", "split", "epilog")
        words: tuple[str, ...]
        level: Level = Warp
        number: int = 3

        def rewrite(self, expansion, context):
            return attrs.evolve(expansion, program=(*(Comment(word) for word in self.words), *expansion.program))

    init = Init.tile(2, 2).refine(Commented(("in\\side", 'quo"ted'))).to(Thread).tile(1, 1).done()
    chain = (
        MatMul.tile(8, 8)
        .to(Block)
        .refine(Commented((), Thread))
        .epilog(RF, init)
        .refine(Commented(("sums",)))
        .split(4)
        .refine(Commented(("k",)))
    )
    chain = chain.load(A, SH).refine(Commented(("a",), number=5)).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    names = {**vars(fireiron), "Commented": Commented, "Level": Level}
    problem = MatMul(16, 8, 8)(GL, GL, GL)(Kernel)
    assert eval(repr(chain), names) == chain and eval(repr(chain(problem)), names) == chain(problem)
    assert "number=5" in repr(chain)
    run(chain, 16, 8, 8)


def test_refinements_without_effect_are_refused():
    @attrs.frozen
    class Misspelt(Refinement):
        applies_to = ("tile",)

        def paln(self, plan):
            return plan

    with pytest.raises(DecompositionError, match="overrides neither plan nor rewrite") as caught:
        MatMul.tile(8, 8).refine(Misspelt())
    assert "paln" in str(caught.value) and "tests/test_extensions.py" in str(caught.value)


Near = Memory("NEAR", 1, "block", "shared memory near by")
Sums = Memory("SUMS", 4, "thread", "registers of sums")


def test_memories():
    """A user-defined memory that is shared by the same threads as another one: allocated, synchronized, checked, simulated, printed,
    stored.
    """
    copies = MatMul.tile(32, 32).to(Block).epilog(Sums).split(4).load(A, Near).load(B, Near).tile(4, 4).to(Thread).split(1)
    chain = copies.load(A, Sums).load(B, Sums).tile(1, 1).done()
    program = run(chain, 40, 70, 9)
    assert (
        "__shared__ __align__(16) float a_near[128]" in program.cuda
        and "float c_sums[16]" in program.cuda
        and "__syncthreads();" in program.cuda
    )
    assert loads(dumps(chain)) == chain and eval(repr(chain), {**vars(fireiron), "NEAR": Near, "SUMS": Sums}) == chain
    same = MatMul.tile(32, 32).to(Block).epilog(RF).split(4).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1)
    plain = run(same.load(A, RF).load(B, RF).tile(1, 1).done(), 40, 70, 9).cuda
    assert body(program.cuda).replace("near", "sh").replace("sums", "rf") == body(plain)


def body(text):
    """The statements of a kernel: its text without comments and line breaks."""
    return "".join(line.partition("//")[0] for line in text.splitlines()).replace(" ", "")


def test_memories_under_a_pipeline_and_by_matrix_instructions():
    """Asynchronous copies, ldmatrix and mma.sync accept operands in shared memory and registers under any memory name."""
    chain = (
        MatMul.tile(64, 64).to(Block).epilog(Sums, float32).split(16).pipeline(2)
        .load(A, Near, Move.coalesced_copy(8).done()).load(B, Near, Move.coalesced_copy(8).done())
        .tile(32, 32).to(Warp).load(A, Sums).load(B, Sums).tile(16, 16).mma_tile().done()
    )  # fmt: skip
    problem = MatMul(64, 64, 32, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)
    text = chain(problem).program("sm_80").cuda
    assert "cp.async" in text and "ldmatrix" in text and "mma.sync" in text


# ---------------------------------------------------------------------------------------------- one new file in the package

FILES = {
    "executable/twice_fma.py": '''
"""Two multiply-adds of one thread along m."""

import attrs

from fireiron.language.tree import Executable, Mismatch
from fireiron.specs.matmul import MatMul
from fireiron.values.machine import RF, Thread


@attrs.frozen
class TwiceFma(Executable):
    """`MatMul(2,1,1)` of one thread."""

    def performs(self):
        return "MatMul(2,1,1)(RF,RF,RF)(Thread)"

    def mismatches(self, spec, architecture):
        if not spec.multiplies:
            return (Mismatch("spec", "MatMul", spec.title),)
        sizes, types = "x".join(map(str, spec.sizes)), " ".join(view.dtype.name for view in spec.views)
        level = "Thread" if spec.level.threads == 1 else spec.level.name
        wanted = (("shape", "2x1x1", sizes), ("type", "float32 float32 float32", types), ("level", "Thread", level))
        return tuple(Mismatch(*one) for one in wanted if one[1] != one[2])

    def cuda(self, printer, statement):
        a, b, c = (statement.operands[name] for name in "ABC")
        places = [(printer.place(c, at), printer.place(a, at)) for at in a.elements()]
        return [f"{into} = __fmaf_rn({left}, {printer.place(b)}, {into});" for into, left in places]


TWICE_FMA = TwiceFma("TWICE_FMA")
INSTRUCTIONS = (TWICE_FMA,)
EXAMPLES = (MatMul(2, 1, 1)(RF, RF, RF)(Thread),)
__all__ = ["TWICE_FMA", "TwiceFma"]
''',
    "decomp/halves.py": '''
"""Two halves along m, one after the other."""

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Hole
from fireiron.language.dividing import divide, loop_over
from fireiron.language.tree import Child, Decomposition
from fireiron.values.expr import constant


@attrs.frozen
class SplitInTwo(Decomposition):
    """Divides m into two halves, or `parts` of them, one after the other.

    Legal where m is a multiple. rewrite: MatMul(M,N,K) --> for m: MatMul(M/parts,N,K)
    """

    verb = "halves"
    parts: int = 2
    unroll: bool = attrs.field(default=False, kw_only=True)

    def expand(self, spec, context):
        m = constant(spec.size("m"))
        if m is None or m % self.parts:
            raise DecompositionError(f"halves: no multiple of {self.parts}", got=spec.size("m"))
        views, digits = divide(spec, {"m": (m // self.parts, None)}, "halves")
        draft = context.draft()
        views, program, _ = loop_over(spec, views, digits, self.unroll, draft, (Hole("body"),))
        return draft.expansion((Child("body", spec.with_operands(**views)),), program)


__all__ = ["SplitInTwo"]
''',
    "refine/remark.py": '''
"""A remark in front of a step."""

import attrs

from fireiron.ir import Comment
from fireiron.language.tree import Refinement


@attrs.frozen
class Remark(Refinement):
    """Prints a remark in front of the step.

    Legal everywhere. rewrite: step --> // text; step
    """

    applies_to = ("tile", "halves")
    verb = "remark"
    text: str = ""

    def rewrite(self, expansion, context):
        return attrs.evolve(expansion, program=(Comment(self.text), *expansion.program))


__all__ = ["Remark"]
''',
    "refine/reason.py": '''
"""Why a step is as it is, in front of it: two verbs of a refinement."""

import attrs

from fireiron.ir import Comment
from fireiron.language.tree import Refinement, verb


@attrs.frozen
class Reason(Refinement):
    """Prints a reason in front of the step.

    Legal on tiles, loads and splits. rewrite: step --> // because text; step
    """

    applies_to = ("tile", "load", "split")
    text: str

    def rewrite(self, expansion, context):
        return attrs.evolve(expansion, program=(Comment(f"because {self.text}"), *expansion.program))

    def __str__(self):
        return f"because({self.text!r})"


@verb()
def because(text: str) -> Reason:
    """Print a reason in front of the step. Legal on tiles, loads and splits. rewrite: step --> // because text; step"""
    return Reason(text)


@verb("tile", "split", name="measured")
def because_measured(speed: float, *, unit: str = "TFLOP/s") -> Reason:
    """Print a speed in front of the step. Legal on tiles and splits. rewrite: step --> // because it reaches speed; step"""
    return Reason(f"it reaches {speed} {unit}")


__all__ = ["Reason"]
''',
    "specs/scale.py": '''
"""Each element by a number."""

from fireiron.spec import Kind, Parameter, Starter

Scale = Starter(Kind("Scale", "y[m,n] = {by} * x[m,n]", (Parameter("by"),)))
__all__ = ["Scale"]
''',
}
"""One new file in each folder."""

PROGRAM = """
import inspect
import re
import fireiron
import numpy as np
from fireiron import *
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

chain = (
    MatMul.tile(32, 16).to(Block).remark("a block").halves(4, unroll=True).remark(text="quarters")
    .epilog(RF).split(4).tile(2, 2).to(Thread).split(1).load(A, RF).load(B, RF).tile(2, 1).done()
)
assert eval(repr(chain)) == chain and loads(dumps(chain)) == chain
assert repr(chain).startswith("MatMul.tile(32, 16).to(Block).remark(text='a block').halves(parts=4, unroll=True).remark(text='quarters').epi")
assert chain.steps[:2] == MatMul.tile(32, 16).to(Block).refine(Remark("a block")).then(SplitInTwo(4, unroll=True).refined(Remark("quarters"))).steps
assert chain.steps[1].origin == "<string>:11", chain.steps[1].origin
assert str(inspect.signature(Strategy.halves)).startswith("(self, /, parts: int = 2, *, unroll: bool = False)")
assert MatMul.halves.__doc__ == SplitInTwo.__doc__ and Strategy.remark.__doc__ == Remark.__doc__
for wrong, says in (
    (lambda: MatMul.halves(2, 3), "halves: too many positional arguments"),
    (lambda: MatMul.load(A, SH).remark("x"), "Remark does not refine load"),
    (lambda: MatMul.tile(8, 8).remark(word="x"), "remark: .*'word'"),
    (lambda: MatMul.split(4).measured(), "measured: missing.*'speed'"),
    (lambda: MatMul.load(A, SH).measured(3.5), "measured does not refine load"),
):
    try:
        wrong()
    except FireironError as error:
        assert re.search(says, str(error)), error
    else:
        raise AssertionError(says)
reasons = chain.at(Split).refine(Reason("it reaches 3.5 GB/s"))
assert MatMul.split(4).measured(3.5, unit="GB/s").steps[0].refinements == reasons.at(Split).step.refinements
assert eval(repr(reasons)) == reasons and ".split(4).because('it reaches 3.5 GB/s')" in repr(reasons)
assert str(inspect.signature(MatMul.split(4).measured)) == "(speed: float, *, unit: str = 'TFLOP/s') -> 'Self'"
assert "because" in dir(MatMul.load(A, SH)) and not {"because", "measured"} & {*dir(MatMul), *dir(MatMul.epilog(RF))}
program = chain(MatMul(64, 32, 8)(GL, GL, GL)(Kernel)).program("sm_90")
assert "// a block" in program.cuda and "// quarters" in program.cuda and program.cuda.count("__fmaf_rn") == 2, program.cuda
a, b = np.arange(512.0).reshape(64, 8) % 7, np.arange(256.0).reshape(8, 32) % 5
assert (simulate(program.ir, {"A": a.astype(np.float32), "B": b.astype(np.float32)}).outputs["C"] == a @ b).all()
assert TWICE_FMA in INSTRUCTIONS and {"SplitInTwo", "Remark", "Scale", "TWICE_FMA", "TwiceFma"} <= set(dir(fireiron))
spec = Scale(3, 8, 4)(GL, GL)(Kernel)
assert loads(dumps(Scale.tile(4, 4).to(Block))) == Scale.tile(4, 4).to(Block) and eval(repr(spec)) == spec
"""


def test_one_new_file_in_each_folder_is_all(tmp_path):
    """Discovered, exported, selected, stored and loaded: nothing else in the package names them."""
    shutil.copytree(Path(fireiron.__file__).parent, tmp_path / "fireiron")  # with compiled modules
    for name, text in FILES.items():
        path = tmp_path / "fireiron" / name
        assert not path.exists()
        path.write_text(text.lstrip())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    stub = "import offered, public_names; print(offered.text(), public_names.text())"
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", stub], capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}
    )
    assert 'def halves(self, parts: int = 2, *, unroll: bool = False) -> MatMulStrategy:\n        """Divides m' in done.stdout, done.stderr
    assert 'class OtherVerbs:\n    def remark(self, text: str = \'\') -> Self:\n        """Prints' in done.stdout
    assert done.stdout.count("    def measured(self, speed: float, *, unit: str = 'TFLOP/s') -> Self:\n") == 2
    assert "from fireiron.decomp.halves import SplitInTwo as SplitInTwo" in done.stdout


@pytest.mark.parametrize(
    ("folder", "own", "verb"),
    [
        ("decomp/halves.py", 'verb = "halves"', 'verb = "program"'),
        ("decomp/halves.py", 'verb = "halves"', 'verb = "two words"'),
        ("refine/remark.py", 'verb = "remark"', 'verb = "pad"'),
        ("refine/reason.py", 'name="measured"', 'name="rasterize"'),
        ("refine/reason.py", 'name="measured"', 'name="load"'),
    ],
)
def test_verbs_that_are_no_names_or_those_of_another_are_refused(tmp_path, folder, own, verb):
    """They are refused when the package loads, since one of two equal verbs would be hidden. A verb that would also become a step's method
    is one.
    """
    shutil.copytree(Path(fireiron.__file__).parent, tmp_path / "fireiron")  # with compiled modules
    (tmp_path / "fireiron" / folder).write_text(FILES[folder].lstrip().replace(own, verb))
    done = subprocess.run(
        [sys.executable, "-c", "import fireiron"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    name = verb.split('"')[1]
    kind = re.search(r"^class (\w+)", FILES[folder], re.MULTILINE).group(1)
    assert f"{kind}: its verb {name!r} is not an identifier, or is in use" in done.stderr, done.stderr


def test_folders_are_read_in_the_order_of_names(monkeypatch):
    """In any order of the file system's listing."""
    listed = list(pkgutil.iter_modules(fireiron.refine.__path__))
    monkeypatch.setattr(pkgutil, "iter_modules", lambda path: reversed(listed))
    modules = folders.modules("fireiron.refine", fireiron.refine.__path__)
    assert modules == fireiron.refine.MODULES and [one.__name__ for one in modules] == sorted(one.__name__ for one in modules)


# ---------------------------------------------------------------------------------------------- errors in callers' code


def test_levels_that_contain_no_other():
    with pytest.raises(DecompositionError, match="is not a group of threads inside"):
        units.unit_in(Kernel, Warp)
    with pytest.raises(DecompositionError, match="the number of Warp units in a Block is not known yet"):
        units.count_in(Warp, Block)
    assert units.count_in(Warp, Block, 128) == 4
    with pytest.raises(DecompositionError, match="to: the argument is not a level(.|\n)*got +'Warp'"):
        MatMul.tile(8, 8).to("Warp")


def test_children_that_there_are_not():
    tree = MatMul.tile(8, 8).to(Block)(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").tree
    with pytest.raises(DecompositionError, match="no child 'nothing' here(.|\n)*legal"):
        tree.child("nothing")
    assert tree.child(tree.children[0][0]) is tree.children[0][1]


def test_refinements_and_instructions_are_tuples():
    (step,) = MatMul.tile(8, 8).steps
    with pytest.raises(DecompositionError, match="refinements must be a tuple of refinements"):
        attrs.evolve(step, refinements=[3])
    with pytest.raises(ArgumentError, match="instructions must be a tuple of executables"):
        MatMul.tile(8, 8)(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80", instructions=[FFMA])


def test_statements_without_a_body():
    with pytest.raises(VerificationError, match="Barrier contains no statements, but got 1 lists"):
        ir.Barrier(ir.BLOCK_SCOPE).rebuilt(((),))
