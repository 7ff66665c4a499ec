#include "compiler/plan/access.h"

#include <algorithm>

#include "compiler/plan/plan.h"

namespace contraflow {

Accesses::Accesses(const Plan& plan)
    : plan_(plan), route_of_(RouteOfMicrobatch(plan)), last_layer_(std::max(plan.layers, 1) - 1) {}

bool Accesses::SameRank(int stage, int other, int microbatch) const {
  const int route = route_of_[static_cast<size_t>(microbatch)];
  const std::vector<int>& ranks = plan_.routes[static_cast<size_t>(route)].ranks;
  return ranks[static_cast<size_t>(stage)] == ranks[static_cast<size_t>(other)];
}

void Accesses::Of(const Instruction& i, std::vector<Access>* accesses) const {
  accesses->clear();
  const auto whole = static_cast<int16_t>(plan_.layers > 0 ? 0 : -1);
  const auto last = static_cast<int16_t>(plan_.layers > 0 ? last_layer_ : -1);
  switch (i.op) {
    case Op::SEND_F:
      return accesses->push_back({Value::output, last, i.stage, i.microbatch, false});
    case Op::RECV_F:
      return accesses->push_back({Value::input, whole, i.stage, i.microbatch, true});
    case Op::SEND_B:
      return accesses->push_back({Value::dinput, whole, i.stage, i.microbatch, false});
    case Op::RECV_B:
      return accesses->push_back({Value::doutput, last, i.stage, i.microbatch, true});
    case Op::ATTN_F:
    case Op::DISPATCH_F:
    case Op::MLP_F:
    case Op::COMBINE_F:
    case Op::ATTN_R:
    case Op::DISPATCH_R:
    case Op::MLP_R:
    case Op::COMBINE_R:
      return Forward(i, accesses);
    case Op::COMBINE_B:
    case Op::MLP_B:
    case Op::MLP_W:
    case Op::DISPATCH_B:
    case Op::ATTN_B:
    case Op::ATTN_W:
      return Backward(i, accesses);
    case Op::F:
    case Op::B:
    case Op::W:
    case Op::BW:
    case Op::FB:
    case Op::R:
      return Chunk(i, accesses);
    case Op::REDUCE:
    case Op::STEP:
      return;  // parameters and gradients are not values of a step
  }
}

// The order inside a layer: ATTN_F, DISPATCH_F, MLP_F, COMBINE_F. What runs again makes all of it
// again but for the input of the stage, which was kept, and what the next stage has got.
void Accesses::Forward(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, bool makes) {
    accesses->push_back({value, i.layer, i.stage, i.microbatch, makes});
  };
  const bool recompute = IsRecompute(i.op);
  const Op op = Repeated(i.op);
  if (op == Op::ATTN_F) {
    const bool embedding = i.stage == 0 && i.layer == 0;  // makes the input of the first layer
    touch(Value::input, embedding && !recompute);
    touch(Value::attention, true);
    touch(Value::scores, true);
    touch(Value::dispatched, true);
  } else if (op == Op::DISPATCH_F) {
    touch(Value::dispatched, false);
    touch(Value::scores, false);
    touch(Value::rows, true);
  } else if (op == Op::MLP_F) {
    touch(Value::rows, false);
    touch(Value::gate, true);
    touch(Value::hidden, true);
    touch(Value::expert_out, true);
  } else {
    touch(Value::expert_out, false);
    touch(Value::rows, false);
    touch(Value::scores, false);
    touch(Value::attention, false);
    touch(Value::combined, true);
    if (i.layer < last_layer_) {
      const auto next = static_cast<int16_t>(i.layer + 1);
      accesses->push_back({Value::input, next, i.stage, i.microbatch, true});
    } else if (i.stage + 1 == plan_.stages) {
      touch(Value::output, true);
      touch(Value::head, true);
    } else if (recompute) {
      return;
    } else if (SameRank(i.stage, i.stage + 1, i.microbatch)) {
      accesses->push_back({Value::input, 0, i.stage + 1, i.microbatch, true});
    } else {
      touch(Value::output, true);
    }
  }
}

// The order inside a layer: COMBINE_B, MLP_B, DISPATCH_B, ATTN_B; MLP_W somewhere behind MLP_B,
// ATTN_W behind ATTN_B.
void Accesses::Backward(const Instruction& i, std::vector<Access>* accesses) const {
  const auto touch = [&](Value value, bool makes) {
    accesses->push_back({value, i.layer, i.stage, i.microbatch, makes});
  };
  const bool head = i.layer == last_layer_ && i.stage + 1 == plan_.stages;
  if (i.op == Op::COMBINE_B) {
    touch(Value::doutput, head);  // of the last layer made by the head
    if (head) {
      touch(Value::output, false);
      touch(Value::head, false);
    }
    touch(Value::combined, false);
    touch(Value::scores, false);
    touch(Value::rows, false);
    touch(Value::dcombined, true);
    touch(Value::dweight, true);
    touch(Value::drows, true);
  } else if (i.op == Op::MLP_B) {
    touch(Value::drows, false);
    touch(Value::rows, false);
    touch(Value::gate, false);
    touch(Value::dgate, true);
    touch(Value::dsorted, true);
  } else if (i.op == Op::MLP_W) {
    touch(Value::rows, false);
    touch(Value::hidden, false);
    touch(Value::drows, false);
    touch(Value::dgate, false);
    if (head) {
      touch(Value::output, false);
      touch(Value::head, false);
    }
  } else if (i.op == Op::DISPATCH_B) {
    touch(Value::dsorted, false);
    touch(Value::rows, false);
    touch(Value::scores, false);
    touch(Value::ddispatched, true);
    touch(Value::dexpert, true);
  } else if (i.op == Op::ATTN_B) {
    touch(Value::doutput, false);
    touch(Value::dexpert, false);
    touch(Value::dweight, false);
    touch(Value::scores, false);
    touch(Value::attention, false);
    touch(Value::input, false);
    touch(Value::attention_work, true);
    touch(Value::dattention, true);
    if (i.layer > 0) {
      const auto before = static_cast<int16_t>(i.layer - 1);
      accesses->push_back({Value::doutput, before, i.stage, i.microbatch, true});
    } else if (i.stage > 0 && SameRank(i.stage, i.stage - 1, i.microbatch)) {
      const auto last = static_cast<int16_t>(last_layer_);
      accesses->push_back({Value::doutput, last, i.stage - 1, i.microbatch, true});
    } else {
      touch(Value::dinput, true);
    }
  } else {
    touch(Value::input, false);
    touch(Value::attention, false);
    touch(Value::dexpert, false);
    touch(Value::dattention, false);
    if (i.layer == 0 && i.stage == 0) touch(Value::dinput, false);  // of the embedding
  }
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
