#pragma once

#include <string>

#include "compiler/plan/plan.h"
#include "runtime/stages/custom_stages.h"
#include "runtime/stages/stage_api.h"

namespace contraflow {

/// For the example's stages, with the bytes of their values.
Plan CustomPlan(const std::string& schedule, int ranks, int microbatches, Level level,
                int replicas = 1);

/// The example's stages, whose calls become kernels of the emulated GPU that do, when they run,
/// what the example does on the host; the cell is read when it is called. The losses that it writes
/// are in emulated device memory, which is the host's.
contraflow_stage_api EmulatedStages();

std::string WeightsOf(const CustomStage& stage);

}  // namespace contraflow
