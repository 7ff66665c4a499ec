#include "runtime/core/digest.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/params.h>

#include <new>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// OpenSSL sets itself up on first use, and where memory is short then it would crash later. It is
/// never torn down: when the process ends a thread may still be within it, to free what it keeps of
/// each.
void SetUp() {
  if (OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1 ||
      OSSL_LIB_CTX_get0_global_default() == nullptr) {
    throw std::bad_alloc();
  }
}

std::string HexOf(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

Digest Sha256(std::span<const std::byte> bytes) {
  Sha256Stream stream;
  stream.Add(bytes);
  return stream.Finish();
}

Digest HmacSha256(std::string_view key, std::string_view bytes) {
  SetUp();
  Digest digest;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, bytes.size(),
           digest.data(), nullptr) == nullptr) {
    throw std::bad_alloc();
  }
  return digest;
}

bool SameSecretly(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string Hex(const Digest& digest) { return HexOf(digest); }

Sha256Stream::Sha256Stream() : state_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  SetUp();
  // With SHA-256 nothing but memory can be missing.
  if (!state_ || EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
}

void Sha256Stream::Add(std::span<const std::byte> bytes) {
  CF_ASSERT(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()) == 1);
}

Digest Sha256Stream::Finish() {
  Digest digest;
  CF_ASSERT(EVP_DigestFinal_ex(state_.get(), digest.data(), nullptr) == 1);
  return digest;
}

Checksum::Checksum() : state_(nullptr, EVP_MAC_CTX_free) {
  SetUp();
  const std::unique_ptr<EVP_MAC, void (*)(EVP_MAC*)> gmac(EVP_MAC_fetch(nullptr, "GMAC", nullptr),
                                                          EVP_MAC_free);
  if (gmac) state_.reset(EVP_MAC_CTX_new(gmac.get()));
  char cipher[] = "AES-128-GCM";
  unsigned char zeros[16] = {};
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, zeros, 12), OSSL_PARAM_construct_end()};
  if (!state_ || EVP_MAC_init(state_.get(), zeros, sizeof zeros, parameters) != 1) {
    throw std::bad_alloc();
  }
}

void Checksum::Add(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  CF_ASSERT(EVP_MAC_update(state_.get(), data, bytes.size()) == 1);
}

std::string Checksum::Finish() {
  unsigned char tag[16];
  size_t size = 0;
  CF_ASSERT(EVP_MAC_final(state_.get(), tag, &size, sizeof tag) == 1 && size == sizeof tag);
  return HexOf(tag);
}

}  // namespace contraflow
