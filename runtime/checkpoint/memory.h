#pragma once

#include <sys/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/writer.h"

namespace contraflow {

/// Keeps the newest states of a training in memory: each process writes all that it trains with
/// into a folder of its node (of tmpfs), and a copy of that of a process on another node, so that
/// no node is needed to go on. Two steps are kept, so that there is always one that is complete.
///
///     DIRECTORY/TRAINING/step-00000010/shard-0003 .shard-0003.note
class MemoryCheckpoints {
 public:
  /// All processes; those that give one folder are of one node. `training` is a name for what must
  /// be the same to go on from a state: the training, its plan's layout and the order of processes.
  /// `warn` is called in process 0. `copies`, which must outlive it, is of a state in the memory of
  /// devices; null: it is the host's. Throws Error if the folder cannot be written, or another job
  /// uses it for the same training.
  MemoryCheckpoints(const std::string& directory, const std::string& training, Peers& peers,
                    std::function<void(const std::string&)> warn, StateCopies* copies = nullptr);

  /// Of a process on its own: waits for what is being written.
  ~MemoryCheckpoints();

  /// Takes memory for the state; all processes, before the first Save.
  void Prepare(std::span<const StateBlock> blocks);
  /// Loads the newest step of `least` or later that is complete over all nodes into the blocks,
  /// which are those of Prepare, and returns it; a state that this node lacks comes from another.
  /// 0 if there is none. Copies that are damaged are passed over, with a warning.
  int Load(int least, std::span<const StateBlock> blocks);
  /// Forgets all steps but this one; all processes.
  void KeepOnly(int step);
  /// Copies the state to here and to another node, and begins to write it. That of devices is
  /// copied while the next step runs, and goes to the other node behind that.
  void Save(int step, std::span<const StateBlock> blocks);
  /// Behind every step, before Save; all processes.
  void AfterStep();
  /// Waits until the last is written, and warns if it was not; all processes.
  void Finish();

 private:
  std::string Folder(int step) const { return folder_ + "/" + StepName(step); }
  const std::string& Node(int process) const { return nodes_[static_cast<size_t>(process)]; }
  /// Whether this is the first process of its node, which removes what is old.
  bool LeadsNode() const {
    return std::ranges::find(nodes_, Node(self_)) - nodes_.begin() == self_;
  }
  void Take(int step, std::span<const StateBlock> blocks);
  void Send();
  std::string Sound() const;
  void Bring(int step, int shard, int holder, int target);

  const std::string folder_;
  const int self_;
  Peers& peers_;
  const std::function<void(const std::string&)> warn_;
  StateCopies* const copies_;
  std::unique_ptr<const FolderLock> lock_;
  std::vector<std::string> nodes_;  ///< of each process
  std::vector<int> copy_;           ///< who has a copy of each process
  int to_ = -1, from_ = -1;         ///< who has one of ours, and whose we have; -1: nobody
  const std::shared_ptr<Snapshot> own_ = std::make_shared<Snapshot>(),
                                  other_ = std::make_shared<Snapshot>();
  bool copying_ = false;  ///< the state of the pending step is on its way from devices
  Background writing_;
  int kept_ = 0, pending_ = 0;  ///< the newest complete step, and the one being written
};

/// For who watches over processes: the newest step of which each of these has written its state on
/// this node, for the training in whose folder the first of them was opened by the process `opener`
/// of the system. 0 if there is none.
int NewestInMemory(const std::string& directory, std::span<const int> processes, pid_t opener);

}  // namespace contraflow
