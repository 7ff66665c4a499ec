#include "runtime/host/backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "compiler/plan/error.h"

namespace contraflow {

Exchange::Exchange(const LayerShape& shape, Transport& transport)
    : shape_(shape),
      members_(static_cast<size_t>(shape.members)),
      owned_(static_cast<size_t>(shape.local_experts)),
      transport_(transport),
      of_tokens_(members_),
      of_experts_(members_),
      counts_(static_cast<size_t>(shape.experts)),
      send_(members_),
      receive_(members_) {}

void Exchange::Dispatch(const Instruction& i, const LayerViews<float>& v) {
  Count(i, v);
  Move(i, v, Way::kToExperts, v.dispatched, v.rows);
}

void Exchange::Combine(const Instruction& i, const LayerViews<float>& v) {
  Move(i, v, Way::kToTokens, v.combined, v.expert_out);
}

void Exchange::CombineBackward(const Instruction& i, const LayerViews<float>& v) {
  Move(i, v, Way::kToExperts, v.dcombined, v.drows);
}

void Exchange::DispatchBackward(const Instruction& i, const LayerViews<float>& v) {
  Move(i, v, Way::kToTokens, v.ddispatched, v.dsorted);
}

void Exchange::Count(const Instruction& i, const LayerViews<float>& v) {
  if (shape_.capacity > 0) {
    std::fill_n(v.received, members_ * owned_, shape_.capacity);
  } else {
    for (size_t e = 0; e < counts_.size(); ++e) counts_[e] = v.sent[e + 1] - v.sent[e];
    for (size_t m = 0; m < members_; ++m) {
      send_[m] = std::as_bytes(std::span(counts_).subspan(m * owned_, owned_));
      receive_[m] = std::as_writable_bytes(std::span(v.received + m * owned_, owned_));
    }
    Swap(i);
  }
  v.first[0] = 0;
  for (size_t e = 0; e < owned_; ++e) {
    v.first[e + 1] = v.first[e];
    for (size_t m = 0; m < members_; ++m) {
      const int32_t rows = v.received[m * owned_ + e], room = shape_.expert_rows - v.first[e + 1];
      // It is another process's word, and says how much of our memory is written.
      if (rows < 0 || rows > std::min(room, shape_.sent_rows)) {
        throw Error("member " + std::to_string(m) + " of the expert group says that it sends " +
                    std::to_string(rows) + " rows to one expert, for which there is room for " +
                    std::to_string(std::min(room, shape_.sent_rows)) +
                    "; start the same program on all processes");
      }
      v.first[e + 1] += rows;
    }
  }
}

void Exchange::Swap(const Instruction& i) {
  if (shape_.members > 1) return transport_.AllToAll(i, send_, receive_);
  std::copy(send_[0].begin(), send_[0].end(), receive_[0].begin());
}

/// The parts for the expert `local` of every member.
void Exchange::FindParts(const LayerViews<float>& v, size_t local, float* tokens, float* experts) {
  const ptrdiff_t width = shape_.width;
  float* row = experts + v.first[local] * width;
  for (size_t m = 0; m < members_; ++m) {
    const size_t expert = m * owned_ + local;
    of_tokens_[m] = {tokens + v.sent[expert] * width, tokens + v.sent[expert + 1] * width};
    of_experts_[m] = {row, row + v.received[expert] * width};
    row = of_experts_[m].data() + of_experts_[m].size();
  }
}

void Exchange::Move(const Instruction& i, const LayerViews<float>& v, Way way, float* tokens,
                    float* experts) {
  const bool to_experts = way == Way::kToExperts;
  const auto &from = to_experts ? of_tokens_ : of_experts_,
             &to = to_experts ? of_experts_ : of_tokens_;
  for (size_t local = 0; local < owned_; ++local) {
    FindParts(v, local, tokens, experts);
    for (size_t m = 0; m < members_; ++m) {
      send_[m] = std::as_bytes(from[m]);
      receive_[m] = std::as_writable_bytes(to[m]);
    }
    Swap(i);
  }
}

HostBackend::HostBackend(const Plan& plan, const Model& model, const Dataset& dataset,
                         uint64_t seed, Device device, Transport& transport, bool fill)
    : model_(FitModel(model, plan.stages, plan.layers, plan.expert_parallel)),
      dataset_(dataset),
      seed_(seed),
      device_number_(device.replica * plan.expert_parallel + device.member),
      stages_(plan.stages),
      shape_(model_, plan.expert_parallel, model_.experts / plan.expert_parallel),
      loss_scale_(LossScale(plan)),
      walk_(plan, model_),
      values_(BytesOfValues<float>(shape_), fill),
      exchange_(shape_, transport) {
  CountUses(plan.program(device.rank));
  if (plan.level == Level::kBuffer) {
    values_.Place(plan.slots[static_cast<size_t>(device.rank)], model_.name);
  }
  for (const int s : StagesOf(plan, device.rank)) {
    copies_[s] = std::make_unique<Stage>(model_, shape_, device.member, s, plan.stages, seed);
  }
}

void HostBackend::CountUses(const Program& program) {
  const auto count = [&](const Instruction& i) {
    walk_.AccessesOf(i, &accesses_);
    for (const Access& access : accesses_) values_.Expect(access);
  };
  for (const Instruction& i : program) {
    if (IsMessage(i.op)) {
      count(i);
    } else if (OperandsOf(i.op) != Operands::kStage) {
      walk_.Each(i, count);
      if (i.stage + 1 == stages_ && (HasForward(i.op) || i.op == Op::COMBINE_F)) {
        no_losses_.emplace(i.microbatch, 0.0f);
      }
    }
  }
}

void HostBackend::BeginStep(int step) {
  step_ = step;
  dropped_ = 0;
  no_losses_.merge(losses_);
  values_.BeginStep();
  for (auto& [s, stage] : copies_) stage->ZeroGradients();
}

void HostBackend::Compute(const Instruction& instruction) {
  walk_.Each(instruction, [&](const Instruction& component) { Run(component); });
}

LayerViews<float> HostBackend::Touch(const Instruction& i) {
  LayerViews<float> views;
  walk_.AccessesOf(i, &accesses_);
  for (const Access& access : accesses_) {
    std::byte* const bytes = values_.Touch(access);
    if (access.stage == i.stage && access.layer == i.layer) {
      PlaceValue<float>(shape_, access.value, bytes, &views);
    } else {
      // Handed to a neighbouring layer: its input is this one's output, and so with the gradients.
      CF_ASSERT(access.value == Value::input || access.value == Value::doutput);
      const Value here = access.value == Value::input ? Value::output : Value::dinput;
      PlaceValue<float>(shape_, here, bytes, &views);
    }
  }
  return views;
}

void HostBackend::Leave() {
  for (const Access& access : accesses_) values_.Leave(access);
}

const MicroBatch& HostBackend::Draw(const Instruction& i) {
  const bool reads = i.stage == 0 || i.stage + 1 == stages_;
  if (reads && (drawn_step_ != step_ || drawn_microbatch_ != i.microbatch)) {
    DrawMicroBatch(dataset_, model_, seed_, step_, device_number_, i.microbatch, &micro_);
    drawn_step_ = step_;
    drawn_microbatch_ = i.microbatch;
  }
  return micro_;
}

void HostBackend::Run(const Instruction& i) {
  Stage& stage = StageAt(i.stage);
  const int layer = i.layer;
  if (layer >= stage.layers()) {
    throw Error("stage " + std::to_string(i.stage) + " has only " + std::to_string(stage.layers()) +
                " layers; verify the plan");
  }
  const LayerViews<float> v = Touch(i);
  if (i.op == Op::ATTN_F) {
    dropped_ += stage.AttentionForward(layer, Draw(i), v);
  } else if (i.op == Op::ATTN_R) {
    stage.AttentionForward(layer, Draw(i), v);
  } else if (Repeated(i.op) == Op::DISPATCH_F) {
    exchange_.Dispatch(i, v);
  } else if (Repeated(i.op) == Op::MLP_F) {
    stage.ExpertsForward(layer, v);
  } else if (Repeated(i.op) == Op::COMBINE_F) {
    exchange_.Combine(i, v);
    // What the next stage was sent is not made again.
    if (i.op == Op::COMBINE_R && v.z == nullptr) return Leave();
    const float loss = stage.CombineForward(layer, Draw(i), v);
    if (i.op == Op::COMBINE_F && stage.HasHead(layer)) {
      if (!std::isfinite(loss)) FailNotFinite("the loss of micro-batch", i.microbatch);
      auto node = no_losses_.extract(i.microbatch);
      CF_ASSERT(!node.empty());
      node.mapped() = loss;
      losses_.insert(std::move(node));
    }
  } else if (i.op == Op::COMBINE_B) {
    stage.CombineBackward(layer, Draw(i), loss_scale_, v);
    exchange_.CombineBackward(i, v);
  } else if (i.op == Op::MLP_B) {
    stage.ExpertsBackward(layer, v);
  } else if (i.op == Op::MLP_W) {
    stage.ExpertsWeight(layer, v, stage.expert_gradients().data());
    if (stage.HasHead(layer)) stage.HeadWeight(v, stage.dense_gradients().data());
  } else if (i.op == Op::DISPATCH_B) {
    exchange_.DispatchBackward(i, v);
    stage.DispatchBackward(v);
  } else if (i.op == Op::ATTN_B) {
    stage.AttentionBackward(layer, v);
  } else {
    CF_ASSERT(i.op == Op::ATTN_W);
    stage.AttentionWeight(layer, Draw(i), v, stage.dense_gradients().data());
  }
  Leave();
}

std::span<std::byte> HostBackend::Message(const Instruction& message) {
  StageAt(message.stage);
  walk_.AccessesOf(message, &accesses_);
  CF_ASSERT(accesses_.size() == 1);
  return {values_.Touch(accesses_[0]), shape_.activation() * sizeof(float)};
}

std::span<std::byte> HostBackend::Outgoing(const Instruction& send) { return Message(send); }

void HostBackend::Sent(const Instruction& send) {
  walk_.AccessesOf(send, &accesses_);
  Leave();
}

std::span<std::byte> HostBackend::Incoming(const Instruction& receive) {
  const std::span<std::byte> bytes = Message(receive);
  Leave();
  return bytes;
}

std::span<float> HostBackend::Gradients(int stage) { return StageAt(stage).dense_gradients(); }

std::span<float> HostBackend::ExpertGradients(int stage) {
  return StageAt(stage).expert_gradients();
}

void HostBackend::OptimizerStep(int stage) {
  Stage& copy = StageAt(stage);
  for (const std::span<const float> gradients : {copy.dense_gradients(), copy.expert_gradients()}) {
    uint32_t largest = 0;  // bits without the sign grow with the magnitude; infinity and NaN last
    for (const float gradient : gradients) {
      largest = std::max(largest, std::bit_cast<uint32_t>(gradient) & 0x7FFFFFFF);
    }
    if (!std::isfinite(std::bit_cast<float>(largest))) FailNotFinite("a gradient of stage", stage);
  }
  copy.OptimizerStep(step_);
}

void HostBackend::FailNotFinite(const char* what, int number) const {
  throw Error("step " + std::to_string(step_) + ": " + what + " " + std::to_string(number) +
              " is not finite; lower the model's learning_rate, or resume from a checkpoint");
}

void HostBackend::EndStep() { values_.EndStep(); }

Stage& HostBackend::StageAt(int stage) {
  const auto copy = copies_.find(stage);
  if (copy == copies_.end()) {
    throw Error("this rank holds no copy of stage " + std::to_string(stage) + "; verify the plan");
  }
  return *copy->second;
}

}  // namespace contraflow
