// The dependency rule of the README ("How it is built"), enforced: compiler and runtime meet only
// in `plan`; schedules do not know the runtime, the runtime does not know schedules, kernels know
// neither; nobody includes tools or tests; each library is included where it belongs and nowhere
// else.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Source {
  std::string folder, file;
  std::vector<std::string> includes;
};

std::vector<Source> Sources() {
  const fs::path root = fs::path(CF_TEST_DIR).parent_path();
  const std::regex include("^\\s*#\\s*include\\s*[<\"]([^>\"]+)[>\"].*");
  std::vector<Source> sources;
  for (const char* folder : {"compiler", "schedules", "kernels", "runtime", "tools", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cu" && extension != ".cuh") {
        continue;
      }
      Source source{folder, fs::relative(entry.path(), root / folder), {}};
      std::ifstream file(entry.path());
      std::string line;
      std::smatch match;
      while (std::getline(file, line)) {
        if (std::regex_match(line, match, include)) source.includes.push_back(match[1]);
      }
      sources.push_back(source);
    }
  }
  return sources;
}

/// The part of compiler/ that runtime and tools share with it: target contraflow_plan.
bool IsPlanHeader(const std::string& name) {
  static const std::set<std::string> headers = {
      "error.h",         "instruction.h", "plan.h",         "cost.h",
      "timeline.h",      "file.h",        "json.h",         "plan_io.h",
      "cost_io.h",       "trace_io.h",    "json_builder.h", "cbor.h",
      "plan_limits.h",   "value.h",       "folder.h",       "packed_instruction.h",
      "plan_document.h", "plan_rows.h",   "rank_files.h",   "provenance.h"};
  return headers.count(name) > 0;
}

std::string Folder(const std::string& include) { return include.substr(0, include.find('/')); }
std::string Name(const std::string& include) { return include.substr(include.find('/') + 1); }

/// Folders whose headers a folder may include.
const std::map<std::string, std::set<std::string>>& Allowed() {
  static const std::map<std::string, std::set<std::string>> allowed = {
      {"compiler", {"compiler"}},
      {"schedules", {"schedules", "compiler"}},
      {"kernels", {"kernels"}},
      {"runtime", {"runtime", "kernels", "compiler"}},
      {"tools", {"tools", "runtime", "kernels", "schedules", "compiler"}},
      {"tests", {"tests", "tools", "runtime", "kernels", "schedules", "compiler"}}};
  return allowed;
}

TEST_SUITE("unit") {
  TEST_CASE("layering: folders know only what they may") {
    int ours = 0;
    for (const Source& source : Sources()) {
      for (const std::string& include : source.includes) {
        if (Allowed().count(Folder(include)) == 0) continue;
        ++ours;
        CAPTURE(source.folder);
        CAPTURE(source.file);
        CAPTURE(include);
        CHECK(Allowed().at(source.folder).count(Folder(include)) == 1);
        if (source.folder == "runtime" && Folder(include) == "compiler") {
          CHECK(IsPlanHeader(Name(include)));
        }
        if (source.folder == "compiler" &&
            IsPlanHeader(fs::path(source.file).stem().string() + ".h")) {
          CHECK(IsPlanHeader(Name(include)));
        }
      }
    }
    CHECK(ours > 100);
  }

  TEST_CASE("layering: the verifier shares no code with what it verifies") {
    int verifier_files = 0;
    for (const Source& source : Sources()) {
      if (source.folder != "compiler" || source.file.rfind("verify", 0) != 0) continue;
      ++verifier_files;
      for (const std::string& include : source.includes) {
        if (Folder(include) != "compiler") continue;
        const std::string name = Name(include);
        CAPTURE(source.file);
        CAPTURE(include);
        const bool allowed = name.rfind("verify", 0) == 0 || name == "plan.h" ||
                             name == "graph.h" || name == "error.h" || name == "instruction.h";
        CHECK(allowed);
      }
    }
    CHECK(verifier_files >= 3);
  }

  TEST_CASE("layering: each library where it belongs") {
    for (const Source& source : Sources()) {
      if (source.folder == "tests") continue;
      for (const std::string& include : source.includes) {
        CAPTURE(source.folder);
        CAPTURE(source.file);
        CAPTURE(include);
        const std::string library = Folder(include);
        const std::string stem = fs::path(source.file).stem();
        if (library == "boost") CHECK(source.folder + "/" + source.file == "compiler/graph.cc");
        if (library == "CLI") CHECK(source.folder == "tools");
        if (library == "nlohmann") {
          // Reading goes through the strict reader; nobody else parses JSON.
          const bool reader =
              source.folder == "compiler" && (stem.rfind("json", 0) == 0 || stem == "cbor");
          const bool allowed =
              reader || source.folder == "tools" || stem.find("_io") != std::string::npos;
          CHECK(allowed);
        }
        if (include == "cblas.h") CHECK(source.folder + "/" + stem == "kernels/gemm");
        if (include == "mpi.h" || include == "nccl.h" || include.rfind("cuda", 0) == 0) {
          const bool backend = source.folder == "runtime" || source.folder == "kernels";
          CHECK(backend);
        }
      }
    }
  }

  TEST_CASE("test names are ones that ctest can select") {
    // ctest's discovery splits names at ; and loses the label of names with a comma.
    const std::regex name("TEST_CASE(?:_TEMPLATE)?\\(\"([^\"]*)\"");
    int names = 0;
    for (const auto& entry : fs::directory_iterator(CF_TEST_DIR)) {
      if (entry.path().extension() != ".cc") continue;
      std::ifstream file(entry.path());
      std::string line;
      std::smatch match;
      while (std::getline(file, line)) {
        if (!std::regex_search(line, match, name)) continue;
        ++names;
        CAPTURE(line);
        CHECK(match[1].str().find_first_of(",;") == std::string::npos);
      }
    }
    CHECK(names > 100);
  }

  TEST_CASE("the top level holds what the user fixed and files that tools insist on") {
    const std::set<std::string> fixed = {
        "CMakeLists.txt", "compiler",    "runtime",   "kernels", "schedules",
        "tools",          "tests",       "README.md", "LICENSE", "CMakePresets.json",
        ".clang-format",  ".clang-tidy", ".ci",       ".git",    ".gitignore",
        "build",          ".cache"};
    for (const auto& entry : fs::directory_iterator(fs::path(CF_TEST_DIR).parent_path())) {
      const std::string name = entry.path().filename();
      CAPTURE(name);
      CHECK(fixed.count(name) == 1);
    }
  }
}

}  // namespace
