#include "compiler/simulate/memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/value.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/compile.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"

namespace contraflow::memory_test {
namespace {

constexpr auto kActivations = static_cast<size_t>(Arena::kActivation);
constexpr auto kStashes = static_cast<size_t>(Arena::kStash);

Plan PlanOf(const Spec& spec, Level level) {
  return Lower(GeneratePlan(spec), spec.costs, {.target = level});
}

int64_t MostOf(const std::vector<MemoryFigures>& ranks) {
  int64_t most = 0;
  for (const MemoryFigures& figures : ranks) most = std::max(most, figures.peak);
  return most;
}

CostModel Bytes(int64_t activation, int64_t stash) {
  CostModel costs = UniformCosts(1, 1, 1);
  costs.memory = MemoryCost{.activation_bytes = activation, .w_stash_bytes = stash};
  return costs;
}

TEST_SUITE("unit") {
  TEST_CASE("stages count once for every copy that a rank holds") {
    CostModel costs = Bytes(10, 4);
    costs.memory->parameter_bytes = {1, 20, 300, 4000};
    costs.memory->gradient_bytes = {7};
    const auto line = MemoryOf(PlanOf(MakeSpec("1f1b", 4, 8, costs), Level::kComm), costs);
    CHECK(line[2].parameters == 300);
    CHECK(line[2].gradients == 7);
    CHECK(!line[2].optimizer);
    // DualPipe has every stage on two ranks: r and P - 1 - r.
    const auto both = MemoryOf(PlanOf(MakeSpec("dualpipe", 4, 8, costs), Level::kComm), costs);
    CHECK(both[0].parameters == 4001);
    CHECK(both[1].parameters == 320);
    CHECK(both[3].parameters == 4001);
    CHECK(both[1].gradients == 14);
    costs.memory->optimizer_bytes = {1, 2};
    CHECK(Failure([&] {
            MemoryOf(PlanOf(MakeSpec("1f1b", 4, 8, Bytes(10, 4)), Level::kComm), costs);
          }) ==
          "`costs`: /memory/optimizer_bytes: is for 2 stages, this plan has 4; give one number "
          "(every stage alike) or one for each stage");
  }

  TEST_CASE("replicas that share bytes hold a part each, rounded up") {
    CostModel costs = Bytes(10, 4);
    costs.memory->optimizer_bytes = costs.memory->gradient_bytes = {13};
    Spec spec = MakeSpec("1f1b", 2, 4, costs);
    spec.data_parallel = 2;
    const auto held = [&](int zero) {
      costs.memory->zero = spec.costs.memory->zero = zero;
      const MemoryFigures rank = MemoryOf(PlanOf(spec, Level::kComm), costs)[0];
      return std::pair(rank.gradients, rank.optimizer);
    };
    CHECK(held(0) == std::pair<std::optional<int64_t>, std::optional<int64_t>>(13, 13));
    CHECK(held(1) == std::pair<std::optional<int64_t>, std::optional<int64_t>>(13, 7));
    CHECK(held(2) == std::pair<std::optional<int64_t>, std::optional<int64_t>>(7, 7));
    // Each kind has a part of its own: 5 of experts and 8 of the rest.
    costs.memory->optimizer_rest = costs.memory->gradient_rest = {8};
    spec.data_parallel = 3;
    CHECK(held(2) == std::pair<std::optional<int64_t>, std::optional<int64_t>>(5, 5));
  }

  TEST_CASE("shared parameters are whole for two stages of a rank at a time") {
    CostModel costs = Bytes(10, 4);
    costs.memory->parameter_bytes = {10, 20, 30, 40, 50, 60};
    costs.memory->zero = 3;
    Spec spec = MakeSpec("interleaved-1f1b", 2, 4, costs);
    spec.chunks = 3;
    const auto rank = [&] { return MemoryOf(PlanOf(spec, Level::kComm), costs)[0]; };
    // One replica has nothing to share.
    CHECK(rank().parameters == 10 + 30 + 50);
    CHECK(rank().gathered == 0);
    spec.data_parallel = 4;
    CHECK(rank().parameters == 23);
    CHECK(rank().gathered == 30 + 50);
    CHECK(rank().fixed() == 23 + 80 + rank().messages);
    spec.chunks = 1;
    spec.schedule = "1f1b";
    costs.memory->parameter_bytes = spec.costs.memory->parameter_bytes = {10, 20};
    CHECK(rank().gathered == 10);
  }

  TEST_CASE("a rank sends nothing to itself") {
    CostModel costs = Bytes(10, 4);
    costs.comm.bytes = 100;
    costs.comm.bandwidth = 100;
    // The last rank of a V has two stages that follow each other.
    const auto ranks = MemoryOf(PlanOf(MakeSpec("zb-v", 3, 6, costs), Level::kComm), costs);
    CHECK(ranks[0].messages == 200);
    CHECK(ranks[1].messages == 400);
    CHECK(ranks[2].messages == 200);
  }

  TEST_CASE("a peak is split where it is reached") {
    const CostModel costs = Bytes(10, 4);
    const Plan plan = PlanOf(MakeSpec("1f1b", 2, 3, costs), Level::kCompute);
    const auto ranks = MemoryOf(plan, costs);
    // F0 F1 BW0 F2 BW1 BW2: two activations at once, first during F1.
    CHECK(ranks[0].peak == 20);
    CHECK(ranks[0].arenas[kActivations] == 12);
    CHECK(ranks[0].arenas[kStashes] == 8);
    CHECK(ranks[0].peak_index == 1);
    CHECK(ranks[1].peak == 10);
    CHECK(ranks[1].peak_index == 0);
    CHECK(MemoryOf(plan, UniformCosts(1, 1, 1))[0].peak_index == -1);
  }

  TEST_CASE("each stage holds its own") {
    CostModel costs = Bytes(10, 4);
    costs.memory->activation_of = {30, 10, 20, 10};
    costs.memory->stash_of = {12, 4, 4, 10};
    const Plan line = PlanOf(MakeSpec("1f1b", 4, 8, costs), Level::kCompute);
    const Simulation simulation = Simulate(line, costs);
    // Rank r has P - r at once.
    const int64_t expected[] = {4 * 30, 3 * 10, 2 * 20, 10};
    for (size_t r = 0; r < 4; ++r) {
      CHECK(MemoryOf(line, costs)[r].peak == expected[r]);
      CHECK(simulation.ranks[r].peak_bytes == expected[r]);
    }
    CHECK(MemoryOf(line, costs)[0].arenas[kStashes] == 4 * 12);
    // A plan of slots says the same or, where they do not pack tightly, more.
    const Plan buffers = PlanOf(MakeSpec("1f1b", 4, 8, costs), Level::kBuffer);
    for (const Slot& slot : buffers.slots[0]) {
      if (slot.value == Value::activation) CHECK(slot.bytes == 18);
      if (slot.value == Value::stash) CHECK(slot.bytes == 12);
    }
    CHECK(Verify(buffers).empty());
    Plan wrong = buffers;
    wrong.costs->memory->activation_of[0] = 31;
    CHECK_FALSE(Verify(wrong).empty());
    costs.memory->stash_of.pop_back();
    CHECK(Failure([&] { Simulate(line, costs); }) ==
          "`costs`: /memory/w_stash_bytes: has 3 entries, this plan has 4 stages; give one number "
          "(every stage alike) or one for each stage");
  }

  TEST_CASE("a breakdown names what is known") {
    MemoryFigures figures;
    CHECK(Breakdown(figures) == "activations without stashes 0, stashes 0");
    figures.arenas = {1234567, 999, 0, 1000};
    figures.parameters = 5;
    figures.optimizer = 0;
    CHECK(Breakdown(figures) ==
          "activations without stashes 1,234,567, stashes 999, exchange buffers 1,000; also "
          "parameters 5, optimizer state 0");
    figures.arenas[2] = 1;
    figures.gradients = 12;
    CHECK(Breakdown(figures) ==
          "activations without stashes 1,234,567, stashes 999, gradients in flight 1, exchange "
          "buffers 1,000; also parameters 5, gradients 12, optimizer state 0");
  }

  TEST_CASE("a forward that runs again is gone when the next one waits for its last component") {
    CostModel costs;
    costs.moe = MoeCost{};
    costs.moe->layers_per_stage = 1;
    for (const ComponentCost& component : kComponentCosts) (*costs.moe.*component.times) = {2};
    DeriveChunkCosts(&costs, Overlap::kAll);
    costs.memory = MemoryCost{.activation_bytes = 100, .w_stash_bytes = 30, .input_bytes = 10};
    const Plan order = PlanFromText(
        "route 0 0 : 0\nrank\n F s0 m0\n F s1 m0\n R s1 m0\n BW s1 m0\n R s0 m0\n BW s0 m0\n");
    const Plan plan = Lower(order, costs, {.target = Level::kComponent});
    // The input of stage 0, and all of stage 1.
    CHECK(MemoryOf(plan, costs)[0].peak == 110);
    CHECK(Simulate(plan, costs).ranks[0].peak_bytes == 110);
  }

  TEST_CASE("DualPipe holds one activation more than 1F1B") {
    for (const int ranks : {2, 4, 8, 16}) {
      CAPTURE(ranks);
      const CostModel costs = Bytes(1000, 0);
      const auto most = [&](const char* schedule) {
        return MostOf(
            MemoryOf(PlanOf(MakeSpec(schedule, ranks, 4 * ranks, costs), Level::kComm), costs));
      };
      CHECK(most("1f1b") == 1000 * ranks);
      CHECK(most("dualpipe") == 1000 * (ranks + 1));
    }
  }
}

TEST_SUITE("property") {
  TEST_CASE("components: no durations make a rank hold more than its peak, with R or without") {
    std::mt19937_64 random(67);
    int reached = 0, cases = 0;
    for (int round = 0; round < CasesToDraw(150); ++round) {
      const Overlap overlap = round % 2 == 0 ? Overlap::kAll : Overlap::kPublished;
      const int ranks = 1 + static_cast<int>(random() % 4);
      Spec spec = MakeSpec(random() % 2 == 0 ? "1f1b" : "zb-1p", ranks, 2 * ranks,
                           RandomMoeCosts(&random, 3, overlap));
      spec.costs.memory = MemoryCost{.activation_bytes = 90 + static_cast<int64_t>(random() % 90),
                                     .w_stash_bytes = static_cast<int64_t>(random() % 50),
                                     .input_bytes = static_cast<int64_t>(random() % 50)};
      spec.recompute.choice =
          random() % 4 == 0 ? Recompute::Choice::kNone : Recompute::Choice::kFull;
      const Plan plan = Compile(spec, {.level = Level::kComponent, .overlap = overlap});
      CostModel other = *plan.costs;
      for (const ComponentCost& component : kComponentCosts) {
        for (Time& time : (*other.moe.*component.times)) {
          time *= 1 + static_cast<Time>(random() % 20);
        }
      }
      const std::vector<MemoryFigures> figures = MemoryOf(plan, other);
      const Simulation simulation = Simulate(plan, other);
      const RecomputedCells recomputed(plan);
      for (int r = 0; r < ranks; ++r) {
        CAPTURES(round, r);
        int64_t most = 0;
        for (const Held& held : HeldOverTime(plan, other, recomputed, simulation.timeline, r)) {
          most = std::max(most, held.bytes);
        }
        const int64_t peak = figures[static_cast<size_t>(r)].peak;
        CHECK(most <= peak);
        CHECK(peak == simulation.ranks[static_cast<size_t>(r)].peak_bytes);
        reached += most == peak;
        ++cases;
      }
    }
    CHECK(reached > cases / 2);
  }

  TEST_CASE("the peak is the simulated one and reached where it says") {
    std::mt19937_64 random(61);
    for (Spec& spec : RandomSpecs(&random, 60, 6, 10)) {
      CAPTURE(spec.schedule);
      const auto stash = static_cast<int64_t>(random() % 50);
      spec.costs.memory = MemoryCost{
          .activation_bytes = stash + static_cast<int64_t>(random() % 90), .w_stash_bytes = stash};
      for (const Level level : {Level::kCompute, Level::kComm}) {
        const Plan plan = PlanOf(spec, level);
        const auto figures = MemoryOf(plan, spec.costs);
        const Simulation simulation = Simulate(plan, spec.costs);
        for (size_t r = 0; r < figures.size(); ++r) {
          CHECK(figures[r].peak == simulation.ranks[r].peak_bytes);
          CHECK(figures[r].peak ==
                std::accumulate(figures[r].arenas.begin(), figures[r].arenas.end(), int64_t{0}));
          CHECK(figures[r].peak_index ==
                (figures[r].peak > 0 ? simulation.ranks[r].peak_index : -1));
        }
      }
    }
  }

  TEST_CASE("of buffers the peak is what the arenas take") {
    std::mt19937_64 random(62);
    for (Spec& spec : RandomSpecs(&random, 30, 5, 8)) {
      CAPTURE(spec.schedule);
      spec.costs = RandomMoeCosts(&random, 2, Overlap::kAll);
      MemoryCost memory;
      for (size_t v = 0; v < kValueCount; ++v) {
        memory.values.push_back(static_cast<int64_t>(random() % 500));
      }
      spec.costs.memory = memory;
      const Plan plan = PlanOf(spec, Level::kBuffer);
      const auto figures = MemoryOf(plan, spec.costs);
      for (size_t r = 0; r < figures.size(); ++r) {
        CHECK(figures[r].arenas == ArenaBytes(plan.slots[r]));
        std::vector<int64_t> held(plan.programs[r].size(), 0);
        for (const Slot& slot : plan.slots[r]) {
          for (int i = slot.first; i <= slot.last; ++i) held[static_cast<size_t>(i)] += slot.bytes;
        }
        REQUIRE(!held.empty());
        CHECK(figures[r].peak_index == std::ranges::max_element(held) - held.begin());
        CHECK(figures[r].peak >= *std::ranges::max_element(held));
      }
    }
  }
}

}  // namespace
}  // namespace contraflow::memory_test
