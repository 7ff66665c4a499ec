#include "runtime/checkpoint/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr std::string_view kStep = "step-", kShard = "shard-";
constexpr std::string_view kNew = ".new", kOld = ".old", kGone = ".gone";

std::string Numbered(std::string_view prefix, int number, size_t digits) {
  std::string text = std::to_string(number);
  text.insert(0, digits - std::min(digits, text.size()), '0');
  return std::string(prefix) + text;
}

/// The step whose StepName this is.
std::optional<int> StepOf(std::string_view name) {
  if (name.substr(0, kStep.size()) != kStep) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  int step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  // One step has one name.
  return StepName(step) == name ? std::optional(step) : std::nullopt;
}

/// The step of a hidden folder with this ending.
std::optional<int> HiddenStepOf(std::string_view name, std::string_view ending) {
  if (name.size() < 1 + ending.size() || name[0] != '.') return std::nullopt;
  if (name.substr(name.size() - ending.size()) != ending) return std::nullopt;
  return StepOf(name.substr(1, name.size() - 1 - ending.size()));
}

std::string Hidden(const std::string& directory, int step, std::string_view ending) {
  return directory + "/." + StepName(step) + std::string(ending);
}

bool Exists(const std::string& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0;
}

void Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) FailFile(from, "cannot be renamed to " + to, errno);
}

/// Under a name that no reader takes for anything, then for good.
void RemoveAside(const std::string& directory, int step, const std::string& path) {
  const std::string gone = Hidden(directory, step, kGone);
  RemoveFolder(gone);
  Rename(path, gone);
  RemoveFolder(gone);
}

int OpenAgain(const std::string& path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

/// 0, or why what was written may be lost.
int Sync(int fd) {
  while (fsync(fd) != 0) {
    // Some file systems have nothing to flush.
    if (errno == EINVAL) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

std::string StepName(int step) { return Numbered(kStep, step, 8); }
std::string ShardName(int shard) { return Numbered(kShard, shard, 4); }

std::string AsideOf(const std::string& directory, int step) {
  return Hidden(directory, step, kNew);
}

void FailFile(const std::string& path, const std::string& what, int error) {
  std::string remedy;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    remedy = "; make room, or use another --checkpoint folder: earlier checkpoints are intact";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    remedy = "; use a --checkpoint folder of your own";
  } else if (error == EEXIST) {
    remedy = "; do two jobs write to the same --checkpoint folder?";
  } else if (error == ENOTDIR) {
    remedy = "; a file stands where a folder should be";
  } else if (error == ENOENT) {
    remedy = "; was it removed meanwhile, or is it a folder that other machines do not see?";
  } else if (error == EIO || error == ESTALE) {
    remedy = "; the disk or its server is failing";
  }
  throw Error(path + ": " + what + ": " + std::generic_category().message(error) + remedy);
}

std::vector<std::string> NamesIn(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), &closedir);
  if (folder == nullptr) {
    if (errno == ENOENT) return {};
    FailFile(path, "cannot be read", errno);
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) FailFile(path, "cannot be read", errno);
  return names;
}

std::map<int, std::string> CompleteSteps(const std::string& directory) {
  std::map<int, std::string> steps;
  for (const std::string& name : NamesIn(directory)) {
    const std::string path = directory + "/" + name;
    if (const auto step = StepOf(name)) steps[*step] = path;
    // Of a step that has no other, if it was killed between two renames.
    if (const auto old = HiddenStepOf(name, kOld)) steps.emplace(*old, path);
  }
  return steps;
}

void Publish(const std::string& directory, int step, bool exchange) {
  const std::string aside = AsideOf(directory, step), path = directory + "/" + StepName(step);
  if (!Exists(path)) {
    Rename(aside, path);
    return SyncFolder(directory);
  }
  const std::string old = Hidden(directory, step, kOld);
  if (exchange &&
      renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    SyncFolder(directory);
    return RemoveAside(directory, step, aside);
  }
  // `path` is there, so this one is none that counts.
  RemoveFolder(old);
  Rename(path, old);
  Rename(aside, path);
  SyncFolder(directory);
  RemoveAside(directory, step, old);
}

void RemoveStep(const std::string& directory, int step) {
  RemoveAside(directory, step, directory + "/" + StepName(step));
}

void RemoveLeftovers(const std::string& directory) {
  for (const std::string& name : NamesIn(directory)) {
    const std::string path = directory + "/" + name;
    if (const auto step = HiddenStepOf(name, kOld)) {
      const std::string complete = directory + "/" + StepName(*step);
      if (Exists(complete)) {
        RemoveAside(directory, *step, path);
      } else {
        Rename(path, complete);
      }
    } else if (HiddenStepOf(name, kNew) || HiddenStepOf(name, kGone)) {
      RemoveFolder(path);
    }
  }
}

void MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) FailFile(path, "the folder cannot be made", errno);
}

void MakeFolders(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) FailFile(path, "is not a folder", ENOTDIR);
    return;
  }
  if (errno != ENOENT) FailFile(path, "the folder cannot be made", errno);
  const size_t end = path.find_last_not_of('/');
  const size_t slash = path.rfind('/', end);
  const std::string above =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (end != std::string::npos && above != path) MakeFolders(above);
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    FailFile(path, "the folder cannot be made", errno);
  }
  SyncFolder(above);
}

void RemoveFolder(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    FailFile(path, "cannot be removed", errno);
  }
  // A symbolic link is removed, not followed.
  if (!S_ISDIR(status.st_mode)) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) FailFile(path, "cannot be removed", errno);
    return;
  }
  for (const std::string& name : NamesIn(path)) {
    RemoveFolder(path + "/" + name);
  }
  if (rmdir(path.c_str()) != 0 && errno != ENOENT) FailFile(path, "cannot be removed", errno);
}

void SyncFolder(const std::string& path) {
  const int fd = OpenAgain(path, O_RDONLY | O_DIRECTORY);
  if (fd < 0) FailFile(path, "cannot be opened", errno);
  const int error = Sync(fd);
  close(fd);
  if (error != 0) FailFile(path, "cannot be written", error);
}

int64_t FileBytes(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return -1;
    FailFile(path, "cannot be read", errno);
  }
  if (!S_ISREG(status.st_mode)) throw Error(path + ": is not a regular file");
  return status.st_size;
}

NewFile::NewFile(const std::string& path) : path_(path) {
  fd_ = OpenAgain(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (fd_ < 0) FailFile(path, "cannot be made", errno);
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(path_.c_str());
}

void NewFile::Write(std::span<const std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 18;
  size_ += static_cast<int64_t>(bytes.size());
  if (pending_.size() + bytes.size() >= kPiece) Flush();
  if (bytes.size() >= kPiece) return WriteThrough(bytes);
  pending_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void NewFile::Flush() {
  WriteThrough(std::as_bytes(std::span(pending_.data(), pending_.size())));
  pending_.clear();
}

void NewFile::WriteThrough(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      FailFile(path_, "cannot be written", errno);
    }
  }
}

void NewFile::Close() {
  Flush();
  const int error = Sync(fd_);
  if (error != 0) FailFile(path_, "cannot be written", error);
  // What close has to say about data came with the flush.
  close(fd_);
  fd_ = -1;
}

SavedFile::SavedFile(const std::string& path) : path_(path) {
  fd_ = OpenAgain(path, O_RDONLY);
  if (fd_ < 0) FailFile(path, "cannot be read", errno);
}

SavedFile::~SavedFile() { close(fd_); }

void SavedFile::Read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), offset);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
      offset += got;
    } else if (got == 0) {
      throw Error(path_ + ": ends at byte " + std::to_string(offset) + ": it is truncated");
    } else if (errno != EINTR) {
      FailFile(path_, "cannot be read", errno);
    }
  }
}

}  // namespace contraflow
