#pragma once

#include <string>
#include <string_view>

#include "compiler/plan/plan.h"

namespace contraflow {

/// The compute order of a plan in PyTorch's CSV for pipeline schedules (format compute_only), from
/// which torch.distributed.pipelining makes its own communication: one row a rank, cells such as
/// "2F0" and "(0F7;7B3)OVERLAP_F_B". There B is the full backward and I the one for the input
/// gradient, and recompute is the stages' own affair. Throws Error if a stage lives on two ranks,
/// which PyTorch cannot express, or if the plan has components.
std::string WriteTorchCsv(const Plan& plan);

/// Reads such a file, and PyTorch's lowered form with communication (compute_comms), as a plan of
/// level compute: stages live on the rank in whose row they stand. Empty cells are idle slots;
/// SEND_F, RECV_F, SEND_B and RECV_B must be complete where there are any, each behind what it
/// sends and before what waits for it, and are left to lowering like UNSHARD, RESHARD and
/// REDUCE_GRAD. Throws Error "PLACE: row 2, column 5: ..." (both from 1, columns in cells) for any
/// other cell, for a stage on two rows or on none, for a chunk that is done twice, never, or before
/// what it needs on its own rank, and for sizes over the limits of plan.h. What only several ranks
/// together can have wrong is Verify's to say.
Plan ReadTorchCsv(std::string_view text, const std::string& place);

}  // namespace contraflow
