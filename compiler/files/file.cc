#include "compiler/files/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

namespace contraflow {
namespace {

namespace fs = std::filesystem;

std::string Reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void FailWrite(const std::string& name, int error) {
  std::string hint;
  if (error == ENOENT) hint = "; does its folder exist?";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) hint = "; nothing was kept of it";
  throw Error(name + ": cannot be written: " + Reason(error) + hint);
}

[[noreturn]] void FailFolder(const std::string& name, const std::error_code& error) {
  const bool missing = error == std::errc::no_such_file_or_directory;
  throw Error(name + ": cannot be written: " + error.message() +
              (missing ? "; does the folder that it is to be in exist?" : ""));
}

DIR* OpenFolder(const std::string& path) {
  const int fd = OpenFile(path, O_RDONLY | O_DIRECTORY);
  DIR* const folder = fd < 0 ? nullptr : fdopendir(fd);
  if (folder == nullptr && fd >= 0) close(fd);
  return folder;
}

// A handler can reach nothing but globals, and of them lock-free atomics only.
std::atomic<int> unfinished{0}, stopped_by{0};
static_assert(std::atomic<int>::is_always_lock_free);

std::mutex list_mutex;
Unfinished* all_unfinished = nullptr;

/// Ends the program as if the signal had never been held back, so that a calling shell knows.
void EndBy(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void OnSignal(int signal) {
  if (unfinished.load() == 0) EndBy(signal);
  stopped_by.store(signal);
}

/// 0, or why not all of it was written.
int WriteAll(int fd, std::string_view content) {
  while (!content.empty()) {
    if (stopped_by.load() != 0) throw Error("stopped by a signal");
    const ssize_t written = write(fd, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

/// Returns 0, or the errno with which written data may be lost.
int Sync(int fd) {
  while (fsync(fd) != 0) {
    // Some file systems have nothing to flush.
    if (errno == EINVAL) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

/// An unpredictable name in the folder of `target`. Not derived from its name, which may already be
/// as long as a name can be.
std::string TemporaryName(const std::string& target) {
  // Not std::random_device, which takes another function of a newer C library.
  uint64_t number = 0;
  if (getentropy(&number, sizeof number) != 0) FailWrite(target, errno);
  return target.substr(0, target.rfind('/') + 1) + ".contraflow-" + std::to_string(number) + ".tmp";
}

/// Without the slashes at the end, which would make the parent of "a/" be "a".
std::string Trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

using Content = std::function<void(const PutBytes& put)>;

void WriteStandardOutput(const Content& write) {
  // Through stdio, so that it stays in order with what the program prints.
  write([](std::string_view piece) {
    errno = 0;
    if (std::fwrite(piece.data(), 1, piece.size(), stdout) != piece.size()) {
      FailWrite("standard output", errno);
    }
  });
  errno = 0;
  if (std::fflush(stdout) != 0) FailWrite("standard output", errno);
}

/// Straight into what is there: a device, a pipe.
void WriteThrough(const std::string& path, const Content& write) {
  Descriptor file(OpenFile(path, O_WRONLY));
  if (file.get() < 0) FailWrite(path, errno);
  write([&](std::string_view piece) {
    if (const int error = WriteAll(file.get(), piece); error != 0) FailWrite(path, error);
  });
  if (const int error = file.Close(); error != 0) FailWrite(path, error);
}

void Replace(const std::string& path, const Content& write, const struct stat* existing) {
  std::string target = path;
  if (existing != nullptr) {
    if (access(path.c_str(), W_OK) != 0) FailWrite(path, errno);
    // The target of a symbolic link is replaced, not the link.
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                           &std::free);
    if (real == nullptr) FailWrite(path, errno);
    target = real.get();
  }
  const auto named = [&](const auto& call) {
    try {
      call();
    } catch (const FileError& error) {
      FailWrite(path, error.number);
    }
  };
  std::optional<OutputFile> file;
  named([&] {
    file.emplace(TemporaryName(target));
    if (existing != nullptr) file->SetMode(existing->st_mode & 07777);
  });
  write([&](std::string_view piece) { named([&] { file->Write(piece); }); });
  named([&] { file->CloseAs(target); });
}

}  // namespace

FileError::FileError(const std::string& path, const std::string& what, int error)
    : Error(path + ": " + what + ": " + Reason(error)), number(error) {}

Unfinished::Unfinished(const std::string* file) : path(file) {
  ++unfinished;
  const std::lock_guard lock(list_mutex);
  behind = std::exchange(all_unfinished, this);
  if (behind != nullptr) behind->before = this;
}

Unfinished::~Unfinished() {
  {
    const std::lock_guard lock(list_mutex);
    if (behind != nullptr) behind->before = before;
    (before != nullptr ? before->behind : all_unfinished) = behind;
  }
  if (--unfinished > 0) return;
  // Not before: a signal that comes from now on takes effect at once.
  if (const int signal = stopped_by.load(); signal != 0) EndBy(signal);
}

void RemoveUnfinished() {
  const std::unique_lock lock(list_mutex, std::try_to_lock);
  std::error_code ignored;
  for (const Unfinished* file = lock ? all_unfinished : nullptr; file != nullptr;
       file = file->behind) {
    if (!file->path->empty()) fs::remove_all(*file->path, ignored);
  }
}

void RemoveUnfinishedOnSignals() {
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    struct sigaction action {};
    // Signals that a process was started to ignore stay ignored.
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action.sa_handler = OnSignal;
    sigaction(signal, &action, nullptr);
  }
}

void WriteFile(const std::string& path, std::string_view content) {
  WriteFile(path, [content](const PutBytes& put) { put(content); });
}

void WriteFile(const std::string& path, const std::function<void(const PutBytes& put)>& write) {
  if (path.empty()) throw Error("the file name is empty");
  if (path == "-") return WriteStandardOutput(write);
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) FailWrite(path, EISDIR);
    if (!S_ISREG(status.st_mode)) return WriteThrough(path, write);
    return Replace(path, write, &status);
  }
  if (errno != ENOENT) FailWrite(path, errno);
  if (lstat(path.c_str(), &status) == 0) {
    throw Error(path + ": cannot be written: it is a symbolic link to a file that does not exist");
  }
  if (path.back() == '/') FailWrite(path, EISDIR);
  Replace(path, write, nullptr);
}

OutputFile::OutputFile(const std::string& path)
    : path_(path), file_(OpenFile(path, O_WRONLY | O_CREAT | O_EXCL, 0666)) {
  if (file_.get() < 0) throw FileError(path, "cannot be made", errno);
}

OutputFile::~OutputFile() {
  if (!kept_) unlink(path_.c_str());
}

void OutputFile::Check(int error) const {
  if (error != 0) throw FileError(path_, "cannot be written", error);
}

void OutputFile::Write(std::string_view text) {
  constexpr size_t kPiece = size_t{1} << 18;
  size_ += std::ssize(text);
  if (pending_.size() + text.size() >= kPiece) Flush();
  if (text.size() >= kPiece) return Check(WriteAll(file_.get(), text));
  pending_ += text;
}

void OutputFile::Write(std::span<const std::byte> bytes) {
  Write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void OutputFile::WriteThrough(std::span<const std::byte> pages) {
  Flush();
  const std::string_view text(reinterpret_cast<const char*>(pages.data()), pages.size());
  const int flags = fcntl(file_.get(), F_GETFL);
  const bool direct = fcntl(file_.get(), F_SETFL, flags | O_DIRECT) == 0;
  int error = WriteAll(file_.get(), text);
  if (direct) fcntl(file_.get(), F_SETFL, flags);
  // Some file systems cannot, and say it only here; others want larger pages.
  if (direct && error == EINVAL && lseek(file_.get(), size_, SEEK_SET) == size_) {
    error = WriteAll(file_.get(), text);
  }
  Check(error);
  size_ += std::ssize(text);
}

void OutputFile::Flush() {
  Check(WriteAll(file_.get(), pending_));
  pending_.clear();
}

void OutputFile::SetMode(unsigned mode) {
  if (fchmod(file_.get(), mode) != 0) Check(errno);
}

void OutputFile::Close() {
  Flush();
  // Without this a full disk or a crash could leave an empty file.
  Check(Sync(file_.get()));
  Check(file_.Close());
  kept_ = true;
}

void OutputFile::CloseAs(const std::string& path) {
  Close();
  kept_ = false;
  RenameFile(path_, path);
  kept_ = true;
}

NewFolder::NewFolder(const std::string& target)
    : target_(Trimmed(target)), room_(TemporaryName(target_)) {
  // One that is there already belongs to somebody else.
  for (int left = 8; mkdir(room_.c_str(), 0700) != 0; room_ = TemporaryName(target_)) {
    if (errno != EEXIST || --left == 0) FailFolder(target, {errno, std::generic_category()});
  }
  if (mkdir(path().c_str(), 0777) == 0) return;
  const std::error_code error(errno, std::generic_category());
  rmdir(room_.c_str());
  FailFolder(target, error);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  fs::remove_all(room_, ignored);
}

void NewFolder::Keep() {
  std::error_code error;
  const std::string old = room_ + "/old";
  const bool replaces = IsFolder(target_);
  if (replaces) {
    fs::rename(target_, old, error);
    if (error) FailFolder(target_, error);
  }
  fs::rename(path(), target_, error);
  if (error) {
    std::error_code ignored;
    if (replaces) fs::rename(old, target_, ignored);
    FailFolder(target_, error);
  }
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::string PathIn(const std::string& folder, std::string_view name) {
  return Trimmed(folder) + "/" + std::string(name);
}

std::vector<std::string> NamesInFolder(const std::string& path) {
  std::vector<std::string> names;
  // Not with std::filesystem, which ends the process where memory is short or takes a signal for an
  // error.
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(OpenFolder(path), closedir);
  if (folder == nullptr && errno == ENOENT) return names;
  if (folder == nullptr) throw FileError(path, "cannot be read", errno);
  for (errno = 0; const dirent* const entry = readdir(folder.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) throw FileError(path, "cannot be read", errno);
  std::sort(names.begin(), names.end());
  return names;
}

void CreateFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) != 0) throw FileError(path, "the folder cannot be made", errno);
}

void CreateFolders(const std::string& path, unsigned mode) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (!S_ISDIR(status.st_mode)) throw FileError(path, "is not a folder", ENOTDIR);
    return;
  }
  if (errno != ENOENT) throw FileError(path, "the folder cannot be made", errno);
  const size_t end = path.find_last_not_of('/');
  const size_t slash = path.rfind('/', end);
  const std::string above =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  if (end != std::string::npos && above != path) CreateFolders(above, mode);
  if (mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    throw FileError(path, "the folder cannot be made", errno);
  }
  FlushFolder(above);
}

void RemoveTree(const std::string& path) {
  std::error_code error;
  do fs::remove_all(path, error);
  while (error == std::errc::interrupted);
  if (error) throw FileError(path, "cannot be removed", error.value());
}

void FlushFolder(const std::string& path) {
  const Descriptor folder(OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (folder.get() < 0) throw FileError(path, "cannot be opened", errno);
  if (const int error = Sync(folder.get()); error != 0) {
    throw FileError(path, "cannot be written", error);
  }
}

void RenameFile(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return;
  throw FileError(from, "cannot be renamed to " + to, errno);
}

int64_t FileSize(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return -1;
    throw FileError(path, "cannot be read", errno);
  }
  if (!S_ISREG(status.st_mode)) throw Error(path + ": is not a regular file");
  return status.st_size;
}

int OpenFile(const std::string& path, int flags, unsigned mode) {
  int fd = -1;
  do fd = open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

int TruncateFile(int fd, int64_t bytes) {
  int result = 0;
  do result = ftruncate(fd, bytes);
  while (result < 0 && errno == EINTR);
  return result;
}

int Descriptor::Close() {
  const int fd = fd_;
  fd_ = -1;
  // A signal may interrupt it; it is closed all the same.
  return fd < 0 || close(fd) == 0 || errno == EINTR ? 0 : errno;
}

}  // namespace contraflow
