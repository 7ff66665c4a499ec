// Profiles in forms that are no traces, and what is none.

#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "compiler/files/file.h"
#include "tests/support/failure.h"
#include "tests/support/sanitized.h"
#include "tests/tools/profile/profile_support.h"

namespace contraflow::profile_forms_test {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("Megatron-LM's timers") {
    std::string log = "[default7]: iteration 10/20 | lm loss: 9.1\n";
    for (const char* step : {"99", "80"}) {
      log +=
          "times across ranks (ms):\n  forward-backward:\n     rank  0: 900.00\n  "
          "forward-compute:\n";
      for (int rank = 0; rank < 4; ++rank) {
        log += "     rank " + std::to_string(rank) + ": " + (rank < 2 ? step : "160.00") + "\r\n";
      }
      log +=
          "  backward-compute:\n     rank  0: 100\n     rank  1: 120\n     rank  2: 240\n     rank "
          " 3: 240\n"
          "  optimizer:\n     rank  0: 5\n";
    }
    const ProfileOptions options{.log = {.ranks = 2, .chunks = 1, .microbatches = 8}, .split = 0.4};
    const ProfiledCosts profile = CostsOfText(log, options);
    REQUIRE(profile.costs.stages.size() == 2);
    // Two ranks a stage; the first log is warm-up.
    CHECK(profile.costs.stages[0] ==
          StageCost{
              .f = 10'000'000, .b = 5'500'000, .w = 8'250'000, .bw = 13'750'000, .fb = 23'750'000});
    CHECK(profile.costs.stages[1].f == 20'000'000);
    CHECK(HasNote(profile, "b is 0.4 of bw"));
    CHECK(Contains(FailureOf(log), "say with `microbatches`"));
    CHECK(FailureOf(log, {.log = {.ranks = 3, .microbatches = 8}}) ==
          "p: the log has 4 ranks, which is no multiple of `ranks` 3");
    // Stages of a rank, and the other two forms.
    CHECK(CostsOfText(log, {.log = {.ranks = 2, .chunks = 2, .microbatches = 8}})
              .costs.stages.size() == 4);
    for (const char* form :
         {"(min, max) time across ranks (ms):\n    forward-compute ......: (70.00, 80.00)\n    "
          "backward-compute .....: (99.0, 120.00)\n",
          "max time across ranks (ms):\n    forward-compute ......: 80.00\n    backward-compute "
          ".....: 120.00\n",
          "time (ms) | forward-compute: 80.00 | backward-compute: 120.00 | optimizer: 4\n"}) {
      CAPTURE(form);
      const CostModel costs = CostsOfText(form, {.log = {.microbatches = 8}}).costs;
      REQUIRE(costs.stages.size() == 1);
      CHECK(costs.stages[0].f == 10'000'000);
      CHECK(costs.stages[0].bw == 15'000'000);
    }
    // Each rank after its timer.
    std::string single;
    for (const int factor : {9, 1}) {
      for (int rank = 0; rank < 2; ++rank) {
        for (const char* timer : {"forward-compute", "backward-compute"}) {
          const int time = factor * (rank + 1) * (timer[0] == 'f' ? 80 : 120);
          single += std::string(timer) + ": rank " + std::to_string(rank) + ": " +
                    std::to_string(time) + "\n";
        }
      }
    }
    const CostModel costs = CostsOfText(single, {.log = {.microbatches = 8}}).costs;
    REQUIRE(costs.stages.size() == 2);
    for (size_t s = 0; s < 2; ++s) {
      CHECK(costs.stages[s].f == static_cast<Time>(s + 1) * 10'000'000);
      CHECK(costs.stages[s].bw == static_cast<Time>(s + 1) * 15'000'000);
    }
    CHECK(FailureOf("  forward-compute:\n   rank 0: fast\n", {.log = {.microbatches = 1}}) ==
          "p:2: must be a time in milliseconds: \"rank 0: fast\"");
  }

  TEST_CASE("tables of nsys stats") {
    const std::string trace =
        "Processing [run.sqlite] with [nvtx_pushpop_trace.py]...\n"
        "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild "
        "(ns),Name,PID,TID,Lvl,NumChild\n"
        "0,1,9000000,0,1,\":PP:0F0\",7,7,0,0\n"
        "0,1,2000000,0,1,\":PP:0F0\",7,7,0,0\n"
        "0,1,4000000,0,1,PP:0B0,7,7,0,0\n"
        "0,1,4100000,0,1,PP:0B0,7,7,0,0\n"
        "0,1,10,0,1,\"load, 3\",7,7,0,0\n";
    const ProfiledCosts profile = CostsOfText(trace);
    CHECK(profile.costs.stages[0].f == 2'000'000);
    CHECK(profile.costs.stages[0].bw == 4'100'000);
    CHECK(profile.unmapped == std::map<std::string, int64_t>{{"load, #", 1}});
    CHECK(HasNote(profile, "of the host"));
    const std::string projected =
        "Name,Projected Start (us),Projected Duration (us),Orig Start (us),Orig Duration (us)\n"
        "PP:0F0,1,2000,1,9\nPP:0I0,1,1500,1,9\nPP:0W0,1,1400,1,9\n";
    CHECK(CostsOfText(projected).costs.stages[0] ==
          StageCost{
              .f = 2'000'000, .b = 1'500'000, .w = 1'400'000, .bw = 2'900'000, .fb = 4'900'000});
    const std::string sum =
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev "
        "(ns),Style,Range\n"
        "50,1,40,9,2000000,1,1,1,PushPop,PP:0F0\n50,1,40,9,5000000,1,1,1,PushPop,PP:0B0\n";
    CHECK(CostsOfText(sum, {.from = ProfileForm::kNvtxCsv}).costs.stages[0].bw == 5'000'000);
    CHECK(Contains(FailureOf("no,table\n", {.from = ProfileForm::kNvtxCsv}), "has no table"));
  }

  TEST_CASE("a table of timings") {
    const std::string table =
        "op,stage,time "
        "(ms)\nF,0,2\nF,0,4\nF,0,2.5\nB,0,3\nW,0,2\nF,2,1\nBW,2,3\nFB,0,6\nCOMM,0,0.25\n";
    const ProfiledCosts profile = CostsOfText(table);
    REQUIRE(profile.costs.stages.size() == 3);
    CHECK(profile.costs.stages[0] ==
          StageCost{
              .f = 2'500'000, .b = 3'000'000, .w = 2'000'000, .bw = 5'000'000, .fb = 6'000'000});
    CHECK(profile.costs.stages[1].f == 1'750'000);
    CHECK(HasNote(profile, "stage 1: no F was timed; taken as the median of the other stages"));
    CHECK(profile.costs.comm.latency == 250'000);
    CHECK(profile.costs.source == "contraflow profile: medians of 9 samples from 1 file");
    const CostModel means = CostsOfText(table, {.mean = true}).costs;
    CHECK(means.stages[0].f == 2'833'333);
    CHECK(means.stages[0].fb == 6'000'000);
    CHECK(means.source == "contraflow profile: means of 9 samples from 1 file");
    const std::string text = ProfileText(profile);
    CHECK(Contains(text, "F            0        3        0    2250.0     2500.0    3250.0"));
    // Steps: the first is warm-up where there are more.
    const std::string steps = "stage,op,time,microbatch\n0,F,9,0\n0,BW,9,0\n0,F,1,0\n0,BW,2,0\n";
    CHECK(CostsOfText(steps).costs.stages[0].bw == 2'000);
    CHECK(CostsOfText(steps, {.warmup = 0}).costs.stages[0].f == 5'000);
    CHECK(FailureOf(steps, {.warmup = 2}) == "p: has 2 steps, and `warmup` leaves none; give less");
  }

  TEST_CASE("every wrong profile has one clear message") {
    const std::pair<std::string, std::string> rows[] = {
        {"", "p: is in none of the forms kineto|megatron-log|nvtx-csv|trace|csv; it is empty"},
        {"hello",
         "p: is in none of the forms kineto|megatron-log|nvtx-csv|trace|csv; say with `from` "
         "which it is"},
        {"{}", "p: has no \"traceEvents\"; give a trace of a profiler"},
        {"[{}, 3]", "p: /traceEvents/1: must be an object"},
        {"[[]]", "p: /traceEvents/0: must be an object, is an array"},
        {R"([{"ph": "X"}])", "p: /traceEvents/0: a complete event needs a \"name\""},
        {R"([{"ph": "X", "name": "a"}])",
         "p: /traceEvents/0: a complete event needs \"ts\", its start in microseconds"},
        {R"([{"ph": "X", "name": "a", "ts": "1"}])",
         "p: /traceEvents/0: \"ts\" must be a number (microseconds), is text"},
        {R"([{"ph": "X", "name": "a", "ts": 1, "dur": -1}])",
         "p: /traceEvents/0: \"dur\" must be a time >= 0 (microseconds), is -1"},
        {R"([{"ph": "X", "cat": "user_annotation", "name": "Step 3", "ts": 1, "dur": 1}])",
         "p: nothing was timed that costs are made of, such as PP:0F3, Forward 3, attn(F) or F s0 "
         "m3; ranges there are \"Step #\"; PyTorch's runtime of schedules "
         "(_PipelineScheduleRuntime) names its actions"},
        {"op,stage,time\nF,0,1\n",
         "p: no backward (B and W, or BW) was timed alone, and costs need it"},
        {"op,stage,time\nF,0,-1\n",
         "p:2: the time must be a number >= 0, up to a day, is \"-1\"; its unit is in the head, as "
         "in \"time (ms)\""},
        {"op,stage,time\nF,0,nan\n",
         "p:2: the time must be a number >= 0, up to a day, is \"nan\"; its unit is in the head, "
         "as in \"time (ms)\""},
        {"op,stage,time\nF,-1,1\n", "p:2: the stage must be a whole number in 0..32767, is \"-1\""},
        {"op,stage,time\nG,0,1\n",
         "p:2: unknown op \"G\"; ops are F B W BW FB R REDUCE STEP and COMM"},
        {"op,stage,time\nF,0\n", "p:2: must have 3 columns, has 2"},
        {"op,stage,time\n\"F,0,1\n", "p:2: a quote is not closed"},
        {"op,stage,when\n",
         "p:1: unknown or doubled column \"when\"; columns are stage, op, time (with its unit, as "
         "in \"time (ms)\"), microbatch and step"},
        {"op,stage\n", "p:1: must name the columns stage, op and time"}};
    for (const auto& [text, message] : rows) {
      CAPTURE(text);
      CHECK(FailureOf(text) == message);
    }
    CHECK(FailureOf("[{\"ph\": \"X\", ")
              .starts_with("p: not a whole trace: JSON ends or is wrong at byte"));
    Plan plan;
    plan.stages = 2;
    CHECK(FailureOf("op,stage,time\nF,2,1\nBW,2,1\n", {.plan = &plan}) ==
          "the profile has a stage 2, and the plan has 2 stages; is it of another run?");
  }

  TEST_CASE("damaged profiles are profiles or refused") {
    std::mt19937 random(7);
    int refused = 0, taken = 0;
    for (const auto& entry : std::filesystem::directory_iterator(CF_TEST_DIR "/corpus/profile")) {
      const std::string whole = ReadFile(entry.path().string(), 1 << 20);
      for (int i = 0; i < CasesToDraw(60); ++i) {
        std::string text =
            whole.substr(0, i % 3 == 0 ? random() % (whole.size() + 1) : whole.size());
        for (size_t edits = random() % 4; edits > 0 && !text.empty(); --edits) {
          text[random() % text.size()] = static_cast<char>("0\",-{[e}\n\x80"[random() % 10]);
        }
        const std::string failure = FailureOf(text, {.log = {.microbatches = 2}});
        CAPTURE(text);
        (failure == "accepted" ? taken : refused) += 1;
        CHECK(!Contains(failure, "\n"));
      }
    }
    CHECK((kSanitized || refused > 100));
    CHECK((kSanitized || taken > 100));
  }
}

}  // namespace
}  // namespace contraflow::profile_forms_test
