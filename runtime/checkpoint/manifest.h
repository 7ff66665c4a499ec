#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace contraflow {

/// Bytes of a value, its first and its second moment.
inline constexpr int64_t kValueBytes = 3 * sizeof(float);

/// One block in a shard: `parameters`, then m, then v, as little-endian floats.
struct SavedBlock {
  int shard = 0;
  int64_t offset = 0;         ///< in the shard, in bytes
  int64_t size = 0;           ///< of each of the three, in floats
  std::string checksum = {};  ///< of all three
};

/// The content of a checkpoint. A shard is its ShardHead and its blocks, without gaps.
struct Manifest {
  CheckpointHead head;
  std::vector<int64_t> shards;               ///< bytes of each, by number
  std::map<std::string, SavedBlock> blocks;  ///< by name
};

/// `contraflow shard-0003 of step-00000010`: where a shard belongs. It begins with that, padded to
/// a line of this size.
inline constexpr int64_t kShardHeadBytes = 64;
std::string ShardTitle(int step, int shard);
std::string ShardHead(int step, int shard);

/// Line of a block in the note of a shard, after the title: `SIZE CHECKSUM NAME`.
std::string BlockLine(int64_t size, const std::string& checksum, const std::string& name);
/// Reads the note of a shard and takes it from the front of the text; adds its blocks, and returns
/// the bytes of the shard. Throws Error, beginning with `place`, for what is not a note of this
/// shard, or has a block that was there already.
int64_t TakeNote(std::string_view* text, const std::string& place, int step, int shard,
                 std::map<std::string, SavedBlock>* blocks);

/// Texts in files that say whether they are as they were written: the first line is the SHA-256 of
/// all that follows.
std::string Seal(std::string_view text);
/// Returns the text after the seal. Throws Error, beginning with `place`, if it does not fit.
std::string_view Unseal(std::string_view sealed, const std::string& place);
/// Like Unseal, of a file.
std::string ReadSealed(const std::string& path);

/// The text of a manifest, to be sealed: the head as a line of JSON, then the notes of all shards.
std::string WriteManifest(const CheckpointHead& head, const std::string& notes);
/// Throws Error, beginning with `place`, for what is not sound in itself.
Manifest ReadManifest(std::string_view text, const std::string& place);

/// Which fields differ that matter to a training, each as `FIELD VALUE, here VALUE`; "" if none:
/// the name of a model does not.
std::string DifferenceOf(const Model& saved, const Model& here);

}  // namespace contraflow
