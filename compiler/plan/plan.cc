#include "compiler/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

constexpr std::string_view kLevels[] = {"compute", "comm", "component", "buffer"};
constexpr std::string_view kSemantics[] = {"rank", "pair", "edge", "buffered"};

}  // namespace

Plan::Plan() = default;
Plan::Plan(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;
bool Plan::operator==(const Plan&) const = default;

Plan FrameOf(const Plan& plan) {
  Plan frame;
  frame.schedule = plan.schedule;
  frame.ranks = plan.ranks;
  frame.stages = plan.stages;
  frame.microbatches = plan.microbatches;
  frame.data_parallel = plan.data_parallel;
  frame.expert_parallel = plan.expert_parallel;
  frame.routes = plan.routes;
  frame.programs.resize(static_cast<size_t>(plan.ranks));
  return frame;
}

std::string_view Name(Level level) {
  CF_ASSERT(static_cast<size_t>(level) < std::size(kLevels));
  return kLevels[static_cast<size_t>(level)];
}

Level ParseLevel(std::string_view name) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (kLevels[i] == name) return static_cast<Level>(i);
  }
  const std::string text(name.substr(0, 32));
  throw Error("unknown level \"" + text + "\"" + DidYouMean(text, kLevels) +
              "; levels are compute, comm, component, buffer");
}

std::string_view Name(Semantics semantics) {
  CF_ASSERT(static_cast<size_t>(semantics) < std::size(kSemantics));
  return kSemantics[static_cast<size_t>(semantics)];
}

Semantics ParseSemantics(std::string_view name) {
  for (const Semantics semantics : kEverySemantics) {
    if (Name(semantics) == name) return semantics;
  }
  const std::string text(name.substr(0, 32));
  throw Error("unknown semantics \"" + text + "\"" + DidYouMean(text, kSemantics) +
              "; semantics are rank, pair, edge, buffered");
}

std::vector<int> RouteOfMicrobatch(const Plan& plan) {
  std::vector<int> route_of(static_cast<size_t>(plan.microbatches), -1);
  for (size_t route = 0; route < plan.routes.size(); ++route) {
    for (const int m : plan.routes[route].microbatches) {
      route_of[static_cast<size_t>(m)] = static_cast<int>(route);
    }
  }
  return route_of;
}

std::vector<std::vector<int>> HoldersOfStage(const Plan& plan) {
  std::vector<std::vector<int>> holders(static_cast<size_t>(plan.stages));
  for (const Route& route : plan.routes) {
    for (size_t s = 0; s < holders.size(); ++s) {
      const int rank = route.ranks[s];
      if (std::find(holders[s].begin(), holders[s].end(), rank) == holders[s].end()) {
        holders[s].push_back(rank);
      }
    }
  }
  return holders;
}

bool NeedsReduce(const Plan& plan, size_t copies) {
  return copies > 1 || plan.data_parallel > 1 || plan.expert_parallel > 1;
}

Parallel ParallelOf(const Plan& plan, const CostModel& costs) {
  return costs.parallel.value_or(Parallel{.ep = plan.expert_parallel});
}

bool Plan::AllMoe() const {
  return std::ranges::all_of(stage_layers, [](const StageLayers& stage) {
    return std::ranges::all_of(stage, [](LayerKind kind) { return kind == LayerKind::kMoe; });
  });
}

bool EndsForward(const Plan& plan, const Instruction& i) {
  return i.layer + 1 == plan.LayersOf(i.stage) && i.op == ForwardEnd(plan.KindOf(i.stage, i.layer));
}

bool BeginsBackward(const Plan& plan, const Instruction& i) {
  return i.layer + 1 == plan.LayersOf(i.stage) &&
         i.op == BackwardBegin(plan.KindOf(i.stage, i.layer));
}

namespace {

/// The layers of a stage as costs have them.
StageLayers LayersIn(const MoeCost& moe) {
  if (!moe.kinds.empty()) return moe.kinds;
  return StageLayers(static_cast<size_t>(moe.layers_per_stage), LayerKind::kMoe);
}

}  // namespace

void SetLayers(const CostModel& costs, Plan* plan) {
  plan->stage_layers.clear();
  plan->layers = costs.moe ? costs.moe->layers_per_stage : 0;
  for (const MoeCost& moe : costs.stage_moe) {
    plan->stage_layers.push_back(LayersIn(moe));
    plan->layers = std::max(plan->layers, moe.layers_per_stage);
  }
  const auto alike = [&](const StageLayers& layers) {
    return layers == StageLayers(static_cast<size_t>(plan->layers), LayerKind::kMoe);
  };
  if (std::ranges::all_of(plan->stage_layers, alike)) plan->stage_layers.clear();
}

void CheckLayers(const Plan& plan, const CostModel& costs) {
  if (plan.layers == 0) return;
  const bool alike = plan.stage_layers.empty() && costs.moe && costs.moe->kinds.empty();
  if (alike && costs.moe->layers_per_stage == plan.layers) return;
  if (!costs.components()) {
    throw Error("this plan has " + std::to_string(plan.layers) +
                " layers a stage, and the costs have no components; give costs with \"moe\"");
  }
  for (int s = 0; s < plan.stages; ++s) {
    const MoeCost& moe = costs.moe_of(s);
    const StageLayers has = LayersIn(moe);
    bool same = std::ssize(has) == plan.LayersOf(s);
    for (int l = 0; same && l < plan.LayersOf(s); ++l) {
      same = has[static_cast<size_t>(l)] == plan.KindOf(s, l);
    }
    if (same) continue;
    if (plan.stage_layers.empty() && costs.stage_moe.empty()) {
      throw Error("`costs`: /moe/layers_per_stage: is " + std::to_string(moe.layers_per_stage) +
                  ", this plan has " + std::to_string(plan.layers) + " layers a stage");
    }
    StageLayers planned;
    for (int l = 0; l < plan.LayersOf(s); ++l) planned.push_back(plan.KindOf(s, l));
    throw Error("stage " + std::to_string(s) + " of this plan has the layers " + ToString(planned) +
                " (m MoE, d dense, p plain), the costs have " + ToString(has) +
                " there; give the costs that it was compiled with");
  }
}

namespace {

Time AtSpeed(Time time, double speed) {
  return static_cast<Time>(std::llround(static_cast<double>(time) / speed));
}

StageCost AtSpeed(const StageCost& cost, double speed) {
  const auto at = [speed](Time time) { return AtSpeed(time, speed); };
  StageCost result = {.f = at(cost.f), .b = at(cost.b), .w = at(cost.w)};
  // A sum stays a sum, so that rounding makes no pair shorter than its halves.
  result.bw = cost.bw == cost.b + cost.w ? result.b + result.w : at(cost.bw);
  result.fb = cost.fb == cost.f + cost.bw ? result.f + result.bw : at(cost.fb);
  result.reduce = cost.reduce;
  result.step = at(cost.step);
  if (cost.r >= 0) result.r = at(cost.r);
  return result;
}

}  // namespace

CostModel AtReplicas(const CostModel& costs, const Plan& plan) {
  if (!costs.ring) return costs;
  CostModel result = costs;
  result.ring = false;
  result.stages.resize(static_cast<size_t>(plan.stages), costs.stages.front());
  const Copies copies = CopiesOf(ParallelOf(plan, costs), plan.data_parallel);
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  const MemoryCost memory = costs.memory.value_or(MemoryCost{});
  for (size_t s = 0; s < result.stages.size(); ++s) {
    const auto of_stage = [s](const std::vector<int64_t>& bytes) {
      return bytes.empty() ? 0 : static_cast<double>(bytes.size() == 1 ? bytes[0] : bytes[s]);
    };
    const double all = of_stage(memory.parameter_bytes);
    // Without experts all is the rest.
    const double rest =
        memory.parameter_rest.empty() || all == 0 ? 1 : of_stage(memory.parameter_rest) / all;
    const auto mean = [&](auto of) {
      return rest * of(copies.rest) + (1 - rest) * of(copies.experts);
    };
    const auto mirrors = static_cast<double>(holders[s].size());
    const auto take = [](Time* time, double share) {
      *time = std::llround(static_cast<double>(*time) * share);
    };
    take(&result.stages[s].reduce,
         mean([&](int64_t n) { return 1 - 1 / (static_cast<double>(n) * mirrors); }));
    if (memory.zero == 0) continue;
    take(&result.stages[s].step, mean([](int64_t n) { return 1 / static_cast<double>(n); }));
  }
  return result;
}

CostModel OnRanks(const CostModel& costs, const Plan& frame) {
  if (costs.ranks.empty()) return costs;
  if (costs.ranks.size() != static_cast<size_t>(frame.ranks)) {
    throw Error("`costs`: /ranks: lists " + std::to_string(costs.ranks.size()) +
                " ranks, the plan has " + std::to_string(frame.ranks));
  }
  CostModel result = costs;
  const auto any = [&](auto special) {
    return std::any_of(costs.ranks.begin(), costs.ranks.end(), special);
  };
  if (any([](const RankCost& rank) { return rank.speed != 1; })) {
    if (result.stages.size() == 1) {
      result.stages.resize(static_cast<size_t>(frame.stages), costs.stages.front());
    }
    CF_ASSERT(result.stages.size() == static_cast<size_t>(frame.stages));
    for (size_t s = 0; s < result.stages.size(); ++s) {
      double speed = std::numeric_limits<double>::max();
      for (const Route& route : frame.routes) {
        speed = std::min(speed, costs.ranks[static_cast<size_t>(route.ranks[s])].speed);
      }
      result.stages[s] = AtSpeed(result.stages[s], speed);
      if (result.stage_moe.empty()) continue;
      for (const ComponentCost& component : kComponentCosts) {
        for (Time& time : result.stage_moe[s].*component.times) time = AtSpeed(time, speed);
      }
    }
  }
  if (!any([](const RankCost& rank) { return rank.memory_bytes.has_value(); })) {
    result.ranks.clear();
  }
  for (RankCost& rank : result.ranks) rank.speed = 1;
  return result;
}

int64_t InstructionCount(const Plan& plan) {
  int64_t count = 0;
  for (const Program& program : plan.programs) count += static_cast<int64_t>(program.size());
  return count;
}

int64_t MessageCount(const Plan& plan) {
  int64_t count = 0;
  for (const Program& program : plan.programs) {
    count += std::count_if(program.begin(), program.end(),
                           [](const Instruction& i) { return IsSend(i.op); });
  }
  return count;
}

RecomputedCells::RecomputedCells(const Plan& plan) : MarkedCells(plan, IsRecompute) {
  if (!any()) return;
  extents_.resize(static_cast<size_t>(plan.stages));
  first_.resize(extents_.size());
  const auto layers = static_cast<size_t>(plan.layers);
  std::vector<uint8_t> found(extents_.size() * layers, 0);  // components of each stage and layer
  const auto bit = [](Op op) {
    return static_cast<uint8_t>(1U << (static_cast<int>(op) - static_cast<int>(Op::ATTN_R)));
  };
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (!IsRecompute(i.op)) continue;
      const auto stage = static_cast<size_t>(i.stage);
      if (i.op == Op::R) {
        extents_[stage] = ExtentOf(i);
      } else if (std::cmp_less(i.layer, layers)) {
        found[stage * layers + static_cast<size_t>(i.layer)] |= bit(i.op);
      }
    }
  }
  if (plan.layers == 0) return;
  for (int s = 0; s < plan.stages; ++s) {
    // Finds the first extent with these components; dense and plain layers may have several.
    const auto stage = static_cast<size_t>(s);
    const uint8_t* const of_stage = found.data() + stage * layers;
    const int count = plan.LayersOf(s);
    const auto matches = [&](const RecomputeExtent& extent) {
      First first;
      bool some = false;
      for (int l = 0; l < count; ++l) {
        uint8_t wanted = 0;
        for (const Op op : {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R}) {
          if (!extent.Has(op, l, plan.KindOf(s, l))) continue;
          if (!std::exchange(some, true)) first = {op, l};
          wanted |= bit(op);
        }
        if (of_stage[l] != wanted) return false;
      }
      if (!some) return false;
      extents_[stage] = extent;
      first_[stage] = first;
      return true;
    };
    bool known = false;
    for (int k = 0; k < count && !known; ++k) {
      // All layers, then fewer and fewer.
      for (const RecomputePart part : kParts) {
        if ((known = matches({part, k == 0 ? 0 : count - k}))) break;
      }
    }
  }
}

std::vector<CellBytes> BytesOfCells(const CostModel& costs, const RecomputedCells& recomputed,
                                    int stages) {
  std::vector<CellBytes> cells;
  for (int s = 0; s < stages; ++s) {
    cells.push_back(BytesOfCell(costs, s, recomputed.HasStage(s), recomputed.extent(s)));
  }
  return cells;
}

bool RecomputedCells::in_parts() const {
  return std::any_of(extents_.begin(), extents_.end(),
                     [](const RecomputeExtent& extent) { return !extent.whole(); });
}

bool RecomputedCells::in_layers() const {
  return std::any_of(extents_.begin(), extents_.end(),
                     [](const RecomputeExtent& extent) { return extent.layers != 0; });
}

bool MarkedCells::HasStage(int stage) const {
  for (int m = 0; m < microbatches_; ++m) {
    if (Has(stage, m)) return true;
  }
  return false;
}

}  // namespace contraflow
