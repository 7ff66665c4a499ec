// What devices that share an address space copy and add up.

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/gpu/exchange.h"
#include "tests/emulator/test_gpu.h"
#include "tests/kernels/routing.h"

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
        // Of floats in this order: the very bits.
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
