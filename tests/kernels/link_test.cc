#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/routing.h"
#include "tests/support/failure.h"

// Copies and sums of devices that share an address space.
namespace contraflow::link_test {
namespace {

TEST_SUITE("kernel") {
  TEST_CASE("link: a copy has every byte and no more") {
    Draws random(1);
    const size_t stretch = 8 * 512 * 16;
    for (const size_t bytes : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{5000}, stretch,
                               stretch + 33, 3 * stretch - 1, 5 * stretch}) {
      for (const int ctas : {1, 2, 7}) {
        CAPTURE(bytes);
        CAPTURE(ctas);
        std::vector<uint8_t> values(bytes + 16);
        for (uint8_t& value : values) value = static_cast<uint8_t>(random());
        OnDevice<uint8_t> from(values), to(bytes + 16);
        ShuffleThreads(random());
        gpu::LinkCopy(TestStream(), from.data(), to.data(), bytes, ctas);
        std::fill(values.begin() + static_cast<ptrdiff_t>(bytes), values.end(), uint8_t{0xff});
        CHECK(to.Get() == values);
      }
    }
    OnDevice<uint8_t> nothing(16);
    gpu::LinkCopy(TestStream(), nothing.data(), nothing.data(), 0, 1);
    CHECK_THROWS_WITH_AS(gpu::LinkCopy(TestStream(), nothing.data(), nothing.data(), 16, 0),
                         "LinkCopy: 0 CTAs; at least 1", gpu::GpuError);
  }

  TEST_CASE("link: sums in the order of the parts") {
    Draws random(2);
    for (const int count : {0, 1, 2, 3, 16}) {
      for (const size_t n : {size_t{1}, size_t{4}, size_t{1023}, size_t{4096}, size_t{9001}}) {
        CAPTURE(count);
        CAPTURE(n);
        std::vector<OnDevice<float>> parts;
        std::vector<float> sum(n);
        gpu::SumParts pointers = {};
        pointers.count = count;
        for (int p = 0; p < count; ++p) {
          const std::vector<float> part = RandomFloats(n, random());
          for (size_t i = 0; i < n; ++i) sum[i] = p == 0 ? part[i] : sum[i] + part[i];
          parts.emplace_back(part);
          pointers.part[p] = parts.back().data();
        }
        ShuffleThreads(random());
        gpu::OrderedSum(TestStream(), pointers, n, 3);
        // Sums of floats in this order: the very bits.
        for (const OnDevice<float>& part : parts) CHECK(part.Get() == sum);
      }
    }
    gpu::SumParts many = {};
    many.count = 17;
    CHECK_THROWS_WITH_AS(gpu::OrderedSum(TestStream(), many, 1, 1),
                         "OrderedSum: 17 parts; at most 16 are possible", gpu::GpuError);
  }

  TEST_CASE("link: sums of parts that begin anywhere") {
    OnDevice<float> one(RandomFloats(41, 1)), other(RandomFloats(41, 2));
    std::vector<float> sum = one.Get();
    const std::vector<float> more = other.Get();
    for (size_t i = 1; i < 41; ++i) sum[i] += more[i];
    gpu::SumParts parts = {};
    parts.count = 2;
    parts.part[0] = one.data() + 1;
    parts.part[1] = other.data() + 1;
    gpu::OrderedSum(TestStream(), parts, 40, 2);
    CHECK(one.Get() == sum);
  }
}

}  // namespace
}  // namespace contraflow::link_test

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
    const size_t large = SmallShapes() ? 1301 : 1'300'003;
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
        // Memory around the own values stays.
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
          std::tuple(SmallShapes() ? 301 : 70'001, 3, SmallShapes() ? 302 : 70'003,
                     SmallShapes() ? 310 : 70'002, 4),
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

namespace contraflow::stamp_test {
namespace {

TEST_SUITE("kernel") {
  TEST_CASE("stamp: the clock goes on from launch to launch") {
    OnDevice<uint64_t> stamps(2);
    gpu::Stamp(TestStream(), stamps.data());
    gpu::Nothing(TestStream());
    gpu::Stamp(TestStream(), stamps.data() + 1);
    const std::vector<uint64_t> at = stamps.Get();
    CHECK(at[0] > 0);
    CHECK(at[0] != ~uint64_t{0});
    CHECK(at[1] > at[0]);
  }
}

}  // namespace
}  // namespace contraflow::stamp_test
