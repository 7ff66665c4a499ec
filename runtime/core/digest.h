#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;   // OpenSSL's EVP_MD_CTX
struct evp_mac_ctx_st;  // and EVP_MAC_CTX

namespace contraflow {

/// SHA-256 (FIPS 180-4).
using Digest = std::array<unsigned char, 32>;

Digest Sha256(std::span<const std::byte> bytes);
inline Digest Sha256(std::string_view bytes) { return Sha256(std::as_bytes(std::span(bytes))); }
/// HMAC-SHA-256 (RFC 2104): only who knows the key makes it.
Digest HmacSha256(std::string_view key, std::string_view bytes);
/// Whether two are equal, in a time that does not tell where they differ.
bool SameSecretly(const Digest& a, const Digest& b);
/// 64 lower-case hexadecimal digits.
std::string Hex(const Digest& digest);

/// SHA-256 of what is added piece by piece.
class Sha256Stream {
 public:
  Sha256Stream();

  void Add(std::span<const std::byte> bytes);
  /// The digest of all that was added; nothing can be added any more.
  Digest Finish();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> state_;
};

/// A checksum of large data against damage, not against forgery, at five times the speed of
/// SHA-256: AES-128-GMAC whose key and nonce are zeros.
class Checksum {
 public:
  Checksum();

  void Add(std::span<const std::byte> bytes);
  /// 32 lower-case hexadecimal digits; nothing can be added any more.
  std::string Finish();

 private:
  std::unique_ptr<evp_mac_ctx_st, void (*)(evp_mac_ctx_st*)> state_;
};

}  // namespace contraflow
