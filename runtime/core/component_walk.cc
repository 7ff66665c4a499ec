#include "runtime/core/component_walk.h"

namespace contraflow {
namespace {

Plan PlaceOnly(const Plan& like, int layers) {
  Plan plan;
  plan.level = Level::kComponent;
  plan.ranks = like.ranks;
  plan.stages = like.stages;
  plan.microbatches = like.microbatches;
  plan.routes = like.routes;
  plan.layers = layers;
  return plan;
}

}  // namespace

float LossScale(const Plan& plan) {
  return 1.0f / (static_cast<float>(plan.microbatches) * static_cast<float>(plan.data_parallel) *
                 static_cast<float>(plan.expert_parallel));
}

ComponentWalk::Even::Even(const Plan& like, int layers)
    : plan(PlaceOnly(like, layers)), accesses(plan) {}

ComponentWalk::ComponentWalk(const Plan& plan, const Model& model) {
  for (int s = 0; s < plan.stages; ++s) {
    const LayerRange range = LayersOfStage(model, s, plan.stages);
    layers_.push_back(range.last - range.first);
    std::unique_ptr<const Even>& even = even_[layers_.back()];
    if (!even) even = std::make_unique<const Even>(plan, layers_.back());
  }
}

void ComponentWalk::AccessesOf(const Instruction& i, std::vector<Access>* accesses) const {
  even_.at(LayersOf(i.stage))->accesses.Of(i, accesses);
  for (Access& access : *accesses) {
    // The last layer of the stage before, which may have more layers than this one.
    if (access.stage < i.stage) access.layer = static_cast<int16_t>(LayersOf(access.stage) - 1);
  }
}

}  // namespace contraflow
