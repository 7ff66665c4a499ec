#include "runtime/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::manifest_test {
namespace {

Manifest SmallManifest() {
  Manifest manifest{CutModel(CheckpointModel(), 2, 1).Head(10), {}, {}};
  for (int shard = 0; shard < 3; ++shard) {
    int64_t offset = kShardHeadBytes;
    for (int block = 0; block < 3; ++block) {
      const std::string name = "block " + std::to_string(shard) + " " + std::to_string(block);
      manifest.blocks[name] = {shard, offset, block + 1, Sha256(name)};
      offset += 12 * (block + 1);
    }
    manifest.shards.push_back(offset);
  }
  return manifest;
}

std::string Refusal(const std::string& text) {
  return Failure([&] { ReadManifest(text, "m"); });
}

/// What is said about the manifest after a replacement, with its checksum made right again.
std::string Forged(const std::string& from, const std::string& to) {
  std::string text = WriteManifest(SmallManifest());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  REQUIRE(SealManifest(&text));
  return Refusal(text);
}

TEST_SUITE("unit") {
  TEST_CASE("manifest: what is written is what is read") {
    Manifest manifest = SmallManifest();
    manifest.head.seed = UINT64_MAX;
    manifest.head.model.capacity_factor = 1.1f;
    manifest.head.model.learning_rate = 0.1f;
    const std::string text = WriteManifest(manifest);
    const Manifest again = ReadManifest(text, "m");
    CHECK(WriteManifest(again) == text);
    CHECK(again.head.seed == UINT64_MAX);
    CHECK(again.head.model == manifest.head.model);
    CHECK(again.head.text == manifest.head.text);
    CHECK(again.head.schedule == "1f1b");
    CHECK(again.head.microbatches == 4);
    CHECK(again.shards == manifest.shards);
    REQUIRE(again.blocks.size() == 9);
    const SavedBlock& block = again.blocks.at("block 2 1");
    CHECK(block.shard == 2);
    CHECK(block.offset == kShardHeadBytes + 12);
    CHECK(block.size == 2);
    CHECK(SameDigest(block.digest, Sha256("block 2 1")));
    CHECK(text.find("\n[\n\"64 1 " + Hex(Sha256("block 0 0")) + " block 0 0\",\n") !=
          std::string::npos);
  }

  TEST_CASE("manifest: a name that is no text is made one") {
    Manifest manifest = SmallManifest();
    for (const char* name : {"a\xFF\n.json", "\xC3\xA9.json"}) {
      manifest.head.model.name = name;
      ReadManifest(WriteManifest(manifest), "m");
    }
    CHECK(ReadManifest(WriteManifest(manifest), "m").head.model.name == "\xC3\xA9.json");
    manifest.head.model.name = std::string(5000, 'x');
    CHECK(ReadManifest(WriteManifest(manifest), "m").head.model.name == "a long name");
  }

  TEST_CASE("manifest: no byte can change") {
    const std::string text = WriteManifest(SmallManifest());
    std::mt19937 random(1);
    for (size_t i = 0; i < text.size(); ++i) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << random() % 8));
      CAPTURE(i);
      const std::string refusal = Refusal(changed);
      const bool named = refusal.rfind("m: is damaged: its checksum is ", 0) == 0 ||
                         refusal.rfind("m: is not a checkpoint manifest, or is damaged: ", 0) == 0;
      CHECK(named);
    }
    for (size_t size = 0; size < text.size(); ++size) {
      CAPTURE(size);
      CHECK(Refusal(text.substr(0, size)) != "accepted");
    }
    CHECK(Refusal(text + "\n") != "accepted");
    CHECK(Refusal(text) == "accepted");
  }

  TEST_CASE("manifest: a forged one gives one error each") {
    const std::string digest = Hex(Sha256("block 0 1"));
    const struct {
      std::string from, to, refusal;
    } cases[] = {
        {"\"format\": \"contraflow-checkpoint\"", "\"format\": \"x\"",
         "m: /format: must be \"contraflow-checkpoint\""},
        {"\"version\": 1", "\"version\": 2",
         "m: /version: this program reads version 1 only; use the one that wrote it"},
        {"\"step\": 10", "\"step\": -1", "m: /step: must be a step in 1..2147483647, is -1"},
        {"\"step\": 10", "\"stop\": 10",
         "m: unknown key \"stop\" (did you mean \"step\"?); known are: checksum, format, version, "
         "step, seed, text, model, schedule, shards, blocks, ranks, stages, microbatches, "
         "data_parallel, expert_parallel"},
        {"\"seed\": \"7\"", "\"seed\": \"07\"",
         "m: /seed: must be a number of 64 bits in quotes, is \"07\""},
        {"\"seed\": \"7\"", "\"seed\": \"18446744073709551616\"",
         "m: /seed: must be a number of 64 bits in quotes, is \"18446744073709551616\""},
        {"\"text\": \"a", "\"text\": \"A", "m: /text: must be 64 hexadecimal digits"},
        {"\"width\": 4", "\"width\": 3", "m: /model: /heads: must divide width 3, is 2"},
        {"\"layers\": 8", "\"layers\": 0", "m: /model/layers: must be at least 1, is 0"},
        {"\"ranks\": 2", "\"ranks\": 2000000000",
         "m: /ranks: must be a number of ranks in 1..1048576, is 2000000000"},
        {"shard-0001", "../../x", "m: /shards/1/file: must be \"shard-0001\""},
        {"shard-0001", "shard-0000", "m: /shards/1/file: must be \"shard-0001\""},
        {"\"bytes\": 136", "\"bytes\": 137",
         "m: /blocks/0: the blocks end at byte 136, the shard has 137"},
        {"\"bytes\": 136", "\"bytes\": -1",
         "m: /shards/0/bytes: must be a number of bytes in 64..1125899906842624, is -1"},
        {"\"76 2 ", "\"64 2 ",
         "m: /blocks/0/1: must begin at byte 76, where the block before it ends, not at 64"},
        {"\"76 2 ", "\"-76 2 ", "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 ", "\"076 2 ", "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 ", "\"76 +2 ", "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 ", "\"76  2 ", "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 ", "\"76 18446744073709551616 ",
         "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 ", "\"76 9223372036854775807 ",
         "m: /blocks/0/1: must have at least 1 value, and end within the 1125899906842624 bytes "
         "that a shard can have"},
        {"\"76 2 ", "\"76 0 ",
         "m: /blocks/0/1: must have at least 1 value, and end within the 1125899906842624 bytes "
         "that a shard can have"},
        {"\"76 2 " + digest, "\"76 2 G" + digest.substr(1),
         "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {"\"76 2 " + digest, "\"76 2 " + digest.substr(1),
         "m: /blocks/0/1: must be `OFFSET SIZE SHA-256 NAME`"},
        {digest + " block 0 1", digest + " ", "m: /blocks/0/1: the name must have 1..128 bytes"},
        {digest + " block 0 1", digest + " " + std::string(129, 'x'),
         "m: /blocks/0/1: the name must have 1..128 bytes"},
        {"block 2 2", "block 0 1",
         "m: /blocks/2/2: block \"block 0 1\" is there already; every block is written once"},
        {"\n]\n]\n}", "\n],\n[]\n]\n}",
         "m: /blocks: must have a list for each of the 3 shards, has 4"},
        {"\n]\n]\n}", "\n]\n], \"checksum\": \"\"\n}", "m: /checksum: is given twice; keep one"},
        {"\"blocks\": [", "\"blocks\": [3, ", "m: /blocks/0: must be an array of strings"},
    };
    for (const auto& c : cases) {
      CAPTURE(c.from);
      CAPTURE(c.to);
      CHECK(Forged(c.from, c.to) == c.refusal);
    }
    CHECK(Forged("\"seed\": \"7\"", "\"seed\": \"8\"") == "accepted");
  }

  TEST_CASE("manifest: claims of a bomb are refused before memory is taken for them") {
    std::string text = WriteManifest(SmallManifest());
    const size_t at = text.find("\"shards\": [") + std::string("\"shards\": [").size();
    std::string shards;
    for (int i = 0; i < 300000; ++i) shards += "{},";
    text.insert(at, shards);
    REQUIRE(SealManifest(&text));
    const std::string refusal = Refusal(text);
    CHECK(refusal.rfind("m: /shards/2621", 0) == 0);
    CHECK(refusal.find(": the document holds more than 262144 values, ") != std::string::npos);
    text = WriteManifest(SmallManifest());
    std::string rows;
    for (int i = 0; i < 70000; ++i) rows += "[],";
    text.insert(text.find("\"blocks\": [") + std::string("\"blocks\": [").size(), rows);
    REQUIRE(SealManifest(&text));
    CHECK(Refusal(text) == "m: /blocks: has more than 65536 shards");
  }

  TEST_CASE("manifest: a hundred thousand blocks are read") {
    Manifest manifest{SmallManifest().head, {}, {}};
    constexpr int kShards = 10, kEach = 10000;
    for (int shard = 0; shard < kShards; ++shard) {
      for (int i = 0; i < kEach; ++i) {
        const std::string name = "block " + std::to_string(shard * kEach + i);
        manifest.blocks[name] = {shard, kShardHeadBytes + 12 * i, 1, Digest{}};
      }
      manifest.shards.push_back(kShardHeadBytes + 12 * kEach);
    }
    const std::string text = WriteManifest(manifest);
    const Manifest again = ReadManifest(text, "m");
    CHECK(again.blocks.size() == kShards * kEach);
    CHECK(again.blocks.at("block 31234").shard == 3);
    CHECK(again.blocks.at("block 31234").offset == kShardHeadBytes + 12 * 1234);
    CHECK(WriteManifest(again) == text);
  }

  TEST_CASE("manifest: the difference of two models names every field") {
    const Model model = CheckpointModel();
    CHECK(DifferenceOf(model, model) == "");
    Model other = model;
    other.name = "another name";
    CHECK(DifferenceOf(model, other) == "");
    other.width = 8;
    other.learning_rate = 0.5f;
    other.capacity_factor = 2;
    CHECK(
        DifferenceOf(model, other) ==
        "capacity_factor 0, here 2; learning_rate 0.003000000026077032, here 0.5; width 4, here 8");
    CHECK(DifferenceOf(other, model).rfind("capacity_factor 2, here 0; ", 0) == 0);
  }
}

}  // namespace
}  // namespace contraflow::manifest_test
