#include "runtime/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::manifest_test {
namespace {

const CheckpointHead kHead = CutModel(CheckpointModel(), 2, 1).Head(10);
const std::string kChecksum(32, 'c');

/// Notes of shards with blocks of one value, named by number.
std::string Notes(int shards, int blocks) {
  std::string notes;
  for (int shard = 0; shard < shards; ++shard) {
    notes += ShardTitle(10, shard) + "\n";
    for (int i = 0; i < blocks; ++i) {
      notes += BlockLine(1, kChecksum, "block " + std::to_string(shard * blocks + i));
    }
  }
  return notes;
}

std::string Refusal(const std::string& text) {
  return Failure([&] { ReadManifest(text, "m"); });
}

/// Returns the error of a manifest of three shards with three blocks each after a replacement.
std::string Forged(const std::string& from, const std::string& to) {
  std::string text = WriteManifest(kHead, Notes(3, 3));
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return Refusal(text.replace(at, from.size(), to));
}

TEST_SUITE("unit") {
  TEST_CASE("manifest: what is written is what is read") {
    CheckpointHead head = kHead;
    head.seed = UINT64_MAX;
    head.model.capacity_factor = 1.1f;
    head.model.learning_rate = 0.1f;
    head.model.name = "a\xFF\n.json";  // it does not matter, and need be no text
    const std::string notes = Notes(2, 1) + BlockLine(7, kChecksum, "last");
    const Manifest again = ReadManifest(WriteManifest(head, notes), "m");
    CHECK(WriteManifest(again.head, notes) == WriteManifest(head, notes));
    CHECK(again.head.seed == UINT64_MAX);
    CHECK(DifferenceOf(again.head.model, head.model) == "");
    CHECK(again.head.text == head.text);
    CHECK(again.head.schedule == "1f1b");
    CHECK(again.head.algorithms == "");
    head.algorithms = std::string(64, 'a');
    CHECK(ReadManifest(WriteManifest(head, notes), "m").head.algorithms == head.algorithms);
    head.algorithms += 'a';
    CHECK(Refusal(WriteManifest(head, notes)).find("m: /algorithms: ") == 0);
    CHECK(again.head.microbatches == 4);
    CHECK(again.shards == std::vector<int64_t>{64 + 12, 64 + 12 + 84});
    REQUIRE(again.blocks.size() == 3);
    const SavedBlock& block = again.blocks.at("last");
    CHECK(block.shard == 1);
    CHECK(block.offset == 64 + 12);
    CHECK(block.size == 7);
    CHECK(block.checksum == kChecksum);
  }

  TEST_CASE("manifest: no byte of what is sealed can change") {
    const std::string text = WriteManifest(kHead, Notes(1, 1)), sealed = Seal(text);
    const auto refusal = [](const std::string& bytes) {
      return Failure([&] { Unseal(bytes, "m"); });
    };
    const std::string damaged = "m: is damaged: its first line is not the SHA-256 of what follows";
    std::mt19937 random(1);
    for (size_t i = 0; i < sealed.size(); ++i) {
      CAPTURE(i);
      std::string changed = sealed;
      changed[i] = static_cast<char>(changed[i] ^ (1 << random() % 8));
      CHECK(refusal(changed) == damaged);
      CHECK(refusal(sealed.substr(0, i)) == damaged);
    }
    CHECK(refusal(sealed + "\n") == damaged);
    CHECK(Unseal(sealed, "m") == text);
  }

  TEST_CASE("manifest: a forged one gives one error each") {
    const std::string shard1 = "m: shard-0001: ", line = "\n1 " + kChecksum + " block 4\n";
    const std::string form = "must be `SIZE CHECKSUM NAME`";
    const auto of_line = [&](const std::string& start, const std::string& what) {
      return shard1 + "\"" + start + " " + kChecksum + " block 4\": " + what;
    };
    const std::string bounds =
        "must have at least 1 value, and end within the 1125899906842624 bytes that a shard can "
        "have";
    const struct {
      std::string from, to, refusal;
    } cases[] = {
        {"\"contraflow-checkpoint\"", "\"x\"", "m: /format: must be \"contraflow-checkpoint\""},
        {"\"version\":2", "\"version\":1",
         "m: /version: this program reads version 2 only; use the one that wrote it"},
        {"\"step\":10", "\"step\":-1", "m: /step: must be a step in 1..2147483647, is -1"},
        {"\"step\":10", "\"stop\":10",
         "m: unknown key \"stop\" (did you mean \"step\"?); known are: format, version, seed, "
         "text, model, schedule, algorithms, step, ranks, stages, microbatches, data_parallel, "
         "expert_parallel"},
        {"\"seed\":\"7\"", "\"seed\":\"7x\"", "m: /seed: must be a number of 64 bits in quotes"},
        {"\"seed\":\"7\"", "\"seed\":\"18446744073709551616\"",
         "m: /seed: must be a number of 64 bits in quotes"},
        {"\"width\":4", "\"width\":3", "m: /model: /heads: must divide width 3, is 2"},
        {"\"layers\":8", "\"layers\":0", "m: /model/layers: must be at least 1, is 0"},
        {"\"ranks\":2", "\"ranks\":2000000000",
         "m: /ranks: must be a number of ranks in 1..1048576, is 2000000000"},
        {"{", "{\"seed\":\"7\",", "m: /seed: is given twice; keep one"},
        {"shard-0001", "../../x",
         shard1 + "must begin with `contraflow shard-0001 of step-00000010`"},
        {"shard-0001", "shard-0000",
         shard1 + "must begin with `contraflow shard-0001 of step-00000010`"},
        {"shard-0001 of step-00000010", "shard-0001 of step-00000011",
         shard1 + "must begin with `contraflow shard-0001 of step-00000010`"},
        {line, "\n-1 " + kChecksum + " block 4\n", of_line("-1", bounds)},
        {line, "\n0 " + kChecksum + " block 4\n", of_line("0", bounds)},
        {line, "\n9223372036854775807 " + kChecksum + " block 4\n",
         of_line("9223372036854775807", bounds)},
        {line, "\n+1 " + kChecksum + " block 4\n", of_line("+1", form)},
        {line, "\n 1 " + kChecksum + " block 4\n", of_line(" 1", form)},
        {line, "\n18446744073709551616 " + kChecksum + " block 4\n", form},
        {line, "\n1 x\n", shard1 + "\"1 x\": " + form},
        {line, "\n\n", shard1 + "\"\": " + form},
        {line, "\n1 c \n", shard1 + "\"1 c \": the name must have 1..128 bytes"},
        {line, "\n1 c " + std::string(129, 'x') + "\n", "the name must have 1..128 bytes"},
        {line, "\n1 c block 0\n",
         shard1 + "\"1 c block 0\": is there already; every block is written once"},
        {"block 8\n", "block 8", "m: shard-0002: the last line is cut off"},
        {"}}\n", "}}", "not valid JSON: invalid literal; expected end of input"},
    };
    for (const auto& c : cases) {
      CAPTURE(c.from);
      CAPTURE(c.to);
      const std::string refusal = Forged(c.from, c.to);
      CAPTURE(refusal);
      CHECK(refusal.ends_with(c.refusal));
    }
    CHECK(Forged("\"seed\":\"7\"", "\"seed\":\"8\"") == "accepted");
    CHECK(Refusal("no line") == "m: is cut off");
  }

  TEST_CASE("manifest: many blocks are read, and claims of a bomb refused") {
    const Manifest many = ReadManifest(WriteManifest(kHead, Notes(10, 10000)), "m");
    CHECK(many.blocks.size() == 100000);
    CHECK(many.blocks.at("block 31234").shard == 3);
    CHECK(many.blocks.at("block 31234").offset == kShardHeadBytes + 12 * 1234);
    CHECK(Refusal(WriteManifest(kHead, Notes(65537, 0))) == "m: has more than 65536 shards");
    CHECK(Refusal(WriteManifest(kHead, Notes(1, (1 << 20) + 1)))
              .ends_with("is one more than the 1048576 of a checkpoint"));
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
    CHECK(DifferenceOf(model, other) ==
          "width 4, here 8; learning_rate 0.003000000026077032, here 0.5; capacity_factor 0, here "
          "2.0");
    CHECK(DifferenceOf(other, model).ends_with("; capacity_factor 2.0, here 0"));
  }
}

}  // namespace
}  // namespace contraflow::manifest_test
