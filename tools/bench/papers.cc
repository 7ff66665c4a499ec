// The bubble rates of Zero Bubble's tables 5 and 8 (Qi et al., arXiv 2401.10241) from our own
// generators, cell by cell, and how many are equal, less or more.

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/json.h"
#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/rows.h"
#include "schedules/registry.h"
#include "tools/bench/bench.h"

namespace contraflow {
namespace {

/// A row of a table: a model on this many ranks.
struct Row {
  std::string model;
  int layers = 0, ranks = 0, microbatches = 0;
  Time f = 0, b = 0, w = 0, comm = 0;  ///< of one rank
  double stash = 0;                    ///< of an activation, what W needs
  std::vector<std::pair<std::string, double>> published;
};

Row ReadRow(const JsonCursor& row, int chunks) {
  row.Keys("a row", {"model", "layers", "ranks", "microbatches", "f", "b", "w", "comm", "w_stash",
                     "bubble_rate"});
  Row result;
  result.model = row.Required("model").String("the name of a model");
  const auto integer = [&](const char* key) {
    return static_cast<int>(row.Required(key).Integer("a number", 1, 1 << 12));
  };
  result.layers = integer("layers");
  result.ranks = integer("ranks");
  result.microbatches = integer("microbatches");
  const auto time = [&](const char* key) {
    return ToTicks(row.Required(key).Number("milliseconds", 0, 1e6), Unit::kMilliseconds, key);
  };
  result.f = chunks * time("f");
  result.b = chunks * time("b");
  result.w = chunks * time("w");
  result.comm = time("comm");
  if (const auto stash = row.Optional("w_stash")) {
    result.stash = stash->Number("a share of an activation", 0, 1);
  }
  const JsonCursor rates = row.Required("bubble_rate");
  for (const char* column : {"1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p",
                             "zb-2p_makespan", "zb-v", "zb-v_makespan"}) {
    const auto rate = rates.Optional(column);
    if (rate) result.published.emplace_back(column, rate->Number("a bubble rate", 0, 1));
  }
  return result;
}

/// To the decimals that are printed in the paper.
double Rate(Time length, Time busy) {
  const double rate = static_cast<double>(length - busy) / static_cast<double>(length);
  return std::round(rate * 10'000) / 10'000;
}

/// The makespan of an interleaved order by the clock of the authors' script: what goes round from
/// the last rank to the first, or back, is waited for by the first micro-batch of a round of P
/// only. A little less than any machine takes.
Time MakespanOfScript(const Plan& plan, const CostModel& costs) {
  const size_t ranks = plan.programs.size();
  const auto microbatches = static_cast<size_t>(plan.microbatches);
  const auto last = static_cast<size_t>(plan.stages - 1);
  // End of the forward and the backward of each chunk; -1 before it is known.
  std::vector<Time> forward((last + 1) * microbatches, -1), backward = forward;
  std::vector<Time> now(ranks, 0);
  std::vector<size_t> next(ranks, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (; next[rank] < plan.programs[rank].size(); ++next[rank]) {
        const Instruction& i = plan.programs[rank][next[rank]];
        const auto stage = static_cast<size_t>(i.stage);
        const size_t chunk = stage * microbatches + static_cast<size_t>(i.microbatch);
        const bool leads = i.microbatch % plan.ranks == 0;
        Time start = now[rank];
        if (i.op == Op::F && stage > 0 && (rank > 0 || leads)) {
          const Time end = forward[chunk - microbatches];
          if (end < 0) break;
          start = std::max(start, end + costs.comm.latency);
        } else if (i.op == Op::BW && stage < last && (rank + 1 < ranks || leads)) {
          const Time end = backward[chunk + microbatches];
          if (end < 0) break;
          start = std::max(start, end + costs.comm.latency);
        }
        now[rank] = start + costs.Duration(i);
        (i.op == Op::F ? forward : backward)[chunk] = now[rank];
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) CF_ASSERT(next[rank] == plan.programs[rank].size());
  return *std::max_element(now.begin(), now.end());
}

/// A row's orders, each simulated once.
class Measurement {
 public:
  explicit Measurement(const Row& row) : row_(row) {
    for (const auto& [column, published] : row.published) Measure(column, published);
  }

  std::vector<PaperCell> cells;

 private:
  void Measure(const std::string& column, double published) {
    if (column == "interleaved-1f1b") {
      Interleaved(column, published);
    } else if (column == "1f1b" || column == "zb-h1") {
      const Spec spec = SpecOf(column == "1f1b" ? "1f1b" : "zb-1p", 1);
      Add(column, published, Rate(Simulated(column, spec).makespan, Busy()));
    } else if (column.ends_with("_makespan")) {
      const std::string name = column.substr(0, column.find('_'));
      Add(column, published, Rate(Simulated(name, HeuristicSpec(name)).makespan, Busy()));
    } else {
      Add(column, published, Rate(Simulated(column, HeuristicSpec(column)).span, Busy()));
    }
  }

  void Interleaved(const std::string& column, double published) {
    const Spec spec = SpecOf("interleaved-1f1b", std::max(1, row_.layers / row_.ranks));
    const Plan order = GeneratePlan(spec);
    const Time busy = Simulate(order, spec.costs).ranks[0].busy;
    Add(column, published, Rate(MakespanOfScript(order, spec.costs), busy));
    Add(column + "_waiting", published, Rate(Simulate(order, spec.costs).makespan, busy));
    const Plan longer =
        InterleavedInRounds(spec, std::max(1, row_.microbatches / (row_.ranks + 1)));
    Add(column + "_rounds", published, Rate(Simulate(longer, spec.costs).makespan, busy));
  }

  void Add(const std::string& column, double published, double ours) {
    cells.push_back({.table = {},
                     .model = row_.model,
                     .ranks = row_.ranks,
                     .microbatches = row_.microbatches,
                     .column = column,
                     .published = published,
                     .ours = ours});
  }

  Time Busy() const { return row_.microbatches * (row_.f + row_.b + row_.w); }

  /// A rank's costs in this many equal chunks.
  Spec SpecOf(const std::string& schedule, int chunks) const {
    Spec spec =
        BenchSpec(schedule, row_.ranks, row_.microbatches,
                  UniformCosts(row_.f / chunks, row_.b / chunks, row_.w / chunks, row_.comm));
    spec.chunks = chunks;
    return spec;
  }

  Spec HeuristicSpec(const std::string& column) const {
    if (column == "zb-v") return SpecOf("zb-v", 2);
    Spec spec = SpecOf("zb-2p", 1);
    constexpr int64_t kActivation = 10'000;
    if (row_.stash > 0) {
      const auto stash = static_cast<int64_t>(std::round(row_.stash * kActivation));
      spec.costs.memory = {.activation_bytes = kActivation, .w_stash_bytes = stash};
    }
    if (column == "zb-1p") spec.memory_limit = row_.ranks * kActivation;
    return spec;
  }

  const Simulation& Simulated(const std::string& name, const Spec& spec) {
    const auto known = simulations_.find(name);
    if (known != simulations_.end()) return known->second;
    const Plan order = name == "zb-h2" ? HandMadeZeroBubble(spec, 2) : GeneratePlan(spec);
    return simulations_.emplace(name, Simulate(order, spec.costs)).first->second;
  }

  const Row& row_;
  std::map<std::string, Simulation> simulations_;
};

}  // namespace

std::vector<PaperCell> MeasurePaper(std::string_view document, const std::string& place) {
  const JsonDocument json = ParseJson(document, place);
  const JsonCursor root = json.Root();
  root.Keys("tables", {"source", "metric", "table5", "table8"});
  std::vector<PaperCell> cells;
  for (const auto& [table, chunks] : {std::pair("table5", 1), std::pair("table8", 2)}) {
    const JsonCursor rows = root.Required(table);
    for (size_t i = 0; i < rows.Size("a table's rows"); ++i) {
      const Row row = ReadRow(rows.Item(i), chunks);
      for (PaperCell& cell : Measurement(row).cells) {
        cell.table = table;
        cells.push_back(std::move(cell));
      }
    }
  }
  return cells;
}

void RunPapers(const BenchOptions& options, std::string_view /*suite*/) {
  const std::string path =
      options.costs.empty() ? "tests/reference/zero-bubble.json" : options.costs.front();
  constexpr auto kSum = BenchColumn::Shows::kSum;
  BenchTable table({{"published", 4},
                    {"ours", 4},
                    {"difference", 4},
                    {"equal", 0, kSum},
                    {"less", 0, kSum},
                    {"more", 0, kSum}},
                   true);
  for (const PaperCell& cell : MeasurePaper(ReadFile(path, int64_t{1} << 20), path)) {
    const double difference = cell.ours - cell.published;
    table.Add({cell.table + " " + cell.column},
              cell.model + " P=" + std::to_string(cell.ranks) +
                  " M=" + std::to_string(cell.microbatches) + " " + cell.column,
              {cell.published, cell.ours, difference, difference == 0 ? 1.0 : 0.0,
               difference < 0 ? 1.0 : 0.0, difference > 0 ? 1.0 : 0.0});
  }
  table.PrintClasses();
}

}  // namespace contraflow
