// A driver of no GPU, for tests: what the handler of JAX's calls asks of it. A launch is given to a function of the test's.
#include <stdint.h>
#include <string.h>

typedef struct {
  unsigned shape[6], shared;
  void* stream;
  void* attributes;
  unsigned count;
} Config;

static char names[64][64];
static int known;
int loads, zeroed;
int (*on_launch)(const Config*, const char*, void**);

int cuCtxGetCurrent(void** context) { return *context = (void*)7, 0; }
int cuStreamGetCtx(void* stream, void** context) { return *context = (void*)7, 0; }
int cuCtxPushCurrent_v2(void* context) { return 0; }
int cuCtxPopCurrent_v2(void** context) { return 0; }
int cuModuleLoadData(void** module, const void* image) { return loads++, *module = (void*)image, memcmp(image, "\177ELF", 4) ? 200 : 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  return strncpy(names[known], name, 63), *function = (void*)(intptr_t)++known, 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuMemsetD8Async(uint64_t place, unsigned char value, size_t bytes, void* stream) { return zeroed += bytes, memset((void*)place, value, bytes), 0; }
int cuGetErrorName(int status, const char** text) { return *text = "CUDA_ERROR_INVALID_IMAGE", 0; }
int cuTensorMapEncodeTiled(uint64_t* map, int kind, uint32_t rank, void* address, const uint64_t* extents, const uint64_t* strides, const uint32_t* box,
                           const uint32_t* steps, int interleave, int swizzle, int promotion, int outside) {
  return map[0] = (uint64_t)address, map[1] = rank, map[2] = extents[0], map[3] = extents[1], map[4] = strides[0], map[5] = box[0], map[6] = swizzle, 0;
}
int cuLaunchKernelEx(const Config* config, void* function, void** table, void** extra) {
  return on_launch(config, names[(intptr_t)function - 1], table);
}
int cuTensorMapEncodeIm2col(uint64_t* map, int kind, uint32_t rank, void* address, const uint64_t* extents, const uint64_t* strides, const int* lower,
                            const int* upper, uint32_t channels, uint32_t pixels, const uint32_t* steps, int interleave, int swizzle, int promotion,
                            int outside) {
  map[0] = (uint64_t)address, map[1] = rank, map[2] = extents[0], map[3] = strides[0], map[4] = pixels, map[5] = steps[1];
  return map[6] = (uint64_t)(int64_t)lower[0], map[7] = (uint64_t)(int64_t)upper[0], map[8] = channels, 0;
}
