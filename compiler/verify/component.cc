// Plans with components: each of them once, on its rank, after the one before it in its chain.
//
//     ATTN_F -> DISPATCH_F -> MLP_F -> COMBINE_F            -> ATTN_F of the next layer
//     COMBINE_B -> MLP_B -> DISPATCH_B -> ATTN_B            -> COMBINE_B of the layer before
//                    \-> MLP_W              \-> ATTN_W
//
// A dense layer has no DISPATCH and COMBINE, a plain one ATTN alone: the chains go on without them.
//
// A chunk that is recomputed has, after its forward chain and before its backward chain, the
// forward chain once more, as ATTN_R -> DISPATCH_R -> MLP_R -> COMBINE_R, or of every layer ATTN_R
// alone, MLP_R alone, or all but ATTN_R (RecomputePart); and that of all layers, or of the first.
//
// The forward chain begins with what RECV_F received, or with the end of the stage before on the
// same rank; the backward chain likewise, and after the end of its own forward chain.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

/// Walks the programs and notes where every component stands.
class PartPlacer : Placing {
 public:
  PartPlacer(Tables* tables, Findings* findings)
      : Placing(tables, findings),
        turns_(tables->At(plan_.stages, 0), kMissing),
        latest_(tables->copies.size() * static_cast<size_t>(plan_.layers) * 2, kMissing) {}

  void Run() {
    PlaceAll([this](const Instruction& i) {
      if (IsComponent(i.op)) Place(i);
    });
  }

 private:
  void Place(const Instruction& i) {
    if (IsRecompute(i.op) && tables_.recompute.empty()) {
      tables_.recompute.assign(tables_.Layers() * kRecomputeCount, kMissing);
    }
    int32_t& place = IsRecompute(i.op) ? tables_.Recompute(i.op, i.stage, i.layer, i.microbatch)
                                       : tables_.Part(i.op, i.stage, i.layer, i.microbatch);
    const int owner = tables_.Owner(i.stage, i.microbatch);
    if (owner != rank_) {
      if (place == kMissing) place = kMisplaced;
      Add(Check::kOwner, i,
          " is on rank " + std::to_string(rank_) + "; route " +
              std::to_string(tables_.route_of[static_cast<size_t>(i.microbatch)]) + " has stage " +
              std::to_string(i.stage) + " on rank " + std::to_string(owner));
    } else if (place >= 0) {
      Add(Check::kComplete, i, " repeats " + tables_.Place(rank_, place) + "; drop one");
    } else {
      place = index_;
      if (i.op == Op::MLP_W || i.op == Op::ATTN_W) Weight(i);
    }
  }

  /// The order in which the weight gradients of a copy are added up is the plan's to say; but all
  /// of its components must say the same.
  void Weight(const Instruction& i) {
    const auto copy = static_cast<size_t>(tables_.CopyIndex(i.stage, i.microbatch));
    tables_.copies[copy].last_weight = index_;
    const size_t sum =
        (copy * static_cast<size_t>(plan_.layers) + static_cast<size_t>(i.layer)) * 2;
    int32_t& turn = turns_[tables_.At(i.stage, i.microbatch)];
    if (turn == kMissing) turn = next_turn_++;
    int32_t& latest = latest_[sum + (i.op == Op::ATTN_W ? 1 : 0)];
    const int before = latest < 0 ? -1 : tables_.InstructionAt(rank_, latest).microbatch;
    if (before >= 0 && turns_[tables_.At(i.stage, before)] > turn) {
      Add(Check::kWeightOrder, i,
          " adds to its weight gradient after " + tables_.Place(rank_, latest) +
              ", but another component of the stage adds micro-batch " +
              std::to_string(i.microbatch) + " before " + std::to_string(before) +
              "; all components of a stage must add micro-batches in one order");
    } else {
      latest = index_;
    }
  }

  // Time by stage and micro-batch: when any of its components was the first to add it.
  std::vector<int32_t> turns_;
  int32_t next_turn_ = 0;
  // Position by copy, layer, MLP_W or ATTN_W: that of the micro-batch whose turn is last.
  std::vector<int32_t> latest_;
};

void CheckMissingComponents(const Tables& tables, Findings* findings) {
  for (int stage = 0; stage < tables.plan.stages; ++stage) {
    const int layers = tables.plan.LayersOf(stage);
    const int parts = layers * kPartCount;
    for (int at = 0; at < tables.plan.microbatches * parts; ++at) {
      const int m = at / parts, layer = at % parts / kPartCount;
      const Op op = static_cast<Op>(static_cast<int>(Op::ATTN_F) + at % kPartCount);
      if (tables.Part(op, stage, layer, m) != kMissing) continue;
      if (!tables.HasPartAt(op, stage, layer)) continue;
      const int rank = tables.Owner(stage, m);
      findings->Add(Check::kComplete, rank, -1,
                    "no " + ToString(Component(op, stage, layer, m)) + "; rank " +
                        std::to_string(rank) + " must run it once");
    }
  }
}

/// How much of the forward of a stage these components of a cell are, the whole of it where they
/// are no extent. Several dense or plain layers may have the same: then the first.
RecomputeExtent ExtentOf(const Tables& tables, int stage, int m) {
  const int layers = tables.plan.LayersOf(stage);
  // The last layer that has any; after it those of an extent may still have no components.
  int last = layers - 1;
  while (last > 0 && !tables.RecomputedLayer(stage, last, m)) --last;
  const auto same = [&](const RecomputeExtent& extent) {
    for (int layer = 0; layer < layers; ++layer) {
      for (const Op op : kAgain) {
        const bool found = tables.Recompute(op, stage, layer, m) != kMissing;
        if (found != extent.Has(op, layer, tables.plan.KindOf(stage, layer))) return false;
      }
    }
    return true;
  };
  for (int count = layers; count > last; --count) {
    for (const RecomputePart part : kParts) {
      const RecomputeExtent extent(part, count == layers ? 0 : count);
      if (same(extent)) return extent;
    }
  }
  return {};
}

/// A chunk that is recomputed is recomputed whole, or as much as the stage's other cells.
void CheckRecomputed(const Tables& tables, Findings* findings) {
  if (tables.recompute.empty()) return;
  for (int stage = 0; stage < tables.plan.stages; ++stage) {
    std::optional<RecomputeExtent> of_stage;
    for (int m = 0; m < tables.plan.microbatches; ++m) {
      if (!tables.Recomputed(stage, m)) continue;
      const RecomputeExtent extent = ExtentOf(tables, stage, m);
      if (!of_stage) of_stage = extent;
      const int rank = tables.Owner(stage, m);
      if (*of_stage != extent) {
        findings->Add(Check::kComplete, rank, -1,
                      "stage " + std::to_string(stage) + " recomputes " + ToString(extent) +
                          " of micro-batch " + std::to_string(m) + " and " + ToString(*of_stage) +
                          " of others; recompute the same of all cells of a stage");
        continue;
      }
      for (int at = 0; at < tables.plan.LayersOf(stage) * kRecomputeCount; ++at) {
        const Op op = static_cast<Op>(static_cast<int>(Op::ATTN_R) + at % kRecomputeCount);
        const int layer = at / kRecomputeCount;
        if (tables.Recompute(op, stage, layer, m) != kMissing) continue;
        if (!extent.Has(op, layer, tables.plan.KindOf(stage, layer))) continue;
        findings->Add(Check::kComplete, rank, -1,
                      "no " + ToString(Component(op, stage, layer, m)) + "; rank " +
                          std::to_string(rank) +
                          " recomputes parts of this cell and must recompute all of it");
      }
    }
  }
}

void CheckOrder(const Tables& tables, Findings* findings) {
  ForEachInstruction(tables.plan, [&](int r, int32_t index, const Instruction& i) {
    if (!IsComponent(i.op)) return;
    for (const int32_t input : InputsOf(tables, r, i)) {
      if (input <= index) continue;
      findings->Add(Check::kOrder, r, index,
                    ToString(i) + " stands before " + tables.Place(r, input) +
                        ", which it needs; move it after");
    }
  });
}

/// The components of a layer in the order of its chains; a layer has some of them.
constexpr std::array kForwardChain = {Op::ATTN_F, Op::DISPATCH_F, Op::MLP_F, Op::COMBINE_F};
constexpr std::array kBackwardChain = {Op::COMBINE_B, Op::MLP_B, Op::DISPATCH_B, Op::ATTN_B};

/// Inputs of a component, messages included where they are known.
class ChainInputs {
 public:
  ChainInputs(const Tables& tables, const Instruction& i) : tables_(tables), i_(i) {}

  Inputs Find() {
    if (i_.op == Op::MLP_W || i_.op == Op::ATTN_W) {
      Need(i_.op == Op::MLP_W ? Op::MLP_B : Op::ATTN_B, i_.stage, i_.layer);
    } else if (IsRecompute(i_.op)) {
      inputs_.Add(BeforeRecompute());
    } else if (const int own = PlaceIn(kForwardChain); own >= 0) {
      Forward(own);
    } else {
      Backward(PlaceIn(kBackwardChain));
    }
    return inputs_;
  }

 private:
  int PlaceIn(const std::array<Op, 4>& chain) const {
    const auto found = std::find(chain.begin(), chain.end(), i_.op);
    return found == chain.end() ? -1 : static_cast<int>(found - chain.begin());
  }

  /// Needs the last of the components 0..end-1 of a chain that a layer has; false if none.
  bool NeedLast(const std::array<Op, 4>& chain, int end, int layer) {
    while (end-- > 0) {
      const Op op = chain[static_cast<size_t>(end)];
      if (!tables_.HasPartAt(op, i_.stage, layer)) continue;
      Need(op, i_.stage, layer);
      return true;
    }
    return false;
  }

  void Forward(int own) {
    if (NeedLast(kForwardChain, own, i_.layer)) return;
    if (i_.layer > 0) {
      NeedLast(kForwardChain, 4, i_.layer - 1);
    } else if (i_.stage > 0) {
      const int before = i_.stage - 1;
      FromNeighbour(Op::RECV_F, tables_.LastForward(before), before,
                    tables_.plan.LayersOf(before) - 1);
    }
  }

  void Backward(int own) {
    if (NeedLast(kBackwardChain, own, i_.layer)) return;
    if (i_.layer + 1 < tables_.plan.LayersOf(i_.stage)) {
      NeedLast(kBackwardChain, 4, i_.layer + 1);
      return;
    }
    inputs_.Add(tables_.ForwardEnd(i_.stage, i_.microbatch));
    for (int layer = i_.layer; layer >= 0; --layer) {
      const int32_t recompute = LastRecompute(layer);
      if (recompute == kMissing) continue;
      inputs_.Add(recompute);
      break;
    }
    const HostCopies copies = tables_.HostCopiesOf(i_.stage, i_.microbatch);
    if (copies.reload >= 0) inputs_.Add(copies.reload);
    if (i_.stage + 1 < tables_.plan.stages) FromNeighbour(Op::RECV_B, Op::ATTN_B, i_.stage + 1, 0);
  }

  void Need(Op op, int stage, int layer) {
    inputs_.Add(tables_.Part(op, stage, layer, i_.microbatch));
  }

  /// The last of a layer that runs again; kMissing where nothing does.
  int32_t LastRecompute(int layer) const {
    for (size_t k = kAgain.size(); k-- > 0;) {
      if (const int32_t found = RecomputeAt(kAgain[k], layer); found != kMissing) return found;
    }
    return kMissing;
  }

  /// Predecessor of this component that runs again: the one before it or, of the first, the
  /// forward.
  int32_t BeforeRecompute() const {
    const auto own = std::find(kAgain.begin(), kAgain.end(), i_.op) - kAgain.begin();
    for (auto k = static_cast<size_t>(own); k-- > 0;) {
      const int32_t found = RecomputeAt(kAgain[k], i_.layer);
      if (found != kMissing) return found;
    }
    for (int layer = i_.layer; layer-- > 0;) {
      if (const int32_t found = LastRecompute(layer); found != kMissing) return found;
    }
    return tables_.ForwardEnd(i_.stage, i_.microbatch);
  }

  int32_t RecomputeAt(Op op, int layer) const {
    return tables_.Recompute(op, i_.stage, layer, i_.microbatch);
  }

  void FromNeighbour(Op message, Op op, int stage, int layer) {
    if (tables_.Owner(stage, i_.microbatch) == tables_.Owner(i_.stage, i_.microbatch)) {
      Need(op, stage, layer);
    } else if (!tables_.messages.empty()) {
      inputs_.Add(tables_.messages[tables_.At(i_.stage, i_.microbatch)][MessageKind(message)]);
    }
  }

  const Tables& tables_;
  const Instruction& i_;
  Inputs inputs_;
};

}  // namespace

Inputs InputsOf(const Tables& tables, int rank, const Instruction& i) {
  Inputs inputs;
  if (i.op == Op::REDUCE || i.op == Op::STEP) {
    const int32_t found = tables.FindCopy(i.stage, rank);
    if (found < 0) return inputs;
    const Copy& copy = tables.copies[static_cast<size_t>(found)];
    inputs.Add(copy.last_weight);
    if (i.op == Op::STEP) inputs.Add(copy.reduce);
    return inputs;
  }
  if (IsMessage(i.op)) {
    if (IsSend(i.op) && tables.Owner(i.stage, i.microbatch) == rank) inputs.Add(tables.Side(i));
    return inputs;
  }
  if (IsHostCopy(i.op)) {
    if (tables.Owner(i.stage, i.microbatch) != rank) return inputs;
    inputs.Add(i.op == Op::OFFLOAD ? tables.ForwardEnd(i.stage, i.microbatch)
                                   : tables.HostCopiesOf(i.stage, i.microbatch).offload);
    return inputs;
  }
  if (IsComponent(i.op)) {
    if (tables.Owner(i.stage, i.microbatch) != rank) return inputs;
    return ChainInputs(tables, i).Find();
  }
  // Inputs of chunks count only over another lane; their own order has its own check.
  const auto receive = [&](Op op, int stage, int microbatch) {
    if (tables.Owner(stage, microbatch) != rank) return;
    inputs.Add(tables.messages[tables.At(stage, microbatch)][MessageKind(op)]);
  };
  if (HasForward(i.op)) receive(Op::RECV_F, i.stage, i.microbatch);
  if (!HasBackward(i.op)) return inputs;
  receive(Op::RECV_B, BackStage(i), BackMicrobatch(i));
  if (tables.Owner(BackStage(i), BackMicrobatch(i)) == rank) {
    inputs.Add(tables.HostCopiesOf(BackStage(i), BackMicrobatch(i)).reload);
  }
  return inputs;
}

void CheckComponents(Tables* tables, Findings* findings) {
  PartPlacer(tables, findings).Run();
  CheckMissingComponents(*tables, findings);
  CheckRecomputed(*tables, findings);
  CheckOrder(*tables, findings);
}

}  // namespace contraflow::check
