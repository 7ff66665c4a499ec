#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace contraflow {

/// Allocates at cache-line boundaries, so that vector loads never straddle a line.
template <typename T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <typename U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kAlignment); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

/// Zero-initialised, 64-byte aligned values.
template <typename T>
using Buffer = std::vector<T, AlignedAllocator<T>>;

/// Gives the memory of a buffer back.
template <typename T>
void Release(Buffer<T>& buffer) {
  Buffer<T>().swap(buffer);
}

}  // namespace contraflow
