// The dependency rule of DESIGN ("Files"), enforced: which folder may include which, directly and
// through what it includes; and each library where it belongs and nowhere else. The folders are
// read from the tree, so that a new one must be given its place here.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace contraflow::layering_test {
namespace {

namespace fs = std::filesystem;

/// Folders that the files of a folder may include, beside their own. "a/*" is every folder of a.
/// What is reached through them must be listed as well.
const std::map<std::string, std::set<std::string>>& Allowed() {
  static const std::map<std::string, std::set<std::string>> allowed = {
      {"compiler/plan", {}},
      {"compiler/files", {"compiler/plan"}},
      {"compiler/verify", {"compiler/plan"}},
      {"compiler/simulate", {"compiler/plan"}},
      {"compiler/bound", {"compiler/plan", "compiler/simulate"}},
      {"compiler/lower",
       {"compiler/plan", "compiler/verify", "compiler/simulate", "compiler/bound"}},
      {"schedules", {"schedules/*", "compiler/*"}},
      {"schedules/*", {"schedules", "schedules/*", "compiler/*"}},
      {"kernels/host", {}},
      {"kernels/*", {"kernels/*", "emulator"}},
      {"runtime/stages/example", {"runtime/stages"}},  // what others write
      {"runtime/*", {"runtime/*", "kernels/*", "compiler/plan", "compiler/files"}},
      {"tools/bench",  // has a kernel
       {"tools/*", "runtime/*", "kernels/*", "schedules", "schedules/*", "compiler/*", "emulator"}},
      {"tools/*", {"tools/*", "runtime/*", "kernels/*", "schedules", "schedules/*", "compiler/*"}},
  };
  return allowed;
}

bool Listed(const std::set<std::string>& rooms, const std::string& room) {
  return rooms.count(room) > 0 || rooms.count(room.substr(0, room.find('/')) + "/*") > 0;
}

/// The rule for a room, or null if nothing says what it may include.
const std::set<std::string>* RuleOf(const std::string& room) {
  auto rule = Allowed().find(room);
  if (rule == Allowed().end()) rule = Allowed().find(room.substr(0, room.find('/')) + "/*");
  return rule == Allowed().end() ? nullptr : &rule->second;
}

std::string Room(const std::string& file) { return file.substr(0, file.rfind('/')); }
std::string Top(const std::string& file) { return file.substr(0, file.find('/')); }

/// What each product file includes, by its path below the root.
const std::map<std::string, std::vector<std::string>>& Includes() {
  static const auto includes = [] {
    const fs::path root = fs::path(CF_TEST_DIR).parent_path();
    const std::regex include("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
    std::map<std::string, std::vector<std::string>> files;
    for (const char* top : {"compiler", "schedules", "kernels", "runtime", "tools"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
        const std::string extension = entry.path().extension();
        if (extension != ".cc" && extension != ".h" && extension != ".cu") continue;
        std::vector<std::string>& of_file = files[fs::relative(entry.path(), root)];
        std::ifstream file(entry.path());
        std::string line;
        std::smatch match;
        while (std::getline(file, line)) {
          if (std::regex_match(line, match, include)) of_file.push_back(match[1]);
        }
      }
    }
    return files;
  }();
  return includes;
}

bool Ours(const std::string& include) {
  static const std::set<std::string> tops = {"compiler", "schedules", "kernels", "runtime",
                                             "tools",    "tests",     "emulator"};
  return include.find('/') != std::string::npos && tops.count(Top(include)) > 0;
}

/// Every file of ours that a file includes, through others as well; `from` says through which.
void Reach(const std::string& file, std::map<std::string, std::string>* from) {
  const auto includes = Includes().find(file);
  if (includes == Includes().end()) return;
  for (const std::string& include : includes->second) {
    if (!Ours(include) || !from->emplace(include, file).second) continue;
    Reach(include, from);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("layering: folders include what they may, transitively") {
    CHECK(Includes().size() > 100);
    for (const auto& [file, includes] : Includes()) {
      const std::string room = Room(file);
      const std::set<std::string>* rule = RuleOf(room);
      CAPTURE(file);
      REQUIRE_MESSAGE(rule != nullptr, "no rule says what this folder may include");
      std::map<std::string, std::string> reached;
      Reach(file, &reached);
      for (const auto& [include, through] : reached) {
        const std::string other = Room(include);
        CAPTURE(include);
        CAPTURE(through);
        CHECK((other == room || Listed(*rule, other)));
      }
    }
  }

  TEST_CASE("layering: the verifier has a table of accesses of its own") {
    // It may include the contract, but not the table there that passes and runtime follow.
    int read = 0;
    for (const auto& [file, includes] : Includes()) {
      if (Room(file) != "compiler/verify") continue;
      std::map<std::string, std::string> reached;
      Reach(file, &reached);
      CAPTURE(file);
      CHECK(reached.count("compiler/plan/access.h") == 0);
      ++read;
    }
    CHECK(read > 5);
  }

  TEST_CASE("layering: each library where it belongs") {
    for (const auto& [file, includes] : Includes()) {
      const std::string room = Room(file), top = Top(file);
      if (room == "runtime/stages/example") continue;
      for (const std::string& include : includes) {
        CAPTURE(file);
        CAPTURE(include);
        const std::string library = Top(include);
        if (library == "boost") CHECK((room == "compiler/verify" || room == "compiler/simulate"));
        if (library == "CLI") CHECK(top == "tools");
        // Headers name Json (compiler/files/json.h); only sources see into it.
        const bool source = !file.ends_with(".h"), json = include == "nlohmann/json.hpp";
        if (json) CHECK((top == "tools" || room == "compiler/files" || source));
        if (library == "nlohmann" && !json) CHECK(file == "compiler/files/json.h");
        if (library == "pybind11") CHECK(room == "tools/python");
        if (library == "openssl") CHECK(top == "runtime");
        if (include == "cblas.h") CHECK(room == "kernels/host");
        if (include == "mpi.h") CHECK((room == "runtime/transport" || room == "runtime/launch"));
        if (include == "nccl.h" || include.rfind("cu", 0) == 0) {
          CHECK((top == "kernels" || room == "runtime/gpu" || room == "runtime/nccl" ||
                 room == "tools/bench"));
        }
      }
    }
  }

  TEST_CASE("the top level holds what the user fixed and files that tools insist on") {
    const std::set<std::string> fixed = {
        "CMakeLists.txt", "compiler",    "runtime",       "kernels", "schedules",
        "tools",          "tests",       "README.md",     "LICENSE", "CMakePresets.json",
        ".clang-format",  ".clang-tidy", ".ci",           ".git",    ".gitignore",
        "build",          ".cache",      "pyproject.toml"};
    for (const auto& entry : fs::directory_iterator(fs::path(CF_TEST_DIR).parent_path())) {
      const std::string name = entry.path().filename();
      CAPTURE(name);
      CHECK(fixed.count(name) == 1);
    }
  }
}

}  // namespace
}  // namespace contraflow::layering_test
