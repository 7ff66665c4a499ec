#include "schedules/pairs/incremental_evaluator.h"

#include <algorithm>
#include <limits>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr int64_t kNobody = -1;

}  // namespace

bool IncrementalEvaluator::Takes(const SearchProblem& problem) {
  return problem.scale.empty() && !problem.costs.comm.exclusive();
}

IncrementalEvaluator::IncrementalEvaluator(const SearchProblem& problem, const Order& order)
    : problem_(problem) {
  CF_ASSERT(Takes(problem) && order.size() == problem.stages_of.size());
  size_t chunks = 0;
  const auto stages = static_cast<int32_t>(problem.stages.size());
  place_.resize(problem.stages.size());
  for (const std::vector<int>& here : problem.stages_of) {
    for (size_t i = 0; i < here.size(); ++i) place_[static_cast<size_t>(here[i])] = i;
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    const RouteStage& own = problem.stage(stage);
    first_.push_back(chunks);
    chunks += static_cast<size_t>(own.count);
    cost_of_.push_back({});
    pair_.emplace_back();
    if (own.count == 0) continue;
    for (const Op op : {Op::F, Op::B, Op::W, Op::BW}) {
      cost_of_.back()[CostIndex(op)] = problem.Duration({op, stage}, 0);
    }
    for (const int back : problem.stages_of[static_cast<size_t>(own.rank)]) {
      const bool some = problem.stage(back).count > 0;
      pair_.back().push_back(some ? problem.Duration({Op::FB, stage, back}, 0, 0) : 0);
    }
  }
  counts_.resize(problem.stages.size());
  for (std::vector<Time>* times : {&f_start_, &f_end_, &b_start_, &b_end_, &f_new_, &b_new_}) {
    times->assign(chunks, 0);
  }
  f_mark_.assign(chunks, 0);
  b_mark_.assign(chunks, 0);
  ranks_.resize(order.size());
  trials_.resize(order.size());
  ends_.resize(order.size());
  for (size_t r = 0; r < order.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.list = order[r];
    CountBefore(rank.list, 0);
    StepsOf(rank.list, &rank.steps);
    rank.start.assign(rank.list.size(), 0);
  }
}

std::optional<IncrementalEvaluator> IncrementalEvaluator::Of(const SearchProblem& problem,
                                                             const Order& order) {
  IncrementalEvaluator run(problem, order);
  if (!run.Begin()) return std::nullopt;
  return run;
}

bool IncrementalEvaluator::Begin() {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!Fits(r, 0, 0, ranks_[r].list)) return false;
  }
  rank_ = from_ = 0;
  to_ = ranks_[0].list.size();
  piece_ = ranks_[0].list;
  steps_ = ranks_[0].steps;
  Start(0);
  if (!Run(std::numeric_limits<Time>::max())) return false;
  Commit();
  return true;
}

Order IncrementalEvaluator::TakeOrder() const {
  Order order;
  for (const Rank& rank : ranks_) order.push_back(rank.list);
  return order;
}

Time IncrementalEvaluator::DurationOf(const Action& action) const {
  const auto stage = static_cast<size_t>(action.stage);
  if (action.op == Op::FB) return pair_[stage][place_[static_cast<size_t>(action.back)]];
  return cost_of_[stage][CostIndex(action.op)];
}

void IncrementalEvaluator::SetForward(int stage, int k, Step* step) const {
  const RouteStage& own = problem_.stage(stage);
  step->forward = static_cast<int32_t>(At(stage, k));
  if (own.before >= 0) {
    step->needs_f = static_cast<int32_t>(At(own.before, k));
    step->hop_f = own.hop;
  }
  if (own.after >= 0) step->wakes_f = problem_.stage(own.after).rank;
}

void IncrementalEvaluator::SetBackward(int stage, int k, Step* step) const {
  const RouteStage& own = problem_.stage(stage);
  step->backward = static_cast<int32_t>(At(stage, k));
  if (own.after >= 0) {
    step->needs_b = static_cast<int32_t>(At(own.after, k));
    step->hop_b = problem_.stage(own.after).hop;
  }
  if (own.before >= 0) step->wakes_b = problem_.stage(own.before).rank;
}

/// Sets counts_ to what runs before a place of a list.
void IncrementalEvaluator::CountBefore(const ActionList& list, size_t at) const {
  std::fill(counts_.begin(), counts_.end(), Counts{});
  for (size_t i = 0; i < at; ++i) {
    const Action& action = list[i];
    Counts& back = counts_[static_cast<size_t>(action.op == Op::FB ? action.back : action.stage)];
    counts_[static_cast<size_t>(action.stage)].f += HasForward(action.op);
    back.b += HasBackward(action.op);
    back.w += HasWeight(action.op);
  }
}

/// Appends the steps of actions that run behind what counts_ says.
void IncrementalEvaluator::StepsOf(const ActionList& piece, std::vector<Step>* steps) const {
  for (const Action& action : piece) {
    Step step;
    step.duration = DurationOf(action);
    const int back = action.op == Op::FB ? action.back : action.stage;
    if (HasForward(action.op)) {
      SetForward(action.stage, counts_[static_cast<size_t>(action.stage)].f++, &step);
    }
    if (HasBackward(action.op)) {
      SetBackward(back, counts_[static_cast<size_t>(back)].b++, &step);
    }
    if (HasWeight(action.op)) ++counts_[static_cast<size_t>(back)].w;
    steps->push_back(step);
  }
}

bool IncrementalEvaluator::Fits(size_t r, size_t from, size_t to, const ActionList& piece) const {
  const Rank& rank = ranks_[r];
  CountBefore(rank.list, from);
  int64_t held = from < rank.held.size() ? rank.held[from] : 0;
  CF_ASSERT(to <= rank.list.size());
  for (const Action& action : piece) {
    Counts& own = counts_[static_cast<size_t>(action.stage)];
    const int back = action.op == Op::FB ? action.back : action.stage;
    Counts& other = counts_[static_cast<size_t>(back)];
    const RouteStage& back_stage = problem_.stage(back);
    if (action.op == Op::R) return false;
    if (HasBackward(action.op)) {
      if (other.b == other.f || (HasWeight(action.op) && other.w != other.b)) return false;
    } else if (HasWeight(action.op) && other.w == other.b) {
      return false;
    }
    if (HasForward(action.op)) {
      held += problem_.stage(action.stage).held;
      if (problem_.limit && held > *problem_.limit) return false;
    }
    own.f += HasForward(action.op);
    other.b += HasBackward(action.op);
    other.w += HasWeight(action.op);
    if (HasBackward(action.op)) held -= back_stage.held - back_stage.stash;
    if (HasWeight(action.op)) held -= back_stage.stash;
  }
  return true;
}

std::optional<Time> IncrementalEvaluator::Try(size_t r, size_t from, size_t to,
                                              const ActionList& piece, Time most) {
  const Rank& rank = ranks_[r];
  rank_ = r;
  from_ = from;
  to_ = to;
  piece_ = piece;
  const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
  CountBefore(rank.list, from);
  steps_.assign(rank.steps.begin(), rank.steps.begin() + at(from));
  StepsOf(piece, &steps_);
  steps_.insert(steps_.end(), rank.steps.begin() + at(to), rank.steps.end());
  Start(from == 0 ? 0 : rank.start[from - 1]);
  if (!Run(most)) return std::nullopt;
  return tried_cost_;
}

void IncrementalEvaluator::Start(Time since) {
  since_ = since;
  ++mark_;
  rest_.resize(steps_.size());
  Time rest = 0;
  for (size_t i = steps_.size(); i-- > 0;) rest_[i] = rest += steps_[i].duration;
  ready_.clear();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Trial& trial = trials_[r];
    const Rank& rank = ranks_[r];
    const auto limit =
        r == rank_ ? rank.start.begin() + static_cast<std::ptrdiff_t>(from_) : rank.start.end();
    trial.first = static_cast<size_t>(std::lower_bound(rank.start.begin(), limit, since) -
                                      rank.start.begin());
    trial.next = trial.first;
    trial.lane =
        trial.first == 0 ? 0 : rank.start[trial.first - 1] + rank.steps[trial.first - 1].duration;
    trial.waits = kNobody;
    trial.starts.clear();
    ready_.push_back(r);
  }
}

bool IncrementalEvaluator::Run(Time most) {
  while (!ready_.empty()) {
    const size_t r = ready_.back();
    ready_.pop_back();
    if (!Walk(r, most)) return false;
  }
  Time sum = 0;
  tried_makespan_ = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const size_t length = r == rank_ ? steps_.size() : ranks_[r].steps.size();
    if (trials_[r].next < length) return false;
    tried_makespan_ = std::max(tried_makespan_, trials_[r].lane);
    sum += trials_[r].lane;
  }
  tried_cost_ = 2 * static_cast<Time>(ranks_.size()) * tried_makespan_ + sum;
  return true;
}

bool IncrementalEvaluator::Arrived(int32_t chunk, bool backward, Time hop, Time* ready) const {
  const auto at = static_cast<size_t>(chunk);
  Time end;
  if ((backward ? b_mark_ : f_mark_)[at] == mark_) {
    end = (backward ? b_new_ : f_new_)[at];
  } else if ((backward ? b_start_ : f_start_)[at] < since_) {
    end = (backward ? b_end_ : f_end_)[at];
  } else {
    return false;
  }
  *ready = std::max(*ready, end + hop);
  return true;
}

/// Runs a rank until it waits or ends; false if the makespan would be above `most`.
bool IncrementalEvaluator::Walk(size_t r, Time most) {
  Trial& trial = trials_[r];
  const std::vector<Step>& steps = r == rank_ ? steps_ : ranks_[r].steps;
  const std::vector<Time>& rest = r == rank_ ? rest_ : ranks_[r].rest;
  Time lane = trial.lane;
  size_t at = trial.next;
  const auto wake = [&](int32_t other, int64_t key) {
    Trial& waiting = trials_[static_cast<size_t>(other)];
    if (waiting.waits != key) return;
    waiting.waits = kNobody;
    ready_.push_back(static_cast<size_t>(other));
  };
  for (; at < steps.size(); ++at) {
    const Step& step = steps[at];
    Time start = lane;
    if (step.needs_f >= 0 && !Arrived(step.needs_f, false, step.hop_f, &start)) {
      trial.waits = int64_t{2} * step.needs_f;
      break;
    }
    if (step.needs_b >= 0 && !Arrived(step.needs_b, true, step.hop_b, &start)) {
      trial.waits = int64_t{2} * step.needs_b + 1;
      break;
    }
    if (!rest.empty() && start + rest[at] > most) return false;
    trial.starts.push_back(start);
    lane = start + step.duration;
    if (step.forward >= 0) {
      const auto chunk = static_cast<size_t>(step.forward);
      f_new_[chunk] = lane;
      f_mark_[chunk] = mark_;
      if (step.wakes_f >= 0) wake(step.wakes_f, int64_t{2} * step.forward);
    }
    if (step.backward >= 0) {
      const auto chunk = static_cast<size_t>(step.backward);
      b_new_[chunk] = lane;
      b_mark_[chunk] = mark_;
      if (step.wakes_b >= 0) wake(step.wakes_b, int64_t{2} * step.backward + 1);
    }
  }
  work_ += static_cast<int64_t>(at - trial.next) + 1;
  trial.next = at;
  trial.lane = lane;
  return true;
}

void IncrementalEvaluator::Commit() {
  Rank& changed = ranks_[rank_];
  const auto at = [](size_t i) { return static_cast<std::ptrdiff_t>(i); };
  changed.list.erase(changed.list.begin() + at(from_), changed.list.begin() + at(to_));
  changed.list.insert(changed.list.begin() + at(from_), piece_.begin(), piece_.end());
  changed.steps = steps_;
  changed.start.resize(steps_.size());
  changed.rest = rest_;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const Trial& trial = trials_[r];
    for (size_t i = 0; i < trial.starts.size(); ++i) {
      const Time start = trial.starts[i];
      const Step& step = rank.steps[trial.first + i];
      rank.start[trial.first + i] = start;
      if (step.forward >= 0) {
        f_start_[static_cast<size_t>(step.forward)] = start;
        f_end_[static_cast<size_t>(step.forward)] = start + step.duration;
      }
      if (step.backward >= 0) {
        b_start_[static_cast<size_t>(step.backward)] = start;
        b_end_[static_cast<size_t>(step.backward)] = start + step.duration;
      }
    }
    rank.end = trial.lane;
    if (rank.rest.empty()) {
      rank.rest.resize(rank.steps.size());
      Time rest = 0;
      for (size_t i = rank.steps.size(); i-- > 0;) rank.rest[i] = rest += rank.steps[i].duration;
    }
    if (r != rank_ && !rank.held.empty()) continue;
    rank.held.clear();
    int64_t held = 0;
    for (const Action& action : rank.list) {
      rank.held.push_back(held);
      const RouteStage& own = problem_.stage(action.stage);
      const RouteStage& back = problem_.stage(action.op == Op::FB ? action.back : action.stage);
      if (HasForward(action.op)) held += own.held;
      if (HasBackward(action.op)) held -= back.held - back.stash;
      if (HasWeight(action.op)) held -= back.stash;
    }
  }
  makespan_ = tried_makespan_;
  cost_ = tried_cost_;
}

}  // namespace contraflow
