// How good and how fast plans are made. Figures, no thresholds.

#include <algorithm>
#include <cstdio>

#include "tools/bench/bench.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"

namespace contraflow {
namespace {

constexpr Suite kSuites[] = {
    {"compile", "CPU time of plans, generated, lowered, verified and simulated; --schedule",
     RunPlans},
    {"scale", "the same, written and read, up to --millions of instructions; --schedule", RunPlans},
    {"linear", "gap, gain and time of the search, one stage a rank", RunSearch},
    {"v", "the same, two stages a rank", RunSearch},
    {"bidirectional", "the same, two directions", RunSearch},
    {"real", "the same, stages of --costs", RunSearch},
    {"speed", "orders and moves that a search evaluates in a second", RunSpeed},
    {"policies", "list scheduling on 64 to 1024 ranks; --memory", RunPolicies},
    {"noise", "the gain of orders chosen against noise", RunNoise},
    {"offload", "the gap at half of 1F1B's memory with recompute, offload and both", RunOffload},
    {"partitions", "the gap of layers and order chosen together; --first, --lists", RunPartitions},
    {"pairs", "the gain over DualPipe and DualPipeV; --costs, --memory", RunPairs},
    {"papers", "Zero Bubble's tables 5 and 8 (--costs FILE), cell by cell", RunPapers},
    {"measured", "published steps and memories next to predicted; --costs, --each", RunMeasured},
#ifdef CF_RUNTIME
    {"predict", "steps of plans, predicted and measured; --rounds, --steps", RunPredict},
    {"predict-same", "the same, with costs measured in the same plan", RunPredict},
    {"predict-padded", "the same on more ranks than cores, whose costs are slept", RunPredict},
#endif
};

const Suite& FindSuite(const std::string& name) {
  const auto* const found = std::ranges::find(kSuites, name, &Suite::name);
  if (found == std::end(kSuites)) throw UsageError("no suite \"" + name + "\"; see bench --list");
  return *found;
}

int Main(const std::vector<std::string>& names, bool list, const BenchOptions& options) {
  std::vector<const Suite*> suites;
  for (const std::string& name : names) suites.push_back(&FindSuite(name));
  if (!list && suites.empty()) throw UsageError("no suite given; see bench --list");
  for (const Suite& suite : kSuites) {
    if (list) std::printf("%-15s %s\n", suite.name.data(), suite.summary.data());
  }
  for (const Suite* suite : suites) {
    if (suites.size() > 1) std::printf("%s\n", suite->name.data());
    suite->run(options, suite->name);
  }
  return kExitFine;
}

}  // namespace
}  // namespace contraflow

int main(int argc, char** argv) {
  using namespace contraflow;
  BenchOptions options;
  std::vector<std::string> names;
  bool list = false;
  const auto add = [&](CLI::App* app) {
    AddTexts(app, "NAME", &names, "suites to run");
    AddFlag(app, "--list", &list, "list the suites");
    AddNumber(app, "--budget", &options.budget, "S", "seconds of search for each figure");
    AddInteger(app, "--seed", &options.seed, "N", "seed of the search (default: 0)");
    AddInteger(app, "--ranks", &options.ranks, "MOST",
               "leave out instances with more ranks (default: 16)");
    AddText(app, "--only", &options.only, "TEXT", "only rows with TEXT in their class or name");
    AddFlag(app, "--each", &options.each, "print a line for each row");
    AddTexts(app, "--costs", &options.costs, "cost files or profiles");
    AddText(app, "--schedule", &options.schedule, "NAME", "a schedule");
    AddNumber(app, "--memory", &options.memory, "FACTOR",
              "memory limit, in multiples of the published schedule's (default: 1)");
    AddNumber(app, "--millions", &options.millions, "N",
              "instructions of the largest plan, 0.1 to 500 (default: 100)");
    AddInteger(app, "--first", &options.first, "N", "number of the first list (default: 0)");
    AddInteger(app, "--lists", &options.lists, "N", "number of lists (default: 20)");
    AddInteger(app, "--rounds", &options.rounds, "N", "repeat the measurement (default: 5)", 1);
    AddInteger(app, "--steps", &options.steps, "N", "steps of each training (default: 20)", 1);
  };
  return RunTool("bench", "Measures how good plans are, and how fast they are made.", argc, argv,
                 add, [&] { return Main(names, list, options); });
}
