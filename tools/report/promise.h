#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/verify/verify.h"

namespace contraflow {

/// Need of the messages of a plan of the network.
struct Promise {
  /// Strictest semantics under which the plan is sound; none if it is under none that PyTorch has.
  std::optional<Semantics> needs;
  /// Why it needs more than one queue a rank: the circle of waits under the next stricter
  /// semantics, without a remedy. Empty for kRank.
  std::string circle;
  std::vector<Finding> findings;  ///< where it is not sound, with a queue for each directed edge
};
Promise PromiseOf(const Plan& plan);

/// Returns a plan that was read with its own messages, with these costs and the promise its
/// messages need: the weakest of PyTorch, if they are not sound under any.
Plan WithPromise(Plan plan, const CostModel& costs);

/// "with one queue per rank", "with a queue per pair of ranks", "with a queue per directed edge",
/// "with unlimited buffering"
std::string_view QueuesOf(Semantics semantics);

/// "with one queue per rank these wait in a circle: ..." of a plan that needs more.
std::string CircleText(const Promise& promise);

}  // namespace contraflow
