#include "runtime/checkpoint/memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/core/digest.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxLockBytes = 4096;
constexpr size_t kMaxNoteBytes = size_t{1} << 28;

std::string LockName(int process) { return ".lock-" + std::to_string(process); }

/// Processes with the same one are of one node.
std::string NodeOf(const std::string& directory) {
  struct stat status {};
  char host[64] = "";
  if (stat(directory.c_str(), &status) != 0 || gethostname(host, sizeof host - 1) != 0) {
    throw FileError(directory, "cannot be read", errno);
  }
  return std::string(host) + ":" + std::to_string(status.st_dev) + ":" +
         std::to_string(status.st_ino);
}

/// Throws Error unless nobody else can write what is in the folder: whoever can, says what the
/// training goes on from.
void RequireOwn(const std::string& folder) {
  struct stat link {
  }, status{};
  if (lstat(folder.c_str(), &link) != 0 || stat(folder.c_str(), &status) != 0) {
    throw FileError(folder, "cannot be read", errno);
  }
  for (const uid_t owner : {link.st_uid, status.st_uid}) {
    if (owner == geteuid()) continue;
    throw Error(folder + ": belongs to another user (" + std::to_string(owner) +
                "); name a folder of your own for `memory_checkpoint`");
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw Error(folder +
                ": others may write there; chmod go-w it, or name another folder for "
                "`memory_checkpoint`");
  }
}

/// Removes all steps of a folder but two.
void Forget(const std::string& folder, int kept, int pending) {
  for (const auto& [step, path] : CompleteSteps(folder)) {
    if (step != kept && step != pending) RemoveStep(folder, step);
  }
}

}  // namespace

/// Numbers the processes node by node, and moves by as many as the largest node has: so nobody has
/// a copy of another of its own node, unless that has more than half of all.
MemoryCheckpoints::MemoryCheckpoints(const std::string& directory, const std::string& training,
                                     Peers& peers, std::function<void(const std::string&)> warn,
                                     StateCopies* copies)
    : folder_(directory + "/" + training),
      self_(peers.process()),
      peers_(peers),
      warn_(std::move(warn)),
      copies_(copies) {
  CreateFolders(folder_, 0700);
  RequireOwn(directory);
  RequireOwn(folder_);
  lock_ = std::make_unique<const FolderLock>(folder_, LockName(self_));
  nodes_ = peers.Share(NodeOf(directory));
  std::vector<int> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int process) { return Node(process); });
  std::ptrdiff_t shift = 0;
  for (const std::string& node : nodes_) {
    shift = std::max(shift, std::ranges::count(nodes_, node));
  }
  copy_.resize(nodes_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    copy_[static_cast<size_t>(order[i])] = order[(i + static_cast<size_t>(shift)) % order.size()];
  }
  // With one node there is nobody to give a copy to.
  if (copy_[static_cast<size_t>(self_)] == self_) return;
  to_ = copy_[static_cast<size_t>(self_)];
  from_ = static_cast<int>(std::ranges::find(copy_, self_) - copy_.begin());
}

MemoryCheckpoints::~MemoryCheckpoints() {
  try {
    // A device that hangs is not waited for.
    const bool here = !copying_ || copies_->Poll();
    if (peers_.processes() == 1 && here) {
      AfterStep();
      if (writing_.started()) writing_.Wait(peers_);
    }
  } catch (const std::exception&) {  // What ended the training says more.
  }
  if (copies_ != nullptr) copies_->Forget();
}

void MemoryCheckpoints::Prepare(std::span<const StateBlock> blocks) {
  Take(0, blocks);
  if (copies_ != nullptr) copies_->Await();
  if (to_ < 0) return;
  const std::string note = own_->Note(0);
  uint64_t size = note.size(), other = 0;
  peers_.Exchange(to_, std::as_bytes(std::span(&size, 1)), from_,
                  std::as_writable_bytes(std::span(&other, 1)));
  if (other > kMaxNoteBytes) throw Error("a note has too many bytes");
  std::string theirs(other, ' ');
  peers_.Exchange(to_, std::as_bytes(std::span(note)), from_,
                  std::as_writable_bytes(std::span(theirs)));
  other_->Expect(from_, theirs);
}

void MemoryCheckpoints::KeepOnly(int step) {
  kept_ = step;
  if (LeadsNode()) {
    RemoveLeftovers(folder_);
    Forget(folder_, step, step);
  }
  // Nobody begins another before that.
  peers_.Share("");
}

/// Copies the state here, or begins to.
void MemoryCheckpoints::Take(int step, std::span<const StateBlock> blocks) {
  if (copies_ == nullptr) return own_->Take(step, self_, blocks);
  own_->Take(step, self_, blocks, *copies_, [] {});
}

void MemoryCheckpoints::Save(int step, std::span<const StateBlock> blocks) {
  Finish();
  Take(step, blocks);
  pending_ = step;
  copying_ = copies_ != nullptr;
  if (!copying_) Send();
}

// When a state has come is not for one process to say: all send behind the same step. What updated
// the weights in that step has waited for the copies, so that nobody waits here.
void MemoryCheckpoints::AfterStep() {
  if (std::exchange(copying_, false)) Send();
}

/// Sends the state of the pending step to another node, and begins to write it here.
void MemoryCheckpoints::Send() {
  if (copies_ != nullptr) copies_->Await();
  if (to_ >= 0) peers_.Exchange(to_, own_->bytes(), from_, other_->room());
  writing_.Start([step = pending_, folder = folder_, kept = kept_, leads = LeadsNode(), own = own_,
                  other = to_ < 0 ? nullptr : other_](const auto& moves) {
    // What was complete before the last one gives its memory to this one.
    if (leads) Forget(folder, kept, step);
    const std::string aside = folder + "/" + StepName(step);
    WriteShard(aside, step, *own, moves);
    if (other) WriteShard(aside, step, *other, moves);
    return "";
  });
}

void MemoryCheckpoints::Finish() {
  AfterStep();
  if (!writing_.started()) return;
  const std::vector<std::string> results = peers_.Share(writing_.Wait(peers_));
  const auto failed = std::ranges::find_if(results, [](const auto& text) { return !text.empty(); });
  if (failed == results.end()) {
    kept_ = pending_;
    return;
  }
  if (self_ == 0) {
    warn_("the copies of step " + std::to_string(pending_) + " in memory were not made: process " +
          std::to_string(failed - results.begin()) + ": " + failed->substr(1));
  }
  KeepOnly(kept_);
}

/// What this node has, a line `STEP SHARD` each; of what is damaged `0 REASON`. The processes of
/// the node share the work.
std::string MemoryCheckpoints::Sound() const {
  int first = 0, each = 0;
  for (int process = 0; process < peers_.processes(); ++process) {
    if (Node(process) != Node(self_)) continue;
    first += process < self_;
    ++each;
  }
  std::string lines;
  for (const auto& [step, path] : CompleteSteps(folder_)) {
    for (int shard = first; shard < peers_.processes(); shard += each) {
      try {
        if (FileSize(path + "/" + NoteName(shard)) < 0) continue;
        Checkpoint::OpenShard(path, step, shard).Verify();
        lines += std::to_string(step) + " " + std::to_string(shard) + "\n";
      } catch (const Error& error) {
        lines += std::string("0 ") + error.what() + "\n";
      }
      peers_.Move();
    }
  }
  return lines;
}

/// Brings a shard, with its note, from a process of one node to one of another.
void MemoryCheckpoints::Bring(int step, int shard, int holder, int target) {
  const std::string folder = Folder(step);
  Snapshot& snapshot = shard == self_ ? *own_ : *other_;
  Digest digest{};
  std::string image;
  if (self_ == holder) {
    digest = Sha256(ReadSealed(folder + "/" + NoteName(shard)));
    image = ReadFile(folder + "/" + ShardName(shard), INT64_MAX);
    peers_.Exchange(target, std::as_bytes(std::span(digest)), -1, {});
    peers_.Exchange(target, std::as_bytes(std::span(image)), -1, {});
    // The next one has to wait until this one is taken.
    peers_.Exchange(-1, {}, target, std::as_writable_bytes(std::span(digest)));
  } else if (self_ == target) {
    peers_.Exchange(-1, {}, holder, std::as_writable_bytes(std::span(digest)));
    peers_.Exchange(-1, {}, holder, snapshot.room());
    // Also what a process that was killed had begun.
    const std::string name = ShardName(shard);
    for (const std::string& old : {name, NoteName(shard), "." + name + ".new"}) {
      RemoveTree(folder + "/" + old);
    }
    if (Sha256(WriteShard(folder, step, snapshot)) == digest) {
      return peers_.Exchange(holder, std::as_bytes(std::span(digest)), -1, {});
    }
    throw Error("the copy of " + ShardName(shard) + " has changed on its way from process " +
                std::to_string(holder));
  }
}

int MemoryCheckpoints::Load(int least, std::span<const StateBlock> blocks) {
  // By step and shard: the nodes that have it, and of each a process.
  std::map<int, std::map<int, std::map<std::string, int>>> held;
  const std::vector<std::string> lists = peers_.Share(Sound());
  for (int process = 0; process < std::ssize(lists); ++process) {
    std::istringstream lines(lists[static_cast<size_t>(process)]);
    for (std::string line; std::getline(lines, line);) {
      int step = 0, shard = -1;
      std::istringstream words(line);
      if (words >> step >> shard && step > 0 && shard >= 0 && shard < peers_.processes()) {
        held[step][shard].emplace(Node(process), process);
      } else if (self_ == 0) {
        warn_("a copy in memory is passed over: " + line.substr(line.find(' ') + 1));
      }
    }
  }
  const auto newest = std::find_if(held.rbegin(), held.rend(), [&](const auto& step) {
    return std::ssize(step.second) == peers_.processes();
  });
  if (newest == held.rend() || newest->first < least) return 0;
  auto& [step, shards] = *newest;
  // Another node may be lost at once.
  for (auto& [shard, holders] : shards) {
    for (const int target : {shard, copy_[static_cast<size_t>(shard)]}) {
      const int holder = holders.begin()->second;
      if (holders.emplace(Node(target), target).second) Bring(step, shard, holder, target);
    }
  }
  Checkpoint::OpenShard(Folder(step), step, self_).Load(blocks);
  peers_.Share("");  // Nobody reads the others any more.
  KeepOnly(step);
  return step;
}

int NewestInMemory(const std::string& directory, std::span<const int> processes, pid_t opener) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    std::string lock;
    try {
      const std::string path = entry.path() / LockName(processes[0]);
      // Reading from a pipe of that name would wait.
      if (FileSize(path) >= 0) lock = ReadFile(path, kMaxLockBytes);
    } catch (const Error&) {
      continue;  // of other processes
    }
    if (!lock.starts_with("process " + std::to_string(opener) + " ")) continue;
    const std::map<int, std::string> steps = CompleteSteps(entry.path());
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      const auto written = [&](int process) {
        return std::filesystem::is_regular_file(step->second + "/" + NoteName(process), error);
      };
      if (std::all_of(processes.begin(), processes.end(), written)) return step->first;
    }
    return 0;
  }
  return 0;
}

}  // namespace contraflow
