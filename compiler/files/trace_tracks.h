#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/plan/timeline.h"

namespace contraflow {

/// Which track of a trace each instruction of one rank is on, by its index: one for each lane that
/// is used, in the order compute, all-to-all, peers, reduce, offload, reload, and after it those
/// for what overlaps on it.
struct RankTracks {
  std::vector<int> of;             ///< track of each instruction
  std::vector<std::string> names;  ///< of each track
};
RankTracks TracksOf(const Program& program, const std::vector<Span>& spans);

/// The span as it is drawn: no message is shorter than a tick.
Span DrawnSpan(const Instruction& instruction, Span span);

/// Amount that a rank holds at a time, in the order of time; one entry a time.
struct HeldSample {
  Time time = 0;
  int64_t held = 0;
};
/// True where the costs of a plan say what activations take, so that HeldOver is in bytes.
bool HoldsBytes(const Plan& plan);
/// The activations of one rank: from the start of the forward to the end of the weight gradient, by
/// the memory costs of the plan (plan/cost.h) less what B frees, R makes again and the host keeps;
/// else one for each chunk.
std::vector<HeldSample> HeldOver(const Plan& plan, size_t rank, const std::vector<Span>& spans);

}  // namespace contraflow
