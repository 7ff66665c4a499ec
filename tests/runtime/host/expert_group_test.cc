// Expert groups, components and static memory: whatever the level of a plan, the members of an
// expert group, their capacity and the order that events leave open, training equals the run
// without a pipeline, bit for bit.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/plan/value.h"
#include "compiler/verify/verify.h"
#include "runtime/core/check.h"
#include "runtime/host/backend.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/runtime/host/beside_reference.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/support.h"

namespace contraflow::expert_group_test {
namespace {

/// A plan for expert groups, with components of random costs if it is of that level.
Plan GroupPlan(std::string_view schedule, int ranks, int microbatches, int members, Level level,
               uint64_t seed, int data_parallel = 1) {
  std::mt19937_64 random(seed);
  const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
  Spec spec = MakeSpec(schedule, ranks, microbatches, costs);
  spec.data_parallel = data_parallel;
  Plan plan = GeneratePlan(spec);
  plan.expert_parallel = members;
  return Lower(std::move(plan), costs, {.target = level});
}

Model ModelFor(const Plan& plan, float capacity) {
  Model model = SmallModel(plan.stages);
  model.layers = plan.stages * std::max(plan.layers, 1);
  model.capacity_factor = capacity;
  return model;
}

void CompareAll(Level level, int members) {
  for (const std::string schedule : {"dualpipe", "1f1b", "zb-1p"}) {
    for (const float capacity : {0.0f, 0.6f}) {
      const Plan plan = GroupPlan(schedule, 4, 8, members, level, 11);
      CAPTURE(schedule);
      CAPTURE(members);
      CAPTURE(capacity);
      const TrainingOutcome outcome =
          TrainBesideReference(plan, ModelFor(plan, capacity), capacity > 0);
      CHECK(outcome.difference == "");
      CHECK((outcome.dropped > 0) == (capacity > 0));
    }
  }
}

bool Names(const Instruction& i, int32_t index) {
  return std::find(i.after.begin(), i.after.begin() + i.after_count, index) !=
         i.after.begin() + i.after_count;
}

/// True if `next`, right behind `i` at `index`, might as well run before it.
bool MaySwap(const Instruction& i, const Instruction& next, int32_t index) {
  const bool same_lane = i.lane == next.lane && i.peer == next.peer;
  return !same_lane && !Names(next, index) && i.group < 0 && next.group < 0;
}

/// `tries` times swaps an instruction with the one behind it, where lanes and events allow it.
void Shuffle(Program* program, size_t tries, std::mt19937_64* random) {
  for (size_t n = 0; n < tries; ++n) {
    const size_t at = std::uniform_int_distribution<size_t>(0, program->size() - 2)(*random);
    const auto index = static_cast<int32_t>(at);
    Instruction &i = (*program)[at], &next = (*program)[at + 1];
    if (!MaySwap(i, next, index)) continue;
    std::swap(i, next);
    for (Instruction& other : *program) {
      const auto end = other.after.begin() + other.after_count;
      for (auto a = other.after.begin(); a != end; ++a) {
        *a = *a == index ? index + 1 : *a == index + 1 ? index : *a;
      }
      std::sort(other.after.begin(), end);
    }
  }
}

/// A transport of the first of two members of an expert group; the other says that it sends `rows`
/// rows to each expert.
class LyingMember : public Transport {
 public:
  explicit LyingMember(int32_t rows) : rows_(rows) {}

  void Post(std::span<Transfer* const>) override {}
  bool Done(Transfer&) override { return true; }
  void Wait(Transfer&) override {}
  Clock::time_point Sum(const Instruction&, Over, std::span<const int>, std::span<float>) override {
    return {};
  }
  void AllToAll(const Instruction&, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    std::copy(send[0].begin(), send[0].end(), receive[0].begin());
    if (calls++ > 0) return;
    for (size_t at = 0; at < receive[1].size(); at += sizeof rows_) {
      std::memcpy(receive[1].data() + at, &rows_, sizeof rows_);
    }
  }
  void Abort() override {}

  int calls = 0;

 private:
  const int32_t rows_;
};

TEST_SUITE("unit") {
  TEST_CASE("expert groups: what a member says of its rows is checked before memory is") {
    Model model = SmallModel(1);
    model.capacity_factor = 0;
    const LayerShape shape(model, 2, model.experts / 2);
    const size_t numbers = static_cast<size_t>(std::max(shape.sent_rows, shape.expert_rows)) *
                           static_cast<size_t>(shape.width);
    std::vector<float> dispatched(numbers), rows(numbers);
    std::vector<int32_t> sent(static_cast<size_t>(shape.experts) + 1, 0), first(sent),
        received(sent);
    LayerViews<float> views;
    views.dispatched = dispatched.data();
    views.rows = rows.data();
    views.sent = sent.data();
    views.first = first.data();
    views.received = received.data();
    const auto said = [&](int32_t lie) {
      LyingMember transport(lie);
      Exchange exchange(shape, transport);
      const std::string error =
          Failure([&] { exchange.Dispatch(Instruction{.op = Op::DISPATCH_F}, views); });
      CHECK((transport.calls > 1) == (error == "accepted"));
      return error;
    };
    CHECK(said(0) == "accepted");
    CHECK(said(shape.expert_rows / shape.local_experts) == "accepted");
    for (const int32_t lie : {-1, INT32_MIN, INT32_MAX, shape.sent_rows + 1,
                              shape.expert_rows / shape.local_experts + 1}) {
      CAPTURE(lie);
      CHECK(said(lie).starts_with("member 1 of the expert group says that it sends " +
                                  std::to_string(lie) + " rows to one expert, "));
    }
  }
}

TEST_SUITE("equivalence") {
  TEST_CASE("expert groups: chunks exchange inside themselves") {
    CompareAll(Level::kComm, 1);
    CompareAll(Level::kComm, 2);
    const Plan replicas = GroupPlan("dualpipe", 2, 4, 4, Level::kComm, 3, 2);
    CHECK(TrainBesideReference(replicas, ModelFor(replicas, 0), false).difference == "");
  }

  TEST_CASE("expert groups: components on their lanes") {
    CompareAll(Level::kComponent, 1);
    CompareAll(Level::kComponent, 2);
    const Plan replicas = GroupPlan("dualpipe-v", 2, 6, 2, Level::kComponent, 3, 2);
    CHECK(TrainBesideReference(replicas, ModelFor(replicas, 1), true).difference == "");
  }

  TEST_CASE("chunks: stages of unequally many layers on one rank hand over to each other") {
    const Plan plan = GroupPlan("dualpipe-v", 2, 6, 2, Level::kComm, 6);
    Model model = ModelFor(plan, 0);
    // The first stages have one layer more, also across the turn of the V.
    for (const int more : {1, 2, 3}) {
      model.layers = plan.stages + more;
      CAPTURE(more);
      CHECK(TrainBesideReference(plan, model, false).difference == "");
    }
  }

  TEST_CASE("components: every schedule") {
    int count = 0;
    for (const Schedule* schedule : Schedules()) {
      if (!schedule->reject(MakeSpec(schedule->name, 2, 4, UniformCosts(3, 4, 2))).empty())
        continue;
      const uint64_t seed = 20 + static_cast<uint64_t>(++count);
      const Plan plan = GroupPlan(schedule->name, 2, 4, 1, Level::kComponent, seed);
      CAPTURE(plan.schedule);
      CHECK(TrainBesideReference(plan, ModelFor(plan, 0), count % 2 == 0).difference == "");
    }
    CHECK(count >= 5);
  }

  TEST_CASE("components: any order that lanes and events allow gives the same bits") {
    std::mt19937_64 random(5);
    int moved = 0;
    for (const std::string schedule : {"dualpipe", "1f1b", "zb-1p"}) {
      const Plan plan = GroupPlan(schedule, 4, 8, 2, Level::kComponent, 2);
      for (size_t round = 0; round < 30; ++round) {
        Plan shuffled = plan;
        // The more is moved, the likelier two ranks wait for each other in the one order in which
        // this executor goes; Verify tells.
        for (Program& program : shuffled.programs) {
          Shuffle(&program, program.size() * (round % 10 + 1) / 20, &random);
        }
        if (shuffled == plan || !Verify(shuffled).empty()) continue;
        ++moved;
        CAPTURE(schedule);
        CHECK(TrainBesideReference(shuffled, ModelFor(plan, 0), false).difference == "");
      }
    }
    MESSAGE(moved << " of 90 plans in another order are sound");
    CHECK(moved >= 8);
  }

  TEST_CASE(
      "expert groups: as many tokens on one device and more replicas give as good gradients") {
    // Replicas and members draw the same tokens, and share the loss alike.
    const Plan group = GroupPlan("1f1b", 2, 4, 2, Level::kComponent, 4);
    const Plan replicas = GroupPlan("1f1b", 2, 4, 1, Level::kComponent, 4, 2);
    const Model model = ModelFor(group, 0);
    const Dataset dataset = SmallDataset();
    ReferenceRun one(group, model, dataset, 7), other(replicas, model, dataset, 7);
    const std::vector<float> losses = one.Step(1), wanted = other.Step(1);
    REQUIRE(losses.size() == wanted.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
    }
    for (int s = 0; s < group.stages; ++s) {
      Stage &a = one.StageAt(s), &b = other.StageAt(s);
      REQUIRE(a.gradients().size() == b.gradients().size());
      for (const ParameterBlock& block : a.blocks()) {
        CAPTURE(block.name);
        double error = 0, norm = 0;
        for (size_t i = block.offset; i < block.offset + block.size; ++i) {
          error += std::pow(static_cast<double>(a.gradients()[i] - b.gradients()[i]), 2);
          norm += std::pow(static_cast<double>(a.gradients()[i]), 2);
        }
        CHECK(norm > 0);
        CHECK(std::sqrt(error) <= 1e-5 * std::sqrt(norm));
      }
    }
  }

  TEST_CASE("expert groups: what differs is named with its member") {
    const Plan plan = GroupPlan("1f1b", 2, 2, 2, Level::kComponent, 1);
    const Model model = ModelFor(plan, 0.5f);
    const Dataset dataset = SmallDataset();
    const auto difference = [&](const auto& spoil) {
      ThreadedRun run(plan, model, dataset, 7, {});
      ReferenceRun reference(plan, model, dataset, 7);
      StepResult result = run.Step(1);
      spoil(result, run);
      return CompareStep(plan, 1, result, run, reference).difference;
    };
    CHECK(difference([](StepResult&, ThreadedRun&) {}) == "");
    CHECK(difference([](StepResult& result, ThreadedRun&) {
            result.losses[3] = 1.5f;
          }).starts_with("step 1: loss of replica 0 member 1, micro-batch 1 is 1.5 (0x3fc00000)"));
    CHECK(difference([](StepResult& result, ThreadedRun&) {
            ++result.dropped;
          }).find(" (token, expert) pairs were dropped, without a pipeline ") != std::string::npos);
    const std::string expert = difference([](StepResult&, ThreadedRun& run) {
      run.At({0, 1, 1}).StageAt(1).expert_gradients()[0] = -0.25f;
    });
    CHECK(expert.find(" expert 2 gate_up\", index 0, on replica 0 member 1 rank 1 is -0.25 ") !=
          std::string::npos);
  }

  TEST_CASE("expert groups: a model that does not fit is refused") {
    const Plan plan = GroupPlan("1f1b", 2, 2, 3, Level::kComponent, 1);
    const Dataset dataset = SmallDataset();
    const auto failure = [&](const Model& model) {
      return Failure([&] { ThreadedRun(plan, model, dataset, 7, {}); });
    };
    CHECK(
        failure(ModelFor(plan, 0)) ==
        "model \"small\": /experts: must be a multiple of the 3 devices of an expert group, is 4; "
        "use `model` with such a number, or a plan with another `expert_parallel`");
    Model model = ModelFor(plan, 0);
    model.experts = 6;
    CHECK(failure(model) == "accepted");
    const int right = model.layers;
    model.layers = right + 1;
    CHECK(failure(model) == "model \"small\": /layers: the plan's 2 stages have " +
                                std::to_string(plan.layers) + " layers each, " +
                                std::to_string(right) + " together, the model has " +
                                std::to_string(right + 1) + "; use `model` with layers " +
                                std::to_string(right) + ", or costs with another layers_per_stage");
    model.layers = 0;
    CHECK(FitModel(model, plan.stages, plan.layers).layers == right);
  }
}

}  // namespace
}  // namespace contraflow::expert_group_test
