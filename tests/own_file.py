"""The command line on a file with a strategy."""

from test_cli import main


def output_of(command, source, options, folder, capsys):
    """What a command prints about `strategy` of a file with this source, in one line, with single spaces."""
    path = folder / "user.py"
    path.write_text(source)
    assert main([command, f"{path}:strategy", *options]) == 0
    return capsys.readouterr().out.replace("\n", " ").replace("  ", " ")


def drawn_and_exported(source, folder, capsys):
    """The header of the exported kernel of a file, which `draw` accepts, too."""
    path = folder / "user.py"
    path.write_text(source)
    assert main(["draw", f"{path}:strategy", "-o", str(folder / "drawn")]) == 0
    assert (folder / "drawn" / "tree.svg").exists()
    assert main(["export", f"{path}:strategy", "-o", str(folder / "exported")]) == 0
    capsys.readouterr()
    return (folder / "exported" / "strategy.h").read_text()
