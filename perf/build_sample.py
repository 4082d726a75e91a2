"""Build machine code of NVIDIA's sample cudaTensorCoreGemm, for comparison with the WMMA strategies; no GPU is needed.

    python perf/build_sample.py CUDA_SAMPLES FOLDER [--arch sm_90]

CUDA_SAMPLES is a copy of github.com/NVIDIA/cuda-samples, which is not part of this project. FOLDER gets three cubins, made by nvcc, and
`kernels.json`, which states how to launch them (see `sample.py`): the sample's simple kernel, and its fast one within 64 KB and with 72 KB
of shared memory. The sample computes D = alpha A B + beta C at 4096 x 4096 x 4096 and nothing else.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

SOURCE = "cudaTensorCoreGemm.cu"
SIZES = (4096, 4096, 4096)
LARGE = {"grid": "multiprocessors", "block": 256, "arguments": ["A", "B", "C", "D", "alpha", "beta"]}
SIMPLE = {"grid": [64, 64], "block": [128, 4], "arguments": ["A", "B", "C", "D", "M", "N", "K", "alpha", "beta"]}


def build(source, include, cubin, arch):
    """Compile, and return the names of the kernels as they are in the machine code."""
    subprocess.run(
        ["nvcc", f"-arch={arch}", "-O3", "-std=c++17", "-cubin", *(f"-I{path}" for path in include), "-o", cubin, source], check=True
    )
    return sorted(set(re.findall(rb"\.text\.(\w+)", cubin.read_bytes())))


def symbol(names, part):
    return next(name.decode() for name in names if part in name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("samples", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = next(options.samples.rglob(SOURCE))
    include = {found.parent for found in options.samples.rglob("helper_cuda.h")}
    kernels = []
    for limit, shared in ((1, 65536), (0, 73728)):
        text, count = re.subn(r"#define SHARED_MEMORY_LIMIT_64K \d", f"#define SHARED_MEMORY_LIMIT_64K {limit}", path.read_text())
        if count != 1:
            raise SystemExit(f"{path} does not contain SHARED_MEMORY_LIMIT_64K: it is a different version of the sample")
        changed = options.folder / f"limit_{limit}.cu"
        changed.write_text(text)
        cubin = options.folder / f"limit_{limit}.cubin"
        names = build(changed, include, cubin, options.arch)
        changed.unlink()
        kernels.append(
            {
                "name": f"sample, {shared // 1024} KB",
                "cubin": cubin.name,
                "kernel": symbol(names, b"12compute_gemm"),
                "shared": shared,
                **LARGE,
            }
        )
        if limit:
            kernels.append(
                {"name": "sample, simple", "cubin": cubin.name, "kernel": symbol(names, b"simple_wmma_gemm"), "shared": 0, **SIMPLE}
            )
    (options.folder / "kernels.json").write_text(json.dumps({"sizes": SIZES, "kernels": kernels}, indent=1) + "\n")


if __name__ == "__main__":
    main()
