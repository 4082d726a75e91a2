"""NaN, infinity, subnormal numbers and signed zeros in formulas: simulator, printed text on a CPU and IEEE arithmetic, bit for bit.

`special-formulas`: a seed draws `TEXTS` formulas over element types, with special values everywhere. A separate evaluator computes the
results of IEEE 754 and of the instructions (`Ieee`): NaN payloads do not count, and results of exp, log, tanh and erf may differ in the
last bits. `special-products`: GEMM and definitions of `generator` and `fused_generator` whose inputs contain some infinities and NaN.
"""

import random
import tempfile

import ml_dtypes
import numpy as np
from fused_generator import draw as drawn_definition
from generator import draw as drawn_strategy
from printed_text import COMPILER, HostProgram, Printed
from test_fused_random import program_to_paste as definition_to_paste
from test_fused_random import wrong
from test_random import problem, program_to_paste

from campaign import Outcome, Subject, agreed, found
from fireiron import *
from fireiron.errors import FireironError
from fireiron.measure.data import random_inputs as normal_data
from fireiron.sim import simulate
from fireiron.specs.meaning import convert

TEXTS = 10
ROWS, COLUMNS = 16, 32
FLOATS = (float16, bfloat16, float32, float64)
SMALL = (float8_e4m3, float8_e5m2)
TYPES = (*FLOATS, *SMALL, float32, float16, int32, int8, uint8)
RESULTS = (*FLOATS, *FLOATS, *SMALL, int32, int8, uint8)

# ---------------------------------------------------------------------------------------------- IEEE and the instructions


OF_INTEGERS = ("add", "sub", "mul", "neg", "abs", "max", "min", "relu", "floor", "round", "clamp")
"""Functions whose result is an integer if all operands are; no value of a drawn formula needs more than 64 bits."""


class Ieee:
    """The value of a formula by IEEE 754 in one type; maxima, minima, conversions and exp2 follow the PTX ISA.

    Functions of integers alone have an exact integer as result, which has no negative zero. It is converted where a float is needed.
    """

    def __init__(self, kind):
        self.kind = kind

    def exactly(self, name, *values):
        if not (name in OF_INTEGERS and all(value.dtype == np.int64 for value in values)):
            values = [value.astype(self.kind) for value in values]
        with np.errstate(all="ignore"):
            return getattr(self, f"_{name}")(*values)

    def _add(self, a, b):
        return a + b

    def _sub(self, a, b):
        return a - b

    def _mul(self, a, b):
        return a * b

    def _div(self, a, b):
        return a / b

    def _neg(self, a):
        return -a

    def _abs(self, a):
        return np.abs(a)

    def _max(self, a, b):
        """PTX ISA, max: of a number and NaN the number; +0 > -0."""
        larger = np.where((a > b) | ((a == b) & ~np.signbit(a)), a, b)
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, larger))

    def _min(self, a, b):
        smaller = np.where((a < b) | ((a == b) & np.signbit(a)), a, b)
        return np.where(np.isnan(a), b, np.where(np.isnan(b), a, smaller))

    def _relu(self, a):
        return self._max(a, np.zeros_like(a))

    def _floor(self, a):
        return np.floor(a)

    def _round(self, a):
        return np.rint(a)

    def _clamp(self, a, b, c):
        return self._min(self._max(a, b), c)

    def _sqrt(self, a):
        return np.sqrt(a)

    def _rsqrt(self, a):
        return 1 / np.sqrt(a)

    def _exp2(self, a):
        """PTX ISA, ex2.approx.ftz.f32: subnormal results are zero."""
        power = np.exp2(a)
        return np.where(power < 2.0**-126, np.zeros_like(power), power) if power.dtype == np.float32 else power

    def _exp(self, a):
        return np.exp(a)

    def _log(self, a):
        return np.log(a)

    def _log2(self, a):
        return np.log2(a)

    def _tanh(self, a):
        return np.tanh(a)

    def _where(self, a, b, c, d):
        return np.where(a < b, c, d)

    def _choose(self, a, b, c):
        return np.where(a != b, c, a)


def rounded(values, dtype):
    """A conversion as the instruction computes it, with a separate method: exact Fractions of a double, rounded to nearest even."""
    if dtype.kind == "int":
        return _integers(values, dtype)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    if dtype == float64:
        return wide
    if dtype == float32:
        with np.errstate(over="ignore"):
            return values.astype(np.float32)
    kind = dtype.to_numpy()
    info = ml_dtypes.finfo(kind)
    bits, least = info.nmant, info.minexp
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.where(np.isfinite(wide), wide, 1.0))
        step = np.ldexp(1.0, np.maximum(exponent - 1, least) - bits)
        near = np.rint(wide / step) * step  # both exact: the step is a power of two
    largest = float(info.max)
    small = dtype.bits == 8  # __NV_SATFINITE
    beyond = np.abs(near) > largest
    near = np.where(beyond, np.copysign(largest if small else np.inf, wide), near)
    near = np.where(np.isnan(wide), np.nan, near)
    near = np.where(near == 0, np.copysign(0.0, wide), near)
    return near.astype(kind)


def _integers(values, dtype):
    """Floats toward zero, saturated at the limits of the type, NaN as 0; integers by their low bits (PTX ISA, cvt)."""
    if values.dtype.kind in "iu":
        return values.astype(dtype.to_numpy())
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    return np.trunc(np.clip(np.where(np.isnan(wide), 0, wide), *dtype.limits)).astype(np.int64).astype(dtype.to_numpy())


# ---------------------------------------------------------------------------------------------- formulas

EXACT = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}", "abs": "abs({})", "max": "max({}, {})",
         "min": "min({}, {})", "relu": "relu({})", "sqrt": "sqrt({})", "where": "where({} < {}, {}, {})", "choose": "where({0} != {1}, {2}, {0})",
         "floor": "floor({})", "round": "round({})", "clamp": "clamp({}, {}, {})"}  # fmt: skip
NEAR = {"exp2": "exp2({})", "exp": "exp({})", "log": "log({})", "log2": "log2({})", "tanh": "tanh({})", "rsqrt": "rsqrt({})"}
PLACES = {"add": 2, "sub": 2, "mul": 2, "div": 2, "max": 2, "min": 2, "where": 4, "choose": 3, "clamp": 3}
COMPARING = ("where", "choose")
"""The operands of a condition have a separate type, drawn if all types are equal."""
INTEGRAL = ("max", "min", "relu", "clamp")


class Text:
    """A formula, its types, and its IEEE result."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.types = {name: rng.choice(TYPES) for name in ("x", "z")[: rng.randint(1, 2)]}
        if rng.random() < 0.5:
            self.types = dict.fromkeys(self.types, rng.choice(TYPES))
        integral = all(dtype.kind == "int" for dtype in self.types.values())
        self.result = rng.choice(RESULTS[-3:] if integral else (*RESULTS, *self.types.values()))
        self.near = False
        self.names = []
        self.text, self.value = self.grow(rng.randint(1, 3), integral)
        self.order = sorted((name for name in self.types if f"{name}[" in self.text), key=lambda name: self.text.index(f"{name}["))
        read = [self.types[name] for name in self.order]
        self.kind = np.float64 if float64 in read else np.int32 if integral else np.float32
        self.plain = integral or any(dtype.kind == "float" for dtype in read)
        self.types["y"] = self.result
        self.formula = f"y[m,n] = {self.text}"

    def grow(self, depth, integral):
        """A value, as text and as a function of the elements."""
        if depth == 0:
            name = self.rng.choice(list(self.types))
            return f"{name}[m,n]", lambda ieee, given: given[name]
        if integral:
            name = self.rng.choice(INTEGRAL)
        else:
            near = not self.near and depth == 1 and self.rng.random() < 0.25
            name = self.rng.choice([one for one in (NEAR if near else EXACT) if len(set(self.types.values())) == 1 or one not in COMPARING])
            self.near |= near
        self.names.append(name)
        parts = [self.grow(depth - 1, integral) for _ in range(PLACES.get(name, 1))]
        text = (EXACT | NEAR)[name].format(*(f"({one})" if " " in one else one for one, _ in parts))
        values = [value for _, value in parts]
        return text, lambda ieee, given: ieee.exactly(name, *(value(ieee, given) for value in values))

    def spec(self):
        types = {"dtype": tuple(self.types[name] for name in self.order), "y_dtype": self.result}
        return Pointwise(self.formula, ROWS, COLUMNS, **types)(*(GL,) * (len(self.order) + 1))(Kernel)

    def arrays(self):
        return {name: special(self.types[name], self.rng) for name in self.order}

    def wanted(self, arrays):
        with np.errstate(invalid="ignore"):
            given = {name: array.astype(np.int64 if array.dtype.kind in "iu" else self.kind) for name, array in arrays.items()}
        return rounded(np.broadcast_to(self.value(Ieee(self.kind), given), (ROWS, COLUMNS)), self.result)


def special(dtype, rng):
    """An array with all kinds of numbers of a type."""
    generator = np.random.default_rng(rng.getrandbits(64))
    kind, shape = dtype.to_numpy(), (ROWS, COLUMNS)
    if dtype.kind == "int":
        return generator.integers(*dtype.limits, shape, endpoint=True).astype(kind)
    info = ml_dtypes.finfo(kind)
    tiny, largest, least = float(info.tiny), float(info.max), float(info.smallest_subnormal)
    chosen = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, tiny, -tiny, least, -least, 3 * least, tiny - least, largest, -largest, 0.5, 448, 464,
              480, 57344, 61440, 65504, 65520, 2147483520.0, 2147483648.0, -2147483648.0, -3e9, 127.5, 128, 255.9, 256, 300, -0.9, -129, 1 + 2.0**-8,
              1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-40, -126, -127, -149, -150, 127, 128, 2.0**-133, 2.0**-134]  # fmt: skip
    values = generator.choice(np.array(chosen), shape)
    with np.errstate(all="ignore"):
        random_bits = np.frombuffer(generator.bytes(ROWS * COLUMNS * np.dtype(kind).itemsize), kind).reshape(shape)
        normal = generator.standard_normal(shape)
        mixed = np.where(generator.random(shape) < 0.5, values, normal).astype(kind)
        return np.where(generator.random(shape) < 0.2, random_bits, mixed)


def disagreements(got, want, near):
    """The positions where bits differ, except NaN; with `near` the last bits of finite numbers may differ."""
    with np.errstate(all="ignore"):
        have, need = got.astype(np.float64), want.astype(np.float64)
        same = (have == need) & (np.signbit(have) == np.signbit(need)) | np.isnan(have) & np.isnan(need)
        if near:
            same |= np.abs(have - need) <= near * np.maximum(np.abs(need), np.abs(have))
    return ~same


def slack(text):
    """The allowed relative difference of two implementations of a function; 0 if all is exact."""
    if not text.near:
        return 0.0
    dtype = text.result
    return float("inf") if dtype.kind == "int" or len(text.names) > 1 else 2.0 ** (2 - min(dtype.mantissa, 22))


def draw(seed: int) -> Outcome:
    """`TEXTS` formulas, printed together."""
    texts, features, number = [], set(), 0
    while len(texts) < TEXTS:
        text = Text(f"{seed}/{number}")
        number += 1
        if not text.plain or (text.near and len(text.names) > 1):
            continue
        try:
            text.program = (
                Pointwise.tile(8, 16)
                .to(Block)
                .tile(1, text.rng.choice((1, 2, 4)))
                .to(Thread)
                .done()(text.spec())
                .program(text.rng.choice(("sm_80", "sm_90")))
            )
            _ = text.program.ir
        except FireironError:
            continue
        texts.append(text)
    with tempfile.TemporaryDirectory() as folder:
        host = HostProgram([Printed.of(one.program) for one in texts], folder) if COMPILER else None
        for place, text in enumerate(texts):
            features |= {*text.names, *(f"{name}: {dtype}" for name, dtype in text.types.items())}
            arrays = text.arrays()
            want = text.wanted(arrays)
            results = {"the simulator": simulate(text.program.ir, arrays).outputs["y"]}
            if host is not None:
                results["the printed text"] = host.run(place, arrays, seed=seed)["y"]
            for who, got in results.items():
                off = disagreements(got, want, slack(text))
                if off.any():
                    return found(_story(text, who, arrays, got, want, off), features)
    return agreed(features, *(text.program for text in texts), formulas=len(texts))


def _story(text, who, arrays, got, want, off):
    at = tuple(map(int, np.argwhere(off)[0]))
    given = ", ".join(f"{name} = {array[at]!r}" for name, array in arrays.items())
    return (
        f"{who}: {got[at]!r} at {at}, {want[at]!r} expected of {given}; {off.sum()} of {off.size}\n"
        f"from fireiron import *\nspec = Pointwise({text.formula!r}, {ROWS}, {COLUMNS}, "
        f"dtype={tuple(text.types[name] for name in text.order)}, y_dtype={text.result})({', '.join(['GL'] * (len(text.order) + 1))})(Kernel)\n"
        f"strategy = {text.program.strategy!r}"
    )


# ---------------------------------------------------------------------------------------------- products and definitions

NUMBERS = (np.inf, -np.inf, np.nan, 0.0, -0.0)


def planted(array, rng):
    """The array with a few special numbers in it."""
    changed = np.array(array)
    if changed.dtype.kind in "iu" or not changed.ndim:
        return array
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed[tuple(rng.randrange(size) for size in changed.shape)] = rng.choice(NUMBERS)
    return changed


def draw_kernel(seed: int) -> Outcome:
    """A GEMM, or a definition, with some special numbers: NaN and infinities are where float64 has them, all other results are right."""
    rng = random.Random(seed)
    return _product(seed, rng) if seed % 2 else _definition(seed, rng)


def _product(seed, rng):
    product, _ = drawn_strategy(seed)
    arrays, _ = problem(product, seed)
    arrays = {name: planted(array, rng) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        wide = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64)
        wide = wide + arrays["C"].astype(np.float64) if "C" in arrays else wide
        want = convert(wide, product.spec.C.dtype)
    got = simulate(product.program.lowered, arrays, product.symbols).outputs["C"]
    same = (got == want) | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))
    if not same.all():
        at = tuple(map(int, np.argwhere(~same)[0]))
        return found(
            f"C{list(at)} is {got[at]}, {want[at]} expected; {(~same).sum()} of {same.size}{program_to_paste(product)}", product.features
        )
    return agreed({"product", *product.features}, product.program)


def _definition(seed, rng):
    definition, _ = drawn_definition(seed)
    arrays = normal_data(definition.bound, definition.symbols, np.random.default_rng(seed))
    arrays = {name: planted(array, rng) for name, array in arrays.items()}
    with np.errstate(all="ignore"):
        got = simulate(definition.program.ir, arrays, definition.symbols, order=random.Random(seed)).outputs
        off = wrong(definition, got, arrays)
    return (
        found(f"{off}{definition_to_paste(definition)}", definition.features)
        if off
        else agreed({"definition", *definition.features}, definition.program)
    )


SUBJECTS = (
    Subject(
        "special-formulas",
        "formulas of NaN, infinity, subnormal numbers and signed zeros: simulator, printed text and IEEE, bit for bit",
        draw,
        nightly=2_000,
        campaign=20_000,
        counted="formulas",
        first=20_261_201,
        chunk=4,
        sample=0,
    ),
    Subject(
        "special-kernels",
        "products and definitions of infinities and NaN: they come out where float64 has them, and all others are right",
        draw_kernel,
        nightly=2_000,
        campaign=20_000,
        first=20_261_301,
        sample=2,
    ),
)
