"""Stored strategies: nothing is lost, and a document that is wrong anywhere is refused with its place."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import random

import attrs
import pytest
from problems import ALL_NAMES, NAMES
from problems import library as library_file

import fireiron
from fireiron import *
from fireiron.graphene.written import Written
from fireiron.inspect.explain import End
from fireiron.language import library
from fireiron.language.store import CLASSES, VERSION, dumps, expression, expression_text, load, loads, loads_spec, save, write_text
from fireiron.performing.matrices import MatrixCopy
from fireiron.performing.tma_loads import TmaTileLoad
from fireiron.stepping.print_iterations import PrintIterations
from fireiron.tasks.step import TaskProgram


@attrs.frozen
class Swap(Decomposition):
    """A user's step, with fields of several kinds."""

    verb = "swap"
    amount: int = 1
    note: str = ""
    flags: tuple[bool, ...] = ()
    inner: tuple[Decomposition, ...] = ()
    scale: float = 1.0
    where: Memory | None = None
    size: Expr | None = None
    table: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen
class Turbo(Refinement):
    """A user's refinement."""

    applies_to = ("swap", "tile")
    level: int = 3

    def plan(self, plan: Any) -> Any:
        """Changes nothing."""
        return plan


def mixed() -> Strategy:
    """A strategy with every built-in step, refinement, executable and tunable."""
    bm = Tunable("bm", 64, 128)
    copy_ = (
        Move.tile(bm // 8 + 1 * bm, 1).to(Warp).unroll().tile(1, 1).to(Lane).layout(ColMajor).swizzle(lambda uid: uid ^ 1).done(vector(4))
    )
    return (
        MatMul.tile(bm, n=64)
        .to(Block)
        .epilog(SH, float16, Init.tile(1, 1).to(Thread).done(), Move.done(MicroKernel.of("dst[0] = src[0];", scratch_bytes=64, threads=32)))
        .unchecked("a test")
        .split(k=8)
        .unroll()
        .sync()
        .load(A, SH, copy_)
        .no_sync()
        .storage_layout(Layout((8, (2, 4)), (1, (8, 16))))
        .pad(Tunable("pad", 0, 4))
        .align(128)
        .reuse_buffer()
        .swizzle_storage(Swizzle(2, 0, 3))
        .load(B, RF)
        .to_row_major()
        .tile(Strided((4, 32), (4, 16)))
        .to(QuadPair)
        .done(HFMA2)
    )


def problems() -> list[Spec]:
    M, L = sym("M", multiple_of=8), sym("L", high=4096)
    return [
        MatMul(64, 64, 64)(GL, GL, GL)(Kernel),
        MatMul(M, M * 2 + 8, 7, dtype=(int8, int32), c_dtype=float32, accumulator=float64, A=RowMajor(ld=L), C=ColMajor(ld=M + 5))(
            GL, GL, GL
        )(Kernel),
        MatMul(8, 8, 1, accumulate=True)(RF, SH, RF)(Warp),
        Move(M, 9, dtype=float16, dst_dtype=float32, src=RowMajor)(GL, GL)(Kernel),
        Init(4, 4, dtype=int32, value=7)(RF)(Thread),
        BinaryPointwise("*", 8, M, dtype=float16, rhs=RowMajor)(GL, GL, GL)(Kernel),
    ]


# ---------------------------------------------------------------------------------------------- round trips


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_library_strategies_survive(name: str) -> None:
    entry = library.find(name)
    for strategy in (entry.strategy, library.bind(entry), library.bind(entry, {"M": sym("M", 8), "N": sym("N"), "K": 64})):
        again = loads(dumps(strategy))
        assert again == strategy
        assert hash(again) == hash(strategy)
        assert type(again) is type(strategy)
        assert repr(again) == repr(strategy)
        assert dumps(again) == dumps(strategy)
        assert Strategy.from_json(strategy.to_json()) == strategy


@pytest.mark.parametrize("name", NAMES)
def test_repr_of_library_strategies_evaluates(name: str) -> None:
    names: dict[str, object] = {}
    exec("from fireiron import *", names)
    entry = library.find(name)
    for strategy in (entry.strategy, library.bind(entry), library.bind(entry, {"M": sym("M", 8), "N": sym("N"), "K": 64})):
        again = eval(repr(strategy), dict(names))
        assert again == strategy
        assert hash(again) == hash(strategy)
        assert again.start == strategy.start


def test_files_that_start_any_bound_chain_from_matmul_are_read() -> None:
    """Before the start counted, a bound chain of a sum was stored as one that starts from MatMul."""
    strategy = Reduction(8, 8, 4)(GL, GL)(Kernel).tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    text = dumps(strategy)
    assert '"start": "Reduction"' in text
    older = text.replace('"start": "Reduction"', '"start": "MatMul"')
    assert loads(older) == strategy and hash(loads(older)) == hash(strategy)
    with pytest.raises(StoreError, match="a chain of a Reduction cannot start from 'Move'"):
        loads(text.replace('"start": "Reduction"', '"start": "Move"'))


def test_every_built_in_survives() -> None:
    for strategy in (mixed(), Strategy(), MatMul.tile(8, 8).to(Thread), Move.load("src", SH), MatMul.done(FFMA), MatMul.done(DFMA)):
        assert loads(dumps(strategy)) == strategy
        assert eval(repr(strategy)) == strategy
    assert loads(dumps(MatMul.tile(8, 8))).unroll() == MatMul.tile(8, 8).unroll()


def test_specs_survive_and_bind() -> None:
    for spec in problems():
        assert loads_spec(dumps(spec)) == spec
        bound = spec.tile(4, 4)
        assert loads(dumps(bound)) == bound
        assert loads(dumps(bound)).spec == spec
    for name in NAMES:
        residual = library.bind(library.find(name)).result
        assert loads_spec(dumps(residual)) == residual


def test_every_class_that_extends_the_language_is_stored() -> None:
    classes: set[type] = set()
    for module in pkgutil.walk_packages(fireiron.__path__, "fireiron."):
        if not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, (Decomposition, Refinement, Executable, Spec)):
                    classes.add(value)
    abstract = {Decomposition, Refinement, Executable, Spec, End, MatrixCopy, TmaTileLoad}
    abstract.add(Written)  # a program as text, which is stored as text
    abstract.add(PrintIterations)  # made by a step of a definition, never part of a strategy
    abstract.add(TaskProgram)  # of a higher layer, which `later` names
    assert classes - abstract - set(CLASSES.values()) == set()


def test_own_values_survive() -> None:
    """A level, a memory and an element type that are not built in are stored with their fields."""
    half_warp = Level("HalfWarp", Warp, Layout(16))
    tensor_memory = Memory("TM", 2, "block", "tensor memory")
    tiny = DType("float8", 8, "float", "__nv_fp8_e4m3", "uint8", 4)
    strategy = MatMul.tile(8, 8).to(half_warp).epilog(tensor_memory, tiny).load(A, tensor_memory)
    assert loads(dumps(strategy)) == strategy
    pretender = MatMul.epilog(RF, DType("float32", 16, "float", "__half", "float16"))
    assert loads(dumps(pretender)) == pretender
    assert '"bits": 16' in dumps(pretender)


def test_former_levels_are_read() -> None:
    """Documents with the threads of a level as sizes and strides, and their hashes."""
    level = Level("Odd", Warp, Layout((2, 4), (1, 8)))
    strategy = MatMul.tile(8, 8).to(level)
    text = dumps(strategy)
    document = json.loads(text)
    (to,) = document["strategy"]["steps"][0]["refinements"]
    assert to["level"].pop("layout") == {"type": "Layout", "shape": [2, 4], "stride": [1, 8]}
    with pytest.raises(StoreError):
        loads(json.dumps(document).replace('"label"', '"sizes": [2, 4], "label"'))
    to["level"] |= {"sizes": [2, 4], "strides": [1, 8]}
    assert loads(json.dumps(document)) == strategy
    to["level"]["strides"] = "1"
    with pytest.raises(StoreError):
        loads(json.dumps(document))


def test_former_lane_maps_are_read() -> None:
    """Documents with layouts as lists of (size, dimension, stride)."""
    form = attrs.evolve(HMMA_16816_F32, name="MINE")
    document = json.loads(dumps(MatMul.done(form)))
    stored = document["strategy"]["steps"][0]["executable"]
    assert stored["b"]["lanes"] == {"type": "Layout", "shape": [4, 8], "stride": [2, 16]}
    stored["b"] |= {"lanes": [[4, 0, 2], [8, 1, 1]], "values": [[2, 0, 1], [2, 0, 8]]}
    assert loads(json.dumps(document)) == MatMul.done(form)
    for wrong in ([[4, 0]], [[4, 0, "2"]], 3, [4]):
        stored["b"]["lanes"] = wrong
        with pytest.raises(StoreError):
            loads(json.dumps(document))


def test_own_classes_survive_when_named() -> None:
    step = Swap(5, "x", (True, False), (Swap(2), Tile((2, 2)), Done()), 0.5, SH, sym("M") * 4, {"a": 1}).refined(Turbo(9))
    strategy = MatMul.tile(8, 8).refine(Turbo()).then(step)
    text = dumps(strategy, classes=[Swap, Turbo])
    assert loads(text, classes=[Swap, Turbo]) == strategy
    with pytest.raises(StoreError, match="Turbo"):
        dumps(strategy, classes=[Swap])
    with pytest.raises(StoreError, match=r"unknown class 'Turbo'[\s\S]*steps\[0\]"):
        loads(text)
    with pytest.raises(ArgumentError, match="another stored class"):
        dumps(strategy, classes=[attrs.make_class("Tile", {})])
    for wrong in (int, "Swap", Swap()):
        with pytest.raises(ArgumentError, match="not an attrs class"):
            dumps(strategy, classes=[wrong])  # type: ignore[list-item]
    with pytest.raises(StoreError, match="type object"):
        dumps(MatMul.then(Swap(1, note=object())), classes=[Swap])  # type: ignore[arg-type]


def test_expressions_survive() -> None:
    choose = random.Random(5)
    leaves = [Var("uid", 0, 2**31 - 1), sym("M", 8), sym("N"), Var("lane", 0, 31), Const(0), Const(1), Const(7), Const(96)]
    for _ in range(400):
        value = choose.choice(leaves)
        for _ in range(choose.randrange(6)):
            other = choose.choice(leaves)
            value = choose.choice(
                [
                    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a * 3 + b, lambda a, b: a // 8 + b, lambda a, b: a % 32 * b,
                    lambda a, b: a // (b + 1), lambda a, b: a % (b + 1), lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ b,
                    lambda a, b: a - b if a.low - b.high >= 0 else a, minimum,
                ]
            )(value, other)  # fmt: skip
        for whole in (value, value < 9, equal(value, 3), all_of([value < 5, leaves[1] < 99]), any_of([value < 5, leaves[2] < 9])):
            assert expression(expression_text(whole)) == whole
    assert expression_text(leaves[0] // 2 % 8) == "uid // 2 % 8"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "text",
    ["", " ", "uid +", "f(1)", "__import__('os')", "uid.x", "uid[0]", "lambda: 0", "1.5", "True", "None", "'a'", "uid // 0", "uid % 0", "M",
     "Var('M')", "Var('M', 0, 1, 0, True)", "Var('M', 5, 1, 1, True)", "Var('1', 0, 1, 1, True)", "Var(uid, 0, 1, 1, True)",
     "Var('M', 0, 1, True, True)", "uid ** 9", "uid < uid < 3", "uid if 1 else 2", "9" * 5000, "(" * 500 + "uid",
     "-" * 99999 + "uid", "all_of(uid)", "equal(1)", "1_000x", "uid\n+ 1;", "uid \\d", "{}", True, None, 1.0, [], {}],
)  # fmt: skip
def test_texts_that_are_not_expressions(text: object) -> None:
    with pytest.raises(FireironError):
        expression(text)


# ---------------------------------------------------------------------------------------------- refusals


def document(strategy: Strategy | None = None) -> dict:  # type: ignore[type-arg]
    value: dict = json.loads(dumps(mixed() if strategy is None else strategy))  # type: ignore[type-arg]
    return value


def refused(value: object) -> str:
    with pytest.raises(StoreError) as caught:
        loads(value if isinstance(value, str) else json.dumps(value))
    return str(caught.value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "message", "place"),
    [
        (lambda d: d["steps"][0].update(sizes=[-1, 8]), "tile", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(sizes=[0]), "tile", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(sizes=[1.5]), "tile", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(sizes=["8"]), "tile", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(sizes=[True]), "tile", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(sizes="88"), "a list is needed", "$.strategy.steps[0].sizes"),
        (lambda d: d["steps"][0].update(sizes=[], by_dim=[]), "no size", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(by_dim=[["n", 64], ["n", 32]]), "", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(by_dim=[["n"]]), "2 values", "$.strategy.steps[0].by_dim[0]"),
        (lambda d: d["steps"][0].update(by_dim=[[3, 64]]), "a text", "$.strategy.steps[0].by_dim[0][0]"),
        (lambda d: d["steps"][0].update(size=3), "unknown field 'size'", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(origin="x.py:1"), "unknown field 'origin'", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].pop("type"), "class", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(type="Tiel"), "unknown class 'Tiel'", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(type=["Tile"]), "class", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0].update(type="Unroll", sizes=1), "Unroll is not a Decomposition", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0]["refinements"].append({"type": "Pad", "elements": 1}), "Pad", "$.strategy.steps[0]"),
        (lambda d: d["steps"][0]["refinements"].append({"type": "To", "level": "Warp"}), "twice", "$.strategy.steps[0]"),
        (
            lambda d: d["steps"][0]["refinements"][0].update(level="Blok"),
            "unknown Level 'Blok'",
            "$.strategy.steps[0].refinements[0].level",
        ),
        (lambda d: d["steps"][0]["refinements"][0].pop("level"), "missing", "$.strategy.steps[0].refinements[0].level"),
        (lambda d: d["steps"][0]["sizes"][0].update(values=[]), "Tunable", "$.strategy.steps[0].sizes[0]"),
        (lambda d: d["steps"][0]["sizes"][0].update(name=""), "Tunable", "$.strategy.steps[0].sizes[0]"),
        (lambda d: d["steps"][1].update(memory=None), "Memory", "$.strategy.steps[1].memory"),
        (lambda d: d["steps"][1].update(dtype="float17"), "unknown DType 'float17'", "$.strategy.steps[1].dtype"),
        (lambda d: d["steps"][1]["refinements"][0].update(reason=" "), "unchecked", "$.strategy.steps[1].refinements[0]"),
        (
            lambda d: d["steps"][1]["store"][0]["executable"].update(scratch_bytes=-4),
            "scratch_bytes",
            "$.strategy.steps[1].store[0].executable",
        ),
        (lambda d: d["steps"][1]["store"][0]["executable"].update(scratch_bytes="4"), "integer", "store[0].executable.scratch_bytes"),
        (lambda d: d["steps"][1]["init"].insert(0, {"type": "Done"}), "has steps after done", "$.strategy.steps[1]"),
        (lambda d: d["steps"][3]["refinements"][0].update(bytes=3), "align", "$.strategy.steps[3].refinements[0]"),
        (lambda d: d["steps"][3]["refinements"][2].update(elements=-1), "pad", "$.strategy.steps[3].refinements[2]"),
        (lambda d: d["steps"][3]["move"][0]["sizes"][0].update(op="**"), "", "$.strategy.steps[3].move[0].sizes[0]"),
        (lambda d: d["steps"][3].update(operand=7), "a text", "$.strategy.steps[3].operand"),
        (lambda d: d["steps"][3].update(operand="a b"), "", "$.strategy.steps[3]"),
        (lambda d: d["steps"][5]["sizes"][0].update(dims=[[4, 6]]), "Strided", "$.strategy.steps[5].sizes[0]"),
        (lambda d: d["steps"].insert(0, {"type": "Done"}), "has steps after done", "$.strategy"),
        (lambda d: d.update(steps={}), "list", "$.strategy.steps"),
        (lambda d: d.update(start="Nothing"), "start", "$.strategy"),
        (lambda d: d.pop("start"), "missing", "$.strategy.start"),
        (lambda d: d.update(more=1), "unknown field 'more'", "$.strategy"),
        (lambda d: d.update(spec={"type": "Tile", "sizes": [1]}), "Tile is not a Spec", "$.strategy.spec"),
    ],
)
def test_a_wrong_document_names_the_place(change, message: str, place: str) -> None:  # type: ignore[no-untyped-def]
    value = document()
    change(value["strategy"])
    text = refused(value)
    assert message in text
    assert place in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(level="Warp", A=s["B"]), ""),
        (lambda s: s["A"]["tensor"].update(memory="SH"), "global memory"),
        (lambda s: s["A"]["tensor"].update(shape=[64, -1]), ""),
        (lambda s: s["A"]["tensor"].update(shape=[64]), "rank"),
        (lambda s: s["A"]["numerals"][0]["modes"][0].update(size=32), "along m"),
        (lambda s: s["A"]["numerals"][0]["modes"][0].update(size=0), ""),
        (lambda s: s["A"]["numerals"].pop(), ""),
        (lambda s: s["C"]["tensor"].update(layout={"type": "MatrixLayout", "order": "diagonal"}), "row or col"),
        (lambda s: s["C"]["tensor"].update(layout={"type": "MatrixLayout", "order": "col", "leading": 3}), ""),
        (lambda s: s["C"]["tensor"].update(align=3), "power of two"),
        (lambda s: s.update(accumulator="half"), "unknown DType"),
    ],
)
def test_a_wrong_spec_is_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    spec = MatMul(64, 48, 32)(GL, GL, GL)(Kernel)
    value = document(spec.tile(16, 16))
    change(value["strategy"]["spec"])
    assert message in refused(value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "3", '"strategy"', "{}", '{"fireiron": "strategy"}', '{"fireiron": "strategy", "version": 1}', "\ufeff{}",
     "NaN",
     '{"fireiron": "strategy", "version": 1, "strategy": null}', '{"fireiron": "strategy", "version": 1, "strategy": {}, "x": 1}',
     '{"fireiron": "strategy", "version": 1, "version": 1, "strategy": {}}', '{"fireiron": ["a"], "version": 1, "strategy": {}}',
     '{"fireiron": "strategy", "version": 1, "strategy": NaN}', "[" * 100000, "[" + "9" * 6000 + "]",
     '{"fireiron": "strategy", "version": 1, "strategy": {"start": "MatMul", "spec": null, "steps": ' + "[" * 300 + "]" * 300 + "}}"],
)  # fmt: skip
def test_a_text_that_is_not_a_document(text: str) -> None:
    refused(text)


def test_versions_and_kinds() -> None:
    for version in (0, 2, True, "1", None, 1.0):
        assert "version" in refused(document() | {"version": version})
    assert document()["version"] == VERSION
    with pytest.raises(StoreError, match="loads_spec"):
        loads(dumps(problems()[0]))
    with pytest.raises(StoreError, match="loads"):
        loads_spec(dumps(mixed()))
    for wrong in (None, 3, b"{}", MatMul):
        with pytest.raises(ArgumentError):
            loads(wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError):
            dumps(wrong)  # type: ignore[arg-type]


ODD = [None, True, False, 0, -1, 1, 2**40, 1.5, "", "x", "RF", "Warp", "uid", "Var('M', 1, 9, 1, True)", [], [0], [[]], {},
       {"type": "Tile"}, {"type": "Done"}, {"type": "Tunable", "name": "t", "values": [2]}, {"type": "Strided", "dims": [[1, 2]]},
       {"type": "To", "level": "Warp"}]  # fmt: skip


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def mutated(value: object, choose: random.Random) -> object:
    """The document with one to three places changed, removed, doubled or exchanged."""
    value = copy.deepcopy(value)
    for _ in range(choose.randint(1, 3)):
        path = choose.choice(places(value)[1:])
        container = value
        for key in path[:-1]:
            container = container[key]  # type: ignore[index]
        action = choose.randrange(4)
        if action == 0:
            del container[path[-1]]  # type: ignore[attr-defined]
        elif action == 1 and isinstance(container, list):
            container.insert(choose.randint(0, len(container)), copy.deepcopy(container[path[-1]]))  # type: ignore[call-overload]
        elif action == 1 and isinstance(container, dict):
            container[choose.choice(["sizes", "type", "x", "memory"])] = container.pop(path[-1])
        elif action == 2:
            other = value
            for key in choose.choice(places(value)):
                other = other[key]  # type: ignore[index]
            container[path[-1]] = copy.deepcopy(other)  # type: ignore[index]
        else:
            container[path[-1]] = copy.deepcopy(choose.choice(ODD))  # type: ignore[index]
    return value


@pytest.mark.parametrize("seed", range(8))
def test_mutated_documents_are_refused_or_right(seed: int) -> None:
    choose = random.Random(seed)
    originals = [document(), document(problems()[1].tile(4, 4).then(mixed())), document(library.find("maxwell").strategy)]
    refusals = 0
    for _ in range(60):
        text = json.dumps(mutated(choose.choice(originals), choose))
        if choose.random() < 0.2:
            cut = choose.randrange(len(text))
            text = text[:cut] + choose.choice(["", "x", '"', "}", "1", "\\"]) + text[cut + choose.randrange(3) :]
        try:
            strategy = loads(text)
        except StoreError as error:
            refusals += 1
            assert str(error)
            continue
        assert loads(dumps(strategy)) == strategy
    assert refusals > 30


# ---------------------------------------------------------------------------------------------- files


def test_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "strategy.json"
    save(mixed(), path)
    assert load(path) == mixed()
    with pytest.raises(StoreError, match="exists"):
        save(MatMul.tile(1, 1), path)
    assert load(path) == mixed()
    save(MatMul.tile(1, 1), path, overwrite=True)
    assert load(str(path)) == MatMul.tile(1, 1)
    assert [one.name for one in tmp_path.iterdir()] == ["strategy.json"]
    link = tmp_path / "link.json"
    link.symlink_to(path)
    save(MatMul.tile(2, 2), link, overwrite=True)
    assert link.is_symlink() and load(path) == MatMul.tile(2, 2)


def test_files_that_cannot_be_written_or_read(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for path in (tmp_path, tmp_path / "no" / "x.json", tmp_path / ("x" * 400)):
        with pytest.raises(StoreError):
            save(mixed(), path, overwrite=True)
        with pytest.raises(StoreError):
            load(path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    with pytest.raises(StoreError, match="not text"):
        load(tmp_path / "bytes")
    (tmp_path / "half").write_text(dumps(mixed())[:300])
    with pytest.raises(StoreError, match=r"not JSON[\s\S]*half[\s\S]*line"):
        load(tmp_path / "half")
    with pytest.raises(StoreError):
        write_text(tmp_path / "surrogate", "\ud800")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bytes", "half"]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_strategy_of_the_library_evaluates_from_its_repr(name):
    """Strategies of task programs evaluate in their stored form, because a program is not an expression."""
    known = {form: value for form, value in vars(library_file(name)).items() if isinstance(value, Strategy)}
    assert known
    for form, strategy in known.items():
        assert eval(repr(strategy), dict(vars(fireiron))) == strategy, form
