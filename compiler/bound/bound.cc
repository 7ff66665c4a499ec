// Every figure here is a proof, so each file says why no schedule can be faster.

#include "compiler/bound/bound.h"

#include <algorithm>
#include <limits>
#include <string>

#include "compiler/bound/work.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

CellWork WorkOfCell(const CostModel& costs, int stage, int m,
                    std::optional<RecomputeExtent> recomputed) {
  const auto duration = [&](Op op) { return costs.Duration(CellOp(op, stage, m)); };
  const Time f = duration(Op::F), b = duration(Op::B), bw = duration(Op::BW);
  const StageCost& cost = costs.stage(stage);
  Time saving = 0;
  if (cost.fb < cost.f + cost.bw) {
    // The saving that Duration takes off, which is less where its longest chain decides. Parts and
    // saving are rounded one by one, which is worth up to two ticks.
    saving = f + bw - costs.Duration(Pair(stage, m, stage, m));
    if (!costs.microbatch_scale.empty()) saving += 2;
  }
  const Instruction r = RecomputeOp(stage, m, recomputed.value_or(RecomputeExtent()));
  const Time full = std::min(bw, b + duration(Op::W));
  return {f,
          b,
          full - b,
          std::max<Time>(0, std::min(saving, full)),
          recomputed ? costs.Duration(r) : 0,
          saving > full};
}

template <typename Choose>
CellWork FieldByField(const CellWork& x, const CellWork& y, Choose choose) {
  return {choose(x.f, y.f),
          choose(x.b, y.b),
          choose(x.weight, y.weight),
          choose(x.saving, y.saving),
          choose(x.recompute, y.recompute),
          x.clipped || y.clipped};
}

RouteWork WorkOfRoute(const Route& route, const CostModel& costs,
                      const RecomputedCells& recomputed) {
  RouteWork work;
  work.ranks = route.ranks;
  work.count = route.microbatches.size();
  const auto is_recomputed = [&](size_t s, size_t k) {
    return recomputed.Has(static_cast<int>(s), route.microbatches[k]);
  };
  work.alike = costs.microbatch_scale.empty();
  for (size_t s = 0; s < work.stages(); ++s) {
    bool some = false;
    for (size_t k = 0; k < work.count && recomputed.any(); ++k) {
      some = some || is_recomputed(s, k);
      work.alike = work.alike && is_recomputed(s, k) == is_recomputed(s, 0);
    }
    work.recomputed.push_back(some);
  }
  const Time hop = costs.comm.latency + costs.comm.occupancy;
  work.chunks.reserve(work.stages() * (work.alike ? 1 : work.count));
  for (size_t s = 0; s < work.stages(); ++s) {
    work.hop.push_back(s == 0 || route.ranks[s - 1] == route.ranks[s] ? 0 : hop);
    for (size_t k = 0; k < (work.alike ? 1 : work.count); ++k) {
      const CellWork chunk =
          WorkOfCell(costs, static_cast<int>(s), route.microbatches[k],
                     is_recomputed(s, k) ? std::optional(recomputed.extent(static_cast<int>(s)))
                                         : std::nullopt);
      work.chunks.push_back(chunk);
      if (k == 0) work.least.push_back(chunk);
      if (k == 0) work.most.push_back(chunk);
      const auto less = [](Time x, Time y) { return std::min(x, y); };
      const auto more = [](Time x, Time y) { return std::max(x, y); };
      work.least.back() = FieldByField(work.least.back(), chunk, less);
      work.most.back() = FieldByField(work.most.back(), chunk, more);
    }
  }
  return work;
}

/// A micro-batch is on all of a rank's stages of its route when the last of them runs: of those
/// that are recomputed with its input, or less.
void CheckMemoryLimit(const MemoryLimit& memory, const Plan& plan, const CostModel& costs,
                      const RecomputedCells& recomputed) {
  const std::vector<CellBytes> cells = BytesOfCells(costs, recomputed, plan.stages);
  for (const Route& route : plan.routes) {
    if (route.microbatches.empty()) continue;
    // Bytes of each rank: what its stages so far hold, and the most that one of them needs.
    std::vector<int64_t> held(static_cast<size_t>(plan.ranks), 0), most = held;
    int over = -1;  // the first rank beyond the limit
    for (size_t s = 0; s < route.ranks.size(); ++s) {
      const auto rank = static_cast<size_t>(route.ranks[s]);
      const int64_t whole = memory.bytes() ? cells[s].activation : 1;
      most[rank] = std::max(most[rank], held[rank] + whole);
      held[rank] += recomputed.HasStage(static_cast<int>(s)) ? cells[s].input : whole;
      if (over < 0 && most[rank] > *memory.amount()) over = route.ranks[s];
    }
    if (over < 0) continue;
    throw Error("no schedule fits a memory limit of " + std::to_string(*memory.amount()) +
                ": rank " + std::to_string(over) + " holds at least " +
                std::to_string(most[static_cast<size_t>(over)]) +
                " (one micro-batch on all of its stages); raise the limit");
  }
}

std::vector<ChunkTimes> TimesWith(const BoundInput& input, const RouteWork& route,
                                  const auto& chunk) {
  const size_t stages = route.stages();
  std::vector<ChunkTimes> times(stages);
  if (stages > 0) times[0].head = route.head;
  if (stages > 0) times[0].tail = route.tail;
  for (size_t s = 1; s < stages; ++s) {
    times[s].head = times[s - 1].head + chunk(s - 1).f + route.hop[s];
    const Time rest = input.RestOnPath(route, s - 1, chunk(s - 1));
    times[s].tail = route.hop[s] + chunk(s - 1).b + std::max(rest, times[s - 1].tail);
  }
  // Whatever else happens between F and B, R does.
  if (stages > 0) times[stages - 1].lag = std::max(route.lag, chunk(stages - 1).recompute);
  for (size_t s = stages; s-- > 1;) {
    const Time way = times[s].lag + chunk(s).f + chunk(s).b + 2 * route.hop[s];
    times[s - 1].lag = std::max(way, chunk(s - 1).recompute);
  }
  return times;
}

void RaiseByAll(const BoundInput& input, Bound* best) {
  RaiseByChunks(input, best);
  RaiseByWindows(input, best);
  RaiseByRankWindows(input, best);
  RaiseByArea(input, best);
  RaiseByOrder(input, best);
}

}  // namespace

Time BoundInput::RestOnPath(const RouteWork& route, size_t s, const CellWork& chunk) const {
  if (!pairs) return chunk.weight;
  return std::min(chunk.weight, least_backward[static_cast<size_t>(route.ranks[s])]);
}

std::vector<ChunkTimes> TimesOf(const BoundInput& input, const RouteWork& route, size_t k) {
  return TimesWith(input, route, [&](size_t s) { return route.At(s, k); });
}

std::vector<ChunkTimes> LeastTimesOf(const BoundInput& input, const RouteWork& route) {
  return TimesWith(input, route, [&](size_t s) { return route.least[s]; });
}

Time MostHeld(const MemoryLimit& memory, int64_t count, Time backward, Time rest) {
  Time most = 0;
  for (int64_t a = 0; a <= std::min(memory.slots(), count); ++a) {
    const int64_t left = *memory.amount() - a * memory.activation();
    const int64_t others = count - a;
    const int64_t w = memory.stash() == 0 ? others : std::min(others, left / memory.stash());
    most = std::max(most, a * backward + (a + w) * rest);
  }
  return most;
}

BoundInput MakeBoundInput(const Plan& plan, const CostModel& costs,
                          std::optional<int64_t> memory_limit) {
  const RecomputedCells recomputed(plan);
  BoundInput input;
  input.ranks = plan.ranks;
  input.latency = costs.comm.latency;
  input.occupancy = costs.comm.occupancy;
  input.exclusive = costs.comm.exclusive();
  if (memory_limit) {
    input.memory = MemoryLimit(costs, memory_limit);
    CheckMemoryLimit(*input.memory, plan, costs, recomputed);
    std::vector<std::vector<int>> stages(static_cast<size_t>(plan.ranks));
    for (const Route& route : plan.routes) {
      for (int s = 0; s < plan.stages; ++s) {
        stages[static_cast<size_t>(route.ranks[static_cast<size_t>(s)])].push_back(s);
      }
    }
    for (const std::vector<int>& of : stages) {
      input.memory_of.emplace_back(costs, memory_limit, of);
    }
  }
  input.recomputes.assign(static_cast<size_t>(plan.ranks), false);
  input.least_backward.assign(static_cast<size_t>(plan.ranks), kNever);
  for (const Route& route : plan.routes) {
    if (route.microbatches.empty()) continue;
    input.routes.push_back(WorkOfRoute(route, costs, recomputed));
    const RouteWork& work = input.routes.back();
    for (size_t s = 0; s < work.stages(); ++s) {
      Time& least = input.least_backward[static_cast<size_t>(work.ranks[s])];
      for (size_t k = 0; k < (work.alike ? 1 : work.count); ++k) {
        least = std::min(least, work.At(s, k).b + work.At(s, k).weight);
      }
      input.pairs = input.pairs || work.most[s].saving > 0;
      if (work.recomputed[s]) input.recomputes[static_cast<size_t>(work.ranks[s])] = true;
    }
  }
  return input;
}

std::string_view Name(BoundKind kind) {
  constexpr std::string_view kNames[] = {
      "nothing to do", "critical path", "busy rank", "order of micro-batches", "two windows",
      "pairs",         "memory x time", "link",      "lane of components",     "link to the host",
      "stashes"};
  return kNames[static_cast<size_t>(kind)];
}

void KeepLarger(Bound* best, const Bound& bound) {
  CF_ASSERT(bound.value == bound.head + bound.work + bound.idle + bound.tail);
  if (best->kind == BoundKind::kNothing || bound.value > best->value) *best = bound;
}

Bound ProveBound(const Plan& plan, const CostModel& costs, std::optional<int64_t> memory_limit) {
  CheckCosts(costs, plan.stages, plan.microbatches);
  CheckLayers(plan, costs);
  Bound best;
  std::optional<int64_t> limit_of_stashes;
  if (OffloadedCells(plan).any()) {
    // Activations on the host take no memory, and how long they are away is the schedule's to
    // choose.
    std::swap(memory_limit, limit_of_stashes);
    RaiseByHostLink(plan, costs, &best);
  }
  if (plan.layers > 0) {
    RaiseByComponents(plan, costs, &best);
    if (memory_limit && !RecomputedCells(plan).any()) {
      RaiseByComponentWindows(plan, costs, *memory_limit, &best);
    }
    return best;
  }
  const BoundInput input = MakeBoundInput(plan, costs, memory_limit);
  RaiseByAll(input, &best);
  if (limit_of_stashes) RaiseByStashes(input, costs, *limit_of_stashes, &best);
  if (std::find(input.recomputes.begin(), input.recomputes.end(), true) != input.recomputes.end()) {
    // A schedule is no longer without its R, though it may hold more. That lets the windows of
    // ranks that recompute speak.
    RaiseByAll(MakeBoundInput(FrameOf(plan), costs, std::nullopt), &best);
  }
  return best;
}

Bound BoundOfOffloaded(const Plan& frame, const CostModel& costs,
                       std::optional<int64_t> memory_limit) {
  const Plan routes = FrameOf(frame);
  Bound best = ProveBound(routes, costs);
  if (memory_limit) {
    RaiseByStashes(MakeBoundInput(routes, costs, std::nullopt), costs, *memory_limit, &best);
  }
  return best;
}

Bound ProveStageBound(const CostModel& costs, int microbatches, const StageSurroundings& around,
                      std::optional<int64_t> memory_limit) {
  Plan plan;
  plan.ranks = plan.stages = 1;
  plan.microbatches = microbatches;
  plan.routes = {{{0}, {}}};
  for (int m = 0; m < microbatches; ++m) plan.routes[0].microbatches.push_back(m);
  BoundInput input = MakeBoundInput(plan, costs, memory_limit);
  input.routes[0].head = around.head;
  input.routes[0].lag = around.lag;
  input.routes[0].tail = around.tail;
  Bound best;
  RaiseByChunks(input, &best);
  RaiseByWindows(input, &best);
  RaiseByRankWindows(input, &best);
  RaiseByArea(input, &best);
  return best;
}

Time ProveRankBound(std::span<const RankStage> stages) {
  BoundInput input;
  input.ranks = 1;
  input.recomputes = {false};
  input.least_backward = {kNever};
  CostModel costs;
  costs.stages.resize(1);
  for (const RankStage& stage : stages) {
    if (stage.microbatches == 0) continue;
    costs.stages.front() = stage.cost;
    const CellWork cell = WorkOfCell(costs, 0, 0, std::nullopt);
    input.routes.push_back({.ranks = {0},
                            .hop = {0},
                            .count = static_cast<size_t>(stage.microbatches),
                            .chunks = {cell},
                            .least = {cell},
                            .most = {cell},
                            .recomputed = {false},
                            .head = stage.around.head,
                            .lag = stage.around.lag,
                            .tail = stage.around.tail});
    input.least_backward.front() = std::min(input.least_backward.front(), cell.b + cell.weight);
    input.pairs = input.pairs || cell.saving > 0;
  }
  Bound best;
  RaiseByChunks(input, &best);
  RaiseByWindows(input, &best);
  RaiseByRankWindows(input, &best);
  return best.value;
}

Time LowerBound(const Plan& plan, const CostModel& costs) { return ProveBound(plan, costs).value; }

}  // namespace contraflow
