#pragma once

// Declarations that the files of the verifier share, and nobody else includes: the findings, and
// flat tables that say where in the programs everything stands.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/plan.h"
#include "compiler/verify/verify.h"

namespace contraflow::check {

/// The checks, in the order in which their findings are reported.
enum class Check : uint8_t {
  kShape,
  kLevel,
  kOwner,
  kComplete,
  kOrder,
  kWeightOrder,
  kMessage,
  kProducer,
  kConsumer,
  kGroup,
  kReduce,
  kStep,
  kDeadlock,
  kLane,
  kEvent,
  kSlot,
  kSharing,
};
inline constexpr size_t kCheckCount = 17;

/// Findings of one check beyond this many are counted, not listed.
inline constexpr size_t kMaxListed = 1000;

/// Collects violations in any order, hands them out in the fixed one.
class Findings {
 public:
  void Add(Check check, int rank, int index, std::string message);
  bool empty() const { return total_ == 0; }
  /// Findings by check, rank and index; a check with too many ends with one that counts the rest.
  std::vector<Finding> Take();

 private:
  std::array<std::vector<Finding>, kCheckCount> listed_;
  std::array<size_t, kCheckCount> count_{};
  size_t total_ = 0;
};

/// Instead of an index into the owner's program.
inline constexpr int32_t kMissing = -1;
inline constexpr int32_t kMisplaced =
    -2;  ///< it is there, but on the wrong rank or with a wrong peer

/// Positions of the work of one (stage, micro-batch) in its owner's program. BW and FB stand for
/// both b and w.
struct CellWork {
  int32_t f = kMissing, b = kMissing, w = kMissing;
};

/// Positions of its copies to and from the host there.
struct HostCopies {
  int32_t offload = kMissing, reload = kMissing;
};

/// Components of a layer: ATTN_F to COMBINE_B.
inline constexpr int kPartCount =
    static_cast<int>(Op::COMBINE_B) - static_cast<int>(Op::ATTN_F) + 1;

/// Components of R: ATTN_R to COMBINE_R.
inline constexpr int kRecomputeCount =
    static_cast<int>(Op::COMBINE_R) - static_cast<int>(Op::ATTN_R) + 1;

/// Whether a layer of this kind has a component; the verifier's own word on it.
inline bool HasPart(LayerKind kind, Op op) {
  const bool all_to_all = op == Op::DISPATCH_F || op == Op::COMBINE_F || op == Op::DISPATCH_B ||
                          op == Op::COMBINE_B || op == Op::DISPATCH_R || op == Op::COMBINE_R;
  const bool mlp = op == Op::MLP_F || op == Op::MLP_B || op == Op::MLP_W || op == Op::MLP_R;
  return kind == LayerKind::kMoe || (!all_to_all && (kind == LayerKind::kDense || !mlp));
}

/// Positions of its messages, by operation: SEND_F, RECV_F, SEND_B, RECV_B.
using ChunkMessages = std::array<int32_t, 4>;

/// A rank that holds a stage.
struct Copy {
  int32_t stage = 0;
  int32_t rank = 0;
  int32_t last_weight = kMissing;  ///< its last weight gradient
  int32_t reduce = kMissing, step = kMissing;
};

/// Components that run again, in order; of a part some of them.
inline constexpr std::array kAgain = {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R};

/// The plan, indexed. Only for plans whose shape is right.
struct Tables {
  explicit Tables(const Plan& the_plan);

  const Plan& plan;
  std::vector<int> route_of;        ///< by micro-batch
  std::vector<Copy> copies;         ///< by stage, then rank
  std::vector<int32_t> first_copy;  ///< of each stage; one more at the end
  std::vector<int32_t> copy_of;     ///< by route, then stage
  std::vector<CellWork> work;       ///< by stage, then micro-batch; empty with components
  /// R of each chunk, or by layer its components; likewise, but empty where nothing is recomputed.
  std::vector<int32_t> recompute;
  /// OFFLOAD and RELOAD of each chunk, likewise; empty where nothing is offloaded.
  std::vector<HostCopies> host_copies;
  std::vector<int32_t> parts;           ///< components, likewise, then by layer and operation
  std::vector<ChunkMessages> messages;  ///< by stage, then micro-batch; empty at level compute

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(plan.microbatches) +
           static_cast<size_t>(microbatch);
  }
  /// Number of a layer of a cell, below Layers(), where there are components.
  size_t LayerAt(int stage, int layer, int microbatch) const {
    return layers_before_[static_cast<size_t>(stage)] +
           static_cast<size_t>(microbatch) * static_cast<size_t>(plan.LayersOf(stage)) +
           static_cast<size_t>(layer);
  }
  size_t Layers() const { return layers_before_.back(); }
  /// Position of a component in its owner's program.
  int32_t& Part(Op op, int stage, int layer, int microbatch) {
    return parts[PartIndex(op, stage, layer, microbatch)];
  }
  int32_t Part(Op op, int stage, int layer, int microbatch) const {
    return parts[PartIndex(op, stage, layer, microbatch)];
  }
  /// Position of a component of R, if anything is recomputed.
  int32_t& Recompute(Op op, int stage, int layer, int microbatch) {
    return recompute[RecomputeIndex(op, stage, layer, microbatch)];
  }
  int32_t Recompute(Op op, int stage, int layer, int microbatch) const {
    return recompute.empty() ? kMissing : recompute[RecomputeIndex(op, stage, layer, microbatch)];
  }
  bool RecomputedLayer(int stage, int layer, int microbatch) const {
    return std::ranges::any_of(
        kAgain, [&](Op op) { return Recompute(op, stage, layer, microbatch) != kMissing; });
  }
  bool Recomputed(int stage, int microbatch) const {
    for (int layer = 0; layer < plan.LayersOf(stage); ++layer) {
      if (RecomputedLayer(stage, layer, microbatch)) return true;
    }
    if (plan.layers > 0) return false;
    return !recompute.empty() && recompute[At(stage, microbatch)] != kMissing;
  }
  HostCopies HostCopiesOf(int stage, int microbatch) const {
    return host_copies.empty() ? HostCopies{} : host_copies[At(stage, microbatch)];
  }
  /// Position at which the forward of a chunk ends, and at which its backward begins, on its rank.
  int32_t ForwardEnd(int stage, int microbatch) const {
    return plan.layers > 0 ? Part(LastForward(stage), stage, plan.LayersOf(stage) - 1, microbatch)
                           : work[At(stage, microbatch)].f;
  }
  int32_t BackwardBegin(int stage, int microbatch) const {
    return plan.layers > 0 ? Part(FirstBackward(stage), stage, plan.LayersOf(stage) - 1, microbatch)
                           : work[At(stage, microbatch)].b;
  }
  /// The components of its last layer with which a stage ends its forward and begins its backward.
  Op LastForward(int stage) const { return LastOf(stage, {Op::COMBINE_F, Op::MLP_F, Op::ATTN_F}); }
  Op FirstBackward(int stage) const {
    return LastOf(stage, {Op::COMBINE_B, Op::MLP_B, Op::ATTN_B});
  }
  /// Whether a stage has a component in a layer.
  bool HasPartAt(Op op, int stage, int layer) const {
    return layer < plan.LayersOf(stage) && HasPart(plan.KindOf(stage, layer), op);
  }
  /// Position of the instruction that makes what a SEND sends, or is the first to need what a RECV
  /// receives.
  int32_t Side(const Instruction& message) const;
  Copy& CopyFor(int stage, int microbatch) {
    return copies[static_cast<size_t>(CopyIndex(stage, microbatch))];
  }
  /// The rank that runs a stage for a micro-batch.
  int Owner(int stage, int microbatch) const {
    const auto route = static_cast<size_t>(route_of[static_cast<size_t>(microbatch)]);
    return plan.routes[route].ranks[static_cast<size_t>(stage)];
  }
  /// Number of the copy of a stage that a micro-batch uses.
  int32_t CopyIndex(int stage, int microbatch) const {
    const auto route = static_cast<size_t>(route_of[static_cast<size_t>(microbatch)]);
    return copy_of[route * static_cast<size_t>(plan.stages) + static_cast<size_t>(stage)];
  }
  /// Index of the copy of a stage on a rank; -1 if there is none.
  int32_t FindCopy(int stage, int rank) const;
  std::span<const Copy> CopiesOf(int stage) const {
    return {copies.data() + first_copy[static_cast<size_t>(stage)],
            static_cast<size_t>(Holders(stage))};
  }
  int Holders(int stage) const {
    return first_copy[static_cast<size_t>(stage) + 1] - first_copy[static_cast<size_t>(stage)];
  }
  const Instruction& InstructionAt(int rank, int index) const {
    return plan.program(rank)[static_cast<size_t>(index)];
  }
  /// `12 (F s0 m3)`
  std::string Place(int rank, int index) const;

 private:
  /// The first of these that the last layer of a stage has.
  Op LastOf(int stage, std::array<Op, 3> ops) const {
    const int last = plan.LayersOf(stage) - 1;
    return HasPartAt(ops[0], stage, last)   ? ops[0]
           : HasPartAt(ops[1], stage, last) ? ops[1]
                                            : ops[2];
  }
  size_t RecomputeIndex(Op op, int stage, int layer, int microbatch) const {
    return LayerAt(stage, layer, microbatch) * kRecomputeCount + static_cast<size_t>(op) -
           static_cast<size_t>(Op::ATTN_R);
  }
  size_t PartIndex(Op op, int stage, int layer, int microbatch) const {
    return LayerAt(stage, layer, microbatch) * kPartCount + static_cast<size_t>(op) -
           static_cast<size_t>(Op::ATTN_F);
  }

  std::vector<size_t> layers_before_;  // each stage, of all micro-batches; one more at the end
};

/// Calls visit(rank, index, instruction) for all instructions, rank by rank.
template <typename Visit>
void ForEachInstruction(const Plan& plan, const Visit& visit) {
  for (int r = 0; r < plan.ranks; ++r) {
    int32_t index = 0;
    for (const Instruction& i : plan.program(r)) visit(r, index++, i);
  }
}

/// Positions of all instructions in their order: the one it is at, and those found before.
class Placing {
 public:
  Placing(Tables* tables, Findings* findings)
      : tables_(*tables), plan_(tables->plan), findings_(*findings) {}

 protected:
  template <typename Place>
  void PlaceAll(const Place& place) {
    ForEachInstruction(plan_, [&](int rank, int32_t index, const Instruction& i) {
      rank_ = rank;
      index_ = index;
      place(i);
    });
  }
  void Add(Check check, const Instruction& i, const std::string& what) {
    findings_.Add(check, rank_, index_, ToString(i) + what);
  }

  Tables& tables_;
  const Plan& plan_;
  Findings& findings_;
  int rank_ = 0;
  int32_t index_ = 0;
};

/// Inputs of an instruction on its own rank, by index: negative where one is missing.
struct Inputs {
  std::array<int32_t, 4> at{};
  int count = 0;

  void Add(int32_t index) { at[static_cast<size_t>(count++)] = index; }
  auto begin() const { return at.begin(); }
  auto end() const { return at.begin() + count; }
};
/// Inputs; none for instructions on the wrong rank.
Inputs InputsOf(const Tables& tables, int rank, const Instruction& i);

/// An instruction that cannot go on before another rank does.
struct Wait {
  int rank;
  int index;
  int on_rank;
};

/// A directed graph over nodes 0..size-1, given as a list of edges.
struct Digraph {
  struct Edge {
    int from, to;
  };
  int size = 0;
  std::vector<Edge> edges;
};

/// A cycle with the fewest nodes, in edge order; empty if there is none. O(size * edges): meant for
/// small graphs, such as one node a rank.
std::vector<int> ShortestCycle(const Digraph& graph);

inline size_t MessageKind(Op message) {
  return static_cast<size_t>(message) - static_cast<size_t>(Op::SEND_F);
}
/// The stage at the other end of a message; may be -1 or the number of stages.
inline int OtherStage(const Instruction& message) {
  return message.stage + (message.op == Op::SEND_F || message.op == Op::RECV_B ? 1 : -1);
}
inline bool IsComponent(Op op) {
  return (op >= Op::ATTN_F && op <= Op::COMBINE_B) || (IsRecompute(op) && op != Op::R);
}
/// Position of the other end of this message in the peer's program; negative if it has none.
int32_t Partner(const Tables& tables, int rank, int32_t index);

/// Vector clocks over the lanes of one rank at a time: compute, all-to-all, reduce, and one for
/// each edge to or from a peer or the host.
class Clocks {
 public:
  explicit Clocks(const Plan& plan);

  /// Turns to this rank. Each instruction counts on the lane its operation demands; entries of
  /// `after` that are not of earlier instructions count for nothing.
  void Turn(int rank);

  /// Whether, by the order of the lanes and by `after` alone, `first` has ended when `second`
  /// begins. Instructions of the rank turned to. Never true where it is not so. It may be false
  /// where it is so on a rank that sends to and receives from more than five hundred others: there,
  /// what stands on the lanes of the last ones is known to be over only to what waits for it, and
  /// to what follows the first that does.
  bool Before(int32_t first, int32_t second) const {
    const auto column = static_cast<size_t>(lanes_[static_cast<size_t>(first)]);
    if (first >= second) return false;
    if (lanes_[static_cast<size_t>(first)] == lanes_[static_cast<size_t>(second)]) return true;
    if (column >= columns_) return FollowsWaiter(first, second);
    return clocks_[static_cast<size_t>(second) * columns_ + column] >= first;
  }

  /// Number of the lane an instruction is on: 0 compute, 1 all-to-all, 2 reduce, then the edges.
  int32_t LaneAt(int32_t index) const { return lanes_[static_cast<size_t>(index)]; }

 private:
  struct Edge {
    int rank = -1;  // the rank that used it last
    int32_t lane = 0;
  };

  int32_t EdgeLane(size_t number, int rank);
  int32_t NumberOf(const Instruction& i, int rank);
  bool WaitsDirectly(int32_t first, int32_t second) const;
  bool FollowsWaiter(int32_t first, int32_t second) const;
  void FindWaiters();
  void Join(int32_t index, int32_t on);

  const Plan& plan_;
  std::vector<Edge> edges_;  // by peer, to and from; last those of the host
  const Program* program_ = nullptr;
  int32_t lane_count_ = 0;
  size_t columns_ = 0;           // lanes that have a clock
  std::vector<int32_t> lanes_;   // by instruction
  std::vector<int32_t> clocks_;  // by instruction, then lane: the last one there that is over
  // The first to wait, by instruction on a lane without a clock, for it or for one after it there.
  std::vector<int32_t> waiters_;
};

/// One value that an instruction touches.
struct Touch {
  Value value;
  int16_t layer;  ///< -1: of an opaque stage
  int32_t stage, microbatch;
  bool makes;  ///< the first to touch it; a recomputed or reloaded value is made twice

  auto operator<=>(const Touch&) const = default;
};

/// Which values instructions touch: the verifier's own table (accesses.cc), which it shares with no
/// pass.
class Touches {
 public:
  /// The tables must outlive this.
  explicit Touches(const Tables& tables);

  /// Every value that the instruction makes or reads, each once; replaces `touches`.
  void Of(const Instruction& i, std::vector<Touch>* touches) const;

 private:
  void Add(Op op, int stage, int layer, int microbatch, std::vector<Touch>* touches) const;

  const Tables& tables_;
  const bool layered_;  ///< else stages are opaque
  const int stages_;
  std::array<std::vector<size_t>, kOpCount> rows_;  // of the table, by operation
};

/// Bytes of each value of a layer, or of the opaque stage `stage` (layers == 0); nothing, and what
/// is missing, where the costs do not say.
std::optional<ValueBytes> SizesOf(const CostModel& costs, int layers, std::string* missing,
                                  int stage = 0);

// The checks. Checks of one level run in this order; each needs the tables that the ones before
// fill.

/// The marks of a rank.
std::span<const Mark> MarksOf(const Plan& plan, int rank);
/// Position of the SEND that a WAIT_SEND waits for in the program of the rank; negative if it has
/// none. From level comm on.
int32_t SendOf(const Tables& tables, int rank, const Mark& wait);

/// "shape"
void CheckShape(const Plan& plan, Findings* findings);
/// "level"; false if the plan as a whole contradicts it and nothing more can be said.
bool CheckLevel(const Plan& plan, Findings* findings);
/// "owner" "complete" "order"; fills work and copies.
void CheckCompute(Tables* tables, Findings* findings);
/// Like CheckCompute, of a plan with components, and "weight-order"; fills parts and copies.
void CheckComponents(Tables* tables, Findings* findings);
/// "owner" "complete" "order" of OFFLOAD and RELOAD, once the work of chunks or components is
/// placed; fills host_copies.
void CheckHostCopies(Tables* tables, Findings* findings);
/// "message" "producer" "consumer" "group" "reduce" "step"; fills messages and copies.
void CheckComm(Tables* tables, Findings* findings);
/// "deadlock" by pure data flow: a rank waits for what another rank has not computed. Says how far
/// each gets.
Standstill CheckDataFlow(const Tables& tables, Findings* findings);
/// "deadlock" by rendezvous in one queue: a rank waits at each message and reduction for the other
/// side. Says how far each gets.
Standstill CheckRendezvous(const Tables& tables, Findings* findings);
/// "deadlock" where a rank has a queue for each pair or edge, or SENDs are buffered. Says how far
/// each gets.
Standstill CheckQueues(const Tables& tables, Semantics semantics, Findings* findings);
/// "level" "owner" "message" "reduce" of the marks of an imported schedule.
void CheckMarks(const Tables& tables, Findings* findings);
/// "lane" "event"
void CheckLanes(const Tables& tables, Findings* findings);
/// "slot" "sharing"; of programs without findings.
void CheckSlots(const Tables& tables, Findings* findings);

}  // namespace contraflow::check
