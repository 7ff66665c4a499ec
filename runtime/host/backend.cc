#include "runtime/host/backend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <string>

#include "compiler/plan/error.h"
#include "kernels/host/linear.h"

namespace contraflow {

Exchange::Exchange(const LayerShape& shape, Transport& transport)
    : shape_(shape),
      members_(static_cast<size_t>(shape.members)),
      owned_(static_cast<size_t>(shape.local_experts)),
      transport_(transport),
      counts_(static_cast<size_t>(shape.experts)),
      send_(members_),
      receive_(members_) {}

void Exchange::Run(const Instruction& i, const LayerViews<float>& v) {
  const Op op = Repeated(i.op);
  if (op == Op::DISPATCH_F) Count(i, v);
  const Ends<float> ends = EndsOf(op, v);
  Move(i, v, ends.to_experts, ends.tokens, ends.experts);
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

void Exchange::Move(const Instruction& i, const LayerViews<float>& v, bool to_experts,
                    float* tokens, float* experts) {
  const ptrdiff_t width = shape_.width;
  for (size_t local = 0; local < owned_; ++local) {
    float* row = experts + v.first[local] * width;
    for (size_t m = 0; m < members_; ++m) {
      // Tokens of this device for one expert there, and of that member for one expert here.
      const size_t expert = m * owned_ + local;
      const std::span<float> there(tokens + v.sent[expert] * width,
                                   tokens + v.sent[expert + 1] * width);
      const std::span<float> here(row, row + v.received[expert] * width);
      send_[m] = std::as_bytes(to_experts ? there : here);
      receive_[m] = std::as_writable_bytes(to_experts ? here : there);
      row += here.size();
    }
    Swap(i);
  }
}

void ReserveForRanks(size_t ranks) {
  try {
    ReserveProducts(ranks);
  } catch (const std::bad_alloc&) {
    throw Error("out of memory: the matrix products of " + std::to_string(ranks) +
                (ranks == 1 ? " rank need" : " ranks need") +
                " 129 MiB of address space each; raise the limit (ulimit -v), or use fewer ranks");
  }
}

HostBackend::HostBackend(const Plan& plan, const Model& model, const Dataset& dataset,
                         uint64_t seed, Device device, Transport& transport, bool fill)
    : model_(FitModel(model, plan)),
      dataset_(dataset),
      seed_(seed),
      device_number_(device.replica * plan.expert_parallel + device.member),
      stages_(plan.stages),
      shape_(model_, plan.expert_parallel, model_.experts / plan.expert_parallel),
      loss_scale_(LossScale(plan)),
      walk_(plan, LayersOfStages(model_, plan.stages), model_.name),
      bytes_(BytesOfValues<float>(shape_)),
      places_(plan, device.rank, walk_, bytes_, model_.name, "cpu"),
      arenas_(places_, bytes_, fill),
      host_copies_(plan, device.rank, places_, &arenas_),
      exchange_(shape_, transport) {
  losses_.reserve(static_cast<size_t>(plan.microbatches));
  for (const int s : StagesOf(plan, device.rank)) {
    copies_[s] = std::make_unique<Stage>(model_, shape_, device.member, s, plan.stages, seed);
  }
}

void HostBackend::BeginStep(int step) {
  step_ = step;
  dropped_ = 0;
  losses_.clear();
  squares_.clear();
  stepping_.clear();
  host_copies_.BeginStep();
  for (auto& [s, stage] : copies_) stage->ZeroGradients();
}

void HostBackend::Compute(const Instruction& instruction) {
  if (parts_) parts_->Begin();
  walk_.Each(instruction, [&](const Instruction& component) { Run(component); });
}

const MicroBatch& HostBackend::Draw(const Instruction& i) {
  const bool reads = i.stage == 0 || i.stage + 1 == stages_;
  const std::pair wanted(text_ != nullptr ? batch_ : step_, i.microbatch);
  if (reads && drawn_ != wanted) {
    const Dataset& text = text_ != nullptr ? *text_ : dataset_;
    DrawMicroBatch(text, model_, seed_, wanted.first, device_number_, i.microbatch, &micro_);
    drawn_ = wanted;
  }
  return micro_;
}

void HostBackend::Run(const Instruction& i) {
  Stage& stage = StageAt(i.stage);
  const HostArenas::Uses& uses = places_.Of(i);
  EnterValues(uses);
  LayerViews<float> views;
  for (const ValuePlaces::Use& use : uses) {
    PlaceValue<float>(shape_, use.value, arenas_.At(use), &views);
  }
  // A validation runs forwards only; nobody reads the content of its messages.
  if (text_ == nullptr || (IsForwardComponent(i.op) && !IsRecompute(i.op))) Do(i, &stage, views);
  arenas_.Leave(uses);
}

void HostBackend::Do(const Instruction& i, Stage* stage, const LayerViews<float>& v) {
  const int layer = i.layer;
  const bool again = IsRecompute(i.op);
  const Op op = Repeated(i.op);
  const int first = LayersOfStage(model_, i.stage, stages_).first;
  const auto ended = [&](int of_model, Op what) {
    if (parts_ && !again) parts_->End({of_model, what});
  };
  const bool head = stage->HasHead(layer);
  if (op == Op::ATTN_F) {
    if (stage->HasEmbedding(layer)) {
      stage->Embed(Draw(i), v);
      ended(ModelPart::kEmbedding, Op::F);
    }
    const int dropped = stage->AttentionForward(layer, v);
    if (!again) dropped_ += dropped;
  } else if (op == Op::DISPATCH_F) {
    exchange_.Run(i, v);
  } else if (op == Op::MLP_F) {
    stage->ExpertsForward(layer, v);
  } else if (op == Op::COMBINE_F) {
    exchange_.Run(i, v);
    // R does not make the output again, which the next stage has received.
    if (again && v.z == nullptr) return;
    stage->CombineForward(v);
  } else if (op == Op::COMBINE_B) {
    if (head) {
      stage->HeadBackward(Draw(i), loss_scale_, v);
      ended(model_.layers, Op::B);
    }
    stage->CombineBackward(v);
    exchange_.Run(i, v);
  } else if (op == Op::MLP_B) {
    stage->ExpertsBackward(layer, v);
  } else if (op == Op::MLP_W) {
    if (head) {
      stage->HeadWeight(v, stage->dense_gradients().data());
      ended(model_.layers, Op::W);
    }
    stage->ExpertsWeight(layer, v, stage->expert_gradients().data());
  } else if (op == Op::DISPATCH_B) {
    exchange_.Run(i, v);
    stage->DispatchBackward(v);
  } else if (op == Op::ATTN_B) {
    stage->AttentionBackward(layer, loss_scale_, v);
  } else {
    CF_ASSERT(op == Op::ATTN_W);
    stage->AttentionWeight(layer, v, stage->dense_gradients().data());
  }
  ended(first + layer, op);
  if (op == Op::COMBINE_F && head) {
    const float loss = stage->HeadForward(Draw(i), v);
    ended(model_.layers, Op::F);
    if (again) return;
    if (!AllFinite({&loss, 1})) FailNotFinite("the loss of micro-batch", i.microbatch);
    losses_.emplace_back(i.microbatch, loss);
  } else if (op == Op::ATTN_W && stage->HasEmbedding(layer)) {
    stage->EmbeddingWeight(Draw(i), v, stage->dense_gradients().data());
    ended(ModelPart::kEmbedding, Op::W);
  }
}

/// A value that begins may lie where an offloaded one was.
void HostBackend::EnterValues(const HostArenas::Uses& uses) {
  size_t waits = 0;
  for (const ValuePlaces::Use& use : uses) {
    if (use.begins()) waits = std::max(waits, use.place->waits);
  }
  if (waits > 0) host_copies_.Await(Op::OFFLOAD, waits);
  arenas_.Enter(uses);
}

std::span<std::byte> HostBackend::Message(const Instruction& message) {
  const HostArenas::Uses& uses = places_.Of(message);
  CF_ASSERT(uses.size() == 1);
  EnterValues(uses);
  return {arenas_.At(uses[0]), shape_.activation() * sizeof(float)};
}

std::span<float> HostBackend::Gradients(int stage) {
  return text_ != nullptr ? std::span<float>() : StageAt(stage).dense_gradients();
}

std::span<float> HostBackend::ExpertGradients(int stage) {
  return text_ != nullptr ? std::span<float>() : StageAt(stage).expert_gradients();
}

void HostBackend::OptimizerStep(int stage) {
  if (text_ != nullptr) return;
  Stage& copy = StageAt(stage);
  for (const ParameterBlock& block : copy.blocks()) {
    if (AllFinite(copy.gradients().subspan(block.offset, block.size))) continue;
    FailNotFinite("a gradient of \"" + block.name + "\" in stage", stage);
  }
  if (model_.clip == 0) return copy.OptimizerStep(step_);
  copy.AddSquares(&squares_);
  stepping_.push_back(&copy);
}

void HostBackend::ClippedStep(double norm) {
  for (Stage* const stage : stepping_) stage->OptimizerStep(step_, norm);
}

void HostBackend::ReadText(const Dataset* text, int batch) {
  text_ = text;
  batch_ = batch;
  drawn_ = {};
}

void HostBackend::FailNotFinite(const std::string& what, int number) const {
  throw Error("step " + std::to_string(step_) + ": " + what + " " + std::to_string(number) +
              " is not finite; lower the model's learning_rate, or resume from a checkpoint");
}

bool AllFinite(std::span<const float> values) {
  uint32_t largest = 0;  // bits without the sign grow with the magnitude; infinity and NaN last
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
  }
  return std::isfinite(std::bit_cast<float>(largest));
}

Stage& HostBackend::StageAt(int stage) {
  const auto copy = copies_.find(stage);
  if (copy == copies_.end()) {
    throw Error("this rank holds no copy of stage " + std::to_string(stage) + "; verify the plan");
  }
  return *copy->second;
}

}  // namespace contraflow
