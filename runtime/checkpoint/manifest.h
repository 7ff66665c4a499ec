#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/core/digest.h"

namespace contraflow {

inline constexpr std::string_view kManifestFormat = "contraflow-checkpoint";
inline constexpr int kManifestVersion = 1;
/// Most blocks and shards of a checkpoint, and most bytes of its manifest.
inline constexpr size_t kMaxBlocks = size_t{1} << 20;
inline constexpr size_t kMaxShards = size_t{1} << 16;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 28;

/// One block in a shard: `parameters`, then m, then v, as little-endian floats.
struct SavedBlock {
  int shard = 0;
  int64_t offset = 0;  ///< in the shard, in bytes
  int64_t size = 0;    ///< of each of the three, in floats
  Digest digest{};     ///< of all three
};

/// The content of a checkpoint. A shard is its ShardHead and its blocks, without gaps.
struct Manifest {
  CheckpointHead head;
  std::vector<int64_t> shards;               ///< bytes of each, by number
  std::map<std::string, SavedBlock> blocks;  ///< by name
};

/// What a shard begins with: a line that says where it belongs, and spaces.
inline constexpr int64_t kShardHeadBytes = 64;
std::string ShardHead(int step, int shard);

/// `OFFSET SIZE DIGEST NAME`, as in the manifest.
std::string BlockText(int64_t offset, int64_t size, const Digest& digest, const std::string& name);

/// The blocks of one shard from their texts, one by one, in the order of the shard.
class ShardBlocks {
 public:
  /// Adds to `blocks`, of shard `shard`.
  ShardBlocks(int shard, std::map<std::string, SavedBlock>* blocks)
      : shard_(shard), blocks_(blocks) {}

  /// "", or what is wrong with the text: malformed, not where the block before it ends, a name
  /// that was there already, too many.
  std::string Add(std::string_view text);
  /// Where the last block ends.
  int64_t bytes() const { return bytes_; }

 private:
  int shard_;
  int64_t bytes_ = kShardHeadBytes;
  std::map<std::string, SavedBlock>* blocks_;
};

/// The file's text, with its checksum.
std::string WriteManifest(const Manifest& manifest);
/// Throws Error, beginning with `place`, for what is not sound in itself.
Manifest ReadManifest(std::string_view text, const std::string& place);
/// Puts the right checksum into a text that has a place for one where WriteManifest has it; says
/// whether it has.
bool SealManifest(std::string* text);

/// Which fields differ that matter to a training, each as `FIELD VALUE, here VALUE`; "" if none:
/// the name of a model does not.
std::string DifferenceOf(const Model& saved, const Model& here);

}  // namespace contraflow
