#include "tools/profile/profile.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "compiler/files/cost_io.h"
#include "compiler/files/file.h"
#include "compiler/files/trace.h"
#include "compiler/simulate/simulate.h"
#include "schedules/compile.h"
#include "tests/support/failure.h"
#include "tests/support/support.h"
#include "tests/support/test_folder.h"
#include "tests/tools/profile/profile_support.h"
#include "tools/profile/run_trace.h"

namespace contraflow::profile_test {
namespace {

std::string Event(const std::string& category, const std::string& name, double start,
                  double duration, const std::string& more = "") {
  return "{\"ph\": \"X\", \"cat\": \"" + category + "\", \"name\": \"" + name +
         "\", \"pid\": 1, \"tid\": 1, \"ts\": " + std::to_string(start) +
         ", \"dur\": " + std::to_string(duration) + more + "},\n";
}

std::string SliceOf(int rank, const std::string& name, double start, double duration) {
  std::string event = Event("compute", name, start, duration);
  const std::string pid = "\"pid\": 1";
  return event.replace(event.find(pid), pid.size(), "\"pid\": " + std::to_string(rank));
}

std::string TraceOf(const std::string& events, const std::string& head = "") {
  return "{" + head + "\"traceEvents\": [\n" + events.substr(0, events.size() - 2) + "]}";
}

/// "(0F7;7B3)OVERLAP_F_B"
std::string RangeOf(const Instruction& what) {
  const auto of = [](int stage, const char* type, int m) {
    return std::to_string(stage) + type + std::to_string(m);
  };
  if (what.op == Op::FB) {
    return "(" + of(what.stage, "F", what.microbatch) + ";" +
           of(what.back_stage, "B", what.back_microbatch) + ")OVERLAP_F_B";
  }
  const std::string name(Name(what.op));
  return of(what.stage,
            what.op == Op::BW  ? "B"
            : what.op == Op::B ? "I"
                               : name.c_str(),
            what.microbatch);
}

TEST_SUITE("unit") {
  TEST_CASE("names of ranges") {
    const std::pair<const char*, Instruction> known[] = {
        {"PP:0F3", CellOp(Op::F, 0, 3)},
        {":PP:12B40", CellOp(Op::BW, 12, 40)},
        {"PP:2I0", CellOp(Op::B, 2, 0)},
        {"PP:2W0", CellOp(Op::W, 2, 0)},
        {"PP:(0F7;7B3)OVERLAP_F_B", Pair(0, 7, 7, 3)},
        {"PP:1SEND_F2", Message(Op::SEND_F, 1, 2, -1)},
        {"PP:1RECV_B2", Message(Op::RECV_B, 1, 2, -1)},
        {"attn(F)", Component(Op::ATTN_F, -1, -1, -1)},
        {"dispatch(B)", Component(Op::DISPATCH_B, -1, -1, -1)},
        {"F s0 m3", CellOp(Op::F, 0, 3)},
        {"FB s0 m3 + s7 m1", Pair(0, 3, 7, 1)}};
    for (const auto& [name, what] : known) {
      CAPTURE(name);
      CHECK(ParseRange(name) == what);
    }
    for (const char* name : {"",
                             ":",
                             "PP:",
                             "PP:F3",
                             "PP:0F",
                             "PP:0X3",
                             "PP:0F3x",
                             "PP:-1F3",
                             "PP:0F99999999",
                             "PP:40000F0",
                             "PP:0UNSHARD",
                             "PP:0WAIT_SEND_F1",
                             "PP:(0F7;7B3)",
                             "PP:(0B7;7F3)OVERLAP_F_B",
                             "PP:(0F7)OVERLAP_F_B",
                             "attn(X)",
                             "(F)",
                             "F",
                             "F s0",
                             "F s0 m3 junk",
                             "ProfilerStep#1"}) {
      CAPTURE(name);
      CHECK(!ParseRange(name));
    }
  }

  // The medians are those that a script of its own finds in the same files.
  TEST_CASE("a profile of PyTorch's runtime, with pairs and waits for receives") {
    const std::string reference = CF_TEST_DIR "/reference/torch_profile_rank";
    const ProfiledCosts profile = Profile({reference + "0.json", reference + "1.json"});
    REQUIRE(profile.costs.stages.size() == 4);
    CHECK(profile.costs.unit == Unit::kMicroseconds);
    const std::pair<const char*, double> rows[] = {
        {"F 0", 13761.535},       {"F 1", 20180.649},       {"F 2", 11340.389},
        {"F 3", 16115.711},       {"B 0", 93.283},          {"B 1", 25707.783},
        {"B 2", 18578.369},       {"B 3", 22319.519},       {"W 0", 8630.453},
        {"W 1", 27747.105},       {"W 2", 19670.619},       {"W 3", 22341.382},
        {"BW 1", 25654.664},      {"BW 2", 15595.194},      {"BW 3", 22028.09},
        {"FB + s3 0", 46634.385}, {"FB + s2 1", 35099.202}, {"FB + s1 2", 42205.725},
        {"FB + s0 3", 25449.587}};
    for (size_t i = 0; i < std::size(rows); ++i) {
      const ProfiledRow& row = profile.rows[i];
      CAPTURE(rows[i].first);
      CHECK(row.what + " " + std::to_string(row.stage) == rows[i].first);
      CHECK(row.median == doctest::Approx(rows[i].second).epsilon(1e-5));
      CHECK(row.warmup == row.samples);  // one of two steps
    }
    const StageCost& first = profile.costs.stages[0];
    CHECK(first.f == 13'761'535);
    CHECK(first.bw == first.b + first.w);
    // Both of its pairs save little: the median of the two savings.
    const double with_3 = 13761.535 + 22028.09 - 46634.385;
    const double with_0 = 16115.711 + 93.283 + 8630.453 - 25449.587;
    CHECK(static_cast<double>(first.f + first.bw - first.fb) ==
          doctest::Approx(1000 * (with_3 + with_0) / 2).epsilon(1e-6));
    CHECK(static_cast<double>(profile.costs.comm.latency) ==
          doctest::Approx(500 * (468.783 + 4074.762)).epsilon(1e-4));
    CHECK(profile.unmapped.size() == 6);
    CHECK(profile.unmapped.at("PP:#REDUCE_GRAD") == 8);
    CHECK(HasNote(profile, "of the host"));
  }

  TEST_CASE("what a device ran counts, and not the host's ranges") {
    std::string events = Event("user_annotation", "step", 0, 1000);
    const auto component = [&](const std::string& name, double at, double start, double duration) {
      static int64_t correlation = 0;
      const std::string joined =
          ", \"args\": {\"correlation\": " + std::to_string(++correlation) + "}";
      events += Event("user_annotation", name, at, 5) +
                Event("cuda_runtime", "launch", at + 1, 1, joined) +
                Event("kernel", "k", start, duration, joined);
    };
    const char* const names[] = {"attn(F)", "dispatch(F)", "mlp(F)",  "combine(F)", "combine(B)",
                                 "mlp(B)",  "dispatch(B)", "attn(B)", "mlp(W)",     "attn(W)"};
    for (int layer = 0; layer < 2; ++layer) {
      for (int i = 0; i < 10; ++i) {
        const double at = layer * 100 + i * 10;
        component(names[i], at, 5000 + at * 100, 100 + i + layer);
      }
    }
    // Events of the second launch of the first range: its span counts, gaps and all.
    events += Event("cuda_runtime", "launch", 2, 1, ", \"args\": {\"correlation\": 99}") +
              Event("kernel", "k", 5300, 50, ", \"args\": {\"correlation\": 99}");
    const ProfiledCosts profile = CostsOfText(TraceOf(events));
    REQUIRE(profile.costs.moe);
    CHECK(profile.costs.stages.empty());
    CHECK(profile.costs.moe->layers_per_stage == 2);
    CHECK(profile.costs.moe->attn_f == std::vector<Time>{225'500});  // of 350 and 101
    CHECK(profile.costs.moe->attn_w == std::vector<Time>{109'500});
    CHECK(ReadCosts(WriteCosts(profile.costs), "again") == profile.costs);
    CHECK(FailureOf(TraceOf(Event("user_annotation", "attn(F)", 0, 1))) ==
          "no dispatch_f was timed, and costs by component need all ten");
  }

  TEST_CASE("traces of this project give the costs that they were simulated with") {
    for (const char* schedule : {"1f1b", "zb-1p", "dualpipe-v", "dualpipe", "chimera"}) {
      CAPTURE(schedule);
      Spec spec = MakeSpec(schedule, 4, 12, {});
      const bool full = std::string(schedule) == "1f1b" || std::string(schedule) == "chimera";
      const bool two = std::string(schedule) == "dualpipe-v";
      spec.costs.unit = Unit::kMicroseconds;
      for (Time s = 0; s < (two ? 8 : 4); ++s) {
        spec.costs.stages.push_back(
            {.f = 1000 + s, .b = 900 - s, .w = 800, .bw = 1700 - s, .fb = 2700});
      }
      spec.costs.comm.latency = 70;
      const Plan plan = Compile(spec, {.level = Level::kComm});
      const std::string trace = WriteTrace(plan, Simulate(plan, spec.costs).timeline);
      const ProfiledCosts profile = CostsOfText(trace, {.plan = &plan});
      REQUIRE(profile.costs.stages.size() == spec.costs.stages.size());
      for (size_t s = 0; s < spec.costs.stages.size(); ++s) {
        const StageCost& is = profile.costs.stages[s];
        const StageCost& want = spec.costs.stages[s];
        CAPTURE(s);
        CHECK(is.f == want.f);
        CHECK(is.bw == want.bw);
        if (full) continue;  // has no B and W apart
        CHECK(is.b == want.b);
        CHECK(is.w == want.w);
      }
      CHECK(profile.costs.comm.latency == 70);
      CHECK(HasNote(profile, "--split") == full);
      int64_t warmup = 0;
      for (const ProfiledRow& row : profile.rows) warmup += row.warmup;
      CHECK(warmup == 0);  // it is one step, though two ranks have a REDUCE of one stage
    }
  }

  TEST_CASE("a run of PyTorch is told by the stages of its traces") {
    for (const char* schedule : {"1f1b", "zb-1p", "interleaved-1f1b", "zb-v", "dualpipe-v"}) {
      CAPTURE(schedule);
      Spec spec = MakeSpec(schedule, 2, 4, UniformCosts(30000, 20000, 10000, 4000));
      spec.costs.unit = Unit::kMicroseconds;
      const Plan plan = Compile(spec, {.level = Level::kComm});
      const Simulation run = Simulate(plan, spec.costs);
      for (const bool messages : {true, false}) {
        // Global ranks 6 and 5, clocks that begin elsewhere, and the last rank first.
        std::vector<TraceText> traces;
        for (size_t r = 2; r-- > 0;) {
          std::string events;
          for (size_t i = 0; i < plan.programs[r].size(); ++i) {
            const Instruction& what = plan.programs[r][i];
            const Span& span = run.timeline.ranks[r][i];
            if (what.op == Op::STEP || (IsMessage(what.op) && !messages)) continue;
            events += Event("gpu_user_annotation", "PP:" + RangeOf(what),
                            static_cast<double>(span.start) / 1000 + 1e6 * static_cast<double>(r),
                            static_cast<double>(span.end - span.start) / 1000);
          }
          traces.push_back({"t" + std::to_string(r),
                            TraceOf(events, "\"baseTimeNanoseconds\": " +
                                                std::to_string(2'000'000'000 - r * 1'000'000'000) +
                                                ", \"distributedInfo\": {\"rank\": " +
                                                std::to_string(6 - r) + "},")});
        }
        MeasuredRun read = ReadRun(plan, traces);
        CHECK(read.steps == 1);
        CHECK((Contains(read.Note(), "was not timed")) == !messages);
        const Simulation measured = RunOf(plan, spec.costs, std::move(read.timeline));
        CHECK(measured.makespan == run.makespan);
        for (size_t r = 0; r < 2; ++r) CHECK(measured.ranks[r].busy == run.ranks[r].busy);
        traces[1] = traces[0];
        CHECK(Contains(Failure([&] { ReadRun(plan, traces); }), "give the traces of one replica"));
      }
    }
  }

  TEST_CASE("the last step of a run of PyTorch") {
    Spec spec = MakeSpec("dualpipe-v", 2, 4, UniformCosts(1, 1, 1));
    const Plan plan = Compile(spec, {.level = Level::kComm});
    std::vector<TraceText> traces;
    for (const char* rank : {"0", "1"}) {
      const std::string path =
          CF_TEST_DIR "/reference/torch_profile_rank" + std::string(rank) + ".json";
      traces.push_back({path, ReadFile(path, kMostTraceBytes)});
    }
    const MeasuredRun run = ReadRun(plan, traces);
    CHECK(run.steps == 2);
    CHECK(Contains(run.Note(), "of the host"));
    const Simulation measured = RunOf(plan, spec.costs, run.timeline);
    CHECK(measured.ranks[0].busy == doctest::Approx(276'666'368).epsilon(1e-5));
    CHECK(measured.makespan == doctest::Approx(453'114'880).epsilon(1e-5));
    spec.schedule = "zb-v";
    const Plan other = Compile(spec, {.level = Level::kComm});
    CHECK(Contains(Failure([&] { ReadRun(other, traces); }), "which is not in its program"));
    spec.schedule = "1f1b";
    CHECK(Failure([&] { ReadRun(Compile(spec, {.level = Level::kComm}), traces); }) != "");
    const std::vector<TraceText> none = {
        {"none", TraceOf(Event("user_annotation", "ProfilerStep#1", 0, 1))}};
    CHECK(Contains(Failure([&] { ReadRun(plan, none); }), "has no range of an instruction"));
  }

  TEST_CASE("ranges of PyTorch's schedules of one stage a rank") {
    const std::string events = Event("gpu_user_annotation", "Forward 0", 0, 10) +
                               Event("gpu_user_annotation", "Forward 1", 10, 12) +
                               Event("gpu_user_annotation", "Forward pass", 22, 50) +
                               Event("gpu_user_annotation", "Backward 0", 80, 20) +
                               Event("gpu_user_annotation", "Backward 1", 100, 22);
    const auto of_rank = [&](int rank) {
      return TraceOf(events, "\"distributedInfo\": {\"rank\": " + std::to_string(rank) +
                                 ", \"world_size\": 2},");
    };
    const ProfiledCosts profile = CostsOfText(of_rank(1));
    REQUIRE(profile.rows.size() == 2);
    CHECK(profile.rows[0].what == "F");
    CHECK(profile.rows[0].stage == 1);
    CHECK(profile.rows[0].median == 11);
    CHECK(profile.rows[1].what == "BW");
    CHECK(profile.rows[1].median == 21);
    CHECK(HasNote(profile, "waits for receives are within"));
    const ProfiledCosts unknown = CostsOfText(TraceOf(events));
    CHECK(unknown.rows[0].stage == -1);
    CHECK(HasNote(unknown, "every stage, as the trace names no rank"));
    Plan plan;
    plan.ranks = plan.stages = 4;
    CHECK(FailureOf(of_rank(1), {.plan = &plan}) ==
          "p: names no stage, is of rank 1 of 2, and the plan has 4 ranks, so its stage is not "
          "known; "
          "give a table with the columns stage, op and time (`from` csv)");
    // Names of PyTorch's runtime count alone where there are any.
    const ProfiledCosts both =
        CostsOfText(TraceOf(events + Event("gpu_user_annotation", "PP:3F0", 0, 5) +
                            Event("gpu_user_annotation", "PP:3B0", 5, 5)));
    CHECK(both.rows.size() == 2);
    CHECK(both.rows[0].stage == 3);
    for (const char* name : {"Forward", "Forward ", "Forward 1x", "forward 1", "Backward -1"}) {
      CHECK(!ParseOneStage(name, 0));
    }
  }

  TEST_CASE("whether a REDUCE blocks its rank, and how long it takes without its waits") {
    for (const bool blocks : {false, true}) {
      CAPTURE(blocks);
      Spec spec = MakeSpec("dualpipe", 2, 8, {});
      spec.costs.unit = Unit::kMicroseconds;
      spec.costs.stages.push_back({.f = 3000, .b = 3000, .w = 2000, .bw = 5000, .fb = 8000});
      spec.costs.stages.front().reduce = 900;
      spec.costs.comm.reduce_blocks = blocks;
      const Plan plan = Compile(spec, {.level = Level::kComm});
      const Time makespan = Simulate(plan, spec.costs).makespan;
      ProfiledCosts profile =
          CostsOfText(WriteTrace(plan, Simulate(plan, spec.costs).timeline), {.plan = &plan});
      CHECK(profile.costs.comm.reduce_blocks == blocks);
      CHECK(HasNote(profile, "reduce_blocks") == blocks);
      CHECK(profile.costs.stages[0].reduce == 900);
      CHECK(Simulate(plan, profile.costs).makespan == makespan);
    }
    // Rank 0 comes 40 before rank 1; nothing says whether it could have computed.
    const std::string events = SliceOf(0, "F s0 m0", 0, 9) + SliceOf(0, "BW s0 m0", 10, 50) +
                               SliceOf(0, "REDUCE s0", 60, 49) + SliceOf(1, "F s0 m1", 0, 9) +
                               SliceOf(1, "BW s0 m1", 10, 90) + SliceOf(1, "REDUCE s0", 100, 10);
    const ProfiledCosts profile = CostsOfText(TraceOf(events));
    CHECK(profile.costs.stages[0].reduce == 9500);
    CHECK_FALSE(HasNote(profile, "reduce_blocks"));
  }

  TEST_CASE("means are those of the slowest of ranks with copies of the same stages") {
    const std::string events = SliceOf(0, "F s0 m0", 0, 10) + SliceOf(0, "F s1 m0", 10, 8) +
                               SliceOf(0, "BW s0 m0", 20, 20) + SliceOf(0, "BW s1 m0", 40, 16) +
                               SliceOf(1, "F s0 m1", 0, 9) + SliceOf(1, "F s1 m1", 10, 10) +
                               SliceOf(1, "BW s0 m1", 20, 24) + SliceOf(1, "BW s1 m1", 44, 20) +
                               SliceOf(2, "F s2 m0", 0, 1) + SliceOf(2, "BW s2 m0", 10, 2);
    const ProfiledCosts slowest = CostsOfText(TraceOf(events), {.mean = true});
    CHECK(slowest.costs.stages[0].f == 9000);
    CHECK(slowest.costs.stages[0].bw == 24000);
    CHECK(slowest.costs.stages[1].f == 10000);
    CHECK(slowest.costs.stages[2].bw == 2000);
    CHECK(
        HasNote(slowest,
                "ranks 0-1 hold copies of the same stages, and rank 1 is slower by up to 16.67 %"));
    const ProfiledCosts medians = CostsOfText(TraceOf(events));
    CHECK(medians.costs.stages[0].f == 9500);
    CHECK_FALSE(HasNote(medians, "copies"));
  }

  TEST_CASE("a message takes what makes up for the time that no instruction shows") {
    Spec spec = MakeSpec("zb-1p", 4, 8, {});
    spec.costs.unit = Unit::kMicroseconds;
    spec.costs.stages.push_back({.f = 3000, .b = 3000, .w = 2000, .bw = 5000, .fb = 8000});
    spec.costs.comm.latency = 1000;
    const Plan plan = Compile(spec, {.level = Level::kComm});
    const Time makespan = Simulate(plan, spec.costs).makespan;
    const auto fitted = [&](Time measured) {
      ProfiledCosts profile;
      profile.costs = spec.costs;
      FitMessages(plan, measured, &profile);
      return profile;
    };
    CHECK(fitted(makespan * 100 / 101 + 1).costs == spec.costs);
    CHECK(fitted(makespan * 101 / 100).notes.empty());
    for (const Time measured : {makespan + 3000, makespan * 3, makespan * 98 / 100}) {
      const ProfiledCosts profile = fitted(measured);
      CHECK(std::abs(Simulate(plan, profile.costs).makespan - measured) <= 2 * plan.microbatches);
      CHECK((profile.costs.comm.latency > 1000) == (measured > makespan));
      CHECK(HasNote(profile, "a message takes"));
    }
    const ProfiledCosts too_long = fitted(makespan / 2);
    CHECK(too_long.costs == spec.costs);
    CHECK(HasNote(too_long, "the run took"));
  }

  TEST_CASE("messages of this project's traces") {
    Spec spec = MakeSpec("1f1b", 3, 6, {});
    spec.costs.unit = Unit::kMicroseconds;
    spec.costs.stages.push_back({.f = 9000, .b = 8000, .w = 7000, .bw = 15000, .fb = 24000});
    for (const Time latency : {0, 1, 40, 3000}) {
      CAPTURE(latency);
      spec.costs.comm.latency = latency;
      const Plan plan = Compile(spec, {.level = Level::kComm});
      const std::string trace = WriteTrace(plan, Simulate(plan, spec.costs).timeline);
      const ProfiledCosts profile = CostsOfText(trace);
      CHECK(profile.costs.comm.latency == (latency == 1 ? 0 : latency));
      CHECK_FALSE(HasNote(profile, "no message"));
    }
    // Events of contraflow-run: a RECV that waited begins a little after its SEND; one that came
    // late to its message says nothing of it.
    std::string events = Event("compute", "F s0 m0", 0, 9) + Event("compute", "BW s0 m0", 50, 9);
    const auto side = [](const char* op, int stage, int m, double start, double duration) {
      return Event(op[0] == 'S' ? "send" : "receive", op, start, duration,
                   ", \"args\": {\"stage\": " + std::to_string(stage) +
                       ", \"microbatch\": " + std::to_string(m) + "}");
    };
    for (int m = 0; m < 8; ++m) {
      const double at = 100 * m, late = m == 7 ? 30 : 0.06;
      events += side("SEND_F", 0, m, at, 2);
      events += side("RECV_F", 1, m, at + late, m == 7 ? 0.2 : 5 - late);
    }
    CHECK(CostsOfText(TraceOf(events)).costs.comm.latency == 5000);
    events = Event("compute", "F s0 m0", 0, 9) + Event("compute", "BW s0 m0", 50, 9) +
             side("SEND_F", 0, 0, 100, 2) + side("RECV_F", 1, 0, 100.4, 0.3);
    CHECK(HasNote(CostsOfText(TraceOf(events)), "no message could be timed"));
  }

  TEST_CASE("a packed trace is read as the plain one, and a cut one is refused") {
    const TestFolder folder;
    const std::string path = folder.File("trace");
    WriteFile(path, TraceOf(Event("user_annotation", "PP:0F0", 0, 2) +
                            Event("user_annotation", "PP:0B0", 5, 3)));
    REQUIRE(std::system(("gzip -kf " + path).c_str()) == 0);
    const std::string packed = ReadFile(path + ".gz", 1 << 20);
    const std::string failure = Failure([&] {
      CHECK(Profile({path + ".gz"}).costs == Profile({path}).costs);
      WriteFile(path + ".gz", packed.substr(0, packed.size() - 9));
      CHECK(Failure([&] { Profile({path + ".gz"}); }) ==
            path + ".gz: not a whole gzip file: it ends too soon");
      WriteFile(path + ".gz", packed.substr(0, packed.size() / 2) + "\xff\xff\xff" +
                                  packed.substr(packed.size() / 2 + 3));
      CHECK(Contains(Failure([&] { Profile({path + ".gz"}); }), "not a whole gzip file: "));
    });
    // Without zlib it says so.
    if (failure != "accepted") CHECK(Contains(failure, "unpack it with gunzip"));
  }
}

}  // namespace
}  // namespace contraflow::profile_test
