// The machine under cuda_on_cpu.hpp: threads as coroutines in random order, shared memory with poison, what a warp does together.
//
// Lane maps, completion and alignment are written from the PTX ISA, not from what the compiler believes about them. Whatever
// it leaves undefined ends the run with a report: lanes that do not meet, addresses outside an array, addresses that are not
// aligned. The order of threads, and when an asynchronous copy lands, are drawn from the seed.
//
// Each access of the text to memory passes through `observe`, as the address sanitizer calls a function for it: so it is known who wrote what the
// asynchronous proxy reads, and who touches registers of a product that is under way.
#include "cuda_on_cpu.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

Index threadIdx, blockIdx, blockDim, gridDim;

// The most shared memory that a block of any target has, for `extern __shared__`.
constexpr size_t most_shared = 256 << 10;
extern "C" {
__attribute__((section("shared_memory"), aligned(1024))) unsigned char smem[most_shared];
extern unsigned char __start_shared_memory[], __stop_shared_memory[];
}

namespace {

constexpr int lanes_of_warp = 32;
constexpr int threads_of_warpgroup = 128;
constexpr size_t page = 4096;
constexpr size_t report_bytes = 64 << 10;  // of a stack, for what the sanitizers have to say

std::mt19937_64 dice;

int below(int count) { return static_cast<int>(dice() % static_cast<uint64_t>(count)); }

size_t memory_of_block() { return __stop_shared_memory - __start_shared_memory; }

// ---------------------------------------------------------------------------------------------- threads

enum class Stop { none, block_barrier, warp_barrier, instruction };

struct Copy {
  void* target;
  const void* source;
  unsigned bytes, filled;
  bool landed = false;
};

struct Product;

// A number on its way to global memory, perhaps that of another GPU.
struct Late {
  char* target;
  std::array<char, 8> value;
  size_t bytes;
};

// A box of an array by TMA, from global to shared memory or back; where it is, a coordinate for each dimension.
struct Box {
  const uint64_t* map;
  std::vector<int> at;
  uint64_t shared, barrier;
  int line;
  size_t rank = 0;  // of the block in its cluster whose shared memory it is
  bool adds = false, landed = false;
};

// What happened to each word of a thread's stack, where its registers are; nothing is kept before its first wgmma.fence.
struct Registers {
  std::vector<unsigned> touched;  // between which fences
  std::vector<unsigned char> results, factors;  // of how many products under way
};

struct Thread {
  int number;
  bool ended;
  Stop stop;
  int line;            // of the text, where it waits
  const char* what;    // it waits for
  const void* gives;   // what it brings to an instruction of its warp
  std::vector<Copy> issued;
  std::deque<std::vector<Copy>> groups;
  unsigned proxy_fences;     // fence.proxy.async, and the beginnings of blocks
  uint64_t fenced_landings;  // how many deferred copies had landed at the last of them
  unsigned register_fences;  // wgmma.fence, and the beginnings of blocks
  bool fenced;               // its registers, in this block
  Registers registers;
  unsigned meeting;    // the cluster's barriers at which it arrived
  std::vector<std::shared_ptr<Product>> products;
  std::deque<std::vector<std::shared_ptr<Product>>> product_groups;
  std::vector<Box> stores;
  std::deque<std::vector<Box>> store_groups;
  std::vector<Late> late;  // stores that have read shared memory
  void* const* arguments;

  char* stack;
  ucontext_t start;
  void* resume[5];     // as __builtin_setjmp fills it
  bool started;
  void* frames;        // of the address sanitizer
};

struct Group {
  std::vector<Thread*> members, ready;
  int waiting = 0;
};

std::vector<Thread> threads;
std::vector<Group> warps, warpgroups;
Group block;
std::map<int, Group> named;  // barriers by number, each with the threads that have come
std::vector<Box> loads;      // under way

// PTX ISA, "cp.async.mbarrier.arrive": an arrival of a thread that happens when all of its copies before it have landed.
struct DeferredArrival {
  Thread* thread;
  std::vector<Copy> copies;
  uint64_t barrier;
  int line;
  size_t rank;
};
std::vector<DeferredArrival> arrivals;  // under way
uint64_t landings = 0;                  // of copies before deferred arrivals

// PTX ISA, "mbarrier": a phase is over when all arrivals and all announced bytes are there. Whoever waits names the parity of a phase,
// and passes if that of the current one is the other.
struct PhasedBarrier {
  uint64_t arrivals, left;
  int64_t bytes = 0;
  unsigned phase = 0;
  bool visible = false;  // to the asynchronous proxy
  std::vector<Thread*> waiting;
};

// A block of the running cluster that is not the one at work: all that the variables of this file say of that one.
struct Suspended {
  std::vector<Thread> threads;
  std::vector<Group> warps, warpgroups;
  Group block;
  std::map<int, Group> named;
  std::map<uint64_t, PhasedBarrier> barriers;
  std::vector<unsigned char> memory;
  std::vector<unsigned> writers;
  std::vector<uint64_t> deferred;
};
std::vector<std::unique_ptr<Suspended>> cluster;  // by rank
std::map<uint64_t, PhasedBarrier> barriers;        // by address
std::vector<unsigned> writers;                    // of each byte of shared memory: the thread and its fence (see `written`)
std::vector<uint64_t> deferred;                   // of each byte the number of the deferred copy that wrote it last; 0 of others
size_t at_work = 0;                               // the rank of the block that is
unsigned first_of_cluster = 0;
void work_at(size_t rank);

// Launches on several GPUs whose blocks run at once: `arguments` are those of each launch and GPU. A GPU begins its next launch when its
// blocks have ended, whatever the others do.
struct Node {
  size_t gpus = 1, launches = 1;
  std::vector<size_t> done, running;  // of each GPU: launches that are over, and threads that have not ended
} node;
size_t blocks_of_gpu() { return cluster.size() / node.gpus; }
constexpr unsigned most_polls = 1 << 17;  // in a row, without anything else
unsigned polls = 0;
bool polled = false;
void begin_on_gpu(size_t gpu, size_t shared_bytes);
void land_late(Thread& thread);

// The barrier of all threads of the cluster.
size_t met = 0;
unsigned meetings = 0;
std::vector<std::pair<size_t, Thread*>> waiting_for_cluster;
void land_something();
void forget_barriers();
Thread* current;
size_t frame_bytes;  // of a stack, that the kernel takes at most and that are poisoned
size_t stack_bytes;
void (*current_kernel)(void* const*);
std::vector<std::vector<void*>> all_arguments;  // by launch, then by GPU

void* scheduler[5];
void* scheduler_frames;
const void* scheduler_stack;
size_t scheduler_stack_bytes;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...)
{
  va_list values;
  va_start(values, format);
  std::fputs("cuda_on_cpu: ", stderr);
  std::vfprintf(stderr, format, values);
  if (current)
    std::fprintf(stderr, " (block %u, thread %d)", blockIdx.x, current->number);
  std::fputc('\n', stderr);
  va_end(values);
  std::_Exit(1);
}

// A jump stands in a function of its own: __builtin_longjmp may not leave the function that called __builtin_setjmp.
[[noreturn]] __attribute__((noinline)) void jump(void** place) { __builtin_longjmp(place, 1); }

__attribute__((noinline)) void enter(Thread& thread)
{
  if (thread.started)
    jump(thread.resume);
  thread.started = true;
  ucontext_t here;
  swapcontext(&here, &thread.start);
}

__attribute__((noinline)) void run(Thread& thread)
{
  current = &thread;
  threadIdx = {static_cast<unsigned>(thread.number), 0, 0};
  __sanitizer_start_switch_fiber(&scheduler_frames, thread.stack + page, stack_bytes);
  if (!__builtin_setjmp(scheduler))
    enter(thread);
  __sanitizer_finish_switch_fiber(scheduler_frames, nullptr, nullptr);
  current = nullptr;
}

__attribute__((noinline)) void leave(Thread& thread)
{
  __sanitizer_start_switch_fiber(thread.ended ? nullptr : &thread.frames, scheduler_stack, scheduler_stack_bytes);
  if (thread.ended)
    jump(scheduler);
  if (!__builtin_setjmp(thread.resume))
    jump(scheduler);
  __sanitizer_finish_switch_fiber(current->frames, nullptr, nullptr);
}

void body()
{
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  current_kernel(current->arguments);
  land_late(*current);
  current->ended = true;
  leave(*current);
}

Group& warp_of(const Thread& thread) { return warps[thread.number / lanes_of_warp]; }

void release(Group& group)
{
  group.waiting = 0;
  for (Thread* member : group.members) {
    member->stop = Stop::none;
    warp_of(*member).ready.push_back(member);
  }
}

void require_same_place(const Group& group, const char* whose)
{
  const Thread& first = *group.members[0];
  for (const Thread* member : group.members)
    if (member->stop != first.stop || member->line != first.line || std::strcmp(member->what, first.what))
      fail("threads of one %s part: thread %d is at %s in line %d, thread %d at %s in line %d", whose, first.number,
           first.what, first.line, member->number, member->what, member->line);
}

// The thread waits until its whole group is there; the last one to come performs what they do together.
template <class Perform>
void meet(Group& group, const char* whose, Stop stop, const char* what, int line, const void* gives, Perform perform)
{
  current->stop = stop;
  current->what = what;
  current->line = line;
  current->gives = gives;
  if (++group.waiting == static_cast<int>(group.members.size())) {
    require_same_place(group, whose);
    perform(group);
    release(group);
  }
  leave(*current);
}

template <int count, class Given, class Perform>
void together_in(Group& unit, const char* whose, const char* what, int line, const Given& given, Perform perform)
{
  if (unit.members.size() != count)
    fail("%s in line %d: a %s of %zu threads", what, line, whose, unit.members.size());
  meet(unit, whose, Stop::instruction, what, line, &given, [&](Group& group) {
    const Given* lanes[count];
    for (int lane = 0; lane < count; ++lane)
      lanes[lane] = static_cast<const Given*>(group.members[lane]->gives);
    perform(lanes);
  });
}

template <class Given, class Perform>
void together(const char* what, int line, const Given& given, Perform perform)
{
  together_in<lanes_of_warp>(warp_of(*current), "warp", what, line, given, perform);
}

// Some threads are kept back for long: the next one is mostly of the warp that ran last.
Thread* next()
{
  static size_t favourite = 0;
  if (favourite >= warps.size() || warps[favourite].ready.empty() || below(64) == 0) {
    std::vector<size_t> able;
    for (size_t warp = 0; warp < warps.size(); ++warp)
      if (!warps[warp].ready.empty())
        able.push_back(warp);
    if (able.empty())
      return nullptr;
    favourite = able[below(static_cast<int>(able.size()))];
  }
  std::vector<Thread*>& ready = warps[favourite].ready;
  std::swap(ready[below(static_cast<int>(ready.size()))], ready.back());
  Thread* thread = ready.back();
  ready.pop_back();
  return thread;
}

void require_all_ended()
{
  for (const Thread& thread : threads)
    if (!thread.ended)
      fail("deadlock: thread %d of block %u waits for ever at %s in line %d", thread.number, blockIdx.x, thread.what,
           thread.line);
    else if (!thread.products.empty() || !thread.product_groups.empty())
      fail("thread %d of block %u ends while products are under way", thread.number, blockIdx.x);
    else if (!thread.stores.empty() || !thread.store_groups.empty())
      fail("thread %d of block %u ends while stores read its shared memory", thread.number, blockIdx.x);
}

// Fresh memory is no number in any float type, and large in 32-bit integers: 0x7ff9 repeated.
void poison(void* start, size_t bytes)
{
  constexpr uint64_t pattern = 0x7ff97ff97ff97ff9;
  for (size_t place = 0; place + sizeof pattern <= bytes; place += sizeof pattern)
    std::memcpy(static_cast<char*>(start) + place, &pattern, sizeof pattern);
}

void begin(Thread& thread)
{
  poison(thread.stack + page + stack_bytes - frame_bytes, frame_bytes);
  thread.ended = thread.started = false;
  thread.stop = Stop::none;
  thread.issued.clear();
  thread.groups.clear();
  ++thread.proxy_fences;
  ++thread.register_fences;
  thread.fenced = false;
  thread.meeting = 0;
  thread.products.clear();
  thread.product_groups.clear();
  thread.stores.clear();
  thread.store_groups.clear();
  thread.late.clear();
  const size_t gpu = at_work / blocks_of_gpu();
  thread.arguments = all_arguments[node.done[gpu] * node.gpus + gpu].data();
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = thread.stack + page;
  thread.start.uc_stack.ss_size = stack_bytes;
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, body, 0);
  warp_of(thread).ready.push_back(&thread);
}

void begin_block(size_t shared_bytes)
{
  poison(__start_shared_memory, smem - __start_shared_memory);
  poison(smem, shared_bytes + 7);
  poison(smem + most_shared, __stop_shared_memory - smem - most_shared);
  for (Thread& thread : threads)
    begin(thread);
  forget_barriers();
}

// The next thread: mostly of the block at work, as it takes long to go to another.
Thread* next_of_cluster()
{
  if (cluster.size() > 1 && below(polled ? 32 : 256) == 0)
    work_at(below(static_cast<int>(cluster.size())));
  for (size_t tried = 0; tried < cluster.size(); ++tried) {
    if (Thread* thread = next())
      return thread;
    work_at((at_work + 1) % cluster.size());
  }
  return nullptr;
}

// All blocks of a GPU, of which a cluster is a part only if there is one GPU.
void begin_on_gpu(size_t gpu, size_t shared_bytes)
{
  for (size_t rank = gpu * blocks_of_gpu(); rank < (gpu + 1) * blocks_of_gpu(); ++rank) {
    work_at(rank);
    begin_block(shared_bytes);
  }
  node.running[gpu] = blocks_of_gpu() * threads.size();
}

// The threads of a GPU have ended: its loads land, and its next launch begins.
void end_on_gpu(size_t gpu, size_t shared_bytes)
{
  for (size_t rank = gpu * blocks_of_gpu(); rank < (gpu + 1) * blocks_of_gpu(); ++rank) {
    while (std::any_of(loads.begin(), loads.end(), [rank](const Box& box) { return box.rank == rank; }))
      land_something();
    work_at(rank);
    require_all_ended();
  }
  if (++node.done[gpu] < node.launches)
    begin_on_gpu(gpu, shared_bytes);
}

// The blocks of a cluster, one that has none, or those of all GPUs, from a number on.
void run_blocks(unsigned number, size_t shared_bytes)
{
  first_of_cluster = number;
  met = meetings = 0;
  waiting_for_cluster.clear();
  node.done.assign(node.gpus, 0);
  node.running.assign(node.gpus, 0);
  for (size_t gpu = 0; gpu < node.gpus; ++gpu)
    begin_on_gpu(gpu, shared_bytes);
  const int patience = below(2) ? 8 : 4096;  // loads land early, or hardly before all wait for them
  for (;;) {
    if (!(loads.empty() && arrivals.empty()) && below(patience) == 0)
      land_something();
    if (Thread* thread = next_of_cluster()) {
      const size_t gpu = at_work / blocks_of_gpu();
      polled = false;
      run(*thread);
      polls = polled ? polls + 1 : 0;
      if (polls > most_polls)
        fail("deadlock: thread %d of block %u of GPU %zu waits for ever at %s in line %d", thread->number, blockIdx.x, gpu, thread->what,
             thread->line);
      if (thread->ended && --node.running[gpu] == 0 && node.gpus > 1)
        end_on_gpu(gpu, shared_bytes);
    } else if (loads.empty() && arrivals.empty())
      break;
    else
      land_something();
  }
  for (size_t rank = 0; rank < cluster.size(); ++rank) {
    work_at(rank);
    require_all_ended();
  }
}

void prepare(int count)
{
  writers.resize(memory_of_block());
  deferred.resize(memory_of_block());
  threads.resize(count);
  warps.resize((count + lanes_of_warp - 1) / lanes_of_warp);
  warpgroups.resize((count + threads_of_warpgroup - 1) / threads_of_warpgroup);
  for (int number = 0; number < count; ++number) {
    Thread& thread = threads[number];
    thread.number = number;
    void* const stack = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE))
      fail("no memory for the stacks of %d threads", count);
    thread.stack = static_cast<char*>(stack);
    warp_of(thread).members.push_back(&thread);
    warpgroups[number / threads_of_warpgroup].members.push_back(&thread);
    block.members.push_back(&thread);
  }
}

// ---------------------------------------------------------------------------------------------- memory

// All shared memory of a block, with what lies between arrays: by words, as the sanitizers look at calls of memcpy.
void copy_memory(unsigned char* target, const unsigned char* source)
{
  for (size_t place = 0; place + 8 <= memory_of_block(); place += 8)
    *reinterpret_cast<volatile uint64_t*>(target + place) = *reinterpret_cast<const volatile uint64_t*>(source + place);
}

void* shared(uint64_t address) { return __start_shared_memory + address; }

bool dynamic;  // whether the launch has sized `smem`, and arrays lie there

const unsigned char* known = __start_shared_memory;  // where a static array of the launch lies: those of its kernel lie close together

// The place of an address of which a descriptor keeps 18 bits: in the launch's own arrays, which are no larger than that. On both sides of
// its static ones lie those of the program's other kernels.
unsigned char* shared_of_18_bits(uint64_t address)
{
  constexpr uint64_t window = uint64_t{1} << 18;
  const uint64_t base = dynamic ? smem - __start_shared_memory : known - __start_shared_memory - window / 2;
  return __start_shared_memory + static_cast<int64_t>(base + ((address - base) & (window - 1)));
}

void require(const char* what, int line, const void* place, size_t bytes, size_t aligned)
{
  if (reinterpret_cast<uintptr_t>(place) % aligned)
    fail("%s in line %d: misaligned address %p, not a multiple of %zu bytes", what, line, place, aligned);
  if (__asan_region_is_poisoned(const_cast<void*>(place), bytes))
    fail("%s in line %d: %zu bytes at %p lie outside the array", what, line, bytes, place);
}

// ---------------------------------------------------------------------------------------------- who touches what

// PTX ISA, "Async proxy": what a thread wrote to shared memory is seen by TMA and by products after the thread's own fence.proxy.async.
// A byte that it wrote bears its number and how many fences it had passed.
constexpr unsigned most_fences = 1 << 20;

unsigned mark_of(const Thread& thread) { return static_cast<unsigned>(thread.number + 1) * most_fences + thread.proxy_fences % most_fences; }

bool is_shared(const void* place) { return place >= __start_shared_memory && place < __stop_shared_memory; }

void written(const Thread& thread, const void* place, size_t bytes)
{
  const size_t first = static_cast<const unsigned char*>(place) - __start_shared_memory;
  std::fill_n(writers.begin() + first, bytes, mark_of(thread));
  std::fill_n(deferred.begin() + first, bytes, 0);
}

void written_by_engine(const void* place, size_t bytes)
{
  const size_t first = static_cast<const unsigned char*>(place) - __start_shared_memory;
  std::fill_n(writers.begin() + first, bytes, 0);
  std::fill_n(deferred.begin() + first, bytes, 0);
}

// No thread that copies fences what lands behind all that it executes: one that waited for the arrival does, on the way to the engine.
void written_later(const void* place, size_t bytes)
{
  written_by_engine(place, bytes);
  std::fill_n(deferred.begin() + (static_cast<const unsigned char*>(place) - __start_shared_memory), bytes, ++landings);
}

void require_fenced(const char* what, int line, const void* place)
{
  const size_t byte = static_cast<const unsigned char*>(place) - __start_shared_memory;
  if (byte < deferred.size() && current && deferred[byte] > current->fenced_landings)
    fail("%s in line %d: copies wrote shared memory that it touches, with no fence.proxy.async of thread %d behind them", what, line,
         current->number);
  if (byte >= writers.size() || writers[byte] == 0)
    return;
  const Thread& writer = threads[writers[byte] / most_fences - 1];
  if (writers[byte] == mark_of(writer))
    fail("%s in line %d: thread %d wrote shared memory that it touches, with no fence.proxy.async behind it", what, line, writer.number);
}

// The words of a thread's stack from an address on, or none.
size_t word_of(const Thread& thread, const void* place)
{
  const uintptr_t start = reinterpret_cast<uintptr_t>(thread.stack) + page, address = reinterpret_cast<uintptr_t>(place);
  return address >= start && address < start + stack_bytes ? (address - start) / 4 : SIZE_MAX;
}

// The line of the text from which a call came.
int line_at(const void* caller)
{
  char text[64] = "0";
  __sanitizer_symbolize_pc(const_cast<void*>(caller), "%l", text, sizeof text);
  return std::atoi(text);
}

// PTX ISA, "wgmma.mma_async" and "wgmma.fence": nobody touches the result of a product that is under way, or writes its factor.
void touch(Thread& thread, const void* place, size_t bytes, bool writes, const void* caller)
{
  const size_t first = thread.registers.touched.empty() ? SIZE_MAX : word_of(thread, place);
  if (first == SIZE_MAX)
    return;
  for (size_t word = first; word < first + (bytes + 3) / 4 && word < thread.registers.touched.size(); ++word) {
    if (thread.registers.results[word] || (writes && thread.registers.factors[word]))
      fail("in line %d: a register of a product under way is touched", line_at(caller));
    thread.registers.touched[word] = thread.register_fences;
  }
}

void require_fenced_registers(Thread& thread, ptx::Operands registers, int line)
{
  for (const ptx::Operand& one : registers) {
    const size_t word = word_of(thread, one.place);
    if (word != SIZE_MAX && thread.registers.touched[word] == thread.register_fences)
      fail("wgmma in line %d: a register was touched, with no wgmma.fence behind it", line);
  }
}

// One more or one less product under way that has these registers.
void count(Thread& thread, std::vector<unsigned char> Registers::* products, const std::vector<void*>& places, int change)
{
  for (const void* place : places)
    if (const size_t word = word_of(thread, place); word != SIZE_MAX)
      (thread.registers.*products)[word] += change;
}

// Registers that an instruction of PTX writes.
void touch(ptx::Operands registers)
{
  for (const ptx::Operand& one : registers)
    touch(*current, one.place, one.bytes, true, __builtin_return_address(0));
}

void observe(const char* function, uintptr_t address, size_t bytes, bool writes, bool counted, const void* caller)
{
  const auto place = reinterpret_cast<void*>(address);
  if (__asan_region_is_poisoned(place, bytes)) {
    void* const report = dlsym(RTLD_NEXT, function);
    counted ? reinterpret_cast<void (*)(uintptr_t, size_t)>(report)(address, bytes) : reinterpret_cast<void (*)(uintptr_t)>(report)(address);
  }
  if (!current)
    return;
  if (!is_shared(place))
    touch(*current, place, bytes, writes, caller);
  else if (writes)
    written(*current, place, bytes);
}

void bring(const Copy& copy)
{
  std::memcpy(copy.target, copy.source, copy.filled);
  std::memset(static_cast<char*>(copy.target) + copy.filled, 0, copy.bytes - copy.filled);
}

void land(const Copy& copy)
{
  written(*current, copy.target, copy.bytes);
  bring(copy);
}

// ---------------------------------------------------------------------------------------------- numbers

struct Format {
  int bits, exponent, mantissa;
};

Format format_of(Type type)
{
  switch (type) {
    case Type::s8: return {8, 0, 0};
    case Type::s32: return {32, 0, 0};
    case Type::e4m3: return {8, 4, 3};
    case Type::e5m2: return {8, 5, 2};
    case Type::f16: return {16, 5, 10};
    case Type::bf16: return {16, 8, 7};
    case Type::tf32:
    case Type::f32: return {32, 8, 23};
    case Type::f64: return {64, 11, 52};
  }
  std::abort();
}

double number(uint64_t bits, Type type)
{
  switch (type) {
    case Type::s8: return static_cast<int8_t>(bits);
    case Type::s32: return static_cast<int32_t>(bits);
    case Type::f32: return __builtin_bit_cast(float, static_cast<uint32_t>(bits));
    // PTX ISA, "Alternate floating-point data formats": tf32 are the upper 19 bits of a float
    case Type::tf32: return __builtin_bit_cast(float, static_cast<uint32_t>(bits) & 0xffffe000u);
    case Type::f64: return __builtin_bit_cast(double, bits);
    default: return decoded(static_cast<unsigned>(bits), type);
  }
}

uint64_t bits_of(double value, Type type)
{
  switch (type) {
    case Type::s8: return static_cast<uint8_t>(static_cast<int64_t>(value));
    case Type::s32: return static_cast<uint32_t>(static_cast<int64_t>(value));
    case Type::tf32:
    case Type::f32: return __builtin_bit_cast(uint32_t, static_cast<float>(value));
    case Type::f64: return __builtin_bit_cast(uint64_t, value);
    default: return encoded(value, type);
  }
}

}  // namespace

// What the address sanitizer calls for each access; it reports those that are wrong.
extern "C" {
#define ACCESS(name, bytes, writes)                                                                                    \
  __attribute__((weak)) void name(uintptr_t place) { observe(#name, place, bytes, writes, false, __builtin_return_address(0)); }
#define ACCESSES(bytes) ACCESS(__asan_load##bytes, bytes, false) ACCESS(__asan_store##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
__attribute__((weak)) void __asan_loadN(uintptr_t place, size_t bytes)
{
  observe("__asan_loadN", place, bytes, false, true, __builtin_return_address(0));
}
__attribute__((weak)) void __asan_storeN(uintptr_t place, size_t bytes)
{
  observe("__asan_storeN", place, bytes, true, true, __builtin_return_address(0));
}
}

unsigned encoded(double value, Type type) { return encoded(value, 0, type); }

unsigned encoded(double value, double rest, Type type)
{
  const Format format = format_of(type);
  const int bias = (1 << (format.exponent - 1)) - 1;
  const unsigned sign = std::signbit(value) ? 1u << (format.bits - 1) : 0;
  const unsigned infinity = ((1u << format.exponent) - 1) << format.mantissa;
  const bool small = format.bits == 8;  // their constructors take the largest number for what lies beyond
  const unsigned largest = type == Type::e4m3 ? 0x7e : infinity - 1;
  if (std::isnan(value))
    return type == Type::e4m3 ? 0x7f : sign | infinity | 1u << (format.mantissa - 1);
  int exponent = 0;
  const double size = std::fabs(value);
  std::frexp(size, &exponent);
  exponent = size == 0 ? 1 - bias : std::max(exponent - 1, 1 - bias);
  if (std::isinf(size) || exponent > bias + 1)
    return sign | (small ? largest : infinity);
  const double scaled = std::ldexp(size, format.mantissa - exponent), below = std::floor(scaled);
  const bool grows = (rest > 0) == (value > 0);
  const double steps = scaled - below == 0.5 && rest != 0 ? below + grows : std::nearbyint(scaled);
  const unsigned bits = (static_cast<unsigned>(exponent + bias - 1) << format.mantissa) + static_cast<unsigned>(steps);
  return sign | (bits > largest ? (small ? largest : infinity) : bits);
}

double decoded(unsigned bits, Type type)
{
  const Format format = format_of(type);
  const int bias = (1 << (format.exponent - 1)) - 1;
  const unsigned rest = bits & ((1u << (format.bits - 1)) - 1);
  const unsigned exponent = rest >> format.mantissa, mantissa = rest & ((1u << format.mantissa) - 1);
  const double sign = bits >> (format.bits - 1) & 1 ? -1 : 1;
  const bool last = exponent == (1u << format.exponent) - 1;
  if (type == Type::e4m3 ? rest == 0x7f : last && mantissa)
    return std::nan("");
  if (last && type != Type::e4m3)
    return sign * HUGE_VAL;
  if (exponent == 0)
    return sign * std::ldexp(mantissa, 1 - bias - format.mantissa);
  return sign * std::ldexp(mantissa + (1u << format.mantissa), static_cast<int>(exponent) - bias - format.mantissa);
}

// ---------------------------------------------------------------------------------------------- barriers, addresses

void __syncthreads(int line)
{
  meet(block, "block", Stop::block_barrier, "__syncthreads", line, nullptr, [](Group&) {});
}

// Whether one of the threads says so. All of them have read the result before the next vote ends.
int __syncthreads_or(int predicate, int line)
{
  static int votes = 0, result = 0;
  votes |= predicate != 0;
  meet(block, "block", Stop::block_barrier, "__syncthreads_or", line, nullptr, [](Group&) {
    result = votes;
    votes = 0;
  });
  return result;
}

void __syncwarp(unsigned mask, int line)
{
  if (mask != 0xffffffffu)
    fail("__syncwarp in line %d: only whole warps are known here, mask %x", line, mask);
  meet(warp_of(*current), "warp", Stop::warp_barrier, "__syncwarp", line, nullptr, [](Group&) {});
}

size_t __cvta_generic_to_shared(const void* pointer)
{
  const auto* place = static_cast<const unsigned char*>(pointer);
  if (place < __start_shared_memory || place >= __stop_shared_memory)
    fail("__cvta_generic_to_shared: %p lies outside shared memory", pointer);
  if (place < smem || place >= smem + most_shared)
    known = place;
  return place - __start_shared_memory;
}

// ---------------------------------------------------------------------------------------------- inline PTX

namespace ptx {

namespace {

// A matrix in row-major order.
struct Matrix {
  int rows, columns;
  std::vector<double> elements;

  Matrix(int rows, int columns)
      : rows(rows), columns(columns), elements(static_cast<size_t>(rows) * columns, std::nan(""))
  {
  }
  double& at(int row, int column) { return elements.at(static_cast<size_t>(row) * columns + column); }
};

void multiply(Matrix& c, Matrix& a, Matrix& b)
{
  for (int row = 0; row < c.rows; ++row)
    for (int column = 0; column < c.columns; ++column)
      for (int k = 0; k < a.columns; ++k)
        c.at(row, column) += a.at(row, k) * b.at(k, column);
}

struct Place {
  int row, column;
};

// PTX ISA, "Matrix fragments for mma.m8n8k4 with .f16 floating point type": eight lanes, `high` says whether the upper four
bool by_quad_pairs(const Form& form) { return form.m == 8 && form.n == 8 && form.k == 4 && form.a == Type::f16; }

Place quad_pair_a(const Form& form, int low, int high, int i)
{
  return form.a_by_rows ? Place{low + 4 * high, i} : Place{i % 4 + 4 * high, low};
}

Place quad_pair_b(const Form& form, int low, int high, int i)
{
  return form.b_by_rows ? Place{low, i + 4 * high} : Place{i, low + 4 * high};
}

Place quad_pair_c(Type type, int low, int high, int i)
{
  if (type == Type::f16)
    return {low + 4 * high, i};
  return {(low & 1) + (i & 2) + 4 * high, (i & 4) + (low & 2) + (i & 1)};
}

// PTX ISA, "Matrix fragments for mma.m16n8k8", "... m16n8k16", "... m8n8k16", "... m16n8k32", and those with .f64 and .tf32
Place fragment_a(const Form& form, int group, int member, int i)
{
  switch (format_of(form.a).bits) {
    case 8: return {group + (i & 4 ? 8 : 0), member * 4 + (i & 3) + (i & 8 ? 16 : 0)};
    case 16: return {group + (i & 2 ? 8 : 0), member * 2 + (i & 1) + (i & 4 ? 8 : 0)};
    default: return form.m == 8 ? Place{group, member} : Place{group + (i & 1 ? 8 : 0), member + i / 2 * 4};
  }
}

Place fragment_b(const Form& form, int group, int member, int i)
{
  switch (format_of(form.b).bits) {
    case 8: return {member * 4 + (i & 3) + i / 4 * 16, group};
    case 16: return {member * 2 + (i & 1) + i / 2 * 8, group};
    default: return {member + i * 4, group};
  }
}

Place fragment_c(int group, int member, int i) { return {group + (i & 2 ? 8 : 0), member * 2 + (i & 1)}; }

enum class Role { a, b, c, d };

Place place_of(const Form& form, Role role, int lane, int i)
{
  if (by_quad_pairs(form)) {
    const int low = lane % 4, high = lane / 16;
    if (role == Role::a)
      return quad_pair_a(form, low, high, i);
    if (role == Role::b)
      return quad_pair_b(form, low, high, i);
    return quad_pair_c(role == Role::c ? form.c : form.d, low, high, i);
  }
  const int group = lane / 4, member = lane % 4;
  if (role == Role::a)
    return fragment_a(form, group, member, i);
  return role == Role::b ? fragment_b(form, group, member, i) : fragment_c(group, member, i);
}

struct Mma {
  const Form& form;
  Operands d, a, b, c;
};

// The elements that a lane's registers hold, small ones packed from the lowest bits on.
void gather(Matrix& matrix, const Form& form, Role role, Type type, int lane, Operands registers)
{
  const int bits = format_of(type).bits;
  int i = 0;
  for (const Operand& one : registers)
    for (int shift = 0; shift < static_cast<int>(one.bytes) * 8; shift += bits, ++i) {
      const Place place = place_of(form, role, lane, i);
      matrix.at(place.row, place.column) = number(one.bits >> shift, type);
    }
}

void scatter(Matrix& matrix, const Form& form, int lane, Operands registers)
{
  const int bits = format_of(form.d).bits;
  int i = 0;
  for (const Operand& one : registers) {
    uint64_t word = 0;
    for (int shift = 0; shift < static_cast<int>(one.bytes) * 8; shift += bits, ++i) {
      const Place place = place_of(form, Role::d, lane, i);
      word |= bits_of(matrix.at(place.row, place.column), form.d) << shift;
    }
    std::memcpy(one.place, &word, one.bytes);
  }
}

void require_count(const Form& form, Operands registers, Type type, int elements, int lanes, int line)
{
  size_t bits = 0;
  for (const Operand& one : registers)
    bits += one.bytes * 8;
  if (bits * lanes != static_cast<size_t>(elements) * format_of(type).bits)
    fail("mma.m%dn%dk%d in line %d: %zu registers for a matrix of %d elements", form.m, form.n, form.k, line,
         registers.size(), elements);
}

void multiply(const Mma* const* lanes, const std::vector<int>& team)
{
  const Form& form = lanes[0]->form;
  Matrix a(form.m, form.k), b(form.k, form.n), c(form.m, form.n);
  for (int lane : team) {
    gather(a, form, Role::a, form.a, lane, lanes[lane]->a);
    gather(b, form, Role::b, form.b, lane, lanes[lane]->b);
    gather(c, form, Role::c, form.c, lane, lanes[lane]->c);
  }
  multiply(c, a, b);
  for (int lane : team)
    scatter(c, form, lane, lanes[lane]->d);
}

// PTX ISA, "Matrix fragments for sparse mma.m16n8k32 with .f16 and .bf16 types", "... mma.m16n8k64 with .u8, .s8, .e4m3, .e5m2 types":
// the four bits with the places of the two kept elements of four, from column 4 * `group` of a row.
int bits_of_group(const Form& form, const std::vector<uint32_t>& words, int selector, int row, int group)
{
  if (format_of(form.a).bits == 8)
    return words[row % 8 * 4 + row / 8 + group / 8 * 2] >> group % 8 * 4 & 15;
  return words[row % 8 * 4 + 2 * selector + group / 4] >> (row / 8 * 16 + group % 4 * 4) & 15;
}

void multiply_sparse(Matrix& c, Matrix& kept, Matrix& b, const Form& form, const std::vector<uint32_t>& words, int selector, int line)
{
  for (int row = 0; row < form.m; ++row)
    for (int group = 0; group < form.k / 4; ++group) {
      const int places = bits_of_group(form, words, selector, row, group), first = places & 3, second = places >> 2;
      if (first >= second)
        fail("mma.sp in line %d: the places of row %d, columns %d to %d are %d and %d", line, row, group * 4, group * 4 + 3, first, second);
      for (int column = 0; column < form.n; ++column) {
        c.at(row, column) += kept.at(row, group * 2) * b.at(group * 4 + first, column);
        c.at(row, column) += kept.at(row, group * 2 + 1) * b.at(group * 4 + second, column);
      }
    }
}

std::vector<std::vector<int>> teams(const Form& form)
{
  std::vector<std::vector<int>> found(by_quad_pairs(form) ? 4 : 1);
  for (int lane = 0; lane < lanes_of_warp; ++lane)
    found[by_quad_pairs(form) ? lane % 16 / 4 : 0].push_back(lane);
  return found;
}

// Rows of 8 x 8 matrices of 16-bit elements (PTX ISA, "Warp-level matrix load instruction: ldmatrix").
struct Matrices {
  Operands registers;
  const unsigned short* row;  // that this lane addresses
  const Thread* thread;
};

int count(Operands registers) { return static_cast<int>(registers.size()); }

void require_rows(const char* what, const Matrices* const* lanes, int line)
{
  for (int lane = 0; lane < 8 * count(lanes[0]->registers); ++lane)
    require(what, line, lanes[lane]->row, 16, 16);
}

// The row and column, in its matrix, of half `side` of a lane's register.
Place in_matrix(bool transposed, int lane, int side)
{
  const Place place = {lane / 4, lane % 4 * 2 + side};
  return transposed ? Place{place.column, place.row} : place;
}

}  // namespace

void mma(const Form& form, Operands d, Operands a, Operands b, Operands c, int line)
{
  touch(d);
  const int lanes = by_quad_pairs(form) ? 8 : lanes_of_warp;
  require_count(form, a, form.a, form.m * form.k, lanes, line);
  require_count(form, b, form.b, form.k * form.n, lanes, line);
  require_count(form, c, form.c, form.m * form.n, lanes, line);
  require_count(form, d, form.d, form.m * form.n, lanes, line);
  together("mma", line, Mma{form, d, a, b, c}, [&](const Mma* const* given) {
    for (const std::vector<int>& team : teams(form))
      multiply(given, team);
  });
}

void mma_sp(const Form& form, Operands d, Operands a, Operands b, Operands c, Operand e, Operand selector, int line)
{
  touch(d);
  require_count(form, a, form.a, form.m * form.k / 2, lanes_of_warp, line);
  require_count(form, b, form.b, form.k * form.n, lanes_of_warp, line);
  require_count(form, c, form.c, form.m * form.n, lanes_of_warp, line);
  require_count(form, d, form.d, form.m * form.n, lanes_of_warp, line);
  if (selector.bits > (format_of(form.a).bits == 8 ? 0 : 1))
    fail("mma.sp in line %d: the sparsity selector is %d", line, static_cast<int>(selector.bits));
  struct Given {
    Mma dense;
    Operand e;
  };
  together("mma.sp", line, Given{{form, d, a, b, c}, e}, [&](const Given* const* given) {
    Matrix kept(form.m, form.k / 2), right(form.k, form.n), sums(form.m, form.n);
    std::vector<uint32_t> words;
    for (int lane = 0; lane < lanes_of_warp; ++lane) {
      gather(kept, form, Role::a, form.a, lane, given[lane]->dense.a);
      gather(right, form, Role::b, form.b, lane, given[lane]->dense.b);
      gather(sums, form, Role::c, form.c, lane, given[lane]->dense.c);
      words.push_back(static_cast<uint32_t>(given[lane]->e.bits));
    }
    multiply_sparse(sums, kept, right, form, words, static_cast<int>(selector.bits), line);
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      scatter(sums, form, lane, given[lane]->dense.d);
  });
}

void ldmatrix(bool transposed, Operands d, Operand address, int line)
{
  touch(d);
  const Matrices given = {d, static_cast<const unsigned short*>(shared(address.bits)), current};
  together("ldmatrix", line, given, [&](const Matrices* const* lanes) {
    require_rows("ldmatrix", lanes, line);
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      for (int matrix = 0; matrix < count(d); ++matrix) {
        unsigned short halves[2];
        for (int side = 0; side < 2; ++side) {
          const Place place = in_matrix(transposed, lane, side);
          halves[side] = lanes[matrix * 8 + place.row]->row[place.column];
        }
        std::memcpy(lanes[lane]->registers.begin()[matrix].place, halves, sizeof halves);
      }
  });
}

void stmatrix(bool transposed, Operand address, Operands values, int line)
{
  const Matrices given = {values, static_cast<const unsigned short*>(shared(address.bits)), current};
  together("stmatrix", line, given, [&](const Matrices* const* lanes) {
    require_rows("stmatrix", lanes, line);
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      for (int matrix = 0; matrix < count(values); ++matrix)
        for (int side = 0; side < 2; ++side) {
          const Place place = in_matrix(transposed, lane, side);
          auto* const row = const_cast<unsigned short*>(lanes[matrix * 8 + place.row]->row);
          row[place.column] = static_cast<unsigned short>(lanes[lane]->registers.begin()[matrix].bits >> (16 * side));
          written(*lanes[lane]->thread, row + place.column, sizeof *row);
        }
  });
}

// PTX ISA, "Warp-level matrix transpose instruction: movmatrix": the matrix transposed, both held by rows.
void movmatrix(Operand d, Operand a, int line)
{
  touch({d});
  struct Given {
    void* target;
    uint64_t pair;
  };
  together("movmatrix", line, Given{d.place, a.bits}, [](const Given* const* lanes) {
    for (int lane = 0; lane < lanes_of_warp; ++lane) {
      unsigned short halves[2];
      for (int side = 0; side < 2; ++side) {
        const int row = lane % 4 * 2 + side, column = lane / 4;
        halves[side] = static_cast<unsigned short>(lanes[row * 4 + column / 2]->pair >> (16 * (column % 2)));
      }
      std::memcpy(lanes[lane]->target, halves, sizeof halves);
    }
  });
}

// PTX ISA, "Data Movement and Conversion Instructions: shfl.sync", of all 32 lanes: the lane from which each receives, in groups of `width`.
int shfl_source(Shuffle mode, int lane, int number, int width)
{
  const int first = lane / width * width, last = first + width - 1;
  switch (mode) {
    case Shuffle::bfly: return (lane ^ number) <= last ? lane ^ number : lane;
    case Shuffle::idx: return first + number % width;
    case Shuffle::up: return lane - number >= first ? lane - number : lane;
    case Shuffle::down: return lane + number <= last ? lane + number : lane;
  }
  return lane;
}

void shfl(Shuffle mode, Operand d, Operand a, unsigned members, int number, int width, int line)
{
  struct Given {
    Operand target, source;
  };
  if (members != 0xffffffff || number < 0 || number >= lanes_of_warp)
    fail("shfl.sync: not all lanes are members, or a lane beyond them");
  if (width < 1 || width > lanes_of_warp || (width & (width - 1)) != 0)
    fail("shfl.sync: groups of %d lanes", width);
  together("shfl", line, Given{d, a}, [=](const Given* const* lanes) {
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      std::memcpy(lanes[lane]->target.place, &lanes[shfl_source(mode, lane, number, width)]->source.bits, lanes[lane]->source.bytes);
  });
}

// PTX ISA, "Parallel Synchronization and Communication Instructions: vote.sync", of all 32 lanes.
int vote_any(unsigned members, bool predicate, int line)
{
  struct Given {
    int* target;
    bool predicate;
  };
  if (members != 0xffffffff)
    fail("vote.sync: not all lanes are members");
  int found = 0;
  together("vote", line, Given{&found, predicate}, [](const Given* const* lanes) {
    bool any = false;
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      any = any || lanes[lane]->predicate;
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      *lanes[lane]->target = any;
  });
  return found;
}

// PTX ISA, "Non-bulk copy: cp.async": until the group of a copy is waited for, nobody knows whether it has happened. Most of them
// land when they are waited for, some at once, which shows places that are written while others still read them.
void cp_async(bool past_l1, Operand target, Operand source, Operand size, Operand source_size)
{
  const auto bytes = static_cast<unsigned>(size.bits), filled = static_cast<unsigned>(source_size.bits);
  Copy copy = {shared(target.bits), reinterpret_cast<const void*>(source.bits), bytes, filled};
  if (bytes != 16 && (past_l1 || (bytes != 4 && bytes != 8)))
    fail("cp.async.%s: a copy of %u bytes", past_l1 ? "cg" : "ca", bytes);
  if (filled > bytes)
    fail("cp.async: %u of %u bytes come from the source", filled, bytes);
  require("cp.async, the target", 0, copy.target, bytes, bytes);
  if (filled)
    require("cp.async, the source", 0, copy.source, filled, bytes);
  if (below(4) == 0)
    land(copy), copy.landed = true;
  current->issued.push_back(copy);
}

// As many threads as the barrier counts wait for each other, wherever the last of them comes from.
void meet_at(Operand number, Operand count, const char* what, int line)
{
  Group& group = named[static_cast<int>(number.bits)];
  group.members.push_back(current);
  current->stop = Stop::block_barrier;
  current->what = what;
  current->line = line;
  if (group.members.size() == count.bits) {
    require_same_place(group, "named barrier");
    release(group);
    group.members.clear();
  }
  leave(*current);
}

void bar_sync(Operand number, Operand count, int line)
{
  meet_at(number, count, "bar.sync", line);
}

// Whether one of the threads says so. A thread reads the result before it votes again, and the next vote needs its vote.
int bar_red_or(Operand number, Operand count, Operand predicate, int line)
{
  static std::map<unsigned long long, std::pair<unsigned long long, bool>> votes;  // the votes so far, and whether one was true
  static std::map<unsigned long long, bool> results;
  auto& [voted, any] = votes[number.bits];
  any = any || predicate.bits != 0;
  if (++voted == count.bits)
    results[number.bits] = any, voted = 0, any = false;
  meet_at(number, count, "bar.red", line);
  return results[number.bits];
}

void cp_async_commit_group()
{
  current->groups.push_back(std::move(current->issued));
  current->issued.clear();
}

void cp_async_wait_group(Operand pending)
{
  for (std::deque<std::vector<Copy>>& groups = current->groups; groups.size() > pending.bits; groups.pop_front())
    for (const Copy& copy : groups.front())
      if (!copy.landed)
        land(copy);
}

}  // namespace ptx

// ---------------------------------------------------------------------------------------------- products of a warpgroup

namespace {

// PTX ISA, "Asynchronous warpgroup level matrix instructions": D of a product is written, and A and B are read, at some time between
// its issue and the wait for its group. Here that is mostly when the first thread waits, sometimes at once.
struct Product {
  struct Registers {
    std::vector<void*> places;
    unsigned bytes;
  };
  ptx::Warpgroup form;
  std::vector<Registers> d, held;  // of each thread: D, and A where it is in registers
  uint64_t a, b;
  bool adds, done;
  int line;
  std::vector<uint32_t> metadata;  // of each thread, if A is 2:4 sparse
  int kept() const { return metadata.empty() ? form.k : form.k / 2; }  // elements of a row of A
};

// PTX ISA, "Matrix descriptor format" and "Strides": core matrices are eight rows of 16 bytes. A swizzle joins 2, 4 or 8 of them to rows
// of 32, 64 or 128 bytes, of which address bits 4 to 6 are XORed with bits 7 to 9, as far as the row is long.
const char* place_of(uint64_t descriptor, Type type, int row, int along, int line)
{
  const uint64_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint64_t mode = descriptor >> 62, span = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;
  if (descriptor >> 49 & 7)
    fail("wgmma in line %d: a base offset", line);
  const unsigned bytes = format_of(type).bits / 8;
  const uint64_t byte = static_cast<uint64_t>(along) * bytes;
  uint64_t address = start + row / 8 * stride + row % 8 * span + byte / span * leading + byte % span;
  address ^= (address >> 7 & (span / 16 - 1)) << 4;
  const unsigned char* const place = shared_of_18_bits(address);
  if (!is_shared(place))
    fail("wgmma in line %d: %p lies outside shared memory", line, place);
  require("wgmma", line, place, bytes, bytes);
  return reinterpret_cast<const char*>(place);
}

double element_of(uint64_t descriptor, Type type, int row, int along, int line)
{
  uint64_t bits = 0;
  std::memcpy(&bits, place_of(descriptor, type, row, along, line), format_of(type).bits / 8);
  return number(bits, type);
}

// "Register fragments", matrix D: i is the number of an element of a thread.
void place_in_d(int thread, int i, int& row, int& column)
{
  row = thread / lanes_of_warp * 16 + thread % lanes_of_warp / 4 + i / 2 % 2 * 8;
  column = i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// "Register fragments", matrix A: element `i` of a thread, of which a register has `together`.
double element_held(const Product& product, int row, int along)
{
  const int bits = format_of(product.form.a).bits, together = 32 / bits;
  const int lane = row % 8 * 4 + along / together % 4, number_of = row % 16 / 8 + along / (4 * together) * 2;
  const void* const place = product.held[row / 16 * lanes_of_warp + lane].places[number_of];
  uint32_t word = 0;
  std::memcpy(&word, place, sizeof word);
  return number(word >> along % together * bits & (bits == 32 ? ~0u : (1u << bits) - 1), product.form.a);
}

// All factors in shared memory are visible to the asynchronous proxy when a product is issued.
void require_fenced(const Product& product)
{
  const ptx::Warpgroup& form = product.form;
  const auto all = [&](uint64_t descriptor, Type type, int rows, int depth, bool across) {
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < depth; ++k)
        require_fenced("wgmma", product.line, place_of(descriptor, type, across ? k : row, across ? row : k, product.line));
  };
  if (product.held.empty())
    all(product.a, form.a, 64, product.kept(), form.a_across);
  all(product.b, form.b, form.n, form.k, form.b_across);
}

// "Matrix fragments for warpgroup-level matrix multiply-accumulate operation with sparse matrix A": each warp provides the places of 16 rows.
// The row of B by which a kept element of A is multiplied.
int row_of_kept(const Product& product, int row, int k)
{
  const int group = k / 2, lane = row % 8 * 4, first = row / 16 * lanes_of_warp, upper = row % 16 / 8;
  const int bits = format_of(product.form.a).bits == 8
      ? product.metadata[first + lane + upper + group / 8 * 2] >> group % 8 * 4
      : product.metadata[first + lane + group / 4] >> (upper * 16 + group % 4 * 4);
  if ((bits & 3) >= (bits >> 2 & 3))
    fail("wgmma.sp in line %d: the places of row %d, columns %d to %d are %d and %d", product.line, row, group * 4, group * 4 + 3, bits & 3, bits >> 2 & 3);
  return group * 4 + (k % 2 ? bits >> 2 & 3 : bits & 3);
}

void perform(Product& product)
{
  if (product.done)
    return;
  product.done = true;
  const ptx::Warpgroup& form = product.form;
  const int kept = product.kept();
  std::vector<double> a(64 * kept), b(form.k * form.n);
  std::vector<int> rows(64 * kept);
  for (int row = 0; row < 64; ++row)
    for (int k = 0; k < kept; ++k)
      rows[row * kept + k] = product.metadata.empty() ? k : row_of_kept(product, row, k);
  for (int k = 0; k < form.k; ++k) {
    for (int m = 0; m < 64 && k < kept; ++m)
      a[m * kept + k] = !product.held.empty() ? element_held(product, m, k) : form.a_across ? element_of(product.a, form.a, k, m, product.line) : element_of(product.a, form.a, m, k, product.line);
    for (int n = 0; n < form.n; ++n)
      b[k * form.n + n] = form.b_across ? element_of(product.b, form.b, k, n, product.line) : element_of(product.b, form.b, n, k, product.line);
  }
  const int bits = format_of(form.d).bits;
  for (int thread = 0; thread < threads_of_warpgroup; ++thread) {
    const Product::Registers& registers = product.d[thread];
    int i = 0;
    for (void* place : registers.places) {
      uint64_t word = 0, sums = 0;
      std::memcpy(&word, place, registers.bytes);
      for (int shift = 0; shift < static_cast<int>(registers.bytes) * 8; shift += bits, ++i) {
        int row = 0, column = 0;
        place_in_d(thread, i, row, column);
        const uint64_t mask = (uint64_t{1} << bits) - 1;
        double sum = product.adds ? number(word >> shift & mask, form.d) : 0;
        for (int k = 0; k < kept; ++k)
          sum += a[row * kept + k] * b[rows[row * kept + k] * form.n + column];
        sums |= (bits_of(sum, form.d) & mask) << shift;
      }
      std::memcpy(place, &sums, registers.bytes);
    }
  }
}

}  // namespace

namespace ptx {

void wgmma(const Warpgroup& form, Operands d, Operand a, Operand b, Operand adds, int line)
{
  wgmma(form, d, a, {}, b, adds, line);
}

void wgmma(const Warpgroup& form, Operands d, Operands held, Operand b, Operand adds, int line)
{
  wgmma(form, d, {}, held, b, adds, line);
}

namespace {

void issue(const Warpgroup& form, Operands d, Operand a, Operands held, Operand b, const Operand* e, Operand adds, int line)
{
  struct Given {
    const Warpgroup& form;
    Operands d, held;
    uint64_t a, b, adds, metadata;
  };
  Group& unit = warpgroups[current->number / threads_of_warpgroup];
  if (!current->fenced)
    fail("wgmma in line %d: no wgmma.fence before the first", line);
  require_fenced_registers(*current, d, line);
  require_fenced_registers(*current, held, line);
  together_in<threads_of_warpgroup>(unit, "warpgroup", "wgmma", line, Given{form, d, held, a.bits, b.bits, adds.bits, e ? e->bits : 0}, [&](const Given* const* all) {
    auto product = std::make_shared<Product>(Product{form, {}, {}, all[0]->a, all[0]->b, all[0]->adds != 0, false, line, {}});
    for (int thread = 0; thread < threads_of_warpgroup && e; ++thread)
      product->metadata.push_back(static_cast<uint32_t>(all[thread]->metadata));
    for (int thread = 0; thread < threads_of_warpgroup; ++thread) {
      if (all[thread]->a != product->a || all[thread]->b != product->b || (all[thread]->adds != 0) != product->adds)
        fail("wgmma in line %d: threads %d and 0 of a warpgroup name different matrices", line, thread);
      const unsigned bytes = all[thread]->d.begin()->bytes;
      if (all[thread]->d.size() * bytes * 8 * threads_of_warpgroup != static_cast<size_t>(64) * form.n * format_of(form.d).bits)
        fail("wgmma in line %d: %zu registers for 64 x %d elements", line, all[thread]->d.size(), form.n);
      Product::Registers registers = {{}, bytes};
      for (const Operand& one : all[thread]->d)
        registers.places.push_back(one.place);
      product->d.push_back(std::move(registers));
      if (all[thread]->held.size()) {
        if (all[thread]->held.size() != 4)
          fail("wgmma in line %d: %zu registers for a factor", line, all[thread]->held.size());
        product->held.push_back({{}, 4});
        for (const Operand& one : all[thread]->held)
          product->held.back().places.push_back(one.place);
      }
      unit.members[thread]->products.push_back(product);
      count(*unit.members[thread], &Registers::results, product->d[thread].places, 1);
      if (!product->held.empty())
        count(*unit.members[thread], &Registers::factors, product->held[thread].places, 1);
    }
    require_fenced(*product);
    // Products of one accumulator happen in order, so one that happens at once takes all before it along.
    if (below(4) == 0)
      for (Thread* member : unit.members) {
        for (const auto& group : member->product_groups)
          for (const auto& one : group)
            ::perform(*one);
        for (const auto& one : member->products)
          ::perform(*one);
      }
  });
}

}  // namespace

void wgmma(const Warpgroup& form, Operands d, Operand a, Operands held, Operand b, Operand adds, int line)
{
  issue(form, d, a, held, b, nullptr, adds, line);
}

void wgmma_sp(const Warpgroup& form, Operands d, Operand a, Operand b, Operand e, Operand selector, Operand adds, int line)
{
  if (selector.bits != 0)
    fail("wgmma.sp in line %d: the sparsity selector is %d, and lanes 0 and 1 have the metadata", line, static_cast<int>(selector.bits));
  issue(form, d, a, {}, b, &e, adds, line);
}

void wgmma_fence(int line)
{
  together("wgmma.fence", line, 0, [](const int* const*) {});
  current->fenced = true;
  ++current->register_fences;
  if (current->registers.touched.empty())
    current->registers = {std::vector<unsigned>(stack_bytes / 4), std::vector<unsigned char>(stack_bytes / 4), std::vector<unsigned char>(stack_bytes / 4)};
}

void wgmma_commit_group(int line)
{
  together("wgmma.commit_group", line, 0, [](const int* const*) {});
  current->product_groups.push_back(std::move(current->products));
  current->products.clear();
}

void wgmma_wait_group(Operand pending, int line)
{
  together("wgmma.wait_group", line, 0, [](const int* const*) {});
  for (; current->product_groups.size() > pending.bits; current->product_groups.pop_front())
    for (const auto& product : current->product_groups.front()) {
      ::perform(*product);
      const int thread = current->number % threads_of_warpgroup;
      count(*current, &Registers::results, product->d[thread].places, -1);
      if (!product->held.empty())
        count(*current, &Registers::factors, product->held[thread].places, -1);
    }
}

}  // namespace ptx

// ---------------------------------------------------------------------------------------------- barriers in memory, and TMA

namespace {

PhasedBarrier& barrier_at(uint64_t address, const char* what, int line)
{
  const auto found = barriers.find(address);
  if (found == barriers.end())
    fail("%s in line %d: no barrier at %llu", what, line, static_cast<unsigned long long>(address));
  return found->second;
}

// Another block of the cluster at work: what is in the variables goes to its place, and the other's comes.
void exchange(Suspended& other)
{
  std::swap(threads, other.threads);
  std::swap(warps, other.warps);
  std::swap(warpgroups, other.warpgroups);
  std::swap(block, other.block);
  std::swap(named, other.named);
  std::swap(barriers, other.barriers);
  std::swap(writers, other.writers);
  std::swap(deferred, other.deferred);
}

void work_at(size_t rank)
{
  if (rank != at_work) {
    copy_memory(cluster[at_work]->memory.data(), __start_shared_memory);
    exchange(*cluster[at_work]);
    exchange(*cluster[rank]);
    copy_memory(__start_shared_memory, cluster[rank]->memory.data());
    at_work = rank;
  }
  blockIdx = {static_cast<unsigned>(first_of_cluster + rank % blocks_of_gpu()), 0, 0};
}

void settle(PhasedBarrier& barrier)
{
  if (barrier.left || barrier.bytes)
    return;
  barrier.left = barrier.arrivals;
  ++barrier.phase;
  for (Thread* thread : barrier.waiting) {
    thread->stop = Stop::none;
    warp_of(*thread).ready.push_back(thread);
  }
  barrier.waiting.clear();
}

void arrive(PhasedBarrier& barrier, int line)
{
  if (barrier.left == 0)
    fail("mbarrier.arrive in line %d: more than %llu arrivals in a phase", line, static_cast<unsigned long long>(barrier.arrivals));
  --barrier.left;
  settle(barrier);
}

// CUDA Driver API, "cuTensorMapEncodeTiled": what the launch gave it. Of each dimension, that of neighbors first, the size, the bytes from
// one to the next, the size of the box, and of so many elements of a box the first that is copied. "cuTensorMapEncodeIm2col": the box has
// channels and pixels, and two words have the corners of the pixels, 16 bits for each image dimension.
struct Mapped {
  char* start;
  uint64_t kind, rank, swizzle, interleave, fill, steps;
  const uint64_t *sizes, *strides, *box;
  bool pixels;  // im2col mode

  explicit Mapped(const uint64_t* words)
      : start(reinterpret_cast<char*>(words[0])), kind(words[1] & 255), rank(words[1] >> 8 & 255), swizzle(words[1] >> 16 & 255),
        interleave(words[1] >> 24 & 15), fill(words[1] >> 28 & 15), steps(words[1] >> 32 & 0xfffff), sizes(words + 2), strides(words + 7), box(words + 11), pixels(words[1] >> 56 & 1)
  {
  }

  uint64_t element() const
  {
    constexpr uint64_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};  // CUtensorMapDataType
    return kind < 13 ? bytes[kind] : 0;
  }
  uint64_t span() const { return uint64_t{16} << swizzle; }  // CUtensorMapSwizzle: none, 32, 64, 128 bytes
  uint64_t step(uint64_t dim) const { return dim ? steps >> 4 * dim & 15 : 1; }  // that of neighbors is ignored
  uint64_t count(uint64_t dim) const { return pixels ? (dim < 2 ? box[dim] : 1) : (box[dim] + step(dim) - 1) / step(dim); }
  int64_t lower(uint64_t dim) const { return static_cast<int16_t>(box[2] >> 16 * (dim - 1)); }
  int64_t upper(uint64_t dim) const { return static_cast<int16_t>(box[3] >> 16 * (dim - 1)); }
};

// What the driver refuses.
void require_map(const Mapped& map, const char* what, int line)
{
  const char* wrong = nullptr;
  if (map.element() == 0 || map.rank < 1 || map.rank > 5 || map.swizzle > 3 || map.interleave != 0 || map.fill > 1)
    wrong = "its kind, dimensions or modes";
  else if (reinterpret_cast<uintptr_t>(map.start) % 16)
    wrong = "its address";
  else if (map.box[0] * map.element() % 16 || (map.swizzle && map.box[0] * map.element() > map.span()))
    wrong = "the rows of its box";
  const int64_t corner = map.rank == 3 ? 1 << 15 : map.rank == 4 ? 1 << 7 : 1 << 4;
  if (!wrong && map.pixels && (map.rank < 3 || map.box[1] > 1024))
    wrong = "its dimensions or pixels";
  for (uint64_t dim = 1; !wrong && map.pixels && dim + 1 < map.rank; ++dim)
    if (map.lower(dim) < -corner || map.lower(dim) >= corner || map.upper(dim) < -corner || map.upper(dim) >= corner)
      wrong = "its corners";
  for (uint64_t dim = 0; !wrong && dim < map.rank; ++dim)
    if (map.sizes[dim] < 1 || map.sizes[dim] > uint64_t{1} << 32 || map.count(dim) < 1 || (!map.pixels && map.box[dim] > 256) || map.step(dim) < 1 || map.step(dim) > 8)
      wrong = "its sizes, or those of its box";
    else if (dim && (map.strides[dim - 1] % 16 || map.strides[dim - 1] == 0 || map.strides[dim - 1] >> 40))
      wrong = "its strides";
  if (wrong)
    fail("%s in line %d: the driver refuses the tensor map: %s", what, line, wrong);
}

// PTX ISA, "Im2col mode": the coordinates of pixel number `count` of a box. The base pixel goes from corner to corner by its steps, along
// rows, then images; offsets of the instruction are added in the end.
std::vector<int64_t> pixel_at(const Mapped& map, const Box& box, uint64_t count)
{
  std::vector<int64_t> at(box.at.begin(), box.at.begin() + map.rank);
  for (; count > 0; --count)
    for (uint64_t dim = 1; dim < map.rank; ++dim) {
      if (dim + 1 == map.rank) {
        ++at[dim];
        break;
      }
      at[dim] += map.step(dim);
      if (at[dim] <= static_cast<int64_t>(map.sizes[dim]) - 1 + map.upper(dim))
        break;
      at[dim] = map.lower(dim);
    }
  for (uint64_t dim = 1; dim + 1 < map.rank; ++dim)
    at[dim] += box.at[map.rank + dim - 1];
  return at;
}

// CUDA C++ Programming Guide, "Swizzle modes": rows of 32, 64 or 128 bytes, of which address bits 4 to 6 are XORed with bits 7 to 9, as
// far as the row is long. A box's rows follow each other without gaps. Outside of the array there is no place.
template <class Move>
void each_element(const Box& box, const char* what, Move move)
{
  const Mapped map(box.map);
  require_map(map, what, box.line);
  uint64_t elements = 1;
  for (uint64_t dim = 0; dim < map.rank; ++dim)
    elements *= map.count(dim);
  if (box.at.size() != map.rank + (map.pixels ? map.rank - 2 : 0))
    fail("%s in line %d: %llu coordinates", what, box.line, static_cast<unsigned long long>(box.at.size()));
  require(what, box.line, shared(box.shared), elements * map.element(), 128);
  for (uint64_t number = 0; number < elements; ++number) {
    uint64_t address = box.shared + number * map.element(), left = number;
    address ^= (address >> 7 & (map.span() / 16 - 1)) << 4;
    char* outside = map.start;
    bool inside = true;
    if (map.pixels) {
      const std::vector<int64_t> at = pixel_at(map, box, left / map.box[0]);
      for (uint64_t dim = 0; dim < map.rank; ++dim) {
        const int64_t place = dim ? at[dim] : box.at[0] + static_cast<int64_t>(left % map.box[0]);
        inside = inside && place >= 0 && place < static_cast<int64_t>(map.sizes[dim]);
        outside += inside ? place * (dim ? map.strides[dim - 1] : map.element()) : 0;
      }
      move(static_cast<char*>(shared(address)), inside ? outside : nullptr, map.element());
      continue;
    }
    for (uint64_t dim = 0; dim < map.rank; ++dim) {
      const int64_t place = box.at[dim] + static_cast<int64_t>(left % map.count(dim) * map.step(dim));
      inside = inside && place >= 0 && place < static_cast<int64_t>(map.sizes[dim]);
      outside += inside ? place * (dim ? map.strides[dim - 1] : map.element()) : 0;
      left /= map.count(dim);
    }
    move(static_cast<char*>(shared(address)), inside ? outside : nullptr, map.element());
  }
}

void land_some_load()
{
  std::swap(loads[below(static_cast<int>(loads.size()))], loads.back());
  const Box box = loads.back();
  loads.pop_back();
  work_at(box.rank);
  uint64_t bytes = 0;
  each_element(box, "TMA load", [&](char* inside, const char* outside, uint64_t size) {
    if (outside)
      std::memcpy(inside, outside, size);
    else
      std::memset(inside, Mapped(box.map).fill ? 0x7f : 0, size);  // no number, or zero
    require_fenced("TMA load", box.line, inside);
    written_by_engine(inside, size);
    bytes += size;
  });
  PhasedBarrier& barrier = barrier_at(box.barrier, "TMA load", box.line);
  barrier.bytes -= static_cast<int64_t>(bytes);
  settle(barrier);
}

// Arrivals of a thread happen in their order, as each of them waits for all copies before it.
void land_some_arrival()
{
  const Thread* const thread = arrivals[below(static_cast<int>(arrivals.size()))].thread;
  const auto first = std::find_if(arrivals.begin(), arrivals.end(), [thread](const DeferredArrival& one) { return one.thread == thread; });
  const DeferredArrival arrival = *first;
  arrivals.erase(first);
  work_at(arrival.rank);
  for (const Copy& copy : arrival.copies) {
    if (!copy.landed)
      bring(copy);
    written_later(copy.target, copy.bytes);
  }
  arrive(barrier_at(arrival.barrier, "cp.async.mbarrier.arrive", arrival.line), arrival.line);
}

void land_something()
{
  if (arrivals.empty() || (!loads.empty() && below(2)))
    land_some_load();
  else
    land_some_arrival();
}

// CUtensorMapDataType: 3 is int32, 7 is float32.
template <class Number>
void add_number(const char* inside, char* outside)
{
  Number number, sum;
  std::memcpy(&number, inside, sizeof number);
  std::memcpy(&sum, outside, sizeof sum);
  sum = static_cast<Number>(sum + number);
  std::memcpy(outside, &sum, sizeof sum);
}

// A store may land twice, with the last values; an addition lands once.
void land_store(Box& box)
{
  if (box.adds && box.landed)
    return;
  box.landed = true;
  const uint64_t kind = Mapped(box.map).kind;
  if (box.adds && kind != 7 && kind != 3)
    fail("TMA addition in line %d: the tensor map has elements of kind %llu", box.line, static_cast<unsigned long long>(kind));
  each_element(box, box.adds ? "TMA addition" : "TMA store", [&](const char* inside, char* outside, uint64_t size) {
    if (outside && !box.adds)
      std::memcpy(outside, inside, size);
    else if (outside)
      kind == 7 ? add_number<float>(inside, outside) : add_number<uint32_t>(inside, outside);
  });
}

// A store of several GPUs has read shared memory: its numbers arrive later.
void delay_store(Box& box)
{
  if (box.landed || box.adds)
    return land_store(box);
  box.landed = true;
  each_element(box, "TMA store", [&](const char* inside, char* outside, uint64_t size) {
    if (!outside)
      return;
    current->late.push_back({outside, {}, size});
    std::memcpy(current->late.back().value.data(), inside, size);
  });
}

void land_late(Thread& thread)
{
  for (const Late& one : thread.late)
    std::memcpy(one.target, one.value.data(), one.bytes);
  thread.late.clear();
}

std::vector<int> coordinates(std::initializer_list<ptx::Operand> at)
{
  std::vector<int> found;
  for (const ptx::Operand& one : at)
    found.push_back(static_cast<int>(static_cast<uint32_t>(one.bits)));
  return found;
}

void forget_barriers() { barriers.clear(); }

}  // namespace

namespace ptx {

void mbarrier_init(Operand barrier, Operand arrivals, int line)
{
  require("mbarrier.init", line, shared(barrier.bits), 8, 8);
  if (arrivals.bits == 0 || barriers.count(barrier.bits))
    fail("mbarrier.init in line %d: a barrier twice, or without arrivals", line);
  barriers[barrier.bits] = {arrivals.bits, arrivals.bits};
}

void mbarrier_init_fence()
{
  for (auto& one : barriers)
    one.second.visible = true;
}

void mbarrier_arrive(Operand barrier, int line) { arrive(barrier_at(barrier.bits, "mbarrier.arrive", line), line); }

// The arrival of a thread at a barrier of another block of its cluster, which must be there.
void mbarrier_arrive_at(Operand barrier, Operand rank, int line)
{
  if (rank.bits >= cluster.size())
    fail("mapa in line %d: block %llu of a cluster of %zu", line, static_cast<unsigned long long>(rank.bits), cluster.size());
  const size_t own = at_work;
  work_at(rank.bits);
  bool ended = true;
  for (const Thread& thread : threads)
    ended = ended && thread.ended;
  if (ended)
    fail("mbarrier.arrive in line %d: block %zu of the cluster has ended", line, at_work);
  arrive(barrier_at(barrier.bits, "mbarrier.arrive", line), line);
  work_at(own);
}

// PTX ISA, "barrier.cluster": all threads of the cluster arrive, and each may wait until all have.
void cluster_arrive(int line)
{
  if (current->meeting != meetings)
    fail("barrier.cluster.arrive in line %d: twice, without a wait", line);
  ++current->meeting;
  if (++met < threads.size() * cluster.size())
    return;
  met = 0;
  ++meetings;
  for (const auto& [rank, thread] : waiting_for_cluster) {
    thread->stop = Stop::none;
    std::vector<Group>& theirs = rank == at_work ? warps : cluster[rank]->warps;
    theirs[thread->number / lanes_of_warp].ready.push_back(thread);
  }
  waiting_for_cluster.clear();
}

void cluster_wait(int line)
{
  if (current->meeting == meetings)
    return;
  current->stop = Stop::instruction;
  current->what = "barrier.cluster.wait";
  current->line = line;
  waiting_for_cluster.emplace_back(at_work, current);
  leave(*current);
}

void mbarrier_arrive_expect_tx(Operand barrier, Operand bytes, int line)
{
  PhasedBarrier& found = barrier_at(barrier.bits, "mbarrier.arrive.expect_tx", line);
  found.bytes += static_cast<int64_t>(bytes.bits);
  arrive(found, line);
}

void mbarrier_wait_parity(Operand barrier, Operand parity, int line)
{
  if (parity.bits > 1)
    fail("mbarrier.try_wait.parity in line %d: parity %llu", line, static_cast<unsigned long long>(parity.bits));
  PhasedBarrier& found = barrier_at(barrier.bits, "mbarrier.try_wait.parity", line);
  if ((found.phase & 1) != parity.bits)
    return;
  current->stop = Stop::instruction;
  current->what = "mbarrier.try_wait";
  current->line = line;
  found.waiting.push_back(current);
  leave(*current);
}

// Loads land at some time, in any order, in each block at its own; until then nobody may rely on what is there.
void tma_load_multicast(Operand target, Operand map, std::initializer_list<Operand> at, Operand barrier, Operand blocks, int line)
{
  if (!barrier_at(barrier.bits, "TMA load", line).visible)
    fail("TMA load in line %d: its barrier was not fenced after mbarrier.init", line);
  if (blocks.bits == 0 || blocks.bits >> cluster.size())
    fail("TMA load in line %d: to blocks %llx of a cluster of %zu", line, static_cast<unsigned long long>(blocks.bits), cluster.size());
  for (size_t rank = 0; rank < cluster.size(); ++rank)
    if (blocks.bits >> rank & 1)
      loads.push_back({reinterpret_cast<const uint64_t*>(map.bits), coordinates(at), target.bits, barrier.bits, line, rank});
}

void tma_load(Operand target, Operand map, std::initializer_list<Operand> at, Operand barrier, int line)
{
  tma_load_multicast(target, map, at, barrier, in(1u << at_work), line);
}

// A store reads shared memory at some time until its group is waited for: mostly then, sometimes at once.
static void store_box(Box box, const char* what)
{
  each_element(box, what, [&](const char* inside, char*, uint64_t) { require_fenced(what, box.line, inside); });
  if (below(4) == 0)
    land_store(box);
  current->stores.push_back(box);
}

void tma_store(Operand map, std::initializer_list<Operand> at, Operand source, int line)
{
  store_box({reinterpret_cast<const uint64_t*>(map.bits), coordinates(at), source.bits, 0, line}, "TMA store");
}

void tma_add(Operand map, std::initializer_list<Operand> at, Operand source, int line)
{
  Box box = {reinterpret_cast<const uint64_t*>(map.bits), coordinates(at), source.bits, 0, line};
  box.adds = true;
  store_box(box, "TMA addition");
}

// An addition of contiguous elements: as boxes of one dimension, of at most 256 elements. `kind` is that of a tensor map.
void bulk_add(Operand target, Operand source, Operand bytes, Operand kind, int line)
{
  static std::deque<std::array<uint64_t, 16>> maps;
  if (target.bits % 16 || source.bits % 16 || bytes.bits % 16 || bytes.bits == 0)
    fail("bulk addition in line %d: addresses and bytes are multiples of 16", line);
  for (uint64_t start = 0; start < bytes.bits; start += 1024) {
    const uint64_t size = std::min<uint64_t>(1024, bytes.bits - start) / 4;
    std::array<uint64_t, 16> words = {target.bits + start, kind.bits | 1 << 8, size};
    words[11] = size;
    maps.push_back(words);
    Box box = {maps.back().data(), {0}, source.bits + start, 0, line};
    box.adds = true;
    store_box(box, "bulk addition");
  }
}

void proxy_fence()
{
  ++current->proxy_fences;
  current->fenced_landings = landings;
}

void cp_async_mbarrier_arrive(Operand barrier, int line)
{
  std::vector<Copy> copies;
  for (const std::vector<Copy>& group : current->groups)
    copies.insert(copies.end(), group.begin(), group.end());
  copies.insert(copies.end(), current->issued.begin(), current->issued.end());
  for (std::vector<Copy>& group : current->groups)
    group.clear();
  current->issued.clear();
  barrier_at(barrier.bits, "cp.async.mbarrier.arrive", line);
  arrivals.push_back({current, std::move(copies), barrier.bits, line, at_work});
}

void tma_commit_group()
{
  current->store_groups.push_back(std::move(current->stores));
  current->stores.clear();
}

void tma_wait_group_read(Operand pending)
{
  for (; current->store_groups.size() > pending.bits; current->store_groups.pop_front())
    for (Box& box : current->store_groups.front())
      node.gpus > 1 ? delay_store(box) : land_store(box);
}

void tma_wait_group(Operand pending)
{
  if (pending.bits)
    fail("cp.async.bulk.wait_group of %llu groups is not emulated", pending.bits);
  tma_wait_group_read(pending);
  land_late(*current);
}

// PTX ISA, "ld": whoever reads a word again and again lets others work.
unsigned poll(Operand address, int line)
{
  const unsigned* const place = reinterpret_cast<const unsigned*>(address.bits);
  require("ld.acquire.sys", line, place, 4, 4);
  polled = true;
  current->what = "ld.acquire.sys";
  current->line = line;
  warp_of(*current).ready.push_back(current);
  leave(*current);
  return *place;
}

void red_add_word(Operand address, Operand number, int line)
{
  unsigned* const place = reinterpret_cast<unsigned*>(address.bits);
  require("red.add", line, place, 4, 4);
  *place += static_cast<unsigned>(number.bits);
}

void setmaxnreg(Operand count, int line)
{
  if (count.bits % 8 || count.bits < 24 || count.bits > 256)
    fail("setmaxnreg in line %d: %llu registers", line, static_cast<unsigned long long>(count.bits));
  Group& unit = warpgroups[current->number / threads_of_warpgroup];
  together_in<threads_of_warpgroup>(unit, "warpgroup", "setmaxnreg", line, 0, [](const int* const*) {});
}

}  // namespace ptx

// ---------------------------------------------------------------------------------------------- warp matrix functions

namespace nvcuda::wmma {

namespace {

// Which element of a fragment a lane has is not specified (CUDA C++ Programming Guide, "Warp Matrix Functions"): here, a mixture.
int element(const Share& share, int lane, int value) { return (value * lanes_of_warp + lane) * 5 % (share.rows * share.columns); }

int count(const Share& share) { return share.rows * share.columns / lanes_of_warp; }

struct Given {
  Share share;
  const char* matrix;
  unsigned leading;
  const Thread* thread;
};

void require_matrix(const Given* const* lanes, const char* what, int line)
{
  const Given& first = *lanes[0];
  for (int lane = 1; lane < lanes_of_warp; ++lane)
    if (lanes[lane]->matrix != first.matrix || lanes[lane]->leading != first.leading)
      fail("%s in line %d: lanes name different matrices", what, line);
  if (first.leading * first.share.bytes % 16)
    fail("%s in line %d: a leading dimension of %u elements is no multiple of 16 bytes", what, line, first.leading);
  require(what, line, first.matrix, first.share.bytes, first.share.bytes == 1 ? 16 : 32);
}

// Calls `move(thread, place in the matrix, place in its share)` for every element.
template <class Move>
void each(const Given* const* lanes, bool by_rows, const char* what, int line, Move move)
{
  require_matrix(lanes, what, line);
  const Share& share = lanes[0]->share;
  for (int lane = 0; lane < lanes_of_warp; ++lane)
    for (int value = 0; value < count(share); ++value) {
      const size_t number = element(share, lane, value), row = number / share.columns, column = number % share.columns;
      const size_t address = by_rows ? row * lanes[0]->leading + column : column * lanes[0]->leading + row;
      const char* const place = lanes[0]->matrix + address * share.bytes;
      require(what, line, place, share.bytes, share.bytes);
      move(*lanes[lane]->thread, const_cast<char*>(place), static_cast<char*>(lanes[lane]->share.values) + value * share.bytes);
    }
}

ptx::Matrix gathered(const Share* shares, Type type)
{
  ptx::Matrix matrix(shares[0].rows, shares[0].columns);
  for (int lane = 0; lane < lanes_of_warp; ++lane)
    for (int value = 0; value < count(shares[0]); ++value) {
      uint64_t bits = 0;
      std::memcpy(&bits, static_cast<char*>(shares[lane].values) + value * shares[0].bytes, shares[0].bytes);
      matrix.elements.at(element(shares[0], lane, value)) = number(bits, type);
    }
  return matrix;
}

}  // namespace

void load(Share target, const void* matrix, unsigned leading, bool by_rows, int line)
{
  together("load_matrix_sync", line, Given{target, static_cast<const char*>(matrix), leading, current}, [&](const Given* const* lanes) {
    each(lanes, by_rows, "load_matrix_sync", line, [&](const Thread&, const char* place, char* value) { std::memcpy(value, place, target.bytes); });
  });
}

void store(void* matrix, Share source, unsigned leading, bool by_rows, int line)
{
  together("store_matrix_sync", line, Given{source, static_cast<const char*>(matrix), leading, current}, [&](const Given* const* lanes) {
    each(lanes, by_rows, "store_matrix_sync", line, [&](const Thread& thread, char* place, const char* value) {
      std::memcpy(place, value, source.bytes);
      if (is_shared(place))
        written(thread, place, source.bytes);
    });
  });
}

void multiply(Share d, Share a, Share b, Share c, int line)
{
  struct Shares {
    Share d, a, b, c;
  };
  together("mma_sync", line, Shares{d, a, b, c}, [&](const Shares* const* lanes) {
    Share all[4][lanes_of_warp];
    for (int lane = 0; lane < lanes_of_warp; ++lane) {
      all[0][lane] = lanes[lane]->d;
      all[1][lane] = lanes[lane]->a;
      all[2][lane] = lanes[lane]->b;
      all[3][lane] = lanes[lane]->c;
    }
    ptx::Matrix left = gathered(all[1], a.type), right = gathered(all[2], b.type), sum = gathered(all[3], c.type);
    ptx::multiply(sum, left, right);
    for (int lane = 0; lane < lanes_of_warp; ++lane)
      for (int value = 0; value < count(d); ++value) {
        const uint64_t bits = bits_of(sum.elements.at(element(d, lane, value)), d.type);
        std::memcpy(static_cast<char*>(all[0][lane].values) + value * d.bytes, &bits, d.bytes);
      }
  });
}

}  // namespace nvcuda::wmma

// ---------------------------------------------------------------------------------------------- launches

namespace {

// An array in global memory, with guards around it, and aligned to no more than was promised.
struct Array {
  std::string file;
  size_t bytes;
  char* start;
};

Array array(const std::string& file, size_t bytes, size_t aligned)
{
  constexpr size_t guard = 1 << 16;
  const size_t total = (bytes + 2 * guard + 2 * aligned) / 16 * 16 + 16;
  char* const all = static_cast<char*>(std::aligned_alloc(16, total));
  if (!all)
    fail("no memory for an array of %zu bytes", bytes);
  char* start = all + guard;
  while (reinterpret_cast<uintptr_t>(start) % (2 * aligned) != aligned)
    ++start;
  __asan_poison_memory_region(all, total);
  __asan_unpoison_memory_region(start, bytes);
  std::ifstream(file, std::ios::binary).read(start, static_cast<std::streamsize>(bytes));
  return {file, bytes, start};
}

// Reads from its input: `kernel number`, `grid blocks`, `threads count`, `cluster blocks` (all blocks of `gpus count`), `launches count`, `shared bytes` of dynamic shared memory,
// `frame bytes` of a thread, `seed number`; `array file bytes alignment`; and in the order of the parameters `pointer array`, `int number` or `map array`
// (from `shift bytes` on) with fifteen numbers, which are those of a `Mapped`.
int launch()
{
  std::map<std::string, size_t> numbers;
  std::deque<Array> arrays;
  std::deque<int> integers;
  std::deque<uint64_t> bits;
  struct alignas(64) Map {
    uint64_t words[16];
  };
  std::deque<Map> maps;
  all_arguments.resize(1);
  for (std::string word; std::cin >> word;) {
    if (word == "array") {
      std::string file;
      size_t bytes = 0, aligned = 0;
      std::cin >> file >> bytes >> aligned;
      arrays.push_back(array(file, bytes, aligned));
    } else if (word == "pointer") {
      size_t position = 0;
      std::cin >> position;
      all_arguments.back().push_back(&arrays.at(position).start);
    } else if (word == "map") {
      size_t position = 0;
      std::cin >> position;
      maps.push_back({{reinterpret_cast<uint64_t>(arrays.at(position).start + std::exchange(numbers["shift"], 0))}});
      for (int number = 1; number < 16; ++number)
        std::cin >> maps.back().words[number];
      all_arguments.back().push_back(&maps.back());
    } else if (word == "next") {  // the arguments of the next GPU, or launch
      all_arguments.emplace_back();
    } else if (word == "int") {
      integers.push_back(0);
      std::cin >> integers.back();
      all_arguments.back().push_back(&integers.back());
    } else if (word == "bits") {  // of a number of up to 8 bytes, the lower ones first
      bits.push_back(0);
      std::cin >> bits.back();
      all_arguments.back().push_back(&bits.back());
    } else {
      std::cin >> numbers[word];
    }
  }
  const size_t grid = numbers["grid"], count = numbers["threads"], shared_bytes = numbers["shared"];
  frame_bytes = numbers["frame"];
  stack_bytes = frame_bytes + report_bytes;
  dice.seed(numbers["seed"]);
  gridDim = {static_cast<unsigned>(grid), 1, 1};
  blockDim = {static_cast<unsigned>(count), 1, 1};
  current_kernel = kernels[numbers["kernel"]];
  node.gpus = std::max<size_t>(numbers["gpus"], 1);
  node.launches = std::max<size_t>(numbers["launches"], 1);
  if (all_arguments.size() != node.gpus * node.launches)
    fail("%zu lists of arguments for %zu launches on %zu GPUs", all_arguments.size(), node.launches, node.gpus);
  dynamic = shared_bytes > 0;
  const size_t each = std::max<size_t>(numbers["cluster"], 1);
  if (grid * node.gpus % each || (node.gpus > 1 && each != grid * node.gpus))
    fail("%zu blocks are no whole clusters of %zu", grid, each);
  for (size_t rank = 0; rank < each; ++rank) {
    cluster.push_back(std::make_unique<Suspended>());
    cluster.back()->memory.resize(memory_of_block());
  }
  for (size_t rank = 0; rank < each; ++rank) {
    work_at(rank);
    prepare(static_cast<int>(count));
  }
  __asan_poison_memory_region(smem + shared_bytes, most_shared - shared_bytes);
  std::vector<unsigned> order(grid * node.gpus / each);
  for (unsigned one = 0; one < order.size(); ++one)
    order[one] = one;
  if (!numbers["in_order"])  // blocks that wait for others rely on the order in which a GPU starts them
    std::shuffle(order.begin(), order.end(), dice);
  for (unsigned one : order)
    run_blocks(static_cast<unsigned>(one * each), shared_bytes);
  for (const Array& one : arrays)
    std::ofstream(one.file, std::ios::binary).write(one.start, static_cast<std::streamsize>(one.bytes));
  return 0;
}

}  // namespace

int main() { return launch(); }
