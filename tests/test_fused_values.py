"""Definitions are values: equal, hashable, written as Python, stored as JSON, recorded."""

import json

import pytest
from fused_examples import attention, copy, dual, gemm_bias_relu, layernorm, mlp, scaled, specs

import fireiron
from fireiron import *
from fireiron.errors import StoreError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.language.store import dumps, loads, loads_spec
from fireiron.tune.record import describe, spec_of, strategy_hash

NAMES = vars(fireiron)
ALL = specs()
DEFINITIONS = {one.kind.title: one for one in (attention, dual, gemm_bias_relu, layernorm, mlp, scaled)}


def again(text):
    return eval(text, dict(NAMES))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_definitions_are_values(definition):
    assert again(repr(definition)) == definition and hash(again(repr(definition))) == hash(definition)
    assert again(repr(definition)).kind.whole
    for other in DEFINITIONS.values():
        assert (other == definition) == (other is definition)
    text = str(definition)
    assert all(step.name in text for step in definition.fused_definition.steps) and "index_" not in text


def test_each_field_of_a_definition_counts():
    words = {"name": "f", "dims": "i j", "operands": {"x": "i j", "y": "i j"}, "body": {"y": "y[i,j] = x[i,j] * 2"}}
    definition = Fused(**words)
    others = [
        Fused(**{**words, "name": "g"}),
        Fused(**{**words, "body": {"z": "y[i,j] = x[i,j] * 2"}}),
        Fused(**{**words, "body": {"y": "y[i,j] = x[i,j] * 3"}}),
        Fused(**{**words, "operands": {"y": "i j", "x": "i j"}}),
        Fused(**{**words, "dims": "j i"}),
        Fused(**words, batch="j"),
        Fused(**words, loop="j"),
    ]
    assert len({definition, *others}) == len(others) + 1 and Fused(**words) == definition
    hashes = {strategy_hash(other.tile(i=1, j=1).to(Block).done()) for other in (definition, *others)}
    assert len(hashes) == len(others) + 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ALL)
def test_specs_are_written_and_read(name):
    strategy, spec = ALL[name]
    assert again(repr(spec)) == spec
    assert str(spec).startswith(f"{name}(") and "INDEX" not in str(spec)
    for value in (strategy, strategy(spec)):
        assert again(repr(value)) == value
        assert loads(dumps(value)) == value and hash(loads(dumps(value))) == hash(value)
        assert strategy_hash(loads(dumps(value))) == strategy_hash(value) == strategy_hash(strategy)
    assert loads_spec(dumps(spec)) == spec
    assert spec_of(describe(spec)) == spec == spec_of(json.loads(json.dumps(describe(spec), sort_keys=True)))


def test_sizes_types_and_storage_in_the_short_form():
    spec = dual(m=sym("M", multiple_of=8), n=64, k=sym("K"), types={"y": float32, "A": bfloat16}, A=ColMajor, B1=RowMajor(ld=96))
    text = repr(spec)
    assert again(text) == spec and "A=ColMajor" in text and "types={'A': bfloat16, 'y': float32}" in text
    strided = scaled(i=20, j=40, dtype=float32, x=Strides(i=ANY(8), j=1), y=Strides(i=64, j=1).aligned(4))
    assert again(repr(strided)) == strided == loads_spec(dumps(strided)) == spec_of(describe(strided))
    assert "dtype=float32" in repr(strided) and "x=Strides(i=ANY(8), j=1)" in repr(strided)
    assert again(repr(spec)) != dual(m=64, n=64, k=64)


def test_the_definition_states_types_of_operands():
    """They apply unless the call specifies others, and the short form contains only differences."""
    operands = {"X": "m n", "keep": "m n", "scale": "", "Y": "m n"}
    each = {"drop": "Y[m,n] = where(keep[m,n] != 0, X[m,n] * scale, 0)"}
    definition = Fused(name="dropped", dims="m n", operands=operands, body=each, types={"keep": "bool", "scale": float16})
    usual, other = definition(m=4, n=8, dtype=bfloat16), definition(m=4, n=8, types={"keep": float16})
    drawn = [[spec.operands[name].dtype for name in operands] for spec in (usual, other)]
    assert drawn == [[bfloat16, uint8, float16, bfloat16], [float16] * 4]
    for spec in (usual, other, definition(m=4, n=8), definition(m=4, n=8, types={"scale": float32})):
        assert again(repr(spec)) == spec and "Fused(" in repr(spec)
    assert "types={'keep': float16}" in repr(other) and repr(definition(m=4, n=8)).endswith("(m=4, n=8)")


def test_parts_are_not_stored():
    program = ALL["attention"][0](ALL["attention"][1]).program("sm_80")
    part = next(node.spec for node in program.tree.nodes() if node.spec.title == "attention" and node.spec.level == Warp)
    assert "attention" in repr(part)
    with pytest.raises(StoreError, match="a part of the definition attention cannot be stored"):
        dumps(part)
    with pytest.raises(StoreError, match="only specs of kernels and of nodes can have records"):
        describe(part)


def changed(value, **words):
    """The stored text of a strategy whose definition has other fields."""
    document = json.loads(dumps(value))
    document["strategy"]["start"] |= words
    return json.dumps(document)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words, message",
    [
        ({"body": [["y", "__import__('os').system('true')"]]}, "formula"),
        ({"body": [["y", "y[i,j] = x[i,j]"], ["y", "y[i,j] = 0"]]}, "body contains a name twice"),
        ({"body": [["y", 3]]}, "a text is needed"),
        ({"body": {"y": "y[i,j] = 0"}}, "a list is needed"),
        ({"name": "a name"}, "an identifier"),
        ({"loop": 3}, "a text is needed"),
        ({"types": [["t", "float17"]]}, "unknown DType"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_edited_files_are_validated(words, message):
    strategy = scaled.tile(i=8, j=32).to(Block).tile(1, 1).to(Thread).done()
    with pytest.raises(StoreError, match=message):
        loads(changed(strategy, **words))


def test_steps_and_places_are_stored_and_checked():
    text = dumps(ALL["mlp"][0])
    assert '"StepOf"' in text and '"SetMemory"' in text
    for old, new in (('"tensor": "h"', '"tensor": 3'), ('"memory": "SH"', '"memory": "XX"'), ('"name": "mm"', '"name": 4')):
        assert old in text
        with pytest.raises(StoreError):
            loads(text.replace(old, new))


def test_records_of_invalid_definitions():
    plain = describe(ALL["dual"][1])
    for steps in ({"body": 3}, {"body": [["a"]]}, {"body": [[1, 2]]}, {"loop": 3}, {"more": ""}, [], {"operands": []}):
        with pytest.raises(StoreError):
            spec_of({**plain, "declared": {"steps": steps}})


def test_strategies_for_products_are_for_definitions_around_them():
    gemm = MatMul.fuse_epilogue("relu(acc + bias[n])")
    bound = MatMul.tile(64, 64).to(Block).epilog(RF).split(8).tile(8, 8).to(Thread).split(1).tile(1, 1).done()(gemm(m=64, n=64, k=64))
    assert loads(dumps(bound)) == bound and again(repr(bound)) == bound
    for dtype in (None, float16):
        chain = MatMul.tile(16, 16).to(Block).epilog(RF, dtype=dtype).split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
        accumulators = [one for one in chain(gemm(m=32, n=32, k=32)).program("sm_80").ir.buffers if one.name == "acc"]
        assert [(one.memory, one.dtype) for one in accumulators] == [(RF, dtype or float32)]
    whole = gemm.tile(m=64, n=64).to(Block).then(MatMul.epilog(RF).split(8).tile(8, 8).to(Thread).split(1).tile(1, 1).done())
    assert whole.start == gemm and loads(dumps(whole)) == whole
    with pytest.raises(fireiron.errors.DecompositionError, match="starts from MatMul, this chain from dual"):
        dual.tile(m=64, n=64).to(Block).then(MatMul.tile(8, 8).to(Thread))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
def test_unused_temporary_compiles():
    """Compiler warnings are errors, and the compiler would warn about an unused variable."""
    definition = Fused(
        name="loose", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"t": "t[m,n] = X[m,n] * 2", "y": "Y[m,n] = X[m,n] + 1"}
    )
    program = definition.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(definition(m=8, n=32)).program("sm_80")
    assert "[[maybe_unused]] float t[1];" in program.cuda
    compile_cuda(program.cuda, "sm_80")


def test_copies_go_where_steps_are_copies():
    assert mlp.step("x", copy) != mlp.step("x", Move.done())
