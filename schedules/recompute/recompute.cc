// Recompute (Chen et al., arXiv 1604.06174) of whole chunks, as Megatron's "full" granularity has
// it: a chunk keeps its stage input only, and its forward is run again before its backward. That
// trades an activation of every micro-batch under way for one input, and f for every micro-batch.

#include "schedules/recompute/recompute.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recomputed.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "schedules/search/step_time.h"

namespace contraflow {
namespace {

int64_t LargestPeak(const Simulation& simulation) {
  int64_t peak = 0;
  for (const RankFigures& rank : simulation.ranks) peak = std::max(peak, rank.peak_bytes);
  return peak;
}

bool Fits(const Plan& plan, const CostModel& costs, int64_t limit) {
  return LargestPeak(Simulate(plan, costs)) <= limit;
}

/// Different compute orders of one spec.
struct Orders {
  std::vector<Plan> plans;
  std::optional<Error> why_not;  ///< of the first that there is none of

  void Try(const Spec& spec) {
    try {
      Plan plan = GeneratePlan(spec);
      const auto same = [&](const Plan& other) {
        return other.routes == plan.routes && other.programs == plan.programs;
      };
      if (std::none_of(plans.begin(), plans.end(), same)) plans.push_back(std::move(plan));
    } catch (const Error& error) {
      if (!why_not) why_not = error;
    }
  }
};

/// The spec of an order whose backwards have R in them. With all stages recomputed a chunk under
/// way holds its input or, behind B, its stash, and beside these there are at most as many whole
/// activations as chunks run at one time.
Spec Fused(const Spec& spec) {
  Spec fused = spec;
  fused.recompute = {};
  // Components have no R in their backward.
  fused.search.components = false;
  const std::vector<int>& stages = spec.recompute.stages;
  const bool all = spec.recompute.choice != Recompute::Choice::kStages;
  bool pairs = false;
  if (!all && !stages.empty() && spec.costs.stages.size() == 1) {
    fused.costs.stages.resize(static_cast<size_t>(FindSchedule(spec.schedule).stages(spec)),
                              spec.costs.stages[0]);
  }
  for (size_t s = 0; s < fused.costs.stages.size(); ++s) {
    StageCost& cost = fused.costs.stages[s];
    pairs = pairs || cost.fb < cost.f + cost.bw;
    if (!all && !std::binary_search(stages.begin(), stages.end(), static_cast<int>(s))) continue;
    const Time r = cost.recompute();
    cost.b += r;
    cost.bw += r;
    cost.fb += r;
  }
  if (!all || !spec.memory_limit) return fused;
  const CellBytes bytes = BytesOfCell(spec.costs, true);
  const int64_t held = std::max({bytes.input, bytes.stash, int64_t{1}});
  fused.costs.memory->activation_bytes = held;
  fused.costs.memory->input_bytes = -1;
  fused.memory_limit =
      std::max<int64_t>(1, *spec.memory_limit - (pairs ? 2 : 1) * (bytes.activation - held));
  return fused;
}

}  // namespace

std::vector<int> StagesToRecompute(const Plan& order, const Spec& spec) {
  const Recompute& recompute = spec.recompute;
  if (recompute.choice == Recompute::Choice::kAuto) {
    return spec.memory_limit ? StagesToFit(order, spec.costs, *spec.memory_limit)
                             : std::vector<int>();
  }
  std::vector<int> stages = recompute.stages;
  if (recompute.choice == Recompute::Choice::kFull) {
    stages.resize(static_cast<size_t>(order.stages));
    std::iota(stages.begin(), stages.end(), 0);
  }
  if (!stages.empty() && stages.back() >= order.stages) {
    throw Error("`recompute`: there is no stage " + std::to_string(stages.back()) + ", " +
                spec.schedule + " makes " + std::to_string(order.stages) + " stages (0.." +
                std::to_string(order.stages - 1) + ")");
  }
  return stages;
}

Plan InsertRecompute(Plan plan, const std::vector<int>& stages) {
  for (Program& program : plan.programs) {
    Program with;
    with.reserve(program.size() + program.size() / 2);
    for (const Instruction& i : program) {
      if (HasBackward(i.op) && std::binary_search(stages.begin(), stages.end(), BackStage(i))) {
        with.push_back(CellOp(Op::R, BackStage(i), BackMicrobatch(i)));
      }
      with.push_back(i);
    }
    program = std::move(with);
  }
  return plan;
}

void CheckRecomputeLimit(const Spec& spec) {
  if (!spec.memory_limit) return;
  const CostModel& costs = spec.costs;
  if (!costs.memory || costs.memory->activation_bytes == 0) {
    throw Error(
        "`recompute` with `memory_limit`: the costs give no bytes, and what a recomputed chunk "
        "holds is no activation; give \"memory\": {\"activation_bytes\": .., \"input_bytes\": ..}");
  }
  BytesOfCell(costs, true);
}

Plan RecomputeOrder(const Plan& order, const Spec& spec, Room room) {
  const std::vector<int> stages = StagesToRecompute(order, spec);
  std::optional<int64_t> most = spec.memory_limit;
  if (!most && room == Room::kAny) most = std::numeric_limits<int64_t>::max();
  return HoistRecompute(InsertRecompute(order, stages), spec.costs, most);
}

Plan GenerateRecomputed(const Spec& spec, Room room) {
  using Choice = Recompute::Choice;
  const Recompute& recompute = spec.recompute;
  CF_ASSERT(recompute.choice != Choice::kNone);
  CheckRecomputeLimit(spec);
  Spec plain = spec;
  plain.recompute = {};
  Orders orders;
  orders.Try(plain);
  // A generator that heeds costs and memory does without recompute what it need not do with it.
  plain.memory_limit.reset();
  if (spec.memory_limit) orders.Try(plain);
  if (orders.plans.size() == 1 && recompute.choice == Choice::kAuto &&
      (!spec.memory_limit || Fits(orders.plans[0], spec.costs, *spec.memory_limit))) {
    return std::move(orders.plans[0]);
  }
  orders.Try(Fused(spec));
  if (orders.plans.empty()) throw *orders.why_not;
  std::optional<Plan> best;
  bool best_fits = false;
  Time least = 0;
  const CostModel& costs = spec.costs;
  const auto offer = [&](const Plan& order, const Spec& as) {
    Plan plan = RecomputeOrder(order, as, room);
    const Simulation simulation = Simulate(plan, costs);
    const bool fits = !spec.memory_limit || LargestPeak(simulation) <= *spec.memory_limit;
    const Time step = fits && LongerThanOrder(costs, spec.search)
                          ? StepTime(plan, costs, spec.memory_limit, spec.search)
                          : simulation.makespan;
    if (best && std::pair(!best_fits, least) <= std::pair(!fits, step)) return;
    best = std::move(plan);
    best_fits = fits;
    least = step;
  };
  Spec full = spec;
  full.recompute = {.choice = Choice::kFull};
  for (const Plan& order : orders.plans) {
    offer(order, spec);
    // An order for backwards with R may be better off with all of them.
    if (recompute.choice == Choice::kAuto && spec.memory_limit) offer(order, full);
  }
  // An order that was searched for other costs is one for these.
  if (best->costs) best->costs = costs;
  return std::move(*best);
}

}  // namespace contraflow
