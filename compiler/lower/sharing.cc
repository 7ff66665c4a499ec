// A discrete-event run. Events are taken in order of time and, at one time, ends before beginnings
// and else in the order in which they came up; nothing is begun before all it needs has happened.
// So the order of the log is an order of the whole pipeline.

#include "compiler/lower/sharing.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "compiler/plan/error.h"
#include "compiler/plan/plan.h"
#include "compiler/simulate/engine.h"

namespace contraflow {
namespace {

class LaneSharing {
 public:
  LaneSharing(const Plan& plan, const CostModel& costs, ChunkShapes* shapes,
              const LanePolicy& policy, const std::vector<int>& most_activations, bool log)
      : plan_(plan),
        costs_(costs),
        policy_(policy),
        most_activations_(most_activations),
        log_(log),
        owner_(plan),
        edges_(plan, costs),
        holders_(HoldersOfStage(plan)),
        recomputed_(plan) {
    state_.microbatches = plan.microbatches;
    state_.ranks.resize(plan.programs.size());
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    state_.forward.assign(chunks, kUnknown);
    state_.backward.assign(chunks, kUnknown);
    state_.forward_end.assign(chunks, kUnknown);
    state_.backward_end.assign(chunks, kUnknown);
    state_.recompute_end.assign(chunks, 0);
    weights_left_.assign(static_cast<size_t>(plan.stages), 0);
    for (int m = 0; m < plan.microbatches; ++m) state_.forward[At(0, m)] = 0;
    for (int r = 0; r < plan.ranks; ++r) MakeBlocks(r, shapes);
  }

  SharedRun Run() {
    for (int r = 0; r < plan_.ranks; ++r) Push({0, 0, Due::kWake, r, 0, 0});
    while (!due_.empty()) {
      const Due due = due_.top();
      due_.pop();
      state_.now = due.time;
      switch (due.kind) {
        case Due::kWake:
          Dispatch(due.rank);
          break;
        case Due::kForwardDone:
          ForwardDone(due.rank, due.stage, due.microbatch);
          break;
        case Due::kRecomputeDone:
          state_.recompute_end[At(due.stage, due.microbatch)] = state_.now;
          Dispatch(due.rank);
          break;
        case Due::kBackwardDone:
          BackwardDone(due.rank, due.stage, due.microbatch);
          break;
        case Due::kWeightDone:
          WeightDone(&state_.copies[static_cast<size_t>(due.stage)]);
          break;
        case Due::kReduced:
          state_.rank(due.rank).steps.push_back(due.stage);
          Dispatch(due.rank);
          break;
      }
    }
    for (const LaneRank& rank : state_.ranks) {
      CF_ASSERT(rank.first == rank.blocks.size() && rank.steps.empty());
      result_.makespan = std::max({result_.makespan, rank.free[0], rank.free[1]});
      result_.peak_activations.push_back(rank.peak);
    }
    result_.makespan = std::max(result_.makespan, reduced_);
    return std::move(result_);
  }

 private:
  struct Due {
    Time time;
    int64_t number;  // of its coming up
    enum Kind : uint8_t {
      kWake,
      kForwardDone,
      kRecomputeDone,
      kBackwardDone,
      kWeightDone,
      kReduced
    } kind;
    int rank, stage, microbatch;  // of kWeightDone `stage` is the copy

    /// At one time all that ends comes before anything begins.
    bool operator>(const Due& other) const {
      return std::tuple(time, kind == kWake, number) >
             std::tuple(other.time, other.kind == kWake, other.number);
    }
  };

  void Push(Due due) {
    due.number = number_++;
    due_.push(due);
  }
  size_t At(int stage, int m) const { return state_.At(stage, m); }
  size_t CopyAt(int rank, int stage) {
    const auto found = std::find_if(
        state_.copies.begin(), state_.copies.end(),
        [&](const LaneCopy& copy) { return copy.rank == rank && copy.stage == stage; });
    if (found != state_.copies.end()) return static_cast<size_t>(found - state_.copies.begin());
    state_.copies.push_back({rank, stage, 0, {}, 0});
    for (auto& weighed : state_.copies.back().weighed) {
      weighed.resize(static_cast<size_t>(costs_.moe_of(stage).layers_per_stage), 0);
    }
    return state_.copies.size() - 1;
  }

  void MakeBlocks(int r, ChunkShapes* shapes) {
    LaneRank& rank = state_.rank(r);
    for (const Instruction& i : plan_.program(r)) {
      if (WorkOf(i.op) != Work::kCompute) continue;
      LaneBlock block;
      block.chunk = &i;
      block.shape = &shapes->Of(i);
      for (const auto& chain : block.shape->chains) block.left += chain.size();
      block.weighed.assign(block.shape->chains[2].size(), false);
      if (HasForward(i.op) || i.op == Op::R) block.at[0] = At(i.stage, i.microbatch);
      if (i.op == Op::R) state_.recompute_end[block.at[0]] = kUnknown;
      if (HasBackward(i.op) || HasWeight(i.op)) {
        block.at[1] = At(BackStage(i), BackMicrobatch(i));
      }
      if (HasBackward(i.op)) ++rank.backward_left;
      if (HasWeight(i.op)) {
        block.copy = CopyAt(r, BackStage(i));
        LaneCopy& copy = state_.copies[block.copy];
        block.ordinal = copy.chunks++;
        copy.weights_left += block.weighed.size();
        weights_left_[static_cast<size_t>(BackStage(i))] += block.weighed.size();
      }
      rank.blocks.push_back(std::move(block));
    }
  }

  void Dispatch(int r) {
    LaneRank& rank = state_.rank(r);
    const int most = most_activations_[static_cast<size_t>(r)];
    bool more = true;
    while (more) {
      more = false;
      for (const int lane : {0, 1}) {
        if (rank.free[lane] > state_.now) continue;
        const LaneChoice choice = ChoosePart(state_, policy_, most, r, lane);
        if (choice.block != LaneChoice::kNobody) {
          more |= Begin(r, lane, choice);
          // A chunk of no time leaves its effects before the next one begins.
          if (policy_.serial && rank.blocks[choice.block].left == 0) return;
        } else if (lane == 0 && !rank.steps.empty()) {
          more |= BeginStep(r);
        }
      }
    }
  }

  /// True if more may begin at this moment because of it.
  bool Begin(int r, int lane, const LaneChoice& choice) {
    LaneRank& rank = state_.rank(r);
    LaneBlock& b = rank.blocks[choice.block];
    const Instruction& i = *b.chunk;
    const bool weight = choice.chain == 2;
    const ChunkPart& part = weight ? b.shape->chains[2][choice.weight] : b.Next(choice.chain);
    const int stage = choice.chain == 0 ? i.stage : BackStage(i);
    const int m = choice.chain == 0 ? i.microbatch : BackMicrobatch(i);
    Log(r, Component(part.op, stage, part.layer, m), static_cast<int>(choice.block));
    const bool holds = HasForward(i.op) || i.op == Op::R;
    if (!b.begun && holds) rank.peak = std::max(rank.peak, ++rank.activations);
    b.begun = true;
    const Time end = state_.now + part.duration;
    rank.free[lane] = end;
    ++b.taken[lane];
    ++b.done[choice.chain];
    --b.left;
    if (weight) {
      b.weighed[choice.weight] = true;
      ++state_.copies[b.copy]
            .weighed[part.op == Op::MLP_W ? 0 : 1][static_cast<size_t>(part.layer)];
      if (b.done[2] == b.shape->chains[2].size()) --rank.activations;
      Push({end, 0, Due::kWeightDone, r, static_cast<int>(b.copy), 0});
    } else {
      b.ready[choice.chain] = end;
      const bool ends = !b.Has(choice.chain);
      if (ends && HasForward(i.op) && choice.chain == 0 && recomputed_.Has(stage, m)) {
        --rank.activations;
      }
      if (ends && !policy_.serial) Push({end, 0, EndOf(i, choice.chain), r, stage, m});
    }
    Push({end, 0, Due::kWake, r, 0, 0});
    if (b.left == 0) EndOfBlock(r, b);
    while (rank.first < rank.blocks.size() && rank.blocks[rank.first].left == 0) ++rank.first;
    return b.left == 0 || end == state_.now;
  }

  static Due::Kind EndOf(const Instruction& chunk, int chain) {
    if (chain == 1) return Due::kBackwardDone;
    return chunk.op == Op::R ? Due::kRecomputeDone : Due::kForwardDone;
  }

  /// Serially, what a chunk made leaves when all of it has ended.
  void EndOfBlock(int r, const LaneBlock& b) {
    if (!policy_.serial) return;
    const LaneRank& rank = state_.rank(r);
    const Time end = std::max(rank.free[0], rank.free[1]);
    const Instruction& i = *b.chunk;
    if (HasForward(i.op) || i.op == Op::R) Push({end, 0, EndOf(i, 0), r, i.stage, i.microbatch});
    if (HasBackward(i.op)) {
      Push({end, 0, Due::kBackwardDone, r, BackStage(i), BackMicrobatch(i)});
    }
    Push({end, 0, Due::kWake, r, 0, 0});
  }

  void ForwardDone(int r, int stage, int m) {
    state_.forward_end[At(stage, m)] = state_.now;
    if (stage + 1 < plan_.stages) return Deliver(r, Op::SEND_F, stage, m, &state_.forward);
    state_.backward[At(stage, m)] = state_.now;
    Dispatch(r);
  }

  void BackwardDone(int r, int stage, int m) {
    state_.backward_end[At(stage, m)] = state_.now;
    --state_.rank(r).backward_left;
    if (stage > 0) Deliver(r, Op::SEND_B, stage, m, &state_.backward);
    Dispatch(r);
  }

  /// Hands the result of a chunk to the rank of the next stage, in a message if that is another.
  void Deliver(int r, Op send, int stage, int m, std::vector<Time>* arrivals) {
    const bool forward = send == Op::SEND_F;
    const int next = forward ? stage + 1 : stage - 1;
    const int to = owner_(next, m);
    Time& arrival = (*arrivals)[At(next, m)];
    if (to == r) {
      arrival = state_.now;
      return Dispatch(r);
    }
    arrival = edges_.Send(r, to, forward ? stage : next, state_.now).end;
    Log(r, Message(send, stage, m, to), -1);
    Log(to, Message(forward ? Op::RECV_F : Op::RECV_B, next, m, r), -1);
    Push({arrival, 0, Due::kWake, to, 0, 0});
  }

  void WeightDone(LaneCopy* copy) {
    const int stage = copy->stage;
    const std::vector<int>& holders = holders_[static_cast<size_t>(stage)];
    const bool reduce = NeedsReduce(plan_, holders.size());
    --copy->weights_left;
    if (--weights_left_[static_cast<size_t>(stage)] == 0 && reduce) {
      const Time end = state_.now + costs_.stage(stage).reduce;
      reduced_ = std::max(reduced_, end);
      for (const int holder : holders) {
        Log(holder, StageOp(Op::REDUCE, stage), -1);
        Push({end, 0, Due::kReduced, holder, stage, 0});
      }
    } else if (copy->weights_left == 0 && !reduce) {
      Push({state_.now, 0, Due::kReduced, copy->rank, stage, 0});
    }
  }

  /// A step that takes time must not keep other ranks waiting for this one's gradients.
  bool BeginStep(int r) {
    LaneRank& rank = state_.rank(r);
    const int stage = rank.steps.front();
    const Time duration = costs_.stage(stage).step;
    if (duration > 0 && rank.backward_left > 0) return false;
    rank.steps.erase(rank.steps.begin());
    rank.free[0] = state_.now + duration;
    Log(r, StageOp(Op::STEP, stage), -1);
    Push({rank.free[0], 0, Due::kWake, r, 0, 0});
    return true;
  }

  void Log(int r, const Instruction& instruction, int chunk) {
    if (log_) result_.log.push_back({r, chunk, instruction});
  }

  const Plan& plan_;
  const CostModel& costs_;
  const LanePolicy& policy_;
  const std::vector<int>& most_activations_;
  const bool log_;
  const Owners owner_;
  Edges edges_;
  const std::vector<std::vector<int>> holders_;
  const RecomputedCells recomputed_;
  LaneState state_;
  std::vector<size_t> weights_left_;  // of each stage, over all copies
  std::priority_queue<Due, std::vector<Due>, std::greater<Due>> due_;
  int64_t number_ = 0;
  Time reduced_ = 0;
  SharedRun result_;
};

}  // namespace

SharedRun ShareLanes(const Plan& plan, const CostModel& costs, ChunkShapes* shapes,
                     const LanePolicy& policy, const std::vector<int>& most_activations, bool log) {
  CF_ASSERT(plan.level == Level::kComm && costs.components());
  return LaneSharing(plan, costs, shapes, policy, most_activations, log).Run();
}

}  // namespace contraflow
