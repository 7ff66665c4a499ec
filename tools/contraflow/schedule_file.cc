#include "tools/contraflow/schedule_file.h"

#include <optional>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/terminal.h"
#include "tools/report/promise.h"

namespace contraflow {

ScheduleFile ReadScheduleFile(const std::string& path) {
  ScheduleFile read;
  if (IsFolder(path)) {
    read.plan = ReadPlanFile(path);
    return read;
  }
  InputFile file(path, kMaxPlanBytes);
  read.csv = LooksLikeTorchCsv(file.Beginning()) || path.ends_with(".csv");
  if (!read.csv) {
    read.plan = ReadPlanFile(&file);
    return read;
  }
  std::string text;
  file.ReadRest(&text);
  read.plan = ReadTorchCsv(text, file.name(), &read.notes);
  return read;
}

ScheduleFile ReadTimedSchedule(const std::string& path) {
  ScheduleFile read = ReadScheduleFile(path);
  if (!read.csv) return read;
  read.plan.semantics = PromiseOf(read.plan).needs.value_or(Semantics::kEdge);
  SayNotes(read.notes);
  if (const std::optional<Finding> loss = LossOutOfTurn(read.plan)) {
    Say("contraflow: note: " + path + ": " + CsvPlace(read.plan, loss->rank, loss->index) + ": " +
        loss->message);
  }
  return read;
}

CostModel CostsOf(const CostsOption& option, const ScheduleFile& file,
                  std::vector<std::string>* assumed) {
  std::vector<std::string> said;
  CostModel costs = CostsForPlan(option, file.plan, &said);
  // That warning is about b and w alone.
  if (file.notes.forwards_alone) return CostsOfForwards(std::move(costs), "the CSV");
  if (assumed == nullptr) Warn(said);
  if (assumed != nullptr) *assumed = std::move(said);
  return costs;
}

void AddQueues(CLI::App* app, std::string* semantics) {
  AddChoice(app, "--semantics", semantics, "rank|pair|edge|buffered",
            "queues in which messages wait for those before them: one a rank, one for\n"
            "each pair of ranks, or one for each directed edge, which is the same here\n"
            "as unlimited buffering (default: edge)");
}

std::optional<Semantics> AskedQueues(const std::string& semantics, Plan* plan) {
  if (semantics.empty()) return std::nullopt;
  const Semantics queues = ReadOption([&] { return ParseSemantics(semantics); });
  if (plan->level > Level::kComm) {
    throw UsageError(
        "`semantics`: must be left out for a plan with components, whose messages wait "
        "on edges");
  }
  plan->semantics = queues;
  return queues;
}

void UseQueues(Semantics queues, Plan* plan, CostModel* costs) {
  costs->comm.queues = queues;
  if (plan->level == Level::kCompute)
    *plan = Lower(std::move(*plan), *costs, {.target = Level::kComm});
}

void SayNotes(const TorchCsvNotes& notes) {
  for (const std::string& note : notes.notes) Say("contraflow: note: " + note);
}

}  // namespace contraflow
