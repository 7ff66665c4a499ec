#include "runtime/core/serial_order.h"

#include <algorithm>
#include <utility>

namespace contraflow {
namespace {

/// The micro-batches of a stage in the order in which a program adds them to its weight gradients.
std::vector<int> WeightOrder(const Program& program, int stage) {
  std::vector<int> order;
  for (const Instruction& i : program) {
    // One component speaks for all.
    if (BackStage(i) == stage && (HasWeight(i.op) || (i.op == Op::ATTN_W && i.layer == 0))) {
      order.push_back(BackMicrobatch(i));
    }
  }
  return order;
}

}  // namespace

SerialOrder::SerialOrder(const Plan& plan)
    : plan_(plan), holders_(HoldersOfStage(plan)), route_of_(RouteOfMicrobatch(plan)) {
  // Micro-batches that are still to be added, by stage and copy, the next one last.
  std::vector<std::vector<std::vector<int>>> left(holders_.size());
  for (size_t s = 0; s < left.size(); ++s) {
    for (const int rank : holders_[s]) {
      left[s].push_back(WeightOrder(plan.program(rank), static_cast<int>(s)));
      std::ranges::reverse(left[s].back());
    }
  }
  std::vector<bool> begun(static_cast<size_t>(plan.microbatches));
  for (bool some = true; some;) {
    some = false;
    for (int m = 0; m < plan.microbatches; ++m) {
      Pass pass{m, begun[static_cast<size_t>(m)], {}};
      for (int s = 0; s < plan.stages; ++s) {
        std::vector<int>& order = left[static_cast<size_t>(s)][CopyOf(s, m)];
        if (order.empty() || order.back() != m) continue;
        order.pop_back();
        pass.stages.push_back(s);
      }
      if (pass.stages.empty()) continue;
      begun[static_cast<size_t>(m)] = some = true;
      passes_.push_back(std::move(pass));
    }
  }
}

size_t SerialOrder::CopyOf(int stage, int microbatch) const {
  const auto s = static_cast<size_t>(stage);
  const int route = route_of_[static_cast<size_t>(microbatch)];
  const auto at = std::ranges::find(holders_[s], plan_.routes[static_cast<size_t>(route)].ranks[s]);
  return static_cast<size_t>(at - holders_[s].begin());
}

}  // namespace contraflow
