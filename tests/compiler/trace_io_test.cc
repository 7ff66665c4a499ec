#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "compiler/files/trace.h"
#include "compiler/lower/lower.h"
#include "compiler/simulate/simulate.h"
#include "schedules/registry.h"
#include "tests/support/failure.h"
#include "tests/support/random_plan.h"
#include "tests/support/sanitized.h"
#include "tests/support/support.h"

namespace contraflow::trace_io_test {
namespace {

/// Two ranks; the message goes from time 2 to 3.5 units.
Plan SmallPlan() {
  Plan plan;
  plan.schedule = "gpipe";
  plan.level = Level::kComm;
  plan.ranks = plan.stages = 2;
  plan.microbatches = 1;
  plan.routes = {{{0, 1}, {0}}};
  plan.programs = {{CellOp(Op::F, 0, 0), Message(Op::SEND_F, 0, 0, 1), StageOp(Op::STEP, 0)},
                   {Message(Op::RECV_F, 1, 0, 0), CellOp(Op::F, 1, 0)}};
  return plan;
}

constexpr Time kUnit = 1'000'000;

TEST_SUITE("unit") {
  TEST_CASE("the whole trace of a small plan") {
    Timeline timeline;
    timeline.ranks = {{{0, 2 * kUnit}, {2 * kUnit, 3'500'001}, {4 * kUnit, 4 * kUnit}},
                      {{2 * kUnit, 3'500'001}, {3'500'001, 5 * kUnit}}};
    CHECK(WriteTrace(SmallPlan(), timeline) == R"({
"displayTimeUnit": "ms",
"otherData": {"schedule": "gpipe", "level": "comm", "ranks": 2, "stages": 2, "microbatches": 1, "data_parallel": 1, "expert_parallel": 1, "times": "predicted", "unit": "unit", "makespan": 5},
"traceEvents": [
{"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "rank 0"}},
{"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "compute"}},
{"ph": "M", "pid": 0, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": 0}},
{"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "send to 1"}},
{"ph": "M", "pid": 0, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
{"ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 2000, "name": "F", "cat": "compute", "args": {"index": 0, "stage": 0, "microbatch": 0}},
{"ph": "X", "pid": 0, "tid": 1, "ts": 2000, "dur": 1500.001, "name": "SEND_F", "cat": "send", "args": {"index": 1, "stage": 0, "microbatch": 0, "peer": 1}},
{"ph": "X", "pid": 0, "tid": 0, "ts": 4000, "dur": 0, "name": "STEP", "cat": "step", "args": {"index": 2, "stage": 0}},
{"ph": "C", "pid": 0, "tid": 0, "ts": 0, "name": "activations", "args": {"activations": 1}},
{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "rank 1"}},
{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "compute"}},
{"ph": "M", "pid": 1, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": 0}},
{"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "receive from 0"}},
{"ph": "M", "pid": 1, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
{"ph": "X", "pid": 1, "tid": 1, "ts": 2000, "dur": 1500.001, "name": "RECV_F", "cat": "receive", "args": {"index": 0, "stage": 1, "microbatch": 0, "peer": 0}},
{"ph": "X", "pid": 1, "tid": 0, "ts": 3500.001, "dur": 1499.999, "name": "F", "cat": "compute", "args": {"index": 1, "stage": 1, "microbatch": 0}},
{"ph": "C", "pid": 1, "tid": 0, "ts": 3500.001, "name": "activations", "args": {"activations": 1}},
{"ph": "s", "pid": 0, "tid": 1, "ts": 2000, "id": 0, "name": "activation", "cat": "message"},
{"ph": "f", "pid": 1, "tid": 1, "ts": 2000, "id": 0, "bp": "e", "name": "activation", "cat": "message"}
]
}
)");
  }

  TEST_CASE("an arrow never points back in time also where the receive was posted first") {
    Timeline timeline;
    timeline.measured = true;
    timeline.ranks = {{{0, 20}, {20, 30}, {30, 30}}, {{5, 40}, {40, 50}}};
    const nlohmann::json trace = nlohmann::json::parse(WriteTrace(SmallPlan(), timeline));
    std::map<std::string, double> times;
    for (const auto& event : trace["traceEvents"]) {
      if (event.contains("bp") || event["ph"] == "s") times[event["ph"]] = event["ts"];
    }
    CHECK(times == std::map<std::string, double>{{"s", 0.02}, {"f", 0.02}});
  }

  TEST_CASE("the k-th send of a message is matched with the k-th receive the rest with none") {
    Plan plan = SmallPlan();
    const Instruction send = plan.programs[0][1], receive = plan.programs[1][0];
    // A gradient of the same stage and micro-batch must not be mixed up with the activation.
    const Instruction gradient = Message(Op::SEND_B, 1, 0, 0);
    plan.programs = {{send, send, send, Message(Op::RECV_B, 0, 0, 1)},
                     {receive, gradient, receive}};
    Timeline timeline;
    timeline.ranks = {{{10, 11}, {20, 21}, {30, 31}, {40, 41}}, {{12, 13}, {39, 40}, {22, 23}}};
    const nlohmann::json trace = nlohmann::json::parse(WriteTrace(plan, timeline));
    std::vector<std::string> arrows;
    for (const auto& event : trace["traceEvents"]) {
      if (!event.contains("id")) continue;
      arrows.push_back(event["ph"].get<std::string>() + event["id"].dump() + " " +
                       event["ts"].dump());
    }
    CHECK(arrows == std::vector<std::string>{"s0 0.039", "f0 0.04", "s1 0.01", "f1 0.012",
                                             "s2 0.02", "f2 0.022"});
  }
}

TEST_SUITE("unit") {
  TEST_CASE("each lane of a rank is a track of its own and no track runs two things at once") {
    std::mt19937_64 random(74);
    const CostModel costs = RandomMoeCosts(&random, 2, Overlap::kAll);
    const Plan plan = Lower(GeneratePlan(MakeSpec("dualpipe", 4, 8, costs)), costs,
                            {.target = Level::kComponent});
    const nlohmann::json trace =
        nlohmann::json::parse(WriteTrace(plan, Simulate(plan, costs).timeline));
    std::map<std::pair<int, int>, std::string> names;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "M" && event["name"] == "thread_name") {
        names[{event["pid"], event["tid"]}] = event["args"]["name"];
      }
    }
    std::map<std::pair<int, int>, double> until;
    std::map<std::string, int> events;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::pair<int, int> track = {event["pid"], event["tid"]};
      const Instruction& i =
          plan.programs[event["pid"].get<size_t>()][event["args"]["index"].get<size_t>()];
      const std::string& name = names.at(track);
      CAPTURE(ToString(i));
      CHECK((name == "compute") == (i.lane == Lane::kCompute));
      CHECK((name == "all-to-all") == (i.lane == Lane::kAllToAll));
      CHECK((name == "reduce") == (i.lane == Lane::kReduce));
      CHECK(name.starts_with("send to") == (i.lane == Lane::kSend));
      ++events[name];
      CHECK(event["ts"].get<double>() >= until[track] - 1e-6);
      until[track] = event["ts"].get<double>() + event["dur"].get<double>();
    }
    CHECK(events["compute"] > 100);
    CHECK(events["all-to-all"] > 100);
    CHECK(events["reduce"] == 8);
  }
}

/// Slices of each track in nanoseconds, by start; arrows with the track and time of either end.
struct Drawn {
  struct Slice {
    int64_t start, end, index;
  };
  struct End {
    std::pair<int, int> track;
    int64_t time;
  };
  std::map<std::pair<int, int>, std::vector<Slice>> tracks;
  std::map<int, End> from, to;
};

int64_t Nanoseconds(const nlohmann::json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

Drawn Draw(const nlohmann::json& trace) {
  Drawn drawn;
  for (const auto& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    const std::pair<int, int> track(event["pid"], event["tid"]);
    if (phase == "X") {
      const int64_t start = Nanoseconds(event["ts"]);
      drawn.tracks[track].push_back(
          {start, start + Nanoseconds(event["dur"]), event["args"]["index"]});
    }
    if (phase == "s") drawn.from[event["id"]] = {track, Nanoseconds(event["ts"])};
    if (phase == "f") drawn.to[event["id"]] = {track, Nanoseconds(event["ts"])};
  }
  for (auto& [track, slices] : drawn.tracks) {
    std::ranges::stable_sort(slices, [](const auto& a, const auto& b) {
      return std::pair(a.start, a.end) < std::pair(b.start, b.end);
    });
  }
  return drawn;
}

/// The instruction whose slice an end of an arrow is in: Perfetto takes the one that has begun and
/// not ended on that track.
const Instruction& SliceAt(const Plan& plan, const Drawn& drawn, const Drawn::End& end) {
  const Instruction* found = nullptr;
  for (const auto& slice : drawn.tracks.at(end.track)) {
    if (slice.start > end.time || slice.end <= end.time) continue;
    CHECK(found == nullptr);
    found = &plan.programs[static_cast<size_t>(end.track.first)][static_cast<size_t>(slice.index)];
  }
  REQUIRE(found != nullptr);
  return *found;
}

void CheckDrawn(const Plan& plan, const Timeline& timeline) {
  const Drawn drawn = Draw(nlohmann::json::parse(WriteTrace(plan, timeline)));
  for (const auto& [track, slices] : drawn.tracks) {
    for (size_t i = 0; i + 1 < slices.size(); ++i) CHECK(slices[i].end <= slices[i + 1].start);
  }
  for (const auto& [id, from] : drawn.from) {
    const Instruction& send = SliceAt(plan, drawn, from);
    const Instruction& receive = SliceAt(plan, drawn, drawn.to.at(id));
    CHECK(IsSend(send.op));
    CHECK(receive.op == (send.op == Op::SEND_F ? Op::RECV_F : Op::RECV_B));
    CHECK(receive.microbatch == send.microbatch);
    CHECK(receive.stage == send.stage + (send.op == Op::SEND_F ? 1 : -1));
  }
}

TEST_SUITE("unit") {
  TEST_CASE("transfers that overlap have a track each, and arrows end in their slices") {
    int spilled = 0;
    for (const Schedule* schedule : Schedules()) {
      for (const double comm : {0.0, 0.5, 1.5, 7.0}) {
        CostModel costs = UniformCosts(kUnit, kUnit, kUnit, static_cast<Time>(comm * kUnit));
        Spec spec = MakeSpec(schedule->name, 4, 8, costs);
        spec.search.budget = 1'000'000;
        CAPTURES(schedule->name, comm);
        const Plan plan = Compile(spec);
        const Timeline timeline = Simulate(plan, *plan.costs).timeline;
        CheckDrawn(plan, timeline);
        spilled += Contains(WriteTrace(plan, timeline), "send to 1 (2)") ? 1 : 0;
      }
    }
    CHECK(spilled > 10);
  }

  TEST_CASE("the counter of a rank is at most what simulation says it holds, and comes to it") {
    for (const Schedule* schedule : Schedules()) {
      for (const bool bytes : {false, true}) {
        CostModel costs = UniformCosts(3 * kUnit, 4 * kUnit, 2 * kUnit);
        if (bytes) costs.memory = MemoryCost{.activation_bytes = 1000, .w_stash_bytes = 300};
        Spec spec = MakeSpec(schedule->name, 4, 8, costs);
        spec.search.budget = 1'000'000;
        CAPTURE(schedule->name);
        const Plan plan = Compile(spec);
        const Simulation simulation = Simulate(plan, *plan.costs);
        std::map<int, int64_t> most, last;
        const nlohmann::json trace = nlohmann::json::parse(WriteTrace(plan, simulation.timeline));
        for (const auto& event : trace["traceEvents"]) {
          if (event["ph"] != "C") continue;
          const int rank = event["pid"];
          last[rank] = event["args"][bytes ? "bytes" : "activations"];
          most[rank] = std::max(most[rank], last[rank]);
        }
        for (int r = 0; r < plan.ranks; ++r) {
          const RankFigures& figures = simulation.ranks[static_cast<size_t>(r)];
          CHECK(most[r] == (bytes ? figures.peak_bytes : figures.peak_activations));
          CHECK(last[r] == 0);
        }
      }
    }
  }

  TEST_CASE("slices have what the costs say") {
    const CostModel costs = UniformCosts(3'500'000, 4 * kUnit, 2 * kUnit, kUnit / 4);
    const Plan plan = Compile(MakeSpec("dualpipe", 2, 4, costs));
    Timeline timeline = Simulate(plan, costs).timeline;
    timeline.measured = true;
    const nlohmann::json trace = nlohmann::json::parse(WriteTrace(plan, timeline));
    CHECK(trace["otherData"]["times"] == "measured");
    CHECK(trace["otherData"]["schedule"] == "dualpipe");
    std::map<std::string, double> cost;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "X") cost[event["name"]] = event["args"]["cost"];
    }
    CHECK(cost.at("F") == 3.5);
    CHECK(cost.at("FB") == 9.5);
    CHECK(cost.at("SEND_F") == 0.25);
    CHECK(cost.at("STEP") == 0);
  }
}

TEST_SUITE("property") {
  TEST_CASE("any plan gives valid JSON with one event for each instruction") {
    std::mt19937_64 random(9);
    for (int i = 0; i < CasesToDraw(200); ++i) {
      CAPTURE(i);
      const Plan plan = RandomPlan(&random);
      Timeline timeline;
      for (const Program& program : plan.programs) {
        timeline.ranks.emplace_back();
        for (size_t k = 0; k < program.size(); ++k) {
          const auto start = static_cast<Time>(random() >> 20);
          timeline.ranks.back().push_back({start, start + static_cast<Time>(random() >> 30)});
        }
      }
      const std::string text = WriteTrace(plan, timeline);
      CHECK(WriteTrace(plan, timeline) == text);
      const nlohmann::json trace = nlohmann::json::parse(text);
      int64_t events = 0, starts = 0, finishes = 0;
      std::set<std::pair<int, int>> named, used;
      for (const auto& event : trace["traceEvents"]) {
        const std::string phase = event["ph"];
        const std::pair<int, int> thread(event["pid"], event["tid"]);
        if (phase == "M" && event["name"] == "thread_name") CHECK(named.insert(thread).second);
        if (phase != "M") used.insert(thread);
        if (phase == "X") {
          const Program& program = plan.programs[event["pid"].get<size_t>()];
          const auto index = event["args"]["index"].get<size_t>();
          const Instruction& written = program.at(index);
          CHECK(event["name"] == Name(written.op));
          CHECK(event["args"].value("stage", -1) == written.stage);
          CHECK(event["args"].value("microbatch", -1) == written.microbatch);
          CHECK(event["args"].value("layer", -1) == written.layer);
          CHECK(event["args"].value("back_stage", -1) == written.back_stage);
          CHECK(event["args"].value("back_microbatch", -1) == written.back_microbatch);
          CHECK(event["args"].value("peer", -1) == written.peer);
          ++events;
        }
        starts += phase == "s" ? 1 : 0;
        finishes += phase == "f" ? 1 : 0;
      }
      CHECK(events == InstructionCount(plan));
      CHECK(starts == finishes);
      CHECK(named == used);
    }
  }
}

}  // namespace
}  // namespace contraflow::trace_io_test
