#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/manifest.h"

namespace contraflow {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

constexpr size_t kPiece = size_t{1} << 20;

/// Remedy for a step that cannot be used.
std::string OlderThan(const std::string& directory, int step) {
  std::string list;
  int newest = 0;
  for (const auto& [older, path] : CompleteSteps(directory)) {
    if (older >= step) break;
    list = std::to_string(older) + (list.empty() ? "" : ", ") + list;
    newest = older;
  }
  if (newest == 0) return "; there is no older checkpoint in " + directory;
  return "; older checkpoints in " + directory + " are of step " + list + ": `resume_step` " +
         std::to_string(newest) + " resumes from that one";
}

void CheckSize(const std::string& shard, int64_t wanted) {
  const int64_t bytes = FileSize(shard);
  if (bytes < 0) throw Error(shard + ": is missing");
  if (bytes == wanted) return;
  throw Error(shard + ": has " + std::to_string(bytes) + " bytes, but was written with " +
              std::to_string(wanted));
}

Manifest ReadCheckpoint(const std::string& path, int step) {
  const std::string name = path + "/" + std::string(kManifestName);
  Manifest manifest = ReadManifest(ReadSealed(name), name);
  if (manifest.head.step != step) {
    throw Error(name + ": is of step " + std::to_string(manifest.head.step) +
                ", the folder of step " + std::to_string(step) +
                "; files of two checkpoints are mixed");
  }
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    CheckSize(path + "/" + ShardName(static_cast<int>(i)), manifest.shards[i]);
  }
  return manifest;
}

/// The shards of a checkpoint, one open at a time.
class ShardReader {
 public:
  ShardReader(const std::string& path, int step) : path_(path), step_(step) {}

  /// Reads a block, in pieces if its values are to go nowhere, and throws Error unless it is what
  /// was saved.
  void Check(const std::string& name, const SavedBlock& saved, const StateBlock* into);

 private:
  void Open(int shard);

  const std::string& path_;
  const int step_;
  std::string name_;  ///< of the shard
  int shard_ = -1;
  std::unique_ptr<SeekableFile> file_;
  std::vector<std::byte> piece_ = std::vector<std::byte>(kPiece);
};

void ShardReader::Open(int shard) {
  if (shard == shard_) return;
  shard_ = shard;
  name_ = path_ + "/" + ShardName(shard);
  file_.reset();
  file_ = std::make_unique<SeekableFile>(name_);
  std::string head(kShardHeadBytes, ' ');
  file_->Read(0, std::as_writable_bytes(std::span(head.data(), head.size())));
  if (head == ShardHead(step_, shard)) return;
  throw Error(name_ + ": does not begin with `" + ShardTitle(step_, shard) +
              "`; it is damaged, or belongs to another checkpoint");
}

void ShardReader::Check(const std::string& name, const SavedBlock& saved, const StateBlock* into) {
  Open(saved.shard);
  Checksum checksum;
  const auto size = static_cast<size_t>(saved.size) * sizeof(float);
  int64_t offset = saved.offset;
  for (const auto array : {&StateBlock::parameters, &StateBlock::m, &StateBlock::v}) {
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min(size - at, kPiece);
      const std::span<std::byte> bytes =
          into == nullptr ? std::span(piece_).first(piece)
                          : std::as_writable_bytes(into->*array).subspan(at, piece);
      file_->Read(offset, bytes);
      checksum.Add(bytes);
      at += piece;
      offset += static_cast<int64_t>(piece);
    }
  }
  if (checksum.Finish() == saved.checksum) return;
  throw Error(name_ + ": the values of block " + QuoteJson(name) +
              " have changed since they were saved: their checksum differs; the shard is damaged, "
              "or belongs to another checkpoint");
}

}  // namespace

Checkpoint::Checkpoint(std::string path, std::shared_ptr<const Manifest> manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {}

const CheckpointHead& Checkpoint::head() const { return manifest_->head; }

std::optional<Checkpoint> Checkpoint::Open(const std::string& directory, std::optional<int> step) {
  const std::map<int, std::string> steps = CompleteSteps(directory);
  if (steps.empty()) return std::nullopt;
  const auto found = step ? steps.find(*step) : std::prev(steps.end());
  if (found == steps.end()) return std::nullopt;
  try {
    auto manifest = std::make_shared<const Manifest>(
        WithRemedy([&] { return ReadCheckpoint(found->second, found->first); }));
    return Checkpoint(found->second, std::move(manifest));
  } catch (const Error& error) {
    throw Error(error.what() + OlderThan(directory, found->first));
  }
}

void Checkpoint::RequireSame(uint64_t seed, const Model& model, const std::string& text) const {
  const CheckpointHead& head = manifest_->head;
  const auto refuse = [this](const std::string& what, const std::string& remedy) {
    throw Error(path_ + ": " + what + "; " + remedy + ", or use another `checkpoint` folder");
  };
  if (head.seed != seed) {
    refuse(
        "was made with seed " + std::to_string(head.seed) + ", here it is " + std::to_string(seed),
        "use `seed` " + std::to_string(head.seed));
  }
  const std::string difference = DifferenceOf(head.model, model);
  if (!difference.empty()) {
    refuse("was made with another model: " + difference, "use the same `model`");
  }
  if (head.text != text) {
    refuse("was made with another text: its SHA-256 is " + head.text + ", here it is " + text,
           "use the same `data`");
  }
}

void Checkpoint::Load(std::span<const StateBlock> blocks) const {
  using Wanted = std::pair<const SavedBlock*, const StateBlock*>;
  std::vector<Wanted> wanted;
  for (const StateBlock& block : blocks) {
    CF_ASSERT(block.m.size() == block.parameters.size() &&
              block.v.size() == block.parameters.size());
    const auto saved = manifest_->blocks.find(block.name);
    if (saved == manifest_->blocks.end()) {
      throw Error(path_ + ": has no block " + QuoteJson(block.name) + "; it is of another model");
    }
    if (saved->second.size != static_cast<int64_t>(block.parameters.size())) {
      throw Error(path_ + ": block " + QuoteJson(block.name) + " has " +
                  std::to_string(saved->second.size) + " values, here " +
                  std::to_string(block.parameters.size()) + "; it is of another model");
    }
    wanted.push_back({&saved->second, &block});
  }
  // In the order of the files.
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return std::pair(a.first->shard, a.first->offset) < std::pair(b.first->shard, b.first->offset);
  });
  try {
    WithRemedy([&] {
      ShardReader reader(path_, manifest_->head.step);
      for (const auto& [saved, block] : wanted) reader.Check(block->name, *saved, nullptr);
      for (const auto& [saved, block] : wanted) reader.Check(block->name, *saved, block);
    });
  } catch (const Error& error) {
    const std::string directory = path_.substr(0, path_.rfind('/'));
    throw Error(error.what() + OlderThan(directory, manifest_->head.step));
  }
}

Digest WeightsDigest(const std::map<std::string, Digest>& blocks) {
  Sha256Stream stream;
  for (const auto& [name, digest] : blocks) {
    // A name has no such byte, so no two lists give the same bytes.
    const std::string line = name + '\n';
    stream.Add(std::as_bytes(std::span(line.data(), line.size())));
    stream.Add(std::as_bytes(std::span(digest)));
  }
  return stream.Finish();
}

}  // namespace contraflow
