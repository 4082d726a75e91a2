"""Compare a multilayer perceptron of L layers in one kernel with Triton's fused kernel and a chain of cuBLASLt (Graphene, Figure 11).

    python perf/mlp.py FOLDER [--rows 8192,16384,32768,65536] [--layers 20] [--rounds 4] [--compile]

Layers of 128 x 128, float16: `mlp` with activations in shared memory and in registers, with several tiles, and on wgmma (`hopper`); Triton
restricted to mma.sync and with wgmma; relu(h @ W + b) by cuBLASLt for each layer; with `--compile` the layers by torch.compile. Each is
first verified, on an output initialized to NaN; all are measured once, then the best of each alternately. Other processes compile
meanwhile. Takes about 15 seconds to begin with and 6 per number of rows. Writes `mlp.txt` and `mlp.json`.
"""

import argparse

from fused import CompilePool, Contenders, best, say, sets_of, written

from fireiron.strategies import mlp

WIDTH = 128
SHARED = (
    {"bm": 128, "wm": 32, "wn": 64}, {"bm": 64, "wm": 32, "wn": 64}, {"bm": 128, "wm": 64, "wn": 64}, {"bm": 64, "wm": 32, "wn": 32},
    {"bm": 64, "wm": 64, "wn": 32},
)  # fmt: skip
IN_REGISTERS = (
    {"bm": 128, "wm": 32, "wn": 32},
    {"bm": 64, "wm": 32, "wn": 32},
    {"bm": 64, "wm": 16, "wn": 64},
    {"bm": 128, "wm": 16, "wn": 64},
)


ENGINES = (
    {"bm": 64, "stages": 6}, {"bm": 64, "stages": 3}, {"bm": 64, "stages": 2}, {"bm": 128, "stages": 4}, {"bm": 128, "stages": 2},
    {"bm": 192, "stages": 4},
)  # fmt: skip
"""On wgmma: 64 rows per warpgroup; with 2 stages two blocks of 64 fit on an SM."""

HEADS = ("rows", "layers", "shared us", "registers us", "wgmma us", "TFLOP/s", "Triton mma.sync us", "Triton us", "cuBLASLt us", "compile us",
         "of mma.sync", "of Triton", "of cuBLASLt", "best")  # fmt: skip
GROUPS = ("shared", "registers", "wgmma", "Triton mma", "Triton free", "cuBLASLt", "compile")


def begun(pool, spec):
    """Ours, by name, as jobs."""
    forms = (("shared", mlp.strategy, SHARED), ("registers", mlp.registers, IN_REGISTERS))
    jobs = pool.begin({f"{name} {values}": one.with_(**values) for name, one, choices in forms for values in choices}, spec)
    return jobs | pool.begin({f"wgmma {values}": mlp.hopper.with_(**values) for values in ENGINES}, spec, "sm_90a")


def by_layers(x, weights, bias):
    """Return the function for torch.compile."""
    for w, b in zip(weights, bias):
        x = (x @ w + b).relu()
    return x


def measured(rows, layers, rounds, kernels, compile):
    """Return times of all contenders; `kernels` are ours, by name."""
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
    for name, kernel in kernels.items():
        contenders.add(name, lambda one, kernel=kernel: kernel.prepare(x[one], weights, bias, out=y[one]))
    say(f"{rows} rows: {len(contenders.calls)} kernels are right")
    for restricted in (True, False):
        for config in ROWS:
            title = f"Triton {'mma.sync' if restricted else 'free'} {config}"
            contenders.add(title, lambda one, c=config, r=restricted: perceptrons(x[one], weights, bias, y[one], c, r))

    def chain(number):
        ends = [x[number], *((y[number] if (layers - layer) % 2 else between[number]) for layer in range(layers))]
        launches = [cublas_lt().plan(ends[layer], weights[layer], ends[layer + 1], bias[layer]) for layer in range(layers)]
        return lambda: [launch() for launch in launches]

    contenders.add("cuBLASLt chain", chain)
    if compile:
        compiled, parts = torch.compile(by_layers), (weights.unbind(), bias.unbind())
        contenders.add("compile", lambda one: lambda: compiled(x[one], *parts), returned=True)
    say(f"{rows} rows: {len(contenders.calls)} contenders")
    return contenders.times(rounds, GROUPS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--rows", default="8192,16384,32768,65536")
    parser.add_argument("--layers", default="20")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--compile", action="store_true", help="torch.compile, too: about 20 seconds more")
    options = parser.parse_args()
    pool, table, kept = CompilePool(), [], []
    problems = [(rows, layers) for layers in map(int, options.layers.split(",")) for rows in map(int, options.rows.split(","))]
    jobs = {one: begun(pool, mlp.spec(one[0], WIDTH, one[1])) for one in problems}
    for rows, layers in problems:
        first, times = measured(rows, layers, options.rounds, pool.kernels(jobs[rows, layers]), options.compile)
        shared, in_registers, engine, sync, free, chain, layer = (best(times, start) for start in GROUPS)
        ours = min((one for one in (shared, in_registers, engine) if one[0]), default=(None, None))
        ratios = [other[0] / ours[0] if other[0] and ours[0] else None for other in (sync, free, chain)]
        flops = 2e-6 * rows * WIDTH * WIDTH * layers
        speed = flops / ours[0] if ours[0] else None
        table.append([rows, layers, shared[0], in_registers[0], engine[0], speed, sync[0], free[0], chain[0], layer[0], *ratios, ours[1]])
        kept.append({"rows": rows, "layers": layers, "us": times, "first us": first})
        written(options.folder, "mlp", HEADS, table, kept)


if __name__ == "__main__":
    main()
