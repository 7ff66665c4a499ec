#include "compiler/verify/verify.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/contraflow/cmd.h"
#include "tools/contraflow/schedule_file.h"
#include "tools/interop/interop.h"
#include "tools/report/progress.h"
#include "tools/report/promise.h"
#include "tools/report/report.h"
#include "tools/report/text.h"

namespace contraflow {
namespace {

struct VerifyOptions {
  std::vector<std::string> files;
  std::string semantics;
  bool json = false, quiet = false;
};

/// A file and its findings.
struct Verdict {
  std::string path;
  std::string unreadable;  ///< why there is nothing to prove
  bool csv = false;
  Plan plan;
  TorchCsvNotes notes;
  /// Semantics that were asked for, or that the plan needs.
  std::optional<Semantics> semantics;
  std::vector<Finding> findings;
  std::string circle;  ///< under stricter semantics; CircleText

  bool sound() const { return findings.empty() && unreadable.empty(); }
};

Verdict Judge(const std::string& path, const std::optional<Semantics>& asked) {
  Verdict verdict;
  verdict.path = path;
  verdict.semantics = asked;
  ScheduleFile file = ReadScheduleFile(path);
  verdict.plan = std::move(file.plan);
  verdict.csv = file.csv;
  verdict.notes = std::move(file.notes);
  if (asked) {
    verdict.findings = Verify(verdict.plan, *asked);
  } else if (verdict.csv || verdict.plan.semantics != Semantics::kRank) {
    Promise promise = PromiseOf(verdict.plan);
    verdict.semantics = promise.needs;
    if (promise.needs && promise.needs != Semantics::kRank) verdict.circle = CircleText(promise);
    verdict.findings = std::move(promise.findings);
  } else {
    verdict.semantics = Semantics::kRank;
    verdict.findings = Verify(verdict.plan);
  }
  if (verdict.csv) {
    if (std::optional<Finding> found = LossOutOfTurn(verdict.plan)) {
      verdict.findings.push_back(*std::move(found));
    }
  }
  return verdict;
}

/// Judges one file among several: a fault of one keeps no other from its proof.
Verdict JudgeOneOf(const std::string& path, const std::optional<Semantics>& asked) {
  try {
    return Judge(path, asked);
  } catch (const Error& error) {
    Verdict verdict;
    verdict.path = path;
    verdict.unreadable = WithFlags(error.what());
    return verdict;
  }
}

Json VerdictJson(const Verdict& verdict) {
  if (!verdict.unreadable.empty()) {
    return {{"ok", false}, {"findings", Json::array()}, {"error", verdict.unreadable}};
  }
  Json array = Json::array();
  for (const Finding& finding : verdict.findings) {
    Json row = Json::object();
    row["check"] = finding.check;
    row["rank"] = finding.rank;
    row["index"] = finding.index;
    if (verdict.csv && finding.index >= 0) {
      row["place"] = CsvPlace(verdict.plan, finding.rank, finding.index);
    }
    row["message"] = WithFlags(finding.message);
    array.push_back(std::move(row));
  }
  Json document = Json::object();
  document["ok"] = verdict.findings.empty();
  document["findings"] = std::move(array);
  if (verdict.semantics && verdict.plan.level != Level::kCompute) {
    document["semantics"] = Name(*verdict.semantics);
  }
  if (!verdict.circle.empty()) document["stricter"] = verdict.circle;
  if (!verdict.notes.notes.empty()) document["notes"] = verdict.notes.notes;
  return document;
}

/// The instructions around a finding, with its own marked.
std::string Surroundings(const Verdict& verdict, const Finding& finding) {
  if (finding.rank < 0 || finding.index < 0) return "";
  const Plan& plan = verdict.plan;
  const Program& program = plan.program(finding.rank);
  Table table;
  table.columns = {">", "", ""};
  const int last = std::min(finding.index + 2, static_cast<int>(program.size()) - 1);
  for (int i = std::max(0, finding.index - 2); i <= last; ++i) {
    table.rows.push_back(
        {"    " + (verdict.csv ? CsvPlace(plan, finding.rank, i) : std::to_string(i)),
         ToString(program[static_cast<size_t>(i)]), i == finding.index ? "<-- here" : ""});
  }
  return FormatTable(table);
}

std::string FindingsText(const Verdict& verdict) {
  const size_t count = verdict.findings.size();
  std::string text = verdict.path + ": not sound, " + std::to_string(count) +
                     (count == 1 ? " finding\n" : " findings\n");
  for (const Finding& finding : verdict.findings) {
    text += "\n" + finding.check + ": " + WithFlags(ToString(finding, verdict.plan)) + "\n" +
            Surroundings(verdict, finding);
  }
  return text;
}

std::string ProofText(const Verdict& verdict) {
  const Plan& plan = verdict.plan;
  const auto count = [](int64_t n, const std::string& noun) {
    return FormatCount(n) + " " + noun + (n == 1 ? "" : "s");
  };
  const bool only = !verdict.circle.empty();
  std::string text = (only ? "ok only " + std::string(QueuesOf(*verdict.semantics)) : "ok") + ": " +
                     verdict.path + ": " + count(InstructionCount(plan), "instruction") + " on " +
                     count(plan.ranks, "rank") + ": every micro-batch complete and in order";
  if (plan.level != Level::kCompute) {
    text += "; " + count(MessageCount(plan), "message") + " matched one to one; no deadlock";
    text += *verdict.semantics == Semantics::kRank ? ", even where every transfer is a rendezvous"
            : only                                 ? " there"
                   : " " + std::string(QueuesOf(*verdict.semantics));
  } else if (verdict.csv) {
    text += "; there are no messages: import makes them";
  }
  if (only) {
    // NCCL has a queue for each pair of ranks.
    const bool nccl = *verdict.semantics != Semantics::kPair;
    text += std::string("\nit may hang elsewhere") + (nccl ? ", also over NCCL: " : ": ") +
            verdict.circle;
  }
  return text + "\n";
}

/// One file: its document or text. Several: a document with one entry each, or their texts.
int RunVerify(const VerifyOptions& options) {
  std::optional<Semantics> asked;
  if (!options.semantics.empty()) asked = ParseSemantics(options.semantics);
  bool sound = true;
  Json files = Json::array();
  for (const std::string& path : options.files) {
    std::optional<ProgressLine> progress("proving " + path);
    const Verdict verdict = options.files.size() > 1 ? JudgeOneOf(path, asked) : Judge(path, asked);
    progress.reset();
    sound &= verdict.sound();
    if (!options.json) {
      SayNotes(verdict.notes);
      if (options.quiet && verdict.sound()) continue;
      Print(!verdict.unreadable.empty() ? verdict.unreadable + "\n"
            : verdict.sound()           ? ProofText(verdict)
                                        : FindingsText(verdict));
      continue;
    }
    Json document = VerdictJson(verdict);
    if (options.files.size() > 1) document["file"] = path;
    files.push_back(std::move(document));
  }
  if (options.json) {
    Json document = files[0];
    if (options.files.size() > 1) document = {{"ok", sound}, {"files", std::move(files)}};
    WriteFile("-", FormatJson("verify", document));
  }
  return sound ? kExitFine : kExitInput;
}

std::function<int()> AddVerify(CLI::App* app) {
  const auto options = std::make_shared<VerifyOptions>();
  app->add_option("PLAN", options->files,
                  "plan files or folders, or PyTorch's CSV, proven by its own messages;\n"
                  "- is standard input")
      ->type_name("")
      ->required();
  AddChoice(app, "--semantics", &options->semantics, "rank|pair|edge|buffered",
            "what the network promises: one in-order queue a rank, in which every\n"
            "message is a rendezvous; one for each pair of ranks; one for each directed\n"
            "edge; or unlimited buffering (default: rank; of an imported schedule the\n"
            "strictest under which it is sound)");
  AddJson(app, &options->json);
  AddQuiet(app, &options->quiet);
  AddVerbose(app, kSayProgress);
  return [options] { return RunVerify(*options); };
}

}  // namespace

const Command kVerifyCommand = {
    .name = "verify",
    .summary =
        "prove plans and PyTorch schedules complete, in order and free of deadlock, or list every "
        "flaw",
    .example = "contraflow verify plan.json",
    .add = AddVerify,
};

}  // namespace contraflow
