// Times every kernel, the host's part and whole schedules on the machine's GPU, and prints one
// table: figure, target, ratio. Targets are those that were set before anything was measured.
//
// Exit code 77, and why, where there is no GPU; 1 if something failed.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/gpu/cuda_gpu.h"
#include "tools/bench/gpu_bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr int kExitSkipped = 77;

struct Part {
  const char* name;
  void (*measure)(GpuBench* bench);
};

int Run(const std::vector<std::string>& parts) {
  constexpr const char* kParts[] = {"kernels", "host", "schedules"};
  for (const std::string& part : parts) {
    if (std::find(std::begin(kParts), std::end(kParts), part) != std::end(kParts)) continue;
    throw UsageError("PART: must be kernels|host|schedules, is \"" + part + "\"");
  }
  std::set<std::string> wanted(parts.begin(), parts.end());
  if (wanted.empty()) wanted.insert(std::begin(kParts), std::end(kParts));
  std::string why;
  if (CudaDeviceCount(&why) == 0) {
    std::printf("SKIP: %s\n", why.c_str());
    return kExitSkipped;
  }
  std::vector<Figure> figures;
  std::vector<std::string> failures;
  // At once, for whoever stops it before the end; the table comes at the end.
  const auto show = [](const Figure& figure) {
    std::printf("%s", FormatFigure(figure).c_str());
    std::fflush(stdout);
  };
  {
    const std::unique_ptr<Gpu> gpu = NewCudaGpu(0);
    gpu->Partition(1, 0);
    std::printf("%s, %d SMs\n\n", gpu->name().c_str(), gpu->sms());
    GpuBench bench(*gpu, BenchSizes::Full());
    bench.OnFigure(show);
    for (const Part& part : {Part{"kernels", MeasureCeilings}, Part{"kernels", MeasureStreams},
                             Part{"kernels", MeasureRouting}, Part{"kernels", MeasureProducts},
                             Part{"kernels", MeasureLayers}, Part{"host", MeasureHost}}) {
      if (wanted.count(part.name) == 0) continue;
      try {
        part.measure(&bench);
      } catch (const std::exception& error) {
        failures.push_back(std::string(part.name) + ": " + error.what());
      }
    }
    figures = bench.figures();
  }
  if (wanted.count("schedules") > 0) {
    const auto add = [&](Figure figure) {
      show(figure);
      figures.push_back(std::move(figure));
    };
    for (std::string& failure :
         MeasureSchedules([] { return NewCudaGpu(0); }, ScheduleSizes::Full(), add)) {
      failures.push_back(std::move(failure));
    }
  }
  std::printf("\n%s", FormatFigures(figures).c_str());
  for (const std::string& failure : failures) std::printf("FAILED %s\n", failure.c_str());
  return failures.empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  std::vector<std::string> parts;
  return contraflow::RunTool(
      "bench_gpu", "Times kernels, the host's part and schedules on the machine's GPU.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddTexts(app, "PART", &parts, "kernels, host or schedules (default: all)");
      },
      [&] { return contraflow::Run(parts); });
}
