"""Former names: stored strategies, hashes, Graphene's literals and expressions of before keep their meaning."""

# plain-words: allow-file
import json

import attrs
import pytest

from fireiron import *
from fireiron.graphene.literals import literal_text, read_literal
from fireiron.language import former
from fireiron.language.store import dumps, loads
from fireiron.language.store.classes import CLASSES
from fireiron.language.strategy import Strategy
from fireiron.tune.record import strategy_hash
from fireiron.values.notation import read_expression

PERSISTENT = MatMul.tile(128, 64).to(Block).rasterize(group_m=8).persistent(4).pingpong(2).min_blocks_per_sm(1).epilog(RF, float32)
CHAIN = PERSISTENT.split(64).pipeline(3).warp_specialize(128).mma_in_flight(1).load(A, SH, Move.done()).stages(2).load(B, SH, Move.done())
STRATEGY = CHAIN.tile(64, 64).to(Warpgroup).done()
FUSED = Fused(
    name="total", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    init={"zero": "t[m] = 0"}, body={"sums": "s[m] = sum(n, X[m,n])", "add": "t[m] = t[m] + s[m]"}, final={"out": "y[m] = t[m]"},
)  # fmt: skip
ROWS = (
    FUSED.rfactor("sums", 32).tile(m=1).to(Block).split(n=128).load("X", RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()).done()
)


def old(value):
    """A stored strategy with the first names of all classes and fields."""
    if isinstance(value, list):
        return [old(part) for part in value]
    if not isinstance(value, dict):
        return value
    name = value.get("type", "Strategy" if "steps" in value else "")
    fields = former.first_fields(name)
    parts = {fields.get(key, key): old(former.first_value(name, key, part)) for key, part in value.items() if key != "type"}
    return parts | ({"type": former.first_class(name)} if "type" in value else {})


@pytest.mark.parametrize(
    "strategy",
    [STRATEGY, ROWS, STRATEGY.fallback(STRATEGY), Move.coalesced_copy(4).done()],
    ids=["rings", "definition", "fallback", "copy"],
)
def test_stored_strategies_with_first_names_load(strategy):
    stored = json.loads(strategy.to_json())
    former_text = json.dumps(old(stored))
    assert former_text != json.dumps(stored), "the example has no former name"
    assert Strategy.from_json(former_text) == strategy


@pytest.mark.parametrize(("strategy", "known"), [(STRATEGY, "e719a600e125d031"), (ROWS, "3dfea8569619a19e")], ids=["rings", "definition"])
def test_hashes_are_unchanged(strategy, known):
    """They are those of the first names: a record that names them still answers."""
    assert strategy_hash(strategy) == known


@pytest.mark.parametrize("first", former.CLASSES)
def test_present_classes_exist_and_have_the_fields(first):
    present = former.CLASSES[first]
    cls = CLASSES.get(present) or getattr(__import__("fireiron"), present)
    assert first not in CLASSES
    assert set(former.FIELDS.get(present, {}).values()) <= {field.name for field in attrs.fields(cls)}


def test_literals_and_expressions_of_before():
    assert read_literal("StreamedMove(name='Streamed')", {}) == EVICT_FIRST and "EVICT_FIRST" in literal_text(EVICT_FIRST)
    assert read_literal("Dealt(4, 1, True)", {}) == UnitMode(4, 1, True)
    assert read_literal("INDEX", {}) == read_literal("COORD", {})
    size = sym("m")
    assert read_expression("positive(m)", {"m": size}) == assume_positive(size)


def test_a_class_of_a_user_with_a_former_name_is_the_user_s():
    @attrs.frozen
    class Turns(Refinement):
        applies_to = ("tile",)
        number: int = 1

        def plan(self, plan):
            return plan

    chain = MatMul.tile(8, 8).to(Block).refine(Turns(3)).tile(1, 1).to(Thread).split(1).done()
    assert loads(dumps(chain, classes=[Turns]), classes=[Turns]) == chain


def test_mapping_with_first_field_names_loads():
    from fireiron.tasks import BLOCK, GLOBAL, HOST, SHARED, Mapping, TaskMapping

    grid = TaskMapping("grid", "grid", HOST, [GLOBAL], calls=["block"], entrypoint=True, group_m=1, raster=2)
    block = TaskMapping(
        "block", "block", BLOCK, [SHARED], warpspecialize=True, pipeline=3, producer_threads=128, interleave=True, mma_in_flight=0
    )
    mapping = Mapping([grid, block], max_shared_bytes=65536)
    stored = json.loads(mapping.to_json())
    first = {former.first_fields("Mapping").get(key, key): value for key, value in stored.items()}
    names = former.first_fields("TaskMapping")
    first["instances"] = [{names.get(key, key): value for key, value in instance.items()} for instance in stored["instances"]]
    assert {"bands", "walk"} <= set(first["instances"][0]) and {"producers", "spread", "in_flight"} <= set(first["instances"][1])
    assert "within" in first and Mapping.from_json(json.dumps(first)) == mapping


def test_task_programs_with_first_tunables_load():
    """The digest of a variant of the library, and its tunables; a program that is not of the library is left alone."""
    from fireiron.strategies import tasks_attention as library
    from fireiron.tasks import strategy

    chain = strategy(library.flash_2, library.ampere())
    stored = json.loads(dumps(chain))
    (first,) = former.VARIANTS
    present, names = former.VARIANTS[first]
    assert names == {"SLACK": "RESCALE_THRESHOLD"}
    text = json.dumps(stored).replace(present, first).replace('"RESCALE_THRESHOLD"', '"SLACK"')
    assert text.count(first) == text.count('"SLACK"') == 1 and loads(text) == chain
    foreign = {"name": "flash_2", "variants": {"weights_rows": first}}
    assert former.present_tasks(foreign, {"instances": []}) == (foreign, {"instances": []})
