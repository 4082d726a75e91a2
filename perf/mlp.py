"""A multilayer perceptron of L layers in one kernel, beside Triton's fused kernel and a chain of cuBLASLt (Graphene, Figure 11).

    python perf/mlp.py FOLDER [--rows 8192,16384,32768,65536] [--layers 20] [--rounds 5]

Layers of 128 x 128, halves: `mlp` with activations in shared memory and in registers, by several tiles; Triton restricted to mma.sync and
with wgmma; relu(h @ W + b) by cuBLASLt for each layer. Each is verified first, on an output of NaN. About 12 seconds a row, compilation
included. Writes `mlp.txt` and `mlp.json`.
"""

import argparse

from fused import Contenders, best, prepared, sets_of, written

from fireiron.errors import FireironError
from fireiron.strategies import mlp

WIDTH = 128
SHARED = (
    {"bm": 128, "wm": 32, "wn": 64}, {"bm": 64, "wm": 32, "wn": 64}, {"bm": 128, "wm": 64, "wn": 64}, {"bm": 64, "wm": 32, "wn": 32},
    {"bm": 64, "wm": 64, "wn": 32},
)  # fmt: skip
HELD = ({"bm": 128, "wm": 32, "wn": 32}, {"bm": 64, "wm": 32, "wn": 32}, {"bm": 64, "wm": 16, "wn": 64}, {"bm": 128, "wm": 16, "wn": 64})


def measured(rows, layers, rounds):
    """Times of all contenders."""
    import torch
    from cublas_lt import cublas_lt
    from fused_peers import ROWS, perceptrons

    count = sets_of(4 * rows * WIDTH)
    weights = (torch.randn(layers, WIDTH, WIDTH, device="cuda") * (2 / WIDTH) ** 0.5).half()
    bias = (torch.randn(layers, WIDTH, device="cuda") * 0.1).half()
    x = torch.randn(count, rows, WIDTH, device="cuda").half()
    y, between = torch.empty_like(x), torch.empty_like(x)
    wanted = x[0].double()
    for layer in range(layers):
        wanted = (wanted @ weights[layer].double() + bias[layer].double()).relu()
    contenders = Contenders(y, wanted)
    spec = mlp.spec(rows, WIDTH, layers)
    for name, strategy, choices in (("shared", mlp.strategy, SHARED), ("registers", mlp.registers, HELD)):
        for values in choices:
            try:
                kernel = prepared(strategy.with_(**values), spec)
            except FireironError as problem:
                print(f"left out: {name} {values}: {str(problem).splitlines()[0]}", flush=True)
                continue
            contenders.add(f"{name} {values}", lambda one, kernel=kernel: kernel.prepare(x[one], weights, bias, out=y[one]))
    for restricted in (True, False):
        for config in ROWS:
            title = f"Triton {'mma.sync' if restricted else 'free'} {config}"
            contenders.add(title, lambda one, c=config, r=restricted: perceptrons(x[one], weights, bias, y[one], c, r))

    def chain(one):
        ends = [x[one], *((y[one] if (layers - layer) % 2 else between[one]) for layer in range(layers))]
        launches = [cublas_lt().plan(ends[layer], weights[layer], ends[layer + 1], bias[layer]) for layer in range(layers)]
        return lambda: [launch() for launch in launches]

    contenders.add("cuBLASLt chain", chain)
    return contenders.times(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", default="8192,16384,32768,65536")
    parser.add_argument("--layers", default="20")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table, kept = [], []
    for layers in map(int, options.layers.split(",")):
        for rows in map(int, options.rows.split(",")):
            times = measured(rows, layers, options.rounds)
            shared, held, sync, free, chain = (
                best(times, start) for start in ("shared", "registers", "Triton mma", "Triton free", "cuBLASLt")
            )
            ours = min((one for one in (shared, held) if one[0]), default=(None, None))
            ratios = [other[0] / ours[0] if other[0] and ours[0] else None for other in (sync, free, chain)]
            flops = 2e-6 * rows * WIDTH * WIDTH * layers
            table.append(
                [rows, layers, shared[0], held[0], flops / ours[0] if ours[0] else None, sync[0], free[0], chain[0], *ratios, ours[1]]
            )
            kept.append({"rows": rows, "layers": layers, "us": times})
            print(table[-1], flush=True)
    heads = ("rows", "layers", "shared us", "registers us", "TFLOP/s", "Triton mma.sync us", "Triton us", "cuBLASLt us",
             "of mma.sync", "of Triton", "of cuBLASLt", "best")  # fmt: skip
    written(options.folder, "mlp", heads, table, kept)


if __name__ == "__main__":
    main()
