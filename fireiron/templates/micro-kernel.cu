// The work of one thread, MatMul(2,2,8)(SH,SH,RF)(Thread): C[m,n] += sum over k of A[m,k] * B[k,n].
//
// The names of operands are in lowercase. These names exist for an operand x with dimensions m, n:
//   x_at(i, j)               an element as an lvalue, for any storage
//   x_size_m, x_size_n       the number of elements in bounds, because tiles may be partial
//   x_type                   the element type
//   x, x_stride_m            a pointer to the first element, and its stride in elements, if any
// If `accumulate` is false, the old value of C is not added.
for (int m = 0; m < c_size_m; ++m)
  for (int n = 0; n < c_size_n; ++n) {
    c_type sum = accumulate ? c_at(m, n) : c_type(0);
    for (int k = 0; k < a_size_k; ++k)
      sum += a_at(m, k) * b_at(k, n);
    c_at(m, n) = sum;
  }
