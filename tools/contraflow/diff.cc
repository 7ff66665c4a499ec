#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/contraflow/cmd.h"
#include "tools/profile/gzip.h"
#include "tools/profile/profile.h"
#include "tools/profile/run_trace.h"
#include "tools/report/explanation.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct DiffOptions {
  std::string left, right;
  std::vector<std::string> more;  ///< traces of other ranks
  std::string update_costs;
  bool stat = false, json = false;
};

/// What a plan comes to, with the costs it has; nothing where it is not sound.
struct Figures {
  Unit unit = Unit::kUnit;
  Time makespan = 0;
  double bubble_ratio = 0;
  int activations = 0;
  int64_t bytes = 0, total = 0;
};

std::optional<Figures> FiguresOf(const Plan& plan) {
  if (!Verify(plan).empty()) return std::nullopt;
  const CostModel costs = CostsForPlan({}, plan);
  const Simulation run = Simulate(plan, costs, Keep::kFigures);
  Figures figures{.unit = costs.unit, .makespan = run.makespan, .bubble_ratio = run.bubble_ratio()};
  for (const RankFigures& rank : run.ranks) {
    figures.activations = std::max(figures.activations, rank.peak_activations);
    figures.bytes = std::max(figures.bytes, rank.peak_bytes);
  }
  if (!costs.memory) return figures;
  for (const MemoryFigures& rank : MemoryOf(plan, costs)) {
    figures.total = std::max(figures.total, rank.total());
  }
  return figures;
}

Json FiguresToJson(const std::optional<Figures>& figures) {
  if (!figures) return {{"sound", false}};
  return {{"sound", true},
          {"unit", Name(figures->unit)},
          {"makespan", TimeToJson(figures->makespan, figures->unit)},
          {"bubble_ratio", figures->bubble_ratio},
          {"peak_activations", figures->activations},
          {"peak_bytes", figures->bytes},
          {"total_bytes", figures->total}};
}

/// Time, bubbles and memory of both.
std::string FiguresTable(const std::optional<Figures>& was, const std::optional<Figures>& is) {
  if (!was || !is) {
    return std::string(!was && !is ? "neither plan is sound"
                       : !was      ? "the first plan is not sound"
                                   : "the second plan is not sound") +
           ", so there are no times to compare: see contraflow verify\n";
  }
  Table table;
  table.columns = {"", ">was", ">is", ">change"};
  const auto row = [&](const char* title, std::string left, std::string right,
                       const std::string& change) {
    table.rows.push_back({title, std::move(left), std::move(right), change});
  };
  row("makespan", FormatWithUnit(was->makespan, was->unit), FormatWithUnit(is->makespan, is->unit),
      was->unit == is->unit ? FormatChange(was->makespan, is->makespan) : "");
  row("bubble ratio", FormatPercent(was->bubble_ratio), FormatPercent(is->bubble_ratio), "");
  row("activations", std::to_string(was->activations), std::to_string(is->activations),
      FormatChange(was->activations, is->activations));
  const auto bytes = [&](const char* title, int64_t left, int64_t right) {
    if (left == 0 && right == 0) return;
    row(title, FormatBytes(left), FormatBytes(right), FormatChange(left, right));
  };
  bytes("activation bytes", was->bytes, is->bytes);
  bytes("total bytes", was->total, is->total);
  return FormatTable(table);
}

/// The fields above the programs, each a name and its text.
std::vector<std::string> Head(const Plan& plan) {
  std::vector<std::string> lines = {
      "schedule " + plan.schedule,
      "level " + std::string(Name(plan.level)),
      "ranks " + std::to_string(plan.ranks),
      "stages " + std::to_string(plan.stages),
      "micro-batches " + std::to_string(plan.microbatches),
      "data_parallel " + std::to_string(plan.data_parallel),
      "costs " + (plan.costs ? DescribeCosts(*plan.costs) : "none"),
  };
  if (plan.expert_parallel > 1) {
    lines.push_back("expert_parallel " + std::to_string(plan.expert_parallel));
  }
  if (plan.layers > 0) lines.push_back("layers " + std::to_string(plan.layers));
  if (plan.provenance && plan.costs) {
    std::string line = "provenance ";
    WriteJson(ProvenanceToJson(*plan.provenance, plan.costs->unit), &line);
    lines.push_back(std::move(line));
  }
  for (size_t r = 0; r < plan.routes.size(); ++r) {
    std::string line = "route " + std::to_string(r) + ": ranks";
    for (const int rank : plan.routes[r].ranks) line += " " + std::to_string(rank);
    line += "; micro-batches";
    for (const int m : plan.routes[r].microbatches) line += " " + std::to_string(m);
    lines.push_back(std::move(line));
  }
  return lines;
}

/// The instructions or slots of a rank; none if the plan has no such rank.
template <typename Entry>
std::vector<std::string> Lines(const std::vector<std::vector<Entry>>& ranks, size_t rank) {
  std::vector<std::string> lines;
  if (rank >= ranks.size()) return lines;
  for (const Entry& entry : ranks[rank]) lines.push_back(ToString(entry));
  return lines;
}

/// Lines of edits that begin with the mark, "+" or "-".
int64_t Marked(const std::string& edits, char mark) {
  int64_t count = edits.starts_with(mark) ? 1 : 0;
  for (size_t at = 0; at + 1 < edits.size(); ++at) {
    count += edits[at] == '\n' && edits[at + 1] == mark;
  }
  return count;
}

/// What differs on one rank.
struct RankEdits {
  size_t rank = 0;
  std::string instructions, slots;
};

std::vector<RankEdits> EditsOfRanks(const Plan& left, const Plan& right) {
  std::vector<RankEdits> edits;
  for (size_t rank = 0; rank < std::max(left.programs.size(), right.programs.size()); ++rank) {
    const std::string place = "rank " + std::to_string(rank) + ", ";
    RankEdits one{
        rank,
        FormatEdits(Lines(left.programs, rank), Lines(right.programs, rank), place + "instruction"),
        FormatEdits(Lines(left.slots, rank), Lines(right.slots, rank), place + "slot")};
    if (!one.instructions.empty() || !one.slots.empty()) edits.push_back(std::move(one));
  }
  return edits;
}

Json DiffToJson(const Plan& left, const Plan& right, const std::vector<RankEdits>& edits) {
  Json ranks = Json::array();
  for (const RankEdits& rank : edits) {
    ranks.push_back({{"rank", rank.rank},
                     {"removed", Marked(rank.instructions, '-')},
                     {"added", Marked(rank.instructions, '+')}});
  }
  return {{"format", "contraflow-diff"},
          {"version", 1},
          {"equal", left == right},
          {"was", FiguresToJson(FiguresOf(left))},
          {"is", FiguresToJson(FiguresOf(right))},
          {"ranks", std::move(ranks)}};
}

/// The text of a file if it is a trace.
std::optional<std::string> TraceIn(const std::string& path) {
  // What can be read but once is a plan.
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return std::nullopt;
  std::string head(kTraceHead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  if (!IsGzip(head) && !LooksLikeTrace(head)) return std::nullopt;
  std::string text = ReadFile(path, kMostTraceBytes);
  if (IsGzip(text)) text = Gunzip(text, kMostTraceBytes, path);
  return LooksLikeTrace(text) ? std::optional(std::move(text)) : std::nullopt;
}

/// A plan and the traces of a run of it.
int DiffRun(const DiffOptions& options, std::string first) {
  std::vector<TraceText> traces;
  traces.push_back({options.right, std::move(first)});
  for (const std::string& path : options.more) {
    std::optional<std::string> text = TraceIn(path);
    if (!text) throw Error(path + ": is no trace; several files are traces of one run");
    traces.push_back({path, std::move(*text)});
  }
  if (options.stat) throw UsageError("--stat: is for two plans");
  const Plan plan = ReadPlanFile(options.left);
  RequireSound(plan, options.left);
  if (plan.level == Level::kCompute) {
    throw Error(options.left +
                ": is at level compute, and nothing runs it; give the plan that ran");
  }
  const CostModel costs = CostsForPlan({}, plan);
  const Explanation predicted = ExplainRun(plan, costs, Simulate(plan, costs));
  const Explanation measured = ExplainRun(plan, costs, RunOf(plan, costs, ReadRun(plan, traces)));
  if (!options.update_costs.empty()) {
    ProfileOptions profile{.plan = &plan, .mean = true};
    std::vector<FileSamples> files;
    for (const TraceText& trace : traces) {
      files.push_back(ReadProfileText(trace.text, trace.place, profile));
    }
    WriteFile(options.update_costs, WriteCosts(CostsOfSamples(files, profile).costs));
  }
  WriteFile("-", options.json ? FormatJson(RunsToJson(predicted, measured))
                              : DescribePlan(plan) + "\n" + CompareRuns(predicted, measured));
  return kExitFine;
}

int Diff(const DiffOptions& options) {
  if (options.left == "-" && options.right == "-") {
    throw UsageError("only one of the two plans can be - (standard input)");
  }
  RefuseOverwrite({"--update-costs", options.update_costs},
                  {{"the plan", options.left}, {"the trace", options.right}});
  if (std::optional<std::string> trace = TraceIn(options.right)) {
    return DiffRun(options, std::move(*trace));
  }
  if (!options.update_costs.empty()) throw UsageError("--update-costs: needs a trace, not a plan");
  if (!options.more.empty()) throw UsageError("diff: takes two plans, or a plan and its traces");
  const Plan left = ReadPlanFile(options.left), right = ReadPlanFile(options.right);
  const int code = left == right ? kExitFine : kExitInput;
  if (code == kExitFine && !options.json) return code;
  const std::vector<RankEdits> edits = EditsOfRanks(left, right);
  if (options.json) {
    WriteFile("-", FormatJson(DiffToJson(left, right, edits)));
    return code;
  }
  std::string text = "--- " + options.left + "\n+++ " + options.right + "\n" +
                     FiguresTable(FiguresOf(left), FiguresOf(right));
  if (options.stat) {
    for (const RankEdits& rank : edits) {
      text += "rank " + std::to_string(rank.rank) + ": " +
              std::to_string(Marked(rank.instructions, '-')) + " removed, " +
              std::to_string(Marked(rank.instructions, '+')) + " added\n";
    }
    WriteFile("-", text);
    return code;
  }
  text += FormatEdits(Head(left), Head(right), "plan, field");
  // Costs that differ in what one line does not show.
  if (left.costs != right.costs && Head(left) == Head(right)) text += "@@ costs differ in detail\n";
  for (const RankEdits& rank : edits) text += rank.instructions + rank.slots;
  WriteFile("-", text);
  return code;
}

std::function<int()> AddDiff(CLI::App* app) {
  const auto options = std::make_shared<DiffOptions>();
  AddPlan(app, &options->left, "PLAN");
  AddPlan(app, &options->right, "OTHER")
      ->description(
          "another plan; or the trace of a run of this one, as contraflow-run\n--trace writes it");
  AddTexts(app, "TRACE", &options->more, "where each rank has a trace of its own, the others");
  AddFlag(app, "--stat", &options->stat, "only the figures, and how much moved on each rank");
  AddText(app, "--update-costs", &options->update_costs, "COSTS",
          "write the costs that the trace has, for compile and simulate");
  AddJson(app, &options->json);
  return [options] { return Diff(*options); };
}

}  // namespace

const Command kDiffCommand = {
    .name = "diff",
    .summary = "compare two plans (exit 1 if they differ), or a plan with a run of it",
    .example = "contraflow diff plan.json other.json",
    .add = AddDiff,
};

}  // namespace contraflow
