#include <algorithm>

#include "compiler/lower/sharing.h"

namespace contraflow {
namespace {

constexpr size_t kNobody = LaneChoice::kNobody;

class Chooser {
 public:
  Chooser(const LaneState& state, const LanePolicy& policy, const LaneRank& rank, int lane)
      : state_(state), policy_(policy), rank_(rank), lane_(lane) {}

  LaneChoice Choose(int most_activations) {
    int activations = rank_.activations;
    for (size_t at = rank_.first; at < rank_.blocks.size() && seen_ < policy_.window; ++at) {
      const LaneBlock& b = rank_.blocks[at];
      if (b.left == 0) continue;
      const bool holds = HasForward(b.chunk->op) || b.chunk->op == Op::R;
      if (!b.begun && holds && ++activations > most_activations) break;
      if (policy_.serial && !b.begun && !MayBeginSerially(b)) break;
      at_ = at;
      if (policy_.free_order) {
        ConsiderFree(b);
      } else {
        ConsiderInOrder(b);
      }
      if (++seen_ < policy_.window) needed_ = std::min(needed_, WantsLane(b));
    }
    return best_;
  }

 private:
  /// When the next part of chain 0 or 1 may begin, if that is known.
  Time ReadyAt(const LaneBlock& b, int chain) const {
    if (b.done[chain] > 0) return b.ready[chain];
    if (chain == 1) return std::max(state_.backward[b.at[1]], state_.recompute_end[b.at[1]]);
    return b.chunk->op == Op::R ? state_.forward_end[b.at[0]] : state_.forward[b.at[0]];
  }

  /// The first weight part that may run now: after its backward part, and in the order of
  /// micro-batches for each of the stage's weights.
  size_t NextWeight(const LaneBlock& b) const {
    const std::vector<ChunkPart>& parts = b.shape->chains[2];
    if (b.done[2] == parts.size()) return kNobody;
    const bool own = HasBackward(b.chunk->op);
    if (!own && state_.backward_end[b.at[1]] > state_.now) return kNobody;
    const LaneCopy& copy = state_.copies[b.copy];
    for (size_t w = 0; w < parts.size(); ++w) {
      if (b.weighed[w]) continue;
      const size_t behind = b.shape->release[w];
      const bool released =
          !own || b.done[1] > behind || (b.done[1] == behind && b.ready[1] <= state_.now);
      if (!released) return kNobody;
      const size_t kind = parts[w].op == Op::MLP_W ? 0 : 1;
      if (copy.weighed[kind][static_cast<size_t>(parts[w].layer)] == b.ordinal) return w;
    }
    return kNobody;
  }

  /// Takes a part if it is preferred to the best so far (smaller is) and keeps no earlier chunk
  /// waiting for too long.
  void Consider(const LaneBlock& b, int chain, size_t weight, int64_t preference) {
    if (preference >= preference_) return;
    const Time duration = chain == 2 ? b.shape->chains[2][weight].duration : b.Next(chain).duration;
    if (seen_ > 0 && state_.now + duration > needed_ + policy_.patience) return;
    best_ = {at_, chain, weight};
    preference_ = preference;
  }

  /// Earlier chunks first, the backward chain of each first, weight parts after all chains.
  void ConsiderFree(const LaneBlock& b) {
    constexpr int64_t kWeightsLast = int64_t{1} << 32;
    const int64_t place = 2 * int64_t{seen_};
    for (const int chain : {1, 0}) {
      if (!b.Has(chain) || b.Next(chain).lane != lane_) continue;
      if (ReadyAt(b, chain) <= state_.now) Consider(b, chain, 0, place + 1 - chain);
    }
    if (lane_ != 0 || preference_ < kWeightsLast) return;
    if (const size_t w = NextWeight(b); w != kNobody) Consider(b, 2, w, kWeightsLast + place);
  }

  void ConsiderInOrder(const LaneBlock& b) {
    const auto& order = b.shape->order[lane_];
    if (b.taken[lane_] == order.size()) return;
    const ChunkShape::Pick& pick = order[b.taken[lane_]];
    if (pick.chain == 2) {
      if (NextWeight(b) == pick.index) Consider(b, 2, pick.index, seen_);
    } else if (b.done[pick.chain] == pick.index && ReadyAt(b, pick.chain) <= state_.now) {
      Consider(b, pick.chain, 0, seen_);
    }
  }

  /// The earliest time, as far as it is known, at which a chunk will want this lane for its chains.
  Time WantsLane(const LaneBlock& b) const {
    Time wants = kUnknown;
    for (const int chain : {0, 1}) {
      if (!b.Has(chain)) continue;
      Time ready = ReadyAt(b, chain);
      if (ready == kUnknown) continue;
      if (b.Next(chain).lane != lane_) {
        const std::vector<ChunkPart>& parts = b.shape->chains[chain];
        ready = std::max({ready, rank_.free[1 - lane_], state_.now});
        size_t next = b.done[chain];
        for (; next < parts.size() && parts[next].lane != lane_; ++next) {
          ready += parts[next].duration;
        }
        if (next == parts.size()) continue;
      }
      wants = std::min(wants, ready);
    }
    return wants;
  }

  bool MayBeginSerially(const LaneBlock& b) const {
    if (std::max(rank_.free[0], rank_.free[1]) > state_.now) return false;
    const Instruction& i = *b.chunk;
    if ((HasForward(i.op) || i.op == Op::R) && ReadyAt(b, 0) > state_.now) return false;
    if (HasBackward(i.op)) return ReadyAt(b, 1) <= state_.now;
    if (!HasWeight(i.op)) return true;
    return state_.backward_end[b.at[1]] <= state_.now;
  }

  const LaneState& state_;
  const LanePolicy& policy_;
  const LaneRank& rank_;
  const int lane_;
  LaneChoice best_;
  int64_t preference_ = std::numeric_limits<int64_t>::max();
  Time needed_ = kUnknown;  // when an earlier chunk will want this lane
  size_t at_ = 0;           // the block looked at
  int seen_ = 0;            // blocks under way before it
};

}  // namespace

LaneChoice ChoosePart(const LaneState& state, const LanePolicy& policy, int most_activations, int r,
                      int lane) {
  const LaneRank& rank = state.rank(r);
  return Chooser(state, policy, rank, lane).Choose(most_activations);
}

}  // namespace contraflow
