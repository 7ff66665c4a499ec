#include "tests/run_support.h"

#include "compiler/error.h"
#include "tests/support.h"

namespace contraflow {
namespace {

float Symbol(const Tag& tag) {
  return static_cast<float>((tag.forward ? 1 : 2) * 10000 + tag.producer * 100 + tag.microbatch);
}

}  // namespace

Plan TwoRankPlan(int data_parallel) {
  const auto end = [&](const std::string& stage) {
    return (data_parallel == 1 ? "" : "REDUCE " + stage + "\n") + "STEP " + stage + "\n";
  };
  return PlanFromText("copies " + std::to_string(data_parallel) + R"(
rank
 F s0 m0
 SEND_F s0 m0 to=1
 F s0 m1
 SEND_F s0 m1 to=1
 RECV_B s0 m0 from=1
 B s0 m0
 W s0 m0
 RECV_B s0 m1 from=1
 BW s0 m1
)" + end("s0") + R"(
rank
 RECV_F s1 m0 from=0
 F s1 m0
 RECV_F s1 m1 from=0
 B s1 m0
 SEND_B s1 m0 to=0
 W s1 m0
 F s1 m1
 B s1 m1
 SEND_B s1 m1 to=0
 W s1 m1
)" + end("s1"));
}

Model SmallModel(int stages) {
  Model model;
  model.name = "small";
  model.layers = stages;
  model.width = 8;
  model.heads = 2;
  model.experts = 4;
  model.top_k = 2;
  model.expert_width = 8;
  model.sequence = 6;
  model.batch = 2;
  return FitModel(model, stages);
}

Text SmallText() {
  Text text{"small text", ""};
  uint32_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525u + 1013904223u;
    text.bytes += static_cast<char>('a' + (state >> 24) % 26);
  }
  return text;
}

void FakeBackend::BeginStep(int step) { log.push_back("begin " + std::to_string(step)); }

void FakeBackend::Take(const Tag& tag) {
  const auto value = values_.find(tag);
  if (value == values_.end()) throw Error("a value is missing");
  if (value->second != Symbol(tag)) throw Error("a value is not the right one");
  values_.erase(value);
}

void FakeBackend::Compute(const Instruction& i) {
  log.push_back(ToString(i));
  if (HasForward(i.op)) {
    if (i.stage > 0) Take({true, i.stage - 1, i.microbatch});
    const Tag made{true, i.stage, i.microbatch};
    if (i.stage + 1 < plan_.stages) values_[made] = Symbol(made);
  }
  if (HasBackward(i.op)) {
    const int s = BackStage(i);
    if (s + 1 < plan_.stages) Take({false, s + 1, BackMicrobatch(i)});
    const Tag made{false, s, BackMicrobatch(i)};
    if (s > 0) values_[made] = Symbol(made);
  }
}

std::span<std::byte> FakeBackend::Outgoing(const Instruction& send) {
  log.push_back(ToString(send));
  const Tag tag = TagOf(send);
  Take(tag);
  leaving_[tag] = Symbol(tag);
  return std::as_writable_bytes(std::span(&leaving_[tag], 1));
}

void FakeBackend::Sent(const Instruction& send) { leaving_.erase(TagOf(send)); }

std::span<std::byte> FakeBackend::Incoming(const Instruction& receive) {
  log.push_back(ToString(receive));
  return std::as_writable_bytes(std::span(&values_[TagOf(receive)], 1));
}

std::span<float> FakeBackend::Gradients(int stage) {
  log.push_back("gradients " + std::to_string(stage));
  return gradients[stage];
}

void FakeBackend::OptimizerStep(int stage) { log.push_back("step " + std::to_string(stage)); }

void FakeBackend::EndStep() { log.push_back("end"); }

FakeRun::FakeRun(const Plan& plan, ThreadNetwork::Options options)
    : backends(static_cast<size_t>(plan.ranks * plan.data_parallel * plan.expert_parallel),
               FakeBackend(plan)),
      network(plan.ranks, plan.data_parallel, plan.expert_parallel, options) {
  for (size_t w = 0; w < backends.size(); ++w) {
    const int number = static_cast<int>(w);
    const Device device = {number / plan.ranks / plan.expert_parallel,
                           number / plan.ranks % plan.expert_parallel, number % plan.ranks};
    for (int s = 0; s < plan.stages; ++s) backends[w].gradients[s] = {static_cast<float>(w)};
    workers.push_back({device, &backends[w], &network.At(device)});
  }
}

void FakeRun::Step(const Plan& plan, int step) { Launch(plan, workers).Step(step); }

}  // namespace contraflow
