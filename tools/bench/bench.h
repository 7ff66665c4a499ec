#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan/plan.h"
#include "schedules/search/search.h"

namespace contraflow {

/// The options of all suites; nothing where a suite has a default of its own.
struct BenchOptions {
  std::optional<double> budget = {}, memory = {}, millions = {};
  std::optional<int64_t> seed = {}, first = {}, lists = {};
  int ranks = 16, rounds = 5, steps = 20;
  std::string only = {}, schedule = {};
  std::vector<std::string> costs = {};
  bool each = false;

  /// `seconds` is the budget where none is given.
  SearchOptions search(double seconds) const;
  /// True if --only leaves a row of this class and name.
  bool Takes(const std::string& text) const { return text.find(only) != std::string::npos; }
};

/// A row of the program's table. One function may run several suites.
struct Suite {
  std::string_view name, summary;
  void (*run)(const BenchOptions& options, std::string_view suite);
};

void RunMeasured(const BenchOptions& options, std::string_view suite);
void RunNoise(const BenchOptions& options, std::string_view suite);
void RunOffload(const BenchOptions& options, std::string_view suite);
void RunPairs(const BenchOptions& options, std::string_view suite);
void RunPapers(const BenchOptions& options, std::string_view suite);
void RunPartitions(const BenchOptions& options, std::string_view suite);
void RunPlans(const BenchOptions& options, std::string_view suite);
void RunPolicies(const BenchOptions& options, std::string_view suite);
void RunPredict(const BenchOptions& options, std::string_view suite);
void RunSearch(const BenchOptions& options, std::string_view suite);
void RunSpeed(const BenchOptions& options, std::string_view suite);

/// CPU time of this process in milliseconds.
double CpuMilliseconds();

/// The percentage of `of` by which a value is more.
double Percent(Time value, Time of);

/// Slope of log y over log x by least squares: 1 is linear.
double Exponent(const std::vector<std::pair<double, double>>& points);

/// A figure that a row does not have.
inline constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();

/// A column of figures, and its figures of a class of rows.
struct BenchColumn {
  enum class Shows { kMean, kMeanAndMost, kMeanAndLeast, kSum };

  std::string name;
  int decimals = 2;
  Shows shows = Shows::kMean;
};

/// Rows of figures, and their classes.
class BenchTable {
 public:
  /// `each` prints the rows, one by one.
  BenchTable(std::vector<BenchColumn> columns, bool each);

  void Add(const std::vector<std::string>& classes, const std::string& name,
           const std::vector<double>& figures, const std::string& note = {});
  void PrintClasses() const;

 private:
  std::vector<BenchColumn> columns_;
  bool each_;
  std::map<std::string, std::vector<std::vector<double>>> classes_;
};

Spec BenchSpec(std::string_view schedule, int ranks, int microbatches, CostModel costs);

/// A problem that a search is measured on.
struct BenchInstance {
  std::string group;  ///< class in the table: "v 1x", "linear 1.5x", ...
  std::string name;   ///< "14.6B P=8 M=16"
  Plan frame;         ///< head and routes
  CostModel costs;
  int64_t limit = 0;
  std::string published = {};  ///< the schedule that the group's memory comes from, or ""

  /// Every schedule of the table with these routes.
  std::vector<Plan> Seeds() const;
  /// The order that the published schedule has at unit cost, if there is one.
  std::vector<Plan> Published() const;
};

/// The instances that the options leave of a placement. Throws Error if none is left.
/// "linear": one stage a rank, 11 sets of costs, P 4 8 16, M P 2P 4P 8P, 1, 1.5 and 2 times 1F1B's
/// memory. "v": two stages a rank, 9 sets, M 2P and 4P, 1 and 1.5 times 1F1B's memory, V-Half's and
/// V-Min's. "bidirectional": 9 sets, M 2P 4P 8P, P+1 activations of a stage and half as many again.
/// "real": the stages of cost files, M P 2P 4P, 1, 1.25, 1.5 and 2 times 1F1B's memory.
std::vector<BenchInstance> Instances(const BenchOptions& options, std::string_view placement);

/// A figure of a published table and ours for the same costs: bubble rates, (length - busy) /
/// length, each by the measure that the paper took for that column.
struct PaperCell {
  std::string table;  ///< "table5"
  std::string model;
  int ranks = 0, microbatches = 0;
  std::string column;  ///< "1f1b", "zb-h2", "zb-2p_makespan"
  double published = 0;
  double ours = 0;  ///< to the four decimals of the paper
};

/// The cells of Zero Bubble's tables 5 and 8 (Qi et al., arXiv 2401.10241): `document` has their
/// costs and figures, `place` begins the message of the Error it throws if it has not.
///
/// The columns: zb-h1 is our zb-1p, zb-h2 HandMadeZeroBubble(2), zb-1p the heuristic of zb-2p with
/// room for P activations. interleaved-1f1b has a chunk for each layer of a rank, by the clock of
/// the authors' script: there a message from the last rank to the first (of gradients: from the
/// first to the last) is waited for by the first micro-batch of a round alone. Two more columns are
/// measured with every message waited for, as everywhere else: "interleaved-1f1b_waiting" is the
/// same order, "interleaved-1f1b_rounds" the one with as many rounds as are longer than P; both
/// stand next to the published figure of interleaved-1f1b.
std::vector<PaperCell> MeasurePaper(std::string_view document, const std::string& place);

}  // namespace contraflow
