#pragma once

// Runs kernels on the host, one block or cluster after the other, each thread on a stack of its
// own, for tests where there is no GPU. Barriers, warp shuffles and votes wait as they do on a GPU;
// a block in which every thread waits is an error that says who waits. Which thread runs next
// between two barriers is free, and chosen by Order: a kernel that misses a barrier gives other
// results in another order. Not thread safe.
//
// The names below are CUDA's, so that kernels need no others.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz) {}
};

namespace contraflow::emulator {

/// In which order the threads of a block take their turns, and the blocks of a grid theirs.
/// Shuffled ones of every other block, by chance, take them warp by warp, or block by block of a
/// cluster, each as far as it comes.
enum class Order : uint8_t { kForward, kReverse, kShuffled };
void SetOrder(Order order, uint64_t seed = 1);

/// Runs body once for each thread of each block. The blocks of a cluster, neighbours in x, run
/// concurrently; their kernels have no __shared__ variables, of which there is one copy. Throws
/// gpu::GpuError, beginning with the name, if a block can never end, or with what the body threw.
void RunGrid(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
             const std::function<void()>& body, unsigned cluster_size = 1);

/// A stream whose work is run later, by whoever owns it.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual void Add(const char* name, std::function<void()> work) = 0;
};
/// Adds to the queue that a stream's handle is, or does it at once where there is none.
void Enqueue(void* handle, const char* name, std::function<void()> work);

/// Place of the running thread.
struct Place {
  dim3 thread, block, block_size, grid_size;
  unsigned number = 0;  ///< of the thread in its block
  unsigned rank = 0;    ///< of the block in its cluster
};
/// Null outside a kernel.
extern const Place* running_place;
[[noreturn]] void RefuseOutsideKernel();
inline const Place& Here() {
  if (running_place == nullptr) RefuseOutsideKernel();
  return *running_place;
}
/// Number of the running thread in its block.
inline unsigned ThreadNumber() { return Here().number; }

/// How many clusters have begun since the program did: tells the running one from those before. A
/// block is at least a cluster of its own.
uint64_t ClustersBegun();
/// Number of the running block in its cluster.
inline unsigned ClusterRank() { return Here().rank; }
/// Sets the call of the last thread of every block at its end from now on.
void AtBlockEnd(void (*check)());

/// The block's dynamic shared memory, 1024-aligned; full of NaN when the block begins.
std::byte* DynamicShared();
/// That of a block of the cluster, which must not have ended.
std::byte* DynamicShared(unsigned rank);

/// The running thread waits as long as *counter == seen; `what` is for the report of a block that
/// hangs. Functions that synchronise threads are built on it.
void Await(const uint64_t* counter, uint64_t seen, const char* what);

/// bar.sync: waits until `count` threads have come to barrier `id` (0..15; 0 is __syncthreads).
void NamedBarrier(int id, unsigned count);
void SyncThreads();
/// Waits for all threads of the cluster.
void SyncCluster();

/// Values that all lanes of a warp that are named in `mask` have given, once all have: 32 values of
/// which those of lanes in the mask count. Valid until the lane's next exchange.
const uint64_t* WarpExchange(unsigned mask, uint64_t value, const char* what);

template <typename T>
uint64_t Pack(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t packed = 0;
  std::memcpy(&packed, &value, sizeof(T));
  return packed;
}
template <typename T>
T Unpack(uint64_t packed) {
  T value;
  std::memcpy(&value, &packed, sizeof(T));
  return value;
}

}  // namespace contraflow::emulator

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
// Clusters run one at a time, and only single blocks have such variables, so one copy is enough.
#define __shared__ static

#define threadIdx (::contraflow::emulator::Here().thread)
#define blockIdx (::contraflow::emulator::Here().block)
#define blockDim (::contraflow::emulator::Here().block_size)
#define gridDim (::contraflow::emulator::Here().grid_size)

inline void __syncthreads() { contraflow::emulator::SyncThreads(); }
inline void __syncwarp(unsigned mask = ~0u) {
  contraflow::emulator::WarpExchange(mask, 0, "__syncwarp");
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  using namespace contraflow::emulator;
  const auto self = static_cast<int>(ThreadNumber() % 32);
  const uint64_t* all = WarpExchange(mask, Pack(value), "__shfl_sync");
  return Unpack<T>(all[self / width * width + lane % width]);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  using namespace contraflow::emulator;
  const auto self = static_cast<int>(ThreadNumber() % 32);
  return Unpack<T>(WarpExchange(mask, Pack(value), "__shfl_xor_sync")[(self ^ bits) % 32]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta) {
  using namespace contraflow::emulator;
  const auto self = static_cast<int>(ThreadNumber() % 32);
  const uint64_t* all = WarpExchange(mask, Pack(value), "__shfl_up_sync");
  return self >= delta ? Unpack<T>(all[self - delta]) : value;
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta) {
  using namespace contraflow::emulator;
  const auto self = static_cast<int>(ThreadNumber() % 32);
  const uint64_t* all = WarpExchange(mask, Pack(value), "__shfl_down_sync");
  return self + delta < 32 ? Unpack<T>(all[self + delta]) : value;
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  const uint64_t* all = contraflow::emulator::WarpExchange(mask, vote, "__ballot_sync");
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && all[lane] != 0) votes |= 1u << lane;
  }
  return votes;
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, !vote) == 0; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline void __threadfence() {}

/// Threads take turns, so that nothing comes between reading and writing.
template <typename T>
T atomicAdd(T* at, T value) {
  static_assert(std::is_integral_v<T>, "sums of floats in no fixed order are not deterministic");
  const T old = *at;
  *at = static_cast<T>(old + value);
  return old;
}
template <typename T>
T atomicMax(T* at, T value) {
  const T old = *at;
  *at = old < value ? value : old;
  return old;
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

using std::max;
using std::min;
