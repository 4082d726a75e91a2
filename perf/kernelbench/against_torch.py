"""Compare the references in NumPy with the modules of KernelBench in PyTorch, on the CPU, in float64.

    python perf/kernelbench/against_torch.py KERNELBENCH [--folder FOLDER]

KERNELBENCH is a copy of github.com/ScalingIntelligence/KernelBench. Each module is created without memory (on the device `meta`), its
parameters are replaced by the small arrays of our problem, and it runs in training mode. Its results, and the running statistics of a batch
normalization, must equal those of the reference up to 1e-7 of the largest magnitude, and have the same shape except for dimensions of
extent 1. `--folder` writes `references.json`, which the page includes. Requires PyTorch.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import numpy as np
import torch

PERF = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PERF), str(PERF.parent)]

from kernelbench import arrays as f  # noqa: E402
from kernelbench.problem import dims_of, merged_shape  # noqa: E402
from kernelbench.problems import PROBLEMS  # noqa: E402

NAMES = {
    "1/86": {"pointwise.weight": "V"}, "2/11": {"group_norm.weight": "gain", "group_norm.bias": "shift"},
    "2/21": {"bias": "add", "scale": "scale"}, "2/26": {"bias": ""}, "2/45": {"linear2.weight": "V", "linear2.bias": "c"},
    "2/48": {"scaling_factor": "scale", "bias": "gain"}, "2/50": {"scale1": "first", "scale2": "second", "bias": "add"},
}  # fmt: skip
"""The arrays of parameters whose names do not determine them; empty if the module does not use the parameter."""
NORMS = (torch.nn.modules.batchnorm._NormBase, torch.nn.GroupNorm, torch.nn.LayerNorm)
ROLES = {"weight": "W", "bias": "bias"}
NORM_ROLES = {"weight": "gamma", "bias": "beta", "running_mean": "RM", "running_var": "RV"}


class Kept(torch.nn.Module):
    """Dropout of a fifth of the elements, by the random numbers of the reference."""

    def __init__(self, seed):
        super().__init__()
        self.seed = int(seed)

    def forward(self, x):
        """Return x with a fifth of its elements zero."""
        b, o, *positions = np.ogrid[tuple(slice(n) for n in x.shape)]
        counter = (b, o) if not positions else (b, o, positions[0], positions[1] * x.shape[4] + positions[2])
        return x * torch.from_numpy(f.philox_uniform(self.seed, *counter) < np.float32(0.8)) / 0.8


def module_of(folder, problem):
    """Return the module of a problem, without memory."""
    (file,) = folder.glob(f"KernelBench/level{problem.level}/{problem.number}_*.py")
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    with torch.device("meta"):
        return names["Model"](*names["get_init_inputs"]())


def adapt(part, problem, arrays):
    """Set the numbers of a module that depend on sizes."""
    if isinstance(part, torch.nn.GroupNorm):
        part.num_groups = problem.sizes["g"]
    elif isinstance(part, torch.nn.LayerNorm):
        part.normalized_shape = arrays["gamma"].shape
    elif isinstance(part, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)) and part.groups > 1:
        part.groups = arrays["X"].shape[1]


def fill(module, problem, arrays):
    """Replace the parameters by arrays, and return the names of the arrays."""
    used, free = (
        {"seed"},
        [name for name in arrays if name not in (*ROLES.values(), *NORM_ROLES.values(), "X", "V", "c", "gain", "shift", "seed")],
    )
    for path, part in module.named_modules():
        adapt(part, problem, arrays)
        if isinstance(part, torch.nn.Dropout):
            module.set_submodule(path, Kept(arrays["seed"]))
        for name, value in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            roles = NORM_ROLES if isinstance(part, NORMS) else ROLES if path or name == "weight" else {}
            array = NAMES.get(problem.name, {}).get(f"{path}.{name}".strip("."), roles.get(name))
            if array is None and name != "num_batches_tracked" and free:
                array = free.pop(0)
            filled = arrays[array] if array else torch.full(value.shape, 2.0 if name == "constant" else 0.0, dtype=torch.float64)
            used.add(array)
            filled = filled if filled.ndim == value.ndim else filled.reshape([-1 if extent > 1 else 1 for extent in value.shape])
            if isinstance(value, torch.nn.Parameter):
                setattr(part, name, torch.nn.Parameter(filled))
            else:
                part.register_buffer(name, filled)
    return used


def compared(folder, problem):
    """Return the largest relative difference between a module and the reference."""
    drawn, declared = problem.drawn(seed=3), dims_of(problem.arrays)
    arrays = {name: torch.from_numpy(np.array(drawn[name].reshape(merged_shape(declared[name], problem.sizes)))) for name in problem.inputs}
    arrays = {name: value.double() if value.is_floating_point() else value for name, value in arrays.items()}
    module = module_of(folder, problem)
    used = fill(module, problem, arrays)
    result = module(*(value for name, value in arrays.items() if name not in used)).detach().numpy()
    expected = dict(zip(problem.outputs, problem.expected(drawn), strict=True))
    state = {name.rpartition(".")[2]: value.numpy() for name, value in module.named_buffers()}
    pairs = [(state[name], expected.pop(array)) for array, name in (("NM", "running_mean"), ("NV", "running_var")) if array in expected]
    return max(difference(array, right) for right, array in (*pairs, (result, *expected.values())))


def difference(array, right):
    """Return the largest difference divided by the largest magnitude; infinity for other shapes."""
    array = np.asarray(array)
    if [n for n in array.shape if n > 1] != [n for n in right.shape if n > 1]:
        return np.inf
    return float(np.max(np.abs(array.reshape(right.shape) - right)) / max(np.max(np.abs(right)), 1e-30))


def main():
    """Compare all references."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernelbench", type=Path, help="a copy of KernelBench")
    parser.add_argument("--folder", type=Path, help="write references.json into this folder")
    given = parser.parse_args()
    differences = {problem.name: compared(given.kernelbench, problem) for problem in PROBLEMS if not problem.missing}
    wrong = {name: value for name, value in differences.items() if not value <= 1e-7}
    print(f"{len(differences) - len(wrong)} of {len(differences)} references equal PyTorch {torch.__version__}; others: {wrong or 'none'}")
    if given.folder is not None:
        content = {
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "equal": len(differences) - len(wrong),
            "others": wrong,
        }
        (given.folder / "references.json").write_text(json.dumps(content, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
