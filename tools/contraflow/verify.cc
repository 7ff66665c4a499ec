#include "compiler/verify/verify.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/contraflow/cmd.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct VerifyOptions {
  std::string plan;
  bool json = false;
};

std::string FindingsJson(const std::vector<Finding>& findings) {
  Json array = Json::array();
  for (const Finding& finding : findings) {
    Json row = Json::object();
    row["check"] = finding.check;
    row["rank"] = finding.rank;
    row["index"] = finding.index;
    row["message"] = WithFlags(finding.message);
    array.push_back(std::move(row));
  }
  Json document = Json::object();
  document["ok"] = findings.empty();
  document["findings"] = std::move(array);
  return FormatJson(document);
}

/// The instructions around a finding, with its own marked.
std::string Surroundings(const Plan& plan, const Finding& finding) {
  if (finding.rank < 0 || finding.index < 0) return "";
  const Program& program = plan.program(finding.rank);
  Table table;
  table.columns = {">", "", ""};
  const int last = std::min(finding.index + 2, static_cast<int>(program.size()) - 1);
  for (int i = std::max(0, finding.index - 2); i <= last; ++i) {
    table.rows.push_back({"    " + std::to_string(i), ToString(program[static_cast<size_t>(i)]),
                          i == finding.index ? "<-- here" : ""});
  }
  const std::string text = FormatTable(table);
  return text.substr(text.find('\n') + 1);  // The empty heading.
}

std::string FindingsText(const Plan& plan, const std::vector<Finding>& findings,
                         const std::string& path) {
  const size_t count = findings.size();
  std::string text =
      path + ": not sound, " + std::to_string(count) + (count == 1 ? " finding\n" : " findings\n");
  for (const Finding& finding : findings) {
    text += "\n" + finding.check + ": " + WithFlags(ToString(finding, plan)) + "\n" +
            Surroundings(plan, finding);
  }
  return text;
}

std::string ProofText(const Plan& plan, const std::string& path) {
  int64_t messages = 0;
  for (const Program& program : plan.programs) {
    messages += std::count_if(program.begin(), program.end(),
                              [](const Instruction& i) { return WorkOf(i.op) == Work::kSend; });
  }
  const auto count = [](int64_t n, const std::string& noun) {
    return FormatCount(n) + " " + noun + (n == 1 ? "" : "s");
  };
  std::string text = "ok: " + path + ": " + count(InstructionCount(plan), "instruction") + " on " +
                     count(plan.ranks, "rank") + ": every micro-batch complete and in order";
  if (plan.level != Level::kCompute) {
    text += "; " + count(messages, "message") +
            " matched one to one; no deadlock, even where every transfer is a rendezvous";
  }
  return text + "\n";
}

int RunVerify(const VerifyOptions& options) {
  std::optional<Progress> progress("proving " + options.plan);
  const Plan plan = ReadPlanFile(options.plan);
  const std::vector<Finding> findings = Verify(plan);
  progress.reset();
  if (options.json) {
    WriteFile("-", FindingsJson(findings));
  } else {
    WriteFile("-", findings.empty() ? ProofText(plan, options.plan)
                                    : FindingsText(plan, findings, options.plan));
  }
  return findings.empty() ? kExitFine : kExitInput;
}

std::function<int()> AddVerify(CLI::App* app) {
  const auto options = std::make_shared<VerifyOptions>();
  AddPlan(app, &options->plan);
  AddJson(app, &options->json);
  return [options] { return RunVerify(*options); };
}

}  // namespace

const Command kVerifyCommand = {
    .name = "verify",
    .summary = "prove a plan complete, in order and free of deadlock, or list every flaw",
    .example = "contraflow verify plan.json",
    .add = AddVerify,
};

}  // namespace contraflow
