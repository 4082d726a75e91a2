"""One strategy, one text, one result: in every process, with every hash seed, locale and time zone, and any order of imports and files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import hashlib, importlib, json, random, sys
names, first, shuffled = json.loads(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
if shuffled is not None:
    import pkgutil
    from pathlib import Path
    rng, found, globbed = random.Random(shuffled), pkgutil.iter_modules, Path.glob
    def in_another_order(made):
        every = sorted(made, key=str)
        rng.shuffle(every)
        return iter(every)
    pkgutil.iter_modules = lambda *given, **named: in_another_order(found(*given, **named))
    Path.glob = lambda self, *given, **named: in_another_order(globbed(self, *given, **named))
for module in first:
    importlib.import_module(module)
import numpy as np
from fireiron.language.library import bind, find
from fireiron.sim import simulate
from problems import library, target_of
from generator import draw
from fused_generator import draw as drawn_definition
from fireiron.measure.data import random_inputs

def digest(*parts):
    return hashlib.sha256(b"".join(one if isinstance(one, bytes) else one.encode() for one in parts)).hexdigest()[:16]

digests = {}
for name in names:
    if name.startswith("product "):
        one, _ = draw(int(name.split()[1]))
        program, symbols = one.program, one.symbols
        spec = one.spec
    elif name.startswith("definition "):
        one, _ = drawn_definition(int(name.split()[1]))
        program, symbols, spec = one.program, one.symbols, one.bound
    else:
        module = library(name)
        strategy = module.strategy
        spec = module.spec(*(24, 16, 40)[: 3])
        program, symbols = strategy(spec).program(target_of(name, "sm_80")), None
    digests[name] = [digest(program.cuda), digest(program.json() if hasattr(program, "json") else repr(program.strategy))]
    if symbols is not None:
        from fireiron.measure.data import all_sizes
        from fireiron.measure.inputs import shape_of
        sizes = all_sizes(spec, symbols)
        arrays = random_inputs(spec, sizes, np.random.default_rng(3))
        for output in spec.outputs:  # what adds to what is there is given that
            if output not in arrays:
                view = spec.operands[output]
                arrays[output] = np.zeros(shape_of(view, sizes), view.dtype.to_numpy())
        got = simulate(program.ir, arrays, symbols, order=random.Random(sys.argv[4])).outputs
        digests[name].append(digest(*(np.ascontiguousarray(one).tobytes() for one in got.values())))
print(json.dumps(digests))
"""


def digests(names, hash_seed="0", first=(), shuffled=None, order="1", **environment):
    """The answer of a separate process for some kernels: digests of the text, of the strategy, and of a simulated result."""
    given = [json.dumps(list(names)), json.dumps(list(first)), json.dumps(shuffled), order]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONHASHSEED": hash_seed, **environment}
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *given], env=variables, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


WAYS = {
    "another hash seed": {"hash_seed": "4711"},
    "random hashes": {"hash_seed": "random"},
    "another order of threads": {"order": "9"},
    "extensions found in another order": {"shuffled": 1, "hash_seed": "1"},
    "and in yet another": {"shuffled": 2, "hash_seed": "2"},
    "instructions imported first": {"first": ["fireiron.executable.wgmma", "fireiron.executable.pointwise", "fireiron.decomp.tile"]},
    "checks and printer imported first": {"first": ["fireiron.check.races", "fireiron.cuda.printer", "fireiron.sim", "fireiron.spec"]},
    "a Turkish locale, east of the date line": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati"},
    "plain ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "TZ": "America/Anchorage"},
    "optimized": {"PYTHONOPTIMIZE": "1"},
}
FEW = ("hmma_ampere", "definition 20261122")


def test_a_few_kernels_are_the_same_everywhere():
    """Two processes that differ in all of these at once."""
    everything = {"hash_seed": "4711", "shuffled": 3, "order": "9", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0"}
    assert digests(FEW) == digests(FEW, first=["fireiron.executable.wgmma", "fireiron.cuda.printer"], **everything)


@pytest.mark.nightly
def test_the_whole_library_and_drawn_kernels_are_the_same_everywhere():
    from problems import NAMES

    names = [*NAMES, *(f"product {seed}" for seed in range(100)), *(f"definition {seed}" for seed in range(60))]
    here = digests(names)
    for way, changes in WAYS.items():
        elsewhere = digests(names, **changes)
        assert here == elsewhere, f"{way}: {[name for name in names if here[name] != elsewhere[name]]}"
