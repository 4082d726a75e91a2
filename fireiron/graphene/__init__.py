"""Kernels as text, in the notation of Graphene: printed from a strategy's program, read back, or written by hand.

    kernel      {header} spec
    header      "Kernel" name                           the name of the kernel in CUDA
              | "Target" architecture                   sm_80; as the reader says, where it is left out
              | "Size" name [options]                   a size known at run time: {multiple_of=8, low=1, high=1000}
              | name ":" shape "." type ["." memory]    what `%A` or `#4` stands for (`fireiron.values.notation`)
              | "Kind" name "=" literal                 a kind of spec of one's own, `Kind(...)` or `Fused(...)`
              | "Instruction" name "=" literal          a micro-kernel, `MicroKernel(...)`
              | "Level" name "=" literal                a group of threads of one's own, `Level(...)`
              | "Grid" expression | "Threads" number    where the outermost spec does not say them
              | "Title" | "Fact" | "Zeroed" | "Resident" | "Within" | "Cluster" | "Chained" | "Unchecked", with a literal

    spec        statement ["by" instruction [changes]]  an atomic spec: performed as it stands, or as its threads hold it
              | statement body                          a decomposed one
    statement   result, ... "<-" kind ["<" parameter, ... ">"] "<<<" blocks "," threads ">>>" "(" operand, ... ")" [options]
    body        "{" newline {item newline} "}"
    item        spec
              | "//" text                               a comment, which stands in the CUDA too
              | name "=" name ".tile(" size, ... ")"    `%6 = %1.tile(128, _)`: a tensor of tiles
              | name "=" name "[" index, ... "]"        `%9 = %6[bid_m, 0]`: one of them
              | name "=" name ".scalar()"               `#22 = #5.scalar()`: one unit of a group
              | "Let" name "=" expression [options]     a value with a name; `Let m, n = #4.indices()`: where a unit is in its group
              | "For" "(" name "=" number ";" name "<" expression ";" name "+=" number ")" [options] body
              | "If" "(" condition ")" body             threads for which it holds
              | "Skip" "unless" name body               a warp leaves it out, unless one of its threads has other numbers than 0 there
              | "Barrier" [scope]                       a barrier, here; `Barrier no name`: none here; `Barrier maybe name`: here, if needed
              | "Commit" [completion]                   what was issued asynchronously becomes a group
              | "Allocate" statements, as specs         a temporary tensor

A line ends where its parentheses and brackets are closed; one that ends with `{` begins a body, which a line `}` ends. Barriers, waits,
vector widths, storage and addresses of buffers are inferred, as they are for a strategy; an atomic spec without `by` is matched against the
instructions of the target.

The text of a kernel is its program with sequential semantics. `graphene_text(program)` prints it, with the specs of the decomposition tree
around it; `parse_kernel(text)` gives a program again, of which the passes make the same CUDA. What an atomic spec does beside what its
instruction makes of its operands by itself stands behind its name, as fields of the statement.

Source: Graphene (ASPLOS 2023), section 5, Figures 1, 7 and 8.

May import: values, specs, ir, language, executable, decomp, lower, compiler.
"""

from fireiron.graphene.parser import parse_kernel, parse_strategy
from fireiron.graphene.printer import graphene_text

__all__ = ["graphene_text", "parse_kernel", "parse_strategy"]
