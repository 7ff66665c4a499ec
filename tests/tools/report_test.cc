#include "tools/report/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "compiler/lower/lower.h"
#include "schedules/registry.h"
#include "schedules/report.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"
#include "tools/cli/exit.h"
#include "tools/cli/spec_options.h"
#include "tools/interop/interop.h"
#include "tools/report/difference.h"
#include "tools/report/explanation.h"
#include "tools/report/guard.h"
#include "tools/report/text.h"

namespace contraflow::report_test {
namespace {

Plan Make(const std::string& schedule, const CostModel& costs, Level level) {
  return Lower(GeneratePlan(MakeSpec(schedule, 4, 8, costs)), costs, {.target = level});
}

nlohmann::json ReportJson(const Plan& plan) {
  return nlohmann::json::parse(FormatJson("simulate", ReportToJson(MakeReport(plan, *plan.costs))));
}

std::set<std::string> Keys(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

CostModel DeepSeek() { return ResolveCosts({.file = "deepseek-v3-h800"}, UnitCosts()); }

TEST_SUITE("unit") {
  TEST_CASE("what a report of chunks has and what one of components and one of buffers adds") {
    const std::set<std::string> of_chunks = {"rank", "busy", "bubble", "peak_activations",
                                             "peak_bytes"};
    CostModel unit = UnitCosts();
    CHECK(Keys(ReportJson(Make("1f1b", unit, Level::kComm))["ranks"][0]) == of_chunks);

    const CostModel costs = DeepSeek();
    std::set<std::string> of_components = of_chunks;
    of_components.insert({"all_to_all", "exposed", "memory"});
    const nlohmann::json components = ReportJson(Make("1f1b", costs, Level::kComponent));
    CHECK(Keys(components["ranks"][0]) == of_components);
    CHECK(components.count("formula") == 0);
    CHECK(Keys(components["ranks"][0]["memory"]) ==
          std::set<std::string>{"parameters", "gradients", "optimizer", "activations", "stashes",
                                "total"});
    CHECK(ReportJson(Make("1f1b", costs, Level::kComm)).count("formula") == 1);

    const nlohmann::json buffers = ReportJson(Make("1f1b", costs, Level::kBuffer));
    CHECK(Keys(buffers["ranks"][0]["memory"]) ==
          std::set<std::string>{"parameters", "gradients", "optimizer", "activations", "stashes",
                                "gradients_in_flight", "exchange", "total"});
  }

  TEST_CASE("memory by kind: the arenas are those of the plan and the total is their sum") {
    const Plan plan = Make("dualpipe", DeepSeek(), Level::kBuffer);
    const nlohmann::json report = ReportJson(plan);
    const char* const arenas[] = {"activations", "stashes", "gradients_in_flight", "exchange"};
    const Arena order[] = {Arena::kActivation, Arena::kStash, Arena::kGradient, Arena::kExchange};
    for (size_t r = 0; r < plan.programs.size(); ++r) {
      const nlohmann::json& memory = report["ranks"][r]["memory"];
      const auto bytes = ArenaBytes(plan.slots[r]);
      int64_t total = 0;
      for (size_t a = 0; a < 4; ++a) {
        CHECK(memory[arenas[a]] == bytes[static_cast<size_t>(order[a])]);
        CHECK(bytes[a] > 0);
      }
      for (const auto& [key, value] : memory.items()) {
        if (key != "total") total += value.get<int64_t>();
      }
      CHECK(memory["total"] == total);
      CHECK(Contains(MemoryTable(MakeReport(plan, *plan.costs)), FormatBytes(total)));
    }
  }

  TEST_CASE("exposed all-to-all is never more than all of it and the makespan holds its bubbles") {
    std::mt19937_64 random(73);
    for (int round = 0; round < CasesToDraw(20); ++round) {
      for (const Schedule* schedule : Schedules()) {
        const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
        const Report report =
            MakeReport(Make(std::string(schedule->name), costs, Level::kComponent), costs);
        CAPTURE(schedule->name);
        CHECK(report.components);
        Time largest = 0;
        for (const RankFigures& rank : report.simulation.ranks) {
          CHECK(rank.exposed <= rank.all_to_all);
          CHECK(rank.exposed <= rank.bubble);
          CHECK(rank.busy + rank.bubble == report.simulation.makespan);
          largest = std::max(largest, rank.exposed);
        }
        CHECK(report.largest_exposed() == largest);
        CHECK(report.bound.value <= report.simulation.makespan);
        CHECK_FALSE(report.formula);
      }
    }
  }

  TEST_CASE("a bound has the shortest sum and step that follow, and what is left out is said") {
    std::mt19937_64 random(74);
    for (const Schedule* schedule : Schedules()) {
      CostModel costs = UniformCosts(10, 10, 10);
      Spec spec = MakeSpec(std::string(schedule->name), 4, 8, costs);
      spec.data_parallel = 2;
      const auto report = [&] {
        Plan plan = Lower(GeneratePlan(spec), costs, {.target = Level::kComm});
        return MakeReport(plan, costs);
      };
      const Report without = report();
      CAPTURE(schedule->name);
      CHECK(without.without_updates);
      CHECK(ReportToJson(without).contains("without"));
      costs.stages.resize(static_cast<size_t>(schedule->stages(spec)), costs.stages.front());
      for (StageCost& stage : costs.stages) {
        stage.reduce = 20 + static_cast<Time>(random() % 30);
        stage.step = 5 + static_cast<Time>(random() % 3);
      }
      spec.costs = costs;
      const Report with = report();
      CHECK_FALSE(with.without_updates);
      CHECK_FALSE(ReportToJson(with).contains("without"));
      CHECK(with.bound.value >= without.bound.value + 25);
      CHECK(with.bound.value <= with.simulation.makespan);
    }
  }

  TEST_CASE("ranks that one of two plans alone has are listed, on either side") {
    const auto plan = [](int ranks) {
      const CostModel costs = UniformCosts(1, 1, 1);
      return Lower(GeneratePlan(MakeSpec("gpipe", ranks, 2, costs)), costs,
                   {.target = Level::kCompute});
    };
    const Difference more = Differ(plan(2), plan(3)), fewer = Differ(plan(3), plan(2));
    // Ranks 0 and 1 do the same in both.
    REQUIRE(more.ranks.size() == 1);
    CHECK(more.ranks[0].rank == 2);
    CHECK(Contains(more.ranks[0].instructions, "+F s2 m0"));
    REQUIRE(fewer.ranks.size() == 1);
    CHECK(Contains(fewer.ranks[0].instructions, "-F s2 m0"));
  }

  TEST_CASE("two plans are compared by the rank of each that holds most") {
    CostModel costs = UniformCosts(1, 1, 1);
    costs.memory = MemoryCost{.activation_bytes = 10, .w_stash_bytes = 2};
    const auto plan = [&](const char* schedule) {
      Plan made = GeneratePlan(MakeSpec(schedule, 4, 8, costs));
      made.costs = costs;
      return made;
    };
    const Difference difference = Differ(plan("1f1b"), plan("gpipe"));
    REQUIRE(difference.was);
    CHECK(difference.was->activations == 4);
    CHECK(difference.was->bytes == 40);
    CHECK(difference.was->total == 40);
    CHECK(difference.is->total == 80);
  }

  TEST_CASE("a ratio may be limited to all of it and no more") {
    const CostModel costs = UniformCosts(1, 1, 1);
    const Plan plan = Make("1f1b", costs, Level::kComm);
    Limits limits;
    limits.max_bubble_ratio = 1.0;
    CHECK(Judge(plan, costs, limits, "p.json")[0].broken.empty());
    limits.max_bubble_ratio = 1.01;
    CHECK(Failure<UsageError>([&] { Judge(plan, costs, limits, "p.json"); }) != "accepted");
  }

  TEST_CASE("a file has the multiple of a memory as its flag has it") {
    for (const char* said : {"\"1.5x\"", "1.5"}) {
      const LimitsFile file = ReadLimits(std::string(R"({"max_memory": )") + said + "}", "l.json");
      CHECK(file.Of("a.json").max_memory == 1.5);
    }
    CHECK(Failure<Error>([] { ReadLimits(R"({"max_memory": "10%"})", "l.json"); }) ==
          "l.json: /max_memory: must be a multiple such as 1x or 0.75x, is \"10%\"");
  }

  TEST_CASE("limits of a plan are those of its whole name") {
    LimitsFile file = ReadLimits(R"({"plans": {"a.json": {"max_activations": 3}}})", "limits.json");
    CHECK(file.KeysOf({"runs/a.json"}) == std::vector<std::string>{"a.json"});
    CHECK(file.KeysOf({"runs/ba.json"}) == std::vector<std::string>{""});
  }

  TEST_CASE("a moment between two idle times is in the later one") {
    const CostModel costs = UniformCosts(10, 10, 10, 1);
    const Plan plan =
        Lower(GeneratePlan(MakeSpec("1f1b", 4, 8, costs)), costs, {.target = Level::kComm});
    const Explanation explanation = Explain(plan, costs);
    int moments = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const std::vector<Idle>& idle = explanation.idle[static_cast<size_t>(rank)];
      for (size_t k = 1; k < idle.size(); ++k) {
        if (idle[k].when.start != idle[k - 1].when.end) continue;
        const auto from = [&](Time at) {
          const std::string text = WriteMoment(explanation, rank, at);
          return text.substr(text.find(", from "), text.find('\n') - text.find(", from "));
        };
        CHECK(from(idle[k].when.start) == from(idle[k].when.end - 1));
        ++moments;
      }
    }
    CHECK(moments > 0);
  }

  TEST_CASE("the slowest rank is the one whose work took longest for what was predicted") {
    const CostModel costs = UniformCosts(10, 10, 10);
    const Plan plan =
        Lower(GeneratePlan(MakeSpec("1f1b", 2, 4, costs)), costs, {.target = Level::kComm});
    CostModel slower = costs;
    slower.stages.resize(2, costs.stages[0]);
    slower.stages[1] = {.f = 20, .b = 20, .w = 20, .bw = 40, .fb = 60};
    const Explanation was = ExplainRun(plan, costs, Simulate(plan, costs));
    const Explanation is = ExplainRun(plan, slower, Simulate(plan, slower));
    CHECK(Contains(CompareRuns(was, is), "slowest against the prediction: rank 1\n"));
  }

  TEST_CASE("the formula that all plans of a file must keep is kept with limits of their own") {
    const LimitsFile file = ReadLimits(
        R"({"formula": true, "max_activations": 4, "plans": {"a.json": {"max_activations": 3}}})",
        "limits.json");
    CHECK(file.Of("a.json").formula);
    CHECK(file.Of("a.json").max_activations == 3);
    CHECK(file.Of("").formula);
    CHECK(file.Of("").max_activations == 4);
    const LimitsFile own = ReadLimits(R"({"plans": {"a.json": {"formula": true}}})", "limits.json");
    CHECK(own.Of("a.json").formula);
    CHECK_FALSE(own.Of("").formula);
  }

  TEST_CASE("a table of HTML has a cell for each of its texts, and none of these is markup") {
    const Table table = {.columns = {"a<b", ">n"}, .rows = {{"\"x\" & <y>", "1"}, {"..."}}};
    CHECK(FormatHtml(table) ==
          "<table><tr><th>a&lt;b</th><th style=\"text-align: right\">n</th></tr>\n"
          "<tr><td>&quot;x&quot; &amp; &lt;y&gt;</td><td style=\"text-align: right\">1</td></tr>\n"
          "<tr><td>...</td></tr>\n</table>");
  }

  TEST_CASE("PyTorch's CSV has no components and the error says what to do") {
    CHECK(Failure([] { WriteTorchCsv(Make("1f1b", DeepSeek(), Level::kComponent)); }) ==
          "the plan has components, for which PyTorch's CSV has no names; compile it with `level` "
          "comm or compute");
  }
}

}  // namespace
}  // namespace contraflow::report_test
