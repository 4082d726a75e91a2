"""Print and parse kernels in Graphene's notation.

    kernel      {header} spec
    header      "Kernel" name                           the name of the kernel in CUDA
              | "Target" architecture                   sm_80; without it, the argument of `parse_kernel`
              | "Size" name [options]                   a size known at run time: {multiple_of=8, low=1, high=1000}
              | name ":" shape "." type ["." memory]    a definition of `%A` or `#4` (`fireiron.values.notation`)
              | "Kind" name "=" literal                 a user-defined kind of spec, `Kind(...)` or `Fused(...)`
              | "Instruction" name "=" literal          a micro-kernel, `MicroKernel(...)`
              | "Level" name "=" literal                a user-defined group of threads, `Level(...)`
              | "Grid" expression | "Threads" number    if the outermost spec does not specify them
              | "Title" | "Fact" | "Zeroed" | "Filled" | "Joint" | "Segments" | "Resident" | "Within" | "Cluster" | "Chained"
              | "Unchecked", with a literal

    spec        statement ["by" instruction [changes]]  an atomic spec
              | statement body                          a decomposed spec
    statement   result, ... "<-" kind ["<" parameter, ... ">"] "<<<" blocks "," threads ">>>" "(" operand, ... ")" [options]
    body        "{" newline {item newline} "}"
    item        spec
              | "//" text                               a comment, which is printed in the CUDA code too
              | name "=" name ".tile(" size, ... ")"    `%6 = %1.tile(128, _)`: a tensor of tiles
              | name "=" name "[" index, ... "]"        `%9 = %6[bid_m, 0]`: a tile
              | name "=" name ".scalar()"               `#22 = #5.scalar()`: one unit of a group
              | "Let" name "=" expression [options]     a named value; `Let m, n = #4.indices()`: coordinates of a unit in its group
              | "For" "(" name "=" number ";" name "<" expression ";" name "+=" number ")" [options] body
              | "If" "(" condition ")" body             for the threads for which the condition holds
              | "Skip" "unless" name body               a warp skips the body if the registers `name` are 0 in all of its threads
              | "Barrier" [scope]                       a barrier; `Barrier no name`: none; `Barrier maybe name`: only if needed
              | "Semaphore" action name "[" fields "]"  wait for other blocks, or count this block, at a semaphore of a result
              | "Commit" [completion]                   commit the asynchronous operations issued so far as a group
              | "Allocate" statements, as specs         a temporary tensor

A line ends where its parentheses and brackets are closed. A line that ends with `{` opens a body, which a line `}` closes. Barriers, waits,
vector widths, storage and addresses of buffers are inferred, as for a strategy. An atomic spec without `by` is matched against the
instructions of the target.

The text has sequential semantics. `graphene_text(program)` prints the kernel IR with the specs of the decomposition tree around it;
`parse_kernel(text)` returns a program from which the passes generate the same CUDA code. If a statement differs from what its instruction
emits for its operands, the changed fields follow the name of the instruction.

Source: Graphene (ASPLOS 2023), section 5, Figures 1, 7 and 8.

May import: values, specs, ir, language, executable, decomp, lower, compiler.
"""

from fireiron.graphene.parser import parse_kernel, parse_strategy
from fireiron.graphene.printer import graphene_text

__all__ = ["graphene_text", "parse_kernel", "parse_strategy"]
