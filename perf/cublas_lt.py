"""Call cuBLASLt's GEMM with epilogues through ctypes: C = relu(A·B + beta·C + bias) in one call, and parts of it.

    lt = CublasLt()
    plan = lt.plan(a, b, out, bias)                    # PyTorch tensors, row-major float16
    plan(); lt.plan(a, b, out, bias, addend)()         # on PyTorch's current stream

The library is the one loaded by PyTorch. The first algorithm of its heuristic is used, or another one by its rank. NVIDIA, cuBLAS
documentation, "Using the cuBLASLt API": matrices are column-major there, so the transposed product is computed.
"""

import ctypes
import functools

import torch

COMPUTE_32F, REAL_32F, REAL_16F = 68, 0, 2
EPILOGUE, BIAS_POINTER = 7, 8  # attributes of cublasLtMatmulDesc
RELU, BIAS = 2, 4
MOST_WORKSPACE = 1  # attribute of cublasLtMatmulPreference
WORKSPACE = 64 << 20


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class CublasLt:
    """A handle of the library, and its workspace."""

    def __init__(self):
        torch.zeros(1, device="cuda")
        self.library = self._loaded()
        self.handle = ctypes.c_void_p()
        self.call("Create", ctypes.byref(self.handle))
        self.workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

    @staticmethod
    def _loaded():
        for version in (13, 12):
            try:
                return ctypes.CDLL(f"libcublasLt.so.{version}")
            except OSError:
                continue
        raise RuntimeError("PyTorch is installed without cuBLASLt")

    def call(self, name, *arguments):
        """Call a function of the library. Raises: the error that it reports."""
        status = getattr(self.library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name}: status {status}")

    def plan(self, a, b, out, bias=None, addend=None, relu=None, rank=0):
        """Return a launch of out = a @ b, plus `addend`, plus the bias, and with `relu`, the default with a bias, its ReLU.

        By the algorithm with the given rank in the heuristic; raises `RuntimeError` if there are fewer.
        """
        (m, k), n = a.shape, b.shape[1]
        product = self._made("MatmulDescCreate", ctypes.c_int(COMPUTE_32F), ctypes.c_int(REAL_32F))
        epilogue = (BIAS if bias is not None else 0) | (RELU if relu or (relu is None and bias is not None) else 0)
        if epilogue:
            self._set("MatmulDescSetAttribute", product, EPILOGUE, ctypes.c_int32(epilogue))
        if bias is not None:
            self._set("MatmulDescSetAttribute", product, BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        first, second, result = (self._layout(columns, rows) for rows, columns in ((k, n), (m, k), (m, n)))
        preference = self._made("MatmulPreferenceCreate")
        self._set("MatmulPreferenceSetAttribute", preference, MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        heuristics, count = (Heuristic * (rank + 1))(), ctypes.c_int()
        layouts = (first, second, result, result)
        self.call("MatmulAlgoGetHeuristic", self.handle, product, *layouts, preference, rank + 1, heuristics, ctypes.byref(count))
        if count.value <= rank:
            raise RuntimeError(f"cuBLASLt has {count.value} algorithms for this product")
        chosen = heuristics[rank]
        alpha, beta = ctypes.c_float(1), ctypes.c_float(addend is not None)
        added = out if addend is None else addend
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, added, out, self.workspace)]

        def launch():
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            left, right, start, target, room = pointers
            self.call(
                "Matmul", self.handle, product, ctypes.byref(alpha), left, first, right, second, ctypes.byref(beta), start, result, target,
                result, ctypes.byref(chosen.algorithm), room, ctypes.c_size_t(WORKSPACE), stream,
            )  # fmt: skip

        return launch

    def _made(self, name, *arguments):
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle

    def _set(self, name, target, attribute, value):
        self.call(name, target, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _layout(self, rows, columns):
        """Return a column-major float16 matrix."""
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        return self._made("MatrixLayoutCreate", ctypes.c_int(REAL_16F), *sizes)


@functools.cache
def cublas_lt():
    """Return the handle of this process."""
    return CublasLt()
