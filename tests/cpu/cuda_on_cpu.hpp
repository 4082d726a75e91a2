// What printed CUDA C++ sees when the host's compiler reads it: the language's words, its types, its functions.
//
// Nothing here knows the compiler that printed the text. Types and functions are those of the CUDA C++ Programming Guide and the
// CUDA Math API; inline PTX arrives as calls into `ptx`, one for each mnemonic (tests/printed_text.py rewrites `asm volatile`).
// What takes time or needs the threads is in cuda_on_cpu.cpp, which is compiled once, without sanitizers.
#pragma once

#include <initializer_list>
#include <stddef.h>
#include <stdio.h>

// ---------------------------------------------------------------------------------------------- the words of the language

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __constant__ const
#define __grid_constant__

// Static arrays of a block lie in one section, so that they can be poisoned before a block begins; `extern __shared__` comes as
// `extern __dynamic_shared__` and means the array that the launch has sized.
#define __shared__ static __attribute__((section("shared_memory")))
#define __dynamic_shared__

struct Index {
  unsigned x, y, z;
};

extern Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

void __syncthreads(int line = __builtin_LINE());
int __syncthreads_or(int predicate, int line = __builtin_LINE());
inline void __threadfence() {}
inline void __threadfence_system() {}
void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE());
size_t __cvta_generic_to_shared(const void* pointer);
inline size_t __cvta_generic_to_global(const void* pointer) { return reinterpret_cast<size_t>(pointer); }

template <class T> T __ldcs(const T* from) { return *from; }
template <class T, class V> void __stcs(T* to, V value) { *to = value; }

// ---------------------------------------------------------------------------------------------- vectors

#define VECTOR_2(name, element, bytes)                                                                                 \
  struct __align__(bytes) name {                                                                                       \
    element x, y;                                                                                                      \
  };                                                                                                                   \
  inline name make_##name(element x, element y) { return {x, y}; }
#define VECTOR_4(name, element, bytes)                                                                                 \
  struct __align__(bytes) name {                                                                                       \
    element x, y, z, w;                                                                                                \
  };                                                                                                                   \
  inline name make_##name(element x, element y, element z, element w) { return {x, y, z, w}; }

VECTOR_2(float2, float, 8)
VECTOR_2(int2, int, 8)
VECTOR_2(uint2, unsigned, 8)
VECTOR_2(double2, double, 16)
VECTOR_4(float4, float, 16)
VECTOR_4(int4, int, 16)
VECTOR_4(uint4, unsigned, 16)

// ---------------------------------------------------------------------------------------------- numbers

enum class Type { s8, s32, e4m3, e5m2, f16, bf16, tf32, f32, f64 };

// The bits of the nearest number of a small type, ties to even; and the number that bits stand for.
unsigned encoded(double number, Type type);
unsigned encoded(double value, double rest, Type type);  // of the sum of both, of which the first is the nearest double
double decoded(unsigned bits, Type type);

template <Type type, class Bits>
struct SmallFloat {
  Bits bits;

  SmallFloat() = default;
  SmallFloat(float number) : bits(static_cast<Bits>(encoded(number, type))) {}
  SmallFloat(double number) : bits(static_cast<Bits>(encoded(number, type))) {}
  SmallFloat(int number) : bits(static_cast<Bits>(encoded(number, type))) {}
  operator float() const { return static_cast<float>(decoded(bits, type)); }
  SmallFloat& operator+=(SmallFloat other) { return *this = SmallFloat(float(*this) + float(other)); }
};

using __half = SmallFloat<Type::f16, unsigned short>;
using __nv_bfloat16 = SmallFloat<Type::bf16, unsigned short>;
using __nv_fp8_e4m3 = SmallFloat<Type::e4m3, unsigned char>;
using __nv_fp8_e5m2 = SmallFloat<Type::e5m2, unsigned char>;
using half = __half;
using nv_bfloat16 = __nv_bfloat16;

template <Type type, class Bits>
SmallFloat<type, Bits> operator+(SmallFloat<type, Bits> a, SmallFloat<type, Bits> b) { return float(a) + float(b); }
template <Type type, class Bits>
SmallFloat<type, Bits> operator-(SmallFloat<type, Bits> a, SmallFloat<type, Bits> b) { return float(a) - float(b); }
template <Type type, class Bits>
SmallFloat<type, Bits> operator*(SmallFloat<type, Bits> a, SmallFloat<type, Bits> b) { return float(a) * float(b); }

namespace ptx {

// PTX ISA, cvt.rzi: cut toward zero, stopped at the ends of 32 bits, of which narrower integers are the lower ones; NaN is 0, that of a double
// the number with the highest bit alone.
template <class Integer, class Number>
Integer integer(Number number)
{
  if constexpr (static_cast<Number>(0.5) == static_cast<Number>(0)) {
    return static_cast<Integer>(number);
  } else {
    if constexpr (sizeof(Integer) == 8) {  // the limits are not representable in a float
      const double wide = static_cast<double>(number), limit = 9223372036854775808.0;
      return wide != wide || wide < -limit ? -9223372036854775807ll - 1 : wide >= limit ? 9223372036854775807ll : static_cast<Integer>(wide);
    }
    constexpr bool from_zero = static_cast<Integer>(-1) > static_cast<Integer>(0);
    constexpr double low = from_zero ? 0.0 : -2147483648.0, high = from_zero ? 4294967295.0 : 2147483647.0;
    if (number != number)
      return static_cast<Integer>(sizeof(Number) == 8 ? 1u << 31 : 0u);
    const double stopped = number < low ? low : number > high ? high : static_cast<double>(number);
    return static_cast<Integer>(static_cast<long long>(stopped));
  }
}

// PTX ISA, max and min: of a number and NaN the number; +0 is larger than -0.
template <class Left, class Right>
auto maximum(Left a, Right b) -> decltype(a + b)
{
  return a != a ? b : b != b ? a : a > b ? a : b > a ? b : __builtin_signbit(a) ? b : a;
}
template <class Left, class Right>
auto minimum(Left a, Right b) -> decltype(a + b)
{
  return a != a ? b : b != b ? a : a < b ? a : b < a ? b : __builtin_signbit(a) ? a : b;
}

// A double that is rounded to 24 bits or fewer as the integer is: exact, or rounded to odd.
inline double odd(long long number)
{
  const bool large = number >= (1ll << 53) || number <= -(1ll << 53);
  return static_cast<double>(large ? (number & ~0x7ffll) | ((number & 0x7ff) ? 0x400 : 0) : number);
}

}  // namespace ptx

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector)
{
  const unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int byte = 0; byte < 4; ++byte)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * byte & 7) * 8 & 0xff) << 8 * byte;
  return result;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline __half __float2half_rn(float number) { return number; }
inline __half __double2half(double number) { return number; }
inline __half __int2half_rn(int number) { return number; }
inline __half __uint2half_rn(unsigned number) { return double(number); }
inline __half __ll2half_rn(long long number) { return ptx::odd(number); }
inline float __half2float(__half number) { return number; }
inline int __half2int_rz(__half number) { return ptx::integer<int>(float(number)); }
inline __nv_bfloat16 __float2bfloat16_rn(float number) { return number; }
inline __nv_bfloat16 __double2bfloat16(double number) { return number; }
inline __nv_bfloat16 __int2bfloat16_rn(int number) { return number; }
inline __nv_bfloat16 __uint2bfloat16_rn(unsigned number) { return double(number); }
inline __nv_bfloat16 __ll2bfloat16_rn(long long number) { return ptx::odd(number); }
inline float __bfloat162float(__nv_bfloat16 number) { return number; }
inline int __bfloat162int_rz(__nv_bfloat16 number) { return ptx::integer<int>(float(number)); }

inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned long long __umul64hi(unsigned long long left, unsigned long long right)
{
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(left) * right >> 64);
}

inline unsigned __float_as_uint(float number) { return __builtin_bit_cast(unsigned, number); }
inline int __float_as_int(float number) { return __builtin_bit_cast(int, number); }
inline unsigned __umulhi(unsigned left, unsigned right) { return static_cast<unsigned>(static_cast<unsigned long long>(left) * right >> 32); }
inline int __mulhi(int left, int right) { return static_cast<int>(static_cast<long long>(left) * right >> 32); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }

inline long long __double_as_longlong(double number) { return __builtin_bit_cast(long long, number); }
inline double __longlong_as_double(long long bits) { return __builtin_bit_cast(double, bits); }

inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }

extern "C" float fmaf(float a, float b, float c) noexcept;
extern "C" double fma(double a, double b, double c) noexcept;

// The functions of formulas.
extern "C" float erff(float x) noexcept;
extern "C" double erf(double x) noexcept;
extern "C" float expf(float x) noexcept;
extern "C" double exp(double x) noexcept;
extern "C" float exp2f(float x) noexcept;
extern "C" double exp2(double x) noexcept;
extern "C" float logf(float x) noexcept;
extern "C" double log(double x) noexcept;
extern "C" float log1pf(float x) noexcept;
extern "C" double log1p(double x) noexcept;
extern "C" float log2f(float x) noexcept;
extern "C" double log2(double x) noexcept;
extern "C" float sqrtf(float x) noexcept;
extern "C" double sqrt(double x) noexcept;
extern "C" float tanhf(float x) noexcept;
extern "C" float erff(float x) noexcept;
extern "C" double erf(double x) noexcept;
extern "C" double tanh(double x) noexcept;
extern "C" float sinf(float x) noexcept;
extern "C" double sin(double x) noexcept;
extern "C" float cosf(float x) noexcept;
extern "C" double cos(double x) noexcept;
extern "C" float floorf(float x) noexcept;
extern "C" double floor(double x) noexcept;
extern "C" float rintf(float x) noexcept;
extern "C" double rint(double x) noexcept;
extern "C" float fabsf(float x) noexcept;
extern "C" double fabs(double x) noexcept;
extern "C" int abs(int x) noexcept;
extern "C" long long llabs(long long x) noexcept;
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }

// One rounding: a product of two small floats is exact in double, and so are a sum in double and its error together (Knuth's TwoSum).
template <Type type, class Bits>
SmallFloat<type, Bits> fused(SmallFloat<type, Bits> a, SmallFloat<type, Bits> b, SmallFloat<type, Bits> c)
{
  const double product = double(float(a)) * double(float(b)), other = float(c), sum = product + other, part = sum - product;
  SmallFloat<type, Bits> made;
  made.bits = static_cast<Bits>(encoded(sum, (product - (sum - part)) + (other - part), type));
  return made;
}

inline __half __hfma(__half a, __half b, __half c) { return fused(a, b, c); }
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return fused(a, b, c); }
template <class Small>
Small __hadd(Small a, Small b) { return a + b; }
template <class Small>
Small __hsub(Small a, Small b) { return a - b; }
template <class Small>
Small __hmul(Small a, Small b) { return a * b; }

template <class Small>
struct __align__(4) Pair {
  Small x, y;
};
using __half2 = Pair<__half>;
using __nv_bfloat162 = Pair<__nv_bfloat16>;
using half2 = __half2;

inline __half2 __half2half2(__half both) { return {both, both}; }
inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
inline __half2 __floats2half2_rn(float low, float high) { return {__float2half_rn(low), __float2half_rn(high)}; }
inline __half2 __float2half2_rn(float both) { return {__float2half_rn(both), __float2half_rn(both)}; }
inline __nv_bfloat162 __float2bfloat162_rn(float both) { return {__float2bfloat16_rn(both), __float2bfloat16_rn(both)}; }

// CUDA Math API, fp8: the conversion of two numbers in the bytes of a word.
using __half2_raw = __half2;
using __nv_fp8x2_storage_t = unsigned short;
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t bytes, __nv_fp8_interpretation_t kind)
{
  const Type type = kind == __NV_E4M3 ? Type::e4m3 : Type::e5m2;
  return {__half(decoded(bytes & 0xff, type)), __half(decoded(bytes >> 8, type))};
}
inline float2 __half22float2(__half2 pair) { return {float(pair.x), float(pair.y)}; }
inline __half __low2half(__half2 pair) { return pair.x; }
inline __half __high2half(__half2 pair) { return pair.y; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 both) { return {both, both}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 pair) { return pair.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 pair) { return pair.y; }
template <class Small>
Pair<Small> __hfma2(Pair<Small> a, Pair<Small> b, Pair<Small> c) { return {fused(a.x, b.x, c.x), fused(a.y, b.y, c.y)}; }
template <class Small>
Pair<Small> __hadd2(Pair<Small> a, Pair<Small> b) { return {a.x + b.x, a.y + b.y}; }
template <class Small>
Pair<Small> __hsub2(Pair<Small> a, Pair<Small> b) { return {a.x - b.x, a.y - b.y}; }
template <class Small>
Pair<Small> __hmul2(Pair<Small> a, Pair<Small> b) { return {a.x * b.x, a.y * b.y}; }

template <class Small>
Pair<Small> __hmul2_rn(Pair<Small> a, Pair<Small> b) { return {a.x * b.x, a.y * b.y}; }
template <class Small>
Pair<Small> __hneg2(Pair<Small> a) { return {-float(a.x), -float(a.y)}; }
template <class Small>
Pair<Small> __habs2(Pair<Small> a) { return {fabsf(a.x), fabsf(a.y)}; }
// Of a number and of what is none, the number.
template <class Small>
Pair<Small> __hmax2(Pair<Small> a, Pair<Small> b) { return {ptx::maximum(float(a.x), float(b.x)), ptx::maximum(float(a.y), float(b.y))}; }
template <class Small>
Pair<Small> __hmin2(Pair<Small> a, Pair<Small> b) { return {ptx::minimum(float(a.x), float(b.x)), ptx::minimum(float(a.y), float(b.y))}; }

template <class Left, class Right>
constexpr auto min(Left a, Right b) { return b < a ? b : a; }
template <class Left, class Right>
constexpr auto max(Left a, Right b) { return a < b ? b : a; }

// Threads change only where they wait, so an addition is one step.
template <class Number>
Number atomicAdd(Number* place, Number number)
{
  const Number before = *place;
  *place = before + number;
  return before;
}

template <class Number>
Number atomicMax(Number* place, Number number)
{
  const Number before = *place;
  *place = before < number ? number : before;
  return before;
}

template <class Number>
Number atomicMin(Number* place, Number number)
{
  const Number before = *place;
  *place = number < before ? number : before;
  return before;
}

inline unsigned atomicInc(unsigned* place, unsigned last)
{
  const unsigned before = *place;
  *place = before >= last ? 0 : before + 1;
  return before;
}

// ---------------------------------------------------------------------------------------------- inline PTX

namespace ptx {

// A register of an instruction: where it is, if it is written; its bits, if it is read.
struct Operand {
  void* place;
  unsigned long long bits;
  unsigned bytes;
};

template <class Register>
Operand out(Register& place) { return {&place, 0, sizeof(Register)}; }

template <class Register>
Operand in(const Register& value)
{
  Operand operand = {nullptr, 0, sizeof(Register)};
  __builtin_memcpy(&operand.bits, &value, sizeof(Register));
  return operand;
}

// A register that is read later, where it is.
template <class Register>
Operand later(const Register& place) { return {const_cast<Register*>(&place), 0, sizeof(Register)}; }

using Operands = std::initializer_list<Operand>;

// Two numbers rounded to 16 bits in one register.
template <Type type>
unsigned pair(float low, float high)
{
  const SmallFloat<type, unsigned short> both[2] = {low, high};
  return __builtin_bit_cast(unsigned, both);
}

// A function of both numbers of a pair.
template <Type type, class Function>
unsigned function_of_pair(Function function, unsigned bits)
{
  struct Both { SmallFloat<type, unsigned short> low, high; };
  const Both one = __builtin_bit_cast(Both, bits);
  return pair<type>(function(one.low), function(one.high));
}

// PTX ISA, ex2.approx.ftz: subnormal results are zero; without .ftz, in half, they are not.
inline float ex2(float x)
{
  const float made = exp2f(x);
  return made < 0x1p-126f ? 0.0f : made;
}
inline float ex2_bf16(float x) { return ex2(x); }
inline float ex2_f16(float x) { return exp2f(x); }

// Of two pairs the larger numbers of 16 bits; of a number and of what is none, the number.
template <Type type>
unsigned larger_pair(unsigned left, unsigned right)
{
  using Number = SmallFloat<type, unsigned short>;
  struct Both { Number low, high; };
  const Both one = __builtin_bit_cast(Both, left), other = __builtin_bit_cast(Both, right);
  return pair<type>(maximum(float(one.low), float(other.low)), maximum(float(one.high), float(other.high)));
}

// red.add.noftz of 16-bit floats: each element is added, and rounded, on its own. The address must be a multiple of the bytes.
template <class Number, class... Registers>
void red_add(Number* place, Registers... registers)
{
  const unsigned long bytes = (sizeof(Registers) + ...);
  if (reinterpret_cast<unsigned long>(place) % bytes)
    __builtin_trap();
  ([&] {
    Number numbers[sizeof(Registers) / sizeof(Number)];
    __builtin_memcpy(numbers, &registers, sizeof(Registers));
    for (Number number : numbers)
      atomicAdd(place++, number);
  }(), ...);
}

struct Form {
  int m, n, k;
  bool a_by_rows, b_by_rows;
  Type d, a, b, c;
};

void mma(const Form& form, Operands d, Operands a, Operands b, Operands c, int line = __builtin_LINE());
void mma_sp(const Form& form, Operands d, Operands a, Operands b, Operands c, Operand e, Operand selector, int line = __builtin_LINE());
void ldmatrix(bool transposed, Operands d, Operand address, int line = __builtin_LINE());
void stmatrix(bool transposed, Operand address, Operands values, int line = __builtin_LINE());
void movmatrix(Operand d, Operand a, int line = __builtin_LINE());
enum class Shuffle { bfly, idx, up, down };
void shfl(Shuffle mode, Operand d, Operand a, unsigned members, int number, int width, int line);
int vote_any(unsigned members, bool predicate, int line);
void cp_async(bool past_l1, Operand target, Operand source, Operand size, Operand source_size);
void bar_sync(Operand number, Operand count, int line = __builtin_LINE());
int bar_red_or(Operand number, Operand count, Operand predicate, int line = __builtin_LINE());
void cp_async_commit_group();
void cp_async_wait_group(Operand pending);
void cp_async_mbarrier_arrive(Operand barrier, int line = __builtin_LINE());

// A form of wgmma; `..._across` says that a factor is stored along m or n, not along k.
struct Warpgroup {
  int n, k;
  bool a_across, b_across;
  Type d, a, b;
};

void wgmma(const Warpgroup& form, Operands d, Operand a, Operand b, Operand adds, int line = __builtin_LINE());
void wgmma(const Warpgroup& form, Operands d, Operands held, Operand b, Operand adds, int line = __builtin_LINE());
void wgmma(const Warpgroup& form, Operands d, Operand a, Operands held, Operand b, Operand adds, int line);
void wgmma_sp(const Warpgroup& form, Operands d, Operand a, Operand b, Operand e, Operand selector, Operand adds, int line = __builtin_LINE());
void wgmma_fence(int line = __builtin_LINE());
void wgmma_commit_group(int line = __builtin_LINE());
void wgmma_wait_group(Operand pending, int line = __builtin_LINE());

void mbarrier_init(Operand barrier, Operand arrivals, int line = __builtin_LINE());
void mbarrier_init_fence();
void proxy_fence();
void mbarrier_arrive(Operand barrier, int line = __builtin_LINE());
void mbarrier_arrive_at(Operand barrier, Operand rank, int line = __builtin_LINE());
void cluster_arrive(int line = __builtin_LINE());
void cluster_wait(int line = __builtin_LINE());
void mbarrier_arrive_expect_tx(Operand barrier, Operand bytes, int line = __builtin_LINE());
void mbarrier_wait_parity(Operand barrier, Operand parity, int line = __builtin_LINE());
void tma_load(Operand target, Operand map, std::initializer_list<Operand> at, Operand barrier, int line = __builtin_LINE());
void tma_load_multicast(
    Operand target, Operand map, std::initializer_list<Operand> at, Operand barrier, Operand blocks, int line = __builtin_LINE());
void tma_store(Operand map, std::initializer_list<Operand> at, Operand source, int line = __builtin_LINE());
void tma_add(Operand map, std::initializer_list<Operand> at, Operand source, int line = __builtin_LINE());
void bulk_add(Operand target, Operand source, Operand bytes, Operand kind, int line = __builtin_LINE());
void tma_commit_group();
void tma_wait_group_read(Operand pending);
void tma_wait_group(Operand pending);
unsigned poll(Operand address, int line = __builtin_LINE());
void red_add_word(Operand address, Operand number, int line = __builtin_LINE());
void setmaxnreg(Operand count, int line = __builtin_LINE());

}  // namespace ptx

// The value of another lane: whose number differs in the bits of a mask, of a number, or so many before or further on.
namespace ptx {

template <class Value>
Value shuffled(Shuffle mode, unsigned members, Value value, int number, int width, int line)
{
  Value received = value;
  shfl(mode, out(received), in(value), members, number, width, line);
  return received;
}

}  // namespace ptx

// Whether one of the lanes says so.
inline int __any_sync(unsigned members, int predicate, int line = __builtin_LINE())
{
  return ptx::vote_any(members, predicate != 0, line);
}

template <class Value>
Value __shfl_xor_sync(unsigned members, Value value, int number, int width = 32, int line = __builtin_LINE())
{
  return ptx::shuffled(ptx::Shuffle::bfly, members, value, number, width, line);
}

template <class Value>
Value __shfl_sync(unsigned members, Value value, int number, int width = 32, int line = __builtin_LINE())
{
  return ptx::shuffled(ptx::Shuffle::idx, members, value, number, width, line);
}

template <class Value>
Value __shfl_up_sync(unsigned members, Value value, int number, int width = 32, int line = __builtin_LINE())
{
  return ptx::shuffled(ptx::Shuffle::up, members, value, number, width, line);
}

template <class Value>
Value __shfl_down_sync(unsigned members, Value value, int number, int width = 32, int line = __builtin_LINE())
{
  return ptx::shuffled(ptx::Shuffle::down, members, value, number, width, line);
}

// ---------------------------------------------------------------------------------------------- warp matrix functions

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

// An element type of a fragment: as the program sees it, and what the product makes of it.
template <class Element>
struct Stored;
template <>
struct Stored<__half> { using type = __half; static constexpr Type kind = Type::f16; };
template <>
struct Stored<__nv_bfloat16> { using type = __nv_bfloat16; static constexpr Type kind = Type::bf16; };
template <>
struct Stored<precision::tf32> { using type = float; static constexpr Type kind = Type::tf32; };
template <>
struct Stored<float> { using type = float; static constexpr Type kind = Type::f32; };
template <>
struct Stored<double> { using type = double; static constexpr Type kind = Type::f64; };
template <>
struct Stored<signed char> { using type = signed char; static constexpr Type kind = Type::s8; };
template <>
struct Stored<int> { using type = int; static constexpr Type kind = Type::s32; };

template <class Use, int m, int n, int k>
struct Extent;
template <int m, int n, int k>
struct Extent<matrix_a, m, n, k> { static constexpr int rows = m, columns = k; };
template <int m, int n, int k>
struct Extent<matrix_b, m, n, k> { static constexpr int rows = k, columns = n; };
template <int m, int n, int k>
struct Extent<accumulator, m, n, k> { static constexpr int rows = m, columns = n; };

// A lane's share of a matrix; which elements those are is the library's own affair.
struct Share {
  void* values;
  Type type;
  unsigned bytes;
  int rows, columns;
};

template <class Use, int m, int n, int k, class Element, class Layout = void>
struct fragment {
  static constexpr int num_elements = Extent<Use, m, n, k>::rows * Extent<Use, m, n, k>::columns / 32;
  typename Stored<Element>::type x[num_elements];

  Share share() { return {x, Stored<Element>::kind, sizeof x[0], Extent<Use, m, n, k>::rows, Extent<Use, m, n, k>::columns}; }
};

void load(Share target, const void* matrix, unsigned leading, bool by_rows, int line);
void store(void* matrix, Share source, unsigned leading, bool by_rows, int line);
void multiply(Share d, Share a, Share b, Share c, int line);

template <class Layout>
constexpr bool by_rows = false;
template <>
inline constexpr bool by_rows<row_major> = true;

template <class Use, int m, int n, int k, class Element, class Layout>
void fill_fragment(fragment<Use, m, n, k, Element, Layout>& target, typename Stored<Element>::type value)
{
  for (auto& element : target.x)
    element = value;
}

template <class Use, int m, int n, int k, class Element, class Layout>
void load_matrix_sync(
    fragment<Use, m, n, k, Element, Layout>& target, const typename Stored<Element>::type* matrix, unsigned leading,
    int line = __builtin_LINE())
{
  load(target.share(), matrix, leading, by_rows<Layout>, line);
}

template <int m, int n, int k, class Element>
void load_matrix_sync(
    fragment<accumulator, m, n, k, Element>& target, const typename Stored<Element>::type* matrix, unsigned leading, layout_t order,
    int line = __builtin_LINE())
{
  load(target.share(), matrix, leading, order == mem_row_major, line);
}

template <int m, int n, int k, class Element>
void store_matrix_sync(
    typename Stored<Element>::type* matrix, fragment<accumulator, m, n, k, Element>& source, unsigned leading, layout_t order,
    int line = __builtin_LINE())
{
  store(matrix, source.share(), leading, order == mem_row_major, line);
}

template <class D, class A, class B, class C>
void mma_sync(D& d, A& a, B& b, C& c, int line = __builtin_LINE())
{
  multiply(d.share(), a.share(), b.share(), c.share(), line);
}

}  // namespace nvcuda::wmma

// ---------------------------------------------------------------------------------------------- launches

// A kernel with its arguments as an array of addresses.
using Kernel = void (*)(void* const* arguments);

template <int...>
struct Positions {};

template <class... Parameters, int... position>
void call(void (*kernel)(Parameters...), void* const* arguments, Positions<position...>)
{
  kernel(*static_cast<Parameters*>(arguments[position])...);
}

template <auto kernel>
struct Launch;

template <class... Parameters, void (*kernel)(Parameters...)>
struct Launch<kernel> {
  static void with(void* const* arguments) { call(kernel, arguments, Positions<__integer_pack(int(sizeof...(Parameters)))...>{}); }
};

// The kernels of this program, by the number that a launch names.
extern const Kernel kernels[];
