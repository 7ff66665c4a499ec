#include "runtime/host/arenas.h"

#include <sanitizer/asan_interface.h>  // no effect without the sanitizer

#include <algorithm>
#include <cstdint>

namespace contraflow {

HostArenas::HostArenas(const ValuePlaces& places, const ValueBytes& bytes, bool fill)
    : bytes_(bytes), fill_(fill) {
  for (size_t a = 0; a < kArenaCount; ++a) {
    arenas_[a].resize(static_cast<size_t>(places.arena_bytes()[a]));
    Poison(arenas_[a].data(), arenas_[a].size());
  }
}

HostArenas::~HostArenas() {
  for (const Buffer<std::byte>& arena : arenas_) {
    ASAN_UNPOISON_MEMORY_REGION(arena.data(), arena.size());
  }
}

std::array<std::byte*, kArenaCount> HostArenas::data() {
  std::array<std::byte*, kArenaCount> begins;
  std::ranges::transform(arenas_, begins.begin(), [](auto& arena) { return arena.data(); });
  return begins;
}

/// Forbids to touch bytes, a multiple of 8.
void HostArenas::Poison(std::byte* bytes, size_t count) {
  // A quiet NaN as a float, more than any count or index as an integer.
  if (fill_) std::fill_n(reinterpret_cast<uint32_t*>(bytes), count / sizeof(uint32_t), 0x7fc0dead);
  ASAN_POISON_MEMORY_REGION(bytes, count);
}

void HostArenas::Enter(const Uses& uses) {
  for (const ValuePlaces::Use& use : uses) {
    if (use.begins()) ASAN_UNPOISON_MEMORY_REGION(At(use), BytesOf(use));
  }
}

void HostArenas::Leave(const Uses& uses) {
  for (const ValuePlaces::Use& use : uses) {
    if (use.ends()) Poison(At(use), BytesOf(use));
  }
}

}  // namespace contraflow
