#include "compiler/files/file.h"

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

#include "compiler/plan/error.h"

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

using Content = std::function<void(const PutBytes& put)>;

/// What hands pieces to an open file, and fails in the name of `path`.
PutBytes PutTo(int fd, const std::string& path) {
  return [fd, &path](std::string_view piece) {
    if (const int error = WriteAll(fd, piece); error != 0) FailWrite(path, error);
  };
}

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
  Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) FailWrite(path, errno);
  write(PutTo(file.get(), path));
  if (const int error = file.Close(); error != 0) FailWrite(path, error);
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

void Replace(const std::string& path, const Content& write, const struct stat* existing) {
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
  if (error != 0) FailWrite(path, error);
  write(PutTo(temporary.fd(), path));
  // Without the flush a full disk or a crash could leave an empty file under the final name.
  if (fsync(temporary.fd()) != 0 && errno != EINVAL) error = errno;
  if (error == 0) error = temporary.CloseAndRename(target);
  if (error != 0) FailWrite(path, error);
}

}  // namespace

InputFile::InputFile(const std::string& path, int64_t limit)
    : name_(path == "-" ? "standard input" : path), limit_(limit) {
  if (path.empty()) throw Error("the file name is empty");
  fd_ = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd_ < 0) FailRead(name_, errno);
  struct stat status {};
  int error = fstat(fd_, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (error == 0 && S_ISREG(status.st_mode)) size_ = status.st_size;
  if (error == 0 && size_ <= limit_) return;
  // There is no destructor for what was not constructed.
  close(fd_);
  if (error != 0) FailRead(name_, error);
  FailTooLarge();
}

InputFile::~InputFile() { close(fd_); }

void InputFile::FailTooLarge() const {
  throw Error(name_ + ": is larger than " + std::to_string(limit_) +
              " bytes, the limit for its kind");
}

size_t InputFile::Read(char* to, size_t most) {
  for (;;) {
    const ssize_t got = read(fd_, to, most);
    if (got < 0) {
      if (errno == EINTR) continue;
      FailRead(name_, errno);
    }
    read_ += got;
    if (read_ > limit_) FailTooLarge();
    return static_cast<size_t>(got);
  }
}

void InputFile::ReadRest(std::string* content) {
  // One byte more than the file has, so that its end is seen without growing; pipes grow.
  constexpr size_t kStep = size_t{1} << 16;
  size_t room = size_ > read_ ? static_cast<size_t>(size_ - read_) + 1 : kStep;
  size_t size = content->size();
  for (;;) {
    if (size == content->size()) {
      content->resize(size + std::max(room, size));
      room = kStep;
    }
    const size_t got = Read(content->data() + size, content->size() - size);
    if (got == 0) break;
    size += got;
  }
  content->resize(size);
}

std::string ReadFile(const std::string& path, int64_t limit) {
  std::string content;
  InputFile(path, limit).ReadRest(&content);
  return content;
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

}  // namespace contraflow
