#pragma once

#include <string>

#include "compiler/plan.h"

namespace contraflow {

/// The compute order of a plan in PyTorch's CSV for pipeline schedules (format compute_only), from
/// which torch.distributed.pipelining makes its own communication: one row a rank, cells such as
/// "2F0" and "(0F7;7B3)OVERLAP_F_B". There B is the full backward and I the one for the input
/// gradient. Throws Error if a stage lives on two ranks, which PyTorch cannot express, or if
/// the plan has components.
std::string WriteTorchCsv(const Plan& plan);

}  // namespace contraflow
