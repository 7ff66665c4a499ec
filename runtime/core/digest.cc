#include "runtime/core/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

EVP_MD_CTX* ContextOf(void* state) { return static_cast<EVP_MD_CTX*>(state); }

}  // namespace

Digest Sha256(std::string_view bytes) {
  return Sha256(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

Digest Sha256(std::span<const std::byte> bytes) {
  Sha256Stream stream;
  stream.Add(bytes);
  return stream.Finish();
}

Digest Hmac(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned int size = 0;
  // A key of no bytes may be a null pointer, which OpenSSL takes for "the key of last time".
  const char* const start = key.empty() ? "" : key.data();
  const unsigned char* const result = HMAC(EVP_sha256(), start, static_cast<int>(key.size()),
                                           reinterpret_cast<const unsigned char*>(message.data()),
                                           message.size(), digest.data(), &size);
  CF_ASSERT(result != nullptr && size == digest.size());
  return digest;
}

bool SameDigest(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string Hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t done = 0;
  while (done < count) {
    const ssize_t got = getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(std::string("the system has no random bytes for a secret: ") +
                  std::strerror(errno));
    }
    done += static_cast<size_t>(got);
  }
  return bytes;
}

Sha256Stream::Sha256Stream() : state_(EVP_MD_CTX_new()) {
  // With SHA-256 nothing but memory can be missing.
  if (state_ == nullptr) throw std::bad_alloc();
  if (EVP_DigestInit_ex(ContextOf(state_), EVP_sha256(), nullptr) == 1) return;
  EVP_MD_CTX_free(ContextOf(state_));
  throw std::bad_alloc();
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(ContextOf(state_)); }

void Sha256Stream::Add(std::span<const std::byte> bytes) {
  CF_ASSERT(EVP_DigestUpdate(ContextOf(state_), bytes.data(), bytes.size()) == 1);
}

Digest Sha256Stream::Finish() {
  Digest digest;
  CF_ASSERT(EVP_DigestFinal_ex(ContextOf(state_), digest.data(), nullptr) == 1);
  return digest;
}

}  // namespace contraflow
