#include "runtime/gpu/device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "compiler/plan/error.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/plan/value.h"
#include "runtime/core/value_places.h"
#include "runtime/core/walk.h"

namespace contraflow {

const Plan& CheckGpuPlan(const Plan& plan, const Model& model) {
  const RecomputedCells recomputed(plan);
  for (const RecomputeExtent& extent : recomputed.extents()) {
    if (extent.part == RecomputePart::kFull) continue;
    throw Error("the plan recomputes " + ToString(extent) +
                " alone, and a GPU runs whole layers again; compile it with `recompute` full, "
                "layers=N or stages, or run it with `device` cpu");
  }
  if (plan.level == Level::kBuffer && plan.layers > 0) return plan;
  throw Error(std::string("a GPU runs plans of level buffer") +
              (plan.level == Level::kBuffer
                   ? " with components, this one has whole chunks"
                   : ", this one is of level " + std::string(Name(plan.level))) +
              "; compile it with `level` buffer `model` " + model.name + " `device` cuda");
}

namespace {

/// Bytes of the tokens and targets of all micro-batches.
size_t TokenBytes(const LayerShape& shape, int microbatches) {
  return 2 * static_cast<size_t>(microbatches) * static_cast<size_t>(shape.tokens) *
         sizeof(int32_t);
}
size_t InputBytes(const LayerShape& shape, int microbatches) {
  return TokenBytes(shape, microbatches) + sizeof(gpu::AdamWStepSize);
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

/// A value that the next stage was sent is not made again.
bool Combines(Op op, const GpuViews& v) {
  return op == Op::COMBINE_F || (op == Op::COMBINE_R && v.z != nullptr);
}

}  // namespace

std::vector<gpu::MatmulShape> ProductsOf(const Plan& plan, const Model& model) {
  const Model fitted = FitGpuModel(model, CheckGpuPlan(plan, model));
  return MatmulsOf(LayerShape(fitted, plan.expert_parallel, fitted.experts / plan.expert_parallel));
}

GpuDevice::GpuDevice(const Plan& plan, const Model& model, const Dataset& dataset, uint64_t seed,
                     Device device, Gpu& gpu, gpu::Stream setup, int compute_sms,
                     const MatmulChoices& choices, const AllocateMemory& arenas)
    : model_(FitGpuModel(model, plan)),
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
      products_(shape_, gpu, setup, compute_sms, choices),
      begin_here_(MicrobatchesAt(plan, 0, device.rank)),
      end_here_(MicrobatchesAt(plan, plan.stages - 1, device.rank)),
      host_inputs_{HostInput{gpu.AllocateHost(InputBytes(shape_, microbatches_))},
                   HostInput{gpu.AllocateHost(InputBytes(shape_, microbatches_))}},
      host_outputs_{gpu.AllocateHost(OutputBytes()), gpu.AllocateHost(OutputBytes())},
      input_(gpu.Allocate(InputBytes(shape_, microbatches_))),
      output_(gpu.Allocate(OutputBytes())) {
  PlaceValues(plan, device.rank, arenas);
  for (const int s : StagesOf(plan, device.rank)) {
    copies_[s].stage = std::make_unique<GpuStage>(model_, products_, device.member, s, plan.stages,
                                                  seed, gpu, setup);
  }
}

/// Places of the parts of all values that an instruction touches.
void GpuDevice::PlaceValues(const Plan& plan, int rank, const AllocateMemory& allocate) {
  const ComponentWalk walk(plan, LayersOfStages(model_, plan.stages), model_.name);
  const ValuePlaces places(plan, rank, walk, BytesOfGpuValues(shape_), model_.name, "cuda");
  arena_bytes_ = places.arena_bytes();
  arenas_ = AllocateArenas(arena_bytes_, gpu_, setup_, allocate);
  for (const Instruction& i : plan.program(rank)) {
    if (OperandsOf(i.op) == Operands::kStage) continue;
    const std::vector<ValuePlaces::Use>& uses = places.Of(i);
    for (const ValuePlaces::Use& use : uses) {
      std::byte* const at = arenas_.at[static_cast<size_t>(use.place->arena)] + use.place->offset;
      if (OperandsOf(i.op) == Operands::kMessage) messages_[KeyOf(i)] = at;
      PlaceValue(shape_, use.value, at, &views_[KeyOf(i)]);
    }
  }
  if (Alone()) ShareOnePlace();
}

/// Rows that an exchange would copy are written where they go, or read where they are. ATTN_F comes
/// before the rows have a place, so that DISPATCH_F makes them out of what ATTN_F has kept.
void GpuDevice::ShareOnePlace() {
  for (auto& [key, v] : views_) {
    const auto [op, stage, layer, microbatch] = key;
    if (Repeated(op) == Op::ATTN_F) {
      v.dispatched = nullptr;
    } else if (Repeated(op) == Op::DISPATCH_F) {
      const Op attention = op == Op::DISPATCH_F ? Op::ATTN_F : Op::ATTN_R;
      v.expert_xn = views_.at({attention, stage, layer, microbatch}).expert_xn;
      v.dispatched = v.rows;
    } else if (op == Op::COMBINE_B) {
      v.dcombined = v.drows;
    } else if (op == Op::DISPATCH_B) {
      v.ddispatched = v.dsorted;
    }
  }
}

size_t GpuDevice::OutputBytes() const {
  return static_cast<size_t>(microbatches_) * sizeof(float) +
         static_cast<size_t>(2 + stages_) * sizeof(int32_t);
}

// The other place may still be read.
void GpuDevice::Prepare(int step) {
  HostInput& place = host_inputs_[static_cast<size_t>(step % 2)];
  if (place.step == step) return;
  auto* const all = reinterpret_cast<int32_t*>(place.at);
  const auto put = [&](const std::vector<int32_t>& drawn, int row) {
    CF_ASSERT(drawn.size() == static_cast<size_t>(shape_.tokens));
    CF_ASSERT(std::all_of(drawn.begin(), drawn.end(),
                          [&](int32_t t) { return t >= 0 && t < model_.vocabulary; }));
    std::copy(drawn.begin(), drawn.end(), all + ptrdiff_t{row} * shape_.tokens);
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
  std::memcpy(place.at + TokenBytes(shape_, microbatches_), &size, sizeof(size));
  place.step = step;
}

void GpuDevice::Upload(int step, gpu::Stream stream) {
  Prepare(step);
  const std::byte* const from = host_inputs_[static_cast<size_t>(step % 2)].at;
  gpu_.CopyToDevice(stream, input_, from, InputBytes(shape_, microbatches_));
}

void GpuDevice::BeginStep(gpu::Stream stream) {
  for (auto& [s, copy] : copies_) copy.stage->ZeroGradients(stream);
  gpu_.Zero(stream, output_, OutputBytes());
}

void GpuDevice::Compute(const Instruction& i, gpu::Stream stream) {
  GpuStage& stage = At(i.stage);
  const GpuViews& v = ViewsOf(i);
  const GpuLane at = LaneOf(i, stream);
  if (Repeated(i.op) == Op::ATTN_F) {
    // Drops of a forward that runs again have been counted.
    int32_t* const drops = i.op == Op::ATTN_F ? dropped() : nullptr;
    stage.AttentionForward(i.layer, TokensOf(i.microbatch), drops, v, at);
    const Copy& copy = copies_.at(i.stage);
    if (copy.choices == nullptr || i.op != Op::ATTN_F) return;
    gpu_.CopyToHost(stream, ChoicePlace(copy, i.layer, i.microbatch), v.expert,
                    ChoiceSize() * sizeof(int32_t));
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
  if (i.op == Op::COMBINE_B) At(i.stage).CombineBackward(i.layer, ViewsOf(i), LaneOf(i, stream));
  if (Alone() && Repeated(i.op) == Op::DISPATCH_F) At(i.stage).Dispatch(ViewsOf(i), stream);
}

void GpuDevice::AfterExchange(const Instruction& i, gpu::Stream stream) {
  const GpuViews& v = ViewsOf(i);
  if (Combines(i.op, v)) {
    At(i.stage).CombineForward(i.layer, TargetsOf(i.microbatch), loss_scale_,
                               losses() + i.microbatch, v, LaneOf(i, stream),
                               Alone() ? v.expert_out : nullptr);
  } else if (i.op == Op::DISPATCH_B) {
    At(i.stage).DispatchBackward(v, stream);
  }
}

ExchangePart GpuDevice::Exchange(const Instruction& i) {
  const GpuViews& v = ViewsOf(i);
  const Op op = Repeated(i.op);
  Ends<gpu::Bf16> ends = EndsOf(op, v);
  // Rows that come back are kept as they are combined.
  if (Alone() && (op != Op::COMBINE_F || Combines(i.op, v))) ends.tokens = ends.experts;
  const bool counts = op == Op::DISPATCH_F;
  return {.peer = {v.sent, ends.tokens, v.first, v.received, ends.experts},
          .to_experts = ends.to_experts,
          .first = counts ? v.first : nullptr,
          .received = counts ? v.received : nullptr,
          .overflow = overflow(),
          .local_experts = shape_.local_experts,
          .width = shape_.width,
          .capacity = shape_.capacity,
          .most_rows = shape_.expert_rows,
          .sent_rows = shape_.sent_rows};
}

std::span<std::byte> GpuDevice::Message(const Instruction& i) {
  const auto found = messages_.find(KeyOf(i));
  CF_ASSERT(found != messages_.end());
  return {found->second, shape_.activation() * sizeof(gpu::Bf16)};
}

std::span<float> GpuDevice::Gradients(int stage) { return At(stage).dense_gradients(); }

std::span<float> GpuDevice::ExpertGradients(int stage) { return At(stage).expert_gradients(); }

void GpuDevice::OptimizerStep(int stage, gpu::Stream stream) {
  const bool clips = model_.clip > 0;
  At(stage).SumSquares(clips ? numbers_ : nullptr, not_finite() + stage, stream);
  if (!clips) Update(stage, stream);
}

GpuBackend::UpdateGuard GpuDevice::GuardOfUpdates() const {
  return {model_.clip, 1 + (model_.clip > 0 ? BlocksOfModel(model_) : 0)};
}

void GpuDevice::PutGuard(double* numbers, const gpu::Clip* guard) {
  numbers_ = numbers;
  guard_ = guard;
}

void GpuDevice::NoteFailure(gpu::Stream stream) {
  gpu::NoteFailure(stream, losses(), microbatches_, overflow(), 1 + stages_,
                   numbers_ + GuardOfUpdates().numbers - 1);
}

void GpuDevice::ClippedStep(gpu::Stream stream) {
  for (auto& [s, copy] : copies_) {
    copy.stage->ClipGradients(guard_, stream);
    Update(s, stream);
  }
}

void GpuDevice::Update(int stage, gpu::Stream stream) {
  const std::byte* const size = input_ + TokenBytes(shape_, microbatches_);
  At(stage).OptimizerStep(reinterpret_cast<const gpu::AdamWStepSize*>(size), not_finite() + stage,
                          guard_ == nullptr ? nullptr : &guard_->failed, stream);
}

void GpuDevice::Download(int step, gpu::Stream stream) {
  std::byte* const to = host_outputs_[static_cast<size_t>(step % 2)];
  gpu_.CopyToHost(stream, to, output_, OutputBytes());
}

DeviceStep GpuDevice::Results(int step) {
  const auto* const losses =
      reinterpret_cast<const float*>(host_outputs_[static_cast<size_t>(step % 2)]);
  const auto* const counts = reinterpret_cast<const int32_t*>(losses + microbatches_);
  if (counts[1] != 0) {
    throw Error("more rows came to the experts of a device than its memory is planned for: " +
                std::to_string(shape_.expert_rows) +
                "; this is no fault of the plan, please report it with the model");
  }
  const auto fail = [step](const std::string& what) {
    throw Error("step " + std::to_string(step) + ": " + what +
                " is not finite; lower the model's learning_rate, or resume from a checkpoint");
  };
  DeviceStep result;
  result.dropped = counts[0];
  for (const int m : end_here_) {
    if (!std::isfinite(losses[m])) fail("the loss of micro-batch " + std::to_string(m));
    result.losses.emplace_back(m, losses[m]);
  }
  for (const auto& [s, copy] : copies_) {
    if (counts[2 + s] == 0) continue;
    fail("a gradient of \"" + copy.stage->NotFinite(counts[2 + s]) + "\" in stage " +
         std::to_string(s));
  }
  return result;
}

void GpuDevice::KeepChoices() {
  for (auto& [s, copy] : copies_) {
    const auto places = static_cast<size_t>(copy.stage->layers() * microbatches_);
    copy.choices =
        reinterpret_cast<int32_t*>(gpu_.AllocateHost(places * ChoiceSize() * sizeof(int32_t)));
  }
}

const int32_t* GpuDevice::ChoiceAt(int stage, int layer, int microbatch) const {
  return ChoicePlace(copies_.at(stage), layer, microbatch);
}

Stage& GpuDevice::StageAt(int stage) {
  GpuStage& copy = At(stage);
  std::unique_ptr<Stage>& mirror = copies_.at(stage).mirror;
  if (!mirror) {
    mirror = std::make_unique<Stage>(model_, shape_, member_, stage, stages_, std::nullopt);
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
