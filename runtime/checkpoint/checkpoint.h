#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/digest.h"
#include "runtime/model/model.h"
#include "runtime/model/state.h"

namespace contraflow {

/// Origin of a checkpoint. The first four must be those of a training that goes on from it; the
/// others say which run made it.
struct CheckpointHead {
  int step = 0;       ///< the last that was done
  uint64_t seed = 0;  ///< of weights and data
  Model model;        ///< settled: with its number of layers
  std::string text;   ///< SHA-256 of the training text, hexadecimal
  std::string schedule;
  int ranks = 0, stages = 0, microbatches = 0, data_parallel = 0, expert_parallel = 0;
  std::string algorithms = {};  ///< as Run::ChosenAlgorithms
};

struct Manifest;

/// A complete checkpoint whose manifest is sound.
class Checkpoint {
 public:
  /// The newest in the folder, or that of a step. None if the folder has none (or not that one).
  /// Throws Error, naming file and reason, if it is damaged (with the older ones that are there,
  /// and how to ask for one), or a shard is missing or has a different size.
  static std::optional<Checkpoint> Open(const std::string& directory, std::optional<int> step);

  const CheckpointHead& head() const;
  const std::string& path() const { return path_; }
  /// Throws Error, naming both values, unless a training with this seed, model and text may go on
  /// from it.
  void RequireSame(uint64_t seed, const Model& model, const std::string& text) const;
  /// Fills the blocks with what was saved under their names. Checks every checksum before it
  /// changes anything; throws Error if one does not hold, or a block is missing or of another size.
  void Load(std::span<const StateBlock> blocks) const;

 private:
  Checkpoint(std::string path, std::shared_ptr<const Manifest> manifest);

  std::string path_;
  std::shared_ptr<const Manifest> manifest_;
};

/// SHA-256 over names and values of all parameters, in the order of the names: the same for the
/// same weights, however they are spread over processes. `blocks` maps names to digests of their
/// values.
Digest WeightsDigest(const std::map<std::string, Digest>& blocks);

}  // namespace contraflow
