#include <doctest/doctest.h>

#include "kernels/gpu/stream.h"
#include "tests/emulator/test_gpu.h"

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
