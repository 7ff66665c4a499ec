// Both chains alternate between the two lanes and weight parts are free to slide on the compute lane, so
// a partial schedule is told completely by how far each chain is, which weight parts are done, when each
// lane is free and when each chain's last component ended. Of two partial schedules at one position the
// one that is no later in all four times can always be completed at least as well, so only the Pareto
// front is kept. A weight part becomes possible when its own backward component has ended, which was on
// the same lane, so it never waits.

#include "compiler/interleave.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <tuple>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 20;

struct Part {
  Op op;
  int layer;
  int microbatch;
  Time duration;
  bool compute;  // lane
};

/// Weight parts of one length, in the order in which they become possible.
struct WeightClass {
  std::vector<Part> parts;
  std::vector<size_t> after;  // how much of the backward chain must be done before each
  size_t stride = 0;          // of its count in a position's number
};

/// Earliest times of a partial schedule.
struct Times {
  Time compute = 0, all_to_all = 0, forward = 0, backward = 0;

  auto Tie() const { return std::tie(compute, all_to_all, forward, backward); }
  bool operator<(const Times& other) const { return Tie() < other.Tie(); }
  bool NoLater(const Times& other) const {
    return compute <= other.compute && all_to_all <= other.all_to_all &&
           forward <= other.forward && backward <= other.backward;
  }
};

Time CostOf(const std::vector<Time>& times, int layer) {
  return times.size() == 1 ? times[0] : times[static_cast<size_t>(layer)];
}

class Interleaver {
 public:
  Interleaver(const MoeCost& c, const MoeCost& cb, Chains chains) {
    const int layers = c.layers_per_stage;
    for (int l = 0; chains.forward && l < layers; ++l) {
      forward_.push_back({Op::ATTN_F, l, 0, CostOf(c.attn_f, l), true});
      forward_.push_back({Op::DISPATCH_F, l, 0, CostOf(c.dispatch_f, l), false});
      forward_.push_back({Op::MLP_F, l, 0, CostOf(c.mlp_f, l), true});
      forward_.push_back({Op::COMBINE_F, l, 0, CostOf(c.combine_f, l), false});
    }
    for (int l = layers - 1; l >= 0 && (chains.backward || chains.weights); --l) {
      if (chains.backward) {
        backward_.push_back({Op::COMBINE_B, l, 1, CostOf(cb.combine_b, l), false});
        backward_.push_back({Op::MLP_B, l, 1, CostOf(cb.mlp_b, l), true});
        if (chains.weights) Weight({Op::MLP_W, l, 1, CostOf(cb.mlp_w, l), true});
        backward_.push_back({Op::DISPATCH_B, l, 1, CostOf(cb.dispatch_b, l), false});
        backward_.push_back({Op::ATTN_B, l, 1, CostOf(cb.attn_b, l), true});
      } else {
        Weight({Op::MLP_W, l, 1, CostOf(cb.mlp_w, l), true});
      }
      if (chains.weights) Weight({Op::ATTN_W, l, 1, CostOf(cb.attn_w, l), true});
    }
    Number();
  }

  Interleaving Run() {
    best_ = Least();
    Interleaving result;
    result.makespan = best_;
    std::vector<int> moves;
    CF_ASSERT(Find(0, 0, std::vector<size_t>(weights_.size(), 0), Times{}, &moves));
    Emit(moves, &result);
    return result;
  }

 private:
  void Weight(const Part& part) {
    auto same = std::find_if(weights_.begin(), weights_.end(), [&](const WeightClass& weights) {
      return weights.parts.front().duration == part.duration;
    });
    if (same == weights_.end()) same = weights_.insert(weights_.end(), WeightClass{});
    same->parts.push_back(part);
    same->after.push_back(backward_.size());
  }

  /// Numbers the positions; merges all weight parts into one class where there are too many.
  void Number() {
    const auto count = [this] {
      size_t positions = (forward_.size() + 1) * (backward_.size() + 1);
      for (WeightClass& weights : weights_) {
        weights.stride = positions;
        if (positions <= kMaxPositions) positions *= weights.parts.size() + 1;
      }
      return positions;
    };
    positions_ = count();
    if (positions_ <= kMaxPositions) return;
    std::vector<std::pair<size_t, Part>> all;
    for (const WeightClass& weights : weights_) {
      for (size_t i = 0; i < weights.parts.size(); ++i) {
        all.emplace_back(weights.after[i], weights.parts[i]);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    weights_.assign(1, {});
    for (const auto& [after, part] : all) {
      weights_[0].parts.push_back(part);
      weights_[0].after.push_back(after);
    }
    positions_ = count();
  }

  static Times Behind(Times times, const Part& part, Time Times::*chain) {
    Time& lane = part.compute ? times.compute : times.all_to_all;
    lane = std::max(lane, times.*chain) + part.duration;
    times.*chain = lane;
    return times;
  }

  /// The least makespan: forward over all positions, keeping Pareto fronts.
  Time Least() const {
    std::vector<std::vector<Times>> fronts(positions_);
    fronts[0].push_back({});
    Time least = std::numeric_limits<Time>::max();
    std::vector<size_t> done(weights_.size());
    for (size_t position = 0; position < positions_; ++position) {
      // The strides ascend with f fastest, so every predecessor has a smaller number.
      const size_t f = position % (forward_.size() + 1);
      const size_t b = position / (forward_.size() + 1) % (backward_.size() + 1);
      for (size_t k = 0; k < weights_.size(); ++k) {
        done[k] = position / weights_[k].stride % (weights_[k].parts.size() + 1);
      }
      const std::vector<Times> front = Pareto(std::move(fronts[position]));
      for (const Times& times : front) {
        if (position + 1 == positions_) {
          least = std::min(least, std::max(times.compute, times.all_to_all));
        }
        if (b < backward_.size()) {
          fronts[position + forward_.size() + 1].push_back(
              Behind(times, backward_[b], &Times::backward));
        }
        if (f < forward_.size()) {
          fronts[position + 1].push_back(Behind(times, forward_[f], &Times::forward));
        }
        for (size_t k = 0; k < weights_.size(); ++k) {
          if (!Possible(k, done[k], b)) continue;
          Times next = times;
          next.compute += weights_[k].parts[done[k]].duration;
          fronts[position + weights_[k].stride].push_back(next);
        }
      }
    }
    return least;
  }

  bool Possible(size_t k, size_t done, size_t b) const {
    return done < weights_[k].parts.size() && b >= weights_[k].after[done];
  }

  static std::vector<Times> Pareto(std::vector<Times> all) {
    std::sort(all.begin(), all.end());
    std::vector<Times> front;
    for (const Times& times : all) {
      const bool dominated = std::any_of(front.begin(), front.end(),
                                         [&](const Times& other) { return other.NoLater(times); });
      if (!dominated) front.push_back(times);
    }
    return front;
  }

  /// What is left takes at least this long.
  Time Bound(size_t f, size_t b, const std::vector<size_t>& done, const Times& times) const {
    Time compute = times.compute, all_to_all = times.all_to_all;
    Time forward = times.forward, backward = times.backward;
    for (; f < forward_.size(); ++f) {
      forward += forward_[f].duration;
      (forward_[f].compute ? compute : all_to_all) += forward_[f].duration;
    }
    for (; b < backward_.size(); ++b) {
      backward += backward_[b].duration;
      (backward_[b].compute ? compute : all_to_all) += backward_[b].duration;
    }
    for (size_t k = 0; k < weights_.size(); ++k) {
      for (size_t i = done[k]; i < weights_[k].parts.size(); ++i) {
        compute += weights_[k].parts[i].duration;
      }
    }
    return std::max({compute, all_to_all, forward, backward});
  }

  /// The first completion within best_, in the order of preference. Moves: 0 backward, 1 forward,
  /// 2 + k a weight part of class k.
  bool Find(size_t f, size_t b, std::vector<size_t> done, const Times& times,
            std::vector<int>* moves) {
    if (Bound(f, b, done, times) > best_) return false;
    size_t position = f + b * (forward_.size() + 1);
    for (size_t k = 0; k < weights_.size(); ++k) position += done[k] * weights_[k].stride;
    if (position + 1 == positions_) return true;
    if (!seen_.insert({position, times}).second) return false;
    if (b < backward_.size()) {
      moves->push_back(0);
      if (Find(f, b + 1, done, Behind(times, backward_[b], &Times::backward), moves)) return true;
      moves->pop_back();
    }
    if (f < forward_.size()) {
      moves->push_back(1);
      if (Find(f + 1, b, done, Behind(times, forward_[f], &Times::forward), moves)) return true;
      moves->pop_back();
    }
    for (size_t k = 0; k < weights_.size(); ++k) {
      if (!Possible(k, done[k], b)) continue;
      Times next = times;
      next.compute += weights_[k].parts[done[k]].duration;
      ++done[k];
      moves->push_back(static_cast<int>(k) + 2);
      if (Find(f, b, done, next, moves)) return true;
      moves->pop_back();
      --done[k];
    }
    return false;
  }

  void Emit(const std::vector<int>& moves, Interleaving* result) const {
    size_t f = 0, b = 0;
    std::vector<size_t> done(weights_.size(), 0);
    Times times;
    for (const int move : moves) {
      const Part* part = nullptr;
      if (move == 0) {
        part = &backward_[b++];
        times = Behind(times, *part, &Times::backward);
      } else if (move == 1) {
        part = &forward_[f++];
        times = Behind(times, *part, &Times::forward);
      } else {
        const auto k = static_cast<size_t>(move - 2);
        part = &weights_[k].parts[done[k]++];
        times.compute += part->duration;
      }
      const Time end = part->compute ? times.compute : times.all_to_all;
      result->order.push_back({.op = part->op,
                               .layer = static_cast<int16_t>(part->layer),
                               .stage = 0,
                               .microbatch = part->microbatch});
      result->spans.push_back({end - part->duration, end});
    }
  }

  std::vector<Part> forward_, backward_;
  std::vector<WeightClass> weights_;
  size_t positions_ = 0;
  Time best_ = 0;
  std::set<std::pair<size_t, Times>> seen_;  // partial schedules that cannot make it
};

}  // namespace

Interleaving Interleave(const MoeCost& f, const MoeCost& b, Chains chains) { return Interleaver(f, b, chains).Run(); }
void DeriveChunkCosts(CostModel* costs, Overlap overlap) {
  const auto least = [&](Chains chains) { return Interleave(*costs->moe, *costs->moe, chains).makespan; };
  StageCost stage;
  stage.f = least({.forward = true});
  stage.b = least({.backward = true});
  stage.w = least({.weights = true});
  stage.bw = overlap==Overlap::kPublished? stage.b+stage.w: least({.backward = true, .weights = true});
  stage.fb = least({.forward = true, .backward = true, .weights = true});
  costs->stages={stage}; costs->derived=overlap;
}
}
