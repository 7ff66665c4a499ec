// The k-th forward, backward and rest of every stage, in the order in which real schedules run
// them, against what the bound says of them.

#include "compiler/bound/positions.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "compiler/bound/bound.h"
#include "compiler/simulate/simulate.h"
#include "schedules/published/placement.h"
#include "schedules/registry.h"
#include "tests/support/support.h"

namespace contraflow::bound_positions_test {
namespace {

/// When the passes of one route start, by stage in ascending order.
struct Starts {
  std::vector<std::vector<Time>> forward, backward, rest;

  const std::vector<Time>& Of(Pass pass, size_t s) const {
    return (pass == Pass::kForward ? forward : pass == Pass::kBackward ? backward : rest)[s];
  }
};

Starts StartsOf(const Plan& plan, const Timeline& timeline, const Route& route,
                const RouteWork& work) {
  std::map<int, size_t> position;  // of a micro-batch in the route
  for (size_t k = 0; k < route.microbatches.size(); ++k) position[route.microbatches[k]] = k;
  Starts starts;
  for (auto* of : {&starts.forward, &starts.backward, &starts.rest}) of->resize(work.stages());
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    for (size_t i = 0; i < plan.programs[r].size(); ++i) {
      const Instruction& instruction = plan.programs[r][i];
      const auto found = position.find(instruction.microbatch);
      if (OperandsOf(instruction.op) != Operands::kCell || found == position.end()) continue;
      const auto s = static_cast<size_t>(instruction.stage);
      const Span& span = timeline.ranks[r][i];
      const bool both = instruction.op == Op::BW;
      if (instruction.op == Op::F) starts.forward[s].push_back(span.start);
      if (instruction.op == Op::B || both) starts.backward[s].push_back(span.start);
      if (instruction.op == Op::W || both) {
        starts.rest[s].push_back(span.end - work.At(s, found->second).weight);
      }
    }
  }
  for (auto* of : {&starts.forward, &starts.backward, &starts.rest}) {
    for (std::vector<Time>& times : *of) std::ranges::sort(times);
  }
  return starts;
}

bool HasPairs(const Plan& plan) {
  for (const Program& program : plan.programs) {
    for (const Instruction& instruction : program) {
      if (instruction.op == Op::FB) return true;
    }
  }
  return false;
}

void CheckWorkBetween(const BoundInput& input, const RouteWork& work, const Starts& starts,
                      int* tight) {
  for (const WorkBetween& stretch : WorkBetweenOf(input, work)) {
    const std::vector<Time>& from = starts.Of(stretch.from, stretch.from_stage);
    const std::vector<Time>& to = starts.Of(stretch.to, stretch.to_stage);
    for (size_t i = 0; i < from.size(); ++i) {
      for (size_t k = i; k < to.size(); ++k) {
        const Time least = stretch.once + static_cast<Time>(k - i) * stretch.each;
        CHECK(to[k] - from[i] >= least);
        *tight += k > i && to[k] - from[i] == least;
      }
    }
  }
}

void CheckPositions(const Positions& positions, const Starts& starts, Time makespan) {
  const auto check = [&](const std::vector<Time>& head, const std::vector<Time>& left, Pass pass) {
    for (size_t s = 0; s < positions.route().stages(); ++s) {
      const std::vector<Time>& times = starts.Of(pass, s);
      for (size_t k = 0; k < times.size(); ++k) {
        CHECK(times[k] >= head[positions.At(s, k)]);
        CHECK(makespan - times[k] >= left[positions.At(s, k)]);
      }
    }
  };
  check(positions.f_head, positions.f_left, Pass::kForward);
  check(positions.b_head, positions.b_left, Pass::kBackward);
  check(positions.w_head, positions.w_left, Pass::kRest);
}

TEST_SUITE("property") {
  TEST_CASE("no schedule runs a position before its head or has less left after it") {
    std::mt19937_64 random(29);
    int tight = 0, plans = 0;
    for (Spec& spec : RandomSpecs(&random, 300, 6, 12)) {
      // Without the savings of pairs, which take the stretches away.
      for (StageCost& cost : spec.costs.stages)
        cost.fb = cost.f + std::max(cost.bw, cost.b + cost.w);
      const Plan plan = GeneratePlan(spec);
      if (HasPairs(plan)) continue;
      ++plans;
      const CostModel costs = plan.costs.value_or(spec.costs);
      const Simulation run = Simulate(plan, costs);
      int64_t peak = 0;
      const bool bytes = costs.memory && costs.memory->activation_bytes > 0;
      for (const RankFigures& rank : run.ranks) {
        peak = std::max<int64_t>(peak, bytes ? rank.peak_bytes : rank.peak_activations);
      }
      CAPTURE(spec.schedule);
      const BoundInput input = MakeBoundInput(plan, costs, peak);
      size_t next = 0;
      for (const Route& route : plan.routes) {
        if (route.microbatches.empty()) continue;
        const RouteWork& work = input.routes[next++];
        const Starts starts = StartsOf(plan, run.timeline, route, work);
        CheckWorkBetween(input, work, starts, &tight);
        CheckPositions(Positions(input, work), starts, run.makespan);
      }
    }
    CHECK(plans > 200);
    CHECK(tight > 1000);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("stretches of one rank with two stages by hand") {
    Spec spec = MakeSpec("", 1, 4, UniformCosts(1, 2, 5));
    const Plan plan = SingleRoutePlan(spec, {0, 0});
    const BoundInput input = MakeBoundInput(plan, spec.costs, std::nullopt);
    const RouteWork& work = input.routes[0];
    struct Expected {
      Pass from;
      size_t from_stage;
      Pass to;
      size_t to_stage;
      Time once, each;
    };
    constexpr Pass kF = Pass::kForward, kB = Pass::kBackward, kW = Pass::kRest;
    const Expected expected[] = {
        {kF, 0, kF, 1, 1, 2}, {kF, 0, kB, 1, 2, 4}, {kF, 0, kB, 0, 4, 6}, {kF, 0, kW, 0, 6, 11},
        {kF, 1, kB, 1, 1, 3}, {kF, 1, kW, 1, 3, 8}, {kF, 1, kB, 0, 3, 5}, {kB, 1, kW, 1, 2, 7},
        {kB, 1, kB, 0, 2, 4}, {kB, 0, kW, 0, 2, 7},
    };
    const std::vector<WorkBetween> stretches = WorkBetweenOf(input, work);
    CHECK(stretches.size() == std::size(expected));
    for (const Expected& e : expected) {
      CAPTURES(e.from_stage, e.to_stage);
      CHECK(std::ranges::any_of(stretches, [&](const WorkBetween& s) {
        return s.from == e.from && s.from_stage == e.from_stage && s.to == e.to &&
               s.to_stage == e.to_stage && s.once == e.once && s.each == e.each;
      }));
    }
    // A pair that is shorter than its parts runs some of them at once.
    spec.costs.stages[0].fb = 7;
    CHECK(WorkBetweenOf(MakeBoundInput(plan, spec.costs, std::nullopt), work).empty());
    const Remainder remainder = RemainderOf(input, work);
    CHECK(remainder.forward == std::vector<Time>{16, 15});
    CHECK(remainder.backward == std::vector<Time>{7, 14});
    // The third backward of stage 0 has three forwards of each stage before it, three backwards of
    // stage 1 and two of its own, that of stage 1 no backward of stage 0; the first forward of
    // stage 1 has everything but a forward of stage 0 ahead.
    const Positions positions(input, work);
    CHECK(positions.b_head[positions.At(0, 2)] == 3 * 2 + 3 * 2 + 2 * 2);
    CHECK(positions.b_head[positions.At(1, 2)] == 3 * 2 + 2 * 2);
    CHECK(positions.f_left[positions.At(1, 0)] == 4 * 15);
  }

  TEST_CASE("two ranks that cannot both be as fast as they could") {
    // Rank 14 has to give rank 15 a forward every 16 and rank 1 a backward every 16, and takes
    // longer for the two: each alone proves 510.8 at most. Layers of Llama-3 405B, as many
    // micro-batches as ranks.
    CostModel costs = UniformCosts(8000, 8488, 7680, 240);
    costs.stages.assign(16, costs.stages[0]);
    const auto set = [&costs](size_t s, Time f, Time b, Time w) {
      costs.stages[s] = {.f = f, .b = b, .w = w, .bw = b + w, .fb = f + b + w};
    };
    set(0, 7020, 7448, 6739);
    set(15, 7630, 8095, 7325);
    const Plan plan = SingleRoutePlan(MakeSpec("", 16, 16, costs), LinearPlacement(16));
    const Bound bound = ProveBound(plan, costs, std::nullopt);
    CHECK(Name(bound.kind) == "order of micro-batches");
    CHECK(bound.value > 513'000);
    CHECK(bound.value < 514'936);  // there is a schedule as short as that
  }
}

}  // namespace
}  // namespace contraflow::bound_positions_test
