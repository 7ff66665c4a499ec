// The bubble rates of Zero Bubble's tables 5 and 8 (Qi et al., arXiv 2401.10241) from our own
// generators, cell by cell: published, ours, and by how much ours is less.

#include <cstdio>
#include <map>
#include <string>

#include "compiler/files/file.h"
#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 20;

struct Count {
  int equal = 0, less = 0, more = 0;
};

int Print(const std::string& path) {
  const std::vector<PaperCell> cells = MeasurePaper(ReadFile(path, kMaxBytes), path);
  std::map<std::string, Count> counts;
  std::printf("%-7s %-6s %4s %4s  %-26s %9s %8s %10s\n", "table", "model", "P", "M", "schedule",
              "published", "ours", "difference");
  for (const PaperCell& cell : cells) {
    const bool equal = cell.ours == cell.published;
    Count& count = counts[cell.table + " " + cell.column];
    ++(equal ? count.equal : cell.ours < cell.published ? count.less : count.more);
    std::printf("%-7s %-6s %4d %4d  %-26s %9.4f %8.4f ", cell.table.c_str(), cell.model.c_str(),
                cell.ranks, cell.microbatches, cell.column.c_str(), cell.published, cell.ours);
    if (equal) {
      std::printf("%10s\n", "=");
    } else {
      std::printf("%+10.4f\n", cell.difference());
    }
  }
  std::printf("\n%-34s %6s %6s %6s\n", "table and schedule", "equal", "less", "more");
  for (const auto& [name, count] : counts) {
    std::printf("%-34s %6d %6d %6d\n", name.c_str(), count.equal, count.less, count.more);
  }
  std::printf(
      "\nzb-h1, zb-h2, zb-1p: our zb-1p; its twin of 2P-1 activations; zb-2p with room for P\n"
      "activations. interleaved-1f1b: by the clock of the authors' script, in which only the "
      "first\n"
      "micro-batch of a round waits for what comes from the last rank to the first, or back;\n"
      "_waiting: the same order with all waiting; _rounds: with rounds of more than P, all "
      "waiting.\n");
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  std::string path = "tests/reference/zero-bubble.json";
  return contraflow::RunTool(
      "bench_papers", "The bubble rates of Zero Bubble's tables from our own generators.", argc,
      argv,
      [&](CLI::App* app) {
        contraflow::AddText(app, "FILE", &path, "", "costs and figures (default: " + path + ")");
      },
      [&] { return contraflow::Print(path); });
}
