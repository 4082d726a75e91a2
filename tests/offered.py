"""What type checkers and completion know of verbs, `fireiron/generated_verbs.pyi`: what each kind of spec offers, and classes of chains for it.

All of it follows from the package: signatures and docstrings from the fields of extensions and from the functions that are verbs, what is for which kind from `Decomposition.kinds`, what refines what from `Refinement.applies_to`, operands
from the kinds.
"""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import attrs

import fireiron
from fireiron import generated_verbs
from fireiron.language.offered import steps
from fireiron.specs.verbs import Verbs

STUB = Path(generated_verbs.__file__).with_suffix(".pyi")
HEAD = '''"""Verbs of chains and specs, for type checkers and completion. Written by `make names`; see `generated_verbs.py`."""

'''
WIDTH = 140

OF_ANY = ("then", "tile", "split", "load", "epilog", "done")
"""The verbs offered if the kind of spec is unknown."""

OWN_CHAINS = ("Every", "MatMul", "Move", "Fused")
"""The kinds with additional verbs: their chains have separate classes."""

SEVERAL = ("Every", "Fused")
"""The kinds that may have several outputs: their kernels then return a tuple."""

ENDS = ("Tile", "Split", "SplitK", "Load", "Epilog", "SetMemory", "ToGpus")
"""The last steps of chains that have refinements."""

SPECS = {
    "MatMul": "MatMul", "Move": "Move", "Init": "Init", "Reduction": "Reduction", "AtomicAdd": "AtomicAdd",
    "UnaryPointwise": "Pointwise", "BinaryPointwise": "Pointwise",
}  # fmt: skip
"""The names from which short forms start, by what is offered for their specs."""

# ---------------------------------------------------------------------------------------------- verbs and kinds


def kinds():
    """The kinds of the `For...` classes of `generated_verbs.py`."""
    return [name.removeprefix("For") for name in vars(generated_verbs) if name.startswith("For")]


def verbs(kind):
    """The verbs for a kind, with their functions."""
    all_verbs = {"then": Verbs.then} | made_by(generated_verbs.StepVerbs)
    if kind == "Any":
        return {name: all_verbs[name] for name in OF_ANY}
    return {name: one for name, one in all_verbs.items() if kind == "Every" or is_for(kind, name)}


def is_for(kind, verb):
    """Whether a verb is for a kind; `then` is for all."""
    supported_kinds = steps()[verb].kinds if verb in steps() else ()
    return not supported_kinds or kind in supported_kinds


def made_by(owner):
    """The methods that verbs added, by name."""
    return {name: one for name, one in sorted(vars(owner).items()) if hasattr(one, "makes")}


# ---------------------------------------------------------------------------------------------- signatures


@functools.cache
def sources(module):
    """The origins of a module's names: by name the module from which they are imported, or the module itself."""
    known = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: node.module for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            known.setdefault(node.name, module.__name__)
    return known


def arguments(method):
    """The arguments of a method after `self`, as in a stub, and the module whose names they use."""
    if hasattr(method, "makes") and not is_step(method):
        _, *given = inspect.signature(method).parameters.values()
        kinds = annotations(method)
        rows = [(one.kind is one.KEYWORD_ONLY, field_argument(one, kinds[one.name])) for one in given]
        named = [row for by_name, row in rows if by_name]
        return [row for by_name, row in rows if not by_name] + (["*", *named] if named else []), inspect.getmodule(method.makes)
    function = getattr(method, "made_by", None) or inspect.unwrap(method)
    written = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0].args
    written.args = [one for one in written.args if one.arg != "self"]
    text = re.sub(r"(?<=[\w\]])=", " = ", ast.unparse(written))
    return re.split(r", (?![^\[]*\])", text) if text else [], inspect.getmodule(function)


def is_step(method):
    """Whether a method is a function that makes a step."""
    return inspect.isfunction(method.made_by) and issubclass(method.makes, fireiron.Decomposition)


def annotations(method):
    """The annotations of a method's arguments as written in its file; attrs may have resolved those of fields."""
    if not inspect.isclass(method.made_by):
        return method.made_by.__annotations__
    written = {name: kind for one in reversed(method.makes.__mro__) for name, kind in vars(one).get("__annotations__", {}).items()}
    return {one.alias: written[one.name] for one in attrs.fields(method.makes)}


def field_argument(parameter, kind):
    """The argument for a field of an extension, or for a parameter of a verb."""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {kind if isinstance(kind, str) else kind.__name__}{default}"


def result_of(method):
    """The class that a verb returns if the kind of spec is unknown."""
    return inspect.signature(method).return_annotation


# ---------------------------------------------------------------------------------------------- the stub


class Stub:
    """The text of the stub as it grows, and the names to import, with their modules."""

    def __init__(self):
        self.text, self.needed = "", {}

    def head(self, name, *bases):
        """Begin a class."""
        self.text += f"\nclass {name}({', '.join(bases)}):\n" if bases else f"\nclass {name}:\n"

    def empty(self, name, *bases):
        """A class without own members."""
        self.text += f"\nclass {name}({', '.join(bases)}): ...\n".replace("()", "")

    def method(self, name, method, result):
        """A method with its docstring."""
        given, module = arguments(method)
        for text in given:
            self.names(text.partition(":")[2], module)
        self.define(name, given, result)
        self.docstring(method)

    def docstring(self, method):
        """The docstring of a method."""
        doc = inspect.cleandoc(method.__doc__).replace("\\", "\\\\").splitlines()
        more = "".join(f"        {line}".rstrip() + "\n" for line in doc[1:]) + "        " if doc[1:] else ""
        self.text += f'        """{doc[0]}{chr(10) if more else ""}{more}"""\n'

    def define(self, name, given, result, body="\n"):
        """The head of a definition, on several lines if it is long."""
        line = f"    def {name}({', '.join(['self', *given])}) -> {result}:"
        if len(line) > WIDTH:
            line = f"    def {name}(\n" + "".join(f"        {one},\n" for one in ("self", *given)) + f"    ) -> {result}:"
        self.text += line + body

    def names(self, annotation, module):
        """Record the modules of the names in an annotation."""
        for name in re.findall(r"\b[A-Z]\w*", annotation):
            if name in sources(module):
                self.needed[name] = sources(module)[name]

    def imports(self):
        """The import lines."""
        by_module = {}
        for name, module in self.needed.items():
            by_module.setdefault(module, []).append(name)
        order = sorted(by_module, key=lambda module: (module.startswith("fireiron"), module))
        return "".join(f"from {module} import {', '.join(sorted(by_module[module]))}\n" for module in order)


def of_kind(stub, kind):
    """What a kind offers, and the classes of its chains."""
    own = kind in OWN_CHAINS
    stub.head(f"For{kind}")
    for name, method in verbs(kind).items():
        stub.method(name, method, named(kind, result_of(method)))
    if kind in SEVERAL:
        stub.head(named(kind, "Strategy"), f"For{kind}", "Strategy")
        stub.define("compile", ("architecture: Architecture | str | None = None", "options: tuple[str, ...] = ()"), "FusedKernel", " ...\n")
    elif own:
        stub.empty(named(kind, "Strategy"), f"For{kind}", "Strategy")
    for end in (one for one in ENDS if own and (one != "SetMemory" or "set_memory" in verbs(kind))):
        bases = named(kind, "Strategy"), f"{end}Strategy"
        stub.empty(named(kind, f"{end}Strategy"), *bases)


def named(kind, plain):
    """The class of a chain for a kind, `MatMulTile`; `TileStrategy` if the kind has no separate one."""
    if kind not in OWN_CHAINS:
        return plain
    return f"{kind}{plain.removesuffix('Strategy') or 'Strategy'}"


def of_spec(stub, name, kind):
    """The class of the specs of a kind: its operands and parameters, and the types of results."""
    kind_of = getattr(fireiron, name).kind
    values = {one.name: one.legal[0] if one.legal else 0 for one in kind_of.parameters}
    stub.head(f"{name}Spec", f"For{kind}", "Spec")
    for operand in kind_of.definition(tuple(values.items())).uses:
        stub.text += "    @property\n"
        stub.define(operand, (), "View", " ...\n")
    for parameter in kind_of.parameters:
        stub.text += "    @property\n"
        stub.define(parameter.name, (), "str" if parameter.text else "float" if parameter.real else "int", " ...\n")
    stub.define("reference", ("*inputs: ArrayLike",), "NDArray[Any]", " ...\n")


@functools.cache
def text():
    """The stub."""
    stub = Stub()
    strategies = importlib.import_module("fireiron.language.strategy")
    stub.needed |= {f"{end}Strategy": strategies.__name__ for end in (*ENDS, "")} | {
        "Spec": "fireiron.spec",
        "View": "fireiron.values.tensor",
    }
    stub.needed |= {"ArrayLike": "numpy.typing", "NDArray": "numpy.typing"}
    stub.needed |= {"Architecture": "fireiron.values.machine", "CompiledKernel": "fireiron.gpu.kernel"}
    stub.needed |= dict.fromkeys(("Any", "Final", "Self"), "typing") | {"Mapping": "collections.abc"}
    stub.empty("StepVerbs")
    for owner in (generated_verbs.OtherVerbs, *generated_verbs.REFINEMENT_VERBS.values()):
        stub.head(owner.__name__) if made_by(owner) else stub.empty(owner.__name__)
        for name, method in made_by(owner).items():
            stub.method(name, method, "Self")
    stub.text += "\nREFINEMENT_VERBS: Final[Mapping[str, type]]\n"
    for kind in kinds():
        of_kind(stub, kind)
    for name, kind in SPECS.items():
        of_spec(stub, name, kind)
    stub.empty("FusedSpec", "ForFused", "Spec")
    stub.head("FusedKernel", "CompiledKernel")
    stub.define("__call__", ("*arrays: Any", "out: Any = None", "stream: Any = None", "**sizes: Any"), "Any", " ...\n")
    return HEAD + stub.imports() + stub.text
