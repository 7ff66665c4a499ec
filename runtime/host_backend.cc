#include "runtime/host_backend.h"

#include <algorithm>
#include <string>

#include "compiler/error.h"

namespace contraflow {
namespace {

std::string ChunkName(int stage, int microbatch) {
  return "stage " + std::to_string(stage) + ", micro-batch " + std::to_string(microbatch);
}

std::string ValueName(const Tag& tag) {
  return (tag.forward ? "output of " : "input gradient of ") +
         ChunkName(tag.producer, tag.microbatch);
}

}  // namespace

HostBackend::HostBackend(const Plan& plan, const Model& model, const Text& text, uint64_t seed,
                         int replica, int rank)
    : model_(model),
      text_(text),
      seed_(seed),
      replica_(replica),
      stages_(plan.stages),
      loss_scale_(
          1.0f / (static_cast<float>(plan.microbatches) * static_cast<float>(plan.data_parallel))) {
  const std::vector<std::vector<int>> holders = HoldersOfStage(plan);
  for (int s = 0; s < plan.stages; ++s) {
    const std::vector<int>& ranks = holders[static_cast<size_t>(s)];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    copies_.emplace(s, Stage(model_, s, plan.stages, seed));
  }
}

void HostBackend::BeginStep(int step) {
  step_ = step;
  losses_.clear();
  for (auto& [s, stage] : copies_) stage.ZeroGradients();
}

void HostBackend::Compute(const Instruction& i) {
  if (HasForward(i.op)) Forward(i.stage, i.microbatch);
  if (HasBackward(i.op)) BackwardInput(BackStage(i), BackMicrobatch(i));
  if (HasWeight(i.op)) BackwardWeight(BackStage(i), BackMicrobatch(i));
}

void HostBackend::Forward(int s, int m) {
  Stage& stage = StageAt(s);
  std::vector<float> input;
  if (s > 0) input = Take({true, s - 1, m});
  Pending& pending = stashes_[{s, m}];
  if (pending.stash) throw Error("the forward of " + ChunkName(s, m) + " has run already");
  float loss = 0;
  std::vector<float> output =
      stage.Forward(DrawMicroBatch(text_, model_, seed_, step_, replica_, m), std::move(input),
                    &pending.stash, &loss);
  if (IsLast(s)) {
    losses_[m] = loss;
  } else {
    Put({true, s, m}, std::move(output));
  }
}

void HostBackend::BackwardInput(int s, int m) {
  Stage& stage = StageAt(s);
  const auto pending = stashes_.find({s, m});
  if (pending == stashes_.end()) {
    throw Error("the forward of " + ChunkName(s, m) + " has not run; verify the plan");
  }
  if (pending->second.backward) {
    throw Error("the backward of " + ChunkName(s, m) + " has run already; verify the plan");
  }
  std::vector<float> gradient;
  if (!IsLast(s)) gradient = Take({false, s + 1, m});
  gradient = stage.BackwardInput(std::move(gradient), loss_scale_, pending->second.stash.get());
  pending->second.backward = true;
  if (s > 0) Put({false, s, m}, std::move(gradient));
}

void HostBackend::BackwardWeight(int s, int m) {
  Stage& stage = StageAt(s);
  const auto pending = stashes_.find({s, m});
  if (pending == stashes_.end() || !pending->second.backward) {
    throw Error("the backward of " + ChunkName(s, m) + " has not run; verify the plan");
  }
  stage.BackwardWeight(std::move(pending->second.stash));
  stashes_.erase(pending);
}

void HostBackend::Put(const Tag& tag, std::vector<float> value) {
  if (!values_.emplace(tag, std::move(value)).second) {
    throw Error("the " + ValueName(tag) + " is here already; verify the plan");
  }
}

std::vector<float> HostBackend::Take(const Tag& tag) {
  const auto value = values_.find(tag);
  if (value == values_.end()) {
    throw Error("the " + ValueName(tag) + " is not on this rank; verify the plan");
  }
  std::vector<float> taken = std::move(value->second);
  values_.erase(value);
  return taken;
}

std::span<std::byte> HostBackend::Outgoing(const Instruction& send) {
  const Tag tag = TagOf(send);
  return std::as_writable_bytes(std::span(leaving_[tag] = Take(tag)));
}

void HostBackend::Sent(const Instruction& send) { leaving_.erase(TagOf(send)); }

std::span<std::byte> HostBackend::Incoming(const Instruction& receive) {
  const Tag tag = TagOf(receive);
  const size_t size = static_cast<size_t>(model_.tokens()) * static_cast<size_t>(model_.width);
  Put(tag, std::vector<float>(size));
  return std::as_writable_bytes(std::span(values_[tag]));
}

std::span<float> HostBackend::Gradients(int stage) { return StageAt(stage).gradients(); }

void HostBackend::OptimizerStep(int stage) { StageAt(stage).OptimizerStep(step_); }

void HostBackend::EndStep() {
  if (!values_.empty()) {
    throw Error("the " + ValueName(values_.begin()->first) + " was never used; verify the plan");
  }
  if (!stashes_.empty()) {
    const auto [s, m] = stashes_.begin()->first;
    throw Error("no weight gradient was computed for " + ChunkName(s, m) + "; verify the plan");
  }
}

Stage& HostBackend::StageAt(int stage) {
  const auto copy = copies_.find(stage);
  if (copy == copies_.end()) {
    throw Error("this rank holds no copy of stage " + std::to_string(stage) + "; verify the plan");
  }
  return copy->second;
}

}  // namespace contraflow
