#include "runtime/gpu/serial_run.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/gpu/exchange.h"
#include "kernels/gpu/stream.h"
#include "runtime/core/serial_order.h"
#include "runtime/core/step.h"
#include "runtime/exec/gpu.h"
#include "runtime/gpu/products.h"
#include "runtime/gpu/stage.h"
#include "runtime/model/gpu_views.h"

namespace contraflow {
namespace {

/// The values of one layer of the model for one micro-batch of all members of an expert group: as
/// WholeModel, on a GPU.
struct WholeLayer {
  int stage, layer;
  GpuViews experts;               ///< what the experts do for all members at once
  std::vector<GpuViews> members;  ///< what the members do alone

  const GpuViews& MemberAt(int member) const { return members[static_cast<size_t>(member)]; }
};

constexpr Value kOfMember[] = {
    Value::input,    Value::output,     Value::attention, Value::scores,        Value::dispatched,
    Value::combined, Value::doutput,    Value::dcombined, Value::dweight,       Value::ddispatched,
    Value::dexpert,  Value::dattention, Value::dinput,    Value::attention_work};
constexpr Value kOfExperts[] = {Value::rows,  Value::gate,  Value::hidden, Value::expert_out,
                                Value::drows, Value::dgate, Value::dsorted};

/// Places the values from `at` on, and returns their bytes; with a null `at` it only counts.
size_t Place(const LayerShape& shape, std::span<const int> layers, std::byte* at,
             std::vector<WholeLayer>* all) {
  int64_t bytes = 0;
  const auto place = [&](Value value, GpuViews* views) {
    bytes += PlaceValue(shape, value, at == nullptr ? nullptr : at + bytes, views);
  };
  for (size_t s = 0; s < layers.size(); ++s) {
    for (int layer = 0; layer < layers[s]; ++layer) {
      WholeLayer& whole = all->emplace_back(WholeLayer{static_cast<int>(s), layer, {}, {}});
      for (const Value value : kOfExperts) place(value, &whole.experts);
      for (int e = 0; e < shape.members; ++e) {
        GpuViews& views = whole.members.emplace_back();
        for (const Value value : kOfMember) place(value, &views);
        if (s + 1 == layers.size() && layer + 1 == layers[s]) place(Value::head, &views);
      }
    }
  }
  return static_cast<size_t>(bytes);
}

/// All layers of a model whose stages have so many each, in one allocation without anything in it;
/// every value has memory of its own, but what a layer gives is what the next one gets. The shape
/// is of an expert group where one device has all experts.
std::vector<WholeLayer> PlaceWholeLayers(const LayerShape& shape, std::span<const int> layers,
                                         Gpu& gpu, gpu::Stream stream) {
  std::vector<WholeLayer> counted, placed;
  const size_t size = Place(shape, layers, nullptr, &counted);
  std::byte* const memory = gpu.Allocate(size);
  PoisonOnDevice(gpu, stream, memory, size);
  Place(shape, layers, memory, &placed);
  for (size_t l = 0; l + 1 < placed.size(); ++l) {
    for (size_t e = 0; e < placed[l].members.size(); ++e) {
      placed[l].members[e].z = placed[l + 1].members[e].x;
      placed[l + 1].members[e].dx = placed[l].members[e].dz;
    }
  }
  return placed;
}

}  // namespace

struct GpuSerialRun::Impl {
  Impl(const Plan& the_plan, const Model& the_model, const Dataset& the_dataset, uint64_t the_seed,
       Gpu& the_gpu, gpu::Stream the_stream, int compute_sms, const MatmulChoices& choices);

  void PlaceSums();
  void Upload(int step);
  void TrainOn(int replica, const SerialOrder::Pass& pass);
  void Forward(const WholeLayer& at, int replica, int microbatch, bool again);
  void BackwardInput(const WholeLayer& at);
  void BackwardWeight(const WholeLayer& at, int replica, int microbatch);
  void ToExperts(const WholeLayer& at, gpu::Bf16* GpuViews::*tokens, gpu::Bf16* GpuViews::*experts,
                 bool count);
  void ToTokens(const WholeLayer& at, int member, gpu::Bf16* GpuViews::*tokens,
                gpu::Bf16* GpuViews::*experts);
  gpu::ExchangePeers PeersOf(const WholeLayer& at, gpu::Bf16* GpuViews::*tokens,
                             gpu::Bf16* GpuViews::*experts) const;
  void AddUp(const std::vector<std::span<float>>& copies);
  void Update();

  GpuStage& At(int stage) { return *stages[static_cast<size_t>(stage)]; }
  const int32_t* TokensOf(size_t place) const {
    return reinterpret_cast<const int32_t*>(input) + place * static_cast<size_t>(shape.tokens);
  }
  const int32_t* TargetsOf(size_t place) const { return TokensOf(micros + place); }
  size_t token_bytes() const {
    return 2 * micros * static_cast<size_t>(shape.tokens) * sizeof(int32_t);
  }
  size_t choice_size() const {
    return static_cast<size_t>(shape.tokens) * static_cast<size_t>(shape.top_k);
  }
  /// Of the layer of that number in the model.
  int32_t* ChoiceAt(size_t layer, size_t place) const {
    return choices + (layer * micros + place) * choice_size();
  }
  float* losses() const { return reinterpret_cast<float*>(output); }
  int32_t* counts() const { return reinterpret_cast<int32_t*>(losses() + micros); }
  size_t output_bytes() const { return micros * sizeof(float) + 3 * sizeof(int32_t); }

  const Plan& plan;
  const Model model;
  const Dataset& dataset;
  const uint64_t seed;
  const int members;
  const size_t micros;  // over replicas and members
  const LayerShape shape;
  Gpu& gpu;
  const gpu::Stream stream;
  const GpuProducts products;
  const GpuLane lane;
  const SerialOrder order;
  std::vector<std::unique_ptr<GpuStage>> stages;
  std::vector<std::unique_ptr<Stage>> mirrors;  // once they were asked for
  std::vector<WholeLayer> layers;               // of all stages
  // Sums over micro-batches, by stage (SerialOrder). The first of each is the gradient of the
  // stage, the others lie behind each other in `sums`.
  std::vector<std::vector<std::span<float>>> dense, experts;
  float* sums = nullptr;
  size_t sums_size = 0;
  // As in GpuDevice, of all micro-batches.
  std::byte *host_input = nullptr, *input = nullptr, *host_output = nullptr, *output = nullptr;
  // As in GpuIssuer; null without a limit to the norm of the gradients.
  double* squares = nullptr;
  gpu::Clip *clip = nullptr, *host_clip = nullptr;
  // The experts of every layer and micro-batch, [T x k], on the host.
  int32_t* choices = nullptr;
};

GpuSerialRun::Impl::Impl(const Plan& the_plan, const Model& the_model, const Dataset& the_dataset,
                         uint64_t the_seed, Gpu& the_gpu, gpu::Stream the_stream, int compute_sms,
                         const MatmulChoices& matmuls)
    : plan(the_plan),
      model(FitGpuModel(the_model, plan)),
      dataset(the_dataset),
      seed(the_seed),
      members(plan.expert_parallel),
      micros(MicrobatchesOfStep(plan)),
      shape(model, members, model.experts),
      gpu(the_gpu),
      stream(the_stream),
      products(shape, gpu, stream, compute_sms, matmuls),
      lane{stream, products.work(0)},
      order(plan),
      mirrors(static_cast<size_t>(plan.stages)) {
  for (int s = 0; s < plan.stages; ++s) {
    stages.push_back(
        std::make_unique<GpuStage>(model, products, 0, s, plan.stages, seed, gpu, stream));
  }
  std::vector<int> layers_of;
  for (const auto& stage : stages) layers_of.push_back(stage->layers());
  layers = PlaceWholeLayers(shape, layers_of, gpu, stream);
  PlaceSums();
  const size_t input_bytes = token_bytes() + sizeof(gpu::AdamWStepSize);
  host_input = gpu.AllocateHost(input_bytes);
  input = gpu.Allocate(input_bytes);
  host_output = gpu.AllocateHost(output_bytes());
  output = gpu.Allocate(output_bytes());
  choices = reinterpret_cast<int32_t*>(
      gpu.AllocateHost(layers.size() * micros * choice_size() * sizeof(int32_t)));
  if (model.clip == 0) return;
  const auto blocks = static_cast<size_t>(BlocksOfModel(model));
  squares = reinterpret_cast<double*>(gpu.Allocate(blocks * sizeof(double)));
  clip = reinterpret_cast<gpu::Clip*>(gpu.Allocate(sizeof(gpu::Clip)));
  gpu.Zero(stream, clip, sizeof(gpu::Clip));
  host_clip = reinterpret_cast<gpu::Clip*>(gpu.AllocateHost(sizeof(gpu::Clip)));
}

void GpuSerialRun::Impl::PlaceSums() {
  for (int s = 0; s < plan.stages; ++s) {
    const size_t copies = order.Sums(s, plan.data_parallel),
                 dense_copies = order.Sums(s, plan.data_parallel * plan.expert_parallel);
    if (dense_copies > static_cast<size_t>(gpu::kMaxPeers)) {
      throw Error("training without a pipeline on one GPU takes at most " +
                  std::to_string(gpu::kMaxPeers) + " copies of a stage, this plan has " +
                  std::to_string(dense_copies) + " of stage " + std::to_string(s) +
                  "; leave out --check, or compile the plan with fewer replicas or expert members");
    }
    sums_size += (dense_copies - 1) * At(s).dense_gradients().size() +
                 (copies - 1) * At(s).expert_gradients().size();
  }
  if (sums_size > 0) sums = reinterpret_cast<float*>(gpu.Allocate(sums_size * sizeof(float)));
  float* at = sums;
  const auto add = [&](std::span<float> first, size_t copies) {
    std::vector<std::span<float>> parts = {first};
    for (; parts.size() < copies; at += first.size()) parts.emplace_back(at, first.size());
    return parts;
  };
  for (int s = 0; s < plan.stages; ++s) {
    dense.push_back(
        add(At(s).dense_gradients(), order.Sums(s, plan.data_parallel * plan.expert_parallel)));
    experts.push_back(add(At(s).expert_gradients(), order.Sums(s, plan.data_parallel)));
  }
}

void GpuSerialRun::Impl::Upload(int step) {
  auto* const all = reinterpret_cast<int32_t*>(host_input);
  const auto tokens = static_cast<size_t>(shape.tokens);
  MicroBatch micro;
  for (int d = 0; d < plan.data_parallel; ++d) {
    for (int e = 0; e < members; ++e) {
      for (int m = 0; m < plan.microbatches; ++m) {
        DrawMicroBatch(dataset, model, seed, step, d * members + e, m, &micro);
        CF_ASSERT(micro.tokens.size() == tokens && micro.targets.size() == tokens);
        const size_t place = MicrobatchPlace(plan, d, e, m);
        std::copy(micro.tokens.begin(), micro.tokens.end(), all + place * tokens);
        std::copy(micro.targets.begin(), micro.targets.end(), all + (micros + place) * tokens);
      }
    }
  }
  const gpu::AdamWStepSize size = StepSizeOf(model, step);
  std::memcpy(host_input + token_bytes(), &size, sizeof(size));
  gpu.CopyToDevice(stream, input, host_input, token_bytes() + sizeof(size));
}

gpu::ExchangePeers GpuSerialRun::Impl::PeersOf(const WholeLayer& at, gpu::Bf16* GpuViews::*tokens,
                                               gpu::Bf16* GpuViews::*of_experts) const {
  // The first member has all experts, the others have tokens only.
  gpu::ExchangePeers peers{};
  peers.members = members;
  peers.local_experts = shape.experts;
  peers.owners = 1;
  for (size_t e = 0; e < at.members.size(); ++e) {
    peers.peer[e] = {at.members[e].sent, at.members[e].*tokens, at.experts.first,
                     at.experts.received, at.experts.*of_experts};
  }
  return peers;
}

void GpuSerialRun::Impl::ToExperts(const WholeLayer& at, gpu::Bf16* GpuViews::*tokens,
                                   gpu::Bf16* GpuViews::*of_experts, bool count) {
  gpu::PullToExperts(stream, PeersOf(at, tokens, of_experts), 0, shape.width, shape.capacity,
                     shape.expert_rows, count ? at.experts.first : nullptr,
                     count ? at.experts.received : nullptr, counts() + 1, stream.sms);
}

void GpuSerialRun::Impl::ToTokens(const WholeLayer& at, int member, gpu::Bf16* GpuViews::*tokens,
                                  gpu::Bf16* GpuViews::*of_experts) {
  gpu::PullToTokens(stream, PeersOf(at, tokens, of_experts), member, shape.width, shape.sent_rows,
                    stream.sms);
}

void GpuSerialRun::Impl::Forward(const WholeLayer& at, int replica, int microbatch, bool again) {
  const GpuStage& stage = At(at.stage);
  for (int e = 0; e < members; ++e) {
    const size_t place = MicrobatchPlace(plan, replica, e, microbatch);
    const GpuViews& v = at.MemberAt(e);
    stage.AttentionForward(at.layer, TokensOf(place), again ? nullptr : counts(), v, lane);
    gpu.CopyToHost(stream, ChoiceAt(static_cast<size_t>(&at - layers.data()), place), v.expert,
                   choice_size() * sizeof(int32_t));
  }
  ToExperts(at, &GpuViews::dispatched, &GpuViews::rows, true);
  stage.ExpertsForward(at.layer, at.experts, stream);
  for (int e = 0; e < members; ++e) {
    const size_t place = MicrobatchPlace(plan, replica, e, microbatch);
    ToTokens(at, e, &GpuViews::combined, &GpuViews::expert_out);
    stage.CombineForward(at.layer, TargetsOf(place), LossScale(plan), losses() + place,
                         at.MemberAt(e), lane);
  }
}

void GpuSerialRun::Impl::BackwardInput(const WholeLayer& at) {
  const GpuStage& stage = At(at.stage);
  for (const GpuViews& v : at.members) stage.CombineBackward(at.layer, v, lane);
  ToExperts(at, &GpuViews::dcombined, &GpuViews::drows, false);
  stage.ExpertsBackward(at.layer, at.experts, stream);
  for (int e = 0; e < members; ++e) {
    const GpuViews& v = at.MemberAt(e);
    ToTokens(at, e, &GpuViews::ddispatched, &GpuViews::dsorted);
    stage.DispatchBackward(v, stream);
    stage.AttentionBackward(at.layer, v, lane);
  }
}

// Into the sums themselves, as a rank does: adding up finished gradients rounds differently.
void GpuSerialRun::Impl::BackwardWeight(const WholeLayer& at, int replica, int microbatch) {
  const GpuStage& stage = At(at.stage);
  const auto s = static_cast<size_t>(at.stage);
  const size_t of_experts = order.SumOf(at.stage, replica, microbatch);
  stage.ExpertsWeight(at.layer, at.experts, experts[s][of_experts].data(), stream);
  for (int e = 0; e < members; ++e) {
    const GpuViews& v = at.MemberAt(e);
    float* const sum =
        dense[s][order.SumOf(at.stage, replica * plan.expert_parallel + e, microbatch)].data();
    if (stage.HasHead(at.layer)) stage.HeadWeight(v, sum, lane);
    stage.AttentionWeight(at.layer, TokensOf(MicrobatchPlace(plan, replica, e, microbatch)), v, sum,
                          lane);
  }
}

void GpuSerialRun::Impl::TrainOn(int replica, const SerialOrder::Pass& pass) {
  for (const WholeLayer& at : layers) Forward(at, replica, pass.microbatch, pass.again);
  for (size_t l = layers.size(); l-- > 0;) BackwardInput(layers[l]);
  for (const WholeLayer& at : layers) {
    if (std::binary_search(pass.stages.begin(), pass.stages.end(), at.stage)) {
      BackwardWeight(at, replica, pass.microbatch);
    }
  }
}

void GpuSerialRun::Impl::AddUp(const std::vector<std::span<float>>& copies) {
  if (copies.size() < 2 || copies[0].empty()) return;
  gpu::SumParts parts{};
  for (const std::span<float> copy : copies) parts.part[parts.count++] = copy.data();
  gpu::OrderedSum(stream, parts, copies[0].size(), stream.sms);
}

void GpuSerialRun::Impl::Update() {
  int32_t* const not_finite = counts() + 2;
  for (const auto& stage : stages) stage->SumSquares(squares, not_finite, stream);
  if (clip != nullptr) {
    gpu::ClipToNorm(stream, squares, 1, BlocksOfModel(model), model.clip, clip);
    gpu.CopyToHost(stream, host_clip, clip, sizeof(gpu::Clip));
    for (const auto& stage : stages) stage->ClipGradients(clip, stream);
  }
  const auto* const size = reinterpret_cast<const gpu::AdamWStepSize*>(input + token_bytes());
  for (const auto& stage : stages) stage->OptimizerStep(size, not_finite, nullptr, stream);
}

GpuSerialRun::GpuSerialRun(const Plan& plan, const Model& model, const Dataset& dataset,
                           uint64_t seed, Gpu& gpu, gpu::Stream stream, int compute_sms,
                           const MatmulChoices& choices)
    : impl_(std::make_unique<Impl>(plan, model, dataset, seed, gpu, stream, compute_sms, choices)) {
}
GpuSerialRun::~GpuSerialRun() = default;

std::vector<float> GpuSerialRun::Step(int step) {
  Impl& all = *impl_;
  all.gpu.Synchronize();
  all.Upload(step);
  for (const auto& stage : all.stages) stage->ZeroGradients(all.stream);
  if (all.sums_size > 0) all.gpu.Zero(all.stream, all.sums, all.sums_size * sizeof(float));
  all.gpu.Zero(all.stream, all.output, all.output_bytes());
  for (int d = 0; d < all.plan.data_parallel; ++d) {
    for (const SerialOrder::Pass& pass : all.order.passes()) all.TrainOn(d, pass);
  }
  for (int s = 0; s < all.plan.stages; ++s) {
    all.AddUp(all.dense[static_cast<size_t>(s)]);
    all.AddUp(all.experts[static_cast<size_t>(s)]);
  }
  all.Update();
  all.gpu.CopyToHost(all.stream, all.host_output, all.output, all.output_bytes());
  all.gpu.Synchronize();
  const auto* const losses = reinterpret_cast<const float*>(all.host_output);
  return {losses, losses + all.micros};
}

Stage& GpuSerialRun::StageAt(int stage) {
  Impl& all = *impl_;
  std::unique_ptr<Stage>& mirror = all.mirrors.at(static_cast<size_t>(stage));
  if (!mirror) {
    mirror = std::make_unique<Stage>(all.model, all.shape, 0, stage, all.plan.stages, std::nullopt);
  }
  all.At(stage).Get(mirror.get(), all.stream);
  return *mirror;
}

void GpuSerialRun::Put(int stage) {
  const std::unique_ptr<Stage>& mirror = impl_->mirrors.at(static_cast<size_t>(stage));
  if (mirror) impl_->At(stage).Put(*mirror, impl_->stream);
}

const int32_t* GpuSerialRun::ChoiceAt(int layer, size_t place) const {
  return impl_->ChoiceAt(static_cast<size_t>(layer), place);
}

double GpuSerialRun::norm() const {
  return impl_->host_clip == nullptr ? 0 : impl_->host_clip->norm;
}

int64_t GpuSerialRun::dropped() const {
  const auto* const losses = reinterpret_cast<const float*>(impl_->host_output);
  return *reinterpret_cast<const int32_t*>(losses + impl_->micros);
}

}  // namespace contraflow
