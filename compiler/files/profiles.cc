#include "compiler/files/profiles.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "compiler/files/cost_io.h"
#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// Where profiles are looked up, first match wins.
std::vector<std::string> ProfileFolders() {
  std::vector<std::string> folders;
  if (const char* const own = std::getenv("CONTRAFLOW_PROFILES"); own != nullptr && *own != '\0') {
    folders.emplace_back(own);
  }
  folders.emplace_back(CF_INSTALLED_PROFILES);
  folders.emplace_back(CF_SOURCE_PROFILES);
  return folders;
}

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const std::string& folder : ProfileFolders()) {
    std::error_code none;  // A folder that is not there has no profiles.
    for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

CostModel ReadCostsOrProfile(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".json") || name == "-") {
    return ReadCostFile(name);
  }
  for (const std::string& folder : ProfileFolders()) {
    const std::filesystem::path path = std::filesystem::path(folder) / (name + ".json");
    std::error_code none;
    if (!name.empty() && std::filesystem::exists(path, none)) return ReadCostFile(path.string());
  }
  const std::vector<std::string> names = ProfileNames();
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  const std::string shown = name.substr(0, 64);
  std::string hint = DidYouMean(shown, names);
  if (hint.empty() && !shown.empty()) {
    // "deepseek" is many edits away from every profile, and yet it is clear what is meant.
    const auto longer = std::find_if(names.begin(), names.end(), [&](const std::string& other) {
      return other.starts_with(shown);
    });
    if (longer != names.end()) hint = " (did you mean \"" + *longer + "\"?)";
  }
  throw Error("unknown cost profile \"" + shown + "\"" + hint + "; profiles are " +
              (known.empty() ? "none" : known) +
              ", and a file is a name with a \"/\" or one that ends in .json");
}

}  // namespace contraflow
