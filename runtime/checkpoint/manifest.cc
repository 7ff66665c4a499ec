#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/core/digest.h"
#include "runtime/model/model_json.h"

namespace contraflow {
namespace {

constexpr std::string_view kFormat = "contraflow-checkpoint";
constexpr int kVersion = 2;

// The most of a checkpoint.
constexpr size_t kMaxBlocks = size_t{1} << 20, kMaxShards = size_t{1} << 16;
constexpr int64_t kMaxSealedBytes = int64_t{1} << 28, kMaxShardBytes = int64_t{1} << 50;
constexpr size_t kMaxName = 128;  // of a block
constexpr int kMost = 1 << 20;    // ranks, stages, replicas and so on

struct HeadField {
  std::string_view key, noun;
  int CheckpointHead::*field;
  int most = kMost;
};
constexpr HeadField kHeadFields[] = {
    {"step", "a step", &CheckpointHead::step, std::numeric_limits<int>::max()},
    {"ranks", "a number of ranks", &CheckpointHead::ranks},
    {"stages", "a number of stages", &CheckpointHead::stages},
    {"microbatches", "a number of micro-batches", &CheckpointHead::microbatches},
    {"data_parallel", "a number of replicas", &CheckpointHead::data_parallel},
    {"expert_parallel", "a number of members", &CheckpointHead::expert_parallel},
};

/// Up to the next `end`, which goes with it; nothing if there is none.
std::optional<std::string_view> TakeUntil(char end, std::string_view* text) {
  const size_t at = text->find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view taken = text->substr(0, at);
  text->remove_prefix(at + 1);
  return taken;
}

/// The whole text as a number.
template <typename T>
bool Parse(std::string_view text, T* number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

/// The model as it is written: its name may be a path of any bytes, and does not matter.
Json JsonOf(const Model& model) {
  Json json = ModelToJson(model);
  json.erase("name");
  return json;
}

CheckpointHead HeadFrom(const JsonCursor& root, const std::string& place) {
  std::vector<std::string_view> keys = {"format", "version",  "seed",      "text",
                                        "model",  "schedule", "algorithms"};
  for (const HeadField& f : kHeadFields) keys.push_back(f.key);
  root.Keys("a manifest (an object)", keys);
  const JsonCursor format = root.Required("format"), version = root.Required("version");
  if (format.String("a format") != kFormat) format.Fail("must be " + QuoteJson(kFormat));
  if (version.Integer("a version", 0, kMost) != kVersion) {
    version.Fail("this program reads version " + std::to_string(kVersion) +
                 " only; use the one that wrote it");
  }
  CheckpointHead head;
  for (const HeadField& f : kHeadFields) {
    head.*f.field = static_cast<int>(root.Required(f.key).Integer(f.noun, 1, f.most));
  }
  const JsonCursor seed = root.Required("seed"), model = root.Required("model");
  if (!Parse(seed.String("a seed"), &head.seed)) seed.Fail("must be a number of 64 bits in quotes");
  head.text = root.Required("text").String("a SHA-256", 2 * sizeof(Digest));
  head.schedule = root.Required("schedule").String("a schedule");
  if (const std::optional<JsonCursor> algorithms = root.Optional("algorithms")) {
    head.algorithms = algorithms->String("a SHA-256", 2 * sizeof(Digest));
  }
  head.model = ModelFromJson(model);
  CheckModel(head.model, place + ": /model");
  if (head.model.layers == 0) model.Required("layers").Fail("must be at least 1, is 0");
  return head;
}

}  // namespace

std::string ShardTitle(int step, int shard) {
  return "contraflow " + ShardName(shard) + " of " + StepName(step);
}

std::string ShardHead(int step, int shard) {
  std::string head = ShardTitle(step, shard);
  CF_ASSERT(head.size() < kShardHeadBytes);
  head.resize(kShardHeadBytes - 1, ' ');
  return head + "\n";
}

std::string BlockLine(int64_t size, const std::string& checksum, const std::string& name) {
  return std::to_string(size) + " " + checksum + " " + name + "\n";
}

int64_t TakeNote(std::string_view* text, const std::string& place, int step, int shard,
                 std::map<std::string, SavedBlock>* blocks) {
  const std::string title = ShardTitle(step, shard);
  const auto refuse = [&](const std::string& what) {
    throw Error(place + ": " + ShardName(shard) + ": " + what);
  };
  if (TakeUntil('\n', text) != title) refuse("must begin with `" + title + "`");
  int64_t end = kShardHeadBytes;
  // Another shard begins with a letter.
  while (!text->empty() && text->front() <= '9') {
    auto rest = TakeUntil('\n', text);
    if (!rest) refuse("the last line is cut off");
    const std::string line(*rest);
    const auto wrong = [&](const std::string& what) { refuse(Excerpt(line) + ": " + what); };
    SavedBlock block = {.shard = shard, .offset = end};
    const auto size = TakeUntil(' ', &*rest), checksum = TakeUntil(' ', &*rest);
    if (!size || !checksum || !Parse(*size, &block.size)) wrong("must be `SIZE CHECKSUM NAME`");
    if (rest->empty() || rest->size() > kMaxName) {
      wrong("the name must have 1.." + std::to_string(kMaxName) + " bytes");
    }
    if (block.size < 1 || block.size > (kMaxShardBytes - end) / kValueBytes) {
      wrong("must have at least 1 value, and end within the " + std::to_string(kMaxShardBytes) +
            " bytes that a shard can have");
    }
    if (blocks->size() == kMaxBlocks) {
      wrong("is one more than the " + std::to_string(kMaxBlocks) + " of a checkpoint");
    }
    end += block.size * kValueBytes;
    block.checksum = *checksum;
    if (!blocks->emplace(*rest, std::move(block)).second) {
      wrong("is there already; every block is written once");
    }
  }
  return end;
}

std::string Seal(std::string_view text) { return Hex(Sha256(text)) + "\n" + std::string(text); }

std::string_view Unseal(std::string_view sealed, const std::string& place) {
  std::string_view text = sealed;
  const auto digest = TakeUntil('\n', &text);
  if (digest && *digest == Hex(Sha256(text))) return text;
  throw Error(place + ": is damaged: its first line is not the SHA-256 of what follows");
}

std::string ReadSealed(const std::string& path) {
  // Reading from a pipe of that name would wait.
  if (FileSize(path) < 0) throw Error(path + ": is missing");
  return std::string(Unseal(ReadFile(path, kMaxSealedBytes), path));
}

std::string WriteManifest(const CheckpointHead& head, const std::string& notes) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  for (const HeadField& f : kHeadFields) json[f.key] = head.*f.field;
  json["schedule"] = head.schedule;
  json["seed"] = std::to_string(head.seed);  // it may have 64 bits
  json["text"] = head.text;
  if (!head.algorithms.empty()) json["algorithms"] = head.algorithms;
  json["model"] = JsonOf(head.model);
  return json.dump() + "\n" + notes;
}

Manifest ReadManifest(std::string_view text, const std::string& place) {
  const auto line = TakeUntil('\n', &text);
  if (!line) throw Error(place + ": is cut off");
  Manifest manifest;
  manifest.head = HeadFrom(ParseJson(*line, place).Root(), place);
  while (!text.empty() || manifest.shards.empty()) {
    if (manifest.shards.size() == kMaxShards) {
      throw Error(place + ": has more than " + std::to_string(kMaxShards) + " shards");
    }
    manifest.shards.push_back(TakeNote(&text, place, manifest.head.step,
                                       static_cast<int>(manifest.shards.size()), &manifest.blocks));
  }
  return manifest;
}

std::string DifferenceOf(const Model& saved, const Model& here) {
  Json theirs = JsonOf(saved), ours = JsonOf(here);
  // A field may be left out where it is 0.
  for (const auto& [key, value] : ours.items()) theirs.emplace(key, 0);
  std::string all;
  for (const auto& [key, value] : theirs.items()) {
    const Json now = ours.value(key, Json(0));
    if (value == now) continue;
    all += (all.empty() ? "" : "; ") + key + " " + value.dump() + ", here " + now.dump();
  }
  // Fails when a model has a field that is not written.
  Model renamed = saved;
  renamed.name = here.name;
  CF_ASSERT(all.empty() == (renamed == here));
  return all;
}

}  // namespace contraflow
