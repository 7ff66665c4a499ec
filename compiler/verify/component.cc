// Plans with components: each of them once, on its rank, behind the one before it in its chain.
//
//     ATTN_F -> DISPATCH_F -> MLP_F -> COMBINE_F            -> ATTN_F of the next layer
//     COMBINE_B -> MLP_B -> DISPATCH_B -> ATTN_B            -> COMBINE_B of the layer before
//                    \-> MLP_W              \-> ATTN_W
//
// A chunk that is recomputed has, behind its forward chain and before its backward chain, the
// forward chain once more, as ATTN_R -> DISPATCH_R -> MLP_R -> COMBINE_R, or of every layer ATTN_R
// alone, MLP_R alone, or all but ATTN_R (RecomputePart).
//
// The forward chain begins with what RECV_F received, or with the end of the stage before on the
// same rank; the backward chain likewise, and behind the end of its own forward chain.

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
      tables_.recompute.assign(tables_.parts.size() / kPartCount * kRecomputeCount, kMissing);
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

  // By stage and micro-batch: when any of its components was the first to add it.
  std::vector<int32_t> turns_;
  int32_t next_turn_ = 0;
  // By copy, layer, MLP_W or ATTN_W: where that of the micro-batch whose turn is last stands.
  std::vector<int32_t> latest_;
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

/// The part of which these are the components, kFull where there is none.
RecomputePart PartOf(const std::vector<int32_t>& recompute, size_t begin, size_t count) {
  std::array<bool, kRecomputeCount> found{};
  for (size_t at = 0; at < count; ++at) {
    if (recompute[begin + at] != kMissing) found[at % kRecomputeCount] = true;
  }
  for (const RecomputePart part : kParts) {
    bool same = true;
    for (size_t at = 0; at < found.size(); ++at) {
      const Op op = static_cast<Op>(static_cast<size_t>(Op::ATTN_R) + at);
      same = same && found[at] == Includes(part, op);
    }
    if (same) return part;
  }
  return RecomputePart::kFull;
}

/// Of a chunk that is recomputed all of it is, or the same part as of the stage's other cells.
void CheckRecomputed(const Tables& tables, Findings* findings) {
  const auto layers = static_cast<size_t>(tables.plan.layers);
  const size_t parts = layers * kRecomputeCount;
  std::vector<std::optional<RecomputePart>> of_stages(static_cast<size_t>(tables.plan.stages));
  for (size_t chunk = 0; chunk * parts < tables.recompute.size(); ++chunk) {
    const auto begin = tables.recompute.begin() + static_cast<std::ptrdiff_t>(chunk * parts);
    const auto missing = std::count(begin, begin + static_cast<std::ptrdiff_t>(parts), kMissing);
    if (missing == static_cast<std::ptrdiff_t>(parts)) continue;
    const auto microbatches = static_cast<size_t>(tables.plan.microbatches);
    const int stage = static_cast<int>(chunk / microbatches);
    const int m = static_cast<int>(chunk % microbatches);
    const RecomputePart part = PartOf(tables.recompute, chunk * parts, parts);
    std::optional<RecomputePart>& of_stage = of_stages[static_cast<size_t>(stage)];
    if (!of_stage) of_stage = part;
    const int rank = tables.Owner(stage, m);
    if (*of_stage != part) {
      findings->Add(Check::kComplete, rank, -1,
                    "stage " + std::to_string(stage) + " recomputes " + std::string(Name(part)) +
                        " of micro-batch " + std::to_string(m) + " and " +
                        std::string(Name(*of_stage)) +
                        " of others; recompute the same part of all cells of a stage");
      continue;
    }
    for (size_t at = 0; at < parts; ++at) {
      if (tables.recompute[chunk * parts + at] != kMissing) continue;
      const Op op = static_cast<Op>(static_cast<size_t>(Op::ATTN_R) + at % kRecomputeCount);
      if (!Includes(part, op)) continue;
      findings->Add(Check::kComplete, rank, -1,
                    "no " +
                        ToString(Component(op, stage, static_cast<int>(at / kRecomputeCount), m)) +
                        "; rank " + std::to_string(rank) +
                        " recomputes parts of this cell and must recompute all of it");
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

/// Components and those of the same layer that they need.
constexpr std::pair<Op, Op> kWithinLayer[] = {
    {Op::DISPATCH_F, Op::ATTN_F}, {Op::MLP_F, Op::DISPATCH_F}, {Op::COMBINE_F, Op::MLP_F},
    {Op::MLP_B, Op::COMBINE_B},   {Op::MLP_W, Op::MLP_B},      {Op::DISPATCH_B, Op::MLP_B},
    {Op::ATTN_B, Op::DISPATCH_B}, {Op::ATTN_W, Op::ATTN_B}};

/// What a component needs, messages included where they are known.
class ChainInputs {
 public:
  ChainInputs(const Tables& tables, const Instruction& i) : tables_(tables), i_(i) {}

  Inputs Find() {
    const int last = tables_.plan.layers - 1;
    if (i_.op == Op::ATTN_F && i_.layer > 0) {
      Need(Op::COMBINE_F, i_.stage, i_.layer - 1);
    } else if (i_.op == Op::ATTN_F && i_.stage > 0) {
      FromNeighbour(Op::RECV_F, Op::COMBINE_F, i_.stage - 1, last);
    } else if (IsRecompute(i_.op)) {
      inputs_.Add(BeforeAgain());
    } else if (i_.op == Op::COMBINE_B && i_.layer < last) {
      Need(Op::ATTN_B, i_.stage, i_.layer + 1);
    } else if (i_.op == Op::COMBINE_B) {
      Need(Op::COMBINE_F);
      if (const int32_t recompute = LastAgain(i_.layer); recompute != kMissing) {
        inputs_.Add(recompute);
      }
      const HostCopies copies = tables_.HostCopiesOf(i_.stage, i_.microbatch);
      if (copies.reload >= 0) inputs_.Add(copies.reload);
      if (i_.stage + 1 < tables_.plan.stages) {
        FromNeighbour(Op::RECV_B, Op::ATTN_B, i_.stage + 1, 0);
      }
    }
    for (const auto& [op, needs] : kWithinLayer) {
      if (op != i_.op) continue;
      Need(needs);
    }
    return inputs_;
  }

 private:
  void Need(Op op) { Need(op, i_.stage, i_.layer); }
  void Need(Op op, int stage, int layer) {
    inputs_.Add(tables_.Part(op, stage, layer, i_.microbatch));
  }

  /// What runs again one behind the other; of a part some of them.
  static constexpr std::array kAgain = {Op::ATTN_R, Op::DISPATCH_R, Op::MLP_R, Op::COMBINE_R};

  /// The last of a layer that runs again; kMissing where nothing does.
  int32_t LastAgain(int layer) const {
    for (size_t k = kAgain.size(); k-- > 0;) {
      if (const int32_t found = RecomputeAt(kAgain[k], layer); found != kMissing) return found;
    }
    return kMissing;
  }

  /// What this component that runs again follows: the one before it or, of the first, the forward.
  int32_t BeforeAgain() const {
    const auto own = std::find(kAgain.begin(), kAgain.end(), i_.op) - kAgain.begin();
    for (auto k = static_cast<size_t>(own); k-- > 0;) {
      const int32_t found = RecomputeAt(kAgain[k], i_.layer);
      if (found != kMissing) return found;
    }
    if (i_.layer > 0) {
      if (const int32_t found = LastAgain(i_.layer - 1); found != kMissing) return found;
    }
    return tables_.Part(Op::COMBINE_F, i_.stage, tables_.plan.layers - 1, i_.microbatch);
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
  // Of chunks only what comes over another lane; their own order has its own check.
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
