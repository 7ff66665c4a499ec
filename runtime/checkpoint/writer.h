#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"

namespace contraflow {

/// The processes of a training as checkpoints need them: all make the same calls in the same order,
/// from their main threads.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;
  /// Everybody's bytes, by process, for process 0; the others get nothing.
  virtual std::vector<std::string> Gather(std::string_view bytes) = 0;
  /// Sends the bytes of process 0 to all.
  virtual std::string Broadcast(std::string_view bytes) = 0;
  /// This process has done something that its watch should know of.
  virtual void Move() {}
};

/// The state of one process after a step, as the bytes of its shard.
class Snapshot {
 public:
  /// Copies the blocks; takes memory only where they have changed since the last time.
  void Take(int step, int shard, std::span<const StateBlock> state);
  /// Like the overload above, of blocks in the memory of devices: begins to copy, and `then` is
  /// called when all is here (StateCopies::Begin).
  void Take(int step, int shard, std::span<const StateBlock> state, StateCopies& copies,
            std::function<void()> then);

  int shard() const { return shard_; }
  std::span<const std::byte> bytes() const { return {pages_.get(), size_}; }
  /// Content of the shard, by the bytes of a step.
  std::string Note(int step) const;

 private:
  struct Block {
    std::string name;
    int64_t size;  ///< of each of the three arrays, in values
  };

  std::vector<StateCopies::Part> Lay(int step, int shard, std::span<const StateBlock> state,
                                     StateCopies* copies);
  void Resize(int64_t bytes, StateCopies* copies);

  int shard_ = 0;
  std::vector<Block> blocks_;  // in the order of the shard
  // A disk takes whole pages without a copy.
  std::shared_ptr<std::byte> pages_;
  size_t size_ = 0, room_ = 0;  // in bytes
};

// Writing, step by step. A checkpoint is DIR/step-NUMBER, with one shard for each process and a
// manifest. All of it is written into a folder aside, every file is flushed to the disk, the
// manifest last; then the folder is renamed. So whatever is called step-NUMBER is complete, at any
// moment.

/// Makes the folder where it is missing, holds it, and removes what killed runs have left half
/// done. One process calls it, before the training. Throws Error if it cannot be written or another
/// job holds it.
std::unique_ptr<const FolderLock> PrepareCheckpoints(const std::string& directory);
/// Writes a shard into a folder, which it makes if it is the first there, and when that is on the
/// disk its note; no block is written by two. Returns the note. An error leaves neither.
std::string WriteShard(const std::string& folder, int step, const Snapshot& snapshot,
                       const std::function<void()>& moves = {});
/// Completes the checkpoint and removes all but the newest `keep` up to this step. One process,
/// when all shards are written; `notes` by number. Throws Error if the shards are not all there (a
/// folder that the processes do not share), or do not have every block of the model exactly once;
/// then nothing is left of it. Returns "", or why older ones could not be removed.
std::string CommitCheckpoint(const std::string& directory, const CheckpointHead& head,
                             std::span<const std::string> notes, int keep);

/// Work during the training, in a thread of its own at low priority. Its memory must be its own:
/// nobody waits for it when the process has to end.
class Background {
 public:
  /// Called with something to tell that it gets on. Returns what Wait does, or throws.
  using Work = std::function<std::string(const std::function<void()>& moves)>;

  /// Starts work while none is running.
  void Start(Work work);
  /// Between Start and Wait.
  bool started() const { return result_.valid(); }
  /// Ready, or not; deferred where the system has no room for a thread: then Wait works.
  bool Is(std::future_status status) const;
  /// Returns the result of the work, or "!" and the text of its exception.
  std::string Wait(Peers& peers);

 private:
  std::future<std::string> result_;
  std::shared_ptr<std::atomic<uint64_t>> moves_;
};

/// Writes checkpoints during the training, one at a time: each process its shard, and process 0,
/// when the notes of all are there, the manifest.
class CheckpointWriter {
 public:
  /// `warn` is called in process 0 with what there is to say of a checkpoint. `copies`, which must
  /// outlive it, is of a state in the memory of devices; null: it is the host's.
  CheckpointWriter(std::string directory, int keep, Peers& peers,
                   std::function<void(const std::string&)> warn, StateCopies* copies = nullptr);
  /// A process on its own waits for the checkpoint under way, if its state is copied.
  ~CheckpointWriter();

  /// Takes memory for the state.
  void Prepare(std::span<const StateBlock> blocks);
  /// Copies the state, and begins to write it; that of devices when it is here, with the next steps
  /// meanwhile. Waits for the checkpoint before, if it is not done.
  void Save(const CheckpointHead& head, std::span<const StateBlock> blocks);
  /// Warns of one that has failed, as soon as it is known.
  void Poll();
  /// Waits for the checkpoint under way, if there is one. Returns why the last was not made, ""
  /// if it was; to warn of that is left to Save.
  std::string Finish();

 private:
  const std::string& Result();
  void Warn();

  const std::string directory_;
  const int keep_;
  Peers& peers_;
  const std::function<void(const std::string&)> warn_;
  StateCopies* const copies_;
  const std::shared_ptr<Snapshot> snapshot_ = std::make_shared<Snapshot>();
  /// The notes of all processes as the network brings them, when they are no news any more where
  /// they share a folder; for process 0.
  std::promise<std::vector<std::string>> told_;
  Background writing_;                 ///< the shard; in process 0 also the rest
  std::optional<std::string> result_;  ///< of it, once it was asked for
  bool open_ = false;                  ///< a checkpoint is not finished
  std::string failure_;                ///< of the last checkpoint
  bool warned_ = false;                ///< of it
  bool slow_ = false;                  ///< it was said that a step had to wait
};

}  // namespace contraflow
