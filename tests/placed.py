"""Random kernels with temporaries in shared memory that matrix instructions read: weights, keys and states, on Ampere and Hopper."""

from __future__ import annotations

import random
from typing import Any

import attrs

from fireiron import *

COPY, FRAGMENTS, ENGINE = Move.coalesced_copy(8).done(), Move.done(), Move.done()
MMA = MatMul.tile(16, 16).unroll().mma_tile().done()
VALUES = ("{} * scale[n]", "{} * 0.25 - 1", "max({} * scale[n], 0)", "{} - scale[n]", "{}")
"""The formulas of weights; the last one is a copy, which may convert."""


def weights(dims: str = "n,k", value: str = VALUES[0]) -> Fused:
    """A product whose second operand is computed from an array, element by element."""
    operands = {"A": "m k", "W": dims.replace(",", " "), "scale": "n", "C": "m n"}
    operands = {name: one for name, one in operands.items() if name != "scale" or "scale" in value}
    return Fused(
        name="weights", dims="m n k", loop="k", operands=operands, init={"zero": "acc[m,n] = 0"},
        body={"weight": f"w[{dims}] = {value.format(f'W[{dims}]')}", "mm": f"acc[m,n] += sum(k, A[m,k] * w[{dims}])"},
        final={"store": "C[m,n] = acc[m,n]"},
    )  # fmt: skip


keys = Fused(
    name="latent_keys", dims="m n d r", loop="n", operands={"Q": "m d", "L": "n r", "U": "d r", "O": "m r"},
    init={"zero": "acc[m,r] = 0"},
    body={
        "key": "k[n,d] = sum(r, L[n,r] * U[d,r])", "keep": "K[n,d] = k[n,d]", "s": "s[m,n] = sum(d, Q[m,d] * K[n,d])",
        "p": "p[m,n] = s[m,n] * 0.125", "pv": "acc[m,r] += sum(n, p[m,n] * L[n,r])",
    },
    final={"store": "O[m,r] = acc[m,r]"},
)  # fmt: skip
"""Keys that are products of a latent array, as in multi-head latent attention: computed per block, and read by the scores."""

states = Fused(
    name="chunk_states", dims="l t d e", scan="l", operands={"Q": "l t e", "B": "l t e", "X": "l t d", "decay": "l", "Y": "l t d"},
    init={"zero": "h[e,d] = 0"},
    body={
        "keep": "S[e,d] = h[e,d]", "inter": "y[t,d] = sum(e, Q[l,t,e] * S[e,d])", "out": "Y[l,t,d] = y[t,d]",
        "fade": "h[e,d] = h[e,d] * decay[l]", "add": "h[e,d] += sum(t, B[l,t,e] * X[l,t,d])",
    },
)  # fmt: skip
"""A scan over chunks whose state is carried in registers, and read from shared memory by the next product."""


def by_warps(*loads: Any, rows: int = 32, columns: int = 32) -> Any:
    """The product of a warp, with fragments of the operands `loads`."""
    chain = MatMul.tile(rows, columns).to(Warp).split(16).unroll()
    for operand in loads:
        chain = chain.load(operand, RF, FRAGMENTS)
    return chain.then(MMA)


def by_warpgroups(columns: int = 64) -> Any:
    """The product of a warpgroup."""
    return MatMul.tile(64, columns).to(Warpgroup).split(16).unroll().done()


@attrs.frozen(eq=False)
class Drawn:
    """A bound strategy with its target, and the drawn options."""

    bound: Any
    target: str
    features: dict[str, Any]


def drawn(chance: random.Random, hopper: bool | None = None) -> Drawn:
    """A kernel of one of the definitions, with random options."""
    hopper = chance.random() < 0.6 if hopper is None else hopper
    draw = chance.choice((_weights, _weights, _keys, _states))
    target = "sm_90a" if hopper else chance.choice(("sm_80", "sm_80", "sm_75", "sm_90"))
    options = {"stages": chance.choice((None, None, 2, 3)), "pipeline": chance.choice((1, 2, 3)), "special": chance.random() < 0.7}
    bound, features = draw(chance, hopper, options)
    return Drawn(bound, target, {"form": draw.__name__, **options, **features})


def _placed(chain: Any, name: str, options: dict[str, Any], swizzled: bool, pad: int = 0) -> Any:
    chain = chain.set_memory(name, SH, pad=pad)
    chain = chain.swizzle_storage() if swizzled else chain
    return chain.stages(options["stages"]) if options["stages"] else chain


def _loop(chain: Any, options: dict[str, Any], flight: int | None = None) -> Any:
    chain = chain.pipeline(options["pipeline"])
    chain = chain.warp_specialize(128) if options["special"] else chain
    return chain.mma_in_flight(flight) if flight is not None and options["special"] else chain


def _loaded(chain: Any, names: str, hopper: bool) -> Any:
    for name in names.split():
        chain = chain.load(name, SH, ENGINE) if hopper else chain.load(name, SH, COPY).swizzle_storage()
    return chain


def _weights(chance: random.Random, hopper: bool, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    dims, value = chance.choice(("n,k", "k,n")), chance.choice(VALUES)
    definition = weights(dims, value)
    m, n, k = (128, 64, 64) if hopper else (64, 64, 32)
    flight, loaded = chance.choice((None, None, 0, 1)), chance.random() < 0.4
    chain = definition.tile(m=m, n=n).to(Block).split(k=k)
    chain = _loop(chain, options, flight) if hopper else chain.pipeline(options["pipeline"])
    chain = _loaded(chain, "A", hopper)
    if loaded:
        chain = chain.load("W", SH, ENGINE if hopper else COPY).swizzle_storage()
    swizzled = chance.random() < (0.3 if hopper else 0.6)
    pad = 8 if not hopper and not swizzled and chance.random() < 0.5 else 0
    chain = _placed(chain, "w", options, swizzled, pad)
    own = "AnySpec" if value == "{}" else "Pointwise"
    if chance.random() < 0.2:
        chain = chain.step("weight", (Move if own == "AnySpec" else Pointwise).tile(1, chance.choice((1, 2, 8))).to(Thread).done())
    chain = chain.step("mm", by_warpgroups(n) if hopper else by_warps(A, B)).done()
    kind = chance.choice((int8, float16, float32, uint8))
    rows, columns, depth = m * chance.choice((1, 2)), n * chance.choice((1, 2)), k * chance.randint(2, 5)
    if chance.random() < 0.4:
        rows, columns, depth = rows - 8 * chance.randrange(4), columns - 8 * chance.randrange(4), depth - 8 * chance.randrange(3)
    bound = chain(definition(m=rows, n=columns, k=depth, types={"W": kind}))
    return bound, {"dims": dims, "value": value, "flight": flight, "loaded": loaded, "swizzled": swizzled, "pad": pad, "kind": str(kind)}


def _keys(chance: random.Random, hopper: bool, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    n, swizzled = chance.choice((64, 64, 128)) if hopper else 64, chance.random() < 0.5
    chain = _loaded(keys.tile(m=128 if hopper else 64).to(Block), "Q U", hopper).split(n=n)
    chain = _loop(chain, options) if hopper else chain.pipeline(options["pipeline"])
    chain = _placed(_loaded(chain, "L", hopper), "K", options, swizzled)
    if hopper:
        product = by_warpgroups()
        chain = chain.step("key", by_warpgroups(32) if n == 64 else product)
        chain = chain.step("s", by_warpgroups(n)).step("pv", product).done()
    else:
        product = by_warps(A, B, rows=16, columns=64)
        chain = chain.step("key", product).step("s", product).step("pv", by_warps(B, rows=16, columns=64)).done()
    rows, length = chance.choice((64, 128, 200)), n * chance.randint(2, 4) - chance.choice((0, 0, 8))
    return chain(keys(m=rows, n=length, d=64, r=64)), {"n": n, "swizzled": swizzled}


def _states(chance: random.Random, hopper: bool, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    swizzled = chance.random() < 0.5
    chain = states.tile(d=64).to(Block).split(l=1)
    chain = _loop(chain, options) if hopper else chain.pipeline(options["pipeline"])
    chain = _placed(_loaded(chain, "Q B X", hopper), "S", options, swizzled)
    product = by_warpgroups() if hopper else by_warps(A, B)
    chain = chain.step("inter", product).step("add", product).done()
    spec = states(l=chance.randint(2, 5), t=64, d=64 * chance.choice((1, 2)), e=64, types={"decay": float32})
    return chain(spec), {"swizzled": swizzled}
