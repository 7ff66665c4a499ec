#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace contraflow {

/// The one list of operations: X(name, operands, work). The name is the spelling used in files,
/// dumps, traces, errors and tests. Papers write B for the full backward in
/// bubble formulas; here B is the backward for the input gradient only, W the one for the weight
/// gradient, BW both in one go, FB a forward overlapped with a full backward of another micro-batch
/// ("F&B"). R runs the forward of a chunk again from its stage input, so that what F made need not
/// be held up to the backward; ATTN_R MLP_R DISPATCH_R COMBINE_R are its components. OFFLOAD moves
/// what a forward keeps for its backward to the memory of the host, RELOAD brings it back.
#define CF_OPS(X)                  \
  X(F, kCell, kCompute)            \
  X(B, kCell, kCompute)            \
  X(W, kCell, kCompute)            \
  X(BW, kCell, kCompute)           \
  X(FB, kPair, kCompute)           \
  X(SEND_F, kMessage, kSend)       \
  X(RECV_F, kMessage, kRecv)       \
  X(SEND_B, kMessage, kSend)       \
  X(RECV_B, kMessage, kRecv)       \
  X(ATTN_F, kLayer, kComponent)    \
  X(MLP_F, kLayer, kComponent)     \
  X(ATTN_B, kLayer, kComponent)    \
  X(MLP_B, kLayer, kComponent)     \
  X(ATTN_W, kLayer, kComponent)    \
  X(MLP_W, kLayer, kComponent)     \
  X(DISPATCH_F, kLayer, kAllToAll) \
  X(COMBINE_F, kLayer, kAllToAll)  \
  X(DISPATCH_B, kLayer, kAllToAll) \
  X(COMBINE_B, kLayer, kAllToAll)  \
  X(REDUCE, kStage, kReduce)       \
  X(STEP, kStage, kStep)           \
  X(R, kCell, kCompute)            \
  X(ATTN_R, kLayer, kComponent)    \
  X(MLP_R, kLayer, kComponent)     \
  X(DISPATCH_R, kLayer, kAllToAll) \
  X(COMBINE_R, kLayer, kAllToAll)  \
  X(OFFLOAD, kCell, kOffload)      \
  X(RELOAD, kCell, kReload)

enum class Op : uint8_t {
#define CF_OP(name, operands, work) name,
  CF_OPS(CF_OP)
#undef CF_OP
};

/// How many operations there are.
inline constexpr int kOpCount = 0
#define CF_OP(name, operands, work) +1
    CF_OPS(CF_OP)
#undef CF_OP
    ;

/// Operands after the operation's name.
enum class Operands : uint8_t {
  kCell,     ///< s3 m7
  kPair,     ///< s3 m7 + s4 m2: the forward chunk, then the backward chunk
  kMessage,  ///< s3 m7 to=4, or from=4
  kLayer,    ///< s3 l0 m7
  kStage,    ///< s3
};

/// Kind of work, which says where it may run.
enum class Work : uint8_t {
  kCompute,
  kSend,
  kRecv,
  kComponent,
  kAllToAll,
  kReduce,
  kStep,
  kOffload,
  kReload
};

/// An in-order queue of one rank (a CUDA stream on a GPU). kSend and kRecv are one lane for each
/// peer. STEP runs on the compute lane, REDUCE on kReduce. The link to the host works both ways at
/// a time: OFFLOAD and RELOAD have a lane each.
enum class Lane : uint8_t { kNone, kCompute, kAllToAll, kSend, kRecv, kReduce, kOffload, kReload };
/// The last of them.
inline constexpr Lane kLastLane = Lane::kReload;

/// Part of a forward that runs again: every component of each layer, or some of them. The rest is
/// kept.
enum class RecomputePart : uint8_t { kFull, kAttention, kExperts, kAllButAttention };
inline constexpr RecomputePart kParts[] = {RecomputePart::kFull, RecomputePart::kAttention,
                                           RecomputePart::kExperts,
                                           RecomputePart::kAllButAttention};

std::string_view Name(RecomputePart part);  ///< "full" "attention" "experts" "all-but-attention"

/// Which components a layer of a stage has. Its forward is those of ATTN_F DISPATCH_F MLP_F
/// COMBINE_F that it has, its backward those of COMBINE_B MLP_B DISPATCH_B ATTN_B, with MLP_W and
/// ATTN_W.
enum class LayerKind : uint8_t {
  kMoe,    ///< all of them
  kDense,  ///< no all-to-all
  kPlain,  ///< ATTN alone, whatever it computes: an embedding, a head, a layer given as one
};

/// The layers of one stage in data-flow order.
using StageLayers = std::vector<LayerKind>;

/// A letter for each: 'm' 'd' 'p', as in plan and cost files.
std::string ToString(const StageLayers& layers);
/// Inverse of ToString. Throws Error for any other letter.
StageLayers ParseStageLayers(std::string_view text);

/// True if layers of this kind have the component, of a forward, a backward or R.
bool Has(LayerKind kind, Op component);
/// How much of a forward runs again: a part of its first layers, or of all of them.
struct RecomputeExtent {
  RecomputePart part = RecomputePart::kFull;
  int layers = 0;  ///< of the stage, from its first on; 0: all

  /// An extent of all layers; implicit, as a part alone says as much.
  RecomputeExtent(RecomputePart its_part = RecomputePart::kFull, int its_layers = 0)
      : part(its_part), layers(its_layers) {}

  /// The whole forward.
  bool whole() const { return part == RecomputePart::kFull && layers == 0; }
  /// Layers that have some of it, of a stage with `all`.
  int Of(int all) const { return layers == 0 || layers > all ? all : layers; }
  /// True if it has this component of a layer, ATTN_R MLP_R DISPATCH_R or COMBINE_R, of which the
  /// layer is a kind that has it. A plain layer has no parts: it runs again as a whole or not.
  bool Has(Op op, int layer, LayerKind kind) const;

  bool operator==(const RecomputeExtent&) const = default;
  auto operator<=>(const RecomputeExtent&) const = default;
};

/// "full", "attention", "the first 2 layers", "attention of the first layer".
std::string ToString(const RecomputeExtent& extent);

/// With which a layer of this kind ends its forward, and begins its backward. Every forward begins
/// with ATTN_F, every backward ends with ATTN_B.
Op ForwardEnd(LayerKind kind);
Op BackwardBegin(LayerKind kind);
/// Weight components of it.
inline int WeightParts(LayerKind kind) { return kind == LayerKind::kPlain ? 1 : 2; }

/// Promise of the network, under which the messages of a plan run to their end: how many in-order
/// queues a rank has, in which every message is a rendezvous. Messages of one directed edge are
/// received in the order they were sent in all of them. A plan that runs under one runs under the
/// next.
enum class Semantics : uint8_t {
  kRank,      ///< one: whatever the network is
  kPair,      ///< one for each other rank
  kEdge,      ///< one for each other rank and direction
  kBuffered,  ///< a SEND is over at once, however much has been sent
};
inline constexpr Semantics kEverySemantics[] = {Semantics::kRank, Semantics::kPair,
                                                Semantics::kEdge, Semantics::kBuffered};

std::string_view Name(Semantics semantics);  ///< "rank" "pair" "edge" "buffered"
/// Throws Error with the known names.
Semantics ParseSemantics(std::string_view name);

/// Instructions of the same rank that one instruction waits for: at most one per other lane is
/// needed, so the list is short and lives inside the instruction.
inline constexpr int kMaxAfter = 6;

/// One instruction of one rank: plain data, comparable, printable.
/// A field that the operation does not have is -1 (lane: kNone).
struct Instruction {
  Op op = Op::F;
  Lane lane = Lane::kNone;                    ///< set from level component on, and at level buffer
  uint8_t after_count = 0;                    ///< entries of `after` in use
  RecomputePart part = RecomputePart::kFull;  ///< of R: what it runs again
  int16_t layer = -1;       ///< layer inside the stage, data-flow order; kLayer only
  int16_t layers = 0;       ///< of R: this many of the stage run again, from its first on; 0: all
  int32_t stage = -1;       ///< stage; of an FB the stage of its forward
  int32_t microbatch = -1;  ///< micro-batch; of an FB the one of its forward
  int32_t back_stage = -1;  ///< FB only: stage of its backward
  int32_t back_microbatch = -1;  ///< FB only: micro-batch of its backward
  int32_t peer = -1;             ///< SEND: the receiving rank; RECV: the sending rank
  int32_t slot = -1;   ///< of a message at level buffer: what it moves, an index into the slots
  int32_t group = -1;  ///< neighbouring messages of one rank with one group are posted together
  std::array<int32_t, kMaxAfter> after{};  ///< indices into the same program, ascending

  bool operator==(const Instruction&) const = default;
};

/// Instructions by their operands, one function for each kind of them; the other fields are not
/// set. The operation must be of that kind.
Instruction CellOp(Op op, int stage, int microbatch);
/// An R of this much of a forward.
Instruction RecomputeOp(int stage, int microbatch, const RecomputeExtent& extent);
/// How much an R runs again.
inline RecomputeExtent ExtentOf(const Instruction& r) { return {r.part, r.layers}; }
/// An FB: the forward of (stage, microbatch) overlapped with the backward of the other cell.
Instruction Pair(int stage, int microbatch, int back_stage, int back_microbatch);
/// A message to or from the rank `peer`. A SEND is named after the stage that makes what is sent, a
/// RECV after the stage that takes it.
Instruction Message(Op op, int stage, int microbatch, int peer);
Instruction Component(Op op, int stage, int layer, int microbatch);
Instruction StageOp(Op op, int stage);

std::string_view Name(Op op);  ///< as in the list, "SEND_F"
/// "compute" "alltoall" "send" "recv" "reduce" "offload" "reload"; kNone: ""
std::string_view Name(Lane lane);
/// Columns of the list of operations. Plans of millions of instructions are asked for them: a table
/// here, not a call elsewhere. The operation must be one of the list.
inline Operands OperandsOf(Op op) {
#define CF_OPERANDS(name, operands, work) Operands::operands,
  constexpr Operands kOperands[] = {CF_OPS(CF_OPERANDS)};
#undef CF_OPERANDS
  return kOperands[static_cast<size_t>(op)];
}
inline Work WorkOf(Op op) {
#define CF_WORK(name, operands, work) Work::work,
  constexpr Work kWork[] = {CF_OPS(CF_WORK)};
#undef CF_WORK
  return kWork[static_cast<size_t>(op)];
}
/// The lane that an operation runs on where plans have lanes.
Lane LaneOf(Op op);

/// True for R and its components: it makes again what a forward made.
inline bool IsRecompute(Op op) { return op >= Op::R && op <= Op::COMBINE_R; }
/// The operation whose work it does again, of R and its components; of any other the same.
Op Repeated(Op op);
/// True if R of this part runs this component again, ATTN_R MLP_R DISPATCH_R or COMBINE_R.
bool Includes(RecomputePart part, Op op);
/// The component of layer 0 with which R of this part begins.
Op FirstOf(RecomputePart part);
/// True for the components of a forward, or of one that is run again.
bool IsForwardComponent(Op op);

/// True for OFFLOAD and RELOAD: a copy to or from the memory of the host.
inline bool IsHostCopy(Op op) { return op == Op::OFFLOAD || op == Op::RELOAD; }

inline bool IsSend(Op op) { return op == Op::SEND_F || op == Op::SEND_B; }
inline bool IsRecv(Op op) { return op == Op::RECV_F || op == Op::RECV_B; }
inline bool IsMessage(Op op) { return IsSend(op) || IsRecv(op); }

/// True for F and FB: the instruction runs a forward of (stage, microbatch).
inline bool HasForward(Op op) { return op == Op::F || op == Op::FB; }
/// True for B, BW and FB: it makes the input gradient of its backward chunk.
inline bool HasBackward(Op op) { return op == Op::B || op == Op::BW || op == Op::FB; }
/// True for W, BW and FB: it adds to the weight gradient of its backward chunk.
inline bool HasWeight(Op op) { return op == Op::W || op == Op::BW || op == Op::FB; }
/// Stage and micro-batch of the backward part: of an FB its second chunk, else the only one.
inline int BackStage(const Instruction& i) { return i.op == Op::FB ? i.back_stage : i.stage; }
inline int BackMicrobatch(const Instruction& i) {
  return i.op == Op::FB ? i.back_microbatch : i.microbatch;
}

/// `SEND_F s3 m7 to=4`: operation, operands, then the keys that are set, in the order
/// to|from, part, layers, group, slot, lane, after, each separated by one space.
std::string ToString(const Instruction& instruction);
void Append(const Instruction& instruction, std::string* text);  ///< the same

/// Inverse of ToString: accepts exactly the text it writes (keys in any order, each at most once).
/// Throws Error that says what is wrong at which word; never reads past `text`.
Instruction ParseInstruction(std::string_view text);

}  // namespace contraflow
