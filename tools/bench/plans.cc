// How long it takes to make plans: generate, lower (which proves the result after every pass),
// verify and simulate, and for "scale" write as a folder with a file for each rank and read back.
//
// "compile": plans of chunks up to level comm, then of MoE components up to level buffer, on
// DeepSeek's costs with 4 layers a stage; each row is the best of several runs. "scale": five
// sizes, each three times the one before, with 8 micro-batches a rank. Each row is measured in a
// process of its own. Times are CPU time on one core; memory is the peak resident set. The
// exponents are slopes of time and memory over instructions by least squares in logarithms: 1 is
// linear.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "compiler/files/plan_io.h"
#include "compiler/files/profiles.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"

namespace contraflow {
namespace {

/// The plans of a row.
struct Sizes {
  Spec spec;
  Level level = Level::kComm;
  int runs = 1;
  bool files = false;  ///< are written and read, too
};

/// Plain data: it comes through a pipe.
struct Measured {
  int64_t instructions = 0, slots = 0, file_bytes = 0;
  /// Milliseconds: generate, lower, write, read, verify, simulate, and all of it.
  std::array<double, 7> phases{};
};

/// Best of the runs.
Measured Measure(const Sizes& sizes, const std::string& folder) {
  Measured row;
  row.phases.fill(1e300);
  for (int run = 0; run < sizes.runs; ++run) {
    const double start = CpuMilliseconds();
    double before = start;
    const auto done = [&](size_t phase) {
      const double now = CpuMilliseconds();
      row.phases[phase] = std::min(row.phases[phase], now - before);
      before = now;
    };
    Plan plan = GeneratePlan(sizes.spec);
    done(0);
    plan = Lower(std::move(plan), sizes.spec.costs, {.target = sizes.level});
    row.instructions = InstructionCount(plan);
    done(1);
    if (sizes.files) {
      WriteRankFiles(folder, plan);
      for (const auto& file : std::filesystem::directory_iterator(folder)) {
        row.file_bytes += static_cast<int64_t>(file.file_size());
      }
      plan = {};
      done(2);
      plan = ReadRankFiles(folder);
      CF_ASSERT(InstructionCount(plan) == row.instructions);
      done(3);
    } else {
      row.phases[2] = row.phases[3] = kNoFigure;
    }
    CF_ASSERT(Verify(plan).empty());
    done(4);
    const auto keep = sizes.files ? Keep::kFigures : Keep::kTimeline;
    CF_ASSERT(Simulate(plan, sizes.spec.costs, keep).makespan > 0);
    done(5);
    row.phases[6] = std::min(row.phases[6], before - start);
    row.slots = 0;
    for (const auto& slots : plan.slots) row.slots += static_cast<int64_t>(slots.size());
  }
  return row;
}

/// Measures in a process of its own, so that no row has the memory of another, and returns the most
/// it held in bytes.
std::pair<Measured, double> MeasureApart(const Sizes& sizes) {
  std::fflush(nullptr);
  int ends[2];
  if (pipe(ends) != 0) throw Error("no pipe to a process for the measurement");
  const pid_t child = fork();
  if (child < 0) throw Error("no process for the measurement");
  if (child == 0) {
    std::string folder = (std::filesystem::temp_directory_path() / "bench-XXXXXX").string();
    const int code = RunMain("bench", [&] {
      if (mkdtemp(folder.data()) == nullptr) throw Error(folder + ": cannot be made");
      const Measured row = Measure(sizes, folder + "/plan");
      return write(ends[1], &row, sizeof row) == ssize_t{sizeof row} ? kExitFine : kExitBug;
    });
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    _exit(code);
  }
  close(ends[1]);
  Measured row;
  const bool whole = read(ends[0], &row, sizeof row) == ssize_t{sizeof row};
  close(ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  if (!whole || status != 0) {
    throw Error(WIFSIGNALED(status) ? "a measurement was ended by a signal: is memory short?"
                                    : "a measurement failed");
  }
  return {row, static_cast<double>(usage.ru_maxrss) * 1024};
}

std::vector<Sizes> CompileSizes(const std::string& schedule) {
  const struct {
    int ranks, microbatches, runs;
  } kChunks[] = {{8, 64, 20},    {16, 128, 20},  {32, 256, 10}, {64, 512, 10},
                 {128, 1024, 3}, {256, 2048, 2}, {256, 4096, 2}};
  std::vector<Sizes> all;
  for (const auto& [ranks, microbatches, runs] : kChunks) {
    all.push_back({.spec = BenchSpec(schedule, ranks, microbatches,
                                     UniformCosts(1'000'000, 1'000'000, 1'000'000)),
                   .runs = runs});
  }
  CostModel costs = ReadCostsOrProfile("deepseek-v3-h800");
  DeriveChunkCosts(&costs, Overlap::kPublished);
  for (const int ranks : {8, 16, 32}) {
    all.push_back(
        {.spec = BenchSpec(schedule, ranks, 4 * ranks, costs), .level = Level::kBuffer, .runs = 5});
  }
  return all;
}

std::vector<Sizes> ScaleSizes(const std::string& schedule, double millions) {
  constexpr int kMicrobatchesPerRank = 8, kProbe = 16;
  if (!(millions >= 0.1 && millions <= 500)) throw UsageError("--millions: must be in 0.1..500");
  const CostModel costs = UniformCosts(1'000'000, 1'000'000, 1'000'000);
  const auto spec = [&](int ranks) {
    return BenchSpec(schedule, ranks, ranks * kMicrobatchesPerRank, costs);
  };
  // A small plan of the same proportions says how many instructions a chunk has.
  const double per_chunk =
      static_cast<double>(InstructionCount(Lower(GeneratePlan(spec(kProbe)), costs, {}))) /
      (double{kProbe} * kProbe * kMicrobatchesPerRank);
  std::vector<Sizes> all;
  for (const int part : {81, 27, 9, 3, 1}) {
    const double chunks = millions * 1e6 / part / per_chunk;
    // An even number of ranks: some schedules need it.
    const int half = static_cast<int>(std::sqrt(chunks / kMicrobatchesPerRank) / 2);
    all.push_back({.spec = spec(2 * std::max(1, half)), .files = true});
  }
  return all;
}

}  // namespace

void RunPlans(const BenchOptions& options, std::string_view suite) {
  const bool scale = suite == "scale";
  const std::string schedule =
      !options.schedule.empty() ? options.schedule : (scale ? "1f1b" : "dualpipe");
  BenchTable table({{"instructions", 0},
                    {"slots", 0},
                    {"generate ms"},
                    {"lower"},
                    {"write"},
                    {"read"},
                    {"verify"},
                    {"simulate"},
                    {"total"},
                    {"M ins/s"},
                    {"on disk", 1},
                    {"memory", 0},
                    {"GiB"}},
                   true);
  std::vector<std::pair<double, double>> times, memory;
  for (const Sizes& sizes :
       scale ? ScaleSizes(schedule, options.millions.value_or(100)) : CompileSizes(schedule)) {
    const auto [row, peak] = MeasureApart(sizes);
    const auto count = static_cast<double>(row.instructions);
    std::vector<double> figures = {count, static_cast<double>(row.slots)};
    figures.insert(figures.end(), row.phases.begin(), row.phases.end());
    const double total = row.phases.back();
    figures.insert(figures.end(), {count / total / 1e3, static_cast<double>(row.file_bytes) / count,
                                   peak / count, peak / (1 << 30)});
    table.Add({},
              schedule + " P=" + std::to_string(sizes.spec.ranks) + " M=" +
                  std::to_string(sizes.spec.microbatches) + " " + std::string(Name(sizes.level)),
              figures);
    if (sizes.level != Level::kComm) continue;
    times.emplace_back(count, total);
    memory.emplace_back(count, peak);
  }
  std::printf("exponents: time %.2f, memory %.2f; on disk and memory in bytes an instruction\n",
              Exponent(times), Exponent(memory));
}

}  // namespace contraflow
