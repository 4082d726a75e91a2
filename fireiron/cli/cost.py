"""`fireiron cost`: print the predicted time and the bottleneck of a kernel."""

from __future__ import annotations

import argparse

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, program_of, run_time_sizes, takes_run_time_sizes
from fireiron.cli.output import print_json, working


def register(add: Add) -> None:
    """Add the command."""
    command = add("cost", run, "predict the time on a GPU, with the bottleneck; needs no compiler and no GPU")
    add_strategy(command)
    command.add_argument("--gpu", metavar="NAME", help="a GPU, such as A100 (default: that of --arch); sets the target without --arch")
    takes_run_time_sizes(command)


def run(arguments: argparse.Namespace) -> int:
    graph = graphs.graph_of(arguments)
    if graph is not None:
        return graphs.cost(graph, arguments)
    from fireiron.cost import predict
    from fireiron.cost.gpus import as_gpu
    from fireiron.inspect.downgraded import downgraded

    gpu = None if arguments.gpu is None else as_gpu(arguments.gpu)
    if gpu is not None and arguments.arch is None:
        arguments.arch = gpu.architecture
    with working(f"predicting {arguments.strategy}"):
        program = program_of(arguments)
        prediction = predict(program, gpu, run_time_sizes(arguments, program.spec))
    if arguments.json:
        return print_json(
            {"strategy": arguments.strategy, "spec": str(program.spec), "chosen": dict(program.chosen), **prediction.as_dict()}
        )
    print(f"{arguments.strategy}: {program.spec}")
    if program.chosen:
        print("tunables      " + " ".join(f"{name}={value}" for name, value in program.chosen.items()))
    print(prediction)
    for finding in downgraded(program):
        if finding.severity == "warning":
            print(f"slow copies   {finding.message}")
    return 0
