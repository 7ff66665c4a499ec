// Plans with components: each of them once, on its rank, behind the one before it in its chain.
//
//     ATTN_F -> DISPATCH_F -> MLP_F -> COMBINE_F            -> ATTN_F of the next layer
//     COMBINE_B -> MLP_B -> DISPATCH_B -> ATTN_B            -> COMBINE_B of the layer before
//                    \-> MLP_W              \-> ATTN_W
//
// A chunk that is recomputed has, behind its forward chain and before its backward chain, the
// forward chain once more, as ATTN_R -> DISPATCH_R -> MLP_R -> COMBINE_R.
//
// The forward chain begins with what RECV_F received, or with the end of the stage before on the
// same rank; the backward chain likewise, and behind the end of its own forward chain.

#include <algorithm>
#include <limits>

#include "compiler/plan/error.h"
#include "compiler/verify/checks.h"

namespace contraflow::check {
namespace {

/// Walks the programs and notes where every component stands.
class PartPlacer {
 public:
  PartPlacer(Tables* tables, Findings* findings)
      : tables_(*tables),
        plan_(tables->plan),
        findings_(*findings),
        turns_(tables->At(plan_.stages, 0), kMissing),
        latest_(tables->copies.size() * static_cast<size_t>(plan_.layers) * 2, kMissing) {}

  void Run() {
    for (rank_ = 0; rank_ < plan_.ranks; ++rank_) {
      const Program& program = plan_.program(rank_);
      for (size_t at = 0; at < program.size(); ++at) {
        index_ = static_cast<int32_t>(at);
        if (IsComponent(program[at].op)) Place(program[at]);
      }
    }
  }

 private:
  void Place(const Instruction& i) {
    if (IsRecompute(i.op) && tables_.recompute.empty()) {
      tables_.recompute.assign(tables_.parts.size() / kPartCount * kRecomputeCount, kMissing);
    }
    int32_t& place = IsRecompute(i.op) ? tables_.Recompute(i.op, i.stage, i.layer, i.microbatch)
                                       : tables_.Part(i.op, i.stage, i.layer, i.microbatch);
    const int owner = tables_.Owner(i.stage, i.microbatch);
    if (owner != rank_) {
      if (place == kMissing) place = kMisplaced;
      findings_.Add(Check::kOwner, rank_, index_,
                    ToString(i) + " is on rank " + std::to_string(rank_) + "; route " +
                        std::to_string(tables_.route_of[static_cast<size_t>(i.microbatch)]) +
                        " has stage " + std::to_string(i.stage) + " on rank " +
                        std::to_string(owner));
    } else if (place >= 0) {
      findings_.Add(Check::kComplete, rank_, index_,
                    ToString(i) + " repeats " + tables_.Place(rank_, place) + "; drop one");
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
      findings_.Add(Check::kWeightOrder, rank_, index_,
                    ToString(i) + " adds to its weight gradient after " +
                        tables_.Place(rank_, latest) +
                        ", but another component of the stage adds " + "micro-batch " +
                        std::to_string(i.microbatch) + " before " + std::to_string(before) +
                        "; all components of a stage must add micro-batches in one order");
    } else {
      latest = index_;
    }
  }

  Tables& tables_;
  const Plan& plan_;
  Findings& findings_;
  // By stage and micro-batch: when any of its components was the first to add it.
  std::vector<int32_t> turns_;
  int32_t next_turn_ = 0;
  // By copy, layer, MLP_W or ATTN_W: where that of the micro-batch whose turn is last stands.
  std::vector<int32_t> latest_;
  int rank_ = 0;
  int32_t index_ = 0;
};

void CheckMissingComponents(const Tables& tables, Findings* findings) {
  for (size_t at = 0; at < tables.parts.size(); ++at) {
    if (tables.parts[at] != kMissing) continue;
    const auto layers = static_cast<size_t>(tables.plan.layers);
    const auto microbatches = static_cast<size_t>(tables.plan.microbatches);
    const size_t chunk = at / kPartCount / layers;
    const int stage = static_cast<int>(chunk / microbatches);
    const int m = static_cast<int>(chunk % microbatches);
    const Op op = static_cast<Op>(static_cast<size_t>(Op::ATTN_F) + at % kPartCount);
    const int layer = static_cast<int>(at / kPartCount % layers);
    const int rank = tables.Owner(stage, m);
    findings->Add(Check::kComplete, rank, -1,
                  "no " + ToString(Component(op, stage, layer, m)) + "; rank " +
                      std::to_string(rank) + " must run it once");
  }
}

/// Of a chunk that is recomputed all of it is.
void CheckRecomputed(const Tables& tables, Findings* findings) {
  const auto layers = static_cast<size_t>(tables.plan.layers);
  const size_t parts = layers * kRecomputeCount;
  for (size_t chunk = 0; chunk * parts < tables.recompute.size(); ++chunk) {
    const auto begin = tables.recompute.begin() + static_cast<std::ptrdiff_t>(chunk * parts);
    const auto missing = std::count(begin, begin + static_cast<std::ptrdiff_t>(parts), kMissing);
    if (missing == 0 || missing == static_cast<std::ptrdiff_t>(parts)) continue;
    const auto microbatches = static_cast<size_t>(tables.plan.microbatches);
    const int stage = static_cast<int>(chunk / microbatches);
    const int m = static_cast<int>(chunk % microbatches);
    const int rank = tables.Owner(stage, m);
    for (size_t at = 0; at < parts; ++at) {
      if (tables.recompute[chunk * parts + at] != kMissing) continue;
      const Op op = static_cast<Op>(static_cast<size_t>(Op::ATTN_R) + at % kRecomputeCount);
      findings->Add(Check::kComplete, rank, -1,
                    "no " +
                        ToString(Component(op, stage, static_cast<int>(at / kRecomputeCount), m)) +
                        "; rank " + std::to_string(rank) +
                        " recomputes parts of this cell and must recompute all of it");
    }
  }
}

void CheckOrder(const Tables& tables, Findings* findings) {
  for (int r = 0; r < tables.plan.ranks; ++r) {
    const Program& program = tables.plan.program(r);
    for (size_t at = 0; at < program.size(); ++at) {
      if (!IsComponent(program[at].op)) continue;
      const auto index = static_cast<int32_t>(at);
      const Inputs inputs = InputsOf(tables, r, program[at]);
      for (int k = 0; k < inputs.count; ++k) {
        const int32_t input = inputs.at[static_cast<size_t>(k)];
        if (input <= index) continue;
        findings->Add(Check::kOrder, r, index,
                      ToString(program[at]) + " stands before " + tables.Place(r, input) +
                          ", which it needs; move it after");
      }
    }
  }
}

/// What a component needs, messages included where they are known.
class ChainInputs {
 public:
  ChainInputs(const Tables& tables, const Instruction& i) : tables_(tables), i_(i) {}

  Inputs Find() {
    switch (i_.op) {
      case Op::ATTN_F:
        if (i_.layer > 0) {
          Need(Op::COMBINE_F, i_.stage, i_.layer - 1);
        } else if (i_.stage > 0) {
          FromNeighbour(Op::RECV_F, Op::COMBINE_F, i_.stage - 1, tables_.plan.layers - 1);
        }
        break;
      case Op::ATTN_R:
        if (i_.layer > 0) {
          inputs_.Add(RecomputeAt(Op::COMBINE_R, i_.layer - 1));
        } else {
          Need(Op::COMBINE_F, i_.stage, tables_.plan.layers - 1);
        }
        break;
      case Op::DISPATCH_R:
        inputs_.Add(RecomputeAt(Op::ATTN_R, i_.layer));
        break;
      case Op::MLP_R:
        inputs_.Add(RecomputeAt(Op::DISPATCH_R, i_.layer));
        break;
      case Op::COMBINE_R:
        inputs_.Add(RecomputeAt(Op::MLP_R, i_.layer));
        break;
      case Op::DISPATCH_F:
        Need(Op::ATTN_F);
        break;
      case Op::MLP_F:
        Need(Op::DISPATCH_F);
        break;
      case Op::COMBINE_F:
        Need(Op::MLP_F);
        break;
      case Op::COMBINE_B:
        if (i_.layer + 1 < tables_.plan.layers) {
          Need(Op::ATTN_B, i_.stage, i_.layer + 1);
          break;
        }
        Need(Op::COMBINE_F);
        if (const int32_t recompute = RecomputeAt(Op::COMBINE_R, i_.layer); recompute != kMissing) {
          inputs_.Add(recompute);
        }
        if (i_.stage + 1 < tables_.plan.stages) {
          FromNeighbour(Op::RECV_B, Op::ATTN_B, i_.stage + 1, 0);
        }
        break;
      case Op::DISPATCH_B:
      case Op::MLP_W:
        Need(Op::MLP_B);
        break;
      case Op::MLP_B:
        Need(Op::COMBINE_B);
        break;
      case Op::ATTN_B:
        Need(Op::DISPATCH_B);
        break;
      case Op::ATTN_W:
        Need(Op::ATTN_B);
        break;
      case Op::F:
      case Op::B:
      case Op::W:
      case Op::BW:
      case Op::FB:
      case Op::SEND_F:
      case Op::RECV_F:
      case Op::SEND_B:
      case Op::RECV_B:
      case Op::REDUCE:
      case Op::STEP:
      case Op::R:
        CF_ASSERT(false && "not a component");
    }
    return inputs_;
  }

 private:
  void Need(Op op) { Need(op, i_.stage, i_.layer); }
  void Need(Op op, int stage, int layer) {
    inputs_.Add(tables_.Part(op, stage, layer, i_.microbatch));
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
  if (IsComponent(i.op)) {
    if (tables.Owner(i.stage, i.microbatch) != rank) return inputs;
    return ChainInputs(tables, i).Find();
  }
  // Of chunks only what comes over another lane; their own order has its own check.
  const auto receive = [&](Op op, int stage, int microbatch) {
    if (tables.Owner(stage, microbatch) != rank) return;
    inputs.Add(tables.messages[tables.At(stage, microbatch)][MessageKind(op)]);
  };
  if (HasForward(i.op)) receive(Op::RECV_F, i.stage, i.microbatch);
  if (HasBackward(i.op)) receive(Op::RECV_B, BackStage(i), BackMicrobatch(i));
  return inputs;
}

void CheckComponents(Tables* tables, Findings* findings) {
  PartPlacer(tables, findings).Run();
  CheckMissingComponents(*tables, findings);
  CheckRecomputed(*tables, findings);
  CheckOrder(*tables, findings);
}

}  // namespace contraflow::check
