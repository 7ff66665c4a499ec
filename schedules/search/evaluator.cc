#include "schedules/search/evaluator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "compiler/plan/error.h"
#include "schedules/local/noise.h"

namespace contraflow {
namespace {

constexpr Time kUnset = -1;
constexpr int64_t kRuns = -1;  // a rank that waits for nothing

}  // namespace

Evaluator::Evaluator(const SearchProblem& problem) : problem_(problem) {
  const std::vector<RouteStage>& stages = problem.stages;
  const CommCost& comm = problem.costs.comm;
  occupancy_ = comm.occupancy;
  latency_ = comm.latency;
  std::map<std::pair<int, int>, int32_t> edges;
  const auto edge = [&](int from, int to) -> int32_t {
    if (!comm.exclusive()) return -1;
    return edges.emplace(std::pair(from, to), static_cast<int32_t>(edges.size())).first->second;
  };
  size_t first = 0;
  for (const RouteStage& stage : stages) {
    StageState state;
    state.first = first;
    state.count = stage.count;
    first += static_cast<size_t>(stage.count);
    if (stage.before >= 0) {
      state.before = stage.before;
      state.rank_before = stages[static_cast<size_t>(stage.before)].rank;
      state.before_here = state.rank_before == stage.rank;
      if (!state.before_here) state.edge_before = edge(stage.rank, state.rank_before);
    }
    if (stage.after >= 0) {
      state.after = stage.after;
      state.rank_after = stages[static_cast<size_t>(stage.after)].rank;
      state.after_here = state.rank_after == stage.rank;
      if (!state.after_here) state.edge_after = edge(stage.rank, state.rank_after);
    }
    state.held = stage.held;
    state.stash = stage.stash;
    const auto index = static_cast<int32_t>(states_.size());
    for (size_t i = 0; i < 4 && stage.count > 0; ++i) {
      state.cost[i] = problem.Duration({kCosted[i], index}, 0);
    }
    states_.push_back(state);
  }
  if (!problem.scale.empty()) {
    for (size_t i = 0; i < 4; ++i) {
      scaled_[i].reserve(first);
      for (size_t stage = 0; stage < stages.size(); ++stage) {
        for (int k = 0; k < stages[stage].count; ++k) {
          scaled_[i].push_back(problem.Duration({kCosted[i], static_cast<int32_t>(stage)}, k));
        }
      }
    }
  }
  place_.resize(stages.size());
  for (const std::vector<int>& here : problem.stages_of) {
    places_ = std::max(places_, here.size());
    for (size_t i = 0; i < here.size(); ++i) {
      place_[static_cast<size_t>(here[i])] = static_cast<int32_t>(i);
    }
  }
  if (problem.scale.empty()) {
    pair_.resize(stages.size() * places_);
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      const std::vector<int>& here = problem.stages_of[static_cast<size_t>(stages[stage].rank)];
      for (size_t i = 0; i < here.size(); ++i) {
        if (stages[stage].count == 0 || stages[static_cast<size_t>(here[i])].count == 0) continue;
        pair_[stage * places_ + i] =
            problem.Duration({Op::FB, static_cast<int32_t>(stage), here[i]}, 0, 0);
      }
    }
  }
  const size_t ranks = problem.stages_of.size();
  f_in_.resize(first);
  b_in_.resize(first);
  edge_free_.resize(edges.size());
  lane_free_.resize(ranks);
  first_start_.resize(ranks);
  waits_.resize(ranks);
  held_.resize(ranks);
  next_.resize(ranks);
  ready_.reserve(ranks);
  result_.peak.resize(ranks);
  result_.rank_ends.resize(ranks);
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
    if (problem_.limit && result_.peak[r] > *problem_.limit) result_.fits = false;
  }
  return result_;
}

void Evaluator::Reset() {
  for (StageState& state : states_) state.f = state.b = state.w = 0;
  std::fill(f_in_.begin(), f_in_.end(), kUnset);
  std::fill(b_in_.begin(), b_in_.end(), kUnset);
  std::fill(edge_free_.begin(), edge_free_.end(), 0);
  std::fill(lane_free_.begin(), lane_free_.end(), 0);
  std::fill(first_start_.begin(), first_start_.end(), 0);
  std::fill(waits_.begin(), waits_.end(), kRuns);
  std::fill(held_.begin(), held_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(result_.peak.begin(), result_.peak.end(), 0);
  result_.runs = result_.fits = false;
  result_.makespan = result_.span = 0;
  ready_.clear();
  for (size_t r = next_.size(); r-- > 0;) ready_.push_back(static_cast<int>(r));
}

/// Runs a rank until it waits or ends; false if it would wait for ever on its own actions.
bool Evaluator::Walk(int rank, const ActionList& list) {
  const auto r = static_cast<size_t>(rank);
  Time lane = lane_free_[r];
  int64_t held = held_[r], peak = result_.peak[r];
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
    const auto stage = static_cast<size_t>(action.stage);
    if (HasForward(action.op)) {
      StageState& state = states_[stage];
      const int k = state.f++;
      held += state.held;
      peak = std::max(peak, held);
      if (state.after >= 0 && !state.after_here) {
        const size_t to = At(state.after).first + static_cast<size_t>(k);
        Depart(state.rank_after, state.edge_after, lane, &f_in_, to, static_cast<int64_t>(2 * to));
      }
    }
    if (HasBackward(action.op)) {
      StageState& state = states_[action.op == Op::FB ? static_cast<size_t>(action.back) : stage];
      const int k = state.b++;
      held -= state.held - state.stash;
      if (state.before >= 0 && !state.before_here) {
        const size_t to = At(state.before).first + static_cast<size_t>(k);
        Depart(state.rank_before, state.edge_before, lane, &b_in_, to,
               static_cast<int64_t>(2 * to + 1));
      }
    }
    if (HasWeight(action.op)) {
      StageState& state = states_[action.op == Op::FB ? static_cast<size_t>(action.back) : stage];
      ++state.w;
      held -= state.stash;
    }
  }
  next_[r] = at;
  lane_free_[r] = lane;
  held_[r] = held;
  result_.peak[r] = peak;
  return sound;
}

/// When all that the action needs is there, or what it waits for. What a rank makes itself is there
/// once it has run: its lane is free no earlier.
Evaluator::Step Evaluator::Ready(int rank, const Action& action, Time* ready) {
  StageState& own = At(action.stage);
  int64_t& wait = waits_[static_cast<size_t>(rank)];
  if (HasForward(action.op)) {
    if (own.f == own.count) return Step::kNever;
    if (own.before_here) {
      if (At(own.before).f <= own.f) return Step::kNever;
    } else if (own.before >= 0) {
      const size_t at = own.first + static_cast<size_t>(own.f);
      if (f_in_[at] == kUnset) {
        wait = static_cast<int64_t>(2 * at);
        return Step::kWaits;
      }
      *ready = std::max(*ready, f_in_[at]);
    }
  }
  StageState& back = action.op == Op::FB ? At(action.back) : own;
  if (HasBackward(action.op)) {
    if (back.b == back.f || (HasWeight(action.op) && back.w != back.b)) return Step::kNever;
    if (back.after_here) {
      if (At(back.after).b <= back.b) return Step::kNever;
    } else if (back.after >= 0) {
      const size_t at = back.first + static_cast<size_t>(back.b);
      if (b_in_[at] == kUnset) {
        wait = static_cast<int64_t>(2 * at + 1);
        return Step::kWaits;
      }
      *ready = std::max(*ready, b_in_[at]);
    }
  } else if (HasWeight(action.op) && back.w == back.b) {
    return Step::kNever;
  }
  return Step::kDone;
}

Time Evaluator::Duration(const Action& action) const {
  const auto stage = static_cast<size_t>(action.stage);
  const StageState& own = states_[stage];
  if (draw_ != nullptr) {
    if (action.op == Op::FB) {
      return draw_->Duration(action, own.f, At(action.back).b);
    }
    const int k = HasForward(action.op) ? own.f : HasBackward(action.op) ? own.b : own.w;
    return draw_->Duration(action, k);
  }
  if (action.op == Op::FB) {
    const auto back = static_cast<size_t>(action.back);
    if (!pair_.empty()) return pair_[stage * places_ + static_cast<size_t>(place_[back])];
    return problem_.Duration(action, own.f, states_[back].b);
  }
  const size_t index = CostIndex(action.op);
  if (scaled_[0].empty()) return own.cost[index];
  const int k = index == 0 ? own.f : index == 2 ? own.w : own.b;
  return scaled_[index][own.first + static_cast<size_t>(k)];
}

void Evaluator::Depart(int32_t to, int32_t edge, Time made, std::vector<Time>* arrivals, size_t at,
                       int64_t wait) {
  if (edge >= 0) {
    Time& free = edge_free_[static_cast<size_t>(edge)];
    made = std::max(made, free);
    free = made + occupancy_;
  }
  (*arrivals)[at] = made + occupancy_ + latency_;
  if (waits_[static_cast<size_t>(to)] != wait) return;
  waits_[static_cast<size_t>(to)] = kRuns;
  ready_.push_back(to);
}

}  // namespace contraflow
