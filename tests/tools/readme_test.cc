// Names in the READMEs: every file and folder in backticks, and the target of every link, exists.
// That their examples are true is checked by transcript_test.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/failure.h"

namespace contraflow::readme_test {
namespace {

namespace fs = std::filesystem;

const fs::path& Root() {
  static const fs::path root = fs::path(CF_TEST_DIR).parent_path();
  return root;
}

const std::set<std::string>& Rooms() {
  static const std::set<std::string> rooms = {"compiler",  "kernels", "runtime",
                                              "schedules", "tests",   "tools"};
  return rooms;
}

/// The rooms and the folders directly below them.
std::vector<fs::path> Folders() {
  std::vector<fs::path> folders;
  for (const std::string& room : Rooms()) {
    folders.push_back(Root() / room);
    for (const auto& entry : fs::directory_iterator(Root() / room)) {
      if (entry.is_directory()) folders.push_back(entry.path());
    }
  }
  return folders;
}

/// Every match of `pattern` outside of code blocks.
std::vector<std::string> Matches(const fs::path& readme, const std::regex& pattern) {
  std::vector<std::string> found;
  std::ifstream file(readme);
  bool code = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) code = !code;
    if (code || line.starts_with("    ")) continue;
    for (std::sregex_iterator at(line.begin(), line.end(), pattern), end; at != end; ++at) {
      found.push_back((*at)[1]);
    }
  }
  return found;
}

/// True for what looks like a file of ours: a source, script or page, or a path into a room.
bool IsPath(const std::string& text) {
  static const std::regex file("[A-Za-z0-9_./-]+\\.(cc|h|cu|sh|md|cmake|svg)");
  static const std::regex path("([a-z]+)/[A-Za-z0-9_./-]*");
  std::smatch match;
  if (std::regex_match(text, file)) return true;
  return std::regex_match(text, match, path) && Rooms().count(match[1]) > 0;
}

/// From the root or from the folder of the README; a bare name may be anywhere below that folder.
bool Exists(const fs::path& folder, const std::string& name) {
  if (fs::exists(Root() / name) || fs::exists(folder / name)) return true;
  if (name.find('/') != std::string::npos || folder == Root()) return false;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename() == name) return true;
  }
  return false;
}

TEST_SUITE("unit") {
  TEST_CASE("every folder has a README") {
    for (const fs::path& folder : Folders()) {
      CAPTURE(folder);
      CHECK(fs::exists(folder / "README.md"));
    }
  }

  TEST_CASE("every file that a README names exists") {
    const std::regex quoted("`([^`]+)`"), link("\\]\\(([^)#]+)[^)]*\\)");
    std::vector<fs::path> folders = Folders();
    folders.push_back(Root());
    int names = 0;
    for (const fs::path& folder : folders) {
      const fs::path readme = folder / "README.md";
      CAPTURE(readme);
      for (const std::string& name : Matches(readme, quoted)) {
        if (!IsPath(name)) continue;
        ++names;
        CHECK_MESSAGE(Exists(folder, name), name << " is not there");
      }
      for (const std::string& target : Matches(readme, link)) {
        if (Contains(target, "://")) continue;
        CHECK_MESSAGE(fs::exists(folder / target), target << " is not there");
      }
    }
    CHECK(names > 100);
  }
}

}  // namespace
}  // namespace contraflow::readme_test
