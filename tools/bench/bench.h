#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace CLI {
class App;
}

namespace contraflow {

/// User time of this process in milliseconds: what a benchmark reports, since machines are shared.
double CpuMilliseconds();

/// By how many percent of `of` a value is more.
double Percent(Time value, Time of);

/// Slope of log y over log x by least squares: 1 is linear.
double Exponent(const std::vector<std::pair<double, double>>& points);

/// What a search is measured on.
struct BenchInstance {
  std::string group;  ///< rows of the report: "v 1x", "linear 1.5x", ...
  std::string name;   ///< "14.6B P=8 M=16"
  Plan frame;         ///< head and routes
  CostModel costs;
  int64_t limit = 0;
  std::vector<Plan> seeds;  ///< every schedule of the table with these routes
  /// Of the schedule that the group's memory comes from, in the order it has at unit cost, if the
  /// group has one.
  std::vector<Plan> published;
};

/// One stage a rank: 11 sets of costs, P 4 8 16, M P 2P 4P 8P, 1, 1.5 and 2 times 1F1B's memory.
std::vector<BenchInstance> LinearInstances(int max_ranks);
/// Two stages a rank: 9 sets, M 2P and 4P, 1 and 1.5 times 1F1B's memory, V-Half's and V-Min's.
std::vector<BenchInstance> VInstances(int max_ranks);
/// Two routes: 9 sets, M 2P 4P 8P, P+1 activations of a stage and half as many again.
std::vector<BenchInstance> BidirectionalInstances(int max_ranks);
/// The stages of cost files: M P 2P 4P, 1, 1.25, 1.5 and 2 times 1F1B's memory.
std::vector<BenchInstance> RealInstances(const std::vector<std::string>& files);

/// The options of benchmarks of searches.
struct BenchOptions {
  double budget = 1;  ///< seconds of search for each instance
  std::optional<int64_t> seed = {};
  int ranks = 16;
  std::string only = {};
  bool each = false;

  SearchOptions search() const;
  /// Those of the instances that --only leaves. Throws Error if none is left.
  std::vector<BenchInstance> Select(std::vector<BenchInstance> instances) const;
};

/// --budget and --seed.
void AddBudget(CLI::App* app, BenchOptions* options);
/// --ranks, --only and --each.
void AddSelection(CLI::App* app, BenchOptions* options);

/// A figure of a published table beside what our generators give for the same costs: bubble rates,
/// (length - busy) / length, each by the measure that the paper took for that column.
struct PaperCell {
  std::string table;  ///< "table5"
  std::string model;
  int ranks = 0, microbatches = 0;
  std::string column;  ///< "1f1b", "zb-h2", "zb-2p_makespan"
  double published = 0;
  double ours = 0;  ///< to the four decimals of the paper
  double difference() const { return ours - published; }
};

/// The cells of Zero Bubble's tables 5 and 8 (Qi et al., arXiv 2401.10241): `document` has their
/// costs and figures, `place` begins the message of the Error it throws if it has not.
///
/// What stands behind a column: zb-h1 is our zb-1p, zb-h2 HandMadeZeroBubble(2),
/// zb-1p the heuristic of zb-2p with room for P activations. interleaved-1f1b has a chunk for each
/// layer of a rank, by the clock of the authors' script: there a message from the last rank to the
/// first (of gradients: from the first to the last) is waited for by the first micro-batch of a
/// round alone. Two more columns are measured with every message waited for, as everywhere else:
/// "interleaved-1f1b_waiting" is the same order, "interleaved-1f1b_rounds" the one with as many
/// rounds as are longer than P; both stand beside the published figure of interleaved-1f1b.
std::vector<PaperCell> MeasurePaper(std::string_view document, const std::string& place);

}  // namespace contraflow
