#include "runtime/gpu/stage.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compiler/plan/error.h"
#include "kernels/gpu/elementwise.h"
#include "kernels/gpu/embedding_and_loss.h"
#include "kernels/gpu/experts.h"
#include "kernels/gpu/rmsnorm.h"
#include "kernels/gpu/routing.h"

namespace contraflow {
namespace {

float* Floats(Gpu& gpu, size_t count) {
  return reinterpret_cast<float*>(gpu.Allocate(count * sizeof(float)));
}

float* FloatWork(GpuLane at) { return reinterpret_cast<float*>(at.work); }

ParameterLayout LayoutOfModel(const Model& model) {
  return LayoutOfStage(model, 0, 1, {0, model.experts});
}

/// To memory of its own.
template <typename T>
T* OnDevice(Gpu& gpu, gpu::Stream stream, const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  auto* const at = reinterpret_cast<T*>(gpu.Allocate(bytes));
  gpu.CopyToDevice(stream, at, values.data(), bytes);
  return at;
}

}  // namespace

gpu::AdamWStepSize StepSizeOf(const Model& model, int step) {
  CF_ASSERT(step >= 1);
  const auto correction = [step](float beta) {
    return static_cast<float>(1 / (1 - std::pow(static_cast<double>(beta), step)));
  };
  return {static_cast<float>(LearningRate(model, step)), correction(model.beta1),
          correction(model.beta2)};
}

int BlocksOfModel(const Model& model) {
  return static_cast<int>(LayoutOfModel(model).blocks.size());
}

GpuStage::GpuStage(const Model& model, const GpuProducts& products, int member, int stage,
                   int stages, uint64_t seed, Gpu& gpu, gpu::Stream setup)
    : model_(model),
      products_(products),
      shape_(products.shape()),
      stage_(stage),
      stages_(stages),
      gpu_(gpu),
      layout_(LayoutOfStage(model, stage, stages, OwnedBy(member, shape_.local_experts))),
      parameters_(Floats(gpu, layout_.size)),
      gradients_(Floats(gpu, layout_.size)),
      m_(Floats(gpu, layout_.size)),
      v_(Floats(gpu, layout_.size)),
      copy_(reinterpret_cast<gpu::Bf16*>(gpu.Allocate(layout_.size * sizeof(gpu::Bf16)))) {
  const std::vector<float> gains(layout_.gains, 1.0f);
  gpu_.CopyToDevice(setup, parameters_, gains.data(), gains.size() * sizeof(float));
  for (const ParameterBlock& block : layout_.blocks) {
    if (block.offset < layout_.gains) continue;
    const ParameterDraw draw = DrawOf(block, seed);
    gpu::FillUniform(setup, draw.key, draw.limit, block.size, parameters_ + block.offset);
  }
  gpu::RoundToBf16(setup, layout_.size, parameters_, copy_);
  for (float* block : {gradients_, m_, v_}) gpu_.Zero(setup, block, bytes());
  PlaceSquares(setup);
}

void GpuStage::PlaceSquares(gpu::Stream setup) {
  std::vector<std::string> names;
  for (const ParameterBlock& block : LayoutOfModel(model_).blocks) names.push_back(block.name);
  std::ranges::sort(names);
  std::vector<gpu::SquareTile> tiles;
  std::vector<gpu::SquareBlock> blocks;
  for (const ParameterBlock& block : layout_.blocks) {
    const auto place = std::ranges::lower_bound(names, block.name) - names.begin();
    gpu::AddSquareBlock(block.offset, block.size, static_cast<int>(place), &tiles, &blocks);
  }
  tile_count_ = static_cast<int>(tiles.size());
  tiles_ = OnDevice(gpu_, setup, tiles);
  square_blocks_ = OnDevice(gpu_, setup, blocks);
  partial_ = reinterpret_cast<double*>(gpu_.Allocate(tiles.size() * sizeof(double)));
  gpu_.Synchronize();
}

// x -> norm -> qkv -> rope -> attention -> output projection -> + x = y
// y -> norm -> router, sort by expert
void GpuStage::AttentionForward(int layer, const int32_t* tokens, int32_t* dropped,
                                const GpuViews& v, GpuLane at) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  const gpu::Stream stream = at.stream;
  if (HasEmbedding(layer)) {
    gpu::EmbeddingForward(stream, tokens, copy_ + layout_.embedding, n.tokens, n.width, v.x);
  }
  gpu::RmsNormForward(stream, v.x, parameters_ + o.attention_norm, n.tokens, n.width,
                      v.attention_rstd, v.attention_xn);
  products_.Linear(at, v.attention_xn, copy_ + o.qkv, n.width, 3 * n.width, v.qkv);
  gpu::RopeForward(stream, products_.cosine(), products_.sine(), n.tokens, n.sequence, n.heads,
                   n.head_width, v.qkv);
  products_.attention().Forward(stream, v.qkv, at.work, v.context, v.lse);
  products_.LinearAdd(at, v.context, copy_ + o.output, v.x, v.y);

  gpu::RmsNormForward(stream, v.y, parameters_ + o.expert_norm, n.tokens, n.width, v.expert_rstd,
                      v.expert_xn);
  products_.Linear(at, v.expert_xn, copy_ + o.router, n.width, n.experts, v.router);
  gpu::RouterForward(stream, n.tokens, n.experts, n.top_k, v.router, v.expert, v.weight);
  gpu::SortByExpert(stream, v.expert, n.tokens, n.experts, n.top_k, n.capacity, at.work, v.sent,
                    v.token_of, v.row_of, dropped);
  if (v.dispatched != nullptr) Dispatch(v, stream);
}

void GpuStage::Dispatch(const GpuViews& v, gpu::Stream stream) const {
  gpu::SpreadTokens(stream, v.expert_xn, v.row_of, v.token_of, shape_.tokens, shape_.sent_rows,
                    shape_.top_k, shape_.width, v.dispatched);
}

void GpuStage::ExpertsForward(int layer, const GpuViews& v, gpu::Stream stream) const {
  gpu::ExpertsForward(stream, ExpertsOf(shape_), v.first, v.rows, experts() + At(layer).gate_up,
                      experts() + At(layer).down, v.gate, v.hidden, v.expert_out);
}

void GpuStage::CombineForward(int layer, const int32_t* targets, float loss_scale, float* loss,
                              const GpuViews& v, GpuLane at, const gpu::Bf16* came) const {
  const LayerShape& n = shape_;
  gpu::CombineForward(at.stream, v.y, came != nullptr ? came : v.combined, v.row_of, v.weight,
                      n.tokens, n.top_k, n.width, v.z, came != nullptr ? v.combined : nullptr);
  if (!HasHead(layer)) return;
  gpu::RmsNormForward(at.stream, v.z, parameters_ + layout_.final_norm, n.tokens, n.width,
                      v.final_rstd, v.final_xn);
  products_.Linear(at, v.final_xn, copy_ + layout_.head, n.width, n.vocabulary, v.logits);
  gpu::CrossEntropy(at.stream, targets, loss_scale, n.tokens, n.vocabulary, v.logits, v.row_loss);
  gpu::Mean(at.stream, v.row_loss, n.tokens, loss);
}

void GpuStage::CombineBackward(int layer, const GpuViews& v, GpuLane at) const {
  const LayerShape& n = shape_;
  if (HasHead(layer)) {
    products_.LinearBackwardInput(at, v.logits, copy_ + layout_.head, n.width, n.vocabulary,
                                  v.dfinal_xn);
    // No work runs past the final norm, so there is no residual gradient to join.
    gpu::RmsNormBackwardInput(at.stream, v.z, parameters_ + layout_.final_norm, v.final_rstd,
                              v.dfinal_xn, nullptr, n.tokens, n.width, v.dz);
  }
  gpu::CombineBackwardInput(at.stream, v.dz, v.combined, v.row_of, v.token_of, v.weight, n.tokens,
                            n.sent_rows, n.top_k, n.width, v.dcombined, v.dweight);
}

void GpuStage::ExpertsBackward(int layer, const GpuViews& v, gpu::Stream stream) const {
  gpu::ExpertsBackwardInput(stream, ExpertsOf(shape_), v.first, experts() + At(layer).gate_up,
                            experts() + At(layer).down, v.gate, v.drows, v.dgate, v.dsorted);
}

void GpuStage::DispatchBackward(const GpuViews& v, gpu::Stream stream) const {
  gpu::GatherTokensBackwardInput(stream, v.ddispatched, v.row_of, shape_.tokens, shape_.top_k,
                                 shape_.width, v.dexpert);
}

// ATTN_F in reverse, the residual gradients joining at the norms.
void GpuStage::AttentionBackward(int layer, const GpuViews& v, GpuLane at) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  const gpu::Stream stream = at.stream;
  gpu::RouterBackwardInput(stream, v.router, v.expert, v.dweight, n.tokens, n.experts, n.top_k,
                           v.dlogits);
  products_.LinearBackwardInputAdd(at, v.dlogits, copy_ + o.router, n.width, n.experts, v.dexpert);
  gpu::RmsNormBackwardInput(stream, v.y, parameters_ + o.expert_norm, v.expert_rstd, v.dexpert,
                            v.dz, n.tokens, n.width, v.dy);

  products_.LinearBackwardInput(at, v.dy, copy_ + o.output, n.width, n.width, v.dcontext);
  products_.attention().BackwardInput(stream, v.qkv, v.context, v.lse, v.dcontext, at.work, v.dqkv);
  gpu::RopeBackwardInput(stream, products_.cosine(), products_.sine(), n.tokens, n.sequence,
                         n.heads, n.head_width, v.dqkv);
  products_.LinearBackwardInput(at, v.dqkv, copy_ + o.qkv, n.width, 3 * n.width, v.dattention_xn);
  gpu::RmsNormBackwardInput(stream, v.x, parameters_ + o.attention_norm, v.attention_rstd,
                            v.dattention_xn, v.dy, n.tokens, n.width, v.dx);
}

void GpuStage::ExpertsWeight(int layer, const GpuViews& v, float* experts,
                             gpu::Stream stream) const {
  gpu::ExpertsBackwardWeight(stream, ExpertsOf(shape_), v.first, v.rows, v.hidden, v.dgate, v.drows,
                             experts + At(layer).gate_up, experts + At(layer).down);
}

void GpuStage::HeadWeight(const GpuViews& v, float* dense, GpuLane at) const {
  const LayerShape& n = shape_;
  products_.LinearBackwardWeight(at, v.final_xn, v.logits, n.width, n.vocabulary,
                                 dense + layout_.head);
  gpu::RmsNormBackwardWeight(at.stream, v.z, v.final_rstd, v.dfinal_xn, n.tokens, n.width,
                             FloatWork(at), dense + layout_.final_norm);
}

void GpuStage::AttentionWeight(int layer, const int32_t* tokens, const GpuViews& v, float* dense,
                               GpuLane at) const {
  const LayerShape& n = shape_;
  const LayerOffsets& o = At(layer);
  products_.LinearBackwardWeight(at, v.expert_xn, v.dlogits, n.width, n.experts, dense + o.router);
  gpu::RmsNormBackwardWeight(at.stream, v.y, v.expert_rstd, v.dexpert, n.tokens, n.width,
                             FloatWork(at), dense + o.expert_norm);
  products_.LinearBackwardWeight(at, v.context, v.dy, n.width, n.width, dense + o.output);
  products_.LinearBackwardWeight(at, v.attention_xn, v.dqkv, n.width, 3 * n.width, dense + o.qkv);
  gpu::RmsNormBackwardWeight(at.stream, v.x, v.attention_rstd, v.dattention_xn, n.tokens, n.width,
                             FloatWork(at), dense + o.attention_norm);
  if (!HasEmbedding(layer)) return;
  gpu::EmbeddingBackwardWeight(at.stream, tokens, v.dx, n.tokens, n.vocabulary, n.width, at.work,
                               dense + layout_.embedding);
}

void GpuStage::ZeroGradients(gpu::Stream stream) { gpu_.Zero(stream, gradients_, bytes()); }

void GpuStage::SumSquares(double* squares, int32_t* not_finite, gpu::Stream stream) const {
  gpu::SumSquares(stream, gradients_, tiles_, tile_count_, square_blocks_,
                  static_cast<int>(layout_.blocks.size()), partial_, squares, not_finite);
}

const std::string& GpuStage::NotFinite(int32_t note) const {
  return layout_.blocks.at(layout_.blocks.size() - static_cast<size_t>(note)).name;
}

void GpuStage::ClipGradients(const gpu::Clip* clip, gpu::Stream stream) {
  gpu::ScaleToClip(stream, clip, layout_.size, gradients_);
}

void GpuStage::OptimizerStep(const gpu::AdamWStepSize* step, const int32_t* not_finite,
                             const int32_t* failed, gpu::Stream stream) {
  const auto update = [&](size_t begin, size_t end, float decay) {
    gpu::AdamWStep(stream, step, {model_.beta1, model_.beta2, model_.epsilon, decay}, end - begin,
                   gradients_ + begin, m_ + begin, v_ + begin, parameters_ + begin, copy_ + begin,
                   not_finite, failed);
  };
  update(0, layout_.gains, 0);
  update(layout_.gains, layout_.size, model_.weight_decay);
}

void GpuStage::Get(Stage* mirror, gpu::Stream stream) const {
  const auto get = [&](std::span<float> to, const float* from) {
    CF_ASSERT(to.size() == layout_.size);
    gpu_.CopyToHost(stream, to.data(), from, bytes());
  };
  // Other streams may still be at it.
  gpu_.Synchronize();
  get(mirror->parameters(), parameters_);
  get(mirror->gradients(), gradients_);
  get(mirror->first_moments(), m_);
  get(mirror->second_moments(), v_);
  gpu_.Synchronize();
}

StageState GpuStage::State() const {
  StageState state = {{}, 0};
  for (const ParameterBlock& block : layout_.blocks) {
    const auto part = [&](float* all) { return std::span(all + block.offset, block.size); };
    state.blocks.push_back({block.name, part(parameters_), part(m_), part(v_)});
    if (block.offset < layout_.dense) ++state.dense;
  }
  return state;
}

void GpuStage::Put(Stage& mirror, gpu::Stream stream) {
  const auto put = [&](float* to, std::span<const float> from) {
    CF_ASSERT(from.size() == layout_.size);
    gpu_.CopyToDevice(stream, to, from.data(), bytes());
  };
  gpu_.Synchronize();
  put(parameters_, mirror.parameters());
  put(gradients_, mirror.gradients());
  put(m_, mirror.first_moments());
  put(v_, mirror.second_moments());
  gpu::RoundToBf16(stream, layout_.size, parameters_, copy_);
  gpu_.Synchronize();
}

}  // namespace contraflow
