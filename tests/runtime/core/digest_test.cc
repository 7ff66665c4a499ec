#include "runtime/core/digest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace contraflow::digest_test {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_SUITE("unit") {
  TEST_CASE("digest: SHA-256 as published") {
    CHECK(Hex(Sha256(std::string_view())) ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(Hex(Sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(Hex(Sha256(std::string(1'000'000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK(Sha256("abc") == Sha256(BytesOf("abc")));
  }

  TEST_CASE("digest: HMAC as published") {
    // RFC 4231, cases 1, 2, 3 and 6, and the empty key.
    CHECK(Hex(Hmac(std::string(20, '\x0b'), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(Hex(Hmac("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(Hex(Hmac(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    CHECK(Hex(Hmac(std::string(131, '\xaa'),
                   "Test Using Larger Than Block-Size Key - Hash Key First")) ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    const std::string empty = "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad";
    CHECK(Hex(Hmac("", "")) == empty);
    // Not the key of the call before.
    (void)Hmac("another", "");
    CHECK(Hex(Hmac(std::string_view(), std::string_view())) == empty);
  }

  TEST_CASE("digest: in pieces as at once") {
    std::mt19937_64 random(7);
    for (int round = 0; round < 50; ++round) {
      std::string bytes(random() % 5'000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      Sha256Stream stream;
      for (std::string_view rest = bytes; !rest.empty();) {
        const size_t piece = std::min<size_t>(rest.size(), random() % 200);
        stream.Add(BytesOf(rest.substr(0, piece)));
        rest.remove_prefix(piece);
      }
      CHECK(stream.Finish() == Sha256(bytes));
    }
  }

  TEST_CASE("digest: the same only if every bit is") {
    const Digest digest = Sha256("abc");
    CHECK(SameDigest(digest, Sha256("abc")));
    for (size_t bit = 0; bit < 256; ++bit) {
      Digest other = digest;
      other[bit / 8] = static_cast<unsigned char>(other[bit / 8] ^ (1 << bit % 8));
      CHECK_FALSE(SameDigest(digest, other));
    }
  }

  TEST_CASE("digest: random bytes do not repeat") {
    CHECK(RandomBytes(0).empty());
    std::set<std::string> seen;
    for (int i = 0; i < 100; ++i) seen.insert(RandomBytes(32));
    CHECK(seen.size() == 100);
    // More than the system gives at once.
    const std::string many = RandomBytes(1'000'000);
    CHECK(many.size() == 1'000'000);
    CHECK(many.find(std::string(16, '\0')) == std::string::npos);
  }
}

}  // namespace
}  // namespace contraflow::digest_test
