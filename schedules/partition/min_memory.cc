// The need of a rank grows with each layer that its stages get. So stages are filled one after the
// other, those of about the same size first, and a choice is left as soon as it needs as much as
// the best partition found before, which is at first what single layers that move come to.

#include "schedules/partition/min_memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiler/plan/layer_cost.h"
#include "compiler/plan/memory_limit.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "schedules/partition/staged.h"

namespace contraflow {
namespace {

/// Node limit of the search; evaluations of its warm start.
constexpr int64_t kMostChoices = 100'000, kMostMoved = 4'000;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

class MinMemorySearch {
 public:
  MinMemorySearch(const Spec& spec, const Plan& frame, LayerStages* layers)
      : spec_(spec),
        frame_(frame),
        layers_(*layers),
        count_(layers->layers()),
        devices_(DevicesOf(spec)),
        recomputes_(spec.recompute.everything()),
        offloads_(spec.offload.choice == Offload::Choice::kAuto),
        alone_(SingleRank(spec)) {
    if (devices_.empty()) devices_.assign(static_cast<size_t>(frame.ranks), kUnlimited);
    activation_.push_back(0);
    for (int i = 0; i < count_; ++i) {
      const LayerCost& layer = spec.costs.layers[static_cast<size_t>(layers->kind(i))];
      activation_.push_back(activation_.back() + layer.activation_bytes);
    }
    // Messages are as large as the largest, and so is the input of any stage but the first.
    const CostModel even = layers->Make(EvenPartition(count_, frame.stages));
    for (int s = 0; s < frame.stages && recomputes_; ++s) {
      int64_t& input = s == 0 ? first_input_ : input_;
      input = std::max(input, InputBytes(even, s).value_or(kUnlimited));
    }
    workspace_ = even.memory ? even.memory->workspace_bytes : 0;
    // Bytes other than the stages': workspace and messages.
    const Partition partition = EvenPartition(count_, frame.stages);
    Held held(frame);
    AddAll(partition, &held);
    const std::vector<int64_t> nothing(held.fixed.size(), 0);
    beside_ = RoomForActivations(frame, OnRanks(even, frame), nothing);
    for (size_t r = 0; r < beside_.size(); ++r) beside_[r] = -beside_[r] - held.FixedOn(r);
  }

  PartitionExcess Find() {
    const PartitionJudge judge = [&](const Partition& partition) { return Judge(partition); };
    best_.partition =
        BestFrom(StartingPartitions(layers_, frame_, spec_.costs), judge, kMostMoved, judge);
    best_.excess = Judge(best_.partition).excess;
    Held held(frame_);
    Fill(0, 0, held);
    return best_;
  }

 private:
  struct Held {
    explicit Held(const Plan& frame)
        : fixed(static_cast<size_t>(frame.ranks), 0),
          gathered(fixed.size(), {0, 0}),
          kept(frame.routes.size(), std::vector<int64_t>(fixed.size(), 0)),
          peaks(fixed.size(), 0) {}

    int64_t FixedOn(size_t r) const { return fixed[r] + gathered[r][0] + gathered[r][1]; }

    std::vector<int64_t> fixed;  // by rank, without parameters that are gathered
    std::vector<std::array<int64_t, kGatheredStages>> gathered;  // of the largest stages, by rank
    std::vector<std::vector<int64_t>> kept;  // of each route's micro-batch, by rank
    std::vector<int64_t> peaks;              // of activations, by rank
  };

  /// Parameters and their states of a stage with the layers i..j-1.
  const MemoryFigures& Fixed(int i, int j) {
    const auto [at, unknown] = fixed_.try_emplace(int64_t{i} * (count_ + 1) + j);
    if (unknown) at->second = FixedMemoryOf(alone_, layers_.Segment(i, j)).front();
    return at->second;
  }

  void Add(int s, int i, int j, Held* held) {
    const auto at = static_cast<size_t>(s);
    const int64_t whole = std::max<int64_t>(
        1, activation_[static_cast<size_t>(j)] - activation_[static_cast<size_t>(i)]);
    const MemoryFigures& fixed = Fixed(i, j);
    int before = -1;
    for (size_t route = 0; route < frame_.routes.size(); ++route) {
      const int rank = frame_.routes[route].ranks[at];
      const auto here = static_cast<size_t>(rank);
      int64_t& kept = held->kept[route][here];
      held->peaks[here] = std::max(held->peaks[here], kept + whole);
      if (!offloads_) kept += recomputes_ ? std::min(whole, s == 0 ? first_input_ : input_) : whole;
      // A stage that both routes have there has one copy.
      if (rank != before) {
        held->fixed[here] += fixed.fixed() - fixed.gathered - workspace_;
        auto& [largest, second] = held->gathered[here];
        second = std::max(second, std::min(largest, fixed.gathered));
        largest = std::max(largest, fixed.gathered);
      }
      before = rank;
    }
  }

  void AddAll(const Partition& partition, Held* held) {
    int i = 0;
    for (size_t s = 0; s < partition.size(); ++s) {
      Add(static_cast<int>(s), i, i + partition[s], held);
      i += partition[s];
    }
  }

  int64_t Excess(const Held& held) const {
    const int64_t limit = spec_.memory_limit.value_or(kUnlimited);
    int64_t excess = std::numeric_limits<int64_t>::min();
    for (size_t r = 0; r < devices_.size(); ++r) {
      const int64_t room = std::min(limit, devices_[r] - held.FixedOn(r) - beside_[r]);
      excess = std::max(excess, held.peaks[r] - room);
    }
    return excess;
  }

  /// The excess and, of equals, how evenly the ranks are filled.
  PartitionWorth Judge(const Partition& partition) {
    Held held(frame_);
    AddAll(partition, &held);
    double sum = 0, squares = 0;
    for (size_t r = 0; r < devices_.size(); ++r) {
      double here = static_cast<double>(held.fixed[r]);
      for (const auto& kept : held.kept) here += static_cast<double>(kept[r]);
      sum += here;
      squares += here * here;
    }
    constexpr double kOne = 1e9;
    return {Excess(held), static_cast<Time>(kOne * squares / std::max(1.0, sum * sum)),
            std::ranges::max(partition)};
  }

  /// Stage s and those after it, from layer i on.
  void Fill(int s, int i, const Held& held) {
    if (s == frame_.stages) {
      best_ = {Excess(held), chosen_};
      return;
    }
    const int behind = frame_.stages - 1 - s, most = count_ - i - behind;
    const int about = (count_ - i) / (behind + 1);
    // Sizes from the mean of the remaining layers upwards, then downwards.
    for (const int step : {1, -1}) {
      for (int size = step > 0 ? about : about - 1; size >= 1 && size <= most; size += step) {
        if (behind == 0 && size != most) continue;
        if (--left_ < 0) return;
        Held with = held;
        Add(s, i, i + size, &with);
        if (Excess(with) >= best_.excess) {
          if (step > 0) break;  // more layers need more
          continue;
        }
        chosen_.push_back(size);
        Fill(s + 1, i + size, with);
        chosen_.pop_back();
      }
    }
  }

  const Spec& spec_;
  const Plan& frame_;
  LayerStages& layers_;
  const int count_;
  std::vector<int64_t> devices_;
  const bool recomputes_, offloads_;
  const Plan alone_;
  std::vector<int64_t> activation_;                   // of the layers before the i-th
  std::unordered_map<int64_t, MemoryFigures> fixed_;  // by first and last layer
  int64_t first_input_ = 0, input_ = 0, workspace_ = 0;
  std::vector<int64_t> beside_;  // by rank
  PartitionExcess best_;
  Partition chosen_;
  int64_t left_ = kMostChoices;
};

}  // namespace

PartitionExcess MinMemoryPartition(const Spec& spec, const Plan& frame, LayerStages* layers) {
  return MinMemorySearch(spec, frame, layers).Find();
}

}  // namespace contraflow
