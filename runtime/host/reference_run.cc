#include "runtime/host/reference_run.h"

#include <algorithm>
#include <map>
#include <string>

#include "compiler/plan/error.h"
#include "kernels/host/routing.h"
#include "runtime/core/step.h"

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
WholeModel<T>::WholeModel(const Model& model, int members, uint64_t seed)
    : alone_(WithoutCapacity(model), 1, model.experts),
      experts_(model, members, model.experts),
      stage_(model, alone_, 0, 0, 1, seed),
      layers_(static_cast<size_t>(stage_.layers())) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    layers_[l].experts = Allocate(experts_, kOfExperts);
    for (size_t m = 0; m < static_cast<size_t>(members); ++m) {
      LayerViews<T>& v = layers_[l].members.emplace_back(Allocate(alone_, kOfMember));
      // Every member finds its rows where the experts leave them, and a layer what the one before
      // it, or after it, has made.
      v.combined = layers_[l].experts.expert_out;
      v.dcombined = layers_[l].experts.drows;
      v.ddispatched = layers_[l].experts.dsorted;
      if (l == 0) continue;
      layers_[l - 1].members[m].z = v.x;
      v.dx = layers_[l - 1].members[m].dz;
    }
  }
}

template <typename T>
LayerViews<T> WholeModel<T>::Allocate(const LayerShape& shape, std::span<const Value> values) {
  const ValueBytes bytes = BytesOfValues<T>(shape);
  int64_t size = 0;
  for (const Value value : values) size += bytes[static_cast<size_t>(value)];
  std::byte* at = memory_.emplace_back(static_cast<size_t>(size)).data();
  LayerViews<T> views;
  for (const Value value : values) at += PlaceValue<T>(shape, value, at, &views);
  return views;
}

// Rows by the tokens' choices alone: expert by expert, of each member by member, token by token, as
// many as the expert takes of a member.
template <typename T>
void WholeModel<T>::Route(const Layer& layer) {
  const LayerViews<T>& to = layer.experts;
  const int pairs = alone_.tokens * alone_.top_k;
  for (const LayerViews<T>& from : layer.members) std::fill_n(from.row_of, pairs, -1);
  int row = 0;
  to.first[0] = 0;
  for (int e = 0; e < experts_.experts; ++e) {
    for (const LayerViews<T>& from : layer.members) {
      int taken = 0;
      for (int pair = 0; pair < pairs; ++pair) {
        if (from.expert[pair] != e) continue;
        if (experts_.capacity > 0 && taken == experts_.capacity) {
          ++dropped_;
          continue;
        }
        std::copy_n(from.expert_xn + static_cast<ptrdiff_t>(pair / alone_.top_k) * alone_.width,
                    alone_.width, to.rows + static_cast<ptrdiff_t>(row + taken) * alone_.width);
        from.row_of[pair] = row + taken++;
      }
      // Rows that stay empty are zero, as all memory is before a forward.
      row += experts_.capacity > 0 ? experts_.capacity : taken;
    }
    to.first[e + 1] = row;
  }
}

template <typename T>
std::vector<T> WholeModel<T>::Forward(std::span<const MicroBatch> micros, const Routed& routed) {
  CF_ASSERT(micros.size() == static_cast<size_t>(experts_.members));
  for (Buffer<std::byte>& memory : memory_) std::fill(memory.begin(), memory.end(), std::byte{});
  micros_.assign(micros.begin(), micros.end());
  dropped_ = 0;
  balance_ = 0;
  std::vector<T> losses;
  for (int l = 0; l < stage_.layers(); ++l) {
    const Layer& layer = layers_[static_cast<size_t>(l)];
    for (size_t m = 0; m < micros.size(); ++m) {
      const LayerViews<T>& v = layer.members[m];
      if (stage_.HasEmbedding(l)) stage_.Embed(micros[m], v);
      stage_.AttentionForward(l, v);
      balance_ += RouterBalance(v.router, v.expert, alone_.tokens, alone_.experts, alone_.top_k);
      if (routed) routed(l, static_cast<int>(m), v);
    }
    Route(layer);
    stage_.ExpertsForward(l, layer.experts);
    for (size_t m = 0; m < micros.size(); ++m) {
      stage_.CombineForward(layer.members[m]);
      if (stage_.HasHead(l)) losses.push_back(stage_.HeadForward(micros[m], layer.members[m]));
    }
  }
  return losses;
}

template <typename T>
void WholeModel<T>::BackwardInput(T loss_scale) {
  for (int l = stage_.layers(); l-- > 0;) {
    const Layer& layer = layers_[static_cast<size_t>(l)];
    for (size_t m = 0; m < micros_.size(); ++m) {
      const LayerViews<T>& v = layer.members[m];
      if (stage_.HasHead(l)) stage_.HeadBackward(micros_[m], loss_scale, v);
      stage_.CombineBackward(v);
    }
    stage_.ExpertsBackward(l, layer.experts);
    for (const LayerViews<T>& v : layer.members) {
      stage_.DispatchBackward(v);
      stage_.AttentionBackward(l, loss_scale, v);
    }
  }
}

template <typename T>
void WholeModel<T>::BackwardWeight(LayerRange layers, std::span<T* const> dense, T* experts) const {
  CF_ASSERT(dense.size() == micros_.size());
  for (int l = layers.first; l < layers.last; ++l) {
    const Layer& layer = layers_[static_cast<size_t>(l)];
    stage_.ExpertsWeight(l, layer.experts, experts);
    for (size_t m = 0; m < dense.size(); ++m) {
      if (stage_.HasHead(l)) stage_.HeadWeight(layer.members[m], dense[m]);
      stage_.AttentionWeight(l, layer.members[m], dense[m]);
      if (stage_.HasEmbedding(l)) stage_.EmbeddingWeight(micros_[m], layer.members[m], dense[m]);
    }
  }
}

template class WholeModel<float>;
template class WholeModel<double>;

ReferenceRun::ReferenceRun(const Plan& plan, const Model& model, const Dataset& dataset,
                           uint64_t seed)
    : plan_(plan),
      model_(FitModel(model, plan)),
      dataset_(dataset),
      seed_(seed),
      order_(plan),
      whole_(model_, plan.expert_parallel, seed) {
  size_t dense = 0, experts = 0;
  for (int s = 0; s < plan.stages; ++s) {
    dense = std::max(dense, order_.Sums(s, plan.data_parallel * plan.expert_parallel));
    experts = std::max(experts, order_.Sums(s, plan.data_parallel));
  }
  dense_.resize(dense, std::vector<float>(stage().dense_gradients().size()));
  experts_.resize(experts, std::vector<float>(stage().expert_gradients().size()));
}

std::vector<float> ReferenceRun::Step(int step) {
  for (auto* sums : {&dense_, &experts_}) {
    for (std::vector<float>& sum : *sums) std::fill(sum.begin(), sum.end(), 0.0f);
  }
  dropped_ = 0;
  std::vector<float> losses(MicrobatchesOfStep(plan_));
  for (int d = 0; d < plan_.data_parallel; ++d) {
    for (const SerialOrder::Pass& pass : order_.passes()) TrainOn(step, d, pass, &losses);
  }
  for (const auto& [sums, total] : {std::pair(&dense_, stage().dense_gradients()),
                                    std::pair(&experts_, stage().expert_gradients())}) {
    std::copy(sums->front().begin(), sums->front().end(), total.begin());
    for (size_t copy = 1; copy < sums->size(); ++copy) {
      for (size_t i = 0; i < total.size(); ++i) total[i] += (*sums)[copy][i];
    }
  }
  std::map<std::string, double> squares;
  if (model_.clip > 0) stage().AddSquares(&squares);
  stage().OptimizerStep(step, NormOf(squares));
  return losses;
}

void ReferenceRun::TrainOn(int step, int replica, const SerialOrder::Pass& pass,
                           std::vector<float>* losses) {
  const int members = plan_.expert_parallel;
  const auto place = [&](int e) { return MicrobatchPlace(plan_, replica, e, pass.microbatch); };
  std::vector<MicroBatch> micros;
  for (int e = 0; e < members; ++e) {
    micros.push_back(
        DrawMicroBatch(dataset_, model_, seed_, step, replica * members + e, pass.microbatch));
  }
  WholeModel<float>::Routed routed;
  if (routed_) {
    routed = [&](int layer, int e, const LayerViews<float>& v) { routed_(layer, place(e), v); };
  }
  const std::vector<float> loss = whole_.Forward(micros, routed);
  for (int e = 0; e < members; ++e) (*losses)[place(e)] = loss[static_cast<size_t>(e)];
  if (!pass.again) dropped_ += whole_.dropped();
  whole_.BackwardInput(LossScale(plan_));
  for (const int s : pass.stages) {
    // Into the sums themselves, as a rank does: adding up finished gradients rounds differently.
    std::vector<float*> dense;
    for (int e = 0; e < members; ++e) {
      dense.push_back(dense_[order_.SumOf(s, replica * members + e, pass.microbatch)].data());
    }
    whole_.BackwardWeight(LayersOfStage(model_, s, plan_.stages), dense,
                          experts_[order_.SumOf(s, replica, pass.microbatch)].data());
  }
  if (moved_) moved_();
}

}  // namespace contraflow
