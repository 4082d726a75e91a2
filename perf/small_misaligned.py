"""Compare small and skinny GEMM whose rows TMA does not accept with cuBLAS: preceding copy kernels, with programmatic launch, and
strategies that copy by threads.

    python perf/small_misaligned.py FOLDER [--rounds 5] [--seconds 50] [--only 255x255x255]

Float16 GEMM, B row-major (NN) and column-major (NT). Each candidate is first verified against float64; all are measured together with
cuBLAS (through PyTorch) in one run: bursts, buffers rotated through L2. Candidates that remain at the time limit are reported. Writes
`small_misaligned.json` and `small_misaligned.txt` into the folder; the library's rule for such sizes (`fireiron.language.library`) is
derived from the table.
"""

import argparse
import concurrent.futures
import json
import os
import time
from pathlib import Path

from tabulate import tabulate
from tune_hopper import ALL, values

from fireiron import *
from fireiron.errors import FireironError
from fireiron.language.library import default_strategy, defaults
from fireiron.strategies import hopper, small, split_k

SHAPES = ((255, 255, 255), (255, 257, 259), (511, 513, 515), (16, 4095, 4097), (64, 4097, 4095))

COPIED = {
    "16x64": values(16, 64, 16, 64, 4, bk=128, group_m=4), "16x64 deep": values(16, 64, 16, 64, 16),
    "32x64": values(32, 64, 32, 64, 4, bk=128, group_m=4), "64x64": values(64, 64, 64, 64, 8, group_m=4),
}  # fmt: skip

SMALL = (
    {"bm": 32, "bn": 32, "bk": 64, "wm": 16, "wn": 16, "stages": 2}, {"bm": 32, "bn": 32, "bk": 128, "wm": 16, "wn": 16, "stages": 2},
    {"bm": 16, "bn": 32, "bk": 128, "wm": 16, "wn": 16, "stages": 2}, {"bm": 32, "bn": 64, "bk": 64, "wm": 16, "wn": 16, "stages": 2},
    {"bm": 64, "bn": 64, "bk": 64, "wm": 16, "wn": 32, "stages": 2}, {"bm": 16, "bn": 64, "bk": 64, "wm": 16, "wn": 16, "stages": 3},
    {"bm": 64, "bn": 32, "bk": 128, "wm": 16, "wn": 16, "stages": 2},
)  # fmt: skip

SPLIT = (
    {"bm": 16, "bn": 16, "bk": 64, "num_splits": 4, "stages": 2}, {"bm": 32, "bn": 32, "bk": 32, "num_splits": 8, "stages": 2},
    {"bm": 16, "bn": 32, "bk": 32, "num_splits": 8, "stages": 2}, {"bm": 16, "bn": 16, "bk": 64, "num_splits": 8, "stages": 3},
    {"bm": 32, "bn": 32, "bk": 64, "num_splits": 4, "stages": 2},
)  # fmt: skip


def without_copies(strategy):
    """Return the same without its copies."""
    return Strategy(strategy.steps[2:], start=strategy.start)


def copy(order):
    """Return the copy of a matrix, started while the preceding kernel ends."""
    tile, rows, element = ((16, 256), (16, 1), (1, 1)) if order == RowMajor else ((256, 16), (1, 16), (1, 1))
    return Move.tile(*tile).to(Block).programmatic_launch().tile(*rows).to(Thread).tile(*element).unroll().done()


def programmatic(chosen, order):
    """`hopper` with values, with programmatic launches."""
    first, *rest = without_copies(hopper.strategy.with_(**(ALL | chosen))).steps
    product = Strategy((first.refined(ProgrammaticLaunch()), *rest), start=hopper.strategy.start)
    return MatMul.repack(A, copy(RowMajor)).repack(B, copy(order)).then(product)


def candidates(shape, order):
    """Return strategies by name."""
    spec = spec_of(shape, order)
    name, chosen = defaults(spec, "sm_90a")[0]
    strategies = {f"default: {name}": default_strategy(name, chosen, spec)}
    for name, chosen in COPIED.items():
        if chosen["bm"] <= max(shape[0], 16):
            strategies[f"hopper {name}"] = hopper.strategy.with_(**(ALL | chosen))
            strategies[f"programmatic launch {name}"] = programmatic(chosen, order)
            strategies[f"by threads {name}"] = without_copies(strategies[f"hopper {name}"])
    for module, sets in ((small, SMALL), (split_k, SPLIT)):
        for chosen in sets:
            text = "x".join(str(chosen[one]) for one in ("bm", "bn", "bk"))
            first = {key: tunable.values[0] for key, tunable in module.strategy.tunables().items()}
            label = f"{module.__name__.rpartition('.')[2]} {text}, {chosen.get('num_splits', chosen.get('wn'))}"
            strategies[label] = module.strategy.with_(**(first | chosen))
    return strategies


def spec_of(shape, order):
    """Return the float16 GEMM."""
    return hopper.spec(*shape, B=order)


def compiled(strategy, spec):
    """Return a kernel ready to be loaded, or the reason why there is none."""
    try:
        return strategy(spec).compile("sm_90a")
    except FireironError as error:
        return str(error).splitlines()[0]


def measured(spec, kernels, rounds):
    """Return times of all kernels and of cuBLAS; failures are reported and left out."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    data = Data.of(spec)
    calls = {"cuBLAS": data.calls(cublas)}
    for name, kernel in kernels.items():
        try:
            if isinstance(kernel, str):
                raise LaunchError(kernel)
            launches = data.calls(kernel)
            data.reset()
            data.verify(launches[0])
        except FireironError as error:
            print(f"left out: {spec} {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = launches
    return measure(calls, rounds=rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--only", help="one shape, as 255x255x255")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    began = time.monotonic()
    rows, kept = [], []
    cases = [(shape, order) for shape in SHAPES for order in (RowMajor, ColMajor) if options.only in (None, "x".join(map(str, shape)))]
    with concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
        jobs = {
            (shape, order): {name: pool.submit(compiled, one, spec_of(shape, order)) for name, one in candidates(shape, order).items()}
            for shape, order in cases
        }
        torch.zeros(1, device="cuda")  # after the processes have started, which must not inherit a context
        where = environment()
        for shape, order in cases:
            text = f"{'x'.join(map(str, shape))} {'NN' if order == RowMajor else 'NT'}"
            if time.monotonic() - began > options.seconds:
                print(f"left out: {text}, because the time limit is reached", flush=True)
                continue
            kernels = {name: job.result() for name, job in jobs[shape, order].items()}
            times = measured(spec_of(shape, order), kernels, options.rounds)
            library = times.pop("cuBLAS").us
            best = sorted(times, key=lambda name, times=times: times[name].us)
            rows += [[text if not place else "", name, times[name].us, library / times[name].us] for place, name in enumerate(best)]
            kept.append({"shape": shape, "order": str(order), "cuBLAS": library, "times": {name: one.us for name, one in times.items()}})
            print(text, f"cuBLAS {library:.2f}", {name: round(times[name].us, 2) for name in best[:6]}, flush=True)
        pool.shutdown(wait=False, cancel_futures=True)
    table = tabulate(rows, ("M x N x K", "strategy", "us", "of cuBLAS"), floatfmt=".2f") + "\n"
    (options.folder / "small_misaligned.txt").write_text(table)
    (options.folder / "small_misaligned.json").write_text(json.dumps({"environment": where, "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
