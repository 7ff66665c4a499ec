#include "runtime/host/reference_run.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "compiler/plan/error.h"
#include "runtime/core/walk.h"

namespace contraflow {
namespace {

constexpr Value kOfMember[] = {Value::input,      Value::output,     Value::attention,
                               Value::scores,     Value::dispatched, Value::head,
                               Value::doutput,    Value::dweight,    Value::dexpert,
                               Value::dattention, Value::dinput,     Value::attention_work};
constexpr Value kOfExperts[] = {Value::rows,  Value::gate,  Value::hidden, Value::expert_out,
                                Value::drows, Value::dgate, Value::dsorted};

Model WithoutCapacity(Model model) {
  model.capacity_factor = 0;
  return model;
}

}  // namespace

template <typename T>
WholeStage<T>::WholeStage(const Model& model, int stage, int stages, int members, uint64_t seed)
    : alone_(WithoutCapacity(model), 1, model.experts),
      experts_(model, members, model.experts),
      stage_(std::make_unique<BasicStage<T>>(model, alone_, 0, stage, stages, seed)) {}

template <typename T>
typename WholeStash<T>::Part WholeStage<T>::Allocate(const LayerShape& shape,
                                                     std::span<const Value> values) const {
  const ValueBytes bytes = BytesOfValues<T>(shape);
  Part part;
  int64_t size = 0;
  for (const Value value : values) size += bytes[static_cast<size_t>(value)];
  part.memory.resize(static_cast<size_t>(size));
  std::byte* at = part.memory.data();
  for (const Value value : values) at += PlaceValue<T>(shape, value, at, &part.views);
  return part;
}

template <typename T>
void WholeStage<T>::Choose(const int32_t* choice, const LayerViews<T>& v,
                           WholeStash<T>* stash) const {
  for (int pair = 0; pair < alone_.tokens * alone_.top_k; ++pair) {
    const int32_t expert = choice[pair];
    CF_ASSERT(expert >= 0 && expert < alone_.experts);
    const int token = pair / alone_.top_k;
    const T chosen = v.router[static_cast<ptrdiff_t>(token) * alone_.experts + expert];
    const double preferred = static_cast<double>(v.weight[pair]);
    const double off = std::abs(static_cast<double>(chosen) - preferred) / preferred;
    stash->strayed_ = std::max(stash->strayed_, off);
    v.expert[pair] = expert;
    v.weight[pair] = chosen;
  }
}

// By the tokens' choices alone: expert by expert, of each member by member, token by token, as many
// as the expert takes of a member.
template <typename T>
void WholeStage<T>::Route(int layer, WholeStash<T>* stash) const {
  const auto l = static_cast<size_t>(layer);
  const int pairs = alone_.tokens * alone_.top_k;
  const LayerViews<T>& to = stash->experts_[l].views;
  std::vector<Buffer<int32_t>>& row_of = stash->row_of_[l];
  for (Buffer<int32_t>& rows : row_of) rows.assign(static_cast<size_t>(pairs), -1);
  int row = 0;
  to.first[0] = 0;
  for (int e = 0; e < experts_.experts; ++e) {
    for (size_t member = 0; member < row_of.size(); ++member) {
      const LayerViews<T>& from = stash->tokens_[l][member].views;
      int taken = 0;
      for (int pair = 0; pair < pairs; ++pair) {
        if (from.expert[pair] != e) continue;
        if (experts_.capacity > 0 && taken == experts_.capacity) {
          ++stash->dropped_;
          continue;
        }
        std::copy_n(from.expert_xn + static_cast<ptrdiff_t>(pair / alone_.top_k) * alone_.width,
                    alone_.width, to.rows + static_cast<ptrdiff_t>(row + taken) * alone_.width);
        row_of[member][static_cast<size_t>(pair)] = row + taken++;
      }
      // Rows that stay empty are zero, as all memory of a stash is at first.
      row += experts_.capacity > 0 ? experts_.capacity : taken;
    }
    to.first[e + 1] = row;
  }
}

template <typename T>
std::vector<T> WholeStage<T>::Forward(std::span<const MicroBatch> micros,
                                      const std::vector<T>& input, WholeStash<T>* stash,
                                      std::vector<T>* losses, const Choices& choices) const {
  const size_t members = micros.size(), size = alone_.activation();
  CF_ASSERT(members == static_cast<size_t>(experts_.members));
  CF_ASSERT(input.size() == (stage_->HasEmbedding(0) ? 0 : members * size));
  *stash = {};
  stash->phase_ = WholeStash<T>::Phase::kForward;
  stash->micros_.assign(micros.begin(), micros.end());
  stash->row_of_.assign(static_cast<size_t>(stage_->layers()),
                        std::vector<Buffer<int32_t>>(members));
  for (int layer = 0; layer < stage_->layers(); ++layer) {
    stash->experts_.push_back(Allocate(experts_, kOfExperts));
    std::vector<Part>& parts = stash->tokens_.emplace_back();
    for (size_t m = 0; m < members; ++m) {
      parts.push_back(Allocate(alone_, kOfMember));
      LayerViews<T>& v = parts.back().views;
      if (layer > 0) {
        const T* z = stash->tokens_[static_cast<size_t>(layer) - 1][m].views.z;
        std::copy_n(z, size, v.x);
      } else if (!input.empty()) {
        std::copy_n(input.data() + m * size, size, v.x);
      }
      stage_->AttentionForward(layer, micros[m], v);
      if (choices) Choose(choices(layer, m), v, stash);
    }
    Route(layer, stash);
    const LayerViews<T>& shared = stash->experts_.back().views;
    stage_->ExpertsForward(layer, shared);
    for (size_t m = 0; m < members; ++m) {
      // Every member finds its rows where the experts left them.
      LayerViews<T>& v = parts[m].views;
      v.row_of = stash->row_of_[static_cast<size_t>(layer)][m].data();
      v.combined = shared.expert_out;
      v.dcombined = shared.drows;
      v.ddispatched = shared.dsorted;
      const T loss = stage_->CombineForward(layer, micros[m], v);
      if (stage_->HasHead(layer)) losses->push_back(loss);
    }
  }
  if (stage_->HasHead(stage_->layers() - 1)) return {};
  std::vector<T> output(members * size);
  for (size_t m = 0; m < members; ++m) {
    std::copy_n(stash->tokens_.back()[m].views.z, size, output.data() + m * size);
  }
  return output;
}

template <typename T>
std::vector<T> WholeStage<T>::BackwardInput(const std::vector<T>& output_gradient, T loss_scale,
                                            WholeStash<T>* stash) const {
  CF_ASSERT(stash->phase_ == WholeStash<T>::Phase::kForward);
  stash->phase_ = WholeStash<T>::Phase::kBackward;
  const size_t members = stash->micros_.size(), size = alone_.activation();
  const int last = stage_->layers() - 1;
  CF_ASSERT(output_gradient.size() == (stage_->HasHead(last) ? 0 : members * size));
  for (int layer = last; layer >= 0; --layer) {
    const auto l = static_cast<size_t>(layer);
    for (size_t m = 0; m < members; ++m) {
      const LayerViews<T>& v = stash->tokens_[l][m].views;
      if (layer < last) {
        std::copy_n(stash->tokens_[l + 1][m].views.dx, size, v.dz);
      } else if (!output_gradient.empty()) {
        std::copy_n(output_gradient.data() + m * size, size, v.dz);
      }
      stage_->CombineBackward(layer, stash->micros_[m], loss_scale, v);
    }
    stage_->ExpertsBackward(layer, stash->experts_[l].views);
    for (size_t m = 0; m < members; ++m) {
      stage_->DispatchBackward(stash->tokens_[l][m].views);
      stage_->AttentionBackward(layer, stash->tokens_[l][m].views);
    }
  }
  if (stage_->HasEmbedding(0)) return {};
  std::vector<T> input_gradient(members * size);
  for (size_t m = 0; m < members; ++m) {
    std::copy_n(stash->tokens_[0][m].views.dx, size, input_gradient.data() + m * size);
  }
  return input_gradient;
}

template <typename T>
void WholeStage<T>::BackwardWeight(std::span<T* const> dense, T* experts,
                                   WholeStash<T>* stash) const {
  CF_ASSERT(stash->phase_ == WholeStash<T>::Phase::kBackward);
  CF_ASSERT(dense.size() == stash->micros_.size());
  for (int layer = stage_->layers() - 1; layer >= 0; --layer) {
    const auto l = static_cast<size_t>(layer);
    stage_->ExpertsWeight(layer, stash->experts_[l].views, experts);
    for (size_t m = 0; m < dense.size(); ++m) {
      const LayerViews<T>& v = stash->tokens_[l][m].views;
      if (stage_->HasHead(layer)) stage_->HeadWeight(v, dense[m]);
      stage_->AttentionWeight(layer, stash->micros_[m], v, dense[m]);
    }
  }
  *stash = {};
}

template <typename T>
void WholeStage<T>::BackwardWeight(WholeStash<T>* stash) {
  const std::vector<T*> dense(static_cast<size_t>(experts_.members),
                              stage_->dense_gradients().data());
  BackwardWeight(dense, stage_->expert_gradients().data(), stash);
}

template class WholeStage<float>;
template class WholeStage<double>;

namespace {

using Sums = std::vector<std::vector<float>>;

void AddUp(const Sums& copies, std::span<float> total) {
  std::copy(copies[0].begin(), copies[0].end(), total.begin());
  for (size_t copy = 1; copy < copies.size(); ++copy) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += copies[copy][i];
  }
}

}  // namespace

ReferenceRun::ReferenceRun(const Plan& plan, const Model& model, const Dataset& dataset,
                           uint64_t seed)
    : plan_(plan),
      model_(FitModel(model, plan.stages, plan.layers, plan.expert_parallel)),
      dataset_(dataset),
      seed_(seed),
      order_(plan) {
  for (int s = 0; s < plan.stages; ++s) {
    stages_.emplace_back(model_, s, plan.stages, plan.expert_parallel, seed);
    Stage& stage = stages_.back().stage();
    dense_.emplace_back(order_.DenseSums(s), std::vector<float>(stage.dense_gradients().size()));
    experts_.emplace_back(order_.ExpertSums(s),
                          std::vector<float>(stage.expert_gradients().size()));
  }
}

std::vector<float> ReferenceRun::Step(int step) {
  for (auto* sums : {&dense_, &experts_}) {
    for (Sums& copies : *sums) {
      for (std::vector<float>& sum : copies) std::fill(sum.begin(), sum.end(), 0.0f);
    }
  }
  dropped_ = 0;
  strayed_ = 0;
  std::vector<float> losses(MicrobatchesOfStep(plan_));
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (const SerialOrder::Pass& pass : order_.passes()) TrainOn(step, d, pass, &losses);
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s].stage();
    AddUp(dense_[s], stage.dense_gradients());
    AddUp(experts_[s], stage.expert_gradients());
    stage.OptimizerStep(step);
  }
  return losses;
}

void ReferenceRun::TrainOn(int step, int replica, const SerialOrder::Pass& pass,
                           std::vector<float>* losses) {
  const int members = plan_.expert_parallel, microbatch = pass.microbatch;
  std::vector<MicroBatch> micros;
  for (int e = 0; e < members; ++e) {
    micros.push_back(
        DrawMicroBatch(dataset_, model_, seed_, step, replica * members + e, microbatch));
  }
  std::vector<WholeStash<float>> stashes(stages_.size());
  std::vector<float> value, loss;
  for (size_t s = 0; s < stages_.size(); ++s) {
    WholeStage<float>::Choices choices;
    if (choices_) {
      choices = [&](int layer, size_t member) {
        return choices_(static_cast<int>(s), layer, replica, static_cast<int>(member), microbatch);
      };
    }
    value = stages_[s].Forward(micros, value, &stashes[s], &loss, choices);
    if (!pass.again) dropped_ += WholeStage<float>::Dropped(stashes[s]);
    strayed_ = std::max(strayed_, WholeStage<float>::Strayed(stashes[s]));
  }
  for (int e = 0; e < members; ++e) {
    (*losses)[MicrobatchPlace(plan_, replica, e, microbatch)] = loss[static_cast<size_t>(e)];
  }
  value.clear();
  for (size_t s = stages_.size(); s-- > 0;) {
    value = stages_[s].BackwardInput(value, LossScale(plan_), &stashes[s]);
  }
  for (const int stage : pass.stages) {
    // Into the sums themselves, as a rank does: adding up finished gradients rounds differently.
    const auto s = static_cast<size_t>(stage);
    std::vector<float*> dense;
    for (int e = 0; e < members; ++e) {
      dense.push_back(dense_[s][order_.DenseSumOf(stage, replica, e, microbatch)].data());
    }
    std::vector<float>& experts = experts_[s][order_.ExpertSumOf(stage, replica, microbatch)];
    stages_[s].BackwardWeight(dense, experts.data(), &stashes[s]);
  }
  if (moved_) moved_();
}

}  // namespace contraflow
