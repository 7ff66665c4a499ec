#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CF_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CF_SANITIZED true
#endif
#endif
#ifndef CF_SANITIZED
#define CF_SANITIZED false
#endif

namespace contraflow {

/// True where a sanitizer watches. It slows everything down several times and looks for errors of
/// memory and of threads, which a few cases of a kind show; whether all of them are right is for
/// the other runs to say.
inline constexpr bool kSanitized = CF_SANITIZED;
#undef CF_SANITIZED

/// How many cases to draw of those that an unwatched run draws.
constexpr int CasesToDraw(int unwatched) { return kSanitized ? (unwatched + 11) / 12 : unwatched; }

}  // namespace contraflow
