#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {

// Whole files and folders: complete or not there.

/// Whole content of a file; "-" is standard input. Throws Error naming the path and the reason
/// (missing, a directory, no permission, larger than `limit` bytes).
std::string ReadFile(const std::string& path, int64_t limit);

/// Writes a file so that it is either complete or not there: into a temporary name in the same
/// directory, flushed to disk, then renamed. "-" is standard output. On any failure (unwritable
/// directory, full disk) the temporary file is removed and Error names path and reason.
void WriteFile(const std::string& path, std::string_view content);

/// Like WriteFile, piece by piece: `write` is called once and hands the content over with `put`. An
/// exception of `write` is passed on, and nothing is left of the file.
using PutBytes = std::function<void(std::string_view piece)>;
void WriteFile(const std::string& path, const std::function<void(const PutBytes& put)>& write);

/// Something that is half made, as long as it lives. With the last of them a signal takes effect
/// that RemoveUnfinishedOnSignals has held back.
struct Unfinished {
  /// `file` is its path, which must outlive it.
  explicit Unfinished(const std::string* file);
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished();

  const std::string* path;
  Unfinished *before = nullptr, *behind = nullptr;  ///< of all that live
};

/// Removes the files and folders that are half made: for who ends the process without destructors.
void RemoveUnfinished();

/// From now on SIGHUP, SIGINT and SIGTERM end the process only once what WriteFile and NewFolder
/// have half made is removed: what writes then throws Error.
void RemoveUnfinishedOnSignals();

/// A folder under construction. It has a random name next to `target`, is private, and is removed
/// at the end unless it is kept.
class NewFolder {
 public:
  explicit NewFolder(const std::string& target);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  std::string path() const { return room_ + "/new"; }
  /// Moves it to `target`, and removes the file that was there. Throws Error if that cannot be
  /// done; then the old one is still there.
  void Keep();

 private:
  const std::string target_;
  std::string room_;
  const Unfinished unfinished_{&room_};
};

/// True if there is a folder of this name.
bool IsFolder(const std::string& path);

/// `folder/name`
std::string PathIn(const std::string& folder, std::string_view name);

// The steps that these are made of, for who makes a folder in steps of its own. They throw
// FileError.

/// The system refused something: "PATH: WHAT: REASON", without a remedy, which depends on what the
/// file is for.
struct FileError : Error {
  FileError(const std::string& path, const std::string& what, int number);

  int number;  ///< errno
};

/// Names of what is in a folder, hidden ones too, sorted; none if it is not there.
std::vector<std::string> NamesInFolder(const std::string& path);
/// Makes a folder that must not exist yet.
void CreateFolder(const std::string& path);
/// Makes it with all above it, where they are missing, and flushes their names to the disk.
void CreateFolders(const std::string& path, unsigned mode = 0777);
/// Removes a folder with all that is in it, if it is there. Links in it are removed, not followed.
void RemoveTree(const std::string& path);
/// Flushes the names in a folder to the disk.
void FlushFolder(const std::string& path);
/// Gives a file or folder another name, in the place of the file that has it.
void RenameFile(const std::string& from, const std::string& to);
/// Bytes of a regular file; -1 if it is not there. Throws Error if it is something else.
int64_t FileSize(const std::string& path);

/// open(2), again where a signal has interrupted it, with flags that programs started from here get
/// nothing of it. -1 where errno says why not.
int OpenFile(const std::string& path, int flags, unsigned mode = 0);
/// ftruncate(2), again where a signal has interrupted it. -1 where errno says why not.
int TruncateFile(int fd, int64_t bytes);

/// An open file of the system, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  int get() const { return fd_; }
  /// 0, or why the last of what was written may be lost.
  int Close();

 private:
  int fd_;
};

/// A file that is read piece by piece; "-" is standard input. Throws Error as ReadFile does.
class InputFile {
 public:
  /// An input that says no size (a pipe, a device) may have no end, and is refused beyond 1 GiB in
  /// any case.
  InputFile(const std::string& path, int64_t limit);

  /// The first 64 KiB, or all if there is less, without taking them: which form has it?
  std::string_view Beginning();
  /// Puts up to `most` further bytes there; 0 at the end.
  size_t Read(char* to, size_t most);
  /// Appends all that is left.
  void ReadRest(std::string* content);
  /// For messages.
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void FailTooLarge(int64_t limit) const;
  size_t ReadOn(char* to, size_t most);

  const std::string name_;
  const int64_t limit_;
  int64_t read_ = 0;
  int64_t size_ = 0;  ///< that the file says it has; 0 where it says none
  bool stream_ = false;
  std::string beginning_;
  size_t given_ = 0;  ///< of the beginning
  const Descriptor file_;
};

/// A file that is read at any place.
class SeekableFile {
 public:
  explicit SeekableFile(const std::string& path);

  /// Fills `bytes`; throws Error if the file ends before.
  void Read(int64_t offset, std::span<std::byte> bytes) const;

 private:
  const std::string path_;
  const Descriptor file_;
};

/// A file that is being made. It must not exist yet, and disappears unless Close succeeds.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();

  void Write(std::string_view text);
  void Write(std::span<const std::byte> bytes);
  /// Writes whole pages of the system, past the page cache if the file system can.
  void WriteThrough(std::span<const std::byte> pages);
  /// The permissions of a file that it is to replace.
  void SetMode(unsigned mode);
  /// Flushes it to the disk.
  void Close();
  /// Like Close, and gives it this name in the place of the file that has it.
  void CloseAs(const std::string& path);
  /// Bytes written so far.
  int64_t size() const { return size_; }

 private:
  void Flush();
  void Check(int error) const;

  const std::string path_;
  const Unfinished unfinished_{&path_};
  Descriptor file_;
  bool kept_ = false;
  int64_t size_ = 0;
  std::string pending_;  ///< so that small blocks do not cost a call each
};

}  // namespace contraflow
