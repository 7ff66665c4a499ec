// A bound for any partition of layers that looks at several ranks at once. Partitions are gone
// through from the outer steps (pairing.h) inwards. One is left behind as soon as a step that it
// has says alone that it is too long, the steps to come have no room for its layers, or prices of
// the time of all steps so far refute it (compiler/bound/prices.h), where the layers inside are a
// delay for each micro-batch and nothing else. Where all are no partition has a step as short as
// that makespan.
//
// That is for small models of few ranks: the number of partitions grows with each step. Prices that
// refute one partition mostly refute those that are like it.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/bound/prices.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/pairing.h"
#include "schedules/partition/staged.h"

namespace contraflow {
namespace {

/// Slots that time is cut in, to the mean forward of a stage and in all.
constexpr int64_t kSlotsEach = 12, kFewestSlots = 300, kMostSlots = 1200;
/// Makespans that are asked about.
constexpr int kPriceQuestions = 12;
/// What looking at one choice of layers for a step takes, beside prices.
constexpr int64_t kEachChoice = 200;
/// Rounds of the search for prices that refute a partition, and the one that was found.
constexpr int64_t kRounds = 600, kRoundsOfFound = 1000;

class PricedPartitions {
 public:
  PricedPartitions(const Spec& spec, LayerStages* layers, const LayerWork& work,
                   const Pairing& pairing, const Partition& found, Time goal, int64_t effort,
                   const SearchControl& control)
      : control_(control),
        fixed_(FixedPartition(spec, static_cast<int>(found.size())).has_value()),
        layers_(*layers),
        price_(work),
        ranks_(spec, layers, work, pairing),
        found_(found),
        proof_(goal, SlotsOf(goal)),
        left_(effort) {}

  /// The largest makespan above `proven` that is refuted, no more than `goal`: the higher, the more
  /// partitions are left to look at.
  Time Raise(Time proven, Time goal) {
    const Time low = proven;
    for (int question = 1; question <= kPriceQuestions && left_ > 0; ++question) {
      const Time asked = low + (goal - low) * question / kPriceQuestions;
      if (!RefuteAll(asked)) break;
      proven = asked;
    }
    return proven;
  }

 private:
  /// Layers of a step: of its first stage and, if it has one, its second.
  struct Choice {
    int i = 0, to = 0, begin = 0, end = 0;
  };

  int64_t SlotsOf(Time goal) const {
    const Time forward = layers_.forward_before(layers_.layers()) / ranks_.stages();
    return std::clamp(kSlotsEach * (goal / std::max<Time>(1, forward)), kFewestSlots, kMostSlots);
  }

  bool RefuteAll(Time asked) {
    asked_ = asked;
    chosen_.clear();
    ranks_.FindRoom(asked);
    // What was found is the least likely to be refuted.
    int i = 0, j = ranks_.layers();
    const size_t stages = found_.size();
    for (int k = 0; k < ranks_.pairing().steps; ++k) {
      const auto at = static_cast<size_t>(k);
      const bool alone = Alone(k);
      const int to = i + found_[at], begin = alone ? j : j - found_[stages - 1 - at];
      chosen_.push_back({i, to, begin, j});
      i = to;
      j = begin;
    }
    if (!Refuted(kRoundsOfFound)) return false;
    if (fixed_) return true;
    chosen_.clear();
    return Descend(0, ranks_.layers());
  }

  bool Alone(int k) const { return ranks_.pairing().middle && k + 1 == ranks_.pairing().steps; }

  /// True if all partitions with the steps chosen so far and the layers i..j-1 inside are refuted.
  bool Descend(int i, int j) {
    const auto k = static_cast<int>(chosen_.size());
    const int behind = ranks_.pairing().steps - 1 - k;
    const bool last = behind == 0, alone = Alone(k);
    const int most = alone ? j : j - std::max(behind, 1);
    for (int to = alone ? j : i + 1; to <= most; ++to) {
      for (int size = last ? j - to : 1; size <= j - to; ++size) {
        if (TooMuch(k, i, to, j - size, j)) break;
        left_ -= kEachChoice;
        if (!last && ranks_.Leaves(k, to, j - size, j)) continue;
        if (ProveOnce(k, i, to, j - size, j, alone) >= asked_) continue;
        chosen_.push_back({i, to, j - size, j});
        // Of one step alone that has been proven.
        bool refuted = (k > 0 || last) && Refuted(last ? kRounds : 0);
        if (!refuted && !last) refuted = Descend(to, j - size);
        chosen_.pop_back();
        if (!refuted || left_ <= 0) return false;
      }
    }
    return true;
  }

  /// More layers are more work.
  bool TooMuch(int k, int i, int to, int begin, int end) const {
    const Time all = ranks_.OfAll(k, price_.between(i, to), price_.between(begin, end));
    return ranks_.Head(i, k) + all >= asked_;
  }

  Time ProveOnce(int k, int i, int to, int begin, int end, bool alone) {
    uint64_t key = static_cast<uint64_t>(k);
    for (const int layer : {i, to, begin, end}) key = key << 12 | static_cast<uint64_t>(layer);
    const auto [at, added] = proven_.try_emplace(key, 0);
    if (added) at->second = ranks_.Prove(k, i, to, begin, end, alone);
    return at->second;
  }

  bool Refuted(int64_t rounds) {
    const bool refuted = proof_.Refutes(StepOfChosen(), asked_, rounds, left_);
    left_ -= proof_.TakeWork();
    if (control_.stopped()) left_ = 0;
    return refuted;
  }

  PricedStep StepOfChosen() {
    const Pairing& pairing = ranks_.pairing();
    const auto steps = static_cast<int>(chosen_.size());
    const Time both = pairing.first + pairing.second;
    PricedStep step;
    step.ranks = steps;
    const bool alone = Alone(steps - 1);
    if (alone) step.doubled = steps - 1;
    PricedStep::Route& route = step.routes.emplace_back();
    route.microbatches = static_cast<double>(both) / (pairing.second > 0 ? 2 : 1);
    // A V turns within its last rank.
    const Time turn = pairing.second > 0 ? ranks_.hop() : 0;
    for (int k = 0; k < steps; ++k) {
      const Choice& choice = chosen_[static_cast<size_t>(k)];
      const bool turns = k + 1 == pairing.steps;
      route.stages.push_back({k, layers_.CostOf(choice.i, choice.to), turns ? turn : ranks_.hop()});
    }
    const int inside = ranks_.stages() - 2 * steps;
    if (inside > 0) {
      const Choice& inner = chosen_.back();
      const Time hops = (inside - 2) * ranks_.hop() + turn;
      PricedStage delay = {-1, {}, ranks_.hop()};
      delay.cost.f = layers_.forward_before(inner.begin) - layers_.forward_before(inner.to) + hops;
      delay.cost.b =
          layers_.backward_before(inner.begin) - layers_.backward_before(inner.to) + hops;
      route.stages.push_back(delay);
    }
    for (int k = steps - (alone ? 2 : 1); k >= 0; --k) {
      const Choice& choice = chosen_[static_cast<size_t>(k)];
      route.stages.push_back({k, layers_.CostOf(choice.begin, choice.end), ranks_.hop()});
    }
    return step;
  }

  const SearchControl& control_;
  const bool fixed_;  ///< no other partition is allowed
  LayerStages& layers_;
  const LayerWork& price_;
  PairedRanks ranks_;
  const Partition& found_;
  PriceProof proof_;
  int64_t left_;
  Time asked_ = 0;
  std::vector<Choice> chosen_;
  std::unordered_map<uint64_t, Time> proven_;  // from what one step says alone
};

}  // namespace

Time RaiseByPrices(const Spec& spec, LayerStages* layers, const Plan& frame, const Partition& found,
                   Time proven, Time goal, int64_t effort, const SearchControl& control) {
  const std::optional<Pairing> pairing = PairingOf(frame);
  if (!pairing || !pairing->nested || !spec.costs.microbatch_scale.empty() ||
      !spec.costs.ranks.empty()) {
    return proven;
  }
  const Time most = goal / std::max<Time>(1, pairing->first) + 5;
  LayerWork work(layers, most);
  return PricedPartitions(spec, layers, work, *pairing, found, goal, effort, control)
      .Raise(proven, goal);
}

}  // namespace contraflow
