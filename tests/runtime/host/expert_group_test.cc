// Expert groups, components and static memory: whatever the level of a plan, the members of an
// expert group, their capacity and the order that events leave open, training equals the run
// without a pipeline, bit for bit.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/verify/verify.h"
#include "runtime/host/backend.h"
#include "runtime/launch/threaded_run.h"
#include "runtime/model/views.h"
#include "schedules/registry.h"
#include "tests/runtime/host/stage_fixture.h"
#include "tests/support/failure.h"
#include "tests/support/run_support.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::expert_group_test {
namespace {

void CompareAll(Level level, int members) {
  for (const std::string schedule : {"dualpipe", "1f1b", "zb-1p"}) {
    for (const float capacity : {0.0f, 0.6f}) {
      const Model model = GroupModel(capacity);
      const Plan plan = PlanFor(model, schedule, 4, 8, members, level, 11);
      CAPTURES(schedule, members, capacity);
      const TrainingOutcome outcome = TrainBesideReference(plan, model, {.strict = capacity > 0});
      CHECK(outcome.difference == "");
      CHECK((outcome.dropped > 0) == (capacity > 0));
    }
  }
}

bool Names(const Instruction& i, int32_t index) {
  return std::find(i.after.begin(), i.after.begin() + i.after_count, index) !=
         i.after.begin() + i.after_count;
}

/// True if `next`, right after `i` at `index`, might as well run before it.
bool MaySwap(const Instruction& i, const Instruction& next, int32_t index) {
  const bool same_lane = i.lane == next.lane && i.peer == next.peer;
  return !same_lane && !Names(next, index) && i.group < 0 && next.group < 0;
}

/// `tries` times swaps an instruction with the one after it, where lanes and events allow it.
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
          Failure([&] { exchange.Run(Instruction{.op = Op::DISPATCH_F}, views); });
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
    const Plan replicas = PlanFor(GroupModel(), "dualpipe", 2, 4, 4, Level::kComm, 3, 2);
    CHECK(TrainBesideReference(replicas, GroupModel(), {.strict = false}).difference == "");
  }

  TEST_CASE("expert groups: components on their lanes") {
    CompareAll(Level::kComponent, 1);
    CompareAll(Level::kComponent, 2);
    const Plan replicas = PlanFor(GroupModel(1), "dualpipe-v", 2, 6, 2, Level::kComponent, 3, 2);
    CHECK(TrainBesideReference(replicas, GroupModel(1)).difference == "");
  }

  TEST_CASE("chunks: stages of unequally many layers on one rank hand over to each other") {
    Model model = GroupModel();
    const Plan plan = PlanFor(model, "dualpipe-v", 2, 6, 2, Level::kComm, 6);
    // The first stages have one layer more, also across the turn of the V.
    for (const int more : {1, 2, 3}) {
      model.layers = plan.stages + more;
      CAPTURE(more);
      CHECK(TrainBesideReference(plan, model, {.strict = false}).difference == "");
    }
  }

  TEST_CASE("components: every schedule") {
    int count = 0;
    for (const Schedule* schedule : Schedules()) {
      if (!schedule->reject(MakeSpec(schedule->name, 2, 4, UniformCosts(3, 4, 2))).empty())
        continue;
      const uint64_t seed = 20 + static_cast<uint64_t>(++count);
      const Plan plan = PlanFor(GroupModel(), schedule->name, 2, 4, 1, Level::kComponent, seed);
      CAPTURE(plan.schedule);
      CHECK(TrainBesideReference(plan, GroupModel(), {.strict = count % 2 == 0}).difference == "");
    }
    CHECK(count >= 5);
  }

  TEST_CASE("components: any order that lanes and events allow gives the same bits") {
    std::mt19937_64 random(5);
    int moved = 0;
    for (const std::string schedule : {"dualpipe", "1f1b", "zb-1p"}) {
      const Plan plan = PlanFor(GroupModel(), schedule, 4, 8, 2, Level::kComponent, 2);
      for (size_t round = 0; round < static_cast<size_t>(CasesToDraw(30)); ++round) {
        Plan shuffled = plan;
        // The more is moved, the likelier two ranks wait for each other in the one order in which
        // this executor goes; Verify tells.
        for (Program& program : shuffled.programs) {
          Shuffle(&program, program.size() * (round % 10 + 1) / 20, &random);
        }
        if (shuffled == plan || !Verify(shuffled).empty()) continue;
        ++moved;
        CAPTURE(schedule);
        CHECK(TrainBesideReference(shuffled, GroupModel(), {.strict = false}).difference == "");
      }
    }
    MESSAGE(moved << " of 90 plans in another order are sound");
    CHECK((kSanitized || moved >= 8));
  }

  TEST_CASE(
      "expert groups: as many tokens on one device and more replicas give as good gradients") {
    // Replicas and members draw the same tokens, and share the loss alike.
    const Model model = GroupModel();
    const Plan group = PlanFor(model, "1f1b", 2, 4, 2, Level::kComponent, 4);
    const Plan replicas = PlanFor(model, "1f1b", 2, 4, 1, Level::kComponent, 4, 2);
    const Dataset dataset = SmallDataset();
    ReferenceRun one(group, model, dataset, 7), other(replicas, model, dataset, 7);
    const std::vector<float> losses = one.Step(1), wanted = other.Step(1);
    REQUIRE(losses.size() == wanted.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
    }
    CHECK(BlocksApart(one.stage(), other.stage(), 1e-5) == "");
  }

  TEST_CASE("equivalence: a wrong loss count gradient or weight is named") {
    const Model model = GroupModel(0.5f);
    const Plan plan = PlanFor(model, "1f1b", 2, 2, 2, Level::kComponent, 1);
    const auto difference = [&](const auto& spoil) {
      return TrainBesideReference(plan, model, {.spoil = spoil}).difference;
    };
    CHECK(difference([](StepResult&, ThreadedRun&) {}) == "");
    CHECK(difference([](StepResult& result, ThreadedRun&) { result.losses[3] = 1.5f; })
              .starts_with("step 1: loss of replica 0 member 1, micro-batch 1 is 1.5 (0x3fc00000), "
                           "without a pipeline "));
    CHECK(Contains(difference([](StepResult& result, ThreadedRun&) { ++result.dropped; }),
                   " (token, expert) pairs were dropped, without a pipeline "));
    const std::string expert = difference([](StepResult&, ThreadedRun& run) {
      run.At({0, 1, 1}).StageAt(1).expert_gradients()[0] = -0.25f;
    });
    CHECK(expert.starts_with("step 1: gradient of stage 1, block \"layer "));
    CHECK(Contains(expert,
                   " expert 2 gate_up\", index 0, on replica 0 member 1 rank 1 is -0.25 "
                   "(0xbe800000), without a pipeline "));
    CHECK(difference([](StepResult&, ThreadedRun& run) {
            float& weight = run.At({0, 0, 0}).StageAt(0).parameters()[0];
            weight = -weight;
          }).starts_with("step 1: updated weight of stage 0, block \""));
  }

  TEST_CASE("expert groups: a model that does not fit is refused") {
    Model model = GroupModel();
    model.experts = 6;
    const Plan plan = PlanFor(model, "1f1b", 2, 2, 3, Level::kComponent, 1);
    const Dataset dataset = SmallDataset();
    const auto failure = [&] { return Failure([&] { ThreadedRun(plan, model, dataset, 7, {}); }); };
    CHECK(failure() == "accepted");
    model.experts = 4;
    CHECK(
        failure() ==
        "model \"small\": /experts: must be a multiple of the 3 devices of an expert group, is 4; "
        "use `model` with such a number, or a plan with another `expert_parallel`");
    model.experts = 6;
    const int right = 2 * plan.layers;
    model.layers = right + 1;
    CHECK(failure() == "model \"small\": /layers: the plan's 2 stages have " +
                           std::to_string(plan.layers) + " layers each, " + std::to_string(right) +
                           " together, the model has " + std::to_string(right + 1) +
                           "; use `model` with layers " + std::to_string(right) +
                           ", or costs with another layers_per_stage");
    model.layers = 0;
    CHECK(FitModel(model, plan.stages, plan.layers).layers == right);
  }
}

}  // namespace
}  // namespace contraflow::expert_group_test
