#include <algorithm>
#include <cstdlib>
#include <map>

#include "compiler/plan/layer_cost.h"
#include "compiler/plan/spec.h"
#include "tools/report/promise.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

std::vector<Time> Bubbles(const Report& report) {
  std::vector<Time> bubbles;
  for (const RankFigures& rank : report.simulation.ranks) bubbles.push_back(rank.bubble);
  return bubbles;
}

std::string RangeOf(const std::vector<Time>& values, Unit unit) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return FormatRange(*low, *high, unit);
}

/// Parts of the longest chain, largest share first.
std::string DescribeCriticalPath(const Plan& plan, const Report& report) {
  const std::vector<InstructionRef>& path = report.critical_path;
  if (path.empty() || report.simulation.makespan == 0) return "";
  const auto start = [&](const InstructionRef& ref) {
    return report.simulation.timeline
        .ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)]
        .start;
  };
  std::map<std::string, Time> shares;
  for (size_t i = 0; i < path.size(); ++i) {
    const Op op =
        plan.programs[static_cast<size_t>(path[i].rank)][static_cast<size_t>(path[i].index)].op;
    // From its start to the start of its successor, so that the shares add up to the makespan.
    const Time end = i + 1 < path.size() ? start(path[i + 1]) : report.simulation.makespan;
    const bool message = WorkOf(op) == Work::kSend || WorkOf(op) == Work::kRecv;
    shares[message ? "communication" : std::string(Name(op))] += end - start(path[i]);
  }
  std::vector<std::pair<std::string, Time>> sorted(shares.begin(), shares.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, time] : sorted) {
    if (time == 0) continue;
    const double share =
        static_cast<double>(time) / static_cast<double>(report.simulation.makespan);
    text += (text.empty() ? "" : ", ") + name + " " + FormatFigure(time, report.unit) + " (" +
            FormatPercent(share) + ")";
  }
  return text;
}

}  // namespace

std::string Counted(int64_t n, const std::string& noun) {
  return FormatCount(n) + " " + noun + (n == 1 ? "" : noun.ends_with("ch") ? "es" : "s");
}

std::string DescribeDevices(int ranks, const std::optional<Parallel>& parallel, int data_parallel) {
  std::string text = Counted(ranks, "rank");
  const int devices = parallel ? parallel->devices() : 1;
  if (devices > 1 && devices == parallel->ep && parallel->batches() == devices) {
    text += " x " + std::to_string(devices) + " expert-parallel";
  } else if (devices > 1) {
    text += " x " + std::to_string(devices) + " devices (tp " + std::to_string(parallel->tp) +
            ", cp " + std::to_string(parallel->cp) + ", ep " + std::to_string(parallel->ep) +
            ", etp " + std::to_string(parallel->etp) + ")";
  }
  if (data_parallel > 1) text += " x " + std::to_string(data_parallel) + " data-parallel";
  return parallel ? text + " = " + Counted(int64_t{ranks} * devices * data_parallel, "GPU") : text;
}

std::string DescribePlan(const Plan& plan) {
  const std::optional<Parallel> parallel = plan.costs ? plan.costs->parallel : std::nullopt;
  std::string text = plan.schedule + ": " +
                     (parallel ? DescribeDevices(plan.ranks, parallel, plan.data_parallel)
                               : Counted(plan.ranks, "rank")) +
                     ", " + Counted(plan.stages, "stage") + ", " +
                     Counted(plan.microbatches, "micro-batch");
  if (plan.expert_parallel > 1 && !parallel)
    text += ", " + Counted(plan.expert_parallel, "device") + " per rank";
  if (plan.data_parallel > 1 && !parallel) text += ", " + Counted(plan.data_parallel, "replica");
  return text + " (level " + std::string(Name(plan.level)) + ")";
}

/// Shortens the origin of an order for readers: "local search from policy ahead 0 fill 100" becomes
/// "local search". The plan file has it all.
std::string Origin(const std::string& from) {
  if (from.starts_with("policy") || from.starts_with("rules")) return "list scheduling";
  return from.substr(0, from.find(" from "));
}

std::string DescribeSearch(const Plan& plan) {
  if (!plan.provenance || !plan.costs) return "";
  const Provenance& p = *plan.provenance;
  const Unit unit = plan.costs->unit;
  std::string text = "searched: " + p.placement + " placement, from " + Origin(p.from) + ", " +
                     FormatWithUnit(p.makespan, unit) + ", bound " + FormatWithUnit(p.bound, unit);
  if (p.bound_of_all) {
    const bool same = *p.bound_of_all == p.bound;
    text +=
        (same ? "" : ", " + FormatWithUnit(*p.bound_of_all, unit)) + " for all placements tried";
  }
  text += "; seed " + std::to_string(p.seed);
  if (p.cost_stages) {
    text += "; the costs given had " + Counted(*p.cost_stages, "stage") + ", the plan has " +
            std::to_string(plan.stages);
  }
  return text + (p.interrupted ? "; interrupted" : "") + "\n";
}

std::string DescribeCostsUsed(const CostModel& costs, bool chosen) {
  return "costs: " + DescribeCosts(costs) +
         (costs.comm.queued() ? ", " + std::string(QueuesOf(costs.comm.queues)) : "") +
         (chosen ? "" : ", unit costs because none are given (--costs)");
}

Table RankTable(const Report& report, bool bytes) {
  const TimeScale scale(report.simulation.makespan, report.unit);
  const auto time = [&](Time ticks) { return scale.Of(ticks); };
  Table table;
  table.columns = {">rank", ">busy", report.components ? ">compute idle" : ">bubble", ">share"};
  if (report.components) table.columns.insert(table.columns.end(), {">all-to-all", ">exposed"});
  table.columns.push_back(">activations");
  if (bytes) table.columns.push_back(">bytes");
  const Time makespan = report.simulation.makespan;
  for (size_t r = 0; r < report.simulation.ranks.size(); ++r) {
    const RankFigures& rank = report.simulation.ranks[r];
    const double share =
        makespan == 0 ? 0 : static_cast<double>(rank.bubble) / static_cast<double>(makespan);
    std::vector<std::string> row = {std::to_string(r), time(rank.busy), time(rank.bubble),
                                    FormatPercent(share)};
    if (report.components) row.insert(row.end(), {time(rank.all_to_all), time(rank.exposed)});
    row.push_back(std::to_string(rank.peak_activations));
    if (bytes) row.push_back(FormatBytes(rank.peak_bytes));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string MemoryTable(const Report& report) {
  const auto known = [&](const MemoryFigures& figures) {
    return figures.parameters || figures.gradients || figures.optimizer;
  };
  const bool more = report.level == Level::kBuffer ||
                    std::any_of(report.memory.begin(), report.memory.end(), known);
  if (report.memory.empty() || !more) return "";
  Table table;
  table.columns = {">rank"};
  for (const MemoryKind& kind : MemoryKinds(report.memory[0], report.level)) {
    table.columns.push_back(">" + std::string(kind.title));
  }
  for (size_t r = 0; r < report.memory.size(); ++r) {
    table.rows.push_back({std::to_string(r)});
    for (const MemoryKind& kind : MemoryKinds(report.memory[r], report.level)) {
      table.rows.back().push_back(FormatBytes(kind.bytes));
    }
  }
  return "memory by kind (activations without their weight stashes):\n" + FormatTable(table);
}

std::string FormatRange(Time low, Time high, Unit unit) {
  return low == high ? FormatFigure(low, unit)
                     : FormatFigure(low, unit) + " to " + FormatFigure(high, unit);
}

std::string CompareWithFormula(const Report& report) {
  const FormulaFigures& formula = *report.formula;
  if (formula.holds) return "holds on every rank";
  const std::vector<Time> bubbles = Bubbles(report);
  const auto [least, most] = std::minmax_element(bubbles.begin(), bubbles.end());
  const Time low = *least - formula.published, high = *most - formula.published;
  const auto size = [&](Time difference) {
    return FormatFigure(std::abs(difference), report.unit);
  };
  const std::string text = "does not hold for these costs: bubbles are ";
  if (low == high) return text + size(low) + (low < 0 ? " shorter" : " longer");
  if (high < 0) return text + size(high) + " to " + size(low) + " shorter";
  return text + size(low) + (low < 0 ? " shorter" : "") + " to " + size(high) + " longer";
}

std::string DescribeBound(const Bound& bound, Unit unit) {
  std::string text(Name(bound.kind));
  if (bound.peer >= 0) {
    text += " from rank " + std::to_string(bound.rank) + " to " + std::to_string(bound.peer);
  } else if (bound.rank >= 0) {
    text += ", rank " + std::to_string(bound.rank);
  }
  const std::pair<const char*, Time> parts[] = {
      {"head", bound.head}, {"work", bound.work}, {"idle", bound.idle}, {"tail", bound.tail}};
  const char* separator = ": ";
  for (const auto& [name, time] : parts) {
    if (time == 0) continue;
    text += separator + std::string(name) + " " + FormatFigure(time, unit);
    separator = " + ";
  }
  return text;
}

std::string SummaryTable(const Plan& plan, const Report& report) {
  const Simulation& simulation = report.simulation;
  const auto time = [&](Time ticks) { return FormatWithUnit(ticks, report.unit); };
  Table table;
  table.columns = {"", ""};
  table.rows.push_back({"makespan", time(simulation.makespan) + ", with a barrier at the end" +
                                        (report.without_updates ? kWithoutUpdates : "")});
  table.rows.push_back({"span", time(simulation.span) + ", the longest from a rank's first start "
                                                        "to its last end"});
  table.rows.push_back({IdleTitle(report.components), FormatPercent(simulation.bubble_ratio())});
  if (report.components) {
    std::vector<Time> exposed;
    for (const RankFigures& rank : simulation.ranks) exposed.push_back(rank.exposed);
    table.rows.push_back({"exposed", RangeOf(exposed, report.unit) +
                                         " per rank, all-to-all while the compute lane is idle"});
  }
  table.rows.push_back({"lower bound", time(report.bound.value) + " on the makespan, gap " +
                                           FormatPercent(report.gap())});
  table.rows.push_back({"bound by", DescribeBound(report.bound, report.unit)});
  if (report.any_partition) {
    table.rows.push_back({"any partition", "at least " + time(*report.any_partition) +
                                               " on the makespan, gap " +
                                               FormatPercent(report.gap_to_any_partition())});
  }
  if (report.formula) {
    const FormulaFigures& formula = *report.formula;
    table.rows.push_back({"formula", std::string(formula.text) + " = " + time(formula.published) +
                                         ": " + CompareWithFormula(report)});
    if (!formula.holds && !formula.exact.empty()) {
      table.rows.push_back({"closed form", RangeOf(formula.exact, report.unit) +
                                               (formula.exact == Bubbles(report)
                                                    ? ": holds on every rank"
                                                    : ": differs from the simulated bubbles")});
    }
  }
  const std::string path = DescribeCriticalPath(plan, report);
  if (!path.empty()) table.rows.push_back({"critical path", path});
  return FormatTable(table, std::nullopt);
}

namespace {

/// ", rank 2 at speed 0.5", or "" where all ranks are alike.
std::string SpeedsText(const CostModel& costs) {
  constexpr size_t kNamed = 3;
  std::vector<size_t> unlike;
  for (size_t r = 0; r < costs.ranks.size(); ++r) {
    if (costs.ranks[r].speed != 1) unlike.push_back(r);
  }
  if (unlike.size() > kNamed) {
    const auto [low, high] = std::ranges::minmax(costs.ranks, {}, &RankCost::speed);
    return ", ranks at speeds of " + FormatReal(low.speed) + " to " + FormatReal(high.speed);
  }
  std::string text;
  for (const size_t r : unlike) {
    text += ", rank " + std::to_string(r) + " at speed " + FormatReal(costs.ranks[r].speed);
  }
  return text;
}

}  // namespace

std::string DescribeCosts(const CostModel& costs) {
  const auto text = [&](Time ticks) { return FormatTime(ticks, costs.unit); };
  std::string line;
  if (!costs.layers.empty()) {
    const int layers = costs.LayerCount();
    line = std::to_string(layers) + (layers == 1 ? " layer" : " layers");
  } else if (costs.stages.size() > 1) {
    line = std::to_string(costs.stages.size()) + " stages" +
           (costs.partition.empty() ? "" : " of " + FormatPartition(costs.partition) + " layers") +
           ", each its own costs";
  } else {
    const StageCost& c = costs.stage(0);
    line = "f " + text(c.f) + ", b " + text(c.b) + ", w " + text(c.w) + ", bw " + text(c.bw) +
           ", fb " + text(c.fb);
    if (c.reduce > 0) line += ", reduce " + text(c.reduce);
    if (c.step > 0) line += ", step " + text(c.step);
  }
  line += ", comm " + text(costs.comm.latency + costs.comm.occupancy);
  if (!costs.comm.sizes.empty()) {
    line += " to " + text(costs.comm.latency + costs.comm.Largest().occupancy);
  }
  if (!costs.microbatch_scale.empty()) line += ", scaled by micro-batch";
  line += " (" + std::string(Name(costs.unit)) + ")";
  if (costs.derived) line += ", overlap " + std::string(Name(*costs.derived));
  return line + SpeedsText(costs);
}

}  // namespace contraflow
