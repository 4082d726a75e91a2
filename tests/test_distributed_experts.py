"""Experts on the GPUs of a node: tables, dispatch and combine in the simulator, planted faults, and refusals."""

import functools

import numpy as np
import printed_text
import pytest
from test_node import Changed

from fireiron import *
from fireiron.distributed_experts import bound, routes_of
from fireiron.errors import FireironError, SimulationError
from fireiron.experts_routing import tables_of
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explain_text
from fireiron.sim.node import simulate_node
from fireiron.tune.record import describe, spec_of
from fireiron.values.distribution import Portion

TOKENS, WIDTH, CHOICES, EXPERTS, ROWS = 6, 64, 2, 8, 4


@functools.cache
def layer(count, seed=0):
    """Tokens of `count` GPUs, their experts, weights, and the tables of each GPU."""
    generator = np.random.default_rng(seed)
    index = np.stack([generator.permuted(np.arange(EXPERTS))[:CHOICES] for _ in range(count * TOKENS)]).reshape(count, TOKENS, CHOICES)
    x = generator.integers(-3, 4, (count, TOKENS, WIDTH)).astype(np.float16)
    weights = generator.integers(1, 4, (count, TOKENS, CHOICES)).astype(np.float32)
    return index, x, weights, tuple(routes_of(index, rank, EXPERTS, ROWS) for rank in range(count))


def joined(routes, name):
    return np.concatenate([getattr(one, name) for one in routes])


@functools.cache
def kernel(form, count, target="sm_80"):
    tiles = len(layer(count)[3][0].expert)
    sizes = (TOKENS, WIDTH, tiles, ROWS) if form == "dispatch" else (TOKENS, WIDTH, CHOICES, tiles * ROWS)
    return bound(form, "float16", count, sizes).compile(target)


def dispatched(count):
    _, x, _, routes = layer(count)
    return {"X": x, **{name: joined(routes, name) for name in ("gpu", "row", "filled")}}


def expected_rows(count):
    """The rows of all tiles, by the tables of one GPU with all experts."""
    index, x, _, routes = layer(count)
    rows = np.zeros((len(joined(routes, "filled")), ROWS, WIDTH), np.float16)
    at = dict.fromkeys(range(EXPERTS), 0)
    own = EXPERTS // count
    for token, choice in np.ndindex(count * TOKENS, CHOICES):
        expert = index.reshape(-1, CHOICES)[token, choice]
        rank = expert // own
        tiles = np.flatnonzero((routes[rank].expert == expert % own) & (routes[rank].filled > 0))
        at[expert], place = at[expert] + 1, at[expert]
        rows[rank * len(routes[0].expert) + tiles[place // ROWS], place % ROWS] = x[token // TOKENS, token % TOKENS]
    return rows


@pytest.mark.parametrize("count", [2, 4, 8])
def test_tokens_reach_their_experts_and_return(count):
    """Each GPU receives the rows of its experts, in the order of tokens, and each token the weighted sum of its experts' results."""
    index, x, weights, routes = layer(count)
    rows = kernel("dispatch", count)(*dispatched(count).values())
    assert np.array_equal(rows, expected_rows(count))
    scales = np.arange(1, EXPERTS + 1, dtype=np.float16)
    own = EXPERTS // count
    results = rows * np.concatenate([scales[rank * own + one.expert] for rank, one in enumerate(routes)])[:, None, None]
    results = results.reshape(count, -1, WIDTH)
    out = kernel("combine", count)(results, joined(routes, "to_gpu"), joined(routes, "to_place"), weights.reshape(-1, CHOICES))
    right = sum(weights[..., j, None] * scales[index[..., j]][..., None].astype(np.float32) * x for j in range(CHOICES))
    assert np.array_equal(out, right.reshape(-1, WIDTH).astype(np.float16))


def test_a_gpu_without_rows():
    """All tokens choose experts of one GPU: the other one has no rows, and its tiles read no other GPU."""
    index = np.zeros((2, 3, 1), int)
    routes = [routes_of(index, rank, 4, 2) for rank in (0, 1)]
    assert routes[1].filled.sum() == 0 and (routes[1].gpu == 1).all() and (routes[1].row == 0).all()
    assert routes[0].filled.tolist() == [2, 2, 2, 0] and routes[1].to_place.tolist() == [[3], [4], [5]]
    assert routes[0].gpu.reshape(-1)[:6].tolist() == [0, 0, 0, 1, 1, 1]


def test_tables_are_those_of_one_gpu():
    """With one GPU, dispatch has the tables of `fireiron.experts`."""
    index, *_ = layer(2)
    (own,) = (routes_of(index.reshape(1, -1, CHOICES), 0, EXPERTS, ROWS),)
    tables = tables_of(index.reshape(-1, CHOICES), EXPERTS, ROWS)
    assert np.array_equal(own.filled, tables.filled) and np.array_equal(own.to_place, tables.places)


@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The text of one GPU on a CPU, with the parts of two GPUs at a distance."""
    program = bound("dispatch", "float16", 2, (TOKENS, WIDTH, len(layer(2)[3][0].expert), ROWS)).program("sm_80")
    host = printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    arrays, right = dispatched(2), np.split(expected_rows(2), 2)
    for gpu in (0, 1):
        own = {name: array if name == "X" else np.split(array, 2)[gpu] for name, array in arrays.items()}
        assert np.array_equal(host.run(0, own, {"stride_X_gpu": TOKENS * WIDTH + 64})["Y"], right[gpu])


@pytest.mark.skipif(not toolchains(), reason="no NVRTC is installed")
@pytest.mark.parametrize("form", ["dispatch", "combine"])
def test_nvrtc_compiles_the_text(form):
    program = kernel(form, 2).program
    for target in ("sm_80", "sm_90a"):
        assert compile_cuda(program.strategy.cuda(target), target).cubin


@pytest.mark.parametrize("form", ["dispatch", "combine"])
def test_repr_json_and_records(form):
    chain = kernel(form, 2).program.strategy
    assert eval(repr(chain)) == chain and Strategy.from_json(chain.to_json()) == chain
    assert spec_of(describe(chain.spec)) == chain.spec
    (launch,) = kernel(form, 2).program.launches
    assert eval(repr(launch.spec)) == launch.spec


def test_reports():
    text = explain_text(explain(kernel("dispatch", 2).program.strategy))
    assert "barrier of all GPUs before dispatch: other GPUs write X" in text and "rows of X in the memory of other GPUs" in text
    picture = draw(kernel("dispatch", 2).program.strategy, "flow", architecture="sm_80")
    assert "the part of X that GPU 1 stores" in picture.svg
    prediction = predict(kernel("dispatch", 2, "sm_90a").program)
    assert prediction.parts["barriers of GPUs"] == 5.0 and prediction.bytes["link"] > 0


def faults():
    """Faults of the launch on each GPU, or of its tables."""
    arrays = dispatched(2)
    tiles = len(arrays["filled"]) // 2

    def table(name, change):
        return {}, {**arrays, name: change(arrays[name].copy())}

    def swapped(array):
        return np.concatenate([array[tiles:], array[:tiles]])

    return {
        "rows of the own GPU only": ({"X": Portion()}, arrays),
        "tables of another GPU": ({}, {**arrays, **{name: swapped(arrays[name]) for name in ("gpu", "row", "filled")}}),
        "numbers of GPUs exchanged": table("gpu", lambda gpu: 1 - gpu),
        "the next row": table("row", lambda row: (row + 1) % TOKENS),
        "a row less": table("filled", lambda filled: np.maximum(filled - 1, 0)),
        "a row more": table("filled", lambda filled: np.minimum(filled + 1, ROWS)),
    }


@pytest.mark.parametrize("fault", sorted(faults()))
def test_faults_are_found(fault):
    portions, arrays = faults()[fault]
    (launch,) = kernel("dispatch", 2).program.launches
    try:
        result = simulate_node(kernel("dispatch", 2).program.spec, [Changed(launch, None, portions)], arrays)["Y"]
    except (SimulationError, FireironError, ValueError):
        return
    assert not np.array_equal(result, expected_rows(2))


def changed_definition(name="dispatch", **changes):
    words = {
        "name": name, "dims": "t m n g r", "types": {"gpu": int32, "row": int32},
        "operands": {"X": "g r n", "gpu": "t m", "row": "t m", "Y": "t m n"}, "body": {"copy": "Y[t,m,n] = X[gpu[t,m],row[t,m],n]"},
    }  # fmt: skip
    return Fused(**{**words, **changes})


def divided(definition, dim="t", sizes=None, **over):
    usual = {"X": "g", "gpu": "t", "row": "t", "Y": "t"}
    orders = {name: RowMajor.over(GPU, axis) for name, axis in {**usual, **over}.items() if axis}
    spec = definition(**{"t": 4, "m": 4, "n": 8, "g": 2, "r": 6, **(sizes or {})}, level=Node(2), **orders)
    return definition.to_gpus(dim).tile(t=1, m=1, n=8).to(Block).tile(n=8).to(Thread).done()(spec).program("sm_80").text


REFUSALS = {
    "experts": (lambda: routes_of(np.zeros((2, 3, 1), int), 0, 5), "a multiple of 2"),
    "rows": (lambda: routes_of(np.zeros((2, 3, 1), int), 0, 4, 0), "such as 128"),
    "rank": (lambda: routes_of(np.zeros((2, 3, 1), int), 2, 4), "0 to 1"),
    "an expert that is not one": (lambda: routes_of(np.full((2, 3, 1), 4), 0, 4), "0 to 3"),
    "several rows per GPU": (lambda: divided(changed_definition(), X="r"), "one per GPU"),
    "no level": (lambda: changed_definition()(t=4, m=4, n=8, g=2, r=6, X=RowMajor.over(GPU, "g")), "Node(2)"),
    "unequal parts": (lambda: divided(changed_definition(), sizes={"g": 3}), "a multiple of 2"),
    "a coordinate": (lambda: divided(changed_definition(body={"copy": "Y[t,m,n] = where(t < 3, X[gpu[t,m],row[t,m],n], 0)"})), "coordinate"),
    "a digit": (lambda: divided(changed_definition(operands={"X": "g r n", "gpu": "t m", "row": "s m", "Y": "t m n"}, dims="t m n g r s", body={"copy": "Y[t,m,n] = X[gpu[t,m],row[t // 2,m],n]"}), row=None), "begin at 0"),
    "another level": (lambda: changed_definition()(t=4, m=4, n=8, g=2, r=6, level="Node"), "level"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, expected = REFUSALS[name]
    with pytest.raises(FireironError) as caught:
        make()
    assert expected in str(caught.value)
