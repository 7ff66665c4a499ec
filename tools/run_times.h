#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "compiler/json.h"
#include "compiler/plan.h"
#include "compiler/simulate.h"
#include "compiler/timeline.h"

namespace contraflow {

/// Time spent in the instructions of one kind.
struct KindTimes {
  int64_t count = 0;
  Time total = 0;

  double mean() const {
    return count == 0 ? 0 : static_cast<double>(total) / static_cast<double>(count);
  }
};

/// Where the time of one or more steps went.
struct RunTimes {
  std::map<Op, KindTimes> kinds;
  Time busy = 0;      ///< of the compute lanes: all but messages, and where instructions have lanes
                      ///< all-to-all and REDUCE
  Time capacity = 0;  ///< ranks times makespan
  int64_t steps = 0;

  double bubble_ratio() const {
    return capacity == 0 ? 0 : 1 - static_cast<double>(busy) / static_cast<double>(capacity);
  }
};

/// Adds a step.
void AddTimes(const Plan& plan, const Timeline& timeline, RunTimes* times);

/// Predicted times (of one step, if the plan has costs) against measured ones, kind by kind: how
/// often, how long each, and the share of the compute lanes' time, which compares across machines.
std::string FormatTimes(const Plan& plan, const std::optional<RunTimes>& predicted,
                        const RunTimes& measured);

/// The same as a member "kinds" and a member "bubble_ratio" of a document.
void TimesToJson(const Plan& plan, const std::optional<RunTimes>& predicted,
                 const RunTimes& measured, JsonObject* document);

}  // namespace contraflow
