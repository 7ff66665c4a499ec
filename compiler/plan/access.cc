#include "compiler/plan/access.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "compiler/plan/plan.h"

namespace contraflow {

Accesses::Accesses(const Plan& plan, std::vector<int> layers)
    : plan_(plan),
      route_of_(RouteOfMicrobatch(plan)),
      recomputed_(plan),
      layers_(std::move(layers)) {
  if (!layers_.empty()) return;
  for (int s = 0; s < plan.stages; ++s) layers_.push_back(plan.LayersOf(s));
}

bool Accesses::SameRank(int stage, int other, int microbatch) const {
  const int route = route_of_[static_cast<size_t>(microbatch)];
  const std::vector<int>& ranks = plan_.routes[static_cast<size_t>(route)].ranks;
  return ranks[static_cast<size_t>(stage)] == ranks[static_cast<size_t>(other)];
}

void Accesses::Of(const Instruction& i, std::vector<Access>* accesses) const {
  accesses->clear();
  const int16_t last = LastLayer(i.stage), whole = std::min(last, int16_t{0});
  const auto touch = [&](Value value, int16_t layer, bool makes) {
    accesses->push_back({value, layer, i.stage, i.microbatch, makes});
  };
  switch (OperandsOf(i.op)) {
    case Operands::kMessage:
      if (i.op == Op::SEND_F) return touch(Value::output, last, false);
      if (i.op == Op::RECV_F) return touch(Value::input, whole, true);
      if (i.op == Op::SEND_B) return touch(Value::dinput, whole, false);
      return touch(Value::doutput, last, true);
    case Operands::kLayer:
      return IsForwardComponent(i.op) ? Forward(i, accesses) : Backward(i, accesses);
    case Operands::kCell:
    case Operands::kPair:
      return IsHostCopy(i.op) ? Kept(i, accesses) : Chunk(i, accesses);
    case Operands::kStage:
      return;  // parameters and gradients are not values of a step
  }
}

bool Accesses::RunsOn(const Instruction& i) const {
  return i.layer + 1 < recomputed_.extent(i.stage).Of(LastLayer(i.stage) + 1);
}

// Outputs of the last layer of a stage, and the loss; or the input of the next layer.
void Accesses::Finish(const Instruction& i, std::vector<Access>* accesses) const {
  using enum Value;
  const auto touch = [&](Value value, int16_t layer, int stage) {
    accesses->push_back({value, layer, stage, i.microbatch, true});
  };
  if (i.layer < LastLayer(i.stage)) {
    if (!IsRecompute(i.op) || RunsOn(i)) touch(input, static_cast<int16_t>(i.layer + 1), i.stage);
  } else if (i.stage + 1 == plan_.stages) {
    touch(output, i.layer, i.stage);
    touch(head, i.layer, i.stage);
  } else if (IsRecompute(i.op)) {
    return;
  } else if (SameRank(i.stage, i.stage + 1, i.microbatch)) {
    touch(input, 0, i.stage + 1);
  } else {
    touch(output, i.layer, i.stage);
  }
}

// The order inside a layer: ATTN_F, DISPATCH_F, MLP_F, COMBINE_F. A part that runs again makes all
// of it again but for the input of the stage, which was kept, as was that of the first layer that
// does not run again, and what the next stage has got.
void Accesses::Forward(const Instruction& i, std::vector<Access>* accesses) const {
  using enum Value;
  const auto touch = [&](bool makes, std::initializer_list<Value> values) {
    for (const Value v : values) accesses->push_back({v, i.layer, i.stage, i.microbatch, makes});
  };
  const bool recompute = IsRecompute(i.op);
  const Op op = Repeated(i.op);
  if (op == Op::ATTN_F) {
    const bool embedding = i.stage == 0 && i.layer == 0;  // makes the input of the first layer
    touch(embedding && !recompute, {input});
    touch(true, {attention, scores, dispatched});
    if (plan_.KindOf(i.stage, i.layer) == LayerKind::kPlain) Finish(i, accesses);
  } else if (op == Op::MLP_F && plan_.KindOf(i.stage, i.layer) == LayerKind::kDense) {
    touch(false, {attention});
    touch(true, {gate, hidden});
    Finish(i, accesses);
  } else if (op == Op::DISPATCH_F) {
    touch(false, {dispatched, scores});
    touch(true, {rows});
  } else if (op == Op::MLP_F) {
    touch(false, {rows});
    touch(true, {gate, hidden, expert_out});
  } else {
    touch(false, {expert_out, rows, scores, attention});
    touch(true, {combined});
    Finish(i, accesses);
  }
}

// The order inside a layer: COMBINE_B, MLP_B, DISPATCH_B, ATTN_B; MLP_W somewhere after MLP_B,
// ATTN_W after ATTN_B.
void Accesses::Backward(const Instruction& i, std::vector<Access>* accesses) const {
  using enum Value;
  const auto touch = [&](bool makes, std::initializer_list<Value> values) {
    for (const Value v : values) accesses->push_back({v, i.layer, i.stage, i.microbatch, makes});
  };
  const bool at_head = i.layer == LastLayer(i.stage) && i.stage + 1 == plan_.stages;
  const LayerKind kind = plan_.KindOf(i.stage, i.layer);
  if (kind != LayerKind::kMoe && i.op == BackwardBegin(kind)) {
    touch(at_head, {doutput});
    if (at_head) touch(false, {output, head});
  }
  if (i.op == Op::COMBINE_B) {
    touch(at_head, {doutput});  // of the last layer made by the head
    if (at_head) touch(false, {output, head});
    touch(false, {combined, scores, rows});
    touch(true, {dcombined, dweight, drows});
  } else if (i.op == Op::MLP_B && kind == LayerKind::kDense) {
    touch(false, {gate});
    touch(true, {dgate, dexpert});
  } else if (i.op == Op::MLP_B) {
    touch(false, {drows, rows, gate});
    touch(true, {dgate, dsorted});
  } else if (i.op == Op::MLP_W) {
    touch(false, {rows, hidden, drows, dgate});
    if (at_head) touch(false, {output, head});
  } else if (i.op == Op::DISPATCH_B) {
    touch(false, {dsorted, rows, scores});
    touch(true, {ddispatched, dexpert});
  } else if (i.op == Op::ATTN_B) {
    if (kind != LayerKind::kPlain) touch(false, {doutput});
    touch(false, {dexpert, dweight, scores, attention, input});
    touch(true, {attention_work, dattention});
    if (i.layer > 0) {
      const auto before = static_cast<int16_t>(i.layer - 1);
      accesses->push_back({doutput, before, i.stage, i.microbatch, true});
    } else if (i.stage > 0 && SameRank(i.stage, i.stage - 1, i.microbatch)) {
      accesses->push_back({doutput, LastLayer(i.stage - 1), i.stage - 1, i.microbatch, true});
    } else {
      touch(true, {dinput});
    }
  } else {
    touch(false, {input, attention, dexpert, dattention});
    if (i.layer == 0 && i.stage == 0) touch(false, {dinput});  // of the embedding
  }
}

// OFFLOAD reads all that the backward needs of what the forward made or took, RELOAD makes it
// again.
void Accesses::Kept(const Instruction& i, std::vector<Access>* accesses) const {
  using enum Value;
  const bool makes = i.op == Op::RELOAD;
  const int16_t last = LastLayer(i.stage);
  const auto touch = [&](Value value, int16_t layer) {
    accesses->push_back({value, layer, i.stage, i.microbatch, makes});
  };
  if (last < 0) {
    touch(activation, -1);
    touch(stash, -1);
    return;
  }
  for (int16_t layer = 0; layer <= last; ++layer) {
    for (const Value value : kActivationOfLayer) touch(value, layer);
  }
  if (i.stage + 1 < plan_.stages) return;
  touch(output, last);
  touch(head, last);
}

void Accesses::Chunk(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, int stage, int m, bool makes) {
    accesses->push_back({value, -1, stage, m, makes});
  };
  if (HasForward(i.op)) {
    const int s = i.stage, m = i.microbatch;
    if (s > 0) touch(Value::input, s, m, false);
    touch(Value::activation, s, m, true);
    touch(Value::stash, s, m, true);
    if (s + 1 < plan_.stages) {
      if (SameRank(s, s + 1, m)) {
        touch(Value::input, s + 1, m, true);
      } else {
        touch(Value::output, s, m, true);
      }
    }
  }
  if (i.op == Op::R) {
    if (i.stage > 0) touch(Value::input, i.stage, i.microbatch, false);
    touch(Value::activation, i.stage, i.microbatch, true);
    touch(Value::stash, i.stage, i.microbatch, true);
  }
  if (!HasBackward(i.op) && !HasWeight(i.op)) return;
  const int s = BackStage(i), m = BackMicrobatch(i);
  touch(Value::stash, s, m, false);
  if (!HasBackward(i.op)) return;
  touch(Value::activation, s, m, false);
  if (s + 1 < plan_.stages) touch(Value::doutput, s, m, false);
  if (s > 0) {
    if (SameRank(s, s - 1, m)) {
      touch(Value::doutput, s - 1, m, true);
    } else {
      touch(Value::dinput, s, m, true);
    }
  }
}

}  // namespace contraflow
