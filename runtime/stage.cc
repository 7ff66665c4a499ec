#include "runtime/stage.h"

#include <utility>

#include "runtime/basic_stage.h"

namespace contraflow {

struct Stash {
  BasicStash<float> values;
};

void StashDeleter::operator()(Stash* stash) const { delete stash; }

struct Stage::State {
  BasicStage<float> stage;
};

Stage::Stage(const Model& model, int stage, int stages, uint64_t seed)
    : state_(new State{BasicStage<float>(model, stage, stages, seed)}) {}
Stage::~Stage() = default;
Stage::Stage(Stage&&) noexcept = default;

std::vector<float> Stage::Forward(const MicroBatch& micro, std::vector<float> input,
                                  StashPtr* stash, float* loss) {
  stash->reset(new Stash);
  return state_->stage.Forward(micro.tokens, micro.targets, input, &(*stash)->values, loss);
}

std::vector<float> Stage::BackwardInput(std::vector<float> output_gradient, float loss_scale,
                                        Stash* stash) {
  return state_->stage.BackwardInput(output_gradient, loss_scale, &stash->values);
}

void Stage::BackwardWeight(StashPtr stash) { state_->stage.BackwardWeight(&stash->values); }

void Stage::ZeroGradients() { state_->stage.ZeroGradients(); }
void Stage::OptimizerStep(int step) { state_->stage.OptimizerStep(step); }

std::span<float> Stage::parameters() { return state_->stage.parameters(); }
std::span<float> Stage::gradients() { return state_->stage.gradients(); }
std::span<const ParameterBlock> Stage::blocks() const { return state_->stage.blocks(); }

}  // namespace contraflow
