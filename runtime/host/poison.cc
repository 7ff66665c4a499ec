#include "runtime/host/poison.h"

#include <algorithm>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define CF_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CF_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef CF_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace contraflow {
namespace {

/// A quiet NaN as a float, more than any count or index as an integer.
constexpr uint32_t kNothing = 0x7fc0dead;

}  // namespace

bool PoisonIsFatal() {
#ifdef CF_ADDRESS_SANITIZER
  return true;
#else
  return false;
#endif
}

void Poison(std::byte* bytes, size_t count, bool fill) {
  if (fill) std::fill_n(reinterpret_cast<uint32_t*>(bytes), count / sizeof(uint32_t), kNothing);
#ifdef CF_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(bytes, count);
#endif
}

void Unpoison(std::byte* bytes, size_t count) {
#ifdef CF_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(bytes, count);
#else
  static_cast<void>(bytes);
  static_cast<void>(count);
#endif
}

}  // namespace contraflow
