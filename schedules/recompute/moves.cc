// An R is an instruction like any other: it may come long before its backward, where its rank has
// nothing else to do and memory for what it makes, and so may a forward or a weight gradient. Which
// of them takes a little room in memory first decides what the others can do, and that is found by
// moving: one instruction within its rank, or a full backward taken apart and put together, or a
// cell recomputed or not, or a stage in fewer or more layers, where that is free to choose.
// Orders that take longer are accepted too, less and less so as the work is spent, in a few rounds
// that each begin with the best so far.

#include "schedules/recompute/moves.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/recompute/recomputed_order.h"

namespace contraflow {
namespace {

/// Farthest that a move carries an instruction, mostly and at all.
constexpr size_t kNearShift = 4, kFarShift = 24;
/// Longest that the step may get at first, in 64ths of a mean instruction, by round.
constexpr Time kHeats[] = {2, 32, 12, 4};

class RecomputeAnnealing {
 public:
  RecomputeAnnealing(RecomputedProblem& problem, std::vector<Items> lists, Freedom freedom,
                     Time bound, uint64_t seed)
      : problem_(problem),
        clock_(problem),
        freely_(freedom != Freedom::kNone),
        bound_(bound),
        random_(seed),
        lists_(std::move(lists)) {
    Time sum = 0;
    for (const Items& list : lists_) {
      count_ += static_cast<int64_t>(list.size());
      for (const Item& item : list) sum += item.duration;
    }
    mean_ = sum / std::max<Time>(count_, 1);
    cost_ = clock_.Run(lists_).value();
    Keep();
    for (int s = 0; freedom == Freedom::kLayers && s < problem.stages(); ++s) {
      std::vector<RecomputeExtent> extents = problem.ExtentsOf(s);
      if (extents.size() > 1) layered_.push_back({s, std::move(extents)});
    }
  }

  void Run(int64_t budget, SearchWork* work) {
    for (const Time heat : kHeats) {
      Restore();
      cost_ = clock_.Run(lists_).value();
      again_.assign(problem_.chunks(), false);
      for (const Items& list : lists_) {
        for (const Item& item : list) {
          if (item.op == Op::R) again_[static_cast<size_t>(item.back)] = true;
        }
      }
      const int64_t each = budget / static_cast<int64_t>(std::size(kHeats));
      for (int64_t left = each; left > 0 && best_makespan_ > bound_; left -= count_) {
        if (!work->Spend(count_)) return;
        const Time share = left * 1024 / each;
        Try(mean_ * heat / 64 * share / 1024 * share / 1024);
      }
    }
  }

  const std::vector<Items>& best() const { return best_; }
  /// Gives the problem the extents of the best.
  void Restore() {
    lists_ = best_;
    for (size_t s = 0; s < best_extents_.size(); ++s) {
      problem_.SetExtent(static_cast<int>(s), best_extents_[s]);
    }
  }
  Time best_makespan() const { return best_makespan_; }

 private:
  size_t Of(size_t count) { return static_cast<size_t>(random_() % count); }

  /// Items of one chunk, and of one kind and stage, keep their order.
  bool MayPass(const Item& x, const Item& y) const {
    for (const int32_t a : {x.forward, x.back}) {
      if (a >= 0 && (a == y.forward || a == y.back)) return false;
    }
    const auto same = [&](int32_t a, int32_t b) {
      return a >= 0 && b >= 0 && problem_.Stage(a) == problem_.Stage(b) &&
             problem_.Rank(a) == problem_.Rank(b);
    };
    if (same(x.forward, y.forward)) return false;
    if (!same(x.back, y.back)) return true;
    return !(HasBackward(x.op) && HasBackward(y.op)) && !(HasWeight(x.op) && HasWeight(y.op)) &&
           !(x.op == Op::R && y.op == Op::R);
  }

  static void Rotate(Items* list, size_t at, size_t to) {
    const auto begin = list->begin();
    const auto x = begin + static_cast<std::ptrdiff_t>(at);
    const auto y = begin + static_cast<std::ptrdiff_t>(to);
    if (to > at) std::rotate(x, x + 1, y + 1);
    if (to < at) std::rotate(y, x, x + 1);
  }

  /// To another place, or as far as it may go.
  bool Shift(Items* list, size_t at) {
    const bool later = Of(2) == 0;
    size_t to = at;
    for (size_t far = 1 + Of(Of(3) == 0 ? kFarShift : kNearShift); far > 0; --far) {
      if (later ? to + 1 >= list->size() : to == 0) break;
      const size_t next = later ? to + 1 : to - 1;
      if (!MayPass((*list)[at], (*list)[next])) break;
      to = next;
    }
    Rotate(list, at, to);
    return to != at;
  }

  /// BW as B and W, or B with its W as BW where the B is.
  bool Split(Items* list, size_t at) const {
    const Item item = (*list)[at];
    const auto place = list->begin() + static_cast<std::ptrdiff_t>(at);
    if (item.op == Op::BW) {
      *place = problem_.Backward(Op::B, item.back);
      list->insert(place + 1, problem_.Backward(Op::W, item.back));
      return true;
    }
    if (item.op != Op::B) return false;
    for (auto w = place + 1; w != list->end(); ++w) {
      if (w->op != Op::W || w->back != item.back) continue;
      // No other weight gradient of the stage may come after it.
      const bool waits = std::any_of(place, w, [&](const Item& other) {
        return HasWeight(other.op) && problem_.Stage(other.back) == problem_.Stage(item.back) &&
               problem_.Rank(other.back) == problem_.Rank(item.back);
      });
      if (waits) return false;
      list->erase(w);
      (*list)[at] = problem_.Backward(Op::BW, item.back);
      return true;
    }
    return false;
  }

  /// R of the chunk of a backward comes or goes.
  bool Toggle(Items* list, size_t at) {
    if (!HasBackward((*list)[at].op)) return false;
    const int32_t c = (*list)[at].back;
    const auto place = list->begin() + static_cast<std::ptrdiff_t>(at);
    if (again_[static_cast<size_t>(c)]) {
      list->erase(std::find_if(list->begin(), place, [c](const Item& item) {
        return item.op == Op::R && item.back == c;
      }));
    } else {
      list->insert(place, problem_.Again(c));
    }
    again_[static_cast<size_t>(c)].flip();
    toggled_.push_back(c);
    return true;
  }

  bool Change(Items* list) {
    const size_t at = Of(list->size()), kind = Of(freely_ ? 10 : 8);
    return kind == 0 ? Split(list, at) : kind > 7 ? Toggle(list, at) : Shift(list, at);
  }

  void Keep() {
    best_makespan_ = clock_.makespan();
    best_ = lists_;
    best_extents_.clear();
    for (int s = 0; s < problem_.stages(); ++s) best_extents_.push_back(problem_.Extent(s));
  }

  /// True if what has been changed may stay.
  bool Takes(Time heat) {
    const std::optional<Time> cost = clock_.Run(lists_);
    if (!cost || *cost > cost_ + Threshold(heat)) return false;
    cost_ = *cost;
    if (clock_.makespan() < best_makespan_) Keep();
    return true;
  }

  /// Another number of layers for all cells of a stage, mostly one more or less.
  void TryLayers(Time heat) {
    const auto& layered = layered_[Of(layered_.size())];
    const int s = layered.first;
    const std::vector<RecomputeExtent>& extents = layered.second;
    const RecomputeExtent before = problem_.Extent(s);
    const auto at =
        static_cast<size_t>(std::find(extents.begin(), extents.end(), before) - extents.begin());
    const size_t to = Of(4) == 0 ? Of(extents.size()) : Of(2) == 0 ? at + 1 : at - 1;
    if (to >= extents.size() || to == at) return;
    const auto set = [&](const RecomputeExtent& extent) {
      problem_.SetExtent(s, extent);
      for (Items& list : lists_) {
        for (Item& item : list) {
          if (item.op == Op::R && problem_.Stage(item.back) == s) {
            item.duration = problem_.Again(item.back).duration;
          }
        }
      }
    };
    set(extents[to]);
    const bool fits = std::all_of(lists_.begin(), lists_.end(),
                                  [&](const Items& list) { return problem_.Fits(list, again_); });
    if (!fits || !Takes(heat)) set(before);
  }

  void Try(Time heat) {
    if (!layered_.empty() && Of(16) == 0) return TryLayers(heat);
    const size_t r = Of(lists_.size());
    if (lists_[r].size() < 2) return;
    Items before = lists_[r];
    Items* list = &lists_[r];
    bool changed = false;
    toggled_.clear();
    for (size_t moves = 1 + Of(3) / 2; moves > 0; --moves) changed = Change(list) || changed;
    if (!changed) return;
    if (problem_.Fits(*list, again_) && Takes(heat)) return;
    lists_[r] = std::move(before);
    for (const int32_t c : toggled_) again_[static_cast<size_t>(c)].flip();
  }

  /// How much longer a move may make it: about exponentially distributed, in integers only.
  Time Threshold(Time heat) {
    const uint64_t bits = random_();
    const int halvings = std::countr_zero(bits | uint64_t{1} << 32);
    return heat * halvings + heat / 65536 * static_cast<Time>(bits >> 48) +
           heat % 65536 * static_cast<Time>(bits >> 48) / 65536;
  }

  RecomputedProblem& problem_;
  RecomputedClock clock_;
  const bool freely_;
  const Time bound_;
  std::mt19937_64 random_;
  std::vector<Items> lists_, best_;
  std::vector<RecomputeExtent> best_extents_;  // by stage
  /// Stages of more than one layer, and how much of each may run again.
  std::vector<std::pair<int, std::vector<RecomputeExtent>>> layered_;
  std::vector<bool> again_;       // by chunk: recomputed in `lists_`
  std::vector<int32_t> toggled_;  // by the move that is tried
  int64_t count_ = 0;             // of instructions
  Time mean_ = 0, cost_ = 0, best_makespan_ = 0;
};

}  // namespace

Plan ImproveRecomputed(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
                       Freedom freedom, Time bound, uint64_t seed, int64_t budget,
                       SearchWork* work) {
  if (costs.comm.exclusive() || OffloadedCells(plan).any() || work->spent()) return plan;
  work->Enter("recompute moves");
  RecomputedProblem problem(plan, costs, limit);
  std::vector<Items> lists(plan.programs.size());
  for (size_t r = 0; r < lists.size(); ++r) {
    for (const Instruction& i : plan.programs[r]) lists[r].push_back(problem.ItemOf(i));
  }
  const Time before = Simulate(plan, costs, Keep::kFigures).makespan;
  RecomputeAnnealing annealing(problem, std::move(lists), freedom, bound, seed);
  CF_ASSERT(annealing.best_makespan() == before);
  annealing.Run(budget, work);
  if (annealing.best_makespan() >= before) return plan;
  annealing.Restore();
  Plan better = plan;
  for (size_t r = 0; r < better.programs.size(); ++r) {
    better.programs[r].clear();
    for (const Item& item : annealing.best()[r]) {
      better.programs[r].push_back(problem.InstructionOf(item));
    }
  }
  return better;
}

}  // namespace contraflow
