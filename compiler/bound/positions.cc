// Order of micro-batches. Number the forwards of one stage in the order in which its rank runs
// them, whatever their micro-batches, and likewise its backwards and its rests. A relation between
// one micro-batch's forwards of two stages holds between the k-th of the one and the k-th of the
// other: of k micro-batches that have come through a stage, k have come through the one before it.
// With the shortest f, b and rest of every stage,
//
//     F of s + 1, k   starts no earlier than   F of s, k   + f + hop       (likewise B upwards)
//     B of the last, k                         F of the last, k + f
//     W of s, k                                B of s, k   + b
//     F of s, k + 1                            F of s, k   + f             (likewise B, W)
//     B of s, k                                F of s, k   + f + R         where recomputed
//
// A memory limit adds more (Memory), and so does what a rank has to do between two of its
// operations (Work between). Pairs as in chunk.cc, and no path counts a rest that could be part of
// one.
//
// Memory. A limit says this about the order of micro-batches: let n = limit / activation and s0,
// s1, .. be the stages of one route on the rank, in order.
//
//  * When the k-th forward of s_j starts, k micro-batches have had their forwards of s_0 .. s_j and
//    at most k - 1 their backward of any of these, for that comes after their forward of s_j. If
//    beta_i backwards of s_i have ended, sum over i <= j of (k - beta_i) activations are held, each
//    k - beta_i >= 1: no more than n together, so k - beta_i <= n - j, and
//    B of s_i, k - (n - j) ends before F of s_j, k starts. The latest of these is i = 0.
//  * Between the end of its B and of its W a chunk holds a stash. So with omega_i rests ended
//    sum of stash (k - omega_i) + (activation - stash) (k - beta_i) <= limit, and with
//    k - beta_i >= 1: k - omega_i <= (limit - (j + 1) (activation - stash)) / stash - j.
//  * Together. The first of these, read as a sum: over i <= j at least (j + 1) k - n backwards have
//    ended, and at most k - 1 of each s_i. All but n - j - 1 of these (j + 1) (k - 1) come before
//    F of s_j, k: it starts no earlier than the (n - j)-th latest of them ends. Likewise rests. And
//    read from the end of B of s_j: the (n - j)-th earliest of the forwards of s_0 .. s_j with
//    numbers above k starts after it.
//  * No deadlock. Let p micro-batches have started their forward of s_j and not that of s_(j+1).
//    All p hold j + 1 activations until they have been to s_(j+1) and back, and the next forward of
//    s_(j+1) takes one more: p (j + 1) + 1 <= n. So
//    F of s_(j+1), k - (n - 1) / (j + 1) ends before F of s_j, k starts.
//
// All of this holds for any part of the rank's stages, so those that are recomputed, and hold less,
// are left out.
//
// Work between. A micro-batch comes to a rank's stages s_0, s_1, .. of one route in this order, and
// to their backwards in the reverse one: call F of s_0, F of s_1, .., B of s_1, B of s_0 the passes
// of the rank. The k-th of each pass comes after the k-th of the pass before it. So all of the i-th
// to the k-th of the passes from `from` to `to` come after the i-th of `from` and, but for `to`
// itself, before the k-th of `to`. The rank runs them one at a time: that takes
//
//     (k - i + 1) (durations from `from` to the one before `to`) + (k - i) duration of `to`.
//
// An R of a stage comes between its F and its B. And the k-th rest of a stage comes after the k-th
// of its backwards, so the i-th to the (k - 1)-th of the rests lie between as well.
//
// The work left when the i-th of a pass starts is, of each position from i on, that pass and all
// that follow it, and the rests of those that are backwards.
//
// A rank that is busy all the time pushes its k-th backward as far back as its work, wherever that
// is done; seen from another rank this is a head or a tail that grows with k. It is what keeps two
// ranks from being as fast as each of them could be: one that can give its backwards no faster than
// it has forwards in between, and one upstream that cannot wait for them.

#include "compiler/bound/positions.h"

#include <algorithm>
#include <map>

#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"

namespace contraflow {
namespace {

class RuleMaker {
 public:
  RuleMaker(const BoundInput& input, const RouteWork& route) : input_(input), route_(route) {}

  MemoryRules Make() {
    rules_.before.resize(route_.stages());
    rules_.together.resize(route_.stages());
    if (!input_.memory) return rules_;
    std::map<int, std::vector<size_t>> stages;  // by rank
    for (size_t s = 0; s < route_.stages(); ++s) {
      if (!route_.recomputed[s]) stages[route_.ranks[s]].push_back(s);
    }
    for (const auto& [rank, list] : stages) {
      for (size_t j = 0; j < list.size(); ++j) AddPrecedencesOf(list, j);
    }
    return rules_;
  }

 private:
  void AddPrecedencesOf(const std::vector<size_t>& stages, size_t j) {
    const MemoryLimit& memory = *input_.memory;
    const auto nested = static_cast<int64_t>(j);
    const auto least = [this](size_t s) { return route_.least[s]; };
    Add(Pass::kBackward, stages[0], stages[j], memory.slots() - nested, least(stages[0]).b);
    if (memory.stash() > 0) {
      const int64_t kept = (nested + 1) * (memory.activation() - memory.stash());
      const int64_t shift = (*memory.amount() - kept) / memory.stash() - nested;
      Add(Pass::kRest, stages[0], stages[j], shift, input_.RestOfPosition(route_, stages[0]));
      if (j > 0)
        Add(Pass::kRest, stages[j], stages[j], shift, input_.RestOfPosition(route_, stages[j]));
    }
    if (j > 0) AddTogether({stages.begin(), stages.begin() + static_cast<ptrdiff_t>(j) + 1});
    if (j + 1 < stages.size()) {
      const int64_t shift = (memory.slots() - 1) / (nested + 1);
      Add(Pass::kForward, stages[j + 1], stages[j], shift, least(stages[j + 1]).f);
    }
  }

  void Add(Pass from, size_t from_stage, size_t to_stage, int64_t shift, Time delay) {
    CF_ASSERT(shift >= 1);
    if (static_cast<size_t>(shift) >= route_.count) return;
    rules_.before[to_stage].push_back(
        {from, from_stage, to_stage, static_cast<size_t>(shift), delay});
    rules_.precedences.push_back(rules_.before[to_stage].back());
  }

  void AddTogether(const std::vector<size_t>& stages) {
    const MemoryLimit& memory = *input_.memory;
    const auto all = static_cast<int64_t>(stages.size());
    Together together = {stages, static_cast<size_t>(memory.slots() - all), SIZE_MAX};
    if (memory.stash() > 0) {
      const int64_t kept = all * (memory.activation() - memory.stash());
      together.rests = static_cast<size_t>((*memory.amount() - kept) / memory.stash() - all);
    }
    rules_.together[stages.back()] = together;
  }

  const BoundInput& input_;
  const RouteWork& route_;
  MemoryRules rules_;
};

/// With more stages a rank, only those from one pass to the next, and from F to B of a stage: the
/// pairs of passes grow with the square of the stages.
constexpr size_t kMostForAllPairs = 2;

struct PassOfRank {
  Pass pass;
  size_t stage;
  Time duration;
};

std::map<int, std::vector<PassOfRank>> PassesOf(const RouteWork& route) {
  std::map<int, std::vector<PassOfRank>> passes;  // by rank
  for (size_t s = 0; s < route.stages(); ++s) {
    passes[route.ranks[s]].push_back({Pass::kForward, s, route.least[s].f});
  }
  for (size_t s = route.stages(); s-- > 0;) {
    passes[route.ranks[s]].push_back({Pass::kBackward, s, route.least[s].b});
  }
  return passes;
}

/// Adds the times from passes[a] to each later pass.
void AddFrom(const BoundInput& input, const RouteWork& route, const std::vector<PassOfRank>& passes,
             size_t a, std::vector<WorkBetween>* between) {
  const auto& [pass, stage, duration] = passes[a];
  Time once = 0;
  for (size_t b = a; b < passes.size(); ++b) {
    const PassOfRank& to = passes[b];
    const size_t own = passes.size() - 1 - b;  // where the forward of a backward's stage is
    const bool backward = to.pass == Pass::kBackward;
    if (backward && own >= a) once += route.least[to.stage].recompute;
    const bool all = passes.size() <= 2 * kMostForAllPairs;
    if (b > a && (all || b == a + 1 || own == a)) {
      between->push_back({pass, to.pass, stage, to.stage, once, once + to.duration});
    }
    once += to.duration;
    // To a rest only from its own stage.
    if (backward && (b == a || own == a)) {
      between->push_back(
          {pass, Pass::kRest, stage, to.stage, once, once + input.RestOfPosition(route, to.stage)});
    }
  }
}

/// Looking at more of the latest than this would no longer be linear in chunks; the bound is none
/// the less valid without.
constexpr size_t kMostTogether = 64;

/// The work between at one end, with what they amount to for the positions so far.
class Reaches {
 public:
  explicit Reaches(size_t stages) : first_(3 * stages + 1, 0) {}

  void Count(size_t end) { ++first_[end + 1]; }
  void Sum() {
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    next_ = first_;
    all_.resize(first_.back());
  }
  /// `other`: the times of the operation at the other end, by position.
  void Add(size_t end, const WorkBetween& work, const Time* other) {
    all_[next_[end]++] = {other, work.once, work.each, -work.each};
  }

  /// The longest over all work between of an operation: of position k, after those before it, in
  /// whichever direction.
  Time Longest(size_t end, size_t k) {
    Time longest = 0;
    for (size_t i = first_[end]; i < first_[end + 1]; ++i) {
      Reach& reach = all_[i];
      reach.longest = std::max(reach.other[k] + reach.once, reach.longest + reach.each);
      longest = std::max(longest, reach.longest);
    }
    return longest;
  }

 private:
  struct Reach {
    const Time* other = nullptr;
    Time once = 0, each = 0;
    Time longest = 0;
  };
  std::vector<Reach> all_;  // by end: positions go through them again and again
  std::vector<size_t> first_, next_;
};

class Finder {
 public:
  Finder(const BoundInput& input, const RouteWork& route, Positions* positions)
      : input_(input),
        route_(route),
        size_(route.count),
        rules_(RulesOf(input, route)),
        remainder_(RemainderOf(input, route)),
        f_head_(positions->f_head),
        b_head_(positions->b_head),
        w_head_(positions->w_head),
        f_left_(positions->f_left),
        b_left_(positions->b_left),
        w_left_(positions->w_left),
        to_(route.stages()),
        from_(route.stages()) {
    for (auto* times : {&f_head_, &b_head_, &w_head_, &f_left_, &b_left_, &w_left_}) {
      times->assign(route.stages() * size_, 0);
    }
    AddWorkBetween();
  }

  /// First heads, then tails.
  void FindHeads() {
    const size_t stages = route_.stages();
    for (size_t k = 0; k < size_; ++k) {
      const auto behind = [&](const std::vector<Time>& head, size_t s, Time duration) {
        return k == 0 ? 0 : head[At(s, k - 1)] + duration;
      };
      for (size_t s = 0; s < stages; ++s) {
        Time head = behind(f_head_, s, route_.least[s].f);
        if (s > 0) {
          head = std::max(head, f_head_[At(s - 1, k)] + route_.least[s - 1].f + route_.hop[s]);
        }
        for (const Precedence& p : rules_.before[s]) {
          if (k < p.shift) continue;
          head = std::max(head, HeadsOf(p.from)[At(p.from_stage, k - p.shift)] + p.delay);
        }
        const Time work = to_.Longest(Of(Pass::kForward, s), k);
        f_head_[At(s, k)] = std::max({head, HeadTogether(s, k), work});
      }
      for (size_t s = stages; s-- > 0;) {
        const CellWork& least = route_.least[s];
        const Time ready = s + 1 == stages
                               ? f_head_[At(s, k)] + least.f
                               : b_head_[At(s + 1, k)] + route_.least[s + 1].b + route_.hop[s + 1];
        b_head_[At(s, k)] = std::max({ready, behind(b_head_, s, least.b),
                                      f_head_[At(s, k)] + least.f + least.recompute,
                                      to_.Longest(Of(Pass::kBackward, s), k)});
        w_head_[At(s, k)] = std::max({b_head_[At(s, k)] + least.b, behind(w_head_, s, RestOf(s)),
                                      to_.Longest(Of(Pass::kRest, s), k)});
      }
    }
  }

  void FindTails() {
    const size_t stages = route_.stages();
    for (size_t k = size_; k-- > 0;) {
      // Demands of a later position on this one are final when this one is visited: shifts are >=
      // 1.
      const auto ahead = [&](const std::vector<Time>& left, size_t s) {
        return k + 1 == size_ ? 0 : left[At(s, k + 1)];
      };
      for (const Precedence& p : rules_.precedences) {
        if (k + p.shift >= size_) continue;
        const Time left = p.delay + f_left_[At(p.to_stage, k + p.shift)];
        Time& own = LeftOf(p.from)[At(p.from_stage, k)];
        own = std::max(own, left);
      }
      for (size_t s = 0; s < stages; ++s) {
        const CellWork& least = route_.least[s];
        Time& w = w_left_[At(s, k)];
        w = std::max(w, RestOf(s) + ahead(w_left_, s));
        Time& b = b_left_[At(s, k)];
        Time after = std::max({input_.RestOnPath(route_, s, least), w, ahead(b_left_, s)});
        if (s > 0) after = std::max(after, route_.hop[s] + b_left_[At(s - 1, k)]);
        after = std::max(after, LeftTogether(s, k));
        const Time all = remainder_.backward[s] * static_cast<Time>(size_ - k);
        b = std::max({b, least.b + after, all, from_.Longest(Of(Pass::kBackward, s), k)});
      }
      for (size_t s = stages; s-- > 0;) {
        Time& f = f_left_[At(s, k)];
        const Time next =
            s + 1 == stages ? b_left_[At(s, k)] : route_.hop[s + 1] + f_left_[At(s + 1, k)];
        const Time own = route_.least[s].recompute + b_left_[At(s, k)];
        const Time all = remainder_.forward[s] * static_cast<Time>(size_ - k);
        f = std::max({f, route_.least[s].f + std::max({next, own, ahead(f_left_, s)}), all,
                      from_.Longest(Of(Pass::kForward, s), k)});
      }
    }
  }

 private:
  size_t At(size_t s, size_t k) const { return s * size_ + k; }
  Time RestOf(size_t s) const { return input_.RestOfPosition(route_, s); }

  /// Returns the largest value of a few descending lists of `length`, without the `spared` largest;
  /// 0 if none is left. `time(i, k)` is the k-th of list i.
  template <typename TimeOf>
  Time Largest(size_t lists, size_t length, size_t spared, TimeOf time) const {
    if (spared > kMostTogether || spared >= length * lists) return 0;
    std::vector<size_t>& next = latest_;
    next.assign(lists, 0);
    for (;; --spared) {
      size_t best = lists;
      Time largest = -1;
      for (size_t i = 0; i < lists; ++i) {
        if (next[i] == length || time(i, next[i]) <= largest) continue;
        largest = time(i, next[i]);
        best = i;
      }
      if (spared == 0) return largest;
      ++next[best];
    }
  }

  /// When enough of what precedes F of s, k together has ended.
  Time HeadTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    if (together.stages.empty()) return 0;
    const auto b = [&](size_t i, size_t back) {
      const size_t stage = together.stages[i];
      return b_head_[At(stage, k - 1 - back)] + route_.least[stage].b;
    };
    const auto rest = [&](size_t i, size_t back) {
      const size_t stage = together.stages[i];
      return w_head_[At(stage, k - 1 - back)] + RestOf(stage);
    };
    return std::max(Largest(together.stages.size(), k, together.backwards, b),
                    Largest(together.stages.size(), k, together.rests, rest));
  }

  /// Time after the end of B of s, k by the forwards that come after it together.
  Time LeftTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    return Largest(
        together.stages.size(), size_ - k - 1, together.backwards,
        [&](size_t i, size_t ahead) { return f_left_[At(together.stages[i], k + 1 + ahead)]; });
  }

  std::vector<Time>& HeadsOf(Pass from) {
    if (from == Pass::kForward) return f_head_;
    return from == Pass::kBackward ? b_head_ : w_head_;
  }

  /// Index by operation, `stages` apart.
  size_t Of(Pass pass, size_t s) const { return static_cast<size_t>(pass) * route_.stages() + s; }

  void AddWorkBetween() {
    const std::vector<WorkBetween> between = WorkBetweenOf(input_, route_);
    for (const WorkBetween& work : between) {
      to_.Count(Of(work.to, work.to_stage));
      from_.Count(Of(work.from, work.from_stage));
    }
    to_.Sum();
    from_.Sum();
    for (const WorkBetween& work : between) {
      const size_t from = At(work.from_stage, 0), to = At(work.to_stage, 0);
      to_.Add(Of(work.to, work.to_stage), work, HeadsOf(work.from).data() + from);
      from_.Add(Of(work.from, work.from_stage), work, LeftOf(work.to).data() + to);
    }
  }

  std::vector<Time>& LeftOf(Pass from) {
    if (from == Pass::kForward) return f_left_;
    return from == Pass::kBackward ? b_left_ : w_left_;
  }

  const BoundInput& input_;
  const RouteWork& route_;
  const size_t size_;
  const MemoryRules rules_;
  const Remainder remainder_;
  std::vector<Time>&f_head_, &b_head_, &w_head_, &f_left_, &b_left_, &w_left_;
  Reaches to_, from_;                   // work between, by its ends
  mutable std::vector<size_t> latest_;  // of Largest, to allocate once
};

}  // namespace

MemoryRules RulesOf(const BoundInput& input, const RouteWork& route) {
  return RuleMaker(input, route).Make();
}

std::vector<WorkBetween> WorkBetweenOf(const BoundInput& input, const RouteWork& route) {
  std::vector<WorkBetween> between;
  if (input.pairs) return between;
  for (const auto& [rank, passes] : PassesOf(route)) {
    for (size_t a = 0; a < passes.size(); ++a) AddFrom(input, route, passes, a, &between);
  }
  return between;
}

Remainder RemainderOf(const BoundInput& input, const RouteWork& route) {
  Remainder remainder;
  remainder.forward.assign(route.stages(), 0);
  remainder.backward.assign(route.stages(), 0);
  if (input.pairs) return remainder;
  for (const auto& [rank, passes] : PassesOf(route)) {
    Time left = 0;
    for (size_t p = passes.size(); p-- > 0;) {
      const auto& [pass, stage, duration] = passes[p];
      const bool backward = pass == Pass::kBackward;
      left +=
          duration + (backward ? input.RestOfPosition(route, stage) : route.least[stage].recompute);
      (backward ? remainder.backward : remainder.forward)[stage] = left;
    }
  }
  return remainder;
}

Positions::Positions(const BoundInput& input, const RouteWork& route) : route_(&route) {
  Finder finder(input, route, this);
  finder.FindHeads();
  finder.FindTails();
}

}  // namespace contraflow
