// Output of `compare`: rows, advice, sweeps, and the options of the search.

#include "tools/report/comparison.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "compiler/files/cost_io.h"
#include "compiler/lower/interleave.h"
#include "compiler/plan/error.h"
#include "compiler/plan/layer_cost.h"
#include "schedules/compare.h"
#include "schedules/front.h"
#include "schedules/registry.h"
#include "tests/support/deepseek_costs.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"
#include "tests/tools/profile/profile_support.h"
#include "tools/cli/exit.h"
#include "tools/cli/options.h"
#include "tools/cli/spec_options.h"
#include "tools/cli/terminal.h"
#include "tools/profile/costs_file.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"

namespace contraflow::comparison_test {
namespace {

CompareRequest MakeRequest(int ranks, int microbatches, const CostModel& costs) {
  CompareRequest request;
  request.spec = MakeSpec("", ranks, microbatches, costs);
  request.spec.search.placement = Placement::kAny;
  request.spec.search.budget = 2'000'000;
  return request;
}

const CompareRow& Find(const std::vector<CompareRow>& rows, const std::string& schedule) {
  const auto row =
      std::ranges::find_if(rows, [&](const CompareRow& r) { return r.schedule == schedule; });
  REQUIRE(row != rows.end());
  return *row;
}

TEST_SUITE("unit") {
  TEST_CASE("advice says 1F1B where nothing gains a hundredth and names what does otherwise") {
    // On one rank nothing waits.
    std::vector<CompareRow> rows = Compare(MakeRequest(1, 8, UnitCosts()));
    Advice advice = Advise(rows);
    CHECK(advice.schedule == "1f1b");
    CHECK(advice.text ==
          "take 1F1B (1f1b): 24 units; nothing that fits is shorter; no order of its placement is "
          "shorter; holds 1.00 times 1F1B's activations");
    CompareRequest request = MakeRequest(4, 8, UnitCosts());
    request.no_auto = true;
    request.memory_limit = "1x";
    rows = Compare(request);
    CHECK(rows.back().schedule != "auto");
    advice = Advise(rows);
    // Cut into two stages a rank: 24 units of work and a bubble of 1.5.
    CHECK(advice.schedule == "zb-v");
    CHECK(Contains(advice.text, "22.73 % shorter than 1f1b"));
    CHECK(advice.text ==
          "take zb-v: 25.5 units, 22.73 % shorter than 1f1b, 3.77 % shorter than v-half (best "
          "other published that fits); no order of its placement is shorter; holds 1.00 times "
          "1F1B's activations");
    CHECK(Contains(AdviceLines(advice), " fits);\n  no order "));
  }

  TEST_CASE("without a limit nothing holds more than 1F1B, and none lifts that") {
    CompareFlags flags;
    flags.ranks = 8;
    flags.microbatches = "64";
    flags.costs.f = GivenTime(12.1);
    flags.costs.b = GivenTime(13);
    flags.costs.w = GivenTime(9.8);
    flags.costs.comm = GivenTime(0.8);
    flags.search.budget = "2ms";
    Point point = MakePoints(flags).front();
    CHECK(point.request.memory_limit == "1x");
    point.rows = Compare(point.request);
    const std::string text = ComparisonText(point.request, point.rows, true);
    CHECK(Contains(text,
                   "\nmemory: no limit is known, so as much as 1F1B holds (1x); --memory-limit "
                   "none lifts it\n"));
    CHECK(Contains(text,
                   "overlapped pairs gain nothing in combined-1f1b, dualpipe, dualpipe-v; --fb"));
    for (const auto& [schedule, memory] :
         {std::pair("1f1b", 1.0), {"zb-v", 1.0}, {"zb-2p", 2.0}, {"gpipe", 8.0}, {"v-min", 0.5}}) {
      CAPTURE(schedule);
      CHECK(Find(point.rows, schedule).memory == memory);
      // The schedule as it is, whatever fits.
      CHECK(Find(point.rows, schedule).fits == (memory <= 1));
      CHECK(RowToJson(Find(point.rows, schedule), point.request)["memory_of_1f1b"] == memory);
    }
    CHECK(point.rows.back().memory <= 1);
    CHECK(Advise(point.rows).row->memory <= 1);
    // Fewer micro-batches than ranks.
    flags.microbatches = "4";
    point = MakePoints(flags).front();
    point.rows = Compare(point.request);
    CHECK(Find(point.rows, "1f1b").memory == 1);
    CHECK(Find(point.rows, "gpipe").memory == 1);
    // Stages that differ: 1F1B's fullest rank, and not an average one.
    flags.costs.f = flags.costs.b = flags.costs.w = flags.costs.comm = std::nullopt;
    flags.costs.text = R"({"unit": "ms", "layers": [
        {"name": "a", "repeat": 9, "f": 1, "b": 1, "w": 1, "activation_bytes": 100}]})";
    flags.ranks = 4;
    flags.microbatches = "8";
    point = MakePoints(flags).front();
    point.rows = Compare(point.request);
    CHECK(Find(point.rows, "1f1b").memory == 1);
    CHECK(Find(point.rows, "1f1b").fits);
    CHECK(point.rows.back().memory <= 1);
    flags.memory_limit = "none";
    CHECK(MakePoints(flags).front().request.memory_limit.empty());
    flags.memory_limit.clear();
    flags.costs.text->replace(flags.costs.text->rfind('}'), 1, R"(, "ranks": [
        {"memory_bytes": 9000}, {"memory_bytes": 9000}, {"memory_bytes": 9000},
        {"memory_bytes": 9000}]})");
    CHECK(MakePoints(flags).front().request.memory_limit.empty());
  }

  TEST_CASE("of schedules as good none that holds more than 1F1B is advised") {
    CompareRequest request = MakeRequest(4, 16, UnitCosts());
    request.no_auto = true;
    std::vector<CompareRow> rows = Compare(request);
    std::erase_if(rows, [](const CompareRow& row) {
      return row.schedule != "zb-2p" && row.schedule != "v-half" && row.schedule != "1f1b";
    });
    rows[2].report->simulation.makespan = rows[1].report->simulation.makespan;
    CHECK(Advise(rows).schedule == "v-half");
    // Against 1F1B and the best other, never against the worst.
    std::vector<CompareRow> all = Compare(request);
    CHECK(!Contains(Advise(all).text, "gpipe"));
  }

  TEST_CASE("a global batch keeps its time over numbers of micro-batches") {
    CompareFlags flags;
    flags.ranks = 2;
    flags.microbatches = "4,8,16,32,64";
    flags.costs.f = GivenTime(16);
    flags.costs.bw = GivenTime(48);
    flags.no_auto = true;
    flags.schedules = "1f1b,zb-1p";
    flags.global_batch = 64;
    std::vector<std::string> assumed;
    std::vector<Point> points = MakePoints(flags, &assumed);
    const double ratios[] = {20, 11.11, 5.88, 3.03, 1.54};
    for (size_t i = 0; i < points.size(); ++i) {
      points[i].rows = Compare(points[i].request);
      REQUIRE(points[i].rows.size() == 2);
      const Simulation& run = points[i].rows[0].report->simulation;
      CHECK(run.bubble_ratio() * 100 == doctest::Approx(ratios[i]).epsilon(0.001));
      CHECK(run.ranks[0].busy == 256 * TicksPerUnit(Unit::kUnit));
    }
    CHECK(points[2].request.samples == 4);
    const std::string text = SweepText(points, true);
    CHECK(Contains(text, "\nmicro-batches  take "));
    CHECK(Contains(text, "\nschedule  M 4  M 8"));
    CHECK(!Contains(text, "  5.88 %  "));
    CHECK(Contains(SweepText(points, true, true), "  5.88 %  "));
    points.resize(1);
    points[0].rows[1].fits = false;
    CHECK(Contains(SweepText(points, true), "\nfit nowhere: zb-1p\n"));
    CHECK(!Contains(SweepText(points, true), "  zb-1p"));
    // Bytes of a micro-batch, but not those of a model; messages by bandwidth, but not latency.
    flags.costs = {};
    flags.costs.text = R"({"unit": "ms", "stage": {"f": 4, "b": 4, "w": 4, "step": 2},
        "comm": {"latency": 1, "bytes": 100, "bandwidth": 50},
        "memory": {"activation_bytes": 800, "w_stash_bytes": 80, "parameter_bytes": 7}})";
    points = MakePoints(flags, &assumed);
    const CostModel& costs = points[1].request.spec.costs;
    CHECK(costs.stages[0] ==
          StageCost{2'000'000, 2'000'000, 2'000'000, 4'000'000, 6'000'000, 0, 2'000'000});
    CHECK(costs.comm.latency == 1'000'000);
    CHECK(costs.comm.occupancy == 1'000'000);
    CHECK(costs.comm.bytes == 50);
    CHECK(costs.memory->activation_bytes == 400);
    CHECK(costs.memory->w_stash_bytes == 40);
    CHECK(costs.memory->parameter_bytes[0] == 7);
    flags.data_parallel = 2;
    flags.microbatches = "4,12";
    CHECK(Failure<UsageError>([&] { MakePoints(flags, &assumed); }) ==
          "`global_batch`: 64 samples are no multiple of 24 micro-batches, of all replicas; "
          "give another `microbatches`");
  }

  TEST_CASE("a large model that runs again has no row that waits for memory, and none is refused") {
    const ModelShape model = PublishedModel("qwen3-235b-a22b");
    CostSetup setup = SetupOn("h100");
    setup.expert_parallel = 8;
    setup.gpus = setup.stage_gpus = 128;
    const std::string path =
        (std::filesystem::temp_directory_path() / ("again" + std::to_string(getpid()) + ".json"))
            .string();
    WriteFile(path, WriteCostsByLayer(model, setup, CostsOf(model, setup)));
    CompareFlags flags;
    flags.ranks = 4;
    flags.microbatches = "16";
    flags.data_parallel = 4;
    flags.costs.file = path;
    flags.device_memory.zero = 1;
    flags.recompute = "full";
    flags.schedules = "interleaved-1f1b,zb-2p,zb-v";
    const std::vector<CompareRow> rows = Compare(MakePoints(flags).front().request);
    std::filesystem::remove(path);
    // A partition that was tried has 89 layers in a stage.
    REQUIRE(Find(rows, "interleaved-1f1b").report);
    // In the memory that it may have, zb-2p takes 2.5 times as long.
    REQUIRE(Find(rows, "zb-2p").report);
    CHECK(!Find(rows, "zb-2p").fits);
    CHECK(Find(rows, "zb-2p").makespan() * 10 < Find(rows, "zb-v").makespan() * 11);
  }

  TEST_CASE("schedules are chosen and rows sorted") {
    CompareFlags flags;
    flags.ranks = 4;
    flags.microbatches = "8";
    flags.schedules = "dualpipe,1f1b,zb-v";
    Point point = MakePoints(flags).front();
    point.rows = Compare(point.request);
    SortRows("makespan", &point.rows);
    std::string names;
    for (const CompareRow& row : point.rows) names += row.schedule + " ";
    CHECK(names == "zb-v dualpipe 1f1b ");
    CHECK(Advise(point.rows).schedule == "zb-v");
    SortRows("memory", &point.rows);
    CHECK(point.rows.back().schedule == "dualpipe");
    CHECK(Failure<UsageError>([&] { SortRows("speed", &point.rows); }) ==
          "`sort`: must be step, bubble, ratio, gap, memory or total, is \"speed\"");
    flags.schedules = "1f1b,zbx";
    CHECK(Contains(Failure<UsageError>([&] { MakePoints(flags); }), "zbx"));
    flags.schedules = "1f1b";
    flags.search.seed = 1;
    CHECK(Failure<UsageError>([&] { MakePoints(flags); }) ==
          "`seed`: is for auto, but what `schedules` names is not searched; drop one of them");
  }

  TEST_CASE("the head says what a step leaves out") {
    CompareRequest request = MakeRequest(2, 4, UnitCosts());
    const char* const kWithout = "makespans are without gradient sums and optimizer";
    CHECK(!Contains(ComparedHead(request, true, true), kWithout));
    request.spec.data_parallel = 2;
    CHECK(Contains(ComparedHead(request, true, true), kWithout));
    CHECK(ComparedHead(request, true, true).starts_with("2 ranks x 2 data-parallel, 4 micro"));
    request.spec.costs.stages[0].step = 1;
    CHECK(!Contains(ComparedHead(request, true, true), kWithout));
    const auto devices = [](const Parallel& parallel) { return DescribeDevices(4, parallel, 2); };
    CHECK(devices({}) == "4 ranks x 2 data-parallel = 8 GPUs");
    CHECK(devices({.ep = 8}) == "4 ranks x 8 expert-parallel x 2 data-parallel = 64 GPUs");
    CHECK(devices({.tp = 2, .ep = 32}) ==
          "4 ranks x 32 devices (tp 2, cp 1, ep 32, etp 1) x 2 data-parallel = 256 GPUs");
    CHECK(devices({.tp = 8}) ==
          "4 ranks x 8 devices (tp 8, cp 1, ep 1, etp 1) x 2 data-parallel = 64 GPUs");
  }

  TEST_CASE(
      "every row runs the model that the costs describe, and advice names none that does not fit") {
    CompareRequest request = MakeRequest(4, 8, UnitCosts());
    const std::vector<CompareRow> rows = Compare(request);
    CHECK(rows.back().schedule == "auto");
    CHECK(Find(rows, "dualpipe").twice);
    for (const CompareRow& row : rows) {
      CAPTURE(row.schedule);
      if (!row.report) continue;
      Time busy = 0;
      for (const RankFigures& rank : row.report->simulation.ranks) busy += rank.busy;
      CHECK(busy == 4 * 8 * 3 * TicksPerUnit(Unit::kUnit));
    }
    CHECK(Find(rows, "zb-v").report);
    // Costs of as many as are listed, cut or merged for each.
    CostModel listed = UnitCosts();
    listed.stages.resize(8, listed.stages.front());
    for (const CompareRow& row : Compare(MakeRequest(4, 8, listed))) {
      if (row.report) CHECK(row.report->simulation.ranks[0].busy == 2 * 8 * 3'000'000);
    }
    request.memory_limit = "0.2x";
    request.no_auto = true;
    CHECK(Advise(Compare(request)).text ==
          "no schedule fits; raise `memory_limit`, or see above what each of them needs");
  }

  TEST_CASE("the level is said where costs have components") {
    CompareRequest request = MakeRequest(2, 4, UniformCosts(1, 1, 1));
    request.no_auto = true;
    const auto notes = [&] { return ComparisonText(request, Compare(request), true); };
    CHECK(!Contains(notes(), "level"));
    request.spec.costs = ReadCosts(R"({"unit": "us", "layers": [{"name": "block", "repeat": 4,
       "moe": {"attn_f": 1, "dispatch_f": 1, "mlp_f": 1, "combine_f": 1, "combine_b": 1,
               "mlp_b": 1, "dispatch_b": 1, "attn_b": 1, "mlp_w": 1, "attn_w": 1}}]})",
                                   "c.json");
    CHECK(Contains(notes(), "All rows are at level comm: "));
    request.spec.costs.layers.clear();
    request.spec.costs.moe = DeepSeek(1);
    DeriveChunkCosts(&request.spec.costs, Overlap::kAll);
    request.components = true;
    CHECK(Contains(notes(), "All rows are at level component"));
  }

  TEST_CASE("chunks are those of interleaved stages and its formula knows them") {
    const Time three = 3 * TicksPerUnit(Unit::kUnit);
    CompareRequest request = MakeRequest(4, 8, UniformCosts(three, three, three));
    request.spec.chunks = 3;
    const std::vector<CompareRow> rows = Compare(request);
    const CompareRow& interleaved = Find(rows, "interleaved-1f1b");
    CHECK(interleaved.stages == 12);
    REQUIRE(interleaved.report);
    REQUIRE(interleaved.report->formula);
    CHECK(interleaved.report->formula->holds);
    CHECK(Find(rows, "1f1b").report);
    CHECK(Find(rows, "zb-v").report);
    // The model of one stage a rank, whatever is cut.
    Time busy = 0;
    for (const RankFigures& rank : rows.back().report->simulation.ranks) busy += rank.busy;
    CHECK(busy == 4 * 8 * 3 * three);
  }

  TEST_CASE("rows say what ranks send and what parameters they hold") {
    CostModel costs = UniformCosts(4, 4, 4, 1);
    costs.unit = Unit::kNanoseconds;
    costs.comm = {.latency = 1, .bytes = 10, .bandwidth = 10, .occupancy = 1};
    costs.memory = {.activation_bytes = 100, .w_stash_bytes = 50, .parameter_bytes = {7}};
    CompareRequest request = MakeRequest(4, 8, costs);
    request.no_auto = true;
    const std::vector<CompareRow> rows = Compare(request);
    // Three edges, there and back.
    CHECK(Find(rows, "1f1b").messages == 3 * 2 * 8);
    CHECK(Find(rows, "1f1b").message_bytes == 3 * 2 * 8 * 10);
    CHECK(Find(rows, "1f1b").parameters == 7);
    CHECK(Find(rows, "dualpipe").parameters == 14);
    const std::string text = ComparisonText(request, rows, true);
    CHECK(Contains(text, "parameters"));
    CHECK(Contains(text, "advice: take "));
  }

  TEST_CASE("a sweep has every point in text and JSON and CSV") {
    std::vector<Point> points;
    for (const int microbatches : ParseMicrobatches("4,6")) {
      for (const std::string& limit : ParseMemoryLimits("1x,2x")) {
        CompareRequest request = MakeRequest(4, microbatches, UnitCosts());
        request.memory_limit = limit;
        request.spec.search.budget = 0;
        points.push_back({request, Compare(request)});
      }
    }
    const auto json = nlohmann::json::parse(SweepJson(points));
    REQUIRE(json["points"].size() == 4);
    CHECK(json["points"][3]["microbatches"] == 6);
    CHECK(json["points"][3]["memory_limit"] == "2x");
    for (const auto& point : json["points"]) {
      CHECK(point["rows"].size() == Schedules().size());
      CHECK(point["rows"].back()["schedule"] == "auto");
      CHECK(point["advice"].contains("text"));
    }
    const std::string csv = SweepCsv(points);
    CHECK(std::ranges::count(csv, '\n') == 1 + static_cast<std::ptrdiff_t>(4 * Schedules().size()));
    const std::string text = SweepText(points, false);
    CHECK(Contains(text, "advice for 6 micro-batches, 2x: take "));
  }

  TEST_CASE("a sweep has no time for what breaks a limit at one of its points") {
    std::vector<Point> points;
    for (const bool fits : {true, false}) {
      CompareRequest request = MakeRequest(2, 4, UnitCosts());
      request.memory_limit = "2x";
      request.spec.search.budget = 0;
      points.push_back({request, Compare(request)});
      if (!fits) points.back().request.memory_limit = "1x";
      std::erase_if(points.back().rows,
                    [](const CompareRow& row) { return row.schedule != "gpipe"; });
      REQUIRE(points.back().rows.size() == 1);
      REQUIRE(points.back().rows[0].report);
      points.back().rows[0].fits = fits;
    }
    CHECK(Contains(SweepText(points, false), "\nschedule  M 4, 2x  M 4, 1x\n"));
    const std::string text = SweepText(points, false);
    const size_t row = text.find("\ngpipe ") + 1;
    CHECK(text.substr(row, text.find('\n', row) - row).ends_with(" -"));
  }

  TEST_CASE("stages that follow each other are a range, and a quote in CSV is doubled") {
    CompareRequest request = MakeRequest(4, 8, UnitCosts());
    std::vector<CompareRow> rows = {Find(Compare(request), "gpipe")};
    request.spec.recompute = ParseRecompute("full");
    rows[0].recomputed = {0, 1, 3};
    CHECK(Contains(ComparisonText(request, rows, true, true), "0-1, 3"));
    CHECK(Contains(ComparisonText(request, rows, true), "3 of "));
    rows[0].report.reset();
    rows[0].rejected = "is \"odd\"";
    CHECK(Contains(ComparisonCsv(request, rows), ",\"is \"\"odd\"\"\","));
  }

  TEST_CASE("the table of every profile that ships is at most 100 columns wide") {
    int profiles = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(CF_TEST_DIR "/../tools/profiles")) {
      if (entry.path().extension() != ".json") continue;
      CAPTURE(entry.path());
      CompareFlags flags;
      flags.ranks = 4;
      flags.microbatches = "8";
      flags.costs.file = entry.path().string();
      flags.search.budget = "1ms";
      flags.recompute = "full";
      Point point = MakePoints(flags).front();
      point.rows = Compare(point.request);
      std::istringstream lines(FormatTable(ComparisonTable(point.request, point.rows), {}));
      for (std::string line; std::getline(lines, line);) CHECK(TextWidth(line) <= 100);
      ++profiles;
    }
    CHECK(profiles == 9);
  }

  TEST_CASE("a front draws a bar for the smallest point, too") {
    const CompareRequest request = MakeRequest(2, 4, UnitCosts());
    FrontPoint point{.row = Find(Compare(request), "gpipe")};
    std::vector<FrontPoint> front;
    for (const double memory : {1.0, 50.0, 100.0}) {
      point.memory = memory;
      front.push_back(point);
    }
    const std::string text = FrontText(request, front, true);
    CHECK(Contains(text, "x  #  "));
    CHECK(Contains(text, " " + std::string(12, '#') + " "));
    CHECK(Contains(text, " " + std::string(24, '#') + " "));
  }

  TEST_CASE("a sweep compares each value once and in the order in which they are first given") {
    CHECK(ParseMicrobatches("16,16,32,8,32,016") == std::vector<int>{16, 32, 8});
    CHECK(ParseMemoryLimits("1x,1x") == std::vector<std::string>{"1x"});
    CHECK(ParseMemoryLimits("2x,1x,2x,") == std::vector<std::string>{"2x", "1x", ""});
    // The most that are compared count once each, too.
    std::string list = "1";
    for (int i = 1; i <= 64; ++i) list += "," + std::to_string(i);
    CHECK(ParseMicrobatches(list).size() == 64);
    CHECK(Failure<UsageError>([&] { ParseMicrobatches(list + ",65"); }) ==
          "`microbatches`: at most 64 are compared at once, has 65");
  }

  TEST_CASE("what the options of the search take") {
    CHECK(ParseDuration("--budget", "1s") == 1'000'000'000);
    CHECK(ParseDuration("--budget", "500ms") == 500'000'000);
    CHECK(ParseDuration("--budget", "0.5s") == 500'000'000);
    CHECK(ParseDuration("--budget", "2m") == 120'000'000'000);
    CHECK(ParseDuration("--budget", "1.5h") == 5'400'000'000'000);
    CHECK(ParseDuration("--budget", "7d") == ParseDuration("--budget", "168h"));
    CHECK(ParseDuration("--budget", "0s") == 0);
    for (const char* const wrong :
         {"", "1", "s", "-1s", "1w", "169h", "1 s", "nans", "8000000s", "1e3s"}) {
      CAPTURE(wrong);
      CHECK(Failure<UsageError>([&] { ParseDuration("--budget", wrong); }) ==
            "`budget`: must be a time up to 7 days, such as 500ms, 1s, 2m or 1h, is \"" +
                std::string(wrong) + "\"");
    }
    CHECK(ResolveSearch({.placement = "v"}).placement == Placement::kV);
    CHECK(Failure<UsageError>([] { ResolveSearch({.placement = "vee"}); }) ==
          "`placement`: unknown placement \"vee\"; placements are any, single, linear, v, "
          "interleaved, wave, bidirectional");
    CHECK(Failure<UsageError>([] { ResolveSearch({.noise = 0.6}); }) ==
          "`noise`: must be in 0..0.5, as in 0.1 for durations that vary by 10 %");
    CHECK(Failure<UsageError>([] { ResolveSearch({.noise = std::nan("")}); }) != "accepted");
    CHECK(Failure<UsageError>([] { RefuseSearchOptions({.seed = 3}, "1f1b"); }) ==
          "`seed`: is for auto, but 1f1b is not searched; drop one of them");
    CHECK(Failure<UsageError>([] { RefuseSearchOptions({}, "1f1b"); }) == "accepted");
    CHECK(Contains(Failure<UsageError>([] { ParseMicrobatches("4,,6"); }), "`microbatches`: "));
    CHECK(Failure<UsageError>([] { ParseMicrobatches("4,99999999999"); }) ==
          "`microbatches`: 99999999999 is too large, the limit is 2147483647");
  }

  TEST_CASE("the first interrupt sets the flag and the next is no longer caught") {
    {
      const Interrupt interrupt;
      CHECK_FALSE(interrupt.happened());
      std::raise(SIGINT);
      CHECK(interrupt.happened());
      const bool usual = std::signal(SIGINT, SIG_DFL) == SIG_DFL;
      CHECK(usual);
    }
    const Interrupt again;
    CHECK_FALSE(again.happened());
  }
}

TEST_SUITE("property") {
  TEST_CASE("the advised schedule is within a hundredth of the shortest and the simplest such") {
    std::mt19937_64 random(8);
    const auto draw = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    int simple = 0, searched = 0;
    for (int round = 0; round < CasesToDraw(60); ++round) {
      const int ranks = draw(1, 5), microbatches = draw(1, 9);
      CompareRequest request =
          MakeRequest(ranks, microbatches, RandomCosts(&random, ranks, microbatches));
      // Without bytes the limit of `auto` is whole activations of a rank; 1.5x of 3 is none.
      if (draw(0, 1) == 0) request.memory_limit = ranks % 2 == 0 ? "1.5x" : "2x";
      const std::vector<CompareRow> rows = Compare(request);
      const Advice advice = Advise(rows);
      CAPTURE(round);
      REQUIRE(advice.schedule != "");
      const CompareRow& taken = Find(rows, advice.schedule);
      REQUIRE(taken.report);
      const CompareRow& found = rows.back();
      for (const CompareRow& row : rows) {
        if (!row.report) continue;
        CHECK(static_cast<double>(taken.makespan()) * 0.99 <=
              static_cast<double>(row.makespan()) + 1e-9);
        CAPTURE(row.schedule);
        // On one rank it has one stage, where half of one may overlap with the other half.
        if (ranks > 1) CHECK(found.makespan() <= row.makespan());
      }
      simple += advice.schedule == "1f1b";
      searched += advice.schedule == "auto";
    }
    CHECK((kSanitized || simple >= 3));
    CHECK((kSanitized || searched >= 10));
  }
}

}  // namespace
}  // namespace contraflow::comparison_test
