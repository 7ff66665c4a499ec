// Windows of a rank with any stages and routes. Before its first backward, which starts no earlier
// than `first`, a rank can only run forwards, no more than fit in memory. After its last forward it
// can only run backwards and rests of what it holds, and no less than `last` passes, the shortest
// lag with its backward and the way upstream after it. The lane is idle in the part of the two
// windows that this work does not fill. The windows do not meet unless all forwards come before all
// backwards, which takes memory for all of them; then only the larger idle counts.
//
// Pairs shorter than their parts have one forward and one backward each, so as many backwards of a
// rank are in no pair as forwards: let that be u of them. In the windows there are no pairs, so no
// more than u forwards and u backwards, and no more than the rank can hold:
//
//     makespan >= head + work + savings that are not made
//                 + max(0, first - head - u longest forwards) + max(0, last - u longest backwards).
//
// The bound is the least of this for any u >= 1: with few the windows are idle, with many the
// savings are not made. Without savings it is that for all chunks. Ranks that recompute are left
// out: R fills windows as well.
//
// Savings that are not made. A pair saves no more than either of its chunks lets it. So one that
// saves `least` or more, the least of the rank, has u forwards too few; one that saves `much` or
// more, which only the chunks of some stages do, has as many too few as v of their forwards or
// backwards are in no pair with each other, whichever are more. v is at least 1: the last backward
// of these chunks is not in a pair with one of their forwards, which has its backward still to
// come.
//
//     savings that are not made >= u least + v (much - least), 1 <= v <= u,
//
// and of what fills a window no more than v are forwards or backwards of these stages.
//
// Parts of windows. Before the head of a stage is over, the rank can only run forwards of stages
// with an earlier one; that time, too, counts from the rank's head to `first` at most. Likewise in
// the last of the step, no longer than the way upstream after a stage, no backward of it runs, and
// of its chunks rests alone. Each window is idle for as long as the part that is filled least.
//
// The end of a rank. The second window has a part into which no backward fits. When the last B of
// the rank has ended its micro-batch still has the way upstream before it, no less than `end`, and
// all that the rank can run until then are rests of what it holds, of u backwards at most, for the
// backward of a pair leaves no rest:
//
//     idle >= max(0, end - u longest rests).
//
// The last B comes after the last forward, whose own backward is still to come, so this lies within
// the second window and the larger of the two counts. With many backwards the window is full but
// for this part: in DualPipe's placement of P ranks the way upstream from the middle takes (P / 2 -
// 1) b and a rest.
//
// The opening of a rank: what it does before its first backward, forwards alone, and no more of
// them than fit in memory, n. Let the first backward be of stage s, and let j forwards run before
// the forward x of the same chunk. A forward is not interrupted, so x starts
//
//     no earlier than the head of s, and then the rank was idle for wait - j longest or more,
//
// where wait is what the head of s is later than that of the rank. From the end of x to the start
// of its backward the lag of s passes, in which n - 1 - j forwards run at most:
//
//     idle >= max(0, wait - j longest) + max(0, lag - (n - 1 - j) longest).
//
// Which stage and which j the bound cannot know: it is the least for any. If x has to wait a little
// more than j forwards take, the rank is idle in front of x; one forward more before x is one less
// after it, which memory lets it run only once. That is so on the middle ranks of a bidirectional
// placement with n = P + 1: wait = f + hop, for x the second forward a hop of idle time, for x the
// third the last forward missing from the lag. One window with n forwards in it, however they lie,
// does not see it.
//
// Without the max the sum does not depend on j; the first term falls with j until it is 0, the
// second is 0 until it rises. So the least is at an end, or next to one of the two corners.

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/bound/work.h"

namespace contraflow {
namespace {

/// A stage of a rank: of all micro-batches the most that fills a window, and what is least of them.
struct StageOfRank {
  Time head = kNever, tail = kNever, least_saving = kNever;
  Time longest_f = 0, longest_b = 0, longest_rest = 0;
  int64_t count = 0;
  bool much = false;  ///< of those with the larger savings
};

struct RankOpening {
  Time head = kNever, first = kNever, last = kNever, end = kNever;
  Time longest_f = 0;
  Time work = 0;
  int64_t count = 0;
  bool clipped = false;
  std::vector<FirstBackwardIdle> openings;  ///< of its stages
  std::vector<StageOfRank> stages;
};

/// `count` micro-batches that are like the k-th of the route; `at`: of each stage of the route its
/// place among those of its rank.
void AddRoute(const BoundInput& input, const RouteWork& route, size_t k, size_t count,
              const std::vector<size_t>& at, std::vector<RankOpening>* ranks) {
  const std::vector<ChunkTimes> times = TimesOf(input, route, k);
  for (size_t s = 0; s < route.stages(); ++s) {
    const CellWork& chunk = route.At(s, k);
    const auto& [head, lag, tail] = times[s];
    RankOpening& rank = (*ranks)[static_cast<size_t>(route.ranks[s])];
    const Time after = std::max(tail, input.RestOnPath(route, s, chunk));
    rank.head = std::min(rank.head, head);
    rank.first = std::min(rank.first, head + chunk.f + lag);
    rank.last = std::min(rank.last, lag + chunk.b + after);
    rank.end = std::min(rank.end, after);
    rank.longest_f = std::max(rank.longest_f, chunk.f);
    rank.work += static_cast<Time>(count) * chunk.work();
    rank.count += static_cast<int64_t>(count);
    rank.clipped = rank.clipped || chunk.clipped;
    StageOfRank& stage = rank.stages[at[s]];
    stage.head = std::min(stage.head, head);
    stage.tail = std::min(stage.tail, tail);
    stage.least_saving = std::min(stage.least_saving, chunk.saving);
    stage.longest_f = std::max(stage.longest_f, chunk.f);
    stage.longest_b = std::max(stage.longest_b, chunk.b);
    stage.longest_rest = std::max(stage.longest_rest, chunk.weight);
    stage.count += static_cast<int64_t>(count);
  }
}

/// A part of a window, and what each stage can fill it with.
struct Part {
  struct Filling {
    Time each = 0;
    int64_t count = 0;
    bool much = false;
  };
  Time time = 0;
  Time most = kNever;                  ///< that the rank can hold of what fills it
  int64_t slots = 0;                   ///< chunks, at most
  std::vector<Filling> fillings = {};  ///< the longest first

  /// Least idle time of the window with u chunks in no pair, v of them of stages that save much.
  /// Convex in v.
  Time Idle(int64_t u, int64_t v) const {
    Time filled = 0;
    u = std::min(u, slots);
    for (const Filling& filling : fillings) {
      const int64_t number = std::min({u, filling.count, filling.much ? v : u});
      filled += number * filling.each;
      u -= number;
      if (filling.much) v -= number;
    }
    return std::max<Time>(0, time - std::min(filled, most));
  }
};

class Windows {
 public:
  /// `much`: what a stage that saves much does at least.
  Windows(const RankOpening& rank, const MemoryLimit* memory, Time much) : rank_(rank) {
    slots_ = memory ? std::min(memory->slots(), rank_.count) : rank_.count;
    SetSavings(much);
    AddParts(memory);
  }

  Bound Find() {
    best_ = {.value = kNever,
             .kind = many_ > 0 || least_ > 0 ? BoundKind::kPairs : BoundKind::kTwoWindows,
             .head = rank_.head};
    // A larger u without savings only fills the windows.
    for (int64_t u = least_ > 0 ? 1 : rank_.count; u <= rank_.count; ++u) {
      if (rank_.head + rank_.work + u * least_ >= best_.value) break;
      const int64_t most = std::min(u, many_);
      if (u == rank_.count) Consider(u, most, true);
      Search(u, u == rank_.count ? most - 1 : most);
    }
    return best_;
  }

 private:
  void SetSavings(Time much) {
    for (const StageOfRank& stage : rank_.stages) least_ = std::min(least_, stage.least_saving);
    if (rank_.clipped || much <= least_) return;
    more_ = much - least_;
    for (StageOfRank& stage : rank_.stages) {
      stage.much = stage.least_saving >= much;
      if (stage.much) many_ += stage.count;
    }
  }

  template <typename Each>
  Part PartOf(Time time, Time most, int64_t slots, Each each) const {
    Part part = {.time = time, .most = most, .slots = slots};
    for (const StageOfRank& stage : rank_.stages) {
      const Time here = each(stage);
      if (here > 0) part.fillings.push_back({here, stage.count, stage.much});
    }
    std::stable_sort(part.fillings.begin(), part.fillings.end(),
                     [](const auto& a, const auto& b) { return a.each > b.each; });
    return part;
  }

  void AddParts(const MemoryLimit* memory) {
    Time longest_b = 0, longest_rest = 0;
    for (const StageOfRank& stage : rank_.stages) {
      longest_b = std::max(longest_b, stage.longest_b);
      longest_rest = std::max(longest_rest, stage.longest_rest);
    }
    const Time held = memory ? MostHeld(*memory, rank_.count, longest_b, longest_rest) : kNever;
    const int64_t stashes = memory && memory->stash() > 0
                                ? std::min(*memory->amount() / memory->stash(), rank_.count)
                                : rank_.count;
    const auto forward = [](const StageOfRank& stage) { return stage.longest_f; };
    const auto rest = [](const StageOfRank& stage) { return stage.longest_rest; };
    first_.push_back(PartOf(rank_.first - rank_.head, kNever, slots_, forward));
    last_.push_back(PartOf(rank_.last, held, rank_.count, [](const StageOfRank& stage) {
      return stage.longest_b + stage.longest_rest;
    }));
    last_.push_back(PartOf(rank_.end, kNever, stashes, rest));
    for (const StageOfRank& late : rank_.stages) {
      if (late.head > rank_.head) {
        const Time until = std::min(late.head, rank_.first);
        first_.push_back(PartOf(until - rank_.head, kNever, slots_, [&](const StageOfRank& stage) {
          return stage.head < late.head ? stage.longest_f : 0;
        }));
      }
      const Time from = std::min(late.tail, rank_.last);
      last_.push_back(PartOf(from, held, rank_.count, [&](const StageOfRank& stage) {
        return (stage.tail < late.tail ? stage.longest_b : 0) + stage.longest_rest;
      }));
    }
  }

  static Time Idle(const std::vector<Part>& parts, int64_t u, int64_t v) {
    Time idle = 0;
    for (const Part& part : parts) idle = std::max(idle, part.Idle(u, v));
    return idle;
  }

  /// Not made savings and idle time with u chunks in no pair, v of those that save much.
  Time Of(int64_t u, int64_t v, Time opening, bool may_meet) const {
    const Time first = std::max(opening, Idle(first_, u, v)), last = Idle(last_, u, v);
    return u * least_ + v * more_ + (may_meet ? std::max(first, last) : first + last);
  }

  Time Opening(int64_t u) const {
    return IdleBeforeFirstBackward(rank_.openings, std::min(u, slots_), rank_.longest_f);
  }

  void Consider(int64_t u, int64_t v, bool all) {
    // Windows meet where nothing is in a pair.
    const Time more = Of(u, v, Opening(u), all && slots_ == rank_.count);
    const Time value = rank_.head + rank_.work + more;
    if (value >= best_.value) return;
    best_.value = value;
    best_.work = rank_.work + u * least_ + v * more_;
    best_.idle = value - best_.head - best_.work;
  }

  /// The least for any v from 1 to `most`: a convex function, with fewer chunks to fill windows or
  /// with more savings that are not made. Without chunks that save more than others v is 0.
  void Search(int64_t u, int64_t most) {
    if (many_ == 0 && most == 0) return Consider(u, 0, false);
    if (most < 1) return;
    const Time opening = Opening(u);
    int64_t low = 1;
    while (low < most) {
      const int64_t middle = low + (most - low) / 2;
      if (Of(u, middle, opening, false) > Of(u, middle + 1, opening, false)) {
        low = middle + 1;
      } else {
        most = middle;
      }
    }
    Consider(u, low, false);
  }

  RankOpening rank_;
  int64_t slots_ = 0;
  Time least_ = kNever, more_ = 0;  ///< that chunks let pairs save, and that some do beyond it
  int64_t many_ = 0;                ///< chunks of these
  std::vector<Part> first_, last_;
  Bound best_;
};

}  // namespace

Time IdleBeforeFirstBackward(const std::vector<FirstBackwardIdle>& openings, int64_t forwards,
                             Time longest) {
  Time least = std::numeric_limits<Time>::max();
  const int64_t others = forwards - 1;
  for (const auto& [wait, lag] : openings) {
    const auto idle = [&, wait = wait, lag = lag](int64_t before) {
      return std::max<Time>(0, wait - before * longest) +
             std::max<Time>(0, lag - (others - before) * longest);
    };
    least = std::min({least, idle(0), idle(others)});
    if (longest == 0) continue;
    for (const int64_t corner : {wait / longest, others - lag / longest}) {
      for (int64_t before = corner - 1; before <= corner + 1; ++before) {
        if (before > 0 && before < others) least = std::min(least, idle(before));
      }
    }
  }
  return least;
}

void RaiseByRankWindows(const BoundInput& input, Bound* best) {
  if (!input.pairs && !input.memory) return;
  std::vector<RankOpening> ranks(static_cast<size_t>(input.ranks));
  for (const RouteWork& route : input.routes) {
    std::vector<size_t> at;  // of each stage among those of its rank
    for (const int rank : route.ranks) {
      std::vector<StageOfRank>& stages = ranks[static_cast<size_t>(rank)].stages;
      at.push_back(stages.size());
      stages.emplace_back();
    }
    const size_t kinds = route.alike ? 1 : route.count;
    for (size_t k = 0; k < kinds; ++k) AddRoute(input, route, k, route.count / kinds, at, &ranks);
  }
  for (const RouteWork& route : input.routes) {
    const std::vector<ChunkTimes> times = LeastTimesOf(input, route);
    for (size_t s = 0; s < route.stages(); ++s) {
      RankOpening& rank = ranks[static_cast<size_t>(route.ranks[s])];
      rank.openings.push_back({times[s].head - rank.head, times[s].lag});
    }
  }
  for (int r = 0; r < input.ranks; ++r) {
    const auto index = static_cast<size_t>(r);
    if (ranks[index].count == 0 || input.recomputes[index]) continue;
    // Two of the ways to tell apart what saves much: all that is more than the least, and the most.
    std::vector<Time> savings;
    for (const StageOfRank& stage : ranks[index].stages) savings.push_back(stage.least_saving);
    std::ranges::sort(savings);
    const auto more = std::ranges::upper_bound(savings, savings.front());
    const Time most = savings.back(), second = more == savings.end() ? most : *more;
    for (const Time much : {most, second}) {
      Bound bound =
          Windows(ranks[index], input.memory ? &input.memory_of[index] : nullptr, much).Find();
      bound.rank = r;
      KeepLarger(best, bound);
      if (second == most) break;
    }
  }
}

}  // namespace contraflow
