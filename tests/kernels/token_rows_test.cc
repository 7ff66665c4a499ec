#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "kernels/gpu/routing.h"
#include "kernels/host/routing.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/routing.h"

namespace contraflow::token_rows_test {
namespace {

using gpu::Bf16;

/// Tokens with rows to combine; the rows that no pair has are full of NaN, and so are the weights
/// of pairs without a row.
struct Rows {
  Routing routing;
  int width, count;
  std::vector<int32_t> token_of, row_of;
  std::vector<Bf16> residual, sorted, dy;
  std::vector<float> weight;

  Rows(const Routing& r, int capacity, int row_width, Draws* random)
      : routing(r), width(row_width) {
    const auto w = static_cast<size_t>(width), rows = static_cast<size_t>(r.rows);
    const size_t pairs = r.expert.size();
    const Sorted s = SortOnHost(r, capacity);
    token_of = s.token_of;
    row_of = s.row_of;
    count = static_cast<int>(token_of.size());
    residual = RandomBf16(rows * w, (*random)());
    sorted = RandomBf16(token_of.size() * w, (*random)());
    dy = RandomBf16(rows * w, (*random)());
    weight = RandomFloats(pairs, (*random)());
    for (size_t pair = 0; pair < pairs; ++pair) {
      if (row_of[pair] < 0) weight[pair] = std::numeric_limits<float>::quiet_NaN();
    }
    for (size_t row = 0; row < token_of.size(); ++row) {
      if (token_of[row] >= 0) continue;
      std::fill_n(sorted.begin() + static_cast<ptrdiff_t>(row * w), w, Bf16{0x7fc0});
    }
  }
};

Rows RandomRows(Draws* random) {
  const unsigned round = (*random)();
  const Routing r = RandomRouting(SmallShapes() ? 30 : 500, 20, random);
  const int capacity = round % 2 == 0 ? 0 : 1 + random->Below(12);
  const int vectors = 1 + random->Below(SmallShapes() ? 40 : 600);
  return Rows(r, capacity, round % 3 == 0 ? vectors : 8 * vectors, random);
}

std::string ToString(const Rows& rows) {
  return ToString(rows.routing) + ", " + std::to_string(rows.count) + " rows of " +
         std::to_string(rows.width);
}

TEST_SUITE("kernel") {
  TEST_CASE("permutation: gather and its gradient") {
    Draws random(5);
    for (int round = 0; round < (SmallShapes() ? 40 : 200); ++round) {
      const Routing r = RandomRouting(SmallShapes() ? 30 : 500, 20, &random);
      const int capacity = round % 2 == 0 ? 0 : 1 + random.Below(12);
      const int vectors = 1 + random.Below(SmallShapes() ? 40 : 600);
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

  TEST_CASE("combine: residual and weighted rows") {
    Draws random(1);
    for (int round = 0; round < (SmallShapes() ? 40 : 200); ++round) {
      const Rows x = RandomRows(&random);
      CAPTURE(ToString(x));
      std::vector<double> y(x.residual.size());
      CombineForward(Doubles(x.residual).data(), Doubles(x.sorted).data(), x.row_of.data(),
                     Doubles(x.weight).data(), x.routing.rows, x.routing.top_k, x.width, y.data());
      OnDevice<Bf16> residual(x.residual), sorted(x.sorted), on_y(y.size());
      OnDevice<int32_t> row_of(x.row_of);
      OnDevice<float> weight(x.weight);
      OnDevice<Bf16> on_kept(x.sorted.size());
      const auto run = [&](int sms, Bf16* kept) {
        on_y.Poison();
        on_kept.Poison();
        gpu::CombineForward({TestStream().handle, sms}, residual.data(), sorted.data(),
                            row_of.data(), weight.data(), x.routing.rows, x.routing.top_k, x.width,
                            on_y.data(), kept);
        return on_y.Get();
      };
      const std::vector<Bf16> got = run(132, nullptr);
      CHECK(RelativeError(Doubles(got), y) < 4e-3);
      ShuffleThreads(random());
      CHECK(run(1, on_kept.data()) == got);
      std::vector<Bf16> kept(x.sorted.size(), Bf16{0xffff});
      for (const int row : x.row_of) {
        if (row < 0) continue;
        const ptrdiff_t begin = ptrdiff_t{row} * x.width;
        std::copy_n(x.sorted.begin() + begin, x.width, kept.begin() + begin);
      }
      CHECK(on_kept.Get() == kept);
    }
  }

  TEST_CASE("combine: gradient of rows and weights") {
    Draws random(2);
    for (int round = 0; round < (SmallShapes() ? 40 : 200); ++round) {
      const Rows x = RandomRows(&random);
      CAPTURE(ToString(x));
      // Rows that no pair has keep these zeros.
      std::vector<double> dsorted(x.sorted.size()), dweight(x.weight.size());
      CombineBackwardInput(Doubles(x.dy).data(), Doubles(x.sorted).data(), x.row_of.data(),
                           Doubles(x.weight).data(), x.routing.rows, x.routing.top_k, x.width,
                           dsorted.data(), dweight.data());
      OnDevice<Bf16> dy(x.dy), sorted(x.sorted), on_dsorted(dsorted.size());
      OnDevice<int32_t> row_of(x.row_of), token_of(x.token_of);
      OnDevice<float> weight(x.weight), on_dweight(dweight.size());
      const auto run = [&](int sms) {
        on_dsorted.Poison();
        on_dweight.Poison();
        gpu::CombineBackwardInput({TestStream().handle, sms}, dy.data(), sorted.data(),
                                  row_of.data(), token_of.data(), weight.data(), x.routing.rows,
                                  x.count, x.routing.top_k, x.width, on_dsorted.data(),
                                  on_dweight.data());
        return std::pair(on_dsorted.Get(), on_dweight.Get());
      };
      const auto got = run(132);
      CHECK(RelativeError(Doubles(got.first), dsorted) < 4e-3);
      CHECK(RelativeError(Doubles(got.second), dweight) < 1e-5);
      for (size_t i = 0; i < dsorted.size(); ++i) {
        if (dsorted[i] == 0) REQUIRE(gpu::ToFloat(got.first[i]) == 0);
      }
      ShuffleThreads(random());
      CHECK(run(1) == got);
    }
  }

  TEST_CASE("combine: no tokens leave empty rows") {
    OnDevice<int32_t> token_of(std::vector<int32_t>(5, -1));
    OnDevice<Bf16> dsorted(5 * 8);
    gpu::CombineBackwardInput(TestStream(), nullptr, nullptr, nullptr, token_of.data(), nullptr, 0,
                              5, 2, 8, dsorted.data(), nullptr);
    CHECK(dsorted.Get() == std::vector<Bf16>(5 * 8, Bf16{0}));
    gpu::CombineForward(TestStream(), nullptr, nullptr, nullptr, nullptr, 0, 2, 8, nullptr);
    CHECK_THROWS_WITH_AS(
        gpu::CombineForward(TestStream(), nullptr, nullptr, nullptr, nullptr, 1, 17, 8, nullptr),
        "CombineForward: 17 choices of a token; at most 16 are possible", gpu::GpuError);
  }
}

}  // namespace
}  // namespace contraflow::token_rows_test
