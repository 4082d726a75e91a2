"""`fireiron draw`: draw pictures of a strategy."""

from __future__ import annotations

import argparse
from pathlib import Path

from fireiron.cli import graphs
from fireiron.cli.arguments import Add, add_strategy, natural, program_of
from fireiron.cli.output import print_json, working


def register(add: Add) -> None:
    """Add the command."""
    command = add("draw", run, "draw the tree, tiles and their owners, lane maps, the elements of a thread, banks, the pipeline")
    add_strategy(command)
    command.set_defaults(verbatim=True)
    kinds = "tree, flow, tiles, lanes, thread, banks, timeline"
    command.add_argument("--what", metavar="KINDS", help=f"what to draw, separated by commas: {kinds} (default: all)")
    command.add_argument("--thread", type=natural, default=0, metavar="N", help="the thread of the picture thread (0)")
    text = "a page (.html), one picture (.svg or .png), a folder of SVG files, or - for SVG on standard output (default: STRATEGY.html)"
    command.add_argument("-o", dest="output", metavar="FILE", help=text)
    command.add_argument("--html", metavar="FILE", help="write a page with the tree next to the CUDA text, with lines linked to steps")
    command.add_argument("--force", action="store_true", help="overwrite files")


def run(arguments: argparse.Namespace) -> int:
    if arguments.html is not None:
        return _page(arguments)
    return _pictures(arguments)


def _page(arguments: argparse.Namespace) -> int:
    from fireiron.draw import explore
    from fireiron.errors import ArgumentError

    if arguments.what is not None or arguments.output is not None:
        raise ArgumentError(
            "--html writes a separate page, without --what and -o", got="--what or -o with --html", legal="draw STRATEGY --html FILE"
        )
    graph = graphs.graph_of(arguments)
    if graph is not None:
        raise ArgumentError(
            f"--html shows one kernel, and {graph.name} has several",
            legal="-o FILE.html",
            hint=f"{arguments.strategy}.{graph.kernels[0][0]}",
        )
    with working(f"drawing {arguments.strategy}"):
        explore(program_of(arguments)).save(arguments.html, overwrite=arguments.force)
    if arguments.json:
        return print_json({"files": [{"file": arguments.html, "pictures": ["tree next to the CUDA text"]}]})
    print(f"{arguments.html}  the tree next to the CUDA text")
    return 0


def _pictures(arguments: argparse.Namespace) -> int:
    from fireiron.draw import KINDS, draw
    from fireiron.draw.gallery import Gallery
    from fireiron.errors import ArgumentError

    what = KINDS if arguments.what is None else tuple(part.strip() for part in arguments.what.split(","))
    if arguments.output == "-" and (len(what) != 1 or what == ("all",)):
        raise ArgumentError("standard output takes one picture", got=list(what), hint="--what tree")
    with working(f"drawing {arguments.strategy}"):
        graph = graphs.graph_of(arguments)
        if graph is None:
            gallery = draw(program_of(arguments), what, thread=arguments.thread)
        else:
            gallery = draw(graph, what, architecture=arguments.arch, thread=arguments.thread)
    assert isinstance(gallery, Gallery)
    if arguments.output == "-":
        svg = gallery.pictures[0].svg
        if arguments.json:
            return print_json({"svg": svg})
        print(svg, end="")
        return 0
    files = gallery.save(arguments.output or f"{_plain(arguments.strategy)}.html", overwrite=arguments.force)
    pictures = {file: [picture.name for picture in gallery] if len(files) == 1 else [file.stem] for file in files}
    if arguments.json:
        return print_json({"files": [{"file": str(file), "pictures": names} for file, names in pictures.items()]})
    for file, names in pictures.items():
        print(f"{file}  {', '.join(names)}")
    return 0


def _plain(strategy: str) -> str:
    """Return a file name for a strategy: `gemm_best` for `folder/gemm.py:best`."""
    name = Path(strategy.replace("\\", "/")).name.replace(".py:", "_").removesuffix(".py")
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name) or "strategy"
