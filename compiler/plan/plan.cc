#include "compiler/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compiler/plan/error.h"

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

namespace {

StageCost AtSpeed(const StageCost& cost, double speed) {
  const auto at = [speed](Time time) {
    return static_cast<Time>(std::llround(static_cast<double>(time) / speed));
  };
  StageCost result = {.f = at(cost.f), .b = at(cost.b), .w = at(cost.w)};
  // What is a sum stays one, so that rounding makes no pair shorter than its halves.
  result.bw = cost.bw == cost.b + cost.w ? result.b + result.w : at(cost.bw);
  result.fb = cost.fb == cost.f + cost.bw ? result.f + result.bw : at(cost.fb);
  result.reduce = cost.reduce;
  result.step = at(cost.step);
  if (cost.r >= 0) result.r = at(cost.r);
  return result;
}

}  // namespace

CostModel OnRanks(const CostModel& costs, const Plan& frame) {
  if (costs.ranks.empty()) return costs;
  if (costs.ranks.size() != static_cast<size_t>(frame.ranks)) {
    throw Error("the plan has " + std::to_string(frame.ranks) + " ranks, the costs list " +
                std::to_string(costs.ranks.size()));
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

MarkedCells::MarkedCells(const Plan& plan, bool (*marks)(Op)) : microbatches_(plan.microbatches) {
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (!marks(i.op)) continue;
      if (cells_.empty()) cells_ = Grid<bool>(plan.stages, microbatches_);
      cells_(i.stage, i.microbatch) = true;
    }
  }
}

RecomputedCells::RecomputedCells(const Plan& plan) : MarkedCells(plan, IsRecompute) {
  if (!any()) return;
  const auto bit = [](Op op) { return 1U << (static_cast<int>(op) - static_cast<int>(Op::R)); };
  parts_.assign(static_cast<size_t>(plan.stages), RecomputePart::kFull);
  std::vector<unsigned> found(parts_.size(), 0);  // components of each stage
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      if (!IsRecompute(i.op)) continue;
      const auto stage = static_cast<size_t>(i.stage);
      if (i.op == Op::R) parts_[stage] = i.part;
      found[stage] |= bit(i.op);
    }
  }
  for (const RecomputePart part : kParts) {
    unsigned wanted = 0;
    for (const Op op : {Op::ATTN_R, Op::MLP_R, Op::DISPATCH_R, Op::COMBINE_R}) {
      if (Includes(part, op)) wanted |= bit(op);
    }
    for (size_t s = 0; s < found.size(); ++s) {
      if (found[s] == wanted) parts_[s] = part;
    }
  }
}

bool RecomputedCells::in_parts() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](RecomputePart part) { return part != RecomputePart::kFull; });
}

bool MarkedCells::HasStage(int stage) const {
  for (int m = 0; m < microbatches_; ++m) {
    if (Has(stage, m)) return true;
  }
  return false;
}

}  // namespace contraflow
