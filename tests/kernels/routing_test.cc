#include "kernels/gpu/routing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/host/routing.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/routing.h"

namespace contraflow::router_test {
namespace {

using gpu::Bf16;

struct Chosen {
  std::vector<float> probabilities, weight;
  std::vector<int32_t> expert;

  bool operator==(const Chosen&) const = default;
};

Chosen RunForward(const std::vector<float>& logits, int rows, int experts, int top_k,
                  int sms = 132) {
  const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(top_k);
  OnDevice<float> probabilities(logits), weight(pairs);
  OnDevice<int32_t> expert(pairs);
  gpu::RouterForward({TestStream().handle, sms}, rows, experts, top_k, probabilities.data(),
                     expert.data(), weight.data());
  return {probabilities.Get(), weight.Get(), expert.Get()};
}

/// Multiples of 1/8: many are equal, and those that are not stay apart when they are rounded.
std::vector<float> SteppedLogits(int rows, int experts, Draws* random) {
  std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(experts));
  for (float& x : logits) x = static_cast<float>(random->Below(80)) / 8.0f - 5.0f;
  return logits;
}

void CheckForward(int rows, int experts, int top_k, Draws* random) {
  CAPTURE(rows);
  CAPTURE(experts);
  CAPTURE(top_k);
  const std::vector<float> logits = SteppedLogits(rows, experts, random);
  const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(top_k);
  std::vector<double> probabilities = Doubles(logits), weight(pairs);
  std::vector<int32_t> expert(pairs);
  RouterForward(rows, experts, top_k, false, probabilities.data(), expert.data(), weight.data());

  const Chosen chosen = RunForward(logits, rows, experts, top_k);
  CHECK(chosen.expert == expert);
  CHECK(RelativeError(Doubles(chosen.probabilities), probabilities) < 1e-6);
  CHECK(RelativeError(Doubles(chosen.weight), weight) < 1e-6);
  // On one SM a warp has many rows.
  ShuffleThreads((*random)());
  CHECK(RunForward(logits, rows, experts, top_k, 1) == chosen);
}

TEST_SUITE("kernel") {
  TEST_CASE("router: probabilities and choices of random rows") {
    Draws random(1);
    for (int round = 0; round < (SmallShapes() ? 25 : 200); ++round) {
      const Routing sizes = RandomRouting(SmallShapes() ? 40 : 3000, 200, &random);
      CheckForward(sizes.rows, sizes.experts, sizes.top_k, &random);
    }
    for (const int experts : {32, 33, 64, 65, 128, 256, 300, 512, 1000, 1024}) {
      CheckForward(3, experts, 8, &random);
    }
    CheckForward(SmallShapes() ? 40 : 32768, 64, 8, &random);
    CheckForward(0, 4, 2, &random);
  }

  TEST_CASE("router: ties go to the lower index") {
    const auto chosen = RunForward(std::vector<float>(70, 0.5f), 1, 70, 16);
    for (int k = 0; k < 16; ++k) CHECK(chosen.expert[static_cast<size_t>(k)] == k);
    // All but one are too improbable for a float: their probabilities are equal, too.
    std::vector<float> logits(70);
    for (size_t e = 0; e < 70; ++e) logits[e] = -200.0f + static_cast<float>(e);
    logits[40] = 300;
    CHECK(RunForward(logits, 1, 70, 4).expert == std::vector<int32_t>{40, 0, 1, 2});
    CHECK(RunForward(logits, 1, 70, 4).weight == std::vector<float>{1, 0, 0, 0});
    CHECK(RunForward({-900, -900}, 1, 2, 2).weight == std::vector<float>{0.5f, 0.5f});
  }

  TEST_CASE("router: what is not a number still chooses experts that exist") {
    std::vector<float> logits(50, std::numeric_limits<float>::quiet_NaN());
    CHECK(RunForward(logits, 1, 50, 3).expert == std::vector<int32_t>{0, 1, 2});
    for (const float weight : RunForward(logits, 1, 50, 3).weight) CHECK(std::isnan(weight));
    logits.assign(50, -std::numeric_limits<float>::infinity());
    CHECK(RunForward(logits, 1, 50, 3).expert == std::vector<int32_t>{0, 1, 2});
  }

  TEST_CASE("router: gradient of the logits") {
    Draws random(2);
    for (int round = 0; round < 40; ++round) {
      const Routing r =
          RandomRouting(SmallShapes() ? 40 : 3000, round % 8 == 0 ? 1024 : 100, &random);
      CAPTURE(ToString(r));
      const size_t pairs = r.expert.size();
      std::vector<double> probabilities = Doubles(SteppedLogits(r.rows, r.experts, &random));
      std::vector<int32_t> expert(pairs);
      std::vector<double> weight(pairs);
      RouterForward(r.rows, r.experts, r.top_k, false, probabilities.data(), expert.data(),
                    weight.data());
      const std::vector<float> p(probabilities.begin(), probabilities.end());
      const std::vector<float> dweight = RandomFloats(pairs, random());
      std::vector<double> dlogits(p.size());
      RouterBackwardInput(Doubles(p).data(), expert.data(), Doubles(dweight).data(), r.rows,
                          r.experts, r.top_k, false, 0.0, dlogits.data());

      OnDevice<float> on_p(p), on_dweight(dweight);
      OnDevice<int32_t> on_expert(expert);
      OnDevice<Bf16> on_dlogits(p.size());
      const auto run = [&](int sms) {
        on_dlogits.Poison();
        gpu::RouterBackwardInput({TestStream().handle, sms}, on_p.data(), on_expert.data(),
                                 on_dweight.data(), r.rows, r.experts, r.top_k, on_dlogits.data());
        return on_dlogits.Get();
      };
      const std::vector<Bf16> got = run(132);
      // With a single expert the gradient is 0, and what there is of it is rounding.
      if (r.experts == 1) {
        for (const double d : Doubles(got)) CHECK(std::abs(d) < 1e-6);
      } else {
        CHECK(RelativeError(Doubles(got), dlogits) < 4e-3);
      }
      ShuffleThreads(random());
      CHECK(run(1) == got);
    }
  }

  TEST_CASE("router: sizes that are not possible") {
    CHECK_THROWS_WITH_AS(
        gpu::RouterForward(TestStream(), 1, 8, 9, nullptr, nullptr, nullptr),
        "RouterForward: a choice of 9 out of 8 experts; at most 16 of at most 1024 are possible",
        gpu::GpuError);
    CHECK_THROWS_AS(gpu::RouterForward(TestStream(), 1, 1025, 1, nullptr, nullptr, nullptr),
                    gpu::GpuError);
    CHECK_THROWS_AS(
        gpu::RouterBackwardInput(TestStream(), nullptr, nullptr, nullptr, 1, 20, 17, nullptr),
        gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::router_test

namespace contraflow::permutation_test {
namespace {

using gpu::Bf16;

Sorted SortOnDevice(const Routing& r, int capacity, bool count_dropped) {
  const Sorted sizes = SortOnHost(r, capacity);
  OnDevice<int32_t> expert(r.expert), first(sizes.first.size());
  // Not -1, which an empty row is to become.
  OnDevice<int32_t> token_of(std::vector<int32_t>(sizes.token_of.size(), 1 << 30));
  OnDevice<int32_t> row_of(sizes.row_of.size()), dropped(std::vector<int32_t>{100});
  OnDevice<std::byte> work(gpu::SortWork(r.rows, r.experts, r.top_k));
  gpu::SortByExpert(TestStream(), expert.data(), r.rows, r.experts, r.top_k, capacity, work.data(),
                    first.data(), token_of.data(), row_of.data(),
                    count_dropped ? dropped.data() : nullptr);
  return {first.Get(), token_of.Get(), row_of.Get(), dropped.Get()[0] - 100};
}

void CheckSort(const Routing& r, int capacity, Draws* random) {
  CAPTURE(ToString(r));
  CAPTURE(capacity);
  const Sorted expected = SortOnHost(r, capacity);
  ShuffleThreads((*random)());
  const Sorted sorted = SortOnDevice(r, capacity, true);
  CHECK(sorted.first == expected.first);
  CHECK(sorted.token_of == expected.token_of);
  CHECK(sorted.row_of == expected.row_of);
  CHECK(sorted.dropped == expected.dropped);
}

TEST_SUITE("kernel") {
  TEST_CASE("permutation: random choices sorted as on the host") {
    Draws random(1);
    for (int round = 0; round < (SmallShapes() ? 40 : 300); ++round) {
      const bool long_one = round % 8 == 0;
      const Routing r = RandomRouting(!SmallShapes() ? 20000 : long_one ? 800 : 60, 80, &random);
      CheckSort(r, 0, &random);
      const int even = (r.rows * r.top_k + r.experts - 1) / r.experts;
      CheckSort(r, 1 + random.Below(2 * even), &random);
    }
  }

  TEST_CASE("permutation: many pairs and many experts") {
    Draws random(2);
    // More chunks of pairs than lanes of the warp that adds them up.
    const int many = SmallShapes() ? 5000 : 65536;
    CheckSort(RandomRouting(many, 17, 16, &random), 0, &random);
    CheckSort(RandomRouting(300, 1024, 8, &random), 0, &random);
    CheckSort(RandomRouting(300, 1024, 8, &random), 3, &random);
    // Exactly a chunk, and one more.
    CheckSort(RandomRouting(256, 64, 8, &random), 0, &random);
    CheckSort(RandomRouting(257, 64, 8, &random), 0, &random);
    CheckSort(RandomRouting(2049, 5, 1, &random), 400, &random);
  }

  TEST_CASE("permutation: all to one expert and no tokens at all") {
    Draws random(3);
    Routing one{700, 9, 1, std::vector<int32_t>(700, 7)};
    CheckSort(one, 0, &random);
    CheckSort(one, 100, &random);
    CheckSort(one, 700, &random);
    CheckSort(one, 1000, &random);
    for (const int capacity : {0, 4}) CheckSort({0, 33, 2, {}}, capacity, &random);
  }

  TEST_CASE("permutation: nobody needs to count those without a row") {
    Draws random(4);
    const Routing r = RandomRouting(50, 3, 2, &random);
    Sorted expected = SortOnHost(r, 10);
    CHECK(expected.dropped == 70);
    expected.dropped = 0;
    CHECK(SortOnDevice(r, 10, false) == expected);
  }

  TEST_CASE("permutation: sizes that are not possible") {
    const auto sort = [](int experts, int top_k) {
      gpu::SortByExpert(TestStream(), nullptr, 1, experts, top_k, 0, nullptr, nullptr, nullptr,
                        nullptr, nullptr);
    };
    CHECK_THROWS_WITH_AS(
        sort(1025, 2), "SortByExpert: 2 choices of 1025 experts; at most 16 and 1024 are possible",
        gpu::GpuError);
    CHECK_THROWS_AS(sort(0, 1), gpu::GpuError);
    CHECK_THROWS_AS(sort(8, 0), gpu::GpuError);
    CHECK_THROWS_AS(sort(32, 17), gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::permutation_test
