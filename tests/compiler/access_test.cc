// The reads and results of instructions are written down twice: for the passes and the runtime
// (compiler/plan/access.h), and for the verifier (compiler/verify/accesses.cc). A wrong entry in
// one of them would be believed by all who use it; here it differs from the other.

#include "compiler/plan/access.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "compiler/lower/lower.h"
#include "compiler/lower/passes.h"
#include "compiler/verify/checks.h"
#include "schedules/recompute/recompute.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/offload_all.h"
#include "tests/support/support.h"

namespace contraflow {
namespace {

using check::Touch;

/// An entry that a plan made use of: operation and value, whether it is made, how many layers and
/// stages further on it is.
using Entry = std::tuple<Op, Value, bool, int, int>;

/// Compares both tables at every instruction of a plan.
void Compare(const Plan& plan, std::set<Entry>* seen) {
  const Accesses accesses(plan);
  check::Tables tables(plan);
  check::Findings findings;
  // Which layers run again is known when everything has its place.
  if (plan.layers > 0) CheckComponents(&tables, &findings);
  REQUIRE(findings.empty());
  const check::Touches touches(tables);
  std::vector<Access> passes;
  std::vector<Touch> verifier, same;
  for (const Program& program : plan.programs) {
    for (const Instruction& i : program) {
      accesses.Of(i, &passes);
      touches.Of(i, &verifier);
      same.clear();
      for (const Access& a : passes) {
        same.push_back({a.value, a.layer, a.stage, a.microbatch, a.makes});
      }
      std::ranges::sort(same);
      std::ranges::sort(verifier);
      CAPTURES(plan.schedule, ToString(i));
      CHECK(same == verifier);
      CHECK(std::ranges::adjacent_find(same, [](const Touch& a, const Touch& b) {
              return std::tie(a.value, a.layer, a.stage, a.microbatch) ==
                     std::tie(b.value, b.layer, b.stage, b.microbatch);
            }) == same.end());
      for (const Touch& t : verifier) {
        const int stage = t.microbatch == i.microbatch ? i.stage : i.back_stage;
        const int layer = t.stage == stage && i.layer >= 0 ? t.layer - i.layer : 0;
        seen->insert({i.op, t.value, t.makes, layer, t.stage - stage});
      }
    }
  }
}

/// Some stages, at times none or all.
std::vector<int> DrawStages(std::mt19937_64* random, int stages) {
  const uint64_t kind = (*random)() % 3;
  std::vector<int> some;
  for (int s = 0; s < stages; ++s) {
    if (kind == 0 || (kind == 1 && (*random)() % 2 == 0)) some.push_back(s);
  }
  return some;
}

TEST_SUITE("property") {
  TEST_CASE("both tables of accesses agree on every instruction, with and without layers") {
    std::mt19937_64 random(13);
    std::set<Entry> seen;
    for (int round = 0; round < 3; ++round) {
      for (Spec& spec : RandomSpecs(&random, 2 * static_cast<int>(Schedules().size()), 5, 7)) {
        CAPTURE(spec.schedule);
        const bool layered = random() % 3 != 0;
        if (layered) spec.costs = RandomMoeCosts(&random, 3, Overlap::kAll);
        spec.costs.host = HostCost{};
        spec.expert_parallel = layered && random() % 2 == 0 ? 2 : 1;
        Plan plan = GeneratePlan(spec);
        RecomputeExtent extent;
        if (layered) extent = {kParts[random() % 4], static_cast<int>(random() % 3)};
        // A stage recomputes none of all its layers that it does not have.
        const bool fewer = extent.layers < spec.costs.LayersIn(0);
        plan = InsertRecompute(plan, DrawStages(&random, plan.stages),
                               fewer ? extent : RecomputeExtent());
        plan = OffloadAll(plan);
        Compare(plan, &seen);
        const Level level = layered ? Level::kComponent : Level::kComm;
        Compare(Lower(std::move(plan), spec.costs, {.target = level}), &seen);
      }
    }
    // Every entry there is: a table with more has some that no plan here compares.
    CHECK(seen.size() == 137);
  }
}

TEST_SUITE("unit") {
  TEST_CASE("both tables of bytes agree, and on what is missing") {
    CostModel costs = UniformCosts(1, 1, 1);
    const auto compare = [&](int layers) {
      CAPTURE(layers);
      std::string missing;
      const std::optional<ValueBytes> verifier = check::SizesOf(costs, layers, &missing);
      ValueBytes passes{};
      CHECK(verifier.has_value() == missing.empty());
      const std::string expected = verifier ? "accepted" : missing;
      CHECK(Failure([&] { passes = ValueBytesOf(costs, layers); }) == expected);
      if (verifier) CHECK(*verifier == passes);
    };
    const auto compare_both = [&] {
      compare(0);
      compare(2);
    };
    compare_both();
    costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 400};
    costs.comm.bytes = 7;
    compare_both();
    for (size_t v = 0; v < kValueCount; ++v) {
      costs.memory->values.push_back(static_cast<int64_t>(3 * v + 1));
    }
    compare_both();
  }
}

}  // namespace
}  // namespace contraflow
