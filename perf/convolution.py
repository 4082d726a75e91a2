"""Compare convolutions of ResNet-50 with cuDNN: float16, channels contiguous (channels_last), implicit GEMM by TMA and wgmma.

    python perf/convolution.py FOLDER [--batch 128] [--rounds 7] [--layers 3x3_56,3x3_28]

Two definitions compute each layer. `rows` has a tile of pixels of one image row, and needs stride 1. `images` has a tile of images at one
pixel, so each box has one pixel of several images, for any stride. Both run with several tiles, and are compared with
`torch.nn.functional.conv2d` (cuDNN with `torch.backends.cudnn.benchmark`), whose result each kernel must have, except for the fused ReLU.
Writes `convolution.txt` and
`convolution.json` into the folder.

`python perf/convolution.py --compile` compiles all kernels for sm_90a without a GPU.
"""

import argparse
import json
import math
from pathlib import Path

import attrs
from tabulate import tabulate

from fireiron import *

L2 = 50 << 20
"""Bytes of the cache: operand sets rotate through more than this."""


@attrs.frozen
class Layer:
    """A convolution: the size of the input image, its channels, those of the output, the filter, the stride and the padding."""

    size: int
    channels: int
    outputs: int
    filter: int
    stride: int = 1

    @property
    def padding(self):
        """Zeros on each side of the image."""
        return self.filter // 2

    @property
    def result(self):
        """The size of the output image."""
        return (self.size + 2 * self.padding - self.filter) // self.stride + 1

    def flops(self, batch):
        """Operations of the layer."""
        return 2 * batch * self.result**2 * self.outputs * self.channels * self.filter**2


LAYERS = {
    "1x1_56": Layer(56, 64, 256, 1),
    "1x1_14": Layer(14, 1024, 256, 1),
    "3x3_56": Layer(56, 64, 64, 3),
    "3x3_28": Layer(28, 128, 128, 3),
    "3x3_14": Layer(14, 256, 256, 3),
    "3x3_7": Layer(7, 512, 512, 3),
    "3x3_56_stride": Layer(56, 128, 128, 3, 2),
    "3x3_28_stride": Layer(28, 256, 256, 3, 2),
    "1x1_56_stride": Layer(56, 256, 512, 1, 2),
}
"""Layers of ResNet-50 by name."""

TILES = {"64x64": (64, 64, 6), "128x64": (128, 64, 5), "128x128": (128, 128, 4), "128x256": (128, 256, 3)}
"""By name: pixels or images, output channels, and stages."""


def definition(kind, layer):
    """Return the convolution with a tile of `rows` of pixels, or of `images`."""
    index = [
        f"{dim}{f'*{layer.stride}' if layer.stride > 1 else ''} + {tap}{f' - {layer.padding}' if layer.padding else ''}"
        for dim, tap in (("p", "r"), ("q", "s"))
    ]
    row, batch = ("q", "b p") if kind == "rows" else ("b", "p q")
    return Fused(
        name=f"convolution_{kind}", dims="b p q o r s c h w", operands={"X": "b h w c", "W": "r s o c", "Y": "b p q o"}, batch=batch,
        scan="r s", init={"zero": f"acc[{row},o] = 0"},
        body={"product": f"acc[{row},o] += sum(c, X[b,{index[0]},{index[1]},c] * W[r,s,o,c])"},
        final={"store": f"Y[b,p,q,o] = relu(acc[{row},o])"},
    )  # fmt: skip


def strategy(fused, rows, outputs, stages):
    """Return the strategy: a producer loads boxes, one or two warpgroups multiply them."""
    boxes = MatMul.split(64).pipeline(stages).warp_specialize(128).mma_in_flight(1)
    boxes = boxes.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, outputs).to(Warpgroup).done()
    row = "b" if "q" in fused.fused_definition.batch else "q"
    tile = {"b": 1, "p": 1, "q": 1, row: rows, "o": outputs}
    return fused.tile(**tile).to(Block).split(r=1).split(s=1).step("product", boxes).done()


def contenders(layer, batch):
    """Yield the name and the bound strategy of each kernel of a layer."""
    kinds = ["images", *(["rows"] if layer.stride == 1 else [])]
    for kind in kinds:
        fused = definition(kind, layer)
        spec = fused(
            b=batch, p=layer.result, q=layer.result, o=layer.outputs, r=layer.filter, s=layer.filter, c=layer.channels,
            h=layer.size, w=layer.size,
        )  # fmt: skip
        for name, (rows, outputs, stages) in TILES.items():
            if outputs <= layer.outputs and (kind == "images" or rows <= max(64, 2 * layer.result)):
                yield f"{kind} {name}", strategy(fused, rows, outputs, stages)(spec)


def measured(torch, layer, batch, rounds):
    """Return microseconds by contender; PyTorch is `cudnn`."""
    from fireiron.measure.timing import measure

    torch.backends.cudnn.benchmark = True
    convolve, shape = torch.nn.functional.conv2d, (batch, layer.channels, layer.size, layer.size)
    count = max(2, math.ceil(2 * L2 / (2 * math.prod(shape))))
    weights = torch.randn(layer.outputs, layer.channels, layer.filter, layer.filter, device="cuda", dtype=torch.half) / layer.filter
    last = torch.channels_last
    inputs = [torch.randn(shape, device="cuda", dtype=torch.half).to(memory_format=last) for _ in range(count)]
    torch_weights, ours = weights.to(memory_format=last), weights.permute(2, 3, 0, 1).contiguous()
    right = torch.relu(convolve(inputs[0].float(), weights.float(), stride=layer.stride, padding=layer.padding))

    calls = {"cudnn": [lambda x=x: convolve(x, torch_weights, stride=layer.stride, padding=layer.padding) for x in inputs]}
    y = torch.empty(batch, layer.result, layer.result, layer.outputs, device="cuda", dtype=torch.half)
    for name, bound in contenders(layer, batch):
        kernel = bound.compile("sm_90a")
        calls[name] = [kernel.prepare(x.permute(0, 2, 3, 1), ours, out=y) for x in inputs]
        y.fill_(float("nan"))
        calls[name][0]()
        torch.cuda.synchronize()
        error = float((y.permute(0, 3, 1, 2).float() - right).norm() / right.norm())
        if not error < 2e-3:
            print(f"left out: {name}: error {error:.1e}", flush=True)
            del calls[name]
    return {name: timing.us for name, timing in measure(calls, rounds=rounds).items()}


def compiled(batch):
    """Compile all kernels, and print the registers of each."""
    from fireiron.gpu.toolchain import compile_cuda

    for layer_name, layer in LAYERS.items():
        for name, bound in contenders(layer, batch):
            program = bound.program("sm_90a")
            resources = compile_cuda(program.cuda, "sm_90a").resources[program.name]
            by_tma = "tma_load" in program.cuda and "copied by all threads" not in program.cuda
            print(f"{layer_name} {name}: {resources.registers} registers, {resources.spill_stores} spilled, TMA {by_tma}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.compile:
        compiled(options.batch)
        return
    import torch

    results, rows = {}, []
    for name in options.layers.split(","):
        layer = LAYERS[name]
        times = results[name] = measured(torch, layer, options.batch, options.rounds)
        best = min((time, kernel) for kernel, time in times.items() if kernel != "cudnn")
        teraflops = layer.flops(options.batch) / best[0] / 1e6
        rows.append([name, best[1], f"{best[0]:.1f}", f"{times['cudnn']:.1f}", f"{times['cudnn'] / best[0]:.2f}", f"{teraflops:.0f}"])
        print(name, times, flush=True)
    head = (
        f"ResNet-50 layers, batch {options.batch}, float16, {torch.cuda.get_device_name()}, microseconds; only the kernels include ReLU\n"
    )
    text = head + tabulate(rows, ["layer", "kernel", "us", "cuDNN us", "speedup", "TFLOP/s"], disable_numparse=True)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "convolution.txt").write_text(text + "\n")
    (options.folder / "convolution.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
