#include "schedules/repeating_block.h"

#include <algorithm>
#include <array>
#include <utility>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr Time kNowhere = -1;

}  // namespace

BlockSearch::BlockSearch(const SearchProblem& problem) : problem_(problem) {
  const size_t lines = problem.lines.size();
  block_.f.resize(lines);
  block_.b.resize(lines);
  block_.w.resize(lines);
  busy_.resize(problem.lines_of.size());
  for (size_t line = 0; line < lines; ++line) {
    const auto route = static_cast<size_t>(problem.lines[line].route);
    if (routes_.size() <= route) routes_.resize(route + 1);
    routes_[route].push_back(static_cast<int>(line));
  }
  // Held for no less than this, by rank.
  std::vector<double> area(problem.lines_of.size(), 0);
  for (const std::vector<int>& route : routes_) {
    Time lag = 0;
    for (size_t s = route.size(); s-- > 0;) {
      const Line& line = problem.lines[static_cast<size_t>(route[s])];
      area[static_cast<size_t>(line.rank)] +=
          static_cast<double>(lag + line.cost.f + line.cost.b) * static_cast<double>(line.held) +
          static_cast<double>(line.cost.w) * static_cast<double>(line.stash);
      lag += line.cost.f + line.cost.b + 2 * line.hop;
    }
  }
  for (size_t r = 0; r < problem.lines_of.size(); ++r) {
    Time work = 0;
    for (const int line : problem.lines_of[r]) {
      const StageCost& cost = problem.lines[static_cast<size_t>(line)].cost;
      work += cost.f + cost.b + cost.w;
    }
    least_ = std::max(least_, work);
    if (problem.limit)
      least_ = std::max(least_, static_cast<Time>(area[r] / static_cast<double>(*problem.limit)));
  }
  least_ = std::max<Time>(least_, 1);
}

/// The first start from `ready` on at which the rank is free for so long in every period.
Time BlockSearch::FirstFit(size_t rank, Time ready, Time length) const {
  const Time period = block_.period;
  Time start = ready;
  // Every busy stretch pushes the start behind it at most once; twice round is enough.
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

int64_t BlockSearch::Try(Time period, int spread, std::mt19937_64* random) {
  block_.period = period;
  for (std::vector<Busy>& busy : busy_) busy.clear();
  // One delay for each pass over the ranks, and one in a few instructions has its own.
  const auto draw = [&](Time length) {
    if (spread == 0) return Time{0};
    const auto most = static_cast<uint64_t>(length * spread / 100 + 1);
    return static_cast<Time>((*random)() % most);
  };
  Time entry = 0;
  for (const std::vector<int>& route : routes_) {
    Time now = entry;
    Time pass = 0;
    const auto step = [&](size_t s, bool forward) {
      const Line& line = problem_.lines[static_cast<size_t>(route[s])];
      const Time length = forward ? line.cost.f : line.cost.b;
      if (spread > 0 && (*random)() % 8 == 0) now += draw(length);
      Time& start = (forward ? block_.f : block_.b)[static_cast<size_t>(route[s])];
      if (!Put(static_cast<size_t>(line.rank), now + pass, length, &start)) return false;
      now = start + length;
      return true;
    };
    // A new pass wherever the way turns on a rank.
    const auto turn = [&](int hop_rank, int rank, Time length) {
      if (hop_rank != rank) return;
      pass = spread > 0 && (*random)() % 2 == 0 ? draw(length) / 2 : 0;
      if (spread > 0 && (*random)() % 2 == 0) now += draw(2 * length);
    };
    for (size_t s = 0; s < route.size(); ++s) {
      const Line& line = problem_.lines[static_cast<size_t>(route[s])];
      now += line.hop;
      turn(s == 0 ? line.rank : problem_.lines[static_cast<size_t>(route[s - 1])].rank, line.rank,
           line.cost.f);
      if (!step(s, true)) return kNoRoom;
    }
    for (size_t s = route.size(); s-- > 0;) {
      const Line& line = problem_.lines[static_cast<size_t>(route[s])];
      int from = line.rank;
      if (s + 1 < route.size()) {
        const Line& after = problem_.lines[static_cast<size_t>(route[s + 1])];
        now += after.hop;
        from = after.rank;
      }
      turn(from, line.rank, line.cost.b);
      if (!step(s, false)) return kNoRoom;
    }
    entry = spread == 0 ? 0 : static_cast<Time>((*random)() % static_cast<uint64_t>(period));
  }
  int64_t excess = INT64_MIN;
  for (size_t r = 0; r < busy_.size(); ++r) {
    for (const int index : problem_.lines_of[r]) {
      const auto line = static_cast<size_t>(index);
      const StageCost& cost = problem_.lines[line].cost;
      if (!Put(r, block_.b[line] + cost.b, cost.w, &block_.w[line])) {
        // No gap is long enough, but the gaps together are: the list scheduler finds a place.
        block_.w[line] = block_.b[line] + cost.b;
      }
    }
    if (problem_.limit) excess = std::max(excess, PeakOf(r) - *problem_.limit);
  }
  return problem_.limit ? excess : 0;
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
  const std::vector<int>& lines = problem_.lines_of[rank];
  Change* changes = few.data();
  if (3 * lines.size() > few.size()) {
    many.resize(3 * lines.size());
    changes = many.data();
  }
  size_t count = 0;
  int64_t held = 0;
  const auto change = [&](Time time, int64_t by) {
    // What began or ended q periods ago is there now, or gone, q times.
    const Time period = block_.period;
    const Time q = time / period;
    changes[count++] = {time - q * period, by};
    held -= q * by;
  };
  for (const int index : lines) {
    const auto i = static_cast<size_t>(index);
    const Line& line = problem_.lines[i];
    change(block_.f[i], line.held);
    change(block_.b[i] + line.cost.b, line.stash - line.held);
    change(block_.w[i] + line.cost.w, -line.stash);
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
  Order order(problem.lines_of.size());
  struct Next {
    Time time;
    Token token;
    int left;
  };
  for (size_t r = 0; r < order.size(); ++r) {
    std::vector<Next> next;
    size_t total = 0;
    for (const int index : problem.lines_of[r]) {
      const auto i = static_cast<size_t>(index);
      const int count = problem.lines[i].count;
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
      order[r].push_back(first->token);
      first->time += block.period;
      --first->left;
    }
  }
  return order;
}

}  // namespace contraflow
