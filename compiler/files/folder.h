#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// True if there is a folder of this name.
bool IsFolder(const std::string& path);

/// Names of what is in a folder, sorted. Throws Error if it cannot be read.
std::vector<std::string> NamesInFolder(const std::string& path);

/// `folder/name`
std::string PathIn(const std::string& folder, std::string_view name);

/// A folder that is being made: under a temporary name beside `target`, gone at the end unless it
/// is kept.
class NewFolder {
 public:
  explicit NewFolder(const std::string& target);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  const std::string& path() const { return path_; }
  /// Puts it in the place of `target`; what stood there is removed. Throws Error if that cannot be
  /// done; then the old one is still there.
  void Keep();

 private:
  const std::string target_;
  std::string path_;
};

}  // namespace contraflow
