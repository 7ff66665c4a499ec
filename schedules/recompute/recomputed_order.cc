#include "schedules/recompute/recomputed_order.h"

#include <algorithm>
#include <utility>

#include "compiler/plan/memory_limit.h"
#include "compiler/plan/rank_memory.h"
#include "compiler/plan/recompute_cost.h"

namespace contraflow {
namespace {

constexpr Time kNotYet = -1;
/// Worth of a step that is one tick shorter in the mean end of its ranks.
constexpr Time kMeanEnds = 10;

}  // namespace

RecomputedProblem::RecomputedProblem(const Plan& plan, const CostModel& costs,
                                     std::optional<int64_t> limit)
    : plan_(plan),
      costs_(costs),
      stages_(plan.stages),
      cells_(static_cast<size_t>(plan.stages), {1, 1, 1}),
      limit_(limit) {
  // Bytes of stages that are not recomputed yet, too.
  const RecomputedCells recomputed(plan);
  const bool bytes = limit && MemoryLimit(costs).bytes();
  for (int s = 0; s < stages_; ++s) {
    extents_.push_back(recomputed.extent(s));
    if (bytes) cells_[static_cast<size_t>(s)] = BytesOfCell(costs, s, true, extents_.back());
  }
  const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
  before_.assign(chunks, -1);
  hop_.assign(chunks, 0);
  rank_.assign(chunks, 0);
  for (const Route& route : plan.routes) {
    for (const int m : route.microbatches) {
      for (int s = 0; s < stages_; ++s) {
        const auto c = static_cast<size_t>(m * stages_ + s);
        rank_[c] = route.ranks[static_cast<size_t>(s)];
        if (s == 0) continue;
        before_[c] = static_cast<int32_t>(c) - 1;
        if (rank_[c] != rank_[c - 1]) hop_[c] = costs.comm.HopBetween(s - 1);
      }
    }
  }
}

Item RecomputedProblem::ItemOf(const Instruction& i) const {
  Item item = {i.op, -1, -1, costs_.Duration(i)};
  if (HasForward(i.op)) item.forward = i.microbatch * stages_ + i.stage;
  if (i.op != Op::F) item.back = BackMicrobatch(i) * stages_ + BackStage(i);
  return item;
}

Instruction RecomputedProblem::InstructionOf(const Item& item) const {
  const auto stage = [&](int32_t c) { return c % stages_; };
  const auto microbatch = [&](int32_t c) { return c / stages_; };
  if (item.op == Op::FB) {
    return Pair(stage(item.forward), microbatch(item.forward), stage(item.back),
                microbatch(item.back));
  }
  const int32_t c = item.op == Op::F ? item.forward : item.back;
  if (item.op == Op::R) return RecomputeOp(stage(c), microbatch(c), Extent(stage(c)));
  return CellOp(item.op, stage(c), microbatch(c));
}

Item RecomputedProblem::Backward(Op op, int32_t c) const {
  return {op, -1, c, costs_.Duration(CellOp(op, c % stages_, c / stages_))};
}

Item RecomputedProblem::Again(int32_t c) const {
  Item item = {Op::R, -1, c, 0};
  item.duration = costs_.Duration(InstructionOf(item));
  return item;
}

std::vector<RecomputeExtent> RecomputedProblem::ExtentsOf(int s) const {
  const RecomputePart part = Extent(s).part;
  std::vector<RecomputeExtent> extents;
  for (int k = 1; k < costs_.LayersIn(s); ++k) {
    if (HasSome(costs_, s, {part, k})) extents.push_back({part, k});
  }
  extents.push_back(part);
  return extents;
}

void RecomputedProblem::SetExtent(int s, const RecomputeExtent& extent) {
  extents_[static_cast<size_t>(s)] = extent;
  if (limit_ && MemoryLimit(costs_).bytes()) {
    cells_[static_cast<size_t>(s)] = BytesOfCell(costs_, s, true, extent);
  }
}

bool RecomputedProblem::Fits(const Items& list, const std::vector<bool>& again) const {
  if (!limit_) return true;
  RankMemory memory;
  for (const Item& item : list) {
    const bool forward = item.forward >= 0;
    const CellBytes& own = BytesOf(forward ? item.forward : item.back);
    memory.Begin(item.op, own);
    if (memory.held() > *limit_) return false;
    memory.End(item.op, own, BytesOf(item.back >= 0 ? item.back : item.forward),
               forward && again[static_cast<size_t>(item.forward)]);
  }
  return true;
}

RecomputedClock::RecomputedClock(const RecomputedProblem& problem)
    : problem_(problem),
      end_(2 * problem.chunks()),
      waits_(2 * problem.chunks()),
      lane_(problem.ranks()),
      next_(problem.ranks()) {}

std::optional<Time> RecomputedClock::Run(const std::vector<Items>& lists) {
  std::fill(end_.begin(), end_.end(), kNotYet);
  std::fill(waits_.begin(), waits_.end(), -1);
  std::fill(lane_.begin(), lane_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  ready_.clear();
  for (size_t r = lists.size(); r-- > 0;) ready_.push_back(r);
  while (!ready_.empty()) {
    const size_t r = ready_.back();
    ready_.pop_back();
    Walk(r, lists[r]);
  }
  makespan_ = 0;
  Time ends = 0;
  for (size_t r = 0; r < lists.size(); ++r) {
    if (next_[r] < lists[r].size()) return std::nullopt;
    makespan_ = std::max(makespan_, lane_[r]);
    ends += lane_[r];
  }
  return makespan_ + ends / (kMeanEnds * static_cast<Time>(lists.size()));
}

/// False if the rank has to wait for what this chunk's neighbour makes.
bool RecomputedClock::Arrived(size_t r, int32_t neighbour, Time hop, bool backward, Time* start) {
  if (neighbour < 0) return true;
  const Time end = end_[Place(neighbour, backward)];
  if (end == kNotYet) {
    waits_[Place(neighbour, backward)] = static_cast<int32_t>(r);
    return false;
  }
  *start = std::max(*start, end + hop);
  return true;
}

void RecomputedClock::Ended(int32_t c, bool backward, Time end) {
  end_[Place(c, backward)] = end;
  const int32_t waiting = std::exchange(waits_[Place(c, backward)], -1);
  if (waiting >= 0) ready_.push_back(static_cast<size_t>(waiting));
}

void RecomputedClock::Walk(size_t r, const Items& list) {
  for (size_t& at = next_[r]; at < list.size(); ++at) {
    const Item& item = list[at];
    Time start = lane_[r];
    if (item.forward >= 0 &&
        !Arrived(r, problem_.Before(item.forward), problem_.Hop(item.forward), false, &start)) {
      return;
    }
    if (HasBackward(item.op)) {
      const int32_t after = problem_.After(item.back);
      if (!Arrived(r, after, after < 0 ? 0 : problem_.Hop(after), true, &start)) return;
    }
    lane_[r] = start + item.duration;
    if (item.forward >= 0) Ended(item.forward, false, lane_[r]);
    if (HasBackward(item.op)) Ended(item.back, true, lane_[r]);
  }
}

}  // namespace contraflow
