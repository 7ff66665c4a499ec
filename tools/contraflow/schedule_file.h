#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "tools/cli/spec_options.h"
#include "tools/interop/interop.h"

namespace contraflow {

/// A plan file, or a schedule in PyTorch's CSV.
struct ScheduleFile {
  Plan plan;
  bool csv = false;
  TorchCsvNotes notes;
};

/// Reads either, whatever it is called.
ScheduleFile ReadScheduleFile(const std::string& path);

/// Reads a schedule for its times. A plan of a CSV has the semantics that its messages need, and
/// notes about the CSV go to stderr.
ScheduleFile ReadTimedSchedule(const std::string& path);

/// The costs of either, as CostsForPlan has them; no backward costs anything where it was added.
CostModel CostsOf(const CostsOption& option, const ScheduleFile& file,
                  std::vector<std::string>* assumed);

/// Adds --semantics, the queues in which messages wait.
void AddQueues(CLI::App* app, std::string* semantics);

/// Returns the queues that were asked for, under which the plan must be sound from now on. Throws
/// UsageError for a plan with components.
std::optional<Semantics> AskedQueues(const std::string& semantics, Plan* plan);
/// Has messages of a sound plan wait in these queues.
void UseQueues(Semantics queues, Plan* plan, CostModel* costs);

/// Says the notes of a CSV on stderr.
void SayNotes(const TorchCsvNotes& notes);

}  // namespace contraflow
