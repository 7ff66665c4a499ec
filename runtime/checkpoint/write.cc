#include <bit>
#include <map>

#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/checkpoint.h"
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
      const std::string wrong = end == std::string_view::npos ? "a note that is cut off"
                                                              : blocks.Add(note.substr(0, end));
      if (!wrong.empty()) throw Error(ShardName(shard) + ": " + wrong);
      note.remove_prefix(end + 1);
    }
    const std::string path = aside + "/" + ShardName(shard);
    const int64_t bytes = FileBytes(path);
    if (bytes < 0) {
      throw Error(path +
                  ": is not there, though its process has written it; give --checkpoint a "
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
  if (directory.empty()) throw Error("--checkpoint: the name of the folder is empty");
  MakeFolders(directory);
  RemoveLeftovers(directory);
  // There is no step 0. Better now than after the first steps of the training.
  const std::string trial = AsideOf(directory, 0);
  MakeFolder(trial);
  RemoveFolder(trial);
}

void BeginCheckpoint(const std::string& directory, int step) {
  CF_ASSERT(step >= 1);
  const std::string aside = AsideOf(directory, step);
  RemoveFolder(aside);
  MakeFolder(aside);
}

std::string WriteShard(const std::string& directory, int step, int shard,
                       std::span<const StateBlock> blocks) {
  NewFile file(AsideOf(directory, step) + "/" + ShardName(shard));
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
}

void CommitCheckpoint(const std::string& directory, const CheckpointHead& head,
                      std::span<const std::string> shards, int keep) {
  CF_ASSERT(keep >= 1);
  const std::string aside = AsideOf(directory, head.step);
  try {
    const Manifest manifest = ManifestOf(aside, head, shards);
    CheckComplete(manifest);
    NewFile file(aside + "/" + std::string(kManifestName));
    file.Write(WriteManifest(manifest));
    file.Close();
    SyncFolder(aside);
    Publish(directory, head.step);
  } catch (const Error& error) {
    try {
      RemoveFolder(aside);
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
    if (++kept > keep) RemoveStep(directory, past->first);
  }
}

}  // namespace contraflow
