#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kernels/gpu/routing.h"
#include "kernels/host/routing.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/routing.h"

namespace contraflow::permutation_test {
namespace {

using gpu::Bf16;

struct Sorted {
  std::vector<int32_t> first, token_of, row_of;
  int dropped = 0;

  bool operator==(const Sorted&) const = default;
};

/// What the host makes of it.
Sorted SortOnHost(const Routing& r, int capacity) {
  const size_t pairs = r.expert.size(), experts = static_cast<size_t>(r.experts);
  const size_t rows = capacity > 0 ? experts * static_cast<size_t>(capacity) : pairs;
  Sorted s{std::vector<int32_t>(experts + 1), std::vector<int32_t>(rows),
           std::vector<int32_t>(pairs), 0};
  if (capacity > 0) {
    s.dropped = SortIntoCapacity(r.expert.data(), r.rows, r.experts, r.top_k, capacity,
                                 s.first.data(), s.token_of.data(), s.row_of.data());
  } else {
    SortByExpert(r.expert.data(), r.rows, r.experts, r.top_k, s.first.data(), s.token_of.data(),
                 s.row_of.data());
  }
  return s;
}

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
    for (int round = 0; round < (Emulated() ? 40 : 300); ++round) {
      const bool long_one = round % 8 == 0;
      const Routing r = RandomRouting(!Emulated() ? 20000 : long_one ? 800 : 60, 80, &random);
      CheckSort(r, 0, &random);
      const int even = (r.rows * r.top_k + r.experts - 1) / r.experts;
      CheckSort(r, 1 + random.Below(2 * even), &random);
    }
  }

  TEST_CASE("permutation: many pairs and many experts") {
    Draws random(2);
    // More chunks of pairs than lanes of the warp that adds them up.
    const int many = Emulated() ? 5000 : 65536;
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

  TEST_CASE("permutation: gather and its gradient") {
    Draws random(5);
    for (int round = 0; round < (Emulated() ? 40 : 200); ++round) {
      const Routing r = RandomRouting(Emulated() ? 30 : 500, 20, &random);
      const int capacity = round % 2 == 0 ? 0 : 1 + random.Below(12);
      const int vectors = 1 + random.Below(Emulated() ? 40 : 600);
      const int width = round % 3 == 0 ? vectors : 8 * vectors;
      CAPTURE(ToString(r));
      CAPTURE(capacity);
      CAPTURE(width);
      const Sorted s = SortOnHost(r, capacity);
      const int sorted_rows = static_cast<int>(s.token_of.size());
      const auto w = static_cast<size_t>(width);
      const std::vector<Bf16> x = RandomBf16(static_cast<size_t>(r.rows) * w, random());
      const std::vector<Bf16> dsorted = RandomBf16(s.token_of.size() * w, random());

      std::vector<double> sorted(dsorted.size()), dx(x.size());
      GatherTokens(Doubles(x).data(), s.token_of.data(), sorted_rows, width, sorted.data());
      GatherTokensBackwardInput(Doubles(dsorted).data(), s.row_of.data(), r.rows, r.top_k, width,
                                dx.data());

      OnDevice<Bf16> on_x(x), on_sorted(sorted.size()), on_dsorted(dsorted), on_dx(x.size());
      OnDevice<int32_t> token_of(s.token_of), row_of(s.row_of);
      OnDevice<Bf16> spread(sorted.size());
      const auto run = [&](int sms) {
        const gpu::Stream stream{TestStream().handle, sms};
        on_sorted.Poison();
        on_dx.Poison();
        spread.Poison();
        gpu::SpreadTokens(stream, on_x.data(), row_of.data(), token_of.data(), r.rows, sorted_rows,
                          r.top_k, width, spread.data());
        gpu::GatherTokens(stream, on_x.data(), token_of.data(), sorted_rows, width,
                          on_sorted.data());
        gpu::GatherTokensBackwardInput(stream, on_dsorted.data(), row_of.data(), r.rows, r.top_k,
                                       width, on_dx.data());
        return std::array{on_sorted.Get(), spread.Get(), on_dx.Get()};
      };
      const auto got = run(132);
      CHECK(Doubles(got[0]) == sorted);
      CHECK(got[1] == got[0]);
      CHECK(RelativeError(Doubles(got[2]), dx) < 4e-3);
      ShuffleThreads(random());
      CHECK(run(1) == got);
    }
  }

  TEST_CASE("permutation: rows that begin anywhere") {
    const int width = 24;
    const std::vector<Bf16> x = RandomBf16(5 * width + 1, 1);
    OnDevice<Bf16> from(x), to(3 * width + 1), spread(3 * width + 1), back(5 * width + 1);
    OnDevice<int32_t> token_of(std::vector<int32_t>{4, -1, 2});
    OnDevice<int32_t> row_of(std::vector<int32_t>{-1, -1, 2, -1, 0});
    gpu::GatherTokens(TestStream(), from.data() + 1, token_of.data(), 3, width, to.data() + 1);
    gpu::SpreadTokens(TestStream(), from.data() + 1, row_of.data(), token_of.data(), 5, 3, 1, width,
                      spread.data() + 1);
    gpu::GatherTokensBackwardInput(TestStream(), to.data() + 1, row_of.data(), 5, 1, width,
                                   back.data() + 1);
    std::vector<Bf16> sorted(3 * width + 1, Bf16{0xffff}), again(5 * width + 1, Bf16{0xffff});
    std::fill(sorted.begin() + 1, sorted.end(), Bf16{0});
    std::fill(again.begin() + 1, again.end(), Bf16{0});
    for (const auto& [token, row] : {std::pair(4, 0), std::pair(2, 2)}) {
      std::copy_n(x.begin() + 1 + token * width, width, sorted.begin() + 1 + row * width);
      std::copy_n(x.begin() + 1 + token * width, width, again.begin() + 1 + token * width);
    }
    CHECK(to.Get() == sorted);
    CHECK(spread.Get() == sorted);
    CHECK(back.Get() == again);
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
