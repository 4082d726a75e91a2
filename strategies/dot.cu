// Dot product of one thread, for the residual MatMul(1,1,K)(RF,RF,GL)(Thread) of Listing 1.
c_type sum = accumulate ? *c : c_type(0);
for (int k = 0; k < a_size_k; ++k)
  sum += c_type(a[k * a_stride_k]) * c_type(b[k * b_stride_k]);
*c = sum;
