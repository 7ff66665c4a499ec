#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace contraflow {

/// Whole content of a file; "-" is standard input. Throws Error naming the path and the reason
/// (missing, a directory, no permission, larger than `limit` bytes).
std::string ReadFile(const std::string& path, int64_t limit);

/// A file that is read piece by piece; "-" is standard input. Throws Error as ReadFile does.
class InputFile {
 public:
  InputFile(const std::string& path, int64_t limit);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  /// Puts up to `most` further bytes there; 0 at the end.
  size_t Read(char* to, size_t most);
  /// Appends all that is left.
  void ReadRest(std::string* content);
  /// For messages.
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void FailTooLarge() const;

  const std::string name_;
  const int64_t limit_;
  int64_t read_ = 0;
  int64_t size_ = 0;  ///< that the file says it has; 0 where it says none
  int fd_ = -1;
};

/// Writes a file so that it is either complete or not there: into a temporary name in the same
/// directory, flushed to disk, then renamed. "-" is standard output. On any failure (unwritable
/// directory, full disk) the temporary file is removed and Error names path and reason.
void WriteFile(const std::string& path, std::string_view content);

/// The same piece by piece: `write` is called once and hands the content over with `put`. What it
/// throws is passed on, and nothing is left of the file.
using PutBytes = std::function<void(std::string_view piece)>;
void WriteFile(const std::string& path, const std::function<void(const PutBytes& put)>& write);

}  // namespace contraflow
