#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "compiler/plan/value.h"
#include "kernels/host/buffer.h"
#include "runtime/core/value_places.h"

namespace contraflow {

/// Whether bytes that hold no value are filled with NaN unless a caller wants otherwise: in builds
/// with assertions.
#ifdef NDEBUG
inline constexpr bool kFillUnused = false;
#else
inline constexpr bool kFillUnused = true;
#endif

/// The values of one rank in the host's memory, one allocation for each arena. Bytes without a
/// value must not be touched: the address sanitizer tells who does.
class HostArenas {
 public:
  using Uses = std::vector<ValuePlaces::Use>;

  /// `places` must outlive it; `bytes` are those of each value. With `fill` memory without a value
  /// is full of NaN.
  HostArenas(const ValuePlaces& places, const ValueBytes& bytes, bool fill);
  HostArenas(const HostArenas&) = delete;
  ~HostArenas();

  std::byte* At(const ValuePlaces::Use& use) {
    return arenas_[static_cast<size_t>(use.place->arena)].data() + use.place->offset;
  }
  /// Start of each arena.
  std::array<std::byte*, kArenaCount> data();
  /// Before an instruction, and after it: what it makes may be touched, what ends with it no more.
  void Enter(const Uses& uses);
  void Leave(const Uses& uses);

  size_t BytesOf(const ValuePlaces::Use& use) const {
    return static_cast<size_t>(bytes_[static_cast<size_t>(use.value)]);
  }

 private:
  void Poison(std::byte* bytes, size_t count);

  const ValueBytes bytes_;
  const bool fill_;
  std::array<Buffer<std::byte>, kArenaCount> arenas_;
};

}  // namespace contraflow
