#include "schedules/search/repartition.h"

#include <doctest/doctest.h>

#include <random>

#include "compiler/lower/interleave.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::repartition_test {
namespace {

/// The sums over a model, which no cut changes.
struct Total {
  Time f = 0, b = 0, w = 0, reduce = 0, step = 0, recompute = 0;
  int64_t parameters = 0;

  bool operator==(const Total&) const = default;
};

Total TotalOf(const CostModel& costs, int stages) {
  Total total;
  for (int s = 0; s < stages; ++s) {
    const StageCost& stage = costs.stage(s);
    total.f += stage.f;
    total.b += stage.b;
    total.w += stage.w;
    total.reduce += stage.reduce;
    total.step += stage.step;
    total.recompute += stage.recompute();
  }
  const std::vector<int64_t>& bytes = costs.memory->parameter_bytes;
  for (const int64_t entry : bytes) total.parameters += bytes.size() == 1 ? stages * entry : entry;
  return total;
}

TEST_SUITE("property") {
  TEST_CASE("costs of cut and of merged stages are those of the same model") {
    std::mt19937_64 random(17);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    int alike = 0;
    for (int round = 0; round < CasesToDraw(500); ++round) {
      const int stages = draw(1, 6), parts = draw(1, 4);
      CostModel costs = RandomCosts(&random, stages, 3);
      if (draw(0, 2) == 0) {
        for (StageCost& stage : costs.stages) stage.r = draw(0, stage.f > 0 ? 9 : 0);
      }
      costs.memory = {.activation_bytes = draw(1, 99), .w_stash_bytes = 0};
      costs.memory->w_stash_bytes = draw(0, static_cast<int>(costs.memory->activation_bytes));
      if (draw(0, 1) == 0) {
        MemoryCost& memory = *costs.memory;
        for (int s = 0; s < stages; ++s) {
          memory.activation_of.push_back(memory.activation_bytes + (s > 0 ? draw(0, 50) : 0));
          memory.stash_of.push_back(memory.w_stash_bytes);
        }
      }
      const int entries = draw(0, 1) == 0 ? 1 : stages;
      for (int s = 0; s < entries; ++s) {
        costs.memory->parameter_bytes.push_back(draw(0, 50));
      }
      CAPTURES(round, stages, parts);
      CHECK(RejectRepartition(costs, stages, parts * stages) == "");
      const CostModel cut = Repartition(costs, stages, parts * stages);
      CheckCosts(cut, parts * stages, 3);
      CHECK(TotalOf(cut, parts * stages) == TotalOf(costs, stages));
      CHECK(parts * cut.memory->activation_bytes >= costs.memory->activation_bytes);
      CHECK(parts * (cut.memory->activation_bytes - 1) < costs.memory->activation_bytes);
      CHECK(cut.memory->w_stash_bytes <= cut.memory->activation_bytes);
      const int64_t held = costs.memory->ActivationOfAll(stages);
      for (int s = 0; s < parts * stages; ++s) {
        CHECK(cut.memory->stash(s) <= cut.memory->activation(s));
      }
      CHECK(cut.memory->ActivationOfAll(parts * stages) >= held);
      CHECK(cut.memory->ActivationOfAll(parts * stages) < held + int64_t{parts} * stages);
      CHECK(cut.comm == costs.comm);
      alike += parts > 1 && cut.stages.size() == 1;
      const CostModel merged = Repartition(cut, parts * stages, stages);
      CheckCosts(merged, stages, 3);
      CHECK(TotalOf(merged, stages) == TotalOf(costs, stages));
      for (int s = 0; s < stages; ++s) {
        CHECK(merged.stage(s).f == costs.stage(s).f);
        CHECK(merged.stage(s).bw == costs.stage(s).bw);
        CHECK(merged.stage(s).fb == costs.stage(s).fb);
      }
    }
    CHECK((kSanitized || alike > 0));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a stage of layers is cut between them and a merged one has the layers of both") {
    CostModel costs;
    costs.moe = MoeCost{};
    costs.moe->layers_per_stage = 4;
    Time next = 1;
    for (const ComponentCost& component : kComponentCosts) {
      (*costs.moe).*component.times = {next++};
    }
    costs.moe->attn_f = {7, 9, 7, 9};
    costs.memory = {.activation_bytes = 400, .w_stash_bytes = 100};
    costs.memory->input_bytes = 30;
    DeriveChunkCosts(&costs, Overlap::kAll);
    const CostModel halves = Repartition(costs, 4, 8);
    CHECK(halves.moe->layers_per_stage == 2);
    CHECK(halves.moe->attn_f == std::vector<Time>{7, 9});
    CHECK(halves.moe->mlp_w == costs.moe->mlp_w);
    CHECK(2 * halves.stage(0).f == costs.stage(0).f);
    CHECK(halves.memory->activation_bytes == 200);
    CHECK(halves.memory->input_bytes == 30);
    const CostModel whole = Repartition(halves, 8, 4);
    CHECK(whole.stages == costs.stages);
    CHECK(whole.moe == costs.moe);
    CHECK(whole.memory == costs.memory);
    CHECK(RejectRepartition(costs, 4, 12) ==
          "would split each stage into 3, and its 4 layers do not divide");
    costs.moe->attn_f = {7, 9, 7, 8};
    CHECK(RejectRepartition(costs, 4, 8) ==
          "would split each stage into 2, and its layers differ (\"attn_f\")");
    CHECK(RejectRepartition(costs, 40, 2) ==
          "would merge stages of 4 layers into one of more than 64");
    CHECK(RejectRepartition(costs, 6, 4) ==
          "would need costs of 4 stages, these are of 6, which can be neither split nor merged "
          "into that many equal parts");
  }
}

}  // namespace
}  // namespace contraflow::repartition_test
