#include "tools/pictures/picture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/lower/lower.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/mutants.h"
#include "tests/support/support.h"
#include "tools/pictures/page.h"
#include "tools/report/explanation.h"
#include "tools/report/text.h"

// Pictures of plans with components, which have two rows a rank; tests/grid_test.cc has those of
// chunks.

namespace contraflow::picture_test {
namespace {

constexpr Time kUnit = 1'000'000;

/// One layer, everything takes a unit but ATTN_B, which takes two.
CostModel SmallCosts() {
  CostModel costs = UniformCosts(4 * kUnit, 5 * kUnit, 2 * kUnit);
  MoeCost moe;
  moe.layers_per_stage = 1;
  for (auto* list : {&moe.attn_f, &moe.dispatch_f, &moe.mlp_f, &moe.combine_f, &moe.combine_b,
                     &moe.mlp_b, &moe.dispatch_b, &moe.mlp_w, &moe.attn_w}) {
    *list = {kUnit};
  }
  moe.attn_b = {2 * kUnit};
  costs.moe = moe;
  return costs;
}

Plan Components(std::string_view schedule, int ranks, int microbatches, const CostModel& costs) {
  return Lower(GeneratePlan(MakeSpec(schedule, ranks, microbatches, costs)), costs,
               {.target = Level::kComponent});
}

Picture PictureOf(const Plan& plan, const View& view = {}) {
  return MakePicture(plan, *plan.costs, Simulate(plan, *plan.costs), view);
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// Messages of every form about a plan that is not sound.
void CheckBroken(const Plan& plan, const CostModel& costs, std::map<std::string, int>* seen) {
  if (Verify(plan).empty() || !FindStandstill(plan)) return;
  const std::optional<BrokenRun> run = RunBroken(plan, costs, "mutant");
  REQUIRE(run);
  const BrokenRun& broken = *run;
  const Timeline& timeline = broken.simulation.timeline;
  const std::string first = broken.findings[0].check + ": ";
  std::set<std::string> checks;
  for (const Finding& finding : broken.findings) checks.insert(finding.check);
  for (const std::string& check : checks) ++(*seen)[check];

  const Picture picture = MakeBrokenPicture(plan, costs, broken, {});
  const std::string svg = DrawSvg(picture), grid = DrawGrid(picture, {});
  const PagePlan page = {.plan = &plan,
                         .costs = &costs,
                         .name = "mutant",
                         .run = &broken.simulation,
                         .broken = &broken};
  const std::string html = DrawPage({&page, 1}, {});
  const Explanation explanation = ExplainBroken(plan, costs, broken);
  const std::string text = WriteExplanation(explanation);
  const Json json = ExplanationToJson(explanation);
  CHECK(Contains(html, "\"check\":\"" + broken.findings[0].check + "\""));
  CHECK(Contains(svg, EscapeMarkup(first)));
  CHECK(Contains(grid, "\n" + first));
  CHECK(Contains(text, "\n  " + first));
  CHECK(json["findings"].size() == broken.findings.size());
  CHECK(json["findings"][0]["check"] == broken.findings[0].check);

  // Each box that a finding is about is marked, and no other.
  int64_t marked = 0;
  for (const Picture::Row& row : picture.rows) {
    for (const Box& box : row.boxes) {
      const bool wrong = std::ranges::any_of(broken.findings, [&](const Finding& finding) {
        return finding.rank == row.rank && finding.index == box.index;
      });
      CHECK(box.wrong == wrong);
      marked += wrong ? 1 : 0;
    }
  }
  CHECK(Count(svg, "<g><title>") == BoxCount(picture));
  CHECK(Count(svg, "class=\"wrong\"") == marked);

  CHECK(json["cycle"].size() == broken.cycle.size());
  for (const BlockedAt& at : broken.cycle) {
    // It waits there, so it never runs.
    const auto rank = static_cast<size_t>(at.rank), index = static_cast<size_t>(at.index);
    CHECK(timeline.ranks[rank][index] == Span{-1, -1});
    const std::string standing = ToString(plan.programs[rank][index]);
    CHECK(Contains(svg, "at " + standing));
    CHECK(Contains(text, std::to_string(at.index) + " (" + standing + ")"));
    CHECK(json["ranks"][rank]["stands"]["index"] == at.index);
    CHECK(json["ranks"][rank]["stands"]["on_rank"] == at.on_rank);
  }
  const bool deadlock = std::ranges::count(broken.findings, "deadlock", &Finding::check) > 0;
  CHECK(deadlock == !broken.cycle.empty());
  CHECK((Count(svg, "class=\"stop\"") > 0) == deadlock);

  for (int r = 0; r < plan.ranks; ++r) {
    const auto rank = static_cast<size_t>(r);
    // An instruction that never runs has a rank that stands, and all idle time up to there a cause.
    const bool all = std::ranges::count(timeline.ranks[rank], Span{-1, -1}) == 0;
    CHECK((all || json["ranks"][rank].contains("stands")));
    Time idle = 0;
    for (const Idle& gap : explanation.idle[rank]) {
      CHECK(gap.when.start < gap.when.end);
      idle += gap.when.end - gap.when.start;
    }
    CHECK(idle == broken.simulation.ranks[rank].bubble);
    for (const bool every : {false, true}) CHECK(!WriteIdle(explanation, r, every).empty());
    const int size = static_cast<int>(plan.program(r).size());
    for (int i = 0; i < size; i += 1 + size / 4) {
      const bool never = timeline.ranks[rank][static_cast<size_t>(i)].start < 0;
      CHECK((Contains(WriteStart(explanation, {r, i}), "never runs")) == never);
    }
  }
}

TEST_SUITE("unit") {
  TEST_CASE("a picture of components has the compute lane of a rank and its all-to-all lane") {
    const Plan plan = Components("1f1b", 1, 1, SmallCosts());
    const std::string grid = DrawGrid(PictureOf(plan), {.width = 100});
    CAPTURE(grid);
    CHECK(Contains(grid, "rank 0 compute    AF0.0 ......MF0.0 ............MB0.0 "));
    CHECK(Contains(grid, "       all-to-all ......DF0.0 ......CF0.0 CB0.0 ......DB0.0 "));
    CHECK(Contains(grid, "AF3.1 is ATTN_F of micro-batch 3 in layer 1 of its stage"));
  }

  TEST_CASE("the rows of a rank are busy as long as its figures say") {
    std::mt19937_64 random(72);
    for (const Schedule* schedule : Schedules()) {
      const CostModel costs = RandomMoeCosts(&random, 3, Overlap::kAll);
      const Plan plan = Components(schedule->name, 4, 8, costs);
      const Simulation simulation = Simulate(plan, costs);
      const Picture picture = MakePicture(plan, costs, simulation, {});
      CAPTURE(schedule->name);
      REQUIRE(picture.rows.size() == 8);
      for (const Picture::Row& row : picture.rows) {
        const RankFigures& figures = simulation.ranks[static_cast<size_t>(row.rank)];
        Time busy = 0;
        for (const Box& box : row.boxes) {
          if (box.parts[0].op != Op::REDUCE) busy += box.end - box.start;
        }
        CHECK(busy == (row.lane == "compute" ? figures.busy : figures.all_to_all));
      }
      CHECK(Count(DrawSvg(picture), "<g><title>") == BoxCount(picture));
    }
  }

  TEST_CASE("a view draws what runs in it and no more") {
    const Plan plan = Components("dualpipe", 4, 8, SmallCosts());
    const View view = {
        .rank = 2, .from = 20 * kUnit, .to = 40 * kUnit};  // where boxes begin and end
    const Picture part = PictureOf(plan, view), whole = PictureOf(plan);
    CHECK(part.rows.size() == 2);
    int64_t expected = 0;
    for (const Picture::Row& row : whole.rows) {
      if (row.rank != 2) continue;
      expected += std::ranges::count_if(
          row.boxes, [&](const Box& box) { return box.end > view.from && box.start < *view.to; });
    }
    CHECK(BoxCount(part) == expected);
    CHECK(expected < BoxCount(whole));
    for (const int width : {kMinGridWidth, 100, 333}) {
      const std::string grid = DrawGrid(part, {.width = width});
      const std::string rows = grid.substr(0, grid.rfind("\n\n  "));
      size_t at = rows.find("\nrank");
      REQUIRE(at != std::string::npos);
      while (at < rows.size()) {
        const size_t end = std::min(rows.find('\n', at + 1), rows.size());
        CHECK(static_cast<int>(end - at - 1) <= width);
        at = end;
      }
    }
  }

  TEST_CASE("a view that is empty is told so, one that reaches out of the plan is cut") {
    const Plan plan = Components("1f1b", 2, 2, SmallCosts());
    const Time makespan = Simulate(plan, *plan.costs).makespan;
    const std::string length = std::to_string(makespan / kUnit) + " units";
    CHECK(Failure([&] { PictureOf(plan, {.rank = -1, .from = makespan}); }) ==
          "`from`: must be before the makespan, " + length + ", is " + length);
    CHECK(PictureOf(plan, {.rank = -1, .from = 0, .to = makespan + kUnit}).to == makespan);
    CHECK(Failure([&] { PictureOf(plan, {.rank = -1, .from = 2 * kUnit, .to = kUnit}); }) ==
          "`to` (1 unit) must be after `from` (2 units)");
  }

  TEST_CASE("up to its end a sound plan runs as ever") {
    for (const Level level : {Level::kCompute, Level::kComm, Level::kComponent}) {
      const CostModel costs = SmallCosts();
      Plan plan = GeneratePlan(MakeSpec("dualpipe", 4, 8, costs));
      if (level != Level::kCompute) plan = Lower(std::move(plan), costs, {.target = level});
      const std::optional<Standstill> standstill = FindStandstill(plan);
      REQUIRE(standstill);
      CHECK(standstill->cycle.empty());
      for (int r = 0; r < plan.ranks; ++r) {
        CHECK(standstill->next[static_cast<size_t>(r)] == static_cast<int>(plan.program(r).size()));
      }
      CHECK(SimulateUpTo(plan, costs, standstill->next).timeline == Simulate(plan, costs).timeline);
    }
  }

  TEST_CASE("plans that are not sound are drawn and explained up to where they stand") {
    const CostModel costs = SmallCosts();
    std::map<std::string, int> seen;  // plans by what was found in them
    for (const char* const schedule : {"1f1b", "interleaved-1f1b", "zb-v", "chimera", "dualpipe"}) {
      for (const Level level : {Level::kCompute, Level::kComm, Level::kComponent}) {
        Plan sound = GeneratePlan(MakeSpec(schedule, 4, 8, costs));
        if (level != Level::kCompute) sound = Lower(std::move(sound), costs, {.target = level});
        for (const Mutant& mutant : MakeMutants(sound, 40, 5)) {
          CAPTURES(schedule, mutant.name, mutant.what);
          // The costs are of plans with this many layers.
          if (mutant.plan.layers == sound.layers) CheckBroken(mutant.plan, costs, &seen);
        }
      }
    }
    for (const std::string check : {"complete", "order", "message", "deadlock"}) {
      CAPTURE(check);
      CHECK(seen[check] >= 20);
    }
  }

  TEST_CASE("forward and backward and weights and either all-to-all have colours of their own") {
    const Plan plan = Components("dualpipe", 4, 8, SmallCosts());
    const std::string svg = DrawSvg(PictureOf(plan));
    const std::string grid = DrawGrid(PictureOf(plan), {.width = 200, .color = true});
    int boxes = 0;
    for (size_t at = 0; (at = svg.find("<rect class=\"box ", at)) != std::string::npos; ++boxes) {
      at += 17;
      const std::string kind = svg.substr(at, svg.find('"', at) - at);
      CHECK_MESSAGE(Contains(svg, "." + kind + " { fill"), kind);
    }
    CHECK(boxes > BoxCount(PictureOf(plan)));  // and the legend
    for (const char* kind : {"ATTN_F", "ATTN_B", "ATTN_W", "DISPATCH_F", "COMBINE_B"}) {
      for (const char* side : {"0", "1"}) {
        CHECK(Contains(svg, "<rect class=\"box " + std::string(kind) + side + "\""));
        CHECK(Contains(svg, "." + std::string(kind) + side + " {"));
      }
    }
    for (const char* color :
         {"221m", "215m", "117m", "74m", "146m", "103m", "180m", "173m", "116m", "73m"}) {
      CHECK(Contains(grid, ";" + std::string(color)));
    }
  }
}

}  // namespace
}  // namespace contraflow::picture_test
