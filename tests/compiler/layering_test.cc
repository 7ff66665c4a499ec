// The dependency rule of DESIGN ("Files"), enforced: which folder may include which, directly and
// through what it includes; and each library where it belongs and nowhere else. The folders are
// read from the tree, so that a new one must be given its place here.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace contraflow::layering_test {
namespace {

namespace fs = std::filesystem;

/// Folders that the files of a folder may include, in addition to their own. "a/*" is every folder
/// of a. Every folder reached through them must be listed as well.
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
      {"schedules/*", {"schedules", "schedules/*", "compiler/*"}},  // and SchedulesFloor
      {"kernels/host", {}},
      {"kernels/gpu", {"kernels/host", "emulator"}},
      {"kernels/attention", {"kernels/gpu", "kernels/host", "emulator"}},
      {"runtime", {"runtime/*", "kernels/*", "compiler/plan", "compiler/files"}},
      {"runtime/core", {"compiler/plan"}},
      {"runtime/exec", {"runtime/core", "kernels/gpu", "kernels/host", "compiler/plan"}},
      {"runtime/nccl",
       {"runtime/core", "runtime/exec", "kernels/gpu", "kernels/host", "compiler/plan"}},
      {"runtime/model", {"kernels/gpu", "kernels/host", "compiler/plan", "compiler/files"}},
      {"runtime/transport", {"runtime/core", "compiler/plan"}},
      {"runtime/host",
       {"runtime/core", "runtime/model", "runtime/transport", "kernels/host", "compiler/plan",
        "compiler/files"}},
      {"runtime/stages",
       {"runtime/core", "runtime/model", "runtime/host", "kernels/host", "compiler/plan"}},
      {"runtime/stages/example", {"runtime/stages"}},  // the includes of others
      {"runtime/gpu",
       {"runtime/core", "runtime/exec", "runtime/model", "runtime/host", "runtime/stages",
        "kernels/*", "compiler/plan", "compiler/files"}},
      {"runtime/checkpoint",
       {"runtime/core", "runtime/model", "runtime/transport", "compiler/plan", "compiler/files"}},
      {"runtime/launch",
       {"runtime/core", "runtime/exec", "runtime/nccl", "runtime/model", "runtime/transport",
        "runtime/host", "runtime/stages", "runtime/gpu", "kernels/*", "compiler/plan",
        "compiler/files"}},
      {"tools/cli",
       {"runtime/core", "runtime/model", "kernels/host", "schedules", "schedules/*", "compiler/*"}},
      {"tools/report", {"tools/cli", "schedules", "schedules/*", "compiler/*"}},
      {"tools/pictures", {"tools/cli", "tools/report", "schedules", "schedules/*", "compiler/*"}},
      {"tools/interop", {"tools/cli", "tools/report", "schedules", "schedules/*", "compiler/*"}},
      {"tools/profile", {"tools/cli", "tools/report", "schedules", "schedules/*", "compiler/*"}},
      {"tools/planner",
       {"tools/cli", "tools/interop", "tools/report", "tools/profile", "schedules", "schedules/*",
        "compiler/*"}},
      {"tools/contraflow",
       {"tools/cli", "tools/report", "tools/pictures", "tools/interop", "tools/profile",
        "tools/planner", "runtime/core", "runtime/model", "kernels/host", "schedules",
        "schedules/*", "compiler/*"}},
      {"tools/playground", {}},
      {"tools/python",
       {"tools/cli", "tools/report", "tools/pictures", "tools/interop", "tools/profile",
        "tools/planner", "schedules", "schedules/*", "compiler/*"}},
      {"tools/contraflow-run",
       {"tools/cli", "tools/report", "runtime/*", "kernels/*", "schedules", "schedules/*",
        "compiler/*"}},
      {"tools/bench",  // has a kernel
       {"tools/cli", "tools/report", "tools/profile", "tools/contraflow-run", "runtime/*",
        "kernels/*", "schedules", "schedules/*", "compiler/*", "emulator"}},
  };
  return allowed;
}

/// The floor of a folder of schedules: it may include those of lower floors, but for KnownBreaches.
const std::map<std::string, int>& SchedulesFloor() {
  static const std::map<std::string, int> floor = {
      {"schedules/published", 0}, {"schedules/search", 1},
      {"schedules/local", 2},     {"schedules/pairs", 2},
      {"schedules/recompute", 3}, {"schedules/partition", 4},
      {"schedules/auto", 5},      {"schedules", 6}};
  return floor;
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

/// Includes of each product file, by its path below the root.
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

  TEST_CASE("layering: schedules include lower floors") {
    for (const auto& [file, includes] : Includes()) {
      if (Top(file) != "schedules") continue;
      CAPTURE(file);
      REQUIRE(SchedulesFloor().count(Room(file)) == 1);
      for (const std::string& include : includes) {
        const std::string room = Room(include);
        if (!Ours(include) || Top(include) != "schedules" || room == Room(file)) continue;
        CAPTURE(include);
        CHECK(SchedulesFloor().at(room) < SchedulesFloor().at(Room(file)));
      }
    }
  }

  TEST_CASE("layering: no circle of folders") {
    // Folders whose includes were followed leave, until none that is left includes no other left.
    std::map<std::string, std::set<std::string>> rooms;
    for (const auto& [file, includes] : Includes()) {
      std::set<std::string>& of_room = rooms[Room(file)];
      for (const std::string& include : includes) {
        if (Ours(include) && Room(include) != Room(file)) of_room.insert(Room(include));
      }
    }
    for (bool some = true; some;) {
      some = std::erase_if(rooms, [&](const auto& room) {
               return std::ranges::none_of(
                   room.second, [&](const auto& other) { return rooms.count(other) > 0; });
             }) > 0;
    }
    for (const auto& [room, others] : rooms) FAIL_CHECK(room << " is in a circle, or above one");
  }

  TEST_CASE("layering: the execution core is thin") {
    // contraflow::exec and all that it pulls in: headers, and the runtime sources of these.
    std::map<std::string, std::string> reached;
    for (const auto& [file, includes] : Includes()) {
      if (Room(file) == "runtime/exec" || Room(file) == "runtime/nccl") reached[file] = "";
    }
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      const std::map<std::string, std::string> now = reached;
      for (const auto& [file, through] : now) {
        Reach(file, &reached);
        const std::string source = file.substr(0, file.rfind('.')) + ".cc";
        if (Top(file) == "runtime" && Includes().count(source) > 0) reached.emplace(source, file);
      }
    }
    int lines = 0, of_runtime = 0;
    for (const auto& [file, through] : reached) {
      const std::string room = Room(file);
      CAPTURE(file);
      CAPTURE(through);
      CHECK((room == "runtime/exec" || room == "runtime/nccl" || room == "runtime/core" ||
             room == "kernels/gpu" || room == "kernels/host" || room == "compiler/plan"));
      std::ifstream text(fs::path(CF_TEST_DIR).parent_path() / file);
      const auto count = std::count(std::istreambuf_iterator<char>(text), {}, '\n');
      lines += static_cast<int>(count);
      if (Top(file) == "runtime") of_runtime += static_cast<int>(count);
    }
    CAPTURE(of_runtime);
    CHECK(of_runtime > 3'000);  // they were found
    CHECK(of_runtime <= 4'500);
    CHECK(lines <= 6'500);
  }

  TEST_CASE("layering: each folder's README says what it may include") {
    const fs::path root = fs::path(CF_TEST_DIR).parent_path();
    for (const auto& [room, rule] : Allowed()) {
      if (room.back() == '*' || room == "runtime" || room == "runtime/stages/example") continue;
      std::ifstream file(root / room / "README.md");
      const std::string text(std::istreambuf_iterator<char>(file), {});
      const size_t at = text.rfind("May include: ");
      CAPTURE(room);
      REQUIRE_MESSAGE(at != std::string::npos, "the README has no line that begins so");
      std::string sentence = text.substr(at, text.find(".\n", at) - at);
      sentence = sentence.substr(0, sentence.find("; "));
      std::set<std::string> names, wanted;
      const std::regex name("`([^`]+/)`");
      for (auto found = std::sregex_iterator(sentence.begin(), sentence.end(), name);
           found != std::sregex_iterator(); ++found) {
        names.insert((*found)[1]);
      }
      for (const std::string& other : rule) {
        if (other == "emulator") continue;
        const bool all = other.back() == '*';
        // All folders of a room are the room.
        wanted.insert(all ? other.substr(0, other.size() - 1) : other + "/");
      }
      CHECK(names == wanted);
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
        if (library == "boost") {
          CHECK((room == "compiler/verify" || room == "compiler/simulate" ||
                 room == "runtime/transport"));
        }
        if (library == "CLI") CHECK(top == "tools");
        // Headers name Json (compiler/files/json.h); only sources see into it.
        const bool source = !file.ends_with(".h"), json = include == "nlohmann/json.hpp";
        if (json) CHECK((top == "tools" || room == "compiler/files" || source));
        if (library == "nlohmann" && !json) CHECK(file == "compiler/files/json.h");
        if (library == "pybind11") CHECK(room == "tools/python");
        if (library == "openssl") CHECK(top == "runtime");
        if (include == "cblas.h") CHECK(room == "kernels/host");
        if (include == "nccl.h" || include.rfind("cu", 0) == 0) {
          CHECK((top == "kernels" || room == "runtime/exec" || room == "runtime/nccl" ||
                 room == "tools/bench"));
        }
      }
    }
  }

  TEST_CASE("the top level holds what the user fixed and files that tools insist on") {
    const std::set<std::string> fixed = {
        "CMakeLists.txt", "compiler",    "runtime",   "kernels",       "schedules",
        "tools",          "tests",       "README.md", "LICENSE",       "CMakePresets.json",
        ".clang-format",  ".clang-tidy", ".ci",       ".git",          ".github",
        ".gitignore",     "build",       ".cache",    "pyproject.toml"};
    for (const auto& entry : fs::directory_iterator(fs::path(CF_TEST_DIR).parent_path())) {
      const std::string name = entry.path().filename();
      CAPTURE(name);
      CHECK(fixed.count(name) == 1);
    }
  }
}

}  // namespace
}  // namespace contraflow::layering_test
