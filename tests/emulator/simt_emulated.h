#pragma once

// Language of the kernels, on the host; see kernels/gpu/simt.h, which includes this, for its
// meaning.

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "emulator/emulator.h"
#include "kernels/gpu/stream.h"
#include "kernels/host/bf16.h"

#define CF_UNROLL

#define CF_DYNAMIC_SHARED(type, name) \
  type* const name = reinterpret_cast<type*>(::contraflow::emulator::DynamicShared())

namespace contraflow::gpu {

template <typename... P, typename... A>
void LaunchClusters(const char* name, Stream stream, unsigned cluster, dim3 grid, dim3 block,
                    size_t shared_bytes, void (*kernel)(P...), A... arguments) {
  emulator::Enqueue(stream.handle, name, [=] {
    emulator::RunGrid(
        name, grid, block, shared_bytes, [=] { kernel(static_cast<P>(arguments)...); }, cluster);
  });
}
template <typename... P, typename... A>
void Launch(const char* name, Stream stream, dim3 grid, dim3 block, size_t shared_bytes,
            void (*kernel)(P...), A... arguments) {
  LaunchClusters(name, stream, 1, grid, block, shared_bytes, kernel, arguments...);
}

template <typename T>
void NeedAligned(const void* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) == 0) return;
  throw GpuError("a vector of " + std::to_string(sizeof(T)) + " bytes is not aligned to its size");
}
inline uint4 Load16(const void* from) {
  NeedAligned<uint4>(from);
  uint4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline void Store16(void* to, uint4 value) {
  NeedAligned<uint4>(to);
  std::memcpy(to, &value, sizeof(value));
}
inline void Store8(void* to, uint2 value) {
  NeedAligned<uint2>(to);
  std::memcpy(to, &value, sizeof(value));
}

inline uint32_t PackBf16(float low, float high) {
  return ToBf16(low).bits | static_cast<uint32_t>(ToBf16(high).bits) << 16;
}

// The last 7 bits are cut, so that a test which passes here has room for the errors of a GPU.
inline float CutLastBits(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffffff80u);
}
inline float FastExp(float x) { return CutLastBits(std::exp(x)); }
inline float FastReciprocal(float x) { return CutLastBits(1.0f / x); }

inline uint64_t GlobalTimer() {
  static uint64_t now = 0;
  return ++now;
}

}  // namespace contraflow::gpu
