// Order of micro-batches. Number the forwards of one stage in the order in which its rank runs
// them, whatever their micro-batches, and likewise its backwards and its rests. What holds between
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
// A memory limit adds more (bound_rules.cc), and so does what a rank has to do between two of its
// operations (bound_stretch.cc). Pairs as in bound_chunk.cc, and no path counts a rest that could
// be part of one.

#include "compiler/bound/positions.h"

#include <algorithm>

#include "compiler/bound/rules.h"
#include "compiler/bound/stretch.h"

namespace contraflow {
namespace {

/// Looking at more of the latest than this would no longer be linear in chunks; the bound is none
/// the less valid without.
constexpr size_t kMostTogether = 64;

/// The stretches at one end, with what they amount to for the positions so far.
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
  void Add(size_t end, const Stretch& stretch, const Time* other) {
    all_[next_[end]++] = {other, stretch.once, stretch.each, -stretch.each};
  }

  /// The longest over all stretches of an operation: of position k, after those before it, in
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
    AddStretches();
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
        b_head_[At(s, k)] =
            std::max({ready, behind(b_head_, s, least.b), f_head_[At(s, k)] + least.f + least.again,
                      to_.Longest(Of(Pass::kBackward, s), k)});
        w_head_[At(s, k)] = std::max({b_head_[At(s, k)] + least.b, behind(w_head_, s, RestOf(s)),
                                      to_.Longest(Of(Pass::kRest, s), k)});
      }
    }
  }

  void FindTails() {
    const size_t stages = route_.stages();
    for (size_t k = size_; k-- > 0;) {
      // What a later position asks of this one is final when this one is visited: shifts are >= 1.
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
        const Time own = route_.least[s].again + b_left_[At(s, k)];
        const Time all = remainder_.forward[s] * static_cast<Time>(size_ - k);
        f = std::max({f, route_.least[s].f + std::max({next, own, ahead(f_left_, s)}), all,
                      from_.Longest(Of(Pass::kForward, s), k)});
      }
    }
  }

 private:
  size_t At(size_t s, size_t k) const { return s * size_ + k; }
  Time RestOf(size_t s) const { return input_.RestOfPosition(route_, s); }

  /// The largest of `times` (each with its stage's `plus`) at numbers below k, but for the `spared`
  /// largest: of a few ascending lists, from their ends. 0 where there are none.
  template <typename Plus>
  Time Latest(const std::vector<size_t>& stages, const std::vector<Time>& times, Plus plus,
              size_t k, size_t spared) const {
    if (spared > kMostTogether || spared >= k * stages.size()) return 0;
    std::vector<size_t>& next = latest_;  // how many of each list are left
    next.assign(stages.size(), k);
    for (;; --spared) {
      size_t best = stages.size();
      Time largest = -1;
      for (size_t i = 0; i < stages.size(); ++i) {
        if (next[i] == 0) continue;
        const Time time = times[At(stages[i], next[i] - 1)] + plus(stages[i]);
        if (time <= largest) continue;
        largest = time;
        best = i;
      }
      if (spared == 0) return largest;
      --next[best];
    }
  }

  /// When enough of what precedes F of s, k together has ended.
  Time HeadTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    if (together.stages.empty()) return 0;
    const auto b = [this](size_t stage) { return route_.least[stage].b; };
    const auto rest = [this](size_t stage) { return RestOf(stage); };
    return std::max(Latest(together.stages, b_head_, b, k, together.backwards),
                    Latest(together.stages, w_head_, rest, k, together.rests));
  }

  /// What follows the end of B of s, k by the forwards that come after it together.
  Time LeftTogether(size_t s, size_t k) const {
    const Together& together = rules_.together[s];
    const size_t spared = together.backwards, stages = together.stages.size();
    if (stages == 0 || spared > kMostTogether || spared >= (size_ - k - 1) * stages) return 0;
    std::vector<size_t>& next = latest_;  // of each list, whose latest are the last
    next.assign(stages, k + 1);
    for (size_t left = spared;; --left) {
      size_t best = stages;
      Time largest = -1;
      for (size_t i = 0; i < stages; ++i) {
        if (next[i] == size_) continue;
        const Time time = f_left_[At(together.stages[i], next[i])];
        if (time <= largest) continue;
        largest = time;
        best = i;
      }
      if (left == 0) return largest;
      ++next[best];
    }
  }

  std::vector<Time>& HeadsOf(Pass from) {
    if (from == Pass::kForward) return f_head_;
    return from == Pass::kBackward ? b_head_ : w_head_;
  }

  /// By operation, `stages` apart.
  size_t Of(Pass pass, size_t s) const { return static_cast<size_t>(pass) * route_.stages() + s; }

  void AddStretches() {
    const std::vector<Stretch> stretches = StretchesOf(input_, route_);
    for (const Stretch& stretch : stretches) {
      to_.Count(Of(stretch.to, stretch.to_stage));
      from_.Count(Of(stretch.from, stretch.from_stage));
    }
    to_.Sum();
    from_.Sum();
    for (const Stretch& stretch : stretches) {
      const size_t from = At(stretch.from_stage, 0), to = At(stretch.to_stage, 0);
      to_.Add(Of(stretch.to, stretch.to_stage), stretch, HeadsOf(stretch.from).data() + from);
      from_.Add(Of(stretch.from, stretch.from_stage), stretch, LeftOf(stretch.to).data() + to);
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
  Reaches to_, from_;                   // stretches by their ends
  mutable std::vector<size_t> latest_;  // of Latest and LeftTogether, to allocate once
};

}  // namespace

Positions::Positions(const BoundInput& input, const RouteWork& route) : route_(&route) {
  Finder finder(input, route, this);
  finder.FindHeads();
  finder.FindTails();
}

}  // namespace contraflow
