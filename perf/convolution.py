"""Compare convolutions of ResNet-50 with cuDNN: float16, channels contiguous (channels_last), implicit GEMM by TMA in im2col mode and wgmma.

    python perf/convolution.py FOLDER [--batch 128] [--rounds 7] [--layers 3x3_56,3x3_28] [--processes 8]

`strategies/convolution.py` computes each layer in two forms, with pixels or with output channels along the rows of wgmma, and with several
tiles. Each result is compared with `torch.nn.functional.conv2d` in float32. The rival is the same function in float16 (cuDNN with
`torch.backends.cudnn.benchmark`). Buffers rotate through more than the L2 cache. Writes `convolution.txt` and `convolution.json`.

`python perf/convolution.py --compile` compiles all kernels for sm_90a without a GPU, and prints their registers.
"""

import argparse
import concurrent.futures
import json
import math
import time
from pathlib import Path

import attrs
from tabulate import tabulate

import fireiron
from fireiron.strategies import convolution

L2 = 50 << 20
"""Bytes of the cache: operand sets rotate through more than this."""


@attrs.frozen
class Layer:
    """A convolution: the size of the input image, its channels, those of the output, the filter, and the stride."""

    size: int
    channels: int
    outputs: int
    filter: int
    stride: int = 1

    @property
    def result(self):
        """The size of the output image."""
        return convolution.out_size(self.size, self.filter, self.stride, self.filter // 2)

    @property
    def writes(self):
        """Whether it mainly writes."""
        return self.filter == self.stride == 1 and self.outputs > self.channels

    def spec(self, batch, outputs_first):
        """The problem, with pixels or output channels first."""
        return convolution.spec(batch, self.size, self.channels, self.outputs, self.filter, self.stride, outputs_first=outputs_first)

    def flops(self, batch):
        """Operations of the layer."""
        return 2 * batch * self.result**2 * self.outputs * self.channels * self.filter**2


LAYERS = {
    "3x3_56": Layer(56, 64, 64, 3),
    "3x3_28": Layer(28, 128, 128, 3),
    "3x3_14": Layer(14, 256, 256, 3),
    "3x3_7": Layer(7, 512, 512, 3),
    "3x3_56_stride": Layer(56, 128, 128, 3, 2),
    "3x3_28_stride": Layer(28, 256, 256, 3, 2),
    "3x3_14_stride": Layer(14, 512, 512, 3, 2),
    "1x1_56": Layer(56, 64, 256, 1),
    "1x1_14": Layer(14, 1024, 256, 1),
    "1x1_56_stride": Layer(56, 256, 512, 1, 2),
}
OTHERS = {
    "7x7_224": Layer(224, 3, 64, 7, 2),
    "1x1_28": Layer(28, 512, 128, 1),
    "1x1_14_wide": Layer(14, 256, 1024, 1),
    "1x1_7": Layer(7, 2048, 512, 1),
    "1x1_14_stride": Layer(14, 1024, 2048, 1, 2),
}
"""Layers of ResNet-50 by name; the others only with `--layers`."""

NAMES = ("bm", "bn", "wm", "wn", "groups", "stages", "epi_n", "num_blocks")
PIXELS = {
    64: [(128, 64, 64, 64, 2, 6, 64, 132), (256, 64, 64, 64, 1, 4, 64, 132), (128, 64, 64, 64, 1, 4, 64, 264)],
    128: [
        (128, 128, 64, 128, 1, 5, 64, 132),
        (256, 128, 128, 128, 1, 4, 64, 132),
        (192, 128, 64, 128, 1, 4, 64, 132),
        (128, 128, 64, 128, 2, 5, 64, 132),
        (128, 128, 64, 128, 1, 3, 64, 264),
    ],
    256: [
        (128, 256, 64, 256, 1, 4, 64, 132),
        (192, 128, 64, 128, 1, 5, 64, 132),
        (128, 128, 64, 128, 2, 5, 64, 132),
        (128, 128, 64, 128, 1, 3, 64, 264),
        (64, 256, 64, 256, 2, 4, 64, 132),
    ],
}
OUTPUTS = {
    64: [
        (64, 256, 64, 128, 1, 5, 64, 132),
        (64, 256, 64, 256, 2, 4, 64, 132),
        (64, 192, 64, 192, 2, 5, 64, 132),
        (64, 128, 64, 128, 1, 4, 64, 264),
    ],
    128: [(128, 256, 64, 256, 1, 4, 64, 132), (128, 192, 64, 192, 1, 5, 64, 132), (64, 256, 64, 256, 2, 4, 64, 132)],
    256: [
        (128, 256, 64, 256, 1, 4, 64, 132),
        (128, 192, 64, 192, 1, 5, 64, 132),
        (64, 256, 64, 256, 2, 4, 64, 132),
        (256, 96, 64, 96, 1, 4, 32, 132),
    ],
}
"""Tiles of the two forms by the number of output channels, at least."""


def tiles(form, outputs):
    """The tiles of a form for a number of output channels."""
    table = PIXELS if form == "pixels" else OUTPUTS
    return table[max(size for size in table if size <= outputs)]


def contenders(layer, batch):
    """Yield the name and the bound strategy of each kernel of a layer."""
    for form in ("pixels", "outputs"):
        spec = layer.spec(batch, form == "outputs")
        for numbers in (*tiles(form, layer.outputs), *(WRITES if layer.writes and form == "pixels" else ())):
            values = dict(zip(NAMES, numbers, strict=True))
            yield f"{form} {'-'.join(map(str, numbers))}", convolution.strategy.with_(**values)(spec)


def compiled(job):
    """Compile a kernel into the cache, and return its registers and spills."""
    layer_name, batch, number = job
    name, bound = list(contenders(LAYERS[layer_name], batch))[number]
    try:
        program, resources = bound.program("sm_90a"), bound.compile("sm_90a").resources
    except Exception as error:
        return f"{layer_name} {name}: {str(error)[:300]}"
    by_tma = "copied by all threads" not in program.cuda and "tma_store(" in program.cuda
    return f"{layer_name} {name}: {resources.registers} registers, {resources.spill_stores} spilled, TMA {by_tma}"


def compile_all(layers, batch, processes):
    """Compile all kernels in several processes; print what each needs."""
    jobs = [(name, batch, number) for name in layers for number in range(sum(1 for _ in contenders(LAYERS[name], batch)))]
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        yield from pool.map(compiled, jobs)


WRITES = [
    (128, 256, 64, 256, 1, 3, 256, 132), (128, 128, 64, 128, 1, 2, 128, 264), (64, 256, 64, 256, 2, 3, 256, 132),
    (128, 128, 64, 128, 1, 2, 64, 65536), (64, 256, 64, 256, 1, 2, 128, 264), (256, 128, 64, 128, 1, 3, 128, 132),
]  # fmt: skip
"""Tiles for a layer that mainly writes: larger pieces, two blocks per SM, a block per tile."""


def measured(torch, layer, batch, rounds, call):
    """Return microseconds by contender; PyTorch is `cudnn`. `call`: only `fireiron.conv2d`, by PyTorch's tensors."""
    from fireiron.measure.timing import measure

    torch.backends.cudnn.benchmark = True
    convolve, shape = torch.nn.functional.conv2d, (batch, layer.channels, layer.size, layer.size)
    count = max(2, math.ceil(2 * L2 / (2 * math.prod(shape))))
    weights = torch.randn(layer.outputs, layer.channels, layer.filter, layer.filter, device="cuda", dtype=torch.half) / layer.filter
    last, options = torch.channels_last, {"stride": layer.stride, "padding": layer.filter // 2}
    inputs = [torch.randn(shape, device="cuda", dtype=torch.half).to(memory_format=last) for _ in range(count)]
    torch_weights, ours = weights.to(memory_format=last), weights.permute(0, 2, 3, 1).reshape(layer.outputs, -1).contiguous()
    right = convolve(inputs[0].float(), weights.float(), **options).permute(0, 2, 3, 1).reshape(-1, layer.outputs)
    calls = {"cudnn": [lambda x=x: convolve(x, torch_weights, **options) for x in inputs]}
    y = torch.empty(batch * layer.result**2, layer.outputs, device="cuda", dtype=torch.half)
    joined = layer.filter == 1 and layer.stride == 1
    if call:
        result = fireiron.conv2d(inputs[0], torch_weights, **options).permute(0, 2, 3, 1).reshape(-1, layer.outputs)
        error = float((result.float() - right).norm() / right.norm())
        print(f"error {error:.1e};", fireiron.conv2d.choice(inputs[0], torch_weights, **options).why[:150], flush=True)
        assert error < 1e-3
        outs = [fireiron.conv2d(x, torch_weights, **options) for x in inputs]
        calls["conv2d"] = [
            lambda x=x, out=out: fireiron.conv2d(x, torch_weights, out=out, **options) for x, out in zip(inputs, outs, strict=True)
        ]
        if joined:
            images = [x.permute(0, 2, 3, 1).reshape(-1, layer.channels) for x in inputs]
            calls["matmul"] = [lambda x=x: fireiron.matmul(x, ours.T, out=y) for x in images]
    for name, bound in () if call else contenders(layer, batch):
        try:
            kernel = bound.compile("sm_90a")
            images = [x.permute(0, 2, 3, 1) for x in inputs]
            images = [x.reshape(-1, layer.channels) for x in images] if joined else images
            out = y.T if name.startswith("outputs") else y
            prepared = [kernel.prepare(x, ours, out=out) for x in images]
            y.fill_(float("nan"))
            prepared[0]()
            torch.cuda.synchronize()
            error = float((y.float() - right).norm() / right.norm())
        except Exception as problem:
            print(f"left out: {name}: {str(problem)[:300]}", flush=True)
            continue
        if error < 1e-3:
            calls[name] = prepared
        else:
            print(f"left out: {name}: error {error:.1e}", flush=True)
    return {name: timing.us for name, timing in measure(calls, rounds=rounds).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--call", action="store_true", help="measure fireiron.conv2d")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    names = options.layers.split(",")
    for line in compile_all(names, options.batch, options.processes) if options.compile or options.processes > 1 else ():
        if options.compile or ", 0 spilled, TMA True" not in line:
            print(line, flush=True)
    if options.compile:
        return
    import torch

    results, rows, started = {}, [], time.time()
    for name in names:
        layer = {**LAYERS, **OTHERS}[name]
        times = results[name] = measured(torch, layer, options.batch, options.rounds, options.call)
        ours = {kernel: us for kernel, us in times.items() if kernel != "cudnn"}
        best = min(ours, key=ours.get)
        teraflops = layer.flops(options.batch) / ours[best] / 1e6
        rows.append([name, best, f"{ours[best]:.1f}", f"{times['cudnn']:.1f}", f"{times['cudnn'] / ours[best]:.2f}", f"{teraflops:.0f}"])
        print(f"{time.time() - started:.0f} s", name, {kernel: round(us, 1) for kernel, us in times.items()}, flush=True)
    head = f"ResNet-50 layers, batch {options.batch}, float16, {torch.cuda.get_device_name()}, microseconds, L2 rotated\n"
    text = head + tabulate(rows, ["layer", "kernel", "us", "cuDNN us", "speedup", "TFLOP/s"], disable_numparse=True)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "convolution.txt").write_text(text + "\n")
    (options.folder / "convolution.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
