#include "schedules/pairs/incremental_evaluator.h"

#include <algorithm>
#include <limits>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr int32_t kNobody = -1;

/// How much is to do from each step on.
template <typename Step>
void SumFromEnd(const std::vector<Step>& steps, std::vector<Time>* rest) {
  rest->resize(steps.size());
  Time sum = 0;
  for (size_t i = steps.size(); i-- > 0;) (*rest)[i] = sum += steps[i].duration;
}

}  // namespace

bool IncrementalEvaluator::Takes(const SearchProblem& problem) {
  return problem.alike() && !problem.costs.comm.exclusive();
}

IncrementalEvaluator::IncrementalEvaluator(const SearchProblem& problem, const Order& order)
    : problem_(problem),
      times_(2 * static_cast<size_t>(problem.chunks())),
      counts_(problem.stages.size()) {
  CF_ASSERT(Takes(problem) && order.size() == problem.stages_of.size());
  const auto stages = static_cast<int32_t>(problem.stages.size());
  place_.resize(problem.stages.size());
  for (const std::vector<int>& here : problem.stages_of) {
    for (size_t i = 0; i < here.size(); ++i) place_[static_cast<size_t>(here[i])] = i;
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    const RouteStage& own = problem.stage(stage);
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
  ranks_.resize(order.size());
  trials_.resize(order.size());
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

IncrementalEvaluator::Part IncrementalEvaluator::PartOf(int stage, int k, bool backward) const {
  const RouteStage& own = problem_.stage(stage);
  const int from = backward ? own.after : own.before, to = backward ? own.before : own.after;
  const auto number = [&](int of) {
    return static_cast<int32_t>(2 * problem_.Chunk(of, k)) + (backward ? 1 : 0);
  };
  Part part = {.number = number(stage)};
  if (from >= 0) {
    part.needs = number(from);
    part.hop = problem_.stage(backward ? from : stage).hop;
  }
  if (to >= 0) part.wakes = problem_.stage(to).rank;
  return part;
}

/// Sets counts_ to what runs before a place of a list.
void IncrementalEvaluator::CountBefore(const ActionList& list, size_t at) const {
  counts_.Reset();
  for (size_t i = 0; i < at; ++i) counts_.Pass(list[i]);
}

/// Appends the steps of actions that run after what counts_ says.
void IncrementalEvaluator::StepsOf(const ActionList& piece, std::vector<Step>* steps) const {
  for (const Action& action : piece) {
    Step step;
    step.duration = DurationOf(action);
    const int32_t back = BackStage(action);
    if (HasForward(action.op)) {
      step.parts[0] = PartOf(action.stage, counts_[action.stage].f, false);
    }
    if (HasBackward(action.op)) step.parts[1] = PartOf(back, counts_[back].b, true);
    counts_.Pass(action);
    steps->push_back(step);
  }
}

bool IncrementalEvaluator::Fits(size_t r, size_t from, size_t to, const ActionList& piece) const {
  const Rank& rank = ranks_[r];
  CountBefore(rank.list, from);
  int64_t held = from < rank.held.size() ? rank.held[from] : 0;
  CF_ASSERT(to <= rank.list.size());
  for (const Action& action : piece) {
    const auto [f, b, w] = counts_[BackStage(action)];
    if (action.op == Op::R) return false;
    if (HasBackward(action.op)) {
      if (b == f || (HasWeight(action.op) && w != b)) return false;
    } else if (HasWeight(action.op) && w == b) {
      return false;
    }
    held += problem_.Taken(action);
    if (HasForward(action.op) && held > problem_.Room(r)) return false;
    held -= problem_.Given(action);
    counts_.Pass(action);
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
  SumFromEnd(steps_, &rest_);
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

bool IncrementalEvaluator::Arrived(const Part& part, Time* ready) const {
  if (part.needs < 0) return true;
  const PartTimes& times = times_[static_cast<size_t>(part.needs)];
  const bool tried = times.mark == mark_;
  if (!tried && times.start >= since_) return false;
  *ready = std::max(*ready, (tried ? times.tried_end : times.end) + part.hop);
  return true;
}

/// Runs a rank until it waits or ends; false if the makespan would be above `most`.
bool IncrementalEvaluator::Walk(size_t r, Time most) {
  Trial& trial = trials_[r];
  const std::vector<Step>& steps = r == rank_ ? steps_ : ranks_[r].steps;
  const std::vector<Time>& rest = r == rank_ ? rest_ : ranks_[r].rest;
  Time lane = trial.lane;
  size_t at = trial.next;
  for (; at < steps.size(); ++at) {
    const Step& step = steps[at];
    Time start = lane;
    const auto* const late = std::find_if(step.parts.begin(), step.parts.end(),
                                          [&](const Part& p) { return !Arrived(p, &start); });
    if (late != step.parts.end()) {
      trial.waits = late->needs;
      break;
    }
    if (!rest.empty() && start + rest[at] > most) return false;
    trial.starts.push_back(start);
    lane = start + step.duration;
    for (const Part& part : step.parts) {
      if (part.number < 0) continue;
      PartTimes& times = times_[static_cast<size_t>(part.number)];
      times.tried_end = lane;
      times.mark = mark_;
      if (part.wakes < 0) continue;
      const auto other = static_cast<size_t>(part.wakes);
      if (trials_[other].waits != part.number) continue;
      trials_[other].waits = kNobody;
      ready_.push_back(other);
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
      for (const Part& part : step.parts) {
        if (part.number < 0) continue;
        PartTimes& times = times_[static_cast<size_t>(part.number)];
        times.start = start;
        times.end = start + step.duration;
      }
    }
    if (rank.rest.empty()) SumFromEnd(rank.steps, &rank.rest);
    if (r != rank_ && !rank.held.empty()) continue;
    rank.held.clear();
    int64_t held = 0;
    for (const Action& action : rank.list) {
      rank.held.push_back(held);
      held += problem_.Taken(action) - problem_.Given(action);
    }
  }
  makespan_ = tried_makespan_;
  cost_ = tried_cost_;
}

}  // namespace contraflow
