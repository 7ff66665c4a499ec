#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/host/stage.h"

namespace contraflow {

/// A fresh folder, gone with all its content at the end.
struct CheckpointFolder {
  CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  ~CheckpointFolder();

  /// A folder in it that is not there yet.
  std::string path() const { return (root / "checkpoints").string(); }
  /// Of a file of a checkpoint: shard < 0 is the manifest.
  std::string File(int step, int shard = -1) const;
  /// The names in path(), hidden ones too, sorted and separated by a space.
  std::string Names() const;

  std::filesystem::path root;
};

/// Eight layers, four experts, and very little in them.
Model CheckpointModel();

/// The devices of a model cut into stages, and its experts into members, with a state that depends
/// on (name, step) alone.
class CutModel {
 public:
  CutModel(const Model& model, int stages, int members);

  /// The state that the training has behind a step.
  void Set(int step);
  /// "", or the first value that is not what Set(step) gives, bit for bit.
  std::string Wrong(int step);

  size_t devices() const { return devices_.size(); }
  /// What a device writes: members other than the first leave out what all have.
  std::vector<StateBlock> Saved(size_t device);
  /// All that it has.
  std::vector<StateBlock> All(size_t device) { return StateOf(*devices_[device]); }
  std::vector<StateBlock> All();

  CheckpointHead Head(int step) const;
  /// Begins, writes and completes a checkpoint.
  void Save(const std::string& directory, int step, int keep = 2);

 private:
  const Model model_;
  const int stages_, members_;
  std::vector<std::unique_ptr<Stage>> devices_;
};

/// The value that a block has behind a step; `array` is 0 for parameters, 1 for m, 2 for v.
float ValueOf(const std::string& name, int step, int array, size_t index);

std::string ReadBytes(const std::string& path);
void WriteBytes(const std::string& path, const std::string& bytes);

}  // namespace contraflow
