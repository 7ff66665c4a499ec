#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "schedules/search/search_problem.h"

namespace contraflow {

/// An order that changes piece by piece, with the times at which it runs. A new piece is tried
/// first: all that starts before it could keeps its times, the rest is computed again and either
/// taken over or forgotten. For problems whose micro-batches all cost the same and whose links
/// carry any number of messages at once, and for orders that recompute nothing.
class IncrementalEvaluator {
 public:
  static bool Takes(const SearchProblem& problem);

  /// Returns nothing where the order does not run or fit. The problem must outlive it.
  static std::optional<IncrementalEvaluator> Of(const SearchProblem& problem, const Order& order);

  size_t ranks() const { return ranks_.size(); }
  const ActionList& list(size_t r) const { return ranks_[r].list; }
  Order TakeOrder() const;
  Time makespan() const { return makespan_; }
  /// Objective of a search: the ends of all ranks, and above all the last of them.
  Time cost() const { return cost_; }

  /// Whether the rank could run `piece` instead of its actions [from, to), which are the same work,
  /// with what it has run before and can hold.
  bool Fits(size_t r, size_t from, size_t to, const ActionList& piece) const;
  /// The cost with `piece` in place of [from, to), for one that fits: nothing if the ranks would
  /// wait for ever, or if the makespan would be above `most`.
  std::optional<Time> Try(size_t r, size_t from, size_t to, const ActionList& piece, Time most);
  /// Takes over what was tried last.
  void Commit();

  /// Actions computed since it was asked last.
  int64_t TakeWork() { return std::exchange(work_, 0); }

 private:
  /// The F or the B of a chunk as part of an action. These are numbered: chunk * 2, + 1 for B.
  struct Part {
    int32_t number = -1;  // -1: the action has none
    int32_t needs = -1;   // the part of another stage that it waits for
    int32_t wakes = -1;   // the rank that may wait for it
    Time hop = 0;         // after what it needs
  };
  struct Step {
    std::array<Part, 2> parts;
    Time duration = 0;
  };
  /// When a part runs, and when it ended in the run that is tried (`mark`).
  struct PartTimes {
    Time start = 0, end = 0, tried_end = 0;
    int32_t mark = 0;
  };
  struct Rank {
    ActionList list;
    std::vector<Step> steps;
    std::vector<Time> start, rest;  // of each action: when it starts; from then on so much to do
    std::vector<int64_t> held;      // before each action
  };
  /// A rank in the run that is tried.
  struct Trial {
    size_t first = 0, next = 0;
    Time lane = 0;
    int32_t waits = -1;        // for this part
    std::vector<Time> starts;  // from `first` on
  };

  IncrementalEvaluator(const SearchProblem& problem, const Order& order);
  bool Begin();
  Time DurationOf(const Action& action) const;
  Part PartOf(int stage, int k, bool backward) const;
  void CountBefore(const ActionList& list, size_t at) const;
  void StepsOf(const ActionList& piece, std::vector<Step>* steps) const;
  void Start(Time since);
  bool Run(Time most);
  bool Walk(size_t r, Time most);
  bool Arrived(const Part& part, Time* ready) const;

  const SearchProblem& problem_;
  std::vector<std::array<Time, 4>> cost_of_;  // F, B, W, BW by stage
  std::vector<std::vector<Time>> pair_;       // FB by stage and place of the other on its rank
  std::vector<size_t> place_;                 // of each stage among those of its rank
  std::vector<Rank> ranks_;
  std::vector<PartTimes> times_;  // by part
  Time makespan_ = 0, cost_ = 0;

  mutable StageCounts counts_;  // while a list is gone through

  // The run that is tried.
  size_t rank_ = 0, from_ = 0, to_ = 0;
  ActionList piece_;
  std::vector<Step> steps_;  // of the whole changed rank
  std::vector<Time> rest_;
  Time since_ = 0;
  std::vector<Trial> trials_;
  int32_t mark_ = 0;
  std::vector<size_t> ready_;
  Time tried_makespan_ = 0, tried_cost_ = 0;
  int64_t work_ = 0;
};

}  // namespace contraflow
