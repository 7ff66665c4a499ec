// Both chains use the two lanes and weight parts fill the compute lane. A partial order is told
// completely by how far each chain is, which weight parts are done, when each lane is free and when
// each chain's last component ended. The search covers:
//
//   * Of two partial orders equally far in both chains, the one that is no later in all four times
//     and has done at least the same weight parts can be completed at least as well as the other,
//     which is dropped. (What the other has left it can do in the same places, and more.)
//   * Only active orders (Giffler and Thompson 1960): of the components that could be next, the one
//     that would end first names the lane, and next on that lane is one that begins before that
//     end. One that begins later leaves room for the other in front of it at no loss.
//   * A weight part never waits: its own backward component ran before it on the same lane. Among
//   two equally long ones the earlier released goes first; to swap them changes no time.
//   * Best first by a lower bound (A*): either lane alone, with every component on it ready as soon
//     as its chain alone allows, followed by the rest of its chain, and preemption allowed
//     (Jackson's schedule). The search ends where no bound is below the best order found.
//   * Where that takes too long, a few partial orders grow side by side: of all that have one more
//     part, those with the lowest bounds go on.

#include "compiler/lower/interleave.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <utility>

#include "compiler/bound/jackson.h"
#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"

namespace contraflow {
namespace {

constexpr size_t kForward = 0, kBackward = 1, kWeights = 2;
/// Partial orders that grow side by side.
constexpr size_t kFew = 16;

struct Part {
  Op op;
  int layer;
  size_t chain;
  Time duration;
  bool compute;  ///< its lane
  int place;     ///< in DeepSeek's order
  Time tail;     ///< least time from its end to the end of all
};

/// DeepSeek's order for one forward layer and the backward layer that overlaps it, as it issues
/// them.
constexpr std::array kPairOrder = {Op::COMBINE_B,  Op::ATTN_F,   Op::MLP_B, Op::DISPATCH_F,
                                   Op::DISPATCH_B, Op::MLP_W,    Op::MLP_F, Op::ATTN_B,
                                   Op::ATTN_W,     Op::COMBINE_F};

using Done = std::bitset<2 * size_t{kMaxLayers}>;

/// A partial order: when the lanes are free (compute, all-to-all) and the chains have ended.
struct State {
  std::array<Time, 2> lane{}, chain{};
  std::array<size_t, 2> next{};  ///< components of each chain that are done
  Done done;                     ///< weight parts
  Time bound = 0;                ///< no completion ends earlier
  int depth = 0;
  int parent = -1;
  const Part* part = nullptr;  ///< the last one added
  bool dropped = false;

  bool Covers(const State& other) const {
    return lane[0] <= other.lane[0] && lane[1] <= other.lane[1] && chain[0] <= other.chain[0] &&
           chain[1] <= other.chain[1] && (other.done & ~done).none();
  }
};

class Interleaver {
 public:
  Interleaver(const MoeCost& forward, const MoeCost& backward, Chains chains, size_t most_orders,
              bool exact)
      : most_orders_(most_orders), exact_(exact), layers_(backward.layers_per_stage) {
    CF_ASSERT(forward.layers_per_stage >= 1 && forward.layers_per_stage <= kMaxLayers);
    CF_ASSERT(layers_ >= 1 && layers_ <= kMaxLayers);
    for (int pair = 0; pair < forward.layers_per_stage; ++pair) {
      for (const Op op : {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F}) {
        if (chains.forward) Append(kForward, op, pair, pair, forward);
      }
    }
    for (int pair = 0; pair < layers_; ++pair) {
      for (const Op op :
           {Op::COMBINE_B, Op::MLP_B, Op::MLP_W, Op::DISPATCH_B, Op::ATTN_B, Op::ATTN_W}) {
        const bool weights = op == Op::MLP_W || op == Op::ATTN_W;
        if (weights ? !chains.weights : !chains.backward) continue;
        if (!Has(backward.KindOf(layers_ - 1 - pair), op)) continue;
        if (weights) release_.push_back(parts_[kBackward].size());
        Append(weights ? kWeights : kBackward, op, layers_ - 1 - pair, pair, backward);
      }
    }
    SetTails();
    twin_.resize(parts_[kWeights].size());
    for (size_t k = 0; k < twin_.size(); ++k) {
      for (size_t earlier = 0; earlier < k; ++earlier) {
        if (Weight(earlier).duration == Weight(k).duration) twin_[k] = earlier;
      }
    }
    fronts_.resize((parts_[kForward].size() + 1) * (parts_[kBackward].size() + 1));
  }

  Interleaving Run() {
    std::vector<const Part*> order = FixedOrder();
    best_ = Evaluate(order).makespan;
    if (const int last = Search(); last >= 0) {
      order.clear();
      for (int s = last; s > 0; s = At(s).parent) order.push_back(At(s).part);
      std::reverse(order.begin(), order.end());
    }
    return Evaluate(Merge(order));
  }

 private:
  const Part& Weight(size_t k) const { return parts_[kWeights][k]; }
  State& At(int state) { return states_[static_cast<size_t>(state)]; }

  void Append(size_t chain, Op op, int layer, int pair, const MoeCost& cost) {
    if (!Has(cost.KindOf(layer), op)) return;
    const auto place = std::find(kPairOrder.begin(), kPairOrder.end(), op) - kPairOrder.begin();
    parts_[chain].push_back(
        {.op = op,
         .layer = layer,
         .chain = chain,
         .duration = cost.Of(op, layer),
         .compute = WorkOf(op) != Work::kAllToAll,
         .place = pair * static_cast<int>(kPairOrder.size()) + static_cast<int>(place),
         .tail = 0});
  }

  void SetTails() {
    for (const size_t chain : {kForward, kBackward}) {
      std::vector<Part>& parts = parts_[chain];
      for (size_t i = parts.size(); i-- > 0;) {
        if (i + 1 < parts.size()) parts[i].tail = parts[i + 1].tail + parts[i + 1].duration;
        if (chain == kForward) continue;
        for (size_t k = 0; k < release_.size(); ++k) {
          if (release_[k] == i + 1) parts[i].tail = std::max(parts[i].tail, Weight(k).duration);
        }
      }
    }
  }

  std::vector<const Part*> FixedOrder() const {
    std::vector<const Part*> order;
    for (const auto& parts : parts_) {
      for (const Part& part : parts) order.push_back(&part);
    }
    std::sort(order.begin(), order.end(),
              [](const Part* a, const Part* b) { return a->place < b->place; });
    return order;
  }

  /// The same lane orders, issued as nearly in DeepSeek's order as they and the chains allow.
  std::vector<const Part*> Merge(const std::vector<const Part*>& order) const {
    std::array<std::vector<const Part*>, 2> lanes;
    for (const Part* part : order) lanes[part->compute ? 0 : 1].push_back(part);
    std::array<size_t, 2> at{}, next{};
    std::vector<const Part*> merged;
    const auto possible = [&](size_t lane) {
      if (at[lane] == lanes[lane].size()) return false;
      const Part& part = *lanes[lane][at[lane]];
      if (part.chain != kWeights) {
        const auto chain = part.chain;
        return &part == &parts_[chain][next[chain]];
      }
      return next[kBackward] >= release_[static_cast<size_t>(&part - parts_[kWeights].data())];
    };
    while (merged.size() < order.size()) {
      size_t lane = possible(0) ? 0 : 1;
      CF_ASSERT(possible(lane));
      if (lane == 0 && possible(1) && lanes[1][at[1]]->place < lanes[0][at[0]]->place) lane = 1;
      const Part* const part = lanes[lane][at[lane]++];
      if (part->chain != kWeights) ++next[part->chain];
      merged.push_back(part);
    }
    return merged;
  }

  static Interleaving Evaluate(const std::vector<const Part*>& order) {
    Interleaving result;
    State state;
    for (const Part* part : order) {
      const Time end = Run(*part, &state);
      Instruction component = Component(part->op, 0, part->layer, part->chain == kForward ? 0 : 1);
      result.order.push_back(component);
      result.spans.push_back({end - part->duration, end});
      result.makespan = std::max(result.makespan, end);
    }
    return result;
  }

  /// Runs a part as early as its lane and chain allow; when it ends.
  static Time Run(const Part& part, State* state) {
    Time& lane = state->lane[part.compute ? 0 : 1];
    if (part.chain == kWeights) return lane += part.duration;
    Time& chain = state->chain[part.chain];
    chain = lane = std::max(lane, chain) + part.duration;
    return lane;
  }

  /// The best last state of an order better than best_, or -1: none is better.
  int Search() {
    // Lowest bound first, of those the furthest, of those the one found first.
    std::priority_queue<std::array<int64_t, 3>> open;
    const auto push = [&](const State& state) {
      const int index = Keep(state);
      if (index >= 0) open.push({-At(index).bound, At(index).depth, -index});
    };
    int last = -1;
    push({});
    while (!open.empty()) {
      const int index = static_cast<int>(-open.top()[2]);
      open.pop();
      if (At(index).dropped) continue;
      if (At(index).bound >= best_) break;
      if (Complete(At(index))) {
        last = index;
        best_ = At(index).bound;
        continue;
      }
      if (states_.size() > most_orders_) {
        if (exact_) GiveUp();
        return GrowFew(last);
      }
      for (const Part* part : Branches(At(index))) push(After(index, *part));
    }
    return last;
  }

  /// Like Search, of a few partial orders only; `last` where these give nothing better.
  int GrowFew(int last) {
    for (std::vector<int>& front : fronts_) front.clear();
    std::vector<int> few = {0};
    while (!few.empty() && !Complete(At(few.front()))) {
      std::vector<int> longer;
      for (const int parent : few) {
        for (const Part* part : Branches(At(parent))) {
          if (const int index = Keep(After(parent, *part)); index >= 0) longer.push_back(index);
        }
      }
      // A state that does not go on covers no later one.
      for (const int index : longer) FrontOf(At(index)).clear();
      std::erase_if(longer, [&](int index) { return At(index).dropped; });
      std::ranges::stable_sort(longer, {}, [&](int index) { return At(index).bound; });
      if (longer.size() > kFew) longer.resize(kFew);
      few = std::move(longer);
    }
    if (few.empty()) return last;
    best_ = At(few.front()).bound;
    return few.front();
  }

  bool Complete(const State& state) const {
    return state.next[0] == parts_[kForward].size() && state.next[1] == parts_[kBackward].size() &&
           state.done.count() == parts_[kWeights].size();
  }

  /// Returns its index from now on, or -1: it cannot become better than the best, or another one
  /// covers it.
  int Keep(State state) {
    Normalize(&state);
    state.bound = Bound(state);
    if (state.bound >= best_ || !Enter(state)) return -1;
    states_.push_back(state);
    return static_cast<int>(states_.size()) - 1;
  }

  std::vector<int>& FrontOf(const State& state) {
    return fronts_[state.next[0] * (parts_[kBackward].size() + 1) + state.next[1]];
  }

  State After(int parent, const Part& part) {
    State state = At(parent);
    Run(part, &state);
    if (part.chain == kWeights) {
      state.done.set(static_cast<size_t>(&part - parts_[kWeights].data()));
    } else {
      ++state.next[part.chain];
    }
    state.parent = parent;
    state.part = &part;
    ++state.depth;
    return state;
  }

  /// Takes from the chains' times what makes no difference, so that more states cover each other.
  void Normalize(State* state) const {
    for (const size_t chain : {kForward, kBackward}) {
      const std::vector<Part>& parts = parts_[chain];
      const size_t next = state->next[chain];
      state->chain[chain] =
          next == parts.size()
              ? 0
              : std::max(state->chain[chain], state->lane[parts[next].compute ? 0 : 1]);
    }
  }

  /// The parts of an active order that may come next.
  std::vector<const Part*> Branches(const State& state) const {
    std::vector<std::pair<const Part*, Time>> possible;  // and when it would begin
    for (const size_t chain : {kBackward, kForward}) {
      if (state.next[chain] == parts_[chain].size()) continue;
      const Part& part = parts_[chain][state.next[chain]];
      possible.emplace_back(&part, std::max(state.chain[chain], state.lane[part.compute ? 0 : 1]));
    }
    for (size_t k = 0; k < release_.size() && release_[k] <= state.next[kBackward]; ++k) {
      if (state.done[k] || (twin_[k] && !state.done[*twin_[k]])) continue;
      possible.emplace_back(&Weight(k), state.lane[0]);
    }
    const auto first =
        std::min_element(possible.begin(), possible.end(), [](const auto& a, const auto& b) {
          return a.second + a.first->duration < b.second + b.first->duration;
        });
    const Time end = first->second + first->first->duration;
    std::vector<const Part*> branches;
    for (const auto& [part, start] : possible) {
      if (part->compute != first->first->compute) continue;
      if (start < end || part == first->first) branches.push_back(part);
    }
    return branches;
  }

  /// False if another state covers this one; drops those that this one covers.
  bool Enter(const State& state) {
    std::vector<int>& front = FrontOf(state);
    for (const int other : front) {
      if (At(other).Covers(state)) return false;
    }
    std::erase_if(front, [&](int other) {
      if (!state.Covers(At(other))) return false;
      At(other).dropped = true;
      return true;
    });
    front.push_back(static_cast<int>(states_.size()));
    return true;
  }

  Time Bound(const State& state) const {
    std::array<Jackson, 2> lanes;
    Time bound = std::max(state.lane[0], state.lane[1]);
    Time released[2 * kMaxLayers];  // when each weight part can begin, at the earliest
    size_t weight = 0;
    for (; weight < release_.size() && release_[weight] <= state.next[kBackward]; ++weight) {
      released[weight] = state.lane[0];
    }
    for (const size_t chain : {kForward, kBackward}) {
      Time head = state.chain[chain];
      for (size_t i = state.next[chain]; i < parts_[chain].size(); ++i) {
        const Part& part = parts_[chain][i];
        const size_t lane = part.compute ? 0 : 1;
        head = std::max(head, state.lane[lane]);
        lanes[lane].Add(head, part.duration, part.tail);
        head += part.duration;
        for (; chain == kBackward && weight < release_.size() && release_[weight] == i + 1;
             ++weight) {
          released[weight] = head;
        }
      }
      bound = std::max(bound, head);
    }
    for (size_t k = 0; k < release_.size(); ++k) {
      if (!state.done[k]) lanes[0].Add(released[k], Weight(k).duration, 0);
    }
    return std::max({bound, lanes[0].Makespan(), lanes[1].Makespan()});
  }

  [[noreturn]] void GiveUp() const {
    throw Error("the components of " + std::to_string(layers_) +
                " layers cannot be interleaved exactly within " + std::to_string(most_orders_) +
                " partial orders; give fewer \"layers_per_stage\", or layers that cost the same");
  }

  const size_t most_orders_;
  const bool exact_;                        ///< else what is found within most_orders_ will do
  const int layers_;                        ///< of the backward
  std::array<std::vector<Part>, 3> parts_;  // by chain
  std::vector<size_t> release_;  // how much of the backward chain is done before each weight part
  std::vector<std::optional<size_t>> twin_;  // the weight part as long that goes before
  std::vector<State> states_;
  std::vector<std::vector<int>> fronts_;  // states by how far both chains are
  Time best_ = 0;
};

}  // namespace

Interleaving Interleave(const MoeCost& forward, const MoeCost& backward, Chains chains,
                        size_t most_orders) {
  return Interleaver(forward, backward, chains, most_orders, true).Run();
}

Interleaving InterleaveSoon(const MoeCost& forward, const MoeCost& backward, Chains chains) {
  constexpr size_t kMostOrders = size_t{1} << 10;
  return Interleaver(forward, backward, chains, kMostOrders, false).Run();
}

void DeriveChunkCosts(CostModel* costs, Overlap overlap, bool soon) {
  CF_ASSERT(costs->moe);
  const MoeCost& moe = *costs->moe;
  const auto least = [&](Chains chains) {
    return (soon ? InterleaveSoon(moe, moe, chains) : Interleave(moe, moe, chains)).makespan;
  };
  const Time f = least({.forward = true});
  const Time b = least({.backward = true});
  const Time w = least({.weights = true});
  const Time bw =
      overlap == Overlap::kPublished ? b + w : least({.backward = true, .weights = true});
  const Time fb = least({.forward = true, .backward = true, .weights = true});
  if (costs->stages.empty()) costs->stages.resize(1);
  for (StageCost& stage : costs->stages) {
    stage = {
        .f = f, .b = b, .w = w, .bw = bw, .fb = fb, .reduce = stage.reduce, .step = stage.step};
  }
  costs->derived = overlap;
}

}  // namespace contraflow
