#include "compiler/lower/interleave.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "tests/support/deepseek_costs.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/two_lane.h"

namespace contraflow::interleave_test {
namespace {

constexpr Chains kPair = {.forward = true, .backward = true, .weights = true};

enum class Heavy { kCompute, kAllToAll, kNeither };

MoeCost RandomMoe(std::mt19937_64* random, int layers, Heavy heavy, Time most) {
  const auto draw = [&](Time high) {
    return std::uniform_int_distribution<Time>(0, high)(*random);
  };
  MoeCost cost;
  cost.layers_per_stage = layers;
  const bool list = draw(1) == 0;
  for (const ComponentCost& component : kComponentCosts) {
    const bool all_to_all = WorkOf(component.op) == Work::kAllToAll;
    const bool light = all_to_all ? heavy == Heavy::kCompute : heavy == Heavy::kAllToAll;
    for (int l = 0; l < (list ? layers : 1); ++l) {
      (cost.*component.times).push_back(draw(light ? most / 3 : most));
    }
  }
  return cost;
}

std::string Names(const std::vector<Instruction>& order) {
  std::string names;
  for (const Instruction& i : order) {
    names += (names.empty() ? "" : " ") + std::string(Name(i.op)) + "/" + std::to_string(i.layer);
  }
  return names;
}

TEST_SUITE("unit") {
  TEST_CASE("DeepSeek's order comes out for DeepSeek's costs") {
    const Interleaving pair = Interleave(DeepSeek(4), DeepSeek(4), kPair);
    CHECK(pair.makespan == 127'633);
    std::string order;
    for (int j = 0; j < 4; ++j) {
      const std::string f = "/" + std::to_string(j), b = "/" + std::to_string(3 - j);
      order += (j == 0 ? "" : " ") + ("COMBINE_B" + b + " ATTN_F" + f + " MLP_B" + b) +
               (" DISPATCH_F" + f + " DISPATCH_B" + b + " MLP_W" + b) +
               (" MLP_F" + f + " ATTN_B" + b + " ATTN_W" + b + " COMBINE_F" + f);
    }
    CHECK(Names(pair.order) == order);
    for (const Instruction& i : pair.order) {
      const std::string name(Name(i.op));
      CHECK(i.microbatch == (name.ends_with("_F") ? 0 : 1));
      CHECK(i.stage == 0);
    }
  }

  TEST_CASE("chunk costs of the H800 trace by both ways to overlap") {
    CostModel costs;
    costs.moe = DeepSeek(4);
    DeriveChunkCosts(&costs, Overlap::kAll);
    StageCost stage = {.f = 98'696, .b = 112'980, .w = 29'876, .bw = 115'376, .fb = 127'633};
    CHECK(costs.stages == std::vector<StageCost>{stage});
    CHECK(costs.derived == Overlap::kAll);
    CHECK(SerialSum(*costs.moe) == 241'552);
    // Stages that were there keep what no component says.
    costs.stages = {{.reduce = 3, .step = 4}, {.f = 9, .step = 5}};
    DeriveChunkCosts(&costs, Overlap::kPublished);
    stage.bw = 142'856;
    REQUIRE(costs.stages.size() == 2);
    CHECK(costs.stages[1].step == 5);
    stage.reduce = 3;
    stage.step = 4;
    CHECK(costs.stages[0] == stage);
    CHECK(costs.derived == Overlap::kPublished);
  }

  TEST_CASE("each chain alone is the sum of its parts") {
    const MoeCost cost = DeepSeek(4);
    CHECK(Interleave(cost, cost, {.forward = true}).makespan == 98'696);
    CHECK(Interleave(cost, cost, {.backward = true}).makespan == 112'980);
    CHECK(Interleave(cost, cost, {.weights = true}).makespan == 29'876);
    CHECK(Names(Interleave(DeepSeek(2), DeepSeek(2), {.backward = true, .weights = true}).order) ==
          "COMBINE_B/1 MLP_B/1 DISPATCH_B/1 MLP_W/1 ATTN_B/1 ATTN_W/1 "
          "COMBINE_B/0 MLP_B/0 DISPATCH_B/0 MLP_W/0 ATTN_B/0 ATTN_W/0");
  }

  TEST_CASE("the longest stage there may be is interleaved at once") {
    const Interleaving pair = Interleave(DeepSeek(64), DeepSeek(64), kPair);
    CHECK(FlawOfRun(JobsOf(DeepSeek(64), DeepSeek(64), kPair), pair) == "");
    // 16 chunks of four layers; only the very first COMBINE_B overlaps nothing.
    CHECK(pair.makespan == 5'784 - 4'599 + 64 * (127'633 - 5'784 + 4'599) / 4);
  }

  TEST_CASE("a row of layers with ends is interleaved soon, and nearly as well") {
    // For the exact answer 90,000 partial orders are looked at.
    const std::vector<Time> layer = {59, 171, 166, 131, 242, 69, 163, 55, 242, 62};
    MoeCost row;
    row.layers_per_stage = 22;
    row.kinds.assign(22, LayerKind::kMoe);
    row.kinds.front() = row.kinds.back() = LayerKind::kPlain;
    for (size_t c = 0; c < layer.size(); ++c) {
      const Op op = kComponentCosts[c].op;
      std::vector<Time>& times = row.*kComponentCosts[c].times;
      times.assign(22, layer[c]);
      times.front() = op == Op::ATTN_F ? 33 : op == Op::ATTN_W ? 13 : 0;
      times.back() = op == Op::ATTN_F ? 178 : op == Op::ATTN_B ? 802 : op == Op::ATTN_W ? 766 : 0;
    }
    const Interleaving soon = InterleaveSoon(row, row, kPair);
    CHECK(soon.makespan >= 15'838);
    CHECK(soon.makespan <= 15'838 * 102 / 100);
    CostModel costs;
    costs.moe = row;
    DeriveChunkCosts(&costs, Overlap::kAll, true);
    CHECK(costs.stages.front().fb == soon.makespan);
    row.kinds.clear();
    CHECK(FlawOfRun(JobsOf(row, row, kPair), InterleaveSoon(row, row, kPair)) == "");
  }

  TEST_CASE("rows of few layers are interleaved soon as well as they can be") {
    std::mt19937_64 random(17);
    for (int i = 0; i < CasesToDraw(200); ++i) {
      const MoeCost cost = RandomMoe(&random, 1 + i % 3, Heavy::kNeither, 1000);
      CAPTURE(i);
      CHECK(InterleaveSoon(cost, cost, kPair).makespan == Interleave(cost, cost, kPair).makespan);
    }
  }

  TEST_CASE("an exact answer or none") {
    std::mt19937_64 random(3);
    MoeCost cost;
    do {
      cost = RandomMoe(&random, 8, Heavy::kNeither, 1000);
    } while (cost.attn_f.size() == 1);
    const std::string flaw = Failure([&] { Interleave(cost, cost, kPair, 20); });
    CHECK(flaw ==
          "the components of 8 layers cannot be interleaved exactly within 20 partial orders; give "
          "fewer \"layers_per_stage\", or layers that cost the same");
    CHECK(Failure([&] { Interleave(cost, cost, kPair); }) == "accepted");
  }
}

TEST_SUITE("property") {
  TEST_CASE("1000 random component costs: the optimum of an independent search") {
    std::mt19937_64 random(11);
    double gain[3] = {0, 0, 0};
    int better[3] = {0, 0, 0}, cases[3] = {0, 0, 0};
    for (int i = 0; i < CasesToDraw(1000); ++i) {
      const int layers = 1 << i % 3;
      const auto heavy = static_cast<Heavy>(i / 3 % 3);
      const MoeCost cost = RandomMoe(&random, layers, heavy, layers == 4 ? 200 : 10'000);
      const std::vector<LaneJob> jobs = JobsOf(cost, cost, kPair);
      const Interleaving pair = Interleave(cost, cost, kPair);
      CAPTURE(i);
      CAPTURE(layers);
      CHECK(pair.makespan == (layers == 1 ? ExhaustiveMakespan(jobs) : EventMakespan(jobs)));
      CHECK(FlawOfRun(jobs, pair) == "");
      const Time fixed = DeepSeekMakespan(jobs, layers);
      CHECK(pair.makespan <= fixed);
      const auto kind = static_cast<size_t>(heavy);
      ++cases[kind];
      better[kind] += pair.makespan < fixed;
      if (pair.makespan > 0) {
        gain[kind] += static_cast<double>(fixed - pair.makespan) / static_cast<double>(fixed);
      }
    }
    const auto report = [&](size_t kind) {
      return std::to_string(better[kind]) + " of " + std::to_string(cases[kind]) +
             " shorter than DeepSeek's order, on average of all by " +
             std::to_string(100 * gain[kind] / cases[kind]) + " %";
    };
    MESSAGE("compute-heavy: " << report(0));
    MESSAGE("all-to-all-heavy: " << report(1));
    MESSAGE("balanced: " << report(2));
    CHECK((kSanitized || better[0] + better[1] + better[2] > 300));
  }

  TEST_CASE("the event oracle agrees with enumerating all lane orders") {
    std::mt19937_64 random(12);
    for (int i = 0; i < CasesToDraw(60); ++i) {
      CAPTURE(i);
      const MoeCost cost = RandomMoe(&random, 1, static_cast<Heavy>(i % 3), 30);
      const std::vector<LaneJob> jobs = JobsOf(cost, cost, kPair);
      CHECK(EventMakespan(jobs) == ExhaustiveMakespan(jobs));
    }
  }

  TEST_CASE("any chains and two kinds of micro-batches: the optimum") {
    std::mt19937_64 random(13);
    for (int i = 0; i < CasesToDraw(400); ++i) {
      CAPTURE(i);
      const int layers = 1 + i % 3;
      const Chains chains = {
          .forward = i % 2 == 0, .backward = i / 2 % 2 == 0, .weights = i / 4 % 2 == 0};
      const MoeCost forward = RandomMoe(&random, layers, static_cast<Heavy>(i % 3), 25);
      const MoeCost backward = RandomMoe(&random, layers, static_cast<Heavy>(i % 3), 25);
      const std::vector<LaneJob> jobs = JobsOf(forward, backward, chains);
      const Interleaving best = Interleave(forward, backward, chains);
      CHECK(best.makespan == EventMakespan(jobs));
      CHECK(FlawOfRun(jobs, best) == "");
      const Interleaving again = Interleave(forward, backward, chains);
      CHECK(again.order == best.order);
    }
  }
}

}  // namespace
}  // namespace contraflow::interleave_test
