#include <dlfcn.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/file.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// One part that some use of Contraflow needs.
struct Part {
  std::string name;
  std::string found;   ///< its version or place; "": not found
  std::string remedy;  ///< how one gets it

  bool there() const { return !found.empty(); }
};

/// A use, and whether this machine has all parts of it.
struct Use {
  std::string name;
  std::vector<const Part*> needs;

  bool possible() const {
    return std::ranges::all_of(needs, [](const Part* part) { return part->there(); });
  }
};

/// A shared library that is open for as long as this lives.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool found() const { return handle_ != nullptr; }
  template <typename Function>
  Function* Find(const char* symbol) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

 private:
  void* const handle_;
};

/// "13.0" for 13000, as CUDA counts.
std::string CudaVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string FindOpenBlas() {
  const Library library("libopenblas.so.0");
  if (!library.found()) return "";
  const auto config = library.Find<char*()>("openblas_get_config");
  const std::string text = config == nullptr ? "" : config();
  // "OpenBLAS 0.3.21 DYNAMIC_ARCH .."
  const size_t begin = text.find(' '), end = text.find(' ', begin + 1);
  return begin == std::string::npos ? "libopenblas.so.0" : text.substr(begin + 1, end - begin - 1);
}

std::string FindGpu() {
  const Library library("libcuda.so.1");
  const auto start = library.Find<int(unsigned)>("cuInit");
  const auto version_of = library.Find<int(int*)>("cuDriverGetVersion");
  const auto count_of = library.Find<int(int*)>("cuDeviceGetCount");
  int version = 0, count = 0;
  if (start == nullptr || version_of == nullptr || count_of == nullptr) return "";
  if (start(0) != 0 || version_of(&version) != 0 || count_of(&count) != 0 || count == 0) return "";
  return Counted(count, "GPU") + ", driver for CUDA " + CudaVersion(version);
}

std::string FindNccl() {
  const Library library("libnccl.so.2");
  const auto version_of = library.Find<int(int*)>("ncclGetVersion");
  int version = 0;
  if (version_of == nullptr || version_of(&version) != 0) return "";
  // 22703 is 2.27.3.
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// The place of a program of ours: beside this one, else on the PATH; "" if it is nowhere.
std::string FindProgram(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path() / name;
  if (access(beside.c_str(), X_OK) == 0) return beside.string();
  const char* const path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (size_t begin = 0; begin < folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const fs::path place = fs::path(folders.substr(begin, end - begin)) / name;
    if (access(place.c_str(), X_OK) == 0) return place.string();
    begin = end + 1;
  }
  return "";
}

/// The first line that the Python on the PATH prints for `script`; "" where it fails.
std::string AskPython(const std::string& script) {
  FILE* const pipe = popen(("python3 -c '" + script + "' 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  std::array<char, 256> line{};
  std::string text;
  if (std::fgets(line.data(), line.size(), pipe) != nullptr) text = line.data();
  const int code = pclose(pipe);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return code == 0 ? text : "";
}

/// All parts, in the order of the table.
struct Parts {
  Part planner{"contraflow", CF_VERSION, ""};
  Part trainer{"contraflow-run", FindProgram("contraflow-run"),
               "build with OpenBLAS and OpenSSL (libopenblas-dev, libssl-dev)"};
  Part blas{"OpenBLAS", FindOpenBlas(), "install libopenblas0"};
  Part cuda_trainer{"contraflow-run-cuda", FindProgram("contraflow-run-cuda"),
                    "build with the CUDA Toolkit 13, NCCL and cuDNN"};
  Part gpu{"NVIDIA GPU", FindGpu(),
           "a machine with a GPU of compute capability 9.0 and its driver"};
  Part nccl{"NCCL", FindNccl(), "install libnccl2, or name its folder in LD_LIBRARY_PATH"};
  Part python{"Python", AskPython("import platform; print(platform.python_version())"),
              "install python3"};
  Part package{"contraflow for Python",
               AskPython("import contraflow; print(contraflow.__version__)"),
               "install the wheel, or put tools/python of the build folder into PYTHONPATH"};
  Part torch{"PyTorch", AskPython("import importlib.metadata as m; print(m.version(\"torch\"))"),
             "pip install torch"};

  std::vector<const Part*> all() const {
    return {&planner, &trainer, &blas, &cuda_trainer, &gpu, &nccl, &python, &package, &torch};
  }
  std::vector<Use> uses() const {
    return {{"plan, prove, simulate and draw", {&planner}},
            {"train on CPUs", {&trainer, &blas}},
            {"train on GPUs", {&trainer, &cuda_trainer, &gpu, &nccl}},
            {"plan from Python", {&python, &package}},
            {"run plans in PyTorch", {&python, &package, &torch}}};
  }
};

/// "NCCL, PyTorch"
std::string Missing(const Use& use) {
  std::string text;
  for (const Part* part : use.needs) {
    if (!part->there()) text += (text.empty() ? "" : ", ") + part->name;
  }
  return text;
}

std::string DoctorText(const Parts& parts) {
  Table found{{"part", "found"}, {}}, uses{{"use", "here", "missing"}, {}};
  for (const Part* part : parts.all()) {
    found.rows.push_back({part->name, part->there() ? part->found : "no"});
  }
  std::string remedies;
  for (const Use& use : parts.uses()) {
    uses.rows.push_back({use.name, use.possible() ? "yes" : "no", Missing(use)});
  }
  for (const Part* part : parts.all()) {
    if (!part->there()) remedies += part->name + ": " + part->remedy + ".\n";
  }
  return FormatTable(found) + "\n" + FormatTable(uses) + (remedies.empty() ? "" : "\n" + remedies);
}

std::string DoctorJson(const Parts& parts) {
  Json found = Json::array(), uses = Json::array();
  for (const Part* part : parts.all()) {
    Json row = {{"name", part->name}, {"found", part->there()}};
    row[part->there() ? "detail" : "remedy"] = part->there() ? part->found : part->remedy;
    found.push_back(std::move(row));
  }
  for (const Use& use : parts.uses()) {
    uses.push_back({{"name", use.name}, {"possible", use.possible()}});
    if (!use.possible()) uses.back()["missing"] = Missing(use);
  }
  return FormatJson("doctor", {{"parts", std::move(found)}, {"uses", std::move(uses)}});
}

std::function<int()> AddDoctor(CLI::App* app) {
  const auto json = std::make_shared<bool>(false);
  AddJson(app, json.get());
  return [json] {
    const Parts parts;
    *json ? WriteFile("-", DoctorJson(parts)) : Print(DoctorText(parts));
    return kExitFine;
  };
}

}  // namespace

const Command kDoctorCommand = {
    .name = "doctor",
    .summary = "say which parts this machine has, and what one can do with them",
    .example = "contraflow doctor",
    .add = AddDoctor,
};

}  // namespace contraflow
