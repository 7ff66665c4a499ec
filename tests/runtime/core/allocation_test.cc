// Allocations, and when: every allocation of this program is counted.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/launch/threaded_run.h"
#include "tests/support/run_support.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<int> allocations = 0;
// Sizes of what was allocated with an alignment of its own, while counting.
std::array<size_t, 4096> aligned_sizes;
std::atomic<size_t> aligned = 0;
thread_local bool is_main = false;

void* AllocateOrNull(size_t size) {
  if (counting && !is_main) ++allocations;
  return std::malloc(std::max<size_t>(size, 1));
}

void* Allocate(size_t size) {
  void* const memory = AllocateOrNull(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* AllocateAligned(size_t size, size_t alignment) {
  if (counting && !is_main) ++allocations;
  if (counting && aligned < aligned_sizes.size()) aligned_sizes[aligned++] = size;
  void* const memory = std::aligned_alloc(
      alignment, std::max(alignment, (size + alignment - 1) / alignment * alignment));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return AllocateOrNull(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return AllocateOrNull(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return AllocateAligned(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace contraflow {
namespace {

/// Allocations of the threads of the ranks in three steps after the first.
int AllocationsOf(const Plan& plan, const Model& model, bool strict) {
  const Dataset dataset = SmallDataset();
  ThreadedRun run(plan, model, dataset, 3, {.strict = strict});
  run.Step(1);
  is_main = true;
  allocations = 0;
  counting = true;
  for (int step = 2; step <= 4; ++step) run.Step(step);
  counting = false;
  is_main = false;
  return allocations;
}

TEST_SUITE("unit") {
  TEST_CASE("allocation: none while a step runs") {
    for (const char* schedule : {"dualpipe", "1f1b", "zb-1p"}) {
      for (const float capacity : {0.0f, 0.7f}) {
        const Model model = GroupModel(capacity);
        const Plan plan = PlanFor(model, schedule, 4, 8, 2, Level::kBuffer, 4);
        CAPTURE(schedule);
        CAPTURE(capacity);
        CHECK(AllocationsOf(plan, model, capacity > 0) == 0);
      }
    }
    const Model model = GroupModel();
    for (const Level level : {Level::kComm, Level::kComponent}) {
      CHECK(AllocationsOf(PlanFor(model, "1f1b", 4, 8, 2, level, 4), model, false) == 0);
    }
  }

  TEST_CASE("allocation: one for each arena of exactly the bytes that the plan says") {
    const Model model = GroupModel();
    const Dataset dataset = SmallDataset();
    const Plan plan = PlanFor(model, "dualpipe", 4, 8, 2, Level::kBuffer, 4);
    aligned = 0;
    is_main = true;
    counting = true;
    ThreadedRun run(plan, model, dataset, 3, {});
    counting = false;
    is_main = false;
    REQUIRE(aligned < aligned_sizes.size());
    std::vector<size_t> sizes(aligned_sizes.begin(),
                              aligned_sizes.begin() + static_cast<std::ptrdiff_t>(aligned.load()));
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const auto predicted = ArenaBytes(plan.slots[static_cast<size_t>(rank)]);
      for (int member = 0; member < plan.expert_parallel; ++member) {
        CHECK(run.At({0, member, rank}).arena_bytes() == predicted);
        for (const int64_t bytes : predicted) {
          const auto found = std::ranges::find(sizes, static_cast<size_t>(bytes));
          REQUIRE(bytes > 0);
          REQUIRE(found != sizes.end());
          sizes.erase(found);
        }
      }
    }
  }
}

}  // namespace
}  // namespace contraflow
