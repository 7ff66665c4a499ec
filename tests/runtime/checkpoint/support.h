#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/host/stage.h"
#include "tests/support/test_folder.h"

namespace contraflow {

/// A folder for checkpoints in a fresh one.
struct CheckpointFolder {
  /// It does not exist yet.
  std::string path() const { return folder.File("checkpoints"); }
  /// The name of a file of a checkpoint: shard < 0 is the manifest.
  std::string File(int step, int shard = -1) const;
  /// The names in path(), hidden ones too but for the lock, sorted and separated by a space.
  std::string Names() const;
  /// The step of the newest checkpoint, followed by the first value that is not CutModel::Set's.
  /// "none" if there is none.
  std::string Newest() const;

  const TestFolder folder;
  const std::filesystem::path& root = folder.path;
};

/// Eight layers, four experts, and very little in them.
Model CheckpointModel();

/// The devices of a model cut into stages, and its experts into members, with a state that depends
/// on (name, step) alone.
class CutModel {
 public:
  CutModel(const Model& model, int stages, int members);

  /// The state that the training has after a step.
  void Set(int step);
  /// "", or the first value that is not what Set(step) gives, bit for bit.
  std::string Wrong(int step);

  size_t devices() const { return devices_.size(); }
  /// Blocks that a device writes: members other than the first leave out what all have.
  std::vector<StateBlock> Saved(size_t device);
  /// All that it has.
  std::vector<StateBlock> All(size_t device) { return StateOf(*devices_[device]); }
  std::vector<StateBlock> All();

  CheckpointHead Head(int step) const;
  /// Writes and completes a checkpoint.
  void Save(const std::string& directory, int step, int keep = 2);

 private:
  const Model model_;
  const int stages_, members_;
  std::vector<std::unique_ptr<Stage>> devices_;
};

/// WriteShard of these blocks, into the folder aside.
std::string WriteShardOf(const std::string& directory, int step, int shard,
                         const std::vector<StateBlock>& blocks);

/// Processes that talk through pipes; whose peer is gone ends with code 3.
class PipePeers : public Peers {
 public:
  /// Before the processes are made.
  explicit PipePeers(int processes);
  PipePeers(const PipePeers&) = delete;
  ~PipePeers() override;

  /// This process is that one; or, with -1, none of them.
  void Become(int process);
  int process() const override { return self_; }
  int processes() const override { return processes_; }
  std::vector<std::string> Gather(std::string_view bytes) override;
  std::string Broadcast(std::string_view bytes) override;

 private:
  int& End(int from, int to, int end) {
    return ends_[static_cast<size_t>((from * processes_ + to) * 2 + end)];
  }
  void Send(int to, std::string_view bytes);
  std::string Receive(int from);

  const int processes_;
  int self_ = -1;
  std::vector<int> ends_;
};

/// Results of this many processes, or "!" and the text of the Error; "no result" of one that was
/// killed.
std::vector<std::string> InProcesses(int processes,
                                     const std::function<std::string(Peers& peers)>& act);

std::string ReadBytes(const std::string& path);
void WriteBytes(const std::string& path, const std::string& bytes);

}  // namespace contraflow
