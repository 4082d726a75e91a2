"""Compare convolutions of ResNet-50 with cuDNN: float16, channels contiguous (channels_last), implicit GEMM by TMA in im2col mode and wgmma.

    python perf/convolution.py FOLDER [--batch 128] [--rounds 7] [--layers 3x3_56,3x3_28] [--processes 8]

`strategies/convolution.py` computes each layer in two forms, with pixels or with output channels along the rows of wgmma, and with several
tiles. Each result is compared with `torch.nn.functional.conv2d` in float32. The rival is the same function in float16 (cuDNN with
`torch.backends.cudnn.benchmark`). Buffers rotate through more than the L2 cache. Writes `convolution.txt` and `convolution.json`.

`python perf/convolution.py --compile` compiles all kernels for sm_90a without a GPU, and prints their registers.

`--gradients` measures the gradients of images and of filters against `convolution_backward` of PyTorch (cuDNN), with `--candidates N` tiles
of each; the first is the one that the functions select. `--dtype bfloat16` is for both. Writes `gradients_DTYPE.txt` and `.json`.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import json
import math
import multiprocessing
import time
from pathlib import Path

import attrs
from gpu_turns import alone
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
    with alone():
        return {name: timing.us for name, timing in measure(calls, rounds=rounds).items()}


# ---------------------------------------------------------------------------------------------- gradients


@contextlib.contextmanager
def only_candidate(number):
    """Let the gradients select candidate `number`, and cache it apart from the usual choice."""
    from fireiron.conv2d_gradients import input_gradient, weight_gradient
    from fireiron.front.place import Place
    from fireiron.strategies import convolution_input_gradient, convolution_weight_gradient

    places = ((convolution_input_gradient, "tiles"), (convolution_weight_gradient, "ranked"), (Place, "chosen"))
    before = [getattr(place, name) for place, name in places]
    tiles, ranked, chosen = before
    convolution_input_gradient.tiles = lambda *given, **options: tiles(*given, **options)[number:]
    convolution_weight_gradient.ranked = lambda *given, **options: ranked(*given, **options)[number:]
    Place.chosen = lambda self, call, key, choose: chosen(self, call, (*key, f"candidate {number}"), choose)
    input_gradient.clear(), weight_gradient.clear()
    try:
        yield
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)
        input_gradient.clear(), weight_gradient.clear()


def gradient_calls(layer):
    """Yield the name of a gradient, its function, the index of the array that it reads in addition to dY, and its sizes."""
    from fireiron.conv2d_gradients import input_gradient, weight_gradient

    yield "images", input_gradient, 1, (layer.size, layer.size)
    yield "filters", weight_gradient, 0, (layer.filter, layer.filter)


def operands(torch, layer, batch, dtype, count=1, filled=True):
    """Sets of images, filters and dY with contiguous channels."""
    make = torch.randn if filled else torch.empty
    shapes = (batch, layer.channels, layer.size, layer.size), (layer.outputs, layer.channels, layer.filter, layer.filter)
    shapes = *shapes, (batch, layer.outputs, layer.result, layer.result)
    last = {"memory_format": torch.channels_last}
    return [[make(shape, device="cuda", dtype=dtype).to(**last) for shape in shapes] for _ in range(count)]


def prepared(job):
    """Choose and compile one candidate of a gradient in this process, into the cache."""
    name, batch, which, number, dtype = job
    import torch

    layer = {**LAYERS, **OTHERS}[name]
    (arrays,) = operands(torch, layer, batch, getattr(torch, dtype), filled=False)
    _, function, other, sizes = list(gradient_calls(layer))[which]
    from fireiron.conv2d_gradients import request

    with only_candidate(number):
        try:
            out = torch.empty_like(arrays[which])
            answer = function.answer(request(arrays[2], arrays[other], sizes, stride=layer.stride, padding=layer.filter // 2, out=out))
            for kernel in [phase.kernel for phase in getattr(answer, "phases", ())] or [answer.kernel, answer.sum_kernel]:
                _ = None if kernel is None else kernel.compiled
        except Exception as error:
            return f"{name} {which} {number}: {str(error)[:300]}"
    return ""


def gradients(torch, name, batch, rounds, dtype, candidates):
    """Return microseconds by gradient and contender."""
    from fireiron.conv2d_gradients import request
    from fireiron.measure.timing import measure

    layer = {**LAYERS, **OTHERS}[name]
    sets = operands(torch, layer, batch, dtype, 2)
    padding, tolerance = layer.filter // 2, 2e-3 if dtype == torch.half else 1e-2
    backward, pair = torch.ops.aten.convolution_backward, lambda number: [number, number]
    results = {}
    for which, (gradient, function, other, sizes) in enumerate(gradient_calls(layer)):
        mask = [which == 0, which == 1, False]
        options = (None, pair(layer.stride), pair(padding), [1, 1], False, [0, 0], 1, mask)
        right = backward(sets[0][2].float(), sets[0][0].float(), sets[0][1].float(), *options)[which]
        calls = {"cudnn": [lambda one=one, options=options: backward(one[2], one[0], one[1], *options) for one in sets]}
        why = {}
        for number in range(candidates):
            with only_candidate(number):
                try:
                    out = torch.full_like(sets[0][which], float("nan"))
                    bound = function.answer(request(sets[0][2], sets[0][other], sizes, stride=layer.stride, padding=padding, out=out))
                except Exception as problem:
                    print(f"left out: {name} {gradient} {number}: {str(problem)[:200]}", flush=True)
                    continue
            text = bound.choice.why.partition(": ")[2].partition(";")[0].removeprefix("convolution_").replace("_gradient", "")
            if text in why.values():
                continue
            bound((sets[0][2], sets[0][other]), out, None)
            error = float((out.float() - right).norm() / right.norm())
            if not error < tolerance:
                print(f"left out: {name} {gradient} {text}: error {error:.1e}", flush=True)
                continue
            why[str(number)] = text
            calls[str(number)] = [lambda one=one, bound=bound, out=out, other=other: bound((one[2], one[other]), out, None) for one in sets]
        with alone():
            times = {key: timing.us for key, timing in measure(calls, rounds=rounds, pause=0.05).items()}
        results[gradient] = {why.get(key, key): us for key, us in times.items()}
    return results


DEPTHWISE = {
    "112": (112, 64, 3, 1), "56": (56, 128, 3, 1), "56_stride": (56, 128, 3, 2), "28": (28, 256, 3, 1), "14": (14, 512, 3, 1),
    "56_wide": (56, 128, 7, 1),
}  # fmt: skip
"""Depthwise convolutions: the size of the image, channels, rows of taps, stride."""


def measure_depthwise(options):
    """Compare depthwise convolutions with PyTorch and with a copy of the images, and write the results."""
    import torch

    from fireiron.measure.timing import measure

    torch.backends.cudnn.benchmark = True
    plain, rows, results = torch.nn.functional.conv2d, [], {}
    for name, (size, channels, taps, stride) in DEPTHWISE.items():
        shape, last = (options.batch, channels, size, size), {"memory_format": torch.channels_last}
        xs = [torch.randn(shape, device="cuda", dtype=getattr(torch, options.dtype)).to(**last) for _ in range(2)]
        w = torch.randn(channels, 1, taps, taps, device="cuda", dtype=xs[0].dtype)
        given = {"stride": stride, "padding": taps // 2, "groups": channels}
        right = plain(xs[0].float(), w.float(), **given)
        outs = [fireiron.conv2d(x, w, **given) for x in xs]
        error = float((outs[0].float() - right).norm() / right.norm())
        assert error < 1e-2, error
        calls = {
            "cudnn": [lambda x=x, w=w, given=given: plain(x, w, **given) for x in xs],
            "conv2d": [
                lambda x=x, w=w, out=out, given=given: fireiron.conv2d(x, w, out=out, **given) for x, out in zip(xs, outs, strict=True)
            ],
            "copy": [functools.partial(torch.empty_like(x).copy_, x) for x in xs],
        }
        with alone():
            times = results[name] = {key: timing.us for key, timing in measure(calls, rounds=options.rounds, pause=0.05).items()}
        moved = 2 * (math.prod(shape) + outs[0].numel())
        speed = f"{moved / times['conv2d'] / 1e6:.2f}"
        rows.append([name, *(f"{times[key]:.1f}" for key in calls), f"{times['cudnn'] / times['conv2d']:.2f}", speed])
    write(options, "depthwise", "Depthwise", ["layer", "PyTorch", "conv2d", "copy of x", "speedup", "TB/s"], rows, results)


def write(options, name, what, head, rows, results):
    """Print a table, and write it and all times to the folder of results."""
    import torch

    where = f"{what}, batch {options.batch}, {options.dtype}, {torch.cuda.get_device_name()}, microseconds, L2 rotated\n"
    text = where + tabulate(rows, head, disable_numparse=True)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"{name}.txt").write_text(text + "\n")
    (options.folder / f"{name}.json").write_text(json.dumps(results, indent=1))


def measure_depthwise_gradients(options):
    """Compare the gradients of depthwise convolutions with PyTorch, and write the results."""
    import torch

    from fireiron.conv2d_gradients import input_gradient, weight_gradient
    from fireiron.measure.timing import measure

    torch.backends.cudnn.benchmark = True
    backward, rows, results = torch.ops.aten.convolution_backward, [], {}
    for name, (size, channels, taps, stride) in DEPTHWISE.items():
        layer, last = Layer(size, channels, channels, taps, stride), {"memory_format": torch.channels_last}
        shapes = (options.batch, channels, size, size), (options.batch, channels, layer.result, layer.result)
        sets = [[torch.randn(one, device="cuda", dtype=getattr(torch, options.dtype)).to(**last) for one in shapes] for _ in range(2)]
        w = torch.randn(channels, 1, taps, taps, device="cuda", dtype=sets[0][0].dtype)
        given = {"stride": stride, "padding": taps // 2, "groups": channels}
        numbers = None, [stride] * 2, [taps // 2] * 2, [1, 1], False, [0, 0], channels
        for which, gradient in enumerate(("images", "filters")):
            mask = [which == 0, which == 1, False]
            x, grad = sets[0]
            right = backward(grad.float(), x.float(), w.float(), *numbers, mask)[which]
            function, sizes = ((input_gradient, (size, size)), (weight_gradient, (taps, taps)))[which]
            out = torch.full_like(right, float("nan"), dtype=x.dtype, memory_format=torch.preserve_format)
            ours = [
                functools.partial(function, grad, (w, x)[which], sizes, out=out, **given) for x, grad in sets
            ]  # fmt: skip
            ours[0]()
            error = float((out.float() - right).norm() / right.norm())
            assert error < 1e-2, (name, gradient, error)
            calls = {
                "cudnn": [lambda x=x, grad=grad, w=w, mask=mask, numbers=numbers: backward(grad, x, w, *numbers, mask) for x, grad in sets],
                "ours": ours,
            }
            with alone():
                times = {key: timing.us for key, timing in measure(calls, rounds=options.rounds, pause=0.05).items()}
            results[f"{name} {gradient}"] = times
            moved = 2 * sum(one.numel() for one in sets[0])
            speed = f"{moved / times['ours'] / 1e6:.2f}"
            rows.append([name, gradient, *(f"{times[key]:.1f}" for key in calls), f"{times['cudnn'] / times['ours']:.2f}", speed])
            print(rows[-1], flush=True)
    head = ["layer", "gradient", "PyTorch", "ours", "speedup", "TB/s"]
    write(options, "depthwise_gradients", "Gradients of depthwise convolutions", head, rows, results)


def measure_gradients(torch, names, options):
    """Measure the gradients of layers, and write the results."""
    jobs = [
        (name, options.batch, which, number, options.dtype) for name in names for which in (0, 1) for number in range(options.candidates)
    ]
    started = time.time()
    if options.processes > 1:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.processes, mp_context=context) as pool:
            for line in pool.map(prepared, jobs):
                if line:
                    print(line, flush=True)
        print(f"{time.time() - started:.0f} s: compiled", flush=True)
    if options.prepare:
        return
    torch.backends.cudnn.benchmark = True
    results, rows = {}, []
    for name in names:
        results[name] = gradients(torch, name, options.batch, options.rounds, getattr(torch, options.dtype), options.candidates)
        for gradient, times in results[name].items():
            cudnn, ours = times["cudnn"], [(us, kernel) for kernel, us in times.items() if kernel != "cudnn"]
            if ours:
                first, (best, kernel) = ours[0][0], min(ours)
                flops = {**LAYERS, **OTHERS}[name].flops(options.batch)
                numbers = [
                    f"{cudnn:.1f}",
                    f"{first:.1f}",
                    f"{cudnn / first:.2f}",
                    f"{best:.1f}",
                    f"{cudnn / best:.2f}",
                    f"{flops / best / 1e6:.0f}",
                ]
                rows.append([name, gradient, *numbers, kernel])
        print(
            f"{time.time() - started:.0f} s",
            name,
            json.dumps({k: {t: round(u, 1) for t, u in v.items()} for k, v in results[name].items()}),
            flush=True,
        )
    head = (
        f"Gradients of ResNet-50 layers, batch {options.batch}, {options.dtype}, {torch.cuda.get_device_name()}, microseconds, L2 rotated\n"
    )
    columns = ["layer", "gradient", "cuDNN us", "selected us", "speedup", "best us", "speedup", "TFLOP/s", "best tiles"]
    text = head + tabulate(rows, columns, disable_numparse=True)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"gradients_{options.dtype}.txt").write_text(text + "\n")
    (options.folder / f"gradients_{options.dtype}.json").write_text(json.dumps(results, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--call", action="store_true", help="measure fireiron.conv2d")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--gradients", action="store_true", help="measure the gradients")
    parser.add_argument("--candidates", type=int, default=1, help="tiles of each gradient")
    parser.add_argument("--prepare", action="store_true", help="only compile the gradients, in processes")
    parser.add_argument("--depthwise", action="store_true", help="measure depthwise convolutions, or with --gradients their gradients")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16"])
    options = parser.parse_args()
    names = options.layers.split(",")
    if options.depthwise and options.gradients:
        measure_depthwise_gradients(options)
        return
    if options.gradients:
        import torch

        measure_gradients(torch, names, options)
        return
    if options.depthwise:
        measure_depthwise(options)
        return
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
