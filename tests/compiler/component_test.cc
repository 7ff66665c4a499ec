#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/lower/passes.h"
#include "compiler/lower/sharing.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::component_test {
namespace {

CommCase DrawCase(std::mt19937_64* random, int round, Overlap overlap) {
  return DrawCommCase(random, round, 6, 14, [&](const Schedule&, Spec* spec) {
    spec->costs = RandomMoeCosts(random, 3, overlap);
  });
}

int MostActivations(const Simulation& simulation) {
  int most = 0;
  for (const RankFigures& rank : simulation.ranks) most = std::max(most, rank.peak_activations);
  return most;
}

/// Time of all that a rank has on a lane.
Time WorkOfLane(const Plan& plan, const CostModel& costs, size_t r, Lane lane) {
  Time sum = 0;
  for (const Instruction& i : plan.programs[r]) {
    if (i.lane == lane) sum += costs.Duration(i);
  }
  return sum;
}

TEST_SUITE("property") {
  TEST_CASE("components wait for all that they name, in whatever order it ends") {
    std::mt19937_64 random(79);
    int later = 0;
    for (const Spec& drawn : RandomSpecs(&random, 30, 4, 6)) {
      Spec spec = drawn;
      spec.costs = RandomMoeCosts(&random, 2, Overlap::kAll);
      if (!FindSchedule(spec.schedule).reject(spec).empty()) continue;
      spec.costs.memory = MemoryCost{.values = std::vector<int64_t>(kValueCount, 64)};
      const Plan plan = Lower(GeneratePlan(spec), spec.costs, {.target = Level::kBuffer});
      CostModel other = spec.costs;
      for (const ComponentCost& component : kComponentCosts) {
        for (Time& time : (*other.moe).*component.times) time = static_cast<Time>(random() % 50);
      }
      const Timeline timeline = Simulate(plan, other).timeline;
      for (size_t r = 0; r < plan.programs.size(); ++r) {
        const std::vector<Span>& spans = timeline.ranks[r];
        for (size_t at = 0; at < spans.size(); ++at) {
          const Instruction& i = plan.programs[r][at];
          if (IsMessage(i.op)) continue;
          for (int k = 0; k < i.after_count; ++k) {
            const auto on = static_cast<size_t>(i.after[static_cast<size_t>(k)]);
            CHECK(spans[on].end <= spans[at].start);
            const auto last = static_cast<size_t>(i.after[static_cast<size_t>(i.after_count) - 1]);
            later += spans[on].end > spans[last].end;
          }
        }
      }
    }
    CHECK(later > 0);
  }

  TEST_CASE("published overlap takes exactly the time of the chunks") {
    std::mt19937_64 random(31);
    int equal = 0;
    for (int round = 0; round < CasesToDraw(300); ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kPublished);
      CAPTURES(c.plan.schedule, round);
      const Plan plan = ExpandComponents(c.plan, c.costs, Overlap::kPublished, {});
      const Simulation chunks = Simulate(c.plan, c.costs);
      const Simulation components = Simulate(plan, c.costs);
      // REDUCE has a lane of its own here, and need not keep the chunks after it waiting.
      const bool alone = c.costs.stage(0).reduce + c.costs.stage(0).step > 0;
      CHECK(components.makespan <= chunks.makespan);
      if (!alone) CHECK(components.makespan == chunks.makespan);
      equal += !alone;
      for (size_t r = 0; r < chunks.ranks.size(); ++r) {
        CHECK(components.ranks[r].peak_activations == chunks.ranks[r].peak_activations);
        if (!alone) CHECK(components.ranks[r].last_end == chunks.ranks[r].last_end);
      }
    }
    CHECK((kSanitized || equal > 150));
  }

  TEST_CASE("published overlap follows the scale of lone micro-batches") {
    std::mt19937_64 random(32);
    for (int round = 0; round < CasesToDraw(60); ++round) {
      Spec spec = MakeSpec(round % 2 == 0 ? "1f1b" : "zb-1p", 4, 8, {});
      spec.costs = RandomMoeCosts(&random, 3, Overlap::kPublished);
      for (int m = 0; m < 8; ++m) {
        spec.costs.microbatch_scale.push_back(std::uniform_int_distribution<int>(1, 4)(random));
      }
      const Plan plan = InsertCommunication(GeneratePlan(spec), spec.costs);
      const Plan shared = ExpandComponents(plan, spec.costs, Overlap::kPublished, {});
      CHECK(Simulate(shared, spec.costs).makespan == Simulate(plan, spec.costs).makespan);
    }
  }

  TEST_CASE("sharing the lanes never loses and is the same every time") {
    std::mt19937_64 random(33);
    int faster = 0;
    double gain = 0;
    constexpr int kRounds = 150;
    for (int round = 0; round < kRounds; ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kAll);
      CAPTURES(c.plan.schedule, round);
      const Plan serial = ExpandComponents(c.plan, c.costs, Overlap::kPublished, {});
      const Plan shared = ExpandComponents(c.plan, c.costs, Overlap::kAll, {});
      CHECK(shared == ExpandComponents(c.plan, c.costs, Overlap::kAll, {}));
      const Simulation before = Simulate(serial, c.costs), after = Simulate(shared, c.costs);
      CHECK(after.makespan <= before.makespan);
      faster += after.makespan < before.makespan;
      gain += 1 - static_cast<double>(after.makespan) /
                      static_cast<double>(std::max<Time>(1, before.makespan));
      for (size_t r = 0; r < after.ranks.size(); ++r) {
        const RankFigures& rank = after.ranks[r];
        CHECK(rank.busy == WorkOfLane(shared, c.costs, r, Lane::kCompute));
        CHECK(rank.all_to_all == WorkOfLane(shared, c.costs, r, Lane::kAllToAll));
        CHECK(rank.busy == before.ranks[r].busy);
        CHECK(rank.exposed <= rank.all_to_all);
        CHECK(rank.busy + rank.exposed <= after.makespan);
      }
    }
    MESSAGE(faster << " of " << kRounds << " plans are faster than with published overlap, by "
                   << 100 * gain / kRounds << " % on average");
    CHECK(faster > kRounds / 2);
  }

  TEST_CASE("no rank holds more than the schedule or the limit and more memory never costs time") {
    std::mt19937_64 random(34);
    int faster = 0;
    for (int round = 0; round < CasesToDraw(80); ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kAll);
      CAPTURES(c.plan.schedule, round);
      const int least = MostActivations(Simulate(c.plan, c.costs));
      const auto all_of = [&](int64_t limit) {
        return std::vector<int64_t>(c.plan.programs.size(), limit);
      };
      const Plan own = ExpandComponents(c.plan, c.costs, Overlap::kAll, {});
      const Simulation before = Simulate(own, c.costs);
      CHECK(MostActivations(before) <= least);
      CHECK(own == ExpandComponents(c.plan, c.costs, Overlap::kAll, all_of(least)));
      const Plan more = ExpandComponents(c.plan, c.costs, Overlap::kAll, all_of(2 * least));
      const Simulation after = Simulate(more, c.costs);
      CHECK(MostActivations(after) <= 2 * least);
      // Within the hundredth that memory is worth.
      CHECK(after.makespan <= before.makespan + before.makespan / 100);
      faster += after.makespan < before.makespan;
    }
    MESSAGE(faster << " of 80 plans are faster with twice the memory");
    CHECK((kSanitized || faster > 10));
  }

  TEST_CASE("no rule of sharing that is tried does better than the plan") {
    std::mt19937_64 random(35);
    for (int round = 0; round < CasesToDraw(80); ++round) {
      const CommCase c = DrawCase(&random, round, Overlap::kAll);
      CAPTURES(c.plan.schedule, round);
      ChunkShapes shapes(c.costs, false);
      const int own = MostActivations(Simulate(c.plan, c.costs));
      const std::vector<int> most(c.plan.programs.size(), own);
      const Plan plan = ExpandComponents(c.plan, c.costs, Overlap::kAll, {});
      const Time made = Simulate(plan, c.costs).makespan;
      for (const LanePolicy& policy :
           {LanePolicy{.window = 1}, LanePolicy{.window = 2, .free_order = true},
            LanePolicy{.window = 6, .free_order = true}}) {
        const SharedRun run = ShareLanes(c.plan, c.costs, &shapes, policy, most, true);
        CHECK(made <= run.makespan + run.makespan / 100);  // or holds less for it
        std::vector<size_t> components(c.plan.programs.size(), 0);
        for (const Event& event : run.log) ++components[static_cast<size_t>(event.rank)];
        for (size_t r = 0; r < components.size(); ++r) {
          CHECK(components[r] == plan.programs[r].size());
        }
      }
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("messages leave when their data is there") {
    const Spec spec = [] {
      Spec s = MakeSpec("dualpipe", 4, 8, {});
      MoeCost moe;
      moe.layers_per_stage = 2;
      for (auto* part : {&moe.attn_f, &moe.dispatch_f, &moe.mlp_f, &moe.combine_f, &moe.combine_b,
                         &moe.mlp_b, &moe.dispatch_b, &moe.attn_b, &moe.mlp_w, &moe.attn_w}) {
        *part = {10};
      }
      s.costs.moe = moe;
      DeriveChunkCosts(&s.costs, Overlap::kAll);
      return s;
    }();
    const Plan plan = ExpandComponents(InsertCommunication(GeneratePlan(spec), spec.costs),
                                       spec.costs, Overlap::kAll, {});
    const Simulation simulation = Simulate(plan, spec.costs);
    int early = 0, sends = 0;
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      const Program& program = plan.programs[r];
      for (size_t i = 0; i < program.size(); ++i) {
        if (program[i].op != Op::SEND_B) continue;
        ++sends;
        REQUIRE(program[i].after_count == 1);
        const auto producer = static_cast<size_t>(program[i].after[0]);
        CHECK(program[producer].op == Op::ATTN_B);
        CHECK(program[producer].layer == 0);
        CHECK(simulation.timeline.ranks[r][i].start == simulation.timeline.ranks[r][producer].end);
        // Its own weights come later: it does not stand at the end of its chunk.
        for (size_t j = i + 1; j < program.size(); ++j) {
          if (program[j].op != Op::ATTN_W || program[j].layer != 0) continue;
          if (program[j].microbatch == program[i].microbatch &&
              program[j].stage == program[i].stage)
            ++early;
        }
      }
    }
    CHECK(early == sends);
  }
}

}  // namespace
}  // namespace contraflow::component_test
