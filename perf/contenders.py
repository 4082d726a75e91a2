"""Kernels compared with ours, in addition to cuBLAS (`fireiron.measure.timing.cublas`): kernels written by hand, NVIDIA's sample, Triton.

Each function returns a rival for `gpu_benchmark(..., against=)`: it gets the arrays of a set by operand name, and returns the launch on
them, on the current stream. All rivals work on the same arrays as our kernel.
"""

import functools
import json
from pathlib import Path

import numpy as np

from fireiron.gpu import launch, toolchain

HANDWRITTEN = Path(__file__).parent / "handwritten"

PLANS = {
    "hgemm_nt": lambda M, N, K: (M // 128 * (N // 128), 256),
    "wmma_simple": lambda M, N, K: (M // 64 * (N // 64), 512),
}
"""Grid and block of the kernels written by hand."""


def handwritten(name, sizes):
    """Return a kernel of the folder `handwritten`, compiled for these sizes with the options of our own kernels."""
    arch = launch.device_arch()
    options = tuple(f"-DSIZE_{dim}={size}" for dim, size in zip("MNK", sizes, strict=True))
    source = (HANDWRITTEN / f"{name}.cu").read_text()
    compiled = toolchain.compile_cuda(source, arch, options=options, newest=launch.driver_version())
    loaded = launch.load(compiled.cubin, name)
    grid, block = PLANS[name](*sizes)
    return lambda arrays: functools.partial(loaded, grid, block, [arrays[operand] for operand in "ABC"])


def sample(folder, name):
    """Return a kernel of NVIDIA's sample, from the folder made by build_sample.py.

    It computes D = alpha A B + beta C, so it also reads a C; alpha is 1, beta 0, and C another array than the result.
    """
    import cupy

    entry = next(one for one in json.loads(Path(folder, "kernels.json").read_text())["kernels"] if one["name"] == name)
    loaded = launch.load(Path(folder, entry["cubin"]).read_bytes(), entry["kernel"], entry["shared"])
    multiprocessors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    grid = multiprocessors if entry["grid"] == "multiprocessors" else tuple(entry["grid"])
    block = entry["block"] if isinstance(entry["block"], int) else tuple(entry["block"])
    scalars = {"alpha": np.float32(1), "beta": np.float32(0)}

    def rival(arrays):
        M, N, K = *arrays["C"].shape, arrays["A"].shape[1]
        sizes = {name: np.int32(size) for name, size in zip("MNK", (M, N, K), strict=True)}
        addend = cupy.ones(arrays["C"].shape, dtype=np.float32)
        values = {"A": arrays["A"], "B": arrays["B"], "C": addend, "D": arrays["C"]} | sizes | scalars
        return functools.partial(loaded, grid, block, [values[argument] for argument in entry["arguments"]])

    return rival


def sample_sizes(folder):
    """Return the only problem that the sample computes."""
    return tuple(json.loads(Path(folder, "kernels.json").read_text())["sizes"])


def triton(config):
    """Return Triton's GEMM restricted to mma.sync (peers.py), in one of its configurations."""
    import peers
    import torch

    def rival(arrays):
        tensors = tuple(torch.from_dlpack(arrays[name]) for name in "ABC")
        if peers.instructions(peers.triton_mma_sync_matmul(*tensors, config)) != "mma.sync":
            raise RuntimeError("Triton was not restricted to mma.sync")
        return functools.partial(peers.triton_mma_sync_matmul, *tensors, config)

    return rival
