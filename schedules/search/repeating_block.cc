#include "schedules/search/repeating_block.h"

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/plan/error.h"

namespace contraflow {
namespace {

constexpr Time kNowhere = -1;

}  // namespace

BlockSearch::BlockSearch(const SearchProblem& problem) : problem_(problem) {
  const size_t stages = problem.stages.size();
  block_.f.resize(stages);
  block_.b.resize(stages);
  block_.w.resize(stages);
  busy_.resize(problem.stages_of.size());
  for (size_t stage = 0; stage < stages; ++stage) {
    const auto route = static_cast<size_t>(problem.stages[stage].route);
    if (routes_.size() <= route) routes_.resize(route + 1);
    routes_[route].push_back(static_cast<int>(stage));
  }
  // Held for no less than this, by rank.
  std::vector<double> area(problem.stages_of.size(), 0);
  for (const std::vector<int>& route : routes_) {
    Time lag = 0;
    for (size_t s = route.size(); s-- > 0;) {
      const RouteStage& stage = problem.stage(route[s]);
      area[static_cast<size_t>(stage.rank)] +=
          static_cast<double>(lag + stage.cost.f + stage.cost.b) *
              static_cast<double>(stage.memory.activation) +
          static_cast<double>(stage.cost.w) * static_cast<double>(stage.memory.stash);
      lag += stage.cost.f + stage.cost.b + 2 * stage.hop;
    }
  }
  for (size_t r = 0; r < problem.stages_of.size(); ++r) {
    Time work = 0;
    for (const int stage : problem.stages_of[r]) {
      const StageCost& cost = problem.stage(stage).cost;
      work += cost.f + cost.b + cost.w;
    }
    least_ = std::max(least_, work);
    if (problem.limit)
      least_ = std::max(least_, static_cast<Time>(area[r] / static_cast<double>(*problem.limit)));
  }
  least_ = std::max<Time>(least_, 1);
  delays_.assign(routes_.size() + 2 * stages, 0);
}

/// The first start from `ready` on at which the rank is free for so long in every period.
Time BlockSearch::FirstFit(size_t rank, Time ready, Time length) const {
  const Time period = block_.period;
  Time start = ready;
  // Every busy stretch pushes the start after it at most once; twice round is enough.
  const std::vector<Busy>& busy = busy_[rank];
  for (size_t moved = 0, round = 0; round < 2 * busy.size() + 2; ++round) {
    moved = 0;
    for (const Busy& other : busy) {
      // The begin of `other` at or after start, and its end from before.
      Time behind = (start - other.begin) % period;
      if (behind < 0) behind += period;
      if (behind < other.length) {
        start += other.length - behind;
        ++moved;
      } else if (behind + length > period) {
        start += period - behind + other.length;
        ++moved;
      }
      if (start - ready > period) return kNowhere;
    }
    if (moved == 0) return start;
  }
  return kNowhere;
}

bool BlockSearch::Put(size_t rank, Time ready, Time length, Time* start) {
  *start = FirstFit(rank, ready, length);
  if (*start == kNowhere) return false;
  if (length > 0) busy_[rank].push_back({*start % block_.period, length});
  return true;
}

BlockSearch::Fit BlockSearch::Search(Time period, int rounds, std::mt19937_64* random) {
  Fit best = Place(period);
  for (int round = 0; round < rounds && best.excess > 0; ++round) {
    const std::vector<Time> before = delays_;
    Mutate(random);
    const Fit fit = Place(period);
    if (best < fit) {
      delays_ = before;
    } else {
      best = fit;
    }
  }
  return Place(period);
}

/// A new delay for one instruction, for a stretch of them, or none.
void BlockSearch::Mutate(std::mt19937_64* random) {
  const auto draw = [random](size_t below) { return static_cast<size_t>((*random)() % below); };
  const size_t first = draw(delays_.size());
  const RouteStage& stage = problem_.stages[draw(problem_.stages.size())];
  const Time most = std::max({stage.cost.f, stage.cost.b, stage.cost.w, Time{1}});
  const Time delay = draw(3) == 0 ? 0 : static_cast<Time>(draw(static_cast<size_t>(most))) + 1;
  const size_t length = draw(3) > 0 ? 1 : 1 + draw(std::min(delays_.size() - first, size_t{64}));
  const Time share = length > 1 && draw(2) == 0 ? 4 : 1;
  for (size_t i = first; i < first + length; ++i) delays_[i] = delay / share;
}

BlockSearch::Fit BlockSearch::Place(Time period) {
  block_.period = period;
  for (std::vector<Busy>& busy : busy_) busy.clear();
  size_t next = 0;
  for (const std::vector<int>& route : routes_) {
    Time now = delays_[next++];
    for (const int index : route) {
      const auto i = static_cast<size_t>(index);
      const RouteStage& stage = problem_.stages[i];
      now += stage.hop + delays_[next++];
      if (!Put(static_cast<size_t>(stage.rank), now, stage.cost.f, &block_.f[i])) return {kNoRoom};
      now = block_.f[i] + stage.cost.f;
    }
    for (size_t s = route.size(); s-- > 0;) {
      const auto i = static_cast<size_t>(route[s]);
      const RouteStage& stage = problem_.stages[i];
      if (s + 1 < route.size()) now += problem_.stage(route[s + 1]).hop;
      now += delays_[next++];
      if (!Put(static_cast<size_t>(stage.rank), now, stage.cost.b, &block_.b[i])) return {kNoRoom};
      now = block_.b[i] + stage.cost.b;
    }
  }
  Fit fit;
  for (size_t r = 0; r < busy_.size(); ++r) {
    for (const int index : problem_.stages_of[r]) {
      const auto i = static_cast<size_t>(index);
      const RouteStage& stage = problem_.stages[i];
      const Time end = block_.b[i] + stage.cost.b;
      // If no gap is long enough the list scheduler finds a place.
      if (!Put(r, end, stage.cost.w, &block_.w[i])) block_.w[i] = end;
      fit.area +=
          static_cast<double>(stage.memory.activation) * static_cast<double>(end - block_.f[i]) +
          static_cast<double>(stage.memory.stash) *
              static_cast<double>(block_.w[i] + stage.cost.w - end);
    }
    if (problem_.limit) fit.excess += std::max<int64_t>(0, PeakOf(r) - *problem_.limit);
  }
  return fit;
}

int64_t BlockSearch::PeakOf(size_t rank) const {
  struct Change {
    Time time;
    int64_t held;
    bool operator<(const Change& other) const {
      return std::pair(time, held) < std::pair(other.time, other.held);
    }
  };
  std::array<Change, 64> few;
  std::vector<Change> many;
  const std::vector<int>& stages = problem_.stages_of[rank];
  Change* changes = few.data();
  if (3 * stages.size() > few.size()) {
    many.resize(3 * stages.size());
    changes = many.data();
  }
  size_t count = 0;
  int64_t held = 0;
  const auto change = [&](Time time, int64_t by) {
    // A chunk that began or ended q periods ago is there now, or gone, q times.
    const Time period = block_.period;
    const Time q = time / period;
    changes[count++] = {time - q * period, by};
    held -= q * by;
  };
  for (const int index : stages) {
    const auto i = static_cast<size_t>(index);
    const RouteStage& stage = problem_.stages[i];
    change(block_.f[i], stage.memory.activation);
    change(block_.b[i] + stage.cost.b, stage.memory.stash - stage.memory.activation);
    change(block_.w[i] + stage.cost.w, -stage.memory.stash);
  }
  std::sort(changes, changes + count);
  int64_t peak = held;
  for (size_t c = 0; c < count; ++c) {
    held += changes[c].held;
    peak = std::max(peak, held);
  }
  return peak;
}

Order OrderOf(const SearchProblem& problem, const RepeatingBlock& block) {
  Order order(problem.stages_of.size());
  struct Next {
    Time time;
    Action action;
    int left;
  };
  for (size_t r = 0; r < order.size(); ++r) {
    std::vector<Next> next;
    size_t total = 0;
    for (const int index : problem.stages_of[r]) {
      const auto i = static_cast<size_t>(index);
      const int count = problem.stages[i].count;
      if (count == 0) continue;
      next.push_back({block.f[i], {Op::F, index, -1}, count});
      next.push_back({block.b[i], {Op::B, index, -1}, count});
      total += 2 * static_cast<size_t>(count);
    }
    order[r].reserve(total);
    while (order[r].size() < total) {
      Next* first = nullptr;
      for (Next& other : next) {
        if (other.left > 0 && (first == nullptr || other.time < first->time)) first = &other;
      }
      order[r].push_back(first->action);
      first->time += block.period;
      --first->left;
    }
  }
  return order;
}

}  // namespace contraflow
