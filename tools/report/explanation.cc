#include "tools/report/explanation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "compiler/files/plan_document.h"
#include "compiler/simulate/waits.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Links of a chain that are printed.
constexpr size_t kMostLinks = 40;
/// Costs that are printed.
constexpr size_t kMostCosts = 5;
/// Idle times of a rank that are printed without --all.
constexpr size_t kMostIdle = 5;

class Words {
 public:
  explicit Words(const Explanation& explanation)
      : explanation_(explanation),
        unit_(explanation.simulation.timeline.unit),
        scale_(explanation.simulation.makespan, unit_) {}

  /// "BW s1 m0", without lane, events and slot.
  std::string Of(InstructionRef ref) const {
    Instruction i = explanation_.plan.program(ref.rank)[static_cast<size_t>(ref.index)];
    i.after_count = 0;
    i.lane = Lane::kNone;
    i.slot = i.group = -1;
    return ToString(i);
  }
  std::string On(InstructionRef ref, int here) const {
    return Of(ref) + (ref.rank == here ? "" : " on rank " + std::to_string(ref.rank));
  }
  std::string At(Time ticks) const { return scale_.Of(ticks); }
  /// The same where nothing else names the abstract unit.
  std::string InUnits(Time ticks) const {
    return unit_ == Unit::kUnit ? Lasting(ticks) : At(ticks);
  }
  /// Short times keep their digits beside the times of a whole step.
  std::string InTable(Time ticks) const {
    return unit_ == Unit::kUnit ? At(ticks) : Lasting(ticks);
  }
  std::string Alone(Time ticks) const { return FormatFigure(ticks, unit_); }
  std::string Lasting(Time ticks) const { return FormatWithUnit(ticks, unit_); }
  const Span& SpanOf(InstructionRef ref) const {
    return explanation_.simulation.timeline
        .ranks[static_cast<size_t>(ref.rank)][static_cast<size_t>(ref.index)];
  }

  /// "0.1 link, 4.1 dependency": how long the lanes of these were idle before them, and why; "" if
  /// they were not.
  std::string IdleBefore(std::span<const Wait> waits) const {
    std::vector<Time> times(kIdleCauses, 0);
    for (const Wait& wait : waits) {
      for (const Idle& idle : explanation_.idle[static_cast<size_t>(wait.on.rank)]) {
        if (idle.next != wait.on.index) continue;
        times[static_cast<size_t>(idle.cause)] += idle.when.end - idle.when.start;
      }
    }
    return ByCause(times);
  }

  /// The same of the idle time of each cause, in the order of IdleCause.
  std::string ByCause(const std::vector<Time>& times) const {
    std::string text;
    for (size_t c = 0; c < times.size(); ++c) {
      if (times[c] == 0) continue;
      text += (text.empty() ? "" : ", ") + Alone(times[c]) + " " +
              std::string(Name(static_cast<IdleCause>(c)));
    }
    return text;
  }

  /// Says by how much a rank has less work than the busiest one; "" below a tenth of its idle time.
  std::string LessWork(int rank, Time idle) const {
    const std::vector<RankFigures>& ranks = explanation_.simulation.ranks;
    const auto busiest = std::ranges::max_element(ranks, {}, &RankFigures::busy);
    const Time less = busiest->busy - ranks[static_cast<size_t>(rank)].busy;
    if (less * 10 < idle) return "";
    return "It has " + Alone(less) + " less work than rank " +
           std::to_string(busiest - ranks.begin()) + ", the busiest.\n";
  }

  std::string Why(const Idle& idle, int rank) const {
    if (idle.cause == IdleCause::kStandstill && explanation_.broken != nullptr) {
      return "the rank " + DescribeStop(*explanation_.broken, rank);
    }
    if (idle.because.rank < 0) {
      const int last = LastRank();
      return "nothing is left to run" +
             (last == rank ? "" : "; rank " + std::to_string(last) + " ends last");
    }
    const std::string because = On(idle.because, rank);
    if (idle.cause == IdleCause::kMemory) {
      return because + " could run, but there is no room for its activation";
    }
    if (idle.cause == IdleCause::kOrder) return because + " could run; the plan runs it later";
    if (idle.cause == IdleCause::kOverhead) return because + " could have begun";
    return because;
  }

 private:
  /// The first rank that works until the end of the step.
  int LastRank() const {
    const auto last =
        std::ranges::max_element(explanation_.simulation.ranks, {}, &RankFigures::last_end);
    return static_cast<int>(last - explanation_.simulation.ranks.begin());
  }

  const Explanation& explanation_;
  const Unit unit_;
  const TimeScale scale_;
};

/// True where any rank is idle for that cause.
std::vector<bool> CausesOf(const Explanation& explanation) {
  std::vector<bool> there(kIdleCauses, false);
  for (const std::vector<Idle>& rank : explanation.idle) {
    for (const Idle& idle : rank) there[static_cast<size_t>(idle.cause)] = true;
  }
  return there;
}

Time IdleOf(const Explanation& explanation, int rank) {
  const std::vector<Time> times = explanation.ByCause(rank);
  return std::accumulate(times.begin(), times.end(), Time{0});
}

/// Share of the makespan; 0 of an empty step.
double ShareOf(const Explanation& explanation, Time time) {
  const Time makespan = explanation.simulation.makespan;
  return makespan == 0 ? 0 : static_cast<double>(time) / static_cast<double>(makespan);
}

/// "12" or "3.5"
std::string Slope(double slope) {
  std::string text = std::to_string(std::round(slope * 100) / 100);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string SensitivityTable(const Explanation& explanation) {
  if (explanation.sensitivities.empty()) return "";
  const Words words(explanation);
  Table table;
  table.columns = {"cost", ">value", ">slope", ">1 % less saves", ">of the makespan"};
  for (const Sensitivity& sensitivity : explanation.sensitivities) {
    const double saved = sensitivity.PerCent();
    table.rows.push_back(
        {sensitivity.cost, words.Alone(sensitivity.value), Slope(sensitivity.slope),
         words.Alone(std::llround(saved)),
         FormatPercent(saved / static_cast<double>(explanation.simulation.makespan))});
  }
  return "What would help, most first. Slope: how much longer the makespan is for each\n"
         "unit of the cost.\n" +
         FormatTable(table);
}

Json IdleToJson(const Explanation& explanation, int rank) {
  const Words words(explanation);
  const Unit unit = explanation.simulation.timeline.unit;
  Json rows = Json::array();
  for (const Idle& idle : explanation.idle[static_cast<size_t>(rank)]) {
    Json row = Json::object();
    row["start"] = TimeToJson(idle.when.start, unit);
    row["end"] = TimeToJson(idle.when.end, unit);
    row["cause"] = Name(idle.cause);
    if (idle.next >= 0) row["before"] = words.Of({rank, idle.next});
    if (idle.because.rank >= 0) {
      row["because"] = {{"rank", idle.because.rank},
                        {"index", idle.because.index},
                        {"instruction", words.Of(idle.because)}};
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string CauseTable(const Explanation& explanation) {
  const Simulation& simulation = explanation.simulation;
  const Words words(explanation);
  const std::vector<bool> there = CausesOf(explanation);
  Table table;
  table.columns = {">rank", ">bubble", ">share"};
  for (size_t c = 0; c < there.size(); ++c) {
    if (there[c]) table.columns.push_back(">" + std::string(Name(static_cast<IdleCause>(c))));
  }
  std::vector<Time> all(kIdleCauses, 0);
  Time bubbles = 0;
  const auto row = [&](const std::string& title, Time bubble, double share,
                       const std::vector<Time>& times) {
    table.rows.push_back({title, words.At(bubble), FormatPercent(share)});
    for (size_t c = 0; c < there.size(); ++c) {
      if (there[c]) table.rows.back().push_back(words.At(times[c]));
    }
  };
  for (int r = 0; r < explanation.plan.ranks; ++r) {
    const std::vector<Time> times = explanation.ByCause(r);
    const Time bubble = simulation.ranks[static_cast<size_t>(r)].bubble;
    row(std::to_string(r), bubble, ShareOf(explanation, bubble), times);
    for (size_t c = 0; c < all.size(); ++c) all[c] += times[c];
    bubbles += bubble;
  }
  row("all", bubbles, simulation.bubble_ratio(), all);
  std::string text = FormatTable(table);
  if (std::ranges::find(there, true) != there.end()) text += "\n";
  for (size_t c = 0; c < there.size(); ++c) {
    if (!there[c]) continue;
    const auto cause = static_cast<IdleCause>(c);
    text += std::string(Name(cause)) + ": " + std::string(Meaning(cause)) + ".\n";
  }
  return text;
}

std::vector<Time> Explanation::ByCause(int rank) const {
  std::vector<Time> times(kIdleCauses, 0);
  for (const Idle& one : idle[static_cast<size_t>(rank)]) {
    times[static_cast<size_t>(one.cause)] += one.when.end - one.when.start;
  }
  return times;
}

Explanation Explain(const Plan& plan, const CostModel& costs) {
  Explanation explanation = ExplainRun(plan, costs, Simulate(plan, costs));
  explanation.sensitivities = Sensitivities(plan, costs, kMostCosts);
  return explanation;
}

Explanation ExplainRun(const Plan& plan, const CostModel& costs, Simulation run) {
  std::vector<std::vector<Idle>> idle = AttributeIdle(plan, costs, run);
  return {plan, costs, std::move(run), std::move(idle), {}};
}

Explanation ExplainBroken(const Plan& plan, const CostModel& costs, const BrokenRun& broken) {
  Explanation explanation = ExplainRun(plan, costs, broken.simulation);
  explanation.broken = &broken;
  return explanation;
}

Json ExplanationToJson(const Explanation& explanation, int rank) {
  const Simulation& simulation = explanation.simulation;
  const Unit unit = simulation.timeline.unit;
  Json ranks = Json::array();
  for (int r = 0; r < explanation.plan.ranks; ++r) {
    if (rank >= 0 && r != rank) continue;
    Json causes = Json::array();
    const std::vector<Time> times = explanation.ByCause(r);
    for (size_t c = 0; c < times.size(); ++c) {
      if (times[c] == 0) continue;
      causes.push_back(
          {{"cause", Name(static_cast<IdleCause>(c))}, {"time", TimeToJson(times[c], unit)}});
    }
    Json row = Json::object();
    row["rank"] = r;
    row["bubble"] = TimeToJson(simulation.ranks[static_cast<size_t>(r)].bubble, unit);
    row["causes"] = std::move(causes);
    if (rank >= 0) row["idle"] = IdleToJson(explanation, r);
    ranks.push_back(std::move(row));
  }
  Json sensitivity = Json::array();
  for (const Sensitivity& s : explanation.sensitivities) {
    sensitivity.push_back(
        {{"cost", s.cost}, {"value", TimeToJson(s.value, unit)}, {"d_makespan", s.slope}});
  }
  Json document = {{"schedule", explanation.plan.schedule},
                   {"unit", Name(unit)},
                   {"sound", explanation.broken == nullptr},
                   {"makespan", TimeToJson(simulation.makespan, unit)},
                   {"ranks", std::move(ranks)},
                   {"sensitivity", std::move(sensitivity)}};
  if (explanation.broken != nullptr) {
    AddStandstill(*explanation.broken, explanation.plan, unit, &document);
  }
  return document;
}

std::string WriteExplanation(const Explanation& explanation) {
  const Words words(explanation);
  if (explanation.broken != nullptr) {
    return WriteStandstill(*explanation.broken, explanation.plan, explanation.costs.unit) +
           "\nIdle time up to there by cause:\n\n" + CauseTable(explanation);
  }
  std::string text =
      "makespan " + words.Lasting(explanation.simulation.makespan) +
      (LeavesOutUpdates(explanation.plan, explanation.costs) ? kWithoutUpdates : "") +
      "; idle time by cause:\n\n" + CauseTable(explanation);
  const std::string sensitivities = SensitivityTable(explanation);
  return text + (sensitivities.empty() ? "" : "\n" + sensitivities);
}

std::string WriteIdle(const Explanation& explanation, int rank, bool all) {
  const std::string name = "rank " + std::to_string(rank);
  std::vector<Idle> idle = explanation.idle[static_cast<size_t>(rank)];
  if (idle.empty()) return name + " is never idle.\n";
  const Words words(explanation);
  const auto lasting = [](const Idle& one) { return one.when.end - one.when.start; };
  const Time spent = IdleOf(explanation, rank);
  std::string text = name + " is idle for " + words.At(spent) + " of " +
                     words.InUnits(explanation.simulation.makespan) + " (" +
                     FormatPercent(ShareOf(explanation, spent)) +
                     "): " + words.ByCause(explanation.ByCause(rank)) + ".\n" +
                     words.LessWork(rank, spent);
  if (!all && idle.size() > kMostIdle) {
    text += "The " + std::to_string(kMostIdle) + " longest of " + std::to_string(idle.size()) +
            " idle times, the longest first (--all lists every one):\n";
    std::ranges::stable_sort(idle, std::greater(), lasting);
    idle.resize(kMostIdle);
  }
  Table table;
  table.columns = {">from", ">to", ">idle", "cause", "idle before", "reason"};
  for (const Idle& one : idle) {
    table.rows.push_back({words.At(one.when.start), words.At(one.when.end),
                          words.InTable(lasting(one)), std::string(Name(one.cause)),
                          one.next < 0 ? "the end" : words.Of({rank, one.next}),
                          words.Why(one, rank)});
  }
  return text + "\n" + FormatTable(table);
}

std::string WriteMoment(const Explanation& explanation, int rank, Time at) {
  const Words words(explanation);
  const Program& program = explanation.plan.program(rank);
  for (int i = 0; i < static_cast<int>(program.size()); ++i) {
    const InstructionRef ref{rank, i};
    const Span& span = words.SpanOf(ref);
    if (LaneOf(program[static_cast<size_t>(i)].op) != Lane::kCompute) continue;
    if (span.start <= at && at < span.end) return WriteStart(explanation, ref);
  }
  for (const Idle& idle : explanation.idle[static_cast<size_t>(rank)]) {
    if (at < idle.when.start || at >= idle.when.end) continue;
    std::string text = "rank " + std::to_string(rank) + " is idle at " + words.InUnits(at) + ": " +
                       std::string(Name(idle.cause)) + ", " + words.Why(idle, rank) + ", from " +
                       words.At(idle.when.start) + " to " + words.At(idle.when.end) + ".\n";
    const bool stands = idle.cause == IdleCause::kStandstill;
    return text +
           (idle.next < 0 || stands ? "" : "\n" + WriteStart(explanation, {rank, idle.next}));
  }
  return "";
}

std::string WriteStart(const Explanation& explanation, InstructionRef at) {
  const Words words(explanation);
  const Waits waits(explanation.plan, explanation.costs, explanation.simulation.timeline);
  const Span& span = words.SpanOf(at);
  std::string text = words.Of(at) + ", instruction " + std::to_string(at.index) + " of rank " +
                     std::to_string(at.rank);
  if (span.start < 0) {
    const std::string stop =
        explanation.broken == nullptr ? "" : DescribeStop(*explanation.broken, at.rank);
    return text + ", never runs" + (stop.empty() ? "" : ": the rank " + stop) + ".\n";
  }
  text += ", runs from " + words.At(span.start) + " to " + words.InUnits(span.end) + ".\n";
  const Wait itself{at, span.start};
  if (const std::string idle = words.IdleBefore({&itself, 1}); !idle.empty()) {
    text += "Before it the rank is idle: " + idle + ".\n";
  }
  const std::vector<Wait> chain = waits.Back(at);
  if (chain.empty()) return text + "It waited for nothing.\n";
  Table table;
  table.columns = {"  waited for", ">from", ">until", "idle before"};
  const std::span<const Wait> shown = std::span(chain).first(std::min(chain.size(), kMostLinks));
  for (const Wait& wait : shown) {
    table.rows.push_back({"  " + words.On(wait.on, at.rank), words.At(words.SpanOf(wait.on).start),
                          words.At(wait.until), words.IdleBefore({&wait, 1})});
  }
  text += FormatTable(table);
  const std::span<const Wait> rest = std::span(chain).subspan(shown.size());
  if (rest.empty()) return text;
  const InstructionRef first = chain.back().on;
  const std::string idle = words.IdleBefore(rest);
  return text + "  ... and " + std::to_string(rest.size()) + " more, back to " +
         words.On(first, at.rank) + " at " + words.Lasting(words.SpanOf(first).start) +
         (idle.empty() ? "" : "; idle before these: " + idle) + "\n";
}

}  // namespace contraflow
