#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow {

/// Called after every pass with its name and the plan it made.
using PassObserver = std::function<void(std::string_view pass, const Plan& plan)>;

/// Names of the passes, in order.
std::span<const std::string_view> PassNames();

/// Target level of a plan, and the limits for lowering it.
struct LowerOptions {
  Level target = Level::kComm;
  Overlap overlap = Overlap::kAll;
  /// Bytes of activations each rank may hold (a count where the costs give none): how far
  /// neighbouring chunks may overlap. Empty: as much as the fullest rank of the schedule itself.
  std::vector<int64_t> limits = {};
  /// False where the order is known to be sound and the time of its step is all that is asked.
  bool verify = true;
};

/// Throws Error: level component needs costs that have components.
[[noreturn]] void RefuseComponents();

/// The order that is to be lowered is not sound.
struct UnsoundOrder : Error {
  using Error::Error;
};

/// Lowers a compute order, verifying before and after every pass. Throws UnsoundOrder if `plan` is
/// that, Error if the target is not reachable; InternalError if a pass broke it. The costs are kept
/// in the plan.
Plan Lower(Plan plan, const CostModel& costs, const LowerOptions& options,
           const PassObserver& observer = {});

}  // namespace contraflow
