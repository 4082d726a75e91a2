// Store of Listing 4: Move(128x128:RF => 128x128:GL), all 256 threads of a block.
//
// Register r of a thread is element (src_m(r), src_n(r)); eight neighboring registers are eight rows of one column. Per
// pass each thread stages one of its columns: the block stages 16 columns of 128 rows, so that the threads then store
// whole columns, neighboring threads to neighboring addresses. A column takes 132 elements in shared memory, against
// bank conflicts.
constexpr int rows = 128, columns = 16, pitch = 132;
static_assert(sizeof(src_type) * columns * pitch <= scratch_size, "the stage does not fit its scratch memory");
src_type* const stage = reinterpret_cast<src_type*>(scratch);
#pragma unroll
for (int pass = 0; pass < 8; ++pass) {
  if (pass > 0)
    __syncthreads();  // the stage is free again
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int m = src_m(pass * 8 + i), n = src_n(pass * 8 + i);
    stage[(n / 32 * 4 + n % 16 / 4) * pitch + m] = src[pass * 8 + i];
  }
  __syncthreads();  // the stage is complete
#pragma unroll
  for (int i = 0; i < rows * columns / 256; ++i) {
    const int m = threadIdx.x % rows;
    const int column = threadIdx.x / rows + i * 2;
    const int n = column / 4 * 32 + pass / 4 * 16 + column % 4 * 4 + pass % 4;
    if (m < dst_size_m && n < dst_size_n)
      dst[m * dst_stride_m + n * dst_stride_n] = dst_type(stage[column * pitch + m]);
  }
}
