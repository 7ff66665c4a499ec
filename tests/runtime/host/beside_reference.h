#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/plan.h"
#include "runtime/model/model.h"

namespace contraflow {

struct TrainingOutcome {
  std::string difference;  ///< the first one, or ""
  int64_t dropped = 0;     ///< tokens, up to there
};

/// Two steps of a plan beside a run without a pipeline. `strict`: sends wait for their receives.
TrainingOutcome TrainBesideReference(const Plan& plan, const Model& model, bool strict = true);

}  // namespace contraflow
