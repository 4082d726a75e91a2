"""`fireiron cost`: the predicted time, and what limits it."""

from __future__ import annotations

import argparse

from fireiron.cli.arguments import Add, add_strategy, assignment, program_of
from fireiron.cli.output import print_json, working


def register(add: Add) -> None:
    """Add the command."""
    command = add("cost", run, "the predicted time on a GPU, with the bottleneck; no compiler and no GPU needed")
    add_strategy(command, json=True)
    named = "a GPU, such as A100 (else the usual one of --arch); its target, unless --arch is named"
    command.add_argument("--gpu", metavar="NAME", help=named)
    at = "the value of a size known only at run time (repeatable)"
    command.add_argument("--let", "--at", dest="let", action="append", default=[], type=assignment, metavar="M=4096", help=at)


def run(arguments: argparse.Namespace) -> int:
    from fireiron.cost import predict
    from fireiron.cost.gpus import as_gpu

    gpu = None if arguments.gpu is None else as_gpu(arguments.gpu)
    if gpu is not None and arguments.arch is None:
        arguments.arch = gpu.architecture
    with working(f"predicting {arguments.strategy}"):
        program = program_of(arguments)
        found = predict(program, gpu, dict(arguments.let))
    if arguments.json:
        return print_json({"strategy": arguments.strategy, "spec": str(program.spec), "chosen": dict(program.chosen), **found.as_dict()})
    print(f"{arguments.strategy}: {program.spec}")
    if program.chosen:
        print("tunables      " + " ".join(f"{name}={value}" for name, value in program.chosen.items()))
    print(found)
    return 0
