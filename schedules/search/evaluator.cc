#include "schedules/search/evaluator.h"

#include <algorithm>

#include "compiler/plan/error.h"
#include "schedules/search/noise_draw.h"

namespace contraflow {
namespace {

constexpr Time kUnset = -1;
constexpr int64_t kRuns = -1;  // a rank that waits for nothing

}  // namespace

Evaluator::Evaluator(const SearchProblem& problem) : problem_(problem) {
  latency_ = problem.costs.comm.latency;
  for (const RouteStage& stage : problem.stages) {
    const auto neighbour = [&](int index, int edge, bool before) -> Neighbour {
      if (index < 0) return {};
      const RouteStage& other = problem.stage(index);
      return {index, other.rank, edge, before ? stage.hop : other.hop, other.rank == stage.rank};
    };
    const auto index = static_cast<int32_t>(states_.size());
    StageState state;
    state.first = stage.first;
    state.count = stage.count;
    state.before = neighbour(stage.before, stage.edge_before, true);
    state.after = neighbour(stage.after, stage.edge_after, false);
    state.memory = stage.memory;
    for (size_t i = 0; i < 4 && stage.count > 0; ++i) {
      state.cost[i] = problem.Duration({kCosted[i], index}, 0);
    }
    states_.push_back(state);
  }
  if (!problem.alike()) scaled_ = problem.ChunkDurations();
  place_.resize(states_.size());
  for (const std::vector<int>& here : problem.stages_of) {
    places_ = std::max(places_, here.size());
    for (size_t i = 0; i < here.size(); ++i) place_[static_cast<size_t>(here[i])] = i;
  }
  if (problem.alike()) {
    pair_.resize(states_.size() * places_);
    for (const std::vector<int>& here : problem.stages_of) {
      for (const int stage : here) {
        for (const int back : here) {
          if (At(stage).count > 0 && At(back).count > 0) {
            pair_[PairIndex(stage, back)] = problem.Duration({Op::FB, stage, back}, 0, 0);
          }
        }
      }
    }
  }
  const size_t ranks = problem.stages_of.size();
  arrivals_.resize(2 * static_cast<size_t>(problem.chunks()));
  edge_free_.resize(problem.edges);
  for (auto* of_ranks : {&lane_free_, &first_start_, &waits_, &result_.peak, &result_.rank_ends}) {
    of_ranks->resize(ranks);
  }
  next_.resize(ranks);
  ready_.reserve(ranks);
}

const Evaluation& Evaluator::Run(const Order& order, const NoiseDraw* draw) {
  draw_ = draw;
  CF_ASSERT(order.size() == problem_.stages_of.size());
  Reset();
  while (!ready_.empty()) {
    const int r = ready_.back();
    ready_.pop_back();
    if (!Walk(r, order[static_cast<size_t>(r)])) return result_;
  }
  for (size_t r = 0; r < order.size(); ++r) {
    if (next_[r] < order[r].size()) return result_;
  }
  result_.runs = true;
  result_.fits = true;
  for (size_t r = 0; r < order.size(); ++r) {
    const Time end = lane_free_[r];
    result_.rank_ends[r] = end;
    result_.makespan = std::max(result_.makespan, end);
    if (!order[r].empty()) result_.span = std::max(result_.span, end - first_start_[r]);
    if (result_.peak[r] > problem_.Room(r)) result_.fits = false;
  }
  return result_;
}

void Evaluator::Reset() {
  for (StageState& state : states_) state.f = state.b = state.w = 0;
  for (auto* times : {&edge_free_, &lane_free_, &first_start_, &result_.peak}) {
    std::fill(times->begin(), times->end(), 0);
  }
  std::fill(arrivals_.begin(), arrivals_.end(), kUnset);
  memory_.assign(next_.size(), {});
  std::fill(waits_.begin(), waits_.end(), kRuns);
  std::fill(next_.begin(), next_.end(), 0);
  result_.runs = result_.fits = false;
  result_.makespan = result_.span = 0;
  ready_.clear();
  for (size_t r = next_.size(); r-- > 0;) ready_.push_back(static_cast<int>(r));
}

/// Runs a rank until it waits or ends; false if it would wait for ever on its own actions.
bool Evaluator::Walk(int rank, const ActionList& list) {
  const auto r = static_cast<size_t>(rank);
  Time lane = lane_free_[r];
  RankMemory memory = memory_[r];
  size_t at = next_[r];
  bool sound = true;
  for (; at < list.size(); ++at) {
    const Action& action = list[at];
    Time start = lane;
    const Step step = Ready(rank, action, &start);
    if (step != Step::kDone) {
      sound = step == Step::kWaits;
      break;
    }
    if (at == 0) first_start_[r] = start;
    lane = start + Duration(action);
    if (HasForward(action.op)) {
      StageState& state = At(action.stage);
      memory.Begin(action.op, state.memory);
      Depart(state.after, state.f++, 0, lane);
    }
    StageState& back = At(BackStage(action));
    if (HasBackward(action.op)) Depart(back.before, back.b++, 1, lane);
    if (HasWeight(action.op)) ++back.w;
    memory.End(action.op, back.memory, back.memory);
  }
  next_[r] = at;
  lane_free_[r] = lane;
  memory_[r] = memory;
  result_.peak[r] = memory.peak();
  return sound;
}

/// When all that the action needs is there, or what it waits for. A value that a rank makes itself
/// is there once it has run: its lane is free no earlier.
Evaluator::Step Evaluator::Ready(int rank, const Action& action, Time* ready) {
  if (HasForward(action.op)) {
    const StageState& own = At(action.stage);
    if (own.f == own.count) return Step::kNever;
    const Step step = Arrived(rank, own, false, ready);
    if (step != Step::kDone) return step;
  }
  const StageState& back = At(BackStage(action));
  if (HasBackward(action.op)) {
    if (back.b == back.f || (HasWeight(action.op) && back.w != back.b)) return Step::kNever;
    return Arrived(rank, back, true, ready);
  }
  return HasWeight(action.op) && back.w == back.b ? Step::kNever : Step::kDone;
}

/// The same of what the stage's next F or B gets from a neighbour.
Evaluator::Step Evaluator::Arrived(int rank, const StageState& stage, bool backward, Time* ready) {
  const Neighbour& from = backward ? stage.after : stage.before;
  if (from.stage < 0) return Step::kDone;
  const int32_t k = backward ? stage.b : stage.f;
  if (from.here) {
    const StageState& other = At(from.stage);
    return (backward ? other.b : other.f) > k ? Step::kDone : Step::kNever;
  }
  const size_t message = MessageOf(stage, k, backward);
  if (arrivals_[message] == kUnset) {
    waits_[static_cast<size_t>(rank)] = static_cast<int64_t>(message);
    return Step::kWaits;
  }
  *ready = std::max(*ready, arrivals_[message]);
  return Step::kDone;
}

Time Evaluator::Duration(const Action& action) const {
  const StageState& own = At(action.stage);
  if (action.op == Op::FB) {
    const int32_t b = At(action.back).b;
    if (draw_ != nullptr) return draw_->Duration(action, own.f, b);
    if (!pair_.empty()) return pair_[PairIndex(action.stage, action.back)];
    return problem_.Duration(action, own.f, b);
  }
  const int k = HasForward(action.op) ? own.f : HasBackward(action.op) ? own.b : own.w;
  if (draw_ != nullptr) return draw_->Duration(action, k);
  const size_t index = CostIndex(action.op);
  if (scaled_[0].empty()) return own.cost[index];
  return scaled_[index][own.first + static_cast<size_t>(k)];
}

/// The output of the k-th F (0) or B (1) goes to the stage after it, which may be on this rank.
void Evaluator::Depart(const Neighbour& to, int32_t k, size_t backward, Time made) {
  if (to.stage < 0 || to.here) return;
  if (to.edge >= 0) {
    Time& free = edge_free_[static_cast<size_t>(to.edge)];
    made = std::max(made, free);
    free = made + to.hop - latency_;
  }
  const size_t message = MessageOf(At(to.stage), k, backward);
  arrivals_[message] = made + to.hop;
  int64_t& waits = waits_[static_cast<size_t>(to.rank)];
  if (waits != static_cast<int64_t>(message)) return;
  waits = kRuns;
  ready_.push_back(to.rank);
}

}  // namespace contraflow
