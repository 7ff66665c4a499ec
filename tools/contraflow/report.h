#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/files/json.h"
#include "compiler/plan/plan.h"
#include "schedules/report.h"

namespace contraflow {

/// Throws Error with the first findings if the plan is not sound.
void RequireSound(const Plan& plan, const std::string& path);

/// One kind of memory of a rank.
struct MemoryKind {
  std::string_view key;    ///< in JSON
  std::string_view title;  ///< in tables
  int64_t bytes = 0;
};

/// The kinds that are known, and their total last; those of the gradient and exchange arenas at
/// level buffer only.
std::vector<MemoryKind> MemoryKinds(const MemoryFigures& figures, Level level);

/// The object of `simulate --json` (the public contract), figures in the report's unit.
std::unique_ptr<JsonObject> ReportToJson(const Report& report);

/// An object as a document for --json: one line a member, and one for each element of an array.
std::string FormatJson(const Json& document);

/// What the letters of the formulas mean; stands below every table that prints one.
extern const std::string_view kFormulaLegend;

}  // namespace contraflow
