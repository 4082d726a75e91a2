"""AdamW of many tensors in one kernel: each tensor is a list of rows, which tables name.

    adamw(C,128)(GL,...)(Kernel)
      tile(c=8).to(Block)              adamw(8,128)(GL,...)(Block)
        .programmatic_launch()         arrays without `__restrict__`, because the results replace the inputs
      load(P), load(G), load(M), load(V)    rows to lanes, a vector each
      done()                           each element in registers

Row c of the call is row `row_p[c]` of the parameters, `row_g[c]` of the gradients, and so on. An array has the rows of all tensors: it
starts at the lowest address of a tensor and ends after the last. So no array is copied, and one launch updates tensors anywhere in memory.
"""

from fireiron import *

WIDTHS = (128, 8, 1)
"""Elements of a row. The first for which a tensor has whole, aligned rows is used; what remains of a tensor has smaller rows."""

BLOCK = {128: 8, 8: 128, 1: 1024}
"""Rows of a block, by the elements of a row."""

THREADS = 128
"""Threads of a block."""

TABLES = {"P": "row_p", "G": "row_g", "M": "row_m", "V": "row_v", "P2": "row_p", "M2": "row_m", "V2": "row_v"}
"""The table of each array. P2, M2 and V2 are P, M and V after the step."""

SCALARS = ("rate", "keep", "beta1", "rest1", "beta2", "rest2", "eps", "root")
"""Numbers: the step size with the correction of the mean, 1 - rate * decay, both betas and 1 minus each, eps, and the correction of the
root of the variance."""


def _element(name):
    return f"{name}[{TABLES[name]}[c],i]"


definition = Fused(
    name="adamw",
    dims="c i p g m v",
    operands={
        "P": "p i", "G": "g i", "M": "m i", "V": "v i", **dict.fromkeys(TABLES.values(), "c"), **dict.fromkeys(SCALARS, ""),
        "P2": "p i", "M2": "m i", "V2": "v i",
    },
    body={
        "mean": f"mean[c,i] = {_element('M')} * beta1 + {_element('G')} * rest1",
        "variance": f"var[c,i] = {_element('V')} * beta2 + {_element('G')} * {_element('G')} * rest2",
        "step": f"new[c,i] = {_element('P')} * keep - rate * mean[c,i] / (sqrt(var[c,i]) * root + eps)",
        "store": f"{_element('P2')} = new[c,i]",
        "store_mean": f"{_element('M2')} = mean[c,i]",
        "store_variance": f"{_element('V2')} = var[c,i]",
    },
    distinct="row_p row_m row_v",
    ranges={f"row_{dim}": f"0 <= row_{dim} < {dim}" for dim in "pgmv"},
)  # fmt: skip


def by_rows(width, block=None, warps=4, vector=4, policy=None):
    """Return the strategy for rows of a number of elements: a block of `block` rows, of which a lane reads `vector` elements at a time."""
    rows = block or BLOCK[width]
    done = (policy,) if policy else ()
    copy = Move.tile(rows // warps, width).to(Warp).tile(1, vector if width > 1 else 1).to(Lane).done(*done)
    chain = definition.tile(c=rows).to(Block).programmatic_launch()
    for name in "PGMV":
        chain = chain.load(name, RF, copy)
    return chain.done()


def spec(width, parameter, gradient, moment=float32):
    """Return the problem for types of parameters, gradients and moments; the number of rows is a run-time size."""
    sizes = {"c": sym("chunks"), **{dim: sym(f"rows_{dim}") for dim in "pgmv"}}
    types = {"P": parameter, "P2": parameter, "G": gradient, **dict.fromkeys(("M", "V", "M2", "V2"), moment)}
    return definition(i=width, **sizes, types=types)
