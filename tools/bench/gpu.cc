// Times partitions, kernels, the host's part and whole schedules on the machine's GPU, and prints
// one table: figure, target, ratio. Targets are those that were set before anything was measured,
// for an H200; those of bandwidths are scaled to the copy that is measured.
//
// Exit code 77, and why, where there is no GPU; 1 if something failed.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/cuda_gpu.h"
#include "tools/bench/gpu_bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr int kExitSkipped = 77;

/// Part that can be measured on its own.
struct Part {
  std::string name;
  std::function<void(const std::function<void(Figure)>& add)> measure;
};

std::unique_ptr<Gpu> NewGpu() { return NewCudaGpu(0); }

std::vector<Part> AllParts() {
  std::vector<Part> parts;
  parts.push_back(
      {"partitions", [](const auto& add) { MeasurePartitions(NewGpu, BenchSizes::Full(), add); }});
  for (const KernelFamily& family : KernelFamilies()) {
    parts.push_back({family.name, [measure = family.measure](const auto& add) {
                       const std::unique_ptr<Gpu> gpu = NewGpu();
                       gpu->Partition(1, 0);
                       GpuBench bench(*gpu, BenchSizes::Full());
                       bench.OnFigure(add);
                       measure(&bench);
                     }});
  }
  const ScheduleSizes sizes = ScheduleSizes::Full();
  for (const std::string& name : sizes.Names()) {
    parts.push_back({name, [=](const auto& add) { MeasureSchedule(name, NewGpu, sizes, add); }});
  }
  return parts;
}

struct Wanted {
  std::vector<std::string> parts;
  std::string json;
  bool list = false, gpu = false;
};

int Run(const Wanted& wants) {
  const auto& [wanted, json, list, only_gpu] = wants;
  std::vector<Part> parts = AllParts();
  if (list) {
    for (const Part& part : parts) std::printf("%s\n", part.name.c_str());
    return EXIT_SUCCESS;
  }
  for (const std::string& name : wanted) {
    if (std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.name == name; })) {
      continue;
    }
    throw UsageError("PART: must be one of --list, is \"" + name + "\"");
  }
  std::string why;
  if (CudaDeviceCount(&why) == 0) {
    std::printf("SKIP: no GPU: %s\n", why.c_str());
    return kExitSkipped;
  }
  if (only_gpu) {
    const std::unique_ptr<Gpu> gpu = NewGpu();
    std::printf("%s, %d SMs\n", gpu->name().c_str(), gpu->sms());
    return EXIT_SUCCESS;
  }
  std::vector<Figure> figures;
  std::vector<std::string> failures;
  for (const Part& part : parts) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), part.name) == wanted.end()) {
      continue;
    }
    try {
      part.measure([&](const Figure& figure) {
        // At once, for whoever stops it before the end; the table comes at the end.
        std::printf("%s", FormatFigure(figure).c_str());
        std::fflush(stdout);
        if (!json.empty()) AppendFigure(json, part.name, figure);
        figures.push_back(figure);
      });
    } catch (const std::exception& error) {
      failures.push_back(part.name + ": " + error.what());
    }
  }
  std::printf("\n%s", FormatFigures(figures).c_str());
  for (const std::string& failure : failures) std::printf("FAILED %s\n", failure.c_str());
  return failures.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  contraflow::Wanted wants;
  return contraflow::RunTool(
      "bench_gpu", "Times kernels, the host's part and schedules on the machine's GPU.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddTexts(app, "PART", &wants.parts, "what to time, of --list (default: all)");
        contraflow::AddText(app, "--json", &wants.json, "FILE",
                            "append each figure to FILE, one JSON object a line");
        contraflow::AddFlag(app, "--list", &wants.list, "print the names of all parts");
        contraflow::AddFlag(app, "--gpu", &wants.gpu, "print which GPU would be measured");
      },
      [&] { return contraflow::Run(wants); });
}
