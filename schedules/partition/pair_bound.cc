// Bounds that hold for any partition where each rank has two stages: of a V (r and 2P-1-r), of two
// routes (r and P-1-r, mirrored on rank P-1-r), or interleaved (r and P+r).
//
// A rank begins when the first micro-batch has come through the layers before its first stage, and
// then has the work of both stages for all their micro-batches:
//
//     makespan >= min over partitions of max over ranks of head + work.
//
// Before the head of its second stage is over it can run forwards of its first one only:
//
//     makespan >= head of the second stage + work - forwards of the first,
//
// and before the first micro-batch is on its way back no more forwards than its memory holds
// (MostForwardsHeld). Weight gradients may come last, but after the last backward of a stage those
// of all layers before it follow: head, forwards, backwards and that tail are a bound as well,
// where no overlap makes them shorter than their sums.
//
// All of that is soon computed. If it leaves a choice of layers open, ProveRankBound bounds these
// stages with their real costs, however their layers overlap: around them is the chain of all other
// layers, however they are divided.
//
// A choice is none if the ranks to come have no room for what it leaves: one that begins at its
// head has done no more than (makespan - head) / M of a micro-batch's work, and the layers left
// take their busy time (layer_work.h). The lower the makespan that is asked about, the fewer
// choices are left. So the question is first whether any partition is below a makespan a little
// above what is soon computed, and then further up until one is found: all choices that are looked
// at closely lead below what is proven in the end.
//
// Stages are filled rank by rank, so what is left of the model is an interval (V, two routes) or
// two (interleaved), and a dynamic programme over its ends finds the minimum. The two routes of a
// bidirectional placement need one step for ranks r and P-1-r together: the larger of

//     M1 w(r) + M2 w(P-1-r)  and  M1 w(P-1-r) + M2 w(r).

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/bound/bound.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/partition/joint_bound.h"
#include "schedules/partition/pairing.h"

namespace contraflow {
namespace {

constexpr Time kUnreached = std::numeric_limits<Time>::max();
/// Budget of close looks at choices: one for each kEachClose nanoseconds of the search.
constexpr int64_t kEachClose = 160'000, kMostClose = 2'000'000;
constexpr int kMostRanksClose = 64;
/// Makespans that are asked about.
constexpr int kQuestions = 8;

class PairBound {
 public:
  PairBound(const Spec& spec, LayerStages* layers, LayerWork* work, const Pairing& pairing,
            Time least, Time enough)
      : spec_(spec),
        layers_(*layers),
        work_(*work),
        ranks_(spec, layers, *work, pairing),
        pairing_(pairing),
        least_(least),
        enough_(enough),
        count_(layers->layers()),
        sums_(std::none_of(spec.costs.layers.begin(), spec.costs.layers.end(), Overlaps)),
        held_(spec.costs.ranks.empty() ? MostForwardsHeld(spec, *layers) : std::nullopt),
        close_(spec.costs.ranks.empty() && spec.ranks <= kMostRanksClose
                   ? std::clamp<int64_t>(spec.search.budget / kEachClose, 0, kMostClose)
                   : 0) {}

  PartitionBound Find() {
    const int64_t close = std::exchange(close_, 0);
    PartitionBound best = Least();
    close_ = close;
    const Time from = best.value;
    for (int question = 1; question <= kQuestions && from < enough_ && close_ > 0; ++question) {
      const Time most = from + (enough_ - from) * question / kQuestions;
      PartitionBound found = Below(most);
      // A look that ended early may be no more than is known.
      if (found.value >= best.value) best = std::move(found);
      if (best.value < most) break;
    }
    return best;
  }

 private:
  size_t At(int i, int j) const {
    return static_cast<size_t>(i) * static_cast<size_t>(count_ + 1) + static_cast<size_t>(j);
  }
  Time Work(int i, int j) const { return work_.Of(i, j); }
  /// The same at least, and more for more layers.
  Time Busy(int i, int j) const { return work_.between(i, j); }

  static bool Overlaps(const LayerCost& layer) {
    const StageCost& cost = layer.cost;
    return layer.moe || cost.bw < cost.b + cost.w || cost.fb < cost.f + cost.bw;
  }

  /// Time of step k with the layers i..to-1 alone in its first stage.
  Time OfFirst(int k, int i, int to) const {
    return ranks_.Head(i, k) + ranks_.OfAll(k, Busy(i, to), 0);
  }

  /// Time of step k with both stages, the second one with the layers begin..end-1.
  Time OfBoth(int k, int i, int to, int begin, int end) const {
    const int second = pairing_.nested
                           ? (pairing_.second > 0 ? spec_.ranks - 1 - k : 2 * spec_.ranks - 1 - k)
                           : spec_.ranks + k;
    // A V turns within its last rank.
    const int hops = pairing_.nested && pairing_.second == 0 ? second - 1 : second;
    const Time most = std::max(pairing_.first, pairing_.second);
    const auto alone = [&](Time work) { return AtLeast(most * work, SpeedOf(spec_, k), 6 * most); };
    const Time forward = layers_.forward_before(to) - layers_.forward_before(i);
    Time value =
        std::max(ranks_.Head(i, k) + ranks_.OfAll(k, Work(i, to), Work(begin, end)),
                 ranks_.Head(begin, hops) +
                     ranks_.OfAll(k, std::max<Time>(0, Work(i, to) - forward), Work(begin, end)));
    if (held_) {
      value = std::max(value, ranks_.BackAt(end, hops) +
                                  ranks_.OfAll(k, Work(i, to), Work(begin, end)) - *held_);
    }
    if (!sums_) return value;
    value = std::max(value, ranks_.Head(i, k) +
                                ranks_.OfAll(k, ranks_.Chain(i, to), ranks_.Chain(begin, end)) +
                                ranks_.Tail(i, k));
    return std::max(value, ranks_.Head(begin, hops) + alone(ranks_.Chain(begin, end)) +
                               ranks_.Tail(begin, hops));
  }

  /// Time of the one stage of the middle rank for both routes.
  Time OfMiddle(int k, int i, int to) const {
    return ranks_.Head(i, k) + ranks_.OfAll(k, Work(i, to), Work(i, to));
  }

  /// Closely, once for each choice.
  Time CloselyOnce(int k, int i, int to, int begin, int end, bool alone) {
    uint64_t key = static_cast<uint64_t>(k);
    for (const int layer : {i, to, begin, end}) key = key << 12 | static_cast<uint64_t>(layer);
    const auto [at, added] = looked_.try_emplace(key, 0);
    if (added && close_ > 0) {
      --close_;
      at->second = ranks_.Prove(k, i, to, begin, end, alone);
    } else if (added) {
      looked_.erase(at);
      return 0;
    }
    return at->second;
  }

  struct Ends {
    int i = -1, j = -1;
  };

  /// The least of all partitions, no more than `enough_`. Fewer layers are tried while it is looked
  /// for a little above the bound of all ranks together.
  PartitionBound Least() {
    for (Time longer = least_ / 16 + 1;; longer *= 2) {
      const Time most = longer < enough_ - least_ ? least_ + longer : enough_;
      PartitionBound best = Below(most);
      if (!best.partition.empty() || most == enough_) return best;
    }
  }

  /// The least of all partitions, no more than `most`.
  PartitionBound Below(Time most) {
    PartitionBound best = {most, {}};
    if (pairing_.nested) {
      Run(count_, &best);
      return best;
    }
    // Start of the second stages.
    for (int cut = pairing_.steps; cut <= count_ - pairing_.steps; ++cut) Run(cut, &best);
    return best;
  }

  /// With the second stages from layer `cut` on, or from the end back.
  void Run(int cut, PartitionBound* best) {
    const int steps = pairing_.steps;
    std::vector<std::vector<Ends>> from(static_cast<size_t>(steps));
    std::vector<std::pair<int, int>> states = {{0, cut}};
    std::vector<Time> least(At(count_, count_) + 1, kUnreached);
    least[At(0, cut)] = 0;
    ranks_.FindRoom(best->value);
    for (int k = 0; k < steps; ++k) {
      std::vector<Time> next(least.size(), kUnreached);
      std::vector<Ends>& origin = from[static_cast<size_t>(k)];
      origin.resize(least.size());
      std::vector<std::pair<int, int>> reached;
      for (const auto& [i, j] : states) {
        Extend(k, cut, i, j, least[At(i, j)], best->value, &next, &origin, &reached);
      }
      least = std::move(next);
      states = std::move(reached);
    }
    for (const auto& [i, j] : states) {
      if (!Complete(cut, i, j) || least[At(i, j)] >= best->value) continue;
      best->value = least[At(i, j)];
      best->partition = Trace(from, i, j);
    }
  }

  /// True if nothing of the model is left.
  bool Complete(int cut, int i, int j) const {
    return pairing_.nested ? i == j : i == cut && j == count_;
  }

  /// All ways to fill the stages of step k, from what is left at i and j.
  void Extend(int k, int cut, int i, int j, Time before, Time most, std::vector<Time>* next,
              std::vector<Ends>* origin, std::vector<std::pair<int, int>>* reached) {
    const bool last = k + 1 == pairing_.steps;
    const bool alone = last && pairing_.middle;
    const int behind = pairing_.steps - 1 - k;
    // The other steps need at least this.
    const int first_end = (pairing_.nested ? j : cut) - behind;
    for (int to = i + 1; to <= first_end; ++to) {
      if (alone) to = j;
      if (OfFirst(k, i, to) >= most) break;
      const int room = pairing_.nested ? j - to : count_ - j;
      const int least_second = alone ? 0 : 1;
      for (int size = least_second; size <= room; ++size) {
        const int end = pairing_.nested ? j - size : j + size;
        if (last && !Complete(cut, to, end)) {
          if (alone) break;
          continue;
        }
        if (!last && ranks_.Leaves(k, to, pairing_.nested ? end : cut, end)) continue;
        const Time here =
            alone ? OfMiddle(k, i, to) : OfBoth(k, i, to, std::min(j, end), std::max(j, end));
        Time value = std::max(before, here);
        if (value >= most) {
          if (ranks_.Head(i, k) +
                  ranks_.OfAll(k, Busy(i, to), Busy(std::min(j, end), std::max(j, end))) >=
              most) {
            break;  // more layers are more work
          }
          continue;
        }
        Time& at = (*next)[At(to, end)];
        if (value < at) {
          value = std::max(value, CloselyOnce(k, i, to, std::min(j, end), std::max(j, end), alone));
        }
        if (value >= most) continue;
        if (at == kUnreached) reached->emplace_back(to, end);
        if (value < at) {
          at = value;
          (*origin)[At(to, end)] = {i, j};
        }
        if (alone) break;
      }
    }
  }

  Partition Trace(const std::vector<std::vector<Ends>>& from, int i, int j) const {
    std::vector<int> firsts, seconds;
    for (size_t k = from.size(); k-- > 0;) {
      const Ends before = from[k][At(i, j)];
      firsts.push_back(i - before.i);
      const int second = pairing_.nested ? before.j - j : j - before.j;
      if (second > 0) seconds.push_back(second);
      i = before.i;
      j = before.j;
    }
    std::reverse(firsts.begin(), firsts.end());
    // From the inside out, nested ones are in the order of the layers.
    if (!pairing_.nested) std::reverse(seconds.begin(), seconds.end());
    firsts.insert(firsts.end(), seconds.begin(), seconds.end());
    return firsts;
  }

  const Spec& spec_;
  const LayerStages& layers_;
  LayerWork& work_;
  PairedRanks ranks_;
  const Pairing pairing_;
  const Time least_, enough_;
  const int count_;
  const bool sums_;  ///< nothing overlaps
  const std::optional<Time> held_;
  int64_t close_;  ///< how many choices more are looked at closely
  std::unordered_map<uint64_t, Time> looked_;
};

}  // namespace

std::optional<PartitionBound> BoundOfPairs(const Spec& spec, LayerStages* layers, LayerWork* work,
                                           const Plan& frame, Time least, Time enough) {
  const std::optional<Pairing> pairing = PairingOf(frame);
  if (!pairing || !spec.costs.microbatch_scale.empty()) return std::nullopt;
  return PairBound(spec, layers, work, *pairing, least, enough).Find();
}

}  // namespace contraflow
