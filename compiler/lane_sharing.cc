// A discrete-event run. Events are taken in order of time and, at one time, ends before beginnings
// and else in the order in which they came up; nothing is begun before all it needs has happened.
// So the order of the log is an order of the whole pipeline.

#include "compiler/lane_sharing.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "compiler/error.h"

namespace contraflow {
namespace {

constexpr Time kNever = std::numeric_limits<Time>::max() / 4;
constexpr size_t kNobody = static_cast<size_t>(-1);

/// A chunk under way.
struct Block {
  const Instruction* chunk = nullptr;
  const ChunkShape* shape = nullptr;
  size_t done[3] = {0, 0, 0};  // parts begun of each chain; of the weights their number
  size_t taken[2] = {0, 0};    // of shape->order
  Time ready[2] = {0, 0};      // when the last part begun of either chain has ended
  std::vector<bool> weighed;   // weight parts begun
  size_t copy = 0;             // of the stage that its weights belong to
  int ordinal = 0;             // how many chunks with weights of that copy came before
  size_t left = 0;
  bool begun = false;

  const ChunkPart& Next(int chain) const { return shape->chains[chain][done[chain]]; }
  bool Has(int chain) const { return done[chain] < shape->chains[chain].size(); }
};

struct RankState {
  std::vector<Block> blocks;
  size_t first = 0;  // the first block that is not wholly begun
  Time free[2] = {0, 0};
  int activations = 0, peak = 0;
  size_t backward_left = 0;                // backward chains not ended yet
  std::vector<std::pair<int, Time>> busy;  // peer, when the directed edge to it is free
  std::vector<int> steps;                  // stages whose STEP may run
};

/// One copy of a stage.
struct CopyState {
  int rank, stage;
  size_t weights_left = 0;      // weight parts not ended yet
  std::vector<int> weighed[2];  // MLP_W and ATTN_W begun, by layer
  int chunks = 0;
};

class Engine {
 public:
  Engine(const Plan& plan, const CostModel& costs, ChunkShapes* shapes, const Sharing& sharing,
         const std::vector<int>& most_activations, bool log)
      : plan_(plan),
        costs_(costs),
        sharing_(sharing),
        most_activations_(most_activations),
        log_(log),
        route_of_(RouteOfMicrobatch(plan)),
        holders_(HoldersOfStage(plan)),
        ranks_(plan.programs.size()) {
    const size_t chunks = static_cast<size_t>(plan.stages) * static_cast<size_t>(plan.microbatches);
    forward_.assign(chunks, kNever);
    backward_.assign(chunks, kNever);
    backward_end_.assign(chunks, kNever);
    weights_left_.assign(static_cast<size_t>(plan.stages), 0);
    for (int m = 0; m < plan.microbatches; ++m) forward_[At(0, m)] = 0;
    for (int r = 0; r < plan.ranks; ++r) MakeBlocks(r, shapes);
  }

  SharedRun Run() {
    for (int r = 0; r < plan_.ranks; ++r) Push({0, 0, Event::kWake, r, 0, 0});
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      switch (event.kind) {
        case Event::kWake:
          Dispatch(event.rank);
          break;
        case Event::kForwardDone:
          ForwardDone(event.rank, event.stage, event.microbatch);
          break;
        case Event::kBackwardDone:
          BackwardDone(event.rank, event.stage, event.microbatch);
          break;
        case Event::kWeightDone:
          WeightDone(&copies_[static_cast<size_t>(event.stage)]);
          break;
        case Event::kReduced:
          ranks_[static_cast<size_t>(event.rank)].steps.push_back(event.stage);
          Dispatch(event.rank);
          break;
      }
    }
    for (const RankState& rank : ranks_) {
      CF_ASSERT(rank.first == rank.blocks.size() && rank.steps.empty());
      result_.makespan = std::max({result_.makespan, rank.free[0], rank.free[1]});
      result_.peak_activations.push_back(rank.peak);
    }
    result_.makespan = std::max(result_.makespan, reduced_);
    return std::move(result_);
  }

 private:
  struct Event {
    Time time;
    int64_t number;  // of its coming up
    enum Kind : uint8_t { kWake, kForwardDone, kBackwardDone, kWeightDone, kReduced } kind;
    int rank, stage, microbatch;  // of kWeightDone `stage` is the copy

    /// At one time all that ends comes before anything begins.
    bool operator>(const Event& other) const {
      return std::tuple(time, kind == kWake, number) >
             std::tuple(other.time, other.kind == kWake, other.number);
    }
  };

  void Push(Event event) {
    event.number = number_++;
    events_.push(event);
  }
  size_t At(int stage, int m) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(plan_.microbatches) +
           static_cast<size_t>(m);
  }
  int Owner(int stage, int m) const {
    const auto route = static_cast<size_t>(route_of_[static_cast<size_t>(m)]);
    return plan_.routes[route].ranks[static_cast<size_t>(stage)];
  }
  size_t CopyAt(int rank, int stage) {
    const auto found = std::find_if(copies_.begin(), copies_.end(), [&](const CopyState& copy) {
      return copy.rank == rank && copy.stage == stage;
    });
    if (found != copies_.end()) return static_cast<size_t>(found - copies_.begin());
    copies_.push_back({rank, stage, 0, {}, 0});
    for (auto& weighed : copies_.back().weighed) {
      weighed.resize(static_cast<size_t>(costs_.moe->layers_per_stage), 0);
    }
    return copies_.size() - 1;
  }

  void MakeBlocks(int r, ChunkShapes* shapes) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    for (const Instruction& i : plan_.programs[static_cast<size_t>(r)]) {
      if (WorkOf(i.op) != Work::kCompute) continue;
      Block block;
      block.chunk = &i;
      block.shape = &shapes->Of(i);
      for (const auto& chain : block.shape->chains) block.left += chain.size();
      block.weighed.assign(block.shape->chains[2].size(), false);
      if (HasBackward(i.op)) ++rank.backward_left;
      if (HasWeight(i.op)) {
        block.copy = CopyAt(r, BackStage(i));
        CopyState& copy = copies_[block.copy];
        block.ordinal = copy.chunks++;
        copy.weights_left += block.weighed.size();
        weights_left_[static_cast<size_t>(BackStage(i))] += block.weighed.size();
      }
      rank.blocks.push_back(std::move(block));
    }
  }

  // What may run.

  /// When the next part of chain 0 or 1 may begin, if that is known.
  Time ReadyAt(const Block& b, int chain) const {
    if (b.done[chain] > 0) return b.ready[chain];
    const Instruction& i = *b.chunk;
    return chain == 0 ? forward_[At(i.stage, i.microbatch)]
                      : backward_[At(BackStage(i), BackMicrobatch(i))];
  }

  /// The first weight part that may run now: behind its backward part, and in the order of
  /// micro-batches for each of the stage's weights.
  size_t NextWeight(const Block& b) const {
    const Instruction& i = *b.chunk;
    const std::vector<ChunkPart>& parts = b.shape->chains[2];
    if (b.done[2] == parts.size()) return kNobody;
    if (!HasBackward(i.op) && backward_end_[At(i.stage, i.microbatch)] > now_) return kNobody;
    const CopyState& copy = copies_[b.copy];
    for (size_t w = 0; w < parts.size(); ++w) {
      if (b.weighed[w]) continue;
      const size_t behind = b.shape->release[w];
      const bool released =
          b.done[1] > behind || (b.done[1] == behind && b.ready[1] <= now_) || !HasBackward(i.op);
      if (!released) return kNobody;
      const size_t kind = parts[w].op == Op::MLP_W ? 0 : 1;
      if (copy.weighed[kind][static_cast<size_t>(parts[w].layer)] == b.ordinal) return w;
    }
    return kNobody;
  }

  /// A part that could begin now.
  struct Choice {
    size_t block = kNobody;
    int chain = 0;
    size_t weight = 0;
    int64_t rank = std::numeric_limits<int64_t>::max();  // the smallest is taken
  };

  Choice Choose(int r, int lane) const {
    const RankState& rank = ranks_[static_cast<size_t>(r)];
    Choice best;
    Time needed = kNever;  // when an earlier chunk will want this lane
    int activations = rank.activations, seen = 0;
    for (size_t at = rank.first; at < rank.blocks.size() && seen < sharing_.window; ++at) {
      const Block& b = rank.blocks[at];
      if (b.left == 0) continue;
      if (!b.begun && HasForward(b.chunk->op) &&
          ++activations > most_activations_[static_cast<size_t>(r)]) {
        break;
      }
      if (sharing_.serial && !b.begun && !MayBeginSerially(rank, b)) break;
      const auto offer = [&](int chain, size_t weight, int64_t preference) {
        const Time duration =
            chain == 2 ? b.shape->chains[2][weight].duration : b.Next(chain).duration;
        if (seen > 0 && now_ + duration > needed + sharing_.patience) return;
        if (preference < best.rank) best = {at, chain, weight, preference};
      };
      const int64_t place = 4 * int64_t{seen};
      if (sharing_.free_order) {
        OfferFree(b, lane, place, offer);
      } else {
        OfferInOrder(b, lane, place, offer);
      }
      needed = std::min(needed, WantsLane(rank, b, lane));
      ++seen;
    }
    return best;
  }

  template <typename Offer>
  void OfferFree(const Block& b, int lane, int64_t place, const Offer& offer) const {
    constexpr int64_t kWeightsLast = int64_t{1} << 32;
    for (const int chain : {1, 0}) {
      if (!b.Has(chain) || LaneIndex(b.Next(chain).op) != lane || ReadyAt(b, chain) > now_)
        continue;
      offer(chain, 0, place + (chain == 1 ? 0 : 1));
    }
    if (lane != 0) return;
    if (const size_t w = NextWeight(b); w != kNobody) offer(2, w, kWeightsLast + place);
  }

  template <typename Offer>
  void OfferInOrder(const Block& b, int lane, int64_t place, const Offer& offer) const {
    const auto& order = b.shape->order[lane];
    if (b.taken[lane] == order.size()) return;
    const ChunkShape::Pick& pick = order[b.taken[lane]];
    if (pick.chain == 2) {
      if (NextWeight(b) == pick.index) offer(2, pick.index, place);
    } else if (b.done[pick.chain] == pick.index && ReadyAt(b, pick.chain) <= now_) {
      offer(pick.chain, 0, place);
    }
  }

  static int LaneIndex(Op op) { return WorkOf(op) == Work::kAllToAll ? 1 : 0; }

  /// The earliest time, as far as it is known, at which a chunk will want a lane for its chains.
  Time WantsLane(const RankState& rank, const Block& b, int lane) const {
    Time wants = kNever;
    for (const int chain : {0, 1}) {
      if (!b.Has(chain)) continue;
      Time ready = ReadyAt(b, chain);
      if (ready == kNever) continue;
      if (LaneIndex(b.Next(chain).op) != lane) {
        ready = std::max({ready, rank.free[1 - lane], now_}) + b.Next(chain).duration;
        if (b.done[chain] + 1 == b.shape->chains[chain].size()) continue;
      }
      wants = std::min(wants, ready);
    }
    return wants;
  }

  bool MayBeginSerially(const RankState& rank, const Block& b) const {
    if (std::max(rank.free[0], rank.free[1]) > now_) return false;
    const Instruction& i = *b.chunk;
    if (HasForward(i.op) && ReadyAt(b, 0) > now_) return false;
    if (HasBackward(i.op)) return ReadyAt(b, 1) <= now_;
    return !HasWeight(i.op) || backward_end_[At(BackStage(i), BackMicrobatch(i))] <= now_;
  }

  // What happens.

  void Dispatch(int r) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    bool again = true;
    while (again) {
      again = false;
      for (const int lane : {0, 1}) {
        if (rank.free[lane] > now_) continue;
        const Choice choice = Choose(r, lane);
        if (choice.block != kNobody) {
          Begin(r, lane, choice);
          again = true;
        } else if (lane == 0 && !rank.steps.empty()) {
          again |= BeginStep(r);
        }
      }
    }
  }

  void Begin(int r, int lane, const Choice& choice) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    Block& b = rank.blocks[choice.block];
    const Instruction& i = *b.chunk;
    const bool weight = choice.chain == 2;
    const ChunkPart& part = weight ? b.shape->chains[2][choice.weight] : b.Next(choice.chain);
    const int stage = choice.chain == 0 ? i.stage : BackStage(i);
    const int m = choice.chain == 0 ? i.microbatch : BackMicrobatch(i);
    Log(r, Component(part.op, stage, part.layer, m), static_cast<int>(choice.block));
    if (!b.begun && HasForward(i.op)) rank.peak = std::max(rank.peak, ++rank.activations);
    b.begun = true;
    const Time end = now_ + part.duration;
    rank.free[lane] = end;
    ++b.taken[lane];
    ++b.done[choice.chain];
    --b.left;
    if (weight) {
      b.weighed[choice.weight] = true;
      ++copies_[b.copy].weighed[part.op == Op::MLP_W ? 0 : 1][static_cast<size_t>(part.layer)];
      if (b.done[2] == b.shape->chains[2].size()) --rank.activations;
      Push({end, 0, Event::kWeightDone, r, static_cast<int>(b.copy), 0});
    } else {
      b.ready[choice.chain] = end;
      if (!b.Has(choice.chain) && !sharing_.serial) {
        Push({end, 0, choice.chain == 0 ? Event::kForwardDone : Event::kBackwardDone, r, stage, m});
      }
    }
    Push({end, 0, Event::kWake, r, 0, 0});
    if (b.left == 0) EndOfBlock(r, b);
    while (rank.first < rank.blocks.size() && rank.blocks[rank.first].left == 0) ++rank.first;
  }

  /// Serially, what a chunk made leaves when all of it has ended.
  void EndOfBlock(int r, const Block& b) {
    if (!sharing_.serial) return;
    const RankState& rank = ranks_[static_cast<size_t>(r)];
    const Time end = std::max(rank.free[0], rank.free[1]);
    const Instruction& i = *b.chunk;
    if (HasForward(i.op)) Push({end, 0, Event::kForwardDone, r, i.stage, i.microbatch});
    if (HasBackward(i.op)) {
      Push({end, 0, Event::kBackwardDone, r, BackStage(i), BackMicrobatch(i)});
    }
    Push({end, 0, Event::kWake, r, 0, 0});
  }

  void ForwardDone(int r, int stage, int m) {
    if (stage + 1 < plan_.stages) return Deliver(r, Op::SEND_F, stage, m, &forward_);
    backward_[At(stage, m)] = now_;
    Dispatch(r);
  }

  void BackwardDone(int r, int stage, int m) {
    backward_end_[At(stage, m)] = now_;
    --ranks_[static_cast<size_t>(r)].backward_left;
    if (stage > 0) Deliver(r, Op::SEND_B, stage, m, &backward_);
    Dispatch(r);
  }

  /// Hands the result of a chunk to the rank of the next stage, in a message if that is another.
  void Deliver(int r, Op send, int stage, int m, std::vector<Time>* arrivals) {
    const bool forward = send == Op::SEND_F;
    const int next = forward ? stage + 1 : stage - 1;
    const int to = Owner(next, m);
    Time& arrival = (*arrivals)[At(next, m)];
    if (to == r) {
      arrival = now_;
      return Dispatch(r);
    }
    arrival = Transfer(r, to);
    Log(r, Message(send, stage, m, to), -1);
    Log(to, Message(forward ? Op::RECV_F : Op::RECV_B, next, m, r), -1);
    Push({arrival, 0, Event::kWake, to, 0, 0});
  }

  Time Transfer(int from, int to) {
    Time start = now_;
    if (costs_.comm.exclusive()) {
      auto& busy = ranks_[static_cast<size_t>(from)].busy;
      auto edge =
          std::find_if(busy.begin(), busy.end(), [to](const auto& e) { return e.first == to; });
      if (edge == busy.end()) edge = busy.insert(busy.end(), {to, 0});
      start = std::max(start, edge->second);
      edge->second = start + costs_.comm.occupancy;
    }
    return start + costs_.comm.occupancy + costs_.comm.latency;
  }

  void WeightDone(CopyState* copy) {
    const int stage = copy->stage;
    const std::vector<int>& holders = holders_[static_cast<size_t>(stage)];
    const bool reduce = NeedsReduce(plan_, holders.size());
    --copy->weights_left;
    if (--weights_left_[static_cast<size_t>(stage)] == 0 && reduce) {
      const Time end = now_ + costs_.stage(stage).reduce;
      reduced_ = std::max(reduced_, end);
      for (const int holder : holders) {
        Log(holder, StageOp(Op::REDUCE, stage), -1);
        Push({end, 0, Event::kReduced, holder, stage, 0});
      }
    } else if (copy->weights_left == 0 && !reduce) {
      Push({now_, 0, Event::kReduced, copy->rank, stage, 0});
    }
  }

  /// A step that takes time must not keep other ranks waiting for this one's gradients.
  bool BeginStep(int r) {
    RankState& rank = ranks_[static_cast<size_t>(r)];
    const int stage = rank.steps.front();
    const Time duration = costs_.stage(stage).step;
    if (duration > 0 && rank.backward_left > 0) return false;
    rank.steps.erase(rank.steps.begin());
    rank.free[0] = now_ + duration;
    Log(r, StageOp(Op::STEP, stage), -1);
    Push({rank.free[0], 0, Event::kWake, r, 0, 0});
    return true;
  }

  void Log(int r, const Instruction& instruction, int chunk) {
    if (log_) result_.log.push_back({r, chunk, instruction});
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Sharing& sharing_;
  const std::vector<int>& most_activations_;
  const bool log_;
  const std::vector<int> route_of_;
  const std::vector<std::vector<int>> holders_;
  std::vector<RankState> ranks_;
  std::vector<CopyState> copies_;
  std::vector<Time> forward_, backward_;  // when the inputs are there, by stage and micro-batch
  std::vector<Time> backward_end_;
  std::vector<size_t> weights_left_;  // of each stage, over all copies
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  int64_t number_ = 0;
  Time now_ = 0, reduced_ = 0;
  SharedRun result_;
};

}  // namespace

SharedRun ShareLanes(const Plan& plan, const CostModel& costs, ChunkShapes* shapes,
                     const Sharing& sharing, const std::vector<int>& most_activations, bool log) {
  CF_ASSERT(plan.level == Level::kComm && costs.moe);
  return Engine(plan, costs, shapes, sharing, most_activations, log).Run();
}

}  // namespace contraflow
