#include "runtime/model/dataset.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"

namespace contraflow::dataset_test {
namespace {

// A file that is gone with the object.
struct TokensFile {
  TokensFile()
      : path(std::filesystem::temp_directory_path() /
             ("contraflow-dataset-test-" + std::to_string(getpid()))) {}
  ~TokensFile() { std::filesystem::remove(path); }
  void Write(const std::string& bytes) const { WriteFile(path, bytes); }
  const std::string path;
};

template <typename T>
std::string FileOf(const std::vector<T>& tokens, uint64_t vocabulary) {
  TokenHeader header;
  header.token_bytes = sizeof(T);
  header.vocabulary = vocabulary;
  header.count = tokens.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
  return bytes;
}

std::string Visited(const Dataset& data) {
  std::string all;
  data.Visit([&](std::span<const std::byte> bytes) {
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return all;
}

// Draws the same from tokens as from the text whose bytes they are.
template <typename T>
void CheckDraws() {
  const Dataset text = SmallDataset();
  const Model model = SmallModel(1);
  std::vector<T> tokens;
  for (const char c : text.bytes) tokens.push_back(static_cast<unsigned char>(c));
  const TokensFile file;
  file.Write(FileOf(tokens, 256));
  Dataset data = ReadDataset(file.path, model);
  CHECK(data.size() == text.size());
  CHECK(data.bytes.empty());
  CHECK(Visited(data) == FileOf(tokens, 256));
  const auto same = [&](const Dataset& a, const Dataset& b) {
    for (int m = 0; m < 20; ++m) {
      const MicroBatch x = DrawMicroBatch(a, model, 3, 2, 1, m),
                       y = DrawMicroBatch(b, model, 3, 2, 1, m);
      CHECK(x.tokens == y.tokens);
      CHECK(x.targets == y.targets);
    }
  };
  same(data, text);
  Dataset rest = text;
  same(HoldOut(0.3, model, &data), HoldOut(0.3, model, &rest));
  same(data, rest);
  CHECK(data.size() == 1400);
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("tokens: of two and of four bytes are drawn as the text is") {
    CheckDraws<uint16_t>();
    CheckDraws<uint32_t>();
  }

  TEST_CASE("tokens: a file of several pieces is visited whole") {
    std::vector<uint16_t> tokens(1'500'001);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i % 251);
    const TokensFile file;
    file.Write(FileOf(tokens, 251));
    CHECK(Visited(ReadDataset(file.path, SmallModel(1))) == FileOf(tokens, 251));
  }

  TEST_CASE("tokens: what is no such file is refused") {
    const TokensFile file;
    const Model model = SmallModel(1);
    const std::string sound = FileOf(std::vector<uint16_t>(100, 7), 256);
    const auto failure = [&](const std::string& bytes) {
      file.Write(bytes);
      return Failure([&] { Visited(ReadDataset(file.path, model)); });
    };
    const auto patched = [&](size_t at, const auto& value) {
      std::string bytes = sound;
      std::memcpy(bytes.data() + at, &value, sizeof value);
      return failure(bytes);
    };
    const std::string place = file.path + ": ";
    CHECK(failure(sound) == "accepted");
    CHECK(failure(sound.substr(0, 31)) == place + "is cut off in its header of tokens");
    CHECK(failure(sound.substr(0, 231)) ==
          place + "its header names 100 tokens of 2 bytes, but 199 bytes follow; make it again");
    CHECK(failure(sound + "xx") ==
          place + "its header names 100 tokens of 2 bytes, but 202 bytes follow; make it again");
    CHECK(Contains(patched(24, uint64_t{1} << 63), "names 9223372036854775808 tokens"));
    CHECK(patched(8, 2u) == place + "has tokens of version 2, this program reads 1");
    CHECK(patched(12, 0u) == place + "has tokens of 0 bytes; 2 or 4 are possible");
    CHECK(patched(12, 3u) == place + "has tokens of 3 bytes; 2 or 4 are possible");
    CHECK(patched(16, uint64_t{257}) ==
          place +
              "has tokens of a vocabulary of 257, which is more than the model's 256; use a "
              "model with that vocabulary");
    CHECK(patched(50, uint16_t{256}) ==
          place + "token 256 is beyond the vocabulary of 256 that its header names; make it again");
    CHECK(failure(FileOf(std::vector<uint16_t>(6, 7), 256)) ==
          place +
              "has 6 tokens, but one sequence of 6 and the token after it need 7; use a longer "
              "text or a model with a shorter sequence");
    // Another magic is a text.
    file.Write("x" + sound);
    CHECK(ReadDataset(file.path, model).bytes == "x" + sound);
  }

  TEST_CASE("tokens: a file that changes while it is read ends the training") {
    const TokensFile file;
    const Model model = SmallModel(1);
    file.Write(FileOf(std::vector<uint16_t>(1000, 7), 256));
    const Dataset data = ReadDataset(file.path, model);
    std::filesystem::resize_file(file.path, 40);
    const std::string failure = Failure([&] { DrawMicroBatch(data, model, 1, 1, 0, 0); });
    CHECK(failure.starts_with(file.path + ": ends at byte "));
    CHECK(failure.ends_with(": it is truncated"));
  }

  TEST_CASE("held out: both parts must have a sequence") {
    const Model model = SmallModel(1);
    Dataset data{"text", "0123456789"};
    CHECK(Failure([&] { HoldOut(0.5, model, &data); }).find("text: has 5 bytes, but one") == 0);
  }
}

}  // namespace contraflow::dataset_test
