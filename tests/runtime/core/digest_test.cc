#include "runtime/core/digest.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
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

  TEST_CASE("digest: the checksum is GMAC, whose first published case this is") {
    CHECK(Checksum().Finish() == "58e2fccefa7e3061367f1d57a4e7455a");
    Checksum zero;
    zero.Add(BytesOf(std::string(1, '\0')));
    CHECK(zero.Finish() != Checksum().Finish());
  }

  TEST_CASE("digest: in pieces as at once") {
    std::mt19937_64 random(7);
    for (int round = 0; round < 50; ++round) {
      std::string bytes(random() % 5'000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      Sha256Stream stream;
      Checksum pieces, whole;
      whole.Add(BytesOf(bytes));
      for (std::string_view rest = bytes; !rest.empty();) {
        const size_t piece = std::min<size_t>(rest.size(), random() % 200);
        stream.Add(BytesOf(rest.substr(0, piece)));
        pieces.Add(BytesOf(rest.substr(0, piece)));
        rest.remove_prefix(piece);
      }
      CHECK(stream.Finish() == Sha256(bytes));
      CHECK(pieces.Finish() == whole.Finish());
    }
  }
}

}  // namespace
}  // namespace contraflow::digest_test
