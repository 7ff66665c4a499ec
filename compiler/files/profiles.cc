#include "compiler/files/profiles.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

namespace fs = std::filesystem;

/// The file of the program or, where this is part of one, of the shared library; "" where neither
/// is known.
fs::path ThisBinary() {
  std::error_code none;  // Without /proc a program does not know where it is.
  fs::path program = fs::read_symlink("/proc/self/exe", none);
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&ThisBinary), &info) == 0) return program;
  // For a program this gives the name it was called by.
  fs::path library = info.dli_fname;
  return library.is_relative() || fs::equivalent(library, program, none) ? program : library;
}

/// Folders in which profiles are looked up, first match wins: those of the user, those installed
/// with this program or next to this library, in the build tree those of the sources, and where the
/// package was to be installed.
std::vector<std::string> ProfileFolders() {
  std::vector<std::string> folders;
  if (const char* const own = std::getenv("CONTRAFLOW_PROFILES"); own != nullptr && *own != '\0') {
    folders.emplace_back(own);
  }
  const fs::path binary = ThisBinary();
  std::error_code none;  // A path that cannot be looked at counts as missing.
  folders.push_back(binary.parent_path() / CF_PROFILES_FROM_PROGRAM);
  folders.push_back(binary.parent_path() / "profiles");
  // A build tree has a link to those of its sources.
  for (fs::path at = binary.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (fs::exists(at / "CMakeCache.txt", none)) folders.push_back(at / "profiles");
  }
  folders.emplace_back(CF_INSTALLED_PROFILES);
  return folders;
}

}  // namespace

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const std::string& folder : ProfileFolders()) {
    std::error_code none;  // A folder that is not there has no profiles.
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

CostModel ReadCostsOrProfile(const std::string& name, CostMending* mending) {
  if (name.find('/') != std::string::npos || name.ends_with(".json") || name == "-") {
    return ReadCostFile(name, mending);
  }
  for (const std::string& folder : ProfileFolders()) {
    const fs::path path = fs::path(folder) / (name + ".json");
    std::error_code none;
    if (!name.empty() && fs::exists(path, none)) return ReadCostFile(path.string(), mending);
  }
  const std::vector<std::string> names = ProfileNames();
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  const std::string shown = name.substr(0, 64);
  throw Error("unknown cost profile \"" + shown + "\"" + DidYouMean(shown, names) +
              "; profiles are " + (known.empty() ? "none" : known) +
              ", and a file is a name with a \"/\" or one that ends in .json");
}

}  // namespace contraflow
