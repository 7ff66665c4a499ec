// "provenance" of a plan document.

#include <doctest/doctest.h>

#include <random>

#include "compiler/files/plan_io.h"
#include "compiler/plan/plan.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::provenance_test {
namespace {

Plan Searched() {
  Plan plan = Compile(MakeSpec("1f1b", 2, 3, UniformCosts(1'000'000, 2'500'000, 3'000'000)));
  plan.provenance = {.placement = "v",
                     .from = "local search from zb-v",
                     .cost_stages = 4,
                     .memory_limit = 12,
                     .makespan = 66'500'000,
                     .bound = 64'000'000,
                     .bound_of_all = 60'000'000,
                     .budget = 1'500'000'000,
                     .seed = 7,
                     .noise = 0.1,
                     .interrupted = true};
  return plan;
}

/// Returns the error of reading the document once `from` is replaced by `to`.
std::string With(const std::string& from, const std::string& to) {
  std::string text = WritePlan(Searched());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  return Failure([&] { ReadPlan(text, "p.json"); });
}

TEST_SUITE("unit") {
  TEST_CASE("provenance reads and writes to the same in text and binary and for one rank") {
    const Plan plan = Searched();
    const std::string text = WritePlan(plan);
    CHECK(Contains(text,
                   "\n\"provenance\": {\"placement\": \"v\", \"from\": \"local search from zb-v\", "
                   "\"cost_stages\": 4, \"memory_limit\": 12, \"makespan\": 66.5, \"bound\": 64, "
                   "\"bound_of_all\": 60, "
                   "\"budget_ns\": 1500000000, \"seed\": 7, \"noise\": 0.1, "
                   "\"interrupted\": true}"));
    CHECK(ReadPlan(text, "p.json") == plan);
    CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
    CHECK(ReadRankPlan(WriteRankPlan(plan, 1), "p.1.json").plan.provenance == plan.provenance);
    Plan least = plan;
    least.provenance = Provenance();
    least.provenance->placement = "linear";
    least.provenance->from = "1f1b";
    CHECK(ReadPlan(WritePlan(least), "p.json") == least);
  }

  TEST_CASE("provenance that is hostile is refused with its path") {
    CHECK(With("\"from\"", "\"form\"") ==
          "p.json: /provenance: unknown key \"form\" (did you mean \"from\"?); known are: "
          "placement, from, cost_stages, memory_limit, makespan, bound, bound_of_all, budget_ns, "
          "seed, noise, interrupted");
    CHECK(With("\"seed\": 7, ", "") == "p.json: /provenance: the key \"seed\" is missing; add it");
    CHECK(With("zb-v\"", "zb\\u001b[31m\"").find("p.json: /provenance/from: ") == 0);
    CHECK(With("zb-v\"", "zb\xc3\xa4\"") ==
          "p.json: /provenance/from: must be plain ASCII text and not empty");
    CHECK(With("local search from zb-v", "") ==
          "p.json: /provenance/from: must be plain ASCII text and not empty");
    CHECK(Contains(With("local search from zb-v", std::string(201, 'a')), "/provenance/from: "));
    CHECK(With("66.5", "-1").find("p.json: /provenance/makespan: ") == 0);
    CHECK(With("66.5", "1e300").find("p.json: /provenance/makespan: ") == 0);
    CHECK(With("\"bound\": 64", "\"bound\": \"64\"").find("p.json: /provenance/bound: ") == 0);
    CHECK(With("\"bound_of_all\": 60", "\"bound_of_all\": 64.5") ==
          "p.json: /provenance/bound_of_all: must be at most \"bound\", which is that of one "
          "placement");
    CHECK(With("\"bound\": 64", "\"bound\": 66.6") ==
          "p.json: /provenance/makespan: must be no shorter than \"bound\", which is proven");
    CHECK(With("\"seed\": 7", "\"seed\": -7").find("p.json: /provenance/seed: ") == 0);
    CHECK(With("\"seed\": 7", "\"seed\": 1, \"seed\": 7") ==
          "p.json: /provenance/seed: is given twice; keep one");
    CHECK(With("\"noise\": 0.1", "\"noise\": 2").find("p.json: /provenance/noise: ") == 0);
    CHECK(Contains(With("\"cost_stages\": 4", "\"cost_stages\": 0"), "/provenance/cost_stages: "));
    CHECK(Contains(With("\"memory_limit\": 12", "\"memory_limit\": 0"),
                   "/provenance/memory_limit: "));
    CHECK(With("true}", "1}").find("p.json: /provenance/interrupted: ") == 0);
    Plan plan = Searched();
    std::string text = WritePlan(plan);
    const size_t begin = text.find("\"costs\": "), end = text.find("\"provenance\"");
    text.erase(begin, end - begin);
    CHECK(Failure([&] { ReadPlan(text, "p.json"); }) ==
          "p.json: /provenance: says what came of the costs, and the plan has no \"costs\"");
  }
}

TEST_SUITE("property") {
  TEST_CASE("any provenance that the tools make reads and writes to the same") {
    std::mt19937_64 random(5);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    Plan plan = Searched();
    for (int round = 0; round < CasesToDraw(300); ++round) {
      Provenance& p = *plan.provenance;
      plan.costs->unit = static_cast<Unit>(draw(0, 4));
      p.makespan = draw(0, int64_t{1} << draw(0, 52));
      p.bound = draw(0, p.makespan);
      p.budget = draw(0, INT64_MAX);
      p.bound_of_all = draw(0, 1) == 0 ? std::nullopt : std::optional(draw(0, p.bound));
      p.seed = static_cast<uint64_t>(draw(0, INT64_MAX));
      p.noise = static_cast<double>(draw(0, 500)) / 1000;
      p.interrupted = draw(0, 1) == 0;
      p.cost_stages = draw(0, 1) == 0 ? std::nullopt : std::optional(int{3});
      p.memory_limit = draw(0, 1) == 0 ? std::nullopt : std::optional(draw(1, int64_t{1} << 62));
      CHECK(ReadPlan(WritePlan(plan), "p.json") == plan);
      CHECK(ReadPlan(WritePlanBinary(plan), "p.cbor") == plan);
    }
  }
}

}  // namespace
}  // namespace contraflow::provenance_test
