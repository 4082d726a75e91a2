"""Exploration of variants of the gradient kernel: verify, then time the main kernel alone, the graph, cuDNN and FA2."""

import sys, time, math, functools
from concurrent.futures import ThreadPoolExecutor

T0 = time.time()
import torch
from fireiron import *
import fireiron
from fireiron.strategies import attention_backward as ab
import attention_backward as perf


def log(*a):
    print(f"[{time.time() - T0:.0f}]", *a, flush=True)


DST = dict(dk_of="dst")
FIRST = dict(dk_of="dst", dk_first=True)
B64 = dict(bm=64, bn=128, columns=32, add_n=32, panel=32)
R = dict(rounded=True)
M64 = dict(bm=128)
CASES = {
    (128, False): {
        "A": ({}, {}),
        "D late": (dict(late=True), {}),
        "R dss": (R, {}),
        "R dst first": (dict(dk_of="dst", dk_first=True, **R), {}),
        "late dst first": (dict(dk_of="dst", dk_first=True, late=True), {}),
    },
    (128, True): {
        "C dst first": (FIRST, {}),
        "D late": (dict(late=True), {}),
        "R dss": (R, {}),
        "R dst first": (dict(dk_of="dst", dk_first=True, **R), {}),
        "late dst first": (dict(dk_of="dst", dk_first=True, late=True), {}),
    },
    (64, False): {
        "R dss": (R, M64),
        "R dss if0": (R, dict(in_flight=0, **M64)),
        "R dst first": (dict(dk_of="dst", dk_first=True, **R), M64),
        "R dss first": (dict(dk_first=True, **R), M64),
    },
    (64, True): {
        "a": (dict(late=True, **FIRST), M64),
        "R dss": (R, M64),
        "R dst first": (dict(dk_of="dst", dk_first=True, **R), M64),
    },
    (256, False): {
        "if0 first": (dict(dk_first=True), dict(stages=2, in_flight=0)),
        "first": (dict(dk_first=True), dict(stages=2)),
        "late first": (dict(dk_first=True, late=True), dict(stages=2)),
    },
}
LEN = 4096
TOK = 16384
DEFAULT = dict(bm=64, bn=128, stages=2, columns=64, add_n=64, epi_n=64, score_m=32)


def built(key, name, arch="sm_90a"):
    d, c = key
    dk, sk = CASES[key][name]
    f = ab.definition(causal=c, **dk)
    order = perf.strided(LEN, d)
    order["dV"] = order["dK"]
    spec = ab.spec(LEN, LEN, d, heads=2048 // d, batch=TOK // LEN, fused=f, **order)
    values = {**DEFAULT, **({"bn": 64, "columns": 128, "add_n": 32} if d == 256 else {}), **sk}
    given = {name: values.pop(name) for name in ("panel", "in_flight", "tma") if name in values}
    st = (ab.through_shared if d == 256 else ab.by_keys)(f, **given)
    st = st.with_(**{name: value for name, value in values.items() if name in st.tunables()})
    k = st(spec).compile(arch)
    try:
        k.ready if hasattr(k, "ready") else None
        _ = k.resources
    except Exception as e:
        return (key, name, None, str(e)[:300])
    return (key, name, k, "")


def timed(calls, rounds=3):
    return perf.times_of(calls, rounds)


if __name__ == "__main__":
    jobs = [(k, n) for k in CASES for n in CASES[k]]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda j: built(*j), jobs))
    log("compiled")
    if "--dry" in sys.argv:
        for g in got:
            print(g[0], g[1], g[2] and (g[2].resources.registers, g[2].resources.spill_stores), g[3])
        sys.exit()
    for key in CASES:
        d, c = key
        inputs = perf.inputs_of(LEN, d, c, TOK)
        q, k, v, o, lse, do = inputs
        b, h, m, _ = q.shape
        D = (o.float() * do.float()).sum(-1).view(b, h, 1, m)
        L = (lse * 1.4426950408889634).view(b, h, 1, m)
        log(key, "inputs")
        calls = {}
        for name, backend in perf.PEERS.items():
            try:
                call = perf.by_torch(backend, c, inputs)
                call()
                calls[name] = call
            except RuntimeError as e:
                log("left out", name, str(e)[:100])
        Q, DO = perf.as_queries(q), perf.as_queries(do)
        K, V = k.permute(0, 2, 1, 3), v.permute(0, 2, 1, 3)
        rights = perf.right_of(inputs, c, b - 1, h - 1)
        rights0 = perf.right_of(inputs, c, 0, 0)
        for kk, name, kernel, why in got:
            if kk != key:
                continue
            if kernel is None:
                log(name, "NOT COMPILED", why)
                continue
            dq = torch.full((b, m, h, 1, d), math.nan, device="cuda", dtype=torch.float32)
            dk, dv = (torch.full((b, h, m, d), math.nan, device="cuda", dtype=torch.float16) for _ in range(2))
            dkv = [x.as_strided((b, m, h, 1, d), (h * m * d, d, m * d, m * d, 1)) for x in (dk, dv)]
            call = functools.partial(kernel, Q, K, V, DO, L, D, d**-0.5, out=(dq, *dkv))
            try:
                call()
                torch.cuda.synchronize()
            except Exception as e:
                log(name, "FAILED", str(e)[:300])
                continue
            e = []
            for bb, hh, R in ((b - 1, h - 1, rights), (0, 0, rights0)):
                for x, r in zip((dq[bb, :, hh, 0].double() * d**-0.5, dk[bb, hh].double(), dv[bb, hh].double()), R):
                    e.append(float((x - r).norm() / r.norm()))
            worst = max(e)
            log(name, "error", f"{worst:.2e}", "regs", kernel.resources.registers, "spill", kernel.resources.spill_stores)
            if worst < 3e-3:
                calls[name] = call
        times = timed(calls)
        w = perf.work_of(LEN, d, c, TOK)
        log(key, {n: (round(w / t / 1e6), round(t)) for n, t in times.items()})
