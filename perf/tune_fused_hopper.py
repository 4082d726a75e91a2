"""Problems of `tune_fused.py` for Hopper (sm_90a): candidates by name, arrays, launches on them, and errors.

Attention of 16384 tokens with 2048 elements in all heads, decoding, fused GEMM, perceptrons, and groups of packed rows.
"""

import importlib
import math

from fireiron.strategies import attention_decode, hopper_attention

TOKENS, WIDTH = 16384, 2048
WIDE = {64: {"bm": 192, "bn": 96}, 128: {"bm": 192, "bn": 80}}
"""Tiles of three warpgroups, by the head dimension."""

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
OTHER_TYPE = ("bfloat16", (2048, 8192))
"""The type that is tuned for few lengths, too."""

PRODUCTS = {
    "dual": ({}, {"depth": 4}, {"depth": 2}, {"bn": 128, "stages": 3, "depth": 4}, {"bm": 256, "bn": 128}),
    "gated": ({}, {"stages": 3}, {"bm": 256, "bn": 64}, {"bn": 64, "stages": 6}, {"bk": 32, "stages": 6}),
    "gemm_row_sum": ({}, {"stages": 3}, {"bn": 128, "stages": 5}, {"bm": 256, "bn": 128}, {"bn": 192}),
    "lstm": ({}, {"bk": 32, "stages": 4}, {"bn": 128, "stages": 3}, {"bm": 256, "bn": 128}, {"bn": 192}),
}
"""Tunable values to try with the form `hopper`."""

SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 8192, 1024))
PERCEPTRONS = ({"bm": 64, "stages": 6}, {"bm": 64}, {"bm": 128}, {"bm": 192, "stages": 3})
RAGGED = ({}, {"stages": 5, "epi_n": 128}, {"bm": 192}, {"bm": 64, "producer_threads": 32}, {"bm": 64, "producer_threads": 32, "stages": 3})
GROUPS = 16
DECODED = ({}, {"bn": 64, "stages": 2}, {"stages": 2}, {"stages": 4}, {"bn": 16, "stages": 4})
DECODE = {"rows": 4, "heads": 8, "batch": 8, "d": 128}


def cases(only):
    """Problems, the most important first: name, sizes, whether it is causal, and the element type."""
    problems = []
    if "hopper_attention" in only:
        both = [
            (length, d, causal) for length in sorted(LENGTHS, key=lambda one: one != 4096) for d in (128, 64) for causal in (False, True)
        ]
        problems += [("hopper_attention", (length, d), causal, "float16") for length, d, causal in both]
        kind, lengths = OTHER_TYPE
        problems += [("hopper_attention", (length, d), causal, kind) for length, d, causal in both if length in lengths]
    if "attention_decode" in only:
        problems += [("attention_decode", (keys,), False, "float16") for keys in (4096, 16384, 65536)]
    problems += [
        (name, sizes, False, "float16") for sizes in sorted(SIZES, key=lambda one: one[0] != 4096) for name in PRODUCTS if name in only
    ]
    if "mlp" in only:
        problems += [("mlp", (rows, 128, 20), False, "float16") for rows in (8192, 32768)]
    if "hopper_ragged" in only:
        problems += [("hopper_ragged", sizes, False, "float16") for sizes in ((16384, 2048, 1024), (4096, 4096, 4096))]
    return problems


NAMES = ("hopper_attention", "attention_decode", *PRODUCTS, "mlp", "hopper_ragged")


def spec_of(name, sizes, causal, dtype):
    """Return the spec of a problem."""
    import fireiron

    if name == "hopper_attention":
        (length, d), definition = sizes, hopper_attention.definition(causal=causal)
        kind = getattr(fireiron, dtype)
        return hopper_attention.spec(length, length, d, heads=WIDTH // d, batch=TOKENS // length, fused=definition, dtype=kind)
    if name == "attention_decode":
        rows, heads, batch, d = DECODE.values()
        return attention_decode.spec(rows, *sizes, d, heads, batch, attention_decode.size_for(*sizes, batch * heads))
    module = importlib.import_module(f"fireiron.strategies.{name}")
    return module.spec(*sizes, groups=GROUPS) if name == "hopper_ragged" else module.spec(*sizes)


def candidates(name, sizes, causal, spec):
    """Return strategies by name, with values."""
    if name == "hopper_attention":
        return _of_attention(*sizes, causal, spec)
    if name == "attention_decode":
        own = attention_decode.values(spec)
        return [("attention_decode:hopper", {**own, **one}) for one in DECODED]
    if name == "mlp":
        return [("mlp:hopper", one) for one in PERCEPTRONS]
    if name == "hopper_ragged":
        return [("hopper_ragged", one) for one in RAGGED]
    return [(f"{name}:hopper", one) for one in PRODUCTS[name]]


def _of_attention(length, d, causal, spec):
    own = lambda form, **more: (f"hopper_attention:{form}", {**hopper_attention.values_of(form, spec), **more})
    wide = WIDE[d]
    if not causal:
        candidates = [own("strategy"), own("q_in_registers"), own("order_mma"), own("strategy", **wide)]
        return [*candidates, own("q_in_registers", num_blocks=65536)] if length <= 1024 else candidates
    candidates = [own("causal_dynamic_q_in_registers"), own("causal_dynamic"), own("causal_order_mma"), own("causal_dynamic", **wide)]
    return (
        [*candidates, own("causal", **wide), own("causal_q_in_registers")]
        if length >= 4096
        else [*candidates, own("causal_dynamic_q_in_registers", heads_per_group=4)]
    )


# ---------------------------------------------------------------------------------------------- launches


class Attention:
    """Sets of arrays (b, m, h, d), with the rows of all heads adjacent."""

    def __init__(self, torch, case, count):
        length, d = case.sizes
        self.torch, self.case = torch, case
        drawn = lambda: torch.randn((TOKENS // length, length, WIDTH // d, d), device="cuda", dtype=getattr(torch, case.dtype))
        self.sets = [(drawn(), drawn(), drawn(), torch.empty_like(drawn())) for _ in range(count)]

    def ours(self, kernel):
        """Return a launch for each set."""
        scale = self.case.sizes[1] ** -0.5
        return [kernel.prepare(q.unsqueeze(3), k, v, scale, out=o.unsqueeze(3)) for q, k, v, o in self.sets]

    def peer(self):
        """Return Torch's attention by cuDNN."""
        from attention import by_torch

        return [by_torch("CUDNN_ATTENTION", self.case.causal, [part.transpose(1, 2) for part in one]) for one in self.sets]

    def error(self, call):
        """Return the error of three heads compared with float64; a `SystemExit` if it is too large."""
        from attention import error_of

        most = 8e-3 if self.case.dtype == "bfloat16" else 1e-3
        return error_of(call, [part.transpose(1, 2) for part in self.sets[0]], self.case.causal, most)


class Decoding:
    """Sets of queries q[b,g,m,d] and many keys and values [b,n,g,d]; the combination of the parts is not timed."""

    def __init__(self, torch, case, count):
        rows, heads, batch, d = DECODE.values()
        (keys,) = case.sizes
        size = attention_decode.size_for(keys, batch * heads)
        parts = -(-keys // size)
        self.torch, self.parts = torch, (batch, heads, parts, rows)
        drawn = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.half)
        empty = lambda *shape: torch.empty(shape, device="cuda")
        self.sets = [
            (drawn(batch, heads, rows, d), drawn(batch, keys, heads, d), drawn(batch, keys, heads, d), (empty(*self.parts, d), empty(*self.parts), empty(*self.parts)))
            for _ in range(2)
        ]  # fmt: skip

    def ours(self, kernel):
        """Return a launch for each set."""
        return [kernel.prepare(q, k, v, q.shape[-1] ** -0.5, out=outs) for q, k, v, outs in self.sets]

    def peer(self):
        """Return Torch's attention by FlashAttention-2, with the queries of heads that share keys as rows."""
        from attention import by_torch

        return [by_torch("FLASH_ATTENTION", False, (q, k.transpose(1, 2), v.transpose(1, 2), None)) for q, k, v, _ in self.sets]

    def error(self, call):
        """Return the error of the combined parts compared with float64; a `SystemExit` if it is too large."""
        q, k, v, outs = self.sets[0]
        for output in outs:
            output.fill_(math.nan)
        call()
        values, tops, sums = (one.double() for one in outs)
        weights = (tops - tops.amax(2, keepdim=True)).exp2()
        got = (values * weights[..., None]).sum(2) / (sums * weights).sum(2)[..., None]
        worst = 0.0
        for batch in range(q.shape[0]):
            scores = q[batch].double() @ k[batch].double().permute(1, 2, 0) * q.shape[-1] ** -0.5
            right = scores.softmax(-1) @ v[batch].double().transpose(0, 1)
            worst = max(worst, float((got[batch] - right).norm() / right.norm()))
        return _small(worst, "attention_decode")


class Products:
    """Sets of the operands of fused GEMM, perceptrons and grouped GEMM."""

    def __init__(self, torch, case, count):
        self.torch, self.name, self.spec = torch, case.name, case.spec
        shapes = {one: tuple(int(str(size)) for size in self.spec.operands[one].shape) for one in self.spec.operands}
        self.sets = []
        for _ in range(min(count, 4)):
            inputs = [self._drawn(one, shapes[one]) for one in self.spec.inputs]
            outputs = [
                torch.empty(shapes[name], device="cuda", dtype=getattr(torch, str(self.spec.operands[name].dtype)))
                for name in self.spec.outputs
            ]
            self.sets.append((inputs, outputs))

    def _drawn(self, name, shape):
        torch = self.torch
        if name in ("begin", "end"):
            inner = torch.linspace(0, 1, shape[0] + 1, device="cuda")[1:-1] ** 1.5 * int(str(self.spec.size("m")))
            offsets = torch.cat(
                [torch.zeros(1, device="cuda"), inner, torch.full((1,), int(str(self.spec.size("m"))), device="cuda")]
            ).int()
            return offsets[:-1].clone() if name == "begin" else offsets[1:].clone()
        return (torch.randn(shape, device="cuda") * (shape[-2] ** -0.5 if len(shape) > 1 and name not in "AXH" else 1)).half()

    def ours(self, kernel):
        """Return a launch for each set."""
        return [kernel.prepare(*inputs, out=outputs[0] if len(outputs) == 1 else tuple(outputs)) for inputs, outputs in self.sets]

    def peer(self):
        """Return Torch's GEMM of the same operands, without the fused operations."""
        return [lambda inputs=inputs: self._plain(inputs) for inputs, _ in self.sets]

    def _plain(self, inputs):
        matmul = self.torch.matmul
        match self.name:
            case "lstm":
                return matmul(inputs[0], inputs[1]), matmul(inputs[2], inputs[3])
            case "mlp":
                x = inputs[0]
                for weights in inputs[1]:
                    x = matmul(x, weights)
                return x
            case "hopper_ragged":
                return matmul(inputs[0], inputs[1][0])
            case "gemm_row_sum":
                return matmul(inputs[0], inputs[1])
            case _:
                return matmul(inputs[0], inputs[1]), matmul(inputs[0], inputs[2])

    def error(self, call):
        """Return the largest norm error of an output, compared with float64 for the first rows; a `SystemExit` if it is too large."""
        inputs, outputs = self.sets[0]
        for output in outputs:
            output.fill_(math.nan)
        call()
        wanted = self._right([one.double() for one in inputs])
        rows = len(wanted[0])
        errors = [float((got[:rows].double() - right).norm() / right.norm()) for got, right in zip(outputs, wanted, strict=True)]
        finite = all(bool(self.torch.isfinite(one).all()) for one in outputs)
        return _small(max(errors) if finite else math.nan, self.name)

    def _right(self, inputs):
        first = inputs[0][:512]
        match self.name:
            case "dual":
                return [first @ inputs[1] + first @ inputs[2]]
            case "gated":
                return [self.torch.nn.functional.silu(first @ inputs[1]) * (first @ inputs[2])]
            case "gemm_row_sum":
                return [first @ inputs[1], first.sum(1)]
            case "lstm":
                return [(first @ inputs[1] + inputs[2][:512] @ inputs[3] + inputs[4]).relu()]
            case "mlp":
                for weights, bias in zip(inputs[1], inputs[2], strict=True):
                    first = (first @ weights + bias).relu().half().double()
                return [first]
            case _:
                a, b, begin, end = inputs
                right = self.torch.zeros(len(a), b.shape[2], device="cuda", dtype=self.torch.double)
                for group, (low, high) in enumerate(zip(begin.int().tolist(), end.int().tolist(), strict=True)):
                    right[low:high] = a[low:high] @ b[group]
                return [right]


def _small(error, name):
    if not error < 2e-3:
        raise SystemExit(f"wrong: {name}: error {error}")
    return error


def problem_of(name):
    """Return the class that makes the arrays of a problem."""
    return {"hopper_attention": Attention, "attention_decode": Decoding}.get(name, Products)
