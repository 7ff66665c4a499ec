#include "compiler/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "compiler/error.h"

namespace contraflow {
namespace {

std::string Reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void FailRead(const std::string& name, int error) {
  throw Error(name + ": cannot be read: " + Reason(error));
}

[[noreturn]] void FailWrite(const std::string& name, int error) {
  std::string hint;
  if (error == ENOENT) hint = "; does its folder exist?";
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) hint = "; nothing was kept of it";
  throw Error(name + ": cannot be written: " + Reason(error) + hint);
}

/// An open file, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  /// 0, or why the last of what was written may be lost.
  int Close() {
    const int result = close(fd_) == 0 ? 0 : errno;
    fd_ = -1;
    return result;
  }

 private:
  int fd_;
};

/// 0, or why not all of it was written.
int WriteAll(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    content.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::string ReadAll(int fd, const std::string& name, int64_t limit) {
  struct stat status {};
  if (fstat(fd, &status) != 0) FailRead(name, errno);
  if (S_ISDIR(status.st_mode)) FailRead(name, EISDIR);
  const auto too_large = [&] {
    throw Error(name + ": is larger than " + std::to_string(limit) +
                " bytes, the limit for its kind");
  };
  if (S_ISREG(status.st_mode) && status.st_size > limit) too_large();
  std::string content;
  // One byte more than the file has, so that its end is seen without growing; pipes grow.
  constexpr size_t kStep = size_t{1} << 16;
  size_t room = S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) + 1 : kStep;
  size_t size = 0;
  for (;;) {
    if (size == content.size()) {
      content.resize(size + std::max(room, size));
      room = kStep;
    }
    const ssize_t got = read(fd, content.data() + size, content.size() - size);
    if (got < 0) {
      if (errno == EINTR) continue;
      FailRead(name, errno);
    }
    if (got == 0) break;
    size += static_cast<size_t>(got);
    if (size > static_cast<size_t>(limit)) too_large();
  }
  content.resize(size);
  return content;
}

void WriteStandardOutput(std::string_view content) {
  // Through stdio, so that it stays in order with what the program prints.
  errno = 0;
  const bool written = std::fwrite(content.data(), 1, content.size(), stdout) == content.size();
  if (!written || std::fflush(stdout) != 0) FailWrite("standard output", errno);
}

/// Straight into what is there: a device, a pipe.
void WriteThrough(const std::string& path, std::string_view content) {
  Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) FailWrite(path, errno);
  int error = WriteAll(file.get(), content);
  if (error == 0) error = file.Close();
  if (error != 0) FailWrite(path, error);
}

/// A new file beside `target` which disappears unless it is renamed.
class Temporary {
 public:
  Temporary(const std::string& target, mode_t mode) {
    static std::atomic<unsigned> counter{0};
    const size_t slash = target.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : target.substr(0, slash + 1);
    do {
      // Not derived from the name, which may already be as long as a name can be.
      path_ = folder + ".contraflow-" + std::to_string(getpid()) + "-" +
              std::to_string(counter.fetch_add(1)) + ".tmp";
      fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    } while (fd_ < 0 && errno == EEXIST);
    error_ = fd_ < 0 ? errno : 0;
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (fd_ >= 0) close(fd_);
    if (error_ == 0 && !renamed_) unlink(path_.c_str());
  }

  int error() const { return error_; }
  int fd() const { return fd_; }
  /// 0, or why it was not possible.
  int CloseAndRename(const std::string& target) {
    const int fd = fd_;
    fd_ = -1;
    if (close(fd) != 0) return errno;
    if (rename(path_.c_str(), target.c_str()) != 0) return errno;
    renamed_ = true;
    return 0;
  }

 private:
  std::string path_;
  int fd_ = -1;
  int error_ = 0;
  bool renamed_ = false;
};

void Replace(const std::string& path, std::string_view content, const struct stat* existing) {
  std::string target = path;
  if (existing != nullptr) {
    if (access(path.c_str(), W_OK) != 0) FailWrite(path, errno);
    // Behind a symbolic link the file is replaced, not the link.
    const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                           &std::free);
    if (real == nullptr) FailWrite(path, errno);
    target = real.get();
  }
  Temporary temporary(target, 0666);
  int error = temporary.error();
  if (error == 0 && existing != nullptr && fchmod(temporary.fd(), existing->st_mode & 07777) != 0) {
    error = errno;
  }
  if (error == 0) error = WriteAll(temporary.fd(), content);
  // Without the flush a full disk or a crash could leave an empty file under the final name.
  if (error == 0 && fsync(temporary.fd()) != 0 && errno != EINVAL) error = errno;
  if (error == 0) error = temporary.CloseAndRename(target);
  if (error != 0) FailWrite(path, error);
}

}  // namespace

std::string ReadFile(const std::string& path, int64_t limit) {
  if (path.empty()) throw Error("the file name is empty");
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input", limit);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) FailRead(path, errno);
  return ReadAll(file.get(), path, limit);
}

void WriteFile(const std::string& path, std::string_view content) {
  if (path.empty()) throw Error("the file name is empty");
  if (path == "-") return WriteStandardOutput(content);
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) FailWrite(path, EISDIR);
    if (!S_ISREG(status.st_mode)) return WriteThrough(path, content);
    return Replace(path, content, &status);
  }
  if (errno != ENOENT) FailWrite(path, errno);
  if (lstat(path.c_str(), &status) == 0) {
    throw Error(path + ": cannot be written: it is a symbolic link to a file that does not exist");
  }
  if (path.back() == '/') FailWrite(path, EISDIR);
  Replace(path, content, nullptr);
}

}  // namespace contraflow
