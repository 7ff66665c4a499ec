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
  popq %rcx  # not ret, which a processor expects to go where it was called from
  jmp *%rcx
.size contraflow_emulator_switch,.-contraflow_emulator_switch
)");

namespace contraflow::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;
// Stacks begin at this many places of a cache: if all had the same, each would push the others out.
constexpr size_t kColours = 61, kColourBytes = 1024 + 64;
constexpr unsigned kWarpLanes = 32;
constexpr int kBarriers = 16;

/// A stack; its memory is taken by what touches it only.
class Stack {
 public:
  explicit Stack(size_t number)
      : colour_(number % kColours * kColourBytes),
        base_(static_cast<std::byte*>(mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base_ == MAP_FAILED) throw gpu::GpuError("the emulator has no memory for stacks");
  }
  Stack(const Stack&) = delete;
  ~Stack() {
#if defined(__SANITIZE_ADDRESS__)
    // Marks of functions that never returned would remain for the next owner of these pages.
    __asan_unpoison_memory_region(base_, kStackBytes);
#endif
    munmap(base_, kStackBytes);
  }
  std::byte* base() const { return base_; }
  std::byte* top() const { return base_ + kStackBytes - colour_; }

 private:
  const size_t colour_;
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

/// Exchanges of a warp, by mask; that of the whole warp, which most are of, is found at once.
struct Exchanges {
  Exchange whole;
  std::map<unsigned, Exchange> others;

  Exchange& Of(unsigned mask) { return mask == ~0u ? whole : others[mask]; }
};

struct Thread {
  Place place;
  void* stack_pointer = nullptr;
  bool done = false;
  const uint64_t* counter = nullptr;
  uint64_t seen = 0;
  const char* what = "";

  bool waits() const { return counter != nullptr && *counter == seen; }
};

struct Block {
  std::array<Barrier, kBarriers> barriers;
  std::vector<Exchanges> exchanges;  // by warp
  std::vector<std::byte> shared;
  std::byte* shared_begin = nullptr;
  size_t left = 0;  // threads that have not ended
};

/// The blocks that run concurrently.
struct Cluster {
  std::vector<Block> blocks;
  std::vector<Thread> threads;  // of the first block, of the second
  Barrier barrier;
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;

  size_t block_threads() const { return threads.size() / blocks.size(); }
};

struct State {
  Order order = Order::kForward;
  std::mt19937_64 random{1};
  std::vector<std::unique_ptr<Stack>> stacks;
  uint64_t clusters = 0;
  void (*at_block_end)() = nullptr;
  Cluster* cluster = nullptr;
  Thread* running = nullptr;
  void* scheduler = nullptr;  // its stack pointer while a thread runs
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
};

// Looked at by every call of every thread.
State state;
State& Now() { return state; }

Thread& Running() {
  Here();
  return *Now().running;
}

Block& RunningBlock() { return Now().cluster->blocks[ClusterRank()]; }

void SetRunning(Thread* thread) {
  Now().running = thread;
  running_place = thread == nullptr ? nullptr : &thread->place;
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
    (*now.cluster->body)();
    if (--RunningBlock().left == 0 && now.at_block_end != nullptr) now.at_block_end();
  } catch (...) {
    now.cluster->error = std::current_exception();
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
  SetRunning(thread);
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack.base(), kStackBytes);
#endif
  contraflow_emulator_switch(&now.scheduler, thread->stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  SetRunning(nullptr);
}

std::vector<size_t> Turns(size_t count) {
  State& now = Now();
  std::vector<size_t> turns(count);
  std::iota(turns.begin(), turns.end(), size_t{0});
  if (now.order == Order::kReverse) std::ranges::reverse(turns);
  if (now.order == Order::kShuffled) std::shuffle(turns.begin(), turns.end(), now.random);
  return turns;
}

std::string Text(const dim3& at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
         ")";
}

[[noreturn]] void ReportHang(const char* name, const Cluster& cluster) {
  std::string text = std::string(name) + ":";
  for (size_t rank = 0; rank < cluster.blocks.size(); ++rank) {
    const Thread* const threads = &cluster.threads[rank * cluster.block_threads()];
    std::map<std::string, std::vector<unsigned>> waiting;
    for (size_t t = 0; t < cluster.block_threads(); ++t) {
      if (!threads[t].done) waiting[threads[t].what].push_back(threads[t].place.number);
    }
    if (waiting.empty()) continue;
    text += (text.back() == ':' ? " block " : "; block ") + Text(threads[0].place.block) + " hangs";
    for (const auto& [what, numbers] : waiting) {
      text += "; " + std::to_string(numbers.size()) + " threads wait at " + what +
              ", the first is " + std::to_string(numbers.front());
    }
  }
  throw gpu::GpuError(text);
}

/// Each of `count` threads from `first` on goes as far as it comes; whether one could.
bool TakeTurns(Cluster* cluster, size_t first, size_t count) {
  bool moved = false;
  const auto take = [&](size_t turn) {
    Thread& thread = cluster->threads[first + turn];
    if (thread.done || thread.waits()) return;
    thread.counter = nullptr;
    Resume(&thread, *Now().stacks[first + turn]);
    moved = true;
    if (cluster->error != nullptr) std::rethrow_exception(cluster->error);
  };
  if (Now().order == Order::kForward) {
    for (size_t turn = 0; turn < count; ++turn) take(turn);
  } else {
    for (const size_t turn : Turns(count)) take(turn);
  }
  return moved;
}

/// Runs all threads to their end.
void RunCluster(const char* name, Cluster* cluster) {
  State& now = Now();
  now.cluster = cluster;
  const size_t block_threads = cluster->block_threads();
  const size_t blocks = cluster->blocks.size(), warps = cluster->blocks[0].exchanges.size();
  // Parts that run as far as they can before others have their turn: or else no warp, and no block
  // of a cluster, ever is more than a turn ahead of the others.
  enum class Hurry : uint8_t { kNone, kWarps, kBlocks };
  Hurry hurry = Hurry::kNone;
  if (now.order == Order::kShuffled && now.random() % 2 == 0) {
    hurry = blocks > 1 && now.random() % 2 == 0 ? Hurry::kBlocks : Hurry::kWarps;
  }
  while (!std::ranges::all_of(cluster->threads, [](const Thread& thread) { return thread.done; })) {
    bool moved = false;
    if (hurry == Hurry::kWarps) {
      for (const size_t warp : Turns(blocks * warps)) {
        const size_t in_block = warp % warps * kWarpLanes;
        const size_t first = warp / warps * block_threads + in_block;
        const size_t lanes = std::min(block_threads - in_block, size_t{kWarpLanes});
        while (TakeTurns(cluster, first, lanes)) moved = true;
      }
    } else if (hurry == Hurry::kBlocks) {
      for (const size_t rank : Turns(blocks)) {
        while (TakeTurns(cluster, rank * block_threads, block_threads)) moved = true;
      }
    } else {
      moved = TakeTurns(cluster, 0, cluster->threads.size());
    }
    if (!moved) ReportHang(name, *cluster);
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
             const std::function<void()>& body, unsigned cluster_size) {
  State& now = Now();
  const size_t threads = size_t{block_size.x} * block_size.y * block_size.z;
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  constexpr size_t kMaxThreads = 1024, kMaxShared = 227 << 10, kAlignment = 1024;
  constexpr unsigned kMaxCluster = 8;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || shared_bytes > kMaxShared ||
      cluster_size == 0 || cluster_size > kMaxCluster || grid.x % cluster_size != 0) {
    throw gpu::GpuError(std::string(name) + ": invalid launch: grid " + Text(grid) + ", block " +
                        Text(block_size) + ", " + std::to_string(shared_bytes) +
                        " bytes of shared memory, clusters of " + std::to_string(cluster_size));
  }
  while (now.stacks.size() < threads * cluster_size) {
    now.stacks.push_back(std::make_unique<Stack>(now.stacks.size()));
  }
  for (const size_t number : Turns(blocks / cluster_size)) {
    ++now.clusters;
    Cluster cluster;
    cluster.body = &body;
    cluster.blocks.resize(cluster_size);
    cluster.threads.resize(threads * cluster_size);
    for (unsigned rank = 0; rank < cluster_size; ++rank) {
      Block& block = cluster.blocks[rank];
      block.exchanges.resize((threads + kWarpLanes - 1) / kWarpLanes);
      block.left = threads;
      // A new allocation, so that the address sanitizer knows its bounds.
      block.shared = std::vector<std::byte>(shared_bytes + kAlignment, std::byte{0xff});
      void* at = block.shared.data();
      size_t space = block.shared.size();
      block.shared_begin = static_cast<std::byte*>(std::align(kAlignment, shared_bytes, at, space));
      for (size_t t = 0; t < threads; ++t) {
        Thread& thread = cluster.threads[rank * threads + t];
        thread.place = {Unflatten(t, block_size),
                        Unflatten(number * cluster_size + rank, grid),
                        block_size,
                        grid,
                        static_cast<unsigned>(t),
                        rank};
        thread.stack_pointer = Prepare(*now.stacks[rank * threads + t]);
      }
    }
    try {
      RunCluster(name, &cluster);
    } catch (const std::exception& error) {
      now.cluster = nullptr;
      SetRunning(nullptr);
#if defined(__SANITIZE_ADDRESS__)
      // Functions that never returned have left marks around what was theirs.
      for (const auto& stack : now.stacks)
        __asan_unpoison_memory_region(stack->base(), kStackBytes);
#endif
      const std::string text = error.what();
      const bool named = text.rfind(name, 0) == 0;
      throw gpu::GpuError(named ? text : std::string(name) + ": " + text);
    }
    now.cluster = nullptr;
  }
}

void Enqueue(void* handle, const char* name, std::function<void()> work) {
  if (handle == nullptr) return work();
  static_cast<Queue*>(handle)->Add(name, std::move(work));
}

const Place* running_place = nullptr;
void RefuseOutsideKernel() { throw gpu::GpuError("device code was called outside a kernel"); }

uint64_t ClustersBegun() { return Now().clusters; }

void AtBlockEnd(void (*check)()) { Now().at_block_end = check; }

std::byte* DynamicShared() { return RunningBlock().shared_begin; }

std::byte* DynamicShared(unsigned rank) {
  Running();
  std::vector<Block>& blocks = Now().cluster->blocks;
  if (rank >= blocks.size()) {
    throw gpu::GpuError("there is no block " + std::to_string(rank) + " in the cluster");
  }
  if (blocks[rank].left == 0) {
    throw gpu::GpuError("block " + std::to_string(rank) +
                        " of the cluster has ended, and its shared memory with it");
  }
  return blocks[rank].shared_begin;
}

void Await(const uint64_t* counter, uint64_t seen, const char* what) {
  Thread& thread = Running();
  thread.counter = counter;
  thread.seen = seen;
  thread.what = what;
  while (thread.waits()) ToScheduler(false);
}

static void ArriveAndWait(Barrier* barrier, size_t count, const char* what) {
  const uint64_t generation = barrier->generation;
  if (++barrier->arrived == count) {
    barrier->arrived = 0;
    ++barrier->generation;
    return;
  }
  Await(&barrier->generation, generation, what);
}

void NamedBarrier(int id, unsigned count) {
  if (id < 0 || id >= kBarriers) throw gpu::GpuError("there are 16 barriers, 0 to 15");
  ArriveAndWait(&RunningBlock().barriers[static_cast<size_t>(id)], count,
                id == 0 ? "__syncthreads" : "bar.sync");
}

void SyncThreads() {
  Running();
  NamedBarrier(0, static_cast<unsigned>(Now().cluster->block_threads()));
}

void SyncCluster() {
  Running();
  Cluster& cluster = *Now().cluster;
  ArriveAndWait(&cluster.barrier, cluster.threads.size(), "the barrier of the cluster");
}

const uint64_t* WarpExchange(unsigned mask, uint64_t value, const char* what) {
  const unsigned number = ThreadNumber(), lane = number % kWarpLanes;
  Block& block = RunningBlock();
  // The last warp of a block may be short.
  const size_t first = number - lane;
  const size_t lanes = std::min(Now().cluster->block_threads() - first, size_t{kWarpLanes});
  const unsigned present = lanes == kWarpLanes ? ~0u : (1u << lanes) - 1u;
  if ((mask & present) >> lane == 0 || ((mask >> lane) & 1u) == 0) {
    throw gpu::GpuError(std::string(what) + ": lane " + std::to_string(lane) +
                        " is not in its own mask");
  }
  Exchange& exchange = block.exchanges[number / kWarpLanes].Of(mask & present);
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
