#include "tests/emulator/emulator.h"

#include <sys/mman.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/gpu/stream.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the emulator switches stacks on x86-64 only; build without tests (CF_TESTS=OFF)"
#endif

// Saves what a call must preserve and the stack pointer in *rdi, and goes on where rsi was saved.
extern "C" void contraflow_emulator_switch(void** save, void* to);
asm(R"(
.text
.type contraflow_emulator_switch,@function
.globl contraflow_emulator_switch
contraflow_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size contraflow_emulator_switch,.-contraflow_emulator_switch
)");

namespace contraflow::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kWarpLanes = 32;
constexpr int kBarriers = 16;

/// A stack; its memory is taken by what touches it only.
class Stack {
 public:
  Stack()
      : base_(static_cast<std::byte*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base_ == MAP_FAILED) throw gpu::GpuError("the emulator has no memory for stacks");
  }
  Stack(const Stack&) = delete;
  ~Stack() {
#if defined(__SANITIZE_ADDRESS__)
    // Marks of functions that never returned would stay behind for whoever gets these pages next.
    __asan_unpoison_memory_region(base_, kStackBytes);
#endif
    munmap(base_, kStackBytes);
  }
  std::byte* base() const { return base_; }
  std::byte* top() const { return base_ + kStackBytes; }

 private:
  std::byte* const base_;
};

struct Barrier {
  unsigned arrived = 0;
  uint64_t generation = 0;
};

/// One exchange of a warp at a time for each mask. Values of even and odd generations are kept
/// apart: a lane may begin the next exchange while others still read this one.
struct Exchange {
  unsigned arrived = 0;
  uint64_t generation = 0;
  std::array<std::array<uint64_t, kWarpLanes>, 2> values;
};

struct Thread {
  Place place;
  unsigned number = 0;
  void* stack_pointer = nullptr;
  bool done = false;
  const uint64_t* counter = nullptr;
  uint64_t seen = 0;
  const char* what = "";

  bool waits() const { return counter != nullptr && *counter == seen; }
};

struct Block {
  std::vector<Thread> threads;
  std::array<Barrier, kBarriers> barriers;
  std::vector<std::map<unsigned, Exchange>> exchanges;  // by warp, and mask
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;
};

struct State {
  Order order = Order::kForward;
  std::mt19937_64 random{1};
  std::vector<std::unique_ptr<Stack>> stacks;
  std::vector<std::byte> shared;
  std::byte* shared_begin = nullptr;
  uint64_t blocks = 0;
  Block* block = nullptr;
  Thread* running = nullptr;
  void* scheduler = nullptr;  // its stack pointer while a thread runs
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
};

// Looked at by every call of every thread.
State state;
State& Now() { return state; }

Thread& Running() {
  State& now = Now();
  if (now.running == nullptr) throw gpu::GpuError("device code was called outside a kernel");
  return *now.running;
}

void ToScheduler([[maybe_unused]] bool for_good) {
  State& now = Now();
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, now.scheduler_stack,
                                 now.scheduler_stack_bytes);
#endif
  contraflow_emulator_switch(&now.running->stack_pointer, now.scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

/// The first function on a thread's stack.
void Begin() {
  State& now = Now();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &now.scheduler_stack, &now.scheduler_stack_bytes);
#endif
  try {
    (*now.block->body)();
  } catch (...) {
    now.block->error = std::current_exception();
  }
  now.running->done = true;
  ToScheduler(true);
}

/// Prepares a stack on which contraflow_emulator_switch goes to Begin.
void* Prepare(const Stack& stack) {
#if defined(__SANITIZE_ADDRESS__)
  // Begin and what it ended with never returned, and left marks around what was theirs.
  constexpr size_t kTheirs = 4096;
  __asan_unpoison_memory_region(stack.top() - kTheirs, kTheirs);
#endif
  auto* top = reinterpret_cast<void**>(stack.top());
  *--top = nullptr;  // A return address for Begin, which never returns; keeps calls aligned.
  *--top = reinterpret_cast<void*>(&Begin);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}

void Resume(Thread* thread, [[maybe_unused]] const Stack& stack) {
  State& now = Now();
  now.running = thread;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack.base(), kStackBytes);
#endif
  contraflow_emulator_switch(&now.scheduler, thread->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  now.running = nullptr;
}

std::vector<size_t> Turns(size_t count) {
  State& now = Now();
  std::vector<size_t> turns(count);
  std::iota(turns.begin(), turns.end(), size_t{0});
  if (now.order == Order::kReverse) std::reverse(turns.begin(), turns.end());
  if (now.order == Order::kShuffled) std::shuffle(turns.begin(), turns.end(), now.random);
  return turns;
}

std::string Text(const dim3& at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
         ")";
}

[[noreturn]] void ReportHang(const char* name, const Block& block) {
  std::map<std::string, std::vector<unsigned>> waiting;
  for (const Thread& thread : block.threads) {
    if (!thread.done) waiting[thread.what].push_back(thread.number);
  }
  std::string text = std::string(name) + ": block " + Text(block.threads[0].place.block) + " hangs";
  for (const auto& [what, threads] : waiting) {
    text += "; " + std::to_string(threads.size()) + " threads wait at " + what + ", the first is " +
            std::to_string(threads.front());
  }
  throw gpu::GpuError(text);
}

/// Each of `count` threads from `first` on goes as far as it comes; whether one could.
bool TakeTurns(Block* block, size_t first, size_t count) {
  bool moved = false;
  const auto take = [&](size_t turn) {
    Thread& thread = block->threads[first + turn];
    if (thread.done || thread.waits()) return;
    thread.counter = nullptr;
    Resume(&thread, *Now().stacks[first + turn]);
    moved = true;
    if (block->error != nullptr) std::rethrow_exception(block->error);
  };
  if (Now().order == Order::kForward) {
    for (size_t turn = 0; turn < count; ++turn) take(turn);
  } else {
    for (const size_t turn : Turns(count)) take(turn);
  }
  return moved;
}

/// Runs all threads to their end.
void RunBlock(const char* name, Block* block) {
  State& now = Now();
  now.block = block;
  const size_t threads = block->threads.size();
  // Or else no warp ever is more than a turn ahead of the others.
  const bool warps_hurry = now.order == Order::kShuffled && now.random() % 2 == 0;
  while (!std::all_of(block->threads.begin(), block->threads.end(),
                      [](const Thread& thread) { return thread.done; })) {
    bool moved = false;
    if (warps_hurry) {
      for (const size_t warp : Turns(block->exchanges.size())) {
        const size_t first = warp * kWarpLanes, lanes = size_t{kWarpLanes};
        while (TakeTurns(block, first, std::min(lanes, threads - first))) moved = true;
      }
    } else {
      moved = TakeTurns(block, 0, threads);
    }
    if (!moved) ReportHang(name, *block);
  }
}

dim3 Unflatten(size_t number, const dim3& size) {
  const auto n = static_cast<unsigned>(number);
  return {n % size.x, n / size.x % size.y, n / size.x / size.y};
}

}  // namespace

void SetOrder(Order order, uint64_t seed) {
  Now().order = order;
  Now().random.seed(seed);
}

void RunGrid(const char* name, dim3 grid, dim3 block_size, size_t shared_bytes,
             const std::function<void()>& body) {
  State& now = Now();
  const size_t threads = size_t{block_size.x} * block_size.y * block_size.z;
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  constexpr size_t kMaxThreads = 1024, kMaxShared = 227 << 10, kAlignment = 1024;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || shared_bytes > kMaxShared) {
    throw gpu::GpuError(std::string(name) + ": invalid launch: grid " + Text(grid) + ", block " +
                        Text(block_size) + ", " + std::to_string(shared_bytes) +
                        " bytes of shared memory");
  }
  while (now.stacks.size() < threads) now.stacks.push_back(std::make_unique<Stack>());
  for (const size_t number : Turns(blocks)) {
    // A new allocation, so that the address sanitizer knows its bounds.
    now.shared = std::vector<std::byte>(shared_bytes + kAlignment, std::byte{0xff});
    void* begin = now.shared.data();
    size_t space = now.shared.size();
    now.shared_begin = static_cast<std::byte*>(std::align(kAlignment, shared_bytes, begin, space));
    ++now.blocks;
    Block block;
    block.body = &body;
    block.exchanges.resize((threads + kWarpLanes - 1) / kWarpLanes);
    block.threads.resize(threads);
    for (size_t t = 0; t < threads; ++t) {
      Thread& thread = block.threads[t];
      thread.place = {Unflatten(t, block_size), Unflatten(number, grid), block_size, grid};
      thread.number = static_cast<unsigned>(t);
      thread.stack_pointer = Prepare(*now.stacks[t]);
    }
    try {
      RunBlock(name, &block);
    } catch (const std::exception& error) {
      now.block = nullptr;
      now.running = nullptr;
#if defined(__SANITIZE_ADDRESS__)
      // Functions that never returned have left marks around what was theirs.
      for (const auto& stack : now.stacks)
        __asan_unpoison_memory_region(stack->base(), kStackBytes);
#endif
      const std::string text = error.what();
      const bool named = text.rfind(name, 0) == 0;
      throw gpu::GpuError(named ? text : std::string(name) + ": " + text);
    }
    now.block = nullptr;
  }
}

void Enqueue(void* handle, const char* name, std::function<void()> work) {
  if (handle == nullptr) return work();
  static_cast<Queue*>(handle)->Add(name, std::move(work));
}

const Place& Here() { return Running().place; }
unsigned ThreadNumber() { return Running().number; }

uint64_t BlocksBegun() { return Now().blocks; }

std::byte* DynamicShared() {
  Running();
  return Now().shared_begin;
}

void Await(const uint64_t* counter, uint64_t seen, const char* what) {
  Thread& thread = Running();
  thread.counter = counter;
  thread.seen = seen;
  thread.what = what;
  while (thread.waits()) ToScheduler(false);
}

void NamedBarrier(int id, unsigned count) {
  if (id < 0 || id >= kBarriers) throw gpu::GpuError("there are 16 barriers, 0 to 15");
  Barrier& barrier = Now().block->barriers[static_cast<size_t>(id)];
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  static const auto names = [] {
    std::array<std::string, kBarriers> all;
    for (int i = 0; i < kBarriers; ++i)
      all[static_cast<size_t>(i)] = "barrier " + std::to_string(i);
    all[0] = "__syncthreads";
    return all;
  }();
  Await(&barrier.generation, generation, names[static_cast<size_t>(id)].c_str());
}

void SyncThreads() {
  Running();
  NamedBarrier(0, static_cast<unsigned>(Now().block->threads.size()));
}

const uint64_t* WarpExchange(unsigned mask, uint64_t value, const char* what) {
  const unsigned number = ThreadNumber(), lane = number % kWarpLanes;
  Block& block = *Now().block;
  // The last warp of a block may be short.
  const size_t first = number - lane;
  const size_t lanes = std::min(block.threads.size() - first, size_t{kWarpLanes});
  const unsigned present = lanes == kWarpLanes ? ~0u : (1u << lanes) - 1u;
  if ((mask & present) >> lane == 0 || ((mask >> lane) & 1u) == 0) {
    throw gpu::GpuError(std::string(what) + ": lane " + std::to_string(lane) +
                        " is not in its own mask");
  }
  Exchange& exchange = block.exchanges[number / kWarpLanes][mask & present];
  const uint64_t generation = exchange.generation;
  auto& values = exchange.values[generation % 2];
  values[lane] = value;
  if (++exchange.arrived == static_cast<unsigned>(__builtin_popcount(mask & present))) {
    exchange.arrived = 0;
    ++exchange.generation;
  } else {
    Await(&exchange.generation, generation, what);
  }
  return values.data();
}

}  // namespace contraflow::emulator
