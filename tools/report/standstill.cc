#include "tools/report/standstill.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compiler/files/plan_document.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

/// Findings that are printed.
constexpr size_t kMostFindings = 10;

const StoppedRank* StopOf(const BrokenRun& broken, int rank) {
  const auto stop = std::ranges::find(broken.stops, rank, &StoppedRank::rank);
  return stop == broken.stops.end() ? nullptr : &*stop;
}

std::string WaitsFor(const StoppedRank& stop) {
  if (!stop.lacks.empty()) return stop.lacks + ", which it lacks";
  return stop.on_rank < 0 ? "what never comes" : "rank " + std::to_string(stop.on_rank);
}

std::string Standing(const StoppedRank& stop) {
  return std::to_string(stop.index) + " (" + stop.text + ")";
}

/// Instruction that would make the value that a SEND takes, if the program has it nowhere; else "".
std::string Lacking(const Plan& plan, const Program& program, const Instruction& send) {
  const bool forward = send.op == Op::SEND_F;
  if (!forward && send.op != Op::SEND_B) return "";
  const Instruction maker{
      .op = forward ? Op::F : Op::B, .stage = send.stage, .microbatch = send.microbatch};
  const bool made = std::ranges::any_of(program, [&](const Instruction& i) {
    if (forward) {
      return (HasForward(i.op) || (i.layer >= 0 && EndsForward(plan, i))) &&
             i.stage == maker.stage && i.microbatch == maker.microbatch;
    }
    return (HasBackward(i.op) || i.op == Op::ATTN_B) && BackStage(i) == maker.stage &&
           BackMicrobatch(i) == maker.microbatch;
  });
  return made ? "" : ToString(maker);
}

/// Finds the place where rank r stands, if it does: in the cycle, else at its wait, else at the
/// first instruction that never runs.
std::optional<StoppedRank> FindStop(const Plan& plan, const Standstill& standstill,
                                    const Timeline& timeline, int r) {
  const Program& program = plan.program(r);
  const std::vector<Span>& spans = timeline.ranks[static_cast<size_t>(r)];
  const auto blocked = std::ranges::find(standstill.cycle, r, &BlockedAt::rank);
  const auto waiting = std::ranges::find(standstill.waits, r, &BlockedAt::rank);
  const auto never = std::ranges::find(spans, Time{-1}, &Span::start);
  StoppedRank stop{.rank = r};
  if (blocked != standstill.cycle.end()) {
    stop.in_cycle = true;
    stop.index = blocked->index;
    stop.on_rank = blocked->on_rank;
  } else if (waiting != standstill.waits.end()) {
    stop.index = waiting->index;
    stop.on_rank = waiting->on_rank;
  } else if (never != spans.end()) {
    stop.index = static_cast<int>(never - spans.begin());
    const Instruction& i = program[static_cast<size_t>(stop.index)];
    if (IsMessage(i.op)) stop.on_rank = i.peer;
  } else {
    return std::nullopt;
  }
  stop.text = ToString(program[static_cast<size_t>(stop.index)]);
  stop.lacks = Lacking(plan, program, program[static_cast<size_t>(stop.index)]);
  if (!stop.lacks.empty()) stop.on_rank = -1;
  for (size_t i = 0; i < program.size(); ++i) {
    if (!IsMessage(program[i].op)) stop.since = std::max(stop.since, spans[i].end);
  }
  return stop;
}

}  // namespace

std::optional<BrokenRun> RunBroken(const Plan& plan, const CostModel& costs,
                                   const std::string& path) {
  BrokenRun broken{.findings = Verify(plan), .cycle = {}, .simulation = {}, .stops = {}};
  if (broken.findings.empty()) return std::nullopt;
  std::optional<Standstill> standstill = FindStandstill(plan);
  // A plan of the wrong shape cannot run at all.
  if (!standstill) RequireSound(plan, path);
  broken.simulation = SimulateUpTo(plan, costs, standstill->next);
  for (int r = 0; r < plan.ranks; ++r) {
    std::optional<StoppedRank> stop = FindStop(plan, *standstill, broken.simulation.timeline, r);
    if (stop) broken.stops.push_back(std::move(*stop));
  }
  broken.cycle = std::move(standstill->cycle);
  return broken;
}

std::vector<std::string> FindingLines(const std::vector<Finding>& findings, const Plan& plan) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(findings.size(), kMostFindings); ++i) {
    lines.push_back(findings[i].check + ": " + ToString(findings[i], plan));
  }
  if (findings.size() > kMostFindings) {
    lines.push_back("and " + std::to_string(findings.size() - kMostFindings) +
                    " more; contraflow verify lists them");
  }
  return lines;
}

std::string WriteStandstill(const BrokenRun& broken, const Plan& plan, Unit unit) {
  std::string text =
      "not sound: " + Counted(static_cast<int64_t>(broken.findings.size()), "finding") +
      "; it runs up to " + FormatWithUnit(broken.simulation.makespan, unit) + ".\n";
  for (const std::string& line : FindingLines(broken.findings, plan)) text += "  " + line + "\n";
  if (broken.stops.empty()) return text + "Every rank gets to its end.\n";
  Table table;
  table.columns = {">rank", "stands at", ">since", "waits for", ""};
  for (const StoppedRank& stop : broken.stops) {
    table.rows.push_back({std::to_string(stop.rank), Standing(stop), FormatFigure(stop.since, unit),
                          WaitsFor(stop), stop.in_cycle ? "in the cycle" : ""});
  }
  return text + "\n" + FormatTable(table);
}

std::string DescribeStop(const BrokenRun& broken, int rank) {
  const StoppedRank* const stop = StopOf(broken, rank);
  if (stop == nullptr) return "";
  return "stands at " + Standing(*stop) + " and waits for " + WaitsFor(*stop) +
         (stop->in_cycle ? ", in the cycle" : "");
}

void AddStandstill(const BrokenRun& broken, const Plan& plan, Unit unit, Json* document) {
  Json findings = Json::array(), cycle = Json::array();
  for (const Finding& finding : broken.findings) {
    findings.push_back({{"check", finding.check},
                        {"rank", finding.rank},
                        {"index", finding.index},
                        {"message", finding.message}});
  }
  const auto row = [&](const StoppedRank& stop) {
    Json object = {
        {"index", stop.index}, {"instruction", stop.text}, {"since", TimeToJson(stop.since, unit)}};
    if (stop.on_rank >= 0) object["on_rank"] = stop.on_rank;
    if (!stop.lacks.empty()) object["lacks"] = stop.lacks;
    return object;
  };
  for (const BlockedAt& at : broken.cycle) {
    const StoppedRank* const stop = StopOf(broken, at.rank);
    cycle.push_back(
        {{"rank", at.rank},
         {"index", at.index},
         {"instruction", ToString(plan.program(at.rank)[static_cast<size_t>(at.index)])},
         {"on_rank", at.on_rank},
         {"since", TimeToJson(stop->since, unit)}});
  }
  for (Json& rank : (*document)["ranks"]) {
    const StoppedRank* const stop = StopOf(broken, rank["rank"]);
    if (stop != nullptr) rank["stands"] = row(*stop);
  }
  (*document)["findings"] = std::move(findings);
  (*document)["cycle"] = std::move(cycle);
}

}  // namespace contraflow
