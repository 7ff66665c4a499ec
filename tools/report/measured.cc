#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "compiler/files/plan_document.h"
#include "tools/report/explanation.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Total time of one kind of instruction.
struct OpTimes {
  int64_t count = 0;
  Time predicted = 0, measured = 0;
};

/// Times by name, compute before all-to-all before messages; of a message its SEND.
std::map<Op, OpTimes> TimesOfOps(const Explanation& predicted, const Explanation& measured) {
  std::map<Op, OpTimes> ops;
  const Plan& plan = predicted.plan;
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      const Op op = plan.programs[r][i].op;
      if (IsRecv(op)) continue;
      const auto length = [&](const Explanation& run) {
        const Span& span = run.simulation.timeline.ranks[r][i];
        return span.end - span.start;
      };
      OpTimes& times = ops[op];
      ++times.count;
      times.predicted += length(predicted);
      times.measured += length(measured);
    }
  }
  return ops;
}

}  // namespace

std::string CompareRuns(const Explanation& predicted, const Explanation& measured) {
  const Unit unit = predicted.costs.unit;
  const Simulation& was = predicted.simulation;
  const Simulation& is = measured.simulation;
  const bool components = predicted.plan.layers > 0;
  const TimeScale scale(std::max(was.makespan, is.makespan), unit);
  const auto time = [&](Time ticks) { return scale.Of(ticks); };
  const std::string change = FormatChange(was.makespan, is.makespan);
  std::string text = "makespan: predicted " + FormatWithUnit(was.makespan, unit) + ", measured " +
                     FormatWithUnit(is.makespan, unit) +
                     (change.empty() ? "" : " (" + change + ")") + "; " + IdleTitle(components) +
                     ": predicted " + FormatPercent(was.bubble_ratio()) + ", measured " +
                     FormatPercent(is.bubble_ratio()) + "\n\n";
  Table ranks;
  ranks.columns = {
      ">rank",    ">busy", ">measured", ">change", components ? ">compute idle" : ">bubble",
      ">measured"};
  size_t slowest = 0;
  double most = -1;
  for (size_t r = 0; r < was.ranks.size(); ++r) {
    const RankFigures& left = was.ranks[r];
    const RankFigures& right = is.ranks[r];
    ranks.rows.push_back({std::to_string(r), time(left.busy), time(right.busy),
                          FormatChange(left.busy, right.busy), time(left.bubble),
                          time(right.bubble)});
    const double ratio =
        static_cast<double>(right.busy) / static_cast<double>(std::max<Time>(left.busy, 1));
    if (ratio > most) slowest = r, most = ratio;
  }
  text += FormatTable(ranks) + "slowest against the prediction: rank " + std::to_string(slowest) +
          "\n\n";
  Table ops;
  ops.columns = {"operation", ">count", ">mean", ">measured", ">change"};
  for (const auto& [op, times] : TimesOfOps(predicted, measured)) {
    ops.rows.push_back({std::string(Name(op)), FormatCount(times.count),
                        FormatFigure(times.predicted / times.count, unit),
                        FormatFigure(times.measured / times.count, unit),
                        FormatChange(times.predicted, times.measured)});
  }
  return text + FormatTable(ops) + "\nidle time, measured, by cause:\n\n" + CauseTable(measured);
}

Json RunsToJson(const Explanation& predicted, const Explanation& measured, int steps) {
  const Unit unit = predicted.costs.unit;
  Json ops = Json::array();
  for (const auto& [op, times] : TimesOfOps(predicted, measured)) {
    ops.push_back({{"op", Name(op)},
                   {"count", times.count},
                   {"predicted", TimeToJson(times.predicted / times.count, unit)},
                   {"measured", TimeToJson(times.measured / times.count, unit)}});
  }
  const auto run = [&](const Explanation& explanation) {
    Json object = ExplanationToJson(explanation);
    for (const char* const key : {"schedule", "unit", "sound", "sensitivity"}) {
      object.erase(key);
    }
    for (Json& rank : object["ranks"]) {
      const auto r = rank["rank"].get<size_t>();
      rank["busy"] = TimeToJson(explanation.simulation.ranks[r].busy, unit);
    }
    return object;
  };
  return {{"schedule", predicted.plan.schedule},
          {"unit", Name(unit)},
          {"steps", steps},
          {"predicted", run(predicted)},
          {"measured", run(measured)},
          {"operations", std::move(ops)}};
}

}  // namespace contraflow
