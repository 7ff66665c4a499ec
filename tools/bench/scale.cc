// Plans of up to a hundred million instructions: generate, lower (which proves the result after
// every pass), write as a folder with a file for each rank, read back, verify and simulate.
//
// Five sizes, each three times the one before, the largest of so many million instructions
// (default: 100), with 8 micro-batches a rank. Each size runs in a process of its own. Times are
// seconds of processor time, user and system together, on one core; memory is the peak resident set
// of a phase in bytes an instruction, with what the phases before left (the plan). The exponent is
// the slope of time, and of peak memory, over instructions by least squares in logarithms: 1 is
// linear.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr const char* kPhases[] = {"generate", "lower", "write", "read", "verify", "simulate"};
constexpr size_t kPhaseCount = std::size(kPhases);
constexpr int kSizes = 5, kGrowth = 3, kMicrobatchesPerRank = 8;

/// Plain data: it comes through a pipe.
struct Row {
  int ranks = 0, microbatches = 0;
  int64_t instructions = 0, file_bytes = 0;
  std::array<double, kPhaseCount> seconds{}, peak_bytes{};

  double total() const {
    double sum = 0;
    for (const double phase : seconds) sum += phase;
    return sum;
  }
  double peak() const { return *std::max_element(peak_bytes.begin(), peak_bytes.end()); }
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Peak resident set since the last call, where Linux can start it anew; else of the process.
double PeakBytes() {
  double kibibytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) kibibytes = std::strtod(line.c_str() + 6, nullptr);
  }
  std::ofstream("/proc/self/clear_refs") << "5";
  return kibibytes * 1024;
}

Spec SpecOf(const std::string& schedule, int ranks, int microbatches) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  return spec;
}

Row Measure(const Spec& spec, const std::string& folder) {
  Row row = {.ranks = spec.ranks, .microbatches = spec.microbatches};
  size_t phase = 0;
  double before = CpuSeconds();
  PeakBytes();
  const auto done = [&] {
    row.seconds[phase] = CpuSeconds() - before;
    row.peak_bytes[phase++] = PeakBytes();
    before = CpuSeconds();
  };
  Plan plan = GeneratePlan(spec);
  done();
  plan = Lower(std::move(plan), spec.costs, {.target = Level::kComm});
  row.instructions = InstructionCount(plan);
  done();
  WriteRankFiles(folder, plan);
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    row.file_bytes += static_cast<int64_t>(file.file_size());
  }
  plan = {};
  done();
  plan = ReadRankFiles(folder);
  if (InstructionCount(plan) != row.instructions) {
    throw InternalError("internal error: what was read is not what was written");
  }
  done();
  if (!Verify(plan).empty()) {
    throw InternalError("internal error: the benchmark's plan is unsound");
  }
  done();
  if (Simulate(plan, spec.costs, Keep::kFigures).makespan <= 0) {
    throw InternalError("internal error: nothing was simulated");
  }
  done();
  return row;
}

/// Measures in a process of its own, so that no size finds the memory of another. Nothing if that
/// fails, which has been said.
std::optional<Row> MeasureApart(const Spec& spec) {
  std::fflush(nullptr);
  int ends[2];
  if (pipe(ends) != 0) throw Error("no pipe to a process for the measurement");
  const pid_t child = fork();
  if (child < 0) throw Error("no process for the measurement");
  if (child == 0) {
    std::string folder = (std::filesystem::temp_directory_path() / "bench_scale-XXXXXX").string();
    int status = 1;
    try {
      if (mkdtemp(folder.data()) == nullptr) throw Error(folder + ": cannot be made");
      const Row row = Measure(spec, folder + "/plan");
      status = write(ends[1], &row, sizeof row) == ssize_t{sizeof row} ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "bench_scale: error: %s\n", error.what());
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    _exit(status);
  }
  close(ends[1]);
  Row row;
  const bool whole = read(ends[0], &row, sizeof row) == ssize_t{sizeof row};
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (whole && status == 0) return row;
  if (WIFSIGNALED(status)) std::fprintf(stderr, "bench_scale: ended by a signal: memory?\n");
  return std::nullopt;
}

template <typename Value>
double ExponentOf(const std::vector<Row>& rows, Value value) {
  std::vector<std::pair<double, double>> points;
  for (const Row& row : rows) {
    points.emplace_back(static_cast<double>(row.instructions), value(row));
  }
  return Exponent(points);
}

void Print(const Row& row) {
  const auto count = static_cast<double>(row.instructions);
  std::printf("%5d %6d %11lld", row.ranks, row.microbatches,
              static_cast<long long>(row.instructions));
  for (const double seconds : row.seconds) std::printf(" %8.3f", seconds);
  std::printf(" %8.2f %7.1f |", row.total(), static_cast<double>(row.file_bytes) / count);
  for (const double bytes : row.peak_bytes) std::printf(" %4.0f", bytes / count);
  std::printf(" | %6.2f\n", row.peak() / (1 << 30));
  std::fflush(stdout);
}

/// False if a size could not be measured.
bool Bench(const std::string& schedule, double millions) {
  // How many instructions a chunk has, from a small plan of the same proportions.
  constexpr int kProbe = 16;
  const Spec probe = SpecOf(schedule, kProbe, kProbe * kMicrobatchesPerRank);
  const double per_chunk =
      static_cast<double>(InstructionCount(Lower(GeneratePlan(probe), probe.costs, {}))) /
      (double{kProbe} * probe.microbatches);
  std::printf("%s: seconds of processor time, then peak bytes an instruction\n\n",
              schedule.c_str());
  std::printf("%5s %6s %11s", "P", "M", "instruct.");
  for (const char* phase : kPhases) std::printf(" %8s", phase);
  std::printf(" %8s %7s |", "total", "on disk");
  for (const char* phase : kPhases) std::printf(" %4.4s", phase);
  std::printf(" | %6s\n", "GiB");
  std::vector<Row> rows;
  for (int size = kSizes - 1; size >= 0; --size) {
    const double target = millions * 1e6 / std::pow(kGrowth, size);
    // An even number of ranks: some schedules need it.
    const int ranks =
        2 * std::max(1, static_cast<int>(std::sqrt(target / per_chunk / kMicrobatchesPerRank) / 2));
    const auto row = MeasureApart(SpecOf(schedule, ranks, ranks * kMicrobatchesPerRank));
    if (!row) return false;
    Print(*row);
    rows.push_back(*row);
  }
  std::printf("\nexponents over %d sizes: ", kSizes);
  for (size_t phase = 0; phase < kPhaseCount; ++phase) {
    std::printf("%s %.2f, ", kPhases[phase],
                ExponentOf(rows, [phase](const Row& row) { return row.seconds[phase]; }));
  }
  std::printf("total %.2f; peak memory %.2f\n",
              ExponentOf(rows, [](const Row& r) { return r.total(); }),
              ExponentOf(rows, [](const Row& row) { return row.peak(); }));
  return true;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  std::string schedule = "1f1b";
  double millions = 100;
  return contraflow::RunTool(
      "bench_scale",
      "Plans of up to a hundred million instructions, from making to simulating them.", argc, argv,
      [&](CLI::App* app) {
        contraflow::AddText(app, "SCHEDULE", &schedule, "", "name of a schedule (default: 1f1b)");
        contraflow::AddNumber(app, "MILLIONS", &millions, "",
                              "instructions of the largest plan, 0.1 to 500 (default: 100)");
      },
      [&] {
        if (!(millions >= 0.1 && millions <= 500)) {
          throw contraflow::UsageError("MILLIONS: must be in 0.1..500");
        }
        return contraflow::Bench(schedule, millions) ? contraflow::kExitFine
                                                     : contraflow::kExitInput;
      });
}
