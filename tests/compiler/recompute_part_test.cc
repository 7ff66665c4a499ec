// R of a part: attention alone, experts alone, all but attention. Its times and bytes follow from
// the components, plans of it are sound and run right, and what is damaged is caught.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiler/files/plan_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/lower/lower.h"
#include "compiler/plan/recompute_cost.h"
#include "compiler/simulate/memory.h"
#include "compiler/simulate/simulate.h"
#include "compiler/verify/verify.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/lane_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::recompute_part_test {
namespace {

constexpr RecomputePart kSomeParts[] = {RecomputePart::kAttention, RecomputePart::kExperts,
                                        RecomputePart::kAllButAttention};

CostModel SomeCosts(std::mt19937_64* random) {
  CostModel costs = RandomMoeCosts(random, 2, Overlap::kAll);
  costs.memory = MemoryCost{};
  costs.memory->values.assign(kValueCount, 64);
  costs.memory->activation_bytes = 7 * 64 * costs.moe->layers_per_stage;
  costs.memory->w_stash_bytes = 3 * 64 * costs.moe->layers_per_stage;
  return costs;
}

TEST_SUITE("unit") {
  TEST_CASE("part: what R of it takes and what it lets go") {
    CostModel costs;
    costs.moe = MoeCost{2, {3}, {5}, {7}, {11}, {1}, {1}, {1}, {1}, {1}, {1}};
    DeriveChunkCosts(&costs, Overlap::kAll);
    costs.memory = MemoryCost{.activation_bytes = 10'000, .w_stash_bytes = 100};
    costs.memory->values.assign(kValueCount, 0);
    int64_t bytes = 1;
    for (const Value value : {Value::input, Value::attention, Value::scores, Value::rows,
                              Value::gate, Value::hidden, Value::combined}) {
      costs.memory->values[static_cast<size_t>(value)] = bytes;
      bytes *= 10;
    }
    const std::vector<Time> times = {2 * 3, 2 * 7, 2 * (5 + 7 + 11)};
    const std::vector<int64_t> kept = {10'000 - 2 * 110, 0, 0};
    for (size_t k = 0; k < 3; ++k) {
      Instruction r = CellOp(Op::R, 0, 0);
      r.part = kSomeParts[k];
      CHECK(costs.Duration(r) == times[k]);
      CHECK(BytesOfCell(costs, 0, true, kSomeParts[k]).input == kept[k]);
      CHECK(ParseInstruction(ToString(r)) == r);
    }
    costs.memory->activation_bytes = 10'000'000;
    CHECK(BytesOfCell(costs, 0, true, RecomputePart::kExperts).input == 10'000'000 - 2 * 110'000);
    CHECK(BytesOfCell(costs, 0, true, RecomputePart::kAllButAttention).input ==
          10'000'000 - 2 * 1'111'000 - 1);
    CHECK(Failure([] { ParseInstruction("F s0 m0 part=experts"); }) != "accepted");
    CHECK(Failure([] { ParseInstruction("R s0 m0 part=full"); }) != "accepted");
    Spec spec = MakeSpec("1f1b", 2, 4, UniformCosts(1, 1, 1, 0));
    spec.recompute = ParseRecompute("experts:0");
    CHECK(Failure([&] { GeneratePlan(spec); }) ==
          "`recompute` experts: `costs`: has no \"moe\", which says how long that part of a stage "
          "takes; give it, or `recompute` full or auto");
    costs.memory->values.clear();
    CHECK(Failure([&] { BytesOfCell(costs, 0, true, RecomputePart::kExperts); }) ==
          "`recompute` experts: `costs`: /memory: has no \"values\", which say what the parts of a "
          "layer hold; give costs that do, a `model`, or `recompute` full or auto");
  }
}

TEST_SUITE("property") {
  TEST_CASE("part: plans are sound, run right, and come back from files") {
    std::mt19937_64 random(11);
    for (const std::string schedule : {"1f1b", "zb-1p", "zb-v", "dualpipe", "interleaved-1f1b"}) {
      for (const RecomputePart part : kSomeParts) {
        const CostModel costs = SomeCosts(&random);
        const Plan order = GeneratePlan(MakeSpec(schedule, 2, 4, costs));
        const Plan with = InsertRecompute(order, {0, 1}, part);
        CAPTURES(schedule, Name(part));
        REQUIRE(FindingsText(with) == "");
        for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
          const Plan plan = Lower(with, costs, {.target = level});
          CHECK(FindingsText(plan) == "");
          CHECK(ReadPlan(WritePlan(plan), "plan.json").programs == plan.programs);
          CHECK(RecomputedCells(plan).extent(1) == RecomputeExtent(part));
          CHECK(RunAtAnyPace(plan, &random) == "");
          for (const Program& program : plan.programs) {
            for (const Instruction& i : program) {
              if (IsRecompute(i.op) && i.op != Op::R) CHECK(Includes(part, i.op));
            }
          }
        }
      }
    }
  }

  TEST_CASE(
      "part: as components a step with R takes no longer than as chunks, in the same memory") {
    std::mt19937_64 random(23);
    for (int round = 0; round < CasesToDraw(12); ++round) {
      const CostModel costs = SomeCosts(&random);
      for (const char* schedule : {"1f1b", "interleaved-1f1b", "zb-v", "dualpipe"}) {
        CAPTURES(schedule, round);
        Spec spec = MakeSpec(schedule, 2 + 2 * static_cast<int>(random() % 2), 8, costs);
        spec.recompute.choice = Recompute::Choice::kFull;
        spec.recompute.part = round % 4 == 0 ? RecomputePart::kFull : kSomeParts[round % 4 - 1];
        const Plan order = GeneratePlan(spec);
        const Plan chunks = Lower(order, costs, {.target = Level::kComm});
        const Plan components = Lower(order, costs, {.target = Level::kComponent});
        const Simulation before = Simulate(chunks, costs), after = Simulate(components, costs);
        CHECK(after.makespan <= before.makespan);
        const auto peak = [](const Simulation& simulation) {
          int64_t most = 0;
          for (const RankFigures& rank : simulation.ranks) most = std::max(most, rank.peak_bytes);
          return most;
        };
        CHECK(peak(after) <= peak(before));
      }
    }
  }

  TEST_CASE("part: mutants of what runs again are rejected or run right") {
    std::mt19937_64 random(12);
    const auto below = [&](size_t size) { return static_cast<size_t>(random() % size); };
    std::vector<Plan> sound;
    for (const std::string schedule : {"1f1b", "zb-v", "dualpipe", "zb-1p"}) {
      for (const RecomputePart part : kSomeParts) {
        const CostModel costs = SomeCosts(&random);
        const Plan order =
            InsertRecompute(GeneratePlan(MakeSpec(schedule, 2, 4, costs)), {0, 1}, part);
        for (const Level level : {Level::kComm, Level::kComponent, Level::kBuffer}) {
          sound.push_back(Lower(order, costs, {.target = level}));
        }
      }
    }
    int made = 0, rejected = 0;
    while (made < 1000) {
      const Plan& before = sound[below(sound.size())];
      Plan plan = before;
      const size_t r = below(plan.programs.size());
      Program& program = plan.programs[r];
      std::vector<size_t> again;
      for (size_t k = 0; k < program.size(); ++k) {
        if (IsRecompute(program[k].op)) again.push_back(k);
      }
      if (again.empty()) continue;
      const size_t at = again[below(again.size())];
      Instruction& i = program[at];
      const auto drop = [&](Instruction* w) {
        const size_t k = below(w->after_count);
        std::copy(w->after.begin() + static_cast<std::ptrdiff_t>(k) + 1, w->after.end(),
                  w->after.begin() + static_cast<std::ptrdiff_t>(k));
        w->after[--w->after_count] = 0;
      };
      const size_t kind = below(7);
      if (kind == 0) {
        i.part = kParts[below(4)];
      } else if (kind == 1) {
        constexpr Op kOps[] = {Op::R, Op::ATTN_R, Op::MLP_R, Op::DISPATCH_R, Op::COMBINE_R};
        i.op = kOps[below(5)];
      } else if (kind == 2) {
        i.stage = static_cast<int>(below(static_cast<size_t>(plan.stages)));
        i.microbatch = static_cast<int>(below(static_cast<size_t>(plan.microbatches)));
      } else if (kind == 3 && i.after_count > 0) {
        drop(&i);
      } else if (kind == 4) {
        // Something that waits for what runs again no longer does.
        std::vector<Instruction*> waiting;
        for (Instruction& w : program) {
          const auto end = w.after.begin() + w.after_count;
          if (std::any_of(w.after.begin(), end, [&](int on) {
                return IsRecompute(program[static_cast<size_t>(on)].op);
              })) {
            waiting.push_back(&w);
          }
        }
        if (!waiting.empty()) drop(waiting[below(waiting.size())]);
      } else if (kind == 5 && !plan.slots.empty()) {
        std::vector<Slot>& slots = plan.slots[r];
        slots[below(slots.size())].offset = 64 * static_cast<int64_t>(below(40));
      } else if (plan.level == Level::kComm) {
        const Instruction moved = i;
        program.erase(program.begin() + static_cast<std::ptrdiff_t>(at));
        if (kind == 6) {
          program.insert(program.begin() + static_cast<std::ptrdiff_t>(below(program.size() + 1)),
                         moved);
        }
      }
      if (plan == before) continue;
      ++made;
      CAPTURES(plan.schedule, Name(plan.level), kind, FindingsText(plan));
      if (!Verify(plan).empty()) {
        ++rejected;
        continue;
      }
      CHECK(RunAtAnyPace(plan, &random) == "");
    }
    CHECK(rejected > 500);
  }
}

}  // namespace
}  // namespace contraflow::recompute_part_test
