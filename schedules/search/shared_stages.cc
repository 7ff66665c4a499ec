#include "schedules/search/shared_stages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

/// The stage that two routes have on one rank, the last of several; -1: none.
int SharedStage(const Plan& plan) {
  for (size_t s = static_cast<size_t>(plan.stages); s-- > 0;) {
    for (size_t route = 1; route < plan.routes.size(); ++route) {
      if (plan.routes[route].ranks[s] == plan.routes[0].ranks[s]) return static_cast<int>(s);
    }
  }
  return -1;
}

}  // namespace

bool SharesStages(const Plan& frame) { return SharedStage(frame) >= 0; }

Plan RenumberMicrobatches(Plan plan) {
  const int stage = SharedStage(plan);
  CF_ASSERT(stage >= 0);
  const auto rank = static_cast<size_t>(plan.routes[0].ranks[static_cast<size_t>(stage)]);
  std::vector<int> number(static_cast<size_t>(plan.microbatches), -1);
  int next = 0;
  for (const Instruction& i : plan.programs[rank]) {
    if (HasWeight(i.op) && BackStage(i) == stage) {
      number[static_cast<size_t>(BackMicrobatch(i))] = next++;
    }
  }
  CF_ASSERT(next == plan.microbatches);
  const auto renumber = [&](auto* microbatch) {
    if (*microbatch >= 0) *microbatch = number[static_cast<size_t>(*microbatch)];
  };
  for (Route& route : plan.routes) {
    for (int& microbatch : route.microbatches) renumber(&microbatch);
    std::ranges::sort(route.microbatches);
  }
  for (Program& program : plan.programs) {
    for (Instruction& i : program) {
      renumber(&i.microbatch);
      renumber(&i.back_microbatch);
    }
  }
  return plan;
}

}  // namespace contraflow
