"""Shared fixtures of the sweeps: NVIDIA's sample if it is given, and PyTorch, which calls cuBLAS, without TF32."""

import importlib.util

import pytest

collect_ignore_glob = ["[!t]*.py", "tuned.py", "tutorial.py", "tune_*.py"]
"""Scripts and helpers; the tests are `test_*.py`."""


def pytest_addoption(parser):
    parser.addoption("--sample", metavar="FOLDER", help="machine code of NVIDIA's sample, made by build_sample.py")


@pytest.fixture(scope="session")
def sample_folder(request):
    """Return the folder of NVIDIA's sample; tests that need it are skipped without."""
    folder = request.config.getoption("--sample")
    if folder is None:
        pytest.skip("needs --sample FOLDER, made by build_sample.py")
    return folder


@pytest.fixture(scope="session", autouse=True)
def float32_without_tf32():
    """Import PyTorch, if it is installed: `fireiron.measure.timing.cublas` then uses it."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
