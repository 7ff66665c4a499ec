#include "runtime/checkpoint/writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <sstream>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/core/digest.h"
#include "runtime/core/quiet_thread.h"
#include "runtime/model/parameters.h"

namespace contraflow {
namespace {

using std::chrono::milliseconds;

// The computation comes first; but where it fills all cores, the next checkpoint should not have to
// wait for one that got none.
constexpr int kNice = 5;

std::string NameOfStep(int step) { return "the checkpoint of step " + std::to_string(step); }

bool Failed(std::string_view result) { return result.starts_with('!'); }

/// Returns the result of a piece of work, or "!" and the text of its exception.
std::string Try(const std::function<std::string()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return "!out of memory";
  } catch (const std::exception& error) {
    return std::string("!") + error.what();
  }
}

/// Checks the shards, if this process sees them as their processes wrote them, for the blocks of
/// the model, each with its size.
void CheckComplete(const std::string& aside, const CheckpointHead& head,
                   std::span<const std::string> notes) {
  std::map<std::string, SavedBlock> saved;
  for (int shard = 0; shard < std::ssize(notes); ++shard) {
    std::string_view note = notes[static_cast<size_t>(shard)];
    const int64_t wanted = TakeNote(&note, aside, head.step, shard, &saved);
    const std::string path = aside + "/" + ShardName(shard);
    const int64_t bytes = FileSize(path);
    if (bytes < 0) {
      throw Error(path +
                  ": is not there, though its process has written it; give `checkpoint` a "
                  "folder that all machines share");
    }
    if (bytes != wanted || !note.empty()) {
      throw Error(path + ": has " + std::to_string(bytes) + " bytes, its process has written " +
                  std::to_string(wanted));
    }
  }
  for (const ParameterBlock& block :
       LayoutOfStage(head.model, 0, 1, {0, head.model.experts}).blocks) {
    const auto found = saved.extract(block.name);
    const int64_t size = found ? found.mapped().size : 0;
    if (size == static_cast<int64_t>(block.size)) continue;
    throw Error("block " + QuoteJson(block.name) + " has " + std::to_string(size) +
                " values in the shards, in the model " + std::to_string(block.size));
  }
  if (saved.empty()) return;
  throw Error("block " + QuoteJson(saved.begin()->first) + " is not of the model");
}

void WriteNote(const std::string& folder, int shard, const std::string& note) {
  OutputFile file(folder + "/." + ShardName(shard) + ".new");
  file.Write(Seal(note));
  file.CloseAs(folder + "/" + NoteName(shard));
}

/// The notes of all processes, once they are in a folder or told; `first` is that of process 0.
std::vector<std::string> AwaitNotes(const std::string& folder, const std::string& first,
                                    size_t processes,
                                    const std::shared_future<std::vector<std::string>>& told) {
  for (milliseconds pause(5);; pause = std::min(2 * pause, milliseconds(500))) {
    std::vector<std::string> notes = {first};
    // A later read tells what cannot be read. Reads the list of names, since opening the folder
    // makes a network file system ask its server.
    Try([&] {
      const std::vector<std::string> names = NamesInFolder(folder);
      for (int i = 1; notes.size() < processes; ++i) {
        if (!std::ranges::binary_search(names, NoteName(i))) break;
        notes.push_back(ReadSealed(folder + "/" + NoteName(i)));
      }
      return "";
    });
    if (notes.size() < processes) {
      if (told.wait_for(pause) != std::future_status::ready) continue;
      notes = told.get();
      notes[0] = first;
    }
    return notes;
  }
}

}  // namespace

void Snapshot::Resize(int64_t bytes, StateCopies* copies) {
  constexpr size_t kPage = 4096;
  constexpr std::align_val_t kAlignment{kPage};
  size_ = static_cast<size_t>(bytes);
  if (size_ <= room_) return;
  room_ = (size_ + kPage - 1) / kPage * kPage;
  pages_.reset();
  if (copies != nullptr) {
    pages_ = copies->NewMemory(room_);
  } else {
    pages_ = {static_cast<std::byte*>(::operator new(room_, kAlignment)),
              [](std::byte* pages) { ::operator delete(pages, kAlignment); }};
  }
}

/// Lays out the places of the values.
std::vector<StateCopies::Part> Snapshot::Lay(int step, int shard, std::span<const StateBlock> state,
                                             StateCopies* copies) {
  shard_ = shard;
  blocks_.resize(state.size());
  int64_t end = kShardHeadBytes;
  for (size_t i = 0; i < state.size(); ++i) {
    const StateBlock& block = state[i];
    CF_ASSERT(!block.parameters.empty() && block.m.size() == block.parameters.size() &&
              block.v.size() == block.parameters.size());
    blocks_[i] = {block.name, std::ssize(block.parameters)};
    end += blocks_[i].size * kValueBytes;
  }
  Resize(end, copies);
  const std::string head = ShardHead(step, shard);
  std::byte* to = std::ranges::copy(std::as_bytes(std::span(head)), pages_.get()).out;
  std::vector<StateCopies::Part> parts;
  for (const StateBlock& block : state) {
    for (const std::span<const float> values : {block.parameters, block.m, block.v}) {
      parts.push_back({values, to});
      to += values.size_bytes();
    }
  }
  return parts;
}

void Snapshot::Take(int step, int shard, std::span<const StateBlock> state) {
  for (const auto& [values, to] : Lay(step, shard, state, nullptr)) {
    std::memcpy(to, values.data(), values.size_bytes());
  }
}

void Snapshot::Take(int step, int shard, std::span<const StateBlock> state, StateCopies& copies,
                    std::function<void()> then) {
  copies.Begin(Lay(step, shard, state, &copies), std::move(then));
}

std::string Snapshot::Note(int step) const {
  std::string note = ShardTitle(step, shard_) + "\n";
  std::span<const std::byte> rest = bytes().subspan(kShardHeadBytes);
  for (const Block& block : blocks_) {
    const auto size = static_cast<size_t>(block.size * kValueBytes);
    Checksum checksum;
    checksum.Add(rest.first(size));
    note += BlockLine(block.size, checksum.Finish(), block.name);
    rest = rest.subspan(size);
  }
  return note;
}

std::unique_ptr<const FolderLock> PrepareCheckpoints(const std::string& directory) {
  if (directory.empty()) throw Error("`checkpoint`: the name of the folder is empty");
  return WithRemedy([&] {
    CreateFolders(directory);
    auto lock = std::make_unique<const FolderLock>(directory);
    RemoveLeftovers(directory);
    return lock;
  });
}

std::string WriteShard(const std::string& folder, int step, const Snapshot& snapshot,
                       const std::function<void()>& moves) {
  return WithRemedy([&] {
    try {
      CreateFolder(folder);
    } catch (const FileError& error) {
      if (error.number != EEXIST) throw;
    }
    OutputFile file(folder + "/" + ShardName(snapshot.shard()));
    constexpr size_t kAtOnce = size_t{1} << 20;
    std::span<const std::byte> rest = snapshot.bytes();
    for (; rest.size() >= kAtOnce; rest = rest.subspan(kAtOnce)) {
      file.WriteThrough(rest.first(kAtOnce));
      if (moves) moves();
    }
    file.Write(rest);
    std::string note = snapshot.Note(step);
    file.Close();
    WriteNote(folder, snapshot.shard(), note);
    return note;
  });
}

std::string CommitCheckpoint(const std::string& directory, const CheckpointHead& head,
                             std::span<const std::string> notes, int keep) {
  CF_ASSERT(keep >= 1);
  const std::string aside = AsideOf(directory, head.step);
  const std::string failure = Try([&] {
    WithRemedy([&] {
      for (size_t i = 0; i < notes.size(); ++i) {
        if (!Failed(notes[i])) continue;
        throw Error("process " + std::to_string(i) + ": " + notes[i].substr(1));
      }
      CheckComplete(aside, head, notes);
      OutputFile file(aside + "/" + std::string(kManifestName));
      file.Write(
          Seal(WriteManifest(head, std::accumulate(notes.begin(), notes.end(), std::string()))));
      file.Close();
      for (int i = 0; i < std::ssize(notes); ++i) unlink((aside + "/" + NoteName(i)).c_str());
      FlushFolder(aside);
      Publish(directory, head.step);
    });
    return "";
  });
  if (!failure.empty()) {
    // The first error says more; PrepareCheckpoints removes the rest.
    Try([&] { return RemoveTree(aside), ""; });
    throw Error(NameOfStep(head.step) + " was not made: " + failure.substr(1));
  }
  try {
    // Newer ones are of a run that went on from a later step; it is for the user to say that they
    // are not wanted.
    std::map<int, std::string> steps = CompleteSteps(directory);
    auto past = steps.upper_bound(head.step);
    for (int kept = 0; past != steps.begin();) {
      --past;
      if (++kept > keep) WithRemedy([&] { RemoveStep(directory, past->first); });
    }
  } catch (const Error& error) {
    return NameOfStep(head.step) + " was made, but older ones stay: " + error.what();
  }
  return "";
}

void Background::Start(Work work) {
  CF_ASSERT(!started());
  moves_ = std::make_shared<std::atomic<uint64_t>>(0);
  const auto task = [moves = moves_, work = std::move(work)] {
    return Try([&] { return work([&] { ++*moves; }); });
  };
  const auto result = std::make_shared<std::promise<std::string>>();
  result_ = result->get_future();
  const std::string failure = Try([&] {
    StartQuietly("checkpoints", [result, task] {
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
      result->set_value(task());
    }).detach();
    return "";
  });
  // Without a thread whoever waits does it.
  if (!failure.empty()) result_ = std::async(std::launch::deferred, task);
}

bool Background::Is(std::future_status status) const {
  return started() && result_.wait_for(milliseconds(0)) == status;
}

std::string Background::Wait(Peers& peers) {
  for (uint64_t seen = 0; result_.wait_for(milliseconds(100)) == std::future_status::timeout;) {
    if (seen == *moves_) continue;
    seen = *moves_;
    peers.Move();
  }
  return result_.get();
}

CheckpointWriter::CheckpointWriter(std::string directory, int keep, Peers& peers,
                                   std::function<void(const std::string&)> warn,
                                   StateCopies* copies)
    : directory_(std::move(directory)),
      keep_(keep),
      peers_(peers),
      warn_(std::move(warn)),
      copies_(copies) {}

CheckpointWriter::~CheckpointWriter() {
  Try([&] {
    // A device that hangs is not waited for.
    if (copies_ != nullptr && !copies_->Poll()) return std::string();
    // Others may never come to the end of theirs.
    return peers_.processes() == 1 && open_ ? Result() : "";
  });
  if (copies_ != nullptr) copies_->Forget();
}

void CheckpointWriter::Prepare(std::span<const StateBlock> blocks) {
  if (copies_ == nullptr) return snapshot_->Take(0, 0, blocks);
  snapshot_->Take(0, 0, blocks, *copies_, [] {});
  copies_->Await();
}

void CheckpointWriter::Save(const CheckpointHead& head, std::span<const StateBlock> blocks) {
  if (writing_.Is(std::future_status::timeout) && peers_.process() == 0 &&
      !std::exchange(slow_, true)) {
    warn_("step " + std::to_string(head.step) +
          " waits for the checkpoint before, which takes longer to write than the steps between; "
          "this is said once");
  }
  Finish();
  Warn();
  if (copies_ == nullptr) snapshot_->Take(head.step, peers_.process(), blocks);
  told_ = {};
  result_.reset();
  open_ = true;
  warned_ = false;
  Background::Work work = [=, snapshot = snapshot_, told = told_.get_future().share(),
                           directory = directory_, keep = keep_,
                           processes = static_cast<size_t>(peers_.processes())](const auto& moves) {
    const std::string aside = AsideOf(directory, head.step);
    const std::string note = Try([&] { return WriteShard(aside, head.step, *snapshot, moves); });
    if (snapshot->shard() == 0) {
      return CommitCheckpoint(directory, head, AwaitNotes(aside, note, processes, told), keep);
    }
    // Process 0 knows now; if there is no room for that either, it learns it from Finish.
    if (Failed(note)) Try([&] { return WriteNote(aside, snapshot->shard(), note), ""; });
    return note;
  };
  if (copies_ == nullptr) return writing_.Start(std::move(work));
  snapshot_->Take(head.step, peers_.process(), blocks, *copies_,
                  [this, work = std::move(work)] { writing_.Start(work); });
}

const std::string& CheckpointWriter::Result() {
  if (!result_) {
    if (!writing_.started()) copies_->Await();
    result_ = writing_.Wait(peers_);
    if (peers_.process() == 0 && !result_->empty() && !Failed(*result_)) warn_(*result_);
  }
  return *result_;
}

/// Warns of the checkpoint before, when the training goes on.
void CheckpointWriter::Warn() {
  if (peers_.process() != 0 || !result_ || !Failed(*result_) || std::exchange(warned_, true)) {
    return;
  }
  warn_(result_->substr(1) + "; the training goes on");
}

void CheckpointWriter::Poll() {
  if (copies_ != nullptr) copies_->Poll();
  if (writing_.Is(std::future_status::ready)) Result();
  Warn();
}

std::string CheckpointWriter::Finish() {
  if (!std::exchange(open_, false)) return failure_;
  const bool leads = peers_.process() == 0;
  std::vector<std::string> notes = peers_.Gather(leads ? "" : Result());
  if (leads) told_.set_value(std::move(notes));
  const std::string result = peers_.Broadcast(leads ? Result() : "");
  failure_ = Failed(result) ? result.substr(1) : "";
  return failure_;
}

}  // namespace contraflow
