#include "kernels/gpu/clip.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/host/adamw.h"
#include "tests/support/guarded.h"

namespace contraflow::clip_test {
namespace {

gpu::Stream NarrowStream() { return {TestStream().handle, 1}; }

TEST_SUITE("kernel") {
  TEST_CASE("clip: the squares of each block go to its place, the same bits on any number of SMs") {
    // A block that ends with a tile, one of one value, one in several tiles.
    const std::vector<size_t> sizes = {5, gpu::kSquareTile, 1, 2 * gpu::kSquareTile + 777, 1000};
    const std::vector<int> places = {4, 0, 6, 2, 1};
    std::vector<gpu::SquareTile> tiles;
    std::vector<gpu::SquareBlock> blocks;
    size_t all = 0;
    for (size_t b = 0; b < sizes.size(); ++b) {
      gpu::AddSquareBlock(all, sizes[b], places[b], &tiles, &blocks);
      all += sizes[b];
    }
    CHECK(tiles.size() == 7);
    const std::vector<float> values = RandomFloats(all, 7, 3);
    Guarded<float> x(values);
    OnDevice<gpu::SquareTile> device_tiles(tiles);
    OnDevice<gpu::SquareBlock> device_blocks(blocks);
    std::vector<double> wide;
    for (const gpu::Stream stream : {TestStream(), NarrowStream()}) {
      Guarded<double> partial(tiles.size()), squares(std::vector<double>(7, -1));
      OnDevice<int32_t> not_finite(std::vector<int32_t>{0});
      gpu::SumSquares(stream, x.data(), device_tiles.data(), static_cast<int>(tiles.size()),
                      device_blocks.data(), static_cast<int>(blocks.size()), partial.data(),
                      squares.data(), not_finite.data());
      CHECK(not_finite.Get() == std::vector<int32_t>{0});
      const std::vector<double> got = squares.Get();
      size_t begin = 0;
      for (size_t b = 0; b < sizes.size(); ++b) {
        const double host = SumOfSquares(sizes[b], values.data() + begin);
        CHECK(std::abs(got[static_cast<size_t>(places[b])] / host - 1) < 1e-12);
        begin += sizes[b];
      }
      CHECK(got[3] == -1);
      CHECK(got[5] == -1);
      if (wide.empty()) wide = got;
      CHECK(got == wide);
    }
  }

  TEST_CASE("clip: the first block with a value that is not finite is known") {
    // More blocks than warps are in a thread block, of one tile or of two.
    constexpr size_t kBlocks = 20;
    std::vector<gpu::SquareTile> tiles;
    std::vector<gpu::SquareBlock> blocks;
    std::vector<size_t> begins = {0};
    for (size_t b = 0; b < kBlocks; ++b) {
      const size_t size = b == 7 ? gpu::kSquareTile + 3 : 1 + 5 * b;
      gpu::AddSquareBlock(begins.back(), size, 0, &tiles, &blocks);
      begins.push_back(begins.back() + size);
    }
    OnDevice<gpu::SquareTile> device_tiles(tiles);
    OnDevice<gpu::SquareBlock> device_blocks(blocks);
    const auto found = [&](const std::vector<std::pair<size_t, float>>& bad) {
      std::vector<float> values = RandomFloats(begins.back(), 7, 3);
      for (const auto& [at, value] : bad) values[at] = value;
      Guarded<float> x(values);
      Guarded<double> partial(tiles.size());
      OnDevice<int32_t> not_finite(std::vector<int32_t>{0});
      gpu::SumSquares(TestStream(), x.data(), device_tiles.data(), static_cast<int>(tiles.size()),
                      device_blocks.data(), kBlocks, partial.data(), nullptr, not_finite.data());
      return static_cast<int>(kBlocks) - not_finite.Get()[0];
    };
    CHECK(found({{begins[8] - 1, 3e38f}}) == kBlocks);
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      CHECK(found({{0, bad}}) == 0);
      CHECK(found({{begins[8] - 1, bad}}) == 7);
      CHECK(found({{begins[kBlocks] - 1, bad}}) == kBlocks - 1);
      CHECK(found({{begins[12], bad}, {begins[9], 1}, {begins[11] - 1, bad}}) == 10);
    }
  }

  TEST_CASE("clip: a step that has failed is noted for good") {
    const auto note = [](std::vector<float> losses, const std::vector<int32_t>& flags) {
      OnDevice<float> device_losses(losses);
      OnDevice<int32_t> device_flags(flags);
      Guarded<double> noted(std::vector<double>{-1});
      gpu::NoteFailure(TestStream(), device_losses.data(), static_cast<int>(losses.size()),
                       device_flags.data(), static_cast<int>(flags.size()), noted.data());
      return noted.Get()[0];
    };
    std::vector<float> losses(300, 5);
    std::vector<int32_t> flags(300, 0);
    CHECK(note(losses, flags) == 0);
    flags[299] = 2;
    CHECK(std::isnan(note(losses, flags)));
    flags[299] = 0;
    for (const float bad : {INFINITY, NAN}) {
      losses[299] = bad;
      CHECK(std::isnan(note(losses, flags)));
    }
    // Two devices, whose only number is the note.
    OnDevice<gpu::Clip> clip(std::vector<gpu::Clip>{{0, 0, 0}});
    const auto failed = [&](double first, double second) {
      OnDevice<double> notes(std::vector<double>{first, second});
      gpu::ClipToNorm(TestStream(), notes.data(), 2, 1, INFINITY, clip.data());
      return clip.Get()[0].failed;
    };
    CHECK(failed(0, 0) == 0);
    CHECK(clip.Get()[0].norm == 0);
    CHECK(clip.Get()[0].scale == 1);
    CHECK(failed(0, NAN) == 1);
    CHECK(failed(0, 0) == 1);
  }

  TEST_CASE("clip: each block counts once, in order, and a norm within the limit changes nothing") {
    // More blocks than a thread block has threads; each is in one part or in two.
    constexpr int kBlocks = 600, kParts = 3;
    std::vector<double> squares(size_t{kParts} * kBlocks);
    double sum = 0;
    for (size_t i = 0; i < kBlocks; ++i) {
      const double square = std::pow(10, static_cast<double>(i % 13) - 6);
      squares[i % kParts * kBlocks + i] = square;
      if (i % 4 == 0) squares[(i + 1) % kParts * kBlocks + i] = square;
      sum += square;
    }
    const std::vector<float> values = RandomFloats(5000, 1);
    const auto clipped = [&](float limit, double* norm) {
      OnDevice<double> parts(squares);
      OnDevice<gpu::Clip> clip(1);
      Guarded<float> x(values);
      gpu::ClipToNorm(TestStream(), parts.data(), kParts, kBlocks, limit, clip.data());
      gpu::ScaleToClip(NarrowStream(), clip.data(), values.size(), x.data());
      *norm = clip.Get()[0].norm;
      return x.Get();
    };
    double norm = 0;
    CHECK(clipped(2e5f, &norm) == values);
    CHECK(norm == std::sqrt(sum));
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= static_cast<float>(0.5 / norm);
    CHECK(clipped(0.5f, &norm) == scaled);
    // A norm that is none clips nothing; gradients after an infinite one are as nothing.
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      squares[kBlocks + 5] = bad;
      std::vector<float> left = values;
      if (std::isinf(bad)) {
        for (float& value : left) value *= 0;
      }
      CHECK(clipped(0.5f, &norm) == left);
      CHECK(!std::isfinite(norm));
    }
  }
}

}  // namespace
}  // namespace contraflow::clip_test
