#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "compiler/files/file.h"

namespace contraflow {
namespace {

/// More than any plan or trace that is worth a pipe, and less than a machine's memory.
constexpr int64_t kMostStreamBytes = int64_t{1} << 30;
constexpr size_t kPiece = size_t{1} << 16;

[[noreturn]] void FailRead(const std::string& name, int error) {
  throw Error(name + ": cannot be read: " + std::generic_category().message(error));
}

}  // namespace

std::string ReadFile(const std::string& path, int64_t limit) {
  std::string content;
  InputFile(path, limit).ReadRest(&content);
  return content;
}

InputFile::InputFile(const std::string& path, int64_t limit)
    : name_(path == "-" ? "standard input" : path),
      limit_(limit),
      file_(path == "-" ? dup(STDIN_FILENO) : OpenFile(path, O_RDONLY)) {
  if (path.empty()) throw Error("the file name is empty");
  if (file_.get() < 0) FailRead(name_, errno);
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) FailRead(name_, errno);
  if (S_ISDIR(status.st_mode)) FailRead(name_, EISDIR);
  stream_ = !S_ISREG(status.st_mode);
  if (!stream_) size_ = status.st_size;
  if (size_ > limit_) FailTooLarge(limit_);
}

void InputFile::FailTooLarge(int64_t limit) const {
  throw Error(name_ + ": is larger than " + std::to_string(limit) + " bytes, the limit for " +
              (limit < limit_ ? "a pipe or a device; give a file" : "its kind"));
}

std::string_view InputFile::Beginning() {
  while (beginning_.size() < kPiece) {
    const size_t size = beginning_.size();
    beginning_.resize(kPiece);
    beginning_.resize(size + ReadOn(beginning_.data() + size, kPiece - size));
    if (beginning_.size() == size) break;
  }
  return beginning_;
}

size_t InputFile::Read(char* to, size_t most) {
  if (given_ == beginning_.size()) return ReadOn(to, most);
  const size_t got = beginning_.copy(to, most, given_);
  given_ += got;
  return got;
}

size_t InputFile::ReadOn(char* to, size_t most) {
  for (;;) {
    const ssize_t got = read(file_.get(), to, most);
    if (got < 0) {
      if (errno == EINTR) continue;
      FailRead(name_, errno);
    }
    read_ += got;
    const int64_t limit = stream_ ? std::min(limit_, kMostStreamBytes) : limit_;
    if (read_ > limit) FailTooLarge(limit);
    return static_cast<size_t>(got);
  }
}

void InputFile::ReadRest(std::string* content) try {
  // In pieces, since room that is never filled costs nothing.
  content->reserve(content->size() + static_cast<size_t>(std::max<int64_t>(0, size_ - read_)) +
                   beginning_.size() - given_);
  std::string piece(kPiece, '\0');
  while (const size_t got = Read(piece.data(), piece.size())) content->append(piece, 0, got);
} catch (const std::bad_alloc&) {
  throw Error(name_ + ": there is not enough memory to read it");
}

SeekableFile::SeekableFile(const std::string& path) : path_(path), file_(OpenFile(path, O_RDONLY)) {
  if (file_.get() < 0) throw FileError(path, "cannot be read", errno);
}

void SeekableFile::Read(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(file_.get(), bytes.data(), bytes.size(), offset);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
      offset += got;
    } else if (got == 0) {
      throw Error(path_ + ": ends at byte " + std::to_string(offset) + ": it is truncated");
    } else if (errno != EINTR) {
      throw FileError(path_, "cannot be read", errno);
    }
  }
}

}  // namespace contraflow
