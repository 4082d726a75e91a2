"""Execute a user's file or import a user's module, and report errors with its line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType

from fireiron.errors import ArgumentError, FireironError, similar_names
from fireiron.generated_verbs import REFINEMENT_VERBS
from fireiron.package_paths import is_own
from fireiron.specs.verbs import Refusing


def load_file(path: Path) -> ModuleType:
    """Execute a user's file from its source, without any cache, and return the module."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be read: {error.strerror}", hint="a name of the library (fireiron list), or path.py:name"
        ) from None
    package, root = _package_of(path.resolve())
    module = ModuleType(f"{package}.{path.stem}" if package else f"fireiron file {path.resolve()}")
    module.__file__ = str(path.resolve())
    if package:
        module.__package__ = package
        module.__spec__ = importlib.util.spec_from_file_location(module.__name__, module.__file__)
    with users_code(path, str(path)), no_bytecode(), _importing_from(root), _importing_from(path.resolve().parent):
        if package:
            importlib.import_module(package)  # relative imports need it
        sys.modules[module.__name__] = module  # attrs and dataclasses look a class's module up here
        exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module


def _package_of(path: Path) -> tuple[str, Path]:
    """Return the dotted name of the package that contains a file, and the folder of the outermost package.

    The name is empty if the folder of the file is no package.
    """
    folder, names = path.parent, []
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names)), folder


def import_module(name: str) -> ModuleType | None:
    """Import a module of the user by its dotted name, from the working directory or the installed packages; None if there is none."""
    with _importing_from(Path.cwd()):
        importlib.invalidate_caches()
        with users_code(None, name), no_bytecode():
            try:
                if importlib.util.find_spec(name) is None:
                    return None
            except ModuleNotFoundError as error:
                if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                    return None  # a part of the name itself
                raise
            return importlib.import_module(name)


@contextmanager
def no_bytecode() -> Iterator[None]:
    """Write no `__pycache__` next to a user's files."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let a file import modules of its folder, which is last in the path so that it hides no installed module."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def users_code(path: Path | None, what: str) -> Iterator[None]:
    """Report errors of a user's code with its line. Other exceptions raised inside this package are not changed."""
    try:
        yield
    except FireironError as error:
        error.of_file = True
        raise error.located(at=_line(error.__traceback__, path)) from None
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = is_own(frames[-1].filename) and len(frames) > 1 and not _is_misspelled(frames)
        if own and not isinstance(error, (SystemExit, SyntaxError)):
            raise
        at = (
            f"{_short(error.filename)}:{error.lineno}"
            if isinstance(error, SyntaxError) and error.filename
            else _line(error.__traceback__, path)
        )
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, AttributeError) and isinstance(error.obj, Refusing):
            message = f"no step or refinement is called {error.name}"
        raise ArgumentError(f"{what} raises {type(error).__name__}: {message}".rstrip(": "), at=at, hint=_similar(error)) from error


def _is_misspelled(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Return whether a line of the user's code names an attribute that a value of this package does not have."""
    return frames[-1].name == "__getattr__" and not is_own(frames[-2].filename)


def _similar(error: BaseException) -> str | None:
    """Return the hint for a name or an attribute that does not exist: the known names that are similar; None if none is."""
    name = getattr(error, "name", None)
    if isinstance(error, AttributeError):
        known = [known for known in dir(error.obj) if not known.startswith("_")]
        refinements = [refinement for owner in REFINEMENT_VERBS.values() for refinement in vars(owner) if not refinement.startswith("_")]
        names = [known, refinements if isinstance(error.obj, Refusing) else []]
    elif isinstance(error, NameError) and error.__traceback__ is not None:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        names = [[*frame.f_globals, *frame.f_locals]]
    else:
        return None
    matches = next(filter(None, (similar_names(str(name), group) for group in names)), ())
    return f"did you mean {' or '.join(matches)}?" if matches else None


def _line(trace: TracebackType | None, path: Path | None) -> str | None:
    """Return the innermost line outside this package, preferably of the user's own file."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith("<")]
    outside = [frame for frame in frames if not is_own(frame.filename)]
    own = [frame for frame in outside if path is not None and frame.filename == str(path.resolve())]
    chosen = (own or outside)[-1:]
    return f"{_short(chosen[0].filename)}:{chosen[0].lineno}" if chosen else None


def _short(filename: str) -> str:
    return "/".join(Path(filename).parts[-2:])
