#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/model/parameters.h"

namespace contraflow {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

/// The shards as their processes wrote them, if this process sees them too.
Manifest ManifestOf(const std::string& aside, const CheckpointHead& head,
                    std::span<const std::string> shards) {
  if (shards.empty() || shards.size() > kMaxShards) {
    throw Error(aside + ": " + std::to_string(shards.size()) + " shards; a checkpoint has 1.." +
                std::to_string(kMaxShards));
  }
  Manifest manifest{head, {}, {}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const int shard = static_cast<int>(i);
    ShardBlocks blocks(shard, &manifest.blocks);
    for (std::string_view note = shards[i]; !note.empty();) {
      const size_t end = note.find('\n');
      const std::string wrong =
          end == std::string_view::npos ? "a truncated note" : blocks.Add(note.substr(0, end));
      if (!wrong.empty()) throw Error(ShardName(shard) + ": " + wrong);
      note.remove_prefix(end + 1);
    }
    const std::string path = aside + "/" + ShardName(shard);
    const int64_t bytes = FileSize(path);
    if (bytes < 0) {
      throw Error(path +
                  ": is not there, though its process has written it; give `checkpoint` a "
                  "folder that all machines share");
    }
    if (bytes != blocks.bytes()) {
      throw Error(path + ": has " + std::to_string(bytes) + " bytes, its process has written " +
                  std::to_string(blocks.bytes()));
    }
    manifest.shards.push_back(bytes);
  }
  return manifest;
}

/// Throws Error unless the blocks are those of the model, each with its size.
void CheckComplete(const Manifest& manifest) {
  const Model& model = manifest.head.model;
  const ParameterLayout layout = LayoutOfStage(model, 0, 1, {0, model.experts});
  for (const ParameterBlock& block : layout.blocks) {
    const auto saved = manifest.blocks.find(block.name);
    if (saved == manifest.blocks.end()) {
      throw Error("block " + QuoteJson(block.name) + " of the model is in no shard");
    }
    if (saved->second.size == static_cast<int64_t>(block.size)) continue;
    throw Error("block " + QuoteJson(block.name) + " has " + std::to_string(saved->second.size) +
                " values, in the model " + std::to_string(block.size));
  }
  // The names of a layout are all different, so what is left over is not of the model.
  CF_ASSERT(manifest.blocks.size() >= layout.blocks.size());
  if (manifest.blocks.size() == layout.blocks.size()) return;
  std::map<std::string_view, bool> known;
  for (const ParameterBlock& block : layout.blocks) known[block.name] = true;
  for (const auto& [name, saved] : manifest.blocks) {
    if (known.count(name) > 0) continue;
    throw Error(ShardName(saved.shard) + ": block " + QuoteJson(name) + " is not of the model");
  }
}

}  // namespace

void PrepareCheckpoints(const std::string& directory) {
  if (directory.empty()) throw Error("`checkpoint`: the name of the folder is empty");
  WithRemedy([&] {
    CreateFolders(directory);
    RemoveLeftovers(directory);
    // There is no step 0. Better now than after the first steps of the training.
    const std::string trial = AsideOf(directory, 0);
    CreateFolder(trial);
    RemoveTree(trial);
  });
}

void BeginCheckpoint(const std::string& directory, int step) {
  CF_ASSERT(step >= 1);
  const std::string aside = AsideOf(directory, step);
  WithRemedy([&] {
    RemoveTree(aside);
    CreateFolder(aside);
  });
}

std::string WriteShard(const std::string& directory, int step, int shard,
                       std::span<const StateBlock> blocks) {
  return WithRemedy([&] {
    OutputFile file(AsideOf(directory, step) + "/" + ShardName(shard));
    file.Write(ShardHead(step, shard));
    std::string note;  // The text of each block, a line each.
    for (const StateBlock& block : blocks) {
      CF_ASSERT(!block.parameters.empty() && block.m.size() == block.parameters.size() &&
                block.v.size() == block.parameters.size());
      const int64_t offset = file.size();
      Sha256Stream digest;
      for (const std::span<const float> values : {block.parameters, block.m, block.v}) {
        const std::span<const std::byte> bytes = std::as_bytes(values);
        digest.Add(bytes);
        file.Write(bytes);
      }
      note += BlockText(offset, static_cast<int64_t>(block.parameters.size()), digest.Finish(),
                        block.name) +
              "\n";
    }
    file.Close();
    return note;
  });
}

void CommitCheckpoint(const std::string& directory, const CheckpointHead& head,
                      std::span<const std::string> shards, int keep) {
  CF_ASSERT(keep >= 1);
  const std::string aside = AsideOf(directory, head.step);
  try {
    WithRemedy([&] {
      const Manifest manifest = ManifestOf(aside, head, shards);
      CheckComplete(manifest);
      OutputFile file(aside + "/" + std::string(kManifestName));
      file.Write(WriteManifest(manifest));
      file.Close();
      FlushFolder(aside);
      Publish(directory, head.step);
    });
  } catch (const Error& error) {
    try {
      RemoveTree(aside);
    } catch (const Error&) {
      // The first error says more; PrepareCheckpoints removes the rest.
    }
    throw Error("the checkpoint of step " + std::to_string(head.step) +
                " was not made: " + error.what());
  }
  // Newer ones are of a run that went on from a later step; it is for the user to say that they
  // are not wanted.
  std::map<int, std::string> steps = CompleteSteps(directory);
  auto past = steps.upper_bound(head.step);
  for (int kept = 0; past != steps.begin();) {
    --past;
    if (++kept > keep) WithRemedy([&] { RemoveStep(directory, past->first); });
  }
}

namespace {

constexpr size_t kPiece = size_t{1} << 20;

/// What to do instead of a step that cannot be used.
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

void CheckShards(const std::string& path, const Manifest& manifest) {
  std::set<std::string> shards;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const std::string name = ShardName(static_cast<int>(i)), shard = path + "/" + name;
    shards.insert(name);
    const int64_t bytes = FileSize(shard);
    if (bytes < 0) throw Error(shard + ": is missing");
    if (bytes == manifest.shards[i]) continue;
    throw Error(shard + ": has " + std::to_string(bytes) + " bytes, but was written with " +
                std::to_string(manifest.shards[i]));
  }
  for (const std::string& name : NamesInFolder(path)) {
    // Network file systems keep hidden files of their own.
    if (shards.count(name) > 0 || name == kManifestName || name[0] == '.') continue;
    throw Error(path + "/" + name + ": is not in the manifest; files of two checkpoints are mixed");
  }
}

Manifest ReadCheckpoint(const std::string& path, int step) {
  const std::string name = path + "/" + std::string(kManifestName);
  // Reading from a pipe of that name would wait.
  if (FileSize(name) < 0) throw Error(name + ": is missing");
  Manifest manifest = ReadManifest(ReadFile(name, kMaxManifestBytes), name);
  if (manifest.head.step != step) {
    throw Error(name + ": is of step " + std::to_string(manifest.head.step) +
                ", the folder of step " + std::to_string(step) +
                "; files of two checkpoints are mixed");
  }
  CheckShards(path, manifest);
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
  const std::string wanted = ShardHead(step_, shard);
  if (head == wanted) return;
  const auto line = [](const std::string& text) {
    return QuoteJson(text.substr(0, text.find_last_not_of(" \n") + 1));
  };
  throw Error(name_ + ": begins with " + line(head) + ", not with " + line(wanted) +
              "; it is damaged, or belongs to another checkpoint");
}

void ShardReader::Check(const std::string& name, const SavedBlock& saved, const StateBlock* into) {
  Open(saved.shard);
  Sha256Stream digest;
  int64_t offset = saved.offset;
  const auto read = [&](std::span<std::byte> bytes) {
    file_->Read(offset, bytes);
    digest.Add(bytes);
    offset += static_cast<int64_t>(bytes.size());
  };
  if (into != nullptr) {
    for (const std::span<float> values : {into->parameters, into->m, into->v}) {
      for (std::span<std::byte> rest = std::as_writable_bytes(values); !rest.empty();) {
        const size_t size = std::min(rest.size(), kPiece);
        read(rest.first(size));
        rest = rest.subspan(size);
      }
    }
  } else {
    const int64_t end = saved.offset + saved.size * static_cast<int64_t>(3 * sizeof(float));
    while (offset < end) {
      read(std::span(piece_).first(std::min(kPiece, static_cast<size_t>(end - offset))));
    }
  }
  if (SameDigest(digest.Finish(), saved.digest)) return;
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
