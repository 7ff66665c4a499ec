#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "compiler/files/file.h"
#include "compiler/files/plan_document.h"
#include "compiler/files/plan_io.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct DiffOptions {
  std::string left, right;
};

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

int Diff(const DiffOptions& options) {
  if (options.left == "-" && options.right == "-") {
    throw UsageError("only one of the two plans can be - (standard input)");
  }
  const Plan left = ReadPlanFile(options.left), right = ReadPlanFile(options.right);
  if (left == right) return kExitFine;
  std::string body = FormatEdits(Head(left), Head(right), "plan, field");
  // Costs that differ in what one line does not show.
  if (left.costs != right.costs && Head(left) == Head(right)) body += "@@ costs differ in detail\n";
  for (size_t rank = 0; rank < std::max(left.programs.size(), right.programs.size()); ++rank) {
    const std::string place = "rank " + std::to_string(rank) + ", ";
    body +=
        FormatEdits(Lines(left.programs, rank), Lines(right.programs, rank), place + "instruction");
    body += FormatEdits(Lines(left.slots, rank), Lines(right.slots, rank), place + "slot");
  }
  WriteFile("-", "--- " + options.left + "\n+++ " + options.right + "\n" + body);
  return kExitInput;
}

std::function<int()> AddDiff(CLI::App* app) {
  const auto options = std::make_shared<DiffOptions>();
  AddPlan(app, &options->left, "PLAN");
  AddPlan(app, &options->right, "OTHER");
  return [options] { return Diff(*options); };
}

}  // namespace

const Command kDiffCommand = {
    .name = "diff",
    .summary = "show what differs between two plans; exit 1 if anything does",
    .example = "contraflow diff plan.json other.json",
    .add = AddDiff,
};

}  // namespace contraflow
