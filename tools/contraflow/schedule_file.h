#pragma once

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

/// Says the notes of a CSV on stderr.
void SayNotes(const TorchCsvNotes& notes);

}  // namespace contraflow
