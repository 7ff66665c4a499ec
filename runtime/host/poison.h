#pragma once

#include <cstddef>

namespace contraflow {

/// Whether bytes that hold no value are filled with NaN unless a caller wants otherwise: in builds
/// with assertions.
#ifdef NDEBUG
inline constexpr bool kFillUnused = false;
#else
inline constexpr bool kFillUnused = true;
#endif

/// True in builds with the address sanitizer, where to touch poisoned bytes ends the program.
bool PoisonIsFatal();

/// Forbids to touch the bytes, a multiple of 8: the address sanitizer, in builds that have it,
/// tells who does. With `fill` they are filled with floats that are NaN first, which as integers
/// are no index either.
void Poison(std::byte* bytes, size_t count, bool fill);
/// Allows to touch them again; what they hold stays.
void Unpoison(std::byte* bytes, size_t count);

}  // namespace contraflow
