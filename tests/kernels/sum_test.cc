#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "tests/emulator/test_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::sum_test {
namespace {

/// Values of very different sizes: sums in another order have other bits.
std::vector<float> Uneven(size_t size, unsigned seed) {
  std::vector<float> values = RandomFloats(size, seed);
  std::mt19937 random(seed);
  for (float& value : values) value *= static_cast<float>(1 << random() % 20);
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_SUITE("kernel") {
  TEST_CASE("sum: slices are added in the order of their parts whoever adds them") {
    const size_t large = Emulated() ? 1301 : 1'300'003;
    unsigned seed = 1;
    for (const auto& [n, stride, parts, offset] :
         {std::tuple(size_t{1}, size_t{1}, 2, size_t{0}),
          std::tuple(size_t{8}, size_t{12}, 3, size_t{0}),
          std::tuple(size_t{257}, size_t{260}, 5, size_t{3}),
          std::tuple(large, large + 3, 4, size_t{0}),
          std::tuple(large - 1, large + 3, 17, size_t{1}),
          std::tuple(size_t{1024}, size_t{1024}, 8, size_t{0})}) {
      CAPTURE(n);
      CAPTURE(parts);
      std::vector<std::vector<float>> values;
      for (int part = 0; part < parts; ++part) values.push_back(Uneven(n, seed++));
      std::vector<float> sum = values[0];
      for (size_t part = 1; part < values.size(); ++part) {
        for (size_t k = 0; k < n; ++k) sum[k] += values[part][k];
      }
      for (const int self : {0, parts / 2, parts - 1}) {
        std::vector<float> others;
        for (int part = 0; part < parts; ++part) {
          if (part == self) continue;
          const std::vector<float>& theirs = values[static_cast<size_t>(part)];
          others.insert(others.end(), theirs.begin(), theirs.end());
          others.resize(others.size() + stride - n, -1e30f);
        }
        // What stands around the own values stays.
        std::vector<float> own(offset, 7);
        const std::vector<float>& mine = values[static_cast<size_t>(self)];
        own.insert(own.end(), mine.begin(), mine.end());
        own.push_back(9);
        OnDevice<float> there(own);
        OnDevice<float> slices(others);
        ShuffleThreads(seed);
        gpu::AddSlices(TestStream(), {there.data() + offset, slices.data(), stride, parts, self}, n,
                       3);
        std::vector<float> expected(offset, 7);
        expected.insert(expected.end(), sum.begin(), sum.end());
        expected.push_back(9);
        CHECK(SameBits(there.Get(), expected));
      }
    }
  }

  TEST_CASE("sum: of one part or of nothing is what it was") {
    const std::vector<float> values = Uneven(33, 4);
    OnDevice<float> there(values);
    gpu::AddSlices(TestStream(), {there.data(), nullptr, 33, 1, 0}, 33, 4);
    gpu::AddSlices(TestStream(), {there.data(), there.data(), 0, 4, 2}, 0, 4);
    CHECK(SameBits(there.Get(), values));
  }

  TEST_CASE("parts: each is copied from its place to its place and nothing else") {
    // In words of 8 values.
    for (const auto& [words, parts, from_stride, to_stride, ctas] :
         {std::tuple(1, 1, 1, 1, 1), std::tuple(3, 4, 3, 7, 2), std::tuple(5, 3, 11, 5, 16),
          std::tuple(Emulated() ? 301 : 70'001, 3, Emulated() ? 302 : 70'003,
                     Emulated() ? 310 : 70'002, 4),
          std::tuple(4, 0, 4, 4, 1)}) {
      CAPTURE(words);
      CAPTURE(parts);
      const auto size = [parts = parts](int stride) {
        return static_cast<size_t>(8 * stride * parts);
      };
      const std::vector<gpu::Bf16> values = RandomBf16(size(from_stride), 3);
      OnDevice<gpu::Bf16> from(values);
      OnDevice<gpu::Bf16> to(size(to_stride));
      const std::vector<gpu::Bf16> before = to.Get();
      std::vector<gpu::Bf16> expected = before;
      for (int part = 0; part < parts; ++part) {
        for (int k = 0; k < 8 * words; ++k) {
          expected[static_cast<size_t>(8 * to_stride * part + k)] =
              values[static_cast<size_t>(8 * from_stride * part + k)];
        }
      }
      gpu::CopyParts(TestStream(), from.data(), static_cast<size_t>(16 * from_stride), to.data(),
                     static_cast<size_t>(16 * to_stride), static_cast<size_t>(16 * words), parts,
                     ctas);
      const std::vector<gpu::Bf16> got = to.Get();
      CHECK((got.empty() ||
             std::memcmp(got.data(), expected.data(), got.size() * sizeof(gpu::Bf16)) == 0));
    }
    CHECK(Failure([] { gpu::CopyParts(TestStream(), nullptr, 16, nullptr, 16, 8, 1, 1); }) ==
          "CopyParts: parts and strides must be multiples of 16 bytes");
  }

  TEST_CASE("parts: the counts of an exchange with a capacity") {
    for (const auto& [members, local, capacity] :
         {std::tuple(1, 1, 5), std::tuple(3, 7, 2), std::tuple(40, 9, 128)}) {
      std::vector<int32_t> first, received;
      for (int e = 0; e <= local; ++e) first.push_back(e * members * capacity);
      received.assign(static_cast<size_t>(members * local), capacity);
      OnDevice<int32_t> device_first(first.size()), device_received(received.size());
      gpu::SetCounts(TestStream(), device_first.data(), device_received.data(), members, local,
                     capacity);
      CHECK(device_first.Get() == first);
      CHECK(device_received.Get() == received);
    }
  }
}

}  // namespace
}  // namespace contraflow::sum_test
