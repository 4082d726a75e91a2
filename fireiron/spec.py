"""Specs: what to compute, as immutable values (Fireiron, section 3.1).

`MatMul(M, N, K)(GL, GL, GL)(Kernel)` is the short form. A spec names its iteration dimensions and says which operand
uses which, so that the same verbs work on every spec. `reference` is its meaning, in NumPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

import attrs

from fireiron.errors import ArgumentError, FireironError
from fireiron.specs import operand
from fireiron.specs.verbs import Verbs, unfitting
from fireiron.values.expr import FALSE, Expr, Var, as_expr, constant, positive
from fireiron.values.machine import (
    FRAGMENTS,
    GL,
    MATRIX_ONLY,
    MEMORIES,
    DType,
    Kernel,
    Level,
    Memory,
    as_dtype,
    as_integer,
    float8_e4m3,
    float8_e5m2,
    float32,
    int8,
    int32,
    tf32,
)
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view

P = ParamSpec("P")
T = TypeVar("T")


def located(function: Callable[P, T]) -> Callable[P, T]:
    """The function, its errors with the line of the caller outside this package."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FireironError as error:
            from fireiron.errors import call_site

            raise error.located(at=call_site()) from None
        except TypeError as error:
            raise unfitting(function, args, kwargs) or error from None

    return called


@attrs.frozen(repr=False)
class Spec(Verbs):
    """The base of all specs: the level responsible, and the operands as views.

    Legal when the operands agree on the sizes of the dimensions that they share; at the level Kernel, when all lie in GL.
    Class variables: `dims` names the iteration dimensions, `uses` the dimensions of each operand, `tile_dims` those that
    `tile` takes by position, `outputs` the operands written, `atomic` whether it adds to them in a step that nobody sees half
    of. What a spec does is asked by `copies`, `fills`, `multiplies` (matrices), `sums` (along a dimension) and `pointwise`.
    """

    level: Level
    title: ClassVar[str] = ""
    dims: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    tile_dims: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ()
    atomic: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    fills: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False
    sums: ClassVar[bool] = False
    pointwise: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        check_level(self.level)
        sizes: dict[str, Expr] = {}
        for name, dims in self.uses.items():
            view = getattr(self, name)
            if not isinstance(view, View) or len(view.dims) != len(dims):
                raise ArgumentError(f"{self.title}: {name} must be a view of the dimensions {', '.join(dims)}", got=view)
            for dim, part in zip(dims, view.dims, strict=True):
                if sizes.setdefault(dim, part.size) != part.size:
                    raise ArgumentError(f"{self.title}: {name} has {part.size} elements along {dim}, another operand {sizes[dim]}")
        _check_kernel(self.memories, self.level, self.title)

    @property
    def starter(self) -> Starter:
        """The name from which a chain for this kind of spec starts."""
        return Starter(type(self))

    @property
    def operands(self) -> dict[str, View]:
        """Views by operand name, in the order of the short form."""
        return {name: getattr(self, name) for name in self.uses}

    @property
    def accumulate(self) -> Expr:
        """The condition under which a kernel adds to what the output holds; `FALSE` for kinds that never do."""
        return FALSE

    @property
    def accumulator(self) -> DType | None:
        """The type to add up in, where one is named."""
        return None

    @property
    def partial(self) -> bool:
        """Whether this is one part of a sum, to which other blocks add at the same time."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self.title} has no {name}")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the dimensions are called in generated code."""
        return self.dims

    def with_operands(self, **views: View) -> Spec:
        """The same spec on other views."""
        changes: dict[str, Any] = dict(views)
        return attrs.evolve(self, **changes)

    def with_options(self, **options: Any) -> Spec:
        """The same spec with other options than operands: `accumulate`, `partial`."""
        return attrs.evolve(self, **options)

    def at_level(self, level: Level) -> Spec:
        """The same spec, another level responsible."""
        return attrs.evolve(self, level=level)

    def size(self, dim: str) -> Expr:
        """The extent of an iteration dimension, in elements; an `ArgumentError` if the spec has no such dimension."""
        for name, dims in self.uses.items():
            if dim in dims:
                view: View = getattr(self, name)
                return view.dims[dims.index(dim)].size
        raise ArgumentError(f"{self.title} has no dimension {dim}", legal=self.dims)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The extents of all iteration dimensions."""
        return tuple(self.size(dim) for dim in self.dims)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Where the operands lie."""
        return tuple(view.memory for view in self.operands.values())

    def reference(self, *inputs: Any) -> Any:
        """The meaning in NumPy: arrays in logical shape in, the output out; an `ArgumentError` where there are not as many as inputs."""
        raise ArgumentError(f"{self.title} states no reference", hint="define reference(self, *inputs) in the spec's class")

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        """New values of the outputs, from arrays with the operand's element dimensions first and any axes behind.

        An `ArgumentError` where the kind of spec states no such meaning.
        """
        raise ArgumentError(f"{self.title} states no element-wise meaning", hint="define perform(self, values, accumulate)")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Operands that are only read."""
        return tuple(name for name in self.uses if name not in self.outputs)

    def given(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The arrays of a call of `reference`, as NumPy's; an `ArgumentError` if they are not one for each input."""
        import numpy

        if len(arrays) != len(self.inputs):
            shapes = [f"{name} ({' x '.join(map(str.upper, self.uses[name]))})" for name in self.inputs]
            raise ArgumentError(f"reference({', '.join(self.inputs)}): {len(arrays)} arrays", hint=f"pass {' and '.join(shapes)}")
        return tuple(map(numpy.asarray, arrays))

    def __str__(self) -> str:
        sizes = ",".join(str(size) for size in self.sizes)
        return f"{self.title}({sizes})({','.join(memory.name for memory in self.memories)})({self.level})"

    def __repr__(self) -> str:
        short = self._short_repr()
        if short is not None:
            return short
        fields = [field.name for field in attrs.fields(type(self))]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    def _short_repr(self) -> str | None:
        return None


def as_condition(value: object) -> Expr:
    """A truth value or a condition as an expression, or an `ArgumentError`: when a spec adds to what its output holds."""
    condition = as_expr(int(value)) if isinstance(value, bool) else as_expr(value)
    if condition.low < 0 or condition.high > 1:
        raise ArgumentError(
            "accumulate: neither true nor false nor a condition", got=value, legal="False True, or a condition such as k > 0"
        )
    return condition


@attrs.frozen(repr=False)
class MatMulSpec(Spec):
    """`C[m, n] = sum over k of A[m, k] * B[k, n]`, added to C where `accumulate` holds.

    `accumulator` is the type in which unrefined code should add up; C's own type if None. `partial` says that this is one part
    of C's sum, to which other blocks add at the same time (`split_k`): it must be added atomically.
    """

    title: ClassVar[str] = "MatMul"
    dims: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("C",)
    multiplies: ClassVar[bool] = True

    A: View
    B: View
    C: View
    accumulate: Expr = attrs.field(default=FALSE, converter=as_condition)
    accumulator: DType | None = None
    partial: bool = False

    def __attrs_post_init__(self) -> None:
        Spec.__attrs_post_init__(self)
        if not isinstance(self.partial, bool):
            raise ArgumentError("partial: neither true nor false", got=self.partial)
        if self.accumulator is not None and not isinstance(self.accumulator, DType):
            raise ArgumentError("accumulator: not an element type", got=self.accumulator, legal="float32 float16 ..., or None")

    @property
    def starter(self) -> Starter:
        return MatMul

    def reference(self, *inputs: Any) -> Any:
        """`A @ B` in float64 (int64 for integers), rounded once to C's type."""
        import numpy

        wide = numpy.float64 if self.C.dtype.kind == "float" else numpy.int64
        pairs = zip("AB", self.given(inputs), strict=True)
        left, right = (multiplied(one, self.operands[name].dtype).astype(wide) for name, one in pairs)
        product = left @ right
        with numpy.errstate(over="ignore"):
            return product.astype(self.C.dtype.to_numpy())

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        """Products in C's type (float32 for 16-bit floats, then rounded), added in the order of k."""
        import numpy

        dtype = self.C.dtype.to_numpy()
        wide = numpy.float32 if self.C.dtype.kind == "float" and self.C.dtype.bits < 32 else dtype
        left, right = (multiplied(values[name], self.operands[name].dtype).astype(wide, copy=False) for name in ("A", "B"))
        result = numpy.where(accumulate, values["C"], 0).astype(wide) if accumulate is not True else values["C"].astype(wide, copy=False)
        for k in range(left.shape[1]):
            result = result + left[:, k, None] * right[None, k]
            if wide is not dtype:
                result = result.astype(dtype).astype(wide)
        return {"C": result.astype(dtype, copy=False)}

    def _short_repr(self) -> str | None:
        M, N, K = (_size_repr(size) for size in self.sizes)
        views = self.operands
        dtypes = {name: view.dtype for name, view in views.items()}
        keywords = {}
        if dtypes["A"] != float32 or dtypes["B"] != dtypes["A"]:
            keywords["dtype"] = repr(dtypes["A"]) if dtypes["A"] == dtypes["B"] else f"({dtypes['A']!r}, {dtypes['B']!r})"
        if dtypes["C"] != default_result(dtypes["A"]):
            keywords["c_dtype"] = repr(dtypes["C"])
        if self.accumulator is not None:
            keywords["accumulator"] = repr(self.accumulator)
        if self.accumulate != FALSE:
            keywords["accumulate"] = repr(self.accumulate)
        keywords |= {name: repr(view.tensor.layout) for name, view in views.items() if view.tensor.layout != ColMajor}
        options = "".join(f", {name}={value}" for name, value in keywords.items())
        text = f"MatMul({M}, {N}, {K}{options})({', '.join(map(repr, self.memories))})({self.level})"
        return text if self == _rebuild(self) else None


def _rebuild(spec: MatMulSpec) -> MatMulSpec | None:
    views = spec.operands
    if any(not isinstance(view.tensor.layout, MatrixLayout) or view.memory not in (*MEMORIES, *FRAGMENTS) for view in views.values()):
        return None
    shape = MatMulShape(
        spec.sizes,
        tuple(view.dtype for view in views.values()),
        tuple(view.tensor.layout for view in views.values()),  # type: ignore[misc]
        spec.accumulator,
        spec.accumulate,
    )
    if any(constant(size) is None and size.low < 0 for size in spec.sizes):
        return None
    return _matmul(shape, spec.memories, spec.level)


def _size_repr(size: Expr) -> str:
    number = constant(size)
    return repr(size) if number is None else str(number)


@attrs.frozen(repr=False)
class MoveSpec(Spec):
    """`dst = src`, converted to the type of dst; elements of src outside its tensor count as zero."""

    title: ClassVar[str] = "Move"
    dims: ClassVar[tuple[str, ...]] = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"src": ("m", "n"), "dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)
    copies: ClassVar[bool] = True

    src: View
    dst: View
    names: tuple[str, ...] = ("m", "n")

    def __attrs_post_init__(self) -> None:
        Spec.__attrs_post_init__(self)
        valid = isinstance(self.names, tuple) and all(isinstance(name, str) and name.isidentifier() for name in self.names)
        if not valid or len(self.names) != len(self.dims):
            raise ArgumentError("Move: its dimensions are named by two identifiers", got=self.names, legal=("m", "n"))

    @property
    def accumulate(self) -> Expr:
        """The condition under which a kernel adds to what the output holds; `FALSE` for kinds that never do."""
        return FALSE

    @property
    def accumulator(self) -> DType | None:
        """The type to add up in, where one is named."""
        return None

    @property
    def partial(self) -> bool:
        """Whether this is one part of a sum, to which other blocks add at the same time."""
        return False

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a {self.title} has no {name}")

    @property
    def labels(self) -> tuple[str, ...]:
        return self.names

    @property
    def starter(self) -> Starter:
        return Move

    def reference(self, *inputs: Any) -> Any:
        """`src`, converted to the type of dst."""
        (src,) = self.given(inputs)
        return convert(src, self.dst.dtype)

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        return {"dst": convert(values["src"], self.dst.dtype)}

    def _short_repr(self) -> str | None:
        if self.names != ("m", "n") or any(not isinstance(v.tensor.layout, MatrixLayout) for v in (self.src, self.dst)):
            return None
        keywords = {}
        if self.src.dtype != float32:
            keywords["dtype"] = repr(self.src.dtype)
        if self.dst.dtype != self.src.dtype:
            keywords["dst_dtype"] = repr(self.dst.dtype)
        keywords |= {name: repr(view.tensor.layout) for name, view in self.operands.items() if view.tensor.layout != ColMajor}
        options = "".join(f", {name}={value}" for name, value in keywords.items())
        M, N = (_size_repr(size) for size in self.sizes)
        text = f"Move({M}, {N}{options})({', '.join(map(repr, self.memories))})({self.level})"
        layouts = (self.src.tensor.layout, self.dst.tensor.layout)
        shape = MoveShape(self.sizes, (self.src.dtype, self.dst.dtype), layouts)  # type: ignore[arg-type]
        return text if self == shape.build(self.memories, self.level) else None


@attrs.frozen(repr=False)
class InitSpec(Spec):
    """`dst = value` everywhere."""

    title: ClassVar[str] = "Init"
    dims: ClassVar[tuple[str, ...]] = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)
    fills: ClassVar[bool] = True

    dst: View
    value: int = 0

    def __attrs_post_init__(self) -> None:
        Spec.__attrs_post_init__(self)
        check_value(self.value, self.dst.dtype)

    @property
    def starter(self) -> Starter:
        return Init

    def reference(self, *inputs: Any) -> Any:
        """An array of the value."""
        import numpy

        return numpy.full([constant(size) for size in self.sizes], self.value, self.dst.dtype.to_numpy())

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        import numpy

        return {"dst": numpy.full(values["dst"].shape, self.value, self.dst.dtype.to_numpy())}

    def _short_repr(self) -> str | None:
        if not isinstance(self.dst.tensor.layout, MatrixLayout):
            return None
        keywords = {} if self.dst.dtype == float32 else {"dtype": repr(self.dst.dtype)}
        if self.dst.tensor.layout != ColMajor:
            keywords["dst"] = repr(self.dst.tensor.layout)
        if self.value:
            keywords["value"] = repr(self.value)
        options = "".join(f", {name}={value}" for name, value in keywords.items())
        M, N = (_size_repr(size) for size in self.sizes)
        shape = InitShape(self.sizes, self.dst.dtype, self.dst.tensor.layout, self.value)
        text = f"Init({M}, {N}{options})({self.dst.memory!r})({self.level})"
        return text if self == shape(self.dst.memory)(self.level) else None


def convert(values: Any, dtype: DType) -> Any:
    """An array in another element type, as C++ converts: floats to integers toward zero, to 8-bit floats with saturation."""
    import numpy

    target = dtype.to_numpy()
    with numpy.errstate(over="ignore", invalid="ignore"):
        if dtype in _LARGEST and values.dtype != target:
            wide = values if values.dtype in (numpy.float32, numpy.float64) else values.astype(numpy.float32)
            return numpy.clip(wide, -_LARGEST[dtype], _LARGEST[dtype]).astype(target)
        return values.astype(target, copy=False)


_LARGEST: Mapping[DType, float] = {float8_e4m3: 448.0, float8_e5m2: 57344.0}
"""The largest finite 8-bit floats; conversions of CUDA (`__NV_SATFINITE`) stop there."""

_TF32_BITS = 0xFFFFE000
"""The upper 19 bits of a float32."""


def multiplied(values: Any, dtype: DType) -> Any:
    """What a matrix instruction multiplies: of tf32 the upper 19 bits, of other types the elements themselves."""
    import numpy

    if dtype != tf32:
        return values
    return (numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32) & numpy.uint32(_TF32_BITS)).view(numpy.float32)


def default_result(dtype: DType) -> DType:
    """The type of C if none is named: int32 for int8, float32 for types that only matrix instructions take, else that of A."""
    return int32 if dtype == int8 else float32 if dtype in MATRIX_ONLY else dtype


# ---------------------------------------------------------------------------------------------- the short form


def check_size(value: object, what: str) -> Expr:
    """A size as an expression: a positive integer, or an expression of symbols, never negative; a launch with 0 is refused."""
    if isinstance(value, Expr):
        if value.low < 0:
            raise ArgumentError(f"{what}={value}: may be negative ({value.low})", legal="sizes that are never negative")
        foreign = [var.name for var in value.variables() if not var.parameter]
        if foreign:
            raise ArgumentError(f"{what}={value}: {', '.join(foreign)} is no symbol", hint='make it with sym("M")')
        if constant(value) is None:
            return positive(value)
        value = constant(value)
    number = as_integer(value)
    if number is None:
        raise ArgumentError(f"{what}: a size must be an integer or a symbol", got=value, legal='1, 2, 3, ... or sym("M")')
    if not 1 <= number < 2**31:
        raise ArgumentError(f"{what}={number}: a size must be positive and below 2**31", legal="1 ... 2147483647")
    return as_expr(number)


def check_value(value: object, dtype: DType) -> int:
    """An integer that an element type represents exactly, or an `ArgumentError`."""
    number = as_integer(value)
    if number is None:
        raise ArgumentError("value: the initial value must be an integer", got=value)
    most = 2**dtype.mantissa if dtype.kind == "float" else 2 ** (dtype.bits - 1) - 1
    least = -most if dtype.kind == "float" else -most - 1
    if not least <= number <= most:
        raise ArgumentError(f"value={number}: no exact {dtype}", legal=f"{least} ... {most}")
    return number


def check_memory(value: object, what: str) -> Memory:
    """A memory, or an error that lists them."""
    if not isinstance(value, Memory):
        raise ArgumentError(f"{what}: not a memory", got=value, legal=[memory.name for memory in MEMORIES])
    return value


def check_level(value: object) -> Level:
    """A level, or an error."""
    if not isinstance(value, Level):
        raise ArgumentError("not a level of the thread hierarchy", got=value, legal="Kernel Block Warpgroup Warp QuadPair Thread Lane")
    return value


def check_layout(value: object, what: str, shape: tuple[Expr, ...]) -> MatrixLayout:
    """Row- or column-major with a leading dimension, in elements, that holds a row or column; or an `ArgumentError`."""
    if not isinstance(value, MatrixLayout):
        raise ArgumentError(f"{what}: not a storage layout", got=value, legal="RowMajor ColMajor RowMajor(ld=...) ColMajor(ld=...)")
    if value.leading is not None:
        need = shape[0] if value.order == "col" else shape[-1]
        number, least = constant(value.leading), constant(need)
        if number is not None and least is not None and number < least:
            raise ArgumentError(f"{what}={value}: shorter than the {least} elements it has to hold", legal=f"ld >= {least}")
    return value


def _check_kernel(memories: tuple[Memory, ...], level: Level, title: str) -> None:
    if level == Kernel and any(memory != GL for memory in memories):
        names = ", ".join(memory.name for memory in memories)
        raise ArgumentError(f"{title}({names})(Kernel): the operands of a kernel start in global memory", legal="GL for each operand")


def check_memories(given: Sequence[object], spec: type[Spec]) -> tuple[Memory, ...]:
    """A memory for each operand of a kind of spec, in the order of the short form, or an `ArgumentError`."""
    if len(given) != len(spec.uses):
        raise ArgumentError(f"{len(given)} memories given, one is needed for each operand", legal=" ".join(spec.uses))
    return tuple(check_memory(memory, f"memory of {name}") for name, memory in zip(spec.uses, given, strict=True))


def check_matrices(
    spec: type[Spec], sizes: Sequence[object], layouts: Mapping[str, object]
) -> tuple[tuple[Expr, ...], tuple[MatrixLayout, ...]]:
    """Sizes in the order of the dimensions of a kind of spec, and layouts in that of its operands, or an `ArgumentError`."""
    checked = {dim: check_size(size, dim.upper()) for dim, size in zip(spec.dims, sizes, strict=True)}
    # A layout orders rows and columns; what is stacked behind them, as the parts of a Reduction are, follows whole.
    extents = {name: tuple(checked[dim] for dim in dims[:2]) for name, dims in spec.uses.items()}
    return tuple(checked.values()), tuple(check_layout(layouts[name], name, extents[name]) for name in spec.uses)


def converting(src: DType, dst: DType | None) -> tuple[DType, DType]:
    """The element types of src and dst; that of dst is that of src if none is named."""
    first = as_dtype(src)
    return first, first if dst is None else as_dtype(dst)


@attrs.frozen
class SpecShape:
    """A shape with its memories; calling it with a level gives the spec."""

    shape: Any
    memories: tuple[Memory, ...]

    @located
    def __call__(self, level: Level) -> Any:
        return self.shape.build(self.memories, check_level(level))


@attrs.frozen
class MatMulShape:
    """`MatMul(M, N, K)`, waiting for the memories of A, B and C."""

    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, ...]
    layouts: tuple[MatrixLayout, ...]
    accumulator: DType | None
    accumulate: Expr

    @located
    def __call__(self, *memories: Memory) -> SpecShape:
        return SpecShape(self, check_memories(memories, MatMulSpec))

    def build(self, memories: tuple[Memory, ...], level: Level) -> MatMulSpec:
        """The spec at a level."""
        return _matmul(self, memories, level)


def _matmul(shape: MatMulShape, memories: tuple[Memory, ...], level: Level) -> MatMulSpec:
    M, N, K = shape.sizes
    extents = {"A": (M, K), "B": (K, N), "C": (M, N)}
    a, b, c = (
        whole_view(Tensor(name, extents[name], dtype, memory, layout))
        for name, dtype, memory, layout in zip("ABC", shape.dtypes, memories, shape.layouts, strict=True)
    )
    return MatMulSpec(level, a, b, c, shape.accumulate, shape.accumulator)


@attrs.frozen
class MoveShape:
    """`Move(M, N)`, waiting for the memories of src and dst."""

    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, ...]
    layouts: tuple[MatrixLayout, ...]

    @located
    def __call__(self, *memories: Memory) -> SpecShape:
        return SpecShape(self, check_memories(memories, MoveSpec))

    def build(self, memories: tuple[Memory, ...], level: Level) -> MoveSpec:
        """The spec at a level."""
        src, dst = self.views(memories)
        return MoveSpec(level, src, dst)

    def views(self, memories: tuple[Memory, ...]) -> tuple[View, View]:
        """Whole views of src and dst."""
        rows = zip(("src", "dst"), self.dtypes, memories, self.layouts, strict=True)
        src, dst = (whole_view(Tensor(name, self.sizes, dtype, memory, layout)) for name, dtype, memory, layout in rows)
        return src, dst


@attrs.frozen
class InitShape:
    """`Init(M, N)`, waiting for the memory of dst."""

    sizes: tuple[Expr, ...]
    dtype: DType
    layout: MatrixLayout
    value: int

    @located
    def __call__(self, *memories: Memory) -> SpecShape:
        return SpecShape(self, check_memories(memories, InitSpec))

    def build(self, memories: tuple[Memory, ...], level: Level) -> InitSpec:
        """The spec at a level."""
        return InitSpec(level, whole_view(Tensor("dst", self.sizes, self.dtype, memories[0], self.layout)), self.value)


@attrs.frozen
class Starter(Verbs):
    """Where a chain starts without a size: `MatMul.tile(...)`. Called with sizes it is the short form of a spec."""

    spec_class: type[Spec]

    def __repr__(self) -> str:
        return self.spec_class.title

    def on(self, level: Level, *operands: View, **options: Any) -> Spec:
        """The spec on views, in the order of the short form."""
        return self.spec_class(level, *operands, **options)


class MatMulStarter(Starter):
    """The name `MatMul`; `MatMul.a`, `MatMul.b` and `MatMul.c` name its operands, as in the paper."""

    a: Final = operand.A
    b: Final = operand.B
    c: Final = operand.C

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        K: Expr | int,
        *,
        dtype: DType | tuple[DType, DType] = float32,
        c_dtype: DType | None = None,
        accumulator: DType | None = None,
        accumulate: Expr | bool = FALSE,
        A: MatrixLayout = ColMajor,
        B: MatrixLayout = ColMajor,
        C: MatrixLayout = ColMajor,
    ) -> MatMulShape:
        """`C (M x N) = A (M x K) * B (K x N)`; then the memories of A, B, C, then the level.

        Sizes are in elements, integers or symbols. `dtype` is the type of A and B (or a pair), `c_dtype` that of C,
        `accumulator` the type to add up in. Column-major float32 unless said otherwise (Fireiron, section 3.1).
        """
        sizes, layouts = check_matrices(self.spec_class, (M, N, K), {"A": A, "B": B, "C": C})
        pair = dtype if isinstance(dtype, tuple) else (dtype, dtype)
        if len(pair) != 2:
            raise ArgumentError("dtype: one element type, or a pair for A and B", got=dtype)
        types = (as_dtype(pair[0]), as_dtype(pair[1]))
        types = (*types, default_result(types[0]) if c_dtype is None else as_dtype(c_dtype))  # type: ignore[assignment]
        inner = None if accumulator is None else as_dtype(accumulator)
        return MatMulShape(sizes, types, layouts, inner, as_condition(accumulate))


class MoveStarter(Starter):
    """The name `Move`; `Move.src` and `Move.dst` name its operands."""

    src: Final = operand.SRC
    dst: Final = operand.DST

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        *,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        src: MatrixLayout = ColMajor,
        dst: MatrixLayout = ColMajor,
    ) -> MoveShape:
        """`dst (M x N) = src (M x N)`; then the memories of src and dst, then the level."""
        sizes, layouts = check_matrices(self.spec_class, (M, N), {"src": src, "dst": dst})
        return MoveShape(sizes, converting(dtype, dst_dtype), layouts)


class InitStarter(Starter):
    """The name `Init`; `Init.dst` names its operand."""

    dst: Final = operand.DST

    @located
    def __call__(self, M: Expr | int, N: Expr | int, *, dtype: DType = float32, dst: MatrixLayout = ColMajor, value: int = 0) -> InitShape:
        """`dst (M x N) = value`; then the memory of dst, then the level."""
        sizes, (layout,) = check_matrices(self.spec_class, (M, N), {"dst": dst})
        element = as_dtype(dtype)
        return InitShape(sizes, element, layout, check_value(value, element))


MatMul: Final = MatMulStarter(MatMulSpec)
Move: Final = MoveStarter(MoveSpec)
Init: Final = InitStarter(InitSpec)


def symbols_of(spec: Spec) -> tuple[Var, ...]:
    """The run-time sizes and strides of a spec, in order of appearance; an `ArgumentError` where two of one name differ."""
    leading = [getattr(view.tensor.layout, "leading", None) for view in spec.operands.values()]
    found: dict[str, Var] = {}
    for value in (*spec.sizes, *leading, spec.accumulate):
        if value is not None:
            for var in sorted(value.variables(), key=lambda one: one.name):
                if found.setdefault(var.name, var) != var:
                    raise ArgumentError(f"two symbols are called {var.name}, with different facts", hint="use one sym(...) object")
    return tuple(found.values())


__all__ = [
    "ColMajor",
    "Init",
    "InitSpec",
    "MatMul",
    "MatMulSpec",
    "Move",
    "MoveSpec",
    "RowMajor",
    "Spec",
    "Starter",
    "symbols_of",
]
