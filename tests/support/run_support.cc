#include "tests/support/run_support.h"

#include <chrono>
#include <random>
#include <utility>

#include "compiler/lower/lower.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "runtime/host/check.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

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
  return FitModel({.name = "small",
                   .layers = stages,
                   .width = 8,
                   .heads = 2,
                   .experts = 4,
                   .top_k = 2,
                   .expert_width = 8,
                   .sequence = 6,
                   .batch = 2},
                  stages);
}

Model GroupModel(float capacity_factor) {
  Model model = SmallModel(1);
  model.layers = 0;
  model.capacity_factor = capacity_factor;
  return model;
}

Plan PlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
             int members, Level level, uint64_t seed, int data_parallel) {
  std::mt19937_64 random(seed);
  CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
  Spec spec = MakeSpec(schedule, ranks, microbatches, costs);
  spec.data_parallel = data_parallel;
  Plan plan = GeneratePlan(spec);
  plan.expert_parallel = members;
  costs.memory = FootprintOf(model, plan.stages, costs.moe->layers_per_stage, members);
  return Lower(std::move(plan), costs, {.target = level});
}

Plan UnlikePlanFor(const Model& model, std::string_view schedule, int ranks, int microbatches,
                   Level level, uint64_t seed) {
  std::mt19937_64 random(seed);
  Spec spec = MakeSpec(schedule, ranks, microbatches, {});
  const int stages = FindSchedule(spec.schedule).stages(spec);
  spec.costs = RandomUnlikeCosts(&random, stages, 3, false, Overlap::kAll);
  MemoryCost memory;
  memory.values = FootprintOf(model, 1, 1, 1).values;
  spec.costs.memory = memory;
  return Lower(GeneratePlan(spec), spec.costs, {.target = level});
}

Dataset SmallDataset() {
  Dataset dataset{"small text", ""};
  uint32_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525u + 1013904223u;
    dataset.bytes += static_cast<char>('a' + (state >> 24) % 26);
  }
  return dataset;
}

TrainingOutcome TrainBesideReference(const Plan& plan, const Model& model,
                                     const BesideOptions& options) {
  TrainingOutcome outcome;
  const std::string failure = Failure([&] {
    const Dataset dataset = SmallDataset();
    ThreadedRun run(plan, model, dataset, 7,
                    {.strict = options.strict, .timeout = std::chrono::seconds(120)}, options.fill);
    ReferenceRun reference(options.like != nullptr ? *options.like : plan, model, dataset, 7);
    for (int step = 1; step <= options.steps && outcome.difference.empty(); ++step) {
      StepResult result = run.Step(step);
      if (options.spoil) options.spoil(result, run);
      const Comparison comparison = CompareStep(plan, step, result, run, reference);
      outcome.difference = comparison.difference;
      outcome.dropped += result.dropped;
      if (outcome.difference.empty() && comparison.values <= 1000) outcome.difference = "too few";
    }
  });
  if (failure != "accepted") outcome.difference = failure;
  return outcome;
}

void FakeBackend::BeginStep(int step) { log.push_back("begin " + std::to_string(step)); }

void FakeBackend::Take(const Tag& tag) {
  const auto value = values_.find(tag);
  if (value == values_.end()) throw Error("a value is missing");
  if (value->second != Symbol(tag)) throw Error("a value is not the right one");
  values_.erase(value);
}

void FakeBackend::Forward(int stage, int microbatch, bool begins, bool ends) {
  if (begins && stage > 0) Take({true, stage - 1, microbatch});
  const Tag made{true, stage, microbatch};
  if (ends && stage + 1 < plan_.stages) values_[made] = Symbol(made);
}

void FakeBackend::Backward(int stage, int microbatch, bool begins, bool ends) {
  if (begins && stage + 1 < plan_.stages) Take({false, stage + 1, microbatch});
  const Tag made{false, stage, microbatch};
  if (ends && stage > 0) values_[made] = Symbol(made);
}

void FakeBackend::Exchange(const Instruction& i) {
  std::vector<int> send, receive;
  const auto number = [&](int from, int to) {
    return ((static_cast<int>(i.op) * 100 + i.stage * 10 + i.layer) * 100 + i.microbatch) * 100 +
           from * 10 + to;
  };
  for (int e = 0; e < plan_.expert_parallel; ++e) send.push_back(number(device_.member, e));
  receive.resize(send.size());
  std::vector<std::span<const std::byte>> from;
  std::vector<std::span<std::byte>> to;
  for (size_t e = 0; e < send.size(); ++e) {
    from.push_back(std::as_bytes(std::span(&send[e], 1)));
    to.push_back(std::as_writable_bytes(std::span(&receive[e], 1)));
  }
  transport->AllToAll(i, from, to);
  for (int e = 0; e < plan_.expert_parallel; ++e) {
    if (receive[static_cast<size_t>(e)] != number(e, device_.member)) {
      throw Error("a part is not the right one");
    }
  }
}

void FakeBackend::Compute(const Instruction& i) {
  log.push_back(ToString(i));
  if (WorkOf(i.op) == Work::kAllToAll) Exchange(i);
  const bool first = i.layer == 0, last = i.layer + 1 == plan_.layers;
  if (HasForward(i.op)) Forward(i.stage, i.microbatch, true, true);
  if (HasBackward(i.op)) Backward(BackStage(i), BackMicrobatch(i), true, true);
  if (i.op == Op::ATTN_F) Forward(i.stage, i.microbatch, first, false);
  if (i.op == Op::COMBINE_F) Forward(i.stage, i.microbatch, false, last);
  if (i.op == Op::COMBINE_B) Backward(i.stage, i.microbatch, last, false);
  if (i.op == Op::ATTN_B) Backward(i.stage, i.microbatch, false, first);
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

std::span<float> FakeBackend::ExpertGradients(int stage) {
  if (plan_.expert_parallel > 1) log.push_back("experts " + std::to_string(stage));
  return experts[stage];
}

void FakeBackend::OptimizerStep(int stage) { log.push_back("step " + std::to_string(stage)); }

FakeRun::FakeRun(const Plan& plan, ThreadNetwork::Options options)
    : network(plan.ranks, plan.data_parallel, plan.expert_parallel, options) {
  const int devices = plan.ranks * plan.data_parallel * plan.expert_parallel;
  backends.reserve(static_cast<size_t>(devices));
  for (int w = 0; w < devices; ++w) {
    const Device device = {w / plan.ranks / plan.expert_parallel,
                           w / plan.ranks % plan.expert_parallel, w % plan.ranks};
    FakeBackend& backend = backends.emplace_back(plan, device, &network.At(device));
    for (int s = 0; s < plan.stages; ++s) {
      backend.gradients[s] = {static_cast<float>(w)};
      if (plan.expert_parallel > 1) backend.experts[s] = {static_cast<float>(w), 1};
    }
    workers.push_back({device, &backend, &network.At(device)});
  }
}

void FakeRun::Step(const Plan& plan, int step) { Launch(plan, workers).Step(step); }

}  // namespace contraflow
