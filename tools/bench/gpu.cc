// Times every kernel, the host's part and whole schedules on the machine's GPU, and prints one
// table: figure, target, ratio. Targets are those that were set before anything was measured.
//
//   bench_gpu [kernels] [host] [schedules]      all of them where none is named
//
// Exit code 77, and why, where there is no GPU; 1 if something failed.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/gpu/cuda_gpu.h"
#include "tools/bench/gpu_bench.h"

namespace contraflow {
namespace {

constexpr int kExitSkipped = 77;

struct Part {
  const char* name;
  void (*measure)(GpuBench* bench);
};

int Run(std::set<std::string> wanted) {
  if (wanted.empty()) wanted = {"kernels", "host", "schedules"};
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
  std::set<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word != "kernels" && word != "host" && word != "schedules") {
      std::fprintf(stderr, "usage: bench_gpu [kernels] [host] [schedules]\n");
      return 2;
    }
    wanted.insert(word);
  }
  try {
    return contraflow::Run(wanted);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
