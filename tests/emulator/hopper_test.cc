#include "kernels/gpu/hopper.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/emulator/test_gpu.h"
#include "tests/support/failure.h"

namespace contraflow::hopper_test {
namespace {

// The emulation of Hopper's instructions itself: the words of the PTX ISA, written down a second
// time, against what hopper_emulated.cc does.

using gpu::Bf16;

constexpr int kSharedBytes = 64 << 10;
constexpr int kBytesOfA = 2 * 64 * 64, kBytesOfB = 2 * 256 * 64;

struct Shared {
  unsigned char a[kBytesOfA], b[kBytesOfB];
  gpu::Mbarrier full;
};

/// A slab of 64 k: one operand of `mn` by 64, as rows of k (K-major) or of mn.
struct Operand {
  bool mn_major;
  size_t mn;
  std::vector<Bf16> values;

  Operand(bool mn_is_major, size_t size, unsigned seed)
      : mn_major(mn_is_major), mn(size), values(RandomBf16(size * 64, seed)) {}
  double At(size_t i, size_t k) const {
    return static_cast<double>(gpu::ToFloat(values[mn_major ? k * mn + i : i * 64 + k]));
  }
  gpu::TensorMap Map() const {
    return mn_major ? gpu::MapTensor(values.data(), mn, 64, 1, 64)
                    : gpu::MapTensor(values.data(), 64, mn, 1, static_cast<uint32_t>(mn));
  }
  void Load(unsigned char* to, const gpu::TensorMap& map, gpu::Mbarrier* full) const {
    if (!mn_major) return gpu::LoadBox(to, map, 0, 0, 0, full);
    for (size_t panel = 0; panel < mn / 64; ++panel) {
      gpu::LoadBox(to + panel * 8192, map, static_cast<int>(panel * 64), 0, 0, full);
    }
  }
  uint32_t StepBytes() const { return mn_major ? 2048 : 32; }
};

template <bool kAMn, bool kBMn>
void CheckProduct() {
  CAPTURE(kAMn);
  CAPTURE(kBMn);
  const Operand a(kAMn, 64, 3), b(kBMn, 256, 4);
  const gpu::TensorMap a_map = a.Map(), b_map = b.Map();
  std::vector<float> out(64 * 256, 100);
  int early_numbers = 0;
  emulator::SetOrder(emulator::Order::kShuffled, 7);
  emulator::RunGrid("Product", 1, 128, kSharedBytes, [&] {
    auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
    if (threadIdx.x == 0) {
      gpu::MbarrierInit(&shared->full, 1);
      gpu::MbarrierInitFence();
      gpu::MbarrierExpect(&shared->full, kBytesOfA + kBytesOfB);
      a.Load(shared->a, a_map, &shared->full);
      b.Load(shared->b, b_map, &shared->full);
    }
    __syncthreads();
    gpu::MbarrierWait(&shared->full, 0);
    // The fragment of a thread by the words of the ISA: warp w has rows 16 w to 16 w + 15.
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto at = [&](size_t i) {
      const size_t row = 16 * warp + lane / 4 + (i % 4 >= 2 ? 8 : 0);
      const size_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      return row * 256 + column;
    };
    float sums[gpu::kAccumulators];
    for (size_t i = 0; i < 128; ++i) sums[i] = out[at(i)];
    gpu::WgmmaFence(sums);
    for (uint32_t k = 0; k < 4; ++k) {
      gpu::Wgmma<kAMn, kBMn>(
          sums,
          gpu::MatrixDescriptor(gpu::SharedAddress(shared->a) + k * a.StepBytes(), 8192, 1024),
          gpu::MatrixDescriptor(gpu::SharedAddress(shared->b) + k * b.StepBytes(), 8192, 1024),
          true);
    }
    gpu::WgmmaCommit();
    for (const float sum : sums) early_numbers += std::isnan(sum) ? 0 : 1;
    gpu::WgmmaWait<0>(sums);
    for (size_t i = 0; i < 128; ++i) out[at(i)] = sums[i];
  });
  CHECK(early_numbers == 0);
  std::vector<double> expected;
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 256; ++j) {
      double sum = 100;
      for (size_t k = 0; k < 64; ++k) sum += a.At(i, k) * b.At(j, k);
      expected.push_back(sum);
    }
  }
  CHECK(RelativeError(Doubles(out), expected) < 1e-6);
}

/// Runs one warpgroup with a barrier that one arrival ends.
void RunGroup(const std::function<void(Shared*)>& body) {
  emulator::SetOrder(emulator::Order::kForward);
  emulator::RunGrid("Group", 1, 128, kSharedBytes, [&] {
    auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
    if (threadIdx.x == 0) gpu::MbarrierInit(&shared->full, 1);
    __syncthreads();
    body(shared);
  });
}

/// Runs a cluster of two warps, each a block, whose barriers one arrival ends.
void RunPair(const std::function<void(Shared*, unsigned)>& body) {
  emulator::RunGrid(
      "Pair", 2, 32, kSharedBytes,
      [&] {
        auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
        if (threadIdx.x == 0) gpu::MbarrierInit(&shared->full, 1);
        emulator::SyncCluster();
        body(shared, emulator::ClusterRank());
      },
      2);
}

TEST_SUITE("unit") {
  TEST_CASE("hopper: a matrix descriptor has the fields of the ISA") {
    const uint64_t descriptor = gpu::MatrixDescriptor(0x2'3450, 8192, 1024);
    CHECK((descriptor & 0x3fff) == 0x2345);
    CHECK((descriptor >> 14 & 3) == 0);
    CHECK((descriptor >> 16 & 0x3fff) == 512);
    CHECK((descriptor >> 32 & 0x3fff) == 64);
    CHECK((descriptor >> 49 & 7) == 0);
    CHECK((descriptor >> 62) == 1);
  }

  TEST_CASE("hopper: a box comes swizzled and zero outside of the tensor and NaN before") {
    // 3 matrices of 5 rows of 72; the box lies over the right and the lower edge of the second.
    const std::vector<Bf16> values = RandomBf16(3 * 5 * 72, 9);
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 72, 5, 3, 8);
    int wrong = 0, early = 0;
    emulator::RunGrid("Load", 1, 1, kSharedBytes, [&] {
      auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
      gpu::MbarrierInit(&shared->full, 1);
      std::memset(shared->a, 0, sizeof(shared->a));
      gpu::LoadBox(shared->a + 1024, map, 32, 2, 1, &shared->full);
      const auto* box = reinterpret_cast<const Bf16*>(shared->a + 1024);
      for (int i = 0; i < 512; ++i) early += std::isnan(gpu::ToFloat(box[i])) ? 0 : 1;
      gpu::MbarrierExpect(&shared->full, 8 * 128);
      gpu::MbarrierWait(&shared->full, 0);
      for (size_t r = 0; r < 8; ++r) {
        for (size_t c = 0; c < 64; ++c) {
          const bool inside = 2 + r < 5 && 32 + c < 72;
          const Bf16 expected = inside ? values[(5 + 2 + r) * 72 + 32 + c] : Bf16{0};
          // Groups of 8 elements change their places with the row.
          if (!(box[r * 64 + ((c / 8) ^ r) * 8 + c % 8] == expected)) ++wrong;
        }
      }
      if (shared->a[1023] != 0 || shared->a[1024 + 1024] != 0) ++wrong;
    });
    CHECK(early == 0);
    CHECK(wrong == 0);
  }

  TEST_CASE("hopper: products of operands of either order spread over a warpgroup") {
    CheckProduct<false, false>();
    CheckProduct<false, true>();
    CheckProduct<true, false>();
    CheckProduct<true, true>();
  }

  TEST_CASE("hopper: a product reads shared memory as it is when waited for") {
    // A GPU might read what is loaded over operands before WgmmaWait.
    const Operand a(false, 64, 3), b(false, 256, 4);
    const gpu::TensorMap a_map = a.Map(), b_map = b.Map();
    int numbers = 0;
    RunGroup([&](Shared* shared) {
      if (threadIdx.x == 0) {
        gpu::MbarrierExpect(&shared->full, kBytesOfA + kBytesOfB);
        a.Load(shared->a, a_map, &shared->full);
        b.Load(shared->b, b_map, &shared->full);
      }
      gpu::MbarrierWait(&shared->full, 0);
      float sums[gpu::kAccumulators] = {};
      gpu::WgmmaFence(sums);
      gpu::Wgmma<false, false>(sums, gpu::MatrixDescriptor(gpu::SharedAddress(shared->a), 0, 1024),
                               gpu::MatrixDescriptor(gpu::SharedAddress(shared->b), 0, 1024),
                               false);
      gpu::WgmmaCommit();
      __syncthreads();
      if (threadIdx.x == 0) gpu::MbarrierExpect(&shared->full, kBytesOfB);
      if (threadIdx.x == 0) b.Load(shared->b, b_map, &shared->full);
      __syncthreads();
      gpu::WgmmaWait<0>(sums);
      for (const float sum : sums) numbers += std::isnan(sum) ? 0 : 1;
      __syncthreads();
      gpu::MbarrierWait(&shared->full, 1);
    });
    CHECK(numbers == 0);
  }

  TEST_CASE("hopper: stores to shared memory are seen by the matrix units after a fence only") {
    int before = -1, after = -1;
    RunGroup([&](Shared* shared) {
      if (threadIdx.x != 0) return;
      gpu::StoreShared(shared->a + 32, make_uint4(0, 0, 0, 0));
      before = shared->a[32];
      gpu::AsyncFence();
      after = shared->a[32] + shared->a[47];
    });
    CHECK(before == 0xff);
    CHECK(after == 0);
  }

  TEST_CASE("hopper: a box is stored as it would be loaded, and what lies outside is dropped") {
    // 5 matrices of 2 rows of 72; the box lies over the right and the last edge of the second row.
    std::vector<Bf16> values(5 * 2 * 72, Bf16{7});
    const std::vector<Bf16> before = values;
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 72, 2, 5, 1, 8);
    int early = 0, wrong = 0;
    emulator::RunGrid("Store", 1, 1, kSharedBytes, [&] {
      auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
      for (int chunk = 0; chunk < 64; ++chunk) {
        const auto x = static_cast<unsigned>(chunk);
        gpu::StoreShared(shared->a + 16 * chunk, make_uint4(x, x, x, x));
      }
      gpu::AsyncFence();
      gpu::StoreBox(map, 32, 1, 2, shared->a);
      gpu::StoreCommit();
      gpu::StoreWaitRead<1>();
      early = values == before ? 0 : 1;
      gpu::StoreWaitAll();
    });
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t matrix = i / 144, row = i / 72 % 2, column = i % 72;
      Bf16 expected{7};
      if (matrix >= 2 && row == 1 && column >= 32) {
        const size_t r = matrix - 2, chunk = r * 8 + ((column - 32) / 8 ^ r);
        expected = Bf16{static_cast<uint16_t>(column % 2 == 0 ? chunk : 0)};
      }
      if (!(values[i] == expected)) ++wrong;
    }
    CHECK(early == 0);
    CHECK(wrong == 0);
  }

  TEST_CASE("hopper: a box of floats is added, and what lies outside is dropped") {
    // 2 matrices of 3 rows of 36; the box begins at the second row of the second.
    std::vector<float> values(2 * 3 * 36, 0.5f);
    values.back() = 1e-39f;  // subnormal
    const gpu::TensorMap map = gpu::MapFloats(values.data(), 36, 3, 2, 4);
    emulator::RunGrid("Add", 1, 1, kSharedBytes, [&] {
      auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
      for (int pair = 0; pair < 64; ++pair) {
        const float left = static_cast<float>(2 * pair), right = left + 1;
        gpu::StoreShared(shared->a + 8 * pair,
                         make_uint2(std::bit_cast<uint32_t>(left), std::bit_cast<uint32_t>(right)));
      }
      gpu::AsyncFence();
      gpu::AddBox(map, 8, 1, 1, shared->a);
      gpu::StoreCommit();
      gpu::StoreWaitAll();
    });
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / 36 % 3, column = i % 36;
      float expected = 0.5f;
      if (i / 108 == 1 && row >= 1 && column >= 8) {
        const size_t r = row - 1, c = column - 8;
        expected += static_cast<float>(r * 32 + (c / 4 ^ r) * 4 + c % 4);
      }
      if (i + 1 == values.size()) expected -= 0.5f;
      if (values[i] != expected) ++wrong;
    }
    CHECK(wrong == 0);
    CHECK_THROWS_AS(gpu::StoreBox(map, 0, 0, 0, values.data()), gpu::GpuError);
  }

  TEST_CASE("hopper: a box for both blocks of a cluster comes to both, and each counts it off") {
    const std::vector<Bf16> values = RandomBf16(64 * 64, 9);
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 64, 64, 1, 32);
    for (unsigned seed = 1; seed <= 8; ++seed) {
      int wrong = 0;
      emulator::SetOrder(emulator::Order::kShuffled, seed);
      RunPair([&](Shared* shared, unsigned rank) {
        if (threadIdx.x == 0) {
          // The other block's half may be there before its bytes are expected here.
          gpu::LoadBoxToBlocks(shared->a + rank * 4096, map, 0, static_cast<int>(rank * 32), 0,
                               &shared->full, 3);
          gpu::MbarrierExpect(&shared->full, 8192);
        }
        gpu::MbarrierWait(&shared->full, 0);
        const auto* box = reinterpret_cast<const Bf16*>(shared->a);
        for (size_t r = 0; r < 64; ++r) {
          const size_t c = threadIdx.x % 64;
          if (!(box[r * 64 + ((c / 8) ^ r % 8) * 8 + c % 8] == values[r * 64 + c])) ++wrong;
        }
        emulator::SyncCluster();
      });
      CHECK(wrong == 0);
    }
  }

  TEST_CASE("hopper: what a cluster misses is an error that says what") {
    const std::vector<Bf16> values(64 * 64);
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 64, 64, 1, 32);
    emulator::SetOrder(emulator::Order::kForward);
    // The first block arrives at a barrier of the second, which has not been initialized.
    CHECK(Failure([&] {
            emulator::RunGrid(
                "Pair", 2, 32, kSharedBytes,
                [&] {
                  auto* shared = reinterpret_cast<Shared*>(emulator::DynamicShared());
                  if (threadIdx.x != 0) return;
                  gpu::MbarrierInit(&shared->full, 1);
                  gpu::MbarrierArriveAt(&shared->full, 1 - emulator::ClusterRank());
                },
                2);
          }) == "Pair: an mbarrier is used that is not initialized");
    CHECK(Failure([&] {
            emulator::SetOrder(emulator::Order::kReverse);
            RunPair([&](Shared* shared, unsigned rank) {
              if (rank == 0) gpu::MbarrierArriveAt(&shared->full, 1);
            });
          }) == "Pair: block 1 of the cluster has ended, and its shared memory with it");
    CHECK(Failure([&] {
            RunPair([&](Shared* shared, unsigned rank) {
              if (rank == 0 && threadIdx.x == 0) {
                gpu::LoadBoxToBlocks(shared->a, map, 0, 0, 0, &shared->full, 2);
              }
              if (rank == 1) emulator::SyncThreads();
              if (rank == 0) emulator::SyncThreads();
            });
          }) == "Pair: a block ends while a box is on its way to it");
    CHECK(Failure([&] {
            RunPair([&](Shared*, unsigned rank) {
              if (rank == 1) emulator::SyncCluster();
            });
          }) ==
          "Pair: block (1, 0, 0) hangs; 32 threads wait at the barrier of the cluster, the "
          "first is 0");
    CHECK(Failure([&] {
            RunPair([&](Shared* shared, unsigned) { gpu::MbarrierArriveAt(&shared->full, 2); });
          }) == "Pair: there is no block 2 in the cluster");
  }

  TEST_CASE("hopper: a box is stored before its shared memory is used again") {
    std::vector<Bf16> values(64 * 8);
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 64, 8, 1, 8);
    CHECK(Failure([&] {
            RunGroup([&](Shared* shared) {
              gpu::StoreBox(map, 0, 0, 0, shared->a);
              gpu::StoreCommit();
            });
          }) == "Group: a block ends before the boxes that it stores have been read");
    CHECK(Failure([&] {
            RunGroup([&](Shared* shared) {
              if (threadIdx.x != 0) return;
              gpu::StoreBox(map, 0, 0, 0, shared->a);
              gpu::StoreCommit();
              // Without a fence the box has been taken as it was before.
              gpu::StoreShared(shared->a + 16, make_uint4(1, 2, 3, 4));
              gpu::AsyncFence();
              gpu::StoreWaitAll();
            });
          }) == "Group: shared memory changes before the box that is stored from it has been read");
    CHECK(Failure([&] {
            RunGroup([&](Shared* shared) { gpu::StoreBox(map, 0, 0, 0, shared->a + 16); });
          }) == "Group: a box does not come from a multiple of 1024 in shared memory");
  }

  TEST_CASE("hopper: misuse is an error that says what") {
    const std::vector<Bf16> values(64 * 64);
    const gpu::TensorMap map = gpu::MapTensor(values.data(), 64, 64, 1, 64);
    const auto failure = [](const std::function<void(Shared*)>& body) {
      return Failure([&] { RunGroup(body); });
    };
    const auto product = [](Shared* shared, uint64_t flip, bool fence) {
      float sums[gpu::kAccumulators] = {};
      const uint64_t a = gpu::MatrixDescriptor(gpu::SharedAddress(shared->a), 0, 1024);
      if (fence) gpu::WgmmaFence(sums);
      gpu::Wgmma<false, false>(sums, a ^ flip, a, false);
      gpu::WgmmaCommit();
      gpu::WgmmaWait<0>(sums);
    };
    CHECK(failure([&](Shared* shared) {
            if (threadIdx.x == 0) gpu::MbarrierExpect(&shared->full, 4096);
            if (threadIdx.x == 0) gpu::LoadBox(shared->a, map, 0, 0, 0, &shared->full);
            gpu::MbarrierWait(&shared->full, 0);
          }) == "Group: block (0, 0, 0) hangs; 128 threads wait at an mbarrier, the first is 0");
    CHECK(failure([&](Shared* shared) {
            gpu::LoadBox(shared->a + 128, map, 0, 0, 0, &shared->full);
          }) == "Group: a box does not go to a multiple of 1024 in shared memory");
    CHECK(failure([&](Shared* shared) {
            gpu::MbarrierArrive(&shared->full);
            gpu::MbarrierExpect(&shared->full, 1);
            gpu::MbarrierArrive(&shared->full);
          }) == "Group: more threads arrive at an mbarrier than it counts");
    CHECK(failure([&](Shared* shared) { product(shared, 0, false); }) ==
          "Group: wgmma without a fence after its accumulators were read or written");
    CHECK(failure([&](Shared* shared) { product(shared, uint64_t{3} << 62, true); }) ==
          "Group: the swizzle of a matrix descriptor is not that of 128 bytes");
    CHECK(failure([&](Shared* shared) { product(shared, threadIdx.x == 5 ? 1 : 0, true); }) ==
          "Group: the lanes of a warp give different operands to wgmma");
    CHECK(Failure([&] { gpu::MapTensor(values.data() + 1, 64, 63, 1, 64); }) ==
          "a tensor is not 16-aligned");
    CHECK(Failure([&] { gpu::MapTensor(values.data(), 63, 64, 1, 64); }) ==
          "rows are no multiple of 16 bytes");
    CHECK(Failure([&] { gpu::MapTensor(values.data(), 64, 64, 1, 257); }) ==
          "a box has an extent that is not possible");
  }
}

}  // namespace
}  // namespace contraflow::hopper_test
