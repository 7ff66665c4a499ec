#include "tools/contraflow/schedule_file.h"

#include <optional>
#include <utility>

#include "compiler/files/file.h"
#include "compiler/files/plan_io.h"
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

void SayNotes(const TorchCsvNotes& notes) {
  for (const std::string& note : notes.notes) Say("contraflow: note: " + note);
}

}  // namespace contraflow
