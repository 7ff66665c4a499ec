// Branch and bound in order of start times. A node is what has been started and when; a child
// starts one more operation on any rank, no earlier than the one before it. So a rank may also be
// left idle on purpose, for a forward that runs at once can take memory that something else needs.
// Every schedule in which nothing could start earlier without a change of order is below the root,
// and one of these is a shortest.
//
// Three things keep the tree small:
//
//  * A bound on each node (LeastEnd), against the best schedule so far. It begins with that of the
//    other searches, so for most nodes this decides.
//  * Of two nodes with the same operations started, where no time of the one is later than that of
//    the other, only the one is continued.
//  * What does no harm is not put off: where an operation that takes no memory could end before the
//    one that is started begins, the same schedule with it in that gap is as good, and is found
//    from another child.
//
// Depth first; of the children first those with the least bounds, of these those that start first,
// backwards before forwards before weight gradients.

#include "schedules/search/exact_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/simulate/simulate.h"
#include "schedules/search/exact_problem.h"

namespace contraflow {
namespace {

/// Work of a node in instructions, for each chunk.
constexpr int64_t kPerChunk = 1;
/// Instructions between two looks at the clock.
constexpr int64_t kBatch = 1 << 14;
/// Times that are compared in the time of an instruction.
constexpr int64_t kComparedAtOnce = 16;
/// Nodes that are remembered take memory, up to 400 bytes each.
constexpr size_t kMostRemembered = 250'000;

/// Which operations have been started: three bits a chunk.
struct Key {
  std::array<uint64_t, 2> words = {};

  bool operator==(const Key&) const = default;
};

struct HashOfKey {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.words[0] * 0x9E3779B97F4A7C15 ^ (key.words[1] + 0x7F4A7C15);
    hash ^= hash >> 32;
    hash *= 0xD6E8FEB86659FD93;
    return static_cast<size_t>(hash ^ hash >> 32);
  }
};

/// Nodes that have been visited, by what has been started.
class Visited {
 public:
  explicit Visited(const ExactProblem& problem) : problem_(problem) {}

  /// True if one that is at least as good was; else remembers this one.
  bool Dominates(const ExactState& state) {
    Key key;
    for (size_t c = 0; c < problem_.chunks.size(); ++c) {
      key.words[c / 21] |= static_cast<uint64_t>(state.done[c]) << c % 21 * 3;
    }
    Write(state);
    int32_t& first = first_.try_emplace(key, -1).first->second;
    // Entries that are no better than this one leave the list.
    int32_t* link = &first;
    while (*link >= 0) {
      Entry& entry = entries_[static_cast<size_t>(*link)];
      const Time* other = times_.data() + entry.at;
      bool better = true, worse = true;
      for (size_t i = 0; i < now_.size() && (better || worse); ++i) {
        better = better && other[i] <= now_[i];
        worse = worse && other[i] >= now_[i];
        ++compared_;
      }
      if (better) return true;
      if (worse) {
        *link = entry.next;
      } else {
        link = &entry.next;
      }
    }
    if (entries_.size() == kMostRemembered) return false;
    entries_.push_back({first, times_.size()});
    first = static_cast<int32_t>(entries_.size()) - 1;
    times_.insert(times_.end(), now_.begin(), now_.end());
    return false;
  }

  /// Comparisons since the last call, in instructions.
  int64_t TakeWork() {
    const int64_t work = compared_ / kComparedAtOnce;
    compared_ %= kComparedAtOnce;
    return work;
  }

 private:
  struct Entry {
    int32_t next;
    size_t at;  // of its times
  };

  /// All times that can still matter, none before now. Which these are follows from the key.
  void Write(const ExactState& state) {
    now_.clear();
    const auto add = [&](Time time) { now_.push_back(std::max(time, state.now)); };
    add(state.now);
    add(state.end);
    for (size_t r = 0; r < problem_.ranks; ++r) add(state.free[r]);
    for (size_t c = 0; c < problem_.chunks.size(); ++c) {
      const ChunkState done = state.done[c];
      if (done == ChunkState::kAll) continue;
      add(done == ChunkState::kNothing ? state.forward_at[c] : state.next_at[c]);
    }
    for (size_t e = 0; e < problem_.edges; ++e) add(state.edge_free[e]);
  }

  const ExactProblem& problem_;
  std::unordered_map<Key, int32_t, HashOfKey> first_;  // entries, by key
  std::vector<Entry> entries_;
  std::vector<Time> times_, now_;
  int64_t compared_ = 0;
};

class Tree {
 public:
  /// Takes `budget` instructions of the work at most.
  Tree(const ExactProblem& problem, Time below, Time bound, int64_t budget, SearchWork* work)
      : problem_(problem),
        below_(below),
        bound_(bound),
        left_(budget),
        each_(kPerChunk * static_cast<int64_t>(problem.chunks.size())),
        work_(*work),
        visited_(problem) {
    choices_.resize(4 * problem.chunks.size() + 1);
  }

  /// False if it ended before it was done.
  bool Run() {
    Visit(ExactState(), 0);
    const bool ended = over_;
    work_.Spend(unspent_);
    return !ended;
  }

  const std::vector<ExactChoice>& best() const { return best_; }
  Time below() const { return below_; }

 private:
  /// No order gets worse by running this as early as it can: it takes no memory, and nothing else
  /// that does the same work is any shorter.
  bool Harmless(const ExactChoice& choice) const {
    if (choice.op == Op::W) return true;
    if (problem_.edges > 0 || !problem_.pair.empty()) return false;
    const ExactChunk& chunk = problem_.chunk(choice.chunk);
    if (choice.op == Op::B) return chunk.bw >= chunk.b + chunk.w;
    return choice.op != Op::BW && problem_.rooms.empty();
  }

  /// Counts this many instructions.
  bool Over(int64_t instructions) {
    left_ -= instructions;
    unspent_ += instructions;
    if (unspent_ >= kBatch && !work_.Spend(std::exchange(unspent_, 0))) over_ = true;
    over_ = over_ || left_ <= 0;
    return over_;
  }

  void Visit(const ExactState& state, size_t depth) {
    std::vector<ExactChoice>& choices = choices_[depth];
    FindChoices(problem_, state, &choices);
    if (choices.empty()) {
      const bool all = std::all_of(
          state.done.begin(), state.done.begin() + static_cast<ptrdiff_t>(problem_.chunks.size()),
          [](ChunkState done) { return done == ChunkState::kAll; });
      if (!all || state.end >= below_) return;  // stuck: no memory for what is left
      below_ = state.end;
      best_ = path_;
      return;
    }
    const auto turn = [](Op op) { return op == Op::W ? 2 : op == Op::F || op == Op::R ? 1 : 0; };
    std::ranges::stable_sort(choices, [&](const ExactChoice& a, const ExactChoice& b) {
      return std::pair(a.start, turn(a.op)) < std::pair(b.start, turn(b.op));
    });
    Time gap = INT64_MAX;  // an action that ends after this begins leaves a gap for a harmless one
    for (const ExactChoice& choice : choices) {
      if (choice.duration > 0 && Harmless(choice)) {
        gap = std::min(gap, choice.start + choice.duration);
      }
    }
    for (ExactChoice& choice : choices) {
      choice.least = below_;
      if (choice.start >= gap) continue;
      if (Over(each_)) return;
      ExactState child = state;
      Start(problem_, choice, &child);
      choice.least = LeastEnd(problem_, child, below_);
    }
    std::ranges::stable_sort(choices, std::less<>(), &ExactChoice::least);
    for (const ExactChoice& choice : choices) {
      if (choice.least >= below_) break;
      ExactState child = state;
      Start(problem_, choice, &child);
      if (visited_.Dominates(child)) continue;
      if (Over(visited_.TakeWork())) return;
      path_.push_back(choice);
      Visit(child, depth + 1);
      path_.pop_back();
      if (over_ || below_ <= bound_) return;
    }
  }

  const ExactProblem& problem_;
  Time below_;
  const Time bound_;
  int64_t left_;        // instructions
  const int64_t each_;  // a node
  SearchWork& work_;
  int64_t unspent_ = 0;
  bool over_ = false;
  Visited visited_;
  std::vector<std::vector<ExactChoice>> choices_;  // by depth
  std::vector<ExactChoice> path_, best_;
};

}  // namespace

bool TakesExactly(const Plan& frame) {
  return int64_t{frame.stages} * frame.microbatches <= int64_t{ExactProblem::kMostChunks} &&
         frame.ranks <= static_cast<int>(ExactProblem::kMostRanks);
}

ExactSearch SearchExactly(const Plan& frame, const CostModel& costs,
                          const std::vector<int64_t>& rooms, const std::vector<int>& recomputed,
                          Time below, Time bound, int64_t budget, SearchWork* work) {
  ExactSearch found;
  const std::optional<ExactProblem> problem = ExactProblem::Of(frame, costs, rooms, recomputed);
  if (!problem || work->spent()) return found;
  work->Enter("exact search");
  Tree tree(*problem, below, bound, std::min(budget, work->left()), work);
  found.complete = tree.Run();
  found.makespan = tree.below();
  if (tree.best().empty()) return found;
  Plan plan = frame;
  plan.programs.assign(problem->ranks, {});
  for (const ExactChoice& choice : tree.best()) {
    const ExactChunk &chunk = problem->chunk(choice.chunk), &back = problem->chunk(choice.back);
    plan.program(choice.rank)
        .push_back(choice.op == Op::FB
                       ? Pair(chunk.stage, chunk.microbatch, back.stage, back.microbatch)
                       : CellOp(choice.op, chunk.stage, chunk.microbatch));
  }
  // An instruction that was put off in vain starts earlier when it runs.
  const Time makespan = Simulate(plan, costs, Keep::kFigures).makespan;
  CF_ASSERT(makespan <= found.makespan && (!found.complete || makespan == found.makespan));
  found.makespan = makespan;
  found.programs = std::move(plan.programs);
  work->Found(found.makespan, bound);
  return found;
}

}  // namespace contraflow
