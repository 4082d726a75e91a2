// The part of a thread, MatMul(2,2,8)(SH,SH,RF)(Thread): C[m,n] += sum over k of A[m,k] * B[k,n].
//
// Each operand is known by its name in small letters. Of an operand x with dimensions m and n:
//   x_at(i, j)               an element, however it is stored, as an lvalue
//   x_size_m, x_size_n       the elements that lie inside of the matrix: tiles may overhang
//   x_type                   the type of its elements
//   x, x_stride_m            a pointer to the first one, and a step in elements, where there is one
// `accumulate` is false where the old value of C is not to be added to.
for (int m = 0; m < c_size_m; ++m)
  for (int n = 0; n < c_size_n; ++n) {
    c_type sum = accumulate ? c_at(m, n) : c_type(0);
    for (int k = 0; k < a_size_k; ++k)
      sum += a_at(m, k) * b_at(k, n);
    c_at(m, n) = sum;
  }
