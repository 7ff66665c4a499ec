#include "runtime/gpu/device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/value.h"
#include "kernels/gpu/exchange.h"
#include "runtime/core/walk.h"

namespace contraflow {
namespace {

Model Checked(const Plan& plan, const Model& model) {
  if (plan.level != Level::kBuffer) {
    throw Error("a GPU runs plans of level buffer, this one is of level " +
                std::string(Name(plan.level)) + "; compile it with `level` buffer `model` " +
                model.name + " `device` cuda");
  }
  Model fitted = FitGpuModel(model, plan.stages, plan.layers, plan.expert_parallel);
  if (plan.expert_parallel > gpu::kMaxPeers) {
    throw Error("on GPUs an expert group has at most " + std::to_string(gpu::kMaxPeers) +
                " members, this plan's have " + std::to_string(plan.expert_parallel) +
                "; compile it with a smaller `expert_parallel`");
  }
  return fitted;
}

/// Bytes of the tokens and targets of all micro-batches.
size_t TokenBytes(const LayerShape& shape, int microbatches) {
  return 2 * static_cast<size_t>(microbatches) * static_cast<size_t>(shape.tokens) *
         sizeof(int32_t);
}
size_t InputBytes(const LayerShape& shape, int microbatches) {
  return TokenBytes(shape, microbatches) + sizeof(gpu::AdamWStepSize);
}
/// A loss each, and the counters.
size_t OutputBytes(int microbatches) {
  return static_cast<size_t>(microbatches) * sizeof(float) + 2 * sizeof(int32_t);
}

/// Micro-batches whose stage `stage` is on this rank, ascending.
std::vector<int> MicrobatchesAt(const Plan& plan, int stage, int rank) {
  std::vector<int> here;
  for (const Route& route : plan.routes) {
    if (route.ranks[static_cast<size_t>(stage)] != rank) continue;
    here.insert(here.end(), route.microbatches.begin(), route.microbatches.end());
  }
  std::sort(here.begin(), here.end());
  return here;
}

}  // namespace

GpuDevice::GpuDevice(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                     Device device, Gpu& gpu, gpu::Stream setup, int compute_sms)
    : model_(Checked(plan, model)),
      dataset_(dataset),
      seed_(seed),
      member_(device.member),
      device_number_(device.replica * plan.expert_parallel + device.member),
      stages_(plan.stages),
      microbatches_(plan.microbatches),
      shape_(model_, plan.expert_parallel, model_.experts / plan.expert_parallel),
      loss_scale_(LossScale(plan)),
      gpu_(gpu),
      setup_(setup),
      products_(shape_, gpu, setup, compute_sms),
      begin_here_(MicrobatchesAt(plan, 0, device.rank)),
      end_here_(MicrobatchesAt(plan, plan.stages - 1, device.rank)),
      host_input_(gpu.AllocateHost(InputBytes(shape_, microbatches_))),
      input_(gpu.Allocate(InputBytes(shape_, microbatches_))),
      host_output_(gpu.AllocateHost(OutputBytes(microbatches_))),
      output_(gpu.Allocate(OutputBytes(microbatches_))) {
  PlaceValues(plan, plan.slots[static_cast<size_t>(device.rank)], plan.program(device.rank));
  for (const int s : StagesOf(plan, device.rank)) {
    copies_[s].stage = std::make_unique<GpuStage>(model_, products_, device.member, s, plan.stages,
                                                  seed, gpu, setup);
  }
}

/// Where every value is, from the slots; then what every instruction touches of them.
void GpuDevice::PlaceValues(const Plan& plan, const std::vector<Slot>& slots,
                            const Program& program) {
  using ValueKey = std::tuple<int, int, int, Value>;  // stage, layer, micro-batch
  const ValueBytes bytes = BytesOfGpuValues(shape_);
  const auto require = [&](Value value, int64_t has) {
    const int64_t needed = bytes[static_cast<size_t>(value)];
    if (has == needed) return;
    throw Error("this plan was compiled for another model or device: value " +
                std::string(Name(value)) + " has " + std::to_string(has) + " bytes, model \"" +
                model_.name + "\" needs " + std::to_string(needed) +
                " on a GPU; compile it with `model` " + model_.name +
                " `device` cuda, and with the `capacity` it is to run with");
  };
  arena_bytes_ = ArenaBytes(slots);
  std::array<std::byte*, kArenaCount> arenas{};
  for (size_t a = 0; a < kArenaCount; ++a) {
    if (arena_bytes_[a] == 0) continue;
    const auto size = static_cast<size_t>(arena_bytes_[a]);
    arenas[a] = gpu_.Allocate(size);
    PoisonOnDevice(gpu_, setup_, arenas[a], size);
  }
  /// Where a value lies: every time that it is made, in that order.
  struct Found {
    std::vector<std::byte*> places;
    size_t made = 0;
  };
  std::map<ValueKey, Found> values;
  for (const Slot& slot : slots) {
    require(slot.value, slot.bytes);
    values[{slot.stage, slot.layer, slot.microbatch, slot.value}].places.push_back(
        arenas[static_cast<size_t>(slot.arena)] + slot.offset);
  }
  const auto find = [&](const Access& access) {
    const auto found = values.find({access.stage, access.layer, access.microbatch, access.value});
    if (found == values.end()) {
      require(access.value, 0);
      return static_cast<std::byte*>(nullptr);
    }
    auto& [places, made] = found->second;
    if (access.makes || made == 0) ++made;
    CF_ASSERT(made <= places.size());
    return places[made - 1];
  };
  const ComponentWalk walk(plan, model_);
  std::vector<Access> accesses;
  for (const Instruction& i : program) {
    if (OperandsOf(i.op) == Operands::kStage) continue;
    walk.AccessesOf(i, &accesses);
    if (OperandsOf(i.op) == Operands::kMessage) {
      CF_ASSERT(accesses.size() == 1);
      messages_[KeyOf(i)] = find(accesses[0]);
      continue;
    }
    CF_ASSERT(OperandsOf(i.op) == Operands::kLayer);
    GpuViews& views = views_[KeyOf(i)];
    for (const Access& access : accesses) {
      Value value = access.value;
      if (access.stage != i.stage || access.layer != i.layer) {
        // Handed to a neighbouring layer: its input is this one's output, and so with gradients.
        CF_ASSERT(value == Value::input || value == Value::doutput);
        value = value == Value::input ? Value::output : Value::dinput;
      }
      PlaceValue(shape_, value, find(access), &views);
    }
  }
  for (const Slot& slot : slots) {
    const Found& found = values[{slot.stage, slot.layer, slot.microbatch, slot.value}];
    if (found.made == found.places.size()) continue;
    throw Error("the plan has a slot, \"" + ToString(slot) +
                "\", which no instruction of the rank touches; verify the plan");
  }
}

void GpuDevice::Upload(int step, gpu::Stream stream) {
  auto* const all = reinterpret_cast<int32_t*>(host_input_);
  const auto put = [&](const std::vector<int32_t>& drawn, int place) {
    CF_ASSERT(drawn.size() == static_cast<size_t>(shape_.tokens));
    CF_ASSERT(std::all_of(drawn.begin(), drawn.end(),
                          [&](int32_t t) { return t >= 0 && t < model_.vocabulary; }));
    std::copy(drawn.begin(), drawn.end(), all + ptrdiff_t{place} * shape_.tokens);
  };
  for (int m = 0; m < microbatches_; ++m) {
    const bool begins = std::binary_search(begin_here_.begin(), begin_here_.end(), m);
    const bool ends = std::binary_search(end_here_.begin(), end_here_.end(), m);
    if (!begins && !ends) continue;
    DrawMicroBatch(dataset_, model_, seed_, step, device_number_, m, &micro_);
    put(micro_.tokens, m);
    put(micro_.targets, microbatches_ + m);
  }
  const gpu::AdamWStepSize size = StepSizeOf(model_, step);
  std::memcpy(host_input_ + TokenBytes(shape_, microbatches_), &size, sizeof(size));
  gpu_.CopyToDevice(stream, input_, host_input_, InputBytes(shape_, microbatches_));
}

void GpuDevice::BeginStep(gpu::Stream stream) {
  for (auto& [s, copy] : copies_) copy.stage->ZeroGradients(stream);
  gpu_.Zero(stream, output_, OutputBytes(microbatches_));
}

void GpuDevice::Compute(const Instruction& i, gpu::Stream stream) {
  GpuStage& stage = At(i.stage);
  const GpuViews& v = ViewsOf(i);
  const GpuLane at = LaneOf(i, stream);
  if (Repeated(i.op) == Op::ATTN_F) {
    // What is dropped again has been counted.
    int32_t* const drops = i.op == Op::ATTN_F ? dropped() : nullptr;
    stage.AttentionForward(i.layer, TokensOf(i.microbatch), drops, v, at);
  } else if (Repeated(i.op) == Op::MLP_F) {
    stage.ExpertsForward(i.layer, v, stream);
  } else if (i.op == Op::MLP_B) {
    stage.ExpertsBackward(i.layer, v, stream);
  } else if (i.op == Op::MLP_W) {
    stage.ExpertsWeight(i.layer, v, stage.expert_gradients().data(), stream);
    if (stage.HasHead(i.layer)) stage.HeadWeight(v, stage.dense_gradients().data(), at);
  } else if (i.op == Op::ATTN_B) {
    stage.AttentionBackward(i.layer, v, at);
  } else {
    CF_ASSERT(i.op == Op::ATTN_W);
    stage.AttentionWeight(i.layer, TokensOf(i.microbatch), v, stage.dense_gradients().data(), at);
  }
}

void GpuDevice::BeforeExchange(const Instruction& i, gpu::Stream stream) {
  if (i.op != Op::COMBINE_B) return;
  At(i.stage).CombineBackward(i.layer, ViewsOf(i), LaneOf(i, stream));
}

void GpuDevice::AfterExchange(const Instruction& i, gpu::Stream stream) {
  // What the next stage was sent is not made again.
  if (i.op == Op::COMBINE_F || (i.op == Op::COMBINE_R && ViewsOf(i).z != nullptr)) {
    At(i.stage).CombineForward(i.layer, TargetsOf(i.microbatch), loss_scale_,
                               losses() + i.microbatch, ViewsOf(i), LaneOf(i, stream));
  } else if (i.op == Op::DISPATCH_B) {
    At(i.stage).DispatchBackward(ViewsOf(i), stream);
  }
}

ExchangePart GpuDevice::Exchange(const Instruction& i) {
  const GpuViews& v = ViewsOf(i);
  const Op op = Repeated(i.op);
  ExchangePart part{.peer = {v.sent, nullptr, v.first, v.received, nullptr},
                    .to_experts = op == Op::DISPATCH_F || op == Op::COMBINE_B,
                    .overflow = overflow(),
                    .local_experts = shape_.local_experts,
                    .width = shape_.width,
                    .capacity = shape_.capacity,
                    .most_rows = shape_.expert_rows,
                    .sent_rows = shape_.sent_rows};
  if (op == Op::DISPATCH_F) {
    part.peer.tokens = v.dispatched;
    part.peer.experts = v.rows;
    part.first = v.first;
    part.received = v.received;
  } else if (op == Op::COMBINE_F) {
    part.peer.tokens = v.combined;
    part.peer.experts = v.expert_out;
  } else if (op == Op::COMBINE_B) {
    part.peer.tokens = v.dcombined;
    part.peer.experts = v.drows;
  } else {
    CF_ASSERT(op == Op::DISPATCH_B);
    part.peer.tokens = v.ddispatched;
    part.peer.experts = v.dsorted;
  }
  return part;
}

std::span<std::byte> GpuDevice::Message(const Instruction& i) {
  const auto found = messages_.find(KeyOf(i));
  CF_ASSERT(found != messages_.end());
  return {found->second, shape_.activation() * sizeof(gpu::Bf16)};
}

std::span<float> GpuDevice::Gradients(int stage) { return At(stage).dense_gradients(); }

std::span<float> GpuDevice::ExpertGradients(int stage) { return At(stage).expert_gradients(); }

void GpuDevice::OptimizerStep(int stage, gpu::Stream stream) {
  const std::byte* const size = input_ + TokenBytes(shape_, microbatches_);
  At(stage).OptimizerStep(reinterpret_cast<const gpu::AdamWStepSize*>(size), stream);
}

void GpuDevice::Download(gpu::Stream stream) {
  gpu_.CopyToHost(stream, host_output_, output_, OutputBytes(microbatches_));
}

DeviceStep GpuDevice::Results() {
  const auto* const losses = reinterpret_cast<const float*>(host_output_);
  const auto* const counts = reinterpret_cast<const int32_t*>(losses + microbatches_);
  if (counts[1] != 0) {
    throw Error("more rows came to the experts of a device than its memory is planned for: " +
                std::to_string(shape_.expert_rows) +
                "; this is no fault of the plan, please report it with the model");
  }
  DeviceStep result;
  result.dropped = counts[0];
  for (const int m : end_here_) {
    if (!std::isfinite(losses[m])) {
      throw Error("the loss of micro-batch " + std::to_string(m) +
                  " is not finite; lower the model's learning_rate, or resume from a checkpoint");
    }
    result.losses.emplace_back(m, losses[m]);
  }
  return result;
}

Stage& GpuDevice::StageAt(int stage) {
  GpuStage& copy = At(stage);
  std::unique_ptr<Stage>& mirror = copies_.at(stage).mirror;
  if (!mirror) {
    mirror = std::make_unique<Stage>(model_, shape_, member_, stage, stages_, seed_);
  }
  copy.Get(mirror.get(), setup_);
  return *mirror;
}

void GpuDevice::Put(int stage) {
  GpuStage& copy = At(stage);
  const std::unique_ptr<Stage>& mirror = copies_.at(stage).mirror;
  if (mirror) copy.Put(*mirror, setup_);
}

GpuStage& GpuDevice::At(int stage) {
  const auto copy = copies_.find(stage);
  if (copy == copies_.end()) {
    throw Error("this rank holds no copy of stage " + std::to_string(stage) + "; verify the plan");
  }
  return *copy->second.stage;
}

const GpuViews& GpuDevice::ViewsOf(const Instruction& i) const {
  const auto found = views_.find(KeyOf(i));
  CF_ASSERT(found != views_.end());
  return found->second;
}

GpuLane GpuDevice::LaneOf(const Instruction& i, gpu::Stream stream) const {
  CF_ASSERT(i.lane == Lane::kCompute || i.lane == Lane::kAllToAll);
  return {stream, products_.work(i.lane == Lane::kCompute ? 0 : 1)};
}

}  // namespace contraflow
