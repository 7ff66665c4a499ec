#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace contraflow {

/// In memory where the system has a folder there, unless TMPDIR says otherwise: hundreds of flushes
/// to a disk that others use take long.
inline std::filesystem::path TemporaryRoot() {
  const bool memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK | X_OK) == 0;
  return memory ? "/dev/shm" : std::filesystem::temp_directory_path();
}

/// A fresh folder, gone with all its content at the end.
struct TestFolder {
  TestFolder() {
    std::string name = TemporaryRoot() / "contraflow-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path = name;
  }
  TestFolder(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }

  std::string File(const std::string& name) const { return path / name; }

  std::filesystem::path path;
};

}  // namespace contraflow
