#include "tests/emulator/hopper_emulated.h"

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace contraflow::emulator {
namespace {

using gpu::GpuError;
using gpu::kAccumulators;
using gpu::kBoxColumns;
using gpu::kBoxRowBytes;

// Shared memory does not begin at 0 on a GPU: the first KiB is the system's.
constexpr uint32_t kSharedBegin = 1024, kSharedEnd = kSharedBegin + (227u << 10);
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Require(bool holds, const char* what) {
  if (!holds) throw GpuError(what);
}

/// The 128-byte swizzle of an address in shared memory: bits 4 to 6 are changed by bits 7 to 9.
uint32_t Swizzle(uint32_t address) { return address ^ ((address >> 7 & 7u) << 4); }

std::byte* AtShared(uint32_t address, size_t bytes, unsigned rank = ClusterRank()) {
  if (address < kSharedBegin || address + bytes > kSharedEnd) {
    throw GpuError("address " + std::to_string(address) + " is not in shared memory");
  }
  return DynamicShared(rank) + (address - kSharedBegin);
}

/// The same place in the shared memory of another block.
template <typename T>
T* InBlock(T* own, unsigned rank) {
  return reinterpret_cast<T*>(AtShared(SharedAddress(own), sizeof(*own), rank));
}

/// A box of a tensor and its place in the shared memory of a block.
struct Box {
  unsigned rank;
  uint32_t shared;
  TensorMap map;
  int column, row, matrix;

  size_t rows() const { return size_t{map.box_rows} * map.box_matrices; }
  size_t bytes() const { return rows() * kBoxRowBytes; }
  /// Calls with each element in shared memory, and where it is in the tensor: null if outside.
  template <typename Visit>
  void EachElement(const Visit& visit) const {
    const auto [columns, tensor_rows, matrices] = map.extents;
    for (uint32_t r = 0; r < rows(); ++r) {
      for (int c = 0; c < kBoxColumns; ++c) {
        const int64_t x = column + c, y = row + int64_t{r % map.box_rows};
        const int64_t z = matrix + int64_t{r / map.box_rows};
        std::byte* element = nullptr;
        if (x >= 0 && y >= 0 && z >= 0 && static_cast<uint64_t>(x) < columns &&
            static_cast<uint64_t>(y) < tensor_rows && static_cast<uint64_t>(z) < matrices) {
          const uint64_t matrix_row =
              static_cast<uint64_t>(z) * tensor_rows + static_cast<uint64_t>(y);
          element =
              map.data + (matrix_row * columns + static_cast<uint64_t>(x)) * sizeof(gpu::Bf16);
        }
        const uint32_t offset = r * kBoxRowBytes + static_cast<uint32_t>(c) * 2;
        visit(AtShared(Swizzle(shared + offset), sizeof(gpu::Bf16), rank), element);
      }
    }
  }
  /// Content of shared memory.
  std::vector<std::byte> Bytes() const {
    const std::byte* const begin = AtShared(shared, bytes(), rank);
    return {begin, begin + bytes()};
  }
};

/// A box that a thread has begun to store, and what it was then.
struct Stored {
  Box box;
  std::vector<std::byte> bytes;
};

/// A product that a thread has issued.
struct Product {
  bool a_mn, b_mn, add;
  uint64_t a, b;
};
/// A thread's accumulators: of both its rows, the 64 columns that it has.
constexpr size_t kThreadRows = 2, kThreadColumns = kAccumulators / kThreadRows, kQuad = 4;
using Sums = std::array<std::array<float, kThreadColumns>, kThreadRows>;
struct Thread {
  bool fenced = false;
  std::vector<std::vector<Product>> groups;  // oldest first
  std::vector<Product> open;
  float* accumulators = nullptr;
  Sums sums;  // their values while products are under way
  // Stores to shared memory before a fence.
  std::vector<std::pair<void*, std::vector<std::byte>>> unseen;
  std::vector<std::vector<Stored>> stores;  // oldest group first
  std::vector<Stored> open_stores;
};

/// B as read from shared memory, for each lane of four the columns that it has.
using ColumnsOfB =
    std::array<std::array<std::array<float, kThreadColumns>, gpu::kWgmmaDepth>, kQuad>;

/// Copies under way in a block.
struct Flight {
  std::map<const Mbarrier*, std::vector<Box>> loads;
  std::deque<Thread> threads;
  // Good until the matrix units could see anything else in shared memory.
  std::map<std::pair<uint64_t, bool>, ColumnsOfB> columns_of_b;
};

/// Whatever is still under way when a block ends would use shared memory that is no longer its own.
void CheckEnd();

/// Copies in flight of a block of the running cluster.
Flight& FlightOf(unsigned rank) {
  static uint64_t cluster = 0;
  static std::map<unsigned, Flight> flights;
  if (cluster != ClustersBegun()) {
    cluster = ClustersBegun();
    flights.clear();
    AtBlockEnd(CheckEnd);
  }
  return flights[rank];
}
Flight& Now() { return FlightOf(ClusterRank()); }
Thread& Self() {
  std::deque<Thread>& threads = Now().threads;
  while (threads.size() <= ThreadNumber()) threads.emplace_back();
  return threads[ThreadNumber()];
}

void CheckEnd() {
  for (const auto& [mbarrier, boxes] : Now().loads) {
    Require(boxes.empty(), "a block ends while a box is on its way to it");
  }
  for (const Thread& thread : Now().threads) {
    Require(thread.stores.empty() && thread.open_stores.empty(),
            "a block ends before the boxes that it stores have been read");
  }
}

void EndPhaseIfComplete(Mbarrier* mbarrier) {
  if (mbarrier->pending > 0 || mbarrier->bytes != 0) return;
  mbarrier->pending = mbarrier->arrivals;
  ++mbarrier->phases_over;
}

void PerformLoads(unsigned rank, Mbarrier* mbarrier) {
  Flight& flight = FlightOf(rank);
  const std::vector<Box> boxes = std::move(flight.loads[mbarrier]);
  flight.loads[mbarrier].clear();
  flight.columns_of_b.clear();
  for (const Box& box : boxes) {
    box.EachElement([](std::byte* shared, const std::byte* element) {
      constexpr gpu::Bf16 kZero = {0};
      std::memcpy(shared, element == nullptr ? static_cast<const void*>(&kZero) : element,
                  sizeof(gpu::Bf16));
    });
    mbarrier->bytes -= static_cast<int64_t>(box.bytes());
  }
  EndPhaseIfComplete(mbarrier);
}

void BeginLoad(const Box& box, Mbarrier* mbarrier) {
  Require(box.shared % gpu::kAtomBytes == 0,
          "a box does not go to a multiple of 1024 in shared memory");
  Require(mbarrier->arrivals > 0, "an mbarrier is used that is not initialized");
  std::memset(AtShared(box.shared, box.bytes(), box.rank), 0xff, box.bytes());
  Flight& flight = FlightOf(box.rank);
  flight.columns_of_b.clear();
  flight.loads[mbarrier].push_back(box);
  if (mbarrier->waiting > 0) PerformLoads(box.rank, mbarrier);
}

/// An operand as a descriptor describes it.
struct Operand {
  uint32_t address, leading, stride;
  bool mn_major;

  Operand(uint64_t descriptor, bool mn)
      : address(static_cast<uint32_t>(descriptor & 0x3fffu) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fffu) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fffu) << 4),
        mn_major(mn) {
    Require(descriptor >> 62 == 1, "the swizzle of a matrix descriptor is not that of 128 bytes");
    Require((descriptor >> 49 & 7u) == 0, "the base offset of a matrix descriptor is not 0");
  }
  /// `mn` counts rows of A or columns of B.
  float At(size_t mn, size_t k) const {
    const auto m = static_cast<uint32_t>(mn), d = static_cast<uint32_t>(k);
    const uint32_t offset = mn_major ? m / 64 * leading + m % 64 * 2 + d / 8 * stride + d % 8 * 128
                                     : m / 8 * stride + m % 8 * 128 + d * 2;
    gpu::Bf16 value;
    std::memcpy(&value, AtShared(Swizzle(address + offset), sizeof(value)), sizeof(value));
    return gpu::ToFloat(value);
  }
};

const ColumnsOfB& ReadB(const Product& product) {
  auto [at, missing] = Now().columns_of_b.try_emplace({product.b, product.b_mn});
  if (missing) {
    const Operand b(product.b, product.b_mn);
    for (size_t quad = 0; quad < kQuad; ++quad) {
      for (size_t k = 0; k < gpu::kWgmmaDepth; ++k) {
        for (size_t c = 0; c < kThreadColumns; ++c) {
          at->second[quad][k][c] = b.At(c / 2 * 2 * kQuad + 2 * quad + c % 2, k);
        }
      }
    }
  }
  return at->second;
}

/// The running thread's part of a product of [64 x 16] by [16 x 256].
void Multiply(const Product& product, unsigned thread, Sums* sums) {
  const Operand a(product.a, product.a_mn);
  const auto& right = ReadB(product)[thread % kQuad];
  const size_t row = thread / 32 % 4 * 16 + thread % 32 / kQuad;
  for (size_t h = 0; h < kThreadRows; ++h) {
    // A copy, which nothing else is: the compiler makes vectors of it.
    auto sum = (*sums)[h];
    if (!product.add) sum.fill(0);
    for (size_t k = 0; k < gpu::kWgmmaDepth; ++k) {
      const float left = a.At(row + 8 * h, k);
      for (size_t c = 0; c < kThreadColumns; ++c) sum[c] += left * right[k][c];
    }
    (*sums)[h] = sum;
  }
}

/// Calls with the number of each accumulator, its row and its column among the thread's.
template <typename Visit>
void EachAccumulator(const Visit& visit) {
  for (size_t i = 0; i < kAccumulators; ++i) visit(i, i / 2 % 2, i / 4 * 2 + i % 2);
}

}  // namespace

TensorMap MapTensor(const void* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                    uint32_t box_rows, uint32_t box_matrices) {
  constexpr uintptr_t kAlignment = 16;
  constexpr uint64_t kMostExtent = uint64_t{1} << 32;
  constexpr uint32_t kMostBox = 256;
  Require(reinterpret_cast<uintptr_t>(data) % kAlignment == 0, "a tensor is not 16-aligned");
  Require(columns * sizeof(gpu::Bf16) % kAlignment == 0, "rows are no multiple of 16 bytes");
  for (const uint64_t extent : {columns, rows, matrices}) {
    Require(extent > 0 && extent <= kMostExtent, "a tensor has an extent that is not possible");
  }
  for (const uint32_t extent : {box_rows, box_matrices}) {
    Require(extent > 0 && extent <= kMostBox, "a box has an extent that is not possible");
  }
  // The emulator, like CUDA, does not know yet whether it is stored to.
  auto* const bytes = const_cast<std::byte*>(static_cast<const std::byte*>(data));
  return {bytes, {columns, rows, matrices}, box_rows, box_matrices, false};
}

TensorMap MapFloats(float* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                    uint32_t box_rows) {
  TensorMap map = MapTensor(data, 2 * columns, rows, matrices, box_rows);
  map.floats = true;
  return map;
}

uint32_t SharedAddress(const void* pointer) {
  return kSharedBegin +
         static_cast<uint32_t>(static_cast<const std::byte*>(pointer) - DynamicShared());
}

void LoadBox(void* shared, const TensorMap& map, int column, int row, int matrix,
             Mbarrier* mbarrier) {
  BeginLoad({ClusterRank(), SharedAddress(shared), map, column, row, matrix}, mbarrier);
}

void LoadBoxToBlocks(void* shared, const TensorMap& map, int column, int row, int matrix,
                     Mbarrier* mbarrier, unsigned blocks) {
  for (unsigned rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1u) == 0) continue;
    BeginLoad({rank, SharedAddress(shared), map, column, row, matrix}, InBlock(mbarrier, rank));
  }
}

void MbarrierInit(Mbarrier* mbarrier, int arrivals) { *mbarrier = {0, arrivals, arrivals, 0, 0}; }

void MbarrierArrive(Mbarrier* mbarrier, int bytes) {
  Require(mbarrier->arrivals > 0, "an mbarrier is used that is not initialized");
  Require(mbarrier->pending > 0, "more threads arrive at an mbarrier than it counts");
  mbarrier->bytes += bytes;
  --mbarrier->pending;
  EndPhaseIfComplete(mbarrier);
}

void MbarrierArriveAt(Mbarrier* mbarrier, unsigned block) {
  MbarrierArrive(InBlock(mbarrier, block), 0);
}

void MbarrierWait(Mbarrier* mbarrier, int parity) {
  if (!Now().loads[mbarrier].empty()) PerformLoads(ClusterRank(), mbarrier);
  ++mbarrier->waiting;
  while (mbarrier->phases_over % 2 == static_cast<uint64_t>(parity)) {
    Await(&mbarrier->phases_over, mbarrier->phases_over, "an mbarrier");
  }
  --mbarrier->waiting;
}

void WgmmaFence() { Self().fenced = true; }

void Wgmma(float* accumulators, bool a_mn, bool b_mn, uint64_t a, uint64_t b, bool add) {
  // All lanes take part, with the same operands.
  const uint64_t* all = WarpExchange(~0u, a * 3 + b * 5 + (add ? 1 : 0), "wgmma");
  for (int lane = 1; lane < gpu::kWarp; ++lane) {
    Require(all[lane] == all[0], "the lanes of a warp give different operands to wgmma");
  }
  Thread& self = Self();
  Require(self.fenced, "wgmma without a fence after its accumulators were read or written");
  const bool idle = self.groups.empty() && self.open.empty();
  Require(idle || self.accumulators == accumulators,
          "this emulation has one set of accumulators of a thread under way at a time");
  if (idle) {
    self.accumulators = accumulators;
    // Values need not have been written before if none is added.
    if (add) {
      EachAccumulator([&](size_t i, size_t h, size_t c) { self.sums[h][c] = accumulators[i]; });
    }
  }
  self.open.push_back({a_mn, b_mn, add, a, b});
  std::fill_n(accumulators, kAccumulators, kNan);
}

void WgmmaCommit() {
  Thread& self = Self();
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}

void WgmmaWait(int youngest) {
  Thread& self = Self();
  self.fenced = false;
  while (self.groups.size() > static_cast<size_t>(youngest)) {
    for (const Product& product : self.groups.front()) {
      Multiply(product, ThreadNumber(), &self.sums);
    }
    self.groups.erase(self.groups.begin());
  }
  if (self.groups.empty() && self.open.empty() && self.accumulators != nullptr) {
    EachAccumulator([&](size_t i, size_t h, size_t c) { self.accumulators[i] = self.sums[h][c]; });
    self.accumulators = nullptr;
  }
  // The instruction is the whole warp's: no lane goes on before all are done with shared memory.
  WarpExchange(~0u, 0, "wgmma.wait_group");
}

namespace {

template <typename T>
void StoreLater(void* shared, const T& value) {
  AtShared(SharedAddress(shared), sizeof(value));
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  Self().unseen.emplace_back(shared, std::vector(bytes, bytes + sizeof(value)));
}

}  // namespace

void StoreShared(void* shared, uint4 value) { StoreLater(shared, value); }
void StoreShared(void* shared, uint2 value) { StoreLater(shared, value); }

void AsyncFence() {
  Thread& self = Self();
  for (const auto& [shared, value] : self.unseen) {
    std::memcpy(shared, value.data(), value.size());
  }
  self.unseen.clear();
  Now().columns_of_b.clear();
}

namespace {

/// Adds like atomics: subnormal numbers are 0.
float AddFlushed(float a, float b) {
  const auto flushed = [](float x) { return std::fpclassify(x) == FP_SUBNORMAL ? x * 0 : x; };
  return flushed(flushed(a) + flushed(b));
}

void BeginStore(const TensorMap& map, int column, int row, int matrix, const void* shared) {
  const Box box = {ClusterRank(), SharedAddress(shared), map, column, row, matrix};
  Require(box.shared % gpu::kAtomBytes == 0,
          "a box does not come from a multiple of 1024 in shared memory");
  Self().open_stores.push_back({box, box.Bytes()});
}

}  // namespace

void StoreBox(const TensorMap& map, int column, int row, int matrix, const void* shared) {
  Require(!map.floats, "floats are stored as bf16");
  BeginStore(map, column, row, matrix, shared);
}

void AddBox(const TensorMap& map, int column, int row, int matrix, const void* shared) {
  Require(map.floats, "bf16 are added to as floats");
  BeginStore(map, 2 * column, row, matrix, shared);
}

void StoreCommit() {
  Thread& self = Self();
  self.stores.push_back(std::move(self.open_stores));
  self.open_stores.clear();
}

void StoreWait(int youngest) {
  std::vector<std::vector<Stored>>& groups = Self().stores;
  while (groups.size() > static_cast<size_t>(youngest)) {
    for (const Stored& stored : groups.front()) {
      Require(stored.box.Bytes() == stored.bytes,
              "shared memory changes before the box that is stored from it has been read");
      stored.box.EachElement([&](const std::byte* element, std::byte* to) {
        if (to == nullptr) return;
        if (!stored.box.map.floats) {
          std::memcpy(to, element, sizeof(gpu::Bf16));
        } else if ((to - stored.box.map.data) % static_cast<ptrdiff_t>(sizeof(float)) == 0) {
          float sum = 0, more = 0;
          std::memcpy(&sum, to, sizeof(sum));
          std::memcpy(&more, element, sizeof(more));
          sum = AddFlushed(sum, more);
          std::memcpy(to, &sum, sizeof(sum));
        }
      });
    }
    groups.erase(groups.begin());
  }
}

}  // namespace contraflow::emulator
