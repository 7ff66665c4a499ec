#include "tests/emulator/emulator.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "kernels/gpu/simt.h"
#include "tests/support/failure.h"

namespace contraflow::emulator_test {
namespace {

// Each thread writes its number, then reads its neighbour's.
std::vector<int> Rotate(bool barrier) {
  std::vector<int> shared(64, -1), seen(64, -1);
  emulator::RunGrid("Rotate", 1, 64, 0, [&] {
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (barrier) __syncthreads();
    seen[threadIdx.x] = shared[(threadIdx.x + 1) % 64];
  });
  return seen;
}

TEST_SUITE("unit") {
  TEST_CASE("emulator: a barrier makes the order of threads irrelevant and its lack shows") {
    std::set<std::vector<int>> with, without;
    for (const auto order :
         {emulator::Order::kForward, emulator::Order::kReverse, emulator::Order::kShuffled}) {
      emulator::SetOrder(order, 3);
      with.insert(Rotate(true));
      without.insert(Rotate(false));
    }
    CHECK(with.size() == 1);
    CHECK(with.begin()->at(63) == 0);
    CHECK(without.size() == 3);
  }

  TEST_CASE("emulator: in some orders a warp is ahead by all that no barrier holds back") {
    // Sums are kept in one place for all rounds, so that the next overwrites what others still
    // read.
    const auto sums_seen_right = [](int rounds_apart) {
      std::vector<int> shared(2), wrong(64);
      emulator::RunGrid("Ahead", 1, 64, 0, [&] {
        for (int round = 0; round < 4; ++round) {
          const int sum = static_cast<int>(gpu::WarpSum(1)) + round;
          const auto place = static_cast<size_t>(round % rounds_apart);
          if (threadIdx.x == 0) shared[place] = sum;
          __syncthreads();
          if (shared[place] != sum) ++wrong[threadIdx.x];
        }
      });
      return std::set<int>(wrong.begin(), wrong.end()) == std::set<int>{0};
    };
    size_t right = 0;
    for (unsigned seed = 1; seed <= 20; ++seed) {
      emulator::SetOrder(emulator::Order::kShuffled, seed);
      right += sums_seen_right(1);
      CHECK(sums_seen_right(2));
    }
    CHECK(right > 0);
    CHECK(right < 20);
  }

  TEST_CASE("emulator: shuffles and votes give what each lane of the warp gave") {
    emulator::SetOrder(emulator::Order::kShuffled, 5);
    std::vector<float> sums(70), ups(70);
    std::vector<unsigned> votes(70);
    emulator::RunGrid("Shuffle", 1, 64, 0, [&] {
      const unsigned t = threadIdx.x;
      sums[t] = gpu::WarpSum(static_cast<float>(t));
      ups[t] = __shfl_up_sync(~0u, static_cast<float>(t), 2);
      votes[t] = __ballot_sync(~0u, t % 3 == 0);
    });
    CHECK(sums[0] == 31 * 16);
    CHECK(sums[63] == 31 * 16 + 32 * 32);
    CHECK(ups[1] == 1);
    CHECK(ups[40] == 38);
    CHECK(votes[5] == 0x49249249u);
  }

  TEST_CASE("emulator: a block that hangs says who waits where") {
    emulator::SetOrder(emulator::Order::kForward);
    const auto half = [] {
      if (threadIdx.x < 32) __syncthreads();
      if (threadIdx.x == 40) __shfl_xor_sync(~0u, 1, 1);
    };
    CHECK(Failure([&] { emulator::RunGrid("Half", dim3(1, 2), 64, 0, half); }) ==
          "Half: block (0, 0, 0) hangs; 1 threads wait at __shfl_xor_sync, the first is 40; "
          "32 threads wait at __syncthreads, the first is 0");
    CHECK(
        Contains(Failure([&] { emulator::RunGrid("Half", 1, 2048, 0, half); }), "invalid launch"));
  }
}

}  // namespace
}  // namespace contraflow::emulator_test
