// Launch a kernel as a custom call of XLA. Fireiron compiles this file with the host's C++ compiler and jaxlib's headers, when it traces the
// first JAX program that calls a kernel. The attributes of the call specify the launch:
//
//   image   machine code, in words of 8 bytes
//   key     identifies the image
//   name    the kernel's name in it
//   plan    blocks, threads, bytes of dynamic shared memory, blocks of a cluster, whether it uses PDL, the number of operands to set to zero,
//           the number of parameters; then for each operand to set to zero: operand, bytes; then for each parameter its kind:
//             0, operand                                            its address
//             1, bits                                               a number
//             2, operand, element type, swizzle, dimensions, then extents, strides between (one fewer), box: a tensor map
//             3, the same, then lower corners, upper corners, steps (two fewer each): a tensor map in im2col mode
//
// Operands are the arguments and then the results of the call, by number. The driver is loaded by name, so no CUDA header is needed.

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int kMapBytes = 128;
constexpr int kSharedWithoutAsking = 48 << 10;
constexpr int kPortableCluster = 8;
// CUfunction_attribute, CUlaunchAttributeID, CUtensorMapL2promotion
constexpr int kStaticShared = 1, kDynamicShared = 8, kNonPortableCluster = 14, kProgrammaticSerialization = 6, kPromotedTo128 = 2;

struct Attribute {
  int id;
  char pad[4];
  int value;
  char rest[60];
};

struct Config {
  unsigned shape[6];
  unsigned shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

struct Driver {
  int (*context)(void**) = nullptr;
  int (*context_of)(void*, void**) = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*load)(void**, const void*) = nullptr;
  int (*function)(void**, void*, const char*) = nullptr;
  int (*get)(int*, int, void*) = nullptr;
  int (*set)(void*, int, int) = nullptr;
  int (*zero)(uint64_t, unsigned char, size_t, void*) = nullptr;
  int (*launch)(const Config*, void*, void**, void**) = nullptr;
  int (*encode)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int) = nullptr;
  int (*encode_pixels)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const int*, const int*, uint32_t, uint32_t,
                       const uint32_t*, int, int, int, int) = nullptr;
  int (*name)(int, const char**) = nullptr;
  std::string missing;

  template <typename T>
  void Find(void* library, T& place, const char* symbol) {
    place = reinterpret_cast<T>(dlsym(library, symbol));
    if (place == nullptr && missing.empty()) missing = symbol;
  }

  explicit Driver(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      missing = path;
      return;
    }
    Find(library, context, "cuCtxGetCurrent");
    Find(library, context_of, "cuStreamGetCtx");
    Find(library, push, "cuCtxPushCurrent_v2");
    Find(library, pop, "cuCtxPopCurrent_v2");
    Find(library, load, "cuModuleLoadData");
    Find(library, function, "cuModuleGetFunction");
    Find(library, get, "cuFuncGetAttribute");
    Find(library, set, "cuFuncSetAttribute");
    Find(library, zero, "cuMemsetD8Async");
    Find(library, launch, "cuLaunchKernelEx");
    Find(library, encode, "cuTensorMapEncodeTiled");
    Find(library, encode_pixels, "cuTensorMapEncodeIm2col");
    Find(library, name, "cuGetErrorName");
  }
};

std::string& DriverPath() {
  static std::string path = "libcuda.so.1";
  return path;
}

Driver& TheDriver() {
  static Driver driver(DriverPath().c_str());
  return driver;
}

ffi::Error Failed(const std::string& what, int status) {
  const char* text = nullptr;
  if (TheDriver().name != nullptr) TheDriver().name(status, &text);
  return ffi::Error::Internal("fireiron: " + what + ": " + (text == nullptr ? "CUDA error " + std::to_string(status) : text));
}

// Makes the context of a stream current while this object exists: it may not be current in XLA's threads.
class Current {
 public:
  explicit Current(void* stream) {
    void* wanted = nullptr;
    if (stream == nullptr || TheDriver().context_of(stream, &wanted)) return;
    pushed_ = TheDriver().push(wanted) == 0;
  }
  ~Current() {
    void* before = nullptr;
    if (pushed_) TheDriver().pop(&before);
  }

 private:
  bool pushed_ = false;
};

// The kernel, loaded in the current context, once.
ffi::Error Loaded(ffi::Span<const int64_t> image, int64_t key, const std::string& name, int64_t shared, int64_t cluster, void** found) {
  static std::mutex mutex;
  static std::map<std::pair<void*, int64_t>, void*> functions;
  Driver& driver = TheDriver();
  void* context = nullptr;
  if (int status = driver.context(&context)) return Failed("no context", status);
  std::lock_guard<std::mutex> lock(mutex);
  void*& function = functions[{context, key}];
  if (function == nullptr) {
    void *module = nullptr, *made = nullptr;
    if (int status = driver.load(&module, image.begin())) return Failed("the GPU does not load " + name, status);
    if (int status = driver.function(&made, module, name.c_str())) return Failed("no kernel " + name, status);
    int fixed = 0;
    if (int status = driver.get(&fixed, kStaticShared, made)) return Failed(name, status);
    if (fixed + shared > kSharedWithoutAsking)
      if (int status = driver.set(made, kDynamicShared, static_cast<int>(shared))) return Failed(name + ": shared memory", status);
    if (cluster > kPortableCluster)
      if (int status = driver.set(made, kNonPortableCluster, 1)) return Failed(name + ": a cluster", status);
    function = made;
  }
  *found = function;
  return ffi::Error::Success();
}

// Reads the attribute `plan` from its start to its end.
class Plan {
 public:
  explicit Plan(ffi::Span<const int64_t> words) : words_(words) {}

  int64_t Next() { return at_ < words_.size() ? words_[at_++] : (short_ = true, 0); }
  bool Short() const { return short_; }

 private:
  ffi::Span<const int64_t> words_;
  size_t at_ = 0;
  bool short_ = false;
};

struct alignas(64) Map {
  char bytes[kMapBytes];
};

int Encode(Plan& plan, const std::vector<void*>& operands, bool pixels, Map* map) {
  void* address = operands.at(plan.Next());
  int kind = static_cast<int>(plan.Next()), swizzle = static_cast<int>(plan.Next());
  size_t rank = plan.Next();
  std::vector<uint64_t> extents(rank), strides(rank - 1);
  std::vector<uint32_t> box(rank), steps(rank, 1);
  for (auto& one : extents) one = plan.Next();
  for (auto& one : strides) one = plan.Next();
  for (auto& one : box) one = static_cast<uint32_t>(plan.Next());
  if (pixels) {
    std::vector<int> lower(rank - 2), upper(rank - 2);
    for (auto& one : lower) one = static_cast<int>(plan.Next());
    for (auto& one : upper) one = static_cast<int>(plan.Next());
    for (size_t dim = 1; dim + 1 < rank; ++dim) steps[dim] = static_cast<uint32_t>(plan.Next());
    return TheDriver().encode_pixels(map, kind, rank, address, extents.data(), strides.data(), lower.data(), upper.data(), box[0], box[1],
                                     steps.data(), 0, swizzle, kPromotedTo128, 0);
  }
  return TheDriver().encode(map, kind, rank, address, extents.data(), strides.data(), box.data(), steps.data(), 0, swizzle, kPromotedTo128, 0);
}

ffi::Error Launch(void* stream, ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> image, int64_t key,
                  std::string_view called, ffi::Span<const int64_t> words) {
  Driver& driver = TheDriver();
  if (!driver.missing.empty()) return ffi::Error::Internal("fireiron: no CUDA driver, or one older than 12: " + driver.missing);
  std::vector<void*> operands;
  for (size_t one = 0; one < arguments.size(); ++one) operands.push_back(arguments.get<ffi::AnyBuffer>(one)->untyped_data());
  for (size_t one = 0; one < results.size(); ++one) operands.push_back((*results.get<ffi::AnyBuffer>(one))->untyped_data());

  Current current(stream);
  Plan plan(words);
  const std::string name(called);
  Config config{};
  for (unsigned& one : config.shape) one = 1;
  config.shape[0] = static_cast<unsigned>(plan.Next());
  config.shape[3] = static_cast<unsigned>(plan.Next());
  config.shared = static_cast<unsigned>(plan.Next());
  config.stream = stream;
  int64_t cluster = plan.Next(), chained = plan.Next(), zeroed = plan.Next(), parameters = plan.Next();

  void* function = nullptr;
  if (ffi::Error error = Loaded(image, key, name, config.shared, cluster, &function); error.failure()) return error;
  for (int64_t one = 0; one < zeroed; ++one) {
    void* operand = operands.at(plan.Next());
    if (int status = driver.zero(reinterpret_cast<uint64_t>(operand), 0, plan.Next(), stream)) return Failed(name + ": zeros", status);
  }
  std::vector<int64_t> numbers(parameters);
  std::vector<Map> maps(parameters);
  std::vector<void*> table(parameters);
  for (int64_t one = 0; one < parameters; ++one) {
    int64_t kind = plan.Next();
    table[one] = &numbers[one];
    if (kind == 0) numbers[one] = reinterpret_cast<int64_t>(operands.at(plan.Next()));
    if (kind == 1) numbers[one] = plan.Next();
    if (kind == 2 || kind == 3) {
      if (int status = Encode(plan, operands, kind == 3, &maps[one])) return Failed(name + ": a tensor map", status);
      table[one] = &maps[one];
    }
  }
  if (plan.Short()) return ffi::Error::Internal("fireiron: " + name + ": the plan of the launch ends early");
  Attribute attribute{kProgrammaticSerialization, {}, 1, {}};
  config.attributes = &attribute;
  config.count = chained ? 1 : 0;
  if (int status = driver.launch(&config, function, table.data(), nullptr)) return Failed("the driver refuses to launch " + name, status);
  return ffi::Error::Success();
}

ffi::Error LaunchOnHost(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Span<const int64_t> image, int64_t key,
                        std::string_view called, ffi::Span<const int64_t> words) {
  return Launch(nullptr, arguments, results, image, key, called, words);
}

}  // namespace

// Sets the driver's file before the first launch, for tests without a GPU.
extern "C" void fireiron_driver(const char* path) { DriverPath() = path; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(fireiron_launch, Launch,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("image")
                                  .Attr<int64_t>("key")
                                  .Attr<std::string_view>("name")
                                  .Attr<ffi::Span<const int64_t>>("plan"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fireiron_launch_on_host, LaunchOnHost,
                              ffi::Ffi::Bind()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("image")
                                  .Attr<int64_t>("key")
                                  .Attr<std::string_view>("name")
                                  .Attr<ffi::Span<const int64_t>>("plan"));
