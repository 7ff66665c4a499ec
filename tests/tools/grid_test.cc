#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "compiler/files/plan_io.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/transcript.h"
#include "tools/pictures/picture.h"

namespace contraflow::grid_test {
namespace {

namespace fs = std::filesystem;

CostModel Costs(double f, double b, double w) {
  const auto ticks = [](double value) { return ToTicks(value, Unit::kUnit, "cost"); };
  return UniformCosts(ticks(f), ticks(b), ticks(w));
}

Plan Make(const std::string& schedule, int ranks, int microbatches, const CostModel& costs) {
  Spec spec;
  spec.schedule = schedule;
  spec.ranks = ranks;
  spec.microbatches = microbatches;
  spec.costs = costs;
  spec.search.placement = Placement::kV;  // of auto: ZB-V reaches the bound
  spec.search.budget = 0;
  Plan order = GeneratePlan(spec);
  const CostModel used = order.costs ? *order.costs : costs;
  return Lower(std::move(order), used, {.target = Level::kComm});
}

Picture PictureOf(const Plan& plan, int rank = -1) {
  return MakePicture(plan, *plan.costs, Simulate(plan, *plan.costs), {.rank = rank});
}

/// The lines of a grid that show a rank below 10, without "rank N ".
std::vector<std::string> RankLines(const std::string& grid) {
  std::vector<std::string> lines;
  size_t at = 0;
  while (at < grid.size()) {
    const size_t end = grid.find('\n', at);
    std::string line = grid.substr(at, end - at);
    // A line that is all one long box has no more than its name.
    if (line.starts_with("rank ")) lines.push_back(line.size() < 7 ? "" : line.substr(7));
    at = end + 1;
  }
  return lines;
}

}  // namespace

TEST_SUITE_BEGIN("golden");

// The orders of the other schedules are in reference_order_test.cc.
TEST_CASE("plan and grid of some schedules for P=4 M=8 at unit costs") {
  std::set<std::string> known = {"README.md", "cli"};
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe", "auto", "chimera", "combined-1f1b"}) {
    const std::string name = std::string(schedule) + "_p4_m8";
    CAPTURE(name);
    const Plan plan = Make(schedule, 4, 8, Costs(1, 1, 1));
    const std::string folder = CF_TEST_DIR "/golden/";
    const std::string of_plan = CompareGolden(folder + name + ".plan.json", WritePlan(plan));
    CHECK_MESSAGE(of_plan.empty(), of_plan);
    const std::string of_grid =
        CompareGolden(folder + name + ".grid.txt", DrawGrid(PictureOf(plan), {}));
    CHECK_MESSAGE(of_grid.empty(), of_grid);
    known.insert({name + ".plan.json", name + ".grid.txt"});
  }
  for (const auto& entry : fs::directory_iterator(CF_TEST_DIR "/golden")) {
    const std::string file = entry.path().filename().string();
    CHECK_MESSAGE(known.count(file) == 1, file << ": no test reads this golden");
  }
}

TEST_CASE("the picture in README.md is what show draws") {
  const Plan plan = Make("dualpipe", 4, 8, Costs(1, 1, 1));
  const std::string report =
      CompareGolden(CF_TEST_DIR "/../schedules/dualpipe.svg", DrawSvg(PictureOf(plan)));
  CHECK_MESSAGE(report.empty(), report);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("unit");

TEST_CASE("a grid is to scale: boxes start and end where the simulation says") {
  const Plan plan = Make("1f1b", 2, 2, Costs(1, 1, 1));
  // One unit is three columns: "F0" and a free one. Expected: rank 0 runs F0 0..1, F1 1..2, BW0
  // 4..6, BW1 7..9; rank 1 F0 1..2, BW0 2..4, F1 4..5, BW1 5..7.
  CHECK(RankLines(DrawGrid(PictureOf(plan), {})) ==
        std::vector<std::string>{"F0 F1 ......BW0   ...BW1", "...F0 BW0   F1 BW1   ......"});
  CHECK(RankLines(DrawGrid(PictureOf(plan, 1), {})) ==
        std::vector<std::string>{"...F0 BW0   F1 BW1   ......"});
}

TEST_CASE("a grid never exceeds its width whatever the costs and the shape") {
  for (const double w : {0.001, 1.0, 700.0}) {
    for (const Schedule* schedule : Schedules()) {
      for (const int width : {kMinGridWidth, 100, 317}) {
        const Plan plan = Make(std::string(schedule->name), 4, 24, Costs(1.3, 1.7, w));
        CAPTURE(plan.schedule);
        CAPTURE(w);
        const std::string grid = DrawGrid(PictureOf(plan), {.width = width});
        int bands = 0;
        for (const std::string& line : RankLines(grid)) {
          CHECK(static_cast<int>(line.size()) <= width - 7);
          ++bands;
        }
        CHECK(bands % 4 == 0);
        CHECK(bands / 4 <= 10);  // Eight bands, up to a fifth narrower where they break at a mark.
      }
    }
  }
}

TEST_CASE("where boxes are too narrow for numbers they show their kind") {
  const Plan plan = Make("dualpipe", 4, 400, Costs(1, 1, 1));
  const std::string grid = DrawGrid(PictureOf(plan), {.width = kMinGridWidth});
  CHECK(Contains(grid, "&"));
  CHECK(!Contains(grid, "F399"));
}

TEST_CASE("colour: numbers only and every line ends with the default colour") {
  const Plan plan = Make("dualpipe", 4, 8, Costs(1, 1, 1));
  const std::string grid = DrawGrid(PictureOf(plan), {.width = 100, .color = true});
  size_t at = 0;
  int lines = 0;
  while ((at = grid.find("\nrank ", at)) != std::string::npos) {
    const size_t end = grid.find('\n', at + 1);
    const std::string line = grid.substr(at + 1, end - at - 1);
    CHECK(line.rfind("\x1b[0m") > line.rfind("\x1b[38"));
    CHECK(line.find('F') == std::string::npos);
    at = end;
    ++lines;
  }
  CHECK(lines >= 4);
  // Both directions and both halves of a pair have colours of their own.
  for (const char* color : {"221m", "215m", "114m", "71m"}) {
    CHECK(Contains(grid, color));
  }
}

TEST_CASE("colour: numbers of the ruler keep their points") {
  const Plan plan = Make("zb-1p", 2, 4, Costs(0.4, 0.4, 0.2));
  const auto ruler = [&](bool color) {
    const std::string grid = DrawGrid(PictureOf(plan), {.width = 90, .color = color});
    const size_t end = grid.find("\nrank 0");
    const size_t begin = grid.rfind('\n', end - 1) + 1;
    return grid.substr(begin, end - begin);
  };
  for (const bool color : {false, true}) {
    for (const char* number : {"0.5", "1.5", "2.5"}) CHECK(Contains(ruler(color), number));
  }
}

TEST_CASE("an SVG has one titled group for every compute instruction and escapes text") {
  Plan plan = Make("dualpipe-v", 3, 7, Costs(1, 1, 1));
  plan.schedule = "a<b&c";
  const std::string svg = DrawSvg(PictureOf(plan));
  size_t groups = 0, compute = 0;
  for (size_t at = 0; (at = svg.find("<g><title>", at)) != std::string::npos; ++at) ++groups;
  for (const Program& program : plan.programs) {
    compute += static_cast<size_t>(std::ranges::count_if(
        program, [](const Instruction& i) { return WorkOf(i.op) == Work::kCompute; }));
  }
  CHECK(groups == compute);
  CHECK(Contains(svg, "a&lt;b&amp;c"));
  CHECK(!Contains(svg, "a<b"));
}

TEST_CASE("steps of a ruler are 1 or 2 or 5 times a power of ten") {
  CHECK(RulerStep(0) == 1);
  CHECK(RulerStep(1) == 1);
  CHECK(RulerStep(3) == 5);
  CHECK(RulerStep(6) == 10);
  CHECK(RulerStep(1'000'001) == 2'000'000);
}

TEST_SUITE_END();

}  // namespace contraflow::grid_test
