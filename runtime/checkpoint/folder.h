#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

// The names in a folder of checkpoints. Hidden ones are never a checkpoint: what is being written,
// what a newer one of the same step replaces, what is being removed.
//
//     step-00000010            a complete checkpoint
//     .step-00000020.new       is being written
//     .step-00000010.old       was complete; step-00000010 takes its place at this moment
//     .step-00000005.gone      is being removed

/// `step-00000010`; more digits where the step has them.
std::string StepName(int step);
/// `shard-0003`; likewise.
std::string ShardName(int shard);
inline constexpr std::string_view kManifestName = "manifest.json";

/// The folder in which the checkpoint of a step is written.
std::string AsideOf(const std::string& directory, int step);

/// The folders of all complete checkpoints by step; none if the folder is not there. Throws Error
/// if it cannot be read.
std::map<int, std::string> CompleteSteps(const std::string& directory);

/// Gives the folder aside its name, in the place of the checkpoint that has it, if there is one: at
/// every moment one of the two is complete and found by CompleteSteps. `exchange` says whether the
/// file system is asked to swap them at once; not all of them can.
void Publish(const std::string& directory, int step, bool exchange = true);
/// Removes a checkpoint, which stops being one at once, whatever happens meanwhile.
void RemoveStep(const std::string& directory, int step);
/// Brings back what a killed Publish has left, and removes all else that is hidden.
void RemoveLeftovers(const std::string& directory);

/// The names in a folder, hidden ones too; none if it is not there.
std::vector<std::string> NamesIn(const std::string& path);
/// Makes a folder that must not exist yet.
void MakeFolder(const std::string& path);
/// Makes it with all above it, where they are missing.
void MakeFolders(const std::string& path);
/// Removes a folder with all that is in it, if it is there.
void RemoveFolder(const std::string& path);
/// Flushes the names in a folder to the disk.
void SyncFolder(const std::string& path);
/// Bytes of a regular file; -1 if it is not there.
int64_t FileBytes(const std::string& path);

/// Throws Error `PATH: WHAT: reason; remedy` for an error number of the system.
[[noreturn]] void FailFile(const std::string& path, const std::string& what, int error);

/// A file that is being made. It must not exist yet, and disappears unless Close succeeds.
class NewFile {
 public:
  explicit NewFile(const std::string& path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text.data(), text.size()))); }
  /// Flushes it to the disk.
  void Close();
  int64_t size() const { return size_; }

 private:
  void Flush();
  void WriteThrough(std::span<const std::byte> bytes);

  const std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string pending_;  ///< so that small blocks do not cost a call each
};

/// A file that is read at any place.
class SavedFile {
 public:
  explicit SavedFile(const std::string& path);
  SavedFile(const SavedFile&) = delete;
  SavedFile& operator=(const SavedFile&) = delete;
  ~SavedFile();

  /// Fills `bytes`; throws Error if the file ends before.
  void Read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace contraflow
