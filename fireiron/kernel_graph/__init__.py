"""Several kernels as one program: a value, its checks, and calls that execute all kernels in order.

May import: the compiler, kernels on a GPU, and what these may import.
"""

from fireiron.kernel_graph.graph import KernelGraph

__all__ = ["KernelGraph"]
