"""Kernels of a node on two GPUs of one host."""

import os
import pathlib
import subprocess
import sys

import pytest
from node_processes import ALL


def gpus():
    try:
        import torch
    except ModuleNotFoundError:
        return 0
    return torch.cuda.device_count()


@pytest.mark.gpu
@pytest.mark.gpu2
@pytest.mark.skipif(gpus() < 2, reason="needs two CUDA GPUs of one host, and PyTorch")
def test_two_processes():
    """All distributions, with changing inputs, one GPU late, and graph replays, are equal to the product on one GPU."""
    folder = pathlib.Path(__file__).parent
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", folder / "node_processes.py"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, **off, "PYTHONPATH": f"{folder.parent}{os.pathsep}{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{kind}: equal" for kind in ALL], done.stderr[-3000:]
