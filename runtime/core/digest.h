#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace contraflow {

/// SHA-256 (FIPS 180-4).
using Digest = std::array<unsigned char, 32>;

Digest Sha256(std::string_view bytes);
Digest Sha256(std::span<const std::byte> bytes);
/// HMAC-SHA-256 (RFC 2104).
Digest Hmac(std::string_view key, std::string_view message);
/// In a time that does not depend on where they differ.
bool SameDigest(const Digest& a, const Digest& b);
/// 64 lower-case hexadecimal digits.
std::string Hex(const Digest& digest);

/// Bytes that nobody can foresee, from the system. Throws Error if it has none.
std::string RandomBytes(size_t count);

/// SHA-256 of what is added piece by piece.
class Sha256Stream {
 public:
  Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  ~Sha256Stream();

  void Add(std::span<const std::byte> bytes);
  /// The digest of all that was added; nothing can be added any more.
  Digest Finish();

 private:
  void* state_;
};

}  // namespace contraflow
