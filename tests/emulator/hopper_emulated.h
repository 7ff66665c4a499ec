#pragma once

// Hopper's instructions on the host; see hopper.h, which includes this, for what they mean. Misuse
// that a GPU would answer with a fault or a wrong result is a GpuError where it can be seen.

#include <cstdint>

#include "kernels/gpu/hopper.h"

namespace contraflow::emulator {

/// Arguments of cuTensorMapEncodeTiled: columns contiguous, boxes of 64 bf16 or 32 floats, each of
/// which counts as two columns here.
struct TensorMap {
  std::byte* data;
  uint64_t extents[3];  ///< columns, rows, matrices
  uint32_t box_rows, box_matrices;
  bool floats;
};

/// Lives in shared memory; copies in flight are kept elsewhere.
struct Mbarrier {
  uint64_t phases_over;
  int arrivals, pending;
  int64_t bytes;  ///< that are still to come in this phase
  int waiting;    ///< threads
};

TensorMap MapTensor(const void* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                    uint32_t box_rows, uint32_t box_matrices = 1);
TensorMap MapFloats(float* data, uint64_t columns, uint64_t rows, uint64_t matrices,
                    uint32_t box_rows);
/// The copy is done at the latest moment: once somebody waits for it. The box is NaN until then. A
/// block that ends before is an error.
void LoadBox(void* shared, const TensorMap& map, int column, int row, int matrix,
             Mbarrier* mbarrier);
/// Likewise to each block of the cluster.
void LoadBoxToBlocks(void* shared, const TensorMap& map, int column, int row, int matrix,
                     Mbarrier* mbarrier, unsigned blocks);
void MbarrierInit(Mbarrier* mbarrier, int arrivals);
void MbarrierArrive(Mbarrier* mbarrier, int bytes);
/// In that block of the cluster.
void MbarrierArriveAt(Mbarrier* mbarrier, unsigned block);
void MbarrierWait(Mbarrier* mbarrier, int parity);

uint32_t SharedAddress(const void* pointer);

/// Shared memory is read at the latest moment, in WgmmaWait, and the accumulators are NaN until
/// then.
void WgmmaFence();
void Wgmma(float* accumulators, bool a_mn, bool b_mn, uint64_t a, uint64_t b, bool add);
void WgmmaCommit();
void WgmmaWait(int youngest);

/// Done at the thread's next AsyncFence.
void StoreShared(void* shared, uint4 value);
void StoreShared(void* shared, uint2 value);
void AsyncFence();

/// Done at the latest moment: once its thread waits for it. It is an error if shared memory is not
/// then what it was before, or the block ends first.
void StoreBox(const TensorMap& map, int column, int row, int matrix, const void* shared);
void AddBox(const TensorMap& map, int column, int row, int matrix, const void* shared);
void StoreCommit();
void StoreWait(int youngest);

}  // namespace contraflow::emulator

namespace contraflow::gpu {

using TensorMap = emulator::TensorMap;
using Mbarrier = emulator::Mbarrier;
using emulator::AddBox;
using emulator::AsyncFence;
using emulator::LoadBox;
using emulator::LoadBoxToBlocks;
using emulator::MapFloats;
using emulator::MapTensor;
using emulator::MbarrierArriveAt;
using emulator::MbarrierInit;
using emulator::MbarrierWait;
using emulator::SharedAddress;
using emulator::StoreBox;
using emulator::StoreCommit;
using emulator::StoreShared;
using emulator::SyncCluster;
using emulator::WgmmaCommit;

inline void MbarrierInitFence() {}
inline void MbarrierExpect(Mbarrier* mbarrier, int bytes) {
  emulator::MbarrierArrive(mbarrier, bytes);
}
inline void MbarrierArrive(Mbarrier* mbarrier) { emulator::MbarrierArrive(mbarrier, 0); }
inline int ThreadIndexAnew() { return ThreadIndex(); }
template <int kYoungest>
void StoreWaitRead() {
  emulator::StoreWait(kYoungest);
}
inline void StoreWaitAll() { emulator::StoreWait(0); }

inline void WgmmaFence(float (&)[kAccumulators]) { emulator::WgmmaFence(); }
template <bool kAMn, bool kBMn>
void Wgmma(float (&accumulators)[kAccumulators], uint64_t a, uint64_t b, bool add) {
  emulator::Wgmma(accumulators, kAMn, kBMn, a, b, add);
}
template <int kYoungest>
void WgmmaWait(float (&)[kAccumulators]) {
  emulator::WgmmaWait(kYoungest);
}

inline void WarpgroupBarrier(int id, int threads) {
  emulator::NamedBarrier(id, static_cast<unsigned>(threads));
}
template <int kCount>
void TakeRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <int kCount>
void GiveRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

}  // namespace contraflow::gpu
