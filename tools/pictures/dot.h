#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan/plan.h"

namespace contraflow {

/// Most instructions of a plan that WriteDot takes: Graphviz needs minutes for so many.
inline constexpr int64_t kMaxDotInstructions = 10'000;

/// A plan as a graph for Graphviz: a cluster a rank with its instructions, chained in issue order
/// (with lanes, in the order of each), `after` dotted, and an edge for each message, from SEND to
/// RECV, or at level compute from what makes a value to what takes it on another rank. The copies
/// of a stage are joined by dashed lines between their REDUCE. Same plan, same bytes. Throws Error
/// for plans of more than kMaxDotInstructions.
std::string WriteDot(const Plan& plan);

}  // namespace contraflow
