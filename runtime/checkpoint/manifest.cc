#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "compiler/files/json_builder.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/model/model_json.h"

namespace contraflow {
namespace {

// The checksum comes first, so that it is found without reading the rest.
constexpr std::string_view kBeforeChecksum = "{\"checksum\": \"";
constexpr size_t kDigits = 2 * sizeof(Digest);
constexpr std::string_view kZeros =
    "0000000000000000000000000000000000000000000000000000000000000000";
static_assert(kZeros.size() == kDigits);

constexpr size_t kMaxName = 128;   // Of a block.
constexpr size_t kMaxLabel = 256;  // Of a model and a schedule.
constexpr int64_t kMaxShardBytes = int64_t{1} << 50;
constexpr int kMost = 1 << 20;  // Ranks, stages, replicas and so on.

struct HeadField {
  std::string_view key, noun;
  int CheckpointHead::*field;
};
constexpr HeadField kHeadFields[] = {
    {"ranks", "a number of ranks", &CheckpointHead::ranks},
    {"stages", "a number of stages", &CheckpointHead::stages},
    {"microbatches", "a number of micro-batches", &CheckpointHead::microbatches},
    {"data_parallel", "a number of replicas", &CheckpointHead::data_parallel},
    {"expert_parallel", "a number of members", &CheckpointHead::expert_parallel},
};

bool HasChecksum(std::string_view text) {
  return text.size() > kBeforeChecksum.size() + kDigits &&
         text.substr(0, kBeforeChecksum.size()) == kBeforeChecksum;
}

/// With zeros in the place of the checksum.
std::string ChecksumOf(std::string_view text) {
  Sha256Stream stream;
  const auto add = [&stream](std::string_view part) {
    stream.Add(std::as_bytes(std::span(part.data(), part.size())));
  };
  add(kBeforeChecksum);
  add(kZeros);
  add(text.substr(kBeforeChecksum.size() + kDigits));
  return Hex(stream.Finish());
}

std::optional<Digest> DigestOf(std::string_view digits) {
  Digest digest{};
  if (digits.size() != kDigits) return std::nullopt;
  for (size_t i = 0; i < digest.size(); ++i) {
    const std::string_view two = digits.substr(2 * i, 2);
    // One value has one text: capitals are not digits here.
    if (two.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
    std::from_chars(two.data(), two.data() + 2, digest[i], 16);
  }
  return digest;
}

/// The number up to the next space, which goes with it.
std::optional<int64_t> TakeNumber(std::string_view* text) {
  int64_t number = 0;
  const size_t space = text->find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const char *begin = text->data(), *end = begin + space;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || number < 0) return std::nullopt;
  if (*begin == '-' || (*begin == '0' && space > 1)) return std::nullopt;
  text->remove_prefix(space + 1);
  return number;
}

/// A name as a document can hold it: that of a model may be a path of any bytes.
std::string Label(std::string name) {
  const bool fits = ValidUtf8(name);
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || (byte > 0x7F && !fits)) c = '?';
  }
  return name.size() <= kMaxLabel ? name : "a long name";
}

/// The fields of a model that matter to a training, as they are written.
std::map<std::string, std::string> FieldsOf(const Model& model) {
  std::map<std::string, std::string> fields;
  const Json json = ModelToJson(model);
  for (const auto& [key, value] : json.items()) {
    if (key != "name") WriteJson(value, &fields[key]);
  }
  return fields;
}

uint64_t SeedFrom(const JsonCursor& cursor) {
  const std::string& text = cursor.String("a seed");
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size() || std::to_string(seed) != text) {
    cursor.Fail("must be a number of 64 bits in quotes, is " + QuoteJson(text));
  }
  return seed;
}

CheckpointHead HeadFrom(const JsonCursor& root, const std::string& place) {
  CheckpointHead head;
  head.step =
      static_cast<int>(root.Required("step").Integer("a step", 1, std::numeric_limits<int>::max()));
  head.seed = SeedFrom(root.Required("seed"));
  const JsonCursor text = root.Required("text");
  head.text = text.String("a SHA-256", kDigits);
  if (!DigestOf(head.text)) text.Fail("must be 64 hexadecimal digits");
  head.schedule = root.Required("schedule").String("a schedule", kMaxLabel);
  for (const HeadField& f : kHeadFields) {
    head.*f.field = static_cast<int>(root.Required(f.key).Integer(f.noun, 1, kMost));
  }
  const JsonCursor model = root.Required("model");
  head.model = ModelFromJson(model);
  // It does not say what computed it, and the larger models are those of GPUs.
  CheckModel(head.model, place + ": /model", head.expert_parallel, head.stages, Hardware::kGpus);
  if (head.model.layers == 0) model.Required("layers").Fail("must be at least 1, is 0");
  return head;
}

std::vector<int64_t> ShardsFrom(const JsonCursor& cursor) {
  const size_t count = cursor.Size("an array of shards");
  if (count == 0 || count > kMaxShards) {
    cursor.Fail("must have 1.." + std::to_string(kMaxShards) + " shards, has " +
                std::to_string(count));
  }
  std::vector<int64_t> shards;
  for (size_t i = 0; i < count; ++i) {
    const JsonCursor shard = cursor.Item(i);
    shard.Keys("a shard (an object)", {"file", "bytes"});
    const JsonCursor file = shard.Required("file");
    const std::string name = ShardName(static_cast<int>(i));
    // No other name, so none with a path.
    if (file.String("a file name") != name) file.Fail("must be \"" + name + "\"");
    shards.push_back(
        shard.Required("bytes").Integer("a number of bytes", kShardHeadBytes, kMaxShardBytes));
  }
  return shards;
}

}  // namespace

std::string ShardHead(int step, int shard) {
  std::string head = "contraflow " + ShardName(shard) + " of " + StepName(step);
  CF_ASSERT(head.size() < kShardHeadBytes);
  head.resize(kShardHeadBytes - 1, ' ');
  return head + "\n";
}

std::string BlockText(int64_t offset, int64_t size, const Digest& digest, const std::string& name) {
  return std::to_string(offset) + " " + std::to_string(size) + " " + Hex(digest) + " " + name;
}

std::string ShardBlocks::Add(std::string_view text) {
  const auto offset = TakeNumber(&text);
  const auto size = offset ? TakeNumber(&text) : std::nullopt;
  const auto digest = size && text.size() > kDigits && text[kDigits] == ' '
                          ? DigestOf(text.substr(0, kDigits))
                          : std::nullopt;
  if (!digest) return "must be `OFFSET SIZE SHA-256 NAME`";
  const std::string name(text.substr(kDigits + 1));
  if (name.empty() || name.size() > kMaxName) {
    return "the name must have 1.." + std::to_string(kMaxName) + " bytes";
  }
  if (*offset != bytes_) {
    return "must begin at byte " + std::to_string(bytes_) +
           ", where the block before it ends, not at " + std::to_string(*offset);
  }
  constexpr int64_t kBytes = 3 * sizeof(float);
  if (*size < 1 || *size > (kMaxShardBytes - bytes_) / kBytes) {
    return "must have at least 1 value, and end within the " + std::to_string(kMaxShardBytes) +
           " bytes that a shard can have";
  }
  if (blocks_->size() == kMaxBlocks) {
    return "is one block more than the " + std::to_string(kMaxBlocks) + " of a checkpoint";
  }
  if (!blocks_->emplace(name, SavedBlock{shard_, *offset, *size, *digest}).second) {
    return "block " + QuoteJson(name) + " is there already; every block is written once";
  }
  bytes_ += *size * kBytes;
  return "";
}

std::string WriteManifest(const Manifest& manifest) {
  const CheckpointHead& head = manifest.head;
  std::string out = std::string(kBeforeChecksum) + std::string(kZeros) + "\",\n";
  const auto add = [&out](std::string_view key, const Json& value, const char* separator = ",\n") {
    out += QuoteJson(key) + ": ";
    WriteJson(value, &out);
    out += separator;
  };
  add("format", kManifestFormat, ", ");
  add("version", kManifestVersion);
  add("step", head.step);
  add("seed", std::to_string(head.seed));
  add("text", head.text);
  Model model = head.model;
  model.name = Label(model.name);
  add("model", ModelToJson(model));
  add("schedule", Label(head.schedule));
  for (const HeadField& f : kHeadFields) add(f.key, head.*f.field);
  Json shards;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    shards.push_back({{"file", ShardName(static_cast<int>(i))}, {"bytes", manifest.shards[i]}});
  }
  add("shards", shards);
  using Entry = std::map<std::string, SavedBlock>::value_type;
  std::vector<std::vector<const Entry*>> rows(manifest.shards.size());
  for (const Entry& entry : manifest.blocks) {
    rows.at(static_cast<size_t>(entry.second.shard)).push_back(&entry);
  }
  out += "\"blocks\": [";
  for (size_t r = 0; r < rows.size(); ++r) {
    std::sort(rows[r].begin(), rows[r].end(),
              [](const Entry* a, const Entry* b) { return a->second.offset < b->second.offset; });
    out += r == 0 ? "\n[" : ",\n[";
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const auto& [name, block] = *rows[r][i];
      out += i == 0 ? "\n" : ",\n";
      out += QuoteJson(BlockText(block.offset, block.size, block.digest, name));
    }
    out += "\n]";
  }
  out += "\n]\n}\n";
  CF_ASSERT(SealManifest(&out));
  return out;
}

bool SealManifest(std::string* text) {
  if (!HasChecksum(*text)) return false;
  text->replace(kBeforeChecksum.size(), kDigits, ChecksumOf(*text));
  return true;
}

Manifest ReadManifest(std::string_view text, const std::string& place) {
  if (!HasChecksum(text)) {
    throw Error(place +
                ": is not a checkpoint manifest, or is damaged: it does not begin with a checksum");
  }
  const std::string saved(text.substr(kBeforeChecksum.size(), kDigits)), now = ChecksumOf(text);
  if (saved != now) {
    throw Error(place + ": is damaged: its checksum is " + now + ", it was written with " +
                QuoteJson(saved));
  }
  Manifest manifest;
  std::vector<ShardBlocks> rows;
  const JsonRows blocks = {
      "blocks",
      [&](size_t row) {
        if (row == kMaxShards) {
          throw Error(place + ": /blocks: has more than " + std::to_string(kMaxShards) + " shards");
        }
        rows.emplace_back(static_cast<int>(row), &manifest.blocks);
      },
      [&](size_t row, size_t index, std::string_view entry) {
        const std::string wrong = rows[row].Add(entry);
        if (wrong.empty()) return;
        throw Error(place + ": /blocks/" + std::to_string(row) + "/" + std::to_string(index) +
                    ": " + wrong);
      }};
  const JsonLimits limits = {static_cast<size_t>(kMaxManifestBytes), size_t{4} * kMaxShards};
  const JsonDocument document = ParseJson(text, place, limits, std::span(&blocks, 1));
  const JsonCursor root = document.Root();
  std::vector<std::string_view> keys = {"checksum", "format", "version",  "step",   "seed",
                                        "text",     "model",  "schedule", "shards", "blocks"};
  for (const HeadField& f : kHeadFields) keys.push_back(f.key);
  root.Keys("a manifest (an object)", keys);
  const JsonCursor format = root.Required("format");
  if (format.String("a format") != kManifestFormat) {
    format.Fail("must be \"" + std::string(kManifestFormat) + "\"");
  }
  const JsonCursor version = root.Required("version");
  if (version.Integer("a version", 0, kMost) != kManifestVersion) {
    version.Fail("this program reads version " + std::to_string(kManifestVersion) +
                 " only; use the one that wrote it");
  }
  manifest.head = HeadFrom(root, place);
  manifest.shards = ShardsFrom(root.Required("shards"));
  const JsonCursor lists = root.Required("blocks");
  if (rows.size() != manifest.shards.size()) {
    lists.Fail("must have a list for each of the " + std::to_string(manifest.shards.size()) +
               " shards, has " + std::to_string(rows.size()));
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].bytes() == manifest.shards[r]) continue;
    throw Error(place + ": /blocks/" + std::to_string(r) + ": the blocks end at byte " +
                std::to_string(rows[r].bytes()) + ", the shard has " +
                std::to_string(manifest.shards[r]));
  }
  return manifest;
}

std::string DifferenceOf(const Model& saved, const Model& here) {
  std::map<std::string, std::string> theirs = FieldsOf(saved), ours = FieldsOf(here);
  // A field may be left out where it is 0.
  for (const auto& [key, value] : theirs) ours.emplace(key, "0");
  for (const auto& [key, value] : ours) theirs.emplace(key, "0");
  std::string all;
  for (const auto& [key, value] : theirs) {
    if (value == ours[key]) continue;
    all += (all.empty() ? "" : "; ") + key + " " + value + ", here " + ours[key];
  }
  // Fails when a model has a field that is not written.
  Model renamed = saved;
  renamed.name = here.name;
  CF_ASSERT(all.empty() == (renamed == here));
  return all;
}

}  // namespace contraflow
