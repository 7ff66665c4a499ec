// An R is an instruction like any other: it may come long before its backward, where its rank has
// nothing else to do and memory for what it makes, and so may a forward or a weight gradient. Which
// of them takes a little room in memory first decides what the others can do, and that is found by
// moving: one instruction within its rank, or a full backward taken apart and put together, or a
// cell recomputed or not, where that is free to choose.
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
#include "compiler/plan/memory_limit.h"
#include "compiler/simulate/simulate.h"

namespace contraflow {
namespace {

constexpr Time kNotYet = -1;
/// Farthest that a move carries an instruction, mostly and at all.
constexpr size_t kNearShift = 4, kFarShift = 24;
/// By how many 64ths of a mean instruction the step may get longer at first, by round.
constexpr Time kHeats[] = {2, 32, 12, 4};
/// What a step is worth that is one tick shorter in the mean end of its ranks.
constexpr Time kMeanEnds = 10;

/// An instruction and its chunks, micro-batch by micro-batch: of the forward, of the backward.
struct Item {
  Op op = Op::F;
  int32_t forward = -1, back = -1;
  Time duration = 0;
};

using Items = std::vector<Item>;

/// The plan as the search sees it.
class RecomputedProblem {
 public:
  RecomputedProblem(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit)
      : plan_(plan),
        costs_(costs),
        stages_(plan.stages),
        recomputed_(plan),
        cells_(static_cast<size_t>(plan.stages), {1, 1, 1}),
        limit_(limit) {
    if (limit && MemoryLimit(costs).bytes()) {
      // Of stages that are not recomputed yet, too.
      std::vector<RecomputePart> parts;
      for (int s = 0; s < stages_; ++s) parts.push_back(recomputed_.part(s));
      cells_ = BytesOfCells(costs, plan.stages, parts);
    }
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    before_.assign(chunks, -1);
    hop_.assign(chunks, 0);
    rank_.assign(chunks, 0);
    for (const Route& route : plan.routes) {
      for (const int m : route.microbatches) {
        for (int s = 0; s < stages_; ++s) {
          const auto c = static_cast<size_t>(m * stages_ + s);
          rank_[c] = route.ranks[static_cast<size_t>(s)];
          if (s == 0) continue;
          before_[c] = static_cast<int32_t>(c) - 1;
          if (rank_[c] != rank_[c - 1]) hop_[c] = costs.comm.latency + costs.comm.occupancy;
        }
      }
    }
  }

  size_t chunks() const { return before_.size(); }
  size_t ranks() const { return plan_.programs.size(); }
  int32_t Before(int32_t c) const { return before_[static_cast<size_t>(c)]; }
  int32_t After(int32_t c) const { return (c + 1) % stages_ == 0 ? -1 : c + 1; }
  Time Hop(int32_t c) const { return hop_[static_cast<size_t>(c)]; }
  size_t Rank(int32_t c) const { return static_cast<size_t>(rank_[static_cast<size_t>(c)]); }
  int32_t Stage(int32_t c) const { return c % stages_; }

  Item ItemOf(const Instruction& i) const {
    Item item = {i.op, -1, -1, costs_.Duration(i)};
    if (HasForward(i.op)) item.forward = i.microbatch * stages_ + i.stage;
    if (i.op != Op::F) item.back = BackMicrobatch(i) * stages_ + BackStage(i);
    return item;
  }

  Instruction InstructionOf(const Item& item) const {
    const auto stage = [&](int32_t c) { return c % stages_; };
    const auto microbatch = [&](int32_t c) { return c / stages_; };
    if (item.op == Op::FB) {
      return Pair(stage(item.forward), microbatch(item.forward), stage(item.back),
                  microbatch(item.back));
    }
    const int32_t c = item.op == Op::F ? item.forward : item.back;
    Instruction i = CellOp(item.op, stage(c), microbatch(c));
    if (i.op == Op::R) i.part = recomputed_.part(stage(c));
    return i;
  }

  /// One part of a full backward, or all of it.
  Item Backward(Op op, int32_t c) const {
    return {op, -1, c, costs_.Duration(CellOp(op, c % stages_, c / stages_))};
  }

  Item Again(int32_t c) const {
    Item item = {Op::R, -1, c, 0};
    item.duration = costs_.Duration(InstructionOf(item));
    return item;
  }

  /// `again`: chunks that are recomputed.
  bool Fits(const Items& list, const std::vector<bool>& again) const {
    if (!limit_) return true;
    int64_t held = 0;
    for (const Item& item : list) {
      if (item.op == Op::R) held += Dropped(item.back);
      if (item.forward >= 0) held += BytesOf(item.forward).activation;
      if (held > *limit_) return false;
      if (item.forward >= 0 && again[static_cast<size_t>(item.forward)]) {
        held -= Dropped(item.forward);
      }
      if (HasBackward(item.op)) {
        held -= BytesOf(item.back).activation - BytesOf(item.back).stash;
      }
      if (HasWeight(item.op)) held -= BytesOf(item.back).stash;
    }
    return true;
  }

 private:
  const CellBytes& BytesOf(int32_t c) const { return cells_[static_cast<size_t>(c % stages_)]; }
  int64_t Dropped(int32_t c) const { return BytesOf(c).activation - BytesOf(c).input; }

  const Plan& plan_;
  const CostModel& costs_;
  const int32_t stages_;
  const RecomputedCells recomputed_;
  std::vector<CellBytes> cells_;  // by stage
  const std::optional<int64_t> limit_;
  std::vector<int32_t> before_;  // by chunk
  std::vector<Time> hop_;        // from the stage before
  std::vector<int> rank_;
};

/// When the lists of all ranks end; each instruction is looked at once, plus once for each wait.
class Clock {
 public:
  explicit Clock(const RecomputedProblem& problem)
      : problem_(problem),
        end_(2 * problem.chunks()),
        waits_(2 * problem.chunks()),
        lane_(problem.ranks()),
        next_(problem.ranks()) {}

  /// The makespan, and a little for the mean end of the ranks; nothing where ranks wait for ever.
  std::optional<Time> Run(const std::vector<Items>& lists) {
    std::fill(end_.begin(), end_.end(), kNotYet);
    std::fill(waits_.begin(), waits_.end(), -1);
    std::fill(lane_.begin(), lane_.end(), 0);
    std::fill(next_.begin(), next_.end(), 0);
    ready_.clear();
    for (size_t r = lists.size(); r-- > 0;) ready_.push_back(r);
    while (!ready_.empty()) {
      const size_t r = ready_.back();
      ready_.pop_back();
      Walk(r, lists[r]);
    }
    makespan_ = 0;
    Time ends = 0;
    for (size_t r = 0; r < lists.size(); ++r) {
      if (next_[r] < lists[r].size()) return std::nullopt;
      makespan_ = std::max(makespan_, lane_[r]);
      ends += lane_[r];
    }
    return makespan_ + ends / (kMeanEnds * static_cast<Time>(lists.size()));
  }
  Time makespan() const { return makespan_; }

 private:
  static size_t Place(int32_t c, bool backward) { return 2 * static_cast<size_t>(c) + backward; }

  /// False if the rank has to wait for what this chunk's neighbour makes.
  bool Arrived(size_t r, int32_t neighbour, Time hop, bool backward, Time* start) {
    if (neighbour < 0) return true;
    const Time end = end_[Place(neighbour, backward)];
    if (end == kNotYet) {
      waits_[Place(neighbour, backward)] = static_cast<int32_t>(r);
      return false;
    }
    *start = std::max(*start, end + hop);
    return true;
  }

  void Ended(int32_t c, bool backward, Time end) {
    end_[Place(c, backward)] = end;
    const int32_t waiting = std::exchange(waits_[Place(c, backward)], -1);
    if (waiting >= 0) ready_.push_back(static_cast<size_t>(waiting));
  }

  void Walk(size_t r, const Items& list) {
    for (size_t& at = next_[r]; at < list.size(); ++at) {
      const Item& item = list[at];
      Time start = lane_[r];
      if (item.forward >= 0 && !Arrived(r, problem_.Before(item.forward),
                                        problem_.Hop(item.forward), false, &start)) {
        return;
      }
      if (HasBackward(item.op)) {
        const int32_t after = problem_.After(item.back);
        if (!Arrived(r, after, after < 0 ? 0 : problem_.Hop(after), true, &start)) return;
      }
      lane_[r] = start + item.duration;
      if (item.forward >= 0) Ended(item.forward, false, lane_[r]);
      if (HasBackward(item.op)) Ended(item.back, true, lane_[r]);
    }
  }

  const RecomputedProblem& problem_;
  std::vector<Time> end_;       // of F and B of each chunk
  std::vector<int32_t> waits_;  // the rank that waits for it
  std::vector<Time> lane_;
  std::vector<size_t> next_, ready_;
  Time makespan_ = 0;
};

class RecomputeAnnealing {
 public:
  RecomputeAnnealing(const RecomputedProblem& problem, std::vector<Items> lists, bool freely,
                     Time bound, uint64_t seed)
      : problem_(problem),
        clock_(problem),
        freely_(freely),
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
    best_ = lists_;
    best_makespan_ = clock_.makespan();
  }

  void Run(int64_t budget, SearchWork* work) {
    for (const Time heat : kHeats) {
      lists_ = best_;
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
  Time best_makespan() const { return best_makespan_; }

 private:
  size_t Of(size_t count) { return static_cast<size_t>(random_() % count); }

  /// Those of one chunk, and of one kind and stage, keep their order.
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
      // No weight gradient of the stage that waits may come behind it.
      const bool waits = std::any_of(place, w, [&](const Item& other) {
        return other.op == Op::W && problem_.Stage(other.back) == problem_.Stage(item.back) &&
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

  void Try(Time heat) {
    const size_t r = Of(lists_.size());
    if (lists_[r].size() < 2) return;
    Items before = lists_[r];
    Items* list = &lists_[r];
    bool changed = false;
    toggled_.clear();
    for (size_t moves = 1 + Of(3) / 2; moves > 0; --moves) changed = Change(list) || changed;
    if (!changed) return;
    if (problem_.Fits(*list, again_)) {
      const std::optional<Time> cost = clock_.Run(lists_);
      if (cost && *cost <= cost_ + Threshold(heat)) {
        cost_ = *cost;
        if (clock_.makespan() < best_makespan_) {
          best_makespan_ = clock_.makespan();
          best_ = lists_;
        }
        return;
      }
    }
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

  const RecomputedProblem& problem_;
  Clock clock_;
  const bool freely_;
  const Time bound_;
  std::mt19937_64 random_;
  std::vector<Items> lists_, best_;
  std::vector<bool> again_;       // by chunk: recomputed in `lists_`
  std::vector<int32_t> toggled_;  // by the move that is tried
  int64_t count_ = 0;  // of instructions
  Time mean_ = 0, cost_ = 0, best_makespan_ = 0;
};

}  // namespace

Plan ImproveRecomputed(const Plan& plan, const CostModel& costs, std::optional<int64_t> limit,
                       bool freely, Time bound, uint64_t seed, int64_t budget, SearchWork* work) {
  if (costs.comm.exclusive() || OffloadedCells(plan).any() || work->spent()) return plan;
  work->Enter("recompute moves");
  const RecomputedProblem problem(plan, costs, limit);
  std::vector<Items> lists(plan.programs.size());
  for (size_t r = 0; r < lists.size(); ++r) {
    for (const Instruction& i : plan.programs[r]) lists[r].push_back(problem.ItemOf(i));
  }
  const Time before = Simulate(plan, costs, Keep::kFigures).makespan;
  RecomputeAnnealing annealing(problem, std::move(lists), freely, bound, seed);
  CF_ASSERT(annealing.best_makespan() == before);
  annealing.Run(budget, work);
  if (annealing.best_makespan() >= before) return plan;
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
