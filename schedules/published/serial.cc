#include "schedules/published/serial.h"

#include <algorithm>
#include <vector>

#include "compiler/plan/recomputed.h"

namespace contraflow {

Plan SerialOrder(const Plan& frame) {
  Plan plan = frame;
  plan.schedule = "one micro-batch at a time";
  plan.programs.assign(static_cast<size_t>(frame.ranks), {});
  std::vector<const Route*> route_of(static_cast<size_t>(frame.microbatches));
  for (const Route& route : frame.routes) {
    for (const int m : route.microbatches) route_of[static_cast<size_t>(m)] = &route;
  }
  for (int m = 0; m < frame.microbatches; ++m) {
    const std::vector<int>& ranks = route_of[static_cast<size_t>(m)]->ranks;
    const auto program = [&](int s) -> Program& {
      return plan.programs[static_cast<size_t>(ranks[static_cast<size_t>(s)])];
    };
    for (int s = 0; s < frame.stages; ++s) program(s).push_back(CellOp(Op::F, s, m));
    for (int s = frame.stages - 1; s >= 0; --s) program(s).push_back(CellOp(Op::BW, s, m));
  }
  return plan;
}

int64_t SerialPeak(const Plan& frame, const CostModel& costs, bool recomputed) {
  const CellBytes bytes = BytesOfCell(costs, recomputed);
  const bool counted = bytes.activation == 0;
  const int64_t whole = counted ? 1 : bytes.activation;
  const int64_t between = recomputed && !counted ? bytes.input : whole;
  int64_t peak = 0;
  for (const Route& route : frame.routes) {
    std::vector<int64_t> chunks(static_cast<size_t>(frame.ranks), 0);
    for (const int rank : route.ranks) ++chunks[static_cast<size_t>(rank)];
    const int64_t most = *std::max_element(chunks.begin(), chunks.end());
    peak = std::max(peak, whole + (most - 1) * between);
  }
  return peak;
}

}  // namespace contraflow
