# ruff: noqa: F401 - names of the programs in the table
"""The messages of refusals that no other test reads, by program."""

import argparse
import importlib
import json

import pytest
from event_programs import FIGURE_8_MAPPING

from fireiron import *
from fireiron import export as exported
from fireiron.cli import arguments, bench, main, tune
from fireiron.draw import draw
from fireiron.gpu.arguments import in_order
from fireiron.language import store
from fireiron.language.store.documents import check_head
from fireiron.measure import timing
from fireiron.measure.sweeps import sweep
from fireiron.tasks import *
from fireiron.tune.record import describe, spec_of
from fireiron.tune.records import best_strategy
from fireiron.values.layout import algebra, parsing
from fireiron.values.notation import parse_level, parse_tensor, parse_view

PLAIN = MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done()
SQUARE = MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
MOVED = Move(8, 8)(GL, GL)(Kernel)
BOUND = PLAIN(SQUARE)
TWO = Fused(name="two", dims="m", operands={"X": "m", "Y": "m", "Z": "m"}, body={"y": "Y[m] = X[m]", "z": "Z[m] = X[m] + X[m]"})
PAIR = TWO(m=8)

REFUSED = (
    # values
    ("Swizzle(-1, 0, 3)", "no negative bits or base"), ("Swizzle(3, 0, 2)", "source and target bits overlap"), ("Swizzle(2, 0, 3)('x')", "maps integer offsets"),
    ("Level('L', Block, 3)", "the layout must be a Layout over the parent's threads"), ("Level('L', Block, Layout(4, 0))", "its threads must be distinct"),
    ("algebra.max_common_layout(Layout(4), Layout(8))", "have 4 and 8 elements"), ("algebra.blocked_product(Layout((2, 2)), Layout(4))", "ranks 2 and 1 differ"),
    ("algebra.logical_divide(Layout((4, 4)), (2, 2, 2))", "3 tilers for"), ("algebra.runs((2, 2), 64, 1)", "there are only 4 numbers"),
    ("algebra.complement(Layout(8, 1).swizzled(Swizzle(1, 0, 1)), 16)", "a layout without swizzle"), ("algebra.complement(3, 16)", "a Layout"),
    ("parsing.parse('(4,4):(1,4):(2)')", "a layout has one colon"), ("parsing.parse('((4,4)')", "parentheses do not match"), ("parsing.parse('4)x(4')", "is not an integer"),
    ("Strides(m=-1)", "negative"), ("Strides(m=1).aligned(3)", "bytes must be a power of two"), ("sym('class')", "is a keyword of Python or C++"),
    ("MatMul(Var('x', 1, 9), 8, 8)", "x is not a symbol"), ("Init(8, 8, value=1.5, dtype=int32)", "int32 cannot represent the value exactly"), ("Reduction(8, 8, by=3)", "by"),
    ("MatMul.tile(Tunable('a', 8, 16), Tunable('a', 8, 32)).to(Block)(SQUARE).program('sm_80').tree", "two tunables have the name a"),
    ("Layout((2, 2)).coordinate('x')", "a coordinate is an integer or a tuple of coordinates"), ("Layout(2**30).offsets()", "1073741824 offsets are too many to list"),
    # notation
    ("parse_view('%a:[4].fp32.GL ?')", "after a"), ("parse_view('%a:[4].fp32.GL[0][0][0]')", "3 pairs of brackets after"), ("parse_tensor('%a:[4].fp32.GL{x}')", "after a tensor is not an option"),
    ("parse_tensor('what')", "is not a tensor"), ("parse_tensor('%a:[4:1]:[2].fp32.GL')", "has two strides"), ("parse_tensor('%a:[4]:[1].[2].fp32.GL')", "some shapes have strides and others do not"),
    ("parse_tensor('%a:[(2,2)]:[1].fp32.GL')", "differ in structure"), ("parse_tensor('#a:[4].thread')", "a group of units (thread), not a tensor"), ("parse_level('what:[32].thread')", "level"),
    ("parse_tensor('%a:[' + '(' * 100 + '4' + ')' * 100 + '].fp32.GL')", "nest deeper than 32 levels"),
    # steps
    ("MatMul.tile()", "tile(): no size given"), ("MatMul.tile(8, 8).split()", "split(): no size given"), ("Strided(3)", "each dimension must be a pair (chunk, repeat)"),
    ("MatMul.epilog(RF, float32, Init.tile(1, 1).done(), Move.tile(1, 1).done(), Move.tile(1, 1).done())", "epilog"),
    ("MatMul.epilog(RF, Init.tile(1, 1).done(), init=Init.tile(1, 1).done())", "init is given twice"), ("Move.tile(4, 4).epilog(RF)(MOVED).program('sm_80').tree", "has no accumulator"),
    ("MatMul.done(3)", "neither an executable nor a micro-kernel"), ("MatMul.then(3)", "neither a decomposition nor a strategy"), ("PLAIN.at(Split).replace(3)", "replace: not a decomposition"),
    ("MatMul.tile(8, 8).refine(3)", "not a refinement"), ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: uid // 0)", "division by 0"), ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: uid.none)", "cannot be applied to the symbol uid"), ("MatMul.tile(8, 8).to(Block).swizzle('uid +')", "not an expression"),
    ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: [])", "not an expression over uid"), ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: 'x')", "cannot be read"), ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: uid + sym('S'))", "S is unknown here"),
    ("MatMul.tile(8, 8).to(Block).swizzle(lambda uid: uid * 2**40 * 2**20)", "needs more than"), ("MatMul.tile(8, 8).to(Block).unchecked(' ')", "unchecked needs a reason"),
    ("Move.split(8)(MOVED).program('sm_80').tree", "has no reduction dimension"), ("Move.split_k(2, Block, 4)(MOVED).program('sm_80').tree", "is not a matrix multiplication"),
    ("Move.mma_tile(16, 8)(MOVED).program('sm_80').tree", "mma_tile"), ("MatMul.load(A, GL)(SQUARE).program('sm_80').tree", "load(A, GL)"),
    ("BOUND.program('sm_80').tree.child('x')", "no child 'x' here"), ("MatMul.tile(4, 4).to(Block)(SQUARE).program('sm_80').cuda", "1 open leaf"),
    ("MatMul.tile(8, 8).fallback(3)", "fallback: the argument is not a strategy"), ("MatMul.tile(8, 8).to(Block).split(8).load(A, SH, Move.tile(1, 1).done().fallback(Move.done()))", "is legal only for complete strategies"), ("MatMul.set_memory('x', RF)(SQUARE).program('sm_80').tree", "has no temporaries"),
    # storage
    ("store.dumps(3)", "neither a strategy nor a spec"), ("store.loads('{}')", "not a stored strategy"), ("store.loads('[')", "not JSON"), ("store.loads('9' * 6000)", "not JSON"),
    ("store.loads(store.dumps(MatMul.tile(8, 8)).replace('\"Tile\"', '3'))", "needs its class under"), ("store.loads(store.dumps(MatMul.tile(8, 8)).replace('\"Tile\"', '\"Less\"'))", "unknown class 'Less'"),
    ("store.loads_spec(store.dumps(SQUARE).replace('\"GL\"', '\"XL\"'))", "XL"), ("store.expression('M.x')", "not an expression"), ("store.expression('(' * 9)", "not an expression"),
    ("store.expression('f(3)')", "no function 'f' with 1 arguments"), ("store.write_text('/tmp/x.json', chr(0xd800))", "cannot be written"),
    # records
    ("describe(3)", "describe requires a spec"), ("Record.parse('[')", "not JSON"), ("Record.parse('9' * 6000)", "not JSON"), ("spec_of({**describe(SQUARE), 'more': 1})", "the field 'more' is unknown"),
    ("spec_of({**describe(SQUARE), 'layouts': {'A': 'Strides(x)', 'B': 'col', 'C': 'col'}})", "the strides are invalid"), ("spec_of({**describe(SQUARE), 'layouts': {'A': 'Strides(m=1, k=(2))', 'B': 'col', 'C': 'col'}})", "a stride is invalid"),
    ("spec_of({**describe(SQUARE), 'layouts': {'A': 'both', 'B': 'col', 'C': 'col'}})", "the layout is unknown"), ("spec_of({**describe(SQUARE), 'symbols': {'Q': {}}})", "symbols must have only facts"),
    ("spec_of({**describe(SQUARE), 'leading': {'X': 8}})", "may only have values for"), ("Records.append_to('/tmp/x.jsonl', 3)", "append_to requires a Record"),
    # kernels and arrays
    ("in_order(PAIR, {'Y': 1})", "Z missing"), ("in_order(PAIR, {'Q': 1})", "has no output 'Q'"), ("in_order(PAIR, 3)", "has 2 outputs"), ("in_order(PAIR, (1, 2, 3))", "3 arrays"),
    ("TWO.check({'q': 3})", "no dimension q"), ("Fused(name='f', dims='m m', operands={}, body={})", "Fused"),
    # measuring
    ("timing.time_kernel(3)", "the argument is not a compiled kernel"), ("timing.throughput(SQUARE, 0)", "time of a launch must be positive"), ("sweep('naive', [(8, 8, 8)], values=[{}], bm=[8])", "values= and tunables by keyword"),
    ("sweep(3, [(8, 8, 8)])", "sweep: the argument is not a strategy"), ("sweep([], [(8, 8, 8)])", "sweep: there are no combinations"), ("sweep('naive', [(8, 8, 8)], q=[8])", "has no tunable q"), ("sweep(PLAIN, [(8, 8, 8)])", "strategy has no function"), ("best_strategy(SQUARE, default=True, require_record=True)", "an exact record is required, so defaults are not permitted"),
    # pictures and exports
    ("draw(BOUND, ())", "nothing to draw"), ("draw(BOUND.program('sm_80'), 'tree', architecture='sm_90')", "already has its target"), ("draw(PLAIN(MatMul(sym('M', 8), 8, 8)(GL, GL, GL)(Kernel)), 'tree', sizes={'M': 3})", "sizes: M"), ("explore(BOUND).save('/tmp/x.txt')", "the page is HTML"), ("draw(BOUND, ('tree', 'flow')).save('/tmp/x.svg')", "can contain only one picture"),
    ("draw(BOUND, ('tree', 'flow')).save('/dev/null')", "is not a folder"), ("exported(3, '/tmp/x')", "export: the argument is not a kernel"), ("exported(BOUND, 3)", "not a path"),
    # tasks
    ("Mapping(3)", "must be a list"), ("Mapping([3])", "not an instance"), ("Mapping([], 3)", "not a machine"), ("Mapping.from_json(3)", "from_json: not a text"), ("TaskMapping('i', 'v', HOST, [GLOBAL], layouts={'a': 3})", "layouts must be Stored(...)"),
    ("TaskMapping('i', 'v', BLOCK, [GLOBAL], mma_in_flight=5)", "mma_in_flight=5"), ("TaskMapping('i', 'v', HOST, [GLOBAL], raster=3)", "raster=3"), ("TaskMapping('i', 'v', HOST, [GLOBAL], {'U': 1.5})", "the tunable U"),
    ("TaskMapping('i', 'v', HOST, [GLOBAL], calls=[3])", "names of instances"), ("task('x', Inner)(3)", "must decorate a function"), ("launch('x')", "no task is running"),
    ("FIGURE_8_MAPPING['nobody']", "Mapping: no instance nobody"), ("FIGURE_8_MAPPING.diff(3)", "Mapping.diff: not a mapping"), ("FIGURE_8_MAPPING.with_('gemm_block', Q=3)", "gemm_block: no tunable Q"),
    ("Mapping([*FIGURE_8_MAPPING.instances], max_shared_bytes=-1)", "max_shared_bytes must be a number of bytes"), ("Mapping([])", "one instance must be the entry point"), ("Mapping([*FIGURE_8_MAPPING.instances] * 2)", "two instances are called"),
    ("TaskMapping('i', 'v', 3, [GLOBAL])", "proc is not a processor"), ("TaskMapping('i', 'v', BLOCK, [3])", "mems must be places"), ("TaskMapping('i', 'v', BLOCK, [GLOBAL], pipeline=-1)", "pipeline must be a number of stages"),
    ("TaskMapping('i', 'v', BLOCK, [GLOBAL], group_m=-1)", "group_m applies only to an instance that launches blocks"), ("TaskMapping('i', 'v', HOST, [GLOBAL], cluster=3)", "must be a list"), ("TaskMapping('i', 'v', HOST, [GLOBAL], cluster='ab')", "must be a list"),
    ("TaskMapping('i', 'v', HOST, [GLOBAL], group_m=-1)", "must be integers in range"), ("Mapping.from_json('{}')", "the field 'machine' is missing"), ("Mapping.from_json('[')", "not JSON"), ("cdiv(3, 0)", "the divisor must be positive"),
    ("cdiv('x', 2)", "not an integer expression"), ("tunable(3.5)", "the kind is unknown"), ("Stored(pad=-1)", "pad must not be negative"), ("partition(3, 4)", "a tensor of a task and a Partition"),
)  # fmt: skip
"""A program, and the message of its refusal."""


@pytest.mark.parametrize(("program", "message"), REFUSED, ids=[program[:60] for program, _ in REFUSED])
def test_refusals_state_the_reason(program, message):
    with pytest.raises(FireironError) as caught:
        eval(program, globals())
    assert message in str(caught.value)


LINES = (
    (arguments.sized, "m64", "is not DIMENSION=SIZE, such as m=64"), (arguments.positive, "0", "is not a positive integer"), (bench._shape, "8x8", "is not MxNxK"),
    (bench._swept, "bm=a", "NAME=INTEGER"), (tune._numbers, "0;1", "indices of GPUs, such as 0,1"), (tune._seconds, "0", "is not a positive number of seconds"),
    (tune._prune, "0.5", "a factor of at least 1, or none"),
)  # fmt: skip


@pytest.mark.parametrize(("read", "word", "message"), LINES, ids=[word for _, word, _ in LINES])
def test_invalid_command_line_values(read, word, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        read(word)


@pytest.mark.parametrize("module", ["fireiron", "fireiron.tune"])
def test_attributes_that_there_are_none_of(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'no_such'"):
        importlib.import_module(module).no_such  # noqa: B018 - looked up


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "not a stored spec"),
        ({"fireiron": "strategy"}, "a spec is needed"),
        ({"fireiron": "spec", "version": 2}, "not supported"),
        ({"fireiron": "spec", "version": 1}, "missing"),
    ],
)
def test_heads_of_documents(document, message):
    with pytest.raises(FireironError, match=message):
        check_head(json.loads(json.dumps(document)), "spec")


COMMANDS = (
    ("list --records --outdated", "--records and --outdated request two different tables"), ("records show -o x", "records show writes no file"), ("records merge", "no file is given"),
    ("cache prune", "nothing to remove is specified"), ("draw naive -o -", "standard output takes one picture"), ("draw naive --what tree,flow -o -", "standard output takes one picture"),
    ("draw naive --what all -o -", "standard output takes one picture"), ("draw naive --html x.html -o y.svg", "--html writes a separate page"),
    ("draw naive --html x.html --what tree", "--html writes a separate page"), ("tune hmma_ampere --predict --save x", "there is no record to save"),
    ("tune hmma_ampere --predict --trials 3 --seed 2", "--trials, --seed would have no effect"), ("list --arch sm_0", "unknown architecture"), ("records merge /dev/null -o /tmp", "/tmp exists"),
    ("cost naive --gpu nothing", "unknown GPU"), ("cost naive --size Q=3", "the spec has no size Q"), ("cost naive -M M --size M=0", "M=0"), ("run naive -M M --size M=0", "--size M=0"),
    ("new class", "is not a module name"), ("new attrs", "would hide the module attrs"), ("new no/such/x", "the folder no/such does not exist"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "message"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_commands_that_are_refused(line, message, tmp_path, monkeypatch, capsys):
    """With a message and exit status 2, before anything is computed or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "cache"))
    assert main(line.split()) == 2
    assert message in capsys.readouterr().err and list(tmp_path.iterdir()) == []


OF_GROUPS = Fused(
    name="of_groups", dims="m n g q", scan="g q", operands={"A": "m n", "w": "q g", "D": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={"mask": "t[m,n] = where(m < q + g, A[m,n] + w[q,g], 0)", "add": "acc[m,n] = acc[m,n] + t[m,n]"},
    final={"store": "D[m,n] = acc[m,n]"},
)  # fmt: skip


def test_a_condition_is_shown_as_it_was_written():
    """Not as `index_m[m] < ...`, which no user wrote."""
    skipping = OF_GROUPS.tile(m=8, n=8).to(Block).split(g=1, q=1).skip_masked_tiles().tile(m=1, n=1).to(Thread).done()
    with pytest.raises(DecompositionError, match="compares no coordinate with an integer of the iteration") as refused:
        skipping(OF_GROUPS(m=16, n=16, g=3, q=2)).cuda("sm_80")
    assert refused.value.got == "m < q + g"


def test_a_number_above_the_maximum_is_refused_with_the_maximum():
    float16_rows = {"dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    blocks = MatMul.tile(64, 64).to(Block).persistent(2).pingpong(3).epilog(RF, float32).split(64).pipeline(2).warp_specialize()
    strategy = blocks.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    with pytest.raises(DecompositionError, match="pingpong: must be at most 2") as refused:
        strategy(MatMul(512, 512, 512, **float16_rows)(GL, GL, GL)(Kernel)).cuda("sm_90a")
    assert refused.value.got == 3 and refused.value.legal == "1 ... 2"


def test_an_operand_is_combined_with_sums_only():
    steps = {"double": "t[m,k] = X[m,k] * 2", "add": "H[k] *= prod(m, t[m,k])"}
    with pytest.raises(ArgumentError, match=r"\*= combines with the operand H, but only sums, maxima and minima are combined in memory"):
        Fused(name="sums", dims="m k", operands={"X": "m k", "H": "k"}, body=steps)
